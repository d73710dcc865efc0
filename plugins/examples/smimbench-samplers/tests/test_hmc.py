"""Hamiltonian Monte Carlo: exact posteriors, ranks of the teacher among samples, the mean of K samples, mixing, oracles."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats
from smimbench_samplers.hmc import Hmc
from smimbench_samplers.posterior import LogPosterior

import smimbench
from smimbench.backend import get_backend, to_host
from smimbench.interfaces import Capabilities, Channel, Conditions
from smimbench.run.loop import run_algorithm
from smimbench.suite.schema import RunOptions
from smimbench.testing import parametrize_with_checks
from smimbench.theory.predictions import solve

SUITE = """
[problem]
label   = "line"
model   = { name = "sequence-multi-index", tokens = 2 }
channel = { name = "linear", noise = 0.2 }
prior   = { name = "gaussian" }

[grid]
alpha     = [0.4]
dimension = [12]
seeds     = 4

[[algorithms]]
name    = "hmc"
samples = 2
steps   = 40
"""


def attention(channel="softmax", rho=0.5, **parameters):
    """An attention-indexed problem of two tokens."""
    model = {"name": "attention-indexed", "tokens": 2}
    return smimbench.Problem(
        model, {"name": channel, **parameters}, {"name": "wishart", "rho": rho}
    )


def sequence(channel, tokens=2, **parameters):
    """A sequence multi-index problem."""
    return smimbench.Problem(
        {"name": "sequence-multi-index", "tokens": tokens},
        {"name": channel, **parameters},
        "gaussian",
    )


def run_once(problem, instance, algorithm, start=None):
    """One run through the engine's loop."""
    backend = get_backend()
    data = instance.data(backend, start)
    return run_algorithm(
        problem,
        instance,
        data,
        algorithm,
        lambda attempt: np.random.default_rng(attempt + 1),
        RunOptions(),
        backend,
    )


@parametrize_with_checks([Hmc(samples=2, steps=40)])
def test_contract(check):
    check()


def untied():
    """Linear labels of queries and keys of their own."""
    model = {"name": "attention-indexed", "tokens": 2, "symmetric": False}
    return smimbench.Problem(
        model, {"name": "linear", "noise": 0.3}, {"name": "bilinear", "rho": 0.5}
    )


class Wave(Channel):
    """``y = sin(3 z)`` with noise: many signals fit nearly as well as the right one."""

    name, version, reference, components, symmetry = "wave", 1, "none", 1, "none"
    capabilities = Capabilities()

    def forward(self, z, *, rng=None):
        return np.sin(3 * z) + 0.2 * rng.standard_normal(z.shape)

    def log_likelihood(self, y, z):
        return -((y - np.sin(3 * z)) ** 2).sum((1, 2)) / 0.08


def sampled(problem, instance, algorithm, seed=0):
    """Factor and log-likelihood of every chain after every trajectory that follows the warm-up."""
    data = instance.data(get_backend())
    state = algorithm.init(problem, data, np.random.default_rng(seed))
    factors, densities = [], []
    for step in range(algorithm.steps):
        state, _ = algorithm.step(problem, data, state)
        if (step + 1) % algorithm.leapfrog == 0 and step >= algorithm.steps // 2:
            factors.append(to_host(state.factor))
            densities.append(to_host(state.density))
    return np.array(factors), np.array(densities), algorithm.findings(state)


# -- the log-likelihood and its gradient -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "problem",
    [
        sequence("linear", noise=0.3, components=2),
        sequence("probit", noise=0.5),
        attention("linear", noise=0.3),
        untied(),
    ],
)
def test_gradient_is_that_of_the_density(problem):
    backend = get_backend()
    data = problem.instance(0.8, 6).data(backend)
    target = LogPosterior(problem, data)
    rng = np.random.default_rng(3)
    factor = np.stack(
        [target.factor.draw(rng, problem.components, 6) for _ in range(2)]
    )
    along = rng.standard_normal(factor.shape)
    _, gradient = target(backend.asarray(factor))
    up, down = (
        to_host(target(backend.asarray(factor + side * 1e-5 * along))[0])
        for side in (1, -1)
    )
    slope = np.sum(to_host(gradient) * along, axis=tuple(range(1, factor.ndim)))
    assert np.allclose((up - down) / 2e-5, slope, rtol=1e-4, atol=1e-4)


def test_densities_are_those_of_plain_sums():
    rng = np.random.default_rng(5)
    W = rng.standard_normal((3, 1, 6))
    for problem, law in [
        (
            sequence("linear", noise=0.3),
            lambda y, z: stats.norm.logpdf(y, z, np.sqrt(0.3)),
        ),
        (
            sequence("probit", noise=0.3),
            lambda y, z: stats.norm.logcdf(y * z / np.sqrt(0.3)),
        ),
    ]:
        data = problem.instance(2.0, 6).data(get_backend())
        z = np.einsum("ntd,kpd->knpt", data.inputs, W) / np.sqrt(6)
        found, _ = LogPosterior(problem, data)(W)
        assert np.allclose(found, law(data.labels, z).sum(axis=(1, 2, 3)), rtol=1e-6)


# -- samples against exact posteriors --------------------------------------------------------------------------------------


def whitened(problem, instance, factors):
    """Samples (n, P D) of linear labels with noise, in units in which the exact posterior is standard normal."""
    x, noise = (
        instance.inputs.reshape(-1, instance.dimension) / np.sqrt(instance.dimension),
        problem.channel.noise,
    )
    precision = np.eye(instance.dimension) + x.T @ x / noise
    root = np.linalg.cholesky(precision)
    y = np.moveaxis(instance.labels, 1, 0).reshape(problem.components, -1)
    mean = np.linalg.solve(precision, x.T @ y.T / noise).T
    return ((factors - mean) @ root).reshape(-1, factors[0, 0].size)


@pytest.mark.parametrize(
    ("leapfrog", "steps"), [pytest.param(1, 6000, marks=pytest.mark.slow), (6, 4000)]
)
def test_samples_of_linear_labels_have_the_exact_law(leapfrog, steps):
    problem = sequence("linear", noise=0.2, components=2)
    instance = problem.instance(0.7, 8)
    factors, _, found = sampled(
        problem, instance, Hmc(samples=8, steps=steps, leapfrog=leapfrog)
    )
    assert found["r_hat"][0] < 1.05
    thin = int(np.ceil(factors.shape[0] * 8 / found["effective_samples"][0]))
    u = whitened(problem, instance, factors[::thin])
    assert len(u) > 200
    axes = np.linalg.qr(np.random.default_rng(1).standard_normal((16, 16)))[0]
    chances = [stats.kstest(u @ axis, "norm").pvalue for axis in axes[:4]]
    chances.append(
        stats.kstest((u * u).sum(axis=1), "chi2", args=(16,)).pvalue
    )  # the energy above its minimum, twice
    assert min(chances) > 1e-3


def ranks(problem, alpha, dimension, algorithm, runs):
    """Rank of the teacher's log-likelihood among samples: uniform, because it is a sample of the posterior, too."""
    found = []
    for seed in range(runs):
        instance = problem.instance(alpha, dimension, seed)
        _, densities, _ = sampled(problem, instance, algorithm, seed)
        target = LogPosterior(problem, instance.data(get_backend()))
        factor = target.factor_of(
            instance.signal,
            target.factor.draw(np.random.default_rng(0), problem.components, dimension),
        )
        teacher = target(factor[None])[0][0]
        found.append(np.mean(densities < teacher))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("problem", "alpha"),
    [
        (sequence("probit", tokens=1, noise=0.3), 2.0),
        (attention("linear", noise=0.3), 0.3),
    ],
)
def test_the_teacher_is_one_of_the_samples(problem, alpha):
    found = ranks(problem, alpha, 6, Hmc(samples=4, steps=600, leapfrog=6), 60)
    assert stats.kstest(found, "uniform").pvalue > 1e-3


# -- the prediction --------------------------------------------------------------------------------------------------------


def test_prediction_is_the_error_of_exact_samples_of_linear_labels():
    """``E |mean of K - W|^2 / D = (1 + 1/K) E tr Sigma / D``, from eigenvalues of random matrices."""
    rng = np.random.default_rng(11)
    D = 500
    for _ in range(10):
        alpha, noise, K = (
            rng.uniform(0.2, 2),
            rng.uniform(0.05, 1),
            int(rng.integers(1, 20)),
        )
        problem = sequence("linear", tokens=1, noise=noise)
        found = Hmc(samples=K).theory(problem, alpha, Conditions())
        n = round(alpha * D)
        spreads = [
            (1 / (1 + np.linalg.eigvalsh(x.T @ x / D) / noise)).mean()
            for x in (rng.standard_normal((n, D)) for _ in range(2))
        ]
        assert found.mse[0] == pytest.approx((1 + 1 / K) * np.mean(spreads), rel=1e-2)
        assert found.of_ok_runs


def test_one_sample_has_twice_the_error_and_many_have_none_more():
    problem = attention("linear", noise=0.3)
    best = solve(problem, [0.1])[0].mse[0]
    for K in (1, 3, 1000):
        assert Hmc(samples=K).theory(problem, 0.1, Conditions()).mse[
            0
        ] == pytest.approx((1 + 1 / K) * best, rel=1e-9)


def test_there_is_no_prediction_where_fixed_points_compete():
    point = {
        "mse": 0.1,
        "mse_error": 0.0,
        "overlap": [[0.9]],
        "method": "",
        "branch": "informed",
    }
    points = (point, {**point, "branch": "uninformed"})
    assert "compete" in Hmc().theory(
        sequence("linear", noise=0.1), 1.0, Conditions(points=points)
    )


@pytest.mark.slow
@pytest.mark.parametrize("K", [1, 4])
def test_means_of_samples_land_on_the_prediction(K):
    problem = sequence("probit", tokens=1, noise=0.5)
    algorithm = Hmc(samples=K, steps=5000, leapfrog=5)
    expected = algorithm.theory(problem, 2.0, Conditions()).mse[0]
    sizes, means, errors = (30, 60, 120), [], []
    for D in sizes:
        runs = [
            run_once(problem, problem.instance(2.0, D, k), algorithm)
            for k in range(480 // D)
        ]
        assert sum(run.status == "ok" for run in runs) >= len(runs) - 1
        values = [run.metrics["mse"][0] for run in runs]
        means.append(np.mean(values))
        errors.append(np.std(values, ddof=1) / np.sqrt(len(values)))
    design = (
        np.stack([np.ones(3), 1 / np.array(sizes)], axis=1) / np.array(errors)[:, None]
    )
    covariance = np.linalg.inv(design.T @ design)
    limit = (covariance @ design.T @ (np.array(means) / errors))[0]
    assert abs(limit - expected) < 4 * np.sqrt(covariance[0, 0])


# -- mixing ----------------------------------------------------------------------------------------------------------------


def test_chains_in_equilibrium_are_ok_and_others_never():
    easy = sequence("linear", noise=0.3)
    fine = run_once(easy, easy.instance(0.5, 12), Hmc(samples=2, steps=3000))
    assert fine.status == "ok"
    assert fine.final["r_hat"][0] < 1.05
    assert fine.final["residual"] == pytest.approx(
        fine.final["r_hat"][0] - 1, abs=1e-12
    )
    early = run_once(easy, easy.instance(0.5, 12), Hmc(samples=2, steps=100))
    assert early.status == "not-converged"
    assert "have not mixed: R-hat" in early.reason


def test_a_start_that_is_given_is_compared_with_the_prior():
    algorithm = Hmc(samples=4, steps=3000, leapfrog=5)
    easy, rugged = (
        sequence("linear", tokens=1, noise=0.3),
        sequence("linear", tokens=1, noise=0.3),
    )
    rugged.channel = Wave()
    for problem, alpha, status in ((easy, 1.0, "ok"), (rugged, 5.0, "not-converged")):
        instance = problem.instance(alpha, 12)
        start = problem.start(instance, 1e3, np.random.default_rng(0), get_backend())
        found = run_once(problem, instance, algorithm, start=start)
        assert found.status == status
    assert (
        found.metrics["mse"][0]
        < 0.5 * run_once(rugged, instance, algorithm).metrics["mse"][0]
    )


@pytest.mark.parametrize(
    "problem",
    [attention(rho=0.4), attention(rho=1.5), untied()],
    ids=["narrow", "wide", "queries and keys"],
)
def test_a_start_of_matrices_becomes_their_factor(problem):
    backend = get_backend()
    instance = problem.instance(0.2, 10)
    target = LogPosterior(problem, instance.data(backend))
    like = backend.asarray(
        target.factor.draw(np.random.default_rng(0), problem.components, 10)
    )
    factor = target.factor_of(backend.asarray(instance.signal), like)
    assert factor.shape == like.shape
    assert np.allclose(
        to_host(target.factor.compose(factor)), instance.signal, atol=1e-9
    )


def test_what_cannot_be_sampled_is_refused_in_one_line():
    plain = sequence("linear", noise=0.1)
    assert Hmc().refuses(plain) is None
    other = sequence("linear", noise=0.1)
    other.prior = SimpleNamespace(
        name="signs", factor=plain.prior.factor._replace(gaussian=False)
    )
    silent = sequence("linear", noise=0.1)
    silent.channel = SimpleNamespace(
        name="silent",
        forward=plain.channel.forward,
        components=1,
        log_partition=None,
        log_likelihood=None,
    )
    for problem, words in [
        (attention("softmax"), "'softmax' have no noise"),
        (other, "'signs' has no factor with independent Gaussian entries"),
        (silent, "'silent' has neither"),
    ]:
        assert words in Hmc().refuses(problem)
        assert "\n" not in Hmc().refuses(problem)


@pytest.mark.parametrize(
    ("parameters", "key"),
    [
        ({"samples": 0}, "samples"),
        ({"leapfrog": 0}, "leapfrog"),
        ({"steps": 10, "leapfrog": 5}, "steps"),
    ],
)
def test_wrong_parameters_are_named(parameters, key):
    with pytest.raises(smimbench.ParameterError) as error:
        Hmc(**parameters)
    assert error.value.key == key


# -- in a suite ----------------------------------------------------------------------------------------------------------


def test_a_prediction_is_shown_for_runs_that_have_mixed_only(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SUITE)
    rows = smimbench.run(path, results=tmp_path / "results", progress=False)
    (row,) = (row for row in rows if row["metric"] == "mse")
    assert row["own_theory"] is None
    assert "every run ends ok" in row["no_theory"]
    assert row["status_counts"] == {"not-converged": 4}
