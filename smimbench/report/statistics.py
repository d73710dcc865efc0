"""Statistics over runs: means, difference from theory, time to reach the optimum, learning order, nearest threshold."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import NamedTuple, TypeVar, get_args

import numpy as np

from smimbench.backend.machine import peak_fraction
from smimbench.interfaces import Host
from smimbench.numerics.statistics import ROUNDING, quantile
from smimbench.report.row import (
    Comparison,
    Epsilon,
    Finding,
    HalfOverlap,
    LearnedSequence,
    LearningFactor,
    LearningOrder,
    Nearness,
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

ZERO = 1e-3
"""Fraction of the target below which a Bayes-optimal error counts as 0, so that no ratio to it is formed."""

EPSILONS = tuple(map(float, get_args(Epsilon)))
"""Relative distances from the Bayes-optimal error for which runtime tables show the time needed."""


# -- means ----------------------------------------------------------------------------------------------------------------


def values_of(
    records: Sequence[Record], metric: str, component: int
) -> dict[str, float]:
    """Return the finite values of a metric by instance; ``component`` counts from 0."""
    values = {}
    for record in records:
        components = record.metrics.get(metric, ())
        value = components[component] if len(components) > component else None
        if value is not None and math.isfinite(value):
            values[instance_of(record)] = float(value)
    return values


def instance_of(record: Record) -> str:
    """Return the key of a run's instance: its root seed and replicate."""
    return f"{record.cell['seed']}/{record.cell['replicate']}"


def count_runs(status_counts: Mapping[str, int]) -> int:
    """Count the runs that were not skipped."""
    return sum(
        count for status, count in status_counts.items() if status != Status.SKIPPED
    )


def failed_runs(row: Row) -> int:
    """Count the runs of a row without a value: they failed, diverged or were stopped."""
    counts = row.runs.status_counts
    runs = count_runs(counts)
    return max(0, min(runs - len(row.estimate.values), runs - counts.get(Status.OK, 0)))


def mean_of(values: Iterable[float | None]) -> float | None:
    """Mean of the values that are not None; None if there are none."""
    known_values = [value for value in values if value is not None]
    return float(np.mean(known_values)) if known_values else None


class MeanAndError(NamedTuple):
    """A mean and its standard error."""

    mean: float | None
    sem: float | None


@np.errstate(over="ignore")
def mean_and_error(values: Host) -> MeanAndError:
    """Compute the mean of values, and its standard error if there are at least two."""
    n = len(values)
    sem = float(values.std(ddof=1) / math.sqrt(n)) if n > 1 else None
    return MeanAndError(float(values.mean()) if n else None, sem)


def against_theory(
    estimate: MeanAndError, expected: float | None, error: float | None
) -> Comparison:
    """Compare a mean with theory; ``z`` is their difference in units of the combined error."""
    mean, sem = estimate
    if mean is None or expected is None:
        return Comparison(expected, error, None, None)
    difference, z = mean - expected, None
    scale = math.hypot(sem or 0.0, error or 0.0)
    if sem is not None and expected != 0 and scale > ROUNDING * abs(mean):
        z = difference / scale
    return Comparison(expected, error, difference, z)


def ratio_to_bayes(
    mean: float | None, bayes: float | None, target: float, optimum: float | None = None
) -> float | None:
    """Ratio of the mean to the Bayes-optimal error (at this dimension if known); None where the latter is 0."""
    if mean is None or bayes is None or bayes <= target * ZERO:
        return None
    return mean / (optimum or bayes)


def mean_diagnostics(
    records: Sequence[Record], theory: Mapping[str, Sequence[float | None] | None]
) -> dict[str, list[Finding]]:
    """Average the diagnostics that runs report, with their theory; a vector has one entry per component."""
    reported: dict[str, list[list[float | None]]] = {}
    for record in records:
        for name, numbers in record.final.items():
            if isinstance(numbers, list) and name not in {*READINGS, "spectrum"}:
                reported.setdefault(name, []).append(numbers)
    findings: dict[str, list[Finding]] = {}
    for name, lists in sorted(reported.items()):
        columns = itertools.zip_longest(*lists)
        predictions = theory.get(name) or []
        findings[name] = []
        for column, prediction in itertools.zip_longest(columns, predictions):
            if column is not None:
                values = np.array([x for x in column if x is not None], dtype=float)
                counts = len(values), len(lists)
                finding = Finding(*mean_and_error(values), *counts, prediction)
                findings[name].append(finding)
    return findings


# -- intervals by Student's t ---------------------------------------------------------------------------------------------


class Change(NamedTuple):
    """Difference of two means with its standard error, which has ``dof`` degrees of freedom."""

    value: float
    error: float
    dof: float

    def half_width(self, level: float) -> float:
        """Half-width of the confidence interval by Student's t."""
        return quantile((1 + level) / 2, self.dof) * self.error if self.error else 0.0

    @property
    def z(self) -> float:
        """The difference in units of its standard error."""
        if self.error:
            return self.value / self.error
        return math.copysign(math.inf, self.value) if self.value else 0.0


def shared_instances(
    baseline: Mapping[K, float], candidate: Mapping[K, float]
) -> list[K]:
    """List the instances for which both tables have a value, in the baseline's order; empty if fewer than two."""
    shared = [key for key in baseline if key in candidate]
    return shared if len(shared) > 1 else []


def change_between(
    baseline: Mapping[K, float], candidate: Mapping[K, float]
) -> Change | None:
    """Compute the change of a mean from the values by instance.

    Runs on the same instances (at least two) are compared in pairs, others by Welch's test. None for a single run.
    """
    shared = shared_instances(baseline, candidate)
    if shared:
        differences = np.array([candidate[key] - baseline[key] for key in shared])
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
    """Average independent changes, with the degrees of freedom by Welch and Satterthwaite."""
    count, variances = len(changes), [change.error**2 for change in changes]
    total = math.fsum(variances)
    squares = math.fsum(v**2 / change.dof for v, change in zip(variances, changes))
    value = math.fsum(change.value for change in changes) / count
    dof = total**2 / squares if squares > 0 else math.inf
    return Change(value, math.sqrt(total) / count, dof)


# -- time -----------------------------------------------------------------------------------------------------------------


def near_goal(bayes: Host, epsilon: float, target: float) -> Host:
    """Errors (P,) that count as near the optimum: ``1 + epsilon`` times the Bayes-optimal ones, at least the target."""
    return np.where(bayes > target, (1 + epsilon) * bayes, target)


class TracedRun(NamedTuple):
    """Record of a run with its trajectory; None if the run failed or has no trajectory."""

    record: Record
    trajectory: Trajectory | None


class FirstTime(NamedTuple):
    """Iteration, samples and seconds at which a condition first holds along a trajectory.

    All are infinite if it never does; samples are NaN if the algorithm does not count them.
    """

    iteration: float = math.inf
    samples: float = math.inf
    seconds: float = math.inf


def first_time(trajectory: Trajectory | None, reached: Host | None) -> FirstTime:
    """Find when a condition first holds along a trajectory."""
    if trajectory is None or reached is None or not reached.any():
        return FirstTime()
    step = int(np.argmax(reached))
    samples = math.nan
    if "samples" in trajectory:
        # Nothing has been processed before the first step, so its count of samples is missing, not unknown.
        samples = float(trajectory["samples"][step]) if step else 0.0
    seconds = float(trajectory["seconds"][step])
    return FirstTime(float(trajectory["iteration"][step]), samples, seconds)


def time_near(trajectory: Trajectory | None, goal: Host) -> FirstTime:
    """Find when the errors of all components first reach their goals (P,)."""
    if trajectory is None or not {"mse", "iteration", "seconds"} <= trajectory.keys():
        return FirstTime()
    return first_time(trajectory, np.all(trajectory["mse"] <= goal, axis=1))


def _nearness(
    runs: Sequence[TracedRun],
    goals: Sequence[Host] | None,
    epsilon: float,
    target: float,
) -> Nearness:
    """Compute median times until the errors of a run are within a factor ``1 + epsilon`` of its goals."""
    if goals is None:
        return Nearness(None, None, None)
    seconds, iterations = [], []
    for run, goal in zip(runs, goals):
        hit = time_near(run.trajectory, near_goal(goal, epsilon, target))
        # An attempt that was given up counts in the time to get there.
        seconds.append(hit.seconds + run.record.timing.lost_seconds)
        iterations.append(hit.iteration)
    share = mean_of(map(math.isfinite, seconds))
    return Nearness(_median_time(seconds), _median_time(iterations), share)


def runtime(
    runs: Sequence[TracedRun], goals: Sequence[Host] | None, target: float
) -> RunCost:
    """Compute times, iterations and memory for the runtime tables; ``goals`` are the optimal errors (P,) of each run."""
    records = [run.record for run in runs]
    timings = [r.timing for r in records if r.timing.seconds is not None]
    near: dict[Epsilon, Nearness] = {
        epsilon: _nearness(runs, goals, float(epsilon), target)
        for epsilon in get_args(Epsilon)
    }
    ceiling_fraction, ceiling = efficiency(records)
    return RunCost(
        seconds=mean_of((t.seconds or 0.0) + t.lost_seconds for t in timings),
        cpu_seconds=mean_of(t.cpu_seconds for t in timings),
        iterations=mean_of(record.iterations for record in records),
        first_iteration=mean_of(t.first_iteration or None for t in timings),
        per_iteration=mean_of(t.per_iteration or None for t in timings),
        peak_memory=max((t.peak_memory or 0 for t in timings), default=0) or None,
        ceiling_fraction=ceiling_fraction,
        ceiling=ceiling,
        device_seconds=mean_of(t.device_seconds or None for t in timings),
        trusted=bool(timings) and all(t.trusted for t in timings),
        machines=sorted({t.machine for t in timings}),
        near=near,
    )


def clock_remarks(records: Sequence[Record]) -> list[str]:
    """Return a remark if the trusted wall-clock time of runs disagrees with their CPU time."""
    timings = [record.timing for record in records if record.timing.trusted]
    if not timings or any(timing.device_seconds for timing in timings):
        return []
    clock = np.mean([timing.seconds or 0.0 for timing in timings])
    cpu = np.mean([timing.cpu_seconds or 0.0 for timing in timings])
    total = np.mean([timing.total_seconds for timing in timings])
    extra_threads = (timings[0].threads or 1) - 1
    # BLAS threads may work for the engine while the clock stands still.
    if cpu > 1.1 * (clock + extra_threads * total) + 0.02:
        reason = "other threads computed outside the timed section"
    elif cpu < 0.5 * clock - 0.02:
        reason = "the algorithm was idle, or the machine was busy with other work"
    else:
        return []
    return [
        f"a run took {clock:.3g} s of wall time but {cpu:.3g} s of CPU time: {reason}"
    ]


def _median_time(times: Sequence[float] | Host) -> float | None:
    """Median time, where runs that never reach the goal count as infinite; None if it is infinite or unknown."""
    median = float(np.median(times)) if len(times) else math.inf
    return median if math.isfinite(median) else None


def efficiency(records: Sequence[Record]) -> tuple[float | None, str | None]:
    """Return the mean fraction of the machine's peak that iterations reach, and which peak bounds them (products or reads)."""
    shares = []
    for record in records:
        timing, cell = record.timing, record.cell
        if timing.per_iteration and timing.cost and timing.ceilings:
            share = peak_fraction(
                timing.per_iteration,
                asdict(timing.cost),
                timing.ceilings,
                str(cell.get("dtype", "float64")),
                tf32=bool(cell.get("tf32", False)),
            )
            shares += [share] if share else []
    ceiling = shares[0].bound if shares else None
    return mean_of(share.value for share in shares), ceiling


# -- the end of a run -----------------------------------------------------------------------------------------------------

BLOCK = 0.15
"""Fraction of the steps per block; the mean errors of the last blocks are compared to see whether a run converged."""


def still_moving(runs: Iterable[TracedRun], target: float) -> StillMoving | None:
    """Summarize the runs of a row whose error was still changing at the end; None if fewer than three in four were.

    Only runs that used all their steps count; the others were stopped by a rule. A run still changes if the mean error of
    its last ``BLOCK`` of steps differs from that of the block before by 5% and by 4 standard errors of the noise within them, and
    the block before those in the same direction; errors below ``target`` count as 0.
    """
    changes = []
    for record, trajectory in runs:
        has_ended = record.status == Status.OK and record.reason.startswith("all ")
        if has_ended and trajectory is not None and "mse" in trajectory:
            changes += _late_changes(trajectory, target)
    rising = [change for change in changes if change[0] > 0]
    falling = [change for change in changes if change[0] < 0]
    moving = max(rising, falling, key=len)
    if not moving or 4 * len(moving) < 3 * len(changes):
        return None
    change, lowest = np.median(moving, axis=0)
    return StillMoving(len(moving), float(change), float(lowest))


def _late_changes(trajectory: Trajectory, target: float) -> list[tuple[float, float]]:
    """Return the relative change of the error at the end of a run (0 if it is noise) and the ratio lowest / final error.

    The list is empty if the run is too short.
    """
    steps = np.asarray(trajectory["iteration"])
    error = np.asarray(trajectory["mse"], dtype=float).sum(axis=1)
    ends = [(1 - i * BLOCK) * steps[-1] for i in range(4)]
    newest, previous, oldest = (
        error[(steps > start) & (steps <= end)]
        for end, start in itertools.pairwise(ends)
    )
    if min(map(len, (newest, previous, oldest))) < 4 or not np.isfinite(error).all():
        return []
    mean, mean_before, mean_long_before = (
        float(block.mean()) for block in (newest, previous, oldest)
    )
    if max(mean, mean_before) <= target:
        return [(0.0, 1.0)]
    step = mean - mean_before
    noise = math.hypot(_noise(previous), _noise(newest))
    change = mean / mean_before - 1 if mean_before > 0 else math.inf
    # Swings about a floor turn; three blocks in one direction are rarely chance.
    is_steady = step * (mean_before - mean_long_before) > 0
    if not (is_steady and abs(change) > 0.05 and abs(step) > 4 * noise):
        change = 0.0
    lowest = float(error.min() / error[-1]) if error[-1] > 0 else 1.0
    return [(change, lowest)]


def _noise(block: Host) -> float:
    """Standard error of the mean of a block of a trajectory, after a linear trend is removed.

    It uses the means of the block's quarters, because errors at neighboring steps are correlated.
    """
    steps = np.arange(len(block))
    residual = block - np.polyval(np.polyfit(steps, block, 1), steps)
    quarters = np.array([quarter.mean() for quarter in np.array_split(residual, 4)])
    point_error = residual.std(ddof=1) / math.sqrt(len(block))
    return float(max(quarters.std(ddof=1), point_error) / 2)


NAMES = {
    "weak_recovery": "weak-recovery threshold",
    "perfect_recovery": "perfect-recovery threshold",
    "algorithmic": "algorithmic threshold",
    "spinodal": "spinodal",
    "information_theoretic": "information-theoretic threshold",
}
"""Names of thresholds by their key; thresholds of single components are in ``sequential``."""


def near_threshold(
    thresholds: Thresholds, alpha: float, count: int, word: str = "component"
) -> str | None:
    """Describe the nearest threshold if it is so close that runs of this size may not converge; otherwise return None.

    The rate at which an overlap grows out of nothing, or falls to it, is ``alpha / alpha_c`` up to a fluctuation of order
    ``1 / sqrt(count)`` from one draw of the data to the next, with ``count = D`` directions for low rank, and n samples for
    extensive rank: within ``|alpha - alpha_c| <= alpha_c / sqrt(count)`` either may happen.

    Parameters
    ----------
    thresholds : Thresholds
    alpha : float
        Sample ratio that was actually used.
    count : int
        Number whose inverse square root sets the fluctuations: D for low rank, n for extensive rank.
    word : str
        Word for a component of the signal.
    """
    named = [
        (f"threshold of {word} {step.component + 1}", step.alpha)
        for step in thresholds.sequential
    ]
    for key, threshold in thresholds.by_name().items():
        # Weak recovery is that of the first of the components.
        if threshold and not (key == "weak_recovery" and thresholds.sequential):
            named.append((NAMES[key], threshold.value))
    distances = [
        (abs(alpha / value - 1), name, value)
        for name, value in named
        if value and math.isfinite(value)
    ]
    distance, name, value = min(distances, default=(math.inf, "", 0.0))
    if distance > 1 / math.sqrt(count):
        return None
    return (
        f"alpha {alpha:.3g} is within 1/sqrt({count}) = {100 / math.sqrt(count):.2g}% of the {name} at {value:.3g}: "
        "increase D"
    )


# -- order of learning ----------------------------------------------------------------------------------------------------


def learning_order(
    trajectories: Sequence[Trajectory | None], bayes: Sequence[float], samples: float
) -> tuple[list[HalfOverlap], LearningOrder]:
    """Determine when each component was learned, and in which order.

    A component counts as learned when its overlap first reaches half of the Bayes-optimal one. Components count from 1.

    Parameters
    ----------
    trajectories : sequence of dict or None
        Of every run: ``iteration``, ``samples`` (NaN where the algorithm does not count them), ``seconds`` (t,) and
        ``overlap`` (t, P).
    bayes : sequence of float
        Bayes-optimal overlap of every layer (P,).
    samples : float
        Samples of one run's data set: an epoch. NaN where runs draw fresh ones.

    Returns
    -------
    layers : list of HalfOverlap
        Medians over all runs, in which those that never get there count as infinity; None stands for infinity, for samples that
        were not counted, and for a layer of which nothing can be learned.
    order : LearningOrder
        Of the layers that can be learned; the factor is the geometric mean over the runs that learned all.
    """
    learnable = [k for k, value in enumerate(bayes) if value > 1e-3]
    shape = len(trajectories), len(learnable), len(FirstTime._fields)
    times = np.zeros(shape)
    for i, trajectory in enumerate(trajectories):
        for j, k in enumerate(learnable):
            reached = None
            if trajectory is not None:
                reached = trajectory["overlap"][:, k] >= 0.5 * bayes[k]
            times[i, j] = first_time(trajectory, reached)
    layers = [HalfOverlap() for _ in bayes]
    for j, k in enumerate(learnable):
        iterations, counted_samples, seconds = map(_median_time, times[:, j].T)
        share = mean_of(np.isfinite(times[:, j, 0]))
        epochs = None
        if counted_samples is not None and not math.isnan(samples):
            epochs = counted_samples / samples
        layers[k] = HalfOverlap(
            0.5 * bayes[k], share, iterations, counted_samples, epochs, seconds
        )
    iterations_of = times[..., 0]
    sequences = Counter(
        tuple(
            learnable[j] + 1
            for j in np.argsort(run, kind="stable")
            if np.isfinite(run[j])
        )
        for run in iterations_of
    )
    counted = [
        LearnedSequence(list(learned), count)
        for learned, count in sequences.most_common()
    ]
    complete = np.all(np.isfinite(iterations_of), axis=1)
    factor = _last_over_first(times[complete])
    return layers, LearningOrder(counted, mean_of(complete.tolist()), factor)


def _last_over_first(times: Host) -> LearningFactor | None:
    """Ratio of the learning times of the last and the first component, in samples where these are counted."""
    is_counted = not np.isnan(times[..., 1]).any()
    spans = times[..., 1 if is_counted else 0]
    spans = spans[(spans > 0).all(axis=1)]
    if not len(spans) or spans.shape[1] < 2:
        return None
    logs = np.log(spans.max(axis=1) / spans.min(axis=1))
    mean, error = float(np.exp(logs.mean())), mean_and_error(logs).sem
    sem = None if error is None else mean * error
    axis = "samples" if is_counted else "iterations"
    return LearningFactor(mean, sem, len(logs), axis)
