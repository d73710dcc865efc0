"""Compares online descent at D = 1000 with its theory at every step: ``python tools/checks/online_paths.py FOLDER [NAME ...]``.

16 runs of `sgd` on fresh samples from a given overlap with every direction of the teacher, through the plateau and the escape,
and theory from the overlaps that they began with: mean MSE of both at some 100 moments, and the largest relative difference. Runs
are kept in FOLDER: stop at any time, rerun to continue.

Chance in the overlap decides when a run escapes, and its escape decides its error from then on. What theory itself predicts for
the standard deviation of the mean of 16 runs is printed next to the differences.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
from smimbench_attention.algorithms.gradient.online import fields
from smimbench_attention.algorithms.sgd import Sgd

import smimbench
from smimbench.backend import get_backend
from smimbench.interfaces import Conditions, Overlaps

D, RUNS = 1000, 16
fields.ACCURACY = fields.ACCURACY._replace(
    largest_draw_latents=1e9
)  # here theory may take minutes


def softmax(layers):
    """Return a problem of one or two softmax attention layers."""
    skip = {"skip": 1.0} if layers > 1 else {}
    model = {"name": "sequence-multi-index", "tokens": 2}
    return smimbench.Problem(
        model, {"name": "softmax", "layers": layers, **skip}, "gaussian"
    )


def retrieval():
    """Return the problem of phase retrieval: the label is the square of one latent."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from tests.helpers import Square

    problem = smimbench.Problem(
        {"name": "sequence-multi-index", "tokens": 1},
        {"name": "linear", "noise": 0.0},
        "gaussian",
    )
    problem.channel = Square()
    return problem


CASES = {
    "phase retrieval": (
        retrieval,
        0.3,
        {"learning_rate": 0.004, "batch": 4000, "steps": 160},
    ),
    "one layer": (
        lambda: softmax(1),
        0.2,
        {"learning_rate": 0.1, "batch": 2000, "steps": 80},
    ),
    "two layers": (
        lambda: softmax(2),
        0.2,
        {"learning_rate": 0.1, "batch": 4000, "steps": 200},
    ),
}


def begin(overlap, rng, state, signal):
    """Return the state of an algorithm with a factor that has exactly this ``overlap`` with every direction of the teacher
    (``signal``).
    """
    noise = rng.standard_normal(signal.shape)
    noise -= (noise @ signal.T) @ np.linalg.solve(signal @ signal.T, signal)
    factor = overlap * signal + np.sqrt(1 - overlap**2) * noise
    return state._replace(factor=factor, signal=factor)


def one_run(problem, algorithm, overlap, run):
    """Run an algorithm from a given overlap on the instance number ``run``; return the overlaps at its start, and its MSE
    after every step.
    """
    instance, rng = problem.instance(0.01, D, run), np.random.default_rng([1, run])
    data = instance.data(get_backend("numpy"))
    state = begin(overlap, rng, algorithm.init(problem, data, rng), instance.signal)
    start = [matrix.tolist() for matrix in instance.overlaps(state.factor)]
    curve = [list(instance.metrics(state.factor)["mse"])]
    for _ in range(algorithm.steps):
        state, _ = algorithm.step(problem, data, state)
        curve.append(list(instance.metrics(state.factor)["mse"]))
    return {"start": start, "mse": curve}


def compare(folder, name):
    """Run a case (by ``name``) where runs are missing in the folder, and print its rows of the table: runs, theory, largest
    difference, and what chance alone does to the mean of the runs (``relative_chance``).
    """
    make_problem, overlap, parameters = CASES[name]
    problem, algorithm, stored_runs = (
        make_problem(),
        Sgd(online=True, loss="squared", **parameters),
        [],
    )
    for run in range(RUNS):
        run_path = folder / f"{name.replace(' ', '-')}-{run}.json"
        if not run_path.exists():
            start_time = time.process_time()
            text = json.dumps(one_run(problem, algorithm, overlap, run))
            run_path.write_text(text)
            print(
                f"{run_path.name}: {time.process_time() - start_time:.0f} s", flush=True
            )
        stored_runs.append(json.loads(run_path.read_text()))
    runs = np.array([run["mse"] for run in stored_runs])
    starts = tuple(Overlaps(*map(np.asarray, run["start"])) for run in stored_runs)
    point = algorithm.theory(
        problem,
        algorithm.steps * algorithm.batch / D,
        Conditions(dimension=D, starts=starts),
    )
    trajectory = point.trajectory
    iterations, theory, error = (
        np.array(trajectory[key]) for key in ("iteration", "mse", "mse_error")
    )
    draws = int(point.method.split()[2]) // RUNS
    relative_chance = (
        error * np.sqrt(draws) / theory
    )  # standard deviation of the mean of 16 runs
    mean, sem = (
        runs.mean(0)[iterations],
        runs.std(0, ddof=1)[iterations] / np.sqrt(RUNS),
    )
    for layer in range(mean.shape[1]):
        layer_theory = theory[:, layer]
        deviations = np.abs(mean[:, layer] / layer_theory - 1)
        worst_index = int(np.argmax(deviations))
        z = (
            deviations
            * layer_theory
            / np.maximum(np.hypot(sem[:, layer], error[:, layer]), 1e-300)
        )
        layer_text = f", layer {layer + 1}" if mean.shape[1] > 1 else ""
        largest_chance = relative_chance[:, layer].max()
        print(
            f"| {name}{layer_text} | {parameters['learning_rate']:g} | {parameters['batch']} | {overlap:g} "
            f"| {mean[0, layer]:.3f} to {mean[-1, layer]:.4f} | {100 * largest_chance:.1f}% "
            f"| {100 * deviations[worst_index]:.2f}%, at {layer_theory[worst_index]:.3f} "
            f"| {z[1:].max():.1f} | # {point.method}",
            flush=True,
        )


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:] or CASES:
        compare(folder, name)
