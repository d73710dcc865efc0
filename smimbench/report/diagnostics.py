"""Numbers that runs report beside their estimate, next to their theory: the eigenvalues of spectral methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smimbench.report.tables import make_table, number, place_columns, uncertain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

__all__ = ["diagnostic_tables"]


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
