"""Online descent: equations and draws against closed forms, single steps, whole runs and recursions written out here."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats
from scipy.special import ndtr
from smimbench_attention.algorithms.gradient.loss import fitting_loss
from smimbench_attention.algorithms.gradient.online import equations, fields
from smimbench_attention.algorithms.gradient.online.equations import solve
from smimbench_attention.algorithms.gradient.online.theory import typical_starts
from smimbench_attention.algorithms.least_squares import additive_noise
from smimbench_attention.algorithms.sgd import Sgd

import smimbench
from smimbench.backend import get_backend
from smimbench.interfaces import Conditions, Overlaps
from tests.helpers import Square


def accuracy(monkeypatch, **choices):
    monkeypatch.setattr(fields, "ACCURACY", fields.ACCURACY._replace(**choices))


def sequence(channel, tokens=2):
    return smimbench.Problem(
        {"name": "sequence-multi-index", "tokens": tokens}, channel, "gaussian"
    )


LINE = sequence({"name": "linear", "noise": 0.3})
SOFTMAX = sequence({"name": "softmax", "layers": 1})
DEEP = sequence({"name": "softmax", "layers": 2, "skip": 1.0})


class Retrieval:
    channel, components = Square(), 1
    model = SOFTMAX.model.__class__(tokens=1)


def test_phase_retrieval_has_its_closed_form():
    """``g = 4 z (z^2 - z*^2)``: Isserlis' theorem gives all moments."""
    M, Q, T = 0.3, 0.8, 1.1
    averages = fields.gradient_averages(Retrieval(), "squared", np.full((1, 1, 1), T))
    found = averages(np.full((2, 1, 1, 1), M), np.full((2, 1, 1, 1), Q))
    on_teacher, on_student, square = (part.ravel() for part in found)
    assert_allclose(
        on_teacher * M + on_student * Q, 4 * (3 * Q**2 - Q * T - 2 * M**2), rtol=1e-10
    )
    assert_allclose(on_teacher * T + on_student * M, 12 * M * (Q - T), rtol=1e-10)
    sixth, mixed = 15 * Q**3, 3 * Q**2 * T + 12 * Q * M**2
    assert_allclose(
        square, 16 * (sixth - 2 * mixed + 3 * T**2 * Q + 12 * T * M**2), rtol=1e-10
    )


def repeated(problem, algorithm, D, repeats, seed, at_random=False):
    """Overlaps of a point, those after all steps of the algorithm from there, again and again, and the recursion's rule."""
    instance = problem.instance(0.01, D)
    data, rng = instance.data(get_backend()), np.random.default_rng(seed)
    begin = algorithm.init(problem, data, rng)
    if not at_random:
        factor = 0.5 * instance.signal + 0.7 * begin.factor
        begin = begin._replace(factor=factor, signal=factor)
    ends = []
    for _ in range(repeats):
        state = begin._replace(rng=rng)
        for _ in range(algorithm.steps):
            state, _ = algorithm.step(problem, data, state)
        ends.append(np.stack(instance.overlaps(state.factor)[1:]))
    rule = equations.DescentRule(
        lambda step: algorithm.learning_rate, algorithm.batch / D, algorithm.weight_decay, algorithm.momentum,
        algorithm.nesterov, algorithm.spherical,
    )  # fmt: skip
    return instance.overlaps(begin.factor), np.array(ends), rule


@pytest.mark.parametrize(
    ("problem", "parameters"),
    [
        (SOFTMAX, {"loss": "squared", "learning_rate": 0.3}),
        (SOFTMAX, {"learning_rate": 0.05, "momentum": 0.6}),
        (
            DEEP,
            {
                "loss": "squared",
                "learning_rate": 0.2,
                "momentum": 0.5,
                "nesterov": True,
                "weight_decay": 0.3,
            },
        ),
        (DEEP, {"loss": "squared", "learning_rate": 0.3, "spherical": True}),
    ],
)
def test_steps_of_the_algorithm_move_overlaps_as_the_recursion_says(
    problem, parameters
):
    """Three steps from one point, again and again: the mean move is the recursion's, up to 1/D."""
    algorithm = Sgd(batch=60, steps=3, online=True, **parameters)
    start, ends, rule = repeated(problem, algorithm, 300, 150, 5)
    path = solve(
        problem, algorithm.loss or fitting_loss(problem), rule, [start], [0, 1, 2, 3]
    )
    wanted = np.stack([path.cross[:, -1, 0], path.self_overlap[:, -1, 0]], axis=1)
    error, spread = ends.std(axis=0) / np.sqrt(len(ends)), wanted.std(axis=0) / 2
    moved = np.abs(wanted.mean(axis=0) - np.stack(start[1:]))
    gap = np.abs(ends.mean(axis=0) - wanted.mean(axis=0))
    # The last term is of order 1/D; a wrong factor of any term would be far larger.
    assert (gap < 4 * np.hypot(error, spread) + 0.02 * moved.max()).all(), (
        gap,
        error,
        spread,
        moved,
    )


@pytest.mark.parametrize(
    ("problem", "parameters"),
    [
        (
            DEEP,
            {
                "learning_rate": 0.2,
                "momentum": 0.5,
                "nesterov": True,
                "weight_decay": 0.3,
            },
        ),
        (SOFTMAX, {"learning_rate": 0.4, "spherical": True}),
    ],
)
def test_draws_have_the_law_of_the_algorithm(problem, parameters):
    """Two steps at D = 30, again and again: the law of every overlap and of their sum, no order in 1/D left out."""
    draws, algorithm = (
        4000,
        Sgd(batch=8, steps=2, online=True, loss="squared", **parameters),
    )
    start, ends, rule = repeated(
        problem, algorithm, 30, 400, 6, at_random=algorithm.spherical
    )
    path = equations.draw_paths(problem, "squared", rule, [start], [0, 2], draws, 8, 30)
    drawn = np.concatenate(
        [part[:, -1, 0].reshape(draws, -1) for part in (path.cross, path.self_overlap)],
        axis=1,
    )
    runs = ends.reshape(len(ends), -1)
    for k in range(runs.shape[1]):
        if runs[:, k].std() > 1e-9:  # a sphere leaves nothing to chance
            assert stats.ks_2samp(runs[:, k], drawn[:, k]).pvalue > 1e-3
    assert stats.ks_2samp(runs.sum(axis=1), drawn.sum(axis=1)).pvalue > 1e-3


def states_of(algorithm, instance, rng, factor=None):
    """States of a run from its first factor or a given one, before the first step and after each."""
    data = instance.data(get_backend())
    states = [algorithm.init(SOFTMAX, data, rng)]
    if factor is not None:
        states = [states[0]._replace(factor=factor, signal=factor)]
    for _ in range(algorithm.steps):
        states.append(algorithm.step(SOFTMAX, data, states[-1])[0])
    return states


@pytest.mark.slow
def test_runs_that_escape_from_nothing_follow_the_draws():
    """From a random start at D = 60 the equations are far off, the mean of draws is that of runs."""
    D, starts, ends = 60, [], []
    algorithm = Sgd(learning_rate=0.08, batch=6, steps=50, online=True, loss="squared")
    for run in range(24):
        instance = SOFTMAX.instance(0.01, D, run)
        first, *_, last = states_of(algorithm, instance, np.random.default_rng(run))
        starts.append(instance.overlaps(first.factor))
        ends.append(instance.metrics(last.factor)["mse"][0])
    conditions = Conditions(dimension=D, starts=tuple(starts))
    point = algorithm.theory(SOFTMAX, 180.0, conditions)
    assert "draws" in point.method
    error = np.hypot(np.std(ends) / np.sqrt(len(ends)), point.mse_error)
    assert abs(np.mean(ends) - point.mse) < 3.5 * error
    assert error < 0.15 * point.mse


@pytest.mark.slow
def test_an_escape_is_followed_all_the_way_where_chance_is_small(monkeypatch):
    """One softmax layer from an overlap of 0.3, large batches: within 4% from the start until 99% of the error is gone."""
    accuracy(monkeypatch, draw_range=(16, 16))
    D, curves, starts = 200, [], []
    algorithm = Sgd(
        learning_rate=0.2, batch=1200, steps=30, online=True, loss="squared"
    )
    for run in range(4):
        instance, rng = SOFTMAX.instance(0.01, D, run), np.random.default_rng(run)
        noise = rng.standard_normal(instance.signal.shape)
        factor = 0.3 * instance.signal + np.sqrt(1 - 0.3**2) * noise
        starts.append(instance.overlaps(factor))
        states = states_of(algorithm, instance, rng, factor)
        curves.append([instance.metrics(state.factor)["mse"][0] for state in states])
    conditions = Conditions(dimension=D, starts=tuple(starts))
    path = algorithm.theory(SOFTMAX, 180.0, conditions).trajectory
    theory, mean = np.ravel(path["mse"]), np.mean(curves, axis=0)[path["iteration"]]
    assert theory[0] == pytest.approx(mean[0])
    assert theory[-1] < 0.01 * theory[0]
    assert np.abs(mean / theory - 1).max() < 0.04


@pytest.mark.parametrize("components", [1, 2])
def test_noise_that_differs_by_rounding_is_one_noise(components):
    for tokens in (1, 2, 3):
        for noise in (0.0, 0.05, 0.1, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 0.9, 1.0, 2.0):
            kind = sequence(
                {"name": "linear", "noise": noise, "components": components}, tokens
            )
            assert additive_noise(kind) is not None, (tokens, noise)


SIZE, SITES, NOISE = 500, 2, 0.3


PROBIT = sequence({"name": "probit", "noise": 0.5}, 1)


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
                "step": (algorithm.decay_factor or 1)
                ** (step // (algorithm.decay_steps or 1)),
            }[algorithm.schedule]
        )
        error = gram[0, 0] - 2 * gram[0, 1] + gram[1, 1]
        # The last term is what the square of a mean over B samples of C tokens has beyond the square of the mean.
        noise = (
            4 * SITES * (error + NOISE) * SIZE / algorithm.batch
            + 4 * SITES * error / algorithm.batch
        )
        gradient = np.array([-2 * SITES, 2 * SITES + algorithm.weight_decay, 0.0, 1.0])
        velocity = np.array([0.0, 0.0, m, 0.0]) + gradient
        along = gradient + m * velocity if algorithm.nesterov else velocity
        new = np.stack(
            [
                [1.0, 0.0, 0.0, 0.0],
                np.array([0.0, 1.0, 0.0, 0.0]) - rate * along,
                velocity,
            ]
        )
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
            online=True, steps=int(rng.integers(300, 2000)), batch=int(rng.integers(100, 600)), momentum=momentum,
            learning_rate=float(10 ** rng.uniform(-3, -1.6)) * (1 - momentum), nesterov=bool(momentum and rng.random() < 0.5),
            weight_decay=float(rng.choice([0.0, 0.4])), **schedule,
        )  # fmt: skip


@pytest.mark.parametrize("algorithm", list(linear_runs(16)))
def test_linear_labels_have_their_closed_form(algorithm):
    """All steps are made one by one: momentum, schedules, 300 to 2000 of them."""
    gram = linear_recursion(algorithm, 1.1, 0.1, 0.9)
    point = algorithm.theory(
        LINE, 1.0, Conditions(dimension=SIZE, starts=(overlaps(1.1, 0.1, 0.9),))
    )
    assert point.overlap[0][0] == pytest.approx(gram[0, 1], rel=1e-9)
    assert point.own_overlap[0][0] == pytest.approx(gram[1, 1], rel=1e-9)
    assert point.mse == pytest.approx(
        gram[0, 0] - 2 * gram[0, 1] + gram[1, 1], rel=1e-9
    )
    assert point.trajectory["samples"][-1] == algorithm.batch * algorithm.steps


def descended(rng, teacher, student, steps, batch, rate, momentum=0.0):
    """Students of many runs (runs, D) after online descent on linear labels, written out."""
    size, velocity = teacher.shape[1], 0.0
    for _ in range(steps):
        x = rng.standard_normal((len(teacher), batch * SITES, size)) / np.sqrt(size)
        noise = np.sqrt(NOISE) * rng.standard_normal(x.shape[:2])
        gap = np.einsum("rbd,rd->rb", x, student - teacher) - noise
        gradient = 2 * size / batch * np.einsum("rb,rbd->rd", gap, x)
        velocity = momentum * velocity + gradient
        student = student - rate * velocity
    return student


@pytest.mark.slow
def test_the_mean_of_linear_descent_is_exact_at_every_dimension():
    """Ten dimensions and batches of three: 60,000 runs, written down here. The mean of a ratio is within its stated error."""
    size, batch, rate, momentum, runs = 10, 3, 0.02, 0.5, 60_000
    algorithm = Sgd(
        online=True, steps=25, batch=batch, learning_rate=rate, momentum=momentum
    )
    point = algorithm.theory(
        LINE, 1.0, Conditions(dimension=size, starts=(overlaps(1.0, 0.1, 0.9),))
    )
    rng = np.random.default_rng(3)
    teacher, student = np.zeros((2, runs, size))
    teacher[:, 0], student[:, 0], student[:, 1] = (
        np.sqrt(size) * np.array([[1.0, 0.1, np.sqrt(0.89)]]).T
    )
    student = descended(rng, teacher, student, 25, batch, rate, momentum)
    mse = np.mean((student - teacher) ** 2, axis=1)
    cosine = (student[:, 0] ** 2) / np.sum(student**2, axis=1)
    assert abs(point.mse - mse.mean()) < 4 * mse.std() / np.sqrt(runs)
    assert point.mse_error == 0.0
    assert (
        abs(point.more["squared_cosine"][0] - cosine.mean())
        < 3 * point.more["squared_cosine_error"][0]
        < 0.05
    )
    # Without what the square of a mean has in a batch it would be off by more than chance.
    limit = solve(LINE, "squared", equations.DescentRule(lambda step: rate, batch / size, momentum=momentum),
                         [overlaps(1.0, 0.1, 0.9)], [0, 25])  # fmt: skip
    T, M, Q = (
        part[0, -1, 0, 0, 0] for part in (limit.truth, limit.cross, limit.self_overlap)
    )
    assert abs(T - 2 * M + Q - mse.mean()) > 6 * mse.std() / np.sqrt(runs)


@pytest.mark.slow
def test_without_runs_linear_labels_start_from_the_mean_over_all_signals():
    """Six dimensions: the error of 100,000 teachers and students."""
    size, batch, rate, runs = 6, 4, 0.1, 100_000
    point = Sgd(online=True, steps=8, batch=batch, learning_rate=rate).theory(
        LINE, 1.0, Conditions(dimension=size)
    )
    rng = np.random.default_rng(5)
    teacher, student = rng.standard_normal((2, runs, size))
    student = descended(rng, teacher, student, 8, batch, rate)
    mse = np.mean((student - teacher) ** 2, axis=1)
    assert abs(point.mse - mse.mean()) < 4 * mse.std() / np.sqrt(runs)
    assert point.mse_error == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("batch", [20, 2000])
def test_without_runs_the_spread_of_typical_starts_is_in_the_error(batch):
    """By draws of small batches and by the equations of large ones, against 150 starts."""
    D, problem = 60, sequence({"name": "probit", "noise": 0.5}, tokens=1)
    algorithm = Sgd(online=True, steps=5, batch=batch, learning_rate=0.05)
    point = algorithm.theory(problem, 1.0, Conditions(dimension=D))
    many = tuple(typical_starts(problem, D, False, 150))
    wanted = algorithm.theory(problem, 1.0, Conditions(dimension=D, starts=many))
    spread = np.std([start.own - 2 * start.cross for start in many]) / 4
    assert 0.3 * spread < point.mse_error < 3 * spread
    assert abs(point.mse - wanted.mse) < 4 * np.hypot(point.mse_error, wanted.mse_error)


@pytest.mark.slow
def test_long_runs_get_fewer_points_and_a_larger_error(monkeypatch):
    """Noiseless labels from a large overlap, 1200 steps: the rough answer is within a few of its stated errors."""
    algorithm = Sgd(
        online=True, learning_rate=0.01, batch=1000, steps=1200, loss="squared"
    )
    conditions = Conditions(dimension=2000, starts=(overlaps(1.0, 0.3, 1.0),))
    exact = algorithm.theory(SOFTMAX, 1.0, conditions)
    accuracy(monkeypatch, largest_latents=2.5e6)  # instead of 1.7e7
    rough = algorithm.theory(SOFTMAX, 1.0, conditions)
    assert 0 <= exact.mse_error < rough.mse_error
    assert abs(rough.mse - exact.mse) <= 5 * rough.mse_error
    accuracy(monkeypatch, largest_latents=1e5)
    reason = algorithm.theory(SOFTMAX, 1.0, conditions)
    assert "1200 steps takes longer than a minute" in reason


def test_a_long_memory_does_not_count_as_divergence():
    """Velocities are ``1/(1 - m)`` times as large as gradients; the student stays small."""
    algorithm = Sgd(
        online=True, learning_rate=1e-7, batch=250, steps=600, momentum=0.999
    )
    gram = linear_recursion(algorithm, 1.0, 0.1, 1.0)
    assert gram[2, 2] > equations.DIVERGED_OVERLAP
    point = algorithm.theory(
        LINE, 1.0, Conditions(dimension=SIZE, starts=(overlaps(1.0, 0.1, 1.0),))
    )
    assert point.own_overlap[0][0] == pytest.approx(gram[1, 1], rel=1e-9)


def probit_by_quadrature(noise, rate, fraction, steps, T, M, Q):
    """One token, labels +-1 summed over, both fields on Gauss nodes."""
    x, w = np.polynomial.hermite_e.hermegauss(40)
    u, v = np.meshgrid(x, x, indexing="ij")
    weight = np.outer(w, w) / w.sum() ** 2
    for _ in range(steps):
        z, truth = np.sqrt(Q) * u, M / np.sqrt(Q) * u + np.sqrt(T - M**2 / Q) * v
        shown, mean = (2 * ndtr(field / np.sqrt(noise)) - 1 for field in (z, truth))
        slope = 2 * np.exp(-(z**2) / 2 / noise) / np.sqrt(2 * np.pi * noise)
        on_student, on_teacher = (
            (weight * 2 * (shown - mean) * slope * field).sum() for field in (z, truth)
        )
        square = (weight * 4 * slope**2 * (shown**2 - 2 * shown * mean + 1)).sum()
        both = np.array([on_teacher, on_student])
        drift = both @ np.linalg.solve([[T, M], [M, Q]], both)
        M, Q = (
            M - rate * on_teacher,
            Q - 2 * rate * on_student + rate**2 * (square / fraction + drift),
        )
    return M, Q


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rate", "fraction", "steps"), [(0.05, 1.0, 150), (0.01, 0.3, 400)]
)
def test_noisy_labels_of_one_token_agree_with_quadrature(rate, fraction, steps):
    T, M, Q = 1.0, 0.3, 1.0
    cross, own = probit_by_quadrature(0.5, rate, fraction, steps, T, M, Q)
    path = solve(
        PROBIT,
        "squared",
        equations.DescentRule(lambda step: rate, fraction),
        [overlaps(T, M, Q)],
        [0, steps],
    )
    for wanted, found in (
        (cross, path.cross),
        (own, path.self_overlap),
        (T - 2 * cross + own, T - 2 * path.cross + path.self_overlap),
    ):
        each = found[:, -1].ravel()
        error = each.std(ddof=1) / np.sqrt(len(each))
        assert error < 3e-3
        assert abs(each.mean() - wanted) < 4 * error + 1e-4


def test_draws_become_the_equations_as_the_dimension_grows():
    rule, start = (
        equations.DescentRule(lambda step: 0.2, 0.1),
        Overlaps(*(np.array([[value]]) for value in (1.0, 0.2, 0.9))),
    )
    solved = solve(SOFTMAX, "squared", rule, [start], [0, 20])
    drawn = equations.draw_paths(
        SOFTMAX, "squared", rule, [start], [0, 20], 16, 2000, 20_000
    )
    for name in ("cross", "self_overlap"):
        wanted, found = (
            getattr(solved, name)[:, -1].ravel(),
            getattr(drawn, name)[:, -1].ravel(),
        )
        error = np.hypot(wanted.std() / 2, found.std() / 4)
        assert abs(wanted.mean() - found.mean()) < 4 * error + 2e-3
