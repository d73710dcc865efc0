"""Batches of cells that differ in their seeds alone and are run together, where the algorithm makes such steps at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from smimbench.files import canonical_json
from smimbench.interfaces import Algorithm
from smimbench.registry.registry import RegistryError, get_registry
from smimbench.run.executor import NO_LIMITS, Limits
from smimbench.suite.cells import Cell

BATCH_BYTES = 1 << 20
"""Bytes of the inputs of a batch. Doubled: they leave the cache, and reading them takes the time that is saved on calls."""


def batches(
    cells: Sequence[Cell],
    workers: int,
    threads: int,
    *,
    timing: bool = False,
    limits: Limits = NO_LIMITS,
) -> list[list[Cell]]:
    """Split cells into those to be run together and single ones, in the order of the first cell of each batch. Where time or
    memory of a single run matters (``timing``, limits of a cell, a time limit of the algorithm, BLAS ``threads``), all are
    single.
    """
    may_batch = (
        not timing and threads == 1 and limits.seconds is None and limits.memory is None
    )
    cells_of_settings: dict[object, list[Cell]] = {}
    for cell in cells:
        setting: object = cell.key
        if may_batch and _runs_plainly(cell):
            setting = (
                canonical_json([cell.problem, cell.algorithm, cell.tuning]),
                (*cell.place, cell.seed),
            )
        cells_of_settings.setdefault(setting, []).append(cell)
    split_batches = []
    for cells_of_setting in cells_of_settings.values():
        count = len(cells_of_setting)
        largest_size = min(_largest_batch(cells_of_setting), math.ceil(count / workers))
        batch_count = math.ceil(count / largest_size)
        edges = [count * index // batch_count for index in range(batch_count + 1)]
        split_batches += [
            cells_of_setting[start:stop] for start, stop in pairwise(edges)
        ]
    return split_batches


def _runs_plainly(cell: Cell) -> bool:
    """Whether a cell runs on the host in double precision, from the algorithm's own start, without a time limit."""
    run_options = cell.run
    return (
        (cell.backend, run_options.dtype) == ("numpy", "float64")
        and run_options.start == "uninformed"
        and run_options.timeout is None
    )


def _largest_batch(cells: Sequence[Cell]) -> int:
    """Largest number of cells of one setting to run together: 1 unless its algorithm makes joint steps, and no other code of
    third parties is used.
    """
    cell = cells[0]
    if len(cells) == 1:
        return 1
    try:
        entry = get_registry().get(
            "algorithm", cell.algorithm["name"], cell.problem["model"]["name"]
        )
    except RegistryError:
        return 1
    has_joint_step = (
        getattr(entry.item, "joint_step", Algorithm.joint_step)
        is not Algorithm.joint_step
    )
    if not has_joint_step or cell.distributions() - {entry.distribution}:
        return 1
    try:
        problem, algorithm = cell.rebuild()
    except Exception:  # the record of each cell says why
        return 1
    if algorithm.joint_step(problem) is None:
        return 1
    model = problem.model
    sample_count = model.sample_count(cell.alpha, cell.dimension)
    input_bytes = 8 * sample_count * model.tokens * cell.dimension
    return max(1, BATCH_BYTES // input_bytes)
