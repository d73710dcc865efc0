"""Logarithm of the bivariate normal distribution function (``log_cdf``), with derivatives that are exact in the tails."""

from __future__ import annotations

import math
from types import ModuleType
from typing import NamedTuple

import array_api_compat
import numpy as np

from smimbench.backend.arrays import clip, namespace, special
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
    """Logarithm of the bivariate normal distribution function ``Phi2(h, k; r)``, with its derivatives.

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
    r"""Log-probability that two correlated standard normals stay below ``h`` and ``k``, and its gradient.

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
    h, k = (xp.astype(xp.reshape(v, (-1,)), xp.float64) for v in (h, k))
    h, k = (clip(v, -_LARGEST, _LARGEST) for v in (h, k))
    rho: Array = (
        r if sign is None else r * xp.astype(xp.reshape(sign, (-1,)), xp.float64)
    )
    probability, derivatives = _log_cdf_central(xp, h, k, r, rho, hessian)
    tail = probability < _TAIL_PROBABILITY
    rows = xp.nonzero(tail)[0]  # the only wait for the device
    if rows.shape[0] > 0:
        some = rho if sign is None else xp.take(rho, rows)
        inside = _log_cdf_tail(xp, xp.take(h, rows), xp.take(k, rows), r, some, hessian)
        derivatives = [
            put_at_mask(c, tail, t) for t, c in zip(inside, derivatives, strict=True)
        ]
    derivatives = [xp.astype(xp.reshape(p, shape), dtype) for p in derivatives]
    return LogCdf(
        derivatives[0],
        derivatives[1],
        derivatives[2],
        tuple(derivatives[3:]) if hessian else None,
    )


def _log_cdf_central(
    xp: ModuleType, h: Array, k: Array, r: float, rho: Array, hessian: bool
) -> tuple[Array, list[Array]]:
    """Bivariate normal probability, its logarithm and derivatives, accurate where the probability is not small."""
    device = array_api_compat.device(h)
    s = math.sqrt(1 - r * r)
    # |r| <= 0.5 needs no more than 10 nodes for 1e-13 where the probability exceeds 1e-7
    x, w = gauss_legendre(10 if abs(r) <= 0.5 else 32, 0.0, 1.0)
    angle = math.asin(r) * np.append(x, 1.0)  # the last node gives the density itself
    sine = xp.asarray(np.sin(angle), dtype=xp.float64, device=device)[:, None]
    scale = xp.asarray(1 / np.cos(angle) ** 2, dtype=xp.float64, device=device)[:, None]
    weight = xp.asarray(
        w * math.asin(r) / (2 * math.pi), dtype=xp.float64, device=device
    )
    product = h * k if isinstance(rho, float) else h * k * (rho / r if r else 1.0)
    squares = (h * h + k * k) / 2
    integrand = xp.exp((product[None, :] * sine - squares[None, :]) * scale)
    correction = xp.matmul(weight, integrand[:-1, :])
    if not isinstance(rho, float) and r:
        correction = correction * (rho / r)
    normal = special(xp).ndtr(xp.stack([h, k, (k - rho * h) / s, (h - rho * k) / s]))
    probability = normal[0, :] * normal[1, :] + correction
    safe = xp.maximum(probability, _TAIL_PROBABILITY)
    h_slope = _DENSITY * xp.exp(-h * h / 2) * normal[2, :] / safe
    k_slope = _DENSITY * xp.exp(-k * k / 2) * normal[3, :] / safe
    derivatives = [xp.log(safe), h_slope, k_slope]
    if hessian:
        density = integrand[-1, :] / (2 * math.pi * s) / safe
        derivatives += [
            -h * h_slope - rho * density - h_slope * h_slope,
            -k * k_slope - rho * density - k_slope * k_slope,
            density - h_slope * k_slope,
        ]
    return probability, derivatives


def _scaled_probability_and_hazard(xp: ModuleType, t: Array) -> tuple[Array, Array]:
    """Scaled normal probability ``Phi(t) exp(min(t, 0)^2 / 2)`` and hazard ``phi(t) / Phi(t)``, without overflow."""
    below = clip(t, None, 0.0)
    above = clip(t, 0.0, None)
    scaled = special(xp).erfcx(below * -math.sqrt(0.5)) * special(xp).ndtr(above)
    return scaled, _DENSITY * xp.exp(-above * above / 2) / scaled


def _hazard_excess(xp: ModuleType, t: Array, hazard: Array) -> Array:
    """Excess of the hazard, ``phi(t) / Phi(t) + t``, without cancellation at large negative ``t``."""
    far = clip(t, None, -_SERIES_FROM)
    u = 1 / (far * far)
    series = -(1 - u * (2 - u * (10 - u * 74))) / far
    return xp.where(t < -_SERIES_FROM, series, hazard + t)


def _log_cdf_tail(
    xp: ModuleType, h: Array, k: Array, r: float, rho: Array, hessian: bool
) -> list[Array]:
    """Logarithm and derivatives of the bivariate normal probability in the tails, by quadrature.

    The variable is the distance to the nearer boundary. With h <= k the integrand ``phi(h - a) Phi((k - rho (h - a)) / s)``,
    divided by its value at a = 0, is log-concave with curvature of at least 1 and its mode is at or next to a = 0; all that
    is needed are its averages.
    """
    device = array_api_compat.device(h)
    s = math.sqrt(1 - r * r)
    swap = k < h
    h, k = xp.where(swap, k, h), xp.where(swap, h, k)
    # nodes of the rule for the tail
    x, w = (
        xp.asarray(v, dtype=xp.float64, device=device)[:, None]
        for v in gauss_legendre(64, 0.0, 1.0)
    )
    t0 = (k - rho * h) / s
    scaled0, hazard0 = _scaled_probability_and_hazard(xp, t0)
    slope = h + rho / s * hazard0
    decay = xp.sqrt(slope * slope + 2 * _TAIL_DECAY)
    # the positive solution of -slope a + a^2 / 2 = decay, in the form that does not cancel
    width = xp.where(
        slope < 0,
        2 * _TAIL_DECAY / (decay + xp.abs(slope)),
        decay + clip(slope, 0.0, None),
    )
    a = width[None, :] * x
    step = a * (rho / s)
    t = t0[None, :] + step
    scaled, hazard = _scaled_probability_and_hazard(xp, t)
    # min(t, 0)^2 - min(t0, 0)^2 from the step itself: t0 may be so large that the step is lost in t
    t0_below = clip(t0, None, 0.0)[None, :]
    t0_above = clip(t0, 0.0, None)[None, :]
    shift = xp.minimum(step + t0_above, -t0_below)
    log_ratio = h[None, :] * a - a * a / 2 - shift * (2 * t0_below + shift) / 2
    f = xp.exp(log_ratio) * (scaled / scaled0[None, :]) * w
    total = xp.sum(f, axis=0)
    h_slope = 1 / (total * width)
    p = f / total[None, :]
    k_slope = xp.sum(p * hazard, axis=0) / s
    value = (
        -h * h / 2
        - clip(t0, None, 0.0) ** 2 / 2
        + xp.log(_DENSITY * scaled0)
        - xp.log(h_slope)
    )
    derivatives = [
        value,
        xp.where(swap, k_slope, h_slope),
        xp.where(swap, h_slope, k_slope),
    ]
    if hessian:
        excess0 = _hazard_excess(xp, t0, hazard0)
        excess = _hazard_excess(xp, t, hazard)
        # hazard(t0) - hazard(t): large on the negative side, where it is the step that is accurate
        fall = xp.where(
            t0[None, :] > 0,
            hazard0[None, :] - hazard,
            step + (excess0[None, :] - excess),
        )
        mean_fall = xp.sum(p * fall, axis=0)
        deviation = fall - mean_fall[None, :]
        h_curvature = -h_slope * xp.sum(p * (a + fall * (rho / s)), axis=0)
        k_curvature = (
            xp.sum(p * deviation * deviation, axis=0)
            - xp.sum(p * hazard * excess, axis=0)
        ) / (1 - r * r)
        mixed = h_slope * mean_fall / s
        derivatives += [
            xp.where(swap, k_curvature, h_curvature),
            xp.where(swap, h_curvature, k_curvature),
            mixed,
        ]
    return derivatives
