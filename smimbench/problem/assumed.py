"""Wrong assumptions: an algorithm that takes the problem for another one than its data are from."""

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
    """The problem with the channel or prior that ``assumed`` of a suite names; the same object where nothing differs.

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
            f"must have {problem.components} components, as the data, got {assumed.components}",
        )
    if assumed.identity == problem.identity:
        return problem
    if why := why_theory_only(assumed.prior, assumed.components):
        raise ProblemError("prior", f"cannot be assumed: {why}")
    if "channel" in tables and (why := _foreign_labels(problem, assumed)):
        raise ProblemError("channel", why)
    assumed.is_assumed = True
    return assumed


def _foreign_labels(problem: Problem, assumed: Problem) -> str | None:
    """Why labels of the data cannot be labels of the assumed channel, or None."""
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
    """An algorithm whose methods are given the assumed problem; all that it does not take from a problem is its own.

    Parameters
    ----------
    algorithm : Algorithm
    tables : mapping
        See ``assumed_problem``.
    """

    def __init__(self, algorithm: Algorithm, tables: Mapping[str, Any]) -> None:
        self._algorithm, self._tables = algorithm, tables
        self._problems: dict[str, Problem] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._algorithm, name)

    def assumed(self, problem: Problem) -> Problem:
        """The problem that it takes this one for."""
        key = canonical_json(problem.spec)
        if key not in self._problems:
            self._problems[key] = assumed_problem(problem, self._tables)
        return self._problems[key]

    def init(self, problem: Problem, data: Data, rng: np.random.Generator) -> Any:
        """Initial state for the assumed problem."""
        return self._algorithm.init(self.assumed(problem), data, rng)

    def step(self, problem: Problem, data: Data, state: Any) -> Any:
        """One iteration for the assumed problem."""
        return self._algorithm.step(self.assumed(problem), data, state)

    def refuses(self, problem: Problem) -> str | None:
        """Reason why the assumption cannot be made, or the assumed problem cannot be solved, or None."""
        try:
            reason: str | None = self._algorithm.refuses(self.assumed(problem))
        except ProblemError as error:
            return f"the assumption does not fit this problem: {error}"
        return reason

    def retry(self, problem: Problem, outcome: str) -> Assuming | None:
        """The algorithm for one more attempt, with the same assumption."""
        version = self._algorithm.retry(self.assumed(problem), outcome)
        return None if version is None else Assuming(version, self._tables)
