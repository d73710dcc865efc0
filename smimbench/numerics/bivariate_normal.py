"""Logarithm of the bivariate normal distribution function (``log_cdf``), with derivatives that are exact in the tails."""

from __future__ import annotations

import math
from functools import cache
from types import ModuleType
from typing import NamedTuple

import array_api_compat
import numpy as np

from smimbench.backend.arrays import clip, namespace, shared_constants, special
from smimbench.interfaces import Array
from smimbench.numerics.indexing import put_at_mask
from smimbench.numerics.quadrature import gauss_legendre

LARGEST_CORRELATION = 0.9
"""Largest size of the correlation that the quadrature resolves; nearer to 1 the integrand is too narrow."""
_TAIL_PROBABILITY = 1e-7
"""Probability below which the formula for the tails is used; doubled, this more expensive rule serves more points."""
_TAIL_DECAY = 40.0
"""The integral over the tail stops where its integrand has fallen by ``exp(-40)``; doubled, nodes are sparser."""
_LARGEST = 1e100
"""Arguments are clipped to this size: squares of larger ones would overflow."""
_DENSITY = 1 / math.sqrt(2 * math.pi)
_SERIES_FROM = 50.0
"""Size of the argument above which Mills' ratio is a series; doubled, the difference that it replaces has two digits less."""


class LogCdf(NamedTuple):
    """Value and derivatives of ``log Phi2(h, k; rho)``, the log-probability that two standard normals of correlation rho stay
    below h and k. Fields: ``value``, the first derivatives ``h_slope`` and ``k_slope``, and the second derivatives in hh, kk
    and hk as ``hessian``.

    The derivatives with respect to ``h`` and ``k``, and ``(d2/dh2, d2/dk2, d2/dhdk)`` or None. Every array is shaped like the
    arguments.
    """

    value: Array
    h_slope: Array
    k_slope: Array
    hessian: tuple[Array, Array, Array] | None = None


def log_cdf(
    h: Array, k: Array, r: float, *, sign: Array | None = None, hessian: bool = False
) -> LogCdf:
    r"""Log-probability that two standard normals stay below the bounds ``h`` and ``k``, one pair per sample, with its
    derivatives in h and k (second ones if ``hessian``). ``r`` is their correlation, multiplied by ``sign`` (1 or -1 per sample)
    into ``rho``; probabilities below ``_TAIL_PROBABILITY`` (the tail) are computed apart.

    .. math::

        \Phi_2(h, k; r) = \Phi(h)\Phi(k) + \frac{1}{2\pi} \int_0^{\arcsin r}
            \exp\Big(-\frac{h^2 + k^2 - 2 h k \sin\theta}{2\cos^2\theta}\Big)\, d\theta

    Below 1e-7 the integral over the distance from the nearer boundary takes over, in units of its value at
    that boundary, so that the derivatives neither underflow nor cancel however far out ``(h, k)`` lies.

    Parameters
    ----------
    h, k : array
        Upper limits, of one shape. Infinities are allowed on the positive side.
    r : float
        Correlation, ``|r| <= 0.9``.
    sign : array, optional
        Entries +1 or -1, shaped like ``h``: the correlation of each element is ``sign * r``.
    hessian : bool
        Also return the second derivatives.

    Returns
    -------
    LogCdf
        Derivatives with a relative error below 1e-11 for ``|r| <= 0.5`` and 1e-9 up to 0.9, the value with
        that absolute error. Computed in double precision and returned in the dtype of ``h``.

    Raises
    ------
    ValueError
        If ``|r| > 0.9``: the quadrature rules are not made for nearly equal variables.

    References
    ----------
    The first form is that of Drezner and Wesolowsky, J. Stat. Comput. Simul. 35 (1990) 101; the second is
    derived, checked by tests/numerics/test_bivariate_normal.py.
    """
    if not abs(r) <= LARGEST_CORRELATION:
        raise ValueError(
            f"the correlation r must be between -{LARGEST_CORRELATION} and {LARGEST_CORRELATION}, got {r}"
        )
    xp = namespace(h, k)
    dtype = h.dtype
    shape = h.shape
    h, k = (xp.astype(xp.reshape(bound, (-1,)), xp.float64) for bound in (h, k))
    h, k = (clip(bound, -_LARGEST, _LARGEST) for bound in (h, k))
    rho: Array = (
        r if sign is None else r * xp.astype(xp.reshape(sign, (-1,)), xp.float64)
    )
    probability, derivatives = _log_cdf_central(xp, h, k, r, rho, hessian)
    is_tail = probability < _TAIL_PROBABILITY
    tail_rows = xp.nonzero(is_tail)[0]  # the only wait for the device
    if tail_rows.shape[0] > 0:
        tail_rho = rho if sign is None else xp.take(rho, tail_rows)
        tail_derivatives = _log_cdf_tail(
            xp, xp.take(h, tail_rows), xp.take(k, tail_rows), r, tail_rho, hessian
        )
        derivatives = [
            put_at_mask(central_values, is_tail, tail_values)
            for tail_values, central_values in zip(
                tail_derivatives, derivatives, strict=True
            )
        ]
    derivatives = [
        xp.astype(xp.reshape(derivative, shape), dtype) for derivative in derivatives
    ]
    return LogCdf(
        derivatives[0],
        derivatives[1],
        derivatives[2],
        tuple(derivatives[3:]) if hessian else None,
    )


@cache
def _angle_rule(r: float) -> tuple[tuple[float, ...], ...]:
    """Sines and inverse squared cosines of angles between 0 and ``arcsin r``, and of ``arcsin r`` itself, where the integrand is
    the density; and the weights of all but the last.
    """
    # |r| <= 0.5 needs no more than 10 nodes for 1e-13 where the probability exceeds 1e-7
    nodes, node_weights = gauss_legendre(10 if abs(r) <= 0.5 else 32, 0.0, 1.0)
    angle = math.asin(r) * np.append(nodes, 1.0)
    arrays = (
        np.sin(angle),
        1 / np.cos(angle) ** 2,
        node_weights * math.asin(r) / math.tau,
    )
    return tuple(tuple(array.tolist()) for array in arrays)


def _log_cdf_central(
    xp: ModuleType, h: Array, k: Array, r: float, rho: Array, hessian: bool
) -> tuple[Array, list[Array]]:
    """Probability that two correlated standard normals stay below ``h`` and ``k``, its logarithm and derivatives (second ones if
    ``hessian``), accurate where it is not small. ``rho`` is the correlation r with the sign of each sample, ``s = sqrt(1 -
    r^2)``; the probability is that of independent normals plus an integral over an angle from 0 to ``arcsin r``. ``xp`` is the
    array namespace.
    """
    s = math.sqrt(1 - r * r)
    sine, inverse_cos2, angle_weights = (
        shared_constants(values, h, xp.float64) for values in _angle_rule(r)
    )
    sine = sine[:, None]
    inverse_cos2 = inverse_cos2[:, None]
    signed_product = (
        h * k if isinstance(rho, float) else h * k * (rho / r if r else 1.0)
    )
    half_squared_length = (h * h + k * k) / 2
    integrand = xp.exp(
        (signed_product[None, :] * sine - half_squared_length[None, :]) * inverse_cos2
    )
    correlation_correction = xp.matmul(angle_weights, integrand[:-1, :])
    if not isinstance(rho, float) and r:
        correlation_correction = correlation_correction * (rho / r)
    probabilities = special(xp).ndtr(
        xp.stack([h, k, (k - rho * h) / s, (h - rho * k) / s])
    )
    probability = probabilities[0, :] * probabilities[1, :] + correlation_correction
    safe_probability = xp.maximum(probability, _TAIL_PROBABILITY)
    h_slope = _DENSITY * xp.exp(-h * h / 2) * probabilities[2, :] / safe_probability
    k_slope = _DENSITY * xp.exp(-k * k / 2) * probabilities[3, :] / safe_probability
    derivatives = [xp.log(safe_probability), h_slope, k_slope]
    if hessian:
        density_over_probability = (
            integrand[-1, :] / (2 * math.pi * s) / safe_probability
        )
        derivatives += [
            -h * h_slope - rho * density_over_probability - h_slope * h_slope,
            -k * k_slope - rho * density_over_probability - k_slope * k_slope,
            density_over_probability - h_slope * k_slope,
        ]
    return probability, derivatives


def _scaled_probability_and_hazard(xp: ModuleType, t: Array) -> tuple[Array, Array]:
    """Normal distribution function at t without its decay, ``Phi(t) exp(min(t, 0)^2 / 2)``, and the hazard (density over
    distribution function) ``phi(t) / Phi(t)``; neither overflows. ``xp`` is the array namespace.
    """
    negative_part = clip(t, None, 0.0)
    positive_part = clip(t, 0.0, None)
    scaled_probability = special(xp).erfcx(negative_part * -math.sqrt(0.5)) * special(
        xp
    ).ndtr(positive_part)
    return scaled_probability, _DENSITY * xp.exp(
        -positive_part * positive_part / 2
    ) / scaled_probability


def _hazard_excess(xp: ModuleType, t: Array, hazard: Array) -> Array:
    """Sum ``phi(t) / Phi(t) + t`` of the ``hazard`` at t and t itself, by an asymptotic series at large negative t, where the two
    cancel. ``xp`` is the array namespace.
    """
    negative_t = clip(t, None, -_SERIES_FROM)
    inverse_square = 1 / (negative_t * negative_t)
    asymptotic_series = (
        -(1 - inverse_square * (2 - inverse_square * (10 - inverse_square * 74)))
        / negative_t
    )
    return xp.where(t < -_SERIES_FROM, asymptotic_series, hazard + t)


def _log_cdf_tail(
    xp: ModuleType, h: Array, k: Array, r: float, rho: Array, hessian: bool
) -> list[Array]:
    """Log-probability that two normals of correlation ``rho`` (r with a sign) stay below h and k, and its derivatives (second
    ones if ``hessian``), where the probability is small; by quadrature over the distance ``a`` of the first normal below its
    bound h, the smaller one. Given the first, the second normal stays below k with probability ``Phi(t)``, which is ``scaled``
    without its decay; ``s = sqrt(1 - r^2)``, names ending in 0 are values at a = 0, and ``fall`` is the decrease of the hazard
    ``phi(t) / Phi(t)`` since a = 0. ``xp`` is the array namespace.

    The variable is the distance to the nearer boundary. With h <= k the integrand ``phi(h - a) Phi((k - rho (h - a)) / s)``,
    divided by its value at a = 0, is log-concave with curvature of at least 1 and its mode is at or next to a = 0; all that
    is needed are its averages.
    """
    device = array_api_compat.device(h)
    s = math.sqrt(1 - r * r)
    is_swapped = k < h
    h, k = xp.where(is_swapped, k, h), xp.where(is_swapped, h, k)
    # The rule for the tail has 64 nodes.
    nodes, node_weights = (
        xp.asarray(rule_array, dtype=xp.float64, device=device)[:, None]
        for rule_array in gauss_legendre(64, 0.0, 1.0)
    )
    t0 = (k - rho * h) / s
    scaled0, hazard0 = _scaled_probability_and_hazard(xp, t0)
    log_integrand_slope = h + rho / s * hazard0
    decay_rate = xp.sqrt(log_integrand_slope * log_integrand_slope + 2 * _TAIL_DECAY)
    # the positive solution of -slope a + a^2 / 2 = decay, in the form that does not cancel
    integration_width = xp.where(
        log_integrand_slope < 0,
        2 * _TAIL_DECAY / (decay_rate + xp.abs(log_integrand_slope)),
        decay_rate + clip(log_integrand_slope, 0.0, None),
    )
    a = integration_width[None, :] * nodes
    t_change = a * (rho / s)
    t = t0[None, :] + t_change
    scaled, hazard = _scaled_probability_and_hazard(xp, t)
    # min(t, 0)^2 - min(t0, 0)^2 from the step itself: t0 may be so large that the step is lost in t
    t0_below = clip(t0, None, 0.0)[None, :]
    t0_above = clip(t0, 0.0, None)[None, :]
    negative_part_change = xp.minimum(t_change + t0_above, -t0_below)
    log_ratio = (
        h[None, :] * a
        - a * a / 2
        - negative_part_change * (2 * t0_below + negative_part_change) / 2
    )
    integrand = xp.exp(log_ratio) * (scaled / scaled0[None, :]) * node_weights
    integral = xp.sum(integrand, axis=0)
    h_slope = 1 / (integral * integration_width)
    node_shares = integrand / integral[None, :]
    k_slope = xp.sum(node_shares * hazard, axis=0) / s
    value = (
        -h * h / 2
        - clip(t0, None, 0.0) ** 2 / 2
        + xp.log(_DENSITY * scaled0)
        - xp.log(h_slope)
    )
    derivatives = [
        value,
        xp.where(is_swapped, k_slope, h_slope),
        xp.where(is_swapped, h_slope, k_slope),
    ]
    if hessian:
        hazard_excess0 = _hazard_excess(xp, t0, hazard0)
        hazard_excess = _hazard_excess(xp, t, hazard)
        # hazard(t0) - hazard(t): large on the negative side, where it is the step that is accurate
        hazard_fall = xp.where(
            t0[None, :] > 0,
            hazard0[None, :] - hazard,
            t_change + (hazard_excess0[None, :] - hazard_excess),
        )
        mean_fall = xp.sum(node_shares * hazard_fall, axis=0)
        fall_deviation = hazard_fall - mean_fall[None, :]
        h_curvature = -h_slope * xp.sum(
            node_shares * (a + hazard_fall * (rho / s)), axis=0
        )
        k_curvature = (
            xp.sum(node_shares * fall_deviation * fall_deviation, axis=0)
            - xp.sum(node_shares * hazard * hazard_excess, axis=0)
        ) / (1 - r * r)
        mixed_derivative = h_slope * mean_fall / s
        derivatives += [
            xp.where(is_swapped, k_curvature, h_curvature),
            xp.where(is_swapped, h_curvature, k_curvature),
            mixed_derivative,
        ]
    return derivatives
