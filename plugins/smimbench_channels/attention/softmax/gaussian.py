"""Nearly Gaussian weights of two-layer attention: the likeliest point, and Gauss-Hermite rules in the frame of the moments."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import array_api_compat
import numpy as np

from smimbench.backend import clip
from smimbench.numerics import gauss_hermite
from smimbench_channels.attention.softmax.weight import (
    ACCURACY,
    ROOT2,
    ROOT8,
    TINY,
    Samples,
    Sums,
    Weight,
    away,
    depth_of_ridge,
    logistic,
    moments,
    ridge,
)

if TYPE_CHECKING:
    from types import ModuleType

    from smimbench.interfaces import Array

__all__ = ["Frame", "explaining", "gaussian_rule", "likeliest", "nearly_gaussian", "peak_frame", "samples_of"]


class Frame(NamedTuple):
    """Gaussian in (t, v): centre and lower-triangular root of the covariance, each (n,)."""

    t: Array
    v: Array
    tt: Array
    vt: Array
    vv: Array


def nearly_gaussian(xp: ModuleType, weight: Weight, samples: Samples) -> tuple[Sums, Array]:
    """Integrals of nearly Gaussian weights, and for which samples they are good.

    Those where two searches for the likeliest point agree and two orders of the rule too.
    """
    starts = [(samples.t, samples.v), explaining(xp, weight, samples)]
    one, two = (likeliest(xp, weight, samples, *start) for start in starts)
    frame = peak_frame(xp, one[0], one[1], one[3])
    same = xp.abs(one[0] - two[0]) < 0.1 * frame.tt
    same = same & (xp.abs(one[1] - two[1]) < 0.1 * xp.sqrt(frame.vt**2 + frame.vv**2))
    same = same & (one[2] < 40)  # a label that the prior hardly allows is no case for this rule
    _, frame = gaussian_rule(xp, weight, samples, frame, ACCURACY.quick_nodes[0])
    rough, frame = gaussian_rule(xp, weight, samples, frame, ACCURACY.quick_nodes[1])
    fine, _ = gaussian_rule(xp, weight, samples, frame, ACCURACY.quick_nodes[2])
    gap = xp.max(xp.abs(fine.mean - rough.mean), axis=1)
    wide = xp.max(xp.max(xp.abs(fine.square - rough.square), axis=2), axis=1)
    good = same & (xp.maximum(gap, wide) < ACCURACY.quick_tolerance)
    if weight.skip < 1:
        # a_2 does not tell s from -s: there may be a second peak on the other side of s = 0
        unit_t, unit_v = weight.units
        crossing = ridge(xp, xp.full_like(samples.t, weight.crossing), samples.v)
        good = good & (xp.abs(samples.t - crossing) > ACCURACY.reach * (unit_t + unit_v / 2))
    return fine, good


def gaussian_rule(xp: ModuleType, weight: Weight, samples: Samples, frame: Frame, count: int) -> tuple[Sums, Frame]:
    """Gauss-Hermite rule in the frame of a Gaussian, and the frame of the moments that it finds."""
    unit_t, unit_v = weight.units
    place = {"dtype": xp.float64, "device": array_api_compat.device(samples.t)}
    x, y, log_rule = (xp.asarray(f, **place)[None, :] for f in _hermite(count))
    t = frame.t[:, None] + frame.tt[:, None] * x
    v = frame.v[:, None] + frame.vt[:, None] * x + frame.vv[:, None] * y
    own = Samples(*(f[:, None] for f in samples))
    p, r = logistic(xp, t + v / 2), logistic(xp, t - v / 2)
    a, b = (t - own.t) / unit_t, (v - own.v) / unit_v
    log_weight, variables = weight.at(xp, own, a, b, p, r)
    log_weight = log_weight + log_rule
    top = xp.max(log_weight, axis=1)
    w = xp.exp(log_weight - top[:, None])
    # the weight is over (a, b), the frame over (t, v)
    scale = frame.tt * frame.vv / (unit_t * unit_v)
    raw = moments(xp, (w * scale[:, None])[:, :, None], [f[:, :, None] for f in variables])
    sums = weight.normalised(xp, raw, top)
    total = xp.sum(w, axis=1)
    w = w / total[:, None]
    mean_t, mean_v = xp.sum(w * t, axis=1), xp.sum(w * v, axis=1)
    off_t, off_v = t - mean_t[:, None], v - mean_v[:, None]
    products = [(off_t, off_t), (off_t, off_v), (off_v, off_v)]
    return sums, _frame(xp, mean_t, mean_v, *(xp.sum(w * one * two, axis=1) for one, two in products))


def peak_frame(xp: ModuleType, t: Array, v: Array, normal: list[Array]) -> Frame:
    """Frame of the Gaussian with the curvature of the normal equations, a little wider: tails are rarely thinner."""
    tt, tv, vv = normal[:3]
    determinant = tt * vv - tv * tv
    return _frame(xp, t, v, 1.44 * vv / determinant, -1.44 * tv / determinant, 1.44 * tt / determinant)


def _frame(xp: ModuleType, t: Array, v: Array, tt: Array, tv: Array, vv: Array) -> Frame:
    """Frame of a mean and a covariance."""
    root = xp.sqrt(clip(tt, TINY, None))
    cross = tv / root
    return Frame(t, v, root, cross, xp.sqrt(xp.maximum(vv - cross * cross, 1e-12 * vv + TINY)))


@cache
def _hermite(count: int) -> tuple[Any, Any, Any]:
    """Nodes of a product rule in two variables without the Gaussian weight, and the logarithm of its weights."""
    x, w = gauss_hermite(count)
    a, b = np.meshgrid(x, x, indexing="ij")
    return a.ravel(), b.ravel(), (np.log(2 * math.pi * np.outer(w, w)) + (a * a + b * b) / 2).ravel()


def samples_of(xp: ModuleType, weight: Weight, margins: Array, centre: Array, *, align: bool = True) -> Samples:
    """``Samples`` of margins (n, 2) and prior means (n, 4), with the ridge through the likeliest point if aligned."""
    t, v = centre[:, 0] * (ROOT2 * weight.beta), centre[:, 1] * (2 * weight.beta)
    samples = Samples(t, v, centre[:, 2], centre[:, 3], (margins[:, 0] + margins[:, 1]) / ROOT8, margins[:, 0], t)
    # where s may vanish the weight is narrow on either side, and smooth along that line
    if not align or weight.skip < 1 or weight.second > 0.1 * weight.first:
        return samples._replace(ridge=xp.full_like(t, weight.crossing))
    t, v, _, _ = likeliest(xp, weight, samples, *explaining(xp, weight, samples))
    return samples._replace(ridge=depth_of_ridge(xp, t, v))


def explaining(xp: ModuleType, weight: Weight, samples: Samples) -> tuple[Array, Array]:
    """(t, v) at which the label would put a_2 and b_2 at their prior means, as nearly as p and r in (0, 1) allow."""
    c = weight.skip
    a2 = xp.where(xp.abs(samples.a2) < 1e-30, 1e-30, samples.a2)
    ratio = samples.slope / a2
    plain = xp.tanh(samples.t / 2) + c  # what s would be at v = 0
    s = xp.where(ratio > 0, xp.sqrt(clip(ratio, 1e-30, None)), plain)
    both = clip(s + (1 - c), 0.01, 1.99)
    s = away(xp, both - (1 - c))
    p = ((samples.margin / s - (1 + c) * samples.b2) / (ROOT2 * a2) + (1 - c)) / 2
    low, high = clip(both - 1, 0.0, None), clip(both, None, 1.0)
    p = low + (high - low) * clip((p - low) / (high - low), 0.02, 0.98)
    u = [xp.log(f / (1 - f)) for f in (p, both - p)]
    return (u[0] + u[1]) / 2, u[0] - u[1]


def likeliest(
    xp: ModuleType, weight: Weight, samples: Samples, t: Array, v: Array
) -> tuple[Array, Array, Array, list[Array]]:
    """Levenberg-Marquardt from (t, v): the point found, its cost and its normal equations."""
    damping = xp.ones_like(t)
    cost, normal = _normal_equations(xp, weight, samples, t, v)
    for _ in range(12):
        tt, tv, vv, rt, rv = normal
        tt, vv = tt * (1 + damping), vv * (1 + damping)
        determinant = tt * vv - tv * tv
        new_t = t - clip((vv * rt - tv * rv) / determinant, -2.0, 2.0)
        new_v = v - clip((tt * rv - tv * rt) / determinant, -2.0, 2.0)
        new_cost, new_normal = _normal_equations(xp, weight, samples, new_t, new_v)
        better = new_cost < cost
        t, v, cost = (xp.where(better, new, old) for new, old in ((new_t, t), (new_v, v), (new_cost, cost)))
        normal = [xp.where(better, new, old) for new, old in zip(new_normal, normal, strict=True)]
        damping = clip(xp.where(better, damping / 5, damping * 5), 1e-12, 1e12)
    return t, v, cost, normal


def _normal_equations(
    xp: ModuleType, weight: Weight, samples: Samples, t: Array, v: Array
) -> tuple[Array, list[Array]]:
    """-2 log-weight without the power of s, a sum of squares ``|r|^2``, and the matrix ``J^T J`` and vector ``J^T r``."""
    c = weight.skip
    unit_t, unit_v = weight.units
    p, r = logistic(xp, t + v / 2), logistic(xp, t - v / 2)
    dp, dr = p * (1 - p), r * (1 - r)
    s = away(xp, p + r + (c - 1))
    a2 = samples.slope / (s * s)
    k = ROOT2 * (2 * p + (c - 1))
    b2 = (samples.margin / s - k * a2) / (1 + c)
    a, b = (t - samples.t) / unit_t, (v - samples.v) / unit_v
    lift = weight.lift
    scale = 1 / math.sqrt(weight.second)
    residuals = [a, b, (a2 - samples.a2 - lift * a) * scale, (b2 - samples.b2 - lift * b) * scale]
    rows = [[1 / unit_t + 0 * t, 0 * t], [0 * t, 1 / unit_v + 0 * t]]
    by_s = -2 * a2 / s
    b_by_s = (-samples.margin / (s * s) - k * by_s) / (1 + c)
    b_by_p = -2 * ROOT2 * a2 / (1 + c)
    steps = [(dp + dr, dp), ((dp - dr) / 2, dp / 2)]  # of s and p, with t and with v
    rows.append([scale * (by_s * ds - lift * f) for (ds, _), f in zip(steps, (1 / unit_t, 0.0), strict=True)])
    rows.append(
        [scale * (b_by_s * ds + b_by_p * d - lift * f) for (ds, d), f in zip(steps, (0.0, 1 / unit_v), strict=True)]
    )
    squares = [(0, 0), (0, 1), (1, 1)]
    matrix = [sum((row[i] * row[j] for row in rows[1:]), start=rows[0][i] * rows[0][j]) for i, j in squares]
    pulls = [sum((row[i] * z for row, z in zip(rows, residuals, strict=True)), start=0 * t) for i in (0, 1)]
    return sum((z * z for z in residuals), start=0 * t), [*matrix, *pulls]
