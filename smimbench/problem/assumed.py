"""Mismatched inference: an algorithm that assumes another channel or prior than the data were drawn from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.derive.prior import why_theory_only
from smimbench.files import canonical_json
from smimbench.interfaces import Algorithm
from smimbench.numerics.seeds import monte_carlo_rng
from smimbench.problem.problem import Problem, ProblemError, as_table

if TYPE_CHECKING:
    from smimbench.interfaces import Data


def assumed_problem(problem: Problem, tables: Mapping[str, Any]) -> Problem:
    """Return the problem with the assumed channel or prior in place of the true one; the same object if they are equal.

    Parameters
    ----------
    tables : mapping
        ``"channel"``, ``"prior"`` or both: a name, a table with a ``name`` as in ``[problem]``, or one of parameters that differ.

    Raises
    ------
    ProblemError
        If it cannot be made, or has another number of components.
    """
    items = {kind: as_table(spec) for kind, spec in problem.spec.items()}
    for kind, item in tables.items():
        table = as_table({"name": item} if isinstance(item, str) else item)
        items[kind] = table if "name" in table else items[kind] | table
    assumed = Problem(**items)
    if assumed.components != problem.components:
        raise ProblemError(
            "channel",
            f"the assumed channel must have {problem.components} components, as the signal of the data, got {assumed.components}",
        )
    if assumed.identity == problem.identity:
        return problem
    if why := why_theory_only(assumed.prior, assumed.components):
        raise ProblemError("prior", f"this prior cannot be assumed: {why}")
    if "channel" in tables and (why := _label_mismatch(problem, assumed)):
        raise ProblemError("channel", why)
    assumed.is_assumed = True
    return assumed


def _label_mismatch(problem: Problem, assumed: Problem) -> str | None:
    """Reason why the assumed channel cannot produce the labels of the data, or None."""
    z = monte_carlo_rng("wrong assumptions: labels").standard_normal(
        (64, problem.components, problem.model.sites)
    )
    labels, assumed_labels = (
        np.asarray(
            side.channel.forward(z, rng=monte_carlo_rng("wrong assumptions: labels"))
        )
        for side in (problem, assumed)
    )
    names = f"{assumed.channel.name!r} cannot be assumed of labels of {problem.channel.name!r}"
    if labels.shape != assumed_labels.shape:
        return f"{names}: one of them is an array {assumed_labels.shape[1:]}, not {labels.shape[1:]}"
    values = np.unique(assumed_labels)
    if len(values) <= 8 and not np.isin(labels, values).all():
        return f"{names}: it has the labels {', '.join(f'{value:g}' for value in values)} only"
    return None


class Assuming:
    """Wraps an algorithm so that its methods are passed the assumed problem instead of the true one.

    Parameters
    ----------
    algorithm : Algorithm
    tables : mapping
        See ``assumed_problem``.
    """

    def __init__(self, algorithm: Algorithm, tables: Mapping[str, object]) -> None:
        self._algorithm, self._tables = algorithm, tables
        self._problems: dict[str, Problem] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._algorithm, name)

    def assumed(self, problem: Problem) -> Problem:
        """Return the problem that the algorithm assumes instead of the true ``problem``."""
        key = canonical_json(problem.spec)
        if key not in self._problems:
            self._problems[key] = assumed_problem(problem, self._tables)
        return self._problems[key]

    def init(self, problem: Problem, data: Data, rng: np.random.Generator) -> Any:
        """Return the initial state for the assumed problem."""
        return self._algorithm.init(self.assumed(problem), data, rng)

    def step(self, problem: Problem, data: Data, state: object) -> Any:
        """Run one iteration for the assumed problem."""
        return self._algorithm.step(self.assumed(problem), data, state)

    def refuses(self, problem: Problem) -> str | None:
        """Reason why the assumption is impossible or the algorithm cannot solve the assumed problem, or None."""
        try:
            reason: str | None = self._algorithm.refuses(self.assumed(problem))
        except ProblemError as error:
            return f"the assumption does not fit this problem: {error}"
        return reason

    def retry(self, problem: Problem, outcome: str) -> Assuming | None:
        """Return the algorithm to use for one more attempt, with the same assumption."""
        version = self._algorithm.retry(self.assumed(problem), outcome)
        return None if version is None else Assuming(version, self._tables)
