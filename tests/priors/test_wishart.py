"""The Wishart prior against the cubic for g, quadrature in x, subordination, limits and random matrices."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from smimbench_attention.priors.wishart import (
    Wishart,
    continued_map,
    eigenvalue_map,
    mmse,
    observed_law,
)

from smimbench.interfaces import ParameterError
from smimbench.numerics.free_convolution import FreeConvolution
from tests.helpers import scalar
from tests.numerics.test_free_convolution import support

RHOS = [0.01, 0.1, 0.5, 0.97, 1.0, 1.2, 10.0]


def merger(rho):
    """Delta at which the bulk of zero eigenvalues and the Marchenko-Pastur bulk touch."""
    return (rho ** (-1 / 3) - 1) ** 3


def stieltjes(x, noise, rho):
    """g at every x, from the cubic: the complex root, or the real one on which x decreases."""
    x = np.atleast_1d(x)
    a = rho**-0.5
    companion = np.zeros((x.size, 3, 3))
    companion[:, 1, 0] = companion[:, 2, 1] = 1
    leading = a * noise
    companion[:, 0] = (
        np.stack([a * x + noise, -(x + a - 1 / a), np.ones_like(x)], axis=1) / leading
    )
    roots = np.linalg.eigvals(companion)
    g = np.take_along_axis(
        roots, np.argmax(np.abs(roots.imag), axis=1)[:, None], axis=1
    )[:, 0]
    slope = noise + 1 / (1 - roots.real * a) ** 2 - 1 / roots.real**2
    falling = np.argmin(slope * roots.real**2, axis=1)[:, None]
    real = np.take_along_axis(roots.real, falling, axis=1)[:, 0]
    return np.where(
        np.abs(g.imag) > 1e-7 * np.abs(g), g.real + 1j * np.abs(g.imag), real
    )


def edges_and_dip(noise, rho):
    """Ends of the bulks from the quartic of dx/dg = 0, and the real part of x at its complex root."""
    a = rho**-0.5

    def x_of(g):
        return 1 / g + noise * g + math.sqrt(rho) / (1 - a * g)

    g = np.roots([noise * a * a, -2 * a * noise, noise + 1 - a * a, 2 * a, -1.0])
    is_real = np.abs(g.imag) < 1e-9 * np.abs(g)
    assert is_real.sum() in (2, 4)
    edges = np.sort(x_of(g[is_real].real))
    if is_real.sum() == 4:
        return edges, None
    return edges, float(x_of(g[~is_real][0]).real)


def reference_mmse(noise, rho, nodes=160):
    """F and the mass from the density cubed, in x; pieces end at edges and at the dip."""
    edges, dip = edges_and_dip(noise, rho)
    if len(edges) == 4:
        pieces = [edges[:2], edges[2:]]
    elif edges[0] < dip < edges[1]:
        pieces = [(edges[0], dip), (dip, edges[1])]
    else:
        pieces = [edges]
    angle, weight = np.polynomial.legendre.leggauss(nodes)
    mass = cube = 0.0
    for left, right in pieces:
        x = (left + right) / 2 + (right - left) / 2 * np.sin(np.pi / 2 * angle)
        dx = (right - left) / 2 * np.cos(np.pi / 2 * angle) * np.pi / 2 * weight
        mu = stieltjes(x, noise, rho).imag / np.pi
        mass += mu @ dx
        cube += mu**3 @ dx
    return noise - 4 * math.pi**2 / 3 * noise**2 * cube, mass


@pytest.mark.parametrize("rho", RHOS)
def test_mmse_is_the_cube_of_the_density(rho):
    for noise in [1e-3, 0.03, 0.4, 1.0, 7.0]:
        expected, mass = reference_mmse(noise, rho)
        assert mass == pytest.approx(1, abs=3e-6)
        assert mmse(noise, rho) == pytest.approx(expected, rel=1e-8, abs=1e-10)


@pytest.mark.parametrize("rho", [0.02, 0.5, 0.9])
@pytest.mark.parametrize("offset", [-0.3, -1e-2, -1e-4, 1e-4, 1e-2, 0.3])
def test_mmse_around_the_merger(rho, offset):
    """A gap that closes and a sharp dip: the error must not show in the ninth digit."""
    noise = merger(rho) * (1 + offset)
    expected, _ = reference_mmse(noise, rho, nodes=600)
    assert mmse(noise, rho) == pytest.approx(expected, abs=1e-9 * max(1, noise))


@pytest.mark.parametrize("rho", RHOS)
def test_moments_of_the_observed_law(rho):
    noise = 10.0 ** np.arange(-10, 11)
    weights, x, mean, variance = observed_law(noise, rho)
    size = 1 + rho + noise
    assert_allclose(weights.sum(-1), 1, rtol=3e-10)
    assert_allclose(
        (weights * x).sum(-1), math.sqrt(rho), atol=1e-10 * np.sqrt(size).max()
    )
    assert_allclose((weights * x**2).sum(-1), size, rtol=1e-9)
    # The eigenvalues of the posterior mean have the mean of the prior, and E S^2 = E xi^2 + F (Nishimori).
    assert_allclose((weights * mean).sum(-1), math.sqrt(rho), rtol=1e-9)
    assert_allclose((weights * (mean**2 + variance)).sum(-1), 1 + rho, rtol=1e-9)
    assert_allclose((weights * x * mean).sum(-1), 1 + rho, rtol=1e-8, atol=1e-5)
    assert_allclose((weights * variance).sum(-1), mmse(noise, rho), rtol=1e-9)


@pytest.mark.parametrize("rho", [0.01, 0.3, 0.9, 1.0, 1.5, 10.0])
def test_small_noise_law(rho):
    expected = 2 * rho - rho**2 if rho < 1 else 1.0
    noise = np.array([1e-25, 1e-15])
    assert_allclose(mmse(noise, rho) / noise, expected, rtol=3e-4)
    assert mmse(1e-60, rho) == pytest.approx(expected * 1e-60, rel=1e-10)


@pytest.mark.parametrize("rho", RHOS)
def test_large_noise_expansion(rho):
    """F = 1 - 1/Delta + (1 - kappa_3^2)/Delta^2 ...: linear estimate, and R^2 through E S^3; kappa_3^2 = 1/rho."""
    noise = 1e4 / min(rho, 1)
    rest = (mmse(noise, rho) - 1 + 1 / noise) * noise**2
    assert rest == pytest.approx(1 - 1 / rho, abs=0.003 * (1 + 1 / rho))
    huge = np.array([1e8, 1e12, 1e17, 1e30, 1e300])
    assert (
        np.abs((1 - mmse(huge, rho)) * huge - 1) < 2e-8 * (1 + 1 / rho) + 3e-15 * huge
    ).all()


@settings(max_examples=60, deadline=None)
@given(st.floats(-3, 1.5), st.floats(-14, 14))
def test_mmse_is_bounded_and_concave(log_rho, log_noise):
    rho = 10.0**log_rho
    noise = 10.0**log_noise
    F = mmse(noise * np.array([0.9, 1.0, 1.1]), rho)
    assert (
        0 < F[1] <= noise / (1 + noise) * (1 + 1e-12)
    )  # no worse than the best linear estimate
    assert F[0] < F[1] < F[2] or noise > 1e10
    ratio = F / np.array([0.9, 1.0, 1.1])
    assert (
        np.diff(ratio) <= 1e-12 * ratio[1]
    ).all()  # F/Delta falls: the fixed point is unique


def test_shapes_and_special_values():
    noise = np.array([[0.0, np.inf], [np.nan, -1.0]])
    assert_array_equal(mmse(noise, 0.5), [[0, 1], [np.nan, np.nan]])
    assert mmse(0.3, 0.5).shape == ()
    grid = np.logspace(-9, 9, 60)
    one_by_one = [float(mmse(v, 0.3)) for v in grid]
    assert_allclose(mmse(grid.reshape(3, 20), 0.3).ravel(), one_by_one, rtol=1e-13)


@pytest.mark.parametrize("rho", RHOS)
@pytest.mark.parametrize("exponent", [-10, -6, -3, -2, -1, 0, 1, 3, 6, 10])
def test_map_is_x_minus_twice_the_hilbert_transform(rho, exponent, rng):
    noise = 10.0**exponent
    edges, _ = edges_and_dip(noise, rho)
    widths = np.diff(edges)
    inside = [
        left + w * u
        for left, w in zip(edges, widths)
        for u in np.linspace(0.01, 0.99, 15)
    ]
    span = edges[-1] - edges[0]
    outside = [edges[-1] + span * u for u in (1e-2, 0.3, 20)] + [
        edges[0] - widths[0] * u for u in (1e-2, 0.3, 20)
    ]
    x = np.array(inside + outside)
    expected = x - 2 * noise * stieltjes(x, noise, rho).real
    order = rng.permutation(x.size)
    found = eigenvalue_map(x[order], noise, rho)
    assert_allclose(
        found, expected[order], rtol=1e-8, atol=1e-10 * max(1, math.sqrt(noise))
    )


@pytest.mark.parametrize(
    ("rho", "noise"),
    [(0.5, 1e-4), (0.5, 0.017), (0.5, 0.3), (2.0, 1e-6), (1.0, 1e-8), (0.05, 1e6)],
)
def test_map_is_continuous_at_the_edges(rho, noise):
    edges, _ = edges_and_dip(noise, rho)
    width = edges[-1] - edges[0]
    jumps = []
    for step in (1e-9 * width, 1e-7 * width):
        left = eigenvalue_map(edges - step, noise, rho)
        right = eigenvalue_map(edges + step, noise, rho)
        assert (left < right).all()
        jumps.append(right - left)
    # Square roots on the outer side: a hundredth of the step is at most a tenth of the change.
    assert (jumps[0] < 0.12 * jumps[1]).all()
    x = np.linspace(edges[0] - 1, edges[-1] + 1, 2001)
    assert (np.diff(eigenvalue_map(x, noise, rho)) > 0).all()


def test_map_without_and_with_infinite_noise():
    x = np.array([-1.0, 0.0, 2.5])
    assert_array_equal(eigenvalue_map(x, 0.0, 0.5), x)
    assert_array_equal(eigenvalue_map(x, math.inf, 0.25), np.full(3, 0.5))
    assert np.isnan(eigenvalue_map(x, math.nan, 0.5)).all()
    assert_array_equal(
        np.isnan(eigenvalue_map(np.array([np.nan, 1.0]), 0.01, 0.5)), [True, False]
    )


def goe(rng, count, D):
    Z = rng.standard_normal((count, D, D))
    return (Z + np.swapaxes(Z, -1, -2)) / math.sqrt(2 * D)


@pytest.mark.parametrize(
    ("rho", "noise"), [(0.05, 1.0), (0.5, 0.005), (0.5, 0.1), (2.0, 1.0)]
)
def test_claimed_error_in_a_draw(rho, noise):
    """MSE of the estimate, and the eigenvalues against the oracle's, diag(U^T S U)."""
    rng = np.random.default_rng(8)
    D = 500
    draws = 4
    prior = Wishart(rho)
    V = float(mmse(noise, rho))
    errors = []
    self_overlap = []
    cross_overlap = []
    for _ in range(draws):
        S = prior.sample(rng, 1, D)
        R = S + math.sqrt(noise) * goe(rng, 1, D)
        estimate, claimed = prior.denoise(R, scalar(1 / noise))
        assert claimed[0, 0] == pytest.approx(V, rel=1e-12)
        errors.append(((estimate - S) ** 2).sum() / D)
        values, vectors = np.linalg.eigh(R[0])
        oracle = ((S[0] @ vectors) * vectors).sum(0)
        xi = eigenvalue_map(values, noise, rho)
        assert ((oracle - xi) ** 2).mean() < 0.01 * V
        self_overlap.append((xi**2).mean())
        cross_overlap.append((xi * oracle).mean())
    # The error is a sum over the V/noise D^2/2 directions that are not known from the prior.
    spread = math.sqrt(2 / (draws * V / noise * D**2 / 2))
    assert np.mean(errors) == pytest.approx(V, rel=4 * spread + 0.005)
    assert np.mean(cross_overlap) == pytest.approx(np.mean(self_overlap), rel=0.005)
    assert np.mean(self_overlap) == pytest.approx(
        1 + rho - V, rel=0.04 if rho < 0.1 else 0.015
    )


def test_coupled_components_claim_their_true_error():
    """Noise correlated between two layers: V_pp belongs to the noise of the layer, not to 1/Qhat_pp."""
    rng = np.random.default_rng(9)
    D = 400
    prior = Wishart(0.5)
    Qhat = np.array([[4.0, 2.4], [2.4, 2.0]])
    root = np.linalg.inv(np.linalg.cholesky(Qhat)).T
    S = prior.sample(rng, 2, D)
    estimate, V = prior.denoise(
        S + np.einsum("pq,qij->pij", root, goe(rng, 2, D)), Qhat
    )
    error = ((estimate - S) ** 2).sum((1, 2)) / D
    assert_allclose(error, np.diag(V), rtol=0.02)
    assert (np.diag(V) > 1.5 * mmse(1 / np.diag(Qhat), 0.5)).all()
    assert_allclose(np.diag(prior.overlap(Qhat).V), np.diag(V), rtol=1e-12)


def test_the_width_really_drawn_counts(rng):
    """rho D = 7.38: seven columns; prior mean and denoiser belong to them."""
    prior = Wishart(0.123)
    D = 60
    assert prior.factor.draw(rng, 1, D).shape == (1, D, 7)
    assert_allclose(
        prior.mean(2, D), np.stack([math.sqrt(7 / 60) * np.eye(D)] * 2), rtol=1e-15
    )
    R = goe(rng, 1, D)
    same = Wishart(7 / 60).denoise(R, scalar(0.7))
    found = prior.denoise(R, scalar(0.7))
    assert_array_equal(found.estimate, same.estimate)
    assert Wishart(1e-4).factor.draw(rng, 1, D).shape == (1, D, 1)


@pytest.mark.parametrize("rho", [0.0, 0.4, 2.0])
def test_nothing_and_everything_known(rho):
    prior = Wishart(rho)
    Q, V = prior.overlap(np.array([[[0.0]], [[np.inf]]]))
    assert_array_equal(V[:, 0, 0], [1, 0])
    assert_array_equal(Q[:, 0, 0], [rho, rho + 1])
    Qhat = np.diag([np.inf, 0.0, 3.0, 2.0])
    Qhat[2, 3] = Qhat[3, 2] = Qhat[0, 2] = Qhat[2, 0] = 1.0
    expected = prior.overlap(np.diag([np.inf, 0.0, 5 / 2, 5 / 3])).V
    assert_allclose(prior.overlap(Qhat).V, expected, rtol=1e-13)
    assert np.isnan(prior.overlap(np.array([[1.0, np.nan], [np.nan, 1.0]])).V[0, 0])


def test_nearly_singular_information():
    """The more two layers' noises share, the less each layer knows; at the end, nothing."""
    prior = Wishart(0.5)
    last = 0.0
    for correlation in (0.0, 0.9, 1 - 1e-6, 1 - 1e-12, 1.0):
        V = prior.overlap(
            np.array([[1e3, 10 * correlation], [10 * correlation, 0.1]])
        ).V
        assert V[0, 0] > last
        last = V[0, 0]
    assert last > 0.9


def test_infinitely_thin_matrices():
    """rho = 0 is the limit of rho -> 0 with t = rho Delta fixed."""
    t = np.array([1e-12, 1e-3, 0.3, 0.8, 0.95, 1.05, 1.5, 30.0])
    Q, V = Wishart(0).overlap((1 / t)[:, None, None])
    limit = np.where(t < 1, t * (2 - t), 1)
    assert_allclose(V[:, 0, 0], limit, rtol=1e-14)
    assert_allclose(
        Q[:, 0, 0], np.where(t < 1, (1 - t) ** 2, 0), rtol=1e-12, atol=1e-30
    )
    assert_allclose(V[:, 0, 0], mmse(t / 1e-7, 1e-7), rtol=1e-3)
    assert_array_equal(Wishart(0).second_moment(2), np.eye(2))
    assert_array_equal(Wishart(0).mean_overlap(2), np.zeros((2, 2)))
    two = Wishart(0).overlap(np.diag([4.0, 0.5]))
    assert_allclose(two.V, np.diag([7 / 16, 1]), rtol=1e-14)


def test_infinitely_thin_matrices_cannot_be_drawn(rng):
    prior = Wishart(0)
    calls = [
        lambda: prior.sample(rng, 1, 5),
        lambda: prior.mean(1, 5),
        lambda: prior.factor.draw(rng, 1, 5),
        lambda: prior.denoise(np.eye(5)[None], np.eye(1)),
    ]
    for call in calls:
        with pytest.raises(ParameterError, match=r"rho: must be > 0"):
            call()
    assert prior.factor.draw(rng, 1, 5, 2).shape == (1, 5, 2)


def test_divergence_is_reported_as_nan():
    R = np.full((1, 4, 4), np.nan)
    assert np.isnan(Wishart(0.5).denoise(R, np.eye(1)).estimate).all()
    lost = Wishart(0.5).denoise(np.eye(4)[None], scalar(np.nan))
    assert np.isnan(lost.V).all()
    assert np.isnan(lost.estimate).all()


@pytest.mark.parametrize("rho", [0.1, 0.5, 2.0])
@pytest.mark.parametrize("noise", [0.01, 0.3, 5.0])
def test_the_continued_map_is_the_map_inside_and_never_steep_outside(rho, noise):
    values = np.linspace(-20, 30, 20001)
    usual = eigenvalue_map(values, noise, rho)
    continued = continued_map(values, noise, rho)
    slope = np.diff(continued) / np.diff(values)
    differ = np.abs(usual - continued) > 1e-9 * np.abs(usual).max()
    x = observed_law(noise, rho)[1]
    assert differ[0]
    assert differ[-1]
    assert x.min() < values[~differ].min() + 1e-2
    assert x.max() > values[~differ].max() - 1e-2
    assert_allclose(
        continued_map(x, noise, rho),
        eigenvalue_map(x, noise, rho),
        rtol=1e-7,
        atol=1e-7,
    )
    assert (slope[differ[1:] & differ[:-1]][[0, -1]] <= 1 + 1e-9).all()
    assert (slope >= -1e-9).all()
    assert np.abs(np.diff(continued)).max() < 0.2


@pytest.mark.parametrize("noise", [0.0, 0.001, 0.3, math.inf])  # with a gap, without
@pytest.mark.parametrize("denoise", [eigenvalue_map, continued_map])
def test_one_eigenvalue_is_mapped_as_in_an_array(denoise, noise):
    values = np.array([-5.0, 0.1, 0.7, 10.0])  # 0.1 in the gap
    alone = [denoise(np.array(value), noise, 0.5) for value in values]
    assert_allclose(alone, denoise(values, noise, 0.5), rtol=1e-12)


@pytest.mark.parametrize("rho", [0.1, 0.5, 2.0])
@pytest.mark.parametrize("noise", [0.01, 0.3, 5.0])
def test_continuing_changes_less_and_less_as_the_size_grows(rho, noise):
    shares = []
    for d in (50, 400):
        rng = np.random.default_rng(d)
        W = rng.standard_normal((d, max(1, round(rho * d))))
        Z = rng.standard_normal((d, d))
        R = W @ W.T / math.sqrt(W.shape[1] * d) + math.sqrt(noise) * (
            Z + Z.T
        ) / math.sqrt(2 * d)
        values = np.linalg.eigvalsh(R)
        change = np.abs(
            continued_map(values, noise, rho) - eigenvalue_map(values, noise, rho)
        )
        shares.append(np.mean(change**2) / mmse(noise, rho))
    assert shares[1] < 0.01
    assert shares[1] <= shares[0] + 1e-3


def marchenko_pastur(rho, nodes=300):
    """Atoms and weights of the law of S itself."""
    a = rho**-0.5
    low = a * (1 - math.sqrt(rho)) ** 2
    high = a * (1 + math.sqrt(rho)) ** 2
    angle, weight = np.polynomial.legendre.leggauss(nodes)
    s = (low + high) / 2 + (high - low) / 2 * np.sin(np.pi / 2 * angle)
    p = (
        np.sqrt((high - s) * (s - low))
        / (2 * np.pi * a * s)
        * np.cos(np.pi / 2 * angle)
        * weight
    )
    p *= (high - low) / 2 * np.pi / 2
    if rho < 1:
        s = np.append(s, 0.0)
        p = np.append(p, 1 - rho)
    return s, p


@pytest.mark.parametrize("rho", [0.05, 0.5, 1.0, 2.0, 10.0])
@pytest.mark.parametrize("noise", [4.0, 30.0, 1e4, 1e9])
def test_agrees_with_subordination(rho, noise):
    law = FreeConvolution(*marchenko_pastur(rho))
    assert mmse(noise, rho) == pytest.approx(law.mmse(noise).value, rel=2e-10)
    edges = support(law, noise)
    width = edges[-1, 1] - edges[0, 0]
    x = np.linspace(edges[0, 0] - width, edges[-1, 1] + width, 290)
    assert_allclose(
        eigenvalue_map(x, noise, rho), law.rie(x, noise), rtol=1e-7, atol=3e-11 * width
    )


def test_compose_is_the_definition_with_leading_axes(rng):
    prior = Wishart(0.5)
    W = rng.standard_normal((3, 2, 6, 4))
    S = prior.factor.compose(W)
    assert S.shape == (3, 2, 6, 6)
    assert_allclose(S[2, 1], W[2, 1] @ W[2, 1].T / math.sqrt(24), rtol=1e-14)
    G = rng.standard_normal(S.shape)
    assert_allclose(
        prior.factor.pullback(W, G)[2, 1],
        prior.factor.pullback(W[2, 1], G[2, 1]),
        rtol=1e-12,
    )


@pytest.mark.parametrize("rho", [0.01, 0.5, 0.97, 1.0, 3.0])
def test_map_inverts_its_parametric_form(rho):
    """Relative accuracy of the tiny eigenvalues that belong to the zeros of S, and of the rest."""
    noise = 10.0 ** np.arange(-12, 13)
    if rho < 1:
        noise = np.append(noise, merger(rho) * np.array([0.99, 1, 1.01]))
    weights, x, mean, _ = observed_law(noise, rho)
    for k, delta in enumerate(noise):
        keep = weights[k] > 1e-9
        # What x means as a floating-point number; the map increases.
        blur = 4e-16 * (np.abs(x[k]).max() + math.sqrt(rho) * delta)
        low, high = (
            eigenvalue_map(x[k][keep] + e, float(delta), rho) for e in (-blur, blur)
        )
        target = mean[k][keep]
        assert (low <= target * (1 + 1e-9)).all()
        assert (high >= target * (1 - 1e-9)).all()
        assert (np.abs(high - low) <= 1e-2 * target).mean() > 0.9


@pytest.mark.parametrize("rho", [0.01, 0.3, 0.99])
def test_mmse_is_smooth_through_the_merger(rho):
    """One bulk or two is decided by floating-point numbers; the integral may not notice."""
    h = 1e-9
    noise = merger(rho) * (1 + h * np.arange(-2, 3))
    F = mmse(noise, rho)
    slope = np.diff(F) / np.diff(noise)
    assert_allclose(slope, slope.mean(), rtol=1e-4)


def test_overlap_layer_by_layer():
    prior = Wishart(0.4)
    Qhat = np.zeros((5, 2, 2))
    Qhat[:, 0, 0], Qhat[:, 1, 1] = 10.0 ** np.arange(5), 2.0
    Q, V = prior.overlap(Qhat)
    assert_allclose(V[:, 0, 0], mmse(10.0 ** -np.arange(5.0), 0.4), rtol=1e-12)
    assert_allclose(V[:, 1, 1], float(mmse(0.5, 0.4)), rtol=1e-12)
    assert_array_equal(V[:, 0, 1], 0)
    assert_allclose(Q + V, np.broadcast_to(prior.second_moment(2), Q.shape), rtol=1e-14)
    assert_array_equal(prior.second_moment(2), [[1.4, 0.4], [0.4, 1.4]])
    assert_array_equal(prior.mean_overlap(2), np.full((2, 2), 0.4))


@pytest.mark.parametrize("width", [None, 1, 9])
def test_pullback_is_the_gradient(rng, width):
    prior = Wishart(0.5)
    P = 2
    D = 6
    W = prior.factor.draw(rng, P, D, width)
    assert W.shape == (P, D, width or 3)
    G = rng.standard_normal((P, D, D))
    direction = rng.standard_normal(W.shape)
    gradient = prior.factor.pullback(W, G)
    assert gradient.shape == W.shape
    h = 1e-6
    numeric = (
        (
            prior.factor.compose(W + h * direction)
            - prior.factor.compose(W - h * direction)
        )
        * G
    ).sum() / (2 * h)
    assert (gradient * direction).sum() == pytest.approx(numeric, rel=1e-8)


def test_the_continued_denoiser_predicts_the_same_error_and_shrinks_outliers():
    prior = Wishart(0.5)
    d = 60
    R = np.diag(np.linspace(-1.0, 6.0, d))[None]
    usual = prior.denoise(R, np.eye(1))
    continued = prior.denoise(R, np.eye(1), continued=True)
    assert_array_equal(usual.V, continued.V)
    assert continued.estimate[0, -1, -1] < usual.estimate[0, -1, -1]
    middle = slice(d // 4, d // 2)
    assert_allclose(
        continued.estimate[0, middle, middle], usual.estimate[0, middle, middle]
    )
