"""Commands that run cells of a suite (``run``, ``tune``), and ``data`` and ``score`` for external solvers."""

from __future__ import annotations

import re
import shlex
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from smimbench.cli.options import (
    AGAINST,
    DURATION,
    FIGURE,
    INCOMPLETE,
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
    repeatable_option,
)
from smimbench.cli.results import draw_figures, present_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smimbench.files import JsonObject
    from smimbench.run.campaign import Campaign, Shard
    from smimbench.run.executor import Limits
    from smimbench.run.store import Store
    from smimbench.suite.cells import Cell, Suite

WORKERS = option(
    "Number of parallel processes [default: one per core].",
    "--workers",
    type=click.IntRange(1),
)
DASK = option(
    "Run the cells on the workers of a Dask scheduler.", "--dask", metavar="ADDRESS"
)
CELL_TIME = option(
    "Kill a cell that takes longer (90s, 10m, 2h).", "--cell-time", type=DURATION
)
CELL_MEMORY = option(
    "Kill a cell that needs more memory (500MB, 4GB).", "--cell-memory", type=SIZE
)


@command(
    SUITE,
    repeatable_option(
        "Array backend: numpy, cupy, ...; repeatable.", "NAME", "--backend", "backends"
    ),
    WORKERS,
    option("Run part K of N only, for job arrays.", "--shard", metavar="K/N"),
    DASK,
    RESULTS,
    flag(
        "Measure times that can be trusted: serial, fixed BLAS threads, warmed up.",
        "--timing",
    ),
    option("BLAS threads per process.", "--threads", type=click.IntRange(1), default=1),
    option(
        "Rerun cells with this status; theory: solve stored theory again.",
        "--retry",
        multiple=True,
        type=click.Choice(
            ["not-converged", "diverged", "timeout", "failed", "skipped", "theory"]
        ),
    ),
    CELL_TIME,
    CELL_MEMORY,
    option(
        "Stop the run and its theory after this long; rerun to continue.",
        "--budget",
        type=DURATION,
    ),
    flag(
        "Estimate cells, time and memory from past runs and short trials; run nothing.",
        "--dry-run",
    ),
    flag("Draw no figure.", "--no-figure"),
    *FIGURE,
    AGAINST,
    JSON,
)
def run(
    request: Request,
    backends: tuple[str, ...],
    shard: str | None,
    dry_run: bool,
    no_figure: bool,
    against: str | None,
    **settings: Any,
) -> int:
    """Run the missing cells of a suite, then show the verdict and draw the error.

    SUITE is a path or the name of a shipped suite. Finished cells are kept under --results and never run twice; stop at any
    time and run the same command again to continue.
    """
    from smimbench.cli.progress import TheoryProgress, run_with_progress
    from smimbench.report.figures import metric_chart
    from smimbench.report.results import Results
    from smimbench.report.theory_document import figure_questions, table_questions
    from smimbench.run.campaign import plan_campaign
    from smimbench.run.store import theory_folder

    if settings["dask"] and settings["timing"]:
        raise click.UsageError(
            "--timing measures this machine; it cannot be combined with --dask"
        )
    drawing = {name: settings.pop(name) for name in ("width", "no_title", "output")}
    if no_figure and drawing["output"]:
        raise click.UsageError("choose one of --no-figure and --output")
    suite = request.suite()
    store = request.store(suite)
    _refuse_unknown_algorithm(against, suite, store)
    backends = backends or ("numpy",)
    limits = _take_limits(settings)
    shard_part = None if shard is None else _read_shard(shard)
    campaign = plan_campaign(
        suite, store, backends, dry_run=dry_run, shard=shard_part, in_subprocess=True, limits=limits, **settings
    )  # fmt: skip
    if dry_run:
        request.remark(*campaign.remarks)
        return show_cost(campaign, request)
    run_with_progress(campaign, request)
    missing_count = 0 if limits.deadline is None else campaign.count_missing()
    if missing_count:
        request.remark(
            f"time budget exhausted with {missing_count} cells left to run; rerun to continue"
        )
    if shard_part is not None:
        return _report_shard(campaign, shard_part, request)
    progress = TheoryProgress(
        request, suite, theory_folder(store), deadline=limits.deadline
    )
    solver = progress.solver
    if "theory" in settings["retry"]:
        solver.set_aside(plan.problem for plan in suite.plans)
    results = Results(suite, store, backends, solver.answers)
    with progress:
        solver.answer(table_questions(results))

    def draw() -> None:
        """Draw the figure of the error, unless the user wants none."""
        if no_figure or not results.rows:
            return
        with progress:
            solver.answer(figure_questions(results))
        metric = suite.run.metrics[0]
        chart = metric_chart(suite, results.rows, results.answers, metric)
        folder = results.folder / "figures"
        for file_type in ("svg", "pdf"):  # of an earlier table
            (folder / f"{metric}.{file_type}").unlink(missing_ok=True)
        # PNG is the quickest of the kinds.
        charts = [chart] if chart else []
        draw_figures(charts, folder, request, file_types=("png",), **drawing)

    exit_code = present_run(results, request, against=against, draw=draw)
    if solver.is_late and not missing_count:
        request.remark(
            "time budget exhausted before all theory was solved; rerun to continue"
        )
    return INCOMPLETE if missing_count or solver.is_late else exit_code


def _refuse_unknown_algorithm(name: str | None, suite: Suite, store: Store) -> None:
    """Raise an error if ``--against`` names neither an algorithm of the suite nor an external estimate."""
    labels = [algorithm.label for algorithm in suite.algorithms]
    if name is None or name.partition("@")[0] in labels:
        return
    if not any(store.folder.glob("scored/[!.]*.json")):
        raise click.BadParameter(
            f"the suite has no algorithm {name!r}; choose from {', '.join(labels)}",
            param_hint="--against",
        )


@command(
    SUITE,
    option("Array backend: numpy, cupy, ...", "--backend", default="numpy"),
    WORKERS,
    DASK,
    RESULTS,
    CELL_TIME,
    CELL_MEMORY,
    option("Stop after this long; rerun to continue.", "--budget", type=DURATION),
    option(
        "Rerun trials with this status, and make all choices again.",
        "--retry",
        multiple=True,
        type=click.Choice(["not-converged", "diverged", "timeout", "failed"]),
    ),
    flag("Estimate trials, cells, time and memory; run nothing.", "--dry-run"),
    JSON,
)
def tune(
    request: Request,
    backend: str,
    retry: tuple[str, ...],
    dry_run: bool,
    **settings: Any,
) -> int:
    """Search the parameters that [algorithms.tune] names, on seeds that no score uses.

    'run' then takes the setting that was chosen for each problem. Stop at any time and tune again to continue.
    """
    from smimbench.cli.progress import run_with_progress
    from smimbench.report.tables import search_table
    from smimbench.run.campaign import plan_campaign
    from smimbench.run.tuning import search_all

    settings |= {"in_subprocess": True, "limits": _take_limits(settings)}
    if request.settings() is not None:
        raise click.UsageError(
            f"{request.name} is a folder of results; name the suite instead, or its file"
        )
    suite = request.suite()
    for key in sorted({key for key, _ in suite.only} - {"problem", "algorithm"}):
        request.remark(
            f"tune uses all runs of a problem, so --only {key} has no effect; restrict the grid with --set grid.{key}=... instead"
        )

    store = request.store(suite)
    if dry_run:
        return _show_tuning_cost(request, suite, backend, settings)

    def run_cells(cells: list[Cell], store: Store) -> bool:
        """Run the ``cells`` (trials of a search), and return whether all of them have a record in the ``store``."""
        campaign = plan_campaign(suite, store, (backend,), cells=cells, **settings)
        run_with_progress(campaign, request)
        return not campaign.count_missing()

    searches = search_all(suite, store, backend, run_cells, retry_statuses=retry)
    finished_searches = [search for search in searches if "rounds" in search]
    if earlier_backends := {search["backend"] for search in finished_searches} - {
        backend
    }:
        request.remark(
            f"finished searches used --backend {', '.join(earlier_backends)}; --backend {backend} does not apply to them"
        )
    if request.as_json:
        print_json(searches)
    else:
        print_tables(make_console(), map(search_table, finished_searches))
    if len(finished_searches) < len(searches):
        request.remark("not all trials have been run; tune again to continue")
        return INCOMPLETE
    if not request.as_json:
        click.echo(f"next:    {request.command_line('run')}")
    return OK if all(search["algorithm"] for search in searches) else NOT_OK


def _show_tuning_cost(
    request: Request, suite: Suite, backend: str, settings: dict[str, Any]
) -> int:
    """Print the estimated cost of the remaining searches."""
    from smimbench.run.campaign import plan_campaign
    from smimbench.run.store import trials_of
    from smimbench.run.tuning import remaining_searches

    store = request.store(suite)
    searches: list[JsonObject] = []
    all_cells: list[Cell] = []
    for search, cells_ahead in remaining_searches(suite, store, backend):
        all_cells += cells_ahead
        searches.append(
            {
                "problem": search.plan.label,
                "label": search.algorithm.label,
                "trials": len(search.trials),
                "cells": len(cells_ahead),
            }
        )
    if not all_cells:
        message = "nothing to run: every search is finished"
        return _report_no_cost(request, message, searches=searches)
    settings |= {"cells": all_cells, "dry_run": True}
    campaign = plan_campaign(suite, trials_of(store), (backend,), **settings)
    return show_cost(campaign, request, searches)


def _take_limits(settings: dict[str, Any]) -> Limits:
    """Take the limits of time and memory out of the command's options and return them."""
    from smimbench.run.executor import Limits

    budget = settings.pop("budget")
    deadline = None if budget is None else time.monotonic() + budget
    return Limits(settings.pop("cell_time"), settings.pop("cell_memory"), deadline)


def _read_shard(shard_text: str) -> Shard:
    """Parse the value of ``--shard``, K/N: part K of N parts of the cells."""
    from smimbench.run.campaign import Shard

    match = re.fullmatch("([0-9]{1,9})/([0-9]{1,9})", shard_text)
    if match is None:
        raise click.BadParameter(
            f"must be K/N, such as 3/8, got {shard_text[:40]!r}", param_hint="--shard"
        )
    shard = Shard(*map(int, match.groups()))
    if not 1 <= shard.number <= shard.count:
        raise click.BadParameter(
            f"part {shard.number} of {shard.count} does not exist; K must be between 1 and N",
            param_hint="--shard",
        )
    return shard


def _report_shard(campaign: Campaign, shard_part: Shard, request: Request) -> int:
    """Print the numbers of cells of one shard (``shard_part``) by status; tables are printed once all shards are finished."""
    keys = {cell.key for cell in campaign.cells}
    records = campaign.store.load().values()
    status_counts = Counter(
        record.status.value for record in records if record.key in keys
    )
    missing_count = campaign.count_missing()
    shard_name = f"{shard_part.number}/{shard_part.count}"
    if request.as_json:
        print_json(
            {
                "shard": shard_name,
                "cells": len(campaign.cells),
                "status_counts": dict(status_counts),
                "missing": missing_count,
            }
        )
    else:
        counts_text = ", ".join(
            f"{count} {status}" for status, count in status_counts.items()
        )
        click.echo(
            f"shard {shard_name} of {campaign.suite.name}: {len(campaign.cells)} cells: "
            f"{counts_text or 'none'}, {missing_count} not run yet"
        )
    if missing_count:
        return INCOMPLETE
    all_ok = (
        set(status_counts) <= {"ok", "skipped"} and not campaign.suite.item_failures
    )
    return OK if all_ok else NOT_OK


def _report_no_cost(request: Request, message: str, **further_entries: object) -> int:
    """Print that there is nothing to run, with this ``message``, or as JSON."""
    cost = {**further_entries, "cells": 0, "missing": 0, "seconds": 0}
    request.print_document(cost, lambda console, _: console.print(message))
    return OK


def show_cost(
    campaign: Campaign | None, request: Request, searches: Sequence[JsonObject] = ()
) -> int:
    """Print the estimated cost of a campaign's missing cells, and of the searches of ``tune``."""
    if campaign is None:
        return _report_no_cost(
            request, "nothing to run: the suite consists of theory only"
        )
    cost = campaign.cost()
    cell_count = len(campaign.cells)
    missing_count = len(campaign.cells_to_run)
    workers = campaign.workers
    if request.as_json:
        cell_counts = {
            "cells": cell_count,
            "missing": missing_count,
            "workers": workers,
        }
        search_entry = {"searches": searches} if searches else {}
        cost_entry = {
            "seconds": cost.seconds,
            "peak_bytes": cost.peak_bytes,
            "learned": cost.cells_from_past,
            "tried": cost.cells_from_trials,
        }
        print_json({**search_entry, **cell_counts, **cost_entry})
        return OK
    for search_document in searches:
        click.echo(
            f"{search_document['problem']}: {search_document['label']}: "
            f"{search_document['trials']} trials, at most {search_document['cells']} cells"
        )
    cost_sources = []
    if cost.cells_from_past:
        cost_sources.append(f"{cost.cells_from_past} from past runs")
    if cost.cells_from_trials:
        cost_sources.append(f"{cost.cells_from_trials} from short trials")
    sources_text = f" (cells: {', '.join(cost_sources)})" if cost_sources else ""
    click.echo(
        f"{cell_count} cells, {missing_count} of them to run, {workers} at a time"
    )
    click.echo(f"about {_duration_text(cost.seconds)}{sources_text}, without theory")
    click.echo(f"at most about {cost.peak_bytes / 2**30:.1f} GB of memory")
    return OK


def _duration_text(seconds: float) -> str:
    """Return a duration in seconds, minutes or hours as text."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@command(SUITE, output_option("The .npz file to write."), JSON)
def data(request: Request, output: Path) -> int:
    """Export an instance to solve in any language; --only picks which one (default: the first)."""
    from smimbench.run.external import first_points, write_instance

    suite = request.suite()
    instance_document = write_instance(suite, first_points(suite)[0], output)
    if request.as_json:
        print_json(instance_document)
    elif not request.quiet:
        # Without the same choices the estimate would be compared with another teacher.
        repeated_options = "".join(
            f" {shlex.quote(option_word)}" for option_word in request.options()
        )
        click.echo(
            f"wrote {output}: inputs {tuple(instance_document['inputs'])}, labels {tuple(instance_document['labels'])}, "
            f"{instance_document['label']}, alpha {instance_document['alpha']:g}, D {instance_document['dimension']}"
        )
        click.echo(
            f"save an estimate of shape {tuple(instance_document['estimate_shape'])} as 'estimate' in an .npz, "
            f"then: smimbench score {request.name} --estimate FILE.npz{repeated_options}"
        )
    return OK


@command(
    SUITE,
    option(
        "An .npz file with the array 'estimate'; repeatable, one file per point, in the order of the suite.",
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

    The row is kept: run, show and report list it with those of the suite. It is replaced by another estimate of the same instance
    with the same label.
    """
    from smimbench.cli.progress import TheoryProgress
    from smimbench.report.rows import rows_of_points
    from smimbench.report.tables import error_tables
    from smimbench.report.theory_document import point_questions
    from smimbench.run.campaign import run_json_document
    from smimbench.run.external import first_points, score_record, store_scores
    from smimbench.run.store import Store, scores_of, settings_folder

    suite = request.suite()
    points = first_points(suite, len(paths))
    records = [
        score_record(suite, point, path, label)
        for point, path in zip(points, paths, strict=True)
    ]
    with TheoryProgress(request, suite, request.results / "theory") as solver:
        answers = solver.answer(point_questions(points))
    rows = rows_of_points(suite, points, records, answers, {})
    if request.as_json:
        print_json({"suite": suite.name, "rows": [row.document() for row in rows]})
    else:
        for table in error_tables(rows):
            make_console().print(table, crop=False)
    store = request.store(suite)
    store_scores(store, records)
    # A folder of results says which suite it is of.
    settings_store = Store(settings_folder(suite, store))
    if "suite" not in settings_store.read_run_json():
        settings_store.write_run_json(run_json_document(suite))
    if not request.silent:
        click.echo(
            f"kept in {scores_of(store).folder}; 'smimbench show {request.name}' lists it in its tables"
        )
    return OK if all(record.status == "ok" for record in records) else NOT_OK
