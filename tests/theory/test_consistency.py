"""No theory is printed of a channel or prior that contradicts itself: mutants of the shipped items, each wrong in its own way."""

import importlib
import itertools
import time
import types

import numpy as np
import pytest
from smimbench_attention.channels.attention.hardmax import AttentionHardmax
from smimbench_attention.channels.attention.softmax import AttentionSoftmax
from smimbench_attention.channels.linear import AttentionLinear, SequenceLinear
from smimbench_attention.channels.sequence.hardmax import SequenceHardmax
from smimbench_attention.channels.sequence.perceptron import Probit, Sign
from smimbench_attention.channels.sequence.softmax import SequenceSoftmax
from smimbench_attention.priors.gaussian import Gaussian
from smimbench_attention.priors.wishart import Wishart

from smimbench import Problem
from smimbench.cli import main
from smimbench.interfaces import Denoised, Overlap, Uncertain
from smimbench.problem.problem import ProblemError
from smimbench.registry.registry import Entry, get_registry, using
from smimbench.run import theory_solver
from smimbench.run.theory_solver import TheorySolver
from smimbench.theory import item_tests
from smimbench.theory.consistency import require_consistent
from tests.helpers import ROOT, SUITE, write_suite

LOW = {"name": "sequence-multi-index", "tokens": 2}
MATRICES = {"name": "attention-indexed", "tokens": 2}


def problem_of(model, channel, prior="gaussian", rho=0.5, **parameters):
    """A problem whose channel or prior, if it is a class, came with another package."""
    strangers = {
        kind: item
        for kind, item in (("channel", channel), ("prior", prior))
        if isinstance(item, type)
    }

    below = get_registry()

    class Registry:
        entries = staticmethod(below.entries)

        @staticmethod
        def get(kind, name, model=None):
            if kind in strangers:
                return Entry(kind, name, strangers[kind], "strangers")
            return below.get(kind, name, model)

    channel, prior = (
        {"name": getattr(item, "name", item)} for item in (channel, prior)
    )
    width = {"rho": rho} if model is MATRICES else {}
    with using(Registry()):
        return Problem(model, channel | parameters, prior | width)


def channel_with(base, change):
    """A subclass whose posterior is ``change(posterior, y, omega, V)`` of the right one."""

    class Mutant(base):
        information = susceptibility = None

        def posterior(self, y, omega, V, *, second_moment=False, rng=None):
            found = super().posterior(y, omega, V, second_moment=second_moment, rng=rng)
            return change(found, y, omega, V)

    return Mutant


def prior_with(base, denoise=None, overlap=None):
    """A subclass with another denoiser or another map."""

    class Mutant(base):
        def denoise(self, R, Qhat):
            found = super().denoise(R, Qhat)
            return denoise(self, found, R, Qhat) if denoise else found

        def overlap(self, Qhat):
            found = super().overlap(Qhat)
            return overlap(found) if overlap else found

    return Mutant


def holed(found):
    mean = found.mean.copy()
    mean[0, 0, 0] = np.nan
    return found._replace(mean=mean)


CALLS = itertools.count()


def rare(y):
    """One label in twenty: the ones farthest from the others."""
    flat = np.nan_to_num(np.asarray(y, dtype=float).reshape(len(y), -1))
    far = np.abs(flat - flat.mean(0)).sum(1)
    return far > np.quantile(far, 0.95)


def prior_square(omega, V):
    """Second moment (n, P, C, P, C) of latents of which nothing is known but ``omega`` and V."""
    C = omega.shape[-1]
    return np.einsum("npc,nqd->npcqd", omega, omega) + np.einsum(
        "pq,cd->pcqd", V, np.eye(C)
    )


CHANNELS = {
    "mean 5% too long": lambda f, y, omega, V: f._replace(mean=omega + 1.05 * (f.mean - omega)),
    "mean 5% too short": lambda f, y, omega, V: f._replace(mean=omega + 0.95 * (f.mean - omega)),
    "mean forgets the label": lambda f, y, omega, V: f._replace(mean=omega),
    "mean of the wrong sign": lambda f, y, omega, V: f._replace(mean=-f.mean),
    "mean of other samples": lambda f, y, omega, V: f._replace(mean=np.roll(f.mean, 1, axis=0)),
    "mean shifted": lambda f, y, omega, V: f._replace(mean=f.mean + 0.1),
    "not a number": lambda f, y, omega, V: holed(f),
    "shape without components": lambda f, y, omega, V: f._replace(mean=f.mean[:, 0, :]),
    "covariance of every sample": lambda f, y, omega, V: f._replace(covariance=np.stack([f.covariance] * 3)),
    "covariance too small": lambda f, y, omega, V: f._replace(covariance=0.8 * f.covariance - 0.02 * V),
    "covariance too large": lambda f, y, omega, V: f._replace(covariance=f.covariance + 0.1 * V),
    "knows only the prior": lambda f, y, omega, V: f._replace(mean=omega, covariance=V, second_moment=None),
    "second moment 5% too large": lambda f, y, omega, V: f._replace(second_moment=1.05 * f.second_moment),
    "second moment of the prior": lambda f, y, omega, V: f._replace(second_moment=prior_square(omega, V)),
    "second moment not a number": lambda f, y, omega, V: f._replace(second_moment=np.nan * f.second_moment),
    "second moment of other latents": lambda f, y, omega, V: f._replace(second_moment=f.second_moment[:, :, 0]),
    "second moment in a list": lambda f, y, omega, V: f._replace(second_moment=f.second_moment.tolist()),
    "a tuple": lambda f, y, omega, V: (f.mean, f.covariance),
    "a list": lambda f, y, omega, V: f._replace(mean=f.mean.tolist()),
    "mean wrong where much is known": lambda f, y, omega, V: f._replace(
        mean=f.mean if V[0, 0] > 0.1 else omega + 0.9 * (f.mean - omega)
    ),
    "mean 10% too short, and says so": lambda f, y, omega, V: f._replace(mean=omega + 0.9 * (f.mean - omega), error=0.3),
    "mean that changes with the batch": lambda f, y, omega, V: f._replace(
        mean=omega + (1 - 20 / (len(omega) + 200)) * (f.mean - omega) if len(omega) < 1000 else f.mean
    ),
    "mean that changes with every call": lambda f, y, omega, V: f._replace(
        mean=f.mean + 1e-3 * next(CALLS) * (len(omega) < 1000)
    ),
    "mean of one token from the label alone": lambda f, y, omega, V: f._replace(
        mean=np.concatenate([omega[:, :, :1], f.mean[:, :, 1:]], axis=2)
    ),
    "tokens exchanged in one sample of 20": lambda f, y, omega, V: f._replace(
        mean=np.where((np.arange(len(omega)) % 20 == 0)[:, None, None], f.mean[:, :, ::-1], f.mean)
    ),
    "wrong for rare labels": lambda f, y, omega, V: f._replace(mean=np.where(rare(y)[:, None, None], omega, f.mean)),
    "whole numbers": lambda f, y, omega, V: f._replace(mean=f.mean.astype(int)),
    "half precision": lambda f, y, omega, V: f._replace(mean=f.mean.astype(np.float16)),
    "covariance in half precision": lambda f, y, omega, V: f._replace(covariance=f.covariance.astype(np.float16)),
    "mean rounded to a tenth": lambda f, y, omega, V: f._replace(mean=np.round(f.mean, 1)),
}  # fmt: skip

PRIORS = {
    "estimate 5% too long": {
        "denoise": lambda p, f, R, Qhat: Denoised(1.05 * f.estimate, f.V)
    },
    "estimate 3% too long": {
        "denoise": lambda p, f, R, Qhat: Denoised(1.03 * f.estimate, f.V)
    },
    "error 3% too large": {
        "denoise": lambda p, f, R, Qhat: Denoised(f.estimate, 1.03 * f.V)
    },
    "noise misread": {
        "denoise": lambda p, f, R, Qhat: super(type(p), p).denoise(R, 1.3 * Qhat)
    },
    "estimate is the input": {"denoise": lambda p, f, R, Qhat: Denoised(R, f.V)},
    "error too small": {
        "denoise": lambda p, f, R, Qhat: Denoised(f.estimate, 0.8 * f.V)
    },
    "estimate of the wrong shape": {
        "denoise": lambda p, f, R, Qhat: Denoised(f.estimate[0], f.V)
    },
    "estimate not a number": {
        "denoise": lambda p, f, R, Qhat: Denoised(f.estimate * np.nan, f.V)
    },
    "estimate in half precision": {
        "denoise": lambda p, f, R, Qhat: Denoised(f.estimate.astype(np.float16), f.V)
    },
    "estimate rounded to a half": {
        "denoise": lambda p, f, R, Qhat: Denoised(np.round(2 * f.estimate) / 2, f.V)
    },
    "map too good": {"overlap": lambda f: Overlap(f.Q + 0.1 * f.V, 0.9 * f.V)},
    "map that does not add up": {"overlap": lambda f: Overlap(f.Q, 0.9 * f.V)},
    "map of the wrong shape": {"overlap": lambda f: Overlap(f.Q[..., 0], f.V[..., 0])},
}


def information_of(change):
    class Mutant(SequenceLinear):
        def information(self, Q, V):
            return change(super().information(Q, V), V)

    return Mutant


INFORMATION = {
    "5% too large": (lambda f, V: f._replace(value=1.05 * f.value), "but random draws give"),
    "1% too small": (lambda f, V: f._replace(value=0.99 * f.value), "but random draws give"),
    "wrong in the middle": (lambda f, V: f._replace(value=f.value * (1 + 0.2 * ((V > 0.4) & (V < 0.6)))), "draws give"),
    "an array": (lambda f, V: f.value, "must return a smimbench.Uncertain"),
    "not a number": (lambda f, V: f._replace(value=f.value * np.nan), "must be finite numbers"),
    "of another shape": (lambda f, V: f._replace(value=f.value[..., 0]), r"of shape \(1, 1\)"),
    "raises": (lambda f, V: 1 // 0, "information raised ZeroDivisionError"),
}  # fmt: skip


def predicting(change):
    class Mutant(Probit):
        def generalization_error(self, Q, V):
            return change(super().generalization_error(Q, V))

    return Mutant


PREDICTIONS = {
    "all alike": (lambda f: {kind: Uncertain(0.123, 0.0, "closed") for kind in f}, "but random draws give"),
    "plug-in too good": (lambda f: {**f, "plugin": f["plugin"]._replace(value=0.95 * f["plugin"].value)}, "plugin.*draws give"),
    "one is missing": (lambda f: {kind: f[kind] for kind in ("bayes", "plugin")}, "constant.* got NoneType"),
    "a number": (lambda f: 0.3, "must return a smimbench.Uncertain"),
    "not a number": (lambda f: {**f, "bayes": f["bayes"]._replace(value=float("nan"))}, "must be finite numbers"),
}  # fmt: skip


class Coin(Gaussian):
    """Entries +1 and -1 with a denoiser that may be wrong."""

    bias, factor, hole = 0.5, 1.0, 1.0

    def sample(self, rng, components, dimension):
        return np.where(rng.random((components, dimension)) < self.bias, 1.0, -1.0)

    def denoise(self, R, Qhat):
        estimate = np.tanh(self.factor * Qhat[0, 0] * R)
        return Denoised(estimate, np.array([[np.mean(1 - estimate**2)]]))

    def overlap(self, Qhat):
        q = np.asarray(Qhat)[..., 0, 0]
        x, h = np.linspace(-12, 12, 2001, retstep=True)
        weight = np.exp(-x * x / 2) * h / np.sqrt(2 * np.pi)
        Q = (weight * np.tanh(q[..., None] + np.sqrt(q)[..., None] * x)).sum(-1)
        Q = np.where((q > 1) & (q < 4), self.hole * Q, Q)[..., None, None]
        return Overlap(Q, 1 - Q)


COINS = [
    ({"factor": 1.05}, "is not the posterior mean"),
    ({"factor": 0.95}, "is not the posterior mean"),
    ({"bias": 0.55}, "differs from that of the signal"),
    ({"hole": 1.1}, "overlap at Qhat.* but random draws give|gives a negative error"),
    ({"hole": 0.97}, "overlap at Qhat.* but random draws give"),
]


def raises(self, *arguments, **options):
    raise RuntimeError("two\nlines")


def refused():
    """Problems, sample ratios and what is said of them."""
    for base, (name, change) in itertools.product(
        (SequenceLinear, SequenceSoftmax), CHANNELS.items()
    ):
        said = f"channel '{base.name}': .*smimbench check"
        yield pytest.param(
            problem_of(LOW, channel_with(base, change)),
            [0.7],
            said,
            id=f"{base.name}, {name}",
        )
    for name, (change, said) in INFORMATION.items():
        problem = problem_of(LOW, information_of(change), noise=0.2)
        yield pytest.param(
            problem,
            np.linspace(0.02, 0.6, 9),
            f"channel 'linear': .*{said}",
            id=f"information {name}",
        )
    for name, (change, said) in PREDICTIONS.items():
        said = f"channel 'probit': generalization_error .*{said}"
        yield pytest.param(
            problem_of(LOW, predicting(change), noise=0.2),
            [0.5],
            said,
            id=f"predictions {name}",
        )
    for change, said in COINS:
        problem = problem_of(LOW, "linear", type("Wrong", (Coin,), change), noise=0.3)
        yield pytest.param(
            problem, np.linspace(0.1, 3.0, 12), said, id=f"coin {change}"
        )
    for method in ("sample", "denoise", "overlap"):
        said = f"prior 'gaussian': {method} raised RuntimeError: two lines; no theory"
        problem = problem_of(
            LOW, "linear", type("Wrong", (Coin,), {method: raises}), noise=0.3
        )
        yield pytest.param(problem, [0.4], said, id=f"{method} raises")
    for (base, model), (name, change) in itertools.product(
        ((Gaussian, LOW), (Wishart, MATRICES)), PRIORS.items()
    ):
        said = f"prior '{base.name}': .*smimbench check"
        problem = problem_of(model, "linear", prior_with(base, **change))
        yield pytest.param(problem, [0.4], said, id=f"{base.name}, {name}")


@pytest.mark.parametrize(("problem", "alphas", "said"), list(refused()))
def test_what_contradicts_itself_gives_no_curve(problem, alphas, said, monkeypatch):
    # A clock that stands still: the same draws and points on any machine.
    monkeypatch.setattr(
        theory_solver, "time", types.SimpleNamespace(perf_counter=lambda: 0.0)
    )
    monkeypatch.setattr(item_tests.ChannelTest, "max_draws", 1 << 14)
    with pytest.raises(ProblemError, match=said):
        TheorySolver().points(problem, alphas)


def test_thresholds_need_a_second_moment_where_no_sign_is_seen(monkeypatch):
    monkeypatch.setattr(
        item_tests.ChannelTest, "max_draws", 1 << 10
    )  # the posterior is right: few draws do
    change = channel_with(
        SequenceSoftmax, lambda f, y, omega, V: f._replace(second_moment=None)
    )
    with pytest.raises(
        ProblemError,
        match="channel 'softmax': labels do not depend on the sign of a component",
    ):
        TheorySolver().thresholds(problem_of(LOW, change, layers=2))


def test_right_formulas_and_a_fair_coin_pass():
    for problem, end in (
        (problem_of(LOW, information_of(lambda f, V: f), noise=0.2), 0.6),
        (problem_of(LOW, "linear", Coin, noise=0.3), 3.0),
    ):
        assert len(TheorySolver().points(problem, np.linspace(0.02, end, 6))) == 6


def hurried():
    """Seconds that pass four times as fast: a quarter of the draws that a user waits for."""
    return 4 * time.perf_counter()


@pytest.mark.parametrize(
    "channel", [SequenceSoftmax, SequenceLinear, Probit, Sign, SequenceHardmax]
)
def test_right_vectors_of_others_pass(channel):
    require_consistent(problem_of(LOW, channel, Gaussian), clock=hurried)


@pytest.mark.parametrize(
    ("channel", "rho"),
    [
        (AttentionSoftmax, 0.5),
        (AttentionHardmax, 0.5),
        (AttentionLinear, 0.05),
        (AttentionLinear, 3.0),
    ],
)
def test_right_matrices_of_others_pass(channel, rho):
    require_consistent(problem_of(MATRICES, channel, Wishart, rho), clock=hurried)


@pytest.mark.parametrize("name", ["Rademacher", "GaussBernoulli"])
def test_priors_with_values_of_their_own_pass(monkeypatch, name):
    """Where nearly all is known, signs are never confused: their error is 0 in every draw, and 1e-110 in theory."""
    monkeypatch.syspath_prepend(str(ROOT / "plugins" / "examples" / "smimbench-sparse"))
    entries = importlib.import_module("smimbench_sparse.entries")
    require_consistent(
        problem_of(LOW, SequenceLinear, getattr(entries, name)), clock=hurried
    )


def test_what_ships_is_not_asked(monkeypatch):
    """Its tests are the checks; a user does not wait for them."""
    for test in (item_tests.ChannelTest, item_tests.PriorTest):
        monkeypatch.setattr(test, "check", lambda *arguments: pytest.fail("asked"))
    TheorySolver().points(Problem(LOW, "linear", "gaussian"), [0.7])


PLUGIN = """
from smimbench import hookimpl
from smimbench_attention.channels.linear import SequenceLinear


class Long(SequenceLinear):
    name = "long"

    def posterior(self, y, omega, V, **options):
        found = super().posterior(y, omega, V, **options)
        return found._replace(mean=1.1 * found.mean)


@hookimpl
def smimbench_register_channels(register):
    register(Long)
"""


@pytest.mark.parametrize("command", ["theory", "run"])
def test_the_command_line_says_it_in_one_line(command, tmp_path, capsys):
    plugin = tmp_path / "wrong.py"
    plugin.write_text(PLUGIN)
    suite = write_suite(tmp_path, SUITE.replace('"linear"', '"long"'))
    with pytest.raises(SystemExit) as end:
        main(
            [
                command,
                str(suite),
                "--plugins",
                str(plugin),
                "--results",
                str(tmp_path / "r"),
            ]
        )
    said = capsys.readouterr()
    assert (end.value.code, said.out) == (2, "")
    *progress, line = said.err.strip().splitlines()
    assert command == "run" or all(
        "running for" in one for one in progress
    )  # on a busy machine
    assert "channel 'long'" in line
    assert "smimbench check long" in line
    assert {path.name for path in (tmp_path / "r" / "small").glob("*.json")} <= {
        "run.json"
    }
