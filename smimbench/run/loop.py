"""The one loop that every algorithm runs in: steps, time limit, divergence, restart, stop and status; no mathematics.

Its clock (``smimbench.run.clock``) is paused while metrics are computed.

How a run ends
--------------
* ``diverged``: the residual or an order parameter is not a finite number, or the estimate grew far beyond the signal.
* ``ok``: the stopping rule ended it and trusts the end (``smimbench.derive.stopping``, unless the algorithm brings its own),
  or the algorithm made all the steps that it planned.
* ``not-converged``: the largest number of iterations was reached first, or the stopping rule does not trust the end. Unless
  the rule says that the run had settled (``settled``): it is then ``ok``, and how far the metrics went about in its last
  40 iterations is recorded as ``mse_spread`` and so on.
* ``timeout``: the time limit was reached first.

A run that ends ``diverged`` or ``not-converged`` is started once more, with another stream of random numbers, if the
algorithm offers a version of itself for that (``retry``); the record says so. Or it offers a version that goes on where the first
stopped, for as many iterations again.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.derive.stopping import OverlapRule
from smimbench.files import error_line, printable
from smimbench.run.clock import Clock, Passed, iterations_made, timed
from smimbench.run.readings import Readings, Trajectory

if TYPE_CHECKING:
    from collections.abc import Callable

    from smimbench.backend.device import Backend
    from smimbench.interfaces import Array, Data, Info
    from smimbench.problem.instance import Instance
    from smimbench.problem.problem import Problem

__all__ = ["LoopResult", "LoopSettings", "Run", "Status", "run_algorithm"]


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
    resumed: str | None = None


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
    first = Run(problem, instance, data, algorithm, make_rng(0), settings, backend).drive()
    version = None
    if not first.resumed and first.status in (Status.DIVERGED, Status.NOT_CONVERGED):
        version = algorithm.retry(problem, first.status.value)
    if version is None:  # a run that was resumed had its second chance, and lost no time
        return LoopResult(first, int(first.resumed is not None), first.resumed, 0.0)
    second = Run(problem, instance, data, version, make_rng(1), settings, backend).drive()
    second.warnings = first.warnings + [w for w in second.warnings if w not in first.warnings]
    return LoopResult(second, 1, f"{first.status.value}: {first.reason}", first.seconds)


class Run:
    """One pass of the loop, between two steps: what is known of it, whether it goes on, and how it ended.

    Attributes
    ----------
    state : object
        What the algorithm iterates.
    over : bool
        Whether it has ended.
    resumed : str or None
        Why it goes on, or went on, as another version of the algorithm.
    """

    def __init__(
        self,
        problem: Problem,
        instance: Instance,
        data: Data,
        algorithm: Any,
        rng: np.random.Generator,
        settings: LoopSettings,
        backend: Backend,
    ) -> None:
        self.problem, self.data, self.algorithm = problem, data, algorithm
        self.settings, self.backend = settings, backend
        plan = algorithm.plan(data)
        self.steps = plan.steps
        self.last = self.steps if self.steps is not None else settings.max_iterations
        self.readings = Readings(problem)
        self.rule = (plan.stopping_rule or OverlapRule)(problem, instance.dimension)
        self.course = Trajectory(instance)
        self.clock = Clock(settings.head_start)
        self.warnings: list[str] = []
        self.status, self.reason = Status.NOT_CONVERGED, f"{self.last} iterations reached"
        self.iteration, self._broken = 0, False
        iterations_made(0)
        self.resumed: str | None = None
        self.state, passed = timed(lambda: algorithm.init(problem, data, rng), backend, self.clock.seconds)
        self.clock.add(passed)
        estimate = algorithm.estimate(self.state)
        self.course.record(estimate, 0, self.clock.seconds, self.readings.latest)
        self.start = instance.overlaps(estimate)
        self.over = self.last <= 0

    def drive(self) -> Attempt:
        """Step until it has ended."""

        def step() -> tuple[Any, Info]:
            new, info = self.algorithm.step(self.problem, self.data, self.state)
            return new, self.readings.read(info)  # the one transfer of an iteration

        while not self.over:
            (self.state, info), passed = timed(step, self.backend, self.clock.seconds)
            self.take(info, passed, lambda: self.algorithm.estimate(self.state))
        return self.result()

    def take(self, info: Info, passed: Passed, estimate: Callable[[], Array]) -> None:
        """A step has been made: what it reported (on the host), the time it took, and its estimate where it is measured."""
        self.clock.add(passed)
        self.iteration += 1
        iterations_made(self.iteration)
        settings, iteration, steps = self.settings, self.iteration, self.steps
        if info.warning is not None and (said := printable(info.warning, 2000)) not in ("", *self.warnings):
            self.warnings.append(said)
        self.over = iteration >= self.last
        if self.readings.divergence:
            self._end(Status.DIVERGED, f"{self.readings.divergence} at iteration {iteration}")
            return
        self.rule.watch(info)
        # An algorithm with a schedule of its own is given all of it: stopping it early would change the recipe.
        ending = self.rule.ending(settings.tolerance) if steps is None else None
        finished = steps is not None and iteration == steps
        late = settings.timeout is not None and self.clock.seconds > settings.timeout
        if ending or finished or late or self.over or _is_logged(iteration, self.last):
            self.course.record(estimate(), iteration, self.clock.seconds, info)
        if ending or finished:
            complaint = self.rule.complaint()
            self._broken = bool(complaint)
            if complaint:
                self._end(Status.NOT_CONVERGED, complaint)
            else:
                self._end(Status.OK, ending or f"all {steps} steps made")
        elif late:
            self._end(Status.TIMEOUT, f"{settings.timeout:g} s reached after {iteration} iterations")
        elif self.over and self.steps is None and self._settled() is None:
            self._resume()

    def _settled(self) -> str | None:
        """Why it may count though nothing ended it, or None."""
        settled: str | None = None if self.rule.complaint() else self.rule.settled()
        return settled

    def _resume(self) -> None:
        """Go on for as many iterations again where the algorithm has a version for that, once."""
        if self.resumed is not None:
            return
        version = self.algorithm.retry(self.problem, "unsettled")
        if version is not None:
            self.algorithm, self.over = version, False
            self.resumed = f"{self.status.value}: {self.reason}, then resumed"
            self.last += self.settings.max_iterations
            self.reason = f"{self.last} iterations reached"

    def _end(self, status: Status, reason: str) -> None:
        self.status, self.reason, self.over = status, reason, True

    def result(self) -> Attempt:
        """How it ended."""
        rule, course, algorithm = self.rule, self.course, self.algorithm
        spread: dict[str, list[float]] = {}
        if not course.finite:
            self.status, self.reason = Status.DIVERGED, "the estimate is not made of finite numbers"
        if self.status is Status.NOT_CONVERGED and not self._broken:
            complaint = rule.complaint()
            if complaint:
                self.reason, self._broken = f"{self.reason}; {complaint}", True
            elif self.steps is None and (settled := self._settled()):
                self.status, self.reason = Status.OK, f"{settled}, after {self.last} iterations"
                spread = course.spread()
        found, remarks = _findings(algorithm, self.state)
        return Attempt(
            status=self.status,
            reason=self.reason,
            metrics=course.metrics,
            iterations=self.iteration,
            seconds=self.clock.seconds,
            cpu_seconds=self.clock.cpu_seconds,
            iteration_seconds=self.clock.durations[1:],
            device_seconds=self.clock.device_seconds,
            trajectory=course.trajectory,
            final={**self.readings.final(), **spread, **found},
            warnings=self.warnings + self.readings.warnings() + remarks,
            estimate=algorithm.estimate(self.state),
            V=algorithm.variance(self.state) if algorithm.variance is not None else None,
            broken_claim=self._broken,
            start={name: matrix.tolist() for name, matrix in self.start._asdict().items()},
            blank=course.broken,
            resumed=self.resumed,
        )


def _findings(algorithm: Any, state: Any) -> tuple[dict[str, list[float | None]], list[str]]:
    """What an algorithm found besides its estimate, and what of it cannot be kept: a plugin may hand in anything."""
    try:
        given = dict(algorithm.findings(state))
    except Exception as error:  # a plugin's remark that fails must not cost the run that it remarks on
        return {}, [f"its findings cannot be had: {error_line(error)}"]
    kept: dict[str, list[float | None]] = {}
    remarks = []
    for name, values in given.items():
        try:
            kept[printable(name)] = [None if value is None else float(value) for value in values]
        except (TypeError, ValueError, OverflowError):
            remarks.append(f"its finding {printable(name, 100)!r} is not kept: it must be a list of numbers")
    return kept, remarks


def _is_logged(iteration: int, last: int) -> bool:
    """All iterations of a short run, then about fifty for each doubling: enough to time any target to 2%."""
    if last <= 200 or iteration <= 50:
        return True
    stride: int = 2 ** max(0, int(math.log2(iteration / 50)))
    return iteration % stride == 0
