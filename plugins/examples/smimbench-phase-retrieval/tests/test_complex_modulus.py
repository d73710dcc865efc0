"""Complex phase retrieval: the published checks, brute force over phases, and the thresholds of the literature."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate, optimize, special
from smimbench_phase_retrieval import ComplexModulus

import smimbench
from smimbench.derive.sampled_information import sampled_moments
from smimbench.testing import parametrize_with_checks
from smimbench.theory.predictions import competing, thresholds


def make():
    return smimbench.Problem(
        {"name": "sequence-multi-index", "tokens": 2}, "complex-modulus", "gaussian"
    )


PROBLEM = make()


@parametrize_with_checks([ComplexModulus()])
def test_contract(check):
    check()


def test_posterior_is_the_average_over_phases():
    rng = np.random.default_rng(0)
    channel, V = ComplexModulus(), np.array([[0.5, 0.2], [0.2, 0.3]])
    omega = rng.standard_normal((6, 2, 2))
    z = omega + np.linalg.cholesky(V) @ rng.standard_normal((6, 2, 2))
    y = channel.forward(z)
    found = channel.posterior(y, omega, V, second_moment=True)
    # (u, v) as a linear map of the four latents, and their law given a point of the circle.
    A = np.array([[1.0, 0, 0, -1], [0, 1, 1, 0]])
    prior = np.kron(V, np.eye(2))
    gain = prior @ A.T @ np.linalg.inv(A @ prior @ A.T)
    phases = np.linspace(0, 2 * np.pi, 400, endpoint=False)
    covariances = []
    for k in range(6):
        flat = omega[k].ravel()
        points = y[k, 0] * np.stack([np.cos(phases), np.sin(phases)], axis=-1)
        gap = points - A @ flat
        log = -0.5 * np.einsum("ni,ij,nj->n", gap, np.linalg.inv(A @ prior @ A.T), gap)
        weight = np.exp(log - log.max())
        weight /= weight.sum()
        means = flat + gap @ gain.T
        rest = prior - gain @ A @ prior
        second = np.einsum("n,ni,nj->ij", weight, means, means) + rest
        mean = weight @ means
        covariances.append(second - np.outer(mean, mean))
        np.testing.assert_allclose(found.mean[k].ravel(), mean, atol=1e-10)
        np.testing.assert_allclose(
            found.second_moment[k].reshape(4, 4), second, atol=1e-10
        )
    average = np.mean(covariances, axis=0).reshape(2, 2, 2, 2)
    np.testing.assert_allclose(
        found.covariance, (average[:, 0, :, 0] + average[:, 1, :, 1]) / 2, atol=1e-10
    )


@pytest.mark.parametrize("q", [0.02, 0.5, 0.97])
def test_information_is_the_mean_over_labels(q):
    Q = q * np.eye(2)
    closed = ComplexModulus().information(Q, np.eye(2) - Q)
    sampled = sampled_moments(ComplexModulus(), 2, Q, np.eye(2) - Q)[0]
    assert np.abs(closed.value - sampled.value).max() < 4 * sampled.error.max()


@pytest.mark.parametrize("v", [1e-3, 1e-5, 1e-7])
def test_nearly_known_signals_get_one_equation(v):
    found = ComplexModulus().information((1 - v) * np.eye(2), v * np.eye(2))
    assert 2 * v * found.value[0, 0] == pytest.approx(1.0, abs=3 * v * np.log(1 / v))


def complex_ratio(V):
    """Sample ratio of which an error V is a fixed point, by SciPy's integrals over ``|E[Z | y]|`` of one complex projection Z.

    ``omega ~ CN(0, 1 - V)``, ``Z ~ CN(omega, V)``, ``y = |Z|``, and ``E[Z | y] = y I_1(k) / I_0(k)`` along omega,
    ``k = 2 y |omega| / V``; complex state evolution is ``(1 - V) / V = alpha E |E[Z | y] - omega|^2 / V^2``.
    """

    def squared(y, r):
        k = 2 * y * r / V
        law = 2 * y / V * special.i0e(k) * np.exp(-((y - r) ** 2) / V)
        return law * (y * special.i1e(k) / special.i0e(k) - r) ** 2

    def at(t):
        r = np.sqrt(1 - V) * t
        ends = max(0.0, r - 9 * np.sqrt(V)), r + 9 * np.sqrt(V)
        return (
            integrate.quad(squared, *ends, args=(r,), epsrel=1e-10, limit=200)[0]
            * np.exp(-t * t)
            * 2
            * t
        )

    middle = min(4 * np.sqrt(V / (1 - V)), 3.0)
    parts = [
        integrate.quad(at, *ends, epsrel=1e-9, limit=200)[0]
        for ends in ((0, middle), (middle, 6.5))
    ]
    return (1 - V) * V / sum(parts)


def test_thresholds_are_those_of_an_independent_integral():
    found = thresholds(PROBLEM).document()
    assert found["weak_recovery"]["value"] == pytest.approx(1.0, abs=1e-7)
    assert complex_ratio(1 - 1e-5) == pytest.approx(1.0, abs=1e-4)
    # The uninformed branch ends where the sample ratio is largest, and perfect recovery is stable from counting onwards.
    best = optimize.minimize_scalar(
        lambda log: -complex_ratio(np.exp(log)),
        bounds=(-4, -2),
        method="bounded",
        options={"xatol": 1e-3},
    )
    assert -best.fun == pytest.approx(2.0267053, abs=2e-7)
    perfect = found["perfect_recovery"]
    assert (perfect["branch"], perfect["value"]) == (
        "uninformed",
        pytest.approx(-best.fun, abs=1e-7),
    )
    assert perfect["informed"]["value"] == pytest.approx(2.0, abs=1e-8)
    assert complex_ratio(1e-4) == pytest.approx(2.0, abs=4e-4)
    assert found["hard_phase"] == pytest.approx([2.0, -best.fun], abs=1e-7)
    for threshold in (found["weak_recovery"], perfect, perfect["informed"]):
        assert threshold["error"] < 1e-6 * threshold["value"]


@pytest.mark.parametrize("seed", range(2))
def test_an_answer_does_not_depend_on_the_other_sample_ratios(seed):
    """Random sample ratios around both thresholds, alone, together and in any order, against the independent integral."""
    rng = np.random.default_rng(seed)
    alphas = [
        *(1 + 0.03 * rng.standard_normal(4)),
        1.0,
        *rng.uniform(1.2, 2.0, 3),
        *rng.uniform(2.0, 2.1, 3),
    ]
    together = competing(PROBLEM, rng.permutation(alphas).tolist())
    for points in together:
        alpha = points[0].alpha
        alone = competing(make(), [alpha])[0]
        assert [point.branch for point in alone] == [point.branch for point in points]
        assert len(points) == 1 + (2.0 < alpha < 2.0267)
        for one, other in zip(points, alone):
            np.testing.assert_array_equal(one.V, other.V)
        V = points[-1].mse[0]
        if alpha <= 1:
            assert V == 1
        elif V > 0:
            assert complex_ratio(V) == pytest.approx(
                alpha, abs=points[-1].alpha_error[0] + 1e-7
            )


def test_the_error_is_that_of_two_other_derivations():
    """Points of arXiv:2006.05228."""
    for alpha, mse in ((1.428, 0.78083647), (1.806, 0.45455357)):
        point = next(
            p for p in competing(PROBLEM, [alpha])[0] if p.branch != "informed"
        )
        assert point.mse == pytest.approx(np.full(2, mse), abs=2e-4)


def test_perfect_recovery_that_is_unstable_is_no_branch():
    """An error grows there by 2 / alpha a step; from 1e-8 that takes hundreds of steps."""
    (point,) = competing(PROBLEM, [1.8])[0]
    assert point.branch == "unique"
    assert point.mse.min() > 0.02


def test_a_narrow_pass_decides_between_an_error_and_perfect_recovery():
    """The uninformed branch ends where ``(1/v - 1) / I(v)`` is largest; just above, nothing stops the iteration before 0."""

    def ratio(log):
        v = np.exp(log)
        return (1 / v - 1) / ComplexModulus().information(
            (1 - v) * np.eye(2), v * np.eye(2)
        ).value[0, 0]

    end = -optimize.minimize_scalar(
        lambda log: -ratio(log),
        bounds=(-5, -1),
        method="bounded",
        options={"xatol": 1e-9},
    ).fun
    assert end == pytest.approx(2.0267053, abs=1e-7)
    below, *above = competing(
        PROBLEM, [end * (1 - 1e-5), end * (1 + 1e-5), 2.03, 2.2, 2.5]
    )
    assert [point.branch for point in below] == ["informed", "uninformed"]
    assert not below[0].V.any()
    assert 0.06 < below[1].mse.min() < 0.065
    for points in above:
        assert [point.branch for point in points] == ["unique"]
        assert not points[0].V.any()
        assert "not enough" not in points[0].method
