r"""Posterior of the latents of the sequence model's hardmax channel given one label, by one-dimensional integrals.

A row of positive z_m points at the largest of all z, a row of negative z_m at the smallest. A label therefore
splits the tokens into (at most) two groups, each with a leader, and says, up to one overall sign: all of one group lie between
zero and their leader, above; all of the other between their leader and zero, below. Given that sign the groups are independent,
and given its leader's value a group is a set of truncated Gaussian variables. With unit variances,

.. math::

    Z = \int_0^\infty dz\, N(z; \omega_1, 1) \prod_{m > 1} P(0 < z_m < z),

whose integrand is log-concave: Gauss-Legendre's rule between the two points where it has fallen by ``exp(-30)``, found by
Newton's method.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import NamedTuple

import array_api_compat
import numpy as np

from smimbench.backend import clip, namespace, special
from smimbench.interfaces import Array
from smimbench.numerics import gauss_legendre, outer_product
from smimbench_attention.channels.common import (
    array_like,
    blocks,
    concatenate_tuples,
    identity_like,
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
    """Moments of ``e = (z - omega) / sqrt(V)`` given n labels of M tokens: ``log_partition`` (n,) is the labels' log-probability,
    ``shift`` E[e] and ``square`` E[e^2], (n, M), ``outer`` E[e e^T] or None.
    """

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
    group, the two groups have opposite signs, and both choices of the positive one are summed over. Names in 1 and 2 are those of
    the first and the second group; the array axes before n are group and sign. ``xp`` is the array namespace.
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
    moment_of_pairs = None
    if second_moments:
        outer_1, outer_2 = (
            xp.reshape(moments.outer, (2, 2, n, M, M))[group, ...] for group in (0, 1)
        )
        cross_product = outer_product(shift_1, shift_2)
        moment_of_pairs = xp.sum(
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
    return TokenMoments(log_partition, shift, square, moment_of_pairs)


def _group_moments(
    xp: ModuleType,
    scaled_omega: Array,
    is_member: Array,
    is_leader: Array,
    second_moments: bool,
) -> TokenMoments:
    """Moments of one group of tokens of each sample, all above zero: ``z ~ N(scaled_omega, I)`` (n, M) given ``0 < z_m <
    z_leader`` for all other members. ``is_member`` and ``is_leader`` (n, M) are masks of the group's tokens and of its leader,
    whose value is the largest; groups of one token are in closed form, ``larger_groups`` integrated. ``xp`` is the array
    namespace.

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
    """Log-probability of a standard normal variable between ``low`` and ``high``, and its density, given that, at both ends;
    intervals above 0 are mirrored to below. ``xp`` is the array namespace.
    """
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
    """Ends (n,) of the interval of ``t = z_leader - leader_mean`` outside of which the integrand over a group's leader vanishes,
    for latents z ~ N(scaled_omega, I): its maximum, ``mode``, is bracketed, then the ends where it has fallen by ``LOG_DROP``.
    ``is_member`` and ``is_follower`` (n, M) are masks of the group's tokens and of those that are not its leader; ``xp`` is the
    array namespace.
    """

    def log_integrand(t: Array) -> tuple[Array, Array, Array]:
        """Logarithm (n,) of the integrand over the leader's value at ``leader_mean + t``, its slope and its curvature in t."""
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
    Gauss-Legendre quadrature in ``t = z_leader - leader_mean``; ``is_member`` and ``is_leader`` (n, M) are masks, ``xp`` is the
    array namespace. A follower lies between 0 and the leader, which ``lower_bounds`` and ``upper_bounds`` say less its mean.
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
    moment_of_pairs = None
    if second_moments:
        identity = identity_like(scaled_omega.shape[1], scaled_omega)
        moment_of_pairs = (
            xp.matmul(xp.matrix_transpose(node_weights * token_means), token_means)
            * (1 - identity)
            + square[:, :, None] * identity
        )
    return TokenMoments(
        xp.log(total_weight) + largest_log_integrand + _log_density(0.0),
        shift,
        square,
        moment_of_pairs,
    )
