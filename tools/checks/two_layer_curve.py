"""Compares the overlaps of two layers in theory with plain draws of teacher, label and posterior, at thirty sample ratios.

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
    weight_sum, square_sum = np.zeros(2), np.zeros((2, 2))
    overlap_root, noise_root, V = (
        np.sqrt(overlap)[:, None],
        np.sqrt(1 - overlap)[:, None],
        np.diag(1 - overlap),
    )
    for chunk in range(chunks):
        rng = np.random.default_rng([seed, chunk])
        omega = overlap_root * rng.standard_normal((CHUNK, 2, problem.model.sites))
        labels = problem.channel.forward(
            omega + noise_root * rng.standard_normal(omega.shape), rng=rng
        )
        posterior = problem.channel.posterior(labels, omega, V, rng=rng)
        squared_messages = np.sum(
            ((posterior.mean - omega) / noise_root**2) ** 2, axis=-1
        )
        weight_sum += squared_messages.sum(0)
        square_sum += squared_messages.T @ squared_messages
    count = chunks * CHUNK
    mean = weight_sum / count
    return mean, (square_sum / count - np.outer(mean, mean)) / count


def drawn_overlap(
    problem: Problem, alpha: float, overlap: Host, chunks: int, seed: int
) -> tuple[Host, Host]:
    """Find the fixed point at this sample ratio near the overlap (2,) by one Newton step on drawn information, and its
    standard error.
    """
    layers = [layer for layer in range(2) if overlap[layer] > 1e-9]
    log_snr = np.log(overlap / (1 - overlap), where=overlap > 1e-9, out=np.zeros(2))[
        layers
    ]
    mean_information, covariance = information(problem, overlap, chunks, seed)

    def moved(step: Host) -> Host:
        """Return the overlaps (2,) after a step of the log signal-to-noise ratios of the learned layers."""
        full = overlap.copy()
        full[layers] = 1 / (1 + np.exp(-(log_snr + step)))
        return full

    jacobian = -np.eye(len(layers))
    for direction in range(len(layers)):
        informations = [
            information(
                problem,
                moved(shift * np.eye(len(layers))[direction]),
                max(1, chunks // SLOPE),
                seed,
            )[0]
            for shift in (STEP, -STEP)
        ]
        jacobian[:, direction] += (np.log(informations[0]) - np.log(informations[1]))[
            layers
        ] / (2 * STEP)
    residual = (np.log(problem.model.kappa * alpha * mean_information))[
        layers
    ] - log_snr
    relative = (covariance / np.outer(mean_information, mean_information))[
        np.ix_(layers, layers)
    ]
    inverse = np.linalg.inv(jacobian)
    moved_overlap = moved(-inverse @ residual)
    log_snr_error = np.sqrt(np.diagonal(inverse @ relative @ inverse.T))
    error = np.zeros(2)
    error[layers] = (moved_overlap * (1 - moved_overlap))[layers] * log_snr_error
    return moved_overlap, error


def main(draws: int, index: int = 1, count: int = 1) -> int:
    """Print the table for every ``count``-th sample ratio from number ``index`` on; return 1 if a difference is larger than
    ``WITHIN`` by more than twice its standard error.
    """
    alphas = ALPHAS[index - 1 :: count].tolist()
    theory_table = theory("smi-two-layers", alphas, results="results", thresholds=False)
    points = theory_table.problems[0].points
    model = {"name": "sequence-multi-index", "tokens": 2}
    problem = Problem(
        model,
        {"name": "softmax", "layers": 2, "skip": 1.0, "accuracy": 1e-3},
        "gaussian",
    )
    largest_difference, has_failed = 0.0, False
    print("alpha    layer  overlap  drawn    error of the draws  difference  z")
    for point in points:
        theory_overlap = np.diagonal(point.overlap)
        overlap, error = drawn_overlap(
            problem,
            point.alpha,
            theory_overlap,
            math.ceil(draws / CHUNK),
            round(1e4 * point.alpha),
        )
        for layer in np.flatnonzero(error):
            difference, theory_error = (
                theory_overlap[layer] - overlap[layer],
                point.mse_error[layer],
            )
            largest_difference = max(largest_difference, abs(difference))
            has_failed = has_failed or abs(difference) > WITHIN + 2 * error[layer]
            print(
                f"{point.alpha:.4f}   {layer + 1}      {theory_overlap[layer]:.4f}   {overlap[layer]:.4f}   "
                f"{error[layer]:.4f}              {difference:+.4f}     "
                f"{difference / math.hypot(error[layer], theory_error):+.2f}",
                flush=True,
            )
    print(f"largest difference {largest_difference:.4f}, {draws} draws of each point")
    return int(has_failed)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    chosen = [
        int(number)
        for number in (arguments[1] if len(arguments) > 1 else "1/1").split("/")
    ]
    sys.exit(main(int(arguments[0]) if arguments else 8_000_000, *chosen))
