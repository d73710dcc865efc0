"""log Phi2 and its derivatives against closed forms, one-dimensional integrals and finite differences."""

import itertools
import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import integrate
from scipy.special import log_ndtr, ndtr, owens_t

from smimbench.numerics.bivariate_normal import log_cdf
from tests.conftest import assert_placed

CORRELATIONS = [1 / 3, -1 / 3, 0.5, -0.5, 0.8, -0.8]


def by_owen(h, k, r):
    """Phi2 from Owen's T function; absolute accuracy 1e-16."""
    s = np.sqrt(1 - r * r)
    half = np.where(h * k < 0, 0.5, 0.0)
    return (
        (ndtr(h) + ndtr(k)) / 2
        - owens_t(h, (k - r * h) / (h * s))
        - owens_t(k, (h - r * k) / (k * s))
        - half
    )


def by_quad(h, k, r):
    """log Phi2 by adaptive quadrature over the variable that is further out."""
    h, k = min(h, k), max(h, k)
    s = math.sqrt(1 - r * r)

    def log_f(x):
        return -x * x / 2 + float(log_ndtr((k - r * x) / s))

    top = log_f(h)
    scale = 1 / max(1.0, abs(h) / 2)
    panels = h - scale * np.array([0, 0.25, 0.5, 1, 2, 4, 8, 16, 32])
    total = sum(
        integrate.quad(
            lambda x: math.exp(log_f(x) - top), a, b, epsabs=0, epsrel=1e-13
        )[0]
        for b, a in itertools.pairwise(panels)
        if log_f(b) - top > -45
    )
    return top + math.log(total) - 0.5 * math.log(2 * math.pi)


@pytest.mark.parametrize("r", CORRELATIONS)
def test_agrees_with_owens_t(r, rng):
    h, k = rng.normal(scale=1.5, size=(2, 2000))
    expected = by_owen(h, k, r)
    found = np.exp(log_cdf(h, k, r).value)
    assert np.abs(found - expected).max() < 1e-12


@pytest.mark.parametrize("r", CORRELATIONS)
def test_relative_accuracy_in_the_tails(r, rng):
    for _ in range(25):
        h = -rng.uniform(3, 38)
        k = rng.uniform(-38, 3)
        found = float(log_cdf(np.array([h]), np.array([k]), r).value[0])
        expected = by_quad(h, k, r)
        assert abs(found - expected) < 1e-10 + 2e-15 * abs(expected), (h, k)


def test_closed_forms():
    zero = np.zeros(1)
    for r in CORRELATIONS:
        assert np.exp(log_cdf(zero, zero, r).value[0]) == pytest.approx(
            0.25 + math.asin(r) / (2 * math.pi), rel=1e-14
        )
    x = np.linspace(-30, 8, 77)
    independent = log_cdf(x, x[::-1].copy(), 0.0)
    assert_allclose(
        independent.value, log_ndtr(x) + log_ndtr(x[::-1]), rtol=1e-12, atol=1e-15
    )
    assert_allclose(
        log_cdf(x, np.full_like(x, np.inf), 0.4).value,
        log_ndtr(x),
        rtol=1e-12,
        atol=1e-15,
    )
    both = np.exp(log_cdf(x, x - 1, 0.4).value) + np.exp(log_cdf(x, 1 - x, -0.4).value)
    assert_allclose(both, ndtr(x), rtol=1e-9, atol=1e-16)


def difference(f, x, step):
    """Sixth-order central difference."""
    weights = {1: 45 / 60, 2: -9 / 60, 3: 1 / 60}
    return (
        sum(w * (f(x + j * step) - f(x - j * step)) for j, w in weights.items()) / step
    )


@pytest.mark.parametrize("r", [1 / 3, -1 / 3, 0.7])
@pytest.mark.parametrize("width", [1.0, 4.0, 20.0])
def test_derivatives_are_those_of_the_value(r, width, rng):
    h, k = rng.uniform(-width, width / 3, (2, 400))
    step = 2e-2 / max(1, width / 4)
    exact = log_cdf(h, k, r, hessian=True)
    numeric = [
        difference(lambda x: log_cdf(x, k, r).value, h, step),
        difference(lambda x: log_cdf(h, x, r).value, k, step),
        difference(lambda x: log_cdf(x, k, r).h_slope, h, step),
        difference(lambda x: log_cdf(h, x, r).k_slope, k, step),
        difference(lambda x: log_cdf(h, x, r).h_slope, k, step),
    ]
    for found, expected in zip((exact.h_slope, exact.k_slope, *exact.hessian), numeric):
        assert_allclose(found, expected, rtol=1e-8, atol=3e-9 * max(1, width / 4))


@pytest.mark.parametrize("distance", [1e2, 1e4, 1e8, 1e15, 1e30])
def test_far_outside_only_the_corner_and_the_faces_matter(distance):
    r = 1 / 3
    corner = log_cdf(
        np.array([-distance]), np.array([-0.9 * distance]), r, hessian=True
    )
    inverse = np.linalg.inv([[1, r], [r, 1]])
    pull = inverse @ [distance, 0.9 * distance]
    first = corner.h_slope[0], corner.k_slope[0]
    assert_allclose(first, pull, rtol=5 / distance**2 + 1e-12)
    h11, h22, h12 = (float(v[0]) for v in corner.hessian)
    assert_allclose([[h11, h12], [h12, h22]], -inverse, atol=5 / distance**2 + 1e-12)
    face = log_cdf(np.array([-distance]), np.array([0.5 * distance]), -r, hessian=True)
    assert face.h_slope[0] == pytest.approx(distance, rel=2 / distance**2 + 1e-13)
    assert face.k_slope[0] == 0 or face.k_slope[0] < 1e-20
    assert face.hessian[0][0] == pytest.approx(-1, abs=2 / distance**2 + 1e-13)
    assert corner.value[0] == pytest.approx(
        -pull @ [distance, 0.9 * distance] / 2, rel=50 * math.log(distance) / distance
    )


def test_sign_flips_the_correlation_elementwise(backend, rng):
    h, k = rng.uniform(-9, 3, (2, 64))
    sign = np.where(rng.random(64) < 0.5, 1.0, -1.0)
    found = log_cdf(
        backend.asarray(h),
        backend.asarray(k),
        1 / 3,
        sign=backend.asarray(sign),
        hessian=True,
    )
    for field in (found.value, found.h_slope, found.k_slope, *found.hessian):
        assert_placed(field, backend, (64,))
    from smimbench.backend.arrays import to_host

    for value in (1.0, -1.0):
        apart = log_cdf(h, k, value / 3, hessian=True)
        pick = sign == value
        for one, other in zip(
            (*found[:3], *found.hessian), (*apart[:3], *apart.hessian)
        ):
            assert_allclose(to_host(one)[pick], other[pick], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("r", [0.95, -1.0, 2.0, float("nan")])
def test_refuses_nearly_equal_variables(r):
    with pytest.raises(ValueError, match="correlation"):
        log_cdf(np.zeros(1), np.zeros(1), r)
