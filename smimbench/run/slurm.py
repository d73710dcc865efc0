"""A SLURM job array that runs a suite: its parts of about the same cost, each below the wall time, and the text of its script."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smimbench.run.cost import memory_of_a_cell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smimbench.suite.cells import Cell

__all__ = ["Array", "plan_array", "script"]


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
