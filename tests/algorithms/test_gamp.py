"""GAMP against a dense implementation, exact posteriors and state evolution."""

import math
import tracemalloc

import numpy as np
import pytest
from numpy.testing import assert_allclose
from smimbench_attention.algorithms.gamp import LARGEST_EXCESS, Gamp
from smimbench_attention.algorithms.gamp.message_pass import DAMPING_SETTINGS

from smimbench.backend import to_host
from smimbench.backend.device import get_backend
from smimbench.problem import Problem
from smimbench.problem.instance import Instance
from smimbench.run.loop import Status
from smimbench.theory.predictions import solve
from tests.helpers import attention, run_once, sequence


def run(problem, alpha, dimension, replicate=0, algorithm=None, **settings):
    """One run through the engine's loop."""
    instance = problem.instance(alpha, dimension, replicate)
    return run_once(problem, instance, algorithm or Gamp(), seed=replicate, **settings)


def iterate(problem, instance, steps, start=None, algorithm=None):
    """Steps without the loop, which would stop as soon as the overlaps stand still: estimate and last report."""
    data = instance.data(get_backend("numpy"), start)
    algorithm = algorithm or Gamp()
    state = algorithm.init(problem, data, np.random.default_rng(0))
    for _ in range(steps):
        state, info = algorithm.step(problem, data, state)
    return algorithm.estimate(state), info


def dense_attention_step(x, h_label, state, weight, prior, *, by_sample):
    """An iteration in the indices h of the paper, every matrix written out; T = 2 softmax labels as h plus a constant.

    ``by_sample``: whether samples that are stronger than most take part with smaller weights.
    """
    S, V, onsager, old_g, old_qhat = state
    n, T, d = x.shape
    alpha = n / d**2
    pairs = [(0, 0), (0, 1), (1, 1)]
    scale = np.array([2.0, 1.0, 2.0])
    omega = np.empty((n, 3))
    for c, (a, b) in enumerate(pairs):
        omega[:, c] = (
            np.einsum("ni,ij,nj->n", x[:, a], S, x[:, b]) - (a == b) * np.trace(S)
        ) / math.sqrt(d)
    if old_g is not None:
        omega = omega - onsager * scale * old_g
    full_label = h_label[:, [0, 1, 1, 2]]
    full_omega = omega[:, [0, 1, 1, 2]]
    t = (full_label - full_omega).mean(1, keepdims=True)
    g = (h_label - omega - t) / (V * scale)
    qhat = alpha * (T * T + T - 2) / V
    if old_qhat is not None:
        own = np.full(n, weight)
        if by_sample:
            strength = (np.linalg.svd(x, compute_uv=False)[:, 0] ** 2 / d) ** 2
            own = weight * np.minimum(1, 0.8 * (1 + min(1, V * old_qhat)) / strength)
        g, qhat = (
            own[:, None] * g + (1 - own[:, None]) * old_g,
            weight * qhat + (1 - weight) * old_qhat,
        )
    adjoint = np.zeros((d, d))
    for c, (a, b) in enumerate(pairs):
        outer = np.einsum("n,ni,nj->ij", g[:, c], x[:, a], x[:, b])
        adjoint += (outer + outer.T) / 2 - (a == b) * g[:, c].sum() * np.eye(d)
    R = S + 2 / (qhat * d) * adjoint / math.sqrt(d)
    found = 2 * alpha * (scale * g**2).sum() / n
    excess = max(1.0, found / qhat)
    denoised = prior.denoise(R[None], np.array([[qhat / excess]]), continued=True)
    V_new = float(denoised.V[0, 0])
    S = weight * denoised.estimate[0] + (1 - weight) * S
    return (
        S,
        weight * V_new + (1 - weight) * V,
        weight * V_new / excess + (1 - weight) * onsager,
        g,
        qhat,
    )


@pytest.mark.parametrize("damping", [None, 0.0, 0.6])
def test_attention_steps_are_the_dense_iteration(damping, monkeypatch):
    """Five steps, so that the Onsager term, excess noise (from 1 on) and the damping of every part take part."""
    monkeypatch.setattr(Gamp, "largest_excess", 1.0)
    problem, d, rho = attention(), 14, 0.5
    instance = problem.instance(0.15, d)
    data = instance.data(get_backend("numpy"))
    algorithm = Gamp(damping=damping)
    state = algorithm.init(problem, data, np.random.default_rng(0))
    log_y = np.asarray(instance.labels).reshape(-1, 2, 2)
    h11, h22 = log_y[:, 0, 0] - log_y[:, 0, 1], log_y[:, 1, 1] - log_y[:, 1, 0]
    h_label = np.stack([h11, 0 * h11, h22], axis=1)
    dense = (math.sqrt(rho) * np.eye(d), 1.0, 1.0, None, None)
    exceeded, x, fell = [], instance.inputs, False
    for _ in range(5):
        before = state.damping_state
        state, info = algorithm.step(problem, data, state)
        weight = float((before or state.damping_state).weight)
        assert damping is None or weight == pytest.approx(1 - damping)
        by_sample = damping is None and not fell
        old_V, dense = (
            dense[1],
            dense_attention_step(
                x, h_label, dense, weight, problem.prior, by_sample=by_sample
            ),
        )
        S, V, onsager, *_ = dense
        fell = old_V > 2 * V
        assert_allclose(algorithm.estimate(state)[0], S, atol=1e-7)
        assert float(state.V[0, 0]) == pytest.approx(V, rel=1e-8)
        assert float(state.Gamma[0, 0]) == pytest.approx(onsager, rel=1e-7)
        assert float(info.predicted_overlap[0]) == pytest.approx(1.5 - V, abs=1e-8)
        assert float(info.self_overlap[0]) == pytest.approx(
            np.trace(S @ S) / d, rel=1e-7
        )
        exceeded.append(onsager < V)
    assert any(exceeded)


def test_sequence_steps_are_the_dense_iteration():
    """Two components with coupled covariances: ``A``, ``B``, ``V`` and the Onsager term as P x P matrices."""
    problem, D, noise = sequence("linear", components=2, noise=0.4), 25, 0.4
    instance = problem.instance(0.7, D)
    data = instance.data(get_backend("numpy"))
    algorithm = Gamp()
    state = algorithm.init(problem, data, np.random.default_rng(0))
    x, y = instance.inputs / math.sqrt(D), instance.labels
    n, M, _ = x.shape
    W, V, g = np.zeros((2, D)), np.eye(2), np.zeros((n, 2, M))
    for _ in range(4):
        state, _ = algorithm.step(problem, data, state)
        omega = np.einsum("pd,nmd->npm", W, x) - np.einsum("pq,nqm->npm", V, g)
        inverse = np.linalg.inv(V + noise * np.eye(2))
        g = np.einsum("pq,nqm->npm", inverse, y - omega)
        A = n * M / D * inverse
        B = np.einsum("npm,nmd->pd", g, x) + A @ W
        V = np.linalg.inv(np.eye(2) + A)
        W = V @ B
        assert_allclose(algorithm.estimate(state), W, atol=1e-10)
        assert_allclose(state.V, V, atol=1e-12)


@pytest.mark.parametrize(("components", "tokens"), [(1, 1), (1, 3), (2, 2)])
def test_gaussian_everything_ends_at_the_exact_posterior_mean(components, tokens):
    """The fixed point of GAMP is ``(X^T X + noise)^{-1} X^T y`` on every instance, not only in the limit."""
    D, noise = 60, 0.7
    problem = sequence("linear", tokens, components=components, noise=noise)
    instance = problem.instance(0.9, D)
    estimate, _ = iterate(problem, instance, 400)
    x = instance.inputs.reshape(-1, D) / math.sqrt(D)
    y = np.moveaxis(instance.labels, 1, 2).reshape(-1, components)
    exact = np.linalg.solve(x.T @ x + noise * np.eye(D), x.T @ y).T
    assert_allclose(estimate, exact, atol=1e-9)
    through_the_loop = run(problem, 0.9, D)
    assert through_the_loop.status is Status.OK
    assert_allclose(through_the_loop.estimate, exact, atol=2e-3)


def test_a_wrong_account_of_its_own_error_shows_in_the_information_ratio():
    """An estimate handed in with a tenth of its true error: the residuals tell that the claim is wrong."""
    problem = sequence("linear", noise=0.0)
    instance = problem.instance(0.4, 1000)
    honest = problem.start(
        instance, 1.0, np.random.default_rng(0), get_backend("numpy")
    )
    for factor, log_ratio in ((1.0, 0.0), (0.1, math.log(10))):
        _, info = iterate(problem, instance, 1, honest._replace(V=honest.V * factor))
        assert float(info.log_information_ratio[0]) == pytest.approx(
            log_ratio, abs=0.15
        )


@pytest.mark.slow
def test_a_run_that_runs_away_is_restarted_once_with_more_damping():
    """Undamped, noiseless softmax runs away at small size below perfect recovery; half damped it does not."""
    results = [
        run(attention(), 0.06, 60, seed, Gamp(damping=0.0), max_iterations=200)
        for seed in range(3)
    ]
    restarted = [r for r in results if r.restarts]
    assert restarted
    for result in restarted:
        assert result.restart_reason.startswith(("diverged", "not-converged"))
        assert result.lost_seconds > 0
    assert any(r.status is Status.OK for r in restarted)


@pytest.mark.parametrize(
    ("problem", "alpha", "dimension"),
    [
        (attention(), 0.02, 50),
        (attention(), 0.02, 100),
        (attention(rho=0.1), 0.02, 50),
        (attention(rho=2.0), 0.05, 50),
        (attention(tokens=4, rho=0.5), 0.005, 50),
        (attention("linear", rho=0.5), 0.02, 50),
    ],
    ids=str,
)
def test_a_few_samples_a_direction_are_enough_to_come_to_rest(
    problem, alpha, dimension
):
    """With alpha D of one or two the undamped iteration grows without bound in a few steps."""
    (prediction,) = solve(problem, [alpha])
    errors = []
    for seed in range(4):
        result = run(problem, alpha, dimension, seed)
        assert result.status is Status.OK, result.reason
        assert result.restarts == 0
        errors.append(result.metrics["mse"][0])
    assert np.mean(errors) == pytest.approx(float(prediction.mse[0]), rel=0.25)


class Once(Gamp):
    """It does not go on after its iterations."""

    def retry(self, problem, outcome):
        return None if outcome == "unsettled" else super().retry(problem, outcome)


@pytest.mark.slow
def test_a_run_that_does_not_come_to_rest_counts_all_noise_and_does():
    """100 samples of four tokens for 95 directions: V is claimed far too small and drifts, until all noise is counted."""
    problem = attention(tokens=4, rho=0.1)
    first, both = (
        run(problem, 0.01, 100, 0, algorithm) for algorithm in (Once(), Gamp())
    )
    assert (first.status, first.restarts) == (Status.NOT_CONVERGED, 0)
    assert (both.status, both.restarts) == (Status.OK, 1)
    assert both.iterations > 300
    predicted, made = (
        [one.final["predicted_overlap"][0] for one in (first, both)],
        [one.metrics["mse"][0] for one in (first, both)],
    )
    assert (1.1 - predicted[0]) / made[0] < 0.6
    assert (1.1 - predicted[1]) / made[1] == pytest.approx(1, abs=0.4)


@pytest.mark.slow
def test_noise_that_exceeds_what_is_predicted_keeps_a_run_from_claiming_too_much(
    monkeypatch,
):
    """Near perfect recovery of a few directions from few samples: without the excess V falls far below the true error."""
    problem = attention(rho=0.1)
    worst = {}
    for largest in (LARGEST_EXCESS, math.inf):
        monkeypatch.setattr(Gamp, "largest_excess", largest)
        runs = [run(problem, 0.05, 50, seed, Once()) for seed in (20, 22)]
        worst[largest] = max(
            r.metrics["mse"][0] / (1.1 - r.final["predicted_overlap"][0]) for r in runs
        )
    assert worst[LARGEST_EXCESS] < 10 < 100 < worst[math.inf]


def test_the_scale_is_not_overshot_where_labels_do_not_show_it():
    """Signs of the latents leave the scale to the prior: a first step that holds V back overshoots."""
    found = run(attention("hardmax", rho=0.1), 0.5, 50, 20, max_iterations=20)
    assert found.final["self_overlap"][0] == pytest.approx(1.1, abs=0.2)


def with_a_strong_sample(problem, alpha, dimension, factor):
    """An instance with the tokens of one sample longer by a factor, and its label."""
    instance = problem.instance(alpha, dimension)
    inputs = instance.inputs.copy()
    inputs[0] *= factor
    labels = problem.channel.forward(problem.model.forward(inputs, instance.signal))
    return Instance(problem, instance.signal, inputs, labels, instance.sample_ratio)


@pytest.mark.slow
def test_a_strong_sample_neither_oscillates_nor_moves_the_fixed_point():
    """It would, in a step of the same weight for all samples, whatever the others do."""
    problem = attention()
    instance = with_a_strong_sample(problem, 0.1, 60, 1.5)
    (own, info), (damped, _) = (
        iterate(problem, instance, 300, algorithm=a)
        for a in (Gamp(), Gamp(damping=0.5))
    )
    assert float(info.residual) < 1e-5
    assert info.damping == pytest.approx(
        1 - DAMPING_SETTINGS["extensive"].largest_weight
    )
    assert_allclose(own, damped, atol=1e-4)
    _, alike = iterate(problem, instance, 150, algorithm=Gamp(damping=info.damping))
    assert float(alike.residual) > 0.1


@pytest.mark.parametrize(
    ("channel", "tokens", "alpha", "dimension"),
    [
        ("softmax", 16, 0.05, 60),
        ("softmax", 6, 0.1, 6),
        ("softmax", 6, 0.1, 10),
        ("linear", 10, 0.03, 20),
        ("softmax", 3, 0.3, 10),
    ],
)
def test_many_tokens_in_few_dimensions_are_recovered(channel, tokens, alpha, dimension):
    """Every sample is strong, and V falls tenfold in a step: weights of single samples would let them oscillate together."""
    for seed in range(4):
        result = run(attention(channel, tokens=tokens), alpha, dimension, seed)
        assert result.status is Status.OK, result.reason
        assert result.metrics["mse"][0] < 1e-4


def test_a_tiny_estimate_grows_undamped_whatever_it_turns():
    """Growth of alternating sign turns back every step; damped, two layers would never leave chance."""
    problem = sequence(layers=2)
    data = problem.instance(0.5, 300).data(get_backend("numpy"))
    algorithm = Gamp()
    state = algorithm.init(problem, data, np.random.default_rng(1))
    for _ in range(40):
        state, info = algorithm.step(problem, data, state)
        if float(info.residual) > 0.1:
            break
        assert float(state.damping_state.weight) == 1.0


@pytest.mark.slow
def test_a_scale_that_labels_do_not_show_is_found_in_few_steps():
    """Each step corrects it by the share V of what it is wrong by; it took hundreds, or ended 10% off at thrice the error."""
    result = run(sequence("hardmax"), 8.0, 100, 0)
    assert result.status is Status.OK
    assert result.iterations < 150
    (own,), (predicted,) = (
        result.final["self_overlap"],
        result.final["predicted_overlap"],
    )
    assert own == pytest.approx(predicted, abs=0.02)
    assert min(result.trajectory["damping"][1:]) < -10  # it leaped


def test_the_rule_of_the_restart():
    attention_problem, sequence_problem = attention(), sequence()
    assert Gamp().retry(attention_problem, "diverged") is None
    assert Gamp(damping=0.0).retry(attention_problem, "diverged").damping == 0.5
    assert Gamp(damping=0.5).retry(attention_problem, "diverged").damping == 0.75
    assert Gamp(damping=0.5).retry(sequence_problem, "diverged").damping == 0.75
    assert Gamp().retry(sequence_problem, "diverged") == Gamp()


def test_the_rule_of_going_on():
    wary = Gamp().retry(attention(), "unsettled")
    assert (wary.largest_excess, wary.retry(attention(), "unsettled")) == (1.0, None)
    assert Gamp(damping=0.5).retry(attention(), "unsettled") is None
    assert Gamp().retry(sequence(), "unsettled") is None


def test_an_informed_start_is_taken_and_stays(rng):
    problem = sequence("linear", noise=0.2)

    instance = problem.instance(0.7, 400)
    start = problem.start(instance, 9.0, rng, get_backend("numpy"))
    data = instance.data(get_backend("numpy"), start)
    state = Gamp().init(problem, data, rng)
    assert instance.metrics(Gamp().estimate(state))["mse"][0] == pytest.approx(
        0.1, abs=0.03
    )
    assert float(state.V[0, 0]) == pytest.approx(0.1)
    ends = [iterate(problem, instance, 200, s)[0] for s in (start, None)]
    assert_allclose(ends[0], ends[1], atol=1e-9)


@pytest.mark.parametrize("components", [1, 2])
def test_a_start_of_error_zero_is_refused_at_once(rng, components):
    problem = sequence("linear", noise=0.2, components=components)
    instance = problem.instance(0.7, 20)
    start = problem.start(instance, 9.0, rng, get_backend("numpy"))
    with pytest.raises(np.linalg.LinAlgError, match="Singular"):
        iterate(problem, instance, 1, start._replace(V=0 * start.V))


def test_where_the_prior_mean_is_blind_the_start_is_random_and_small():
    problem = sequence()
    data = problem.instance(0.5, 500).data(get_backend("numpy"))
    states = [
        Gamp(initial_overlap=0.01).init(problem, data, np.random.default_rng(seed))
        for seed in (1, 2)
    ]
    for state in states:
        assert np.mean(state.estimate**2) == pytest.approx(0.01, rel=0.4)
        assert float(state.V[0, 0]) == pytest.approx(0.99)
    assert not np.allclose(states[0].estimate, states[1].estimate)
    blind = Gamp().init(problem, data, np.random.default_rng(1))
    assert 0 < np.mean(blind.estimate**2) < 1 / 500


def test_a_step_needs_little_more_than_the_inputs():
    """Nothing of size d^2 per sample: apart from the inputs, a step holds a few numbers per sample and a few matrices."""
    problem = attention("linear")
    data = problem.instance(4.0, 64).data(get_backend("numpy"))
    algorithm = Gamp()
    state = algorithm.init(problem, data, np.random.default_rng(0))
    state, _ = algorithm.step(problem, data, state)
    tracemalloc.start()
    try:
        algorithm.step(problem, data, state)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert data.inputs.nbytes > 15e6
    assert peak < 0.3 * data.inputs.nbytes


class Other:
    """The prior, with another denoiser."""

    def __init__(self, prior, denoise):
        self._prior, self.denoise = prior, denoise

    def __getattr__(self, name):
        return getattr(self._prior, name)


@pytest.mark.slow
def test_continuing_from_inside_a_bulk_is_no_worse_than_taking_outliers_for_spikes():
    """Paired: the same instances, with the eigenvalue map beyond the bulk exchanged."""
    gains = []
    for seed in range(6):
        problem = attention()
        errors = [run(problem, 0.08, 40, seed, max_iterations=60).metrics["mse"][0]]
        problem.prior = Other(
            problem.prior,
            lambda R, Qhat, denoise=problem.prior.denoise: denoise(R, Qhat),
        )
        errors.append(run(problem, 0.08, 40, seed, max_iterations=60).metrics["mse"][0])
        gains.append(errors[1] - errors[0])
    assert np.mean(gains) > 0


@pytest.mark.parametrize("V", [0.5, 0.02])
def test_labels_that_no_integral_reaches_are_sampled_on_a_device(backend, V):
    """A device is asked once a step; at small V labels are far from what the estimate leads to expect."""
    problem = Problem(
        {"name": "attention-indexed", "tokens": 3},
        {"name": "hardmax"},
        {"name": "wishart", "rho": 0.5},
    )
    instance = problem.instance(0.2, 12)
    estimates, errors = [], []
    for place in (get_backend("numpy"), backend):
        data = instance.data(place)
        state = Gamp().init(problem, data, np.random.default_rng(0))
        state = state._replace(V=np.array([[V]]))
        state, info = Gamp().step(problem, data, state)
        estimates.append(to_host(state.estimate))
        errors.append(float(info.integration_error))
    np.testing.assert_allclose(estimates[0], estimates[1], atol=1e-10)
    assert errors[0] == pytest.approx(errors[1])
    assert (errors[0] > 1e-3) == (V < 0.1)
    channel, omega = problem.channel, np.ones((1, 1, 6))
    label = channel.forward(omega + np.arange(6.0))
    likely = channel.posterior_without_wait(label, omega, np.eye(1))
    assert likely.error < 1e-3
    far = channel.posterior_without_wait(
        label, 30 * omega[:, :, ::-1] * np.arange(6.0)[::-1], np.eye(1)
    )
    assert np.isinf(far.error)
