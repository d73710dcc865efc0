"""Closed-form posterior of the row-wise argmax of two tokens, and its information by quadrature.

The label is the sign of two correlated Gaussian variables, so that everything follows from ``log Phi2``.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from smimbench.backend import namespace
from smimbench.interfaces import Array, Posterior
from smimbench.numerics import gauss_legendre, half_plane_hermite, log_cdf
from smimbench_attention.channels.common import (
    blocks,
    normal_density,
    raw_second_moment,
)

ROOT2 = math.sqrt(2.0)
MARGIN_CORRELATION = 1 / 3  # of u_1 = h_11 - h_12 and u_2 = h_22 - h_12
# Half-width of the fixed grid: beyond, the likelier answer is certain to double precision. Doubled: errors of 1e-6, not 1e-12.
GRID_HALF_WIDTH = 9.5
# Overlap over error from which the fixed grid serves, not the Hermite rule. Doubled: that rule has errors of 4e-12.
LEAST_GRID_RATIO = 1.2
# Nodes along each axis of the grid and of the Hermite rule: the first count is the answer, the second gives the error.
# Doubled: errors of 1e-14 in place of 1e-12, four times the time.
GRID_NODES = (64, 48)
HERMITE_NODES = (32, 24)


def _margins(
    y: Array, omega: Array, V: Array
) -> tuple[list[Array], list[Array], Array]:
    """Signs (n,) of the labels y of both rows of two tokens, +1 where the diagonal is largest; the rows' margins, sign times the
    mean difference of the logits over its standard deviation, for the latents z ~ N(omega, V) of sites 11, 12, 22; and V (...,
    1); all in float64.
    """
    xp = namespace(y, omega, V)
    flat_omega = xp.astype(omega[..., 0, :], xp.float64)
    variance = xp.astype(V[..., 0], xp.float64)
    margin_deviation = xp.sqrt(3 * variance)
    signs = [2 * xp.astype(y[..., row] == row, xp.float64) - 1 for row in (0, 1)]
    margins = [
        sign
        * (ROOT2 * flat_omega[..., 2 * row] - flat_omega[..., 1])
        / margin_deviation
        for row, sign in enumerate(signs)
    ]
    return signs, margins, variance


def two_token_log_partition(y: Array, omega: Array, V: Array) -> Array:
    """Log-probability ``log P(y | omega, V)`` (n,) of labels y of two tokens, for latents ``z ~ N(omega, V I)``: bivariate normal
    ``log Phi2`` of the rows' margins, sign times mean difference of the logits over its standard deviation.
    """
    (sign_1, sign_2), (margin_1, margin_2), _ = _margins(y, omega, V)
    log_phi2 = log_cdf(margin_1, margin_2, MARGIN_CORRELATION, sign=sign_1 * sign_2)
    return namespace(omega).astype(log_phi2.value, omega.dtype)


def two_token_posterior(
    y: Array, omega: Array, V: Array, *, second_moment: bool
) -> Posterior:
    r"""Posterior of the three latents ``z ~ N(omega, V I)`` of two tokens given the label y, in closed form from the gradient A
    (``h_slope``, ``k_slope``) and the Hessian H (h_11, h_12, h_22) of ``log Phi2`` at the margins kappa of the two rows, whose
    labels have the signs s; ``change_rows`` is ``3 (Cov(z) / V - I)``.

    With :math:`A_i = \partial \log\Phi_2 / \partial\kappa_i` and the rows :math:`j_1 = (\sqrt2, -1, 0)`,
    :math:`j_2 = (0, -1, \sqrt2)` of the map from latents to margins

    .. math::

        E[z] = \omega + \sqrt{V/3} \sum_i s_i A_i j_i, \qquad
        \mathrm{Cov}(z) = V \Big(1 + \tfrac13 \sum_{ij} s_i s_j H_{ij}\, j_i j_j^T\Big)
    """
    xp = namespace(y, omega, V)
    (sign_1, sign_2), (margin_1, margin_2), variance = _margins(y, omega, V)
    log_phi2 = log_cdf(
        margin_1, margin_2, MARGIN_CORRELATION, sign=sign_1 * sign_2, hessian=True
    )
    assert log_phi2.hessian is not None
    shift_scale = xp.sqrt(variance / 3)
    mean_shift_1 = shift_scale * sign_1 * log_phi2.h_slope
    mean_shift_2 = shift_scale * sign_2 * log_phi2.k_slope
    mean_shift = xp.stack(
        [ROOT2 * mean_shift_1, -(mean_shift_1 + mean_shift_2), ROOT2 * mean_shift_2],
        axis=-1,
    )
    mean = xp.astype(omega, xp.float64) + mean_shift[..., None, :]
    h_11, h_22, h_12 = log_phi2.hessian
    h_12 = sign_1 * sign_2 * h_12
    variance_reduction = -xp.mean(3 * (h_11 + h_22) + 2 * h_12, axis=-1) / 9
    covariance = variance[..., None] * (1 - variance_reduction[..., None, None])
    second_moment_of_z = None
    if second_moment:
        change_12 = ROOT2 * (h_11 + h_12)
        change_23 = ROOT2 * (h_22 + h_12)
        change_13 = 2 * h_12
        change_rows = [
            [2 * h_11, -change_12, change_13],
            [-change_12, h_11 + h_22 + 2 * h_12, -change_23],
            [change_13, -change_23, 2 * h_22],
        ]
        covariance_change = (
            xp.stack([xp.stack(row, axis=-1) for row in change_rows], axis=-2) / 3
        )
        second_moment_of_z = raw_second_moment(
            mean,
            variance[..., None, None]
            * (
                xp.eye(3, dtype=xp.float64, device=covariance_change.device)
                + covariance_change
            ),
        )
        second_moment_of_z = xp.astype(second_moment_of_z, omega.dtype)
    return Posterior(
        xp.astype(mean, omega.dtype),
        xp.astype(covariance, omega.dtype),
        second_moment_of_z,
    )


def _information_density(margin_1: Array, margin_2: Array, label_sign: int) -> Array:
    """Contribution ``Phi2 (3 A_1^2 + 3 A_2^2 + 2 sign A_1 A_2)`` of labels whose signs have the product ``label_sign`` to the
    information, at the rows' margins ``margin_1`` and ``margin_2``; A_i are slopes of ``log Phi2``.
    """
    log_phi2 = log_cdf(margin_1, margin_2, label_sign * MARGIN_CORRELATION)
    slope_1 = log_phi2.h_slope
    slope_2 = log_phi2.k_slope
    return np.exp(log_phi2.value) * (
        3 * (slope_1 * slope_1 + slope_2 * slope_2) + 2 * label_sign * slope_1 * slope_2
    )


@cache
def _margin_grid(count: int) -> tuple[Array, Array, Array]:
    """For all pairs (i, j) of ``count`` margins, N in all: the quadratic forms (2, N) in the exponent of their density and the
    weighted gains (2, N), contributions to the information, for either product of the label's two signs; and the quadrature nodes
    and weights of one margin.
    """
    nodes, weights = gauss_legendre(count, -GRID_HALF_WIDTH, GRID_HALF_WIDTH)
    # the gain does not change when the two rows change places
    i, j = np.triu_indices(count)
    pair_weights = weights[i] * weights[j] * np.where(i == j, 1.0, 2.0)
    correlation = np.array([[MARGIN_CORRELATION], [-MARGIN_CORRELATION]])
    quadratic_forms = (
        nodes[i] ** 2 + nodes[j] ** 2 - 2 * correlation * nodes[i] * nodes[j]
    ) / (2 * (1 - correlation * correlation))
    gains = [_information_density(nodes[i], nodes[j], sign) for sign in (1, -1)]
    return quadratic_forms, pair_weights * np.stack(gains), np.stack([nodes, weights])


def _information_by_grid(ratio: Array, node_count: int) -> Array:
    """Information times 3 V of two tokens at ``ratio`` (N,) = Q / V >= ``LEAST_GRID_RATIO``, by a grid of ``node_count``^2 pairs
    of the rows' margins; beyond the edge of the grid one row is certain, and the other one is integrated over by itself with
    ``edge_weights``.
    """
    from scipy.special import ndtr

    quadratic_forms, weighted_gains, (nodes, weights) = _margin_grid(node_count)
    determinant_root = math.sqrt(1 - MARGIN_CORRELATION**2)
    information = np.zeros_like(ratio)
    edge_weights = weights * 3 * normal_density(nodes) ** 2 / ndtr(nodes)
    margin_density = np.exp(-nodes * nodes / (2 * ratio[:, None])) / np.sqrt(
        2 * math.pi * ratio[:, None]
    )
    for index, label_sign in enumerate((1, -1)):
        grid_weights = np.exp(-quadratic_forms[index] / ratio[:, None]) / (
            2 * math.pi * determinant_root * ratio[:, None]
        )
        information += 2 * (grid_weights @ weighted_gains[index])
        # one row decided beyond the grid, the other one open; twice, for either row
        probability_beyond = ndtr(
            -(GRID_HALF_WIDTH - label_sign * MARGIN_CORRELATION * nodes)
            / (determinant_root * np.sqrt(ratio[:, None]))
        )
        information += 4 * ((margin_density * probability_beyond) @ edge_weights)
    return information


def _information_by_hermite(ratio: Array, node_count: int) -> Array:
    """Information times 3 V of two tokens at ``ratio`` (N,) = Q / V <= ``LEAST_GRID_RATIO``, by Gauss-Hermite rules of
    ``node_count`` nodes for the mean of the two rows' margins (``even_nodes``) and half their difference (``odd_nodes``).
    """
    nodes, weights = half_plane_hermite(node_count)
    has_rule_weight = weights > 1e-20
    even_nodes, odd_nodes = nodes[:, has_rule_weight]
    weights = weights[has_rule_weight]
    information = np.zeros_like(ratio)
    for block in blocks(ratio.size, 256):
        margin_deviation = np.sqrt(ratio[block, None])
        for label_sign in (1, -1):
            correlation = label_sign * MARGIN_CORRELATION
            mean_margin = math.sqrt((1 + correlation) / 2) * even_nodes
            half_difference = math.sqrt((1 - correlation) / 2) * odd_nodes
            margin_1 = margin_deviation * (mean_margin + half_difference)
            margin_2 = margin_deviation * (mean_margin - half_difference)
            # the gain falls with Phi2, and far out is expensive to compute
            lowest_margin = np.minimum(np.minimum(margin_1, margin_2), 0.0)
            has_weight = weights * np.exp(-lowest_margin * lowest_margin / 2) > 1e-17
            gains = np.zeros_like(margin_1)
            gains[has_weight] = _information_density(
                margin_1[has_weight], margin_2[has_weight], label_sign
            )
            information[block] += 2 * (gains @ weights)
    return information


def two_token_information(q: Array, v: Array) -> tuple[Array, Array]:
    r"""Information ``E sum_c g_c^2``, g the score, of two tokens at overlaps q and errors v, (N,), and its numerical error, on
    the host; it depends on q / v, the ``overlap_ratio``.

    .. math::

        \frac{1}{3V} E[3A_1^2 + 3A_2^2 + 2 s_1 s_2 A_1 A_2]

    With the margins of the four answers averaged by symmetry: Gauss-Hermite where the estimate holds little,
    otherwise Gauss-Legendre on a fixed square, plus the analytic rest where one row is certain. The error is
    the difference to a rule with a quarter fewer nodes.
    """
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        overlap_ratio = np.where(v > 0, q / v, np.inf)
    information = np.full(q.shape, np.inf)
    numerical_error = np.full(q.shape, np.inf)
    is_large = (overlap_ratio >= LEAST_GRID_RATIO) & np.isfinite(overlap_ratio)
    for ratio_mask, integrate_ratio, node_counts in (
        (is_large, _information_by_grid, GRID_NODES),
        (overlap_ratio < LEAST_GRID_RATIO, _information_by_hermite, HERMITE_NODES),
    ):
        if ratio_mask.any():
            fine_value, coarse_value = (
                integrate_ratio(overlap_ratio[ratio_mask], node_count)
                * (1 / (3 * v[ratio_mask]))
                for node_count in node_counts
            )
            information[ratio_mask], numerical_error[ratio_mask] = (
                fine_value,
                np.abs(fine_value - coarse_value) + 1e-13 * fine_value,
            )
    return information, numerical_error
