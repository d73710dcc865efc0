"""Theory for a terminal: the curve and the thresholds, each with its error and how it was obtained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smimbench.report.tables import make_table, number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from smimbench.report.tables import Column

__all__ = ["theory_tables"]


def theory_tables(documents: Sequence[dict[str, Any]]) -> list[RenderableType]:
    """A table of points and a few lines of thresholds per problem."""
    shown: list[RenderableType] = []
    for document in documents:
        points = document["points"]
        several = isinstance(points[0]["mse"], list)
        components = range(len(points[0]["mse"])) if several else range(1)
        columns: list[Column] = [
            ("alpha", "r", lambda p: f"{p['alpha']:.5g}"),
            *((f"MSE {i + 1}" if several else "MSE", "r", lambda p, i=i: _one(p["mse"], i)) for i in components),
            ("error", "r", _error),
            *(
                (f"Q{i + 1}{i + 1}" if several else "overlap", "r", lambda p, i=i: number(p["overlap"][i][i], 6))
                for i in components
            ),
        ]
        if any(point.get("generalization_error") for point in points):
            columns += [
                ("gen. Bayes", "r", lambda p: _generalization(p, "bayes")),
                ("plug-in", "r", lambda p: _generalization(p, "plugin")),
            ]
        if any(point["branch"] != "unique" for point in points):
            columns.append(("branch", "l", lambda p: p["branch"]))
        methods = ", ".join(sorted({point["method"] for point in points}))
        shown.append(make_table(document["problem"]["label"], columns, points, f"obtained by: {methods}"))
        shown.append(_threshold_lines(document))
    return shown


def _one(values: Any, component: int) -> str:
    return number(values[component] if isinstance(values, list) else values, 6)


def _generalization(point: dict[str, Any], kind: str) -> str:
    return number((point.get("generalization_error") or {}).get(kind), 5)


def _error(point: dict[str, Any]) -> str:
    errors = point["mse_error"]
    largest = max(errors) if isinstance(errors, list) else errors
    return f"{largest:.0e}" if largest else "0"


def _threshold_lines(document: dict[str, Any]) -> str:
    found = document["thresholds"]
    lines = []
    for key, name in (("weak_recovery", "weak recovery"), ("perfect_recovery", "perfect recovery")):
        entry = found.get(key)
        text = "none" if entry is None else f"alpha = {entry['value']:.7g} ± {entry['error']:.0e}"
        if entry and "informed" in entry:
            text += f" (uninformed), {entry['informed']['value']:.7g} (informed)"
        lines.append(f"  {name:17s} {text}")
    if len(found.get("sequential", [])) > 1:
        order = ", then ".join(
            f"layer {e['layer']} at {e['value']:.5g} ± {e['error']:.0e}" for e in found["sequential"]
        )
        lines.append(f"  {'learned in order':17s} {order}")
    if document.get("hard_phase"):
        low, high = document["hard_phase"]
        lines.append(
            f"  {'hard phase':17s} {low:.5g} to {high:.5g}: the Bayes-optimal error is not reached from an uninformed start"
        )
    return "\n".join(lines) + "\n"
