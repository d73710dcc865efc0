"""The one loop that every algorithm runs in; it knows no mathematics.

It owns the clock (paused while metrics are computed), the time limit, divergence, the trajectory and the one automatic
restart.

How a run ends
--------------
* ``diverged``: the residual or an order parameter is not a finite number, or the estimate grew far beyond the signal.
* ``ok``: the stopping rule ended it and trusts the end (``smimbench.derive.stopping``, unless the algorithm brings its own),
  or the algorithm made all the steps that it planned.
* ``not-converged``: the largest number of iterations was reached first, or the stopping rule does not trust the end. Unless
  the rule says that the run had settled (``settled``): it is then ``ok``, and how far the metrics went about in its last
  ``SPREAD`` iterations is recorded as ``mse_spread`` and so on.
* ``timeout``: the time limit was reached first.

A run that ends ``diverged`` or ``not-converged`` is started once more, with another stream of random numbers, if the
algorithm offers a version of itself for that (``restarted``); the record says so.
"""

from __future__ import annotations

import enum
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from smimbench.derive.stopping import rule_of
from smimbench.files import error_line, printable
from smimbench.interfaces import member, offers
from smimbench.registry.adapters import plan_of
from smimbench.run import heartbeat
from smimbench.run.readings import Readings

if TYPE_CHECKING:
    from collections.abc import Callable

    from smimbench.backend.device import Backend
    from smimbench.interfaces import Array, Data, Info
    from smimbench.problem.instance import Instance
    from smimbench.problem.problem import Problem

__all__ = ["LoopResult", "LoopSettings", "Status", "run_algorithm"]

SPREAD = 40
"""Iterations over which the fluctuation of a run that never comes to rest is taken. Doubled: slow swings count in full."""

T = TypeVar("T")


class Status(enum.Enum):
    """How a cell ended, with a line for humans."""

    OK = "ok"
    NOT_CONVERGED = "not-converged"
    DIVERGED = "diverged"
    TIMEOUT = "timeout"
    FAILED = "failed"
    SKIPPED = "skipped"

    @property
    def message(self) -> str:
        """What it means."""
        return {
            Status.OK: "ended as it should",
            Status.NOT_CONVERGED: "no trustworthy fixed point within the allowed iterations",
            Status.DIVERGED: "numbers grew beyond bounds",
            Status.TIMEOUT: "the time limit came first",
            Status.FAILED: "an error was raised",
            Status.SKIPPED: "not run",
        }[self]


@dataclass(frozen=True)
class LoopSettings:
    """Stopping rule.

    Attributes
    ----------
    tolerance : float
        For the undamped residual.
    max_iterations : int
        For algorithms without a number of steps of their own.
    timeout : float or None
        Seconds on the algorithm's clock, metrics not counted.
    head_start : float
        Seconds that the start handed in has cost; the clock begins with them.
    """

    tolerance: float = 1e-4
    max_iterations: int = 300
    timeout: float | None = None
    head_start: float = 0.0


@dataclass
class Attempt:
    """One pass of the loop."""

    status: Status
    reason: str
    metrics: dict[str, list[float]]
    iterations: int
    seconds: float
    cpu_seconds: float
    iteration_seconds: list[float]
    device_seconds: float | None
    trajectory: dict[str, list[Any]]
    final: dict[str, Any]
    warnings: list[str] = field(default_factory=list)
    estimate: Array | None = None
    V: Array | None = None
    broken_claim: bool = False
    start: dict[str, Any] = field(default_factory=dict)
    blank: dict[str, str] = field(default_factory=dict)


@dataclass
class LoopResult:
    """The attempt that counts, and how often the algorithm had to start anew."""

    attempt: Attempt
    restarts: int
    restart_reason: str | None
    lost_seconds: float


def run_algorithm(
    problem: Problem,
    instance: Instance,
    data: Data,
    algorithm: Any,
    make_rng: Callable[[int], np.random.Generator],
    settings: LoopSettings,
    backend: Backend,
) -> LoopResult:
    """Run an algorithm on an instance until the stopping rule ends it.

    Parameters
    ----------
    make_rng : callable
        Gives the generator of attempt 0, 1, ...: every start has a stream of its own.
    """
    attempt = _attempt(problem, instance, data, algorithm, make_rng(0), settings, backend)
    if attempt.status in (Status.DIVERGED, Status.NOT_CONVERGED):
        cautious = algorithm.restarted(problem) if offers(algorithm, "restarted") else None
        if cautious is not None:
            second = _attempt(problem, instance, data, cautious, make_rng(1), settings, backend)
            second.warnings = attempt.warnings + [w for w in second.warnings if w not in attempt.warnings]
            return LoopResult(second, 1, f"{attempt.status.value}: {attempt.reason}", attempt.seconds)
    return LoopResult(attempt, 0, None, 0.0)


@dataclass
class _Clock:
    """Time that the algorithm takes: on the wall, of the processor, on the device (None where it cannot be told)."""

    backend: Backend
    seconds: float
    cpu_seconds: float = 0.0
    device_seconds: float | None = 0.0
    durations: list[float] = field(default_factory=list)

    def time(self, work: Callable[[], T]) -> T:
        """What ``work`` returns; the clock runs meanwhile."""
        cpu = time.process_time()
        stop = self.backend.stopwatch()
        with heartbeat.running(self.seconds):
            found = work()
        duration, on_device = stop()
        self.cpu_seconds += time.process_time() - cpu
        before = self.device_seconds
        self.device_seconds = None if before is None or on_device is None else before + on_device
        self.seconds += duration
        self.durations.append(duration)
        return found


@dataclass
class _Course:
    """The measured points of a run: errors of the estimate, each at its iteration and its second."""

    instance: Instance
    algorithm: Any
    metrics: dict[str, list[float]] = field(default_factory=dict)
    trajectory: dict[str, list[Any]] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)

    def record(self, state: Any, iteration: int, seconds: float, info: Info) -> None:
        samples, damping = (math.nan if x is None else float(x) for x in (info.samples, info.damping))
        if info.damping is not None:  # the start was not damped
            self.trajectory.setdefault("damping", [math.nan] * len(self.trajectory["iteration"]))
        self.metrics = values = self.instance.metrics(self.algorithm.estimate(state), self.broken)
        for name in self.broken:  # a metric that raised once has no trajectory
            self.trajectory.pop(name, None)
        entries = {"iteration": iteration, "seconds": seconds, **values, "residual": info.residual, "samples": samples}
        if "damping" in self.trajectory:
            entries["damping"] = damping
        for name, entry in entries.items():
            self.trajectory.setdefault(name, []).append(entry)

    def spread(self) -> dict[str, list[float]]:
        """Standard deviation of every metric, per component, over the measured ones of the last ``SPREAD`` iterations."""
        iterations = self.trajectory["iteration"]
        count = sum(iteration > iterations[-1] - SPREAD for iteration in iterations)
        return {f"{name}_spread": np.std(self.trajectory[name][-count:], axis=0).tolist() for name in self.metrics}

    @property
    def finite(self) -> bool:
        return all(math.isfinite(v) for values in self.metrics.values() for v in values)


def _attempt(
    problem: Problem,
    instance: Instance,
    data: Data,
    algorithm: Any,
    rng: np.random.Generator,
    settings: LoopSettings,
    backend: Backend,
) -> Attempt:
    steps = plan_of(algorithm, data).steps
    last = steps if steps is not None else settings.max_iterations
    readings = Readings(problem)
    rule = rule_of(algorithm, problem, instance.dimension)
    course = _Course(instance, algorithm)
    clock = _Clock(backend, settings.head_start)
    warnings: list[str] = []
    status, reason = Status.NOT_CONVERGED, f"{last} iterations reached"
    iteration, broken = 0, False
    spread: dict[str, list[float]] = {}

    def step() -> tuple[Any, Info]:
        new, info = algorithm.step(problem, data, state)
        return new, readings.read(info)  # the one transfer of an iteration

    state = clock.time(lambda: algorithm.init(problem, data, rng))
    course.record(state, iteration, clock.seconds, readings.latest)
    overlaps = instance.overlaps(algorithm.estimate(state))
    while iteration < last:
        state, info = clock.time(step)
        iteration += 1
        if info.warning is not None and (said := printable(info.warning, 2000)) not in ("", *warnings):
            warnings.append(said)
        if readings.divergence:
            status, reason = Status.DIVERGED, f"{readings.divergence} at iteration {iteration}"
            break
        rule.watch(info)
        # An algorithm with a schedule of its own is given all of it: stopping it early would change the recipe.
        ending = rule.ending(settings.tolerance) if steps is None else None
        finished = steps is not None and iteration == steps
        late = settings.timeout is not None and clock.seconds > settings.timeout
        if ending or finished or late or _is_logged(iteration, last):
            course.record(state, iteration, clock.seconds, info)
        if ending or finished:
            complaint = rule.complaint()
            if complaint:
                status, reason, broken = Status.NOT_CONVERGED, complaint, True
            else:
                status, reason = Status.OK, ending or f"all {steps} steps made"
            break
        if late:
            status, reason = Status.TIMEOUT, f"{settings.timeout:g} s reached after {iteration} iterations"
            break
    if course.trajectory["iteration"][-1] != iteration and not readings.divergence:
        course.record(state, iteration, clock.seconds, readings.latest)
    if not course.finite:
        status, reason = Status.DIVERGED, "the estimate is not made of finite numbers"
    if status is Status.NOT_CONVERGED and not broken:
        complaint = rule.complaint()
        if complaint:
            reason, broken = f"{reason}; {complaint}", True
        elif steps is None and (settled := member(rule, "settled", lambda: None)()):
            status, reason = Status.OK, f"{settled}, after {last} iterations"
            spread = course.spread()
    found, remarks = _findings(algorithm, state)
    return Attempt(
        status=status,
        reason=reason,
        metrics=course.metrics,
        iterations=iteration,
        seconds=clock.seconds,
        cpu_seconds=clock.cpu_seconds,
        iteration_seconds=clock.durations[1:],
        device_seconds=clock.device_seconds,
        trajectory=course.trajectory,
        final={**readings.final(), **spread, **found},
        warnings=warnings + readings.warnings() + remarks,
        estimate=algorithm.estimate(state),
        V=algorithm.variance(state) if offers(algorithm, "variance") else None,
        broken_claim=broken,
        start={name: matrix.tolist() for name, matrix in overlaps._asdict().items()},
        blank=course.broken,
    )


def _findings(algorithm: Any, state: Any) -> tuple[dict[str, list[float | None]], list[str]]:
    """What an algorithm found beside its estimate, and what of it cannot be kept: a plugin may hand in anything."""
    if not offers(algorithm, "findings"):
        return {}, []
    try:
        given = dict(algorithm.findings(state))
    except Exception as error:  # a plugin's remark that fails must not cost the run that it remarks on
        return {}, [f"its findings cannot be had: {error_line(error)}"]
    kept: dict[str, list[float | None]] = {}
    remarks = []
    for name, values in given.items():
        try:
            kept[printable(name)] = [None if value is None else float(value) for value in values]
        except Exception:
            remarks.append(f"its finding {printable(name, 100)!r} is not kept: it must be a list of numbers")
    return kept, remarks


def _is_logged(iteration: int, last: int) -> bool:
    """All iterations of a short run, then about fifty for each doubling: enough to time any target to 2%."""
    if last <= 200 or iteration <= 50:
        return True
    stride: int = 2 ** max(0, int(math.log2(iteration / 50)))
    return iteration % stride == 0
