"""Nodes and weights of one-dimensional rules, built on the host in float64.

Every function returns read-only NumPy arrays ``nodes, weights``, (count,) each unless it says otherwise; move them with
``Backend.asarray`` or ``xp.asarray(..., device=...)``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

__all__ = ["gauss_hermite", "gauss_legendre", "gauss_lobatto", "gaussian_trapezoid", "half_plane_hermite"]

Nodes = tuple[np.ndarray[Any, np.dtype[np.float64]], np.ndarray[Any, np.dtype[np.float64]]]


def _locked(nodes: np.ndarray[Any, Any], weights: np.ndarray[Any, Any]) -> Nodes:
    # The arrays are shared by all callers of a cached function.
    nodes.flags.writeable = False
    weights.flags.writeable = False
    return nodes, weights


@lru_cache(maxsize=64)
def gauss_hermite(count: int) -> Nodes:
    """Gauss rule for the standard normal law, ``E f(x) ~ sum_i w_i f(x_i)``: exact up to degree ``2 count - 1``."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(count)
    return _locked(nodes, weights / weights.sum())


@lru_cache(maxsize=64)
def gauss_legendre(count: int, lower: float = -1.0, upper: float = 1.0) -> Nodes:
    """Gauss rule for ``int_lower^upper f(x) dx``: exact up to degree ``2 count - 1``."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    half = 0.5 * (upper - lower)
    return _locked(0.5 * (upper + lower) + half * nodes, half * weights)


@lru_cache(maxsize=64)
def gauss_lobatto(count: int) -> Nodes:
    """Gauss rule for ``int_{-1}^1 f(x) dx`` whose ends are nodes (at least 2): exact up to degree ``2 count - 3``."""
    legendre = np.polynomial.legendre.Legendre.basis(count - 1)
    nodes = np.concatenate([[-1.0], np.sort(legendre.deriv().roots().real), [1.0]])
    return _locked(nodes, 2 / (count * (count - 1) * legendre(nodes) ** 2))


@lru_cache(maxsize=64)
def half_plane_hermite(count: int) -> Nodes:
    """Product rule for two independent standard normals ``(x, y)`` and functions even in y, which takes its positive half.

    ``count``, even, nodes along x: nodes (2, count, count / 2), weights (count, count / 2) whose sum is 1.
    """
    x, w = gauss_hermite(count)
    half = slice(count // 2, None)
    return _locked(np.stack(np.meshgrid(x, x[half], indexing="ij")), 2 * np.outer(w, w[half]))


@lru_cache(maxsize=64)
def gaussian_trapezoid(count: int, reach: float = 8.5) -> Nodes:
    """Trapezoidal rule for the standard normal law on ``[-reach, reach]``, ``sum_i w_i = 1``; a reach of 8.5 leaves out 2e-17.

    Unlike Gauss-Hermite it keeps its resolution in the tails and for integrands that are far from polynomials: for those
    analytic in the strip ``|Im x| < a`` and spacing ``h`` the error is ``O(exp(-2 pi a / h))``. Every second node of an odd
    rule is a rule of half the resolution.
    """
    nodes = np.linspace(-reach, reach, count)
    weights = np.exp(-0.5 * nodes * nodes)
    return _locked(nodes, weights / weights.sum())
