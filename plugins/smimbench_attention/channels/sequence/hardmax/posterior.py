r"""Posterior of the hardmax channel given one label, and the information of its labels: integrals and means over labels.

**Posterior.** A row of positive z_m points at the largest of all z, a row of negative z_m at the smallest. A label therefore
splits the tokens into (at most) two groups, each with a leader, and says, up to one overall sign: all of one group lie between
zero and their leader, above; all of the other between their leader and zero, below. Given that sign the groups are
independent, and given its leader's value a group is a set of truncated Gaussian variables. With unit variances,

.. math::

    Z = \int_0^\infty dz\, N(z; \omega_1, 1) \prod_{m > 1} P(0 < z_m < z),

whose integrand is log-concave: Gauss-Legendre's rule between the two points where it has fallen by ``exp(-30)``, found by
Newton's method.

**Information.** By integration for two tokens, by sampling for three, with limits at both ends.

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
from types import ModuleType
from typing import NamedTuple

import array_api_compat
import numpy as np

from smimbench.backend import clip, namespace, special
from smimbench.interfaces import Array, Host
from smimbench.numerics import (
    ChebyshevFit,
    chebyshev_fit,
    gauss_legendre,
    lobatto_points,
    log_cdf,
    normal_points,
)
from smimbench_attention.channels.common import (
    array_like,
    blocks,
    identity_like,
    joined,
    normal_density,
    put_tuple,
)

# Changes of the mean below are in units of sqrt(V).
NODES = 40
"""Nodes of the rule of a group. Doubled: twice the time; means change by 4e-10 at most."""
REACH = 7.5
"""Longest way from the mode to an end, in standard deviations; leaves out 1e-13. Doubled: coarser nodes, errors of 1e-5."""
DEPTH = 30.0
"""Fall of the logarithm of the integrand from the mode to the ends; leaves out 1e-13. Doubled: coarser nodes, errors of 3e-9."""


class TokenMoments(NamedTuple):
    """Moments of ``e = (z - omega) / sqrt(V)``: mean (n, M), mean square (n, M) and outer product (n, M, M) or None."""

    log_partition: Array
    shift: Array
    square: Array
    outer: Array | None = None


def posterior_moments(y: Array, a: Array, full: bool) -> TokenMoments:
    """Moments of ``z ~ N(a, I)`` given labels ``y`` (n, M); ``a`` (n, M), ``outer`` only if ``full``."""
    xp = namespace(a)
    # a million numbers in the largest temporary array
    block = max(1, (1 << 20) // (4 * NODES * a.shape[1]))
    return joined(
        [
            _block_moments(xp, y[rows, :], a[rows, :], full)
            for rows in blocks(a.shape[0], block)
        ]
    )


def _block_moments(xp: ModuleType, y: Array, a: Array, full: bool) -> TokenMoments:
    """Posterior moments of two groups of tokens of opposite sign, summed over which of them is positive."""
    n, M = a.shape
    place = xp.arange(M, dtype=y.dtype, device=array_api_compat.device(y))[None, :]
    leading = y == y[:, :1]
    second_leader = xp.max(
        xp.where(leading, xp.full_like(y, -1), y), axis=-1, keepdims=True
    )
    member = xp.concat([leading, leading, ~leading, ~leading])
    leader = xp.concat(
        [
            place == y[:, :1],
            place == y[:, :1],
            place == second_leader,
            place == second_leader,
        ]
    )
    # groups, overall signs, samples, tokens
    signs = array_like(np.array([[1.0, -1.0], [-1.0, 1.0]]), a)[..., None, None]
    moments = _group_moments(
        xp, xp.reshape(signs * a, (4 * n, M)), member, leader, full
    )
    log, shift, square = (xp.reshape(v, (2, 2, n, *v.shape[1:])) for v in moments[:3])
    logs = log[0, ...] + log[1, ...]
    log_partition = xp.logaddexp(logs[0, :], logs[1, :])
    weight = xp.exp(logs - log_partition)[..., None]
    shift_1 = signs[0, ...] * shift[0, ...]
    shift_2 = signs[1, ...] * shift[1, ...]
    outer = None
    if full:
        outer_1, outer_2 = (
            xp.reshape(moments.outer, (2, 2, n, M, M))[group, ...] for group in (0, 1)
        )
        mixed = shift_1[..., :, None] * shift_2[..., None, :]
        outer = xp.sum(
            weight[..., None]
            * (outer_1 + outer_2 + mixed + xp.matrix_transpose(mixed)),
            axis=0,
        )
    shift, square = (
        xp.sum(weight * total, axis=0)
        for total in (shift_1 + shift_2, square[0, ...] + square[1, ...])
    )
    return TokenMoments(log_partition, shift, square, outer)


def _group_moments(
    xp: ModuleType, a: Array, member: Array, leader: Array, full: bool
) -> TokenMoments:
    """Moments of one group of each sample, above zero: ``z ~ N(a, I)`` given ``0 < z_m < z_leader`` for other members.

    Tokens that are not of the group have zero moments.
    """
    count = xp.sum(xp.astype(member, xp.int64), axis=-1)
    top = xp.sum(xp.where(leader, a, 0.0), axis=-1)
    # a leader without followers only has to be positive
    log = special(xp).log_ndtr(top)
    hazard = xp.exp(_log_density(top) - log)
    square = xp.where(leader, 1 - (top * hazard)[:, None], 0.0)
    outer = square[:, :, None] * identity_like(a.shape[1], a) if full else None
    moments = TokenMoments(
        xp.where(count == 1, log, 0.0),
        xp.where(leader, hazard[:, None], 0.0),
        square,
        outer,
    )
    index = xp.nonzero(count > 1)[0]
    if index.shape[0] == 0:
        return moments
    group, members, leaders = (
        xp.take(array, index, axis=0) for array in (a, member, leader)
    )
    return put_tuple(
        moments, count > 1, _integrate_interval(xp, group, members, leaders, full)
    )


def _log_density(x: Array) -> Array:
    return -0.5 * math.log(2 * math.pi) - x * x / 2


def _truncated(xp: ModuleType, low: Array, high: Array) -> tuple[Array, Array, Array]:
    """Standard normal variable between ``low`` and ``high``: log-probability, and relative density at both ends."""
    # evaluated on the side where probabilities are small
    mirror = low + high > 0
    start = xp.where(mirror, -high, low)
    end = xp.where(mirror, -low, high)
    logs = special(xp).log_ndtr(xp.stack([start, end]))
    log_mass = logs[1, ...] + xp.log(
        -xp.expm1(clip(logs[0, ...] - logs[1, ...], None, -1e-300))
    )
    return (
        log_mass,
        xp.exp(_log_density(low) - log_mass),
        xp.exp(_log_density(high) - log_mass),
    )


def _leader_interval(
    xp: ModuleType, a: Array, member: Array, followers: Array, top: Array
) -> tuple[Array, Array]:
    """Ends of the relevant integration interval in t, (n,) each; ``top`` is the leader's mean."""

    def height(t: Array) -> tuple[Array, Array, Array]:
        """Logarithm of the integrand over the leader, its slope and curvature."""
        high = (top + t)[:, None] - a
        log_mass, _, at_high = _truncated(xp, -a, high)
        terms = (log_mass, at_high, at_high * (high + at_high))
        log, slope, bend = (
            xp.sum(xp.where(followers, term, 0.0), axis=-1) for term in terms
        )
        return log - t * t / 2, slope - t, -1 - bend

    floor = -top
    highest = xp.max(xp.where(member, clip(a, 0.0), 0.0), axis=-1)
    start = floor
    stop = highest - top + 10.0
    mode = clip(floor + 1e-3, 0.0)
    # Newton steps (safeguarded by bisection) to the mode
    for _ in range(16):
        _, slope, bend = height(mode)
        start = xp.where(slope > 0, mode, start)
        stop = xp.where(slope > 0, stop, mode)
        trial = mode - slope / bend
        mode = xp.where((trial > start) & (trial < stop), trial, (start + stop) / 2)
    lowest = height(mode)[0] - DEPTH
    # Newton steps from outside toward a given height of a concave function never overshoot
    end = mode + REACH
    for _ in range(5):
        value, slope, _ = height(end)
        step = (lowest - value) / clip(slope, None, -1e-300)
        end = xp.where(value < lowest, xp.maximum(end + step, mode), end)
    return xp.maximum(floor, mode - REACH), end


def _integrate_interval(
    xp: ModuleType, a: Array, member: Array, leader: Array, full: bool
) -> TokenMoments:
    """Moments of groups with followers, by Gauss-Legendre quadrature in ``t = z_leader - a_leader``."""
    followers = member & ~leader
    top = xp.sum(xp.where(leader, a, 0.0), axis=-1)
    begin, end = _leader_interval(xp, a, member, followers, top)
    x, w = (array_like(v, a)[None, :] for v in gauss_legendre(NODES))
    half = (end - begin)[:, None] / 2
    t = begin[:, None] + half * (1 + x)
    # samples, nodes, tokens
    followers = followers[:, None, :]
    leader = leader[:, None, :]
    low = -a[:, None, :]
    high = (top[:, None] + t)[:, :, None] - a[:, None, :]
    low = xp.broadcast_to(low, high.shape)
    log_mass, at_low, at_high = _truncated(xp, low, high)
    log = xp.sum(xp.where(followers, log_mass, 0.0), axis=-1) - t * t / 2
    best = xp.max(log, axis=-1)
    weight = w * half * xp.exp(log - best[:, None])
    mass = xp.sum(weight, axis=-1)
    weight = (weight / mass[:, None])[:, :, None]
    mean = xp.where(
        followers,
        clip(at_low - at_high, low, high),
        xp.where(leader, t[:, :, None], 0.0),
    )
    second = clip(
        1 + low * at_low - high * at_high, mean**2, xp.maximum(low**2, high**2)
    )
    second = xp.where(followers, second, xp.where(leader, (t * t)[:, :, None], 0.0))
    shift = xp.sum(weight * mean, axis=1)
    square = xp.sum(weight * second, axis=1)
    outer = None
    if full:
        identity = identity_like(a.shape[1], a)
        outer = (
            xp.matmul(xp.matrix_transpose(weight * mean), mean) * (1 - identity)
            + square[:, :, None] * identity
        )
    return TokenMoments(xp.log(mass) + best + _log_density(0.0), shift, square, outer)


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
