"""The penalty at which convex risk minimisation has its smallest error in the limit."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from smimbench_algorithms.erm.fixed_point import EASY, PenaltyPath, best_length, evaluations, keyed
from smimbench_algorithms.erm.losses import LOSSES

if TYPE_CHECKING:
    from smimbench.numerics.memo import Named
    from smimbench.problem import Problem

__all__ = ["PENALTIES", "best_penalty"]

PENALTIES = (1e-12, 1e12)
"""Smallest and largest penalty there is. A wider range: estimates that are as good as not penalised, or zero."""

STEP = float(np.log(10.0))
"""Distance of the penalties that are tried, in the logarithm. Halved: a second minimum would hardly be missed."""

PAST = 0.02
"""How much the error has to grow, or what was gained to shrink, for the minimum to be behind. Doubled: one penalty more."""

FLAT = 1e-12
"""Relative change from one penalty to the next below which the error has its value at infinity. Doubled: one penalty fewer."""

NARROW = 1e-5
"""Relative closeness of the best penalty. Doubled: the error above the smallest, 1e-10 of it, is four times as large."""


def best_penalty(problem: Problem, alpha: float, loss: str, length: str) -> float:
    """The penalty of the smallest MSE in the limit, summed over components, of the estimate at its ``length``.

    Parameters
    ----------
    length : {"posterior", "loss"}
        Whether the estimate is given its best length, or has that of the minimiser.

    Raises
    ------
    ValueError
        If no fixed point is found.
    """
    return _best_of(keyed(problem), float(alpha), loss, length)


@functools.lru_cache(maxsize=256)
def _best_of(named: Named[Problem], alpha: float, loss: str, length: str) -> float:
    from scipy.optimize import minimize_scalar

    problem = named.value
    paths = [PenaltyPath(problem, alpha, LOSSES[loss], k) for k in range(evaluations(problem, loss))]
    prior = float(np.trace(paths[0].T))
    known: dict[float, float] = {}

    def gained(x: float) -> float:
        """Error less that of an estimate of zero, at the logarithm of a penalty."""
        found = [path.overlaps(float(np.exp(x))) for path in paths]
        scale = best_length(found) if length == "posterior" else 1.0
        M, Q = (np.mean([np.trace(each[k]) for each in found]) for k in (1, 2))
        known[x] = float(scale * (scale * Q - 2 * M))
        return known[x]

    def tried(x: float) -> float:
        try:
            return gained(x)
        except ValueError:  # where an overlap or an error is too close to its end for doubles
            return np.inf

    def behind(value: float) -> bool:
        best = min(known.values())
        return prior + value > (1 + PAST) * (prior + best) or value > (1 - PAST) * best

    # From a penalty at which the iteration always settles down to where the minimum is behind; up, where it is there.
    smallest, largest = np.log(PENALTIES)
    start = float(np.log(EASY * max(alpha, 1.0)))
    try:
        gained(start)
    except ValueError as why:
        raise ValueError(f"the best penalty is not found at alpha = {alpha:g} ({why}); give it as a number") from None
    x = start
    while x > smallest:
        x = max(x - STEP, smallest)
        if behind(tried(x)):
            break
    x = start
    while x < largest and min(known, key=known.__getitem__) == x:
        before, x = known[x], min(x + STEP, largest)
        if not tried(x) < before - FLAT * abs(before):
            break
    best = min(known, key=known.__getitem__)
    bounds = max(best - STEP, smallest), min(best + STEP, largest)
    minimize_scalar(tried, bounds=bounds, method="bounded", options={"xatol": NARROW})
    return float(np.exp(min(known, key=known.__getitem__)))
