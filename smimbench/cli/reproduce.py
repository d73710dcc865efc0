"""Command ``reproduce``: a figure from one of the papers, compared with the published numbers."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from smimbench.cli.options import (
    FIGURE,
    JSON,
    NOT_OK,
    OK,
    RESULTS,
    Request,
    command,
    flag,
    option,
)
from smimbench.cli.results import draw_figures
from smimbench.cli.run import show_cost
from smimbench.files import suggestion

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from smimbench.files import JsonObject
    from smimbench.interfaces import AlgorithmPrediction
    from smimbench.report.charts import Chart
    from smimbench.report.published import PublishedLine, ShippedFigure
    from smimbench.report.theory_lines import Line
    from smimbench.suite.cells import Suite
    from smimbench.suite.schema import FigureTable

QUICK_POINTS = 8
"""Number of published points per theoretical curve that ``--quick`` compares; doubled, it takes twice as long."""


@command(
    click.Argument(["name"], metavar="FIGURE", required=False, default=""),
    flag("List the published figures.", "--list", "list_only"),
    option(
        "Folder with the tables that the authors of the papers have released (not shipped with smimbench).",
        "--published",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        metavar="FOLDER",
    ),
    flag("Use smaller sizes, fewer seeds and fewer points: takes minutes.", "--quick"),
    flag("Estimate the cost of its runs; run nothing.", "--dry-run"),
    option(
        "Number of parallel processes [default: one per core].",
        "--workers",
        type=click.IntRange(1),
    ),
    *FIGURE,
    RESULTS,
    JSON,
)
def reproduce(
    request: Request,
    list_only: bool,
    published: Path | None,
    quick: bool,
    dry_run: bool,
    workers: int | None,
    **drawing: Any,
) -> int:
    """Reproduce a figure from one of the papers, and compare it with the published numbers.

    For every curve it says whether ours is inside the stated band around the published points, or why it is known not to be
    (docs/corrections.md). Without --published this is the outcome of the last full comparison, which ships with smimbench.
    Where no numbers were released, its runs are compared with their exact limit.
    The exit code is 1 if a curve is outside for no known reason, or is not compared.
    """
    from smimbench.cli.progress import run_with_progress
    from smimbench.report.published import (
        EXPLAINED,
        INSIDE,
        compare,
        figure_list,
        published_lines,
        stored_comparison,
    )
    from smimbench.run.campaign import plan_campaign
    from smimbench.run.store import settings_folder

    if list_only:
        request.print_document(figure_list(), _print_figures)
        return OK
    request, suite, figure = _read_figure(request, quick)
    campaign = None
    if suite.algorithms:
        store = request.store(suite)
        campaign = plan_campaign(
            suite, store, workers=workers, in_subprocess=True, dry_run=dry_run
        )
    if dry_run:
        return show_cost(campaign, request)
    lines = published_lines(suite, published, QUICK_POINTS if quick else None)
    for line in lines:
        if published and line.table and line.points is None:
            request.remark(
                f"the table {line.table} is missing in {published}, so {line.label} is not compared"
            )
    if campaign is not None:
        run_with_progress(campaign, request)
    comparison: JsonObject = {"curves": []}
    if figure.has_tables:
        our_lines, chart = _solve(request, suite, lines, workers)
    else:
        lines, our_lines, chart = _solve_learning_curves(request, suite, lines)
        comparison["against"] = "limit"
    folder = settings_folder(suite, request.store(suite)) / "figures"
    image_paths = draw_figures([chart], folder, request, **drawing)
    if published or not figure.has_tables:
        agreements = [compare(line, points) for line, points in zip(lines, our_lines)]
        comparison["curves"] = [agreement.document() for agreement in agreements]
    elif stored := stored_comparison(request.name):
        comparison = {key: stored[key] for key in ("curves", "date", "command")}
    else:
        request.remark(
            f"nothing is compared without the published tables, which are in {figure.source}; give their folder as --published"
        )
    document: JsonObject = {
        "figure": suite.name,
        "title": suite.title,
        "quick": quick,
        "source": figure.source,
        **comparison,
        "files": [str(path) for path in image_paths],
    }
    request.print_document(document, _print_agreements)
    verdicts = {curve["verdict"] for curve in comparison["curves"]}
    return OK if verdicts <= {INSIDE, EXPLAINED} else NOT_OK


def _read_figure(request: Request, quick: bool) -> tuple[Request, Suite, FigureTable]:
    """Read the suite of a figure, with the changes of ``--quick`` in the request."""
    from smimbench.report.published import figure_list
    from smimbench.suite import SuiteError

    if not request.name:
        raise click.UsageError("name a figure; 'smimbench reproduce --list' shows them")
    figures = {figure["name"]: figure for figure in figure_list()}
    shipped_figure: Mapping[str, object] = figures.get(request.name, {})
    if "no_numbers" in shipped_figure:
        raise click.UsageError(
            f"{request.name} has no numbers to compare with: {shipped_figure['no_numbers']}"
        )
    is_figure = request.name in figures or Path(request.name).exists()
    try:
        suite = request.suite() if is_figure else None
    except SuiteError:
        package = str(shipped_figure.get("package", ""))
        if package and not find_spec(package.replace("-", "_")):
            raise click.UsageError(
                f"{request.name} needs the package {package}: pip install ./plugins/examples/{package}"
            ) from None
        raise
    if suite is None or suite.figure is None:
        raise click.UsageError(
            f"{request.name} is not a figure of a paper; {suggestion(request.name, figures)}"
        )
    figure = suite.figure
    if quick:
        request = replace(request, overrides=(*figure.quick, *request.overrides))
        suite = request.suite()
    return request, suite, figure


def _solve_learning_curves(
    request: Request, suite: Suite, lines: Sequence[PublishedLine]
) -> tuple[list[PublishedLine], list[Line], Chart]:
    """Solve the limits of the runs of a figure; return its lines with them, the means over runs, and the chart."""
    from smimbench.interfaces import Conditions
    from smimbench.report.published import figure_chart, learning_curve, runs_of
    from smimbench.report.results import Results
    from smimbench.report.rows import ratio_of_runs
    from smimbench.suite.cells import build_algorithm
    from smimbench.theory.predictions import own_theory

    assert suite.figure is not None
    results = Results(suite, request.store(suite))
    curves = []
    for line in lines:
        problem = line.plans[0].problem
        pairs = runs_of(line, results)
        limit: AlgorithmPrediction | str = "there are no runs"
        if pairs:
            algorithm = build_algorithm(pairs[0][0].algorithm, problem)
            ratio = ratio_of_runs(problem, pairs)
            limit = own_theory(algorithm, problem, ratio, Conditions(trajectory=True))
        if isinstance(limit, str):
            request.remark(f"{line.label} is not compared: {limit}")
        curves.append(learning_curve(line, results, limit, suite.figure.xlim))
    _remark_on_failed_runs(request, results.counts)
    lines_with_limits, means = (list(column) for column in zip(*curves))
    chart = figure_chart(suite, results.answers, (), lines_with_limits, means, {})
    return lines_with_limits, means, chart


def _solve(
    request: Request, suite: Suite, lines: Sequence[PublishedLine], workers: int | None
) -> tuple[list[Line], Chart]:
    """Solve the theory of a figure; return our points of every line, and the chart."""
    from smimbench.backend import machine
    from smimbench.cli.progress import TheoryProgress
    from smimbench.report.published import figure_chart, our_points
    from smimbench.report.results import Results
    from smimbench.report.theory_document import (
        table_questions,
        theory_of_suite,
        theory_questions,
    )
    from smimbench.report.theory_lines import chart_questions
    from smimbench.run.store import theory_folder
    from smimbench.run.theory_processes import solve_in_parallel

    assert suite.figure is not None
    alphas_by_problem = {plan.label: set(plan.alphas) for plan in suite.plans}
    for line in lines:
        alphas_by_problem[line.plans[0].label] |= line.alphas(suite.figure.xlim)
    plans = [
        replace(plan, alphas=tuple(sorted(alphas_by_problem[plan.label])))
        for plan in suite.plans
    ]
    drawn_suite = replace(suite, plans=tuple(plans))
    store = request.store(suite)
    predictions = any("generalization" in curve.metric for curve in suite.figure.curves)
    with TheoryProgress(
        request, drawn_suite, theory_folder(store), predictions=predictions
    ) as solver:
        results = Results(suite, store, (), solver.answers)
        questions = list(theory_questions(drawn_suite))
        workers = workers or machine.usable_cores()
        if workers > 1:
            solve_in_parallel(questions, solver, workers)
        answers = solver.answer(questions)
        for theory in theory_of_suite(drawn_suite, answers):
            if theory.unsolved:
                raise click.UsageError(
                    f"{theory.label}: theory could not be solved: {theory.unsolved}"
                )
        solver.answer(table_questions(results))
        metrics = [line.curve.metric for line in lines if line.is_curve]
        if metrics:
            solver.answer(chart_questions(drawn_suite, solver.answers, metrics))
    rows, status_counts = results.rows, results.counts
    our_lines = [
        our_points(line, answers, rows, sorted(alphas_by_problem[line.plans[0].label]))
        for line in lines
    ]
    _remark_on_failed_runs(request, status_counts)
    chart = figure_chart(suite, answers, rows, lines, our_lines, alphas_by_problem)
    return our_lines, chart


def _remark_on_failed_runs(request: Request, status_counts: Mapping[str, int]) -> None:
    """Say how many runs did not end ok, from the numbers of runs by status."""
    failure_texts = [
        f"{count} {status}" for status, count in status_counts.items() if status != "ok"
    ]
    if failure_texts:
        request.remark(
            f"runs that did not end ok: {', '.join(failure_texts)}, of {sum(status_counts.values())}; their points may be missing"
        )


def _print_figures(console: Console, figures: list[ShippedFigure]) -> None:
    """Print the figures that can be reproduced, with the time each takes."""
    from smimbench.report.columns import Column, make_table

    def duration(figure: ShippedFigure) -> str:
        """Return the time a figure takes, or that it has no numbers."""
        return "has no numbers" if "no_numbers" in figure else figure["duration"]

    columns = [
        Column("figure", fields="name", words=True),
        Column("what it shows", fields="title", words=True),
        Column("takes", duration, words=True),
    ]
    title = "published figures"
    console.print(make_table(title, columns, figures))


def _print_agreements(console: Console, document: JsonObject) -> None:
    """Print for every curve whether it agrees with the published one."""
    from smimbench.report.columns import Column, make_table, number

    console.print(document["title"], style="bold", soft_wrap=True)
    columns = [
        Column("curve", fields="curve", words=True),
        Column(
            "outside",
            lambda outside, points: f"{outside} of {points}" if points else "",
            fields="outside points",
        ),
        Column("verdict", fields="verdict", words=True),
        Column(
            "largest deviation",
            lambda deviation: "" if deviation is None else f"{deviation:+z.4f}",
            fields="deviation",
        ),
        Column("allowed", number, fields="allowed"),
        Column("at", number, fields="at"),
    ]
    curves = document["curves"]
    title = "ours - published"
    if document.get("against") == "limit":
        title = f"runs - limit; {document['source']}"
    if "date" in document:
        title += f", compared on {document['date']} by '{document['command']}' with the tables of {document['source']}"
    if curves:
        console.print(make_table(title, columns, curves), crop=False)
    sections: dict[str, None] = {}
    for curve in curves:
        sections.update(dict.fromkeys(curve["corrections"]))
    for section in sections:
        console.print(
            f"known correction: docs/corrections.md, {section}", soft_wrap=True
        )
