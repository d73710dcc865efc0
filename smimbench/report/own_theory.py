"""What theory predicts for the algorithms of a suite: their points, and a table of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group
from rich.text import Text

from smimbench.registry.metrics import find_metric, theory_of
from smimbench.report.labels import component_word, letter, letter_of
from smimbench.report.rows import draws_fresh, own_point, planned_ratio
from smimbench.report.tables import component_column, make_table, number
from smimbench.report.theory_document import Stage
from smimbench.run.theory_cache import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import RenderableType

    from smimbench.report.tables import Column
    from smimbench.run.theory_cache import TheoryCache
    from smimbench.suite.cells import Cell, Suite

__all__ = ["add_own_theory", "own_theory_tables"]

ALL_SAMPLES = "alpha counts the samples of all its steps, each of which is new"
"""Beside algorithms that do not stand at the sample ratios of the suite."""


def add_own_theory(
    suite: Suite,
    documents: Sequence[dict[str, Any]],
    cache: TheoryCache,
    alphas: Sequence[float] | None = None,
    on_stage: Callable[[Stage], None] = lambda stage: None,
) -> None:
    """Add ``algorithms`` to every problem's document: ``algorithm``, ``dimension`` and ``point``, or ``no_theory`` in words.

    Beside a point stands ``overlap``, what it says of the metric of that name in the tables of runs; the point's own entry is
    the matrix of products of the estimate with the signal.

    Sample ratios are those of the suite, or ``alphas`` in their place, not the nearest ones of whole samples. What depends on
    sizes is given for every dimension of the suite; algorithms that draw fresh samples stand at the sample ratio of all of them.
    """
    by_label = {document["problem"]["label"]: document for document in documents if "unsolved" not in document}
    for document in documents:
        document["algorithms"] = []
    problems = {plan.label: plan.problem for plan in suite.plans}
    seen: set[str] = set()
    cells = [cell for cell in _cells_asked_for(suite, alphas) if cell.problem_label in by_label]
    total, done = Counter(cell.problem_label for cell in cells), Counter[str]()
    for cell in cells:
        label = cell.problem_label
        stage = Stage(label, "the algorithms themselves", Progress(done[label], total[label]), cell.algorithm_label)
        on_stage(stage)
        cache.watch = lambda progress: None  # its own stages are over
        problem = problems[cell.problem_label]
        ratio = planned_ratio(problem, cell) if draws_fresh(cell.algorithm) else cell.alpha
        found = own_point(cache, problem, cell, ratio, trajectory=True)
        entry: dict[str, Any] = {"algorithm": cell.algorithm_label, "alpha": ratio, "dimension": cell.dimension}
        entry["dimension_letter"] = letter(problem.model)
        entry["component_word"] = component_word(problem)
        entry["fresh"] = draws_fresh(cell.algorithm)
        if isinstance(found, str):
            entry["no_theory"] = found
        else:
            overlap, _ = theory_of(find_metric("overlap"), problem, found, problem.components)
            entry |= {"point": found, "overlap": overlap}
        same = repr((cell.problem_label, {**entry, "dimension": None}))
        if same not in seen:
            seen.add(same)
            by_label[label]["algorithms"].append(entry)
        done[label] += 1
        on_stage(stage._replace(progress=Progress(done[label], total[label])))


def _cells_asked_for(suite: Suite, alphas: Sequence[float] | None) -> list[Cell]:
    """A cell for every algorithm, dimension and sample ratio."""
    cells = [] if suite.theory_only else [cell for cell in suite.cells() if not cell.replicate]
    if alphas is None:
        return cells
    moved = [replace(cell, alpha=alpha) for cell in cells for alpha in alphas]
    return list({cell.key: cell for cell in moved}.values())


def own_theory_tables(documents: Sequence[dict[str, Any]]) -> list[RenderableType]:
    """One table per problem: what theory says of each algorithm."""
    tables: list[RenderableType] = []
    for document in documents:
        entries = [entry for entry in document.get("algorithms", ()) if "point" in entry]
        others = [entry for entry in document.get("algorithms", ()) if "point" not in entry]
        # Long and mostly the same at all sample ratios: below the table, not in a column of it.
        notes = [
            *_notes("{}", entries, lambda e: ALL_SAMPLES if e.get("fresh") else None),
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
