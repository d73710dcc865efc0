"""Fits and draws how time and memory of an iteration grow: results of the suite ``scaling`` to scaling.png and scaling.md.

smimbench run scaling --timing
python tools/scaling.py results/scaling
"""

from __future__ import annotations

import argparse
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import smimbench
from smimbench.run.store import Store

DOCS = Path(__file__).resolve().parent.parent / "docs"
BEGIN, END = "<!-- begin: written by scaling.py -->", "<!-- end -->"
# What every axis is, and the power of the time that the count of operations (or of bytes read) says.
AXES = {
    "d": ("dimension d (n = 0.1 d²)", 4.0),
    "n": ("samples n", 1.0),
    "T": ("tokens T", 1.0),
    "D": ("dimension D (n = D)", 2.0),
    "P": ("directions P", 1.0),
    "nodes": ("1 / accuracy of the integrals", None),
}
LARGEST = 3  # points of a fit: the largest sizes, where constants no longer show


class Curve(NamedTuple):
    """Scaling along one axis (such as D): sizes ``x``, CPU seconds per iteration, peak memory and inputs in bytes, fractions
    of the machine's peak rate, and what limits them (``bound``).
    """

    x: np.ndarray
    seconds: np.ndarray
    memory: np.ndarray
    inputs: np.ndarray
    fractions: list[float | None]
    bound: str | None


def read(folder: Path) -> tuple[dict[str, Curve], dict[str, Any]]:
    """Read the curves by axis from results of the suite ``scaling`` in a folder, and the run.json of the run."""
    store = Store(folder)
    records = {record.key: record for record in store.load().values()}
    suite = smimbench.load_suite("scaling")
    timings: dict[str, list[tuple[float, ...]]] = {}
    bounds: dict[str, str] = {}
    for cell in suite.cells():
        record = records.get(cell.key)
        if record is None or not record.iterations:
            continue
        axis = cell.problem_label.partition(":")[0]
        sample_count = record.samples
        sizes = {
            "d": cell.dimension,
            "n": sample_count,
            "T": cell.problem["model"]["tokens"],
            "D": cell.dimension,
            "P": cell.problem["channel"].get("components", 1),
            "nodes": 1 / cell.problem["channel"].get("accuracy", 1.0),
        }
        timing = record.timing
        from smimbench.backend.machine import peak_fraction

        seconds = timing.cpu_seconds / record.iterations
        fraction = np.nan
        if timing.ceilings and timing.cost:
            cost, dtype = asdict(timing.cost), cell.run.dtype
            rate_fraction = peak_fraction(seconds, cost, timing.ceilings, dtype)
            if rate_fraction:
                bounds[axis], fraction = rate_fraction.bound, rate_fraction.value
        inputs = 8 * sample_count * cell.problem["model"]["tokens"] * cell.dimension
        timings.setdefault(axis, []).append(
            (sizes[axis], seconds, timing.peak_memory, inputs, fraction)
        )
    curves = {}
    for axis, points in timings.items():
        x, seconds, memory, inputs, fractions = (
            np.array(values) for values in zip(*sorted(points))
        )
        shares = [
            None if np.isnan(rate_fraction) else float(rate_fraction)
            for rate_fraction in fractions
        ]
        bound = bounds.get(axis)
        curves[axis] = Curve(x, seconds, memory, inputs, shares, bound)
    return curves, store.read_run_json()


def slope(x: np.ndarray, y: np.ndarray) -> float:
    """Fit the power of y in x, from the largest sizes."""
    return float(np.polyfit(np.log(x[-LARGEST:]), np.log(y[-LARGEST:]), 1)[0])


def memory_law(curves: dict[str, Curve]) -> tuple[float, float]:
    """Fit the peak memory as a constant plus a factor times the bytes of the inputs, over the axes that change the inputs."""
    chosen = [curves[axis] for axis in ("d", "n", "T", "D") if axis in curves]
    inputs = np.concatenate([curve.inputs for curve in chosen])
    memory = np.concatenate([curve.memory for curve in chosen])
    factor, constant = np.polyfit(inputs, memory, 1)
    return float(constant), float(factor)


def table(curves: dict[str, Curve], shared: dict[str, Any]) -> str:
    """Return the page's table of times, powers and memory by axis, in Markdown; ``shared`` is the run.json of the run."""
    info = shared["machine"]
    shared = {"git_commit": "unknown", **shared}
    lines = [
        f"Machine: {info['processor']}, {info['cores']} cores, {', '.join(info['blas'])}; one thread; "
        f"commit {shared['git_commit']}.",
        "",
        "| axis | sizes | CPU time of an iteration | fitted power | counted power | part of ceiling, largest | peak memory |",
        "|---|---|---|---|---|---|---|",
    ]
    for axis, (name, counted) in AXES.items():
        if axis not in curves:
            continue
        curve = curves[axis]
        sizes = f"{curve.x[0]:.4g} to {curve.x[-1]:.4g}"
        times = f"{1e3 * curve.seconds[0]:.3g} to {1e3 * curve.seconds[-1]:.3g} ms"
        note = (
            ""
            if curve.fractions[-1] is None or counted is None
            else f"{100 * curve.fractions[-1]:.0f}% of {curve.bound}"
        )
        memory = f"{curve.memory[0] / 2**20:.0f} to {curve.memory[-1] / 2**20:.0f} MB"
        power = "" if counted is None else f"{counted:g}"
        lines.append(
            f"| {name} | {sizes} | {times} | {slope(curve.x, curve.seconds):.2f} | {power} | {note} | {memory} |"
        )
    constant, factor = memory_law(curves)
    lines += [
        "",
        f"Peak memory: {constant / 2**20:.0f} MB + {factor:.2f} times the inputs (linear fit over d, n, T and D).",
    ]
    return "\n".join(lines)


def draw(curves: dict[str, Curve], path: Path) -> None:
    """Draw time and memory against size on logarithmic axes, a panel for each axis of scaling, into the file ``path``."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullFormatter

    figure = Figure(figsize=(9.6, 5.4), layout="constrained")
    FigureCanvasAgg(figure)
    for panel, (axis, (name, counted)) in zip(
        figure.subplots(2, 3).ravel(), AXES.items()
    ):
        if axis not in curves:
            panel.set_visible(False)
            continue
        curve = curves[axis]
        fitted = slope(curve.x, curve.seconds)
        panel.loglog(curve.x, 1e3 * curve.seconds, "o", color="C0")
        line = curve.seconds[-1] * (curve.x / curve.x[-1]) ** fitted
        panel.loglog(
            curve.x,
            1e3 * line,
            "-",
            color="C0",
            lw=1,
            label=f"time, power {fitted:.2f}" + (f" ({counted:g})" if counted else ""),
        )
        panel.set_xlabel(name, fontsize=8)
        panel.set_ylabel("CPU ms per iteration", fontsize=8, color="C0")
        memory = panel.twinx()
        memory.loglog(
            curve.x, curve.memory / 2**20, "s", color="C1", ms=3.5, mfc="white"
        )
        memory.set_ylabel("peak memory, MB", fontsize=8, color="C1")
        panel.legend(fontsize=7, frameon=False, loc="upper left")
        memory.set_ylim(50, 2000)
        for side_axis, axes in (
            (panel, (panel.xaxis, panel.yaxis)),
            (memory, (memory.yaxis,)),
        ):
            side_axis.tick_params(labelsize=7, which="both")
            for scaled_axis in axes:
                scaled_axis.set_major_formatter(
                    FuncFormatter(lambda value, _: f"{value:g}")
                )
                scaled_axis.set_minor_formatter(NullFormatter())
        panel.set_xticks([], minor=True)
        panel.set_xticks(curve.x)
        panel.grid(alpha=0.25, lw=0.5)
    figure.savefig(path, dpi=90)


def main() -> None:
    """Read the results and write the figure and the table of the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path)
    options = parser.parse_args()
    curves, shared = read(options.results)
    if not curves:
        raise SystemExit(
            f"{options.results}: no results of the suite scaling; run 'smimbench run scaling' first"
        )
    draw(curves, DOCS / "scaling.png")
    page = DOCS / "scaling.md"
    text = page.read_text(encoding="utf-8")
    generated_block = f"{BEGIN}\n{table(curves, shared)}\n{END}"
    page.write_text(
        re.sub(
            f"{re.escape(BEGIN)}.*{re.escape(END)}",
            lambda _: generated_block,
            text,
            flags=re.DOTALL,
        ),
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
