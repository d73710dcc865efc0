"""The command line. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import functools
import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rich.console import Console

    from smimbench.registry.registry import Plugin, Registry
    from smimbench.run.store import Store
    from smimbench.suite.reader import Cell, Suite
    from smimbench.theory.cache import TheoryCache

__all__ = ["main"]

OK, NOT_OK, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: every foreseeable error is one line on standard error and exit code 2."""
    sys.exit(_run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    """Exit code of a command, after saying in one line what went wrong."""
    try:
        return cli.main(arguments, prog_name="smimbench", standalone_mode=False) or OK
    except click.exceptions.Exit as error:
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):  # click turns Ctrl-C into Abort
        _complain("interrupted; every finished cell is kept, run the same command again to go on")
        return INTERRUPTED
    except click.ClickException as error:
        _complain(error.format_message())
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except _foreseeable() as error:
        _complain(str(error))
    return BAD_INPUT


def _foreseeable() -> tuple[type[Exception], ...]:
    from smimbench.backend.device import BackendError
    from smimbench.files import StoreError
    from smimbench.problem.problem import ProblemError
    from smimbench.registry.registry import RegistryError
    from smimbench.registry.scaffold import ScaffoldError
    from smimbench.suite.reader import SuiteError
    from smimbench.testing.core import CheckError

    return SuiteError, RegistryError, BackendError, StoreError, ProblemError, ScaffoldError, CheckError


def _complain(line: str) -> None:
    print(f"smimbench: {' '.join(line.split())}", file=sys.stderr)  # noqa: T201


def _console(*, error: bool = False) -> Console:
    from rich.console import Console

    stream = sys.stderr if error else sys.stdout
    width = None if stream.isatty() else int(os.environ.get("COLUMNS", "80"))
    return Console(stderr=error, width=width, soft_wrap=False, highlight=False)


def _print_json(document: Any) -> None:
    click.echo(json.dumps(document, indent=2, allow_nan=False, default=str))


def _options(*, suite_options: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Options that every command shares."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        if suite_options:
            function = click.option(
                "--set",
                "overrides",
                multiple=True,
                metavar="KEY=VALUE",
                help="Override any key of the suite.",
            )(function)
            function = click.option(
                "--only",
                multiple=True,
                metavar="KEY=VALUE",
                help="Run or show a part: algorithm, alpha, dimension, seed, problem.",
            )(function)
        function = click.option(
            "--plugins", "paths", multiple=True, metavar="PATH", help="Load plugins from a file or folder."
        )(function)
        function = click.option("--no-plugins", is_flag=True, help="Load only what ships with smimbench.")(
            function
        )
        function = click.option(
            "--trace-plugins", is_flag=True, help="Say on standard error what is loaded from where."
        )(function)
        return click.option("--quiet", is_flag=True, help="No progress and no remarks.")(function)

    return decorate


_json_option = click.option(
    "--json", "as_json", is_flag=True, help="One JSON document on standard output and nothing else."
)
_results_option = click.option(
    "--results",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("results"),
    show_default=True,
    help="Where results are kept.",
)


def _registry(paths: Sequence[str], no_plugins: bool, trace_plugins: bool) -> Registry:
    from smimbench.registry.registry import Registry, set_registry

    wanted = [p for p in os.environ.get("SMIMBENCH_PLUGINS", "").split(os.pathsep) if p] + list(paths)
    trace = (lambda line: click.echo(line, err=True)) if trace_plugins else None
    registry = Registry(
        wanted, third_party=not (no_plugins or os.environ.get("SMIMBENCH_NO_PLUGINS")), trace=trace
    )
    set_registry(registry)
    return registry


def _with_registry(function: Callable[..., Any]) -> Callable[..., Any]:
    """Turn the shared plugin options into a registry."""

    @functools.wraps(function)
    def wrapped(
        *args: Any, paths: Sequence[str], no_plugins: bool, trace_plugins: bool, **kwargs: Any
    ) -> Any:
        registry = _registry(paths, no_plugins, trace_plugins)
        if not kwargs.get("quiet"):
            _complain_of(registry.plugins)
        return function(*args, registry=registry, **kwargs)

    return wrapped


def _complain_of(plugins: Iterable[Plugin]) -> None:
    for plugin in plugins:
        if plugin.failed:
            _complain(f"plugin {plugin.name} ({plugin.origin}) was not loaded: {'; '.join(plugin.problems)}")


def _load(name: str, overrides: Sequence[str], only: Sequence[str], registry: Registry) -> Suite:
    """A suite from a path, a shipped name, or a results folder (its ``run.json`` holds the text)."""
    from smimbench.run.store import Store
    from smimbench.suite.reader import SuiteError, load_suite, parse_suite

    folder = Path(name)
    known = len(registry.plugins)
    try:
        if folder.is_dir():
            shared = Store(folder).read_shared()
            if "text" not in shared:
                raise SuiteError(name, "", "not a results folder (it has no readable run.json)")
            given = [*shared.get("overrides", []), *overrides]
            path = Path(f"{shared['suite']}.toml")
            return parse_suite(path, shared["text"], given, only, registry=registry)
        return load_suite(name, overrides, only, registry=registry)
    finally:
        _complain_of(registry.plugins[known:])  # of ./plugins, if the suite asks for it


def _store(name: str, suite: Suite, results: Path) -> Store:
    from smimbench.run.store import Store

    return Store(name) if Path(name).is_dir() else Store(results / suite.name)


def _theorist(store: Store) -> TheoryCache:
    from smimbench.theory.cache import TheoryCache

    return TheoryCache(store.folder / "theory")


class _Commands(click.Group):
    """Commands in the order of a newcomer's day, not of the alphabet."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(package_name="smimbench", prog_name="smimbench")
def cli() -> None:
    """How far is a learning algorithm from the best that is possible?

    Attention models learned from Gaussian sequences, against the Bayes-optimal error of state evolution.

    Start with:  smimbench run quickstart
    """


@cli.command()
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
@_results_option
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
@_json_option
@_options()
@_with_registry
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
    from smimbench.run import campaign as runner

    suite = _load(suite_name, overrides, only, registry)
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
    store = _store(suite_name, suite, results)
    records = store.load(set_aside=not dry_run)
    _report_complaints(store, quiet)
    if retry and not dry_run:
        keys = {cell.key for cell in cells}
        store.retire(
            [stem for stem, record in records.items() if record["status"] in retry and record["key"] in keys]
        )
        records = store.load()
    missing = runner.missing_cells(cells, records, timing=timing)
    device = next((place.name for place in places if place.accelerated), None)
    alone = "--timing" if timing else f"--backend {device}" if device else None
    if dask and workers is not None and not quiet:
        _complain(
            f"--workers {workers} is not used: --dask runs as many cells at a time as the scheduler has workers"
        )
    workers = _side_by_side(missing, workers, alone, quiet=quiet or bool(dask))
    if dry_run:
        return _dry_run(cells, missing, workers, as_json)
    store.write_shared(runner.shared_document(suite))
    if missing:
        how = {"workers": workers, "timing": timing, "threads": threads, "dask": dask}
        _run_with_progress(suite, missing, store, registry, how, silent=quiet or as_json)
    return _present(
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

    from smimbench.run import campaign as runner

    if alone:
        if asked is not None and asked > 1 and not quiet:
            _complain(f"--workers {asked} is not used: {alone} runs one cell at a time")
        return 1
    needed, free = runner.memory_of_a_cell(missing), psutil.virtual_memory().available
    cores = os.cpu_count() or 1
    workers = asked or max(1, min(cores, free // max(1, needed)))
    if not quiet and missing:
        size = f"a cell takes up to {needed / 2**30:.1f} GB and {free / 2**30:.1f} GB are free"
        if needed * min(workers, len(missing)) > free:
            _complain(f"the memory may not suffice for {workers} at a time: {size}")
        elif workers < min(cores, len(missing)) and asked is None:
            _complain(f"{workers} at a time instead of {cores}: {size}")
    return workers


def _dry_run(cells: Sequence[Any], missing: Sequence[Any], workers: int, as_json: bool) -> int:
    from smimbench.run import campaign as runner

    cost = runner.estimate_cost(missing, workers)
    if as_json:
        _print_json(
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

    from smimbench.run import campaign as runner

    console = _console(error=True)
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
        runner.run_cells(missing, store, registry=registry, on_record=None if silent else on_record, **how)


def _report_complaints(store: Store, quiet: bool) -> None:
    if not quiet:
        for line in store.complaints:
            _complain(line)


def _present(
    suite: Suite,
    store: Store,
    backends: Sequence[str],
    *,
    as_json: bool,
    quiet: bool,
    figure: bool,
    results_name: str,
) -> int:
    """Tables (or JSON), figures and the exit code."""
    from smimbench.backend import machine
    from smimbench.report.diagnostics import finding_tables
    from smimbench.report.leaderboard import contest_tables
    from smimbench.report.learning_order import learning_tables
    from smimbench.report.rows import error_rows, suite_records
    from smimbench.report.tables import error_tables, runtime_tables, status_line
    from smimbench.report.versions import other_version_rows, other_version_tables

    pairs = suite_records(suite, store, backends)
    theorist = _theorist(store)
    rows = error_rows(pairs, suite, store, theorist)
    others = other_version_rows(suite, store, backends)
    counts: dict[str, int] = {}
    for _, record in pairs:
        counts[record["status"]] = counts.get(record["status"], 0) + 1
    missing = sum(len(suite.cells(backend)) for backend in backends) - len(pairs)
    bad = sum(count for name, count in counts.items() if name not in ("ok", "skipped"))
    if as_json:
        _print_json(
            {
                "suite": suite.name,
                "title": suite.title,
                "rows": rows,
                "status_counts": counts,
                "missing": missing,
                "other_versions": others,
            }
        )
    else:
        console = _console()
        console.print(suite.title, style="bold")
        if suite.description:
            console.print(suite.description)
        console.print()
        beside = (*contest_tables(rows), *learning_tables(rows), *finding_tables(rows))
        beside += (*runtime_tables(rows, machine.fingerprint()),)
        for table in (*error_tables(rows), *beside, *other_version_tables(others)):
            console.print(table, crop=False)
            console.print()
        _remarks(console, rows, quiet)
        console.print(status_line(counts, missing))
        console.print(f"results: {results_name}", soft_wrap=True)
    if figure and rows:
        _draw(suite, pairs, rows, theorist, store, as_json or quiet)
    return NOT_OK if bad or missing or not counts.get("ok") else OK


def _remarks(console: Console, rows: Sequence[dict[str, Any]], quiet: bool) -> None:
    if quiet:
        return
    reasons = sorted({(row["algorithm"], row["alpha"], reason) for row in rows for reason in row["reasons"]})
    for algorithm, alpha, reason in reasons[:20]:
        console.print(f"{algorithm} at alpha {alpha:.4g}: {reason}", style="yellow", soft_wrap=True)
    if len(reasons) > 20:
        console.print(f"... and {len(reasons) - 20} more reasons (--json has all)", style="yellow")
    for algorithm, warning in sorted({(row["algorithm"], w) for row in rows for w in row["warnings"]}):
        console.print(f"{algorithm}: warning: {warning}", style="yellow", soft_wrap=True)
    restarts = sum(
        {
            (r["problem"], r["algorithm"], r["backend"], r["alpha"], r["dimension"]): r["restarts"]
            for r in rows
        }.values()
    )
    if restarts:
        console.print(f"{restarts} runs were restarted once, more cautiously", style="yellow")


def _results(
    name: str, results: Path, overrides: Sequence[str], only: Sequence[str], registry: Registry, quiet: bool
) -> tuple[Suite, Store, list[Any], list[dict[str, Any]], TheoryCache]:
    """A suite with all that was run of it; an error if that is nothing."""
    from smimbench.report.rows import error_rows, suite_records

    suite = _load(name, overrides, only, registry)
    store = _store(name, suite, results)
    backends = sorted({r["cell"]["backend"] for r in store.load().values()}) or ["numpy"]
    _report_complaints(store, quiet)
    pairs = suite_records(suite, store, backends)
    if not pairs:
        raise click.UsageError(
            f"no results of {suite.name} in {store.folder}; run 'smimbench run {suite.name}' first"
        )
    theorist = _theorist(store)
    return suite, store, pairs, error_rows(pairs, suite, store, theorist), theorist


def _cheap(suite: Suite) -> bool:
    """Whether theory on a fine grid costs next to nothing."""
    return all(
        plan.problem.components == 1 and hasattr(plan.problem.channel, "information") for plan in suite.plans
    )


def _figures(
    suite: Suite,
    pairs: Sequence[tuple[Cell, dict[str, Any]]],
    rows: Sequence[dict[str, Any]],
    theorist: TheoryCache,
    store: Store,
) -> list[Path]:
    """Everything that is drawn of a suite; ImportError without matplotlib."""
    from smimbench.report.figures import draw_suite
    from smimbench.report.learning_curves import draw_courses

    folder, curve = store.folder / "figures", _cheap(suite)
    return [
        *draw_suite(suite, rows, theorist, folder, curve=curve),
        *draw_courses(suite, pairs, theorist, store, folder, curve=curve),
    ]


def _draw(
    suite: Suite,
    pairs: Sequence[tuple[Cell, dict[str, Any]]],
    rows: Sequence[dict[str, Any]],
    theorist: TheoryCache,
    store: Store,
    silent: bool,
) -> None:
    try:
        paths = _figures(suite, pairs, rows, theorist, store)
    except ImportError:
        _complain("no figure: matplotlib is missing; pip install 'smimbench[plot]'")
        return
    if not silent:
        for path in paths:
            if path.suffix == ".png":
                click.echo(f"figure:  {path} (and .svg)")


@cli.command()
@click.argument("suite_name", metavar="SUITE")
@click.option(
    "--alpha",
    "alphas",
    multiple=True,
    type=float,
    help="Sample ratios instead of the suite's; may be given often.",
)
@_json_option
@_options()
@_with_registry
def theory(
    suite_name: str,
    alphas: tuple[float, ...],
    as_json: bool,
    overrides: tuple[str, ...],
    only: tuple[str, ...],
    quiet: bool,
    registry: Registry,
) -> int:
    """The Bayes-optimal curve, thresholds and their errors; no simulation."""
    from smimbench.report.theory_document import theory_document

    for alpha in alphas:
        if not 0 < alpha < float("inf"):
            raise click.BadParameter(f"must be > 0 and finite, got {alpha}", param_hint="--alpha")
    suite = _load(suite_name, overrides, only, registry)
    if not suite.chosen_plans:
        raise click.UsageError("--only leaves no problem of this suite")
    document = theory_document(suite, alphas or None)
    if as_json:
        _print_json(document)
        return OK
    from smimbench.report.theory_tables import theory_tables

    console = _console()
    if not quiet:
        console.print(suite.title, style="bold")
    for table in theory_tables(document):
        console.print(table, crop=False)
    return OK


@cli.command()
@click.argument("suite_name", metavar="SUITE|DIR")
@_results_option
@click.option("--csv", "as_csv", is_flag=True, help="All rows as CSV.")
@click.option("--markdown", is_flag=True, help="All rows as a Markdown table.")
@click.option(
    "--backend",
    "backends",
    multiple=True,
    metavar="NAME",
    help="Show these backends only.",
)
@_json_option
@_options()
@_with_registry
def show(
    suite_name: str,
    results: Path,
    as_csv: bool,
    markdown: bool,
    backends: tuple[str, ...],
    as_json: bool,
    overrides: tuple[str, ...],
    only: tuple[str, ...],
    quiet: bool,
    registry: Registry,
) -> int:
    """Error-against-theory and runtime tables of what has been run."""
    from smimbench.report import tables
    from smimbench.report.rows import error_rows, suite_records
    from smimbench.report.versions import other_version_rows

    if as_json + as_csv + markdown > 1:
        raise click.UsageError("choose one of --json, --csv and --markdown")
    suite = _load(suite_name, overrides, only, registry)
    store = _store(suite_name, suite, results)
    backends = backends or tuple(sorted({r["cell"]["backend"] for r in store.load().values()})) or ("numpy",)
    _report_complaints(store, quiet)
    pairs = suite_records(suite, store, backends)
    if not pairs and not other_version_rows(suite, store, backends):
        raise click.UsageError(
            f"no results of {suite.name} in {store.folder}; run 'smimbench run {suite_name}' first"
        )
    if as_csv or markdown:
        rows = error_rows(pairs, suite, store, _theorist(store))
        click.echo(tables.as_csv(rows) if as_csv else tables.as_markdown(rows), nl=False)
        return OK
    return _present(
        suite, store, backends, as_json=as_json, quiet=quiet, figure=False, results_name=str(store.folder)
    )


@cli.command()
@click.argument("suite_name", metavar="SUITE|DIR")
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The HTML file to write."
)
@_results_option
@_options()
@_with_registry
def report(
    suite_name: str,
    output: Path,
    results: Path,
    overrides: tuple[str, ...],
    only: tuple[str, ...],
    quiet: bool,
    registry: Registry,
) -> int:
    """One self-contained HTML page: tables, figures, machine, suite."""
    from smimbench.files import write_atomically
    from smimbench.report.page import render_page

    suite, store, pairs, rows, theorist = _results(suite_name, results, overrides, only, registry, quiet)
    counts: dict[str, int] = {}
    for _, record in pairs:
        counts[record["status"]] = counts.get(record["status"], 0) + 1
    backends = {cell.backend for cell, _ in pairs}
    missing = sum(len(suite.cells(backend)) for backend in backends) - len(pairs)
    try:
        figures = _figures(suite, pairs, rows, theorist, store)
        page = render_page(
            suite, rows, counts, missing, store.read_shared(), [p for p in figures if p.suffix == ".svg"]
        )
    except ImportError as error:
        raise click.UsageError(f"a report needs {error.name}; pip install 'smimbench[report]'") from None
    write_atomically(output, page.encode())
    if not quiet:
        click.echo(f"wrote {output} ({output.stat().st_size / 1024:.0f} kB)")
    return OK


@cli.command()
@click.argument("before", type=click.Path(exists=True, file_okay=False))
@click.argument("after", type=click.Path(exists=True, file_okay=False))
@click.option(
    "--fail-over",
    type=click.FloatRange(0),
    default=None,
    metavar="PERCENT",
    help="Exit code 1 if an error is clearly worse, or a comparable time slower, by more.",
)
@_json_option
@_options()
@_with_registry
def compare(
    before: str,
    after: str,
    fail_over: float | None,
    as_json: bool,
    overrides: tuple[str, ...],
    only: tuple[str, ...],
    quiet: bool,
    registry: Registry,
) -> int:
    """Two result folders, worst first, with a verdict."""
    from smimbench.report.comparison import compare_rows, comparison_table, exceeds

    rows = [_results(name, Path(name), overrides, only, registry, quiet)[3] for name in (before, after)]
    entries = compare_rows(*rows)
    failing = [entry for entry in entries if fail_over is not None and exceeds(entry, fail_over)]
    if as_json:
        _print_json({"rows": entries, "failing": len(failing)})
    else:
        console = _console()
        for table in comparison_table(entries):
            console.print(table, crop=False)
            console.print()
        if fail_over is not None:
            console.print(
                f"{len(failing)} of {len(entries)} rows are worse by more than {fail_over:g}%",
                style="red" if failing else "green",
            )
    return NOT_OK if failing else OK


@cli.command()
@click.argument("suite_name", metavar="SUITE")
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The .npz file to write."
)
@_json_option
@_options()
@_with_registry
def data(
    suite_name: str,
    output: Path,
    as_json: bool,
    overrides: tuple[str, ...],
    only: tuple[str, ...],
    quiet: bool,
    registry: Registry,
) -> int:
    """An instance, to solve elsewhere in any language; --only picks which (default: the first)."""
    from smimbench.run.external import choose_point, write_instance

    suite = _load(suite_name, overrides, only, registry)
    about = write_instance(suite, choose_point(suite), output)
    if as_json:
        _print_json(about)
    elif not quiet:
        # Without the same choices the estimate would be held against another teacher.
        options = [("--only", c) for c in only] + [("--set", o) for o in overrides]
        same = "".join(f" {option} {shlex.quote(value)}" for option, value in options)
        click.echo(
            f"wrote {output}: inputs {tuple(about['inputs'])}, labels {tuple(about['labels'])}, "
            f"{about['label']}, alpha {about['alpha']:g}, D {about['dimension']}"
        )
        click.echo(
            f"save an estimate of shape {tuple(about['estimate_shape'])} as 'estimate' in an .npz, "
            f"then: smimbench score {suite_name} --estimate FILE.npz{same}"
        )
    return OK


@cli.command()
@click.argument("suite_name", metavar="SUITE")
@click.option(
    "--estimate",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="An .npz with the array 'estimate'.",
)
@click.option("--label", default="external", show_default=True, help="Name of the algorithm in the table.")
@_json_option
@_options()
@_with_registry
def score(
    suite_name: str,
    path: Path,
    label: str,
    as_json: bool,
    overrides: tuple[str, ...],
    only: tuple[str, ...],
    quiet: bool,
    registry: Registry,
) -> int:
    """What was found elsewhere, as a row of the table; --only as given to 'data'."""
    from smimbench.report.rows import rows_of_point
    from smimbench.report.tables import error_tables
    from smimbench.run.external import choose_point, read_estimate, score_record
    from smimbench.theory.cache import TheoryCache

    suite = _load(suite_name, overrides, only, registry)
    point = choose_point(suite)
    record = score_record(suite, point, read_estimate(path), label, path)
    rows = rows_of_point(suite, point, record, TheoryCache())
    if as_json:
        _print_json({"suite": suite.name, "rows": rows})
    else:
        for table in error_tables(rows):
            _console().print(table)
    del quiet
    return OK if record["status"] == "ok" else NOT_OK


@cli.command(name="list")
@click.argument(
    "kind", required=False, type=click.Choice(["models", "channels", "priors", "algorithms", "suites"])
)
@_json_option
@_options(suite_options=False)
@_with_registry
def list_items(kind: str | None, as_json: bool, quiet: bool, registry: Registry) -> int:
    """What there is: models, channels, priors, algorithms, suites."""
    from smimbench.report.catalogue import item_documents, print_items

    documents = item_documents(registry, kind)
    if as_json:
        _print_json(documents)
    else:
        print_items(_console(), documents)
    del quiet
    return OK


@cli.command()
@click.argument("name")
@_json_option
@_options(suite_options=False)
@_with_registry
def info(name: str, as_json: bool, quiet: bool, registry: Registry) -> int:
    """Everything about one item or suite: parameters, defaults, source, equation."""
    from smimbench.report.catalogue import info_documents, print_info

    documents = info_documents(registry, name)
    if as_json:
        _print_json(documents)
    else:
        print_info(_console(), documents)
    del quiet
    return OK


@cli.command()
@_json_option
@_options(suite_options=False)
@_with_registry
def plugins(as_json: bool, quiet: bool, registry: Registry) -> int:
    """Installed and dropped-in plugins, with what became of each."""
    from smimbench.report.catalogue import plugin_documents, print_plugins

    documents = plugin_documents(registry)
    if as_json:
        _print_json(documents)
    else:
        print_plugins(_console(), documents)
    del quiet
    return NOT_OK if any(d["status"] == "failed" for d in documents) else OK


@cli.command()
@click.argument("names", metavar="NAME...", nargs=-1)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="A parameter of the item; may be given often.",
)
@click.option("--only", "chosen", multiple=True, metavar="ID", help="This check only; may be given often.")
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Of everything that is drawn; the same seed gives the same outcomes.",
)
@click.option("--list", "list_only", is_flag=True, help="The checks and what a failure means; run nothing.")
@_json_option
@_options(suite_options=False)
@_with_registry
def check(
    names: tuple[str, ...],
    settings: tuple[str, ...],
    chosen: tuple[str, ...],
    seed: int,
    list_only: bool,
    as_json: bool,
    quiet: bool,
    registry: Registry,
) -> int:
    """Whether a channel, prior, algorithm or model does what its contract says.

    NAME is a registered item, as in 'smimbench list'; the checks are those of smimbench.testing. Exit code 1 if one fails.
    """
    from smimbench.testing import terminal

    del registry  # made the one of this process
    if list_only:
        documents = terminal.list_documents()
        if as_json:
            _print_json(documents)
        else:
            terminal.print_list(_console(), documents)
        return OK
    if not names:
        raise click.UsageError("say what to check: NAME, as in 'smimbench list'; --list shows the checks")
    documents = terminal.check_documents(
        names, only=chosen, seed=seed, parameters=terminal.read_parameters(settings)
    )
    if as_json:
        _print_json(documents)
    else:
        terminal.print_checks(_console(), documents, quiet=quiet)
    return NOT_OK if any(document["failed"] for document in documents) else OK


@cli.command()
@click.argument("kind", type=click.Choice(["channel", "prior", "algorithm"]))
@click.argument("name")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="Folder to write [default: ./smimbench-NAME].",
)
@_json_option
@_options(suite_options=False)
@_with_registry
def new(kind: str, name: str, output: Path | None, as_json: bool, quiet: bool, registry: Registry) -> int:
    """A complete package for a channel, prior or algorithm of your own: works at once, made to be changed."""
    from smimbench.registry.scaffold import write_package

    made = write_package(kind, name, output, registry)
    if as_json:
        _print_json({"folder": str(made.folder), "files": made.files, "next": made.commands})
    elif not quiet:
        click.echo(f"wrote {made.folder}: {', '.join(made.files)}")
        click.echo("next:")
        for line in made.commands:
            click.echo(f"  {line}")
    return OK


@cli.command()
@click.option(
    "--ceilings",
    is_flag=True,
    help="Measure matrix products and memory bandwidth of this machine, and remember them.",
)
@_json_option
@_options(suite_options=False)
@_with_registry
def doctor(ceilings: bool, as_json: bool, quiet: bool, registry: Registry) -> int:
    """Versions, BLAS, GPU, and the exact pip line for CuPy."""
    from smimbench.report.doctor import diagnose, print_diagnosis

    document = diagnose(registry, ceilings=ceilings)
    if as_json:
        _print_json(document)
    else:
        print_diagnosis(_console(), document)
    del quiet
    return OK if document["healthy"] else NOT_OK


if __name__ == "__main__":
    main()
