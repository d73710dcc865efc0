"""Posterior of two-layer, two-token attention by quadrature over a box of latents, enlarged where it was too small.

A box around the mean of the latents is integrated; samples whose label lies far from what their mean and variance lead to
expect are done again in a larger one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import array_api_compat
import numpy as np

from smimbench.backend import clip, namespace, read_together, to_host
from smimbench.interfaces import Array, Host
from smimbench_attention.channels.common import array_like, put_tuple
from smimbench_attention.channels.sequence.softmax import deep
from smimbench_attention.channels.sequence.softmax.deep import (
    LayerMoments,
    moments_of_means,
)

SPARE = 6.5
"""Energy ``|z - omega|^2 / 2 V`` of the box beyond log(1 / accuracy). Doubled: errors of 1e-10, not 5e-8, where V <= 0.01."""
DEEPEST = 250.0
"""Energy up to which the larger box is tried, not sampling. Doubled: boxes with many columns where labels lie very far away."""


@dataclass(frozen=True)
class IntegrationRule:
    """Settings of one adaptive quadrature of two layers: the problem, and when to stop."""

    V: tuple[float, float, float]  # V_11, V_12, V_22
    skip: float  # c >= 0
    accuracy: float  # target for the relative error of every sample; doubled: less time, twice the error
    full: bool  # all second moments instead of their three traces over tokens
    # Columns of an interval, and points of a column, to begin with; even. Doubled: twice the time, up to half the error.
    points: int
    rounds: int = 9  # largest number of doublings of these

    @property
    def moments(self) -> int:
        """Number of sums that the kernel computes: the weight, 4 first moments, and 10 second moments or 3 traces of them."""
        return 15 if self.full else 8

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Arguments of the compiled kernel: the problem, when to stop, and ``moments``.

        The problem is V_11, V_22, V_12 / V_11, the variance of z_2 given z_1, c, and the units of z_1 and z_2.
        """
        v11, v12, v22 = self.V
        b = v12 / v11
        problem = v11, v22, b, v22 - v12 * b, float(self.skip), v11**-0.5, v22**-0.5
        return (
            problem,
            (int(self.points), int(self.rounds), float(self.accuracy)),
            self.moments,
        )


def integrate(
    u: Array, omega: Array, V: Host, skip: float, accuracy: float, full: bool = False
) -> LayerMoments:
    """Posterior moments and partition function of two layers and two tokens.

    ``u`` (n, 2) are outputs up to sign, ``omega`` (n, 2, 2) means, both in float64; ``V`` (2, 2) is positive definite, on the
    host. ``accuracy`` is the target for the relative error of every sample. ``full`` asks for the whole second moment instead of
    its traces over tokens.
    """
    v11 = float(V[0, 0])
    v12 = 0.5 * float(V[0, 1] + V[1, 0])
    v22 = float(V[1, 1])
    # Correlated layers have a narrower conditional law than the box around them.
    crowding = min(8.0, 1.0 / math.sqrt(1.0 - v12 * v12 / (v11 * v22)))
    # Columns of an interval, and points of a column, to begin with. Doubled: twice the time, up to half the error.
    points = 8 if accuracy >= 1e-3 else 12
    rule = IntegrationRule(
        (v11, v12, v22), skip, accuracy, full, _even(points * crowding)
    )
    xp = namespace(u, omega)
    half_square = math.log(1.0 / accuracy) + SPARE
    depth = xp.zeros_like(u[:, 0])
    moments, energy = _integrate_box(u, omega, rule, depth + half_square, depth)
    # energy beyond ``SPARE`` above which a sample is integrated again
    truncated = energy > SPARE + 2.5
    index = xp.nonzero(truncated)[0]
    if index.shape[0] == 0:
        return moments
    # These samples are few and branch on their values, so they are handled on the host.
    far_u, far_omega, far_energy = read_together(
        *(xp.take(array, index, axis=0) for array in (u, omega, energy))
    )
    rescued = _integrate_far_labels(far_u, far_omega, far_energy, rule, half_square)
    return put_tuple(
        moments, truncated, LayerMoments(*(array_like(values, u) for values in rescued))
    )


def _even(number: float) -> int:
    """Round a number up to an even one, because points are summed in pairs."""
    return 2 * math.ceil(number / 2)


def _integrate_box(
    u: Array, omega: Array, rule: IntegrationRule, half_square: Array, depth: Array
) -> tuple[LayerMoments, Array]:
    """Integrals over the box ``|z - omega|^2 / V < 2 half_square``, relative to ``exp(-depth)``; and the energy.

    That is the posterior mean of half the squared distance from ``omega`` in units of V; inf where nothing is.
    """
    xp = namespace(u)
    sums, error = box_sums(u, omega, rule, xp.sqrt(2.0 * half_square), -depth)
    mass = sums[0, ...]
    # all products of two latents, or their traces over tokens, from the sums that the kernel takes
    order = (
        (5, 6, 7, 8, 6, 9, 10, 11, 7, 10, 12, 13, 8, 11, 13, 14)
        if rule.full
        else (5, 6, 6, 7)
    )
    sums = xp.stack([sums[k, ...] for k in (1, 2, 3, 4, *order)])
    safe = xp.where(mass > 0.0, mass, 1.0)
    v11, v12, v22 = rule.V
    b = v12 / v11
    traces = ((4, 9), (6, 11), (14, 19)) if rule.full else ((4,), (5,), (7,))
    aa, ae, ee = (sum(sums[k, ...] for k in places) for places in traces)
    distance = aa / v11 + (ee - 2.0 * b * ae + b * b * aa) / (v22 - b * v12)
    energy = xp.where(mass > 0.0, 0.5 * distance / safe, math.inf)
    error = error + xp.exp(clip(energy - half_square, -700.0, 0.0))
    constant = (
        2.0 * math.log(2.0 * math.pi)
        + math.log(v11 * v22 - v12 * v12)
        + math.log1p(rule.skip)
    )
    return moments_of_means(
        mass, -depth, constant, sums / safe, error, omega.shape
    ), energy


def box_sums(
    u: Array, omega: Array, rule: IntegrationRule, reach: Array, level: Array
) -> tuple[Array, Array]:
    """Call ``kernel.host_sums`` for arrays of any namespace: on the device for CuPy, else through the host."""
    if array_api_compat.is_cupy_array(u):
        from smimbench_attention.channels.sequence.softmax.two_layers.device import (
            device_sums,
        )

        return device_sums(u, omega, rule, reach, level)
    from smimbench_attention.channels.sequence.softmax.two_layers.kernel import (
        host_sums,
    )

    sums, error = host_sums(
        to_host(u), to_host(omega), rule, to_host(reach), to_host(level)
    )
    return array_like(sums, u), array_like(error, u)


def _integrate_far_labels(
    u: Host, omega: Host, energy: Host, rule: IntegrationRule, half_square: float
) -> LayerMoments:
    """Integrals for samples whose label is unlikely under ``omega`` and ``V``, so that their box was too small.

    The posterior energy is about that of the most likely point, plus 1, and so says how large the box must be. Where the first
    box missed too much to tell, one for the variance 16 V does. Samples of energy above ``DEEPEST`` go to importance sampling,
    which walks to the maximum.
    """
    energy = energy.copy()
    outside = energy > half_square - 4.0
    if outside.any():
        v11, v12, v22 = (16.0 * v for v in rule.V)
        coarse = replace(rule, accuracy=1e-2, full=False, rounds=5, V=(v11, v12, v22))
        zero = np.zeros(outside.sum())
        energies = _integrate_box(
            u[outside], omega[outside], coarse, zero + half_square, zero
        )[1]
        energy[outside] = np.where(energies < SPARE, 16.0 * energies, math.inf)
    near = energy < DEEPEST
    cut = half_square - SPARE
    v11, v12, v22 = rule.V
    V = np.array([[v11, v12], [v12, v22]])
    solved = []
    if near.any():
        depth = energy[near]
        wide = replace(
            rule,
            points=_even(
                rule.points * math.sqrt(1.0 + float(np.max(depth)) / half_square)
            ),
        )
        solved.append(
            (
                near,
                _integrate_box(u[near], omega[near], wide, depth + cut + 3.0, depth)[0],
            )
        )
    if not near.all():
        solved.append(
            (
                ~near,
                deep.integrate(
                    u[~near], omega[~near], V, rule.skip, 0.1, 2048, rule.full
                )[0],
            )
        )
    rescued = [np.empty((len(u), *values.shape[1:])) for values in solved[0][1]]
    for mask, moments in solved:
        for target, values in zip(rescued, moments):
            target[mask] = values
    return LayerMoments(*rescued)
