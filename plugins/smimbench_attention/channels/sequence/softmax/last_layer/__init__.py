r"""Information and susceptibility of deep attention of two tokens with at most two known layers, that is, layers with an overlap:
drawn labels, averaged with control variates.

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
from functools import partial
from typing import NamedTuple

import numpy as np

from smimbench.interfaces import Host
from smimbench.numerics import (
    by_value,
    controlled_mean,
    is_diagonal,
    map_in_threads,
    normal_points,
)
from smimbench_attention.channels.common import blocks
from smimbench_attention.channels.sequence.softmax.deep import mixing
from smimbench_attention.channels.sequence.softmax.last_layer.tables import (
    ACCURACY,
    MOST_NODES,
    TableAccuracy,
    Tables,
    farthest_node,
    make_tables,
    nodes_needed,
    outer_weights,
    relative_node_spacing,
    rounded_node_count,
)

LARGEST_EXPONENT = 30.0
"""Weights below ``exp(-LARGEST_EXPONENT)`` of the largest possible one are 0. Doubled: the same, a tenth more slowly. At 80
single precision ends: products with numbers near its end take a hundred cycles on some processors."""


def supports(Q: Host, V: Host, skip: float = 1.0) -> bool:
    """Whether this module can compute the information at one overlap Q and error V, both (L, L), with diagonals q and v; ``skip``
    is the weight c of the skip connection, and known layers are those with an overlap.

    Both diagonal, L at least 2, and of the layers before the last at most one known (none for L = 2), and that one with an
    error of at least a quarter of its variance. The last layer must not be known so well that its factors fall between nodes.
    """
    if len(Q) < 2 or not is_diagonal(Q, V):
        return False
    q = np.diagonal(Q)
    v = np.diagonal(V)
    known_layers = np.flatnonzero(q[:-1])
    node_spacing = relative_node_spacing(bool(q[-1] == 0), len(known_layers) > 0)
    # nodes may be up to twice as far apart as desired
    if (
        nodes_needed(skip, len(q), v[-1] / (q[-1] + v[-1]), node_spacing, ACCURACY)
        > 2 * MOST_NODES
    ):
        return False
    return len(known_layers) == 0 or bool(
        len(known_layers) == 1
        and len(q) > 2
        and v[known_layers[0]] >= 0.25 * (q + v)[known_layers[0]]
    )


class _Case(NamedTuple):
    """Which layers are known, that is, have an overlap, at one diagonal (Q, V) of diagonals q and v (L,): ``known_layers`` and
    ``unknown_layers`` are those before the last, ``layers_with_overlap`` are all layers whose information is computed,
    ``unknown_pairs`` the pairs of layers without overlap, whose susceptibility is computed; ``labels`` is their number in a
    scramble, ``skip`` the weight of the skip connection.
    """

    skip: float  # weight of the skip connection
    q: Host  # (L,) overlaps
    v: Host  # (L,) errors
    known_layers: list[
        int
    ]  # the layer before the last with an overlap, if there is one
    unknown_layers: list[int]  # the others before the last
    is_last_unknown: bool  # whether the last layer has no overlap
    layers_with_overlap: list[
        int
    ]  # layers with an overlap, whose information is computed
    unknown_pairs: list[
        tuple[int, int]
    ]  # pairs of layers without overlap, whose susceptibility is computed
    labels: int  # number per scramble


def case_at(Q: Host, V: Host, skip: float, accuracy: TableAccuracy) -> _Case:
    """Find the case at one overlap Q and error V, both (L, L) and diagonal, with diagonals q and v: which layers are known, that
    is, have an overlap. ``skip`` is the weight c of the skip connection; ``accuracy`` has the number of labels to draw.
    """
    q = np.diagonal(Q)
    v = np.diagonal(V)
    layers_with_overlap, layers_without_overlap = (
        np.flatnonzero(layer_mask).tolist() for layer_mask in (q > 0, q == 0)
    )
    output_layer = len(q) - 1
    known_layers, unknown_layers = (
        [layer for layer in layers if layer < output_layer]
        for layers in (layers_with_overlap, layers_without_overlap)
    )
    unknown_pairs = list(
        itertools.combinations_with_replacement(layers_without_overlap, 2)
    )
    labels = accuracy.outer_labels if known_layers else accuracy.labels
    return _Case(
        skip,
        q,
        v,
        known_layers,
        unknown_layers,
        output_layer in layers_without_overlap,
        layers_with_overlap,
        unknown_pairs,
        labels,
    )


@by_value(maxsize=512)
def evaluate(Q: Host, V: Host, skip: float, accuracy: TableAccuracy = ACCURACY) -> Host:
    r"""Information, its error, susceptibility, and its error (4, L, L) at one (Q, V), both (L, L), that ``supports`` accepts:
    means over drawn labels with control variates, whose posteriors come from tables on a grid of nodes. ``accuracy`` has the
    settings, ``skip`` is the weight c of the skip connection; known layers are those with an overlap, ``output_layer`` is the
    last, ``outer_grid`` that of the values of the known layer before it.

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
    case = case_at(Q, V, skip, accuracy)
    q = case.q
    v = case.v
    known_layers = case.known_layers
    output_layer = len(Q) - 1
    # Rounded, as V is Q's complement up to its last digit, and each pair should find the same tables.
    layer_deviations = tuple(np.sqrt(q + v)[:-1].round(14).tolist())
    # Rounded, so that the tables serve more than one overlap.
    outer_grid = (
        (known_layers[0], *accuracy.outer_grid(v[known_layers[0]]))
        if known_layers
        else None
    )
    node_spacing = relative_node_spacing(case.is_last_unknown, bool(known_layers))
    node_count = rounded_node_count(
        skip, len(Q), v[-1] / (q[-1] + v[-1]), node_spacing, accuracy
    )
    largest_node = farthest_node(skip, output_layer, accuracy)
    tables = map_in_threads(
        partial(
            make_tables,
            skip,
            layer_deviations,
            outer_grid,
            node_count,
            largest_node,
            accuracy.table_points,
        ),
        range(1 if len(case.unknown_layers) == 1 else 2),
    )

    def columns_of(scramble: int) -> tuple[Host, Host]:
        """Columns to average over the labels of one ``scramble``, and control variates."""
        labels = draw_labels(case, scramble)
        moments = posterior_of_labels(case, tables[scramble % len(tables)], labels)
        return _columns_to_average(case, labels, moments)

    columns_by_scramble, controls_by_scramble = zip(
        *map_in_threads(columns_of, range(accuracy.scrambles))
    )
    means = np.zeros((4, output_layer + 1, output_layer + 1))
    if (
        np.isfinite(columns_by_scramble).all()
        and np.isfinite(controls_by_scramble).all()
    ):
        entries = [(0, layer, layer) for layer in case.layers_with_overlap] + [
            (2, layer, layer_2) for layer, layer_2 in case.unknown_pairs
        ]
        for (mean_row, layer, layer_2), *estimate in zip(
            entries, *controlled_mean(columns_by_scramble, controls_by_scramble)
        ):
            means[mean_row : mean_row + 2, layer, layer_2] = means[
                mean_row : mean_row + 2, layer_2, layer
            ] = estimate
        # error of nodes, grids and tables, measured with finer ones
        relative_error = 3e-4 + max(table.clipped_weight for table in tables)
        means[1::2] = np.hypot(means[1::2], relative_error * np.abs(means[::2]))
    else:  # the posterior of a label far beyond the last node is 0 / 0
        means[:] = np.nan
    means.flags.writeable = False
    return means


class LayerLabels(NamedTuple):
    """Random labels of one scramble, given by the outputs ``ut = u / (1 + c)^{L-1}`` (n, 2) of the network, their difference
    ``gap = ut_1 - ut_2`` (n,), and the estimates ``omega`` (n, L, 2) of the layers' latents that go with them.
    """

    ut: Host
    gap: Host
    omega: Host


def draw_labels(case: _Case, scramble: int) -> LayerLabels:
    """Draw the random labels of one ``scramble``, that is, one independent set of quasi-random points, for the overlaps and
    errors of ``case``: estimates omega and latents z (n, L, 2), and the outputs that the network makes of z. Layers with an
    overlap get z = omega plus a residual of their own random numbers.
    """
    layers = len(case.q)
    normal_numbers = normal_points(
        2 * (layers + 2), case.labels, "last layer: labels", scramble
    ).reshape(-1, layers + 2, 2)
    omega, z = (
        np.sqrt(variance)[:, None] * normal_numbers[:, :layers]
        for variance in (case.q, case.q + case.v)
    )
    for residual_index, layer in enumerate([layers - 1, *case.known_layers], layers):
        z[:, layer] = (
            omega[:, layer]
            + math.sqrt(case.v[layer]) * normal_numbers[:, residual_index]
        )
    off_diagonal_1, off_diagonal_2, determinant = mixing(z[:, :-1], case.skip)
    z_1, z_2 = z[:, -1].T
    token_difference = z_1 - z_2
    return LayerLabels(
        np.column_stack(
            [
                z_1 - off_diagonal_1 * token_difference,
                z_2 + off_diagonal_2 * token_difference,
            ]
        ),
        determinant * token_difference,
        omega,
    )


class LastLayerMoments(NamedTuple):
    """Posterior means of n samples, of the last layer's error ``e = z_L - omega_L`` by token: ``shift`` E[e], ``square`` E[e^2],
    ``product`` E[e_1 e_2], ``fourth_moment`` of its latents; of the moments in the tables for the U unknown layers; and of the
    error ``z - omega`` of the known layer before the last, and its squared length.
    """

    shift: Host  # (n, 2) of e
    square: Host  # (n, 2) of e^2
    table_moments: Host  # (n, U, 4) moments of the tables
    product: Host  # (n,) of e_1 e_2, 0 unless requested
    fourth_moment: Host  # (n,) of sum_mk z_Lm^2 z_Lk^2, 0 unless requested
    known_shift: Host  # (n, 2) shift of the known layer, 0 if there is none
    known_square: Host  # (n,) squared distance of the known layer


def posterior_of_labels(
    case: _Case, tables: Tables, labels: LayerLabels
) -> LastLayerMoments:
    """Posterior moments of all ``labels`` of a scramble, from the ``tables`` of the layers before the last; ``case`` says which
    layers are known.

    A label counts once with each sign of its outputs, unless no node agrees with that sign. Blocks of ``rows`` fit the cache and
    are of similar ``reach``, the x and y beyond which a node weighs nothing, and use the nodes up to there: without a skip
    connection most labels need few of them.
    """
    n, v = len(labels.gap), float(case.v[-1])
    outputs = np.column_stack([labels.ut, labels.gap])
    omega = labels.omega[:, [-1, *case.known_layers]].reshape(n, -1)
    signed_labels = np.concatenate(
        [np.hstack([sign * outputs, omega]) for sign in (1, -1)]
    )
    u_1, u_2, signed_gap, omega_1, omega_2 = signed_labels.T[:5]
    # The last layer's errors are u_1 + gap x - omega_1 and u_2 - gap y - omega_2; farther from these x and y its factors are 0.
    safe_gap = np.copysign(np.maximum(np.abs(signed_gap), 1e-100), signed_gap)
    half_width = math.sqrt(2 * LARGEST_EXPONENT * v) / np.abs(safe_gap)
    x = (omega_1 - u_1) / safe_gap
    y = (u_2 - omega_2) / safe_gap
    reach = np.maximum(x, y) + half_width
    is_possible = (np.minimum(x, y) + half_width >= 0.0) & (
        np.maximum(x, y) - half_width <= tables.nodes[-1]
    )
    order = np.argsort(reach)
    order = order[is_possible[order]]
    sums = np.zeros((2 * n, 10 + tables.sums.shape[2] // len(tables.nodes)))
    for block in blocks(len(order), 512):
        rows = order[block]
        sums[rows] = _sums_over_nodes(
            tables.up_to(reach[rows].max(initial=0.0)), signed_labels[rows].T, case
        )
    total = sums[:n] + sums[n:]
    means = total[:, 1:] / total[:, :1]
    return LastLayerMoments(
        math.sqrt(v) * means[:, -10:-8],
        v * means[:, -8:-6],
        means[:, :-10].reshape(n, -1, 4),
        v * means[:, -6],
        v * v * (means[:, -5] + means[:, -4]),
        means[:, -3:-1],
        means[:, -1],
    )


def _sums_over_nodes(tables: Tables, labels: Host, case: _Case) -> Host:
    """Sums (n, 11 + 4 U) over the nodes of ``tables`` for n ``labels`` of known sign (5 or 7, n), whose rows are the outputs,
    their gap, and the means of the last and of the known layer: bilinear forms. ``e1``, ``e2`` are the last layer's errors
    ``z - omega`` at the nodes, whose Gaussian factors multiply the table along x (``forward_...``) and y (``backward_...``); a
    mode is a combination of the known layer's values on a grid.

    Columns: mass; the moments in the tables; shift and square of the last layer by token, product and two parts of the fourth
    moment, all in units of sqrt(v); shift of the known layer by token and its square. What is not wanted is 0.
    """
    node_count = len(tables.nodes)
    single = np.float32  # single precision: all terms are positive, so errors are 1e-6, in a third of the time
    table_sums = tables.sums.astype(single, copy=False)
    mode_amplitudes = np.ones((labels.shape[1], 1), single)
    if case.known_layers:
        known_omega = labels[5:].T
        even_weights, odd_weights = outer_weights(
            tables.outer,
            tables.area,
            known_omega.astype(single),
            float(case.v[case.known_layers[0]]),
        )
        mode_amplitudes = even_weights @ tables.modes.T.astype(single)
    forward_tables = table_sums.reshape(-1, table_sums.shape[2])
    backward_tables = np.ascontiguousarray(
        table_sums[:, :, :node_count].transpose(2, 0, 1).reshape(node_count, -1)
    )
    u_1, u_2, gap, omega_1, omega_2 = case.v[-1] ** -0.5 * labels[:5, :, None]
    # beyond 1e8 a node weighs nothing, whatever its distance; fourth powers stay finite
    scaled_nodes = np.clip(gap * tables.nodes, -1e8, 1e8).astype(single)
    u_1, u_2, omega_1, omega_2 = (
        column.astype(single) for column in (u_1, u_2, omega_1, omega_2)
    )
    e1 = scaled_nodes + (u_1 - omega_1)
    e2 = (u_2 - omega_2) - scaled_nodes
    e1_squared = e1 * e1
    e2_squared = e2 * e2
    factor_1 = _gaussian_factor(e1_squared)
    factor_2 = _gaussian_factor(e2_squared)
    # all modes in one product: each mode has a copy of f, scaled by its amount
    forward_sums = (
        _amplitude_times_factor(mode_amplitudes, factor_1) @ forward_tables
    ).reshape(len(factor_1), -1, node_count)
    weights_by_mode = (factor_2 @ backward_tables).reshape(
        len(factor_1), -1, node_count
    )
    node_weights_1 = np.einsum("nk,nkj->nj", mode_amplitudes, weights_by_mode)
    node_weights_1 *= factor_1
    node_weights_2 = forward_sums[:, 0] * factor_2
    block_sums = np.einsum("nbj,nj->nb", forward_sums, factor_2)
    weights_and_powers = [
        (node_weights_1, e1),
        (node_weights_2, e2),
        (node_weights_1, e1_squared),
        (node_weights_2, e2_squared),
    ]
    if case.is_last_unknown:
        forward_masses = np.ascontiguousarray(forward_tables[:, :node_count])
        z1_squared = (u_1 + scaled_nodes) ** 2
        z2_squared = (u_2 - scaled_nodes) ** 2
        crossed_sums, squared_sums = (
            _amplitude_times_factor(mode_amplitudes, factor) @ forward_masses
            for factor in (factor_1 * e1, factor_1 * z1_squared)
        )
        weights_and_powers += [
            (crossed_sums * factor_2, e2),
            (node_weights_1 * z1_squared, z1_squared),
            (node_weights_2 * z2_squared + 2 * squared_sums * factor_2, z2_squared),
        ]
    columns = [
        block_sums,
        *(np.einsum("nj,nj->n", *pair) for pair in weights_and_powers),
    ]
    no_columns = np.zeros((len(factor_1), 3))
    if not case.is_last_unknown:
        columns.append(no_columns)
    if case.known_layers:
        mode_sums = np.einsum("nkj,nj->nk", weights_by_mode, factor_1)
        value_sums = mode_sums @ tables.modes.astype(single)
        known_sum = (odd_weights * value_sums) @ tables.outer
        known_shift = known_sum - block_sums[:, :1] * known_omega
        columns += [
            known_shift,
            (even_weights * value_sums) @ (tables.outer**2).sum(1)
            - ((known_sum + known_shift) * known_omega).sum(1),
        ]
    else:
        columns.append(no_columns)
    return np.column_stack(columns)


def _gaussian_factor(square: Host) -> Host:
    """Gaussian factor ``exp(-square / 2)`` in single precision; values below ``exp(-LARGEST_EXPONENT)`` are set to 0."""
    is_relevant = square <= np.float32(2 * LARGEST_EXPONENT)
    return np.exp(np.float32(-0.5) * square) * is_relevant


def _amplitude_times_factor(amplitudes: Host, gaussian_factor: Host) -> Host:
    """Products (n, K N) of the ``amplitudes`` (n, K) of K modes (combinations of values of the known layer) with
    ``gaussian_factor`` (n, N), the label's factor at N nodes.
    """
    return (amplitudes[:, :, None] * gaussian_factor[:, None, :]).reshape(
        len(gaussian_factor), -1
    )


def _columns_to_average(
    case: _Case, labels: LayerLabels, moments: LastLayerMoments
) -> tuple[Host, Host]:
    """Columns (n, J), one row per label, whose means over ``labels`` are the entries of the information and of the
    susceptibility, and control variates (n, K) of mean zero. ``moments`` are the labels' posterior means, ``case`` says which
    layers have an overlap; a response is ``E[z z^T | y]`` of an unknown layer, in units of its variance, minus the unit matrix:
    entries 11, 22 and 12.
    """
    q = case.q
    v = case.v
    output_layer = len(case.q) - 1
    scaled_square = moments.square / v[output_layer]
    response_by_layer = {
        layer: moments.table_moments[:, index, :3]
        for index, layer in enumerate(case.unknown_layers)
    }
    control_variates = []
    for index, layer in enumerate(case.unknown_layers):
        control_variates += [
            response_by_layer[layer][:, 0] + response_by_layer[layer][:, 1],
            moments.table_moments[:, index, 3],
        ]
    control_variates.append(scaled_square.sum(1) - 2)
    shift_by_layer = {output_layer: moments.shift}
    if case.is_last_unknown:
        response_by_layer[output_layer] = np.concatenate(
            [scaled_square - 1, moments.product[:, None] / v[output_layer]], axis=1
        )
        control_variates.append(
            moments.fourth_moment / v[output_layer] ** 2 - 2 * scaled_square.sum(1) - 4
        )
    for layer in reversed(case.layers_with_overlap):
        if layer != output_layer:
            shift_by_layer[layer] = moments.known_shift
            control_variates.append(moments.known_square / v[layer] - 2)
        omega = labels.omega[:, layer]
        control_variates += [
            (omega * shift_by_layer[layer]).sum(1),
            (omega**2).sum(1) - 2 * q[layer],
        ]
    columns = [
        (shift_by_layer[layer] ** 2).sum(1) / v[layer] ** 2
        for layer in case.layers_with_overlap
    ]
    for layer, layer_2 in case.unknown_pairs:
        response_product = response_by_layer[layer] * response_by_layer[layer_2]
        variances = (q[layer] + v[layer]) * (q[layer_2] + v[layer_2])
        columns.append(response_product @ [1.0, 1.0, 2.0] / variances)
    return np.column_stack(columns), np.column_stack(control_variates)
