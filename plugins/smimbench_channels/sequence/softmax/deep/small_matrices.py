"""Products, inverses and determinants of many matrices of two or three rows, written out by components.

Vectors of many samples are kept as nested lists [layer][token] of arrays (samples, points), matrices as [row][column]: an order
of magnitude faster than stacks of small matrices.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from smimbench.backend import clip, namespace
from smimbench.interfaces import Array

__all__ = [
    "Matrix",
    "Mixing",
    "Vectors",
    "apply",
    "attention",
    "attention_product",
    "combine",
    "determinant_of",
    "mix_one_more",
    "mixing",
    "output_gap",
    "solve",
    "squares",
]


Vectors = list[list[Array]]
Matrix = list[list[Array]]


def attention(xp: Any, v: list[Array], skip: float) -> tuple[Matrix, Array]:
    """``A(v) = c I + S(v)`` and its determinant."""
    tokens = len(v)
    if tokens == 2:
        a, b = v
        d = a - b
        one, two = xp.exp(clip(-a * d, -300.0, 300.0)), xp.exp(clip(b * d, -300.0, 300.0))
        p, q = 1.0 / (1.0 + one), 1.0 / (1.0 + two)
        # p + q - 1, without cancellation where the tokens are alike
        determinant = (1.0 + skip) * (skip - xp.expm1(-d * d) * p * q)
        return [[skip + p, one * p], [two * q, skip + q]], determinant
    rows = []
    for m in range(tokens):
        weights = [xp.exp(clip(v[m] * (v[k] - v[m]), -300.0, 300.0)) for k in range(tokens)]
        scale = 1.0 / sum(weights[1:], weights[0])
        rows.append([weight * scale for weight in weights])
        rows[m][m] = rows[m][m] + skip
    return rows, determinant_of(rows)


class Mixing(NamedTuple):
    """``B / (1 + c)^K`` of two tokens: its rows add up to 1, so that three numbers say it with all digits.

    ``one`` and ``two`` are the entries beside the diagonal, ``gap`` is ``h_1 - h_2`` of the last layer in it, and ``slopes`` is
    ``p (1 - p) q (1 - q)`` of its attention.
    """

    one: Array
    two: Array
    determinant: Array
    layers: int
    gap: Array
    slopes: Array


def mixing(xp: Any, w: Vectors, skip: float, like: Array) -> Mixing:
    """The product of the attention matrices of the layers ``w``, each of two tokens; of no layer, in the shape of ``like``."""
    zero = xp.zeros_like(like)
    found = Mixing(zero, zero, zero + 1.0, 0, zero, zero)
    for z in w:
        found = mix_one_more(xp, found, z, skip)
    return found


def mix_one_more(xp: Any, before: Mixing, z: list[Array], skip: float) -> Mixing:
    """``A(B z) B`` for the latents ``z`` of one more layer."""
    scale = (1.0 + skip) ** before.layers
    difference = z[0] - z[1]
    a = scale * (z[0] - before.one * difference)
    d = scale * before.determinant * difference
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


def output_gap(z: Array, skip: float) -> Array:
    """``u_1 - u_2`` (n,) of two tokens, with all its digits however much alike attention makes them; z (n, L, 2)."""
    before = z.shape[1] - 1
    last = z[:, before, 0] - z[:, before, 1]
    w = [[z[:, layer, m] for m in range(2)] for layer in range(before)]
    return (1.0 + skip) ** before * mixing(namespace(z), w, skip, last).determinant * last


def determinant_of(A: Matrix) -> Array:
    """Determinant of matrices of three rows."""
    return (
        A[0][0] * (A[1][1] * A[2][2] - A[1][2] * A[2][1])
        - A[0][1] * (A[1][0] * A[2][2] - A[1][2] * A[2][0])
        + A[0][2] * (A[1][0] * A[2][1] - A[1][1] * A[2][0])
    )


def apply(A: Matrix, v: list[Array]) -> list[Array]:
    """``A v``."""
    return [sum((a * x for a, x in zip(row[1:], v[1:])), row[0] * v[0]) for row in A]


def _multiply(A: Matrix, B: Matrix) -> Matrix:
    columns = [apply(A, [row[k] for row in B]) for k in range(len(B))]
    return [[column[m] for column in columns] for m in range(len(B))]


def solve(xp: Any, A: Matrix, determinant: Array, v: list[Array]) -> list[Array]:
    """``A^{-1} v`` by cofactors. Singular matrices give large numbers (no weight), but never infinite ones."""
    inverse = 1.0 / xp.where(xp.abs(determinant) < 1e-70, 1e-70, determinant)
    if len(v) == 2:
        return [(A[1][1] * v[0] - A[0][1] * v[1]) * inverse, (A[0][0] * v[1] - A[1][0] * v[0]) * inverse]
    result = []
    for k in range(3):
        i, j = (k + 1) % 3, (k + 2) % 3
        # row k of the adjugate: cofactors of column k
        terms = [
            (A[(m + 1) % 3][i] * A[(m + 2) % 3][j] - A[(m + 1) % 3][j] * A[(m + 2) % 3][i]) * v[m] for m in range(3)
        ]
        result.append((terms[0] + terms[1] + terms[2]) * inverse)
    return result


def attention_product(xp: Any, w: Vectors, skip: float, layers: int) -> tuple[Matrix | None, Array | None]:
    """``B`` of the first ``layers`` layers and its determinant; both None for no layer."""
    B: Matrix | None = None
    determinant = None
    for layer in range(layers):
        h = w[layer] if B is None else apply(B, w[layer])
        A, factor = attention(xp, h, skip)
        B = A if B is None else _multiply(A, B)
        determinant = factor if determinant is None else determinant * factor
    return B, determinant


def combine(rows: np.ndarray[Any, Any], vectors: Vectors) -> Vectors:
    """``sum_k rows[l, k] vectors[k]`` for every l; terms whose coefficient is 0 cost nothing."""
    result = []
    for row in rows:
        terms = [(float(r), vector) for r, vector in zip(row, vectors) if r != 0.0]
        if not terms:
            result.append([0.0 * x for x in vectors[0]])
            continue
        (r, vector), *others = terms
        result.append([sum((s * v[m] for s, v in others), r * vector[m]) for m in range(len(vector))])
    return result


def squares(vectors: Vectors) -> Array:
    """Sum of the squares of all entries."""
    flat = [x for row in vectors for x in row]
    return sum((x * x for x in flat[1:]), flat[0] * flat[0])
