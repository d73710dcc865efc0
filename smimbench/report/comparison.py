"""Two result folders side by side: worst first, with a verdict."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from smimbench.files import canonical_json
from smimbench.registry.metrics import find_metric, is_worse
from smimbench.report.labels import distinguish, grouped
from smimbench.report.tables import component_column, make_table, number, seconds, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from smimbench.report.tables import Column

__all__ = ["compare_rows", "comparison_table"]

CLEAR = 3.0
"""Standard errors of the difference from which on a change is clear. Doubled, only twice as large changes are found."""

SHOWN = ("problem", "algorithm", "backend", "alpha", "dimension", "metric", "component", "identity", "component_word")

ORDER = ("no estimate any more", "worse", "only before", "differs", "within noise", "only after")
"""Verdicts, worst first; all others come after them."""


def compare_rows(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Match rows of two tables by what was run and judge the change of each error and of each time.

    A label may have changed, and two different things may have one label: neither decides what is compared with what.

    Errors are ``worse`` or ``better`` when they differ by more than ``CLEAR`` standard errors of the difference (and
    ``differs`` where one of them has no standard error); times only when both are trusted and of one machine.
    """
    old, new = ({_place(row): row for row in rows} for rows in (before, after))
    found = []
    for place in dict.fromkeys((*old, *new)):
        a, b = old.get(place), new.get(place)
        entry: dict[str, Any] = {key: (b or a or {}).get(key) for key in SHOWN}
        for key, name in (("", "mean"), ("_sem", "sem"), ("_seconds", "per_iteration")):
            entry[f"before{key}"], entry[f"after{key}"] = (a or {}).get(name), (b or {}).get(name)
        entry["change_percent"], entry["z"], entry["verdict"] = _judge(entry, a, b)
        entry["time_percent"] = _time_change(a, b)
        found.append(entry)
    return sorted(distinguish(found), key=_badness)


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    """What was measured, whatever its label: problem and algorithm without versions, and where on the grid."""
    what = row.get("identity") or {"problem": row["problem"], "algorithm": row["algorithm"]}
    grid = ("backend", "alpha", "dimension", "metric", "component")
    return (canonical_json(what), *(row[key] for key in grid))


def _judge(
    entry: dict[str, Any], a: dict[str, Any] | None, b: dict[str, Any] | None
) -> tuple[float | None, float | None, str]:
    if a is None or b is None:
        return None, None, "only after" if a is None else "only before"
    before, after = a["mean"], b["mean"]
    if before is None and after is None:
        return None, None, "unchanged"
    if before is None or after is None:
        return None, None, "estimates now" if before is None else "no estimate any more"
    if before == after:
        return 0.0, 0.0, "unchanged"
    percent = 100 * (after - before) / abs(before) if before else None
    worse = is_worse(find_metric(entry["metric"]), before, after)
    if a["sem"] is None or b["sem"] is None:
        return percent, None, "differs"
    scale = math.hypot(a["sem"], b["sem"])
    z = (after - before) / scale if scale > 0 else math.inf
    if abs(z) < CLEAR:
        return percent, z, "within noise"
    return percent, z, "worse" if worse else "better"


def _time_change(a: dict[str, Any] | None, b: dict[str, Any] | None) -> float | None:
    comparable = a and b and a["trusted"] and b["trusted"] and a["machines"] == b["machines"]
    if not comparable or not a or not b or not a["per_iteration"] or not b["per_iteration"]:
        return None
    return float(100 * (b["per_iteration"] / a["per_iteration"] - 1))


def _badness(entry: dict[str, Any]) -> tuple[float, float]:
    rank = ORDER.index(entry["verdict"]) if entry["verdict"] in ORDER else len(ORDER)
    return rank, -abs(entry["change_percent"] or 0.0)


def exceeds(entry: dict[str, Any], percent: float) -> bool:
    """Whether a row fails a gate: an error clearly worse, or a comparable time slower, by more than ``percent``."""
    slower = entry["time_percent"] is not None and entry["time_percent"] > percent
    change = abs(entry["change_percent"]) if entry["change_percent"] is not None else math.inf
    gone = entry["verdict"] in ("no estimate any more", "only before")
    return bool(slower or gone or (entry["verdict"] in ("worse", "differs") and change > percent))


def comparison_table(entries: Sequence[dict[str, Any]]) -> list[RenderableType]:
    """One table per problem and metric."""
    tables = []
    for (problem, metric), members in grouped(entries, lambda e: (e["problem"], e["metric"])).items():
        columns: list[Column] = [
            ("algorithm", "l", lambda e: e["algorithm"]),
            ("alpha", "r", lambda e: f"{e['alpha']:.4g}"),
            *component_column(members),
            ("before", "r", lambda e: number(e["before"])),
            ("after", "r", lambda e: number(e["after"])),
            ("change", "r", lambda e: "" if e["change_percent"] is None else f"{e['change_percent']:+.1f}%"),
            ("z", "r", lambda e: shown(e["z"], "+.1f")),
            ("per iter.", "r", _time),
            ("verdict", "l", lambda e: e["verdict"]),
        ]
        note = "worst first; a clear change is one of 3 standard errors"
        tables.append(make_table(f"{problem}: {find_metric(metric).label}", columns, members, note))
    return tables


def _time(entry: dict[str, Any]) -> str:
    percent = entry["time_percent"]
    return "" if percent is None else f"{seconds(entry['after_seconds'])} {percent:+.0f}%"
