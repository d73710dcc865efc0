"""Gradients against a loss written out and finite differences, and the rules of SGD, Adam and AdamW against textbooks."""

import itertools
import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from smimbench_attention.algorithms.adam import Adam, AdamW
from smimbench_attention.algorithms.gradient.loss import loss_gradient, surrogate
from smimbench_attention.algorithms.sgd import Sgd

from smimbench.backend.arrays import to_host
from smimbench.backend.device import get_backend
from smimbench.derive import observable
from smimbench.interfaces import Start
from smimbench.problem.problem import Problem
from smimbench.run.loop import Status
from tests.helpers import attention, run_once, sequence

PROBLEMS = {
    "sequence softmax": sequence(),
    "sequence softmax 3 tokens": sequence(tokens=3),
    "two layers": sequence(layers=2, skip=0.7),
    "three layers": sequence(layers=3),
    "two layers 3 tokens": sequence(tokens=3, layers=2),
    "sequence linear": sequence("linear", components=3, noise=0.1),
    "attention softmax": attention(rho=0.6, beta=1.7),
    "attention softmax 3 tokens": attention(rho=0.6, tokens=3),
    "attention linear": attention(
        "linear", rho=0.6, noise=0.2, noise_convention="plain"
    ),
}


def small(problem, backend=None, dimension=9):
    alpha = 1.5 if problem.model.kappa == 1 else 0.2
    instance = problem.instance(alpha, dimension)
    return instance, instance.data(backend or get_backend())


def test_changed_states_make_the_same_step_alone_and_together(rng):
    problem = attention("linear", rho=0.9, noise=0.1)
    _, data = small(problem)
    algorithm = Sgd(learning_rate=0.01)
    states = []
    for _ in range(2):
        state = algorithm.init(problem, data, rng)
        states.append(state._replace(factor=2 * state.factor, signal=4 * state.signal))
    together = algorithm.joint_step(problem)([data, data], states)
    for state, (next_state, _) in zip(states, together):
        alone, _ = algorithm.step(problem, data, state)
        assert_array_equal(next_state.factor, alone.factor)


def targets_of(problem, data):
    return observable(problem.channel, data.labels)


@pytest.mark.parametrize(
    "name", ["two layers", "attention softmax", "attention linear", "sequence linear"]
)
def test_students_are_independent_of_each_other(name, rng, backend):
    problem = PROBLEMS[name]
    _, data = small(problem, backend)
    targets = targets_of(problem, data)
    draws = np.stack(
        [
            problem.prior.factor.draw(rng, problem.components, data.dimension)
            for _ in range(3)
        ]
    )
    together = loss_gradient(problem, data.inputs, targets, backend.asarray(draws))
    assert together.loss.shape == (3,)
    for k in range(3):
        alone = loss_gradient(problem, data.inputs, targets, backend.asarray(draws[k]))
        assert float(together.loss[k]) == pytest.approx(float(alone.loss), rel=1e-12)
        assert np.allclose(
            to_host(together.gradient)[k],
            to_host(alone.gradient),
            rtol=1e-10,
            atol=1e-12,
        )


def test_saturated_probabilities_do_not_break_cross_entropy(rng):
    problem = attention(rho=0.6, beta=3000.0)
    _, data = small(problem)
    factor = problem.prior.factor.draw(rng, 1, data.dimension)
    found = loss_gradient(
        problem, data.inputs, targets_of(problem, data), factor, loss="cross-entropy"
    )
    assert np.isfinite(found.loss)
    assert np.isfinite(found.gradient).all()


@pytest.mark.parametrize("beta", [0.7, 30.0])
def test_surrogate_is_the_softmax_of_that_temperature(beta, rng):
    hard = attention("hardmax", 3, 0.6)
    soft = attention("softmax", 3, 0.6, beta=beta)
    z = rng.standard_normal((5, 1, 6))
    stand_in = surrogate(hard, beta)
    assert np.allclose(
        stand_in.observable(stand_in.forward(z)),
        soft.channel.observable(soft.channel.forward(z)),
    )
    cotangent = rng.standard_normal((5, 3, 3))
    assert np.allclose(stand_in.vjp(z, cotangent), soft.channel.vjp(z, cotangent))
    assert surrogate(soft, beta) is None


@pytest.mark.parametrize(
    "algorithm",
    [Adam(steps=60), Sgd(steps=60, learning_rate=0.05, surrogate_beta=(1.0, 8.0))],
)
def test_hardmax_is_learned_through_a_surrogate_that_says_so(algorithm):
    problem = attention("hardmax")
    instance = problem.instance(1.0, 24)
    assert algorithm.refuses(problem) is None
    result = run_once(problem, instance, algorithm)
    assert any(
        "surrogate" in warning and "softmax" in warning for warning in result.warnings
    )
    # The labels do not tell the scale, so the estimate has the prior's.
    assert (result.estimate**2).sum() / 24 == pytest.approx(1.5)
    assert result.metrics["overlap"][0] > 1.0


def test_certainty_is_no_divergence():
    """One-hot labels drive the factor's norm up for ever; the estimate, which is given the prior's norm, stays finite."""
    problem = sequence("hardmax", 3)
    instance = problem.instance(1.5, 150)
    rule = Sgd(learning_rate=0.05, batch=50, epochs=100)
    result = run_once(problem, instance, rule)
    assert result.status == Status.OK, result.reason
    assert (result.estimate**2).mean() == pytest.approx(1.0)  # the prior's norm


def walk(algorithm, problem, data, steps, seed=0):
    state = algorithm.init(problem, data, np.random.default_rng(seed))
    states = [state]
    for _ in range(steps):
        state, info = algorithm.step(problem, data, state)
        assert np.isfinite(float(info.residual))
        states.append(state)
    return states


def full_gradient(problem, data, factor, loss=None):
    """Of the loss that is the default: cross-entropy exactly where labels are rows of probabilities."""
    rows = "softmax" in problem.channel.name or "hardmax" in problem.channel.name
    loss = loss or ("cross-entropy" if rows else "squared")
    return loss_gradient(
        problem, data.inputs, targets_of(problem, data), factor, loss=loss
    ).gradient


def test_adamw_shrinks_apart_from_the_gradient():
    problem = PROBLEMS["sequence softmax"]
    _, data = small(problem)
    plain = walk(Adam(learning_rate=0.05), problem, data, 1)
    decayed = walk(AdamW(learning_rate=0.05, weight_decay=0.3), problem, data, 1)
    assert np.allclose(
        decayed[1].factor, plain[1].factor - 0.05 * 0.3 * plain[0].factor, rtol=1e-12
    )


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_with_momentum_and_decay_follows_the_textbook(nesterov):
    problem = PROBLEMS["two layers"]
    _, data = small(problem)
    rule = Sgd(
        learning_rate=0.1,
        momentum=0.6,
        nesterov=nesterov,
        weight_decay=0.2,
        schedule="1/t",
        decay_steps=3,
    )
    states = walk(rule, problem, data, 4)
    W, v = states[0].factor, 0.0
    for t in range(4):
        g = full_gradient(problem, data, W) / data.sample_ratio + 0.2 * W
        v = 0.6 * v + g
        W = W - 0.1 / (1 + t / 3) * (g + 0.6 * v if nesterov else v)
        assert np.allclose(states[t + 1].factor, W, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_step_may_take_several_gradients_of_one_objective(name, rng):
    """The penalty is part of it, and each evaluation counts its samples."""
    problem, seen = PROBLEMS[name], []

    class Probing(Adam):
        def advance(self, objective, factor, memory, rate, count):
            along, h = rng.standard_normal(factor.shape), 1e-5
            ends = [float(objective(factor + s * h * along).loss) for s in (1, -1)]
            seen.append(
                (
                    float((objective(factor).gradient * along).sum()),
                    (ends[0] - ends[1]) / (2 * h),
                )
            )
            return super().advance(objective, factor, memory, rate, count)

    _, data = small(problem)
    algorithm, n = Probing(weight_decay=3.0, batch=7), data.inputs.shape[0]
    _, info = algorithm.step(problem, data, algorithm.init(problem, data, rng))
    assert info.samples == 4 * min(7, n)
    assert seen[0][0] == pytest.approx(seen[0][1], rel=1e-6, abs=1e-7)


def test_an_epoch_sees_every_sample_once_and_its_mean_step_is_the_full_gradient():
    problem = PROBLEMS["sequence softmax"]
    instance = problem.instance(2.0, 10)  # 20 samples
    data = instance.data(get_backend())
    rule = Sgd(learning_rate=1e-9, batch=5, epochs=3)
    assert rule.plan(data).steps == 12
    states = walk(rule, problem, data, 8)
    full = full_gradient(problem, data, states[0].factor) / data.sample_ratio
    for epoch in (0, 1):
        moved = states[4 * epoch].factor - states[4 * epoch + 4].factor
        assert np.allclose(moved / 4e-9, full, rtol=1e-4, atol=1e-5)
    # Another order in the second epoch, another order for another seed, the same for the same seed.
    steps = [states[i].factor - states[i + 1].factor for i in range(8)]
    assert not np.allclose(steps[0], steps[4], rtol=1e-3, atol=0)
    assert np.array_equal(walk(rule, problem, data, 3)[-1].factor, states[3].factor)
    other = walk(rule, problem, data, 1, seed=1)
    assert not np.allclose(
        other[0].factor - other[1].factor, steps[0], rtol=1e-3, atol=0
    )
    assert [state.processed_samples for state in states] == [5 * i for i in range(9)]


def test_the_last_batch_of_an_epoch_may_be_short():
    problem = PROBLEMS["sequence softmax"]
    data = problem.instance(1.7, 10).data(get_backend())  # 17 samples
    states = walk(Adam(batch=5, epochs=2), problem, data, 8)
    assert [
        b.processed_samples - a.processed_samples for a, b in itertools.pairwise(states)
    ] == [5, 5, 5, 2] * 2
    assert Adam(batch=5, epochs=2).plan(data).steps == 8
    assert Adam(batch=500, epochs=2).plan(data).steps == 2


def test_online_learning_never_sees_a_sample_twice():
    problem = PROBLEMS["sequence linear"]
    instance = problem.instance(0.5, 12)
    data = instance.data(get_backend())
    asked = []

    def fresh(rng, n):
        inputs, labels = data.fresh(rng, n)
        asked.append(inputs)
        # Labels belong to the same teacher.
        z = problem.model.forward(inputs, instance.signal)
        assert np.abs(labels - z).max() < 6 * math.sqrt(0.1)
        return inputs, labels

    stream = type(data)(data.inputs, data.labels, data.sample_ratio, None, fresh)
    rule = Sgd(learning_rate=0.05, batch=4, steps=5, online=True)
    state = rule.init(problem, stream, np.random.default_rng(0))
    for _ in range(5):
        state, info = rule.step(problem, stream, state)
    assert info.samples == 20
    assert "fresh samples" in info.warning
    everything = np.concatenate(asked)
    assert everything.shape == (20, 2, 12)
    assert len(np.unique(everything[:, 0, 0])) == 20
    assert not np.isin(everything[:, 0, 0], np.asarray(data.inputs)[:, 0, 0]).any()


def test_online_learning_needs_a_source(rng):
    problem = PROBLEMS["sequence softmax"]
    _, data = small(problem)
    bare = type(data)(data.inputs, data.labels, data.sample_ratio)
    with pytest.raises(ValueError, match="needs fresh samples"):
        Sgd(online=True, batch=2, steps=3).init(problem, bare, rng)


@pytest.mark.parametrize("name", ["two layers", "attention softmax"])
def test_spherical_constraint_fixes_every_component(name):
    problem = PROBLEMS[name]
    _, data = small(problem)
    for state in walk(Sgd(learning_rate=0.3, spherical=True), problem, data, 3):
        norms = (state.factor**2).mean(axis=-1 if name == "two layers" else (-2, -1))
        assert np.allclose(norms, 1)


@pytest.mark.parametrize("name", ["two layers", "attention softmax"])
def test_inputs_may_be_streamed(name, rng):
    problem = PROBLEMS[name]
    streamed = small(problem)[0].data(get_backend(), stream=True)
    with pytest.raises(ValueError, match="fit in the memory"):
        walk(Sgd(batch=3, epochs=1), problem, streamed, 1)


@pytest.mark.parametrize("students", [None, 3])
@pytest.mark.parametrize("tokens", [2, 3])
def test_narrow_factors_take_a_shorter_way_to_the_same_gradient(
    students, tokens, rng, backend, monkeypatch
):
    problem = attention(rho=0.6, tokens=tokens)
    _, data = small(problem, backend)
    shape = (1, 9, 4) if students is None else (students, 1, 9, 4)
    factor = backend.asarray(rng.standard_normal(shape))
    calls = []
    model = type(problem.model)
    for name in ("forward", "forward_gram"):
        plain = getattr(model, name)
        monkeypatch.setattr(
            model,
            name,
            lambda *a, plain=plain, name=name: calls.append(name) or plain(*a),
        )
    found = []
    for narrow in (0.75, 0.0):
        monkeypatch.setattr(
            "smimbench_attention.algorithms.gradient.loss.NARROW", narrow
        )
        calls.clear()
        found.append(
            loss_gradient(problem, data.inputs, targets_of(problem, data), factor)
        )
        assert set(calls) == {"forward_gram" if narrow else "forward"}
    assert np.allclose(to_host(found[0].loss), to_host(found[1].loss), rtol=1e-12)
    assert np.allclose(
        to_host(found[0].gradient), to_host(found[1].gradient), rtol=1e-9, atol=1e-11
    )


def test_a_start_that_is_not_used_is_said_to_be_unused():
    problem = PROBLEMS["sequence softmax"]
    instance = problem.instance(1.5, 9)
    plain = instance.data(get_backend())
    handed = instance.data(get_backend(), Start(np.ones((1, 9)), np.eye(1)))
    rule = Sgd(learning_rate=0.05, steps=2)
    states = [
        rule.step(problem, d, rule.init(problem, d, np.random.default_rng(0)))
        for d in (plain, handed)
    ]
    assert np.array_equal(states[0][0].factor, states[1][0].factor)
    assert states[0][1].warning is None
    assert "not used" in states[1][1].warning


# Every channel that has a derivative, on both models.
WRITTEN_OUT = [
    attention(),
    attention(tokens=4, beta=3.0),
    attention("linear", tokens=3),
    attention("linear", rho=1.5, noise=0.2, noise_convention="plain"),
    sequence(),
    sequence(tokens=3),
    sequence("linear", tokens=3, components=2, noise=0.1),
]


def softmax(m):
    e = np.exp(m - m.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def written_out(problem: Problem, inputs, targets, W) -> float:
    """The loss with every index matrix formed, sample by sample."""
    total = 0.0
    T, D = inputs.shape[1:]
    name, extensive = problem.channel.name, problem.model.kappa == 2
    for x, y in zip(inputs, targets):
        if extensive:
            S = W @ W.T / math.sqrt(W.shape[1] * D)
            h = (x @ S @ x.T - np.trace(S) * np.eye(T)) / math.sqrt(D)
            if name == "softmax":
                out, target = softmax(problem.channel.beta * h), y.reshape(T, T)
            else:
                out, target = (
                    np.array([h[a, b] for a in range(T) for b in range(a, T)]),
                    y,
                )
        else:
            z = W @ x.T / math.sqrt(D)
            out, target = (
                (softmax(np.outer(z[0], z[0])), y.reshape(T, T))
                if name == "softmax"
                else (z, y)
            )
        total += ((out - target) ** 2).sum()
    return total


@pytest.mark.parametrize("problem", WRITTEN_OUT, ids=str)
def test_loss_and_gradient_are_those_of_the_loss_written_out(problem, rng):
    """Every entry of the factor by central differences: the trace term, the symmetry and all normalizations take part."""
    D = 6
    instance = problem.instance(0.9, D)
    targets = np.asarray(observable(problem.channel, instance.labels))
    factor = problem.prior.factor.draw(rng, problem.components, D)
    found = loss_gradient(problem, instance.inputs, targets, factor)
    W = factor[0] if factor.ndim == 3 else factor

    def loss(shift):
        return written_out(problem, instance.inputs, targets, W + shift)

    assert float(found.loss) == pytest.approx(loss(0.0), rel=1e-10)
    numeric = np.empty_like(W)
    for index in np.ndindex(*W.shape):
        step = np.zeros_like(W)
        step[index] = 1e-5
        numeric[index] = (loss(step) - loss(-step)) / 2e-5
    assert_allclose(
        found.gradient.reshape(W.shape),
        numeric,
        rtol=1e-5,
        atol=1e-6 * np.abs(numeric).max(),
    )


@pytest.mark.parametrize(
    ("problem", "loss", "descended"),
    [
        (attention(), "squared", "squared"),
        (attention(), None, "cross-entropy"),
        (sequence("linear", noise=0.1), None, "squared"),
    ],
)
def test_steps_are_those_of_the_textbook(problem, loss, descended):
    """First and second moments with bias correction, on the loss divided by D."""
    eta, b1, b2, epsilon, D = 0.07, 0.8, 0.95, 1e-3, 9
    instance = problem.instance(0.7, D)
    data = instance.data(get_backend("numpy"))
    algorithm = Adam(
        learning_rate=eta, steps=5, loss=loss, beta1=b1, beta2=b2, epsilon=epsilon
    )
    state = algorithm.init(problem, data, np.random.default_rng(2))
    targets = np.asarray(observable(problem.channel, instance.labels))
    W = np.array(state.factor)
    m, v = np.zeros_like(W), np.zeros_like(W)
    for t in range(1, 6):
        state, info = algorithm.step(problem, data, state)
        gradient = (
            loss_gradient(problem, instance.inputs, targets, W, loss=descended).gradient
            / D
        )
        m, v = b1 * m + (1 - b1) * gradient, b2 * v + (1 - b2) * gradient**2
        before = W
        W = W - eta * (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + epsilon)
        assert_allclose(state.factor, W, rtol=1e-9, atol=1e-11)
        assert np.isfinite(float(info.residual))
        assert float(info.residual) > 0
    assert not np.allclose(before, W)
    signal = (
        W @ np.swapaxes(W, -1, -2) / math.sqrt(W.shape[-1] * D)
        if problem.model.kappa == 2
        else W
    )
    assert_allclose(algorithm.estimate(state), signal, atol=1e-10)


def test_the_start_is_standard_normal_and_as_wide_as_asked():
    problem = attention(rho=0.5)
    data = problem.instance(0.01, 80).data(get_backend("numpy"))
    for width, columns in ((None, 40), (7, 7), (200, 200)):
        factor = Adam(width=width).init(problem, data, np.random.default_rng(1)).factor
        assert factor.shape == (1, 80, columns)
        assert np.mean(factor) == pytest.approx(0, abs=0.15)
        assert np.std(factor) == pytest.approx(1, abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("alpha", "d", "published", "tolerance"),
    [(0.0505, 100, 1.30, 0.12), (0.2101, 60, 0.044, 0.02)],
)
def test_the_recipe_gives_the_published_errors(alpha, d, published, tolerance):
    """arXiv:2506.01582, gradient descent of a single student, T = 2, rho = 0.5: with its loss the default is that recipe."""
    attempt = run_once(
        attention(), attention().instance(alpha, d), Adam(loss="squared")
    )
    assert attempt.metrics["mse"][0] == pytest.approx(published, abs=tolerance)
