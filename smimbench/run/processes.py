"""Cells in a crew of processes that are watched from outside: one that dies is replaced, one that takes too long or too
much memory is ended.

A cell whose process died gets a second chance in a new one; then it is a failed cell, with the signal for a reason.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
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
from smimbench.run.worker import BOOT, HEAD, send

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from smimbench.registry.registry import Registry
    from smimbench.run.claims import Claims
    from smimbench.suite.cells import Cell

__all__ = ["RESERVE", "Crew", "Limits", "Underway", "end_group", "how_it_ended", "in_processes", "with_crew"]

POLL = 0.1
"""Seconds between two looks at the processes; doubled, limits are kept that much less exactly."""
GRACE = 0.5
"""Part of ``run.timeout`` (at least ``LEAST_GRACE`` seconds) that a step may take longer before it is ended from outside."""
LEAST_GRACE = 1.0
CHANCES = 2
"""Processes that a cell may lose; with more, a cell that crashes costs more before it is recorded as failed."""
RESERVE = 0.03
"""Part of the memory of the machine that stays free; doubled, a process that takes it all is ended that much earlier."""
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


class Crew:
    """Processes that run cells, with the plugins of a registry; made as they are needed, ended together.

    Parameters
    ----------
    most : int
        Processes at a time.
    threads : int
        BLAS threads of each.
    """

    def __init__(self, most: int, threads: int, registry: Registry, *, timing: bool = False) -> None:
        self.events: queue.Queue[tuple[_WatchedProcess, bytes | None]] = queue.Queue()
        self.workers: list[_WatchedProcess] = []
        self.threads = threads
        self._most = most
        self._setup = {
            "paths": registry.paths,
            "third_party": registry.third_party,
            "threads": threads,
            "timing": timing,
        }

    def idle(self) -> _WatchedProcess | None:
        """A process with nothing to do, a new one if there are too few; None if all are busy."""
        for worker in self.workers:
            if not worker.cells and worker.verdict is None and worker.alive:
                return worker
        if len(self.workers) >= self._most:
            return None
        self.workers.append(_WatchedProcess(self._setup, self.events))
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
    crew = Crew(workers, threads, registry, timing=timing)
    try:
        yield from with_crew(groups, crew, limits, claims, on_look)
    finally:
        if claims is not None:
            claims.close()
        crew.end()


def with_crew(
    groups: Sequence[Sequence[Cell]],
    crew: Crew,
    limits: Limits | None = None,
    claims: Claims | None = None,
    on_look: Callable[[list[Underway]], None] | None = None,
) -> Iterator[dict[str, Any]]:
    """Run cells in the processes of a crew that has nothing else to do, and that goes on to live."""
    limits = limits or Limits()
    end = None if limits.budget is None else time.monotonic() + limits.budget
    waiting = deque((tuple(group), 1) for group in groups)
    while waiting or any(worker.cells for worker in crew.workers):
        late = end is not None and time.monotonic() > end
        if late:
            return
        for _ in range(len(waiting)):
            if (idle := crew.idle()) is None:
                break
            cells, chance = waiting.popleft()
            ours = tuple(cell for cell in cells if claims is None or claims.take(cell.key))
            if ours:
                idle.begin(ours, chance)
            for cell in cells:  # of another run, until that is done with it
                if claims is not None and cell not in ours and not claims.is_done(cell.key):
                    waiting.append(((cell,), chance))
        with contextlib.suppress(queue.Empty):
            worker, message = crew.events.get(timeout=POLL)
            if message is None:
                crew.workers.remove(worker)
                record, again = worker.buried(crew.threads)
                waiting.extendleft(reversed(again))
                if record is not None:
                    yield record
            elif (record := worker.heard(message)) is not None:
                yield record
        _watch_crew(crew.workers, limits)
        if on_look is not None:
            on_look([worker.underway() for worker in crew.workers if worker.cells and worker.verdict is None])
        if claims is not None:
            claims.touch()


def _watch_crew(crew: Sequence[_WatchedProcess], limits: Limits) -> None:
    """End what is beyond its limits; where memory runs out, the process that has most of it."""
    busy = [worker for worker in crew if worker.cells and worker.verdict is None]
    for worker in busy:
        worker.judge(limits)
    memory = psutil.virtual_memory()
    if busy and memory.available < RESERVE * memory.total:
        largest = max(busy, key=_WatchedProcess.memory)
        if (size := largest.memory()) > memory.total // 10:
            largest.kill(Status.FAILED, f"the machine ran out of memory while the cell took {size / 2**30:.1f} GB")


class _WatchedProcess:
    """One process, and what is known of it."""

    def __init__(self, setup: dict[str, Any], events: queue.Queue[tuple[_WatchedProcess, bytes | None]]) -> None:
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
        self._output = tempfile.TemporaryFile("a+b")  # noqa: SIM115 - closed in end()
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        usual = {name: str(setup["threads"]) for name in names}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", BOOT, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._output,
            env=usual | dict(os.environ),
            start_new_session=True,  # Ctrl-C reaches the parent alone, and what a plugin starts ends with it
        )
        self._tell(json.dumps({**setup, "heartbeat": str(self._pulse)}).encode())
        threading.Thread(target=self._listen, args=(events,), daemon=True).start()

    @property
    def alive(self) -> bool:
        """Whether the process is there; one that died while it had nothing to do says so by its pipe as well."""
        return self._process.poll() is None

    def _tell(self, message: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it is dead, which the other pipe says too
            send(self._process.stdin, message)

    def _listen(self, events: queue.Queue[tuple[_WatchedProcess, bytes | None]]) -> None:
        stream = self._process.stdout
        assert stream is not None
        with contextlib.suppress(OSError, ValueError, MemoryError):
            while len(head := stream.read(HEAD.size)) == HEAD.size:
                (length,) = HEAD.unpack(head)
                if length > 1 << 32 or len(message := stream.read(length)) < length:
                    break
                events.put((self, message))
        events.put((self, None))

    def begin(self, cells: tuple[Cell, ...], chance: int) -> None:
        """Hand it a cell, or several to be run in one pass."""
        self.cells, self.count = list(cells), len(cells)
        self.chance, self._begun, self._late = chance, time.monotonic(), 0
        self._output.truncate(0)
        with open(self._pulse, "r+b") as file:  # it waits, and does not beat
            file.write(heartbeat.STILL)
        self._tell(pickle.dumps(cells))

    def heard(self, message: bytes) -> dict[str, Any] | None:
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
            self.kill(Status.FAILED, "the worker process sent something that is no record of its cell")
            return None
        self.cells = left
        printed = self._printed()
        return {**record, **({"output": printed} if printed else {})}

    def judge(self, limits: Limits) -> None:
        """End it if its cell is beyond a limit; several share their time, so that each may take as much as alone."""
        timeout = self.cells[0].run.timeout
        took = time.monotonic() - self._begun
        if os.fstat(self._output.fileno()).st_size > LARGEST_OUTPUT:
            self._output.truncate(0)
        if timeout is not None:
            late = heartbeat.clock_seen(self._pulse.read_bytes()) > timeout + max(LEAST_GRACE, GRACE * timeout)
            self._late = self._late + 1 if late else 0
            if self._late > 1:  # the two numbers of a heartbeat are not written at once: look twice
                reason = f"{timeout:g} s reached in a step that did not return; ended from outside"
                return self.kill(Status.TIMEOUT, reason)
        if limits.seconds is not None and self.ready and took > limits.seconds * self.count:
            return self.kill(Status.TIMEOUT, f"the cell took more than {limits.seconds:g} s; ended from outside")
        if limits.memory is not None and (size := self.memory()) > limits.memory:
            sizes = f"{size / 2**30:.3g} GB, more than {limits.memory / 2**30:.3g}"
            return self.kill(Status.FAILED, f"the cell took {sizes}; ended from outside")
        return None

    def underway(self) -> Underway:
        """What it is doing."""
        iterations = heartbeat.iterations_seen(self._pulse.read_bytes())
        return Underway(tuple(self.cells), time.monotonic() - self._begun, iterations)

    def memory(self) -> int:
        """Bytes that it and what it started have in memory."""
        total = 0
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self._process.pid)
            for one in (process, *process.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    total += one.memory_info().rss
        return total

    def kill(self, status: Status, reason: str) -> None:
        """End it, and what it started; ``status`` and ``reason`` stand in the record of its cell."""
        self.verdict = self.verdict or (status, reason)
        end_group(self._process.pid)
        with contextlib.suppress(OSError):
            self._process.kill()

    def buried(self, threads: int) -> tuple[dict[str, Any] | None, list[tuple[tuple[Cell, ...], int]]]:
        """It has ended: the record of its cell, or what is to be begun again: the cell, or each of several alone."""
        printed = self._printed()
        if self.verdict is None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # it has closed its pipe and goes on without
                self._process.wait(2)
        died = how_it_ended(self._process.returncode)
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
        self._output.seek(max(0, os.fstat(self._output.fileno()).st_size - LONGEST))
        return printable(self._output.read(LONGEST).decode("utf-8", "replace")).strip()

    def end(self) -> None:
        """Let go of it; nothing of it is kept."""
        end_group(self._process.pid)  # what it started and left behind included
        with contextlib.suppress(OSError):
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._output):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self._pulse.unlink(missing_ok=True)


def end_group(leader: int) -> None:
    """End a process that leads a group, and what it started."""
    with contextlib.suppress(OSError, AttributeError):  # there are groups on POSIX only
        os.killpg(leader, signal.SIGKILL)


def how_it_ended(code: int | None) -> str:
    """How a process ended, in words."""
    if code is None:
        return "it closed its pipe"
    if code >= 0:
        return f"it left with exit code {code} before its cell was finished"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"{name} (out of memory, or killed)" if name == "SIGKILL" else name
