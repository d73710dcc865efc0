"""The overlaps of two layers against plain draws of teacher, label and posterior, at thirty sample ratios.

At each printed overlap latents, truth and label are drawn independently, with pseudo-random numbers, without control variates,
weights or interpolation; the channel's posterior says what the information is there, and one Newton step in the logarithms of
the effective signal-to-noise ratios says where the fixed point is. Its slope is that of a sixteenth of the same draws. Eight
million draws of a point are about a minute of one core.

    python tools/checks/two_layer_curve.py [draws] [part/parts]

``2/3`` takes every third sample ratio, from the second on; nodes of the curve are kept under ``results`` for the other parts.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from smimbench.api import theory
from smimbench.problem import Problem

# between weak recovery of the last layer and perfect recovery of both; most of them where both layers are known
ALPHAS = np.round(
    np.concatenate([np.linspace(0.2, 0.7, 8), np.linspace(0.73, 0.99, 22)]), 4
)
WITHIN = 0.004
CHUNK, SLOPE, STEP = 2**16, 16, 0.05

Host = np.ndarray[Any, Any]


def information(
    problem: Problem, overlap: Host, chunks: int, seed: int
) -> tuple[Host, Host]:
    """Estimate ``E sum_c g_a^2`` of every layer a (2,) at this overlap (2,), and the covariance of that mean (2, 2), from so
    many chunks of draws.
    """
    total, squares = np.zeros(2), np.zeros((2, 2))
    root, noise, V = (
        np.sqrt(overlap)[:, None],
        np.sqrt(1 - overlap)[:, None],
        np.diag(1 - overlap),
    )
    for chunk in range(chunks):
        rng = np.random.default_rng([seed, chunk])
        omega = root * rng.standard_normal((CHUNK, 2, problem.model.sites))
        labels = problem.channel.forward(
            omega + noise * rng.standard_normal(omega.shape), rng=rng
        )
        posterior = problem.channel.posterior(labels, omega, V, rng=rng)
        weight = np.sum(((posterior.mean - omega) / noise**2) ** 2, axis=-1)
        total += weight.sum(0)
        squares += weight.T @ weight
    count = chunks * CHUNK
    mean = total / count
    return mean, (squares / count - np.outer(mean, mean)) / count


def drawn_overlap(
    problem: Problem, alpha: float, overlap: Host, chunks: int, seed: int
) -> tuple[Host, Host]:
    """Find the fixed point at this sample ratio near the overlap (2,) by one Newton step on drawn information, and its
    standard error.
    """
    layers = [a for a in range(2) if overlap[a] > 1e-9]
    log = np.log(overlap / (1 - overlap), where=overlap > 1e-9, out=np.zeros(2))[layers]
    mean, covariance = information(problem, overlap, chunks, seed)

    def moved(step: Host) -> Host:
        """Return the overlaps (2,) after a step of the log signal-to-noise ratios of the learned layers."""
        full = overlap.copy()
        full[layers] = 1 / (1 + np.exp(-(log + step)))
        return full

    jacobian = -np.eye(len(layers))
    for k in range(len(layers)):
        ends = [
            information(
                problem,
                moved(s * np.eye(len(layers))[k]),
                max(1, chunks // SLOPE),
                seed,
            )[0]
            for s in (STEP, -STEP)
        ]
        jacobian[:, k] += (np.log(ends[0]) - np.log(ends[1]))[layers] / (2 * STEP)
    residual = (np.log(problem.model.kappa * alpha * mean))[layers] - log
    relative = (covariance / np.outer(mean, mean))[np.ix_(layers, layers)]
    inverse = np.linalg.inv(jacobian)
    moved_overlap = moved(-inverse @ residual)
    spread = np.sqrt(np.diagonal(inverse @ relative @ inverse.T))
    error = np.zeros(2)
    error[layers] = (moved_overlap * (1 - moved_overlap))[layers] * spread
    return moved_overlap, error


def main(draws: int, index: int = 1, count: int = 1) -> int:
    """Print the table for every ``count``-th sample ratio from number ``index`` on; return 1 if a difference is larger than
    ``WITHIN`` by more than twice its standard error.
    """
    alphas = ALPHAS[index - 1 :: count].tolist()
    solved = theory("smi-two-layers", alphas, results="results", thresholds=False)
    points = solved.problems[0].points
    model = {"name": "sequence-multi-index", "tokens": 2}
    problem = Problem(
        model,
        {"name": "softmax", "layers": 2, "skip": 1.0, "accuracy": 1e-3},
        "gaussian",
    )
    worst, failed = 0.0, False
    print("alpha    layer  overlap  drawn    error of the draws  difference  z")
    for point in points:
        printed = np.diagonal(point.overlap)
        overlap, error = drawn_overlap(
            problem,
            point.alpha,
            printed,
            math.ceil(draws / CHUNK),
            round(1e4 * point.alpha),
        )
        for layer in np.flatnonzero(error):
            gap, stated = printed[layer] - overlap[layer], point.mse_error[layer]
            worst = max(worst, abs(gap))
            failed = failed or abs(gap) > WITHIN + 2 * error[layer]
            print(
                f"{point.alpha:.4f}   {layer + 1}      {printed[layer]:.4f}   {overlap[layer]:.4f}   "
                f"{error[layer]:.4f}              {gap:+.4f}     {gap / math.hypot(error[layer], stated):+.2f}",
                flush=True,
            )
    print(f"largest difference {worst:.4f}, {draws} draws of each point")
    return int(failed)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    chosen = [
        int(number)
        for number in (arguments[1] if len(arguments) > 1 else "1/1").split("/")
    ]
    sys.exit(main(int(arguments[0]) if arguments else 8_000_000, *chosen))
