"""A Gaussian that covers the posterior of each sample, found in a few tempered rounds of importance sampling."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from smimbench.backend.arrays import clip
from smimbench.derive.integration.samples import Fits, Gaussian, Samples, effective_count
from smimbench.numerics.line_integrals import IMPOSSIBLE
from smimbench.numerics.qmc import whitened_points
from smimbench.numerics.seeds import monte_carlo_rng

if TYPE_CHECKING:
    from types import ModuleType

    from smimbench.interfaces import Array

__all__ = ["posterior_fits", "prior_fits"]


def prior_fits(block: Samples) -> Fits:
    """The prior itself for every replicate."""
    xp, n, d = block.xp, block.n, block.d
    identity = xp.broadcast_to(xp.eye(d, dtype=xp.float64, device=block.device), (n, d, d))
    centre = xp.zeros((n, d), dtype=xp.float64, device=block.device)
    return (Gaussian(centre, identity, _random_axes(block)),) * block.accuracy.replicates


def posterior_fits(block: Samples) -> Fits:
    """For every replicate a Gaussian that covers the posterior of every sample, in whitened latents.

    Fit, move, repeat, with the weights raised to the power that keeps the fraction ``Accuracy.fitted`` of the points
    effective. Every replicate has a fit of its own: where one has missed something, the replicates disagree and the error
    says so.
    """
    count = 128 if block.d <= 3 else 512
    seeds = range(70, 70 + block.accuracy.replicates)
    return tuple(
        _adapt_fit(block, block.asarray(whitened_points(block.d, count, "likelihood: nodes", seed))) for seed in seeds
    )


def _adapt_fit(block: Samples, nodes: Array) -> Gaussian:
    xp, d, accuracy = block.xp, block.d, block.accuracy
    count = nodes.shape[0]
    identity = xp.eye(d, dtype=xp.float64, device=block.device)
    spread = xp.sum(nodes * nodes, axis=1)[None, :] / 2
    mean = xp.zeros((block.n, d), dtype=xp.float64, device=block.device)
    covariance = xp.broadcast_to(identity, (block.n, d, d))
    scale = xp.ones((block.n,), dtype=xp.float64, device=block.device)
    rows = xp.arange(block.n, device=block.device)
    finished: list[tuple[Array, Array, Array]] = []
    for step in range(accuracy.rounds + 1):
        factor = xp.linalg.cholesky(covariance)
        u = mean[:, None, :] + xp.matmul(xp.broadcast_to(nodes, (block.n, count, d)), xp.matrix_transpose(factor))
        weight = block.log_likelihood(u) - xp.sum(u * u, axis=-1) / 2 + spread
        done = effective_count(weight, xp) >= accuracy.fitted * count
        if step == accuracy.rounds:
            done = xp.ones_like(done)
        here, rest = xp.nonzero(done)[0], xp.nonzero(~done)[0]
        finished.append((xp.take(rows, here), xp.take(mean, here, axis=0), xp.take(covariance, here, axis=0)))
        if not rest.shape[0]:
            break
        block, rows, scale = block.take(rest), xp.take(rows, rest), xp.take(scale, rest)
        mean, covariance, u, weight = (xp.take(a, rest, axis=0) for a in (mean, covariance, u, weight))
        alive = xp.max(weight, axis=1) > 0.5 * IMPOSSIBLE
        centre, square = _tempered_fit(u, weight, mean, covariance, accuracy.fitted, xp)
        size = xp.linalg.trace(square)[:, None, None] / d
        square = accuracy.inflation * square + 1e-9 * size * identity
        # Nothing found: look further out.
        scale = xp.where(alive, scale, 2 * scale)
        covariance = xp.where(alive[:, None, None], square, (scale**2)[:, None, None] * identity)
        mean = xp.where(alive[:, None], centre, mean)
    order = xp.argsort(xp.concat([who for who, _, _ in finished]))
    mean, covariance = (xp.take(xp.concat([f[i] for f in finished]), order, axis=0) for i in (1, 2))
    factor = xp.linalg.cholesky(covariance)
    _, vectors = xp.linalg.eigh(covariance)
    # Two peaks that no single Gaussian can tell apart lie along its longest axis: draw the lines that way.
    axis = xp.linalg.solve(factor, vectors[:, :, -1:])[..., 0]
    return Gaussian(mean, factor, axis / xp.linalg.vector_norm(axis, axis=1, keepdims=True))


def _tempered_fit(
    u: Array, weight: Array, mean: Array, covariance: Array, fitted: float, xp: ModuleType
) -> tuple[Array, Array]:
    """Mean and covariance under the weights raised to the power at which the fraction ``fitted`` of the points are effective.

    While that power is below one the cloud is still on its way: its extent along the way is kept, or it would shrink
    before it arrives.
    """
    d = u.shape[-1]
    power = _tempering(weight, fitted * weight.shape[1], xp)
    p = xp.exp(clip(power[:, None] * (weight - xp.max(weight, axis=1, keepdims=True)), -700.0, 0.0))
    p = p * xp.astype(weight > 0.5 * IMPOSSIBLE, xp.float64) + 1e-300
    p = p / xp.sum(p, axis=1, keepdims=True)
    centre = xp.sum(p[..., None] * u, axis=1)
    away = u - centre[:, None, :]
    square = xp.matmul(xp.matrix_transpose(away * p[..., None]), away)
    way = centre - mean
    square = square + (1 - power)[:, None, None] * way[:, :, None] * way[:, None, :]
    # Few points determine no covariance: lean on the present one.
    few = clip((d + 2) * xp.sum(p * p, axis=1), 0.0, 1.0)[:, None, None]
    return centre, (1 - few) * square + few * covariance / 4


def _tempering(weight: Array, wanted: float, xp: ModuleType) -> Array:
    """Largest power in (0, 1] of the weights that keeps ``wanted`` points effective, or half of the possible ones."""
    possible = weight > 0.5 * IMPOSSIBLE
    # Impossible points stay impossible at any power.
    gap = xp.where(possible, weight - xp.max(weight, axis=1, keepdims=True), xp.full_like(weight, math.inf))
    goal = clip(xp.sum(xp.astype(possible, xp.float64), axis=1) / 2, 1.0, wanted)
    low = xp.full_like(goal, -50.0)
    high = xp.zeros_like(goal)
    exponent = high
    for _ in range(16):
        scaled = xp.where(possible, (2.0**exponent)[:, None] * gap, xp.full_like(gap, -700.0))
        enough = effective_count(scaled, xp) >= goal
        low, high = xp.where(enough, exponent, low), xp.where(enough, high, exponent)
        exponent = (low + high) / 2
    return 2.0**low


def _random_axes(block: Samples) -> Array:
    """A fixed direction for every sample: points that are reflected differently make independent errors."""
    rng = monte_carlo_rng("likelihood: block", block.d, block.start)
    axis = rng.standard_normal((block.n, block.d))
    return block.asarray(axis / np.linalg.norm(axis, axis=1, keepdims=True))
