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
from smimbench.run.theory_solver import Progress, TheorySolver
from smimbench.run.theory_subprocess import WORKER, answer_of, has_third_party
from smimbench.suite.cells import build_problem
from smimbench.theory.predictions import independent_parts, solve_part
from smimbench.theory.types import PointsQuestion, Question, ThresholdsQuestion


def solve_in_parallel(
    questions: Iterable[Question], solver: TheorySolver, workers: int
) -> None:
    """Solve the ``questions`` about points and thresholds of shipped problems in ``workers`` processes, which store the
    answers in the solver's folder.

    The first error ends it, and is not raised here: the solver, asked next, meets it again.
    """
    work_by_problem = _work_by_problem(questions)

    def progress_of(problem: Problem) -> Progress:
        """Return the progress of a problem's theory, from what is stored in the folder."""
        alphas, with_thresholds = work_by_problem[problem]
        point_count, has_thresholds, node_count = solver.count_stored(
            [(problem, alphas)]
        )
        solved_count = point_count + with_thresholds * has_thresholds
        return Progress(solved_count, len(alphas) + with_thresholds, node_count)

    def is_unsolved(problem: Problem) -> bool:
        """Whether a point or the thresholds of a problem are still to be solved."""
        solved_count, question_count, *_ = progress_of(problem)
        return solved_count < question_count

    unsolved_problems = list(filter(is_unsolved, work_by_problem))
    last_report = time.monotonic()

    def on_progress(running_tasks: object) -> None:
        """Report the progress of all problems, from the ``running_tasks``, at most every second."""
        nonlocal last_report
        if time.monotonic() > last_report + 1:
            last_report = time.monotonic()
            for problem in unsolved_problems:
                solver.on_progress(problem, progress_of(problem))

    def task_of(problem: Problem, kind: str, *arguments: object) -> Task:
        """Make the task of solving one kind of question about a problem in a worker process; ``arguments`` are those of the
        question, such as a sample ratio.
        """

        def on_event(event: WorkerMessage) -> None:
            """Pass on the progress that a worker process reports in a message (``event``)."""
            if "progress" in event:
                solver.on_progress(problem, Progress(*event["progress"]))

        question = kind, problem.spec, solver.prediction_errors, *arguments
        return Task(question, frozenset(), on_event=on_event)

    executor = Executor(workers, 1, get_registry(), WORKER, folder=str(solver.folder))
    try:
        node_tasks, curve_tasks = {}, {}
        for problem in unsolved_problems:
            solver.begin(problem)
            solver.on_progress(problem, progress_of(problem))
            alphas, with_thresholds = work_by_problem[problem]
            for ratio_batch in independent_parts(problem, alphas):
                node_tasks[task_of(problem, "part", ratio_batch)] = problem
            curve_tasks[task_of(problem, "whole", list(alphas), with_thresholds)] = (
                problem
            )
        with contextlib.suppress(ProblemError):
            for tasks in (node_tasks, curve_tasks):
                for ended_task in executor.run(tasks, on_progress=on_progress):
                    answer_of(ended_task)
                    problem = tasks[ended_task.task]
                    solver.on_progress(problem, progress_of(problem))
    finally:
        executor.end()


def _work_by_problem(
    questions: Iterable[Question],
) -> dict[Problem, tuple[tuple[float, ...], bool]]:
    """Collect from the ``questions`` for each shipped problem with a theory its sample ratios and whether its thresholds are
    requested.
    """
    work_by_problem: dict[Problem, tuple[tuple[float, ...], bool]] = {}
    for question in questions:
        problem = question.problem
        if problem.no_theory is not None or has_third_party(*problem.spec.values()):
            continue
        alphas, with_thresholds = work_by_problem.get(problem, ((), False))
        if isinstance(question, PointsQuestion):
            ratios = dict.fromkeys((*alphas, *question.alphas))
            work_by_problem[problem] = tuple(ratios), with_thresholds
        elif isinstance(question, ThresholdsQuestion):
            work_by_problem[problem] = alphas, True
    return work_by_problem


class TheoryWorker:
    """Solver in a worker process, which sends progress and remarks to its parent.

    Parameters
    ----------
    folder : str or None
        Folder of answers and nodes.
    send_event : callable
        Sends an event to the parent.
    """

    def __init__(self, folder: str | None, send_event: Callable[..., None]) -> None:
        """Prepare solvers whose answers are stored in ``folder``; progress and remarks are passed to ``send_event``."""
        answer_folder = None if folder is None else Path(folder)
        self._solvers = {
            prediction_errors: TheorySolver(
                answer_folder,
                prediction_errors=prediction_errors,
                on_progress=lambda problem, progress: send_event(
                    progress=list(progress)
                ),
                on_remark=lambda remark: send_event(remark=remark),
            )
            for prediction_errors in (False, True)
        }
        self._problems: dict[str, Problem] = {}

    def answer(
        self,
        kind: str,
        spec: dict[str, Specification],
        prediction_errors: bool,
        *arguments: Any,
    ) -> Any:
        """Answer one question of a given kind about the theory of a problem (specification ``spec``), as JSON; ``arguments``
        are those of the question, ``prediction_errors`` as for ``TheorySolver``.

        Raises
        ------
        ProblemError
        """
        problem_json = canonical_json(spec)
        if problem_json not in self._problems:
            self._problems[problem_json] = build_problem(spec)
        problem = self._problems[problem_json]
        solver = self._solvers[prediction_errors]
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
            alphas, asks_thresholds = arguments
            solver.points(problem, alphas)
            if asks_thresholds:
                solver.thresholds(problem)
        else:
            (document,) = solver.solve(kind, problem, *arguments)
            return document
        return None


def task_handler(
    setup: JsonObject, send_event: Callable[..., None]
) -> Callable[..., object]:
    """Return the function with which a worker process answers questions of theory; ``setup`` holds the values that the
    parent gave, ``send_event`` reports progress to it.
    """
    return TheoryWorker(setup["folder"], send_event).answer
