"""Online descent over many steps, and with noisy labels: against recursions and quadrature that are written down here."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ndtr
from smimbench_algorithms.gradient import online
from smimbench_algorithms.gradient.online_theory import solve
from smimbench_algorithms.sgd import Sgd

import smimbench
from smimbench.interfaces import Conditions, Overlaps

D, SITES, NOISE = 500, 2, 0.3


def accuracy(monkeypatch, **choices):
    monkeypatch.setattr(online, "ACCURACY", online.ACCURACY._replace(**choices))


def problem(channel, tokens=SITES):
    return smimbench.Problem({"name": "sequence-multi-index", "tokens": tokens}, channel, "gaussian")


LINE, SOFTMAX = problem({"name": "linear", "noise": NOISE}), problem({"name": "softmax", "layers": 1})
PROBIT = problem({"name": "probit", "noise": 0.5}, 1)


def overlaps(T, M, Q):
    return Overlaps(*(np.array([[value]]) for value in (T, M, Q)))


def linear_recursion(algorithm, T, M, Q):
    """Gram matrix of teacher, student and velocity, step by step: ``g = 2 (z - z* - noise)`` on every token."""
    gram, m = np.array([[T, M, 0.0], [M, Q, 0.0], [0.0, 0.0, 0.0]]), algorithm.momentum
    for step in range(algorithm.steps):
        rate = (
            algorithm.learning_rate
            * {
                "constant": 1.0,
                "1/t": 1 / (1 + step / (algorithm.decay_steps or 1)),
                "cosine": (1 + math.cos(math.pi * step / algorithm.steps)) / 2,
                "step": (algorithm.decay_factor or 1) ** (step // (algorithm.decay_steps or 1)),
            }[algorithm.schedule]
        )
        error = gram[0, 0] - 2 * gram[0, 1] + gram[1, 1]
        # The last term is what the square of a mean over B samples of C tokens has beyond the square of the mean.
        noise = 4 * SITES * (error + NOISE) * D / algorithm.batch + 4 * SITES * error / algorithm.batch
        gradient = np.array([-2 * SITES, 2 * SITES + algorithm.weight_decay, 0.0, 1.0])
        velocity = np.array([0.0, 0.0, m, 0.0]) + gradient
        along = gradient + m * velocity if algorithm.nesterov else velocity
        new = np.stack([[1.0, 0.0, 0.0, 0.0], np.array([0.0, 1.0, 0.0, 0.0]) - rate * along, velocity])
        gram = new[:, :3] @ gram @ new[:, :3].T + noise * np.outer(new[:, 3], new[:, 3])
    return gram


def linear_runs(count):
    """Random parameters of all kinds, at rates that are stable."""
    rng = np.random.default_rng(11)
    for k in range(count):
        momentum = [0.0, 0.5, 0.9, 0.97][k % 4]
        schedule = [
            {},
            {"schedule": "1/t", "decay_steps": int(rng.integers(1, 60))},
            {"schedule": "cosine"},
            {
                "schedule": "step",
                "decay_steps": int(rng.integers(5, 900)),
                "decay_factor": float(rng.uniform(0.3, 0.95)),
            },
        ][(k // 4) % 4]
        yield Sgd(
            online=True, steps=int(rng.integers(300, 5000)), batch=int(rng.integers(100, 600)), momentum=momentum,
            learning_rate=float(10 ** rng.uniform(-3, -1.6)) * (1 - momentum), nesterov=bool(momentum and rng.random() < 0.5),
            weight_decay=float(rng.choice([0.0, 0.4])), **schedule,
        )  # fmt: skip


@pytest.mark.parametrize("algorithm", list(linear_runs(16)))
def test_linear_labels_have_their_closed_form(algorithm):
    """All steps are made one by one: momentum, schedules, 300 to 5000 of them."""
    gram = linear_recursion(algorithm, 1.1, 0.1, 0.9)
    point = algorithm.theory(LINE, 1.0, Conditions(dimension=D, starts=(overlaps(1.1, 0.1, 0.9),)))
    assert point["overlap"][0][0] == pytest.approx(gram[0, 1], rel=1e-9)
    assert point["own_overlap"][0][0] == pytest.approx(gram[1, 1], rel=1e-9)
    assert point["mse"] == pytest.approx(gram[0, 0] - 2 * gram[0, 1] + gram[1, 1], rel=1e-9)
    assert point["trajectory"]["samples"][-1] == algorithm.batch * algorithm.steps


def test_the_mean_of_linear_descent_is_exact_at_every_dimension():
    """Ten dimensions and batches of three: 60,000 runs, written down here. The mean of a ratio is within its stated error."""
    size, batch, rate, momentum, runs = 10, 3, 0.02, 0.5, 60_000
    algorithm = Sgd(online=True, steps=25, batch=batch, learning_rate=rate, momentum=momentum)
    point = algorithm.theory(LINE, 1.0, Conditions(dimension=size, starts=(overlaps(1.0, 0.1, 0.9),)))
    rng = np.random.default_rng(3)
    teacher, student, velocity = np.zeros((3, runs, size))
    teacher[:, 0], student[:, 0], student[:, 1] = np.sqrt(size) * np.array([[1.0, 0.1, np.sqrt(0.89)]]).T
    for _ in range(algorithm.steps):
        x = rng.standard_normal((runs, batch * SITES, size)) / np.sqrt(size)
        gap = np.einsum("rbd,rd->rb", x, student - teacher) - np.sqrt(NOISE) * rng.standard_normal(x.shape[:2])
        velocity = momentum * velocity + 2 * size / batch * np.einsum("rb,rbd->rd", gap, x)
        student = student - rate * velocity
    mse = np.mean((student - teacher) ** 2, axis=1)
    cosine = (student[:, 0] ** 2) / np.sum(student**2, axis=1)
    assert abs(point["mse"] - mse.mean()) < 4 * mse.std() / np.sqrt(runs)
    assert point["mse_error"] == 0.0
    assert abs(point["squared_cosine"][0] - cosine.mean()) < 3 * point["squared_cosine_error"][0] < 0.05
    # Without what the square of a mean has in a batch it would be off by more than chance.
    limit = solve(LINE, "squared", online.Rule(lambda step: rate, batch / size, momentum=momentum),
                         [overlaps(1.0, 0.1, 0.9)], [0, 25])  # fmt: skip
    T, M, Q = (part[0, -1, 0, 0, 0] for part in (limit.truth, limit.cross, limit.own))
    assert abs(T - 2 * M + Q - mse.mean()) > 6 * mse.std() / np.sqrt(runs)


def test_long_runs_get_fewer_points_and_a_larger_error(monkeypatch):
    """Noiseless labels from a large overlap, 1200 steps: the rough answer is within a few of its stated errors."""
    algorithm = Sgd(online=True, learning_rate=0.01, batch=1000, steps=1200, loss="squared")
    conditions = Conditions(dimension=2000, starts=(overlaps(1.0, 0.3, 1.0),))
    exact = algorithm.theory(SOFTMAX, 1.0, conditions)
    accuracy(monkeypatch, latents=2.5e6)  # instead of 1.7e7
    rough = algorithm.theory(SOFTMAX, 1.0, conditions)
    assert 0 <= exact["mse_error"] < rough["mse_error"]
    assert abs(rough["mse"] - exact["mse"]) <= 5 * rough["mse_error"]
    accuracy(monkeypatch, latents=1e5)
    reason = algorithm.theory(SOFTMAX, 1.0, conditions)
    assert "1200 steps take longer than a minute" in reason


def test_a_long_memory_does_not_count_as_divergence():
    """Velocities are ``1/(1 - m)`` times as large as gradients; the student stays small."""
    algorithm = Sgd(online=True, learning_rate=1e-7, batch=250, steps=600, momentum=0.999)
    gram = linear_recursion(algorithm, 1.0, 0.1, 1.0)
    assert gram[2, 2] > online.LARGEST
    point = algorithm.theory(LINE, 1.0, Conditions(dimension=D, starts=(overlaps(1.0, 0.1, 1.0),)))
    assert point["own_overlap"][0][0] == pytest.approx(gram[1, 1], rel=1e-9)


def probit_by_quadrature(noise, rate, fraction, steps, T, M, Q):
    """One token, labels +-1 summed over, both fields on Gauss nodes."""
    x, w = np.polynomial.hermite_e.hermegauss(80)
    u, v = np.meshgrid(x, x, indexing="ij")
    weight = np.outer(w, w) / w.sum() ** 2
    for _ in range(steps):
        z, truth = np.sqrt(Q) * u, M / np.sqrt(Q) * u + np.sqrt(T - M**2 / Q) * v
        shown, mean = (2 * ndtr(field / np.sqrt(noise)) - 1 for field in (z, truth))
        slope = 2 * np.exp(-(z**2) / 2 / noise) / np.sqrt(2 * np.pi * noise)
        on_student, on_teacher = ((weight * 2 * (shown - mean) * slope * field).sum() for field in (z, truth))
        square = (weight * 4 * slope**2 * (shown**2 - 2 * shown * mean + 1)).sum()
        both = np.array([on_teacher, on_student])
        drift = both @ np.linalg.solve([[T, M], [M, Q]], both)
        M, Q = M - rate * on_teacher, Q - 2 * rate * on_student + rate**2 * (square / fraction + drift)
    return M, Q


@pytest.mark.parametrize(("rate", "fraction", "steps"), [(0.05, 1.0, 150), (0.01, 0.3, 400), (0.004, 0.2, 1100)])
def test_noisy_labels_of_one_token_agree_with_quadrature(rate, fraction, steps):
    T, M, Q = 1.0, 0.3, 1.0
    cross, own = probit_by_quadrature(0.5, rate, fraction, steps, T, M, Q)
    path = solve(PROBIT, "squared", online.Rule(lambda step: rate, fraction), [overlaps(T, M, Q)], [0, steps])
    for wanted, found in ((cross, path.cross), (own, path.own), (T - 2 * cross + own, T - 2 * path.cross + path.own)):
        each = found[:, -1].ravel()
        error = each.std(ddof=1) / np.sqrt(len(each))
        assert error < 3e-3
        assert abs(each.mean() - wanted) < 4 * error + 1e-4
