"""Supervised processes: started with the plugins they need, monitored, and stopped together with their children.

A process that dies is replaced; one that takes too long, too much memory, or sends nothing for too long is killed. Its output is
kept. A process serves one set of distributions only: whatever their code has changed in it, work of others never sees.

``Executor`` runs in the parent, ``main`` in each worker: tasks come on one pipe and answers leave on another, whatever a plugin
does. A worker ends with its parent, also if that was killed.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
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

WorkerMessage = JsonObject
"""What a worker process sends: progress, a remark, its answer or an error."""
Events = queue.Queue[tuple["_Worker", bytes | None]]
OnProgress = Callable[[list["RunningTask"]], None]

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
        """Whether the deadline of all cells has passed."""
        return self.end is not None and time.monotonic() > self.end


NO_LIMITS = Limits()


@dataclass(eq=False)
class Task:
    """Task for a worker process.

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
    processes_allowed : int
        Processes that it may lose before it is given up.
    timeout : float or None
        Seconds on the algorithm's clock; a step that does not return may take half as long again, at least 1 s.
    patience : float or None
        Seconds without any message.
    """

    arguments: tuple[Any, ...]
    distributions: frozenset[str]
    accept: Callable[[object], object] = lambda answer: answer
    on_event: Callable[[WorkerMessage], object] = lambda event: None
    processes_allowed: int = 1
    timeout: float | None = None
    patience: float | None = None
    processes_lost: int = field(default=0, init=False)


class Ended(NamedTuple):
    """Outcome of a task: an answer or an error, or the reason why there is neither."""

    task: Task
    output: str
    event: WorkerMessage | None = None
    reason: str = ""
    status: Status | None = None
    answer: Any = None

    @property
    def may_retry(self) -> bool:
        """Whether the task may be tried again, because its process died."""
        died = self.event is None and self.status is None
        return died and self.task.processes_lost < self.task.processes_allowed


class RunningTask(NamedTuple):
    """Running task, with its duration and number of iterations so far."""

    task: Task
    seconds: float
    iterations: int


class Executor:
    """A pool of worker processes, started as needed and stopped together.

    Parameters
    ----------
    max_workers : int
        Processes at work at a time.
    threads : int
        BLAS threads of each.
    registry : Registry
        Anything with its ``paths`` and ``foreign_path``.
    module : str
        Name of the module that answers tasks: its ``answerer(setup, report)`` is called once in each process and returns a
        function of the arguments of a task; ``report`` sends an event to the parent.
    setup : dict
        Plain values for ``answerer``, besides ``threads``.
    """

    def __init__(
        self,
        max_workers: int,
        threads: int,
        registry: Any,
        module: str,
        **setup: object,
    ) -> None:
        self.workers: list[_Worker] = []
        self._max_workers = max_workers
        self._registry = registry
        self._setup = {**setup, "module": module, "threads": threads}
        self._events: Events = queue.Queue()

    def run(
        self,
        tasks: Iterable[Task],
        limits: Limits = NO_LIMITS,
        *,
        may_begin: Callable[[Task], bool | None] = lambda task: True,
        on_progress: OnProgress = lambda running: None,
    ) -> Iterator[Ended]:
        """Run tasks in order as processes become free, and yield each as it ends.

        If a process dies by itself (killed, out of memory), its task is the next to begin, up to
        ``processes_allowed`` times in all. A task that is stopped at a limit ends there.

        Parameters
        ----------
        limits : Limits
            Tasks that are not done at their end are not yielded.
        may_begin : callable
            Whether a task may begin now; False drops it, None puts it off.
        on_progress : callable
            Called several times a second with the running tasks.
        """
        waiting = deque(tasks)
        if len({task.distributions for task in waiting}) > SPARE:
            # Otherwise nearly every task would start a process.
            by_packages = sorted(waiting, key=lambda task: sorted(task.distributions))
            waiting = deque(by_packages)
        try:
            while waiting or any(worker.task for worker in self.workers):
                if limits.is_over:
                    return
                self._assign(waiting, may_begin)
                ended = self._next_ended()
                if ended is not None and ended.may_retry:
                    waiting.appendleft(ended.task)
                elif ended is not None:
                    yield ended
                self._enforce(limits)
                on_progress([w.running_task() for w in self.workers if w.is_busy])
        finally:
            # Nobody waits for these tasks any more.
            self._end_workers([worker for worker in self.workers if worker.task])

    def end(self) -> None:
        """Kill all worker processes."""
        self._end_workers(list(self.workers))

    def _end_workers(self, workers: Iterable[_Worker]) -> None:
        for worker in workers:
            worker.end()
            self.workers.remove(worker)

    def _assign(
        self, waiting: deque[Task], may_begin: Callable[[Task], bool | None]
    ) -> None:
        """Assign waiting tasks to idle processes."""
        for _ in range(len(waiting)):
            worker = self._idle_worker(waiting[0].distributions)
            if worker is None:
                return
            task = waiting.popleft()
            decision = may_begin(task)
            if decision:
                worker.begin(task)
            elif decision is None:
                waiting.append(task)

    def _idle_worker(self, distributions: frozenset[str]) -> _Worker | None:
        """Return an idle process with the given plugins, started if needed; None if all processes are busy."""
        idle = [worker for worker in self.workers if worker.is_idle]
        if len(self.workers) - len(idle) >= self._max_workers:
            return None
        for worker in idle:
            if worker.distributions == distributions:
                return worker
        surplus = len(self.workers) - self._max_workers - SPARE + 1
        self._end_workers(idle[: max(0, surplus)])
        worker = _Worker(self._registry, distributions, self._setup, self._events)
        self.workers.append(worker)
        return worker

    def _next_ended(self) -> Ended | None:
        """Wait briefly for a task to end and return its outcome, or None."""
        event = unless(queue.Empty, self._events.get, True, 0.1)
        if event is None or event[0] not in self.workers:  # its end was noticed before
            return None
        worker, message = event
        if message is not None:
            return worker.receive(message)
        self.workers.remove(worker)
        return worker.bury()

    def _enforce(self, limits: Limits) -> None:
        """Stop tasks that exceed their limits; if memory runs out, stop the process that uses most of it."""
        for worker in self.workers:
            if worker.is_dead():
                self._events.put((worker, None))
        busy = [worker for worker in self.workers if worker.is_busy]
        for worker in busy:
            worker.enforce(limits)
        memory = psutil.virtual_memory()
        if busy and memory.available < RESERVE * memory.total:
            largest = max(busy, key=_Worker.memory)
            size = largest.memory()
            if size > memory.total // 10:
                reason = (
                    f"the machine ran out of memory while it took {size / 2**30:.1f} GB"
                )
                largest.stop(Status.FAILED, reason)


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
        self._stopped: tuple[Status, str] | None = None
        self._task_began = self._last_message = math.inf
        self._death_noticed: float | None = None
        with tempfile.NamedTemporaryFile(prefix="smimbench-", delete=False) as file:
            file.write(STILL)
        self._heartbeat = Path(file.name)
        self._output: IO[bytes] = tempfile.TemporaryFile("a+b")  # noqa: SIM115 - closed in end()
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        path = [entry for entry in sys.path if entry not in registry.foreign_path]
        environment = dict.fromkeys(names, str(setup["threads"])) | dict(os.environ)
        boot = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from smimbench.run.executor import main; main()"
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
            self.task is None and self._stopped is None and self.process.poll() is None
        )

    @property
    def is_busy(self) -> bool:
        """Whether the process is working on a task within its limits."""
        return self.task is not None and self._stopped is None

    def is_dead(self) -> bool:
        """Whether the process ended more than half a second ago, so that all its output has been read."""
        if self._death_noticed is None and self.process.poll() is not None:
            self._death_noticed = time.monotonic()
        noticed = self._death_noticed
        return noticed is not None and time.monotonic() - noticed > 0.5

    def begin(self, task: Task) -> None:
        """Send a task to the process."""
        self.task = task
        # Until it answers that it has begun: it may still be starting.
        self._task_began = self._last_message = math.inf
        self._output.truncate(0)
        with open(self._heartbeat, "r+b") as file:
            file.write(STILL)
        self._send(pickle.dumps(task.arguments))

    def receive(self, message: bytes) -> Ended | None:
        """Handle one message of the process; return the outcome of its task if the message ends it."""
        self._last_message = time.monotonic()
        task, answer = self.task, None
        try:
            event = json.loads(message)
            if task is None or not isinstance(event, dict):
                raise ValueError("a message arrived although the process has no task")
            if "begun" in event:
                self._task_began = self._last_message
            elif "answer" in event:
                answer = task.accept(event["answer"])
            elif "error" not in event:
                task.on_event(event)
        except (ValueError, TypeError, KeyError, RecursionError):
            reason = "the worker process sent something that is no answer to its task"
            self.stop(Status.FAILED, reason)
            return None
        if not event.keys() & {"answer", "error"}:
            return None
        self.task = None
        return Ended(task, self._printed_lines(), event, answer=answer)

    def enforce(self, limits: Limits) -> None:
        """Stop the process if its task exceeds a limit."""
        task: Any = self.task
        if os.fstat(self._output.fileno()).st_size > 1 << 24:
            self._output.truncate(0)
        seconds = time.monotonic() - self._task_began
        silent = time.monotonic() - self._last_message
        if task.timeout is not None:
            clock = read_beat(self._heartbeat)[0]
            if clock > task.timeout + max(1.0, 0.5 * task.timeout):
                reason = f"{task.timeout:g} s reached in a step that did not return"
                self.stop(Status.TIMEOUT, f"{reason}; ended from outside")
        if limits.seconds is not None and seconds > limits.seconds:
            reason = f"the cell took more than {limits.seconds:g} s"
            self.stop(Status.TIMEOUT, f"{reason}; ended from outside")
        if task.patience is not None and silent > task.patience:
            reason = f"no new number for {task.patience:g} s"
            self.stop(Status.TIMEOUT, f"{reason}; ended from outside")
        if limits.memory is not None and (size := self.memory()) > limits.memory:
            sizes = f"{size / 2**30:.3g} GB, more than {limits.memory / 2**30:.3g}"
            self.stop(Status.FAILED, f"the cell took {sizes}; ended from outside")

    def running_task(self) -> RunningTask:
        """Return the running task of the process."""
        assert self.task is not None
        seconds = max(0.0, time.monotonic() - self._task_began)
        return RunningTask(self.task, seconds, read_beat(self._heartbeat)[1])

    def stop(self, status: Status, reason: str) -> None:
        """Stop the process and its children; ``status`` and ``reason`` become the outcome of its task."""
        self._stopped = self._stopped or (status, reason)
        self._kill()

    def bury(self) -> Ended | None:
        """Release a process that has ended or does not respond, and return the outcome of its task."""
        printed = self._printed_lines()
        if self._stopped is None:  # it may have closed its pipe and go on without
            unless(subprocess.TimeoutExpired, self.process.wait, 2.0)
        reason = how_it_ended(self.process.returncode)
        self.end()
        task, self.task = self.task, None
        if task is None:
            return None
        if self._stopped is not None:
            status, reason = self._stopped
            return Ended(task, printed, None, reason, status)
        task.processes_lost += 1
        return Ended(task, printed, None, reason)

    def _printed_lines(self) -> str:
        """Return the last lines that the process has printed since its task began."""
        self._output.seek(max(0, os.fstat(self._output.fileno()).st_size - LONGEST))
        return printable(self._output.read(LONGEST).decode("utf-8", "replace")).strip()

    def memory(self) -> int:
        """Memory in bytes used by the process and its children."""
        usage = [unless(psutil.Error, p.memory_info) for p in self._process_tree()]
        return sum(memory.rss for memory in usage if memory is not None)

    def _process_tree(self) -> list[psutil.Process]:
        """Return the process and all its descendants, including those outside its process group."""
        if self.process.poll() is not None:
            return []
        leader = unless(psutil.Error, psutil.Process, self.process.pid)
        if leader is None:
            return []
        return [leader, *(unless(psutil.Error, leader.children, True) or ())]

    def _kill(self) -> None:
        family = self._process_tree()
        if hasattr(os, "killpg"):  # there are groups on POSIX only
            unless(OSError, os.killpg, self.process.pid, signal.SIGKILL)
        for process in family:
            unless(psutil.Error, process.kill)

    def end(self) -> None:
        """Kill the process and release its resources (its reader thread closes the pipe of answers)."""
        self._kill()
        self.process.wait()
        for stream in (self.process.stdin, self._output):
            unless(OSError, stream.close)  # type: ignore[union-attr]
        self._heartbeat.unlink(missing_ok=True)


HEAD = struct.Struct(">Q")
"""Head of a message: its length."""


def send(stream: IO[bytes], data: bytes) -> None:
    """Write one message, with its length, to a stream."""
    stream.write(HEAD.pack(len(data)) + data)
    stream.flush()


def listen(
    stream: Any, receive: Callable[[bytes | None], object], longest: int = 1 << 32
) -> None:
    """Start a thread that passes each message of a stream to ``receive``, and None at its end."""

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
    """Return a description of how a process ended, from its exit code."""
    if code is None:
        return "it closed its pipe"
    if code >= 0:
        return f"it left with exit code {code} before it was finished"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"{name} (out of memory, or killed)" if name == "SIGKILL" else name


# -- in the worker process ------------------------------------------------------------------------------------------------


def main() -> None:
    """Main function of a worker process: runs tasks until the parent closes the pipe."""
    inbox, outbox = _take_over_pipes()
    setup: JsonObject = json.loads(inbox.get())

    # Only a worker needs these, and the parent starts faster without.
    from smimbench.files import error_line, plain_value
    from smimbench.registry.registry import Registry, set_registry
    from smimbench.run.loop import beat_to

    beat_to(Path(setup["heartbeat"]))
    set_registry(
        Registry(setup["paths"], third_party=setup["third_party"], only=setup["only"])
    )
    pid = os.getpid()

    def report(**event: object) -> None:
        message = json.dumps(event, default=plain_value).encode()
        if os.getpid() != pid:  # a copy that a plugin has forked and forgotten
            os._exit(0)
        send(outbox, message)

    answer_to = importlib.import_module(setup["module"]).answerer(setup, report)
    while True:
        arguments = pickle.loads(inbox.get())
        report(begun=True)
        try:
            answer = answer_to(*arguments)
            for stream in (sys.stdout, sys.stderr):
                if (
                    stream is not None and not stream.closed
                ):  # a plugin may have done either
                    stream.flush()
            report(answer=answer)
        except BaseException as error:  # a plugin may raise anything
            name, _, message = error_line(error).partition(": ")
            report(error=name, key=str(getattr(error, "key", "")), message=message)


def _take_over_pipes() -> tuple[queue.SimpleQueue[bytes], IO[bytes]]:
    """Return the pipes of tasks and answers, and redirect printed output to the file that the parent reads."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    _end_with_parent()
    source, outbox = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what plugins print must not look like an answer
    faulthandler.enable()
    inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    leave = os._exit  # the registry replaces it while it imports a plugin, and the parent may end just then
    # The end of the pipe is the end of the parent, or of its interest.
    listen(
        source,
        lambda message: leave(1) if message is None else inbox.put(message),
        sys.maxsize,
    )
    return inbox, outbox


def _end_with_parent() -> None:
    """Let the operating system kill this process when its parent ends, even during C code that never returns.

    What its children start and leave behind becomes its own, so that it can be found and ended, whatever group it is in.
    """
    if sys.platform == "linux":  # elsewhere the end of the pipe has to do
        libc = ctypes.CDLL(None)
        libc.prctl(1, signal.SIGKILL)
        libc.prctl(36, 1, 0, 0, 0)
