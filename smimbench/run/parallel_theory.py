"""Theory of several problems, and of independent parts of one curve, solved in parallel processes."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterable

from smimbench.files import JsonObject
from smimbench.problem.problem import Problem, ProblemError
from smimbench.registry.registry import get_registry
from smimbench.run.answers import Answers
from smimbench.run.executor import Executor, Task
from smimbench.run.theory_process import Progress, answer_of, is_third_party
from smimbench.run.theory_solver import TheorySolver
from smimbench.theory.predictions import independent_parts
from smimbench.theory.questions import PointsQuestion, Question, ThresholdsQuestion


def answer_in_parallel(
    questions: Iterable[Question], solver: TheorySolver, workers: int
) -> Answers:
    """Answer questions with so many processes; where one cannot be solved, the answers raise its error."""
    questions = list(questions)
    if workers > 1:
        with contextlib.suppress(ProblemError):  # the answers raise it again
            _solve_in_parallel(questions, solver, workers)
    return solver.answer(questions)


def _solve_in_parallel(
    questions: Iterable[Question], solver: TheorySolver, workers: int
) -> None:
    """Solve points and thresholds of shipped problems in processes; their answers are in the solver's folder then.

    Raises
    ------
    ProblemError
        What a process raised; or that one died.
    """
    work = _work_by_problem(questions)

    def progress(problem: Problem) -> Progress:
        alphas, thresholds = work[problem]
        kept = solver.count_stored([(problem, alphas)])
        return Progress(
            kept.points + thresholds * kept.thresholds,
            len(alphas) + thresholds,
            kept.nodes,
        )

    def on_event(problem: Problem, event: JsonObject) -> None:
        if "progress" in event:
            solver.on_progress(problem, Progress(*event["progress"]))

    unsolved = []
    for problem in work:
        done, total, *_ = progress(problem)
        if done < total:
            unsolved.append(problem)
    executor = Executor(workers, 1, get_registry(), folder=str(solver.folder))
    last_look = time.monotonic()

    def on_progress(underway: object) -> None:
        """Report how far all are: parts of a curve say nothing until they end."""
        nonlocal last_look
        if time.monotonic() > last_look + 1:
            last_look = time.monotonic()
            for problem in unsolved:
                solver.on_progress(problem, progress(problem))

    try:
        for problem in unsolved:
            solver.begin(problem)
            solver.on_progress(problem, progress(problem))
        parts = [
            (problem, ("part", part))
            for problem in unsolved
            for part in independent_parts(problem, work[problem][0])
        ]
        whole = [
            (problem, ("whole", list(work[problem][0]), work[problem][1]))
            for problem in unsolved
        ]
        for stage in (parts, whole):
            tasks = {}
            for problem, (kind, *arguments) in stage:
                question = kind, problem.spec, solver.predictions, *arguments
                tasks[
                    Task(
                        question,
                        frozenset(),
                        on_event=functools.partial(on_event, problem),
                    )
                ] = problem
            for ended in executor.run(tasks, on_progress=on_progress):
                answer_of(ended)
                solver.on_progress(tasks[ended.task], progress(tasks[ended.task]))
    finally:
        executor.end()


def _work_by_problem(
    questions: Iterable[Question],
) -> dict[Problem, tuple[tuple[float, ...], bool]]:
    """Sample ratios of every shipped problem with a theory, and whether its thresholds are asked for."""
    work: dict[Problem, tuple[tuple[float, ...], bool]] = {}
    for question in questions:
        problem = question.problem
        if problem.no_theory is not None or is_third_party(*problem.spec.values()):
            continue
        alphas, thresholds = work.get(problem, ((), False))
        if isinstance(question, PointsQuestion):
            work[problem] = (
                tuple(dict.fromkeys((*alphas, *question.alphas))),
                thresholds,
            )
        elif isinstance(question, ThresholdsQuestion):
            work[problem] = alphas, True
    return work
