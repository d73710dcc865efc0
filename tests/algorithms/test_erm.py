"""Convex risk minimization: proximal operator, fixed point and best penalty against closed forms and published values."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.integrate import quad
from scipy.optimize import minimize_scalar
from smimbench_attention.algorithms.averaged import Averaged
from smimbench_attention.algorithms.erm import Erm
from smimbench_attention.algorithms.erm.fixed_point import (
    ACCURACY,
    PENALTIES,
    best_penalty,
    minima,
)
from smimbench_attention.algorithms.erm.integrals import LOSSES, proximal_operator
from smimbench_attention.algorithms.least_squares import ridge_overlaps
from smimbench_attention.algorithms.ridge import Ridge

import smimbench
from smimbench.backend import get_backend
from smimbench.interfaces import Conditions
from smimbench.testing import parametrize_with_checks
from smimbench.theory.predictions import solve
from tests.helpers import sequence
from tests.warped import MOMENTS, warped

LINE, SIGN, PROBIT = (
    sequence("linear", noise=0.3),
    sequence("sign", 1),
    sequence("probit", noise=0.5),
)


@parametrize_with_checks([Erm(loss="square", penalty=0.5)])
def test_contract(check):
    check()


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_proximal_operator_is_the_minimum(name):
    rng, loss = np.random.default_rng(3), LOSSES[name]
    y, omega = (
        np.sign(rng.standard_normal((20, 2, 2))),
        5 * rng.standard_normal((20, 2, 2)),
    )
    v = np.array([[0.3], [9.0]]) * np.ones_like(y)
    found = proximal_operator(loss, y, omega, v[0])
    for label, target, spread, z in zip(
        *(part.ravel() for part in (y, omega, v, found))
    ):

        def cost(z, label=label, target=target, spread=spread):
            return float(loss.value(label, z) + (z - target) ** 2 / 2 / spread)

        best = minimize_scalar(
            cost, bracket=(target - 1, target + 1), options={"xtol": 1e-12}
        )
        assert cost(z) <= best.fun + 1e-9


@pytest.mark.parametrize("alpha", [0.2, 0.45, 1.3])
@pytest.mark.parametrize("penalty", [1e-6, 0.1, 0.3, 4.0])
def test_ridge_by_random_matrices(alpha, penalty):
    """Marchenko and Pastur's law of ``X^T X / D``, nothing of the fixed point: ``E (l^2 + Delta x) / (l + x)^2``."""
    ratio, noise = 2 * alpha, 0.3
    low, high = (1 - math.sqrt(ratio)) ** 2, (1 + math.sqrt(ratio)) ** 2

    def density(x):
        return math.sqrt(max((high - x) * (x - low), 0.0)) / (2 * math.pi * x)

    bulk = quad(
        lambda x: density(x) * (penalty**2 + noise * x) / (penalty + x) ** 2,
        low,
        high,
        limit=500,
    )[0]
    expected = bulk + max(0.0, 1 - ratio)
    T, M, Q = (
        matrix[0, 0] for matrix in minima(LINE, alpha, "square", penalty)[0].overlaps
    )
    assert pytest.approx(expected, rel=1e-6) == T - 2 * M + Q
    point = Ridge(penalty).theory(LINE, alpha)
    assert point.mse == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("components", [1, 2])
def test_noiseless_labels_leave_what_they_do_not_span(components):
    """Two tokens: ``1 - 2 alpha`` of every direction is not seen, next to nothing is left beyond, at any small penalty."""
    problem = sequence("linear", noise=0.0, components=components)
    for alpha, left in ((0.2, 0.6), (0.49, 0.02), (0.7, 0.0), (50.0, 0.0)):
        for algorithm in (Erm(), Erm(penalty=1e-9)):
            found = algorithm.theory(problem, alpha).mse
            assert_allclose(found, left * np.ones(np.shape(found)), atol=1e-8)


def test_best_ridge_of_signs_is_known():
    """The best penalty of the square loss on sign labels is pi / 2 - 1 = 0.5708 at every sample ratio (arXiv:2006.06560)."""
    for alpha in (0.7, 3.0):
        assert best_penalty(SIGN, alpha, "square", "posterior") == pytest.approx(
            math.pi / 2 - 1, rel=5e-3
        )


def angle(alpha, loss, penalty):
    _, M, Q = (
        matrix[0, 0] for matrix in minima(SIGN, alpha, loss, penalty)[0].overlaps
    )
    return math.acos(M / math.sqrt(Q)) / math.pi


@pytest.mark.slow
def test_published_rates_of_the_perceptron():
    """arXiv:2006.06560: ``alpha e_g`` tends to 0.4417 (Bayes, and the best logistic penalty nearly so), ``sqrt(alpha) e_g`` of
    least squares to 0.2405 ``= sqrt(pi / 2 - 1) / pi``.
    """
    best = best_penalty(SIGN, 20.0, "logistic", "posterior")
    bayes = math.acos(math.sqrt(solve(SIGN, [20.0])[0].Q[0, 0])) / math.pi
    assert bayes * 20 == pytest.approx(0.4417, rel=0.02)
    assert bayes <= angle(20.0, "logistic", best) < 1.01 * bayes
    assert angle(400.0, "square", 1e-6) * 20 == pytest.approx(0.2405, rel=0.01)


def test_a_best_penalty_that_is_not_found_is_said(monkeypatch):
    few = ACCURACY._replace(root_attempts=1, iterations_per_attempt=1)
    monkeypatch.setattr("smimbench_attention.algorithms.erm.fixed_point.ACCURACY", few)
    with pytest.raises(
        ValueError,
        match=r"theory did not find the best penalty at alpha = 7 .*set penalty to a number",
    ):
        best_penalty(SIGN, 7.0, "logistic", "posterior")


def test_several_components_are_as_many_problems():
    two = sequence("linear", noise=0.3, components=2)
    one = Erm(penalty=0.1).theory(LINE, 0.6)
    assert_allclose(Erm(penalty=0.1).theory(two, 0.6).mse, one.mse[0], rtol=1e-9)


def test_students_of_a_convex_problem_agree():
    one = Erm(penalty=0.1).theory(LINE, 0.6)
    mean = Averaged(of={"name": "erm", "penalty": 0.1}, students=5).theory(
        LINE, 0.6, Conditions()
    )
    assert mean.mse == pytest.approx(one.mse, rel=1e-9)


LOSSES_OF = {
    "sign": ("square", "logistic", "squared-hinge"),
    "probit": ("square", "logistic", "squared-hinge"),
    "linear": ("square",),
}


def total(algorithm, problem, alpha):
    point = algorithm.theory(problem, alpha)
    assert not isinstance(point, str), point
    return float(np.sum(point.mse))


def warped_error(shape, ratio, penalty, length):
    """Square loss sees labels as ``c z`` and noise: ridge regression, scaled."""
    c, square = MOMENTS[shape]
    found = ridge_overlaps(np.eye(1), (square / c**2 - 1) * np.eye(1), ratio, penalty)
    M, Q = c * found.cross.item(), c**2 * found.own.item()
    return 1 - M * M / Q if length == "posterior" else 1 - 2 * M + Q


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("length", ["posterior", "loss"])
def test_bayes_then_the_best_penalty_then_any(seed, length):
    """The error is that of the estimate which is returned, of whatever length."""
    rng = np.random.default_rng([5, seed])
    name = ("sign", "probit", "linear")[seed % 3]
    tokens, noise = int(rng.integers(1, 4)), float(10 ** rng.uniform(-2, 2))
    problem = sequence(name, tokens, **({} if name == "sign" else {"noise": noise}))
    alpha = float(10 ** rng.uniform(-1, 1)) / tokens
    loss = str(rng.choice(LOSSES_OF[name]))
    best = Erm(loss, length=length)
    lowest = total(best, problem, alpha)
    assert float(np.sum(solve(problem, [alpha])[0].mse)) <= lowest * (1 + 1e-8)
    chosen = best.theory(problem, alpha).more["penalty"]
    for penalty in np.clip(chosen * 10 ** rng.uniform(-3, 3, 5), *PENALTIES):
        assert lowest <= total(Erm(loss, float(penalty), length), problem, alpha) * (
            1 + 1e-9
        )


@pytest.mark.parametrize(
    ("shape", "length", "alpha"),
    [
        ("positive part", "posterior", 0.3),
        ("positive part", "loss", 1.5),
        ("exponential", "posterior", 1.5),
        ("exponential", "loss", 0.3),
    ],
)
def test_best_penalty_of_sampled_labels_is_that_of_the_closed_form(
    shape, length, alpha
):
    with warped(shape) as problem:
        found = Erm(length=length).theory(problem, alpha)
    exact = [
        warped_error(shape, alpha, penalty, length)
        for penalty in np.geomspace(1e-3, 1e3, 3001)
    ]
    assert found.mse == pytest.approx(min(exact), rel=1e-4)
    assert warped_error(shape, alpha, found.more["penalty"], length) == pytest.approx(
        min(exact), rel=1e-5
    )


@pytest.mark.parametrize("noise", [1e-9, 1e-3, 0.3, 2e3, 1e5, 1e9])
@pytest.mark.parametrize("alpha", [0.01, 1.0, 300.0])
def test_best_penalty_of_linear_labels_is_their_noise(noise, alpha):
    problem = sequence("linear", 1, noise=noise)
    best = total(Erm(), problem, alpha)
    exact = ridge_overlaps(np.eye(1), noise * np.eye(1), alpha, noise)
    expected = (exact.truth - 2 * exact.cross + exact.own).item()
    assert best == pytest.approx(expected, rel=1e-7, abs=1e-12)
    assert best <= 1
    point = Ridge().theory(problem, alpha)
    assert point.mse == pytest.approx(expected, rel=1e-7, abs=1e-12)


@pytest.mark.parametrize(
    ("shape", "tokens", "alpha", "penalty"),
    [
        ("positive part", 1, 0.4, 0.3),
        ("exponential", 1, 1.0, 1e-4),
        ("positive part", 1, 0.99, 1e-6),
        ("exponential", 1, 1.02, 1e-6),
        ("positive part", 2, 0.5, 1e-6),
        ("exponential", 2, 0.7, 1e-6),
        ("exponential", 3, 2.0, 3.0),
    ],
)
def test_sampled_labels_land_on_the_closed_form_within_the_stated_error(
    shape, tokens, alpha, penalty
):
    with warped(shape, tokens) as problem:
        found = Erm(penalty=penalty).theory(problem, alpha)
    exact = warped_error(shape, tokens * alpha, penalty, "loss")
    assert abs(found.mse - exact) < 6 * found.mse_error + 1e-9 * exact
    assert found.mse_error < 1e-2 * exact


def test_what_an_iteration_leaves_is_stated(monkeypatch):
    """A fixed point that is let go early says how far it is from the end."""
    exact = minima(PROBIT, 1.3, "logistic", 0.0123)[0].overlaps
    early = ACCURACY._replace(converged_change=1e-3, stalled_change=1e-3)
    monkeypatch.setattr(
        "smimbench_attention.algorithms.erm.fixed_point.ACCURACY", early
    )
    rough = minima(PROBIT, 1.3, "logistic", 0.01230001)[0]
    for one, other, error in zip(
        rough.overlaps[1:], exact[1:], rough.overlap_errors[1:]
    ):
        assert abs(one - other).item() > 1e-9
        assert error.item() == pytest.approx(abs(one - other).item(), rel=0.2, abs=1e-7)


@pytest.mark.parametrize(
    ("loss", "alpha"), [("square", 0.5), ("logistic", 3.0), ("squared-hinge", 0.5)]
)
@pytest.mark.parametrize("penalty", PENALTIES)
def test_extreme_penalties_have_a_theory(loss, alpha, penalty):
    """The largest: Hebb's rule. The smallest: continues what a thousand times as much gives."""
    found = Erm(loss, penalty).theory(SIGN, alpha)
    if penalty > 1:
        seen = alpha * 2 / np.pi
        assert found.more["squared_cosine"][0] == pytest.approx(
            seen / (seen + 1), rel=1e-9
        )
    else:
        near = Erm(loss, 1e3 * penalty).theory(SIGN, alpha)
        assert found.mse == pytest.approx(near.mse, rel=2e-2)
    assert found.mse_error < 1e-9


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
    with pytest.raises(
        smimbench.ParameterError,
        match=r"penalty.*from 1e-12.* to 1e\+12.*or 'optimal', got",
    ):
        Erm(penalty=penalty)


def test_one_length_and_penalty_for_runs_and_theory():
    algorithm = Erm(length="loss")
    data = SIGN.instance(2.5, 40, 0).data(get_backend())
    state = algorithm.init(SIGN, data, np.random.default_rng(0))
    assert state.penalty == algorithm.theory(SIGN, data.sample_ratio).more["penalty"]
    assert state.penalty == best_penalty(SIGN, data.sample_ratio, "logistic", "loss")
    assert state.length_factor == 1


def test_sampled_integrals_agree_with_quadrature(monkeypatch):
    """The same labels without what makes quadrature possible."""
    from smimbench_attention.algorithms.erm import integrals

    exact = minima(PROBIT, 1.0, "logistic", 0.2)[0]
    monkeypatch.setattr(integrals, "_sites_are_independent", lambda problem: False)
    sampled = minima(PROBIT, 1.0, "logistic", 0.20000001)[1]
    for one, other in zip(exact.overlaps, sampled.overlaps):
        assert_allclose(one, other, rtol=0.05)
    assert sampled.training_loss == pytest.approx(exact.training_loss, rel=0.05)


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_slopes_are_derivatives(name):
    loss, z = LOSSES[name], np.linspace(-4, 4, 33) + 0.013
    for y in (-1.0, 1.0):
        step = 1e-5
        numeric = (loss.value(y, z + step) - loss.value(y, z - step)) / (2 * step)
        assert_allclose(loss.slope(y, z), numeric, atol=1e-9)
        numeric = (loss.slope(y, z + step) - loss.slope(y, z - step)) / (2 * step)
        assert_allclose(loss.curvature(y, z), numeric, atol=1e-9)
