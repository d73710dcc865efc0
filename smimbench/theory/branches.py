"""State evolution of several components: matrix-valued fixed points."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smimbench.theory.information import channel_information
from smimbench.theory.state_evolution import Prediction

if TYPE_CHECKING:
    from smimbench.problem import Problem

__all__ = ["iterate"]

SEED_OVERLAP = 1e-6


def iterate(
    problem: Problem, alpha: float, branch: str = "uninformed", *, tolerance: float = 1e-9, max_iterations: int = 2000
) -> Prediction:
    """Iterate ``Qhat = kappa alpha I(Q)``, ``Q = overlap(Qhat)`` to its fixed point.

    The uninformed branch starts at the prior mean plus a small overlap (so that an unstable fixed point is left), the
    informed one from a nearly perfect estimate. The error combines the last step, extrapolated with the observed rate of
    convergence, and the numerical error of the information.
    """
    P = problem.components
    information = 1e-6 if branch == "uninformed" else 1e8
    overlap = problem.prior.overlap(information * np.eye(P))
    previous, rate = None, 0.0
    step = np.inf
    for _ in range(max_iterations):
        info = channel_information(problem.channel, problem.model, overlap.Q, overlap.V)
        new = problem.prior.overlap(problem.model.kappa * alpha * np.asarray(info.value))
        step = float(np.abs(new.Q - overlap.Q).max())
        if previous:
            rate = min(step / previous, 0.999)
        previous = step
        overlap = new
        if step <= tolerance:
            break
    relative = float(np.max(np.abs(info.error) / np.maximum(np.abs(info.value), 1e-300)))
    error = (step * rate + np.diagonal(overlap.V) * min(relative, 1.0)) / (1 - rate)
    method = info.method if step <= tolerance else f"{info.method}, {max_iterations} iterations were not enough"
    return Prediction(float(alpha), overlap.Q, overlap.V, np.asarray(error), branch, method)
