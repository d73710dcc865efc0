"""Cells in a pool of processes that are watched from outside: one that dies is replaced, one that takes too long or too
much memory is ended.

A cell whose process died gets a second chance in a new one; then it is a failed cell, with the signal for a reason.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import queue
import subprocess
import tempfile
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil

from smimbench.files import printable
from smimbench.run import heartbeat
from smimbench.run.cell import lost_record
from smimbench.run.loop import Status
from smimbench.run.record import LONGEST, check_types
from smimbench.run.supervised import SupervisedProcess, how_it_ended, plugins_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from smimbench.registry.registry import Registry
    from smimbench.run.claims import Claims
    from smimbench.suite.cells import Cell

__all__ = ["RESERVE", "Limits", "Underway", "WorkerPool", "in_processes", "with_pool"]

POLL = 0.1
"""Seconds between two looks at the processes; doubled, limits are kept that much less exactly."""
GRACE = 0.5
"""Part of ``run.timeout`` (at least ``LEAST_GRACE`` seconds) that a step may take longer before it is ended from outside."""
LEAST_GRACE = 1.0
CHANCES = 2
"""Processes that a cell may lose; with more, a cell that crashes costs more before it is recorded as failed."""
RESERVE = 0.03
"""Part of the memory of the machine that stays free; doubled, a process that takes it all is ended that much earlier."""
SPARE = 4
"""Processes that wait for cells of their distributions beside those at work; with more, memory is held for fewer starts."""
LARGEST_OUTPUT = 1 << 24
"""Bytes that a cell may print before what came first is dropped."""


@dataclass(frozen=True)
class Limits:
    """What a cell, and all cells together, may take.

    Attributes
    ----------
    seconds : float or None
        Of a cell on the wall, from its first moment to its record; ``run.timeout`` counts the algorithm's clock only.
    memory : int or None
        Bytes of the process of a cell.
    budget : float or None
        Seconds of the whole run: no cell goes on beyond them. What is not finished stays missing.
    """

    seconds: float | None = None
    memory: int | None = None
    budget: float | None = None


class Underway(NamedTuple):
    """Cells that a process is running in one pass, for how many seconds, and how many iterations they have made."""

    cells: tuple[Cell, ...]
    seconds: float
    iterations: int


class WorkerPool:
    """Processes that run cells, made as they are needed, ended together.

    A process runs cells of one set of distributions only: whatever the code of one has changed in it, cells of others never
    see. Those that have nothing to do wait for more of the same.

    Parameters
    ----------
    most : int
        Processes at work at a time.
    threads : int
        BLAS threads of each.
    registry : Registry
        Anything with its ``paths`` and ``foreign_path``.
    """

    def __init__(self, most: int, threads: int, registry: Any, *, timing: bool = False) -> None:
        self.events: queue.Queue[tuple[_CellProcess, bytes | None]] = queue.Queue()
        self.workers: list[_CellProcess] = []
        self.threads = threads
        self.registry = registry
        self._most = most
        self._timing = timing

    def idle(self, distributions: frozenset[str]) -> _CellProcess | None:
        """A process for cells of these distributions with nothing to do; None if as many as may be are at work."""
        free = [worker for worker in self.workers if worker.is_idle]
        if len(self.workers) - len(free) >= self._most:
            return None
        for worker in free:
            if worker.distributions == distributions:
                return worker
        for worker in free[: max(0, len(self.workers) - self._most - SPARE + 1)]:
            worker.end()
            self.workers.remove(worker)
        self.workers.append(_CellProcess(self.registry, distributions, self.threads, self._timing, self.events))
        return self.workers[-1]

    def end(self) -> None:
        """End all of them, whatever they do."""
        for worker in self.workers:
            worker.end()
        self.workers.clear()


def in_processes(
    groups: Sequence[Sequence[Cell]],
    workers: int,
    threads: int,
    registry: Registry,
    *,
    timing: bool = False,
    limits: Limits | None = None,
    claims: Claims | None = None,
    on_look: Callable[[list[Underway]], None] | None = None,
) -> Iterator[dict[str, Any]]:
    """Run cells in so many processes at a time, those of a group in one pass; records come as they end.

    A group of several whose process is ended, or dies, is run again cell by cell: the others are not to suffer from one.
    With ``claims`` those that another run has taken are left to it, and are taken over if it goes away. ``on_look`` is told
    several times a second what is being run.
    """
    pool = WorkerPool(workers, threads, registry, timing=timing)
    try:
        yield from with_pool(groups, pool, limits, claims, on_look)
    finally:
        if claims is not None:
            claims.close()
        pool.end()


def with_pool(
    groups: Sequence[Sequence[Cell]],
    pool: WorkerPool,
    limits: Limits | None = None,
    claims: Claims | None = None,
    on_look: Callable[[list[Underway]], None] | None = None,
    *,
    distributions: frozenset[str] | None = None,
) -> Iterator[dict[str, Any]]:
    """Run cells in the processes of a pool that has nothing else to do, and that goes on to live.

    ``distributions``: of all of them, where no registry is at hand that could tell.
    """
    limits = limits or Limits()
    end = None if limits.budget is None else time.monotonic() + limits.budget
    keyed = [
        (tuple(group), 1, group[0].distributions(pool.registry) if distributions is None else distributions)
        for group in groups
    ]
    if len({code for _, _, code in keyed}) > SPARE:  # in the order of the suite nearly every cell would start a process
        keyed.sort(key=lambda one: sorted(one[2]))
    waiting = deque(keyed)
    while waiting or any(worker.cells for worker in pool.workers):
        late = end is not None and time.monotonic() > end
        if late:
            return
        for _ in range(len(waiting)):
            if (idle := pool.idle(waiting[0][2])) is None:
                break
            cells, chance, code = waiting.popleft()
            ours = tuple(cell for cell in cells if claims is None or claims.take(cell.key))
            if ours:
                idle.begin(ours, chance)
            for cell in cells:  # of another run, until that is done with it
                if claims is not None and cell not in ours and not claims.is_done(cell.key):
                    waiting.append(((cell,), chance, code))
        with contextlib.suppress(queue.Empty):
            worker, message = pool.events.get(timeout=POLL)
            if worker not in pool.workers:  # its end was noticed before
                continue
            if message is None:
                pool.workers.remove(worker)
                record, again = worker.on_exit(pool.threads)
                waiting.extendleft((*one, worker.distributions) for one in reversed(again))
                if record is not None:
                    yield record
            elif (record := worker.receive_record(message)) is not None:
                yield record
        for worker in pool.workers:
            if worker.silent:
                pool.events.put((worker, None))
        _watch_pool(pool.workers, limits)
        if on_look is not None:
            on_look([worker.underway() for worker in pool.workers if worker.cells and worker.verdict is None])
        if claims is not None:
            claims.touch()


def _watch_pool(workers: Sequence[_CellProcess], limits: Limits) -> None:
    """End what is beyond its limits; where memory runs out, the process that has most of it."""
    busy = [worker for worker in workers if worker.cells and worker.verdict is None]
    for worker in busy:
        worker.enforce_limits(limits)
    memory = psutil.virtual_memory()
    if busy and memory.available < RESERVE * memory.total:
        largest = max(busy, key=_CellProcess.memory)
        if (size := largest.memory()) > memory.total // 10:
            largest.stop(Status.FAILED, f"the machine ran out of memory while the cell took {size / 2**30:.1f} GB")


class _CellProcess(SupervisedProcess):
    """One process, and what is known of it."""

    def __init__(
        self,
        registry: Any,
        distributions: frozenset[str],
        threads: int,
        timing: bool,
        events: queue.Queue[tuple[_CellProcess, bytes | None]],
    ) -> None:
        self.distributions = distributions
        self.cells: list[Cell] = []  # whose records are still to come
        self.count = 0  # of those that were begun together
        self.chance = 0
        self.verdict: tuple[Status, str] | None = None
        self.ready = False
        self._begun = 0.0
        self._late = 0
        with tempfile.NamedTemporaryFile(prefix="smimbench-", delete=False) as file:
            file.write(heartbeat.STILL)
        self._pulse = Path(file.name)
        setup = plugins_of(registry, distributions) | {
            "threads": threads,
            "timing": timing,
            "heartbeat": str(self._pulse),
        }
        super().__init__(
            "smimbench.run.worker", setup, threads, lambda message: events.put((self, message)), registry.foreign_path
        )

    @property
    def is_idle(self) -> bool:
        """Whether it can be handed a cell."""
        return not self.cells and self.verdict is None and self.alive

    def begin(self, cells: tuple[Cell, ...], chance: int) -> None:
        """Hand it a cell, or several to be run in one pass."""
        self.cells, self.count = list(cells), len(cells)
        self.chance, self._begun, self._late = chance, time.monotonic(), 0
        self.output.truncate(0)
        with open(self._pulse, "r+b") as file:  # it waits, and does not beat
            file.write(heartbeat.STILL)
        self.tell(pickle.dumps(cells))

    def receive_record(self, message: bytes) -> dict[str, Any] | None:
        """The record of a cell of its own, if that is what it said."""
        try:
            record: dict[str, Any] = json.loads(message)
            if not record and not self.ready:
                self.ready, self._begun = True, time.monotonic()
                return None
            check_types(record)
            left = [cell for cell in self.cells if cell.key != record["key"]]
            if len(left) == len(self.cells):
                raise ValueError("the record of another cell")
        except (ValueError, TypeError, RecursionError):
            self.stop(Status.FAILED, "the worker process sent something that is no record of its cell")
            return None
        self.cells = left
        printed = self._printed()
        return {**record, **({"output": printed} if printed else {})}

    def enforce_limits(self, limits: Limits) -> None:
        """End it if its cell is beyond a limit; several share their time, so that each may take as much as alone."""
        timeout = self.cells[0].run.timeout
        took = time.monotonic() - self._begun
        if os.fstat(self.output.fileno()).st_size > LARGEST_OUTPUT:
            self.output.truncate(0)
        if timeout is not None:
            late = heartbeat.clock_seen(self._pulse.read_bytes()) > timeout + max(LEAST_GRACE, GRACE * timeout)
            self._late = self._late + 1 if late else 0
            if self._late > 1:  # the two numbers of a heartbeat are not written at once: look twice
                reason = f"{timeout:g} s reached in a step that did not return; ended from outside"
                return self.stop(Status.TIMEOUT, reason)
        if limits.seconds is not None and self.ready and took > limits.seconds * self.count:
            return self.stop(Status.TIMEOUT, f"the cell took more than {limits.seconds:g} s; ended from outside")
        if limits.memory is not None and (size := self.memory()) > limits.memory:
            sizes = f"{size / 2**30:.3g} GB, more than {limits.memory / 2**30:.3g}"
            return self.stop(Status.FAILED, f"the cell took {sizes}; ended from outside")
        return None

    def underway(self) -> Underway:
        """What it is doing."""
        iterations = heartbeat.iterations_seen(self._pulse.read_bytes())
        return Underway(tuple(self.cells), time.monotonic() - self._begun, iterations)

    def stop(self, status: Status, reason: str) -> None:
        """End it, and what it started; ``status`` and ``reason`` stand in the record of its cell."""
        self.verdict = self.verdict or (status, reason)
        self.kill()

    def on_exit(self, threads: int) -> tuple[dict[str, Any] | None, list[tuple[tuple[Cell, ...], int]]]:
        """It has ended: the record of its cell, or what is to be begun again: the cell, or each of several alone."""
        printed = self._printed()
        if self.verdict is None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # it has closed its pipe and goes on without
                self.process.wait(2)
        died = how_it_ended(self.process.returncode)
        self.end()
        if not self.cells:
            return None, []
        if self.count > 1:
            return None, [((cell,), 1) for cell in self.cells]
        cell = self.cells[0]
        if self.verdict is None and self.chance < CHANCES:
            return None, [((cell,), self.chance + 1)]
        times = f" {self.chance} times" if self.chance > 1 else ""
        status, reason = self.verdict or (Status.FAILED, f"the worker process died{times}: {died}")
        record = lost_record(cell, threads, reason) | {"status": status.value}
        return record | ({"output": printed} if printed else {}), []

    def _printed(self) -> str:
        """The end of what was printed since its cell began."""
        self.output.seek(max(0, os.fstat(self.output.fileno()).st_size - LONGEST))
        return printable(self.output.read(LONGEST).decode("utf-8", "replace")).strip()

    def end(self) -> None:
        """End it and let go of it; nothing of it is kept."""
        super().end()
        self._pulse.unlink(missing_ok=True)
