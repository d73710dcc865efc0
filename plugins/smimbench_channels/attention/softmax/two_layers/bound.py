"""An upper bound of the weight of two-layer attention in a rectangle, which tells where nothing need be integrated."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from smimbench.backend import clip
from smimbench_channels.attention.softmax.two_layers.weight import ROOT2, TINY, Samples, Weight, logistic, ridge

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from smimbench.interfaces import Array

__all__ = ["ends", "least_of", "most_of", "upper_bound"]


def upper_bound(xp: ModuleType, weight: Weight, least: Array, own: Samples, cells: Array) -> tuple[Array, list[Array]]:
    """Upper bound of the log-weight in the rectangles ``cells`` (N, 4), and how much a_2 makes it vary there.

    The bound holds where the log-weight exceeds ``least``, and what is below counts as equally small. The
    variation, along either axis, is that of the power of s and of the Gaussian of a_2.

    In a cell p and r are monotone in both coordinates; s rises with the first and, along the second, has its
    extremes at the ends or where v is nearest to 0. The label fixes a_2 as a multiple of ``1 / s^2``, and the
    weight is unimodal in that number; the range of s that is left, with that of p, bounds b_2.
    """
    c = weight.skip
    unit_t, unit_v = weight.units
    low, high = cells[:, :2] - cells[:, 2:], cells[:, :2] + cells[:, 2:]
    edges = ends(xp, own.v + unit_v * low[:, 1], own.v + unit_v * high[:, 1])
    bends = [ridge(xp, own.ridge, v) for v in edges]
    floor = [unit_t * low[:, 0] + g for g in bends]
    ceiling = [unit_t * high[:, 0] + g for g in bends]
    t_low, t_high = least_of(xp, floor), most_of(xp, ceiling)
    below, upper = (
        [(logistic(xp, t + v / 2), logistic(xp, t - v / 2)) for t, v in zip(side, edges, strict=True)]
        for side in (floor, ceiling)
    )
    p_low, p_high, r_low, r_high = below[0][0], upper[1][0], below[1][1], upper[0][1]
    s_below, s_upper = ([p + r + (c - 1) for p, r in side] for side in (below, upper))
    s_low, s_high = least_of(xp, s_below), most_of(xp, s_upper)
    far_a = clip(xp.maximum(t_low - own.t, own.t - t_high), 0.0, None) / unit_t
    far_b = clip(xp.maximum(low[:, 1], -high[:, 1]), 0.0, None)
    prior = -(far_a * far_a + far_b * far_b) / 2
    crossing, negative = (s_low < 0) & (s_high > 0), s_high <= 0
    largest = xp.maximum(xp.abs(s_low), xp.abs(s_high))
    smallest = xp.where(crossing, 0.0, xp.minimum(xp.abs(s_low), xp.abs(s_high)))
    q_low, q_high = (1 / clip(v, TINY, None) ** 2 for v in (largest, smallest))
    size = clip(xp.abs(own.slope), TINY, None)
    sign = xp.where(own.slope < 0, -xp.ones_like(own.slope), 1.0)
    lift = weight.lift
    slack = abs(lift) * xp.maximum((t_high - t_low) / (2 * unit_t), cells[:, 3])
    target = sign * (own.a2 + lift * ((t_low + t_high) / 2 - own.t) / unit_t)
    best = (target + slack + xp.sqrt((target + slack) ** 2 + 6 * weight.second)) / (2 * size)

    def level(q: Array) -> Array:
        gap = clip(xp.abs(size * q - target) - slack, 0.0, None)
        return 1.5 * xp.log(q) - gap * gap / (2 * weight.second)

    first = level(xp.minimum(xp.maximum(best, q_low), q_high))
    swing = _swing_in_rectangle(xp, s_below, s_upper, level, best, least - prior)
    # how far a_2 may be off without putting the weight below the least by itself
    spare = clip(prior + 1.5 * xp.log(q_high) - least, 0.0, None)
    room = slack + xp.sqrt(2 * weight.second * spare)
    q_high = xp.maximum(xp.minimum(q_high, (target + room) / size), q_low)
    q_low = xp.minimum(xp.maximum(q_low, (target - room) / size), q_high)
    fast, slow = xp.sqrt(q_high), xp.sqrt(q_low)
    inverse = (xp.where(crossing | negative, -fast, slow), xp.where(negative, -slow, fast))
    # p = s - r + 1 - c narrows p, where s is known better than t
    s_low = xp.where(crossing, s_low, 1 / xp.where(crossing, 1.0, inverse[1])) + (1 - c)
    s_high = xp.where(crossing, s_high, 1 / xp.where(crossing, 1.0, inverse[0])) + (1 - c)
    p_low, p_high = xp.maximum(p_low, s_low - r_high), xp.minimum(p_high, s_high - r_low)
    k = ROOT2 * (2 * p_low + (c - 1)), ROOT2 * (2 * xp.maximum(p_low, p_high) + (c - 1))
    one = _product(xp, inverse, (own.margin, own.margin))
    two = _product(xp, _product(xp, (q_low, q_high), (own.slope, own.slope)), k)
    aim = (1 + c) * (own.b2 + lift * cells[:, 1])
    miss = xp.maximum(one[0] - two[1] - aim, aim - one[1] + two[0]) / (1 + c)
    miss = clip(miss - slack, 0.0, None)
    return prior + first - miss * miss / (2 * weight.second), swing


def ends(xp: ModuleType, low: Array, high: Array) -> list[Array]:
    """The ends of an interval and its point nearest to 0."""
    return [low, high, xp.where((low < 0) & (high > 0), 0.0, xp.where(low >= 0, low, high))]


def least_of(xp: ModuleType, values: list[Array]) -> Array:
    """Entry by entry the smallest of several arrays."""
    return reduce(xp.minimum, values)


def most_of(xp: ModuleType, values: list[Array]) -> Array:
    """Entry by entry the largest of several arrays."""
    return reduce(xp.maximum, values)


def _swing_in_rectangle(
    xp: ModuleType, below: list[Array], upper: list[Array], level: Callable[[Array], Array], best: Array, least: Array
) -> list[Array]:
    """Variation along either axis of ``level(1/s^2)`` above ``least``; the function has one maximum, at ``best``.

    It is computed and not probed, because where s changes its sign the weight vanishes on a curve between two maxima.
    """

    def variation(values: list[Array]) -> Array:
        sizes = [xp.abs(v) for v in values]
        changes = (least_of(xp, values) <= 0) & (most_of(xp, values) >= 0)
        smallest = xp.where(changes, 0.0, least_of(xp, sizes))
        q_low, q_high = (1 / clip(v, TINY, None) ** 2 for v in (most_of(xp, sizes), smallest))
        highest = level(xp.minimum(xp.maximum(best, q_low), q_high))
        lowest = xp.minimum(level(q_low), level(q_high))
        return clip(highest - xp.maximum(lowest, least), 0.0, None)

    first = most_of(xp, [variation([b, u]) for b, u in zip(below, upper, strict=True)])
    return [first, xp.maximum(variation(below), variation(upper))]


def _product(xp: ModuleType, first: tuple[Array, Array], second: tuple[Array, Array]) -> tuple[Array, Array]:
    """Range of the product of two numbers of given ranges."""
    corners = [a * b for a in first for b in second]
    return least_of(xp, corners), most_of(xp, corners)
