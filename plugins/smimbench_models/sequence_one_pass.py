"""One pass of GAMP over the inputs of the sequence model in compiled code: every sample is read from memory once, and
stays in the cache meanwhile.

Forward, posterior and adjoint of a few samples follow each other while their tokens are in the second-level cache, so that
the pass takes as long as reading the inputs. The posterior is a function that the channel hands in, compiled by Numba too;
it is put into the loop at compile time. Checked against the array version by tests/algorithms/test_one_pass.py.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

__all__ = ["one_pass"]

# Sums may be taken in any order, which is what vector instructions need; NaN and infinity keep their meaning.
_SUMS = {"reassoc", "contract", "nsz"}
# Bytes of tokens that go through all three parts together: they must stay in the second-level cache. Doubled: on machines
# whose cache is small every sample is read twice.
_CACHE_BYTES = 1 << 18
# Longest direction (numbers) that stays in the first-level cache beside one token. Doubled: it is read again for every token.
_SHORT = 2048


@njit(fastmath=_SUMS, error_model="numpy")
def _dot(x: Any, w: Any) -> Any:
    total = 0.0
    for k in range(x.shape[0]):
        total += x[k] * w[k]
    return total


@njit(fastmath=_SUMS, error_model="numpy")
def _project(x: Any, rows: Any, z: Any) -> None:
    """``z[i, p] = x[i] . rows[p]``; four tokens at a time where a direction does not stay in the first-level cache."""
    n, dimension = x.shape
    i = 0
    if dimension > _SHORT:
        while i + 4 <= n:
            for p in range(rows.shape[0]):
                a = 0.0
                b = 0.0
                c = 0.0
                d = 0.0
                for k in range(dimension):
                    w = rows[p, k]
                    a += x[i, k] * w
                    b += x[i + 1, k] * w
                    c += x[i + 2, k] * w
                    d += x[i + 3, k] * w
                z[i, p], z[i + 1, p], z[i + 2, p], z[i + 3, p] = a, b, c, d
            i += 4
    while i < n:
        for p in range(rows.shape[0]):
            z[i, p] = _dot(x[i], rows[p])
        i += 1


@njit(fastmath=_SUMS, error_model="numpy")
def _accumulate(x: Any, g: Any, total: Any) -> None:
    """``total[p] += sum_i g[i, p] x[i]``, eight tokens at a time, because the sum is written as often as they are read."""
    n, dimension = x.shape
    for p in range(g.shape[1]):
        out = total[p]
        i = 0
        while i + 8 <= n:
            a, b, c, d = g[i, p], g[i + 1, p], g[i + 2, p], g[i + 3, p]
            e, f, h, m = g[i + 4, p], g[i + 5, p], g[i + 6, p], g[i + 7, p]
            for k in range(dimension):
                out[k] += (
                    (a * x[i, k] + b * x[i + 1, k])
                    + (c * x[i + 2, k] + d * x[i + 3, k])
                    + (e * x[i + 4, k] + f * x[i + 5, k])
                    + (h * x[i + 6, k] + m * x[i + 7, k])
                )
            i += 8
        while i < n:
            a = g[i, p]
            for k in range(dimension):
                out[k] += a * x[i, k]
            i += 1


@njit(error_model="numpy", nogil=True)
def _one_pass_loop(
    posterior: Any,
    constants: Any,
    inputs: Any,
    labels: Any,
    rows: Any,
    V: Any,
    inverse: Any,
    old: Any,
    g: Any,
    total: Any,
    covariance: Any,
    block: int,
) -> None:
    n, tokens, dimension = inputs.shape
    components = rows.shape[0]
    flat = inputs.reshape(n * tokens, dimension)
    z = np.empty((block * tokens, components))
    new = np.empty((block * tokens, components))
    omega = np.empty((components, tokens))
    mean = np.empty((components, tokens))
    for start in range(0, n, block):
        stop = min(start + block, n)
        x = flat[start * tokens : stop * tokens]
        _project(x, rows, z)
        for i in range(start, stop):
            first = (i - start) * tokens
            for m in range(tokens):
                for p in range(components):
                    value = z[first + m, p]
                    for q in range(components):
                        value -= V[p, q] * old[i, q, m]
                    omega[p, m] = value
            posterior(labels[i], omega, constants, mean, covariance)
            for m in range(tokens):
                for p in range(components):
                    value = 0.0
                    for q in range(components):
                        value += inverse[p, q] * (mean[q, m] - omega[q, m])
                    g[i, p, m] = value
                    new[first + m, p] = value
        _accumulate(x, new, total)


def one_pass(
    posterior: Any,
    constants: np.ndarray[Any, Any],
    inputs: np.ndarray[Any, Any],
    labels: np.ndarray[Any, Any],
    signal: np.ndarray[Any, Any],
    V: np.ndarray[Any, Any],
    old: np.ndarray[Any, Any] | None,
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Forward, posterior and adjoint of an iteration of GAMP for a sequence multi-index model.

    Parameters
    ----------
    posterior : compiled function
        Posterior of one sample, see ``Channel.compiled``.
    constants : ndarray
        What it needs in this iteration.
    inputs, labels : ndarray (n, M, D), (n, ...)
    signal, V : ndarray (P, D), (P, P)
    old : ndarray (n, P, M) or None
        g of the last iteration.

    Returns
    -------
    tuple
        ``g = V^{-1} (E[z | y] - omega)`` (n, P, M) with ``omega = forward - V old``; its adjoint (P, D); the sum of the
        posterior covariances (P, P).
    """
    n, tokens, dimension = inputs.shape
    components = signal.shape[0]
    scale = 1.0 / math.sqrt(dimension)
    g = np.empty((n, components, tokens))
    total = np.zeros((components, dimension))
    covariance = np.zeros((components, components))
    old = np.zeros_like(g) if old is None else np.ascontiguousarray(old)
    block = max(8, _CACHE_BYTES // (inputs.itemsize * tokens * dimension))
    V = np.ascontiguousarray(V)
    rows = np.ascontiguousarray(signal) * scale
    _one_pass_loop(
        posterior, constants, inputs, labels.reshape(n, -1), rows, V, np.linalg.inv(V), old, g, total, covariance, block
    )
    return g, total * scale, covariance
