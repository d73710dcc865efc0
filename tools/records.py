"""Writes docs/record.schema.json, the JSON Schema of a record, from the code that checks records."""

from __future__ import annotations

import json
from pathlib import Path

from smimbench.run.record import record_schema

TARGET = Path(__file__).resolve().parent.parent / "docs" / "record.schema.json"


def text() -> str:
    """Return the JSON Schema of a record, as the file holds it."""
    return json.dumps(record_schema(), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text())
