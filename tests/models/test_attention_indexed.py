"""AttentionIndexed against sums written out entry by entry, and its own transposes."""

import math

import numpy as np
import pytest
from smimbench_models.attention_indexed import AttentionIndexed

from smimbench.backend.arrays import to_host
from smimbench.interfaces import ParameterError
from tests.conftest import assert_placed
from tests.measure import peak_memory


def symmetric(rng, *shape):
    a = rng.standard_normal(shape)
    return (a + np.swapaxes(a, -1, -2)) / math.sqrt(shape[-1])


PAIRS_OF_3 = [(a, b) for a in range(3) for b in range(a, 3)]


def slow_latents(x, S):
    """z one number at a time, straight from the definition of h."""
    n, T, d = x.shape
    rows = []
    for mu in range(n):
        for M in S:
            for a in range(T):
                for b in range(a, T):
                    h = (x[mu, a] @ M @ x[mu, b] - (a == b) * np.trace(M)) / math.sqrt(d)
                    rows.append(h / math.sqrt(1 + (a == b)))
    return np.reshape(rows, (n, len(S), -1))


@pytest.mark.parametrize(
    ("tokens", "components", "n", "d"), [(1, 1, 7, 5), (2, 1, 7, 5), (3, 2, 4, 6), (5, 3, 3, 2), (2, 1, 1, 1)]
)
def test_forward_is_the_definition(backend, rng, tokens, components, n, d):
    x, S = rng.standard_normal((n, tokens, d)), symmetric(rng, components, d, d)
    z = AttentionIndexed(tokens).forward(backend.asarray(x), backend.asarray(S))
    assert_placed(z, backend, (n, components, tokens * (tokens + 1) // 2))
    np.testing.assert_allclose(to_host(z), slow_latents(x, S), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("tokens", "components", "n", "d"), [(1, 2, 7, 5), (2, 1, 7, 5), (3, 2, 4, 6), (4, 1, 700, 30)]
)
def test_adjoint_is_the_scaled_transpose_of_forward(backend, rng, tokens, components, n, d):
    model = AttentionIndexed(tokens)
    x, S = rng.standard_normal((n, tokens, d)), symmetric(rng, components, d, d)
    g = rng.standard_normal((n, components, model.sites))
    back = model.adjoint(backend.asarray(x), backend.asarray(g))
    assert_placed(back, backend, (components, d, d))
    back = to_host(back)
    np.testing.assert_allclose(back, np.swapaxes(back, 1, 2), atol=1e-12 * np.max(np.abs(back)))
    forth = np.sum(g * to_host(model.forward(backend.asarray(x), backend.asarray(S))))
    assert np.sum(back * S) == pytest.approx(model.adjoint_scale(d) * forth, rel=1e-11)


def test_adjoint_normalisation_is_that_of_the_effective_channel(rng):
    """R = S_hat + adjoint(g) / Qhat, Qhat = 2 alpha C E g^2: the signal once, noise of variance 1/Qhat."""
    d = 60
    model = AttentionIndexed(2)
    n = model.sample_count(2.0, d)
    x = np.empty((n, 2, d))
    model.draw_inputs(rng, x)
    S = symmetric(rng, 1, d, d)
    z = model.forward(x, S)
    noise = rng.standard_normal(z.shape)
    qhat = model.kappa * model.sample_ratio(n, d) * model.sites
    slope = np.sum(model.adjoint(x, z) / qhat * S) / np.sum(S * S)
    assert slope == pytest.approx(1, abs=0.03)
    R = model.adjoint(x, noise)[0] / qhat
    assert np.mean(np.diag(R) ** 2) == pytest.approx(2 / (d * qhat), rel=0.5)
    assert np.mean(R[np.triu_indices(d, 1)] ** 2) == pytest.approx(1 / (d * qhat), rel=0.1)


def test_chunking_does_not_show(rng):
    """Many chunks (this n) against one chunk per sample."""
    model = AttentionIndexed(3)
    n, d, P = 3000, 41, 2
    x, S = rng.standard_normal((n, 3, d)), symmetric(rng, P, d, d)
    g = rng.standard_normal((n, P, model.sites))
    assert len(model.chunks(n, d, P)) > 1
    z = model.forward(x, S)
    for mu in (0, 1, 700, n - 1):
        np.testing.assert_allclose(z[mu], slow_latents(x[mu : mu + 1], S)[0], rtol=1e-10, atol=1e-11)
    parts = sum(model.adjoint(x[s], g[s]) for s in model.chunks(n, d, P))
    single = np.zeros((P, d, d))
    for mu in range(n):
        for c, (a, b) in enumerate(PAIRS_OF_3):
            Z = (np.outer(x[mu, a], x[mu, b]) + np.outer(x[mu, b], x[mu, a])) / 2 - (a == b) * np.eye(d)
            single += (2 / d) * (g[mu, :, c] / math.sqrt(d * (1 + (a == b))))[:, None, None] * Z
    np.testing.assert_allclose(model.adjoint(x, g), single, atol=1e-10 * np.max(np.abs(single)))
    np.testing.assert_allclose(parts, single, atol=1e-10 * np.max(np.abs(single)))


def test_several_students_are_the_students_one_by_one(backend, rng):
    model = AttentionIndexed(2)
    x, S = rng.standard_normal((9, 2, 6)), symmetric(rng, 4, 3, 2, 6, 6)
    g = rng.standard_normal((4, 3, 9, 2, 3))
    z = model.forward(backend.asarray(x), backend.asarray(S))
    back = model.adjoint(backend.asarray(x), backend.asarray(g))
    assert_placed(z, backend, (4, 3, 9, 2, 3))
    assert_placed(back, backend, (4, 3, 2, 6, 6))
    for i in range(4):
        for j in range(3):
            np.testing.assert_allclose(to_host(z)[i, j], slow_latents(x, S[i, j]), rtol=1e-11, atol=1e-12)
            alone = model.adjoint(x, g[i, j])
            np.testing.assert_allclose(to_host(back)[i, j], alone, atol=1e-13)


def test_no_square_array_per_sample_and_small_temporaries(rng):
    model = AttentionIndexed(2)
    n, d = 6000, 120
    x, S = rng.standard_normal((n, 2, d)), symmetric(rng, 1, d, d)
    g = rng.standard_normal((n, 1, 3))
    for call, result in ((lambda: model.forward(x, S), n * 3 * 8), (lambda: model.adjoint(x, g), d * d * 8)):
        peak = peak_memory(call)
        assert peak < result + 7e6 < x.nbytes  # (n, d, d) would be 691 MB


@pytest.mark.parametrize(("n", "d", "P", "T"), [(0, 10, 1, 2), (1, 10, 1, 2), (5000, 500, 1, 2), (977, 3, 4, 6)])
def test_chunks_cover_every_sample_once(n, d, P, T):
    slices = AttentionIndexed(T).chunks(n, d, P)
    assert [i for s in slices for i in range(s.start, s.stop)] == list(range(n))
    for s in slices[:-1]:
        assert (s.stop - s.start) * T >= 128


def test_no_samples(rng):
    model = AttentionIndexed(2)
    x = np.empty((0, 2, 4))
    assert model.forward(x, symmetric(rng, 1, 4, 4)).shape == (0, 1, 3)
    np.testing.assert_array_equal(model.adjoint(x, np.empty((0, 1, 3))), np.zeros((1, 4, 4)))


def test_float32(rng):
    model = AttentionIndexed(2)
    x, S = rng.standard_normal((50, 2, 20)), symmetric(rng, 1, 20, 20)
    g = rng.standard_normal((50, 1, 3))
    z = model.forward(x.astype("f4"), S.astype("f4"))
    back = model.adjoint(x.astype("f4"), g.astype("f4"))
    assert z.dtype == back.dtype == np.float32
    np.testing.assert_allclose(z, model.forward(x, S), atol=2e-5)
    np.testing.assert_allclose(back, model.adjoint(x, g), atol=2e-5)


def test_inputs_are_the_same_bits_in_every_dtype_and_layout():
    shape = (400, 2, 333)
    plain, single = np.empty(shape), np.empty(shape, dtype=np.float32)
    strided = np.empty((400, 2, 666))[:, :, ::2]
    for out in (plain, single, strided):
        AttentionIndexed(2).draw_inputs(np.random.default_rng(5), out)
    np.testing.assert_array_equal(single, plain.astype(np.float32))
    np.testing.assert_array_equal(strided, plain)
    assert np.mean(plain**2) == pytest.approx(1, abs=0.02)


def test_noise_law(rng):
    d, N = 8, 20_000
    Z = AttentionIndexed(2).draw_noise(rng, N, d)
    np.testing.assert_array_equal(Z, np.swapaxes(Z, 1, 2))
    expected = (1 + np.eye(d)) / d
    np.testing.assert_allclose(np.mean(Z**2, axis=0), expected, rtol=0.06)
    np.testing.assert_allclose(np.mean(Z, axis=0), 0, atol=0.02)


def test_latents_of_all_sites_have_the_second_moment_of_the_signal(rng):
    d = 300
    S = symmetric(rng, 1, d, d)
    x = rng.standard_normal((4000, 3, d))
    z = AttentionIndexed(3).forward(x, S)[:, 0]
    np.testing.assert_allclose(np.cov(z.T), np.eye(6) * np.sum(S**2) / d, atol=0.12)


def test_metrics(backend, rng):
    model = AttentionIndexed(2)
    A, B = symmetric(rng, 2, 7, 7), symmetric(rng, 2, 7, 7)
    a, b = backend.asarray(A), backend.asarray(B)
    expected = [[np.trace(A[p] @ B[q]) / 7 for q in range(2)] for p in range(2)]
    inner = model.inner(a, b)
    assert_placed(inner, backend, (2, 2))
    np.testing.assert_allclose(to_host(inner), expected, rtol=1e-12)
    np.testing.assert_allclose(to_host(model.overlap(a, b)), np.diag(expected), rtol=1e-12)
    error = [np.linalg.norm(A[p] - B[p]) ** 2 / 7 for p in range(2)]
    assert_placed(model.squared_error(a, b), backend, (2,))
    np.testing.assert_allclose(to_host(model.squared_error(a, b)), error, rtol=1e-12)
    swapped = backend.asarray(A[::-1].copy())
    np.testing.assert_allclose(to_host(model.align(a, swapped, "permutations")), A)
    np.testing.assert_allclose(to_host(model.align(a, swapped, "none")), A[::-1])


def test_counts_and_shapes():
    model = AttentionIndexed(4)
    assert (model.kappa, model.sites, model.signal_shape(2, 9)) == (2.0, 10, (2, 9, 9))
    assert model.sample_count(0.37, 50) == 925
    assert model.sample_count(1e-9, 50) == 1
    assert model.sample_ratio(925, 50) == pytest.approx(0.37)
    assert model == AttentionIndexed(tokens=4)


@pytest.mark.parametrize("tokens", [0, -2, 2.0, True, "2", None])
def test_bad_tokens(tokens):
    with pytest.raises(ParameterError, match=r"^tokens: must be an integer >= 1, got"):
        AttentionIndexed(tokens)


@pytest.mark.parametrize("alpha", [-0.1, float("nan"), float("inf")])
def test_bad_alpha(alpha):
    with pytest.raises(ParameterError, match=r"^alpha: "):
        AttentionIndexed(2).sample_count(alpha, 10)


def test_bad_shapes(rng):
    model = AttentionIndexed(2)
    S = symmetric(rng, 1, 5, 5)
    with pytest.raises(ValueError, match=r"inputs must have shape \(n, 2, 5\), got \(3, 3, 5\)"):
        model.forward(np.ones((3, 3, 5)), S)
    with pytest.raises(ValueError, match="inputs must have shape"):
        model.forward(np.ones((3, 2, 4)), S)
    with pytest.raises(ValueError, match=r"g must have shape \(..., 3, P, 3\)"):
        model.adjoint(np.ones((3, 2, 5)), np.ones((4, 1, 3)))
    with pytest.raises(ValueError, match="symmetry must be one of"):
        model.align(S, S, "mirror")
