r"""Statistical test whether runs agree with theory: deviations, standard errors, finite-size allowances, power.

The deviation of a mean over runs from its prediction is measured at every size D and continued to infinite D, where the
prediction holds. Numbers of several sample ratios, metrics and components are tested together: each has the share ``LEVEL / N``
of the false alarms, N being their number, and so has the mean over the sample ratios of every metric.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from smimbench.files import JsonObject
from smimbench.numerics.size_laws import SECOND, fit_sizes, pooled_errors
from smimbench.numerics.statistics import normal_score, quantile
from smimbench.registry.metrics import find_metric
from smimbench.report.labels import grouped, place
from smimbench.report.row import PredictedNumber, Row
from smimbench.report.statistics import ZERO

LEVEL = 0.01
"""Probability that an algorithm that does just what its theory says is told no. Halved, deviations have to be 5% larger."""

IMPOSSIBLE = 0.001
"""Probability that an algorithm that reaches the optimum is said to be below it."""

POWER = 0.99
"""Probability with which a deviation of the size that is printed is seen. At 0.95 that size is an eighth smaller."""

VAGUE = 0.5
"""Deviation that has to be seen if runs are to say yes. Halved, four times as many runs are needed."""

FINITE = {"lower": 20.0, "higher": 10.0, "one": 10.0}
"""Allowance for a correction of finite size whose coefficient is not known, times D, by the direction of a metric: corrections of
errors are between -6 / D and 20 / D, the largest near perfect recovery, those of overlaps up to 5 / D, of Nishimori ratios up to
3 / D, of the calibration up to 10 / D (matrices from few samples). Doubled, runs at a single size say less."""

SPECTRAL = 3.0
"""Factor of ``FINITE`` for spectral estimates, whose corrections go with D / n: up to 47 / D for errors and 20 / D for overlaps
of matrices from few samples or of small width. Doubled, runs at a single size say less. Their Nishimori ratios are below 1 by
1 to 2 D / n (linear and softmax labels), which is no small number at usual sizes: they are not tested."""

SCATTER = 30.0
"""Relative variance of single runs times D from which on finite size may explain any deviation: 1 to 10 away from thresholds, 20
to 1e5 near them. Doubled, twice as many verdicts near thresholds are wrong."""

FEWEST = 4
"""Fewest runs for a verdict: near a threshold two runs may agree by chance, and their scatter is then far too small. Doubled,
four seeds at one size say nothing."""

RESOLUTION = 1e-3
"""Deviation below which nothing is refused: runs stop at a tolerance. Halved: the same, at the default tolerance."""


FAR = 8.0
"""Robust standard deviations of the log error from which on a run is far off. Doubled, errors three times the usual are not."""

FACTOR = 1.5
"""Ratio to the median error below which no run is far off. Doubled, a run with twice the error of the others is not."""

RARE = 0.1
"""Largest share of runs that are rare exceptions, of a row twice that: more are a threshold. Doubled, so are runs near one."""


class Deviation(NamedTuple):
    """A relative deviation from theory as D grows: its standard error, which rests on ``dof`` degrees of freedom, and what
    corrections of finite size may add to it.
    """

    value: float
    error: float
    dof: float
    finite: float

    def seen(self, level: float) -> float:
        """Smallest deviation that a test at this level detects with the probability ``POWER``."""
        return (
            self.finite
            + (quantile(1 - level / 2, self.dof) + quantile(POWER, self.dof))
            * self.error
        )

    def score(self, allowed: float = 0.0) -> float:
        """Deviation beyond an allowance in standard errors, as the normal score of the same probability."""
        rest = max(abs(self.value) - allowed, 0.0)
        return math.copysign(normal_score(rest / self.error, self.dof), self.value)


class Point(NamedTuple):
    """Runs at one size: values, the relative excess of the squared lengths of their teachers (NaN: not known), the
    prediction and its error, and the unit of deviations.
    """

    dimension: int
    values: Sequence[float]
    lengths: Sequence[float]
    prediction: float
    error: float
    unit: float


def deviation(
    points: Sequence[Point],
    coefficient: float | None = None,
    allowed: float = FINITE["lower"],
    scatter: float = 0.0,
) -> Deviation | None:
    r"""Deviation of runs from their prediction, at every size in its unit; None where there are fewer than four runs.

    The mean at size D is ``prediction + deviation + b / D + c / D^2``, fitted by generalized least squares. An unknown b or c is
    a normal variable around 0, with a third of ``allowed`` or ``SECOND`` as its standard deviation. What the sizes cannot
    separate from the deviation is the allowance for finite size. Near thresholds single runs ``scatter`` far more than by
    ``1 / sqrt(D)``; the allowance then grows with that.
    """
    points = [point for point in points if len(point.values) > 1]
    if sum(len(point.values) for point in points) < FEWEST:
        return None
    sizes = np.array([point.dimension for point in points], dtype=float)
    inverse = 1 / sizes
    rests = _less_teachers(points)
    means = np.array([rest.mean() for rest in rests])
    spreads = [rest.std(ddof=1) for rest in rests]
    errors, dof = pooled_errors(sizes, spreads, [len(rest) for rest in rests])
    errors = np.hypot(
        np.maximum(errors, 1e-6), max(point.error / point.unit for point in points)
    )
    known = (coefficient or 0.0) / np.array([point.unit for point in points])
    means = means - known * inverse
    loose = allowed if coefficient is None else 0.0
    fit = fit_sizes(sizes, means, errors, (math.inf, loose / 3, SECOND / 3))
    value, b, _ = fit.coefficients.tolist()
    chances = fit.errors[0, :-3]
    _, first, second = np.abs(chances / errors @ fit.laws).tolist()
    finite = (
        float(loose * first + (SECOND + (np.abs(known).max() + b) ** 2) * second)
        + RESOLUTION
    )
    finite += (
        max(scatter, spreads[int(np.argmin(inverse))] ** 2 / inverse.min()) / SCATTER
    ) ** 3
    return Deviation(value, float(np.linalg.norm(chances)), dof, finite)


def _scatter(points: Sequence[Point], direction: str) -> float:
    """Relative variance of single runs at the largest size, times D; of overlaps, which may be predicted to be 0, relative to the
    larger of mean and prediction.
    """
    points = [point for point in points if len(point.values) > 1]
    if not points:
        return 0.0
    last, rest = max(
        zip(points, _less_teachers(points)), key=lambda pair: pair[0].dimension
    )
    mean = float(np.mean(last.values)) if direction == "higher" else 0.0
    # Errors are in units of their prediction already, or of the target where that is 0.
    whole = (
        1.0
        if direction == "lower"
        else max(abs(mean), abs(last.prediction)) / last.unit
    )
    return float((rest.std(ddof=1) / whole) ** 2 * last.dimension) if whole else 0.0


def _less_teachers(points: Sequence[Point]) -> list[Any]:
    """Differences from the prediction, with the variance due to the teachers' lengths removed by regression.

    A signal that is longer by chance has a larger error. One slope for all sizes.
    """
    rests = [
        (np.asarray(point.values) - point.prediction) / point.unit for point in points
    ]
    lengths = [np.asarray(point.lengths, dtype=float) for point in points]
    centred = np.concatenate([x - x.mean() for x in lengths])
    # NaN fails, too: then some length is not known.
    if len(centred) < 3 * len(rests) + 2 or not centred @ centred > 0:
        return rests
    slope = (
        centred
        @ np.concatenate([rest - rest.mean() for rest in rests])
        / (centred @ centred)
    )
    return [rest - slope * x for x, rest in zip(lengths, rests)]


# -- all numbers of an algorithm -----------------------------------------------------------------------------------------


class Number(NamedTuple):
    """A predicted quantity: a metric of a component at a sample ratio, and ``at`` a share of the steps if during the run."""

    alpha: float
    metric: str
    component: int | None
    at: float | None


@dataclass(frozen=True, slots=True)
class Agreement:
    """Whether the runs of an algorithm match its prediction.

    Attributes
    ----------
    prediction : str or None
        ``"no"`` where a number is further from its prediction than chance and finite size allow, ``"finite size"`` where only
        finite size may explain it, or would hide it; ``"too few runs"`` where a deviation of ``VAGUE`` could not be seen; else
        ``"yes"``; None: it has no prediction. ``"far off"`` where a few runs that are far off are the reason why it is not
        ``"yes"``; all else is then about the others.
    would_have_seen : float or None
        The smallest deviation of the error at any sample ratio that would have been seen.
    deviation, deviation_z, deviation_of
        The number that deviates most, relative to the prediction, in standard errors, and which it is.
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
        """As JSON has it."""
        return {
            key: value
            for key, value in asdict(self).items()
            if key != "far_off" or value is not None
        }


def agreement(rows: Sequence[Row], metric: str | None) -> Agreement:
    """Whether the runs of an algorithm match its prediction.

    Parameters
    ----------
    rows : sequence of Row
        All rows of the algorithm on a problem, of every dimension.
    metric : str or None
        The error that ``would_have_seen`` is about.
    """
    answer = _agreement(rows, metric)
    if answer.prediction in (None, "yes") or answer.would_have_seen is None:
        return answer
    far, runs = _far_off([row for row in rows if row.metric == metric])
    if not far:
        return answer
    others = _agreement(_without(rows, far), metric)
    if others.prediction == "no":
        return others
    if others.would_have_seen is None:
        return answer
    if (
        others.prediction == answer.prediction
        and 10 * others.would_have_seen > answer.would_have_seen
    ):
        return answer
    return replace(others, prediction="far off", far_off=[len(far), runs])


def _far_off(rows: Sequence[Row]) -> tuple[set[tuple[Any, str]], int]:
    """Runs, by place and instance, whose error is far from the median of their row, if they are few; and the number of runs.

    Logarithms of errors scatter about the median of a row by a robust standard deviation, that of the row or of all rows
    together, whichever is larger.
    """
    distances = []
    for row in rows:
        logs = {
            name: math.log(max(value, row.target, 1e-300))
            for name, value in row.estimate.values.items()
        }
        median = float(np.median([*logs.values()])) if logs else 0.0
        distances.append(
            (place(row), {name: abs(value - median) for name, value in logs.items()})
        )
    every = [
        distance for _, distance_of in distances for distance in distance_of.values()
    ]
    runs = {(where, name) for where, distance_of in distances for name in distance_of}
    far: set[tuple[Any, str]] = set()
    for where, distance_of in distances:
        spread = (
            max(float(np.median(values)) for values in (every, [*distance_of.values()]))
            if distance_of
            else 0.0
        )
        limit = max(FAR * 1.4826 * spread, math.log(FACTOR))  # 1.4826: of a normal law
        exceptions = {
            (where, name) for name, distance in distance_of.items() if distance > limit
        }
        if len(exceptions) <= max(1, 2 * RARE * len(distance_of)):
            far |= exceptions
    return (far if len(far) <= RARE * len(runs) else set()), len(runs)


def _without(rows: Sequence[Row], runs: set[tuple[Any, str]]) -> list[Row]:
    """Rows without these runs."""

    def less(values: Mapping[str, float], where: Any) -> dict[str, float]:
        return {
            name: value for name, value in values.items() if (where, name) not in runs
        }

    fewer = []
    for row in rows:
        at = place(row)
        others = [
            replace(number, values=less(number.values, at))
            for number in row.prediction.others or ()
        ]
        estimate = replace(row.estimate, values=less(row.estimate.values, at))
        fewer.append(
            replace(
                row,
                estimate=estimate,
                prediction=replace(row.prediction, others=others),
            )
        )
    return fewer


def _agreement(rows: Sequence[Row], metric: str | None) -> Agreement:
    predicted, lost = _predicted(rows)
    directions = {number: find_metric(number.metric).direction for number in predicted}
    loose = (
        SPECTRAL if any(row.prediction.branch == "spectral" for row in rows) else 1.0
    )
    if loose > 1:
        predicted = {
            number: one
            for number, one in predicted.items()
            if directions[number] != "one"
        }
    scatters = {
        number: _scatter(points, directions[number])
        for number, (points, _) in predicted.items()
    }
    # Near a threshold the claimed error is right in some runs and far off in others.
    wild: dict[float, float] = {}
    errors: dict[tuple[float, int | None], float] = {}
    for number, scatter in scatters.items():
        if directions[number] == "one":
            wild[number.alpha] = max(wild.get(number.alpha, 0.0), scatter)
        elif directions[number] == "lower" and number.at is None:
            errors[number.alpha, number.component] = max(
                errors.get((number.alpha, number.component), 0.0), scatter
            )
    for number in scatters:
        if directions[number] == "one":  # a claim over an error
            scatters[number] = max(
                scatters[number], errors.get((number.alpha, number.component), 0.0)
            )
    found = {
        number: deviation(
            *one,
            loose * FINITE[directions[number]],
            max(scatters[number], wild.get(number.alpha, 0.0)),
        )
        for number, one in predicted.items()
    }
    reason = min(
        (row.prediction.reason for row in rows if row.prediction.reason), default=None
    )
    if not predicted:
        return Agreement(None, no_theory=reason)
    known = {number: one for number, one in found.items() if one is not None}
    if not known:
        return Agreement("too few runs")
    lost |= any(one is None for number, one in found.items() if number.metric == metric)
    whole = known | _pooled(known)
    level = LEVEL / len(whole)
    refused = {
        number: one
        for number, one in whole.items()
        if abs(one.score(one.finite)) > quantile(1 - level / 2)
    }
    of_error = [
        one
        for number, one in known.items()
        if (number.metric, number.at) == (metric, None)
    ] or [*known.values()]
    seen, chance = (
        max(values)
        for values in zip(
            *((one.seen(level), one.seen(level) - one.finite) for one in of_error)
        )
    )
    worst, most = max(
        (refused or whole).items(),
        key=lambda pair: (
            pair[0].metric == metric and bool(refused),
            abs(pair[1].score()),
        ),
    )
    if refused:
        said = "no"
    elif abs(most.score(RESOLUTION)) > quantile(1 - level / 2):
        said = "finite size"
    elif lost or chance > VAGUE:
        said = "too few runs"
    else:
        said = "yes" if seen <= VAGUE else "finite size"
    return Agreement(said, seen, most.value, most.score(), worst.metric)


def _pooled(known: Mapping[Number, Deviation]) -> dict[Number, Deviation]:
    """Means over sample ratios, whose runs are independent, of predicted quantities known at several."""
    found = {}
    for (_, *what), own in grouped(
        known.items(), lambda pair: (None, *pair[0][1:])
    ).items():
        values, errors, dofs, finite = (
            np.array(part) for part in zip(*(one for _, one in own))
        )
        weights = errors**-2.0 / np.sum(errors**-2.0)
        parts = (weights * errors) ** 2
        if len(own) > 1:  # Welch and Satterthwaite
            dof = float(np.sum(parts) ** 2 / np.sum(parts**2 / dofs))
            found[Number(math.nan, *what)] = Deviation(
                float(weights @ values),
                float(np.sum(parts) ** 0.5),
                dof,
                float(weights @ finite),
            )
    return found


def _predicted(
    rows: Sequence[Row], *, of_optimum: bool = False
) -> tuple[dict[Number, tuple[list[Point], float | None]], bool]:
    """Points of every predicted number with its coefficient of 1/D, and whether a number lacks runs with an estimate.

    The prediction is the algorithm's own, or the Bayes-optimal value.
    """
    found: dict[Number, tuple[list[Point], float | None]] = {}
    teachers = {
        place(row): row.prediction.teachers
        for row in rows
        if row.prediction.teachers is not None
    }
    lost = False
    for row in rows:
        theory = (
            (row.optimum.limit, row.optimum.limit_error)
            if of_optimum
            else (row.prediction.value, row.prediction.error)
        )
        coefficient = None if of_optimum else row.prediction.coefficient
        at_end = PredictedNumber(
            row.metric, row.component, None, row.estimate.values, coefficient, *theory
        )
        for number in (at_end, *(() if of_optimum else row.prediction.others or ())):
            expected, known = number.prediction, number.coefficient
            if expected is None:
                continue
            lost |= not number.values and number.at is None
            component = (number.component or 1) - 1
            lengths_of = teachers.get(place(row), {})
            lengths = [
                lengths_of[name][component] if name in lengths_of else math.nan
                for name in number.values
            ]
            unit = max(abs(expected), 1.0)
            if find_metric(number.metric).direction == "lower":
                # Where theory says 0, errors up to the target count as reached.
                target = row.target
                zero = abs(expected) <= ZERO * target
                unit, known = (
                    (max(target / RESOLUTION, 1e-300), 0.0)
                    if zero
                    else (abs(expected), known)
                )
            key = Number(
                row.place.nominal_alpha, number.metric, number.component, number.at
            )
            points, _ = found.setdefault(key, ([], known))
            values = [*number.values.values()]
            points.append(
                Point(
                    row.place.dimension,
                    values,
                    lengths,
                    expected,
                    number.error or 0.0,
                    unit,
                )
            )
    return found, lost


def is_below_optimum(rows: Sequence[Row], metric: str | None) -> bool:
    """Whether an error is below the Bayes-optimal one by more than chance and finite size allow, which no algorithm can be."""
    predicted, _ = _predicted(
        [row for row in rows if row.metric == metric], of_optimum=True
    )
    found = [
        one
        for one in (deviation(*numbers) for numbers in predicted.values())
        if one is not None
    ]
    return any(
        one.score(one.finite) < -quantile(1 - IMPOSSIBLE / len(found)) for one in found
    )
