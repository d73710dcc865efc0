"""Compares runs of every algorithm that has a theory, extrapolated to infinite size, with that theory.

``python tools/checks/own_theory.py FOLDER [--minutes 8] [--only NAME ...]`` makes runs at three sizes and keeps them in FOLDER:
stop it at any time, and rerun to continue. ``--table`` prints what there is; docs/predictions.md has the summary of a whole
run.

The mean of a metric at a size is corrected by the size of the teachers, ``|W*|^2`` (for matrices also their trace), whose
means are known: linear regression over the runs. Means at three sizes are continued to infinite size. Theory of online
descent is that of the dimension and the starts of its runs, teachers included, so there the difference from theory is continued,
and only the part of its variance is taken out that the size of the teachers explains.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

import smimbench
from smimbench.backend import get_backend
from smimbench.interfaces import Conditions, Overlaps
from smimbench.numerics.size_laws import extrapolate
from smimbench.registry import build, get_registry
from smimbench.registry.registry import find_metric
from smimbench.run.loop import run_algorithm
from smimbench.suite.schema import RunOptions
from smimbench.theory.predictions import own_theory

METRICS = ("mse", "overlap")
LOW, MIDDLE, LARGE = (
    {60: 1600, 120: 800, 240: 400},
    {120: 1600, 240: 800, 480: 400},
    {250: 512, 500: 320, 1000: 192},
)
MATRICES = {40: 64, 80: 32, 160: 16}
TWICE = {40: 128, 80: 64, 160: 32}


@dataclass(frozen=True)
class Row:
    """One point of the table.

    ``start`` is the overlap with every direction of the teacher that runs of descent begin with. Teachers are orthonormal
    then, and so is what a student begins with next to them: all runs have one start, and theory is solved once.
    """

    problem: tuple
    algorithm: dict
    alpha: float
    sizes: dict = field(default_factory=lambda: LOW)
    start: float | None = None


def low(channel, tokens=1):
    """Return the items (model, channel, prior) of a problem with a signal of low rank."""
    return (
        {"name": "sequence-multi-index", "tokens": tokens},
        channel,
        {"name": "gaussian"},
    )


def matrix(channel, tokens, rho):
    """Return the items (model, channel, prior) of a problem with a matrix signal of width ``rho``."""
    return (
        {"name": "attention-indexed", "tokens": tokens},
        channel,
        {"name": "wishart", "rho": rho},
    )


LINE = low({"name": "linear", "noise": 0.3}, 2)
SIGN = low({"name": "sign"})
PROBIT = low({"name": "probit", "noise": 0.5}, 2)
ONE = low({"name": "softmax", "layers": 1}, 2)
TWO = low({"name": "softmax", "layers": 2, "skip": 1.0}, 2)
BOTH = low({"name": "linear", "noise": 0.2, "components": 2})


def network(noise):
    """Return the channel of a quadratic network: labels linear in a matrix, of a single token."""
    return {"name": "linear", "noise": noise}


def erm(loss, penalty):
    """Return the specification of empirical risk minimization with a convex loss."""
    return {"name": "erm", "loss": loss, "penalty": penalty}


def sgd(rate, batch, steps, **options):
    """Return the specification of gradient descent on fresh samples; ``batch`` is in units of D."""
    return {
        "name": "sgd",
        "learning_rate": rate,
        "batch": batch,
        "steps": steps,
        "online": True,
        **options,
    }


def adam(decay):
    """Return the specification of Adam with weight decay on a factor as wide as the matrix."""
    return {
        "name": "adam",
        "weight_decay": decay,
        "learning_rate": 0.1,
        "schedule": "cosine",
        "steps": 600,
    }


ROWS = {
    "gamp linear": [Row(LINE, {"name": "gamp"}, alpha) for alpha in (0.3, 0.6, 1.2)],
    "gamp probit": [Row(PROBIT, {"name": "gamp"}, alpha) for alpha in (0.5, 1.0, 2.0)],
    "gamp sign": [Row(SIGN, {"name": "gamp"}, 1.5)],
    "erm square 0.1, linear": [
        Row(LINE, erm("square", 0.1), alpha) for alpha in (0.3, 1.0, 2.0)
    ],
    "erm square best, two components": [
        Row(BOTH, erm("square", "optimal"), alpha) for alpha in (0.8, 1.7)
    ],
    "erm square best, sign": [Row(SIGN, erm("square", "optimal"), 1.5)],
    "erm logistic 0.1, sign": [
        *(Row(SIGN, erm("logistic", 0.1), alpha) for alpha in (1.0, 2.0)),
        Row(SIGN, erm("logistic", 0.1), 4.0, MIDDLE),
    ],
    "erm logistic best, probit": [
        Row(PROBIT, erm("logistic", "optimal"), alpha) for alpha in (0.5, 1.0, 2.0)
    ],
    "erm squared-hinge 0.3, sign": [
        Row(SIGN, erm("squared-hinge", 0.3), alpha) for alpha in (0.7, 1.0)
    ]
    + [Row(SIGN, erm("squared-hinge", 0.3), alpha, MIDDLE) for alpha in (2.0, 3.0)],
    "erm squared-hinge best, probit": [
        Row(PROBIT, erm("squared-hinge", "optimal"), alpha) for alpha in (0.6, 1.4)
    ],
    "ridge 1, linear": [
        Row(LINE, {"name": "ridge", "regularisation": 1.0}, alpha)
        for alpha in (0.3, 0.45, 1.5)
    ],
    "ridge best, linear": [
        Row(LINE, {"name": "ridge", "regularisation": "theory"}, alpha)
        for alpha in (0.2, 0.6, 2.0)
    ],
    "spectral, one layer": [
        Row(ONE, {"name": "spectral"}, alpha, LARGE) for alpha in (0.6, 0.5, 0.8, 0.7)
    ],
    "spectral asymmetric, one layer": [
        Row(ONE, {"name": "spectral", "kind": "asymmetric"}, alpha, LARGE)
        for alpha in (0.5, 0.8)
    ],
    "sgd linear": [
        Row(LINE, sgd(0.03, 1 / 6, 30), 5.0),
        Row(LINE, sgd(0.05, 1 / 4, 30, weight_decay=0.5), 7.5),
        Row(LINE, sgd(0.05, 1 / 4, 30, momentum=0.5), 7.5),
    ],
    "sgd probit": [
        Row(PROBIT, sgd(0.05, 1 / 4, 40), 10.0),
        Row(PROBIT, sgd(0.03, 1 / 10, 60, weight_decay=0.2), 6.0),
    ],
    "sgd one layer": [
        Row(ONE, sgd(0.1, 2.0, 40, loss="squared"), 80.0, start=0.3),
        Row(ONE, sgd(0.1, 2.0, 30, loss="squared", spherical=True), 60.0, start=0.3),
    ],
    "sgd two layers": [Row(TWO, sgd(0.1, 1.0, 40, loss="squared"), 40.0, start=0.5)],
    "adam with decay, one token": [
        Row(matrix(network(noise), 1, rho), adam(decay), alpha, sizes)
        for noise, rho, alpha, decay, sizes in (
            (0.3, 0.3, 0.3, 0.6, MATRICES),
            (0.1, 0.1, 0.2, 0.4, TWICE),
            (0.3, 0.5, 0.4, 1.0, MATRICES),
        )
    ],
    "adam with decay, two tokens": [
        Row(matrix(network(noise), 2, rho), adam(decay), alpha, MATRICES)
        for noise, rho, alpha, decay in (
            (0.3, 0.5, 0.3, 0.6),
            (0.3, 0.2, 0.2, 2.0),
            (1.0, 0.3, 0.25, 1.5),
        )
    ],
}


def algorithm_of(row, size):
    """Return the algorithm of a row at dimension ``size``: batches grow with it, a factor is as wide as the matrix."""
    parameters = dict(row.algorithm)
    name = parameters.pop("name")
    if "batch" in parameters:
        parameters["batch"] = round(parameters["batch"] * size)
    if name == "adam":
        parameters["width"] = size
    entry = get_registry().get("algorithm", name, row.problem[0]["name"])
    return build(entry.item, "algorithm", parameters)


def generator(*path):
    """Return the random generator of an attempt of a run, seeded by the integers ``path``."""
    return np.random.default_rng(path)


def begun(overlap, components, dimension, rng):
    """Draw orthonormal directions of a teacher, and a student of their length with this overlap with each of them."""
    directions = np.linalg.qr(rng.standard_normal((dimension, 2 * components)))[
        0
    ].T * np.sqrt(dimension)
    signal, noise = directions[:components], directions[components:]
    return signal, overlap * signal + np.sqrt(1 - overlap**2) * noise


def one_run(row, problem, size, run):
    """Run the algorithm of a row on the instance number ``run`` at dimension ``size``; return its metrics, its start, and
    deviations of the teacher's size from its mean (control variates).
    """
    algorithm, backend = algorithm_of(row, size), get_backend("numpy")
    online = row.algorithm.get("online")
    instance = problem.instance(0.05 if online else row.alpha, size, run)
    data, measured = instance.data(backend), {}
    if row.start is None:
        limits = RunOptions(tolerance=1e-5, max_iterations=1000)
        fresh_generator = partial(generator, size, run)
        attempt = run_algorithm(
            problem, instance, data, algorithm, fresh_generator, limits, backend
        )
        metrics, start = attempt.metrics, list(attempt.start.values())
        measured["status"] = attempt.status.value
    else:
        rng = np.random.default_rng([size, run])
        signal, factor = begun(row.start, problem.components, size, rng)
        instance = replace(instance, signal=signal)
        data = instance.data(backend)
        state = algorithm.init(problem, data, rng)
        state, start = (
            state._replace(factor=factor, signal=factor),
            instance.overlaps(factor),
        )
        for _ in range(algorithm.steps):
            state, _ = algorithm.step(problem, data, state)
        metrics = instance.metrics(algorithm.estimate(state))
    measured |= {name: list(metrics[name]) for name in METRICS}
    if online:
        measured["start"] = [np.asarray(matrix).tolist() for matrix in start]
    signal = instance.signal
    if problem.model.rank == "low":
        measured["teacher"] = (np.sum(signal**2, axis=-1) / size - 1).tolist()
    else:
        rho = row.problem[2]["rho"]
        trace = np.trace(signal, axis1=-2, axis2=-1) / size - np.sqrt(rho)
        measured["teacher"] = [
            *trace.tolist(),
            *(np.sum(signal**2, axis=(-2, -1)) / size - (1 + rho + 1 / size)).tolist(),
        ]
    return measured


def runs_of(path, size):
    """Return the stored runs of a row at dimension ``size``."""
    if not path.exists():
        return []
    return [
        run
        for line in path.read_text().splitlines()
        if (run := json.loads(line))["size"] == size
    ]


def corrected(values, controls):
    """Return the mean of values (n, P) of n runs and its standard error, after regression on control variates (n, k) of mean
    zero.
    """
    design = np.concatenate([np.ones((len(values), 1)), controls], axis=1)
    coefficients = np.linalg.lstsq(design, values, rcond=None)[0]
    residual = values - design @ coefficients
    covariance = np.linalg.inv(design.T @ design)[0, 0]
    return coefficients[0], np.sqrt(
        covariance * np.sum(residual**2, axis=0) / (len(values) - design.shape[1])
    )


def lines(name, row, path):
    """Return the lines of the printed table for one row (problem, algorithm, sample ratio), one for each component:
    extrapolated limit, theory and z of every metric.
    """
    problem = smimbench.Problem(*row.problem)
    online = row.algorithm.get("online")
    sizes, errors = sorted(row.sizes), {metric: [] for metric in METRICS}
    predictions = {}
    for size in sizes:
        runs = runs_of(path, size)
        if len(runs) < 8:
            return []
        first_run = runs[:1] if row.start is not None else runs
        starts = ()
        if online:
            matrices = (map(np.asarray, run["start"]) for run in first_run)
            starts = tuple(Overlaps(*overlaps) for overlaps in matrices)
        if online or not predictions:
            point = own_theory(
                algorithm_of(row, size),
                problem,
                row.alpha,
                Conditions(dimension=size, starts=starts),
            )
            for metric in METRICS:
                theory = find_metric(metric).theory(problem, point.document())
                predictions[metric] = [np.atleast_1d(numbers) for numbers in theory]
        for metric in METRICS:
            values = np.array([run[metric] for run in runs])
            controls = np.empty((len(runs), 0))
            if row.start is None:
                controls = np.array([run["teacher"] for run in runs])
            if online:  # theory knows these very teachers: what is left to chance is less, the mean is what it is
                controls -= controls.mean(0)
            mean, error = corrected(values, controls)
            theory, theory_error = predictions[metric]
            errors[metric].append(
                (mean - theory, np.hypot(error, theory_error if online else 0))
            )
    lines = []
    counts = ", ".join(f"{len(runs_of(path, size))}" for size in sizes)
    for component in range(len(errors["mse"][0][0])):
        shown = []
        for metric in METRICS:
            theory = predictions[metric][0][component]
            fit = extrapolate(
                sizes,
                [theory + difference[component] for difference, _ in errors[metric]],
                [error_of_size[component] for _, error_of_size in errors[metric]],
            )
            theory_errors = predictions[metric][1]
            theory_error = (
                0 if online else theory_errors[min(component, len(theory_errors) - 1)]
            )
            error = np.hypot(fit.error, theory_error)
            shown.append(
                f"{fit.limit:.4f} ± {error:.4f} ({100 * error / theory:.1f}%) | {theory:.4f} "
                f"| {(fit.limit - theory) / error:+.1f}"
            )
        layer = f", {component + 1}" if problem.components > 1 else ""
        lines.append(
            f"| {name}{layer} | {row.alpha:g} | {' | '.join(shown)} | {counts} |"
        )
    return lines


def main():
    """Run what is missing until the time is over, or print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--only", nargs="*", default=[""])
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * arguments.minutes
    for name, rows in ROWS.items():
        if not name.startswith(tuple(arguments.only)):
            continue
        for row_number, row in enumerate(rows):
            path = arguments.folder / f"{name.replace(' ', '-')}-{row_number}.jsonl"
            if arguments.table:
                print("\n".join(lines(name, row, path)), flush=True)
                continue
            problem = smimbench.Problem(*row.problem)
            for size, count in row.sizes.items():
                for run in range(len(runs_of(path, size)), count):
                    if time.monotonic() > end:
                        return
                    line = json.dumps(
                        {"size": size, "run": run, **one_run(row, problem, size, run)}
                    )
                    with path.open("a") as file:
                        file.write(line + "\n")


if __name__ == "__main__":
    main()
