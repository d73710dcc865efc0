"""Draws of online descent on matrices, against gradients of batches and runs with samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from smimbench_attention.algorithms.adam import Adam, AdamW
from smimbench_attention.algorithms.gradient import Descent
from smimbench_attention.algorithms.gradient.loss import factor_of, loss_gradient
from smimbench_attention.algorithms.gradient.online.fields import (
    evaluation_count,
    gradient_averages,
)
from smimbench_attention.algorithms.gradient.online.matrix_theory import (
    flow_moments,
    matrix_theory,
)
from smimbench_attention.algorithms.sgd import Muon, Sgd, SignSgd

from smimbench.backend.device import get_backend
from smimbench.derive import observable
from smimbench.interfaces import Conditions
from smimbench.problem import Problem
from tests.helpers import assert_runs_follow


def attention(tokens: int, channel: Any, rho: float = 0.5) -> Problem:
    """Attention-indexed problem with a Wishart matrix."""
    model = {"name": "attention-indexed", "tokens": tokens}
    return Problem(model, channel, {"name": "wishart", "rho": rho})


LINEAR = attention(2, {"name": "linear", "noise": 0.2})
SOFTMAX = attention(2, "softmax")


@pytest.mark.parametrize(
    "problem",
    [
        LINEAR,
        attention(
            3, {"name": "linear", "noise": 0.3, "noise_convention": "plain"}, 0.5
        ),
        Problem(
            {"name": "sequence-multi-index", "tokens": 2},
            {"name": "linear", "noise": 0.4, "components": 2},
            "gaussian",
        ),
    ],
    ids=["scaled noise", "plain noise", "two components"],
)
def test_linear_labels_have_a_closed_form(problem: Problem) -> None:
    """Means over latents with these overlaps, and over labels with noise."""
    P, C, count = problem.components, problem.model.sites, 400_000
    rng = np.random.default_rng(5)
    root = rng.standard_normal((2 * P, 2 * P))
    covariance = root @ root.T + np.eye(2 * P)
    both = np.linalg.cholesky(covariance) @ rng.standard_normal((count, 2 * P, C))
    teacher_latents, student_latents = both[:, :P], both[:, P:]
    labels = problem.channel.forward(teacher_latents, rng=rng)
    output = problem.channel.predict(student_latents)
    g = problem.channel.vjp(student_latents, 2 * (output - labels))
    with_student, with_teacher, square = (
        np.einsum("npc,nqc->pq", g, other) / count
        for other in (student_latents, teacher_latents, g)
    )
    truth, cross, student = (
        covariance[rows, columns][None]
        for rows, columns in (
            (slice(P), slice(P)),
            (slice(P, None), slice(P)),
            (slice(P, None), slice(P, None)),
        )
    )
    means = gradient_averages(problem, "squared", truth)(cross[None], student[None])
    on_teacher, on_student, predicted_square = (values[0, 0] for values in means)
    # E g z^T by Stein's lemma.
    predicted = (
        on_student @ student[0] + on_teacher @ cross[0].T,
        on_student @ cross[0] + on_teacher @ truth[0],
        predicted_square,
    )
    for measured, values in zip((with_student, with_teacher, square), predicted):
        np.testing.assert_allclose(measured, values, atol=0.02 * np.abs(values).max())


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
        value = np.sum(left * right) / D
        return np.full((evaluation_count(problem, loss), 1, 1, 1), value)

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
    assert_runs_follow(*SETTINGS[setting], dimension=60, seeds=16)


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


@pytest.mark.slow
def test_time_is_the_same_in_all_dimensions() -> None:
    """The time of the flow is 4 rate steps / sqrt(rho): the limit of a step does not depend on the dimension."""
    algorithm = Sgd(online=True, steps=20, learning_rate=1e-3, batch=100)
    limits = [
        flow_moments(algorithm, LINEAR, "squared", [0, 10, 20], D) for D in (40, 4000)
    ]
    np.testing.assert_array_equal(np.stack(limits[0]), np.stack(limits[1]))


def test_limit_is_all_that_is_known_without_a_dimension() -> None:
    parameters = {"learning_rate": 1e-3, "batch": 100}
    algorithm = Sgd(online=True, steps=40, **parameters)
    limit, at_size = (
        algorithm.theory(LINEAR, 1.0, Conditions(dimension=dimension, trajectory=True))
        for dimension in (None, 40)
    )
    assert not isinstance(limit, str)
    assert not isinstance(at_size, str)
    assert isinstance(limit.trajectory, dict)
    assert isinstance(at_size.trajectory, dict)
    for name in ("mse", "overlap", "trace", "overlap_beyond_chance"):
        column = np.array(limit.trajectory[name])[:, 0]
        np.testing.assert_allclose(column, at_size.trajectory[f"{name}_limit"])
    assert limit.mse[0] == pytest.approx(limit.trajectory["mse"][-1][0])
    narrow = Sgd(online=True, steps=40, width=10, **parameters)
    assert "width" in str(narrow.theory(LINEAR, 1.0, Conditions()))


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
