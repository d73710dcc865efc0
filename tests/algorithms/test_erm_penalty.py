"""Penalties of convex risk minimisation: the best one, extreme ones, and errors of sampled labels against closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from smimbench_algorithms.erm.algorithm import Erm
from smimbench_algorithms.erm.fixed_point import ACCURACY, PENALTIES, best_penalty, minima
from smimbench_algorithms.erm.integrals import ridge_overlaps
from smimbench_algorithms.ridge import Ridge

import smimbench
from smimbench.backend import get_backend
from smimbench.interfaces import Conditions
from smimbench.theory.predictions import solve
from tests.algorithms.test_erm import PROBIT, SIGN, sequence
from tests.warped import MOMENTS, warped

LOSSES_OF = {
    "sign": ("square", "logistic", "squared-hinge"),
    "probit": ("square", "logistic", "squared-hinge"),
    "linear": ("square",),
}


def total(algorithm, problem, alpha):
    point = algorithm.theory(problem, alpha, Conditions())
    assert not isinstance(point, str), point
    return float(np.sum(point["mse"]))


def warped_error(shape, ratio, penalty, length):
    """Square loss sees labels as ``c z`` and noise: ridge regression, scaled."""
    c, square = MOMENTS[shape]
    found = ridge_overlaps(np.eye(1), (square / c**2 - 1) * np.eye(1), ratio, penalty)
    M, Q = c * found.cross.item(), c**2 * found.own.item()
    return 1 - M * M / Q if length == "posterior" else 1 - 2 * M + Q


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("length", ["posterior", "loss"])
def test_bayes_then_the_best_penalty_then_any(seed, length):
    """The error is that of the estimate which is returned, of whatever length."""
    rng = np.random.default_rng([5, seed])
    name = ("sign", "probit", "linear")[seed % 3]
    tokens, noise = int(rng.integers(1, 4)), float(10 ** rng.uniform(-2, 2))
    problem = sequence(name if name == "sign" else {"name": name, "noise": noise}, tokens)
    alpha = float(10 ** rng.uniform(-1, 1)) / tokens
    loss = str(rng.choice(LOSSES_OF[name]))
    best = Erm(loss, length=length)
    lowest = total(best, problem, alpha)
    assert float(np.sum(solve(problem, [alpha])[0].mse)) <= lowest * (1 + 1e-8)
    chosen = best.theory(problem, alpha, Conditions())["penalty"]
    for penalty in np.clip(chosen * 10 ** rng.uniform(-3, 3, 5), *PENALTIES):
        assert lowest <= total(Erm(loss, float(penalty), length), problem, alpha) * (1 + 1e-9)


@pytest.mark.parametrize("shape", ["positive part", "exponential"])
@pytest.mark.parametrize("length", ["posterior", "loss"])
@pytest.mark.parametrize("alpha", [0.3, 1.5])
def test_best_penalty_of_sampled_labels_is_that_of_the_closed_form(shape, length, alpha):
    with warped(shape) as problem:
        found = Erm(length=length).theory(problem, alpha, Conditions())
    exact = [warped_error(shape, alpha, penalty, length) for penalty in np.geomspace(1e-3, 1e3, 3001)]
    assert found["mse"] == pytest.approx(min(exact), rel=1e-4)
    assert warped_error(shape, alpha, found["penalty"], length) == pytest.approx(min(exact), rel=1e-5)


@pytest.mark.parametrize("noise", [1e-9, 1e-3, 0.3, 2e3, 1e5, 1e9])
@pytest.mark.parametrize("alpha", [0.01, 1.0, 300.0])
def test_best_penalty_of_linear_labels_is_their_noise(noise, alpha):
    problem = sequence({"name": "linear", "noise": noise})
    best = total(Erm(), problem, alpha)
    exact = ridge_overlaps(np.eye(1), noise * np.eye(1), alpha, noise)
    expected = (exact.truth - 2 * exact.cross + exact.own).item()
    assert best == pytest.approx(expected, rel=1e-7, abs=1e-12)
    assert best <= 1
    point = Ridge().theory(problem, alpha)
    assert point["mse"] == pytest.approx(expected, rel=1e-7, abs=1e-12)


@pytest.mark.parametrize("shape", ["positive part", "exponential"])
@pytest.mark.parametrize(
    ("tokens", "alpha", "penalty"),
    [(1, 0.4, 0.3), (1, 1.0, 1e-4), (1, 0.99, 1e-6), (1, 1.02, 1e-6), (2, 0.5, 1e-6), (2, 0.7, 1e-6), (3, 2.0, 3.0)],
)
def test_sampled_labels_land_on_the_closed_form_within_the_stated_error(shape, tokens, alpha, penalty):
    with warped(shape, tokens) as problem:
        found = Erm(penalty=penalty).theory(problem, alpha, Conditions())
    exact = warped_error(shape, tokens * alpha, penalty, "loss")
    assert abs(found["mse"] - exact) < 6 * found["mse_error"] + 1e-9 * exact
    assert found["mse_error"] < 1e-2 * exact


def test_what_an_iteration_leaves_is_stated(monkeypatch):
    """A fixed point that is let go early says how far it is from the end."""
    exact = minima(PROBIT, 1.3, "logistic", 0.0123)[0].overlaps
    early = ACCURACY._replace(close=1e-3, stalled=1e-3)
    monkeypatch.setattr("smimbench_algorithms.erm.fixed_point.ACCURACY", early)
    rough = minima(PROBIT, 1.3, "logistic", 0.01230001)[0]
    for one, other, error in zip(rough.overlaps[1:], exact[1:], rough.uncertain[1:]):
        assert abs(one - other).item() > 1e-9
        assert error.item() == pytest.approx(abs(one - other).item(), rel=0.2, abs=1e-7)


@pytest.mark.parametrize("loss", ["square", "logistic", "squared-hinge"])
@pytest.mark.parametrize("alpha", [0.5, 3.0])
@pytest.mark.parametrize("penalty", PENALTIES)
def test_extreme_penalties_have_a_theory(loss, alpha, penalty):
    """The largest: Hebb's rule. The smallest: continues what a thousand times as much gives."""
    found = Erm(loss, penalty).theory(SIGN, alpha, Conditions())
    if penalty > 1:
        seen = alpha * 2 / np.pi
        assert found["squared_cosine"][0] == pytest.approx(seen / (seen + 1), rel=1e-9)
    else:
        near = Erm(loss, 1e3 * penalty).theory(SIGN, alpha, Conditions())
        assert found["mse"] == pytest.approx(near["mse"], rel=2e-2)
    assert found["mse_error"] < 1e-9


@pytest.mark.parametrize("penalty", PENALTIES)
def test_runs_with_extreme_penalties_end(penalty):
    algorithm, instance = Erm("squared-hinge", penalty), SIGN.instance(0.5, 60, 0)
    data = instance.data(get_backend())
    state = algorithm.init(SIGN, data, np.random.default_rng(0))
    for _ in range(60):
        state, info = algorithm.step(SIGN, data, state)
        if info.residual < 1e-6:
            break
    assert info.residual < 1e-6
    assert 0 < instance.metrics(algorithm.estimate(state))["overlap"][0] < 1


@pytest.mark.parametrize("penalty", [1e160, 1e-160, 2e12, 0.5e-12, -1.0])
def test_penalties_out_of_range_are_refused(penalty):
    with pytest.raises(smimbench.ParameterError, match=r"penalty.*from 1e-12.* to 1e\+12.*or 'optimal', got"):
        Erm(penalty=penalty)


def test_one_length_and_penalty_for_runs_and_theory():
    algorithm = Erm(length="loss")
    data = SIGN.instance(2.5, 40, 0).data(get_backend())
    state = algorithm.init(SIGN, data, np.random.default_rng(0))
    assert state.penalty == algorithm.theory(SIGN, data.sample_ratio, Conditions())["penalty"]
    assert state.penalty == best_penalty(SIGN, data.sample_ratio, "logistic", "loss")
    assert state.length == 1
