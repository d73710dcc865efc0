"""Figures of error against seconds: how fast algorithms come near the Bayes-optimal error, on the machine at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.report.labels import grouped, letter
from smimbench.report.learning_curves import chosen_panels, left_out
from smimbench.report.style import (
    FLOOR,
    decades_to_zero,
    finish,
    floor_of,
    literal,
    log_axis,
    looks_of,
    new_figure,
    panel_title,
    save_figure,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from smimbench.run.store import Store
    from smimbench.run.theory_cache import TheoryCache
    from smimbench.suite.cells import Cell, Suite

__all__ = ["draw_seconds"]

POINTS = 200
"""Points of a median; doubled, it looks the same."""


def draw_seconds(
    suite: Suite, pairs: Sequence[tuple[Cell, dict[str, Any]]], theorist: TheoryCache, store: Store, folder: Path
) -> list[Path]:
    """Draw one panel per problem, sample ratio and dimension with the squared error, summed over components, against seconds.

    Lines are medians over the runs, each of which keeps its last error when it has ended; a mark is where the last one ended,
    a band the range from quartile to quartile. Nothing is drawn where a single algorithm was run.

    Raises
    ------
    ImportError
        If matplotlib is missing (extra ``plot``).
    """
    runs: list[tuple[Any, ...]] = []
    for cell, record in pairs:
        trajectory = store.trajectory(record)
        if trajectory is None or "mse" not in trajectory:
            continue
        lost = (record.get("timing") or {}).get("lost_seconds") or 0.0
        seconds, error = (
            np.asarray(trajectory["seconds"], dtype=float) + lost,
            np.asarray(trajectory["mse"]).sum(axis=1),
        )
        there = np.isfinite(error) & (seconds > 0)
        if there.any():
            place = (cell.problem_label, cell.alpha, cell.dimension)
            runs.append((place, cell.algorithm_label, seconds[there], error[there], record))
    panels = {place: grouped(own, lambda run: run[1]) for place, own in grouped(runs, lambda run: run[0]).items()}
    panels = {place: own for place, own in panels.items() if len(own) > 1}
    if not panels:
        return []
    chosen = chosen_panels(suite, panels)
    figure, axes = new_figure(suite.title, len(chosen))
    data: list[dict[str, Any]] = []
    for axis, place in zip(axes, chosen):
        _seconds_panel(axis, suite, place, panels[place], theorist, data)
    trusted = all((run[4].get("timing") or {}).get("trusted") for run in runs)
    note = "" if trusted else "Times are untrusted: cells may have run side by side."
    note = (note + left_out(chosen, panels)).strip()
    finish(figure, axes, note)
    caption = (
        f"{suite.title}: squared error against seconds. Lines: median over runs; bands: quartiles; marks: the end. "
    )
    return save_figure(figure, folder, "seconds", data, caption + note)


def _seconds_panel(
    axis: Any,
    suite: Suite,
    place: tuple[str, float, int],
    algorithms: dict[str, list[Any]],
    theorist: TheoryCache,
    data: list[dict[str, Any]],
) -> None:
    label, alpha, dimension = place
    problem = next(plan.problem for plan in suite.plans if plan.label == label)
    ratio = problem.model.sample_ratio(problem.model.sample_count(alpha, dimension), dimension)
    bayes = float(np.sum(theorist.points(problem, [ratio])[0][0]["mse"]))
    looks = looks_of(suite)
    lowest = [float(run[3].min()) for members in algorithms.values() for run in members]
    highest = max(float(run[3][0]) for members in algorithms.values() for run in members)
    floor = floor_of([*lowest, bayes], suite.run.target)
    at = {"problem": label, "alpha": alpha, "dimension": dimension}
    for name, members in algorithms.items():
        first, last = max(run[2][0] for run in members), max(run[2][-1] for run in members)
        grid = np.geomspace(first, last, POINTS) if last > first else np.array([last])
        read = [run[3][np.searchsorted(run[2], grid, side="right") - 1] for run in members]
        low, middle, high = (np.maximum(part, floor) for part in np.quantile(read, [0.25, 0.5, 0.75], axis=0))
        look = looks[name]
        axis.plot(grid, middle, color=look.colour, ls=look.dashes, marker=look.marker, markevery=[-1], ms=4.5, zorder=3,
                  label=literal(name))  # fmt: skip
        axis.fill_between(grid, low, high, color=look.colour, alpha=0.15, lw=0)
        data += [{**at, "what": name, "seconds": x, "value": y, "quartile_1": a, "quartile_3": b}
                 for x, y, a, b in zip(grid, middle, low, high)]  # fmt: skip
    if bayes > floor:
        axis.axhline(bayes, color="black", lw=1.2, label="Bayes-optimal", zorder=2)
        data.append({**at, "what": "Bayes-optimal", "value": bayes})
        axis.set_ylim(min(bayes, *lowest) / 1.5, 3 * highest)
        log_axis(axis, "y")
    else:
        axis.plot([], [], color=FLOOR, lw=2.5, label="Bayes-optimal: 0")
        decades_to_zero(axis, floor, 3 * highest)
    log_axis(axis, "x")
    panel_title(axis, f"{literal(label)}, α = {alpha:.4g}, {letter(problem.model)} = {dimension}")
    axis.set_xlabel("seconds")
    axis.set_ylabel("MSE")
