"""Answers of theory as they are stored: points, lines, thresholds and predictions of algorithms. Nothing is solved here."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from smimbench.files import JsonObject, canonical_json, read_json
from smimbench.interfaces import Conditions, Uncertain
from smimbench.problem.problem import NoTheoryError, Problem, ProblemError
from smimbench.run.record import check_answer, read_answer
from smimbench.suite.cells import key_of
from smimbench.theory.questions import PredictionQuestion

Ratio = float | tuple[float, ...] | None
"""Sample ratio of an answer; those of a whole line; None for thresholds."""
Place = tuple[str, str, Ratio]
"""Kind of an answer, its question as canonical JSON, and its sample ratio."""

THEORY_VERSION = 23
"""Raised when the numbers of the state-evolution solver itself change: remembered values of older ones are not used."""
OWN_VERSION = 6
"""Raised when what theory says of shipped algorithms themselves changes, and their estimates do not: only these answers are then
computed again."""


class TheoryError(RuntimeError):
    """Error raised by a plugin's code while theory was solved, with its own type name and message."""

    @staticmethod
    def named(name: str, message: str) -> TheoryError:
        """Make the error type of this name."""
        error: TheoryError = type(name, (TheoryError,), {})(message)
        return error


THEORY_ERRORS = (ProblemError, TheoryError)
"""All that solving theory raises, but for a folder that cannot be written to."""


class NotStored(ProblemError):
    """An answer is not stored."""


class Kept(NamedTuple):
    """How much of the theory of some problems is stored."""

    points: int
    thresholds: int
    nodes: int


@dataclass
class Memory:
    """Answers of this process, and the errors of those that could not be solved."""

    answers: dict[Place, Any] = field(default_factory=dict)
    errors: dict[Place, Exception] = field(default_factory=dict)


class Answers:
    """Answers to questions about problems, from memory or from a folder.

    Parameters
    ----------
    folder : Path or None
        Where answers and nodes are stored, one small file each; None: there is only memory.
    predictions : bool
        Whether the answers that are asked for have errors of prediction.
    on_remark : callable
        Called with one line for every answer that cannot be used.
    memory : Memory or None
        What this process has read or solved already; it is shared, not copied.

    Attributes
    ----------
    missing : set
        Places of answers that were asked for and are not stored.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        predictions: bool = True,
        on_remark: Callable[[str], object] = lambda line: None,
        memory: Memory | None = None,
    ) -> None:
        self.folder, self.predictions, self.on_remark = folder, predictions, on_remark
        self.memory = Memory() if memory is None else memory
        self.missing: set[Place] = set()

    @property
    def is_missing(self) -> bool:
        """Whether an answer was asked for that is not stored."""
        return bool(self.missing)

    @property
    def missing_files(self) -> list[Path]:
        """Files of answers that were asked for and are not there."""
        files = {self._file(*place) for place in self.missing}
        return sorted(file for file in files if file is not None and not file.exists())

    def points(
        self, problem: Problem, alphas: Sequence[float]
    ) -> list[list[JsonObject]]:
        """For every alpha the competing branches as JSON objects, the Bayes-optimal one first.

        Raises
        ------
        NotStored
            As all methods: if an answer is not stored; or the error with which its solution ended in this process.
        """
        key = canonical_json(problem.spec)
        return [self._stored("point", problem, key, float(alpha)) for alpha in alphas]

    def curve(
        self, problem: Problem, alphas: Sequence[float]
    ) -> list[list[JsonObject]] | None:
        """As ``points``, for a whole line of a figure."""
        line: list[list[JsonObject]] = self._stored(
            "curve",
            problem,
            canonical_json(problem.spec),
            tuple(float(alpha) for alpha in alphas),
        )
        return line

    def thresholds(self, problem: Problem) -> JsonObject:
        """Thresholds as a JSON object."""
        thresholds: JsonObject = self._stored(
            "thresholds", problem, canonical_json(problem.spec), None
        )
        return thresholds

    def own(
        self, problem: Problem, spec: JsonObject, alpha: float, conditions: Conditions
    ) -> JsonObject | str:
        """An algorithm's own theory: its point as a JSON object, or the reason why there is none.

        ``spec`` names it with its version and parameters; what the problem's own theory says is added to the conditions.
        """
        key = self._prediction_key(PredictionQuestion(problem, spec, alpha, conditions))
        prediction: JsonObject | str = self._stored("own", problem, key, float(alpha))
        return prediction

    def at_hand(self, kind: str, problem: Problem, *arguments: Any) -> Any:
        """What ``points``, ``curve`` or ``thresholds`` gives; None where it is not stored, or where no theory is known."""
        with contextlib.suppress(NotStored, NoTheoryError):
            return getattr(self, kind)(problem, *arguments)
        return None

    def line_at_hand(
        self, problem: Problem, alphas: Sequence[float]
    ) -> list[list[JsonObject]] | None:
        """A line of a figure; None where it is not stored: lines that take minutes are drawn through points instead."""
        line = tuple(float(alpha) for alpha in alphas)
        if problem.components > 1 and not self._is_kept(
            "curve", canonical_json(problem.spec), line
        ):
            return None
        branches: list[list[JsonObject]] | None = self.at_hand("curve", problem, line)
        return branches

    def thresholds_at_hand(self, problem: Problem) -> JsonObject:
        """Thresholds for a figure; empty where they are not stored: some take minutes, and are drawn once they are known."""
        if problem.components > 1 and not self._is_kept(
            "thresholds", canonical_json(problem.spec), None
        ):
            return {}
        return self.at_hand("thresholds", problem) or {}

    def kept(self, problems: Iterable[tuple[Problem, Sequence[float]]]) -> Kept:
        """How many answers for these sample ratios, and how many nodes, are on disk or in memory."""
        points = thresholds = nodes = 0
        for problem, alphas in problems:
            key = canonical_json(problem.spec)
            points += sum(self._is_kept("point", key, float(alpha)) for alpha in alphas)
            thresholds += self._is_kept("thresholds", key, None)
            nodes += (
                len(list(self.nodes_folder(key).glob("[!.]*.json")))
                if self.folder is not None
                else 0
            )
        return Kept(points, thresholds, nodes)

    def stored_answers(self) -> Iterator[tuple[str, JsonObject]]:
        """Stored answers that have been read or solved so far, with their kinds, as their files hold them."""
        for kind, key, ratio in self.memory.answers:
            file = self._file(kind, key, ratio)
            if file is not None and file.exists():
                yield kind, read_json(file)

    def nodes_folder(self, key: str) -> Path:
        """Folder of the nodes of a problem, whose specification as canonical JSON is ``key``."""
        assert self.folder is not None
        return self.folder / "nodes" / nodes_name(key)

    def _prediction_key(self, question: PredictionQuestion) -> str:
        """Question about an algorithm as canonical JSON."""
        fields = question.conditions._asdict() | {
            "starts": np.asarray(question.conditions.starts).tolist()
        }
        asked = [question.algorithm, *fields.values()]
        bare = [] if self.predictions else ["without errors of prediction"]
        return canonical_json([question.problem.spec, asked, OWN_VERSION, *bare])

    def _stored(self, kind: str, problem: Problem, key: str, alpha: Ratio) -> Any:
        answer = self._recall(kind, problem, key, alpha)
        if answer is not None:
            return answer
        if (kind, key, alpha) in self.memory.errors:
            raise self.memory.errors[kind, key, alpha]
        problem.require_theory()
        self.missing.add((kind, key, alpha))
        raise NotStored("theory", "not stored")

    def _recall(self, kind: str, problem: Problem, key: str, alpha: Ratio) -> Any:
        """An answer from memory, or from its file, which is then in memory; None if there is none."""
        answers, file = self.memory.answers, self._file(kind, key, alpha)
        if (kind, key, alpha) not in answers and file is not None:
            question = {"problem": json.loads(key), "alpha": alpha}
            answer = self._sound_answer(kind, file, question, problem.components)
            if answer is not None:
                answers[kind, key, alpha] = answer
        return answers.get((kind, key, alpha))

    def _sound_answer(
        self, kind: str, file: Path, question: JsonObject, components: int
    ) -> Any:
        """Read a stored answer; None, with a remark, if its file cannot be trusted."""
        try:
            answer = read_answer(file, question)["answer"]
            check_answer(kind, answer, components)
            return answer
        except OSError:
            return None
        except ValueError as error:
            self._refuse(file, error)
            return None

    def _refuse(self, file: Path, error: ValueError) -> None:
        self.on_remark(f"{file}: {error}; not used")

    def _file(self, kind: str, key: str, alpha: Ratio) -> Path | None:
        return (
            None if self.folder is None else self.folder / answer_name(kind, key, alpha)
        )

    def _is_kept(self, kind: str, key: str, alpha: Ratio) -> bool:
        file = self._file(kind, key, alpha)
        return (kind, key, alpha) in self.memory.answers or (
            file is not None and file.exists()
        )


def answer_name(
    kind: str, key: str, alpha: Ratio, version: int = THEORY_VERSION
) -> str:
    """Name of the file of an answer: ``kind`` and a digest of its question, whose problem as canonical JSON is ``key``."""
    return f"{kind}-{key_of([version, kind, key, alpha])}.json"


def nodes_name(key: str, version: int = THEORY_VERSION) -> str:
    """Name of a problem's folder of nodes."""
    return key_of([version, key])


def node_answer(node: Uncertain) -> JsonObject:
    """A node in the form in which its file stores it."""
    value, error = (
        np.asarray(matrix, dtype=float).tolist() for matrix in (node.value, node.error)
    )
    return {"value": value, "error": error, "method": node.method}
