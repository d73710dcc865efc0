"""Rows of the error table as typed values, optima at the dimension of the runs, and grouping of rows by place."""

from __future__ import annotations

import functools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self, TypeVar

import numpy as np
import pydantic
from pydantic import Field

from smimbench.interfaces import Host
from smimbench.interfaces.checks import short_repr
from smimbench.problem.problem import Specification, without
from smimbench.report.row_document import RowDocument, flat_document, nested_document
from smimbench.run.external import EXTERNAL
from smimbench.theory.types import TheoryPoint

if TYPE_CHECKING:
    from smimbench.interfaces import Model
    from smimbench.problem.problem import Problem


Number = float | None
"""A number, or None where it is unknown or does not apply."""
Text = Annotated[str, Field(max_length=100_000)]
Component = Annotated[int, Field(ge=1)] | None
"""Number of a component, from 1; None for a metric of all components together."""
Count = Annotated[int, Field(ge=0)]
ZERO = 1e-3
"""Fraction of the target below which a Bayes-optimal error counts as 0, so that no ratio to it is formed."""

LIMIT = "limit"
"""Source of an optimum of which only the infinite-D limit is known."""

CLOSED_FORM = "closed form"
"""Source of an optimum that is known in closed form, as the mean error of exact posterior means."""

FITTED = "runs of "
"""Beginning of the source of an optimum that was fitted to the runs of the algorithm that follows."""

Epsilon = Literal["0.05", "0.2", "0.5"]
"""Relative distance from the optimal error within which a run counts as near it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Labels of problem and algorithm and the grid point (backend, sample ratio, dimension) of a run or row.

    Attributes
    ----------
    alpha, nominal_alpha : float
        Sample ratio actually used, and the one in the suite's grid.
    settings : str
        Origin of the algorithm's parameters.
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
    """Mean of a metric over the ``n`` runs that gave an estimate, with its standard error ``sem``; ``values`` are those of
    single runs, by instance.

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
    """A predicted quantity without its own row, for one component: a metric that the suite does not list, or an error during
    the run (``at``: after which fraction of the steps). It has the runs' ``values`` by instance, theory's ``prediction`` at
    infinite D with its numerical error, and the coefficient of its 1/D correction.

    Attributes
    ----------
    at : float or None
        Fraction of the steps after which the quantity is measured; None: at the end.
    values : dict
        Value of each run, by instance.
    coefficient : float or None
        Coefficient of the 1/D correction.
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
    """Theoretical prediction for the algorithm that was run: its value at infinite D with the numerical error and the
    coefficient of the 1/D correction, or the ``reason`` why there is none; ``z`` is the difference of the mean over runs in
    standard errors.

    Attributes
    ----------
    coefficient : float or None
        Coefficient of the 1/D correction.
    z : float or None
        Difference between mean and prediction in units of their combined error.
    reason : str or None
        Why there is no prediction.
    method, branch : str or None
        How theory was solved, and which solution it is.
    also_predicted : list of PredictedNumber or None
        Predicted quantities without their own row; only in the first row of a place.
    teachers : dict or None
        Relative excess of the squared norm of each instance's teacher over its mean, per component; only in the first row of
        a place.
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
    """Bayes-optimal value of a metric: ``limit`` at infinite dimension, ``value`` at the dimension of the runs (the limit if
    unknown), with numerical errors; ``source`` says where ``value`` is from, ``ratio`` is that of the mean over runs to it.

    Attributes
    ----------
    limit, limit_error : float or None
        Infinite-dimensional value from state evolution, and its error.
    value, error : float or None
        Value at the dimension of the runs where it is known, otherwise the limit.
    source : str
        Origin of ``value``: limit, closed form, sampled, or runs of an algorithm.
    ratio : float or None
        Ratio of the mean error to ``value``; None for the algorithm of which ``value`` is the mean.
    """

    limit: Number
    limit_error: Number
    value: Number
    error: Number
    source: Text
    ratio: Number = None

    @property
    def is_known_at_size(self) -> bool:
        """Whether ``value`` is the Bayes-optimal value at the dimension of the runs and was not obtained by a fit to runs."""
        return self.source != LIMIT and not self.source.startswith(FITTED)


@dataclass(frozen=True, slots=True)
class PassesWorth:
    """Runs on the scale of the best first-order method: the mean number of ``passes`` over the data that they made, the smallest
    error that is possible after as many (``floor``), and the number of passes after which the smallest is their own (``worth``).

    Attributes
    ----------
    passes : float or None
    floor, floor_error : float or None
        Smallest error of a first-order method after as many passes at infinite dimension, and its numerical error; no error where
        another fixed point is better, which runs of finite size may reach.
    is_proven : bool or None
        Whether the floor is a theorem, or a conjecture.
    ratio : float or None
        Ratio of the mean error to the floor at the dimension of the runs; None where that is 0.
    worth : float or None
        Passes after which the floor at this dimension is at their error; None if it does not fall below it.
    interval : list or None
        95% interval of ``worth``; an end that is None is beyond the end of the floor.
    remark, reason : str or None
        What ``worth`` means in words where it is below 1 or beyond the end of the floor; why runs are not compared with it.
    """

    passes: Number = None
    floor: Number = None
    floor_error: Number = None
    is_proven: bool | None = None
    ratio: Number = None
    worth: Number = None
    interval: list[Number] | None = None
    remark: Text | None = None
    reason: Text | None = None

    @property
    def is_compared(self) -> bool:
        """Whether runs are compared with the best first-order method."""
        return self.passes is not None and self.reason is None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of the mean over runs with a theoretical ``value`` (the algorithm's prediction, or the Bayes-optimal value if
    there is none), whose numerical error is ``error``: the ``difference``, and ``z``, the difference in units of the combined
    error.
    """

    value: Number
    error: Number
    difference: Number
    z: Number


@dataclass(frozen=True, slots=True)
class Nearness:
    """Median time and iterations until a run is near the optimal error, and the fraction of runs that reach it."""

    seconds: Number
    iterations: Number
    fraction: Number


@dataclass(frozen=True, slots=True)
class RunCost:
    """Cost of the runs of a row: mean times in seconds (whole run, first iteration, one iteration) and iterations, largest memory
    use, the share of the machine's peak speed that is reached (``ceiling`` names the peak), and ``near``: median times until the
    error is near the optimum.

    Attributes
    ----------
    ceiling, ceiling_fraction : str or None, float or None
        What bounds the speed of an iteration (``products`` or ``reads``), and the fraction of the machine's peak reached.
    trusted : bool
        Whether the times come from serial, warmed-up runs.
    near : dict
        Time until a run is within this relative distance of the optimal error.
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
    """Number of ``runs`` whose error still changed at the last step, with the median of their relative ``change`` and of
    ``lowest``: the ratio of the lowest error of a run to its final one.
    """

    runs: int
    change: float
    lowest: float


@dataclass(frozen=True, slots=True)
class HalfOverlap:
    """Median times (iterations, samples, epochs, seconds) at which runs reach half of a component's optimal overlap, which is
    ``target``, and the fraction of runs that do.
    """

    target: Number = None
    fraction: Number = None
    iterations: Number = None
    samples: Number = None
    epochs: Number = None
    seconds: Number = None


@dataclass(frozen=True, slots=True)
class LearnedSequence:
    """An order in which components were learned, and the number of runs that followed it."""

    layers: list[int]
    runs: int


@dataclass(frozen=True, slots=True)
class LearningFactor:
    """Ratio of the learning times of the last and the first component: geometric mean over ``runs`` runs, with its standard
    error; ``axis`` says whether times are samples or iterations.
    """

    mean: Number
    sem: Number
    runs: int
    axis: Text


@dataclass(frozen=True, slots=True)
class LearningOrder:
    """Orders in which runs learn the components, most frequent first, and the fraction of runs that learn all of them."""

    sequences: list[LearnedSequence]
    success: Number
    factor: LearningFactor | None


@dataclass(frozen=True, slots=True)
class Finding:
    """Mean of a diagnostic (a number that an algorithm reports at the end of a run) over the ``found`` of ``runs`` runs that
    report it, with its standard error ``sem`` and the value that ``theory`` predicts.
    """

    mean: Number
    sem: Number
    found: int
    runs: int
    theory: Number


@dataclass(frozen=True, slots=True)
class Runs:
    """Outcome of the runs of a row: numbers of runs by status, reasons of failures, warnings, learning order and the diagnostics
    that algorithms report.

    Attributes
    ----------
    reasons, warnings, blank : list of str
        Why runs failed, what they warned of, and why the metric is blank.
    restarts : int
        Number of runs that were restarted once with more cautious settings.
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
        """Number of runs whose error still changed at the last step."""
        return self.still_moving.runs if self.still_moving else 0


@dataclass(frozen=True, slots=True)
class Setup:
    """Problem and algorithm of a row with all parameters, without versions."""

    problem: dict[str, Any]
    algorithm: Specification

    def without(self, key: str) -> Setup:
        """Return a copy without a key (a parameter), which is removed from nested items, too."""
        return Setup(without(key, self.problem), without(key, self.algorithm))


@dataclass(frozen=True, slots=True)
class Row:
    """Row of the error table: one metric and component over all runs at one place, with theory.

    Attributes
    ----------
    target : float
        Error that counts as reached where the optimum is 0.
    component_word, dimension_letter : str
        Word for a component of the signal (such as layer), and the letter for the dimension.
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
    first_order: PassesWorth = PassesWorth()

    @property
    def is_fitted_to_itself(self) -> bool:
        """Whether the optimum at the dimension of the runs was fitted to the runs of this row's own algorithm."""
        return self.optimum.source == f"{FITTED}{self.place.algorithm}"

    @property
    def is_ratio_circular(self) -> bool:
        """Whether the optimum at the dimension of the runs is the mean of these same runs, so that their ratio to it is 1 by
        construction.
        """
        return self.is_fitted_to_itself and self.optimum.ratio is None

    @property
    def ratio_to_limit(self) -> Number:
        """Ratio of the mean error to the infinite-dimensional Bayes-optimal error; None where that is 0."""
        limit, mean = self.optimum.limit, self.estimate.mean
        if limit is None or limit <= ZERO * self.target or mean is None:
            return None
        is_error = self.optimum.ratio is not None or self.is_ratio_circular
        return mean / limit if is_error else None

    @property
    def ratio_to_limit_error(self) -> Number:
        """Standard error of ``ratio_to_limit``; None for a single run."""
        ratio, sem = self.ratio_to_limit, self.estimate.sem
        if ratio is None or sem is None:
            return None
        limit_error = ratio * (self.optimum.limit_error or 0.0)
        return math.hypot(sem, limit_error) / (self.optimum.limit or 1.0)

    @property
    def optimum_to_limit(self) -> Number:
        """Ratio of the Bayes-optimal error at the dimension of the runs to that at infinite dimension; None where it is unknown
        or was fitted to these runs.
        """
        optimum = self.optimum
        is_unknown = optimum.source == LIMIT or self.is_fitted_to_itself
        if is_unknown or optimum.value is None or self.ratio_to_limit is None:
            return None
        return optimum.value / (optimum.limit or 1.0)

    @property
    def optimum_to_limit_error(self) -> Number:
        """Standard error of ``optimum_to_limit``; None where that is unknown."""
        if self.optimum_to_limit is None or self.optimum.error is None:
            return None
        return self.optimum.error / (self.optimum.limit or 1.0)

    @property
    def is_predicted_optimal(self) -> bool:
        """Whether theory predicts that the algorithm reaches the Bayes optimum, and the optimum at the dimension of the runs is
        known without a fit to runs.
        """
        limit, predicted = self.optimum.limit, self.prediction.value
        if limit is None or predicted is None or not self.optimum.is_known_at_size:
            return False
        return math.isclose(predicted, limit)

    @property
    def at_size(self) -> Row:
        """The row with the prediction for its own dimension: the value at infinite D plus the 1/D correction, whose coefficient
        is then dropped; the row itself where the correction is not known.

        It is the Bayes-optimal error at this size, known without a fit, for algorithms that are predicted to reach it; or the
        limit plus a correction in closed form, whose square relative to the limit is added to its error.
        """
        prediction, optimum = self.prediction, self.optimum
        limit = prediction.value
        error = prediction.error or 0.0
        if limit is None:
            return self
        if self.is_predicted_optimal:
            value, error = optimum.value, optimum.error or 0.0
        elif prediction.coefficient is None:
            return self
        else:
            correction = prediction.coefficient / self.place.dimension
            value = limit + correction
            if correction:
                error = math.hypot(error, correction**2 / (limit or 1.0))
        at_size = replace(prediction, value=value, error=error, coefficient=0.0)
        return replace(self, prediction=at_size)

    @property
    def z_at_size(self) -> Number:
        """Difference between the mean over runs and the prediction at their dimension, in units of the combined error; None if
        the latter is unknown.
        """
        predicted = self.at_size.prediction
        if (
            predicted.coefficient is None
            or predicted.value is None
            or predicted.z is None
        ):
            return None
        standard_error = math.hypot(self.estimate.sem or 0.0, predicted.error or 0.0)
        difference = (self.estimate.mean or 0.0) - predicted.value
        return difference / standard_error if standard_error else None

    @property
    def z_from_limit(self) -> Number:
        """Difference of the mean over runs from the prediction at infinite dimension, or from the optimal value if there is
        no theory, in standard errors.
        """
        has_prediction = self.prediction.value is not None or self.prediction.reason
        return self.prediction.z if has_prediction else self.theory.z

    @property
    def z(self) -> Number:
        """The z-score that tables show: ``z_at_size`` where it is known, else ``z_from_limit``."""
        return self.z_from_limit if self.z_at_size is None else self.z_at_size

    def document(self) -> RowDocument:
        """Return the row as a flat JSON object."""
        return flat_document(self)

    def labeled(self, problem: str, algorithm: str) -> Self:
        """Return a copy of the row with other labels of problem and algorithm."""
        return replace(
            self, place=replace(self.place, problem=problem, algorithm=algorithm)
        )


@dataclass(frozen=True, slots=True)
class RowEntry:
    """Base class of table entries that show a row's labels, theory and estimate."""

    row: Row

    def __getattr__(self, name: str) -> Any:
        """Return the attribute of the row, where the entry has none of that name."""
        return getattr(self.row, name)


class Optimum(NamedTuple):
    """Bayes-optimal errors ``value`` (P,) of P components at one dimension, with standard errors ``error`` (P,); ``source`` says
    how they were obtained, ``instance_errors`` are the errors (P,) of a Bayes-optimal algorithm by instance.

    ``is_mean_of_runs``: they are no more than the mean over the runs of one algorithm, whose ratio to them is 1.
    """

    value: Host
    error: Host
    source: str
    instance_errors: Mapping[str, Host]
    is_mean_of_runs: bool = False

    def reachable_errors(self, instance: str) -> Host:
        """Errors (P,) that an algorithm can reach on an instance: the mean optimum, or more if the instance is harder."""
        return np.maximum(self.value, self.instance_errors.get(instance, 0.0))


def optimum_at_limit(point: TheoryPoint) -> Optimum:
    """Return the Bayes-optimal errors at infinite D, from the fixed point of theory ``point``, in place of those at a finite
    dimension.
    """
    return Optimum(point.mse, point.mse_error, LIMIT, {})


Optima = Mapping[tuple[str, float, int], Optimum]
"""Bayes-optimal errors at finite dimension, by problem, nominal sample ratio and dimension."""


def row_of(document: RowDocument) -> Row:
    """Make a row from a flat JSON object, as ``show --json`` prints it.

    Raises
    ------
    ValueError
        If a field is missing or of another type.
    """
    try:
        json_text = json.dumps(nested_document(document), allow_nan=False)
    except ValueError:
        raise ValueError(
            "not a row of smimbench: it contains an infinite number or NaN; such numbers must be null"
        ) from None
    try:
        return _row_type().validate_json(json_text, strict=True)
    except pydantic.ValidationError as error:
        first_error = error.errors(include_url=False)[0]
        path = ".".join(map(str, first_error["loc"]))
        raise ValueError(
            f"not a row of smimbench: the field {path} is wrong: {first_error['msg']}, got {short_repr(first_error['input'])}"
        ) from None


@functools.cache
def _row_type() -> pydantic.TypeAdapter[Row]:
    """Return the validator that makes a row of nested JSON objects."""
    return pydantic.TypeAdapter(Row)


# -- grouping and labels ---------------------------------------------------------------------------------------------------

T = TypeVar("T")
K = TypeVar("K")

RowPlace = tuple[str, str, str, float, int]
"""Key of a row's place: problem, algorithm, backend, nominal sample ratio, and dimension."""


def place(row: Row | RowEntry) -> RowPlace:
    """Return the place of a row: problem, algorithm, backend and grid point."""
    row_place = row.place
    return (
        row_place.problem,
        row_place.algorithm,
        row_place.backend,
        row_place.nominal_alpha,
        row_place.dimension,
    )


def largest_dimension_rows(rows: Iterable[Row]) -> list[Row]:
    """Select, for every algorithm and sample ratio, the rows of the largest dimension."""

    def without_dimension(row: Row) -> tuple[object, ...]:
        """Key of rows that differ only in their dimension."""
        return *place(row)[:-1], row.metric, row.component

    rows = list(rows)
    largest: dict[tuple[object, ...], int] = {}
    for row in rows:
        key = without_dimension(row)
        largest[key] = max(row.place.dimension, largest.get(key, 0))
    return [
        row for row in rows if row.place.dimension == largest[without_dimension(row)]
    ]


def grouped(rows: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Group ``rows`` by the value of the function ``key``, in the order of first appearance."""
    groups: dict[K, list[T]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def summed_statuses(rows: Iterable[Row]) -> dict[str, int]:
    """Sum the numbers of runs by status (ok, failed, ...) over ``rows``."""
    statuses: Counter[str] = Counter()
    for row in rows:
        statuses.update(row.runs.status_counts)
    return dict(statuses)


def names_with_backend(
    rows: Sequence[Row | RowEntry],
) -> Callable[[Row | RowEntry], str]:
    """Return a function that names the algorithm of a row, with the backend if rows are from several backends.

    An estimate from elsewhere has none; it is distinguished only from an algorithm of the same name that was run here.
    """
    has_several_backends = len({row.place.backend for row in rows} - {EXTERNAL}) > 1
    local_algorithms = {
        row.place.algorithm for row in rows if row.place.backend != EXTERNAL
    }

    def name_of(row: Row | RowEntry) -> str:
        """Return the name of a row's algorithm, followed by its backend where that is needed."""
        algorithm, backend = row.place.algorithm, row.place.backend
        shows_backend = (
            algorithm in local_algorithms
            if backend == EXTERNAL
            else has_several_backends
        )
        return f"{algorithm}@{backend}" if shows_backend else algorithm

    return name_of


def component_word(problem: Problem) -> str:
    """Return the word for a component: ``"layer"`` if the channel has layers, otherwise ``"component"``."""
    return "layer" if "layers" in problem.spec["channel"] else "component"


def dimension_letter_of(model: Model) -> str:
    """Return the letter for a model's dimension: d for a matrix of extensive rank, else D."""
    return "d" if model.rank == "extensive" else "D"


def common_dimension_letter(rows: Iterable[Row | RowEntry]) -> str:
    """Return the letter for the dimension of rows: that of their model, or D if models differ."""
    letters = {row.dimension_letter for row in rows}
    return letters.pop() or "D" if len(letters) == 1 else "D"
