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
from smimbench.report.figures import (
    Line,
    has_fine_lines,
    line_grid,
    theory_lines,
    theory_series,
    varied,
)
from smimbench.report.style import COLORS, looks_of
from smimbench.suite import SuiteError
from smimbench.suite.document import shipped_figures
from smimbench.theory.types import LineQuestion, ThresholdsQuestion

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from smimbench.files import JsonObject
    from smimbench.report.row import Row
    from smimbench.run.answers import Answers
    from smimbench.suite.cells import ProblemPlan, Suite
    from smimbench.suite.schema import CurveTable
    from smimbench.theory.types import Question

INSIDE, EXPLAINED, OUTSIDE, NOT_COMPARED = (
    "inside",
    "known correction",
    "outside",
    "not compared",
)
SAME_POINT = 0.02
"""Relative distance up to which a run (of a whole number of samples) is at a published point; doubled, steep curves are off by
more than their band."""
CROSSES = 24
"""Largest number of published points drawn per line; doubled, they hide the line."""


@dataclass(frozen=True)
class PublishedLine:
    """Curve of a published figure, with its published points: an error curve of one problem, or a line of thresholds.

    A line of thresholds runs over all problems of the figure, which differ in one parameter.

    Attributes
    ----------
    factor : float
        Ratio of the figure's horizontal coordinate to alpha.
    index : int
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
    factor: float
    index: int
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
        """List the headings in docs/corrections.md of known errors of the published line at ``x``."""
        i = self.index
        return [
            mistake.section
            for mistake in self.curve.corrections
            if _number_for_problem(mistake.above, i)
            <= x
            <= _number_for_problem(mistake.below, i)
        ]

    def alphas(self, limits: Sequence[float]) -> set[float]:
        """Return the sample ratios at which theory is needed: the published ones and the ends of the axis."""
        if not self.is_curve:
            return set()
        low, high = limits
        published = self.points.alpha if self.points else ()
        x = [max(low, high / 1000), high, *published]
        return {float(alpha / self.factor) for alpha in x}


class ShippedFigure(TypedDict):
    """Published figure that ships with smimbench: suite, duration, tables, or the reason why it has no numbers."""

    name: str
    title: str
    duration: str
    tables: list[str]
    no_numbers: NotRequired[str]


def figure_list() -> list[ShippedFigure]:
    """List every shipped figure; those without published tables give the reason in ``no_numbers``."""
    figures = []
    for name, path in shipped_figures().items():
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        suite, curves = document["suite"], document.get("figure", {}).get("curves", ())
        figure: ShippedFigure = {
            "name": name,
            "title": suite["title"],
            "duration": suite.get("duration", ""),
            "tables": list(dict.fromkeys(curve["table"] for curve in curves)),
        }
        if not curves:
            figure["no_numbers"] = suite["description"]
        figures.append(figure)
    return figures


def stored_comparison(name: str) -> JsonObject | None:
    """Return the outcome of the last full comparison of a shipped figure: curves, date and command; None if there is none."""
    path = shipped_figures().get(name)
    if path is None or not path.with_suffix(".json").is_file():
        return None
    comparison: JsonObject = json.loads(read_text(path.with_suffix(".json")))
    return comparison


def published_lines(
    suite: Suite, folder: Path | None, limit: int | None = None
) -> list[PublishedLine]:
    """Return the lines of the suite's figure for its selected problems, with points from the tables in a folder.

    Parameters
    ----------
    limit : int or None
        Number of points of a curve of theory, at equal distances in their list; default: all.

    Raises
    ------
    SuiteError
        If a table lacks a column or holds something else than numbers.
    """
    assert suite.figure is not None
    plans, lines = {plan.label: plan for plan in suite.plans}, []
    for curve in suite.figure.curves:
        curve_plans = [plans[label] for label in curve.problems or plans]
        if curve.metric == "threshold":
            chosen = [plan for plan in curve_plans if plan in suite.chosen_plans]
            lines += [_line(curve, 0, chosen)] if chosen else []
            continue
        for index, plan in enumerate(curve_plans):
            if plan in suite.chosen_plans:
                lines.append(_line(curve, index, [plan]))
    if folder is None:
        return lines
    limits = suite.figure.xlim
    return [
        replace(line, points=_points(line, folder, limits, limit)) for line in lines
    ]


def _line(curve: CurveTable, index: int, plans: Sequence[ProblemPlan]) -> PublishedLine:
    """Make the line of a curve for the problem with this index, without published points."""
    factor = 1.0
    parameters: dict[str, str] = {}
    if curve.metric != "threshold":
        factor = _number_for_problem(curve.x_factor, index)
        for item_parameters in plans[0].tables.values():
            parameters |= {f"{{{name}}}": str(v) for name, v in item_parameters.items()}

    def filled(template: str) -> str:
        for placeholder, text in parameters.items():
            template = template.replace(placeholder, text)
        return template

    label, table = filled(curve.label), filled(curve.table)
    column_values = {
        column: float(filled(text)) for column, text in curve.filter.items()
    }
    return PublishedLine(label, curve, plans, table, factor, index, column_values)


def _number_for_problem(numbers: Sequence[float], index: int) -> float:
    """Return the number for the problem with this index, from a list of one per problem or one for all."""
    return numbers[index % len(numbers)]


def _points(
    line: PublishedLine, folder: Path, limits: Sequence[float], limit: int | None
) -> Line | None:
    """Read the published points within the figure's range; None if the table is missing."""
    path = next(iter(sorted(folder.rglob(line.table))), None)
    if path is None:
        return None
    try:
        table = csv.DictReader(read_text(path).splitlines())
        rows = [
            [float(row[name]) for name in line.curve.columns]
            for row in table
            if all(float(row[name]) == value for name, value in line.filter.items())
        ]
    except KeyError as error:
        raise SuiteError(str(path), "", f"the table lacks the column {error}") from None
    except (OSError, TypeError, ValueError, csv.Error) as error:
        raise SuiteError(
            str(path), "", f"the file is not a table of numbers: {error}"
        ) from None
    columns = np.array(rows, dtype=float).reshape(-1, len(line.curve.columns)).T
    x, y = columns[:2]
    shown = np.isfinite(x * y) & ((x > 0) | line.is_threshold)
    if line.curve.table_x == "alpha":
        x = columns[0] = x * line.factor
    shown &= (x >= limits[0]) & (x <= limits[1] * (1 + 1e-9))
    columns = columns[:, shown]
    count = columns.shape[1]
    if limit and not line.curve.algorithm and count > limit:
        columns = columns[:, np.linspace(0, count - 1, limit).round().astype(int)]
    x, y, *spread = columns
    return Line(x, y, *(spread or [0.0 * y]))


def our_points(
    line: PublishedLine, answers: Answers, rows: Sequence[Row], alphas: Sequence[float]
) -> Line:
    """Return our values of a line with errors: standard errors of runs, or numerical errors of theory."""
    curve, problem = line.curve, line.plans[0].problem
    points: list[tuple[float, float | None, float | None]] = []
    if line.is_threshold:
        _, parameters = varied(line.plans) or ("", [])
        for x, plan in zip(parameters, line.plans):
            thresholds = answers.thresholds(plan.problem)
            threshold = None if curve.component else thresholds.weak_recovery
            for step in thresholds.sequential:
                if step.component + 1 == curve.component:
                    threshold = step.threshold
                    break
            if threshold:
                points.append((x, threshold.value, threshold.error))
    elif curve.algorithm:
        place = line.plans[0].label, curve.algorithm
        for row in rows:
            is_shown = (row.place.problem, row.place.algorithm) == place
            is_shown &= row.metric == curve.metric
            if is_shown and row.component in (None, curve.component):
                x = row.place.alpha * line.factor
                points.append((x, row.estimate.mean, row.estimate.sem))
    else:
        metric, k = (
            find_metric(curve.metric, problem.model.name),
            line.component_index,
        )
        for alpha, (best, *_) in zip(alphas, answers.points(problem, alphas)):
            values, errors = theory_of(metric, problem, best, problem.components)
            points.append((alpha * line.factor, values[k], errors[k]))
    complete = sorted((x, y, error or 0.0) for x, y, error in points if y is not None)
    return Line(*np.array(complete, dtype=float).reshape(-1, 3).T)


def line_questions(
    lines: Sequence[PublishedLine],
    answers: Answers,
    alphas: Mapping[str, Iterable[float]],
) -> Iterator[Question]:
    """Yield the theory questions of a published figure's lines, at these sample ratios by problem label."""
    for line in lines:
        if not line.is_curve:
            continue
        plan = line.plans[0]
        yield ThresholdsQuestion(plan.problem, if_cheap=True)
        if has_fine_lines(plan.problem):
            grid = line_grid(answers, plan.problem, alphas[plan.label])
            yield LineQuestion(plan.problem, tuple(grid.fine))


@dataclass(frozen=True)
class CurveAgreement:
    """Result of comparing a line with the published one: whether they agree, and their largest difference.

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
        """Return the result as a JSON object."""
        return {key: field for key, field in asdict(self).items() if field is not None}


def compare(line: PublishedLine, ours: Line) -> CurveAgreement:
    """Compare our values of a line with the published points.

    A point is inside if it is off by at most ``allowed``: the band of the curve, the published spread over runs, and twice our
    error. One outside is explained by a correction that holds at its x.
    """
    points, sections, worst = [], [], (-1, 0.0)
    columns = zip(*line.points) if line.points and len(ours.alpha) else ()
    farthest: tuple[float, float, float] | None = None
    for x, y, spread in columns:
        j = int(np.argmin(abs(ours.alpha - x)))
        if abs(ours.alpha[j] - x) > SAME_POINT * abs(x):
            continue
        deviation = ours.value[j] - y
        allowed = line.curve.band + spread + 2 * ours.error[j]
        reasons = line.explanations(x)
        severity = 0
        if abs(deviation) > allowed:
            severity = 1 if reasons else 2
            sections += reasons
        points.append(severity)
        if (severity, abs(deviation)) > worst:
            worst = severity, abs(deviation)
            farthest = x, deviation, allowed
    if farthest is None:
        return CurveAgreement(line.label, 0, NOT_COMPARED, [])
    return CurveAgreement(
        line.label,
        len(points),
        (INSIDE, EXPLAINED, OUTSIDE)[worst[0]],
        list(dict.fromkeys(sections)),
        *farthest,
        outside=sum(map(bool, points)),
    )


def figure_chart(
    suite: Suite,
    answers: Answers,
    rows: Sequence[Row],
    lines: Sequence[PublishedLine],
    ours: Sequence[Line],
) -> Chart:
    """Draw the figure in the paper's axes: theory as lines, runs as marks, published points as crosses."""
    figure = suite.figure
    assert figure is not None
    looks, series, crosses = looks_of(suite, rows), [], []
    colors: dict[str | int | None, str] = {}
    for line, points in zip(lines, ours):
        curve, plan = line.curve, line.plans[0]
        by_component = len(suite.plans) == 1 or line.is_threshold
        key = curve.component if by_component else plan.label
        color = colors.setdefault(key, COLORS[len(colors) % len(COLORS)])
        about = {"what": "ours", "curve": line.label}
        if curve.algorithm:
            style = {"marker": looks[curve.algorithm].marker, "s": 18}
            columns = points._asdict()
            series.append(
                Series(
                    line.label, columns, about, "marks", color, style, curve.algorithm
                )
            )
        else:
            if line.is_curve and len(points.alpha):
                ratios, k = points.alpha / line.factor, line.component_index
                drawn = theory_lines(answers, plan, curve.metric, ratios, k)
                best = drawn["Bayes-optimal"]
                points = best._replace(alpha=best.alpha * line.factor)
            series.append(theory_series(points, line.label, color, "-", about))
        if line.points is not None:
            step = 1 + len(line.points.alpha) // CROSSES
            columns = {
                name: column[::step] for name, column in line.points._asdict().items()
            }
            style = {"marker": "x", "s": 14, "linewidths": 0.8, "zorder": 4}
            about = {"what": "published", "curve": line.label}
            crosses.append(Series("published", columns, about, "marks", color, style))
    metric = figure.curves[0].metric
    ylabel = figure.ylabel or (
        "sample ratio α" if metric == "threshold" else metric_label(metric)
    )
    panel = Panel(
        suite.title,
        figure.xlabel,
        ylabel,
        [*series, *crosses],
        xlog=figure.xlog,
        ylog=figure.ylog,
        limits=(figure.xlim, figure.ylim),
    )
    key = f"{ylabel} against {figure.xlabel}, after {suite.reference}; crosses: {figure.source}."
    return Chart("figure", suite.title, [panel], key=key)
