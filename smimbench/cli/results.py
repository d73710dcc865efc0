"""Results as commands present them: verdicts, remarks, tables and figures, and the stored table of a run."""

from __future__ import annotations

import math
import textwrap
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from smimbench.cli.options import (
    NOT_OK,
    OK,
    complain,
    make_console,
    print_json,
    print_tables,
)
from smimbench.files import read_text, unless

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from smimbench.cli.options import Request
    from smimbench.report.charts import Chart
    from smimbench.report.results import Results, ResultsTable
    from smimbench.report.row import Row, StillMoving


def stored_results(
    request: Request, backends: Sequence[str] = (), *, any_code: bool = False
) -> Results:
    """Load the stored results of a suite on these backends (default: all); raise an error if there are none.

    ``any_code``: those of other code too, where the present code has run nothing.
    """
    from smimbench.report.results import Results
    from smimbench.run.store import changed_code

    suite = request.suite()
    store = request.store(suite)
    answers = request.answers(suite, store)
    results = Results(suite, store, backends, answers, any_code=any_code)
    request.remark(*store.complaints)
    if not any_code:
        request.remark(*changed_code(results.other_versions))
    if suite.choices:
        from smimbench.run.tuning import range_end_remarks

        request.remark(*range_end_remarks(suite, store))
    if not results.pairs and not results.scored:
        raise click.UsageError(_why_no_results(request, results))
    return results


def remark_missing_theory(results: Results, request: Request) -> None:
    """Print which command solves theory that is needed but not stored."""
    if results.answers.is_missing:
        solve = request.typed("theory")
        request.remark(f"some theory is not stored; '{solve}' solves it")


def charts_of(results: Results) -> list[Chart]:
    """Make all figures as data, error figures first."""
    from smimbench.report.extrapolation import size_charts
    from smimbench.report.figures import metric_chart, phase_chart
    from smimbench.report.run_figures import (
        learning_charts,
        profile_chart,
        seconds_chart,
        spectrum_chart,
    )

    suite, answers = results.suite, results.answers
    charts = [
        metric_chart(suite, results.rows, answers, metric)
        for metric in suite.run.metrics
    ]
    charts += learning_charts(results)
    charts += [seconds_chart(results), profile_chart(results)]
    charts += [phase_chart(suite, answers), spectrum_chart(results)]
    charts += size_charts(suite, results.table.extrapolated)
    return [chart for chart in charts if chart is not None]


def _why_no_results(request: Request, results: Results) -> str:
    """Explain why there are no results: which settings have some, and which command computes them."""
    from smimbench.report.tables import other_version_lines
    from smimbench.run.store import options_of, settings_of_suite

    suite, store = results.suite, results.store
    options = options_of(suite)
    reasons = [
        f"no results of {suite.name} {f'with {options} ' if options else ''}in {store.folder}"
    ]
    runs = settings_of_suite(store.folder)
    same_options = [run.folder for run in runs if run.words == options]
    if changed_items := other_version_lines(results.other_versions):
        reasons += changed_items
    elif same_options:
        reasons.append(
            f"results of an earlier version of this suite exist: 'smimbench show {same_options[0]}'"
        )
    other_options = [
        run.words or "the suite's own settings" for run in runs if run.words != options
    ]
    if other_options:
        reasons.append(f"there are some with {', or with '.join(other_options)}")
    command = " ".join(filter(None, ("smimbench run", request.name, options)))
    return f"{'; '.join(reasons)}; run '{command}' first"


def load_stored_table(
    request: Request, reason: str
) -> tuple[ResultsTable, Path] | None:
    """Load the stored table of a finished run whose suite cannot be read because an item is not installed."""
    from smimbench.report.packed import read_packed
    from smimbench.report.stored_table import TABLE
    from smimbench.run.store import settings_under
    from smimbench.suite import SuiteError

    path = Path(request.name)
    runs = settings_under(path if path.is_dir() else request.results / path.stem)
    if len(runs) != 1 or request.overrides or request.only:
        return None
    folder, shared = runs[0].folder, runs[0].shared
    is_file = path.suffix == ".toml"
    if is_file and unless(ValueError, read_text, path) != shared["text"]:
        return None
    try:
        table, *_ = read_packed(folder / TABLE)
    except SuiteError:  # there is none that can be trusted
        return None
    written = time.localtime(shared.get("written", 0))
    date = time.strftime("%Y-%m-%d %H:%M", written)
    request.remark(f"{reason}; showing the table of the run on {date}")
    return table, folder


def compare_with(table: ResultsTable, name: str | None) -> ResultsTable:
    """Return a table whose verdicts compare with this algorithm; raise an error if there is no such algorithm."""
    if name is None:
        return table
    names: set[str] = set()
    for verdict in table.verdicts:
        names.update(contender.algorithm for contender in verdict.contenders)
    if name not in names:
        raise click.BadParameter(
            f"these results have no algorithm {name!r}; choose from {', '.join(sorted(names))}",
            param_hint="--against",
        )
    return replace(table, against=name)


def present(results: Results, request: Request, *, against: str | None) -> int:
    """Store the table of a run, print its verdict (or JSON), and return the exit code."""
    from smimbench.report.stored_table import TABLE, write_table
    from smimbench.run.store import Store

    table = results.table
    write_table(results.folder / TABLE, table, Store(results.folder).read_shared())
    try:
        table = compare_with(table, against)
    except click.BadParameter as error:  # no reason to hide what was run
        request.remark(error.format_message())
    if request.as_json:
        print_json(table.document())
    else:
        _print_outcome(table, request, results.folder)
    return _exit_code(table)


LINES = 20
"""Largest number of lines that a run prints at its end, apart from figures, to fit a screen of 24 lines."""


def _print_outcome(table: ResultsTable, request: Request, folder: Path) -> None:
    """Print the outcome of a run on one screen: verdicts, other algorithms, remarks, and commands for more."""
    from smimbench.report.tables import status_line

    console = make_console()
    _print_title(console, table)
    lines = 3 + _print_verdicts(console, table, LINES - 8)
    if not request.quiet:
        remarks = _remarks(console, table, request)
        for index, remark in enumerate(remarks):
            lines += max(remark.count("\n") + 1, -(-len(remark) // console.width))
            if index and lines > LINES:
                hidden = len(remarks) - index
                console.print(
                    f"... and {hidden} more remarks, which 'smimbench show' prints",
                    style="yellow",
                )
                break
            console.print(remark, style="yellow", soft_wrap=True)
    console.print(status_line(table.status_counts, table.missing))
    command = f"tables:  {request.typed('show')} (--figures: all figures)"
    console.print(command, soft_wrap=True)
    console.print(f"results: {folder}", soft_wrap=True)


def _print_verdicts(
    console: Console, table: ResultsTable, limit: float = math.inf
) -> int:
    """Print the verdict on each problem in at most ``limit`` lines in total; return the number of lines."""
    from smimbench.report.verdict import REFUSED, contender_line, verdict_line

    lines = hidden = 0
    for verdict in table.verdicts:
        text = textwrap.fill(
            verdict_line(verdict), console.width, subsequent_indent="    "
        )
        console.print(text, style="green")
        lines += text.count("\n") + 1
        ranked = verdict.contenders
        for contender in ranked[1:] if ranked and ranked[0].points else ():
            text = textwrap.fill(
                contender_line(contender),
                console.width,
                initial_indent="  ",
                subsequent_indent="    ",
            )
            height = text.count("\n") + 1
            # What is wrong is named, however long the list is.
            is_wrong = (
                contender.agreement.prediction in REFUSED or contender.below_optimum
            )
            if lines + height > limit and not is_wrong:
                hidden += 1
                continue
            console.print(text)
            lines += height
    if hidden:
        console.print(
            f"  ... and {hidden} more lines on other algorithms, which 'smimbench show' prints"
        )
    return lines


def _print_title(console: Console, table: ResultsTable) -> None:
    console.print(table.title, style="bold")
    if table.missing:
        finished = sum(table.status_counts.values())
        total = table.missing + finished
        console.print(
            f"{finished} of {total} cells have been run: these results may change",
            style="yellow",
        )


def _exit_code(table: ResultsTable) -> int:
    counts = table.status_counts
    if set(counts) - {"ok", "skipped"} or not counts.get("ok"):
        return NOT_OK
    for verdict in table.verdicts:
        if any(contender.below_optimum for contender in verdict.contenders):
            return NOT_OK
    return NOT_OK if table.missing or table.left_out else OK


def present_table(
    table: ResultsTable, request: Request, folder: Path, *, full: bool = False
) -> int:
    """Print a table as ``show`` does, and return the exit code."""
    from smimbench.backend import machine
    from smimbench.report import tables

    if request.as_json:
        print_json(table.document())
    else:
        console = make_console()
        _print_title(console, table)
        if table.description:
            console.print(table.description)
        _print_verdicts(console, table)
        console.print()
        print_tables(console, tables.contender_tables(table.verdicts))
        if len(table.verdicts) > 1:
            print_tables(console, tables.summary_tables(table.summary))
        fingerprint = machine.fingerprint()
        for shown in (
            tables.error_tables(table.rows, full=full),
            tables.extrapolated_tables(table.extrapolated),
            tables.learning_tables(table.rows),
            tables.diagnostic_tables(table.rows),
            tables.runtime_tables(table.rows, fingerprint, full=full),
        ):
            print_tables(console, shown)
        if not request.quiet:
            for line in _remarks(console, table, request):
                console.print(line, style="yellow", soft_wrap=True)
        console.print(tables.status_line(table.status_counts, table.missing))
        console.print(f"results: {folder}", soft_wrap=True)
    return _exit_code(table)


def _remarks(console: Console, table: ResultsTable, request: Request) -> list[str]:
    """Collect the remarks on tables, beginning with the reasons of failed cells, which are not wrapped for copying."""
    from smimbench.report.row import place
    from smimbench.report.tables import missing_values, other_version_lines

    rows = table.rows
    remarks = _reasons(rows)
    if len(remarks) > REASONS:
        hidden = len(remarks) - REASONS
        remarks[REASONS:] = [f"... and {hidden} more reasons (--json has all)"]
    notes: set[str] = set()
    retry: set[str] = set()
    restarts: dict[tuple[object, ...], int] = {}
    for row in rows:
        notes.update(
            f"{row.place.algorithm}: note: {note}" for note in row.runs.warnings
        )
        retry.update({"failed", "timeout"}.intersection(row.runs.status_counts))
        restarts[place(row)] = row.runs.restarts
    remarks += sorted(notes)
    if retry:
        options = (f"--retry {status}" for status in sorted(retry))
        command = " ".join([request.typed("run"), *options])
        remarks.append(f"once that is fixed: {command}")
    if restarted := sum(restarts.values()):
        remarks.append(
            f"{restarted} runs were restarted once with more cautious settings"
        )
    remarks += other_version_lines(table.other_versions, table.missing > 0)
    for line in (*missing_values(rows), *_unconverged_lines(rows)):
        remarks.append(textwrap.fill(line, console.width, break_on_hyphens=False))
    return remarks


REASONS = 20
"""Largest number of reasons of failed cells that are printed; doubled, they fill two screens."""

_ENDED = {
    "failed": "failed",
    "diverged": "diverged",
    "not-converged": "did not converge",
    "timeout": "timed out",
}


def _reasons(rows: Sequence[Row]) -> list[str]:
    """List the reasons why cells of an algorithm failed, one line each, with the number of cells."""
    from smimbench.report.row import kind_of, place

    cells: Counter[tuple[str, str]] = Counter()
    reasons: dict[tuple[str, str], dict[str, str]] = {}
    by_place = {place(row): row for row in sorted(rows, key=lambda r: r.place.alpha)}
    for row in by_place.values():
        algorithm, alpha = row.place.algorithm, f"{row.place.alpha:.4g}"
        for status, count in row.runs.status_counts.items():
            cells[algorithm, status] += count
        for line in row.runs.reasons:
            status, _, reason = line.partition(": ")
            kinds = reasons.setdefault((algorithm, status), {})
            kinds.setdefault(kind_of(line), f"at alpha {alpha}: {reason}")
    lines = []
    for (algorithm, status), kinds in sorted(reasons.items()):
        count = cells[algorithm, status]
        ended = _ENDED.get(status, f"{'was' if count == 1 else 'were'} {status}")
        first_reason, *further = kinds.values()
        plural = "" if count == 1 else "s"
        lines.append(f"{algorithm}: {count} cell{plural} {ended}, first {first_reason}")
        lines += [f"{algorithm}: {status} {reason}" for reason in further]
    return lines


def _unconverged_lines(rows: Sequence[Row]) -> list[str]:
    """List algorithms whose error was still changing at the last step, one line per problem, where it changed most."""
    moving: dict[tuple[str, str], tuple[float, StillMoving]] = {}
    for row in rows:
        key, change = (row.place.problem, row.place.algorithm), row.runs.still_moving
        if change and (
            key not in moving or abs(change.change) >= abs(moving[key][1].change)
        ):
            moving[key] = row.place.alpha, change
    lines = []
    for (problem, algorithm), (alpha, change) in moving.items():
        line = (
            f"{problem}: {algorithm}: not converged: the error {'rose' if change.change > 0 else 'fell'} by "
            f"{abs(change.change):.0%} between the last two 15% blocks of steps at alpha {alpha:.4g}"
        )
        if change.change > 0:
            line += f"; its minimum was {change.lowest:.2g} times the final error"
        lines.append(line)
    return lines


def draw_figures(
    charts: Sequence[Chart],
    folder: Path,
    request: Request,
    *,
    kinds: Sequence[str] = ("png", "svg", "pdf"),
    width: str | None = None,
) -> list[Path]:
    """Draw figures into a folder and print their paths, or a remark if matplotlib is missing."""
    from smimbench.cli.progress import figures_progress
    from smimbench.report.charts import save

    paths: list[Path] = []
    try:
        for chart in figures_progress(charts, silent=request.silent):
            paths += save(chart, folder, kinds, width)
    except ImportError:
        complain("no figure: matplotlib is missing; pip install 'smimbench[plot]'")
    if not request.silent:
        kinds_of: dict[Path, list[str]] = {}
        for path in paths:
            kinds_of.setdefault(path.with_suffix(""), []).append(path.suffix)
        for name, (suffix, *suffixes) in kinds_of.items():
            also = f" (and {', '.join(suffixes)})" if suffixes else ""
            click.echo(f"figure:  {name}{suffix}{also}")
    return paths
