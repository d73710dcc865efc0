"""Integrals of the weight of two-layer attention over rectangular cells, halved until the weight hardly varies; by the
Gaussian rule where that serves.

Rectangles are halved until the weight hardly varies in each.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import array_api_compat
import numpy as np

from smimbench.backend import clip
from smimbench.numerics import gauss_legendre
from smimbench_channels.attention.softmax.two_layers.bound import ends, least_of, most_of, upper_bound
from smimbench_channels.attention.softmax.two_layers.gaussian import nearly_gaussian
from smimbench_channels.attention.softmax.two_layers.peak import samples_of
from smimbench_channels.attention.softmax.two_layers.weight import FAR, TINY, Samples, Sums, Weight, moments, ridge
from smimbench_channels.batches import blocks, joined, put_tuple

if TYPE_CHECKING:
    from types import ModuleType

    from smimbench.interfaces import Array

__all__ = ["integrals"]

# Where a cell is looked at along each axis: both ends, and two points inside.
_PROBES = (-1.0, -0.4, 0.4, 1.0)


def integrals(
    xp: ModuleType, weight: Weight, margins: Array, centre: Array, *, variation: float | None = None, quick: bool = True
) -> Sums:
    """Integrals over (a_1, b_1) of samples with these margins (n, 2) and prior means (n, 4).

    ``variation`` is the largest of the log-weight in a cell; default: that of ``weight.accuracy``. ``quick`` says whether the
    Gaussian rule may be tried.
    """
    accuracy = weight.accuracy
    variation = accuracy.variation if variation is None else variation
    size = accuracy.block if array_api_compat.is_numpy_namespace(xp) else accuracy.block_device
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
    if not quick or weight.beta**2 * weight.first > weight.accuracy.quick_width:
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
    accuracy = weight.accuracy
    n, device = samples.t.shape[0], array_api_compat.device(samples.t)
    place = {"dtype": xp.float64, "device": device}
    cells = _root_cells(xp, weight, samples)
    owner = xp.repeat(xp.arange(n, device=device), accuracy.root_cells**2)
    probe = xp.asarray(_PROBES, **place)
    x, rule = (xp.asarray(v, **place) for v in gauss_legendre(accuracy.nodes))
    top = xp.full((n,), -math.inf, **place)
    sums, rough = xp.zeros((n, 15), **place), xp.zeros((n,), **place)
    for depth in range(accuracy.deepest):
        own = samples.taken(xp, owner)
        # no more than exp(-negligible) of what has been found, or of a peak a sixteenth as wide as a cell
        area = xp.log(4 * cells[:, 2] * cells[:, 3])
        found = top + xp.log(clip(sums[:, 0], TINY, None))
        least = xp.maximum(xp.take(found, owner) - area, xp.take(top, owner) - math.log(256.0))
        least = least - accuracy.negligible
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
        short = clip(xp.take(found, owner) - bound - area, 0.0, accuracy.negligible)
        limit = variation * (1 + accuracy.allowance * short)
        across = [xp.max(xp.max(table, axis=k) - xp.min(table, axis=k), axis=1) for k in (1, 2)]
        across = [xp.maximum(a, xp.take(b, where)) for a, b in zip(across, swing, strict=True)]
        # a peak between the probes does not show in their variation, but in what the bound allows
        hidden = bound - highest - accuracy.looseness
        widest = xp.maximum(across[0], across[1])
        split = (widest > limit) | (hidden > clip(limit, accuracy.variation, None))
        crowded = _count(xp, owner, n) > accuracy.crowded
        rough = xp.where(crowded, 1.0, rough)
        split = split & ~xp.take(crowded, owner)
        if depth == accuracy.deepest - 1:
            split = split & False
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
    outside = xp.max(xp.abs(result.mean[:, :2]), axis=1) > accuracy.reach - accuracy.near_edge
    return result._replace(rough=xp.where(outside, 1.0, rough))


def _root_cells(xp: ModuleType, weight: Weight, samples: Samples) -> Array:
    """Cells (n root_cells^2, 4) that cover the prior."""
    reach, count = weight.accuracy.reach, weight.accuracy.root_cells
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


def _count(xp: ModuleType, owner: Array, n: int) -> Array:
    """How many elements every owner (sorted) has, (n,)."""
    start, end = _limits(xp, owner, n)
    return end - start


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
