r"""Posterior integrals of a likelihood: by the cheapest method that resolves the posterior of each sample.

For ``z ~ N(omega, V (x) I_C)`` and a label y the posterior is ``N(z; omega, V (x) I_C) exp(log_likelihood(y, z)) / Z``, in
``P C`` dimensions. All integrals are done in the whitened latents u, ``z = omega + V^{1/2} u``, in which the prior is the
standard normal law, with one of three methods:

* one dimension: adaptive quadrature (``smimbench.numerics.line_integrals``), which finds narrow peaks, jumps and hard
  constraints by itself;
* two and three dimensions: the same quadrature along parallel lines through quasi-random points of the other dimensions.
  One label that pins one combination of the latents, however narrowly, is crossed by every line;
* four to twelve dimensions: quasi-random points.

In the last two, points are placed by importance sampling where the likelihood asks for it: a Gaussian is fitted to the
posterior in a few tempered rounds, sample by sample, so that a narrow or improbable label does not leave the points
empty-handed. Points are randomised in independent replicates; their spread is the error that is reported.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smimbench.backend.arrays import clip, matching, namespace
from smimbench.derive.samples import (
    Accuracy,
    Fits,
    Gaussian,
    Moments,
    Samples,
    effective_count,
    posterior_fits,
    prior_fits,
    reflected,
)
from smimbench.numerics.linalg import symmetric_root
from smimbench.numerics.line_integrals import IMPOSSIBLE, line_moments
from smimbench.numerics.masked import put_at_mask
from smimbench.numerics.qmc import whitened_points

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from smimbench.interfaces import Array

__all__ = ["BLOCK", "ONE_LINE", "integrate"]

BLOCK = 1 << 18
"""Numbers of an array of points that are held at once; doubled, twice the memory."""
ONE_LINE = 1e-3
"""Largest error of the quadrature in one dimension, where accuracy is cheap; doubled, a few evaluations fewer."""


def integrate(channel: Any, y: Array, omega: Array, V: Array, accuracy: Accuracy) -> Moments:
    """Posterior moments of the whitened latents of every sample, block by block, for labels (n, ...) and omega (n, P, C).

    Raises
    ------
    ValueError
        If there is no sample, or ``log_likelihood`` returns what it must not.
    """
    xp = namespace(omega)
    n, P, C = omega.shape
    if not n:
        raise ValueError("there must be at least one sample")
    root = symmetric_root(xp.astype(V, xp.float64))
    size = max(1, BLOCK // (200 if P * C == 1 else 2 * accuracy.points * P * C))
    blocks = []
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        for start in range(0, n, size):
            part = slice(start, min(start + size, n))
            wide = xp.astype(omega[part, ...], xp.float64)
            blocks.append(_integrate_block_of_samples(Samples(channel, y[part, ...], wide, root, start, accuracy)))
    return _joined(blocks, xp)


def _integrate_block_of_samples(block: Samples) -> Moments:
    """The cheapest method that resolves the posterior of each sample; more points where the error is too large."""
    accuracy = block.accuracy
    if block.d == 1:
        return _on_one_line(block, min(accuracy.target, ONE_LINE), search=accuracy.effort > 0)
    xp = block.xp
    prior = prior_fits(block)
    found, effective = _on_points(block, prior, accuracy.points)
    # Where errors of single samples average out, a few effective points will do.
    easy = effective >= (1.0 if accuracy.effort > 1 else 0.2) * accuracy.enough * accuracy.points
    found = _more_points(block, prior, found, easy)
    hard = xp.nonzero(~easy)[0]
    if hard.shape[0]:
        some = block.take(hard)
        found = _merged(found, _integrate_hard(some, _taken(prior, hard)), ~easy)
    return found


def _integrate_hard(block: Samples, prior: Fits) -> Moments:
    """Samples whose posterior is hardly covered by the prior's points: a thin sheet in latent space, or a small region."""
    xp, accuracy = block.xp, block.accuracy
    lines = accuracy.lines if block.d <= 3 else 4 * accuracy.lines
    if block.d <= 3:
        # Lines through all of the prior miss no part of a sheet; a fit might settle on one.
        found, effective = _on_lines(block, prior, lines)
        met = effective >= accuracy.trusted
        rough = met & (found.error > accuracy.target)
        if accuracy.effort > 1:
            found = _again(block, prior, found, rough, _on_lines, 4 * lines)
        rest = xp.nonzero(~met)[0]
        if not rest.shape[0]:
            return found
        return _merged(found, _integrate_fitted(block.take(rest), lines), ~met)
    return _integrate_fitted(block, lines)


def _integrate_fitted(block: Samples, lines: int) -> Moments:
    fits = posterior_fits(block)
    found, effective = _on_points(block, fits, block.accuracy.points)
    thin = effective < block.accuracy.thin * block.accuracy.points
    found = _more_points(block, fits, found, ~thin)
    return _again(block, fits, found, thin, _on_lines, lines)


def _more_points(block: Samples, fits: Fits, found: Moments, where: Array) -> Moments:
    count, effort, target = block.accuracy.points, block.accuracy.effort, block.accuracy.target
    while effort > 1:
        effort, count = effort // 4, count * 4
        found = _again(block, fits, found, where & (found.error > target), _on_points, count)
    return found


def _taken(fits: Fits, rows: Array) -> Fits:
    xp = namespace(rows)
    return tuple(Gaussian(*(xp.take(a, rows, axis=0) for a in fit)) for fit in fits)


def _merged(found: Moments, new: Moments, mask: Array) -> Moments:
    """``found`` with the samples where ``mask`` holds replaced, in order, by ``new``."""
    return Moments(*(put_at_mask(old, mask, part) for part, old in zip(new, found)))


def _again(
    block: Samples,
    fits: Fits,
    found: Moments,
    mask: Array,
    method: Callable[[Samples, Fits, int], tuple[Moments, Array]],
    count: int,
) -> Moments:
    """The moments, computed anew by ``method`` for the samples where ``mask`` holds."""
    xp = block.xp
    rows = xp.nonzero(mask)[0]
    if not rows.shape[0]:
        return found
    parts = []
    for start in range(0, rows.shape[0], 128):
        some = rows[start : min(start + 128, rows.shape[0])]
        parts.append(method(block.take(some), _taken(fits, some), count)[0])
    return _merged(found, _joined(parts, xp), mask)


def _joined(parts: list[Moments], xp: ModuleType) -> Moments:
    """Moments of some samples after those of others."""
    return Moments(*(xp.concat(list(column), axis=0) for column in zip(*parts)))


def _on_one_line(block: Samples, accuracy: float, *, search: bool) -> Moments:
    """One latent dimension: adaptive quadrature; ``search`` looks for narrow peaks."""
    xp = block.xp

    def log_weight(t: Array, lines: Array) -> Array:
        return block.log_likelihood(t[..., None], lines)

    found = line_moments(log_weight, block.n, xp, block.device, tolerance=accuracy, search=search)
    mean = found.mean[:, None]
    return Moments(found.log_norm, mean, found.square[:, None, None], found.error, mean, mean)


def _on_lines(block: Samples, fits: Fits, count: int) -> tuple[Moments, Array]:
    """Adaptive quadrature along ``count`` parallel lines per sample and replicate, and how many were effective in all."""
    xp, n, d = block.xp, block.n, block.d
    owner = xp.reshape(xp.broadcast_to(xp.arange(n, device=block.device)[:, None], (n, count)), (-1,))
    parts = []
    for replicate, fit in enumerate(fits):
        direction = xp.matmul(fit.factor, fit.axis[..., None])[..., 0]
        across = block.asarray(whitened_points(d - 1, count, "likelihood: lines", replicate))
        across = xp.concat([xp.zeros_like(across[:, :1]), across], axis=1)
        across = reflected(xp.broadcast_to(across[None, ...], (n, count, d)), fit.axis, xp)
        base = fit.mean[:, None, :] + xp.matmul(across, xp.matrix_transpose(fit.factor))
        flat = xp.reshape(base, (n * count, d))
        constant = xp.reshape(xp.sum(across * across, axis=-1), (-1,)) / 2

        along = xp.take(direction, owner, axis=0)
        log_weight = partial(_on_the_line, block, flat, along, constant, owner)
        found = line_moments(
            log_weight, n * count, xp, block.device, tolerance=2e-3, reach=8.0, rounds=20, search=False
        )  # fmt: skip
        weight, mean, square = (xp.reshape(a, (n, count)) for a in found[:3])
        points = base + mean[..., None] * direction[:, None, :]
        scatter = clip(square - mean * mean, 0.0, None)
        parts.append(_Weighted(weight + _log_determinant(fit, xp)[:, None], points, scatter, direction))
    effective = effective_count(xp.concat([part.weight for part in parts], axis=1), xp)
    return _gathered_moments(parts, _width(fits), block.accuracy.trusted, xp), effective


def _on_the_line(
    block: Samples, base: Array, along: Array, constant: Array, owner: Array, t: Array, lines: Array
) -> Array:
    """Log-weight of points on lines: the Gaussian that the lines follow is divided out, the prior is put in."""
    xp = block.xp
    u = xp.take(base, lines, axis=0)[:, None, :] + t[..., None] * xp.take(along, lines, axis=0)[:, None, :]
    prior = xp.take(constant, lines)[:, None] + t * t / 2 - xp.sum(u * u, axis=-1) / 2
    return block.log_likelihood(u, xp.take(owner, lines)) + prior


def _on_points(block: Samples, fits: Fits, count: int) -> tuple[Moments, Array]:
    """Importance sampling with ``count`` quasi-random points per sample and replicate, and how many were effective (n,)."""
    xp, n, d = block.xp, block.n, block.d
    parts = []
    effective = xp.zeros((n,), dtype=xp.float64, device=block.device)
    for replicate, fit in enumerate(fits):
        nodes = block.asarray(whitened_points(d, count, "likelihood: modes", replicate))
        nodes = reflected(xp.broadcast_to(nodes[None, ...], (n, count, d)), fit.axis, xp)
        u = fit.mean[:, None, :] + xp.matmul(nodes, xp.matrix_transpose(fit.factor))
        weight = block.log_likelihood(u) - xp.sum(u * u, axis=-1) / 2 + xp.sum(nodes * nodes, axis=-1) / 2
        effective = effective + effective_count(weight, xp) / block.accuracy.replicates
        parts.append(_Weighted(weight + _log_determinant(fit, xp)[:, None], u))
    return _gathered_moments(parts, _width(fits), block.accuracy.trusted, xp), effective


class _Weighted(NamedTuple):
    """One replicate: log-weights (n, K), points (n, K, d), and for lines the variance along them (n, K), (n, d)."""

    weight: Array
    points: Array
    scatter: Array | None = None
    direction: Array | None = None


def _log_determinant(fit: Gaussian, xp: ModuleType) -> Array:
    return xp.sum(xp.log(xp.linalg.diagonal(fit.factor)), axis=-1)


def _width(fits: Fits) -> Array:
    """Size (n,) of the clouds of points in one direction, and their distance."""
    xp = namespace(fits[0].mean)
    sizes = [xp.mean(xp.sum(fit.factor * fit.factor, axis=-1), axis=-1) for fit in fits]
    centre = sum(fit.mean for fit in fits) / len(fits)
    apart = [xp.mean((fit.mean - centre) ** 2, axis=-1) for fit in fits]
    return xp.sqrt((sum(sizes) + sum(apart)) / len(fits))


def _gathered_moments(parts: list[_Weighted], width: Array, trusted: float, xp: ModuleType) -> Moments:
    """Moments from weighted points in independent replicates.

    Where a few points carry everything the spread of the replicates says nothing: the error is then at least the size
    ``width`` of the cloud over the square root of their number.
    """
    top = xp.max(xp.stack([xp.max(part.weight, axis=1) for part in parts]), axis=0)
    alive = top > 0.5 * IMPOSSIBLE
    norms, means, squares = [], [], []
    for part in parts:
        p = xp.exp(clip(part.weight - top[:, None], -700.0, 0.0))
        p = p * xp.astype(part.weight > 0.5 * IMPOSSIBLE, xp.float64) / part.weight.shape[1]
        norms.append(xp.sum(p, axis=1))
        means.append(xp.sum(p[..., None] * part.points, axis=1))
        square = xp.matmul(xp.matrix_transpose(part.points * p[..., None]), part.points)
        if part.scatter is not None and part.direction is not None:
            outer = part.direction[:, :, None] * part.direction[:, None, :]
            square = square + xp.sum(p * part.scatter, axis=1)[:, None, None] * outer
        squares.append(square)
    norm = sum(norms) / len(parts)
    safe = xp.where(alive, norm, xp.ones_like(norm))
    mean = sum(means) / len(parts) / safe[:, None]
    square = sum(squares) / len(parts) / safe[:, None, None]
    # Standard error of a ratio over the replicates.
    residuals = [xp.sum((m - r[:, None] * mean) ** 2, axis=1) for m, r in zip(means, norms)]
    replicates = len(parts)
    variance = sum(residuals) / safe**2 / (replicates * (replicates - 1))
    d = mean.shape[1]
    effective = effective_count(xp.concat([part.weight for part in parts], axis=1), xp)
    floor = xp.where(effective < trusted, width / xp.sqrt(clip(effective, 1.0, None)), xp.zeros_like(width))
    error = xp.maximum(xp.sqrt(variance / d), floor)
    half = replicates // 2
    halves = []
    for group in (slice(0, half), slice(half, replicates)):
        mass = sum(norms[group])
        good = mass > 1e-3 * norm
        estimate = sum(means[group]) / xp.where(good, mass, xp.ones_like(mass))[:, None]
        halves.append(xp.where(good[:, None], estimate, mean))
    identity = xp.eye(d, **matching(mean))
    mean = xp.where(alive[:, None], mean, xp.zeros_like(mean))
    square = xp.where(alive[:, None, None], square, xp.broadcast_to(identity, square.shape))
    error = xp.where(alive, error, xp.ones_like(error))
    log_norm = xp.where(alive, top + xp.log(safe), top)
    halves = [xp.where(alive[:, None], h, xp.zeros_like(h)) for h in halves]
    return Moments(log_norm, mean, square, error, *halves)
