"""Commands that show results: ``show``, ``theory``, ``report`` and ``compare``."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from smimbench.cli.options import (
    AGAINST,
    FIGURE,
    FULL,
    JSON,
    NOT_OK,
    OK,
    PERCENT,
    RESULTS,
    SUITE_OR_FOLDER,
    Request,
    command,
    complete_suite,
    flag,
    make_console,
    option,
    output_option,
    print_data,
    print_json,
    print_tables,
    repeatable_option,
)
from smimbench.cli.results import (
    charts_of,
    compare_with,
    draw_figures,
    load_stored_table,
    present_table,
    remark_missing_theory,
    stored_results,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smimbench.report.comparison import RowChange
    from smimbench.report.notebook import Theory
    from smimbench.report.results import Results, ResultsTable
    from smimbench.report.row import Row
    from smimbench.report.theory_document import ProblemTheory
    from smimbench.run.record import RunJson
    from smimbench.suite.cells import Suite


def _sample_ratios(
    ctx: click.Context, param: click.Parameter, alpha_texts: tuple[str, ...]
) -> list[float]:
    """Parse the values of ``--alpha`` to sample ratios."""
    from smimbench.suite.document import parse_sample_ratios

    try:
        return [
            alpha
            for alpha_text in alpha_texts
            for alpha in parse_sample_ratios(alpha_text)
        ]
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None


@command(
    click.Argument(
        ["words"],
        metavar="[SUITE|DIR]",
        nargs=-1,
        type=click.UNPROCESSED,
        shell_complete=complete_suite,
    ),
    option(
        "Without a suite: names of model, channel and prior; their parameters as --rho 0.3 (default: two tokens).",
        "--model",
        metavar="NAME",
    ),
    option("See --model.", "--channel", metavar="NAME"),
    option("See --model.", "--prior", metavar="NAME"),
    option(
        "See --model [default: independent Gaussian tokens].",
        "--inputs",
        metavar="NAME",
    ),
    option(
        "Sample ratios instead of the suite's: 0.1 or 0.1,0.2,0.5 or 0.1:0.3:20 (from, to, number of points); repeatable.",
        "--alpha",
        "alphas",
        multiple=True,
        metavar="RATIOS",
        callback=_sample_ratios,
    ),
    flag(
        "Check every point by plain Monte Carlo over teacher and posterior; exit code 1 if any |z| > 4.",
        "--verify",
    ),
    option(
        "Relative deviation of the MSE that --verify should detect at each point; halving it takes four times the draws.",
        "--resolve",
        type=PERCENT,
        default="2%",
    ),
    flag("Draw the curves with their thresholds, under --results.", "--figure"),
    *FIGURE,
    flag("Do not compute thresholds.", "--no-thresholds"),
    flag(
        "Also compute generalization errors (always with --json, --verify, or if a metric needs them).",
        "--predictions",
    ),
    option(
        "Number of parallel processes.", "--workers", type=click.IntRange(1), default=1
    ),
    flag("Solve stored theory again; nothing is deleted.", "--retry"),
    RESULTS,
    flag("Print the points as CSV, with the metrics of the suite.", "--csv", "as_csv"),
    JSON,
    ignore_unknown_options=True,
)
def theory(
    request: Request,
    words: tuple[str, ...],
    model: str | None,
    channel: str | None,
    prior: str | None,
    inputs: str | None,
    alphas: list[float],
    figure: bool,
    no_thresholds: bool,
    predictions: bool,
    workers: int,
    retry: bool,
    verify: bool,
    resolve: float,
    **drawing: Any,
) -> int:
    """Compute the Bayes-optimal curve and thresholds with their errors; no simulation.

    For a suite, or for a single problem: --model attention-indexed --channel softmax --prior wishart --rho 0.3 --alpha
    0.05:0.2:10

    Answers are kept in the folder theory under --results, where run, show and report read them: stop at any time and run the same
    command again to continue.
    """
    from smimbench.cli.progress import TheoryProgress
    from smimbench.report.figures import theory_charts, theory_metrics
    from smimbench.report.notebook import Theory
    from smimbench.report.theory_document import (
        algorithm_questions,
        theory_of_suite,
        theory_questions,
        with_checks,
        with_predictions,
    )
    from smimbench.report.theory_lines import chart_questions
    from smimbench.run.store import settings_folder

    items = {"model": model, "channel": channel, "prior": prior, "inputs": inputs}
    request = _request_of_words(request, words, items, alphas)
    if resolve >= 1:
        raise click.BadParameter(
            f"the relative deviation must be below 100%, got {100 * resolve:g}%",
            param_hint="--resolve",
        )
    if request.as_json and request.as_csv:
        raise click.UsageError("choose one of --json and --csv")
    figure = figure or drawing["output"] is not None
    suite = request.suite()
    if not suite.chosen_plans and not suite.failed_problems:
        raise click.UsageError("--only excludes every problem of this suite")
    ratios = sorted(set(alphas)) or None
    thresholds = not no_thresholds
    progress = TheoryProgress(
        request,
        suite,
        request.results / "theory",
        ratios,
        predictions=predictions or request.as_json or verify,
    )
    solver = progress.solver
    if retry:
        solver.set_aside(plan.problem for plan in suite.chosen_plans)
    questions = list(theory_questions(suite, ratios, thresholds=thresholds))
    with progress:
        if workers > 1:
            from smimbench.run.theory_processes import solve_in_parallel

            solve_in_parallel(questions, solver, workers)
        answers = solver.answer(questions)
        theories = theory_of_suite(suite, answers, ratios, thresholds=thresholds)
        solver.answer(algorithm_questions(suite, ratios))
        theories = with_predictions(suite, theories, answers, ratios)
        if verify:
            from smimbench.run.theory_draws import draw_checks

            checks = draw_checks(suite, theories, resolve, progress.on_progress)
            theories = with_checks(theories, checks)
    all_solved = not any(theory.unsolved for theory in theories)
    if all_solved:
        _solve_theory_of_runs(request, suite)
    if figure and all_solved:
        metrics = theory_metrics(suite)
        with progress:
            solver.answer(chart_questions(suite, answers, metrics, (), ratios))
    elif figure:
        request.remark(
            "no figure, because a problem is not solved; --only problem=LABEL draws the others"
        )
    all_agree = all(theory.agrees for theory in theories)
    if request.as_json:
        print_json([theory.document() for theory in theories])
    elif request.as_csv:
        _print_theory_csv(Theory(suite, theories, solver.answer, ratios), request)
        if not all_agree:
            request.remark(
                "--verify: theory and Monte Carlo disagree; run without --csv to see where"
            )
    else:
        _print_theory(suite, theories, request)
    if figure and all_solved:
        folder = settings_folder(suite, request.store(suite)) / "figures"
        charts = theory_charts(suite, answers, ratios)
        draw_figures(charts, folder, request, **drawing)
    return OK if all_solved and all_agree else NOT_OK


def _print_theory(
    suite: Suite, theories: Sequence[ProblemTheory], request: Request
) -> None:
    """Print theory as tables."""
    from smimbench.report import theory_tables

    console = make_console()
    if not request.quiet:
        console.print(suite.title, style="bold")
    for table in theory_tables.theory_tables(theories):
        console.print(table, crop=False)
    print_tables(console, theory_tables.prediction_tables(theories))
    print_tables(console, theory_tables.verification_tables(theories))


def _print_theory_csv(theory: Theory, request: Request) -> None:
    """Print theory points as CSV, with a remark on problems that were not solved."""
    from smimbench.report.text_files import csv_text

    for problem in theory.problems:
        if problem.unsolved:
            request.remark(f"{problem.label}: not solved: {problem.unsolved}")
    column_names = dict.fromkeys(
        column_name for row in theory.rows for column_name in row
    )
    print_data(csv_text(theory.rows, list(column_names)))


def _request_of_words(
    request: Request,
    words: Sequence[str],
    item_names: dict[str, str | None],
    alphas: Sequence[float],
) -> Request:
    """Return the request for the named suite, or for the problem that the options describe."""
    from smimbench.suite.document import suite_of_items

    if any(item_names.values()):
        try:
            name, suite_text, overrides = suite_of_items(
                item_names, dict(_pairs(words)), alphas
            )
        except ValueError as error:
            raise click.UsageError(str(error)) from None
        all_overrides = (*overrides, *request.overrides)
        return replace(
            request, name=name, suite_text=suite_text, overrides=all_overrides
        )
    for word in words:
        if word.startswith("-"):
            option_name = word.partition("=")[0]
            raise click.NoSuchOption(option_name, possibilities=_options_of_command())
    if len(words) != 1:
        raise click.UsageError("give one suite, or --model, --channel and --prior")
    return replace(request, name=words[0])


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the name and value of each option in ``words``, written as ``--name value`` or ``--name=value``."""
    remaining_words = iter(words)
    for word in remaining_words:
        name, equals, value = word.partition("=")
        if not name.startswith("--"):
            raise click.UsageError(
                f"unexpected {word!r}: give a suite, or --model, --channel and --prior"
            )
        if not equals:
            value = next(remaining_words, "")
        if not value or value.startswith("--"):
            raise click.NoSuchOption(
                name, f"{name} needs a value.", _options_of_command()
            )
        yield name[2:].replace("-", "_"), value


def _options_of_command() -> list[str]:
    """Return all option names of the current command."""
    options: list[str] = []
    for parameter in click.get_current_context().command.params:
        options += parameter.opts
    return options


def _solve_theory_of_runs(request: Request, suite: Suite) -> None:
    """Solve the theory that tables and figures of stored runs need, at their actual sample ratios and starts."""
    from smimbench.cli.progress import TheoryProgress
    from smimbench.report.results import Results
    from smimbench.report.theory_document import figure_questions, table_questions
    from smimbench.run.store import theory_folder

    store = request.store(suite)
    has_records = any(store.folder.glob("[!.]*.json"))
    if suite.theory_only or not has_records:
        return
    with TheoryProgress(request, suite, theory_folder(store)) as solver:
        stored_results = Results(suite, store, (), solver.answers)
        solver.answer(table_questions(stored_results))
        if stored_results.pairs and stored_results.rows:
            solver.answer(figure_questions(stored_results))


@command(
    SUITE_OR_FOLDER,
    RESULTS,
    flag("Print all rows as CSV.", "--csv", "as_csv"),
    flag("Print all rows as a Markdown table.", "--markdown"),
    flag("Print the tables that compare algorithms in LaTeX (booktabs).", "--latex"),
    repeatable_option(
        "Show this backend only; repeatable.", "NAME", "--backend", "backends"
    ),
    option(
        "Also pack all records and their theory into one file that show and compare read (.gz: compressed).",
        "--pack",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
    ),
    flag(
        "Also draw all figures (PNG, SVG, PDF) and write their data (CSV).", "--figures"
    ),
    *FIGURE,
    AGAINST,
    FULL,
    JSON,
)
def show(
    request: Request,
    markdown: bool,
    latex: bool,
    backends: tuple[str, ...],
    pack: Path | None,
    figures: bool,
    against: str | None,
    full: bool,
    **drawing: Any,
) -> int:
    """Show the algorithms that were compared, then the verdict; --full: all tables of errors and runtimes.

    Give the suite with the same --set, --add, --only and --plugins as to 'run', or a folder with its results.
    """
    from smimbench.report import text_files
    from smimbench.report.tables import contender_tables
    from smimbench.report.text_files import latex_table

    if request.as_json + request.as_csv + markdown + latex > 1:
        raise click.UsageError("choose one of --json, --csv, --markdown and --latex")
    figures = figures or drawing["output"] is not None
    if figures and (request.as_csv or markdown or latex):
        raise click.UsageError(
            "--csv, --markdown and --latex draw no figure; leave out --figures and --output"
        )
    table, run_document, folder, results = _read_table(request, backends)
    if (pack or figures) and results is None:
        raise click.UsageError(
            f"{'--pack' if pack else '--figures'} needs the stored records and all plugins; only the results table is available"
        )
    if pack and results:
        from smimbench.report.packed import write_packed

        write_packed(pack, results, run_document)
    if request.as_csv or markdown:
        format_rows = text_files.as_csv if request.as_csv else text_files.as_markdown
        extrapolated_rows = [limit.document() for limit in table.extrapolated]
        print_data(
            format_rows([row.document() for row in table.rows], extrapolated_rows)
        )
        return OK
    table = compare_with(table, against)
    if latex:
        tables = contender_tables(table.verdicts, latex_table)
        if not tables:
            raise click.UsageError(
                "--latex: no table, because no problem was run with at least two algorithms"
            )
        print_data("\n\n".join(tables) + "\n")
        return OK
    if figures and results:
        draw_figures(charts_of(results), folder / "figures", request, **drawing)
    return present_table(table, request, folder, full=full)


def _read_table(
    request: Request, backends: Sequence[str]
) -> tuple[ResultsTable, RunJson, Path, Results | None]:
    """Read the requested results table, its ``run.json``, its path, and the results it is made of (None if only the table is
    stored).
    """
    from smimbench.report.results import is_packed
    from smimbench.run.store import Store
    from smimbench.suite import SuiteError

    path = Path(request.name)
    if path.is_file() and is_packed(path):
        if request.overrides or request.only or backends:
            raise click.UsageError(
                f"{path} is a finished table: --set, --add, --only and --backend cannot change it"
            )
        from smimbench.report.packed import read_packed

        table, run_document, remarks = read_packed(path)
        request.notes.extend(f"{path}: {remark}" for remark in remarks)
        return table, run_document, path, None
    try:
        results = stored_results(request, backends)
        table, folder = results.table, results.folder
        remark_missing_theory(results, request)
    except SuiteError as error:  # a plugin of the run may be missing
        stored_table = load_stored_table(request, str(error))
        if stored_table is None:
            raise
        (table, folder), results = stored_table, None
    return table, Store(folder).read_run_json(), folder, results


@command(SUITE_OR_FOLDER, output_option("The HTML file to write."), RESULTS)
def report(request: Request, output: Path) -> int:
    """Write one self-contained HTML page with tables, figures, machine and suite."""
    from smimbench.cli.progress import figures_progress
    from smimbench.files import check_writable, write_atomically
    from smimbench.report.page import NEEDS, render_page
    from smimbench.run.store import Store

    for package in NEEDS:
        if importlib.util.find_spec(package) is None:
            raise click.UsageError(
                f"a report needs {package}; pip install 'smimbench[report]'"
            )
    check_writable(output)  # before the figures are drawn
    results = stored_results(request)
    charts = figures_progress(charts_of(results), silent=request.silent)
    page_html = render_page(results, charts, Store(results.folder).read_run_json())
    remark_missing_theory(results, request)
    write_atomically(output, page_html.encode())
    if not request.quiet:
        click.echo(f"wrote {output} ({output.stat().st_size / 1024:.0f} kB)")
    return OK


RunKey = tuple[str, str]
"""Name of a suite, and the options that it was run with."""


def _runs_in(path: Path) -> dict[RunKey, Path]:
    """Find all runs in a results folder, or all files of packed results."""
    from smimbench.report.packed import packed_under, read_pack
    from smimbench.run.store import options_text, settings_under, why_no_runs

    runs = {(run.suite, run.options): run.folder for run in settings_under(path)}
    if runs:
        return runs
    for packed_file in packed_under(path):
        run_document = read_pack(packed_file)["run"]
        runs[run_document["suite"], options_text(run_document)] = packed_file
    if not runs:
        raise click.UsageError(
            f"{path}: {why_no_runs(path)}, and there are no packed results there"
        )
    return runs


def _rows_at(path: Path, request: Request) -> tuple[Sequence[Row], list[str]]:
    """Read the rows of a packed file or folder, and a remark on each missing item whose rows are omitted.

    A folder has the table made by its last run, a pack has records alone.
    """
    from smimbench.report.packed import read_packed
    from smimbench.suite import SuiteError
    from smimbench.suite.reader import LEFT_OUT

    request = replace(request, name=str(path))
    results = None
    try:
        if path.is_file():
            table, _, remarks = read_packed(path)
            rows = table.rows
        else:
            results = stored_results(request, any_code=True)
            remarks = [*results.suite.remarks]
            rows = results.rows
    except (SuiteError, click.UsageError) as error:
        stored_table = (
            None if path.is_file() else load_stored_table(request, str(error))
        )
        if stored_table is None:
            raise
        return stored_table[0].rows, []
    omission_remarks = [remark for remark in remarks if remark.startswith(LEFT_OUT)]
    if omission_remarks and results:
        stored_table = load_stored_table(request, "; ".join(omission_remarks))
        if stored_table:
            shown = set(omission_remarks)
            request.notes[:] = [note for note in request.notes if note not in shown]
            return stored_table[0].rows, []
    return rows, [f"{path}: {remark}" for remark in omission_remarks]


def _changes_of_runs(
    pairs: dict[RunKey, tuple[Path, Path]], request: Request
) -> tuple[list[RowChange], list[str]]:
    """Compare the rows of pairs of runs (folders of baseline and candidate), and return the changes and remarks on rows that
    cannot be compared.
    """
    from smimbench.report.comparison import compare_rows

    changes: list[RowChange] = []
    omission_remarks: list[str] = []
    for (suite, _), paths in pairs.items():
        rows_of_sides = []
        for path in paths:
            rows, side_remarks = _rows_at(path, request)
            omission_remarks += side_remarks
            if len(pairs) > 1:
                rows = [
                    row.labeled(f"{suite}: {row.place.problem}", row.place.algorithm)
                    for row in rows
                ]
            rows_of_sides.append(rows)
        changes += compare_rows(*rows_of_sides)
    return changes, omission_remarks


@command(
    click.Argument(
        ["baseline"], metavar="BEFORE", type=click.Path(exists=True, path_type=Path)
    ),
    click.Argument(
        ["candidate"], metavar="AFTER", type=click.Path(exists=True, path_type=Path)
    ),
    option(
        "Exit with code 1 if an error is significantly worse, or a time longer, by more than this, or a row has no counterpart.",
        "--fail-over",
        type=click.FloatRange(0),
        metavar="PERCENT",
    ),
    JSON,
)
def compare(
    request: Request, baseline: Path, candidate: Path, fail_over: float | None
) -> int:
    """Compare two results folders, worst change first, with a verdict.

    Either may be a file that show --pack wrote, or a folder of such files: nothing is run again. Rows are matched by problem,
    algorithm and parameters, whatever code made them.
    """
    from smimbench.report import tables
    from smimbench.report.comparison import ONE_SIDED, exceeds_limit, overall_changes

    if fail_over is not None and not math.isfinite(fail_over):
        raise click.UsageError(f"--fail-over: must be a finite number, got {fail_over}")
    runs_before, runs_after = map(_runs_in, (baseline, candidate))
    if len(runs_before) == len(runs_after) == 1:
        # A single run on each side is compared whatever it is of.
        runs_after = dict(zip(runs_before, runs_after.values()))
    pairs = {
        key: (folder, runs_after[key])
        for key, folder in runs_before.items()
        if key in runs_after
    }
    if not pairs:
        raise click.UsageError(
            f"{baseline} and {candidate} contain no suite that was run with the same settings in both"
        )
    changes, omission_remarks = _changes_of_runs(pairs, request)
    unmatched_changes = [
        change for change in changes if change.judgment.verdict in ONE_SIDED
    ]
    if len(unmatched_changes) == len(changes):
        raise click.UsageError(
            f"{baseline} and {candidate} have no results for the same problem and algorithm to compare"
        )
    unpaired_runs = [
        str(folder)
        for runs in (runs_before, runs_after)
        for key, folder in runs.items()
        if key not in pairs
    ]
    for message in (
        *omission_remarks,
        *(f"{path} exists in only one of the two folders" for path in unpaired_runs),
    ):
        request.remark(f"{message}; not compared")
    mean_changes = overall_changes(changes)
    limit = math.inf if fail_over is None else fail_over
    worse_rows = [
        change
        for change in changes
        if exceeds_limit(change.judgment, limit, change.time_percent)
    ]
    worse_means = [
        change for change in mean_changes if exceeds_limit(change.judgment, limit)
    ]
    failures = [*worse_rows, *worse_means, *unpaired_runs, *omission_remarks]
    failure_count = 0 if fail_over is None else len(failures)
    if request.as_json:
        print_json(
            {
                "rows": [change.document() for change in changes],
                "overall": [change.document() for change in mean_changes],
                "missing": len(unmatched_changes),
                "alone": unpaired_runs,
                "left_out": omission_remarks,
                "failing": failure_count,
            }
        )
        return NOT_OK if failure_count else OK
    console = make_console()
    print_tables(console, tables.comparison_tables(changes))
    for message in (
        *tables.changed_code_lines(changes),
        *tables.overall_lines(mean_changes),
        *tables.unmatched_row_lines(unmatched_changes, baseline, candidate),
    ):
        console.print(message, soft_wrap=True)
    if fail_over is not None:
        worse_count = len(worse_rows) - len(unmatched_changes)
        criterion = f"worse by more than {fail_over:g}%"
        console.print(
            f"{worse_count} of {len(changes) - len(unmatched_changes)} rows are {criterion}",
            style="red" if worse_count else "green",
        )
        if worse_means:
            console.print(
                f"{len(worse_means)} of {len(mean_changes)} means over rows are {criterion}",
                style="red",
            )
    return NOT_OK if failure_count else OK
