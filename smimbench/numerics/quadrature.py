"""Nodes and weights of quadrature rules, built on the host in float64.

Every function returns read-only NumPy arrays ``nodes, weights``, (count,) each unless it says otherwise; move them with
``Backend.asarray`` or ``xp.asarray(..., device=...)``.
"""

from __future__ import annotations

from functools import cache, lru_cache

import numpy as np

from smimbench.interfaces import Host

Nodes = tuple[Host, Host]


def _read_only(nodes: Host, weights: Host) -> Nodes:
    # The arrays are shared by all callers of a cached function.
    nodes.flags.writeable = False
    weights.flags.writeable = False
    return nodes, weights


@lru_cache(maxsize=64)
def gauss_hermite(count: int) -> Nodes:
    """Gauss-Hermite rule for the standard normal law, ``E f(x) ~ sum_i w_i f(x_i)``: exact up to degree ``2 count - 1``."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(count)
    return _read_only(nodes, weights / weights.sum())


@lru_cache(maxsize=64)
def gauss_legendre(count: int, lower: float = -1.0, upper: float = 1.0) -> Nodes:
    """Gauss-Legendre rule for ``int_lower^upper f(x) dx``: exact up to degree ``2 count - 1``."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    half = 0.5 * (upper - lower)
    return _read_only(0.5 * (upper + lower) + half * nodes, half * weights)


@lru_cache(maxsize=64)
def gauss_lobatto(count: int) -> Nodes:
    """Gauss-Lobatto rule for ``int_{-1}^1 f(x) dx``, with both ends as nodes: exact up to degree ``2 count - 3``."""
    legendre = np.polynomial.legendre.Legendre.basis(count - 1)
    nodes = np.concatenate([[-1.0], np.sort(legendre.deriv().roots().real), [1.0]])
    return _read_only(nodes, 2 / (count * (count - 1) * legendre(nodes) ** 2))


@lru_cache(maxsize=64)
def half_plane_hermite(count: int) -> Nodes:
    """Product rule for two independent standard normals ``(x, y)`` and functions even in y; only y >= 0 is used.

    ``count``, even, nodes along x: nodes (2, count, count / 2), weights (count, count / 2) whose sum is 1.
    """
    x, w = gauss_hermite(count)
    half = slice(count // 2, None)
    return _read_only(
        np.stack(np.meshgrid(x, x[half], indexing="ij")), 2 * np.outer(w, w[half])
    )


@lru_cache(maxsize=64)
def gaussian_trapezoid(count: int) -> Nodes:
    """Trapezoidal rule for the standard normal law on ``[-8.5, 8.5]``, which omits a mass of 2e-17; ``sum_i w_i = 1``.

    Unlike Gauss-Hermite it keeps its resolution in the tails and for integrands that are far from polynomials: for those
    analytic in the strip ``|Im x| < a`` and spacing ``h`` the error is ``O(exp(-2 pi a / h))``. Every second node of an odd
    rule is a rule of half the resolution.
    """
    nodes = np.linspace(-8.5, 8.5, count)
    weights = np.exp(-0.5 * nodes * nodes)
    return _read_only(nodes, weights / weights.sum())


@cache
def gauss_kronrod() -> tuple[Host, Host, Host]:
    """Gauss-Kronrod rule on (-1, 1): nodes (15,), their weights, and the Gauss weights (7,) of every second node."""
    half = [0.991455371120812639206854697526329, 0.949107912342758524526189684047851]
    half += [0.864864423359769072789712788640926, 0.741531185599394439863864773280788]
    half += [0.586087235467691130294144691693013, 0.405845151377397166906606412076961]
    half += [0.207784955007898467600689403773245]
    kronrod = [0.022935322010529224963732008058970, 0.063092092629978553290700663189204]
    kronrod += [
        0.104790010322250183839876322541518,
        0.140653259715525918745189590510238,
    ]
    kronrod += [
        0.169004726639267902826583426598550,
        0.190350578064785409913256402421014,
    ]
    kronrod += [0.204432940075298892414161999234649]
    gauss = [0.129484966168869693270611432679082, 0.279705391489276667901467771423780]
    gauss += [0.381830050505118944950369775488975]
    rule = (
        np.array([-x for x in half] + [0.0] + half[::-1]),
        np.array([*kronrod, 0.209482141084727828012999174891714, *kronrod[::-1]]),
        np.array([*gauss, 0.417959183673469387755102040816327, *gauss[::-1]]),
    )
    for array in rule:
        array.flags.writeable = False  # shared by all callers
    return rule
