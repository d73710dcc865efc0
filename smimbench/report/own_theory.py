"""What theory says of the algorithms of a suite themselves: their points, a table of them, and figures of their
trajectory beside runs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group
from rich.text import Text

from smimbench.registry.adapters import plan_of, sizes
from smimbench.registry.metrics import find_metric, theory_of
from smimbench.registry.registry import get_registry
from smimbench.report.labels import component_word, grouped, letter, letter_of
from smimbench.report.rows import draws_fresh, own_point
from smimbench.report.style import COLOURS, finish, literal, new_figure, panel_title, save_figure
from smimbench.report.tables import component_column, make_table, number
from smimbench.report.theory_document import Stage
from smimbench.run.theory_cache import Progress
from smimbench.suite.cells import build_algorithm

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from rich.console import RenderableType

    from smimbench.problem.problem import Problem
    from smimbench.report.tables import Column
    from smimbench.run.store import Store
    from smimbench.run.theory_cache import TheoryCache
    from smimbench.suite.cells import Cell, Suite

__all__ = ["add_own_theory", "draw_trajectories", "own_theory_tables"]

PANELS = 9
"""Panels of the figure at the most; doubled, it has six rows and panels are still of the same size."""

ALL_SAMPLES = "alpha counts the samples of all its steps, each of which is new"
"""Beside algorithms that do not stand at the sample ratios of the suite."""

PATHS = ("mse", "overlap")
"""What is drawn against the clock of the algorithm."""


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
        ratio = _planned_ratio(problem, cell) if draws_fresh(cell.algorithm) else cell.alpha
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


def _planned_ratio(problem: Problem, cell: Cell) -> float:
    model = problem.model
    n = model.sample_count(cell.alpha, cell.dimension)
    if draws_fresh(cell.algorithm):
        algorithm = build_algorithm(cell.algorithm, problem, get_registry())
        plan = plan_of(algorithm, sizes(n, model.tokens, cell.dimension))
        n = int(plan.steps or 0) * int(plan.batch or n) or n
    return float(model.sample_ratio(n, cell.dimension))


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


def draw_trajectories(
    suite: Suite, pairs: Sequence[tuple[Cell, dict[str, Any]]], cache: TheoryCache, store: Store, folder: Path
) -> list[Path]:
    """Runs against their own clock, beside the trajectory that theory has of them: thin lines runs, dashed theory.

    One panel for every problem, algorithm, sample ratio and dimension whose theory has a trajectory: error and overlap of every
    component against iterations, or against samples / D where samples are counted.

    Returns
    -------
    list of Path
        PNG, SVG and PDF; empty where no theory has a trajectory.
    """
    problems = {plan.label: plan.problem for plan in suite.plans}
    panels = []
    groups = grouped(
        pairs, lambda pair: (pair[0].problem_label, pair[0].algorithm_label, pair[0].alpha, pair[0].dimension)
    )
    for (label, name, _, dimension), members in groups.items():
        cell, problem = members[0][0], problems[label]
        records = [record for _, record in members]
        ratio = _planned_ratio(problem, cell)
        found = own_point(cache, problem, cell, ratio, records, trajectory=True)
        if isinstance(found, str) or "trajectory" not in found:
            continue
        runs = [run for record in records if (run := store.trajectory(record)) is not None and "mse" in run]
        alpha = ratio if draws_fresh(cell.algorithm) else cell.alpha  # as in tables
        place = {"problem": label, "algorithm": name, "alpha": alpha, "dimension": dimension}
        panels.append((place, letter(problem.model), found["trajectory"], runs))
    if not panels:
        return []
    figure, axes = new_figure(suite.title, min(len(panels), PANELS))
    data = [entry for axis, panel in zip(axes, panels) for entry in _trajectory_panel(axis, *panel)]
    caption = "Runs as thin lines, the trajectory that theory has of them dashed; against the clock of the algorithm."
    if any("mse_limit" in theory for _, _, theory, _ in panels):
        caption += " Dotted: theory as the dimension grows, from the same starts."
    if len(panels) > len(axes):
        caption += f" {len(axes)} of {len(panels)} combinations of problem, algorithm, sample ratio and dimension."
    finish(figure, axes, caption)
    return save_figure(figure, folder, "trajectories", data, caption)


def _trajectory_panel(
    axis: Any, place: dict[str, Any], d: str, theory: dict[str, Any], runs: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Draw one panel; its curves as they are for the page, with the mean of all runs in place of each."""
    counted = "samples" in theory
    clock, scale = ("samples", place["dimension"]) if counted else ("iteration", 1)
    at, data = np.asarray(theory[clock]) / scale, []
    for index, metric in enumerate(name for name in PATHS if name in theory):
        values = np.asarray(theory[metric], dtype=float).reshape(len(theory[clock]), -1)
        for component in range(values.shape[1]):
            colour = COLOURS[(index * values.shape[1] + component) % len(COLOURS)]
            name = find_metric(metric).label + (f" {component + 1}" if values.shape[1] > 1 else "")
            curves = {"predicted": (at, values[:, component])}
            axis.plot(at, values[:, component], "--", color=colour, lw=1.6, label=literal(f"{name}, theory"))
            if f"{metric}_limit" in theory:
                limit = np.asarray(theory[f"{metric}_limit"], dtype=float).reshape(len(at), -1)[:, component]
                curves["predicted as D grows"] = (at, limit)
                axis.plot(at, limit, ":", color=colour, lw=1.2)
            read = []
            for run in runs:
                # Before the first step nothing has been counted.
                ticks = np.where(run["iteration"] == 0, 0.0, run[clock]) / scale
                axis.plot(ticks, np.asarray(run[metric])[:, component], color=colour, lw=0.6, alpha=0.35)
                read.append(np.interp(at, ticks, np.asarray(run[metric], dtype=float)[:, component], right=np.nan))
            if read:
                seen = np.isfinite(read).all(axis=0)
                curves["mean of runs"] = (at[seen], np.mean(read, axis=0)[seen])
            about = {**place, "metric": metric, "component": component + 1 if values.shape[1] > 1 else None}
            for what, curve in curves.items():
                data += [{**about, "what": what, clock: float(x), "value": float(y)} for x, y in zip(*curve)]
    at_ratio = f"α = {place['alpha']:.4g}, {d} = {place['dimension']}"
    panel_title(axis, f"{literal(place['problem'])}: {literal(place['algorithm'])}, {at_ratio}")
    axis.set_xlabel(f"samples / {d}" if counted else "iteration")
    axis.set_ylabel(", ".join(find_metric(metric).label for metric in PATHS if metric in theory))
    axis.set_ylim(bottom=0.0)
    return data
