"""What cells will cost, before anything is drawn: seconds and memory."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from smimbench.backend import machine
from smimbench.files import canonical_json
from smimbench.interfaces import member
from smimbench.registry.adapters import plan_of, sizes
from smimbench.registry.registry import get_registry

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from smimbench.interfaces import Model
    from smimbench.suite.cells import Cell

__all__ = ["Estimate", "estimate_cost", "memory_of_a_cell"]


@dataclass(frozen=True)
class Estimate:
    """What a run is expected to cost."""

    cells: int
    seconds: float
    peak_bytes: int


def estimate_cost(cells: Sequence[Cell], workers: int) -> Estimate:
    """Rough cost before anything is drawn: matrix products at the rate measured now, and the size of the inputs.

    Integrals of channels without a closed form come on top and are not known beforehand.
    """
    rate = _gemm_rate()
    seconds, peak = 0.0, 0
    registry = get_registry()
    for group in _grouped(cells):
        problem, algorithm = group[0].rebuild(registry)
        model = problem.model
        for cell in group:
            n = model.sample_count(cell.alpha, cell.dimension)
            signal = int(np.prod(model.signal_shape(problem.components, cell.dimension)))
            plan = plan_of(algorithm, sizes(n, model.tokens, cell.dimension, cell.alpha))
            products = 4.0 * (plan.batch or n) * model.tokens * signal
            denoiser = member(model, "denoiser_flops")
            products += denoiser(cell.dimension, problem.components) if denoiser is not None else 0.0
            steps = plan.steps or min(cell.run.max_iterations, 60)
            seconds += steps * (plan.students * products / rate + 2e-4)
            peak = max(peak, _memory(model, cell))
    return Estimate(len(cells), seconds / max(1, workers), peak * max(1, workers))


def memory_of_a_cell(cells: Sequence[Cell]) -> int:
    """Bytes that the largest of the cells takes, its process included."""
    registry = get_registry()
    return max(
        (_memory(group[0].rebuild(registry)[0].model, cell) for group in _grouped(cells) for cell in group), default=0
    )


def _memory(model: Model, cell: Cell) -> int:
    width = 8 if cell.run.dtype == "float64" else 4
    numbers = model.sample_count(cell.alpha, cell.dimension) * model.tokens * cell.dimension
    return int(1.1 * width * numbers) + 150 * 2**20


def _grouped(cells: Sequence[Cell]) -> Iterable[list[Cell]]:
    """Cells with the same problem and algorithm."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(canonical_json([cell.problem, cell.algorithm]), []).append(cell)
    return groups.values()


def _gemm_rate() -> float:
    a = np.ones((256, 256))
    with machine.blas_threads(1):
        a @ a
        begin = time.perf_counter()
        for _ in range(4):
            a @ a
        return 4 * 2 * 256**3 / (time.perf_counter() - begin)
