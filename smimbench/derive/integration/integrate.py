r"""Posterior integrals of a likelihood: the cheapest method that meets the posterior of each sample.

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

from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.backend.arrays import namespace
from smimbench.derive.integration.fit import posterior_fits, prior_fits
from smimbench.derive.integration.samples import Accuracy, Fits, Gaussian, Moments, Samples
from smimbench.derive.integration.sums import on_lines, on_one_line, on_points
from smimbench.numerics.linalg import symmetric_root
from smimbench.numerics.masked import put_at_mask

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from smimbench.interfaces import Array

__all__ = ["BLOCK", "ONE_LINE", "integrate"]

BLOCK = 1 << 18
"""Numbers of an array of points that are held at once; doubled, twice the memory."""
ROWS = 128
"""Samples that get more points at once; doubled, twice the memory."""
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
    """The cheapest method that meets the posterior of each sample, and more points where the error asks for them."""
    accuracy = block.accuracy
    if block.d == 1:
        return on_one_line(block, min(accuracy.target, ONE_LINE), search=accuracy.effort > 0)
    xp = block.xp
    prior = prior_fits(block)
    found, effective = on_points(block, prior, accuracy.points)
    # Where errors of single samples average out, a few effective points will do.
    easy = effective >= (1.0 if accuracy.effort > 1 else 0.2) * accuracy.enough * accuracy.points
    found = _more_points(block, prior, found, easy)
    hard = xp.nonzero(~easy)[0]
    if hard.shape[0]:
        some = block.take(hard)
        found = _merged(found, _integrate_hard(some, _taken(prior, hard)), ~easy)
    return found


def _integrate_hard(block: Samples, prior: Fits) -> Moments:
    """Samples whose posterior the prior's points hardly meet: a thin sheet in latent space, or a small region."""
    xp, accuracy = block.xp, block.accuracy
    lines = accuracy.lines if block.d <= 3 else 4 * accuracy.lines
    if block.d <= 3:
        # Lines through all of the prior miss no part of a sheet; a fit might settle on one.
        found, effective = on_lines(block, prior, lines)
        met = effective >= accuracy.trusted
        rough = met & (found.error > accuracy.target)
        if accuracy.effort > 1:
            found = _again(block, prior, found, rough, on_lines, 4 * lines)
        rest = xp.nonzero(~met)[0]
        if not rest.shape[0]:
            return found
        return _merged(found, _integrate_fitted(block.take(rest), lines), ~met)
    return _integrate_fitted(block, lines)


def _integrate_fitted(block: Samples, lines: int) -> Moments:
    fits = posterior_fits(block)
    found, effective = on_points(block, fits, block.accuracy.points)
    thin = effective < block.accuracy.thin * block.accuracy.points
    found = _more_points(block, fits, found, ~thin)
    return _again(block, fits, found, thin, on_lines, lines)


def _more_points(block: Samples, fits: Fits, found: Moments, where: Array) -> Moments:
    count, effort, target = block.accuracy.points, block.accuracy.effort, block.accuracy.target
    while effort > 1:
        effort, count = effort // 4, count * 4
        found = _again(block, fits, found, where & (found.error > target), on_points, count)
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
    """The moments with those of the samples where ``mask`` holds computed by ``on_lines`` or ``on_points``."""
    xp = block.xp
    rows = xp.nonzero(mask)[0]
    if not rows.shape[0]:
        return found
    parts = []
    for start in range(0, rows.shape[0], ROWS):
        some = rows[start : min(start + ROWS, rows.shape[0])]
        parts.append(method(block.take(some), _taken(fits, some), count)[0])
    return _merged(found, _joined(parts, xp), mask)


def _joined(parts: list[Moments], xp: ModuleType) -> Moments:
    """Moments of some samples after those of others."""
    return Moments(*(xp.concat(list(column), axis=0) for column in zip(*parts)))
