"""Spectra of estimates: eigenvalues of the runs as a histogram, with the predicted density."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.report.charts import Chart, Panel, Series, table
from smimbench.report.figures import PANELS
from smimbench.report.labels import grouped, letter
from smimbench.report.learning_curves import spread
from smimbench.report.rows import own_point
from smimbench.report.style import COLORS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smimbench.run.theory_cache import TheoryCache
    from smimbench.suite.cells import Cell, Suite

__all__ = ["spectrum_chart"]

Pair = tuple["Cell", dict[str, Any]]


def spectrum_chart(suite: Suite, pairs: Sequence[Pair], cache: TheoryCache) -> Chart | None:
    """One panel per problem, algorithm, sample ratio and dimension whose records hold a spectrum; None without any.

    Bars are the eigenvalues of all runs that are not zero, a line what theory predicts; the share that is zero stands in the
    legend.
    """
    known = [pair for pair in pairs if (pair[1].get("final") or {}).get("spectrum")]
    groups = list(
        grouped(known, lambda p: (p[0].problem_label, p[0].algorithm_label, p[0].alpha, p[0].dimension)).values()
    )
    if not groups:
        return None
    chosen = spread(groups, PANELS)
    note = "Eigenvalues of the estimates of all runs, without those that are zero; lines: predicted."
    if len(chosen) < len(groups):
        note += f" {len(chosen)} of {len(groups)} combinations of problem, algorithm and sample ratio."
    panels = [_spectrum_panel(suite, members, cache) for members in chosen]
    return Chart("spectrum", suite.title, panels, f"{suite.title}: {note}", note)


def _spectrum_panel(suite: Suite, members: Sequence[Pair], cache: TheoryCache) -> Panel:
    cell = members[0][0]
    problem = next(plan.problem for plan in suite.plans if plan.label == cell.problem_label)
    ratio = problem.model.sample_ratio(problem.model.sample_count(cell.alpha, cell.dimension), cell.dimension)
    point = own_point(cache, problem, cell, ratio, [record for _, record in members])
    expected = None if isinstance(point, str) else point.get("spectrum")
    values = np.concatenate([np.asarray(record["final"]["spectrum"], dtype=float) for _, record in members])
    there = np.abs(values) > 1e-9 * np.abs(values).max(initial=1e-300)
    zeros = 1 - there.mean()
    low, high = values.min(initial=0.0), values.max(initial=1e-6)
    if expected:
        edges = np.asarray(expected["edges"])
        # A bar holds eight eigenvalues on average. Zero is an edge, and runs of finite size go beyond the ends of the law.
        width = (edges[-1] - edges[0]) / np.clip(there.sum() / 8, 10, len(edges) - 1)
        below, above = int(np.floor(min(low, edges[0]) / width)), int(np.ceil(max(high, edges[-1]) / width))
        bins = width * np.arange(below, max(above, below + 1) + 1)
    else:
        bins = np.linspace(low, high, 41)
    heights = np.histogram(values[there], bins)[0] / (len(values) * (bins[1] - bins[0]))
    about = {"problem": cell.problem_label, "algorithm": cell.algorithm_label, "alpha": cell.alpha}
    about |= {"dimension": cell.dimension}
    place = f"{cell.problem_label}, {cell.algorithm_label}, α = {cell.alpha:.4g}"

    def rows(what: str, ends: Any, density: Any, share: float) -> list[dict[str, Any]]:
        own = table({**about, "what": what}, **{"from": ends[:-1], "to": ends[1:], "density": density})
        return [*own, {**about, "what": what, "from": 0, "to": 0, "share": share}]

    style = {"color": COLORS[0], "alpha": 0.4}
    series = [Series(f"{place}: {len(members)} runs, zero: {zeros:.1%}", bins, heights, style,
                     rows("runs", bins, heights, zeros), "bars")]  # fmt: skip
    if expected:
        density = np.asarray(expected["mass"]) / np.diff(edges)
        series.append(Series(f"{place}: predicted, zero: {expected['zeros']:.1%}", (edges[1:] + edges[:-1]) / 2, density,
                             {"color": "black", "lw": 1.4}, rows("predicted", edges, density, expected["zeros"])))  # fmt: skip
    title = f"{place}, {letter(problem.model)} = {cell.dimension}"
    return Panel(title, "eigenvalue", "density", series, cell.problem_label)
