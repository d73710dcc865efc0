"""``smimbench slurm``: checks its options and writes the script of a job array."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from smimbench.cli.options import OK, RESULTS, SUITE, Request, command, complain, option, output_option

__all__ = ["slurm"]


@command(
    SUITE,
    option("Wall time.", "--minutes", type=click.IntRange(5, 60 * 24 * 30), default=60),
    option("Cells at a time per task.", "--cpus", type=click.IntRange(1, 1024), default=1),
    option(
        "Most tasks: MaxArraySize - 1 of 'scontrol show config'.", "--max-array", type=click.IntRange(1), default=1000
    ),
    option("Array backend of the cells.", "--backend", default="numpy"),
    output_option("File; default: standard output.", required=False),
    RESULTS,
)
def slurm(request: Request, minutes: int, cpus: int, max_array: int, backend: str, output: Path | None) -> int:
    """Write a SLURM batch script: a job array whose tasks share the cells by their cost.

    Submit it with sbatch from the folder where you are now. Tasks stop before the wall time, queue themselves again and go
    on where they were.
    """
    from smimbench.files import write_atomically
    from smimbench.run.cost import estimate_cost
    from smimbench.run.shards import plan_array, script

    suite = request.suite()
    cells = suite.cells(backend, request.registry)
    seconds = estimate_cost(cells, 1, request.store(suite).load().values(), trials=backend == "numpy").seconds
    array = plan_array(cells, seconds, minutes, cpus, max_array)
    again = [
        sys.executable,
        "-P",
        "-m",
        "smimbench",
        "run",
        request.name,
        "--results",
        str(request.results),
        "--backend",
        backend,
    ]
    again += [word for one in request.overrides for word in ("--set", one)]
    again += [word for one in request.only for word in ("--only", one)]
    again += [word for one in request.registry.paths for word in ("--plugins", one)]
    if broken := next((name for name in (suite.name, *again) if any(ord(c) < 32 for c in name)), None):
        raise click.UsageError(f"{broken!r} would break a batch script, whose comments end with the line; rename it")
    text = script(array, suite.name, again, str(request.results))
    if output is None:
        click.echo(text, nl=False)
    else:
        write_atomically(output, text.encode())
    if not request.quiet:
        hours = seconds / 3600
        complain(f"{len(cells)} cells, about {hours:.2g} hours of one core, in {array.tasks} tasks; prices are rough")
    return OK
