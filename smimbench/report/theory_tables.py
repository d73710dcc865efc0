"""Theory as tables for a terminal: points of the curve, thresholds, published values, each with its error and how it
was obtained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from smimbench.report.tables import make_table, number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from smimbench.report.tables import Column

__all__ = ["theory_tables"]

EXACT = 1e-6
"""Relative error of a sample ratio that is not shown; doubled, fewer curves have the column."""

SIDE_BY_SIDE = 4
"""Components that stand side by side; more have a row each. Doubled, rows are wider than a terminal."""


def theory_tables(documents: Sequence[dict[str, Any]]) -> list[RenderableType]:
    """A table of points and a few lines of thresholds per problem."""
    shown: list[RenderableType] = []
    for document in documents:
        points = document["points"]
        if "unsolved" in document:
            reason = Text(f"not solved: {document['unsolved']}", style="bold red")
            shown.append(Group(Text(document["problem"]["label"], style="bold"), reason, ""))
        if not points:
            continue
        several = isinstance(points[0]["mse"], list)
        # An error at a sample ratio is a sample ratio at an error: both are intervals where the curve is not exact.
        read = any(np.max(point.get("alpha_error", 0.0)) > EXACT * point["alpha"] for point in points)
        count = len(points[0]["mse"]) if several else 1
        rows: Sequence[Any] = points
        if count <= SIDE_BY_SIDE:
            columns: list[Column] = [
                ("alpha", "r", lambda p: f"{p['alpha']:.5g}"),
                *((f"MSE {i + 1}" if several else "MSE", "r", lambda p, i=i: _one(p["mse"], i)) for i in range(count)),
                ("error", "r", lambda p: _error(p["mse_error"])),
                *([("in alpha", "r", lambda p: _error(p["alpha_error"]))] if read else []),
                *(
                    [(f"Q{i + 1}{i + 1}", "r", lambda p, i=i: number(p["overlap"][i][i], 6)) for i in range(count)]
                    if several
                    else [("overlap", "r", lambda p: _overlap(p, 0))]
                ),
            ]
        else:
            rows = [{**point, "component": i} for point in points for i in range(count)]
            columns = [
                ("alpha", "r", lambda p: "" if p["component"] else f"{p['alpha']:.5g}"),
                ("component", "r", lambda p: str(p["component"] + 1)),
                ("MSE", "r", lambda p: _one(p["mse"], p["component"])),
                ("error", "r", lambda p: _error(p["mse_error"][p["component"]])),
                *([("in alpha", "r", lambda p: _error(p["alpha_error"][p["component"]]))] if read else []),
                ("overlap", "r", lambda p: _overlap(p, p["component"])),
            ]
        if any(point.get("generalization_error") for point in points):
            columns += [
                ("gen. Bayes", "r", lambda p: _generalization(p, "bayes")),
                ("plug-in", "r", lambda p: _generalization(p, "plugin")),
            ]
        if any(point["branch"] != "unique" for point in points):
            columns.append(("branch", "l", lambda p: p["branch"]))
        methods = ", ".join(sorted({point["method"] for point in points}))
        shown.append(make_table(document["problem"]["label"], columns, rows, f"obtained by: {methods}"))
        if document["thresholds"] is not None:
            shown.append(_threshold_lines(document))
        shown += _published_tables(document.get("published", []))
    return shown


def _published_tables(rows: Sequence[dict[str, Any]]) -> list[RenderableType]:
    """A table of each set of values of others beside their theory."""
    columns: list[Column] = [
        ("alpha", "r", lambda row: f"{row['alpha']:.5g}"),
        ("published", "r", lambda row: number(row["value"], 6)),
        ("theory", "r", lambda row: number(row["theory"], 6)),
        ("difference", "r", lambda row: f"{row['theory'] - row['value']:+.1e}"),
        ("tolerance", "r", lambda row: f"{row['tolerance']:.0e}"),
        ("", "l", lambda row: "" if row["within"] else "off"),
    ]
    sets: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        place = "" if row["entry"] is None else f", entry {row['entry'][0]}{row['entry'][1]}"
        place = place if row["component"] is None else f", component {row['component']}"
        sets.setdefault((f"{row['label']}: {row['metric']}{place}", row["source"], row["remark"]), []).append(row)
    return [
        make_table(title, columns, found, f"source: {source}{f'; {remark}' if remark else ''}")
        for (title, source, remark), found in sets.items()
    ]


def _one(values: Any, component: int) -> str:
    return number(values[component] if isinstance(values, list) else values, 6)


def _overlap(point: dict[str, Any], component: int) -> str:
    """The metric of that name: a squared cosine, where the signal is not of length 1."""
    cosines = point.get("squared_cosine")
    return number(cosines[component] if cosines else point["overlap"][component][component], 6)


def _generalization(point: dict[str, Any], kind: str) -> str:
    if point.get("component"):  # an error of all components, beside the first
        return ""
    return number((point.get("generalization_error") or {}).get(kind), 5)


def _error(errors: Any) -> str:
    largest = max(errors) if isinstance(errors, list) else errors
    return f"{largest:.0e}" if largest else "0"


def _threshold_lines(document: dict[str, Any]) -> RenderableType:
    found = document["thresholds"]
    several = isinstance(document["points"][0]["mse"], list)

    def none(key: str) -> str:
        reason = found.get("reasons", {}).get(key)
        return f"none: {reason}" if reason else "none"

    lines = Table.grid(padding=(0, 1, 0, 0))
    lines.add_column(no_wrap=True, min_width=19)
    lines.add_column()
    for key, name in (("weak_recovery", "weak recovery"), ("perfect_recovery", "perfect recovery")):
        entry = found.get(key)
        text = none(key) if entry is None else f"alpha = {entry['value']:.7g} ± {_error(entry['error'])}"
        if entry and "informed" in entry:
            start = entry["informed"]
            text += f" (uninformed), {start['value']:.7g} ± {_error(start['error'])} (informed)"
        lines.add_row(f"  {name}", Text(text))
    if len(found.get("sequential", [])) > 1:
        lines.add_row("  learned in order", Text(_order_of_learning(document)))
    elif several and not found.get("sequential"):
        lines.add_row("  learned in order", Text(none("sequential")))
    if document.get("hard_phase"):
        low, high = document["hard_phase"]
        ends = [found.get(name) or {} for name in ("information_theoretic", "algorithmic")]
        errors = [f" ± {end['error']:.0e}" if end.get("error") else "" for end in ends]
        limits = f"{low:.5g}{errors[0]} to {high:.5g}{errors[1]}"
        lines.add_row("  hard phase", f"{limits}: the Bayes-optimal error is not reached from an uninformed start")
        if found.get("spinodal") and found["spinodal"] != found["information_theoretic"]:
            entry = found["spinodal"]
            lines.add_row("", f"the informed branch begins at {entry['value']:.5g} ± {entry['error']:.0e}")
    return Group(lines, "")


def _order_of_learning(document: dict[str, Any]) -> str:
    """What is learned at which sample ratio; once for components with the same threshold."""
    word = "layer" if "layers" in document["problem"]["channel"] else "component"
    together: dict[tuple[float, float], list[int]] = {}
    for entry in document["thresholds"]["sequential"]:
        together.setdefault((entry["value"], entry["error"]), []).append(entry["layer"])
    parts = []
    for (value, error), which in together.items():
        several = f"{word}s {', '.join(map(str, which[:-1]))} and {which[-1]}"
        name = f"{word} {which[0]}" if len(which) == 1 else several
        parts.append(f"{name} at {value:.5g} ± {_error(error)}")
    return ", then ".join(parts)
