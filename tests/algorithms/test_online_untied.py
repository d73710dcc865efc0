"""Draws of online descent on untied queries and keys: against runs, and what is learned from labels of either parity."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from smimbench_attention.algorithms.gradient.online.fields import gradient_averages
from smimbench_attention.algorithms.gradient.online.matrices import (
    couples_opposite_pairs,
    draw_matrix_paths,
)
from smimbench_attention.algorithms.gradient.online.matrix_theory import matrix_theory
from smimbench_attention.algorithms.sgd import Sgd

from smimbench.interfaces import Channel, Conditions
from smimbench.problem import Problem
from tests.helpers import Square, assert_runs_follow


class Bell(Square):
    """Even labels that are not steep, ``y = exp(-z^2 / 2)``."""

    def forward(self, z, *, rng=None):
        return np.exp(-(z**2) / 2)

    def vjp(self, z, cotangent):
        return -z * np.exp(-(z**2) / 2) * cotangent


class Cube(Square):
    """Odd labels, ``y = (z^3 - 3 z) / 6``, whose mean derivative vanishes at the variance 1 of latents."""

    def forward(self, z, *, rng=None):
        return (z**3 - 3 * z) / 6

    def vjp(self, z, cotangent):
        return (z**2 - 1) / 2 * cotangent


class SumOfOpposites(Square):
    """Labels of two tokens that see the sum of the latents of 12 and 21."""

    def forward(self, z, *, rng=None):
        return z.sum(axis=-1, keepdims=True)

    def vjp(self, z, cotangent):
        return np.repeat(cotangent, z.shape[-1], axis=-1)


def untied(channel: Any, tokens: int = 2, rho: float = 0.5) -> Problem:
    """Queries and keys of width ratio ``rho``; channels that are not registered are put in place of linear labels."""
    model = {"name": "attention-indexed", "tokens": tokens, "symmetric": False}
    is_registered = not isinstance(channel, Channel)
    problem = Problem(
        model, channel if is_registered else "linear", {"name": "bilinear", "rho": rho}
    )
    if not is_registered:
        problem.channel = channel
    return problem


LINEAR = untied({"name": "linear", "noise": 0.2})
SOFTMAX = untied("softmax", tokens=3)
SETTINGS = {
    "linear": (LINEAR, {"learning_rate": 2e-3, "batch": 240}),
    "linear, wide": (
        untied({"name": "linear", "noise": 0.2}, tokens=3, rho=1.5),
        {"learning_rate": 1e-3, "batch": 400, "momentum": 0.5, "weight_decay": 2.0},
    ),
    "softmax": (SOFTMAX, {"learning_rate": 2e-2, "batch": 600}),
    "softmax, squared": (
        SOFTMAX,
        {"learning_rate": 3e-2, "batch": 1200, "loss": "squared", "width": 40},
    ),
    "bells": (untied(Bell()), {"learning_rate": 3e-2, "batch": 1600}),
}


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS, ids=list(SETTINGS))
def test_runs_follow_the_draws(setting: str) -> None:
    problem, parameters = SETTINGS[setting]
    algorithm = Sgd(online=True, steps=60, **parameters)
    assert_runs_follow(problem, algorithm, dimension=100, seeds=8)


def drawn_overlaps(problem: Problem, rate: float, steps: int, D: int) -> np.ndarray:
    """Overlaps with the teacher at the end of twelve draws."""
    algorithm = Sgd(online=True, steps=steps, learning_rate=rate, batch=10**6)
    path = draw_matrix_paths(
        problem, algorithm, "squared", [0, steps], [10**6], D, range(12)
    )
    return path.overlaps.cross[:, -1, 0, 0, 0]


@pytest.mark.slow
def test_linear_labels_recover_and_even_ones_do_not() -> None:
    """Even labels multiply the overlap of the start, of order 1/D, by a number that does not depend on D."""
    multiples = []
    for D in (60, 120):
        assert drawn_overlaps(LINEAR, 2e-3, 150, D).min() > 0.75
        overlaps = drawn_overlaps(untied(Bell()), 1e-2, 200, D)
        multiples.append(D * np.sqrt(np.mean(overlaps**2)))
    assert multiples[0] < 9
    assert multiples[1] == pytest.approx(multiples[0], rel=0.1)


@pytest.mark.parametrize(
    ("problem", "learns"),
    [(LINEAR, True), (SOFTMAX, True), (untied(Bell()), False), (untied(Cube()), False)],
    ids=["linear", "softmax", "bells", "cubes"],
)
def test_force_on_the_overlap_at_zero_overlap(problem: Problem, learns: bool) -> None:
    """``E sum_c d2 l / dz dz*`` at zero overlap says whether anything is learned in the time of the flow."""
    averages = gradient_averages(problem, "squared", np.ones((1, 1, 1)))
    zero = np.zeros((4, 1, 1, 1))
    force = averages(zero, zero + 1.0).on_teacher.ravel()
    if learns:
        assert (force < -0.01).all()
    else:
        assert np.abs(force.mean()) < 4 * force.std() / 2 + 1e-9
        assert np.abs(force).max() < 0.1


def test_labels_that_are_too_steep_for_the_dimension_are_refused() -> None:
    algorithm = Sgd(online=True, steps=10, learning_rate=1e-4, batch=10**4)
    conditions = Conditions(dimension=60)
    assert "steep" in str(matrix_theory(algorithm, untied(Cube()), 1.0, conditions))
    reason = matrix_theory(algorithm, untied(Bell()), 1.0, conditions)
    assert not isinstance(reason, str)


def test_labels_that_couple_opposite_pairs_are_refused() -> None:
    for problem in (LINEAR, SOFTMAX, untied(Bell())):
        assert not couples_opposite_pairs(problem, "squared")
    coupled = untied(SumOfOpposites())
    assert couples_opposite_pairs(coupled, "squared")
    algorithm = Sgd(online=True, steps=10, learning_rate=1e-3, batch=10)
    reason = matrix_theory(algorithm, coupled, 1.0, Conditions(dimension=40))
    assert "couple" in str(reason)
