r"""Many one-dimensional Gaussian integrals at once, each refined where its own integrand asks for it.

.. math:: Z = \int \phi(t)\, e^{\ell(t)}\, dt, \qquad \bar t = E[t], \quad E[t^2]

for a batch of lines, each with its own ``ell``. The integrand may be narrow (any width), have several peaks, be zero
outside a set (``ell = -inf``) or jump. Every line starts from the same cells; in every round the worst cells of the lines
that are not done are split: at the jump, found by bisection, if there is one inside, otherwise in the middle. Everything
happens in the log domain, so that a peak far out in the tail of the Gaussian is found as well.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import array_api_compat
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from smimbench.interfaces import Array

__all__ = ["IMPOSSIBLE", "LineMoments", "line_moments"]

IMPOSSIBLE = -1e30
"""Stands for the logarithm of zero: sums and differences of it stay finite."""

_DEAD = 0.5 * IMPOSSIBLE
_NODES = 5
_DEPTH = 60.0
_ROUGH = 8.0
_JUMP = 0.7
_BISECTIONS = 13
_EDGES = (0.0, 1.2, 2.5, 4.0, 6.5, 10.5, 17.0, 26.0, 38.0)


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
    rounds: int = 24,
    splits: int = 2,
    search: bool = True,
) -> LineMoments:
    """Moments of ``phi(t) exp(log_weight(t))`` on every line.

    Parameters
    ----------
    log_weight : callable
        ``(t, lines)`` to ``ell``: ``t`` (N', k) points, ``lines`` (N',) the numbers of the lines they lie on, result
        (N', k) with ``IMPOSSIBLE`` (or less) for zero.
    count : int
        N, number of lines.
    xp, device
        Namespace and device to work on, in float64.
    tolerance : float
        Error of ``mean`` at which a line is done.
    reach : float
        Ends of the lines.
    rounds, splits : int
        At most so many rounds, so many cells split in each.
    search : bool
        Whether to go on looking on lines where nothing but zeros was found.

    Returns
    -------
    LineMoments
    """
    place = {"dtype": xp.float64, "device": device}
    edges = np.array([e for e in _EDGES if e < reach] + [reach])
    edges = np.concatenate([-edges[:0:-1], edges])
    lines = xp.arange(count, device=device)
    middle = xp.broadcast_to(xp.asarray((edges[1:] + edges[:-1]) / 2, **place), (count, len(edges) - 1))
    half = xp.broadcast_to(xp.asarray(np.diff(edges) / 2, **place), (count, len(edges) - 1))
    cells = _evaluate(log_weight, lines, middle, half, xp, place)
    done: list[tuple[Array, LineMoments]] = []
    for step in range(rounds + 1):
        found, priority, open_ = _judge(cells, tolerance, search, xp)
        if step == rounds:
            open_ = xp.zeros_like(open_)
        finished = xp.nonzero(~open_)[0]
        if finished.shape[0]:
            done.append((xp.take(lines, finished), LineMoments(*(xp.take(a, finished) for a in found))))
        rest = xp.nonzero(open_)[0]
        if not rest.shape[0]:
            break
        if finished.shape[0]:
            lines, priority = xp.take(lines, rest), xp.take(priority, rest, axis=0)
            cells = _Cells(*(xp.take(a, rest, axis=0) for a in cells))
        cells = _refine(log_weight, lines, cells, priority, splits, xp, place)
    order = xp.argsort(xp.concat([who for who, _ in done]))
    return LineMoments(*(xp.take(xp.concat(list(column)), order) for column in zip(*(part for _, part in done))))


class _Cells(NamedTuple):
    """Cells of every line (N, B) with the log-integrand at their nodes (N, B, m) and what is thought of them."""

    middle: Array
    half: Array
    values: Array
    log_error: Array
    potential: Array


@lru_cache(maxsize=1)
def _rule() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Gauss-Legendre nodes and weights, and the matrix from node values to Legendre coefficients 1 .. m - 1."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    vandermonde = np.polynomial.legendre.legvander(nodes, _NODES - 1)
    transform = (vandermonde * weights[:, None] * (np.arange(_NODES) + 0.5)).T
    return nodes, weights, transform[1:].T


def _evaluate(
    log_weight: Callable[[Array, Array], Array], lines: Array, middle: Array, half: Array, xp: ModuleType, place: Any
) -> _Cells:
    nodes, _, transform = (xp.asarray(a, **place) for a in _rule())
    n, k = middle.shape
    t = xp.reshape(middle[..., None] + half[..., None] * nodes, (n, k * _NODES))
    values = xp.reshape(_integrand(log_weight, t, lines, xp), (n, k, _NODES))
    top = xp.max(values, axis=-1)
    alive = top > _DEAD
    shape = xp.exp(xp.clip(values - top[..., None], -700.0, None)) * xp.astype(values > _DEAD, xp.float64)
    size = xp.abs(xp.matmul(shape, transform))
    low = xp.maximum(size[..., 0], size[..., 1])
    high = xp.maximum(size[..., 2], size[..., 3])
    # Legendre coefficients of a resolved integrand fall geometrically, and the rule is exact up to degree 2 m - 1.
    ratio = xp.clip(high / xp.clip(low, 1e-300, None), None, 1.0)
    error = xp.clip(high * ratio**3, 1e-300, None)
    nothing = xp.full_like(top, IMPOSSIBLE)
    log_error = xp.where(alive, top + xp.log(2 * half * error), nothing)
    depth = xp.clip(top - xp.min(values, axis=-1), None, _DEPTH)
    # A peak between two nodes may be higher than both.
    rough = alive & (depth > _ROUGH)
    potential = xp.where(rough, top + depth / 2 + xp.log(2 * half), nothing)
    return _Cells(middle, half, values, log_error, potential)


def _integrand(log_weight: Callable[[Array, Array], Array], t: Array, lines: Array, xp: ModuleType) -> Array:
    return xp.clip(log_weight(t, lines), IMPOSSIBLE, None) - t * t / 2


def _judge(cells: _Cells, tolerance: float, search: bool, xp: ModuleType) -> tuple[LineMoments, Array, Array]:
    """Moments so far, the urgency of every cell (N, B), and which lines are not done."""
    device = array_api_compat.device(cells.middle)
    nodes, weights, _ = (xp.asarray(a, dtype=xp.float64, device=device) for a in _rule())
    top = xp.max(xp.max(cells.values, axis=-1), axis=-1)
    dead = top <= _DEAD
    mass = xp.exp(xp.clip(cells.values - top[:, None, None], -700.0, None)) * (cells.half[..., None] * weights)
    mass = mass * xp.astype(cells.values > _DEAD, xp.float64)
    t = cells.middle[..., None] + cells.half[..., None] * nodes
    norm = xp.sum(mass, axis=(-2, -1))
    safe = xp.where(dead, xp.ones_like(norm), norm)
    mean = xp.sum(mass * t, axis=(-2, -1)) / safe
    square = xp.where(dead, xp.ones_like(norm), xp.sum(mass * t * t, axis=(-2, -1)) / safe)
    log_norm = top + xp.log(safe)
    lever = xp.log(xp.abs(cells.middle - mean[:, None]) + cells.half)
    errors = cells.log_error + lever - log_norm[:, None]
    error = xp.sum(xp.exp(xp.clip(errors, -700.0, 300.0)), axis=-1)
    hidden = xp.max(cells.potential, axis=-1) - log_norm
    open_ = ~dead & ((error > tolerance) | (hidden > math.log(tolerance)))
    priority = xp.maximum(errors, cells.potential - log_norm[:, None])
    if search:
        open_ = open_ | dead
        wide = xp.log(cells.half) - cells.middle**2 / 2
        priority = xp.where(dead[:, None], wide, priority)
    normalisation = math.log(math.sqrt(2 * math.pi))
    log_norm = xp.where(dead, xp.full_like(norm, IMPOSSIBLE), log_norm - normalisation)
    error = xp.where(dead, xp.full_like(norm, math.inf), error + xp.exp(xp.clip(hidden, -700.0, 0.0)))
    return LineMoments(log_norm, mean, square, error), priority, open_


def _refine(
    log_weight: Callable[[Array, Array], Array],
    lines: Array,
    cells: _Cells,
    priority: Array,
    splits: int,
    xp: ModuleType,
    place: Any,
) -> _Cells:
    order = xp.argsort(priority, axis=-1, descending=True)
    cells = _Cells(*(_sorted(a, order, xp) for a in cells))
    worst = _Cells(*(a[:, :splits, ...] for a in cells))
    where = _split_points(log_weight, lines, worst, xp, place)
    left, right = worst.middle - worst.half, worst.middle + worst.half
    low = xp.concat([left, where], axis=1)
    high = xp.concat([where, right], axis=1)
    children = _evaluate(log_weight, lines, (low + high) / 2, (high - low) / 2, xp, place)
    return _Cells(*(xp.concat([new, old[:, splits:, ...]], axis=1) for new, old in zip(children, cells)))


def _sorted(array: Array, order: Array, xp: ModuleType) -> Array:
    if array.ndim == 2:
        return xp.take_along_axis(array, order, axis=1)
    return xp.stack([xp.take_along_axis(array[..., i], order, axis=1) for i in range(array.shape[-1])], axis=-1)


def _split_points(
    log_weight: Callable[[Array, Array], Array], lines: Array, cells: _Cells, xp: ModuleType, place: Any
) -> Array:
    """Where to split: at the jump that explains most of what the log-integrand does in the cell, or in the middle."""
    nodes = xp.asarray(_rule()[0], **place)
    top = xp.max(cells.values, axis=-1)
    values = xp.maximum(cells.values, top[..., None] - _DEPTH)
    steps = xp.abs(values[..., 1:] - values[..., :-1])
    largest = xp.max(steps, axis=-1)
    jump = (largest > _JUMP * (top - xp.min(values, axis=-1))) & (largest > 0.1) & (top > _DEAD)
    rows = xp.nonzero(xp.any(jump, axis=1))[0]
    if not rows.shape[0]:
        return cells.middle
    n, k = jump.shape
    at = xp.argmax(steps, axis=-1)[..., None]
    index = xp.arange(_NODES, device=place["device"])
    pick_low, pick_high = xp.astype(index == at, xp.float64), xp.astype(index == at + 1, xp.float64)
    t = cells.middle[..., None] + cells.half[..., None] * nodes
    low, high = (xp.take(xp.sum(t * pick, axis=-1), rows, axis=0) for pick in (pick_low, pick_high))
    first, second = (xp.take(xp.sum(values * pick, axis=-1), rows, axis=0) for pick in (pick_low, pick_high))
    level, rising = (first + second) / 2, second > first
    some = xp.take(lines, rows)
    for _ in range(_BISECTIONS):
        centre = (low + high) / 2
        above = _integrand(log_weight, centre, some, xp) > level
        right = above == rising
        low, high = xp.where(right, low, centre), xp.where(right, centre, high)
    # Back to all rows: the array API has no scatter, but a row's place among the chosen ones is a cumulative sum.
    chosen = xp.any(jump, axis=1)
    place_of = xp.clip(xp.cumulative_sum(xp.astype(chosen, xp.int64)) - 1, 0, None)
    found = xp.take((low + high) / 2, place_of, axis=0)
    return xp.where(jump, found, cells.middle)
