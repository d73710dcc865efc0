"""Estimated cost of cells: operations, seconds, memory."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from smimbench.backend import machine
from smimbench.backend.device import get_backend
from smimbench.files import attempt, canonical_json
from smimbench.interfaces import Algorithm
from smimbench.interfaces.algorithm import plan_of, refusal
from smimbench.interfaces.problem import placeholder_data
from smimbench.problem.problem import Problem
from smimbench.run.cell import run_cell
from smimbench.run.executor import Limits
from smimbench.run.processes import in_processes
from smimbench.run.record import Record
from smimbench.suite.cells import Cell

TRIAL = 0.02
"""Seconds of an iteration, by its matrix products, that a trial is cut down to. Doubled, a dry run takes twice as long."""
LONGEST_TRIAL = 20.0
"""Seconds after which a trial of a plugin is ended from outside; doubled, a dry run of one that hangs takes twice as long."""
USUAL = 60
"""Iterations of an algorithm that stops by itself. Doubled, runs of message passing are said to take twice as long."""
GROUP = ("problem", "algorithm", "backend")
"""Keys of cells that take the same time for the same work."""
CALL = 2e-4
"""Seconds of an iteration of a tiny instance. Doubled, suites of tiny instances are said to take twice as long."""


@dataclass(frozen=True)
class Estimate:
    """Expected time and memory of a run, with the number of cells estimated from past runs and from trials."""

    seconds: float
    peak_bytes: int
    learned: int = 0
    tried: int = 0


class _Speed(NamedTuple):
    """Speed of a device: operations per second, and bytes read per second."""

    rate: float
    bandwidth: float = math.inf


HOST = _Speed(1e10)
"""A core of a processor, where no run and no trial tells how fast it is; doubled, such cells are said to take half as long."""


class _Past(NamedTuple):
    """Duration of an earlier run, with its sample ratio, dimension and iterations."""

    alpha: float
    dimension: int
    iterations: int
    seconds: float


def estimate_cost(
    cells: Sequence[Cell], workers: int, past: Iterable[Record] = ()
) -> Estimate:
    """Estimate the cost of a suite before anything is drawn.

    A cell takes as many times what its matrix products take as earlier runs of its problem and algorithm on this machine, or
    else as some iterations on an instance that is cut down to ``TRIAL``.

    Parameters
    ----------
    past : iterable of Record
    """
    seconds, peak, learned, tried = 0.0, 0, 0, 0
    past_runs: dict[str, list[_Past]] = {}
    for record in past:
        identity, timing = record.cell, record.timing
        if (
            timing.machine == machine.fingerprint()
            and timing.total_seconds
            and record.iterations
        ):
            run = _Past(
                identity["alpha"],
                identity["dimension"],
                record.iterations,
                timing.total_seconds,
            )
            name = canonical_json([identity.get(key) for key in GROUP])
            past_runs.setdefault(name, []).append(run)
    for name, group, problem, algorithm in _groups(cells):
        refused, error = attempt(refusal, algorithm, problem)
        if refused or error is not None:  # its cells end at once
            continue
        runs = past_runs.get(name, [])
        trial = [] if runs else _trial(problem, algorithm, group)
        usual = float(np.median([run.iterations for run in runs])) if runs else USUAL
        paces = []
        for run in runs or trial:
            once, _ = _iteration(problem, algorithm, group[0], run.alpha, run.dimension)
            paces.append(run.seconds / run.iterations / once)
        pace = float(np.median(paces or [1.0]))
        for cell in group:
            once, steps = _iteration(
                problem, algorithm, cell, cell.alpha, cell.dimension
            )
            seconds += pace * once * (steps or min(usual, cell.run.max_iterations))
            peak = max(peak, _memory(problem, cell))
        learned += len(group) * bool(runs)
        tried += len(group) * bool(trial)
    return Estimate(seconds / max(1, workers), peak * max(1, workers), learned, tried)


def memory_of_a_cell(cells: Sequence[Cell]) -> int:
    """Peak memory, in bytes, of the largest of the cells, including its process."""
    largest = 0
    for _, group, problem, _ in _groups(cells):
        points = {(cell.alpha, cell.dimension): cell for cell in group}
        largest = max(largest, *(_memory(problem, cell) for cell in points.values()))
    return largest


def _groups(
    cells: Sequence[Cell],
) -> Iterator[tuple[str, list[Cell], Problem, Algorithm]]:
    """Group cells by problem, algorithm and backend."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(
            canonical_json([getattr(cell, key) for key in GROUP]), []
        ).append(cell)
    for name, group in groups.items():
        yield name, group, *group[0].rebuild()


def _trial(
    problem: Problem, algorithm: Algorithm, group: Sequence[Cell]
) -> list[_Past]:
    """Time some iterations on a smaller instance; return nothing if they fail."""
    cell = max(group, key=lambda cell: cell.alpha)
    dimension = cell.dimension
    while (
        dimension > 8
        and _iteration(problem, algorithm, cell, cell.alpha, dimension)[0]
        > TRIAL + CALL
    ):
        dimension = int(0.7 * dimension)
    foreign = (
        cell.distributions()
    )  # code of others, which need not come back, and compiles in its first iteration
    clock = LONGEST_TRIAL / 2 if foreign else 0.5
    smaller = cell.run.model_copy(
        update={"timeout": clock, "max_iterations": min(cell.run.max_iterations, 8)}
    )
    trial = dataclasses.replace(cell, dimension=dimension, run=smaller)
    if foreign:
        (record,) = in_processes([trial], 1, 1, limits=Limits(seconds=LONGEST_TRIAL))
    else:
        run_cell(trial)  # what is compiled or tabulated once is no part of an iteration
        record = run_cell(trial)
    seconds = record.timing.per_iteration or record.timing.first_iteration
    return [_Past(cell.alpha, dimension, 1, seconds)] if seconds else []


def _iteration(
    problem: Problem, algorithm: Algorithm, cell: Cell, alpha: float, dimension: int
) -> tuple[float, int | None]:
    """Estimate seconds per iteration and number of iterations (None if the algorithm decides) of a run.

    The run is like that of ``cell``, at another sample ratio and dimension; only matrix products and reads count.
    """
    model = problem.model
    samples = model.sample_count(alpha, dimension)
    plan = plan_of(algorithm, placeholder_data(samples, model.tokens, dimension, alpha))
    batch = plan.batch or samples
    cost = model.cost(batch, dimension, problem.components)
    read = _width(cell) * batch * model.tokens * dimension
    rate, bandwidth = _speed_of(cell)
    return max(
        plan.students * (cost.flops + cost.denoiser) / rate, read / bandwidth
    ) + CALL, plan.steps or None


def _memory(problem: Problem, cell: Cell) -> int:
    """Estimate the memory, in bytes, of inputs, labels and a few copies of the signal."""
    model, D = problem.model, cell.dimension
    samples = model.sample_count(cell.alpha, D)
    inputs = samples * model.tokens * D * _width(cell)
    labels = 2 * samples * model.tokens**2 * 8
    signals = 8 * math.prod(model.signal_shape(problem.components, D)) * 8
    return 11 * inputs // 10 + labels + signals + 150 * 2**20


def _width(cell: Cell) -> int:
    """Size in bytes of one number of the inputs."""
    return 8 if cell.run.dtype == "float64" else 4


def _speed_of(cell: Cell) -> _Speed:
    if not get_backend(cell.backend).accelerated:
        return HOST
    rates = machine.peak_rates(cell.backend)
    kind = "tf32" if cell.run.tf32 else cell.run.dtype
    return _Speed(rates.get(kind, rates["float64"]), rates["bandwidth"])
