"""Tables of the layers before the last: the prior law of the product of their attention matrices and its moments, on a
grid of nodes, and their accuracy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from smimbench.numerics import normal_points
from smimbench_channels.sequence.softmax.deep.integrand import mixing as mixing_of_layers

__all__ = ["ACCURACY", "Accuracy", "Host", "Tables", "make_tables", "mixing", "node_count"]

Host = np.ndarray[Any, np.dtype[np.float64]]

NODE_STEPS = 2
"""Sizes of tables between one and twice as many nodes. Doubled: smaller tables, and more of them along a curve."""


@dataclass(frozen=True)
class Accuracy:
    """Resolution of tables and means, each number with what it does and what happens when it is doubled."""

    # Spacing of the nodes in log(1 + x) over the width of the Gaussian factors. Doubled: a quarter of the table, changes of 5e-4.
    step: float = 0.15
    # The same where the last layer is unknown.
    blind_step: float = 0.08
    # The same where another layer is known. Doubled: a quarter of the time, errors of 5e-4; from 0.1 to here changes of 5e-5.
    known_step: float = 0.25
    # Least number of nodes along each axis. Doubled: changes of 3e-7.
    fewest_nodes: int = 48
    # Largest number of nodes along each axis. Doubled: larger tables where V is below 1e-4.
    most_nodes: int = 600
    # Largest x and y of a table for 1, 2 and more layers before the last, without a skip connection unbounded: what lies beyond
    # is moved to here, and counted as an error. Doubled (not measured): a wider spacing or more nodes, less beyond.
    farthest: tuple[float, ...] = (1e8, 1e18, 1e30)
    # Points per unit of length of the prior integral over one layer. Doubled: four times the time for tables, changes of 1e-6.
    grid: int = 25
    # The same where another layer is known.
    outer_grid: int = 8
    # Points of the prior integral over more layers. Doubled: twice the time for tables, changes of 1e-4.
    table_points: int = 2**18
    # The same for each node of the outer grid.
    outer_table_points: int = 2**13
    # Largest spacing of the outer grid over ``V^{1/2}`` of the known layer. Doubled: a quarter of the tables, errors of 1e-3.
    outer_step: float = 0.3
    # Spacings of the outer grid for V between one and twice as large. Doubled: wider spacings, and more tables along a curve.
    spread_steps: int = 2
    # Radius of the outer grid in standard deviations of the known layer. Doubled: four times the tables, changes of 1e-5.
    outer_reach: float = 5.2
    # Modes of the weights on the outer grid with smaller relative singular values are left out. Doubled: changes of 3e-5.
    negligible: float = 2e-4
    # Labels of each scramble. Doubled: twice the time, ``1 / sqrt(2)`` of the standard error or less.
    labels: int = 2**12
    # The same with a known layer before the last.
    outer_labels: int = 2**11
    # Independent sets of labels. Doubled: twice the time, ``1 / sqrt(2)`` of the standard error, which is better known.
    scrambles: int = 16
    # Relative error reported for nodes, grids and tables: what finer ones were seen to change. Doubled: that error, twice.
    discretisation: float = 3e-4

    def with_labels(self, labels: int) -> Accuracy:
        """The same for so many labels in all; where they are few, on an outer grid whose error of 1e-3 is below their noise."""
        each = max(16, labels // self.scrambles)
        found = replace(self, labels=each, outer_labels=each)
        return (
            replace(found, outer_step=1.5 * self.outer_step, spread_steps=1) if 4 * each <= self.outer_labels else found
        )

    def outer_spacing(self, v: float) -> float:
        """Spacing of the outer grid for a known layer of variance v, rounded down to one of few."""
        return float(self.outer_step * 2 ** (math.floor(self.spread_steps * math.log2(v)) / (2 * self.spread_steps)))

    def wanted_step(self, blind: bool, known: bool) -> float:
        """Spacing of the nodes where the last layer is unknown (``blind``), or where another one is known."""
        return self.blind_step if blind else self.known_step if known else self.step

    @property
    def of_tables(self) -> Accuracy:
        """What tables depend on: equal for any number of labels."""
        return replace(self, labels=0, outer_labels=0)


ACCURACY = Accuracy()


def mixing(z: Host, skip: float) -> tuple[Host, Host, Host]:
    """``b_01``, ``b_10`` and the determinant of ``B / (1 + c)^K`` for the K layers ``z`` (n, K, 2)."""
    found = mixing_of_layers(np, [list(layer) for layer in z.transpose(1, 2, 0)], skip, z[:, 0, 0])
    return found.one, found.two, found.determinant


@dataclass(frozen=True)
class Tables:
    """Prior sums ``sums`` (K, N, m N) on N nodes for each of x and y, for K values ``outer`` (K, 2) of the known layer.

    The m blocks of columns are the mass with the Jacobian, then for every unknown layer, in units of its variance,
    ``z_1^2 - 1``, ``z_2^2 - 1``, ``z_1 z_2`` and ``|z z^T - I|^2 - 6``. ``share`` (K,) is the area of each outer value, and
    ``clipped`` the weight of what lies beyond the last node.
    """

    nodes: Host
    outer: Host
    share: Host
    sums: np.ndarray[Any, Any]
    clipped: float


@lru_cache(maxsize=8)
def make_tables(
    skip: float, scales: tuple[float, ...], known: int | None, spread: float, count: int, copy: int, accuracy: Accuracy
) -> Tables:
    """Tables for the layers before the last.

    ``scales`` are their standard deviations, ``sqrt(Q + V)``; ``known`` is the layer that has an overlap, whose values stand on
    an outer grid of spacing ``spread``; ``count`` the number N of nodes of each axis; ``copy`` names a set of points.
    """
    layers = len(scales)
    step = _farthest(skip, layers, accuracy) / (count - 1)
    nodes = np.expm1(step * np.arange(count))
    unknown = [layer for layer in range(layers) if layer != known]
    blocks = 1 + 4 * len(unknown)
    if known is None:
        outer, share = np.zeros((1, 2)), np.ones(1)
    else:
        outer, share = _half_plane(spread, accuracy.outer_reach * scales[known])
    sums = np.zeros((len(outer), count, blocks * count), np.float64 if known is None else np.float32)
    clipped = 0.0
    mirrored = _mirror_images(outer, spread)
    for k, value in enumerate(outer):
        if mirrored[k] < k:
            # Exchanging the tokens of all layers exchanges x and y.
            sums[k] = _exchanged(sums[mirrored[k]], count)
            continue
        if len(unknown) == 1:
            normal, weight = _two_token_grid(skip, accuracy.grid if known is None else accuracy.outer_grid)
        else:
            size = accuracy.table_points if known is None else accuracy.outer_table_points
            normal = normal_points(2 * len(unknown), size, "last layer: table", copy, k % 8).reshape(size, -1, 2)
            weight = np.full(size, 1.0 / size)
        z = np.empty((len(normal), layers, 2))
        z[:, unknown] = normal * np.array([scales[layer] for layer in unknown])[:, None]
        if known is not None:
            z[:, known] = value
        beyond = _add_prior_points(sums[k], z, weight, normal, skip, step)
        clipped += beyond * (share[k] + (share[mirrored[k]] if mirrored[k] > k else 0.0))
    if known is None:
        sums[0] = 0.5 * (sums[0] + _exchanged(sums[0], count))
    return Tables(nodes, outer, share, sums, clipped / share.sum())


@lru_cache(maxsize=8)
def _two_token_grid(skip: float, fine: int) -> tuple[Host, Host]:
    """Points (n, 1, 2) and weights of a standard normal layer.

    Trapezoidal rules in the mean of both tokens and in the logarithm of their gap: tokens that are
    nearly alike make the attention matrix nearly singular without a skip connection.
    """
    low = -18.0 if skip < 1e-3 else -9.0
    log_gap = np.linspace(low, math.log(11.0), 1 + round((math.log(11.0) - low) * fine))
    middle = np.linspace(-5.0, 5.0, 1 + 5 * fine)
    m, gap = np.meshgrid(middle, np.exp(log_gap), indexing="ij")
    weight = (np.exp(-m * m - gap * gap / 4) * gap).ravel()
    points = np.stack([m + gap / 2, m - gap / 2], axis=-1).reshape(-1, 1, 2)
    # both signs of the gap
    points, weight = np.concatenate([points, points[:, :, ::-1]]), np.concatenate([weight, weight])
    kept = weight > 1e-9 * weight.max()
    return points[kept], weight[kept] / weight[kept].sum()


def _add_prior_points(
    sums: np.ndarray[Any, Any], z: Host, weight: Host, unknown: Host, skip: float, step: float
) -> float:
    """Spread prior points over a table (N, m N); returns the weight that lies beyond its last node."""
    count = sums.shape[0]
    one, two, determinant = mixing(z, skip)
    last = step * (count - 1)
    positions = []
    clipped = np.zeros(len(z), dtype=bool)
    for b in (one, two):
        where = np.log1p(b / determinant)
        clipped |= where > last * (1 + 1e-9)
        positions.append(np.minimum(where, last) / step)
    jacobian = weight / np.maximum(determinant, math.exp(-last))
    moments = [jacobian]
    for layer in range(unknown.shape[1]):
        p, q = unknown[:, layer, 0], unknown[:, layer, 1]
        e, f, g = p * p - 1, q * q - 1, p * q
        # A layer that the label hardly depends on must not seem to have moments because the points are few.
        moments += [jacobian * (m - weight @ m) for m in (e, f, g, e * e + f * f + 2 * g * g)]
    # Imported here: Numba takes half a second.
    from smimbench_channels.sequence.softmax.last_layer.spreading import spread as over_table

    sums += over_table(count, positions[0], positions[1], np.stack(moments))
    return float(weight[clipped].sum())


def _exchanged(sums: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
    """The table with the tokens exchanged: x with y, and the two diagonal moments of every layer."""
    view = sums.reshape(count, -1, count)
    order = np.arange(view.shape[1])
    order[1:] = np.stack([order[2::4], order[1::4], order[3::4], order[4::4]], axis=-1).ravel()
    return np.asarray(view[:, order].transpose(2, 1, 0).reshape(sums.shape))


def _mirror_images(outer: Host, spread: float) -> list[int]:
    """For each outer value, or its negative, where the one with its tokens exchanged stands."""
    if len(outer) == 1:
        return [0]
    grid = [tuple(row) for row in np.rint(outer / spread).astype(int).tolist()]
    place = {sign_free: k for k, (a, b) in enumerate(grid) for sign_free in ((a, b), (-a, -b))}
    return [place[b, a] for a, b in grid]


def _half_plane(step: float, reach: float) -> tuple[Host, Host]:
    """Nodes of a square grid in a disc, one of each pair ``+-z``, and the share of each node that it stands for."""
    most = math.ceil(reach / step)
    i, j = np.meshgrid(np.arange(-most, most + 1), np.arange(-most, most + 1), indexing="ij")
    half = ((i > 0) | ((i == 0) & (j >= 0))) & ((i * i + j * j) * step * step <= reach * reach)
    points = np.stack([i[half], j[half]], axis=-1)
    return step * points.astype(float), np.where((points == 0).all(1), 0.5, 1.0)


def nodes_needed(skip: float, layers: int, relative: float, wanted: float, accuracy: Accuracy) -> int:
    """Nodes of an axis for a Gaussian factor whose variance is the fraction ``relative`` of the whole, ``V / (Q + V)``.

    ``wanted`` is their spacing over the width of that factor: one of the steps of ``accuracy``.
    """
    step = wanted * math.sqrt(relative)
    return math.ceil(min(_farthest(skip, layers - 1, accuracy) / max(step, 1e-300), 1e9)) + 1


def node_count(skip: float, layers: int, relative: float, wanted: float, accuracy: Accuracy) -> int:
    """Nodes of an axis that are used: as many as needed, rounded up so that tables serve more than one overlap, within limits."""
    needed = nodes_needed(skip, layers, relative, wanted, accuracy)
    if needed <= accuracy.fewest_nodes:
        return accuracy.fewest_nodes
    steps = math.ceil(NODE_STEPS * math.log2(needed / accuracy.fewest_nodes) - 1e-9)
    return min(accuracy.most_nodes, math.ceil(accuracy.fewest_nodes * 2 ** (steps / NODE_STEPS)))


def _farthest(skip: float, layers: int, accuracy: Accuracy) -> float:
    """Largest ``log(1 + x)`` that ``layers`` layers of attention can make."""
    limit = math.log(accuracy.farthest[min(layers, len(accuracy.farthest)) - 1])
    return min(limit, layers * math.log1p(1.0 / skip)) if skip > 0 else limit
