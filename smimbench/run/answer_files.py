"""Files of theory results, each stored with its question; their structure is checked on reading and writing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pydantic
from pydantic import Field

from smimbench.backend import machine
from smimbench.files import JsonObject, read_json, write_atomically
from smimbench.run.record import (
    Closed,
    Number,
    Numbers,
    Open,
    Text,
    check_model,
    digest_of,
    document_text,
    is_matrix,
    sealed,
)

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


class StoredPrediction(Open):
    """Theory's prediction for an algorithm, with one number per component or pair of components; other fields are free."""

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
        P = len(self.overlap)
        if any(len(row) != P for row in self.overlap):
            raise ValueError("the field overlap must be a square matrix")
        numbers = {name: getattr(self, name) for name in PER_COMPONENT}
        for name, coefficients in (self.finite_size or {}).items():
            numbers[f"finite_size.{name}"] = coefficients
        for name, of_components in numbers.items():
            if of_components is not None and np.size(of_components) != P:
                raise ValueError(
                    f"the field {name} must have one number for each of {P} components"
                )
        if len({len(column) for column in self.trajectory.values()}) > 1:
            raise ValueError(
                "all lists in the field trajectory must have the same length"
            )
        return self


class StoredPoint(StoredPrediction):
    """Bayes-optimal fixed point of state evolution, or one that competes with it."""

    alpha: float
    alpha_error: PerComponent
    branch: Text


class StoredThreshold(Open):
    """Critical sample ratio with its numerical error."""

    value: float
    error: float
    layer: int = 1
    branch: Text = ""
    informed: dict[str, float] | None = None


class StoredThresholds(Closed):
    """Thresholds of a problem (critical sample ratios); null for one that does not exist."""

    weak_recovery: StoredThreshold | None
    perfect_recovery: StoredThreshold | None
    sequential: list[StoredThreshold]
    spinodal: StoredThreshold | None
    information_theoretic: StoredThreshold | None
    algorithmic: StoredThreshold | None
    hard_phase: Annotated[list[float], Field(min_length=2, max_length=2)] | None
    reasons: dict[str, Text]


class StoredNode(Closed):
    """Fisher information of the channel at one overlap, a matrix or a stack of matrices, with its error."""

    value: Annotated[list[Any], pydantic.AfterValidator(is_matrix)]
    error: Any
    method: Text

    @pydantic.model_validator(mode="after")
    def _require_matching_error_shape(self) -> StoredNode:
        np.broadcast_to(np.asarray(self.error, dtype=float), np.shape(self.value))
        return self


StoredBranches = Annotated[list[StoredPoint], Field(min_length=1)]
MODELS: dict[str, Any] = {
    "point": StoredBranches,
    "curve": list[StoredBranches],
    "thresholds": StoredThresholds,
    "own": Text | StoredPrediction,
    "nodes": StoredNode,
}


FIELDS = {"problem", "answer", "digest"}
"""What every file of an answer has."""


def check_answer(kind: str, answer: Any, components: int | None) -> None:
    """Raise ValueError unless a theory result has the structure of its kind, a key of ``MODELS``."""
    if kind not in MODELS:
        raise ValueError("this is not a stored theory result")
    check_model(MODELS[kind], answer, "an answer of theory")
    points: list[JsonObject] = []
    if kind == "point":
        points = answer
    elif kind == "curve":
        points = [point for branches in answer for point in branches]
    elif kind == "own" and isinstance(answer, dict):
        points = [answer]
    sizes = {len(point["overlap"]) for point in points}
    if components is not None and sizes - {components}:
        raise ValueError(
            f"this is not a stored theory result: its overlap must have {components} components"
        )


def write_answer(file: Path, question: Mapping[str, object], answer: object) -> None:
    """Write a theory result with its question, machine and versions."""
    document = {
        **question,
        "answer": answer,
        "machine": machine.fingerprint(),
        "versions": machine.versions(),
    }
    write_atomically(file, document_text(sealed(document)).encode())


def read_answer(file: Path, question: Mapping[str, object] | None = None) -> JsonObject:
    """Read a theory result as it was written, without its digest.

    Raises
    ------
    OSError
        If there is none.
    ValueError
        If it was changed, or answers another question than this.
    """
    document = read_json(file)
    if not isinstance(document, dict) or not document.keys() >= FIELDS:
        raise ValueError("this is not a stored theory result")
    if digest_of(document) != document.pop("digest"):
        raise ValueError(
            "the file was changed after it was written (its digest does not match)"
        )
    if question is not None:
        answered = {name: document.get(name) for name in question}
        if digest_of(answered) != digest_of(question):
            raise ValueError(
                "the file was renamed: its name does not match the theory result inside"
            )
    return document
