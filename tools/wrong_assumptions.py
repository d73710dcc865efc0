"""Draws the figure of wrong-assumptions.md: error over the optimal one against the assumed parameter, theory and runs.

smimbench run wrong-assumptions
python tools/wrong_assumptions.py results/wrong-assumptions
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

import smimbench
from smimbench.interfaces import Conditions
from smimbench.problem.problem import AlgorithmWithAssumption
from smimbench.run.store import Store
from smimbench.suite.reader import Suite
from smimbench.theory import competing, own_theory

PANELS = {
    "noise": ("channel", (0.02, 5.0)),
    "beta": ("channel", (0.4, 2.5)),
    "rho": ("prior", (0.05, 1.5)),
}
POINTS = 24
TICKS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


def curve(
    suite: Suite, label: str, kind: str, name: str, values: np.ndarray
) -> np.ndarray:
    """Compute the error that theory predicts for GAMP over the Bayes-optimal one, on the problem ``label``, if it assumes
    other ``values`` of the parameter ``name`` of an item (``kind``); NaN where runs are predicted not to converge.
    """
    from smimbench_attention.algorithms.gamp import Gamp, assumed, assumed_theory

    plan = next(plan for plan in suite.plans if plan.label == label)
    optimal_error = float(competing(plan.problem, plan.alphas)[0][0].V[0, 0])
    assumed.ACCURACY = assumed_theory.ACCURACY = assumed.ACCURACY._replace(
        latent_points=2**10, point_sets=2, stationary_change=1e-6
    )  # enough for a line
    ratios = []
    for value in values:
        algorithm = AlgorithmWithAssumption(Gamp(), {kind: {name: float(value)}})
        point = own_theory(algorithm, plan.problem, plan.alphas[0], Conditions())
        ratios.append(
            np.nan
            if isinstance(point, str)
            else float(np.atleast_1d(point.mse)[0]) / optimal_error
        )
    return np.array(ratios)


def runs(
    suite: Suite, folder: Path
) -> dict[tuple[str, str, float], tuple[float, float]]:
    """Compute mean and standard error of ratios of errors of runs with wrong to those with right assumptions, paired by
    instance, by problem, parameter and value, at the largest dimension.
    """
    errors: dict[Any, dict[Any, float]] = {}
    records, largest = (
        Store(folder).load(),
        {plan.label: max(plan.dimensions) for plan in suite.plans},
    )
    for cell in suite.cells():
        record = records.get(cell.key)
        if (
            record is None
            or cell.dimension < largest[cell.problem_label]
            or cell.algorithm["name"] != "gamp"
        ):
            continue
        if record.status != "ok":
            continue
        tables = cell.algorithm.get("assumed", {})
        changes = [
            (name, value) for table in tables.values() for name, value in table.items()
        ]
        key = (cell.problem_label, *(changes[0] if changes else ("", 0.0)))
        errors.setdefault(key, {})[cell.replicate] = record.metrics["mse"][0]
    means = {}
    for key, errors_of_setting in errors.items():
        reference = errors.get((key[0], "", 0.0), {})
        ratios = np.array(
            [
                errors_of_setting[replicate] / reference[replicate]
                for replicate in errors_of_setting.keys() & reference.keys()
            ]
        )
        if key[1] and len(ratios) > 1:
            means[key] = (
                float(ratios.mean()),
                float(ratios.std(ddof=1) / len(ratios) ** 0.5),
            )
    return means


def main() -> None:
    """Draw the figure of the page from the runs in a folder and from theory."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    suite = smimbench.load_suite("wrong-assumptions")
    measured = runs(suite, folder)
    figure, axes = plt.subplots(
        1, 3, figsize=(10, 3.4), sharey=True, layout="constrained"
    )
    for axis, (name, (kind, (low, high))) in zip(axes, PANELS.items()):
        for color, plan in zip(("tab:blue", "tab:orange", "tab:green"), suite.plans):
            true_value = plan.problem.spec[kind].get(name)
            if true_value is None:
                continue
            values = np.unique(np.append(np.geomspace(low, high, POINTS), true_value))
            axis.plot(
                values,
                curve(suite, plan.label, kind, name, values),
                color=color,
                label=plan.label,
            )
            axis.axvline(true_value, color="0.8", zorder=0)
            points = [
                (value, *y)
                for (label, parameter, value), y in measured.items()
                if (label, parameter) == (plan.label, name)
            ]
            if points:
                x, y, error = np.array(sorted(points)).T
                axis.errorbar(x, y, error, fmt="o", ms=4, color=color)
        axis.set(
            xscale="log",
            xlabel=f"assumed {'rank / d' if name == 'rho' else name}",
            ylim=(0.95, 3.0),
        )
        axis.xaxis.set_major_locator(
            FixedLocator([tick for tick in TICKS if low <= tick <= high])
        )
        axis.xaxis.set_major_formatter(ScalarFormatter())
        axis.xaxis.set_minor_locator(NullLocator())
        axis.legend(frameon=False, fontsize=8)
    axes[0].set_ylabel("error / optimal")
    figure.savefig(
        Path(__file__).resolve().parent.parent / "docs" / "wrong-assumptions.svg",
        metadata={"Date": None},
    )


if __name__ == "__main__":
    main()
