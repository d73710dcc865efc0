"""Cells to records: what is missing is run, in this process, in spawned ones or on a cluster, and stored as it finishes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from smimbench.backend import machine
from smimbench.backend.roofline import ceilings
from smimbench.registry.registry import Registry, get_registry
from smimbench.run.cell import run_cell
from smimbench.run.dask import on_dask
from smimbench.run.processes import in_processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from smimbench.run.store import Store
    from smimbench.suite.cells import Cell, Suite

__all__ = ["missing_cells", "run_cells", "shared_document"]


def missing_cells(
    cells: Sequence[Cell], records: dict[str, dict[str, Any]], *, timing: bool = False
) -> list[Cell]:
    """Cells without a record; in timing mode, without trusted times of this machine."""
    suffix = f".timing-{machine.fingerprint()}" if timing else ""
    timed = {stem.partition(".")[0] for stem in records}
    return [c for c in cells if (f"{c.key}{suffix}" not in records if timing else c.key not in timed)]


def run_cells(
    cells: Sequence[Cell],
    store: Store,
    *,
    workers: int = 1,
    timing: bool = False,
    threads: int = 1,
    registry: Registry | None = None,
    dask: str | None = None,
    on_record: Callable[[dict[str, Any]], None] | None = None,
) -> list[dict[str, Any]]:
    """Run cells and store each as it finishes.

    Parameters
    ----------
    workers : int
        Processes (spawned); 1 runs in this process. Timing mode is always serial.
    dask : str or None
        Address of a Dask scheduler whose workers run the cells; they need smimbench and the same plugins, not the
        results folder.
    on_record : callable
        Called with every record.

    Raises
    ------
    BackendError
        If Dask is not installed or the scheduler does not answer.
    """
    registry = registry or get_registry()
    records = []
    workers = 1 if timing else min(workers, len(cells))
    if timing:  # a time that is trusted can also be judged
        for backend in sorted({cell.backend for cell in cells}):
            ceilings(backend, threads)
    source: Iterator[dict[str, Any]]
    if dask is not None:
        source = on_dask(cells, dask, threads, registry)
    elif workers <= 1:
        source = (run_cell(c, timing=timing, threads=threads, registry=registry) for c in cells)
    else:
        source = in_processes(cells, workers, threads, registry)
    for record in source:
        store.write(record)
        records.append(record)
        if on_record:
            on_record(record)
    store.sync()
    return records


def shared_document(suite: Suite) -> dict[str, Any]:
    """What ``run.json`` holds."""
    return {
        "suite": suite.name,
        "title": suite.title,
        "text": suite.text,
        "overrides": list(suite.overrides),
        "only": [f"{k}={v}" for k, v in suite.only],
        "run": suite.run.model_dump(mode="json"),
        "versions": machine.versions(),
        "machine": machine.machine_info(),
        "fingerprint": machine.fingerprint(),
        "git_commit": machine.git_commit(),
        "written": time.time(),
    }
