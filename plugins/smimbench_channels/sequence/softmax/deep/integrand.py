"""What is integrated: the joint density of layers and label at given ``u``, for both signs of u, in logarithms."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from smimbench.interfaces import Array
from smimbench.numerics.linalg import is_diagonal
from smimbench_channels.sequence.softmax.deep.small_matrices import (
    Vectors,
    apply,
    attention,
    attention_product,
    combine,
    solve,
    squares,
)

__all__ = ["Law", "Points", "evaluate", "make_law"]

TINY = 1e-300
"""Added where a logarithm could be taken of 0. Doubled: nothing, but where every digit is lost anyway."""


class Law(NamedTuple):
    """The network and the constants of ``N(omega, V (x) I)``, on the host."""

    layers: int
    tokens: int
    skip: float
    root: np.ndarray[Any, Any]  # V of the layers before the last = root root^T
    slopes: np.ndarray[Any, Any]  # E[dz_L | dw] = sum_l slopes_l dw_l
    noise: float  # conditional variance of z_L
    other_root: np.ndarray[Any, Any]  # root of V with layer L - 1 left out
    precision: np.ndarray[Any, Any]  # V^{-1}


def make_law(V: np.ndarray[Any, Any], tokens: int, skip: float) -> Law:
    """Factors of V (L, L) that points and weights need."""
    layers = V.shape[0]
    before = list(range(layers - 1))
    rest = [*range(layers - 2), layers - 1]
    inner, mixed = V[np.ix_(before, before)], V[before, layers - 1]
    slopes = np.linalg.solve(inner, mixed)
    noise = float(V[-1, -1] - slopes @ mixed)
    precision = np.diag(1.0 / np.diagonal(V)) if is_diagonal(V) else np.linalg.inv(V)
    return Law(
        layers,
        tokens,
        skip,
        np.linalg.cholesky(inner),
        slopes,
        noise,
        np.linalg.cholesky(V[np.ix_(rest, rest)]),
        precision,
    )


class Points(NamedTuple):
    """Points (samples, points) with what weights and moments need."""

    xi: Vectors
    dw: Vectors
    last: list[Array]  # z_L at the sign + of u
    log_plus: Array
    log_minus: Array
    log_total: Array
    jacobian: Array  # log |d z_L / d z_{L-1}| at fixed u, two tokens only
    side: Array  # sign of h_1 - h_2 of the layer before the last, two tokens only


def evaluate(xp: Any, law: Law, u: list[Array], omega: Vectors, xi: Vectors) -> Points:
    """The integrand at whitened points ``xi`` [layer][token], for both signs of u, in logarithms."""
    before, skip = law.layers - 1, law.skip
    dw = combine(law.root, xi)
    w = [[o + x for o, x in zip(mean, shift)] for mean, shift in zip(omega, dw)]
    B, determinant = attention_product(xp, w, skip, before - 1)
    h = w[-1] if B is None else apply(B, w[-1])
    A, factor = attention(xp, h, skip)
    inner = solve(xp, A, factor, u)
    last = inner if B is None else solve(xp, B, determinant, inner)
    determinant = factor if determinant is None else determinant * factor
    center = combine(law.slopes[None, :], dw)[0]
    energy = 0.5 * squares(xi)
    logs = []
    for sign in (1.0, -1.0):
        residual = [sign * z - o - x for z, o, x in zip(last, omega[before], center)]
        logs.append(-energy - (0.5 / law.noise) * squares([residual]))
    size = xp.log(xp.maximum(xp.abs(determinant), TINY + 0.0 * determinant))
    log_plus, log_minus = logs[0] - size, logs[1] - size
    total = xp.maximum(log_plus, log_minus) + xp.log1p(xp.exp(-xp.abs(log_plus - log_minus)))
    jacobian, side = size, size
    if law.tokens == 2:
        side = h[0] - h[1]
        # |det d(A^{-1} u)/dh| = 2 d^2 p (1-p) q (1-q) (v_1 - v_2)^2 / det A,  v = A^{-1} u
        gap = inner[0] - inner[1]
        product = (A[0][0] - skip) * A[0][1] * (A[1][1] - skip) * A[1][0] * (side * gap) ** 2 * 2.0
        tiny = TINY + 0.0 * product
        jacobian = xp.log(xp.maximum(product, tiny)) - xp.log(xp.maximum(xp.abs(factor), tiny))
    return Points(xi, dw, last, log_plus, log_minus, total, jacobian, side)
