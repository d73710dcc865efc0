r"""Information of the hardmax channel: by integration for two tokens, by sampling for three, with limits at both ends.

For two tokens, in units of V, ``a = omega / sqrt(V)``, a label y is seen with the probability ``P_y(a)`` that ``z ~ N(a, I)``
lies in a wedge or in its mirror image: tokens of opposite sign are the second and the fourth quadrant, tokens of equal sign the
four wedges of 45 degrees between the axes and the diagonal. Then

.. math:: I = \frac1V \int d^2 a\, N(a; 0, Q / V) \sum_y \frac{|\nabla P_y|^2}{P_y},

and the integrand lives within a few units of the boundaries of the wedge. It is integrated in the distances from the two
boundaries, by Gauss-Legendre's rule in panels that double in length from there on.

For three tokens exact sums over labels are averaged over quasi-random means omega. Where V is small a label tells something
only near the planes on which labels change: a token changes its sign, or the two largest positive (or the two lowest negative)
tokens meet. Near a single such plane a label tells what the sign of one Gaussian variable does, which gives both the limit
V -> 0 and control variates.
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
from smimbench_attention.channels.batches import normal_density
from smimbench_attention.channels.sequence.hardmax.posterior import posterior_moments

NORMAL_POINTS = 1 << 8
PLANE_POINTS = 1 << 6
"""Points omega of a scramble from the normal law, and from a slab around each plane on which labels change. Doubled: up to twice
the time, about half of the noise."""
FAR = 9.0
"""Distance from both boundaries, in units of sqrt(V), beyond which labels are certain to 1e-18. Doubled: no change."""


@cache
def all_labels(tokens: int) -> Host:
    """All possible labels (K, M): at most two tokens are pointed at, and each of these points at itself."""
    rows = itertools.product(range(tokens), repeat=tokens)
    return np.array([y for y in rows if len(set(y)) <= 2 and all(y[m] == m for m in y)])


@cache
def susceptibility_without_overlap(tokens: int) -> float:
    """Susceptibility ``E sum_mk (E[z_m z_k | y] - delta_mk)^2`` at omega = 0 and V = 1, summed over labels."""
    if tokens == 2:
        return 12 / math.pi**2  # the mean of cos^2 and so on over the wedges
    labels = all_labels(tokens)
    moments = posterior_moments(labels, np.zeros(labels.shape), True)
    G = np.asarray(moments.outer) - np.eye(tokens)
    return float(np.exp(moments.log_partition) @ np.sum(G**2, axis=(1, 2)))


@cache
def small_error_limit(tokens: int) -> float:
    r"""Limit of ``sqrt(V (Q + V)) * information`` as V -> 0: a sum over planes on which labels change.

    .. math::

        \int \frac{\phi^2}{\Phi (1 - \Phi)} \; \frac{1}{\sqrt{2\pi}} \Big( M + M (M - 1) \int_0^\infty dv\, N(v; 0, 1/2)
        \Phi(v)^{M-2} \Big)

    Derived, checked by tests/channels/sequence/test_hardmax.py.
    """
    x, w = gauss_legendre(200)
    sign_integral = 14 * float(np.sum(w * _sign_information(14 * x)))
    return (
        sign_integral
        * (tokens + tokens * (tokens - 1) * _mean_pair_leads(tokens) / 2)
        / math.sqrt(2 * math.pi)
    )


@cache
def scaled_information(tokens: int) -> ChebyshevFit:
    """Scaled information ``sqrt(V (Q + V)) (Q + V) / Q * information``: integrated for two tokens, else a polynomial fit.

    A function of s; both ends are exact.
    """
    limit = small_error_limit(tokens)
    susceptibility = susceptibility_without_overlap(tokens)
    if tokens == 2:
        # degree of the polynomial; doubled: its error falls from 5e-10 to rounding
        degree = 32
        s = lobatto_points(degree + 1)
        exact = [
            limit,
            *(
                two_token_information(float(x)) * x / (1 - x * x) / x**2
                for x in s[1:-1]
            ),
            susceptibility,
        ]
        return ChebyshevFit(
            np.polynomial.chebyshev.chebfit(2 * s - 1, np.array(exact), degree)[
                :, None
            ],
            2e-9,
        )
    s = lobatto_points(13)
    values = np.stack(
        [
            limit + np.zeros(8),
            *(information_estimates(tokens, float(x)) for x in s[1:-1]),
            susceptibility + np.zeros(8),
        ]
    )
    return chebyshev_fit(
        s, values, np.maximum(values.std(axis=1, ddof=1), 1e-5), 10, 3e-4
    )


def information_estimates(tokens: int, s: float) -> Host:
    """Estimates (8,) of the scaled information at ``V = s^2, Q = 1 - s^2``, each with points of its own.

    Only omega is sampled: labels are summed with their probabilities. A part of the points lies in slabs around the planes on
    which labels change, and every point is weighted by the density of the mixture. What a label tells of one plane alone has a
    known mean and is a control variate.
    """
    q = 1.0 - s * s
    unit = np.eye(tokens)
    pairs = [(a, b) for b in range(tokens) for a in range(b)]
    planes = np.stack([*unit, *((unit[a] - unit[b]) / math.sqrt(2) for a, b in pairs)])
    ratio = s / math.sqrt(q)
    # width of a slab: 1.5 times the width over which labels change
    width = min(1.0, 1.5 * ratio)
    of_plane = _mean_sign_information(ratio)
    of_pair = of_plane * _mean_pair_leads(tokens)
    means = np.array([1.0, *[of_plane] * len(planes), *[of_pair] * len(pairs)])
    samples = []
    controls = []
    for scramble in range(8):
        # the names of the streams seed the points, so they must not change
        points = [
            normal_points(tokens, NORMAL_POINTS, "sequence hardmax: base", scramble)
        ]
        for k, plane in enumerate(planes):
            normal = normal_points(
                tokens, PLANE_POINTS, "sequence hardmax: layer", scramble, k
            )
            points.append(normal - (1 - width) * np.outer(normal @ plane, plane))
        omega = np.concatenate(points)
        distance = omega @ planes.T
        denser = np.exp(-0.5 * distance**2 * (1 / width**2 - 1)) / width
        weight = 1 / (NORMAL_POINTS + PLANE_POINTS * denser.sum(axis=1))
        one_plane = _sign_information(distance / ratio)
        leads = np.stack([_pair_leads(omega, a, b) for a, b in pairs], axis=1)
        control_variates = np.concatenate(
            [np.ones((len(omega), 1)), one_plane, one_plane[:, tokens:] * leads], axis=1
        )
        total = np.zeros(len(omega))
        for label in all_labels(tokens):
            # skipping less likely labels changes the sum by 4e-12
            likely = np.flatnonzero(_probability_bound(label, omega / ratio) > 1e-12)
            moments = posterior_moments(
                np.broadcast_to(label, (len(likely), tokens)),
                omega[likely] / ratio,
                False,
            )
            total[likely] += np.exp(moments.log_partition) * np.sum(
                moments.shift**2, axis=1
            )
        samples.append(weight * total)
        controls.append(weight[:, None] * control_variates)
    estimates = []
    for scramble, (y, x) in enumerate(zip(samples, controls)):
        # Regress on the other scrambles only: a fit to these points would bias the mean.
        other_controls, other_samples = (
            np.concatenate(rows[:scramble] + rows[scramble + 1 :])
            for rows in (controls, samples)
        )
        slope = np.linalg.lstsq(other_controls, other_samples, rcond=1e-10)[0]
        estimates.append(float((y - x @ slope).sum() + means @ slope) / (s * q))
    return np.array(estimates)


def _probability_bound(label: Host, a: Host) -> Host:
    """Upper bound (n,) on the probability of labels: that of the least likely inequality, summed over signs."""
    above = np.where(label == label[0], 1.0, -1.0)
    gap = (a[:, label] - a) / math.sqrt(2)
    followers = label != np.arange(len(label))
    ndtr = special(np).ndtr
    bounds = [
        np.minimum(ndtr(sign * a), np.where(followers, ndtr(sign * gap), 1.0)).min(
            axis=1
        )
        for sign in (above, -above)
    ]
    return np.asarray(sum(bounds))


def _sign_information(k: Host) -> Host:
    """Mean square of g if only the sign of ``z ~ N(k, 1)`` is observed: ``phi^2 / (Phi (1 - Phi))``."""
    log_ndtr = special(np).log_ndtr
    return np.asarray(np.exp(-k * k - log_ndtr(k) - log_ndtr(-k)) / (2 * math.pi))


def _mean_sign_information(ratio: float) -> float:
    """Mean of ``_sign_information(x / ratio)`` over a standard normal x."""
    x, w = gauss_legendre(200)
    reach = min(10.0, 14.0 * ratio)
    gauss = normal_density(reach * x)
    return float(np.sum(reach * w * gauss * _sign_information(reach * x / ratio)))


def _pair_leads(omega: Host, a: int, b: int) -> Host:
    """Indicator that the mean of tokens a and b is positive and above all other tokens, or negative and below them."""
    mean = (omega[:, a] + omega[:, b]) / 2
    rivals = np.delete(omega, [a, b], axis=1) * np.sign(mean)[:, None]
    return np.asarray((rivals < np.abs(mean)[:, None]).all(axis=1), dtype=float)


def _mean_pair_leads(tokens: int) -> float:
    """Mean of ``_pair_leads`` where tokens a and b are equal."""
    x, w = gauss_legendre(200)
    v = 4 * (x + 1)
    return (
        8
        * float(np.sum(w * np.exp(-(v**2)) * special(np).ndtr(v) ** (tokens - 2)))
        / math.sqrt(math.pi)
    )


def two_token_information(s: float) -> float:
    """Scaled information ``V I`` for two tokens at ``s = sqrt(V / (Q + V))``."""
    width = math.sqrt(1 - s * s) / s
    half_rule = _omega_panels(width)
    full_rule = [
        np.concatenate([-half_rule[0][::-1], half_rule[0]]),
        np.concatenate([half_rule[1][::-1], half_rule[1]]),
    ]
    h, k = (
        axis.ravel() for axis in np.meshgrid(full_rule[0], half_rule[0], indexing="ij")
    )
    weight = np.outer(full_rule[1], half_rule[1]).ravel()
    near = np.minimum(np.abs(h), np.abs(k)) < FAR
    h = h[near]
    k = k[near]
    weight = weight[near]

    def integral(square: Host, probability: Host, gradient: Host) -> float:
        # |a|^2, and the squared length of the gradient of the probability
        density = np.exp(-square / (2 * width**2)) / (2 * math.pi * width**2)
        return float(
            np.sum(
                weight
                * density
                * gradient
                / np.maximum(probability, np.finfo(float).tiny)
            )
        )

    # h and k > 0 cover half of the plane; the other half is its mirror image, which labels cannot distinguish.
    return 2 * integral(*_opposite(h, k)) + 4 * math.sqrt(2) * integral(*_equal(h, k))


def _omega_panels(width: float) -> tuple[Host, Host]:
    """Quadrature nodes and weights for positive omega, as far as ``N(0, width^2)`` reaches."""
    edges = [0.0, min(1.0, width)]
    while edges[-1] < FAR * width:
        edges.append(2 * edges[-1])
    # nodes of a panel
    x, w = gauss_legendre(12, 0.0, 1.0)
    lengths = np.diff(edges)[:, None]
    return (np.array(edges)[:-1, None] + lengths * x).ravel(), (lengths * w).ravel()


def _opposite(h: Host, k: Host) -> tuple[Host, Host, Host]:
    """Square ``|a|^2``, label probability and squared gradient for two tokens of opposite sign, ``a = (h, k)``."""
    a = np.stack([h, k])
    up = special(np).ndtr(a)
    down = special(np).ndtr(-a)
    slope = normal_density(a) * (down - up)[::-1]
    return h**2 + k**2, up[0] * down[1] + down[0] * up[1], slope[0] ** 2 + slope[1] ** 2


def _equal(h: Host, k: Host) -> tuple[Host, Host, Host]:
    """Square ``|a|^2``, label probability and squared gradient for two tokens of equal sign.

    The first is further out: ``h = a_2``, ``k = (a_1 - a_2) / sqrt(2)``.
    """
    root = math.sqrt(2)
    above = log_cdf(h, k, -1 / root)
    below = log_cdf(-h, -k, -1 / root)
    up = np.exp(above.value)
    down = np.exp(below.value)
    by_h, by_k = (
        up * slope_above - down * slope_below
        for slope_above, slope_below in zip(above[1:3], below[1:3])
    )
    return (
        (h + root * k) ** 2 + h**2,
        up + down,
        (by_k / root) ** 2 + (by_h - by_k / root) ** 2,
    )
