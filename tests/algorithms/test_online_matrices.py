"""Draws of online descent on matrices, against gradients of batches and runs with samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from smimbench_attention.algorithms.adam import Adam, AdamW
from smimbench_attention.algorithms.gradient import Descent
from smimbench_attention.algorithms.gradient.loss import factor_of, loss_gradient
from smimbench_attention.algorithms.gradient.online.fields import gradient_averages
from smimbench_attention.algorithms.gradient.online.matrix_theory import (
    flow_moments,
    matrix_theory,
)
from smimbench_attention.algorithms.sgd import Muon, Sgd, SignSgd

from smimbench.backend.device import get_backend
from smimbench.derive import observable
from smimbench.interfaces import Conditions
from smimbench.problem import Problem


def attention(tokens: int, channel: Any, rho: float = 0.5) -> Problem:
    """Attention-indexed problem with a Wishart matrix."""
    model = {"name": "attention-indexed", "tokens": tokens}
    return Problem(model, channel, {"name": "wishart", "rho": rho})


LINEAR = attention(2, {"name": "linear", "noise": 0.2})
SOFTMAX = attention(2, "softmax")


@pytest.mark.parametrize(
    ("problem", "loss"),
    [
        (LINEAR, "squared"),
        (SOFTMAX, "squared"),
        (SOFTMAX, "cross-entropy"),
        (attention(3, "softmax"), "cross-entropy"),
    ],
    ids=["linear", "softmax squared", "softmax", "three tokens"],
)
def test_gradient_of_a_batch(problem: Problem, loss: str) -> None:
    """The gradient of a large batch is the mean gradient, and the distance between them has the size of the noise."""
    D, batch = 48, 40_000
    instance = problem.instance(batch / D**2, D)
    data = instance.data(get_backend("numpy"))
    factorization, rng = factor_of(problem), np.random.default_rng(3)
    factor = factorization.draw(rng, 1, D, None)
    student, teacher = factorization.compose(factor), instance.signal
    targets = observable(problem.channel, data.labels)
    measured = (D**2 / batch) * loss_gradient(
        problem, data.inputs, targets, factor, loss=loss
    ).gradient

    def overlap(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Overlap of two matrices, with the axes of sets, starts and components."""
        return np.full((1, 1, 1, 1), np.sum(left * right) / D)

    means = gradient_averages(problem, loss, overlap(teacher, teacher)[0])(
        overlap(student, teacher), overlap(student, student)
    )
    on_teacher, on_student, square = (values[0, 0, 0, 0] for values in means)
    by_signal = D * (on_student * student + on_teacher * teacher)
    mean = factorization.pullback(factor, by_signal)
    noise = np.sqrt(square * D**4 / (2 * batch)) * problem.model.draw_noise(rng, 1, D)
    noise_size = np.linalg.norm(factorization.pullback(factor, noise))
    distance = np.linalg.norm(measured - mean)
    # Beside the noise there are terms of relative order 1 / D in the mean.
    assert distance == pytest.approx(
        noise_size, rel=0.1, abs=2 / D * np.linalg.norm(mean)
    )


def run_overlaps(
    problem: Problem, algorithm: Descent, D: int, seeds: int
) -> np.ndarray:
    """Mean squared errors and overlaps (seeds, 2, steps + 1) of runs."""
    paths = []
    for seed in range(seeds):
        instance = problem.instance((algorithm.batch or 1) / D**2, D, seed, seed=7)
        data = instance.data(get_backend("numpy"))
        state = algorithm.init(problem, data, np.random.default_rng(seed))
        path = []
        for _ in range(algorithm.steps or 0):
            metrics = instance.metrics(state.signal)
            path.append([metrics["mse"][0], metrics["overlap"][0]])
            state, _ = algorithm.step(problem, data, state)
        metrics = instance.metrics(state.signal)
        path.append([metrics["mse"][0], metrics["overlap"][0]])
        paths.append(np.array(path).T)
    return np.array(paths)


def method(kind: type[Descent], **parameters: Any) -> Descent:
    """A method with 60 steps on fresh samples."""
    return kind(online=True, steps=60, **parameters)


SETTINGS = {
    "small batches": (LINEAR, method(Sgd, learning_rate=8e-4, batch=40)),
    "momentum, decay and cosine": (
        LINEAR,
        method(
            Sgd,
            learning_rate=3e-4,
            batch=150,
            momentum=0.7,
            weight_decay=4.0,
            schedule="cosine",
        ),
    ),
    "narrow student": (SOFTMAX, method(Sgd, learning_rate=8e-3, batch=300, width=14)),
    "cross-entropy, three tokens": (
        attention(3, "softmax", 0.3),
        method(Sgd, learning_rate=4e-3, batch=200, nesterov=True, momentum=0.3),
    ),
    "adam": (LINEAR, method(Adam, learning_rate=0.03, batch=300)),
    "adamw": (SOFTMAX, method(AdamW, learning_rate=0.05, batch=60, weight_decay=0.5)),
    "signs": (SOFTMAX, method(SignSgd, learning_rate=0.02, batch=200)),
    "muon": (LINEAR, method(Muon, learning_rate=0.02, batch=100, momentum=0.5)),
}


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS, ids=list(SETTINGS))
def test_runs_follow_the_draws(setting: str) -> None:
    problem, algorithm = SETTINGS[setting]
    D, seeds = 60, 16
    prediction = algorithm.theory(problem, 1.0, Conditions(dimension=D))
    assert not isinstance(prediction, str)
    trajectory = prediction.trajectory
    assert isinstance(trajectory, dict)
    runs = run_overlaps(problem, algorithm, D, seeds)[..., trajectory["iteration"]]
    for index, name in enumerate(("mse", "overlap")):
        measured = runs[:, index].mean(axis=0)
        error = runs[:, index].std(axis=0, ddof=1) / np.sqrt(seeds)
        predicted, stated = (
            np.array(trajectory[column])[:, 0] for column in (name, f"{name}_error")
        )
        assert (np.abs(measured - predicted) < 4 * np.hypot(error, stated)).all()
        assert np.hypot(error, stated)[-1] < 0.2 * predicted[-1]


@pytest.mark.slow
def test_draws_become_the_limit() -> None:
    """With large batches and small steps, the error of draws against the limit falls as 1/D."""
    deviations = []
    for D in (50, 100, 200):
        algorithm = Sgd(online=True, steps=150, learning_rate=5e-3, batch=10**9)
        prediction = algorithm.theory(
            SOFTMAX, 1.0, Conditions(dimension=D, trajectory=True)
        )
        assert not isinstance(prediction, str)
        assert isinstance(prediction.trajectory, dict)
        drawn = np.array(prediction.trajectory["mse"])[:, 0]
        limit = np.array(prediction.trajectory["mse_limit"])
        deviations.append(np.max(np.abs(drawn - limit)))
    assert deviations[2] < 0.03
    assert deviations[2] < deviations[0] / 2


def test_time_is_the_same_in_all_dimensions() -> None:
    """The time of the flow is 4 rate steps / sqrt(rho): the limit of a step does not depend on the dimension."""
    algorithm = Sgd(online=True, steps=20, learning_rate=1e-3, batch=100)
    limits = [
        flow_moments(algorithm, LINEAR, "squared", [0, 10, 20], D) for D in (40, 4000)
    ]
    np.testing.assert_array_equal(np.stack(limits[0]), np.stack(limits[1]))


def test_what_has_no_theory() -> None:
    hardmax = attention(2, "hardmax")
    algorithm = Sgd(online=True, steps=10, learning_rate=1e-3, batch=10)
    conditions = Conditions(dimension=40)
    assert "annealed" in str(matrix_theory(algorithm, hardmax, 1.0, conditions))
    assert "dimension" in str(matrix_theory(algorithm, LINEAR, 1.0, Conditions()))
    two_layers = attention(2, {"name": "softmax", "layers": 2})
    assert "several matrices" in str(
        SETTINGS["muon"][1].theory(two_layers, 1.0, conditions)
    )
    long_run = Sgd(online=True, steps=10**7, learning_rate=1e-3, batch=10)
    assert "fewer steps" in str(matrix_theory(long_run, LINEAR, 1.0, conditions))
    wild = Sgd(online=True, steps=50, learning_rate=1.0, batch=10)
    assert "diverge" in str(matrix_theory(wild, LINEAR, 1.0, conditions))
