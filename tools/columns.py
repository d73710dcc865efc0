"""Writes the columns of all tables as Markdown, a page of the site; ``smimbench help columns`` prints the same."""

from __future__ import annotations

from smimbench.report.wording import columns_document


def columns() -> str:
    """Return the columns of every kind of table, with their meanings, as Markdown sections."""
    sections = ["# What the columns mean\n"]
    for title, meanings in columns_document().items():
        lines = "\n".join(
            f"| {name} | {meaning} |" for name, meaning in meanings.items()
        )
        sections.append(f"## {title}\n\n| column | meaning |\n|---|---|\n{lines}\n")
    return "\n".join(sections)
