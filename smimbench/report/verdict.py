"""Verdict on each problem: which algorithm comes closest to the Bayes-optimal error, its ratio to it, and its cost."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from smimbench.files import JsonObject
from smimbench.registry.registry import find_metric
from smimbench.report.prediction import (
    Agreement,
    agreement,
    is_below_floor,
    is_below_optimum,
)
from smimbench.report.row import (
    LIMIT,
    ZERO,
    Number,
    OptimalValue,
    PassesWorth,
    Row,
    common_dimension_letter,
    grouped,
    names_with_backend,
    place,
    summed_statuses,
)
from smimbench.report.statistics import (
    MeanAndError,
    bounded_exp,
    change_between,
    failed_runs,
    geometric_mean,
    log_ratio,
    mean_and_error,
    mean_of,
    shared_instances,
    sum_of_errors,
)
from smimbench.suite.schema import ORACLE

TIE = 0.95
"""Confidence level of the intervals of paired differences; two algorithms are tied if the interval contains 0."""

Rows = list[Row]


@dataclass(frozen=True, slots=True)
class ErrorRatio:
    """Geometric mean over shared instances of the ratio of an algorithm's error to that of the algorithm named ``reference``,
    with its confidence interval (lower and upper end).
    """

    reference: str
    ratio: float
    interval: list[float]


@dataclass(frozen=True, slots=True)
class Contender:
    """Scores of one algorithm on a problem: how its parameters were chosen (``settings``), its error relative to the optimum,
    cost, numbers of runs that failed or were not solved, and agreement with theory.

    Attributes
    ----------
    settings : str
        Origin of its parameters.
    ratio_to_limit, ratio_to_limit_error : float or None
        Geometric mean, over the sample ratios at which it is not 0, of the error (summed over components) over the
        Bayes-optimal one at infinite size, with its standard error.
    ratio_to_bayes, ratio_error : float or None
        The same over the Bayes-optimal error at this size where that is known; None for an algorithm whose own mean it is.
    optimum_to_limit, optimum_to_limit_error, optimum_source : float or None, str or None
        The same of the Bayes-optimal error at this size, with its standard error and sources; no number where it is not known
        or was fitted to the runs of this algorithm.
    where_zero, zero_reached : float or None, bool or None
        The largest error where theory says 0, and whether it is below the target.
    points, missing, unsolved : int
        Sample ratios with and without an estimate, and with one where the Bayes-optimal error is not known.
    near_seconds, near_fraction : float or None
        Median time to within 5% of the optimum (None: never at one of them), and the share of runs that get there.
    seconds, iterations : float or None
        Mean time and iterations of a run.
    failed : int
        Runs without an estimate, which ratios and ties count as ``with_failures`` does.
    moving : int
        Runs whose error still moved at their last step.
    below_optimum, below_floor : bool
        Whether its error is smaller than possible at all, or with as many passes over the data.
    first_order : list of PassesWorth
        What its runs are worth, in passes of the best first-order method, at every sample ratio and component.
    compared : ErrorRatio or None
        Ratio to the reference algorithm (the one asked for, or the best); None if they share fewer than two instances.
    mean_error : MeanAndError or None
        Only where the optimal error is known nowhere: the geometric mean of the errors, by which algorithms are ranked then.
    dimension_letter : str
        Letter for the dimension of the signal, for headings of tables.
    """

    problem: str
    algorithm: str
    settings: str
    ratio_to_limit: Number
    ratio_to_limit_error: Number
    ratio_to_bayes: Number
    ratio_error: Number
    optimum_to_limit: Number
    optimum_to_limit_error: Number
    optimum_source: str | None
    where_zero: Number
    zero_reached: bool | None
    points: int
    missing: int
    near_seconds: Number
    near_fraction: Number
    seconds: Number
    iterations: Number
    status_counts: dict[str, int]
    moving: int
    unsolved: int
    failed: int
    agreement: Agreement
    below_optimum: bool
    below_floor: bool
    first_order: list[PassesWorth]
    compared: ErrorRatio | None = None
    mean_error: MeanAndError | None = None
    dimension_letter: str = "D"

    @property
    def is_too_low(self) -> bool:
        """Whether its error is smaller than possible."""
        return self.below_optimum or self.below_floor

    @property
    def error(self) -> Number:
        """Ratio of its error to the limit of the optimal error; the error itself where no optimum is known."""
        return self.mean_error.mean if self.mean_error else self.ratio_to_limit

    @property
    def rank(self) -> tuple[float, ...]:
        """Sort key: complete algorithms first, then by error / optimal error, then by the error where the optimal error is 0.

        An algorithm run only where theory is 0 has no ratio and follows those that have one. This is common for online
        algorithms, which stand at the sample ratio of all their fresh samples.
        """
        default = math.inf if self.error is None else 0.0
        where_zero = default if self.where_zero is None else self.where_zero
        return self.is_too_low, self.missing, self.error or default, where_zero

    def document(self) -> JsonObject:
        """Return the scores as a JSON object."""
        document = asdict(self)
        comparison = document.pop("compared")
        below_optimum = document.pop("below_optimum")
        if comparison:
            comparison = {"with": comparison.pop("reference"), **comparison}
        for name in ("agreement", "mean_error", "problem", "dimension_letter"):
            del document[name]
        if not self.failed:
            del document["failed"]
        if self.mean_error or not self.unsolved:
            del document["unsolved"]
        document |= self.agreement.document()
        document |= {"below_optimum": below_optimum, "compared": comparison}
        if self.mean_error:
            mean, sem = self.mean_error
            document |= {
                "mean_error": mean,
                "mean_error_sem": sem,
                "unsolved": self.unsolved,
            }
        return document


@dataclass(frozen=True, slots=True)
class Reversal:
    """Nominal sample ratios at which an algorithm is significantly better than the best one, and those where it is worse."""

    algorithm: str
    better_at: list[float]
    worse_at: list[float]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Ranking of all algorithms that were run on a ``problem``, by their error in ``metric`` at the largest ``dimension``, best
    first, with those ``tied`` with the best and those better at some sample ratios (``reversals``).

    Attributes
    ----------
    metric : str or None
        Metric of the ranking, of which lower is better; None if no metric of the suite is such.
    dimension : int
        Dimension of the ranking, the largest that was run.
    tied : list of str
        Algorithms that are tied with the best: the interval of the difference of log errors, paired by instance, contains 0.
    reversals : list of Reversal
        Algorithms that are better than the best at one sample ratio and worse at another, by intervals that hold together.
    """

    problem: str
    metric: str | None
    dimension: int
    contenders: list[Contender]
    dimension_letter: str
    tied: list[str]
    reversals: list[Reversal]

    def document(self) -> JsonObject:
        """Return the verdict as a JSON object."""
        contenders = [contender.document() for contender in self.contenders]
        return {**asdict(replace(self, contenders=[])), "contenders": contenders}


def verdicts(rows: Sequence[Row], against: str | None = None) -> list[Verdict]:
    """Make one verdict per problem, which ranks the algorithms in the ``rows`` of a results table; the others' errors are
    compared with those of the algorithm ``against``, by default the best.
    """
    rows_by_problem = grouped(contenders(rows), lambda row: row.place.problem)
    return [
        _problem_verdict(problem, problem_rows, against)
        for problem, problem_rows in rows_by_problem.items()
    ]


def contenders(rows: Sequence[Row]) -> list[Row]:
    """Select the rows of algorithms that take part in the ranking: all that did not start from the teacher (oracle start)."""
    return [row for row in rows if row.place.settings != ORACLE]


def _problem_verdict(problem: str, rows: Rows, against: str | None) -> Verdict:
    """Rank the algorithms run on a problem at the largest dimension, from the problem's ``rows``; others are compared with the
    algorithm ``against`` (None: the best).
    """
    metric = min(
        (
            name
            for name in {row.metric for row in rows}
            if find_metric(name).direction == "lower"
        ),
        key=lambda name: (name != "mse", name),
        default=None,
    )
    dimension = max(row.place.dimension for row in rows)
    verdict = Verdict(
        problem, metric, dimension, [], common_dimension_letter(rows), [], []
    )
    if metric is None:
        return verdict
    largest_rows = [
        row for row in rows if row.metric == metric and row.place.dimension == dimension
    ]
    has_optimum = any(map(_has_optimum, grouped(largest_rows, place).values()))
    scored_rows = largest_rows
    if not has_optimum:
        scored_rows = [replace(row, optimum=UNIT) for row in largest_rows]
    scored_rows = with_failures(scored_rows)
    name_of = names_with_backend(largest_rows)
    log_ratios = _log_ratios(scored_rows)
    all_rows = grouped(rows, name_of)
    alphas = {row.place.nominal_alpha for row in largest_rows}
    ranking = []
    for algorithm, algorithm_rows in grouped(scored_rows, name_of).items():
        contender = _scored_contender(
            algorithm, algorithm_rows, all_rows[algorithm], len(alphas)
        )
        ranking.append(contender if has_optimum else _without_optimum(contender))
    ranking.sort(key=lambda contender: contender.rank)
    best, *others = ranking
    tied = [other.algorithm for other in others if _is_tied(log_ratios, best, other)]
    reference = against if against in log_ratios else best.algorithm
    # What drew its own samples saw other data, and more of it, than the others.
    fresh_sample_algorithms = {
        name_of(row) for row in largest_rows if not _uses_instance_data(row)
    }
    comparable = [
        contender.algorithm
        for contender in ranking
        if contender.algorithm not in fresh_sample_algorithms
    ]
    if reference in comparable:
        ranking = [
            replace(
                contender,
                compared=_error_ratio(log_ratios, reference, contender.algorithm),
            )
            if contender.algorithm in comparable
            else contender
            for contender in ranking
        ]
    reversals = []
    if best.algorithm in comparable:
        reversals = _reversals(scored_rows, best.algorithm, comparable[1:])
    return replace(verdict, contenders=ranking, tied=tied, reversals=reversals)


def _reversals(
    rows: Rows, best_algorithm: str, algorithms: Sequence[str]
) -> list[Reversal]:
    """Find which of ``algorithms`` are better than the best one at one sample ratio and worse at another; ``logs_by_alpha``
    are the log errors by sample ratio, algorithm and instance.

    Errors where theory says 0 count as the target if they are below it. The intervals of all comparisons hold together with
    probability ``TIE``, by Bonferroni's inequality.
    """
    target = rows[0].target
    logs_by_alpha: defaultdict[float, defaultdict[str, dict[Instance, float]]]
    logs_by_alpha = defaultdict(lambda: defaultdict(dict))
    for algorithm, algorithm_errors in errors_and_optima(rows).items():
        for instance, (error, optimum) in algorithm_errors.items():
            smallest_error = target if optimum <= ZERO * target else 1e-300
            log_error = math.log(max(error, smallest_error))
            logs_by_alpha[instance[1]][algorithm][instance] = log_error
    reversals = []
    for algorithm in algorithms:
        better_at: list[float] = []
        worse_at: list[float] = []
        for alpha, logs in sorted(logs_by_alpha.items()):
            change = change_between(logs[best_algorithm], logs[algorithm])
            is_paired = shared_instances(logs[best_algorithm], logs[algorithm])
            level = 1 - (1 - TIE) / (len(logs_by_alpha) * len(algorithms))
            if change and is_paired and abs(change.value) > change.half_width(level):
                (better_at if change.value < 0 else worse_at).append(alpha)
        if better_at and worse_at:
            reversals.append(Reversal(algorithm, better_at, worse_at))
    return reversals


def _without_optimum(contender: Contender) -> Contender:
    """Return scores as plain errors where no optimal error is known: they are ratios of errors to ``UNIT``, the 1 that stands for
    it.
    """
    return replace(
        contender,
        ratio_to_limit=None,
        ratio_to_limit_error=None,
        ratio_to_bayes=None,
        ratio_error=None,
        optimum_source=None,
        mean_error=MeanAndError(
            contender.ratio_to_limit, contender.ratio_to_limit_error
        ),
        near_fraction=None,
        unsolved=contender.points,
    )


UNIT = OptimalValue(1.0, None, 1.0, None, LIMIT)
"""Placeholder 1 for an unknown optimal error, so that ratios to it are the errors themselves."""


def with_failures(rows: Rows) -> Rows:
    """Give failed runs the largest error that any algorithm has at the same problem, sample ratio and dimension, so that
    failures count in the ranking; ``completed_rows`` are the rows with these errors.

    For the MSE it is at least 1, the error of the prior mean. Algorithms without any estimate stay without values.
    """
    rows_by_grid_point = grouped(rows, _grid_point)
    algorithms_with_estimate = {place(row)[:3] for row in rows if row.estimate.values}
    completed_rows = []
    for row in rows:
        failed_count = failed_runs(row)
        if failed_count and place(row)[:3] in algorithms_with_estimate:
            instance_errors: dict[str, float] = {}
            worst_error = 1.0 if row.metric == "mse" else 0.0
            for other_row in rows_by_grid_point[_grid_point(row)]:
                instance_errors |= other_row.estimate.values
                worst_error = max([worst_error, *other_row.estimate.values.values()])
            failed_instances = [
                name for name in instance_errors if name not in row.estimate.values
            ]
            failed_instances += [f"failed/{number}" for number in range(failed_count)]
            values = row.estimate.values | dict.fromkeys(
                failed_instances[:failed_count], worst_error
            )
            mean, sem = mean_and_error(np.array([*values.values()]))
            estimate = replace(
                row.estimate, values=values, mean=mean, sem=sem, failed=failed_count
            )
            row = replace(row, estimate=estimate)
        completed_rows.append(row)
    return completed_rows


def _grid_point(row: Row) -> tuple[object, ...]:
    """Return what rows of different algorithms share: problem, sample ratio, dimension, metric and component."""
    row_place = row.place
    return (
        row_place.problem,
        row_place.nominal_alpha,
        row_place.dimension,
        row.metric,
        row.component,
    )


def _is_tied(log_ratios: LogRatios, best: Contender, contender: Contender) -> bool:
    """Return whether ``contender`` is tied with the best: the interval of the ratio of their errors contains 1, and it does not
    fail more often. ``log_ratios`` are logarithms of error over optimum.
    """
    if None in (contender.error, best.error) or contender.missing != best.missing:
        return False
    if contender.failed > best.failed:
        return False
    change = _error_ratio(log_ratios, best.algorithm, contender.algorithm)
    return change is None or change.interval[0] <= 1 <= change.interval[1]


def _error_ratio(
    log_ratios: LogRatios, reference: str, algorithm: str
) -> ErrorRatio | None:
    """Return the ratio of the error of ``algorithm`` to that of ``reference`` on shared instances, with its interval."""
    if reference == algorithm or not (log_ratios[reference] and log_ratios[algorithm]):
        return None
    change = change_between(log_ratios[reference], log_ratios[algorithm])
    if change is None:
        return None
    half_width = change.half_width(TIE)
    interval = [
        bounded_exp(change.value - half_width),
        bounded_exp(change.value + half_width),
    ]
    return ErrorRatio(reference, bounded_exp(change.value), interval)


def _mean_ratio(logs: Mapping[Instance, float]) -> Number:
    """Return the geometric mean of ratios, given by their logarithms; None if there are none."""
    return bounded_exp(math.fsum(logs.values()) / len(logs)) if logs else None


def _scored_contender(
    algorithm: str, rows: Rows, all_rows: Rows, alpha_count: int
) -> Contender:
    """Compute the scores of an algorithm on a problem from its ``rows`` at the largest dimension; ``all_rows`` are those at
    all dimensions and metrics, ``alpha_count`` is the number of sample ratios of the problem.

    Agreement with theory is tested with the rows of all dimensions. A sample ratio at which only other algorithms were run
    counts as one without estimate.
    """
    target, metric = rows[0].target, rows[0].metric
    rows_by_grid_point = [*grouped(rows, place).values()]  # rows of all components
    estimated_points = unsolved_points = 0
    errors_to_limit = []
    errors_to_optimum = []
    optima_to_limit = []
    errors_at_zero = []
    nearness_by_point = []
    compared_rows = []
    for components in rows_by_grid_point:
        estimates = [row.estimate for row in components]
        if not _has_optimum(components):
            unsolved_points += estimates[0].mean is not None
            continue
        nearness_by_point.append(components[0].cost.near["0.05"])
        if any(estimate.mean is None for estimate in estimates):
            continue
        estimated_points += not 0 < estimates[0].failed == len(estimates[0].values)
        error = sum_of_errors((estimate.mean, estimate.sem) for estimate in estimates)
        optima = [row.optimum for row in components]
        limit = sum_of_errors(
            (optimum.limit, optimum.limit_error or 0.0) for optimum in optima
        )
        if limit.value <= ZERO * target:
            errors_at_zero.append(error.value)
        elif error.value > 0:
            optimum_at_size = sum_of_errors(
                (optimum.value or optimum.limit, optimum.error or 0.0)
                for optimum in optima
            )
            errors_to_limit.append(error.log_ratio(limit))
            errors_to_optimum.append(error.log_ratio(optimum_at_size))
            optima_to_limit.append(optimum_at_size.log_ratio(limit))
            compared_rows += components
    if any(row.is_ratio_circular for row in compared_rows):
        errors_to_optimum = []
    sources = dict.fromkeys(row.optimum.source for row in compared_rows)
    if LIMIT in sources or any(row.is_fitted_to_itself for row in compared_rows):
        optima_to_limit = []
    ratio_to_limit, ratio_to_bayes, optimum_to_limit = map(
        geometric_mean, (errors_to_limit, errors_to_optimum, optima_to_limit)
    )
    times = [
        math.nan if near.seconds is None else near.seconds for near in nearness_by_point
    ]
    near_seconds = float(np.median(times)) if times else math.nan
    first_rows = [components[0] for components in rows_by_grid_point]
    costs = [row.cost for row in first_rows]
    return Contender(
        problem=rows[0].place.problem,
        algorithm=algorithm,
        settings=rows[0].place.settings,
        ratio_to_limit=ratio_to_limit.mean,
        ratio_to_limit_error=ratio_to_limit.sem,
        ratio_to_bayes=ratio_to_bayes.mean,
        ratio_error=ratio_to_bayes.sem,
        optimum_to_limit=optimum_to_limit.mean,
        optimum_to_limit_error=optimum_to_limit.sem,
        optimum_source=", ".join(sources) or None,
        where_zero=max(errors_at_zero, default=None),
        zero_reached=max(errors_at_zero) <= target if errors_at_zero else None,
        points=estimated_points,
        missing=alpha_count - estimated_points,
        near_seconds=near_seconds if math.isfinite(near_seconds) else None,
        near_fraction=mean_of(
            near.fraction or 0.0 for near in nearness_by_point if estimated_points
        ),
        seconds=mean_of(cost.seconds for cost in costs),
        iterations=mean_of(cost.iterations for cost in costs),
        status_counts=summed_statuses(first_rows),
        moving=sum(row.runs.moving for row in first_rows),
        unsolved=unsolved_points,
        failed=sum(row.estimate.failed or failed_runs(row) for row in first_rows),
        agreement=agreement(all_rows, metric),
        below_optimum=is_below_optimum(all_rows, metric),
        below_floor=is_below_floor(all_rows, metric),
        first_order=[row.first_order for row in rows],
        dimension_letter=common_dimension_letter(rows),
    )


def _has_optimum(components: Rows) -> bool:
    """Return whether the Bayes-optimal error is known for all ``components``, the rows of one place and metric."""
    return all(row.optimum.limit is not None for row in components)


# -- all problems together ------------------------------------------------------------------------------------------------


Instance = tuple[str, float, int, str]
"""Key of an instance: problem, nominal sample ratio, dimension, and root seed with replicate."""

Errors = dict[str, dict[Instance, tuple[float, float]]]
"""Pairs (error, Bayes-optimal error) by algorithm and instance."""

LogRatios = Mapping[str, Mapping[Instance, float]]
"""Logarithms of ratios to the Bayes-optimal error, by algorithm and instance."""


def errors_and_optima(rows: Sequence[Row]) -> Errors:
    """Compute error and Bayes-optimal error, both summed over components, for each algorithm (and backend) and instance in the
    ``rows`` of a results table.
    """
    errors_by_algorithm: Errors = {}
    name_of = names_with_backend(rows)
    for components in filter(_has_optimum, grouped(rows, place).values()):
        row_place = components[0].place
        algorithm_errors = errors_by_algorithm.setdefault(name_of(components[0]), {})
        optimum = math.fsum(row.optimum.value or 0.0 for row in components)
        values = [row.estimate.values for row in components]
        for instance in sorted(set.intersection(*map(set, values))):
            error = math.fsum(by_instance[instance] for by_instance in values)
            key = (
                row_place.problem,
                row_place.nominal_alpha,
                row_place.dimension,
                instance,
            )
            algorithm_errors[key] = error, optimum
    return errors_by_algorithm


def on_instance_data(rows: Sequence[Row]) -> list[Row]:
    """Select the MSE rows of algorithms that learned from the samples of the instance.

    Algorithms that draw fresh samples, and so exceed the nominal sample ratio by far, saw other and more data.
    """
    ranked = contenders(rows)
    return [row for row in ranked if row.metric == "mse" and _uses_instance_data(row)]


def _uses_instance_data(row: Row) -> bool:
    """Return whether the runs of a row used the samples of the instance, not many more fresh ones."""
    return row.place.alpha <= 1.5 * row.place.nominal_alpha


def _log_ratios(rows: Sequence[Row]) -> LogRatios:
    """Compute log(error / Bayes-optimal error) by algorithm and instance, on the instances whose Bayes-optimal error is not
    0.
    """
    largest_zero = ZERO * max((row.target for row in rows), default=0.0)
    log_ratios: defaultdict[str, dict[Instance, float]] = defaultdict(dict)
    for algorithm, algorithm_errors in errors_and_optima(rows).items():
        log_ratios[algorithm] = {
            instance: log_ratio(error, optimum)
            for instance, (error, optimum) in algorithm_errors.items()
            if optimum > largest_zero and error > 0
        }
    return log_ratios


@dataclass(frozen=True, slots=True)
class AlgorithmSummary:
    """Scores of an algorithm (on a backend) over all problems of a suite: on how many ``instances`` it has an estimate, of
    ``all`` on which some algorithm has one; its error over the optimum and (``to_best``) over the error of the algorithm that
    the summary lists first, with an interval.

    Attributes
    ----------
    instances, all : int
        Number of instances for which it, or any algorithm, has an estimate.
    ratio_to_limit, ratio_to_bayes : float or None
        Geometric mean of error / Bayes-optimal error over the instances where the latter is not 0, at infinite size and at the
        size of the instance; the second is None if it is the mean of the algorithm's own runs.
    to_best, interval : float or None, list or None
        Geometric mean of its error over that of the first algorithm of the summary on the same instances, with its interval by
        Student's t on the paired logarithms (None for the first).
    """

    algorithm: str
    instances: int
    all: int
    ratio_to_limit: Number
    ratio_to_bayes: Number
    to_best: Number
    interval: list[float] | None


def summary(rows: Sequence[Row]) -> list[AlgorithmSummary]:
    """Summarize every algorithm in the ``rows`` of a results table over all problems, smallest errors first; empty if there is a
    single problem. ``log_ratios`` are logs of the error over the Bayes-optimal one at infinite D, by algorithm and instance.
    """
    rows = on_instance_data(rows)
    instances = errors_and_optima(rows)
    completed_rows = with_failures(rows)
    if len(instances) < 2:
        return []
    log_ratios = _log_ratios(
        [
            replace(row, optimum=replace(row.optimum, value=row.optimum.limit))
            for row in completed_rows
        ]
    )
    log_ratios_at_size = _log_ratios(completed_rows)
    circular_names = set(
        map(names_with_backend(rows), (row for row in rows if row.is_ratio_circular))
    )
    ratios = {name: _mean_ratio(logs) for name, logs in log_ratios.items()}
    names = sorted(
        ratios,
        key=lambda name: (
            -len(instances[name]),
            math.inf if ratios[name] is None else ratios[name],
        ),
    )
    instance_count = len(set().union(*instances.values()))
    summaries = []
    for name in names:
        comparison_with_best = None
        if shared_instances(log_ratios[names[0]], log_ratios[name]):
            comparison_with_best = _error_ratio(log_ratios, names[0], name)
        summaries.append(
            AlgorithmSummary(
                name,
                len(instances[name]),
                instance_count,
                ratios[name],
                None
                if name in circular_names
                else _mean_ratio(log_ratios_at_size[name]),
                comparison_with_best.ratio if comparison_with_best else None,
                comparison_with_best.interval if comparison_with_best else None,
            )
        )
    return summaries
