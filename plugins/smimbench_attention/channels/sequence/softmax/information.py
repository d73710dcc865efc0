"""Information and susceptibility of the softmax channel: in closed form, from tables, or averaged over random labels.

One layer has a closed form up to a quadrature (``one_layer``). Two tokens whose last layer, and at most one before it, has an
overlap have tables (``last_layer``). For all others labels are drawn and averaged by ``smimbench.derive.label_means``. Where
the posterior is itself sampled its points are others in every scramble, so that the spread of the scrambles knows their error
too. Checked by tests/channels/sequence/test_softmax_information.py.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from smimbench.backend import to_host
from smimbench.derive import LabelMeans, Labels, label_means, without_overlap
from smimbench.interfaces import Array, Host, Uncertain
from smimbench.numerics import (
    by_value,
    is_diagonal,
    map_in_threads,
    normal_points,
    symmetric_root,
)
from smimbench_attention.channels.common import on_host, uncertain_like
from smimbench_attention.channels.sequence.softmax import deep, last_layer, two_layers
from smimbench_attention.channels.sequence.softmax.last_layer.tables import (
    ACCURACY as TABLE_ACCURACY,
)
from smimbench_attention.channels.sequence.softmax.network import Network, output

SCRAMBLES = 16
"""Independent sets of labels. Doubled: half as many labels in each, a better known standard error."""
FEWEST_LABELS = 2**12
MOST_LABELS = 2**17
"""The same where the posterior is exact: how many say how many it takes, and the most that are taken. Doubled: half of the
unevenness of that choice; twice the time where an overlap is small, and an error there that is 1.6 times smaller."""
TARGET_ERROR = 7e-4
"""Relative error of the information for which labels are drawn where the posterior is exact. Doubled: a third of the labels."""
ACCURACY = 2e-3
"""Relative error of the posterior of a label where it is exact. Doubled: a tenth less time, values that are 1e-4 higher."""
POINTS = 1024
"""Points of a posterior that is sampled, in each of two runs. Halved: two thirds of the time, but missed modes make the
information 1.5% too small, and susceptibilities 4%."""


def _has_table(network: Network, Q: Host, V: Host) -> bool:
    """Whether the information of ``network`` at overlap Q and error V, both (L, L), is computed from tables: two tokens, and few
    layers with an overlap.
    """
    return network.tokens == 2 and last_layer.supports(Q, V, network.skip)


def labels_for_differences(network: Network, Q: Array, V: Array) -> int:
    """Number of random labels that suffices for finite differences of the information of ``network`` around overlap Q and error
    V.
    """
    return (
        2**12
        if network.is_exact or _has_table(network, to_host(Q), to_host(V))
        else 2**9
    )


def means_over_labels(
    network: Network, Q: Array, V: Array, labels: int | None, kind: int
) -> Uncertain:
    """Information (``kind`` 0) or susceptibility (2) of ``network``, with its error, at a batch of overlaps Q and errors V (...,
    L, L), as means over so many random ``labels`` (None: the default number), whose posteriors come from tables where there are
    some.

    For two layers or more.
    """
    accuracy = TABLE_ACCURACY if labels is None else TABLE_ACCURACY.with_labels(labels)
    estimates = []
    standard_errors = []
    methods = []
    for Q_matrix, V_matrix in zip(
        *(array.reshape(-1, *Q.shape[-2:]) for array in on_host(Q, V))
    ):
        means: Array = np.nan
        if _has_table(network, Q_matrix, V_matrix):
            with np.errstate(invalid="ignore", divide="ignore"):
                means = last_layer.evaluate(Q_matrix, V_matrix, network.skip, accuracy)
            method = f"quadrature in the latents, Monte Carlo over labels ({accuracy.scrambles} scrambles)"
        if not np.isfinite(means).all():
            means = label_averages(
                network,
                Q_matrix,
                V_matrix,
                default_labels(network, Q_matrix, V_matrix)
                if labels is None
                else labels,
            )
            method = f"Monte Carlo ({SCRAMBLES} Sobol scrambles of labels)"
        estimates.append(means[kind])
        standard_errors.append(means[kind + 1])
        methods.append(method)
    value, error = (
        np.reshape(results, Q.shape) for results in (estimates, standard_errors)
    )
    return uncertain_like(Q, value, error, ", ".join(dict.fromkeys(methods)))


def _rotate_to_differences(normal: Host, network: Network) -> Host:
    """Turn standard normal numbers ``normal`` (n, L M) into those of L layers and M tokens of ``network``, (n, L, M): the first L
    (M - 1) become differences of tokens, the last L their sums, by the orthogonal matrix ``rotation``.

    Attention depends on differences of tokens most, and Sobol points are most even in their first coordinates: errors of the
    information of two layers are 1.2 to 1.5 times smaller so, up to a factor of 2 for the last layer.
    """
    from scipy.linalg import helmert

    layers = network.layers
    tokens = network.tokens
    columns = np.split(normal, [layers * (tokens - 1)], axis=1)
    token_differences, token_sums = (
        coordinates.reshape(len(normal), layers, -1) for coordinates in columns
    )
    rotation = helmert(
        tokens, full=True
    )  # its first row is the sum, the others are differences
    return np.asarray(token_sums * rotation[0] + token_differences @ rotation[1:])


def _draw_labels(
    network: Network, Q: Host, V: Host, labels: int, scramble: int
) -> Labels:
    """Draw so many ``labels`` of one ``scramble``, an independent set of quasi-random points, at overlap Q and error V (L, L):
    estimates omega ~ N(0, Q), latents z ~ N(omega, V) and the outputs u of ``network``; and compute the posterior moments,
    whitened by ``V^{-1/2}``, in two independent runs where they are sampled (``posterior_runs``). Unknown layers are those
    without overlap.
    """
    layers = network.layers
    tokens = network.tokens
    latent_count = layers * tokens
    normal_numbers = normal_points(
        2 * latent_count, labels, "deep attention: labels", scramble
    )
    white_omega = _rotate_to_differences(normal_numbers[:, :latent_count], network)
    white_residual = _rotate_to_differences(normal_numbers[:, latent_count:], network)
    root_V = symmetric_root(V)
    omega = symmetric_root(Q) @ white_omega
    z = omega + root_V @ white_residual
    u = output(z, network.skip)
    last_gap = deep.output_gap(z, network.skip) if tokens == 2 else None
    unknown_layers = without_overlap(Q)
    is_exact = network.is_exact
    if is_exact:
        posterior_runs = [
            two_layers.integrate(
                u, omega, V, network.skip, ACCURACY, bool(unknown_layers)
            )
        ]
    else:
        # Labels of one call share the points of their posteriors and part of their error, so every scramble uses others.
        posterior_runs = deep.integrate(
            u,
            omega,
            V,
            network.skip,
            0.0,
            POINTS,
            bool(unknown_layers) or None,
            seed=scramble,
            u_gap=last_gap,
            runs=2,
        )
    inverse_root = np.linalg.inv(root_V)
    whitened_shifts = [
        inverse_root @ posterior_run.shift for posterior_run in posterior_runs
    ]
    second_moments = posterior_runs[0].second
    responses = None
    if unknown_layers:
        # Means of unknown layers are zero, so that dz = z there.
        second_moment_matrices = [
            posterior_run.second.reshape(labels, layers, tokens, layers, tokens)
            for posterior_run in posterior_runs
        ]
        second_moments = np.einsum("nambm->nab", second_moment_matrices[0])
        whitened_squares = [
            np.stack(
                [
                    second_moment_matrix[:, layer, :, layer, :] / V[layer, layer]
                    for layer in unknown_layers
                ],
                axis=1,
            )
            - np.eye(tokens)
            for second_moment_matrix in second_moment_matrices
        ]
        responses = whitened_squares[0], whitened_squares[-1]
    return Labels(
        white_omega,
        white_residual,
        (whitened_shifts[0], whitened_shifts[-1]),
        inverse_root @ second_moments @ inverse_root if is_exact else None,
        responses,
    )


def default_labels(network: Network, Q: Host, V: Host) -> int:
    """Number of labels to draw by default for ``network`` at overlap Q and error V (L, L): where the posterior is integrated
    exactly, as many as a relative error of ``TARGET_ERROR`` takes, judged by the spread of ``FEWEST_LABELS`` labels
    (``pilot_means``).

    The information of a layer of small overlap rests on few labels that say much of it, and takes most; that of layers nearly
    known is much the same for all labels. The first ``FEWEST_LABELS`` of the labels say which it is.
    """
    if not network.is_exact:
        # total over all scrambles where the posterior is sampled
        return 2**12
    pilot_means = label_averages(network, Q, V, FEWEST_LABELS)
    relative_errors = [0.0]
    for means, standard_errors in (pilot_means[:2], pilot_means[2:4]):
        diagonal_values = np.diagonal(means)
        diagonal_errors = np.diagonal(standard_errors)
        relative_errors.extend(
            diagonal_errors[diagonal_values > 0.0]
            / diagonal_values[diagonal_values > 0.0]
        )
    # the error of quasi-random labels falls with their number to the power of 2/3
    label_count = FEWEST_LABELS * (max(relative_errors) / TARGET_ERROR) ** 1.5
    return int(
        2 ** math.ceil(math.log2(min(max(label_count, FEWEST_LABELS), MOST_LABELS)))
    )


@by_value(maxsize=512)
def label_averages(network: Network, Q: Host, V: Host, labels: int) -> LabelMeans:
    """Information and susceptibility of ``network`` at overlap Q and error V (L, L), with their errors, averaged over ``labels``
    random labels, all scrambles together (independent sets of points). The information is that of layers with an overlap, the
    mask ``is_learned``.

    Control variates whose standard deviation is below 3e-3, and directions of them with singular values below 1e-6, are left
    out: numerical errors would not have mean zero.
    """
    labels_per_scramble = max(16, labels // SCRAMBLES)
    scrambles = map_in_threads(
        partial(_draw_labels, network, Q, V, labels_per_scramble), range(SCRAMBLES)
    )
    means = label_means(
        scrambles.__getitem__, Q, V, scrambles=SCRAMBLES, faintest=3e-3, collinear=1e-6
    )
    if is_diagonal(Q, V):
        # A label does not depend on the sign of a layer: uncorrelated layers stay uncorrelated, unknown ones unknown.
        is_learned = np.diag(np.diagonal(Q) > 0.0)
        information, error = (np.where(is_learned, matrix, 0.0) for matrix in means[:2])
        means = means._replace(information=information, information_error=error)
    for matrix in means:
        matrix.flags.writeable = False
    return means
