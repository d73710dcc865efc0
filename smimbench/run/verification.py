"""Whether stored results are what they say, for ``verify``: every byte of every file, and a rerun of a sample of cells."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.backend import machine
from smimbench.run.loop import Status
from smimbench.run.processes import in_processes
from smimbench.run.record import text_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smimbench.registry.registry import Registry
    from smimbench.run.store import Store
    from smimbench.suite.cells import Cell

__all__ = ["Verification", "files", "rerun"]

REPEATABLE = (Status.OK.value, Status.NOT_CONVERGED.value, Status.DIVERGED.value, Status.SKIPPED.value)
"""Ends that do not depend on a clock, on memory or on what else a machine does."""
ELSEWHERE = 1e-5
"""Relative difference of numbers from another machine, or another number of threads, that is no disagreement. Doubled, a
change of the sixth digit of a record from elsewhere goes unnoticed."""


@dataclass
class Verification:
    """What was looked at, and what does not agree, one line each."""

    checked: int = 0
    wrong: list[str] = field(default_factory=list)

    def add(self, complaints: Sequence[str]) -> None:
        """One more thing that was looked at."""
        self.checked += 1
        self.wrong.extend(complaints)


def files(store: Store) -> Verification:
    """Every record and trajectory, to the last byte: a digit that was changed is named by its file."""
    found = Verification()
    records = store.load()
    found.checked += len(records)
    found.wrong += store.complaints
    for stem, record in records.items():
        path = store.folder / f"{stem}.json"
        if path.read_bytes() != text_of(record).encode():
            found.wrong.append(f"{path}: its text is not what smimbench wrote, though its numbers are")
        before = len(store.complaints)
        if "file" in (record.get("trajectory") or {}):
            store.trajectory(record)
            found.add(store.complaints[before:])
    return found


def rerun(cells: Sequence[Cell], store: Store, registry: Registry, *, count: int, seed: int) -> Verification:
    """Run so many of the stored cells again, drawn at random, and compare all that does not come from a clock."""
    found = Verification()
    records = store.load()
    known = [cell for cell in cells if (records.get(cell.key) or {}).get("status") in REPEATABLE]
    chosen = np.random.default_rng(seed).permutation(len(known))[:count]
    threads = {cell.key: int(records[cell.key]["timing"].get("threads") or 1) for cell in known}
    for number in sorted(set(threads.values())):
        part = [known[i] for i in chosen if threads[known[i].key] == number]
        for new in in_processes([(cell,) for cell in part], 1, number, registry) if part else ():
            old = records[new["key"]]
            timing = old.get("timing") or {}
            same = timing.get("machine") == machine.fingerprint() and old["versions"] == new["versions"]
            differing = list(_differences(_timeless(old), _timeless(new), 0.0 if same else ELSEWHERE))
            path = store.folder / f"{new['key']}.json"
            found.add([f"{path}: run again, {line}" for line in differing[:3]])
    return found


def _timeless(record: dict[str, Any]) -> dict[str, Any]:
    """What of a record does not come from a clock or a place."""
    names = ("status", "metrics", "samples", "sample_ratio", "iterations", "restarts", "final", "blank")
    return json.loads(json.dumps({name: record.get(name) for name in names}))  # type: ignore[no-any-return]


def _differences(old: Any, new: Any, tolerance: float, where: str = "") -> Iterator[str]:
    """Where two documents differ, in words; numbers may differ by so much, relative."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            yield from _differences(old.get(key), new.get(key), tolerance, f"{where}.{key}" if where else key)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, pair in enumerate(zip(old, new)):
            yield from _differences(*pair, tolerance, f"{where}[{i}]")
    elif isinstance(old, float) and isinstance(new, float):
        if not math.isclose(old, new, rel_tol=tolerance, abs_tol=tolerance):
            yield f"{where} is {new!r}, the record says {old!r}"
    elif old != new:
        yield f"{where} is {new!r}, the record says {old!r}"
