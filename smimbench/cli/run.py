"""``smimbench run``: the missing cells of a suite, with progress, then its tables."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from smimbench.cli.options import (
    OK,
    complain,
    complain_of_store,
    json_option,
    load,
    make_console,
    print_json,
    results_option,
    shared_options,
    store_of,
    with_registry,
)
from smimbench.cli.show import present

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smimbench.registry.registry import Registry
    from smimbench.run.store import Store
    from smimbench.suite.cells import Suite


@click.command()
@click.argument("suite_name", metavar="SUITE")
@click.option(
    "--backend",
    "backends",
    multiple=True,
    metavar="NAME",
    help="Array backend: numpy, cupy, ...; may be given twice.",
)
@click.option(
    "--workers", type=click.IntRange(1), default=None, help="Processes side by side [default: one per core]."
)
@click.option(
    "--dask", default=None, metavar="ADDRESS", help="Run the cells on the workers of a Dask scheduler."
)
@results_option
@click.option(
    "--timing", is_flag=True, help="Times that can be trusted: serial, fixed BLAS threads, warmed up."
)
@click.option(
    "--threads", type=click.IntRange(1), default=1, show_default=True, help="BLAS threads per process."
)
@click.option(
    "--retry",
    multiple=True,
    type=click.Choice(["not-converged", "diverged", "timeout", "failed", "skipped"]),
    help="Run cells of this status again.",
)
@click.option("--dry-run", is_flag=True, help="Count cells, time and memory; draw nothing.")
@click.option("--no-figure", is_flag=True, help="Tables only.")
@json_option
@shared_options()
@with_registry
def run(
    suite_name: str,
    backends: tuple[str, ...],
    workers: int | None,
    dask: str | None,
    results: Path,
    timing: bool,
    threads: int,
    retry: tuple[str, ...],
    dry_run: bool,
    no_figure: bool,
    as_json: bool,
    overrides: tuple[str, ...],
    only: tuple[str, ...],
    quiet: bool,
    registry: Registry,
) -> int:
    """Run what is missing of a suite, then show tables and draw figures.

    SUITE is a path or the name of a shipped suite. Finished cells are kept under --results and never run twice; stop at any
    time and run the same command again to go on.
    """
    from smimbench.backend.device import get_backend
    from smimbench.run.campaign import missing_cells, shared_document

    suite = load(suite_name, overrides, only, registry)
    backends = backends or ("numpy",)
    places = [get_backend(backend, suite.run.dtype) for backend in backends]
    cells = [cell for backend in backends for cell in suite.cells(backend, registry)]
    if not suite.algorithms:
        raise click.UsageError(
            f"{suite.file}: algorithms: is empty, so there is nothing to run; 'smimbench theory' needs none"
        )
    if not cells:
        raise click.UsageError("--only leaves no cell of this suite")
    if dask and timing:
        raise click.UsageError("--timing measures this machine; it cannot be combined with --dask")
    store = store_of(suite_name, suite, results)
    records = store.load(set_aside=not dry_run)
    complain_of_store(store, quiet)
    if retry and not dry_run:
        keys = {cell.key for cell in cells}
        store.retire(
            [stem for stem, record in records.items() if record["status"] in retry and record["key"] in keys]
        )
        records = store.load()
    missing = missing_cells(cells, records, timing=timing)
    device = next((place.name for place in places if place.accelerated), None)
    alone = "--timing" if timing else f"--backend {device}" if device else None
    if dask and workers is not None and not quiet:
        complain(
            f"--workers {workers} is not used: --dask runs as many cells at a time as the scheduler has workers"
        )
    workers = _side_by_side(missing, workers, alone, quiet=quiet or bool(dask))
    if dry_run:
        return _dry_run(cells, missing, workers, as_json)
    store.write_shared(shared_document(suite))
    if missing:
        how = {"workers": workers, "timing": timing, "threads": threads, "dask": dask}
        _run_with_progress(suite, missing, store, registry, how, silent=quiet or as_json)
    return present(
        suite,
        store,
        backends,
        as_json=as_json,
        quiet=quiet,
        figure=not no_figure,
        results_name=str(store.folder),
    )


def _side_by_side(missing: Sequence[Any], asked: int | None, alone: str | None, *, quiet: bool) -> int:
    """How many cells to run at a time: one per core, unless there are reasons for fewer, which are said."""
    import psutil

    from smimbench.run.cost import memory_of_a_cell

    if alone:
        if asked is not None and asked > 1 and not quiet:
            complain(f"--workers {asked} is not used: {alone} runs one cell at a time")
        return 1
    needed, free = memory_of_a_cell(missing), psutil.virtual_memory().available
    cores = os.cpu_count() or 1
    workers = asked or max(1, min(cores, free // max(1, needed)))
    if not quiet and missing:
        size = f"a cell takes up to {needed / 2**30:.1f} GB and {free / 2**30:.1f} GB are free"
        if needed * min(workers, len(missing)) > free:
            complain(f"the memory may not suffice for {workers} at a time: {size}")
        elif workers < min(cores, len(missing)) and asked is None:
            complain(f"{workers} at a time instead of {cores}: {size}")
    return workers


def _dry_run(cells: Sequence[Any], missing: Sequence[Any], workers: int, as_json: bool) -> int:
    from smimbench.run.cost import estimate_cost

    cost = estimate_cost(missing, workers)
    if as_json:
        print_json(
            {
                "cells": len(cells),
                "missing": len(missing),
                "workers": workers,
                "seconds": cost.seconds,
                "peak_bytes": cost.peak_bytes,
            }
        )
    else:
        click.echo(f"{len(cells)} cells, {len(missing)} of them to run, {workers} at a time")
        click.echo(
            f"about {_duration(cost.seconds)} (integrals of channels without a closed form not counted)"
        )
        click.echo(f"about {cost.peak_bytes / 2**30:.1f} GB of memory at most")
    return OK


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _run_with_progress(
    suite: Suite,
    missing: Sequence[Any],
    store: Store,
    registry: Registry,
    how: dict[str, Any],
    *,
    silent: bool,
) -> None:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from smimbench.run.campaign import run_cells

    console = make_console(error=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, disable=silent or not console.is_terminal, transient=True
    ) as progress:
        task = progress.add_task(suite.name, total=len(missing))

        def on_record(record: dict[str, Any]) -> None:
            progress.advance(task)
            if record["status"] != "ok":
                progress.console.print(
                    f"{record['status']}: {record['algorithm']} at alpha {record['cell']['alpha']:g}: {record['reason']}",
                    style="yellow",
                    soft_wrap=True,
                )

        if not silent and not console.is_terminal:
            where = f"on {how['dask']}" if how["dask"] else f"{how['workers']} at a time"
            click.echo(f"{suite.name}: running {len(missing)} cells, {where}", err=True)
        run_cells(missing, store, registry=registry, on_record=None if silent else on_record, **how)
