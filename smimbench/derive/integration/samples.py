"""Samples with their labels, in whitened latents ``z = omega + V^{1/2} u``; the moments of their posteriors, and the
accuracy asked of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import array_api_compat

from smimbench.backend.arrays import clip, namespace
from smimbench.numerics.line_integrals import IMPOSSIBLE

if TYPE_CHECKING:
    from types import ModuleType

    from smimbench.interfaces import Array

__all__ = ["Accuracy", "Fits", "Gaussian", "Moments", "Samples", "effective_count", "reflected"]


@dataclass(frozen=True)
class Accuracy:
    """How hard an integral over the posterior is tried.

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
