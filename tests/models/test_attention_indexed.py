"""AttentionIndexed against sums written out entry by entry, and its own transposes."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from smimbench_attention.models.attention_indexed import AttentionIndexed

from smimbench.backend.arrays import to_host
from tests.conftest import assert_placed


def symmetric(rng, *shape):
    a = rng.standard_normal(shape)
    return (a + np.swapaxes(a, -1, -2)) / math.sqrt(shape[-1])


def slow_latents(x, S):
    """z one number at a time, straight from the definition of h."""
    n, T, d = x.shape
    rows = []
    for mu in range(n):
        for M in S:
            for a in range(T):
                for b in range(a, T):
                    h = (x[mu, a] @ M @ x[mu, b] - (a == b) * np.trace(M)) / math.sqrt(
                        d
                    )
                    rows.append(h / math.sqrt(1 + (a == b)))
    return np.reshape(rows, (n, len(S), -1))


@pytest.mark.parametrize(
    ("tokens", "components", "n", "d"),
    [(1, 1, 7, 5), (2, 1, 7, 5), (3, 2, 4, 6), (5, 3, 3, 2), (2, 1, 1, 1)],
)
def test_forward_is_the_definition(backend, rng, tokens, components, n, d):
    x = rng.standard_normal((n, tokens, d))
    S = symmetric(rng, components, d, d)
    z = AttentionIndexed(tokens).forward(backend.asarray(x), backend.asarray(S))
    assert_placed(z, backend, (n, components, tokens * (tokens + 1) // 2))
    assert_allclose(to_host(z), slow_latents(x, S), rtol=1e-12, atol=1e-12)


def test_adjoint_normalisation_is_that_of_the_effective_channel(rng):
    """R = S_hat + adjoint(g) / Qhat, Qhat = 2 alpha C E g^2: the signal once, noise of variance 1/Qhat."""
    d = 60
    model = AttentionIndexed(2)
    n = model.sample_count(2.0, d)
    x = rng.standard_normal((n, 2, d))
    S = symmetric(rng, 1, d, d)
    z = model.forward(x, S)
    noise = rng.standard_normal(z.shape)
    qhat = model.kappa * model.sample_ratio(n, d) * model.sites
    slope = np.sum(model.adjoint(x, z) / qhat * S) / np.sum(S * S)
    assert slope == pytest.approx(1, abs=0.03)
    R = model.adjoint(x, noise)[0] / qhat
    assert np.mean(np.diag(R) ** 2) == pytest.approx(2 / (d * qhat), rel=0.5)
    assert np.mean(R[np.triu_indices(d, 1)] ** 2) == pytest.approx(
        1 / (d * qhat), rel=0.1
    )


def test_chunking_does_not_show(rng):
    """Many chunks (this n) against one chunk per sample."""
    model = AttentionIndexed(3)
    n, d, P = 3000, 100, 2  # the sum is made in two bands
    x = rng.standard_normal((n, 3, d))
    S = symmetric(rng, P, d, d)
    g = rng.standard_normal((n, P, model.sites))
    assert len(model.chunks(n, d, P)) > 1
    z = model.forward(x, S)
    for mu in (0, 1, 700, n - 1):
        assert_allclose(
            z[mu], slow_latents(x[mu : mu + 1], S)[0], rtol=1e-10, atol=1e-11
        )
    parts = sum(model.adjoint(x[s], g[s]) for s in model.chunks(n, d, P))
    single = sum(model.adjoint(x[k : k + 1], g[k : k + 1]) for k in range(n))
    assert_allclose(model.adjoint(x, g), single, atol=1e-10 * np.max(np.abs(single)))
    assert_allclose(parts, single, atol=1e-10 * np.max(np.abs(single)))


def test_overlap_and_alignment(backend, rng):
    model = AttentionIndexed(2)
    A = symmetric(rng, 2, 7, 7)
    B = symmetric(rng, 2, 7, 7)
    a = backend.asarray(A)
    b = backend.asarray(B)
    assert_allclose(
        to_host(model.overlap(a, b)),
        [np.trace(A[p] @ B[p]) / 7 for p in range(2)],
        rtol=1e-12,
    )
    swapped = backend.asarray(A[::-1].copy())
    assert_allclose(to_host(model.align(a, swapped, "permutations")), A)
    assert_allclose(to_host(model.align(a, swapped, "none")), A[::-1])
