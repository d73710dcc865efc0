"""Plans and runs the cells of a suite that have no record (result): how many at a time, on this machine or a cluster;
``run.json``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import psutil

from smimbench.backend import machine
from smimbench.backend.device import get_backend
from smimbench.files import remove_leftovers
from smimbench.problem.problem import ProblemError
from smimbench.registry.registry import get_registry
from smimbench.run.answers import TheoryError
from smimbench.run.batches import batches
from smimbench.run.cell import run_together
from smimbench.run.cost import Estimate, estimate_cost, memory_of_a_cell
from smimbench.run.dask import DEVICES, on_dask
from smimbench.run.executor import NO_LIMITS, Limits, OnProgress
from smimbench.run.processes import ClaimFiles, OnWait, run_in_processes
from smimbench.run.record import Record, RunJson
from smimbench.run.store import (
    Store,
    changed_code_remarks,
    changes_of,
    other_versions,
    settings_folder,
    theory_folder,
)
from smimbench.run.theory_solver import TheorySolver
from smimbench.run.theory_subprocess import has_third_party
from smimbench.suite import SuiteError
from smimbench.suite.cells import Cell, Choice, Suite


@dataclass(frozen=True)
class Shard:
    """Share of a suite's cells that one of several runs computes: number ``number`` (from 1) of ``count`` shares."""

    number: int
    count: int

    def select(self, cells: Sequence[Cell]) -> list[Cell]:
        """Return the cells (runs) that belong to this share, in their order.

        It takes every ``count``-th key: keys are hashes, so each part has a mixture of all algorithms and sizes.
        """
        selected_keys = sorted(cell.key for cell in cells)[
            self.number - 1 :: self.count
        ]
        key_set = set(selected_keys)
        return [cell for cell in cells if cell.key in key_set]


@dataclass(frozen=True)
class Campaign:
    """Plan of a run: the cells of a suite that must be run and how to run them; nothing has been drawn yet. ``store`` is the
    folder of records, ``remarks`` are lines for the user, ``timing`` runs one cell at a time, so that times can be trusted,
    ``threads`` are BLAS threads of each, ``dask`` is the address of a scheduler, ``in_subprocess`` runs cells in another process
    even if there is one worker, ``limits`` bound time and memory.

    Attributes
    ----------
    cells, cells_to_run : list of Cell
        All that the suite asks for, and those without a record.
    workers : int
        Cells at a time.
    remarks : list of str
        What the user should know before it runs: files that are not used, settings that are not, memory that may not do.
    """

    suite: Suite
    store: Store
    cells: list[Cell]
    cells_to_run: list[Cell]
    workers: int
    remarks: list[str]
    dask: str | None = None
    timing: bool = False
    threads: int = 1
    in_subprocess: bool = False
    limits: Limits = NO_LIMITS

    def count_missing(self) -> int:
        """Count the campaign's cells that still have no record."""
        return len(missing_cells(self.cells, self.store.load(), timing=self.timing))

    def cost(self) -> Estimate:
        """Estimate time and memory of the campaign, from past runs of the suite and from short trial runs."""
        past_records = (
            self.store.load(check_digests=False).values() if self.cells_to_run else ()
        )
        return estimate_cost(self.cells_to_run, self.workers, past_records)

    def run(
        self,
        on_record: Callable[[Record], None] | None = None,
        on_progress: OnProgress | None = None,
        on_wait: OnWait | None = None,
    ) -> list[Record]:
        """Run the missing cells and return their records. ``on_record`` is called with each record, ``on_progress`` with the
        running cells, ``on_wait`` with a message when there is nothing to do but wait.

        Raises
        ------
        ProblemError
            If no problem could be compared with theory: an item of somebody else contradicts itself in all of them.
        """
        self._refuse_inconsistent_items()
        return run_cells(
            self.cells_to_run,
            self.store,
            workers=self.workers,
            timing=self.timing,
            threads=self.threads,
            dask=self.dask,
            in_subprocess=self.in_subprocess,
            limits=self.limits,
            on_record=on_record,
            on_progress=on_progress,
            on_wait=on_wait,
        )

    def _refuse_inconsistent_items(self) -> None:
        """Raise ProblemError, before hours of runs, if third-party items fail their consistency tests in all problems."""
        problem_labels = {cell.problem_label for cell in self.cells_to_run}
        problems = [
            plan.problem for plan in self.suite.plans if plan.label in problem_labels
        ]
        if not all(has_third_party(*problem.spec.values()) for problem in problems):
            return
        solver = TheorySolver(
            theory_folder(self.store), in_subprocess=True, deadline=self.limits.deadline
        )
        inconsistency_errors = []
        for problem in problems:
            try:
                solver.begin(problem)
                return
            except ProblemError as error:
                if error.key == "theory":
                    # The process of this test ended: rows of theory say so, and the runs may be good.
                    return
                inconsistency_errors.append(error)
            except TheoryError:  # its rows say so
                return
        if inconsistency_errors:
            raise inconsistency_errors[0]


def plan_campaign(
    suite: Suite,
    store: Store,
    backends: Sequence[str] = ("numpy",),
    *,
    workers: int | None = None,
    timing: bool = False,
    threads: int = 1,
    dask: str | None = None,
    in_subprocess: bool = False,
    retry: Sequence[str] = (),
    limits: Limits = NO_LIMITS,
    shard: Shard | None = None,
    dry_run: bool = False,
    cells: Sequence[Cell] | None = None,
) -> Campaign:
    """Plan which cells to run (``cells``: these instead of all of the suite) and how many at a time (``workers``), and write
    ``run.json``, which all records share; nothing is written in a ``dry_run``. Cells whose record has a status in ``retry``
    run again; ``shard`` is the share of this machine, other options are those of ``Campaign``.

    Parameters
    ----------
    workers : int or None
        Processes side by side; None: one per core, fewer where the memory would not hold so many.
    retry : sequence of str
        Records with one of these states are moved out of the way, so that their cells run again.
    shard : Shard or None
        Run this part of the cells only.
    dry_run : bool
        Write and move nothing.
    cells : sequence of Cell or None
        Run these instead of those of the suite.
    timing, threads, dask, in_subprocess, limits
        As of ``run_cells``.

    Raises
    ------
    SuiteError
        If there is nothing to run.
    BackendError
        If a backend is not there.
    """
    # With Dask the device is that of the workers.
    local_backends = [
        backend for backend in backends if not (dask and backend in DEVICES)
    ]
    opened_backends = [
        get_backend(backend_name, suite.run.dtype) for backend_name in local_backends
    ]
    accelerator_name = next(
        (
            opened_backend.name
            for opened_backend in opened_backends
            if opened_backend.accelerated
        ),
        None,
    )
    if not suite.algorithms:
        reason = "the suite has no algorithm, so there is nothing to run; 'smimbench theory' needs none"
        raise SuiteError(suite.file, "algorithms", reason)
    is_whole_suite = cells is None
    if cells is None:
        cells = [cell for backend in backends for cell in suite.cells(backend)]
    if not cells:
        raise SuiteError(
            suite.file,
            "",
            "--only excludes every cell of this suite, so there is nothing to run",
        )
    cells = list(cells) if shard is None else shard.select(cells)
    if not dry_run:
        remove_leftovers(store.folder)
    records = store.load(set_aside=not dry_run, check_digests=not dry_run)
    remarks = _tuning_remarks(suite, store, cells) if is_whole_suite else []
    remarks += store.complaints + changed_code_remarks(
        other_versions(cells, records.values())
    )
    if retry and not dry_run:
        cell_keys = {cell.key for cell in cells}
        store.retire(
            file_stem
            for file_stem, record in records.items()
            if record.status in retry and record.key in cell_keys
        )
        records = store.load()
    cells_to_run = missing_cells(cells, records, timing=timing)
    if dask and workers is not None:
        remarks.append(
            f"--workers {workers} is not used: --dask runs as many cells at a time as the scheduler has workers"
        )
    bytes_per_cell = memory_of_a_cell(cells_to_run)
    if not dask and not accelerator_name:
        _require_enough_memory(suite, bytes_per_cell)
    serial_option = (
        "--timing"
        if timing
        else f"--backend {accelerator_name}"
        if accelerator_name
        else None
    )
    workers, workers_remark = _cells_at_a_time(
        len(cells_to_run), bytes_per_cell, workers, serial_option
    )
    if workers_remark and not dask:
        remarks.append(workers_remark)
    if not dry_run:
        Store(settings_folder(suite, store)).write_run_json(run_json_document(suite))
    return Campaign(
        suite,
        store,
        cells,
        cells_to_run,
        workers,
        remarks,
        dask,
        timing,
        threads,
        in_subprocess,
        limits,
    )


def _require_enough_memory(suite: Suite, bytes_per_cell: int) -> None:
    """Raise SuiteError if a cell (run) needs more memory (``bytes_per_cell``) than this machine has."""
    machine_bytes = psutil.virtual_memory().total
    if bytes_per_cell > machine_bytes:
        sizes_text = f"{bytes_per_cell / 2**30:.3g} GB, this machine has {machine_bytes / 2**30:.3g}"
        raise SuiteError(
            suite.file,
            "grid",
            f"a single run needs up to {sizes_text} of memory; lower dimension, alpha or tokens",
        )


def _tuning_remarks(suite: Suite, store: Store, cells: Sequence[Cell]) -> list[str]:
    """Return remarks on algorithms of these cells (runs) that could be tuned but are not, and on chosen values at the end of
    their range.
    """
    from smimbench.run.tuning import range_end_remarks, searches

    tunable_places = {search.labels for search in searches(suite)}
    untuned_algorithms = (
        cell.algorithm_label
        for cell in cells
        if cell.tuning is None and cell.place[:2] in tunable_places
    )
    untuned_names = ", ".join(dict.fromkeys(untuned_algorithms))
    hint = f"tune them with 'smimbench tune {suite.name}'"
    remarks = (
        [f"{untuned_names} ran with the suite's settings; {hint}"]
        if untuned_names
        else []
    )
    return remarks + range_end_remarks(suite, store)


def _cells_at_a_time(
    cell_count: int,
    bytes_per_cell: int,
    requested_workers: int | None,
    serial_option: str | None,
) -> tuple[int, str]:
    """Return the number of cells to run at a time, out of ``cell_count`` that need ``bytes_per_cell``, and a remark if it is
    fewer than one per core or than the ``requested_workers``; ``serial_option`` is the option that asks for one at a time.

    Parameters
    ----------
    cell_count, bytes_per_cell : int
        Cells to run, and bytes that one of them takes at most.
    requested_workers : int or None
        ``--workers``.
    serial_option : str or None
        Option that runs one cell at a time.
    """
    if serial_option:
        workers_are_ignored = requested_workers is not None and requested_workers > 1
        reason = f"{serial_option} runs one cell at a time"
        return (
            1,
            f"--workers {requested_workers} is not used: {reason}"
            if workers_are_ignored
            else "",
        )
    free_bytes = psutil.virtual_memory().available
    cores = machine.usable_cores()
    workers = requested_workers or max(
        1, min(cores, free_bytes // max(1, bytes_per_cell))
    )
    memory_text = f"a cell takes up to {bytes_per_cell / 2**30:.1f} GB and {free_bytes / 2**30:.1f} GB are free"
    if bytes_per_cell * min(workers, cell_count) > free_bytes:
        return (
            workers,
            f"the memory may not suffice for {workers} at a time: {memory_text}",
        )
    if not requested_workers and workers < min(cores, cell_count):
        return workers, f"{workers} at a time instead of {cores}: {memory_text}"
    return workers, ""


def missing_cells(
    cells: Sequence[Cell], records: dict[str, Record], *, timing: bool = False
) -> list[Cell]:
    """Return the cells without a record, or, in timing mode, without trusted times (measured one run at a time) on
    this machine.
    """
    if timing:
        timing_suffix = f".timing-{machine.fingerprint()}"
        return [cell for cell in cells if f"{cell.key}{timing_suffix}" not in records]
    keys_with_record = {file_stem.partition(".")[0] for file_stem in records}
    return [cell for cell in cells if cell.key not in keys_with_record]


def run_cells(
    cells: Sequence[Cell],
    store: Store,
    *,
    workers: int = 1,
    timing: bool = False,
    threads: int = 1,
    dask: str | None = None,
    in_subprocess: bool = False,
    limits: Limits = NO_LIMITS,
    on_record: Callable[[Record], None] | None = None,
    on_progress: OnProgress | None = None,
    on_wait: OnWait | None = None,
) -> list[Record]:
    """Run cells, ``workers`` at a time, and store the record of each as it finishes. ``on_record`` is called with each
    record, ``on_progress`` with the running cells, ``on_wait`` with a message when there is nothing to do but wait;
    ``timing`` asks for trusted times, ``dask`` is the address of a scheduler.

    Parameters
    ----------
    workers : int
        Processes at a time; 1 runs in this process, unless ``in_subprocess`` or plugins of third parties are loaded. Timing mode
        is always serial.
    in_subprocess : bool
        Run in a process of its own also what runs alone: nothing that a plugin does can then end this one.
    limits : Limits
        What a cell, and all of them, may take; kept from outside, so for cells in processes of their own only.
    dask : str or None
        Address of a Dask scheduler whose workers run the cells; they need smimbench and the same plugins, not the
        results folder.
    on_record : callable
        Called with every record.
    on_progress : callable
        Told several times a second what is being run in processes of this machine.
    on_wait : callable
        Told which other runs have claimed all cells that are left.

    Raises
    ------
    BackendError
        If Dask is not installed or the scheduler does not answer.
    """
    workers = 1 if timing else min(workers, len(cells))
    if timing:  # a time that is trusted can also be judged
        for backend in sorted({cell.backend for cell in cells}):
            machine.peak_rates(backend, threads)
    new_records: Iterator[Record]
    claim_files = None
    if dask is not None:
        new_records = on_dask(cells, dask, threads, limits)
    elif (
        workers <= 1
        and not in_subprocess
        and limits == NO_LIMITS
        and not get_registry().has_third_party
    ):
        new_records = chain.from_iterable(
            run_together(batch, timing=timing, threads=threads)
            for batch in batches(cells, 1, single=timing or threads > 1)
        )
    else:
        claim_files = None if timing else ClaimFiles(store.folder)
        new_records = run_in_processes(
            cells,
            max(1, workers),
            threads,
            timing=timing,
            limits=limits,
            claims=claim_files,
            on_progress=on_progress,
            on_wait=on_wait,
        )
    records = []
    for record in new_records:
        store.write(record)
        if claim_files is not None:
            claim_files.release(record.key)
        records.append(record)
        if on_record:
            on_record(record)
    store.sync()
    return records


def run_json_document(suite: Suite) -> RunJson:
    """Return the content of ``run.json``: suite text, options, versions and machine."""
    stored_choices: list[Choice] = [
        {
            "problem": problem,
            "label": label,
            "algorithm": tuned_algorithm.algorithm,
            "tuning": tuned_algorithm.tuning,
        }
        for (problem, label), tuned_algorithm in suite.choices.items()
    ]
    changes = changes_of(suite)
    document: RunJson = {
        "suite": suite.name,
        "title": suite.title,
        "text": suite.text,
        "overrides": changes["overrides"],
        "only": changes["only"],
        "run": suite.run.model_dump(mode="json"),
        "versions": machine.versions(),
        "machine": machine.machine_info(),
        "fingerprint": machine.fingerprint(),
        "git_commit": machine.git_commit(),
        "written": time.time(),
    }
    if stored_choices:
        document["choices"] = stored_choices
    return document
