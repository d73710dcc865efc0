"""Theory as tables for a terminal: points of the curve, thresholds, published values, each with its error and how it
was obtained.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from smimbench.report.labels import letter_of
from smimbench.report.tables import component_column, make_table, number
from smimbench.report.theory_document import LARGEST_Z

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import RenderableType

    from smimbench.report.tables import Column

__all__ = ["own_theory_tables", "theory_tables", "verification_tables"]


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
        read = any(np.max(point.get("alpha_error", 0.0)) > 1e-6 * point["alpha"] for point in points)
        count = len(points[0]["mse"]) if several else 1
        rows: Sequence[Any] = points
        if count <= 4:
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
    """A table of each set of published values with their theory."""
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
    if point.get("component"):  # one error for all components: only in the first row
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


def own_theory_tables(documents: Sequence[dict[str, Any]]) -> list[RenderableType]:
    """One table per problem: the prediction for each algorithm."""
    tables: list[RenderableType] = []
    for document in documents:
        entries = [entry for entry in document.get("algorithms", ()) if "point" in entry]
        others = [entry for entry in document.get("algorithms", ()) if "point" not in entry]
        # Long and mostly the same at all sample ratios: below the table, not in a column of it.
        notes = [
            *_notes(
                "{}",
                entries,
                lambda e: "alpha counts the samples of all its steps, each of which is new" if e.get("fresh") else None,
            ),
            *_notes("obtained by {}", entries, lambda e: e["point"]["method"]),
            *_notes("no trajectory: {}", entries, lambda e: e["point"].get("no_trajectory")),
            *_notes("no theory of its own here: {}", others, lambda e: e["no_theory"]),
        ]
        title, caption = f"{document['problem']['label']}: the algorithms themselves", "\n".join(notes)
        if not entries:
            tables += [Group(Text(title, style="bold"), Text(caption, style="dim"))] if notes else []
            continue
        # Curves one below the other. The sort keeps the order of what is equal.
        order = list(dict.fromkeys(entry["algorithm"] for entry in entries))
        entries.sort(key=lambda e: (order.index(e["algorithm"]), e["alpha"]))
        sized, size = _sized(entries), letter_of(entries)
        rows = [
            {**row, "size": str(row["dimension"]) if row["algorithm"] in sized else ""}
            for entry in entries
            for row in _rows(entry)
        ]
        columns: list[Column] = [
            ("algorithm", "l", lambda r: r["algorithm"]),
            ("alpha", "r", lambda r: f"{r['alpha']:.5g}"),
            *([(size, "r", lambda r: r["size"])] if sized else []),
            *component_column(rows),
            ("MSE", "r", lambda r: number(r["mse"], 5)),
            ("error", "r", lambda r: f"{r['error']:.0e}" if r["error"] else "0"),
            ("overlap", "r", lambda r: number(r["overlap"], 5)),
        ]
        tables.append(make_table(title, columns, rows, caption))
    return tables


def _sized(entries: Sequence[dict[str, Any]]) -> set[str]:
    """Algorithms whose theory differs between dimensions, or that stand at another sample ratio for each."""
    found: dict[tuple[str, float], int] = {}
    for entry in entries:
        key = (entry["algorithm"], 0.0 if entry.get("fresh") else entry["alpha"])
        found[key] = found.get(key, 0) + 1
    return {name for (name, _), count in found.items() if count > 1}


def _rows(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for every component of a point."""
    point = entry["point"]
    values = zip(np.atleast_1d(point["mse"]), np.atleast_1d(point["mse_error"]), entry["overlap"])
    rows = [{**entry, "component": i, "mse": m, "error": e, "overlap": q} for i, (m, e, q) in enumerate(values, 1)]
    return rows if len(rows) > 1 else [{**rows[0], "component": None}]


def _notes(text: str, entries: Sequence[dict[str, Any]], said: Callable[[dict[str, Any]], str | None]) -> list[str]:
    """A line for everything that is said of some algorithms, with their names in front."""
    names: dict[str, dict[str, None]] = {}
    for entry in entries:
        if found := said(entry):
            names.setdefault(found, {})[entry["algorithm"]] = None
    return [f"{'; '.join(those)}: {text.format(found)}" for found, those in names.items()]


def verification_tables(documents: Sequence[dict[str, Any]]) -> list[RenderableType]:
    """A table of numbers per problem, and a line on how their z are distributed."""
    shown: list[RenderableType] = []
    for document in documents:
        rows = document["verification"]
        if not rows:
            continue
        columns = [
            ("alpha", "r", lambda row: f"{row['alpha']:.5g}"),
            ("quantity", "l", _quantity),
            ("printed", "r", lambda row: ("<= " if row["bound"] else "") + number(row["printed"], 5)),
            ("error", "r", lambda row: _error(row["error"])),
            ("drawn", "r", lambda row: number(row["drawn"], 5)),
            ("error", "r", lambda row: _error(row["standard_error"])),
            ("z", "r", _z),
        ]
        # Bounds that hold and errors that are 0 in both say nothing of the spread.
        z = [row["z"] for row in rows if row["z"]] or [0.0]
        worst = max(rows, key=lambda row: abs(row["z"] or 0.0))
        summary = (
            f"{len(rows)} numbers against plain draws: rms z {math.sqrt(sum(v * v for v in z) / len(z)):.2f}, "
            f"largest {worst['z'] or 0.0:+.2f} ({_quantity(worst)} at alpha = {worst['alpha']:.5g})"
        )
        if few := sum(row["z"] is None for row in rows):
            summary += f"; {few} not decided, because too few draws meet a jump of the labels: give more --draws"
        if any(row["bound"] for row in rows):
            summary += (
                "; unlearned, perfect recovery: the rate at which a small overlap, or a small error, grows, at most 1"
            )
        shown.append(make_table(document["problem"]["label"], columns, rows, summary))
    return shown


def _z(row: dict[str, Any]) -> str:
    if row["z"] is None:
        return "few"
    if row["bound"] and not row["z"]:
        return "holds"
    return f"{row['z']:+.2f}" + (" !" if abs(row["z"]) > LARGEST_Z else "")


def _quantity(row: dict[str, Any]) -> str:
    component = "" if row["component"] is None else f" {row['component']}"
    branch = "" if row["branch"] == "unique" else f", {row['branch']}"
    return f"{row['quantity']}{component}{branch}"
