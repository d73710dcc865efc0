"""What a record is: its fields and their types, the key of its cell, its digest, and plain values in place of a plugin's."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field

from smimbench.backend import machine
from smimbench.files import JsonObject, plain_value, printable
from smimbench.suite.cells import key_of

FORMAT = 1
"""Layout of a record; raised when older readers could not understand it, and then every cell runs again."""

LONGEST = 10_000
"""Characters of one text that a plugin hands in; doubled, records get longer and lose nothing that anybody reads."""

Number = float | None
Numbers = list[Number]
Text = Annotated[str, Field(max_length=2 * LONGEST + 1000)]


class _Open(pydantic.BaseModel):
    """Fields may be added to a record; those named here keep their meaning and their type."""

    model_config = pydantic.ConfigDict(extra="allow", strict=True, frozen=True)


class Item(_Open):
    """An item of a problem: its name, its version and (as further fields) all its parameters."""

    name: str
    version: int


class Specification(_Open):
    """Model, channel and prior."""

    model: Item
    channel: Item
    prior: Item


class Identity(_Open):
    """All that can change the result of a cell; the key is the SHA-256 of its canonical JSON."""

    problem: Specification
    algorithm: Item
    alpha: float
    dimension: int
    replicate: int
    seed: int
    backend: str


class Timing(_Open):
    """Times in seconds, memory in bytes; comparable on one ``machine`` only, and there if ``trusted``."""

    trusted: bool = False
    machine: str
    seconds: float = 0
    lost_seconds: float = 0
    cpu_seconds: float = 0
    total_seconds: float = 0
    device_seconds: Number = None
    first_iteration: Number = None
    per_iteration: Number = None
    peak_memory: int | None = None
    cost: dict[str, float] | None = None
    ceilings: dict[str, float] | None = None


class LongTrajectory(pydantic.BaseModel):
    """A trajectory in an ``.npz`` next to the record, with the SHA-256 of that file."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True, frozen=True)

    file: Annotated[str, Field(pattern=r"^[0-9a-z.-]+\.npz$")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class SharedDocument(_Open):
    """What all cells of a run share, as ``run.json`` holds it: the text of the suite, options, versions and machine."""

    suite: str
    title: str = ""
    text: str
    overrides: list[str] = []
    only: list[str] = []
    run: JsonObject = {}
    versions: dict[str, str] = {}
    machine: JsonObject = {}
    fingerprint: str = ""
    git_commit: str | None = None
    written: float | int = 0


class Record(_Open):
    """One finished cell of a suite, as ``results/<suite>/<key>.json`` holds it; null stands for a number that is none."""

    format: Literal[1]
    key: Annotated[str, Field(pattern=r"^[0-9a-f]{24}$", description="The first 24 digits of the SHA-256 of `cell`.")]
    cell: Identity
    problem: Annotated[str, Field(description="Label of the problem when it was run.")] = ""
    algorithm: Annotated[str, Field(description="Label of the algorithm when it was run.")] = ""
    status: Literal["ok", "not-converged", "diverged", "timeout", "failed", "skipped"]
    reason: Text = ""
    metrics: Annotated[dict[str, Numbers], Field(description="Of the final estimate: a number per component, or one.")]
    blank: Annotated[dict[str, Text], Field(default_factory=dict)]
    sample_ratio: float = 0
    samples: int = 0
    iterations: int = 0
    restarts: int = 0
    start: Annotated[
        dict[str, list[Numbers]],
        Field(default_factory=dict, description="Overlap matrices of the first estimate: truth, cross, own."),
    ]
    restart_reason: Text | None = None
    final: Annotated[
        dict[str, Numbers | Number | Text | bool],
        Field(default_factory=dict, description="What the last step reported, and findings."),
    ]
    warnings: Annotated[list[Text], Field(default_factory=list)]
    traceback: Text | None = None
    output: Annotated[Text | None, Field(description="The end of what was printed while the cell ran.")] = None
    trajectory: Annotated[
        LongTrajectory | dict[str, Annotated[list[Number] | list[Numbers], Field(union_mode="left_to_right")]] | None,
        Field(
            union_mode="left_to_right",
            description="By measured iteration: seconds, metrics per component, residual, samples seen, damping.",
        ),
    ] = None
    timing: Timing
    machine: Annotated[JsonObject, Field(default_factory=dict)]
    versions: Annotated[dict[str, str], Field(default_factory=dict)]
    digest: Annotated[
        str, Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of the canonical JSON of all other fields.")
    ]


def new_record(cell: JsonObject, problem: str, algorithm: str, found: JsonObject) -> JsonObject:
    """What was found of a cell, given by its identity and labels, with what all records begin and end with."""
    record = {"key": key_of(cell), "cell": cell, "problem": problem, "algorithm": algorithm, **found}
    record.setdefault("metrics", {})
    return record | {"machine": machine.machine_info(), "versions": machine.versions()}


def record_schema() -> JsonObject:
    """JSON Schema of a record."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Record.model_json_schema()}


def check_record(record: Any, digests: bool = True) -> None:
    """Raise ValueError unless this is a record, of this format, as it was written, under the key of its own cell.

    Without ``digests`` only its format and the types of its fields are checked, in half of the time.
    """
    if not isinstance(record, dict) or "digest" not in record or "cell" not in record:
        raise ValueError("not a record of smimbench")
    if record.get("format") != FORMAT:
        raise ValueError(f"written in format {_short(record.get('format'))}, this smimbench reads {FORMAT}")
    if digests and digest_of(record) != record["digest"]:
        raise ValueError("changed after it was written (digest does not match)")
    check_types(record)
    if digests and key_of(record["cell"]) != record["key"]:
        raise ValueError("changed after it was written (its key is not that of the cell that it describes)")


def check_types(record: JsonObject) -> None:
    """Raise ValueError unless all fields have the types of a record; ``format`` and ``digest`` may still be missing."""
    check_model(Record, {"format": FORMAT, "digest": "0" * 64, **record}, "a record of smimbench")


def check_model(model: type[pydantic.BaseModel] | pydantic.TypeAdapter[Any], value: Any, what: str) -> None:
    """Raise ValueError, with the first wrong field, unless a value has the structure of a model."""
    try:
        if isinstance(model, pydantic.TypeAdapter):
            model.validate_python(value, strict=True)
        else:
            model.model_validate(value)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = "".join(f"{part}: " for part in (".".join(map(str, first["loc"])),) if part)
        raise ValueError(f"not {what}: {where}{first['msg']}, got {_short(first['input'])}") from None
    except RecursionError:
        raise ValueError(f"not {what}: nested too deep") from None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:56]}..."


def digest_of(document: JsonObject) -> str:
    """SHA-256 of a document without its digest, as JSON with sorted keys; numbers that are none are allowed."""
    body = {key: value for key, value in document.items() if key != "digest"}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), default=plain_value)
    return hashlib.sha256(text.encode()).hexdigest()


def sealed(document: JsonObject) -> JsonObject:
    """A document with its digest."""
    return {**document, "digest": digest_of(document)}


def text_of(record: JsonObject) -> str:
    """A record as its file holds it, to the last byte."""
    return json.dumps(record, indent=1, allow_nan=False) + "\n"


def plain(value: Any, depth: int = 0) -> Any:
    """A copy that JSON can hold, whatever a plugin has put in: numbers that are none become null, odd objects their text."""
    if depth > 20:
        raise ValueError("nested more than 20 deep")
    match value:
        case None | bool():
            return value
        case int() if abs(value) < 1 << 63:
            return int(value)
        case int():
            return printable(hex(value), LONGEST)
        case float():
            return float(value) if math.isfinite(value) else None
        case str():
            return str.__str__(value)
        case dict():
            return {k if isinstance(k, str) else printable(k): plain(v, depth + 1) for k, v in value.items()}
        case list() | tuple():
            return [plain(v, depth + 1) for v in value]
    if hasattr(value, "tolist") and not isinstance(value, type):
        found = value.tolist()
        return printable(value, LONGEST) if hasattr(found, "tolist") else plain(found, depth + 1)
    return printable(value, LONGEST)
