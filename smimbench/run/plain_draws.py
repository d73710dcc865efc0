"""Checks theory by Monte Carlo draws of teacher and posterior: ``smimbench theory --verify``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from smimbench.interfaces import Conditions
from smimbench.problem.problem import Assuming
from smimbench.run.theory_process import Progress
from smimbench.run.theory_solver import OnProgress
from smimbench.suite.cells import ProblemPlan, Suite, build_algorithm
from smimbench.theory.predictions import own_theory
from smimbench.theory.types import TheoryPoint
from smimbench.theory.verification import RESOLVE, Check, verify_point


class DrawnTheory(Protocol):
    """Protocol of a problem's theory whose points are checked by draws (``ProblemTheory`` is one)."""

    @property
    def points(self) -> Sequence[TheoryPoint]:
        """All points of the theory."""
        ...

    @property
    def predicted(self) -> Sequence[tuple[str, float]]:
        """Pairs of algorithm label and sample ratio for which there is a prediction."""
        ...


def draw_checks(
    suite: Suite,
    theories: Sequence[DrawnTheory],
    resolve: float = RESOLVE,
    on_progress: OnProgress = lambda problem, progress: None,
) -> list[list[Check]]:
    """Check the theory of a suite's problems by Monte Carlo draws at every point.

    Parameters
    ----------
    theories : sequence
        Of every problem; of its algorithms those with wrong assumptions are drawn.
    resolve : float
        As many draws are made as show a relative error of this size.
    """
    return [
        [
            *_checks_of_points(plan, theory.points, resolve, on_progress),
            *_checks_of_assumptions(suite, plan, theory.predicted),
        ]
        for plan, theory in zip(suite.chosen_plans, theories)
    ]


def _checks_of_points(
    plan: ProblemPlan,
    points: Sequence[TheoryPoint],
    resolve: float,
    on_progress: OnProgress,
) -> Iterator[Check]:
    """Yield Monte Carlo checks of the points of a problem."""
    for k, point in enumerate(points):
        count = 0

        def on_draws(draws: int, k: int = k) -> None:
            nonlocal count
            count += draws
            note = f"{count} draws at this point"
            on_progress(plan.problem, Progress(k, len(points), note=note))

        on_progress(plan.problem, Progress(k, len(points)))
        checks = verify_point(
            plan.problem, point, resolve, clock=time.perf_counter, on_draws=on_draws
        )
        for check in checks:
            yield replace(check, alpha=point.alpha, branch=point.branch)
        on_progress(plan.problem, Progress(k + 1, len(points)))


def _checks_of_assumptions(
    suite: Suite, plan: ProblemPlan, places: Sequence[tuple[str, float]]
) -> Iterator[Check]:
    """Yield Monte Carlo checks of predictions for algorithms that assume another channel or prior."""
    specs = {plan.label: plan.spec for plan in suite.algorithms}
    for label, alpha in places:
        algorithm = build_algorithm(specs[label], plan.problem)
        if not isinstance(algorithm, Assuming):
            continue
        if not algorithm.assumed(plan.problem).is_assumed:
            continue
        conditions = Conditions(start=suite.run.start)
        prediction = own_theory(algorithm, plan.problem, alpha, conditions)
        if not isinstance(prediction, str) and prediction.draws is not None:
            for check in prediction.draws():
                yield replace(check, alpha=alpha, branch=label)
