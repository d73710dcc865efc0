"""Extrapolation in the size: limits of known series, honest errors, what is refused, errors of few runs."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import kstest
from scipy.stats import t as student

from smimbench.numerics.size_laws import SECOND, extrapolate, pooled_errors
from smimbench.numerics.statistics import normal_score

D = np.array([50.0, 100.0, 200.0, 400.0])


def curve(limit, b=0.0, c=0.0, sizes=D):
    """A series in 1/D."""
    return limit + b / sizes + c / sizes**2


def test_first_order_is_found_exactly():
    found = extrapolate(D, curve(0.4, -3.0), [0.01, 0.02, 0.01, 0.005])
    assert (found.limit, found.coefficient) == pytest.approx((0.4, -3.0), rel=1e-9)
    assert (found.second, found.chi2) == pytest.approx((0, 0), abs=1e-9)
    assert (found.free, found.p_value, found.refusal) == (2, pytest.approx(1), "")


def test_precise_values_tell_the_second_order_themselves():
    found = extrapolate(D, curve(0.4, -3.0, 70.0), np.full(4, 1e-7))
    assert (found.limit, found.coefficient, found.second) == pytest.approx(
        (0.4, -3.0, 70.0), rel=1e-3
    )


def draws(count, seeds, rng, sd=0.8, power=1.0, second=0.0):
    """Extrapolations of simulated runs whose standard deviation falls as a power of the size."""
    for _ in range(count):
        means = curve(0.4, 2.0, 0.4 * second * rng.standard_normal())
        runs = [
            rng.normal(m, sd / size**power, n) for m, size, n in zip(means, D, seeds)
        ]
        errors, dof = pooled_errors(D, [r.std(ddof=1) for r in runs], seeds)
        yield extrapolate(D, [r.mean() for r in runs], errors, dof)


@pytest.mark.parametrize(
    ("power", "seeds", "second"),
    [
        (0.5, (8, 6, 4, 3), 0.0),
        (0.5, (30, 30, 30, 30), SECOND / 3),
        (1.0, (8, 6, 4, 3), SECOND / 3),
        (1.0, (30, 30, 30, 30), 0.0),
    ],
)
def test_scores_are_those_of_chance(power, seeds, second):
    """Few runs and many, vectors and matrices, with and without a second order: intervals hold the limit."""
    found = list(
        draws(400, seeds, np.random.default_rng(5), power=power, second=second)
    )
    score = np.array([(f.limit - 0.4) / f.error for f in found])
    inside = np.mean([abs(z) < student.ppf(0.975, f.dof) for z, f in zip(score, found)])
    assert 0.92 < inside < (0.985 if second else 1.0)
    assert abs(score.mean()) < 0.2
    assert (
        np.mean([normal_score(abs(z), f.dof) > 3 for z, f in zip(score, found)]) < 0.01
    )
    assert np.mean([f.refusal != "" for f in found]) < 0.02


def test_p_values_of_right_laws_are_uniform():
    exact = [
        extrapolate(D, curve(0.4, 2.0) + 0.02 * e, np.full(4, 0.02))
        for e in np.random.default_rng(1).normal(size=(400, 4))
    ]
    assert kstest([f.p_value for f in exact], "uniform").pvalue > 1e-3


def test_a_limit_from_small_sizes_is_as_sure_as_the_next_order_lets_it_be():
    """What is left open falls as the square of the size, and is too much for small ones."""
    small, large = (
        extrapolate(D * scale, curve(0.4), np.full(4, 0.1 / scale**2 / 100))
        for scale in (0.1, 1.0)
    )
    assert small.refusal == "sizes too small"
    assert (large.refusal, large.error < 0.01) == ("", True)
    # A first order as large as the limit leaves the second open, too.
    assert (
        extrapolate(D, curve(0.01, 5.0), np.full(4, 3e-2)).refusal == "sizes too small"
    )


def test_what_no_series_fits_is_refused():
    found = extrapolate(D, np.array([0.5, 0.45, 0.5, 0.45]), np.full(4, 1e-3))
    assert found.p_value < 1e-6
    assert found.refusal == "no series in 1/D"
    roots = extrapolate(D, 0.4 + D**-0.5, np.full(4, 1e-4))
    assert roots.refusal


def test_errors_of_few_runs_help_each_other():
    """Two runs at the largest size: their own standard deviation is often ten times too small, the pooled one is not."""
    rng = np.random.default_rng(7)
    seeds = np.array([12, 8, 4, 2])
    ratios = []
    own = []
    for _ in range(200):
        s = [rng.normal(0, 0.8 / size, n).std(ddof=1) for size, n in zip(D, seeds)]
        errors, dof = pooled_errors(D, s, seeds)
        ratios.append(errors[-1] / (0.8 / D[-1] / math.sqrt(2)))
        own.append(s[-1] / (0.8 / D[-1]))
        assert 5 < dof < seeds.sum()
    assert 1 < np.median(ratios) < 1.3  # before it is known that they fall as 1/D
    assert np.quantile(ratios, 0.02) > 5 * np.quantile(own, 0.02)


def test_errors_that_are_no_power_of_the_size_stay_their_own():
    s = np.array([0.1, 0.5, 0.01, 0.2])
    errors, _ = pooled_errors(D, s, [40] * 4)
    assert_allclose(errors, s / math.sqrt(40))
    errors, dof = pooled_errors(D, [0.1, math.nan, math.nan, math.nan], [5, 1, 1, 1])
    assert errors[0] == pytest.approx(0.1 / math.sqrt(5))
    assert_allclose(
        errors[1:], 0.1 * (D[1:] / D[0]) ** -0.75
    )  # between vectors and matrices
    assert 0.5 < dof < 4
    assert pooled_errors(D, [math.nan] * 4, [1] * 4)[1] == 0


def test_a_single_known_size_gives_errors_at_all_others_whatever_its_last_bit():
    """One size makes any power law: there is no scatter about it to test."""
    for seed in range(40):
        s = np.full(4, math.nan)
        counts = [1, 1, 1, 1]
        known = seed % 4
        s[known], counts[known] = (
            np.random.default_rng(seed).lognormal(sigma=3),
            2 + seed,
        )
        errors, dof = pooled_errors(D, s, counts)
        assert_allclose(errors, s[known] * (D / D[known]) ** -0.75 / np.sqrt(counts))
        assert dof > 0


def test_scatter_that_is_rounding_is_no_scatter():
    errors, dof = pooled_errors(D, [0.1, 0.05, 1e-17, 0.02], [5] * 4)
    none, same = pooled_errors(D, [0.1, 0.05, 0.0, 0.02], [5] * 4)
    assert_allclose(errors, none, atol=1e-16)
    assert dof == pytest.approx(same)
    assert pooled_errors(D, [0.0] * 4, [5] * 4)[1] == 16


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="needs three or more different sizes"):
        extrapolate([50, 100], [1, 1], [1, 1])
    with pytest.raises(ValueError, match="needs three or more different sizes"):
        extrapolate([50, 100, 100], [1, 1, 1], [1, 1, 1])
    with pytest.raises(ValueError, match="must be > 0"):
        extrapolate([50, 100, 200], [1, 1, 1], [1, 0, 1])


def test_errors_are_those_of_random_terms_of_second_order():
    """Against generalized least squares with the covariance of the values written out."""
    errors = np.array([0.02, 0.01, 0.01, 0.005])
    values = np.array([0.5, 0.44, 0.43, 0.41])
    found = extrapolate(D, values, errors, dof=30)
    b = found.coefficient
    limit = found.limit
    s = math.hypot(0.5 * SECOND / 3, b * min(50, b / limit))
    V = np.diag(errors**2) + s**2 * np.outer(D**-2, D**-2)
    X = np.stack([np.ones(4), 1 / D], 1)
    covariance = np.linalg.inv(X.T @ np.linalg.inv(V) @ X)
    solve = covariance @ X.T @ np.linalg.inv(V)
    assert solve @ values == pytest.approx(
        (limit, b), rel=1e-3
    )  # s itself is that of the step before
    assert np.sqrt(np.diagonal(covariance)) == pytest.approx(
        (found.error, found.coefficient_error), rel=1e-2
    )
    rest = values - X @ (limit, b)
    assert found.chi2 == pytest.approx(rest @ np.linalg.inv(V) @ rest, rel=1e-2)
    chance = math.sqrt(solve[0] ** 2 @ errors**2)
    assert found.dof == pytest.approx(30 * (found.error / chance) ** 4, rel=1e-2)
