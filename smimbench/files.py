"""Text and bytes on disk: JSON in one canonical form, and files that appear whole or not at all."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any

__all__ = ["StoreError", "canonical_json", "plain_value", "sync_folder", "write_atomically"]


class StoreError(OSError):
    """The results folder cannot be used."""


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, default=plain_value)


def plain_value(value: Any) -> Any:
    """What JSON can hold of an array, a NumPy number or a set.

    Raises
    ------
    TypeError
        For anything else.
    """
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise TypeError(f"a parameter must be made of numbers, strings, lists and tables, got {type(value).__name__}")


def write_atomically(path: Path, data: bytes, *, durable_name: bool = True) -> None:
    """Write to a temporary name, sync, rename: a reader sees the old file or the new one, whatever is killed when.

    ``durable_name`` makes the new name outlive a power cut as well; it costs as much as the rest.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp")
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        if durable_name:
            sync_folder(path.parent)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}") from error


def sync_folder(folder: Path) -> None:
    """Make the rename itself durable, where the system can."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)
