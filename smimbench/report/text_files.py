"""Rows as CSV and Markdown, safe from spreadsheet formulas, Markdown markup and terminal control characters."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Iterable, Mapping, Sequence

from smimbench.files import printable
from smimbench.report.columns import number
from smimbench.report.row import RowDocument

_ROW = [
    "problem", "algorithm", "backend", "alpha", "dimension", "n", "metric", "component", "mean", "sem", "theory",
    "theory_error", "difference", "z", "own_theory", "own_theory_error", "own_z", "bayes", "optimum", "ratio_to_bayes",
    "seconds", "iterations", "per_iteration", "status_counts", "settings",
]  # fmt: skip


def as_csv(rows: Sequence[RowDocument], limits: Sequence[RowDocument]) -> str:
    """Format rows as CSV with all digits, followed by their limits at infinite dimension (dimension ``inf``), if any.

    The columns ``refusal``, ``chi2`` and ``dof`` are there only then: they are blank for rows of a finite dimension.
    """
    fields, rows = _with_limits(rows, limits)
    return csv_text(flat_rows(rows, fields), fields)


def flat_rows(
    rows: Sequence[RowDocument], fields: Sequence[str] = _ROW
) -> list[dict[str, object]]:
    """Convert rows to flat dicts of numbers and texts."""
    return [
        {field: row.get(field) for field in fields}
        | {"status_counts": _counts(row["status_counts"])}
        for row in rows
    ]


def as_markdown(rows: Sequence[RowDocument], limits: Sequence[RowDocument]) -> str:
    """Format rows as a Markdown table with rounded numbers, followed by their limits at infinite dimension, if any."""
    return markdown_table(*_with_limits(rows, limits))


def _with_limits(
    rows: Sequence[RowDocument], limits: Sequence[RowDocument]
) -> tuple[list[str], Sequence[RowDocument]]:
    if not limits:
        return _ROW, rows
    infinite = [
        {**limit, "dimension": "inf", "mean": limit["value"], "sem": limit["error"]}
        for limit in limits
    ]
    return [*_ROW, "refusal", "chi2", "dof"], [*rows, *infinite]


def markdown_table(fields: Sequence[str], rows: Sequence[Mapping[str, object]]) -> str:
    """Format selected fields of rows as a Markdown table with rounded numbers."""
    lines = [_markdown_line(fields), "|" + "---|" * len(fields)]
    for row in rows:
        cells = (_literal(_rounded(row.get(field))) for field in fields)
        lines.append(_markdown_line(cells))
    return "\n".join(lines) + "\n"


def _markdown_line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _literal(text: str) -> str:
    """Escape a text so that Markdown and HTML show it unchanged."""
    return re.sub(r"([\\`*\[\]|~!#])", r"\\\1", html.escape(_flat(text), quote=False))


def _rounded(cell: object) -> str:
    if isinstance(cell, dict):
        return _counts(cell)
    if isinstance(cell, float):
        return number(cell)
    return "" if cell is None else str(cell)


def _counts(counts: dict[str, int]) -> str:
    return " ".join(f"{count} {name}" for name, count in counts.items())


def csv_text(rows: Iterable[Mapping[str, object]], fields: Sequence[str]) -> str:
    """Format selected fields of rows as CSV with all digits; missing fields are blank.

    Text is one printable line, with an apostrophe in front where a spreadsheet would take it for a formula.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(map(_harmless, fields))
    writer.writerows([_harmless(row.get(field)) for field in fields] for row in rows)
    return buffer.getvalue()


def _harmless(cell: object) -> object:
    if not isinstance(cell, str):
        return cell
    text = _flat(cell)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text


def _flat(text: str) -> str:
    return " ".join(printable(text).split())
