"""The one writer of CSV: for tables, figures and the page."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

from smimbench.files import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["csv_text", "flat"]


def csv_text(rows: Iterable[Mapping[str, Any]], fields: Sequence[str]) -> str:
    """These fields of rows with all digits; blank where a row has none.

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
    text = flat(value)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text


def flat(text: str) -> str:
    """Text on one line, without characters that steer a terminal or turn its direction."""
    return " ".join(printable(text).split())
