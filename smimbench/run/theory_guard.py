"""Theory of plugins' items in a process of its own, asked through a pipe and watched from outside.

A posterior that aborts, an algorithm's theory that never returns or takes all memory: its rows say so, the others stay. What
ships with smimbench is solved where it is asked for.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import queue
import subprocess
import time
import weakref
from typing import TYPE_CHECKING, Any

import psutil

from smimbench.files import canonical_json, error_line, plain_value, printable
from smimbench.problem.problem import Problem, ProblemError
from smimbench.registry.registry import Registry, get_registry, set_registry
from smimbench.run.processes import RESERVE
from smimbench.run.record import LONGEST
from smimbench.run.supervised import SupervisedProcess, how_it_ended, plugins_of
from smimbench.run.theory_cache import Progress, TheoryCache
from smimbench.run.worker import begin_worker, send
from smimbench.suite.cells import as_table, build_algorithm
from smimbench.theory.own import own_theory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from smimbench.interfaces import Conditions

__all__ = ["PATIENCE", "GuardedTheory", "is_third_party", "main"]

PATIENCE = 900.0
"""Seconds without any new number after which theory is given up; doubled, one that never returns is noticed that much later."""
POLL = 0.5
"""Seconds between two looks at the process; doubled, it is ended that much later."""
MOST_PROCESSES = 4
"""Processes that wait for questions, each for one set of distributions; with more, memory is held for fewer starts."""


def is_third_party(*specs: Mapping[str, Any]) -> bool:
    """Whether any of these items came with another package than smimbench."""
    return any("distribution" in spec for spec in specs)


class GuardedTheory(TheoryCache):
    """Answers of theory, as those of its parent class; what is not smimbench's own is solved in another process.

    That process has the plugins of the distributions that the question needs, and of no other.

    Parameters
    ----------
    deadline : float or None
        Moment (``time.monotonic``) after which nothing more is solved; then everything is solved in another process, which
        can be ended.

    Attributes
    ----------
    is_late : bool
        Whether something was not solved because of the deadline.

    Raises
    ------
    ProblemError
        What the parent class raises; or that the process ended, found no new number for ``PATIENCE`` seconds, or that the
        deadline is over.
    """

    def __init__(self, folder: Path | None = None, deadline: float | None = None) -> None:
        super().__init__(folder)
        self.deadline = deadline
        self.is_late = False
        self._solvers: dict[frozenset[str], _TheoryProcess] = {}
        self._given_up: dict[str, ProblemError] = {}

    def _is_solved_elsewhere(self, *specs: Mapping[str, Any]) -> bool:
        return self.deadline is not None or is_third_party(*specs)

    def begin(self, problem: Problem) -> None:
        """See ``TheoryCache``."""
        if self._is_solved_elsewhere(*problem.spec.values()):
            self._ask("begin", problem)
        else:
            super().begin(problem)

    def points(self, problem: Problem, alphas: Sequence[float]) -> list[list[dict[str, Any]]]:
        """See ``TheoryCache``."""
        if self._is_solved_elsewhere(*problem.spec.values()):
            key = canonical_json(problem.spec)
            missing = [a for a in dict.fromkeys(map(float, alphas)) if self._recall("point", problem, key, a) is None]
            if missing:
                for alpha, found in zip(missing, self._ask("points", problem, missing)):
                    self._remember("point", problem, key, alpha, found)
        return super().points(problem, alphas)

    def read_off(self, problem: Problem, alphas: Sequence[float]) -> list[list[dict[str, Any]]] | None:
        """See ``TheoryCache``; None for what is solved elsewhere."""
        return None if self._is_solved_elsewhere(*problem.spec.values()) else super().read_off(problem, alphas)

    def thresholds(self, problem: Problem) -> dict[str, Any]:
        """See ``TheoryCache``."""
        key = canonical_json(problem.spec)
        if self._is_solved_elsewhere(*problem.spec.values()) and self._recall("thresholds", problem, key, None) is None:
            self._remember("thresholds", problem, key, None, self._ask("thresholds", problem))
        return super().thresholds(problem)

    def thresholds_at_hand(self, problem: Problem) -> dict[str, Any]:
        """See ``TheoryCache``."""
        return (
            self.thresholds(problem) if is_third_party(*problem.spec.values()) else super().thresholds_at_hand(problem)
        )

    def solve_own(
        self, problem: Problem, algorithm: Any, spec: dict[str, Any], alpha: float, conditions: Conditions
    ) -> dict[str, Any] | str:
        """See ``TheoryCache``."""
        if not self._is_solved_elsewhere(*problem.spec.values(), spec):
            return super().solve_own(problem, algorithm, spec, alpha, conditions)
        found: dict[str, Any] | str = self._ask("own", problem, spec, alpha, conditions)
        return found

    def _ask(self, what: str, problem: Problem, *more: Any) -> Any:
        name = canonical_json([what, problem.spec, more[0] if what == "own" else None])
        if name in self._given_up:  # not again at every sample ratio, for every figure
            raise self._given_up[name]
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise self.late()
        items = [*problem.spec.values(), *(more[:1] if what == "own" else ())]
        solver = self._solver(frozenset(str(item["distribution"]) for item in items if "distribution" in item))
        try:
            return solver.ask(self, (what, problem.spec, *more))
        except ProblemError as error:
            if not solver.answered and not self.is_late:
                self._given_up[name] = error
            raise

    def late(self) -> ProblemError:
        """The error of what is not solved because the deadline is over."""
        self.is_late = True
        return ProblemError("theory", "not solved, the budget is spent; run the same command again to go on")

    def _solver(self, distributions: frozenset[str]) -> _TheoryProcess:
        """The process for these distributions, a new one if there is none; of all, the latest few are kept."""
        solver = self._solvers.pop(distributions, None)
        if solver is None or not solver.alive:
            solver = _TheoryProcess(self.folder, distributions)
        self._solvers[distributions] = solver
        for other in list(self._solvers)[:-MOST_PROCESSES]:
            self._solvers.pop(other).close()
        return solver


class _TheoryProcess:
    """The process, and what is waited for from it."""

    def __init__(self, folder: Path | None, distributions: frozenset[str]) -> None:
        self._events: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        registry = get_registry()
        setup = plugins_of(registry, distributions) | {"folder": folder and str(folder)}
        self._process = SupervisedProcess(
            "smimbench.run.theory_guard", setup, 1, self._events.put, registry.foreign_path
        )
        self.close = weakref.finalize(self, self._process.end)
        self._ready = self.answered = False

    @property
    def alive(self) -> bool:
        """Whether it can still be asked."""
        return self._process.alive

    def ask(self, cache: GuardedTheory, question: tuple[Any, ...]) -> Any:
        """The answer to a question; progress and remarks on the way are handed on to ``cache``."""
        self.answered = False
        self._process.tell(pickle.dumps(question))
        last = time.monotonic()
        try:
            while True:
                if cache.deadline is not None and time.monotonic() > cache.deadline:
                    raise cache.late()
                try:
                    message = self._events.get(timeout=POLL)
                except queue.Empty:
                    self._enforce_limits(time.monotonic() - last if self._ready else 0.0)
                    continue
                last = time.monotonic()
                if (event := _read_event(message)) is None:
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
                self.close()
            raise

    def _enforce_limits(self, silent: float) -> None:
        """Raise ProblemError if it has ended, had its time, or takes the last memory."""
        if self._process.silent:
            raise ProblemError("theory", f"the process that solved it ended: {self._why()}")
        if silent > PATIENCE:
            raise ProblemError("theory", f"no new number for {PATIENCE:g} s; ended from outside")
        memory = psutil.virtual_memory()
        if memory.available < RESERVE * memory.total and (size := self._process.memory()) > memory.total // 10:
            raise ProblemError("theory", f"the machine ran out of memory while it took {size / 2**30:.1f} GB")

    def _why(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.process.wait(2)
        return how_it_ended(self._process.process.returncode)


def _read_event(message: bytes | None) -> dict[str, Any] | None:
    """A message of the process; None if it has ended, or sends what is none."""
    try:
        event = None if message is None else json.loads(message)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


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
    registry = Registry(setup["paths"], third_party=setup["third_party"], only=setup["only"])
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
