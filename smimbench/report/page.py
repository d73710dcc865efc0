"""Self-contained HTML page of results: verdicts, ranking, figures, sortable tables, and commands to reproduce it."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from smimbench.report.charts import page_figures
from smimbench.report.columns import (
    column_of,
    columns_document,
    html_environment,
    html_table,
    number,
    ratio_words,
    seconds,
)
from smimbench.report.notebook import ROW
from smimbench.report.row import names_with_backend
from smimbench.report.tables import CONTENDER, LIMIT, SUMMARY, missing_values
from smimbench.report.text_files import as_csv
from smimbench.report.verdict import agreement_words, tied_words, verdict_line
from smimbench.run.record import RunJson
from smimbench.run.store import options_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from smimbench.report.charts import Chart
    from smimbench.report.results import Results
    from smimbench.report.row import Row
    from smimbench.report.verdict import Contender, Verdict
    from smimbench.suite.cells import Suite

NEEDS = ("jinja2", "matplotlib")
"""Packages that the HTML page needs, from the extra ``report``."""


def render_page(results: Results, charts: Iterable[Chart], shared: RunJson) -> str:
    """Render the page as HTML text.

    Raises
    ------
    ImportError
        If jinja2 or matplotlib is missing (extra ``report``).
    """
    environment = html_environment()
    environment.filters |= {"number": number, "seconds": seconds}
    css, js = (
        Path(__file__)
        .with_name("assets")
        .joinpath(f"page.{end}")
        .read_text(encoding="utf-8")
        for end in ("css", "js")
    )
    suite, rows, table = results.suite, results.rows, results.table
    extrapolated = table.extrapolated
    figures = [(chart, page_figures(chart)) for chart in charts]
    panels = [panel for _, panels in figures for panel in panels]
    for i, panel in enumerate(panels):
        panel.svg = _inline_svg(panel.svg, f"f{i}")
    limits = [limit.document() for limit in extrapolated]
    data = {
        "series": [panel.document() for panel in panels],
        "csv": as_csv([row.document() for row in rows], limits),
    }
    name, verdicts = names_with_backend(rows), table.verdicts
    contenders = [
        (verdict.problem, _contender_table(verdict))
        for verdict in verdicts
        if verdict.contenders
    ]
    if len(verdicts) > 1 and table.summary:
        entries = html_table(
            SUMMARY, table.summary, lambda entry: {"data-algorithm": entry.algorithm}
        )
        contenders.append(("All problems together", entries))
    lines = {
        f"{row.place.algorithm} at alpha {row.place.alpha:.4g}: {line}"
        for row in rows
        for line in (*row.runs.reasons, *row.runs.warnings)
    }
    trusted = all(row.cost.trusted for row in rows)

    def attributes(row: Row) -> dict[str, str]:
        return _about(row.place.problem, name(row), row.runs.status_counts)

    return environment.get_template("page.html.jinja").render(
        suite=suite,
        css=css,
        js=js,
        data=json.dumps(data, allow_nan=False).replace("<", "\\u003c"),
        verdicts=[_shown(verdict) for verdict in verdicts],
        contenders=contenders,
        problems=list(dict.fromkeys(row.place.problem for row in rows)),
        algorithms=list(dict.fromkeys(map(name, rows))),
        figures=figures,
        rows=html_table(ROW, rows, attributes, lambda row: row.runs.reasons),
        extrapolated=html_table(["problem", "algorithm", "alpha", "metric", "component", "extrapolated ± error", "predicted", "z",
                                 "optimal", *LIMIT], extrapolated) if extrapolated else "",
        counts=results.counts,
        missing=results.missing({cell.backend for cell, _ in results.pairs}),
        reasons=[*sorted(lines), *missing_values(rows)],
        timing_note="" if trusted else "Times are untrusted: cells may have run in parallel.",
        columns=columns_document(),
        made=_when(shared),
        about=_made_with(suite, rows, shared),
        reproduce=_reproduce(suite, shared),
    )  # fmt: skip


def _about(problem: str, algorithm: str, statuses: Iterable[str]) -> dict[str, str]:
    """Return the HTML attributes of a table row that the page's filters use."""
    return {
        "data-problem": problem,
        "data-algorithm": algorithm,
        "data-status": " ".join(statuses),
    }


def _contender_table(verdict: Verdict) -> str:
    columns = [*CONTENDER[:-1], column_of("iter.", "iterations"), CONTENDER[-1]]

    def attributes(contender: Contender) -> dict[str, str]:
        return _about(verdict.problem, contender.algorithm, contender.status_counts)

    return html_table(columns, verdict.contenders, attributes)


class _ShownVerdict(NamedTuple):
    """Texts of a verdict on the page; ``best`` is None if the line of the verdict contains everything."""

    problem: str
    best: Contender | None
    ties: str
    line: str
    agreement: str
    ratio: str


def _shown(verdict: Verdict) -> _ShownVerdict:
    best, agreement, ratio = next(iter(verdict.contenders), None), "", ""
    if best and (best.mean_error is not None or not best.points):
        best = None
    if best:
        agreement = agreement_words(best)
        ratio = ratio_words(best.ratio_to_bayes, best.ratio_error)
    ties, line = tied_words(verdict), verdict_line(verdict)
    return _ShownVerdict(verdict.problem, best, ties, line, agreement, ratio)


def _when(shared: RunJson) -> str:
    written = shared.get("written")
    if not written:
        return ""
    return f"Run on {datetime.datetime.fromtimestamp(written, datetime.UTC):%Y-%m-%d %H:%M} UTC."


def _made_with(suite: Suite, rows: Sequence[Row], shared: RunJson) -> dict[str, str]:
    """Return the versions and machines that produced the results."""

    def listed(table: Mapping[str, object]) -> str:
        shown = ((k, v) for k, v in table.items() if isinstance(v, (str, int, float)))
        texts = (f"{k} {v}" for k, v in shown)
        return ", ".join(texts) or "unknown"

    machines: set[str] = set()
    machines.update(*(row.cost.machines for row in rows))
    return {
        "machine": listed(shared.get("machine") or {}),
        "machines of the times": ", ".join(sorted(machines)) or "none",
        "versions": listed(shared.get("versions") or {}),
        "commit": str(shared.get("git_commit") or "none"),
        "seeds": f"{suite.seeds} replicates of root seed {suite.seed}",
        "precision": suite.run.dtype,
    }


def _reproduce(suite: Suite, shared: RunJson) -> str:
    # "-dirty" marks a checkout with changes of its own; Git knows the commit below it.
    commit = (shared.get("git_commit") or "").removesuffix("-dirty")
    run = f"smimbench run {suite.name} {options_of(suite)}".strip()
    return "\n".join(
        [*([f"git checkout {commit}"] if commit else []), "pip install .", run]
    )


def _inline_svg(svg: str, name: str) -> str:
    """Prepare an SVG for inlining: without XML header, with ids that are unique on the page."""

    def shortened(match: re.Match[str]) -> str:
        tag = match[0]
        # A series of an algorithm, between one kind of quotes or the other.
        if re.match("<g id=.of ", tag):
            return tag.replace("id=", "data-algorithm=", 1).replace("of ", "", 1)
        # A hundredth of a point is finer than any screen; half of the file is digits beyond that.
        tag = re.sub(r"(\.\d\d)\d+", r"\1", tag)
        return re.sub(r'( id="|"#|\(#)', rf"\g<1>{name}-", tag)

    body = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.S)
    return re.sub(r"<[^>]+>", shortened, body)
