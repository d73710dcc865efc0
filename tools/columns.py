"""Writes docs/columns.md from the columns of the tables: ``python tools/columns.py``. A test fails where the page is stale."""

from __future__ import annotations

from pathlib import Path

from smimbench.report.columns import columns_document

TARGET = Path(__file__).resolve().parent.parent / "docs" / "columns.md"


def text() -> str:
    """All columns as Markdown."""
    parts = [
        "# What the columns mean\n\n<!-- `smimbench help columns` prints this; written in smimbench/report/columns.py. -->\n"
    ]
    for title, columns in columns_document().items():
        lines = "\n".join(
            f"| {name} | {meaning} |" for name, meaning in columns.items()
        )
        parts.append(f"## {title}\n\n| column | meaning |\n|---|---|\n{lines}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
