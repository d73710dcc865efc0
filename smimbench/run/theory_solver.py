"""Questions of theory, answered in a process of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from smimbench.files import canonical_json
from smimbench.problem.problem import Problem, ProblemError
from smimbench.run.theory_cache import TheoryCache
from smimbench.suite.cells import as_table
from smimbench.theory.predictions import solve_part

if TYPE_CHECKING:
    from collections.abc import Callable

    from smimbench.files import JsonObject


class Solver:
    """Answers questions about problems; what it finds on the way is told to the parent."""

    def __init__(self, folder: str | None, tell: Callable[..., None]) -> None:
        self._cache = TheoryCache(None if folder is None else Path(folder))
        self._cache.watch = lambda progress: tell(progress=list(progress))
        self._cache.remark = lambda line: tell(remark=line)
        self._problems: dict[str, Problem] = {}

    def answer(self, what: str, spec: JsonObject, *more: Any) -> Any:
        """The answer to a question about a problem.

        Raises
        ------
        ProblemError
        """
        key = canonical_json(spec)
        if key not in self._problems:
            self._problems[key] = Problem(*(as_table(spec[kind]) for kind in ("model", "channel", "prior")))
        problem, cache = self._problems[key], self._cache
        if problem.spec != spec:
            raise ProblemError("theory", "a package was changed since this began; run the same command again")
        if what == "begin":
            return cache.begin(problem)
        if what == "points":
            return cache.points(problem, *more)
        if what == "part":
            cache.begin(problem)
            return solve_part(problem, *more)
        if what == "whole":
            alphas, with_thresholds = more
            cache.points(problem, alphas)
            return cache.thresholds(problem) if with_thresholds else None
        (found,) = [cache.thresholds(problem)] if what == "thresholds" else cache.solve(what, problem, *more)
        return found
