"""Checks of algorithms: shapes, seeds, unchanged data and states, precision, array namespaces, records of runs, own theory.

They run on every model that their capabilities name, with the channels that ship for it, at sizes of milliseconds; runs that
are extrapolated to infinite dimension, to compare them with the algorithm's own theory, take seconds. Whether an algorithm is
good is for a suite to say; these checks say whether its results mean what they seem to mean.
"""

from __future__ import annotations

import copy
import math
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from smimbench.backend.arrays import to_host
from smimbench.backend.device import Backend, get_backend
from smimbench.interfaces import (
    Algorithm,
    Array,
    Conditions,
    Data,
    Host,
    Info,
    Model,
    Overlaps,
)
from smimbench.interfaces.problem import prior_moments
from smimbench.numerics.size_laws import extrapolate, pooled_errors
from smimbench.problem.instance import Instance
from smimbench.problem.problem import Problem
from smimbench.registry.items import parameters_of
from smimbench.registry.registry import find_metric, theory_of, using
from smimbench.run.loop import LoopRun, Status, run_algorithm
from smimbench.run.record import Record
from smimbench.run.theory_solver import TheorySolver
from smimbench.suite.schema import RunOptions
from smimbench.testing.context import CheckContext, OverlayRegistry
from smimbench.testing.core import (
    CheckFailed,
    CheckSkipped,
    Draw,
    expect_array,
    expect_value,
    on_another_device,
    published,
    require_single_precision,
)
from smimbench.theory.information import information_at
from smimbench.theory.predictions import own_theory

MAX_STEPS, STEPS_TO_LEARN = 3, 20
"""Iterations that most checks look at, and those that let an algorithm learn."""

REPORTED = (
    "predicted_overlap",
    "self_overlap",
    "squared_step",
    "log_information_ratio",
)
"""Fields of ``Info`` that hold one number for each component."""


@dataclass(frozen=True, eq=False)
class SmallProblem:
    """A problem with an ``instance`` (random data) of about twenty samples, which the algorithm under test (in ``context``) can
    solve.
    """

    context: CheckContext
    problem: Problem
    instance: Instance

    @property
    def name(self) -> str:
        """Label of the problem."""
        return self.problem.label

    def data(self, dtype: str = "float64") -> Data:
        """Return the data of the instance that the algorithm may see, in this dtype."""
        return self.instance.data(get_backend("numpy", dtype))

    def estimate(
        self, data: Data, rng: np.random.Generator, max_steps: int = MAX_STEPS
    ) -> Array:
        """Run the algorithm on ``data``, with random numbers of ``rng``, for at most ``max_steps`` steps and return its
        estimate of the signal, on its own device.
        """
        algorithm = self.context.item
        state = algorithm.init(self.problem, data, rng)
        state = self.proceed(data, state, max_steps)
        return algorithm.estimate(state)

    def proceed(self, data: Data, state: object, max_steps: int = MAX_STEPS) -> Any:
        """Run at most ``max_steps`` more steps on ``data`` from a state of the algorithm and return the new state."""
        for _ in range(steps_of(self.context.item, data, max_steps)):
            state, _ = self.context.item.step(self.problem, data, state)
        return state

    def run(
        self, seed: int, data: Data | None = None, max_steps: int = MAX_STEPS
    ) -> Host:
        """Run the algorithm from a seed for at most ``max_steps`` steps, on ``data`` or that of the instance, and return a copy
        of its estimate on the host.
        """
        rng = self.context.rng(seed)
        return np.array(to_host(self.estimate(data or self.data(), rng, max_steps)))


def steps_of(algorithm: Algorithm, data: Data, max_steps: int = MAX_STEPS) -> int:
    """Number of steps to run on ``data``: the number that the algorithm plans, but at most ``max_steps``."""
    steps = algorithm.plan(data).steps
    return max_steps if steps is None else max(1, min(int(steps), max_steps))


def _sample_ratio_and_dimension(model: Model) -> tuple[float, int]:
    """Sample ratio alpha and dimension D that give about twenty samples of a model."""
    return (1.5, 16) if model.rank == "low" else (0.4, 10)


@lru_cache(maxsize=4)
def small_problems(context: CheckContext) -> tuple[tuple[SmallProblem], ...]:
    """Return one small problem for each shipped problem that the algorithm does not refuse. It is a test case, a tuple of
    one. ``context`` holds the algorithm under test.

    Raises
    ------
    CheckSkipped
        If it refuses all of them.
    """
    cases: list[tuple[SmallProblem]] = []
    refusals: list[str] = []
    for problem in context.problems():
        if reason := context.item.refuses(problem):
            refusals.append(reason)
        else:
            instance = problem.instance(
                *_sample_ratio_and_dimension(problem.model), seed=context.seed
            )
            cases.append((SmallProblem(context, problem, instance),))
    if not cases:
        raise CheckSkipped(
            f"the algorithm refuses all shipped problems: {'; '.join(dict.fromkeys(refusals)) or 'there are none'}"
        )
    return tuple(cases)


def _one_per_model(context: CheckContext) -> Iterable[tuple[SmallProblem]]:
    """Return one small problem for every model, as a test case (a tuple of one). ``context`` holds the algorithm under test."""
    by_model: dict[str, tuple[SmallProblem]] = {}
    for test_case in small_problems(context):
        by_model.setdefault(test_case[0].problem.model.name, test_case)
    return by_model.values()


algorithm_check = partial(published, ("algorithm",), cases=small_problems)
once_per_model = partial(published, ("algorithm",), cases=_one_per_model)


def draws(context: CheckContext) -> Iterator[Draw]:
    """Yield the estimates of short runs, as ``Draw`` functions of the random generator passed to ``init``. ``context`` holds
    the algorithm under test.
    """
    for (small_problem,) in small_problems(context):
        yield Draw(
            f"estimate ({small_problem.name})",
            partial(small_problem.estimate, small_problem.data()),
        )


@algorithm_check(
    "The estimate is not a signal: it has a wrong shape or contains NaN or infinity, at the start or after some steps.",
    required=True,
)
def shapes(context: CheckContext, small: SmallProblem) -> None:
    """Check on a small problem of P components that estimates are finite and have the signal's shape, and that every step
    returns a valid ``Info``. ``context`` holds the algorithm under test.
    """
    problem = small.problem
    data = small.data()
    algorithm = context.item
    P = problem.components
    shape = tuple(problem.model.signal_shape(P, data.dimension))
    state = algorithm.init(problem, data, context.rng(1))
    estimate = algorithm.estimate(state)
    expect_array(f"estimate at the start ({small.name})", estimate, shape)
    for k in range(steps_of(algorithm, data)):
        step_output = algorithm.step(problem, data, state)
        if (
            not isinstance(step_output, tuple)
            or len(step_output) != 2
            or not isinstance(step_output[1], Info)
        ):
            raise CheckFailed(
                f"step must return (state, smimbench.Info(...)), got {type(step_output).__name__}"
            )
        state, info = step_output
        expect_array(
            f"estimate after step {k + 1} ({small.name})",
            algorithm.estimate(state),
            shape,
            "float64",
            data.inputs,
        )
        _expect_valid_info(info, P, small.name)
    if algorithm.variance is not None:
        variance = algorithm.variance(state)
        expect_array("variance", variance, (P, P), "float64", data.inputs)


def _expect_valid_info(info: Info, components: int, problem_name: str) -> None:
    """Check that the ``Info`` of a step has a finite residual >= 0 and one number for each of the P ``components`` in its
    other fields. ``problem_name`` is for messages.
    """
    residual: Array = info.residual
    if hasattr(residual, "dtype"):
        residual = to_host(residual)
    if not 0 <= float(residual) < math.inf:
        raise CheckFailed(
            f"Info.residual must be a finite number >= 0, got {float(residual)} ({problem_name})"
        )
    for field_name in REPORTED:
        field_numbers = getattr(info, field_name)
        if field_numbers is not None and np.shape(to_host(field_numbers)) != (
            components,
        ):
            raise CheckFailed(
                f"Info.{field_name} must have shape ({components},), got {np.shape(to_host(field_numbers))}"
            )


@algorithm_check(
    "The algorithm modifies its data, so every algorithm that runs later on the same instance solves another problem."
)
def data_unchanged(context: CheckContext, small: SmallProblem) -> None:
    """Check that inputs and labels are unchanged after a run of the algorithm, and that read-only inputs are accepted.
    ``context`` holds the algorithm under test, ``small`` a problem of about twenty samples.
    """
    instance = small.instance
    inputs = np.array(instance.inputs)
    labels = np.array(instance.labels)
    small.estimate(replace(small.data(), inputs=inputs, labels=labels), context.rng(11))
    for name, array, original in (
        ("inputs", inputs, instance.inputs),
        ("labels", labels, instance.labels),
    ):
        if not np.array_equal(array, original):
            raise CheckFailed(
                f"the algorithm modifies its input: data.{name} has changed ({small.name}); work on a copy"
            )
    try:
        small.run(11)
    except ValueError as error:
        if "read-only" not in str(error):
            raise
        raise CheckFailed(
            f"the algorithm writes into its input data, which is read-only in a run: {error}"
        ) from error


@algorithm_check(
    "The algorithm ignores its seed: its random numbers come from elsewhere, so that repeated runs are identical and the "
    "standard errors in tables are wrong."
)
def seed(context: CheckContext, small: SmallProblem) -> None:
    """Check that the seed changes the estimate, unless the algorithm draws no random numbers at all. That is tested by
    changing NumPy's default generator, and by permuting the features of the inputs, which must permute the estimate alike.
    ``context`` holds the algorithm under test, ``small`` a problem of about twenty samples.

    An algorithm without random numbers cannot tell one coordinate from another: permuting them in the inputs permutes the
    estimate, up to the symmetry of the labels. One that starts from random numbers of its own does not do that. What its own
    ``numpy.random.default_rng`` draws is exchanged besides: fixed nodes of an integral may come from there, for their values
    hardly matter; a starting point or an order of samples may not.
    """
    estimate = small.run(31)
    if not np.array_equal(estimate, small.run(32)):
        return

    def expect_same(difference: Host, tolerance: float, reason: str) -> None:
        """Raise CheckFailed if a ``difference`` of two estimates exceeds ``tolerance`` times the estimate, although nothing
        that matters has changed; ``reason`` says what hides the seed.
        """
        if not np.linalg.norm(difference) <= tolerance * np.linalg.norm(estimate):
            raise CheckFailed(
                f"the algorithm ignores its seed: every seed gives the same estimate, {reason} "
                f"({small.name}); use the rng passed to init"
            )

    with _shifted_generators():
        expect_same(
            small.run(31) - estimate,
            0.1,
            "which depends on a numpy.random.default_rng of its own",
        )
    data = small.data()
    feature_order = context.rng(33).permutation(data.dimension)
    inputs = np.ascontiguousarray(data.inputs[:, :, feature_order])
    estimate_of_permuted = small.run(31, replace(data, inputs=inputs, fresh=None))
    permuted_estimate = estimate[..., feature_order]
    if estimate.ndim == 3:  # matrices
        permuted_estimate = permuted_estimate[:, feature_order]
    aligned_estimate = small.problem.model.align(
        permuted_estimate, estimate_of_permuted, small.problem.channel.symmetry
    )
    expect_same(
        to_host(aligned_estimate) - permuted_estimate,
        1e-4,
        "but permuting the coordinates of the inputs changes more than their order",
    )


@contextmanager
def _shifted_generators() -> Iterator[None]:
    """Context in which ``np.random.default_rng`` gives another stream, unless it wraps an existing generator."""
    original_default_rng = np.random.default_rng
    generator_types = (
        np.random.Generator,
        np.random.BitGenerator,
        np.random.SeedSequence,
    )

    def shifted_default_rng(seed: object = None) -> np.random.Generator:
        """Generator of a seed other than the given one; an existing generator as it is."""
        return original_default_rng(
            seed if isinstance(seed, generator_types) else [977, 978]
        )

    with mock.patch.object(np.random, "default_rng", shifted_default_rng):
        yield


@once_per_model(
    "The algorithm moves away from the signal: its error grows to twice the error of the prior mean."
)
def learns(context: CheckContext, small: SmallProblem) -> None:
    """Check that, with many samples, some steps do not raise the MSE above twice that of the start or of the prior mean (1).
    alpha and D are the sample ratio and dimension of this larger instance. ``context`` holds the algorithm under test,
    ``small`` a problem of about twenty samples.
    """
    problem = small.problem
    algorithm = context.item
    alpha, D = (4.0, 20) if problem.model.rank == "low" else (1.5, 12)
    instance = problem.instance(alpha, D, 1, seed=context.seed)
    larger_problem = replace(small, instance=instance)

    def mean_mse(estimate: Host) -> float:
        """Mean of an estimate's MSE over the components of the signal."""
        return float(np.mean(instance.metrics(np.asarray(estimate, float))["mse"]))

    state = algorithm.init(problem, larger_problem.data(), context.rng(35))
    initial_error = mean_mse(to_host(algorithm.estimate(state)))
    final_error = mean_mse(larger_problem.run(35, max_steps=STEPS_TO_LEARN))
    if not final_error <= 2 * max(1.0, initial_error):
        raise CheckFailed(
            f"its error is {initial_error:.3g} at the start and {final_error:.3g} after some steps, and 1 at the prior mean "
            f"({small.name}, alpha = {alpha:g}, D = {D}): the steps go in the wrong direction, or the learning rate is too large"
        )


@once_per_model(
    "A state does not contain all that the algorithm iterates: a copy continues differently, or later steps change "
    "the estimate of an earlier state."
)
def state_copies(context: CheckContext, small: SmallProblem) -> None:
    """Check that a deep copy of a state leads to the same estimate, that reading an estimate twice gives equal arrays, and
    that steps leave earlier estimates unchanged. ``context`` holds the algorithm under test, ``small`` a problem of about
    twenty samples.
    """
    algorithm = context.item
    data = small.data()
    state = algorithm.init(small.problem, data, context.rng(51))
    state_copy = copy.deepcopy(state)
    estimate = to_host(algorithm.estimate(state))
    estimate_copy = np.array(estimate)
    estimate_read_again = algorithm.estimate(state)
    final_estimate, final_estimate_of_copy = (
        np.array(to_host(algorithm.estimate(small.proceed(data, begin_state))))
        for begin_state in (state, state_copy)
    )

    def expect_equal(array: Host, expected: Host, mistake: str) -> None:
        """Raise CheckFailed with this ``mistake`` if two estimates (``array``, ``expected``) differ."""
        if not np.array_equal(array, expected):
            raise CheckFailed(f"two estimates must be equal on {small.name}: {mistake}")

    expect_equal(
        estimate,
        estimate_copy,
        "a step changes an estimate that was returned before it; create a new array in step",
    )
    expect_equal(
        estimate_copy,
        estimate_read_again,
        "reading the estimate of a state twice gives two different arrays",
    )
    expect_equal(
        final_estimate,
        final_estimate_of_copy,
        "a copy of the state leads to another estimate; keep everything that the algorithm iterates in its state",
    )


@once_per_model(
    "Runs of several seeds that make their steps together end elsewhere than single ones."
)
def joint_steps(context: CheckContext, small: SmallProblem) -> None:
    """Check that joint steps of three runs return what ``step`` returns for each of them, in the same bits, and leave the states
    that they begin from as they are. ``context`` holds the algorithm under test, ``small`` a problem of about twenty samples.
    """
    algorithm, problem = context.item, small.problem
    algorithms = [copy.copy(algorithm) for _ in range(3)]
    joint_step = algorithms[0].joint_step(problem)
    if joint_step is None:
        raise CheckSkipped("each run makes its steps alone")
    size = _sample_ratio_and_dimension(problem.model)
    runs = [
        replace(small, instance=problem.instance(*size, seed=context.seed + shift))
        for shift in range(3)
    ]
    data_of_runs = [run.data() for run in runs]
    states = [
        of_run.init(problem, data, context.rng(61 + k))
        for k, (of_run, data) in enumerate(zip(algorithms, data_of_runs))
    ]
    for k in range(steps_of(algorithm, data_of_runs[0])):
        joint_outputs = joint_step(data_of_runs, states)
        outputs = [
            of_run.step(problem, data, state)
            for of_run, data, state in zip(algorithms, data_of_runs, states)
        ]
        for of_run, (state, info), (joint_state, joint_info) in zip(
            algorithms, outputs, joint_outputs, strict=True
        ):
            if (
                not np.array_equal(of_run.estimate(state), of_run.estimate(joint_state))
                or info.residual != joint_info.residual
            ):
                raise CheckFailed(
                    f"joint step {k + 1} of three runs must return the estimate and the residual that step returns for each of "
                    f"them ({small.name}), leave their states as they are, and use no numbers that init stored in the algorithm"
                )
        states = [state for state, _ in joint_outputs]


@once_per_model(
    "The algorithm converts float32 data to float64: it takes twice the memory and time that tables state."
)
def dtypes(context: CheckContext, small: SmallProblem) -> None:
    """Check that estimates from float32 data are float32 and finite. ``context`` holds the algorithm under test, ``small`` a
    problem of about twenty samples.
    """
    require_single_precision(context.item)
    estimate = small.estimate(small.data("float32"), context.rng(61))
    shape = small.instance.signal.shape
    expect_array(f"estimate of float32 data ({small.name})", estimate, shape, "float32")


@once_per_model(
    "The algorithm needs NumPy arrays and cannot run on a GPU. Use the functions of smimbench.backend.namespace(data.inputs)."
)
def namespace(context: CheckContext, small: SmallProblem) -> None:
    """Check that strict array-API arrays on another device give the same estimate as NumPy arrays. ``compare`` does it for
    one backend. ``context`` holds the algorithm under test, ``small`` a problem of about twenty samples.
    """

    def compare(backend: Backend) -> None:
        """Compare the estimate on this backend with that on NumPy."""
        data = small.instance.data(backend)
        estimate = small.estimate(data, context.rng(71), 2)
        shape = small.instance.signal.shape
        expect_array(
            f"estimate ({small.name})", estimate, shape, "float64", data.inputs
        )
        numpy_estimate = small.run(71, max_steps=2)
        largest_difference = np.abs(to_host(estimate) - numpy_estimate).max()
        if not largest_difference <= 1e-6 * (1 + np.abs(numpy_estimate).max()):
            raise CheckFailed(
                f"the estimate differs between NumPy and another array namespace by {largest_difference:.2g} ({small.name})"
            )

    on_another_device(context.item, compare)


def _run_cell_record(context: CheckContext, small: SmallProblem) -> Record:
    """Run the algorithm on a small problem as one cell of a suite, and return the cell's record. ``context`` holds the
    algorithm under test.
    """
    from smimbench.run.cell import run_cell
    from smimbench.suite.cells import Cell
    from smimbench.suite.schema import RunOptions

    item = context.item
    problem = small.problem
    alpha, dimension = _sample_ratio_and_dimension(problem.model)
    cell = Cell(
        problem=problem.spec,
        algorithm={"name": item.name, "version": item.version, **parameters_of("algorithm", item)},
        alpha=alpha, dimension=dimension, replicate=0, seed=context.seed, backend="numpy",
        run=RunOptions(max_iterations=STEPS_TO_LEARN, timeout=0.3),
        problem_label=small.name, algorithm_label=problem.label,
    )  # fmt: skip
    # The run uses the items as registered, without the wrappers of the engine.
    items_under_test = {"algorithm": item}
    for kind in ("model", "inputs", "channel", "prior"):
        completed_item = getattr(problem, kind)
        items_under_test[kind] = getattr(completed_item, kind, completed_item)
    with using(OverlayRegistry(items_under_test)):
        return run_cell(cell)


@algorithm_check(
    "A run in a suite fails or cannot be stored: the algorithm does not work for every problem that its capabilities name and "
    "that it does not refuse, or it reports values that are not plain numbers and strings."
)
def runs(context: CheckContext, small: SmallProblem) -> None:
    """Check that one cell (run of a suite) for every channel of every supported model runs, and that its stored record reads
    back equal. ``context`` holds the algorithm under test, ``small`` a problem of about twenty samples.
    """
    from smimbench.run.store import Store

    record = _run_cell_record(context, small)
    if record.status == "failed":
        raise CheckFailed(f"the algorithm fails on {small.name}: {record.reason}")
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "check")
        try:
            store.write(record)
        except (TypeError, ValueError) as error:
            raise CheckFailed(
                f"the record of a run cannot be stored: {error} ({small.name})"
            ) from error
        stored = store.load().get(record.key)
        if stored is None or stored.metrics != record.metrics:
            raise CheckFailed(
                f"the stored record of a run differs when it is read back ({small.name}): {store.complaints}"
            )


RUNS_BY_DIMENSION = {
    "extensive": (0.16, {28: 12, 40: 8, 56: 6}),
    "low": (0.35, {40: 24, 80: 16, 160: 12}),
}
"""By rank: sample ratio, and the runs at each dimension. No threshold is near. Twice the runs show a bias half as large."""

COMPARED_METRICS = ("mse", "nishimori")
"""Metrics that must agree with theory: the error, and for posterior means the Nishimori ratio, which a mistake changes at first
order where it changes the error at second."""

RUN_LIMITS = RunOptions(max_iterations=200, timeout=6.0)
"""Limits of each run; if they are doubled, slow algorithms come closer to convergence."""


def _problems_with_theory(
    context: CheckContext,
) -> Iterator[tuple[Problem, Conditions]]:
    """Yield one problem per model for which the algorithm has a theory, with the conditions of its runs. The last reason why
    there is none becomes the message of CheckSkipped. ``context`` holds the algorithm under test.
    """
    if context.item.theory is None:
        raise CheckSkipped("the algorithm has no method theory")
    skip_reason = "the algorithm refuses all shipped problems"
    checked_count = 0
    for model in context.models:
        if model.rank not in RUNS_BY_DIMENSION:
            continue
        alpha, runs_by_dimension = RUNS_BY_DIMENSION[model.rank]
        problems = [
            candidate
            for candidate in context.problems(model)
            if not context.item.refuses(candidate)
        ]
        if not problems:
            continue
        informative_problems = (
            candidate
            for candidate in problems
            if not _is_uninformative_at_start(candidate)
        )
        problem = next(informative_problems, problems[0])
        competing_points = TheorySolver().points(problem, [alpha])[0]
        point_documents = tuple(point.document() for point in competing_points)
        conditions = Conditions(
            dimension=max(runs_by_dimension), points=point_documents
        )
        prediction = own_theory(context.item, problem, alpha, conditions)
        if isinstance(prediction, str):
            skip_reason = prediction
        else:
            checked_count += 1
            yield problem, conditions
    if not checked_count:
        raise CheckSkipped(
            f"the algorithm has no theory for the problems of this check: {skip_reason}"
        )


def _is_uninformative_at_start(problem: Problem) -> bool:
    """Whether labels carry no information on some component at the prior mean, so that runs learn nothing below a threshold."""
    second_moment, overlap = prior_moments(problem)
    information = information_at(problem, overlap, second_moment - overlap).value
    return float(np.diagonal(information).min()) < 1e-6


def _runs_at_dimension(
    context: CheckContext, problem: Problem, alpha: float, D: int, count: int
) -> Iterator[tuple[Instance, LoopRun]]:
    """Yield ``count`` random instances at sample ratio alpha and dimension D, each with the outcome of running the algorithm
    on it. ``context`` holds the algorithm under test.
    """
    backend = get_backend("numpy")
    for run in range(count):
        instance = problem.instance(alpha, D, run, seed=context.seed)
        rng = partial(context.rng, 91, D, run)
        result = run_algorithm(
            problem,
            instance,
            instance.data(backend),
            context.item,
            rng,
            RUN_LIMITS,
            backend,
        )
        if result.status is Status.DIVERGED:
            raise CheckFailed(
                f"the algorithm diverges at D = {D} ({problem.label}, alpha = {alpha:g}): {result.reason}"
            )
        yield instance, result


@published(
    ("algorithm",),
    "The algorithm's runs, extrapolated to infinite dimension, disagree with its own theory: the theory describes another "
    "algorithm or the code has a mistake, and verdicts that compare them are meaningless.",
    cases=_problems_with_theory,
)
def lands_on_theory(
    context: CheckContext, problem: Problem, conditions: Conditions
) -> None:
    """Check that MSE and Nishimori ratio of runs at three dimensions D, extrapolated in 1/D, match the algorithm's theory
    under the ``conditions`` of these runs. ``runs_by_dimension`` is the number of runs at every D, and alpha the sample
    ratio. ``context`` holds the algorithm under test.
    """
    alpha, runs_by_dimension = RUNS_BY_DIMENSION[problem.model.rank]
    runs = {
        D: list(_runs_at_dimension(context, problem, alpha, D, count))
        for D, count in runs_by_dimension.items()
    }
    start_overlaps = tuple(
        Overlaps(*result.start.values()) for _, result in runs[max(runs_by_dimension)]
    )
    conditions = conditions._replace(starts=start_overlaps)
    prediction_point: Any = own_theory(context.item, problem, alpha, conditions)
    where_text = f"at infinite D, from D = {', '.join(map(str, runs_by_dimension))} ({problem.label}, alpha = {alpha:g})"
    for name in COMPARED_METRICS:
        metric = find_metric(name, problem.model.name)
        predictions, prediction_errors = theory_of(
            metric, problem, prediction_point, problem.components
        )
        if predictions[0] is None:
            continue
        metrics_by_size = [
            np.array(
                [
                    instance.measure([name], result.estimate, result.V).values[name]
                    for instance, result in results
                ]
            )
            for results in runs.values()
        ]
        for component, (prediction, prediction_error) in enumerate(
            zip(predictions, prediction_errors)
        ):
            metric_values = [array[:, component] for array in metrics_by_size]
            mean_errors, dof = pooled_errors(
                list(runs_by_dimension),
                [run_values.std(ddof=1) for run_values in metric_values],
                list(map(len, metric_values)),
            )
            extrapolation = extrapolate(
                list(runs_by_dimension),
                [run_values.mean() for run_values in metric_values],
                np.maximum(mean_errors, 1e-12),
                dof,
            )
            expect_value(
                f"{name} of component {component + 1} {where_text}",
                extrapolation.limit,
                prediction,
                np.hypot(extrapolation.error, prediction_error or 0.0),
            )
