"""Worker process that solves theory: it answers one question after another and reports its progress."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from smimbench.files import JsonObject, canonical_json
from smimbench.problem.problem import Problem, ProblemError, Specification
from smimbench.run.answers import document_of
from smimbench.run.theory_solver import TheorySolver
from smimbench.suite.cells import build_problem
from smimbench.theory.predictions import solve_part


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
