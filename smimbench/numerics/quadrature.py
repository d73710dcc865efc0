r"""Quadrature: nodes and weights of rules, and many one-dimensional Gaussian integrals at once by adaptive quadrature.

**Rules** are built on the host in float64: every function returns read-only NumPy arrays ``nodes, weights``, (count,) each
unless it says otherwise; move them with ``Backend.asarray`` or ``xp.asarray(..., device=...)``.

**Adaptive quadrature** computes Gaussian integrals with a refinement of its own for each integrand,

.. math:: Z = \int \phi(t)\, e^{\ell(t)}\, dt, \qquad E[t], \qquad E[t^2]

for a batch of lines, each with its own ``ell``. The integrand may be narrow (any width), have several peaks, be zero
outside a set (``ell = -inf``) or jump. Every line starts from the same cells; in every round the worst cells of the lines
that are not done are split: at the jump, found by bisection, if there is one inside, otherwise in the middle. Everything
happens in the log domain, so that a peak far out in the tail of the Gaussian is found as well. The cells are kept on the host;
the integrand is evaluated wherever its arrays live.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from types import ModuleType
from typing import NamedTuple

import numpy as np

from smimbench.backend.arrays import to_host
from smimbench.interfaces import Array, Host

Nodes = tuple[Host, Host]


def _read_only(nodes: Host, weights: Host) -> Nodes:
    """Make the arrays of nodes and weights of a rule read-only, and return them; rules are cached and shared."""
    # The arrays are shared by all callers of a cached function.
    nodes.flags.writeable = False
    weights.flags.writeable = False
    return nodes, weights


@lru_cache(maxsize=64)
def gauss_hermite(count: int) -> Nodes:
    """Gauss-Hermite rule of ``count`` nodes for the standard normal law, ``E f(x) ~ sum_i w_i f(x_i)``: exact for polynomials
    up to degree ``2 count - 1``.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(count)
    return _read_only(nodes, weights / weights.sum())


@lru_cache(maxsize=64)
def gauss_legendre(count: int, lower: float = -1.0, upper: float = 1.0) -> Nodes:
    """Gauss-Legendre rule of ``count`` nodes for ``int_lower^upper f(x) dx``: exact for polynomials up to degree ``2 count -
    1``.
    """
    nodes, weights = np.polynomial.legendre.leggauss(count)
    half_width = 0.5 * (upper - lower)
    return _read_only(0.5 * (upper + lower) + half_width * nodes, half_width * weights)


@lru_cache(maxsize=64)
def gauss_lobatto(count: int) -> Nodes:
    """Gauss-Lobatto rule of ``count`` nodes, both ends among them, for ``int_{-1}^1 f(x) dx``: exact for polynomials up to
    degree ``2 count - 3``. ``legendre`` is the Legendre polynomial whose extrema are the inner nodes.
    """
    legendre = np.polynomial.legendre.Legendre.basis(count - 1)
    nodes = np.concatenate([[-1.0], np.sort(legendre.deriv().roots().real), [1.0]])
    return _read_only(nodes, 2 / (count * (count - 1) * legendre(nodes) ** 2))


@lru_cache(maxsize=64)
def half_plane_hermite(count: int) -> Nodes:
    """Product of two Gauss-Hermite rules (``count`` nodes each) for two independent standard normals ``(x, y)`` and functions
    even in y: nodes (2, N) and weights (N,). Only nodes with y >= 0 are kept (``nonnegative_half``), with doubled weights.

    ``count``, even, nodes along x: nodes (2, count, count / 2), weights (count, count / 2) whose sum is 1.
    """
    node_coordinates, node_weights = gauss_hermite(count)
    nonnegative_half = slice(count // 2, None)
    return _read_only(
        np.stack(
            np.meshgrid(
                node_coordinates, node_coordinates[nonnegative_half], indexing="ij"
            )
        ),
        2 * np.outer(node_weights, node_weights[nonnegative_half]),
    )


@lru_cache(maxsize=64)
def gaussian_trapezoid(count: int) -> Nodes:
    """Trapezoidal rule of ``count`` equidistant nodes for the standard normal law on ``[-8.5, 8.5]``, which omits a mass of
    2e-17; the weights add up to 1.

    Unlike Gauss-Hermite it keeps its resolution in the tails and for integrands that are far from polynomials: for those
    analytic in the strip ``|Im x| < a`` and spacing ``h`` the error is ``O(exp(-2 pi a / h))``. Every second node of an odd
    rule is a rule of half the resolution.
    """
    nodes = np.linspace(-8.5, 8.5, count)
    weights = np.exp(-0.5 * nodes * nodes)
    return _read_only(nodes, weights / weights.sum())


@cache
def gauss_kronrod() -> tuple[Host, Host, Host]:
    """Gauss-Kronrod rule on (-1, 1): the 15 nodes, their Kronrod weights, and the weights of the 7-point Gauss rule at every
    second node; the two integrals differ by about the error.
    """
    positive_nodes = [
        0.991455371120812639206854697526329,
        0.949107912342758524526189684047851,
    ]
    positive_nodes += [
        0.864864423359769072789712788640926,
        0.741531185599394439863864773280788,
    ]
    positive_nodes += [
        0.586087235467691130294144691693013,
        0.405845151377397166906606412076961,
    ]
    positive_nodes += [0.207784955007898467600689403773245]
    half_kronrod_weights = [
        0.022935322010529224963732008058970,
        0.063092092629978553290700663189204,
    ]
    half_kronrod_weights += [
        0.104790010322250183839876322541518,
        0.140653259715525918745189590510238,
    ]
    half_kronrod_weights += [
        0.169004726639267902826583426598550,
        0.190350578064785409913256402421014,
    ]
    half_kronrod_weights += [0.204432940075298892414161999234649]
    half_gauss_weights = [
        0.129484966168869693270611432679082,
        0.279705391489276667901467771423780,
    ]
    half_gauss_weights += [0.381830050505118944950369775488975]
    rule_arrays = (
        np.array([-node for node in positive_nodes] + [0.0] + positive_nodes[::-1]),
        np.array(
            [
                *half_kronrod_weights,
                0.209482141084727828012999174891714,
                *half_kronrod_weights[::-1],
            ]
        ),
        np.array(
            [
                *half_gauss_weights,
                0.417959183673469387755102040816327,
                *half_gauss_weights[::-1],
            ]
        ),
    )
    for array in rule_arrays:
        array.flags.writeable = False  # shared by all callers
    return rule_arrays


IMPOSSIBLE = -1e30
"""Stand-in for the logarithm of zero, for which sums and differences stay finite."""

_NODES = 5
"""Number of nodes per cell; doubled, smooth integrands need fewer rounds, and every cell costs twice as much."""
_EDGES = (0.0, 1.2, 2.5, 4.0, 6.5, 10.5, 17.0, 26.0, 38.0)
"""Ends of the cells to begin with; twice as many make easy lines more expensive and hard ones cheaper."""
_COMB = np.linspace(-8.0, 8.0, 1025)
"""Ends of the cells of the fine comb; with twice as many, supports half as narrow are found."""


class LineMoments(NamedTuple):
    """Moments of one integrand per line (each a one-dimensional integral): the logarithm of its mass (``log_norm``), its mean
    and second moment (``square``) when normalized, and the error of the mean.

    Attributes
    ----------
    log_norm : array (N,)
        ``log Z``; ``IMPOSSIBLE`` where the integrand was zero at every point that was tried.
    mean, square : array (N,)
        ``E[t]`` and ``E[t^2]`` under the normalized integrand; 0 and 1 where it was zero everywhere.
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
    device: object,
    *,
    tolerance: float,
    reach: float = 38.0,
    rounds: int = 48,
    search: bool = True,
    places: Sequence[float] = (),
) -> LineMoments:
    """Mass, mean and second moment of ``phi(t) exp(log_weight(t))`` (phi: standard normal density) on each of ``count`` lines, by
    adaptive quadrature until every mean is accurate to ``tolerance``. ``log_weight(t, lines)`` takes coordinates t and numbers of
    lines; t is cut at ``-reach`` and ``reach`` and first split at ``places``; at most ``rounds`` refinements, on the ``device``
    of the array namespace ``xp``, and lines that seem zero are searched for a peak if ``search``.

    Parameters
    ----------
    log_weight : callable
        ``(t, lines)`` to ``log_weights``: ``t`` (M, k) points, ``lines`` (M,) the numbers of the lines they lie on, result
        (M, k), where anything below ``IMPOSSIBLE`` is a zero of the integrand.
    count : int
        N, number of lines.
    xp, device
        Namespace and device of all arrays, in float64.
    tolerance : float
        Error of ``mean`` at which a line is done.
    reach : float
        Ends of the lines.
    rounds : int
        At most so many rounds of splits.
    search : bool
        Whether to go over lines with a fine comb where nothing but zeros was found.
    places : sequence of float
        Points of all lines close to which much may happen: ends of cells to begin with.

    Returns
    -------
    LineMoments
    """

    def integrand(t: Host, lines: Host) -> Host:
        """Logarithm of the integrand at coordinates t of the numbered ``lines`` (integrals), ``log_weight - t^2 / 2``, as a host
        array.
        """
        log_weights = log_weight(
            xp.asarray(t, dtype=xp.float64, device=device),
            xp.asarray(lines, device=device),
        )
        return np.asarray(np.maximum(to_host(log_weights), IMPOSSIBLE) - t * t / 2)

    positive_edges = [edge for edge in (*_EDGES, *places) if abs(edge) < reach] + [
        reach
    ]
    edges = np.unique(
        [*positive_edges, *(-edge for edge in _EDGES if edge < reach), -reach]
    )
    moments = LineMoments(
        np.full(count, IMPOSSIBLE),
        np.zeros(count),
        np.ones(count),
        np.full(count, np.inf),
    )
    _integrate(integrand, np.arange(count), edges, tolerance, rounds, moments)
    zero_lines: Host = np.flatnonzero(np.isinf(moments.error) & search)
    for start in range(0, len(zero_lines), 256):
        _integrate(
            integrand,
            zero_lines[start : start + 256],
            _COMB,
            tolerance,
            rounds,
            moments,
        )
    return LineMoments(
        *(xp.asarray(column, dtype=xp.float64, device=device) for column in moments)
    )


class _Cells(NamedTuple):
    """Quadrature cells (intervals) of all lines, one number per cell: the number of its ``line``, midpoint, half-width, the
    log-integrand at the cell's m nodes (``values``, (m, M)) and its largest value ``top``, integrals of 1, t, t^2 about the
    midpoint times ``exp(-top)``, and the logarithm of their error. A peak may hide between the nodes of a ``rough`` cell.

    Ordered by line and from left to right; the moments are integrals of 1, t - midpoint and its square.
    """

    line: Host
    midpoint: Host
    half: Host
    values: Host
    top: Host
    mass: Host
    first_moment: Host
    second_moment: Host
    log_error: Host
    rough: Host

    def take(self, index: Host) -> _Cells:
        """The cells (intervals) at the given indices."""
        return _Cells(*(np.take(column, index, axis=-1) for column in self))


def _integrate(
    integrand: Callable[[Host, Host], Host],
    lines: Host,
    edges: Host,
    tolerance: float,
    rounds: int,
    all_moments: LineMoments,
) -> None:
    """Integrate ``exp(integrand(t, lines))`` along each of the numbered ``lines``, starting from cells (intervals of t) between
    the ``edges``, and store the results in ``all_moments``. Cells with a large share of the error (high ``priority``) are split
    in two, at most ``rounds`` times, until the mean of every line is accurate to ``tolerance``.
    """
    cell_starts, cell_stops = (
        np.tile(cell_ends, len(lines)) for cell_ends in (edges[:-1], edges[1:])
    )
    cells = _evaluate_cells(
        integrand, np.repeat(lines, len(edges) - 1), cell_starts, cell_stops
    )
    for refinement in range(rounds + 1):
        if not (cells.top > IMPOSSIBLE / 2).all():
            cells = cells.take(
                np.flatnonzero(cells.top > IMPOSSIBLE / 2)
            )  # cells of integrand 0 are left out
        if not len(cells.line):
            return
        line_starts = np.flatnonzero(np.diff(cells.line, prepend=-1))
        cell_counts = np.diff(line_starts, append=len(cells.line))
        moments, priority, is_unfinished = _moments_and_priorities(
            cells, line_starts, cell_counts, tolerance
        )
        for all_column, column in zip(all_moments, moments):
            all_column[cells.line[line_starts]] = column
        if refinement == rounds:
            return
        # Cells that are nearly as bad as the worst of their line have to be split anyway.
        is_split = priority >= np.repeat(
            np.maximum.reduceat(priority, line_starts) - math.log(10), cell_counts
        )
        unfinished_cells = np.flatnonzero(np.repeat(is_unfinished, cell_counts))
        cells_to_copy = np.repeat(unfinished_cells, 1 + is_split[unfinished_cells])
        split_cells = cells.take(unfinished_cells[is_split[unfinished_cells]])
        # The error is infinite until the halves of a cell are evaluated: a narrow support may lie between their nodes.
        all_moments.error[split_cells.line] = np.inf
        cell_starts = split_cells.midpoint - split_cells.half
        cell_stops = split_cells.midpoint + split_cells.half
        split_ends = np.stack(
            [cell_starts, _split_points(integrand, split_cells), cell_stops]
        )
        half_cells = _evaluate_cells(
            integrand,
            np.repeat(split_cells.line, 2),
            split_ends[:2].T.ravel(),
            split_ends[1:].T.ravel(),
        )
        cells = cells.take(cells_to_copy)
        is_half_cell = is_split[cells_to_copy]
        for column, child_column in zip(cells, half_cells):
            column[..., is_half_cell] = child_column


def _evaluate_cells(
    integrand: Callable[[Host, Host], Host], line: Host, low: Host, high: Host
) -> _Cells:
    """Evaluate M cells, intervals from ``low`` to ``high`` (M,) of the coordinate t on the numbered lines (``line``): moments
    by Gauss-Lobatto quadrature, and their error from the decay of Legendre coefficients. ``values`` is the log-integrand at the
    nodes.
    """
    nodes, weights, to_legendre = _lobatto_rule()
    midpoint = (low + high) / 2
    half_width = (high - low) / 2
    values = (
        integrand(midpoint[:, None] + half_width[:, None] * nodes, line).T
        if len(line)
        else np.empty((_NODES, 0))
    )
    largest_value = values.max(axis=0)
    # Zeros are kept 1e9 below the top: far enough to vanish, near enough to compute with.
    values = np.maximum(values, largest_value - 1e9)
    scaled_integrand = np.exp(np.maximum(values - largest_value, -700.0))
    mass, first_moment, second_moment = (
        half_width ** (power + 1) * (weights * nodes**power @ scaled_integrand)
        for power in range(3)
    )
    coefficient_sizes = np.abs(to_legendre @ scaled_integrand)
    low_order_size = coefficient_sizes[:2].max(axis=0)
    high_order_size = coefficient_sizes[2:].max(axis=0)
    # Legendre coefficients of a resolved integrand fall geometrically, and the rule is exact up to degree 2 m - 3.
    # Those of a step do not: their ratio is at least 1/4 wherever it is.
    decay_ratio = high_order_size / np.maximum(low_order_size, 1e-300)
    error = np.maximum(
        2 * half_width * high_order_size * np.minimum((5.0 * decay_ratio) ** 2, 1.5),
        1e-300,
    )
    is_rough = largest_value - values.min(axis=0) > 8.0
    return _Cells(
        line,
        midpoint,
        half_width,
        values,
        largest_value,
        mass,
        first_moment,
        second_moment,
        largest_value + np.log(error),
        is_rough,
    )


def _hidden_mass(cells: _Cells) -> Host:
    """Logarithm (M,) of the largest integral that each of M cells could have missed in a narrow peak between its quadrature
    nodes. ``values`` is the log-integrand at the nodes of rough cells, those in which a peak may hide; in each gap between nodes
    it is bounded by extrapolation from both sides, and only gaps beside a local maximum (``is_peak``) count.

    The log-integrand is taken to be concave.

    It would lie next to a node that is higher than its neighbors; the slopes on either side of a gap bound what happens in it.
    """
    rough_cells = np.flatnonzero(cells.rough)
    values = cells.values[:, rough_cells]
    node_gaps = np.diff(_lobatto_rule()[0])[:, None]
    value_changes = np.diff(values, axis=0)
    impossible_row = np.full((1, len(rough_cells)), IMPOSSIBLE)
    extrapolated_from_left = np.vstack(
        [
            -impossible_row,
            values[1:-1] + value_changes[:-1] * (node_gaps[1:] / node_gaps[:-1]),
        ]
    )
    extrapolated_from_right = np.vstack(
        [
            values[1:-1] - value_changes[1:] * (node_gaps[:-1] / node_gaps[1:]),
            -impossible_row,
        ]
    )
    gap_bound = np.maximum(
        np.minimum(extrapolated_from_left, extrapolated_from_right),
        np.maximum(values[1:], values[:-1]),
    )
    gap_bound = np.vstack([impossible_row, gap_bound, impossible_row])
    line_of_cell = cells.line[rough_cells]
    last_cell = len(cells.line) - 1
    previous_cell = np.maximum(rough_cells - 1, 0)
    next_cell = np.minimum(rough_cells + 1, last_cell)
    left_values = np.where(
        (previous_cell < rough_cells) & (cells.line[previous_cell] == line_of_cell),
        cells.values[-2, previous_cell],
        IMPOSSIBLE,
    )
    right_values = np.where(
        (next_cell > rough_cells) & (cells.line[next_cell] == line_of_cell),
        cells.values[1, next_cell],
        IMPOSSIBLE,
    )
    padded_values = np.vstack([left_values, values, right_values])
    is_peak = (values >= padded_values[:-2]) & (values >= padded_values[2:])
    log_hidden_mass = np.full(cells.line.shape, IMPOSSIBLE)
    peak_height = np.where(
        is_peak, np.maximum(gap_bound[:-1], gap_bound[1:]), IMPOSSIBLE
    ).max(axis=0)
    log_hidden_mass[rough_cells] = peak_height + np.log(2 * cells.half[rough_cells])
    return log_hidden_mass


def _moments_and_priorities(
    cells: _Cells, line_starts: Host, cell_counts: Host, tolerance: float
) -> tuple[LineMoments, Host, Host]:
    """Current moments of every line (one-dimensional integral), the refinement priority of every cell (interval on it; the
    logarithm of its error), and a mask of lines whose mean is not yet accurate to ``tolerance``. ``top`` is the largest
    log-integrand on a line, ``offset`` the distance of a cell's midpoint to the line's mean, ``square`` the second moment; a line
    has ``cell_counts`` cells from ``line_starts`` on.
    """

    def line_sums(cell_numbers: Host) -> Host:
        """Sums over the cells of every line of ``cell_numbers``, one number per cell."""
        return np.add.reduceat(cell_numbers, line_starts)

    top = np.maximum.reduceat(cells.top, line_starts)
    cell_scales = np.exp(np.maximum(cells.top - np.repeat(top, cell_counts), -700.0))
    scaled_norm = line_sums(cells.mass * cell_scales)
    mean = (
        line_sums((cells.first_moment + cells.mass * cells.midpoint) * cell_scales)
        / scaled_norm
    )
    offset = cells.midpoint - np.repeat(mean, cell_counts)
    second_moment = (
        cells.second_moment
        + 2 * cells.first_moment * offset
        + cells.mass * offset * offset
    )
    square = line_sums(second_moment * cell_scales) / scaled_norm + mean * mean
    log_norm = top + np.log(scaled_norm)
    cell_log_norms = np.repeat(log_norm, cell_counts)
    # The norm matters too, even where the integrand is so narrow that any norm gives the right mean.
    distances_to_mean = np.abs(offset) + cells.half + 0.1
    errors = (
        np.exp(np.clip(cells.log_error - cell_log_norms, -700.0, 300.0))
        * distances_to_mean
    )
    hidden_masses = _hidden_mass(cells) - cell_log_norms
    error = line_sums(errors)
    largest_hidden = np.maximum.reduceat(hidden_masses, line_starts)
    is_unfinished = (error > tolerance) | (largest_hidden > math.log(tolerance))
    error = error + np.exp(np.clip(largest_hidden, -700.0, 0.0))
    moments = LineMoments(
        log_norm - math.log(math.sqrt(2 * math.pi)), mean, square, error
    )
    return (
        moments,
        np.maximum(np.log(np.maximum(errors, 1e-300)), hidden_masses),
        is_unfinished,
    )


def _split_points(integrand: Callable[[Host, Host], Host], cells: _Cells) -> Host:
    """Points at which M cells are split in two: inside the largest jump of the log-integrand between nodes, if there is one, or
    else at the midpoint. The jump is located by bisection between the nodes ``low`` and ``high`` beside it.
    """
    log_integrand = np.maximum(cells.values, cells.top - 60.0)
    value_changes = np.diff(log_integrand, axis=0)
    largest_change = np.abs(value_changes).max(axis=0)
    # A gap with this share of the change of its cell holds a jump.
    jump_cells = np.flatnonzero(
        largest_change > np.maximum(0.7 * (cells.top - log_integrand.min(axis=0)), 0.1)
    )
    split_points = cells.midpoint.copy()
    nodes = _lobatto_rule()[0]
    if not len(jump_cells):
        return split_points
    jump_gap = np.abs(value_changes[:, jump_cells]).argmax(axis=0)
    jump_lines = cells.line[jump_cells]
    midpoint = cells.midpoint[jump_cells]
    half_width = cells.half[jump_cells]
    low = midpoint + half_width * nodes[jump_gap]
    high = midpoint + half_width * nodes[jump_gap + 1]
    mean_at_jump = (
        log_integrand[jump_gap, jump_cells] + value_changes[jump_gap, jump_cells] / 2
    )
    is_rising = value_changes[jump_gap, jump_cells] > 0
    # Each step halves the part of a cell in which the jump may be.
    for _ in range(13):
        bisection_point = (low + high) / 2
        is_past_jump = (
            integrand(bisection_point[:, None], jump_lines)[:, 0] > mean_at_jump
        ) == is_rising
        low = np.where(is_past_jump, low, bisection_point)
        high = np.where(is_past_jump, bisection_point, high)
    largest_offset = half_width * (1 - 1e-6)
    split_points[jump_cells] = np.clip(
        (low + high) / 2, midpoint - largest_offset, midpoint + largest_offset
    )
    return split_points


@cache
def _lobatto_rule() -> tuple[Host, Host, Host]:
    """Gauss-Lobatto nodes and weights of a cell (interval), m each, and the matrix (m - 1, m) from values at the nodes to the
    Legendre coefficients 1 to m - 1.

    The ends of a cell are nodes, so that a sliver of the support that reaches in from the neighbor is seen.
    """
    nodes, weights = gauss_lobatto(_NODES)
    to_legendre = np.linalg.inv(np.polynomial.legendre.legvander(nodes, _NODES - 1))
    return nodes, weights, to_legendre[1:]
