"""Running a suite: which cells are missing, how many run at a time and where (here or on a cluster), and ``run.json``."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil

from smimbench.backend import machine
from smimbench.backend.device import get_backend
from smimbench.backend.roofline import ceilings
from smimbench.files import JsonObject, canonical_json, remove_leftovers
from smimbench.problem.problem import CODE, ProblemError
from smimbench.registry.registry import KINDS, get_registry
from smimbench.run.answers import TheoryError
from smimbench.run.cell import run_cell
from smimbench.run.cost import Estimate, estimate_cost, memory_of_a_cell
from smimbench.run.dask import DEVICES, on_dask
from smimbench.run.executor import NO_LIMITS, Limits, OnProgress
from smimbench.run.processes import Claims, OnWait, in_processes
from smimbench.run.record import Record
from smimbench.run.store import Store, asked, settings_folder, theory_folder
from smimbench.run.theory_process import is_third_party
from smimbench.run.theory_solver import TheorySolver
from smimbench.suite import SuiteError
from smimbench.suite.cells import Cell, Suite, agree


@dataclass(frozen=True)
class Shard:
    """One part of a suite: part ``number`` (from 1) of ``count``."""

    number: int
    count: int

    def select(self, cells: Sequence[Cell]) -> list[Cell]:
        """Cells of this part, in their order.

        It takes every ``count``-th key: keys are hashes, so each part has a mixture of all algorithms and sizes.
        """
        keys = sorted(cell.key for cell in cells)[self.number - 1 :: self.count]
        selected = set(keys)
        return [cell for cell in cells if cell.key in selected]


@dataclass(frozen=True)
class Campaign:
    """Cells of a suite that must be run and how to run them; nothing has been drawn yet.

    Attributes
    ----------
    cells, missing : list of Cell
        All that the suite asks for, and those without a record.
    workers : int
        Cells at a time.
    remarks : list of str
        What the user should know before it runs: files that are not used, settings that are not, memory that may not do.
    how : dict
        Further arguments of ``run_cells``.
    """

    suite: Suite
    store: Store
    cells: list[Cell]
    missing: list[Cell]
    workers: int
    remarks: list[str]
    dask: str | None = None
    timing: bool = False
    limits: Limits = NO_LIMITS
    how: JsonObject = field(default_factory=dict)

    def left(self) -> int:
        """Number of the campaign's cells that still have no record."""
        return len(missing_cells(self.cells, self.store.load(), timing=self.timing))

    def cost(self) -> Estimate:
        """Rough time and memory of the campaign, from past runs of the suite and from trials."""
        past = self.store.load(digests=False).values() if self.missing else ()
        return estimate_cost(self.missing, self.workers, past)

    def run(
        self,
        on_record: Callable[[Record], None] | None = None,
        on_progress: OnProgress | None = None,
        on_wait: OnWait | None = None,
    ) -> list[Record]:
        """Run the missing cells; see ``run_cells``.

        Raises
        ------
        ProblemError
            If no problem could be compared with theory: an item of somebody else contradicts itself in all of them.
        """
        self._refuse_inconsistent_items()
        how = {
            "workers": self.workers,
            "dask": self.dask,
            "timing": self.timing,
            "limits": self.limits,
            **self.how,
        }
        return run_cells(
            self.missing,
            self.store,
            on_record=on_record,
            on_progress=on_progress,
            on_wait=on_wait,
            **how,
        )

    def _refuse_inconsistent_items(self) -> None:
        """Raise an error for inconsistent items before hours are spent on meaningless runs."""
        labels = {cell.problem_label for cell in self.missing}
        problems = [plan.problem for plan in self.suite.plans if plan.label in labels]
        if not all(is_third_party(*problem.spec.values()) for problem in problems):
            return
        solver = TheorySolver(
            theory_folder(self.store), isolated=True, deadline=self.limits.end
        )
        complaints = []
        for problem in problems:
            try:
                solver.begin(problem)
                return
            except ProblemError as error:
                if (
                    error.key == "theory"
                ):  # its process ended: rows say so, the runs may be good
                    return
                complaints.append(error)
            except TheoryError:  # its rows say so
                return
        if complaints:
            raise complaints[0]


def plan_campaign(
    suite: Suite,
    store: Store,
    backends: Sequence[str] = ("numpy",),
    *,
    workers: int | None = None,
    timing: bool = False,
    dask: str | None = None,
    retry: Sequence[str] = (),
    limits: Limits = NO_LIMITS,
    shard: Shard | None = None,
    dry_run: bool = False,
    cells: Sequence[Cell] | None = None,
    **how: Any,
) -> Campaign:
    """Plan which cells to run and how many at a time; what all records share is written first.

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
    how
        Further arguments of ``run_cells``.

    Raises
    ------
    SuiteError
        If there is nothing to run.
    BackendError
        If a backend is not there.
    """
    # With Dask the device is that of the workers.
    places = [
        get_backend(one, suite.run.dtype)
        for one in backends
        if not (dask and one in DEVICES)
    ]
    own = cells is None
    cells = (
        [cell for backend in backends for cell in suite.cells(backend)]
        if cells is None
        else list(cells)
    )
    if not suite.algorithms:
        reason = "is empty, so there is nothing to run; 'smimbench theory' needs none"
        raise SuiteError(suite.file, "algorithms", reason)
    if not cells:
        raise SuiteError(suite.file, "", "--only excludes every cell of this suite")
    device = next((place.name for place in places if place.accelerated), None)
    if shard is not None:
        cells = shard.select(cells)
    if not dry_run:
        remove_leftovers(store.folder)
    records = store.load(set_aside=not dry_run, digests=not dry_run)
    remarks = _tuning_remarks(suite, store, cells) if own else []
    remarks += store.complaints + changed_code(other_versions(cells, records.values()))
    if retry and not dry_run:
        keys = {cell.key for cell in cells}
        store.retire(
            stem for stem, r in records.items() if r.status in retry and r.key in keys
        )
        records = store.load()
    missing = missing_cells(cells, records, timing=timing)
    if dask and workers is not None:
        remarks.append(
            f"--workers {workers} is not used: --dask runs as many cells at a time as the scheduler has workers"
        )
    if (
        not dask
        and not device
        and (needed := memory_of_a_cell(missing))
        > (total := psutil.virtual_memory().total)
    ):
        sizes = f"{needed / 2**30:.3g} GB, this machine has {total / 2**30:.3g}"
        raise SuiteError(
            suite.file,
            "grid",
            f"a cell needs up to {sizes} of memory; lower dimension, alpha or tokens",
        )
    alone = "--timing" if timing else f"--backend {device}" if device else None
    workers, said = _cells_at_a_time(missing, workers, alone)
    remarks += [] if dask else said
    if not dry_run:
        Store(settings_folder(suite, store)).write_shared(shared_document(suite))
    return Campaign(
        suite, store, cells, missing, workers, remarks, dask, timing, limits, how
    )


def _tuning_remarks(suite: Suite, store: Store, cells: Sequence[Cell]) -> list[str]:
    """Lines on algorithms of these cells that could be tuned and are not, and on choices at the end of a range."""
    from smimbench.run.tuning import range_end_remarks, searches

    tunable = {search.place for search in searches(suite)}
    untuned = (
        c
        for c in cells
        if c.tuning is None and (c.problem_label, c.algorithm_label) in tunable
    )
    names = dict.fromkeys(cell.algorithm_label for cell in untuned)
    remarks = (
        [
            f"{', '.join(names)} ran with the suite's settings; tune them with 'smimbench tune {suite.name}'"
        ]
        if names
        else []
    )
    return remarks + range_end_remarks(suite, store)


def _cells_at_a_time(
    missing: Sequence[Cell], asked: int | None, alone: str | None
) -> tuple[int, list[str]]:
    """Number of cells to run at a time, and the reason if it is less than one per core or than requested."""
    if alone:
        return 1, [
            f"--workers {asked} is not used: {alone} runs one cell at a time"
        ] * (asked is not None and asked > 1)
    needed, free = memory_of_a_cell(missing), psutil.virtual_memory().available
    cores = machine.usable_cores()
    workers = asked or max(1, min(cores, free // max(1, needed)))
    size = (
        f"a cell takes up to {needed / 2**30:.1f} GB and {free / 2**30:.1f} GB are free"
    )
    if missing and needed * min(workers, len(missing)) > free:
        return workers, [f"the memory may not suffice for {workers} at a time: {size}"]
    return workers, [f"{workers} at a time instead of {cores}: {size}"] * (
        workers < min(cores, len(missing)) and not asked
    )


def missing_cells(
    cells: Sequence[Cell], records: dict[str, Record], *, timing: bool = False
) -> list[Cell]:
    """Cells without a record, or in timing mode without trusted times on this machine."""
    if timing:
        return [
            cell
            for cell in cells
            if f"{cell.key}.timing-{machine.fingerprint()}" not in records
        ]
    there = {stem.partition(".")[0] for stem in records}
    return [cell for cell in cells if cell.key not in there]


def other_versions(
    cells: Sequence[Cell], records: Iterable[Record]
) -> list[JsonObject]:
    """How many records of these cells were made with another version, or other code, of an item.

    Returns
    -------
    list of dict
        ``item``, its version ``then`` and ``now`` (equal where only its code differs), and the number of ``cells``.
    """
    found: Counter[tuple[str, int, int]] = Counter()
    for cell, record in made_by_other_code(cells, records):
        items = (_items(record.cell), _items(cell.identity()))
        for (kind, old), new in zip(items[0].items(), items[1].values()):
            if any(old.get(key) != new.get(key) for key in CODE):
                found[f"{kind} {old['name']!r}", old["version"], new["version"]] += 1
    return [
        {"item": item, "then": then, "now": now, "cells": count}
        for (item, then, now), count in found.items()
    ]


def made_by_other_code(
    cells: Sequence[Cell], records: Iterable[Record]
) -> list[tuple[Cell, Record]]:
    """Records that another version, or other code, of an item has made of these cells, each with its cell."""
    keys = {cell.key for cell in cells}
    others = [record for record in records if record.key not in keys]
    here: dict[str, list[tuple[JsonObject, Cell]]] = {}
    for cell in cells if others else ():
        identity = json.loads(canonical_json(cell.identity()))
        here.setdefault(_without_parameters(identity), []).append((identity, cell))
    pairs = []
    for record in others:
        candidates = here.get(_without_parameters(record.cell), ())
        pairs += [
            (cell, record)
            for identity, cell in candidates
            if agree(identity, record.cell)
        ][:1]
    return pairs


def _items(cell: Mapping[str, Any]) -> dict[str, JsonObject]:
    return {
        **{kind: cell["problem"][kind] for kind in KINDS if kind in cell["problem"]},
        "algorithm": cell["algorithm"],
    }


def _without_parameters(cell: Mapping[str, Any]) -> str:
    rest = {
        key: value
        for key, value in cell.items()
        if key not in ("problem", "algorithm", "metrics")
    }
    return canonical_json([rest, [item["name"] for item in _items(cell).values()]])


def changed_code(others: Sequence[JsonObject]) -> list[str]:
    """One line for every item whose code has changed since some records were made, without a new version."""
    return [
        f"{one['item']} has other code under the same version {one['now']} than when {one['cells']} "
        f"cell{'' if one['cells'] == 1 else 's'} of this suite ran: they are kept apart; "
        "raise its version when its numbers change"
        for one in others
        if one["then"] == one["now"]
    ]


def run_cells(
    cells: Sequence[Cell],
    store: Store,
    *,
    workers: int = 1,
    timing: bool = False,
    threads: int = 1,
    dask: str | None = None,
    isolated: bool = False,
    limits: Limits = NO_LIMITS,
    on_record: Callable[[Record], None] | None = None,
    on_progress: OnProgress | None = None,
    on_wait: OnWait | None = None,
) -> list[Record]:
    """Run cells and store each as it finishes.

    Parameters
    ----------
    workers : int
        Processes at a time; 1 runs in this process, unless ``isolated`` or plugins of third parties are loaded. Timing mode
        is always serial.
    isolated : bool
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
            ceilings(backend, threads)
    source: Iterator[Record]
    claims = None
    if dask is not None:
        source = on_dask(cells, dask, threads, limits)
    elif (
        workers <= 1
        and not isolated
        and limits == NO_LIMITS
        and not get_registry().has_third_party
    ):
        source = (run_cell(cell, timing=timing, threads=threads) for cell in cells)
    else:
        claims = None if timing else Claims(store.folder)
        how: JsonObject = {
            "timing": timing,
            "limits": limits,
            "claims": claims,
            "on_progress": on_progress,
            "on_wait": on_wait,
        }
        source = in_processes(cells, max(1, workers), threads, **how)
    records = []
    for record in source:
        store.write(record)
        if claims is not None:
            claims.release(record.key)
        records.append(record)
        if on_record:
            on_record(record)
    store.sync()
    return records


def shared_document(suite: Suite) -> JsonObject:
    """Content of ``run.json``."""
    return {
        "suite": suite.name,
        "title": suite.title,
        "text": suite.text,
        **asked(suite),
        "run": suite.run.model_dump(mode="json"),
        "versions": machine.versions(),
        "machine": machine.machine_info(),
        "fingerprint": machine.fingerprint(),
        "git_commit": machine.git_commit(),
        "written": time.time(),
        **(
            {
                "choices": [
                    {"problem": problem, "label": label, **choice._asdict()}
                    for (problem, label), choice in suite.choices.items()
                ]
            }
            if suite.choices
            else {}
        ),
    }
