"""Whether the components of a problem are learned apart from one another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smimbench.theory.information import diagonals, information_at, overlap_at, prior_moments
from smimbench.theory.types import NOTHING

if TYPE_CHECKING:
    from smimbench.problem.problem import Problem
    from smimbench.theory.types import Host

__all__ = ["components_decouple"]


def components_decouple(problem: Problem) -> bool:
    """Whether overlaps that start diagonal stay diagonal, and components at their lowest stay there when others are learned.

    The first by symmetry, where no label sees the sign of a component. Otherwise the information is probed at the prior mean
    and at two diagonal overlaps: its off-diagonal part has to vanish within its error. The second is what a channel claims
    that knows its ``susceptibility``; of any other it is probed. A product of two components is learned by both at once:
    knowing one teaches the other.
    """
    P = problem.components
    bottom = prior_moments(problem)[1]
    if np.any(bottom != np.diag(np.diagonal(bottom))):
        return False
    if P > 1 and problem.channel.susceptibility is None and _teach_each_other(problem):
        return False
    if problem.channel.symmetry in ("signs", "signed-permutations"):
        return True
    for probe in (np.zeros(P), 0.7 * 1.9 ** np.arange(P), 5.0 / 1.7 ** np.arange(P)):
        value, error, _ = information_at(problem, *overlap_at(problem, np.diag(probe)))
        scale = np.sqrt(np.outer(np.diagonal(value), np.diagonal(value)))
        mixed = np.abs(value) > 4 * error + 1e-6 * scale + 1e-12
        if np.any(mixed & ~np.eye(P, dtype=bool)):
            return False
    return True


def _teach_each_other(problem: Problem) -> bool:
    """Whether a component that has no information at the prior mean gets some from another one."""
    P = problem.components

    def information(probe: Host) -> tuple[Host, Host]:
        return diagonals(information_at(problem, *overlap_at(problem, np.diag(probe))))

    value, error = information(np.zeros(P))
    silent = value <= np.maximum(NOTHING, 4 * error)
    for a in range(P):
        value, error = information(np.where(np.arange(P) == a, 1.0, 0.0))
        taught = silent & (np.arange(P) != a) & (value > 4 * error + 1e-4 * value.max())
        if taught.any():
            return True
    return False
