"""Probability that two noisy copies of a row of indices have their largest entry in the same place."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from smimbench.numerics import gauss_hermite, half_plane_hermite

if TYPE_CHECKING:
    from smimbench.interfaces import Array

# Nodes along the first axis of two Gauss-Hermite rules: the larger is the answer, the difference the error. Doubled: an
# error of 1e-14 in place of 1e-12, at four times the time.
NODES = (96, 64)
ROOT2 = math.sqrt(2.0)


def diagonal_wins(tokens: int) -> float:
    """Probability that the entry of variance 2 exceeds the T - 1 others, of variance 1."""
    from scipy.special import ndtr

    x, w = gauss_hermite(128)
    return float(np.sum(w * ndtr(ROOT2 * x) ** (tokens - 1)))


def disagreement(tokens: int, q: Array, v: Array, *, replicas: bool) -> tuple[Array, Array]:
    r"""Probability that the argmax of a row differs between two copies, and its error; host arrays (N,).

    A row holds one entry of variance 2 (its diagonal) and T - 1 of variance 1, all independent. The copies
    are two draws from the posterior (``replicas``, correlation :math:`\rho = q / (q + V)`) or a draw and the
    estimate (correlation :math:`\sqrt{q / (q + V)}`). For two tokens it is :math:`\arccos(\rho) / \pi`;
    otherwise, with the entry that wins in both copies, :math:`(a, b)`, integrated over and the T - 1 losers
    independent of it,

    .. math::

        1 - \int \phi_2(a, b) \Phi_2(\sqrt2 a, \sqrt2 b)^{T-1}
          - (T-1) \int \phi_2(a, b) \Phi_2(a, b)^{T-2} \Phi_2(a / \sqrt2, b / \sqrt2)
    """
    # the half angle keeps its digits when the copies nearly coincide
    if replicas:
        half_angle = np.arcsin(np.sqrt(v / (2 * (q + v))))
    else:
        half_angle = np.arctan2(np.sqrt(v), np.sqrt(q)) / 2
    if tokens == 2:
        value = 2 * half_angle / math.pi
        return value, 4e-16 * value
    fine, coarse = (np.array([_miss(tokens, angle, count) for angle in half_angle]) for count in NODES)
    return fine, np.abs(fine - coarse) + 1e-15


def _miss(tokens: int, angle: float, count: int) -> float:
    (mean, difference), weight = half_plane_hermite(count)  # the two copies may change places
    if angle == 0:
        return 0.0
    stay = [_both_below(mean, difference, angle, scale) for scale in (ROOT2, 1.0, 1 / ROOT2)]
    hit = stay[0] ** (tokens - 1) + (tokens - 1) * stay[1] ** (tokens - 2) * stay[2]
    return float(1 - np.sum(weight * hit))


def _both_below(mean: Array, difference: Array, angle: float, scale: float) -> Array:
    """``Phi2(scale a, scale b; cos(2 angle))`` at a, b = cos(angle) mean +- sin(angle) difference."""
    from scipy.special import ndtr, owens_t

    c, s = math.cos(angle), math.sin(angle)
    a, b = c * mean + s * difference, c * mean - s * difference
    a, b = np.where(a == 0, 1e-200, a), np.where(b == 0, 1e-200, b)
    # (b - rho a) / (a sqrt(1 - rho^2)), free of the cancellation at small angles
    first, second = (s * mean - c * difference) / a, (s * mean + c * difference) / b
    half = np.where(a * b < 0, 0.5, 0.0)
    a, b = scale * a, scale * b
    return (ndtr(a) + ndtr(b)) / 2 - owens_t(a, first) - owens_t(b, second) - half
