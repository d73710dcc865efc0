"""Comparison of two tables for ``compare``: changes of error and time, worst first, and whether a limit is exceeded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from smimbench.files import JsonObject, canonical_json
from smimbench.problem.problem import without
from smimbench.registry.metrics import find_metric, is_worse
from smimbench.report.labels import distinguish, grouped
from smimbench.report.statistics import Change, change_between, failed_runs, mean_change, runs_of, shared_instances
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
    "dimension_letter", "theory", "own_theory", "own_theory_error", "no_theory", "bayes",
)  # fmt: skip
"""Fields of a row that an entry has once, from the second table where that has the row."""

EACH = {
    "": "mean",
    "_sem": "sem",
    "_seconds": "per_iteration",
    "_own_z": "own_z",
    "_ratio_to_bayes": "ratio_to_bayes",
    "_n": "n",
}
"""Numbers that an entry has of both tables, by the ending of their keys."""


def compare_rows(before: Sequence[JsonObject], after: Sequence[JsonObject]) -> list[JsonObject]:
    """Match rows of two tables by what was run and judge the change of each error and of each time.

    Rows belong together that have the same problem, algorithm, parameters and grid point, whatever the version or the code
    of their items: ``changed_code`` names the items whose code differs. A label may have changed, and two different things
    may have one label: neither decides what is compared with what.

    A change is clear where its interval does not hold 0: of the differences on the same instances, or (another root seed)
    of two independent means. A clear change is ``better`` or ``worse`` by the direction of the metric. One that is not
    ``differs`` if it is for the worse on every shared instance, or if there is a single run. A larger share of runs
    without an estimate is ``more runs fail``. Where theory is 0, errors that both reached the suite's target are ``both at
    0``. Times are compared only when both are trusted and of one machine. Both tables also contribute ``own_theory`` with
    ``before_own_z`` and ``after_own_z`` (``no_theory``: why there is none), and ``bayes`` with ``before_ratio_to_bayes``
    and ``after_ratio_to_bayes``.
    """
    entries = []
    for a, b in _counterparts(before, after):
        row = b or a or {}
        entry = {key: row[key] for key in SHARED} | {"identity": without("source", row["identity"])}
        for key, name in EACH.items():
            entry |= {f"before{key}": a and a[name], f"after{key}": b and b[name]}
        entry |= _judge_change(a, b) | {"time_percent": _time_change(a, b), "changed_code": _changed_code(a, b)}
        entries.append(entry)
    return sorted(distinguish(entries), key=_badness)


def _counterparts(
    before: Sequence[JsonObject], after: Sequence[JsonObject]
) -> list[tuple[JsonObject | None, JsonObject | None]]:
    """Rows of both tables that belong together, and those of one table that have no counterpart.

    A row without a counterpart of the same parameters belongs to the only one of the other table that agrees with it in all
    parameters that both have: a version may have more of them, use more samples, and be in a file of another name.
    """
    old, new = ({_measured(row): row for row in rows} for rows in (before, after))
    pairs = {place: (old[place], row) for place, row in new.items() if place in old}
    alone = [(place, row) for place, row in old.items() if place not in pairs]
    for place, row in new.items():
        if place in pairs:
            continue
        similar = [(there, a) for there, a in alone if there[2:] == place[2:] and agree(a["identity"], row["identity"])]
        if len(similar) == 1:
            pairs[place] = similar[0][1], row
            alone.remove(similar[0])
    matched = [pairs.get(place, (None, row)) for place, row in new.items()]
    return [*matched, *((row, None) for _, row in alone)]


def _measured(row: JsonObject) -> tuple[Any, ...]:
    """What a row measures, apart from labels: problem and algorithm without versions and code, and grid point."""
    grid = ("backend", "nominal_alpha", "dimension", "metric", "component")
    oracle = row.get("settings") == ORACLE
    return canonical_json(without("source", row["identity"])), row["alpha"], oracle, *(row[key] for key in grid)


def _changed_code(a: JsonObject | None, b: JsonObject | None) -> list[str]:
    """Items of a row, as ``algorithm sgd``, whose code is not that of its counterpart."""
    if a is None or b is None:
        return []
    items = [{**row["identity"]["problem"], "algorithm": row["identity"]["algorithm"]} for row in (a, b)]
    return [
        f"{kind} {item['name']}"
        for kind, item in items[1].items()
        if isinstance(item, dict) and _sources(item) != _sources(items[0].get(kind))
    ]


def _sources(item: Any) -> list[Any]:
    """Hashes of the code of an item and of those inside it."""
    if not isinstance(item, dict):
        return []
    return [item.get("source"), *(_sources(inner) for inner in item.values() if isinstance(inner, dict))]


# -- verdicts -------------------------------------------------------------------------------------------------------------


def _judge_change(a: JsonObject | None, b: JsonObject | None) -> JsonObject:
    """Change of a value in percent with its standard error, its interval, its size in standard errors, and the verdict."""
    blank = dict.fromkeys(("change_percent", "error_percent", "dof", "interval", "z"))
    if a is None or b is None:
        return {**blank, "verdict": ONE_SIDED[a is None]}
    if a["mean"] is None:
        return {**blank, "verdict": "unchanged" if b["mean"] is None else "estimates now"}
    if b["mean"] is None:
        return {**blank, "verdict": GONE}
    shared = shared_instances(a["values"], b["values"])
    before, after = (_mean_on(shared, row) for row in (a, b))
    fails_more = _failed_share(b) > _failed_share(a)
    if before == after:
        return {**blank, "change_percent": 0.0, "z": 0.0, "verdict": FAILS_MORE if fails_more else "unchanged"}
    metric, percent = find_metric(b["metric"]), 100 / abs(before) if before else None
    numbers = {**blank, "change_percent": percent and percent * (after - before)}
    if metric.direction == "lower" and b["theory"] == 0 and max(before, after) <= b["target"]:
        return {**numbers, "verdict": FAILS_MORE if fails_more else "both at 0"}
    change, verdict = change_between(a["values"], b["values"]), "worse" if is_worse(metric, before, after) else "better"
    everywhere = all(is_worse(metric, a["values"][name], b["values"][name]) == (verdict == "worse") for name in shared)
    if change is not None:
        half = change.half_width(LEVEL)
        numbers |= {"interval": [change.value - half, change.value + half], "z": change.z, "dof": change.dof}
        numbers["error_percent"] = percent and percent * change.error
    if change is None or (abs(change.value) <= half and shared and everywhere):
        verdict = "differs" if verdict == "worse" else "no worse"
    elif abs(change.value) <= half:
        verdict = "within noise"
    return {**numbers, "verdict": FAILS_MORE if fails_more else verdict}


def _mean_on(instances: Sequence[str], row: JsonObject) -> float:
    """Mean of a row over these instances (none: over all of its own)."""
    if len(instances) in (0, len(row["values"])):
        return float(row["mean"])
    return float(np.mean([row["values"][name] for name in instances]))


def _failed_share(row: JsonObject) -> float:
    return failed_runs(row) / max(1, runs_of(row))


def _time_change(a: JsonObject | None, b: JsonObject | None) -> float | None:
    if not (a and b and a["trusted"] and b["trusted"] and a["machines"] == b["machines"]):
        return None
    if not a["per_iteration"] or not b["per_iteration"]:
        return None
    return float(100 * (b["per_iteration"] / a["per_iteration"] - 1))


def _badness(entry: JsonObject) -> tuple[float, float]:
    rank = ORDER.index(entry["verdict"]) if entry["verdict"] in ORDER else len(ORDER)
    return rank, -abs(entry["change_percent"] or 0.0)


def overall_changes(entries: Sequence[JsonObject]) -> list[JsonObject]:
    """Mean change of every metric of an algorithm over the sample ratios and dimensions of a problem, where there are several.

    A change that no row shows for certain may be clear in all of them together.
    """
    measured = [entry for entry in entries if entry["error_percent"] is not None]
    of_one = ("problem", "algorithm", "backend", "metric", "component")
    changes = []
    for place, members in grouped(measured, lambda entry: tuple(entry[key] for key in of_one)).items():
        direction = find_metric(members[0]["metric"]).direction
        if len(members) < 2 or direction == "one":  # a change of the mean is no distance from 1
            continue
        mean = mean_change([Change(e["change_percent"], e["error_percent"], e["dof"]) for e in members])
        half = mean.half_width(LEVEL)
        verdict = "worse" if (mean.value > 0) == (direction == "lower") else "better"
        changes.append({**dict(zip(of_one, place)), "rows": len(members), "change_percent": mean.value, "half_width": half,
                        "verdict": verdict if abs(mean.value) > half else "within noise"})  # fmt: skip
    return changes


def exceeds(entry: Mapping[str, Any], percent: float) -> bool:
    """Whether a row fails a limit: an error worse, or a comparable time slower, by more than ``percent``; or no counterpart."""
    slower = (entry.get("time_percent") or 0.0) > percent
    change = abs(entry["change_percent"]) if entry["change_percent"] is not None else math.inf
    failed = entry["verdict"] in (GONE, FAILS_MORE, *ONE_SIDED)
    return bool(slower or failed or (entry["verdict"] in ("worse", "differs") and change > percent))
