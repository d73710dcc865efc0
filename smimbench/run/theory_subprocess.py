"""Process in which a solver has questions of theory answered: for third-party code that may crash, and for deadlines."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from smimbench.files import canonical_json, printable
from smimbench.problem.problem import Problem, ProblemError, Specification
from smimbench.registry.registry import BUILT_IN, get_registry
from smimbench.run.answers import TheoryError
from smimbench.run.executor import EndedTask, Executor, Limits, Task, WorkerMessage
from smimbench.run.record import LONGEST
from smimbench.suite.cells import assumed_entries

WORKER = "smimbench.run.theory_processes"
"""Module that answers questions in the processes."""

PATIENCE = 900.0
"""Seconds without any new number after which theory is given up; doubled, one that never returns is noticed that much later."""


def has_third_party(*specs: Specification) -> bool:
    """Whether any of the items, given by specifications, comes from a third-party package."""
    return any("distribution" in spec for spec in specs)


def third_party_packages_of(
    problem: Problem, *algorithms: Specification
) -> frozenset[str]:
    """Third-party packages whose code the theory of a problem, and of algorithms on it, runs."""
    specs = [*problem.spec.values(), *algorithms]
    assumed_item_entries = [
        assumed_entry
        for spec in algorithms
        for assumed_entry in assumed_entries(spec, problem.model.name).values()
    ]
    named_distributions = {
        str(spec["distribution"]) for spec in specs if "distribution" in spec
    }
    return frozenset(
        named_distributions
        | {assumed_entry.distribution for assumed_entry in assumed_item_entries}
        - {BUILT_IN}
    )


class TheoryProcess:
    """Worker process that solves theory for a ``TheorySolver``, started on the first question.

    It is there for third-party code that may crash and for questions with a deadline, and has the plugins of the packages that
    a question needs, of no other. It shares only the folder of answers with this process, and its numbers are bitwise the same.

    Parameters
    ----------
    folder : Path or None
        Folder of answers and nodes.
    deadline : float or None
        Moment (``time.monotonic``) after which nothing more is solved.

    Attributes
    ----------
    is_late : bool
        Whether something was not solved because of the deadline.
    """

    def __init__(self, folder: Path | None, deadline: float | None) -> None:
        """Prepare the process, which stores answers in ``folder`` and is ended at the moment ``deadline``."""
        self.deadline = deadline
        self.is_late = False
        self._folder = folder and str(folder)
        self._given_up: dict[str, ProblemError] = {}

    @functools.cached_property
    def executor(self) -> Executor:
        """Pool with the one worker process, made on first use."""
        executor = Executor(1, 1, get_registry(), WORKER, folder=self._folder)
        weakref.finalize(self, executor.end)
        return executor

    def must_solve(self, problem: Problem, *algorithms: Specification) -> bool:
        """Whether the process solves a question about a problem and ``algorithms``: for third-party code or a deadline."""
        return self.deadline is not None or bool(
            third_party_packages_of(problem, *algorithms)
        )

    def ask(
        self,
        kind: str,
        problem: Problem,
        prediction_errors: bool,
        *arguments: Any,
        on_event: Callable[[WorkerMessage], object],
    ) -> Any:
        """Send a question of this kind, with its ``arguments`` (as for ``TheorySolver.solve``), to the process and return
        its answer; ``on_event`` gets messages on the way.

        Raises
        ------
        ProblemError
            What the solver raised; or that the process ended, found no new number for ``PATIENCE`` seconds, or that the
            deadline is over.
        TheoryError
            What a plugin raised.
        """
        algorithms = arguments[:1] if kind == "own" else ()
        question_json = canonical_json([kind, problem.spec, *algorithms])
        # An error is not repeated at every sample ratio and for every figure.
        if question_json in self._given_up:
            raise self._given_up[question_json]
        question = kind, problem.spec, prediction_errors, *arguments
        task = Task(
            question,
            third_party_packages_of(problem, *algorithms),
            on_event=on_event,
            silence_limit=PATIENCE,
        )
        for ended_task in self.executor.run([task], Limits(deadline=self.deadline)):
            if ended_task.event is None:
                self._given_up[question_json] = ProblemError(
                    "theory", why_no_answer(ended_task)
                )
            return answer_of(ended_task)
        self.is_late = True
        raise ProblemError(
            "theory", "time budget exhausted before this was solved; rerun to continue"
        )


def why_no_answer(ended_task: EndedTask) -> str:
    """Return the reason why a worker process gave no answer, from ``ended_task``, the outcome of its task."""
    return (
        ended_task.reason
        if ended_task.status
        else f"the process that solved it ended: {ended_task.reason}"
    )


def answer_of(ended_task: EndedTask) -> object:
    """Return the answer that a worker process sent (in ``ended_task``), or raise the error that it sent, of the type
    named there.
    """
    if ended_task.event is None:
        raise ProblemError("theory", why_no_answer(ended_task))
    if "answer" in ended_task.event:
        return ended_task.event["answer"]
    error_name, error_key, error_message = (
        printable(ended_task.event.get(field, ""), LONGEST)
        for field in ("error", "key", "message")
    )
    if error_name == ProblemError.__name__ and error_key:
        raise ProblemError(error_key, error_message.removeprefix(f"{error_key}: "))
    raise TheoryError.with_type_name(error_name, error_message)
