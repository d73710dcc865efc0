"""Comparison of two tables for ``compare``: changes of error and time, worst first, and whether a limit is exceeded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from smimbench.files import JsonObject, canonical_json
from smimbench.problem.problem import without
from smimbench.registry.metrics import find_metric, is_worse
from smimbench.report.labels import distinguish, grouped
from smimbench.report.row import Identity, OfRow, Row
from smimbench.report.statistics import (
    Change,
    change_between,
    count_runs,
    failed_runs,
    mean_change,
    shared_instances,
)
from smimbench.suite.cells import agree
from smimbench.suite.schema import ORACLE

LEVEL = 0.997
"""Level of the intervals by which a change is clear. At 0.9985, with half as many false alarms, they are a tenth wider."""

GONE = "no estimate any more"
FAILS_MORE = "more runs fail"
ONE_SIDED = ("only before", "only after")

ORDER = (GONE, FAILS_MORE, "worse", *ONE_SIDED, "differs", "within noise")
"""Verdicts, worst first; all others come after them."""


SHARED = (
    "problem", "algorithm", "backend", "alpha", "dimension", "metric", "component", "component_word",
    "dimension_letter", "theory", "own_theory", "own_theory_error", "no_theory", "bayes", "identity",
)  # fmt: skip
"""Keys of a row that an entry has once, from the second table where that has the row."""

EACH = {
    "": "mean",
    "_sem": "sem",
    "_seconds": "per_iteration",
    "_own_z": "own_z",
    "_ratio_to_bayes": "ratio_to_bayes",
    "_n": "n",
}
"""Keys that an entry has of both tables, by the ending of their keys there."""


@dataclass(frozen=True, slots=True)
class Judgment:
    """The change of a mean.

    Attributes
    ----------
    percent, error_percent : float or None
        The change relative to the mean before, and its standard error, with ``dof`` degrees of freedom.
    interval : list of float or None
        Of the change itself.
    z : float or None
        The change in standard errors.
    """

    verdict: str
    percent: float | None = None
    error_percent: float | None = None
    dof: float | None = None
    interval: list[float] | None = None
    z: float | None = None


@dataclass(frozen=True, slots=True)
class RowChange(OfRow):
    """Rows of two tables that belong together.

    Attributes
    ----------
    row : Row
        Of the second table where that has the row, without hashes of code.
    before, after : Row or None
    judgment : Judgment
        Of the mean.
    time_percent : float or None
        Change of the time of an iteration, where both times can be compared.
    changed_code : list of str
        Items whose code differs, as ``algorithm sgd``.
    """

    before: Row | None
    after: Row | None
    judgment: Judgment
    time_percent: float | None
    changed_code: list[str]

    def document(self) -> JsonObject:
        """The change as JSON has it."""
        row, judgment = self.row.document(), self.judgment
        before, after = (
            side.document() if side else dict.fromkeys(EACH.values())
            for side in (self.before, self.after)
        )
        entry = {key: row[key] for key in SHARED}
        for ending, key in EACH.items():
            entry |= {f"before{ending}": before[key], f"after{ending}": after[key]}
        return {
            **entry,
            "change_percent": judgment.percent,
            "error_percent": judgment.error_percent,
            "dof": judgment.dof,
            "interval": judgment.interval,
            "z": judgment.z,
            "verdict": judgment.verdict,
            "time_percent": self.time_percent,
            "changed_code": self.changed_code,
        }


def _without_code(row: Row) -> Row:
    problem, algorithm = (
        without("source", row.identity.problem),
        without("source", row.identity.algorithm),
    )
    return replace(row, identity=Identity(problem, algorithm))


def compare_rows(before: Sequence[Row], after: Sequence[Row]) -> list[RowChange]:
    """Match rows of two tables by what was run and judge the change of each error and of each time.

    Rows belong together that have the same problem, algorithm, parameters and grid point, whatever the version or the code
    of their items: ``changed_code`` names the items whose code differs. A label may have changed, and two different things
    may have one label: neither decides what is compared with what.

    A change is clear where its interval does not hold 0: of the differences on the same instances, or (another root seed)
    of two independent means. A clear change is ``better`` or ``worse`` by the direction of the metric. One that is not
    ``differs`` if it is for the worse on every shared instance, or if there is a single run. A larger share of runs
    without an estimate is ``more runs fail``. Where theory is 0, errors that both reached the suite's target are ``both at
    0``. Times are compared only when both are trusted and of one machine.
    """
    pairs = _counterparts(before, after)
    rows = distinguish(_without_code(row) for a, b in pairs if (row := b or a))
    changes = [
        RowChange(
            row, a, b, _judge_change(a, b), _time_change(a, b), _changed_code(a, b)
        )
        for row, (a, b) in zip(rows, pairs)
    ]
    return sorted(changes, key=_badness)


def _counterparts(
    before: Sequence[Row], after: Sequence[Row]
) -> list[tuple[Row | None, Row | None]]:
    """Rows of both tables that belong together, and those of one table that have no counterpart.

    A row without a counterpart of the same parameters belongs to the only one of the other table that agrees with it in all
    parameters that both have: a version may have more of them, use more samples, and be in a file of another name.
    """
    old, new = ({_measured(row): row for row in rows} for rows in (before, after))
    pairs: dict[Any, tuple[Row | None, Row | None]] = {
        place: (old[place], row) for place, row in new.items() if place in old
    }
    alone = [(place, row) for place, row in old.items() if place not in pairs]
    for place, row in new.items():
        if place in pairs:
            continue
        similar = [
            (there, a)
            for there, a in alone
            if there[2:] == place[2:] and agree(_items(a), _items(row))
        ]
        if len(similar) == 1:
            pairs[place] = similar[0][1], row
            alone.remove(similar[0])
    matched: list[tuple[Row | None, Row | None]] = [
        pairs.get(place, (None, row)) for place, row in new.items()
    ]
    return [*matched, *((row, None) for _, row in alone)]


def _items(row: Row) -> JsonObject:
    """Items of a row by their kind."""
    return {**row.identity.problem, "algorithm": row.identity.algorithm}


def _measured(row: Row) -> tuple[Any, ...]:
    """What a row measures, apart from labels: problem and algorithm without versions and code, and grid point."""
    at, oracle = row.place, row.place.settings == ORACLE
    items = canonical_json(without("source", _items(row)))
    return (
        items,
        at.alpha,
        oracle,
        at.backend,
        at.nominal_alpha,
        at.dimension,
        row.metric,
        row.component,
    )


def _changed_code(a: Row | None, b: Row | None) -> list[str]:
    """Items of a row, as ``algorithm sgd``, whose code is not that of its counterpart."""
    if a is None or b is None:
        return []
    before = _items(a)
    return [
        f"{kind} {item['name']}"
        for kind, item in _items(b).items()
        if isinstance(item, dict) and _sources(item) != _sources(before.get(kind))
    ]


def _sources(item: Any) -> list[Any]:
    """Hashes of the code of an item and of those inside it."""
    if not isinstance(item, dict):
        return []
    return [
        item.get("source"),
        *(_sources(inner) for inner in item.values() if isinstance(inner, dict)),
    ]


# -- verdicts -------------------------------------------------------------------------------------------------------------


def _judge_change(a: Row | None, b: Row | None) -> Judgment:
    """The change of a mean, and what it amounts to."""
    if a is None or b is None:
        return Judgment(ONE_SIDED[a is None])
    if a.estimate.mean is None:
        return Judgment("unchanged" if b.estimate.mean is None else "estimates now")
    if b.estimate.mean is None:
        return Judgment(GONE)
    old, new = a.estimate.values, b.estimate.values
    shared = shared_instances(old, new)
    before, after = (_mean_on(shared, row) for row in (a, b))
    fails_more = _failed_share(b) > _failed_share(a)
    if before == after:
        return Judgment(FAILS_MORE if fails_more else "unchanged", percent=0.0, z=0.0)
    metric, percent = find_metric(b.metric), 100 / abs(before) if before else None
    relative = percent and percent * (after - before)
    if (
        metric.direction == "lower"
        and b.theory.value == 0
        and max(before, after) <= b.target
    ):
        return Judgment(FAILS_MORE if fails_more else "both at 0", relative)
    change, verdict = (
        change_between(old, new),
        "worse" if is_worse(metric, before, after) else "better",
    )
    everywhere = all(
        is_worse(metric, old[name], new[name]) == (verdict == "worse")
        for name in shared
    )
    if change is None:
        verdict = "differs" if verdict == "worse" else "no worse"
        return Judgment(FAILS_MORE if fails_more else verdict, relative)
    half = change.half_width(LEVEL)
    if abs(change.value) <= half and shared and everywhere:
        verdict = "differs" if verdict == "worse" else "no worse"
    elif abs(change.value) <= half:
        verdict = "within noise"
    return Judgment(
        FAILS_MORE if fails_more else verdict,
        relative,
        percent and percent * change.error,
        change.dof,
        [change.value - half, change.value + half],
        change.z,
    )


def _mean_on(instances: Sequence[str], row: Row) -> float:
    """Mean of a row over these instances (none: over all of its own)."""
    values, mean = row.estimate.values, row.estimate.mean
    if len(instances) in (0, len(values)) and mean is not None:
        return mean
    return float(np.mean([values[name] for name in instances]))


def _failed_share(row: Row) -> float:
    return failed_runs(row) / max(1, count_runs(row.runs.status_counts))


def _time_change(a: Row | None, b: Row | None) -> float | None:
    if (
        a is None
        or b is None
        or not (
            a.cost.trusted and b.cost.trusted and a.cost.machines == b.cost.machines
        )
    ):
        return None
    if not a.cost.per_iteration or not b.cost.per_iteration:
        return None
    return 100 * (b.cost.per_iteration / a.cost.per_iteration - 1)


def _badness(change: RowChange) -> tuple[float, float]:
    verdict = change.judgment.verdict
    rank = ORDER.index(verdict) if verdict in ORDER else len(ORDER)
    return rank, -abs(change.judgment.percent or 0.0)


@dataclass(frozen=True, slots=True)
class OverallChange(OfRow):
    """Mean change over ``rows`` rows of an algorithm, of which ``row`` is the first, with half of its interval."""

    rows: int
    judgment: Judgment
    half_width: float

    def document(self) -> JsonObject:
        """The change as JSON has it."""
        return {
            "problem": self.place.problem,
            "algorithm": self.place.algorithm,
            "backend": self.place.backend,
            "metric": self.metric,
            "component": self.component,
            "rows": self.rows,
            "change_percent": self.judgment.percent,
            "half_width": self.half_width,
            "verdict": self.judgment.verdict,
        }


def overall_changes(changes: Sequence[RowChange]) -> list[OverallChange]:
    """Mean change of every metric of an algorithm over the sample ratios and dimensions of a problem, where there are several.

    A change that no row shows for certain may be clear in all of them together.
    """

    def line(change: RowChange) -> tuple[Any, ...]:
        at = change.place
        return at.problem, at.algorithm, at.backend, change.metric, change.component

    overall = []
    for same in grouped(
        [one for one in changes if one.judgment.error_percent is not None], line
    ).values():
        direction = find_metric(same[0].metric).direction
        if (
            len(same) < 2 or direction == "one"
        ):  # a change of the mean is no distance from 1
            continue
        judgments = [change.judgment for change in same]
        mean = mean_change(
            [Change(one.percent, one.error_percent, one.dof) for one in judgments]
        )
        half = mean.half_width(LEVEL)
        verdict = "worse" if (mean.value > 0) == (direction == "lower") else "better"
        judgment = Judgment(
            verdict if abs(mean.value) > half else "within noise", mean.value
        )
        overall.append(OverallChange(same[0].row, len(same), judgment, half))
    return overall


def exceeds(
    judgment: Judgment, percent: float, time_percent: float | None = None
) -> bool:
    """Whether a change fails a limit: an error worse, or a time slower, by more than ``percent``; or no counterpart."""
    slower = (time_percent or 0.0) > percent
    size = math.inf if judgment.percent is None else abs(judgment.percent)
    failed = judgment.verdict in (GONE, FAILS_MORE, *ONE_SIDED)
    return (
        slower
        or failed
        or (judgment.verdict in ("worse", "differs") and size > percent)
    )
