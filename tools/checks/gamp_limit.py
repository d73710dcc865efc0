"""Compares GAMP on matrices, extrapolated to infinite size, with theory: ``python tools/checks/gamp_limit.py FOLDER [SIZE]``.

27 points: softmax, hardmax and linear labels of two tokens, three sample ratios and three widths each, at d = 50, 100, 200 and
400; with SIZE only up to that. What has been run is kept in FOLDER: stop it at any time, and rerun to continue. ``--table``
prints what there is. docs/how-we-measure.md has the table of a whole run.
"""

from __future__ import annotations

import sys
from pathlib import Path

import smimbench

SEEDS = {50: 20, 100: 10, 200: 4, 400: 2}
RHOS = (0.1, 0.5, 2)
LABELS = {
    "softmax": ('name = "softmax"', (0.05, 0.1, 0.15)),
    "hardmax": ('name = "hardmax"', (0.1, 0.3, 1.0)),
    "linear": ('name = "linear", noise = 0.1', (0.05, 0.1, 0.2)),
}


def suite(folder, name, rho, sizes):
    """Write the suite of one kind of labels (``name``) and one width ``rho`` of the signal at some dimensions (``sizes``) to
    the folder, and return its path.
    """
    channel, alphas = LABELS[name]
    path = folder / f"{name}-{rho:g}.toml"
    path.write_text(
        f"""[suite]
title = "GAMP continued to infinite size: {name}, rho {rho:g}"

[problem]
label   = "{name}, rho {rho:g}"
model   = {{ name = "attention-indexed", tokens = 2 }}
channel = {{ {channel} }}
prior   = {{ name = "wishart", rho = {rho} }}

[grid]
alpha     = {list(alphas)}
dimension = {list(sizes)}
seeds     = {[SEEDS[size] for size in sizes]}

[[algorithms]]
name = "gamp"
"""
    )
    return path


def table(folder):
    """Print a row for each problem and sample ratio: mean MSE at every dimension, extrapolated limit, theory, their ratio
    and z.
    """
    print(
        "| problem | alpha | "
        + " | ".join(f"d = {size}" for size in SEEDS)
        + " | limit | theory | limit / theory | z |"
    )
    print("|---|---|" + "---|" * (len(SEEDS) + 4))
    for name in LABELS:
        for rho in RHOS:
            path = suite(folder, name, rho, SEEDS)
            rows = [
                row
                for row in smimbench.show(path, results=folder / "results")
                if row["metric"] == "mse"
            ]
            for extrapolation in smimbench.extrapolate(rows):
                mean_by_dimension = {
                    row["dimension"]: f"{row['mean']:.4f}"
                    + (f"({row['sem']:.4f})" if row["sem"] is not None else "")
                    for row in rows
                    if abs(row["nominal_alpha"] / extrapolation["alpha"] - 1) < 0.01
                }
                if extrapolation["refusal"]:
                    continue
                ratio = (
                    f"{extrapolation['value'] / extrapolation['theory']:.3f}"
                    if extrapolation["theory"] > 1e-6
                    else ""
                )
                limit = f"{extrapolation['value']:.4f}({extrapolation['error']:.4f})"
                cells = [mean_by_dimension.get(size, "") for size in SEEDS] + [
                    limit,
                    f"{extrapolation['theory']:.4f}",
                    ratio,
                    f"{extrapolation['z']:+.1f}",
                ]
                print(
                    f"| {extrapolation['problem']} | {extrapolation['alpha']:g} | {' | '.join(cells)} |"
                )


if __name__ == "__main__":
    folder, *sizes = (word for word in sys.argv[1:] if not word.startswith("--"))
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if "--table" not in sys.argv:
        largest = int(sizes[0]) if sizes else max(SEEDS)
        for size in (50, 100, 200, 400):
            for name in LABELS:
                for rho in RHOS:
                    if size <= largest:
                        dimensions = [
                            dimension for dimension in SEEDS if dimension <= size
                        ]
                        smimbench.run(
                            suite(folder, name, rho, dimensions),
                            results=folder / "results",
                        )
    table(folder)
