"""Counts how runs of GAMP end on a plain grid of problems: ``python tools/checks/gamp_grid.py FOLDER``.

Every part is a suite in FOLDER, smallest sizes first. What has been run is kept there: stop it at any time, and start it again to
go on. ``--table`` prints what there is. docs/how-we-measure.md has the table of a whole run.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from pathlib import Path

import smimbench

SEEDS = 20
RHOS = (0.1, 0.5, 2)
ATTENTION = {
    "softmax, T = 2": ('name = "softmax"', 2, (0.02, 0.05, 0.1, 0.15, 0.2, 0.25)),
    "softmax, T = 4": ('name = "softmax"', 4, (0.005, 0.01, 0.02, 0.03, 0.04, 0.05)),
    "linear, T = 2": ('name = "linear", noise = 0.1', 2, (0.02, 0.05, 0.1, 0.15, 0.2)),
    "hardmax, T = 2": ('name = "hardmax"', 2, (0.03, 0.1, 0.3, 1.0)),
}
PARTS = {
    "attention-50": 50,
    "attention-100": 100,
    "layers-100": 100,
    "layers-300": 300,
    "layers-1000": 1000,
}


def problems(part):
    """Return the tables ``[[problems]]`` of a part of the grid, by the part's name."""
    if part.startswith("layers"):
        return [
            '[[problems]]\nlabel = "two layers"\nmodel = { name = "sequence-multi-index", tokens = 2 }\n'
            'channel = { name = "softmax", layers = 2, skip = 1.0 }\nprior = { name = "gaussian" }\n'
            "grid = { alpha = [0.3, 0.5, 0.9, 1.2] }\n"
        ]
    return [
        f'[[problems]]\nlabel = "{name}, rho {rho:g}"\nmodel = {{ name = "attention-indexed", tokens = {tokens} }}\n'
        f'channel = {{ {channel} }}\nprior = {{ name = "wishart", rho = {rho} }}\ngrid = {{ alpha = {list(alphas)} }}\n'
        for name, (channel, tokens, alphas) in ATTENTION.items()
        for rho in RHOS
    ]


def suite(folder, part):
    """Write the suite of a part of the grid to the folder, and return its path."""
    path = folder / f"{part}.toml"
    text = f'[suite]\ntitle = "GAMP on a plain grid: {part}"\n\n' + "\n".join(
        problems(part)
    )
    path.write_text(
        f'{text}\n[grid]\ndimension = [{PARTS[part]}]\nseeds = {SEEDS}\n\n[[algorithms]]\nname = "gamp"\n'
    )
    return path


def records(folder, part):
    """Return the stored records of a part of the grid."""
    paths = sorted((folder / "results" / part).glob("*.json"))
    return [
        record for path in paths if "status" in (record := json.loads(path.read_text()))
    ]


def table(folder):
    """Print how many runs ended in which way, and every grid point where not all runs are ``ok``."""
    counts, points = defaultdict(Counter), defaultdict(Counter)
    for part, size in PARTS.items():
        for record in records(folder, part):
            name, status = record["problem"], record["status"]
            counts[name.split(", rho")[0], size][status] += 1
            points[name, record["cell"]["alpha"], size][status] += 1
    print(
        "| problem | D | runs | ok | not converged | diverged | other |\n|---|---|---|---|---|---|---|"
    )
    for (name, size), errors in counts.items():
        run_count = sum(errors.values())
        ok, not_converged, diverged = (
            errors[status] for status in ("ok", "not-converged", "diverged")
        )
        other = run_count - ok - not_converged - diverged
        print(
            f"| {name} | {size} | {run_count} | {ok} ({100 * ok / run_count:.1f}%) | {not_converged} | {diverged} | {other} |"
        )
    print(
        "\nPoints where not every run ended `ok`:\n\n| problem | alpha | D | runs | ok |\n|---|---|---|---|---|"
    )
    for (name, alpha, size), errors in sorted(points.items()):
        if errors["ok"] < sum(errors.values()):
            print(
                f"| {name} | {alpha:g} | {size} | {sum(errors.values())} | {errors['ok']} |"
            )


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    if "--table" not in sys.argv:
        for part in PARTS:
            smimbench.run(suite(folder, part), results=folder / "results")
    table(folder)
