"""Results as commands present them: verdicts, remarks, tables and figures, and the stored table of a run."""

from __future__ import annotations

import itertools
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
    make_console,
    print_json,
    print_message,
    print_tables,
)
from smimbench.files import read_text, unless

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from smimbench.cli.options import Request
    from smimbench.report.charts import Chart
    from smimbench.report.results import Results, ResultsTable
    from smimbench.report.row import Row


def stored_results(
    request: Request, backends: Sequence[str] = (), *, any_code: bool = False
) -> Results:
    """Load the stored results of a suite on these backends (default: all); raise an error if there are none.

    ``any_code``: those of other code too, where the present code has run nothing.
    """
    from smimbench.report.results import Results
    from smimbench.run.store import changed_code_remarks

    suite = request.suite()
    store = request.store(suite)
    answers = request.answers(suite, store)
    results = Results(suite, store, backends, answers, any_code=any_code)
    request.notes.extend(store.complaints)
    if not any_code:
        request.notes.extend(changed_code_remarks(results.other_versions))
    if suite.choices:
        from smimbench.run.tuning import range_end_remarks

        request.notes.extend(range_end_remarks(suite, store))
    if not results.pairs and not results.scored:
        raise click.UsageError(_why_no_results(request, results))
    return results


def remark_missing_theory(results: Results, request: Request) -> None:
    """Add a remark that names the command which solves theory that the results need and that is not stored."""
    if results.answers.has_missing_answers:
        theory_command = request.command_line("theory")
        request.notes.append(f"some theory is not stored; '{theory_command}' solves it")


def charts_of(results: Results) -> list[Chart]:
    """Make all figures as data, error figures first."""
    from smimbench.report.extrapolation import size_charts
    from smimbench.report.figures import metric_chart, phase_chart
    from smimbench.report.profiles import profile_chart
    from smimbench.report.run_figures import (
        learning_charts,
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
    """Explain why there are no results: which other settings of the suite have some, and which command computes them."""
    from smimbench.report.tables import other_version_lines
    from smimbench.run.store import options_of, settings_of_suite

    suite, store = results.suite, results.store
    options = options_of(suite)
    reasons = [
        f"no results of {suite.name} {f'with {options} ' if options else ''}in {store.folder}"
    ]
    runs = settings_of_suite(store.folder)
    same_option_folders = [run.folder for run in runs if run.options == options]
    if version_messages := other_version_lines(results.other_versions):
        reasons += version_messages
    elif same_option_folders:
        reasons.append(
            f"results of an earlier version of this suite exist: 'smimbench show {same_option_folders[0]}'"
        )
    other_options = [
        run.options or "the suite's own settings"
        for run in runs
        if run.options != options
    ]
    if other_options:
        reasons.append(f"there are some with {', or with '.join(other_options)}")
    return f"{'; '.join(reasons)}; run '{request.command_line('run')}' first"


def load_stored_table(
    request: Request, reason: str
) -> tuple[ResultsTable, Path] | None:
    """Load the stored table of a finished run whose suite cannot be read because an item is not installed (``reason`` says
    which), and the run's folder.
    """
    from smimbench.report.packed import read_packed
    from smimbench.report.stored_table import TABLE
    from smimbench.run.store import settings_under
    from smimbench.suite import SuiteError

    path = Path(request.name)
    runs = settings_under(path if path.is_dir() else request.results / path.stem)
    if len(runs) != 1 or request.overrides or request.only:
        return None
    folder = runs[0].folder
    run_document = runs[0].run_json
    is_suite_file = path.suffix == ".toml"
    if is_suite_file and unless(ValueError, read_text, path) != run_document["text"]:
        return None
    try:
        table, *_ = read_packed(folder / TABLE)
    except SuiteError:  # there is none that can be trusted
        return None
    written_time = time.localtime(run_document.get("written", 0))
    date = time.strftime("%Y-%m-%d %H:%M", written_time)
    request.notes.append(f"{reason}; showing the table of the run on {date}")
    return table, folder


def compare_with(table: ResultsTable, algorithm: str | None) -> ResultsTable:
    """Return a table whose verdicts compare with this algorithm; raise an error if there is no such algorithm."""
    if algorithm is None:
        return table
    algorithms: set[str] = set()
    for verdict in table.verdicts:
        algorithms.update(contender.algorithm for contender in verdict.contenders)
    if algorithm not in algorithms:
        raise click.BadParameter(
            f"these results have no algorithm {algorithm!r}; choose from {', '.join(sorted(algorithms))}",
            param_hint="--against",
        )
    return replace(table, against=algorithm)


def present_run(
    results: Results,
    request: Request,
    *,
    against: str | None,
    draw: Callable[[], object],
) -> int:
    """Store the table of a run, ``draw`` its figure, print its verdict (or JSON), and return the exit code."""
    from smimbench.report.stored_table import TABLE, write_table
    from smimbench.run.store import Store

    table = results.table
    write_table(results.folder / TABLE, table, Store(results.folder).read_run_json())
    try:
        table = compare_with(table, against)
    except click.BadParameter as error:  # no reason to hide what was run
        request.notes.append(error.format_message())
    console = make_console()
    if not request.as_json:
        _print_heading(console, table, results.folder)
        command = f"tables:  {request.command_line('show')} --full"
        console.print(command, soft_wrap=True)
    draw()
    if request.as_json:
        print_json(table.document())
    else:
        _print_verdicts(console, table, request, LINES)
    return _exit_code(table)


def present_table(
    table: ResultsTable, request: Request, folder: Path, *, full: bool = False
) -> int:
    """Print a table as ``show`` does, the verdict last, and return the exit code."""
    from smimbench.backend import machine
    from smimbench.report import tables

    if request.as_json:
        print_json(table.document())
        return _exit_code(table)
    console = make_console()
    _print_heading(console, table, folder)
    if full:
        if table.description:
            console.print(table.description)
        console.print()
        table_groups = [
            tables.contender_tables(table.verdicts),
            tables.summary_tables(table.summary if len(table.verdicts) > 1 else ()),
            tables.error_tables(table.rows),
            tables.worth_tables(table.rows),
            tables.extrapolated_tables(table.extrapolated),
            tables.learning_tables(table.rows),
            tables.diagnostic_tables(table.rows),
            tables.runtime_tables(table.rows, machine.fingerprint()),
        ]
    else:
        table_groups = [tables.ranking_tables(table.verdicts)]
    for table_group in table_groups:
        print_tables(console, table_group)
    _print_verdicts(console, table, request, math.inf if full else LINES)
    return _exit_code(table)


def _print_heading(console: Console, table: ResultsTable, folder: Path) -> None:
    """Print the title of a suite, how many of its cells have been run, and in which folder."""
    from smimbench.report.tables import status_line

    console.print(table.title, style="bold")
    if table.missing:
        finished_count = sum(table.status_counts.values())
        cell_count = table.missing + finished_count
        console.print(
            f"{finished_count} of {cell_count} cells have been run: these results may change",
            style="yellow",
        )
    status = status_line(table.status_counts, table.missing)
    console.print(status.append(f", in {folder}"), soft_wrap=True)


LINES = 18
"""Largest number of lines of verdicts and remarks that a run ends with, so that they fit a screen of 24 lines."""


def _print_verdicts(
    console: Console, table: ResultsTable, request: Request, line_limit: float
) -> None:
    """Print the verdict on each problem, then remarks, in about ``line_limit`` lines, and where to read what they mean."""
    paragraphs = _verdict_paragraphs(console, table, line_limit)
    if not request.quiet:
        line_count = sum(text.count("\n") + 1 for text, _ in paragraphs)
        remarks = _remarks(console, table, request, line_limit)
        for index, remark in enumerate(remarks):
            line_count += max(remark.count("\n") + 1, -(-len(remark) // console.width))
            if index and line_count > line_limit:
                remarks[index:] = [
                    f"... and {len(remarks) - index} more remarks, which 'smimbench show --full' prints"
                ]
                break
        paragraphs += [(remark, "yellow") for remark in remarks]
        paragraphs.append(("what this means: smimbench help verdict", "dim"))
    for text, style in paragraphs:
        console.print(text, style=style, soft_wrap=True)


def _verdict_paragraphs(
    console: Console, table: ResultsTable, line_limit: float
) -> list[tuple[str, str]]:
    """Return the wrapped lines of the verdicts with their styles, in about ``line_limit`` lines (None: all); lines on other
    algorithms than the best take up to two thirds of them.
    """
    from smimbench.report.wording import (
        REFUSED,
        contender_line,
        reversal_line,
        verdict_line,
    )

    paragraphs: list[tuple[str, str]] = []
    line_count = hidden_count = 0

    def add(text: str, style: str, indent: str, *, is_needed: bool) -> None:
        """Add a wrapped paragraph if it is needed or there is room, or count it as hidden."""
        nonlocal line_count, hidden_count
        paragraph = textwrap.fill(
            text, console.width, initial_indent=indent, subsequent_indent="    "
        )
        paragraph_lines = paragraph.count("\n") + 1
        if is_needed or line_count + paragraph_lines <= line_limit * 2 / 3:
            paragraphs.append((paragraph, style))
            line_count += paragraph_lines
        else:
            hidden_count += 1

    for verdict in table.verdicts:
        add(verdict_line(verdict), "green", "", is_needed=True)
        contenders = verdict.contenders
        for contender in contenders[1:] if contenders and contenders[0].points else ():
            # What is wrong is named, however long the list is.
            is_wrong = contender.agreement.prediction in REFUSED or contender.is_too_low
            add(contender_line(contender), "", "  ", is_needed=is_wrong)
        if verdict.reversals:
            add(reversal_line(verdict), "", "  ", is_needed=True)
    if hidden_count:
        paragraphs.append(
            (
                f"  ... and {hidden_count} more lines on other algorithms, which 'smimbench show --full' prints",
                "",
            )
        )
    return paragraphs


def _exit_code(table: ResultsTable) -> int:
    """Return the exit code for a results table: ``NOT_OK`` if a cell failed or is missing, a metric has no value at all, or an
    error is impossibly low.
    """
    statuses = {status for status, count in table.status_counts.items() if count}
    contenders = itertools.chain(*(verdict.contenders for verdict in table.verdicts))
    is_wrong = (
        statuses - {"skipped"} != {"ok"}
        or any(contender.is_too_low for contender in contenders)
        or _empty_metric_lines(table.rows)
    )
    return NOT_OK if is_wrong or table.missing or table.left_out else OK


def _empty_metric_lines(rows: Sequence[Row]) -> list[str]:
    """Say which error left metrics without a value in any row, one line each; a reason that a metric gives is none."""
    measured = {row.metric for row in rows if row.estimate.mean is not None}
    reasons = {row.metric: row.runs.blank for row in rows if row.runs.blank}
    return [
        f"{metric} has no value in any run: {reason}"
        for metric, (reason, *_) in reasons.items()
        if metric not in measured and reason.partition(": ")[0].isidentifier()
    ]


NOTE_LINES = 2
"""Number of lines of the note under a verdict, or more for remarks on the run; ``show --full`` prints the rest."""


def _remarks(
    console: Console, table: ResultsTable, request: Request, line_limit: float
) -> list[str]:
    """Collect the remarks on tables: reasons of failed cells, which are not wrapped for copying, then all else as one note."""
    from smimbench.report.row import place, summed_statuses
    from smimbench.report.tables import missing_values, other_version_lines
    from smimbench.report.wording import note

    rows = table.rows
    remarks = _failure_reasons(rows) + _empty_metric_lines(rows)
    if len(remarks) > REASONS:
        hidden_count = len(remarks) - REASONS
        remarks[REASONS:] = [f"... and {hidden_count} more reasons (--json has all)"]
    if retry_statuses := {"failed", "timeout"} & summed_statuses(rows).keys():
        options = (f"--retry {status}" for status in sorted(retry_statuses))
        command = " ".join([request.command_line("run"), *options])
        remarks.append(f"once that is fixed: {command}")
    max_lines = None
    if line_limit < math.inf:
        run_lines = note(request.notes, console.width).count("\n") + 1
        max_lines = max(NOTE_LINES, run_lines)
    notes = [*request.notes]
    request.notes.clear()
    notes += sorted(
        {f"{row.place.algorithm}: {text}" for row in rows for text in row.runs.warnings}
    )
    restarts_by_place = {place(row): row.runs.restarts for row in rows}
    if restart_count := sum(restarts_by_place.values()):
        notes.append(
            f"{restart_count} runs were restarted once with more cautious settings"
        )
    notes += other_version_lines(table.other_versions, table.missing > 0)
    notes += [*_unconverged_lines(rows), *missing_values(rows)]
    if note_text := note(notes, console.width, max_lines):
        remarks.append(note_text)
    return remarks


REASONS = 20
"""Largest number of reasons of failed cells that are printed; doubled, they fill two screens."""

_ENDED = {
    "failed": "failed",
    "diverged": "diverged",
    "not-converged": "did not converge",
    "timeout": "timed out",
}


def _failure_reasons(rows: Sequence[Row]) -> list[str]:
    """List the reasons why cells of an algorithm failed, one line each, with the number of cells."""
    from smimbench.report.row import grouped, place
    from smimbench.run.record import reason_kind

    cell_counts: Counter[tuple[str, str]] = Counter()
    first_reasons: dict[tuple[str, str, str], str] = {}
    by_place = {place(row): row for row in sorted(rows, key=lambda r: r.place.alpha)}
    for row in by_place.values():
        algorithm = row.place.algorithm
        for status, count in row.runs.status_counts.items():
            cell_counts[algorithm, status] += count
        for text in row.runs.reasons:
            status, _, reason = text.partition(": ")
            first_reasons.setdefault(
                (algorithm, status, reason_kind(text)),
                f"at alpha {row.place.alpha:.4g}: {reason}",
            )
    messages = []
    kinds = grouped(first_reasons, lambda kind: kind[:2])
    for algorithm, status in sorted(kinds):
        count = cell_counts[algorithm, status]
        words = _ENDED.get(status, f"{'was' if count == 1 else 'were'} {status}")
        begin = f"{count} cell{'' if count == 1 else 's'} {words}, first"
        for kind in kinds[algorithm, status]:
            messages.append(f"{algorithm}: {begin} {first_reasons[kind]}")
            begin = status
    return messages


def _unconverged_lines(rows: Sequence[Row]) -> list[str]:
    """List algorithms whose error was still changing at the last step, one line per problem, where it changed most."""
    from smimbench.report.row import grouped

    messages = []
    changes = [
        (row.place, row.runs.still_moving) for row in rows if row.runs.still_moving
    ]
    by_label = grouped(changes, lambda pair: (pair[0].problem, pair[0].algorithm))
    for (problem, algorithm), label_changes in by_label.items():
        place, moving = max(label_changes, key=lambda pair: abs(pair[1].change))
        message = (
            f"{problem}: {algorithm}: not converged: the error {'rose' if moving.change > 0 else 'fell'} by "
            f"{abs(moving.change):.0%} between the last two 15% blocks of steps at alpha {place.alpha:.4g}"
        )
        if moving.change > 0:
            message += f"; its minimum was {moving.lowest:.2g} times the final error"
        messages.append(message)
    return messages


def draw_figures(
    charts: Sequence[Chart],
    folder: Path,
    request: Request,
    *,
    file_types: Sequence[str] = ("png", "svg", "pdf"),
    output: Path | None = None,
    width: str | None = None,
    no_title: bool = False,
) -> list[Path]:
    """Draw figures into a folder and print their paths, or a remark if matplotlib is missing.

    ``output`` is the file of the first figure instead; the names of others follow its name.
    """
    from smimbench.cli.progress import figures_progress
    from smimbench.report.charts import save

    stem = ""
    if output is not None:
        folder = output.parent
        file_types = (output.suffix[1:],)
        stem = output.stem
    paths: list[Path] = []
    try:
        for chart in figures_progress(charts, silent=request.silent):
            name = f"{stem}-{chart.name}" if stem and paths else stem
            paths += save(chart, folder, file_types, width, not no_title, name)
    except ImportError:
        print_message("no figure: matplotlib is missing; pip install 'smimbench[plot]'")
    if not request.silent:
        suffixes_by_figure: dict[Path, list[str]] = {}
        for path in paths:
            suffixes_by_figure.setdefault(path.with_suffix(""), []).append(path.suffix)
        for figure_path, (suffix, *suffixes) in suffixes_by_figure.items():
            further_suffixes = f" (and {', '.join(suffixes)})" if suffixes else ""
            click.echo(f"figure:  {figure_path}{suffix}{further_suffixes}")
    return paths
