"""Row-wise argmax for two tokens: closed-form posterior, and information by deterministic quadrature."""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from smimbench.backend import namespace
from smimbench.interfaces import Array, Posterior
from smimbench.numerics import gauss_legendre, half_plane_hermite, log_cdf
from smimbench_attention.channels.batches import (
    blocks,
    normal_density,
    raw_second_moment,
)

ROOT2 = math.sqrt(2.0)
CORRELATION = 1 / 3  # of u_1 = h_11 - h_12 and u_2 = h_22 - h_12
# Half-width of the fixed grid: beyond, the probability of the likelier answer is 1 to double precision. Doubled: the same
# nodes are twice as far apart, and the error is 1e-6 in place of 1e-12.
CUT = 9.5
# Overlap over error from which the fixed grid serves every pair of order parameters. Doubled: the Hermite rule, which is the
# worse one at large overlaps, is used further, with errors of 4e-12.
SWITCH = 1.2
# Nodes along each axis of the grid and of the Hermite rule: the first count is the answer, the second gives the error.
# Doubled: errors of 1e-14 in place of 1e-12, four times the time.
GRID_NODES = (64, 48)
HERMITE_NODES = (32, 24)


def _margins(
    y: Array, omega: Array, V: Array
) -> tuple[list[Array], list[Array], Array]:
    """Signs of the two rows, their margins in standard deviations, and V (..., 1), in double precision."""
    xp = namespace(y, omega, V)
    z = xp.astype(omega[..., 0, :], xp.float64)
    variance = xp.astype(V[..., 0], xp.float64)
    scale = xp.sqrt(3 * variance)
    signs = []
    kappas = []
    for row, site in ((0, 0), (1, 2)):
        sign = xp.where(
            y[..., row] == row, xp.ones_like(z[..., 0]), -xp.ones_like(z[..., 0])
        )
        signs.append(sign)
        kappas.append(sign * (ROOT2 * z[..., site] - z[..., 1]) / scale)
    return signs, kappas, variance


def log_partition(y: Array, omega: Array, V: Array) -> Array:
    """Log-probability ``log P(y | omega, V)`` of every label: ``log Phi2`` of the margins of its rows."""
    (sign_1, sign_2), (kappa_1, kappa_2), _ = _margins(y, omega, V)
    cdf = log_cdf(kappa_1, kappa_2, CORRELATION, sign=sign_1 * sign_2)
    return namespace(omega).astype(cdf.value, omega.dtype)


def posterior(y: Array, omega: Array, V: Array, *, second_moment: bool) -> Posterior:
    r"""Posterior of the three latents of two tokens, in closed form.

    With :math:`A_i = \partial \log\Phi_2 / \partial\kappa_i` and the rows :math:`j_1 = (\sqrt2, -1, 0)`,
    :math:`j_2 = (0, -1, \sqrt2)` of the map from latents to margins

    .. math::

        E[z] = \omega + \sqrt{V/3} \sum_i s_i A_i j_i, \qquad
        \mathrm{Cov}(z) = V \Big(1 + \tfrac13 \sum_{ij} s_i s_j H_{ij}\, j_i j_j^T\Big)
    """
    xp = namespace(y, omega, V)
    (sign_1, sign_2), (kappa_1, kappa_2), variance = _margins(y, omega, V)
    cdf = log_cdf(kappa_1, kappa_2, CORRELATION, sign=sign_1 * sign_2, hessian=True)
    assert cdf.hessian is not None
    scale = xp.sqrt(variance / 3)
    a_1 = scale * sign_1 * cdf.h_slope
    a_2 = scale * sign_2 * cdf.k_slope
    shift = xp.stack([ROOT2 * a_1, -(a_1 + a_2), ROOT2 * a_2], axis=-1)
    mean = xp.astype(omega, xp.float64) + shift[..., None, :]
    h_11, h_22, h_12 = cdf.hessian
    h_12 = sign_1 * sign_2 * h_12
    reduction = -xp.mean(3 * (h_11 + h_22) + 2 * h_12, axis=-1) / 9
    covariance = variance[..., None] * (1 - reduction[..., None, None])
    moment = None
    if second_moment:
        cross_1 = ROOT2 * (h_11 + h_12)
        cross_2 = ROOT2 * (h_22 + h_12)
        corner = 2 * h_12
        rows = [
            [2 * h_11, -cross_1, corner],
            [-cross_1, h_11 + h_22 + 2 * h_12, -cross_2],
            [corner, -cross_2, 2 * h_22],
        ]
        change = xp.stack([xp.stack(row, axis=-1) for row in rows], axis=-2) / 3
        moment = raw_second_moment(
            mean,
            variance[..., None, None]
            * (xp.eye(3, dtype=xp.float64, device=change.device) + change),
        )
        moment = xp.astype(moment, omega.dtype)
    return Posterior(
        xp.astype(mean, omega.dtype), xp.astype(covariance, omega.dtype), moment
    )


def _gain(h: Array, k: Array, sign: int) -> Array:
    """Contribution to the information, ``Phi2 (3 A_1^2 + 3 A_2^2 + 2 sign A_1 A_2)`` with correlation ``sign / 3``."""
    cdf = log_cdf(h, k, sign * CORRELATION)
    a = cdf.h_slope
    b = cdf.k_slope
    return np.exp(cdf.value) * (3 * (a * a + b * b) + 2 * sign * a * b)


@cache
def _margin_grid(count: int) -> tuple[Array, Array, Array]:
    """Exponents (2, N) and weighted gain (2, N) of the information on a triangular grid, and its quadrature rule."""
    x, w = gauss_legendre(count, -CUT, CUT)
    i, j = np.triu_indices(
        count
    )  # the gain does not change when the two rows change places
    weight = w[i] * w[j] * np.where(i == j, 1.0, 2.0)
    form = []
    gain = []
    for sign in (1, -1):
        r = sign * CORRELATION
        form.append((x[i] ** 2 + x[j] ** 2 - 2 * r * x[i] * x[j]) / (2 * (1 - r * r)))
        gain.append(weight * _gain(x[i], x[j], sign))
    return np.stack(form), np.stack(gain), np.stack([x, w])


def _from_grid(ratio: Array, count: int) -> Array:
    """Information by quadrature on the grid, for overlaps of at least ``SWITCH`` times the error."""
    from scipy.special import ndtr

    form, gain, (x, w) = _margin_grid(count)
    s = math.sqrt(1 - CORRELATION**2)
    total = np.zeros_like(ratio)
    density = normal_density(x)
    edge = w * 3 * density**2 / ndtr(x)
    narrow = np.exp(-x * x / (2 * ratio[:, None])) / np.sqrt(
        2 * math.pi * ratio[:, None]
    )
    for index, sign in enumerate((1, -1)):
        weight = np.exp(-form[index] / ratio[:, None]) / (
            2 * math.pi * s * ratio[:, None]
        )
        total += 2 * (weight @ gain[index])
        # one row decided beyond CUT, the other one open; twice, for either row
        beyond = ndtr(-(CUT - sign * CORRELATION * x) / (s * np.sqrt(ratio[:, None])))
        total += 4 * ((narrow * beyond) @ edge)
    return total


def _from_hermite(ratio: Array, count: int) -> Array:
    """Information by Gauss-Hermite quadrature, for overlaps of up to ``SWITCH`` times the error; exact at 0."""
    nodes, weight = half_plane_hermite(count)
    keep = weight > 1e-20
    (u, v), weight = nodes[:, keep], weight[keep]
    total = np.zeros_like(ratio)
    for block in blocks(ratio.size, 256):
        root = np.sqrt(ratio[block, None])
        for sign in (1, -1):
            r = sign * CORRELATION
            even = math.sqrt((1 + r) / 2) * u
            odd = math.sqrt((1 - r) / 2) * v
            h = root * (even + odd)
            k = root * (even - odd)
            # the gain falls with Phi2, and far out is expensive to compute
            low = np.minimum(np.minimum(h, k), 0.0)
            matters = weight * np.exp(-low * low / 2) > 1e-17
            gain = np.zeros_like(h)
            gain[matters] = _gain(h[matters], k[matters], sign)
            total[block] += 2 * (gain @ weight)
    return total


def information(q: Array, v: Array) -> tuple[Array, Array]:
    r"""Information ``E sum_c g_c^2`` of two tokens and its numerical error, host arrays (N,).

    .. math::

        \frac{1}{3V} E[3A_1^2 + 3A_2^2 + 2 s_1 s_2 A_1 A_2]

    With the margins of the four answers averaged by symmetry: Gauss-Hermite where the estimate holds little,
    otherwise Gauss-Legendre on a fixed square, plus the analytic rest where one row is certain. The error is
    the difference to a rule with a quarter fewer nodes.
    """
    with np.errstate(divide="ignore", over="ignore"):
        ratio = np.where(v > 0, q / np.where(v > 0, v, 1.0), np.inf)
    value = np.full(q.shape, np.inf)
    error = np.full(q.shape, np.inf)
    wide = (ratio >= SWITCH) & np.isfinite(ratio)
    for chosen, rule, nodes in (
        (wide, _from_grid, GRID_NODES),
        (ratio < SWITCH, _from_hermite, HERMITE_NODES),
    ):
        if chosen.any():
            fine, coarse = (
                rule(ratio[chosen], count) * (1 / (3 * v[chosen])) for count in nodes
            )
            value[chosen], error[chosen] = fine, np.abs(fine - coarse) + 1e-13 * fine
    return value, error
