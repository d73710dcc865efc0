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
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from smimbench.derive.stopping import OverlapRule
from smimbench.files import printable
from smimbench.run.clock import Clock, iterations_made
from smimbench.run.readings import Readings, Trajectory

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from smimbench.backend.device import Backend
    from smimbench.files import JsonObject
    from smimbench.interfaces import Array, Data, Info
    from smimbench.problem.instance import Instance
    from smimbench.problem.problem import Problem

__all__ = ["LoopResult", "LoopSettings", "Status", "run_algorithm"]


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
class LoopResult:
    """How a run ended, and what it found.

    Attributes
    ----------
    metrics, blank : dict
        Of the last estimate, by name; metrics that raised, and what.
    start, final : dict
        Overlaps of the first estimate; what the last step reported, and findings.
    V : ndarray or None
        Error that the algorithm claims.
    broken_claim : bool
        Whether the stopping rule does not trust the end.
    restarts : int
        1 if the algorithm was started anew or resumed, for ``restart_reason``; ``lost_seconds`` went into the first start.
    """

    status: Status
    reason: str
    metrics: dict[str, list[float]]
    iterations: int
    clock: Clock
    trajectory: dict[str, list[Any]]
    final: JsonObject
    warnings: list[str]
    estimate: Array
    V: Array | None
    broken_claim: bool
    start: JsonObject
    blank: dict[str, str]
    restarts: int = 0
    restart_reason: str | None = None
    lost_seconds: float = 0.0


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
    first = _Run(problem, instance, data, algorithm, make_rng(0), settings, backend).drive()
    version = None
    if not first.restarts and first.status in (Status.DIVERGED, Status.NOT_CONVERGED):
        version = algorithm.retry(problem, first.status.value)
    if version is None:
        return first
    second = _Run(problem, instance, data, version, make_rng(1), settings, backend).drive()
    warnings = list(dict.fromkeys(first.warnings + second.warnings))
    reason, lost = f"{first.status.value}: {first.reason}", first.clock.seconds
    return replace(second, warnings=warnings, restarts=1, restart_reason=reason, lost_seconds=lost)


class _Run:
    """One pass of the loop: what is known of it, whether it goes on, and how it ended."""

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
        self.iteration, self.broken_claim = 0, False
        self.resumed: str | None = None
        iterations_made(0)
        self.state = self.clock.time(lambda: algorithm.init(problem, data, rng), backend)
        estimate = algorithm.estimate(self.state)
        self.course.record(estimate, 0, self.clock.seconds, self.readings.latest)
        self.start = instance.overlaps(estimate)
        self.over = self.last <= 0

    def drive(self) -> LoopResult:
        """Step until it has ended."""
        while not self.over:
            info = self.clock.time(self._step, self.backend)
            self.iteration += 1
            iterations_made(self.iteration)
            self._take(info)
        return self._result()

    def _step(self) -> Info:
        self.state, info = self.algorithm.step(self.problem, self.data, self.state)
        return self.readings.read(info)  # the one transfer of an iteration

    def _take(self, info: Info) -> None:
        """A step was made and reported this: measure it, and see whether it was the last."""
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
        if steps is not None and self.over:
            ending = f"all {steps} steps made"
        late = settings.timeout is not None and self.clock.seconds > settings.timeout
        if ending or late or self.over or _is_logged(iteration, self.last):
            self.course.record(self.algorithm.estimate(self.state), iteration, self.clock.seconds, info)
        if ending:
            complaint = self.rule.complaint()
            self.broken_claim = bool(complaint)
            self._end(Status.NOT_CONVERGED if complaint else Status.OK, complaint or ending)
        elif late:
            self._end(Status.TIMEOUT, f"{settings.timeout:g} s reached after {iteration} iterations")
        elif self.over and self.resumed is None and (self.rule.complaint() or not self.rule.settled()):
            self._resume()

    def _resume(self) -> None:
        """Go on for as many iterations again where the algorithm has a version for that."""
        version = self.algorithm.retry(self.problem, "unsettled")
        if version is not None:
            self.algorithm, self.over = version, False
            self.resumed = f"{self.status.value}: {self.reason}, then resumed"
            self.last += self.settings.max_iterations
            self.reason = f"{self.last} iterations reached"

    def _end(self, status: Status, reason: str) -> None:
        self.status, self.reason, self.over = status, reason, True

    def _result(self) -> LoopResult:
        course, algorithm = self.course, self.algorithm
        spread: dict[str, list[float]] = {}
        if not course.finite:
            self.status, self.reason = Status.DIVERGED, "the estimate is not made of finite numbers"
        if self.status is Status.NOT_CONVERGED and not self.broken_claim:
            if complaint := self.rule.complaint():
                self.reason, self.broken_claim = f"{self.reason}; {complaint}", True
            elif self.steps is None and (settled := self.rule.settled()):
                self.status, self.reason = Status.OK, f"{settled}, after {self.last} iterations"
                spread = course.spread()
        found, remarks = _findings(algorithm.findings(self.state))
        return LoopResult(
            status=self.status,
            reason=self.reason,
            metrics=course.metrics,
            iterations=self.iteration,
            clock=self.clock,
            trajectory=course.trajectory,
            final={**self.readings.final(), **spread, **found},
            warnings=self.warnings + self.readings.warnings() + remarks,
            estimate=algorithm.estimate(self.state),
            V=algorithm.variance(self.state) if algorithm.variance is not None else None,
            broken_claim=self.broken_claim,
            start={name: matrix.tolist() for name, matrix in self.start._asdict().items()},
            blank=course.broken,
            restarts=int(self.resumed is not None),  # what was resumed had its second chance, and lost no time
            restart_reason=self.resumed,
        )


def _findings(given: JsonObject) -> tuple[dict[str, list[float | None]], list[str]]:
    """What an algorithm found besides its estimate, and what of it cannot be kept: a plugin may hand in anything."""
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
