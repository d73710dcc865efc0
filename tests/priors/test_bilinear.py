"""The bilinear prior against the quartic for w, quadrature in x, limits, free cumulants and random matrices."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from smimbench_attention.priors.bilinear import (
    Bilinear,
    mmse,
    observed_law,
    singular_map,
)

from smimbench.interfaces import ParameterError

RHOS = [0.02, 0.3, 0.9, 1.0, 3.0]


def resolvent(x, noise, rho):
    """``g = 1/w`` at every x, from the quartic w^4 - x w^3 + (1 + noise - a^2) w^2 + a^2 x w - noise a^2 = 0."""
    a2 = 1 / rho
    found = []
    for value in x:
        w = np.roots([1, -value, 1 + noise - a2, a2 * value, -noise * a2])
        g = 1 / w
        found.append(g[np.argmax(np.abs(g.imag))])
    found = np.array(found)
    return found.real + 1j * np.abs(found.imag)


def drawn(rng, D, r, noise):
    """A signal and its noisy observation, (D, D)."""
    S = rng.standard_normal((D, r)) @ rng.standard_normal((r, D)) / math.sqrt(r * D)
    return S, S + math.sqrt(noise / D) * rng.standard_normal((D, D))


@pytest.mark.parametrize(
    ("rho", "noise"), [(0.3, 0.5), (0.9, 0.02), (1.0, 0.1), (3.0, 1.0), (0.1, 0.2)]
)
def test_error_and_map_are_those_of_the_density_found_by_the_quartic(rho, noise):
    weights, x, *_ = observed_law(noise, rho)
    # In the angle the square roots at the ends are smooth; those at a gap are not, which costs 1e-4.
    t, step = np.linspace(-np.pi / 2, np.pi / 2, 2001, retstep=True)
    grid = x.max() * np.sin(t)
    measure = x.max() * np.cos(t) * step
    density = resolvent(grid, noise, rho).imag / np.pi
    assert density @ measure == pytest.approx(1, abs=3e-4)
    reference = noise - 4 * np.pi**2 / 3 * noise**2 * (density**3 @ measure)
    assert float(mmse(noise, rho)) == pytest.approx(reference, rel=5e-4)
    inner = np.linspace(0.01, 0.95, 40) * x.max()
    g = resolvent(inner, noise, rho)
    there = g.imag > 1e-3
    expected = inner - 2 * noise * g.real
    assert_allclose(singular_map(inner, noise, rho)[there], expected[there], atol=1e-9)
    assert_allclose(
        singular_map(inner, noise, rho, continued=True)[there],
        expected[there],
        atol=1e-9,
    )
    assert weights.sum() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("rho", RHOS)
@pytest.mark.parametrize("noise", [1e-8, 1e-3, 0.05, 1.0, 30.0, 1e6])
def test_moments_are_those_of_free_cumulants(rho, noise):
    weights, x, mean, variance = observed_law(noise, rho)
    assert weights @ x**2 == pytest.approx(1 + noise, rel=1e-8)
    assert weights @ x**4 == pytest.approx(2 * (1 + noise) ** 2 + 1 / rho, rel=1e-8)
    assert weights @ (mean * x) == pytest.approx(1, rel=1e-7 * (1 + noise))
    assert weights @ (mean**2 + variance) == pytest.approx(1, rel=1e-8)
    assert weights @ variance == pytest.approx(float(mmse(noise, rho)), rel=1e-9)


def test_limits():
    noise = np.array([[0.0, np.inf, np.nan, -1.0], [1e-6, 1e-3, 1e3, 1e20]])
    found = mmse(noise, 0.3)
    assert_array_equal(found[0], [0, 1, np.nan, np.nan])
    assert found[1, 0] == pytest.approx(
        1e-6 * (2 * 0.3 - 0.09), rel=1e-5
    )  # degrees of freedom of a matrix of rank r
    assert mmse(1e-9, 2.0) == pytest.approx(1e-9, rel=1e-4)
    # Of large width S is a Gaussian matrix, whose posterior mean is linear.
    assert_allclose(
        mmse([0.1, 1.0, 10.0], 1e6),
        np.array([0.1, 1, 10]) / np.array([1.1, 2, 11]),
        rtol=1e-5,
    )
    assert_allclose(
        singular_map(np.array([0.5, 1.5]), 0.6, 1e6),
        np.array([0.5, 1.5]) / 1.6,
        rtol=1e-4,
    )
    assert_array_equal(singular_map(np.array([0.5]), 0.0, 0.3), [0.5])
    assert singular_map(np.array([0.5]), np.inf, 0.3)[0] == 0
    assert np.isnan(singular_map(np.array([0.5]), -1.0, 0.3)[0])


@pytest.mark.parametrize(
    ("rho", "noise"), [(0.3, 0.02), (0.3, 0.1), (0.9, 0.5), (2.0, 1.0)]
)
def test_continued_map_is_continuous_with_slopes_up_to_one_outside(rho, noise):
    end = observed_law(noise, rho)[1].max()
    x = np.linspace(1e-6, 2 * end, 4001)
    plain = singular_map(x, noise, rho)
    found = singular_map(x, noise, rho, continued=True)
    slopes = np.diff(found) / np.diff(x)
    assert slopes.min() > 0
    outside = x[:-1] > end
    assert slopes[outside].max() <= 1 + 1e-9
    assert np.ptp(slopes[outside]) < 1e-6
    assert slopes.max() < 60  # steep at the ends of a gap, but without jumps
    # A spike is shrunk less than noise at the same place, and the slope of the map goes to 1.
    assert (plain - found)[1:][outside].min() > -1e-7
    assert np.diff(plain)[-1] / np.diff(x)[-1] == pytest.approx(1, abs=0.2)


def test_means_over_singular_values_with_kinks_and_jumps():
    prior = Bilinear(0.4)

    def function(x, mean, variance):
        return np.stack([np.abs(x) > 0.7, np.maximum(np.abs(x) - 0.7, 0), x])

    found = prior.law.spectral_means(function, 0.3, (-0.7, 0.7)).value
    grid = np.linspace(0.7, observed_law(0.3, 0.4)[1].max(), 4001)
    density = np.abs(resolvent(grid, 0.3, 0.4).imag) / np.pi
    step = grid[1] - grid[0]
    above = 2 * step * (density.sum() - density[0] / 2)
    assert found[0] == pytest.approx(above, rel=2e-4)
    assert found[1] == pytest.approx(2 * step * ((grid - 0.7) @ density), rel=2e-4)
    assert found[2] == pytest.approx(0, abs=1e-12)


def test_denoiser_has_the_error_of_the_limit():
    rng = np.random.default_rng(1)
    for rho, noise in ((0.3, 0.1), (1.0, 0.5)):
        S, Y = drawn(rng, 240, round(240 * rho), noise)
        found = Bilinear(rho).denoise(Y[None], np.array([[1 / noise]]))
        assert np.sum((found.estimate[0] - S) ** 2) / 240 == pytest.approx(
            found.V[0, 0], rel=0.03
        )


@pytest.mark.slow
@pytest.mark.parametrize(("rho", "noise"), [(0.3, 0.1), (0.5, 0.01), (2.0, 1.0)])
def test_denoiser_is_the_best_one_at_a_thousand_dimensions(rho, noise):
    D = 1000
    S, Y = drawn(np.random.default_rng(2), D, round(D * rho), noise)
    left, values, right = np.linalg.svd(Y)
    best = np.einsum(
        "ik,ij,kj->k", left, S, right, optimize=True
    )  # of all maps of singular values
    found = singular_map(values, noise, rho)
    error = np.sum((left * found @ right - S) ** 2) / D
    assert error == pytest.approx(float(mmse(noise, rho)), rel=5e-3)
    assert error == pytest.approx(np.sum((left * best @ right - S) ** 2) / D, rel=5e-3)


def test_small_width_is_that_of_spikes():
    t = np.array([0.05, 0.3, 0.7, 0.95, 1.5])
    limit = Bilinear(0.0).overlap(1 / t[:, None, None]).V[:, 0, 0]
    # A finite width approaches it as rho^(1/3) at the transition, faster elsewhere.
    assert_allclose(mmse(t / 1e-8, 1e-8)[[0, 1, 2, 4]], limit[[0, 1, 2, 4]], rtol=2e-3)
    # One spike of a large matrix, without the formulas: overlaps of its singular vectors, and the error at the best scale.
    rng = np.random.default_rng(3)
    D = 500
    q, k = (v / np.linalg.norm(v) for v in rng.standard_normal((2, D)))
    for noise in (0.05, 0.3, 0.7):
        u, _, v = np.linalg.svd(
            np.outer(q, k) + math.sqrt(noise / D) * rng.standard_normal((D, D))
        )
        overlap = (u[:, 0] @ q) ** 2 * (v[0] @ k) ** 2
        expected = Bilinear(0.0).overlap(np.array([[1 / noise]])).V[0, 0]
        assert 1 - overlap == pytest.approx(expected, abs=0.06)


def test_fluctuation_of_the_norm():
    prior = Bilinear(0.25)
    rng = np.random.default_rng(4)
    D = 8
    sizes = [np.sum(prior.sample(rng, 1, D) ** 2) / D for _ in range(20_000)]
    assert np.mean(sizes) == pytest.approx(1, abs=5 * np.std(sizes) / 141)
    assert np.std(sizes) == pytest.approx(prior.law.fluctuation(D), rel=0.05)


def test_factor_and_its_gradient():
    prior = Bilinear(0.5)
    rng = np.random.default_rng(5)
    factor = prior.factor.draw(rng, 2, 6)
    assert factor.shape == (2, 12, 3)
    assert_allclose(
        prior.factor.compose(factor)[1], factor[1, :6] @ factor[1, 6:].T / math.sqrt(18)
    )
    G = rng.standard_normal((2, 6, 6))
    direction = rng.standard_normal(factor.shape)
    h = 1e-6
    ends = [np.sum(G * prior.factor.compose(factor + s * direction)) for s in (h, -h)]
    expected = (ends[0] - ends[1]) / (2 * h)
    assert np.sum(prior.factor.pullback(factor, G) * direction) == pytest.approx(
        expected, rel=1e-7
    )


def test_refused():
    with pytest.raises(ParameterError, match="rho"):
        Bilinear(-1.0)
    for call in (
        lambda p: p.sample(np.random.default_rng(0), 1, 5),
        lambda p: p.mean(1, 5),
    ):
        with pytest.raises(ParameterError, match="small-width limit"):
            call(Bilinear(0.0))
    with pytest.raises(ParameterError, match="limit"):
        Bilinear(0.0).law.spectral_means(lambda x, *_: x[None], 0.1)
    assert np.isnan(
        Bilinear(0.5).denoise(np.full((1, 4, 4), np.nan), np.eye(1)).estimate
    ).all()


def test_overlap_has_several_components_and_batches():
    Qhat = np.array([[[2.0, 0.3], [0.3, 1.0]], [[4.0, 0.0], [0.0, 0.5]]])
    found = Bilinear(0.5).overlap(Qhat)
    np.testing.assert_allclose(found.V[1], np.diag(mmse([0.25, 2.0], 0.5)))
    noise = np.diagonal(np.linalg.inv(Qhat[0]))
    np.testing.assert_allclose(found.V[0], np.diag(mmse(noise, 0.5)), rtol=1e-10)
    np.testing.assert_allclose(found.Q + found.V, np.eye(2)[None].repeat(2, 0))
