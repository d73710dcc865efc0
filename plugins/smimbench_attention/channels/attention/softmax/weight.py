r"""Posterior weight of the first layer's indices given a label of two-layer attention, and accuracy of its integrals.

Only two combinations of the three indices of a layer matter. With ``h = (h_11, h_12, h_22)`` let

.. math::

    a = (h_{11} - 2 h_{12} + h_{22}) / \sqrt8, \qquad b = (h_{11} - h_{22}) / 2 ,

unit vectors in the latents z. The first layer's attention depends on ``u = (\sqrt2 a_1 + b_1, \sqrt2 a_1 -
b_1)`` through ``p, r = logistic(beta u)``; with ``s = p + r + c - 1`` the label fixes the second layer's

.. math::

    a_2 = \frac{\varphi_1 + \varphi_2}{\sqrt8\, s^2}, \qquad
    b_2 = \frac{1}{1 + c} \Big( \frac{\varphi_1}{s} - \sqrt2 (c + 2p - 1) a_2 \Big), \qquad
    |d(a_2, b_2) / d(\varphi_1, \varphi_2)| = \frac{1}{\sqrt8 (1 + c) |s|^3} ,

where ``phi_1 = M_11 - M_12`` and ``phi_2 = M_22 - M_12`` are the margins of the label. So the posterior is a
two-dimensional integral over ``(a_1, b_1)``, with nothing that is singular but s = 0, where the weight vanishes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from smimbench.backend import to_host_floats
from smimbench.interfaces import Array, Host

ROOT2 = math.sqrt(2.0)
ROOT8 = math.sqrt(8.0)
# rows: the directions of a and b, and the one that no label sees, in the latents (z_11, z_12, z_22)
DIRECTIONS = (
    (0.5, -1 / ROOT2, 0.5),
    (1 / ROOT2, 0.0, -1 / ROOT2),
    (0.5, 1 / ROOT2, 0.5),
)


class QuadratureAccuracy(NamedTuple):
    """Settings of the integrals over ``(a_1, b_1)``, the first layer's two latents on which labels depend; a comment at each
    number says what it does and what doubling it changes.

    Lengths and errors are in prior widths, weights in natural logarithms. As it is, posterior means by cells are off by 3e-5
    (root mean square over samples at beta = 1, c = 1, where all of this was measured), by rules for all of the plane by 1e-6.
    """

    # Half-width of the square that is integrated over. Doubled: the first cells are twice as wide, errors up to 1e-4.
    half_width: float = 7.5
    # Cells along each axis before any is halved. Doubled: the same errors, four times the first work.
    root_cells: int = 4
    # Gauss-Legendre nodes of a cell along each axis. Doubled: errors of 3e-8, twice the time.
    cell_nodes: int = 8
    # Largest variation of the log-weight along an axis of a cell. Doubled: errors of 3e-3, 60% of the time.
    largest_variation: float = 6.0
    # The same for the integrals that the error estimate compares with. Doubled: too close to ``largest_variation`` to tell.
    fine_largest_variation: float = 2.0
    # The same for the exact integrals in ``information``. Doubled: single samples are wrong by more than 1e-2.
    crude_largest_variation: float = 8.0
    # A cell with a share of at most exp(-x) of the whole integral may vary by ``largest_variation * (1 + variation_growth * x)``.
    # Doubled: errors 6e-5, 85% of the time.
    variation_growth: float = 0.3
    # Cells that can hold no more than exp(-negligible) of the total are left out. Doubled: the same errors, 1.7 times the time.
    negligible: float = 16.0
    # Excess of a cell's bound over its probes from which it is halved. Doubled: 90% of the time; a narrow peak may be missed.
    bound_looseness: float = 2.0
    # Cells of a sample at one depth from which on it is given up, as not integrated. Doubled: twice the longest time.
    most_cells: int = 2048
    # Nodes along each axis of three Gauss-Hermite rules, in ever better frames. Doubled: errors of 2e-6, four times the work.
    hermite_nodes: tuple[int, int, int] = (12, 16, 20)
    # Largest difference of the last two rules, in mean and square, that passes. Doubled: twice the errors where it serves.
    rule_tolerance: float = 5e-4
    # Scrambles of the Sobol points of ``information``, whose spread is the error. Doubled: known to 1/8 in place of 1/5.
    scrambles: int = 16
    # One in so many samples of ``information`` is integrated exactly. Doubled: half the time, errors up to sqrt(2) larger.
    samples_per_exact_one: int = 32


ACCURACY = QuadratureAccuracy()


class Weight(NamedTuple):
    """Parameters, common to all samples, of the posterior weight of the first layer's indices (a_1, b_1), the two combinations of
    its latents on which attention depends; t and v are mean and difference of the logits of p and r, the diagonal entries of the
    first layer's attention matrix, ``lift`` the shift of a_2 and b_2 per prior width of a_1 and b_1.
    """

    beta: float  # inverse temperature
    skip: float  # c, the weight of the skip connection
    variance_1: float  # V_11
    variance_2: float  # V_22 given the first layer
    lift: float  # how far a_2 and b_2 move with one prior width of a_1 and b_1
    unit_t: float  # prior widths of t = beta (u_1 + u_2) / 2
    unit_v: float  # and of v = beta (u_1 - u_2)
    crossing: float  # log((p + r) / (2 - p - r)) on the curve s = 0, or 0 where s cannot vanish (c >= 1)


class Sample(NamedTuple):
    """Data of one sample on which its posterior weight depends: prior means of t and v, mean and difference of the logits of p
    and r, the diagonal entries of the first layer's attention matrix, and of the second layer's latents a_2 and b_2, what the
    label says (slope, margin), and the log-odds ``ridge`` of the curve ``log((p + r) / (2 - p - r)) = ridge`` in the plane of
    (t, v), along which the weight may be long.

    ``ridge`` names the curve ``log((p + r) / (2 - p - r)) = ridge`` in the plane of t and v, along which the weight may be
    long and narrow. The first coordinate of a cell is the distance of t from that curve, in prior widths.
    """

    t: float  # prior mean of beta (u_1 + u_2) / 2
    v: float  # prior mean of beta (u_1 - u_2)
    a2: float  # prior mean of a_2
    b2: float  # prior mean of b_2
    slope: float  # a_2 s^2, as the label has it
    margin: float  # M_11 - M_12 of the label
    ridge: float  # log-odds of the curve along which the weight is long


class Frame(NamedTuple):
    """Gaussian frame for integration in (t, v), mean and difference of the logits of p and r, the diagonal entries of the first
    layer's attention matrix: center t, v, and the lower-triangular root (tt, vt, vv) of the covariance.
    """

    t: float  # center
    v: float
    tt: float  # entries of the root of the covariance
    vt: float
    vv: float


class Sums(NamedTuple):
    """Integrals over the first layer's indices (a_1, b_1) for n samples: log-density of the label, mean (n, 4) and second moments
    (``square``) of (a_1, b_1, a_2, b_2), and whether they are unreliable.
    """

    log_weight: Host  # (n,) logarithm of the density of the margins
    mean: Host  # (n, 4) of (a_1, b_1, a_2, b_2) less their prior means, in prior standard deviations
    square: Host  # (n, 4, 4) second moments, not centered, of the same
    is_unreliable: Host  # (n,) 1 where given up before it was accurate, or the weight may lie outside the square; else 0


def sample_parameters(
    beta: float, skip: float, y: Array, omega: Array, V: Array
) -> tuple[Host, Weight]:
    """Data ``samples`` (n, 6), the fields of ``Sample`` except the ridge, and the ``Weight`` of labels y (n, 2, 2) whose latents
    have means omega (n, 2, 3) and covariance V (2, 2) of the layers; ``beta`` is the inverse temperature, ``skip`` the weight c
    of the skip connection. ``lift`` is the shift of the second layer's mean per standard deviation of the first.

    Raises
    ------
    ValueError
        If V is not positive definite.
    """
    labels, prior_means_of_z, covariance = (
        to_host_floats(array) for array in (y, omega, V)
    )
    variance_1 = float(covariance[0, 0])
    variance_2 = float(covariance[1, 1])
    covariance_12 = float((covariance[0, 1] + covariance[1, 0]) / 2)
    if not (
        variance_1 > 0 and variance_2 * variance_1 - covariance_12 * covariance_12 > 0
    ):
        raise ValueError(
            f"the covariance V of the latents must be positive definite, got {covariance.tolist()}"
        )
    margins = (
        np.stack(
            [labels[:, 0, 0] - labels[:, 0, 1], labels[:, 1, 1] - labels[:, 1, 0]],
            axis=1,
        )
        / beta
    )
    prior_means = (prior_means_of_z @ np.transpose(DIRECTIONS[:2])).reshape(-1, 4)
    prior_mean_units = np.array([ROOT2 * beta, 2 * beta, 1.0, 1.0])
    samples = np.column_stack(
        [prior_means * prior_mean_units, margins.sum(axis=1) / ROOT8, margins[:, 0]]
    )
    beta_deviation = beta * math.sqrt(variance_1)
    crossing_log_odds = math.log((1 - skip) / (1 + skip)) if skip < 1 else 0.0
    lift = covariance_12 / variance_1 * math.sqrt(variance_1)
    return samples, Weight(
        beta,
        skip,
        variance_1,
        variance_2 - covariance_12 * covariance_12 / variance_1,
        lift,
        ROOT2 * beta_deviation,
        2 * beta_deviation,
        crossing_log_odds,
    )
