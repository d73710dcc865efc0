"""Values at infinite dimension, compared with theory: tables and figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.registry.metrics import find_metric
from smimbench.report.charts import Chart, Panel, Series, table
from smimbench.report.labels import grouped, letter_of
from smimbench.report.style import MARKERS, line_name
from smimbench.report.tables import (
    component_column,
    differs,
    make_table,
    place_columns,
    signed,
    statuses,
    two_verdicts,
    uncertain,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from smimbench.report.tables import Column
    from smimbench.suite.cells import Suite

__all__ = ["exponent_text", "extrapolated_tables", "law_text", "size_charts", "size_markdown"]


def law_text(entry: dict[str, Any]) -> str:
    """The law of the corrections with the letter of the model in it."""
    return str(entry["law"]).replace("D", letter_of([entry]))


def extrapolated_tables(entries: Sequence[dict[str, Any]]) -> list[RenderableType]:
    """One table per problem and metric, largest distance from theory first; ``entries`` from ``extrapolated_rows``."""
    return [
        _extrapolated_table(problem, metric, members)
        for problem, all_of_it in grouped(entries, lambda entry: entry["problem"]).items()
        for metric, members in grouped(all_of_it, lambda entry: entry["metric"]).items()
    ]


def _extrapolated_table(problem: str, metric: str, entries: list[dict[str, Any]]) -> RenderableType:
    columns: list[Column] = [
        *place_columns([{**entry, "dimension": 0} for entry in entries]),
        *component_column(entries),
        ("value ± err", "r", lambda e: uncertain(e["value"], e["error"], 0.0)),
        *(two_verdicts() if any(map(differs, entries)) else _one_verdict()),
        ("law", "l", law_text),
        *(_coefficients() if any(e.get("own_coefficient") is not None for e in entries) else ()),
        ("chi2", "r", lambda e: f"{e['chi2']:.1f}/{e['dof']}"),
        ("exponent", "r", lambda e: exponent_text(e["exponent"])),
        ("status", "l", lambda e: statuses(e["status_counts"])),
    ]
    ordered = sorted(entries, key=lambda e: -abs(e["z"] or 0.0))
    d = letter_of(entries)
    title = f"{problem}: {find_metric(metric).label} at infinite {d}"
    return make_table(title, columns, ordered, "largest |z| first")


def _one_verdict() -> list[Column]:
    return [
        ("optimal", "r", lambda e: uncertain(e["theory"], e["theory_error"])),
        ("z", "r", lambda e: signed(e["z"], ".1f", 1000, ".0e")),
    ]


def _coefficients() -> list[Column]:
    """The fitted coefficient of the first correction, and the one that theory has in closed form."""
    return [
        (
            "b ± err",
            "r",
            lambda e: uncertain(e["coefficient"], e["coefficient_error"], 0.0) if e["law"] == "1/D" else "",
        ),
        ("b in theory", "r", lambda e: "" if e.get("own_coefficient") is None else f"{e['own_coefficient']:.4g}"),
    ]


def exponent_text(exponent: dict[str, float]) -> str:
    """``1.1 (0.8-1.5)``; ``>0.7`` where there is no upper end, blank where every exponent fits as well."""
    from smimbench.numerics.size_laws import EXPONENTS

    below, above = exponent["low"] <= EXPONENTS[0], exponent["high"] >= EXPONENTS[-1]
    if below or above:
        return "" if below and above else f"<{exponent['high']:.1f}" if below else f">{exponent['low']:.1f}"
    return "{value:.1f} ({low:.1f}-{high:.1f})".format_map(exponent)


_FIELDS = (
    "problem", "algorithm", "backend", "alpha", "metric", "component", "n", "value", "error", "theory", "theory_error",
    "difference", "z", "own_theory", "own_z", "bayes", "law", "coefficient", "own_coefficient", "chi2", "dof", "p_value",
)  # fmt: skip


def size_markdown(entries: Sequence[dict[str, Any]]) -> str:
    """Entries as a Markdown table, rounded; empty without any."""
    from smimbench.report.tables import markdown_table

    return markdown_table(_FIELDS, entries) if entries else ""


# -- figures --------------------------------------------------------------------------------------------------------------


def size_charts(suite: Suite, entries: Sequence[dict[str, Any]]) -> list[Chart]:
    """One figure per problem, a panel for every metric, algorithm and component; color and marker stand for a sample ratio.

    Parameters
    ----------
    entries : sequence of dict
        As from ``extrapolated_rows``.
    """
    charts = []
    problems = grouped(entries, lambda entry: entry["problem"])
    for number, (problem, members) in enumerate(problems.items(), 1):
        alphas = sorted({entry["alpha"] for entry in members})
        groups = grouped(members, lambda e: (e["metric"], e["algorithm"], e["backend"], e["component"]))
        d = letter_of(members)
        note = (
            f"Lines: fitted corrections, 1/{d} unless the panel says otherwise. Diamonds: predicted, or optimal where there is "
            "no prediction. Bars: standard errors, from the scatter of all sizes together where one power describes it."
        )
        caption = (
            f"{suite.title}, {problem}: means over runs against 1/{d}, at the sample ratio of the largest {d}. {note}"
        )
        name = "finite-size" if len(problems) == 1 else f"finite-size-{number}"
        panels = [_size_panel(own, alphas) for own in groups.values()]
        charts.append(Chart(name, f"{suite.title}: {problem}", panels, caption, note))
    return charts


def _size_panel(entries: Sequence[dict[str, Any]], alphas: Sequence[float]) -> Panel:
    import matplotlib

    first, d = entries[0], letter_of(entries)
    # Not the colors of algorithms: light stands for many samples, in grey, too.
    shades = matplotlib.colormaps["viridis"](np.linspace(0.0, 0.85, len(alphas)))
    other, series, widest = [], [], 0.0
    for entry in sorted(entries, key=lambda e: e["alpha"]):
        k = alphas.index(entry["alpha"])
        color, marker = tuple(shades[k]), MARKERS[k % len(MARKERS)]
        about = {key: entry[key] for key in ("problem", "metric", "algorithm", "backend", "component", "alpha")}
        points, law, curve = entry["points"], law_text(entry), entry["curve"]
        if law != f"1/{d}":
            other.append(f"α = {entry['alpha']:.4g}: {law}")
        x = np.array([1 / p["dimension"] for p in points])
        y, error = (np.array([p[key] for p in points], dtype=float) for key in ("moved", "error"))
        widest = max(widest, float(x.max()))
        sizes, counts = ([p[key] for p in points] for key in ("dimension", "n"))
        bars = {"color": color, "capsize": 2.5, "lw": 1.2, "zorder": 3}
        runs = table({**about, "what": "runs"}, dimension=sizes, n=counts, value=y, error=error)
        series.append(
            Series(
                f"α = {entry['alpha']:.4g}", x, y, {**bars, "fmt": marker, "ms": 4, "ls": "none"}, runs, "marks", error
            )
        )
        line = np.linspace(0, x.max(), 100)
        fitted = entry["value"] + sum(b * line**a for a, b in zip(curve["exponents"], curve["coefficients"]))
        series.append(Series("", line, fitted, {"color": color, "lw": 1.0, "zorder": 2}))
        limit = [{**about, "what": f"fit {law}", "dimension": "inf", "value": entry["value"], "error": entry["error"]}]
        series.append(
            Series(
                "", [0.0], np.array([entry["value"]]), {**bars, "fmt": "_"}, limit, "marks", np.array([entry["error"]])
            )
        )
        if entry["theory"] is not None:
            known = [
                {
                    **about,
                    "what": "theory",
                    "dimension": "inf",
                    "value": entry["theory"],
                    "error": entry["theory_error"],
                }
            ]
            diamond = {
                "ls": "none",
                "marker": "D",
                "mfc": "white",
                "color": color,
                "ms": 6,
                "zorder": 4,
                "clip_on": False,
            }
            series.append(Series("", [0.0], [entry["theory"]], diamond, known))
    component = None if first["component"] is None else first["component"] - 1
    name = first["algorithm"] + ("" if first["backend"] == "numpy" else f"@{first['backend']}")
    head = line_name(name, first["component_word"] or "component", component)
    label = find_metric(first["metric"]).label
    return Panel(
        ", ".join([head, *other]), f"1 / {d}", label, series, first["problem"], xlim=(-0.021 * widest, None), ticks=5
    )
