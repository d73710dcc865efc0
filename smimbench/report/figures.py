"""Figures against the sample ratio: metrics with theory, runs and thresholds, theory alone, and phase diagrams."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.interfaces.item import title_word
from smimbench.registry.items import Parameters
from smimbench.registry.registry import find_metric, metric_label
from smimbench.report.charts import Chart, CsvRow, Dashes, Kind, Panel, Series
from smimbench.report.row import (
    ZERO,
    component_word,
    dimension_letter_of,
    grouped,
    largest_dimension_rows,
)
from smimbench.report.style import COLORS, PREDICTED, Look, floor_of, looks_of
from smimbench.report.theory_lines import (
    UNINFORMED,
    Line,
    ThresholdMark,
    smooth,
    spans_decades,
    theory_lines,
    threshold_marks,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smimbench.report.row import Row
    from smimbench.run.answers import Answers
    from smimbench.suite.cells import ProblemPlan, Suite

PANELS = 12
"""Largest number of panels in a figure; doubled, a figure is two pages high."""


# -- series of theory -----------------------------------------------------------------------------------------------------


def threshold_series(
    marks: Sequence[ThresholdMark],
    constant_columns: CsvRow,
    color: str = "0.5",
    x_per_alpha: float = 1.0,
) -> Series:
    """Make vertical lines at thresholds (``marks``), which the CSV names. ``constant_columns`` are the CSV columns that are
    equal for all of them, ``x_per_alpha`` is the x coordinate per unit of the sample ratio.
    """
    alphas, names, errors = zip(*marks) if marks else ((), (), ())
    columns = {
        "threshold": names,
        "alpha": x_per_alpha * np.array(alphas),
        "error": x_per_alpha * np.array(errors),
    }
    about = {**constant_columns, "what": "threshold"}
    return Series("", columns, about, "vertical", color)


def theory_series(
    line: Line,
    name: str,
    color: str,
    dashes: Dashes,
    constant_columns: CsvRow,
    algorithm: str = "",
) -> Series:
    """Make a drawn line from a theoretical curve, with a band for its numerical error; one or two isolated points become
    horizontal bars. ``constant_columns`` are the CSV columns that are equal at all points.
    """
    line_style: dict[str, object] = {"zorder": 2}
    kind: Kind = "line"
    if len(line.alpha) < 3:
        kind = "marks"
        marker_size = 60 if algorithm else 250
        line_style |= {"marker": "_", "s": marker_size, "linewidths": 1.5}
    else:
        line_style["ls"] = dashes
        gap_indices = np.flatnonzero(np.isnan(line.value))
        segments = np.split(np.arange(len(line.value)), gap_indices)
        isolated_indices: list[int] = []
        for segment_indices in segments:
            finite_indices = segment_indices[np.isfinite(line.value[segment_indices])]
            isolated_indices += (
                finite_indices.tolist() if len(finite_indices) < 3 else []
            )
        if isolated_indices:
            line_style |= {
                "marker": "_",
                "ms": 14,
                "mew": 1.3,
                "markevery": isolated_indices,
            }
    return Series(
        name, line._asdict(), constant_columns, kind, color, line_style, algorithm
    )


# -- a metric -------------------------------------------------------------------------------------------------------------

KEY = (
    "Solid line, or bars at one or two sample ratios: theory of the Bayes-optimal estimate; dashed: theory for the algorithm. "
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
    """Make the figure of one metric, with a panel per problem; None if no problem is selected. Theory is drawn at the sample
    ratios ``alphas`` (default: the suite's) and at those of the rows.

    Parameters
    ----------
    alphas : sequence of float
        Sample ratios to draw besides those of the rows; default: those of the suite.
    """
    looks, plans = looks_of(suite, rows), suite.chosen_plans
    rows = largest_dimension_rows(
        row for row in rows if row.metric == metric and row.estimate.mean is not None
    )
    if not plans:
        return None
    published_sources: set[str] = set()
    for plan in plans:
        published_sources |= {
            reference.source
            for reference in plan.references
            if reference.metric == metric
        }
    notes = []
    if published_sources:
        notes.append(
            f"Crosses: published values: {'; '.join(sorted(published_sources))}."
        )
    if len(plans) > PANELS:
        notes.append(f"{len(plans) - PANELS} more panels are not shown.")
    rows_by_problem = grouped(rows, lambda row: row.place.problem)
    titles = problem_titles(suite)
    panels = [
        _metric_panel(
            suite,
            plan,
            titles[plan.label],
            metric,
            rows_by_problem.get(plan.label, []),
            answers,
            looks,
            alphas,
        )
        for plan in plans[:PANELS]
    ]
    return Chart(
        metric,
        figure_title(suite),
        panels,
        " ".join(notes),
        f"{metric_label(metric)} against the sample ratio. {KEY}",
    )


def figure_title(suite: Suite) -> str:
    """Return the title of a suite; for one that has only the names of its items, the words that its problems share."""
    if suite.title.replace(", ", "-") != suite.name or not suite.chosen_plans:
        return suite.title
    titles = [plan.problem.title.split(", ") for plan in suite.chosen_plans]
    words = [word for word in titles[0] if all(word in title for title in titles)]
    return ", ".join(words)


def problem_titles(suite: Suite) -> dict[str, str]:
    """Return titles of problems by label: the label if the suite gives one, otherwise words, if they are of one problem only."""
    titles = {}
    word_counts = Counter(plan.problem.title for plan in suite.plans)
    for plan in suite.plans:
        words = plan.problem.title
        has_label = plan.label != plan.problem.label
        is_named = has_label or word_counts[words] > 1
        titles[plan.label] = plan.label if is_named else words
    return titles


def _metric_panel(
    suite: Suite,
    plan: ProblemPlan,
    title: str,
    metric: str,
    rows: Sequence[Row],
    answers: Answers,
    looks: Mapping[str, Look],
    alphas: Sequence[float] | None,
) -> Panel:
    """Make the panel of one problem, with theory at the sample ratios ``alphas`` (default: the suite's) and at those of its rows.

    Several components have a color each.
    """
    problem = plan.problem
    metric_item = find_metric(metric, problem.model.name)
    drawn_alphas = sorted(
        {row.place.alpha for row in rows} | {*(alphas or plan.alphas)}
    )
    if dimensions := sorted({row.place.dimension for row in rows}):
        smallest_and_largest = map(str, dict.fromkeys([dimensions[0], dimensions[-1]]))
        title += f", {dimension_letter_of(problem.model)} = {' to '.join(smallest_and_largest)}"
    thresholds = answers.thresholds_or_empty(problem)
    component_name, hard_phase = component_word(problem), thresholds.hard_phase
    marks: list[ThresholdMark] = []
    if metric_item.direction != "one":  # these are 1 on both sides of a threshold
        marks = threshold_marks(thresholds, component_name)
    panel = Panel(
        title,
        "sample ratio α",
        metric_label(metric),
        [],
        plan.label,
        xlog=spans_decades(row.place.alpha for row in rows),
        hard_phase=hard_phase.ends if hard_phase and marks else None,
    )
    optimal_lines = []
    for component in _components(plan, metric):
        component_series = _ComponentSeries(plan, metric, component, component_name)
        lines = theory_lines(answers, plan, metric, drawn_alphas, (component or 1) - 1)
        optimal_lines += [line for name, line in lines.items() if name != UNINFORMED]
        component_rows = [row for row in rows if row.component == component]
        panel.series += component_series.series(lines, component_rows, looks)
    about = {"problem": plan.label, "component": None}
    panel.series.append(threshold_series(marks, about))
    if optimal_lines and metric_item.direction == "lower":
        line = Line(*map(np.concatenate, zip(*optimal_lines)))
        _scale_errors(panel, line, drawn_alphas, rows, suite.run.target)
    return panel


def _components(plan: ProblemPlan, metric: str) -> Sequence[int | None]:
    """Return the components (from 1) that have a value each; None stands for all components together."""
    problem = plan.problem
    metric_item = find_metric(metric, problem.model.name)
    if problem.components == 1 or not metric_item.per_component:
        return (None,)
    return range(1, problem.components + 1)


def _scale_errors(
    panel: Panel,
    line: Line,
    alphas: Sequence[float],
    rows: Sequence[Row],
    target: float,
) -> None:
    """Choose the vertical scale of a panel of errors, from the optimal line and the mean errors in rows: logarithmic if they
    span decades, with a floor if the optimal error is 0.
    """
    mean_errors = [row.estimate.mean or 0.0 for row in rows]
    panel.ylog = spans_decades([*line.value, *mean_errors])
    is_zero_error = line.value <= ZERO * target
    if is_zero_error.any():
        # Where the optimal error is 0, what is below the target counts as reached.
        shown_errors = line.value[~is_zero_error & np.isin(line.alpha, alphas)].tolist()
        for mean, row in zip(mean_errors, rows):
            if (row.optimum.limit or 0.0) > ZERO * target:
                shown_errors.append(mean)
        panel.axis_floor = floor_of(shown_errors, target)


@dataclass(frozen=True)
class _ComponentSeries:
    """Series for a metric of one problem, of one component (from 1) or of all together (None)."""

    plan: ProblemPlan
    metric: str
    component: int | None
    component_name: str

    @property
    def color(self) -> str | None:
        """Color of the component, if there are several."""
        if self.component is None:
            return None
        return COLORS[(self.component - 1) % len(COLORS)]

    def series(
        self, lines: Mapping[str, Line], rows: Sequence[Row], looks: Mapping[str, Look]
    ) -> list[Series]:
        """Make the series of theory, of the runs and predictions of every algorithm, and of published values."""
        series = []
        for name, line in lines.items():
            dashes, about = (
                "--" if name == UNINFORMED else "-",
                self._constant_columns(name),
            )
            series.append(
                theory_series(line, name, self.color or "black", dashes, about)
            )
        for name, algorithm_rows in grouped(
            rows, lambda row: row.place.algorithm
        ).items():
            look = looks[name]._replace(color=self.color or looks[name].color)
            series.append(self._run_marks(algorithm_rows, look, name))
            series += self._prediction_series(algorithm_rows, look, name)
        series += self._published_marks()
        if self.component is None:
            return series
        component = f"{self.component_name} {self.component}"
        return [replace(one_series, component=component) for one_series in series]

    def _constant_columns(self, kind: str, algorithm: str = "") -> CsvRow:
        """Return the CSV columns that are equal at all points of a series: problem, component, algorithm and what is drawn
        (``kind``).
        """
        about = {"problem": self.plan.label, "component": self.component, "what": kind}
        return about | ({"algorithm": algorithm} if algorithm else {})

    def _run_marks(self, rows: Sequence[Row], look: Look, name: str) -> Series:
        """Make the marks (mean and standard error) of one algorithm, hollow where a run did not end ok."""
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
        constant_columns, style = (
            self._constant_columns("runs", name),
            {"marker": look.marker, "s": 18},
        )
        return Series(name, columns, constant_columns, "marks", look.color, style, name)

    def _prediction_series(
        self, rows: Sequence[Row], look: Look, name: str
    ) -> list[Series]:
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
        line_points = [predictions[alpha] for alpha in sorted(predictions)]
        line = Line(*np.array(line_points, dtype=float).T)
        constant_columns, label = (
            self._constant_columns("predicted", name),
            f"{name}{PREDICTED}",
        )
        line_series = theory_series(
            smooth(line, ()), label, look.color, "--", constant_columns, name
        )
        if line_series.kind == "marks":
            return [line_series]
        style = {"marker": look.marker if self.color else ".", "s": 6, "zorder": 2}
        point_marks = Series(
            "", line._asdict(), constant_columns, "marks", look.color, style, name
        )
        return [replace(line_series, constant_columns=None), point_marks]

    def _published_marks(self) -> list[Series]:
        """Make the crosses at published values, whose colors stand for components."""
        suffix = f", {self.component_name} {self.component}"
        references = [
            reference
            for reference in self.plan.references
            if reference.metric == self.metric
            and reference.component in (None, self.component or 1)
        ]
        series = []
        for reference, marker in zip(references, itertools.cycle("x+1234")):
            columns = {
                "alpha": reference.alpha,
                "value": reference.value,
                "error": [reference.tolerance] * len(reference.alpha),
            }
            name = reference.label.removesuffix(suffix)
            style = {"marker": marker, "s": 25, "zorder": 1}
            about = self._constant_columns("reference", reference.label)
            color = self.color or "#737373"
            series.append(Series(name, columns, about, "marks", color, style))
        return series


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


def varied_parameter(plans: Sequence[ProblemPlan]) -> tuple[str, list[float]] | None:
    """Find the only numerical parameter that varies among at least three problems, with its values; None if there is none."""
    parameters_by_problem = [_parameters(plan) for plan in plans]
    values_by_name: dict[str, list[Any]] = {}
    for name in {name for parameters in parameters_by_problem for name in parameters}:
        values = [parameters.get(name) for parameters in parameters_by_problem]
        if len(set(map(repr, values))) > 1:
            values_by_name[name] = values
    if len(plans) < 3 or len(values_by_name) != 1:
        return None
    ((name, values),) = values_by_name.items()
    is_numeric = {type(value) for value in values} <= {int, float}
    if not is_numeric or len(set(values)) < len(values):
        return None
    return name, values


def _parameters(plan: ProblemPlan) -> Parameters:
    """Return all parameters of a problem's items by name, such as ``prior.rho``."""
    parameters: Parameters = {}
    for kind, spec in plan.problem.spec.items():
        parameters |= {f"{kind}.{name}": parameter for name, parameter in spec.items()}
    return parameters


def phase_chart(suite: Suite, answers: Answers) -> Chart | None:
    """Make the phase diagram: thresholds in the plane of sample ratio and the varied parameter."""
    parameter_name, varied_values = varied_parameter(suite.chosen_plans) or ("", [])
    threshold_lines: dict[str, list[tuple[float, float]]] = {}
    values_and_plans = zip(varied_values, suite.chosen_plans)
    for varied_value, plan in sorted(
        values_and_plans, key=lambda value_and_plan: value_and_plan[0]
    ):
        thresholds = answers.thresholds_or_empty(plan.problem)
        for mark in threshold_marks(thresholds, component_word(plan.problem)):
            threshold_lines.setdefault(mark.name, []).append((mark.alpha, varied_value))
    if not threshold_lines:
        return None
    series = []
    for line_index, (threshold_name, line_points) in enumerate(threshold_lines.items()):
        alphas, parameter_values = zip(*line_points)
        columns, color = (
            {parameter_name: parameter_values, "alpha": alphas},
            COLORS[line_index % len(COLORS)],
        )
        dashes = "-" if threshold_name.startswith("perfect") else "--"
        style = {"ls": dashes, "marker": "o", "ms": 2.5}
        series.append(
            Series(
                threshold_name, columns, {"what": threshold_name}, "line", color, style
            )
        )
    kind, _, name = parameter_name.partition(".")
    ylabel = title_word(getattr(suite.chosen_plans[0].problem, kind), name)
    title = figure_title(suite)
    panel = Panel(
        title,
        "sample ratio α",
        ylabel,
        series,
        y_column=parameter_name,
        starts_at_zero=False,
    )
    key = f"thresholds in the plane of sample ratio and {parameter_name}."
    return Chart("phases", title, [panel], legend_words=key)
