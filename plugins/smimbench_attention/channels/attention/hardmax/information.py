"""Information of hardmax attention for three or more tokens as a function of ``V / (Q + V)``, fitted to sampled estimates.

Only the direction of the latents matters, so ``(Q + V) * information`` depends on ``x = V / (Q + V)`` alone,
and times ``sqrt(x)`` it is a smooth function of ``sqrt(x)`` on [0, 1] with a known value at 0. A polynomial
of low degree through a few randomized estimates therefore serves every pair of order parameters. The estimates depend on the
number of tokens alone; ``estimates.json`` has them.
"""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path

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
SHIPPED_ESTIMATES = Path(__file__).with_name("estimates.json")
"""Of each number of tokens the number of ``samples`` and ``estimates`` (NODES, SCRAMBLES), by tools/hardmax_estimates.py."""


def small_error_constant(tokens: int) -> float:
    r"""Limit of ``sqrt(V (Q + V)) * information`` of the hardmax channel of T = ``tokens`` tokens as V -> 0: a sum over ties of
    two entries b, b' of a row, with the diagonal among them (``diagonal_ties``) or not, times the information of a sign.

    .. math::

        \frac{2 T}{\sqrt{2\pi}} \int \frac{\phi^2}{\Phi} \sum_{b < b'} P(\text{the tie of } b \text{ and } b'
        \text{ is the row maximum})

    Only rows with two nearly equal largest entries still tell something, and each such pair is a
    one-dimensional problem; the variance of the difference cancels between its density at 0 and the width of
    the tie. Derived, checked by tests/channels/attention/test_attention_hardmax_many.py.
    """
    from scipy.special import log_ndtr, ndtr

    nodes, weights = gauss_legendre(200, -14.0, 14.0)
    sign_information = float(
        np.sum(weights * np.exp(-(nodes**2) - log_ndtr(nodes)))
    ) / (2 * math.pi)
    gaussian_weights = weights * np.exp(-(nodes**2) / 2) / math.sqrt(2 * math.pi)
    T = tokens
    diagonal_ties = (T - 1) * float(
        np.sum(gaussian_weights * ndtr(math.sqrt(2 / 3) * nodes) ** (T - 2))
    )
    off_diagonal_below = ndtr(math.sqrt(0.5) * nodes) ** (T - 3) * ndtr(0.5 * nodes)
    off_diagonal_ties = (
        (T - 1) * (T - 2) / 2 * float(np.sum(gaussian_weights * off_diagonal_below))
    )
    return (
        2
        * T
        / math.sqrt(2 * math.pi)
        * sign_information
        * (diagonal_ties + off_diagonal_ties)
    )


def information_curve(
    tokens: int, samples: int, q: Array, v: Array
) -> tuple[Array, Array]:
    """Information (N,) of hardmax attention at overlaps q and errors v, (N,), and its standard error, from polynomials in
    ``sqrt(v / (q + v))`` fitted to estimates at nodes, each from so many ``samples``; both are infinite at v = 0.
    """
    variance = q + v
    with np.errstate(divide="ignore", invalid="ignore"):
        root_error_fraction = np.sqrt(np.where(v > 0, v / variance, 1.0))
        information_scale = np.where(v > 0, 1 / np.sqrt(v * variance), np.inf)
    fitted_mean, fitted_error = _polynomials(tokens, samples)(root_error_fraction)
    return fitted_mean * information_scale, fitted_error * information_scale


@cache
def _polynomials(tokens: int, samples: int) -> ChebyshevFit:
    """Chebyshev polynomials in ``s = sqrt(V / (Q + V))`` for ``s (Q + V) information`` of T = ``tokens`` tokens, fitted to
    estimates at nodes of s, each from so many ``samples``, which are read where they are shipped.
    """
    shipped = json.loads(SHIPPED_ESTIMATES.read_text()).get(str(tokens), {})
    if shipped.get("samples") == samples:
        values = np.array(shipped["estimates"])
    else:
        values = np.stack(
            [node_estimates(tokens, samples, index) for index in range(NODES)]
        )
    standard_error = values.std(axis=1, ddof=1) / math.sqrt(SCRAMBLES)
    known = [0, NODES - 1] if tokens <= EXACT else [0]
    standard_error[known] = 1e-3 * standard_error[standard_error > 0].min()
    # The relative error that the degree leaves: ten times what is found for two and three tokens.
    return chebyshev_fit(lobatto_points(NODES), values, standard_error, DEGREE, 1e-4)


def node_estimates(tokens: int, samples: int, index: int) -> Array:
    """Estimates (SCRAMBLES,) of ``s (Q + V) information`` of T = ``tokens`` tokens at the node s of number ``index``, each from
    so many ``samples``; at the ends the value is known.
    """
    if index == 0:
        return np.full(SCRAMBLES, small_error_constant(tokens))
    if index == NODES - 1 and tokens <= EXACT:
        return np.full(SCRAMBLES, _without_overlap(tokens))
    node = lobatto_points(NODES)[index]
    estimates: Array = node * _sampled_information(tokens, node**2, samples, index)
    return estimates


def _without_overlap(tokens: int) -> float:
    """Information of T = ``tokens`` tokens without overlap, at the prior mean omega = 0 with V = 1, where the posterior depends
    on the label only: a sum over classes of labels that differ by a permutation of tokens.
    """
    labels, class_sizes = label_classes(tokens)
    omega = np.zeros((len(labels), tokens * (tokens + 1) // 2))
    posterior = row_posterior(
        labels,
        omega,
        np.asarray(1.0),
        tokens,
        window_half_width=9.0,
        panels_per_window=2,
    )
    return float(
        np.sum(
            class_sizes
            * np.exp(posterior.log_partition)
            * np.sum(posterior.shift**2, axis=1)
        )
    )


def _sampled_information(
    tokens: int, error_fraction: float, samples: int, random_stream: int
) -> Array:
    """Estimates (SCRAMBLES,) of the information of T tokens at ``V = error_fraction``, ``Q = 1 - V``, from so many ``samples`` of
    omega, z and labels y, drawn by the stream of number ``random_stream``, with control variates for near ties: a row's two
    largest logits by the estimate omega (``largest_two``), and whether the true z order them likewise (``order_sign``).

    Two control variates of known mean carry most of the noise at small x, that of labels which decide a near
    tie against the odds: for the two largest estimated entries of a row, at a distance of k standard
    deviations, ``(phi(k) / Phi(+-k))^2`` with the sign of the true difference, and its mean over that sign.
    """
    T = tokens
    C = T * (T + 1) // 2
    entry_deviations = np.array(site_scales(T))
    entry_to_site = np.array(entry_sites(T)).reshape(T, T)
    entry_variances = entry_deviations[entry_to_site] ** 2
    scramble_size = 1 << max(1, round(math.log2(max(2.0, samples / SCRAMBLES))))
    normal_numbers = normal_scrambles(
        2 * C, scramble_size, SCRAMBLES, "attention hardmax: curve", T, random_stream
    )
    omega = math.sqrt(1 - error_fraction) * normal_numbers[:, :C]
    z = omega + math.sqrt(error_fraction) * normal_numbers[:, C:]
    estimated_logits = (omega * entry_deviations)[:, entry_to_site]
    true_logits = (z * entry_deviations)[:, entry_to_site]
    y = true_logits.argmax(axis=2)
    if T <= EXACT:
        gradient_squares = np.sum(
            row_posterior(y, omega, np.asarray(error_fraction), T).shift ** 2, axis=1
        )
    else:
        gradient_squares = _gibbs_squares(
            y,
            omega,
            z,
            error_fraction,
            T,
            monte_carlo_rng("attention hardmax: Gibbs", T, random_stream),
        )
    if error_fraction == 1.0:  # no estimate, no ties
        return gradient_squares.reshape(SCRAMBLES, -1).mean(axis=1)
    largest_two = np.argsort(estimated_logits, axis=2)[:, :, -2:]
    estimated_gap, true_gap = (
        np.diff(np.take_along_axis(logits, largest_two, axis=2), axis=2)[:, :, 0]
        for logits in (estimated_logits, true_logits)
    )
    gap_variance = entry_variances[np.arange(T)[:, None], largest_two].sum(axis=2)
    gap_in_deviations = estimated_gap / np.sqrt(error_fraction * gap_variance)
    order_sign = np.where(true_gap > 0, 1, -1)
    control_variates = np.stack(
        [
            _hazard_square(order_sign * gap_in_deviations).sum(axis=1),
            _tie_information(gap_in_deviations).sum(axis=1),
        ]
    )
    control_variates = control_variates - T * _mean_tie_information(T, error_fraction)
    centered_controls = control_variates - control_variates.mean(axis=1, keepdims=True)
    regression_coefficients = np.linalg.lstsq(
        centered_controls.T, gradient_squares - gradient_squares.mean(), rcond=None
    )[0]
    return (gradient_squares - regression_coefficients @ control_variates).reshape(
        SCRAMBLES, -1
    ).mean(axis=1) / error_fraction


def _gibbs_squares(
    y: Array, omega: Array, z: Array, V: float, T: int, rng: np.random.Generator
) -> Array:
    """Unbiased estimates (n,) of ``V sum_c g_c^2``, g the score of a label y (n, T) at omega (n, C): products of the shifts of
    two Gibbs chains that start from the true latents z; ``T`` is the number of tokens.
    """
    chunks = blocks(len(y), max(1, (1 << 17) // (2 * T * T)))
    shifts = [
        chain_moments(
            y[chunk], omega[chunk], np.asarray(V), T,
            sweeps=8, burn_in=8, chains=2, rng=rng, start=z[chunk],
        ).shift
        for chunk in chunks
    ]  # fmt: skip
    return np.concatenate(
        [np.sum(chain_1 * chain_2, axis=1) for chain_1, chain_2 in shifts]
    )


def _hazard_square(margin: Array) -> Array:
    """Square of the normal hazard ``phi(k) / Phi(k)`` (density over distribution function) at the margin k of a label, a mean
    over its standard deviation.
    """
    from scipy.special import erfcx

    return (math.sqrt(2 / math.pi) / erfcx(-margin / math.sqrt(2))) ** 2


def _tie_information(margin: Array) -> Array:
    """Information ``phi(k)^2 / (Phi(k) Phi(-k))`` of the sign of a normal number whose mean is the margin k (in standard
    deviations), such as the difference of two nearly equal logits: the mean squared hazard.
    """
    from scipy.special import ndtr

    return (
        np.exp(-margin * margin)
        / (2 * math.pi)
        / np.maximum(ndtr(margin) * ndtr(-margin), 1e-300)
    )


def _mean_tie_information(tokens: int, V: float) -> float:
    """Mean of ``_tie_information``, the information of the sign of a difference, at the gap of the two largest entries of a row
    of T = ``tokens`` entries of omega ~ N(0, 1 - V), summed over pairs of entries (upper, lower), whose variances are 2 on the
    diagonal and 1 off it; ``distances`` are gaps in standard deviations, ``tail_nodes`` the lower entry's, given the gap.
    """
    from scipy.special import ndtr

    estimate_variance = 1 - V
    distances, distance_weights = gauss_legendre(96, 0.0, 20.0)  # distance
    tail_nodes, tail_weights = gauss_legendre(96, -9.0, 9.0)
    tail_weights = tail_weights * np.exp(-(tail_nodes**2) / 2) / math.sqrt(2 * math.pi)
    mean_information = 0.0
    off_diagonal_count = tokens - 1
    variance_cases = [
        (2.0, 1.0, off_diagonal_count),
        (1.0, 2.0, off_diagonal_count),
        (1.0, 1.0, off_diagonal_count * (tokens - 2)),
    ]
    # of two tokens a row has one entry off the diagonal, hence no pair of those
    for upper_variance, lower_variance, pair_count in variance_cases[:tokens]:
        total_variance = upper_variance + lower_variance
        scaled_gap = distances * math.sqrt(V * total_variance)
        gap_density = np.exp(
            -(scaled_gap**2) / (2 * estimate_variance * total_variance)
        ) * math.sqrt(V / (2 * math.pi * estimate_variance))
        # the lower of the two given the gap
        lower_value = (
            -scaled_gap[:, None] * lower_variance / total_variance
            + math.sqrt(
                estimate_variance * upper_variance * lower_variance / total_variance
            )
            * tail_nodes
        )
        lower_value = lower_value / math.sqrt(estimate_variance)
        others_below = ndtr(lower_value) ** (tokens - 2)
        if upper_variance == lower_variance:  # the diagonal is among the rest
            others_below = ndtr(lower_value) ** (tokens - 3) * ndtr(
                lower_value / math.sqrt(2)
            )
        mean_information += pair_count * float(
            np.sum(
                distance_weights
                * gap_density
                * _tie_information(distances)
                * (others_below @ tail_weights)
            )
        )
    return mean_information
