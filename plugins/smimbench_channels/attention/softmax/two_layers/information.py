"""Information of two-layer attention: means over randomised Sobol points, corrected by an integral that is almost
perfectly correlated.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.backend import namespace
from smimbench.numerics import normal_scrambles, symmetric_root
from smimbench_channels.attention.softmax.two_layers.cells import integrals
from smimbench_channels.attention.softmax.two_layers.gaussian import gaussian_rule, peak_frame
from smimbench_channels.attention.softmax.two_layers.peak import likeliest, samples_of
from smimbench_channels.attention.softmax.two_layers.weight import ACCURACY, DIRECTIONS, ROOT2, reduced
from smimbench_channels.batches import blocks

if TYPE_CHECKING:
    from collections.abc import Callable

    from smimbench.interfaces import Array

__all__ = ["sampled_information"]


def sampled_information(
    forward: Callable[[Array], Array], beta: float, skip: float, samples: int, Q: Array, V: Array
) -> tuple[Array, Array]:
    r"""Estimate and standard error of ``E sum_c g_c g_c^T``, host arrays (2, 2), at one (Q, V).

    A crude posterior mean, by Gauss-Hermite around the likeliest point near the truth, is almost
    perfectly correlated with the exact one and a hundred times cheaper: its mean over many samples is
    corrected by the mean of the difference over few.
    """
    scrambles = ACCURACY.scrambles
    few = max(2 * scrambles, samples // ACCURACY.correction_share)
    rough, _ = _label_products(forward, beta, skip, Q, V, _normals(samples, 0), exact=False)
    exact, control = _label_products(forward, beta, skip, Q, V, _normals(few, 1), exact=True)
    base = rough.reshape(3, scrambles, -1).mean(axis=2)
    centred = control - control.mean(axis=1, keepdims=True)
    slope = np.linalg.lstsq(centred.T, (exact - exact.mean(axis=1, keepdims=True)).T, rcond=None)[0].T
    rest = (exact - slope @ control).reshape(3, scrambles, -1).mean(axis=2)
    mean = slope @ base.mean(axis=1) + rest.mean(axis=1)
    error = np.hypot((slope @ base).std(axis=1, ddof=1), rest.std(axis=1, ddof=1)) / math.sqrt(scrambles)
    order = np.array([[0, 2], [2, 1]])
    return mean[order], error[order]


def _label_products(
    forward: Callable[[Array], Array], beta: float, skip: float, Q: Array, V: Array, normal: Array, *, exact: bool
) -> tuple[Array, Array]:
    """Entries 11, 22 and 12 of ``sum_c g_c g_c^T`` (3, N), exact if asked for, and from the crude mean."""
    # (sample, layer, direction)
    omega = np.einsum("lk,nkd->nld", symmetric_root(Q), normal[:, 0])
    truth = omega + np.einsum("lk,nkd->nld", symmetric_root(V), normal[:, 1])
    xp = namespace(omega)
    seen = np.array(DIRECTIONS[:2])
    margins, centre, weight = reduced(beta, skip, forward(truth @ seen), omega @ seen, V)
    t, v = truth[:, 0, 0] * (ROOT2 * beta), truth[:, 0, 1] * (2 * beta)
    crude = []
    for part in blocks(len(omega), ACCURACY.crude_block):
        samples = samples_of(xp, weight, margins[part], centre[part], align=False)
        peak_t, peak_v, _, normal_equations = likeliest(xp, weight, samples, t[part], v[part])
        frame = peak_frame(xp, peak_t, peak_v, normal_equations)
        point, _ = gaussian_rule(xp, weight, samples, frame, 1)
        _, frame = gaussian_rule(xp, weight, samples, frame, ACCURACY.crude_nodes[0])
        mean = gaussian_rule(xp, weight, samples, frame, ACCURACY.crude_nodes[1])[0].mean
        # a rule whose frame has slipped off the weight is worse than the likeliest point itself
        limit = ACCURACY.crude_limit
        lost = np.abs(mean).max(axis=1, keepdims=True) > limit
        crude.append(np.clip(np.where(lost, point.mean, mean), -limit, limit))
    means = [np.concatenate(crude)]
    if exact:
        found = integrals(xp, weight, margins, centre, variation=ACCURACY.crude_variation)
        means.insert(0, found.mean)
    inverse, unit = np.linalg.inv(V), np.sqrt(np.diagonal(V))[:, None]
    products = []
    for mean in means:
        g = np.einsum("lk,nkd->nld", inverse, mean.reshape(-1, 2, 2) * unit)
        products.append(np.stack([np.sum(g[:, i] * g[:, j], axis=1) for i, j in ((0, 0), (1, 1), (0, 1))]))
    return products[0], products[-1]


@cache
def _normals(count: int, stream: int) -> np.ndarray[Any, Any]:
    """Standard normals (sample, estimate or rest, layer, direction), scramble by scramble."""
    size = 1 << round(math.log2(max(2, count // ACCURACY.scrambles)))
    points = normal_scrambles(8, size, ACCURACY.scrambles, "two layers of attention: labels", stream)
    return points.reshape(-1, 2, 2, 2)
