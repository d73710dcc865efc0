"""Posterior of two-layer, two-token attention: the box of latents that the quadrature integrates, and boxes that were too small.

A box around the mean of the latents is integrated; samples whose label lies far from what their mean and variance lead to
expect are done again in a larger one.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import array_api_compat
import numpy as np

from smimbench.backend import clip, namespace, read_together, to_host
from smimbench.interfaces import Array
from smimbench_channels.batches import array_like, joined, put_tuple
from smimbench_channels.sequence.softmax.deep import importance
from smimbench_channels.sequence.softmax.moments import Moments
from smimbench_channels.sequence.softmax.two_layers.rule import Rule

__all__ = ["integrate"]

FIRST_POINTS, COARSE_POINTS = 12, 8
"""Columns of a piece, and points of a column, to begin with. Doubled: twice the time, up to half the error."""
SPARE = 6.5
"""Energy ``|z - omega|^2 / 2 V`` of the box beyond log(1 / accuracy). Doubled: errors of 1e-10, not 5e-8, where V <= 0.01."""
DEEPEST = 250.0
"""Energy up to which the larger box is tried, not sampling. Doubled: boxes with many columns where labels lie very far away."""
# Where the entries of the second moment stand among the sums: all of them, or traces over tokens.
FULL = ((0, 1, 2, 3), (1, 4, 5, 6), (2, 5, 7, 8), (3, 6, 8, 9))
TRACES = ((0, 1), (1, 2))


def integrate(
    u: Array, omega: Array, V: np.ndarray[Any, Any], skip: float, accuracy: float, full: bool = False
) -> Moments:
    """Posterior moments and partition function of two layers and two tokens.

    The parameters are those of ``softmax.posterior.integrate``; ``accuracy`` is the target of every sample.
    """
    v11, v12, v22 = float(V[0, 0]), 0.5 * float(V[0, 1] + V[1, 0]), float(V[1, 1])
    # Correlated layers have a narrower conditional law than the box around them.
    crowding = min(8.0, 1.0 / math.sqrt(1.0 - v12 * v12 / (v11 * v22)))
    # accuracy from which ``COARSE_POINTS`` do
    points = COARSE_POINTS if accuracy >= 1e-3 else FIRST_POINTS
    rule = Rule((v11, v12, v22), skip, accuracy, full, _even(points * crowding))
    xp = namespace(u, omega)
    half_square = math.log(1.0 / accuracy) + SPARE
    depth = xp.zeros_like(u[:, 0])
    moments, energy = _integrate_box(xp, u, omega, rule, depth + half_square, depth)
    # posterior energy beyond ``SPARE`` from which a sample is done again
    poor = energy > SPARE + 2.5
    index = xp.nonzero(poor)[0]
    if index.shape[0] == 0:
        return moments
    part_u, part_omega = xp.take(u, index, axis=0), xp.take(omega, index, axis=0)
    rescued = _integrate_far_labels(xp, part_u, part_omega, rule, half_square, xp.take(energy, index, axis=0))
    return put_tuple(moments, poor, rescued)


def _even(number: float) -> int:
    """Rounded up: points are summed in pairs."""
    return 2 * math.ceil(number / 2)


def _integrate_box(
    xp: Any, u: Array, omega: Array, rule: Rule, half_square: Array, depth: Array
) -> tuple[Moments, Array]:
    """Integrate where ``|z - omega|^2 / V < 2 half_square``, relative to ``exp(-depth)``; and the energy."""
    sums, error = box_sums(u, omega, rule, xp.sqrt(2.0 * half_square), -depth)
    energy = _energy(sums, rule)
    outside = xp.exp(clip(energy - half_square, -700.0, 0.0))
    return _posterior_of_sums(sums, -depth, error + outside, rule), energy


def box_sums(u: Array, omega: Array, rule: Rule, reach: Array, level: Array) -> tuple[Array, Array]:
    """``kernel.host_sums`` for arrays of any namespace: CuPy arrays stay on their device, others go by the host."""
    if array_api_compat.is_cupy_array(u):
        from smimbench_channels.sequence.softmax.two_layers.device import device_sums

        return device_sums(u, omega, rule, reach, level)
    from smimbench_channels.sequence.softmax.two_layers.kernel import host_sums

    sums, error = host_sums(to_host(u), to_host(omega), rule, to_host(reach), to_host(level))
    return array_like(sums, u), array_like(error, u)


def _integrate_far_labels(xp: Any, u: Array, omega: Array, rule: Rule, half_square: float, energy: Array) -> Moments:
    """Samples whose label lies far from what ``omega`` and ``V`` lead to expect, so that their box was too small.

    The posterior energy is about that of the most likely point, plus 1, and so says how large the box must be. Where the first
    box missed too much to tell, one for the variance 16 V does. Samples of energy above ``DEEPEST`` go to importance sampling,
    which walks to the maximum.
    """

    def some(chosen: np.ndarray[Any, Any]) -> tuple[Array, Array]:
        index = array_like(np.flatnonzero(chosen), u, xp.int64)
        return xp.take(u, index, axis=0), xp.take(omega, index, axis=0)

    cut = half_square - SPARE
    # They are few: what becomes of which is decided on the host, with one transfer.
    # samples up to which that is done on the host
    few = energy.shape[0] <= 256
    energies, *on_host = read_together(energy, *((u, omega) if few else ()))
    energies = np.array(energies)
    lost = energies > half_square - 4.0
    if lost.any():
        v11, v12, v22 = (16.0 * v for v in rule.V)
        hot = replace(rule, accuracy=1e-2, full=False, rounds=5, V=(v11, v12, v22))
        part_u, part_omega = some(lost)
        zero = xp.zeros_like(part_u[:, 0])
        found = to_host(_integrate_box(xp, part_u, part_omega, hot, zero + half_square, zero)[1])
        energies[lost] = np.where(found < SPARE, 16.0 * found, math.inf)
    near = energies < DEEPEST
    parts: list[Moments] = []
    if near.any():
        stretch = math.sqrt(1.0 + float(np.max(energies[near])) / half_square)
        wide = replace(rule, points=_even(rule.points * stretch))
        depth = array_like(energies[near], u)
        parts.append(_integrate_box(xp, *some(near), wide, depth + cut + 3.0, depth)[0])
    if not near.all():
        v11, v12, v22 = rule.V
        V = np.asarray([[v11, v12], [v12, v22]])
        far_u, far_omega = (array[~near, ...] for array in on_host) if on_host else some(~near)
        # points of importance sampling for samples beyond ``DEEPEST``
        sampled = importance.integrate(far_u, far_omega, V, rule.skip, 0.1, 2048, rule.full)
        parts.append(Moments(*(array_like(values, u) for values in sampled)) if on_host else sampled)
    if len(parts) == 1:
        return parts[0]
    order = array_like(np.argsort(np.concatenate([np.flatnonzero(near), np.flatnonzero(~near)])), u, xp.int64)
    return Moments(*(xp.take(values, order, axis=0) for values in joined(parts)))


def _energy(sums: Array, rule: Rule) -> Array:
    """Posterior mean of half the squared distance from ``omega`` in units of V; inf where nothing is."""
    xp = namespace(sums)
    v11, v12, v22 = rule.V
    b = v12 / v11
    if rule.full:
        aa, ae, ee = sums[5, ...] + sums[9, ...], sums[7, ...] + sums[11, ...], sums[12, ...] + sums[14, ...]
    else:
        aa, ae, ee = sums[5, ...], sums[6, ...], sums[7, ...]
    found = sums[0, ...] > 0.0
    distance = aa / v11 + (ee - 2.0 * b * ae + b * b * aa) / (v22 - b * v12)
    return xp.where(found, 0.5 * distance / xp.where(found, sums[0, ...], 1.0), math.inf)


def _posterior_of_sums(sums: Array, level: Array, error: Array, rule: Rule) -> Moments:
    """Moments from sums that are in units of ``exp(level)``."""
    xp = namespace(sums)
    v11, v12, v22 = rule.V
    constant = 2.0 * math.log(2.0 * math.pi) + math.log(v11 * v22 - v12 * v12) + math.log1p(rule.skip)
    found = sums[0, ...] > 0.0
    safe = xp.where(found, sums[0, ...], 1.0)
    log_partition = xp.where(found, xp.log(safe) + level - constant, -math.inf)
    means = sums[1:, ...] / safe
    shift = xp.reshape(xp.permute_dims(means[:4, ...], (1, 0)), (-1, 2, 2))
    second = means[4:, ...]
    order = FULL if rule.full else TRACES
    second = xp.stack([xp.stack([second[k, ...] for k in row], axis=-1) for row in order], axis=-1)
    return Moments(log_partition, shift, second, error)
