"""Commands that run cells of a suite: ``run``, ``tune``, ``data`` and ``score`` for external solvers."""

from __future__ import annotations

import re
import shlex
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from smimbench.cli.options import (
    AGAIN,
    AGAINST,
    DURATION,
    JSON,
    NOT_OK,
    OK,
    RESULTS,
    SIZE,
    SUITE,
    Request,
    command,
    flag,
    make_console,
    option,
    output_option,
    print_json,
    print_tables,
    several,
)
from smimbench.cli.results import draw_figures, present

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smimbench.files import JsonObject
    from smimbench.run.campaign import Campaign, Shard
    from smimbench.run.executor import Limits
    from smimbench.run.store import Store
    from smimbench.suite.cells import Cell

WORKERS = option(
    "Processes side by side [default: one per core].",
    "--workers",
    type=click.IntRange(1),
)
DASK = option(
    "Run the cells on the workers of a Dask scheduler.", "--dask", metavar="ADDRESS"
)
CELL_TIME = option(
    "End a cell from outside after so long (90s, 10m, 2h).",
    "--cell-time",
    type=DURATION,
)
CELL_MEMORY = option(
    "End a cell from outside that takes more (500MB, 4GB).", "--cell-memory", type=SIZE
)


@command(
    SUITE,
    several(
        "Array backend: numpy, cupy, ...; may be given twice.",
        "NAME",
        "--backend",
        "backends",
    ),
    WORKERS,
    option(
        "Run part K of N, as one task of a job array does.", "--shard", metavar="K/N"
    ),
    DASK,
    RESULTS,
    flag(
        "Times that can be trusted: serial, fixed BLAS threads, warmed up.", "--timing"
    ),
    option("BLAS threads per process.", "--threads", type=click.IntRange(1), default=1),
    option(
        "Run cells of this status again; theory: solve again what is kept of it.",
        "--retry",
        multiple=True,
        type=click.Choice(
            ["not-converged", "diverged", "timeout", "failed", "skipped", "theory"]
        ),
    ),
    CELL_TIME,
    CELL_MEMORY,
    option(
        "End the run, its theory included, after so long; what is not finished stays to be run.",
        "--budget",
        type=DURATION,
    ),
    flag(
        "Count cells, time and memory by past runs and short trials; run nothing.",
        "--dry-run",
    ),
    flag("Draw no figure.", "--no-figure"),
    AGAINST,
    JSON,
)
def run(
    request: Request,
    backends: tuple[str, ...],
    cell_time: float | None,
    cell_memory: float | None,
    budget: float | None,
    shard: str | None,
    dry_run: bool,
    no_figure: bool,
    against: str | None,
    **how: Any,
) -> int:
    """Run the missing cells of a suite, then show the verdict and draw the error.

    SUITE is a path or the name of a shipped suite. Finished cells are kept under --results and never run twice; stop at any
    time and run the same command again to go on.
    """
    from smimbench.cli.progress import TheoryProgress, run_watched
    from smimbench.report.questions import figure_questions, table_questions
    from smimbench.report.results import Results
    from smimbench.run.campaign import plan_campaign
    from smimbench.run.store import theory_folder

    if how["dask"] and how["timing"]:
        raise click.UsageError(
            "--timing measures this machine; it cannot be combined with --dask"
        )
    suite = request.suite()
    labels = [algorithm.label for algorithm in suite.algorithms]
    if (
        against is not None
        and against.partition("@")[0] not in labels
        and not any(request.store(suite).folder.glob("scored/[!.]*.json"))
    ):
        raise click.BadParameter(
            f"no algorithm {against!r} here; choose from {', '.join(labels)}",
            param_hint="--against",
        )
    store = request.store(suite)
    backends = backends or ("numpy",)
    limits = _limits(cell_time, cell_memory, budget)
    how |= {"isolated": True, "limits": limits}
    part = None if shard is None else _read_shard(shard)
    campaign = plan_campaign(suite, store, backends, dry_run=dry_run, shard=part, **how)
    if dry_run:
        request.remark(campaign.remarks)
        return show_cost(campaign, request)
    run_watched(campaign, request)
    left = campaign.left() if budget is not None else 0
    if left:
        request.remark(
            [
                f"the budget is spent: {left} cells are left; run the same command again to go on"
            ]
        )
    if part is not None:
        return _shard_result(campaign, part, request)
    progress = TheoryProgress(suite, theory_folder(store), silent=request.silent)
    predictions = suite.needs_prediction_errors
    solver = request.solver(
        progress.folder,
        progress.on_progress,
        predictions=predictions,
        deadline=limits.end,
    )
    if "theory" in how["retry"]:
        solver.set_aside(plan.problem for plan in suite.plans)
    results = Results(suite, store, backends, solver.answers)
    with progress:
        solver.answer(table_questions(results))
    code = present(results, request, against=against)
    if not no_figure and results.rows:
        with progress:
            solver.answer(figure_questions(results))
        draw_figures(results, request, only_first=True)
    if solver.is_late and not left:
        request.remark(
            ["the budget is spent: theory is left; run the same command again to go on"]
        )
    return AGAIN if left or solver.is_late else code


@command(
    SUITE,
    option("Array backend: numpy, cupy, ...", "--backend", default="numpy"),
    WORKERS,
    DASK,
    RESULTS,
    CELL_TIME,
    CELL_MEMORY,
    option(
        "Stop after so long; what is not finished stays to be run.",
        "--budget",
        type=DURATION,
    ),
    option(
        "Run trials of this status again, and make all choices again.",
        "--retry",
        multiple=True,
        type=click.Choice(["not-converged", "diverged", "timeout", "failed"]),
    ),
    flag("Count trials, cells, time and memory; run nothing.", "--dry-run"),
    JSON,
)
def tune(
    request: Request,
    backend: str,
    cell_time: float | None,
    cell_memory: float | None,
    budget: float | None,
    retry: tuple[str, ...],
    dry_run: bool,
    **how: Any,
) -> int:
    """Search the parameters that [algorithms.tune] names, on seeds that no score uses.

    'run' then takes the setting that was chosen for each problem. Stop at any time and tune again to go on.
    """
    from smimbench.cli.progress import run_watched
    from smimbench.report.tables import search_table
    from smimbench.run.campaign import plan_campaign
    from smimbench.run.tuning import search_all, searches_ahead, tuning_store

    how |= {"isolated": True, "limits": _limits(cell_time, cell_memory, budget)}
    if request.settings() is not None:
        raise click.UsageError(
            f"{request.name} holds results; tune the suite that they are of, by its name or file"
        )
    suite = request.suite()
    for key in sorted({key for key, _ in suite.only} - {"problem", "algorithm"}):
        request.remark(
            [
                f"tune searches over all runs of a problem; --only {key} does not narrow this, --set grid.{key}=... does"
            ]
        )

    if dry_run:
        searches = searches_ahead(suite, request.store(suite), backend)
        trials = [
            {
                "problem": search.plan.label,
                "label": search.algorithm.label,
                "trials": len(search.trials),
                "cells": len(ahead),
            }
            for search, ahead in searches
        ]
        if not any(ahead for _, ahead in searches):
            no_cost = {"searches": trials, "cells": 0, "missing": 0, "seconds": 0}
            request.answer(
                no_cost,
                lambda console, _: console.print(
                    "nothing to run: every search is finished"
                ),
            )
            return OK
        campaign = plan_campaign(
            suite,
            tuning_store(request.store(suite)),
            (backend,),
            cells=[cell for _, ahead in searches for cell in ahead],
            dry_run=True,
            **how,
        )
        return show_cost(campaign, request, trials)

    def work(cells: list[Cell], store: Store) -> bool:
        campaign = plan_campaign(suite, store, (backend,), cells=cells, **how)
        run_watched(campaign, request)
        return not campaign.left()

    found = search_all(suite, request.store(suite), backend, work, retry=retry)
    if others := {one["backend"] for one in found if "rounds" in one} - {backend}:
        request.remark(
            [
                f"searched before, with --backend {', '.join(others)}; --backend {backend} is not used there"
            ]
        )
    finished = [one for one in found if "rounds" in one]
    if request.as_json:
        print_json(found)
    else:
        print_tables(make_console(), map(search_table, finished))
    if len(finished) < len(found):
        request.remark(["not all trials have been run; tune again to go on"])
        return AGAIN
    if not request.as_json:
        click.echo(f"next:    {request.typed('run')}")
    return OK if all(one["algorithm"] for one in found) else NOT_OK


def _limits(
    cell_time: float | None, cell_memory: float | None, budget: float | None
) -> Limits:
    from smimbench.run.executor import Limits

    return Limits(
        cell_time, cell_memory, None if budget is None else time.monotonic() + budget
    )


def _read_shard(text: str) -> Shard:
    from smimbench.run.campaign import Shard

    numbers = re.fullmatch("([0-9]{1,9})/([0-9]{1,9})", text)
    if numbers is None:
        raise click.BadParameter(
            f"must look like 3/8, got {text[:40]!r}", param_hint="--shard"
        )
    shard = Shard(int(numbers[1]), int(numbers[2]))
    if not 1 <= shard.number <= shard.count:
        raise click.BadParameter(
            f"part {shard.number} of {shard.count} does not exist", param_hint="--shard"
        )
    return shard


def _shard_result(campaign: Campaign, part: Shard, request: Request) -> int:
    """Print how the cells of one part ended; tables are printed once all parts are finished."""
    records = campaign.store.load()
    keys = {cell.key for cell in campaign.cells}
    ended = Counter(
        record["status"] for record in records.values() if record["key"] in keys
    )
    left = campaign.left()
    name = f"{part.number}/{part.count}"
    if request.as_json:
        print_json(
            {
                "shard": name,
                "cells": len(campaign.cells),
                "status_counts": dict(ended),
                "missing": left,
            }
        )
    else:
        counts = ", ".join(f"{count} {name}" for name, count in ended.items()) or "none"
        click.echo(
            f"shard {name} of {campaign.suite.name}: {len(campaign.cells)} cells: {counts}, {left} not run yet"
        )
    if left:
        return AGAIN
    return (
        OK
        if set(ended) <= {"ok", "skipped"} and not campaign.suite.left_out
        else NOT_OK
    )


def show_cost(
    campaign: Campaign, request: Request, searches: Sequence[JsonObject] = ()
) -> int:
    """Print what the missing cells of a campaign cost; those of ``tune`` belong to the trials of searches."""
    cost = campaign.cost()
    cells, missing, workers = (
        len(campaign.cells),
        len(campaign.missing),
        campaign.workers,
    )
    if request.as_json:
        named = {"searches": searches} if searches else {}
        print_json(
            {
                **named,
                "cells": cells,
                "missing": missing,
                "workers": workers,
                **asdict(cost),
            }
        )
        return OK
    for search in searches:
        click.echo(
            f"{search['problem']}: {search['label']}: {search['trials']} trials, at most {search['cells']} cells"
        )
    grounds = [
        f"{n} by {what}"
        for n, what in ((cost.learned, "past runs"), (cost.tried, "short runs"))
        if n
    ]
    rest = f" (cells: {', '.join(grounds)})" if grounds else ""
    click.echo(f"{cells} cells, {missing} of them to run, {workers} at a time")
    click.echo(f"about {_duration(cost.seconds)}{rest}, theory apart")
    click.echo(f"about {cost.peak_bytes / 2**30:.1f} GB of memory at most")
    return OK


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@command(SUITE, output_option("The .npz file to write."), JSON)
def data(request: Request, output: Path) -> int:
    """Export an instance to solve in any language; --only picks which one (default: the first)."""
    from smimbench.run.external import choose_points, write_instance

    suite = request.suite()
    about = write_instance(suite, choose_points(suite)[0], output)
    if request.as_json:
        print_json(about)
    elif not request.quiet:
        # Without the same choices the estimate would be compared with another teacher.
        same = "".join(f" {shlex.quote(word)}" for word in request.options())
        click.echo(
            f"wrote {output}: inputs {tuple(about['inputs'])}, labels {tuple(about['labels'])}, "
            f"{about['label']}, alpha {about['alpha']:g}, D {about['dimension']}"
        )
        click.echo(
            f"save an estimate of shape {tuple(about['estimate_shape'])} as 'estimate' in an .npz, "
            f"then: smimbench score {request.name} --estimate FILE.npz{same}"
        )
    return OK


@command(
    SUITE,
    option(
        "An .npz with the array 'estimate'; given several times, of one point each, in the order of the suite.",
        "--estimate",
        "paths",
        multiple=True,
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        required=True,
    ),
    option("Name of the algorithm in the table.", "--label", default="external"),
    RESULTS,
    JSON,
)
def score(request: Request, paths: tuple[Path, ...], label: str) -> int:
    """Score an external estimate as a row of the table; give the same --only as to 'data'.

    The row is kept: run, show and report list it with those of the suite. Another estimate of the same instance under the same
    label replaces it.
    """
    from smimbench.cli.progress import TheoryProgress
    from smimbench.report.questions import point_questions
    from smimbench.report.rows import rows_of_points
    from smimbench.report.tables import error_tables
    from smimbench.run.campaign import shared_document
    from smimbench.run.external import (
        choose_points,
        keep_scores,
        score_record,
        scores_of,
    )
    from smimbench.run.store import Store, settings_folder

    suite = request.suite()
    points = choose_points(suite, len(paths))
    records = [
        score_record(suite, point, path, label)
        for point, path in zip(points, paths, strict=True)
    ]
    progress = TheoryProgress(suite, request.results / "theory", silent=request.silent)
    solver = request.solver(
        progress.folder, progress.on_progress, predictions=suite.needs_prediction_errors
    )
    with progress:
        answers = solver.answer(point_questions(points))
    rows = rows_of_points(suite, points, records, answers, {})
    if request.as_json:
        print_json({"suite": suite.name, "rows": [row.document() for row in rows]})
    else:
        for table in error_tables(rows):
            make_console().print(table, crop=False)
    store = request.store(suite)
    keep_scores(store, records)
    if not (
        own := Store(settings_folder(suite, store))
    ).read_shared():  # a folder of results says what it is of
        own.write_shared(shared_document(suite))
    if not request.silent:
        click.echo(
            f"kept in {scores_of(store).folder}: smimbench show {request.name} has it in its tables"
        )
    return OK if all(record["status"] == "ok" for record in records) else NOT_OK
