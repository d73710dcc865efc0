"""Integrals of nearly Gaussian weights of two-layer attention: Gauss-Hermite rules in the frame of their own moments."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import array_api_compat
import numpy as np

from smimbench.backend import clip
from smimbench.numerics import gauss_hermite
from smimbench_channels.attention.softmax.two_layers.peak import explaining, likeliest
from smimbench_channels.attention.softmax.two_layers.weight import TINY, Samples, Sums, Weight, logistic, moments, ridge

if TYPE_CHECKING:
    from types import ModuleType

    from smimbench.interfaces import Array

__all__ = ["Frame", "gaussian_rule", "nearly_gaussian", "peak_frame"]


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
    accuracy = weight.accuracy
    starts = [(samples.t, samples.v), explaining(xp, weight, samples)]
    one, two = (likeliest(xp, weight, samples, *start) for start in starts)
    frame = peak_frame(xp, one[0], one[1], one[3])
    same = xp.abs(one[0] - two[0]) < 0.1 * frame.tt
    same = same & (xp.abs(one[1] - two[1]) < 0.1 * xp.sqrt(frame.vt**2 + frame.vv**2))
    same = same & (one[2] < accuracy.unlikely)
    _, frame = gaussian_rule(xp, weight, samples, frame, accuracy.quick_nodes[0])
    rough, frame = gaussian_rule(xp, weight, samples, frame, accuracy.quick_nodes[1])
    fine, _ = gaussian_rule(xp, weight, samples, frame, accuracy.quick_nodes[2])
    gap = xp.max(xp.abs(fine.mean - rough.mean), axis=1)
    wide = xp.max(xp.max(xp.abs(fine.square - rough.square), axis=2), axis=1)
    good = same & (xp.maximum(gap, wide) < accuracy.quick_tolerance)
    if weight.skip < 1:
        # a_2 does not tell s from -s: there may be a second peak on the other side of s = 0
        unit_t, unit_v = weight.units
        crossing = ridge(xp, xp.full_like(samples.t, weight.crossing), samples.v)
        good = good & (xp.abs(samples.t - crossing) > accuracy.reach * (unit_t + unit_v / 2))
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
    """Points of a product rule for a function of two variables itself, and the logarithm of the weights."""
    x, w = gauss_hermite(count)
    a, b = np.meshgrid(x, x, indexing="ij")
    return a.ravel(), b.ravel(), (np.log(2 * math.pi * np.outer(w, w)) + (a * a + b * b) / 2).ravel()
