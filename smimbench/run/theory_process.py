"""Solves theory in a separate process, for third-party code that may crash and for questions with a deadline.

Rows of what cannot be solved give the reason, and all others stay. The process shares nothing with this one but the folder of
answers and nodes; its numbers are the same to the last bit.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from smimbench.files import canonical_json, printable
from smimbench.problem.problem import Problem, ProblemError, Specification
from smimbench.registry.registry import BUILT_IN, get_registry
from smimbench.run.answers import TheoryError
from smimbench.run.executor import Ended, Executor, Limits, Task, WorkerMessage
from smimbench.run.record import LONGEST
from smimbench.suite.cells import assumed_entries

WORKER = "smimbench.run.theory_worker"
"""Module that answers questions in the processes."""

PATIENCE = 900.0
"""Seconds without any new number after which theory is given up; doubled, one that never returns is noticed that much later."""


class Progress(NamedTuple):
    """Progress of a problem's theory.

    Attributes
    ----------
    solved, total : int
        Answers that are known, and asked for.
    nodes : int
        Nodes in use.
    alpha : float or None
        Sample ratio to which the curve has been followed.
    note : str
    """

    solved: int
    total: int
    nodes: int = 0
    alpha: float | None = None
    note: str = ""


def is_third_party(*specs: Specification) -> bool:
    """Whether any of the items comes from a third-party package."""
    return any("distribution" in spec for spec in specs)


def distributions_of(problem: Problem, *algorithms: Specification) -> frozenset[str]:
    """Third-party packages whose code the theory of a problem, and of algorithms on it, runs."""
    specs = [*problem.spec.values(), *algorithms]
    assumed = [
        entry
        for spec in algorithms
        for entry in assumed_entries(spec, problem.model.name).values()
    ]
    named = {str(spec["distribution"]) for spec in specs if "distribution" in spec}
    return frozenset(named | {entry.distribution for entry in assumed} - {BUILT_IN})


class TheoryProcess:
    """Worker process that solves theory for a ``TheorySolver``, started on the first question.

    It has the plugins of the distributions that the question needs, and of no other.

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
        self.deadline = deadline
        self.is_late = False
        self.executor = Executor(
            1, 1, get_registry(), WORKER, folder=folder and str(folder)
        )
        self._given_up: dict[str, ProblemError] = {}
        weakref.finalize(self, self.executor.end)

    def takes(self, problem: Problem, *algorithms: Specification) -> bool:
        """Whether a question is solved in the process, because it needs third-party code or has a deadline."""
        return self.deadline is not None or bool(distributions_of(problem, *algorithms))

    def ask(
        self,
        kind: str,
        problem: Problem,
        predicts: bool,
        *arguments: Any,
        on_event: Callable[[WorkerMessage], object],
    ) -> Any:
        """Send a question to the process and return its answer.

        Raises
        ------
        ProblemError
            What the solver raised; or that the process ended, found no new number for ``PATIENCE`` seconds, or that the
            deadline is over.
        TheoryError
            What a plugin raised.
        """
        algorithms = arguments[:1] if kind == "own" else ()
        name = canonical_json([kind, problem.spec, *algorithms])
        if name in self._given_up:  # not again at every sample ratio, for every figure
            raise self._given_up[name]
        question = kind, problem.spec, predicts, *arguments
        task = Task(
            question,
            distributions_of(problem, *algorithms),
            on_event=on_event,
            patience=PATIENCE,
        )
        for ended in self.executor.run([task], Limits(end=self.deadline)):
            if ended.event is None:
                self._given_up[name] = ProblemError("theory", reason_of(ended))
            return answer_of(ended)
        self.is_late = True
        raise ProblemError(
            "theory", "time budget exhausted before this was solved; rerun to continue"
        )


def reason_of(ended: Ended) -> str:
    """Return the reason why a process gave no answer."""
    return (
        ended.reason
        if ended.status
        else f"the process that solved it ended: {ended.reason}"
    )


def answer_of(ended: Ended) -> object:
    """Return the answer of a process, or raise the error that it reported, under the same name."""
    if ended.event is None:
        raise ProblemError("theory", reason_of(ended))
    if "answer" in ended.event:
        return ended.event["answer"]
    name, key, message = (
        printable(ended.event.get(field, ""), LONGEST)
        for field in ("error", "key", "message")
    )
    if name == ProblemError.__name__ and key:
        raise ProblemError(key, message.removeprefix(f"{key}: "))
    raise TheoryError.named(name, message)
