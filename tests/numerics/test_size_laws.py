"""Extrapolation in the size: known laws, honest errors, laws that are rejected, and what no fit may be made of."""

import math

import numpy as np
import pytest
from scipy.stats import kstest

from smimbench.numerics.size_laws import LAWS, extrapolate, fit_law, law_name, pooled_errors
from smimbench.numerics.statistics import normal_score

D = np.array([50.0, 100.0, 200.0, 400.0])


def curve(limit, sizes=D, **powers):
    """``limit + sum b / D^a`` with ``b`` named by its exponent: a1 is 1/D, a05 is D^-1/2."""
    return limit + sum(b / sizes ** {"a1": 1.0, "a05": 0.5, "a2": 2.0}[name] for name, b in powers.items())


@pytest.mark.parametrize("law", LAWS)
def test_every_law_finds_its_own_parameters(law):
    b = np.array([3.0, -20.0])[: len(law)]
    values = 0.4 + sum(x / D**a for x, a in zip(b, law))
    found = fit_law(D, values, 0.01 * values, law)
    assert found.limit == pytest.approx(0.4, rel=1e-9)
    np.testing.assert_allclose(found.coefficients, b, rtol=1e-7)
    np.testing.assert_allclose(found.at(D), values, rtol=1e-9)
    assert found.at(math.inf) == pytest.approx(0.4)
    assert found.chi2 < 1e-10
    assert found.dof == len(D) - 1 - len(law)


def test_errors_are_those_of_the_normal_equations():
    """Against the inverse of the normal equations written out, and against chi-square by hand."""
    errors, values = np.array([0.02, 0.01, 0.01, 0.005]), np.array([0.5, 0.44, 0.43, 0.41])
    X, W = np.stack([np.ones(4), 1 / D], 1), np.diag(errors**-2.0)
    covariance = np.linalg.inv(X.T @ W @ X)
    limit, b = covariance @ X.T @ W @ values
    found = extrapolate(D, values, errors).fit
    chi2 = float(np.sum(((values - limit - b / D) / errors) ** 2))
    assert (found.limit, found.coefficients[0], found.chi2) == pytest.approx((limit, b, chi2))
    scale = max(1.0, math.sqrt(chi2 / 2))
    assert found.error == pytest.approx(scale * math.sqrt(covariance[0, 0]))
    assert found.coefficient_errors[0] == pytest.approx(scale * math.sqrt(covariance[1, 1]))
    assert extrapolate(D, values, errors / 10).fit.p_value < extrapolate(D, values, errors).fit.p_value


def draws(count, seeds, rng, powers, sd=0.8):
    """Extrapolations of simulated runs whose standard deviation falls as 1/D."""
    means = curve(0.4, **powers)
    for _ in range(count):
        runs = [rng.normal(m, sd / size, n) for m, size, n in zip(means, D, seeds)]
        errors, dof = pooled_errors(D, [r.std(ddof=1) for r in runs], seeds)
        yield extrapolate(D, [r.mean() for r in runs], errors, dof)


def test_scores_and_p_values_of_right_laws_are_those_of_chance():
    """Few runs, and fewer at large sizes, as in a suite: z is no wider than a normal variable, p-values are uniform."""
    found = list(draws(250, (8, 6, 4, 3), np.random.default_rng(5), {"a1": 2.0}))
    z = np.array(
        [math.copysign(normal_score(abs(f.fit.limit - 0.4) / f.error, f.dof), f.fit.limit - 0.4) for f in found]
    )
    assert abs(z.mean()) < 0.15
    assert 0.75 < z.std() < 1.1
    assert (abs(z) > 3).mean() < 0.01
    assert kstest([f.first.p_value for f in found], "uniform").pvalue > 1e-3
    assert np.mean([f.fit.law == (1.0,) for f in found]) > 0.97
    assert np.mean([f.exponent.low <= 1 <= f.exponent.high for f in found]) > 0.6


@pytest.mark.parametrize(
    ("powers", "law"), [({"a05": 1.0}, "D^-1/2"), ({"a2": 400.0}, "1/D^2"), ({"a1": 6.0, "a2": -250.0}, "1/D + 1/D^2")]
)
def test_the_law_follows_the_residuals(powers, law):
    """With enough runs another law is found, and the limit is right within its error."""
    found = list(draws(30, (1000,) * 4, np.random.default_rng(6), powers))
    assert all(f.first.p_value < 0.01 for f in found)
    assert np.mean([law_name(f.fit.law) == law for f in found]) > 0.7
    z = np.array([(f.fit.limit - 0.4) / f.error for f in found])
    assert np.mean(abs(z) < 3) > 0.95
    assert all(f.error >= f.fit.error for f in found)
    if len(powers) == 1:
        a = {"a05": 0.5, "a2": 2.0}[next(iter(powers))]
        assert np.mean([f.exponent.low <= a <= f.exponent.high for f in found]) > 0.5
        assert all(f.exponent.p_value < 0.01 for f in found)


def test_what_no_law_fits_has_a_larger_error():
    jagged = np.array([0.5, 0.45, 0.5, 0.45])
    found = extrapolate(D, jagged, np.full(4, 1e-3))
    assert found.first.p_value < 1e-6
    assert found.error > 0.02


def test_three_sizes_keep_one_degree_of_freedom():
    found = extrapolate(D[:3], curve(0.4, D[:3], a05=1.0), np.full(3, 1e-4))
    assert found.fit.dof == 1
    assert len(found.fit.law) == 1


def test_errors_of_few_runs_help_each_other():
    """Two runs at the largest size: their own standard deviation is often ten times too small, the pooled one is not."""
    rng = np.random.default_rng(7)
    seeds = np.array([12, 8, 4, 2])
    ratios, own = [], []
    for _ in range(200):
        s = [rng.normal(0, 0.8 / size, n).std(ddof=1) for size, n in zip(D, seeds)]
        errors, dof = pooled_errors(D, s, seeds)
        ratios.append(errors[-1] / (0.8 / D[-1] / math.sqrt(2)))
        own.append(s[-1] / (0.8 / D[-1]))
        assert dof in (seeds.sum() - 4, seeds.sum() - 5)
    assert np.median(ratios) == pytest.approx(1.0, abs=0.1)
    assert np.quantile(ratios, 0.02) > 5 * np.quantile(own, 0.02)


def test_errors_that_are_no_power_of_the_size_stay_their_own():
    s = np.array([0.1, 0.5, 0.01, 0.2])
    errors, _ = pooled_errors(D, s, [40] * 4)
    np.testing.assert_allclose(errors, s / math.sqrt(40))
    errors, dof = pooled_errors(D, [0.1, math.nan, math.nan, math.nan], [5, 1, 1, 1])
    np.testing.assert_allclose(errors, [0.1 / math.sqrt(5), 0.1, 0.1, 0.1])
    assert dof == 4
    assert pooled_errors(D, [math.nan] * 4, [1] * 4)[1] == 0


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="three or more different sizes"):
        extrapolate([50, 100], [1, 1], [1, 1])
    with pytest.raises(ValueError, match="three or more different sizes"):
        extrapolate([50, 100, 100], [1, 1, 1], [1, 1, 1])
    with pytest.raises(ValueError, match="must be > 0"):
        extrapolate([50, 100, 200], [1, 1, 1], [1, 0, 1])
