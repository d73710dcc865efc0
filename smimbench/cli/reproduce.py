"""``smimbench reproduce``: a figure of a paper, made again and compared with the published numbers."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from smimbench.cli.options import (
    JSON,
    NOT_OK,
    OK,
    RESULTS,
    Request,
    command,
    complain,
    flag,
    option,
)
from smimbench.cli.results import name_figures, save_charts
from smimbench.cli.run import show_cost

if TYPE_CHECKING:
    from rich.console import Console

    from smimbench.files import JsonObject
    from smimbench.report.charts import Chart
    from smimbench.report.figures import Line
    from smimbench.report.published import Part
    from smimbench.run.campaign import Campaign
    from smimbench.suite.cells import Suite

QUICK_POINTS = 8
"""Published points of a curve of theory that ``--quick`` compares; doubled, it takes twice as long."""


@command(
    click.Argument(["name"], metavar="FIGURE", required=False, default=""),
    flag("List the figures of both papers.", "--list", "listed"),
    option(
        "Folder with the tables that the papers' authors have released; smimbench does not ship them.",
        "--published",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        metavar="FOLDER",
    ),
    flag("Smaller sizes, fewer seeds and points: minutes.", "--quick"),
    flag("Estimate what its runs take; run nothing.", "--dry-run"),
    option(
        "Processes side by side [default: one per core].",
        "--workers",
        type=click.IntRange(1),
    ),
    RESULTS,
    JSON,
)
def reproduce(
    request: Request,
    listed: bool,
    published: Path | None,
    quick: bool,
    dry_run: bool,
    workers: int | None,
) -> int:
    """Make a figure of the papers again, in their axes, and compare it with the published numbers.

    Of every curve it says whether ours is inside the stated band around the published points, or why it is known not to be
    (docs/corrections.md). The exit code is 1 where a curve is outside for no known reason, or has no published table.
    """
    from smimbench.backend import machine
    from smimbench.report.published import EXPLAINED, INSIDE, compare, figure_list
    from smimbench.run.campaign import plan_campaign

    if listed:
        request.answer(figure_list(), _print_list)
        return OK
    request, suite = _asked(request, quick)
    source = suite.figure.source if suite.figure else ""
    campaign = None
    if suite.algorithms:
        campaign = plan_campaign(
            suite, request.store(suite), workers=workers, isolated=True, dry_run=dry_run
        )
    if dry_run and campaign:
        return show_cost(campaign, request)
    if dry_run:
        none = {"cells": 0, "missing": 0, "seconds": 0}
        request.answer(none, lambda console, _: console.print("no runs: theory alone"))
        return OK
    lines, chart = _solved(
        request,
        suite,
        campaign,
        published,
        workers or machine.usable_cores(),
        QUICK_POINTS if quick else None,
    )
    found: JsonObject = {
        "figure": suite.name,
        "title": suite.title,
        "quick": quick,
        "source": source,
    }
    found["curves"] = [compare(*line) for line in lines] if published else []
    paths = _draw(suite, request, chart)
    request.answer(found | {"files": [str(path) for path in paths]}, _print_verdict)
    if not published:
        request.remark(
            [
                f"not compared: the published tables are not part of smimbench; {source} has them (--published)"
            ]
        )
    name_figures(() if request.as_json else paths)
    return (
        OK
        if all(one["verdict"] in (INSIDE, EXPLAINED) for one in found["curves"])
        else NOT_OK
    )


def _asked(request: Request, quick: bool) -> tuple[Request, Suite]:
    """The suite of a figure, and the request for it with what ``--quick`` changes."""
    from smimbench.report.published import figure_list

    for one in figure_list():
        if one["name"] == request.name and "no_numbers" in one:
            raise click.UsageError(
                f"{request.name} has no numbers to compare with: {one['no_numbers']}"
            )
    if not request.name:
        raise click.UsageError("name a figure; 'smimbench reproduce --list' shows them")
    suite = request.suite()
    if suite.figure is None:
        raise click.UsageError(
            f"{request.name} is no figure of a paper; 'smimbench reproduce --list' shows them"
        )
    if quick:
        request = replace(request, overrides=(*suite.figure.quick, *request.overrides))
        suite = request.suite()
    return request, suite


def _solved(
    request: Request,
    suite: Suite,
    campaign: Campaign | None,
    published: Path | None,
    workers: int,
    most: int | None,
) -> tuple[list[tuple[Part, Line, Line | None]], Chart]:
    """Every line of a figure with its published points, once runs and theory are there, and the figure."""
    from smimbench.cli.progress import TheoryProgress, run_watched
    from smimbench.problem.problem import ProblemError
    from smimbench.report.published import (
        figure_chart,
        line_questions,
        our_points,
        parts_of,
        published_points,
    )
    from smimbench.report.questions import table_questions
    from smimbench.report.results import Results
    from smimbench.report.theory_document import theory_document, theory_questions
    from smimbench.run.parallel_theory import solve_in_parallel
    from smimbench.run.store import theory_folder

    assert suite.figure is not None
    parts, tables = parts_of(suite), []
    alphas = {plan.label: {*plan.alphas} for plan in suite.plans}
    for part in parts:
        points = (
            published_points(part, published, suite.figure.xlim, most)
            if published
            else None
        )
        if published and points is None:
            request.remark(
                [f"no table {part.table} in {published}: {part.label} is not compared"]
            )
        if not part.is_threshold and not part.curve.algorithm:
            low, high = suite.figure.xlim
            at = [
                max(low, high / 1000),
                high,
                *(points.alpha if points else ()),
            ]  # from one end of the axis to the other
            alphas[part.plans[0].label] |= {float(x / part.factor) for x in at}
        tables.append(points)
    if campaign is not None:
        run_watched(campaign, request)
    plans = tuple(
        replace(plan, alphas=tuple(sorted(alphas[plan.label]))) for plan in suite.plans
    )
    asked = replace(suite, plans=plans)
    store = request.store(suite)
    progress = TheoryProgress(asked, theory_folder(store), silent=request.silent)
    predictions = any("generalization" in curve.metric for curve in suite.figure.curves)
    solver = request.solver(
        progress.folder, progress.on_progress, predictions=predictions
    )
    results = Results(suite, store, (), solver.answers)
    with progress:
        questions = list(theory_questions(asked))
        if workers > 1:
            with contextlib.suppress(
                ProblemError
            ):  # said below, with the problem that it belongs to
                solve_in_parallel(questions, solver, workers)
        for document in theory_document(asked, solver.answer(questions)):
            if "unsolved" in document:
                label, reason = document["problem"]["label"], document["unsolved"]
                raise click.UsageError(f"{label}: theory is not solved: {reason}")
        if campaign:
            solver.answer(table_questions(results))
        answers = solver.answer(line_questions(parts, solver.answers, alphas))
    rows = results.rows if campaign else []
    ours = [
        our_points(part, answers, rows, sorted(alphas[part.plans[0].label]))
        for part in parts
    ]
    lines = list(zip(parts, ours, tables))
    chart = figure_chart(suite, answers, rows, lines)
    counts = (
        Counter(record["status"] for _, record in results.pairs)
        if campaign
        else Counter()
    )
    if lost := [
        f"{number} {status}" for status, number in counts.items() if status != "ok"
    ]:
        request.remark(
            [
                f"runs that did not end well: {', '.join(lost)}, of {counts.total()}; their points may be missing"
            ]
        )
    return lines, chart


def _draw(suite: Suite, request: Request, chart: Chart) -> list[Path]:
    from smimbench.run.store import settings_folder

    try:
        return save_charts(
            [chart], settings_folder(suite, request.store(suite)) / "figures"
        )
    except ImportError:
        complain("no figure: matplotlib is missing; pip install 'smimbench[plot]'")
        return []


def _print_list(console: Console, figures: list[JsonObject]) -> None:
    from smimbench.report.columns import Column, make_table

    columns = [
        Column("figure", fields="name", words=True),
        Column("what it shows", fields="title", words=True),
        Column(
            "takes",
            lambda r: "has no numbers" if "no_numbers" in r else r["duration"],
            words=True,
        ),
    ]
    console.print(
        make_table("figures of arXiv:2502.00901 and arXiv:2506.01582", columns, figures)
    )


def _print_verdict(console: Console, found: JsonObject) -> None:
    from smimbench.report.columns import Column, make_table, number

    console.print(found["title"], style="bold", soft_wrap=True)
    columns = [
        Column("curve", fields="curve", words=True),
        Column(
            "outside",
            lambda r: f"{r['outside']} of {r['points']}" if r["points"] else "",
        ),
        Column("verdict", fields="verdict", words=True),
        Column(
            "largest deviation",
            lambda off: "" if off is None else f"{off:+z.4f}",
            fields="deviation",
        ),
        Column("allowed", number, fields="allowed"),
        Column("at", number, fields="at"),
    ]
    if found["curves"]:
        console.print(
            make_table("ours - published", columns, found["curves"]), crop=False
        )
    for section in dict.fromkeys(
        section for one in found["curves"] for section in one["corrections"]
    ):
        console.print(
            f"known correction: docs/corrections.md, {section}", soft_wrap=True
        )
