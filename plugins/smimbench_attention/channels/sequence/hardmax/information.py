r"""Information of the sequence model's hardmax labels, as a polynomial fitted to integrals or to sampled estimates.

By integration for two tokens, by sampling for three, with limits at both ends.

For two tokens, in units of V, ``a = omega / sqrt(V)``, a label y is seen with the probability ``P_y(a)`` that ``z ~ N(a, I)``
lies in a wedge or in its mirror image: tokens of opposite sign are the second and the fourth quadrant, tokens of equal sign the
four wedges of 45 degrees between the axes and the diagonal. Then

.. math:: I = \frac1V \int d^2 a\, N(a; 0, Q / V) \sum_y \frac{|\nabla P_y|^2}{P_y},

and the integrand lives within a few units of the boundaries of the wedge. It is integrated in the distances from the two
boundaries, by Gauss-Legendre's rule in panels that double in length from there on.

For three tokens exact sums over labels are averaged over quasi-random means omega. Where V is small a label tells something
only near the planes on which labels change: a token changes its sign, or the two largest positive (or the two lowest negative)
tokens meet. Near a single such plane a label tells what the sign of one Gaussian variable does, which gives both the limit V ->
0 and control variates.
"""

from __future__ import annotations

import itertools
import math
from functools import cache

import numpy as np

from smimbench.backend import special
from smimbench.interfaces import Host
from smimbench.numerics import (
    ChebyshevFit,
    chebyshev_fit,
    gauss_legendre,
    lobatto_points,
    log_cdf,
    normal_points,
)
from smimbench_attention.channels.common import normal_density
from smimbench_attention.channels.sequence.hardmax.posterior import posterior_moments

NORMAL_POINTS = 1 << 8
PLANE_POINTS = 1 << 6
"""Points omega of a scramble from the normal law, and from a slab around each plane on which labels change. Doubled: up to twice
the time, about half of the noise."""
CERTAIN_DISTANCE = 9.0
"""Distance from both boundaries, in units of sqrt(V), beyond which labels are certain to 1e-18. Doubled: no change."""


@cache
def all_labels(tokens: int) -> Host:
    """All possible labels (K, M) of M = ``tokens`` tokens: at most two tokens are pointed at, each of which points at itself."""
    candidate_labels = itertools.product(range(tokens), repeat=tokens)
    return np.array(
        [
            label
            for label in candidate_labels
            if len(set(label)) <= 2 and all(label[token] == token for token in label)
        ]
    )


@cache
def susceptibility_without_overlap(tokens: int) -> float:
    """Susceptibility ``E sum_mk G_mk^2`` of the labels of M = ``tokens`` tokens at omega = 0 and V = 1, summed over labels y; ``G
    = E[z z^T | y] - I``.
    """
    if tokens == 2:
        return 12 / math.pi**2  # the mean of cos^2 and so on over the wedges
    labels = all_labels(tokens)
    moments = posterior_moments(labels, np.zeros(labels.shape), True)
    G = np.asarray(moments.outer) - np.eye(tokens)
    return float(np.exp(moments.log_partition) @ np.sum(G**2, axis=(1, 2)))


@cache
def small_error_limit(tokens: int) -> float:
    r"""Limit of ``sqrt(V (Q + V)) * information`` of M = ``tokens`` tokens as V -> 0: a sum over the planes of latents on which
    labels change, each with the information of a sign (``sign_integral``).

    .. math::

        \int \frac{\phi^2}{\Phi (1 - \Phi)} \; \frac{1}{\sqrt{2\pi}} \Big( M + M (M - 1) \int_0^\infty dv\, N(v; 0, 1/2)
        \Phi(v)^{M-2} \Big)

    Derived, checked by tests/channels/sequence/test_hardmax.py.
    """
    nodes, weights = gauss_legendre(200)
    sign_integral = 14 * float(np.sum(weights * _sign_information(14 * nodes)))
    return (
        sign_integral
        * (tokens + tokens * (tokens - 1) * _probability_pair_largest(tokens) / 2)
        / math.sqrt(2 * math.pi)
    )


@cache
def scaled_information(tokens: int) -> ChebyshevFit:
    """Polynomial in ``s = sqrt(V / (Q + V))`` for the scaled information ``sqrt(V (Q + V)) (Q + V) / Q * information`` of M =
    ``tokens`` tokens: through exact values at nodes for two tokens, else fitted to sampled ones; at s = 0 and 1 values are known.

    Integrated for two tokens, else fitted to samples; both ends are exact.
    """
    limit_at_s_0 = small_error_limit(tokens)
    susceptibility = susceptibility_without_overlap(tokens)
    if tokens == 2:
        # degree of the polynomial; doubled: its error falls from 5e-10 to rounding
        degree = 32
        nodes = lobatto_points(degree + 1)
        exact_values = [
            limit_at_s_0,
            *(
                two_token_information(float(s)) * s / (1 - s * s) / s**2
                for s in nodes[1:-1]
            ),
            susceptibility,
        ]
        return ChebyshevFit(
            np.polynomial.chebyshev.chebfit(
                2 * nodes - 1, np.array(exact_values), degree
            )[:, None],
            2e-9,
        )
    nodes = lobatto_points(13)
    sampled_values = np.stack(
        [
            limit_at_s_0 + np.zeros(8),
            *(sampled_scaled_information(tokens, float(s)) for s in nodes[1:-1]),
            susceptibility + np.zeros(8),
        ]
    )
    return chebyshev_fit(
        nodes,
        sampled_values,
        np.maximum(sampled_values.std(axis=1, ddof=1), 1e-5),
        10,
        3e-4,
    )


def sampled_scaled_information(tokens: int, s: float) -> Host:
    """Estimates (8,), one per scramble (independent set of random points), of the scaled information ``s / (1 - s^2) *
    information`` of M = ``tokens`` tokens at ``V = s^2``, ``Q = q = 1 - s^2``, from samples of omega in slabs around the planes
    on which labels change (a token is 0, or two tokens a, b are equal), weighted by their density, with control variates of known
    means.

    Only omega is sampled: labels are summed with their probabilities. A part of the points lies in slabs around the planes on
    which labels change, and every point is weighted by the density of the mixture. What a label tells of one plane alone has a
    known mean and is a control variate.
    """
    q = 1.0 - s * s
    identity = np.eye(tokens)
    pairs = [(a, b) for b in range(tokens) for a in range(b)]
    planes = np.stack(
        [*identity, *((identity[a] - identity[b]) / math.sqrt(2) for a, b in pairs)]
    )
    noise_ratio = s / math.sqrt(q)
    # width of a slab: 1.5 times the width over which labels change
    slab_width = min(1.0, 1.5 * noise_ratio)
    plane_information = _mean_sign_information(noise_ratio)
    pair_information = plane_information * _probability_pair_largest(tokens)
    control_means = np.array(
        [1.0, *[plane_information] * len(planes), *[pair_information] * len(pairs)]
    )
    weighted_samples = []
    weighted_controls = []
    for scramble in range(8):
        # the names of the streams seed the points, so they must not change
        omega_points = [
            normal_points(tokens, NORMAL_POINTS, "sequence hardmax: base", scramble)
        ]
        for plane_index, plane in enumerate(planes):
            normal_numbers = normal_points(
                tokens, PLANE_POINTS, "sequence hardmax: layer", scramble, plane_index
            )
            omega_points.append(
                normal_numbers
                - (1 - slab_width) * np.outer(normal_numbers @ plane, plane)
            )
        omega = np.concatenate(omega_points)
        distances = omega @ planes.T
        density_ratio = (
            np.exp(-0.5 * distances**2 * (1 / slab_width**2 - 1)) / slab_width
        )
        point_weights = 1 / (NORMAL_POINTS + PLANE_POINTS * density_ratio.sum(axis=1))
        plane_controls = _sign_information(distances / noise_ratio)
        pair_controls = np.stack(
            [_is_pair_largest(omega, a, b) for a, b in pairs], axis=1
        )
        control_variates = np.concatenate(
            [
                np.ones((len(omega), 1)),
                plane_controls,
                plane_controls[:, tokens:] * pair_controls,
            ],
            axis=1,
        )
        squared_gradients = np.zeros(len(omega))
        for label in all_labels(tokens):
            # skipping less likely labels changes the sum by 4e-12
            likely_points = np.flatnonzero(
                _probability_bound(label, omega / noise_ratio) > 1e-12
            )
            moments = posterior_moments(
                np.broadcast_to(label, (len(likely_points), tokens)),
                omega[likely_points] / noise_ratio,
                False,
            )
            squared_gradients[likely_points] += np.exp(moments.log_partition) * np.sum(
                moments.shift**2, axis=1
            )
        weighted_samples.append(point_weights * squared_gradients)
        weighted_controls.append(point_weights[:, None] * control_variates)
    estimates = []
    for scramble, (scramble_samples, scramble_controls) in enumerate(
        zip(weighted_samples, weighted_controls)
    ):
        # Regress on the other scrambles only: a fit to these points would bias the mean.
        other_controls, other_samples = (
            np.concatenate(by_scramble[:scramble] + by_scramble[scramble + 1 :])
            for by_scramble in (weighted_controls, weighted_samples)
        )
        regression_coefficients = np.linalg.lstsq(
            other_controls, other_samples, rcond=1e-10
        )[0]
        estimates.append(
            float(
                (scramble_samples - scramble_controls @ regression_coefficients).sum()
                + control_means @ regression_coefficients
            )
            / (s * q)
        )
    return np.array(estimates)


def _probability_bound(label: Host, scaled_omega: Host) -> Host:
    """Upper bound (n,) on the probability of ``label`` (M,) at means ``scaled_omega`` (n, M): the probability of the least likely
    of the inequalities that the label states.
    """
    same_group_sign = np.where(label == label[0], 1.0, -1.0)
    leader_margin = (scaled_omega[:, label] - scaled_omega) / math.sqrt(2)
    is_follower = label != np.arange(len(label))
    ndtr = special(np).ndtr
    bound_by_sign = [
        np.minimum(
            ndtr(sign * scaled_omega),
            np.where(is_follower, ndtr(sign * leader_margin), 1.0),
        ).min(axis=1)
        for sign in (same_group_sign, -same_group_sign)
    ]
    return np.asarray(sum(bound_by_sign))


def _sign_information(margin: Host) -> Host:
    """Mean square of g if only the sign of ``z ~ N(margin, 1)`` is seen: ``phi^2 / (Phi (1 - Phi))`` at the margin."""
    log_ndtr = special(np).log_ndtr
    return np.asarray(
        np.exp(-margin * margin - log_ndtr(margin) - log_ndtr(-margin)) / (2 * math.pi)
    )


def _mean_sign_information(ratio: float) -> float:
    """Mean of ``_sign_information(x / ratio)``, the information of a sign, over a standard normal x."""
    nodes, weights = gauss_legendre(200)
    largest_x = min(10.0, 14.0 * ratio)
    density = normal_density(largest_x * nodes)
    return float(
        np.sum(
            largest_x * weights * density * _sign_information(largest_x * nodes / ratio)
        )
    )


def _is_pair_largest(omega: Host, a: int, b: int) -> Host:
    """Indicator (n,) that the mean of the two entries a and b of omega (n, M) is positive and above all other entries, or
    negative and below them.
    """
    pair_mean = (omega[:, a] + omega[:, b]) / 2
    other_tokens = np.delete(omega, [a, b], axis=1) * np.sign(pair_mean)[:, None]
    return np.asarray(
        (other_tokens < np.abs(pair_mean)[:, None]).all(axis=1), dtype=float
    )


def _probability_pair_largest(tokens: int) -> float:
    """Probability that two tokens a and b whose standard normal omegas are equal, among so many ``tokens``, have the largest
    positive omega of all, or the lowest negative one.
    """
    nodes, weights = gauss_legendre(200)
    scaled_nodes = 4 * (nodes + 1)
    return (
        8
        * float(
            np.sum(
                weights
                * np.exp(-(scaled_nodes**2))
                * special(np).ndtr(scaled_nodes) ** (tokens - 2)
            )
        )
        / math.sqrt(math.pi)
    )


def two_token_information(s: float) -> float:
    """Information ``V I`` of two tokens at ``s = sqrt(V / (Q + V))``, by quadrature over the distances of omega, of standard
    deviation ``omega_deviation`` in units of sqrt(V), from the two boundaries of a label.
    """
    omega_deviation = math.sqrt(1 - s * s) / s
    positive_rule = _positive_omega_rule(omega_deviation)
    full_rule = [
        np.concatenate([-positive_rule[0][::-1], positive_rule[0]]),
        np.concatenate([positive_rule[1][::-1], positive_rule[1]]),
    ]
    first_distance, second_distance = (
        coordinate.ravel()
        for coordinate in np.meshgrid(full_rule[0], positive_rule[0], indexing="ij")
    )
    weights = np.outer(full_rule[1], positive_rule[1]).ravel()
    is_uncertain = (
        np.minimum(np.abs(first_distance), np.abs(second_distance)) < CERTAIN_DISTANCE
    )
    first_distance = first_distance[is_uncertain]
    second_distance = second_distance[is_uncertain]
    weights = weights[is_uncertain]

    def fisher_information(
        squared_omega: Host, probability: Host, squared_gradient: Host
    ) -> float:
        """Mean over omega of a label's ``squared_gradient``, that of its probability in omega, over its ``probability``;
        ``squared_omega`` is |omega|^2 / V.
        """
        # |a|^2, and the squared length of the gradient of the probability
        density = np.exp(-squared_omega / (2 * omega_deviation**2)) / (
            2 * math.pi * omega_deviation**2
        )
        return float(
            np.sum(
                weights
                * density
                * squared_gradient
                / np.maximum(probability, np.finfo(float).tiny)
            )
        )

    # h and k > 0 cover half of the plane; the other half is its mirror image, which labels cannot distinguish.
    return 2 * fisher_information(
        *_opposite_sign_label(first_distance, second_distance)
    ) + 4 * math.sqrt(2) * fisher_information(
        *_equal_sign_label(first_distance, second_distance)
    )


def _positive_omega_rule(deviation: float) -> tuple[Host, Host]:
    """Quadrature nodes and weights for positive omega of the law ``N(0, deviation^2)``, in panels that double in length."""
    panel_edges = [0.0, min(1.0, deviation)]
    while panel_edges[-1] < CERTAIN_DISTANCE * deviation:
        panel_edges.append(2 * panel_edges[-1])
    # nodes of a panel
    nodes, weights = gauss_legendre(12, 0.0, 1.0)
    panel_lengths = np.diff(panel_edges)[:, None]
    return (np.array(panel_edges)[:-1, None] + panel_lengths * nodes).ravel(), (
        panel_lengths * weights
    ).ravel()


def _opposite_sign_label(h: Host, k: Host) -> tuple[Host, Host, Host]:
    """For scaled means a = (h, k) of the latents of two tokens: the square ``|a|^2``, the probability that the two latents have
    opposite signs, and the squared gradient of that.
    """
    omega = np.stack([h, k])
    probability_positive = special(np).ndtr(omega)
    probability_negative = special(np).ndtr(-omega)
    gradient = (
        normal_density(omega) * (probability_negative - probability_positive)[::-1]
    )
    return (
        h**2 + k**2,
        probability_positive[0] * probability_negative[1]
        + probability_negative[0] * probability_positive[1],
        gradient[0] ** 2 + gradient[1] ** 2,
    )


def _equal_sign_label(h: Host, k: Host) -> tuple[Host, Host, Host]:
    """For scaled means a of the latents of two tokens: the square ``|a|^2``, the probability that the latents have equal signs
    and the first is further out, and its squared gradient, at the distances ``h = a_2`` and ``k = (a_1 - a_2) / sqrt(2)`` from
    the boundaries of that label. Names in above and below are for positive and negative latents.
    """
    root_2 = math.sqrt(2)
    log_above = log_cdf(h, k, -1 / root_2)
    log_below = log_cdf(-h, -k, -1 / root_2)
    probability_above = np.exp(log_above.value)
    probability_below = np.exp(log_below.value)
    gradient_h, gradient_k = (
        probability_above * slope_above - probability_below * slope_below
        for slope_above, slope_below in zip(log_above[1:3], log_below[1:3])
    )
    return (
        (h + root_2 * k) ** 2 + h**2,
        probability_above + probability_below,
        (gradient_k / root_2) ** 2 + (gradient_h - gradient_k / root_2) ** 2,
    )
