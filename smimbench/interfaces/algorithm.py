"""The contract of an algorithm, from data to an estimate of the signal: its plan, step reports and stopping rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np

from smimbench.interfaces.item import Array, Capabilities, Cost, Item
from smimbench.interfaces.problem import Data, ProblemLike, Start


class Plan(NamedTuple):
    """Plan of an algorithm for a run, stated before any data are drawn: number of steps, samples per step (``batch``),
    number of estimates learned side by side (``students``), cost of a step, and stopping rule. ``draws_fresh`` says whether
    it learns from fresh samples instead of the data set, ``passes`` how often a step goes through all samples.

    Attributes
    ----------
    steps : int or None
        Steps after which the algorithm ends by itself; None: the stopping rule decides.
    batch : int or None
        Samples that a step reads; None: all of them.
    students : int
        Estimates learned side by side: every product with the inputs is computed this many times.
    draws_fresh : bool
        Whether it learns from samples of its own (``Data.fresh``): its rows stand at the sample ratio of all that were handed
        out, and of the data set it sees the shapes only, no numbers. Without it ``Data.fresh`` raises.
    cost : callable or None
        ``cost(problem, data)``: what one step has to do, as ``problem.pass_cost`` counts it, of algorithms whose steps are
        passes over the samples and little else; without it the runtime table says nothing of the machine's speed.
    stopping_rule : callable or None
        ``stopping_rule(problem, dimension)``: a rule of its own for when to end, made for every run. Without it the
        residual and the overlaps that ``Info`` reports decide: they must stand still and agree.
    passes : int or None
        Passes of a step over all samples, each a product with the inputs and one with their transpose, which all students share.
        Not needed where ``Info`` counts samples. None: not known, and the run is not compared with the best first-order method.
    """

    steps: int | None = None
    batch: int | None = None
    students: int = 1
    draws_fresh: bool = False
    cost: Callable[[ProblemLike, Data], Cost | None] | None = None
    stopping_rule: Callable[[ProblemLike, int], StoppingRule] | None = None
    passes: int | None = None


class Overlaps(NamedTuple):
    """Overlap matrices (P, P) of a signal S and an estimate S_hat, computed by the model's ``inner``: ``truth`` is the
    signal's with itself, ``cross`` the estimate's with the signal, ``own`` the estimate's with itself.

    Attributes
    ----------
    truth : array (P, P)
        Of the signal with itself.
    cross : array (P, P)
        Of the estimate (rows) with the signal (columns): ``S_hat S^T / D`` for low rank.
    own : array (P, P)
        Of the estimate with itself.
    """

    truth: Array
    cross: Array
    own: Array


class Conditions(NamedTuple):
    """Conditions of the runs that ``Algorithm.theory`` predicts: dimension, start, iterations.
    ``starts`` are overlaps of the runs' initial estimates, ``points`` the Bayes-optimal point and other branches at this
    sample ratio, ``trajectory`` says whether a prediction for each iteration is wanted, too.

    Attributes
    ----------
    dimension : int or None
        Dimension D of the runs; None: only predictions that do not depend on it are wanted.
    start : str
        ``start`` of the table ``[run]``: ``"uninformed"``, ``"informed"`` or the name of an algorithm.
    starts : tuple of Overlaps
        Overlaps at the start of each run; empty before anything has been run.
    iterations : int or None
        ``max_iterations`` of the table ``[run]``.
    points : tuple of dict
        Theory of the problem at this sample ratio: the Bayes-optimal point first, then other branches.
    trajectory : bool
        Whether the trajectory is wanted, too.
    """

    dimension: int | None = None
    start: str = "uninformed"
    starts: tuple[Overlaps, ...] = ()
    iterations: int | None = None
    points: tuple[dict[str, Any], ...] = ()
    trajectory: bool = False


@dataclass(frozen=True)
class AlgorithmPrediction:
    """Prediction of theory for an algorithm at one sample ratio: ``mse`` and overlap with the teacher, their error and
    method, overlaps of the estimate with itself and of two runs (``between_students``), values at each iteration, and
    corrections in 1/D. ``at_size`` marks a prediction for the dimension of the runs instead of the limit, ``of_ok_runs`` one
    for runs that end ``ok`` only; ``draws`` checks it by Monte Carlo draws, ``more`` holds further quantities by name.

    ``smimbench.theory.limit_point`` makes it from overlaps.

    Attributes
    ----------
    mse, mse_error : array (P,)
        Mean squared error of every component, and its numerical error.
    overlap : array (P, P)
        Of the estimate (rows) with the signal.
    method, branch : str
        How it was obtained; which solution it is.
    own_overlap : array (P, P) or None
        Of the estimate with itself; None: that with the signal, as of a posterior mean.
    between_students : array (P, P) or None
        Overlap of two runs on the same data that differ in their random numbers only; the theory of averages rests on it.
    trajectory : dict or str or None
        Lists by name, as the trajectories of runs have them: the clock (``iteration``, or ``samples`` for those that count
        them), and values of ``mse`` and ``overlap`` per component, or of other metrics. Or in words why there is none, which is
        ``no_trajectory`` in the JSON.
    finite_size : dict or None
        By metric the coefficient of 1/D of every component.
    at_size : bool or None
        True for a prediction of the runs that ``Conditions`` describes, their dimension and their starts, not of the limit.
    draws : callable or None
        ``draws()``: a ``smimbench.theory.Check`` of each number by plain draws, for ``theory --verify`` of wrong assumptions.
    of_ok_runs : bool or None
        True for a prediction that holds for runs that end ``ok`` only: where one does not, none is shown.
    more : dict
        Other entries of the point in the JSON of ``smimbench theory``: what metrics read (``cosine``, ``squared_cosine`` and
        others with their ``..._error``, ``calibration``, ``generalization_error``), and those named as in ``findings``.
    """

    mse: Array
    mse_error: Array
    overlap: Array
    method: str
    branch: str = "own"
    own_overlap: Array | None = None
    between_students: Array | None = None
    trajectory: dict[str, list[Any]] | str | None = None
    finite_size: dict[str, list[float]] | None = None
    at_size: bool | None = None
    draws: Callable[[], list[Any]] | None = field(default=None, compare=False)
    of_ok_runs: bool | None = None
    more: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of_point(cls, point: dict[str, Any], **changes: object) -> AlgorithmPrediction:
        """Build a prediction from one point in the JSON of ``smimbench theory``, with some fields changed (``changes``)."""
        field_names = {field.name for field in fields(cls)}
        field_values = {
            name: field_value
            for name, field_value in point.items()
            if name in field_names
        }
        for name in ("mse", "mse_error"):
            field_values[name] = np.atleast_1d(np.asarray(point[name], dtype=float))
        if "no_trajectory" in point:
            field_values["trajectory"] = point["no_trajectory"]
        other_entries = {
            name: field_value
            for name, field_value in point.items()
            if name not in field_names and name != "no_trajectory"
        }
        return cls(**field_values | {"more": other_entries} | changes)

    def document(self) -> dict[str, Any]:
        """Convert the prediction to JSON; ``mse`` and ``mse_error`` are single numbers if there is one component."""
        field_values = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name not in ("draws", "more")
        }
        for field_name in ("mse", "mse_error"):
            component_values = np.asarray(field_values[field_name], dtype=float)
            field_values[field_name] = (
                component_values.item()
                if component_values.size == 1
                else component_values.tolist()
            )
        for field_name in ("overlap", "own_overlap", "between_students"):
            if field_values[field_name] is not None:
                field_values[field_name] = np.asarray(field_values[field_name]).tolist()
        if isinstance(self.trajectory, str):
            field_values["no_trajectory"] = field_values.pop("trajectory")
        return {
            field_name: field_value
            for field_name, field_value in field_values.items()
            if field_value is not None
        } | self.more


class Info(NamedTuple):
    """Report of one step to the engine's loop: the residual, the overlaps (P,) of the estimate with the signal, as the
    algorithm predicts, and with itself, warnings; not used by the iteration itself. ``squared_step`` (P,) is the squared
    change of the estimate, ``log_information_ratio`` compares two estimates of the information in the data, ``samples`` is
    the number seen so far, ``damping`` the weight of the previous iterate, ``integration_error`` the error of posterior
    integrals.

    Attributes
    ----------
    residual : float or 0-d array
        Undamped relative change of the iterate; the tolerance applies to it. NaN or inf means divergence.
    predicted_overlap : array (P,) or None
        Overlap of each component with the signal that the algorithm itself predicts, ``diag(second_moment - V)``.
        None for algorithms that predict none: then only the residual and the number of steps end a run.
    self_overlap : array (P,) or None
        Overlap of each component of the estimate with itself; on the Nishimori line it equals ``predicted_overlap``.
    squared_step : array (P,) or None
        Undamped squared change of each component in this step, in units of an overlap.
    log_information_ratio : array (P,) or None
        Logarithm of the ratio of two independent estimates of the information that the data carry; 0 when the
        algorithm predicts its own error correctly.
    warning : str or None
        Something the user should know about this run; the engine stores each different one once.
    samples : float or None
        Samples of the data set processed since the start, repeated ones counted each time; recorded in the trajectory, so that
        learning can be shown over epochs. Fresh samples are counted by the engine.
    integration_error : float, 0-d array or None
        Largest ``Posterior.error`` of this step. It may stay on the device: the engine reads it with the rest and warns.
    damping : float or None
        Weight of the previous iterate in this step, in [0, 1), on the host; recorded in the
        trajectory. None where nothing is damped.
    """

    residual: Array | float
    predicted_overlap: Array | None = None
    self_overlap: Array | None = None
    squared_step: Array | None = None
    log_information_ratio: Array | None = None
    warning: str | None = None
    samples: float | None = None
    integration_error: Array | None = None
    damping: float | None = None


class StoppingRule:
    """Rule that decides when a run ends and whether its result can be trusted; a ``Plan`` may contain one."""

    def watch(self, info: Info) -> None:
        """Receive the report of a step (``info``), on the host: ``residual`` is a float, other fields are float64 arrays or
        None.
        """
        raise NotImplementedError

    def ending(self, tolerance: float) -> str | None:
        """Reason why the run may stop now, such as a residual below ``tolerance``, or None; not called if the algorithm
        plans a number of steps.
        """
        raise NotImplementedError

    def complaint(self) -> str | None:
        """Reason why the result of a run that ends now cannot be trusted (it becomes ``not-converged``), or None."""
        raise NotImplementedError

    def settled(self) -> str | None:
        """Reason why a run that used all its iterations still counts as ``ok``, or None."""
        raise NotImplementedError


class Algorithm(Item):
    """Algorithm that maps data to an estimate of the signal, in steps or with a single ``fit``.
    ``theory`` predicts its error, ``variance`` is the error V that it claims, ``start`` a starting point for other
    algorithms.

    Instead of ``init``, ``step`` and ``estimate`` a single ``fit(data) -> estimate`` is enough, of a class or alone: a function
    ``fit(data, *, parameter=value)`` can be registered as it is. It may name ``problem`` and ``rng`` as arguments; see
    ``smimbench.registry.items``.

    The loop, the clock, the time limit, divergence and the trajectory belong to the engine. ``data.inputs`` may be a stand-in
    that only gives slices of the samples (``smimbench.backend.streaming``): go through them with ``sample_chunks``. One
    iteration should not ask for a number on the host: what ``Info`` holds may be 0-d arrays, which the engine reads together.
    """

    _alternative_members = (("init", "step", "estimate"), ("fit",))

    def init(self, problem: Any, data: Data, rng: np.random.Generator) -> Any:
        """Initial state of a run on ``data``; random numbers come from ``rng`` only.

        ``rng`` is a host generator of its own for every run. With an argument ``students``: that many independent starts as one
        state with one more axis in front, which ``step`` and ``estimate`` keep; `averaged` uses it.
        """
        raise NotImplementedError

    def step(self, problem: Any, data: Data, state: Any) -> tuple[Any, Info]:
        """Run one iteration on ``data`` from a state and return the new state and a report (``Info``)."""
        raise NotImplementedError

    def joint_step(
        self, problem: Any
    ) -> Callable[[list[Data], list[Any]], list[tuple[Any, Info]]] | None:
        """Function that makes one step of several runs on this problem, which differ in their seeds, or None if each run makes
        its steps alone.

        ``joint_step(problem)(data, states)`` lists, of the data and the state of each run, what ``step`` returns, in the same
        bits. It changes no state in place, and uses no numbers that ``init`` stored in the algorithm, which is that of one of the
        runs. Where anything fails or warns, every run begins again, alone. Without it: every run is alone.
        """
        return None

    def estimate(self, state: Any) -> Array:
        """Estimate of the signal that a state contains, in the shape of the signal."""
        raise NotImplementedError

    def plan(self, data: Data) -> Plan:
        """Plan a run from the shapes of ``data``, which has no numbers yet.

        Returns ``Plan(steps, batch, students, draws_fresh, cost, stopping_rule, passes)``. Without it: as many steps as a
        parameter `steps` says, or until the engine's stopping rule ends it, each on all samples.
        """
        return Plan(steps=getattr(self, "steps", None))

    start: Callable[[Any, Data, np.random.Generator], Start] | None = None
    """``start(problem, data, rng)``: starting point for other algorithms, an estimate with its error. Without it: none can start
    there."""

    def retry(self, problem: Any, outcome: str) -> Any:
        """Return the algorithm for a second attempt after a run that failed with this ``outcome``, or None for no second
        attempt.

        After ``"diverged"`` or ``"not-converged"`` it starts over; after ``"unsettled"`` (all iterations are used, the run still
        moves) it goes on from its state for as many again. Without it: there is no second attempt.
        """
        return None

    def refuses(self, problem: Any) -> str | None:
        """Reason why the algorithm cannot solve a problem, or None.

        Cells of a refused problem are ``skipped``. Without it: all problems that its capabilities allow are tried.
        """
        return None

    theory: Callable[..., AlgorithmPrediction | str] | None = None
    """``theory(problem, alpha, conditions)``: prediction of theory for this algorithm, an ``AlgorithmPrediction``
    (``smimbench.theory.limit_point`` makes it from overlaps), or the reason why there is none. ``conditions``, a ``Conditions``,
    may be left out. With an argument ``assumed``: a problem that all methods are given while data are from ``problem``; None if
    that is the same. Without it: its rows are compared with the Bayes-optimal value only."""

    variance: Callable[[Any], Array] | None = None
    """``variance(state)``: the error V (P, P) that it predicts for its estimate. Without it: no Bayes predictor of the label."""

    def findings(self, state: Any) -> dict[str, Any]:
        """Measure additional quantities of the final state of a run: lists of numbers by name.

        They are shown as means next to those of the same name in ``theory``; None: not found. ``spectrum``, the eigenvalues of
        the estimate, is a histogram next to ``theory``'s ``spectrum``, a dict: ``edges`` of bins, ``mass`` in each and that of
        ``zeros``. Without it: nothing but the errors is kept.
        """
        return {}


def plan_of(algorithm: Any, data: Data) -> Plan:
    """Plan of an algorithm, for tables and cost estimates; an empty plan if its ``plan`` fails."""
    try:
        plan = algorithm.plan(data)
    except (Exception, SystemExit):
        return Plan()
    if not isinstance(plan, Plan):
        return Plan()
    counts = (plan.steps, plan.batch, plan.students)
    if all(count is None or isinstance(count, int) for count in counts):
        return plan
    return Plan()


def refusal(algorithm: Algorithm, problem: ProblemLike) -> str | None:
    """Reason why an algorithm cannot solve a problem (wrong model, or the algorithm's own reason), or None."""
    supported_models = getattr(algorithm, "capabilities", Capabilities()).models
    problem_model = problem.model.name
    if "*" not in supported_models and problem_model not in supported_models:
        return f"algorithm {algorithm.name!r} works for {', '.join(supported_models)}, not for {problem_model!r}"
    reason = algorithm.refuses(problem)
    return str(reason) if reason else None
