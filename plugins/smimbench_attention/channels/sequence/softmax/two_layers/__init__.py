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

SPARE_ENERGY = 6.5
"""Energy ``|z - omega|^2 / 2 V`` of the box beyond log(1 / accuracy). Doubled: errors of 1e-10, not 5e-8, where V <= 0.01."""
LARGEST_ENERGY = 250.0
"""Energy up to which the larger box is tried, not sampling. Doubled: boxes with many columns where labels lie very far away."""


@dataclass(frozen=True)
class IntegrationRule:
    """Settings of the adaptive quadrature of two layers: entries V_11, V_12, V_22 of the covariance ``V`` of their latents,
    weight ``skip`` = c of the skip connection, target ``accuracy`` of every sample, whether to compute ``full`` second moments,
    ``points`` of a column (a set of points of equal difference of the first layer's tokens) to begin with, and the largest number
    of ``rounds``, that is, doublings of points and columns.
    """

    V: tuple[float, float, float]  # V_11, V_12, V_22
    skip: float  # c >= 0
    accuracy: float  # target for the relative error of every sample; doubled: less time, twice the error
    full: bool  # all second moments instead of their three traces over tokens
    points: int  # of a column, and columns of an interval, at first
    rounds: int = 9  # largest number of doublings of points and columns

    @property
    def moment_count(self) -> int:
        """Number of sums that the kernel computes: the weight, 4 first moments, and 10 second moments or 3 traces of them."""
        return 15 if self.full else 8

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Arguments of the compiled kernel: the law of latents (V_11, V_22, b = V_12 / V_11, the variance of z_2 given z_1, c,
        and 1 / sqrt of V_11 and V_22), when to stop (points, rounds, accuracy), and how many moments.
        """
        v11, v12, v22 = self.V
        b = v12 / v11
        latent_law = v11, v22, b, v22 - v12 * b, float(self.skip), v11**-0.5, v22**-0.5
        return (
            latent_law,
            (int(self.points), int(self.rounds), float(self.accuracy)),
            self.moment_count,
        )


def integrate(
    u: Array,
    omega: Array,
    V: Host,
    skip: float,
    accuracy: float,
    full_second_moment: bool = False,
) -> LayerMoments:
    """Posterior moments and log-partition of the latents ``z ~ N(omega, V)`` of two layers of two tokens, given the outputs ``u``
    (n, 2) up to sign, by quadrature in boxes around omega to the relative error ``accuracy``; samples whose box was too small
    (``is_truncated``) are integrated again. ``skip`` is the weight c of the skip connection; the energy of a sample is the
    posterior mean of ``|z - omega|^2 / 2 V``, which says whether its box was large enough. Correlated layers need more columns,
    by ``column_growth``. Whole second moments if ``full_second_moment``, else traces over tokens.

    ``u`` (n, 2) are outputs up to sign, ``omega`` (n, 2, 2) means, both in float64; ``V`` (2, 2) is positive definite, on the
    host. ``accuracy`` is the target for the relative error of every sample. ``full_second_moment`` asks for the
    whole second moment instead of its traces over tokens.
    """
    v11 = float(V[0, 0])
    v12 = 0.5 * float(V[0, 1] + V[1, 0])
    v22 = float(V[1, 1])
    # Correlated layers have a narrower conditional law than the box around them.
    column_growth = min(8.0, 1.0 / math.sqrt(1.0 - v12 * v12 / (v11 * v22)))
    # Columns of an interval, and points of a column, to begin with. Doubled: twice the time, up to half the error.
    points = 8 if accuracy >= 1e-3 else 12
    rule = IntegrationRule(
        (v11, v12, v22),
        skip,
        accuracy,
        full_second_moment,
        math.ceil(points * column_growth),
    )
    xp = namespace(u, omega)
    box_energy = math.log(1.0 / accuracy) + SPARE_ENERGY
    energy_offset = xp.zeros_like(u[:, 0])
    moments, energy = _integrate_box(
        u, omega, rule, energy_offset + box_energy, energy_offset
    )
    # energy beyond ``SPARE_ENERGY`` above which a sample is integrated again
    is_truncated = energy > SPARE_ENERGY + 2.5
    truncated_index = xp.nonzero(is_truncated)[0]
    if truncated_index.shape[0] == 0:
        return moments
    # These samples are few and branch on their values, so they are handled on the host.
    far_u, far_omega, far_energy = read_together(
        *(xp.take(array, truncated_index, axis=0) for array in (u, omega, energy))
    )
    far_moments = _integrate_far_labels(far_u, far_omega, far_energy, rule, box_energy)
    return put_tuple(
        moments,
        is_truncated,
        LayerMoments(*(array_like(far_moment, u) for far_moment in far_moments)),
    )


def _integrate_box(
    u: Array,
    omega: Array,
    rule: IntegrationRule,
    box_energy: Array,
    energy_offset: Array,
) -> tuple[LayerMoments, Array]:
    """Posterior moments over the box ``|z - omega|^2 / V < 2 box_energy`` of latents by the quadrature ``rule``, given outputs
    ``u`` (n, 2) up to sign and means omega (n, 2, 2), with integrals in units of ``exp(-energy_offset)``; and the energy (n,),
    the posterior mean of ``|z - omega|^2 / 2 V``. ``aa``, ``ae`` and ``ee`` are sums of a a, a e, e e over tokens (rows of
    ``sums`` in ``trace_rows``), for a = z_1 - omega_1 and e = z_2 - omega_2.

    ``aa``, ``ae`` and ``ee`` are traces of a = z_1 - omega_1 and e = z_2 - omega_2. The energy is the posterior mean of half
    the squared distance from ``omega`` in units of V; inf where nothing is.
    """
    xp = namespace(u)
    sums, error = box_sums(u, omega, rule, xp.sqrt(2.0 * box_energy), -energy_offset)
    mass = sums[0, ...]
    # all products of two latents, or their traces over tokens, from the sums that the kernel takes
    sum_rows = (
        (5, 6, 7, 8, 6, 9, 10, 11, 7, 10, 12, 13, 8, 11, 13, 14)
        if rule.full
        else (5, 6, 6, 7)
    )
    sums = xp.stack([sums[row, ...] for row in (1, 2, 3, 4, *sum_rows)])
    safe_mass = xp.where(mass > 0.0, mass, 1.0)
    v11, v12, v22 = rule.V
    regression_slope = v12 / v11
    trace_rows = ((4, 9), (6, 11), (14, 19)) if rule.full else ((4,), (5,), (7,))
    aa, ae, ee = (sum(sums[row, ...] for row in rows) for rows in trace_rows)
    squared_distance = aa / v11 + (
        ee - 2.0 * regression_slope * ae + regression_slope * regression_slope * aa
    ) / (v22 - regression_slope * v12)
    energy = xp.where(mass > 0.0, 0.5 * squared_distance / safe_mass, math.inf)
    error = error + xp.exp(clip(energy - box_energy, -700.0, 0.0))
    log_normalization = (
        2.0 * math.log(2.0 * math.pi)
        + math.log(v11 * v22 - v12 * v12)
        + math.log1p(rule.skip)
    )
    return moments_of_means(
        mass, -energy_offset, log_normalization, sums / safe_mass, error, omega.shape
    ), energy


def box_sums(
    u: Array, omega: Array, rule: IntegrationRule, half_width: Array, log_unit: Array
) -> tuple[Array, Array]:
    """Sums of the integrand and of moments over the box ``|z - omega| <= half_width sqrt(V)`` of latents of each sample by the
    quadrature ``rule``, and relative errors: on the device for CuPy arrays, else on the host. Sums are in units of
    ``exp(log_unit)``; ``u`` are outputs up to sign, omega means.

    Arguments as in ``kernel.host_sums``.
    """
    if array_api_compat.is_cupy_array(u):
        from smimbench_attention.channels.sequence.softmax.two_layers.device import (
            device_sums,
        )

        return device_sums(u, omega, rule, half_width, log_unit)
    from smimbench_attention.channels.sequence.softmax.two_layers.kernel import (
        host_sums,
    )

    sums, error = host_sums(
        to_host(u), to_host(omega), rule, to_host(half_width), to_host(log_unit)
    )
    return array_like(sums, u), array_like(error, u)


def _integrate_far_labels(
    u: Host, omega: Host, energy: Host, rule: IntegrationRule, box_energy: float
) -> LayerMoments:
    """Posterior moments of samples whose label is so unlikely under their means ``omega`` that their box, of ``box_energy``, was
    too small, in larger boxes (where ``is_integrable``) or by importance sampling. ``energy`` (n,) is the posterior mean of ``|z
    - omega|^2 / 2 V`` that was found in it; ``u`` (n, 2) are outputs up to sign, ``rule`` is the quadrature's.

    The posterior energy is about that of the most likely point, plus 1, and so says how large the box must be. Where the first
    box missed too much to tell, one for the variance 16 V does. Samples of energy above ``LARGEST_ENERGY`` go to importance
    sampling, which walks to the maximum.
    """
    energy = energy.copy()
    is_outside = energy > box_energy - 4.0
    if is_outside.any():
        v11, v12, v22 = (16.0 * entry for entry in rule.V)
        coarse_rule = replace(
            rule, accuracy=1e-2, full=False, rounds=5, V=(v11, v12, v22)
        )
        zero_offset = np.zeros(is_outside.sum())
        coarse_energy = _integrate_box(
            u[is_outside],
            omega[is_outside],
            coarse_rule,
            zero_offset + box_energy,
            zero_offset,
        )[1]
        energy[is_outside] = np.where(
            coarse_energy < SPARE_ENERGY, 16.0 * coarse_energy, math.inf
        )
    is_integrable = energy < LARGEST_ENERGY
    accuracy_energy = box_energy - SPARE_ENERGY
    v11, v12, v22 = rule.V
    V = np.array([[v11, v12], [v12, v22]])
    moments_by_mask = []
    if is_integrable.any():
        energy_offset = energy[is_integrable]
        wide_rule = replace(
            rule,
            points=math.ceil(
                rule.points * math.sqrt(1.0 + float(np.max(energy_offset)) / box_energy)
            ),
        )
        moments_by_mask.append(
            (
                is_integrable,
                _integrate_box(
                    u[is_integrable],
                    omega[is_integrable],
                    wide_rule,
                    energy_offset + accuracy_energy + 3.0,
                    energy_offset,
                )[0],
            )
        )
    if not is_integrable.all():
        moments_by_mask.append(
            (
                ~is_integrable,
                deep.integrate(
                    u[~is_integrable],
                    omega[~is_integrable],
                    V,
                    rule.skip,
                    0.1,
                    2048,
                    rule.full,
                )[0],
            )
        )
    far_moments = [
        np.empty((len(u), *moment_rows.shape[1:]))
        for moment_rows in moments_by_mask[0][1]
    ]
    for mask, moments in moments_by_mask:
        for field, moment_rows in zip(far_moments, moments):
            field[mask] = moment_rows
    return LayerMoments(*far_moments)
