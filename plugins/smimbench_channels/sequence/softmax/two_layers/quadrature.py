"""Posterior of two-layer, two-token attention by adaptive quadrature.

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

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import array_api_compat
import numpy as np

from smimbench.backend import clip, namespace
from smimbench.interfaces import Array
from smimbench.numerics.masked import put_at_mask, spread_at_mask
from smimbench_channels.sequence.softmax.deep import importance as sampling
from smimbench_channels.sequence.softmax.moments import Moments

__all__ = ["integrate"]

use_compiled = True
"""Use the compiled twins: of NumPy arrays where Numba can be imported, of CuPy arrays. The results agree to rounding."""

_FIRST = 12
_FAR = 700.0
_MOST_ROUNDS = 9
_NEGLIGIBLE = 1e-4
_SHARE = 0.2
_SPARE = 6.5
_TOLERATED = 2.5
_DEEPEST = 250.0
_POINTS = 2048
_CHUNK_POINTS = 1 << 14
_BLOCK_SAMPLES = 512


@dataclass(frozen=True)
class _Settings:
    """``V`` holds (V_11, V_12, V_22); ``points`` is where columns, and points in a column, start."""

    V: tuple[float, float, float]
    skip: float
    accuracy: float
    full: bool
    points: int
    rounds: int = _MOST_ROUNDS


@dataclass
class _Pieces:
    """Where to integrate: one entry per piece, with the constants of its sample."""

    sample: Array
    lower: Array
    upper: Array
    scale: Array
    x0: Array
    x1: Array
    y0: Array
    y1: Array
    first: Array
    second: Array
    slope: Array
    middle: Array
    gap: Array
    reach: Array
    level: Array

    def take(self, index: Array) -> _Pieces:
        xp = namespace(index)
        return _Pieces(**{f.name: xp.take(getattr(self, f.name), index, axis=0) for f in fields(self)})


def _expand(xp: Any, values: Array, mask: Array) -> Array:
    """Undo ``take(nonzero(mask))`` along the last axis, with zeros elsewhere."""
    shape = (*values.shape[:-1], mask.shape[0])
    whole = xp.zeros(shape, dtype=values.dtype, device=array_api_compat.device(values))
    return put_at_mask(whole, mask, values, axis=-1)


def _log_root(xp: Any, x: Array, k: Array, c: float) -> Array:
    """``log E`` where ``x(E) = x`` at ``k``; -700 where every E has a smaller x, +700 where none has."""
    a = c * k * x
    b = (c * (1.0 + k * k) + (1.0 - k * k)) * x - k * k
    tail = k * (1.0 - c * x)
    inside = tail > 0.0
    tail = xp.where(inside, tail, xp.ones_like(tail))
    root = xp.sqrt(b * b + 4.0 * a * tail)
    rising = b >= 0.0
    top = xp.where(rising, 2.0 * tail, root - b)
    bottom = xp.where(rising, b + root, 2.0 * a)
    found = bottom > 0.0
    value = xp.log(xp.where(found, top, 1.0)) - xp.log(xp.where(found, bottom, 1.0))
    value = xp.where(found, value, _FAR)
    return clip(xp.where(inside, value, -_FAR), -_FAR, _FAR)


def _make_pieces(
    xp: Any, u: Array, omega: Array, V: tuple[float, float, float], c: float, reach: Array, level: Array
) -> tuple[_Pieces, Array]:
    """The pieces of every sample that a box of ``reach`` deviations touches, and which of four those are."""
    v11, _, v22 = V
    n = u.shape[0]
    scale1, scale2 = math.sqrt(v11), math.sqrt(v22)
    noise = math.sqrt(v22 - V[1] ** 2 / v11)
    first, second = u[:, 0] / (1.0 + c), u[:, 1] / (1.0 + c)
    slope = first - second
    middle = 0.5 * (omega[:, 0, 0] + omega[:, 0, 1])
    gap = omega[:, 0, 0] - omega[:, 0, 1]
    mu1, mu2 = omega[:, 1, 0], omega[:, 1, 1]
    width = reach * scale2
    farthest = 1.0 / c if c > 0.0 else math.inf
    largest = min(farthest, 1e14)
    divisor = xp.where(xp.abs(slope) < 1e-150, 1e-150, slope)
    span = math.sqrt(2.0) * scale1 * reach
    scale = xp.sqrt(4.0 * c + 0.3 * xp.abs(u[:, 0] - u[:, 1]) / (xp.abs(mu1 - mu2) + 3.0 * noise) + 1e-12)

    columns: dict[str, list[Array]] = {name: [] for name in ("lower", "upper", "x0", "x1", "y0", "y1")}
    for sign in (1.0, -1.0):
        xa, xb = (sign * mu1 - first - width) / divisor, (sign * mu1 - first + width) / divisor
        ya, yb = (second - sign * mu2 - width) / divisor, (second - sign * mu2 + width) / divisor
        x0, x1 = xp.minimum(xa, xb), xp.maximum(xa, xb)
        y0, y1 = xp.minimum(ya, yb), xp.maximum(ya, yb)
        x0, y0 = xp.maximum(x0, 0.0 * x0), xp.maximum(y0, 0.0 * y0)
        possible = (x1 > 0.0) & (y1 > 0.0) & (x0 + y0 < largest)
        x0, y0 = xp.where(possible, x0, 0.0), xp.where(possible, y0, 0.0)
        x1 = xp.where(possible, xp.minimum(x1, largest - y0), largest)
        y1 = xp.where(possible, xp.minimum(y1, largest - x0), largest)
        joined = x1 + y1 >= farthest
        near = _gap_squared(xp, xp.where(joined, 0.25 * largest, x1), xp.where(joined, 0.25 * largest, y1), c)
        near = xp.where(joined, 0.0, xp.sqrt(xp.maximum(near, 0.0 * near)))
        open_end = (x0 <= 0.0) | (y0 <= 0.0)
        ones = xp.ones_like(x0)
        safe = 0.25 * largest * ones
        far = _gap_squared(xp, xp.where(open_end, safe, x0), xp.where(open_end, safe, y0), c)
        far = xp.where(open_end, 1e150, xp.sqrt(xp.maximum(far, 0.0 * far)))
        for side in (1.0, -1.0):
            if side > 0:
                lower, upper = xp.where(joined, -far, near), far
            else:
                # a joined piece already covers both signs of d
                lower, upper = xp.where(joined, 1.0, -far), xp.where(joined, 0.0, -near)
            lower = xp.maximum(lower, gap - span)
            upper = xp.minimum(upper, gap + span)
            columns["lower"].append(xp.where(possible, lower, 1.0))
            columns["upper"].append(xp.where(possible, upper, 0.0))
            for name, bound in (("x0", x0), ("x1", x1), ("y0", y0), ("y1", y1)):
                columns[name].append(bound)

    def flat(parts: list[Array]) -> Array:
        return xp.reshape(xp.stack(parts, axis=1), (-1,))

    def repeat(values: Array) -> Array:
        return flat([values] * 4)

    device = array_api_compat.device(u)
    signs = xp.asarray([1.0, 1.0, -1.0, -1.0], dtype=u.dtype, device=device)
    lower, upper = flat(columns["lower"]), flat(columns["upper"])
    spread = repeat(scale)
    sign = xp.reshape(xp.broadcast_to(signs, (n, 4)), (-1,))
    pieces = _Pieces(
        sample=repeat(xp.arange(n, dtype=xp.int64, device=device)),
        lower=xp.asinh(lower / spread),
        upper=xp.asinh(upper / spread),
        scale=spread,
        x0=flat(columns["x0"]),
        x1=flat(columns["x1"]),
        y0=flat(columns["y0"]),
        y1=flat(columns["y1"]),
        # z_2 - omega_2 at x = y = 0 and its slope, with the sign of u put in
        first=repeat(first) * sign - repeat(mu1),
        second=repeat(second) * sign - repeat(mu2),
        slope=repeat(slope) * sign,
        middle=repeat(middle),
        gap=repeat(gap),
        reach=repeat(reach),
        level=repeat(level),
    )
    present = upper > lower
    return pieces.take(xp.nonzero(present)[0]), present


def _gap_squared(xp: Any, x: Array, y: Array, c: float) -> Array:
    """``d^2`` of the first layer whose attention has the coordinates (x, y)."""
    return xp.log(1.0 + y - c * x) + xp.log(1.0 + x - c * y) - 2.0 * math.log1p(c) - xp.log(x) - xp.log(y)


def _column_range(xp: Any, pieces: _Pieces, d: Array, c: float, v11: float) -> tuple[Array, Array]:
    """Ends in m of the columns ``d`` (columns, pieces); empty where lower >= upper."""
    k = xp.exp(-0.5 * d * d)
    lower = xp.maximum(_log_root(xp, pieces.x1, k, c), -_log_root(xp, pieces.y0, k, c))
    upper = xp.minimum(_log_root(xp, pieces.x0, k, c), -_log_root(xp, pieces.y1, k, c))
    one, other = lower / d, upper / d
    radius = 0.5 * (pieces.reach * pieces.reach * v11 - 0.5 * (d - pieces.gap) ** 2)
    half = xp.sqrt(xp.maximum(radius, 0.0 * radius))
    left = xp.maximum(xp.minimum(one, other), pieces.middle - half)
    right = xp.minimum(xp.maximum(one, other), pieces.middle + half)
    return left, xp.where(lower < upper, right, left)


def _sum_points(xp: Any, columns: tuple[Array, ...], count: int, offset: float, settings: _Settings) -> Array:
    """Sums over ``count`` points of every column, (moments, columns)."""
    d, left, step, first, second, slope, middle, gap, level = columns
    device = array_api_compat.device(d)
    v11, v12, v22 = settings.V
    c, full = settings.skip, settings.full
    b = v12 / v11
    narrow = 1.0 / (v22 - v12 * b)
    nodes = (xp.arange(count, dtype=d.dtype, device=device) + offset)[:, None]
    size = d.shape[0]
    chunk = max(1, (_CHUNK_POINTS if _on_host(d) else 1 << 24) // count)
    sums = [xp.zeros((15 if full else 8, 0), dtype=d.dtype, device=device)]
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


def _on_host(array: Array) -> bool:
    return isinstance(array, np.ndarray)


def _spread(xp: Any, one: Array, two: Array, scale: Array) -> Array:
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


def _refine_columns(
    xp: Any,
    columns: tuple[Array, ...],
    weight: Array,
    sums: Array,
    reference: Array,
    scale: Array,
    settings: _Settings,
) -> tuple[Array, Array]:
    """Double the points of columns, from their first sums, until halves agree; sums and error of each."""
    total, error = sums, xp.zeros_like(weight)
    chosen = sums[0, ...] > _NEGLIGIBLE * settings.accuracy * reference
    index = xp.nonzero(chosen)[0]
    columns = tuple(xp.take(column, index, axis=0) for column in columns)
    weight, reference = xp.take(weight, index, axis=0), xp.take(reference, index, axis=0)
    before = xp.take(sums, index, axis=1)
    count = settings.points
    for _ in range(settings.rounds):
        if weight.shape[0] == 0:
            break
        step = columns[2]
        more = _sum_points(xp, columns, count, 0.5, settings) * (step * weight)
        ratio = xp.minimum(_spread(xp, before, more, scale), xp.ones_like(weight))
        before = 0.5 * (before + more)
        # The ratio is the error of a half. That of the whole is a power of it: 2 where the Fourier transform
        # of the integrand decays exponentially, 4 where it is Gaussian.
        total = xp.where(chosen, _expand(xp, before, chosen), total)
        error = xp.where(chosen, _expand(xp, ratio * ratio * before[0, ...], chosen), error)
        failing = (ratio >= 1.0) | (
            _expected(xp, ratio) * before[0, ...] > _SHARE * settings.accuracy * reference
        )
        chosen = _expand(xp, xp.astype(failing, xp.int64), chosen) > 0
        index = xp.nonzero(failing)[0]
        columns = (*columns[:2], 0.5 * step, *columns[3:])
        columns = tuple(xp.take(column, index, axis=0) for column in columns)
        weight, reference = xp.take(weight, index, axis=0), xp.take(reference, index, axis=0)
        before = xp.take(before, index, axis=1)
        count *= 2
    return total, error


@lru_cache
def _compiled(device: bool) -> Callable[..., tuple[Array, Array]] | None:
    if device:
        from smimbench_channels.sequence.softmax.two_layers.cuda import integrate_block

        return integrate_block
    try:
        from smimbench_channels.sequence.softmax.two_layers.compiled import integrate_block as on_host
    except ImportError:
        return None
    return on_host  # type: ignore[no-any-return]


def _integrate_block(
    xp: Any, u: Array, omega: Array, settings: _Settings, reach: Array, level: Array
) -> tuple[Array, Array]:
    """Sums (moments, n) and their relative error (n,)."""
    fast = _compiled(array_api_compat.is_cupy_array(u)) if use_compiled else None
    if fast is not None and (_on_host(u) or array_api_compat.is_cupy_array(u)):
        rules = (float(settings.rounds), _NEGLIGIBLE, _SHARE)
        s = settings
        return fast(u, omega, s.V, s.skip, s.accuracy, s.full, s.points, reach, level, rules)
    v11, _, v22 = settings.V
    n, device = u.shape[0], array_api_compat.device(u)
    pieces, present = _make_pieces(xp, u, omega, settings.V, settings.skip, reach, level)
    scale = [1.0, math.sqrt(v11), math.sqrt(v11), math.sqrt(v22), math.sqrt(v22)]
    scale = xp.asarray(scale, dtype=u.dtype, device=device)[:, None]

    def by_sample(values: Array) -> Array:
        return xp.sum(xp.reshape(_expand(xp, values, present), (*values.shape[:-1], n, 4)), axis=-1)

    size = pieces.scale.shape[0]
    total = xp.zeros((15 if settings.full else 8, size), dtype=u.dtype, device=device)
    inner_error = xp.zeros_like(pieces.scale)
    outer_error = xp.zeros_like(pieces.scale)
    unfinished = xp.ones((size,), dtype=xp.bool, device=device)
    partition = None
    count = settings.points
    for round_ in range(settings.rounds):
        index = xp.nonzero(unfinished)[0]
        if index.shape[0] == 0:
            break
        active = pieces.take(index)
        columns, weight, occupied, owner = _make_columns(
            xp, active, count, 0.0 if round_ == 0 else 0.5, settings
        )
        shape = (count, index.shape[0])
        sums = _sum_points(xp, columns, settings.points, 0.0, settings) * (columns[2] * weight)
        if partition is None:
            partition = by_sample(_by_piece(xp, sums[0, ...], occupied, shape))
        reference = xp.take(xp.take(partition, active.sample, axis=0), owner, axis=0)
        sums, errors = _refine_columns(xp, columns, weight, sums, reference, scale, settings)
        found = _by_piece(xp, sums, occupied, shape)
        found_error = _by_piece(xp, errors, occupied, shape)
        if round_ == 0:
            after, ratio = found, xp.ones_like(found_error)
        else:
            before = xp.take(total, index, axis=1)
            after = 0.5 * (before + found)
            ratio = xp.minimum(_spread(xp, before, found, scale), xp.ones_like(found_error))
            found_error = 0.5 * (xp.take(inner_error, index, axis=0) + found_error)
            count *= 2
        reported = ratio * ratio * after[0, ...]
        total = xp.where(unfinished, _expand(xp, after, unfinished), total)
        inner_error = xp.where(unfinished, _expand(xp, found_error, unfinished), inner_error)
        outer_error = xp.where(unfinished, _expand(xp, reported, unfinished), outer_error)
        partition = by_sample(total[0, ...])
        limit = settings.accuracy * xp.take(partition, active.sample, axis=0)
        failing = after[0, ...] > _NEGLIGIBLE * limit
        if round_ > 0:
            failing = failing & ((ratio >= 1.0) | (_expected(xp, ratio) * after[0, ...] > limit))
        unfinished = _expand(xp, xp.astype(failing, xp.int64), unfinished) > 0
    sums = by_sample(total)
    found = sums[0, ...] > 0.0
    error = by_sample(inner_error + outer_error) / xp.where(found, sums[0, ...], 1.0)
    return sums, xp.where(found, error, math.inf)


def _make_columns(
    xp: Any, pieces: _Pieces, count: int, offset: float, settings: _Settings
) -> tuple[tuple[Array, ...], Array, Array, Array]:
    """Columns of all pieces that are not empty, their weights, where they stand and whose they are."""
    step = (pieces.upper - pieces.lower) / count
    nodes = (xp.arange(count, dtype=step.dtype, device=array_api_compat.device(step)) + offset)[:, None]
    xi = pieces.lower + nodes * step
    d = pieces.scale * xp.sinh(xi)
    d = xp.where(xp.abs(d) < 1e-12, 1e-12, d)
    jacobian = pieces.scale * xp.cosh(xi) * step
    left, right = _column_range(xp, pieces, d, settings.skip, settings.V[0])
    occupied = xp.reshape(right > left, (-1,))
    place = xp.nonzero(occupied)[0]
    owner = place % step.shape[0]

    def own(values: Array) -> Array:
        return xp.take(xp.reshape(values, (-1,)), place, axis=0)

    constants = (pieces.first, pieces.second, pieces.slope, pieces.middle, pieces.gap, pieces.level)
    columns = (
        own(d),
        own(left),
        own(right - left) / settings.points,
        *(xp.take(values, owner, axis=0) for values in constants),
    )
    return columns, own(jacobian), occupied, owner


def _by_piece(xp: Any, values: Array, occupied: Array, shape: tuple[int, int]) -> Array:
    return xp.sum(xp.reshape(_expand(xp, values, occupied), (*values.shape[:-1], *shape)), axis=-2)


def _finish(sums: Array, level: Array, error: Array, settings: _Settings) -> Moments:
    xp = namespace(sums)
    v11, v12, v22 = settings.V
    constant = 2.0 * math.log(2.0 * math.pi) + math.log(v11 * v22 - v12 * v12) + math.log1p(settings.skip)
    found = sums[0, ...] > 0.0
    safe = xp.where(found, sums[0, ...], 1.0)
    log_partition = xp.where(found, xp.log(safe) + level - constant, -math.inf)
    means = sums[1:, ...] / safe
    shift = xp.reshape(xp.permute_dims(means[:4, ...], (1, 0)), (-1, 2, 2))
    second = means[4:, ...]
    order = _FULL if settings.full else _TRACES
    second = xp.stack([xp.stack([second[k, ...] for k in row], axis=-1) for row in order], axis=-1)
    return Moments(log_partition, shift, second, error)


_FULL = ((0, 1, 2, 3), (1, 4, 5, 6), (2, 5, 7, 8), (3, 6, 8, 9))
_TRACES = ((0, 1), (1, 2))


def _energy(sums: Array, settings: _Settings) -> Array:
    """Posterior mean of half the squared distance from ``omega`` in units of V; inf where nothing is."""
    xp = namespace(sums)
    v11, v12, v22 = settings.V
    b = v12 / v11
    if settings.full:
        aa, ae, ee = sums[5, ...] + sums[9, ...], sums[7, ...] + sums[11, ...], sums[12, ...] + sums[14, ...]
    else:
        aa, ae, ee = sums[5, ...], sums[6, ...], sums[7, ...]
    found = sums[0, ...] > 0.0
    distance = aa / v11 + (ee - 2.0 * b * ae + b * b * aa) / (v22 - b * v12)
    return xp.where(found, 0.5 * distance / xp.where(found, sums[0, ...], 1.0), math.inf)


def integrate(
    u: Array, omega: Array, V: np.ndarray[Any, Any], skip: float, accuracy: float, full: bool = False
) -> Moments:
    """Posterior moments and partition function of two layers and two tokens.

    Parameters
    ----------
    u : array (n, 2), float64
        Outputs, up to sign.
    omega : array (n, 2, 2), float64
        Means, layers by tokens.
    V : ndarray (2, 2)
        Positive definite, on the host.
    skip : float
        c >= 0.
    accuracy : float
        Target for the relative error of every sample.
    full : bool
        Return the whole second moment instead of its three traces over tokens.

    Returns
    -------
    Moments
    """
    v11, v12, v22 = float(V[0, 0]), 0.5 * float(V[0, 1] + V[1, 0]), float(V[1, 1])
    # Correlated layers have a narrower conditional law than the box around them.
    crowding = min(8.0, 1.0 / math.sqrt(1.0 - v12 * v12 / (v11 * v22)))
    settings = _Settings((v11, v12, v22), skip, accuracy, full, math.ceil(_FIRST * crowding))
    xp = namespace(u, omega)
    half_square = math.log(1.0 / accuracy) + _SPARE
    depth = xp.zeros_like(u[:, 0])
    moments, energy = _solve(xp, u, omega, settings, depth + half_square, depth)
    poor = energy > _SPARE + _TOLERATED
    index = xp.nonzero(poor)[0]
    if index.shape[0] == 0:
        return moments
    part_u, part_omega = xp.take(u, index, axis=0), xp.take(omega, index, axis=0)
    rescued = _rescue(xp, part_u, part_omega, settings, half_square, xp.take(energy, index, axis=0))
    return Moments(*(put_at_mask(old, poor, new) for old, new in zip(moments, rescued)))


def _solve(
    xp: Any, u: Array, omega: Array, settings: _Settings, half_square: Array, depth: Array
) -> tuple[Moments, Array]:
    """Integrate where ``|z - omega|^2 / V < 2 half_square``, relative to ``exp(-depth)``; and the energy."""
    n = u.shape[0]
    block = _BLOCK_SAMPLES if _on_host(u) else 1 << 15
    parts, energies = [], []
    for start in range(0, n, block):
        rows = slice(start, min(start + block, n))
        reach = xp.sqrt(2.0 * half_square[rows])
        sums, error = _integrate_block(xp, u[rows, ...], omega[rows, ...], settings, reach, -depth[rows])
        energy = _energy(sums, settings)
        # what lies outside of the box
        outside = xp.exp(clip(energy - half_square[rows], -700.0, 0.0))
        parts.append(_finish(sums, -depth[rows], error + outside, settings))
        energies.append(energy)
    moments = parts[0] if len(parts) == 1 else Moments(*(xp.concat(values) for values in zip(*parts)))
    return moments, energies[0] if len(energies) == 1 else xp.concat(energies)


def _rescue(
    xp: Any, u: Array, omega: Array, settings: _Settings, half_square: float, energy: Array
) -> Moments:
    """Samples whose label lies far from what ``omega`` and ``V`` expect, so that their box was too small.

    The posterior energy is about that of the best point, plus 1. It tells how deep the maximum lies and how
    far out to look. Where the box missed too much to tell, a look at 16 V does. Samples deeper than
    ``_DEEPEST`` go to importance sampling, which walks to the maximum.
    """
    cut = half_square - _SPARE
    lost = energy > half_square - 4.0
    index = xp.nonzero(lost)[0]
    if index.shape[0] > 0:
        hot = dataclasses.replace(
            settings, accuracy=1e-2, full=False, rounds=5, V=tuple(16.0 * v for v in settings.V)
        )
        part_u, part_omega = xp.take(u, index, axis=0), xp.take(omega, index, axis=0)
        zero = xp.zeros_like(part_u[:, 0])
        _, found = _solve(xp, part_u, part_omega, hot, zero + half_square, zero)
        found = xp.where(found < _SPARE, 16.0 * found, math.inf)
        energy = put_at_mask(energy, lost, found)
    near = energy < _DEEPEST
    parts = []
    index = xp.nonzero(near)[0]
    if index.shape[0] > 0:
        depth = xp.take(energy, index, axis=0)
        stretch = math.sqrt(1.0 + float(xp.max(depth)) / half_square)
        wide = dataclasses.replace(settings, points=math.ceil(settings.points * stretch))
        part_u, part_omega = xp.take(u, index, axis=0), xp.take(omega, index, axis=0)
        parts.append((near, _solve(xp, part_u, part_omega, wide, depth + cut + 3.0, depth)[0]))
    index = xp.nonzero(~near)[0]
    if index.shape[0] > 0:
        v11, v12, v22 = settings.V
        V = np.asarray([[v11, v12], [v12, v22]])
        part_u, part_omega = xp.take(u, index, axis=0), xp.take(omega, index, axis=0)
        parts.append(
            (~near, sampling.integrate(part_u, part_omega, V, settings.skip, 0.1, _POINTS, settings.full))
        )
    mask, result = parts[0]
    if len(parts) == 1:
        return result
    first = Moments(*(spread_at_mask(values, mask) for values in result))
    mask, result = parts[1]
    return Moments(*(put_at_mask(old, mask, new) for old, new in zip(first, result)))
