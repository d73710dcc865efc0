"""Row-wise argmax of three or more tokens: moments of the posterior by exact integration where that is possible, else
by Gibbs chains.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import array_api_compat
import numpy as np

from smimbench.backend import clip, namespace
from smimbench_channels.attention.hardmax.many_tokens.exact import row_posterior
from smimbench_channels.attention.hardmax.many_tokens.gibbs import chain_moments, check_labels
from smimbench_channels.batches import blocks, identity_like, joined, put_tuple

if TYPE_CHECKING:
    from smimbench.interfaces import Array

__all__ = ["Moments", "exact_moments", "gibbs_moments"]

# Log-probability of a label below which the windows of the exact integration may miss the posterior. Doubled (1e-16): some
# posteriors are missed.
UNLIKELY = math.log(1e-8)
# Error of the exact integration that is reported, in prior widths. Doubled: a wider error bar.
EXACT_ERROR = 1e-5
# Least error reported for unlikely labels: entries that are pressed together hardly move in a chain, and two such chains look
# alike. Doubled: a wider error bar.
FROZEN_ERROR = 0.1
# Independent chains, whose difference is the error. `gibbs_moments` needs two.
CHAINS = 2
# Entries of a matrix in one block of chains on a host, and how many times as many on a device. Doubled: twice the memory.
BLOCK, DEVICE_BLOCKS = 1 << 17, 64
# Step of the derivative with respect to omega, in prior widths. Doubled: an error 16 times as large, of order 4.
STEP = 0.05


class Moments(NamedTuple):
    """Posterior of the latents in units of the prior."""

    first: Array  # (n, C) E[z - omega] / sqrt(V)
    variance: Array  # (n, C) Var(z) / V; without bias, so that single values may be negative
    outer: Array | None  # (n, C, C) E[(z - omega)(z - omega)^T] / V
    square_error: Array  # (n,) mean over sites of the squared numerical error of `first`


def exact_moments(
    y: Array, omega: Array, V: Array, tokens: int, *, sweeps: int, rng: np.random.Generator, outer: bool
) -> Moments:
    """By nested integrals; Gibbs for the few labels that were unlikely under ``omega`` (n, C)."""
    xp = namespace(y, omega, V)
    found = row_posterior(y, omega, V, tokens)
    covariance = _response(xp, y, omega, V, tokens, found.second - found.first**2) if outer else None
    square = None if covariance is None else covariance + found.first[:, :, None] * found.first[:, None, :]
    error = xp.full_like(found.first[:, 0], EXACT_ERROR**2)
    result = Moments(found.first, found.second - found.first**2, square, error)
    unlikely = ~(found.log_partition > UNLIKELY)
    if not bool(xp.any(unlikely)):
        return result
    where = xp.nonzero(unlikely)[0]
    some_y, some_omega = xp.take(y, where, axis=0), xp.take(omega, where, axis=0)
    some = gibbs_moments(some_y, some_omega, V, tokens, sweeps=sweeps, rng=rng, outer=outer)
    some = some._replace(square_error=clip(some.square_error, FROZEN_ERROR**2, None))
    return put_tuple(result, unlikely, some)


def _response(xp: Any, y: Array, omega: Array, V: Array, tokens: int, variance: Array) -> Array:
    """Covariance between sites, (n, C, C), as the response of the mean to ``omega``: ``1 + d first / d omega``."""
    sites = omega.shape[1]
    eye = identity_like(sites, omega)
    root = xp.sqrt(V)
    rows = []
    for c in range(sites):
        slope: Any = 0.0
        for steps, weight in ((1, 2 / 3), (2, -1 / 12)):
            for sign in (1, -1):
                moved = omega + (sign * steps * STEP) * root * eye[c, :][None, :]
                slope = slope + (sign * weight / STEP) * row_posterior(y, moved, V, tokens).first
        rows.append(slope)
    response = xp.stack(rows, axis=1)
    response = (response + xp.matrix_transpose(response)) / 2 + eye[None, :, :]
    return xp.where(eye[None, :, :] > 0, variance[:, :, None], response)


def gibbs_moments(
    y: Array, omega: Array, V: Array, tokens: int, *, sweeps: int, rng: np.random.Generator, outer: bool
) -> Moments:
    """From independent chains, started at a matrix that obeys the label near ``omega`` (n, C)."""
    xp = namespace(y, omega, V)
    check_labels(y, tokens)
    size = max(1, BLOCK // (CHAINS * tokens**2))
    if not array_api_compat.is_numpy_namespace(xp):
        size *= DEVICE_BLOCKS
    parts = []
    for rows in blocks(y.shape[0], size):
        chains = chain_moments(
            y[rows, :],
            omega[rows, :],
            V,
            tokens,
            sweeps=sweeps,
            burn_in=max(16, sweeps // 4),
            chains=CHAINS,
            rng=rng,
            outer=outer,
        )
        one, two = chains.first[0, ...], chains.first[1, ...]
        first = (one + two) / 2
        second = (chains.second[0, ...] + chains.second[1, ...]) / 2
        square = None
        if chains.outer is not None:
            eye = identity_like(first.shape[1], first)
            mean = (chains.outer[0, ...] + chains.outer[1, ...]) / 2
            square = xp.where(eye[None, :, :] > 0, second[:, :, None], mean)
        parts.append(Moments(first, second - one * two, square, xp.mean((one - two) ** 2, axis=1) / 4))
    return joined(parts)
