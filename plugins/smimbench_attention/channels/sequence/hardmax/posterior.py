r"""Posterior moments of the hardmax channel, by one integral over an interval for each of (at most) two groups of tokens.

A row of positive z_m points at the largest of all z, a row of negative z_m at the smallest. A label therefore splits the
tokens into (at most) two groups, each with a leader, and says, up to one overall sign: all of one group lie between zero and
their leader, above; all of the other between their leader and zero, below. Given that sign the groups are independent, and
given its leader's value a group is a set of truncated Gaussian variables. With unit variances,

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
from smimbench.numerics import gauss_legendre
from smimbench_attention.channels.batches import (
    array_like,
    blocks,
    identity_like,
    joined,
    put_tuple,
)

# Changes of the mean below are in units of sqrt(V).
NODES = 40
"""Nodes of the rule of a group. Doubled: twice the time; means change by 4e-10 at most."""
REACH = 7.5
"""Longest way from the mode to an end, in standard deviations; leaves out 1e-13. Doubled: coarser nodes, errors of 1e-5."""
DEPTH = 30.0
"""Fall of the logarithm of the integrand from the mode to the ends; leaves out 1e-13. Doubled: coarser nodes, errors of 3e-9."""


class TokenMoments(NamedTuple):
    """Moments of ``e = (z - omega) / sqrt(V)``: mean (n, M), mean square (n, M) and outer product (n, M, M) or None."""

    log_partition: Array
    shift: Array
    square: Array
    outer: Array | None = None


def posterior_moments(y: Array, a: Array, full: bool) -> TokenMoments:
    """Moments of ``z ~ N(a, I)`` given labels ``y`` (n, M); ``a`` (n, M), ``outer`` only if ``full``."""
    xp = namespace(a)
    # a million numbers in the largest temporary array
    block = max(1, (1 << 20) // (4 * NODES * a.shape[1]))
    return joined(
        [
            _block_moments(xp, y[rows, :], a[rows, :], full)
            for rows in blocks(a.shape[0], block)
        ]
    )


def _block_moments(xp: ModuleType, y: Array, a: Array, full: bool) -> TokenMoments:
    """Posterior moments of two groups of tokens of opposite sign, summed over which of them is positive."""
    n, M = a.shape
    place = xp.arange(M, dtype=y.dtype, device=array_api_compat.device(y))[None, :]
    leading = y == y[:, :1]
    second_leader = xp.max(
        xp.where(leading, xp.full_like(y, -1), y), axis=-1, keepdims=True
    )
    member = xp.concat([leading, leading, ~leading, ~leading])
    leader = xp.concat(
        [
            place == y[:, :1],
            place == y[:, :1],
            place == second_leader,
            place == second_leader,
        ]
    )
    # groups, overall signs, samples, tokens
    signs = array_like(np.array([[1.0, -1.0], [-1.0, 1.0]]), a)[..., None, None]
    moments = _group_moments(
        xp, xp.reshape(signs * a, (4 * n, M)), member, leader, full
    )
    log, shift, square = (xp.reshape(v, (2, 2, n, *v.shape[1:])) for v in moments[:3])
    logs = log[0, ...] + log[1, ...]
    log_partition = xp.logaddexp(logs[0, :], logs[1, :])
    weight = xp.exp(logs - log_partition)[..., None]
    shift_1 = signs[0, ...] * shift[0, ...]
    shift_2 = signs[1, ...] * shift[1, ...]
    outer = None
    if full:
        outer_1, outer_2 = (
            xp.reshape(moments.outer, (2, 2, n, M, M))[group, ...] for group in (0, 1)
        )
        mixed = shift_1[..., :, None] * shift_2[..., None, :]
        outer = xp.sum(
            weight[..., None]
            * (outer_1 + outer_2 + mixed + xp.matrix_transpose(mixed)),
            axis=0,
        )
    shift, square = (
        xp.sum(weight * total, axis=0)
        for total in (shift_1 + shift_2, square[0, ...] + square[1, ...])
    )
    return TokenMoments(log_partition, shift, square, outer)


def _group_moments(
    xp: ModuleType, a: Array, member: Array, leader: Array, full: bool
) -> TokenMoments:
    """Moments of one group of each sample, above zero: ``z ~ N(a, I)`` given ``0 < z_m < z_leader`` for other members.

    Tokens that are not of the group have zero moments.
    """
    count = xp.sum(xp.astype(member, xp.int64), axis=-1)
    top = xp.sum(xp.where(leader, a, 0.0), axis=-1)
    # a leader without followers only has to be positive
    log = special(xp).log_ndtr(top)
    hazard = xp.exp(_log_density(top) - log)
    square = xp.where(leader, 1 - (top * hazard)[:, None], 0.0)
    outer = square[:, :, None] * identity_like(a.shape[1], a) if full else None
    moments = TokenMoments(
        xp.where(count == 1, log, 0.0),
        xp.where(leader, hazard[:, None], 0.0),
        square,
        outer,
    )
    index = xp.nonzero(count > 1)[0]
    if index.shape[0] == 0:
        return moments
    group, members, leaders = (
        xp.take(array, index, axis=0) for array in (a, member, leader)
    )
    return put_tuple(
        moments, count > 1, _integrate_interval(xp, group, members, leaders, full)
    )


def _log_density(x: Array) -> Array:
    return -0.5 * math.log(2 * math.pi) - x * x / 2


def _truncated(xp: ModuleType, low: Array, high: Array) -> tuple[Array, Array, Array]:
    """Standard normal variable between ``low`` and ``high``: log-probability, and relative density at both ends."""
    # evaluated on the side where probabilities are small
    mirror = low + high > 0
    start = xp.where(mirror, -high, low)
    end = xp.where(mirror, -low, high)
    logs = special(xp).log_ndtr(xp.stack([start, end]))
    log_mass = logs[1, ...] + xp.log(
        -xp.expm1(clip(logs[0, ...] - logs[1, ...], None, -1e-300))
    )
    return (
        log_mass,
        xp.exp(_log_density(low) - log_mass),
        xp.exp(_log_density(high) - log_mass),
    )


def _leader_interval(
    xp: ModuleType, a: Array, member: Array, followers: Array, top: Array
) -> tuple[Array, Array]:
    """Ends of the relevant integration interval in t, (n,) each; ``top`` is the leader's mean."""

    def height(t: Array) -> tuple[Array, Array, Array]:
        """Logarithm of the integrand over the leader, its slope and curvature."""
        high = (top + t)[:, None] - a
        log_mass, _, at_high = _truncated(xp, -a, high)
        terms = (log_mass, at_high, at_high * (high + at_high))
        log, slope, bend = (
            xp.sum(xp.where(followers, term, 0.0), axis=-1) for term in terms
        )
        return log - t * t / 2, slope - t, -1 - bend

    floor = -top
    highest = xp.max(xp.where(member, clip(a, 0.0), 0.0), axis=-1)
    start = floor
    stop = highest - top + 10.0
    mode = clip(floor + 1e-3, 0.0)
    # Newton steps (safeguarded by bisection) to the mode
    for _ in range(16):
        _, slope, bend = height(mode)
        start = xp.where(slope > 0, mode, start)
        stop = xp.where(slope > 0, stop, mode)
        trial = mode - slope / bend
        mode = xp.where((trial > start) & (trial < stop), trial, (start + stop) / 2)
    lowest = height(mode)[0] - DEPTH
    # Newton steps from outside toward a given height of a concave function never overshoot
    end = mode + REACH
    for _ in range(5):
        value, slope, _ = height(end)
        step = (lowest - value) / clip(slope, None, -1e-300)
        end = xp.where(value < lowest, xp.maximum(end + step, mode), end)
    return xp.maximum(floor, mode - REACH), end


def _integrate_interval(
    xp: ModuleType, a: Array, member: Array, leader: Array, full: bool
) -> TokenMoments:
    """Moments of groups with followers, by Gauss-Legendre quadrature in ``t = z_leader - a_leader``."""
    followers = member & ~leader
    top = xp.sum(xp.where(leader, a, 0.0), axis=-1)
    begin, end = _leader_interval(xp, a, member, followers, top)
    x, w = (array_like(v, a)[None, :] for v in gauss_legendre(NODES))
    half = (end - begin)[:, None] / 2
    t = begin[:, None] + half * (1 + x)
    # samples, nodes, tokens
    followers = followers[:, None, :]
    leader = leader[:, None, :]
    low = -a[:, None, :]
    high = (top[:, None] + t)[:, :, None] - a[:, None, :]
    low = xp.broadcast_to(low, high.shape)
    log_mass, at_low, at_high = _truncated(xp, low, high)
    log = xp.sum(xp.where(followers, log_mass, 0.0), axis=-1) - t * t / 2
    best = xp.max(log, axis=-1)
    weight = w * half * xp.exp(log - best[:, None])
    mass = xp.sum(weight, axis=-1)
    weight = (weight / mass[:, None])[:, :, None]
    mean = xp.where(
        followers,
        clip(at_low - at_high, low, high),
        xp.where(leader, t[:, :, None], 0.0),
    )
    second = clip(
        1 + low * at_low - high * at_high, mean**2, xp.maximum(low**2, high**2)
    )
    second = xp.where(followers, second, xp.where(leader, (t * t)[:, :, None], 0.0))
    shift = xp.sum(weight * mean, axis=1)
    square = xp.sum(weight * second, axis=1)
    outer = None
    if full:
        identity = identity_like(a.shape[1], a)
        outer = (
            xp.matmul(xp.matrix_transpose(weight * mean), mean) * (1 - identity)
            + square[:, :, None] * identity
        )
    return TokenMoments(xp.log(mass) + best + _log_density(0.0), shift, square, outer)
