"""Untied queries and keys: thresholds and curves in closed form, runs that land on them, and what is refused."""

import math

import pytest
from scipy.integrate import quad
from scipy.optimize import brentq, minimize_scalar
from smimbench_attention.algorithms.nuclear import Nuclear
from smimbench_attention.algorithms.nuclear.limit import perfect_recovery
from smimbench_attention.priors.bilinear import Bilinear, mmse

from smimbench.problem import Problem, ProblemError
from smimbench.theory.predictions import competing, thresholds


def untied(
    channel="linear", tokens=2, rho=0.5, prior="bilinear", symmetric=False, **parameters
):
    """A problem with untied queries and keys, with parameters of its channel."""
    model = {"name": "attention-indexed", "tokens": tokens, "symmetric": symmetric}
    return Problem(model, {"name": channel, **parameters}, {"name": prior, "rho": rho})


@pytest.mark.parametrize("rho", [0.1, 0.5, 3.0])
@pytest.mark.parametrize(
    ("channel", "tokens", "equations"), [("linear", 2, 2), ("softmax", 4, 8)]
)
def test_perfect_recovery_is_where_equations_are_as_many_as_degrees_of_freedom(
    channel, tokens, equations, rho
):
    freedom = (
        2 * rho - rho**2 if rho < 1 else 1.0
    )  # of a D x D matrix of rank r, over D^2
    found = thresholds(untied(channel, tokens, rho))
    assert found.perfect_recovery.value == pytest.approx(freedom / equations, rel=1e-5)
    assert (
        found.weak_recovery.value == 0
    )  # a little is learned from any number of samples


@pytest.mark.parametrize(
    ("rho", "noise", "alpha"), [(0.3, 0.1, 0.35), (1.0, 0.5, 0.4), (2.0, 0.0, 0.3)]
)
def test_curve_is_that_of_a_root_of_one_equation(rho, noise, alpha):
    """``V = F(Delta)`` with ``1/Delta = alpha C / (V + noise)``, in ``Delta`` alone."""
    (point,) = competing(untied(rho=rho, noise=noise), [alpha])[0]
    delta = brentq(lambda x: float(mmse(x, rho)) + noise - 2 * alpha * x, 1e-6, 1e3)
    assert point.mse[0] == pytest.approx(float(mmse(delta, rho)), rel=1e-6)


def test_curve_is_that_published_of_bilinear_sequence_regression():
    """Square matrices, rho = 0.2, no noise; one equation a sample there, two here (arXiv:2410.18858, four digits)."""
    found = competing(untied(rho=0.2, noise=1e-9), [0.05, 0.1, 0.15])
    assert [point.mse[0] for (point,) in found] == pytest.approx(
        [0.8769, 0.6601, 0.3474], abs=5.1e-5
    )


@pytest.mark.parametrize(
    ("channel", "tokens", "equations"), [("linear", 2, 2), ("softmax", 3, 3)]
)
def test_small_width_is_solved_by_hand(channel, tokens, equations):
    """``V = t (2 - t)`` and ``1/t = alpha C / V`` without noise: nothing below 1 / C, all from 2 / C on."""
    problem = untied(channel, tokens, 0.0)
    found = thresholds(problem)
    assert found.weak_recovery.value == pytest.approx(1 / equations, rel=1e-6)
    assert found.perfect_recovery.value == pytest.approx(2 / equations, rel=1e-5)
    for c in (0.5, 1.3, 1.8):
        (point,) = competing(problem, [c / equations])[0]
        assert point.mse[0] == pytest.approx(1.0 if c < 1 else c * (2 - c), abs=1e-6)


def test_small_width_with_noise_is_that_of_a_narrow_matrix():
    """``(V + nu) t = ...`` solved apart, with the noise per unit of width; a width of 1e-5 is close."""
    noise, alpha = 0.3, 1.4

    def excess(t):
        return t * 2 * alpha - (t * (2 - t) + noise)

    t = brentq(excess, 1e-6, 1.0)
    (limit,) = competing(untied(rho=0.0, noise=noise), [alpha])[0]
    assert limit.mse[0] == pytest.approx(t * (2 - t), rel=1e-6)
    (narrow,) = competing(untied(rho=1e-5, noise=noise), [1e-5 * alpha])[0]
    assert narrow.mse[0] == pytest.approx(t * (2 - t), rel=1e-2)


def test_nuclear_norm_recovers_from_the_statistical_dimension_on():
    """Of the cone of descent at a square matrix of rank r (Amelunxen et al., arXiv:1303.6672, eq. 4.4), for linear labels."""
    rho = 0.3

    def dimension(tau):
        width = math.sqrt(
            1 - rho
        )  # of the singular values of the block that is zero, a quarter circle

        def tail(u):
            return (width * u - tau) ** 2 * math.sqrt(4 - u * u) / math.pi

        return (
            rho
            + (1 - rho) * rho
            + rho * tau**2
            + (1 - rho) * quad(tail, min(tau / width, 2), 2)[0]
        )

    expected = minimize_scalar(dimension, bounds=(0, 2), method="bounded").fun / 2
    assert perfect_recovery(Bilinear(rho), 2, 1.0, positive=False) == pytest.approx(
        expected, rel=1e-5
    )


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"prior": "wishart"},
            r"prior\.name: 'wishart' supports symmetric matrices only",
        ),
        (
            {"symmetric": True},
            r"prior\.name: .bilinear. is for matrices without symmetry",
        ),
        (
            {"channel": "hardmax"},
            r"channel\.name: 'hardmax' supports symmetric matrices only",
        ),
        ({"channel": "softmax"}, r"channel\.tokens: must be at least 3"),
        ({"channel": "softmax", "layers": 2}, r"channel\.layers: must be 1"),
        ({"tokens": 1}, r"model\.tokens: must be at least 2"),
    ],
)
def test_refused(parts, message):
    with pytest.raises(ProblemError, match=message):
        untied(**parts)


def test_correlated_tokens_and_positive_matrices_are_refused():
    tokens = {"name": "correlated-tokens", "decay": 0.5}
    for count in (2, 3):  # with three, unordered and ordered pairs are as many
        model = {"name": "attention-indexed", "tokens": count, "symmetric": False}
        with pytest.raises(ProblemError, match="does not support correlated tokens"):
            Problem(model, "linear", {"name": "bilinear", "rho": 0.5}, tokens)
    assert "positive = false" in Nuclear().refuses(untied())
    assert Nuclear(positive=False).refuses(untied("softmax", 3)) is None
