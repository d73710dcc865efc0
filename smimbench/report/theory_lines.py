"""Theory against the sample ratio as figures draw it: grid of points, lines, what they need solved, and thresholds."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from smimbench.registry.registry import find_metric, theory_of
from smimbench.report.row import largest_dimension_rows
from smimbench.run.answers import stored_or_none
from smimbench.theory.types import LineQuestion, PointsQuestion, ThresholdsQuestion

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from smimbench.interfaces import Host, Metric
    from smimbench.problem.problem import Problem
    from smimbench.report.row import Row
    from smimbench.run.answers import Answers, Branches
    from smimbench.suite.cells import ProblemPlan, Suite
    from smimbench.theory.types import Question, TheoryPoint, Threshold, Thresholds


UNINFORMED = "uninformed branch (reached by algorithms)"


class Line(NamedTuple):
    """Theoretical curve of one component of the signal: sample ratios ``alpha`` (n,), values (n,) of a metric and their
    numerical errors (n,), for n drawn points.
    """

    alpha: Host
    value: Host
    error: Host


def is_cheap(problem: Problem) -> bool:
    """Return whether theory of a problem is cheap enough for a fine grid of sample ratios."""
    return problem.components == 1 and problem.channel.information is not None


class LineGrid(NamedTuple):
    """Sample ratios at which a theoretical line is drawn or solved: the given ones, a fine grid, nodes for interpolation, and
    those where the curve jumps or has a threshold.

    Attributes
    ----------
    given_alphas : list of float
        Those of rows and suite.
    fine_alphas : list of float
        Many, those of a curve that has been solved.
    node_alphas : list of float
        Some, between which what the solved curve lacks is interpolated.
    jump_alphas : list of float
        Thresholds where the curve may jump.
    threshold_alphas : list of float
        All thresholds, where it may have a kink.
    """

    given_alphas: list[float]
    fine_alphas: list[float]
    node_alphas: list[float]
    jump_alphas: list[float]
    threshold_alphas: list[float]


NODES = 8
"""Nodes between two thresholds; doubled, interpolated errors of prediction change by less than their numerical error."""


BESIDE_THRESHOLD = 1e-4
"""Relative distance between a threshold and the points next to it."""


def line_grid(
    answers: Answers,
    problem: Problem,
    alphas: Iterable[float],
    xlog: bool | None = None,
) -> LineGrid:
    """Choose the sample ratios at which theory is drawn for runs at ``alphas``: slightly more than their range, dense at
    thresholds; evenly spaced on a logarithmic axis if ``xlog``.

    ``xlog``: whether the axis is logarithmic; default: if the sample ratios span decades.
    """
    sorted_alphas = sorted(alphas)
    lowest_alpha, highest_alpha = sorted_alphas[0], sorted_alphas[-1]
    if spans_decades(sorted_alphas):
        first_drawn, last_drawn = lowest_alpha / 1.3, highest_alpha * 1.3
    else:
        margin = (
            0.05 * (highest_alpha - lowest_alpha)
            if highest_alpha > lowest_alpha
            else 0.2 * highest_alpha
        )
        first_drawn, last_drawn = (
            max(lowest_alpha - margin, lowest_alpha / 2),
            highest_alpha + margin,
        )
    marks = threshold_marks(answers.thresholds_or_empty(problem))
    threshold_alphas = sorted(mark.alpha for mark in marks)
    jump_alphas = [mark.alpha for mark in marks if "recovery" in mark.name]
    # A curve may fall steeply towards a threshold: points draw near it from both sides.
    relative_offsets = [*10.0 ** -np.array([1.5, 2, 2.5, 3]), BESIDE_THRESHOLD]
    factors = 1 + np.concatenate([np.negative(relative_offsets), relative_offsets])
    alphas_near_jumps = np.outer(jump_alphas, factors).ravel()
    is_drawn = (first_drawn < alphas_near_jumps) & (alphas_near_jumps < last_drawn)
    alphas_near_jumps = alphas_near_jumps[is_drawn]
    evenly_spaced = _evenly_spaced(first_drawn, last_drawn, xlog)
    fine_grid = np.unique([*evenly_spaced, *sorted_alphas, *alphas_near_jumps])
    inner_thresholds = [
        alpha for alpha in threshold_alphas if first_drawn < alpha < last_drawn
    ]
    starts = np.array([first_drawn, *inner_thresholds]) * (1 + BESIDE_THRESHOLD)
    ends = np.array([*inner_thresholds, last_drawn]) * (1 - BESIDE_THRESHOLD)
    # Denser towards thresholds, as Chebyshev nodes are.
    positions = (1 - np.cos(np.pi * np.arange(NODES) / (NODES - 1))) / 2
    nodes = starts[:, None] + np.outer(ends - starts, positions)
    return LineGrid(
        sorted_alphas,
        fine_grid.tolist(),
        np.unique([*nodes.ravel(), *sorted_alphas, *alphas_near_jumps]).tolist(),
        jump_alphas,
        threshold_alphas,
    )


def has_fine_lines(problem: Problem) -> bool:
    """Return whether theory of a problem is drawn on a fine grid of sample ratios: it is cheap, or can be read from a solved
    curve.
    """
    return problem.components > 1 or is_cheap(problem)


def drawn_ratios(
    suite: Suite, rows: Sequence[Row], alphas: Sequence[float] | None = None
) -> dict[str, set[float]]:
    """Return, for each problem label, the sample ratios that a figure shows: of its rows, and ``alphas`` (or the suite's)."""
    alphas_by_problem = {plan.label: set(alphas or plan.alphas) for plan in suite.plans}
    for row in largest_dimension_rows(
        row for row in rows if row.estimate.mean is not None
    ):
        alphas_by_problem[row.place.problem].add(row.place.alpha)
    return alphas_by_problem


def chart_questions(
    suite: Suite,
    answers: Answers,
    alphas_by_problem: Mapping[str, Iterable[float]],
    metrics: Sequence[str],
) -> Iterator[Question]:
    """Yield the theory questions that ``metric_chart``, ``phase_chart`` and ``theory_lines`` need answered.

    Parameters
    ----------
    answers : Answers
        Those to the questions before: lines are dense near thresholds, and drawn through points where there is no line.
    alphas_by_problem : mapping
        Sample ratios that are drawn, by label of the problem.
    """
    for plan in suite.chosen_plans:
        problem = plan.problem
        if problem.no_theory is not None:
            continue
        yield ThresholdsQuestion(problem, if_cheap=True)
        grid = line_grid(answers, problem, alphas_by_problem[plan.label])
        if has_fine_lines(problem):
            yield LineQuestion(problem, tuple(grid.fine_alphas))
        other_metrics = [
            metric
            for metric in metrics
            if not _is_on_line(answers, problem, metric, grid)
        ]
        if other_metrics:
            yield PointsQuestion(problem, tuple(grid.given_alphas))
        points = stored_or_none(answers.points, problem, grid.given_alphas[:1])
        has_values = points is not None and any(
            _theory_of(metric, problem, points[0][0])[0][0] is not None
            for metric in other_metrics
        )
        if has_values and _has_line(answers, problem, grid):
            yield PointsQuestion(problem, tuple(grid.node_alphas))


def _has_line(answers: Answers, problem: Problem, grid: LineGrid) -> bool:
    """Return whether theory on a line's grid is stored: points between are then quick, too."""
    if not has_fine_lines(problem):
        return False
    return answers.line_or_none(problem, grid.fine_alphas) is not None


def _is_on_line(
    answers: Answers, problem: Problem, metric: str, grid: LineGrid
) -> bool:
    """Return whether stored theory on a line's grid of sample ratios includes a metric; it may lack generalization errors."""
    line = (
        answers.line_or_none(problem, grid.fine_alphas)
        if has_fine_lines(problem)
        else None
    )
    if line is None:
        return False
    values, _ = _theory_of(metric, problem, line[0][0])
    return values[0] is not None


def _theory_of(
    metric: str, problem: Problem, point: TheoryPoint
) -> tuple[Sequence[float | None], Sequence[float | None]]:
    """Return the values (P,) of a metric at a fixed point of the theory, and their numerical errors (P,)."""
    metric_item = find_metric(metric, problem.model.name)
    return theory_of(metric_item, problem, point, problem.components)


def theory_lines(
    answers: Answers,
    plan: ProblemPlan,
    metric: str,
    alphas: Iterable[float],
    component_index: int,
    xlog: bool | None = None,
) -> dict[str, Line]:
    """Compute the theoretical lines of a metric of one component (index from 0), by name: Bayes-optimal, and uninformed where
    that differs. They are on a fine grid of sample ratios, or interpolated between some of them.

    The lines are ``optimum_name`` and, where it is another one, that of an uninformed start; none where theory is not stored.
    """
    problem = plan.problem
    grid = line_grid(answers, problem, alphas, xlog)
    line_alphas, jump_alphas = grid.fine_alphas, None
    points: list[Branches] | None = None
    if _is_on_line(answers, problem, metric, grid):
        points = answers.line_or_none(problem, line_alphas)
    elif _has_line(answers, problem, grid):
        line_alphas, jump_alphas = grid.node_alphas, grid.threshold_alphas
        points = stored_or_none(answers.points, problem, line_alphas)
    if points is None:
        line_alphas, jump_alphas = grid.given_alphas, grid.jump_alphas
        points = stored_or_none(answers.points, problem, line_alphas)
    optimal_points: list[tuple[float, float, float]] = []
    uninformed_points: list[tuple[float, float, float]] = []
    branches_differed = False
    for alpha, branches in zip(line_alphas, points or ()):
        uninformed_point = next(
            (
                branch_point
                for branch_point in branches
                if branch_point.branch == "uninformed"
            ),
            branches[0],
        )
        branches_differ = uninformed_point is not branches[0]
        for line_points, point, is_shown in (
            (optimal_points, branches[0], True),
            # With the point where they meet again.
            (uninformed_points, uninformed_point, branches_differ or branches_differed),
        ):
            values, errors = _theory_of(metric, problem, point)
            value, error = values[component_index], errors[component_index]
            if is_shown and value is not None:
                line_points.append((alpha, value, error or 0.0))
        branches_differed = branches_differ
    lines = {}
    for name, line_points in (
        (
            optimum_name(find_metric(metric, problem.model.name), problem),
            optimal_points,
        ),
        (UNINFORMED, uninformed_points),
    ):
        if line_points:
            line = Line(*np.array(line_points, dtype=float).T)
            lines[name] = line if jump_alphas is None else smooth(line, jump_alphas)
    return lines


def optimum_name(metric: Metric, problem: Problem) -> str:
    """Return the legend of the line of a metric of the Bayes-optimal estimate, which is optimal only in a metric that it
    bounds.
    """
    is_bound = metric.bounded is not None and metric.bounded(problem.model)
    return "Bayes-optimal" if is_bound else "predicted (posterior mean)"


def _evenly_spaced(
    lowest_alpha: float, highest_alpha: float, xlog: bool | None = None
) -> Host:
    """Return sample ratios from the lowest to the highest that are evenly spaced on the drawn axis (logarithmic if ``xlog``)."""
    if xlog is None:
        xlog = spans_decades([lowest_alpha, highest_alpha])
    spacing = np.geomspace if lowest_alpha > 0 and xlog else np.linspace
    return spacing(lowest_alpha, highest_alpha, 120)


def smooth(line: Line, jump_alphas: Iterable[float]) -> Line:
    """Interpolate a theoretical line over the sample ratio by monotone cubics without overshoot, with breaks at the ratios
    ``jump_alphas`` where it jumps.

    Between the last point before a threshold and the first one after it nothing is known: a NaN leaves a gap in the line, unless
    both are next to the threshold.
    """
    from scipy.interpolate import PchipInterpolator

    segments: list[Line] = []
    split_indices = np.searchsorted(line.alpha, sorted(jump_alphas), side="right")
    for segment_alphas, *segment_columns in zip(
        *(np.split(column, split_indices) for column in line)
    ):
        if not len(segment_alphas):
            continue
        if (
            segments
            and segment_alphas[0] > (1 + 4 * BESIDE_THRESHOLD) * segments[-1].alpha[-1]
        ):
            segments.append(Line(segment_alphas[:1], *np.full((2, 1), np.nan)))
        if len(segment_alphas) > 2:
            fine_alphas = _evenly_spaced(segment_alphas[0], segment_alphas[-1])
            interpolated_columns = [
                PchipInterpolator(segment_alphas, column)(fine_alphas)
                for column in segment_columns
            ]
            segments.append(Line(fine_alphas, *interpolated_columns))
        else:
            segments.append(Line(segment_alphas, *segment_columns))
    return Line(*map(np.concatenate, zip(*segments)))


def named_thresholds(
    thresholds: Thresholds, component_name: str = "component"
) -> list[tuple[str, Threshold | None]]:
    """List all thresholds with their names; None for thresholds that do not exist."""
    names_and_thresholds: list[tuple[str, Threshold | None]]
    names_and_thresholds = [("weak recovery", thresholds.weak_recovery)]
    if thresholds.late_recovery:
        names_and_thresholds += [
            ("perfect recovery (informed)", thresholds.perfect_recovery),
            ("perfect recovery (uninformed)", thresholds.late_recovery),
        ]
    else:
        names_and_thresholds.append(("perfect recovery", thresholds.perfect_recovery))
    for step in thresholds.sequential:
        names_and_thresholds.append(
            (f"{component_name} {step.component + 1} learned", step.threshold)
        )
    threshold_by_key = thresholds.by_name()
    return names_and_thresholds + [
        (key.replace("_", "-"), threshold_by_key[key])
        for key in ("information_theoretic", "algorithmic", "spinodal")
    ]


class ThresholdMark(NamedTuple):
    """Threshold in a figure: its sample ratio ``alpha``, name and numerical error."""

    alpha: float
    name: str
    error: float


def threshold_marks(
    thresholds: Thresholds, component_name: str = "component"
) -> list[ThresholdMark]:
    """List all finite thresholds; of equal ones, only the first."""
    marks: list[ThresholdMark] = []
    for name, threshold in named_thresholds(thresholds, component_name):
        alpha = threshold.value if threshold else 0.0
        is_new = not any(abs(alpha - mark.alpha) <= 1e-6 * alpha for mark in marks)
        if threshold and alpha > 0 and is_new:
            marks.append(ThresholdMark(alpha, name, threshold.error))
    return marks


def spans_decades(values: Iterable[float]) -> bool:
    """Return whether positive values span so many decades that a linear axis would hide the small ones."""
    positive_values = [value for value in values if value > 0]
    return bool(positive_values) and max(positive_values) > 20.0 * min(positive_values)
