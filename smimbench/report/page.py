"""Self-contained HTML page of results: verdicts, ranking, figures, sortable tables, and commands to reproduce it."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from smimbench.report.charts import page_figures
from smimbench.report.columns import (
    column_of,
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
from smimbench.report.wording import (
    RATIO,
    VERDICT_HELP,
    agreement_meaning,
    agreement_words,
    columns_document,
    optimum_words,
    reversal_line,
    tied_words,
    verdict_line,
)
from smimbench.run.record import RunJson
from smimbench.run.store import options_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from smimbench.report.charts import Chart
    from smimbench.report.results import Results
    from smimbench.report.row import Row
    from smimbench.report.verdict import Contender, Verdict
    from smimbench.suite.cells import Suite

NEEDS = ("jinja2", "matplotlib")
"""Packages that the HTML page needs, from the extra ``report``."""


def render_page(
    results: Results, charts: Iterable[Chart], run_document: RunJson
) -> str:
    """Render the results of a suite as the text of an HTML page, with these figures (``charts``); ``run_document`` is the
    ``run.json`` of the run (date, versions, machine).

    Raises
    ------
    ImportError
        If jinja2 or matplotlib is missing (extra ``report``).
    """
    environment = html_environment()
    environment.filters |= {"number": number, "seconds": seconds}
    words: list[Callable[..., str]] = [agreement_meaning, agreement_words, ratio_words]
    words += [optimum_words, reversal_line, tied_words, verdict_line]
    environment.globals |= {function.__name__: function for function in words}
    css, js = (
        Path(__file__)
        .with_name("assets")
        .joinpath(f"page.{suffix}")
        .read_text(encoding="utf-8")
        for suffix in ("css", "js")
    )
    suite, rows, table = results.suite, results.rows, results.table
    extrapolated = table.extrapolated
    figures = [(chart, page_figures(chart)) for chart in charts]
    panels = [panel for _, panels in figures for panel in panels]
    for panel_index, panel in enumerate(panels):
        panel.svg = _inline_svg(panel.svg, f"f{panel_index}")
    extrapolated_documents = [limit.document() for limit in extrapolated]
    page_data = {
        "series": [panel.series for panel in panels],
        "csv": as_csv([row.document() for row in rows], extrapolated_documents),
    }
    name_of_row = names_with_backend(rows)
    verdicts = table.verdicts
    contenders = [
        (verdict.problem, _contender_table(verdict))
        for verdict in verdicts
        if verdict.contenders
    ]
    if len(verdicts) > 1 and table.summary:
        summary_table = html_table(
            SUMMARY, table.summary, lambda entry: {"data-algorithm": entry.algorithm}
        )
        contenders.append(("All problems together", summary_table))
    failure_reasons = {
        f"{row.place.algorithm} at alpha {row.place.alpha:.4g}: {reason}"
        for row in rows
        for reason in (*row.runs.reasons, *row.runs.warnings)
    }
    all_trusted = all(row.cost.trusted for row in rows)

    def attributes(row: Row) -> dict[str, str]:
        """Return the attributes that the filters of the table of rows use."""
        return _filter_attributes(
            row.place.problem, name_of_row(row), row.runs.status_counts
        )

    return environment.get_template("page.html.jinja").render(
        suite=suite,
        css=css,
        js=js,
        data=json.dumps(page_data, allow_nan=False).replace("<", "\\u003c"),
        verdicts=verdicts,
        ratio_meaning=VERDICT_HELP[RATIO],
        contenders=contenders,
        problems=list(dict.fromkeys(row.place.problem for row in rows)),
        algorithms=list(dict.fromkeys(map(name_of_row, rows))),
        figures=figures,
        rows=html_table(ROW, rows, attributes, lambda row: row.runs.reasons),
        extrapolated=html_table(["problem", "algorithm", "alpha", "metric", "component", "extrapolated ± error", "predicted",
                                 "z score", "optimal", *LIMIT], extrapolated) if extrapolated else "",
        counts=results.counts,
        missing=table.missing,
        reasons=[*sorted(failure_reasons), *missing_values(rows)],
        timing_note="" if all_trusted else "Times are untrusted: cells may have run in parallel.",
        columns=columns_document(),
        made=_run_date(run_document),
        about=_provenance(suite, rows, run_document),
        reproduce=_reproduction_commands(suite, run_document),
    )  # fmt: skip


def _filter_attributes(
    problem: str, algorithm: str, statuses: Iterable[str]
) -> dict[str, str]:
    """Return the HTML attributes of a table row by which the page shows or hides it: problem, algorithm, and ``statuses`` of its
    runs.
    """
    return {
        "data-problem": problem,
        "data-algorithm": algorithm,
        "data-status": " ".join(statuses),
    }


def _contender_table(verdict: Verdict) -> str:
    """Return the HTML table of the algorithms compared on a problem."""
    columns = [*CONTENDER[:-1], column_of("iter.", "iterations"), CONTENDER[-1]]

    def attributes(contender: Contender) -> dict[str, str]:
        """Return the attributes that the filters of the table of algorithms use."""
        return _filter_attributes(
            verdict.problem, contender.algorithm, contender.status_counts
        )

    return html_table(columns, verdict.contenders, attributes)


def _run_date(run_document: RunJson) -> str:
    """Return when the results were computed, as a sentence, from the ``run.json`` of the run; empty if unknown."""
    written_time = run_document.get("written")
    if not written_time:
        return ""
    return f"Run on {datetime.datetime.fromtimestamp(written_time, datetime.UTC):%Y-%m-%d %H:%M} UTC."


def _provenance(
    suite: Suite, rows: Sequence[Row], run_document: RunJson
) -> dict[str, str]:
    """Return where the results are from, as texts by name: machine, versions, Git commit, seeds and precision."""

    def key_value_text(table: Mapping[str, object]) -> str:
        """Return the numbers and texts of a mapping, separated by commas."""
        plain_entries = (
            (k, v) for k, v in table.items() if isinstance(v, (str, int, float))
        )
        entry_texts = (f"{k} {v}" for k, v in plain_entries)
        return ", ".join(entry_texts) or "unknown"

    machines: set[str] = set()
    machines.update(*(row.cost.machines for row in rows))
    return {
        "machine": key_value_text(run_document.get("machine") or {}),
        "machines of the times": ", ".join(sorted(machines)) or "none",
        "versions": key_value_text(run_document.get("versions") or {}),
        "commit": str(run_document.get("git_commit") or "none"),
        "seeds": f"{suite.seeds} replicates of root seed {suite.seed}",
        "precision": suite.run.dtype,
    }


def _reproduction_commands(suite: Suite, run_document: RunJson) -> str:
    """Return the shell commands that compute the results again."""
    # "-dirty" marks a checkout with changes of its own; Git knows the commit below it.
    commit = (run_document.get("git_commit") or "").removesuffix("-dirty")
    run_command = f"smimbench run {suite.name} {options_of(suite)}".strip()
    return "\n".join(
        [*([f"git checkout {commit}"] if commit else []), "pip install .", run_command]
    )


def _inline_svg(svg: str, id_prefix: str) -> str:
    """Prepare an SVG for insertion into the page: without XML header, and with ``id_prefix`` before every id, so that ids are
    unique on the page.
    """

    def inline_tag(match: re.Match[str]) -> str:
        """Return a matched SVG tag with the prefix before its ids, and coordinates of two decimals."""
        tag = match[0]
        # A series of an algorithm, between one kind of quotes or the other.
        if re.match("<g id=.of ", tag):
            return tag.replace("id=", "data-algorithm=", 1).replace("of ", "", 1)
        # A hundredth of a point is finer than any screen; half of the file is digits beyond that.
        tag = re.sub(r"(\.\d\d)\d+", r"\1", tag)
        return re.sub(r'( id="|"#|\(#)', rf"\g<1>{id_prefix}-", tag)

    svg_body = re.sub(
        r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.S
    )
    return re.sub(r"<[^>]+>", inline_tag, svg_body)
