"""A figure of a paper: our values at its published points, how far they are apart, and both in the paper's axes."""

from __future__ import annotations

import csv
import math
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.files import read_text
from smimbench.registry.metrics import find_metric, metric_label, theory_of
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
from smimbench.theory.questions import LineQuestion, ThresholdsQuestion

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from smimbench.files import JsonObject
    from smimbench.report.row import Row
    from smimbench.run.answers import Answers
    from smimbench.suite.cells import ProblemPlan, Suite
    from smimbench.suite.schema import Curve
    from smimbench.theory.questions import Question

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
"""Published points of a line that are drawn at the most; doubled, they hide the line."""


@dataclass(frozen=True)
class Part:
    """One line of a figure: a curve for one problem; of thresholds, for all problems together."""

    label: str
    curve: Curve
    plans: Sequence[ProblemPlan]
    table: str
    factor: float = 1.0
    corrections: Sequence[tuple[str, float, float]] = ()
    """Heading of docs/corrections.md and the x from which and up to which it holds."""

    @property
    def is_threshold(self) -> bool:
        """Whether it shows thresholds over a parameter."""
        return self.curve.metric == "threshold"


def figure_list() -> list[JsonObject]:
    """Every figure that ships: those with ``tables``, and those without, of which ``no_numbers`` says why."""
    found = []
    for name, path in shipped_figures().items():
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        about, curves = document["suite"], document.get("figure", {}).get("curves", ())
        tables = list(dict.fromkeys(curve["table"] for curve in curves))
        one = {
            "name": name,
            "title": about["title"],
            "duration": about.get("duration", ""),
            "tables": tables,
        }
        found.append(one if curves else one | {"no_numbers": about["description"]})
    return found


def _each(values: Sequence[float], i: int) -> float:
    """What holds for the i-th problem of a curve, one number for each or one for all."""
    return values[i % len(values)]


def _corrections(curve: Curve, i: int) -> list[tuple[str, float, float]]:
    return [
        (one.section, _each(one.above, i), _each(one.below, i))
        for one in curve.corrections
    ]


def parts_of(suite: Suite) -> list[Part]:
    """Lines of the suite's figure, without those of problems that are left out."""
    assert suite.figure is not None
    plans, chosen, found = (
        {plan.label: plan for plan in suite.plans},
        suite.chosen_plans,
        [],
    )
    for curve in suite.figure.curves:
        own = [plans[label] for label in curve.problems or plans]
        if curve.metric == "threshold":
            if own := [plan for plan in own if plan in chosen]:
                found.append(
                    Part(
                        curve.label,
                        curve,
                        own,
                        curve.table,
                        corrections=_corrections(curve, 0),
                    )
                )
            continue
        for i, plan in enumerate(own):
            label, table = curve.label, curve.table
            for name, value in (
                pair for items in plan.tables.values() for pair in items.items()
            ):
                label, table = (
                    text.replace("{" + name + "}", str(value))
                    for text in (label, table)
                )
            if plan in chosen:
                found.append(
                    Part(
                        label,
                        curve,
                        [plan],
                        table,
                        _each(curve.x_factor, i),
                        _corrections(curve, i),
                    )
                )
    return found


def published_points(
    part: Part, folder: Path, limits: Sequence[float], most: int | None = None
) -> Line | None:
    """Published points within the figure, with their spread over runs as error; None where there is no such table.

    ``most``: of a curve of theory, this many at the most, at equal distances in their list.

    Raises
    ------
    SuiteError
        If a table lacks a column or holds something else than numbers.
    """
    path = next(iter(sorted(folder.rglob(part.table))), None)
    if path is None:
        return None
    try:
        lines = csv.DictReader(read_text(path).splitlines())
        rows = [[float(row[name]) for name in part.curve.columns] for row in lines]
    except KeyError as error:
        raise SuiteError(str(path), "", f"has no column {error}") from None
    except (OSError, TypeError, ValueError, csv.Error) as error:
        raise SuiteError(str(path), "", f"is no table of numbers: {error}") from None
    low, high = limits
    points = [
        (x * part.factor, y, *more)
        for x, y, *more in rows
        if math.isfinite(x * y) and (x > 0 or part.is_threshold)
    ]
    points = [point for point in points if low <= point[0] <= high * (1 + 1e-9)]
    if most and not part.curve.algorithm and len(points) > most:
        points = [points[round(i)] for i in np.linspace(0, len(points) - 1, most)]
    x, y, *spread = np.array(points, dtype=float).reshape(-1, len(part.curve.columns)).T
    return Line(x, y, *(spread or [np.zeros_like(y)]))


def our_points(
    part: Part, answers: Answers, rows: Sequence[Row], alphas: Sequence[float]
) -> Line:
    """Our points of a line with their errors: standard errors of runs, numerical ones of theory (at these sample ratios)."""
    curve, k = part.curve, (part.curve.component or 1) - 1
    found: list[tuple[float, Any, Any]] = []
    if part.is_threshold:
        for x, plan in zip((varied(part.plans) or ("", []))[1], part.plans):
            known = answers.thresholds(plan.problem)
            steps = [
                s
                for s in known.get("sequential") or ()
                if s["layer"] == curve.component
            ]
            one = (
                next(
                    iter(steps),
                    known["weak_recovery"] if curve.component is None else None,
                )
                or {}
            )
            found.append((x, one.get("value"), one.get("error")))
    elif curve.algorithm:
        own = (
            row
            for row in rows
            if row.place.problem == part.plans[0].label
            and row.place.algorithm == curve.algorithm
        )
        own = (
            row
            for row in own
            if row.metric == curve.metric and row.component in (None, curve.component)
        )
        found = [
            (row.place.alpha * part.factor, row.estimate.mean, row.estimate.sem)
            for row in own
        ]
    else:
        problem = part.plans[0].problem
        metric = find_metric(curve.metric, problem.model.name)
        for alpha, (best, *_) in zip(alphas, answers.points(problem, alphas)):
            values, errors = theory_of(metric, problem, best, problem.components)
            found.append((alpha * part.factor, values[k], errors[k]))
    known_ones = sorted((x, y, error or 0.0) for x, y, error in found if y is not None)
    return Line(*np.array(known_ones, dtype=float).reshape(-1, 3).T)


def line_questions(
    parts: Sequence[Part], answers: Answers, alphas: Mapping[str, Iterable[float]]
) -> Iterator[Question]:
    """What the lines of ``figure_chart`` need besides, drawn at these sample ratios by label of the problem."""
    for part in parts:
        if part.is_threshold or part.curve.algorithm:
            continue
        problem = part.plans[0].problem
        yield ThresholdsQuestion(problem, if_cheap=True)
        if has_fine_lines(problem):
            yield LineQuestion(
                problem,
                tuple(line_grid(answers, problem, alphas[part.plans[0].label]).fine),
            )


def compare(part: Part, ours: Line, published: Line | None) -> JsonObject:
    """Whether a line agrees with the published one, and where it is farthest away.

    A point is inside if it is off by less than ``allowed``: the band of the curve, the published spread over runs, and twice our
    error. One outside is explained by a correction that holds at its x.
    """
    curve, points = part.curve, []
    for x, y, spread in zip(*published) if published and len(ours.alpha) else ():
        j = int(np.argmin(abs(ours.alpha - x)))
        if abs(ours.alpha[j] - x) <= SAME_POINT * abs(x):
            off, allowed = ours.value[j] - y, curve.band + spread + 2 * ours.error[j]
            reasons = [
                section for section, low, high in part.corrections if low <= x <= high
            ]
            rank = 0 if abs(off) <= allowed else 1 if reasons else 2
            points.append(
                (
                    rank,
                    abs(off),
                    {"at": x, "deviation": off, "allowed": allowed},
                    reasons,
                )
            )
    found: JsonObject = {
        "curve": part.label,
        "points": len(points),
        "verdict": NOT_COMPARED,
        "corrections": [],
    }
    if points:
        rank, _, where, _ = max(points, key=lambda one: one[:2])
        named = {
            reason: None for rank, _, _, reasons in points if rank for reason in reasons
        }
        found |= {
            **where,
            "verdict": (INSIDE, EXPLAINED, OUTSIDE)[rank],
            "corrections": list(named),
        }
        found["outside"] = sum(one[0] > 0 for one in points)
    return found


def figure_chart(
    suite: Suite,
    answers: Answers,
    rows: Sequence[Row],
    lines: Sequence[tuple[Part, Line, Line | None]],
) -> Chart:
    """The figure in the paper's axes: theory as lines, runs as marks, published points as crosses in the same color."""
    about = suite.figure
    assert about is not None
    look = looks_of(suite, rows)
    series: list[Series] = []
    crosses: list[Series] = []
    colors: dict[Any, str] = {}
    for part, ours, published in lines:
        curve, plan = part.curve, part.plans[0]
        key = (
            curve.component
            if len(suite.plans) == 1 or part.is_threshold
            else plan.label
        )
        color = colors.setdefault(key, COLORS[len(colors) % len(COLORS)])
        place: JsonObject = {"what": "ours", "curve": part.label}
        if curve.algorithm:
            style = {"marker": look[curve.algorithm].marker, "s": 18}
            series.append(
                Series(
                    part.label,
                    ours._asdict(),
                    place,
                    "marks",
                    color,
                    style,
                    curve.algorithm,
                )
            )
        else:
            line = ours
            if not part.is_threshold and len(ours.alpha):
                drawn = theory_lines(
                    answers,
                    plan,
                    curve.metric,
                    ours.alpha / part.factor,
                    (curve.component or 1) - 1,
                )
                line = drawn["Bayes-optimal"]._replace(
                    alpha=drawn["Bayes-optimal"].alpha * part.factor
                )
            series.append(theory_series(line, part.label, color, "-", place))
        if published is not None:
            shown = Line(
                *(column[:: 1 + len(column) // CROSSES] for column in published)
            )
            style = {"marker": "x", "s": 14, "linewidths": 0.8, "zorder": 4}
            where = {"what": "published", "curve": part.label}
            crosses.append(
                Series("published", shown._asdict(), where, "marks", color, style)
            )
    first = about.curves[0].metric
    ylabel = about.ylabel or (
        "sample ratio α" if first == "threshold" else metric_label(first)
    )
    panel = Panel(
        suite.title,
        about.xlabel,
        ylabel,
        [*series, *crosses],
        limits=(about.xlim, about.ylim),
    )
    panel.xlog, panel.ylog = about.xlog, about.ylog
    key = f"{ylabel} against {about.xlabel}, after {suite.reference}; crosses: {about.source}."
    return Chart("figure", suite.title, [panel], key=key)
