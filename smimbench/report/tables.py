"""Terminal tables of runs: errors, ranking of algorithms, runtimes, order of learning, extrapolation, comparison."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from rich.console import RenderableType
from rich.text import Text

from smimbench.files import JsonObject
from smimbench.registry.registry import metric_label
from smimbench.report.columns import (
    SHORT,
    Z_MARKS,
    Column,
    as_text,
    column_of,
    make_table,
    measured,
    number,
    percent,
    seconds,
    uncertain,
    z_text,
)
from smimbench.report.comparison import OverallChange, RowChange
from smimbench.report.extrapolation import Limit
from smimbench.report.row import (
    Finding,
    HalfOverlap,
    Number,
    Row,
    RowEntry,
    common_dimension_letter,
    grouped,
    names_with_backend,
    place,
)
from smimbench.report.verdict import TIE, AlgorithmSummary, Verdict
from smimbench.report.wording import (
    agreement_cell,
    no_time_words,
    tied_words,
    worth_cell,
)
from smimbench.run.store import OtherVersion
from smimbench.run.tuning import range_ends

Columns = list[str | Column]
PLACE: Columns = ["algorithm", "alpha", "D"]
Shown = TypeVar("Shown", bound=Row | RowEntry)


def _by_problem(rows: Iterable[Shown]) -> dict[str, list[Shown]]:
    """Group rows, or entries that show a row, by the label of their problem."""
    return grouped(rows, lambda row: row.place.problem)


def _by_metric(rows: Iterable[Shown]) -> dict[tuple[str, str], list[Shown]]:
    """Group rows, or entries that show a row, by the label of their problem and by metric."""
    return grouped(rows, lambda row: (row.place.problem, row.metric))


# -- errors ---------------------------------------------------------------------------------------------------------------


def has_own_prediction(row: Row | RowEntry) -> bool:
    """Return whether the algorithm of a row has a prediction other than the optimal value, or lacks one for a known reason."""
    prediction = row.prediction
    if prediction.value is None:
        return bool(prediction.reason)
    return prediction.value != row.optimum.limit


def _theory_columns(rows: Sequence[Row | RowEntry], *more_columns: str) -> Columns:
    """Return the headings of the columns of predicted value, z-score and optimal value; the predicted one is left out if both are
    equal in all rows.
    """
    if any(map(has_own_prediction, rows)):
        return ["predicted", "z score", "optimal"]
    optimal = Column("optimal", uncertain, fields="theory.value theory.error")
    return [optimal, *more_columns, "z score"]


def error_tables(rows: Sequence[Row]) -> list[RenderableType]:
    """Make the error tables, one per problem and metric; rows with the largest ratio to the optimal error come first."""
    tables = []
    for (problem, metric), metric_rows in _by_metric(rows).items():
        title = f"{problem}: {metric_label(metric)}"
        if any(row.theory.value is not None for row in metric_rows):
            title += " against theory"
        dimensions = {row.place.dimension for row in metric_rows}
        if len(dimensions) == 1:
            title += f", {common_dimension_letter(metric_rows)} = {dimensions.pop()}"
        columns = [*PLACE, "component", "runs", "mean ± s.e.m."]
        columns += _theory_columns(metric_rows, "mean - optimal")
        columns += [
            "error ÷ optimal error",
            "optimal error, this D ÷ infinite D",
            "run status",
        ]
        worst_first = sorted(metric_rows, key=_worst_first)
        tables.append(make_table(title, columns, worst_first, "worst first"))
    return tables


def worth_tables(rows: Sequence[Row]) -> list[RenderableType]:
    """Make the tables of what runs are worth in passes of the best first-order method, one per problem; rows that are worth least
    come first.
    """
    rows_with_floor = [row for row in rows if row.first_order.floor is not None]
    columns = [
        *PLACE,
        "component",
        "mean ± s.e.m.",
        "passes",
        "error ÷ floor",
        "worth in passes",
    ]
    tables = []
    for problem, problem_rows in _by_problem(rows_with_floor).items():
        worst_first = sorted(
            problem_rows,
            key=lambda row: (
                math.inf if row.first_order.worth is None else row.first_order.worth
            ),
        )
        title = f"{problem}: passes over the data, and what they are worth"
        tables.append(make_table(title, columns, worst_first, "least worth first"))
    return tables


def _worst_first(row: Row) -> tuple[float, ...]:
    """Key that sorts rows of an error table: failures first, then by the ratio of the error to the optimal one, or by the
    difference from theory if there is no such ratio.
    """
    status_counts = row.runs.status_counts
    mean = row.estimate.mean
    optimum = row.optimum.limit
    failures = sum(
        status_counts[status]
        for status in status_counts
        if status not in ("ok", "skipped")
    )
    distance_from_optimum = (
        abs(mean - optimum) if mean is not None and optimum is not None else 0.0
    )
    ratio = math.inf if mean is None else row.ratio_to_limit or 0.0
    difference = abs(row.theory.difference or 0.0)
    return -failures, -ratio, -distance_from_optimum, -difference, row.place.alpha


def missing_values(rows: Sequence[Row]) -> list[str]:
    """List the reasons why algorithms have no prediction or a metric is blank, one line each."""
    algorithms_by_reason: dict[str, dict[str, None]] = {}
    blank_lines: dict[str, None] = {}
    for row in rows:
        algorithm = row.place.algorithm
        if row.prediction.reason:
            algorithms_by_reason.setdefault(row.prediction.reason, {})[algorithm] = None
        for reason in row.runs.blank:
            blank_lines[f"{algorithm}: {row.metric} is blank: {reason}"] = None
    prediction_lines = [
        f"{'; '.join(algorithm_names)}: no prediction: {reason}"
        for reason, algorithm_names in algorithms_by_reason.items()
    ]
    return [*prediction_lines, *_unknown_worths(rows), *blank_lines]


def _unknown_worths(rows: Sequence[Row]) -> list[str]:
    """List the reasons why runs are not compared with the best first-order method, one line each, if some are."""
    if all(row.first_order.passes is None for row in rows):
        return []
    algorithms_by_reason = grouped(
        dict.fromkeys(
            (row.first_order.reason, row.place.algorithm)
            for row in rows
            if row.first_order.reason
        ),
        lambda reason_and_algorithm: reason_and_algorithm[0],
    )
    return [
        f"{'; '.join(algorithm for _, algorithm in pairs)}: no worth in passes: {reason}"
        for reason, pairs in algorithms_by_reason.items()
    ]


CONTENDER: Columns = [
    column_of("algorithm", "algorithm"),
    column_of("parameter choice", "settings"),
    column_of("error ÷ optimal error", "ratio_to_limit ratio_to_limit_error"),
    column_of(
        "optimal error, this D ÷ infinite D",
        "optimum_to_limit optimum_to_limit_error optimum_source",
    ),
    column_of("mean error", "mean_error.mean mean_error.sem"),
    "error where optimum is 0",
    Column("worth in passes", worth_cell, words=True),
    Column("agrees with theory", agreement_cell, words=True),
    Column(
        "time to 1.05x optimum",
        lambda c: seconds(c.near_seconds) or no_time_words(c),
        sorts="near_seconds",
    ),
    Column("runs at 1.05x optimum", percent, fields="near_fraction"),
    column_of("time per run", "seconds"),
    column_of("run status", "status_counts moving"),
]
"""Columns of the ranking of algorithms on a problem."""


def contender_tables(
    verdicts: Sequence[Verdict], make_one_table: Callable[..., object] = make_table
) -> list[Any]:
    """Make the ranking tables, one per problem with at least two algorithms; algorithms with the smallest errors come first.

    Parameters
    ----------
    make_one_table : callable
        ``make_table`` or ``latex_table``.
    """
    tables = []
    columns = [
        column
        for column in CONTENDER
        if isinstance(column, str) or column.heading != "worth in passes"
    ]
    for verdict in verdicts:
        if len(verdict.contenders) < 2 or not verdict.metric:
            continue
        title = f"{verdict.problem}: all algorithms, {verdict.dimension_letter} = {verdict.dimension}"
        note = "best first"
        if verdict.tied:
            note += f"; tied with the first ({TIE:.0%} interval): {tied_words(verdict)}"
        tables.append(make_one_table(title, columns, verdict.contenders, note))
    return tables


def ranking_tables(verdicts: Sequence[Verdict]) -> list[RenderableType]:
    """Make one table of all algorithms on all problems, without the optimum and the time to it; on each problem the algorithm
    with the smallest error comes first. Long labels of problems are without the items that all of them share.
    """
    ranking = [
        contender
        for verdict in verdicts
        if len(verdict.contenders) > 1
        for contender in verdict.contenders
    ]
    if not ranking:
        return []
    headings = (
        "optimal error, this D ÷ infinite D",
        "worth in passes",
        "time to 1.05x optimum",
        "runs at 1.05x optimum",
    )
    columns = [
        column
        for column in CONTENDER
        if isinstance(column, str) or column.heading not in headings
    ]
    sizes = {
        f"{verdict.dimension_letter} = {verdict.dimension}" for verdict in verdicts
    }
    caption = f"{' or '.join(sorted(sizes))}, best first; smimbench show --full has all tables"
    labels = _without_shared_items({contender.problem for contender in ranking})
    problem = Column("problem", labels.__getitem__, fields="problem", words=True)
    return [make_table("", [problem, *columns], ranking, caption)]


LONG_LABEL = 24
"""Number of characters from which labels of problems are shortened; with twice as many the table is wider than a screen."""


def _without_shared_items(labels: Iterable[str]) -> dict[str, str]:
    """Return labels of problems, if one is long, without the items (``wishart(rho=0.2)``) that all of them share."""
    items = {label: re.findall(r"[^\s(]+(?:\([^)]*\))?", label) for label in labels}
    shared_items = set.intersection(*map(set, items.values()))
    short_labels = {
        label: " ".join(item for item in label_items if item not in shared_items)
        for label, label_items in items.items()
    }
    is_long = max(map(len, items)) > LONG_LABEL
    is_distinct = len({*short_labels.values(), ""}) == len(items) + 1
    return short_labels if is_long and is_distinct else dict(zip(items, items))


SUMMARY: Columns = [
    column_of("algorithm", "algorithm"),
    "instances with estimate",
    column_of("error ÷ optimal error", "ratio_to_limit"),
    "error ÷ lowest error",
    "95% interval of error ratio",
]
"""Columns of the summary of algorithms over all problems."""


def summary_tables(entries: Sequence[AlgorithmSummary]) -> list[RenderableType]:
    """Make the table that summarizes algorithms over all problems; none for a single problem."""
    return [make_table("all problems together", SUMMARY, entries)] if entries else []


# -- time -----------------------------------------------------------------------------------------------------------------


def runtime_tables(rows: Sequence[Row], fingerprint: str) -> list[RenderableType]:
    """Make the runtime tables, one per problem; rows that take longest to come near the optimum come first. Notes name machines
    other than the one with this ``fingerprint``.

    What an algorithm refuses has taken no time and has no row.
    """
    tables = []
    rows_with_runs = [row for row in rows if set(row.runs.status_counts) != {"skipped"}]
    for problem, rows_of_problem in _by_problem(rows_with_runs).items():
        first_rows = [
            place_rows[0] for place_rows in grouped(rows_of_problem, place).values()
        ]
        note = "slowest first"
        if not all(row.cost.trusted for row in first_rows):
            note += "; untrusted: cells may have run in parallel (--timing)"
        machines: set[str] = set()
        machines.update(*(row.cost.machines for row in first_rows))
        if other_machines := sorted(machines - {fingerprint}):
            note += f"; some of another machine ({', '.join(other_machines)})"
        columns = [
            *PLACE,
            "time to 1.5x optimum",
            "time to 1.2x optimum",
            "time to 1.05x optimum",
            "runs at 1.05x optimum",
            "iter.",
            "first iter. time",
            "time per iter.",
            "share of peak speed",
            "peak memory",
        ]
        slowest_first = sorted(first_rows, key=_slowest_first)
        tables.append(make_table(f"{problem}: runtime", columns, slowest_first, note))
    return tables


def _slowest_first(row: Row) -> tuple[float, float]:
    """Key that sorts rows of a runtime table: longest time to come within 5% of the optimal error first, then the longest
    runs.
    """
    seconds_to_optimum = row.cost.near["0.05"].seconds
    return -(math.inf if seconds_to_optimum is None else seconds_to_optimum), -(
        row.cost.seconds or 0.0
    )


def other_version_lines(
    other_versions: Sequence[OtherVersion], has_missing_cells: bool = True
) -> list[str]:
    """List the items (such as an algorithm) by whose other version or other code stored cells were computed, one line each with
    the number of cells.

    ``has_missing_cells``: the current version still has cells to run.
    """
    lines = []
    rerun_remark = ", 'smimbench run' runs them again" if has_missing_cells else ""
    for other_version in other_versions:
        version = f"version {other_version['then']} (now {other_version['now']})"
        origin = (
            "other code" if other_version["then"] == other_version["now"] else version
        )
        lines.append(
            f"{other_version['item']}: {other_version['cells']} of the stored cells were computed by {origin} and are not "
            f"counted; "
            f"smimbench.load reads them{rerun_remark}"
        )
    return lines


def status_line(counts: Mapping[str, int], missing: int = 0) -> Text:
    """Return a line with the number of cells per status (``counts``), and of cells that have not run (``missing``)."""
    counted_statuses = (
        f"{counts[status]} {status}" for status in SHORT if counts.get(status)
    )
    text = Text(f"cells: {', '.join(counted_statuses) or 'none'}")
    if missing:
        text.append(f", {missing} not run yet", style="yellow")
    return text


# -- components and other numbers -----------------------------------------------------------------------------------------


def learning_tables(rows: Sequence[Row]) -> list[RenderableType]:
    """Make the tables of the order of learning, one per problem with several components."""
    tables = []
    ordered_rows = [
        row
        for row in rows
        if row.runs.learning_order and row.component and row.metric == rows[0].metric
    ]
    for problem, problem_rows in _by_problem(ordered_rows).items():
        rows_by_place = grouped(problem_rows, place)
        first_rows = [problem_rows[0] for problem_rows in rows_by_place.values()]
        half_overlaps = [row.runs.half_overlap or HalfOverlap() for row in problem_rows]
        # No median at all (most runs never get there) says nothing about whether samples were counted.
        has_epochs = all(
            half_overlap.epochs is not None or half_overlap.iterations is None
            for half_overlap in half_overlaps
        )
        unit = "epochs" if has_epochs else "iterations"
        columns: Columns = ["algorithm", "alpha"]
        for component_index in range(len(rows_by_place[place(first_rows[0])])):
            heading = (
                f"{problem_rows[0].component_word} {component_index + 1} learning time"
            )
            columns.append(
                Column(
                    heading,
                    partial(_half_overlap_time, rows_by_place, component_index, unit),
                )
            )
        columns += [
            "learning order (runs)",
            "last ÷ first learning time",
            "runs that learn all",
        ]
        note = f"median {unit} to half of the optimal overlap"
        title = f"{problem}: order of learning"
        tables.append(make_table(title, columns, first_rows, note))
    return tables


def _half_overlap_time(
    rows_by_place: Mapping[tuple[str, str, str, float, int], Sequence[Row]],
    component_index: int,
    unit: str,
    row: Row,
) -> str:
    """Format the median time, in the ``unit`` iterations or epochs, at which a component (``component_index``, from 0) reaches
    half of its optimal overlap, at the place of a row; ``rows_by_place`` has the rows of all components.
    """
    half_overlap = (
        rows_by_place[place(row)][component_index].runs.half_overlap or HalfOverlap()
    )
    if half_overlap.target is None:
        return "-"
    return number(getattr(half_overlap, unit), 2) or "never"


@dataclass(frozen=True, slots=True)
class FindingEntry(RowEntry):
    """Table entry for a number that the runs of a row report at their end (``finding``), with its index if the algorithm reports
    a list.
    """

    finding: Finding
    list_index: int


def diagnostic_tables(rows: Sequence[Row]) -> list[RenderableType]:
    """Make the tables of diagnostics (numbers that algorithms report at their end), one per problem and diagnostic."""
    entries_by_diagnostic: dict[tuple[str, str], list[FindingEntry]] = {}
    for row in rows:
        if row.metric != rows[0].metric or row.component not in (None, 1):
            continue
        for diagnostic, findings in row.runs.findings.items():
            entries = entries_by_diagnostic.setdefault(
                (row.place.problem, diagnostic), []
            )
            entries += [
                FindingEntry(row, finding, list_index)
                for list_index, finding in enumerate(findings, 1)
            ]
    mean_column = Column(
        "mean ± s.e.m.",
        lambda mean_column, sem: measured(mean_column, sem) or "none",
        fields="finding.mean finding.sem",
    )
    columns = [
        *PLACE,
        "index in reported list",
        mean_column,
        "theory, infinite D",
        "runs with this number",
    ]
    tables = []
    for (problem, diagnostic), diagnostic_entries in entries_by_diagnostic.items():
        title = f"{problem}: {diagnostic.replace('_', ' ')}"
        tables.append(make_table(title, columns, diagnostic_entries))
    return tables


# -- infinite dimension ---------------------------------------------------------------------------------------------------


LIMIT: Columns = [
    "1/D coefficient ± error",
    "1/D coefficient, theory",
    "chi2 / dof",
    "run status",
]
"""Columns of a finite-size fit."""


def extrapolated_tables(limits: Sequence[Limit]) -> list[RenderableType]:
    """Make the tables of limits at infinite dimension, one per problem and metric; rows that differ most from theory come
    first.
    """
    tables = []
    for (problem, metric), metric_limits in _by_metric(limits).items():
        columns: Columns = ["algorithm", "alpha", "component", "extrapolated ± error"]
        columns += _theory_columns(metric_limits)
        has_theory = any(
            limit.prediction.coefficient is not None for limit in metric_limits
        )
        columns += LIMIT if has_theory else LIMIT[2:]
        ordered = sorted(metric_limits, key=lambda limit: -abs(limit.theory.z or 0.0))
        title = f"{problem}: {metric_label(metric)} at infinite {common_dimension_letter(metric_limits)}"
        tables.append(make_table(title, columns, ordered, "largest |z| first"))
    return tables


# -- tuning ---------------------------------------------------------------------------------------------------------------


def search_table(search: JsonObject) -> RenderableType:
    """Make the table of the trials of a tuning search: one row per trial (a setting of the parameters) with its error in every
    round, best trials first.
    """
    rounds = search["rounds"]
    trials = search["trials"]
    chosen = search["chosen"]

    def column(
        heading: str, values: Sequence[Any], text: Callable[[Any], str] = as_text
    ) -> Column:
        """Make a column from ``values``, one for each trial; a row of the table is the index of a trial."""
        return Column(heading, lambda trial: text(values[trial]))

    def best_first(trial: int) -> tuple[int, float]:
        """Sort key of trials: most rounds first, then the smallest error of the last round."""
        errors = [tuning_round["errors"][trial] for tuning_round in rounds]
        known_errors = [error for error in errors if error is not None] or [math.inf]
        return -len(known_errors), known_errors[-1]

    names = dict.fromkeys(itertools.chain(*trials))
    columns = [
        column(name, [setting.get(name) for setting in trials]) for name in names
    ]
    for tuning_round in rounds:
        seeds = tuning_round["seeds"]
        heading = "1 seed" if seeds == 1 else f"{seeds} seeds"
        columns.append(column(heading, tuning_round["errors"], number))
    indices = range(len(trials))
    columns.append(
        column("", ["chosen" if trial == chosen else "" for trial in indices])
    )
    title = f"{search['problem']}: {search['label']}, {len(trials)} trials, {search['runs']} runs; mean error"
    note = "; ".join(range_ends(trials, chosen))
    if chosen is None:
        note = "no trial gave an estimate in all of its runs; search other parameters"
    return make_table(title, columns, sorted(indices, key=best_first), note)


# -- comparisons ----------------------------------------------------------------------------------------------------------


def comparison_tables(changes: Sequence[RowChange]) -> list[RenderableType]:
    """Make the tables that compare two results, from the changes of ``compare_rows``, one per problem and metric."""
    tables = []
    for (problem, metric), metric_changes in _by_metric(changes).items():
        columns: Columns = [
            *PLACE,
            "component",
            "mean before",
            "mean after",
            "change of mean",
        ]
        if any(map(has_own_prediction, metric_changes)):
            # The z of the baseline is in the JSON only: 80 columns.
            columns.append(Column("predicted", number, fields="prediction.value"))
            candidate_z = Column("z score", _candidate_z_text, marks=Z_MARKS)
            columns += [candidate_z, "optimal"]
        else:
            columns.append(Column("theory", number, fields="theory.value"))
        fields = "candidate.cost.per_iteration time_percent"
        columns += [
            Column("time per iter.", _time_with_change, fields=fields),
            "verdict on change",
        ]
        title = f"{problem}: {metric_label(metric)}"
        note = "worst first; changes with 99.7% confidence intervals"
        tables.append(make_table(title, columns, metric_changes, note))
    reasons = missing_values([change.row for change in changes])
    return [*tables, *(Text(line, style="dim") for line in reasons)]


def _candidate_z_text(change: RowChange) -> str:
    """Format the z-score of the second of two compared results."""
    return z_text(change.candidate) if change.candidate else ""


def changed_code_lines(changes: Sequence[RowChange]) -> list[str]:
    """Return a line that names the items whose code differs between the two tables, if there are any."""
    names = dict.fromkeys(name for change in changes for name in change.changed_code)
    return [f"code changed: {', '.join(names)}"] if names else []


def overall_lines(changes: Sequence[OverallChange]) -> list[str]:
    """Describe every mean change of an algorithm over several rows that is not noise, one line each."""
    name_of = names_with_backend(changes)
    return [
        f"{change.place.problem}: {name_of(change)}: {metric_label(change.metric)} {change.judgment.percent:+.3g}"
        f"±{change.half_width:.2g}% over {change.rows} rows: {change.judgment.verdict}"
        for change in changes
        if change.judgment.verdict != "within noise"
    ]


def unmatched_row_lines(
    changes: Sequence[RowChange], baseline: object, candidate: object
) -> list[str]:
    """Name the rows that exist in only one of two compared tables, one line for each table; ``baseline`` and ``candidate``
    name the tables.
    """
    name_of, lines = names_with_backend(changes), []
    for verdict, tables in (
        ("only before", f"{baseline} missing in {candidate}"),
        ("only after", f"{candidate} missing in {baseline}"),
    ):
        labels = [
            f"{change.place.problem}: {name_of(change)} at alpha {change.place.alpha:.4g}, {change.dimension_letter} = "
            f"{change.place.dimension}, {change.metric}"
            for change in changes
            if change.judgment.verdict == verdict
        ]
        if labels:
            count = f"{len(labels)} row{'s' if len(labels) > 1 else ''}"
            if len(labels) > NAMED:
                labels[NAMED:] = [f"and {len(labels) - NAMED} more"]
            lines.append(f"{count} of {tables}: {'; '.join(labels)}")
    return lines


NAMED = 10
"""Largest number of rows without a counterpart that are named in a line; the table contains all of them."""


def _time_with_change(duration: float, change: Number) -> str:
    """Format a time per iteration in seconds (``duration``) with its change in percent; blank if the change is unknown."""
    return "" if change is None else f"{seconds(duration)} {change:+z.0f}%"
