"""Ridge regression against dense solutions, posterior means and the theory of the best linear estimate."""

import math
from dataclasses import replace

import numpy as np
import pytest
from smimbench_attention.algorithms.least_squares import linear_observation
from smimbench_attention.algorithms.ridge import Ridge

from smimbench.backend import get_backend
from smimbench.backend.arrays import to_host
from smimbench.interfaces import ParameterError
from smimbench.theory.predictions import solve as state_evolution
from tests.helpers import attention, run_once, sequence
from tests.stretched import stretched


def solve(problem, instance, algorithm, backend=None, tolerance=1e-10):
    return run_once(
        problem, instance, algorithm, backend, tolerance=tolerance, max_iterations=2000
    )


def test_it_is_the_posterior_mean_of_a_gaussian_signal(backend):
    problem = sequence("linear", components=2, noise=0.3)
    instance = problem.instance(0.8, 25)
    X = instance.inputs.reshape(-1, 25) / math.sqrt(25)
    y = instance.labels.transpose(1, 0, 2).reshape(2, -1)
    expected = np.linalg.solve(X.T @ X + 0.3 * np.eye(25), X.T @ y.T).T
    found = solve(problem, instance, Ridge(), backend)
    assert found.status.value == "ok"
    assert np.allclose(to_host(found.estimate), expected, atol=1e-8)
    heavier = np.linalg.solve(X.T @ X + 2.0 * np.eye(25), X.T @ y.T).T
    assert np.allclose(
        to_host(solve(problem, instance, Ridge(2.0), backend).estimate),
        heavier,
        atol=1e-8,
    )


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_the_penalty_knows_the_variance_of_the_signal(shift):
    with stretched({"name": "linear", "noise": 0.5}, shift=shift) as problem:
        instance = problem.instance(0.6, 40)
    X = instance.inputs.reshape(-1, 40) / math.sqrt(40)
    y = instance.labels.reshape(-1)
    expected = shift + np.linalg.solve(
        X.T @ X + 0.5 / 9 * np.eye(40), X.T @ (y - shift * X.sum(axis=1))
    )
    assert np.allclose(
        solve(problem, instance, Ridge()).estimate[0], expected, atol=1e-6
    )


def test_labels_that_are_not_finite_are_no_convergence():
    problem = sequence("linear", noise=0.3)
    instance = problem.instance(2.0, 12)
    labels = np.array(instance.labels)
    labels[0] = np.nan
    data = replace(instance.data(get_backend("numpy")), labels=labels)
    algorithm = Ridge()
    _, info = algorithm.step(
        problem, data, algorithm.init(problem, data, np.random.default_rng(0))
    )
    assert not np.isfinite(info.residual)


def test_one_sample_is_too_few_to_validate_on():
    problem = sequence("linear", noise=0.3)
    with pytest.raises(
        ValueError, match="validation needs at least two samples, this data has 1"
    ):
        solve(problem, problem.instance(0.1, 10), Ridge("validation"))


def design(instance, tokens=2):
    """Rows of h_ab = <S, (sym(x_a x_b^T) - delta_ab I) / sqrt d> for a <= b, as (n, C, d, d)."""
    d = instance.dimension
    rows = []
    for x in instance.inputs:
        for a in range(tokens):
            for b in range(a, tokens):
                outer = np.outer(x[a], x[b])
                rows.append(
                    ((outer + outer.T) / 2 - (a == b) * np.eye(d)) / math.sqrt(d)
                )
    return np.array(rows).reshape(len(instance.inputs), -1, d, d)


def symmetric_basis(d):
    """Orthonormal basis of symmetric matrices (k, d, d)."""
    found = []
    for i in range(d):
        for j in range(i, d):
            unit = np.zeros((d, d))
            unit[i, j] = unit[j, i] = 1 if i == j else math.sqrt(0.5)
            found.append(unit)
    return np.array(found)


@pytest.mark.parametrize("convention", ["scaled", "plain"])
def test_it_is_the_gaussian_posterior_mean_of_a_matrix(convention):
    """Prior: mean sqrt(r/d) I, entries of variance 1/d off the diagonal and 2/d on it."""
    noise, d = 0.4, 7
    problem = attention("linear", noise=noise, noise_convention=convention)
    instance = problem.instance(0.6, d)
    basis = symmetric_basis(d)
    A = np.einsum("ncij,kij->nck", design(instance), basis).reshape(-1, len(basis))
    variance = np.tile(
        [noise, noise, noise]
        if convention == "plain"
        else [2 * noise, noise, 2 * noise],
        len(instance.inputs),
    )
    mean = problem.prior.mean(1, d)[0]
    y = instance.labels.reshape(-1) - A @ np.einsum("kij,ij->k", basis, mean)
    precision = A.T @ (A / variance[:, None]) + (d / 2) * np.eye(len(basis))
    expected = mean + np.einsum(
        "k,kij->ij", np.linalg.solve(precision, A.T @ (y / variance)), basis
    )
    assert np.allclose(
        solve(problem, instance, Ridge()).estimate[0], expected, atol=1e-7
    )


def test_noiseless_softmax_is_fitted_exactly_and_closest_to_the_prior_mean():
    d = 7
    problem = attention("softmax", beta=2.0)
    instance = problem.instance(0.2, d)  # 10 samples, 20 equations, 28 unknowns
    basis = symmetric_basis(d)
    h = np.einsum("ncij,kij->nck", design(instance), basis)
    A = np.concatenate(
        [h[:, 0] - h[:, 1], h[:, 2] - h[:, 1]]
    )  # differences of one softmax row
    log = instance.labels
    t = np.concatenate([log[:, 0, 0] - log[:, 0, 1], log[:, 1, 1] - log[:, 1, 0]]) / 2.0
    mean = problem.prior.mean(1, d)[0]
    deviation = np.linalg.pinv(A) @ (t - A @ np.einsum("kij,ij->k", basis, mean))
    found = solve(problem, instance, Ridge())
    assert np.allclose(
        found.estimate[0], mean + np.einsum("k,kij->ij", deviation, basis), atol=1e-7
    )
    assert any("2 of 3 combinations" in warning for warning in found.warnings)


def test_theory_of_every_rank():
    line = sequence("linear", noise=0.1)
    found = Ridge().theory(
        line, 0.5
    )  # the best linear estimate of a Gaussian signal is the best there is
    assert found.mse == pytest.approx(state_evolution(line, [0.5])[0].V[0, 0], rel=1e-9)
    assert "by validation" in Ridge("validation").theory(attention("linear"), 0.5)
    assert (
        Ridge().theory(attention("linear"), 0.4).mse == 0.0
    )  # 0.4 * 3 * 2 > 1 equations per unknown


def test_validation_chooses_what_theory_would():
    problem = sequence("linear", noise=1.0)
    instance = problem.instance(4.0, 250)
    chosen = solve(problem, instance, Ridge("validation"))
    best = solve(problem, instance, Ridge())
    assert chosen.metrics["mse"][0] < 1.15 * best.metrics["mse"][0]
    assert any("chosen by validation" in warning for warning in chosen.warnings)
    poor = solve(problem, instance, Ridge(1e-4))
    assert chosen.metrics["mse"][0] < poor.metrics["mse"][0]


@pytest.mark.parametrize("tokens", [1, 2, 4])
def test_least_squares_without_a_penalty(tokens):
    """``Delta / (r - 1)`` with more labels than directions, ``1 - r + Delta r / (1 - r)`` with fewer, ``r = alpha T``."""
    problem, noise = sequence("linear", tokens=tokens, noise=0.3), 0.3
    for gap in (1e-9, 1e-6, 1e-3, 0.4):
        found = Ridge(0.0).theory(problem, (1 + gap) / tokens).mse
        assert found == pytest.approx(noise / gap, rel=1e-6)
        found = Ridge(0.0).theory(problem, (1 - gap) / tokens).mse
        assert found == pytest.approx(gap + noise * (1 - gap) / gap, rel=1e-6)
    reason = Ridge(0.0).theory(problem, 1 / tokens)
    assert "infinite error on noisy labels where there are as many labels" in reason
    assert (
        Ridge(0.0).theory(sequence("linear", tokens=tokens, noise=0.0), 1 / tokens).mse
        == 0
    )
    assert Ridge(1e-6).theory(problem, 1 / tokens).mse > 100


@pytest.mark.parametrize("penalty", [1e160, 1.7e308])
def test_an_endless_penalty_leaves_the_prior(penalty):
    assert Ridge(penalty).theory(sequence("linear", noise=0.3), 0.7).mse == 1
    with pytest.raises(ParameterError, match="regularisation"):
        Ridge(math.inf)


@pytest.mark.parametrize("noise", [1e-9, 1e-7, 0.3, 1e6, 1e9])
def test_any_noise_of_a_channel_is_seen(noise):
    for components in (1, 2):
        seen = linear_observation(
            sequence("linear", noise=noise, components=components)
        )
        assert len(seen.combinations) == 2 * components
        assert seen.noise == pytest.approx(noise, rel=1e-6)
        assert seen.has_equal_noise
