"""Errors of prediction against exact values, and what their stated errors hold."""

from types import SimpleNamespace

import numpy as np
import pytest
from smimbench_attention.channels.sequence.perceptron import Probit, Sign

from smimbench import Problem, Uncertain
from smimbench.derive import complete_channel
from smimbench.interfaces import Channel
from smimbench.run.theory_solver import TheorySolver
from smimbench.theory import generalization
from tests.helpers import scalar

TWO_TOKENS = Problem(
    {"name": "sequence-multi-index", "tokens": 2}, "hardmax", "gaussian"
)


def test_the_constant_predictor_is_unbiased_and_its_error_is_honest(monkeypatch):
    """Exact for two tokens: 3/4. Means within a scramble are correlated, so no factor n / (n - 1) would do."""
    original = generalization.normal_points
    scores = []
    for k in range(16):
        monkeypatch.setattr(
            generalization,
            "normal_points",
            lambda d, n, what, *i, k=k: original(d, n, f"{what} {k}", *i),
        )
        found = generalization.sampled_errors(TWO_TOKENS, scalar(0.5), scalar(0.5))[
            "constant"
        ]
        scores.append((found.value - 0.75) / found.error)
    assert abs(np.mean(scores)) < 4 / np.sqrt(len(scores))
    assert 0.4 < np.std(scores) < 1.6


@pytest.mark.parametrize(("tokens", "exact"), [(2, 1.5), (3, None)])
def test_where_nothing_is_learned_the_prediction_is_the_limit_of_small_overlaps(
    tokens, exact
):
    """At omega = 0 all scores are equal, and a rule for ties would decide. Two tokens: rows that agree with 5/8 each."""
    problem = Problem(
        {"name": "sequence-multi-index", "tokens": tokens}, "hardmax", "gaussian"
    )
    found = [
        generalization.generalization_error(problem, scalar(q), scalar(1 - q))
        for q in (0.0, 1e-9)
    ]
    for kind in generalization.KINDS:
        assert (
            abs(found[0][kind].value - found[1][kind].value)
            < 4 * found[0][kind].error + 1e-9
        )
    if exact is not None:
        assert abs(found[0]["plugin"].value - exact) < 4 * found[0]["plugin"].error


@pytest.mark.slow
def test_the_error_of_V_is_part_of_the_error_of_a_prediction():
    """Three tokens: V comes from a fit through sampled numbers, the prediction from a quadrature without error of its own."""
    problem = Problem(
        {"name": "attention-indexed", "tokens": 3},
        "hardmax",
        {"name": "wishart", "rho": 0.5},
    )
    ((point,),) = TheorySolver().points(problem, [0.05])
    V, error = 1.5 - point.overlap[0, 0], point.mse_error[0]
    low, high = (
        problem.channel.generalization_error(scalar(1.5 - v), scalar(v))
        for v in (V - error, V + error)
    )
    for kind in ("bayes", "plugin"):
        half = (
            abs(
                float(np.asarray(high[kind].value)) - float(np.asarray(low[kind].value))
            )
            / 2
        )
        assert point.generalization_error_error[kind] == pytest.approx(half, rel=0.1)
        assert half > 1e-6


class Bare(Channel):
    """A channel with a posterior and nothing that predicts."""

    capabilities = Probit.capabilities
    symmetry, components = "none", 1

    def __init__(self, inner):
        self.inner = inner

    def forward(self, z, *, rng=None):
        return self.inner.forward(z, rng=rng)

    def posterior(self, y, omega, V, **options):
        return self.inner.posterior(y, omega, V, **options)


def completed(channel):
    """As much of a problem as errors of prediction ask for."""
    model = SimpleNamespace(sites=channel.tokens)
    return SimpleNamespace(
        channel=complete_channel(Bare(channel), model), components=1, model=model
    )


@pytest.mark.parametrize("Q", [0.04, 0.5, 0.95])
def test_noise_of_labels_is_no_error_of_a_prediction(Q):
    """A noisy channel that predicts by the mean of its labels: the noise that is left in the mean must not be squared."""
    problem, channel = completed(Probit(noise=0.3)), Probit(noise=0.3)
    found = generalization.generalization_error(problem, scalar(Q), scalar(1 - Q))
    measured = generalization.measured_error(
        problem, scalar(1), scalar(Q), scalar(Q), scalar(1 - Q)
    )
    for kind, exact in channel.generalization_error(scalar(Q), scalar(1 - Q)).items():
        assert found[kind].error < 0.01 * exact.value + 2e-4
        for entry in (found[kind], measured[kind]):
            assert abs(entry.value - exact.value) < 4 * entry.error


@pytest.mark.parametrize("tokens", [1, 2, 5])
def test_errors_of_sampled_steps_are_honest(tokens):
    """Signs are steps: a few scrambles say little of their spread."""
    problem, channel, scores = completed(Sign(tokens=tokens)), Sign(tokens=tokens), []
    for Q in np.random.default_rng(tokens).uniform(0.02, 0.98, 40):
        found = generalization.generalization_error(problem, scalar(Q), scalar(1 - Q))
        exact = channel.generalization_error(scalar(Q), scalar(1 - Q))
        scores.append(
            [
                (found[kind].value - exact[kind].value) / found[kind].error
                for kind in ("bayes", "plugin")
            ]
        )
    assert (np.sqrt(np.mean(np.square(scores), axis=0)) < 1.3).all()
    assert np.abs(scores).max() < 4


def test_rounding_does_not_leave_errors_below_0():
    """A closed form that ends at -4e-15 says 0; one that is clearly negative is wrong, and is not hidden."""

    def problem(bayes):
        found = {
            "bayes": Uncertain(bayes, 0.0, "m"),
            "plugin": Uncertain(0.1, 0.0, "m"),
            "constant": Uncertain(0.5, 0.0, "m"),
        }
        return SimpleNamespace(
            channel=SimpleNamespace(generalization_error=lambda Q, V: found)
        )

    assert (
        generalization.generalization_error(problem(-4e-15), scalar(1), scalar(0))[
            "bayes"
        ].value
        == 0
    )
    assert (
        generalization.generalization_error(problem(-4e-3), scalar(1), scalar(0))[
            "bayes"
        ].value
        == -4e-3
    )
