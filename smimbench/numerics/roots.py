"""Finds roots of a function of one variable in many brackets at once.

``scipy.optimize.elementwise.find_root`` is the same method and gives the same roots to 1e-14. Importing ``scipy.optimize``
takes 0.2 s, which makes ``smimbench theory quickstart`` a quarter slower (0.73 to 0.92 s of processor time).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from smimbench.interfaces import Host


def bracketed_roots(
    function: Callable[[Host, Host], Host],
    lower: Host,
    upper: Host,
    *,
    tolerance: float = 1e-14,
    values: tuple[Host, Host] | None = None,
) -> Host:
    """Find one root of ``function(x, bracket_index)``, to a relative ``tolerance``, in each of many brackets from ``lower`` to
    ``upper``, by Chandrupatla's method; NaN where the function has one sign at both ends. ``a`` is the latest point, ``b`` the
    other end of the bracket, ``c`` the end given up last, fa, fb, fc the function there (``values``: at both ends, if known);
    xi and phi tell whether inverse quadratic interpolation is safe.

    Inverse quadratic interpolation where the three latest points promise that it works, otherwise bisection: never slower
    than bisection by more than a step, and usually as fast as Newton's method.

    Parameters
    ----------
    function : callable
        ``function(x, index)``: values at ``x`` (k,) for the brackets ``bracket_index`` (k,).
    lower, upper : ndarray (n,)
        Ends of the brackets.
    tolerance : float
        A bracket is narrow enough at ``tolerance * (1 + |x|)``.
    values : tuple of ndarray (n,), optional
        The function at the lower and the upper ends, if they are known.

    Returns
    -------
    ndarray (n,)
        NaN where the function does not change its sign.

    References
    ----------
    T. R. Chandrupatla, Adv. Eng. Software 28 (1997) 145; checked by tests/numerics/test_roots.py.
    """
    lower = np.array(lower, dtype=float)
    upper = np.array(upper, dtype=float)
    roots = np.full(lower.shape, np.nan)
    bracket_index = np.arange(lower.size)
    a, b = upper, lower  # a: latest point; b: the opposite end of the bracket
    fb, fa = (
        (function(b, bracket_index), function(a, bracket_index))
        if values is None
        else values
    )
    is_root = (fa == 0) | (fb == 0)
    roots[is_root] = np.where(fa == 0, a, b)[is_root]
    is_active = ~is_root & (np.sign(fa) * np.sign(fb) < 0)
    bracket_index, a, b, fa, fb = (
        bracket_array[is_active] for bracket_array in (bracket_index, a, b, fa, fb)
    )
    step_fraction = np.full(a.shape, 0.5)
    # bisection alone needs at most 60 rounds
    for _ in range(200):
        if not bracket_index.size:
            break
        x = a + step_fraction * (b - a)
        fx = function(x, bracket_index)
        has_same_sign = np.sign(fx) == np.sign(fa)
        # c is the point that leaves the bracket
        c = np.where(has_same_sign, a, b)
        fc = np.where(has_same_sign, fa, fb)
        b = np.where(has_same_sign, b, a)
        fb = np.where(has_same_sign, fb, fa)
        a = x
        fa = fx
        best_end = np.where(np.abs(fa) < np.abs(fb), a, b)
        roots[bracket_index] = best_end
        smallest_step = (
            tolerance * (1 + np.abs(best_end)) / np.maximum(np.abs(b - a), 1e-300)
        )
        is_active = (smallest_step <= 0.5) & (fa != 0) & (fb != 0)
        bracket_index, a, b, c, fa, fb, fc, smallest_step = (
            bracket_array[is_active]
            for bracket_array in (bracket_index, a, b, c, fa, fb, fc, smallest_step)
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            xi = (a - b) / (c - b)
            phi = (fa - fb) / (fc - fb)
            quadratic_step = fa / (fb - fa) * fc / (fb - fc) + (c - a) / (
                b - a
            ) * fa / (fc - fa) * fb / (fc - fb)
            can_interpolate = (
                (phi**2 < xi) & ((1 - phi) ** 2 < 1 - xi) & np.isfinite(quadratic_step)
            )
        step_fraction = np.clip(
            np.where(can_interpolate, quadratic_step, 0.5),
            smallest_step,
            1 - smallest_step,
        )
    return roots
