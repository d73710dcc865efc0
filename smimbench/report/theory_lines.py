"""Theory of a metric against the sample ratio, as figures draw it: the grid of sample ratios, the lines, the theory questions
that they need answered, and the thresholds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from smimbench.registry.registry import find_metric, theory_of
from smimbench.report.row import largest_dimension_rows
from smimbench.run.answers import stored_or_none
from smimbench.theory.types import LineQuestion, PointsQuestion, ThresholdsQuestion

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

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
    """Return whether the theory of a problem is solved so fast that it can be drawn at hundreds of sample ratios: a single
    component, and a channel with its own function for the information.
    """
    return problem.components == 1 and problem.channel.information is not None


class LineGrid(NamedTuple):
    """Sample ratios at which a theoretical line is drawn: ``given_alphas`` of rows and suite, ``fine_alphas`` of a curve that has
    been solved, and ``threshold_alphas``, where it may jump or have a kink.

    Attributes
    ----------
    given_alphas, fine_alphas, threshold_alphas : list of float
        All in increasing order.
    """

    given_alphas: list[float]
    fine_alphas: list[float]
    threshold_alphas: list[float]

    def node_alphas(self, nodes: int) -> list[float]:
        """Return the sample ratios at which slow theory is solved, and between which a line is interpolated: the given ones,
        those next to every threshold, and ``nodes`` more between neighboring thresholds.
        """
        first = self.fine_alphas[0]
        last = self.fine_alphas[-1]
        inner = [alpha for alpha in self.threshold_alphas if first < alpha < last]
        starts = np.array([first, *inner]) * (1 + BESIDE_THRESHOLD)
        ends = np.array([*inner, last]) * (1 - BESIDE_THRESHOLD)
        # Denser towards thresholds, as Chebyshev nodes are.
        relative_positions = (
            1 - np.cos(np.pi * np.arange(nodes) / max(1, nodes - 1))
        ) / 2
        between = starts[:, None] + np.outer(ends - starts, relative_positions)
        alphas_beside_thresholds = [*starts[1:], *ends[:-1]]
        return sorted({*self.given_alphas, *alphas_beside_thresholds, *between.ravel()})


NODES = 8
"""Nodes between two thresholds; doubled, interpolated errors of prediction change by less than their numerical error."""


BESIDE_THRESHOLD = 1e-4
"""Relative distance between a threshold and the points next to it."""


def line_grid(answers: Answers, problem: Problem, alphas: Iterable[float]) -> LineGrid:
    """Choose the sample ratios at which the theory of ``problem`` is drawn beside runs at the sample ratios ``alphas``: from
    slightly below to slightly above them, and densely near the thresholds stored in ``answers``.
    """
    given_alphas = sorted(alphas)
    lowest, highest = given_alphas[0], given_alphas[-1]
    if spans_decades(given_alphas):
        first = lowest / 1.3
        last = highest * 1.3
    else:
        margin = 0.05 * (highest - lowest) or 0.2 * highest
        first = max(lowest - margin, lowest / 2)
        last = highest + margin
    marks = threshold_marks(answers.thresholds_or_empty(problem))
    recovery_alphas = [mark.alpha for mark in marks if "recovery" in mark.name]
    # A curve may fall steeply towards a threshold: points draw near it from both sides.
    offsets = np.array([*10.0 ** -np.array([1.5, 2, 2.5, 3]), BESIDE_THRESHOLD])
    near_recovery = np.outer(recovery_alphas, [*(1 - offsets), *(1 + offsets)])
    evenly_spaced = _evenly_spaced(first, last)
    grid = np.unique([*evenly_spaced, *given_alphas, *near_recovery.ravel()])
    grid = grid[(first <= grid) & (grid <= last)]
    threshold_alphas = sorted(mark.alpha for mark in marks)
    return LineGrid(given_alphas, grid.tolist(), threshold_alphas)


def has_fine_lines(problem: Problem) -> bool:
    """Return whether the theory of a problem is drawn at many closely spaced sample ratios: it is solved fast, or can be read
    from a curve that is solved as a whole.
    """
    return problem.components > 1 or is_cheap(problem)


def chart_questions(
    suite: Suite,
    answers: Answers,
    metrics: Sequence[str],
    rows: Sequence[Row] = (),
    alphas: Sequence[float] | None = None,
) -> Iterator[Question]:
    """Yield the theory questions that ``metric_chart``, ``phase_chart`` and ``theory_lines`` need answered, at the sample ratios
    of the ``rows`` and at ``alphas`` (default: the suite's).

    Parameters
    ----------
    answers : Answers
        Those to the questions before: lines are dense near thresholds, and drawn through points where there is no line.
    """
    alphas_by_problem = {plan.label: set(alphas or plan.alphas) for plan in suite.plans}
    for row in largest_dimension_rows(
        row for row in rows if row.estimate.mean is not None
    ):
        alphas_by_problem[row.place.problem].add(row.place.alpha)
    for plan in suite.chosen_plans:
        problem = plan.problem
        if problem.no_theory is not None:
            continue
        yield ThresholdsQuestion(problem, if_cheap=True)
        grid = line_grid(answers, problem, alphas_by_problem[plan.label])
        if has_fine_lines(problem):
            yield LineQuestion(problem, tuple(grid.fine_alphas))
        line = _stored_line(answers, problem, grid)
        needs_points = any(
            find_metric(metric, problem.model.name).theory is not None
            and not _has_theory(metric, problem, line)
            for metric in metrics
        )
        if needs_points:
            yield PointsQuestion(problem, tuple(grid.node_alphas(NODES if line else 0)))


def _stored_line(
    answers: Answers, problem: Problem, grid: LineGrid
) -> list[Branches] | None:
    """Return the stored theory of a problem at the fine sample ratios of a ``grid``; None if it is not stored, since solving each
    point would be slow.
    """
    if not has_fine_lines(problem):
        return None
    return answers.line_or_none(problem, grid.fine_alphas)


def _has_theory(
    metric: str, problem: Problem, points: Sequence[Branches] | None
) -> bool:
    """Return whether theory at ``points`` (fixed points by sample ratio; None: not solved) has values of a metric; generalization
    errors, for example, may be missing.
    """
    if not points:
        return False
    return _theory_of(metric, problem, points[0][0])[0][0] is not None


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
) -> dict[str, Line]:
    """Return the theoretical lines of a metric for one component (index from 0) of a planned problem, by name: the Bayes-optimal
    one, and the one of the uninformed fixed point where that differs. They are drawn for runs at the sample ratios ``alphas``.

    Where ``answers`` have no line with this metric, it is interpolated between stored points (see ``smooth``); none without any.
    """
    problem = plan.problem
    grid = line_grid(answers, problem, alphas)
    line = _stored_line(answers, problem, grid)
    is_on_line = _has_theory(metric, problem, line)
    points: dict[float, Branches] = {}
    if line is not None and is_on_line:
        points = dict(zip(grid.fine_alphas, line))
    else:
        for alpha in grid.node_alphas(NODES if line else 0):
            if at_alpha := stored_or_none(answers.points, problem, [alpha]):
                points[alpha] = at_alpha[0]
    optimum_legend = optimum_name(find_metric(metric, problem.model.name), problem)
    points_by_line: dict[str, list[tuple[float, float, float]]] = {
        optimum_legend: [],
        UNINFORMED: [],
    }
    branches_differ = False
    for alpha, branches in points.items():
        drawn_points = {optimum_legend: branches[0]}
        branches_differed_before = branches_differ
        uninformed = [point for point in branches if point.branch == "uninformed"]
        branches_differ = bool(uninformed) and uninformed[0] is not branches[0]
        if (
            branches_differ or branches_differed_before
        ):  # with the point where they meet again
            drawn_points[UNINFORMED] = [*uninformed, branches[0]][0]
        for name, point in drawn_points.items():
            values, errors = _theory_of(metric, problem, point)
            value = values[component_index]
            error = errors[component_index]
            if value is not None:
                points_by_line[name].append((alpha, value, error or 0.0))
    lines = {}
    for name in filter(points_by_line.get, points_by_line):
        lines[name] = Line(*np.array(points_by_line[name], dtype=float).T)
        if not is_on_line:
            lines[name] = smooth(lines[name], grid.threshold_alphas)
    return lines


def optimum_name(metric: Metric, problem: Problem) -> str:
    """Return the legend of the line of a metric for the Bayes-optimal estimate (the posterior mean): ``Bayes-optimal`` only if no
    estimate can be better in this metric.
    """
    is_bound = metric.bounded is not None and metric.bounded(problem.model)
    return "Bayes-optimal" if is_bound else "predicted (posterior mean)"


def _evenly_spaced(lowest_alpha: float, highest_alpha: float) -> Host:
    """Return 120 sample ratios from the lowest to the highest, evenly spaced on a linear axis, or on a logarithmic one if they
    span decades.
    """
    is_log = lowest_alpha > 0 and spans_decades([lowest_alpha, highest_alpha])
    return (np.geomspace if is_log else np.linspace)(lowest_alpha, highest_alpha, 120)


def smooth(line: Line, jump_alphas: Iterable[float]) -> Line:
    """Interpolate a theoretical ``line`` over the sample ratio by monotone cubics (PCHIP), which do not overshoot; the logarithm
    of its values is interpolated where they span decades but none is 0. The line breaks at ``jump_alphas``, the sample ratios
    where it jumps.

    Between the last point before a threshold and the first one after it nothing is known: a NaN leaves a gap in the line, unless
    both are next to the threshold.
    """
    from scipy.interpolate import PchipInterpolator

    segments: list[Line] = []
    split_indices = np.searchsorted(line.alpha, sorted(jump_alphas), side="right")
    for alphas, values, errors in zip(
        *(np.split(column, split_indices) for column in line)
    ):
        if not len(alphas):
            continue
        if segments and alphas[0] > (1 + 4 * BESIDE_THRESHOLD) * segments[-1].alpha[-1]:
            segments.append(Line(alphas[:1], *np.full((2, 1), np.nan)))
        segment = Line(alphas, values, errors)
        if len(alphas) > 2:
            fine_alphas = _evenly_spaced(alphas[0], alphas[-1])
            largest = values.max()
            is_log = 1e-9 * largest < values.min() < largest / DECADES
            scaled = np.log(values) if is_log else values
            fine_values = PchipInterpolator(alphas, scaled)(fine_alphas)
            fine_errors = PchipInterpolator(alphas, errors)(fine_alphas)
            fine_values = np.exp(fine_values) if is_log else fine_values
            segment = Line(fine_alphas, fine_values, fine_errors)
        segments.append(segment)
    return Line(*map(np.concatenate, zip(*segments)))


def named_thresholds(
    thresholds: Thresholds, component_name: str = "component"
) -> list[tuple[str, Threshold | None]]:
    """List all thresholds of a problem with the names shown in figures and tables; None for thresholds that do not exist.
    ``component_name`` is the word for a component of the signal, such as layer.
    """
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
    """List all finite thresholds as marks for figures; of several at the same sample ratio, only the first. ``component_name`` is
    the word for a component, such as layer.
    """
    marks: list[ThresholdMark] = []
    for name, threshold in named_thresholds(thresholds, component_name):
        alpha = threshold.value if threshold else 0.0
        is_new = not any(abs(alpha - mark.alpha) <= 1e-6 * alpha for mark in marks)
        if threshold and alpha > 0 and is_new:
            marks.append(ThresholdMark(alpha, name, threshold.error))
    return marks


DECADES = 20.0
"""Ratio of the largest to the smallest value from which an axis is logarithmic; halved, more curves are bent on it."""


def spans_decades(values: Iterable[float]) -> bool:
    """Return whether the largest of the positive ``values`` is more than ``DECADES`` times the smallest, so that a linear axis
    would hide the small ones.
    """
    positive_values = [value for value in values if value > 0]
    return bool(positive_values) and max(positive_values) > DECADES * min(
        positive_values
    )
