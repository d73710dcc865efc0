"""Hamiltonian Monte Carlo: exact posteriors, ranks of the teacher among samples, the mean of K samples, mixing, oracles."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats
from smimbench_samplers.hmc import MIXED, Hmc
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
    """Attention-indexed problem of two tokens with this channel and Wishart signals of width ratio rho."""
    model = {"name": "attention-indexed", "tokens": 2}
    return smimbench.Problem(
        model, {"name": channel, **parameters}, {"name": "wishart", "rho": rho}
    )


def sequence(channel, tokens=2, **parameters):
    """Sequence multi-index problem with Gaussian signals, this channel and number of tokens."""
    return smimbench.Problem(
        {"name": "sequence-multi-index", "tokens": tokens},
        {"name": channel, **parameters},
        "gaussian",
    )


def run_once(problem, instance, algorithm, start=None):
    """Run an algorithm once on an instance of a problem through the engine's loop, from a start if one is given."""
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
    """The sampler passes every published check."""
    check()


def bilinear():
    """Problem of linear labels of a bilinear signal, whose query and key matrices are independent."""
    model = {"name": "attention-indexed", "tokens": 2, "symmetric": False}
    return smimbench.Problem(
        model, {"name": "linear", "noise": 0.3}, {"name": "bilinear", "rho": 0.5}
    )


class Wave(Channel):
    """Channel ``y = sin(3 z)`` plus noise, for which many signals fit nearly as well as the right one."""

    name, version, reference, components, symmetry = "wave", 1, "none", 1, "none"
    capabilities = Capabilities()

    def forward(self, z, *, rng=None):
        """Draw labels of the latents z."""
        return np.sin(3 * z) + 0.2 * rng.standard_normal(z.shape)

    def log_likelihood(self, y, z):
        """Log-likelihood (n,) of the labels y at the latents z, up to a constant."""
        return -((y - np.sin(3 * z)) ** 2).sum((1, 2)) / 0.08


def states(problem, instance, algorithm, seed):
    """Yield the state after every step of a run on an instance of a problem."""
    data = instance.data(get_backend())
    state = algorithm.init(problem, data, np.random.default_rng(seed))
    for _ in range(algorithm.steps):
        state, _ = algorithm.step(problem, data, state)
        yield state


def factors_and_densities(problem, instance, algorithm, seed=0):
    """Factors and log-likelihoods of every chain after every trajectory that follows the warm-up, on an instance of a problem,
    and the findings of the run.
    """
    factors, densities = [], []
    for step, state in enumerate(states(problem, instance, algorithm, seed), 1):
        if step % algorithm.leapfrog == 0 and step > algorithm.steps // 2:
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
        bilinear(),
    ],
)
def test_gradient_is_that_of_the_density(problem):
    """The gradient of the log-likelihood agrees with differences along a random direction."""
    backend = get_backend()
    data = problem.instance(0.8, 6).data(backend)
    target = LogPosterior(problem, data)
    rng = np.random.default_rng(3)
    factor = np.stack(
        [target.factor.draw(rng, problem.components, 6) for _ in range(2)]
    )
    random_direction = rng.standard_normal(factor.shape)
    _, gradient = target(backend.asarray(factor))
    density_above, density_below = (
        to_host(target(backend.asarray(factor + sign * 1e-5 * random_direction))[0])
        for sign in (1, -1)
    )
    expected_slope = np.sum(
        to_host(gradient) * random_direction, axis=tuple(range(1, factor.ndim))
    )
    assert np.allclose(
        (density_above - density_below) / 2e-5, expected_slope, rtol=1e-4, atol=1e-4
    )


def test_densities_are_those_of_plain_sums():
    """The log-likelihood of factors W is the sum of the log-densities of the labels y at their latents z."""
    rng = np.random.default_rng(5)
    W = rng.standard_normal((3, 1, 6))
    for problem, log_density in [
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
        log_likelihoods, _ = LogPosterior(problem, data)(W)
        assert np.allclose(
            log_likelihoods, log_density(data.labels, z).sum(axis=(1, 2, 3)), rtol=1e-6
        )


# -- samples against exact posteriors --------------------------------------------------------------------------------------


def whitened(problem, instance, factors):
    """Samples (n, P D) of the factors for an instance with linear labels and noise, in units in which the exact Gaussian
    posterior is standard normal: x are the input rows, y the labels.
    """
    x, noise = (
        instance.inputs.reshape(-1, instance.dimension) / np.sqrt(instance.dimension),
        problem.channel.noise,
    )
    precision = np.eye(instance.dimension) + x.T @ x / noise
    precision_root = np.linalg.cholesky(precision)
    y = np.moveaxis(instance.labels, 1, 0).reshape(problem.components, -1)
    mean = np.linalg.solve(precision, x.T @ y.T / noise).T
    return ((factors - mean) @ precision_root).reshape(-1, factors[0, 0].size)


@pytest.mark.parametrize(
    ("leapfrog", "steps"), [pytest.param(1, 6000, marks=pytest.mark.slow), (6, 4000)]
)
def test_samples_of_linear_labels_have_the_exact_law(leapfrog, steps):
    """Samples for linear labels, from trajectories of so many leapfrog steps, thinned until they are independent, pass
    Kolmogorov-Smirnov tests against the exact Gaussian posterior.
    """
    problem = sequence("linear", noise=0.2, components=2)
    instance = problem.instance(0.7, 8)
    factors, _, findings = factors_and_densities(
        problem, instance, Hmc(samples=8, steps=steps, leapfrog=leapfrog)
    )
    assert findings["r_hat"][0] < 1.05
    thinning = int(np.ceil(factors.shape[0] * 8 / findings["effective_samples"][0]))
    whitened_samples = whitened(problem, instance, factors[::thinning])
    assert len(whitened_samples) > 200
    random_axes = np.linalg.qr(np.random.default_rng(1).standard_normal((16, 16)))[0]
    p_values = [
        stats.kstest(whitened_samples @ axis, "norm").pvalue for axis in random_axes[:4]
    ]
    p_values.append(
        stats.kstest(
            (whitened_samples * whitened_samples).sum(axis=1), "chi2", args=(16,)
        ).pvalue
    )  # the energy above its minimum, twice
    assert min(p_values) > 1e-3


def ranks(problem, alpha, dimension, algorithm, run_count):
    """Ranks of the teacher's log-likelihood among those of samples in ``run_count`` runs: uniform, because the teacher is a
    sample of the posterior, too.
    """
    ranks_of_runs = []
    for seed in range(run_count):
        instance = problem.instance(alpha, dimension, seed)
        _, densities, _ = factors_and_densities(problem, instance, algorithm, seed)
        target = LogPosterior(problem, instance.data(get_backend()))
        factor = target.factor_of(
            instance.signal,
            target.factor.draw(np.random.default_rng(0), problem.components, dimension),
        )
        teacher = target(factor[None])[0][0]
        ranks_of_runs.append(np.mean(densities < teacher))
    return ranks_of_runs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("problem", "alpha"),
    [
        (sequence("probit", tokens=1, noise=0.3), 2.0),
        (attention("linear", noise=0.3), 0.3),
    ],
)
def test_the_teacher_is_one_of_the_samples(problem, alpha):
    """The rank of the teacher among posterior samples is uniform."""
    teacher_ranks = ranks(problem, alpha, 6, Hmc(samples=4, steps=600, leapfrog=6), 60)
    assert stats.kstest(teacher_ranks, "uniform").pvalue > 1e-3


# -- the prediction --------------------------------------------------------------------------------------------------------


def test_prediction_is_the_error_of_exact_samples_of_linear_labels():
    """The prediction for linear labels is ``E |mean of K samples - W|^2 / D = (1 + 1/K) E tr Sigma / D``, with the posterior
    covariance Sigma from eigenvalues of random matrices x.
    """
    rng = np.random.default_rng(11)
    D = 500
    for _ in range(10):
        alpha, noise, K = (
            rng.uniform(0.2, 2),
            rng.uniform(0.05, 1),
            int(rng.integers(1, 20)),
        )
        problem = sequence("linear", tokens=1, noise=noise)
        prediction = Hmc(samples=K).theory(problem, alpha, Conditions())
        sample_count = round(alpha * D)
        posterior_variances = [
            (
                1
                / (1 + np.linalg.eigvalsh(random_inputs.T @ random_inputs / D) / noise)
            ).mean()
            for random_inputs in (
                rng.standard_normal((sample_count, D)) for _ in range(2)
            )
        ]
        assert prediction.mse[0] == pytest.approx(
            (1 + 1 / K) * np.mean(posterior_variances), rel=1e-2
        )
        assert prediction.of_ok_runs


def test_one_sample_has_twice_the_error_and_many_have_none_more():
    """The mean of K samples has ``1 + 1/K`` times the Bayes-optimal error."""
    problem = attention("linear", noise=0.3)
    bayes_mse = solve(problem, [0.1])[0].mse[0]
    for K in (1, 3, 1000):
        assert Hmc(samples=K).theory(problem, 0.1, Conditions()).mse[
            0
        ] == pytest.approx((1 + 1 / K) * bayes_mse, rel=1e-9)


def test_there_is_no_prediction_where_fixed_points_compete():
    """Where two fixed points of state evolution compete, theory gives a reason and no prediction."""
    fixed_point = {
        "mse": 0.1,
        "mse_error": 0.0,
        "overlap": [[0.9]],
        "method": "",
        "branch": "informed",
    }
    fixed_points = (fixed_point, {**fixed_point, "branch": "uninformed"})
    assert "compete" in Hmc().theory(
        sequence("linear", noise=0.1), 1.0, Conditions(points=fixed_points)
    )


@pytest.mark.slow
def test_means_of_samples_land_on_the_prediction():
    """Errors of one sample and of the mean of four, extrapolated in 1/D from three dimensions, agree with their predictions:
    for both, four chains are run.
    """
    problem = sequence("probit", tokens=1, noise=0.5)
    algorithms = [Hmc(samples=K, steps=3000, leapfrog=5) for K in (1, 4)]
    dimensions, means, errors = np.array([30, 60, 120]), [], []
    for dimension in dimensions:
        mses, mixed = [], []
        for seed in range(480 // dimension):
            instance = problem.instance(2.0, int(dimension), seed)
            *_, state = states(problem, instance, algorithms[1], seed)
            mixed.append(state.r_hat <= MIXED)
            estimates = [algorithm.estimate(state) for algorithm in algorithms]
            mses.append([instance.metrics(found)["mse"][0] for found in estimates])
        assert sum(mixed) >= len(mixed) - 1
        means.append(np.mean(mses, axis=0))
        errors.append(np.std(mses, axis=0, ddof=1) / np.sqrt(len(mses)))
    for algorithm, mean, weight in zip(
        algorithms, np.transpose(means), 1 / np.transpose(errors)
    ):
        (_, limit), covariance = np.polyfit(
            1 / dimensions, mean, 1, w=weight, cov="unscaled"
        )
        predicted_mse = algorithm.theory(problem, 2.0, Conditions()).mse[0]
        assert abs(limit - predicted_mse) < 4 * np.sqrt(covariance[1, 1])


# -- mixing ----------------------------------------------------------------------------------------------------------------


def test_chains_in_equilibrium_are_ok_and_others_never():
    """Chains that ran long enough end ok with R-hat near 1; chains stopped early count as not converged."""
    problem = sequence("linear", noise=0.3)
    long_run = run_once(problem, problem.instance(0.5, 12), Hmc(samples=2, steps=3000))
    assert long_run.status == "ok"
    assert long_run.final["r_hat"][0] < 1.05
    assert long_run.final["residual"] == pytest.approx(
        long_run.final["r_hat"][0] - 1, abs=1e-12
    )
    short_run = run_once(problem, problem.instance(0.5, 12), Hmc(samples=2, steps=100))
    assert short_run.status == "not-converged"
    assert "have not mixed: R-hat" in short_run.reason


def test_a_start_that_is_given_is_compared_with_the_prior():
    """Chains from a given start must agree with chains from the prior: they do for an easy posterior, not for a rugged one."""
    algorithm = Hmc(samples=4, steps=3000, leapfrog=5)
    easy, rugged = (
        sequence("linear", tokens=1, noise=0.3),
        sequence("linear", tokens=1, noise=0.3),
    )
    rugged.channel = Wave()
    for problem, alpha, status in ((easy, 1.0, "ok"), (rugged, 5.0, "not-converged")):
        instance = problem.instance(alpha, 12)
        start = problem.start(instance, 1e3, np.random.default_rng(0), get_backend())
        started_run = run_once(problem, instance, algorithm, start=start)
        assert started_run.status == status
    assert (
        started_run.metrics["mse"][0]
        < 0.5 * run_once(rugged, instance, algorithm).metrics["mse"][0]
    )


@pytest.mark.parametrize(
    "problem",
    [attention(rho=0.4), attention(rho=1.5), bilinear()],
    ids=["narrow", "wide", "queries and keys"],
)
def test_a_start_of_matrices_becomes_their_factor(problem):
    """A start given as a matrix is turned into a factor that gives back the matrix."""
    backend = get_backend()
    instance = problem.instance(0.2, 10)
    target = LogPosterior(problem, instance.data(backend))
    factor_of_prior = backend.asarray(
        target.factor.draw(np.random.default_rng(0), problem.components, 10)
    )
    factor = target.factor_of(backend.asarray(instance.signal), factor_of_prior)
    assert factor.shape == factor_of_prior.shape
    assert np.allclose(
        to_host(target.factor.compose(factor)), instance.signal, atol=1e-9
    )


def test_what_cannot_be_sampled_is_refused_in_one_line():
    """Problems that cannot be sampled are refused with a reason of one line."""
    sampled_problem = sequence("linear", noise=0.1)
    assert Hmc().refuses(sampled_problem) is None
    problem_of_other_prior = sequence("linear", noise=0.1)
    problem_of_other_prior.prior = SimpleNamespace(
        name="signs", factor=sampled_problem.prior.factor._replace(gaussian=False)
    )
    problem_without_likelihood = sequence("linear", noise=0.1)
    problem_without_likelihood.channel = SimpleNamespace(
        name="silent",
        forward=sampled_problem.channel.forward,
        components=1,
        log_partition=None,
        log_likelihood=None,
    )
    for problem, reason in [
        (attention("softmax"), "'softmax' have no noise"),
        (
            problem_of_other_prior,
            "'signs' has no factor with independent Gaussian entries",
        ),
        (problem_without_likelihood, "'silent' has neither"),
    ]:
        assert reason in Hmc().refuses(problem)
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
    """Invalid ``parameters`` raise an error that names the one (``key``) that is wrong."""
    with pytest.raises(smimbench.ParameterError) as error:
        Hmc(**parameters)
    assert error.value.key == key


# -- in a suite ----------------------------------------------------------------------------------------------------------


def test_a_prediction_is_shown_for_runs_that_have_mixed_only(tmp_path):
    """A table shows the prediction only if the chains of all runs have mixed."""
    suite_path = tmp_path / "small.toml"
    suite_path.write_text(SUITE)
    rows = smimbench.run(suite_path, results=tmp_path / "results", progress=False)
    (row,) = (row for row in rows if row["metric"] == "mse")
    assert row["own_theory"] is None
    assert "every run ends ok" in row["no_theory"]
    assert row["status_counts"] == {"not-converged": 4}
