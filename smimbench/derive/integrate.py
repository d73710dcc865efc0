r"""Posterior integrals of a likelihood, each sample by the cheapest method that resolves its posterior.

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
empty-handed. Points are randomized in independent replicates; their spread is the error that is reported.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from smimbench.backend.arrays import clip, matching, namespace
from smimbench.derive.samples import (
    ACCURACY,
    LINES,
    LINES_FRACTION,
    POINTS,
    PRIOR_FRACTION,
    REPLICATES,
    TRUSTED_COUNT,
    PosteriorMoments,
    Samples,
)
from smimbench.interfaces import Array, Channel
from smimbench.numerics.linalg import symmetric_root
from smimbench.numerics.line_integrals import IMPOSSIBLE, line_moments
from smimbench.numerics.masked import put_at_mask

BLOCK = 1 << 18
"""Largest number of entries of an array of integration points in memory; doubled, twice the memory."""
SCALAR_TOLERANCE = 1e-3
"""Tolerance of the quadrature for a single latent, where accuracy is cheap; doubled, a few evaluations fewer."""


def integrate(
    channel: Channel, y: Array, omega: Array, V: Array, *, refine: bool
) -> PosteriorMoments:
    """Posterior moments of the whitened latents of every sample, block by block, for labels (n, ...) and omega (n, P, C).

    ``refine``: samples whose error is above ``ACCURACY`` get more points, up to sixteen times as many.

    Raises
    ------
    ValueError
        If there is no sample, or ``log_likelihood`` returns what it must not.
    """
    xp = namespace(omega)
    n, P, C = omega.shape
    if not n:
        raise ValueError("the posterior needs at least one sample, got none")
    root = symmetric_root(xp.astype(V, xp.float64))
    scalar = P * C == 1
    size = max(1, BLOCK // (200 if scalar else 2 * POINTS * P * C))
    blocks = []
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        for start in range(0, n, size):
            rows = slice(start, min(start + size, n))
            wide = xp.astype(omega[rows, ...], xp.float64)
            block = Samples.on_prior(channel, y[rows, ...], wide, root, refine, start)
            blocks.append(_of_single_latents(block) if scalar else _from_prior(block))
    return _concatenate(blocks)


def _concatenate(blocks: list[PosteriorMoments]) -> PosteriorMoments:
    """Concatenate the posterior moments of several blocks of samples."""
    xp = namespace(blocks[0].mean)
    columns = zip(*blocks)
    return PosteriorMoments(*(xp.concat(list(column), axis=0) for column in columns))


def _from_prior(block: Samples) -> PosteriorMoments:
    """Posterior moments from points drawn from the prior; samples with too few effective points use another method."""
    moments = _on_points(block, POINTS)
    # Where errors of single samples average out, a few effective points will do.
    enough = (1.0 if block.refine else 0.2) * PRIOR_FRACTION
    easy = moments.effective >= enough * POINTS * REPLICATES
    moments = _with_more_points(block, moments, easy)
    return _recompute(block, moments, ~easy, _for_narrow_posteriors)


def _for_narrow_posteriors(block: Samples) -> PosteriorMoments:
    """Posterior moments of samples whose posterior (a thin sheet or a small region) is barely met by points of the prior."""
    if block.d > 3:
        return _from_fit(block)
    # Lines through all of the prior miss no part of a sheet; a fit might settle on one.
    moments = _on_lines(block, LINES)
    met = moments.effective >= TRUSTED_COUNT
    if block.refine:
        inaccurate = met & (moments.error > ACCURACY)
        more_lines = partial(_on_lines, count=4 * LINES)
        moments = _recompute(block, moments, inaccurate, more_lines)
    return _recompute(block, moments, ~met, _from_fit)


def _from_fit(block: Samples) -> PosteriorMoments:
    """Posterior moments from points drawn from a fitted Gaussian, or along lines if too few of these are effective."""
    block = block.fitted()
    moments = _on_points(block, POINTS)
    thin = moments.effective < LINES_FRACTION * POINTS * REPLICATES
    moments = _with_more_points(block, moments, ~thin)
    lines = LINES if block.d <= 3 else 4 * LINES
    return _recompute(block, moments, thin, partial(_on_lines, count=lines))


def _with_more_points(
    block: Samples, moments: PosteriorMoments, mask: Array
) -> PosteriorMoments:
    """Recompute moments with 4, then 16 times as many points for samples whose error is above the target."""
    counts = (4 * POINTS, 16 * POINTS) if block.refine else ()
    for count in counts:
        inaccurate = mask & (moments.error > ACCURACY)
        more_points = partial(_on_points, count=count)
        moments = _recompute(block, moments, inaccurate, more_points)
    return moments


def _recompute(
    block: Samples,
    moments: PosteriorMoments,
    mask: Array,
    method: Callable[[Samples], PosteriorMoments],
) -> PosteriorMoments:
    """Recompute the moments of the samples in ``mask`` with another method, 128 samples at a time."""
    rows = block.xp.nonzero(mask)[0]
    count = rows.shape[0]
    if not count:
        return moments
    chunks = [rows[i : min(i + 128, count)] for i in range(0, count, 128)]
    recomputed = _concatenate([method(block.take(chunk)) for chunk in chunks])
    columns = zip(moments, recomputed)
    return PosteriorMoments(
        *(put_at_mask(column, mask, rows) for column, rows in columns)
    )


def _of_single_latents(block: Samples) -> PosteriorMoments:
    """Posterior moments of a single latent per sample, by adaptive quadrature that looks for narrow peaks."""

    def log_weight(t: Array, lines: Array) -> Array:
        return block.log_likelihood(t[..., None], lines)

    place = matching(block.omega)
    count = block.omega.shape[0]
    log_norm, mean, square, error = line_moments(
        log_weight, count, block.xp, place["device"], tolerance=SCALAR_TOLERANCE
    )
    mean = mean[:, None]
    return PosteriorMoments(
        log_norm, mean, square[:, None, None], error, mean, mean, log_norm
    )


def _on_lines(block: Samples, count: int) -> PosteriorMoments:
    """Posterior moments by adaptive quadrature along ``count`` parallel lines per sample and replicate."""
    xp = block.xp
    R, n, d = block.mean.shape
    place = matching(block.omega)
    direction = xp.matmul(block.factor, block.axis[..., None])[..., 0]
    across = block.points(d - 1, count, "likelihood: lines")
    across = xp.concat([xp.zeros_like(across[..., :1]), across], axis=-1)
    across, base = block.reflect_and_map(across)
    constant = xp.reshape(xp.sum(across * across, axis=-1), (-1,)) / 2
    along = xp.broadcast_to(direction[:, :, None, :], base.shape)
    origins = xp.reshape(base, (-1, d))
    directions = xp.reshape(along, (-1, d))
    numbers = xp.arange(n, device=place["device"])[None, :, None]
    sample = xp.reshape(xp.broadcast_to(numbers, (R, n, count)), (-1,))

    def log_weight(t: Array, lines: Array) -> Array:
        """Log-likelihood along the lines, times the prior and divided by the Gaussian that the lines are drawn from."""
        origin = xp.take(origins, lines, axis=0)[:, None, :]
        direction = xp.take(directions, lines, axis=0)[:, None, :]
        u = origin + t[..., None] * direction
        weight = block.log_weight(u, xp.take(sample, lines))
        return weight + t * t / 2 + xp.take(constant, lines)[:, None]

    moments = line_moments(
        log_weight,
        R * n * count,
        xp,
        place["device"],
        tolerance=2e-3,
        reach=8.0,
        rounds=20,
        search=False,
    )
    weight, mean, square = (xp.reshape(a, (R, n, count)) for a in moments[:3])
    variance = clip(square - mean * mean, 0.0, None)
    points = base + mean[..., None] * along
    return _combine_replicates(block, weight, points, variance[..., None] * along)


def _on_points(block: Samples, count: int) -> PosteriorMoments:
    """Posterior moments by importance sampling with ``count`` quasi-random points per sample and replicate."""
    xp = block.xp
    R, n, d = block.mean.shape
    nodes, u = block.reflect_and_map(block.points(d, count, "likelihood: modes"))
    numbers = xp.arange(n, device=matching(u)["device"])
    sample = xp.reshape(xp.broadcast_to(numbers, (R, n)), (-1,))
    weight = block.log_weight(xp.reshape(u, (R * n, count, d)), sample)
    weight = xp.reshape(weight, (R, n, count)) + xp.sum(nodes * nodes, axis=-1) / 2
    return _combine_replicates(block, weight, u)


def _combine_replicates(
    block: Samples, weight: Array, points: Array, scatter: Array | None = None
) -> PosteriorMoments:
    """Combine log-weights (R, n, K) and points (R, n, K, d) of independent replicates into posterior moments.

    ``scatter`` (R, n, K, d) is the variance along lines times their direction. Where a few points carry everything the spread
    of the replicates says nothing: the error is then at least the size of the cloud over the square root of their number.
    Where no point is possible, the prior is left, with an error of its width.
    """
    xp = block.xp
    R, _, d = block.mean.shape
    log_determinant = xp.sum(xp.log(xp.linalg.diagonal(block.factor)), axis=-1)
    weight = weight + log_determinant[..., None]
    top = xp.max(weight, axis=(0, 2))
    p = xp.exp(clip(weight - top[None, :, None], -700.0, 0.0))
    p = p * xp.astype(weight > 0.5 * IMPOSSIBLE, xp.float64) / weight.shape[2]
    norms = xp.sum(p, axis=2)
    means = xp.sum(p[..., None] * points, axis=2)
    squares = xp.matmul(xp.matrix_transpose(points * p[..., None]), points)
    if scatter is not None:
        direction = xp.matmul(block.factor, block.axis[..., None])
        along_lines = xp.sum(p[..., None] * scatter, axis=2)[..., None]
        squares = squares + along_lines * xp.matrix_transpose(direction)
    norm = xp.mean(norms, axis=0)
    alive = norm > 0
    safe = xp.where(alive, norm, xp.ones_like(norm))
    mean = xp.mean(means, axis=0) / safe[:, None]
    identity = xp.eye(d, **matching(mean))
    fallback = xp.astype(~alive, xp.float64)[:, None, None] * identity
    square = xp.mean(squares, axis=0) / safe[:, None, None] + fallback
    # Standard error of a ratio over the replicates.
    residuals = xp.sum((means - norms[..., None] * mean) ** 2, axis=(0, 2))
    error = xp.sqrt(residuals / (R * (R - 1) * d)) / safe
    effective = (R * norm) ** 2 / clip(xp.sum(p * p, axis=(0, 2)), 1e-300, None)
    separation = xp.sum((block.mean - xp.mean(block.mean, axis=0)) ** 2, axis=(0, 2))
    width = xp.sqrt((xp.sum(block.factor**2, axis=(0, 2, 3)) + separation) / (R * d))
    cloud = width / xp.sqrt(clip(effective, 1.0, None))
    error = xp.where(effective < TRUSTED_COUNT, xp.maximum(error, cloud), error)
    halves = []
    for group in (slice(0, R // 2), slice(R // 2, R)):
        mass = xp.sum(norms[group, :], axis=0)
        populated = mass > 1e-3 * norm
        divisor = xp.where(populated, mass, xp.ones_like(mass))[:, None]
        estimate = xp.sum(means[group, ...], axis=0) / divisor
        halves.append(xp.where(populated[:, None], estimate, mean))
    log_norm = xp.where(alive, top + xp.log(safe), top)
    return PosteriorMoments(
        log_norm, mean, square, error, halves[0], halves[1], effective
    )
