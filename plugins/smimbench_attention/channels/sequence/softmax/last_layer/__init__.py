r"""Information and susceptibility of deep attention of two tokens with at most two known layers: drawn labels, averaged
with control variates.

Divided by ``(1 + c)^{L-1}`` the product ``B`` of the attention matrices is row-stochastic, so it has two parameters however
deep the network is. With ``b_01``, ``b_10`` its off-diagonal entries, ``D`` its determinant and ``ut = u / (1 + c)^{L-1}``,

.. math::

    x = b_{01} / D, \quad y = b_{10} / D, \quad 1 / D = 1 + x + y, \quad
    z_L = \pm (ut_1 + x (ut_1 - ut_2),\; ut_2 - y (ut_1 - ut_2)).

A label therefore says the same as a Gaussian factor in x times one in y, times the Jacobian ``1 + x + y``. The prior law of
(x, y), and the prior moments of the other layers that go with it, are tabulated once on nodes that are uniform in
``log(1 + x)`` and ``log(1 + y)``; the points of the prior integral are spread over the nodes by Lagrange's interpolation
formula, so that only the Gaussian factors have to be smooth on the scale of the nodes. Posterior moments are bilinear forms
``f^T T g``, whatever the depth. A layer is known where it has an overlap. A known layer before the last enters as an outer grid:
one table for each of its values.

Everything here serves theory and runs on the host. The scheme is derived, checked by
tests/channels/sequence/test_softmax_last_layer.py.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np

from smimbench.interfaces import Array, Host
from smimbench.numerics import by_value, controlled_mean, is_diagonal, normal_points
from smimbench_attention.channels.common import blocks, joined
from smimbench_attention.channels.sequence.softmax.deep import mixing
from smimbench_attention.channels.sequence.softmax.last_layer.tables import (
    ACCURACY,
    MOST_NODES,
    TableAccuracy,
    Tables,
    farthest_node,
    make_tables,
    node_count,
    nodes_needed,
    outer_weights,
    wanted_step,
)

DARKEST = 60.0
"""Weights below ``exp(-DARKEST)`` of the largest possible one are 0. Doubled: the same, three times as slowly on some processors:
single precision ends there, and products with numbers next to its end take a hundred cycles."""


def supports(Q: Host, V: Host, skip: float = 1.0) -> bool:
    """Whether this module can compute the information at one (Q, V), both (L, L).

    Both diagonal, L at least 2, and of the layers before the last at most one known (none for L = 2), and that one with an
    error of at least a quarter of its variance. The last layer must not be known so well that its factors fall between nodes.
    """
    if len(Q) < 2 or not is_diagonal(Q, V):
        return False
    q = np.diagonal(Q)
    v = np.diagonal(V)
    informed = np.flatnonzero(q[:-1])
    step = wanted_step(bool(q[-1] == 0), len(informed) > 0)
    # nodes may be up to twice as far apart as desired
    if (
        nodes_needed(skip, len(q), v[-1] / (q[-1] + v[-1]), step, ACCURACY)
        > 2 * MOST_NODES
    ):
        return False
    return len(informed) == 0 or bool(
        len(informed) == 1
        and len(q) > 2
        and v[informed[0]] >= 0.25 * (q + v)[informed[0]]
    )


class _Case(NamedTuple):
    """Case of the computation at one diagonal overlap: which layers are known."""

    skip: float
    q: Host
    v: Host
    known_layers: list[
        int
    ]  # the layer before the last with an overlap, if there is one
    unknown_layers: list[int]  # the others before the last
    blind: bool  # whether the last layer has no overlap
    informed: list[int]  # layers with an overlap, whose information is computed
    pairs: list[
        tuple[int, int]
    ]  # pairs of layers without overlap, whose susceptibility is computed
    labels: int  # per scramble


def case_of(Q: Host, V: Host, skip: float, accuracy: TableAccuracy) -> _Case:
    """Find the case of the computation at one (Q, V), both (L, L) and diagonal."""
    q = np.diagonal(Q)
    v = np.diagonal(V)
    informed, free = (
        [int(a) for a in np.flatnonzero(mask)] for mask in (q > 0, q == 0)
    )
    output_layer = len(q) - 1
    known_layers, unknown_layers = (
        [a for a in layers if a < output_layer] for layers in (informed, free)
    )
    pairs = list(itertools.combinations_with_replacement(free, 2))
    labels = accuracy.outer_labels if known_layers else accuracy.labels
    return _Case(
        skip,
        q,
        v,
        known_layers,
        unknown_layers,
        output_layer in free,
        informed,
        pairs,
        labels,
    )


@by_value(maxsize=512)
def evaluate(Q: Host, V: Host, skip: float, accuracy: TableAccuracy = ACCURACY) -> Host:
    r"""Information and its error, susceptibility and its error (4, L, L), of one (Q, V) that ``supports`` accepts.

    .. math::

        I_{ab} = E \sum_m g_{am} g_{bm}, \qquad \lambda_{ab} = E \sum_{mk} G_{a,mk} G_{b,mk}, \qquad
        G_{a,mk} = (E[z_{am} z_{ak} | y, \omega] - V_{aa} \delta_{mk}) / V_{aa}^2

    The information is diagonal; entries of the susceptibility of known layers are 0. NaN where a label lies too far beyond the
    tables.

    Parameters
    ----------
    Q, V : ndarray (L, L)
    skip : float
        c >= 0.
    accuracy : Accuracy
        The resolution of tables and the number of labels.
    """
    case = case_of(Q, V, skip, accuracy)
    q = case.q
    v = case.v
    known_layers = case.known_layers
    output_layer = len(Q) - 1
    scales = tuple(math.sqrt(q[a] + v[a]) for a in range(output_layer))
    # Rounded, so that the tables serve more than one overlap.
    outer = (
        (known_layers[0], *accuracy.outer_grid(v[known_layers[0]]))
        if known_layers
        else None
    )
    step = wanted_step(case.blind, bool(known_layers))
    count = node_count(
        skip,
        len(Q),
        v[output_layer] / (q[output_layer] + v[output_layer]),
        step,
        accuracy,
    )
    reach = farthest_node(skip, output_layer, accuracy)
    samples = []
    controls = []
    clipped = 0.0
    for scramble in range(accuracy.scrambles):
        copy = scramble % (1 if len(case.unknown_layers) == 1 else 2)
        tables = make_tables(
            skip, scales, outer, count, copy, reach, accuracy.table_points
        )
        clipped = max(clipped, tables.clipped)
        labels = draw_labels(case, scramble)
        moments = posterior_of_labels(case, tables, labels)
        columns, zeros = _averaged_columns(case, labels, moments)
        samples.append(columns)
        controls.append(zeros)
    means = np.zeros((4, output_layer + 1, output_layer + 1))
    if np.isfinite(samples).all() and np.isfinite(controls).all():
        entries = [(0, a, a) for a in case.informed] + [
            (2, a, b) for a, b in case.pairs
        ]
        for (kind, a, b), *estimate in zip(
            entries, *controlled_mean(samples, controls)
        ):
            means[kind : kind + 2, a, b] = means[kind : kind + 2, b, a] = estimate
        # error of nodes, grids and tables, measured with finer ones
        relative_error = clipped + 3e-4
        means[1::2] = np.hypot(means[1::2], relative_error * np.abs(means[::2]))
    else:  # the posterior of a label far beyond the last node is 0 / 0
        means[:] = np.nan
    means.flags.writeable = False
    return means


class LayerLabels(NamedTuple):
    """Random labels of one scramble: outputs ``ut`` (n, 2), ``gap = ut_1 - ut_2``, and means of the layers (n, L, 2)."""

    ut: Host
    gap: Host
    omega: Host


def draw_labels(case: _Case, scramble: int) -> LayerLabels:
    """Draw the random labels of one scramble of points."""
    layers = len(case.q)
    normal = normal_points(
        2 * (layers + 2), case.labels, "last layer: labels", scramble
    ).reshape(-1, layers + 2, 2)
    omega, z = (
        np.sqrt(scale)[:, None] * normal[:, :layers]
        for scale in (case.q, case.q + case.v)
    )
    for spare, a in enumerate([layers - 1, *case.known_layers], layers):
        z[:, a] = omega[:, a] + math.sqrt(case.v[a]) * normal[:, spare]
    off_1, off_2, determinant = mixing(z[:, :-1], case.skip)
    z_1 = z[:, -1, 0]
    z_2 = z[:, -1, 1]
    difference = z_1 - z_2
    return LayerLabels(
        np.stack([z_1 - off_1 * difference, z_2 + off_2 * difference], axis=-1),
        determinant * difference,
        omega,
    )


class LastLayerMoments(NamedTuple):
    """Posterior means of n samples, from the tables of the layers before the last.

    ``shift`` (n, 2) and ``square`` (n, 2) hold ``e`` and ``e^2``, ``e = z_L - omega_L`` by token. ``table_moments`` (n, U, 4) has
    the moments of the tables. ``product`` (n,) is ``e_1 e_2`` and ``fourth`` (n,) the sum over both tokens and both orders of
    ``z_Lm^2 z_Lk^2``; None unless asked for. ``known_shift`` (n, 2) and ``known_square`` (n,) are shift and squared distance of
    the known layer.
    """

    shift: Host
    square: Host
    table_moments: Host
    product: Array = None
    fourth: Array = None
    known_shift: Array = None
    known_square: Array = None


def posterior_of_labels(
    case: _Case, tables: Tables, labels: LayerLabels
) -> LastLayerMoments:
    """Posterior moments of the labels, in blocks that fit the cache."""
    batches = []
    for rows in blocks(len(labels.ut), 512):
        ut, gap, omega = (array[rows] for array in labels)
        known_layer = (
            (omega[:, case.known_layers[0]], float(case.v[case.known_layers[0]]))
            if case.known_layers
            else None
        )
        batches.append(
            posterior_moments(
                tables,
                ut,
                gap,
                omega[:, -1],
                float(case.v[-1]),
                known_layer,
                case.blind,
            )
        )
    return joined(batches)


def posterior_moments(
    tables: Tables,
    ut: Host,
    gap: Host,
    omega: Host,
    v: float,
    known_layer: tuple[Host, float] | None = None,
    full: bool = False,
) -> LastLayerMoments:
    """Posterior moments of the samples ``ut`` (n, 2), with ``gap = ut_1 - ut_2`` given apart for its digits.

    ``omega`` (n, 2) and ``v`` belong to the last layer, ``known_layer`` has those of the layer on the outer grid.
    """
    n = len(ut)
    count = len(tables.nodes)
    kind = np.float32  # single precision: all terms are positive, so errors are 1e-6, in a third of the time
    stack = tables.sums.astype(kind, copy=False)
    amount = np.ones((n, 1), kind)
    if known_layer is not None:
        rho = [
            weight @ tables.modes.T
            for weight in outer_weights(tables.outer, tables.share, *known_layer)
        ]
        amount = rho[0].astype(kind)
    forward = stack.reshape(-1, stack.shape[2])
    backward = np.ascontiguousarray(
        stack[:, :, :count].transpose(2, 0, 1).reshape(count, -1)
    )
    blocks = np.zeros((n, stack.shape[2] // count))
    per_mode = np.zeros((n, len(stack)))
    shift = np.zeros((n, 2))
    square = np.zeros((n, 2))
    product = np.zeros(n)
    fourth = np.zeros(n)
    # all in units of sqrt(v)
    unit = v**-0.5
    # beyond 1e8 a node weighs nothing, whatever its distance; fourth powers stay finite
    place = np.clip((unit * gap)[:, None] * tables.nodes, -1e8, 1e8).astype(kind)
    u_1, u_2, omega_1, omega_2 = (
        (unit * x[:, m : m + 1]).astype(kind) for x in (ut, omega) for m in range(2)
    )
    for sign in (kind(1), kind(-1)):
        # z_1 = sign (u_1 + place) and z_2 = sign (u_2 - place)
        e1 = place + (u_1 - sign * omega_1)
        e2 = (u_2 - sign * omega_2) - place
        e1, e2 = (e1, e2) if sign > 0 else (-e1, -e2)
        e11 = e1 * e1
        e22 = e2 * e2
        f = _gaussian(e11)
        g = _gaussian(e22)
        # all modes in one product: each mode has a copy of f, scaled by its amount
        forward_sums = (_times_factor(amount, f) @ forward).reshape(n, -1, count)
        by_f = g @ backward
        if known_layer is not None:
            by_mode = by_f.reshape(n, -1, count)
            per_mode += np.einsum("nkj,nj->nk", by_mode, f)
            by_f = np.einsum("nk,nkj->nj", amount, by_mode)
        blocks += np.einsum("nbj,nj->nb", forward_sums, g)
        by_f *= f
        by_g = forward_sums[:, 0] * g
        for total, powers in ((shift, (e1, e2)), (square, (e11, e22))):
            total += np.stack(
                [np.einsum("nj,nj->n", *pair) for pair in zip((by_f, by_g), powers)],
                axis=-1,
            )
        if full:
            forward_masses = np.ascontiguousarray(forward[:, :count])
            z1 = (u_1 + place) ** 2
            z2 = (u_2 - place) ** 2
            crossed, squares = (
                _times_factor(amount, factor) @ forward_masses
                for factor in (f * e1, f * z1)
            )
            product += np.einsum("nj,nj,nj->n", crossed, g, e2)
            fourth += np.einsum("nj,nj,nj->n", by_f, z1, z1) + np.einsum(
                "nj,nj,nj->n", by_g, z2, z2
            )
            fourth += 2 * np.einsum("nj,nj,nj->n", squares, g, z2)
    shift *= math.sqrt(v)
    mass = blocks[:, 0]
    masses = mass[:, None]
    moments = LastLayerMoments(
        shift / masses, v * square / masses, (blocks[:, 1:] / masses).reshape(n, -1, 4)
    )
    if full:
        moments = moments._replace(
            product=v * product / mass, fourth=v * v * fourth / mass
        )
    if known_layer is not None:
        center = known_layer[0]
        mean = np.stack([(rho[k] * per_mode).sum(1) for k in (1, 2)], axis=-1) / masses
        known_square = (rho[3] * per_mode).sum(1) / mass + (
            (center - 2 * mean) * center
        ).sum(1)
        moments = moments._replace(known_shift=mean - center, known_square=known_square)
    return moments


def _gaussian(square: Host) -> Host:
    """Gaussian factor ``exp(-square / 2)`` in single precision; values below ``exp(-DARKEST)`` are set to 0."""
    limit = np.float32(2 * DARKEST)
    return np.where(
        square > limit,
        np.float32(0),
        np.exp(np.float32(-0.5) * np.minimum(square, limit)),
    )


def _times_factor(amount: Host, factor: Host) -> Host:
    """Products (n, K N) of mode amplitudes (n, K) with a factor (n, N)."""
    return (amount[:, :, None] * factor[:, None, :]).reshape(len(factor), -1)


def _averaged_columns(
    case: _Case, labels: LayerLabels, moments: LastLayerMoments
) -> tuple[Host, Host]:
    """Columns to be averaged (n, J), for ``informed`` and ``pairs``, and control variates of mean zero (n, K)."""
    q = case.q
    v = case.v
    output_layer = len(case.q) - 1
    square = moments.square / v[output_layer]
    G = {a: moments.table_moments[:, k, :3] for k, a in enumerate(case.unknown_layers)}
    zeros = []
    for k, a in enumerate(case.unknown_layers):
        zeros += [G[a][:, 0] + G[a][:, 1], moments.table_moments[:, k, 3]]
    zeros.append(square.sum(1) - 2)
    shifts = {output_layer: moments.shift}
    if case.blind:
        G[output_layer] = np.concatenate(
            [square - 1, moments.product[:, None] / v[output_layer]], axis=1
        )
        zeros.append(moments.fourth / v[output_layer] ** 2 - 2 * square.sum(1) - 4)
    for a in reversed(case.informed):
        if a != output_layer:
            shifts[a] = moments.known_shift
            zeros.append(moments.known_square / v[a] - 2)
        omega = labels.omega[:, a]
        zeros += [(omega * shifts[a]).sum(1), (omega**2).sum(1) - 2 * q[a]]
    columns = [(shifts[a] ** 2).sum(1) / v[a] ** 2 for a in case.informed]
    for a, b in case.pairs:
        product = G[a] * G[b]
        columns.append(
            (product[:, 0] + product[:, 1] + 2 * product[:, 2])
            / ((q[a] + v[a]) * (q[b] + v[b]))
        )
    return np.stack(columns, axis=-1), np.stack(zeros, axis=-1)
