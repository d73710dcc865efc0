"""Posterior of deep attention by importance sampling with quasi-random points.

After ``z_L = +- B^{-1} u`` an integral over the other layers ``w = (z_1 .. z_{L-1})`` is left, in M (L - 1)
dimensions. Where ``V`` is small it lives on a thin curved set, so points come from a mixture of proposals,
each of which is right in some corner of the (V_11 .. V_LL) space, and every point is weighted with the
density of the whole mixture (which bounds the weights by what the best proposal would give):

* the prior of ``w``;
* for two tokens, the prior of ``(z_1 .. z_{L-2}, z_L)``: the label then fixes ``z_{L-1}`` in closed form.
  With ``v = B_{L-2} z_L`` and ``A(h) v = +- u`` the entries of A are ratios, which give ``h`` up to its sign;
* Gaussians around points that did well before, moved towards the maximum by Gauss-Newton steps.

Points are drawn in independent scrambles. Errors come from the spread of the scrambles, not below what the
effective number of points allows. The scheme is derived, checked by
tests/channels/sequence/test_softmax_deep.py.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import array_api_compat
import numpy as np

from smimbench.backend import clip, namespace
from smimbench.interfaces import Array
from smimbench.numerics.linalg import is_diagonal
from smimbench.numerics.masked import put_at_mask, spread_at_mask
from smimbench.numerics.qmc import normal_points, uniform_points
from smimbench_channels.sequence.softmax import network as deep
from smimbench_channels.sequence.softmax.moments import Moments

__all__ = ["integrate"]

SCRAMBLES = 8
_CENTERS = 8
_STEPS = 4
_SPREAD = 1.3
_PILOT = 128
_POOR = 40.0
_EXTRA_STAGES = 2
_WITHIN_REACH = 1e-3
_ELEMENTS = 1 << 15


class _Law(NamedTuple):
    """Constants of the Gaussian law ``N(omega, V (x) I)`` on the host."""

    layers: int
    tokens: int
    skip: float
    root: np.ndarray[Any, Any]  # V of the layers before the last = root root^T
    slopes: np.ndarray[Any, Any]  # E[dz_L | dw] = sum_l slopes_l dw_l
    noise: float  # conditional variance of z_L
    other_root: np.ndarray[Any, Any]  # root of V with layer L - 1 left out
    precision: np.ndarray[Any, Any]  # V^{-1}


def _law(V: np.ndarray[Any, Any], tokens: int, skip: float) -> _Law:
    layers = V.shape[0]
    before = list(range(layers - 1))
    rest = [*range(layers - 2), layers - 1]
    inner, mixed = V[np.ix_(before, before)], V[before, layers - 1]
    slopes = np.linalg.solve(inner, mixed)
    noise = float(V[-1, -1] - slopes @ mixed)
    diagonal = is_diagonal(V)
    precision = np.diag(1.0 / np.diagonal(V)) if diagonal else np.linalg.inv(V)
    return _Law(
        layers,
        tokens,
        skip,
        np.linalg.cholesky(inner),
        slopes,
        noise,
        np.linalg.cholesky(V[np.ix_(rest, rest)]),
        precision,
    )


# Points of many samples are kept as nested lists [layer][token] of arrays (samples, points): small matrices
# written out in components are an order of magnitude faster than stacks of them.
Vectors = list[list[Array]]
Matrix = list[list[Array]]


def _attention(xp: Any, v: list[Array], skip: float) -> tuple[Matrix, Array]:
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
    return rows, _determinant(rows)


def _determinant(A: Matrix) -> Array:
    return (
        A[0][0] * (A[1][1] * A[2][2] - A[1][2] * A[2][1])
        - A[0][1] * (A[1][0] * A[2][2] - A[1][2] * A[2][0])
        + A[0][2] * (A[1][0] * A[2][1] - A[1][1] * A[2][0])
    )


def _apply(A: Matrix, v: list[Array]) -> list[Array]:
    return [sum((a * x for a, x in zip(row[1:], v[1:])), row[0] * v[0]) for row in A]


def _multiply(A: Matrix, B: Matrix) -> Matrix:
    columns = [_apply(A, [row[k] for row in B]) for k in range(len(B))]
    return [[column[m] for column in columns] for m in range(len(B))]


def _solve(xp: Any, A: Matrix, determinant: Array, v: list[Array]) -> list[Array]:
    """``A^{-1} v`` by cofactors. Singular matrices give large numbers (no weight), but never infinite ones."""
    inverse = 1.0 / xp.where(xp.abs(determinant) < 1e-70, 1e-70, determinant)
    if len(v) == 2:
        return [(A[1][1] * v[0] - A[0][1] * v[1]) * inverse, (A[0][0] * v[1] - A[1][0] * v[0]) * inverse]
    result = []
    for k in range(3):
        i, j = (k + 1) % 3, (k + 2) % 3
        # row k of the adjugate: cofactors of column k
        terms = [
            (A[(m + 1) % 3][i] * A[(m + 2) % 3][j] - A[(m + 1) % 3][j] * A[(m + 2) % 3][i]) * v[m]
            for m in range(3)
        ]
        result.append((terms[0] + terms[1] + terms[2]) * inverse)
    return result


def _chain(xp: Any, w: Vectors, skip: float, layers: int) -> tuple[Matrix | None, Array | None]:
    """``B`` of the first ``layers`` layers and its determinant; None for no layer."""
    B: Matrix | None = None
    determinant = None
    for layer in range(layers):
        h = w[layer] if B is None else _apply(B, w[layer])
        A, factor = _attention(xp, h, skip)
        B = A if B is None else _multiply(A, B)
        determinant = factor if determinant is None else determinant * factor
    return B, determinant


class _Points(NamedTuple):
    """Points (samples, points) with what weights and moments need."""

    xi: Vectors
    dw: Vectors
    last: list[Array]  # z_L at the sign + of u
    log_plus: Array
    log_minus: Array
    log_total: Array
    jacobian: Array  # log |d z_L / d z_{L-1}| at fixed u, two tokens only
    side: Array  # sign of h_1 - h_2 of the layer before the last, two tokens only


def _combine(rows: np.ndarray[Any, Any], vectors: Vectors) -> Vectors:
    """``sum_k rows[l, k] vectors[k]`` for every l, skipping zeros."""
    result = []
    for row in rows:
        terms = [(float(r), vector) for r, vector in zip(row, vectors) if r != 0.0]
        if not terms:
            result.append([0.0 * x for x in vectors[0]])
            continue
        (r, vector), *others = terms
        result.append([sum((s * v[m] for s, v in others), r * vector[m]) for m in range(len(vector))])
    return result


def _squares(vectors: Vectors) -> Array:
    flat = [x for row in vectors for x in row]
    return sum((x * x for x in flat[1:]), flat[0] * flat[0])


def _evaluate(xp: Any, law: _Law, u: list[Array], omega: Vectors, xi: Vectors) -> _Points:
    """The integrand at whitened points ``xi`` [layer][token], for both signs of u, in logarithms."""
    before, skip = law.layers - 1, law.skip
    dw = _combine(law.root, xi)
    w = [[o + x for o, x in zip(mean, shift)] for mean, shift in zip(omega, dw)]
    B, determinant = _chain(xp, w, skip, before - 1)
    h = w[-1] if B is None else _apply(B, w[-1])
    A, factor = _attention(xp, h, skip)
    inner = _solve(xp, A, factor, u)
    last = inner if B is None else _solve(xp, B, determinant, inner)
    determinant = factor if determinant is None else determinant * factor
    center = _combine(law.slopes[None, :], dw)[0]
    energy = 0.5 * _squares(xi)
    logs = []
    for sign in (1.0, -1.0):
        residual = [sign * z - o - x for z, o, x in zip(last, omega[before], center)]
        logs.append(-energy - (0.5 / law.noise) * _squares([residual]))
    size = xp.log(xp.maximum(xp.abs(determinant), 1e-300 + 0.0 * determinant))
    log_plus, log_minus = logs[0] - size, logs[1] - size
    total = xp.maximum(log_plus, log_minus) + xp.log1p(xp.exp(-xp.abs(log_plus - log_minus)))
    jacobian, side = size, size
    if law.tokens == 2:
        side = h[0] - h[1]
        # |det d(A^{-1} u)/dh| = 2 d^2 p (1-p) q (1-q) (v_1 - v_2)^2 / det A,  v = A^{-1} u
        gap = inner[0] - inner[1]
        product = (A[0][0] - skip) * A[0][1] * (A[1][1] - skip) * A[1][0] * (side * gap) ** 2 * 2.0
        tiny = 1e-300 + 0.0 * product
        jacobian = xp.log(xp.maximum(product, tiny)) - xp.log(xp.maximum(xp.abs(factor), tiny))
    return _Points(xi, dw, last, log_plus, log_minus, total, jacobian, side)


class _Proposal(NamedTuple):
    """The mixture of one stage: Gaussians ``center + _SPREAD factor^{-T} x``, odds of the four branches."""

    centers: Array | None  # (n, K, d)
    factors: Array | None  # (n, K, d, d) lower Cholesky factors of the curvature
    inverses: Array | None
    odds: Array | None  # (n, 4): signs (u, side) = (+,+), (+,-), (-,+), (-,-)


def _unflatten(law: _Law, columns: list[Array]) -> Vectors:
    return [columns[k * law.tokens : (k + 1) * law.tokens] for k in range(law.layers - 1)]


def _log_gaussians(xp: Any, law: _Law, proposal: _Proposal, xi: Vectors) -> list[Array]:
    """Log-densities of the Gaussian components, relative to that of the standard normal law at 0."""
    flat = [x for row in xi for x in row]
    size = len(flat)
    shrink = 1.0 / _SPREAD
    logs = []
    for k in range(proposal.centers.shape[1]):
        center, factor = proposal.centers[:, k, :], proposal.factors[:, k, :, :]
        difference = [flat[j] - center[:, j][:, None] for j in range(size)]
        energy = None
        scale = None
        for i in range(size):
            y = factor[:, i, i][:, None] * difference[i]
            for j in range(i + 1, size):
                y = y + factor[:, j, i][:, None] * difference[j]
            energy = y * y if energy is None else energy + y * y
            log_diagonal = xp.log(factor[:, i, i])
            scale = log_diagonal if scale is None else scale + log_diagonal
        logs.append((-0.5 * shrink * shrink) * energy + (scale + size * math.log(shrink))[:, None])
    return logs


def _log_branches(xp: Any, law: _Law, odds: Array, omega: Vectors, points: _Points) -> Array:
    """Log-density of the proposal that solves for ``z_{L-1}``, relative to the standard normal law at 0."""
    inverse = np.linalg.inv(law.other_root)
    constant = law.tokens * float(
        np.log(np.diagonal(law.root)).sum() - np.log(np.diagonal(law.other_root)).sum()
    )
    right = points.side >= 0.0
    logs = []
    for row, sign in enumerate((1.0, -1.0)):
        rest = [*points.dw[:-1], [sign * z - o for z, o in zip(points.last, omega[-1])]]
        chance = xp.where(right, odds[:, 2 * row][:, None], odds[:, 2 * row + 1][:, None])
        logs.append(-0.5 * _squares(_combine(inverse, rest)) + xp.log(chance))
    top = xp.maximum(logs[0], logs[1])
    return top + xp.log1p(xp.exp(-xp.abs(logs[0] - logs[1]))) + points.jacobian + constant


def _branch_points(
    xp: Any, law: _Law, u: list[Array], omega: Vectors, odds: Array, normal: Vectors, uniform: Array
) -> tuple[Vectors, Array]:
    """Whitened points from the prior of all layers but ``z_{L-1}``, which the label fixes; which exist."""
    skip = law.skip
    shift = _combine(law.other_root, normal)
    rest = [[o + x for o, x in zip(mean, row)] for mean, row in zip([*omega[:-2], omega[-1]], shift)]
    B, determinant = _chain(xp, rest, skip, law.layers - 2)
    v = rest[-1] if B is None else _apply(B, rest[-1])
    total = [odds[:, k][:, None] for k in range(3)]
    total[1] = total[0] + total[1]
    total[2] = total[1] + total[2]
    one = xp.ones_like(v[0])
    sign = xp.where(uniform < total[1], one, -one)
    side = xp.where((uniform < total[0]) | ((uniform >= total[1]) & (uniform < total[2])), one, -one)
    gap = v[0] - v[1]
    gap = xp.where(xp.abs(gap) < 1e-150, 1e-150, gap)
    stay = [(sign * u[m] - skip * v[m] - v[1 - m]) / gap for m in range(2)]
    leave = [((1.0 + skip) * v[m] - sign * u[m]) / gap for m in range(2)]
    p, p_, q, q_ = stay[0], leave[0], -stay[1], -leave[1]
    exists = (p > 0.0) & (p_ > 0.0) & (q > 0.0) & (q_ > 0.0)
    p, p_, q, q_ = (xp.where(exists, x, 0.5) for x in (p, p_, q, q_))
    s, t = xp.log(p) - xp.log(p_), xp.log(q) - xp.log(q_)
    squared = s + t
    exists = exists & (squared > 0.0)
    d = side * xp.sqrt(xp.where(exists, squared, 1.0))
    h = [s / d, -t / d]
    z = h if B is None else _solve(xp, B, determinant, h)
    before = [x - o for x, o in zip(z, omega[-2])]
    xi = _combine(np.linalg.inv(law.root), [*shift[:-1], before])
    return [[xp.where(exists, x, 0.0) for x in row] for row in xi], exists


def _draw(
    xp: Any,
    law: _Law,
    u: list[Array],
    omega: Vectors,
    proposal: _Proposal,
    sizes: tuple[int, int, int],
    seed: int,
) -> tuple[_Points, Array]:
    """One scramble of the mixture; points and the logarithms of their weights."""
    like = u[0]
    n, device = like.shape[0], array_api_compat.device(like)
    before, tokens = law.layers - 1, law.tokens
    size = before * tokens

    def move(columns: np.ndarray[Any, Any]) -> list[Array]:
        nodes = xp.asarray(np.ascontiguousarray(columns.T), dtype=like.dtype, device=device)
        return [xp.broadcast_to(nodes[k, :][None, :], (n, nodes.shape[1])) for k in range(nodes.shape[0])]

    by_prior, by_branch, by_gaussian = sizes
    everything = sum(sizes)
    parts, masks = [], []
    if by_prior:
        parts.append(_unflatten(law, move(normal_points(size, by_prior, "deep attention: prior", seed))))
        masks.append(xp.ones((n, by_prior), dtype=xp.bool, device=device))
    if by_branch:
        points = uniform_points(size + 1, by_branch, "deep attention: branch", seed)
        uniform = move(points[:, :1])[0]
        normal = _unflatten(law, move(_to_normal(points[:, 1:])))
        xi, exists = _branch_points(xp, law, u, omega, proposal.odds, normal, uniform)
        parts.append(xi)
        masks.append(exists)
    if by_gaussian:
        count = proposal.centers.shape[1]
        each = by_gaussian // count
        normal = move(normal_points(size, by_gaussian, "deep attention: Gaussians", seed))
        for k in range(count):
            own = [x[:, k * each : (k + 1) * each] for x in normal]
            columns = []
            for i in range(size):
                x = proposal.centers[:, k, i][:, None] + 0.0 * own[i]
                for j in range(i, size):
                    # xi = center + spread * factor^{-T} x
                    x = x + _SPREAD * proposal.inverses[:, k, j, i][:, None] * own[j]
                columns.append(x)
            parts.append(_unflatten(law, columns))
            masks.append(xp.ones((n, each), dtype=xp.bool, device=device))
    xi = [[xp.concat([part[a][m] for part in parts], axis=1) for m in range(tokens)] for a in range(before)]
    exists = xp.concat(masks, axis=1)
    points = _evaluate(xp, law, u, omega, xi)
    logs = [(by_prior, -0.5 * _squares(xi))]
    if by_branch:
        logs.append((by_branch, _log_branches(xp, law, proposal.odds, omega, points)))
    if by_gaussian:
        each = by_gaussian // proposal.centers.shape[1]
        logs += [(each, log) for log in _log_gaussians(xp, law, proposal, xi)]
    logs = [log + math.log(share / everything) for share, log in logs if share]
    top = logs[0]
    for log in logs[1:]:
        top = xp.maximum(top, log)
    density = top + xp.log(sum((xp.exp(log - top) for log in logs[1:]), xp.exp(logs[0] - top)))
    return points, xp.where(exists, points.log_total - density, -math.inf)


def _to_normal(points: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    from scipy.special import ndtri

    return np.asarray(ndtri(points))


# -- where to look


def _choose(xp: Any, law: _Law, points: _Points, log_weight: Array, seed: int) -> tuple[Array, Array, Array]:
    """Centers (n, K, d), their sign of u (n, K), and the odds of the branches, from points seen so far."""
    device = array_api_compat.device(log_weight)
    count = log_weight.shape[1]
    noise = -np.log(-np.log(uniform_points(1, count, "deep attention: choice", seed)[:, 0]))
    noise = xp.asarray(noise, dtype=log_weight.dtype, device=device)
    # Drawn without replacement with the square roots of the weights as odds: bold, but not blind to small
    # modes.
    order = xp.argsort(-(0.5 * log_weight + noise), axis=1, stable=True)[:, :_CENTERS]

    def pick(values: Array) -> Array:
        return xp.take_along_axis(values, order, axis=1)

    centers = xp.stack([pick(x) for row in points.xi for x in row], axis=-1)
    better = points.log_plus >= points.log_minus
    sign = 2.0 * pick(xp.astype(better, log_weight.dtype)) - 1.0
    odds = None
    if law.tokens == 2:
        top = xp.max(log_weight, axis=1, keepdims=True)
        weight = xp.exp(0.5 * (log_weight - top))
        right = points.side >= 0.0
        plus = 1.0 / (1.0 + xp.exp(clip(points.log_minus - points.log_plus, -300.0, 300.0)))
        share = xp.stack(
            [
                xp.sum(xp.where(keep, weight * chance, 0.0), axis=1)
                for chance in (plus, 1.0 - plus)
                for keep in (right, ~right)
            ],
            axis=1,
        )
        odds = 0.04 + 0.84 * share / xp.sum(share, axis=1, keepdims=True)
    return centers, sign, odds


def _inverse(xp: Any, B: Array) -> Array:
    """Inverse of small matrices (..., M, M); near singular ones are pushed away (only for search)."""
    tokens = B.shape[-1]
    rows = [[B[..., m, k] for k in range(tokens)] for m in range(tokens)]
    if tokens == 2:
        determinant = rows[0][0] * rows[1][1] - rows[0][1] * rows[1][0]
    else:
        determinant = _determinant(rows)
    determinant = xp.where(xp.abs(determinant) < 1e-9, 1e-9, determinant)
    zero, one = xp.zeros_like(determinant), xp.ones_like(determinant)
    basis = [[one if m == k else zero for m in range(tokens)] for k in range(tokens)]
    columns = [_solve(xp, rows, determinant, column) for column in basis]
    return xp.stack([xp.stack(column, axis=-1) for column in columns], axis=-1)


def _curvature(
    xp: Any, law: _Law, u: Array, omega: Array, centers: Array, sign: Array
) -> tuple[Array, Array, Array]:
    """Value, gradient and Gauss-Newton curvature of minus the log-posterior (less log det B)."""
    n, count, size = centers.shape
    before, tokens = law.layers - 1, law.tokens
    xi = xp.reshape(centers, (n, count, before, tokens))

    def mix(rows: np.ndarray[Any, Any], values: Array) -> Array:
        matrix = xp.asarray(rows, dtype=values.dtype, device=array_api_compat.device(values))
        return xp.matmul(matrix, values)

    dw = mix(law.root, xi)
    w = omega[:, None, :before, :] + dw
    inverse = _inverse(xp, deep.attention_product(w, law.skip))
    target = sign[:, :, None] * u[:, None, :]
    last = xp.matmul(inverse, target[..., None])[..., 0]
    center = mix(law.slopes[None, :], dw)[..., 0, :]
    scale = 1.0 / math.sqrt(law.noise)
    residual = (last - omega[:, None, before, :] - center) * scale
    z = xp.concat([w, last[:, :, None, :]], axis=2)
    device = array_api_compat.device(centers)
    basis = xp.eye(tokens, dtype=centers.dtype, device=device)
    # rows m: d u_m / d z, (n, K, M, L, M)
    slope = deep.output_vjp(z[:, :, None, :, :] + 0.0 * basis[:, None, :], law.skip, basis)
    change = xp.reshape(slope[:, :, :, :before, :], (n, count, tokens, size))
    change = -xp.matmul(inverse, change)
    direct = xp.asarray(np.kron(law.slopes[None, :], np.eye(tokens)), dtype=centers.dtype, device=device)
    root = xp.asarray(np.kron(law.root, np.eye(tokens)), dtype=centers.dtype, device=device)
    J = xp.matmul(change - direct, root) * scale
    gradient = centers + xp.matmul(xp.matrix_transpose(J), residual[..., None])[..., 0]
    identity = xp.eye(size, dtype=centers.dtype, device=device)
    square = xp.matmul(xp.matrix_transpose(J), J)
    # far from the label the square has entries beyond 1e16: keep it invertible
    ridge = 1.0 + 1e-12 * xp.linalg.trace(square)
    curvature = square + ridge[..., None, None] * identity
    value = 0.5 * xp.sum(centers * centers, axis=-1) + 0.5 * xp.sum(residual * residual, axis=-1)
    return value, gradient, curvature


def _approach(xp: Any, law: _Law, u: Array, omega: Array, centers: Array, sign: Array) -> Array:
    """A few Gauss-Newton steps, each taken only where it improves and halved where it does not."""
    value, gradient, curvature = _curvature(xp, law, u, omega, centers, sign)
    length = xp.ones_like(value)
    for _ in range(_STEPS):
        step = xp.linalg.solve(curvature, gradient[..., None])[..., 0]
        trial = centers - length[..., None] * step
        trial_value, trial_gradient, trial_curvature = _curvature(xp, law, u, omega, trial, sign)
        better = trial_value < value
        value = xp.where(better, trial_value, value)
        centers = xp.where(better[..., None], trial, centers)
        gradient = xp.where(better[..., None], trial_gradient, gradient)
        curvature = xp.where(better[..., None, None], trial_curvature, curvature)
        length = xp.where(better, xp.minimum(2.0 * length, xp.ones_like(length)), 0.3 * length)
    return centers, curvature


def _propose(
    xp: Any, law: _Law, u: Array, omega: Array, points: _Points, log_weight: Array, seed: int
) -> _Proposal:
    # Where every weight is zero any center is as good as another.
    log_weight = xp.maximum(log_weight, -1e300 + 0.0 * points.log_total)
    centers, sign, odds = _choose(xp, law, points, log_weight, seed)
    centers, curvature = _approach(xp, law, u, omega, centers, sign)
    factors = xp.linalg.cholesky(curvature)
    return _Proposal(centers, factors, xp.linalg.inv(factors), odds)


# -- sums


def _sign_odds(
    xp: Any, law: _Law, omega: Vectors, z: Vectors
) -> tuple[list[Array], dict[tuple[int, int], Array]]:
    """Given z up to a sign of each layer: posterior odds that layers have the other sign, alone and in pairs.

    A label does not change with these signs, so only the Gaussian law tells them apart, and they are summed
    out exactly.
    """
    layers, tokens = range(law.layers), range(law.tokens)
    precision = law.precision
    field = [
        sum(
            float(precision[a, b]) * omega[b][m] * z[a][m]
            for m in tokens
            for b in layers
            if precision[a, b] != 0.0
        )
        for a in layers
    ]
    coupled = [(a, b) for a in layers for b in layers if a < b and precision[a, b] != 0.0]
    if not coupled:
        odds = [1.0 / (1.0 + xp.exp(clip(2.0 * k, -300.0, 300.0))) for k in field]
        return odds, {(a, b): odds[a] * odds[b] for a in layers for b in layers if a < b}
    coupling = {
        (a, b): sum((z[a][m] * z[b][m] for m in tokens[1:]), z[a][0] * z[b][0]) * float(precision[a, b])
        for a, b in coupled
    }
    patterns = []
    top = 0.0 * field[0]
    for code in range(1, 1 << law.layers):
        flipped = [a for a in layers if code >> a & 1]
        gain = sum((-2.0 * field[a] for a in flipped[1:]), -2.0 * field[flipped[0]])
        for pair in coupled:
            if (pair[0] in flipped) != (pair[1] in flipped):
                gain = gain + 2.0 * coupling[pair]
        patterns.append((flipped, gain))
        top = xp.maximum(top, gain)
    weights = [(flipped, xp.exp(xp.maximum(gain - top, -300.0 + 0.0 * top))) for flipped, gain in patterns]
    scale = 1.0 / sum((weight for _, weight in weights), xp.exp(xp.maximum(-top, -300.0 + 0.0 * top)))

    def share(*members: int) -> Array:
        chosen = [weight for flipped, weight in weights if all(a in flipped for a in members)]
        return scale * sum(chosen[1:], chosen[0])

    return [share(a) for a in layers], {(a, b): share(a, b) for a in layers for b in layers if a < b}


def _weighted_sums(xp: Any, law: _Law, omega: Vectors, points: _Points, weight: Array, full: bool) -> Array:
    """Sums (moments, n) over points: weight, shift, then traces or the triangle of the second moment."""
    layers, tokens = law.layers, law.tokens
    dz = [*points.dw, [z - o for z, o in zip(points.last, omega[-1])]]
    z = [[x + o for x, o in zip(row, mean)] for row, mean in zip(dz, omega)]
    alone, pairs = _sign_odds(xp, law, omega, z)
    # s z - omega = dz - (1 - s) z keeps its digits where s is almost surely 1
    moments = [weight]
    moments += [weight * (dz[a][m] - 2.0 * alone[a] * z[a][m]) for a in range(layers) for m in range(tokens)]

    def product(a: int, i: int, b: int, j: int) -> Array:
        both = alone[a] if a == b else pairs[min(a, b), max(a, b)]
        return (
            dz[a][i] * dz[b][j]
            - 2.0 * (alone[a] * z[a][i] * dz[b][j] + alone[b] * dz[a][i] * z[b][j])
            + 4.0 * both * z[a][i] * z[b][j]
        )

    if full:
        entries = [(a, m) for a in range(layers) for m in range(tokens)]
        moments += [weight * product(*one, *two) for k, one in enumerate(entries) for two in entries[k:]]
    else:
        for a in range(layers):
            for b in range(a, layers):
                terms = [product(a, m, b, m) for m in range(tokens)]
                moments.append(weight * sum(terms[1:], terms[0]))
    return xp.stack([xp.sum(moment, axis=1) for moment in moments])


class _Result(NamedTuple):
    """Sums (scrambles, moments, n) relative to ``exp(level)``, and the effective number of points."""

    sums: Array
    level: Array
    effective: Array


def _run(
    xp: Any,
    law: _Law,
    u: list[Array],
    omega: Vectors,
    proposal: _Proposal,
    sizes: tuple[int, int, int],
    seed: int,
    full: bool,
) -> _Result:
    level, parts, squares = None, [], None
    for scramble in range(SCRAMBLES):
        points, log_weight = _draw(xp, law, u, omega, proposal, sizes, seed + scramble)
        top = xp.max(log_weight, axis=1)
        top = xp.where(top > -math.inf, top, -1e300)
        if level is None or squares is None:
            level, squares = top, xp.zeros_like(top)
        higher = xp.maximum(level, top)
        fade = xp.exp(xp.maximum(level - higher, -700.0 + 0.0 * level))
        parts = [part * fade for part in parts]
        squares, level = squares * fade * fade, higher
        weight = xp.exp(xp.maximum(log_weight - level[:, None], -745.0 + 0.0 * points.log_total))
        weight = xp.where(log_weight > -math.inf, weight, 0.0)
        squares = squares + xp.sum(weight * weight, axis=1)
        parts.append(_weighted_sums(xp, law, omega, points, weight, full) / sum(sizes))
    sums = xp.stack(parts)
    mass = xp.sum(sums[:, 0, :], axis=0) * sum(sizes)
    effective = mass * mass / xp.where(squares > 0.0, squares, 1.0)
    return _Result(sums, level, effective)


def _ratios(xp: Any, sums: Array, trusted: Array) -> tuple[Array, Array]:
    """Ratios (moments - 1, n) of the scrambles' sums and their variance; less their bias where ``trusted``."""
    count = sums.shape[0]
    mass = xp.mean(sums[:, 0, :], axis=0)
    safe = xp.where(mass > 0.0, mass, 1.0)
    means = xp.mean(sums[:, 1:, :], axis=0) / safe
    share = sums[:, :1, :] / safe
    deviation = sums[:, 1:, :] / safe - means * share
    scale = 1.0 / (count * (count - 1.0))
    bias = scale * xp.sum(deviation * (share - 1.0), axis=0)
    return means + xp.where(trusted, bias, 0.0), scale * xp.sum(deviation * deviation, axis=0)


def _finish(xp: Any, law: _Law, V: np.ndarray[Any, Any], result: _Result, full: bool) -> Moments:
    layers, tokens = law.layers, law.tokens
    size = layers * tokens
    sums = result.sums
    mass = xp.mean(sums[:, 0, :], axis=0)
    found = mass > 0.0
    means, spread = _ratios(xp, sums, result.effective > _POOR)
    variance = np.repeat(np.diagonal(V), tokens)
    variance = xp.asarray(variance, dtype=mass.dtype, device=array_api_compat.device(mass))
    # The bias of a ratio of means is about one over the effective number of points.
    effective = xp.where(result.effective > 0.0, result.effective, 1.0)
    error = xp.sqrt(xp.mean(spread[:size, :] / variance[:, None], axis=0) + 1.0 / (effective * effective))
    constant = 0.5 * tokens * math.log(2.0 * math.pi * law.noise)
    log_partition = xp.where(found, xp.log(xp.where(found, mass, 1.0)) + result.level - constant, -math.inf)

    shift = xp.reshape(xp.permute_dims(means[:size, :], (1, 0)), (-1, layers, tokens))
    rank = size if full else layers
    place = {}
    for i in range(rank):
        for j in range(i, rank):
            place[i, j] = place[j, i] = size + len({tuple(sorted(key)) for key in place})
    second = xp.stack(
        [xp.stack([means[place[i, j], :] for i in range(rank)], axis=-1) for j in range(rank)], axis=-1
    )
    return Moments(log_partition, shift, second, xp.where(found, error, math.inf))


def _sizes(law: _Law, points: int) -> tuple[int, int, int]:
    """Points of a scramble: from the prior, with the layer before the last solved for, around centers."""
    each = max(32, 1 << ((points // SCRAMBLES).bit_length() - 1))
    return (each // 4, each // 4, each // 2) if law.tokens == 2 else (each // 2, 0, each // 2)


def integrate(
    u: Array,
    omega: Array,
    V: np.ndarray[Any, Any],
    skip: float,
    accuracy: float,
    points: int,
    full: bool = False,
    seed: int = 0,
) -> Moments:
    """Posterior moments and partition function for any number of layers, and two or three tokens.

    Parameters
    ----------
    u : array (n, M), float64
        Outputs, up to sign.
    omega : array (n, L, M), float64
        Means, L >= 2.
    V : ndarray (L, L)
        Positive definite, on the host.
    skip : float
        c >= 0.
    accuracy : float
        Samples whose error is smaller after an eighth of the points are left at that.
    points : int
        Points per sample, over all scrambles; rounded down to a power of 2.
    full : bool
        Return the whole second moment instead of its traces over tokens.
    seed : int
        Different seeds give independent results.

    Returns
    -------
    Moments
        ``error`` is a standard error over ``SCRAMBLES`` scrambles, with a floor of one over the effective
        number of points.
    """
    xp = namespace(u, omega)
    n, tokens = u.shape
    law = _law(V, tokens, skip)
    sizes = [_sizes(law, points)]
    if accuracy >= _WITHIN_REACH:
        sizes.insert(0, _sizes(law, points // 8))
    host = isinstance(u, np.ndarray)
    block = max(1, (_ELEMENTS if host else 1 << 22) // sum(sizes[-1]))
    parts = []
    for start in range(0, n, block):
        rows = slice(start, min(start + block, n))
        parts.append(
            _integrate_block(xp, law, V, u[rows, ...], omega[rows, ...], accuracy, sizes, full, seed)
        )
    return parts[0] if len(parts) == 1 else Moments(*(xp.concat(values) for values in zip(*parts)))


def _components(law: _Law, u: Array, omega: Array) -> tuple[list[Array], Vectors]:
    tokens = range(law.tokens)
    return (
        [u[:, m][:, None] for m in tokens],
        [[omega[:, layer, m][:, None] for m in tokens] for layer in range(law.layers)],
    )


def _integrate_block(
    xp: Any,
    law: _Law,
    V: np.ndarray[Any, Any],
    u: Array,
    omega: Array,
    accuracy: float,
    sizes: list[tuple[int, int, int]],
    full: bool,
    seed: int,
) -> Moments:
    outputs, means = _components(law, u, omega)
    odds = xp.full((u.shape[0], 4), 0.25, dtype=u.dtype, device=array_api_compat.device(u))
    blind = _Proposal(None, None, None, odds)
    pilot = (_PILOT, _PILOT, 0) if law.tokens == 2 else (2 * _PILOT, 0, 0)
    points, log_weight = _draw(xp, law, outputs, means, blind, pilot, seed)
    proposal = _propose(xp, law, u, omega, points, log_weight, seed)
    result = _run(xp, law, outputs, means, proposal, sizes[0], seed + 100, full)
    moments, effective = _finish(xp, law, V, result, full), result.effective
    # Then with all points where accuracy asks for it, and again from what the mixture found where few
    # points count.
    for stage in range(len(sizes) - 1 + _EXTRA_STAGES):
        growing = stage < len(sizes) - 1
        chosen = moments.error > accuracy if growing else effective < _POOR
        index = xp.nonzero(chosen)[0]
        if index.shape[0] == 0:
            continue
        part_u, part_omega = xp.take(u, index, axis=0), xp.take(omega, index, axis=0)
        outputs, means = _components(law, part_u, part_omega)
        local = _Proposal(*(None if x is None else xp.take(x, index, axis=0) for x in proposal))
        if not growing:
            points, log_weight = _draw(xp, law, outputs, means, local, sizes[-1], seed + 20 + stage)
            local = _propose(xp, law, part_u, part_omega, points, log_weight, seed)
        result = _run(xp, law, outputs, means, local, sizes[-1], seed + 200 + 100 * stage, full)
        better = result.effective > xp.take(effective, index, axis=0)
        change = chosen & spread_at_mask(better, chosen)
        again = _finish(xp, law, V, result, full)
        moments = Moments(*(_replaced(xp, old, new, chosen, change) for old, new in zip(moments, again)))
        effective = _replaced(xp, effective, result.effective, chosen, change)
        proposal = _Proposal(
            *(None if old is None else put_at_mask(old, chosen, new) for old, new in zip(proposal, local))
        )
    return moments


def _replaced(xp: Any, old: Array, new: Array, mask: Array, change: Array) -> Array:
    """Rows of ``old`` where ``change``, from ``new`` whose rows stand for those of ``mask``."""
    return xp.where(xp.reshape(change, (-1, *[1] * (old.ndim - 1))), spread_at_mask(new, mask), old)
