"""Comparison of two tables for ``compare``: changes of error and time, worst first, and whether a limit is exceeded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from smimbench.files import JsonObject, canonical_json
from smimbench.registry.metrics import find_metric, is_worse
from smimbench.report.labels import distinguish
from smimbench.report.statistics import change_between

LEVEL = 0.997
"""Level of the intervals by which a change is clear. At 0.9985, with half as many false alarms, they are a tenth wider."""

GONE = "no estimate any more"


ORDER = (GONE, "worse", "only before", "differs", "within noise", "only after")
"""Verdicts, worst first; all others come after them."""


SHARED = (
    "problem", "algorithm", "backend", "alpha", "dimension", "metric", "component", "identity", "component_word",
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

    A label may have changed, and two different things may have one label: neither decides what is compared with what.

    A change is clear where its interval does not hold 0: of the differences on the same instances, or (another root seed)
    of two independent means. A clear change is ``better`` or ``worse`` by the direction of the metric; one in the wrong
    direction that ends nearer to theory (an error that was below it by chance) is ``nearer to theory``. Where theory is
    0, errors that both reached the suite's target are ``both at 0``. Times are compared only when both are trusted and of
    one machine. Both tables also contribute ``own_theory`` with ``before_own_z`` and ``after_own_z``
    (``no_theory``: why there is none), and ``bayes`` with ``before_ratio_to_bayes`` and ``after_ratio_to_bayes``.
    """
    old, new = ({_compared_place(row): row for row in rows} for rows in (before, after))
    found = []
    for place in dict.fromkeys((*old, *new)):
        a, b = old.get(place), new.get(place)
        entry = {key: (b or old[place])[key] for key in SHARED}
        for key, name in EACH.items():
            entry |= {f"before{key}": a and a[name], f"after{key}": b and b[name]}
        found.append(entry | _judge_change(a, b) | {"time_percent": _time_change(a, b)})
    return sorted(distinguish(found), key=_badness)


def _compared_place(row: JsonObject) -> tuple[Any, ...]:
    """What a row measures, apart from labels: problem and algorithm without versions, and grid point."""
    grid = ("backend", "alpha", "dimension", "metric", "component")
    return (canonical_json(row["identity"]), *(row[key] for key in grid))


def _judge_change(a: JsonObject | None, b: JsonObject | None) -> JsonObject:
    """Change of a value, its interval, its size in standard errors, and the verdict."""
    found: JsonObject = dict.fromkeys(("change_percent", "interval", "z"))
    if a is None or b is None:
        return {**found, "verdict": "only after" if a is None else "only before"}
    before, after, theory = a["mean"], b["mean"], b["theory"]
    if before is None and after is not None:
        return {**found, "verdict": "estimates now"}
    if before is None or after is None or before == after:
        same = {} if before is None or after is None else {"change_percent": 0.0, "z": 0.0}
        return {**found, **same, "verdict": "unchanged" if before == after else GONE}
    metric = find_metric(b["metric"])
    found["change_percent"] = 100 * (after - before) / abs(before) if before else None
    wrong_way = is_worse(metric, before, after)
    nearer = theory is not None and abs(after - theory) <= abs(before - theory)
    if metric.direction == "lower" and theory == 0 and max(before, after) <= b["target"]:
        return {**found, "verdict": "both at 0"}
    change = change_between(a["values"], b["values"], LEVEL)
    if change is None:
        return {**found, "verdict": "differs" if wrong_way and not nearer else "no worse"}
    found |= {"interval": [change.value - change.half, change.value + change.half], "z": change.z}
    judged = "better" if not wrong_way else "nearer to theory" if nearer else "worse"
    return {**found, "verdict": "within noise" if abs(change.value) <= change.half else judged}


def _time_change(a: JsonObject | None, b: JsonObject | None) -> float | None:
    if not (a and b and a["trusted"] and b["trusted"] and a["machines"] == b["machines"]):
        return None
    if not a["per_iteration"] or not b["per_iteration"]:
        return None
    return float(100 * (b["per_iteration"] / a["per_iteration"] - 1))


def _badness(entry: JsonObject) -> tuple[float, float]:
    rank = ORDER.index(entry["verdict"]) if entry["verdict"] in ORDER else len(ORDER)
    return rank, -abs(entry["change_percent"] or 0.0)


def exceeds(entry: JsonObject, percent: float) -> bool:
    """Whether a row fails a limit: an error clearly worse, or a comparable time slower, by more than ``percent``."""
    slower = entry["time_percent"] is not None and entry["time_percent"] > percent
    change = abs(entry["change_percent"]) if entry["change_percent"] is not None else math.inf
    gone = entry["verdict"] in (GONE, "only before")
    return bool(slower or gone or (entry["verdict"] in ("worse", "differs") and change > percent))
