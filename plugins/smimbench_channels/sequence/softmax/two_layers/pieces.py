"""The pieces of the (m, d) plane on which the integrand of two layers and two tokens lives, the ends of their columns,
and the rule's numbers.

Columns are of constant ``d``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import array_api_compat

from smimbench.backend import clip, namespace
from smimbench.interfaces import Array

__all__ = ["Pieces", "Rule", "column_range", "make_pieces"]

FAR = 700.0
"""Logarithms are cut here, where exp still gives a finite number. Doubled: overflow."""


@dataclass(frozen=True)
class Rule:
    """One adaptive quadrature."""

    V: tuple[float, float, float]  # V_11, V_12, V_22
    skip: float  # c >= 0
    accuracy: float  # target for the relative error of every sample; doubled: less time, twice the error
    full: bool  # all second moments instead of their three traces over tokens
    # Columns of a piece, and points of a column, to begin with. Doubled: twice the time, up to half the error.
    points: int
    # How often these are doubled at most; memory of the compiled version grows as 2^rounds. Doubled: the same in three cases.
    rounds: int = 9
    # Columns and pieces below this times the accuracy of the whole are not refined. Doubled: the same, 2e-4 of the target.
    negligible: float = 1e-4
    # Part of the error that columns may have; the rest is for pieces. Doubled: the same true error, a tenth more reported.
    share: float = 0.2

    @property
    def moments(self) -> int:
        """Number of sums: the weight, 4 first moments, and 10 second moments or 3 traces of them."""
        return 15 if self.full else 8


@dataclass
class Pieces:
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

    def take(self, index: Array) -> Pieces:
        """Some of the pieces."""
        xp = namespace(index)
        return Pieces(**{f.name: xp.take(getattr(self, f.name), index, axis=0) for f in fields(self)})


def make_pieces(
    xp: Any, u: Array, omega: Array, V: tuple[float, float, float], c: float, reach: Array, level: Array
) -> tuple[Pieces, Array]:
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
    pieces = Pieces(
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


def column_range(xp: Any, pieces: Pieces, d: Array, c: float, v11: float) -> tuple[Array, Array]:
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
    value = xp.where(found, value, FAR)
    return clip(xp.where(inside, value, -FAR), -FAR, FAR)
