"""The structure of stored answers of theory, and their files: one JSON document each, with its question and a digest."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import pydantic
from pydantic import Field

from smimbench.backend import machine
from smimbench.files import plain_value, read_json, write_atomically
from smimbench.run.record import Number, Numbers, Text, check_model, digest_of, sealed

if TYPE_CHECKING:
    from pathlib import Path

    from smimbench.files import JsonObject

Value = float | list[float]
PER_COMPONENT = ("mse", "mse_error", "squared_cosine", "squared_cosine_error", "cosine", "cosine_error", "calibration")
Nested = Number | bool | Text | Numbers | list[Numbers] | dict[str, Number | Text | Numbers | list[Numbers]]


class OwnPoint(pydantic.BaseModel):
    """A fixed point of theory; of every component, or pair of components, a number. Other fields hold numbers and text."""

    model_config = pydantic.ConfigDict(extra="allow", strict=True, frozen=True, defer_build=True)
    __pydantic_extra__: dict[str, Nested]

    mse: Value
    mse_error: Value
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
    trajectory: dict[str, Numbers | list[Numbers]] = {}

    @pydantic.model_validator(mode="after")
    def _of_one_size(self) -> OwnPoint:
        components = len(self.overlap)
        if any(len(row) != components for row in self.overlap):
            raise ValueError("overlap must be a square matrix")
        sizes = {name: getattr(self, name) for name in PER_COMPONENT}
        sizes |= {f"finite_size.{name}": values for name, values in (self.finite_size or {}).items()}
        for name, found in sizes.items():
            if found is not None and np.size(found) != components:
                raise ValueError(f"{name} must have a number for each of {components} components")
        if len({len(values) for values in self.trajectory.values()}) > 1:
            raise ValueError("trajectory has lists of different lengths")
        return self


class Point(OwnPoint):
    """A Bayes-optimal fixed point, or a competing one."""

    alpha: float
    branch: Text


class Location(pydantic.BaseModel):
    """A sample ratio at which something begins or ends."""

    model_config = pydantic.ConfigDict(extra="allow", strict=True, frozen=True, defer_build=True)

    value: float
    error: float
    layer: int = 1
    branch: Text = ""
    informed: dict[str, float] | None = None


class Thresholds(pydantic.BaseModel):
    """Thresholds of a problem; null for one that does not exist."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)

    weak_recovery: Location | None
    perfect_recovery: Location | None
    sequential: list[Location]
    spinodal: Location | None
    information_theoretic: Location | None
    algorithmic: Location | None
    hard_phase: Annotated[list[float], Field(min_length=2, max_length=2)] | None
    reasons: dict[str, Text]


def _is_matrix(value: Any) -> Any:
    if np.asarray(value, dtype=float).ndim < 2:
        raise ValueError("must be a matrix")
    return value


class Node(pydantic.BaseModel):
    """Information at one overlap: a matrix (or a stack of them) and its error."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)

    value: Annotated[list[Any], pydantic.AfterValidator(_is_matrix)]
    error: Any
    method: Text

    @pydantic.model_validator(mode="after")
    def _of_one_shape(self) -> Node:
        np.broadcast_to(np.asarray(self.error, dtype=float), np.shape(self.value))
        return self


Branches = Annotated[list[Point], Field(min_length=1)]
MODELS: dict[str, Any] = {
    "point": Branches,
    "curve": list[Branches],
    "thresholds": Thresholds,
    "own": Text | OwnPoint,
    "nodes": Node,
}
_adapter = functools.cache(lambda kind: pydantic.TypeAdapter(MODELS[kind]))


def check_answer(kind: str, answer: Any, components: int | None) -> None:
    """Raise ValueError unless an answer (its kind is a key of ``MODELS``) has the right structure."""
    if kind not in MODELS:
        raise ValueError("not an answer of theory")
    check_model(_adapter(kind), answer, "an answer of theory")
    points: list[Any] = {"point": answer, "own": [answer] if isinstance(answer, dict) else []}.get(kind, [])
    points = [point for branches in answer for point in branches] if kind == "curve" else points
    if components is not None and any(len(point["overlap"]) != components for point in points):
        raise ValueError(f"not an answer of theory: overlap must be of {components} components")


def write_answer(file: Path, question: JsonObject, answer: Any) -> None:
    """Write an answer with its question, and with the machine and the versions that it was found with."""
    found = {**question, "answer": answer, "machine": machine.fingerprint(), "versions": machine.versions()}
    write_atomically(file, document_text(sealed(found)).encode())


def read_answer(file: Path, question: JsonObject | None = None) -> JsonObject:
    """The document of an answer as it was written, its digest left out.

    Raises
    ------
    OSError
        If there is none.
    ValueError
        If it was changed, or answers another question than this.
    """
    found = read_json(file)
    if not isinstance(found, dict) or not {"problem", "answer", "digest"} <= found.keys():
        raise ValueError("not an answer of theory")
    if digest_of(found) != found.pop("digest"):
        raise ValueError("changed after it was written (digest does not match)")
    if question is not None and digest_of({k: found.get(k) for k in question}) != digest_of(question):
        raise ValueError("renamed: it answers another question than its name says")
    return found


def document_text(document: Any) -> str:
    """A document as its file holds it, to the last byte."""
    return json.dumps(document, default=plain_value)
