"""Channels whose posterior is a few percent off: refused by the guard of ``run``, which ``check`` runs, or by ``--verify``."""

import dataclasses
import itertools

import numpy as np
import pytest
from smimbench_attention.channels.attention.hardmax import AttentionHardmax
from smimbench_attention.channels.attention.softmax import AttentionSoftmax
from smimbench_attention.channels.linear import AttentionLinear, SequenceLinear
from smimbench_attention.channels.sequence.hardmax import SequenceHardmax
from smimbench_attention.channels.sequence.perceptron import Probit, Sign
from smimbench_attention.channels.sequence.softmax import SequenceSoftmax

from smimbench.problem.problem import ProblemError
from smimbench.run.theory_solver import TheorySolver
from smimbench.testing import check
from smimbench.theory.consistency import require_consistent
from smimbench.theory.verification import verify_point
from tests.theory.test_consistency import LOW, MATRICES, problem_of


def believing(base, **factors):
    """A subclass whose posterior believes in other parameters than those its labels are made with."""

    class Wrong(base):
        information = susceptibility = None

        def posterior(self, y, omega, V, **options):
            other = {
                name: factor * getattr(self, name) for name, factor in factors.items()
            }
            return base.posterior(
                dataclasses.replace(self, **other), y, omega, V, **options
            )

    return Wrong


def spread(found):
    """Covariance of every sample (n, P, C, P, C)."""
    return (
        found.second_moment
        - found.mean[:, :, :, None, None] * found.mean[:, None, None, :, :]
    )


def with_moments(base, mean=lambda mean, omega: mean, factor=1.0):
    """A subclass with another mean, and with the covariance of every sample times a factor: consistent with each other."""

    class Wrong(base):
        information = susceptibility = None

        def posterior(self, y, omega, V, *, second_moment=False, rng=None):
            found = super().posterior(y, omega, V, second_moment=True, rng=rng)
            new = mean(found.mean, omega)
            moment = new[:, :, :, None, None] * new[
                :, None, None, :, :
            ] + factor * spread(found)
            return found._replace(
                mean=new,
                covariance=factor * found.covariance,
                second_moment=moment if second_moment else None,
            )

    return Wrong


def far(factor):
    return lambda mean, omega: np.where(np.abs(omega) > 1, factor * mean, mean)


CHANNELS = {
    "linear": (LOW, SequenceLinear, {"noise": 0.3}),
    "linear, much noise": (LOW, SequenceLinear, {"noise": 2.0}),
    "linear, two components": (LOW, SequenceLinear, {"noise": 0.1, "components": 2}),
    "softmax": (LOW, SequenceSoftmax, {}),
    "sign": (LOW, Sign, {}),
    "probit": (LOW, Probit, {"noise": 0.7}),
    "attention linear": (MATRICES, AttentionLinear, {"noise": 0.3}),
    "attention softmax": (MATRICES, AttentionSoftmax, {}),
    "attention hardmax": (MATRICES, AttentionHardmax, {}),
}
WRONG = {
    "mean 2% longer where |omega| > 1": lambda base: with_moments(base, far(1.02)),
    "mean 2% shorter where |omega| > 1": lambda base: with_moments(base, far(0.98)),
    "covariance 2% larger": lambda base: with_moments(base, factor=1.02),
    "covariance 2% smaller": lambda base: with_moments(base, factor=0.98),
    "step of the mean 2% longer": lambda base: with_moments(
        base, lambda mean, omega: omega + 1.02 * (mean - omega)
    ),
    "mean shifted by 0.02": lambda base: with_moments(
        base, lambda mean, omega: mean + 0.02
    ),
}
NOISE = {f"noise {5 * sign:+}%": 1 + 0.05 * sign for sign in (1, -1)}


WRAPPED = [  # the others take half a minute together
    pytest.param(name, marks=[] if name == "linear" else [pytest.mark.slow])
    for name in CHANNELS
]


MIRRORED = ("mean 2% shorter where |omega| > 1", "covariance 2% smaller", "noise -5%")
"""The same as another one with the other sign, of which the test knows nothing: for one channel."""


def cases():
    for wrapped, (what, make) in itertools.product(WRAPPED, WRONG.items()):
        (name,) = wrapped.values
        model, base, given = CHANNELS[name]
        if name == "linear" or what not in MIRRORED:
            yield pytest.param(
                model, make(base), given, id=f"{name}, {what}", marks=wrapped.marks
            )
    for wrapped, (what, factor) in itertools.product(WRAPPED, NOISE.items()):
        (name,) = wrapped.values
        model, base, given = CHANNELS[name]
        if "noise" in given and (name == "linear" or what not in MIRRORED):
            yield pytest.param(
                model,
                believing(base, noise=factor),
                given,
                id=f"{name}, {what}",
                marks=wrapped.marks,
            )
    yield pytest.param(
        MATRICES,
        believing(AttentionSoftmax, beta=1.05),
        {},
        id="attention softmax, beta 5% off",
    )


def no_clock():
    return 0.0


@pytest.mark.parametrize(("model", "channel", "given"), list(cases()))
def test_the_guard_sees_it(model, channel, given):
    problem = problem_of(
        model, channel, "gaussian" if model is LOW else "wishart", **given
    )
    with pytest.raises(
        ProblemError,
        match=r"posterior at V = .* of V(;| )|detects a .*% error of the step",
    ):
        require_consistent(problem, clock=no_clock)


@pytest.mark.parametrize("name", WRAPPED)
def test_the_same_wrapper_passes_if_it_changes_nothing(name):
    model, base, given = CHANNELS[name]
    problem = problem_of(
        model, with_moments(base), "gaussian" if model is LOW else "wishart", **given
    )
    require_consistent(problem, clock=no_clock)


def test_check_says_what_it_can_and_cannot_see():
    item = believing(SequenceLinear, noise=1.05)(tokens=2, noise=0.3)
    (found,) = check(item, only=["nishimori"])
    assert found.status == "failed"
    assert (
        "% error of the step from omega to the mean, but not errors of rare labels"
        in found.message
    )


@pytest.mark.slow
def test_hardmax_of_vectors_is_slower_and_seen_as_well():
    with pytest.raises(ProblemError, match="error of the step from omega"):
        require_consistent(
            problem_of(LOW, with_moments(SequenceHardmax, far(1.02))), clock=no_clock
        )


@pytest.mark.parametrize(
    ("noise", "alpha", "factor"), [(0.3, 0.6, 1.05), (0.3, 0.6, 0.95), (1.0, 1.5, 1.05)]
)
def test_verify_sees_noise_that_the_posterior_misjudges(
    noise, alpha, factor, monkeypatch
):
    """The curve is right here, and the posterior of the draws is not."""
    problem = problem_of(LOW, "linear", noise=noise)
    ((point,),) = TheorySolver().points(problem, [alpha])
    assert all(abs(row.z) < 4 for row in verify_point(problem, point, 0.02))
    problem.channel = believing(SequenceLinear, noise=factor)(tokens=2, noise=noise)
    assert max(abs(row.z) for row in verify_point(problem, point, 0.02)) > 4
