"""Samples with their labels, in whitened latents ``z = omega + V^{1/2} u``, and Gaussians that cover their posteriors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import array_api_compat
import numpy as np

from smimbench.backend.arrays import clip, namespace
from smimbench.numerics.line_integrals import IMPOSSIBLE
from smimbench.numerics.qmc import whitened_points
from smimbench.numerics.seeds import monte_carlo_rng

if TYPE_CHECKING:
    from types import ModuleType

    from smimbench.interfaces import Array

__all__ = [
    "Accuracy",
    "Fits",
    "Gaussian",
    "Moments",
    "Samples",
    "effective_count",
    "posterior_fits",
    "prior_fits",
    "reflected",
]


@dataclass(frozen=True)
class Accuracy:
    """How much work an integral over a posterior may take.

    ``target`` is the error of the posterior mean to aim at: root mean square over samples, relative to ``sqrt(diag V)``;
    ``effort`` the largest factor by which points are added where the target is missed, 1 adds none.
    """

    target: float
    effort: int = 16
    # Quasi-random points, and parallel lines, per sample and replicate. Doubled: twice the cost, errors fall by 1.4 to 2.
    points: int = 256
    lines: int = 16
    # Independent copies whose spread is the error. Doubled: twice the cost, the error is known 1.4 times better.
    replicates: int = 4
    # Fraction of effective points at which the prior's points will do. Doubled: more samples get a fit of their own.
    enough: float = 0.1
    # Fraction of effective points below which lines replace points. Doubled: more samples are integrated along lines.
    thin: float = 0.03
    # Effective points from which the spread of the replicates is the error. Doubled: errors are more careful.
    trusted: float = 20.0
    # Fraction of effective points at which a fit has arrived. Doubled: fits take more rounds and are tighter.
    fitted: float = 0.15
    # Factor of a fit's covariance. Doubled: tails are safer and more points are wasted.
    inflation: float = 1.3
    # Most rounds of a fit. Doubled: labels that are twice as improbable are found.
    rounds: int = 40


class Moments(NamedTuple):
    """``log Z`` (n,), ``E[u]`` (n, d), ``E[u u^T]`` (n, d, d), error of the mean (n,), two independent estimates of the mean."""

    log_norm: Array
    mean: Array
    square: Array
    error: Array
    half: Array
    other_half: Array


class Gaussian(NamedTuple):
    """Where to put the points of every sample: N(mean, factor factor^T), and along which direction to draw lines."""

    mean: Array
    factor: Array
    axis: Array


Fits: TypeAlias = "tuple[Gaussian, ...]"
"""One Gaussian for every replicate."""


class Samples:
    """Some samples with their labels (n, ...), omegas (n, P, C) and ``V^{1/2}``; the likelihood in whitened latents."""

    def __init__(self, channel: Any, y: Array, omega: Array, root: Array, start: int, accuracy: Accuracy) -> None:
        self.channel, self.y, self.omega, self.root, self.start = channel, y, omega, root, start
        self.accuracy = accuracy
        self.xp = namespace(omega)
        self.device = array_api_compat.device(omega)
        self.n, self.P, self.C = omega.shape
        self.d = self.P * self.C

    def take(self, rows: Array) -> Samples:
        """Some of the samples."""
        xp = self.xp
        y, omega = (xp.take(a, rows, axis=0) for a in (self.y, self.omega))
        return Samples(self.channel, y, omega, self.root, self.start, self.accuracy)

    def asarray(self, host: Any) -> Array:
        """A host array where the samples live, float64."""
        return self.xp.asarray(host, dtype=self.xp.float64, device=self.device)

    def log_likelihood(self, u: Array, rows: Array | None = None) -> Array:
        """``log_likelihood`` (N, k) at whitened latents (N, k, d) of the samples ``rows`` (N,); default: all."""
        xp = self.xp
        N, k, _ = u.shape
        y = self.y if rows is None else xp.take(self.y, rows, axis=0)
        omega = self.omega if rows is None else xp.take(self.omega, rows, axis=0)
        shift = xp.reshape(u, (N * k, self.P, self.C))
        shift = self.root[0, 0] * shift if self.P == 1 else xp.matmul(self.root, shift)
        z = xp.reshape(omega[:, None, :, :] + xp.reshape(shift, (N, k, self.P, self.C)), (N * k, self.P, self.C))
        repeated = xp.reshape(xp.broadcast_to(y[:, None, ...], (N, k, *y.shape[1:])), (N * k, *y.shape[1:]))
        found = xp.astype(self.channel.log_likelihood(repeated, z), xp.float64)
        if found.shape != (N * k,):
            raise ValueError(
                f"log_likelihood must return one number per sample, shape ({N * k},), got {tuple(found.shape)}"
            )
        if bool(xp.any(xp.isnan(found) | (found == math.inf))):
            raise ValueError("log_likelihood returned a number that is not finite (only -inf is allowed)")
        return xp.reshape(xp.maximum(found, xp.full_like(found, IMPOSSIBLE)), (N, k))


def effective_count(weight: Array, xp: ModuleType) -> Array:
    """Effective number of points under log-weights (N, K); 0 where all are impossible."""
    top = xp.max(weight, axis=1, keepdims=True)
    p = xp.exp(clip(weight - top, -700.0, 0.0))
    found = xp.sum(p, axis=1) ** 2 / xp.sum(p * p, axis=1)
    return xp.where(top[:, 0] > 0.5 * IMPOSSIBLE, found, xp.zeros_like(found))


def reflected(points: Array, axis: Array, xp: ModuleType) -> Array:
    """Points (n, K, d) after the reflection that takes the first unit vector to ``axis`` (n, d), up to sign."""
    d = axis.shape[1]
    unit = xp.astype(xp.arange(d, device=array_api_compat.device(axis)) == 0, axis.dtype)
    sign = xp.where(axis[:, :1] > 0, -xp.ones_like(axis[:, :1]), xp.ones_like(axis[:, :1]))
    normal = sign * axis - unit
    normal = normal / xp.linalg.vector_norm(normal, axis=1, keepdims=True)
    along = xp.matmul(points, normal[..., None])
    return points - 2 * along * normal[:, None, :]


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
