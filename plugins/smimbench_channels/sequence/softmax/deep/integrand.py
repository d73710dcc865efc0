"""The integrand of deep attention: the joint log-density of layers and label at given ``u``, for both signs of u.

Vectors of many samples are kept as nested lists [layer][token] of arrays (samples, points), matrices as [row][column]: an order
of magnitude faster than stacks of small matrices. Up to four layers have two tokens, two layers three.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from smimbench.backend import clip, namespace
from smimbench.interfaces import Array, Host
from smimbench.numerics import is_diagonal

Vectors = list[list[Array]]

TINY = 1e-300  # added where a logarithm could be taken of 0
SINGULAR = 1e-70  # determinants below this count as this: large numbers without weight, but never infinite


class Mixing(NamedTuple):
    """Mixing matrix ``B / (1 + c)^K`` of two tokens as three numbers, without loss of digits; its rows sum to 1.

    ``one`` and ``two`` are the off-diagonal entries, ``gap`` is ``h_1 - h_2`` of the last layer in it, and ``slopes`` is
    ``p (1 - p) q (1 - q)`` of its attention.
    """

    one: Array
    two: Array
    determinant: Array
    layers: int
    gap: Array
    slopes: Array


def mixing(xp: Any, w: Vectors, skip: float, like: Array) -> Mixing:
    """Product of the attention matrices of the layers ``w``, each of two tokens; identity for no layer, shaped like ``like``."""
    zero = xp.zeros_like(like)
    found = Mixing(zero, zero, zero + 1.0, 0, zero, zero)
    for z in w:
        found = mix_one_more(xp, found, z, skip)
    return found


def mix_one_more(xp: Any, before: Mixing, z: list[Array], skip: float) -> Mixing:
    """Mixing after one more layer of latents ``z``: ``A(B z) B``."""
    a, _ = mixed(before, z, skip)
    d = (1.0 + skip) ** before.layers * before.determinant * (z[0] - z[1])
    first = xp.exp(clip(-a * d, -300.0, 300.0))
    second = xp.exp(clip((a - d) * d, -300.0, 300.0))
    p, q = 1.0 / (1.0 + first), 1.0 / (1.0 + second)
    leave, enter = first * p, second * q
    # p + q - 1 = p q (1 - exp(-d^2)), without cancellation where the tokens are alike
    # 1 - one - two is the determinant
    one = before.one + leave * before.determinant / (1.0 + skip)
    two = before.two + enter * before.determinant / (1.0 + skip)
    determinant = before.determinant * (skip - xp.expm1(-d * d) * p * q) / (1.0 + skip)
    return Mixing(one, two, determinant, before.layers + 1, d, p * leave * q * enter)


def mixed(B: Mixing, z: list[Array], skip: float) -> list[Array]:
    """Product ``B z`` of the mixing matrix and latents."""
    scale, difference = (1.0 + skip) ** B.layers, z[0] - z[1]
    return [scale * (z[0] - B.one * difference), scale * (z[1] + B.two * difference)]


def unmixed(B: Mixing, u: list[Array], difference: Array, skip: float) -> list[Array]:
    """Solution ``B^{-1} u``, exact where B is nearly singular because ``difference``, ``u_1 - u_2``, is given."""
    scale = (1.0 + skip) ** -B.layers
    step = scale * difference / clip(B.determinant, SINGULAR)
    return [scale * u[0] + B.one * step, scale * u[1] - B.two * step]


def output_gap(z: Array, skip: float) -> Array:
    """Difference ``u_1 - u_2`` (n,) of two tokens without loss of digits, however similar they are; z (n, L, 2)."""
    before = z.shape[1] - 1
    last = z[:, before, 0] - z[:, before, 1]
    w = [[z[:, layer, m] for m in range(2)] for layer in range(before)]
    return (1.0 + skip) ** before * mixing(namespace(z), w, skip, last).determinant * last


def attention(xp: Any, v: list[Array], skip: float) -> Vectors:
    """Attention matrix ``A(v) = c I + S(v)`` of three tokens."""
    rows = []
    for m, own in enumerate(v):
        weights = [xp.exp(clip(own * (other - own), -300.0, 300.0)) for other in v]
        scale = 1.0 / total(weights)
        rows.append([weight * scale for weight in weights])
        rows[m][m] = rows[m][m] + skip
    return rows


def adjugate(A: Vectors) -> tuple[Vectors, Array]:
    """Adjugate and determinant of matrices of two or three rows: ``A^{-1}`` is their ratio."""
    if len(A) == 2:
        rows = [[A[1][1], -A[0][1]], [-A[1][0], A[0][0]]]
    else:
        rows = [
            [A[m - 2][k - 2] * A[m - 1][k - 1] - A[m - 2][k - 1] * A[m - 1][k - 2] for m in range(3)] for k in range(3)
        ]
    return rows, total(a * row[0] for a, row in zip(A[0], rows))


def total(arrays: Iterable[Array]) -> Array:
    """Sum of a sequence of arrays."""
    return functools.reduce(operator.add, arrays)


def combine(rows: Host, vectors: Vectors) -> Vectors:
    """Linear combinations ``sum_k rows[l, k] vectors[k]`` for every l; zero coefficients cost nothing."""
    result = []
    for row in rows:
        terms = [(float(r), vector) for r, vector in zip(row, vectors) if r != 0.0] or [(0.0, vectors[0])]
        result.append([total(r * vector[m] for r, vector in terms) for m in range(len(vectors[0]))])
    return result


def squares(vectors: Vectors) -> Array:
    """Sum of squares of all entries."""
    return total(x * x for row in vectors for x in row)


class Law(NamedTuple):
    """The network and the constants of the prior ``N(omega, V (x) I)``, on the host."""

    layers: int
    tokens: int
    skip: float
    root: Host  # V of the layers before the last = root root^T
    slopes: Host  # E[dz_L | dw] = sum_l slopes_l dw_l
    noise: float  # conditional variance of z_L
    variance: float  # of z_L
    other_root: Host  # root of V with layer L - 1 left out
    precision: Host  # V^{-1}


def make_law(V: Host, tokens: int, skip: float) -> Law:
    """Constants of the prior, with the factors of V (L, L) that points and weights need."""
    layers = len(V)
    rest = [*range(layers - 2), layers - 1]
    mixed = V[:-1, -1]
    slopes = np.linalg.solve(V[:-1, :-1], mixed)
    return Law(
        layers,
        tokens,
        skip,
        np.linalg.cholesky(V[:-1, :-1]),
        slopes,
        float(V[-1, -1] - slopes @ mixed),
        float(V[-1, -1]),
        np.linalg.cholesky(V[np.ix_(rest, rest)]),
        np.diag(1.0 / np.diagonal(V)) if is_diagonal(V) else np.linalg.inv(V),
    )


class Points(NamedTuple):
    """Integration points (samples, points) with what weights and moments need."""

    xi: Vectors
    dz: Vectors  # z - omega of every layer, z_L at the sign + of u
    last: list[Array]  # z_L
    log_plus: Array
    log_minus: Array
    log_total: Array
    # Of two tokens only.
    jacobian: Array = None  # log |d z_L / d z_{L-1}| at fixed u
    side: Array = None  # h_1 - h_2 of the layer before the last
    mixed: Array = None  # determinant of B_{L-2} / (1 + c)^{L-2}


def log_integrand(xp: Any, law: Law, u: list[Array], omega: Vectors, xi: Vectors) -> Points:
    """Log-integrand at whitened points ``xi`` [layer][token], for both signs of u.

    ``u`` by token; of two tokens with their difference as a third number, for its digits.
    """
    before, skip = law.layers - 1, law.skip
    dw = combine(law.root, xi)
    w = [[o + x for o, x in zip(mean, shift)] for mean, shift in zip(omega, dw)]
    of_two_tokens: tuple[Array, ...] = ()
    if law.tokens == 2:
        inner = mixing(xp, w[:-1], skip, w[-1][0])
        outer = mix_one_more(xp, inner, w[-1], skip)
        determinant = outer.determinant
        last = unmixed(outer, u[:2], u[2], skip)
        # |det d(A^{-1} u)/dh| = 2 d^2 p (1-p) q (1-q) (v_1 - v_2)^2 / det A,  v = A^{-1} u, v_1 - v_2 = det B_{L-2} (z_1 - z_2)_L
        step = (1.0 + skip) ** -before * u[2] / clip(determinant, SINGULAR)
        gap = (1.0 + skip) ** (before - 1) * inner.determinant * step
        product = outer.slopes * (outer.gap * gap) ** 2 * 2.0 / (1.0 + skip) ** 2
        jacobian = _log(xp, product) + _log(xp, inner.determinant) - _log(xp, determinant)
        of_two_tokens = jacobian, outer.gap, inner.determinant
        size = _log(xp, xp.abs(determinant)) + 2.0 * before * math.log1p(skip)
    else:
        rows, determinant = adjugate(attention(xp, w[-1], skip))
        inverse = 1.0 / xp.where(xp.abs(determinant) < SINGULAR, SINGULAR, determinant)
        last = [total(a * x for a, x in zip(row, u)) * inverse for row in rows]
        size = _log(xp, xp.abs(determinant))
    center = combine(law.slopes[None, :], dw)[0]
    energy = 0.5 * squares(xi)
    logs = []
    for sign in (1.0, -1.0):
        residual = [sign * z - o - x for z, o, x in zip(last, omega[before], center)]
        logs.append(-energy - (0.5 / law.noise) * squares([residual]) - size)
    plus, minus = logs
    dz = [*dw, [z - o for z, o in zip(last, omega[before])]]
    return Points(xi, dz, last, plus, minus, log_of_sum(xp, plus, minus), *of_two_tokens)


def log_of_sum(xp: Any, a: Array, b: Array) -> Array:
    """Stable ``log(exp(a) + exp(b))``."""
    return xp.maximum(a, b) + xp.log1p(xp.exp(-xp.abs(a - b)))


def _log(xp: Any, x: Array) -> Array:
    return xp.log(clip(x, TINY))
