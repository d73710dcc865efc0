"""Theory as tables for a terminal: curve points, thresholds, published values, predictions of algorithms, Monte Carlo checks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from smimbench.files import JsonObject
from smimbench.report.columns import Column, column_of, make_table, number, one_digit
from smimbench.report.labels import grouped
from smimbench.report.tables import Columns
from smimbench.theory.verification import LARGEST_Z, MOST, SECONDS

ALPHA = Column("alpha", "{:.5g}".format, fields="alpha")


def _values(word: str) -> Columns:
    """Columns of a point; ``word``: what a component is called."""
    return [Column(word, fields="component"), "MSE", "error", "in alpha", "overlap"]


def _rows(
    point: JsonObject, overlap: Sequence[float], about: JsonObject
) -> list[JsonObject]:
    """One row per component of a theory point; ``overlap`` is the metric of that name."""
    mse, error, shift = (
        np.atleast_1d(point.get(name, 0.0)).tolist()
        for name in ("mse", "mse_error", "alpha_error")
    )
    rows = []
    for i, value in enumerate(mse):
        # An error at a sample ratio is a sample ratio at an error: both are intervals where the curve is not exact.
        read = max(shift) > 1e-6 * point.get("alpha", math.inf)
        numbers = {
            "mse": value,
            "mse_error": error[i],
            "alpha_error": shift[i] if read else None,
            "overlap": overlap[i],
        }
        rows.append(
            {**point, **about, **numbers, "component": i + 1 if len(mse) > 1 else None}
        )
    return rows


def theory_tables(documents: Sequence[JsonObject]) -> list[RenderableType]:
    """A table of points and a few lines of thresholds per problem."""
    shown: list[RenderableType] = []
    for document in documents:
        label, points = document["problem"]["label"], document["points"]
        if "unsolved" in document:
            reason = Text(f"not solved: {document['unsolved']}", style="bold red")
            shown.append(Group(Text(label, style="bold"), reason, ""))
        if "no_theory" in document:
            shown.append(
                Group(Text(label, style="bold"), Text(document["no_theory"]), "")
            )
        if not points:
            continue
        word, rows = _word(document), []
        for point in points:
            overlap = (
                point.get("squared_cosine") or np.diagonal(point["overlap"]).tolist()
            )
            rows += _rows(point, overlap, {})
        # Stored points may have errors of prediction that were not asked for now: a column has them for all, or is not there.
        predicted = (
            ["gen. Bayes", "plug-in"]
            if all("generalization_error" in point for point in points)
            else []
        )
        columns: Columns = [ALPHA, *_values(word), *predicted, "branch"]
        methods = ", ".join(sorted({point["method"] for point in points}))
        shown.append(make_table(label, columns, rows, f"obtained by: {methods}"))
        if document["thresholds"] is not None:
            shown.append(_threshold_lines(document, word))
        shown += _published_tables(document.get("published", []))
    return shown


def _word(document: JsonObject) -> str:
    return (
        "layer" if "layers" in document["problem"].get("channel", ()) else "component"
    )


_SET = ("label", "metric", "entry", "component", "source", "remark")


def _published_tables(rows: Sequence[JsonObject]) -> list[RenderableType]:
    """A table of each set of published values with their theory."""
    columns: Columns = [
        ALPHA,
        "published",
        Column("theory", partial(number, digits=6), fields="theory"),
        "difference",
        "tolerance",
    ]
    tables = []
    for found in grouped(rows, lambda row: str([row[key] for key in _SET])).values():
        one = found[0]
        place = (
            ""
            if one["entry"] is None
            else f", entry {one['entry'][0]}{one['entry'][1]}"
        )
        place = place if one["component"] is None else f", component {one['component']}"
        source = f"source: {one['source']}{'; ' * bool(one['remark'])}{one['remark']}"
        tables.append(
            make_table(
                f"{one['label']}: {one['metric']}{place}", columns, found, source
            )
        )
    return tables


def _threshold_lines(document: JsonObject, word: str) -> RenderableType:
    found, reasons = document["thresholds"], document["thresholds"].get("reasons", {})
    lines: list[tuple[str, str]] = []
    for key in ("weak_recovery", "perfect_recovery"):
        entry = found.get(key) or {}
        text = f"alpha = {_with_error(entry, 7)}" if entry else ""
        if entry.get("informed"):
            text += f" (uninformed), {_with_error(entry['informed'], 7)} (informed)"
        lines.append((key, text))
    if len(steps := found.get("sequential", [])) > 1 or (
        isinstance(document["points"][0]["mse"], list) and not steps
    ):
        lines.append(("sequential", _order_of_learning(steps, word)))
    if document.get("hard_phase"):
        ends = ({**(found.get(name) or {"error": None}), "value": value} for name, value in
                zip(("information_theoretic", "algorithmic"), document["hard_phase"]))  # fmt: skip
        low, high = (_with_error(end) for end in ends)
        lines.append(
            (
                "hard_phase",
                f"{low} to {high}: the Bayes-optimal error is not reached from an uninformed start",
            )
        )
    if (entry := found.get("spinodal")) and entry != found["information_theoretic"]:
        lines.append(("", f"the informed branch begins at {_with_error(entry)}"))
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True, min_width=19)
    for key, text in lines:
        name = "learned in order" if key == "sequential" else key.replace("_", " ")
        table.add_row(
            f"  {name}",
            Text(text or (f"none: {reasons[key]}" if reasons.get(key) else "none")),
        )
    return Group(table, "")


def _with_error(entry: JsonObject, digits: int = 5) -> str:
    error = one_digit(entry["error"])
    return f"{entry['value']:.{digits}g}" + (f" ± {error}" if error else "")


def _order_of_learning(steps: Sequence[JsonObject], word: str) -> str:
    """Which components are learned at which sample ratio, once for components with the same threshold."""
    parts = []
    for where, together in grouped(steps, _with_error).items():
        *first, last = (str(step["layer"]) for step in together)
        parts.append(
            f"{word}s {', '.join(first)} and {last} at {where}"
            if first
            else f"{word} {last} at {where}"
        )
    return ", then ".join(parts)


def own_theory_tables(documents: Sequence[JsonObject]) -> list[RenderableType]:
    """One table per problem: the prediction for each algorithm; below it how it was obtained, and which have none."""
    tables: list[RenderableType] = []
    for document in documents:
        found, known = document.get("algorithms", ()), []
        for entries in grouped(
            (e for e in found if "point" in e), lambda e: e["algorithm"]
        ).values():
            # Sizes are told apart where the prediction depends on them.
            places = [0.0 if e.get("fresh") else e["alpha"] for e in entries]
            sized = len(set(places)) < len(places)
            for entry in sorted(entries, key=lambda e: e["alpha"]):
                about = {**entry, "dimension": entry["dimension"] if sized else ""}
                known += _rows(entry["point"], entry["overlap"], about)
        title = f"{document['problem']['label']}: the algorithms themselves"
        notes = Text("\n".join(_notes(found)), style="dim")
        if known:
            size = column_of("D", "dimension")._replace(
                heading=known[0]["dimension_letter"]
            )
            columns = [
                column_of("algorithm", "algorithm"),
                ALPHA,
                size,
                *_values(known[0]["component_word"]),
            ]
            tables.append(make_table(title, columns, known))
        if notes:
            tables.append(
                notes if known else Group(Text(title, style="bold"), notes, "")
            )
    return tables


def _notes(entries: Sequence[JsonObject]) -> list[str]:
    """Notes on algorithms, one line each, starting with the algorithms' names."""
    said: list[tuple[str, str]] = []
    for entry in entries:
        name, point = entry["algorithm"], entry.get("point")
        if point is None:
            said.append((f"no theory of its own here: {entry['no_theory']}", name))
            continue
        said.append((f"obtained by {point['method']}", name))
        if entry.get("fresh"):
            said.append(
                (
                    "alpha counts the samples of all its steps, each of which is new",
                    name,
                )
            )
        if point.get("no_trajectory"):
            said.append((f"no trajectory: {point['no_trajectory']}", name))
    by_text = grouped(said, lambda one: one[0])
    return [
        f"{'; '.join(dict.fromkeys(name for _, name in own))}: {text}"
        for text, own in by_text.items()
    ]


def verification_tables(documents: Sequence[JsonObject]) -> list[RenderableType]:
    """A table of numbers per problem, and a line on how their z are distributed."""
    columns: Columns = [
        ALPHA,
        Column("quantity", _quantity, words=True),
        "printed",
        Column("error", one_digit, fields="error"),
        "drawn",
        Column("error", one_digit, fields="standard_error"),
        Column("z", _z),
        "would have seen",
    ]
    shown: list[RenderableType] = []
    for document in documents:
        rows = document["verification"]
        if not rows:
            continue
        # Bounds that hold and errors that are 0 in both say nothing of the spread.
        z = [row["z"] for row in rows if row["z"]] or [0.0]
        worst = max(rows, key=lambda row: abs(row["z"] or 0.0))
        summary = (
            f"{len(rows)} numbers against plain draws: rms z {math.sqrt(sum(v * v for v in z) / len(z)):.2f}, "
            f"largest {worst['z'] or 0.0:+z.2f} ({_quantity(worst)} at alpha = {worst['alpha']:.5g})"
        )
        if few := sum(row["z"] is None for row in rows):
            summary += (
                f"; {few} not decided, because too few draws meet a jump of the labels"
            )
        if any(row["bound"] for row in rows):
            summary += "; unlearned, perfect recovery: the growth rate of a small overlap or error, at most 1"
        shown.append(
            make_table(
                document["problem"]["label"], columns, rows, f"{summary}. {_seen(rows)}"
            )
        )
    return shown


def _seen(rows: Sequence[JsonObject]) -> str:
    """What the draws of a problem's points can and cannot see, in words."""
    said = []
    if goals := [
        row["excludes"] for row in rows if row["quantity"] == "MSE" and row["excludes"]
    ]:
        said.append(
            f"At every point an MSE that is {100 * max(goals):.2g}% off would have been seen"
        )
    if late := list(
        dict.fromkeys(f"{row['alpha']:.5g}" for row in rows if row["stopped"])
    ):
        limit = f"{SECONDS:g} s or {MOST:,} draws"
        said.append(
            f"At alpha = {', '.join(late)} the draws ended short of what --resolve asks, after {limit}"
        )
    return ". ".join(
        [*said, "What a channel's forward and posterior both get wrong is not seen."]
    )


def _z(row: JsonObject) -> str:
    if row["z"] is None:
        return "few"
    if row["bound"] and not row["z"]:
        return "holds"
    return f"{row['z']:+z.2f}" + (" !" if abs(row["z"]) > LARGEST_Z else "")


def _quantity(row: JsonObject) -> str:
    component = "" if row["component"] is None else f" {row['component']}"
    branch = "" if row["branch"] == "unique" else f", {row['branch']}"
    return f"{row['quantity']}{component}{branch}"
