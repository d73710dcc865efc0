"""Figures against the sample ratio: a metric with theory, runs, thresholds and published values; theory alone; the phase
diagram of a suite that varies one parameter.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smimbench.registry.metrics import find_metric, metric_label, theory_of
from smimbench.report.charts import Chart, Panel, Series
from smimbench.report.labels import (
    component_word,
    grouped,
    letter,
    of_largest_dimension,
)
from smimbench.report.statistics import ZERO
from smimbench.report.style import COLORS, PREDICTED, Look, floor_of, looks_of
from smimbench.run.answers import at_hand
from smimbench.theory.questions import LineQuestion, PointsQuestion, ThresholdsQuestion

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from smimbench.files import JsonObject
    from smimbench.problem.problem import Problem
    from smimbench.report.row import Row
    from smimbench.run.answers import Answers
    from smimbench.suite.cells import ProblemPlan, Suite
    from smimbench.theory.questions import Question
    from smimbench.theory.types import TheoryPoint, Threshold, Thresholds

PANELS = 12
"""Panels of a figure at the most; doubled, it is two pages high."""

UNINFORMED = "uninformed branch (reached by algorithms)"


# -- theory ---------------------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """Theory of one component: sample ratios, values and numerical errors."""

    alpha: Any
    value: Any
    error: Any


def is_cheap(problem: Problem) -> bool:
    """Whether computing theory on a fine grid takes next to no time."""
    return problem.components == 1 and problem.channel.information is not None


class Grid(NamedTuple):
    """Sample ratios of a line: those that are used, a fine grid through them, and the thresholds where a curve may break."""

    used: list[float]
    fine: list[float]
    breaks: list[float]


def line_grid(answers: Answers, problem: Problem, used: Iterable[float]) -> Grid:
    """Sample ratios at which theory is drawn, a little beyond those that are used, and dense near thresholds."""
    grid = sorted(used)
    low, high = grid[0], grid[-1]
    margin = 0.05 * (high - low) if high > low else 0.2 * high
    ends = (
        (low / 1.3, high * 1.3)
        if high > 20.0 * low
        else (max(low - margin, low / 2), high + margin)
    )
    fine = np.unique([*_spread(*ends), *grid])
    marks = threshold_marks(answers.thresholds_at_hand(problem))
    breaks = [mark for mark, name in marks if "recovery" in name]
    # A curve may fall steeply towards a threshold: points draw near it from both sides.
    near = [
        b * (1 + s * 10.0**-k)
        for b in breaks
        for k in (1.5, 2, 2.5, 3, 4)
        for s in (-1, 1)
    ]
    dense = np.unique([*fine, *(at for at in near if fine[0] < at < fine[-1])])
    return Grid(grid, dense.tolist(), breaks)


def has_fine_lines(problem: Problem) -> bool:
    """Whether lines are drawn on a fine grid: theory costs next to nothing, or is read off a curve that is known already."""
    return problem.components > 1 or is_cheap(problem)


def drawn_ratios(
    suite: Suite, rows: Sequence[Row], alphas: Sequence[float] | None = None
) -> dict[str, set[float]]:
    """Sample ratios of a figure by label of the problem: those of the rows, and others (default: those of the suite)."""
    used = {plan.label: set(alphas or plan.alphas) for plan in suite.plans}
    for row in rows:
        used[row.place.problem].add(row.place.alpha)
    return used


def chart_questions(
    suite: Suite,
    answers: Answers,
    used: Mapping[str, Iterable[float]],
    metrics: Sequence[str],
) -> Iterator[Question]:
    """What ``metric_chart``, ``phase_chart`` and ``theory_lines`` need.

    Parameters
    ----------
    answers : Answers
        Those to the questions before: lines are dense near thresholds, and drawn through points where there is no line.
    used : mapping
        Sample ratios that are drawn, by label of the problem.
    """
    for plan in suite.chosen_plans:
        problem = plan.problem
        if problem.no_theory is not None:
            continue
        yield ThresholdsQuestion(problem, if_cheap=True)
        grid = line_grid(answers, problem, used[plan.label])
        if has_fine_lines(problem):
            yield LineQuestion(problem, tuple(grid.fine))
        if not all(_is_on_line(answers, problem, metric, grid) for metric in metrics):
            yield PointsQuestion(problem, tuple(grid.used))


def _is_on_line(answers: Answers, problem: Problem, metric: str, grid: Grid) -> bool:
    """Whether the line of a figure has values of a metric: it may lack errors of prediction."""
    line = answers.line_at_hand(problem, grid.fine) if has_fine_lines(problem) else None
    about = find_metric(metric, problem.model.name)
    return (
        line is not None
        and theory_of(about, problem, line[0][0], problem.components)[0][0] is not None
    )


def theory_lines(
    answers: Answers, plan: Any, metric: str, used: Sequence[float], k: int
) -> dict[str, Line]:
    """Theory of a component by branch: on a fine grid, or smooth between the sample ratios that are used.

    The branches are ``"Bayes-optimal"`` and, where it is another one, that of an uninformed start; none where theory is not
    stored.
    """
    problem = plan.problem
    about = find_metric(metric, problem.model.name)
    grid = line_grid(answers, problem, used)

    def values(branch: TheoryPoint) -> list[float | None]:
        return [
            part[k] for part in theory_of(about, problem, branch, problem.components)
        ]

    on_line = _is_on_line(answers, problem, metric, grid)
    ratios = grid.fine if on_line else grid.used
    points = (
        answers.line_at_hand(problem, ratios)
        if on_line
        else at_hand(answers.points, problem, ratios)
    )
    best = [branches[0] for branches in points or ()]
    start = [
        next((p for p in branches if p.branch == "uninformed"), branches[0])
        for branches in points or ()
    ]
    apart = np.array([one is not other for one, other in zip(start, best)], dtype=bool)
    apart[1:] |= apart[:-1].copy()  # with the point where they meet again
    lines = {}
    for name, branch, there in (
        ("Bayes-optimal", best, np.ones_like(apart)),
        (UNINFORMED, start, apart),
    ):
        read = [
            (alpha, *values(point))
            for alpha, point, shown in zip(ratios, branch, there)
            if shown
        ]
        triples = [
            (alpha, value, error or 0.0)
            for alpha, value, error in read
            if value is not None
        ]
        if triples:
            line = Line(*np.array(triples, dtype=float).T)
            lines[name] = line if on_line else smooth(line, grid.breaks)
    return lines


def _spread(low: float, high: float) -> Any:
    """Points of a line that are evenly spaced on the axis drawn."""
    return (np.geomspace if high > 20.0 * low > 0 else np.linspace)(low, high, 120)


def smooth(line: Line, breaks: Iterable[float]) -> Line:
    """A smooth monotone cubic through the given points without overshoot, broken at thresholds.

    Between the last point before a threshold and the first one after it nothing is known: a NaN leaves a gap in the line.
    """
    from scipy.interpolate import PchipInterpolator

    parts: list[Line] = []
    ends = np.searchsorted(line.alpha, sorted(breaks), side="right")
    for x, *values in zip(*(np.split(part, ends) for part in line)):
        if len(x) and parts:
            parts.append(Line(x[:1], [np.nan], [np.nan]))
        if len(x) > 2:
            fine = _spread(x[0], x[-1])
            parts.append(Line(fine, *(PchipInterpolator(x, y)(fine) for y in values)))
        elif len(x):
            parts.append(Line(x, *values))
    return Line(*(np.concatenate(part) for part in zip(*parts)))


def named_thresholds(
    thresholds: Thresholds, word: str = "component"
) -> list[tuple[str, Threshold | None]]:
    """All thresholds with their names; None where there is none."""
    named: list[tuple[str, Threshold | None]]
    named = [("weak recovery", thresholds.weak_recovery)]
    if thresholds.late_recovery:
        named += [
            ("perfect recovery (informed)", thresholds.perfect_recovery),
            ("perfect recovery (uninformed)", thresholds.late_recovery),
        ]
    else:
        named.append(("perfect recovery", thresholds.perfect_recovery))
    for step in thresholds.sequential:
        named.append((f"{word} {step.component + 1} learned", step.threshold))
    at = thresholds.by_name()
    return named + [
        (key.replace("_", "-"), at[key])
        for key in ("information_theoretic", "algorithmic", "spinodal")
    ]


def threshold_marks(
    thresholds: Thresholds, word: str = "component"
) -> list[tuple[float, str]]:
    """Sample ratios and names of all known thresholds; each once, by its first name."""
    marks: list[tuple[float, str]] = []
    for name, threshold in named_thresholds(thresholds, word):
        value = threshold.value if threshold else 0.0
        if value > 0 and not any(
            abs(value - other) <= 1e-6 * value for other, _ in marks
        ):
            marks.append((value, name))
    return marks


def theory_series(
    line: Line,
    name: str,
    color: str,
    dashes: Any,
    about: JsonObject,
    algorithm: str = "",
) -> Series:
    """A line with a band of its numerical error; horizontal bars for one or two points, alone or between two gaps."""
    if len(line.alpha) < 3:
        style = {
            "marker": "_",
            "s": 60 if algorithm else 250,
            "linewidths": 1.5,
            "zorder": 2,
        }
        return Series(name, line._asdict(), about, "marks", color, style, algorithm)
    parts = np.split(np.arange(len(line.value)), np.flatnonzero(np.isnan(line.value)))
    alone = [
        int(i)
        for part in parts
        if (own := part[np.isfinite(line.value[part])]).size < 3
        for i in own
    ]
    style = {"ls": dashes, "zorder": 2} | (
        {"marker": "_", "ms": 14, "mew": 1.3, "markevery": alone} if alone else {}
    )
    return Series(name, line._asdict(), about, "line", color, style, algorithm)


# -- a metric -------------------------------------------------------------------------------------------------------------

KEY = (
    "Solid line, or bars at one or two sample ratios: Bayes-optimal; dashed: predicted for the algorithm. "
    "Marks: mean and standard error over runs; hollow: some did not converge; triangles: below the axis. "
    "Of several dimensions the largest is shown."
)
"""What is in the figure of a metric."""


def metric_chart(
    suite: Suite,
    rows: Sequence[Row],
    answers: Answers,
    metric: str,
    alphas: Sequence[float] | None = None,
) -> Chart | None:
    """The figure of one metric, a panel per problem and component; None where ``--only`` leaves no problem.

    Parameters
    ----------
    alphas : sequence of float
        Sample ratios to draw besides those of the rows; default: those of the suite.
    """
    look = looks_of(suite, rows)
    members = of_largest_dimension(
        row for row in rows if row.metric == metric and row.estimate.mean is not None
    )
    places = [
        (plan, component)
        for plan in suite.chosen_plans
        for component in _components(plan, metric)
    ]
    if not places:
        return None
    panels = [
        _metric_panel(
            suite,
            plan,
            metric,
            component,
            members,
            answers,
            look,
            alphas or plan.alphas,
        )
        for plan, component in places[:PANELS]
    ]
    sources = sorted(
        {
            r.source
            for plan in suite.chosen_plans
            for r in plan.references
            if r.metric == metric
        }
    )
    note = f"Crosses: published values: {'; '.join(sources)}. " if sources else ""
    if len(places) > PANELS:
        note += f"{len(places) - PANELS} further panels are left out."
    return Chart(
        metric,
        suite.title,
        panels,
        note,
        f"{metric_label(metric)} against the sample ratio. {KEY}",
    )


def _components(plan: Any, metric: str) -> Sequence[int | None]:
    several = (
        plan.problem.components > 1
        and find_metric(metric, plan.problem.model.name).per_component
    )
    return range(1, plan.problem.components + 1) if several else (None,)


def _metric_panel(
    suite: Suite, plan: Any, metric: str, component: int | None, rows: Sequence[Row], answers: Answers,
    look: dict[str, Look], alphas: Sequence[float],
) -> Panel:  # fmt: skip
    problem, about, k = (
        plan.problem,
        find_metric(metric, plan.problem.model.name),
        (component or 1) - 1,
    )
    rows = [
        row
        for row in rows
        if row.place.problem == plan.label and row.component == component
    ]
    place = {"problem": plan.label, "component": component}
    used = sorted({row.place.alpha for row in rows} | set(alphas))
    lines = theory_lines(answers, plan, metric, used, k)
    series = [
        theory_series(
            line,
            what,
            "black",
            "--" if what == UNINFORMED else "-",
            {**place, "what": what},
        )
        for what, line in lines.items()
    ]
    for name, own in grouped(rows, lambda row: row.place.algorithm).items():
        series += [
            _runs(own, look[name], name, place),
            *_predicted(own, look[name], name, place),
        ]
    for j, one in enumerate(plan.references):
        if one.metric == metric and one.component in (None, component or 1):
            columns = {
                "alpha": one.alpha,
                "value": one.value,
                "error": [one.tolerance] * len(one.alpha),
            }
            style = {"marker": "x+1234"[j % 6], "s": 25, "zorder": 1}
            known = {**place, "what": "reference", "algorithm": one.label}
            series.append(Series(one.label, columns, known, "marks", "#737373", style))
    thresholds, word = answers.thresholds_at_hand(problem), component_word(problem)
    marks = threshold_marks(thresholds, word)
    upright = {
        "algorithm": [name for _, name in marks],
        "alpha": [at for at, _ in marks],
    }
    series.append(Series("", upright, {**place, "what": "threshold"}, "upright"))
    title = (
        plan.label
        if component is None
        else f"{plan.label}, {word}\N{NO-BREAK SPACE}{component}"
    )
    if sizes := sorted({row.place.dimension for row in rows}):
        title += f", {letter(problem.model)} = {' to '.join(map(str, sizes[:: len(sizes) - 1 or 1]))}"
    panel = Panel(
        title,
        "sample ratio α",
        metric_label(metric),
        series,
        plan.label,
        hard=thresholds.hard_phase.ends if thresholds.hard_phase else None,
    )
    panel.xlog = _spans_decades([row.place.alpha for row in rows])
    line, means, zero = (
        lines.get("Bayes-optimal"),
        [row.estimate.mean or 0.0 for row in rows],
        ZERO * suite.run.target,
    )
    if about.direction == "lower" and line is not None:
        panel.ylog = _spans_decades([*line.value, *means])
        if (line.value <= zero).any():
            # Where the optimal error is 0, what is below the target counts as reached.
            best = [
                value
                for alpha, value in zip(line.alpha, line.value)
                if alpha in used and value > zero
            ]
            seen = [
                mean
                for mean, row in zip(means, rows)
                if (row.optimum.limit or 0.0) > zero
            ]
            panel.floor = floor_of([*best, *seen], suite.run.target)
    return panel


def _spans_decades(values: Iterable[float]) -> bool:
    """Whether positive values span so much that a linear axis would hide the small ones."""
    positive = [value for value in values if value > 0]
    return bool(positive) and max(positive) > 20.0 * min(positive)


def _runs(rows: Sequence[Row], look: Look, name: str, place: JsonObject) -> Series:
    """Marks of one algorithm, hollow where a run did not end properly."""
    columns = {
        "alpha": [row.place.alpha for row in rows],
        "dimension": [row.place.dimension for row in rows],
        "value": [row.estimate.mean for row in rows],
        "error": [row.estimate.sem for row in rows],
        "n": [row.estimate.n for row in rows],
        "hollow": [
            bool(set(row.runs.status_counts) - {"ok", "skipped"}) for row in rows
        ],
    }
    about = {**place, "what": "runs", "algorithm": name}
    return Series(
        name,
        columns,
        about,
        "marks",
        look.color,
        {"marker": look.marker, "s": 18},
        name,
    )


def _predicted(
    rows: Sequence[Row], look: Look, name: str, place: JsonObject
) -> list[Series]:
    """Marks of the algorithm's own prediction, where that differs from the Bayes-optimal value."""
    predictions = [
        (row.place.alpha, row.prediction)
        for row in rows
        if row.prediction.value is not None
    ]
    says = {
        alpha: (prediction.value, prediction.error or 0.0)
        for alpha, prediction in predictions
    }
    if not says or all(row.prediction.value == row.optimum.limit for row in rows):
        return []
    line = Line(
        *(
            np.array(part, dtype=float)
            for part in zip(*((alpha, *says[alpha]) for alpha in sorted(says)))
        )
    )
    about = {**place, "what": "predicted", "algorithm": name}
    drawn = theory_series(
        smooth(line, ()), f"{name}{PREDICTED}", look.color, "--", about, name
    )
    if drawn.kind == "marks":
        return [drawn]
    known = Series(
        "",
        line._asdict(),
        about,
        "marks",
        look.color,
        {"marker": ".", "s": 6, "zorder": 2},
        name,
    )
    return [replace(drawn, about=None), known]


# -- theory alone ---------------------------------------------------------------------------------------------------------


def theory_charts(
    suite: Suite, answers: Answers, alphas: Sequence[float] | None = None
) -> list[Chart]:
    """Error and overlap against the sample ratio without runs, and the phase diagram if there is one."""
    charts = [
        metric_chart(suite, [], answers, metric, alphas)
        for metric in ("mse", "overlap")
    ]
    charts = [chart and replace(chart, name=f"theory-{chart.name}") for chart in charts]
    return [
        chart for chart in (*charts, phase_chart(suite, answers)) if chart is not None
    ]


def varied(plans: Sequence[ProblemPlan]) -> tuple[str, list[float]] | None:
    """The one numerical parameter in which at least three problems differ, with its value in each; None if there is none."""
    flat = [
        {
            (k, key): value
            for k, spec in p.problem.spec.items()
            for key, value in spec.items()
        }
        for p in plans
    ]
    differing = {
        key
        for one in flat
        for key in one
        if any(one.get(key) != other.get(key) for other in flat)
    }
    values: list[Any] = [one.get(key) for key in differing for one in flat]
    if not 3 <= len(plans) == len(values) == len({*map(repr, values)}) or {
        *map(type, values)
    } - {int, float}:
        return None
    return ".".join(differing.pop()), values


def phase_chart(suite: Suite, answers: Answers) -> Chart | None:
    """Thresholds over the sample ratio and the one parameter that varies."""
    name, values = varied(suite.chosen_plans) or ("", [])
    marks = [
        (word, at, value)
        for value, plan in sorted(
            zip(values, suite.chosen_plans), key=lambda pair: pair[0]
        )
        for at, word in threshold_marks(
            answers.thresholds_at_hand(plan.problem), component_word(plan.problem)
        )
    ]
    if not marks:
        return None
    series = []
    for i, (kind, line) in enumerate(grouped(marks, lambda mark: mark[0]).items()):
        _, x, y = zip(*line)
        style = {
            "ls": "-" if kind.startswith("perfect") else "--",
            "marker": "o",
            "ms": 2.5,
        }
        series.append(
            Series(
                kind,
                {name: y, "alpha": x},
                {"what": kind},
                "line",
                COLORS[i % len(COLORS)],
                style,
            )
        )
    panel = Panel(
        suite.title,
        "sample ratio α",
        name.partition(".")[2],
        series,
        y=name,
        from_zero=False,
    )
    return Chart(
        "phases",
        suite.title,
        [panel],
        key=f"thresholds over the sample ratio and {name}.",
    )
