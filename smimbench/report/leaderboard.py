"""All algorithms of a problem side by side: error, ratio to the Bayes-optimal one, and time to come near it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smimbench.report.tables import number, plain_table, seconds, statuses, titled, uncertain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

__all__ = ["leaderboard_tables"]

LEAST = 3
"""Algorithms from which on a leaderboard is shown; with 6, most suites would have none."""

NEARNESS = ("0.5", "0.2", "0.05")
"""How near to the Bayes-optimal error, relative: keys of ``time_to_theory`` of a row."""


def leaderboard_tables(rows: Sequence[dict[str, Any]]) -> list[RenderableType]:
    """Error and time, then iterations, of every problem that at least ``LEAST`` algorithms were run on.

    Best error first at every sample ratio.
    ``rows`` as from ``error_rows``; only those of the metric ``mse`` are shown. With several components the table has the
    component whose error is largest.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["metric"] == "mse":
            groups.setdefault(row["problem"], []).append(row)
    tables = []
    for problem, members in groups.items():
        if len({row["algorithm"] for row in members}) >= LEAST:
            ranked = sorted(_largest(members), key=_rank)
            tables += [_table(problem, ranked), _iterations(problem, ranked)]
    return tables


def _rank(row: dict[str, Any]) -> tuple[float, ...]:
    return row["alpha"], row["dimension"], float("inf") if row["mean"] is None else row["mean"]


def _largest(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        key = (row["algorithm"], row["backend"], row["alpha"], row["dimension"])
        if key not in found or (row["mean"] or 0.0) > (found[key]["mean"] or 0.0):
            found[key] = row
    return list(found.values())


def _table(problem: str, rows: list[dict[str, Any]]) -> RenderableType:
    backends = len({row["backend"] for row in rows}) > 1
    dims = len({row["dimension"] for row in rows}) > 1
    several = any(row["component"] is not None for row in rows)
    columns = [("alpha", "r")] + ([("D", "r")] if dims else [])
    columns += [("algorithm", "l")] + ([(rows[0].get("component_word", "component"), "r")] if several else [])
    columns += [
        ("MSE ± s.e.m.", "r"),
        ("/Bayes", "r"),
        ("to 50%", "r"),
        ("to 20%", "r"),
        ("to 5%", "r"),
        ("status", "l"),
    ]
    table = plain_table(columns)
    for row in rows:
        shown: list[Any] = [f"{row['alpha']:.4g}"] + ([str(row["dimension"])] if dims else [])
        shown += [f"{row['algorithm']}@{row['backend']}" if backends else str(row["algorithm"])]
        shown += [str(row["component"] or "")] if several else []
        ratio = row["ratio_to_bayes"]
        shown += [uncertain(row["mean"], row["sem"], 0.0), "" if ratio is None else number(ratio, 2)]
        for epsilon in NEARNESS:
            reached = row["time_to_theory"][epsilon]["seconds"]
            shown.append("never" if reached is None else seconds(reached))
        table.add_row(*shown, statuses(row["status_counts"]))
    note = (
        "smallest error first; /Bayes: error over the Bayes-optimal one; to 50%: median time to an error at most 50% above it "
        "(below run.target where it is 0); runs that never get there count as infinity"
    )
    return titled(table, f"{problem}: all algorithms", note)


def _iterations(problem: str, rows: list[dict[str, Any]]) -> RenderableType:
    backends = len({row["backend"] for row in rows}) > 1
    dims = len({row["dimension"] for row in rows}) > 1
    columns = [("alpha", "r")] + ([("D", "r")] if dims else []) + [("algorithm", "l")]
    columns += [(f"to {100 * float(epsilon):.0f}%", "r") for epsilon in NEARNESS] + [("made", "r")]
    table = plain_table(columns)
    for row in rows:
        shown = [f"{row['alpha']:.4g}"] + ([str(row["dimension"])] if dims else [])
        shown += [f"{row['algorithm']}@{row['backend']}" if backends else str(row["algorithm"])]
        for epsilon in NEARNESS:
            reached = row["time_to_theory"][epsilon]
            count = "never" if reached["iterations"] is None else number(reached["iterations"], 0)
            shown.append(f"{count} ({100 * (reached['fraction'] or 0):.0f}%)")
        shown.append("" if row["iterations"] is None else number(row["iterations"], 0))
        table.add_row(*shown)
    note = "median number of iterations to come as near, and the share of runs that got there; made: mean number of iterations"
    return titled(table, f"{problem}: iterations to come near theory", note)
