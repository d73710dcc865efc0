"""Statistics over the runs of a row: means, distance from theory, time to the optimum, learning order, nearest threshold."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from smimbench.backend.roofline import fraction
from smimbench.files import JsonObject
from smimbench.interfaces import Host
from smimbench.numerics.statistics import ROUNDING, quantile
from smimbench.report.row import (
    Comparison,
    Cost,
    Finding,
    HalfOverlap,
    LearnedSequence,
    LearningFactor,
    LearningOrder,
    Nearness,
    Row,
    StillMoving,
)
from smimbench.run.loop import READINGS, Status
from smimbench.run.record import Record
from smimbench.theory.types import Thresholds

Trajectory = JsonObject

ZERO = 1e-3
"""A Bayes-optimal error below this part of the target counts as 0: no ratio is formed. Doubled, a few more ratios are blank."""

EPSILONS = (0.05, 0.2, 0.5)
"""How near to the Bayes-optimal error a run has to come, relative: the columns of the runtime tables."""


# -- means ----------------------------------------------------------------------------------------------------------------


def values_of(
    records: Sequence[Record], metric: str, component: int
) -> dict[str, float]:
    """Finite values of a metric, component from 0, by instance (root seed and replicate), over the records that have one."""
    found = {}
    for record in records:
        values = record.metrics.get(metric, ())
        value = values[component] if len(values) > component else None
        if value is not None and math.isfinite(value):
            found[instance_of(record)] = float(value)
    return found


def instance_of(record: Record) -> str:
    """Instance of a run: its root seed and replicate."""
    return f"{record.cell['seed']}/{record.cell['replicate']}"


def count_runs(status_counts: Mapping[str, int]) -> int:
    """Runs that were not skipped."""
    return sum(
        count for status, count in status_counts.items() if status != Status.SKIPPED
    )


def failed_runs(row: Row) -> int:
    """Runs of a row that have no value because of how they ended."""
    runs, ended_ok = (
        count_runs(row.runs.status_counts),
        row.runs.status_counts.get(Status.OK, 0),
    )
    return max(0, min(runs - len(row.estimate.values), runs - ended_ok))


def mean_of(values: Iterable[float | None]) -> float | None:
    """Mean of the values that are known; None if there are none."""
    known_values = [value for value in values if value is not None]
    return float(np.mean(known_values)) if known_values else None


class MeanAndError(NamedTuple):
    """A mean and its standard error."""

    mean: float | None
    sem: float | None


@np.errstate(over="ignore")
def mean_and_error(values: Host) -> MeanAndError:
    """Mean of values, and its standard error if there are at least two."""
    n = len(values)
    mean = float(values.mean()) if n else None
    return MeanAndError(
        mean, float(values.std(ddof=1) / math.sqrt(n)) if n > 1 else None
    )


def against_theory(
    estimate: MeanAndError, expected: float | None, error: float | None
) -> Comparison:
    """A mean against theory; ``z`` is their difference in units of both errors together."""
    mean, sem = estimate
    if mean is None or expected is None:
        return Comparison(expected, error, None, None)
    difference, z = mean - expected, None
    if sem is not None:
        scale = math.hypot(sem, error or 0.0)
        z = (
            difference / scale
            if scale > ROUNDING * abs(mean) and expected != 0
            else None
        )
    return Comparison(expected, error, difference, z)


def ratio_to_bayes(
    values: Host, bayes: float | None, target: float, optimum: float | None = None
) -> float | None:
    """Ratio of the mean to the Bayes-optimal error (at this size if known); None where theory says 0."""
    if not len(values) or bayes is None or bayes <= target * ZERO:
        return None
    return float(values.mean() / (optimum or bayes))


def mean_diagnostics(
    records: Sequence[Record], theory: JsonObject
) -> dict[str, list[Finding]]:
    """Further numbers that runs report, one entry for each number, with its theory."""
    reported: dict[str, list[Any]] = {}
    for record in records:
        for name, finding in record.final.items():
            if isinstance(finding, list) and name not in {*READINGS, "spectrum"}:
                reported.setdefault(name, []).append(finding)
    findings: dict[str, list[Finding]] = {}
    for name, lists in sorted(reported.items()):
        expected, findings[name] = theory.get(name) or [], []
        for i in range(max(map(len, lists))):
            values = np.array(
                [own[i] for own in lists if i < len(own) and own[i] is not None],
                dtype=float,
            )
            predicted = expected[i] if i < len(expected) else None
            findings[name].append(
                Finding(*mean_and_error(values), len(values), len(lists), predicted)
            )
    return findings


# -- intervals by Student's t ---------------------------------------------------------------------------------------------


class Change(NamedTuple):
    """A difference of two means, and its standard error, which rests on ``dof`` degrees of freedom."""

    value: float
    error: float
    dof: float

    def half_width(self, level: float) -> float:
        """Half of its confidence interval by Student's t."""
        return quantile((1 + level) / 2, self.dof) * self.error if self.error else 0.0

    @property
    def z(self) -> float:
        """The difference in standard errors."""
        return (
            self.value / self.error
            if self.error
            else math.copysign(math.inf, self.value)
            if self.value
            else 0.0
        )


def shared_instances(
    before: Mapping[Any, float], after: Mapping[Any, float]
) -> list[Any]:
    """Instances on which both have a value, in the order of the first; none unless there are at least two."""
    common = [key for key in before if key in after]
    return common if len(common) > 1 else []


def change_between(
    before: Mapping[Any, float], after: Mapping[Any, float]
) -> Change | None:
    """Change of a mean from values by instance.

    Runs on the same instances (at least two) are compared pair by pair, others by Welch's test. None for a single run.
    """
    if common := shared_instances(before, after):
        paired = mean_and_error(np.array([after[key] - before[key] for key in common]))
        assert paired.mean is not None
        assert paired.sem is not None
        return Change(paired.mean, paired.sem, len(common) - 1.0)
    a, b = (mean_and_error(np.array(list(side.values()))) for side in (before, after))
    if a.mean is None or a.sem is None or b.mean is None or b.sem is None:
        return None
    error = math.hypot(a.sem, b.sem)
    # Welch and Satterthwaite
    spread = a.sem**4 / (len(before) - 1) + b.sem**4 / (len(after) - 1)
    return Change(b.mean - a.mean, error, error**4 / spread if spread > 0 else math.inf)


def mean_change(changes: Sequence[Change]) -> Change:
    """Mean of independent changes, with the degrees of freedom of Welch and Satterthwaite."""
    squares = [change.error**2 for change in changes]
    total, spread = (
        math.fsum(squares),
        math.fsum(s**2 / change.dof for s, change in zip(squares, changes)),
    )
    value = math.fsum(change.value for change in changes) / len(changes)
    return Change(
        value,
        math.sqrt(total) / len(changes),
        total**2 / spread if spread > 0 else math.inf,
    )


# -- time -----------------------------------------------------------------------------------------------------------------


def near_goal(bayes: Any, epsilon: float, target: float) -> Host:
    """Errors (P,) within ``1 + epsilon`` of the Bayes-optimal ones; the target where those are below it."""
    expected = np.atleast_1d(np.asarray(bayes, dtype=float))
    return np.where(expected > target, (1 + epsilon) * expected, target)


AXES = ("iteration", "samples", "seconds")


def first_time(trajectory: Trajectory | None, reached: Host | None) -> list[float]:
    """Iteration, samples and seconds at which a condition first holds along a trajectory; infinity where it never does.

    Samples are NaN where they are not counted.
    """
    if trajectory is None or reached is None or not reached.any():
        return [math.inf] * len(AXES)
    first = int(np.argmax(reached))
    counted = trajectory.get("samples")
    # Nothing has been processed before the first step, so its count of samples is missing, not unknown.
    samples = (
        math.nan if counted is None else 0.0 if first == 0 else float(counted[first])
    )
    return [
        float(trajectory["iteration"][first]),
        samples,
        float(trajectory["seconds"][first]),
    ]


def time_near(trajectory: Trajectory | None, goal: Host) -> dict[str, float]:
    """Time at which the errors of all components were first within their goals."""
    known = trajectory is not None and {"mse", "iteration", "seconds"} <= set(
        trajectory
    )
    reached = (trajectory["mse"] <= goal).all(axis=1) if known and trajectory else None
    return dict(zip(AXES, first_time(trajectory, reached)))


def runtime(
    records: Sequence[Record],
    trajectories: Sequence[Trajectory | None],
    goals: Sequence[Host] | None,
    target: float,
) -> Cost:
    """Times, iterations and memory for the runtime tables; ``trajectories`` are None for lost runs, ``goals`` are optimal
    errors (P,) per run.
    """
    timings = [r.timing for r in records if r.timing.seconds is not None]
    near: dict[Any, Nearness] = {}
    for epsilon in EPSILONS:
        if goals is None:
            near[f"{epsilon:g}"] = Nearness(None, None, None)
            continue
        hits = [
            time_near(t, near_goal(goal, epsilon, target))
            for t, goal in zip(trajectories, goals)
        ]
        # An attempt that was given up counts in the time to get there.
        times = [
            hit["seconds"] + r.timing.lost_seconds for hit, r in zip(hits, records)
        ]
        near[f"{epsilon:g}"] = Nearness(
            _median_time(times),
            _median_time([hit["iteration"] for hit in hits]),
            mean_of([math.isfinite(time) for time in times]),
        )
    ceiling_fraction, ceiling = efficiency(records)
    return Cost(
        seconds=mean_of([(t.seconds or 0.0) + t.lost_seconds for t in timings]),
        cpu_seconds=mean_of(
            [t.cpu_seconds for t in timings if t.cpu_seconds is not None]
        ),
        iterations=mean_of([r.iterations for r in records if r.iterations is not None]),
        first_iteration=mean_of(
            [t.first_iteration for t in timings if t.first_iteration]
        ),
        per_iteration=mean_of([t.per_iteration for t in timings if t.per_iteration]),
        peak_memory=max(
            (t.peak_memory for t in timings if t.peak_memory), default=None
        ),
        ceiling_fraction=ceiling_fraction,
        ceiling=ceiling,
        device_seconds=mean_of([t.device_seconds for t in timings if t.device_seconds]),
        trusted=bool(timings) and all(t.trusted for t in timings),
        machines=sorted({t.machine for t in timings}),
        near=near,
    )


def clock_remarks(records: Sequence[Record]) -> list[str]:
    """At most one line: how the trusted times of a row and its CPU time disagree."""
    timings = [record.timing for record in records if record.timing.trusted]
    if not timings or any(timing.device_seconds for timing in timings):
        return []
    clock = np.mean([timing.seconds or 0.0 for timing in timings])
    cpu = np.mean([timing.cpu_seconds or 0.0 for timing in timings])
    total = np.mean([timing.total_seconds for timing in timings])
    others = (timings[0].threads or 1) - 1
    # BLAS threads may work for the engine while the clock stands still.
    if cpu > 1.1 * (clock + others * total) + 0.02:
        reason = "threads worked while it stood still"
    elif cpu < 0.5 * clock - 0.02:
        reason = "the algorithm waited, or the machine was busy"
    else:
        return []
    return [f"the clock shows {clock:.3g} s per run, CPU time is {cpu:.3g} s: {reason}"]


def _median_time(values: Sequence[float] | Host) -> float | None:
    """Median time, with runs that never reach the goal counted as infinite; None if infinite or unknown."""
    middle = float(np.median(values)) if len(values) else math.inf
    return middle if math.isfinite(middle) else None


def efficiency(records: Sequence[Record]) -> tuple[float | None, str | None]:
    """Mean fraction of the ceiling that bounds an iteration, and which ceiling that is; None where it is not known."""
    shares = []
    for record in records:
        timing, cell = record.timing, record.cell
        if timing.per_iteration and timing.cost and timing.ceilings:
            share = fraction(
                timing.per_iteration,
                asdict(timing.cost),
                timing.ceilings,
                str(cell.get("dtype", "float64")),
                tf32=bool(cell.get("tf32", False)),
            )
            shares += [share] if share else []
    return mean_of([share.value for share in shares]), shares[
        0
    ].bound if shares else None


# -- the end of a run -----------------------------------------------------------------------------------------------------

PART = 0.15
"""Share of the steps whose mean error is compared with that of the share before. Doubled, older progress counts as movement."""


def still_moving(
    records: Sequence[Record], trajectories: Sequence[Trajectory | None], target: float
) -> StillMoving | None:
    """Runs of one row whose error was still changing; None if fewer than three in four were.

    Only runs that ended because their steps were over can: the others were ended by a rule. A run moves where the mean error of
    its last ``PART`` differs from that of the part before by 5% and by 4 standard errors of the
    noise within them, and the part before those in the same direction; errors below ``target`` count as 0.
    """
    changes = [
        found
        for record, trajectory in zip(records, trajectories)
        if record.status == Status.OK
        and record.reason.startswith("all ")
        and trajectory is not None
        if (found := _late_change(trajectory, target)) is not None
    ]
    moved = max(
        ([one for one in changes if sign * one[0] > 0] for sign in (1, -1)), key=len
    )
    if not moved or 4 * len(moved) < 3 * len(changes):
        return None
    change, lowest = (float(np.median(values)) for values in zip(*moved))
    return StillMoving(len(moved), change, lowest)


def _late_change(trajectory: Trajectory, target: float) -> tuple[float, float] | None:
    """Relative change of the error at the end of a run, 0 where it is noise, and its lowest error over the last one."""
    if "mse" not in trajectory:
        return None
    at, error = (
        np.asarray(trajectory["iteration"]),
        np.asarray(trajectory["mse"], dtype=float).sum(axis=1),
    )
    last = at[-1]
    parts = [
        error[(at > (1 - (i + 1) * PART) * last) & (at <= (1 - i * PART) * last)]
        for i in (2, 1, 0)
    ]
    if min(map(len, parts)) < 4 or not np.isfinite(error).all():
        return None
    first, before, after = (float(part.mean()) for part in parts)
    if max(before, after) <= target:
        return 0.0, 1.0
    noise = math.hypot(*(_noise(part) for part in parts[1:]))
    change = after / before - 1 if before > 0 else math.inf
    # Swings about a floor turn; three parts in one direction are rarely chance.
    moves = (
        (after - before) * (before - first) > 0
        and abs(change) > 0.05
        and abs(after - before) > 4 * noise
    )
    return (change if moves else 0.0), float(error.min() / error[-1]) if error[
        -1
    ] > 0 else 1.0


def _noise(part: Host) -> float:
    """Standard error of the mean of a part of a course about its straight line.

    By means of its quarters: neighbors in time are alike, and count as few points, not as all that were measured.
    """
    steps = np.arange(len(part))
    about = part - np.polyval(np.polyfit(steps, part, 1), steps)
    means = np.array([quarter.mean() for quarter in np.array_split(about, 4)])
    return float(max(means.std(ddof=1), about.std(ddof=1) / math.sqrt(len(part))) / 2)


NAMES = {
    "weak_recovery": "weak-recovery threshold",
    "perfect_recovery": "perfect-recovery threshold",
    "algorithmic": "algorithmic threshold",
    "spinodal": "spinodal",
    "information_theoretic": "information-theoretic threshold",
}
"""Thresholds of a problem by their key, in words; those of components are under ``sequential``."""


def near_threshold(
    thresholds: Thresholds, alpha: float, count: int, word: str = "component"
) -> str | None:
    """The nearest threshold, if it is so close that a run of this size may fail to converge; otherwise None.

    The rate at which an overlap grows out of nothing, or falls to it, is ``alpha / alpha_c`` up to a fluctuation of order
    ``1 / sqrt(count)`` from one draw of the data to the next, with ``count = D`` directions for low rank, and n samples for
    extensive rank: within ``|alpha - alpha_c| <= alpha_c / sqrt(count)`` either may happen.

    Parameters
    ----------
    thresholds : Thresholds
    alpha : float
        Sample ratio that was really used.
    count : int
        What fluctuates so: D for low rank, n for extensive rank.
    word : str
        What a component is called.
    """
    known = [
        (f"threshold of {word} {step.component + 1}", step.alpha)
        for step in thresholds.sequential
    ]
    for key, threshold in thresholds.by_name().items():
        # Weak recovery is that of the first of the components.
        if threshold and not (key == "weak_recovery" and thresholds.sequential):
            known.append((NAMES[key], threshold.value))
    distances = [
        (abs(alpha / value - 1), name, value)
        for name, value in known
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
    """When each layer was learned, and in what order.

    A layer counts as learned when its overlap first reaches half of the Bayes-optimal one. Layers count from 1.

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
    wanted = [k for k, value in enumerate(bayes) if value > 1e-3]
    # (runs, layers that can be learned, axes)
    times = np.array([
        [first_time(t, None if t is None else t["overlap"][:, k] >= 0.5 * bayes[k]) for k in wanted] for t in trajectories
    ]).reshape(len(trajectories), len(wanted), len(AXES))  # fmt: skip
    layers = [HalfOverlap() for _ in bayes]
    for k, hits in zip(wanted, times.transpose(1, 2, 0)):
        iterations, seen, seconds = map(_median_time, hits)
        share, epochs = (
            mean_of(np.isfinite(hits[0])),
            None if seen is None or math.isnan(samples) else seen / samples,
        )
        layers[k] = HalfOverlap(
            0.5 * bayes[k], share, iterations, seen, epochs, seconds
        )
    first = times[..., 0]
    ranked = [
        sorted((at, wanted[i] + 1) for i, at in enumerate(run) if math.isfinite(at))
        for run in first
    ]
    sequences = Counter(tuple(layer for _, layer in run) for run in ranked)
    complete = np.isfinite(first).all(axis=1)
    counted = [
        LearnedSequence(list(learned), count)
        for learned, count in sequences.most_common()
    ]
    return layers, LearningOrder(
        counted, mean_of(complete), _last_over_first(times[complete])
    )


def _last_over_first(times: Host) -> LearningFactor | None:
    counted = not np.isnan(times[..., 1]).any()
    spans = times[..., 1 if counted else 0]
    spans = spans[(spans > 0).all(axis=1)] if spans.shape[1] > 1 else spans[:0]
    if not len(spans):
        return None
    logs = np.log(spans.max(axis=1) / spans.min(axis=1))
    mean, error = float(np.exp(logs.mean())), mean_and_error(logs).sem
    sem = None if error is None else mean * error
    return LearningFactor(mean, sem, len(logs), "samples" if counted else "iterations")
