"""Integrals over the first layer's latents in two-layer attention, for a batch of samples on the host."""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from smimbench.interfaces import Host
from smimbench.numerics import gauss_hermite, gauss_legendre
from smimbench_attention.channels.attention.softmax.quadrature import (
    integrate_samples,
    write_crude_means,
)
from smimbench_attention.channels.attention.softmax.weight import ACCURACY, Sums, Weight


def integrals(
    samples: Host,
    weight: Weight,
    largest_variation: float = ACCURACY.largest_variation,
    *,
    try_plane: bool = False,
    try_gauss_hermite: bool = True,
) -> Sums:
    """Posterior integrals over the first layer's indices (a_1, b_1), with the ``weight``'s parameters, for ``samples`` (n, 6),
    the fields of ``Sample``, by cells of the plane in which the log-weight varies by at most ``largest_variation``, or, where
    two orders agree, by Gauss-Hermite rules, if ``try_gauss_hermite``, and by rules for all of the plane, if ``try_plane``.
    """
    n = len(samples)
    sums = Sums(np.empty(n), np.empty((n, 4)), np.empty((n, 4, 4)), np.zeros(n))
    rules = tuple(_hermite(count) for count in ACCURACY.hermite_nodes)
    # Where the first layer is wide, the Gauss-Hermite rules, which are blind to second peaks, seldom pass.
    try_gauss_hermite = try_gauss_hermite and weight.beta**2 * weight.variance_1 <= 0.2
    integrate_samples(
        samples,
        weight,
        ACCURACY,
        float(largest_variation),
        try_plane and weight.skip >= 1,
        try_gauss_hermite,
        (_midpoints(28, 20), _midpoints(40, 28)),
        2 * gauss_legendre(ACCURACY.cell_nodes),
        rules,
        *sums,
    )
    return sums


def crude_means(samples: Host, weight: Weight, start_t: Host, start_v: Host) -> Host:
    """Crude posterior means (n, 4) of the latents (a_1, b_1, a_2, b_2) of two layers for ``samples`` (n, 6), by Gauss-Hermite
    rules near the start (``start_t``, ``start_v``), mean and difference of the logits of p and r, the diagonal entries of the
    first layer's attention matrix; ``weight`` has the prior's parameters.
    """
    means = np.empty((len(samples), 4))
    rules = tuple(_hermite(count) for count in (1, 8, 10))
    write_crude_means(samples, weight, start_t, start_v, rules, means)
    return means


@cache
def _hermite(count: int) -> tuple[Host, Host]:
    """Gauss-Hermite nodes, ``count`` of them, and their weights divided by the Gaussian."""
    nodes, weights = gauss_hermite(count)
    return nodes, math.sqrt(2 * math.pi) * weights * np.exp(nodes * nodes / 2)


@cache
def _midpoints(y_count: int, b_count: int) -> tuple[Host, Host, Host, Host]:
    """Nodes and weights of a rectangle: squares of ``y_count`` midpoints, which are closer at the lower end, where weights fall
    steeply, and ``b_count`` midpoints.
    """
    y, b = ((np.arange(count) + 0.5) / count for count in (y_count, b_count))
    return 2 * y * y - 1, 4 * y / y_count, 2 * b - 1, np.full(b_count, 2 / b_count)
