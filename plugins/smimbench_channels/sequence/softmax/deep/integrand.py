"""The integrand of deep attention: the joint log-density of layers and label at given ``u``, for both signs of u."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from smimbench.interfaces import Array
from smimbench.numerics import is_diagonal
from smimbench_channels.sequence.softmax.deep.small_matrices import (
    Vectors,
    apply,
    attention,
    attention_product,
    combine,
    mix_one_more,
    mixing,
    solve,
    squares,
)

__all__ = ["SINGULAR", "TINY", "Law", "Points", "log_integrand", "make_law"]

TINY = 1e-300
"""Added where a logarithm could be taken of 0. Doubled: nothing, but where every digit is lost anyway."""

SINGULAR = 1e-70
"""Determinants below this count as this: large numbers without weight, but never infinite. Doubled: nothing."""


class Law(NamedTuple):
    """The network and the constants of ``N(omega, V (x) I)``, on the host."""

    layers: int
    tokens: int
    skip: float
    root: np.ndarray[Any, Any]  # V of the layers before the last = root root^T
    slopes: np.ndarray[Any, Any]  # E[dz_L | dw] = sum_l slopes_l dw_l
    noise: float  # conditional variance of z_L
    variance: float  # of z_L
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
        float(V[-1, -1]),
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
    side: Array  # h_1 - h_2 of the layer before the last, two tokens only
    mixed: Array  # determinant of B_{L-2} / (1 + c)^{L-2}, two tokens only


def log_integrand(xp: Any, law: Law, u: list[Array], omega: Vectors, xi: Vectors) -> Points:
    """The integrand at whitened points ``xi`` [layer][token], for both signs of u, in logarithms.

    ``u`` by token; of two tokens with their difference as a third number, for its digits.
    """
    before, skip = law.layers - 1, law.skip
    dw = combine(law.root, xi)
    w = [[o + x for o, x in zip(mean, shift)] for mean, shift in zip(omega, dw)]
    side = mixed = jacobian = None
    if law.tokens == 2:
        inner = mixing(xp, w[:-1], skip, w[-1][0])
        outer = mix_one_more(xp, inner, w[-1], skip)
        determinant, side, mixed = outer.determinant, outer.gap, inner.determinant
        scale = (1.0 + skip) ** -before
        # B^{-1} u, exact where B is nearly singular: no difference but that of u itself
        step = scale * u[2] / xp.maximum(determinant, SINGULAR + 0.0 * determinant)
        last = [scale * u[0] + outer.one * step, scale * u[1] - outer.two * step]
        # |det d(A^{-1} u)/dh| = 2 d^2 p (1-p) q (1-q) (v_1 - v_2)^2 / det A,  v = A^{-1} u, v_1 - v_2 = det B_{L-2} (z_1 - z_2)_L
        gap = (1.0 + skip) ** (before - 1) * mixed * step
        product = outer.slopes * (side * gap) ** 2 * 2.0 / (1.0 + skip) ** 2
        tiny = TINY + 0.0 * product
        jacobian = (
            xp.log(xp.maximum(product, tiny)) + xp.log(xp.maximum(mixed, tiny)) - xp.log(xp.maximum(determinant, tiny))
        )
    else:
        B, determinant = attention_product(xp, w, skip, before - 1)
        h = w[-1] if B is None else apply(B, w[-1])
        A, factor = attention(xp, h, skip)
        last = solve(xp, A, factor, u)
        last = last if B is None else solve(xp, B, determinant, last)
        determinant = factor if determinant is None else determinant * factor
    center = combine(law.slopes[None, :], dw)[0]
    energy = 0.5 * squares(xi)
    logs = []
    for sign in (1.0, -1.0):
        residual = [sign * z - o - x for z, o, x in zip(last, omega[before], center)]
        logs.append(-energy - (0.5 / law.noise) * squares([residual]))
    size = xp.log(xp.maximum(xp.abs(determinant), TINY + 0.0 * determinant))
    if law.tokens == 2:
        size = size + 2.0 * before * math.log1p(skip)
    log_plus, log_minus = logs[0] - size, logs[1] - size
    total = xp.maximum(log_plus, log_minus) + xp.log1p(xp.exp(-xp.abs(log_plus - log_minus)))
    none = size  # three tokens have no use for the rest
    return Points(
        xi,
        dw,
        last,
        log_plus,
        log_minus,
        total,
        none if jacobian is None else jacobian,
        none if side is None else side,
        none if mixed is None else mixed,
    )
