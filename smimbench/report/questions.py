"""List the theory questions whose answers the tables, verdicts and figures of a suite's results need."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from smimbench.interfaces import ParameterError
from smimbench.registry.registry import RegistryError
from smimbench.report.figures import chart_questions, drawn_ratios
from smimbench.report.learning_curves import course_questions
from smimbench.report.results import Results
from smimbench.report.rows import places_of, prediction_question, sample_ratio
from smimbench.run.external import Point, kept_scores
from smimbench.run.loop import Status
from smimbench.theory.types import PointsQuestion, Question, ThresholdsQuestion


def table_questions(results: Results) -> Iterator[Question]:
    """Yield the questions of tables and verdicts: Bayes-optimal points, predictions for the algorithms, and thresholds.

    Points are asked for at the sample ratios that the runs used, thresholds only where a run did not converge.
    """
    places = places_of(results.pairs, results.suite)
    alphas: dict[str, set[float]] = {plan.label: set() for plan in results.suite.plans}
    for cell, runs in places:
        alphas[cell.problem_label].add(runs.place.alpha)
    for label, ratios in alphas.items():
        if ratios:
            problem = results.suite.problems[label]
            yield PointsQuestion(problem, tuple(sorted(ratios)))
    yield from point_questions(kept_scores(results.suite, results.store)[0])
    for cell, runs in places:
        problem, records = runs.problem, runs.records
        if problem.no_theory is not None:
            continue
        with contextlib.suppress(RegistryError, ParameterError):  # the row says so
            yield prediction_question(problem, cell, runs.place.alpha, records)
        if any(record.status == Status.NOT_CONVERGED for record in records):
            yield ThresholdsQuestion(problem)


def point_questions(points: Iterable[Point]) -> Iterator[Question]:
    """Yield the Bayes-optimal points that rows of external estimates are compared with."""
    for point in points:
        problem = point.plan.problem
        ratio = sample_ratio(problem, point.alpha, point.dimension)
        yield PointsQuestion(problem, (ratio,))


def figure_questions(results: Results) -> Iterator[Question]:
    """Yield the questions that figures need besides those of tables; later ones may depend on answers to earlier ones."""
    suite = results.suite
    used = drawn_ratios(suite, results.rows)
    yield from chart_questions(suite, results.answers, used, suite.run.metrics)
    yield from course_questions(results)
