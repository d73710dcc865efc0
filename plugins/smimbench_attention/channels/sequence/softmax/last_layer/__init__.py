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
from typing import NamedTuple

import numpy as np

from smimbench.interfaces import Array, Host
from smimbench.numerics import by_value, controlled_mean, is_diagonal, normal_points
from smimbench_attention.channels.common import blocks, concatenate_tuples
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

LARGEST_EXPONENT = 60.0
"""Weights below ``exp(-LARGEST_EXPONENT)`` of the largest possible one are 0. Doubled: the same, three times as slowly on some
processors: single precision ends there, and products with numbers next to its end take a hundred cycles."""


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
        [int(layer) for layer in np.flatnonzero(layer_mask)]
        for layer_mask in (q > 0, q == 0)
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
    layer_deviations = tuple(
        math.sqrt(q[layer] + v[layer]) for layer in range(output_layer)
    )
    # Rounded, so that the tables serve more than one overlap.
    outer_grid = (
        (known_layers[0], *accuracy.outer_grid(v[known_layers[0]]))
        if known_layers
        else None
    )
    node_spacing = relative_node_spacing(case.is_last_unknown, bool(known_layers))
    node_count = rounded_node_count(
        skip,
        len(Q),
        v[output_layer] / (q[output_layer] + v[output_layer]),
        node_spacing,
        accuracy,
    )
    largest_node = farthest_node(skip, output_layer, accuracy)
    columns_by_scramble = []
    controls_by_scramble = []
    clipped_weight = 0.0
    for scramble in range(accuracy.scrambles):
        point_set = scramble % (1 if len(case.unknown_layers) == 1 else 2)
        tables = make_tables(
            skip,
            layer_deviations,
            outer_grid,
            node_count,
            point_set,
            largest_node,
            accuracy.table_points,
        )
        clipped_weight = max(clipped_weight, tables.clipped_weight)
        labels = draw_labels(case, scramble)
        moments = posterior_of_labels(case, tables, labels)
        columns, control_columns = _columns_to_average(case, labels, moments)
        columns_by_scramble.append(columns)
        controls_by_scramble.append(control_columns)
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
        relative_error = clipped_weight + 3e-4
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
    z_1 = z[:, -1, 0]
    z_2 = z[:, -1, 1]
    token_difference = z_1 - z_2
    return LayerLabels(
        np.stack(
            [
                z_1 - off_diagonal_1 * token_difference,
                z_2 + off_diagonal_2 * token_difference,
            ],
            axis=-1,
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
    product: Array = None  # (n,) of e_1 e_2, if requested
    fourth_moment: Array = None  # (n,) of sum_mk z_Lm^2 z_Lk^2, if requested
    known_shift: Array = None  # (n, 2) shift of the known layer
    known_square: Array = None  # (n,) squared distance of the known layer


def posterior_of_labels(
    case: _Case, tables: Tables, labels: LayerLabels
) -> LastLayerMoments:
    """Posterior moments of all ``labels`` of a scramble, from the ``tables`` of the layers before the last, in blocks of ``rows``
    that fit the cache; ``case`` says which layers are known, ``known_layer`` is the mean and variance of the one before the last.
    ``ut`` are the scaled outputs of labels, ``gap`` their difference.

    Blocks hold labels of similar ``reach``, the x and y beyond which a node weighs nothing, and use the nodes up to there:
    without a skip connection most labels need few of them.
    """
    # The last layer's errors are +-(ut + gap x) - omega; a factor is 0 where they are larger than this.
    largest_error = math.sqrt(2 * LARGEST_EXPONENT * case.v[-1])
    distance = largest_error + (np.abs(labels.ut) + np.abs(labels.omega[:, -1])).max(
        axis=1
    )
    reach = distance / np.maximum(np.abs(labels.gap), 1e-300)
    order = np.argsort(reach)
    batches = []
    for block in blocks(len(order), 512):
        rows = order[block]
        ut, gap, omega = (array[rows] for array in labels)
        known_layer = (
            (omega[:, case.known_layers[0]], float(case.v[case.known_layers[0]]))
            if case.known_layers
            else None
        )
        batches.append(
            posterior_moments(
                tables.up_to(reach[rows[-1]]),
                ut,
                gap,
                omega[:, -1],
                float(case.v[-1]),
                known_layer,
                case.is_last_unknown,
            )
        )
    place = np.argsort(order)
    return LastLayerMoments._make(
        None if moment is None else moment[place]
        for moment in concatenate_tuples(batches)
    )


def posterior_moments(
    tables: Tables,
    ut: Host,
    gap: Host,
    omega: Host,
    v: float,
    known_layer: tuple[Host, float] | None = None,
    fourth_moments: bool = False,
) -> LastLayerMoments:
    """Posterior moments of the latents given n labels, with outputs ``ut`` (n, 2) up to sign and ``gap = ut_1 - ut_2``, as
    bilinear forms in ``tables`` of the layers before the last; the last one is z ~ N(omega, v), and ``e1``, ``e2`` are its errors
    ``z - omega`` at the nodes, for either ``sign`` of the output, whose Gaussian factors multiply the table along x
    (``forward_...``) and y (``backward_...``). ``known_layer`` are the mean (n, 2) and the variance of the known layer before the
    last, or None; a mode is a combination of its values on a grid. Moments of fourth order only if ``fourth_moments``.

    ``omega`` (n, 2) and ``v`` belong to the last layer, ``known_layer`` has those of the layer on the outer grid.
    """
    n = len(ut)
    node_count = len(tables.nodes)
    single = np.float32  # single precision: all terms are positive, so errors are 1e-6, in a third of the time
    table_sums = tables.sums.astype(single, copy=False)
    mode_amplitudes = np.ones((n, 1), single)
    if known_layer is not None:
        mode_weights = [
            outer_weight @ tables.modes.T
            for outer_weight in outer_weights(tables.outer, tables.area, *known_layer)
        ]
        mode_amplitudes = mode_weights[0].astype(single)
    forward_tables = table_sums.reshape(-1, table_sums.shape[2])
    backward_tables = np.ascontiguousarray(
        table_sums[:, :, :node_count].transpose(2, 0, 1).reshape(node_count, -1)
    )
    block_sums = np.zeros((n, table_sums.shape[2] // node_count))
    mode_sums = np.zeros((n, len(table_sums)))
    shift_sum = np.zeros((n, 2))
    square_sum = np.zeros((n, 2))
    product_sum = np.zeros(n)
    fourth_sum = np.zeros(n)
    # all in units of sqrt(v)
    inverse_deviation = v**-0.5
    # beyond 1e8 a node weighs nothing, whatever its distance; fourth powers stay finite
    scaled_nodes = np.clip(
        (inverse_deviation * gap)[:, None] * tables.nodes, -1e8, 1e8
    ).astype(single)
    u_1, u_2, omega_1, omega_2 = (
        (inverse_deviation * coordinates[:, token : token + 1]).astype(single)
        for coordinates in (ut, omega)
        for token in range(2)
    )
    for sign in (single(1), single(-1)):
        # z_1 = sign (u_1 + place) and z_2 = sign (u_2 - place)
        e1 = scaled_nodes + (u_1 - sign * omega_1)
        e2 = (u_2 - sign * omega_2) - scaled_nodes
        e1, e2 = (e1, e2) if sign > 0 else (-e1, -e2)
        e1_squared = e1 * e1
        e2_squared = e2 * e2
        factor_1 = _gaussian_factor(e1_squared)
        factor_2 = _gaussian_factor(e2_squared)
        # all modes in one product: each mode has a copy of f, scaled by its amount
        forward_sums = (
            _amplitude_times_factor(mode_amplitudes, factor_1) @ forward_tables
        ).reshape(n, -1, node_count)
        node_weights_1 = factor_2 @ backward_tables
        if known_layer is not None:
            weights_by_mode = node_weights_1.reshape(n, -1, node_count)
            mode_sums += np.einsum("nkj,nj->nk", weights_by_mode, factor_1)
            node_weights_1 = np.einsum("nk,nkj->nj", mode_amplitudes, weights_by_mode)
        block_sums += np.einsum("nbj,nj->nb", forward_sums, factor_2)
        node_weights_1 *= factor_1
        node_weights_2 = forward_sums[:, 0] * factor_2
        for moment_sums, power_pair in (
            (shift_sum, (e1, e2)),
            (square_sum, (e1_squared, e2_squared)),
        ):
            moment_sums += np.stack(
                [
                    np.einsum("nj,nj->n", *weights_and_powers)
                    for weights_and_powers in zip(
                        (node_weights_1, node_weights_2), power_pair
                    )
                ],
                axis=-1,
            )
        if fourth_moments:
            forward_masses = np.ascontiguousarray(forward_tables[:, :node_count])
            z1_squared = (u_1 + scaled_nodes) ** 2
            z2_squared = (u_2 - scaled_nodes) ** 2
            crossed_sums, squared_sums = (
                _amplitude_times_factor(mode_amplitudes, factor) @ forward_masses
                for factor in (factor_1 * e1, factor_1 * z1_squared)
            )
            product_sum += np.einsum("nj,nj,nj->n", crossed_sums, factor_2, e2)
            fourth_sum += np.einsum(
                "nj,nj,nj->n", node_weights_1, z1_squared, z1_squared
            ) + np.einsum("nj,nj,nj->n", node_weights_2, z2_squared, z2_squared)
            fourth_sum += 2 * np.einsum(
                "nj,nj,nj->n", squared_sums, factor_2, z2_squared
            )
    shift_sum *= math.sqrt(v)
    mode_mass = block_sums[:, 0]
    mass_column = mode_mass[:, None]
    moments = LastLayerMoments(
        shift_sum / mass_column,
        v * square_sum / mass_column,
        (block_sums[:, 1:] / mass_column).reshape(n, -1, 4),
    )
    if fourth_moments:
        moments = moments._replace(
            product=v * product_sum / mode_mass,
            fourth_moment=v * v * fourth_sum / mode_mass,
        )
    if known_layer is not None:
        known_omega = known_layer[0]
        known_mean = (
            np.stack(
                [(mode_weights[mode] * mode_sums).sum(1) for mode in (1, 2)], axis=-1
            )
            / mass_column
        )
        known_square = (mode_weights[3] * mode_sums).sum(1) / mode_mass + (
            (known_omega - 2 * known_mean) * known_omega
        ).sum(1)
        moments = moments._replace(
            known_shift=known_mean - known_omega, known_square=known_square
        )
    return moments


def _gaussian_factor(square: Host) -> Host:
    """Gaussian factor ``exp(-square / 2)`` in single precision; values below ``exp(-LARGEST_EXPONENT)`` are set to 0."""
    largest_square = np.float32(2 * LARGEST_EXPONENT)
    return np.where(
        square > largest_square,
        np.float32(0),
        np.exp(np.float32(-0.5) * np.minimum(square, largest_square)),
    )


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
        columns.append(
            (
                response_product[:, 0]
                + response_product[:, 1]
                + 2 * response_product[:, 2]
            )
            / ((q[layer] + v[layer]) * (q[layer_2] + v[layer_2]))
        )
    return np.stack(columns, axis=-1), np.stack(control_variates, axis=-1)
