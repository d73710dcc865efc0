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
from smimbench.run.clock import STILL, read_heartbeat
from smimbench.run.loop import Status
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
    """Time and memory limits of one cell (run) (``seconds``, ``memory`` in bytes) and of all cells together (``deadline``).

    Attributes
    ----------
    seconds : float or None
        Of a cell on the wall, from its first moment to its record; ``run.timeout`` counts the algorithm's clock only.
    memory : float or None
        Bytes of the process of a cell.
    deadline : float or None
        Moment (``time.monotonic``) beyond which nothing goes on. What is not finished stays missing.
    """

    seconds: float | None = None
    memory: float | None = None
    deadline: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether the deadline of all cells (runs) has passed."""
        return self.deadline is not None and time.monotonic() > self.deadline


NO_LIMITS = Limits()


@dataclass(eq=False)
class Task:
    """Work for a worker process: the arguments to answer, the third-party packages it needs (``distributions``), and its
    limits: seconds of the algorithm (``timeout``) and without a message (``silence_limit``). ``parse_answer`` checks the
    answer, ``on_event`` gets other messages, ``processes_lost`` of at most ``max_processes`` counts the processes that died
    at it.

    Attributes
    ----------
    arguments : tuple
        What can be pickled.
    distributions : frozenset of str
        Packages of third parties whose code it needs.
    parse_answer : callable
        Makes of the answer what ``EndedTask.answer`` is; raises ValueError if it is none.
    on_event : callable
        Called with what the process reports on the way.
    max_processes : int
        Processes that it may lose before it is given up.
    timeout : float or None
        Seconds on the algorithm's clock; a step that does not return may take half as long again, at least 1 s.
    silence_limit : float or None
        Seconds without any message.
    """

    arguments: tuple[Any, ...]
    distributions: frozenset[str]
    parse_answer: Callable[[object], object] = lambda answer: answer
    on_event: Callable[[WorkerMessage], object] = lambda event: None
    max_processes: int = 1
    timeout: float | None = None
    silence_limit: float | None = None
    processes_lost: int = field(default=0, init=False)


class EndedTask(NamedTuple):
    """Outcome of a task: the last message of its process (``event``) with an answer or an error, or the reason and the status of
    the run if there is neither; ``output`` is what was printed.
    """

    task: Task
    output: str
    event: WorkerMessage | None = None
    reason: str = ""
    status: Status | None = None
    answer: Any = None

    @property
    def may_retry(self) -> bool:
        """Whether the task may be tried again, because its process died."""
        has_died = self.event is None and self.status is None
        return has_died and self.task.processes_lost < self.task.max_processes


class RunningTask(NamedTuple):
    """Task at work in a worker process, with its duration in seconds and number of iterations so far."""

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
    answering_module : str
        Name of the module that answers tasks: its ``task_handler(setup, report)`` is called once in each process and returns a
        function of the arguments of a task; ``report`` sends an event to the parent.
    setup : dict
        Plain values for ``task_handler``, besides ``threads``.
    """

    def __init__(
        self,
        max_workers: int,
        threads: int,
        registry: Any,
        answering_module: str,
        **setup: object,
    ) -> None:
        """Prepare a pool of at most ``max_workers`` processes with this many BLAS threads, which load the plugins of
        ``registry``; the module ``answering_module`` answers the tasks, with the values in ``setup``.
        """
        self.workers: list[_Worker] = []
        self._max_workers = max_workers
        self._registry = registry
        self._setup = {**setup, "module": answering_module, "threads": threads}
        self._events: Events = queue.Queue()

    def run(
        self,
        tasks: Iterable[Task],
        limits: Limits = NO_LIMITS,
        *,
        may_begin: Callable[[Task], bool | None] = lambda task: True,
        on_progress: OnProgress = lambda running_tasks: None,
    ) -> Iterator[EndedTask]:
        """Run tasks in order as processes become free, within ``limits``, and yield the outcome of each as it ends. ``may_begin``
        says whether a task may start now, ``on_progress`` gets the running tasks.

        If a process dies by itself (killed, out of memory), its task is the next to begin, up to
        ``max_processes`` times in all. A task that is stopped at a limit ends there.

        Parameters
        ----------
        limits : Limits
            Tasks that are not done at their end are not yielded.
        may_begin : callable
            Whether a task may begin now; False drops it, None puts it off.
        on_progress : callable
            Called several times a second with the running tasks.
        """
        waiting_tasks = deque(tasks)
        if len({task.distributions for task in waiting_tasks}) > SPARE:
            # In the given order nearly every task would start a process of its own.
            tasks_by_packages = sorted(
                waiting_tasks, key=lambda task: sorted(task.distributions)
            )
            waiting_tasks = deque(tasks_by_packages)
        try:
            while waiting_tasks or any(worker.task for worker in self.workers):
                if limits.is_over:
                    return
                self._assign_tasks(waiting_tasks, may_begin)
                ended_task = self._next_ended_task()
                if ended_task is not None and ended_task.may_retry:
                    waiting_tasks.appendleft(ended_task.task)
                elif ended_task is not None:
                    # The process is not to wait while the caller stores the outcome; where tasks run one by one, as timed ones
                    # do, nothing disturbs them.
                    if self._max_workers > 1 and not limits.is_over:
                        self._assign_tasks(waiting_tasks, may_begin)
                    yield ended_task
                self._enforce_limits(limits)
                on_progress(
                    [worker.running_task() for worker in self.workers if worker.is_busy]
                )
        finally:
            # The caller takes no more outcomes, so running tasks are stopped.
            self._end_workers([worker for worker in self.workers if worker.task])

    def end(self) -> None:
        """Kill all worker processes of the pool."""
        self._end_workers(list(self.workers))

    def _end_workers(self, workers: Iterable[_Worker]) -> None:
        """Kill these worker processes and remove them from the pool."""
        for worker in workers:
            worker.end()
            self.workers.remove(worker)

    def _assign_tasks(
        self, waiting_tasks: deque[Task], may_begin: Callable[[Task], bool | None]
    ) -> None:
        """Assign waiting tasks to idle processes, in order; ``may_begin`` says whether a task may start now (True), later
        (None) or never (False).
        """
        for _ in range(len(waiting_tasks)):
            worker = self._idle_worker(waiting_tasks[0].distributions)
            if worker is None:
                return
            task = waiting_tasks.popleft()
            begins_now = may_begin(task)
            if begins_now:
                worker.begin_task(task)
            elif begins_now is None:
                waiting_tasks.append(task)

    def _idle_worker(self, distributions: frozenset[str]) -> _Worker | None:
        """Return an idle process with the plugins of these packages (``distributions``), started if needed; None if all
        processes are busy.
        """
        idle_workers = [worker for worker in self.workers if worker.is_idle]
        if len(self.workers) - len(idle_workers) >= self._max_workers:
            return None
        for worker in idle_workers:
            if worker.distributions == distributions:
                return worker
        surplus_count = len(self.workers) - self._max_workers - SPARE + 1
        self._end_workers(idle_workers[: max(0, surplus_count)])
        worker = _Worker(self._registry, distributions, self._setup, self._events)
        self.workers.append(worker)
        return worker

    def _next_ended_task(self) -> EndedTask | None:
        """Wait briefly for a task to end and return its outcome, or None."""
        worker_message = unless(queue.Empty, self._events.get, True, 0.1)
        if worker_message is None:
            return None
        worker, message = worker_message
        if worker not in self.workers:  # it was removed before
            return None
        if message is not None:
            return worker.handle_message(message)
        self.workers.remove(worker)
        return worker.close_and_report()

    def _enforce_limits(self, limits: Limits) -> None:
        """Stop tasks that exceed their limits; if memory runs out, stop the process that uses most of it."""
        for worker in self.workers:
            if worker.is_dead():
                self._events.put((worker, None))
        busy_workers = [worker for worker in self.workers if worker.is_busy]
        for worker in busy_workers:
            worker.enforce_limits(limits)
        machine_memory = psutil.virtual_memory()
        if busy_workers and machine_memory.available < RESERVE * machine_memory.total:
            largest_worker = max(busy_workers, key=_Worker.used_memory)
            process_bytes = largest_worker.used_memory()
            if process_bytes > machine_memory.total // 10:
                reason = f"the machine ran out of memory while it took {process_bytes / 2**30:.1f} GB"
                largest_worker.stop(Status.FAILED, reason)


class _Worker:
    """Parent's side of one worker process: its pipes, the task at work, and its limits."""

    def __init__(
        self,
        registry: Any,
        distributions: frozenset[str],
        setup: JsonObject,
        events: Events,
    ) -> None:
        """Start a worker process with those plugins of ``registry`` that come from the packages ``distributions``, and with
        the values in ``setup``; its messages go to the queue ``events``.
        """
        self.distributions = distributions
        self.task: Task | None = None
        self._stopped: tuple[Status, str] | None = None
        self._task_began = self._last_message = math.inf
        self._death_noticed: float | None = None
        with tempfile.NamedTemporaryFile(
            prefix="smimbench-", delete=False
        ) as heartbeat_file:
            heartbeat_file.write(STILL)
        self._heartbeat = Path(heartbeat_file.name)
        self._output: IO[bytes] = tempfile.TemporaryFile("a+b")  # noqa: SIM115 - closed in end()
        thread_variables = (
            "OMP_NUM_THREADS",
            "OPENBLAS_NUM_THREADS",
            "MKL_NUM_THREADS",
        )
        import_path = [
            import_folder
            for import_folder in sys.path
            if import_folder not in registry.foreign_path
        ]
        environment_variables = dict.fromkeys(
            thread_variables, str(setup["threads"])
        ) | dict(os.environ)
        boot_code = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from smimbench.run.executor import main; main()"
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-c",
                boot_code,
                json.dumps(import_path),
            ],  # nothing of the working folder comes first
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._output,
            env=environment_variables,
            start_new_session=True,  # Ctrl-C reaches the parent alone, and what a plugin starts ends with it
        )
        plugin_setup = {
            "paths": registry.paths,
            "third_party": bool(distributions),
            "only": sorted(distributions),
        }
        self._send(
            json.dumps(
                {**setup, **plugin_setup, "heartbeat": heartbeat_file.name}
            ).encode()
        )
        start_listening(
            self.process.stdout, lambda message: events.put((self, message))
        )

    def _send(self, message: bytes) -> None:
        """Send a message to the process; if it is dead, the pipe of answers reports that too."""
        unless(OSError, send, self.process.stdin, message)

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
        notice_time = self._death_noticed
        return notice_time is not None and time.monotonic() - notice_time > 0.5

    def begin_task(self, task: Task) -> None:
        """Send a task to the process."""
        self.task = task
        # The time of the task counts from the process's first answer, because it may still be starting.
        self._task_began = self._last_message = math.inf
        self._output.truncate(0)
        with open(self._heartbeat, "r+b") as heartbeat_file:
            heartbeat_file.write(STILL)
        self._send(pickle.dumps(task.arguments))

    def handle_message(self, message: bytes) -> EndedTask | None:
        """Handle one message of the process; return the outcome of its task if the message ends it."""
        self._last_message = time.monotonic()
        task, answer = self.task, None
        try:
            event = json.loads(message)
            if task is None or not isinstance(event, dict):
                raise ValueError(
                    "the worker process sent a message without having a task"
                )
            if "begun" in event:
                self._task_began = self._last_message
            elif "answer" in event:
                answer = task.parse_answer(event["answer"])
            elif "error" not in event:
                task.on_event(event)
        except (ValueError, TypeError, KeyError, RecursionError):
            reason = "the worker process sent something that is no answer to its task"
            self.stop(Status.FAILED, reason)
            return None
        if not event.keys() & {"answer", "error"}:
            return None
        self.task = None
        return EndedTask(task, self._printed_lines(), event, answer=answer)

    def enforce_limits(self, limits: Limits) -> None:
        """Stop the process if its task exceeds a limit."""
        task: Any = self.task
        if os.fstat(self._output.fileno()).st_size > 1 << 24:
            self._output.truncate(0)
        task_seconds = time.monotonic() - self._task_began
        silent_seconds = time.monotonic() - self._last_message
        if task.timeout is not None:
            algorithm_seconds = read_heartbeat(self._heartbeat)[0]
            if algorithm_seconds > task.timeout + max(1.0, 0.5 * task.timeout):
                reason = f"{task.timeout:g} s reached in a step that did not return"
                self.stop(Status.TIMEOUT, f"{reason}; ended from outside")
        if limits.seconds is not None and task_seconds > limits.seconds:
            reason = f"the cell took more than {limits.seconds:g} s"
            self.stop(Status.TIMEOUT, f"{reason}; ended from outside")
        if task.silence_limit is not None and silent_seconds > task.silence_limit:
            reason = f"no new number for {task.silence_limit:g} s"
            self.stop(Status.TIMEOUT, f"{reason}; ended from outside")
        if (
            limits.memory is not None
            and (process_bytes := self.used_memory()) > limits.memory
        ):
            memory_text = (
                f"{process_bytes / 2**30:.3g} GB, more than {limits.memory / 2**30:.3g}"
            )
            self.stop(Status.FAILED, f"the cell took {memory_text}; ended from outside")

    def running_task(self) -> RunningTask:
        """Return the running task of the process."""
        assert self.task is not None
        seconds = max(0.0, time.monotonic() - self._task_began)
        return RunningTask(self.task, seconds, read_heartbeat(self._heartbeat)[1])

    def stop(self, status: Status, reason: str) -> None:
        """Stop the process and its children; ``status`` and ``reason`` become the outcome of its task."""
        self._stopped = self._stopped or (status, reason)
        self._kill()

    def close_and_report(self) -> EndedTask | None:
        """Release a process that has ended or does not respond, and return the outcome of its task."""
        printed_lines = self._printed_lines()
        if self._stopped is None:  # it may have closed its pipe and go on without
            unless(subprocess.TimeoutExpired, self.process.wait, 2.0)
        reason = exit_reason(self.process.returncode)
        self.end()
        task, self.task = self.task, None
        if task is None:
            return None
        if self._stopped is not None:
            status, reason = self._stopped
            return EndedTask(task, printed_lines, None, reason, status)
        task.processes_lost += 1
        return EndedTask(task, printed_lines, None, reason)

    def _printed_lines(self) -> str:
        """Return the last lines that the process has printed since its task began."""
        self._output.seek(max(0, os.fstat(self._output.fileno()).st_size - LONGEST))
        return printable(self._output.read(LONGEST).decode("utf-8", "replace")).strip()

    def used_memory(self) -> int:
        """Memory in bytes used by the process and its children."""
        memory_infos = [
            unless(psutil.Error, tree_process.memory_info)
            for tree_process in self._process_tree()
        ]
        return sum(
            memory_info.rss for memory_info in memory_infos if memory_info is not None
        )

    def _process_tree(self) -> list[psutil.Process]:
        """Return the process and all its descendants, including those outside its process group."""
        if self.process.poll() is not None:
            return []
        root_process = unless(psutil.Error, psutil.Process, self.process.pid)
        if root_process is None:
            return []
        return [
            root_process,
            *(unless(psutil.Error, root_process.children, True) or ()),
        ]

    def _kill(self) -> None:
        """Kill the process and all its descendants."""
        process_tree = self._process_tree()
        if hasattr(os, "killpg"):  # there are groups on POSIX only
            unless(OSError, os.killpg, self.process.pid, signal.SIGKILL)
        for tree_process in process_tree:
            unless(psutil.Error, tree_process.kill)

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
    """Write one message (``data``), with its length, to a stream."""
    stream.write(HEAD.pack(len(data)) + data)
    stream.flush()


def start_listening(
    stream: Any, on_message: Callable[[bytes | None], object], max_length: int = 1 << 32
) -> None:
    """Start a thread that passes each message of a stream, of at most ``max_length`` bytes, to ``on_message``, and None at
    its end.
    """

    def read_messages() -> None:
        """Read messages until the stream ends or holds something else."""
        try:
            with stream:
                while len(header := stream.read(HEAD.size)) == HEAD.size:
                    (message_length,) = HEAD.unpack(header)
                    if (
                        message_length > max_length
                        or len(message := stream.read(message_length)) < message_length
                    ):
                        break
                    on_message(message)
        finally:
            on_message(None)

    threading.Thread(target=read_messages, daemon=True).start()


def exit_reason(exit_code: int | None) -> str:
    """Return a description of how a process ended, from its exit code."""
    if exit_code is None:
        return "it closed its pipe"
    if exit_code >= 0:
        return f"it left with exit code {exit_code} before it was finished"
    try:
        signal_name = signal.Signals(-exit_code).name
    except ValueError:
        signal_name = f"signal {-exit_code}"
    return (
        f"{signal_name} (out of memory, or killed)"
        if signal_name == "SIGKILL"
        else signal_name
    )


# -- in the worker process ------------------------------------------------------------------------------------------------


def main() -> None:
    """Main function of a worker process: receives its ``setup`` (plugins, threads, module), and runs tasks until the parent
    closes the pipe.
    """
    messages, answer_pipe = _take_over_pipes()
    setup: JsonObject = json.loads(messages.get())

    # Only a worker needs these modules; without them the parent starts faster.
    from smimbench.files import error_line, plain_value
    from smimbench.registry.registry import Registry, set_registry
    from smimbench.run.clock import start_heartbeat

    start_heartbeat(Path(setup["heartbeat"]))
    set_registry(
        Registry(setup["paths"], third_party=setup["third_party"], only=setup["only"])
    )
    worker_pid = os.getpid()

    def send_event(**event: object) -> None:
        """Send an event to the parent."""
        error_message = json.dumps(event, default=plain_value).encode()
        if os.getpid() != worker_pid:  # a copy that a plugin has forked and forgotten
            os._exit(0)
        send(answer_pipe, error_message)

    answer_task = importlib.import_module(setup["module"]).task_handler(
        setup, send_event
    )
    while True:
        arguments = pickle.loads(messages.get())
        send_event(begun=True)
        try:
            answer = answer_task(*arguments)
            for stream in (sys.stdout, sys.stderr):
                # A plugin may have removed or closed the stream.
                if stream is not None and not stream.closed:
                    stream.flush()
            send_event(answer=answer)
        except BaseException as error:  # a plugin may raise anything
            error_name, _, error_message = error_line(error).partition(": ")
            send_event(
                error=error_name,
                key=str(getattr(error, "key", "")),
                message=error_message,
            )


def _take_over_pipes() -> tuple[queue.SimpleQueue[bytes], IO[bytes]]:
    """Return the pipes of tasks and answers, and redirect printed output to the file that the parent reads."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    _end_with_parent()
    task_pipe = os.fdopen(os.dup(0), "rb")
    answer_pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what plugins print must not look like an answer
    faulthandler.enable()
    messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    # If the pipe has ended, the parent has ended or needs no more answers.
    start_listening(
        task_pipe,
        lambda message: os._exit(1) if message is None else messages.put(message),
        sys.maxsize,
    )
    return messages, answer_pipe


def _end_with_parent() -> None:
    """Let the operating system kill this process when its parent ends, even during C code that never returns.

    What its children start and leave behind becomes its own, so that it can be found and ended, whatever group it is in.
    """
    if sys.platform == "linux":  # elsewhere the end of the pipe has to do
        libc = ctypes.CDLL(None)
        libc.prctl(1, signal.SIGKILL)
        libc.prctl(36, 1, 0, 0, 0)
