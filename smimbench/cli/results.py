"""Results of a suite for commands: collected with their theory, stored as a table, presented with verdict and figures."""

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
from smimbench.files import error_line, read_text, unless

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console

    from smimbench.cli.options import Request
    from smimbench.report.charts import Chart
    from smimbench.report.results import Results, ResultsTable
    from smimbench.report.row import Row, StillMoving


def stored_results(
    request: Request, backends: Sequence[str] = (), *, any_code: bool = False
) -> Results:
    """Stored results of a suite on these backends (none: all backends); an error if there are none.

    ``any_code``: those of other code too, where the present code has run nothing.
    """
    from smimbench.report.results import Results
    from smimbench.run.campaign import changed_code
    from smimbench.run.tuning import range_end_remarks

    suite = request.suite()
    store = request.store(suite)
    results = Results(
        suite, store, backends, request.answers(suite, store), any_code=any_code
    )
    request.remark(store.complaints)
    if not any_code:
        request.remark(changed_code(results.others))
    request.remark(range_end_remarks(suite, store))
    if not results.pairs and not results.scored:
        raise click.UsageError(_nothing_of(request, results))
    return results


def remark_missing_theory(results: Results, request: Request) -> None:
    """Print which command solves theory that was requested but is not stored."""
    if results.answers.is_missing:
        request.remark(
            [f"not all theory of this is stored; '{request.typed('theory')}' solves it"]
        )


def charts_of(results: Results) -> list[Chart]:
    """All figures, as data, the errors first."""
    from smimbench.report.figures import metric_chart, phase_chart
    from smimbench.report.finite_size import size_charts
    from smimbench.report.learning_curves import (
        learning_charts,
        seconds_chart,
        spectrum_chart,
    )
    from smimbench.report.profiles import profile_chart

    suite, answers = results.suite, results.answers
    found = [
        *(
            metric_chart(suite, results.rows, answers, metric)
            for metric in suite.run.metrics
        ),
        *learning_charts(results),
        seconds_chart(results),
        profile_chart(results),
        phase_chart(suite, answers),
        spectrum_chart(results),
        *size_charts(suite, results.table.extrapolated),
    ]
    return [chart for chart in found if chart is not None]


def save_charts(
    charts: Iterable[Chart],
    folder: Path,
    kinds: Sequence[str] = ("png", "svg", "pdf"),
    width: str | None = None,
) -> list[Path]:
    """Draw figures into a folder; ImportError without matplotlib."""
    from smimbench.report.charts import save

    return [path for chart in charts for path in save(chart, folder, kinds, width)]


def _nothing_of(request: Request, results: Results) -> str:
    """Message on missing results: under which settings there are results, and how to get the missing ones."""
    from smimbench.report.tables import other_version_lines
    from smimbench.run.store import options_of, settings_of_suite

    suite, store = results.suite, results.store
    asked = options_of(suite)
    named = " ".join(filter(None, (request.name, asked)))
    parts = [
        f"no results of {suite.name} {f'with {asked} ' if asked else ''}in {store.folder}"
    ]
    there = settings_of_suite(store.folder)
    if others := other_version_lines(results.others):
        parts += others
    elif same := [one.folder for one in there if one.words == asked]:
        parts.append(
            f"there are some of an earlier text of the suite: 'smimbench show {same[0]}'"
        )
    if elsewhere := [
        one.words or "the suite's own settings" for one in there if one.words != asked
    ]:
        parts.append(f"there are some with {', or with '.join(elsewhere)}")
    return f"{'; '.join(parts)}; run 'smimbench run {named}' first"


def kept_table(request: Request, reason: str) -> tuple[ResultsTable, Path] | None:
    """Stored table and its folder, with a remark, of a finished run whose suite cannot be read because an item is missing."""
    from smimbench.report.packed import read_packed
    from smimbench.report.stored_table import TABLE
    from smimbench.run.store import settings_under
    from smimbench.suite import SuiteError

    path = Path(request.name)
    found = settings_under(path if path.is_dir() else request.results / path.stem)
    if len(found) != 1 or request.overrides or request.only:
        return None
    if (
        path.suffix == ".toml"
        and unless(ValueError, read_text, path) != found[0].shared["text"]
    ):
        return None
    try:
        table, *_ = read_packed(found[0].folder / TABLE)
    except SuiteError:  # there is none that can be trusted
        return None
    written = time.strftime(
        "%Y-%m-%d %H:%M", time.localtime(found[0].shared.get("written", 0))
    )
    request.remark([f"{reason}; shown is the table as it was made on {written}"])
    return table, found[0].folder


def compare_with(table: ResultsTable, name: str | None) -> ResultsTable:
    """The table with its algorithms compared with this one; an error if there is no such algorithm."""
    if name is None:
        return table
    names = sorted(
        {one.algorithm for verdict in table.verdicts for one in verdict.contenders}
    )
    if name not in names:
        raise click.BadParameter(
            f"no algorithm {name!r} here; choose from {', '.join(names)}",
            param_hint="--against",
        )
    return replace(table, against=name)


def present(results: Results, request: Request, *, against: str | None) -> int:
    """Keep the table of a run, print its verdict (or JSON), and return the exit code."""
    from smimbench.report.stored_table import TABLE, write_table
    from smimbench.run.store import Store

    table = results.table
    write_table(results.folder / TABLE, table, Store(results.folder).read_shared())
    try:
        table = compare_with(table, against)
    except click.BadParameter as error:  # said, but no reason to hide what was run
        request.remark([error.format_message()])
    if request.as_json:
        print_json(table.document())
    else:
        _print_outcome(table, request, results.folder)
    return _exit_code(table)


LINES = 20
"""Lines with which a run ends, apart from those of the figure: a screen has 24."""


def _print_outcome(table: ResultsTable, request: Request, folder: Path) -> None:
    """Print what a run says: verdicts, its other algorithms, remarks and where the rest is, on one screen."""
    from smimbench.report.tables import status_line

    console = make_console()
    _print_title(console, table)
    used = 3 + _print_verdicts(console, table, LINES - 8)
    if not request.quiet:
        remarks = _remarks(console, table, request)
        for shown, line in enumerate(remarks):
            used += max(line.count("\n") + 1, -(-len(line) // console.width))
            if shown and used > LINES:
                console.print(
                    f"... and {len(remarks) - shown} more remarks, which 'smimbench show' prints",
                    style="yellow",
                )
                break
            console.print(line, style="yellow", markup=False, soft_wrap=True)
    console.print(status_line(table.status_counts, table.missing))
    console.print(
        f"tables:  {request.typed('show')} (--figures: all figures)",
        soft_wrap=True,
        markup=False,
    )
    console.print(f"results: {folder}", soft_wrap=True)


def _print_verdicts(
    console: Console, table: ResultsTable, most: float = math.inf
) -> int:
    """Print the verdict on every problem and its other algorithms, in ``most`` lines; returns how many there were."""
    from smimbench.report.verdict import REFUSED, contender_line, verdict_line

    used = unnamed = 0
    for verdict in table.verdicts:
        line = textwrap.fill(
            verdict_line(verdict), console.width, subsequent_indent="    "
        )
        console.print(line, style="green", markup=False)
        used += line.count("\n") + 1
        is_ranked = bool(verdict.contenders) and verdict.contenders[0].points > 0
        for one in verdict.contenders[1:] if is_ranked else ():
            line = textwrap.fill(
                contender_line(one),
                console.width,
                initial_indent="  ",
                subsequent_indent="    ",
            )
            # What is wrong is named, however long the list is.
            if (
                used + line.count("\n") + 1 > most
                and one.agreement.prediction not in REFUSED
                and not one.below_optimum
            ):
                unnamed += 1
                continue
            console.print(line, markup=False)
            used += line.count("\n") + 1
    if unnamed:
        console.print(
            f"  ... and {unnamed} more lines on other algorithms, which 'smimbench show' prints"
        )
    return used


def _print_title(console: Console, table: ResultsTable) -> None:
    console.print(table.title, style="bold")
    if table.missing:
        finished = sum(table.status_counts.values())
        total = table.missing + finished
        console.print(
            f"{finished} of {total} cells have been run: what follows may change",
            style="yellow",
        )


def _exit_code(table: ResultsTable) -> int:
    counts = table.status_counts
    bad = sum(count for name, count in counts.items() if name not in ("ok", "skipped"))
    bad += any(
        one.below_optimum for verdict in table.verdicts for one in verdict.contenders
    )
    return (
        NOT_OK if bad or table.missing or table.left_out or not counts.get("ok") else OK
    )


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
        shown = (
            *tables.contender_tables(table.verdicts),
            *(tables.summary_tables(table.summary) if len(table.verdicts) > 1 else ()),
            *tables.error_tables(table.rows, full=full),
            *tables.extrapolated_tables(table.extrapolated),
            *tables.learning_tables(table.rows),
            *tables.diagnostic_tables(table.rows),
            *tables.runtime_tables(table.rows, machine.fingerprint(), full=full),
        )
        print_tables(console, shown)
        if not request.quiet:
            for line in _remarks(console, table, request):
                console.print(line, style="yellow", soft_wrap=True, markup=False)
        console.print(tables.status_line(table.status_counts, table.missing))
        console.print(f"results: {folder}", soft_wrap=True)
    return _exit_code(table)


def _remarks(console: Console, table: ResultsTable, request: Request) -> list[str]:
    """What a reader of the tables should know, first why cells did not end well: that is copied, and not broken into lines."""
    from smimbench.report.labels import place
    from smimbench.report.tables import missing_values, other_version_lines

    rows = table.rows
    reasons = _reasons(rows)
    more = (
        [f"... and {len(reasons) - 20} more reasons (--json has all)"]
        if len(reasons) > 20
        else []
    )
    notes = sorted(
        {
            f"{row.place.algorithm}: note: {warning}"
            for row in rows
            for warning in row.runs.warnings
        }
    )
    last = []
    if again := sorted(
        {
            name
            for row in rows
            for name in row.runs.status_counts
            if name in ("failed", "timeout")
        }
    ):
        last.append(
            " ".join(
                [
                    "once that is fixed:",
                    request.typed("run"),
                    *(f"--retry {name}" for name in again),
                ]
            )
        )
    if restarts := sum({place(row): row.runs.restarts for row in rows}.values()):
        last.append(f"{restarts} runs were restarted once, more cautiously")
    others = other_version_lines(table.other_versions, table.missing > 0)
    about = [
        textwrap.fill(line, console.width, break_on_hyphens=False)
        for line in (*missing_values(rows), *_moving(rows))
    ]
    return [*reasons[:20], *more, *notes, *last, *others, *about]


_ENDED = {
    "failed": "failed",
    "diverged": "diverged",
    "not-converged": "did not converge",
    "timeout": "timed out",
}


def _reasons(rows: Sequence[Row]) -> list[str]:
    """One line for every reason why cells of an algorithm did not end well, with the number of cells."""
    from smimbench.report.labels import grouped, kind_of, place

    cells: Counter[tuple[str, str]] = Counter()
    first: dict[tuple[str, str, str], str] = {}
    for row in {
        place(row): row for row in sorted(rows, key=lambda r: r.place.alpha)
    }.values():
        for status, count in row.runs.status_counts.items():
            cells[row.place.algorithm, status] += count
        for line in row.runs.reasons:
            status, _, reason = line.partition(": ")
            first.setdefault(
                (row.place.algorithm, status, kind_of(line)),
                f"at alpha {row.place.alpha:.4g}: {reason}",
            )
    lines = []
    for (algorithm, status), same in grouped(
        sorted(first, key=lambda key: key[:2]), lambda key: key[:2]
    ).items():
        count = cells[algorithm, status]
        ended = _ENDED.get(status, f"{'was' if count == 1 else 'were'} {status}")
        lines.append(
            f"{algorithm}: {count} cell{'' if count == 1 else 's'} {ended}, first {first[same[0]]}"
        )
        lines += [f"{algorithm}: {status} {first[key]}" for key in same[1:]]
    return lines


def _moving(rows: Sequence[Row]) -> list[str]:
    """One line per algorithm and problem whose error was still changing at the last step, where it changed most."""
    most: dict[tuple[str, str], tuple[float, StillMoving]] = {}
    changes = [
        (row.place, row.runs.still_moving) for row in rows if row.runs.still_moving
    ]
    for at, moving in sorted(changes, key=lambda pair: abs(pair[1].change)):
        most[at.problem, at.algorithm] = at.alpha, moving
    lines = []
    for (problem, algorithm), (alpha, moving) in most.items():
        verb = "rose" if moving.change > 0 else "fell"
        line = (
            f"{problem}: {algorithm}: not converged: the error {verb} by {abs(moving.change):.0%} between the last two 15% "
            f"blocks of steps at alpha {alpha:.4g}"
        )
        if moving.change > 0:
            line += f"; its minimum was {moving.lowest:.2g} times the last error"
        lines.append(line)
    return lines


def draw_figures(
    results: Results,
    request: Request,
    *,
    only_first: bool = False,
    width: str | None = None,
) -> None:
    """Draw all figures of results and print their paths, or only the first: as PNG, the quickest of the kinds."""
    from smimbench.cli.progress import figures_progress
    from smimbench.run.answers import THEORY_ERRORS

    folder = results.folder / "figures"
    try:
        charts = charts_of(results)
        if only_first:
            paths = save_charts(charts[:1], folder, ("png",))
            for path in paths:  # of an earlier table
                path.with_suffix(".svg").unlink(missing_ok=True)
                path.with_suffix(".pdf").unlink(missing_ok=True)
        else:
            paths = save_charts(
                figures_progress(charts, silent=request.silent), folder, width=width
            )
    except ImportError:
        complain("no figure: matplotlib is missing; pip install 'smimbench[plot]'")
        return
    except (
        THEORY_ERRORS
    ) as error:  # a finer grid may ask a plugin more than the tables did
        complain(f"no figure: {error_line(error)}")
        return
    name_figures(() if request.silent else paths)


def name_figures(paths: Iterable[Path]) -> None:
    """Print the paths of the figures."""
    found: dict[Path, list[str]] = {}
    for path in paths:
        found.setdefault(path.with_suffix(""), []).append(path.suffix)
    for name, (first, *others) in found.items():
        click.echo(
            f"figure:  {name}{first}"
            + (f" (and {', '.join(others)})" if others else "")
        )
