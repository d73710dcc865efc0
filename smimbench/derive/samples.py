"""Samples in whitened latents ``z = omega + V^{1/2} u`` with their labels, and Gaussians that cover their posteriors."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from types import ModuleType
from typing import NamedTuple

import numpy as np

from smimbench.backend.arrays import clip, matching, namespace
from smimbench.derive.labels import log_likelihood
from smimbench.interfaces import Array, Channel
from smimbench.numerics.line_integrals import IMPOSSIBLE
from smimbench.numerics.masked import put_at_mask
from smimbench.numerics.qmc import whitened_points
from smimbench.numerics.seeds import monte_carlo_rng

ACCURACY = 1e-2
"""Target error of the posterior mean, relative to ``sqrt(diag V)``. Doubled: hard samples cost up to four times less."""
POINTS, LINES = 256, 16
"""Quasi-random points, and parallel lines, per sample and replicate. Doubled: twice the cost, errors fall by 1.4 to 2."""
REPLICATES = 4
"""Independent copies whose spread is the error. Doubled: twice the cost, the error is known 1.4 times better."""
PRIOR_FRACTION = 0.1
"""Fraction of effective points above which points drawn from the prior suffice. Doubled: more samples get a fit."""
LINES_FRACTION = 0.03
"""Fraction of effective points below which integration along lines replaces points. Doubled: more samples use lines."""
TRUSTED_COUNT = 20.0
"""Effective points needed to take the spread of the replicates as the error. Doubled: errors are more conservative."""
FIT_FRACTION = 0.15
"""Fraction of effective points at which the fit of a Gaussian is complete. Doubled: fits take more rounds and are tighter."""
COVARIANCE_FACTOR = 1.3
"""Factor by which the covariance of a fitted Gaussian is enlarged. Doubled: tails are safer and more points are wasted."""
FIT_ROUNDS = 40
"""Largest number of rounds of a fit. Doubled: labels that are twice as improbable are found."""


class PosteriorMoments(NamedTuple):
    """Posterior moments of the whitened latents u of n samples, and how accurate they are.

    ``log Z`` (n,), ``E[u]`` (n, d), ``E[u u^T]`` (n, d, d), error of the mean (n,), two independent estimates of the mean, and
    how many points were effective (n,).
    """

    log_norm: Array
    mean: Array
    square: Array
    error: Array
    half: Array
    other_half: Array
    effective: Array


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples whose posteriors are integrated, and the Gaussians that the integration points are drawn from.

    ``y`` are labels (n, ...), ``omega`` prior means (n, P, C), ``root`` is ``V^{1/2}``.
    Points of replicate r come from ``N(mean, factor factor^T)``, (R, n, d) and (R, n, d, d); lines are drawn along ``axis``
    (R, n, d), and points reflected by it, so that samples have independent errors. ``refine``: more points where these miss
    ``ACCURACY``.
    """

    channel: Channel
    y: Array
    omega: Array
    root: Array
    refine: bool
    mean: Array
    factor: Array
    axis: Array

    @classmethod
    def on_prior(
        cls,
        channel: Channel,
        y: Array,
        omega: Array,
        root: Array,
        refine: bool,
        start: int,
    ) -> Samples:
        """Create samples whose integration points are drawn from the prior; ``start`` numbers the block."""
        xp = namespace(omega)
        R = REPLICATES
        n = omega.shape[0]
        d = omega.shape[1] * omega.shape[2]
        axis = monte_carlo_rng("likelihood: block", d, start).standard_normal((n, d))
        axis = axis / np.linalg.norm(axis, axis=1, keepdims=True)
        axis = xp.broadcast_to(xp.asarray(axis, **matching(omega)), (R, n, d))
        mean = xp.zeros((R, n, d), **matching(omega))
        factor = xp.broadcast_to(xp.eye(d, **matching(omega)), (R, n, d, d))
        return cls(channel, y, omega, root, refine, mean, factor, axis)

    @property
    def xp(self) -> ModuleType:
        """Array namespace of the samples."""
        return namespace(self.omega)

    @property
    def d(self) -> int:
        """Number of latents per sample, P C."""
        return int(self.mean.shape[2])

    def take(self, rows: Array) -> Samples:
        """Subset of the samples, with indices ``rows``."""
        take = self.xp.take
        return replace(
            self,
            y=take(self.y, rows, axis=0),
            omega=take(self.omega, rows, axis=0),
            mean=take(self.mean, rows, axis=1),
            factor=take(self.factor, rows, axis=1),
            axis=take(self.axis, rows, axis=1),
        )

    def points(self, dimension: int, count: int, purpose: str) -> Array:
        """Quasi-random points (R, 1, count, dimension), shared by all samples but different for every replicate."""
        replicates = [
            whitened_points(dimension, count, purpose, r) for r in range(REPLICATES)
        ]
        return self.xp.asarray(np.stack(replicates)[:, None], **matching(self.omega))

    def reflect_and_map(self, points: Array) -> tuple[Array, Array]:
        """Reflect standard normal points (R, 1, k, d), and map them into the Gaussian of each sample (R, n, k, d).

        Returns the points before and after the map.
        """
        xp = self.xp
        shape = (*self.mean.shape[:2], *points.shape[2:])
        turned = reflected(xp.broadcast_to(points, shape), self.axis, xp)
        offsets = xp.matmul(turned, xp.matrix_transpose(self.factor))
        return turned, self.mean[:, :, None, :] + offsets

    def log_likelihood(self, u: Array, rows: Array) -> Array:
        """Log-likelihood (N, k) at whitened latents (N, k, d) of the samples with indices ``rows`` (N,)."""
        xp = self.xp
        N, k, _ = u.shape
        y = xp.take(self.y, rows, axis=0)
        omega = xp.take(self.omega, rows, axis=0)
        P, C = omega.shape[1:]
        shift = xp.reshape(u, (N * k, P, C))
        shift = self.root[0, 0] * shift if P == 1 else xp.matmul(self.root, shift)
        z = omega[:, None, :, :] + xp.reshape(shift, (N, k, P, C))
        label = y.shape[1:]
        repeated = xp.broadcast_to(y[:, None, ...], (N, k, *label))
        logs = log_likelihood(
            self.channel,
            xp.reshape(repeated, (N * k, *label)),
            xp.reshape(z, (N * k, P, C)),
        )
        logs = xp.astype(logs, xp.float64)
        if logs.shape != (N * k,):
            raise ValueError(
                f"log_likelihood must return one number per sample, shape ({N * k},), got {tuple(logs.shape)}"
            )
        if bool(xp.any(xp.isnan(logs) | (logs == math.inf))):
            raise ValueError(
                "log_likelihood returned a number that is not finite (only -inf is allowed)"
            )
        return xp.reshape(clip(logs, IMPOSSIBLE, None), (N, k))

    def log_weight(self, u: Array, rows: Array) -> Array:
        """Logarithm (N, k) of likelihood times prior at whitened latents (N, k, d), up to a constant."""
        return self.log_likelihood(u, rows) - self.xp.sum(u * u, axis=-1) / 2

    def fitted(self) -> Samples:
        """Replace the prior by a Gaussian fitted to the posterior, for every sample and replicate.

        Fit, move, repeat, with the weights raised to the power that keeps the fraction ``FIT_FRACTION`` of the points
        effective. Every replicate has a fit of its own: where one has missed something, the replicates disagree and the
        error says so.
        """
        xp = self.xp
        R, n, d = self.mean.shape
        place = matching(self.mean)
        count = 128 if d <= 3 else 512
        nodes = self.points(d, count, "likelihood: nodes")
        nodes = xp.reshape(xp.broadcast_to(nodes, (R, n, count, d)), (R * n, count, d))
        numbers = xp.arange(n, device=place["device"])
        sample = xp.reshape(xp.broadcast_to(numbers, (R, n)), (-1,))
        mean = xp.zeros((R * n, d), **place)
        identity = xp.eye(d, **place)[None, ...]
        covariance = xp.zeros((R * n, d, d), **place) + identity
        going = sample >= 0
        for _ in range(FIT_ROUNDS):
            rows = xp.nonzero(going)[0]
            center = xp.take(mean, rows, axis=0)
            wide = xp.take(covariance, rows, axis=0)
            points = xp.take(nodes, rows, axis=0)
            root = xp.matrix_transpose(xp.linalg.cholesky(wide))
            u = center[:, None, :] + xp.matmul(points, root)
            weight = self.log_weight(u, xp.take(sample, rows))
            weight = weight + xp.sum(points * points, axis=-1) / 2
            unfitted = effective_count(weight, xp) < FIT_FRACTION * count
            going = put_at_mask(going, going, unfitted)
            rows = xp.nonzero(unfitted)[0]
            if not rows.shape[0]:
                break
            center, wide, u, weight = (
                xp.take(a, rows, axis=0) for a in (center, wide, u, weight)
            )
            fitted_center, square = _tempered_fit(u, weight, center, wide, xp)
            ridge = 1e-9 / d * xp.linalg.trace(square)[:, None, None] * identity
            square = COVARIANCE_FACTOR * square + ridge
            # Nothing found: look further out.
            alive = xp.max(weight, axis=1) > 0.5 * IMPOSSIBLE
            center = xp.where(alive[:, None], fitted_center, center)
            square = xp.where(alive[:, None, None], square, 4 * wide)
            mean = put_at_mask(mean, going, center)
            covariance = put_at_mask(covariance, going, square)
        factor = xp.linalg.cholesky(covariance)
        # Two peaks that no single Gaussian can tell apart lie along its longest axis: draw the lines that way.
        longest = xp.linalg.eigh(covariance)[1][:, :, -1:]
        axis = xp.linalg.solve(factor, longest)[..., 0]
        axis = axis / xp.linalg.vector_norm(axis, axis=1, keepdims=True)
        return replace(
            self,
            mean=xp.reshape(mean, (R, n, d)),
            factor=xp.reshape(factor, (R, n, d, d)),
            axis=xp.reshape(axis, (R, n, d)),
        )


def effective_count(weight: Array, xp: ModuleType) -> Array:
    """Effective number (N,) of points under log-weights (N, K); 0 where all points are impossible."""
    top = xp.max(weight, axis=1, keepdims=True)
    p = xp.exp(clip(weight - top, -700.0, 0.0))
    effective = xp.sum(p, axis=1) ** 2 / xp.sum(p * p, axis=1)
    return xp.where(top[:, 0] > 0.5 * IMPOSSIBLE, effective, xp.zeros_like(effective))


def reflected(points: Array, axis: Array, xp: ModuleType) -> Array:
    """Reflect points (..., K, d) so that the first unit vector maps to ``axis`` (..., d), up to sign."""
    numbers = xp.arange(axis.shape[-1], device=matching(axis)["device"])
    unit = xp.astype(numbers == 0, axis.dtype)
    plus = xp.ones_like(unit)
    normal = axis - unit * xp.where(axis[..., :1] > 0, -plus, plus)
    normal = normal / xp.linalg.vector_norm(normal, axis=-1, keepdims=True)
    return points - 2 * xp.matmul(points, normal[..., None]) * normal[..., None, :]


def _tempered_fit(
    u: Array, weight: Array, mean: Array, covariance: Array, xp: ModuleType
) -> tuple[Array, Array]:
    """Mean and covariance of points under tempered weights, for one step of the fit of a Gaussian.

    Weights are raised to the power that makes the fraction ``FIT_FRACTION`` of the points effective.

    While that power is below one the cloud is still on its way: its extent along the way is kept, or it would shrink
    before it arrives.
    """
    possible = xp.astype(weight > 0.5 * IMPOSSIBLE, xp.float64)
    gap = clip(weight - xp.max(weight, axis=1, keepdims=True), -1e9, None)
    # Half of the possible points are as many as can be asked for; impossible points stay impossible at any power.
    goal = clip(xp.sum(possible, axis=1) / 2, 1.0, FIT_FRACTION * weight.shape[1])
    low = xp.full_like(goal, -50.0)
    exponent = xp.zeros_like(goal)
    high = xp.zeros_like(goal)

    def tempered(power: Array) -> Array:
        weights = xp.exp(clip(power[:, None] * gap, -700.0, None))
        return weights * possible + 1e-300

    for _ in range(16):
        p = tempered(2.0**exponent)
        enough = xp.sum(p, axis=1) ** 2 / xp.sum(p * p, axis=1) >= goal
        low = xp.where(enough, exponent, low)
        high = xp.where(enough, high, exponent)
        exponent = (low + high) / 2
    power = 2.0**low
    p = tempered(power)
    p = p / xp.sum(p, axis=1, keepdims=True)
    center = xp.sum(p[..., None] * u, axis=1)
    deviation = u - center[:, None, :]
    step = center - mean
    square = xp.matmul(xp.matrix_transpose(deviation * p[..., None]), deviation)
    square = square + (1 - power)[:, None, None] * step[:, :, None] * step[:, None, :]
    # Too few points to determine a covariance: shrink towards the present one.
    few = clip((u.shape[-1] + 2) * xp.sum(p * p, axis=1), 0.0, 1.0)[:, None, None]
    return center, (1 - few) * square + few * covariance / 4
