"""Tables of the layers before the last in deep attention of two tokens: prior law and moments of the product of their attention
matrices on a grid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING

import numpy as np

from smimbench.interfaces import Host
from smimbench.numerics import normal_points
from smimbench_attention.channels.common import blocks
from smimbench_attention.channels.sequence.softmax.deep import mixing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MOST_NODES = 600
"""Largest number of nodes along each axis. Doubled: larger tables where V is below 1e-4."""


@dataclass(frozen=True)
class TableAccuracy:
    """Resolution of tables of the layers before the last, and of means over labels; each comment says what the number does and
    what doubling it changes. A known layer is one with an overlap; its values stand on the outer grid.
    """

    # Least number of nodes along each axis. Doubled: changes of 2e-5, or 6e-5 with a known layer.
    fewest_nodes: int = 24  # of an axis
    # Largest x and y of a table for 1, 2 and more layers before the last, without a skip connection unbounded: what lies beyond
    # is moved to here, and counted as an error. Doubled (not measured): a wider spacing or more nodes, less beyond.
    farthest: tuple[float, ...] = (1e8, 1e18, 1e30)  # x and y of a table
    # Points of the prior integral over more layers. Doubled: twice the time for tables, changes of 1e-4.
    table_points: int = 2**18
    # Largest spacing of the outer grid over ``V^{1/2}`` of the known layer. Doubled: a quarter of the tables, errors of 1e-3.
    outer_step: float = 0.3  # in V^(1/2) of the known layer
    # Outer grids for V between one and twice as large. Doubled: wider spacings, fewer modes, and more tables along a curve.
    spread_steps: int = 4  # grids between V and 2 V
    # Labels of each scramble. Doubled: twice the time, ``1 / sqrt(2)`` of the standard error or less.
    labels: int = 2**12  # of a scramble
    # The same with a known layer before the last.
    outer_labels: int = 2**11  # of a scramble, with an outer grid
    # Independent sets of labels. Doubled: twice the time, ``1 / sqrt(2)`` of the standard error, which is better known.
    scrambles: int = 16  # of the points for labels

    def with_labels(self, labels: int) -> TableAccuracy:
        """Copy of these settings for another total number of labels; few labels get a coarser outer grid (error 1e-3)."""
        per_scramble = max(16, labels // self.scrambles)
        settings = replace(self, labels=per_scramble, outer_labels=per_scramble)
        return (
            settings
            if 4 * per_scramble > self.outer_labels
            else replace(settings, outer_step=1.5 * self.outer_step)
        )

    def outer_grid(self, v: float) -> tuple[float, float]:
        """Spacing of the outer grid, on which the values of the one known layer before the last stand, for that layer's error
        ``v``, and the least variance for which the grid serves: v rounded down to one of ``spread_steps`` values per factor 2.
        """
        least_variance = 2 ** (
            math.floor(self.spread_steps * math.log2(v)) / self.spread_steps
        )
        return self.outer_step * math.sqrt(least_variance), least_variance


ACCURACY = TableAccuracy()


def relative_node_spacing(is_last_unknown: bool, has_known_layer: bool) -> float:
    """Desired spacing of the nodes of a table in log(1 + x), relative to the width of the Gaussian factor in x that the label
    gives. ``is_last_unknown``: the last layer has no overlap; ``has_known_layer``: one before it has.

    It is smaller where the last layer is unknown, larger where another one is known. Doubled: a quarter of the tables, errors of
    5e-4.
    """
    return 0.08 if is_last_unknown else 0.25 if has_known_layer else 0.15


@dataclass(frozen=True)
class Tables:
    """Prior sums over the layers before the last, ``sums`` (J, N, m N), on N ``nodes`` each for x and y, the off-diagonal entries
    over the determinant of the product of their attention matrices. ``outer`` (K, 2) are the values on a grid of the two latents
    of the known layer, the one with an overlap; ``area`` (K,) is the share of the plane that each stands for, ``modes`` (J, K)
    are the combinations of values that are kept, and ``clipped_weight`` is the prior weight beyond the last node.

    The m blocks of columns are the mass with the Jacobian, then for every unknown layer, in units of its variance,
    ``z_1^2 - 1``, ``z_2^2 - 1``, ``z_1 z_2`` and ``|z z^T - I|^2 - 6``. ``area`` (K,) is the area of each outer value, and
    ``clipped_weight`` that of what lies beyond the last node.

    There are sums for each of J ``modes`` (J, K). The weight of an outer value, and its products with the value's coordinates
    and squared length, are linear combinations of few modes: far fewer bilinear forms than values are needed.
    """

    nodes: Host  # (N,) of x and of y
    outer: Host  # (K, 2) values of the known layer
    area: Host  # (K,) of the outer values
    modes: Host  # (J, K) of the weights of the outer values
    sums: Host  # (J, N, m N) prior sums
    clipped_weight: float  # weight beyond the last node

    def up_to(self, end: float) -> Tables:
        """Part of these tables that has the nodes up to ``end`` along x and y."""
        node_count = len(self.nodes)
        kept_count = int(np.searchsorted(self.nodes, end)) + 1
        if kept_count >= node_count:
            return self
        sums_by_node = self.sums.reshape(len(self.sums), node_count, -1, node_count)
        kept_sums = sums_by_node[:, :kept_count, :, :kept_count]
        return replace(
            self,
            nodes=self.nodes[:kept_count],
            sums=kept_sums.reshape(len(self.sums), kept_count, -1),
        )


@lru_cache(maxsize=4)  # those of four layers take 7 to 40 MB each
def make_tables(
    skip: float,
    layer_deviations: tuple[float, ...],
    known_layer: tuple[int, float, float] | None,
    node_count: int,
    largest_node: float,
    points: int,
    point_set: int,
) -> Tables:
    """Make the tables of the layers before the last, of latents with standard deviations ``layer_deviations``: ``node_count``
    nodes along x and y (off-diagonal entries over the determinant of the product of their attention matrices), uniform in ``log(1
    + x)`` up to ``largest_node``, with the skip connection's weight ``skip``. ``known_layer``: index, spacing of the grid of
    values, and least variance of the layer that has an overlap; ``point_set`` numbers the set of ``points`` random points for the
    prior integral. A value and its mirror image (tokens exchanged) share one table, summed into ``direct_sums`` and
    ``exchanged_sums``.

    ``layer_deviations`` are their standard deviations, ``sqrt(Q + V)``; ``known_layer`` is the layer that has an overlap, with
    the spacing of the outer grid on which its values stand and its least variance V; ``node_count`` the number N of nodes of
    each axis up to ``largest_node``, in ``log(1 + x)``; ``point_set`` says which ``points`` serve the prior integral over more
    than one unknown layer.
    """
    node_spacing = largest_node / (node_count - 1)
    known_index = None if known_layer is None else known_layer[0]
    unknown_layers = [
        layer_index
        for layer_index in range(len(layer_deviations))
        if layer_index != known_index
    ]
    # Points per unit of length of the prior integral over one layer. Doubled: four times the time for tables, changes of 1e-6.
    points_per_unit = 25 if known_layer is None else 8
    # Radius of the outer grid: 5.2 standard deviations of the known layer. Larger: more tables, changes of 1e-5.
    nodes = np.expm1(node_spacing * np.arange(node_count))

    def table_of_outer_value(
        outer_index: int, outer_value: Host | None
    ) -> tuple[Host, float]:
        """Table of one ``outer_value`` (2,) of the latents of the known layer (None: no layer is known), number ``outer_index``
        of the grid: sums over the prior of the unknown layers of the weight N and of N times their means m, at the nodes of the
        last layer's attention; and the prior weight beyond the last node.
        """
        if len(unknown_layers) == 1:
            normal_numbers, weight = _two_token_grid(skip, points_per_unit)
        else:
            array_size = points if known_layer is None else 2**13
            normal_numbers = normal_points(
                2 * len(unknown_layers),
                array_size,
                "last layer: table",
                point_set,
                outer_index % 8,
            ).reshape(array_size, -1, 2)
            weight = np.full(array_size, 1.0 / array_size)
        latents = np.empty((len(normal_numbers), len(layer_deviations), 2))
        latents[:, unknown_layers] = (
            normal_numbers
            * np.array(
                [layer_deviations[layer_index] for layer_index in unknown_layers]
            )[:, None]
        )
        if known_index is not None:
            latents[:, known_index] = outer_value
        return _prior_sums(
            node_count, latents, weight, normal_numbers, skip, node_spacing
        )

    if known_layer is None:
        prior_sums, clipped_weight = table_of_outer_value(0, None)
        sums = 0.5 * (prior_sums + _exchange_tokens(prior_sums[None])[0])
        return Tables(
            nodes,
            np.zeros((1, 2)),
            np.ones(1),
            np.ones((1, 1)),
            sums[None],
            clipped_weight,
        )
    known_index, outer_spacing, least_variance = known_layer
    outer_values, outer_area, mirror_index = _half_plane_grid(
        outer_spacing, 5.2 * layer_deviations[known_index]
    )
    modes = _singular_modes(
        outer_values, outer_area, layer_deviations[known_index], least_variance
    )
    # Exchanging the tokens of all layers exchanges x and y: one table for both.
    distinct_values = np.flatnonzero(mirror_index >= np.arange(len(outer_values)))
    array_size = (len(modes), node_count, (1 + 4 * len(unknown_layers)) * node_count)
    clipped_weight = 0.0
    direct_sums = np.zeros(array_size, np.float32)
    exchanged_sums = np.zeros(array_size, np.float32)
    for outer_chunk in np.array_split(
        distinct_values, math.ceil(len(distinct_values) / 8)
    ):
        tables, clipped_weights = zip(
            *(
                table_of_outer_value(int(outer_index), outer_values[outer_index])
                for outer_index in outer_chunk
            )
        )
        stacked_tables = np.stack(tables, dtype=np.float32)
        mirror_of_chunk = mirror_index[outer_chunk]
        has_mirror = mirror_of_chunk > outer_chunk
        direct_sums += np.tensordot(
            modes[:, outer_chunk].astype(np.float32), stacked_tables, 1
        )
        exchanged_sums += np.tensordot(
            (has_mirror * modes[:, mirror_of_chunk]).astype(np.float32),
            stacked_tables,
            1,
        )
        clipped_weight += float(
            np.array(clipped_weights)
            @ (outer_area[outer_chunk] + has_mirror * outer_area[mirror_of_chunk])
        )
    return Tables(
        nodes,
        outer_values,
        outer_area,
        modes,
        direct_sums + _exchange_tokens(exchanged_sums),
        clipped_weight / outer_area.sum(),
    )


def outer_weights(outer: Host, area: Host, omega: Host, v: float) -> tuple[Host, Host]:
    """Even and odd weights (n, K) of the grid's K values ``outer`` (K, 2) of the known layer's latents z ~ N(omega, v): sum and
    difference of the weights of a value and of its negative, which share a table, for means of even and odd functions of z.
    ``area`` (K,) is the share of the plane that a value stands for; ``omega`` is (n, 2), and sets the precision.
    """
    # The values stand on a square grid: a Gaussian factor for each of their coordinates.
    axis_values, axis_index = np.unique(
        np.concatenate([outer, -outer]).astype(omega.dtype), return_inverse=True
    )
    factor_1, factor_2 = (
        np.exp(-0.5 / v * (axis_values - omega[:, token : token + 1]) ** 2)
        for token in (0, 1)
    )
    weights_at_values, weights_at_negatives = (
        area.astype(omega.dtype)
        * factor_1[:, coordinate_pair[:, 0]]
        * factor_2[:, coordinate_pair[:, 1]]
        for coordinate_pair in np.split(axis_index.reshape(-1, 2), 2)
    )
    return (
        weights_at_values + weights_at_negatives,
        weights_at_values - weights_at_negatives,
    )


def _singular_modes(
    outer: Host, area: Host, deviation: float, least_variance: float
) -> Host:
    """Modes (J, K): singular vectors of the weights that the K values ``outer`` (K, 2) of the known layer's latents can have at
    an error of ``least_variance``, without relative singular values below 2e-4. ``deviation`` is sqrt(Q + V) of that layer,
    ``area`` (K,) the share of the plane of each value; omega are random means of the latents.

    Those of variance ``least_variance`` serve for any larger one: a wider Gaussian is a mixture of narrower ones.
    """
    omega = math.sqrt(max(deviation**2 - least_variance, 0.0)) * normal_points(
        2, 512, "last layer: modes"
    )
    even_weights, odd_weights = outer_weights(outer, area, omega, least_variance)
    square = (outer * outer).sum(1)
    # of the weights of 1, z_1, z_2 and |z|^2
    squared_singular_values, modes = np.linalg.eigh(
        even_weights.T @ even_weights * (1 + np.outer(square, square))
        + odd_weights.T @ odd_weights * (outer @ outer.T)
    )
    return np.ascontiguousarray(
        modes[:, squared_singular_values > 2e-4**2 * squared_singular_values[-1]].T
    )


@lru_cache(maxsize=8)
def _two_token_grid(skip: float, points_per_unit: int) -> tuple[Host, Host]:
    """Grid points (n, 1, 2) for the latents of one standard normal layer of two tokens, and their weights: ``points_per_unit`` of
    length in the mean of the two tokens and in the logarithm of their difference (gap). ``skip`` is the weight c of the skip
    connection; points of negligible weight are left out.

    Trapezoidal rules in the mean of both tokens and in the logarithm of their gap: tokens that are
    nearly alike make the attention matrix nearly singular without a skip connection.
    """
    log_gap_min = -18.0 if skip < 1e-3 else -9.0
    log_gap = np.linspace(
        log_gap_min,
        math.log(11.0),
        1 + round((math.log(11.0) - log_gap_min) * points_per_unit),
    )
    mean_values = np.linspace(-5.0, 5.0, 1 + 5 * points_per_unit)
    mean, gap = np.meshgrid(mean_values, np.exp(log_gap), indexing="ij")
    weight = (np.exp(-mean * mean - gap * gap / 4) * gap).ravel()
    points = np.stack([mean + gap / 2, mean - gap / 2], axis=-1).reshape(-1, 1, 2)
    # both signs of the gap
    points = np.concatenate([points, points[:, :, ::-1]])
    weight = np.concatenate([weight, weight])
    is_relevant = weight > 1e-9 * weight.max()
    return points[is_relevant], weight[is_relevant] / weight[is_relevant].sum()


def _prior_sums(
    node_count: int,
    z: Host,
    weight: Host,
    normal_numbers: Host,
    skip: float,
    node_spacing: float,
) -> tuple[Host, float]:
    """Sum weighted prior points into a table (N, m N) with N = ``node_count`` nodes each for x and y, the off-diagonal entries
    over the determinant of the product of attention matrices, ``node_spacing`` apart in ``log(1 + x)``; return it with the weight
    beyond the last node. ``z`` (n, K, 2) are points of the latents of the layers before the last, ``weight`` (n,) theirs,
    ``normal_numbers`` (n, U, 2) the standardized latents of the unknown ones, whose moments are summed, less their prior means,
    times the ``jacobian``, weight over determinant; ``skip`` is the weight of the skip connection.
    """
    last_node = node_spacing * (node_count - 1)
    clipped_weight = 0.0
    table_sums = np.zeros((node_count, (1 + 4 * normal_numbers.shape[1]) * node_count))
    # A layer that the label hardly depends on must not seem to have moments because the points are few.
    prior_moments = [
        weight @ moments_of_layer
        for moments_of_layer in _moments_of_normals(normal_numbers)
    ]
    for rows in blocks(len(z), 2**14):
        *off_diagonal_entries, determinant = mixing(z[rows], skip)
        x, y = (
            np.log1p(matrix_entry / determinant)
            for matrix_entry in off_diagonal_entries
        )
        clipped_weight += float(
            weight[rows][np.maximum(x, y) > last_node * (1 + 1e-9)].sum()
        )
        jacobian = weight[rows] / np.maximum(determinant, math.exp(-last_node))
        moments = [
            jacobian,
            *(
                jacobian * (moment - prior_moment)
                for moment, prior_moment in zip(
                    _moments_of_normals(normal_numbers[rows]), prior_moments
                )
            ),
        ]
        table_sums += _spread(
            node_count,
            np.minimum(x, last_node) / node_spacing,
            np.minimum(y, last_node) / node_spacing,
            np.stack(moments),
        )
    return table_sums, clipped_weight


def _spread(node_count: int, x: Host, y: Host, moments: Host) -> Host:
    """Table (N, m N) of ``moments`` (m, n) of n points, each spread over the N = ``node_count`` nodes around its position x and y
    (n,), which is counted in node spacings.

    Each point is shared out over the four nodes around it in x times the four in y, with the weights of Lagrange's formula.
    """
    table = np.zeros((node_count, len(moments), node_count))
    _compiled_spreading()(
        *(np.require(array, np.float64, ["C", "W"]) for array in (x, y, moments.T)),
        table,
    )
    return table.reshape(node_count, -1)


@cache
def _compiled_spreading() -> Callable[..., object]:
    """Compile ``_add_points``, the loop that adds points to a table."""
    # imported here: Numba takes half a second
    from smimbench_attention.channels.compiling import compiled

    return compiled(_add_points)


def _add_points(x: Host, y: Host, moments: Host, table: Host) -> None:
    """Add to ``table`` (N, m, N) the ``moments`` (n, m) of n points at x and y (n,), in node spacings: each is shared out over
    four nodes along x, from node i on, and four along y, from j on, by Lagrange's weights; t is the distance from the first of
    the four.
    """
    node_count = table.shape[0]
    weights_x = np.empty(4)
    weights_y = np.empty(4)
    for point in range(len(x)):
        i = min(max(int(np.floor(x[point])) - 1, 0), node_count - 4)
        j = min(max(int(np.floor(y[point])) - 1, 0), node_count - 4)
        for t, weights in ((x[point] - i, weights_x), (y[point] - j, weights_y)):
            t_minus_1 = t - 1.0
            t_minus_2 = t - 2.0
            t_minus_3 = t - 3.0
            weights[0], weights[1] = (
                -t_minus_1 * t_minus_2 * t_minus_3 / 6.0,
                t * t_minus_2 * t_minus_3 / 2.0,
            )
            weights[2], weights[3] = (
                -t * t_minus_1 * t_minus_3 / 2.0,
                t * t_minus_1 * t_minus_2 / 6.0,
            )
        for offset_x in range(4):
            for moment in range(moments.shape[1]):
                weighted_moment = weights_x[offset_x] * moments[point, moment]
                for offset_y in range(4):
                    table[i + offset_x, moment, j + offset_y] += (
                        weighted_moment * weights_y[offset_y]
                    )


def _moments_of_normals(normal: Host) -> Iterator[Host]:
    """Moments (n,) of each layer of standard normal latents (p, q) of two tokens, ``normal`` (n, U, 2), in turn: e = p^2 - 1, f =
    q^2 - 1, g = p q and e^2 + f^2 + 2 g^2.
    """
    for p, q in normal.transpose(1, 2, 0):
        e = p * p - 1
        f = q * q - 1
        g = p * q
        yield from (e, f, g, e * e + f * f + 2 * g * g)


def _exchange_tokens(sums: Host) -> Host:
    """Prior sums (k, N, m N) of k tables with the two tokens exchanged: the axes of x and y, and the moments z_1^2 - 1 and z_2^2
    - 1 of every layer.
    """
    table_blocks = sums.reshape(*sums.shape[:2], -1, sums.shape[1])
    moment_order = [0]
    for layer_start in range(0, table_blocks.shape[2] - 1, 4):
        moment_order += [layer_start + moment for moment in (2, 1, 3, 4)]
    return np.asarray(
        table_blocks[:, :, moment_order].transpose(0, 3, 2, 1).reshape(sums.shape)
    )


def _half_plane_grid(spacing: float, largest_radius: float) -> tuple[Host, Host, Host]:
    """Nodes (K, 2) of a square grid of ``spacing`` in a disc of ``largest_radius``, one (number k) of each pair +-(a, b) of
    integer coordinates, with the share (K,) of the plane that each stands for, and the index (K,) of its mirror: (b, a), with the
    tokens exchanged, or its negative.

    With the share of each node that it stands for, and where the one with its tokens exchanged stands, or its negative.
    """
    radius_in_steps = math.ceil(largest_radius / spacing)
    grid_1, grid_2 = (
        axis.ravel()
        for axis in np.mgrid[
            -radius_in_steps : radius_in_steps + 1,
            -radius_in_steps : radius_in_steps + 1,
        ]
    )
    is_in_half = ((grid_1 > 0) | ((grid_1 == 0) & (grid_2 >= 0))) & (
        (grid_1 * grid_1 + grid_2 * grid_2) * spacing * spacing
        <= largest_radius * largest_radius
    )
    points = np.stack([grid_1[is_in_half], grid_2[is_in_half]], axis=-1)
    index_of_point = {
        signed_point: k
        for k, (a, b) in enumerate(points.tolist())
        for signed_point in ((a, b), (-a, -b))
    }
    mirror_index = np.array([index_of_point[b, a] for a, b in points.tolist()])
    return (
        spacing * points.astype(float),
        1.0 - 0.5 * (points == 0).all(1),
        mirror_index,
    )


def nodes_needed(
    skip: float,
    layers: int,
    variance_fraction: float,
    relative_spacing: float,
    accuracy: TableAccuracy,
) -> int:
    """Number of nodes along x in a table of a network of so many ``layers``, ``relative_spacing`` apart in units of the width of
    the label's Gaussian factor; ``variance_fraction`` is ``V / (Q + V)`` of the last layer, ``skip`` the weight c of the skip
    connection, ``accuracy`` has the end of the table.

    ``relative_spacing`` is their spacing over the width of that factor: one of the steps of ``accuracy``.
    """
    spacing = relative_spacing * math.sqrt(variance_fraction)
    return (
        math.ceil(
            min(farthest_node(skip, layers - 1, accuracy) / max(spacing, 1e-300), 1e9)
        )
        + 1
    )


def rounded_node_count(
    skip: float,
    layers: int,
    variance_fraction: float,
    relative_spacing: float,
    accuracy: TableAccuracy,
) -> int:
    """Number of nodes along x of a table: ``nodes_needed``, whose arguments these are, rounded up to a power of sqrt(2) times the
    least number (``half_doublings``) so that tables can be reused, and at most ``MOST_NODES``. ``relative_spacing`` is in units
    of the label's Gaussian factor, ``variance_fraction`` is ``V / (Q + V)`` of the last layer.
    """
    least_count = nodes_needed(
        skip, layers, variance_fraction, relative_spacing, accuracy
    )
    # two sizes of tables between one and twice as many nodes
    half_doublings = max(
        0, math.ceil(2 * math.log2(least_count / accuracy.fewest_nodes) - 1e-9)
    )
    return min(MOST_NODES, math.ceil(accuracy.fewest_nodes * 2 ** (half_doublings / 2)))


def farthest_node(skip: float, layers: int, accuracy: TableAccuracy) -> float:
    """Largest ``log(1 + x)`` that so many ``layers`` before the last can produce with the skip connection ``skip`` = c, where x
    is the off-diagonal entry over the determinant of the product of their attention matrices; at most ``log_limit``, the end of
    the tables that ``accuracy`` sets.
    """
    log_limit = math.log(accuracy.farthest[min(layers, len(accuracy.farthest)) - 1])
    return min(log_limit, layers * math.log1p(1.0 / skip)) if skip > 0 else log_limit
