r"""Posterior moments of the hardmax channel: one integral over an interval for each of (at most) two groups of tokens.

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
from typing import TYPE_CHECKING, NamedTuple

import array_api_compat

from smimbench.backend import clip, namespace, special
from smimbench.numerics import gauss_legendre
from smimbench_channels.batches import array_like, blocks, identity_like, joined, put_tuple

if TYPE_CHECKING:
    from types import ModuleType

    from smimbench.interfaces import Array

__all__ = ["Moments", "posterior_moments"]

# Changes of the mean below are in units of sqrt(V).
NODES = 40
"""Nodes of the rule of a group. Doubled: twice the time; means change by 4e-10 at most."""
REACH = 7.5
"""Longest way from the mode to an end, in standard deviations; leaves out 1e-13. Doubled: coarser nodes, errors of 1e-5."""
DEPTH = 30.0
"""Fall of the logarithm of the integrand from the mode to the ends; leaves out 1e-13. Doubled: coarser nodes, errors of 3e-9."""

_LOG_DENSITY = -0.5 * math.log(2 * math.pi)


class Moments(NamedTuple):
    """``e = (z - omega) / sqrt(V)``: its mean (n, M), mean square (n, M) and outer product (n, M, M) or None."""

    log_partition: Array
    shift: Array
    square: Array
    outer: Array | None


def posterior_moments(y: Array, a: Array, full: bool) -> Moments:
    """Moments of ``z ~ N(a, I)`` given labels ``y`` (n, M); ``a`` (n, M), ``outer`` only if ``full``."""
    xp = namespace(a)
    # numbers in the largest temporary array
    block = max(1, (1 << 20) // (4 * NODES * a.shape[1]))
    return joined([_block_moments(xp, y[rows, :], a[rows, :], full) for rows in blocks(a.shape[0], block)])


def _block_moments(xp: ModuleType, y: Array, a: Array, full: bool) -> Moments:
    """Sum over the overall sign: the first group above zero and the second below, or the other way round."""
    n, M = a.shape
    place = xp.arange(M, dtype=y.dtype, device=array_api_compat.device(y))[None, :]
    first = y == y[:, :1]
    other = xp.max(xp.where(first, xp.full_like(y, -1), y), axis=-1, keepdims=True)
    member = xp.concat([first, first, ~first, ~first])
    leader = xp.concat([place == y[:, :1], place == y[:, :1], place == other, place == other])
    # the first group above and below zero, then the second
    signs = [1.0, -1.0, -1.0, 1.0]
    found = _group_moments(xp, xp.concat([sign * a for sign in signs]), member, leader, full)
    parts = [Moments(*(None if v is None else v[k * n : (k + 1) * n, ...] for v in found)) for k in range(4)]
    logs = [parts[0].log_partition + parts[2].log_partition, parts[1].log_partition + parts[3].log_partition]
    log_partition = xp.logaddexp(*logs)
    shift, square, outer = xp.zeros_like(a), xp.zeros_like(a), None
    for k, log in enumerate(logs):
        weight = xp.exp(log - log_partition)[:, None]
        own, rest = (signs[j] * parts[j].shift for j in (k, k + 2))
        shift = shift + weight * (own + rest)
        square = square + weight * (parts[k].square + parts[k + 2].square)
        one, two = parts[k].outer, parts[k + 2].outer
        if one is not None and two is not None:
            mixed = own[:, :, None] * rest[:, None, :]
            term = weight[:, :, None] * (one + two + mixed + xp.matrix_transpose(mixed))
            outer = term if outer is None else outer + term
    return Moments(log_partition, shift, square, outer)


def _group_moments(xp: ModuleType, a: Array, member: Array, leader: Array, full: bool) -> Moments:
    """One group of each sample, above zero: moments of ``z ~ N(a, I)`` given ``0 < z_m < z_leader`` for the other members.

    Tokens that are not of the group have zero moments.
    """
    count = xp.sum(xp.astype(member, xp.int64), axis=-1)
    zero = xp.zeros_like(a)
    top = xp.sum(xp.where(leader, a, zero), axis=-1)
    # alone, a leader only has to be positive
    log = special(xp).log_ndtr(top)
    hazard = xp.exp(_LOG_DENSITY - top * top / 2 - log)
    alone = count == 1
    shift = xp.where(leader, hazard[:, None], zero)
    square = xp.where(leader, 1 - (top * hazard)[:, None], zero)
    log = xp.where(alone, log, xp.zeros_like(log))
    outer = None
    if full:
        same = identity_like(a.shape[1], a)
        outer = square[:, :, None] * same
    index = xp.nonzero(count > 1)[0]
    if index.shape[0] == 0:
        return Moments(log, shift, square, outer)
    found = _integrate_interval(
        xp, xp.take(a, index, axis=0), xp.take(member, index, axis=0), xp.take(leader, index, axis=0), full
    )
    return put_tuple(Moments(log, shift, square, outer), count > 1, found)


class _Truncated(NamedTuple):
    """A standard normal variable between ``low`` and ``high``: log-probability, and density over it at both ends."""

    log_mass: Array
    at_low: Array
    at_high: Array


def _truncated(xp: ModuleType, low: Array, high: Array) -> _Truncated:
    # on the side where probabilities are small
    mirror = low + high > 0
    one, two = xp.where(mirror, -high, low), xp.where(mirror, -low, high)
    logs = special(xp).log_ndtr(xp.stack([one, two]))
    gap = xp.minimum(logs[0, ...] - logs[1, ...], xp.full_like(one, -1e-300))
    log_mass = logs[1, ...] + xp.log(-xp.expm1(gap))
    at_low, at_high = (xp.exp(_LOG_DENSITY - x * x / 2 - log_mass) for x in (low, high))
    return _Truncated(log_mass, at_low, at_high)


def _leader_interval(xp: ModuleType, a: Array, member: Array, followers: Array, top: Array) -> tuple[Array, Array]:
    """Ends in t of what counts of the integrals, (n,) each; ``top`` is the mean of the leader."""
    zero = xp.zeros_like(a)

    def height(t: Array) -> tuple[Array, Array, Array]:
        """Logarithm of the integrand, its slope and curvature."""
        high = (top + t)[:, None] - a
        at = _truncated(xp, -a, high)
        slope = xp.sum(xp.where(followers, at.at_high, zero), axis=-1) - t
        bend = -1 - xp.sum(xp.where(followers, at.at_high * (high + at.at_high), zero), axis=-1)
        return xp.sum(xp.where(followers, at.log_mass, zero), axis=-1) - t * t / 2, slope, bend

    floor = -top
    most = xp.max(xp.where(member, xp.maximum(a, zero), zero), axis=-1)
    left, right = floor, most - top + 10.0
    mode = xp.maximum(xp.zeros_like(top), floor + 1e-3)
    # Newton steps (safeguarded by bisection) to the mode
    for _ in range(16):
        _, slope, bend = height(mode)
        left, right = xp.where(slope > 0, mode, left), xp.where(slope > 0, right, mode)
        trial = mode - slope / bend
        mode = xp.where((trial > left) & (trial < right), trial, (left + right) / 2)
    best = height(mode)[0]
    # from outside, Newton's steps towards a given height of a concave function never pass it
    end = mode + REACH
    # Newton steps to the upper end
    for _ in range(5):
        value, slope, _ = height(end)
        step = (best - DEPTH - value) / xp.minimum(slope, xp.full_like(slope, -1e-300))
        end = xp.where(value < best - DEPTH, xp.maximum(end + step, mode), end)
    return xp.maximum(floor, mode - REACH), end


def _integrate_interval(xp: ModuleType, a: Array, member: Array, leader: Array, full: bool) -> Moments:
    """``_group_moments`` of groups with followers: Gauss-Legendre's rule in ``t = z_leader - a_leader``."""
    followers = member & ~leader
    top = xp.sum(xp.where(leader, a, xp.zeros_like(a)), axis=-1)
    begin, end = _leader_interval(xp, a, member, followers, top)
    x, w = (array_like(v, a)[None, :] for v in gauss_legendre(NODES))
    half = (end - begin)[:, None] / 2
    t = begin[:, None] + half * (1 + x)
    high = (top[:, None] + t)[:, :, None] - a[:, None, :]
    below = xp.broadcast_to(-a[:, None, :], high.shape)
    at = _truncated(xp, below, high)
    masked = xp.broadcast_to(followers[:, None, :], high.shape)
    nothing = xp.zeros_like(high)
    log = xp.sum(xp.where(masked, at.log_mass, nothing), axis=-1) - t * t / 2
    best = xp.max(log, axis=-1)
    weight = w * half * xp.exp(log - best[:, None])
    mass = xp.sum(weight, axis=-1)
    weight = (weight / mass[:, None])[:, :, None]
    lead = xp.broadcast_to(leader[:, None, :], high.shape)
    mean = xp.where(masked, clip(at.at_low - at.at_high, below, high), nothing)
    mean = xp.where(lead, t[:, :, None], mean)
    ends = xp.maximum(below**2, high**2)
    second = xp.where(masked, clip(1 + below * at.at_low - high * at.at_high, mean**2, ends), nothing)
    second = xp.where(lead, (t * t)[:, :, None], second)
    shift, square = xp.sum(weight * mean, axis=1), xp.sum(weight * second, axis=1)
    outer = None
    if full:
        outer = xp.matmul(xp.matrix_transpose(weight * mean), mean)
        same = identity_like(a.shape[1], a)
        outer = outer * (1 - same) + square[:, :, None] * same
    return Moments(xp.log(mass) + best + _LOG_DENSITY, shift, square, outer)
