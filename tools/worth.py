"""Makes the figure of docs/worth.md: errors of two tuned optimizers, and of message passing, against passes over the data.

python tools/worth.py FOLDER      # two minutes of one core; what lies in FOLDER is not run again
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import smimbench
from smimbench.report.results import Results
from smimbench.report.style import COLORS, plain_matplotlib
from smimbench.run.store import Store
from smimbench.run.theory_solver import TheorySolver
from smimbench.run.tuning import with_tuned_settings

SUITE = """
[suite]
title = "What passes are worth"

[problem]
model   = { name = "sequence-multi-index", tokens = 1 }
channel = { name = "probit", noise = 0.5 }
prior   = { name = "gaussian" }

[grid]
alpha     = [3.0]
dimension = [400]
seeds     = 16

[run]
metrics = ["mse"]

[[algorithms]]
name    = "gamp"
label   = "message passing"
damping = 0.0

[[algorithms]]
name     = "sgd"
label    = "sgd, tuned"
momentum = 0.9
steps    = 300
schedule = "cosine"

[algorithms.tune]
trials        = 16
learning_rate = { low = 0.0001, high = 1.0, log = true }
weight_decay  = { low = 0.003, high = 3.0, log = true }

[[algorithms]]
name     = "adam"
label    = "adam, tuned"
steps    = 300
schedule = "cosine"

[algorithms.tune]
trials        = 16
learning_rate = { low = 0.001, high = 3.0, log = true }
weight_decay  = { low = 0.003, high = 3.0, log = true }
"""
TARGET = Path(__file__).resolve().parent.parent / "docs" / "worth.svg"


def solved(folder: Path) -> Results:
    """Tune and run the suite in a folder, and return its results with their theory."""
    path = folder / "worth.toml"
    path.write_text(SUITE)
    smimbench.tune(path, results=folder)
    smimbench.run(path, results=folder)
    store = Store(folder / "worth")
    suite = with_tuned_settings(smimbench.load_suite(path), store)
    return Results(suite, store, answers=TheorySolver())


def draw(results: Results) -> None:
    """Draw the median errors after every pass, the floor, and for each optimizer the pass of the floor that has its error."""
    with plain_matplotlib():
        from matplotlib.figure import Figure

        figure = Figure((5.6, 3.0), layout="constrained")
        axis = figure.subplots()
    plan = results.suite.plans[0]
    floor = results.answers.floor(plan.problem, 3.0)
    rows = {row.place.algorithm: row for row in results.rows}
    runs: dict[str, list[dict[str, np.ndarray]]] = {}
    for cell, record in results.pairs:
        trajectory = results.store.trajectory(record) or {}
        runs.setdefault(cell.algorithm_label, []).append(trajectory)
    for color, offset, (label, trajectories) in zip(COLORS, (0, -13, 6), runs.items()):
        passes = max((run["iteration"] for run in trajectories), key=len)[1:]
        errors = [
            np.interp(passes, run["iteration"], run["mse"][:, 0])
            for run in trajectories
        ]
        median = np.median(errors, axis=0)
        axis.plot(passes, median, color=color, label=label)
        worth = rows[label].first_order.worth
        if worth is not None:
            axis.plot([worth, passes[-1]], [median[-1]] * 2, ":", color=color, lw=1)
            axis.plot(worth, median[-1], "o", color=color, ms=4)
            place = {"xytext": (6, offset), "textcoords": "offset points"}
            words = f"{label}: worth {worth:.1f} passes"
            axis.annotate(words, (worth, median[-1]), color=color, fontsize=8, **place)
    passes = np.geomspace(1, 300, 200)
    axis.plot(
        passes, floor.after(passes), color="black", label="best first-order method"
    )
    axis.set(
        xscale="log",
        yscale="log",
        xlabel="passes over the data",
        ylabel="squared error (prior mean: 1)",
        ylim=(0.27, 3),
    )
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter(lambda y, _: f"{y:g}" if y in (0.4, 0.6, 2) else "")
    axis.legend(fontsize=8, frameon=False)
    figure.savefig(TARGET, metadata={"Date": None})


def main(words: list[str]) -> None:
    """Make the figure from what is stored in the folder that ``words`` names, or is computed there."""
    draw(solved(Path(words[0])))


if __name__ == "__main__":
    main(sys.argv[1:])
