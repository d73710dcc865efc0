r"""Posterior of the hardmax channel given one label, and the information of its labels: integrals and means over labels.

**Posterior.** A row of positive z_m points at the largest of all z, a row of negative z_m at the smallest. A label therefore
splits the tokens into (at most) two groups, each with a leader, and says, up to one overall sign: all of one group lie between
zero and their leader, above; all of the other between their leader and zero, below. Given that sign the groups are independent,
and given its leader's value a group is a set of truncated Gaussian variables. With unit variances,

.. math::

    Z = \int_0^\infty dz\, N(z; \omega_1, 1) \prod_{m > 1} P(0 < z_m < z),

whose integrand is log-concave: Gauss-Legendre's rule between the two points where it has fallen by ``exp(-30)``, found by
Newton's method.

**Information.** By integration for two tokens, by sampling for three, with limits at both ends.

For two tokens, in units of V, ``a = omega / sqrt(V)``, a label y is seen with the probability ``P_y(a)`` that ``z ~ N(a, I)``
lies in a wedge or in its mirror image: tokens of opposite sign are the second and the fourth quadrant, tokens of equal sign the
four wedges of 45 degrees between the axes and the diagonal. Then

.. math:: I = \frac1V \int d^2 a\, N(a; 0, Q / V) \sum_y \frac{|\nabla P_y|^2}{P_y},

and the integrand lives within a few units of the boundaries of the wedge. It is integrated in the distances from the two
boundaries, by Gauss-Legendre's rule in panels that double in length from there on.

For three tokens exact sums over labels are averaged over quasi-random means omega. Where V is small a label tells something
only near the planes on which labels change: a token changes its sign, or the two largest positive (or the two lowest negative)
tokens meet. Near a single such plane a label tells what the sign of one Gaussian variable does, which gives both the limit V ->
0 and control variates.
"""

from __future__ import annotations

import itertools
import math
from functools import cache
from types import ModuleType
from typing import NamedTuple

import array_api_compat
import numpy as np

from smimbench.backend import clip, namespace, special
from smimbench.interfaces import Array, Host
from smimbench.numerics import (
    ChebyshevFit,
    chebyshev_fit,
    gauss_legendre,
    lobatto_points,
    log_cdf,
    normal_points,
)
from smimbench_attention.channels.common import (
    array_like,
    blocks,
    concatenate_tuples,
    identity_like,
    normal_density,
    put_tuple,
)

# Changes of the mean below are in units of sqrt(V).
GROUP_NODES = 40
"""Nodes of the rule of a group. Doubled: twice the time; means change by 4e-10 at most."""
LARGEST_HALF_WIDTH = 7.5
"""Longest way from the mode to an end, in standard deviations; leaves out 1e-13. Doubled: coarser nodes, errors of 1e-5."""
LOG_DROP = 30.0
"""Fall of the logarithm of the integrand from the mode to the ends; leaves out 1e-13. Doubled: coarser nodes, errors of 3e-9."""


class TokenMoments(NamedTuple):
    """Moments of ``e = (z - omega) / sqrt(V)``: ``shift`` E[e] and ``square`` E[e^2], (n, M), ``outer`` E[e e^T] or None."""

    log_partition: Array
    shift: Array
    square: Array
    outer: Array | None = None


def posterior_moments(
    y: Array, scaled_omega: Array, second_moments: bool
) -> TokenMoments:
    """Posterior moments of ``z ~ N(scaled_omega, I)`` (n, M) given labels ``y`` (n, M); ``outer`` only if ``second_moments``."""
    xp = namespace(scaled_omega)
    # a million numbers in the largest temporary array
    block_size = max(1, (1 << 20) // (4 * GROUP_NODES * scaled_omega.shape[1]))
    return concatenate_tuples(
        [
            _block_moments(xp, y[rows, :], scaled_omega[rows, :], second_moments)
            for rows in blocks(scaled_omega.shape[0], block_size)
        ]
    )


def _block_moments(
    xp: ModuleType, y: Array, scaled_omega: Array, second_moments: bool
) -> TokenMoments:
    """Posterior moments of ``z ~ N(scaled_omega, I)`` (n, M) given labels y (n, M): tokens that point at the same leader are a
    group, the two groups have opposite signs, and both choices of the positive one are summed over.
    """
    n, M = scaled_omega.shape
    token_index = xp.arange(M, dtype=y.dtype, device=array_api_compat.device(y))[
        None, :
    ]
    is_in_first_group = y == y[:, :1]
    second_leader = xp.max(
        xp.where(is_in_first_group, xp.full_like(y, -1), y), axis=-1, keepdims=True
    )
    is_member = xp.concat(
        [is_in_first_group, is_in_first_group, ~is_in_first_group, ~is_in_first_group]
    )
    is_leader = xp.concat(
        [
            token_index == y[:, :1],
            token_index == y[:, :1],
            token_index == second_leader,
            token_index == second_leader,
        ]
    )
    # groups, overall signs, samples, tokens
    signs = array_like(np.array([[1.0, -1.0], [-1.0, 1.0]]), scaled_omega)[
        ..., None, None
    ]
    moments = _group_moments(
        xp,
        xp.reshape(signs * scaled_omega, (4 * n, M)),
        is_member,
        is_leader,
        second_moments,
    )
    log_masses, group_shifts, group_squares = (
        xp.reshape(moment, (2, 2, n, *moment.shape[1:])) for moment in moments[:3]
    )
    log_masses_by_sign = log_masses[0, ...] + log_masses[1, ...]
    log_partition = xp.logaddexp(log_masses_by_sign[0, :], log_masses_by_sign[1, :])
    sign_probability = xp.exp(log_masses_by_sign - log_partition)[..., None]
    shift_1 = signs[0, ...] * group_shifts[0, ...]
    shift_2 = signs[1, ...] * group_shifts[1, ...]
    outer_product = None
    if second_moments:
        outer_1, outer_2 = (
            xp.reshape(moments.outer, (2, 2, n, M, M))[group, ...] for group in (0, 1)
        )
        cross_product = shift_1[..., :, None] * shift_2[..., None, :]
        outer_product = xp.sum(
            sign_probability[..., None]
            * (outer_1 + outer_2 + cross_product + xp.matrix_transpose(cross_product)),
            axis=0,
        )
    shift, square = (
        xp.sum(sign_probability * sum_of_groups, axis=0)
        for sum_of_groups in (
            shift_1 + shift_2,
            group_squares[0, ...] + group_squares[1, ...],
        )
    )
    return TokenMoments(log_partition, shift, square, outer_product)


def _group_moments(
    xp: ModuleType,
    scaled_omega: Array,
    is_member: Array,
    is_leader: Array,
    second_moments: bool,
) -> TokenMoments:
    """Moments of one group of tokens of each sample, all above zero: ``z ~ N(scaled_omega, I)`` (n, M) given ``0 < z_m <
    z_leader`` for all other members. ``is_member`` and ``is_leader`` (n, M) are masks of the group's tokens and of its leader,
    whose value is the largest.

    Tokens that are not of the group have zero moments.
    """
    member_count = xp.sum(xp.astype(is_member, xp.int64), axis=-1)
    leader_mean = xp.sum(xp.where(is_leader, scaled_omega, 0.0), axis=-1)
    # a leader without followers only has to be positive
    log_probability = special(xp).log_ndtr(leader_mean)
    leader_hazard = xp.exp(_log_density(leader_mean) - log_probability)
    squares = xp.where(is_leader, 1 - (leader_mean * leader_hazard)[:, None], 0.0)
    outer = (
        squares[:, :, None] * identity_like(scaled_omega.shape[1], scaled_omega)
        if second_moments
        else None
    )
    moments = TokenMoments(
        xp.where(member_count == 1, log_probability, 0.0),
        xp.where(is_leader, leader_hazard[:, None], 0.0),
        squares,
        outer,
    )
    larger_groups = xp.nonzero(member_count > 1)[0]
    if larger_groups.shape[0] == 0:
        return moments
    group_means, group_members, group_leaders = (
        xp.take(array, larger_groups, axis=0)
        for array in (scaled_omega, is_member, is_leader)
    )
    return put_tuple(
        moments,
        member_count > 1,
        _integrate_interval(
            xp, group_means, group_members, group_leaders, second_moments
        ),
    )


def _log_density(x: Array) -> Array:
    """Logarithm of the standard normal density at x."""
    return -0.5 * math.log(2 * math.pi) - x * x / 2


def _truncated_normal(
    xp: ModuleType, low: Array, high: Array
) -> tuple[Array, Array, Array]:
    """Log-probability of a standard normal variable between ``low`` and ``high``, and its density, given that, at both ends."""
    # evaluated on the side where probabilities are small
    is_mirrored = low + high > 0
    mirrored_low = xp.where(is_mirrored, -high, low)
    mirrored_high = xp.where(is_mirrored, -low, high)
    log_cdfs = special(xp).log_ndtr(xp.stack([mirrored_low, mirrored_high]))
    log_probability = log_cdfs[1, ...] + xp.log(
        -xp.expm1(clip(log_cdfs[0, ...] - log_cdfs[1, ...], None, -1e-300))
    )
    return (
        log_probability,
        xp.exp(_log_density(low) - log_probability),
        xp.exp(_log_density(high) - log_probability),
    )


def _leader_interval(
    xp: ModuleType,
    scaled_omega: Array,
    is_member: Array,
    is_follower: Array,
    leader_mean: Array,
) -> tuple[Array, Array]:
    """Ends (n,) of the interval of ``t = z_leader - leader_mean`` outside of which the integrand over a group's leader vanishes;
    ``is_member`` and ``is_follower`` (n, M) are masks of the group's tokens and of those that are not its leader.
    """

    def log_integrand(t: Array) -> tuple[Array, Array, Array]:
        """Logarithm (n,) of the integrand over the leader at t, its slope and its curvature."""
        upper_bounds = (leader_mean + t)[:, None] - scaled_omega
        log_masses, _, density_at_high = _truncated_normal(
            xp, -scaled_omega, upper_bounds
        )
        token_terms = (
            log_masses,
            density_at_high,
            density_at_high * (upper_bounds + density_at_high),
        )
        log_probability, slope, curvature = (
            xp.sum(xp.where(is_follower, term, 0.0), axis=-1) for term in token_terms
        )
        return log_probability - t * t / 2, slope - t, -1 - curvature

    lower_limit = -leader_mean
    largest_mean = xp.max(xp.where(is_member, clip(scaled_omega, 0.0), 0.0), axis=-1)
    bracket_low = lower_limit
    bracket_high = largest_mean - leader_mean + 10.0
    mode = clip(lower_limit + 1e-3, 0.0)
    # Newton steps (safeguarded by bisection) to the mode
    for _ in range(16):
        _, slope, curvature = log_integrand(mode)
        bracket_low = xp.where(slope > 0, mode, bracket_low)
        bracket_high = xp.where(slope > 0, bracket_high, mode)
        newton_step = mode - slope / curvature
        mode = xp.where(
            (newton_step > bracket_low) & (newton_step < bracket_high),
            newton_step,
            (bracket_low + bracket_high) / 2,
        )
    least_log_integrand = log_integrand(mode)[0] - LOG_DROP
    # Newton steps from outside toward a given height of a concave function never overshoot
    upper_end = mode + LARGEST_HALF_WIDTH
    for _ in range(5):
        log_value, slope, _ = log_integrand(upper_end)
        newton_increment = (least_log_integrand - log_value) / clip(
            slope, None, -1e-300
        )
        upper_end = xp.where(
            log_value < least_log_integrand,
            xp.maximum(upper_end + newton_increment, mode),
            upper_end,
        )
    return xp.maximum(lower_limit, mode - LARGEST_HALF_WIDTH), upper_end


def _integrate_interval(
    xp: ModuleType,
    scaled_omega: Array,
    is_member: Array,
    is_leader: Array,
    second_moments: bool,
) -> TokenMoments:
    """Moments of groups of tokens above zero with followers, those members below the leader, for z ~ N(scaled_omega, I), by
    Gauss-Legendre quadrature in ``t = z_leader - leader_mean``; ``is_member`` and ``is_leader`` (n, M) are masks.
    """
    is_follower = is_member & ~is_leader
    leader_mean = xp.sum(xp.where(is_leader, scaled_omega, 0.0), axis=-1)
    lower_end, upper_end = _leader_interval(
        xp, scaled_omega, is_member, is_follower, leader_mean
    )
    nodes, weights = (
        array_like(array, scaled_omega)[None, :]
        for array in gauss_legendre(GROUP_NODES)
    )
    half_length = (upper_end - lower_end)[:, None] / 2
    t = lower_end[:, None] + half_length * (1 + nodes)
    # samples, nodes, tokens
    is_follower = is_follower[:, None, :]
    is_leader = is_leader[:, None, :]
    lower_bounds = -scaled_omega[:, None, :]
    upper_bounds = (leader_mean[:, None] + t)[:, :, None] - scaled_omega[:, None, :]
    lower_bounds = xp.broadcast_to(lower_bounds, upper_bounds.shape)
    log_masses, density_at_low, density_at_high = _truncated_normal(
        xp, lower_bounds, upper_bounds
    )
    log_integrand = xp.sum(xp.where(is_follower, log_masses, 0.0), axis=-1) - t * t / 2
    largest_log_integrand = xp.max(log_integrand, axis=-1)
    node_weights = (
        weights * half_length * xp.exp(log_integrand - largest_log_integrand[:, None])
    )
    total_weight = xp.sum(node_weights, axis=-1)
    node_weights = (node_weights / total_weight[:, None])[:, :, None]
    token_means = xp.where(
        is_follower,
        clip(density_at_low - density_at_high, lower_bounds, upper_bounds),
        xp.where(is_leader, t[:, :, None], 0.0),
    )
    token_squares = clip(
        1 + lower_bounds * density_at_low - upper_bounds * density_at_high,
        token_means**2,
        xp.maximum(lower_bounds**2, upper_bounds**2),
    )
    token_squares = xp.where(
        is_follower, token_squares, xp.where(is_leader, (t * t)[:, :, None], 0.0)
    )
    shift = xp.sum(node_weights * token_means, axis=1)
    square = xp.sum(node_weights * token_squares, axis=1)
    outer_product = None
    if second_moments:
        identity = identity_like(scaled_omega.shape[1], scaled_omega)
        outer_product = (
            xp.matmul(xp.matrix_transpose(node_weights * token_means), token_means)
            * (1 - identity)
            + square[:, :, None] * identity
        )
    return TokenMoments(
        xp.log(total_weight) + largest_log_integrand + _log_density(0.0),
        shift,
        square,
        outer_product,
    )


NORMAL_POINTS = 1 << 8
PLANE_POINTS = 1 << 6
"""Points omega of a scramble from the normal law, and from a slab around each plane on which labels change. Doubled: up to twice
the time, about half of the noise."""
CERTAIN_DISTANCE = 9.0
"""Distance from both boundaries, in units of sqrt(V), beyond which labels are certain to 1e-18. Doubled: no change."""


@cache
def all_labels(tokens: int) -> Host:
    """All possible labels (K, M): at most two tokens are pointed at, and each of these points at itself."""
    candidate_labels = itertools.product(range(tokens), repeat=tokens)
    return np.array(
        [
            label
            for label in candidate_labels
            if len(set(label)) <= 2 and all(label[token] == token for token in label)
        ]
    )


@cache
def susceptibility_without_overlap(tokens: int) -> float:
    """Susceptibility ``E sum_mk G_mk^2`` of M tokens at omega = 0 and V = 1, summed over labels y; ``G = E[z z^T | y] - I``."""
    if tokens == 2:
        return 12 / math.pi**2  # the mean of cos^2 and so on over the wedges
    labels = all_labels(tokens)
    moments = posterior_moments(labels, np.zeros(labels.shape), True)
    G = np.asarray(moments.outer) - np.eye(tokens)
    return float(np.exp(moments.log_partition) @ np.sum(G**2, axis=(1, 2)))


@cache
def small_error_limit(tokens: int) -> float:
    r"""Limit of ``sqrt(V (Q + V)) * information`` as V -> 0: a sum over the planes of latents on which labels change.

    .. math::

        \int \frac{\phi^2}{\Phi (1 - \Phi)} \; \frac{1}{\sqrt{2\pi}} \Big( M + M (M - 1) \int_0^\infty dv\, N(v; 0, 1/2)
        \Phi(v)^{M-2} \Big)

    Derived, checked by tests/channels/sequence/test_hardmax.py.
    """
    nodes, weights = gauss_legendre(200)
    sign_integral = 14 * float(np.sum(weights * _sign_information(14 * nodes)))
    return (
        sign_integral
        * (tokens + tokens * (tokens - 1) * _probability_pair_largest(tokens) / 2)
        / math.sqrt(2 * math.pi)
    )


@cache
def scaled_information(tokens: int) -> ChebyshevFit:
    """Polynomial in ``s = sqrt(V / (Q + V))`` for the scaled information ``sqrt(V (Q + V)) (Q + V) / Q * information``.

    Integrated for two tokens, else fitted to samples; both ends are exact.
    """
    limit_at_s_0 = small_error_limit(tokens)
    susceptibility = susceptibility_without_overlap(tokens)
    if tokens == 2:
        # degree of the polynomial; doubled: its error falls from 5e-10 to rounding
        degree = 32
        nodes = lobatto_points(degree + 1)
        exact_values = [
            limit_at_s_0,
            *(
                two_token_information(float(s)) * s / (1 - s * s) / s**2
                for s in nodes[1:-1]
            ),
            susceptibility,
        ]
        return ChebyshevFit(
            np.polynomial.chebyshev.chebfit(
                2 * nodes - 1, np.array(exact_values), degree
            )[:, None],
            2e-9,
        )
    nodes = lobatto_points(13)
    sampled_values = np.stack(
        [
            limit_at_s_0 + np.zeros(8),
            *(sampled_scaled_information(tokens, float(s)) for s in nodes[1:-1]),
            susceptibility + np.zeros(8),
        ]
    )
    return chebyshev_fit(
        nodes,
        sampled_values,
        np.maximum(sampled_values.std(axis=1, ddof=1), 1e-5),
        10,
        3e-4,
    )


def sampled_scaled_information(tokens: int, s: float) -> Host:
    """Estimates (8,), one per scramble, of the scaled information ``s / (1 - s^2) * information`` at ``V = s^2``, ``Q = 1 -
    s^2``, from samples of omega in slabs around the planes on which labels change, with control variates.

    Only omega is sampled: labels are summed with their probabilities. A part of the points lies in slabs around the planes on
    which labels change, and every point is weighted by the density of the mixture. What a label tells of one plane alone has a
    known mean and is a control variate.
    """
    q = 1.0 - s * s
    identity = np.eye(tokens)
    pairs = [(a, b) for b in range(tokens) for a in range(b)]
    planes = np.stack(
        [*identity, *((identity[a] - identity[b]) / math.sqrt(2) for a, b in pairs)]
    )
    noise_ratio = s / math.sqrt(q)
    # width of a slab: 1.5 times the width over which labels change
    slab_width = min(1.0, 1.5 * noise_ratio)
    plane_information = _mean_sign_information(noise_ratio)
    pair_information = plane_information * _probability_pair_largest(tokens)
    control_means = np.array(
        [1.0, *[plane_information] * len(planes), *[pair_information] * len(pairs)]
    )
    weighted_samples = []
    weighted_controls = []
    for scramble in range(8):
        # the names of the streams seed the points, so they must not change
        omega_points = [
            normal_points(tokens, NORMAL_POINTS, "sequence hardmax: base", scramble)
        ]
        for plane_index, plane in enumerate(planes):
            normal_numbers = normal_points(
                tokens, PLANE_POINTS, "sequence hardmax: layer", scramble, plane_index
            )
            omega_points.append(
                normal_numbers
                - (1 - slab_width) * np.outer(normal_numbers @ plane, plane)
            )
        omega = np.concatenate(omega_points)
        distances = omega @ planes.T
        density_ratio = (
            np.exp(-0.5 * distances**2 * (1 / slab_width**2 - 1)) / slab_width
        )
        point_weights = 1 / (NORMAL_POINTS + PLANE_POINTS * density_ratio.sum(axis=1))
        plane_controls = _sign_information(distances / noise_ratio)
        pair_controls = np.stack(
            [_is_pair_largest(omega, a, b) for a, b in pairs], axis=1
        )
        control_variates = np.concatenate(
            [
                np.ones((len(omega), 1)),
                plane_controls,
                plane_controls[:, tokens:] * pair_controls,
            ],
            axis=1,
        )
        squared_gradients = np.zeros(len(omega))
        for label in all_labels(tokens):
            # skipping less likely labels changes the sum by 4e-12
            likely_points = np.flatnonzero(
                _probability_bound(label, omega / noise_ratio) > 1e-12
            )
            moments = posterior_moments(
                np.broadcast_to(label, (len(likely_points), tokens)),
                omega[likely_points] / noise_ratio,
                False,
            )
            squared_gradients[likely_points] += np.exp(moments.log_partition) * np.sum(
                moments.shift**2, axis=1
            )
        weighted_samples.append(point_weights * squared_gradients)
        weighted_controls.append(point_weights[:, None] * control_variates)
    estimates = []
    for scramble, (scramble_samples, scramble_controls) in enumerate(
        zip(weighted_samples, weighted_controls)
    ):
        # Regress on the other scrambles only: a fit to these points would bias the mean.
        other_controls, other_samples = (
            np.concatenate(by_scramble[:scramble] + by_scramble[scramble + 1 :])
            for by_scramble in (weighted_controls, weighted_samples)
        )
        regression_coefficients = np.linalg.lstsq(
            other_controls, other_samples, rcond=1e-10
        )[0]
        estimates.append(
            float(
                (scramble_samples - scramble_controls @ regression_coefficients).sum()
                + control_means @ regression_coefficients
            )
            / (s * q)
        )
    return np.array(estimates)


def _probability_bound(label: Host, scaled_omega: Host) -> Host:
    """Upper bound (n,) on the probability of ``label`` (M,) at means ``scaled_omega`` (n, M): of its least likely inequality."""
    same_group_sign = np.where(label == label[0], 1.0, -1.0)
    leader_margin = (scaled_omega[:, label] - scaled_omega) / math.sqrt(2)
    is_follower = label != np.arange(len(label))
    ndtr = special(np).ndtr
    bound_by_sign = [
        np.minimum(
            ndtr(sign * scaled_omega),
            np.where(is_follower, ndtr(sign * leader_margin), 1.0),
        ).min(axis=1)
        for sign in (same_group_sign, -same_group_sign)
    ]
    return np.asarray(sum(bound_by_sign))


def _sign_information(margin: Host) -> Host:
    """Mean square of g if only the sign of ``z ~ N(margin, 1)`` is seen: ``phi^2 / (Phi (1 - Phi))`` at the margin."""
    log_ndtr = special(np).log_ndtr
    return np.asarray(
        np.exp(-margin * margin - log_ndtr(margin) - log_ndtr(-margin)) / (2 * math.pi)
    )


def _mean_sign_information(ratio: float) -> float:
    """Mean of ``_sign_information(x / ratio)``, the information of a sign, over a standard normal x."""
    nodes, weights = gauss_legendre(200)
    largest_x = min(10.0, 14.0 * ratio)
    density = normal_density(largest_x * nodes)
    return float(
        np.sum(
            largest_x * weights * density * _sign_information(largest_x * nodes / ratio)
        )
    )


def _is_pair_largest(omega: Host, a: int, b: int) -> Host:
    """Indicator (n,) that the mean of omega of tokens a and b is positive and above all others, or negative and below them."""
    pair_mean = (omega[:, a] + omega[:, b]) / 2
    other_tokens = np.delete(omega, [a, b], axis=1) * np.sign(pair_mean)[:, None]
    return np.asarray(
        (other_tokens < np.abs(pair_mean)[:, None]).all(axis=1), dtype=float
    )


def _probability_pair_largest(tokens: int) -> float:
    """Probability that two equal ones, a and b, of so many ``tokens`` of standard normal omega are the largest in size."""
    nodes, weights = gauss_legendre(200)
    scaled_nodes = 4 * (nodes + 1)
    return (
        8
        * float(
            np.sum(
                weights
                * np.exp(-(scaled_nodes**2))
                * special(np).ndtr(scaled_nodes) ** (tokens - 2)
            )
        )
        / math.sqrt(math.pi)
    )


def two_token_information(s: float) -> float:
    """Information ``V I`` of two tokens at ``s = sqrt(V / (Q + V))``, over distances of omega from two boundaries."""
    omega_deviation = math.sqrt(1 - s * s) / s
    positive_rule = _positive_omega_rule(omega_deviation)
    full_rule = [
        np.concatenate([-positive_rule[0][::-1], positive_rule[0]]),
        np.concatenate([positive_rule[1][::-1], positive_rule[1]]),
    ]
    first_distance, second_distance = (
        coordinate.ravel()
        for coordinate in np.meshgrid(full_rule[0], positive_rule[0], indexing="ij")
    )
    weights = np.outer(full_rule[1], positive_rule[1]).ravel()
    is_uncertain = (
        np.minimum(np.abs(first_distance), np.abs(second_distance)) < CERTAIN_DISTANCE
    )
    first_distance = first_distance[is_uncertain]
    second_distance = second_distance[is_uncertain]
    weights = weights[is_uncertain]

    def fisher_information(
        squared_omega: Host, probability: Host, squared_gradient: Host
    ) -> float:
        """Mean over omega of a label's ``squared_gradient`` over its ``probability``; ``squared_omega`` is |omega|^2 / V."""
        # |a|^2, and the squared length of the gradient of the probability
        density = np.exp(-squared_omega / (2 * omega_deviation**2)) / (
            2 * math.pi * omega_deviation**2
        )
        return float(
            np.sum(
                weights
                * density
                * squared_gradient
                / np.maximum(probability, np.finfo(float).tiny)
            )
        )

    # h and k > 0 cover half of the plane; the other half is its mirror image, which labels cannot distinguish.
    return 2 * fisher_information(
        *_opposite_sign_label(first_distance, second_distance)
    ) + 4 * math.sqrt(2) * fisher_information(
        *_equal_sign_label(first_distance, second_distance)
    )


def _positive_omega_rule(deviation: float) -> tuple[Host, Host]:
    """Quadrature nodes and weights for positive omega of the law ``N(0, deviation^2)``, in panels that double in length."""
    panel_edges = [0.0, min(1.0, deviation)]
    while panel_edges[-1] < CERTAIN_DISTANCE * deviation:
        panel_edges.append(2 * panel_edges[-1])
    # nodes of a panel
    nodes, weights = gauss_legendre(12, 0.0, 1.0)
    panel_lengths = np.diff(panel_edges)[:, None]
    return (np.array(panel_edges)[:-1, None] + panel_lengths * nodes).ravel(), (
        panel_lengths * weights
    ).ravel()


def _opposite_sign_label(h: Host, k: Host) -> tuple[Host, Host, Host]:
    """Square ``|a|^2`` of scaled means a = (h, k), probability that two tokens have opposite signs, and its squared gradient."""
    omega = np.stack([h, k])
    probability_positive = special(np).ndtr(omega)
    probability_negative = special(np).ndtr(-omega)
    gradient = (
        normal_density(omega) * (probability_negative - probability_positive)[::-1]
    )
    return (
        h**2 + k**2,
        probability_positive[0] * probability_negative[1]
        + probability_negative[0] * probability_positive[1],
        gradient[0] ** 2 + gradient[1] ** 2,
    )


def _equal_sign_label(h: Host, k: Host) -> tuple[Host, Host, Host]:
    """Square ``|a|^2`` of scaled means a, probability that two tokens have equal signs and the first is further out, and its
    squared gradient, at the distances ``h = a_2`` and ``k = (a_1 - a_2) / sqrt(2)`` from the boundaries of that label.
    """
    root_2 = math.sqrt(2)
    log_above = log_cdf(h, k, -1 / root_2)
    log_below = log_cdf(-h, -k, -1 / root_2)
    probability_above = np.exp(log_above.value)
    probability_below = np.exp(log_below.value)
    gradient_h, gradient_k = (
        probability_above * slope_above - probability_below * slope_below
        for slope_above, slope_below in zip(log_above[1:3], log_below[1:3])
    )
    return (
        (h + root_2 * k) ** 2 + h**2,
        probability_above + probability_below,
        (gradient_k / root_2) ** 2 + (gradient_h - gradient_k / root_2) ** 2,
    )
