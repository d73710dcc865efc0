"""Checks of algorithms: shapes, seeds, no access to the teacher, unchanged data and states, records of runs.

They run on every model that their capabilities name, with the channels that ship for it, at sizes of milliseconds. Whether an
algorithm is good is for a suite to say; these checks say whether its results mean what they seem to mean.
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
from smimbench.interfaces import Array, Data, Info
from smimbench.problem.instance import Instance
from smimbench.problem.problem import Problem
from smimbench.registry.parameters import parameters_of
from smimbench.registry.registry import using
from smimbench.testing.context import CheckContext, OverlayRegistry
from smimbench.testing.core import (
    CheckFailed,
    CheckSkipped,
    Draw,
    elsewhere,
    expect_array,
    in_single_precision,
    published,
)

STEPS, LONGEST = 3, 20
"""Iterations that most checks look at, and those that let an algorithm learn."""


@dataclass(frozen=True, eq=False)
class Setting:
    """An algorithm together with a small problem and data."""

    context: CheckContext
    problem: Problem
    instance: Instance

    @property
    def name(self) -> str:
        """Label of the small problem."""
        return self.problem.label

    def data(self, dtype: str = "float64") -> Data:
        """Data that the algorithm may see."""
        return self.instance.data(get_backend("numpy", dtype))

    def drive(self, data: Data, rng: np.random.Generator, most: int = STEPS) -> Any:
        """Run a few steps and return the estimate; array functions are set up as in the engine's own loop."""
        problem, instance, algorithm = self.problem, self.instance, self.context.item
        state = algorithm.init(problem, data, rng)
        for _ in range(steps_of(algorithm, data, most)):
            state, _ = algorithm.step(problem, data, state)
        del instance
        return algorithm.estimate(state)

    def run(self, seed: int, data: Data | None = None, most: int = STEPS) -> Array:
        """Run the algorithm and copy its estimate to the host."""
        return np.array(
            to_host(self.drive(data or self.data(), self.context.rng(seed), most))
        )


def steps_of(algorithm: Any, data: Data, most: int = STEPS) -> int:
    """Number of steps to run: the algorithm's own number, limited to a few."""
    steps = algorithm.plan(data).steps
    return most if steps is None else max(1, min(int(steps), most))


def _size(model: Any) -> tuple[float, int]:
    """Sample ratio and dimension that give about twenty samples."""
    return (1.5, 16) if model.rank == "low" else (0.4, 10)


@lru_cache(maxsize=4)
def settings(context: CheckContext) -> tuple[tuple[Setting], ...]:
    """All small problems that the algorithm does not refuse.

    Raises
    ------
    CheckSkipped
        If it refuses all.
    """
    found, reasons = [], []
    for problem in context.problems():
        if reason := context.item.refuses(problem):
            reasons.append(reason)
        else:
            instance = problem.instance(*_size(problem.model), seed=context.seed)
            found.append((Setting(context, problem, instance),))
    if not found:
        raise CheckSkipped(
            f"the algorithm refuses all shipped problems: {'; '.join(dict.fromkeys(reasons)) or 'there are none'}"
        )
    return tuple(found)


def _first_settings(context: CheckContext) -> Iterable[tuple[Setting]]:
    """One small problem for every model."""
    return {
        case[0].problem.model.name: case for case in reversed(settings(context))
    }.values()


algorithm_check = partial(published, ("algorithm",), cases=settings)
once_per_model = partial(published, ("algorithm",), cases=_first_settings)


def draws(context: CheckContext) -> Iterator[Draw]:
    """Check that all randomness in estimates comes from the generator passed to ``init``."""
    for (setting,) in settings(context):
        yield Draw(f"estimate ({setting.name})", partial(setting.drive, setting.data()))


@algorithm_check(
    "The estimate is no signal: it has another shape or holds numbers that are none, at the start or after some steps.",
    required=True,
)
def shapes(context: CheckContext, setting: Setting) -> None:
    """Check that estimates are finite and have the signal's shape, and that reports have the form the loop reads."""
    problem, data, algorithm = setting.problem, setting.data(), context.item
    P = problem.components
    wanted = tuple(problem.model.signal_shape(P, data.dimension))
    state = algorithm.init(problem, data, context.rng(1))
    expect_array(
        f"estimate at the start ({setting.name})", algorithm.estimate(state), wanted
    )
    for k in range(steps_of(algorithm, data)):
        found = algorithm.step(problem, data, state)
        if not (
            isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], Info)
        ):
            raise CheckFailed(
                f"step must return (state, smimbench.Info(...)), got {type(found).__name__}"
            )
        state, info = found
        what = f"estimate after step {k + 1} ({setting.name})"
        expect_array(what, algorithm.estimate(state), wanted, "float64", data.inputs)
        residual = float(
            to_host(info.residual) if hasattr(info.residual, "dtype") else info.residual
        )
        if not 0 <= residual < math.inf:
            raise CheckFailed(
                f"Info.residual must be a finite number >= 0, got {residual} ({setting.name})"
            )
        for name in (
            "predicted_overlap",
            "self_overlap",
            "squared_step",
            "log_information_ratio",
        ):
            value = getattr(info, name)
            if value is not None and np.shape(to_host(value)) != (P,):
                raise CheckFailed(
                    f"Info.{name} must have shape ({P},), got {np.shape(to_host(value))}"
                )
    if algorithm.variance is not None:
        expect_array(
            "variance", algorithm.variance(state), (P, P), "float64", data.inputs
        )


@algorithm_check(
    "It modifies its data: every algorithm that runs later on the same instance solves another problem."
)
def data_unchanged(context: CheckContext, setting: Setting) -> None:
    """Check that inputs and labels are unchanged after a run, and that read-only inputs are accepted."""
    instance = setting.instance
    data = replace(
        setting.data(),
        inputs=np.array(instance.inputs),
        labels=np.array(instance.labels),
    )
    setting.drive(data, context.rng(11))
    for name in ("inputs", "labels"):
        if not np.array_equal(getattr(instance, name), getattr(data, name)):
            raise CheckFailed(
                f"modifies its input: data.{name} has changed ({setting.name}); work on a copy"
            )
    try:
        setting.run(11)
    except ValueError as error:
        if "read-only" not in str(error):
            raise
        raise CheckFailed(
            f"writes into its input data, which is read-only in a run: {error}"
        ) from error


@algorithm_check(
    "It ignores its seed: random numbers come from somewhere else, so that repeated runs are one run, and the "
    "standard errors of its rows are wrong."
)
def seed(context: CheckContext, setting: Setting) -> None:
    """Check that seeds matter; without randomness no coordinate may be special and no generator may be made.

    An algorithm without random numbers cannot tell one coordinate from another: permuting them in the inputs permutes the
    estimate, up to the symmetry of the labels. One that starts from random numbers of its own does not do that. What its own
    ``numpy.random.default_rng`` draws is exchanged besides: fixed nodes of an integral may come from there, for their values
    hardly matter; a starting point or an order of samples may not.
    """
    one = setting.run(31)
    if not np.array_equal(one, setting.run(32)):
        return
    with _shifted_generators():
        shifted = setting.run(31)
    data, model = setting.data(), setting.problem.model
    order = context.rng(33).permutation(data.dimension)
    found = setting.run(
        31,
        replace(
            data, inputs=np.ascontiguousarray(data.inputs[:, :, order]), fresh=None
        ),
    )
    wanted = one[..., order] if one.ndim == 2 else one[:, order][:, :, order]
    aligned = to_host(model.align(wanted, found, setting.problem.channel.symmetry))
    size = np.linalg.norm(one)
    for gap, most, why in (
        (shifted - one, 0.1, "which depends on a numpy.random.default_rng of its own"),
        (
            aligned - wanted,
            1e-4,
            "but permuting the coordinates of the inputs changes more than their order",
        ),
    ):
        if not np.linalg.norm(gap) <= most * size:
            raise CheckFailed(
                f"ignores its seed: every seed gives the same estimate, {why} ({setting.name}); use the rng passed to init"
            )


@contextmanager
def _shifted_generators() -> Iterator[None]:
    """Context in which generators have other streams, unless they are derived from a given one."""
    original = np.random.default_rng

    def shifted(seed: Any = None) -> np.random.Generator:
        derived = isinstance(
            seed, (np.random.Generator, np.random.BitGenerator, np.random.SeedSequence)
        )
        return original(seed if derived else [977, 978])

    with mock.patch.object(np.random, "default_rng", shifted):
        yield


@once_per_model(
    "It moves away from the signal: its error grows to twice that of an estimate that knows nothing."
)
def learns(context: CheckContext, setting: Setting) -> None:
    """Check that with many samples some steps reduce the error below that of the start and of the prior mean."""
    problem, algorithm = setting.problem, context.item
    alpha, D = (4.0, 20) if problem.model.rank == "low" else (1.5, 12)
    here = replace(setting, instance=problem.instance(alpha, D, 1, seed=context.seed))
    begin = algorithm.estimate(algorithm.init(problem, here.data(), context.rng(35)))
    ends = to_host(begin), here.run(35, most=LONGEST)
    before, after = (
        float(np.mean(here.instance.metrics(np.asarray(one, dtype=float))["mse"]))
        for one in ends
    )
    if not after <= 2 * max(1.0, before):
        raise CheckFailed(
            f"its error is {before:.3g} at the start and {after:.3g} after some steps; the prior mean has 1 ({setting.name}, "
            f"alpha = {alpha:g}, D = {D}): a step in the wrong direction, or a rate that is too large"
        )


@once_per_model(
    "A state does not stand for itself: a copy of it goes on differently, or later steps change what an "
    "earlier state said."
)
def state_copies(context: CheckContext, setting: Setting) -> None:
    """Check that a deep copy of a state continues to the same estimate and leaves earlier estimates unchanged."""
    algorithm, data = context.item, setting.data()
    state = algorithm.init(setting.problem, data, context.rng(51))
    saved = copy.deepcopy(state)
    read = to_host(algorithm.estimate(state))
    kept = np.array(read)
    ends = [algorithm.estimate(state)]
    for begin in (state, saved):
        for _ in range(steps_of(algorithm, data)):
            begin, _ = algorithm.step(setting.problem, data, begin)
        ends.append(np.array(to_host(algorithm.estimate(begin))))
    for one, other, what in (
        (
            read,
            kept,
            "a step changes the estimate that was handed out before; make a new array in step",
        ),
        (kept, ends[0], "reading the estimate twice gives two answers"),
        (
            *ends[1:],
            "a copy of the state goes on to another estimate; keep all that is iterated in it",
        ),
    ):
        if not np.array_equal(one, other):
            raise CheckFailed(f"{what} ({setting.name})")


@once_per_model(
    "Single precision does not stay single precision: it takes twice the memory and time that a table says.",
    around=in_single_precision,
)
def dtypes(context: CheckContext, setting: Setting) -> None:
    """Check that estimates of float32 data are float32 and finite."""
    found = setting.drive(setting.data("float32"), context.rng(61))
    expect_array(
        f"estimate of float32 data ({setting.name})",
        found,
        setting.instance.signal.shape,
        "float32",
    )


@once_per_model(
    "It needs NumPy arrays: it will not run on a GPU. Use the functions of smimbench.backend.namespace(data.inputs).",
    around=elsewhere,
)
def namespace(context: CheckContext, setting: Setting, backend: Backend) -> None:
    """Check that the strict array API on another device gives the same numbers as NumPy."""
    data = setting.instance.data(backend)
    found = setting.drive(data, context.rng(71), 2)
    expect_array(
        f"estimate ({setting.name})",
        found,
        setting.instance.signal.shape,
        "float64",
        data.inputs,
    )
    here = setting.run(71, most=2)
    gap = np.abs(to_host(found) - here).max()
    if not gap <= 1e-6 * (1 + np.abs(here).max()):
        raise CheckFailed(
            f"the estimate differs between array namespaces by {gap:.2g} ({setting.name})"
        )


def _record(context: CheckContext, setting: Setting) -> dict[str, Any]:
    """Record of one cell run through the engine's own loop."""
    from smimbench.run.cell import run_cell
    from smimbench.suite.cells import Cell
    from smimbench.suite.schema import RunOptions

    item, problem = context.item, setting.problem
    alpha, dimension = _size(problem.model)
    cell = Cell(
        problem=problem.spec,
        algorithm={"name": item.name, "version": item.version, **parameters_of("algorithm", item)},
        alpha=alpha, dimension=dimension, replicate=0, seed=context.seed, backend="numpy",
        run=RunOptions(max_iterations=LONGEST, timeout=0.3),
        problem_label=setting.name, algorithm_label=problem.label,
    )  # fmt: skip
    # Items as registered, without what the engine has put around them.
    parts = {
        kind: getattr(problem, kind) for kind in ("model", "inputs", "channel", "prior")
    }
    bare = {kind: getattr(part, kind, part) for kind, part in parts.items()}
    with using(OverlayRegistry({**bare, "algorithm": item})):
        return run_cell(cell)


@algorithm_check(
    "A cell of a suite fails or cannot be stored: it does not work for every problem that its capabilities name and that it does "
    "not refuse, or reports what is not made of plain numbers and strings."
)
def runs(context: CheckContext, setting: Setting) -> None:
    """Check that one cell for every channel of every supported model runs through the engine's own loop, and that its record is
    equal when read back, as JSON and arrays without pickles.
    """
    from smimbench.run.store import Store

    record = _record(context, setting)
    if record["status"] == "failed":
        raise CheckFailed(f"fails on {setting.name}: {record['reason']}")
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "check")
        try:
            store.write(record)
        except (TypeError, ValueError) as error:
            raise CheckFailed(
                f"the record of a run cannot be written: {error} ({setting.name})"
            ) from error
        found = store.load().get(record["key"], {})
        if found.get("metrics") != record["metrics"]:
            raise CheckFailed(
                f"a stored record is changed when read back ({setting.name}): {store.complaints}"
            )
