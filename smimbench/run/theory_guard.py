"""Theory of plugins' items in a process of its own, asked through a pipe and watched from outside.

A posterior that aborts, an algorithm's theory that never returns or takes all memory: its rows say so, the others stay. What
ships with smimbench is solved where it is asked for.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import queue
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from typing import IO, TYPE_CHECKING, Any

import psutil

from smimbench.files import canonical_json, error_line, plain_value, printable
from smimbench.problem.problem import Problem, ProblemError
from smimbench.registry.registry import Registry, get_registry, set_registry
from smimbench.run.processes import RESERVE, end_group, how_it_ended
from smimbench.run.record import LONGEST
from smimbench.run.worker import HEAD, begin_worker, send
from smimbench.suite.cells import as_table, build_algorithm
from smimbench.theory.cache import Progress, TheoryCache
from smimbench.theory.own import own_theory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from smimbench.interfaces import Conditions

__all__ = ["PATIENCE", "GuardedTheory", "main", "strange"]

PATIENCE = 900.0
"""Seconds without any new number after which theory is given up; doubled, one that never returns is noticed that much later."""
POLL = 0.5
"""Seconds between two looks at the process; doubled, it is ended that much later."""
BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from smimbench.run.theory_guard import main; main()"


def strange(*specs: Mapping[str, Any]) -> bool:
    """Whether any of these items came with another package than smimbench."""
    return any("distribution" in spec for spec in specs)


class GuardedTheory(TheoryCache):
    """Answers of theory, as those of its parent class; what is not smimbench's own is solved in another process.

    Raises
    ------
    ProblemError
        What the parent class raises; or that the process ended, or found no new number for ``PATIENCE`` seconds.
    """

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__(folder)
        self._solver: _GuardedProcess | None = None
        self._given_up: dict[str, ProblemError] = {}

    def begin(self, problem: Problem) -> None:
        """See ``TheoryCache``."""
        if strange(*problem.spec.values()):
            self._ask("begin", problem)
        else:
            super().begin(problem)

    def points(self, problem: Problem, alphas: Sequence[float]) -> list[list[dict[str, Any]]]:
        """See ``TheoryCache``."""
        if strange(*problem.spec.values()):
            key = canonical_json(problem.spec)
            missing = [a for a in dict.fromkeys(map(float, alphas)) if self._recall("point", key, a) is None]
            if missing:
                for alpha, found in zip(missing, self._ask("points", problem, missing)):
                    self._remember("point", key, alpha, found)
        return super().points(problem, alphas)

    def read_off(self, problem: Problem, alphas: Sequence[float]) -> list[list[dict[str, Any]]] | None:
        """See ``TheoryCache``; None for what is not smimbench's own, which is solved elsewhere."""
        return None if strange(*problem.spec.values()) else super().read_off(problem, alphas)

    def thresholds(self, problem: Problem) -> dict[str, Any]:
        """See ``TheoryCache``."""
        key = canonical_json(problem.spec)
        if strange(*problem.spec.values()) and self._recall("thresholds", key, None) is None:
            self._remember("thresholds", key, None, self._ask("thresholds", problem))
        return super().thresholds(problem)

    def thresholds_at_hand(self, problem: Problem) -> dict[str, Any]:
        """See ``TheoryCache``."""
        return self.thresholds(problem) if strange(*problem.spec.values()) else super().thresholds_at_hand(problem)

    def solve_own(
        self, problem: Problem, algorithm: Any, spec: dict[str, Any], alpha: float, conditions: Conditions
    ) -> dict[str, Any] | str:
        """See ``TheoryCache``."""
        if not strange(*problem.spec.values(), spec):
            return super().solve_own(problem, algorithm, spec, alpha, conditions)
        found: dict[str, Any] | str = self._ask("own", problem, spec, alpha, conditions)
        return found

    def _ask(self, what: str, problem: Problem, *more: Any) -> Any:
        name = canonical_json([what, problem.spec, more[0] if what == "own" else None])
        if name in self._given_up:  # not again at every sample ratio, for every figure
            raise self._given_up[name]
        if self._solver is None or not self._solver.alive:
            self._solver = _GuardedProcess(self.folder)
        try:
            return self._solver.ask(self, (what, problem.spec, *more))
        except ProblemError as error:
            if not self._solver.answered:
                self._given_up[name] = error
            raise


class _GuardedProcess:
    """The process, and what is waited for from it."""

    def __init__(self, folder: Path | None) -> None:
        self._output = tempfile.TemporaryFile("a+b")  # noqa: SIM115 - ends with the process
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", BOOT, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._output,
            env=dict.fromkeys(names, "1") | dict(os.environ),
            start_new_session=True,
        )
        self._end = weakref.finalize(self, _end_process, self._process, self._output)
        self._events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        threading.Thread(target=_listen_to_process, args=(self._process.stdout, self._events), daemon=True).start()
        self._ready = self.answered = False
        registry = get_registry()
        setup = {"paths": registry.paths, "third_party": registry.third_party, "folder": folder and str(folder)}
        self._tell(json.dumps(setup).encode())

    @property
    def alive(self) -> bool:
        """Whether it can still be asked."""
        return self._process.poll() is None

    def _tell(self, message: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it is dead, which the other pipe says too
            send(self._process.stdin, message)

    def ask(self, cache: TheoryCache, question: tuple[Any, ...]) -> Any:
        """The answer to a question; progress and remarks on the way are handed on to ``cache``."""
        self.answered = False
        self._tell(pickle.dumps(question))
        heard = time.monotonic()
        try:
            while True:
                try:
                    event = self._events.get(timeout=POLL)
                except queue.Empty:
                    self._judge(time.monotonic() - heard if self._ready else 0.0)
                    continue
                heard = time.monotonic()
                if event is None:
                    raise ProblemError("theory", f"the process that solved it ended: {self._why()}")
                if "ready" in event:
                    self._ready = True
                elif "progress" in event:
                    cache.watch(Progress(*event["progress"]))
                elif "remark" in event:
                    cache.remark(printable(event["remark"], LONGEST))
                else:
                    self.answered = True
                    if "error" in event:
                        raise _error_of_process(event)
                    return event["answer"]
        except BaseException:
            if not self.answered:  # it may still be at work on what nobody waits for
                self._end()
            raise

    def _judge(self, silent: float) -> None:
        """Raise ProblemError if it has had its time, or takes the last memory."""
        if silent > PATIENCE:
            raise ProblemError("theory", f"no new number for {PATIENCE:g} s; ended from outside")
        memory = psutil.virtual_memory()
        with contextlib.suppress(psutil.Error):
            size = psutil.Process(self._process.pid).memory_info().rss
            if memory.available < RESERVE * memory.total and size > memory.total // 10:
                raise ProblemError("theory", f"the machine ran out of memory while it took {size / 2**30:.1f} GB")

    def _why(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2)
        return how_it_ended(self._process.returncode)


def _listen_to_process(stream: IO[bytes], events: queue.SimpleQueue[dict[str, Any] | None]) -> None:
    with contextlib.suppress(OSError, ValueError, MemoryError, RecursionError):
        while len(head := stream.read(HEAD.size)) == HEAD.size:
            (length,) = HEAD.unpack(head)
            if length > 1 << 32 or not isinstance(event := json.loads(stream.read(length)), dict):
                break
            events.put(event)
    events.put(None)


def _end_process(process: subprocess.Popen[bytes], output: IO[bytes]) -> None:
    end_group(process.pid)
    with contextlib.suppress(OSError):
        process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout, output):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


def _error_of_process(event: dict[str, Any]) -> Exception:
    """What the process raised, under the same name."""
    if event["error"] == ProblemError.__name__ and event.get("key"):
        return ProblemError(str(event["key"]), str(event["message"]))
    found: Exception = type(str(event["error"]), (RuntimeError,), {})(str(event["message"]))
    return found


# -- in the process ---------------------------------------------------------------------------------------------------


def main() -> None:
    """Answer questions until the parent closes the pipe."""
    inbox, target = begin_worker()
    setup: dict[str, Any] = json.loads(inbox.get())
    registry = Registry(setup["paths"], third_party=setup["third_party"])
    set_registry(registry)
    from pathlib import Path

    cache = TheoryCache(setup["folder"] and Path(setup["folder"]))

    def tell(**event: Any) -> None:
        send(target, json.dumps(event, default=plain_value).encode())

    cache.watch = lambda progress: tell(progress=list(progress))
    cache.remark = lambda line: tell(remark=line)
    problems: dict[str, Problem] = {}
    tell(ready=True)
    while True:
        question = pickle.loads(inbox.get())
        try:
            found = json.dumps(
                {"answer": _answer_question(cache, registry, problems, *question)}, default=plain_value
            ).encode()
        except BaseException as error:  # a plugin may raise anything
            name, _, message = error_line(error).partition(": ")
            if isinstance(error, ProblemError):
                tell(error=name, key=error.key, message=printable(error.message, LONGEST))
            else:
                tell(error=name, message=message)
            continue
        send(target, found)


def _answer_question(
    cache: TheoryCache, registry: Registry, problems: dict[str, Problem], what: str, spec: dict[str, Any], *more: Any
) -> Any:
    key = canonical_json(spec)
    if key not in problems:
        problems[key] = Problem(*(as_table(spec[kind]) for kind in ("model", "channel", "prior")))
    problem = problems[key]
    if problem.spec != spec:
        raise ProblemError("theory", "a package was changed since this began; run the same command again")
    if what == "begin":
        return cache.begin(problem)
    if what == "points":
        return cache.points(problem, *more)
    if what == "thresholds":
        return cache.thresholds(problem)
    algorithm, alpha, conditions = more
    return own_theory(build_algorithm(algorithm, problem, registry), problem, alpha, conditions)
