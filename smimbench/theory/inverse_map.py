"""The prior's map from Qhat to overlaps, backwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.numerics.linalg import spectral_function, symmetric_logarithm
from smimbench.theory.information import overlap_at, prior_moments
from smimbench.theory.types import NOTHING, Host

if TYPE_CHECKING:
    from collections.abc import Callable

    from smimbench.problem.problem import Problem

__all__ = ["inverse_map"]


def inverse_map(problem: Problem, Q: Host, V: Host, learned: Any) -> Host:
    """The Qhat (P, P) at which the prior's map gives the overlap Q and the error V; 0 for components that are not learned."""
    from scipy.optimize import root

    second, bottom = prior_moments(problem)
    kept = np.ix_(learned, learned)
    upper = np.triu_indices(len(learned))
    diagonal = not (np.abs(Q - bottom)[kept] * (1 - np.eye(len(learned))) > NOTHING).any()
    free = (np.arange(len(learned)),) * 2 if diagonal else upper
    spread = (second - bottom)[kept]

    def full(log: Host) -> Host:
        matrix = np.zeros_like(spread)
        matrix[free] = log
        matrix = matrix + np.triu(matrix, 1).T
        found = np.zeros_like(Q)
        found[kept] = spectral_function(matrix, np.exp)
        return found

    def position(Q: Host, V: Host) -> Host:
        """Increases from minus to plus infinity with what is known: log Q at one end, -log V at the other."""
        gap: Host = symmetric_logarithm((Q - bottom)[kept]) - symmetric_logarithm(V[kept])
        return gap[free]

    target = position(Q, V)
    start = target - symmetric_logarithm(spread)[free]  # exact for Gaussian signals

    def gap(log: Host) -> Host:
        return position(*overlap_at(problem, full(log))) - target

    if len(start) == 1:
        return full(np.array([_scalar_inverse(lambda x: float(gap(np.array([x]))[0]), float(start[0]))]))
    return full(root(gap, start, tol=1e-12).x)


def _scalar_inverse(gap: Callable[[float], float], start: float) -> float:
    """Root of an increasing function."""
    from scipy.optimize import brentq

    low, high = start - 1.0, start + 1.0
    while gap(low) > 0:
        low -= 4.0
    while gap(high) < 0:
        high += 4.0
    return float(brentq(gap, low, high, xtol=1e-13, rtol=1e-13))
