"""The adaptive quadrature of two-layer, two-token attention on arrays: columns made, refined and summed.

Write ``z_1 = (m + d/2, m - d/2)``. With ``k = exp(-d^2/2)``, ``E = exp(m d)`` and
``den = c (E + k)(1 + k E) + (1 - k^2) E`` the inverse of ``A(z_1)`` is (``ut = u / (1 + c)``)::

    A^{-1} u = (ut_1 + x (ut_1 - ut_2), ut_2 - y (ut_1 - ut_2)),   1 / det A = (1 + x + y) / (1 + c)^2
    x = k (1 + k E) / den,   y = k E (E + k) / den

``x`` falls and ``y`` grows with ``E``. A box ``|z - omega| <= K sqrt(V)`` around the mean therefore bounds
``x`` and ``y``, those bound ``d``, and at fixed ``d`` they bound ``E`` as roots of quadratics: what the
integrand occupies is known in closed form, however narrow it is, on up to four pieces (the sign of ``u``,
the sign of ``d``). Each piece is a row of columns of constant ``d``, uniform in ``asinh(d / d_0)``, with
points uniform in ``m``: two nested trapezoidal rules, which converge exponentially because the integrand
has decayed at every end. Columns, and pieces, double their points until two interleaved halves agree. The
cost hardly depends on ``V``.

The scheme is derived, checked by tests/channels/sequence/test_softmax_two_layers.py.
"""

from __future__ import annotations

import math
from typing import Any

import array_api_compat
import numpy as np

from smimbench.backend import clip, namespace
from smimbench.interfaces import Array
from smimbench.numerics.masked import put_at_mask
from smimbench_channels.sequence.softmax.two_layers.pieces import Pieces, Rule, column_range, make_pieces

__all__ = ["block_sums"]

CHUNK_POINTS = 1 << 14
"""Points handled at once on the host. Doubled: twice the memory, beyond the cache; the same result."""
DEVICE_CHUNK_POINTS = 1 << 24
"""The same on a device, where few large operations are faster. Doubled: twice the memory, the same result."""


def block_sums(u: Array, omega: Array, rule: Rule, reach: Array, level: Array) -> tuple[Array, Array]:
    """Integrals over the boxes of a block of samples.

    ``u`` (n, 2) are outputs up to sign, ``omega`` (n, 2, 2) means, layers by tokens, in float64; ``rule`` is the problem and when
    to stop; ``reach`` (n,) the half width of the box around ``omega`` in units of ``sqrt(V)``, ``level`` (n,) the logarithm in
    units of which the integrand is summed. Returns sums (8 or 15, n) of 1, the four entries of ``z - omega`` and their products,
    as ``_sum_points`` orders them, and the relative error (n,) of the first.
    """
    xp = namespace(u, omega)
    v11, _, v22 = rule.V
    n, device = u.shape[0], array_api_compat.device(u)
    pieces, present = make_pieces(xp, u, omega, rule.V, rule.skip, reach, level)
    scale = [1.0, math.sqrt(v11), math.sqrt(v11), math.sqrt(v22), math.sqrt(v22)]
    scale = xp.asarray(scale, dtype=u.dtype, device=device)[:, None]

    def by_sample(values: Array) -> Array:
        return xp.sum(xp.reshape(_expand(xp, values, present), (*values.shape[:-1], n, 4)), axis=-1)

    size = pieces.scale.shape[0]
    total = xp.zeros((rule.moments, size), dtype=u.dtype, device=device)
    inner_error = xp.zeros_like(pieces.scale)
    outer_error = xp.zeros_like(pieces.scale)
    unfinished = xp.ones((size,), dtype=xp.bool, device=device)
    partition = None
    count = rule.points
    for round_ in range(rule.rounds):
        index = xp.nonzero(unfinished)[0]
        if index.shape[0] == 0:
            break
        active = pieces.take(index)
        columns, weight, occupied, owner = _make_columns(xp, active, count, 0.0 if round_ == 0 else 0.5, rule)
        shape = (count, index.shape[0])
        sums = _sum_points(xp, columns, rule.points, 0.0, rule) * (columns[2] * weight)
        if partition is None:
            partition = by_sample(_by_piece(xp, sums[0, ...], occupied, shape))
        reference = xp.take(xp.take(partition, active.sample, axis=0), owner, axis=0)
        sums, errors = _refine_columns(xp, columns, weight, sums, reference, scale, rule)
        found = _by_piece(xp, sums, occupied, shape)
        found_error = _by_piece(xp, errors, occupied, shape)
        if round_ == 0:
            after, ratio = found, xp.ones_like(found_error)
        else:
            before = xp.take(total, index, axis=1)
            after = 0.5 * (before + found)
            ratio = xp.minimum(_half_difference(xp, before, found, scale), xp.ones_like(found_error))
            found_error = 0.5 * (xp.take(inner_error, index, axis=0) + found_error)
            count *= 2
        reported = ratio * ratio * after[0, ...]
        total = put_at_mask(total, unfinished, after, axis=-1)
        inner_error = put_at_mask(inner_error, unfinished, found_error)
        outer_error = put_at_mask(outer_error, unfinished, reported)
        partition = by_sample(total[0, ...])
        limit = rule.accuracy * xp.take(partition, active.sample, axis=0)
        failing = after[0, ...] > rule.negligible * limit
        if round_ > 0:
            failing = failing & ((ratio >= 1.0) | (_expected(xp, ratio) * after[0, ...] > limit))
        unfinished = put_at_mask(unfinished, unfinished, failing)
    sums = by_sample(total)
    found = sums[0, ...] > 0.0
    error = by_sample(inner_error + outer_error) / xp.where(found, sums[0, ...], 1.0)
    return sums, xp.where(found, error, math.inf)


def _make_columns(
    xp: Any, pieces: Pieces, count: int, offset: float, rule: Rule
) -> tuple[tuple[Array, ...], Array, Array, Array]:
    """Columns of all pieces that are not empty, their weights, where they stand and whose they are."""
    step = (pieces.upper - pieces.lower) / count
    nodes = (xp.arange(count, dtype=step.dtype, device=array_api_compat.device(step)) + offset)[:, None]
    xi = pieces.lower + nodes * step
    d = pieces.scale * xp.sinh(xi)
    d = xp.where(xp.abs(d) < 1e-12, 1e-12, d)
    jacobian = pieces.scale * xp.cosh(xi) * step
    left, right = column_range(xp, pieces, d, rule.skip, rule.V[0])
    occupied = xp.reshape(right > left, (-1,))
    place = xp.nonzero(occupied)[0]
    owner = place % step.shape[0]

    def own(values: Array) -> Array:
        return xp.take(xp.reshape(values, (-1,)), place, axis=0)

    constants = (pieces.first, pieces.second, pieces.slope, pieces.middle, pieces.gap, pieces.level)
    columns = (
        own(d),
        own(left),
        own(right - left) / rule.points,
        *(xp.take(values, owner, axis=0) for values in constants),
    )
    return columns, own(jacobian), occupied, owner


def _refine_columns(
    xp: Any, columns: tuple[Array, ...], weight: Array, sums: Array, reference: Array, scale: Array, rule: Rule
) -> tuple[Array, Array]:
    """Double the points of columns, from their first sums, until halves agree; sums and error of each."""
    total, error = sums, xp.zeros_like(weight)
    chosen = sums[0, ...] > rule.negligible * rule.accuracy * reference
    index = xp.nonzero(chosen)[0]
    columns = tuple(xp.take(column, index, axis=0) for column in columns)
    weight, reference = xp.take(weight, index, axis=0), xp.take(reference, index, axis=0)
    before = xp.take(sums, index, axis=1)
    count = rule.points
    for _ in range(rule.rounds):
        if weight.shape[0] == 0:
            break
        step = columns[2]
        more = _sum_points(xp, columns, count, 0.5, rule) * (step * weight)
        ratio = xp.minimum(_half_difference(xp, before, more, scale), xp.ones_like(weight))
        before = 0.5 * (before + more)
        # The ratio is the error of a half; see _expected for that of the whole.
        total = put_at_mask(total, chosen, before, axis=-1)
        error = put_at_mask(error, chosen, ratio * ratio * before[0, ...])
        failing = (ratio >= 1.0) | (_expected(xp, ratio) * before[0, ...] > rule.share * rule.accuracy * reference)
        chosen = put_at_mask(chosen, chosen, failing)
        index = xp.nonzero(failing)[0]
        columns = (*columns[:2], 0.5 * step, *columns[3:])
        columns = tuple(xp.take(column, index, axis=0) for column in columns)
        weight, reference = xp.take(weight, index, axis=0), xp.take(reference, index, axis=0)
        before = xp.take(before, index, axis=1)
        count *= 2
    return total, error


def _sum_points(xp: Any, columns: tuple[Array, ...], count: int, offset: float, rule: Rule) -> Array:
    """Sums over ``count`` points of every column, (moments, columns)."""
    d, left, step, first, second, slope, middle, gap, level = columns
    device = array_api_compat.device(d)
    v11, v12, v22 = rule.V
    c, full = rule.skip, rule.full
    b = v12 / v11
    narrow = 1.0 / (v22 - v12 * b)
    nodes = (xp.arange(count, dtype=d.dtype, device=device) + offset)[:, None]
    size = d.shape[0]
    chunk = max(1, (CHUNK_POINTS if isinstance(d, np.ndarray) else DEVICE_CHUNK_POINTS) // count)
    sums = [xp.zeros((rule.moments, 0), dtype=d.dtype, device=device)]
    for start in range(0, size, chunk):
        part = slice(start, min(start + chunk, size))
        d_ = d[part]
        k = xp.exp(-0.5 * d_ * d_)
        rest = -xp.expm1(-d_ * d_)
        m = left[part] + nodes * step[part]
        E = xp.exp(clip(m * d_, -300.0, 300.0))
        kE = k * E
        one, two = E + k, 1.0 + kE
        N = one * two
        inverse = 1.0 / (c * N + rest * E)
        kinv = slope[part] * inverse
        e1 = first[part] + (k * two) * kinv
        e2 = second[part] - (kE * one) * kinv
        half = 0.5 * (d_ - gap[part])
        shifted = m - middle[part]
        a1, a2 = shifted + half, shifted - half
        aa = a1 * a1 + a2 * a2
        if b == 0.0:
            q = e1 * e1 + e2 * e2
        else:
            r1, r2 = e1 - b * a1, e2 - b * a2
            q = r1 * r1 + r2 * r2
        w = xp.exp((-0.5 / v11) * aa - (0.5 * narrow) * q - level[part]) * (N * inverse)
        w1, w2, w3, w4 = w * a1, w * a2, w * e1, w * e2
        moments = [w, w1, w2, w3, w4]
        if full:
            moments += [w1 * a1, w1 * a2, w1 * e1, w1 * e2, w2 * a2, w2 * e1, w2 * e2]
            moments += [w3 * e1, w3 * e2, w4 * e2]
        else:
            moments += [w * aa, w1 * e1 + w2 * e2, w3 * e1 + w4 * e2]
        sums.append(xp.stack([xp.sum(moment, axis=0) for moment in moments]))
    return xp.concat(sums, axis=1)


def _half_difference(xp: Any, one: Array, two: Array, scale: Array) -> Array:
    """Half the difference of two estimates, in units of the total: the largest over the first moments."""
    difference = 0.5 * xp.abs(one[:5, ...] - two[:5, ...]) / scale
    total = 0.5 * (one[0, ...] + two[0, ...])
    return xp.max(difference, axis=0) / xp.where(total > 0.0, total, 1.0)


def _expected(xp: Any, ratio: Array) -> Array:
    """Relative error of a rule whose two halves differ by ``ratio``.

    The power would be 2 where the Fourier transform of the integrand decays exponentially, 4 where it is
    Gaussian. What is reported is always the square.
    """
    return ratio * ratio * xp.sqrt(xp.sqrt(ratio))


def _by_piece(xp: Any, values: Array, occupied: Array, shape: tuple[int, int]) -> Array:
    return xp.sum(xp.reshape(_expand(xp, values, occupied), (*values.shape[:-1], *shape)), axis=-2)


def _expand(xp: Any, values: Array, mask: Array) -> Array:
    """``values`` where the mask is true along the last axis, in order, and zeros elsewhere."""
    shape = (*values.shape[:-1], mask.shape[0])
    whole = xp.zeros(shape, dtype=values.dtype, device=array_api_compat.device(values))
    return put_at_mask(whole, mask, values, axis=-1)
