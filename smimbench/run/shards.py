"""A part of a suite's cells for each of several runs that know nothing of each other, of about the same cost; and a SLURM job
array that runs the parts.
"""

from __future__ import annotations

import heapq
import math
import os
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smimbench.run.cost import memory_of_a_cell, prices

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smimbench.suite.cells import Cell


@dataclass(frozen=True)
class Shard:
    """Part ``number`` (from 1) of ``count``."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def read_shard(text: str) -> Shard:
    """``"3/8"``; ValueError for anything that is no part of a whole."""
    number, slash, count = text.partition("/")
    if not (slash and number.isascii() and count.isascii() and number.isdigit() and count.isdigit() and len(text) < 20):
        raise ValueError(f"must look like 3/8, got {text[:40]!r}")
    shard = Shard(int(number), int(count))
    if not 1 <= shard.number <= shard.count:
        raise ValueError(f"must be one of 1/{shard.count} to {shard.count}/{shard.count}, got {text!r}")
    return shard


def array_shard(environment: Mapping[str, str] = os.environ) -> Shard | None:
    """The part of this task of a SLURM job array; None outside of one."""
    names = ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_STEP")
    found = [environment.get(name, default) for name, default in zip(names, ("", "", "0", "1"))]
    if not all(value.isdigit() for value in found):
        return None
    task, count, first, step = map(int, found)
    number = (task - first) // max(1, step) + 1
    return Shard(number, count) if 1 <= number <= count and count > 1 else None


def cells_of_shard(cells: Sequence[Cell], shard: Shard) -> list[Cell]:
    """The cells of a part, in the order of the suite.

    The dearest first, each to the part that has least: the same on every machine, because prices count operations, not
    seconds, and no part depends on what has been run.
    """
    price = prices(cells)
    loads = [(0.0, number) for number in range(1, shard.count + 1)]
    own = set()
    for cell in sorted(cells, key=lambda cell: (-price[cell.key], cell.key)):
        load, number = heapq.heappop(loads)
        heapq.heappush(loads, (load + price[cell.key], number))
        if number == shard.number:
            own.add(cell.key)
    return [cell for cell in cells if cell.key in own]


@dataclass(frozen=True)
class Array:
    """A job array: how many tasks, what each may take, and the seconds after which it stops by itself."""

    tasks: int
    minutes: int
    cpus: int
    megabytes: int
    budget: int


def plan_array(cells: Sequence[Cell], seconds: float, minutes: int, cpus: int, most: int) -> Array:
    """As few tasks as fill half of their time by the priced cost, never more than ``most`` or than there are cells.

    Parameters
    ----------
    seconds : float
        What all cells are expected to take, one after the other.
    """
    wall = 60.0 * minutes
    tasks = math.ceil(seconds / (0.5 * wall * cpus)) if cells else 1
    budget = int(max(0.5 * wall, wall - 120.0))
    megabytes = math.ceil(1.5 * cpus * memory_of_a_cell(cells) / 2**20 / 256) * 256
    return Array(max(1, min(tasks, most, len(cells))), minutes, cpus, megabytes, budget)


def script(array: Array, name: str, command: Sequence[str], results: str) -> str:
    """The batch script; a task whose budget was spent queues itself again (exit code 75) and goes on from its records."""
    run = [*command, "--workers", str(array.cpus), "--budget", f"{array.budget}s", "--quiet"]
    return f"""#!/bin/bash
#SBATCH --job-name={shlex.quote(f"smimbench-{name}")}
#SBATCH --array=1-{array.tasks}
#SBATCH --time={array.minutes}
#SBATCH --cpus-per-task={array.cpus}
#SBATCH --mem={array.megabytes}M
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output={shlex.quote(f"smimbench-{name}-%A_%a.log")}
# {array.tasks} parts of about the same cost. Each stops before the wall time and goes on where it was; jobs that were killed
# may be submitted again as they are: what is finished is never run twice. When all are done, on any machine:
#   {shlex.join([*command[:4], "show", command[5], "--results", results])}
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1
{shlex.join(run)} --shard "$SLURM_ARRAY_TASK_ID/{array.tasks}"
code=$?
if [ "$code" -eq 75 ]; then
    scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}"
fi
exit "$code"
"""
