"""What a notebook shows of rows: the verdict of each problem, then a table."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from smimbench.report.labels import letter_of
from smimbench.report.tables import marked_z, number, seconds
from smimbench.report.verdict import verdict_line, verdicts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["rows_html", "table_html"]

SHOWN = 40
"""Rows that a notebook shows; doubled, they fill two screens."""

_COLUMNS: tuple[tuple[str, Callable[[Mapping[str, Any]], str]], ...] = (
    ("problem", lambda r: r["problem"]),
    ("algorithm", lambda r: r["algorithm"]),
    ("alpha", lambda r: f"{r['alpha']:.4g}"),
    ("dimension", lambda r: str(r["dimension"])),
    ("metric", lambda r: r["metric"] + (f" {r['component']}" if r["component"] else "")),
    ("n", lambda r: str(r["n"])),
    ("mean", lambda r: number(r["mean"])),
    ("s.e.m.", lambda r: number(r["sem"])),
    ("predicted", lambda r: number(r["own_theory"])),
    ("z", lambda r: marked_z(r["own_z"], r["n"])),
    ("optimal", lambda r: number(r["bayes"])),
    ("error / optimal", lambda r: number(r["ratio_to_bayes"], 2)),
    ("per run", lambda r: seconds(r["seconds"])),
    ("status", lambda r: ", ".join(f"{count} {name}" for name, count in r["status_counts"].items())),
)


def rows_html(rows: Sequence[Mapping[str, Any]]) -> str:
    """Verdicts and the first rows as HTML; all text of others as it is written."""
    lines = "".join(f"<li>{html.escape(verdict_line(one))}</li>" for one in verdicts([dict(row) for row in rows]))
    names = [letter_of(rows) if name == "dimension" else name for name, _ in _COLUMNS]
    table = table_html(names, [[cell(row) for _, cell in _COLUMNS] for row in rows[:SHOWN]])
    return f"<ul>{lines}</ul>{table}<p>{min(SHOWN, len(rows))} of {len(rows)} rows</p>"


def table_html(names: Sequence[str], lines: Sequence[Sequence[Any]]) -> str:
    """A plain table; every cell as text."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(str(cell))}</td>' for cell in line)}</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
