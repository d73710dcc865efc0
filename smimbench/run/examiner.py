"""Who knows the teacher of a cell, and its stand-in where algorithms of third parties run: data as arrays, random streams without
their seeds, and questions to the process that knows.
"""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from smimbench.backend.arrays import to_host
from smimbench.backend.device import Backend, get_backend
from smimbench.backend.streaming import DrawnInputs
from smimbench.files import JsonObject, attempt, canonical_json, error_line
from smimbench.interfaces import Array, Host, Overlaps, Start
from smimbench.problem.instance import Instance, Values
from smimbench.problem.problem import Problem, ProblemError, seed_sequence
from smimbench.suite.cells import Cell, build_problem

Ask = Callable[..., Any]
Drawn = tuple[Instance, tuple[float, ...]]
"""An instance, and its checksum as it was drawn."""

INFORMED_OVERLAP = 0.9
"""Overlap with the teacher of an informed start; nearer to 1 the informed branch is followed from further inside."""


class Examiner:
    """Knows the seed of a cell: draws its instance, its random streams and an informed start.

    Where algorithms of third parties run there is a stand-in for it only, ``RemoteExaminer``.
    """

    def __init__(self, cell: Cell, problem: Problem, backend: Backend) -> None:
        self.cell, self.problem, self.backend = cell, problem, backend
        self._place = cell.root, problem.seed_name, cell.alpha, cell.dimension, cell.replicate

    def instance(self) -> Drawn:
        """The instance; the latest is kept: the algorithms of a suite share it."""
        cell, device = self.cell, None
        if cell.run.draw == "device" and self.backend.accelerated:
            device = self.backend
        where = (cell.alpha, cell.dimension, cell.replicate)
        name = canonical_json([cell.problem, *where, cell.root, cell.run.dtype, cell.backend if device else "host"])
        if name not in _LATEST:
            _LATEST.clear()  # two large ones would not fit side by side
            drawn = self.problem.instance(*where, seed=cell.root, dtype=cell.run.dtype, device=device)
            _LATEST[name] = drawn, drawn.checksum()
        return _LATEST[name]

    def stream(self, *name: str, bits: str = "PCG64DXSM") -> np.random.Generator:
        """The random numbers of this name."""
        return np.random.Generator(getattr(np.random, bits)(seed_sequence(*self._place, "initialisation", *name)))

    def informed(self, instance: Instance) -> Start:
        """A noisy teacher. In units of the noise: information q / (1 - q) gives a Gaussian prior the overlap q."""
        information = INFORMED_OVERLAP / (1 - INFORMED_OVERLAP)
        rng = self.stream("start", bits="PCG64")
        return self.problem.start(instance, information, rng, self.backend)


_LATEST: dict[str, Drawn] = {}


def forget_instance() -> None:
    """Let go of the instance that was drawn last."""
    _LATEST.clear()


# -- where algorithms of third parties run --------------------------------------------------------------------------------


def draws_no_instance() -> None:
    """From now on ``Problem.instance`` refuses in this process: a public seed would give the teacher away."""

    def refuse(self: Problem, *place: Any, **how: Any) -> Instance:
        raise ProblemError(
            "problem.instance",
            "is closed while an algorithm runs, for it would draw the teacher; draw your own one: "
            "problem.draw(problem.prior.sample(rng, problem.components, dimension), n, rng)",
        )

    setattr(Problem, "instance", refuse)  # noqa: B010 - in this process only, for all problems


@dataclass(frozen=True, eq=False)
class HiddenInstance(Instance):
    """An instance without its teacher: whoever has it measures estimates and draws fresh samples."""

    ask: Ask

    def fresh(self, rng: np.random.Generator, n: int, dtype: str) -> tuple[Host, Host]:
        """See ``Instance``; they come from a stream that ``rng`` only chooses, so that nobody knows their noise."""
        words = [str(word) for word in rng.integers(2**32, size=4)]
        found: tuple[Host, Host] = self.ask("fresh", n=int(n), words=words, dtype=dtype)
        return found

    def metrics(self, estimate: Array, broken: dict[str, str] | None = None) -> Values:
        """See ``Instance``."""
        values, blank = self.ask("metrics", estimate=_packed(estimate), broken=broken or {})
        if broken is not None:
            broken |= blank
        return dict(values)

    def overlaps(self, estimate: Array) -> Overlaps:
        """See ``Instance``."""
        found: Overlaps = self.ask("overlaps", estimate=_packed(estimate))
        return found

    def measure(
        self, names: Sequence[str], estimate: Array, V: Array | None = None
    ) -> tuple[Values, dict[str, str], list[str]]:
        """See ``Instance``."""
        claimed = None if V is None else to_host(V)
        values, blank, remarks = self.ask("measure", estimate=_packed(estimate), names=list(names), V=claimed)
        return values, blank, remarks


def _packed(array: Array) -> str:
    body = io.BytesIO()
    np.save(body, to_host(array), allow_pickle=False)
    return base64.b64encode(body.getvalue()).decode()


class RemoteExaminer(Examiner):
    """The stand-in of an ``Examiner`` in a process that does not know the seed."""

    def __init__(self, ask: Ask, cell: Cell, problem: Problem, backend: Backend) -> None:
        super().__init__(cell, problem, backend)
        self.ask = ask

    def instance(self) -> Drawn:
        """The data, and their checksum."""
        inputs, labels, sample_ratio = self.ask("instance")
        found = HiddenInstance(self.problem, np.empty(0), inputs, labels, sample_ratio, self.ask)
        return found, found.checksum()

    def stream(self, *name: str, bits: str = "PCG64DXSM") -> np.random.Generator:
        """See ``Examiner``."""
        found: np.random.Generator = self.ask("stream", name=name, bits=bits)
        return found

    def informed(self, instance: Instance) -> Start:
        """See ``Examiner``."""
        return Start(*(self.backend.asarray(part) for part in self.ask("informed")))


# -- where the teacher is -------------------------------------------------------------------------------------------------


class TeacherServer:
    """Answers the questions of a ``RemoteExaminer`` and a ``HiddenInstance`` about one cell, and keeps what it has measured."""

    def __init__(self, cell: Cell) -> None:
        problem = build_problem(cell.problem)
        self._examiner = Examiner(cell, problem, get_backend(cell.backend, cell.run.dtype, tf32=cell.run.tf32))
        self._along: list[Values] = []
        self._values: Values = {}
        self._drawn = 0

    def reply(self, event: JsonObject) -> tuple[Any, str]:
        """The answer to a question, or the error that it raised in one line."""
        found, error = attempt(self._answer, **event)
        return found, "" if error is None else error_line(error)

    def _answer(self, call: str, **arguments: Any) -> Any:
        if "estimate" in arguments:
            body = io.BytesIO(base64.b64decode(arguments["estimate"]))
            arguments["estimate"] = np.load(body, allow_pickle=False)
        asked = (self.instance, self.stream, self.informed, self.fresh, self.overlaps, self.metrics, self.measure)
        return {method.__name__: method for method in asked}[call](**arguments)

    def instance(self) -> tuple[Any, Any, float]:
        """Inputs, labels and sample ratio, on the host."""
        self._instance, _ = self._examiner.instance()
        self._along, self._values, self._drawn = [], {}, 0
        inputs = self._instance.inputs
        parts = inputs.whole_blocks([slice(0, len(inputs))]) if isinstance(inputs, DrawnInputs) else ()
        host = np.concatenate([to_host(inputs[part, ...]) for part in parts]) if parts else to_host(inputs)
        return host, to_host(self._instance.labels), self._instance.sample_ratio

    def stream(self, name: Sequence[str], bits: str) -> np.random.Generator:
        """Random numbers of a name, without their seed; the children that they spawn have another one."""
        found = self._examiner.stream(*name, bits=bits).bit_generator
        text = f"{name} {found.state}"
        own = type(found)(np.random.SeedSequence(int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")))
        own.state = found.state
        return np.random.Generator(own)

    def informed(self) -> tuple[Any, Any]:
        """An informed start, on the host."""
        start = self._examiner.informed(self._instance)
        return to_host(start.estimate), to_host(start.V)

    def fresh(self, n: int, words: Sequence[str], dtype: str) -> tuple[Any, Any]:
        """So many new samples."""
        self._drawn += n
        return self._instance.fresh(self._examiner.stream("fresh", *words), n, dtype)

    def overlaps(self, estimate: Array) -> Overlaps:
        """See ``Instance``."""
        return self._instance.overlaps(estimate)

    def metrics(self, estimate: Array, broken: dict[str, str]) -> tuple[Values, dict[str, str]]:
        """See ``Instance``."""
        self._values = self._instance.metrics(estimate, broken)
        self._along.append(dict(self._values))
        return self._values, broken

    def measure(self, estimate: Array, names: Sequence[str], V: Any) -> tuple[Any, ...]:
        """See ``Instance``."""
        found = self._instance.measure(names, estimate, None if V is None else np.array(V))
        self._values = self._values | found[0]
        return found

    def record_of_run(self, found: JsonObject) -> JsonObject:
        """Fields of the record of a run, with the numbers that were measured here; a failed run has none.

        Raises
        ------
        ValueError
            If more fresh samples were handed out than were counted.
        """
        found = {name: value for name, value in found.items() if name not in ("key", "cell")}
        if not found["metrics"]:
            return found
        if found.get("fresh_samples", self._drawn) != self._drawn:
            raise ValueError(f"{self._drawn} fresh samples were drawn, of which {found['fresh_samples']} were counted")
        path = found["trajectory"]
        along = self._along[-len(path["iteration"]) :]  # an earlier attempt is not kept
        path |= {name: [row[name] for row in along] for name in path.keys() & along[-1].keys()}
        return {**found, "metrics": self._values}
