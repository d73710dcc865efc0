"""A row of the error table, as a typed value; JSON holds it flat, see ``Row.document`` and ``row_of``."""

from __future__ import annotations

import dataclasses
import functools
import json
import operator
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self

import pydantic
from pydantic import Field

from smimbench.files import JsonObject
from smimbench.interfaces.checks import shown
from smimbench.problem.problem import without

Number = float | None
Text = Annotated[str, Field(max_length=100_000)]
Component = Annotated[int, Field(ge=1)] | None
"""Number of a component, from 1; None for a metric of all components together."""
Count = Annotated[int, Field(ge=0)]
Epsilon = Literal["0.05", "0.2", "0.5"]
"""How near to the optimal error, relative."""


@dataclass(frozen=True, slots=True)
class Place:
    """Labels of problem and algorithm, and the grid point, of a run or row.

    Attributes
    ----------
    alpha, nominal_alpha : float
        Sample ratio really used, and the one asked for.
    settings : str
        Where the parameters of the algorithm are from.
    """

    problem: Text
    algorithm: Text
    backend: Text
    alpha: float
    nominal_alpha: float
    dimension: Annotated[int, Field(ge=1)]
    settings: Text = ""


@dataclass(frozen=True, slots=True)
class MeanOfRuns:
    """Mean over the runs that gave an estimate, with its standard error.

    Attributes
    ----------
    values : dict
        Value of each run, by instance.
    failed : int
        Runs without an estimate among ``values``, see ``smimbench.report.verdict.with_failures``.
    """

    values: dict[str, float]
    n: Count
    mean: Number
    sem: Number
    failed: Count = 0


@dataclass(frozen=True, slots=True)
class PredictedNumber:
    """A quantity that theory predicts for an algorithm and no row is about: another metric, or one during the run.

    Attributes
    ----------
    at : float or None
        Share of the steps after which it is taken; None: at the end.
    values : dict
        Value of each run, by instance.
    coefficient : float or None
        Coefficient of 1/D.
    """

    metric: Text
    component: Component
    at: Number
    values: dict[str, float]
    coefficient: Number
    prediction: Number
    error: Number


@dataclass(frozen=True, slots=True)
class PredictedValue:
    """What theory predicts for the algorithm.

    Attributes
    ----------
    coefficient : float or None
        Coefficient of the 1/D term.
    z : float or None
        Distance of the mean from it in units of the combined error.
    reason : str or None
        Why there is none.
    method, branch : str or None
        How theory was solved, and which solution it is.
    also_predicted : list of PredictedNumber or None
        Further predicted quantities, in the first row of a place.
    teachers : dict or None
        Relative excess of the squared length of the teacher of each instance, per component, in the first row of a place.
    """

    value: Number
    error: Number
    coefficient: Number
    reason: Text | None
    branch: Text | None
    method: Text | None
    z: Number = None
    also_predicted: list[PredictedNumber] | None = None
    teachers: dict[str, list[float]] | None = None


@dataclass(frozen=True, slots=True)
class OptimalValue:
    """The Bayes-optimal value: its limit at infinite dimension, and at the dimension of the runs.

    Attributes
    ----------
    limit, limit_error : float or None
        From state evolution.
    value, error : float or None
        At this dimension where that is known, otherwise the limit.
    source : str
        Where ``value`` is from.
    ratio : float or None
        The mean error over ``value``.
    """

    limit: Number
    limit_error: Number
    value: Number
    error: Number
    source: Text
    ratio: Number = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The mean against theory: the prediction for the algorithm where there is one, otherwise the Bayes-optimal value."""

    value: Number
    error: Number
    difference: Number
    z: Number


@dataclass(frozen=True, slots=True)
class Nearness:
    """Median time and iterations until a run is near the optimal error, and the share of runs that come so near."""

    seconds: Number
    iterations: Number
    fraction: Number


@dataclass(frozen=True, slots=True)
class RunCost:
    """Cost of a run: means over runs, and the largest memory.

    Attributes
    ----------
    ceiling, ceiling_fraction : str or None, float or None
        What limits an iteration, ``products`` or ``reads``, and the share of the machine's peak that is reached.
    trusted : bool
        Whether cells ran one after the other, warmed up.
    near : dict
        Time until a run is within this share of the optimal error.
    """

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
    machines: list[Text]
    near: Annotated[dict[Epsilon, Nearness], Field(min_length=3)]


@dataclass(frozen=True, slots=True)
class StillMoving:
    """Runs whose error still changed at the last step, the median change, and the lowest error over the last one."""

    runs: int
    change: float
    lowest: float


@dataclass(frozen=True, slots=True)
class HalfOverlap:
    """When a component reaches half of its optimal overlap ``target``: share of runs and medians over them."""

    target: Number = None
    fraction: Number = None
    iterations: Number = None
    samples: Number = None
    epochs: Number = None
    seconds: Number = None


@dataclass(frozen=True, slots=True)
class LearnedSequence:
    """One order in which components were learned, and the number of runs with it."""

    layers: list[int]
    runs: int


@dataclass(frozen=True, slots=True)
class LearningFactor:
    """Learning time of the last component over that of the first, in samples or iterations."""

    mean: Number
    sem: Number
    runs: int
    axis: Text


@dataclass(frozen=True, slots=True)
class LearningOrder:
    """The order in which runs learn components, most frequent first, and the share of runs that learn all."""

    sequences: list[LearnedSequence]
    success: Number
    factor: LearningFactor | None


@dataclass(frozen=True, slots=True)
class Finding:
    """A further number that ``found`` of the runs report, with its theory."""

    mean: Number
    sem: Number
    found: int
    runs: int
    theory: Number


@dataclass(frozen=True, slots=True)
class Runs:
    """How the runs of a row ended, and the numbers that they report besides errors.

    Attributes
    ----------
    reasons, warnings, blank : list of str
        Why runs did not end well, what they warned of, and why the metric is blank.
    restarts : int
        Runs that were restarted once, more cautiously.
    """

    status_counts: dict[str, int]
    reasons: list[Text]
    warnings: list[Text]
    blank: list[Text]
    restarts: Count
    still_moving: StillMoving | None
    learning_order: LearningOrder | None
    half_overlap: HalfOverlap | None
    findings: dict[str, list[Finding]]

    @property
    def moving(self) -> int:
        """Runs whose error still changed at the last step."""
        return self.still_moving.runs if self.still_moving else 0


@dataclass(frozen=True, slots=True)
class Setup:
    """Problem and algorithm with all parameters, without versions."""

    problem: JsonObject
    algorithm: JsonObject

    def without(self, key: str) -> Setup:
        """The same without a key, also of the items inside."""
        return Setup(without(key, self.problem), without(key, self.algorithm))


@dataclass(frozen=True, slots=True)
class Row:
    """The runs of an algorithm at one place, for one metric and component, with theory.

    Attributes
    ----------
    target : float
        Error that counts as reached where the optimum is 0.
    component_word, dimension_letter : str
        What a component is called, and the letter for the dimension.
    """

    place: Place
    metric: Text
    component: Component
    target: float
    estimate: MeanOfRuns
    prediction: PredictedValue
    optimum: OptimalValue
    theory: Comparison
    cost: RunCost
    runs: Runs
    identity: Setup
    component_word: Text
    dimension_letter: Text

    def document(self) -> JsonObject:
        """The row as JSON has it: flat."""
        read = operator.attrgetter(*PATHS.values())
        flat = dict(zip(PATHS, map(_copied, read(self))))
        for key in _OPTIONAL:
            if flat[key] is None:
                del flat[key]
        return flat

    def labeled(self, problem: str, algorithm: str) -> Self:
        """The row with other labels of its problem and algorithm."""
        return replace(
            self, place=replace(self.place, problem=problem, algorithm=algorithm)
        )


@dataclass(frozen=True, slots=True)
class OfRow:
    """Base class of table entries that show a row's labels, theory and estimate."""

    row: Row

    @property
    def place(self) -> Place:
        """The same attribute of the row."""
        return self.row.place

    @property
    def metric(self) -> str:
        """The same attribute of the row."""
        return self.row.metric

    @property
    def component(self) -> int | None:
        """The same attribute of the row."""
        return self.row.component

    @property
    def estimate(self) -> MeanOfRuns:
        """The same attribute of the row."""
        return self.row.estimate

    @property
    def prediction(self) -> PredictedValue:
        """The same attribute of the row."""
        return self.row.prediction

    @property
    def optimum(self) -> OptimalValue:
        """The same attribute of the row."""
        return self.row.optimum

    @property
    def theory(self) -> Comparison:
        """The same attribute of the row."""
        return self.row.theory

    @property
    def runs(self) -> Runs:
        """The same attribute of the row."""
        return self.row.runs

    @property
    def component_word(self) -> str:
        """The same attribute of the row."""
        return self.row.component_word

    @property
    def dimension_letter(self) -> str:
        """The same attribute of the row."""
        return self.row.dimension_letter


_FLAT = """
    place.problem place.algorithm place.backend place.alpha place.nominal_alpha place.dimension place.settings
    estimate.values metric component
    prediction.value=own_theory prediction.error=own_theory_error prediction.coefficient=own_coefficient
    prediction.reason=no_theory
    optimum.limit=bayes optimum.limit_error=bayes_error optimum.value=optimum optimum.error=optimum_error
    optimum.source=optimum_source
    runs.blank prediction.branch prediction.method=theory_method
    cost.seconds cost.cpu_seconds cost.iterations cost.first_iteration cost.per_iteration cost.peak_memory
    cost.ceiling_fraction cost.ceiling cost.device_seconds cost.trusted cost.machines cost.near=time_to_theory
    target runs.still_moving runs.learning_order runs.findings runs.restarts runs.status_counts runs.reasons runs.warnings
    identity component_word dimension_letter runs.half_overlap estimate.n estimate.mean estimate.sem
    theory.value=theory theory.error=theory_error theory.difference theory.z prediction.z=own_z
    optimum.ratio=ratio_to_bayes prediction.also_predicted prediction.teachers
"""
"""Where in a row the keys of its JSON are, in their order; a key of another name than its field stands after ``=``."""

_OPTIONAL = ("also_predicted", "teachers")


def _paths() -> dict[str, str]:
    """Path in a row by key of JSON."""
    paths = {}
    for text in _FLAT.split():
        path, _, key = text.partition("=")
        paths[key or path.rpartition(".")[2]] = path
    return paths


PATHS = _paths()


def _copied(value: Any) -> Any:
    """A copy in dicts and lists; ``dataclasses.asdict`` copies every number, which takes three times as long."""
    if dataclasses.is_dataclass(value):
        names = (field.name for field in dataclasses.fields(value))
        return {name: _copied(getattr(value, name)) for name in names}
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    return [*map(_copied, value)] if isinstance(value, list) else value


def row_of(document: JsonObject) -> Row:
    """The row that a flat JSON object describes.

    Raises
    ------
    ValueError
        If a field is missing or of another type.
    """
    nested: dict[str, Any] = {}
    for key, path in PATHS.items():
        group, _, field = path.rpartition(".")
        if key in document:
            fields = nested.setdefault(group, {}) if group else nested
            fields[field] = document[key]
    try:
        text = json.dumps(nested, allow_nan=False)
    except ValueError:
        raise ValueError(
            "not a row of smimbench: a number is infinite or NaN; null stands for such numbers"
        ) from None
    try:
        return _row_type().validate_json(text, strict=True)
    except pydantic.ValidationError as error:
        example = error.errors(include_url=False)[0]
        path = ".".join(map(str, example["loc"]))
        raise ValueError(
            f"not a row of smimbench: {path}: {example['msg']}, got {shown(example['input'])}"
        ) from None


@functools.cache
def _row_type() -> pydantic.TypeAdapter[Row]:
    return pydantic.TypeAdapter(Row)
