"""Rows as CSV and Markdown, safe from spreadsheet formulas, Markdown markup and terminal control characters."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any

from smimbench.files import JsonObject, printable
from smimbench.report.columns import number

_ROW = [
    "problem", "algorithm", "backend", "alpha", "dimension", "n", "metric", "component", "mean", "sem", "theory",
    "theory_error", "difference", "z", "own_theory", "own_theory_error", "own_z", "bayes", "optimum", "ratio_to_bayes",
    "seconds", "iterations", "per_iteration", "status_counts", "settings",
]  # fmt: skip


def as_csv(document: JsonObject) -> str:
    """Rows of what ``show --json`` prints as CSV, all digits; then, at dimension ``inf``, what is extrapolated, if anything is.

    The columns ``refusal``, ``chi2`` and ``dof`` are there only then: they are blank for rows of a finite dimension.
    """
    fields, rows = _with_limits(document)
    return csv_text(flat_rows(rows, fields), fields)


def flat_rows(
    rows: Sequence[JsonObject], fields: Sequence[str] = _ROW
) -> list[JsonObject]:
    """Rows as dicts of numbers and texts."""
    return [
        {field: row.get(field) for field in fields}
        | {"status_counts": _counts(row["status_counts"])}
        for row in rows
    ]


def as_markdown(document: JsonObject) -> str:
    """The same rows as a Markdown table, rounded."""
    return markdown_table(*_with_limits(document))


def _with_limits(document: JsonObject) -> tuple[list[str], list[JsonObject]]:
    limits = [
        {**entry, "dimension": "inf", "mean": entry["value"], "sem": entry["error"]}
        for entry in document["extrapolated"]
    ]
    return [*_ROW, "refusal", "chi2", "dof"] if limits else _ROW, [
        *document["rows"],
        *limits,
    ]


def markdown_table(fields: Sequence[str], rows: Sequence[JsonObject]) -> str:
    """Selected fields of rows as a Markdown table, rounded."""
    lines = ["| " + " | ".join(fields) + " |", "|" + "---|" * len(fields)]
    lines += [
        "| " + " | ".join(_literal(_rounded(row.get(field))) for field in fields) + " |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def _literal(text: str) -> str:
    """Text escaped so that Markdown and HTML show it unchanged."""
    return re.sub(r"([\\`*\[\]|~!#])", r"\\\1", html.escape(_flat(text), quote=False))


def _rounded(value: Any) -> str:
    if isinstance(value, dict):
        return _counts(value)
    return (
        number(value)
        if isinstance(value, float)
        else str("" if value is None else value)
    )


def _counts(counts: dict[str, int]) -> str:
    return " ".join(f"{count} {name}" for name, count in counts.items())


def csv_text(rows: Iterable[JsonObject], fields: Sequence[str]) -> str:
    """Selected fields of rows with all digits; blank where a row has none.

    Text is one printable line, with an apostrophe in front where a spreadsheet would take it for a formula.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(map(_harmless, fields))
    writer.writerows([_harmless(row.get(field)) for field in fields] for row in rows)
    return buffer.getvalue()


def _harmless(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    text = _flat(value)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text


def _flat(text: str) -> str:
    return " ".join(printable(text).split())
