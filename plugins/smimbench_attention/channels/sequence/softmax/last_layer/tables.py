"""Tables of the layers before the last: prior law and moments of the product of their attention matrices on a grid."""

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
    """Resolution of tables and means; each comment says what the number does and what doubling it changes."""

    # Least number of nodes along each axis. Doubled: changes of 3e-7.
    fewest_nodes: int = 48
    # Largest x and y of a table for 1, 2 and more layers before the last, without a skip connection unbounded: what lies beyond
    # is moved to here, and counted as an error. Doubled (not measured): a wider spacing or more nodes, less beyond.
    farthest: tuple[float, ...] = (1e8, 1e18, 1e30)
    # Points of the prior integral over more layers. Doubled: twice the time for tables, changes of 1e-4.
    table_points: int = 2**18
    # Largest spacing of the outer grid over ``V^{1/2}`` of the known layer. Doubled: a quarter of the tables, errors of 1e-3.
    outer_step: float = 0.3
    # Outer grids for V between one and twice as large. Doubled: wider spacings, fewer modes, and more tables along a curve.
    spread_steps: int = 4
    # Labels of each scramble. Doubled: twice the time, ``1 / sqrt(2)`` of the standard error or less.
    labels: int = 2**12
    # The same with a known layer before the last.
    outer_labels: int = 2**11
    # Independent sets of labels. Doubled: twice the time, ``1 / sqrt(2)`` of the standard error, which is better known.
    scrambles: int = 16

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
        """Spacing of the outer grid for a known layer of variance v, and the least variance for which it serves."""
        least_variance = 2 ** (
            math.floor(self.spread_steps * math.log2(v)) / self.spread_steps
        )
        return self.outer_step * math.sqrt(least_variance), least_variance


ACCURACY = TableAccuracy()


def wanted_step(blind: bool, has_known_layer: bool) -> float:
    """Desired node spacing in log(1 + x) relative to the width of the Gaussian factors.

    It is smaller where the last layer is unknown (``blind``), larger where another one is known. Doubled: a quarter of the
    tables, errors of 5e-4.
    """
    return 0.08 if blind else 0.25 if has_known_layer else 0.15


@dataclass(frozen=True)
class Tables:
    """Prior sums ``sums`` (J, N, m N) on N nodes each for x and y, and K values ``outer`` (K, 2) of the known layer.

    The m blocks of columns are the mass with the Jacobian, then for every unknown layer, in units of its variance,
    ``z_1^2 - 1``, ``z_2^2 - 1``, ``z_1 z_2`` and ``|z z^T - I|^2 - 6``. ``share`` (K,) is the area of each outer value, and
    ``clipped`` the weight of what lies beyond the last node.

    There are sums for each of J ``modes`` (J, K). The weight of an outer value, and its products with the value's coordinates
    and squared length, are linear combinations of few modes: far fewer bilinear forms than values are needed.
    """

    nodes: Host
    outer: Host
    share: Host
    modes: Host
    sums: Host
    clipped: float


@lru_cache(maxsize=4)  # those of four layers take 7 to 40 MB each
def make_tables(
    skip: float,
    scales: tuple[float, ...],
    known_layer: tuple[int, float, float] | None,
    count: int,
    copy: int,
    reach: float,
    points: int,
) -> Tables:
    """Make the tables for the layers before the last.

    ``scales`` are their standard deviations, ``sqrt(Q + V)``; ``known_layer`` is the layer that has an overlap, with the spacing
    of the outer grid on which its values stand and its least variance V; ``count`` the number N of nodes of each axis up to
    ``reach``, in ``log(1 + x)``; ``copy`` names a set of ``points`` for the prior integral over more than one unknown layer.
    """
    step = reach / (count - 1)
    layer = None if known_layer is None else known_layer[0]
    unknown_layers = [a for a in range(len(scales)) if a != layer]
    # Points per unit of length of the prior integral over one layer. Doubled: four times the time for tables, changes of 1e-6.
    points_per_unit = 25 if known_layer is None else 8
    # Radius of the outer grid: 5.2 standard deviations of the known layer. Larger: more tables, changes of 1e-5.
    nodes = np.expm1(step * np.arange(count))

    def table(k: int, value: Host | None) -> tuple[Host, float]:
        """Table of one outer value, and its weight beyond the last node."""
        if len(unknown_layers) == 1:
            normal, weight = _two_token_grid(skip, points_per_unit)
        else:
            size = points if known_layer is None else 2**13
            normal = normal_points(
                2 * len(unknown_layers), size, "last layer: table", copy, k % 8
            ).reshape(size, -1, 2)
            weight = np.full(size, 1.0 / size)
        z = np.empty((len(normal), len(scales), 2))
        z[:, unknown_layers] = (
            normal * np.array([scales[a] for a in unknown_layers])[:, None]
        )
        if layer is not None:
            z[:, layer] = value
        return _prior_sums(count, z, weight, normal, skip, step)

    if known_layer is None:
        prior_sums, clipped = table(0, None)
        sums = 0.5 * (prior_sums + _exchanged(prior_sums[None])[0])
        return Tables(
            nodes, np.zeros((1, 2)), np.ones(1), np.ones((1, 1)), sums[None], clipped
        )
    layer, spacing, least_variance = known_layer
    outer, share, mirrored = _half_plane(spacing, 5.2 * scales[layer])
    modes = _modes(outer, share, scales[layer], least_variance)
    # Exchanging the tokens of all layers exchanges x and y: one table for both.
    distinct = np.flatnonzero(mirrored >= np.arange(len(outer)))
    size = (len(modes), count, (1 + 4 * len(unknown_layers)) * count)
    clipped = 0.0
    direct = np.zeros(size, np.float32)
    exchanged = np.zeros(size, np.float32)
    for chunk in np.array_split(distinct, math.ceil(len(distinct) / 8)):
        tables, beyond = zip(*(table(int(k), outer[k]) for k in chunk))
        stacked = np.stack(tables, dtype=np.float32, casting="same_kind")
        twin = mirrored[chunk]
        has_twin = twin > chunk
        direct += np.tensordot(modes[:, chunk].astype(np.float32), stacked, 1)
        exchanged += np.tensordot(
            (has_twin * modes[:, twin]).astype(np.float32), stacked, 1
        )
        clipped += float(np.array(beyond) @ (share[chunk] + has_twin * share[twin]))
    return Tables(
        nodes,
        outer,
        share,
        modes,
        direct + _exchanged(exchanged),
        clipped / share.sum(),
    )


def outer_weights(outer: Host, share: Host, omega: Host, v: float) -> list[Host]:
    """Weights (n, K) of the outer values for the moments 1, both coordinates and squared length of the known layer.

    ``omega`` (n, 2) are means of that layer, ``v`` its variance.
    """
    # The values stand on a square grid: a Gaussian factor for each of their coordinates.
    places, index = np.unique(np.concatenate([outer, -outer]), return_inverse=True)
    factor_1, factor_2 = (
        np.exp(-0.5 / v * (places - omega[:, m : m + 1]) ** 2) for m in (0, 1)
    )
    plus, minus = (
        share * factor_1[:, pair[:, 0]] * factor_2[:, pair[:, 1]]
        for pair in np.split(index.reshape(-1, 2), 2)
    )
    even = plus + minus
    odd = plus - minus
    return [even, odd * outer[:, 0], odd * outer[:, 1], even * (outer * outer).sum(1)]


def _modes(outer: Host, share: Host, scale: float, least_variance: float) -> Host:
    """Modes (J, K) of the weights of a known layer, without relative singular values below 2e-4.

    Those of variance ``least_variance`` serve for any larger one: a wider Gaussian is a mixture of narrower ones.
    """
    omega = math.sqrt(max(scale**2 - least_variance, 0.0)) * normal_points(
        2, 512, "last layer: modes"
    )
    stack = np.concatenate(outer_weights(outer, share, omega, least_variance))
    square, modes = np.linalg.eigh(stack.T @ stack)
    return np.ascontiguousarray(modes[:, square > 2e-4**2 * square[-1]].T)


@lru_cache(maxsize=8)
def _two_token_grid(skip: float, points_per_unit: int) -> tuple[Host, Host]:
    """Grid points (n, 1, 2) and weights for a standard normal layer of two tokens.

    Trapezoidal rules in the mean of both tokens and in the logarithm of their gap: tokens that are
    nearly alike make the attention matrix nearly singular without a skip connection.
    """
    low = -18.0 if skip < 1e-3 else -9.0
    log_gap = np.linspace(
        low, math.log(11.0), 1 + round((math.log(11.0) - low) * points_per_unit)
    )
    means = np.linspace(-5.0, 5.0, 1 + 5 * points_per_unit)
    m, gap = np.meshgrid(means, np.exp(log_gap), indexing="ij")
    weight = (np.exp(-m * m - gap * gap / 4) * gap).ravel()
    points = np.stack([m + gap / 2, m - gap / 2], axis=-1).reshape(-1, 1, 2)
    # both signs of the gap
    points = np.concatenate([points, points[:, :, ::-1]])
    weight = np.concatenate([weight, weight])
    heavy = weight > 1e-9 * weight.max()
    return points[heavy], weight[heavy] / weight[heavy].sum()


def _prior_sums(
    count: int, z: Host, weight: Host, normal: Host, skip: float, step: float
) -> tuple[Host, float]:
    """Table (N, m N) over which prior points are spread, and the weight lost beyond its last node."""
    last_node = step * (count - 1)
    clipped = 0.0
    sums = np.zeros((count, (1 + 4 * normal.shape[1]) * count))
    # A layer that the label hardly depends on must not seem to have moments because the points are few.
    centers = [weight @ moment for moment in _moments(normal)]
    for rows in blocks(len(z), 2**14):
        *off_diagonal, determinant = mixing(z[rows], skip)
        x, y = (np.log1p(b / determinant) for b in off_diagonal)
        clipped += float(weight[rows][np.maximum(x, y) > last_node * (1 + 1e-9)].sum())
        jacobian = weight[rows] / np.maximum(determinant, math.exp(-last_node))
        moments = [
            jacobian,
            *(
                jacobian * (m - center)
                for m, center in zip(_moments(normal[rows]), centers)
            ),
        ]
        sums += _spread(
            count,
            np.minimum(x, last_node) / step,
            np.minimum(y, last_node) / step,
            np.stack(moments),
        )
    return sums, clipped


def _spread(count: int, x: Host, y: Host, moments: Host) -> Host:
    """Table (N, m N) of ``moments`` (m, n) at positions x and y (n,), in units of the node spacing.

    Each point is shared out over the four nodes around it in x times the four in y, with the weights of Lagrange's formula.
    """
    table = np.zeros((count, len(moments), count))
    _compiled_spreading()(
        *(np.require(array, np.float64, ["C", "W"]) for array in (x, y, moments.T)),
        table,
    )
    return table.reshape(count, -1)


@cache
def _compiled_spreading() -> Callable[..., object]:
    """Compile the loop that adds points to a table."""
    # imported here: Numba takes half a second
    from smimbench_attention.channels.compiling import compiled

    return compiled(_add_points)


def _add_points(x: Host, y: Host, moments: Host, table: Host) -> None:
    """Add to a table (N, m, N) points at x and y (n,), with moments (n, m); compiled with Numba."""
    count = table.shape[0]
    wx = np.empty(4)
    wy = np.empty(4)
    for point in range(len(x)):
        i = min(max(int(np.floor(x[point])) - 1, 0), count - 4)
        j = min(max(int(np.floor(y[point])) - 1, 0), count - 4)
        for t, weights in ((x[point] - i, wx), (y[point] - j, wy)):
            a = t - 1.0
            b = t - 2.0
            c = t - 3.0
            weights[0], weights[1] = -a * b * c / 6.0, t * b * c / 2.0
            weights[2], weights[3] = -t * a * c / 2.0, t * a * b / 6.0
        for k in range(4):
            for moment in range(moments.shape[1]):
                amount = wx[k] * moments[point, moment]
                for m in range(4):
                    table[i + k, moment, j + m] += amount * wy[m]


def _moments(normal: Host) -> Iterator[Host]:
    """The four moments (n,) of each layer of normal points (n, U, 2)."""
    for p, q in normal.transpose(1, 2, 0):
        e = p * p - 1
        f = q * q - 1
        g = p * q
        yield from (e, f, g, e * e + f * f + 2 * g * g)


def _exchanged(sums: Host) -> Host:
    """Tables (k, N, m N) with the two tokens exchanged: x with y, and both diagonal moments of every layer."""
    view = sums.reshape(*sums.shape[:2], -1, sums.shape[1])
    order = np.arange(view.shape[2])
    order[1:] = np.stack(
        [order[2::4], order[1::4], order[3::4], order[4::4]], axis=-1
    ).ravel()
    return np.asarray(view[:, :, order].transpose(0, 3, 2, 1).reshape(sums.shape))


def _half_plane(step: float, reach: float) -> tuple[Host, Host, Host]:
    """Nodes of a square grid in a disc, only one of each pair ``+-z``.

    With the share of each node that it stands for, and where the one with its tokens exchanged stands, or its negative.
    """
    radius = math.ceil(reach / step)
    i, j = (
        axis.ravel() for axis in np.mgrid[-radius : radius + 1, -radius : radius + 1]
    )
    half = ((i > 0) | ((i == 0) & (j >= 0))) & (
        (i * i + j * j) * step * step <= reach * reach
    )
    points = np.stack([i[half], j[half]], axis=-1)
    place = {
        sign_free: k
        for k, (a, b) in enumerate(points.tolist())
        for sign_free in ((a, b), (-a, -b))
    }
    mirrored = np.array([place[b, a] for a, b in points.tolist()])
    return (
        step * points.astype(float),
        np.where((points == 0).all(1), 0.5, 1.0),
        mirrored,
    )


def nodes_needed(
    skip: float,
    layers: int,
    relative: float,
    target_step: float,
    accuracy: TableAccuracy,
) -> int:
    """Number of nodes on an axis for a Gaussian factor with the fraction ``relative``, ``V / (Q + V)``, of the variance.

    ``target_step`` is their spacing over the width of that factor: one of the steps of ``accuracy``.
    """
    step = target_step * math.sqrt(relative)
    return (
        math.ceil(
            min(farthest_node(skip, layers - 1, accuracy) / max(step, 1e-300), 1e9)
        )
        + 1
    )


def node_count(
    skip: float,
    layers: int,
    relative: float,
    target_step: float,
    accuracy: TableAccuracy,
) -> int:
    """Number of nodes on an axis: as many as needed, rounded up so that tables can be reused, within limits."""
    minimum = nodes_needed(skip, layers, relative, target_step, accuracy)
    # two sizes of tables between one and twice as many nodes
    steps = max(0, math.ceil(2 * math.log2(minimum / accuracy.fewest_nodes) - 1e-9))
    return min(MOST_NODES, math.ceil(accuracy.fewest_nodes * 2 ** (steps / 2)))


def farthest_node(skip: float, layers: int, accuracy: TableAccuracy) -> float:
    """Largest ``log(1 + x)`` that ``layers`` layers of attention can produce, up to the end of the tables."""
    limit = math.log(accuracy.farthest[min(layers, len(accuracy.farthest)) - 1])
    return min(limit, layers * math.log1p(1.0 / skip)) if skip > 0 else limit
