"""Reads and writes stored theory results: points, lines of figures, thresholds, predictions for algorithms. Solves nothing."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple, ParamSpec, TypeVar, cast

import numpy as np
import pydantic
from pydantic import Field

from smimbench.backend import machine
from smimbench.files import JsonObject, canonical_json, read_json, write_atomically
from smimbench.interfaces import AlgorithmPrediction, Uncertain
from smimbench.problem.problem import NoTheoryError, Problem, ProblemError
from smimbench.run.record import (
    ClosedModel,
    Number,
    Numbers,
    OpenModel,
    Text,
    check_model,
    digest_of,
    one_line_json,
    require_matrix,
    with_digest,
)
from smimbench.suite.cells import key_of
from smimbench.theory.types import Floor, PredictionQuestion, TheoryPoint, Thresholds

P = ParamSpec("P")
T = TypeVar("T")

Ratio = float | tuple[float, ...] | None
"""Sample ratio of an answer; those of a whole line; None for thresholds."""
Branches = list[TheoryPoint]
"""The competing fixed points at a sample ratio, the Bayes-optimal one first."""
Answer = Branches | list[Branches] | Thresholds | AlgorithmPrediction | Floor | str
"""Points at a sample ratio, or along a line; thresholds; what an algorithm's theory predicts; the floor; or why there is none."""

THEORY_VERSION = 23
"""Raised when the numbers of the state-evolution solver itself change: remembered values of older ones are not used."""
PREDICTION_VERSION = 6
"""Raised when what theory says of shipped algorithms themselves changes, and their estimates do not: only these answers are then
computed again."""


class TheoryError(RuntimeError):
    """Error that replaces what a plugin's code raised while theory was solved; it keeps the type name and message."""

    @staticmethod
    def with_type_name(type_name: str, message: str) -> TheoryError:
        """Create a TheoryError with this message, whose type has the given name."""
        error: TheoryError = type(type_name, (TheoryError,), {})(message)
        return error


THEORY_ERRORS = (ProblemError, TheoryError)
"""All that solving theory raises, but for a folder that cannot be written to."""


class NotStored(ProblemError):
    """Error that a requested theory result is not stored."""


class AnswerKey(NamedTuple):
    """Key under which a theory result (an answer) is stored: its kind (point, thresholds, ...), the problem (``question``, as
    JSON), and the sample ratio.

    Attributes
    ----------
    kind : str
        ``"point"``, ``"curve"`` (a line), ``"thresholds"``, ``"floor"`` or ``"own"`` (a prediction for an algorithm).
    question : str
        The problem, and what is asked about an algorithm, as canonical JSON.
    ratio : float, tuple of float or None
    """

    kind: str
    question: str
    ratio: Ratio


class StoredCounts(NamedTuple):
    """Numbers of stored fixed points, thresholds and nodes (information at one overlap) of the theory of some problems."""

    points: int
    thresholds: int
    nodes: int


@dataclass
class Memory:
    """Theory results that this process has read or solved (``answers``, by key), and the errors of those that could not be
    solved.
    """

    answers: dict[AnswerKey, Answer] = field(default_factory=dict)
    errors: dict[AnswerKey, Exception] = field(default_factory=dict)


class Answers:
    """Read-only access to theory results (fixed points, thresholds, predictions), from memory or from a folder.

    Parameters
    ----------
    folder : Path or None
        Where answers and nodes are stored, one small file each; None: there is only memory.
    prediction_errors : bool
        Whether the answers that are asked for have errors of prediction.
    on_remark : callable
        Called with one line for every answer that cannot be used.
    memory : Memory or None
        What this process has read or solved already; it is shared, not copied.

    Attributes
    ----------
    missing : set of AnswerKey
        Answers that were asked for and are not stored.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        prediction_errors: bool = True,
        on_remark: Callable[[str], object] = lambda remark: None,
        memory: Memory | None = None,
    ) -> None:
        """Read answers from ``folder``, or from ``memory`` alone (results of this process); ``prediction_errors`` says
        whether they have generalization errors, ``on_remark`` gets a line for each file that is not used.
        """
        self.folder = folder
        self.prediction_errors = prediction_errors
        self.on_remark = on_remark
        self.memory = Memory() if memory is None else memory
        self.missing: set[AnswerKey] = set()

    @property
    def has_missing_answers(self) -> bool:
        """Whether some requested theory result was not stored."""
        return bool(self.missing)

    @property
    def missing_files(self) -> list[Path]:
        """Paths of the files of requested theory results that are not stored."""
        files = {self._file(answer_key) for answer_key in self.missing}
        return sorted(file for file in files if file is not None and not file.exists())

    def points(self, problem: Problem, alphas: Sequence[float]) -> list[Branches]:
        """Return the competing fixed points at each sample ratio alpha, the Bayes-optimal one first.

        Raises
        ------
        NotStored
            As all methods: if an answer is not stored; or the error with which its solution ended in this process.
        """
        keys = [key_of_point(problem, alpha) for alpha in alphas]
        return [
            cast(Branches, self._require_answer(problem, answer_key))
            for answer_key in keys
        ]

    def line(self, problem: Problem, alphas: Sequence[float]) -> list[Branches]:
        """Return the fixed points along a line of a figure, at the sample ratios ``alphas``, stored as one result; see
        ``points``.
        """
        answer = self._require_answer(problem, key_of_line(problem, alphas))
        return cast(list[Branches], answer)

    def thresholds(self, problem: Problem) -> Thresholds:
        """Return all thresholds (critical sample ratios) of a problem."""
        return cast(
            Thresholds, self._require_answer(problem, key_of_thresholds(problem))
        )

    def prediction(self, question: PredictionQuestion) -> AlgorithmPrediction | str:
        """Return the prediction of an algorithm's theory, or the reason why there is none; ``question`` names algorithm,
        problem and conditions.

        What the problem's own theory says is added to the conditions.
        """
        answer = self._require_answer(question.problem, self._prediction_key(question))
        return cast(AlgorithmPrediction | str, answer)

    def floor(self, problem: Problem, alpha: float) -> Floor | str:
        """Return the smallest error of a first-order method after every number of passes at a sample ratio alpha, or the
        reason why there is none.
        """
        key = key_of_floor(problem, alpha)
        try:
            return cast(Floor | str, self._require_answer(problem, key))
        finally:
            self.missing.discard(key)  # results of older versions have none

    def line_or_none(
        self, problem: Problem, alphas: Sequence[float]
    ) -> list[Branches] | None:
        """Return the fixed points along a line of a figure, at the sample ratios ``alphas``, or None if they are not stored;
        the figure then connects single points instead.
        """
        if problem.components > 1 and not self._is_stored(key_of_line(problem, alphas)):
            return None
        return stored_or_none(self.line, problem, alphas)

    def thresholds_or_empty(self, problem: Problem) -> Thresholds:
        """Return the thresholds for a figure, or empty ones if they are not stored yet."""
        if problem.components > 1 and not self._is_stored(key_of_thresholds(problem)):
            return Thresholds()
        return stored_or_none(self.thresholds, problem) or Thresholds()

    def count_stored(
        self, problems: Iterable[tuple[Problem, Sequence[float]]]
    ) -> StoredCounts:
        """Count the stored points, thresholds and nodes (information at one overlap) of some problems, in files or in memory."""
        point_count = threshold_count = node_count = 0
        for problem, alphas in problems:
            point_count += sum(
                self._is_stored(key_of_point(problem, alpha)) for alpha in alphas
            )
            threshold_count += self._is_stored(key_of_thresholds(problem))
            if self.folder is not None:
                folder = self.nodes_folder(canonical_json(problem.spec))
                node_count += len(list(folder.glob("[!.]*.json")))
        return StoredCounts(point_count, threshold_count, node_count)

    def stored_answers(self) -> Iterator[tuple[str, JsonObject]]:
        """Yield kind and file content of each stored theory result that has been read or solved so far."""
        for key in self.memory.answers:
            file = self._file(key)
            if file is not None and file.exists():
                yield key.kind, read_json(file)

    def nodes_folder(self, question: str) -> Path:
        """Folder that stores the nodes (information at single overlaps) of a problem, given as canonical JSON (``question``)."""
        assert self.folder is not None
        return self.folder / "nodes" / nodes_folder_name(question)

    def _prediction_key(self, question: PredictionQuestion) -> AnswerKey:
        """Return the key under which the theory's prediction for an algorithm is stored; ``question`` names algorithm,
        problem and conditions.
        """
        conditions_fields = question.conditions._asdict() | {
            "starts": np.asarray(question.conditions.starts).tolist()
        }
        question_parts = [
            question.problem.spec,
            [question.algorithm, *conditions_fields.values()],
            PREDICTION_VERSION,
        ]
        if not self.prediction_errors:
            question_parts.append("without errors of prediction")
        question_json = canonical_json(question_parts)
        return AnswerKey("own", question_json, float(question.alpha))

    def _require_answer(self, problem: Problem, key: AnswerKey) -> Answer:
        """Return the theory result stored under a key; otherwise note that it is missing and raise the reason."""
        answer = self._from_memory_or_file(problem, key)
        if answer is not None:
            return answer
        if key in self.memory.errors:
            raise self.memory.errors[key]
        problem.require_theory()
        self.missing.add(key)
        raise NotStored(
            "theory", "this theory result is not stored; 'smimbench theory' solves it"
        )

    def _from_memory_or_file(self, problem: Problem, key: AnswerKey) -> Answer | None:
        """Return the theory result of a key from memory, or from its file (and remember it); None if there is none."""
        answers, path = self.memory.answers, self._file(key)
        if key not in answers and path is not None:
            answered_question = {
                "problem": json.loads(key.question),
                "alpha": key.ratio,
            }
            document = self._trusted_answer(
                key.kind, path, answered_question, problem.components
            )
            if document is not None:
                answers[key] = answer_from_json(key.kind, document)
        return answers.get(key)

    def _trusted_answer(
        self, kind: str, path: Path, question: Mapping[str, object], components: int
    ) -> Any:
        """Read a stored theory result of this kind as JSON; None, with a remark, if its file cannot be trusted: its ``question``
        (problem and sample ratio) is another one, or it has not this number of signal ``components``.
        """
        try:
            answer = read_answer(path, question)["answer"]
            check_answer(kind, answer, components)
            return answer
        except OSError:
            return None
        except ValueError as error:
            self._report_unusable_file(path, error)
            return None

    def _report_unusable_file(self, file: Path, error: ValueError) -> None:
        """Report a file whose theory result cannot be trusted, with the ``error`` that says why."""
        self.on_remark(f"{file}: {error}; this file is not used")

    def _file(self, key: AnswerKey) -> Path | None:
        """Return the path of the file of the theory result with this key; None if there is no folder."""
        return None if self.folder is None else self.folder / answer_name(*key)

    def _is_stored(self, key: AnswerKey) -> bool:
        """Whether the theory result with this key is in memory or has a file."""
        file = self._file(key)
        return key in self.memory.answers or (file is not None and file.exists())


def stored_or_none(
    read: Callable[P, T], *arguments: P.args, **keyword_options: P.kwargs
) -> T | None:
    """Call a method of ``Answers`` (``read``) with these arguments and options; None if the result is not stored or no
    theory is known.
    """
    with contextlib.suppress(NotStored, NoTheoryError):
        return read(*arguments, **keyword_options)
    return None


def key_of_point(problem: Problem, alpha: float) -> AnswerKey:
    """Return the key of the fixed points at a sample ratio alpha."""
    return AnswerKey("point", canonical_json(problem.spec), float(alpha))


def key_of_line(problem: Problem, alphas: Sequence[float]) -> AnswerKey:
    """Return the key of the fixed points along a line of sample ratios ``alphas``."""
    ratios = tuple(float(alpha) for alpha in alphas)
    return AnswerKey("curve", canonical_json(problem.spec), ratios)


def key_of_thresholds(problem: Problem) -> AnswerKey:
    """Return the key of the thresholds of a problem."""
    return AnswerKey("thresholds", canonical_json(problem.spec), None)


def key_of_floor(problem: Problem, alpha: float) -> AnswerKey:
    """Return the key of the smallest error of first-order methods at a sample ratio alpha."""
    return AnswerKey("floor", canonical_json(problem.spec), float(alpha))


def answer_from_json(kind: str, document: Any) -> Answer:
    """Build a theory result of the given kind (point, thresholds, ...) from its JSON document, which has been checked."""
    if kind == "thresholds":
        return Thresholds.read(document)
    if kind == "own":
        is_reason = isinstance(document, str)
        return document if is_reason else AlgorithmPrediction.of_point(document)
    if kind == "floor":
        return document if isinstance(document, str) else Floor.read(document)
    if kind == "curve":
        return [
            [TheoryPoint.read(point) for point in branches] for branches in document
        ]
    return [TheoryPoint.read(point) for point in document]


def document_of(answer: Answer | TheoryPoint) -> Any:
    """Convert a theory result (``answer``) to JSON."""
    if isinstance(answer, list):
        return [document_of(branch_or_point) for branch_or_point in answer]
    return answer if isinstance(answer, str) else answer.document()


def answer_name(
    kind: str, problem_json: str, alpha: Ratio, version: int = THEORY_VERSION
) -> str:
    """Name of the file of a theory result: its kind (point, thresholds, ...) and a digest of its question (the problem as JSON,
    ``problem_json``, and the sample ratio alpha) and of the version of theory.
    """
    return f"{kind}-{key_of([version, kind, problem_json, alpha])}.json"


def nodes_folder_name(problem_json: str, version: int = THEORY_VERSION) -> str:
    """Name of the folder that stores the nodes (information at single overlaps) of a problem, given as canonical JSON, of this
    version of theory.
    """
    return key_of([version, problem_json])


def node_answer(node: Uncertain) -> dict[str, object]:
    """Return a node as JSON: the information at one overlap, its error, and the method."""
    node_value, error = (
        np.asarray(value_or_error, dtype=float).tolist()
        for value_or_error in (node.value, node.error)
    )
    return {"value": node_value, "error": error, "method": node.method}


# -- files: the structure of a stored theory result, checked on reading and writing ------------------------------------

PER_COMPONENT = (
    "mse",
    "mse_error",
    "squared_cosine",
    "squared_cosine_error",
    "cosine",
    "cosine_error",
    "calibration",
)
PerComponent = float | list[float]
"""A number for each component; one number where there is one."""
FreeField = (
    Number
    | bool
    | Text
    | Numbers
    | list[Numbers]
    | dict[str, Number | Text | Numbers | list[Numbers]]
)


class StoredPrediction(OpenModel):
    """Theory's prediction for an algorithm: mean squared error (``mse``), overlap matrix, cosine, calibration (claimed over true
    error) and generalization errors with their numerical errors, one number per component or pair of components; other fields are
    free. ``finite_size`` holds coefficients of corrections in 1/D, ``trajectory`` the prediction for each iteration, ``branch``
    the name of the fixed point, ``method`` how the information was computed.
    """

    __pydantic_extra__: dict[str, FreeField]

    mse: PerComponent
    mse_error: PerComponent
    overlap: Annotated[list[list[float]], Field(min_length=1)]
    method: Text
    branch: Text | None = None
    squared_cosine: list[float] | None = None
    squared_cosine_error: list[float] | None = None
    cosine: list[float] | None = None
    cosine_error: list[float] | None = None
    calibration: Numbers | None = None
    generalization_error: dict[str, Number] | None = None
    generalization_error_error: dict[str, Number] | None = None
    finite_size: dict[str, Numbers | None] | None = None
    trajectory: dict[str, Numbers | list[Numbers]] = Field(default_factory=dict)

    @pydantic.model_validator(mode="after")
    def _require_one_number_per_component(self) -> StoredPrediction:
        """Check that every field has one number for each component, and every column of the trajectory the same length."""
        component_count = len(self.overlap)
        if any(len(row) != component_count for row in self.overlap):
            raise ValueError("the field overlap must be a square matrix")
        fields_per_component = {
            field_name: getattr(self, field_name) for field_name in PER_COMPONENT
        }
        for field_name, coefficients in (self.finite_size or {}).items():
            fields_per_component[f"finite_size.{field_name}"] = coefficients
        for field_name, component_values in fields_per_component.items():
            if (
                component_values is not None
                and np.size(component_values) != component_count
            ):
                raise ValueError(
                    f"the field {field_name} must have one number for each of {component_count} components"
                )
        if len({len(column) for column in self.trajectory.values()}) > 1:
            raise ValueError(
                "all columns in the field trajectory must have the same length"
            )
        return self


class StoredPoint(StoredPrediction):
    """Bayes-optimal fixed point of state evolution at a sample ratio ``alpha`` (with its error), or another fixed point
    (``branch``) that competes with it.
    """

    alpha: float
    alpha_error: PerComponent
    branch: Text


class StoredThreshold(OpenModel):
    """Critical sample ratio (``value``) with its numerical error, the layer (component) and the branch that it belongs to;
    ``informed`` holds the same for a start at the teacher.
    """

    value: float
    error: float
    layer: int = 1
    branch: Text = ""
    informed: dict[str, float] | None = None


class StoredThresholds(ClosedModel):
    """Thresholds of a problem, each a critical sample ratio: weak and perfect recovery, one per component (``sequential``),
    the spinodal, information-theoretic and algorithmic ones and the hard phase between them; null for one that does not
    exist, for one of the ``reasons``.
    """

    weak_recovery: StoredThreshold | None
    perfect_recovery: StoredThreshold | None
    sequential: list[StoredThreshold]
    spinodal: StoredThreshold | None
    information_theoretic: StoredThreshold | None
    algorithmic: StoredThreshold | None
    hard_phase: Annotated[list[float], Field(min_length=2, max_length=2)] | None
    reasons: dict[str, Text]


class StoredFloor(ClosedModel):
    """Smallest errors ``mse`` of first-order methods, per component after each number of passes, with the numerical error of the
    last ones.
    """

    mse: Annotated[list[list[float]], Field(min_length=2)]
    mse_error: list[float]
    is_proven: bool


class StoredNode(ClosedModel):
    """Node of theory: Fisher information of the channel at one overlap (``value``), a matrix or a stack of matrices, with
    its error and the method that computed it.
    """

    value: Annotated[list[Any], pydantic.AfterValidator(require_matrix)]
    error: Any
    method: Text

    @pydantic.model_validator(mode="after")
    def _require_matching_error_shape(self) -> StoredNode:
        """Check that the error has the shape of the value, or fits to it."""
        np.broadcast_to(np.asarray(self.error, dtype=float), np.shape(self.value))
        return self


StoredBranches = Annotated[list[StoredPoint], Field(min_length=1)]
MODELS: dict[str, Any] = {
    "point": StoredBranches,
    "curve": list[StoredBranches],
    "thresholds": StoredThresholds,
    "own": Text | StoredPrediction,
    "floor": Text | StoredFloor,
    "nodes": StoredNode,
}


FIELDS = {"problem", "answer", "digest"}
"""What every file of an answer has."""


def check_answer(kind: str, answer: Any, components: int | None) -> None:
    """Raise ValueError unless a theory result (``answer``), as JSON, has the structure of its kind, such as "point" or
    "thresholds", and this number of signal ``components`` (None: any).
    """
    if kind not in MODELS:
        raise ValueError(
            f"not a theory result of smimbench: its kind {kind!r} must be one of {', '.join(MODELS)}"
        )
    check_model(MODELS[kind], answer, "an answer of theory")
    theory_points: list[JsonObject] = []
    if kind == "point":
        theory_points = answer
    elif kind == "curve":
        theory_points = [point for branches in answer for point in branches]
    elif kind == "own" and isinstance(answer, dict):
        theory_points = [answer]
    component_counts = {len(point["overlap"]) for point in theory_points}
    if kind == "floor" and isinstance(answer, dict):
        component_counts = {len(errors) for errors in answer["mse"]}
        component_counts.add(len(answer["mse_error"]))
    if components is not None and component_counts - {components}:
        raise ValueError(
            f"overlaps and errors of the theory result must have {components} components, as the problem has"
        )


def write_answer(file: Path, question: Mapping[str, object], answer: object) -> None:
    """Write a theory result (``answer``) to a file, with its question (``problem``, ``alpha``), machine, versions and
    digest.
    """
    document = {
        **question,
        "answer": answer,
        "machine": machine.fingerprint(),
        "versions": machine.versions(),
    }
    write_atomically(file, one_line_json(with_digest(document)).encode())


def read_answer(file: Path, question: Mapping[str, object] | None = None) -> JsonObject:
    """Read a stored theory result with its question, check its digest, and return it without that.

    Raises
    ------
    OSError
        If there is none.
    ValueError
        If it was changed, or answers another question than this.
    """
    document = read_json(file)
    if not isinstance(document, dict) or not document.keys() >= FIELDS:
        raise ValueError(
            "not a theory result of smimbench: it must have the fields problem, answer and digest"
        )
    if digest_of(document) != document.pop("digest"):
        raise ValueError(
            "the file was changed after it was written (its digest does not match)"
        )
    if question is not None:
        stored_question = {
            field_name: document.get(field_name) for field_name in question
        }
        if digest_of(stored_question) != digest_of(question):
            raise ValueError(
                "the file was renamed: its name does not match the problem and sample ratio in it"
            )
    return document
