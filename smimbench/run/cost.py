"""What cells will cost, before anything is drawn: seconds from products, past runs or trials, and memory."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smimbench.backend import machine
from smimbench.backend.device import get_backend
from smimbench.backend.roofline import ceilings
from smimbench.files import canonical_json
from smimbench.registry.adapters import refusal, sizes
from smimbench.registry.registry import get_registry
from smimbench.run.cell import run_cell
from smimbench.run.executor import Limits
from smimbench.run.processes import in_processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from smimbench.problem.problem import Problem
    from smimbench.registry.registry import Registry
    from smimbench.suite.cells import Cell

__all__ = ["Estimate", "estimate_cost", "memory_of_a_cell", "prices"]


TRIAL = 0.02
"""Seconds of an iteration, by its matrix products, that a trial is cut down to. Doubled, a dry run takes twice as long."""
PATIENCE = 0.5
"""Seconds after which a trial is stopped between two iterations; doubled, so is the longest dry run."""
LONGEST_TRIAL = 20.0
"""Seconds after which a trial of a plugin is ended from outside; doubled, a dry run of one that hangs takes twice as long."""
USUAL = 60
"""Iterations of an algorithm that stops by itself. Doubled, runs of message passing are said to take twice as long."""


@dataclass(frozen=True)
class Estimate:
    """What a run is expected to cost, and what that rests on: ``learned`` cells on past runs, ``tried`` ones on trials."""

    cells: int
    seconds: float
    peak_bytes: int
    learned: int = 0
    tried: int = 0


def estimate_cost(
    cells: Sequence[Cell], workers: int, past: Iterable[Mapping[str, Any]] = (), *, trials: bool = True
) -> Estimate:
    """Cost before the suite is drawn: matrix products at the rate measured now, the rest from past runs or from trials.

    A cell whose problem and algorithm were run on this machine before takes as many times what its matrix products do as
    those runs took. Others are tried: some iterations on an instance cut down to ``TRIAL``; what these take beyond their
    matrix products (posterior integrals, above all) grows with the number of samples.

    Cells of a device are priced by its own ceilings, of products or of reading memory, whichever takes longer.

    Parameters
    ----------
    past : iterable of dict
        Records.
    trials : bool
        False rests on the matrix products alone where there is no past run.
    """
    seconds, peak, learned, tried = 0.0, 0, 0, 0
    registry = get_registry()
    known = _by_problem_and_algorithm(past)
    for group in _grouped(cells):
        problem, algorithm = group[0].rebuild(registry)
        if refusal(algorithm, problem):
            continue  # its cells are skipped

        ceiling = functools.partial(_products, problem, algorithm, group[0], *_ceilings_of(group[0]))

        records = known.get(_identity(group[0]), [])
        ratios = [
            r["timing"]["total_seconds"] / ceiling(*_grid_point(r["cell"])).seconds(r.get("iterations"))
            for r in records
        ]
        usual = float(np.median([r["iterations"] for r in records])) if records else None
        trial = (
            _try_iterations(max(group, key=lambda cell: cell.alpha), ceiling, registry)
            if trials and not ratios
            else None
        )
        for cell in group:
            cost = ceiling(cell.alpha, cell.dimension)
            peak = max(peak, _memory_of_run(problem, cell))
            if ratios:
                seconds += float(np.median(ratios)) * cost.seconds(usual if cost.open_ended else None)
                learned += 1
                continue
            steps = min(cost.steps, cell.run.max_iterations) if cost.open_ended else cost.steps
            seconds += steps * (cost.iteration + (trial.excess * cost.samples if trial else 0.0))
            seconds += trial.once if trial else 0.0
            tried += trial is not None
    return Estimate(len(cells), seconds / max(1, workers), peak * max(1, workers), learned, tried)


def prices(cells: Sequence[Cell]) -> dict[str, float]:
    """Operations of each cell by its key: the same on every machine, and no past run counts."""
    registry = get_registry()
    found: dict[str, float] = {}
    for group in _grouped(cells):
        problem, algorithm = group[0].rebuild(registry)
        if refusal(algorithm, problem):
            found |= dict.fromkeys((cell.key for cell in group), 0.0)
            continue
        for cell in group:
            cost = _products(problem, algorithm, cell, 1e9, math.inf, cell.alpha, cell.dimension)
            found[cell.key] = cost.seconds(min(cost.steps, cell.run.max_iterations) if cost.open_ended else None)
    return found


class _Products(NamedTuple):
    """What the matrix products of a run take: seconds of an iteration, how many there are, and of how many samples."""

    iteration: float
    steps: float
    samples: int
    open_ended: bool

    def seconds(self, steps: float | None) -> float:
        return self.iteration * (self.steps if steps is None else steps)


class _Trial(NamedTuple):
    """Seconds of an iteration beyond its matrix products, per sample, and those outside all iterations."""

    excess: float
    once: float


def _products(
    problem: Any, algorithm: Any, cell: Cell, rate: float, bandwidth: float, alpha: float, dimension: int
) -> _Products:
    """The same of a run at a sample ratio and dimension, by operations and bytes per second."""
    model = problem.model
    n = model.sample_count(alpha, dimension)
    plan = algorithm.plan(sizes(n, model.tokens, dimension, alpha))
    cost = model.cost(plan.batch or n, dimension, problem.components)
    products = cost.flops + cost.denoiser
    read = _width(cell) * (plan.batch or n) * model.tokens * dimension / bandwidth
    one = max(plan.students * products / rate, read) + 2e-4
    return _Products(one, plan.steps or USUAL, plan.batch or n, not plan.steps)


def _try_iterations(cell: Cell, products: Callable[[float, int], _Products], registry: Registry) -> _Trial | None:
    """Some iterations on a smaller instance; None where they fail."""
    dimension = cell.dimension
    while dimension > 8 and products(cell.alpha, dimension).iteration > TRIAL + 2e-4:
        dimension = int(0.7 * dimension)
    smaller = cell.run.model_copy(update={"timeout": PATIENCE, "max_iterations": min(cell.run.max_iterations, 8)})
    trial = dataclasses.replace(cell, dimension=dimension, run=smaller)
    items = (cell.algorithm, *cell.problem.values())
    if any("distribution" in item for item in items):  # code of others, which need not come back
        found = list(in_processes([trial], 1, 1, registry, limits=Limits(seconds=LONGEST_TRIAL)))
        record = found[-1]
    else:
        run_cell(trial, registry=registry)  # what is compiled or tabulated once is no part of an iteration
        record = run_cell(trial, registry=registry)
    timing = record["timing"]
    one = timing.get("per_iteration") or timing.get("first_iteration")
    if not one:
        return None
    cost = products(cell.alpha, dimension)
    once = max(0.0, timing["total_seconds"] - one * record["iterations"])
    return _Trial(max(0.0, one - cost.iteration) / cost.samples, once)


def _by_problem_and_algorithm(records: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Past runs of this machine that made iterations and say how long they took."""
    here = machine.fingerprint()
    found: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        timing = record.get("timing") or {}
        if timing.get("machine") == here and timing.get("total_seconds") and record.get("iterations"):
            cell = record["cell"]
            key = canonical_json([cell["problem"], cell["algorithm"], cell["backend"]])
            found.setdefault(key, []).append(record)
    return found


def _identity(cell: Cell) -> str:
    return canonical_json([cell.problem, cell.algorithm, cell.backend])


def _grid_point(cell: Mapping[str, Any]) -> tuple[float, int]:
    return cell["alpha"], cell["dimension"]


def memory_of_a_cell(cells: Sequence[Cell]) -> int:
    """Bytes that the largest of the cells takes, its process included."""
    registry = get_registry()
    largest = 0
    for group in _grouped(cells):
        problem, _ = group[0].rebuild(registry)
        points = {(cell.alpha, cell.dimension): cell for cell in group}
        largest = max(largest, *(_memory_of_run(problem, cell) for cell in points.values()))
    return largest


def _memory_of_run(problem: Problem, cell: Cell) -> int:
    """Inputs, labels (at most a number for each pair of tokens), and a few copies of the signal."""
    model, D = problem.model, cell.dimension
    samples = model.sample_count(cell.alpha, D)
    inputs = samples * model.tokens * D * _width(cell)
    labels = 2 * samples * model.tokens**2 * 8
    signals = 8 * math.prod(model.signal_shape(problem.components, D)) * 8
    return 11 * inputs // 10 + labels + signals + 150 * 2**20


def _width(cell: Cell) -> int:
    """Bytes of a number of the inputs."""
    return 8 if cell.run.dtype == "float64" else 4


def _ceilings_of(cell: Cell) -> tuple[float, float]:
    """Operations and bytes per second where a cell runs; of the host only its products, measured at the size of a cache."""
    if not get_backend(cell.backend).accelerated:
        return _gemm_rate("float32" if cell.run.dtype == "float32" else "float64"), math.inf
    found = ceilings(cell.backend)
    products = found.get("tf32" if cell.run.tf32 else cell.run.dtype, found["float64"])
    return products, found["bandwidth"]


def _grouped(cells: Sequence[Cell]) -> Iterable[list[Cell]]:
    """Cells with the same problem, algorithm and backend."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(_identity(cell), []).append(cell)
    return groups.values()


@functools.cache
def _gemm_rate(dtype: str) -> float:
    """Operations per second of matrix products on one core of the host."""
    a = np.ones((256, 256), dtype=dtype)
    with machine.blas_threads(1):
        a @ a
        begin = time.perf_counter()
        for _ in range(4):
            a @ a
        return 4 * 2 * 256**3 / (time.perf_counter() - begin)
