"""Format of stored files: records of cells with key and digest, and ``run.json``, which the cells of a run share."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, Required, TypeVar

import numpy as np
import pydantic
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import to_jsonable_python
from typing_extensions import TypedDict

from smimbench.backend import machine
from smimbench.files import JsonObject, omit, plain_value, printable, read_json
from smimbench.interfaces.checks import short_repr
from smimbench.run.loop import Status
from smimbench.suite.cells import Choice, ItemIdentity, StoredItem, key_of

FORMAT = 1
"""Layout of a record; raised when older readers could not understand it, and then every cell runs again."""

LONGEST = 10_000
"""Characters of one text that a plugin hands in; doubled, records get longer and lose nothing that anybody reads."""

Number = float | None
Numbers = list[Number]
Text = Annotated[str, Field(max_length=2 * LONGEST + 1000)]
T = TypeVar("T")


def _refuse_null(value: object) -> object:
    """Return a value, or raise ValueError if it is null."""
    if value is None:
        raise ValueError("the field must not be null; leave it out instead")
    return value


def require_matrix(value: object) -> object:
    """Return a value if it is a matrix or a stack of matrices; otherwise ValueError."""
    if np.asarray(value, dtype=float).ndim < 2:
        raise ValueError("the field must hold a matrix or a stack of matrices")
    return value


class OpenModel(pydantic.BaseModel):
    """Base class of stored structures that accept additional fields."""

    model_config = pydantic.ConfigDict(
        extra="allow", strict=True, frozen=True, defer_build=True
    )


class ClosedModel(pydantic.BaseModel):
    """Base class of stored structures that accept no additional fields."""

    model_config = pydantic.ConfigDict(
        extra="forbid", strict=True, frozen=True, defer_build=True
    )


Absent = Annotated[T | None, pydantic.BeforeValidator(_refuse_null)]
"""A value that a record may lack, and that is not null where it has it."""

_OPEN = pydantic.with_config(pydantic.ConfigDict(extra="allow", strict=True))
_IGNORING = pydantic.with_config(pydantic.ConfigDict(extra="ignore", strict=True))
_CLOSED = pydantic.with_config(pydantic.ConfigDict(extra="forbid", strict=True))


class _FromMapping:
    """Base class of dataclasses that are built from JSON objects with strictly checked types."""

    __slots__ = ()

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: object, handler: pydantic.GetCoreSchemaHandler
    ) -> Any:
        """Accept a JSON object where the dataclass is expected; ``source`` and ``handler`` are pydantic's."""
        return {**handler(source), "strict": False}


@_OPEN
class Specification(TypedDict):
    """Model, channel and prior of a problem, as records store them."""

    model: ItemIdentity
    channel: ItemIdentity
    prior: ItemIdentity


@_OPEN
class Identity(TypedDict):
    """All settings that can change a cell's result: items of the problem and the algorithm with their parameters, sample ratio
    alpha, dimension, replicate, root seed and backend. The cell is one run, and its key the SHA-256 of this as canonical JSON.
    """

    problem: Specification
    algorithm: ItemIdentity
    alpha: float
    dimension: int
    replicate: int
    seed: int
    backend: str


@_CLOSED
@dataclass(frozen=True, slots=True)
class Price(_FromMapping):
    """Lower bound on the cost of an iteration: floating-point operations (``flops``) and bytes read."""

    flops: float
    bytes: float


@_IGNORING
@dataclass(frozen=True, slots=True)
class Timing(_FromMapping):
    """Times in seconds, memory in bytes; comparable on the same ``machine`` only, and only if ``trusted`` (one run at a time,
    after a warm-up). ``seconds`` are those of the algorithm, with CPU and device time, of the first and of a later iteration;
    ``total_seconds`` those of the whole cell, ``lost_seconds`` were spent before a restart, ``cost`` is the lower bound on an
    iteration, ``ceilings`` are the machine's peak rates.
    """

    machine: str
    trusted: bool = False
    seconds: Absent[float] = None
    lost_seconds: float = 0.0
    cpu_seconds: Absent[float] = None
    total_seconds: float = 0.0
    device_seconds: Number = None
    first_iteration: Number = None
    per_iteration: Number = None
    peak_memory: int | None = None
    cost: Price | None = None
    ceilings: dict[str, float] | None = None
    threads: int | None = None


@_CLOSED
@dataclass(frozen=True, slots=True)
class LongTrajectory(_FromMapping):
    """A trajectory in an ``.npz`` file next to the record (``file``), with the SHA-256 of that file."""

    file: Annotated[str, Field(pattern=r"^[0-9a-z.-]+\.npz$")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class SearchRound(TypedDict):
    """Errors of all trials (settings) of one round of tuning on a number of ``seeds``; None for a trial that was eliminated or
    has no estimate.
    """

    seeds: int
    errors: list[Number]


class SearchOutcome(TypedDict):
    """Errors of all trials (settings) of a tuning in every round, on this backend, with the number of runs, and the index of the
    chosen setting (``chosen``) with the algorithm that it makes.
    """

    backend: str
    trials: list[dict[str, Any]]
    rounds: Annotated[list[SearchRound], Field(min_length=1)]
    runs: int
    chosen: int | None
    algorithm: StoredItem | None


class SearchResult(SearchOutcome):
    """Stored result of ``smimbench tune`` for one algorithm and problem, with all settings that it depends on (its
    ``question``) and its digest.
    """

    question: dict[str, object]
    digest: NotRequired[str]


class Changes(TypedDict, total=False):
    """Options ``--set`` (``overrides``) and ``--only`` with which a suite was run."""

    overrides: list[str]
    only: list[str]


class RunJson(Changes, total=False):
    """Content of ``run.json``, shared by all cells of a run: text of the suite, options, tuned settings (``choices``),
    versions and machine, and the time when it was written. A submission adds its author (``by``), third-party ``packages``,
    ``searches``, and labels of rows that were ``left_out``.
    """

    suite: Required[str]
    title: str
    text: Required[str]
    choices: list[Choice]
    run: dict[str, object]
    versions: dict[str, str]
    machine: dict[str, object]
    fingerprint: str
    git_commit: str | None
    written: float | int
    by: str
    packages: dict[str, str]
    searches: list[SearchResult]
    left_out: list[Annotated[list[str], Field(min_length=2, max_length=2)]]


Column = Annotated[list[Number] | list[Numbers], Field(union_mode="left_to_right")]


@_IGNORING
@dataclass(frozen=True, slots=True, kw_only=True)
class Record(_FromMapping):
    """One finished cell (run) of a suite, as ``results/<suite>/<key>.json`` holds it; null stands for NaN and infinity.
    ``problem`` and ``algorithm`` are labels, ``cell`` all settings, ``document`` the record as JSON; ``blank`` holds the reasons
    of metrics without a value, ``start`` overlaps of the initial estimate, ``final`` what the last step reported, ``where`` the
    place of an error, ``output`` what was printed.
    """

    format: Literal[1] = 1
    key: Annotated[
        str,
        Field(
            pattern=r"^[0-9a-f]{24}$",
            description="The first 24 digits of the SHA-256 of `cell`.",
        ),
    ]
    cell: Identity
    problem: Annotated[str, Field(description="Label of the problem when it was run.")]
    algorithm: Annotated[
        str, Field(description="Label of the algorithm when it was run.")
    ]
    status: Annotated[Status, pydantic.Strict(False)]
    reason: Text
    where: Annotated[Text | None, Field(description="File and line of an error.")] = (
        None
    )
    metrics: Annotated[
        dict[str, Numbers],
        Field(description="Of the final estimate: a number per component, or one."),
    ]
    blank: dict[str, Text] = field(default_factory=dict)
    sample_ratio: Annotated[
        Absent[float], Field(description="Of all samples that the run used.")
    ] = None
    samples: Annotated[Absent[int], Field(description="Of the data set.")] = None
    fresh_samples: Annotated[
        int | None,
        Field(description="That the engine handed out besides, or in its place."),
    ] = None
    iterations: Absent[int] = None
    restarts: int = 0
    start: Annotated[
        dict[str, Annotated[list[Numbers], pydantic.AfterValidator(require_matrix)]],
        Field(description="Overlap matrices of the first estimate: truth, cross, own."),
    ] = field(default_factory=dict)
    restart_reason: Text | None = None
    final: Annotated[
        dict[str, Numbers | Number | Text | bool],
        Field(description="What the last step reported, and findings."),
    ] = field(default_factory=dict)
    warnings: list[Text] = field(default_factory=list)
    traceback: Text | None = None
    output: Annotated[
        Text | None,
        Field(description="The end of what was printed while the cell ran."),
    ] = None
    trajectory: Annotated[
        LongTrajectory | dict[str, Column] | None,
        Field(
            union_mode="left_to_right",
            description="By measured iteration: seconds, metrics per component, residual, samples seen, damping.",
        ),
    ] = None
    timing: Timing
    machine: dict[str, object]
    versions: dict[str, str]
    digest: Annotated[
        str,
        Field(
            pattern=r"^[0-9a-f]{64}$",
            description="SHA-256 of the canonical JSON of all other fields.",
        ),
    ] = ""
    document: Annotated[JsonObject, SkipJsonSchema()] = field(
        default_factory=dict, repr=False, compare=False
    )
    """The record as JSON, which is what is written; empty where a whole folder was read."""

    @property
    def file_stem(self) -> str:
        """Name of the record's file, without its suffix."""
        return file_stem(self.key, self.timing.machine, self.timing.trusted)


def file_stem(key: str, machine: str, trusted: bool) -> str:
    """File name, without suffix, of the record of a cell with this key; trusted timings have a separate file per machine."""
    return f"{key}.timing-{machine}" if trusted else key


def new_record(
    cell: Mapping[str, object],
    problem: str,
    algorithm: str,
    outcome: Mapping[str, object],
) -> Record:
    """Build the record of a cell from its identity (``cell``), its labels (``problem``, ``algorithm``) and its outcome.

    Raises
    ------
    ValueError
        If a plugin added something that a record cannot hold.
    """
    record = {
        "key": key_of(cell),
        "cell": json.loads(json.dumps(cell, default=plain_value)),
        "problem": problem,
        "algorithm": algorithm,
        **json_value(outcome),
    }
    record.setdefault("metrics", {})
    record |= {"machine": machine.machine_info(), "versions": machine.versions()}
    return record_from(record)


def record_schema() -> JsonObject:
    """Return the JSON Schema of the file of a record."""
    schema = _adapter(Record).json_schema()
    schema["required"] += ["format", "digest"]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def record_from(document: JsonObject) -> Record:
    """Build a record from a JSON object (``document``); numbers in its cell are kept exactly as they are.

    Raises
    ------
    ValueError
        If a field has another type than that of a record.
    """
    with _validation_complaints("a record of smimbench"):
        record: Record = _adapter(Record).validate_python(document)
    if record.fresh_samples is not None and record.sample_ratio is None:
        raise ValueError(
            "not a record of smimbench: it has fresh_samples but no sample_ratio"
        )
    object.__setattr__(record, "cell", document["cell"])
    object.__setattr__(record, "document", document)
    return record


def read_record(file: Path, *, check_digests: bool = True) -> Record:
    """Read the record in a file, checking its format, digest and key.

    Without ``check_digests`` only its format and the types of its fields are checked, in half of the time.

    Raises
    ------
    OSError
        If there is none.
    ValueError
        If it cannot be trusted.
    """
    document = read_json(file)
    if (
        not isinstance(document, dict)
        or "digest" not in document
        or "cell" not in document
    ):
        raise ValueError("this is not a record written by smimbench")
    if document.get("format") != FORMAT:
        raise ValueError(
            f"the record has format {short_repr(document.get('format'))}, but this smimbench reads {FORMAT}"
        )
    if check_digests and digest_of(document) != document["digest"]:
        raise ValueError(
            "the file was changed after it was written (its digest does not match)"
        )
    record = record_from(document)
    if check_digests and key_of(document["cell"]) != record.key:
        raise ValueError(
            "the file was changed after it was written (its key does not match the cell it describes)"
        )
    return record


def reason_of(record: Record, nearby_threshold: str | None = None) -> str:
    """Describe how and why a run ended, with the line of code that failed or the nearby threshold ``nearby_threshold``."""
    reason = f"{record.status}: {record.reason}"
    if record.where:
        reason += f" ({record.where})"
    if nearby_threshold and record.status == Status.NOT_CONVERGED:
        reason += f"; {nearby_threshold}"
    return reason


def reason_kind(reason: str) -> str:
    """Return a key that is equal for similar failure reasons: the failing line of code, else the text without numbers."""
    failed_line = re.fullmatch(r"failed: .*( \([^()]*, line \d+\))", reason, re.DOTALL)
    return (
        failed_line[1]
        if failed_line
        else re.sub(r"\d+(\.\d+)?(e[+-]?\d+)?", "#", reason)
    )


def check_model(model: object, value: object, document_kind: str) -> None:
    """Raise ValueError, naming the kind of document and the first wrong field, unless a JSON value matches a pydantic model."""
    with _validation_complaints(document_kind):
        _adapter(model).validate_python(value, strict=True)


@contextlib.contextmanager
def _validation_complaints(kind: str) -> Iterator[None]:
    """Context that turns a failed validation into a ValueError naming the first wrong field; ``kind`` names the document."""
    try:
        yield
    except pydantic.ValidationError as error:
        first_error = error.errors(include_url=False)[0]
        field_path = "".join(
            f"{key_or_index}." for key_or_index in first_error["loc"]
        ).removesuffix(".")
        raise ValueError(
            f"not {kind}: {field_path}{': ' if field_path else ''}{first_error['msg']}, got {short_repr(first_error['input'])}"
        ) from None
    except RecursionError:
        raise ValueError(
            f"not {kind}: its lists or tables are nested too deeply"
        ) from None


_adapter: Any = functools.cache(pydantic.TypeAdapter)
"""Made once for each type."""


def digest_of(document: Mapping[str, object]) -> str:
    """SHA-256 digest of a document, without its own digest, as JSON with sorted keys."""
    document_json = json.dumps(
        omit(document, "digest"),
        sort_keys=True,
        separators=(",", ":"),
        default=plain_value,
    )
    return hashlib.sha256(document_json.encode()).hexdigest()


def with_digest(document: Mapping[str, object]) -> JsonObject:
    """Return a document with its SHA-256 digest added."""
    return {**document, "digest": digest_of(document)}


def indented_json(document: Mapping[str, object]) -> str:
    """Return a document as indented JSON, the exact text of the file of a record, ``run.json`` or search."""
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def json_value(value: object) -> Any:
    """Convert a value to one that JSON can hold: NaN and infinity become null, unknown objects their text."""
    return to_jsonable_python(
        value, inf_nan_mode="null", bytes_mode="base64", fallback=_json_value_of_object
    )


def _json_value_of_object(value: Any) -> object:
    """Convert an array to lists of numbers, and any other object (``value``) to its text."""
    is_array = hasattr(value, "tolist") and not isinstance(value, type)
    nested_lists = value.tolist() if is_array else value
    if nested_lists is value or hasattr(nested_lists, "tolist"):
        return printable(value, LONGEST)
    return nested_lists


def one_line_json(document: object) -> str:
    """Return a document as JSON on one line, the exact text of the file of a theory result."""
    return json.dumps(document, default=plain_value)


def differences(
    stored_document: Any,
    repeated_document: Any,
    tolerance: float,
    *,
    absolute: float | None = None,
) -> Iterator[str]:
    """Yield the differences, in words, between two JSON documents, a stored and a repeated one, up to a relative or
    ``absolute`` tolerance of numbers.
    """
    stored_leaves = dict(_paths_and_leaves(stored_document))
    repeated_leaves = dict(_paths_and_leaves(repeated_document))
    absolute_tolerance = tolerance if absolute is None else absolute
    for leaf_path in {**stored_leaves, **repeated_leaves}:
        stored_leaf = stored_leaves.get(leaf_path)
        repeated_leaf = repeated_leaves.get(leaf_path)
        leaves_agree = stored_leaf == repeated_leaf
        if isinstance(stored_leaf, float) and isinstance(repeated_leaf, float):
            are_nan = math.isnan(stored_leaf) and math.isnan(repeated_leaf)
            is_close = math.isclose(
                stored_leaf,
                repeated_leaf,
                rel_tol=tolerance,
                abs_tol=absolute_tolerance,
            )
            leaves_agree = are_nan or is_close
        if not leaves_agree:
            yield f"{leaf_path or 'it'} is {repeated_leaf!r}, stored is {stored_leaf!r}"


def _paths_and_leaves(document: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and value of every number, text or null in a JSON document."""
    if isinstance(document, dict):
        for key, member in document.items():
            yield from _paths_and_leaves(member, f"{path}.{key}".removeprefix("."))
    elif isinstance(document, list):
        for list_index, list_element in enumerate(document):
            yield from _paths_and_leaves(list_element, f"{path}[{list_index}]")
    else:
        yield path, document
