"""The error V of an estimate as a function of the information about the signal: a smooth curve through values on a
logarithmic grid that are dear to compute.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LOWEST", "below_linear", "error_curve"]

Host = np.ndarray[Any, np.dtype[np.float64]]

LOWEST = 1e-9
"""Qhat below which nothing is known; ten times as much leaves out a decade of the curve."""
HIGHEST = 1e16
"""Qhat up to which the curve is computed; a tenth leaves out a decade."""
COARSE = 2
"""Values per decade of Qhat far from the precision of the prior; doubled, a curve costs about a third more."""
STILL = 3
"""Values without change after which the rest of the curve is taken as flat; doubled, a curve costs three values more."""
LITTLE = 1e-6
"""Qhat times variance below which the error of the linear estimate is taken; its relative error is about as large."""


def error_curve(
    exact: Callable[[Any], Any], variance: float, *, together: bool = False, finest: int = 16, steady: float = 1e-7
) -> Callable[[Host], Host]:
    """``V(information)`` for any information, from values on a logarithmic grid.

    Interpolated is ``log(V (1/variance + information))``, which tends to constants at both ends: it is how much better than
    the best linear estimate the estimate is. ``together``: ``exact`` takes the whole grid at once. ``finest``: values
    per decade where most happens. ``steady``: relative change from one value to the next at which the rest is left out.
    """
    from scipy.interpolate import PchipInterpolator

    # Between a tenth of the prior's precision and a thousand times that a signal with structure is found out.
    centre = math.log10(1 / variance)
    ends = math.log10(LOWEST), centre - 1, centre + 3, math.log10(HIGHEST)
    rates = (COARSE, finest, COARSE)
    parts = [
        np.linspace(low, high, round((high - low) * rate) + 1)[:-1] for low, high, rate in zip(ends, ends[1:], rates)
    ]
    x = np.append(np.concatenate(parts), ends[-1]) * math.log(10)
    count, grid = len(x), np.exp(x)
    if together:
        gain = np.log(np.clip(exact(grid), 1e-300, variance) * (1 / variance + grid))
    else:
        gain = np.zeros(count)
        still = 0
        for i, information in enumerate(grid):
            # Far out at the upper end nothing changes any more.
            if still == STILL:
                gain[i] = gain[i - 1]
                continue
            value = min(max(exact(information), 1e-300), variance)
            gain[i] = math.log(value * (1 / variance + information))
            still = still + 1 if i and information * variance > 100 and abs(gain[i] - gain[i - 1]) < steady else 0
    interpolant = PchipInterpolator(x, gain)

    def error(information: Host) -> Host:
        information = np.asarray(information, dtype=np.float64)
        inside = np.clip(information, LOWEST, HIGHEST)
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.exp(interpolant(np.log(inside))) / (1 / variance + information)
        return np.where(np.isnan(information), np.nan, np.where(information <= 0, variance, found))

    return error


def below_linear(error: Host, information: Host, variance: float) -> Host:
    """The error of the best estimate, which is at most that of the best linear one, and equal to it where little is known.

    There the overlap is the small difference of two large numbers, and rounding could even make it negative.
    """
    linear = variance / (1 + variance * information)
    return np.where(variance * information < LITTLE, linear, np.minimum(error, linear))
