"""Estimates what cells will cost before they run: operations, seconds and memory."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from smimbench.backend import machine
from smimbench.backend.device import get_backend
from smimbench.backend.streaming import redrawn_on_host
from smimbench.files import attempt, canonical_json
from smimbench.interfaces import Algorithm
from smimbench.interfaces.algorithm import plan_of, refusal
from smimbench.interfaces.problem import placeholder_data
from smimbench.problem.problem import Problem, without
from smimbench.registry.items import Parameters
from smimbench.run.cell import run_cell
from smimbench.run.executor import Limits
from smimbench.run.processes import run_in_processes
from smimbench.run.record import Record
from smimbench.suite.cells import Cell
from smimbench.suite.document import shipped_suites

TRIAL = 0.02
"""Seconds of an iteration, by its matrix products, that a trial is cut down to. Doubled, a dry run takes twice as long."""
TRIALS = 1.0
"""Seconds that the trials of a suite share, one at most half of them, besides what algorithms do before they begin. Doubled, a
dry run takes a second more."""
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
    """Expected time (``seconds``) and memory (``peak_bytes``) of a run, with the numbers of runs whose cost was estimated from
    past runs and from short trials.
    """

    seconds: float
    peak_bytes: int
    cells_from_past: int = 0
    cells_from_trials: int = 0


class _Speed(NamedTuple):
    """Speed of a device: arithmetic operations per second (``rate``), and bytes read from memory per second (``bandwidth``)."""

    rate: float
    bandwidth: float = math.inf


HOST = _Speed(1e10)
"""A core of a processor, where no run and no trial tells how fast it is; doubled, such cells are said to take half as long."""


class _PastRun(NamedTuple):
    """Duration in seconds of an earlier or trial run, with its sample ratio alpha, dimension and number of iterations."""

    alpha: float
    dimension: int
    iterations: int
    seconds: float


def estimate_cost(
    cells: Sequence[Cell], workers: int, past_records: Iterable[Record] = ()
) -> Estimate:
    """Estimate time and memory of the cells of a suite on this number of ``workers``, before anything is drawn, from past
    runs (``past_records``) or short trials; ``slowdown`` is the ratio of their times to the ideal ones.

    A cell takes as many times what its matrix products take as earlier runs of its problem and algorithm on this machine, or
    else as those that shipped suites were made with, or else as some iterations on an instance that is cut down to ``TRIAL``.

    Parameters
    ----------
    past_records : iterable of Record
    """
    seconds, peak_bytes, cells_from_past, cells_from_trials = 0.0, 0, 0, 0
    past_runs: dict[str, list[_PastRun]] = {}
    for record in past_records:
        cell_identity, timing = record.cell, record.timing
        if (
            timing.machine == machine.fingerprint()
            and timing.total_seconds
            and record.iterations
        ):
            past_run = _PastRun(
                cell_identity["alpha"],
                cell_identity["dimension"],
                record.iterations,
                timing.total_seconds,
            )
            group_key = canonical_json(
                [cell_identity.get(field_name) for field_name in GROUP]
            )
            past_runs.setdefault(group_key, []).append(past_run)
    groups = list(_cells_by_group(cells))
    seconds_of_trial = TRIALS / max(2, len(groups))
    for group_key, group_cells, problem, algorithm in groups:
        refusal_reason, error = attempt(refusal, algorithm, problem)
        if refusal_reason or error is not None:  # refused cells end at once
            continue
        group_runs = past_runs.get(group_key) or _shipped_runs(group_cells[0])
        trial_runs = (
            []
            if group_runs
            else _timed_trial(problem, algorithm, group_cells, seconds_of_trial)
        )
        usual_iterations = (
            float(np.median([past_run.iterations for past_run in group_runs]))
            if group_runs
            else USUAL
        )
        slowdowns = []
        for past_run in group_runs or trial_runs:
            ideal_seconds, _ = _estimate_iteration(
                problem, algorithm, group_cells[0], past_run.alpha, past_run.dimension
            )
            slowdowns.append(past_run.seconds / past_run.iterations / ideal_seconds)
        slowdown = float(np.median(slowdowns or [1.0]))
        for cell in group_cells:
            ideal_seconds, iterations = _estimate_iteration(
                problem, algorithm, cell, cell.alpha, cell.dimension
            )
            seconds += (
                slowdown
                * ideal_seconds
                * (iterations or min(usual_iterations, cell.run.max_iterations))
            )
            peak_bytes = max(peak_bytes, _memory_of(problem, cell))
        cells_from_past += len(group_cells) * bool(group_runs)
        cells_from_trials += len(group_cells) * bool(trial_runs)
    return Estimate(
        seconds / max(1, workers),
        peak_bytes * max(1, workers),
        cells_from_past,
        cells_from_trials,
    )


def cost_key(problem: Parameters, algorithm: Parameters, backend: str) -> str:
    """Key of cells (runs) with these specifications, whatever their versions, in the file of shipped costs."""
    specs = [without("version", problem), without("version", algorithm), backend]
    return hashlib.sha256(canonical_json(specs).encode()).hexdigest()[:16]


@functools.cache
def _shipped_costs() -> dict[str, list[float]]:
    """Sample ratio, dimension, iterations and seconds of a run of each group of the shipped suites, on another machine."""
    path = next(iter(shipped_suites().values())).parent / "costs.json"
    costs: dict[str, list[float]] = json.loads(path.read_text(encoding="utf-8"))
    return costs


def _shipped_runs(cell: Cell) -> list[_PastRun]:
    """Runs of the problem and algorithm of a cell that the shipped suites were made with."""
    cost = _shipped_costs().get(cost_key(cell.problem, cell.algorithm, cell.backend))
    if cost is None:
        return []
    alpha, dimension, iterations, seconds = cost
    return [_PastRun(alpha, int(dimension), math.ceil(iterations), seconds)]


def memory_of_a_cell(cells: Sequence[Cell]) -> int:
    """Peak memory, in bytes, of the largest of the cells (runs), including its process."""
    largest_bytes = 0
    for _, group_cells, problem, _ in _cells_by_group(cells):
        distinct_cells = {(cell.alpha, cell.dimension): cell for cell in group_cells}
        largest_bytes = max(
            largest_bytes,
            *(_memory_of(problem, cell) for cell in distinct_cells.values()),
        )
    return largest_bytes


def _cells_by_group(
    cells: Sequence[Cell],
) -> Iterator[tuple[str, list[Cell], Problem, Algorithm]]:
    """Yield groups of cells (runs) with the same problem, algorithm and backend, each with its key, problem and algorithm."""
    cells_of_key: dict[str, list[Cell]] = {}
    for cell in cells:
        cells_of_key.setdefault(
            canonical_json([getattr(cell, field_name) for field_name in GROUP]), []
        ).append(cell)
    for group_key, group_cells in cells_of_key.items():
        yield group_key, group_cells, *group_cells[0].rebuild()


def _timed_trial(
    problem: Problem,
    algorithm: Algorithm,
    group_cells: Sequence[Cell],
    seconds_of_trial: float,
) -> list[_PastRun]:
    """Time some iterations of an algorithm, for ``seconds_of_trial`` at most and one iteration at least, on an instance smaller
    than those of its cells (runs) (``group_cells``); return nothing if they fail.
    """
    cell = max(group_cells, key=lambda cell: cell.alpha)
    dimension = cell.dimension
    while (
        dimension > 8
        and _estimate_iteration(problem, algorithm, cell, cell.alpha, dimension)[0]
        > TRIAL + CALL
    ):
        dimension = int(0.7 * dimension)
    # Third-party code may never return, and may compile in its first iteration.
    has_third_party_code = bool(cell.distributions())
    time_limit = LONGEST_TRIAL / 2 if has_third_party_code else seconds_of_trial
    short_run = cell.run.model_copy(
        update={
            "timeout": time_limit,
            "max_iterations": min(cell.run.max_iterations, 8),
        }
    )
    trial_cell = dataclasses.replace(cell, dimension=dimension, run=short_run)
    if has_third_party_code:
        (record,) = run_in_processes(
            [trial_cell], 1, 1, limits=Limits(seconds=LONGEST_TRIAL)
        )
    else:
        record = run_cell(trial_cell)
        timing = record.timing
        is_long = (timing.first_iteration or 0.0) > 0.1 * (timing.total_seconds or 0.0)
        if timing.per_iteration is None and is_long:
            # A first iteration pays for what is compiled or tabulated once.
            record = run_cell(trial_cell)
    seconds = record.timing.per_iteration or record.timing.first_iteration
    return [_PastRun(cell.alpha, dimension, 1, seconds)] if seconds else []


def _estimate_iteration(
    problem: Problem, algorithm: Algorithm, cell: Cell, alpha: float, dimension: int
) -> tuple[float, int | None]:
    """Estimate seconds per iteration and number of iterations (None if the algorithm decides) of a run on the device of a
    cell, at sample ratio alpha and this dimension.

    The run is like that of ``cell``, at another sample ratio and dimension; only matrix products and reads count.
    """
    model = problem.model
    samples = model.sample_count(alpha, dimension)
    run_plan = plan_of(
        algorithm, placeholder_data(samples, model.tokens, dimension, alpha)
    )
    batch_size = run_plan.batch or samples
    iteration_cost = model.cost(batch_size, dimension, problem.components)
    bytes_read = _bytes_per_number(cell) * batch_size * model.tokens * dimension
    operations_per_second, bandwidth = _speed_of(cell)
    return max(
        run_plan.students
        * (iteration_cost.flops + iteration_cost.denoiser)
        / operations_per_second,
        bytes_read / bandwidth,
    ) + CALL, run_plan.steps or None


def _memory_of(problem: Problem, cell: Cell) -> int:
    """Estimate the memory of a cell (run) in bytes: inputs, labels and a few copies of the signal."""
    model = problem.model
    dimension = cell.dimension
    samples = model.sample_count(cell.alpha, dimension)
    input_bytes = samples * model.tokens * dimension * _bytes_per_number(cell)
    if problem.inputs.transform is not None and redrawn_on_host(input_bytes):
        input_bytes = 0
    label_bytes = 2 * samples * model.tokens**2 * 8
    signal_bytes = 8 * math.prod(model.signal_shape(problem.components, dimension)) * 8
    return 11 * input_bytes // 10 + label_bytes + signal_bytes + 150 * 2**20


def _bytes_per_number(cell: Cell) -> int:
    """Return the size in bytes of one number of the inputs of a cell (run)."""
    return 8 if cell.run.dtype == "float64" else 4


def _speed_of(cell: Cell) -> _Speed:
    """Return the speed of the device of a cell (run): measured peak rates, or those of a usual processor core."""
    if not get_backend(cell.backend).accelerated:
        return HOST
    peak_rates = machine.peak_rates(cell.backend)
    precision = "tf32" if cell.run.tf32 else cell.run.dtype
    return _Speed(
        peak_rates.get(precision, peak_rates["float64"]), peak_rates["bandwidth"]
    )
