"""Table of learning-dynamics.md: runs of online ``sgd`` on attention matrices against theory, in six random settings.

python tools/learning_dynamics.py FOLDER          # d = 50, 100, 200; half an hour of one core
python tools/learning_dynamics.py FOLDER large    # d = 100, 200, 400 in float32, noise 1/d; 25 minutes of one core

Runs and draws at their dimension are compared, and both extrapolated to infinite d. What lies in FOLDER is not run again.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from smimbench_attention.algorithms.gradient.online.matrices import draw_matrix_paths
from smimbench_attention.algorithms.sgd import Sgd

import smimbench
from smimbench.backend import get_backend

ROOT = Path(__file__).resolve().parent.parent
SEEDS, DRAWS = 8, 16
MOMENTS = 10
"""Steps at which runs and theory are compared."""


class Protocol(NamedTuple):
    """How the settings are run: dimensions, steps, precision, and noise of a step, ``rate d^2 / batch``, of a setting."""

    sizes: tuple[int, int, int]
    steps: int
    dtype: str
    page: str
    noise_words: str
    noise: Callable[[str, int], float]

    @property
    def moments(self) -> np.ndarray:
        """Steps at which runs and theory are compared."""
        return np.unique(np.linspace(1, self.steps, MOMENTS).round().astype(int))


PROTOCOLS = {
    "small": Protocol(
        (50, 100, 200),
        60,
        "float64",
        "learning-dynamics.md",
        "0.02 at all sizes",
        lambda label, d: 0.02,
    ),
    # Derivatives of softmax labels are small: there noise of 0.1 moves errors as little as 0.02 does of linear labels.
    "large": Protocol(
        (100, 200, 400),
        30,
        "float32",
        "learning-dynamics-large.md",
        "8 / d for linear and 40 / d for softmax labels",
        lambda label, d: (8.0 if label == "linear" else 40.0) / d,
    ),
}


def random_settings() -> list[dict[str, Any]]:
    """Six settings: tokens, labels and loss in turn, all else random."""
    rng = np.random.default_rng(2026)
    kinds = [
        (2, {"name": "linear", "noise": 0.3}, "squared", 0.004),
        (2, "softmax", "squared", 0.03),
        (2, "softmax", "cross-entropy", 0.02),
        (3, "softmax", "squared", 0.02),
        (3, "softmax", "cross-entropy", 0.012),
        (3, {"name": "linear", "noise": 0.1}, "squared", 0.002),
    ]
    settings = []
    for tokens, channel, loss, rate in kinds:
        rho, width = rng.uniform(0.2, 1.0), rng.uniform(0.3, 2.0)
        settings.append(
            {
                "tokens": tokens,
                "channel": channel,
                "loss": loss,
                "rate": float(rate * math.sqrt(width) * rng.uniform(0.5, 1.0)),
                "rho": round(float(rho), 2),
                "width": round(float(width), 2),
                "decay": round(float(rng.choice([0.0, rng.uniform(0, 1)])), 2),
                "schedule": str(rng.choice(["constant", "cosine"])),
            }
        )
    return settings


def problem_of(setting: dict[str, Any]) -> smimbench.Problem:
    """Return the problem of a setting."""
    model = {"name": "attention-indexed", "tokens": setting["tokens"]}
    prior = {"name": "wishart", "rho": setting["rho"]}
    return smimbench.Problem(model, setting["channel"], prior)


def label_of(setting: dict[str, Any]) -> str:
    """Return the name of the channel of a setting."""
    channel = setting["channel"]
    return channel if isinstance(channel, str) else channel["name"]


def algorithm_of(setting: dict[str, Any], d: int, protocol: Protocol) -> Sgd:
    """Return the algorithm of a setting in d dimensions."""
    noise = protocol.noise(label_of(setting), d)
    return Sgd(
        online=True,
        steps=protocol.steps,
        learning_rate=setting["rate"],
        batch=max(1, round(setting["rate"] * d**2 / noise)),
        weight_decay=setting["decay"],
        schedule=setting["schedule"],
        loss=setting["loss"],
        width=round(setting["width"] * d),
    )


def errors_of_run(
    setting: dict[str, Any], d: int, seed: int, protocol: Protocol
) -> list[float]:
    """Return mean squared errors of a run at the moments."""
    problem, algorithm = problem_of(setting), algorithm_of(setting, d, protocol)
    instance = problem.instance((algorithm.batch or 1) / d**2, d, seed, seed=11)
    data = instance.data(get_backend("numpy", protocol.dtype))
    state = algorithm.init(problem, data, np.random.default_rng(seed))
    path = []
    for step in range(1, protocol.steps + 1):
        state, _ = algorithm.step(problem, data, state)
        if step in protocol.moments:
            path.append(float(instance.metrics(state.signal)["mse"][0]))
    return path


def errors_of_draws(
    setting: dict[str, Any], d: int, protocol: Protocol
) -> list[list[float]]:
    """Return mean squared errors (draws, steps) of draws at d dimensions."""
    algorithm = algorithm_of(setting, d, protocol)
    overlaps = draw_matrix_paths(
        problem_of(setting),
        algorithm,
        setting["loss"],
        [0, *protocol.moments.tolist()],
        [int(algorithm.batch or 1)],
        d,
        range(DRAWS),
    ).overlaps
    errors = overlaps.truth - 2 * overlaps.cross + overlaps.self_overlap
    paths: list[list[float]] = errors[:, 1:, 0, 0, 0].tolist()
    return paths


def largest(measured: np.ndarray, predicted: np.ndarray, error: np.ndarray) -> str:
    """Return the largest relative deviation along a path and z there, chance alone."""
    step = int(np.argmax(np.abs(measured / predicted - 1)))
    deviation = measured[step] - predicted[step]
    return f"{100 * deviation / predicted[step]:+.1f}% ({deviation / error[step]:+.1f})"


def run_all(folder: Path, protocol: Protocol) -> list[dict[str, Any]]:
    """Run what is missing in the folder, the smallest sizes and first seeds of all settings first, and return the errors of runs
    and draws (seeds, steps) of every setting by kind and size.
    """
    settings = random_settings()
    files = [folder / f"setting-{number}.json" for number in range(len(settings))]
    stored = [json.loads(file.read_text()) if file.exists() else {} for file in files]
    for d in protocol.sizes:
        for seed in range(SEEDS):
            for setting, file, errors in zip(settings, files, stored):
                if f"draws-{d}" not in errors:
                    errors[f"draws-{d}"] = errors_of_draws(setting, d, protocol)
                runs = errors.setdefault(f"runs-{d}", [])
                if seed >= len(runs):
                    runs.append(errors_of_run(setting, d, seed, protocol))
                    file.write_text(json.dumps(errors))
    return stored


def compare(folder: Path, protocol: Protocol) -> list[str]:
    """Return the rows of the table."""
    rows = []
    for setting, stored in zip(random_settings(), run_all(folder, protocol)):
        deviations, means, variances = [], {}, {}
        for d in protocol.sizes:
            for kind in ("runs", "draws"):
                errors = np.array(stored[f"{kind}-{d}"])
                means[kind, d] = errors.mean(axis=0)
                variances[kind, d] = errors.var(axis=0, ddof=1) / len(errors)
            error = np.sqrt(variances["runs", d] + variances["draws", d])
            deviations.append(largest(means["runs", d], means["draws", d], error))
        half, full = protocol.sizes[-2:]
        limits = [
            2 * means[kind, full] - means[kind, half] for kind in ("runs", "draws")
        ]
        variance = sum(
            4 * variances[kind, full] + variances[kind, half]
            for kind in ("runs", "draws")
        )
        deviations.append(largest(*limits, np.sqrt(variance)))
        words = f"{label_of(setting)}, T = {setting['tokens']}, {setting['loss']}"
        numbers = f"{setting['rho']} | {setting['width']} | {setting['decay']} | {setting['schedule']}"
        last = f"{means['runs', full][-1]:.4f} | {means['draws', full][-1]:.4f}"
        rows.append(f"| {words} | {numbers} | {last} | {' | '.join(deviations)} |")
    return rows


def main() -> None:
    """Write the table."""
    name = sys.argv[2] if sys.argv[2:] else "small"
    folder, protocol = Path(sys.argv[1]) / name, PROTOCOLS[name]
    folder.mkdir(parents=True, exist_ok=True)
    rows = compare(folder, protocol)
    head = "| labels, tokens, loss | rho | width / d | decay | schedule "
    head += f"| runs, d = {protocol.sizes[-1]}, end | draws |"
    head += "".join(f" d = {d}: largest deviation (z) |" for d in protocol.sizes)
    head += " extrapolated |"
    allowed = ", ".join(f"{500 / d:g}%" for d in protocol.sizes)
    text = [
        "# Learning dynamics: runs of online SGD against theory",
        "",
        "Behind [how SGD learns an attention matrix](../../docs/learning-dynamics.md); written by `tools/learning_dynamics.py`.",
        "",
        f"Six random settings, {SEEDS} runs and {DRAWS} draws at each of three sizes, mean squared errors at {MOMENTS}",
        f"of {protocol.steps} steps; the noise of a step, rate d² / batch, is {protocol.noise_words}.",
        f"z counts chance alone; the stated error of a prediction has 5 / d of the mean squared error besides: {allowed}.",
        "",
        head,
        "|" + "---|" * 11,
        *rows,
        "",
    ]
    (ROOT / "results" / "checks" / protocol.page).write_text("\n".join(text))


if __name__ == "__main__":
    main()
