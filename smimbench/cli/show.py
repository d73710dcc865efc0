"""What has been run and what theory says: ``show``, ``theory``, ``report`` and ``compare``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from smimbench.cli.options import (
    NOT_OK,
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
    theory_cache,
    with_registry,
)
from smimbench.interfaces import offers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from smimbench.registry.registry import Registry
    from smimbench.run.store import Store
    from smimbench.suite.cells import Cell, Suite
    from smimbench.theory.cache import TheoryCache


def present(
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
    from smimbench.report.diagnostics import diagnostic_tables
    from smimbench.report.leaderboard import leaderboard_tables
    from smimbench.report.learning_order import learning_tables
    from smimbench.report.rows import error_rows, suite_records
    from smimbench.report.tables import error_tables, runtime_tables, status_line
    from smimbench.report.versions import other_version_rows, other_version_tables

    pairs = suite_records(suite, store, backends)
    cache = theory_cache(store)
    rows = error_rows(pairs, suite, store, cache)
    others = other_version_rows(suite, store, backends)
    counts: dict[str, int] = {}
    for _, record in pairs:
        counts[record["status"]] = counts.get(record["status"], 0) + 1
    missing = sum(len(suite.cells(backend)) for backend in backends) - len(pairs)
    bad = sum(count for name, count in counts.items() if name not in ("ok", "skipped"))
    if as_json:
        print_json(
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
        console = make_console()
        console.print(suite.title, style="bold")
        if suite.description:
            console.print(suite.description)
        console.print()
        beside = (*leaderboard_tables(rows), *learning_tables(rows), *diagnostic_tables(rows))
        beside += (*runtime_tables(rows, machine.fingerprint()),)
        for table in (*error_tables(rows), *beside, *other_version_tables(others)):
            console.print(table, crop=False)
            console.print()
        _remarks(console, rows, quiet)
        console.print(status_line(counts, missing))
        console.print(f"results: {results_name}", soft_wrap=True)
    if figure and rows:
        _draw(suite, pairs, rows, cache, store, as_json or quiet)
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

    suite = load(name, overrides, only, registry)
    store = store_of(name, suite, results)
    backends = sorted({r["cell"]["backend"] for r in store.load().values()}) or ["numpy"]
    complain_of_store(store, quiet)
    pairs = suite_records(suite, store, backends)
    if not pairs:
        raise click.UsageError(
            f"no results of {suite.name} in {store.folder}; run 'smimbench run {suite.name}' first"
        )
    cache = theory_cache(store)
    return suite, store, pairs, error_rows(pairs, suite, store, cache), cache


def _cheap(suite: Suite) -> bool:
    """Whether theory on a fine grid costs next to nothing."""
    return all(
        plan.problem.components == 1 and offers(plan.problem.channel, "information") for plan in suite.plans
    )


def _figures(
    suite: Suite,
    pairs: Sequence[tuple[Cell, dict[str, Any]]],
    rows: Sequence[dict[str, Any]],
    cache: TheoryCache,
    store: Store,
) -> list[Path]:
    """Everything that is drawn of a suite; ImportError without matplotlib."""
    from smimbench.report.figures import draw_suite
    from smimbench.report.learning_curves import draw_learning_curves

    folder, curve = store.folder / "figures", _cheap(suite)
    return [
        *draw_suite(suite, rows, cache, folder, curve=curve),
        *draw_learning_curves(suite, pairs, cache, store, folder, curve=curve),
    ]


def _draw(
    suite: Suite,
    pairs: Sequence[tuple[Cell, dict[str, Any]]],
    rows: Sequence[dict[str, Any]],
    cache: TheoryCache,
    store: Store,
    silent: bool,
) -> None:
    try:
        paths = _figures(suite, pairs, rows, cache, store)
    except ImportError:
        complain("no figure: matplotlib is missing; pip install 'smimbench[plot]'")
        return
    if not silent:
        for path in paths:
            if path.suffix == ".png":
                click.echo(f"figure:  {path} (and .svg)")


@click.command()
@click.argument("suite_name", metavar="SUITE")
@click.option(
    "--alpha",
    "alphas",
    multiple=True,
    type=float,
    help="Sample ratios instead of the suite's; may be given often.",
)
@json_option
@shared_options()
@with_registry
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
    suite = load(suite_name, overrides, only, registry)
    if not suite.chosen_plans:
        raise click.UsageError("--only leaves no problem of this suite")
    document = theory_document(suite, alphas or None)
    if as_json:
        print_json(document)
        return OK
    from smimbench.report.theory_tables import theory_tables

    console = make_console()
    if not quiet:
        console.print(suite.title, style="bold")
    for table in theory_tables(document):
        console.print(table, crop=False)
    return OK


@click.command()
@click.argument("suite_name", metavar="SUITE|DIR")
@results_option
@click.option("--csv", "as_csv", is_flag=True, help="All rows as CSV.")
@click.option("--markdown", is_flag=True, help="All rows as a Markdown table.")
@click.option(
    "--backend",
    "backends",
    multiple=True,
    metavar="NAME",
    help="Show these backends only.",
)
@json_option
@shared_options()
@with_registry
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
    suite = load(suite_name, overrides, only, registry)
    store = store_of(suite_name, suite, results)
    backends = backends or tuple(sorted({r["cell"]["backend"] for r in store.load().values()})) or ("numpy",)
    complain_of_store(store, quiet)
    pairs = suite_records(suite, store, backends)
    if not pairs and not other_version_rows(suite, store, backends):
        raise click.UsageError(
            f"no results of {suite.name} in {store.folder}; run 'smimbench run {suite_name}' first"
        )
    if as_csv or markdown:
        rows = error_rows(pairs, suite, store, theory_cache(store))
        click.echo(tables.as_csv(rows) if as_csv else tables.as_markdown(rows), nl=False)
        return OK
    return present(
        suite, store, backends, as_json=as_json, quiet=quiet, figure=False, results_name=str(store.folder)
    )


@click.command()
@click.argument("suite_name", metavar="SUITE|DIR")
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The HTML file to write."
)
@results_option
@shared_options()
@with_registry
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

    suite, store, pairs, rows, cache = _results(suite_name, results, overrides, only, registry, quiet)
    counts: dict[str, int] = {}
    for _, record in pairs:
        counts[record["status"]] = counts.get(record["status"], 0) + 1
    backends = {cell.backend for cell, _ in pairs}
    missing = sum(len(suite.cells(backend)) for backend in backends) - len(pairs)
    try:
        figures = _figures(suite, pairs, rows, cache, store)
        page = render_page(
            suite, rows, counts, missing, store.read_shared(), [p for p in figures if p.suffix == ".svg"]
        )
    except ImportError as error:
        raise click.UsageError(f"a report needs {error.name}; pip install 'smimbench[report]'") from None
    write_atomically(output, page.encode())
    if not quiet:
        click.echo(f"wrote {output} ({output.stat().st_size / 1024:.0f} kB)")
    return OK


@click.command()
@click.argument("before", type=click.Path(exists=True, file_okay=False))
@click.argument("after", type=click.Path(exists=True, file_okay=False))
@click.option(
    "--fail-over",
    type=click.FloatRange(0),
    default=None,
    metavar="PERCENT",
    help="Exit code 1 if an error is clearly worse, or a comparable time slower, by more.",
)
@json_option
@shared_options()
@with_registry
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
        print_json({"rows": entries, "failing": len(failing)})
    else:
        console = make_console()
        for table in comparison_table(entries):
            console.print(table, crop=False)
            console.print()
        if fail_over is not None:
            console.print(
                f"{len(failing)} of {len(entries)} rows are worse by more than {fail_over:g}%",
                style="red" if failing else "green",
            )
    return NOT_OK if failing else OK
