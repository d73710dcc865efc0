"""Questions to theory as values; tables, verdicts and figures list the ones that they need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smimbench.interfaces import Conditions
    from smimbench.problem.problem import Problem, Specification


NO_THEORY = "it brings no theory of its own"
"""Why nothing is predicted for an algorithm that has no ``theory``."""


@dataclass(frozen=True, eq=False)
class Question:
    """Base class of questions to theory about a problem."""

    problem: Problem


@dataclass(frozen=True, eq=False)
class PointsQuestion(Question):
    """Question for the fixed points of state evolution at several sample ratios, the Bayes-optimal one first."""

    alphas: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class LineQuestion(Question):
    """Question for all points along a line of a figure, answered together."""

    alphas: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class ThresholdsQuestion(Question):
    """Question for the critical sample ratios of a problem; with ``if_cheap`` only if that does not take minutes."""

    if_cheap: bool = False


@dataclass(frozen=True, eq=False)
class PredictionQuestion(Question):
    """Question for the prediction of an algorithm at a sample ratio, under the conditions of its runs."""

    algorithm: Specification
    alpha: float
    conditions: Conditions
