"""Online descent at D = 1000 beside its theory, along the whole way: ``python docs/checks/online_paths.py [NAME ...]``.

16 runs of `sgd` on fresh samples from an overlap of 0.2 with every direction of the teacher (0.3 for phase retrieval), through
the plateau and the escape, and theory from the overlaps that they began with: mean MSE of both at some 100 moments, and the
largest relative difference. The start is above chance and the rate small for the size of the batch, because chance in the overlap
decides when a run escapes: from a random start, of overlap ``1/sqrt(D)``, some of 16 runs escape much later than others, and
their mean is known to no better than tens of per cent while it falls.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from smimbench_algorithms.gradient import online_draws
from smimbench_algorithms.sgd import Sgd

import smimbench
from smimbench.backend import get_backend
from smimbench.interfaces import Conditions

D, RUNS = 1000, 16
online_draws.LATENTS = 4e8  # here theory may take a minute


class Square:
    """Phase retrieval, y = z^2."""

    name, version, reference = "square", 1, "check"
    components, symmetry = 1, "signs"
    capabilities = smimbench.Capabilities()

    def forward(self, z, *, rng=None):
        """Label of the latents."""
        return z * z

    def observable(self, y):
        """What the loss compares."""
        return y

    def vjp(self, z, cotangent):
        """Derivative of the label."""
        return 2 * z * cotangent


def softmax(layers):
    """One or two layers."""
    skip = {"skip": 1.0} if layers > 1 else {}
    model = {"name": "sequence-multi-index", "tokens": 2}
    return smimbench.Problem(model, {"name": "softmax", "layers": layers, **skip}, "gaussian")


def retrieval():
    """Phase retrieval."""
    problem = smimbench.Problem(
        {"name": "sequence-multi-index", "tokens": 1}, {"name": "linear", "noise": 0.0}, "gaussian"
    )
    problem.channel = Square()
    return problem


CASES = {
    "phase retrieval": (retrieval, 0.3, {"learning_rate": 0.004, "batch": 4000, "steps": 160}),
    "one layer": (lambda: softmax(1), 0.2, {"learning_rate": 0.1, "batch": 2000, "steps": 80}),
    "two layers": (lambda: softmax(2), 0.2, {"learning_rate": 0.1, "batch": 1000, "steps": 200}),
}


def begin(problem, overlap, rng, state, signal):
    """A state whose factor has exactly this overlap with every direction of the teacher, and the length of a draw."""
    noise = rng.standard_normal(signal.shape)
    noise -= (noise @ signal.T) @ np.linalg.solve(signal @ signal.T, signal)
    factor = overlap * signal + np.sqrt(1 - overlap**2) * noise
    return state._replace(factor=factor, signal=factor)


def compare(name):
    """Run one of the cases, and print its rows of the table."""
    make, overlap, parameters = CASES[name]
    problem, algorithm = make(), Sgd(online=True, loss="squared", **parameters)
    backend, starts, curves = get_backend("numpy"), [], []
    cpu = time.process_time()
    for run in range(RUNS):
        instance, rng = problem.instance(0.01, D, run), np.random.default_rng([1, run])
        data = instance.data(backend)
        state = begin(problem, overlap, rng, algorithm.init(problem, data, rng), instance.signal)
        starts.append(instance.overlaps(state.factor))
        curve = [instance.metrics(state.factor)["mse"]]
        for _ in range(algorithm.steps):
            state, _ = algorithm.step(problem, data, state)
            curve.append(instance.metrics(state.factor)["mse"])
        curves.append(curve)
    runs = np.array(curves)
    spent = time.process_time() - cpu
    alpha = algorithm.steps * algorithm.batch / D
    found = algorithm.theory(problem, alpha, Conditions(dimension=D, starts=tuple(starts)))
    path = found["trajectory"]
    moments = np.array(path["iteration"])
    theory, error = np.array(path["mse"]), np.array(path["mse_error"])
    mean, sem = runs.mean(0)[moments], runs.std(0, ddof=1)[moments] / np.sqrt(RUNS)
    for layer in range(mean.shape[1]):
        off = np.abs(mean[:, layer] / theory[:, layer] - 1)
        worst = int(np.argmax(off))
        z = off * theory[:, layer] / np.hypot(sem[:, layer], error[:, layer])
        print(
            f"| {name}, {parameters['learning_rate']:g}, {parameters['batch']}, overlap {overlap:g}"
            f"{f', layer {layer + 1}' if mean.shape[1] > 1 else ''} | {mean[0, layer]:.3f} to {mean[-1, layer]:.4f} "
            f"| {100 * off[worst]:.2f}% at {theory[worst, layer]:.3f} | {z[worst]:.1f}, at most {z[1:].max():.1f} |"
            f" # {found['method']}, {spent:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    for one in sys.argv[1:] or CASES:
        compare(one)
