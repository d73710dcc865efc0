"""Figures against the sample ratio: metrics with theory, runs and thresholds, theory alone, and phase diagrams."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smimbench.registry.items import Parameters
from smimbench.registry.registry import find_metric, metric_label, theory_of
from smimbench.report.charts import Chart, CsvRow, Dashes, Kind, Panel, Series
from smimbench.report.row import (
    component_word,
    dimension_letter_of,
    grouped,
    largest_dimension_rows,
)
from smimbench.report.statistics import ZERO
from smimbench.report.style import COLORS, PREDICTED, Look, floor_of, looks_of
from smimbench.run.answers import stored_or_none
from smimbench.theory.types import LineQuestion, PointsQuestion, ThresholdsQuestion

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from smimbench.interfaces import Host
    from smimbench.problem.problem import Problem
    from smimbench.report.row import Row
    from smimbench.run.answers import Answers
    from smimbench.suite.cells import ProblemPlan, Suite
    from smimbench.theory.types import Question, TheoryPoint, Threshold, Thresholds

PANELS = 12
"""Largest number of panels in a figure; doubled, a figure is two pages high."""

UNINFORMED = "uninformed branch (reached by algorithms)"


# -- theory ---------------------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """Theoretical curve of one component: sample ratios (n,), values (n,) and numerical errors (n,)."""

    alpha: Host
    value: Host
    error: Host


def is_cheap(problem: Problem) -> bool:
    """Return whether theory of a problem is cheap enough for a fine grid of sample ratios."""
    return problem.components == 1 and problem.channel.information is not None


class LineGrid(NamedTuple):
    """Sample ratios of a theoretical line: those of runs, a fine grid, and the thresholds where the curve may jump."""

    used: list[float]
    fine: list[float]
    breaks: list[float]


def line_grid(answers: Answers, problem: Problem, used: Iterable[float]) -> LineGrid:
    """Choose the sample ratios at which theory is drawn: slightly more than the range used, dense at thresholds."""
    grid = sorted(used)
    low, high = grid[0], grid[-1]
    if _spans_decades(grid):
        start, end = low / 1.3, high * 1.3
    else:
        margin = 0.05 * (high - low) if high > low else 0.2 * high
        start, end = max(low - margin, low / 2), high + margin
    marks = threshold_marks(answers.thresholds_or_empty(problem))
    breaks = [mark for mark, name in marks if "recovery" in name]
    # A curve may fall steeply towards a threshold: points draw near it from both sides.
    offsets = 10.0 ** -np.array([1.5, 2, 2.5, 3, 4])
    near = np.outer(breaks, 1 + np.concatenate([-offsets, offsets])).ravel()
    near = near[(start < near) & (near < end)]
    fine = np.unique([*_evenly_spaced(start, end), *grid, *near])
    return LineGrid(grid, fine.tolist(), breaks)


def has_fine_lines(problem: Problem) -> bool:
    """Return whether theory is drawn on a fine grid: it is cheap, or can be read from a solved curve."""
    return problem.components > 1 or is_cheap(problem)


def drawn_ratios(
    suite: Suite, rows: Sequence[Row], alphas: Sequence[float] | None = None
) -> dict[str, set[float]]:
    """Return, for each problem label, the sample ratios that a figure shows: of its rows, and ``alphas`` (or the suite's)."""
    used = {plan.label: set(alphas or plan.alphas) for plan in suite.plans}
    for row in largest_dimension_rows(r for r in rows if r.estimate.mean is not None):
        used[row.place.problem].add(row.place.alpha)
    return used


def chart_questions(
    suite: Suite,
    answers: Answers,
    used: Mapping[str, Iterable[float]],
    metrics: Sequence[str],
) -> Iterator[Question]:
    """Yield the theory questions that ``metric_chart``, ``phase_chart`` and ``theory_lines`` need answered.

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


def _is_on_line(
    answers: Answers, problem: Problem, metric: str, grid: LineGrid
) -> bool:
    """Return whether stored theory on a line's grid includes a metric; it may lack generalization errors."""
    line = answers.line_or_none(problem, grid.fine) if has_fine_lines(problem) else None
    if line is None:
        return False
    values, _ = _theory_of(metric, problem, line[0][0])
    return values[0] is not None


def _theory_of(
    metric: str, problem: Problem, point: TheoryPoint
) -> tuple[Sequence[float | None], Sequence[float | None]]:
    """Return the values (P,) of a metric at a theory point, and their errors (P,)."""
    described_metric = find_metric(metric, problem.model.name)
    return theory_of(described_metric, problem, point, problem.components)


def theory_lines(
    answers: Answers, plan: ProblemPlan, metric: str, used: Iterable[float], k: int
) -> dict[str, Line]:
    """Compute the theoretical lines of a component by branch: on a fine grid, or interpolated between the sample ratios used.

    The branches are ``"Bayes-optimal"`` and, where it is another one, that of an uninformed start; none where theory is not
    stored.
    """
    problem = plan.problem
    grid = line_grid(answers, problem, used)
    is_fine = _is_on_line(answers, problem, metric, grid)
    if is_fine:
        ratios, points = grid.fine, answers.line_or_none(problem, grid.fine)
    else:
        ratios, points = grid.used, stored_or_none(answers.points, problem, grid.used)
    optimal: list[tuple[float, float, float]] = []
    uninformed: list[tuple[float, float, float]] = []
    was_apart = False
    for alpha, branches in zip(ratios, points or ()):
        start = next((p for p in branches if p.branch == "uninformed"), branches[0])
        is_apart = start is not branches[0]
        for triples, point, shown in (
            (optimal, branches[0], True),
            # With the point where they meet again.
            (uninformed, start, is_apart or was_apart),
        ):
            values, errors = _theory_of(metric, problem, point)
            value, error = values[k], errors[k]
            if shown and value is not None:
                triples.append((alpha, value, error or 0.0))
        was_apart = is_apart
    lines = {}
    for name, triples in ("Bayes-optimal", optimal), (UNINFORMED, uninformed):
        if triples:
            line = Line(*np.array(triples, dtype=float).T)
            lines[name] = line if is_fine else smooth(line, grid.breaks)
    return lines


def _evenly_spaced(low: float, high: float) -> Host:
    """Return sample ratios that are evenly spaced on the drawn axis."""
    space = np.geomspace if low > 0 and _spans_decades([low, high]) else np.linspace
    return space(low, high, 120)


def smooth(line: Line, breaks: Iterable[float]) -> Line:
    """Interpolate a line by monotone cubics without overshoot, with breaks at thresholds.

    Between the last point before a threshold and the first one after it nothing is known: a NaN leaves a gap in the line.
    """
    from scipy.interpolate import PchipInterpolator

    stretches: list[Line] = []
    ends = np.searchsorted(line.alpha, sorted(breaks), side="right")
    for x, *columns in zip(*(np.split(column, ends) for column in line)):
        if len(x) and stretches:
            stretches.append(Line(x[:1], *np.full((2, 1), np.nan)))
        if len(x) > 2:
            fine = _evenly_spaced(x[0], x[-1])
            curves = [PchipInterpolator(x, column)(fine) for column in columns]
            stretches.append(Line(fine, *curves))
        elif len(x):
            stretches.append(Line(x, *columns))
    return Line(*map(np.concatenate, zip(*stretches)))


def named_thresholds(
    thresholds: Thresholds, word: str = "component"
) -> list[tuple[str, Threshold | None]]:
    """List all thresholds with their names; None for thresholds that do not exist."""
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
    """List sample ratios and names of all finite thresholds; of equal ones, only the first."""
    marks: list[tuple[float, str]] = []
    for name, threshold in named_thresholds(thresholds, word):
        alpha = threshold.value if threshold else 0.0
        is_new = not any(abs(alpha - mark) <= 1e-6 * alpha for mark, _ in marks)
        if alpha > 0 and is_new:
            marks.append((alpha, name))
    return marks


def theory_series(
    line: Line,
    name: str,
    color: str,
    dashes: Dashes,
    about: CsvRow,
    algorithm: str = "",
) -> Series:
    """Make a line with a band for its numerical error; one or two isolated points become horizontal bars."""
    style: dict[str, object] = {"zorder": 2}
    kind: Kind = "line"
    if len(line.alpha) < 3:
        kind = "marks"
        size = 60 if algorithm else 250
        style |= {"marker": "_", "s": size, "linewidths": 1.5}
    else:
        style["ls"] = dashes
        gaps = np.flatnonzero(np.isnan(line.value))
        stretches = np.split(np.arange(len(line.value)), gaps)
        alone: list[int] = []
        for indices in stretches:
            points = indices[np.isfinite(line.value[indices])]
            alone += points.tolist() if len(points) < 3 else []
        if alone:
            style |= {"marker": "_", "ms": 14, "mew": 1.3, "markevery": alone}
    return Series(name, line._asdict(), about, kind, color, style, algorithm)


# -- a metric -------------------------------------------------------------------------------------------------------------

KEY = (
    "Solid line, or bars at one or two sample ratios: Bayes-optimal; dashed: theory for the algorithm. "
    "Marks: mean and standard error over runs; hollow: some runs did not converge; triangles: below the axis. "
    "Only the largest dimension is shown."
)
"""Legend in words for the figure of a metric."""


def metric_chart(
    suite: Suite,
    rows: Sequence[Row],
    answers: Answers,
    metric: str,
    alphas: Sequence[float] | None = None,
) -> Chart | None:
    """Make the figure of one metric, with a panel per problem and component; None if no problem is selected.

    Parameters
    ----------
    alphas : sequence of float
        Sample ratios to draw besides those of the rows; default: those of the suite.
    """
    looks = looks_of(suite, rows)
    rows = largest_dimension_rows(
        row for row in rows if row.metric == metric and row.estimate.mean is not None
    )
    panels = [
        _MetricPanel(suite, plan, metric, component, rows)
        for plan in suite.chosen_plans
        for component in _components(plan, metric)
    ]
    if not panels:
        return None
    sources: set[str] = set()
    for plan in suite.chosen_plans:
        sources |= {r.source for r in plan.references if r.metric == metric}
    notes = []
    if sources:
        notes.append(f"Crosses: published values: {'; '.join(sorted(sources))}.")
    if len(panels) > PANELS:
        notes.append(f"{len(panels) - PANELS} more panels are not shown.")
    return Chart(
        metric,
        suite.title,
        [panel.draw(answers, looks, alphas) for panel in panels[:PANELS]],
        " ".join(notes),
        f"{metric_label(metric)} against the sample ratio. {KEY}",
    )


def _components(plan: ProblemPlan, metric: str) -> Sequence[int | None]:
    problem = plan.problem
    described_metric = find_metric(metric, problem.model.name)
    if problem.components == 1 or not described_metric.per_component:
        return (None,)
    return range(1, problem.components + 1)


@dataclass(frozen=True)
class _MetricPanel:
    """Panel for a metric of one problem, of one component (from 1) or of all together, with its rows."""

    suite: Suite
    plan: ProblemPlan
    metric: str
    component: int | None
    rows: Sequence[Row]

    @property
    def shown(self) -> list[Row]:
        """The rows of this problem and component."""
        place = self.plan.label, self.component
        return [row for row in self.rows if (row.place.problem, row.component) == place]

    def draw(
        self,
        answers: Answers,
        looks: Mapping[str, Look],
        alphas: Sequence[float] | None,
    ) -> Panel:
        """Draw the panel, with theory at the sample ratios ``alphas`` (default: the suite's) and at those of the rows."""
        plan, problem, rows = self.plan, self.plan.problem, self.shown
        used = sorted({row.place.alpha for row in rows} | {*(alphas or plan.alphas)})
        k = (self.component or 1) - 1
        lines = theory_lines(answers, plan, self.metric, used, k)
        series = []
        for name, line in lines.items():
            dashes = "--" if name == UNINFORMED else "-"
            about = self._about(name)
            series.append(theory_series(line, name, "black", dashes, about))
        for name, members in grouped(rows, lambda row: row.place.algorithm).items():
            series.append(self._runs(members, looks[name], name))
            series += self._predicted(members, looks[name], name)
        series += self._references()
        thresholds, word = answers.thresholds_or_empty(problem), component_word(problem)
        marks = threshold_marks(thresholds, word)
        upright = {
            "algorithm": [name for _, name in marks],
            "alpha": [alpha for alpha, _ in marks],
        }
        series.append(Series("", upright, self._about("threshold"), "upright"))
        title = plan.label
        if self.component is not None:
            title += f", {word}\N{NO-BREAK SPACE}{self.component}"
        if sizes := sorted({row.place.dimension for row in rows}):
            ends = map(str, dict.fromkeys([sizes[0], sizes[-1]]))
            title += f", {dimension_letter_of(problem.model)} = {' to '.join(ends)}"
        panel = Panel(
            title,
            "sample ratio α",
            metric_label(self.metric),
            series,
            plan.label,
            xlog=_spans_decades(row.place.alpha for row in rows),
            hard=thresholds.hard_phase.ends if thresholds.hard_phase else None,
        )
        if "Bayes-optimal" in lines:
            self._scale(panel, lines["Bayes-optimal"], used)
        return panel

    def _about(self, kind: str, algorithm: str = "") -> CsvRow:
        """Return the CSV columns that are constant in this series."""
        about = {"problem": self.plan.label, "component": self.component, "what": kind}
        return about | ({"algorithm": algorithm} if algorithm else {})

    def _scale(self, panel: Panel, line: Line, used: Sequence[float]) -> None:
        """Choose the vertical scale of a panel: logarithmic for errors that span decades, with a floor if the optimum is 0."""
        described_metric = find_metric(self.metric, self.plan.problem.model.name)
        if described_metric.direction != "lower":
            return
        target = self.suite.run.target
        means = [row.estimate.mean or 0.0 for row in self.shown]
        panel.ylog = _spans_decades([*line.value, *means])
        is_zero = line.value <= ZERO * target
        if is_zero.any():
            # Where the optimal error is 0, what is below the target counts as reached.
            shown = line.value[~is_zero & np.isin(line.alpha, used)].tolist()
            for mean, row in zip(means, self.shown):
                if (row.optimum.limit or 0.0) > ZERO * target:
                    shown.append(mean)
            panel.floor = floor_of(shown, target)

    def _runs(self, rows: Sequence[Row], look: Look, name: str) -> Series:
        """Make the marks of one algorithm, hollow where a run did not end ok."""
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
        about, style = self._about("runs", name), {"marker": look.marker, "s": 18}
        return Series(name, columns, about, "marks", look.color, style, name)

    def _predicted(self, rows: Sequence[Row], look: Look, name: str) -> list[Series]:
        """Make the line of the theory for an algorithm, where it differs from the Bayes-optimal value."""
        predictions = {}
        for row in rows:
            value, error = row.prediction.value, row.prediction.error
            if value is not None:
                predictions[row.place.alpha] = (row.place.alpha, value, error or 0.0)
        if all(row.prediction.value == row.optimum.limit for row in rows):
            return []
        if not predictions:
            return []
        triples = [predictions[alpha] for alpha in sorted(predictions)]
        line = Line(*np.array(triples, dtype=float).T)
        about, label = self._about("predicted", name), f"{name}{PREDICTED}"
        drawn = theory_series(smooth(line, ()), label, look.color, "--", about, name)
        if drawn.kind == "marks":
            return [drawn]
        style = {"marker": ".", "s": 6, "zorder": 2}
        points = Series("", line._asdict(), about, "marks", look.color, style, name)
        return [replace(drawn, about=None), points]

    def _references(self) -> list[Series]:
        """Make the crosses at published values."""
        series = []
        for i, reference in enumerate(self.plan.references):
            is_of_component = reference.component in (None, self.component or 1)
            if reference.metric == self.metric and is_of_component:
                columns = {
                    "alpha": reference.alpha,
                    "value": reference.value,
                    "error": [reference.tolerance] * len(reference.alpha),
                }
                style = {"marker": "x+1234"[i % 6], "s": 25, "zorder": 1}
                label, about = (
                    reference.label,
                    self._about("reference", reference.label),
                )
                series.append(Series(label, columns, about, "marks", "#737373", style))
        return series


def _spans_decades(values: Iterable[float]) -> bool:
    """Return whether positive values span so many decades that a linear axis would hide the small ones."""
    positive = [value for value in values if value > 0]
    return bool(positive) and max(positive) > 20.0 * min(positive)


# -- theory alone ---------------------------------------------------------------------------------------------------------


def theory_charts(
    suite: Suite, answers: Answers, alphas: Sequence[float] | None = None
) -> list[Chart]:
    """Make the theory figures: error and overlap against the sample ratio, and the phase diagram if there is one."""
    charts = []
    for metric in ("mse", "overlap"):
        chart = metric_chart(suite, [], answers, metric, alphas)
        if chart is not None:
            charts.append(replace(chart, name=f"theory-{metric}"))
    phases = phase_chart(suite, answers)
    return charts if phases is None else [*charts, phases]


def varied(plans: Sequence[ProblemPlan]) -> tuple[str, list[float]] | None:
    """Find the only numerical parameter that varies among at least three problems, with its values; None if there is none."""
    parameters = [_parameters(plan) for plan in plans]
    names = {name for flat in parameters for name in flat}
    differing = [n for n in names if len({repr(p.get(n)) for p in parameters}) > 1]
    if len(plans) < 3 or len(differing) != 1:
        return None
    values: list[Any] = [flat.get(differing[0]) for flat in parameters]
    is_numeric = {type(value) for value in values} <= {int, float}
    if not is_numeric or len(set(values)) < len(values):
        return None
    return differing[0], values


def _parameters(plan: ProblemPlan) -> Parameters:
    """Return all parameters of a problem, named like ``prior.rho``."""
    parameters: Parameters = {}
    for kind, spec in plan.problem.spec.items():
        parameters |= {f"{kind}.{name}": parameter for name, parameter in spec.items()}
    return parameters


def phase_chart(suite: Suite, answers: Answers) -> Chart | None:
    """Make the phase diagram: thresholds in the plane of sample ratio and the varied parameter."""
    name, parameters = varied(suite.chosen_plans) or ("", [])
    lines: dict[str, list[tuple[float, float]]] = {}
    pairs = zip(parameters, suite.chosen_plans)
    for parameter, plan in sorted(pairs, key=lambda pair: pair[0]):
        thresholds = answers.thresholds_or_empty(plan.problem)
        for alpha, kind in threshold_marks(thresholds, component_word(plan.problem)):
            lines.setdefault(kind, []).append((alpha, parameter))
    if not lines:
        return None
    series = []
    for i, (kind, points) in enumerate(lines.items()):
        alphas, values = zip(*points)
        columns, color = {name: values, "alpha": alphas}, COLORS[i % len(COLORS)]
        dashes = "-" if kind.startswith("perfect") else "--"
        style = {"ls": dashes, "marker": "o", "ms": 2.5}
        series.append(Series(kind, columns, {"what": kind}, "line", color, style))
    ylabel = name.partition(".")[2]
    panel = Panel(
        suite.title, "sample ratio α", ylabel, series, y=name, from_zero=False
    )
    key = f"thresholds in the plane of sample ratio and {name}."
    return Chart("phases", suite.title, [panel], key=key)
