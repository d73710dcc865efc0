"""Runs cells in supervised processes, with one retry if a process dies; several runs share a folder by claim files.

A claim is a small file that is made by one process only (``O_EXCL``, also on network file systems), says which, and is touched as
long as its cell runs. One whose date is ``STALE`` seconds away from now, in the past or, by another clock, in the future, belongs
to nobody. A claim decides who computes, never what counts: two runs that both compute a cell write the same record.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from smimbench.files import printable, unless
from smimbench.registry.registry import get_registry
from smimbench.run.batches import batches
from smimbench.run.cell import lost_record
from smimbench.run.executor import (
    NO_LIMITS,
    EndedTask,
    Executor,
    Limits,
    OnProgress,
    RunningTask,
    Task,
)
from smimbench.run.loop import Status
from smimbench.run.record import Record, record_from
from smimbench.suite.cells import Cell

OnWait = Callable[[str], None]

WORKER = "smimbench.run.cell"
"""Module that runs cells in the processes."""

STALE = 60.0
"""Seconds after which an untouched claim belongs to nobody; doubled, the cells of a killed run are taken up that much later."""


def run_in_processes(
    cells: Sequence[Cell],
    workers: int,
    threads: int,
    *,
    timing: bool = False,
    limits: Limits = NO_LIMITS,
    claims: ClaimFiles | None = None,
    on_progress: OnProgress | None = None,
    on_wait: OnWait | None = None,
) -> Iterator[Record]:
    """Run cells in ``workers`` processes at a time, with this number of BLAS ``threads`` each and within ``limits``, and
    yield each record as it finishes. ``claims`` share the cells with other runs, ``on_progress`` gets the running cells,
    ``on_wait`` a message when another run has claimed all that are left; ``timing`` asks for trusted times.

    With ``claims`` those that another run has taken are left to it, and are taken over if it goes away. ``on_progress`` is told
    several times a second what is being run, ``on_wait`` for whom there is nothing to do but wait, whenever that changes.
    """
    unfinished_keys = {cell.key for cell in cells}
    claim_owners: set[str] = set()
    single_cells: list[Cell] = []

    def may_begin(task: Task) -> bool | None:
        """Whether the cells of a ``task`` may run now: False if another run has finished one, or claimed one while groups of
        cells are run; None while another run has claimed the only one.
        """
        cell_keys = [cell.key for cell in task.arguments]
        if claims is None or all(map(claims.claim, cell_keys)):
            return True
        if has_groups:
            # Cells that no other run has claimed run next, one by one; only then are the others waited for.
            single_cells.extend(task.arguments)
            return False
        if claims.is_done(cell_keys[0]):
            unfinished_keys.discard(cell_keys[0])
            return False
        return None  # of another run, until that is done with it

    def report_progress(running_tasks: list[RunningTask]) -> None:
        """Report running cells (``running_tasks``), renew the claims of this run, and report when there is nothing to do but
        wait.
        """
        nonlocal claim_owners
        if on_progress is not None:
            on_progress(running_tasks)
        if claims is None:
            return
        claims.renew()
        if (
            on_wait is not None
            and unfinished_keys
            and unfinished_keys == claims.owner_of_other_claims.keys()
        ):
            previous_owners = claim_owners
            claim_owners = set(claims.owner_of_other_claims.values())
            if claim_owners != previous_owners:
                on_wait(
                    f"waiting: all remaining cells are claimed by {', '.join(sorted(claim_owners))}"
                )

    executor = Executor(workers, threads, get_registry(), WORKER, timing=timing)
    try:
        # Limits of a cell and trusted times are for cells that run alone.
        is_limited = bool(timing or threads > 1 or limits.seconds or limits.memory)
        cell_batches = batches(cells, workers, single=is_limited)
        while cell_batches:
            has_groups = max(map(len, cell_batches)) > 1
            tasks = [
                cell_task(batch, batch[0].distributions()) for batch in cell_batches
            ]
            single_cells.clear()
            for ended_task in executor.run(
                tasks, limits, may_begin=may_begin, on_progress=report_progress
            ):
                cells_of_task = ended_task.task.arguments
                if len(cells_of_task) > 1 and ended_task.answer is None:
                    # Whichever of them ended the process, the others are not to fail with it.
                    single_cells.extend(cells_of_task)
                    continue
                unfinished_keys.difference_update(cell.key for cell in cells_of_task)
                yield from records_of(ended_task, threads)
            cell_batches = [] if limits.is_over else [[cell] for cell in single_cells]
    finally:
        if claims is not None:
            claims.release_all()
        executor.end()


def cell_task(cells: Sequence[Cell], distributions: frozenset[str]) -> Task:
    """Make the task that runs a cell, or several together, in a worker process with the plugins of the third-party packages
    ``distributions``.
    """
    return Task(
        tuple(cells),
        distributions,
        partial(_records_from, cells),
        max_processes=2 if len(cells) == 1 else 1,
        timeout=cells[0].run.timeout,
    )


def _records_from(cells: Sequence[Cell], documents: object) -> list[Record]:
    """Parse the records that a process sent for cells as JSON (``documents``); ValueError if they are not theirs."""
    if not isinstance(documents, list):
        raise ValueError("the worker process sent no list of records")
    records = [record_from(document) for document in documents]
    if [record.key for record in records] != [cell.key for cell in cells]:
        raise ValueError("the worker process sent the record of another cell")
    return records


def records_of(ended_task: EndedTask, threads: int) -> list[Record]:
    """Return the records of cells from the outcome of their task (``ended_task``), even if its process, with this number of
    BLAS ``threads``, died.
    """
    records: list[Record] = ended_task.answer or []
    if not records:
        times_text = (
            f" {ended_task.task.processes_lost} times"
            if ended_task.task.processes_lost > 1
            else ""
        )
        reason = (
            ended_task.reason
            if ended_task.status
            else f"the worker process died{times_text}: {ended_task.reason}"
        )
        if ended_task.event is not None:
            reason = (
                f"{ended_task.event.get('error')}: {ended_task.event.get('message')}"
            )
        status = ended_task.status or Status.FAILED
        records = [
            lost_record(cell, threads, reason, status)
            for cell in ended_task.task.arguments
        ]
    output = ended_task.output
    if not output:
        return records
    return [
        replace(record, output=output, document={**record.document, "output": output})
        for record in records
    ]


class ClaimFiles:
    """Claim files, with which several runs share the cells of one results folder.

    Parameters
    ----------
    folder : Path
        That of the records; claims are in ``claims/`` below it.

    Attributes
    ----------
    others : dict
        Keys of cells that other runs have claimed, each with the process that computes it.
    """

    def __init__(self, folder: Path) -> None:
        """Prepare to claim cells (runs) of the results in ``folder``."""
        self.folder = folder / "claims"
        self.records = folder
        self.owner_of_other_claims: dict[str, str] = {}
        self._claimed_keys: set[str] = set()
        self._last_renewal = time.monotonic()

    def is_done(self, cell_key: str) -> bool:
        """Whether the cell with this key has a record by now."""
        return (self.records / f"{cell_key}.json").exists()

    def claim(self, cell_key: str) -> bool:
        """Try to claim the cell with this key for this run; True as well if the folder cannot be written to."""
        if cell_key in self._claimed_keys:
            return True
        self.owner_of_other_claims.pop(cell_key, None)
        if self.is_done(cell_key):
            return False
        claim_path = self.folder / cell_key
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            claim_status = unless(FileNotFoundError, claim_path.stat)
            if (
                claim_status is not None
                and abs(time.time() - claim_status.st_mtime) > STALE
            ):
                claim_path.unlink(missing_ok=True)
            with open(claim_path, "x", encoding="utf-8") as claim_file:
                claim_file.write(f"process {os.getpid()} on {platform.node()}")
        except FileExistsError:
            self.owner_of_other_claims[cell_key] = self._owner_of(claim_path)
            return False
        except OSError:
            return True
        self._claimed_keys.add(cell_key)
        if self.is_done(cell_key):  # it was finished between the two looks
            self.release(cell_key)
            return False
        return True

    def _owner_of(self, claim_path: Path) -> str:
        """Return the process that a claim file, at ``claim_path``, names."""
        owner = (unless(OSError, claim_path.read_bytes) or b"").decode(errors="replace")
        return printable(owner, 200) or "another run"

    def renew(self) -> None:
        """Renew the claims (files that reserve cells) of this run (``_claimed_keys``) from time to time, to show that its cells
        are still running.
        """
        if time.monotonic() - self._last_renewal > STALE / 6:
            self._last_renewal = time.monotonic()
            for cell_key in self._claimed_keys:
                unless(OSError, os.utime, self.folder / cell_key)

    def release(self, cell_key: str) -> None:
        """Release the claim (reservation by a file) on a cell, given by key, that is done or will not be run."""
        if cell_key in self._claimed_keys:
            self._claimed_keys.discard(cell_key)
            unless(OSError, (self.folder / cell_key).unlink)

    def release_all(self) -> None:
        """Release all claims (reserved cells) of this run, and remove the folder if it is empty."""
        for cell_key in list(self._claimed_keys):
            self.release(cell_key)
        unless(OSError, self.folder.rmdir)
