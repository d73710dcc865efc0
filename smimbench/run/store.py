"""Records on disk: one immutable file per finished cell, written atomically, never trusted without its digest.

Many workers, many machines and a network file system need no lock: a file's name is the content address of its cell,
and it appears whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.files import canonical_json, sync_folder, write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Store", "theory_folder"]

FORMAT = 1
"""Layout of a record; raised when older readers could not understand it, and then every cell runs anew."""
LONG = 300
"""Iterations above which a trajectory goes to a file of its own; doubled, records get twice as long to read as text."""
ASIDE = "set-aside"
"""Folder for files that cannot be trusted."""


class Store:
    """A folder of records.

    Parameters
    ----------
    folder : Path
        ``results/<suite>``; made on first write.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.complaints: list[str] = []

    # -- writing ------------------------------------------------------------------------------------------------

    def write(self, record: dict[str, Any]) -> Path:
        """Store one record; a long trajectory goes to an ``.npz`` beside it, first, so that the record is never short."""
        record = {"format": FORMAT, **_plain(record)}
        name = _file_stem(record)
        trajectory = record.get("trajectory")
        if trajectory and len(trajectory["iteration"]) > LONG:
            arrays = {key: np.asarray(_from_plain(values), dtype=float) for key, values in trajectory.items()}
            data = _npz(arrays)
            file = f"{name}.npz"
            write_atomically(self.folder / file, data)
            record["trajectory"] = {"file": file, "sha256": hashlib.sha256(data).hexdigest()}
        record["digest"] = _digest(record)
        path = self.folder / f"{name}.json"
        write_atomically(path, (json.dumps(record, indent=1, allow_nan=False) + "\n").encode(), durable_name=False)
        return path

    def sync(self) -> None:
        """Make the names of all records durable; after a power cut before this, the latest cells just run again."""
        sync_folder(self.folder)

    def write_shared(self, document: dict[str, Any]) -> None:
        """Write ``run.json``: what all cells share."""
        write_atomically(self.folder / "run.json", (json.dumps(_plain(document), indent=1) + "\n").encode())

    def read_shared(self) -> dict[str, Any]:
        """Read ``run.json``; empty if there is none or it is torn."""
        try:
            found: dict[str, Any] = json.loads((self.folder / "run.json").read_text())
            return found if isinstance(found, dict) else {}
        except (OSError, ValueError):
            return {}

    # -- reading ------------------------------------------------------------------------------------------------

    def load(self, *, set_aside: bool = False) -> dict[str, dict[str, Any]]:
        """All records that can be trusted, by file stem.

        Parameters
        ----------
        set_aside : bool
            Move files that cannot be trusted into ``set-aside/``; otherwise they are only reported. Never deleted.
        """
        self.complaints = []
        records: dict[str, dict[str, Any]] = {}
        if not self.folder.is_dir():
            return records
        for path in sorted(self.folder.glob("*.json")):
            if path.name == "run.json":
                continue
            try:
                records[path.stem] = self._read(path)
            except (OSError, ValueError, KeyError, TypeError) as error:
                self._complain(path, str(error) or type(error).__name__, set_aside)
        return records

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            raise ValueError("torn or not JSON") from None
        if not isinstance(record, dict) or "digest" not in record or "cell" not in record:
            raise ValueError("not a record of smimbench")
        if record.get("format") != FORMAT:
            raise ValueError(f"written in format {record.get('format')}, this smimbench reads {FORMAT}")
        if _digest(record) != record["digest"]:
            raise ValueError("changed after it was written (digest does not match)")
        if _file_stem(record) != path.stem:
            raise ValueError("renamed: its name is not the key of its cell")
        return record

    def trajectory(self, record: dict[str, Any]) -> dict[str, np.ndarray[Any, Any]] | None:
        """Trajectory of a record, from its ``.npz`` if it is long; None (and a complaint) if that file is not right."""
        found = record.get("trajectory")
        if not found:
            return None
        if "file" not in found:
            return {key: np.asarray(_from_plain(values), dtype=float) for key, values in found.items()}
        path = self.folder / str(found["file"])
        try:
            data = path.read_bytes()
        except OSError:
            self.complaints.append(f"{path}: trajectory is missing")
            return None
        if hashlib.sha256(data).hexdigest() != found["sha256"]:
            self.complaints.append(f"{path}: trajectory was changed after it was written")
            return None
        with np.load(path, allow_pickle=False) as arrays:
            return {key: arrays[key] for key in arrays.files}

    def _complain(self, path: Path, reason: str, set_aside: bool) -> None:
        line = f"{path}: {reason}; not used"
        if set_aside:
            line += f", moved to {self._move_aside(path)}"
        self.complaints.append(line)

    def retire(self, stems: Iterable[str]) -> None:
        """Move records out of the way so that their cells run again; nothing is deleted."""
        for stem in stems:
            self._move_aside(self.folder / f"{stem}.json")

    def _move_aside(self, path: Path) -> Path:
        """Move a record, and the trajectory beside it, under names that nothing will overwrite."""
        folder = self.folder / ASIDE
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / f"{path.stem}.{uuid.uuid4().hex[:8]}.json"
        beside = path.with_suffix(".npz")
        if beside.exists():
            os.replace(beside, target.with_suffix(".npz"))
        os.replace(path, target)
        return target


def _file_stem(record: dict[str, Any]) -> str:
    """The cell's key; timings that may be trusted are a file of their own per machine."""
    timing = record.get("timing") or {}
    suffix = f".timing-{timing['machine']}" if timing.get("trusted") else ""
    return f"{record['key']}{suffix}"


def _digest(record: dict[str, Any]) -> str:
    body = {k: v for k, v in record.items() if k != "digest"}
    return hashlib.sha256(canonical_json(body).encode()).hexdigest()


def _npz(arrays: dict[str, np.ndarray[Any, Any]]) -> bytes:
    import io

    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def _plain(value: Any) -> Any:
    """JSON-ready copy; numbers that JSON cannot hold become null."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _from_plain(value: Any) -> Any:
    """The inverse for arrays: null is not-a-number."""
    if isinstance(value, list):
        return [_from_plain(v) for v in value]
    return math.nan if value is None else value


def theory_folder(store: Store) -> Path:
    """Where answers of theory are kept beside the records: one folder for all suites under the same ``--results``."""
    return store.folder.parent / "theory"
