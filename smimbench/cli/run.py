"""``smimbench run``: the missing cells of a suite, with progress, then its tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from smimbench.cli.options import JSON, OK, RESULTS, SUITE, Request, command, flag, make_console, print_json, several
from smimbench.cli.show import Results, present

if TYPE_CHECKING:
    from smimbench.run.campaign import Campaign


@command(
    SUITE,
    several("Array backend: numpy, cupy, ...; may be given twice.", "NAME", "--backend", "backends"),
    click.Option(
        ["--workers"], type=click.IntRange(1), default=None, help="Processes side by side [default: one per core]."
    ),
    click.Option(["--dask"], default=None, metavar="ADDRESS", help="Run the cells on the workers of a Dask scheduler."),
    RESULTS,
    flag("Times that can be trusted: serial, fixed BLAS threads, warmed up.", "--timing"),
    click.Option(["--threads"], type=click.IntRange(1), default=1, show_default=True, help="BLAS threads per process."),
    click.Option(
        ["--retry"],
        multiple=True,
        type=click.Choice(["not-converged", "diverged", "timeout", "failed", "skipped"]),
        help="Run cells of this status again.",
    ),
    flag("Count cells, time and memory; draw nothing.", "--dry-run"),
    flag("Tables only.", "--no-figure"),
    JSON,
)
def run(request: Request, backends: tuple[str, ...], dry_run: bool, no_figure: bool, **how: Any) -> int:
    """Run what is missing of a suite, then show tables and draw figures.

    SUITE is a path or the name of a shipped suite. Finished cells are kept under --results and never run twice; stop at any
    time and run the same command again to go on.
    """
    from smimbench.run.campaign import plan_campaign

    if how["dask"] and how["timing"]:
        raise click.UsageError("--timing measures this machine; it cannot be combined with --dask")
    suite = request.suite()
    store = request.store(suite)
    backends = backends or ("numpy",)
    campaign = plan_campaign(suite, store, backends, dry_run=dry_run, registry=request.registry, **how)
    request.remark(campaign.remarks)
    if dry_run:
        return _dry_run(campaign, request.as_json)
    _run_with_progress(campaign, silent=request.quiet or request.as_json)
    return present(Results(suite, store, backends), request, figure=not no_figure)


def _dry_run(campaign: Campaign, as_json: bool) -> int:
    cost = campaign.cost()
    cells, missing, workers = len(campaign.cells), len(campaign.missing), campaign.workers
    if as_json:
        print_json(
            {
                "cells": cells,
                "missing": missing,
                "workers": workers,
                "seconds": cost.seconds,
                "peak_bytes": cost.peak_bytes,
            }
        )
    else:
        click.echo(f"{cells} cells, {missing} of them to run, {workers} at a time")
        click.echo(f"about {_duration(cost.seconds)} (integrals of channels without a closed form not counted)")
        click.echo(f"about {cost.peak_bytes / 2**30:.1f} GB of memory at most")
    return OK


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _run_with_progress(campaign: Campaign, *, silent: bool) -> None:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = make_console(error=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=silent or not console.is_terminal, transient=True) as progress:
        task = progress.add_task(campaign.suite.name, total=len(campaign.missing))

        def on_record(record: dict[str, Any]) -> None:
            progress.advance(task)
            if record["status"] != "ok":
                progress.console.print(
                    f"{record['status']}: {record['algorithm']} at alpha {record['cell']['alpha']:g}: {record['reason']}",
                    style="yellow",
                    soft_wrap=True,
                )

        if campaign.missing and not silent and not console.is_terminal:
            where = f"on {campaign.dask}" if campaign.dask else f"{campaign.workers} at a time"
            click.echo(f"{campaign.suite.name}: running {len(campaign.missing)} cells, {where}", err=True)
        campaign.run(None if silent else on_record)
