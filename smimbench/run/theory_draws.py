"""Checks the theory of a suite by plain Monte Carlo draws, point by point: ``smimbench theory --verify``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from smimbench.interfaces import Conditions
from smimbench.problem.problem import AlgorithmWithAssumption
from smimbench.run.theory_solver import OnProgress, Progress
from smimbench.suite.cells import ProblemPlan, Suite, build_algorithm
from smimbench.theory.predictions import own_theory
from smimbench.theory.types import Check, TheoryPoint
from smimbench.theory.verification import RESOLVED_DEVIATION, verify_point


class DrawnTheory(Protocol):
    """Protocol of a problem's theory whose points are checked by Monte Carlo draws (``ProblemTheory`` is one)."""

    @property
    def points(self) -> Sequence[TheoryPoint]:
        """All fixed points of the theory, at all sample ratios."""
        ...

    @property
    def predicted(self) -> Sequence[tuple[str, float]]:
        """Pairs of algorithm label and sample ratio for which theory predicts the algorithm."""
        ...


def draw_checks(
    suite: Suite,
    theories: Sequence[DrawnTheory],
    resolution: float = RESOLVED_DEVIATION,
    on_progress: OnProgress = lambda problem, progress: None,
) -> list[list[Check]]:
    """Check the theory of a suite's problems (``theories``) by Monte Carlo draws at every point, down to a relative
    deviation ``resolution``; ``on_progress`` reports to the user.

    Parameters
    ----------
    theories : sequence
        Of every problem; of its algorithms those with wrong assumptions are drawn.
    resolution : float
        As many draws are made as show a relative error of this size.
    """
    return [
        [
            *_checks_of_points(plan, theory.points, resolution, on_progress),
            *_checks_of_assumptions(suite, plan, theory.predicted),
        ]
        for plan, theory in zip(suite.chosen_plans, theories)
    ]


def _checks_of_points(
    plan: ProblemPlan,
    points: Sequence[TheoryPoint],
    resolution: float,
    on_progress: OnProgress,
) -> Iterator[Check]:
    """Yield Monte Carlo checks of the fixed points of the theory of a problem (``plan``), each down to a relative deviation
    ``resolution``.
    """
    for point_index, point in enumerate(points):
        draw_count = 0

        def on_draws(draws: int, point_index: int = point_index) -> None:
            """Report how many Monte Carlo draws were made so far at the fixed point of this index."""
            nonlocal draw_count
            draw_count += draws
            note = f"{draw_count} draws at this point"
            on_progress(plan.problem, Progress(point_index, len(points), note=note))

        on_progress(plan.problem, Progress(point_index, len(points)))
        checks = verify_point(
            plan.problem, point, resolution, clock=time.perf_counter, on_draws=on_draws
        )
        for check in checks:
            yield replace(check, alpha=point.alpha, branch=point.branch)
        on_progress(plan.problem, Progress(point_index + 1, len(points)))


def _checks_of_assumptions(
    suite: Suite, plan: ProblemPlan, predicted_places: Sequence[tuple[str, float]]
) -> Iterator[Check]:
    """Yield Monte Carlo checks of predictions for algorithms that assume another channel or prior, at ``predicted_places``:
    pairs of algorithm label and sample ratio.
    """
    specs = {plan.label: plan.spec for plan in suite.algorithms}
    for label, alpha in predicted_places:
        algorithm = build_algorithm(specs[label], plan.problem)
        if not isinstance(algorithm, AlgorithmWithAssumption):
            continue
        if not algorithm.assumed(plan.problem).is_assumed:
            continue
        conditions = Conditions(start=suite.run.start)
        prediction = own_theory(algorithm, plan.problem, alpha, conditions)
        if not isinstance(prediction, str) and prediction.draws is not None:
            for check in prediction.draws():
                yield replace(check, alpha=alpha, branch=label)
