"""Tests whether intervals of extrapolated values hold the truth: ``python tools/checks/extrapolation.py FOLDER [--cases 200]``.

Random problems of both models, algorithms whose limit is known exactly, three to five random sizes and numbers of runs; of every
case one metric. Runs are kept in FOLDER: stop it at any time, and rerun to continue. 200 cases take 5 minutes on one
core. results/checks/extrapolation.md has the table of a whole run.
"""

from __future__ import annotations

import argparse
import json
import math
import warnings
from pathlib import Path

import numpy as np

import smimbench

ROOT = 28
GROUPS = {
    "vectors, gamp": (
        "linear",
        "linear",
        "sign",
        "sign",
        "probit",
        "probit",
        "hardmax",
    ),
    "vectors, others": ("ridge", "erm", "logistic", "hinge", "spectral", "online"),
    "matrices, gamp": ("softmax", "softmax", "hardmax", "linear", "linear"),
    "matrices, others": ("ridge", "nuclear", "adam"),
}
SUITE = """[suite]
title = "{kind}"
[problem]
label   = "{kind}"
model   = {{ name = "{model}", tokens = {tokens} }}
channel = {{ {channel} }}
prior   = {{ {prior} }}
[grid]
alpha     = [{alpha}]
dimension = {sizes}
seeds     = {seeds}
[[algorithms]]
{algorithm}
[run]
metrics        = {metrics}
max_iterations = 1000
"""


def between(rng, low, high):
    """Draw a number between ``low`` and ``high``, uniform on a logarithmic scale, to three digits."""
    return float(f"{math.exp(rng.uniform(math.log(low), math.log(high))):.3g}")


def random_suite(rng):
    """Draw a random case with ``rng``: its group of algorithms, and its suite as text."""
    group = str(rng.choice(list(GROUPS), p=[0.25, 0.25, 0.4, 0.1]))
    kind = str(rng.choice(GROUPS[group]))
    is_matrix, is_gamp = group.startswith("matrices"), group.endswith("gamp")
    tokens = int(rng.integers(1, 4))
    noise, penalty = between(rng, 0.05, 1), between(rng, 0.1, 2)
    algorithm = 'name = "gamp"'
    if is_matrix:
        tokens = (
            tokens if kind in ("linear", "ridge", "nuclear", "adam") else max(tokens, 2)
        )
        channel_of_kind = {
            "softmax": f'name = "softmax", beta = {between(rng, 0.5, 2)}',
            "hardmax": 'name = "hardmax"',
        }
        channel_text = channel_of_kind.get(kind, f'name = "linear", noise = {noise}')
        alpha = between(rng, *{"nuclear": (0.15, 0.5)}.get(kind, (0.08, 0.8))) / (
            tokens * (tokens + 1) / 2
        )
        prior = f'name = "wishart", rho = {between(rng, 0.2, 2)}'
    else:
        tokens = {"sign": 1, "logistic": 1, "spectral": 2, "hardmax": 2}.get(
            kind, tokens
        )
        probit = f'name = "probit", noise = {between(rng, 0.2, 1)}'
        channel_of_kind = {"sign": 'name = "sign"', "logistic": 'name = "sign"', "probit": probit, "hinge": probit,
                   "online": probit, "hardmax": 'name = "hardmax"', "spectral": 'name = "softmax", layers = 1'}  # fmt: skip
        channel_text = channel_of_kind.get(kind, f'name = "linear", noise = {noise}')
        ratio_ranges = {"hardmax": (1.2, 6), "spectral": (0.4, 1)}
        alpha = (
            between(rng, *ratio_ranges[kind])
            if kind in ratio_ranges
            else between(rng, 0.3, 4) / tokens
        )
        prior = 'name = "gaussian"'
    if not is_gamp:
        losses = {"erm": "square", "logistic": "logistic", "hinge": "squared-hinge"}
        rate, batch, steps = (
            between(rng, 0.02, 0.1),
            int(rng.integers(5, 40)),
            int(rng.integers(20, 100)),
        )
        online = f'name = "sgd"\nonline = true\nlearning_rate = {rate}\nbatch = {batch}\nsteps = {steps}'
        adam = f'name = "adam"\nlearning_rate = 0.1\nschedule = "cosine"\nsteps = 400\nweight_decay = {between(rng, 0.4, 2)}'
        algorithm = {
            "ridge": f'name = "ridge"\nregularisation = {penalty}', "nuclear": 'name = "nuclear"\nregularisation = "optimal"',
            "spectral": 'name = "spectral"', "online": online, "adam": adam,
        }.get(kind) or f'name = "erm"\nloss = "{losses[kind]}"\npenalty = {penalty}'  # fmt: skip
    smallest = between(rng, *((15, 30) if is_matrix else (40, 130)))
    growth = rng.uniform(1.3, 2.2, rng.choice([2, 3, 4], p=[0.7, 0.2, 0.1]))
    sizes = (
        np.minimum(smallest * np.cumprod([1, *growth]), 64 if is_matrix else 400)
        .round()
        .astype(int)
    )
    sizes = sorted(set(sizes.tolist()))
    is_slow = kind in ("hardmax", "nuclear", "adam") or (
        kind == "softmax" and tokens == 3
    )
    count_factor, largest_count = (
        rng.choice([1, 0.7, 0.5]),
        between(rng, 4, 6 if is_slow else 20),
    )
    return group, SUITE.format(
        kind=kind, model="attention-indexed" if is_matrix else "sequence-multi-index", tokens=tokens, channel=channel_text,
        prior=prior, alpha=f"{alpha:.4g}", sizes=sizes,
        seeds=[max(2, round(largest_count * count_factor**size_index)) for size_index in range(len(sizes))],
        algorithm=algorithm, metrics='["mse", "overlap", "nishimori"]' if is_gamp else '["mse", "overlap"]',
    )  # fmt: skip


def case(folder, number):
    """Run a case, given by number, in the folder unless it is stored, and return one extrapolated value, chosen at random;
    None if no value of its algorithm has a prediction above 0.
    """
    path = folder / f"{number}.json"
    if not path.exists():
        group, text = random_suite(np.random.default_rng([ROOT, number]))
        suite = folder / f"case-{number}.toml"
        suite.write_text(text)
        rows = list(smimbench.run(suite, results=folder / "results", workers=1))
        path.write_text(json.dumps({"group": group, "rows": rows}))
    stored = json.loads(path.read_text())
    limits = smimbench.extrapolate(stored["rows"])
    predicted = [
        limit
        for limit in limits
        if limit["own_theory"] is not None and limit["theory"] > 1e-3
    ]
    if not predicted:
        return None
    chosen_limit = predicted[
        np.random.default_rng([ROOT, number, 1]).integers(len(predicted))
    ]
    return {**chosen_limit, "group": stored["group"]}


def interval(limit):
    """Return half the width of the 95% confidence interval of an extrapolated value (``limit``), errors of theory included."""
    from scipy.special import stdtrit

    return float(stdtrit(min(limit["error_dof"], 1e9), 0.975)) * math.hypot(
        limit["error"], limit["theory_error"] or 0.0
    )


def line(name, cases):
    """Return a row of the table for a group of cases: how many have an extrapolated value, and how often theory lies in the
    interval.
    """
    extrapolated = [limit for limit in cases if not limit["refusal"]]
    if not extrapolated:
        return f"| {name} | {len(cases)} | 0 | | | |"
    inside_count = sum(
        abs(limit["difference"]) <= interval(limit) for limit in extrapolated
    )
    far_count = sum(abs(limit["z"]) > 3 for limit in extrapolated)
    median_error = np.median(
        [limit["error"] / abs(limit["value"]) for limit in extrapolated]
    )
    inside_text = f"{inside_count} ({100 * inside_count / len(extrapolated):.1f}%)"
    return f"| {name} | {len(cases)} | {len(extrapolated)} | {inside_text} | {far_count} | {100 * median_error:.1f}% |"


def main():
    """Run the cases that are missing, and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cases", type=int, default=200)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    cases, number = [], 0
    while len(cases) < arguments.cases:
        limits = case(arguments.folder, number)
        cases += [] if limits is None else [limits]
        number += 1
    print(
        "| what | cases | with a limit | theory in the 95% interval | abs(z) > 3 | median error |\n|---|---|---|---|---|---|"
    )
    for name in GROUPS:
        print(line(name, [limit for limit in cases if limit["group"] == name]))
    for name in ("mse", "overlap", "nishimori"):
        print(line(name, [limit for limit in cases if limit["metric"] == name]))
    print(line("all", cases))


if __name__ == "__main__":
    main()
