"""Comparison with a published figure: our values at its points, their differences, and both drawn in the paper's axes."""

from __future__ import annotations

import csv
import json
import tomllib
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, NotRequired, TypedDict

import numpy as np

from smimbench.files import read_text
from smimbench.registry.registry import find_metric, metric_label, theory_of
from smimbench.report.charts import Chart, Panel, Series
from smimbench.report.figures import theory_series, threshold_series, varied_parameter
from smimbench.report.row import component_word
from smimbench.report.style import COLORS, looks_of
from smimbench.report.theory_lines import Line, theory_lines, threshold_marks
from smimbench.suite import SuiteError
from smimbench.suite.document import shipped_figures

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from smimbench.files import JsonObject
    from smimbench.interfaces import AlgorithmPrediction, Host
    from smimbench.report.results import Results
    from smimbench.report.row import Row
    from smimbench.report.rows import Pair
    from smimbench.run.answers import Answers
    from smimbench.suite.cells import ProblemPlan, Suite
    from smimbench.suite.schema import CurveTable
    from smimbench.theory.types import Threshold

INSIDE = "inside"
EXPLAINED = "known correction"
OUTSIDE = "outside"
NOT_COMPARED = "not compared"
SAME_POINT = 0.02
"""Relative distance up to which a run (of a whole number of samples) is at a published point; doubled, steep curves are off by
more than their band."""
CROSSES = 24
"""Largest number of published points drawn per line; doubled, they hide the line."""


@dataclass(frozen=True)
class PublishedLine:
    """Line of a paper's figure with its published points: an error curve of one problem, or thresholds of all problems, which
    differ in one parameter. The points are the rows of the CSV ``table`` whose columns have the values in ``filter``;
    ``curve`` is its description in the suite, ``x_per_alpha`` the horizontal coordinate per unit of the sample ratio.

    A line of thresholds runs over all problems of the figure, which differ in one parameter.

    Attributes
    ----------
    x_per_alpha : float
        Ratio of the figure's horizontal coordinate to alpha.
    problem_index : int
        Index of its problem among those of the curve.
    filter : dict
        Columns of the table and the values that they have in its rows of this curve.
    points : Line or None
        Published points, with the spread over runs as error; None if the table is missing.
    """

    label: str
    curve: CurveTable
    plans: Sequence[ProblemPlan]
    table: str
    x_per_alpha: float
    problem_index: int
    filter: Mapping[str, float]
    points: Line | None = None

    @property
    def is_threshold(self) -> bool:
        """Whether the line shows thresholds as a function of a parameter."""
        return self.curve.metric == "threshold"

    @property
    def is_curve(self) -> bool:
        """Whether the line shows Bayes-optimal theory as a function of the sample ratio."""
        return not (self.is_threshold or self.curve.algorithm)

    @property
    def component_index(self) -> int:
        """Index of the component that the line shows, from 0."""
        return (self.curve.component or 1) - 1

    def explanations(self, x: float) -> list[str]:
        """List the known errors of the published line at the horizontal coordinate ``x``, as headings in docs/corrections.md."""
        problem_index = self.problem_index
        return [
            correction.section
            for correction in self.curve.corrections
            if _number_for_problem(correction.above, problem_index)
            <= x
            <= _number_for_problem(correction.below, problem_index)
        ]

    def alphas(self, x_limits: Sequence[float]) -> set[float]:
        """Return the sample ratios at which theory is needed to draw and compare the line: those of its published points and the
        ends of the horizontal axis, ``x_limits``.
        """
        if not self.is_curve:
            return set()
        x_min, x_max = x_limits
        published_x = self.points.alpha if self.points else ()
        needed_x = [max(x_min, x_max / 1000), x_max, *published_x]
        return {float(alpha / self.x_per_alpha) for alpha in needed_x}


class ShippedFigure(TypedDict):
    """Published figure that smimbench can reproduce: name and title of its suite, how long a run takes, the file names of its
    published ``tables``, or the reason why it has ``no_numbers``; ``package`` is the example package that it needs.
    """

    name: str
    title: str
    duration: str
    tables: list[str]
    no_numbers: NotRequired[str]
    package: NotRequired[str]


def figure_list() -> list[ShippedFigure]:
    """List every figure that smimbench can reproduce; those without published tables give the reason in ``no_numbers``."""
    figures = []
    for name, path in shipped_figures().items():
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        suite = document["suite"]
        figure_table = document.get("figure", {})
        curves = figure_table.get("curves", ())
        figure: ShippedFigure = {
            "name": name,
            "title": suite["title"],
            "duration": suite.get("duration", ""),
            "tables": list(
                dict.fromkeys(curve["table"] for curve in curves if "table" in curve)
            ),
        }
        if package := figure_table.get("package"):
            figure["package"] = package
        if not curves:
            figure["no_numbers"] = suite["description"]
        figures.append(figure)
    return figures


def stored_comparison(name: str) -> JsonObject | None:
    """Return the outcome of the last full comparison of a figure (``name``) with its published numbers: agreement of every curve,
    date and command; None if there is none.
    """
    path = shipped_figures().get(name)
    if path is None or not path.with_suffix(".json").is_file():
        return None
    comparison: JsonObject = json.loads(read_text(path.with_suffix(".json")))
    return comparison


def published_lines(
    suite: Suite, folder: Path | None, max_points: int | None = None
) -> list[PublishedLine]:
    """Return the published lines of the suite's figure for its selected problems, with points read from the tables in a
    ``folder`` (None: no points), at most ``max_points`` per line.

    Parameters
    ----------
    max_points : int or None
        Number of points of a curve of theory, at equal distances in their list; default: all.

    Raises
    ------
    SuiteError
        If a table lacks a column or holds something else than numbers.
    """
    assert suite.figure is not None
    plans = {plan.label: plan for plan in suite.plans}
    lines = []
    for curve in suite.figure.curves:
        chosen = [
            (index, [plans[label]])
            for index, label in enumerate(curve.problems or plans)
            if plans[label] in suite.chosen_plans
        ]
        if curve.metric == "threshold":
            chosen = [(0, [plan for _, (plan,) in chosen])] if chosen else []
        for problem_index, line_plans in chosen:
            line = _published_line(curve, problem_index, line_plans)
            if folder is not None and line.table:
                x_limits = suite.figure.xlim
                points = _published_points(line, folder, x_limits, max_points)
                line = replace(line, points=points)
            lines.append(line)
    return lines


def _published_line(
    curve: CurveTable, problem_index: int, plans: Sequence[ProblemPlan]
) -> PublishedLine:
    """Make the published line that ``curve`` describes for its problem with this index, without points yet; ``plans`` are that
    problem, or all problems of a line of thresholds.
    """
    x_factor = 1.0
    parameters: dict[str, object] = {}
    if curve.metric != "threshold":
        x_factor = _number_for_problem(curve.x_factor, problem_index)
        for item_parameters in plans[0].tables.values():
            parameters |= item_parameters

    def filled(template: str) -> str:
        """Return a text with the values of the problem's parameters in place of their names in braces."""
        for name, value in parameters.items():
            template = template.replace(f"{{{name}}}", str(value))
        return template

    column_values = {name: float(filled(text)) for name, text in curve.filter.items()}
    label = filled(curve.label)
    table = filled(curve.table)
    return PublishedLine(
        label, curve, plans, table, x_factor, problem_index, column_values
    )


def _number_for_problem(numbers: Sequence[float], index: int) -> float:
    """Return the number for the problem with this index, from ``numbers`` that hold one for each problem or one for all."""
    return numbers[index % len(numbers)]


def _published_points(
    line: PublishedLine, folder: Path, x_limits: Sequence[float], max_points: int | None
) -> Line | None:
    """Read the published points of a line (x, value and spread over runs) within the figure's range ``x_limits``, at most
    ``max_points`` of them, from its table in ``folder``; None if the table is missing.
    """
    path = next(iter(sorted(folder.rglob(line.table))), None)
    if path is None:
        return None
    try:
        table_reader = csv.DictReader(read_text(path).splitlines())
        rows = [
            [float(row[column_name]) for column_name in line.curve.columns]
            for row in table_reader
            if all(float(row[name]) == value for name, value in line.filter.items())
        ]
    except KeyError as error:
        raise SuiteError(str(path), "", f"the table lacks the column {error}") from None
    except (OSError, TypeError, ValueError, csv.Error) as error:
        raise SuiteError(
            str(path), "", f"the file is not a table of numbers: {error}"
        ) from None
    columns = np.array(rows, dtype=float).reshape(-1, len(line.curve.columns)).T
    x, y, *spread = columns
    if line.curve.table_x == "alpha":
        x = x * line.x_per_alpha
    points = np.array([x, y, *(spread or [0.0 * y])])
    is_shown = np.isfinite(x * y) & ((x > 0) | line.is_threshold)
    is_shown &= (x >= x_limits[0]) & (x <= x_limits[1] * (1 + 1e-9))
    points = points[:, is_shown]
    point_count = points.shape[1]
    if max_points and not line.curve.algorithm and point_count > max_points:
        indices = np.linspace(0, point_count - 1, max_points).round().astype(int)
        points = points[:, indices]
    return Line(*points)


def our_points(
    line: PublishedLine, answers: Answers, rows: Sequence[Row], alphas: Sequence[float]
) -> Line:
    """Return the points that smimbench computes for a published line: means over runs (``rows``) with standard errors, or theory
    from ``answers`` at the sample ratios ``alphas`` with numerical errors.
    """
    curve, plan = line.curve, line.plans[0]
    points: list[tuple[float, float | None, float | None]] = []
    if line.is_threshold:
        _, varied_values = varied_parameter(line.plans) or ("", [])
        for x, varied_plan in zip(varied_values, line.plans):
            thresholds = answers.thresholds(varied_plan.problem)
            by_component: dict[int | None, Threshold | None]
            by_component = {None: thresholds.weak_recovery}
            for step in thresholds.sequential:
                by_component[step.component + 1] = step.threshold
            if threshold := by_component.get(curve.component):
                points.append((x, threshold.value, threshold.error))
    elif curve.algorithm:
        points += [
            (row.place.alpha * line.x_per_alpha, row.estimate.mean, row.estimate.sem)
            for row in rows
            if (row.place.problem, row.place.algorithm) == (plan.label, curve.algorithm)
            and row.metric == curve.metric
            and row.component in (None, curve.component)
        ]
    else:
        problem, index = plan.problem, line.component_index
        metric = find_metric(curve.metric, problem.model.name)
        for alpha, branches in zip(alphas, answers.points(problem, alphas)):
            values, errors = theory_of(metric, problem, branches[0], problem.components)
            points.append((alpha * line.x_per_alpha, values[index], errors[index]))
    complete_points = sorted(
        (x, y, error or 0.0) for x, y, error in points if y is not None
    )
    return Line(*np.array(complete_points, dtype=float).reshape(-1, 3).T)


def runs_of(line: PublishedLine, results: Results) -> list[Pair]:
    """List the runs (cell and record) of a learning curve that recorded their path."""
    labels = (line.plans[0].label, line.curve.algorithm)
    return [
        (cell, record)
        for cell, record in results.pairs
        if (cell.problem_label, cell.algorithm_label) == labels and record.trajectory
    ]


def learning_curve(
    line: PublishedLine,
    results: Results,
    prediction: AlgorithmPrediction | str,
    x_limits: Sequence[float],
) -> tuple[PublishedLine, Line]:
    """Return a learning curve with the path of its limit, from the ``prediction`` for its runs, as points, and the mean over
    runs at the same numbers of samples with standard errors, within the figure's range, as long as all runs last; without
    points if there is no limit.
    """
    metric, index = line.curve.metric, line.component_index
    path = None if isinstance(prediction, str) else prediction.trajectory
    if not isinstance(path, dict) or metric not in path:
        return line, Line(*np.empty((3, 0)))
    samples = np.asarray(path["samples"], dtype=float)
    pairs = runs_of(line, results)
    ratio_of_count = line.plans[0].problem.model.sample_ratio
    dimension = pairs[0][0].dimension
    x = line.x_per_alpha * np.array(
        [ratio_of_count(count, dimension) for count in path["samples"]]
    )
    is_shown = (x >= x_limits[0]) & (x <= x_limits[1] * (1 + 1e-9))

    def column(name: str) -> Host:
        """Column of the limit's path for the component of the curve, at the points that are shown."""
        values = np.asarray(path[name], dtype=float).reshape(len(x), -1)
        return np.asarray(values[is_shown, index])

    values_of_runs = []
    for _, record in pairs:
        trajectory = results.store.trajectory(record) or {}
        values = np.asarray(trajectory[metric], dtype=float)[:, index]
        values_of_runs.append(
            np.interp(samples[is_shown], trajectory["samples"], values, right=np.nan)
        )
    run_count = len(values_of_runs)
    deviation = np.std(values_of_runs, axis=0, ddof=1 if run_count > 1 else 0)
    limit = Line(x[is_shown], column(metric), column(f"{metric}_error"))
    means = np.mean(values_of_runs, axis=0)
    runs = limit._replace(value=means, error=deviation / np.sqrt(run_count))
    # A run that diverges ends early.
    complete = np.isfinite(means)
    return replace(line, points=limit), Line(*(column[complete] for column in runs))


@dataclass(frozen=True)
class CurveAgreement:
    """Result of comparing our values with the published line ``curve``: the ``verdict``, how many of its ``points`` are
    ``outside`` (differ by more than is allowed; None: nothing was compared), the ``corrections`` that explain this, and the worst
    point: its x coordinate ``at``, our minus the published value (``deviation``), and the difference that is ``allowed``.

    Attributes
    ----------
    points, outside : int, int or None
        Published points that are compared, and how many of them are off by more than is allowed.
    corrections : list of str
        Headings of the corrections that explain points outside.
    at, deviation, allowed : float or None
        The worst point: its x, ours minus the published value, and what is allowed there.
    """

    curve: str
    points: int
    verdict: str
    corrections: list[str]
    at: float | None = None
    deviation: float | None = None
    allowed: float | None = None
    outside: int | None = None

    def document(self) -> JsonObject:
        """Return the agreement as a JSON object."""
        return {key: value for key, value in asdict(self).items() if value is not None}


def compare(line: PublishedLine, our_line: Line) -> CurveAgreement:
    """Compare our values (``our_line``) with the published points of a line, each with our value at nearly the same x coordinate,
    and return whether they agree.

    A point is inside if it is off by at most ``allowed``: the band of the curve, the published spread over runs, and twice our
    error. One outside is explained by a correction that holds at its x.
    """
    compared, sections = [], []
    columns = zip(*line.points) if line.points and len(our_line.alpha) else ()
    for x, published, spread in columns:
        index = np.argmin(abs(our_line.alpha - x))
        if abs(our_line.alpha[index] - x) > SAME_POINT * abs(x):
            continue
        deviation = our_line.value[index] - published
        allowed = line.curve.band + spread + 2 * our_line.error[index]
        rank = 0
        if abs(deviation) > allowed:
            explanations = line.explanations(x)
            sections += explanations
            rank = 1 if explanations else 2
        compared.append((rank, abs(deviation), (x, deviation, allowed)))
    if not compared:
        return CurveAgreement(line.label, 0, NOT_COMPARED, [])
    rank, _, worst_point = max(compared)
    return CurveAgreement(
        line.label,
        len(compared),
        (INSIDE, EXPLAINED, OUTSIDE)[rank],
        list(dict.fromkeys(sections)),
        *worst_point,
        outside=sum(rank > 0 for rank, *_ in compared),
    )


def _learning_series(
    line: PublishedLine, runs: Line, color: str
) -> tuple[Series, Series]:
    """Draw a learning curve: its limit as a line, and means over ``runs`` with standard errors as marks, at most ``CROSSES``."""
    limit = line.points or runs
    columns = runs._asdict()
    if len(runs.alpha) > CROSSES:
        x = np.linspace(runs.alpha[0], runs.alpha[-1], CROSSES)
        indices = np.unique(np.searchsorted(runs.alpha, x))
        columns = {name: column[indices] for name, column in columns.items()}
    style = {"marker": "o", "s": 14, "linewidths": 0.8, "zorder": 4}
    about = {"what": "limit", "curve": line.label}
    return theory_series(limit, line.label, color, "-", about), Series(
        "runs", columns, about | {"what": "runs"}, "marks", color, style
    )


def figure_chart(
    suite: Suite,
    answers: Answers,
    rows: Sequence[Row],
    lines: Sequence[PublishedLine],
    ours: Sequence[Line],
    alphas: Mapping[str, Iterable[float]],
) -> Chart:
    """Draw the suite's figure in the paper's axes: theory as lines, means over runs as marks, published points as crosses;
    ``ours`` holds our points for each of the published ``lines``, ``alphas`` the sample ratios of theory by problem label.

    Parameters
    ----------
    alphas : mapping
        Sample ratios by problem label, at which theory is drawn.
    """
    figure = suite.figure
    assert figure is not None
    looks = looks_of(suite, rows)
    series = []
    published_series = []
    colors: dict[str | int | None, str] = {}
    for line, points in zip(lines, ours):
        curve, plan = line.curve, line.plans[0]
        by_component = len(suite.plans) == 1 or line.is_threshold
        color_key = curve.component if by_component else plan.label
        if not line.table:
            color_key = line.label
        line_color = colors.setdefault(color_key, COLORS[len(colors) % len(COLORS)])
        if not line.table:
            limit, runs = _learning_series(line, points, line_color)
            series.append(limit)
            published_series.append(runs)
            continue
        about = {"what": "ours", "curve": line.label}
        if line.is_curve:
            ratios = alphas[plan.label]
            index = line.component_index
            theory = theory_lines(answers, plan, curve.metric, ratios, index)
            for optimal in [*theory.values()][:1]:
                points = optimal._replace(alpha=optimal.alpha * line.x_per_alpha)
        drawn = theory_series(points, line.label, line_color, "-", about)
        if curve.algorithm:
            style = {"marker": looks[curve.algorithm].marker, "s": 18}
            algorithm = curve.algorithm
            drawn = replace(drawn, kind="marks", style=style, algorithm=algorithm)
        series.append(drawn)
        if line.points is not None:
            spacing = 1 + len(line.points.alpha) // CROSSES
            crosses = Line(*(column[::spacing] for column in line.points))._asdict()
            style = {"marker": "x", "s": 14, "linewidths": 0.8, "zorder": 4}
            about = {"what": "published", "curve": line.label}
            published_series.append(
                Series("published", crosses, about, "marks", line_color, style)
            )
    curve_lines = {line.plans[0].label: line for line in lines if line.is_curve}
    for label, line in curve_lines.items():
        problem = line.plans[0].problem
        thresholds = answers.thresholds_or_empty(problem)
        marks = threshold_marks(thresholds, component_word(problem))
        color = colors.get(label, "0.5") if len(curve_lines) > 1 else "0.5"
        about = {"curve": label}
        series += threshold_series(marks, about, color, line.x_per_alpha)
    metric = figure.curves[0].metric
    ylabel = figure.ylabel or (
        "sample ratio α" if metric == "threshold" else metric_label(metric)
    )
    panel = Panel(
        suite.title,
        figure.xlabel,
        ylabel,
        [*series, *published_series],
        xlog=figure.xlog,
        ylog=figure.ylog,
        axis_limits=(figure.xlim, figure.ylim),
    )
    key = "crosses" if figure.has_tables else "lines: the limit; marks: runs"
    legend_words = f"{ylabel} against {figure.xlabel}, after {suite.reference}; {key}: {figure.source}."
    return Chart("figure", suite.title, [panel], legend_words=legend_words)
