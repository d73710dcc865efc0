"""Makes figure and table of descent.md: 64 runs of ``sgd`` at D = 2000 step by step, next to mean-field dynamics.

python tools/descent.py FOLDER      # four minutes of one core; what lies in FOLDER is not run again
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
from smimbench_attention.algorithms.gradient import mean_field
from smimbench_attention.algorithms.sgd import Sgd

import smimbench
from smimbench.backend import get_backend, namespace
from smimbench.interfaces import Capabilities, Channel, Conditions, Overlaps

RUNS, DIMENSION, STEPS = 64, 2000, 100


class Logistic(Channel):
    """Labels -1 and 1 with log-odds 2 z, as two probabilities: their cross-entropy is the logistic loss."""

    name, version, reference = "logistic", 1, "the definition"
    components, symmetry, capabilities = 1, "none", Capabilities()

    def predict(self, z: Any) -> Any:
        """Return the probabilities (n, 2) of both labels given the latents z."""
        xp = namespace(z)
        up = 1 / (1 + xp.exp(-2 * z[:, 0, 0]))
        return xp.stack([up, 1 - up], axis=-1)

    def forward(self, z: Any, *, rng: Any = None) -> Any:
        """Draw the labels (n, 2) of n samples given the latents z, one of the two numbers being 1."""
        up = rng.random(len(z)) < self.predict(z)[:, 0]
        return np.stack([up, ~up], axis=-1).astype(float)

    def observable(self, y: Any) -> Any:
        """Return the label y as a user would measure it: as it is."""
        return y

    def vjp(self, z: Any, cotangent: Any) -> Any:
        """Return the gradient in the latents z of ``sum(cotangent * p)``, p being the probabilities of both labels."""
        p = self.predict(z)
        return (2 * p[:, 0] * p[:, 1] * (cotangent[:, 0] - cotangent[:, 1]))[
            :, None, None
        ]


class Square(Channel):
    """Phase retrieval, y = z^2."""

    name, version, reference = "square", 1, "the definition"
    components, symmetry, capabilities = 1, "signs", Capabilities()

    def forward(self, z: Any, *, rng: Any = None) -> Any:
        """Return the label of the latents z: their square."""
        return z * z

    def vjp(self, z: Any, cotangent: Any) -> Any:
        """Return the gradient in the latents z of ``sum(cotangent * z^2)``."""
        return 2 * z * cotangent


CASES: dict[str, tuple[Any, float, float, float]] = {
    "logistic": (Logistic(), 2.0, 0.5, 0.0),
    "phase retrieval": (Square(), 3.0, 0.006, 0.4),
}
"""Channel, sample ratio, learning rate, cosine that is given to the start: phase retrieval learns nothing from a random one."""


class Recorded(Sgd):
    """Algorithm ``sgd`` that keeps the losses it descends on in ``losses``."""

    def advance(
        self, objective: Any, factor: Any, memory: Any, rate: float, count: int
    ) -> Any:
        """Make step number ``count`` of gradient descent on ``objective``, the loss as a function of the signal's
        ``factor``, at this learning ``rate``, and keep the loss; ``memory`` is that of the optimizer.
        """
        loss = objective(factor)
        self.losses.append(float(loss.loss))
        return self.move(factor, loss.gradient, memory, rate, count)


def problem_of(channel: Any) -> smimbench.Problem:
    """Return a problem of one token with a channel that is not registered."""
    problem = smimbench.Problem(
        {"name": "sequence-multi-index", "tokens": 1}, "sign", "gaussian"
    )
    problem.channel = channel
    return problem


def measured(name: str, run: int) -> dict[str, np.ndarray]:
    """Run a case and return by step the overlaps (T of teacher, M of estimate and teacher, Q of estimate, each with itself)
    and the mean loss of a sample; ``run`` is the number of the instance.
    """
    channel, alpha, rate, cosine = CASES[name]
    problem = problem_of(channel)
    instance = problem.instance(alpha, DIMENSION, run, dtype="float32")
    algorithm, data = (
        Recorded(learning_rate=rate, steps=STEPS + 1),
        instance.data(get_backend()),
    )
    object.__setattr__(algorithm, "losses", [])
    state, overlaps_by_step = (
        algorithm.init(problem, data, np.random.default_rng([2, run])),
        [],
    )
    start = cosine * instance.signal + math.sqrt(1 - cosine**2) * state.factor
    state = state._replace(factor=start, signal=start)
    for _ in range(STEPS + 1):
        overlaps_by_step.append(np.ravel(instance.overlaps(state.signal)))
        state, _ = algorithm.step(problem, data, state)
    return {
        "overlaps": np.array(overlaps_by_step),
        "train_error": np.array(algorithm.losses) / DIMENSION,
    }


def stored_runs(folder: Path) -> dict[str, dict[str, np.ndarray]]:
    """Return all runs by case, from the ``.npz`` files in a folder; those that are missing are run and stored."""
    runs: dict[str, list[Any]] = {name: [] for name in CASES}
    for run in range(RUNS):
        for name, courses in runs.items():
            path = folder / f"{name}-{run}.npz"
            if not path.is_file():
                np.savez(path, **measured(name, run))
            courses.append(dict(np.load(path)))
    return {name: stacked(courses) for name, courses in runs.items()}


def stacked(courses: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Stack the arrays of several runs (``courses``, by name of the quantity) along a first axis of runs."""
    return {key: np.stack([course[key] for course in courses]) for key in courses[0]}


def metrics(name: str, runs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Compute metrics of runs from their overlaps (T, M, Q of teacher and estimate): error up to a sign, squared cosine,
    loss of a fresh sample by quadrature over teacher's and student's latents.
    """
    T, M, Q = np.moveaxis(runs["overlaps"], -1, 0)
    M = np.abs(M) if name == "phase retrieval" else M
    metrics = {
        "mse": T - 2 * M + Q,
        "overlap": M**2 / (T * Q),
        "train_error": runs["train_error"],
    }
    if name == "phase retrieval":
        return metrics | {"test_error": 3 * Q**2 + 3 * T**2 - 2 * (Q * T + 2 * M**2)}
    x, w = np.polynomial.hermite_e.hermegauss(40)
    w = w / w.sum()
    test = np.zeros_like(T)
    for a, p in zip(x, w):
        for b, q in zip(x, w):
            t, z = np.sqrt(T) * a, M / np.sqrt(T) * a + np.sqrt(Q - M**2 / T) * b
            test += p * q * (np.logaddexp(0, -2 * z) + 2 * z / (1 + np.exp(2 * t)))
    return metrics | {"test_error": test}


def main() -> None:
    """Run what is missing, draw the figure, and print the table of the largest relative deviations between runs and theory."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    mean_field.ACCURACY = mean_field.ACCURACY._replace(largest_rows=2**20)
    all_runs = stored_runs(Path(sys.argv[1]))
    figure = Figure(figsize=(9.6, 5.6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(CASES), 3)
    print(  # noqa: T201
        "| labels | quantity | largest deviation | z there | runs, last step | predicted |\n"
        + "|---" * 6
        + "|"
    )
    for row, (name, (channel, alpha, rate, _)) in zip(panels, CASES.items()):
        runs = all_runs[name]
        starts = tuple(
            Overlaps(*(np.array([[x]]) for x in start[0])) for start in runs["overlaps"]
        )
        theory: Any = Sgd(learning_rate=rate, steps=STEPS).theory(
            problem_of(channel), alpha, Conditions(DIMENSION, starts=starts)
        )
        steps = np.array(theory.trajectory["iteration"])
        for panel, names in zip(
            row, (("mse",), ("train_error", "test_error"), ("overlap",))
        ):
            for color, key in zip(("C0", "C1"), names):
                values = metrics(name, runs)[key]
                mean, standard_error = (
                    values.mean(axis=0),
                    values.std(axis=0, ddof=1) / np.sqrt(RUNS),
                )
                expected, error = (
                    np.ravel(theory.trajectory[quantity])
                    for quantity in (key, f"{key}_error")
                )
                relative_deviations = np.abs(expected / mean[steps] - 1)[1:]
                worst_step = steps[1:][np.argmax(relative_deviations)]
                z_score = (expected[steps == worst_step] - mean[worst_step])[
                    0
                ] / np.hypot(standard_error[worst_step], error[steps == worst_step][0])
                print(  # noqa: T201
                    f"| {name} | {key} | {relative_deviations.max():.2%}, step {worst_step} | {z_score:.1f} "
                    f"| {mean[-1]:.4g}({standard_error[-1]:.1g}) | {expected[-1]:.4g}({error[-1]:.1g}) |"
                )
                panel.plot(
                    mean,
                    "o",
                    ms=3,
                    mfc="none",
                    color=color,
                    label=key.replace("_", " ") + f", {RUNS} runs",
                )
                panel.plot(
                    steps,
                    expected,
                    "-",
                    color="black",
                    lw=1,
                    label="mean-field dynamics" if key == names[-1] else None,
                )
            panel.set_xlabel("step", fontsize=8)
            panel.set_title(
                f"{name}, α = {alpha:g}, η = {rate:g}, D = {DIMENSION}", fontsize=8
            )
            panel.set_ylim(bottom=0)
            panel.tick_params(labelsize=7)
            panel.legend(fontsize=7, frameon=False)
    figure.savefig(Path(__file__).resolve().parent.parent / "docs" / "descent.svg")


if __name__ == "__main__":
    main()
