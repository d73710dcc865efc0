"""Figures against the sample ratio: metrics with theory, runs and thresholds, theory alone, and phase diagrams."""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.interfaces.item import title_word
from smimbench.registry.registry import find_metric, metric_label
from smimbench.report.charts import Chart, CsvRow, Dashes, Panel, Series
from smimbench.report.row import (
    ZERO,
    component_word,
    dimension_letter_of,
    grouped,
    largest_dimension_rows,
)
from smimbench.report.style import COLORS, Look, floor_of, looks_of
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

PREDICTED = "predicted"
"""Name of the theory for an algorithm in legends and data."""
PANELS = 12
"""Largest number of panels in a figure; doubled, a figure is two pages high."""


# -- series of theory -----------------------------------------------------------------------------------------------------


def threshold_series(
    marks: Sequence[ThresholdMark],
    constant_columns: CsvRow,
    color: str = "0.5",
    x_per_alpha: float = 1.0,
) -> list[Series]:
    """Make a vertical line at each threshold (``marks``: its sample ratio, name and error), with its name in the CSV.
    ``constant_columns`` are the CSV columns that are equal for all of them; a sample ratio alpha is drawn at x = alpha times
    ``x_per_alpha``.
    """
    series = []
    for mark in marks:
        about = {**constant_columns, "what": "threshold", "threshold": mark.name}
        ends = {"alpha": mark.alpha, "error": mark.error}
        columns = {name: [x_per_alpha * value] for name, value in ends.items()}
        series.append(Series(mark.name, columns, about, "vertical", color))
    return series


def theory_series(
    line: Line,
    name: str,
    color: str,
    dashes: Dashes,
    constant_columns: CsvRow,
    algorithm: str = "",
) -> Series:
    """Make a drawn line from a theoretical curve (``line``), with a band for its numerical error; one or two points become
    horizontal bars. ``name`` is the legend entry, ``constant_columns`` are the CSV columns that are equal at all points,
    ``algorithm`` is the one that the theory is for (empty: Bayes-optimal).
    """
    columns = line._asdict()
    if len(line.alpha) < 3:
        size = 60 if algorithm else 250
        style = {"zorder": 2, "marker": "_", "s": size, "linewidths": 1.5}
        return Series(name, columns, constant_columns, "marks", color, style, algorithm)
    style = {"zorder": 2, "ls": dashes}
    return Series(name, columns, constant_columns, "line", color, style, algorithm)


# -- a metric -------------------------------------------------------------------------------------------------------------

KEY = (
    "Solid line, or bars at one or two sample ratios: theory of the Bayes-optimal estimate; dashed: theory for the algorithm. "
    "Marks: mean and standard error over runs; hollow: some runs did not converge; triangles: below the axis. "
    "Only the largest dimension is shown. Theory that is slow is interpolated between points by monotone cubics."
)
"""Legend in words for the figure of a metric."""


def metric_chart(
    suite: Suite,
    rows: Sequence[Row],
    answers: Answers,
    metric: str,
    alphas: Sequence[float] | None = None,
) -> Chart | None:
    """Make the figure of one metric against the sample ratio, with a panel per problem; None if no problem is selected. ``rows``
    are those of the results table; theory from ``answers`` is drawn at the sample ratios ``alphas`` (default: the suite's) and at
    those of the rows.

    Parameters
    ----------
    alphas : sequence of float
        Sample ratios to draw besides those of the rows; default: those of the suite.
    """
    looks = looks_of(suite, rows)
    plans = suite.chosen_plans
    rows = largest_dimension_rows(
        row for row in rows if row.metric == metric and row.estimate.mean is not None
    )
    if not plans:
        return None
    published_sources = {
        reference.source
        for plan in plans
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
    """Return the title of a suite; for a suite whose title is only a list of the names of its items, the words that the titles of
    its problems share.
    """
    if suite.title.replace(", ", "-") != suite.name or not suite.chosen_plans:
        return suite.title
    titles = [plan.problem.title.split(", ") for plan in suite.chosen_plans]
    words = [word for word in titles[0] if all(word in title for title in titles)]
    return ", ".join(words)


def problem_titles(suite: Suite) -> dict[str, str]:
    """Return the title of each problem, by label: the label itself if the suite gives one or if several problems have the same
    title, otherwise the problem's own title.
    """
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
    """Make the panel of one problem (``plan``) for a metric, with runs from ``rows``, theory from ``answers`` at the sample
    ratios ``alphas`` (default: the suite's) and at those of the rows, and colors and markers of algorithms from ``looks``.

    Several components have a color each.
    """
    problem = plan.problem
    metric_item = find_metric(metric, problem.model.name)
    drawn_alphas = sorted(
        {row.place.alpha for row in rows}.union(alphas or plan.alphas)
    )
    if dimensions := sorted({row.place.dimension for row in rows}):
        ends = dict.fromkeys(map(str, [dimensions[0], dimensions[-1]]))
        title += f", {dimension_letter_of(problem.model)} = {' to '.join(ends)}"
    thresholds = answers.thresholds_or_empty(problem)
    component_name = component_word(problem)
    hard_phase = thresholds.hard_phase
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
        lines = theory_lines(answers, plan, metric, drawn_alphas, (component or 1) - 1)
        optimal_lines += [line for name, line in lines.items() if name != UNINFORMED]
        component_rows = [row for row in rows if row.component == component]
        series = _component_series(
            plan, metric, component, lines, component_rows, looks
        )
        if component is not None:
            word = f"{component_name} {component}"
            series = [replace(drawn, component=word) for drawn in series]
        panel.series += series
    about = {"problem": plan.label, "component": None}
    panel.series += threshold_series(marks, about)
    if optimal_lines and metric_item.direction == "lower":
        line = Line(*map(np.concatenate, zip(*optimal_lines)))
        _scale_errors(panel, line, drawn_alphas, rows, suite.run.target)
    return panel


def _components(plan: ProblemPlan, metric: str) -> Sequence[int | None]:
    """Return the components of the signal (numbers from 1) for which a metric has a value each; ``[None]`` if it has one value
    for all components together.
    """
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
    """Choose the vertical scale of a panel of errors, from the Bayes-optimal ``line`` and the mean errors in ``rows``, at the
    sample ratios ``alphas``: logarithmic if they span decades, with a lower end of the axis if the optimal error is 0 (below the
    suite's ``target``).
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


def _component_series(
    plan: ProblemPlan,
    metric: str,
    component: int | None,
    lines: Mapping[str, Line],
    rows: Sequence[Row],
    looks: Mapping[str, Look],
) -> list[Series]:
    """Make all series of a panel for one component of the signal (number from 1; None: all components together): theory of the
    Bayes-optimal estimate (``lines`` by name), runs of every algorithm (``rows``) with the predictions for it, and published
    values.
    """
    color = None if component is None else COLORS[(component - 1) % len(COLORS)]
    about: CsvRow = {"problem": plan.label, "component": component}
    series = []
    for name, line in lines.items():
        dashes = "--" if name == UNINFORMED else "-"
        constant_columns = {**about, "what": name}
        series.append(
            theory_series(line, name, color or "black", dashes, constant_columns)
        )
    for name, algorithm_rows in grouped(rows, lambda row: row.place.algorithm).items():
        look = looks[name]._replace(color=color or looks[name].color)
        constant_columns = {**about, "what": "runs", "algorithm": name}
        series.append(_run_marks(algorithm_rows, look, constant_columns))
        marker = "." if color is None else look.marker
        constant_columns = {**constant_columns, "what": PREDICTED}
        series += _prediction_series(
            algorithm_rows, look.color, marker, constant_columns
        )
    return series + _published_marks(plan, metric, about, color or "#737373")


def _run_marks(rows: Sequence[Row], look: Look, constant_columns: CsvRow) -> Series:
    """Make the marks (mean and standard error over runs) of the ``rows`` of one algorithm, hollow where a run did not end with
    status ok; ``look`` is its color and marker, ``constant_columns`` are the CSV columns that are equal for all marks.
    """
    columns = {
        "alpha": [row.place.alpha for row in rows],
        "dimension": [row.place.dimension for row in rows],
        "value": [row.estimate.mean for row in rows],
        "error": [row.estimate.sem for row in rows],
        "n": [row.estimate.n for row in rows],
        "hollow": [
            not row.runs.status_counts.keys() <= {"ok", "skipped"} for row in rows
        ],
    }
    name = constant_columns["algorithm"]
    style = {"marker": look.marker, "s": 18}
    return Series(name, columns, constant_columns, "marks", look.color, style, name)


def _prediction_series(
    rows: Sequence[Row], color: str, marker: str, constant_columns: CsvRow
) -> list[Series]:
    """Make the line of what theory predicts for the algorithm of these ``rows``, in this color, with marks (``marker``) where it
    was computed; no line if the prediction is the Bayes optimum. ``constant_columns`` are the CSV columns that are equal at all
    points.
    """
    predictions = {
        row.place.alpha: (
            row.place.alpha,
            row.prediction.value,
            row.prediction.error or 0,
        )
        for row in rows
        if row.prediction.value is not None
    }
    is_optimal = all(row.prediction.value == row.optimum.limit for row in rows)
    if is_optimal or not predictions:
        return []
    points = [predictions[alpha] for alpha in sorted(predictions)]
    line = Line(*np.array(points, dtype=float).T)
    algorithm = constant_columns["algorithm"]
    series = theory_series(
        smooth(line, ()), PREDICTED, color, "--", constant_columns, algorithm
    )
    if series.kind == "marks":
        return [series]
    columns = line._asdict()
    style = {"marker": marker, "s": 6, "zorder": 2}
    marks = Series("", columns, constant_columns, "marks", color, style, algorithm)
    return [replace(series, constant_columns=None), marks]


def _published_marks(
    plan: ProblemPlan, metric: str, about: CsvRow, color: str
) -> list[Series]:
    """Make the crosses, in this color, at the values of a metric that papers published for a problem (``plan``), of the component
    that the CSV columns ``about`` name.
    """
    component = about["component"]
    suffix = f", {component_word(plan.problem)} {component}"
    references = [
        reference
        for reference in plan.references
        if reference.metric == metric and reference.component in (None, component or 1)
    ]
    series = []
    for reference, marker in zip(references, itertools.cycle("x+1234")):
        columns = {
            "alpha": reference.alpha,
            "value": reference.value,
            "error": [reference.tolerance] * len(reference.alpha),
        }
        constant_columns = {**about, "what": "reference", "algorithm": reference.label}
        name = reference.label.removesuffix(suffix)
        style = {"marker": marker, "s": 25, "zorder": 1}
        series.append(Series(name, columns, constant_columns, "marks", color, style))
    return series


# -- theory alone ---------------------------------------------------------------------------------------------------------


def theory_metrics(suite: Suite) -> list[str]:
    """List the metrics whose theory is drawn without runs: error and overlap, and the suite's generalization errors."""
    generalization_errors = (
        metric for metric in suite.run.metrics if "generalization_error" in metric
    )
    return [*dict.fromkeys(("mse", "overlap", *generalization_errors))]


def theory_charts(
    suite: Suite, answers: Answers, alphas: Sequence[float] | None = None
) -> list[Chart]:
    """Make the figures of theory without runs, at the sample ratios ``alphas``: ``theory_metrics`` against the sample ratio, and
    the phase diagram if a parameter is varied.
    """
    charts = []
    for metric in theory_metrics(suite):
        chart = metric_chart(suite, [], answers, metric, alphas)
        if chart is not None:
            charts.append(replace(chart, name=f"theory-{metric}"))
    phases = phase_chart(suite, answers)
    return charts if phases is None else [*charts, phases]


def varied_parameter(plans: Sequence[ProblemPlan]) -> tuple[str, list[float]] | None:
    """Find the only numerical parameter in which the problems of at least three ``plans`` differ, and return its name and its
    value in each; None if there is none.
    """
    tables = [
        {
            f"{kind}.{name}": parameter
            for kind, spec in plan.problem.spec.items()
            for name, parameter in spec.items()
        }
        for plan in plans
    ]
    varied: dict[str, list[Any]] = {}
    for name in set(itertools.chain(*tables)):
        values = [table.get(name) for table in tables]
        if len(set(map(repr, values))) > 1:
            varied[name] = values
    if len(plans) < 3 or len(varied) != 1:
        return None
    ((name, values),) = varied.items()
    is_numeric = {type(value) for value in values} <= {int, float}
    return (name, values) if is_numeric and len(set(values)) == len(values) else None


def phase_chart(suite: Suite, answers: Answers) -> Chart | None:
    """Make the phase diagram of a suite: its thresholds, read from the stored ``answers``, as lines in the plane of the sample
    ratio and the parameter in which its problems differ; None if there are no thresholds.
    """
    plans = suite.chosen_plans
    parameter_name, parameter_values = varied_parameter(plans) or ("", [])
    lines: dict[str, list[tuple[float, float]]] = {}
    for parameter, plan in sorted(
        zip(parameter_values, plans), key=operator.itemgetter(0)
    ):
        thresholds = answers.thresholds_or_empty(plan.problem)
        for mark in threshold_marks(thresholds, component_word(plan.problem)):
            lines.setdefault(mark.name, []).append((parameter, mark.alpha))
    if not lines:
        return None
    series = []
    for (name, points), color in zip(lines.items(), itertools.cycle(COLORS)):
        columns = dict(zip((parameter_name, "alpha"), zip(*points)))
        dashes = "-" if name.startswith("perfect") else "--"
        style = {"ls": dashes, "marker": "o", "ms": 2.5}
        series.append(Series(name, columns, {"what": name}, "line", color, style))
    kind, _, name = parameter_name.partition(".")
    panel = Panel(
        figure_title(suite),
        "sample ratio α",
        title_word(getattr(plans[0].problem, kind), name),
        series,
        y_column=parameter_name,
        starts_at_zero=False,
    )
    key = f"thresholds in the plane of sample ratio and {parameter_name}."
    return Chart("phases", panel.title, [panel], legend_words=key)
