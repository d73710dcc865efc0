"""Integrals of the weight of two-layer attention over rectangular cells, halved until the weight hardly varies in each."""

from __future__ import annotations

import math
from functools import reduce
from typing import TYPE_CHECKING

import array_api_compat
import numpy as np

from smimbench.backend import clip
from smimbench.numerics import gauss_legendre
from smimbench_channels.attention.softmax.gaussian import nearly_gaussian, samples_of
from smimbench_channels.attention.softmax.weight import (
    ACCURACY,
    FAR,
    ROOT2,
    TINY,
    Samples,
    Sums,
    Weight,
    logistic,
    moments,
    ridge,
)
from smimbench_channels.batches import blocks, joined, put_tuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from smimbench.interfaces import Array

__all__ = ["ends", "integrals", "least_of", "most_of", "upper_bound"]


def integrals(
    xp: ModuleType, weight: Weight, margins: Array, centre: Array, *, variation: float | None = None, quick: bool = True
) -> Sums:
    """Integrals over (a_1, b_1) of samples with these margins (n, 2) and prior means (n, 4).

    ``variation`` is the largest of the log-weight in a cell; default: that of ``ACCURACY``. ``quick`` says whether the
    Gaussian rule may be tried.
    """
    variation = ACCURACY.variation if variation is None else variation
    # On a host some dozens of cells of each sample stay in the cache.
    size = 128 if array_api_compat.is_numpy_namespace(xp) else 1 << 14
    n = margins.shape[0]
    if n == 0:
        place = {"dtype": xp.float64, "device": array_api_compat.device(margins)}
        return Sums(*(xp.zeros(shape, **place) for shape in ((0,), (0, 4), (0, 4, 4), (0,))))
    parts = [
        _integrals_of_block(xp, weight, margins[part, :], centre[part, :], variation, quick=quick)
        for part in blocks(n, size)
    ]
    return joined(parts)


def _integrals_of_block(
    xp: ModuleType, weight: Weight, margins: Array, centre: Array, variation: float, *, quick: bool
) -> Sums:
    samples = samples_of(xp, weight, margins, centre)
    # Where the first layer is wide, the Gauss-Hermite rule, which is blind to second peaks, seldom passes.
    if not quick or weight.beta**2 * weight.first > 0.2:
        return _adaptive_integrals(xp, weight, samples, variation)
    found, good = nearly_gaussian(xp, weight, samples)
    where = xp.nonzero(~good)[0]
    if where.shape[0] == 0:
        return found
    slow = _adaptive_integrals(xp, weight, samples.taken(xp, where), variation)
    return put_tuple(found, ~good, slow)


def _adaptive_integrals(xp: ModuleType, weight: Weight, samples: Samples, variation: float) -> Sums:
    """Integrals (n,) over cells in which the log-weight varies by no more than ``variation`` along either axis.

    A cell is a rectangle ``(centre, centre, half-width, half-width)``; all samples are refined at once, and the cells
    (N, 4) are sorted by the sample that owns them.
    """
    n, device = samples.t.shape[0], array_api_compat.device(samples.t)
    place = {"dtype": xp.float64, "device": device}
    cells = _root_cells(xp, weight, samples)
    owner = xp.repeat(xp.arange(n, device=device), ACCURACY.root_cells**2)
    probe = xp.asarray((-1.0, -0.4, 0.4, 1.0), **place)
    x, rule = (xp.asarray(v, **place) for v in gauss_legendre(ACCURACY.nodes))
    top = xp.full((n,), -math.inf, **place)
    sums, rough = xp.zeros((n, 15), **place), xp.zeros((n,), **place)
    for depth in range(80):  # a cell of relative size 2^-40 holds nothing
        own = samples.taken(xp, owner)
        # no more than exp(-negligible) of what has been found, or of a peak a sixteenth as wide as a cell
        area = xp.log(4 * cells[:, 2] * cells[:, 3])
        found = top + xp.log(clip(sums[:, 0], TINY, None))
        least = xp.maximum(xp.take(found, owner) - area, xp.take(top, owner) - math.log(256.0))
        least = least - ACCURACY.negligible
        bound, swing = upper_bound(xp, weight, least, own, cells)
        where = xp.nonzero(bound > least)[0]
        if where.shape[0] == 0:
            break
        cells, owner, area = xp.take(cells, where, axis=0), xp.take(owner, where), xp.take(area, where)
        own = own.taken(xp, where)
        table, _ = _in_cells(xp, weight, own, cells, probe)
        highest = xp.max(table, axis=(1, 2))
        seen = xp.max(_gathered_by_owner(xp, highest, _segments(xp, owner, n), -math.inf), axis=1)
        top, sums = _raised_level(xp, top, sums, seen)
        found = top + xp.log(clip(sums[:, 0], TINY, None))
        # what may be in the cell decides how well it must be known, not what a few probes have seen
        bound = xp.take(bound, where)
        short = clip(xp.take(found, owner) - bound - area, 0.0, ACCURACY.negligible)
        limit = variation * (1 + ACCURACY.allowance * short)
        across = [xp.max(xp.max(table, axis=k) - xp.min(table, axis=k), axis=1) for k in (1, 2)]
        across = [xp.maximum(a, xp.take(b, where)) for a, b in zip(across, swing, strict=True)]
        # a peak between the probes does not show in their variation, but in what the bound allows
        hidden = bound - highest - ACCURACY.looseness
        widest = xp.maximum(across[0], across[1])
        split = (widest > limit) | (hidden > clip(limit, ACCURACY.variation, None))
        start, end = _limits(xp, owner, n)
        crowded = end - start > 2048  # cells of a sample at one depth: given up, as not integrated
        rough = xp.where(crowded, 1.0, rough)
        split = split & ~xp.take(crowded, owner)
        split = split & (depth < 79)
        leaf = xp.nonzero(~split)[0]
        if leaf.shape[0] > 0:
            leaf_cells, leaf_owner = xp.take(cells, leaf, axis=0), xp.take(owner, leaf)
            log_weight, variables = _in_cells(xp, weight, own.taken(xp, leaf), leaf_cells, x)
            segments = _segments(xp, leaf_owner, n)
            best = xp.max(_gathered_by_owner(xp, xp.max(log_weight, axis=(1, 2)), segments, -math.inf), axis=1)
            top, sums = _raised_level(xp, top, sums, best)
            w = xp.exp(log_weight - xp.take(top, leaf_owner)[:, None, None])
            w = w * (leaf_cells[:, 2] * leaf_cells[:, 3])[:, None, None] * (rule[:, None] * rule[None, :])
            sums = sums + xp.sum(_gathered_by_owner(xp, moments(xp, w, variables), segments, 0.0), axis=1)
        where = xp.nonzero(split)[0]
        if where.shape[0] == 0:
            break
        # halved along the axis of the larger variation, or along the longer one where none is seen
        seen_axis, longer = across[0] >= across[1], cells[:, 2] >= cells[:, 3]
        first = xp.take(xp.where(widest > limit, seen_axis, longer), where)
        cells = _halved_cells(xp, xp.take(cells, where, axis=0), first)
        owner = xp.repeat(xp.take(owner, where), 2)
    result = weight.normalised(xp, sums, top)
    # a mean so near the edge of the square counts as not integrated
    outside = xp.max(xp.abs(result.mean[:, :2]), axis=1) > ACCURACY.reach - 1.5
    return result._replace(rough=xp.where(outside, 1.0, rough))


def _root_cells(xp: ModuleType, weight: Weight, samples: Samples) -> Array:
    """Cells (n root_cells^2, 4) that cover the prior."""
    reach, count = ACCURACY.reach, ACCURACY.root_cells
    unit_t, unit_v = weight.units
    edges = ends(xp, samples.v - reach * unit_v, samples.v + reach * unit_v)
    bends = [ridge(xp, samples.ridge, v) for v in edges]
    low = (samples.t - most_of(xp, bends)) / unit_t - reach
    high = (samples.t - least_of(xp, bends)) / unit_t + reach
    corner = (np.arange(count) + 0.5) * (2 / count) - 1
    grid = np.stack(np.meshgrid(corner, corner, indexing="ij"), axis=-1).reshape(-1, 2)
    place = {"dtype": xp.float64, "device": array_api_compat.device(low)}
    first, second = (xp.asarray(grid[:, k], **place)[None, :] for k in range(2))
    half = (high - low)[:, None] / 2
    flat = xp.zeros_like(half * first)
    columns = [(high + low)[:, None] / 2 + half * first, flat + reach * second]
    columns += [flat + half / count, flat + reach / count]
    return xp.reshape(xp.stack(columns, axis=-1), (-1, 4))


def _in_cells(xp: ModuleType, weight: Weight, own: Samples, cells: Array, x: Array) -> tuple[Array, list[Array]]:
    """Log-weight (N, k, k) and the four variables of ``Sums`` at the product of k points x in [-1, 1]."""
    unit_t, unit_v = weight.units
    y = (cells[:, 0:1] + cells[:, 2:3] * x)[:, :, None]
    b = (cells[:, 1:2] + cells[:, 3:4] * x)[:, None, :]
    wide = Samples(*(f[:, None, None] for f in own))
    v = wide.v + unit_v * b
    bend = ridge(xp, wide.ridge, v)
    decay = xp.exp(clip(-unit_t * y, -FAR, FAR))
    p = 1 / (1 + decay * xp.exp(clip(-bend - v / 2, -FAR, FAR)))
    r = 1 / (1 + decay * xp.exp(clip(-bend + v / 2, -FAR, FAR)))
    a = y + (bend - wide.t) / unit_t
    return weight.at(xp, wide, a, b, p, r)


def _halved_cells(xp: ModuleType, cells: Array, first: Array) -> Array:
    """Cells (N, 4) cut in two along their first or second axis, (2 N, 4)."""
    one = xp.ones_like(cells[:, 0])
    shrink = xp.stack([one, one, xp.where(first, one / 2, one), xp.where(first, one, one / 2)], axis=1)
    zero = xp.zeros_like(one)
    move = [xp.where(first, cells[:, 2], 0.0) / 2, xp.where(first, 0.0, cells[:, 3]) / 2, zero, zero]
    step = xp.stack(move, axis=1)
    cells = cells * shrink
    return xp.reshape(xp.stack([cells - step, cells + step], axis=1), (-1, 4))


def _raised_level(xp: ModuleType, top: Array, sums: Array, seen: Array) -> tuple[Array, Array]:
    """The largest log-weight met so far, and the sums (n, 15) in units of its exponential."""
    higher = seen > top
    # the first top is minus infinity, and the sums are zero then
    step = xp.where(higher & (top > -math.inf), top - xp.where(higher, seen, 0.0), 0.0)
    return xp.maximum(top, seen), sums * xp.exp(step)[:, None]


def _segments(xp: ModuleType, owner: Array, n: int) -> tuple[Array, Array]:
    """For sorted owners (N,): positions (n, K) of every owner's elements, and which of them exist."""
    start, end = _limits(xp, owner, n)
    most = int(xp.max(end - start))
    steps = xp.arange(most, dtype=start.dtype, device=array_api_compat.device(owner))
    position = start[:, None] + steps[None, :]
    return clip(position, None, owner.shape[0] - 1), position < end[:, None]


def _limits(xp: ModuleType, owner: Array, n: int) -> tuple[Array, Array]:
    """Where the elements of every owner (sorted) begin and end, each (n,)."""
    samples = xp.arange(n, dtype=owner.dtype, device=array_api_compat.device(owner))
    return xp.searchsorted(owner, samples), xp.searchsorted(owner, samples, side="right")


def _gathered_by_owner(xp: ModuleType, values: Array, segments: tuple[Array, Array], fill: float) -> Array:
    """Values (N, ...) as (n, K, ...), one row for every owner."""
    position, exists = segments
    flat = xp.take(values, xp.reshape(position, (-1,)), axis=0)
    table = xp.reshape(flat, (*position.shape, *values.shape[1:]))
    return xp.where(xp.reshape(exists, (*position.shape, *(1,) * (values.ndim - 1))), table, fill)


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
