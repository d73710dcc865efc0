"""The table of a finished run, kept beside its ``run.json``: it can be shown where the plugin that made it is missing."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from smimbench.files import canonical_json, write_atomically

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["digest_of_table", "keep_table", "kept_table"]

NAME = "table/rows.json"
"""In a folder of its own: files beside ``run.json`` are records."""


def keep_table(folder: Path, document: dict[str, Any]) -> None:
    """Write the document that ``show --json`` prints, with a digest."""
    body = json.loads(json.dumps(document, default=str))
    text = json.dumps({"digest": digest_of_table(body), "document": body}, indent=1, allow_nan=False)
    write_atomically(folder / NAME, text.encode(), durable_name=False)


def kept_table(folder: Path) -> dict[str, Any] | None:
    """The document; None where there is none, or one that was changed after it was written."""
    try:
        found = json.loads((folder / NAME).read_text(encoding="utf-8"))
        document: dict[str, Any] = found["document"]
        return document if found["digest"] == digest_of_table(document) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def digest_of_table(document: dict[str, Any]) -> str:
    """SHA-256 of the canonical JSON of a table."""
    return hashlib.sha256(canonical_json(document).encode()).hexdigest()
