"""Information of hardmax attention for three or more tokens as a function of ``V / (Q + V)``, fitted to sampled estimates.

Only the direction of the latents matters, so ``(Q + V) * information`` depends on ``x = V / (Q + V)`` alone,
and times ``sqrt(x)`` it is a smooth function of ``sqrt(x)`` on [0, 1] with a known value at 0. A polynomial
of low degree through a few randomized estimates therefore serves every pair of order parameters.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from smimbench.interfaces import Array
from smimbench.numerics import (
    ChebyshevFit,
    chebyshev_fit,
    entry_sites,
    gauss_legendre,
    lobatto_points,
    monte_carlo_rng,
    normal_scrambles,
    site_scales,
)
from smimbench_attention.channels.attention.hardmax.exact import (
    label_classes,
    row_posterior,
)
from smimbench_attention.channels.attention.hardmax.gibbs import chain_moments
from smimbench_attention.channels.common import blocks

# Degree of the polynomial. Doubled: more coefficients than points, so that it follows the noise.
DEGREE = 4
# Points of a Chebyshev-Lobatto rule on [0, 1], both ends included. Doubled: twice the time, half the variance.
NODES = 7
# Independent scrambles of the Sobol points, whose spread is the error. Doubled, with as many points in all: the error is known
# to 1/8 of itself in place of 1/5, and shrinks less fast with the points.
SCRAMBLES = 16
# Most tokens whose posterior is integrated; the patterns and their cost grow threefold with each. Doubled: never done.
EXACT = 5


def small_error_constant(tokens: int) -> float:
    r"""Limit of ``sqrt(V (Q + V)) * information`` of the hardmax channel as V -> 0.

    .. math::

        \frac{2 T}{\sqrt{2\pi}} \int \frac{\phi^2}{\Phi} \sum_{b < b'} P(\text{the tie of } b \text{ and } b'
        \text{ is the row maximum})

    Only rows with two nearly equal largest entries still tell something, and each such pair is a
    one-dimensional problem; the variance of the difference cancels between its density at 0 and the width of
    the tie. Derived, checked by tests/channels/attention/test_attention_hardmax_many.py.
    """
    from scipy.special import log_ndtr, ndtr

    x, w = gauss_legendre(200, -14.0, 14.0)
    sign_constant = float(np.sum(w * np.exp(-(x**2) - log_ndtr(x)))) / (2 * math.pi)
    gauss = w * np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    T = tokens
    with_diagonal = (T - 1) * float(
        np.sum(gauss * ndtr(math.sqrt(2 / 3) * x) ** (T - 2))
    )
    below = ndtr(math.sqrt(0.5) * x) ** (T - 3) * ndtr(0.5 * x)
    without = (T - 1) * (T - 2) / 2 * float(np.sum(gauss * below))
    return 2 * T / math.sqrt(2 * math.pi) * sign_constant * (with_diagonal + without)


def information_curve(
    tokens: int, samples: int, q: Array, v: Array
) -> tuple[Array, Array]:
    """Information (N,) and its standard error, infinite at v = 0; from ``samples`` labels at each inner node of the curve."""
    total = q + v
    s = np.sqrt(np.where(v > 0, v / np.where(total > 0, total, 1.0), 1.0))
    mean, error = _polynomials(tokens, samples)(s)
    with np.errstate(divide="ignore"):
        scale = np.where(v > 0, 1 / np.sqrt(v * total), np.inf)
    return mean * scale, error * scale


@cache
def _polynomials(tokens: int, samples: int) -> ChebyshevFit:
    """Chebyshev polynomials fitted to ``s (Q + V) information``, ``s = sqrt(V / (Q + V))``."""
    s = lobatto_points(NODES)
    values = np.empty((NODES, SCRAMBLES))
    certain = {0: small_error_constant(tokens)}
    if tokens <= EXACT:
        certain[NODES - 1] = _without_overlap(tokens)
    for k in range(NODES):
        values[k] = (
            certain[k]
            if k in certain
            else s[k] * _sampled_information(tokens, s[k] ** 2, samples, k)
        )
    standard_error = values.std(axis=1, ddof=1) / math.sqrt(SCRAMBLES)
    standard_error[list(certain)] = (
        1e-3 * standard_error[standard_error > 0].min()
    )  # as good as exact
    # The relative error that the degree leaves: ten times what is found for two and three tokens.
    return chebyshev_fit(s, values, standard_error, DEGREE, 1e-4)


def _without_overlap(tokens: int) -> float:
    """Information at the prior mean with V = 1, where the posterior depends on the label only."""
    labels, count = label_classes(tokens)
    omega = np.zeros((len(labels), tokens * (tokens + 1) // 2))
    posterior = row_posterior(
        labels, omega, np.asarray(1.0), tokens, nodes=48, reach=9.0
    )
    return float(
        np.sum(
            count * np.exp(posterior.log_partition) * np.sum(posterior.shift**2, axis=1)
        )
    )


def _sampled_information(tokens: int, x: float, samples: int, stream: int) -> Array:
    """Sampled estimates (SCRAMBLES,) of the information at Q = 1 - x, V = x.

    Two control variates of known mean carry most of the noise at small x, that of labels which decide a near
    tie against the odds: for the two largest estimated entries of a row, at a distance of k standard
    deviations, ``(phi(k) / Phi(+-k))^2`` with the sign of the true difference, and its mean over that sign.
    """
    T = tokens
    C = T * (T + 1) // 2
    scale = np.array(site_scales(T))
    index = np.array(entry_sites(T)).reshape(T, T)
    variance = scale[index] ** 2
    size = 1 << max(1, round(math.log2(max(2.0, samples / SCRAMBLES))))
    normal = normal_scrambles(
        2 * C, size, SCRAMBLES, "attention hardmax: curve", T, stream
    )
    omega = math.sqrt(1 - x) * normal[:, :C]
    z = omega + math.sqrt(x) * normal[:, C:]
    estimate = (omega * scale)[:, index]
    truth = (z * scale)[:, index]
    y = truth.argmax(axis=2)
    if T <= EXACT:
        squares = np.sum(row_posterior(y, omega, np.asarray(x), T).shift ** 2, axis=1)
    else:
        squares = _gibbs_squares(
            y, omega, z, x, T, monte_carlo_rng("attention hardmax: Gibbs", T, stream)
        )
    if x == 1.0:  # no estimate, no ties
        return squares.reshape(SCRAMBLES, -1).mean(axis=1)
    two = np.argsort(estimate, axis=2)[:, :, -2:]
    values, truths = (np.take_along_axis(a, two, axis=2) for a in (estimate, truth))
    widths = np.take_along_axis(
        np.broadcast_to(variance, estimate.shape), two, axis=2
    ).sum(axis=2)
    distance = (values[:, :, 1] - values[:, :, 0]) / np.sqrt(x * widths)
    sign = np.where(truths[:, :, 1] > truths[:, :, 0], 1, -1)
    control = np.stack(
        [
            _hazard_square(sign * distance).sum(axis=1),
            _tie_information(distance).sum(axis=1),
        ]
    )
    control = control - T * _mean_tie_information(T, x)
    centered = control - control.mean(axis=1, keepdims=True)
    slope = np.linalg.lstsq(centered.T, squares - squares.mean(), rcond=None)[0]
    return (squares - slope @ control).reshape(SCRAMBLES, -1).mean(axis=1) / x


def _gibbs_squares(
    y: Array, omega: Array, z: Array, x: float, T: int, rng: np.random.Generator
) -> Array:
    """Unbiased ``V sum_c g_c^2``: the product of two Gibbs chains that start from the true latents."""
    options: Any = {"sweeps": 8, "burn_in": 8, "chains": 2, "rng": rng}
    chunks = blocks(len(y), max(1, (1 << 17) // (2 * T * T)))
    shifts = [
        chain_moments(y[p], omega[p], np.asarray(x), T, start=z[p], **options).shift
        for p in chunks
    ]
    return np.concatenate(
        [np.sum(chain_1 * chain_2, axis=1) for chain_1, chain_2 in shifts]
    )


def _hazard_square(k: Array) -> Array:
    from scipy.special import erfcx

    return (math.sqrt(2 / math.pi) / erfcx(-k / math.sqrt(2))) ** 2


def _tie_information(k: Array) -> Array:
    """Information ``phi(k)^2 / (Phi(k) Phi(-k))`` of a sign with margin k, the mean square of its hazard."""
    from scipy.special import ndtr

    return np.exp(-k * k) / (2 * math.pi) / np.maximum(ndtr(k) * ndtr(-k), 1e-300)


def _mean_tie_information(tokens: int, x: float) -> float:
    """Mean of ``_tie_information`` for the two largest entries of one row, ``omega ~ N(0, 1 - x)``."""
    from scipy.special import ndtr

    q = 1 - x
    k, wk = gauss_legendre(96, 0.0, 20.0)  # distance
    t, wt = gauss_legendre(96, -9.0, 9.0)
    wt = wt * np.exp(-(t**2) / 2) / math.sqrt(2 * math.pi)
    total = 0.0
    off_diagonal = tokens - 1
    cases = [
        (2.0, 1.0, off_diagonal),
        (1.0, 2.0, off_diagonal),
        (1.0, 1.0, off_diagonal * (tokens - 2)),
    ]
    for upper, lower, count in cases[: off_diagonal + 1]:
        width = upper + lower
        gap = k * math.sqrt(x * width)
        density = np.exp(-(gap**2) / (2 * q * width)) * math.sqrt(x / (2 * math.pi * q))
        # the lower of the two given the gap
        low = -gap[:, None] * lower / width + math.sqrt(q * upper * lower / width) * t
        low = low / math.sqrt(q)
        below = ndtr(low) ** (tokens - 2)
        if upper == lower:  # the diagonal is among the rest
            below = ndtr(low) ** (tokens - 3) * ndtr(low / math.sqrt(2))
        total += count * float(
            np.sum(wk * density * _tie_information(k) * (below @ wt))
        )
    return total
