"""A finished table as a JSON document, also stored next to ``run.json``, which can be shown without the plugins that made it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import pydantic
from pydantic import Field

from smimbench.report.statistics import EPSILONS
from smimbench.run.record import Number, check_model

if TYPE_CHECKING:
    from smimbench.files import JsonObject

Text = Annotated[str, Field(max_length=100_000)]
Texts = list[Text]


class Open(pydantic.BaseModel):
    """A table of a file; keys that are not named here are kept."""

    model_config = pydantic.ConfigDict(extra="allow", strict=True, frozen=True, defer_build=True)


class _Time(Open):
    seconds: Number
    iterations: Number
    fraction: Number


class _Half(Open):
    target: Number
    fraction: Number
    iterations: Number
    seconds: Number
    samples: Number
    epochs: Number


class _Sequence(Open):
    layers: list[int]
    runs: int


class _Factor(Open):
    axis: Text
    mean: Number
    sem: Number
    runs: int


class _Order(Open):
    success: Number
    sequences: list[_Sequence]
    factor: _Factor | None


class _Moving(Open):
    runs: int
    change: float
    lowest: float


class _Finding(Open):
    mean: Number
    sem: Number
    runs: int
    found: int
    theory: Number


class _Predicted(Open):
    metric: Text
    component: Annotated[int, Field(ge=1)] | None
    at: Number
    coefficient: Number
    values: dict[str, float]
    prediction: Number
    error: Number


class _Item(Open):
    name: Text


class _Problem(Open):
    model: _Item
    channel: _Item
    prior: _Item


class Identity(Open):
    """Identity of a row: problem and algorithm with their parameters."""

    problem: _Problem
    algorithm: _Item


class Row(Open):
    """A row of the error table; see ``smimbench.report.rows.error_rows``."""

    problem: Text
    algorithm: Text
    backend: Text
    alpha: float
    nominal_alpha: float
    dimension: Annotated[int, Field(ge=1)]
    dimension_letter: Text
    metric: Text
    component: Annotated[int, Field(ge=1)] | None
    component_word: Text
    n: Annotated[int, Field(ge=0)]
    target: float
    values: dict[str, float]
    mean: Number
    sem: Number
    theory: Number
    theory_error: Number
    difference: Number
    z: Number
    own_theory: Number
    own_theory_error: Number
    own_z: Number
    own_coefficient: Number
    no_theory: Text | None
    bayes: Number
    bayes_error: Number
    optimum: Number = None
    optimum_error: Number = None
    optimum_source: Text = ""
    also_predicted: list[_Predicted] = Field(default_factory=list)
    teachers: dict[str, list[float]] = Field(default_factory=dict)
    ratio_to_bayes: Number
    blank: Texts
    branch: Text | None
    theory_method: Text | None
    seconds: Number
    cpu_seconds: Number
    iterations: Number
    first_iteration: Number
    per_iteration: Number
    peak_memory: int | None
    ceiling_fraction: Number
    ceiling: Text | None
    device_seconds: Number
    trusted: bool
    machines: Texts
    time_to_theory: dict[str, _Time]
    half_overlap: _Half | None
    learning_order: _Order | None
    still_moving: _Moving | None = None
    findings: dict[str, list[_Finding]]
    restarts: int
    status_counts: dict[str, int]
    reasons: Texts
    warnings: Texts
    identity: Identity

    @pydantic.field_validator("time_to_theory")
    @classmethod
    def _all_times(cls, found: dict[str, _Time]) -> dict[str, _Time]:
        if not {f"{epsilon:g}" for epsilon in EPSILONS} <= found.keys():
            raise ValueError(f"must have the times to {', '.join(f'{epsilon:g}' for epsilon in EPSILONS)}")
        return found


class OtherVersion(Open):
    """How many cells another version of an item made, which no table counts."""

    item: Text
    then: int
    now: int
    cells: int


class Document(Open):
    """Stored part of what ``show --json`` prints; what follows from the rows is recomputed."""

    suite: Text
    title: Text
    description: Text
    status_counts: dict[str, int]
    missing: int
    other_versions: list[OtherVersion]
    rows: list[Row]


def checked_document(document: JsonObject) -> JsonObject:
    """A document of the right structure, with what follows from its rows found again: an older smimbench may have said less.

    Raises
    ------
    ValueError
        If it has another structure.
    """
    from smimbench.report.extrapolation import extrapolated_rows
    from smimbench.report.verdict import summary, verdicts

    check_model(Document, document, "a table of smimbench")
    rows = document["rows"]
    target = max((row["target"] for row in rows), default=0.0)
    follows = {"verdicts": verdicts(rows), "summary": summary(rows), "extrapolated": extrapolated_rows(rows, target)}
    return {**document, **follows}
