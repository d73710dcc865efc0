"""FreeConvolution against closed forms, polynomial roots, free cumulants and random matrices."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from smimbench.backend.arrays import to_host
from smimbench.numerics.free_convolution import FreeConvolution, _intervals
from tests.conftest import assert_placed


def semicircle_rule(count):
    """Gauss rule of the semicircle law of variance 1: exact up to degree 2 count - 1."""
    angle = np.arange(1, count + 1) * np.pi / (count + 1)
    return 2 * np.cos(angle), np.sin(angle) ** 2


def stieltjes_by_roots(x, noise, atoms, weights):
    """g at one x from the polynomial of g = sum p/(x - noise g - s); the complex root, or the decreasing real one."""
    # With z = x - noise g: (x - z)/noise = sum p/(z - s).
    full = np.poly(atoms)
    partial = sum(
        p * np.poly(np.delete(atoms, k)) if len(atoms) > 1 else np.array([p])
        for k, p in enumerate(weights)
    )
    poly = np.polysub(np.polymul([-1.0, x], full), noise * partial)
    roots = np.roots(poly)
    best = roots[np.argmax(np.abs(roots.imag))]
    if abs(best.imag) > 1e-9:
        return complex((x - best.real) / noise, abs(best.imag) / noise)
    slope = 1 - noise * np.array(
        [(weights / (z - atoms) ** 2).sum() for z in roots.real]
    )
    # Several real roots: only one has dz/dx > 0, that is dx/dz > 0.
    z = roots.real[np.argmax(slope)]
    return complex((x - z) / noise, 0.0)


def support(law, noise):
    """Bulks of the observed eigenvalues: their ends (B, 2), from left to right."""
    atoms = law.atoms / math.sqrt(noise)
    ends, _ = _intervals(atoms, law.weights)
    return (ends + (law.weights / (ends[..., None] - atoms)).sum(-1)) * math.sqrt(noise)


ATOMS = np.array([-1.5, 0.2, 1.1])
WEIGHTS = np.array([0.5, 0.2, 0.3])
three = FreeConvolution(ATOMS, WEIGHTS)


@pytest.mark.parametrize("noise", [0.1, 0.3, 1.0, 40.0])
def test_semicircle_is_linear(noise):
    law = FreeConvolution(*semicircle_rule(400))
    width = 2 * math.sqrt(1 + noise)
    inside = np.linspace(-0.99, 0.99, 51) * width
    assert_allclose(law.rie(inside, noise), inside / (1 + noise), rtol=1e-9, atol=1e-10)
    outside = np.array([1.01, 1.5, 10.0]) * width
    g = (outside - np.sqrt(outside**2 - width**2)) / (2 * (1 + noise))
    assert_allclose(law.rie(-outside, noise), -outside + 2 * noise * g, rtol=1e-8)
    F = law.mmse(noise)
    assert abs(F.value - noise / (1 + noise)) <= F.error < 1e-9


@pytest.mark.parametrize("noise", [1e-9, 1e-4, 0.01, 1.0, 1e5, 1e12])
def test_the_map_solves_the_polynomial(noise, rng):
    root = math.sqrt(noise)
    x = np.concatenate([ATOMS + root * d for d in rng.uniform(-1.5, 1.5, (12, 1))])
    x = np.concatenate([x, rng.uniform(-5, 5, 20) * (1 + root)])
    g = np.array([stieltjes_by_roots(v, noise, ATOMS, WEIGHTS) for v in x])
    xi = three.rie(x, noise)
    assert_allclose(xi, x - 2 * noise * g.real, rtol=1e-6, atol=3e-6 * root)


@pytest.mark.parametrize(
    ("noise", "bulks"), [(1e-6, 3), (0.1, 3), (0.6, 2), (2.0, 1), (1e4, 1)]
)
def test_mmse_is_the_cube_of_the_density(noise, bulks):
    """F = Delta - (4 pi^2/3) Delta^2 int mu^3, with mu from the roots of the polynomial."""
    ends = support(three, noise)
    assert ends.shape == (bulks, 2)
    angle, weight = np.polynomial.legendre.leggauss(400)
    mass = cube = 0.0
    for left, right in ends:
        x = (left + right) / 2 + (right - left) / 2 * np.sin(np.pi / 2 * angle)
        dx = (right - left) / 2 * np.cos(np.pi / 2 * angle) * np.pi / 2 * weight
        mu = np.array(
            [stieltjes_by_roots(v, noise, ATOMS, WEIGHTS).imag / np.pi for v in x]
        )
        mass += mu @ dx
        cube += mu**3 @ dx
    assert mass == pytest.approx(1, rel=1e-6)
    F = three.mmse(noise)
    expected = noise - 4 * math.pi**2 / 3 * noise**2 * cube
    assert F.value == pytest.approx(expected, rel=1e-6, abs=1e-14 * noise)
    assert F.error < 1e-9 * F.value


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-3, 3), st.floats(0.01, 1)), min_size=1, max_size=6),
    st.floats(-12, 12),
)
def test_moments_add_by_free_cumulants(pairs, exponent):
    atoms, weights = np.array(pairs).T
    noise = 10.0**exponent
    law = FreeConvolution(atoms, weights)
    p = weights / weights.sum()
    s1, s2, s3 = (p @ atoms**k for k in (1, 2, 3))
    found = law.means(lambda x, *_: x ** np.arange(4)[:, None], noise, rtol=1e-10)
    expected = [1, s1, s2 + noise, s3 + 3 * noise * s1]
    scale = (3 + math.sqrt(noise)) ** np.arange(4.0)
    assert (np.abs(found.value - expected) < 1e-8 * scale).all()
    F = law.mmse(noise)
    variance = p @ atoms**2 - s1**2
    # The posterior mean beats the best linear estimate and cannot beat knowing the eigenvectors of S.
    assert (
        -1e-12 <= F.value <= variance * noise / (variance + noise) * (1 + 1e-8) + 1e-13
    )


def test_far_atoms_have_a_bulk_each():
    """At tiny noise the bulk of atom k is a semicircle of variance noise p_k: F = noise (1 - sum p^2)."""
    noise = 1e-14
    F = three.mmse(noise)
    assert F.value == pytest.approx(noise * (1 - (WEIGHTS**2).sum()), rel=1e-5)
    ends = support(three, noise)
    assert_allclose(ends.mean(1), ATOMS, atol=1e-12)
    assert_allclose(np.diff(ends)[:, 0], 4 * np.sqrt(noise * WEIGHTS), rtol=1e-4)


def test_nothing_to_know():
    law = FreeConvolution([0.7])
    assert law.mmse(0.3).value == pytest.approx(0, abs=1e-15)
    assert_allclose(law.rie(np.array([0.7, 1.2]), 0.3), 0.7, rtol=1e-12)


def test_limits():
    variance = WEIGHTS @ ATOMS**2 - (WEIGHTS @ ATOMS) ** 2
    for noise, value, rel in (
        (0.0, 0.0, 0.0),
        (np.inf, variance, 1e-14),
        (1e300, variance, 1e-9),
    ):
        assert three.mmse(noise).value == pytest.approx(value, rel=rel)


@pytest.mark.parametrize("count", [40, 121])
def test_discretised_law_reports_what_it_cannot_resolve(count):
    """Quantiles of the semicircle: F = Delta/(1 + Delta) whatever the noise, down to far below their distance."""
    from scipy.optimize import brentq

    def excess(x, probability):
        return (
            0.5
            + x * math.sqrt(4 - x * x) / (4 * math.pi)
            + math.asin(x / 2) / math.pi
            - probability
        )

    quantiles = [brentq(excess, -2, 2, args=((k + 0.5) / count,)) for k in range(count)]
    law = FreeConvolution(quantiles, law="quantiles")
    for noise in (1e-8, 1e-5, 1e-3, 0.03, 1.0, 30.0, 1e4):
        F = law.mmse(noise, rtol=1e-6)
        assert abs(F.value - noise / (1 + noise)) <= F.error <= 4 / count * F.value
        assert "quantiles" in F.method


def test_backends(backend, rng):
    x = rng.uniform(-4, 4, 30)
    found = three.rie(backend.asarray(x), 0.4)
    assert_placed(found, backend, (30,))
    assert_allclose(to_host(found), three.rie(x, 0.4), rtol=1e-12, atol=1e-14)
    assert_placed(three.rie(backend.asarray(x[:0]), 0.4), backend, (0,))


def test_float32(rng):
    x = rng.uniform(-4, 4, 30).astype(np.float32)
    found = three.rie(x, 0.4)
    assert found.dtype == np.float32
    assert_allclose(found, three.rie(x.astype(float), 0.4), rtol=1e-6, atol=1e-7)


def test_order_scale_and_duplicates_of_atoms_do_not_matter():
    same = FreeConvolution([1.1, -1.5, 0.2, 1.1, -1.5], [1.0, 4.0, 2.0, 2.0, 1.0])
    assert same.mmse(0.3).value == pytest.approx(three.mmse(0.3).value, rel=1e-13)
    assert_allclose(same.weights, three.weights, rtol=1e-14)


def test_chunks_do_not_matter():
    """More points than one chunk holds."""
    law = FreeConvolution(*semicircle_rule(400))
    x = np.linspace(-3, 3, 1001)
    assert_allclose(
        law.rie(x, 0.5)[::100], law.rie(x[::100].copy(), 0.5), rtol=1e-13, atol=1e-14
    )


def test_a_noise_below_the_rounding_of_the_atoms_is_refused():
    with pytest.raises(ValueError, match="below the rounding error of the atoms"):
        three.means(lambda x, *_: x[None], 1e-32)


def test_random_matrix():
    """Three eigenvalues, D = 400: spectrum, estimator and error against a draw."""
    rng = np.random.default_rng(11)
    D = 400
    noise = 0.3
    S = np.diag(np.repeat(ATOMS, np.round(WEIGHTS * D).astype(int)))
    Z = rng.standard_normal((D, D))
    R = S + math.sqrt(noise) * (Z + Z.T) / math.sqrt(2 * D)
    values, vectors = np.linalg.eigh(R)
    estimate = (vectors * three.rie(values, noise)) @ vectors.T
    assert ((estimate - S) ** 2).sum() / D == pytest.approx(
        three.mmse(noise).value, rel=0.02
    )
    edges = support(three, noise)
    assert values[0] == pytest.approx(edges[0, 0], abs=0.05)
    assert values[-1] == pytest.approx(edges[-1, 1], abs=0.05)
    counts, bins = np.histogram(values, bins=20)
    expected = (
        three.means(
            lambda x, *_: (x >= bins[:-1, None]) & (x < bins[1:, None]),
            noise,
            bins,
            rtol=1e-3,
        ).value
        * D
    )
    assert np.abs(counts - expected).max() < 4  # eigenvalues are rigid
