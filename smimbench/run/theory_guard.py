"""Solves theory in supervised processes: for third-party code, deadlines, and several problems or nodes in parallel.

A posterior that aborts, an algorithm's theory that never returns or takes all memory: its rows say so, the others stay. What
ships with smimbench is solved where it is asked for. The processes share nothing but the folder of answers and nodes; what they
leave there is read as if this process had solved it, so that the numbers are the same to the last bit.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from smimbench.files import JsonObject, canonical_json, printable
from smimbench.problem.assumed import assumed_entries
from smimbench.problem.problem import Problem, ProblemError
from smimbench.registry.registry import BUILT_IN, get_registry
from smimbench.run.executor import Ended, Executor, Limits, Task
from smimbench.run.record import LONGEST
from smimbench.run.theory_cache import Progress, TheoryCache, TheoryError
from smimbench.theory.predictions import independent_parts

PATIENCE = 900.0
"""Seconds without any new number after which theory is given up; doubled, one that never returns is noticed that much later."""


def is_third_party(*specs: JsonObject) -> bool:
    """Whether any of these items comes from a package other than smimbench."""
    return any("distribution" in spec for spec in specs)


class GuardedTheory(TheoryCache):
    """Theory cache that solves third-party problems in another process.

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
        self._executor: Executor | None = None
        self._given_up: dict[str, ProblemError] = {}

    def _is_solved_elsewhere(self, problem: Problem, *more: JsonObject) -> bool:
        assumed = [entry for spec in more for entry in assumed_entries(spec, problem.model.name).values()]
        theirs = any(entry.distribution != BUILT_IN for entry in assumed)
        return self.deadline is not None or theirs or is_third_party(*problem.spec.values(), *more)

    def begin(self, problem: Problem) -> None:
        """Prepare a problem's theory (see ``TheoryCache``)."""
        if self._is_solved_elsewhere(problem):
            self._ask("begin", problem)
        else:
            super().begin(problem)

    def _is_costly(self, problem: Problem) -> bool:
        if self._is_solved_elsewhere(problem):  # nothing of it is called here
            return problem.components > 1
        return super()._is_costly(problem)

    def solve(self, what: str, problem: Problem, *more: Any) -> Iterator[Any]:
        """Solve theory results in another process where needed (see ``TheoryCache``)."""
        if not self._is_solved_elsewhere(problem, *(more[:1] if what == "own" else ())):
            return super().solve(what, problem, *more)
        found = self._ask(what, problem, *more)
        return iter(found if what == "points" else [found])

    def _ask(self, what: str, problem: Problem, *more: Any) -> Any:
        name = canonical_json([what, problem.spec, more[0] if what == "own" else None])
        if name in self._given_up:  # not again at every sample ratio, for every figure
            raise self._given_up[name]
        if self._executor is None:
            folder = self.folder and str(self.folder)
            self._executor = Executor(1, 1, get_registry(), folder=folder)
            weakref.finalize(self, self._executor.end)
        items = [*problem.spec.values(), *(more[:1] if what == "own" else ())]
        distributions = frozenset(str(item["distribution"]) for item in items if "distribution" in item)
        assumed = assumed_entries(more[0], problem.model.name) if what == "own" else {}
        distributions |= {entry.distribution for entry in assumed.values()} - {BUILT_IN}
        question = what, problem.spec, self.predicts, *more
        task = Task(question, distributions, on_event=self._hear, patience=PATIENCE)
        for ended in self._executor.run([task], Limits(end=self.deadline)):
            if ended.event is None:
                self._given_up[name] = ProblemError("theory", _why(ended))
            return _answer_of(ended)
        self.is_late = True
        raise ProblemError("theory", "not solved, the budget is spent; run the same command again to go on")

    def _hear(self, event: JsonObject) -> None:
        if "progress" in event:
            self.watch(Progress(*event["progress"]))
        else:
            self.remark(printable(event["remark"], LONGEST))


def _why(ended: Ended) -> str:
    return ended.reason if ended.status else f"the process that solved it ended: {ended.reason}"


def _answer_of(ended: Ended) -> Any:
    """The answer of a process, or what it raised, under the same name."""
    if ended.event is None:
        raise ProblemError("theory", _why(ended))
    if "answer" in ended.event:
        return ended.event["answer"]
    name, key, message = (printable(ended.event.get(part, ""), LONGEST) for part in ("error", "key", "message"))
    if name == ProblemError.__name__ and key:
        raise ProblemError(key, message.removeprefix(f"{key}: "))
    raise TheoryError.named(name, message)


def solve_in_processes(
    wanted: Sequence[tuple[Problem, Sequence[float]]],
    cache: TheoryCache,
    workers: int,
    on_progress: Callable[[int, Progress], None],
    *,
    thresholds: bool,
) -> None:
    """Solve problems and their sample ratios in parallel, and store the results in the folder of the cache.

    Parameters
    ----------
    wanted : sequence of (Problem, sequence of float)
    on_progress : callable
        Called with the number of a problem (from 0) and how far it is.

    Raises
    ------
    ProblemError
        What a process raised; or that one died.
    """

    def progress(i: int) -> Progress:
        problem, ratios = wanted[i]
        found = cache.kept([(problem, ratios)])
        return Progress(found.points + thresholds * found.thresholds, len(ratios) + thresholds, found.nodes)

    def hear(i: int, event: JsonObject) -> None:
        if "progress" in event:
            on_progress(i, Progress(*event["progress"]))

    todo = [i for i in range(len(wanted)) if (now := progress(i)).done < now.total]
    executor = Executor(workers, 1, get_registry(), folder=str(cache.folder))
    looked = time.monotonic()

    def look(underway: object) -> None:
        """How far all are: parts of a curve say nothing until they end."""
        nonlocal looked
        if time.monotonic() > looked + 1:
            looked = time.monotonic()
            for i in todo:
                on_progress(i, progress(i))

    try:
        for i in todo:
            cache.begin(wanted[i][0])
            on_progress(i, progress(i))
        parts = [(i, ("part", part)) for i in todo for part in independent_parts(*wanted[i])]
        whole = [(i, ("whole", list(wanted[i][1]), thresholds)) for i in todo]
        for stage in (parts, whole):
            tasks = {}
            for i, (what, *more) in stage:
                arguments = what, wanted[i][0].spec, cache.predicts, *more
                tasks[Task(arguments, frozenset(), on_event=partial(hear, i))] = i
            for ended in executor.run(tasks, on_look=look):
                _answer_of(ended)
                on_progress(tasks[ended.task], progress(tasks[ended.task]))
    finally:
        executor.end()
