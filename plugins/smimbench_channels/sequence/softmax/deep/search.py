"""Where importance sampling puts its Gaussians: centres at points that did well, moved towards the maximum by
Gauss-Newton steps, with the curvature there.
"""

from __future__ import annotations

import math
from typing import Any

import array_api_compat
import numpy as np

from smimbench.backend import clip
from smimbench.interfaces import Array
from smimbench.numerics import uniform_points
from smimbench_channels.batches import array_like, identity_like
from smimbench_channels.sequence.softmax import network
from smimbench_channels.sequence.softmax.deep.integrand import Law, Points
from smimbench_channels.sequence.softmax.deep.proposal import Gaussians, Proposal
from smimbench_channels.sequence.softmax.deep.small_matrices import determinant_of, solve

__all__ = ["propose"]

CENTERS = 8
"""Gaussians of a sample. Doubled: a third more time, the same error unless a posterior has many modes."""
STEPS = 4
"""Gauss-Newton steps from a point that did well. Doubled: up to a third more time, the same error."""
LEAST_ODDS = 0.04
"""Smallest chance of each of the four branches. Doubled: the same error; it is for branches that the first look missed."""


def _choose_centers(xp: Any, law: Law, points: Points, log_weight: Array, seed: int) -> tuple[Array, Array, Array]:
    """Centers (n, K, d), their sign of u (n, K), and the odds of the branches, from points seen so far."""
    count = log_weight.shape[1]
    noise = -np.log(-np.log(uniform_points(1, count, "deep attention: choice", seed)[:, 0]))
    noise = array_like(noise, log_weight)
    # Drawn without replacement with the square roots of the weights as odds: bold, but not blind to small
    # modes.
    order = xp.argsort(-(0.5 * log_weight + noise), axis=1, stable=True)[:, :CENTERS]

    def pick(values: Array) -> Array:
        return xp.take_along_axis(values, order, axis=1)

    centers = xp.stack([pick(x) for row in points.xi for x in row], axis=-1)
    better = points.log_plus >= points.log_minus
    sign = 2.0 * pick(xp.astype(better, log_weight.dtype)) - 1.0
    odds = xp.full((log_weight.shape[0], 4), 0.25, dtype=log_weight.dtype, device=array_api_compat.device(log_weight))
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
        odds = LEAST_ODDS + (1.0 - 4.0 * LEAST_ODDS) * share / xp.sum(share, axis=1, keepdims=True)
    return centers, sign, odds


def _inverse(xp: Any, B: Array) -> Array:
    """Inverse of small matrices (..., M, M); near singular ones are pushed away (only for search)."""
    tokens = B.shape[-1]
    rows = [[B[..., m, k] for k in range(tokens)] for m in range(tokens)]
    if tokens == 2:
        determinant = rows[0][0] * rows[1][1] - rows[0][1] * rows[1][0]
    else:
        determinant = determinant_of(rows)
    determinant = xp.where(xp.abs(determinant) < 1e-9, 1e-9, determinant)
    zero, one = xp.zeros_like(determinant), xp.ones_like(determinant)
    basis = [[one if m == k else zero for m in range(tokens)] for k in range(tokens)]
    columns = [solve(xp, rows, determinant, column) for column in basis]
    return xp.stack([xp.stack(column, axis=-1) for column in columns], axis=-1)


def _posterior_curvature(
    xp: Any, law: Law, u: Array, omega: Array, centers: Array, sign: Array
) -> tuple[Array, Array, Array]:
    """Value, gradient and Gauss-Newton curvature of minus the log-posterior (less log det B)."""
    n, count, size = centers.shape
    before, tokens = law.layers - 1, law.tokens
    xi = xp.reshape(centers, (n, count, before, tokens))

    def mix(rows: np.ndarray[Any, Any], values: Array) -> Array:
        return xp.matmul(array_like(rows, values), values)

    dw = mix(law.root, xi)
    w = omega[:, None, :before, :] + dw
    inverse = _inverse(xp, network.attention_product(w, law.skip))
    target = sign[:, :, None] * u[:, None, :]
    last = xp.matmul(inverse, target[..., None])[..., 0]
    center = mix(law.slopes[None, :], dw)[..., 0, :]
    scale = 1.0 / math.sqrt(law.noise)
    residual = (last - omega[:, None, before, :] - center) * scale
    z = xp.concat([w, last[:, :, None, :]], axis=2)
    basis = identity_like(tokens, centers)
    # rows m: d u_m / d z, (n, K, M, L, M)
    slope = network.output_vjp(z[:, :, None, :, :] + 0.0 * basis[:, None, :], law.skip, basis)
    change = xp.reshape(slope[:, :, :, :before, :], (n, count, tokens, size))
    change = -xp.matmul(inverse, change)
    direct, root = (array_like(np.kron(m, np.eye(tokens)), centers) for m in (law.slopes[None, :], law.root))
    J = xp.matmul(change - direct, root) * scale
    gradient = centers + xp.matmul(xp.matrix_transpose(J), residual[..., None])[..., 0]
    square = xp.matmul(xp.matrix_transpose(J), J)
    # far from the label the square has entries beyond 1e16: keep it invertible
    ridge = 1.0 + 1e-12 * xp.linalg.trace(square)
    curvature = square + ridge[..., None, None] * identity_like(size, centers)
    value = 0.5 * xp.sum(centers * centers, axis=-1) + 0.5 * xp.sum(residual * residual, axis=-1)
    return value, gradient, curvature


def _approach_maximum(xp: Any, law: Law, u: Array, omega: Array, centers: Array, sign: Array) -> tuple[Array, Array]:
    """Centers after a few Gauss-Newton steps, shortened where they do not improve, and the curvature there."""
    value, gradient, curvature = _posterior_curvature(xp, law, u, omega, centers, sign)
    length = xp.ones_like(value)
    for _ in range(STEPS):
        step = xp.linalg.solve(curvature, gradient[..., None])[..., 0]
        trial = centers - length[..., None] * step
        trial_value, trial_gradient, trial_curvature = _posterior_curvature(xp, law, u, omega, trial, sign)
        better = trial_value < value
        value = xp.where(better, trial_value, value)
        centers = xp.where(better[..., None], trial, centers)
        gradient = xp.where(better[..., None], trial_gradient, gradient)
        curvature = xp.where(better[..., None, None], trial_curvature, curvature)
        length = xp.where(better, xp.minimum(2.0 * length, xp.ones_like(length)), 0.3 * length)
    return centers, curvature


def propose(xp: Any, law: Law, u: Array, omega: Array, points: Points, log_weight: Array, seed: int) -> Proposal:
    """The mixture of the next stage, from points and the logarithms of their weights."""
    # Where every weight is zero any center is as good as another.
    log_weight = xp.maximum(log_weight, -1e300 + 0.0 * points.log_total)
    centers, sign, odds = _choose_centers(xp, law, points, log_weight, seed)
    centers, curvature = _approach_maximum(xp, law, u, omega, centers, sign)
    factors = xp.linalg.cholesky(curvature)
    return Proposal(Gaussians(centers, factors, xp.linalg.inv(factors)), odds)
