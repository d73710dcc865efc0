"""Spectra of estimates: eigenvalues of the runs as a histogram, beside what the algorithm's own theory expects."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.report.labels import grouped, letter
from smimbench.report.rows import own_point
from smimbench.report.style import COLOURS, SMALL, lay_out, legend, literal, new_figure, panel_title, save_figure

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from smimbench.run.theory_cache import TheoryCache
    from smimbench.suite.cells import Cell, Suite

__all__ = ["draw_spectra"]

PANELS = 12
"""Panels of the figure at the most; doubled, it has eight rows and panels are still of the same size."""

BINS = 40
"""Bins where there is no theory that says which; doubled, they are half as wide."""

PER_BAR = 8
"""Eigenvalues of a bar on average; doubled, bars are twice as wide and their noise is 1.4 times smaller."""

FEWEST = 10
"""Bars at the least; doubled, the bars of a few runs are twice as noisy."""

ZERO = 1e-9
"""Eigenvalues up to this part of the largest count as zero; doubled, nothing changes for estimates that are cut off at zero."""

Pair = tuple["Cell", dict[str, Any]]


def draw_spectra(suite: Suite, pairs: Sequence[Pair], theorist: TheoryCache, folder: Path) -> list[Path]:
    """Draw one panel per problem, algorithm, sample ratio and dimension of which records tell the spectrum.

    Bars are the eigenvalues of all runs that are not zero, a line what theory expects; the part that is zero stands in the
    legend.

    Returns
    -------
    list of Path
        PNG, SVG, PDF and CSV; empty where no algorithm tells its spectrum.

    Raises
    ------
    ImportError
        If matplotlib is missing (extra ``plot``).
    """
    told = [pair for pair in pairs if (pair[1].get("final") or {}).get("spectrum")]

    def place(pair: Pair) -> tuple[Any, ...]:
        c = pair[0]
        return c.problem_label, c.algorithm_label, c.alpha, c.dimension

    groups = list(grouped(told, place).values())
    if not groups:
        return []
    chosen = [groups[int(i)] for i in np.unique(np.linspace(0, len(groups) - 1, PANELS).round())]
    figure, axes = new_figure(suite.title, len(chosen))
    data: list[dict[str, Any]] = []
    for axis, members in zip(axes, chosen):
        _spectrum_panel(axis, suite, members, theorist, data)
    note = "Eigenvalues of the estimates of all runs, without those that are zero; lines: theory of the algorithm."
    if len(chosen) < len(groups):
        note += f" {len(chosen)} of {len(groups)} combinations of problem, algorithm and sample ratio."
    figure.supxlabel(textwrap.fill(note, 80 * min(3, len(chosen))), **SMALL)
    lay_out(figure)
    return save_figure(figure, folder, "spectrum", data, f"{suite.title}: {note}")


def _spectrum_panel(
    axis: Any, suite: Suite, members: Sequence[Pair], theorist: TheoryCache, data: list[dict[str, Any]]
) -> None:
    cell = members[0][0]
    problem = next(plan.problem for plan in suite.plans if plan.label == cell.problem_label)
    ratio = problem.model.sample_ratio(problem.model.sample_count(cell.alpha, cell.dimension), cell.dimension)
    point = own_point(theorist, problem, cell, ratio, [record for _, record in members])
    expected = None if isinstance(point, str) else point.get("spectrum")
    values = np.concatenate([np.asarray(record["final"]["spectrum"], dtype=float) for _, record in members])
    there = np.abs(values) > ZERO * np.abs(values).max(initial=1e-300)
    zeros = 1 - there.mean()
    low, high = values.min(initial=0.0), values.max(initial=1e-6)
    if expected:
        edges = np.asarray(expected["edges"])
        # A bar is as wide as it takes for some eigenvalues to fall into it. Zero is an edge, and runs of finite size go beyond
        # the ends of the law.
        width = (edges[-1] - edges[0]) / np.clip(there.sum() / PER_BAR, FEWEST, len(edges) - 1)
        below, above = int(np.floor(min(low, edges[0]) / width)), int(np.ceil(max(high, edges[-1]) / width))
        bins = width * np.arange(below, max(above, below + 1) + 1)
    else:
        bins = np.linspace(low, high, BINS + 1)
    weights = np.full(int(there.sum()), 1 / (len(values) * (bins[1] - bins[0])))
    heights, _, _ = axis.hist(
        values[there],
        bins,
        weights=weights,
        color=COLOURS[0],
        alpha=0.4,
        label=f"{len(members)} runs, zero: {zeros:.1%}",
    )
    about = {"problem": cell.problem_label, "algorithm": cell.algorithm_label, "alpha": cell.alpha}
    about |= {"dimension": cell.dimension}
    data += [
        {**about, "what": "runs", "from": a, "to": b, "density": h} for a, b, h in zip(bins[:-1], bins[1:], heights)
    ]
    data.append({**about, "what": "runs", "from": 0, "to": 0, "share": zeros})
    if expected:
        density = np.asarray(expected["mass"]) / np.diff(edges)
        middle = (edges[1:] + edges[:-1]) / 2
        axis.plot(middle, density, color="black", lw=1.4, label=f"theory, zero: {expected['zeros']:.1%}")
        data += [
            {**about, "what": "predicted", "from": a, "to": b, "density": h}
            for a, b, h in zip(edges[:-1], edges[1:], density)
        ]
        data.append({**about, "what": "predicted", "from": 0, "to": 0, "share": expected["zeros"]})
    at = f"α = {cell.alpha:.4g}, {letter(problem.model)} = {cell.dimension}"
    panel_title(axis, f"{literal(cell.problem_label)}, {literal(cell.algorithm_label)}, {at}")
    axis.set_xlabel("eigenvalue")
    axis.set_ylabel("density")
    legend(axis)
    axis.grid(alpha=0.25, lw=0.5)
