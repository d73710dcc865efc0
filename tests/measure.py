"""What a call costs, and whether a posterior is that of its own labels."""

import tracemalloc

import numpy as np


def peak_memory(call):
    """Bytes that a call allocates at most, its result included."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def assert_nishimori(result, omega, z, V, slack=0.0):
    """Means over labels drawn at ``omega``: of g, of the overlap of estimate and truth, and of the whole variance."""
    n, _, tokens = omega.shape
    shift, truth = result.mean - omega, z - omega
    g = np.einsum("ab,nbm->nam", np.linalg.inv(V), shift)
    assert np.all(np.abs(g.mean(0)) < 4.5 * g.std(0) / np.sqrt(n))
    overlap = np.einsum("nam,nbm->nab", shift, truth)
    square = np.einsum("nam,nbm->nab", shift, shift)
    second = np.einsum("nambm->nab", result.second_moment)
    centred = second - np.einsum("nam,nbm->nab", result.mean, result.mean)
    for difference in (square - 0.5 * (overlap + overlap.transpose(0, 2, 1)), square + centred - tokens * V):
        assert np.all(np.abs(difference.mean(0)) < 4.5 * difference.std(0) / np.sqrt(n) + slack)
    np.testing.assert_allclose(result.covariance, centred.mean(0) / tokens, rtol=1e-6, atol=1e-12)
