"""The one loop that every algorithm runs in; it knows no mathematics.

It owns the clock (paused while metrics are computed), the stopping rule, the time limit, divergence, the trajectory and
the one automatic restart.

How a run ends
--------------
* ``diverged``: the residual or an order parameter is not a finite number, or the estimate holds more than ``BLOWN_UP``
  times the second moment of the signal.
* ``ok``: the residual fell below the tolerance; or the overlaps stood still; or the algorithm made all the steps it asked
  for. Overlaps stand still when, over ``WINDOW`` iterations, the claimed one changes by less than ``STILL`` of the error
  and the held one by less than a quarter of its finite-size fluctuation; or when a small residual lingers, but the means
  over the two halves of ``LONG_WINDOW`` iterations agree that closely and no component that has been learned still moves, in
  one step, by more than ``WOBBLE`` of its own error. In both cases the estimate must move by less than
  half of what it holds: a sign that flips every step is no fixed point, though both overlaps stand still. And where labels
  leave a symmetry, nothing ends a run before ``PATIENCE`` iterations while a component claims no more than chance: the
  prior mean is then a fixed point, and what grows out of it begins too small to be seen. Algorithms
  that claim an error of their own must besides hold what they claim: the overlap of the estimate with itself must agree
  with the claim within ``AGREEMENT`` fluctuations, and the data must not carry ``STRAIN`` times less information than
  claimed; if not, the run is ``not-converged``.
* ``not-converged``: the largest number of iterations was reached first.
* ``timeout``: the time limit was reached first.

A run that ends ``diverged`` or ``not-converged`` is started once more, with another stream of random numbers, if the
algorithm offers a version of itself for that (``restarted``); the record says so.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.backend.arrays import namespace, on_device, to_host

if TYPE_CHECKING:
    from collections.abc import Callable

    from smimbench.backend.device import Backend
    from smimbench.interfaces import Array, Data, Info
    from smimbench.problem.problem import Instance, Problem

__all__ = ["LoopResult", "LoopSettings", "Status", "run_algorithm"]

WINDOW = 10
LONG_WINDOW = 40
PATIENCE = 100
STILL = 1e-3
LINGERING = 5e-3
WOBBLE = 1e-2
AGREEMENT = 5.0
STRAIN = 8.0
BLOWN_UP = 1e3
SMALLEST_ERROR = 1e-5
COARSE = 1e-3
ORDER_PARAMETERS = ("claimed", "held", "moved")
READINGS = (*ORDER_PARAMETERS, "strain", "integration_error")


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
        offer = getattr(algorithm, "restarted", None)
        cautious = offer(problem) if offer is not None else None
        if cautious is not None:
            second = _attempt(problem, instance, data, cautious, make_rng(1), settings, backend)
            second.warnings = attempt.warnings + [w for w in second.warnings if w not in attempt.warnings]
            return LoopResult(second, 1, f"{attempt.status.value}: {attempt.reason}", attempt.seconds)
    return LoopResult(attempt, 0, None, 0.0)


def _attempt(
    problem: Problem,
    instance: Instance,
    data: Data,
    algorithm: Any,
    rng: np.random.Generator,
    settings: LoopSettings,
    backend: Backend,
) -> Attempt:
    import time

    planned = getattr(algorithm, "steps_for", None)
    steps: int | None = planned(data) if planned is not None else getattr(algorithm, "steps", None)
    last = steps if steps is not None else settings.max_iterations
    watch = _Watch(problem, instance.dimension)
    warnings: list[str] = []
    trajectory: dict[str, list[Any]] = {
        "iteration": [],
        "seconds": [],
        "mse": [],
        "overlap": [],
        "residual": [],
    }
    trajectory["samples"] = []
    durations: list[float] = []
    status, reason = Status.NOT_CONVERGED, f"{last} iterations reached"
    iteration, broken, samples = 0, False, math.nan
    metrics: dict[str, list[float]] = {}

    cpu = time.process_time()
    stop = backend.stopwatch()
    state = algorithm.init(problem, data, rng)
    seconds, device_seconds = stop()
    seconds += settings.head_start
    cpu_seconds = time.process_time() - cpu

    def record(residual: float) -> dict[str, list[float]]:
        values = instance.metrics(algorithm.estimate(state))
        trajectory["iteration"].append(iteration)
        trajectory["seconds"].append(seconds)
        trajectory["residual"].append(residual)
        trajectory["samples"].append(samples)
        trajectory["mse"].append(values["mse"])
        trajectory["overlap"].append(values["overlap"])
        return values

    metrics = record(math.inf)
    while iteration < last:
        cpu = time.process_time()
        stop = backend.stopwatch()
        state, info = algorithm.step(problem, data, state)
        readings = watch.read(info)  # the one transfer of an iteration
        duration, on_device = stop()
        cpu_seconds += time.process_time() - cpu
        device_seconds = None if device_seconds is None or on_device is None else device_seconds + on_device
        seconds += duration
        durations.append(duration)
        iteration += 1
        samples = math.nan if info.samples is None else float(info.samples)
        if info.warning and info.warning not in warnings:
            warnings.append(info.warning)
        if not watch.finite:
            status, reason = Status.DIVERGED, f"{watch.unfinite} at iteration {iteration}"
            break
        # An algorithm with a schedule of its own is given all of it: stopping it early would change the recipe.
        ending = watch.ending(settings.tolerance) if steps is None else None
        finished = steps is not None and iteration == steps
        late = settings.timeout is not None and seconds > settings.timeout
        if ending or finished or late or _is_logged(iteration, last):
            metrics = record(readings)
        if ending or finished:
            problem_with_claim = watch.broken_claim()
            if problem_with_claim:
                # A claim may still come true: only give up when nothing moves any more.
                status, reason, broken = Status.NOT_CONVERGED, problem_with_claim, True
            else:
                status, reason = Status.OK, ending or f"all {steps} steps made"
            break
        if late:
            status, reason = Status.TIMEOUT, f"{settings.timeout:g} s reached after {iteration} iterations"
            break
    if trajectory["iteration"][-1] != iteration and watch.finite:
        metrics = record(watch.residual)
    if not all(math.isfinite(v) for values in metrics.values() for v in values):
        status, reason = Status.DIVERGED, "the estimate is not made of finite numbers"
    if status is Status.NOT_CONVERGED and not broken:
        complaint = watch.broken_claim()
        if complaint:
            reason, broken = f"{reason}; {complaint}", True
    return Attempt(
        status=status,
        reason=reason,
        metrics=metrics,
        iterations=iteration,
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        iteration_seconds=durations,
        device_seconds=device_seconds,
        trajectory=trajectory,
        final={**watch.final(), **(algorithm.findings(state) if hasattr(algorithm, "findings") else {})},
        warnings=warnings + watch.coarse_integrals(),
        estimate=algorithm.estimate(state),
        V=algorithm.variance(state) if hasattr(algorithm, "variance") else None,
        broken_claim=broken,
    )


class _Watch:
    """Reads what a step reports and judges whether a run stands still and holds what it claims."""

    def __init__(self, problem: Problem, dimension: int) -> None:
        self.second = np.diagonal(np.asarray(problem.prior.second_moment(problem.components)))
        size = getattr(problem.prior, "fluctuation", None)
        relative = float(size(dimension)) if size is not None else math.sqrt(2 / dimension)
        self.fluctuation = relative * self.second
        symmetric = getattr(problem.channel, "symmetry", "none") != "none"
        bottom = np.diagonal(np.asarray(problem.prior.mean_overlap(problem.components)))
        self.chance = bottom + self.fluctuation if symmetric else np.full_like(self.second, -math.inf)
        self.residual = math.inf
        self.unfinite = ""
        self.coarsest = 0.0
        self.history: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = []
        self.latest: dict[str, np.ndarray[Any, Any]] = {}

    def read(self, info: Info) -> float:
        """Take the numbers of an Info to the host, all at once where they live on a device."""
        named = {name: value for name in READINGS if (value := getattr(info, name)) is not None}
        values = {"residual": info.residual, **named}
        there = {k: v for k, v in values.items() if on_device(v)}
        found = {k: np.asarray(v, dtype=np.float64).ravel() for k, v in values.items() if k not in there}
        if there:
            xp = namespace(*there.values())
            widest = xp.result_type(*there.values())
            flat = to_host(xp.concat([xp.reshape(xp.astype(v, widest), (-1,)) for v in there.values()]))
            ends = np.cumsum([math.prod(v.shape) for v in there.values()])
            found |= dict(zip(there, np.split(np.asarray(flat, dtype=np.float64), ends[:-1])))
        self.residual = float(found["residual"][0])
        self.latest = {name: found[name] for name in named}
        # Not max(): it would let a NaN go unnoticed.
        self.coarsest = float(np.max([self.coarsest, *self.latest.get("integration_error", ())]))
        unfinite = [
            name
            for name, value in self.latest.items()
            if name in ORDER_PARAMETERS and not np.isfinite(value).all()
        ]
        unfinite = unfinite if math.isfinite(self.residual) else ["the residual"]
        self.unfinite = f"{unfinite[0]} is not a finite number" if unfinite else ""
        if not self.unfinite and (self.latest.get("held", self.second) > BLOWN_UP * self.second).any():
            self.unfinite = f"the estimate grew to an overlap of {self.latest['held'].max():.1e}"
        if "claimed" in self.latest and "held" in self.latest:
            self.history.append((self.latest["claimed"], self.latest["held"]))
        return self.residual

    def coarse_integrals(self) -> list[str]:
        """A warning if the posterior was once integrated so coarsely that it may show."""
        if self.coarsest < COARSE:
            return []
        return [f"posterior integrals were accurate to {self.coarsest:.0e} of their width only"]

    @property
    def finite(self) -> bool:
        return not self.unfinite

    def ending(self, tolerance: float) -> str | None:
        """Why the run may end here, or None."""
        if 0 < len(self.history) < PATIENCE and (self.latest["claimed"] <= self.chance).any():
            return None
        if self.residual <= tolerance:
            return f"residual {self.residual:.1e} below tolerance"
        if len(self.history) <= WINDOW or "moved" not in self.latest:
            return None
        claimed, held = (np.stack(rows) for rows in zip(*self.history[-WINDOW - 1 :]))
        # A sign that flips every step moves by four times the overlap though both overlaps stand still.
        if (self.latest["moved"] > np.maximum(held[-1], self.fluctuation) / 2).any():
            return None
        error = np.maximum(self.second - claimed[-1], SMALLEST_ERROR)
        if self._steady(np.ptp(claimed, axis=0), np.ptp(held, axis=0), STILL * error, self.fluctuation / 4):
            return f"overlaps stand still for {WINDOW} iterations"
        if len(self.history) <= LONG_WINDOW:
            return None
        # Averages can stand still around a point to which the estimate, going back and forth, never comes.
        if ((self.latest["moved"] > WOBBLE * error) & (claimed[-1] > self.chance)).any():
            return None
        claimed, held = (np.stack(rows) for rows in zip(*self.history[-LONG_WINDOW:]))
        half = LONG_WINDOW // 2
        drifts = (np.abs(rows[:half].mean(0) - rows[half:].mean(0)) for rows in (claimed, held))
        drift_claimed, drift_held = drifts
        steady = self._steady(drift_claimed, drift_held, LINGERING * error, self.fluctuation / 8)
        if steady and (np.ptp(claimed, axis=0) <= error / 4).all():
            return f"overlaps stand still over {LONG_WINDOW} iterations though a residual of {self.residual:.0e} lingers"
        return None

    @staticmethod
    def _steady(claimed: Any, held: Any, close: Any, fluctuation: Any) -> bool:
        return bool((claimed <= close).all() and (held <= np.maximum(close, fluctuation)).all())

    def broken_claim(self) -> str | None:
        """Where the claimed and the held overlap disagree, in words, or None."""
        if "claimed" not in self.latest or "held" not in self.latest:
            return None
        claimed, held = self.latest["claimed"], self.latest["held"]
        gap = np.abs(claimed - held) / self.fluctuation
        worst = int(np.argmax(gap))
        strain = self.latest.get("strain", np.zeros(1))
        tense = int(np.argmax(strain))
        if strain[tense] > math.log(STRAIN):
            times = math.exp(min(strain[tense], 50))
            return f"component {tense + 1} claims {times:.2g} times the information that its data carry"
        if gap[worst] > AGREEMENT:
            return (
                f"component {worst + 1} claims an overlap of {claimed[worst]:.3g} "
                f"but its estimate holds {held[worst]:.3g}"
            )
        return None

    def final(self) -> dict[str, Any]:
        """Last readings, for the record."""
        return {"residual": self.residual, **{name: value.tolist() for name, value in self.latest.items()}}


def _is_logged(iteration: int, last: int) -> bool:
    """All iterations of a short run, then about fifty for each doubling: enough to time any target to 2%."""
    if last <= 200 or iteration <= 50:
        return True
    stride: int = 2 ** max(0, int(math.log2(iteration / 50)))
    return iteration % stride == 0
