"""Theory in spawned processes: problems side by side, and nodes of one problem that do not need one another.

The processes share nothing but the folder in which answers and nodes are kept. What they leave there is read as if this
process had solved it before, so that the numbers are the same to the last bit.
"""

from __future__ import annotations

import tempfile
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TYPE_CHECKING

from smimbench.problem.problem import Problem, ProblemError
from smimbench.run.pool import InterruptBetween, Pool
from smimbench.run.theory_cache import Progress, TheoryCache
from smimbench.suite.cells import as_table
from smimbench.theory.predictions import independent_parts, solve_part

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    Spec = dict[str, dict[str, object]]
    Wanted = Sequence[tuple[Problem, Sequence[float]]]

__all__ = ["solve_in_processes"]


def solve_in_processes(
    wanted: Wanted,
    cache: TheoryCache,
    workers: int,
    on_progress: Callable[[int, Progress], None] = lambda number, progress: None,
    *,
    thresholds: bool = True,
) -> None:
    """Solve problems with their sample ratios, and leave the answers in the cache.

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
    todo = [i for i, (problem, ratios) in enumerate(wanted) if not _is_done(cache, problem, ratios, thresholds)]
    if not todo:
        return
    with tempfile.TemporaryDirectory() as temporary:
        shared = TheoryCache(cache.folder or Path(temporary))

        def look(alive: list[int]) -> None:
            for i in alive:
                problem, ratios = wanted[i]
                found = shared.kept([(problem, ratios)])
                done, total = found.points + thresholds * found.thresholds, len(ratios) + thresholds
                on_progress(i, Progress(done, total, found.nodes))

        for i in todo:
            shared.begin(wanted[i][0])
        parts = [(i, (part,)) for i in todo for part in independent_parts(wanted[i][0], wanted[i][1])]
        whole = [(i, (list(wanted[i][1]), thresholds)) for i in todo]
        with InterruptBetween() as interrupt, Pool(min(workers, len(parts + whole)), 1) as pool:
            for function, tasks in ((_solve_part, parts), (_solve_problem, whole)):
                waiting = {pool.submit(function, wanted[i][0].spec, shared.folder, *more): i for i, more in tasks}
                _wait_for_problems(waiting, interrupt, look)
        for i in todo:  # into memory, for a folder that will be gone
            cache.adopt(shared, *wanted[i], thresholds=thresholds)


def _is_done(cache: TheoryCache, problem: Problem, ratios: Sequence[float], thresholds: bool) -> bool:
    found = cache.kept([(problem, ratios)])
    return found.points == len(ratios) and (not thresholds or found.thresholds == 1)


def _wait_for_problems(
    waiting: dict[Future[None], int], interrupt: InterruptBetween, look: Callable[[list[int]], None]
) -> None:
    """Until all are done, looking at each problem (from 0) that still waits about once a second."""
    try:
        while waiting:
            for future in interrupt.wait(waiting, patience=1.0):
                future.result()
                look([waiting.pop(future)])
            interrupt.heed()
            look(sorted(set(waiting.values())))
    except BrokenProcessPool:
        raise ProblemError(
            "theory", "a process that solved it was ended from outside (memory?); what it found is kept"
        ) from None


def _rebuilt(spec: Spec) -> Problem:
    problem = Problem(*(as_table(spec[kind]) for kind in ("model", "channel", "prior")))
    if problem.spec != spec:
        raise ProblemError("theory", "a package was changed while its theory was solved; run the same command again")
    return problem


def _solve_problem(spec: Spec, folder: Path, alphas: Sequence[float], thresholds: bool) -> None:
    problem, cache = _rebuilt(spec), TheoryCache(folder)
    cache.points(problem, alphas)
    if thresholds:
        cache.thresholds(problem)


def _solve_part(spec: Spec, folder: Path, part: tuple[str, list[float]]) -> None:
    problem = _rebuilt(spec)
    TheoryCache(folder).begin(problem)
    solve_part(problem, part)
