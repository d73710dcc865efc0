"""Integrates posteriors of a likelihood numerically; each sample by the cheapest method that resolves its posterior.

For ``z ~ N(omega, V (x) I_C)`` and a label y the posterior is ``N(z; omega, V (x) I_C) exp(log_likelihood(y, z)) / Z``, in
``P C`` dimensions. All integrals are done in the whitened latents u, ``z = omega + V^{1/2} u``, in which the prior is the
standard normal law, with one of three methods:

* one dimension: adaptive quadrature (``smimbench.numerics.quadrature``), which finds narrow peaks, jumps and hard
  constraints by itself;
* two and three dimensions: the same quadrature along parallel lines through quasi-random points of the other dimensions.
  One label that pins one combination of the latents, however narrowly, is crossed by every line;
* four to twelve dimensions: quasi-random points.

In the last two, points are placed by importance sampling where the likelihood asks for it: a Gaussian is fitted to the
posterior in a few tempered rounds, sample by sample, so that a narrow or improbable label does not leave the points
empty-handed. Points are randomized in independent replicates; their spread is the error that is reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import NamedTuple

import numpy as np

from smimbench.backend.arrays import asarray_like, clip, matching, namespace
from smimbench.derive.labels import log_likelihood
from smimbench.interfaces import Array, Channel
from smimbench.numerics.indexing import put_at_mask
from smimbench.numerics.linalg import symmetric_root
from smimbench.numerics.quadrature import IMPOSSIBLE, line_moments
from smimbench.numerics.random_numbers import monte_carlo_rng, whitened_points

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
    """Posterior moments of the whitened latents u (``z = omega + V^{1/2} u``) of n samples: logarithm of the normalization,
    mean, second moment (``square``), error of the mean, the means from either half of the replicates (``half``,
    ``other_half``), and the effective number of points.

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
    """Samples whose posteriors are integrated: labels y, prior means omega of the latents, and the ``root`` of their covariance
    V. Integration points are drawn from one Gaussian per replicate and sample, of given ``mean`` and Cholesky ``factor`` in
    whitened latents; ``axis`` is the direction along which they are reflected and integration lines run; ``refine`` asks for more
    points where the error is large.

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
        block_start: int,
    ) -> Samples:
        """Create samples whose integration points are drawn from the prior: labels y, prior means omega (n, P, C) and ``root`` of
        the covariance V; ``block_start`` is the index of the first sample, ``refine`` asks for more points where the error is
        large. Shapes: R replicates (independent sets of points), n samples, d = P C latents.
        """
        xp = namespace(omega)
        R = REPLICATES
        n = omega.shape[0]
        d = omega.shape[1] * omega.shape[2]
        axis = monte_carlo_rng("likelihood: block", d, block_start).standard_normal(
            (n, d)
        )
        axis = axis / np.linalg.norm(axis, axis=1, keepdims=True)
        axis = xp.broadcast_to(asarray_like(axis, omega), (R, n, d))
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
        """Subset of the samples, with indices ``rows``, as a new ``Samples``."""
        take_rows = self.xp.take
        return replace(
            self,
            y=take_rows(self.y, rows, axis=0),
            omega=take_rows(self.omega, rows, axis=0),
            mean=take_rows(self.mean, rows, axis=1),
            factor=take_rows(self.factor, rows, axis=1),
            axis=take_rows(self.axis, rows, axis=1),
        )

    def points(self, dimension: int, count: int, purpose: str) -> Array:
        """Quasi-random standard normal points (R, 1, count, dimension), shared by all samples but different for each of the R
        replicates. The name ``purpose`` seeds them.
        """
        replicates = [
            whitened_points(dimension, count, purpose, replicate)
            for replicate in range(REPLICATES)
        ]
        return asarray_like(np.stack(replicates)[:, None], self.omega)

    def reflect_and_map(self, points: Array) -> tuple[Array, Array]:
        """Reflect k standard normal points (R, 1, k, d) for each sample, and map them into its Gaussian; return both (R, n, k,
        d). R counts replicates, n samples, d latents.

        Returns the points before and after the map.
        """
        xp = self.xp
        shape = (*self.mean.shape[:2], *points.shape[2:])
        reflected_points = reflected(xp.broadcast_to(points, shape), self.axis, xp)
        deviations = xp.matmul(reflected_points, xp.matrix_transpose(self.factor))
        return reflected_points, self.mean[:, :, None, :] + deviations

    def log_likelihood(self, u: Array, rows: Array) -> Array:
        """Log-likelihood (N, k) of the labels y of the samples with indices ``rows`` (N,), each at k whitened latents ``u`` (N,
        k, d), that is at latents ``z = omega + V^{1/2} u``.
        """
        xp = self.xp
        N, k, _ = u.shape
        y = xp.take(self.y, rows, axis=0)
        omega = xp.take(self.omega, rows, axis=0)
        P, C = omega.shape[1:]
        latent_deviation = xp.reshape(u, (N * k, P, C))
        latent_deviation = (
            self.root[0, 0] * latent_deviation
            if P == 1
            else xp.matmul(self.root, latent_deviation)
        )
        z = omega[:, None, :, :] + xp.reshape(latent_deviation, (N, k, P, C))
        label_shape = y.shape[1:]
        repeated_labels = xp.broadcast_to(y[:, None, ...], (N, k, *label_shape))
        log_likelihoods = log_likelihood(
            self.channel,
            xp.reshape(repeated_labels, (N * k, *label_shape)),
            xp.reshape(z, (N * k, P, C)),
        )
        log_likelihoods = xp.astype(log_likelihoods, xp.float64)
        if log_likelihoods.shape != (N * k,):
            raise ValueError(
                f"log_likelihood must return one number per sample, shape ({N * k},), got {tuple(log_likelihoods.shape)}"
            )
        if bool(xp.any(xp.isnan(log_likelihoods) | (log_likelihoods == math.inf))):
            raise ValueError(
                "log_likelihood must return finite numbers or -inf, but returned a number that is not finite"
            )
        return xp.reshape(clip(log_likelihoods, IMPOSSIBLE, None), (N, k))

    def log_weight(self, u: Array, rows: Array) -> Array:
        """Logarithm (N, k) of likelihood times prior density, up to a constant, of the samples with indices ``rows`` (N,), each
        at k whitened latents ``u`` (N, k, d).
        """
        return self.log_likelihood(u, rows) - self.xp.sum(u * u, axis=-1) / 2

    def fitted(self) -> Samples:
        """Replace the prior as source of integration points by a Gaussian fitted to the posterior, for each of R replicates and
        n samples of d latents. Rows are pairs of replicate and sample; points u are standard normal ``nodes`` mapped by the
        current Gaussian of a row, and the fit of a row ends once enough of its points are effective.

        Fit, move, repeat, with the weights raised to the power that keeps the fraction ``FIT_FRACTION`` of the points
        effective. Every replicate has a fit of its own: where one has missed something, the replicates disagree and the
        error says so.
        """
        xp = self.xp
        R, n, d = self.mean.shape
        array_options = matching(self.mean)
        point_count = 128 if d <= 3 else 512
        nodes = self.points(d, point_count, "likelihood: nodes")
        nodes = xp.reshape(
            xp.broadcast_to(nodes, (R, n, point_count, d)), (R * n, point_count, d)
        )
        sample_numbers = xp.arange(n, device=array_options["device"])
        sample_of_row = xp.reshape(xp.broadcast_to(sample_numbers, (R, n)), (-1,))
        mean = xp.zeros((R * n, d), **array_options)
        identity = xp.eye(d, **array_options)[None, ...]
        covariance = xp.zeros((R * n, d, d), **array_options) + identity
        is_unfitted = sample_of_row >= 0
        for _ in range(FIT_ROUNDS):
            rows = xp.nonzero(is_unfitted)[0]
            row_mean = xp.take(mean, rows, axis=0)
            row_covariance = xp.take(covariance, rows, axis=0)
            row_nodes = xp.take(nodes, rows, axis=0)
            row_root = xp.matrix_transpose(xp.linalg.cholesky(row_covariance))
            u = row_mean[:, None, :] + xp.matmul(row_nodes, row_root)
            log_weights = self.log_weight(u, xp.take(sample_of_row, rows))
            log_weights = log_weights + xp.sum(row_nodes * row_nodes, axis=-1) / 2
            is_row_unfitted = (
                effective_count(log_weights, xp) < FIT_FRACTION * point_count
            )
            is_unfitted = put_at_mask(is_unfitted, is_unfitted, is_row_unfitted)
            rows = xp.nonzero(is_row_unfitted)[0]
            if not rows.shape[0]:
                break
            row_mean, row_covariance, u, log_weights = (
                xp.take(row_array, rows, axis=0)
                for row_array in (row_mean, row_covariance, u, log_weights)
            )
            fitted_center, fitted_covariance = _tempered_fit(
                u, log_weights, row_mean, row_covariance, xp
            )
            covariance_ridge = (
                1e-9 / d * xp.linalg.trace(fitted_covariance)[:, None, None] * identity
            )
            fitted_covariance = COVARIANCE_FACTOR * fitted_covariance + covariance_ridge
            # If no possible point was found, look further out.
            has_possible_point = xp.max(log_weights, axis=1) > 0.5 * IMPOSSIBLE
            row_mean = xp.where(has_possible_point[:, None], fitted_center, row_mean)
            fitted_covariance = xp.where(
                has_possible_point[:, None, None], fitted_covariance, 4 * row_covariance
            )
            mean = put_at_mask(mean, is_unfitted, row_mean)
            covariance = put_at_mask(covariance, is_unfitted, fitted_covariance)
        factor = xp.linalg.cholesky(covariance)
        # Two peaks that no single Gaussian can tell apart lie along its longest axis: draw the lines that way.
        longest_direction = xp.linalg.eigh(covariance)[1][:, :, -1:]
        axis = xp.linalg.solve(factor, longest_direction)[..., 0]
        axis = axis / xp.linalg.vector_norm(axis, axis=1, keepdims=True)
        return replace(
            self,
            mean=xp.reshape(mean, (R, n, d)),
            factor=xp.reshape(factor, (R, n, d, d)),
            axis=xp.reshape(axis, (R, n, d)),
        )


def effective_count(log_weights: Array, xp: ModuleType) -> Array:
    """Effective number (N,) of points, ``(sum w)^2 / sum w^2``, under weights w with logarithms ``log_weights`` (N, K); 0 where
    all points are impossible. ``xp`` is the array namespace.
    """
    largest_log_weight = xp.max(log_weights, axis=1, keepdims=True)
    weights = xp.exp(clip(log_weights - largest_log_weight, -700.0, 0.0))
    effective_number = xp.sum(weights, axis=1) ** 2 / xp.sum(weights * weights, axis=1)
    return xp.where(
        largest_log_weight[:, 0] > 0.5 * IMPOSSIBLE,
        effective_number,
        xp.zeros_like(effective_number),
    )


def reflected(points: Array, axis: Array, xp: ModuleType) -> Array:
    """Reflect points (..., K, d) so that the first unit vector maps to ``axis`` (..., d), up to sign. ``mirror_normal`` is the
    normal of the mirror, ``xp`` the array namespace.
    """
    axis_numbers = xp.arange(axis.shape[-1], device=matching(axis)["device"])
    unit_vector = xp.astype(axis_numbers == 0, axis.dtype)
    unit_signs = xp.ones_like(unit_vector)
    mirror_normal = axis - unit_vector * xp.where(
        axis[..., :1] > 0, -unit_signs, unit_signs
    )
    mirror_normal = mirror_normal / xp.linalg.vector_norm(
        mirror_normal, axis=-1, keepdims=True
    )
    return (
        points
        - 2 * xp.matmul(points, mirror_normal[..., None]) * mirror_normal[..., None, :]
    )


def _tempered_fit(
    u: Array, log_weights: Array, mean: Array, covariance: Array, xp: ModuleType
) -> tuple[Array, Array]:
    """Mean and covariance of points u (N, K, d) under tempered weights (``log_weights`` times a power), for one step of the fit
    of a Gaussian, whose present ``mean`` and ``covariance`` the result is shrunk to. The power is the largest one, ``2 **
    exponent``, at which enough points (``target_count``) are effective, found by bisection; ``xp`` is the array namespace.

    Weights are raised to the power that makes the fraction ``FIT_FRACTION`` of the points effective.

    While that power is below one the cloud is still on its way: its extent along the way is kept, or it would shrink
    before it arrives.
    """
    is_possible = xp.astype(log_weights > 0.5 * IMPOSSIBLE, xp.float64)
    log_ratio = clip(
        log_weights - xp.max(log_weights, axis=1, keepdims=True), -1e9, None
    )
    # Half of the possible points are as many as can be asked for; impossible points stay impossible at any power.
    target_count = clip(
        xp.sum(is_possible, axis=1) / 2, 1.0, FIT_FRACTION * log_weights.shape[1]
    )
    lower_exponent = xp.full_like(target_count, -50.0)
    exponent = xp.zeros_like(target_count)
    upper_exponent = xp.zeros_like(target_count)

    def tempered(weight_power: Array) -> Array:
        """Weights (N, K) of the points raised to the power ``weight_power`` (N,), with 0 for impossible points."""
        weights = xp.exp(clip(weight_power[:, None] * log_ratio, -700.0, None))
        return weights * is_possible + 1e-300

    for _ in range(16):
        tempered_weights = tempered(2.0**exponent)
        is_enough = (
            xp.sum(tempered_weights, axis=1) ** 2
            / xp.sum(tempered_weights * tempered_weights, axis=1)
            >= target_count
        )
        lower_exponent = xp.where(is_enough, exponent, lower_exponent)
        upper_exponent = xp.where(is_enough, upper_exponent, exponent)
        exponent = (lower_exponent + upper_exponent) / 2
    weight_power = 2.0**lower_exponent
    tempered_weights = tempered(weight_power)
    tempered_weights = tempered_weights / xp.sum(
        tempered_weights, axis=1, keepdims=True
    )
    weighted_center = xp.sum(tempered_weights[..., None] * u, axis=1)
    point_deviation = u - weighted_center[:, None, :]
    center_shift = weighted_center - mean
    weighted_square = xp.matmul(
        xp.matrix_transpose(point_deviation * tempered_weights[..., None]),
        point_deviation,
    )
    weighted_square = (
        weighted_square
        + (1 - weight_power)[:, None, None]
        * center_shift[:, :, None]
        * center_shift[:, None, :]
    )
    # Too few points to determine a covariance: shrink towards the present one.
    shrinkage = clip(
        (u.shape[-1] + 2) * xp.sum(tempered_weights * tempered_weights, axis=1),
        0.0,
        1.0,
    )[:, None, None]
    return weighted_center, (
        1 - shrinkage
    ) * weighted_square + shrinkage * covariance / 4


BLOCK = 1 << 18
"""Largest number of entries of an array of integration points in memory; doubled, twice the memory."""
SCALAR_TOLERANCE = 1e-3
"""Tolerance of the quadrature for a single latent, where accuracy is cheap; doubled, a few evaluations fewer."""


def integrate(
    channel: Channel, y: Array, omega: Array, V: Array, *, refine: bool
) -> PosteriorMoments:
    """Posterior moments of the whitened latents of n samples, block by block, for labels y (n, ...), and latents of prior mean
    omega (n, P, C) and covariance V (P, P). ``refine`` asks for more points where the error is above the target.

    ``refine``: samples whose error is above ``ACCURACY`` get more points, up to sixteen times as many.

    Raises
    ------
    ValueError
        If there is no sample, or ``log_likelihood`` returns what it must not.
    """
    xp = namespace(omega)
    n, P, C = omega.shape
    if not n:
        raise ValueError(
            "there is no sample to integrate a posterior for; labels y must have at least one row"
        )
    root_V = symmetric_root(xp.astype(V, xp.float64))
    is_scalar = P * C == 1
    block_size = max(1, BLOCK // (200 if is_scalar else 2 * POINTS * P * C))
    block_moments = []
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        for start in range(0, n, block_size):
            rows = slice(start, min(start + block_size, n))
            omega_float64 = xp.astype(omega[rows, ...], xp.float64)
            block = Samples.on_prior(
                channel, y[rows, ...], omega_float64, root_V, refine, start
            )
            block_moments.append(
                _of_single_latents(block) if is_scalar else _from_prior(block)
            )
    return _concatenate(block_moments)


def _concatenate(blocks: list[PosteriorMoments]) -> PosteriorMoments:
    """Concatenate the posterior moments of several blocks of samples."""
    xp = namespace(blocks[0].mean)
    columns = zip(*blocks)
    return PosteriorMoments(*(xp.concat(list(column), axis=0) for column in columns))


def _from_prior(block: Samples) -> PosteriorMoments:
    """Posterior moments from points drawn from the prior; samples with too few effective points use another method.
    ``block`` is a block of samples.
    """
    moments = _on_points(block, POINTS)
    # Without ``refine`` errors of single samples average out, and a few effective points are enough.
    needed_fraction = (1.0 if block.refine else 0.2) * PRIOR_FRACTION
    is_effective = moments.effective >= needed_fraction * POINTS * REPLICATES
    moments = _with_more_points(block, moments, is_effective)
    return _recompute(block, moments, ~is_effective, _for_narrow_posteriors)


def _for_narrow_posteriors(block: Samples) -> PosteriorMoments:
    """Posterior moments of samples whose posterior is so narrow that few points drawn from the prior lie in it: along lines, or
    from a fitted Gaussian. ``block`` is a block of samples.
    """
    if block.d > 3:
        return _from_fit(block)
    # Lines through all of the prior miss no part of a sheet; a fit might settle on one.
    moments = _on_lines(block, LINES)
    is_effective = moments.effective >= TRUSTED_COUNT
    if block.refine:
        is_inaccurate = is_effective & (moments.error > ACCURACY)
        more_lines = partial(_on_lines, count=4 * LINES)
        moments = _recompute(block, moments, is_inaccurate, more_lines)
    return _recompute(block, moments, ~is_effective, _from_fit)


def _from_fit(block: Samples) -> PosteriorMoments:
    """Posterior moments from points drawn from a fitted Gaussian, or along lines if too few of these are effective.
    ``block`` is a block of samples.
    """
    block = block.fitted()
    moments = _on_points(block, POINTS)
    has_few_effective = moments.effective < LINES_FRACTION * POINTS * REPLICATES
    moments = _with_more_points(block, moments, ~has_few_effective)
    line_count = LINES if block.d <= 3 else 4 * LINES
    return _recompute(
        block, moments, has_few_effective, partial(_on_lines, count=line_count)
    )


def _with_more_points(
    block: Samples, moments: PosteriorMoments, refinable: Array
) -> PosteriorMoments:
    """Recompute ``moments`` of the posteriors with 4, then 16 times as many integration points for samples whose error is above
    the target. The mask ``refinable`` says for which samples of the block points can help.
    """
    point_counts = (4 * POINTS, 16 * POINTS) if block.refine else ()
    for count in point_counts:
        is_inaccurate = refinable & (moments.error > ACCURACY)
        more_points = partial(_on_points, count=count)
        moments = _recompute(block, moments, is_inaccurate, more_points)
    return moments


def _recompute(
    block: Samples,
    moments: PosteriorMoments,
    mask: Array,
    method: Callable[[Samples], PosteriorMoments],
) -> PosteriorMoments:
    """Replace the posterior ``moments`` of the samples in ``mask`` by those that ``method`` computes, 128 samples of the
    ``block`` at a time.
    """
    rows = block.xp.nonzero(mask)[0]
    count = rows.shape[0]
    if not count:
        return moments
    chunks = [rows[start : min(start + 128, count)] for start in range(0, count, 128)]
    recomputed_moments = _concatenate([method(block.take(chunk)) for chunk in chunks])
    column_pairs = zip(moments, recomputed_moments)
    return PosteriorMoments(
        *(put_at_mask(column, mask, rows) for column, rows in column_pairs)
    )


def _of_single_latents(block: Samples) -> PosteriorMoments:
    """Posterior moments of a single latent per sample, by adaptive quadrature that looks for narrow peaks. ``block`` is a
    block of samples.
    """

    def log_weight(t: Array, lines: Array) -> Array:
        """Log-likelihood at whitened latents t (N, k) of the samples with indices ``lines`` (N,)."""
        return block.log_likelihood(t[..., None], lines)

    array_options = matching(block.omega)
    sample_count = block.omega.shape[0]
    log_norm, mean, square, error = line_moments(
        log_weight,
        sample_count,
        block.xp,
        array_options["device"],
        tolerance=SCALAR_TOLERANCE,
    )
    mean = mean[:, None]
    return PosteriorMoments(
        log_norm, mean, square[:, None, None], error, mean, mean, log_norm
    )


def _on_lines(block: Samples, count: int) -> PosteriorMoments:
    """Posterior moments by adaptive quadrature along ``count`` parallel lines per sample and replicate. ``block`` is a block of
    n samples with R replicates and d latents; lines run along the ``axis`` of each Gaussian, through random points
    perpendicular to it (``transverse``).
    """
    xp = block.xp
    R, n, d = block.mean.shape
    array_options = matching(block.omega)
    direction = xp.matmul(block.factor, block.axis[..., None])[..., 0]
    transverse_points = block.points(d - 1, count, "likelihood: lines")
    transverse_points = xp.concat(
        [xp.zeros_like(transverse_points[..., :1]), transverse_points], axis=-1
    )
    transverse_points, line_origins = block.reflect_and_map(transverse_points)
    transverse_energy = (
        xp.reshape(xp.sum(transverse_points * transverse_points, axis=-1), (-1,)) / 2
    )
    directions_of_lines = xp.broadcast_to(direction[:, :, None, :], line_origins.shape)
    origins = xp.reshape(line_origins, (-1, d))
    directions = xp.reshape(directions_of_lines, (-1, d))
    sample_numbers = xp.arange(n, device=array_options["device"])[None, :, None]
    sample_of_line = xp.reshape(xp.broadcast_to(sample_numbers, (R, n, count)), (-1,))

    def log_weight(t: Array, lines: Array) -> Array:
        """Log-likelihood plus log-prior at the whitened latents ``u`` at coordinates ``t`` along the lines with these numbers,
        minus the logarithm of the Gaussian from which the points across the lines are drawn.
        """
        origin = xp.take(origins, lines, axis=0)[:, None, :]
        direction = xp.take(directions, lines, axis=0)[:, None, :]
        u = origin + t[..., None] * direction
        log_weights = block.log_weight(u, xp.take(sample_of_line, lines))
        return log_weights + t * t / 2 + xp.take(transverse_energy, lines)[:, None]

    moments = line_moments(
        log_weight,
        R * n * count,
        xp,
        array_options["device"],
        tolerance=2e-3,
        reach=8.0,
        rounds=20,
        search=False,
    )
    log_masses, line_means, line_squares = (
        xp.reshape(moment, (R, n, count)) for moment in moments[:3]
    )
    line_variances = clip(line_squares - line_means * line_means, 0.0, None)
    line_means_of_latents = line_origins + line_means[..., None] * directions_of_lines
    return _combine_replicates(
        block,
        log_masses,
        line_means_of_latents,
        line_variances[..., None] * directions_of_lines,
    )


def _on_points(block: Samples, count: int) -> PosteriorMoments:
    """Posterior moments by importance sampling with ``count`` quasi-random points u per sample and replicate. ``block`` is a
    block of n samples with R replicates and d latents.
    """
    xp = block.xp
    R, n, d = block.mean.shape
    nodes, u = block.reflect_and_map(block.points(d, count, "likelihood: modes"))
    sample_numbers = xp.arange(n, device=matching(u)["device"])
    sample_of_row = xp.reshape(xp.broadcast_to(sample_numbers, (R, n)), (-1,))
    log_weights = block.log_weight(xp.reshape(u, (R * n, count, d)), sample_of_row)
    log_weights = (
        xp.reshape(log_weights, (R, n, count)) + xp.sum(nodes * nodes, axis=-1) / 2
    )
    return _combine_replicates(block, log_weights, u)


def _combine_replicates(
    block: Samples,
    log_weights: Array,
    points: Array,
    line_variance: Array | None = None,
) -> PosteriorMoments:
    """Combine K ``points`` (R, n, K, d) of R independent replicates and n samples of the ``block``, with log-weights (R, n, K),
    into posterior moments. If points are means along lines, ``line_variance`` is the posterior variance along each line, times
    its direction. The error is the scatter of replicates; where few points are effective, at least that of a mean of so few
    independent draws from the weighted points.

    ``line_variance`` (R, n, K, d) is the variance along lines times their direction. Where a few points carry everything the
    spread of the replicates says nothing: the error is then at least the size of the cloud over the square root of their number.
    Where no point is possible, the prior is left, with an error of its width.
    """
    xp = block.xp
    R, _, d = block.mean.shape
    log_determinant = xp.sum(xp.log(xp.linalg.diagonal(block.factor)), axis=-1)
    log_weights = log_weights + log_determinant[..., None]
    largest_log_weight = xp.max(log_weights, axis=(0, 2))
    weights = xp.exp(clip(log_weights - largest_log_weight[None, :, None], -700.0, 0.0))
    weights = (
        weights
        * xp.astype(log_weights > 0.5 * IMPOSSIBLE, xp.float64)
        / log_weights.shape[2]
    )
    replicate_norms = xp.sum(weights, axis=2)
    replicate_sums = xp.sum(weights[..., None] * points, axis=2)
    replicate_squares = xp.matmul(
        xp.matrix_transpose(points * weights[..., None]), points
    )
    if line_variance is not None:
        direction = xp.matmul(block.factor, block.axis[..., None])
        variance_along_lines = xp.sum(weights[..., None] * line_variance, axis=2)[
            ..., None
        ]
        replicate_squares = (
            replicate_squares + variance_along_lines * xp.matrix_transpose(direction)
        )
    mean_norm = xp.mean(replicate_norms, axis=0)
    has_possible_point = mean_norm > 0
    divisor_norm = xp.where(has_possible_point, mean_norm, xp.ones_like(mean_norm))
    mean = xp.mean(replicate_sums, axis=0) / divisor_norm[:, None]
    identity = xp.eye(d, **matching(mean))
    prior_square = xp.astype(~has_possible_point, xp.float64)[:, None, None] * identity
    square = (
        xp.mean(replicate_squares, axis=0) / divisor_norm[:, None, None] + prior_square
    )
    # Standard error of a ratio over the replicates.
    replicate_scatter = xp.sum(
        (replicate_sums - replicate_norms[..., None] * mean) ** 2, axis=(0, 2)
    )
    error = xp.sqrt(replicate_scatter / (R * (R - 1) * d)) / divisor_norm
    effective_number = (R * mean_norm) ** 2 / clip(
        xp.sum(weights * weights, axis=(0, 2)), 1e-300, None
    )
    center_scatter = xp.sum(
        (block.mean - xp.mean(block.mean, axis=0)) ** 2, axis=(0, 2)
    )
    cloud_width = xp.sqrt(
        (xp.sum(block.factor**2, axis=(0, 2, 3)) + center_scatter) / (R * d)
    )
    cloud_error = cloud_width / xp.sqrt(clip(effective_number, 1.0, None))
    error = xp.where(
        effective_number < TRUSTED_COUNT, xp.maximum(error, cloud_error), error
    )
    half_means = []
    for replicates in (slice(0, R // 2), slice(R // 2, R)):
        group_norm = xp.sum(replicate_norms[replicates, :], axis=0)
        has_mass = group_norm > 1e-3 * mean_norm
        group_divisor = xp.where(has_mass, group_norm, xp.ones_like(group_norm))[
            :, None
        ]
        half_mean = xp.sum(replicate_sums[replicates, ...], axis=0) / group_divisor
        half_means.append(xp.where(has_mass[:, None], half_mean, mean))
    log_norm = xp.where(
        has_possible_point,
        largest_log_weight + xp.log(divisor_norm),
        largest_log_weight,
    )
    return PosteriorMoments(
        log_norm, mean, square, error, half_means[0], half_means[1], effective_number
    )
