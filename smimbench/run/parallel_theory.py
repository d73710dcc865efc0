"""Solves the theory of several problems, and independent parts of one curve, in parallel processes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable

from smimbench.problem.problem import Problem, ProblemError
from smimbench.registry.registry import get_registry
from smimbench.run.answers import Answers
from smimbench.run.executor import Executor, Task, WorkerMessage
from smimbench.run.theory_process import WORKER, Progress, answer_of, is_third_party
from smimbench.run.theory_solver import TheorySolver
from smimbench.theory.predictions import independent_parts
from smimbench.theory.types import PointsQuestion, Question, ThresholdsQuestion


def answer_in_parallel(
    questions: Iterable[Question], solver: TheorySolver, workers: int
) -> Answers:
    """Solve questions of theory in a number of processes; an unsolved question raises its error when it is read."""
    questions = list(questions)
    if workers > 1:
        with contextlib.suppress(ProblemError):  # the answers raise it again
            _solve_in_parallel(questions, solver, workers)
    return solver.answer(questions)


def _solve_in_parallel(
    questions: Iterable[Question], solver: TheorySolver, workers: int
) -> None:
    """Solve points and thresholds of shipped problems in processes, which store them in the solver's folder.

    Raises
    ------
    ProblemError
        What a process raised; or that one died.
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
