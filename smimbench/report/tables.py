"""Terminal tables of runs: errors, ranking of algorithms, runtimes, order of learning, extrapolation, comparison."""

from __future__ import annotations

import math
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
    Column,
    column_of,
    make_table,
    marked_z,
    measured,
    number,
    percent,
    seconds,
    uncertain,
)
from smimbench.report.comparison import OverallChange, RowChange
from smimbench.report.extrapolation import Limit
from smimbench.report.row import (
    Finding,
    HalfOverlap,
    Row,
    RowEntry,
    grouped,
    largest_dimension_rows,
    letter_of,
    names_with_backend,
    place,
)
from smimbench.report.verdict import (
    TIE,
    AlgorithmSummary,
    Verdict,
    near_words,
    prediction_cell,
    tied_words,
)
from smimbench.run.store import OtherVersion
from smimbench.run.tuning import range_ends

Columns = list[str | Column]
PLACE: Columns = ["algorithm", "alpha", "D"]
Shown = TypeVar("Shown", bound=Row | RowEntry)


def _by_problem(rows: Iterable[Shown]) -> dict[str, list[Shown]]:
    return grouped(rows, lambda row: row.place.problem)


def _by_metric(rows: Iterable[Shown]) -> dict[tuple[str, str], list[Shown]]:
    return grouped(rows, lambda row: (row.place.problem, row.metric))


def _shortened(rows: Sequence[Row], full: bool, note: str) -> tuple[Sequence[Row], str]:
    """Select the rows that are shown, and extend the note by how many are hidden."""
    shown = rows if full else largest_dimension_rows(rows)[:16]
    if len(shown) < len(rows):
        note += f"; {len(shown)} of {len(rows)} rows; --full shows all"
    return shown, note


# -- errors ---------------------------------------------------------------------------------------------------------------


def differs(row: Row | RowEntry) -> bool:
    """Return whether an algorithm's prediction differs from the optimal value, or is missing."""
    prediction = row.prediction
    if prediction.value is None:
        return bool(prediction.reason)
    return prediction.value != row.optimum.limit


def _theory_columns(rows: Sequence[Row | RowEntry], *further: str) -> Columns:
    """Return the columns of predicted and optimal value; a single one with its error if both are equal in all rows."""
    if any(map(differs, rows)):
        return ["predicted", "z", "optimal"]
    optimal = Column("optimal", uncertain, fields="theory.value theory.error")
    return [optimal, *further, "z"]


def error_tables(rows: Sequence[Row], *, full: bool = True) -> list[RenderableType]:
    """Make the error tables, one per problem and metric, with the largest ratio to the optimal error first."""
    tables = []
    for (problem, metric), members in _by_metric(rows).items():
        shown, note = _shortened(sorted(members, key=_worst_first), full, "worst first")
        title = f"{problem}: {metric_label(metric)}"
        if any(row.theory.value is not None for row in members):
            title += " against theory"
        sizes = {row.place.dimension for row in shown}
        if len(sizes) == 1:
            title += f", {letter_of(members)} = {sizes.pop()}"
        columns = [*PLACE, "component", "n", "mean ± s.e.m."]
        columns += _theory_columns(members, "mean - optimal")
        columns += ["optimal at this D", "error / optimal", "status"]
        tables.append(make_table(title, columns, shown, note))
    return tables


def _worst_first(row: Row) -> tuple[float, ...]:
    """Sort key: failures first, then by the ratio to the optimal error, or by the difference from theory without one."""
    counts, mean, optimum = row.runs.status_counts, row.estimate.mean, row.optimum.limit
    failures = sum(counts[name] for name in counts if name not in ("ok", "skipped"))
    distance = abs(mean - optimum) if mean is not None and optimum is not None else 0.0
    ratio = math.inf if mean is None else row.optimum.ratio or 0.0
    difference = abs(row.theory.difference or 0.0)
    return -failures, -ratio, -distance, -difference, row.place.alpha


def missing_values(rows: Sequence[Row]) -> list[str]:
    """List the reasons why algorithms have no prediction or a metric is blank, one line each."""
    algorithms: dict[str, dict[str, None]] = {}
    blanks: dict[str, None] = {}
    for row in rows:
        algorithm = row.place.algorithm
        if row.prediction.reason:
            algorithms.setdefault(row.prediction.reason, {})[algorithm] = None
        for reason in row.runs.blank:
            blanks[f"{algorithm}: {row.metric} is blank: {reason}"] = None
    predictions = [
        f"{'; '.join(names)}: no prediction: {reason}"
        for reason, names in algorithms.items()
    ]
    return [*predictions, *blanks]


CONTENDER: Columns = [
    column_of("algorithm", "algorithm"),
    column_of("settings", "settings"),
    column_of("error / optimal", "ratio_to_bayes ratio_error"),
    column_of("mean error", "mean_error.mean mean_error.sem"),
    "error where optimum is 0",
    Column("agrees with theory", prediction_cell, words=True),
    Column(
        "time to 1.05x optimum",
        lambda c: seconds(c.near_seconds) or near_words(c),
        sorts="near_seconds",
    ),
    Column("runs at 1.05x optimum", percent, fields="near_fraction"),
    column_of("time per run", "seconds"),
    column_of("status", "status_counts moving"),
]
"""Columns of the ranking of algorithms on a problem."""


def contender_tables(
    verdicts: Sequence[Verdict], make: Callable[..., object] = make_table
) -> list[Any]:
    """Make the ranking tables, one per problem with at least two algorithms, best first; see ``verdicts``.

    Parameters
    ----------
    make : callable
        ``make_table`` or ``latex_table``.
    """
    tables = []
    for verdict in verdicts:
        if len(verdict.contenders) < 2 or not verdict.metric:
            continue
        title = f"{verdict.problem}: all algorithms, {verdict.dimension_letter} = {verdict.dimension}"
        note = "best first"
        if verdict.tied:
            note += f"; tied with the first ({TIE:.0%} interval): {tied_words(verdict)}"
        tables.append(make(title, CONTENDER, verdict.contenders, note))
    return tables


SUMMARY: Columns = [
    column_of("algorithm", "algorithm"),
    "instances solved",
    column_of("error / optimal", "ratio_to_bayes"),
    "error / best",
    "95% interval",
]
"""Columns of the summary of algorithms over all problems."""


def summary_tables(entries: Sequence[AlgorithmSummary]) -> list[RenderableType]:
    """Make the table that summarizes algorithms over all problems; none for a single problem."""
    return [make_table("all problems together", SUMMARY, entries)] if entries else []


# -- time -----------------------------------------------------------------------------------------------------------------


def runtime_tables(
    rows: Sequence[Row], fingerprint: str, *, full: bool = True
) -> list[RenderableType]:
    """Make the runtime tables, one per problem, slowest to reach the optimum first; notes name other machines.

    What an algorithm refuses has taken no time and has no row.
    """
    tables = []
    run = [row for row in rows if set(row.runs.status_counts) != {"skipped"}]
    for problem, rows_of_problem in _by_problem(run).items():
        members = [
            place_rows[0] for place_rows in grouped(rows_of_problem, place).values()
        ]
        note = "slowest first"
        if not all(row.cost.trusted for row in members):
            note += "; untrusted: cells may have run in parallel (--timing)"
        machines: set[str] = set()
        machines.update(*(row.cost.machines for row in members))
        if foreign := sorted(machines - {fingerprint}):
            note += f"; some of another machine ({', '.join(foreign)})"
        shown, note = _shortened(sorted(members, key=_slowest_first), full, note)
        columns = [
            *PLACE,
            *(["time to 1.5x optimum", "time to 1.2x optimum"] if full else []),
        ]
        columns += [
            "time to 1.05x optimum",
            "runs at 1.05x optimum",
            "iter.",
            "first iter. time",
            "time per iter.",
        ]
        columns += ["share of peak speed", "peak memory"]
        tables.append(make_table(f"{problem}: runtime", columns, shown, note))
    return tables


def _slowest_first(row: Row) -> tuple[float, float]:
    reached = row.cost.near["0.05"].seconds
    return -(math.inf if reached is None else reached), -(row.cost.seconds or 0.0)


def other_version_lines(
    entries: Sequence[OtherVersion], missing: bool = True
) -> list[str]:
    """List the items of which stored cells were computed by another version or other code, one line each.

    ``missing``: the current version still has cells to run.
    """
    lines = []
    rerun = ", 'smimbench run' runs them again" if missing else ""
    for entry in entries:
        version = f"version {entry['then']} (now {entry['now']})"
        origin = "other code" if entry["then"] == entry["now"] else version
        lines.append(
            f"{entry['item']}: {entry['cells']} of the stored cells were computed by {origin} and are not counted; "
            f"smimbench.load reads them{rerun}"
        )
    return lines


def status_line(counts: Mapping[str, int], missing: int = 0) -> Text:
    """Return a line with the number of cells per status, and of cells that have not run."""
    named = (f"{counts[name]} {name}" for name in SHORT if counts.get(name))
    text = Text(f"cells: {', '.join(named) or 'none'}")
    if missing:
        text.append(f", {missing} not run yet", style="yellow")
    return text


# -- components and other numbers -----------------------------------------------------------------------------------------


def learning_tables(rows: Sequence[Row]) -> list[RenderableType]:
    """Make the tables of the order of learning, one per problem with several components."""
    tables = []
    chosen = [
        row
        for row in rows
        if row.runs.learning_order and row.component and row.metric == rows[0].metric
    ]
    for problem, members in _by_problem(chosen).items():
        layers = grouped(members, place)
        firsts = [members[0] for members in layers.values()]
        halves = [row.runs.half_overlap or HalfOverlap() for row in members]
        # No median at all (most runs never get there) says nothing about whether samples were counted.
        counted = all(h.epochs is not None or h.iterations is None for h in halves)
        unit = "epochs" if counted else "iterations"
        columns: Columns = ["algorithm", "alpha"]
        for index in range(len(layers[place(firsts[0])])):
            heading = f"{members[0].component_word} {index + 1}"
            columns.append(Column(heading, partial(_half, layers, index, unit)))
        columns += [
            "learning order (runs)",
            "last / first learning time",
            "runs that learn all",
        ]
        note = f"median {unit} to half of the optimal overlap"
        title = f"{problem}: order of learning"
        tables.append(make_table(title, columns, firsts, note))
    return tables


def _half(
    layers: Mapping[tuple[str, str, str, float, int], Sequence[Row]],
    index: int,
    unit: str,
    row: Row,
) -> str:
    """Format the median time at which a layer reaches half of its optimal overlap, at the place of a row."""
    half = layers[place(row)][index].runs.half_overlap or HalfOverlap()
    if half.target is None:
        return "-"
    return number(getattr(half, unit), 2) or "never"


@dataclass(frozen=True, slots=True)
class FindingEntry(RowEntry):
    """Table entry for a diagnostic that the runs of a row report, with its index if it is a list."""

    finding: Finding
    no: int


def diagnostic_tables(rows: Sequence[Row]) -> list[RenderableType]:
    """Make the tables of diagnostics that algorithms report, one per problem and diagnostic."""
    groups: dict[tuple[str, str], list[FindingEntry]] = {}
    for row in rows:
        if row.metric != rows[0].metric or row.component not in (None, 1):
            continue
        for name, findings in row.runs.findings.items():
            group = groups.setdefault((row.place.problem, name), [])
            group += [FindingEntry(row, f, i) for i, f in enumerate(findings, 1)]
    mean = Column(
        "mean ± s.e.m.",
        lambda mean, sem: measured(mean, sem) or "none",
        fields="finding.mean finding.sem",
    )
    columns = [*PLACE, "list index", mean, "theory", "runs reporting it"]
    tables = []
    for (problem, name), numbers in groups.items():
        title = f"{problem}: {name.replace('_', ' ')}"
        tables.append(make_table(title, columns, numbers))
    return tables


# -- infinite dimension ---------------------------------------------------------------------------------------------------


LIMIT: Columns = [
    "1/D coefficient ± error",
    "1/D coefficient, theory",
    "chi2 / dof",
    "status",
]
"""Columns of a finite-size fit."""


def extrapolated_tables(limits: Sequence[Limit]) -> list[RenderableType]:
    """Make the tables of limits at infinite dimension, one per problem and metric, largest difference from theory first."""
    tables = []
    for (problem, metric), members in _by_metric(limits).items():
        columns: Columns = ["algorithm", "alpha", "component", "extrapolated ± error"]
        columns += _theory_columns(members)
        has_theory = any(limit.prediction.coefficient is not None for limit in members)
        columns += LIMIT if has_theory else LIMIT[2:]
        ordered = sorted(members, key=lambda limit: -abs(limit.theory.z or 0.0))
        title = f"{problem}: {metric_label(metric)} at infinite {letter_of(members)}"
        tables.append(make_table(title, columns, ordered, "largest |z| first"))
    return tables


# -- tuning ---------------------------------------------------------------------------------------------------------------


def search_table(search: JsonObject) -> RenderableType:
    """Make the table of a search's trials with their errors in every round, best first."""
    rounds, trials, chosen = search["rounds"], search["trials"], search["chosen"]
    rows: list[JsonObject] = []
    for index, parameters in enumerate(trials):
        row = {**parameters, "chosen": "chosen" if index == chosen else ""}
        row |= {f"round{k}": stage["errors"][index] for k, stage in enumerate(rounds)}
        rows.append(row)

    def best_first(row: JsonObject) -> tuple[int, float]:
        errors = [row[f"round{k}"] for k in range(len(rounds))]
        finite = [error for error in errors if error is not None] or [math.inf]
        return -len(finite), finite[-1]

    names = dict.fromkeys(name for parameters in trials for name in parameters)
    columns: Columns = [Column(name, fields=name) for name in names]
    for k, stage in enumerate(rounds):
        heading = "1 seed" if stage["seeds"] == 1 else f"{stage['seeds']} seeds"
        columns.append(Column(heading, number, fields=f"round{k}"))
    columns.append(Column("", fields="chosen"))
    title = f"{search['problem']}: {search['label']}, {len(rows)} trials, {search['runs']} runs; mean error"
    note = "; ".join(range_ends(trials, chosen))
    if chosen is None:
        note = "no trial gave an estimate in all of its runs; search other parameters"
    return make_table(title, columns, sorted(rows, key=best_first), note)


# -- comparisons ----------------------------------------------------------------------------------------------------------


def comparison_tables(changes: Sequence[RowChange]) -> list[RenderableType]:
    """Make the comparison tables from the changes of ``compare_rows``, one per problem and metric."""
    tables = []
    for (problem, metric), members in _by_metric(changes).items():
        columns: Columns = [*PLACE, "component", "mean before", "mean after", "change"]
        if any(map(differs, members)):
            # The z of the baseline is in the JSON only: 80 columns.
            fields = "candidate.prediction.z candidate.estimate.n"
            columns.append(Column("predicted", number, fields="prediction.value"))
            columns += [Column("z", marked_z, fields=fields), "optimal"]
        else:
            columns.append(Column("theory", number, fields="theory.value"))
        fields = "candidate.cost.per_iteration time_percent"
        columns += [Column("time per iter.", _time, fields=fields), "verdict"]
        title = f"{problem}: {metric_label(metric)}"
        note = "worst first; changes with 99.7% confidence intervals"
        tables.append(make_table(title, columns, members, note))
    reasons = missing_values([change.row for change in changes])
    return [*tables, *(Text(line, style="dim") for line in reasons)]


def changed_code_lines(changes: Sequence[RowChange]) -> list[str]:
    """Return a line that names the items whose code differs between the two tables, if there are any."""
    names = dict.fromkeys(name for change in changes for name in change.changed_code)
    return [f"code changed: {', '.join(names)}"] if names else []


def overall_lines(changes: Sequence[OverallChange]) -> list[str]:
    """Describe every clear mean change of an algorithm over several rows, one line each."""
    name = names_with_backend(changes)
    return [
        f"{change.place.problem}: {name(change)}: {metric_label(change.metric)} {change.judgment.percent:+.3g}"
        f"±{change.half_width:.2g}% over {change.rows} rows: {change.judgment.verdict}"
        for change in changes
        if change.judgment.verdict != "within noise"
    ]


def unmatched_row_lines(
    changes: Sequence[RowChange], baseline: object, candidate: object
) -> list[str]:
    """Name the rows that exist in one of two tables only, one line for each table."""
    name, lines = names_with_backend(changes), []
    for verdict, source, counterpart in (
        ("only before", baseline, candidate),
        ("only after", candidate, baseline),
    ):
        rows = [
            f"{row.place.problem}: {name(row)} at alpha {row.place.alpha:.4g}, {row.dimension_letter} = {row.place.dimension}, "
            f"{row.metric}"
            for row in changes
            if row.judgment.verdict == verdict
        ]
        if not rows:
            continue
        count = "1 row of" if len(rows) == 1 else f"{len(rows)} rows of"
        if len(rows) > NAMED:
            rows[NAMED:] = [f"and {len(rows) - NAMED} more"]
        lines.append(f"{count} {source} missing in {counterpart}: {'; '.join(rows)}")
    return lines


NAMED = 10
"""Largest number of rows without a counterpart that are named in a line; the table contains all of them."""


def _time(duration: float, change: float | None) -> str:
    return "" if change is None else f"{seconds(duration)} {change:+z.0f}%"
