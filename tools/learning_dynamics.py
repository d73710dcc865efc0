"""Figure and table of learning-dynamics.md: runs of online ``sgd`` on attention matrices against theory.

python tools/learning_dynamics.py FOLDER      # half an hour of one core; what lies in FOLDER is not run again

Six random settings at d = 50, 100, 200: runs against draws at their dimension, and both extrapolated to infinite d.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
from smimbench_attention.algorithms.gradient.loss import fitting_loss
from smimbench_attention.algorithms.gradient.online.matrices import draw_matrix_paths
from smimbench_attention.algorithms.gradient.online.matrix_theory import flow_moments
from smimbench_attention.algorithms.sgd import Sgd

import smimbench
from smimbench.backend import get_backend

ROOT = Path(__file__).resolve().parent.parent
SIZES, SEEDS, DRAWS, STEPS = (100, 200, 400), 8, 16, 30
NOISE_TIMES_D = {"linear": 8.0, "softmax": 40.0}
"""Noise of a step, ``rate d^2 / batch``, times d, so that it vanishes as d grows. Derivatives of softmax labels are small: at
d = 400 noise moves errors of either by a few per cent in most of the path, and by up to a half at its end."""


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


def algorithm_of(setting: dict[str, Any], d: int) -> Sgd:
    """Return the algorithm of a setting in d dimensions."""
    return Sgd(
        online=True,
        steps=STEPS,
        learning_rate=setting["rate"],
        batch=round(setting["rate"] * d**3 / NOISE_TIMES_D[label_of(setting)]),
        weight_decay=setting["decay"],
        schedule=setting["schedule"],
        loss=setting["loss"],
        width=round(setting["width"] * d),
    )


MOMENTS = np.unique(np.linspace(1, STEPS, 10).round().astype(int))
"""Steps at which runs and theory are compared."""


def errors_of_run(setting: dict[str, Any], d: int, seed: int) -> list[float]:
    """Return mean squared errors at the ``MOMENTS`` of a run, in float32."""
    problem, algorithm = problem_of(setting), algorithm_of(setting, d)
    instance = problem.instance((algorithm.batch or 1) / d**2, d, seed, seed=11)
    data = instance.data(get_backend("numpy", "float32"))
    state = algorithm.init(problem, data, np.random.default_rng(seed))
    path = []
    for step in range(1, STEPS + 1):
        state, _ = algorithm.step(problem, data, state)
        if step in MOMENTS:
            path.append(float(instance.metrics(state.signal)["mse"][0]))
    return path


def errors_of_draws(setting: dict[str, Any], d: int) -> np.ndarray:
    """Return mean squared errors (draws, steps) of draws at d dimensions."""
    algorithm = algorithm_of(setting, d)
    overlaps = draw_matrix_paths(
        problem_of(setting),
        algorithm,
        setting["loss"],
        [0, *MOMENTS.tolist()],
        int(algorithm.batch or 1),
        d,
        DRAWS,
    ).overlaps
    errors = overlaps.truth - 2 * overlaps.cross + overlaps.self_overlap
    return errors[:, 1:, 0, 0, 0]


def largest(measured: np.ndarray, predicted: np.ndarray, error: np.ndarray) -> str:
    """Return the largest relative deviation along a path and z there, chance alone."""
    step = int(np.argmax(np.abs(measured / predicted - 1)))
    deviation = measured[step] - predicted[step]
    return f"{100 * deviation / predicted[step]:+.1f}% ({deviation / error[step]:+.1f})"


def run_all(folder: Path) -> list[dict[str, Any]]:
    """Run what is missing in the folder, the smallest sizes and first seeds of all settings first, and return the errors of runs
    and draws (seeds, steps) of every setting by kind and size.
    """
    settings = random_settings()
    files = [folder / f"setting-{number}.json" for number in range(len(settings))]
    stored = [json.loads(file.read_text()) if file.exists() else {} for file in files]
    for d in SIZES:
        for seed in range(SEEDS):
            for setting, file, errors in zip(settings, files, stored):
                if f"draws-{d}" not in errors:
                    errors[f"draws-{d}"] = errors_of_draws(setting, d).tolist()
                runs = errors.setdefault(f"runs-{d}", [])
                if seed >= len(runs):
                    runs.append(errors_of_run(setting, d, seed))
                    file.write_text(json.dumps(errors))
    return stored


def compare(folder: Path) -> list[str]:
    """Return the rows of the table."""
    rows = []
    for setting, stored in zip(random_settings(), run_all(folder)):
        deviations, means, variances = [], {}, {}
        for d in SIZES:
            for kind in ("runs", "draws"):
                errors = np.array(stored[f"{kind}-{d}"])
                means[kind, d] = errors.mean(axis=0)
                variances[kind, d] = errors.var(axis=0, ddof=1) / len(errors)
            error = np.sqrt(variances["runs", d] + variances["draws", d])
            deviations.append(largest(means["runs", d], means["draws", d], error))
        half, full = SIZES[-2:]
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


def limit_of(
    channel: Any, rho: float, loss: str, times: np.ndarray, tokens: int = 2
) -> Any:
    """Return the moments of the exact limit at the given times, which are equidistant from 0."""
    problem = problem_of({"tokens": tokens, "channel": channel, "rho": rho})
    steps = len(times) - 1
    rate = times[1] * math.sqrt(rho) / 4
    algorithm = Sgd(online=True, steps=steps, learning_rate=rate, batch=1, loss=loss)
    return flow_moments(
        algorithm, problem, loss or fitting_loss(problem), list(range(steps + 1)), 1
    )


def main() -> None:
    """Write the table and print what the page quotes."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    rows = compare(folder)
    head = "| labels, tokens, loss | rho | width / d | decay | schedule | runs, d = 200, end | draws |"
    head += (
        "".join(f" d = {d}: largest deviation (z) |" for d in SIZES) + " extrapolated |"
    )
    text = [
        "# Learning dynamics: runs of online SGD against theory",
        "",
        "Behind [how SGD learns an attention matrix](../../docs/learning-dynamics.md); written by `tools/learning_dynamics.py`.",
        "",
        f"Six random settings, {SEEDS} runs and {DRAWS} draws at each of three sizes, mean squared errors at {len(MOMENTS)}",
        f"of {STEPS} steps, in float32; the noise of a step, rate d² / batch, is 8 / d (linear) or 40 / d (softmax).",
        "z counts chance alone; the stated error of a prediction has 5 / d of the mean squared error besides: 10%, 5% and 2.5%.",
        "",
        head,
        "|" + "---|" * 11,
        *rows,
        "",
    ]
    (ROOT / "results" / "checks" / "learning-dynamics.md").write_text("\n".join(text))


if __name__ == "__main__":
    main()
