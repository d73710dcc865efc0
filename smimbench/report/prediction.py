r"""Statistical test of agreement between runs and theory at finite D, with its power.

The deviation of a mean over runs from its prediction is measured at every size D and continued to infinite D, where the
prediction holds. Numbers of several sample ratios, metrics and components are tested together: each has the share ``LEVEL / N``
of the false alarms, N being their number, and so has the mean over the sample ratios of every metric.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

import numpy as np

from smimbench.files import JsonObject
from smimbench.interfaces import AlgorithmPrediction, Host
from smimbench.numerics.size_laws import SECOND, fit_sizes, pooled_errors
from smimbench.numerics.statistics import normal_score, quantile
from smimbench.registry.registry import find_metric
from smimbench.report.row import ZERO, Number, PredictedNumber, Row, grouped, place

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
    """Relative deviation ``value`` of the mean over runs from theory at infinite D, with its standard error, that error's
    degrees of freedom ``dof`` (Student's law), and the ``allowance``: how much finite-size corrections can explain.
    """

    value: float
    error: float
    dof: float
    allowance: float

    def smallest_detectable(self, level: float) -> float:
        """Return the smallest deviation that a test at this significance level detects with probability ``POWER``."""
        quantiles = quantile(1 - level / 2, self.dof) + quantile(POWER, self.dof)
        return self.allowance + quantiles * self.error

    def excess_score(self, allowance: float = 0.0) -> float:
        """Return the normal score (z) of the part of the deviation that exceeds the ``allowance`` (0: of the whole deviation)."""
        excess = max(abs(self.value) - allowance, 0.0)
        return math.copysign(normal_score(excess / self.error, self.dof), self.value)


class SizeRuns(NamedTuple):
    """Values of one quantity (such as an error) in the runs at one dimension, with theory's ``prediction`` at infinite D and its
    numerical ``error``. Deviations from the prediction are divided by ``residual_scale``, in the units of the quantity;
    ``teacher_excess`` is, for each run, the relative excess of the teacher's squared norm over its expected value (NaN where
    unknown).
    """

    dimension: int
    values: Sequence[float]
    teacher_excess: Sequence[float]
    prediction: float
    error: float
    residual_scale: float


class SizeSeries(NamedTuple):
    """Runs of one quantity at all its dimensions (``sizes``), with the coefficient of its 1/D correction if known, and the
    best ``direction`` of its metric (``"lower"``, ``"higher"``, or ``"one"``: 1 is best).
    """

    direction: str
    coefficient: Number
    sizes: list[SizeRuns]

    @property
    def sizes_with_sem(self) -> list[SizeRuns]:
        """Dimensions with at least two runs, so that the mean has a standard error."""
        return [size for size in self.sizes if len(size.values) > 1]


def deviation(
    series: SizeSeries, relative_variance: float = 0.0, finite_size_factor: float = 1.0
) -> Deviation | None:
    r"""Estimate the relative deviation of runs at all dimensions from theory at infinite D, by a fit with corrections of
    order 1/D and 1/D^2; None for fewer than four runs. ``relative_variance`` is the smallest variance of single runs, times
    D, to assume; ``finite_size_factor`` multiplies the 1/D correction that is allowed.

    The mean at size D is ``prediction + deviation + b / D + c / D^2``, fitted by generalized least squares. An unknown b or c is
    a normal variable around 0, with a third of ``finite_size_factor`` times ``FINITE`` or of ``SECOND`` as its standard
    deviation. What the sizes cannot separate from the deviation is the allowance for finite size. Near thresholds single runs
    scatter far more than by ``1 / sqrt(D)``; the allowance then grows with their ``relative_variance`` (times D).
    """
    sizes = series.sizes_with_sem
    if sum(len(size.values) for size in sizes) < FEWEST:
        return None
    dimensions = np.array([size.dimension for size in sizes], dtype=float)
    residuals = _residuals(sizes)
    standard_deviations = np.array([residual.std(ddof=1) for residual in residuals])
    errors, dof = pooled_errors(dimensions, standard_deviations, [*map(len, residuals)])
    residual_scales = np.array([size.residual_scale for size in sizes])
    theory_errors = np.array([size.error for size in sizes]) / residual_scales
    errors = np.hypot(np.maximum(errors, 1e-6), theory_errors)
    known_corrections = (series.coefficient or 0.0) / residual_scales
    inverse_dimensions = 1 / dimensions
    means = (
        np.array([residual.mean() for residual in residuals])
        - known_corrections * inverse_dimensions
    )
    first_order_allowance = 0.0
    if series.coefficient is None:
        first_order_allowance = finite_size_factor * FINITE[series.direction]
    fit = fit_sizes(
        dimensions, means, errors, (math.inf, first_order_allowance / 3, SECOND / 3)
    )
    value, b, _ = fit.coefficients.tolist()
    errors_by_size = fit.errors[0, :-3]
    _, first_order_share, second_order_share = np.abs(
        errors_by_size / errors @ fit.laws
    ).tolist()
    second_order_allowance = SECOND + (np.abs(known_corrections).max() + b) ** 2
    allowance = (
        float(
            first_order_allowance * first_order_share
            + second_order_allowance * second_order_share
        )
        + RESOLUTION
    )
    largest_size = np.argmin(inverse_dimensions)
    relative_variance = max(
        relative_variance,
        standard_deviations[largest_size] ** 2 / inverse_dimensions[largest_size],
    )
    allowance += float(np.float64(relative_variance / SCATTER) ** 3)
    return Deviation(value, float(np.linalg.norm(errors_by_size)), dof, allowance)


def _residuals(sizes: Sequence[SizeRuns]) -> list[Host]:
    """Compute the relative residuals of runs, (value - prediction) / residual_scale, one array per dimension. A linear dependence
    on the teacher's norm (``norm_excesses``: its relative deviation from the expected norm) is removed by regression.

    A signal that is longer by chance has a larger error. One slope is fitted for all dimensions.
    """
    residuals = [
        (np.asarray(size.values) - size.prediction) / size.residual_scale
        for size in sizes
    ]
    norm_excesses = [np.asarray(size.teacher_excess, dtype=float) for size in sizes]
    centered_excess = np.concatenate(
        [norm_excess - norm_excess.mean() for norm_excess in norm_excesses]
    )
    sum_of_squares = centered_excess @ centered_excess
    # NaN fails, too: then some length is not known.
    if len(centered_excess) < 3 * len(sizes) + 2 or not sum_of_squares > 0:
        return residuals
    centered_residuals = np.concatenate(
        [residual - residual.mean() for residual in residuals]
    )
    residual_slope = centered_excess @ centered_residuals / sum_of_squares
    return [
        residual - residual_slope * norm_excess
        for residual, norm_excess in zip(residuals, norm_excesses)
    ]


# -- all predicted quantities of an algorithm -----------------------------------------------------------------------------


class PredictedQuantity(NamedTuple):
    """Key of a predicted quantity: a metric and component at a sample ratio alpha, at the end of the run or after the fraction
    ``step_fraction`` of its steps.
    """

    alpha: float
    metric: str
    component: int | None
    step_fraction: Number


@dataclass(frozen=True, slots=True)
class Agreement:
    """Result of the test whether the runs of an algorithm agree with its theory: the answer (``prediction``), the smallest
    relative deviation that the test would have seen, and the largest deviation with its normal score and its quantity.

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
    would_have_seen: Number = None
    deviation: Number = None
    deviation_z: Number = None
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
    """Test whether the runs of an algorithm agree with its prediction, first all runs, then without outliers; ``metric`` is
    the error metric in which outliers are found and detectable deviations stated.

    Where an algorithm is predicted to reach the Bayes optimum, and that is known at all sizes that were run without a fit to
    runs, the optimum at these sizes is the prediction.

    Parameters
    ----------
    rows : sequence of Row
        All rows of the algorithm on a problem, of every dimension.
    metric : str or None
        The error that ``would_have_seen`` is about.
    """
    is_optimum_known = _holds_at_all_sizes(rows, lambda row: row.is_predicted_optimal)
    rows = [
        row.at_size if is_known else row
        for row, is_known in zip(rows, is_optimum_known)
    ]
    agreement_of_all_runs = _test_agreement(rows, metric)
    if (
        agreement_of_all_runs.prediction in (None, "yes")
        or agreement_of_all_runs.would_have_seen is None
    ):
        return agreement_of_all_runs
    outliers, run_count = _outliers([row for row in rows if row.metric == metric])
    if not outliers:
        return agreement_of_all_runs
    agreement_without_outliers = _test_agreement(rows, metric, outliers)
    if agreement_without_outliers.prediction == "no":
        return agreement_without_outliers
    if agreement_without_outliers.would_have_seen is None or (
        agreement_without_outliers.prediction == agreement_of_all_runs.prediction
        and 10 * agreement_without_outliers.would_have_seen
        > agreement_of_all_runs.would_have_seen
    ):
        return agreement_of_all_runs
    return replace(
        agreement_without_outliers,
        prediction="far off",
        far_off=[len(outliers), run_count],
    )


def _holds_at_all_sizes(
    rows: Sequence[Row], condition: Callable[[Row], bool]
) -> list[bool]:
    """Return for each row of results whether ``condition`` is true of all rows that differ from it in their dimension only."""

    def quantity(row: Row) -> PredictedQuantity:
        """Return the key that rows of one quantity share at all dimensions."""
        alpha = row.place.nominal_alpha
        return PredictedQuantity(alpha, row.metric, row.component, None)

    exceptions = {quantity(row) for row in rows if not condition(row)}
    return [quantity(row) not in exceptions for row in rows]


RunName = tuple[tuple[object, ...], str]
"""Identifier of a run: the place of its row, and the instance."""


def _outliers(rows: Sequence[Row]) -> tuple[set[RunName], int]:
    """Find the outlying runs of some rows of results, and count all runs. A run is an outlier if the log of its error is far
    from the median of its row; if too many runs are far, there are none.

    Logarithms of errors scatter about the median of a row by a robust standard deviation, that of the row or of all rows
    together, whichever is larger.
    """
    rows = [row for row in rows if row.estimate.values]
    distances: list[Host] = []
    for row in rows:
        errors = np.array([*row.estimate.values.values()])
        log_errors = np.log(np.maximum(errors, max(row.target, 1e-300)))
        distances.append(np.abs(log_errors - np.median(log_errors)))
    median_distance = np.median(np.concatenate(distances)) if distances else 0.0
    all_runs: set[RunName] = set()
    outliers: set[RunName] = set()
    for row, distance in zip(rows, distances):
        run_names = [(place(row), instance) for instance in row.estimate.values]
        # 1.4826: of a normal law
        robust_deviation = 1.4826 * max(median_distance, np.median(distance))
        is_outlier = distance > max(FAR * robust_deviation, math.log(FACTOR))
        all_runs.update(run_names)
        if is_outlier.sum() <= max(1, 2 * RARE * len(run_names)):
            outliers.update(itertools.compress(run_names, is_outlier))
    return outliers if len(outliers) <= RARE * len(all_runs) else set(), len(all_runs)


def _test_agreement(
    rows: Sequence[Row], metric: str | None, outliers: Collection[RunName] = ()
) -> Agreement:
    """Test whether the runs of an algorithm, without the given outliers, agree with theory's prediction in all predicted
    quantities; ``metric`` is the error metric for which the smallest detectable deviation is stated.
    """
    series_by_quantity = _series_by_quantity(
        ((row, number) for row in rows for number in _predicted_numbers(row)), outliers
    )
    lacks_runs = any(
        not size.values
        for quantity, series in series_by_quantity.items()
        for size in series.sizes
        if quantity.step_fraction is None
    )
    finite_size_factor = 1.0
    if any(row.prediction.branch == "spectral" for row in rows):
        finite_size_factor = SPECTRAL
        series_by_quantity = {
            quantity: series
            for quantity, series in series_by_quantity.items()
            if series.direction != "one"
        }
    if not series_by_quantity:
        reasons = [row.prediction.reason for row in rows if row.prediction.reason]
        return Agreement(None, no_theory=min(reasons, default=None))
    relative_variances = _relative_variances(series_by_quantity)
    deviations: dict[PredictedQuantity, Deviation] = {}
    for quantity, series in series_by_quantity.items():
        tested_deviation = deviation(
            series, relative_variances[quantity], finite_size_factor
        )
        if tested_deviation is not None:
            deviations[quantity] = tested_deviation
        elif quantity.metric == metric:
            lacks_runs = True
    if not deviations:
        return Agreement("too few runs")
    tested = deviations | _mean_deviations(deviations)
    level_per_test = LEVEL / len(tested)
    critical_score = quantile(1 - level_per_test / 2)
    significant = {
        quantity: d
        for quantity, d in tested.items()
        if abs(d.excess_score(d.allowance)) > critical_score
    }
    error_deviations = [
        d
        for quantity, d in deviations.items()
        if quantity.metric == metric and quantity.step_fraction is None
    ] or [*deviations.values()]
    detectable = max(d.smallest_detectable(level_per_test) for d in error_deviations)
    largest_statistical_part = max(
        d.smallest_detectable(level_per_test) - d.allowance for d in error_deviations
    )
    quantity, largest = max(
        (significant or tested).items(),
        key=lambda pair: (
            bool(significant) and pair[0].metric == metric,
            abs(pair[1].excess_score()),
        ),
    )
    if significant:
        answer = "no"
    elif abs(largest.excess_score(RESOLUTION)) > critical_score:
        answer = "finite size"
    elif lacks_runs or largest_statistical_part > VAGUE:
        answer = "too few runs"
    else:
        answer = "yes" if detectable <= VAGUE else "finite size"
    return Agreement(
        answer, detectable, largest.value, largest.excess_score(), quantity.metric
    )


def _predicted_numbers(row: Row) -> list[PredictedNumber]:
    """List all quantities of a row (a metric at the end of the run, metrics without a row, errors during the run) that theory
    predicts for its algorithm.
    """
    prediction = row.prediction
    at_end = _at_end(row, prediction.coefficient, prediction.value, prediction.error)
    return [at_end, *(prediction.also_predicted or ())]


def _at_end(row: Row, *prediction: Number) -> PredictedNumber:
    """Return the row's metric at the end of the run with theory's ``prediction`` for it: coefficient of the 1/D correction, value
    at infinite D, and the value's numerical error.
    """
    return PredictedNumber(
        row.metric, row.component, None, row.estimate.values, *prediction
    )


def _series_by_quantity(
    predicted_numbers: Iterable[tuple[Row, PredictedNumber]],
    outliers: Collection[RunName] = (),
) -> dict[PredictedQuantity, SizeSeries]:
    """Collect the runs of several rows by predicted quantity and dimension; ``predicted_numbers`` pairs each row with a quantity
    of its runs and the prediction for it, ``outliers`` names runs that are left out. ``residual_scale`` is the prediction; where
    that is 0, the error that counts as 0.
    """
    predicted_numbers = list(predicted_numbers)
    teacher_excesses = {
        place(row): row.prediction.teachers
        for row, _ in predicted_numbers
        if row.prediction.teachers
    }
    series_by_quantity: dict[PredictedQuantity, SizeSeries] = {}
    for row, number in predicted_numbers:
        prediction, coefficient = number.prediction, number.coefficient
        if prediction is None:
            continue
        direction = find_metric(number.metric).direction
        residual_scale = max(abs(prediction), 1.0)
        if direction == "lower":
            residual_scale = abs(prediction)
            # Where theory says 0, errors up to the target count as reached.
            if residual_scale <= ZERO * row.target:
                residual_scale = max(row.target / RESOLUTION, 1e-300)
                coefficient = 0.0
        row_place = place(row)
        values = {
            instance: value
            for instance, value in number.values.items()
            if (row_place, instance) not in outliers
        }
        excesses = teacher_excesses.get(row_place, {})
        index = (number.component or 1) - 1
        teacher_excess = [
            excesses[instance][index] if instance in excesses else math.nan
            for instance in values
        ]
        quantity = PredictedQuantity(
            row.place.nominal_alpha, number.metric, number.component, number.at
        )
        size_runs = SizeRuns(
            row.place.dimension,
            [*values.values()],
            teacher_excess,
            prediction,
            number.error or 0.0,
            residual_scale,
        )
        new_series = SizeSeries(direction, coefficient, [])
        series_by_quantity.setdefault(quantity, new_series).sizes.append(size_runs)
    return series_by_quantity


def _relative_variances(
    series_by_quantity: Mapping[PredictedQuantity, SizeSeries],
) -> dict[PredictedQuantity, float]:
    """Estimate for each quantity the variance over single runs, relative to the square of its scale (its prediction) and times D.
    The largest among the quantity itself and related ones (of the same sample ratio) counts.

    There the error that an algorithm claims is right in some runs and far off in others: a claim that scatters counts for all
    quantities of its sample ratio, and the scatter of an error for the claim about it.
    """
    largest_variances: dict[PredictedQuantity, float] = {}
    for quantities in grouped(
        series_by_quantity, lambda quantity: quantity.alpha
    ).values():
        directions = {key: series_by_quantity[key].direction for key in quantities}
        variances = {
            key: _relative_variance(series_by_quantity[key]) for key in quantities
        }
        for quantity in quantities:
            is_claim = directions[quantity] == "one"
            largest_variances[quantity] = max(
                variance
                for other, variance in variances.items()
                if other == quantity
                or directions[other] == "one"
                or (
                    is_claim
                    and (directions[other], other.step_fraction) == ("lower", None)
                    and other.component == quantity.component
                )
            )
    return largest_variances


def _relative_variance(series: SizeSeries) -> float:
    """Variance over single runs of a quantity (``series``: its runs at all dimensions) at its largest dimension, relative to the
    square of the quantity's own scale (its prediction) and times D.

    For overlaps, whose prediction may be 0, it is relative to the larger of mean and prediction.
    """
    sizes_with_sem = series.sizes_with_sem
    if not sizes_with_sem:
        return 0.0
    largest_size, residual = max(
        zip(sizes_with_sem, _residuals(sizes_with_sem)),
        key=lambda pair: pair[0].dimension,
    )
    # Errors are in units of their prediction already, or of the target where that is 0.
    mean_scale = 1.0
    if series.direction != "lower":
        mean_scale = abs(largest_size.prediction)
        if series.direction == "higher":
            mean_scale = max(mean_scale, abs(float(np.mean(largest_size.values))))
        mean_scale /= largest_size.residual_scale
    if not mean_scale:
        return 0.0
    return float((residual.std(ddof=1) / mean_scale) ** 2 * largest_size.dimension)


def _mean_deviations(
    deviations: Mapping[PredictedQuantity, Deviation],
) -> dict[PredictedQuantity, Deviation]:
    """Average the relative deviations of each quantity over its sample ratios, weighted by inverse variance, where there are
    several; runs at different ratios are independent.
    """
    means: dict[PredictedQuantity, Deviation] = {}
    for quantity, quantities in grouped(
        deviations, lambda quantity: quantity._replace(alpha=math.nan)
    ).items():
        if len(quantities) < 2:
            continue
        deviation_columns = zip(*(deviations[key] for key in quantities))
        values, errors, degrees_of_freedom, allowances = map(
            np.array, deviation_columns
        )
        weights = errors**-2.0 / np.sum(errors**-2.0)
        variances = (weights * errors) ** 2
        total_variance = np.sum(variances)
        means[quantity] = Deviation(
            float(weights @ values),
            float(total_variance**0.5),
            float(
                total_variance**2 / np.sum(variances**2 / degrees_of_freedom)
            ),  # Welch and Satterthwaite
            float(weights @ allowances),
        )
    return means


def is_below_optimum(rows: Sequence[Row], metric: str | None) -> bool:
    """Test whether the error of an algorithm, in ``metric``, is impossibly low in its ``rows``: below the Bayes-optimal one by
    more than chance and finite size explain.
    """
    rows = [row for row in rows if row.metric == metric]
    is_known = _holds_at_all_sizes(rows, lambda row: row.optimum.is_known_at_size)
    return _is_too_low(
        (row, _at_end(row, 0.0, row.optimum.value, row.optimum.error))
        if is_optimum_known
        else (row, _at_end(row, None, row.optimum.limit, row.optimum.limit_error))
        for row, is_optimum_known in zip(rows, is_known)
    )


def is_below_floor(rows: Sequence[Row], metric: str | None) -> bool:
    """Test whether the error of an algorithm, in ``metric``, is lower in its ``rows`` than that of any first-order method after
    as many passes over the data, by more than chance and finite size explain.
    """
    return _is_too_low(
        (row, _at_end(row, None, row.first_order.floor, row.first_order.floor_error))
        for row in rows
        if row.metric == metric and row.first_order.floor_error is not None
    )


def _is_too_low(smallest_errors: Iterable[tuple[Row, PredictedNumber]]) -> bool:
    """Test whether the runs of any row have an error that is impossibly low; rows are paired with the smallest possible one."""
    series_by_quantity = _series_by_quantity(smallest_errors)
    deviations = [d for d in map(deviation, series_by_quantity.values()) if d]
    return any(
        d.excess_score(d.allowance) < -quantile(1 - IMPOSSIBLE / len(deviations))
        for d in deviations
    )


def size_coefficients(
    prediction: AlgorithmPrediction | None, metric: str, components: int
) -> Sequence[Number]:
    """Return the coefficients (P,) of the 1/D correction that theory predicts for a metric of an algorithm, one for each of its P
    ``components``; None where unknown.

    They are 0 for a prediction from the initial points of the runs, which holds at their dimension.
    """
    if prediction is None:
        return [None] * components
    coefficients = (prediction.finite_size or {}).get(metric)
    return coefficients or [0.0 if prediction.at_size else None] * components
