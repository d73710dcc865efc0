"""Numbers that runs report beside their estimate, next to their theory: the eigenvalues of spectral methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smimbench.report.tables import number, plain_table, titled, uncertain

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
    return [_table(problem, name, members) for (problem, name), members in groups.items()]


def _table(problem: str, name: str, rows: list[dict[str, Any]]) -> RenderableType:
    backends = len({row["backend"] for row in rows}) > 1
    dims = len({row["dimension"] for row in rows}) > 1
    several = any(len(row["findings"][name]) > 1 for row in rows)
    columns = [("algorithm", "l"), ("alpha", "r")] + ([("D", "r")] if dims else [])
    columns += [("no.", "r")] if several else []
    columns += [("mean ± s.e.m.", "r"), ("theory", "r"), ("found", "r")]
    table = plain_table(columns)
    for row in rows:
        for i, entry in enumerate(row["findings"][name]):
            shown = [f"{row['algorithm']}@{row['backend']}" if backends else str(row["algorithm"])]
            shown += [f"{row['alpha']:.4g}"] + ([str(row["dimension"])] if dims else [])
            shown += [str(i + 1)] if several else []
            shown += [
                uncertain(entry["mean"], entry["sem"], 0.0) or "none",
                "none" if entry["theory"] is None else number(entry["theory"]),
                f"{entry['found']}/{entry['runs']}",
            ]
            table.add_row(*shown)
    note = "mean over the runs that found a value, and how many did; theory none: there is no such value in the limit of large D"
    return titled(table, f"{problem}: {name.replace('_', ' ')}", note)
