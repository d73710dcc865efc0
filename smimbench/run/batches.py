"""Batches of cells that differ in their seeds alone and are run together, where the algorithm makes such steps at once."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from smimbench.files import attempt
from smimbench.interfaces import Model
from smimbench.interfaces.algorithm import refusal
from smimbench.problem.instance import joint_metrics
from smimbench.registry.registry import get_registry
from smimbench.run.loop import LoopRun
from smimbench.suite.cells import Cell

BATCH_BYTES = 5 << 19
"""Bytes of the inputs of a batch. Doubled: they leave the cache, and reading them takes the time that is saved on calls."""


def batches(cells: Sequence[Cell], workers: int, *, single: bool) -> list[list[Cell]]:
    """Split cells into those to be run together, at least one batch of a setting for each of the ``workers``, or into ``single``
    ones.
    """
    if single:
        return [[cell] for cell in cells]
    cells_of_settings: dict[str, list[Cell]] = {}
    for cell in cells:
        setting = replace(cell, replicate=0).key
        cells_of_settings.setdefault(setting, []).append(cell)
    position = {id(cell): index for index, cell in enumerate(cells)}
    split_batches = []
    for cells_of_setting in cells_of_settings.values():
        count = len(cells_of_setting)
        size = math.ceil(count / workers)
        if size > 1:
            size = min(size, _largest_batch(cells_of_setting[0]))
        split_batches += [
            cells_of_setting[start : start + size] for start in range(0, count, size)
        ]
    # Algorithms that follow each other on one instance share it.
    return sorted(split_batches, key=lambda batch: position[id(batch[0])])


def _largest_batch(cell: Cell) -> int:
    """Largest number of cells like this one to run together: 1 unless its algorithm makes joint steps, on the host in double
    precision, without code of third parties besides its own, and without a time limit. The model has to ship, too: metrics
    of several runs are computed on arrays with one more axis in front.
    """
    options = cell.run
    settings = cell.backend, options.dtype, options.start, options.timeout
    is_usual = settings == ("numpy", "float64", "uninformed", None)
    if (
        not is_usual
        or "distribution" in cell.problem["model"]
        or cell.distributions() - {cell.algorithm.get("distribution")}
    ):
        return 1
    measures_other_metrics = any(
        entry.source is not None and entry.item.in_trajectory
        for entry in get_registry().entries("metric")
    )
    # What raises an error here does so again in each cell, whose record says so.
    model, error = attempt(_model_of_joint_steps, cell)
    if error is not None or model is None or measures_other_metrics:
        return 1
    sample_count = model.sample_count(cell.alpha, cell.dimension)
    input_bytes: int = 8 * sample_count * model.tokens * cell.dimension
    return max(1, BATCH_BYTES // input_bytes)


def _model_of_joint_steps(cell: Cell) -> Model | None:
    """Model of a cell whose algorithm makes joint steps on its problem; None for any other."""
    problem, algorithm = cell.rebuild()
    if refusal(algorithm, problem) or algorithm.joint_step(problem) is None:
        return None
    model: Model = problem.model
    return model


def step_together(runs: Sequence[LoopRun], caught_warnings: Sequence[object]) -> None:
    """Make the steps of several runs together until all of them are over or one has warned."""
    joint_step: Any = runs[0].algorithm.joint_step(runs[0].problem)
    while runs := [run for run in runs if not run.is_over]:
        measure = joint_metrics([run.instance for run in runs])
        while not any(run.is_over for run in runs):
            timer_start, cpu_start = time.perf_counter(), time.thread_time()
            steps = joint_step([run.data for run in runs], [run.state for run in runs])
            estimates: list[Any] = []
            if runs[0].records(runs[0].iterations + 1):  # all are at the same iteration
                estimates = [
                    run.algorithm.estimate(state)
                    for run, (state, _) in zip(runs, steps)
                ]
            seconds = (time.perf_counter() - timer_start) / len(runs)
            cpu_seconds = (time.thread_time() - cpu_start) / len(runs)
            measured: Any = [None] * len(runs)
            if estimates:
                measured = zip(estimates, measure(estimates))
            for run, (state, info), estimate_and_metrics in zip(runs, steps, measured):
                run.clock.add(seconds, cpu_seconds)
                run.accept_step(state, run.read(info), estimate_and_metrics)
            if caught_warnings:
                return
