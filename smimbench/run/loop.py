"""The loop that runs every algorithm: steps, time limit, divergence, restart, stop and status.

Its clock (``smimbench.run.clock``) runs while code of the algorithm runs (``plan``, ``init``, ``step``, ``estimate``,
``variance``, ``retry``), and stands still while the engine measures.

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
import functools
import math
import operator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.backend.arrays import matching, namespace, read_together
from smimbench.derive.stopping import OverlapRule
from smimbench.files import attempt, error_line, printable
from smimbench.interfaces import Info
from smimbench.interfaces.problem import placeholder_data
from smimbench.run.clock import Clock, write_heartbeat

if TYPE_CHECKING:
    from collections.abc import Callable

    from smimbench.backend.device import Backend
    from smimbench.interfaces import Algorithm, Array, Data, Host, Plan
    from smimbench.problem.instance import Instance, MetricValues
    from smimbench.problem.problem import Problem
    from smimbench.suite.schema import RunOptions

READINGS = (
    "predicted_overlap",
    "self_overlap",
    "squared_step",
    "log_information_ratio",
    "integration_error",
)
"""Entries of ``Info`` that are arrays, besides the residual."""


class Status(enum.StrEnum):
    """Status of a finished cell (run): converged or all planned steps made (``OK``), not converged, diverged, stopped by the time
    limit, failed by an error, or skipped because the algorithm refuses the problem.
    """

    OK = "ok"
    NOT_CONVERGED = "not-converged"
    DIVERGED = "diverged"
    TIMEOUT = "timeout"
    FAILED = "failed"
    SKIPPED = "skipped"


FAILED_STATUSES = (Status.DIVERGED, Status.FAILED)
"""Outcomes of runs whose estimate enters no mean: the error diverged, or the algorithm failed."""


def run_algorithm(*arguments: Any) -> LoopRun:
    """Run an algorithm on an instance until the stopping rule ends it, and once more if it fails and offers a second
    attempt; the arguments are those of ``LoopRun``.
    """
    run = LoopRun(*arguments)
    run.step_to_end()
    return run.finished()


class FreshSamples:
    """Source of fresh samples (drawn during the run, of the same teacher) in a run, which counts them and refuses algorithms that
    did not declare to draw any.

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
        """Count the samples that ``draw`` draws; None means that there is no source of them."""
        self._draw, self.count, self.declared = draw, 0, False

    def __call__(self, rng: np.random.Generator, n: int) -> tuple[Array, Array]:
        """Draw n fresh samples with ``rng``; ValueError if the algorithm's plan does not declare them."""
        if not self.declared:
            raise ValueError(
                "data.fresh is only for algorithms that declare it: plan(data) must return Plan(draws_fresh=True)"
            )
        if self._draw is None:
            raise ValueError(
                "data.fresh: this data set has no source of fresh samples; use its inputs and labels"
            )
        inputs, labels = self._draw(rng, n)
        self.count += int(inputs.shape[0])
        return inputs, labels


def counting_fresh_samples(data: Data) -> Data:
    """Return the data with a source of fresh samples that counts them."""
    return (
        data
        if isinstance(data.fresh, FreshSamples)
        else replace(data, fresh=FreshSamples(data.fresh))
    )


def plan_and_visible_data(algorithm: Algorithm, data: Data) -> tuple[Plan, Data]:
    """Return an algorithm's plan for data of these shapes, and the data that it may see: blank (NaN) if it draws
    fresh samples.
    """
    sample_count, tokens, dimension = data.inputs.shape
    plan = algorithm.plan(
        placeholder_data(sample_count, tokens, dimension, data.sample_ratio)
    )
    fresh: Any = data.fresh
    fresh.declared = plan.draws_fresh
    return plan, _blank_data(data) if plan.draws_fresh else data


def _blank_data(data: Data) -> Data:
    """Return data of the same shapes and types with NaN in place of all numbers (0 for integers); takes no memory."""

    def blank_like(array: Array) -> Array:
        """Return an array of the same shape and type, all NaN or 0, that takes no memory."""
        xp = namespace(array)
        is_floating = xp.isdtype(array.dtype, ("real floating", "complex floating"))
        fill_value = xp.full((), math.nan if is_floating else 0, **matching(array))
        return xp.broadcast_to(fill_value, array.shape)

    inputs = blank_like(data.inputs)
    labels = blank_like(data.labels)
    return replace(data, inputs=inputs, labels=labels)


class LoopRun:
    """Run of an algorithm in the loop, begun by the constructor; the run that ``finished`` returns holds the outcome.

    Attributes
    ----------
    problem, instance, algorithm, data, state
        What a step needs; ``data`` are what the algorithm may see of the instance.
    read : callable
        ``read(info)`` is the report of a step on the host.
    is_over : bool
        Whether the run makes no more steps.
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
        make_rng: Callable[[int], np.random.Generator],
        run_options: RunOptions,
        backend: Backend,
        seconds_of_start: float = 0.0,
        attempt: int = 0,
    ) -> None:
        """Bring the algorithm into its initial state on the ``data`` of an instance, with the tolerance and limits of
        ``run_options``. ``make_rng`` gives the random numbers of an ``attempt``: 0, or 1 where the algorithm was started over;
        ``seconds_of_start`` is the time spent on its initial estimate.
        """
        data = counting_fresh_samples(data)  # all attempts have one count
        self._start_over = functools.partial(
            LoopRun,
            problem,
            instance,
            data,
            make_rng=make_rng,
            run_options=run_options,
            backend=backend,
            seconds_of_start=seconds_of_start,
            attempt=1,
        )
        self.problem = problem
        self.instance = instance
        self.algorithm = algorithm
        self._settings = run_options
        self._backend = backend
        self.clock = Clock(seconds_of_start)
        self.plan, self.data = self.clock.time(
            lambda: plan_and_visible_data(algorithm, data), backend
        )
        plan, data = self.plan, self.data
        self._planned_steps = plan.steps
        self._last_iteration = (
            plan.steps if plan.steps is not None else run_options.max_iterations
        )
        self._readings = Readings(problem)
        self.read = self._readings.read
        self._rule = (plan.stopping_rule or OverlapRule)(problem, instance.dimension)
        self._trajectory = Trajectory(instance)
        self.warnings: list[str] = []
        self.status = Status.NOT_CONVERGED
        self.reason = f"{self._last_iteration} iterations reached"
        self.iterations, self.broken_claim = 0, False
        self.restarts, self.lost_seconds = 0, 0.0
        self.restart_reason: str | None = None
        write_heartbeat(8, 0)
        self.state = self.clock.time(
            lambda: algorithm.init(problem, data, make_rng(attempt)), backend
        )
        self._record_estimate(self._with_sample_count(self._readings.latest), None)
        self.start = {
            overlap_name: matrix.tolist()
            for overlap_name, matrix in instance.overlaps(self.estimate)
            ._asdict()
            .items()
        }
        self.is_over = self._last_iteration <= 0
        self._times = [self.clock.seconds]  # after the start and every step

    def step_to_end(self) -> None:
        """Make steps of the algorithm until the run is over; reading a report is the one transfer of an iteration."""

        def step() -> tuple[object, Info]:
            """Make a step, and return the new state and the report."""
            state, info = self.algorithm.step(self.problem, self.data, self.state)
            return state, self.read(info)

        while not self.is_over:
            state, info = self.clock.time(step, self._backend)
            self.accept_step(state, info)

    def records(self, iteration: int) -> bool:
        """Whether the trajectory records an iteration: all in short runs, otherwise the first 50, then about fifty per doubling,
        and the last.
        """
        last_iteration = self._last_iteration
        if last_iteration <= 200 or iteration <= 50 or iteration >= last_iteration:
            return True
        recording_interval: int = 2 ** max(0, int(math.log2(iteration / 50)))
        return iteration % recording_interval == 0

    def _record_estimate(
        self, info: Info, measured: tuple[Array, MetricValues] | None
    ) -> None:
        """Record the metrics of the estimate, and the report of the step (``info``). Unless they were ``measured`` together with
        those of other runs, the estimate is computed on the algorithm's clock, and its metrics off the clock.
        """
        if measured is None:
            estimate = self.clock.time(
                lambda: self.algorithm.estimate(self.state), self._backend
            )
            measured = estimate, self._trajectory.measure(estimate)
        self.estimate, metrics = measured
        self._trajectory.record(metrics, self.iterations, self.clock.seconds, info)

    def _with_sample_count(self, info: Info) -> Info:
        """Return a step's report (``info``) with the number of fresh samples that the engine has counted."""
        fresh: Any = self.data.fresh
        return info._replace(samples=fresh.count) if fresh.declared else info

    def accept_step(
        self,
        state: object,
        info: Info,
        measured: tuple[Array, MetricValues] | None = None,
    ) -> None:
        """Accept a step that was made: the new state and the report that was read (``info``), with the estimate and its metrics
        where these were ``measured`` together with those of other runs.
        """
        self.state = state
        self.iterations += 1
        write_heartbeat(8, self.iterations)
        warning = "" if info.warning is None else printable(info.warning, 2000)
        if warning and warning not in self.warnings:
            self.warnings.append(warning)
        self.is_over = self.iterations >= self._last_iteration
        if self._readings.divergence:
            reason = f"{self._readings.divergence} at iteration {self.iterations}"
            self._end_run(Status.DIVERGED, reason)
        else:
            self._judge_step(self._with_sample_count(info), measured)
        self._times.append(self.clock.seconds)

    def _judge_step(
        self, info: Info, measured: tuple[Array, MetricValues] | None
    ) -> None:
        """Record a step's report (``info``) and, where it is due, its estimate, which may be ``measured`` already, and decide
        whether the run ends.
        """
        run_options, planned_steps = self._settings, self._planned_steps
        self._rule.watch(info)
        # An algorithm with a schedule of its own is given all of it: stopping it early would change the recipe.
        end_reason = (
            self._rule.ending(run_options.tolerance) if planned_steps is None else None
        )
        if planned_steps is not None and self.is_over:
            end_reason = f"all {planned_steps} steps made"
        is_timed_out = (
            run_options.timeout is not None and self.clock.seconds > run_options.timeout
        )
        if end_reason or is_timed_out or self.records(self.iterations):
            self._record_estimate(info, measured)
        if end_reason:
            complaint = self._rule.complaint()
            self.broken_claim = bool(complaint)
            self._end_run(
                Status.NOT_CONVERGED if complaint else Status.OK,
                complaint or end_reason,
            )
        elif is_timed_out:
            self._end_run(
                Status.TIMEOUT,
                f"{run_options.timeout:g} s reached after {self.iterations} iterations",
            )
        elif (
            self.is_over
            and self.restart_reason is None
            and (self._rule.complaint() or not self._rule.settled())
        ):
            self._resume()

    def _resume(self) -> None:
        """Continue an unconverged run for as many iterations again, if the algorithm provides a version for that."""
        resumed_version = self.clock.time(
            lambda: self.algorithm.retry(self.problem, "unsettled"), self._backend
        )
        if resumed_version is not None:
            self.algorithm, self.is_over = resumed_version, False
            # A resumed run goes on from its state, so no time is lost as in a restart.
            self.restarts = 1
            self.restart_reason = f"{self.status}: {self.reason}, then resumed"
            self._last_iteration += self._settings.max_iterations
            self.reason = f"{self._last_iteration} iterations reached"

    def _end_run(self, status: Status, reason: str) -> None:
        """Set the final status and its reason, and stop the loop."""
        self.status, self.reason, self.is_over = status, reason, True

    def finished(self) -> LoopRun:
        """Decide the final status after the last step, and collect the run's findings (extra numbers of the algorithm), warnings,
        metrics and the claimed error V (P, P). Where the run failed and its algorithm offers a second attempt, return that,
        finished, else this run.
        """
        metric_spreads = {}
        if not self._trajectory.is_finite:
            self.status = Status.DIVERGED
            self.reason = "the estimate is not made of finite numbers"
        if self.status is Status.NOT_CONVERGED and not self.broken_claim:
            if complaint := self._rule.complaint():
                self.reason = f"{self.reason}; {complaint}"
                self.broken_claim = True
            elif self._planned_steps is None and (
                settled_reason := self._rule.settled()
            ):
                self.status = Status.OK
                self.reason = (
                    f"{settled_reason}, after {self._last_iteration} iterations"
                )
                metric_spreads = self._trajectory.metric_spreads()
        findings, remarks = _findings(self.algorithm, self.state)
        self.final = {**self._readings.final(), **metric_spreads, **findings}
        self.warnings += self._readings.warnings() + remarks
        self.metrics = self._trajectory.metrics
        self.durations = np.diff(self._times).tolist()
        self.blank = self._trajectory.failed_metrics
        self.trajectory = self._trajectory.trajectory
        self.V = None
        if (variance := self.algorithm.variance) is not None:
            self.V = self.clock.time(lambda: variance(self.state), self._backend)
        self.cpu_seconds = self.clock.cpu_seconds()
        is_unsuccessful = self.status in (Status.DIVERGED, Status.NOT_CONVERGED)
        if not is_unsuccessful or self.restarts:
            return self
        return self._second_attempt() or self

    def _second_attempt(self) -> LoopRun | None:
        """Make and finish the second attempt at a run that failed; None if its algorithm offers none."""
        restart_version = self.clock.time(
            lambda: self.algorithm.retry(self.problem, self.status), self._backend
        )
        if restart_version is None:
            return None
        run = self._start_over(algorithm=restart_version)
        run.step_to_end()
        run.restarts = 1
        run.finished()
        run.warnings = list(dict.fromkeys(self.warnings + run.warnings))
        run.restart_reason = f"{self.status}: {self.reason}"
        run.lost_seconds = self.clock.seconds
        return run


def _findings(
    algorithm: Algorithm, state: object
) -> tuple[dict[str, list[float | None]], list[str]]:
    """Return the extra numbers that an algorithm reports on its final ``state`` besides its estimate (its findings), and
    warnings for those that cannot be stored.
    """
    findings: dict[str, list[float | None]] = {}
    reported_findings, error = attempt(lambda: dict(algorithm.findings(state)))
    if error is not None:
        return findings, [f"it has no findings: {error_line(error)}"]
    remarks = []
    for finding_name, reported_numbers in reported_findings.items():
        try:
            numbers = [
                None if reported_number is None else float(reported_number)
                for reported_number in reported_numbers
            ]
            findings[printable(finding_name)] = numbers
        except (TypeError, ValueError, OverflowError):
            remarks.append(
                f"its finding {printable(finding_name, 100)!r} is not kept: it must be a list of numbers"
            )
    return findings, remarks


class Readings:
    """Reader of the numbers that an algorithm's steps report (readings), which moves them from the device in one transfer and
    detects divergence.

    Attributes
    ----------
    latest : Info
        What the last step reported, on the host.
    divergence : str
        In which way it has diverged; empty where it has not.
    """

    def __init__(self, problem: Problem) -> None:
        """Prepare to read the reports of a run on this problem."""
        self.second = np.diagonal(
            np.asarray(problem.prior.second_moment(problem.components))
        )
        self._largest_overlaps = (1e3 * self.second).tolist()
        self.latest = Info(residual=math.inf)
        self.divergence = ""
        self._largest_integration_error = 0.0

    def read(self, info: Info) -> Info:
        """Return the numbers that a step of the algorithm reports (``info``), as arrays on the host: the residual as a float,
        others as float64 arrays.
        """
        reported = {
            reading_name: array
            for reading_name in READINGS
            if (array := getattr(info, reading_name)) is not None
        }
        residual, *arrays = read_together(info.residual, *reported.values())
        residual = float(np.asarray(residual).item())
        host_readings = {
            reading_name: np.asarray(array, dtype=np.float64).ravel()
            for reading_name, array in zip(reported, arrays)
        }
        self.latest = Info(
            residual,
            warning=info.warning,
            samples=info.samples,
            damping=info.damping,
            **host_readings,
        )
        if "integration_error" in host_readings:
            # Python's max() would ignore a NaN.
            self._largest_integration_error = float(
                np.maximum(
                    self._largest_integration_error,
                    host_readings["integration_error"].max(),
                )
            )
        self.divergence = self._divergence(residual, host_readings)
        return self.latest

    def _divergence(self, residual: float, readings: dict[str, Host]) -> str:
        """Describe how the run diverged in a step, given the step's residual and other reported numbers (``readings``, by
        name); empty if it did not.
        """
        if not math.isfinite(residual):
            return "the residual (change of the estimate) is not a finite number"
        # Of few numbers Python takes a fraction of NumPy's time.
        for reading_name in ("predicted_overlap", "self_overlap", "squared_step"):
            if reading_name in readings and not all(
                map(math.isfinite, readings[reading_name].tolist())
            ):
                return f"{reading_name} is not a finite number"
        overlaps = readings.get("self_overlap", self.second).tolist()
        if any(map(operator.gt, overlaps, self._largest_overlaps)):
            return f"the estimate grew to an overlap of {max(overlaps):.1e}"
        return ""

    def warnings(self) -> list[str]:
        """Return a warning if a posterior was integrated so inaccurately that results may be affected."""
        if self._largest_integration_error < 1e-3:
            return []
        return [
            f"posterior integrals were accurate to {self._largest_integration_error:.0e} of their width only"
        ]

    def final(self) -> dict[str, object]:
        """Return the numbers that the last step reported, as lists that a record can store."""
        reported_lists = {
            reading_name: array.tolist()
            for reading_name in READINGS
            if (array := getattr(self.latest, reading_name)) is not None
        }
        return {"residual": self.latest.residual, **reported_lists}


@dataclass
class Trajectory:
    """Trajectory of a run on an instance: metrics of the estimate at recorded iterations, with the time, one column by name;
    ``metrics`` are the latest, ``failed_metrics`` the reasons why metrics failed, by name.
    """

    instance: Instance
    metrics: MetricValues = field(default_factory=dict)
    trajectory: dict[str, list[Any]] = field(default_factory=dict)
    failed_metrics: dict[str, str] = field(default_factory=dict)

    def measure(self, estimate: Array) -> MetricValues:
        """Measure the metrics of an estimate; those that raise are ``failed_metrics`` from then on."""
        return self.instance.metrics(estimate, self.failed_metrics)

    def record(
        self, metrics: MetricValues, iteration: int, seconds: float, info: Info
    ) -> None:
        """Store the metrics of the estimate at an iteration and a time in seconds, with the report of the step (``info``)."""
        damping = math.nan if info.damping is None else float(info.damping)
        if info.damping is not None:  # the start was not damped
            self.trajectory.setdefault(
                "damping", [math.nan] * len(self.trajectory["iteration"])
            )
        self.metrics = metrics
        for (
            column_name
        ) in self.failed_metrics:  # a metric that raised once has no trajectory
            self.trajectory.pop(column_name, None)
        trajectory_row = {
            "iteration": iteration,
            "seconds": seconds,
            **metrics,
            "residual": info.residual,
            "samples": math.nan if info.samples is None else float(info.samples),
        }
        if "damping" in self.trajectory:
            trajectory_row["damping"] = damping
        for column_name, column_entry in trajectory_row.items():
            self.trajectory.setdefault(column_name, []).append(column_entry)

    def metric_spreads(self) -> MetricValues:
        """Return the standard deviation of every metric, per component, over the recorded points of the last 40 iterations."""
        iterations = self.trajectory["iteration"]
        point_count = sum(iteration > iterations[-1] - 40 for iteration in iterations)
        return {
            f"{metric}_spread": np.std(
                self.trajectory[metric][-point_count:], axis=0
            ).tolist()
            for metric in self.metrics
        }

    @property
    def is_finite(self) -> bool:
        """Whether the metrics measured last are finite numbers."""
        return all(
            math.isfinite(component_value)
            for component_values in self.metrics.values()
            for component_value in component_values
        )
