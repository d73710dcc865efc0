"""The likeliest point of the weight of two-layer attention, by Levenberg and Marquardt's method with its normal equations."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from smimbench.backend import clip
from smimbench_channels.attention.softmax.two_layers.weight import (
    ROOT2,
    ROOT8,
    Samples,
    Weight,
    away,
    depth_of_ridge,
    logistic,
)

if TYPE_CHECKING:
    from types import ModuleType

    from smimbench.interfaces import Array

__all__ = ["explaining", "likeliest", "samples_of"]

_SMALL = 1e-30  # stands for a prior mean of 0 where it divides


def samples_of(xp: ModuleType, weight: Weight, margins: Array, centre: Array, *, align: bool = True) -> Samples:
    """``Samples`` of margins (n, 2) and prior means (n, 4), with the ridge through the likeliest point if aligned."""
    t, v = centre[:, 0] * (ROOT2 * weight.beta), centre[:, 1] * (2 * weight.beta)
    samples = Samples(t, v, centre[:, 2], centre[:, 3], (margins[:, 0] + margins[:, 1]) / ROOT8, margins[:, 0], t)
    # where s may vanish the weight is narrow on either side, and smooth along that line
    if not align or weight.skip < 1 or weight.second > weight.accuracy.aligned * weight.first:
        return samples._replace(ridge=xp.full_like(t, weight.crossing))
    t, v, _, _ = likeliest(xp, weight, samples, *explaining(xp, weight, samples))
    return samples._replace(ridge=depth_of_ridge(xp, t, v))


def explaining(xp: ModuleType, weight: Weight, samples: Samples) -> tuple[Array, Array]:
    """(t, v) at which the label would put a_2 and b_2 at their prior means, as nearly as p and r in (0, 1) allow."""
    c = weight.skip
    a2 = xp.where(xp.abs(samples.a2) < _SMALL, _SMALL, samples.a2)
    ratio = samples.slope / a2
    plain = xp.tanh(samples.t / 2) + c  # what s would be at v = 0
    s = xp.where(ratio > 0, xp.sqrt(clip(ratio, _SMALL, None)), plain)
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
    for _ in range(weight.accuracy.marquardt_steps):
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
