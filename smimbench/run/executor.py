"""Supervised processes: started with the plugins they need, monitored, and stopped together with their children.

A process that dies is replaced; one that takes too long, too much memory, or says nothing for too long is killed. What it prints
is kept. A process serves one set of distributions only: whatever their code has changed in it, work of others never sees.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import queue
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

import psutil

from smimbench.files import JsonObject, printable, unless
from smimbench.run.loop import STILL, Status, read_beat
from smimbench.run.record import LONGEST

Events = queue.Queue[tuple["_Worker", bytes | None]]
OnLook = Callable[[list["Underway"]], None]

RESERVE = 0.03
"""Part of the memory of the machine that stays free; doubled, a process that takes it all is ended that much earlier."""
SPARE = 4
"""Processes that wait for work of their distributions besides those at work; with more, memory is held for fewer starts."""


@dataclass(frozen=True)
class Limits:
    """Time and memory limits of one cell and of all cells together.

    Attributes
    ----------
    seconds : float or None
        Of a cell on the wall, from its first moment to its record; ``run.timeout`` counts the algorithm's clock only.
    memory : float or None
        Bytes of the process of a cell.
    end : float or None
        Moment (``time.monotonic``) beyond which nothing goes on. What is not finished stays missing.
    """

    seconds: float | None = None
    memory: float | None = None
    end: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether the end has come."""
        return self.end is not None and time.monotonic() > self.end


NO_LIMITS = Limits()


@dataclass(eq=False)
class Task:
    """A task for a worker process.

    Attributes
    ----------
    arguments : tuple
        What can be pickled.
    distributions : frozenset of str
        Packages of third parties whose code it needs.
    accept : callable
        Makes of the answer what ``Ended.answer`` is; raises ValueError if it is none.
    on_event : callable
        Called with what the process reports on the way.
    chances : int
        Processes that it may lose before it is given up.
    timeout : float or None
        Seconds on the algorithm's clock; a step that does not return may take half as long again, at least 1 s.
    patience : float or None
        Seconds without any message.
    """

    arguments: tuple[Any, ...]
    distributions: frozenset[str]
    accept: Callable[[Any], Any] = lambda answer: answer
    on_event: Callable[[JsonObject], object] = lambda event: None
    chances: int = 1
    timeout: float | None = None
    patience: float | None = None
    lost: int = field(default=0, init=False)


class Ended(NamedTuple):
    """How a task ended: with an answer or error, or with a reason why there is none, and a status if it was stopped."""

    task: Task
    output: str
    event: JsonObject | None = None
    reason: str = ""
    status: Status | None = None
    answer: Any = None


class Underway(NamedTuple):
    """A running task, with its duration and iterations so far."""

    task: Task
    seconds: float
    iterations: int


class Executor:
    """A pool of worker processes, started as needed and stopped together.

    Parameters
    ----------
    most : int
        Processes at work at a time.
    threads : int
        BLAS threads of each.
    registry : Registry
        Anything with its ``paths`` and ``foreign_path``.
    setup : dict
        ``timing`` of cells, or the ``folder`` of theory that the processes solve (see ``smimbench.run.worker``).
    """

    def __init__(self, most: int, threads: int, registry: Any, **setup: Any) -> None:
        self.workers: list[_Worker] = []
        self._most, self._registry, self._setup = (
            most,
            registry,
            {**setup, "threads": threads},
        )
        self._events: Events = queue.Queue()

    def run(
        self,
        tasks: Iterable[Task],
        limits: Limits = NO_LIMITS,
        *,
        may_begin: Callable[[Task], bool | None] = lambda task: True,
        on_look: OnLook = lambda underway: None,
    ) -> Iterator[Ended]:
        """Run tasks in order as processes become free; yields each as it ends.

        Parameters
        ----------
        limits : Limits
            What is not done at their end is not yielded.
        may_begin : callable
            Whether a task is to be begun now; False drops it, None puts it off.
        on_look : callable
            Told several times a second what is at work.
        """
        waiting = deque(tasks)
        if (
            len({task.distributions for task in waiting}) > SPARE
        ):  # else nearly every one would start a process
            waiting = deque(
                sorted(waiting, key=lambda task: sorted(task.distributions))
            )
        try:
            while waiting or any(worker.task for worker in self.workers):
                if limits.is_over:
                    return
                self._begin(waiting, may_begin)
                worker, message = unless(queue.Empty, self._events.get, True, 0.1) or (
                    None,
                    None,
                )
                if worker in self.workers:  # else its end was noticed before
                    found = (
                        worker.receive(message)
                        if message is not None
                        else worker.on_exit()
                    )
                    if message is None:
                        self.workers.remove(worker)
                    if isinstance(found, Task):
                        waiting.appendleft(found)
                    elif found is not None:
                        yield found
                self._watch(limits)
                on_look(
                    [worker.underway() for worker in self.workers if worker.is_busy]
                )
        finally:
            self._dismiss(
                [worker for worker in self.workers if worker.task]
            )  # nobody waits for it any more

    def end(self) -> None:
        """End all processes, whatever they do."""
        self._dismiss(list(self.workers))

    def _dismiss(self, workers: Iterable[_Worker]) -> None:
        for worker in workers:
            worker.end()
            self.workers.remove(worker)

    def _begin(
        self, waiting: deque[Task], may_begin: Callable[[Task], bool | None]
    ) -> None:
        """Assign tasks to processes while there are both."""
        for _ in range(len(waiting)):
            if (worker := self._idle_worker(waiting[0].distributions)) is None:
                return
            task = waiting.popleft()
            decided = may_begin(task)
            if decided:
                worker.begin(task)
            elif decided is None:
                waiting.append(task)

    def _idle_worker(self, distributions: frozenset[str]) -> _Worker | None:
        """An idle process with these distributions, started if need be; None if the maximum number of processes is busy."""
        free = [worker for worker in self.workers if worker.is_idle]
        if len(self.workers) - len(free) >= self._most:
            return None
        for worker in free:
            if worker.distributions == distributions:
                return worker
        self._dismiss(free[: max(0, len(self.workers) - self._most - SPARE + 1)])
        self.workers.append(
            _Worker(self._registry, distributions, self._setup, self._events)
        )
        return self.workers[-1]

    def _watch(self, limits: Limits) -> None:
        """Stop tasks beyond their limits; if memory runs out, stop the process that uses most."""
        for worker in self.workers:
            if worker.is_silent:
                self._events.put((worker, None))
        busy = [worker for worker in self.workers if worker.is_busy]
        for worker in busy:
            worker.enforce_limits(limits)
        memory = psutil.virtual_memory()
        if busy and memory.available < RESERVE * memory.total:
            largest = max(busy, key=_Worker.memory)
            if (size := largest.memory()) > memory.total // 10:
                largest.stop(
                    Status.FAILED,
                    f"the machine ran out of memory while it took {size / 2**30:.1f} GB",
                )


class _Worker:
    """One worker process and its state."""

    def __init__(
        self,
        registry: Any,
        distributions: frozenset[str],
        setup: JsonObject,
        events: Events,
    ) -> None:
        self.distributions = distributions
        self.task: Task | None = None
        self._verdict: tuple[Status, str] | None = None
        self._begun = self._heard = math.inf
        self._died: float | None = None
        with tempfile.NamedTemporaryFile(prefix="smimbench-", delete=False) as file:
            file.write(STILL)
        self._pulse = Path(file.name)
        self._output: IO[bytes] = tempfile.TemporaryFile("a+b")  # noqa: SIM115 - closed in end()
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        path = [entry for entry in sys.path if entry not in registry.foreign_path]
        environment = dict.fromkeys(names, str(setup["threads"])) | dict(os.environ)
        boot = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from smimbench.run.worker import main; main()"
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-c",
                boot,
                json.dumps(path),
            ],  # nothing of the working folder comes first
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._output,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches the parent alone, and what a plugin starts ends with it
        )
        plugins = {
            "paths": registry.paths,
            "third_party": bool(distributions),
            "only": sorted(distributions),
        }
        self._send(json.dumps({**setup, **plugins, "heartbeat": file.name}).encode())
        listen(self.process.stdout, lambda message: events.put((self, message)))

    def _send(self, message: bytes) -> None:
        unless(
            OSError, send, self.process.stdin, message
        )  # if it is dead, the other pipe says so too

    @property
    def is_idle(self) -> bool:
        """Whether the process can be given a task."""
        return (
            self.task is None and self._verdict is None and self.process.poll() is None
        )

    @property
    def is_busy(self) -> bool:
        """Whether the process is working on a task within its limits."""
        return self.task is not None and self._verdict is None

    @property
    def is_silent(self) -> bool:
        """Whether the process ended half a second ago, so that all its output has been read."""
        if self._died is None and self.process.poll() is not None:
            self._died = time.monotonic()
        return self._died is not None and time.monotonic() - self._died > 0.5

    def begin(self, task: Task) -> None:
        """Give the process a task."""
        self.task = task
        self._begun = self._heard = (
            math.inf
        )  # until the process says that it has begun: it may still be starting
        self._output.truncate(0)
        with open(self._pulse, "r+b") as file:
            file.write(STILL)
        self._send(pickle.dumps(task.arguments))

    def receive(self, message: bytes) -> Ended | None:
        """Handle one message of the process; returns how its task ended, if the message says so."""
        self._heard = time.monotonic()
        task, answer = self.task, None
        try:
            event = json.loads(message)
            if task is None or not isinstance(event, dict):
                raise ValueError("nothing was asked")
            if "begun" in event:
                self._begun = self._heard
            elif "answer" in event:
                answer = task.accept(event["answer"])
            elif "error" not in event:
                task.on_event(event)
        except (ValueError, TypeError, KeyError, RecursionError):
            self.stop(
                Status.FAILED,
                "the worker process sent something that is no answer to its task",
            )
            return None
        if not event.keys() & {"answer", "error"}:
            return None
        self.task = None
        return Ended(task, self._printed(), event, answer=answer)

    def enforce_limits(self, limits: Limits) -> None:
        """Stop the process if its task is beyond a limit."""
        task: Any = self.task
        now, after = time.monotonic(), "ended from outside"
        if os.fstat(self._output.fileno()).st_size > 1 << 24:
            self._output.truncate(0)
        if task.timeout is not None and read_beat(self._pulse)[0] > task.timeout + max(
            1.0, 0.5 * task.timeout
        ):
            self.stop(
                Status.TIMEOUT,
                f"{task.timeout:g} s reached in a step that did not return; {after}",
            )
        if limits.seconds is not None and now - self._begun > limits.seconds:
            self.stop(
                Status.TIMEOUT, f"the cell took more than {limits.seconds:g} s; {after}"
            )
        if task.patience is not None and now - self._heard > task.patience:
            self.stop(Status.TIMEOUT, f"no new number for {task.patience:g} s; {after}")
        if limits.memory is not None and (size := self.memory()) > limits.memory:
            sizes = f"{size / 2**30:.3g} GB, more than {limits.memory / 2**30:.3g}"
            self.stop(Status.FAILED, f"the cell took {sizes}; {after}")

    def underway(self) -> Underway:
        """The task that the process is working on."""
        assert self.task is not None
        return Underway(
            self.task,
            max(0.0, time.monotonic() - self._begun),
            read_beat(self._pulse)[1],
        )

    def stop(self, status: Status, reason: str) -> None:
        """Stop the process and its children; ``status`` and ``reason`` describe how its task ended."""
        self._verdict = self._verdict or (status, reason)
        self._kill()

    def on_exit(self) -> Ended | Task | None:
        """Handle the end of the process: returns how its task ended, or the task if it must be started again."""
        printed = self._printed()
        if self._verdict is None:  # it may have closed its pipe and go on without
            unless(subprocess.TimeoutExpired, self.process.wait, 2.0)
        died = how_it_ended(self.process.returncode)
        self.end()
        task, self.task = self.task, None
        if task is None:
            return None
        if self._verdict is not None:
            return Ended(task, printed, None, self._verdict[1], self._verdict[0])
        task.lost += 1
        return task if task.lost < task.chances else Ended(task, printed, None, died)

    def _printed(self) -> str:
        """The last lines printed since the task began."""
        self._output.seek(max(0, os.fstat(self._output.fileno()).st_size - LONGEST))
        return printable(self._output.read(LONGEST).decode("utf-8", "replace")).strip()

    def memory(self) -> int:
        """Memory in bytes used by the process and its children."""
        known = [unless(psutil.Error, one.memory_info) for one in self._family()]
        return sum(one.rss for one in known if one is not None)

    def _family(self) -> list[psutil.Process]:
        """The process and all its descendants, including those that left its process group (see ``begin_worker``)."""
        leader = (
            None
            if self.process.poll() is not None
            else unless(psutil.Error, psutil.Process, self.process.pid)
        )
        return (
            []
            if leader is None
            else [leader, *(unless(psutil.Error, leader.children, True) or ())]
        )

    def _kill(self) -> None:
        family = self._family()
        if hasattr(os, "killpg"):  # there are groups on POSIX only
            unless(OSError, os.killpg, self.process.pid, signal.SIGKILL)
        for one in family:
            unless(psutil.Error, one.kill)

    def end(self) -> None:
        """Kill the process and release its resources, but for the pipe of answers, which its reader thread closes."""
        self._kill()
        self.process.wait()
        for stream in (self.process.stdin, self._output):
            unless(OSError, stream.close)  # type: ignore[union-attr]
        self._pulse.unlink(missing_ok=True)


HEAD = struct.Struct(">Q")
"""Head of a message: its length."""


def send(stream: Any, data: bytes) -> None:
    """Send one message."""
    stream.write(HEAD.pack(len(data)) + data)
    stream.flush()


def listen(
    stream: Any, receive: Callable[[bytes | None], object], longest: int = 1 << 32
) -> None:
    """Hand on the messages of a stream from now on; None is its end."""

    def read() -> None:
        try:
            with stream:
                while len(head := stream.read(HEAD.size)) == HEAD.size:
                    (length,) = HEAD.unpack(head)
                    if length > longest or len(message := stream.read(length)) < length:
                        break
                    receive(message)
        finally:
            receive(None)

    threading.Thread(target=read, daemon=True).start()


def how_it_ended(code: int | None) -> str:
    """Description of how a process ended."""
    if code is None:
        return "it closed its pipe"
    if code >= 0:
        return f"it left with exit code {code} before it was finished"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"{name} (out of memory, or killed)" if name == "SIGKILL" else name
