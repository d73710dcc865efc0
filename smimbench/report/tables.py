"""Tables of runs for a terminal: errors, contenders, runtime, order of learning, infinite dimension, comparisons."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from smimbench.files import JsonObject
from smimbench.registry.metrics import metric_label
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
from smimbench.report.labels import (
    grouped,
    letter_of,
    names_with_backend,
    of_largest_dimension,
    place,
)
from smimbench.report.row import Finding, HalfOverlap, OfRow, Row
from smimbench.report.verdict import (
    TIE,
    Verdict,
    near_words,
    prediction_cell,
    tied_words,
)
from smimbench.run.tuning import range_ends

Columns = list[str | Column]
WHERE: Columns = ["algorithm", "alpha", "D"]


def _by_problem(rows: Iterable[Any]) -> dict[str, list[Any]]:
    return grouped(rows, lambda row: row.place.problem)


def _by_metric(rows: Iterable[Any]) -> dict[tuple[str, str], list[Any]]:
    return grouped(rows, lambda row: (row.place.problem, row.metric))


def _cut(rows: Sequence[Row], full: bool, note: str) -> tuple[Sequence[Row], str]:
    """Rows that are shown, and a note on how many are not."""
    shown = rows if full else of_largest_dimension(rows)[:16]
    return shown, note if len(shown) == len(
        rows
    ) else f"{note}; {len(shown)} of {len(rows)} rows; --full shows all"


# -- errors ---------------------------------------------------------------------------------------------------------------


def differs(row: Row | OfRow) -> bool:
    """Whether the prediction for the algorithm differs from the optimal value, or is missing."""
    own = row.prediction.value
    return bool(row.prediction.reason) or (own is not None and own != row.optimum.limit)


def _verdict(rows: Sequence[Row | OfRow], *alone: str | Column) -> Columns:
    """Predicted value for each algorithm and the optimal value, shown once with its error if both are equal."""
    if any(map(differs, rows)):
        return ["predicted", "z", "optimal"]
    return [
        Column("optimal", uncertain, fields="theory.value theory.error"),
        *alone,
        "z",
    ]


def error_tables(rows: Sequence[Row], *, full: bool = True) -> list[RenderableType]:
    """Error against theory, if it is known: one table per problem and metric, the largest excess over the optimum first."""
    tables = []
    for (problem, metric), members in _by_metric(rows).items():
        shown, note = _cut(sorted(members, key=_worst), full, "worst first")
        sizes = {row.place.dimension for row in shown}
        size = f", {letter_of(members)} = {sizes.pop()}" if len(sizes) == 1 else ""
        columns = [
            *WHERE,
            "component",
            "n",
            "mean ± s.e.m.",
            *_verdict(members, "diff"),
        ]
        columns += ["at this D", "error / optimal", "status"]
        against = (
            " against theory"
            if any(row.theory.value is not None for row in members)
            else ""
        )
        title = f"{problem}: {metric_label(metric)}{against}{size}"
        tables.append(make_table(title, columns, shown, note))
    return tables


def _worst(row: Row) -> tuple[float, ...]:
    """Sort key: failures first, then the largest ratio to the optimal error, or the largest distance if there is no ratio."""
    bad = sum(
        count
        for name, count in row.runs.status_counts.items()
        if name not in ("ok", "skipped")
    )
    mean, optimum = row.estimate.mean, row.optimum.limit
    distance = abs(mean - optimum) if mean is not None and optimum is not None else 0.0
    ratio = math.inf if mean is None else row.optimum.ratio or 0.0
    return -bad, -ratio, -distance, -abs(row.theory.difference or 0.0), row.place.alpha


def missing_values(rows: Sequence[Row]) -> list[str]:
    """One line for every reason why algorithms have no prediction, or a metric is blank."""
    reasons = grouped(
        [row for row in rows if row.prediction.reason],
        lambda row: row.prediction.reason,
    )
    predictions = [
        f"{', '.join(dict.fromkeys(row.place.algorithm for row in same))}: no prediction: {reason}"
        for reason, same in reasons.items()
    ]
    blank = [
        f"{row.place.algorithm}: {row.metric} is blank: {why}"
        for row in rows
        for why in row.runs.blank
    ]
    return list(dict.fromkeys(predictions + blank))


CONTENDER: Columns = [
    column_of("algorithm", "algorithm"),
    column_of("settings", "settings"),
    column_of("error / optimal", "ratio_to_bayes ratio_error"),
    column_of("mean error", "mean_error.mean mean_error.sem"),
    "at 0",
    Column("as predicted", prediction_cell, words=True),
    Column(
        "time to 5%",
        lambda c: seconds(c.near_seconds) or near_words(c),
        sorts="near_seconds",
    ),
    Column("runs at 5%", percent, fields="near_fraction"),
    column_of("per run", "seconds"),
    column_of("status", "status_counts moving"),
]
"""Columns of the contenders of a problem."""


def contender_tables(
    verdicts: Sequence[Verdict], make: Callable[..., Any] = make_table
) -> list[Any]:
    """One table per problem that at least two algorithms were run on, best first; see ``verdicts``.

    Parameters
    ----------
    make : callable
        ``make_table`` or ``latex_table``.
    """
    tables = []
    for verdict in verdicts:
        if len(verdict.contenders) > 1 and verdict.metric:
            tied = (
                f"; tied with the first ({TIE:.0%} interval): {tied_words(verdict)}"
                if verdict.tied
                else ""
            )
            title = f"{verdict.problem}: all algorithms, {verdict.dimension_letter} = {verdict.dimension}"
            tables.append(
                make(title, CONTENDER, verdict.contenders, f"best first{tied}")
            )
    return tables


SUMMARY: Columns = [
    column_of("algorithm", "algorithm"),
    "instances",
    column_of("error / optimal", "ratio_to_bayes"),
    "error / best",
    "95% interval",
]
"""Columns of the summary over all problems."""


def summary_tables(entries: Sequence[JsonObject]) -> list[RenderableType]:
    """Table of the summary over all problems, if there is one."""
    return [make_table("all problems together", SUMMARY, entries)] if entries else []


# -- time -----------------------------------------------------------------------------------------------------------------


def runtime_tables(
    rows: Sequence[Row], fingerprint: str, *, full: bool = True
) -> list[RenderableType]:
    """Runtime: one table per problem, slowest to reach theory first; times of other machines are named as such.

    What an algorithm refuses has taken no time and has no row.
    """
    tables = []
    for problem, found in _by_problem(
        row for row in rows if set(row.runs.status_counts) != {"skipped"}
    ).items():
        members = [same[0] for same in grouped(found, place).values()]
        note = "slowest first"
        if not all(row.cost.trusted for row in members):
            note += "; untrusted: cells may have run side by side (--timing)"
        if foreign := sorted(
            {m for row in members for m in row.cost.machines if m != fingerprint}
        ):
            note += f"; some of another machine ({', '.join(foreign)})"
        shown, note = _cut(sorted(members, key=_slowest), full, note)
        nearness: Columns = ["to 50%", "to 20%"] if full else []
        columns = [
            *WHERE,
            *nearness,
            "time to 5%",
            "runs at 5%",
            "iter.",
            "first",
            "per iter.",
            "of peak",
            "memory",
        ]
        tables.append(make_table(f"{problem}: runtime", columns, shown, note))
    return tables


def _slowest(row: Row) -> tuple[float, float]:
    reached = row.cost.near["0.05"].seconds
    return -(math.inf if reached is None else reached), -(row.cost.seconds or 0.0)


def other_version_lines(
    entries: Sequence[JsonObject], missing: bool = True
) -> list[str]:
    """One line for every item of which another version, or other code, made stored cells; ``missing``: more are to run."""
    lines, again = [], ", 'smimbench run' runs them again" if missing else ""
    for one in entries:
        made = (
            "other code"
            if one["then"] == one["now"]
            else f"version {one['then']} (now {one['now']})"
        )
        lines.append(f"{one['item']}: {one['cells']} of the stored cells were made by {made} and are not counted; smimbench.load "
                     f"reads them{again}")  # fmt: skip
    return lines


def status_line(counts: Mapping[str, int], missing: int = 0) -> Text:
    """One line that counts all six statuses, and what has not run."""
    text = Text("cells: ")
    text.append(
        ", ".join(f"{counts[name]} {name}" for name in SHORT if counts.get(name))
        or "none"
    )
    if missing:
        text.append(f", {missing} not run yet", style="yellow")
    return text


# -- components and other numbers -----------------------------------------------------------------------------------------


def learning_tables(rows: Sequence[Row]) -> list[RenderableType]:
    """The order of learning: one table per problem with several components, from rows of the metric that comes first."""
    tables = []
    chosen = [
        r
        for r in rows
        if r.runs.learning_order and r.component and r.metric == rows[0].metric
    ]
    for problem, found in _by_problem(chosen).items():
        of_place = grouped(found, place)
        halves = {
            at: [row.runs.half_overlap or HalfOverlap() for row in same]
            for at, same in of_place.items()
        }
        members = [same[0] for same in of_place.values()]
        # No median at all (most runs never get there) says nothing about whether samples were counted.
        every = [half for layers in halves.values() for half in layers]
        counted = all(
            half.epochs is not None or half.iterations is None for half in every
        )
        unit, word = "epochs" if counted else "iterations", members[0].component_word
        count = len(halves[place(members[0])])
        halved = [
            Column(f"{word} {i + 1}", partial(_half, halves, i, unit))
            for i in range(count)
        ]
        columns: Columns = [
            "algorithm",
            "alpha",
            *halved,
            "order (runs)",
            "last / first",
            "all",
        ]
        note = f"median {unit} to half of the optimal overlap"
        tables.append(
            make_table(f"{problem}: order of learning", columns, members, note)
        )
    return tables


def _half(
    halves: Mapping[Any, Sequence[HalfOverlap]], layer: int, unit: str, row: Row
) -> str:
    half = halves[place(row)][layer]
    return (
        "-"
        if half.target is None
        else number(half.epochs if unit == "epochs" else half.iterations, 2) or "never"
    )


@dataclass(frozen=True, slots=True)
class FindingOfRow(OfRow):
    """A number that the runs of a row report, and its position in their list."""

    finding: Finding
    no: int


def diagnostic_tables(rows: Sequence[Row]) -> list[RenderableType]:
    """Other numbers that runs report: one table per problem and kind, from rows of the metric that comes first."""
    groups: dict[tuple[str, str], list[FindingOfRow]] = {}
    for row in rows:
        if row.metric == rows[0].metric and row.component in (None, 1):
            for name, findings in row.runs.findings.items():
                numbers = [
                    FindingOfRow(row, finding, i)
                    for i, finding in enumerate(findings, 1)
                ]
                groups.setdefault((row.place.problem, name), []).extend(numbers)
    mean = Column(
        "mean ± s.e.m.",
        lambda mean, sem: measured(mean, sem) or "none",
        fields="finding.mean finding.sem",
    )
    return [
        make_table(
            f"{problem}: {name.replace('_', ' ')}",
            [*WHERE, "no.", mean, "theory", "found"],
            numbers,
        )
        for (problem, name), numbers in groups.items()
    ]


# -- infinite dimension ---------------------------------------------------------------------------------------------------


LIMIT: Columns = ["b ± err", "b in theory", "chi2", "status"]
"""Columns of a fit over dimensions."""


def extrapolated_tables(limits: Sequence[Limit]) -> list[RenderableType]:
    """One table per problem and metric, largest distance from theory first."""
    tables = []
    for (problem, metric), members in _by_metric(limits).items():
        known = any(limit.prediction.coefficient is not None for limit in members)
        fitted = LIMIT if known else LIMIT[2:]
        columns = [
            "algorithm",
            "alpha",
            "component",
            "value ± err",
            *_verdict(members),
            *fitted,
        ]
        ordered = sorted(members, key=lambda limit: -abs(limit.theory.z or 0.0))
        title = f"{problem}: {metric_label(metric)} at infinite {letter_of(members)}"
        tables.append(make_table(title, columns, ordered, "largest |z| first"))
    return tables


# -- tuning ---------------------------------------------------------------------------------------------------------------


def search_table(found: JsonObject) -> RenderableType:
    """The trials of a search with their errors in every round, the best first."""
    rounds = {f"round{k}": one for k, one in enumerate(found["rounds"])}
    names = list(dict.fromkeys(name for setting in found["trials"] for name in setting))
    columns: Columns = [Column(name, fields=name) for name in names]
    for key, one in rounds.items():
        columns.append(
            Column(
                "1 seed" if one["seeds"] == 1 else f"{one['seeds']} seeds",
                number,
                fields=key,
            )
        )
    rows = []
    for k, setting in enumerate(found["trials"]):
        errors = {key: one["errors"][k] for key, one in rounds.items()}
        known = [error for error in errors.values() if error is not None] or [math.inf]
        rows.append(
            {
                **setting,
                **errors,
                "far": (-len(known), known[-1]),
                "chosen": "chosen" * (k == found["chosen"]),
            }
        )
    columns.append(Column("", str, fields="chosen"))
    title = f"{found['problem']}: {found['label']}, {len(rows)} trials, {found['runs']} runs; mean error"
    none = "no trial has an estimate in all of its runs: try others"
    note = none if found["chosen"] is None else "; ".join(range_ends(found))
    return make_table(title, columns, sorted(rows, key=lambda row: row["far"]), note)


# -- comparisons ----------------------------------------------------------------------------------------------------------


def comparison_tables(changes: Sequence[RowChange]) -> list[RenderableType]:
    """One table per problem and metric of what ``compare_rows`` gives."""
    tables = []
    for (problem, metric), members in _by_metric(changes).items():
        # The z of before is in the JSON only: 80 columns.
        predicted, z = (
            Column("predicted", number, fields="prediction.value"),
            Column("z", marked_z, fields="candidate.prediction.z candidate.estimate.n"),
        )
        both: Columns = [predicted, z, "optimal"]
        theory: Columns = (
            both
            if any(map(differs, members))
            else [Column("theory", number, fields="theory.value")]
        )
        columns = [
            *WHERE,
            "component",
            "before",
            "after",
            "change",
            *theory,
            Column(
                "per iter.", _time, fields="candidate.cost.per_iteration time_percent"
            ),
            "verdict",
        ]
        title = f"{problem}: {metric_label(metric)}"
        tables.append(
            make_table(
                title, columns, members, "worst first; change with its 99.7% interval"
            )
        )
    reasons = missing_values([change.row for change in changes])
    return [*tables, *(Text(line, style="dim") for line in reasons)]


def changed_code_lines(changes: Sequence[RowChange]) -> list[str]:
    """One line on the items whose code is not the same in both tables, if there are any."""
    names = dict.fromkeys(name for change in changes for name in change.changed_code)
    return [f"code changed: {', '.join(names)}"] if names else []


def overall_lines(changes: Sequence[OverallChange]) -> list[str]:
    """One line for every clear change over all rows of an algorithm."""
    name = names_with_backend(changes)
    return [
        f"{change.place.problem}: {name(change)}: {metric_label(change.metric)} {change.judgment.percent:+.3g}"
        f"±{change.half_width:.2g}% over {change.rows} rows: {change.judgment.verdict}"
        for change in changes
        if change.judgment.verdict != "within noise"
    ]


def one_sided_lines(
    changes: Sequence[RowChange], before: object, after: object
) -> list[str]:
    """One line for each of two tables that has rows without a counterpart, which names them."""
    name, lines = names_with_backend(changes), []
    for verdict, here, there in (
        ("only before", before, after),
        ("only after", after, before),
    ):
        rows = [
            f"{row.place.problem}: {name(row)} at alpha {row.place.alpha:.4g}, {row.dimension_letter} = {row.place.dimension}, "
            f"{row.metric}"
            for row in changes
            if row.judgment.verdict == verdict
        ]
        shown = [
            *rows[:NAMED],
            *([f"and {len(rows) - NAMED} more"] if len(rows) > NAMED else []),
        ]
        count = "1 row of" if len(rows) == 1 else f"{len(rows)} rows of"
        lines += (
            [f"{count} {here} missing in {there}: {'; '.join(shown)}"] if rows else []
        )
    return lines


NAMED = 10
"""Rows without a counterpart that are named in a line; the table has all of them."""


def _time(after: float, change: float | None) -> str:
    return "" if change is None else f"{seconds(after)} {change:+z.0f}%"
