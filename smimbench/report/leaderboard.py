"""Tables of all algorithms of a problem side by side, and of other numbers that runs report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smimbench.report.labels import grouped, place
from smimbench.report.tables import component_column, make_table, number, place_columns, seconds, statuses, uncertain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from smimbench.report.tables import Column


__all__ = ["diagnostic_tables", "leaderboard_tables"]


def leaderboard_tables(rows: Sequence[dict[str, Any]]) -> list[RenderableType]:
    """Error and time, then iterations, of every problem that at least ``LEAST`` algorithms were run on.

    Best error first at every sample ratio.
    ``rows`` as from ``error_rows``; only those of the metric ``mse`` are shown. With several components the table has the
    component whose error is largest.
    """
    groups = grouped((row for row in rows if row["metric"] == "mse"), lambda row: row["problem"])
    tables = []
    for problem, members in groups.items():
        if len({row["algorithm"] for row in members}) >= 3:
            largest = (max(same, key=lambda row: row["mean"] or 0.0) for same in grouped(members, place).values())
            tables += _leaderboard_pair(problem, sorted(largest, key=_rank))
    return tables


def _rank(row: dict[str, Any]) -> tuple[float, ...]:
    return row["alpha"], row["dimension"], float("inf") if row["mean"] is None else row["mean"]


def _leaderboard_pair(problem: str, rows: list[dict[str, Any]]) -> list[RenderableType]:
    algorithm, *point = place_columns(rows)
    errors: list[Column] = [
        *point,
        algorithm,
        *component_column(rows),
        ("MSE ± s.e.m.", "r", lambda r: uncertain(r["mean"], r["sem"], 0.0)),
        ("error / optimal", "r", lambda r: number(r["ratio_to_bayes"], 2)),
        *(
            (_head(e), "r", lambda r, e=e: seconds(r["time_to_theory"][e]["seconds"]) or "never")
            for e in ("0.5", "0.2", "0.05")
        ),
        ("status", "l", lambda r: statuses(r["status_counts"])),
    ]
    iterations: list[Column] = [
        *point,
        algorithm,
        *((_head(e), "r", lambda r, e=e: _steps(r["time_to_theory"][e])) for e in ("0.5", "0.2", "0.05")),
        ("made", "r", lambda r: number(r["iterations"], 0)),
    ]
    return [
        make_table(f"{problem}: all algorithms", errors, rows, "smallest error first"),
        make_table(f"{problem}: iterations to come near theory", iterations, rows),
    ]


def _head(epsilon: str) -> str:
    return f"to {float(epsilon):.0%}"


def _steps(reached: dict[str, Any]) -> str:
    return f"{number(reached['iterations'], 0) or 'never'} ({reached['fraction'] or 0:.0%})"


def diagnostic_tables(rows: Sequence[dict[str, Any]]) -> list[RenderableType]:
    """One table per problem and kind of number, from rows of the metric that comes first."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        if row["metric"] == rows[0]["metric"] and row["component"] in (None, 1):
            for name in row.get("findings") or {}:
                groups.setdefault((row["problem"], name), []).append(row)
    return [_diagnostic_table(problem, name, members) for (problem, name), members in groups.items()]


def _diagnostic_table(problem: str, name: str, rows: list[dict[str, Any]]) -> RenderableType:
    entries = [{**row, **entry, "no": i} for row in rows for i, entry in enumerate(row["findings"][name], 1)]
    columns = place_columns(rows)
    if any(entry["no"] > 1 for entry in entries):
        columns.append(("no.", "r", lambda e: str(e["no"])))
    columns += [
        ("mean ± s.e.m.", "r", lambda e: uncertain(e["mean"], e["sem"], 0.0) or "none"),
        ("theory", "r", lambda e: number(e["theory"]) or "none"),
        ("found", "r", lambda e: f"{e['found']}/{e['runs']}"),
    ]
    return make_table(f"{problem}: {name.replace('_', ' ')}", columns, entries)
