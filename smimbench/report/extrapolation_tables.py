"""Tables of values at infinite dimension beside theory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smimbench.registry.metrics import find_metric
from smimbench.report.labels import grouped, letter_of
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

__all__ = ["exponent_text", "extrapolated_tables", "law_text", "size_markdown"]


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
