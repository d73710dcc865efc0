"""Processes that solve theory in parallel: several problems, and independent parts of one curve; the worker's side of them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from smimbench.files import JsonObject, canonical_json
from smimbench.problem.problem import Problem, ProblemError, Specification
from smimbench.registry.registry import get_registry
from smimbench.run.answers import document_of
from smimbench.run.executor import Executor, Task, WorkerMessage
from smimbench.run.theory_solver import (
    WORKER,
    Progress,
    TheorySolver,
    answer_of,
    is_third_party,
)
from smimbench.suite.cells import build_problem
from smimbench.theory.predictions import independent_parts, solve_part
from smimbench.theory.types import PointsQuestion, Question, ThresholdsQuestion


def solve_in_parallel(
    questions: Iterable[Question], solver: TheorySolver, workers: int
) -> None:
    """Solve points and thresholds of shipped problems in processes, which store them in the solver's folder.

    The first error ends it, and is not raised here: the solver, asked next, meets it again.
    """
    work = _work_by_problem(questions)

    def progress(problem: Problem) -> Progress:
        alphas, thresholds = work[problem]
        points, has_thresholds, nodes = solver.count_stored([(problem, alphas)])
        solved = points + thresholds * has_thresholds
        return Progress(solved, len(alphas) + thresholds, nodes)

    def is_unsolved(problem: Problem) -> bool:
        solved, total, *_ = progress(problem)
        return solved < total

    unsolved = list(filter(is_unsolved, work))
    last_report = time.monotonic()

    def on_progress(underway: object) -> None:
        """Report the progress of all problems, at most every second."""
        nonlocal last_report
        if time.monotonic() > last_report + 1:
            last_report = time.monotonic()
            for problem in unsolved:
                solver.on_progress(problem, progress(problem))

    def task_of(problem: Problem, kind: str, *arguments: object) -> Task:
        def on_event(event: WorkerMessage) -> None:
            if "progress" in event:
                solver.on_progress(problem, Progress(*event["progress"]))

        question = kind, problem.spec, solver.predictions, *arguments
        return Task(question, frozenset(), on_event=on_event)

    executor = Executor(workers, 1, get_registry(), WORKER, folder=str(solver.folder))
    try:
        nodes, curves = {}, {}
        for problem in unsolved:
            solver.begin(problem)
            solver.on_progress(problem, progress(problem))
            alphas, thresholds = work[problem]
            for batch in independent_parts(problem, alphas):
                nodes[task_of(problem, "part", batch)] = problem
            curves[task_of(problem, "whole", list(alphas), thresholds)] = problem
        with contextlib.suppress(ProblemError):
            for tasks in (nodes, curves):
                for ended in executor.run(tasks, on_progress=on_progress):
                    answer_of(ended)
                    problem = tasks[ended.task]
                    solver.on_progress(problem, progress(problem))
    finally:
        executor.end()


def _work_by_problem(
    questions: Iterable[Question],
) -> dict[Problem, tuple[tuple[float, ...], bool]]:
    """Collect for each shipped problem with a theory its sample ratios and whether its thresholds are requested."""
    work: dict[Problem, tuple[tuple[float, ...], bool]] = {}
    for question in questions:
        problem = question.problem
        if problem.no_theory is not None or is_third_party(*problem.spec.values()):
            continue
        alphas, thresholds = work.get(problem, ((), False))
        if isinstance(question, PointsQuestion):
            ratios = dict.fromkeys((*alphas, *question.alphas))
            work[problem] = tuple(ratios), thresholds
        elif isinstance(question, ThresholdsQuestion):
            work[problem] = alphas, True
    return work


class TheoryWorker:
    """Solver in a worker process, which sends progress and remarks to its parent.

    Parameters
    ----------
    folder : str or None
        Folder of answers and nodes.
    tell : callable
        Sends an event to the parent.
    """

    def __init__(self, folder: str | None, tell: Callable[..., None]) -> None:
        path = None if folder is None else Path(folder)
        self._solvers = {
            predictions: TheorySolver(
                path,
                predictions=predictions,
                on_progress=lambda problem, progress: tell(progress=list(progress)),
                on_remark=lambda line: tell(remark=line),
            )
            for predictions in (False, True)
        }
        self._problems: dict[str, Problem] = {}

    def answer(
        self,
        kind: str,
        spec: dict[str, Specification],
        predictions: bool,
        *arguments: Any,
    ) -> Any:
        """Answer one question about a problem; ``predictions`` as for ``TheorySolver``.

        Raises
        ------
        ProblemError
        """
        key = canonical_json(spec)
        if key not in self._problems:
            self._problems[key] = build_problem(spec)
        problem, solver = self._problems[key], self._solvers[predictions]
        if problem.spec != spec:
            raise ProblemError(
                "theory",
                "a package was changed during this run; run the same command again",
            )
        if kind == "begin":
            solver.begin(problem)
        elif kind == "points":
            return document_of(solver.points(problem, *arguments))
        elif kind == "thresholds":
            return document_of(solver.thresholds(problem))
        elif kind == "part":
            solver.begin(problem)
            solve_part(problem, *arguments)
        elif kind == "whole":
            alphas, with_thresholds = arguments
            solver.points(problem, alphas)
            if with_thresholds:
                solver.thresholds(problem)
        else:
            (document,) = solver.solve(kind, problem, *arguments)
            return document
        return None


def answerer(setup: JsonObject, report: Callable[..., None]) -> Callable[..., object]:
    """Return the function with which a worker process answers a question."""
    return TheoryWorker(setup["folder"], report).answer
