"""The loop that runs every algorithm: steps, time limit, divergence, restart, stop and status.

Its clock counts time on the wall and on the device while code of the algorithm runs (``plan``, ``init``, ``step``, ``estimate``,
``variance``, ``retry``), and stands still while the engine measures. CPU time is that of all threads, whenever they work. By its
heartbeat a supervisor sees from outside how long a call lasts, though it never returns.

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

import contextlib
import enum
import math
import mmap
import struct
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from smimbench.backend.arrays import matching, namespace, read_together
from smimbench.derive.stopping import OverlapRule
from smimbench.files import attempt, error_line, printable
from smimbench.interfaces import Info
from smimbench.interfaces.problem import placeholder_data

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from smimbench.backend.device import Backend
    from smimbench.interfaces import Algorithm, Array, Data, Host, Plan
    from smimbench.problem.instance import Instance, MetricValues
    from smimbench.problem.problem import Problem
    from smimbench.suite.schema import RunOptions

T = TypeVar("T")

READINGS = (
    "predicted_overlap",
    "self_overlap",
    "squared_step",
    "log_information_ratio",
    "integration_error",
)
"""Entries of ``Info`` that are arrays, besides the residual."""


class Status(enum.StrEnum):
    """Status of a finished cell."""

    OK = "ok"
    NOT_CONVERGED = "not-converged"
    DIVERGED = "diverged"
    TIMEOUT = "timeout"
    FAILED = "failed"
    SKIPPED = "skipped"


FAILED_STATUSES = (Status.DIVERGED, Status.FAILED)
"""Outcomes of runs whose estimate enters no mean: the error diverged, or the algorithm failed."""


def run_algorithm(
    problem: Problem,
    instance: Instance,
    data: Data,
    algorithm: Algorithm,
    make_rng: Callable[[int], np.random.Generator],
    settings: RunOptions,
    backend: Backend,
    head_start: float = 0.0,
) -> LoopRun:
    """Run an algorithm on an instance until the stopping rule ends it.

    Parameters
    ----------
    make_rng : callable
        Gives the generator of attempt 0, 1, ...: every start has a stream of its own.
    settings : RunOptions
        ``tolerance``, ``max_iterations`` and ``timeout`` count here.
    head_start : float
        Seconds that the start handed in has cost; the clock begins with them.
    """
    data = metered(data)  # all attempts have one count

    def run(version: Algorithm, number: int) -> LoopRun:
        rng = make_rng(number)
        return LoopRun(
            problem, instance, data, version, rng, settings, backend, head_start
        )

    original = run(algorithm, 0)
    is_bad = original.status in (Status.DIVERGED, Status.NOT_CONVERGED)
    if original.restarts or not is_bad:
        return original
    version = original.clock.time(
        lambda: algorithm.retry(problem, original.status), backend
    )
    if version is None:
        return original
    restarted = run(version, 1)
    restarted.warnings = list(dict.fromkeys(original.warnings + restarted.warnings))
    restarted.restarts = 1
    restarted.restart_reason = f"{original.status}: {original.reason}"
    restarted.lost_seconds = original.clock.seconds
    return restarted


class FreshSamples:
    """Source of fresh samples in a run, which counts them and refuses algorithms that did not declare to draw any.

    Attributes
    ----------
    count : int
        Samples handed out, in all attempts together.
    declared : bool
        Whether the plan says ``draws_fresh``.
    """

    def __init__(
        self, draw: Callable[[np.random.Generator, int], tuple[Array, Array]] | None
    ) -> None:
        self._draw, self.count, self.declared = draw, 0, False

    def __call__(self, rng: np.random.Generator, n: int) -> tuple[Array, Array]:
        """Draw n fresh samples; ValueError if the algorithm's plan does not declare them."""
        if not self.declared:
            raise ValueError(
                "data.fresh is only for algorithms that declare it: plan(data) must return Plan(draws_fresh=True)"
            )
        if self._draw is None:
            raise ValueError(
                "data.fresh: fresh samples are not available for this data set"
            )
        inputs, labels = self._draw(rng, n)
        self.count += int(inputs.shape[0])
        return inputs, labels


def metered(data: Data) -> Data:
    """Return the data with a source of fresh samples that counts them."""
    return (
        data
        if isinstance(data.fresh, FreshSamples)
        else replace(data, fresh=FreshSamples(data.fresh))
    )


def planned(algorithm: Algorithm, data: Data) -> tuple[Plan, Data]:
    """Return an algorithm's plan, made from the shapes of the data, and the data that it may see."""
    n, tokens, dimension = data.inputs.shape
    plan = algorithm.plan(placeholder_data(n, tokens, dimension, data.sample_ratio))
    fresh: Any = data.fresh
    fresh.declared = plan.draws_fresh
    return plan, _without_numbers(data) if plan.draws_fresh else data


def _without_numbers(data: Data) -> Data:
    """Return data of the same shapes and types with NaN in place of all numbers (0 for integers); takes no memory."""

    def empty_like(array: Array) -> Array:
        xp = namespace(array)
        is_real = xp.isdtype(array.dtype, ("real floating", "complex floating"))
        value = xp.full((), math.nan if is_real else 0, **matching(array))
        return xp.broadcast_to(value, array.shape)

    inputs, labels = empty_like(data.inputs), empty_like(data.labels)
    return replace(data, inputs=inputs, labels=labels)


class LoopRun:
    """One run of an algorithm in the loop, made by the constructor; its attributes hold the outcome.

    Attributes
    ----------
    status, reason : Status and str
    plan : Plan
    iterations : int
    clock : Clock
    cpu_seconds : float
        CPU time of all threads but for what the engine measured.
    durations : list of float
        Seconds of each iteration, with those of its estimate where that was measured.
    metrics, blank, trajectory : dict
        Of the last estimate; metrics that raised, and what; what was measured on the way.
    start, final : dict
        Overlaps of the first estimate; what the last step reported, and findings.
    estimate, V : ndarray
        The last estimate, and the error that the algorithm claims, or None.
    broken_claim : bool
        Whether the stopping rule does not trust the end.
    restarts : int
        1 if the algorithm was started over or resumed, for ``restart_reason``; ``lost_seconds`` went into the first start.
    """

    def __init__(
        self,
        problem: Problem,
        instance: Instance,
        data: Data,
        algorithm: Algorithm,
        rng: np.random.Generator,
        settings: RunOptions,
        backend: Backend,
        head_start: float,
    ) -> None:
        self._problem, self._algorithm, self._settings, self._backend = (
            problem,
            algorithm,
            settings,
            backend,
        )
        self.clock = Clock(head_start)
        self.durations: list[float] = []
        self.plan, self._data = self.clock.time(
            lambda: planned(algorithm, data), backend
        )
        plan, data = self.plan, self._data
        self._steps = plan.steps
        self._last = plan.steps if plan.steps is not None else settings.max_iterations
        self._readings = Readings(problem)
        self._rule = (plan.stopping_rule or OverlapRule)(problem, instance.dimension)
        self._course = Trajectory(instance)
        self.warnings: list[str] = []
        self.status, self.reason = (
            Status.NOT_CONVERGED,
            f"{self._last} iterations reached",
        )
        self.iterations, self.broken_claim = 0, False
        self.restarts, self.lost_seconds = 0, 0.0
        self.restart_reason: str | None = None
        iterations_made(0)
        self._state = self.clock.time(
            lambda: algorithm.init(problem, data, rng), backend
        )
        self._record_estimate(self._counted(self._readings.latest))
        self.start = {
            name: matrix.tolist()
            for name, matrix in instance.overlaps(self.estimate)._asdict().items()
        }
        self._over = self._last <= 0
        while not self._over:
            begin = self.clock.seconds
            info = self.clock.time(self._step, backend)
            self.iterations += 1
            iterations_made(self.iterations)
            self._take(info)
            self.durations.append(self.clock.seconds - begin)
        self._finish()

    def _record_estimate(self, info: Info) -> None:
        """Compute the estimate, which is timed, and measure it, which is not."""
        self.estimate = self.clock.time(
            lambda: self._algorithm.estimate(self._state), self._backend
        )
        self._course.record(self.estimate, self.iterations, self.clock.seconds, info)

    def _step(self) -> Info:
        self._state, info = self._algorithm.step(self._problem, self._data, self._state)
        return self._counted(
            self._readings.read(info)
        )  # the one transfer of an iteration

    def _counted(self, info: Info) -> Info:
        """Return a step's report with the number of fresh samples that the engine has counted."""
        fresh: Any = self._data.fresh
        return info._replace(samples=fresh.count) if fresh.declared else info

    def _take(self, info: Info) -> None:
        """Record a step and its report, and decide whether the run ends."""
        settings, iteration, steps = self._settings, self.iterations, self._steps
        warning = "" if info.warning is None else printable(info.warning, 2000)
        if warning and warning not in self.warnings:
            self.warnings.append(warning)
        self._over = iteration >= self._last
        if self._readings.divergence:
            self._end(
                Status.DIVERGED, f"{self._readings.divergence} at iteration {iteration}"
            )
            return
        self._rule.watch(info)
        # An algorithm with a schedule of its own is given all of it: stopping it early would change the recipe.
        ending = self._rule.ending(settings.tolerance) if steps is None else None
        if steps is not None and self._over:
            ending = f"all {steps} steps made"
        late = settings.timeout is not None and self.clock.seconds > settings.timeout
        if ending or late or self._over or _is_logged(iteration, self._last):
            self._record_estimate(info)
        if ending:
            complaint = self._rule.complaint()
            self.broken_claim = bool(complaint)
            self._end(
                Status.NOT_CONVERGED if complaint else Status.OK, complaint or ending
            )
        elif late:
            self._end(
                Status.TIMEOUT,
                f"{settings.timeout:g} s reached after {iteration} iterations",
            )
        elif (
            self._over
            and self.restart_reason is None
            and (self._rule.complaint() or not self._rule.settled())
        ):
            self._resume()

    def _resume(self) -> None:
        """Continue an unconverged run for as many iterations again, if the algorithm provides a version for that."""
        version = self.clock.time(
            lambda: self._algorithm.retry(self._problem, "unsettled"), self._backend
        )
        if version is not None:
            self._algorithm, self._over = version, False
            self.restarts, self.restart_reason = (
                1,
                f"{self.status}: {self.reason}, then resumed",
            )  # and no time was lost
            self._last += self._settings.max_iterations
            self.reason = f"{self._last} iterations reached"

    def _end(self, status: Status, reason: str) -> None:
        self.status, self.reason, self._over = status, reason, True

    def _finish(self) -> None:
        algorithm, spread = self._algorithm, {}
        if not self._course.finite:
            self.status, self.reason = (
                Status.DIVERGED,
                "the estimate is not made of finite numbers",
            )
        if self.status is Status.NOT_CONVERGED and not self.broken_claim:
            if complaint := self._rule.complaint():
                self.reason, self.broken_claim = f"{self.reason}; {complaint}", True
            elif self._steps is None and (settled := self._rule.settled()):
                self.status, self.reason = (
                    Status.OK,
                    f"{settled}, after {self._last} iterations",
                )
                spread = self._course.spread()
        findings, remarks = _findings(algorithm, self._state)
        self.final = {**self._readings.final(), **spread, **findings}
        self.warnings += self._readings.warnings() + remarks
        self.metrics, self.blank, self.trajectory = (
            self._course.metrics,
            self._course.broken,
            self._course.trajectory,
        )
        self.V = None
        if (variance := algorithm.variance) is not None:
            self.V = self.clock.time(lambda: variance(self._state), self._backend)
        self.cpu_seconds = self.clock.cpu_seconds()


def _findings(
    algorithm: Algorithm, state: object
) -> tuple[dict[str, list[float | None]], list[str]]:
    """Return an algorithm's findings besides its estimate, and warnings for findings that cannot be stored."""
    findings: dict[str, list[float | None]] = {}
    reported, error = attempt(lambda: dict(algorithm.findings(state)))
    if error is not None:
        return findings, [f"it has no findings: {error_line(error)}"]
    remarks = []
    for name, values in reported.items():
        try:
            numbers = [None if value is None else float(value) for value in values]
            findings[printable(name)] = numbers
        except (TypeError, ValueError, OverflowError):
            remarks.append(
                f"its finding {printable(name, 100)!r} is not kept: it must be a list of numbers"
            )
    return findings, remarks


def _is_logged(iteration: int, max_iterations: int) -> bool:
    """Whether an iteration is recorded: all of them at first, then about fifty per doubling."""
    if max_iterations <= 200 or iteration <= 50:
        return True
    stride: int = 2 ** max(0, int(math.log2(iteration / 50)))
    return iteration % stride == 0


class Readings:
    """Reads the reports of steps, with one transfer for all numbers on a device.

    Attributes
    ----------
    latest : Info
        What the last step reported, on the host.
    divergence : str
        In which way it has diverged; empty where it has not.
    """

    def __init__(self, problem: Problem) -> None:
        self.second = np.diagonal(
            np.asarray(problem.prior.second_moment(problem.components))
        )
        self.latest = Info(residual=math.inf)
        self.divergence = ""
        self._coarsest = 0.0

    def read(self, info: Info) -> Info:
        """Return the numbers that a step reports, on the host: the residual as a float, others as float64 arrays."""
        reported = [name for name in READINGS if getattr(info, name) is not None]
        names = ["residual", *reported]
        on_host = read_together(*(getattr(info, name) for name in names))
        readings = {
            name: np.asarray(value, dtype=np.float64).ravel()
            for name, value in zip(names, on_host)
        }
        residual = float(readings.pop("residual")[0])
        self.latest = Info(
            residual,
            warning=info.warning,
            samples=info.samples,
            damping=info.damping,
            **readings,
        )
        # Not max(): it would let a NaN go unnoticed.
        errors = [self._coarsest, *readings.get("integration_error", ())]
        self._coarsest = float(np.max(errors))
        self.divergence = self._divergence(residual, readings)
        return self.latest

    def _divergence(self, residual: float, readings: dict[str, Host]) -> str:
        """Return how a step has diverged, as text; empty if it has not."""
        if not math.isfinite(residual):
            return "the residual (change of the estimate) is not a finite number"
        for name in ("predicted_overlap", "self_overlap", "squared_step"):
            if not np.isfinite(readings.get(name, 0.0)).all():
                return f"{name} is not a finite number"
        overlap = readings.get("self_overlap", self.second)
        if (overlap > 1e3 * self.second).any():
            return f"the estimate grew to an overlap of {overlap.max():.1e}"
        return ""

    def warnings(self) -> list[str]:
        """Return a warning if a posterior was integrated so inaccurately that results may be affected."""
        if self._coarsest < 1e-3:
            return []
        return [
            f"posterior integrals were accurate to {self._coarsest:.0e} of their width only"
        ]

    def final(self) -> dict[str, object]:
        """Return the last reported numbers in the form that a record stores."""
        readings = {name: getattr(self.latest, name) for name in READINGS}
        reported = {k: v.tolist() for k, v in readings.items() if v is not None}
        return {"residual": self.latest.residual, **reported}


@dataclass
class Trajectory:
    """Trajectory of a run: metrics of the estimate at recorded iterations, with the time."""

    instance: Instance
    metrics: MetricValues = field(default_factory=dict)
    trajectory: dict[str, list[Any]] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)

    def record(
        self, estimate: Array, iteration: int, seconds: float, info: Info
    ) -> None:
        """Measure the estimate at an iteration and time, and store it with the report of the step."""
        samples, damping = (
            math.nan if x is None else float(x) for x in (info.samples, info.damping)
        )
        if info.damping is not None:  # the start was not damped
            self.trajectory.setdefault(
                "damping", [math.nan] * len(self.trajectory["iteration"])
            )
        self.metrics = values = self.instance.metrics(estimate, self.broken)
        for name in self.broken:  # a metric that raised once has no trajectory
            self.trajectory.pop(name, None)
        entries = {
            "iteration": iteration,
            "seconds": seconds,
            **values,
            "residual": info.residual,
            "samples": samples,
        }
        if "damping" in self.trajectory:
            entries["damping"] = damping
        for name, entry in entries.items():
            self.trajectory.setdefault(name, []).append(entry)

    def spread(self) -> MetricValues:
        """Standard deviation of every metric, per component, over the recorded points of the last 40 iterations."""
        iterations = self.trajectory["iteration"]
        count = sum(iteration > iterations[-1] - 40 for iteration in iterations)
        return {
            f"{name}_spread": np.std(self.trajectory[name][-count:], axis=0).tolist()
            for name in self.metrics
        }

    @property
    def finite(self) -> bool:
        """Whether the metrics measured last are finite numbers."""
        return all(math.isfinite(v) for values in self.metrics.values() for v in values)


STILL = struct.pack("dd", 0.0, 0.0)
"""The heartbeat of a process with nothing to do: the moment at which its clock would have read 0 (0: it stands still), and the
iterations made.
"""

_shared: mmap.mmap | None = None


def beat_to(path: Path) -> None:
    """Write heartbeats of this process to a file from now on; called once in a worker."""
    global _shared
    with open(path, "r+b") as file:
        _shared = mmap.mmap(file.fileno(), len(STILL))


def _beat(offset: int, value: float) -> None:
    if _shared is not None:
        struct.pack_into("d", _shared, offset, value)


def iterations_made(iterations: int) -> None:
    """Write the number of iterations of the current run to the heartbeat file."""
    _beat(8, iterations)


@contextlib.contextmanager
def running(seconds: float) -> Iterator[None]:
    """Context that marks the algorithm's clock, at the given seconds, as running in the heartbeat file."""
    _beat(0, time.monotonic() - seconds)
    try:
        yield
    finally:
        _beat(0, 0.0)


def read_beat(path: Path) -> tuple[float, int]:
    """Read the heartbeat file of a process: seconds on its clock (0 while it is stopped) and iterations."""
    origin, iterations = struct.unpack("dd", path.read_bytes())
    return time.monotonic() - origin if origin else 0.0, int(iterations)


class Clock:
    """Clock that measures the time of an algorithm.

    Attributes
    ----------
    seconds : float
        On the wall, from ``head_start`` on, while the clock runs.
    device_seconds : float or None
        On the device; None where that cannot be told.
    """

    def __init__(self, head_start: float) -> None:
        self.seconds = head_start
        self.device_seconds: float | None = 0.0
        self._timed_here = 0.0
        self._process, self._thread = time.process_time(), time.thread_time()

    def time(self, work: Callable[[], T], backend: Backend) -> T:
        """Call ``work`` and add its duration to the clock."""
        cpu = time.thread_time()
        stop = backend.stopwatch()
        with running(self.seconds):
            returned = work()
        duration, on_device = stop()
        self.seconds += duration
        self._timed_here += time.thread_time() - cpu
        self.device_seconds = (
            None
            if self.device_seconds is None or on_device is None
            else self.device_seconds + on_device
        )
        return returned

    def cpu_seconds(self) -> float:
        """CPU time of this thread while the clock ran, plus that of all other threads since the clock was created."""
        of_process = time.process_time() - self._process
        other_threads = of_process - (time.thread_time() - self._thread)
        return self._timed_here + other_threads
