"""Convex risk minimisation: the proximal operator, the fixed point against random matrices and published values, runs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import minimize
from smimbench_algorithms.averaged import Averaged
from smimbench_algorithms.erm.algorithm import Erm
from smimbench_algorithms.erm.fixed_point import ACCURACY, best_penalty, minimum
from smimbench_algorithms.erm.losses import LOSSES, proximal
from smimbench_algorithms.ridge import Ridge

import smimbench
from smimbench.interfaces import Conditions
from smimbench.testing import parametrize_with_checks
from smimbench.theory.predictions import solve


def sequence(channel, tokens=1):
    return smimbench.Problem({"name": "sequence-multi-index", "tokens": tokens}, channel, "gaussian")


LINE = sequence({"name": "linear", "noise": 0.3}, 2)
SIGN = sequence("sign")
PROBIT = sequence({"name": "probit", "noise": 0.5}, 2)


@parametrize_with_checks([Erm(), Erm(loss="square", penalty=0.5)])
def test_contract(check):
    check()


@pytest.mark.parametrize("name", sorted(LOSSES))
@pytest.mark.parametrize("P", [1, 2])
def test_proximal_operator_is_the_minimum(name, P):
    rng = np.random.default_rng(3)
    loss, root = LOSSES[name], rng.standard_normal((P, P)) * 4
    V = root @ root.T + 0.1 * np.eye(P)
    y, omega = np.sign(rng.standard_normal((20, P, 2))), 5 * rng.standard_normal((20, P, 2))
    found = proximal(loss, y, omega, V)
    inverse = np.linalg.inv(V)
    for n in range(20):
        for c in range(2):
            target, label = omega[n, :, c], y[n, :, c]

            def cost(z, target=target, label=label):
                return float(loss.value(label, z).sum() + (z - target) @ inverse @ (z - target) / 2)

            best = minimize(
                cost, target, method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-13, "maxiter": 4000}
            )
            assert cost(found[n, :, c]) <= best.fun + 1e-9


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_slopes_are_derivatives(name):
    loss, z = LOSSES[name], np.linspace(-4, 4, 33) + 0.013
    for y in (-1.0, 1.0):
        step = 1e-5
        numeric = (loss.value(y, z + step) - loss.value(y, z - step)) / (2 * step)
        np.testing.assert_allclose(loss.slope(y, z), numeric, atol=1e-9)
        numeric = (loss.slope(y, z + step) - loss.slope(y, z - step)) / (2 * step)
        np.testing.assert_allclose(loss.curvature(y, z), numeric, atol=1e-9)


@pytest.mark.parametrize("alpha", [0.2, 0.45, 1.3])
@pytest.mark.parametrize("penalty", [1e-6, 0.1, 0.3, 4.0])
def test_ridge_by_random_matrices(alpha, penalty):
    """Marchenko and Pastur's law of ``X^T X / D``, nothing of the fixed point: ``E (l^2 + Delta x) / (l + x)^2``."""
    ratio, noise = 2 * alpha, 0.3
    low, high = (1 - math.sqrt(ratio)) ** 2, (1 + math.sqrt(ratio)) ** 2

    def density(x):
        return math.sqrt(max((high - x) * (x - low), 0.0)) / (2 * math.pi * x)

    bulk = quad(lambda x: density(x) * (penalty**2 + noise * x) / (penalty + x) ** 2, low, high, limit=500)[0]
    expected = bulk + max(0.0, 1 - ratio)
    T, M, Q = (matrix[0, 0] for matrix in minimum(LINE, alpha, "square", penalty).overlaps)
    assert pytest.approx(expected, rel=1e-6) == T - 2 * M + Q
    point = Ridge(penalty).theory(LINE, alpha)
    assert point["mse"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("components", [1, 2])
def test_noiseless_labels_leave_what_they_do_not_span(components):
    """Two tokens: ``1 - 2 alpha`` of every direction is not seen, next to nothing is left beyond, at any small penalty."""
    problem = sequence({"name": "linear", "noise": 0.0, "components": components}, 2)
    for alpha, left in ((0.2, 0.6), (0.49, 0.02), (0.7, 0.0), (50.0, 0.0)):
        for algorithm in (Erm(), Erm(penalty=1e-9)):
            found = algorithm.theory(problem, alpha, Conditions())["mse"]
            np.testing.assert_allclose(found, left * np.ones(np.shape(found)), atol=1e-8)


def test_best_ridge_of_signs_is_known():
    """The best penalty of the square loss on sign labels is pi / 2 - 1 = 0.5708 at every sample ratio (arXiv:2006.06560)."""
    for alpha in (0.7, 3.0):
        assert best_penalty(SIGN, alpha, "square", "posterior") == pytest.approx(math.pi / 2 - 1, rel=5e-3)


def angle(alpha, loss, penalty):
    _, M, Q = (matrix[0, 0] for matrix in minimum(SIGN, alpha, loss, penalty).overlaps)
    return math.acos(M / math.sqrt(Q)) / math.pi


def test_published_rates_of_the_perceptron():
    """arXiv:2006.06560: ``alpha e_g`` tends to 0.4417 (Bayes, and the best logistic penalty nearly so), ``sqrt(alpha) e_g`` of
    least squares to 0.2405 ``= sqrt(pi / 2 - 1) / pi``.
    """
    best = best_penalty(SIGN, 20.0, "logistic", "posterior")
    bayes = math.acos(math.sqrt(solve(SIGN, [20.0])[0].Q[0, 0])) / math.pi
    assert bayes * 20 == pytest.approx(0.4417, rel=0.02)
    assert bayes <= angle(20.0, "logistic", best) < 1.01 * bayes
    assert angle(400.0, "square", 1e-6) * 20 == pytest.approx(0.2405, rel=0.01)


@pytest.mark.parametrize(
    ("loss", "alpha", "scaled", "rate"), [("logistic", 1e4, 0.1116, 0.44198), ("squared-hinge", 1e5, 1.1815, 0.44912)]
)
def test_noiseless_signs_by_the_thousand(loss, alpha, scaled, rate):
    """``alpha e_g`` at the best penalty has a limit, above 0.4417 of Bayes; the penalty falls like ``1/alpha^2``."""
    penalty = best_penalty(SIGN, alpha, loss, "posterior")
    assert penalty * alpha**2 == pytest.approx(scaled, rel=1e-2)
    _, M, Q = (matrix[0, 0] for matrix in minimum(SIGN, alpha, loss, penalty).overlaps)
    assert alpha * math.asin(math.sqrt(1 - M * M / Q)) / math.pi == pytest.approx(rate, rel=1e-4)


def test_a_best_penalty_that_is_not_found_is_said(monkeypatch):
    few = ACCURACY._replace(attempts=1, iterations=1)
    monkeypatch.setattr("smimbench_algorithms.erm.fixed_point.ACCURACY", few)
    with pytest.raises(ValueError, match=r"the best penalty is not found at alpha = 7 .*give it as a number"):
        best_penalty(SIGN, 7.0, "logistic", "posterior")


@pytest.mark.parametrize(("problem", "alpha"), [(LINE, 0.3), (LINE, 1.7), (SIGN, 0.8), (PROBIT, 1.7)])
def test_bayes_is_best_then_the_best_penalty_then_any(problem, alpha):
    bayes = solve(problem, [alpha])[0].V[0, 0]
    best = Erm().theory(problem, alpha, Conditions())["mse"]
    assert bayes <= best * (1 + 1e-8)
    for penalty in (0.02, 0.3, 5.0):
        assert best <= Erm(penalty=penalty).theory(problem, alpha, Conditions())["mse"] * (1 + 1e-6)


def test_sampled_integrals_agree_with_quadrature(monkeypatch):
    """The same labels without what makes quadrature possible."""
    from smimbench_algorithms.erm import integrals

    exact = minimum(PROBIT, 1.0, "logistic", 0.2)
    monkeypatch.setattr(integrals, "_sites_apart", lambda problem: False)
    sampled = minimum(PROBIT, 1.0, "logistic", 0.2, 1)
    for one, other in zip(exact.overlaps, sampled.overlaps):
        np.testing.assert_allclose(one, other, rtol=0.05)
    assert sampled.training_loss == pytest.approx(exact.training_loss, rel=0.05)


def test_several_components_are_as_many_problems():
    two = sequence({"name": "linear", "noise": 0.3, "components": 2}, 2)
    one = Erm(penalty=0.1).theory(LINE, 0.6, Conditions())
    np.testing.assert_allclose(Erm(penalty=0.1).theory(two, 0.6, Conditions())["mse"], one["mse"], rtol=1e-9)


def test_students_of_a_convex_problem_agree():
    one = Erm(penalty=0.1).theory(LINE, 0.6, Conditions())
    mean = Averaged(of={"name": "erm", "penalty": 0.1}, students=5).theory(LINE, 0.6, Conditions())
    assert mean["mse"] == pytest.approx(one["mse"], rel=1e-9)
