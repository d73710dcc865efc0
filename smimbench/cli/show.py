"""Commands that show results: ``show``, ``theory``, ``report`` and ``compare``."""

from __future__ import annotations

import contextlib
import importlib.util
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from smimbench.cli.options import (
    AGAINST,
    FULL,
    JSON,
    NOT_OK,
    OK,
    PERCENT,
    RESULTS,
    SUITE_OR_FOLDER,
    WIDTH,
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
    several,
)
from smimbench.cli.results import (
    charts_of,
    compare_with,
    draw_figures,
    kept_table,
    name_figures,
    present_table,
    remark_missing_theory,
    save_charts,
    stored_results,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smimbench.files import JsonObject
    from smimbench.report.results import Results, ResultsTable
    from smimbench.report.row import Row
    from smimbench.run.answers import Answers
    from smimbench.suite.cells import Suite


def _sample_ratios(
    ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]
) -> list[float]:
    from smimbench.suite.asked import sample_ratios

    try:
        return [alpha for text in texts for alpha in sample_ratios(text)]
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
        "Without a suite: model, channel and prior, with their parameters as --rho 0.3; two tokens unless --tokens.",
        "--model",
        metavar="NAME",
    ),
    option("See --model.", "--channel", metavar="NAME"),
    option("See --model.", "--prior", metavar="NAME"),
    option(
        "See --model; default: independent Gaussian tokens.", "--inputs", metavar="NAME"
    ),
    option(
        "Sample ratios instead of the suite's: 0.1 or 0.1,0.2,0.5 or 0.1:0.3:20 (from, to, how many); repeatable.",
        "--alpha",
        "alphas",
        multiple=True,
        metavar="RATIOS",
        callback=_sample_ratios,
    ),
    flag(
        "Check every point against plain draws of teacher and posterior; exit code 1 where |z| > 4.",
        "--verify",
    ),
    option(
        "Relative deviation of the error that --verify should see at each point; half of it takes four times the draws.",
        "--resolve",
        type=PERCENT,
        default="2%",
    ),
    flag(
        "Draw the curves with their thresholds, under figures in --results.", "--figure"
    ),
    WIDTH,
    flag("Only the curve.", "--no-thresholds"),
    flag(
        "Errors of prediction on fresh samples, too; with --json, --verify and a metric that needs them they are always there.",
        "--predictions",
    ),
    option("Processes side by side.", "--workers", type=click.IntRange(1), default=1),
    flag("Solve again what is kept; nothing is deleted.", "--retry"),
    RESULTS,
    flag("The points as CSV, with the metrics of the suite.", "--csv", "as_csv"),
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
    width: str | None,
    no_thresholds: bool,
    predictions: bool,
    workers: int,
    retry: bool,
    verify: bool,
    resolve: float,
    as_csv: bool,
) -> int:
    """Compute the Bayes-optimal curve and thresholds with their errors; no simulation.

    Of a suite, or of one problem without a suite: --model attention-indexed --channel softmax --prior wishart --rho 0.3 --alpha
    0.05:0.2:10

    Answers are kept in the folder theory under --results, where run, show and report read them: stop at any time and run the same
    command again to go on.
    """
    from smimbench.cli.progress import TheoryProgress
    from smimbench.problem.problem import ProblemError
    from smimbench.report.figures import chart_questions, drawn_ratios
    from smimbench.report.theory_document import (
        add_own_theory,
        algorithm_questions,
        theory_document,
        theory_questions,
    )
    from smimbench.run.parallel_theory import solve_in_parallel
    from smimbench.run.plain_draws import add_verification, holds

    request = _asked(
        request,
        words,
        {"model": model, "channel": channel, "prior": prior, "inputs": inputs},
        alphas,
    )
    if resolve >= 1:
        raise click.BadParameter(
            f"must be below 100%, got {100 * resolve:g}%", param_hint="--resolve"
        )
    if request.as_json and as_csv:
        raise click.UsageError("choose one of --json and --csv")
    suite = request.suite()
    if not suite.chosen_plans and not suite.unmade:
        raise click.UsageError("--only excludes every problem of this suite")
    ratios, silent = sorted(set(alphas)) or None, request.silent or as_csv
    progress = TheoryProgress(suite, request.results / "theory", ratios, silent=silent)
    with_errors = (
        predictions or request.as_json or verify or suite.needs_prediction_errors
    )
    solver = request.solver(
        progress.folder, progress.on_progress, predictions=with_errors
    )
    if retry:
        solver.set_aside(plan.problem for plan in suite.chosen_plans)
    questions = list(theory_questions(suite, ratios, thresholds=not no_thresholds))
    with progress:
        if workers > 1:
            with contextlib.suppress(
                ProblemError
            ):  # reported below, with the problem that it belongs to
                solve_in_parallel(questions, solver, workers)
        answers = solver.answer(questions)
        document = theory_document(suite, answers, ratios, thresholds=not no_thresholds)
        solver.answer(algorithm_questions(suite, ratios))
        add_own_theory(suite, document, answers, ratios)
        if verify:
            add_verification(suite, document, resolve, progress.on_progress)
    solved = not any("unsolved" in one for one in document)
    if solved:
        _solve_of_runs(request, suite, silent=silent)
    paths: list[Path] = []
    if figure and solved:
        with progress:
            solver.answer(
                chart_questions(
                    suite, answers, drawn_ratios(suite, (), ratios), ("mse", "overlap")
                )
            )
        paths = _draw_theory(request, suite, answers, ratios, width)
    if figure and not solved:
        request.remark(
            [
                "no figure, because a problem is not solved; --only problem=LABEL draws the others"
            ]
        )
    code = OK if solved and (not verify or holds(document)) else NOT_OK
    if request.as_json:
        print_json(document)
        return code
    from smimbench.report.theory_tables import (
        own_theory_tables,
        theory_tables,
        verification_tables,
    )

    if as_csv:
        from smimbench.report.solved_theory import Theory
        from smimbench.report.text_files import csv_text

        request.remark(
            f"{one['problem']['label']}: not solved: {one['unsolved']}"
            for one in document
            if "unsolved" in one
        )
        rows = Theory(suite, document, solver.answer, ratios).rows
        print_data(
            csv_text(rows, list(dict.fromkeys(name for row in rows for name in row)))
        )
        if verify and not holds(document):
            request.remark(
                [
                    "--verify: theory and plain draws do not agree; without --csv, tables show where"
                ]
            )
        return code

    console = make_console()
    if not request.quiet:
        console.print(suite.title, style="bold")
    tables = verification_tables(document) if verify else []
    for table in theory_tables(document):
        console.print(table, crop=False)
    print_tables(console, (*own_theory_tables(document), *tables))
    name_figures(paths)
    return code


def _asked(
    request: Request,
    words: Sequence[str],
    items: dict[str, str | None],
    alphas: Sequence[float],
) -> Request:
    """The request for the suite that is named, or for the problem that options describe."""
    from smimbench.suite.asked import suite_of_items

    if any(items.values()):
        try:
            name, text, given = suite_of_items(items, dict(_pairs(words)), alphas)
        except ValueError as error:
            raise click.UsageError(str(error)) from None
        return replace(
            request, name=name, text=text, overrides=(*given, *request.overrides)
        )
    if unknown := [word for word in words if word.startswith("-")]:
        raise click.NoSuchOption(unknown[0].partition("=")[0], possibilities=_options())
    if len(words) != 1:
        raise click.UsageError("give one suite, or --model, --channel and --prior")
    return replace(request, name=words[0])


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Names and values of ``--name value`` and ``--name=value``."""
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if not name.startswith("--"):
            raise click.UsageError(
                f"unexpected {word!r}: give a suite, or --model, --channel and --prior"
            )
        if not equals:
            value = next(rest, "")
        if not value or value.startswith("--"):
            raise click.NoSuchOption(name, f"{name} needs a value.", _options())
        yield name[2:].replace("-", "_"), value


def _options() -> list[str]:
    """Options of the present command."""
    return [
        name
        for parameter in click.get_current_context().command.params
        for name in parameter.opts
    ]


def _solve_of_runs(request: Request, suite: Suite, *, silent: bool) -> None:
    """Solve the theory that tables and figures of stored runs need, at their actual sample ratios and starts."""
    from smimbench.cli.progress import TheoryProgress
    from smimbench.report.questions import figure_questions, table_questions
    from smimbench.report.results import Results
    from smimbench.run.store import theory_folder

    store = request.store(suite)
    if suite.theory_only or not any(
        store.folder.glob("[!.]*.json")
    ):  # nothing of this suite has been run
        return
    progress = TheoryProgress(suite, theory_folder(store), silent=silent)
    solver = request.solver(
        progress.folder, progress.on_progress, predictions=suite.needs_prediction_errors
    )
    results = Results(suite, store, (), solver.answers)
    with progress:
        solver.answer(table_questions(results))
        if results.pairs and results.rows:
            solver.answer(figure_questions(results))


def _draw_theory(
    request: Request,
    suite: Suite,
    answers: Answers,
    alphas: Sequence[float] | None,
    width: str | None,
) -> list[Path]:
    from smimbench.report.figures import theory_charts
    from smimbench.run.store import settings_folder

    try:
        folder = settings_folder(suite, request.store(suite)) / "figures"
        return save_charts(theory_charts(suite, answers, alphas), folder, width=width)
    except ImportError:
        raise click.UsageError(
            "a figure needs matplotlib; pip install 'smimbench[plot]'"
        ) from None


@command(
    SUITE_OR_FOLDER,
    RESULTS,
    flag("All rows as CSV.", "--csv", "as_csv"),
    flag("All rows as a Markdown table.", "--markdown"),
    flag("The tables of contenders in LaTeX, with booktabs.", "--latex"),
    several("Show these backends only.", "NAME", "--backend", "backends"),
    option(
        "Also write all records, and the theory of the table, into one file that show and compare read (.gz: compressed).",
        "--pack",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
    ),
    flag(
        "Also draw all figures, as PNG, SVG and PDF with what they show as CSV.",
        "--figures",
    ),
    WIDTH,
    AGAINST,
    FULL,
    JSON,
)
def show(
    request: Request,
    as_csv: bool,
    markdown: bool,
    latex: bool,
    backends: tuple[str, ...],
    pack: Path | None,
    figures: bool,
    width: str | None,
    against: str | None,
    full: bool,
) -> int:
    """Show the verdict, then error-against-theory and runtime tables of what has been run.

    Give the suite with the same --set, --add, --only and --plugins as to 'run', or a folder with its results.
    """
    from smimbench.report import text_files
    from smimbench.report.columns import latex_table
    from smimbench.report.tables import contender_tables

    if request.as_json + as_csv + markdown + latex > 1:
        raise click.UsageError("choose one of --json, --csv, --markdown and --latex")
    table, shared, folder, results = _table_of(request, backends)
    if pack is not None:
        _write_pack(pack, results, shared)
    if as_csv or markdown:
        print_data(
            (text_files.as_csv if as_csv else text_files.as_markdown)(table.document())
        )
        return OK
    if figures and results is None:
        raise click.UsageError(
            "figures need the results and plugins themselves, not only their table"
        )
    table = compare_with(table, against)
    if latex:
        if not (tables := contender_tables(table.verdicts, latex_table)):
            raise click.UsageError(
                "--latex has no table: no problem here was run with two algorithms"
            )
        print_data("\n\n".join(tables) + "\n")
        return OK
    code = present_table(table, request, folder, full=full)
    if figures and results is not None:
        draw_figures(results, request, width=width)
    return code


def _write_pack(path: Path, results: Results | None, shared: JsonObject) -> None:
    from smimbench.report.packed import write_packed

    if results is None:
        raise click.UsageError(
            "--pack needs the results and plugins themselves, not only their table"
        )
    write_packed(path, results, shared)


def _table_of(
    request: Request, backends: Sequence[str]
) -> tuple[ResultsTable, JsonObject, Path, Results | None]:
    """The table, ``run.json``, location and, unless only the table is there, results of what was asked for."""
    from smimbench.report.packed import is_packed, read_packed
    from smimbench.run.store import Store
    from smimbench.suite import SuiteError

    path = Path(request.name)
    if is_packed(path):
        if request.overrides or request.only or backends:
            raise click.UsageError(
                f"{path} is a finished table: --set, --add, --only and --backend cannot change it"
            )
        table, shared, remarks = read_packed(path)
        request.remark(f"{path}: {remark}" for remark in remarks)
        return table, shared, path, None
    try:
        results = stored_results(request, backends)
        table = results.table
        remark_missing_theory(results, request)
        return table, Store(results.folder).read_shared(), results.folder, results
    except SuiteError as error:
        # A plugin may be missing that was there when all this was run.
        kept = kept_table(request, str(error))
        if kept is None:
            raise
        table, folder = kept
        return table, Store(folder).read_shared(), folder, None


@command(SUITE_OR_FOLDER, output_option("The HTML file to write."), RESULTS)
def report(request: Request, output: Path) -> int:
    """Write one self-contained HTML page: tables, figures, machine, suite."""
    from smimbench.cli.progress import figures_progress
    from smimbench.files import check_writable, write_atomically
    from smimbench.report.page import NEEDS, render_page
    from smimbench.run.store import Store

    for needed in NEEDS:
        if importlib.util.find_spec(needed) is None:
            raise click.UsageError(
                f"a report needs {needed}; pip install 'smimbench[report]'"
            )
    check_writable(output)  # said before an hour of theory, not after
    results = stored_results(request)
    charts = figures_progress(charts_of(results), silent=request.silent)
    page = render_page(results, charts, Store(results.folder).read_shared())
    remark_missing_theory(results, request)
    write_atomically(output, page.encode())
    if not request.quiet:
        click.echo(f"wrote {output} ({output.stat().st_size / 1024:.0f} kB)")
    return OK


def _runs_in(path: Path) -> dict[tuple[str, str], Path]:
    """All runs in a results folder, or files of packed results, by suite and options."""
    from smimbench.report.packed import packed_under, read_pack
    from smimbench.run.store import settings_under, why_none, words_of

    found = {(one.suite, one.words): one.folder for one in settings_under(path)}
    for file in packed_under(path) if not found else ():
        shared = read_pack(file)["run"]
        found[shared["suite"], words_of(shared)] = file
    if not found:
        raise click.UsageError(
            f"{path}: {why_none(path)}, and there are no packed results there"
        )
    return found


def _rows_at(path: Path, request: Request) -> tuple[Sequence[Row], list[str]]:
    """Rows of a packed file or of a folder, and a line for each item that is not installed here, whose rows are not among them.

    A folder has the table made by its last run, a pack has records alone.
    """
    from smimbench.report.packed import read_packed
    from smimbench.suite import SuiteError
    from smimbench.suite.reader import LEFT_OUT

    if path.is_file():
        packed, _, remarks = read_packed(path)
        return packed.rows, [
            f"{path}: {remark}" for remark in remarks if remark.startswith(LEFT_OUT)
        ]
    request = replace(request, name=str(path))
    try:
        results = stored_results(request, any_code=True)
        unmade = [
            remark for remark in results.suite.remarks if remark.startswith(LEFT_OUT)
        ]
        if unmade and (table := kept_table(request, "; ".join(unmade))):
            return table[0].rows, []
        return results.rows, [f"{path}: {remark}" for remark in unmade]
    except (SuiteError, click.UsageError) as error:
        if (table := kept_table(request, str(error))) is None:
            raise
        return table[0].rows, []


@command(
    click.Argument(["before"], type=click.Path(exists=True, path_type=Path)),
    click.Argument(["after"], type=click.Path(exists=True, path_type=Path)),
    option(
        "Exit code 1 if an error is clearly worse, or a comparable time slower, by more; or if a row has no counterpart.",
        "--fail-over",
        type=click.FloatRange(0),
        metavar="PERCENT",
    ),
    JSON,
)
def compare(
    request: Request, before: Path, after: Path, fail_over: float | None
) -> int:
    """Compare two results folders, worst change first, with a verdict.

    Either may be a file that show --pack wrote, or a folder of such files: nothing is run again. Rows of the same problem,
    algorithm and parameters belong together, whatever code made them.
    """
    from smimbench.report.comparison import (
        ONE_SIDED,
        RowChange,
        compare_rows,
        exceeds,
        overall_changes,
    )
    from smimbench.report.tables import (
        changed_code_lines,
        comparison_tables,
        one_sided_lines,
        overall_lines,
    )

    if fail_over is not None and not math.isfinite(fail_over):
        raise click.UsageError(f"--fail-over: must be a finite number, got {fail_over}")
    old, new = map(_runs_in, (before, after))
    if len(old) == len(new) == 1:  # the only ones of two places, whatever they are of
        new = dict(zip(old, new.values()))
    common = [key for key in old if key in new]
    if not common:
        raise click.UsageError(
            f"{before} and {after} contain no suite that was run with the same settings in both"
        )
    changes: list[RowChange] = []
    left_out: list[str] = []
    for key in common:
        (old_rows, old_unmade), (new_rows, new_unmade) = (
            _rows_at(side[key], request) for side in (old, new)
        )
        left_out += [*old_unmade, *new_unmade]
        if len(common) > 1:
            old_rows, new_rows = (
                [
                    row.labeled(f"{key[0]}: {row.place.problem}", row.place.algorithm)
                    for row in side
                ]
                for side in (old_rows, new_rows)
            )
        changes += compare_rows(old_rows, new_rows)
    if all(change.judgment.verdict in ONE_SIDED for change in changes):
        raise click.UsageError(
            f"{before} and {after} have no results for the same problem and algorithm to compare"
        )
    alone = [
        str(path)
        for side in (old, new)
        for key, path in side.items()
        if key not in common
    ]
    request.remark(
        f"{line}; not compared"
        for line in (*left_out, *(f"{path} has no counterpart" for path in alone))
    )
    overall = overall_changes(changes)
    missing = [change for change in changes if change.judgment.verdict in ONE_SIDED]
    limit = math.inf if fail_over is None else fail_over
    worse = [
        change
        for change in changes
        if exceeds(change.judgment, limit, change.time_percent)
    ]
    worse_overall = [change for change in overall if exceeds(change.judgment, limit)]
    failing = (
        0
        if fail_over is None
        else len(worse) + len(worse_overall) + len(alone) + len(left_out)
    )
    if request.as_json:
        lost = {"missing": len(missing), "alone": alone, "left_out": left_out}
        rows, means = (
            [change.document() for change in side] for side in (changes, overall)
        )
        print_json({"rows": rows, "overall": means, **lost, "failing": failing})
        return NOT_OK if failing else OK
    console = make_console()
    print_tables(console, comparison_tables(changes))
    for line in (
        *changed_code_lines(changes),
        *overall_lines(overall),
        *one_sided_lines(missing, before, after),
    ):
        console.print(line, soft_wrap=True)
    if fail_over is not None:
        count, more = len(worse) - len(missing), f"worse by more than {fail_over:g}%"
        console.print(
            f"{count} of {len(changes) - len(missing)} rows are {more}",
            style="red" if count else "green",
        )
        if worse_overall:
            console.print(
                f"{len(worse_overall)} of {len(overall)} means over rows are {more}",
                style="red",
            )
    return NOT_OK if failing else OK
