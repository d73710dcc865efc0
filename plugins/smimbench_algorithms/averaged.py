"""Average of several independent runs of another algorithm on the same data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from smimbench.backend import namespace
from smimbench.interfaces import Array, Capabilities, Info, ParameterError
from smimbench.parameters import build, parameters_of
from smimbench.registry import RegistryError, get_registry

if TYPE_CHECKING:
    import numpy as np

    from smimbench.interfaces import Data
    from smimbench.problem import Problem

ROUNDS = 20


class AveragedState(NamedTuple):
    """State of all students, and the problem, whose symmetry the average has to remove."""

    students: Any
    problem: Problem


@dataclass(frozen=True)
class Averaged:
    r"""Average of independent runs of another algorithm on the same data.

    K students start independently. The mean of their signals is taken, ``S = (1/K) sum_a S_a`` with
    ``S_a = W_a W_a^T / sqrt(r D)``, never that of their factors, which are known up to a rotation only. Where labels
    leave a symmetry (signs, permutations), every student is first brought closest to the first one, then to the mean of
    all, until nothing changes: no teacher is needed.

    All students are one computation with one more axis in front, not K runs. With e_1 the error of one student and
    ``e_K`` that of the mean, ``e_K = b + v / K`` and ``e_1 = b + v``: spread averages out, bias does not.

    Parameters
    ----------
    of : table or name
        The algorithm, ``{ name = "adam", ... }`` with its parameters, or only its name. It must offer
        ``init_students`` (all gradient methods do).
    students : int
        K >= 1.

    References
    ----------
    arXiv:2506.01582 (averaged gradient descent).
    """

    of: dict[str, Any] | str
    students: int = 32

    name: ClassVar[str] = "averaged"
    version: ClassVar[int] = 1
    reference: ClassVar[str] = "arXiv:2506.01582"
    capabilities: ClassVar[Capabilities] = Capabilities()

    def __post_init__(self) -> None:
        if self.students < 1:
            raise ParameterError("students", f"must be at least 1, got {self.students}")
        given = {"name": self.of} if isinstance(self.of, str) else self.of
        table = {key: value for key, value in given.items() if key != "version"}
        name = table.pop("name", None)
        if not isinstance(name, str):
            raise ParameterError(
                "of.name", "is missing" if name is None else f"must be a string, got {name!r}"
            )
        try:
            entry = get_registry().get("algorithm", name)
        except RegistryError as error:
            raise ParameterError("of.name", str(error)) from None
        if not hasattr(entry.item, "init_students"):
            raise ParameterError(
                "of.name",
                f"must be an algorithm that runs several students at once (init_students), {name!r} does not",
            )
        try:
            inner = build(entry.item, "algorithm", table)
        except ParameterError as error:
            raise ParameterError(f"of.{error.key}", error.message) from None
        # Written out with defaults and version, so that a change of either makes another cell.
        full = {"name": name, "version": entry.item.version, **parameters_of("algorithm", inner)}
        object.__setattr__(self, "of", full)
        object.__setattr__(self, "_inner", inner)

    @property
    def steps(self) -> int | None:
        """Steps of the algorithm."""
        return getattr(self._inner, "steps", None)  # type: ignore[attr-defined, no-any-return]

    def steps_for(self, data: Data) -> int | None:
        """Steps of the algorithm on this data."""
        planned = getattr(self._inner, "steps_for", None)  # type: ignore[attr-defined]
        return self.steps if planned is None else planned(data)  # type: ignore[no-any-return]

    def refuses(self, problem: Problem) -> str | None:
        """What the algorithm itself refuses."""
        asked = getattr(self._inner, "refuses", None)  # type: ignore[attr-defined]
        return None if asked is None else asked(problem)  # type: ignore[no-any-return]

    def init(self, problem: Problem, data: Data, rng: np.random.Generator) -> AveragedState:
        """Independent starts."""
        students = self._inner.init_students(problem, data, rng, self.students)  # type: ignore[attr-defined]
        return AveragedState(students, problem)

    def step(self, problem: Problem, data: Data, state: AveragedState) -> tuple[AveragedState, Info]:
        """One step of every student."""
        students, info = self._inner.step(problem, data, state.students)  # type: ignore[attr-defined]
        return AveragedState(students, problem), info

    def estimate(self, state: AveragedState) -> Array:
        """Mean of the students' signals after removing the symmetry."""
        signals = self._inner.estimate(state.students)  # type: ignore[attr-defined]
        return mean_signal(state.problem, signals)


def mean_signal(problem: Problem, signals: Array) -> Array:
    """Mean over the first axis of signals (K, P, ...), each moved by the symmetry of the channel that it fits best."""
    xp = namespace(signals)
    symmetry = problem.channel.symmetry
    if symmetry == "none" or signals.shape[0] == 1:
        return xp.mean(signals, axis=0)
    model: Any = problem.model

    def towards(centre: Array) -> Array:
        return xp.stack([model.align(centre, signals[k, ...], symmetry) for k in range(signals.shape[0])])

    aligned = towards(signals[0, ...])
    for _ in range(ROUNDS):
        again = towards(xp.mean(aligned, axis=0))
        if bool(xp.all(again == aligned)):
            break
        aligned = again
    return xp.mean(aligned, axis=0)
