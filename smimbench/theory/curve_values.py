"""Analysis of values along a curve: where it turns, the error of interpolation, how far it is resolved, and its limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smimbench.theory.types import Threshold

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smimbench.interfaces import Array

__all__ = ["FAINTEST", "interpolation_error", "limit_of", "resolved", "turns"]

SMALL, SLOWEST, FAINTEST = 1e-3, 0.5, 1e-150
"""Errors below the first (of what the prior mean leaves) fall at least with this power of Qhat, down to the third; else the
curve ends."""


def turns(values: Array, noise: Array) -> list[tuple[int, str]]:
    """Inner local extrema of a sequence, ``(index, "max" or "min")``.

    From each of them it moves away by more than its noise on both sides.
    """
    found: list[tuple[int, str]] = []
    direction, highest, lowest = 0, 0, 0
    for j in range(1, len(values)):
        if direction >= 0:
            if values[j] > values[highest]:
                highest = j
            elif values[j] < values[highest] - max(noise[j], noise[highest]):
                found += [(highest, "max")] if direction else []
                direction, lowest = -1, j
                continue
        if direction <= 0:
            if values[j] < values[lowest]:
                lowest = j
            elif values[j] > values[lowest] + max(noise[j], noise[lowest]):
                found += [(lowest, "min")] if direction else []
                direction, highest = 1, j
    return found


def interpolation_error(nodes: Array, alpha: Array) -> Array:
    """Relative error (G,) of alpha interpolated between nodes: from what each node says that its neighbours do not.

    Without a node, the gap is twice as wide, and a cubic interpolant about eight times worse.
    """
    from scipy.interpolate import PchipInterpolator

    found, finite = np.zeros(len(nodes)), np.flatnonzero(np.isfinite(alpha))
    x, y = nodes[finite], np.log(alpha[finite])
    for i in range(1, len(x) - 1):
        others = np.delete(np.arange(max(0, i - 4), min(len(x), i + 5)), i - max(0, i - 4))
        if len(others) > 3:
            found[finite[i]] = abs(float(PchipInterpolator(x[others], y[others])(x[i])) - y[i]) / 8
    return found


def resolved(V: Array, log_qhat: Array, unknown: float, faintest: float = FAINTEST) -> int:
    """Nodes up to which V falls as it should: a prior stops where more makes no difference in double precision."""
    if not (SMALL * unknown > V).any():
        return len(V)
    with np.errstate(divide="ignore", invalid="ignore"):
        fall = -np.diff(np.log(V)) / np.diff(log_qhat)
    bad = (V[1:] < SMALL * unknown) & ~((fall > SLOWEST) & (V[1:] > faintest * unknown))
    return int(np.argmax(bad)) + 1 if bad.any() else len(V)


def limit_of(values: Sequence[float]) -> Threshold:
    """Limit of a sequence taken at geometrically spaced points, by Aitken's extrapolation; error from its last step."""
    terms = np.asarray(values, dtype=float)
    first, second = np.diff(terms)[:-1], np.diff(terms)[1:]
    bend = second - first
    usable = np.abs(bend) > 1e-13 * np.abs(terms[2:])
    limits = np.where(usable, terms[2:] - second**2 / np.where(usable, bend, 1.0), terms[2:])
    # An extrapolation that moves further than the sequence itself did is noise.
    limits = np.where(np.abs(limits - terms[2:]) <= 3 * np.abs(second) + 1e-300, limits, terms[2:])
    spread = abs(limits[-1] - limits[-2]) if len(limits) > 1 else abs(limits[-1] - terms[-1])
    return Threshold(float(limits[-1]), float(spread + 1e-12 * abs(limits[-1])))
