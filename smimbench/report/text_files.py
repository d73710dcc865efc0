"""Rows as CSV and Markdown, tables in LaTeX, safe from spreadsheet formulas, markup and terminal control characters."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from smimbench.files import printable
from smimbench.report.columns import Column, caption_with_marks, lay_out_columns, number
from smimbench.report.row_document import RowDocument

if TYPE_CHECKING:
    from rich.text import Text

_ROW_COLUMNS = [
    "problem", "algorithm", "backend", "alpha", "dimension", "n", "metric", "component", "mean", "sem", "theory",
    "theory_error", "difference", "z", "own_theory", "own_theory_error", "own_z", "bayes", "optimum", "ratio_to_bayes",
    "ratio_to_limit", "z_at_size", "seconds", "iterations", "per_iteration", "status_counts", "settings",
    "passes", "ratio_to_floor", "worth_passes",
]  # fmt: skip


def as_csv(
    rows: Sequence[RowDocument], extrapolated_rows: Sequence[RowDocument]
) -> str:
    """Format rows of results as CSV with all digits, followed by their extrapolations to infinite dimension (dimension ``inf``),
    if any.

    The columns ``refusal``, ``chi2`` and ``dof`` are there only then: they are blank for rows of a finite dimension.
    """
    column_names, rows = _with_limits(rows, extrapolated_rows)
    return csv_text(flat_rows(rows, column_names), column_names)


def flat_rows(
    rows: Sequence[RowDocument], column_names: Sequence[str] = _ROW_COLUMNS
) -> list[dict[str, object]]:
    """Convert rows of results to flat dicts of numbers and texts, with these columns."""
    return [
        {column_name: row.get(column_name) for column_name in column_names}
        | {"status_counts": _counts_text(row["status_counts"])}
        for row in rows
    ]


def as_markdown(
    rows: Sequence[RowDocument], extrapolated_rows: Sequence[RowDocument]
) -> str:
    """Format rows of results as a Markdown table with rounded numbers, followed by their extrapolations to infinite dimension, if
    any.
    """
    return markdown_table(*_with_limits(rows, extrapolated_rows))


def _with_limits(
    rows: Sequence[RowDocument], extrapolated_rows: Sequence[RowDocument]
) -> tuple[list[str], Sequence[RowDocument]]:
    """Return the column names and the rows of a table, with the extrapolated rows (limits at infinite dimension), if any,
    after them.
    """
    if not extrapolated_rows:
        return _ROW_COLUMNS, rows
    infinite_dimension_rows = [
        {
            **extrapolated_row,
            "dimension": "inf",
            "mean": extrapolated_row["value"],
            "sem": extrapolated_row["error"],
        }
        for extrapolated_row in extrapolated_rows
    ]
    return [*_ROW_COLUMNS, "refusal", "chi2", "dof"], [*rows, *infinite_dimension_rows]


def markdown_table(
    column_names: Sequence[str], rows: Sequence[Mapping[str, object]]
) -> str:
    """Format selected fields of rows as a Markdown table with rounded numbers."""
    table_lines = [_markdown_line(column_names), "|" + "---|" * len(column_names)]
    for row in rows:
        cells = (
            _escaped_markdown(_rounded_text(row.get(column_name)))
            for column_name in column_names
        )
        table_lines.append(_markdown_line(cells))
    return "\n".join(table_lines) + "\n"


def _markdown_line(cells: Iterable[str]) -> str:
    """Return a line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def _escaped_markdown(text: str) -> str:
    """Escape a text so that Markdown and HTML show it unchanged."""
    return re.sub(
        r"([\\`*\[\]|~!#])", r"\\\1", html.escape(_one_line(text), quote=False)
    )


def _rounded_text(cell: object) -> str:
    """Return a cell as text, with numbers rounded."""
    if isinstance(cell, dict):
        return _counts_text(cell)
    if isinstance(cell, float):
        return number(cell)
    return "" if cell is None else str(cell)


def _counts_text(counts: dict[str, int]) -> str:
    """Return numbers of runs by status as text, such as ``3 ok 1 failed``."""
    return " ".join(f"{count} {name}" for name, count in counts.items())


def csv_text(rows: Iterable[Mapping[str, object]], column_names: Sequence[str]) -> str:
    """Format selected fields of rows as CSV with all digits; missing fields are blank.

    Text is one printable line, with an apostrophe in front where a spreadsheet would take it for a formula.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(map(_spreadsheet_safe, column_names))
    writer.writerows(
        [_spreadsheet_safe(row.get(column_name)) for column_name in column_names]
        for row in rows
    )
    return buffer.getvalue()


def _spreadsheet_safe(cell: object) -> object:
    """Return a text on one line that no spreadsheet takes for a formula; other values unchanged."""
    if not isinstance(cell, str):
        return cell
    text = _one_line(cell)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text


def _one_line(text: str) -> str:
    """Return a text on one line, without control characters."""
    return " ".join(printable(text).split())


# -- in LaTeX -------------------------------------------------------------------------------------------------------------

_LATEX = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {c: f"${c}$" for c in "<>|"}
    | {c: f"{{{c}}}" for c in "[]*"}  # what follows the end of a row is an option of it
    | {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "÷": r"$\div$",
    }
)


def latex_table(
    title: str,
    columns: Iterable[str | Column],
    rows: Iterable[object],
    caption: str = "",
) -> str:
    """Make a floating LaTeX table of these ``rows``, which needs the package booktabs."""
    laid_out = lay_out_columns(columns, list(rows))
    caption = caption_with_marks(caption, laid_out)

    def latex_text(cell: str | Text) -> str:
        """Return the text of a cell, escaped for LaTeX."""
        return " ".join(printable(str(cell)).split()).translate(_LATEX)

    def latex_row(cells: Iterable[str | Text]) -> str:
        """Return cells as a row of a LaTeX table."""
        return " & ".join(map(latex_text, cells)) + r" \\"

    column_spec = "".join("l" if column.words else "r" for column, *_ in laid_out)
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{latex_text('; '.join(filter(None, (title, caption))))}}}",
            rf"\begin{{tabular}}{{{column_spec}}}",
            r"\toprule",
            latex_row(heading for _, heading, _ in laid_out),
            r"\midrule",
            *map(latex_row, zip(*(cells for *_, cells in laid_out))),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )
