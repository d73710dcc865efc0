"""What has been run and what theory says: ``show``, ``theory``, ``report`` and ``compare``."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from smimbench.cli.options import (
    JSON,
    NOT_OK,
    OK,
    RESULTS,
    SUITE,
    SUITE_OR_FOLDER,
    Request,
    command,
    complain,
    flag,
    make_console,
    output_option,
    print_json,
    several,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rich.console import Console

    from smimbench.run.store import Store
    from smimbench.suite.cells import Suite


PATIENCE = 2.0
"""Seconds of theory before a file or pipe is told what is being solved; doubled, short ones say nothing twice as long."""


class Results:
    """All that was run of a suite on some backends, with the theory beside it."""

    def __init__(self, suite: Suite, store: Store, backends: Sequence[str]) -> None:
        from smimbench.report.rows import suite_records
        from smimbench.run.store import theory_folder
        from smimbench.theory.cache import TheoryCache

        self.suite, self.store, self.backends = suite, store, backends
        self.pairs = suite_records(suite, store, backends)
        self.cache = TheoryCache(theory_folder(store))
        self.counts = dict(Counter(record["status"] for _, record in self.pairs))

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """Rows of the error table."""
        from smimbench.report.rows import error_rows

        return error_rows(self.pairs, self.suite, self.store, self.cache)

    @cached_property
    def others(self) -> list[dict[str, Any]]:
        """Rows of what other versions of an item made."""
        from smimbench.report.versions import other_version_rows

        return other_version_rows(self.suite, self.store, self.backends)

    def missing(self, backends: Iterable[str]) -> int:
        """Cells on these backends that have no record."""
        return sum(len(self.suite.cells(backend)) for backend in backends) - len(self.pairs)

    def figures(self) -> list[Path]:
        """Draw everything; ImportError without matplotlib."""
        from smimbench.interfaces import offers
        from smimbench.report.figures import draw_suite
        from smimbench.report.learning_curves import draw_learning_curves

        folder = self.store.folder / "figures"
        problems = [plan.problem for plan in self.suite.plans]
        # Whether theory on a fine grid costs next to nothing.
        curve = all(p.components == 1 and offers(p.channel, "information") for p in problems)
        return [
            *draw_suite(self.suite, self.rows, self.cache, folder, curve=curve),
            *draw_learning_curves(self.suite, self.pairs, self.cache, self.store, folder, curve=curve),
        ]


def _stored(request: Request, backends: Sequence[str] = (), *, or_others: bool = False) -> Results:
    """Results of a suite on these backends (none: all there are); an error if there are none."""
    suite = request.suite()
    store = request.store(suite)
    known = sorted({record["cell"]["backend"] for record in store.load().values()})
    request.remark(store.complaints)
    results = Results(suite, store, backends or known or ["numpy"])
    if not results.pairs and not (or_others and results.others):
        raise click.UsageError(
            f"no results of {suite.name} in {store.folder}; run 'smimbench run {request.name}' first"
        )
    return results


def present(results: Results, request: Request, *, figure: bool) -> int:
    """Tables (or JSON), figures and the exit code."""
    from smimbench.backend import machine
    from smimbench.report.diagnostics import diagnostic_tables
    from smimbench.report.leaderboard import leaderboard_tables
    from smimbench.report.learning_order import learning_tables
    from smimbench.report.tables import error_tables, runtime_tables, status_line
    from smimbench.report.versions import other_version_tables

    suite, rows, counts = results.suite, results.rows, results.counts
    missing = results.missing(results.backends)
    bad = sum(count for name, count in counts.items() if name not in ("ok", "skipped"))
    if request.as_json:
        print_json(
            {
                "suite": suite.name,
                "title": suite.title,
                "rows": rows,
                "status_counts": counts,
                "missing": missing,
                "other_versions": results.others,
            }
        )
    else:
        console = make_console()
        console.print(suite.title, style="bold")
        if suite.description:
            console.print(suite.description)
        console.print()
        for table in (
            *error_tables(rows),
            *leaderboard_tables(rows),
            *learning_tables(rows),
            *diagnostic_tables(rows),
            *runtime_tables(rows, machine.fingerprint()),
            *other_version_tables(results.others),
        ):
            console.print(table, crop=False)
            console.print()
        if not request.quiet:
            _remarks(console, rows)
        console.print(status_line(counts, missing))
        console.print(f"results: {results.store.folder}", soft_wrap=True)
    if figure and rows:
        _draw(results, silent=request.as_json or request.quiet)
    return NOT_OK if bad or missing or not counts.get("ok") else OK


def _remarks(console: Console, rows: Sequence[dict[str, Any]]) -> None:
    from smimbench.report.labels import place

    reasons = sorted({(row["algorithm"], row["alpha"], reason) for row in rows for reason in row["reasons"]})
    for algorithm, alpha, reason in reasons[:20]:
        console.print(f"{algorithm} at alpha {alpha:.4g}: {reason}", style="yellow", soft_wrap=True)
    if len(reasons) > 20:
        console.print(f"... and {len(reasons) - 20} more reasons (--json has all)", style="yellow")
    for algorithm, warning in sorted({(row["algorithm"], w) for row in rows for w in row["warnings"]}):
        console.print(f"{algorithm}: warning: {warning}", style="yellow", soft_wrap=True)
    restarts = sum({place(row): row["restarts"] for row in rows}.values())
    if restarts:
        console.print(f"{restarts} runs were restarted once, more cautiously", style="yellow")


def _draw(results: Results, *, silent: bool) -> None:
    try:
        paths = results.figures()
    except ImportError:
        complain("no figure: matplotlib is missing; pip install 'smimbench[plot]'")
        return
    for path in () if silent else paths:
        if path.suffix == ".png":
            click.echo(f"figure:  {path} (and .svg)")


@contextlib.contextmanager
def _stages(request: Request) -> Iterator[Callable[[str], None]]:
    """Says on standard error what is being solved: a line that lives on a terminal, else one for each late stage."""
    console = make_console(error=True)
    if request.quiet or request.as_json:
        yield lambda stage: None
    elif console.is_terminal:
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task("theory", total=None)
            yield lambda stage: progress.update(task, description=f"theory of {stage}")
    else:
        begin = time.monotonic()

        def say(stage: str) -> None:
            if time.monotonic() - begin > PATIENCE:
                complain(f"theory of {stage} ({time.monotonic() - begin:.0f} s so far)")

        yield say


@command(
    SUITE,
    click.Option(
        ["--alpha", "alphas"],
        multiple=True,
        type=float,
        help="Sample ratios instead of the suite's; may be given often.",
    ),
    RESULTS,
    JSON,
)
def theory(request: Request, alphas: tuple[float, ...]) -> int:
    """The Bayes-optimal curve, thresholds and their errors; no simulation.

    Every answer is kept in the folder theory under --results, for run, show and report too.
    """
    from smimbench.report.theory_document import theory_document

    for alpha in alphas:
        if not 0 < alpha < float("inf"):
            raise click.BadParameter(f"must be > 0 and finite, got {alpha}", param_hint="--alpha")
    suite = request.suite()
    if not suite.chosen_plans:
        raise click.UsageError("--only leaves no problem of this suite")
    with _stages(request) as on_stage:
        document = theory_document(suite, alphas or None, request.theory(), on_stage)
    if request.as_json:
        print_json(document)
        return OK
    from smimbench.report.theory_tables import theory_tables

    console = make_console()
    if not request.quiet:
        console.print(suite.title, style="bold")
    for table in theory_tables(document):
        console.print(table, crop=False)
    return OK


@command(
    SUITE_OR_FOLDER,
    RESULTS,
    flag("All rows as CSV.", "--csv", "as_csv"),
    flag("All rows as a Markdown table.", "--markdown"),
    several("Show these backends only.", "NAME", "--backend", "backends"),
    JSON,
)
def show(request: Request, as_csv: bool, markdown: bool, backends: tuple[str, ...]) -> int:
    """Error-against-theory and runtime tables of what has been run."""
    from smimbench.report import tables

    if request.as_json + as_csv + markdown > 1:
        raise click.UsageError("choose one of --json, --csv and --markdown")
    results = _stored(request, backends, or_others=True)
    if as_csv or markdown:
        click.echo(tables.as_csv(results.rows) if as_csv else tables.as_markdown(results.rows), nl=False)
        return OK
    return present(results, request, figure=False)


@command(SUITE_OR_FOLDER, output_option("The HTML file to write."), RESULTS)
def report(request: Request, output: Path) -> int:
    """One self-contained HTML page: tables, figures, machine, suite."""
    from smimbench.files import write_atomically
    from smimbench.report.page import render_page

    results = _stored(request)
    missing = results.missing({cell.backend for cell, _ in results.pairs})
    try:
        drawn = [path for path in results.figures() if path.suffix == ".svg"]
        shared = results.store.read_shared()
        page = render_page(results.suite, results.rows, results.counts, missing, shared, drawn)
    except ImportError as error:
        raise click.UsageError(f"a report needs {error.name}; pip install 'smimbench[report]'") from None
    write_atomically(output, page.encode())
    if not request.quiet:
        click.echo(f"wrote {output} ({output.stat().st_size / 1024:.0f} kB)")
    return OK


@command(
    click.Argument(["before"], type=click.Path(exists=True, file_okay=False)),
    click.Argument(["after"], type=click.Path(exists=True, file_okay=False)),
    click.Option(
        ["--fail-over"],
        type=click.FloatRange(0),
        default=None,
        metavar="PERCENT",
        help="Exit code 1 if an error is clearly worse, or a comparable time slower, by more.",
    ),
    JSON,
)
def compare(request: Request, before: str, after: str, fail_over: float | None) -> int:
    """Two result folders, worst first, with a verdict."""
    from smimbench.report.comparison import compare_rows, comparison_table, exceeds

    entries = compare_rows(*(_stored(replace(request, name=folder)).rows for folder in (before, after)))
    failing = [entry for entry in entries if fail_over is not None and exceeds(entry, fail_over)]
    if request.as_json:
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
