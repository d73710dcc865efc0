r"""Statistical test of agreement between runs and theory at finite D, with its power; Bayes-optimal error at finite D.

The deviation of a mean over runs from its prediction is measured at every size D and continued to infinite D, where the
prediction holds. Numbers of several sample ratios, metrics and components are tested together: each has the share ``LEVEL / N``
of the false alarms, N being their number, and so has the mean over the sample ratios of every metric.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

import numpy as np

from smimbench.files import JsonObject
from smimbench.interfaces import Host
from smimbench.numerics.size_laws import SECOND, fit_sizes, pooled_errors
from smimbench.numerics.statistics import normal_score, quantile
from smimbench.registry.registry import find_metric
from smimbench.report.row import PredictedNumber, Row, grouped, place
from smimbench.report.statistics import ZERO
from smimbench.theory.types import TheoryPoint

LEVEL = 0.01
"""Significance level: probability that an algorithm is said to disagree with theory although it agrees exactly.

Halved, deviations have to be 5% larger."""

IMPOSSIBLE = 0.001
"""Probability that an algorithm that exactly reaches the Bayes optimum is reported to be below it."""

POWER = 0.99
"""Probability of detecting a deviation of the size that is called detectable. At 0.95 that size is an eighth smaller."""

VAGUE = 0.5
"""Relative deviation that must be detectable before runs can agree with theory. Halved, four times as many runs are needed."""

FINITE = {"lower": 20.0, "higher": 10.0, "one": 10.0}
"""Allowance for an unknown finite-size correction, times D, by the direction of a metric.

Corrections of errors are between -6 / D and 20 / D, the largest near perfect recovery, those of overlaps up to 5 / D, of
Nishimori ratios up to 3 / D, of the calibration up to 10 / D (matrices from few samples). Doubled, runs at a single size say
less."""

SPECTRAL = 3.0
"""Factor by which ``FINITE`` is larger for spectral estimates, whose corrections are proportional to D / n.

They are up to 47 / D for errors and 20 / D for overlaps of matrices from few samples or of small width. Doubled, runs at a
single size say less. Their Nishimori ratios are below 1 by 1 to 2 D / n (linear and softmax labels), which is no small number
at usual sizes: they are not tested."""

SCATTER = 30.0
"""Relative variance of single runs, times D, above which finite size may explain any deviation from theory.

It is 1 to 10 away from thresholds, and 20 to 1e5 near them. Doubled, twice as many verdicts near thresholds are wrong."""

FEWEST = 4
"""Smallest number of runs for a verdict on agreement: near a threshold two runs may be close to each other by chance.

Doubled, four seeds at one size are too few."""

RESOLUTION = 1e-3
"""Relative deviation from theory that always passes, because runs stop at a tolerance.

Halved, nothing changes at the default tolerance."""


FAR = 8.0
"""Distance of a run's log error from the median, in robust standard deviations, above which the run is an outlier.

Doubled, errors three times the usual are no outliers."""

FACTOR = 1.5
"""Smallest ratio to the median error at which a run is an outlier. Doubled, twice the error of the others is no outlier."""

RARE = 0.1
"""Largest fraction of runs that may be outliers (twice that within a row); more are the sign of a threshold.

Doubled, runs near a threshold are taken for outliers."""


class Deviation(NamedTuple):
    """Relative deviation from theory at infinite D, with its standard error and the allowance for finite-size corrections.

    The standard error has ``dof`` degrees of freedom.
    """

    value: float
    error: float
    dof: float
    allowance: float

    def detectable(self, level: float) -> float:
        """Return the smallest deviation that a test at this significance level detects with probability ``POWER``."""
        quantiles = quantile(1 - level / 2, self.dof) + quantile(POWER, self.dof)
        return self.allowance + quantiles * self.error

    def score(self, allowance: float = 0.0) -> float:
        """Return the normal score of the part of the deviation that exceeds an allowance."""
        excess = max(abs(self.value) - allowance, 0.0)
        return math.copysign(normal_score(excess / self.error, self.dof), self.value)


class SizeRuns(NamedTuple):
    """Values of one quantity over runs at one dimension, with the prediction, its error and the unit of deviations.

    ``teacher_excess`` is the relative excess of each teacher's squared norm over its mean; NaN where unknown.
    """

    dimension: int
    values: Sequence[float]
    teacher_excess: Sequence[float]
    prediction: float
    error: float
    unit: float


class SizeSeries(NamedTuple):
    """Runs at all dimensions for one quantity, with the coefficient of its 1/D correction and the direction of its metric."""

    direction: str
    coefficient: float | None
    sizes: list[SizeRuns]

    @property
    def measured(self) -> list[SizeRuns]:
        """Dimensions with at least two runs, so that the mean has a standard error."""
        return [size for size in self.sizes if len(size.values) > 1]


def deviation(
    series: SizeSeries, scatter: float = 0.0, factor: float = 1.0
) -> Deviation | None:
    r"""Estimate the deviation of runs from their prediction at infinite D; None for fewer than four runs.

    The mean at size D is ``prediction + deviation + b / D + c / D^2``, fitted by generalized least squares. An unknown b or c is
    a normal variable around 0, with a third of ``factor`` times ``FINITE`` or of ``SECOND`` as its standard deviation. What the
    sizes cannot separate from the deviation is the allowance for finite size. Near thresholds single runs ``scatter`` far more
    than by ``1 / sqrt(D)``; the allowance then grows with that.
    """
    sizes = series.measured
    if sum(len(size.values) for size in sizes) < FEWEST:
        return None
    dimensions = np.array([size.dimension for size in sizes], dtype=float)
    residuals = _residuals(sizes)
    scatters = np.array([residual.std(ddof=1) for residual in residuals])
    errors, dof = pooled_errors(dimensions, scatters, [*map(len, residuals)])
    theory_error = max(size.error / size.unit for size in sizes)
    errors = np.hypot(np.maximum(errors, 1e-6), theory_error)
    units = np.array([size.unit for size in sizes])
    corrections = (series.coefficient or 0.0) / units
    inverse = 1 / dimensions
    means = np.array([r.mean() for r in residuals]) - corrections * inverse
    open_first = 0.0
    if series.coefficient is None:
        open_first = factor * FINITE[series.direction]
    fit = fit_sizes(dimensions, means, errors, (math.inf, open_first / 3, SECOND / 3))
    value, b, _ = fit.coefficients.tolist()
    by_size = fit.errors[0, :-3]
    _, b_share, c_share = np.abs(by_size / errors @ fit.laws).tolist()
    open_second = SECOND + (np.abs(corrections).max() + b) ** 2
    allowance = float(open_first * b_share + open_second * c_share) + RESOLUTION
    largest = np.argmin(inverse)
    scatter = max(scatter, scatters[largest] ** 2 / inverse[largest])
    allowance += float(np.float64(scatter / SCATTER) ** 3)
    return Deviation(value, float(np.linalg.norm(by_size)), dof, allowance)


def _residuals(sizes: Sequence[SizeRuns]) -> list[Host]:
    """Subtract the prediction from each run's value, and the variation with the teacher's norm, found by regression.

    A signal that is longer by chance has a larger error. One slope is fitted for all dimensions.
    """
    residuals = [
        (np.asarray(size.values) - size.prediction) / size.unit for size in sizes
    ]
    lengths = [np.asarray(size.teacher_excess, dtype=float) for size in sizes]
    centered = np.concatenate([length - length.mean() for length in lengths])
    square = centered @ centered
    # NaN fails, too: then some length is not known.
    if len(centered) < 3 * len(sizes) + 2 or not square > 0:
        return residuals
    about_mean = np.concatenate([residual - residual.mean() for residual in residuals])
    slope = centered @ about_mean / square
    return [residual - slope * length for residual, length in zip(residuals, lengths)]


# -- all predicted quantities of an algorithm -----------------------------------------------------------------------------


class PredictedQuantity(NamedTuple):
    """Key of a predicted quantity: a metric of a component at a sample ratio, and ``at`` a fraction of the steps."""

    alpha: float
    metric: str
    component: int | None
    at: float | None


@dataclass(frozen=True, slots=True)
class Agreement:
    """Result of the test whether the runs of an algorithm agree with its theory.

    Attributes
    ----------
    prediction : str or None
        ``"no"`` where a quantity is further from its prediction than chance and finite size allow, ``"finite size"`` where only
        finite size may explain it, or would hide it; ``"too few runs"`` where a deviation of ``VAGUE`` could not be detected;
        else ``"yes"``; None: it has no prediction. ``"far off"`` where a few runs that are far off are the reason why it is not
        ``"yes"``; all else is then about the remaining runs.
    would_have_seen : float or None
        The smallest deviation of the error at any sample ratio that would have been detected.
    deviation, deviation_z, deviation_of
        The quantity that deviates most, relative to the prediction, in standard errors, and which it is.
    no_theory : str or None
        Why there is no prediction.
    far_off : list of int or None
        Number of the runs that are far off, and of all runs.
    """

    prediction: str | None
    would_have_seen: float | None = None
    deviation: float | None = None
    deviation_z: float | None = None
    deviation_of: str | None = None
    no_theory: str | None = None
    far_off: list[int] | None = None

    def document(self) -> JsonObject:
        """Return the agreement as a JSON object."""
        document = asdict(self)
        if self.far_off is None:
            del document["far_off"]
        return document


def agreement(rows: Sequence[Row], metric: str | None) -> Agreement:
    """Test whether the runs of an algorithm agree with its prediction, first all runs, then without outliers.

    Parameters
    ----------
    rows : sequence of Row
        All rows of the algorithm on a problem, of every dimension.
    metric : str or None
        The error that ``would_have_seen`` is about.
    """
    agreement_of_all = _agreement(rows, metric)
    if (
        agreement_of_all.prediction in (None, "yes")
        or agreement_of_all.would_have_seen is None
    ):
        return agreement_of_all
    outliers, count = _far_off([row for row in rows if row.metric == metric])
    if not outliers:
        return agreement_of_all
    agreement_of_most = _agreement(rows, metric, outliers)
    if agreement_of_most.prediction == "no":
        return agreement_of_most
    if agreement_of_most.would_have_seen is None or (
        agreement_of_most.prediction == agreement_of_all.prediction
        and 10 * agreement_of_most.would_have_seen > agreement_of_all.would_have_seen
    ):
        return agreement_of_all
    return replace(
        agreement_of_most, prediction="far off", far_off=[len(outliers), count]
    )


RunName = tuple[tuple[object, ...], str]
"""Identifier of a run: the place of its row, and the instance."""


def _far_off(rows: Sequence[Row]) -> tuple[set[RunName], int]:
    """Find the outliers among runs, and count all runs; there are none if too many runs are far from the median.

    Logarithms of errors scatter about the median of a row by a robust standard deviation, that of the row or of all rows
    together, whichever is larger.
    """
    rows = [row for row in rows if row.estimate.values]
    distances: list[Host] = []
    for row in rows:
        errors = np.array([*row.estimate.values.values()])
        logs = np.log(np.maximum(errors, max(row.target, 1e-300)))
        distances.append(np.abs(logs - np.median(logs)))
    typical = np.median(np.concatenate(distances)) if distances else 0.0
    runs: set[RunName] = set()
    outliers: set[RunName] = set()
    for row, distance in zip(rows, distances):
        names = [(place(row), name) for name in row.estimate.values]
        scatter = 1.4826 * max(typical, np.median(distance))  # 1.4826: of a normal law
        is_far = distance > max(FAR * scatter, math.log(FACTOR))
        runs.update(names)
        if is_far.sum() <= max(1, 2 * RARE * len(names)):
            outliers.update(names[i] for i in np.flatnonzero(is_far))
    return outliers if len(outliers) <= RARE * len(runs) else set(), len(runs)


def _agreement(
    rows: Sequence[Row], metric: str | None, outliers: Collection[RunName] = ()
) -> Agreement:
    """Test whether the runs, without the given outliers, agree with their prediction."""
    numbers = [(row, number) for row in rows for number in _predicted_numbers(row)]
    predicted = _series(numbers, outliers)
    is_incomplete = any(
        not size.values
        for quantity, series in predicted.items()
        for size in series.sizes
        if quantity.at is None
    )
    factor = 1.0
    if any(row.prediction.branch == "spectral" for row in rows):
        factor = SPECTRAL
        predicted = {q: s for q, s in predicted.items() if s.direction != "one"}
    if not predicted:
        reasons = [row.prediction.reason for row in rows if row.prediction.reason]
        return Agreement(None, no_theory=min(reasons, default=None))
    scatters = _scatters(predicted)
    deviations: dict[PredictedQuantity, Deviation] = {}
    for quantity, series in predicted.items():
        measured = deviation(series, scatters[quantity], factor)
        if measured is not None:
            deviations[quantity] = measured
        elif quantity.metric == metric:
            is_incomplete = True
    if not deviations:
        return Agreement("too few runs")
    tested = deviations | _means(deviations)
    level = LEVEL / len(tested)
    limit = quantile(1 - level / 2)
    refused = {q: d for q, d in tested.items() if abs(d.score(d.allowance)) > limit}
    error_deviations = [
        d for q, d in deviations.items() if q.metric == metric and q.at is None
    ] or [*deviations.values()]
    detectable = max(d.detectable(level) for d in error_deviations)
    by_chance = max(d.detectable(level) - d.allowance for d in error_deviations)
    quantity, largest = max(
        (refused or tested).items(),
        key=lambda pair: (
            bool(refused) and pair[0].metric == metric,
            abs(pair[1].score()),
        ),
    )
    if refused:
        answer = "no"
    elif abs(largest.score(RESOLUTION)) > limit:
        answer = "finite size"
    elif is_incomplete or by_chance > VAGUE:
        answer = "too few runs"
    else:
        answer = "yes" if detectable <= VAGUE else "finite size"
    return Agreement(
        answer, detectable, largest.value, largest.score(), quantity.metric
    )


def _predicted_numbers(row: Row) -> list[PredictedNumber]:
    """List all quantities of a row that have a prediction for the algorithm."""
    theory = row.prediction
    at_end = _at_end(row, theory.coefficient, theory.value, theory.error)
    return [at_end, *(theory.also_predicted or ())]


def _at_end(row: Row, *theory: float | None) -> PredictedNumber:
    """Return the row's metric at the end of the run as a predicted quantity; ``theory`` is coefficient, prediction and error."""
    return PredictedNumber(
        row.metric, row.component, None, row.estimate.values, *theory
    )


def _series(
    numbers: Iterable[tuple[Row, PredictedNumber]], outliers: Collection[RunName] = ()
) -> dict[PredictedQuantity, SizeSeries]:
    """Collect the runs of several rows by predicted quantity, without outliers."""
    numbers = list(numbers)
    teachers = {
        place(row): row.prediction.teachers
        for row, _ in numbers
        if row.prediction.teachers
    }
    predicted: dict[PredictedQuantity, SizeSeries] = {}
    for row, number in numbers:
        prediction, coefficient = number.prediction, number.coefficient
        if prediction is None:
            continue
        direction = find_metric(number.metric).direction
        unit = max(abs(prediction), 1.0)
        if direction == "lower":
            unit = abs(prediction)
            # Where theory says 0, errors up to the target count as reached.
            if unit <= ZERO * row.target:
                unit, coefficient = max(row.target / RESOLUTION, 1e-300), 0.0
        row_place = place(row)
        values = {
            name: value
            for name, value in number.values.items()
            if (row_place, name) not in outliers
        }
        lengths = teachers.get(row_place, {})
        excess = [
            lengths[name][(number.component or 1) - 1] if name in lengths else math.nan
            for name in values
        ]
        key = PredictedQuantity(
            row.place.nominal_alpha, number.metric, number.component, number.at
        )
        runs = SizeRuns(
            row.place.dimension,
            [*values.values()],
            excess,
            prediction,
            number.error or 0.0,
            unit,
        )
        empty = SizeSeries(direction, coefficient, [])
        predicted.setdefault(key, empty).sizes.append(runs)
    return predicted


def _scatters(
    predicted: Mapping[PredictedQuantity, SizeSeries],
) -> dict[PredictedQuantity, float]:
    """Estimate the relative variance of single runs for each quantity; a large one of a related quantity counts, too.

    There the error that an algorithm claims is right in some runs and far off in others: a claim that scatters counts for all
    quantities of its sample ratio, and the scatter of an error for the claim about it.
    """
    scatters = {quantity: _scatter(series) for quantity, series in predicted.items()}
    largest: dict[PredictedQuantity, float] = {}
    for quantities in grouped(predicted, lambda quantity: quantity.alpha).values():
        claims = [q for q in quantities if predicted[q].direction == "one"]
        errors = [
            q for q in quantities if predicted[q].direction == "lower" and q.at is None
        ]
        for quantity in quantities:
            related = [quantity, *claims]
            if quantity in claims:
                related += [q for q in errors if q.component == quantity.component]
            largest[quantity] = max(scatters[q] for q in related)
    return largest


def _scatter(series: SizeSeries) -> float:
    """Relative variance of single runs at the largest dimension, times D.

    For overlaps, whose prediction may be 0, it is relative to the larger of mean and prediction.
    """
    sizes = series.measured
    if not sizes:
        return 0.0
    largest, residual = max(
        zip(sizes, _residuals(sizes)), key=lambda pair: pair[0].dimension
    )
    # Errors are in units of their prediction already, or of the target where that is 0.
    scale = 1.0
    if series.direction != "lower":
        scale = abs(largest.prediction)
        if series.direction == "higher":
            scale = max(scale, abs(float(np.mean(largest.values))))
        scale /= largest.unit
    if not scale:
        return 0.0
    return float((residual.std(ddof=1) / scale) ** 2 * largest.dimension)


def _means(
    deviations: Mapping[PredictedQuantity, Deviation],
) -> dict[PredictedQuantity, Deviation]:
    """Average the deviations of each quantity over sample ratios, where there are several; their runs are independent."""
    means: dict[PredictedQuantity, Deviation] = {}
    for quantity, quantities in grouped(
        deviations, lambda q: q._replace(alpha=math.nan)
    ).items():
        if len(quantities) < 2:
            continue
        columns = zip(*(deviations[q] for q in quantities))
        values, errors, dofs, allowances = map(np.array, columns)
        weights = errors**-2.0 / np.sum(errors**-2.0)
        variances = (weights * errors) ** 2
        total = np.sum(variances)
        means[quantity] = Deviation(
            float(weights @ values),
            float(total**0.5),
            float(total**2 / np.sum(variances**2 / dofs)),  # Welch and Satterthwaite
            float(weights @ allowances),
        )
    return means


def is_below_optimum(rows: Sequence[Row], metric: str | None) -> bool:
    """Test whether an error is impossibly low: below the Bayes-optimal one by more than chance and finite size explain."""
    series = _series(
        (row, _at_end(row, None, row.optimum.limit, row.optimum.limit_error))
        for row in rows
        if row.metric == metric
    )
    deviations = [d for d in map(deviation, series.values()) if d is not None]
    return any(
        d.score(d.allowance) < -quantile(1 - IMPOSSIBLE / len(deviations))
        for d in deviations
    )


# -- Bayes-optimal error at finite dimension -------------------------------------------------------------------------------
# At finite D the smallest possible error differs from the limit, by 10% at d = 80. The coefficient of 1 / D is known in closed
# form, or measured from runs, on the same grid, of a shipped algorithm that is Bayes-optimal as D grows.

LIMIT = "limit"
"""Source of an optimum of which only the infinite-D limit is known."""


class Optimum(NamedTuple):
    """Bayes-optimal errors (P,) at one dimension with standard errors (P,), their source, and the errors on single instances."""

    value: Host
    error: Host
    source: str
    runs: Mapping[str, Host]

    def goal(self, instance: str) -> Host:
        """Errors (P,) that an algorithm can reach on an instance: the mean optimum, or more if the instance is harder."""
        return np.maximum(self.value, self.runs.get(instance, 0.0))


class Reference(NamedTuple):
    """Runs of a Bayes-optimal algorithm at one dimension: limit (P,), errors by instance, coefficients of 1/D if known."""

    dimension: int
    algorithm: str
    limit: Host
    runs: Mapping[str, Host]
    coefficient: Sequence[float] | None


def limit_of(point: TheoryPoint) -> Optimum:
    """Optimum without a finite-size correction: the infinite-D limit at a theory point."""
    return Optimum(point.mse, point.mse_error, LIMIT, {})


def optima(references: Sequence[Reference]) -> dict[int, Optimum]:
    """Compute the optimum at every dimension for one problem and sample ratio.

    Without a closed form, ``limit + b / D + c / D^2`` is fitted to all dimensions together. Relative to the limit, c is a normal
    variable around 0 with a third of ``SECOND`` as its standard deviation. What is twice as far above the limit as finite size
    explains (``FINITE`` and ``SECOND``) is cut off there.
    """
    closed_form = {}
    for reference in references:
        limit, dimension = reference.limit, reference.dimension
        if reference.coefficient is not None:
            excess = np.asarray(reference.coefficient, dtype=float) / dimension
            error = excess**2 / np.where(limit > 0, limit, 1.0)
            closed_form[dimension] = Optimum(
                limit + excess, error, "closed form", reference.runs
            )
    return closed_form or _fitted_optima(
        [r for r in references if len(r.runs) > 1 and (r.limit > 1e-12).all()]
    )


def _fitted_optima(references: Sequence[Reference]) -> dict[int, Optimum]:
    """Fit the optimum at every dimension to the runs of a Bayes-optimal algorithm."""
    if not references:
        return {}
    sizes = np.array([r.dimension for r in references], dtype=float)
    counts = [len(r.runs) for r in references]
    limits = np.array([r.limit for r in references]).T
    optima, errors = np.empty_like(limits), np.empty_like(limits)
    for p, limit in enumerate(limits):
        runs = [np.array([*r.runs.values()])[:, p] for r in references]
        excess = np.array([run.mean() for run in runs]) - limit
        sems, _ = pooled_errors(sizes, [run.std(ddof=1) for run in runs], counts)
        sems = np.maximum(sems, 1e-6 * limit)
        fit = fit_sizes(sizes, excess, sems, (0.0, np.inf, SECOND / 3 * limit.max()))
        # Runs further above did not reach the optimum; taken as it, their ratio to it would always be 1.
        highest = limit * (1 + 2 * (FINITE["lower"] / sizes + SECOND / sizes**2))
        optima[p] = np.clip(limit + fit.laws @ fit.coefficients, 1e-3 * limit, highest)
        errors[p] = np.linalg.norm(fit.laws @ fit.errors, axis=1)
    source = f"runs of {references[0].algorithm}"
    return {
        reference.dimension: Optimum(optima[:, k], errors[:, k], source, reference.runs)
        for k, reference in enumerate(references)
    }
