r"""Many one-dimensional Gaussian integrals at once, each refined where its own integrand asks for it.

.. math:: Z = \int \phi(t)\, e^{\ell(t)}\, dt, \qquad E[t], \qquad E[t^2]

for a batch of lines, each with its own ``ell``. The integrand may be narrow (any width), have several peaks, be zero
outside a set (``ell = -inf``) or jump. Every line starts from the same cells; in every round the worst cells of the lines
that are not done are split: at the jump, found by bisection, if there is one inside, otherwise in the middle. Everything
happens in the log domain, so that a peak far out in the tail of the Gaussian is found as well.
"""

from __future__ import annotations

import math
from functools import lru_cache, reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smimbench.backend.arrays import clip
from smimbench.numerics.masked import put_at_mask
from smimbench.numerics.quadrature import gauss_lobatto

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from smimbench.interfaces import Array

__all__ = ["IMPOSSIBLE", "LineMoments", "line_moments"]

IMPOSSIBLE = -1e30
"""Stands for the logarithm of zero: sums and differences of it stay finite."""

_DEAD = 0.5 * IMPOSSIBLE
"""Logarithms below this are zeros."""
_TINY = 1e-300
"""Keeps logarithms and quotients finite."""
_NODES = 5
"""Nodes of a cell; doubled, smooth integrands need fewer rounds, and every cell costs twice as much."""
_DEPTH = 60.0
"""Cells below ``exp(-_DEPTH)`` of the highest one are dropped; doubled, more cells are kept that carry nothing."""
_SPLITS = 2
"""Cells that a line splits in a round; doubled, half the rounds with up to twice the work."""
_EDGES = (0.0, 1.2, 2.5, 4.0, 6.5, 10.5, 17.0, 26.0, 38.0)
"""Ends of the first cells; twice as many make easy lines dearer and hard ones cheaper."""
_COMB = np.linspace(-8.0, 8.0, 1025)
"""Ends of the cells of the fine comb; with twice as many, supports half as narrow are found."""
_COMB_LINES = 256
"""Lines that are combed at once; doubled, twice the memory."""


class LineMoments(NamedTuple):
    """Result for every line.

    Attributes
    ----------
    log_norm : array (N,)
        ``log Z``; ``IMPOSSIBLE`` where the integrand was zero at every point that was tried.
    mean, square : array (N,)
        ``E[t]`` and ``E[t^2]`` under the normalised integrand; 0 and 1 where it was zero everywhere.
    error : array (N,)
        Estimate of the error of ``mean``; infinite where the integrand was zero everywhere.
    """

    log_norm: Array
    mean: Array
    square: Array
    error: Array


def line_moments(
    log_weight: Callable[[Array, Array], Array],
    count: int,
    xp: ModuleType,
    device: Any,
    *,
    tolerance: float,
    reach: float = 38.0,
    rounds: int = 48,
    search: bool = True,
    places: Sequence[float] = (),
) -> LineMoments:
    """Moments of ``phi(t) exp(log_weight(t))`` on every line.

    Parameters
    ----------
    log_weight : callable
        ``(t, lines)`` to ``ell``: ``t`` (N', k) points, ``lines`` (N',) the numbers of the lines they lie on, result
        (N', k), where anything below ``IMPOSSIBLE`` is a zero of the integrand.
    count : int
        N, number of lines.
    xp, device
        Namespace and device to work on, in float64.
    tolerance : float
        Error of ``mean`` at which a line is done.
    reach : float
        Ends of the lines.
    rounds : int
        At most so many rounds of a few splits each.
    search : bool
        Whether to go over lines with a fine comb where nothing but zeros was found.
    places : sequence of float
        Points of all lines close to which much may happen: ends of cells to begin with.

    Returns
    -------
    LineMoments
    """
    edges = np.array([e for e in _EDGES if e < reach] + [reach])
    edges = np.concatenate([-edges[:0:-1], edges])
    edges = np.unique(np.concatenate([edges, [place for place in places if abs(place) < reach]]))
    numbers = xp.arange(count, device=device)
    engine = _LineIntegrator(log_weight, xp, device, tolerance)
    found = engine.integrate(numbers, edges, rounds)
    if not search:
        return found
    lost = xp.nonzero(found.log_norm <= _DEAD)[0]
    if not lost.shape[0]:
        return found
    numbers = xp.take(numbers, lost)
    parts = [
        engine.integrate(numbers[i : i + _COMB_LINES], _COMB, rounds) for i in range(0, lost.shape[0], _COMB_LINES)
    ]
    again = (xp.concat(list(column)) for column in zip(*parts))
    mask = found.log_norm <= _DEAD
    return LineMoments(*(put_at_mask(old, mask, new) for new, old in zip(again, found)))


class _Cells(NamedTuple):
    """Cells of every line, (N, B) each.

    ``mass``, ``first`` and ``second`` are the integrals of 1, t - middle and its square, over ``exp(top)``. ``inner``,
    ``left`` and ``right`` bound the log-integrand between the nodes, where the highest node next to the gap is an inner
    one, the left end or the right end; ``before`` and ``after`` are values next to the cell, outside of it. ``live`` is 0
    for cells that have been split, 1 for the others.
    """

    middle: Array
    half: Array
    top: Array
    mass: Array
    first: Array
    second: Array
    log_error: Array
    inner: Array
    left: Array
    right: Array
    left_end: Array
    right_end: Array
    before: Array
    after: Array
    live: Array


class _LineIntegrator:
    def __init__(
        self, log_weight: Callable[[Array, Array], Array], xp: ModuleType, device: Any, tolerance: float
    ) -> None:
        self.log_weight, self.xp, self.device, self.tolerance = log_weight, xp, device, tolerance

    def integrate(self, lines: Array, edges: np.ndarray[Any, Any], rounds: int) -> LineMoments:
        xp, count = self.xp, lines.shape[0]
        shape = (count, len(edges) - 1)
        place = {"dtype": xp.float64, "device": self.device}
        middle = xp.broadcast_to(xp.asarray((edges[1:] + edges[:-1]) / 2, **place), shape)
        half = xp.broadcast_to(xp.asarray(np.diff(edges) / 2, **place), shape)
        values = self.values(lines, middle, half)
        outside = xp.full((count, 1), IMPOSSIBLE, **place)
        before = xp.concat([outside, values[-2][:, :-1]], axis=1)
        after = xp.concat([values[1][:, 1:], outside], axis=1)
        cells = self.assess(values, middle, half, before, after)
        if shape[1] > len(_COMB) // 2:
            # Every tooth that met something stays: dropping one would lose its share of the norm without a trace.
            met = cells.top > clip(xp.max(cells.top, axis=1, keepdims=True) - _DEPTH, _DEAD, None)
            # cells of the comb that are kept at least
            kept = max(12, int(xp.max(xp.sum(xp.astype(met, xp.int64), axis=1))))
            order = xp.argsort(cells.top, axis=1, descending=True)[:, :kept]
            cells = _Cells(*(xp.take_along_axis(a, order, axis=1) for a in cells))
        results: list[tuple[Array, LineMoments]] = []
        for step in range(rounds + 1):
            found, priority, going_on = self.judge(cells)
            if step == rounds:
                going_on = xp.zeros_like(going_on)
            finished, rest = xp.nonzero(~going_on)[0], xp.nonzero(going_on)[0]
            # Moving the lines together costs as much as a round: wait until it pays.
            if not rest.shape[0] or finished.shape[0] > lines.shape[0] // 4:
                results.append((xp.take(lines, finished), LineMoments(*(xp.take(a, finished) for a in found))))
                if not rest.shape[0]:
                    break
                lines, priority = xp.take(lines, rest), xp.take(priority, rest, axis=0)
                cells = _Cells(*(xp.take(a, rest, axis=0) for a in cells))
            cells = self.refine(lines, cells, priority)
        order = xp.argsort(xp.concat([who for who, _ in results]))
        columns = zip(*(part for _, part in results))
        return LineMoments(*(xp.take(xp.concat(list(column)), order) for column in columns))

    def integrand(self, t: Array, lines: Array) -> Array:
        return clip(self.log_weight(t, lines), IMPOSSIBLE, None) - t * t / 2

    def values(self, lines: Array, middle: Array, half: Array) -> list[Array]:
        """Log-integrand at the m nodes of cells (N, k), one array (N, k) for every node."""
        xp = self.xp
        k = middle.shape[1]
        # Node by node, so that nothing is ever summed over an axis as short as m.
        t = xp.concat([middle + half * float(node) for node in _rule()[0]], axis=1)
        found = self.integrand(t, lines)
        return [found[:, i * k : (i + 1) * k] for i in range(_NODES)]

    def assess(self, values: list[Array], middle: Array, half: Array, before: Array, after: Array) -> _Cells:
        xp = self.xp
        nodes, weights, transform = _rule()
        top = reduce(xp.maximum, values)
        alive = top > _DEAD
        # Zeros are kept 1e9 below the top: far enough to vanish, near enough to compute with.
        floor = top - 1e9
        values = [xp.maximum(v, floor) for v in values]
        living = xp.astype(alive, xp.float64)
        shape = [xp.exp(clip(v - top, -700.0, None)) * living for v in values]
        mass = sum(float(w) * p for w, p in zip(weights, shape)) * half
        first = sum(float(w * x) * p for w, x, p in zip(weights, nodes, shape) if abs(x) > 1e-9) * half**2
        second = sum(float(w * x * x) * p for w, x, p in zip(weights, nodes, shape) if abs(x) > 1e-9) * half**3
        size = [xp.abs(sum(float(c) * p for c, p in zip(column, shape))) for column in transform.T]
        low, high = xp.maximum(size[0], size[1]), xp.maximum(size[2], size[3])
        # Legendre coefficients of a resolved integrand fall geometrically, and the rule is exact up to degree 2 m - 3.
        # Those of a step do not: high / low is at least 1/4 wherever it is.
        ratio = high / clip(low, _TINY, None)
        # safety of the error of a cell
        error = clip(high * clip((5.0 * ratio) ** 2, None, 1.5), _TINY, None)
        nothing = xp.full_like(top, IMPOSSIBLE)
        log_error = xp.where(alive, top + xp.log(clip(2 * half * error, _TINY, None)), nothing)
        # change of the logarithm within a cell from which a peak may hide between its nodes
        rough = alive & (top - reduce(xp.minimum, values) > 8.0)
        inner, left, right = (xp.where(rough, a, nothing) for a in self.bounds(values, half))
        ends = values[0], values[-1]
        return _Cells(
            middle,
            half,
            top,
            mass,
            first,
            second,
            log_error,
            inner,
            left,
            right,
            *ends,
            before,
            after,
            xp.ones_like(top),
        )

    def bounds(self, values: list[Array], half: Array) -> tuple[Array, Array, Array]:
        """How high a log-integrand that is concave in the cell may rise next to a node that is higher than its neighbours.

        A peak lies next to such a node; the slopes on either side of a gap bound what happens in it. For the two ends the
        neighbour outside decides later whether they are such nodes.
        """
        xp = self.xp
        gaps = np.diff(_rule()[0])
        rise = []
        for i, gap in enumerate(gaps):
            sides = []
            if i > 0:
                sides.append(values[i] + (values[i] - values[i - 1]) * float(gap / gaps[i - 1]))
            if i < len(gaps) - 1:
                sides.append(values[i + 1] + (values[i + 1] - values[i + 2]) * float(gap / gaps[i + 1]))
            rise.append(xp.maximum(reduce(xp.minimum, sides), xp.maximum(values[i], values[i + 1])))
        width = xp.log(clip(2 * half, _TINY, None))
        nothing = xp.full_like(half, IMPOSSIBLE)
        inner = nothing
        for i in range(1, _NODES - 1):
            peak = (values[i] >= values[i - 1]) & (values[i] >= values[i + 1])
            inner = xp.where(peak, xp.maximum(inner, xp.maximum(rise[i - 1], rise[i])), inner)
        left = xp.where(values[0] >= values[1], rise[0] + width, nothing)
        right = xp.where(values[-1] >= values[-2], rise[-1] + width, nothing)
        return inner + width, left, right

    def judge(self, cells: _Cells) -> tuple[LineMoments, Array, Array]:
        """Moments so far, the urgency of every cell (N, B), and which lines are not done."""
        xp = self.xp
        nothing = xp.full_like(cells.top, IMPOSSIBLE)
        live = cells.live > 0
        tops = xp.where(live, cells.top, nothing)
        top = xp.max(tops, axis=-1)
        dead = top <= _DEAD
        factor = xp.exp(clip(tops - top[:, None], -700.0, None)) * cells.live
        norm = xp.sum(cells.mass * factor, axis=-1)
        safe = xp.where(dead, xp.ones_like(norm), norm)
        mean = xp.sum((cells.first + cells.mass * cells.middle) * factor, axis=-1) / safe
        offset = cells.middle - mean[:, None]
        spread = cells.second + 2 * cells.first * offset + cells.mass * offset * offset
        square = xp.sum(spread * factor, axis=-1) / safe + mean * mean
        log_norm = top + xp.log(safe)
        # The norm matters too, even where the integrand is so narrow that any norm gives the right mean.
        # weight of the error of the norm relative to that of the mean
        lever = (xp.abs(offset) + cells.half + 0.1) * cells.live
        errors = xp.exp(clip(cells.log_error - log_norm[:, None], -700.0, 300.0)) * lever
        error = xp.sum(errors, axis=-1)
        potential = xp.where(cells.left_end >= cells.before, cells.left, nothing)
        potential = xp.maximum(potential, xp.where(cells.right_end >= cells.after, cells.right, nothing))
        potential = xp.where(live, xp.maximum(potential, cells.inner), nothing) - log_norm[:, None]
        hidden = xp.max(potential, axis=-1)
        going_on = ~dead & ((error > self.tolerance) | (hidden > math.log(self.tolerance)))
        priority = xp.maximum(xp.log(clip(errors, _TINY, None)), potential)
        ones = xp.ones_like(norm)
        found = LineMoments(
            xp.where(dead, IMPOSSIBLE * ones, log_norm - math.log(math.sqrt(2 * math.pi))),
            xp.where(dead, 0 * ones, mean),
            xp.where(dead, ones, square),
            xp.where(dead, math.inf * ones, error + xp.exp(clip(hidden, -700.0, 0.0))),
        )
        return found, xp.where(live, priority, -math.inf * xp.ones_like(priority)), going_on

    def refine(self, lines: Array, cells: _Cells, priority: Array) -> _Cells:
        """Split the most urgent cells of every line."""
        xp = self.xp
        index = xp.arange(priority.shape[1], device=self.device)
        live, chosen = cells.live, []
        for _ in range(_SPLITS):
            at = xp.argmax(priority, axis=1, keepdims=True)
            chosen.append(at)
            here = index == at
            priority = xp.where(here, xp.full_like(priority, -math.inf), priority)
            live = xp.where(here, xp.zeros_like(live), live)
        at = xp.concat(chosen, axis=1)
        middle, half, before, after = (
            xp.take_along_axis(a, at, axis=1) for a in (cells.middle, cells.half, cells.before, cells.after)
        )
        where = self.split_points(lines, middle, half)
        left, right = middle - half, middle + half
        low, high = xp.concat([left, where], axis=1), xp.concat([where, right], axis=1)
        centre, width = (low + high) / 2, (high - low) / 2
        values = self.values(lines, centre, width)
        # What lies beyond the split, for each of the two halves.
        before = xp.concat([before, values[-2][:, :_SPLITS]], axis=1)
        after = xp.concat([values[1][:, _SPLITS:], after], axis=1)
        children = self.assess(values, centre, width, before, after)
        merged = zip(cells._replace(live=live), children)
        return _Cells(*(xp.concat([old, new], axis=1) for old, new in merged))

    def split_points(self, lines: Array, middle: Array, half: Array) -> Array:
        """Where to split: at the jump that explains most of what the log-integrand does in the cell, or in the middle."""
        xp = self.xp
        values = self.values(lines, middle, half)
        top = reduce(xp.maximum, values)
        values = [xp.maximum(v, top - _DEPTH) for v in values]
        steps = [xp.abs(b - a) for a, b in pairwise(values)]
        largest = reduce(xp.maximum, steps)
        # a gap with this share of the change of its cell holds a jump
        jump = (largest > 0.7 * (top - reduce(xp.minimum, values))) & (largest > 0.1) & (top > _DEAD)
        any_jump = xp.any(jump, axis=1)
        rows = xp.nonzero(any_jump)[0]
        if not rows.shape[0]:
            return middle
        low, high, one, other = (xp.zeros_like(middle) for _ in range(4))
        for i, step in enumerate(steps):
            here = step >= largest
            a, b = (middle + half * float(_rule()[0][j]) for j in (i, i + 1))
            low, high = xp.where(here, a, low), xp.where(here, b, high)
            one, other = xp.where(here, values[i], one), xp.where(here, values[i + 1], other)
        low, high, one, other = (xp.take(a, rows, axis=0) for a in (low, high, one, other))
        level, rising = (one + other) / 2, other > one
        some = xp.take(lines, rows)
        # each step halves the part of a cell in which the jump may be
        for _ in range(13):
            centre = (low + high) / 2
            right = (self.integrand(centre, some) > level) == rising
            low, high = xp.where(right, low, centre), xp.where(right, centre, high)
        found = put_at_mask(middle, any_jump, (low + high) / 2)
        margin = half * (1 - 1e-6)
        found = xp.minimum(xp.maximum(found, middle - margin), middle + margin)
        return xp.where(jump, found, middle)


@lru_cache(maxsize=1)
def _rule() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Gauss-Lobatto nodes and weights, and the matrix from node values to Legendre coefficients 1 .. m - 1.

    The ends of a cell are nodes, so that a sliver of the support that reaches in from the neighbour is seen.
    """
    nodes, weights = gauss_lobatto(_NODES)
    transform = np.linalg.inv(np.polynomial.legendre.legvander(nodes, _NODES - 1))
    return nodes, weights, transform[1:].T
