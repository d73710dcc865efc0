"""Predictions and thresholds of a problem by the appropriate solver, split into parts for parallel work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from smimbench.files import JsonObject
from smimbench.interfaces import Uncertain
from smimbench.numerics.memo import cached_on
from smimbench.problem.problem import Problem
from smimbench.theory.coupled import CoupledCurve
from smimbench.theory.curve import Curve
from smimbench.theory.fixed_point_curve import fixed_point_curve
from smimbench.theory.information import information_at, overlap_at, prior_moments
from smimbench.theory.scalar import GridCurve, scalar_curve
from smimbench.theory.types import Prediction, TheoryPoint, Thresholds

TOGETHER = 4
"""Nodes of a sampled curve in one part for another process; doubled, processes idle longer at the end."""


def curve_of(problem: Problem) -> Curve:
    """Curve of fixed points of a problem, by the appropriate solver; computed once per problem.

    Raises
    ------
    NoTheoryError
        If no theory is known for the inputs.
    """
    problem.require_theory()

    def make() -> Curve:
        return (
            scalar_curve(problem) or fixed_point_curve(problem) or CoupledCurve(problem)
        )

    return cached_on(problem, "curve", make)


def solve(
    problem: Problem, alphas: Sequence[float], branch: str = "uninformed"
) -> list[Prediction]:
    """Predict the fixed point of one branch at several sample ratios.

    Parameters
    ----------
    branch : str
        ``"uninformed"`` (what GAMP reaches from the prior mean) or ``"informed"``.
    """
    if branch not in ("uninformed", "informed"):
        raise ValueError(f"branch must be 'uninformed' or 'informed', got {branch!r}")
    return curve_of(problem).predict([float(alpha) for alpha in alphas], branch)


def competing(problem: Problem, alphas: Sequence[float]) -> list[list[Prediction]]:
    """Predict all competing fixed points at every sample ratio, the Bayes-optimal one first."""
    return curve_of(problem).competing([float(alpha) for alpha in alphas])


def thresholds(problem: Problem) -> Thresholds:
    """Critical sample ratios (thresholds) of a problem."""
    return curve_of(problem).thresholds()


def independent_parts(
    problem: Problem, alphas: Sequence[float]
) -> list[tuple[str, list[float]]]:
    """Split the theory of a problem into independent parts for ``solve_part``: nodes of a curve, or sample ratios.

    A curve that is followed from node to node, or known in closed form, has none.
    """
    curve = curve_of(problem)
    if isinstance(curve, GridCurve):
        log_qhat = [float(x) for x in curve.log_qhat]
        return [
            ("nodes", log_qhat[k : k + TOGETHER])
            for k in range(0, len(log_qhat), TOGETHER)
        ]
    return (
        [("ratio", [float(alpha)]) for alpha in alphas]
        if isinstance(curve, CoupledCurve)
        else []
    )


def solve_part(problem: Problem, task: tuple[str, Sequence[float]]) -> None:
    """Evaluate one independent part of a problem's theory and store it in the problem's ``Nodes``."""
    kind, values = task
    if kind == "nodes":
        information_at(
            problem,
            *overlap_at(
                problem,
                np.exp(np.asarray(values))[:, None, None] * np.eye(problem.components),
            ),
        )
    else:
        competing(problem, values)


def theory_point(
    problem: Problem, prediction: Prediction, errors: dict[str, Uncertain] | None = None
) -> TheoryPoint:
    """Combine a prediction and its generalization errors to a reported theory point."""
    overlap = np.asarray(prediction.Q)
    point = TheoryPoint(
        prediction.alpha,
        prediction.mse,
        prediction.error,
        np.broadcast_to(prediction.alpha_error, prediction.error.shape),
        overlap,
        prediction.branch,
        prediction.method,
        free_entropy=prediction.free_entropy,
    )
    if errors:
        point = replace(
            point,
            generalization_error={kind: e.value for kind, e in errors.items()},
            generalization_error_error={kind: e.error for kind, e in errors.items()},
            generalization_error_method=next(iter(errors.values())).method,
        )
    second = np.diagonal(prior_moments(problem)[0])
    if problem.model.rank != "low" or np.allclose(second, 1, rtol=0, atol=1e-9):
        return point
    return replace(
        point,
        squared_cosine=(np.diagonal(overlap) / second).tolist(),
        squared_cosine_error=(np.asarray(prediction.error) / second).tolist(),
    )


def point_document(problem: Problem, prediction: Prediction) -> JsonObject:
    """Convert a prediction to a point of the theory's JSON, without generalization errors."""
    return theory_point(problem, prediction).document()
