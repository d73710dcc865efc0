"""Statistics over runs: means, difference from theory, time to reach the optimum, learning order, nearest threshold."""

from __future__ import annotations

import itertools
import math
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import NamedTuple, TypeVar, get_args

import numpy as np

from smimbench.backend.machine import peak_fraction
from smimbench.interfaces import Host
from smimbench.numerics.statistics import ROUNDING, quantile
from smimbench.report.row import (
    ZERO,
    Comparison,
    Epsilon,
    Finding,
    HalfOverlap,
    LearnedSequence,
    LearningFactor,
    LearningOrder,
    Nearness,
    Number,
    Row,
    RunCost,
    StillMoving,
)
from smimbench.run.loop import READINGS, Status
from smimbench.run.record import Record
from smimbench.theory.types import Thresholds

Trajectory = dict[str, Host]
"""Columns (t,) or (t, P) of a trajectory by name: ``iteration``, ``samples``, ``seconds``, and metrics."""
K = TypeVar("K")

EPSILONS = tuple(map(float, get_args(Epsilon)))
"""Relative distances from the Bayes-optimal error for which runtime tables show the time needed."""


# -- means ----------------------------------------------------------------------------------------------------------------


def values_of(
    records: Sequence[Record], metric: str, component: int
) -> dict[str, float]:
    """List the finite values of a metric in the records of runs, by instance (root seed and replicate), for one ``component`` of
    the signal, counted from 0.
    """
    values = {}
    for record in records:
        component_values = record.metrics.get(metric, ())
        value = (
            component_values[component] if len(component_values) > component else None
        )
        if value is not None and math.isfinite(value):
            values[instance_of(record)] = float(value)
    return values


def instance_of(record: Record) -> str:
    """Return the key of a run's instance: its root seed and replicate."""
    return f"{record.cell['seed']}/{record.cell['replicate']}"


def count_runs(status_counts: Mapping[str, int]) -> int:
    """Count the runs that were not skipped, given the number of runs by status."""
    return sum(
        count for status, count in status_counts.items() if status != Status.SKIPPED
    )


def failed_runs(row: Row) -> int:
    """Count the runs of a row without a value: they failed, diverged or were stopped."""
    status_counts = row.runs.status_counts
    runs = count_runs(status_counts)
    return max(
        0, min(runs - len(row.estimate.values), runs - status_counts.get(Status.OK, 0))
    )


def mean_of(values: Iterable[Number]) -> Number:
    """Mean of the values that are not None; None if there are none."""
    known_values = [value for value in values if value is not None]
    return float(np.mean(known_values)) if known_values else None


class MeanAndError(NamedTuple):
    """Mean over runs and its standard error ``sem``."""

    mean: Number
    sem: Number


@np.errstate(over="ignore")
def mean_and_error(values: Host) -> MeanAndError:
    """Compute the mean of values (n,) over runs, and its standard error if there are at least two."""
    count = len(values)
    sem = float(values.std(ddof=1) / math.sqrt(count)) if count > 1 else None
    return MeanAndError(float(values.mean()) if count else None, sem)


def compared_with_theory(
    estimate: MeanAndError, theory: Number, theory_error: Number
) -> Comparison:
    """Compare a mean over runs (``estimate``) with the value of theory: difference, and ``z``, the difference in units of the
    combined error (the standard error of the mean, and the numerical error of theory).
    """
    mean, sem = estimate
    if mean is None or theory is None:
        return Comparison(theory, theory_error, None, None)
    difference, z = mean - theory, None
    combined_error = math.hypot(sem or 0.0, theory_error or 0.0)
    if sem is not None and theory != 0 and combined_error > ROUNDING * abs(mean):
        z = difference / combined_error
    return Comparison(theory, theory_error, difference, z)


def ratio_to_bayes(
    mean: Number, bayes: Number, target: float, optimum: Number = None
) -> Number:
    """Return the ratio of the ``mean`` error over runs to the Bayes-optimal error: to ``optimum``, that at the dimension of the
    runs, if known, otherwise to ``bayes``, that at infinite D. None where ``bayes`` is 0 to the resolution of ``target``.
    """
    if mean is None or bayes is None or bayes <= target * ZERO:
        return None
    return mean / (optimum or bayes)


def mean_diagnostics(
    records: Sequence[Record],
    predictions_by_diagnostic: Mapping[str, Sequence[Number] | None],
) -> dict[str, list[Finding]]:
    """Average over the ``records`` of runs the diagnostics that algorithms report at their end: lists of numbers by name, often
    one per component; each mean is paired with theory's prediction for that number.
    """
    lists_by_diagnostic: dict[str, list[list[Number]]] = {}
    for record in records:
        for diagnostic, numbers in record.final.items():
            if isinstance(numbers, list) and diagnostic not in {*READINGS, "spectrum"}:
                lists_by_diagnostic.setdefault(diagnostic, []).append(numbers)
    findings: dict[str, list[Finding]] = {}
    for diagnostic, lists in sorted(lists_by_diagnostic.items()):
        predictions = predictions_by_diagnostic.get(diagnostic) or ()
        entries = [*itertools.zip_longest(*lists)]
        findings[diagnostic] = []
        for entry, prediction in zip(entries, [*predictions, *(None for _ in entries)]):
            values = np.array([value for value in entry if value is not None], float)
            findings[diagnostic].append(
                Finding(*mean_and_error(values), len(values), len(lists), prediction)
            )
    return findings


# -- intervals by Student's t ---------------------------------------------------------------------------------------------


class Change(NamedTuple):
    """Difference (``value``) between the means over runs of two algorithms or tables, with its standard error ``error``,
    which has ``dof`` degrees of freedom (Student's law).
    """

    value: float
    error: float
    dof: float

    def half_width(self, level: float) -> float:
        """Half-width of the confidence interval of the difference at confidence ``level`` by Student's t."""
        return quantile((1 + level) / 2, self.dof) * self.error if self.error else 0.0

    @property
    def z(self) -> float:
        """The change in units of its standard error (z-score); infinite if that is 0."""
        if self.error:
            return self.value / self.error
        return math.copysign(math.inf, self.value) if self.value else 0.0


def shared_instances(
    baseline: Mapping[K, float], candidate: Mapping[K, float]
) -> list[K]:
    """List the instances (data sets) for which both ``baseline`` and ``candidate`` (values by instance) have a value, in the
    baseline's order; empty if there are fewer than two.
    """
    shared = [instance for instance in baseline if instance in candidate]
    return shared if len(shared) > 1 else []


def change_between(
    baseline: Mapping[K, float], candidate: Mapping[K, float]
) -> Change | None:
    """Compute the change of a mean over runs, candidate minus baseline, from their values by instance: from paired
    differences on shared instances, if there are any, otherwise from the two means.

    Runs on the same instances (at least two) are compared in pairs, others by Welch's test. None for a single run.
    """
    shared = shared_instances(baseline, candidate)
    if shared:
        differences = np.array(
            [candidate[instance] - baseline[instance] for instance in shared]
        )
        mean, sem = mean_and_error(differences)
        return Change(mean or 0.0, sem or 0.0, len(shared) - 1.0)
    mean, sem = mean_and_error(np.array([*baseline.values()]))
    new_mean, new_sem = mean_and_error(np.array([*candidate.values()]))
    if mean is None or sem is None or new_mean is None or new_sem is None:
        return None
    error = math.hypot(sem, new_sem)
    # Welch and Satterthwaite
    squares = sem**4 / (len(baseline) - 1) + new_sem**4 / (len(candidate) - 1)
    dof = error**4 / squares if squares > 0 else math.inf
    return Change(new_mean - mean, error, dof)


def mean_change(changes: Sequence[Change]) -> Change:
    """Average independent changes of means over runs; the error's degrees of freedom follow Welch and Satterthwaite.
    ``squares`` is the sum of the squared variances, each over its degrees of freedom.
    """
    count = len(changes)
    variances = [change.error**2 for change in changes]
    total_variance = math.fsum(variances)
    squares = math.fsum(
        variance**2 / change.dof for variance, change in zip(variances, changes)
    )
    value = math.fsum(change.value for change in changes) / count
    dof = total_variance**2 / squares if squares > 0 else math.inf
    return Change(value, math.sqrt(total_variance) / count, dof)


# -- ratios of errors ----------------------------------------------------------------------------------------------------

LARGEST_LOG = math.log(sys.float_info.max)
"""Logarithm of the largest number; ratios and their intervals end there, so that they can be printed and stored."""


def bounded_exp(log: float) -> float:
    """Return the exponential of ``log``, at most the largest floating-point number."""
    return math.exp(min(log, LARGEST_LOG))


def log_ratio(error: float, optimum: float) -> float:
    """Return log(error / optimum), limited so that its exponential is a floating-point number."""
    return min(math.log(error / optimum), LARGEST_LOG)


class ErrorSum(NamedTuple):
    """Sum over components of errors or optima, with its standard error, which is infinite where one is unknown."""

    value: float
    error: float

    def log_ratio(self, reference: ErrorSum) -> tuple[float, float]:
        """Return the logarithm of the ratio of this sum to the sum ``reference``, with its standard error."""
        errors = self.error / self.value, reference.error / reference.value
        return log_ratio(self.value, reference.value), math.hypot(*errors)


def sum_of_errors(values_and_errors: Iterable[tuple[Number, Number]]) -> ErrorSum:
    """Sum values over components, given as pairs (value, standard error) with independent errors."""
    values, errors = zip(*values_and_errors)
    known_errors = [math.inf if error is None else error for error in errors]
    return ErrorSum(
        math.fsum(value or 0.0 for value in values), math.hypot(*known_errors)
    )


def geometric_mean(log_ratios: Sequence[tuple[float, float]]) -> MeanAndError:
    """Return the geometric mean of ratios, given as pairs of a logarithm and its standard error; None if there are none."""
    if not log_ratios:
        return MeanAndError(None, None)
    logs, errors = zip(*log_ratios)
    ratio = bounded_exp(math.fsum(logs) / len(logs))
    error = ratio * math.hypot(*errors) / len(logs)
    return MeanAndError(ratio, error if math.isfinite(error) else None)


# -- time -----------------------------------------------------------------------------------------------------------------


def near_optimum(optimum: Host, epsilon: float, target: float) -> Host:
    """Return the errors (P,) up to which a run counts as near the optimum: 1 + epsilon times the Bayes-optimal ones
    (``optimum``), at least ``target``.
    """
    return np.where(optimum > target, (1 + epsilon) * optimum, target)


class TracedRun(NamedTuple):
    """Record of a run with its trajectory; None if the run failed or has no trajectory."""

    record: Record
    trajectory: Trajectory | None


class FirstTime(NamedTuple):
    """Iteration, number of samples and seconds at which a condition first holds along a run's trajectory.

    All are infinite if it never does; samples are NaN if the algorithm does not count them.
    """

    iteration: float = math.inf
    samples: float = math.inf
    seconds: float = math.inf


def errors_at(run: TracedRun, clock: str, time: float) -> list[float]:
    """Return the squared errors (P,) of a run when its ``clock`` (``"iteration"`` or ``"samples"``) shows ``time``.

    After the end they are the last errors if the run ended ok, else NaN: dropping runs that converged early would favor slow
    ones.
    """
    trajectory = run.trajectory or {}
    # Before the first step nothing has been counted.
    clock_values = np.where(trajectory["iteration"] == 0, 0.0, trajectory[clock])
    error_after_end = None if run.record.status == Status.OK else math.nan
    component_errors = np.asarray(trajectory["mse"], dtype=float).T
    return [
        float(np.interp(time, clock_values, errors, right=error_after_end))
        for errors in component_errors
    ]


def first_time(trajectory: Trajectory, is_reached: Host) -> FirstTime:
    """Return iteration, samples and seconds at the first recorded point of a trajectory where ``is_reached`` (one truth value
    per point) is true; all three are infinite if no point is.
    """
    first_index = int(is_reached.argmax())
    if not is_reached[first_index]:
        return FirstTime()
    samples = math.nan
    if "samples" in trajectory:
        # Nothing has been processed before the first step, so its count of samples is missing, not unknown.
        samples = float(trajectory["samples"][first_index]) if first_index else 0.0
    seconds = float(trajectory["seconds"][first_index])
    return FirstTime(float(trajectory["iteration"][first_index]), samples, seconds)


def time_near_optimum(trajectory: Trajectory | None, goal: Host) -> FirstTime:
    """Find when the errors (P,) of all P components along a ``trajectory`` are first at most ``goal`` (P,): iteration, samples
    and seconds.
    """
    if trajectory is None or not {"mse", "iteration", "seconds"} <= trajectory.keys():
        return FirstTime()
    return first_time(trajectory, np.all(trajectory["mse"] <= goal, axis=1))


def _time_to_optimum(
    runs: Sequence[TracedRun],
    optimal_errors: Sequence[Host] | None,
    epsilon: float,
    target: float,
) -> Nearness:
    """Compute the median over runs of the time until a run's errors are at most ``1 + epsilon`` times the Bayes-optimal ones, or
    below ``target``; ``optimal_errors`` holds the optimal ones, (P,) for each run.
    """
    if optimal_errors is None:
        return Nearness(None, None, None)
    seconds, iterations = [], []
    for run, optimum in zip(runs, optimal_errors):
        time_reached = time_near_optimum(
            run.trajectory, near_optimum(optimum, epsilon, target)
        )
        # An attempt that was given up counts in the time to get there.
        seconds.append(time_reached.seconds + run.record.timing.lost_seconds)
        iterations.append(time_reached.iteration)
    fraction = mean_of(map(math.isfinite, seconds))
    return Nearness(_median_time(seconds), _median_time(iterations), fraction)


def run_cost(
    runs: Sequence[TracedRun], optimal_errors: Sequence[Host] | None, target: float
) -> RunCost:
    """Compute times, iterations and memory of runs; ``optimal_errors`` are the Bayes-optimal errors (P,) of each run, and
    errors below ``target`` count as near them.
    """
    records = [run.record for run in runs]
    timings = [record.timing for record in records if record.timing.seconds is not None]
    nearness_by_epsilon: dict[Epsilon, Nearness] = {
        epsilon: _time_to_optimum(runs, optimal_errors, float(epsilon), target)
        for epsilon in get_args(Epsilon)
    }
    ceiling_fraction, ceiling = peak_share(records)
    return RunCost(
        seconds=mean_of(
            (timing.seconds or 0.0) + timing.lost_seconds for timing in timings
        ),
        cpu_seconds=mean_of(timing.cpu_seconds for timing in timings),
        iterations=mean_of(record.iterations for record in records),
        first_iteration=mean_of(timing.first_iteration or None for timing in timings),
        per_iteration=mean_of(timing.per_iteration or None for timing in timings),
        peak_memory=max((timing.peak_memory or 0 for timing in timings), default=0)
        or None,
        ceiling_fraction=ceiling_fraction,
        ceiling=ceiling,
        device_seconds=mean_of(timing.device_seconds or None for timing in timings),
        trusted=bool(timings) and all(timing.trusted for timing in timings),
        machines=sorted({timing.machine for timing in timings}),
        near=nearness_by_epsilon,
    )


def clock_remarks(records: Sequence[Record]) -> list[str]:
    """Return a remark if the trusted wall-clock time of runs disagrees with their CPU time."""
    timings = [record.timing for record in records if record.timing.trusted]
    if not timings or any(timing.device_seconds for timing in timings):
        return []
    seconds = [
        (t.seconds or 0.0, t.cpu_seconds or 0.0, t.total_seconds) for t in timings
    ]
    wall_seconds, cpu_seconds, total_seconds = np.mean(seconds, axis=0)
    extra_threads = (timings[0].threads or 1) - 1
    # BLAS threads may work for the engine while the clock stands still.
    if cpu_seconds > 1.1 * (wall_seconds + extra_threads * total_seconds) + 0.02:
        reason = "other threads computed outside the timed section"
    elif cpu_seconds < 0.5 * wall_seconds - 0.02:
        reason = "the algorithm was idle, or the machine was busy with other work"
    else:
        return []
    return [
        f"a run took {wall_seconds:.3g} s of wall time but {cpu_seconds:.3g} s of CPU time: {reason}"
    ]


def _median_time(times: Sequence[float] | Host) -> Number:
    """Median over runs of a time (or number of iterations or samples), where runs that never reach the goal count as
    infinite; None if the median is infinite or unknown.
    """
    median = float(np.median(times)) if len(times) else math.inf
    return median if math.isfinite(median) else None


def peak_share(records: Sequence[Record]) -> tuple[Number, str | None]:
    """Return the mean fraction of the machine's peak speed that iterations of runs reach, and which peak bounds them: matrix
    products or memory reads.
    """
    fractions = []
    for record in records:
        timing, cell = record.timing, record.cell
        if timing.per_iteration and timing.cost and timing.ceilings:
            fraction = peak_fraction(
                timing.per_iteration,
                asdict(timing.cost),
                timing.ceilings,
                str(cell.get("dtype", "float64")),
                tf32=bool(cell.get("tf32", False)),
            )
            fractions += [fraction] if fraction else []
    ceiling = fractions[0].bound if fractions else None
    return mean_of(fraction.value for fraction in fractions), ceiling


# -- the end of a run -----------------------------------------------------------------------------------------------------

BLOCK = 0.15
"""Fraction of the steps per block; the mean errors of the last blocks are compared to see whether a run converged."""


def runs_still_moving(runs: Iterable[TracedRun], target: float) -> StillMoving | None:
    """Summarize the runs of a row whose error was still changing at the last step, in the direction (rising or falling) of most
    of them; None if fewer than three in four were. Errors below ``target`` do not count as changing.

    Only runs that used all their steps count; the others were stopped by a rule. A run still changes if the mean error of
    its last ``BLOCK`` of steps differs from that of the block before by 5% and by 4 standard errors of the noise within them, and
    the block before those in the same direction; errors below ``target`` count as 0.
    """
    late_changes = []
    for record, trajectory in runs:
        used_all_steps = record.status == Status.OK and record.reason.startswith("all ")
        if used_all_steps and trajectory is not None and "mse" in trajectory:
            late_changes += _late_changes(trajectory, target)
    rising = [change for change in late_changes if change[0] > 0]
    falling = [change for change in late_changes if change[0] < 0]
    moving_changes = max(rising, falling, key=len)
    if not moving_changes or 4 * len(moving_changes) < 3 * len(late_changes):
        return None
    change, lowest = np.median(moving_changes, axis=0)
    return StillMoving(len(moving_changes), float(change), float(lowest))


def _late_changes(trajectory: Trajectory, target: float) -> list[tuple[float, float]]:
    """Divide the end of a trajectory into blocks and return the relative change of the total error between the last two blocks (0
    if it is noise) and the ratio of the lowest error to the final one; ``mean``, ``mean_before`` and ``mean_two_before`` are the
    mean errors of the last three blocks.

    The list is empty if the run is too short.
    """
    steps = np.asarray(trajectory["iteration"])
    error = np.asarray(trajectory["mse"], dtype=float).sum(axis=1)
    block_ends = [(1 - blocks_before * BLOCK) * steps[-1] for blocks_before in range(4)]
    blocks = [
        error[(steps > start) & (steps <= end)]
        for end, start in itertools.pairwise(block_ends)
    ]
    if min(map(len, blocks)) < 4 or not np.isfinite(error).all():
        return []
    mean, mean_before, mean_two_before = (float(block.mean()) for block in blocks)
    if max(mean, mean_before) <= target:
        return [(0.0, 1.0)]
    difference = mean - mean_before
    noise_error = math.hypot(*map(_error_of_block_mean, blocks[1::-1]))
    relative_change = mean / mean_before - 1 if mean_before > 0 else math.inf
    # Swings about a floor turn; three blocks in one direction are rarely chance.
    keeps_direction = difference * (mean_before - mean_two_before) > 0
    is_clear = abs(relative_change) > 0.05 and abs(difference) > 4 * noise_error
    lowest = float(error.min() / error[-1]) if error[-1] > 0 else 1.0
    return [(relative_change if keeps_direction and is_clear else 0.0, lowest)]


def _error_of_block_mean(block: Host) -> float:
    """Estimate the standard error of the mean error over a ``block`` of successive points of a trajectory from means over its
    quarters, after a linear trend is removed.

    It uses the means of the block's quarters, because errors at neighboring steps are correlated.
    """
    steps = np.arange(len(block))
    residual = block - np.polyval(np.polyfit(steps, block, 1), steps)
    quarter_means = np.array(
        [quarter.mean() for quarter in np.array_split(residual, 4)]
    )
    uncorrelated_error = residual.std(ddof=1) / math.sqrt(len(block))
    return float(max(quarter_means.std(ddof=1), uncorrelated_error) / 2)


NAMES = {
    "weak_recovery": "weak-recovery threshold",
    "perfect_recovery": "perfect-recovery threshold",
    "algorithmic": "algorithmic threshold",
    "spinodal": "spinodal",
    "information_theoretic": "information-theoretic threshold",
}
"""Names of thresholds by their key; thresholds of single components are in ``sequential``."""


def near_threshold(
    thresholds: Thresholds,
    alpha: float,
    directions: int,
    component_word: str = "component",
) -> str | None:
    """Describe the threshold nearest to the sample ratio alpha if it is so close that runs of this size may not converge;
    otherwise return None. Fluctuations of the data are of order 1 / sqrt(``directions``): D for low rank, n samples for
    extensive rank.

    The rate at which an overlap grows out of nothing, or falls to it, is ``alpha / alpha_c`` up to a fluctuation of order
    ``1 / sqrt(count)`` from one draw of the data to the next, with ``count = D`` directions for low rank, and n samples for
    extensive rank: within ``|alpha - alpha_c| <= alpha_c / sqrt(count)`` either may happen.

    Parameters
    ----------
    thresholds : Thresholds
    alpha : float
        Sample ratio that was actually used.
    directions : int
        Number whose inverse square root sets the fluctuations: D for low rank, n for extensive rank.
    component_word : str
        Word for a component of the signal.
    """
    named_thresholds = [
        (
            f"threshold of {component_word} {bifurcation.component + 1}",
            bifurcation.alpha,
        )
        for bifurcation in thresholds.sequential
    ]
    for key, threshold in thresholds.by_name().items():
        # Weak recovery is that of the first of the components.
        if threshold and not (key == "weak_recovery" and thresholds.sequential):
            named_thresholds.append((NAMES[key], threshold.value))
    distances = [
        (abs(alpha / value - 1), name, value)
        for name, value in named_thresholds
        if value and math.isfinite(value)
    ]
    distance, name, value = min(distances, default=(math.inf, "", 0.0))
    if distance > 1 / math.sqrt(directions):
        return None
    return (
        f"alpha {alpha:.3g} is within 1/sqrt({directions}) = {100 / math.sqrt(directions):.2g}% of the {name} at {value:.3g}: "
        "increase D"
    )


# -- order of learning ----------------------------------------------------------------------------------------------------


def learning_order(
    trajectories: Sequence[Trajectory | None],
    optimal_overlaps: Sequence[float],
    samples_per_epoch: Number,
) -> tuple[list[HalfOverlap], LearningOrder]:
    """Determine when each component was learned along the runs' trajectories (its overlap reached half of its value in
    ``optimal_overlaps``), and in which order; ``samples_per_epoch`` converts samples to epochs. ``times`` are iterations,
    samples and seconds, by run and by component (``column``) with an optimal overlap above 0; ``goals`` are half of that.

    A component counts as learned when its overlap first reaches half of the Bayes-optimal one. Components count from 1.

    Parameters
    ----------
    trajectories : sequence of dict or None
        Of every run: ``iteration``, ``samples`` (NaN where the algorithm does not count them), ``seconds`` (t,) and
        ``overlap`` (t, P).
    optimal_overlaps : sequence of float
        Bayes-optimal overlap of every layer (P,).
    samples_per_epoch : float or None
        Samples of one run's data set: an epoch. None where runs draw fresh ones.

    Returns
    -------
    half_overlaps : list of HalfOverlap
        Medians over all runs, in which those that never get there count as infinity; None stands for infinity, for samples that
        were not counted, and for a layer of which nothing can be learned.
    order : LearningOrder
        Of the layers that can be learned; the factor is the geometric mean over the runs that learned all.
    """
    goals = {
        component: 0.5 * value
        for component, value in enumerate(optimal_overlaps)
        if value > 1e-3
    }
    numbers = [component + 1 for component in goals]
    times = np.full((len(trajectories), len(goals), len(FirstTime._fields)), math.inf)
    for run_times, trajectory in zip(times, trajectories):
        if trajectory is not None and "overlap" in trajectory:
            for column, (component, goal) in enumerate(goals.items()):
                is_learned = trajectory["overlap"][:, component] >= goal
                run_times[column] = first_time(trajectory, is_learned)
    half_overlaps = [HalfOverlap() for _ in optimal_overlaps]
    for column, (component, goal) in enumerate(goals.items()):
        iterations, samples, seconds = map(_median_time, times[:, column].T)
        success = mean_of(np.isfinite(times[:, column, 0]))
        epochs = samples and samples_per_epoch and samples / samples_per_epoch
        half_overlaps[component] = HalfOverlap(
            goal, success, iterations, samples, epochs, seconds
        )
    sequences = Counter(
        tuple(
            numbers[column]
            for column in np.argsort(run, kind="stable")
            if np.isfinite(run[column])
        )
        for run in times[..., 0]
    )
    complete = np.isfinite(times[..., 0]).all(axis=1)
    return half_overlaps, LearningOrder(
        [LearnedSequence([*order], runs) for order, runs in sequences.most_common()],
        mean_of(complete),
        _learning_factor(times[complete]),
    )


def _learning_factor(times: Host) -> LearningFactor | None:
    """Ratio of the learning times of the last and the first component, as geometric mean over runs; ``times`` (runs,
    components, 3) are iterations, samples and seconds, of which samples are used where these are counted, otherwise
    iterations.
    """
    is_counted = not np.isnan(times[..., 1]).any()
    learning_times = times[..., 1 if is_counted else 0]
    learning_times = learning_times[(learning_times > 0).all(axis=1)]
    if not len(learning_times) or learning_times.shape[1] < 2:
        return None
    log_factors = np.log(learning_times.max(axis=1) / learning_times.min(axis=1))
    mean = float(np.exp(log_factors.mean()))
    error = mean_and_error(log_factors).sem
    sem = None if error is None else mean * error
    axis = "samples" if is_counted else "iterations"
    return LearningFactor(mean, sem, len(log_factors), axis)
