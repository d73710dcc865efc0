"""Questions that theory answers, as values: what tables, verdicts and figures need is a list of these."""

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
    """A question about a problem."""

    problem: Problem


@dataclass(frozen=True, eq=False)
class PointsQuestion(Question):
    """The branches of state evolution at each of these sample ratios, the Bayes-optimal one first."""

    alphas: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class LineQuestion(Question):
    """Question for the points along a whole line of a figure, which is one answer."""

    alphas: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class ThresholdsQuestion(Question):
    """Critical sample ratios; with ``if_cheap`` only where that does not take minutes."""

    if_cheap: bool = False


@dataclass(frozen=True, eq=False)
class PredictionQuestion(Question):
    """Question for the prediction of an algorithm (its specification) at a sample ratio, under the conditions of its runs."""

    algorithm: Specification
    alpha: float
    conditions: Conditions
