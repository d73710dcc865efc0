r"""Information of the hardmax channel for two tokens: a plane integral over omega of formulas, without sampling.

In units of V, ``a = omega / sqrt(V)``, a label y is seen with the probability ``P_y(a)`` that ``z ~ N(a, I)`` lies in a wedge or
in its mirror image: tokens of opposite sign are the second and the fourth quadrant, tokens of equal sign the four wedges of 45
degrees between the axes and the diagonal. Then

.. math:: I = \frac1V \int d^2 a\, N(a; 0, Q / V) \sum_y \frac{|\nabla P_y|^2}{P_y},

and the integrand lives within a few units of the boundaries of the wedge. It is integrated in the distances from the two
boundaries, by Gauss-Legendre's rule in panels that double in length from there on.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from smimbench.numerics import gauss_legendre, log_cdf
from smimbench_channels.chebyshev import Polynomials, lobatto_points

__all__ = ["scaled_information", "susceptibility"]

Host = np.ndarray[Any, np.dtype[np.float64]]

DEGREE = 32
"""Degree of the polynomial in ``s = sqrt(V / (Q + V))``. Doubled: twice the time; its error falls from 5e-10 to rounding."""
FAR = 9.0
"""Distance from both boundaries, in units of sqrt(V), beyond which labels are certain to 1e-18. Doubled: no change."""


def susceptibility() -> float:
    """``E sum_mk (E[z_m z_k | y] - delta_mk)^2`` at omega = 0 and V = 1: the mean of ``cos^2`` and so on over the wedges."""
    return 12 / math.pi**2


@cache
def scaled_information(limit: float) -> Polynomials:
    """``sqrt(V (Q + V)) (Q + V) / Q * information`` as a function of s; ``limit`` is its value at s = 0."""
    s = lobatto_points(DEGREE + 1)
    values = [limit, *(_two_token_information(float(x)) * x / (1 - x * x) / x**2 for x in s[1:-1]), susceptibility()]
    coefficients = np.polynomial.chebyshev.chebfit(2 * s - 1, np.array(values), DEGREE)
    # error of the polynomial relative to its value, as reported
    return Polynomials(coefficients[:, None], 2e-9)


def _two_token_information(s: float) -> float:
    """``V I`` at ``s = sqrt(V / (Q + V))``."""
    width = math.sqrt(1 - s * s) / s
    one = _omega_panels(width)
    both = [np.concatenate([-one[0][::-1], one[0]]), np.concatenate([one[1][::-1], one[1]])]
    h, k = (axis.ravel() for axis in np.meshgrid(both[0], one[0], indexing="ij"))
    weight = np.outer(both[1], one[1]).ravel()
    near = np.minimum(np.abs(h), np.abs(k)) < FAR
    h, k, weight = h[near], k[near], weight[near]

    def integral(a: tuple[Host, Host], probability: Host, gradient: tuple[Host, Host]) -> float:
        density = np.exp(-(a[0] ** 2 + a[1] ** 2) / (2 * width**2)) / (2 * math.pi * width**2)
        tiny = np.finfo(float).tiny
        return float(np.sum(weight * density * (gradient[0] ** 2 + gradient[1] ** 2) / np.maximum(probability, tiny)))

    # h and k > 0 is half of the plane: the other half is its mirror image, which labels do not tell from it.
    return 2 * integral(*_opposite(h, k)) + 4 * math.sqrt(2) * integral(*_equal(h, k))


def _omega_panels(width: float) -> tuple[Host, Host]:
    """Nodes and weights on the positive side, as far as ``N(0, width^2)`` reaches."""
    edges = [0.0, min(1.0, width)]
    while edges[-1] < FAR * width:
        edges.append(2 * edges[-1])
    # nodes of a panel
    x, w = gauss_legendre(12, 0.0, 1.0)
    lengths = np.diff(edges)[:, None]
    return (np.array(edges)[:-1, None] + lengths * x).ravel(), (lengths * w).ravel()


def _opposite(h: Host, k: Host) -> tuple[tuple[Host, Host], Host, tuple[Host, Host]]:
    """Tokens of opposite sign, ``a = (h, k)``: a, probability and its gradient."""
    from scipy.special import ndtr

    up, down = ndtr([h, k]), ndtr([-h, -k])
    density = np.exp(-(np.array([h, k]) ** 2) / 2) / math.sqrt(2 * math.pi)
    probability = up[0] * down[1] + down[0] * up[1]
    return (h, k), probability, (density[0] * (down[1] - up[1]), density[1] * (down[0] - up[0]))


def _equal(h: Host, k: Host) -> tuple[tuple[Host, Host], Host, tuple[Host, Host]]:
    """The first token further out than the second on the same side, ``h = a_2`` and ``k = (a_1 - a_2) / sqrt(2)``."""
    root = math.sqrt(2)
    above, below = log_cdf(h, k, -1 / root), log_cdf(-h, -k, -1 / root)
    up, down = np.exp(above.value), np.exp(below.value)
    by_h, by_k = (up * one - down * other for one, other in zip(above[1:3], below[1:3]))
    return (h + root * k, h), up + down, (by_k / root, by_h - by_k / root)
