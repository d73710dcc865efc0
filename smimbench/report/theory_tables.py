"""Theory for a terminal: the curve and the thresholds, each with its error and how it was obtained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smimbench.report.tables import number, plain_table, titled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

__all__ = ["theory_tables"]


def theory_tables(documents: Sequence[dict[str, Any]]) -> list[RenderableType]:
    """A table of points and a few lines of thresholds per problem."""
    shown: list[RenderableType] = []
    for document in documents:
        points = document["points"]
        several = isinstance(points[0]["mse"], list)
        branches = any(point["branch"] != "unique" for point in points)
        predicted = any(point.get("generalization_error") for point in points)
        columns = [("alpha", "r")]
        components = range(len(points[0]["mse"])) if several else range(1)
        columns += [(f"MSE {i + 1}" if several else "MSE", "r") for i in components] + [("error", "r")]
        columns += [(f"Q{i + 1}{i + 1}" if several else "overlap", "r") for i in components]
        columns += [("gen. Bayes", "r"), ("plug-in", "r")] if predicted else []
        columns += [("branch", "l")] if branches else []
        methods = sorted({point["method"] for point in points})
        table = plain_table(columns)
        for point in points:
            mse = point["mse"] if several else [point["mse"]]
            errors = point["mse_error"] if several else [point["mse_error"]]
            cells = [
                f"{point['alpha']:.5g}",
                *(number(v, 6) for v in mse),
                f"{max(errors):.0e}" if max(errors) else "0",
            ]
            cells += [number(point["overlap"][i][i], 6) for i in components]
            if predicted:
                error = point.get("generalization_error") or {}
                cells += [number(error.get("bayes"), 5), number(error.get("plugin"), 5)]
            cells += [point["branch"]] if branches else []
            table.add_row(*cells)
        shown.append(titled(table, str(document["problem"]["label"]), f"obtained by: {', '.join(methods)}"))
        shown.append(_threshold_lines(document))
    return shown


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
