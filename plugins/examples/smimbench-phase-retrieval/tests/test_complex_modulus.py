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
    """Problem of complex phase retrieval of a Gaussian signal."""
    return smimbench.Problem(
        {"name": "sequence-multi-index", "tokens": 2}, "complex-modulus", "gaussian"
    )


PROBLEM = make()


@parametrize_with_checks([ComplexModulus()])
def test_contract(check):
    """The channel passes every published check."""
    check()


def test_posterior_is_the_average_over_phases():
    """The posterior of the latents z given labels y is the average over phases of the projection: ``projection_matrix`` maps the
    four latents, of prior covariance V over components, to its real and imaginary part, and the latents given the projection are
    Gaussian.
    """
    rng = np.random.default_rng(0)
    channel, V = ComplexModulus(), np.array([[0.5, 0.2], [0.2, 0.3]])
    omega = rng.standard_normal((6, 2, 2))
    z = omega + np.linalg.cholesky(V) @ rng.standard_normal((6, 2, 2))
    y = channel.forward(z)
    posterior = channel.posterior(y, omega, V, second_moment=True)
    # (u, v) as a linear map of the four latents, and their law given a point of the circle.
    projection_matrix = np.array([[1.0, 0, 0, -1], [0, 1, 1, 0]])
    prior_covariance = np.kron(V, np.eye(2))
    gain = (
        prior_covariance
        @ projection_matrix.T
        @ np.linalg.inv(projection_matrix @ prior_covariance @ projection_matrix.T)
    )
    phases = np.linspace(0, 2 * np.pi, 400, endpoint=False)
    covariances = []
    for sample in range(6):
        latent_means = omega[sample].ravel()
        points_on_circle = y[sample, 0] * np.stack(
            [np.cos(phases), np.sin(phases)], axis=-1
        )
        deviations = points_on_circle - projection_matrix @ latent_means
        log_weights = -0.5 * np.einsum(
            "ni,ij,nj->n",
            deviations,
            np.linalg.inv(projection_matrix @ prior_covariance @ projection_matrix.T),
            deviations,
        )
        weights = np.exp(log_weights - log_weights.max())
        weights /= weights.sum()
        conditional_means = latent_means + deviations @ gain.T
        conditional_covariance = (
            prior_covariance - gain @ projection_matrix @ prior_covariance
        )
        second_moment = (
            np.einsum("n,ni,nj->ij", weights, conditional_means, conditional_means)
            + conditional_covariance
        )
        posterior_mean = weights @ conditional_means
        covariances.append(second_moment - np.outer(posterior_mean, posterior_mean))
        np.testing.assert_allclose(
            posterior.mean[sample].ravel(), posterior_mean, atol=1e-10
        )
        np.testing.assert_allclose(
            posterior.second_moment[sample].reshape(4, 4), second_moment, atol=1e-10
        )
    mean_covariance = np.mean(covariances, axis=0).reshape(2, 2, 2, 2)
    np.testing.assert_allclose(
        posterior.covariance,
        (mean_covariance[:, 0, :, 0] + mean_covariance[:, 1, :, 1]) / 2,
        atol=1e-10,
    )


@pytest.mark.parametrize("q", [0.02, 0.5, 0.97])
def test_information_is_the_mean_over_labels(q):
    """The information in closed form, at overlap ``Q = q I``, agrees with a Monte Carlo mean over labels."""
    Q = q * np.eye(2)
    closed_form = ComplexModulus().information(Q, np.eye(2) - Q)
    sampled = sampled_moments(ComplexModulus(), 2, Q, np.eye(2) - Q)[0]
    assert np.abs(closed_form.value - sampled.value).max() < 4 * sampled.error.max()


@pytest.mark.parametrize("v", [1e-3, 1e-5, 1e-7])
def test_nearly_known_signals_get_one_equation(v):
    """At a small error v the information is that of one equation for each sample."""
    information = ComplexModulus().information((1 - v) * np.eye(2), v * np.eye(2))
    assert 2 * v * information.value[0, 0] == pytest.approx(
        1.0, abs=3 * v * np.log(1 / v)
    )


def sample_ratio_of_error(V):
    """Sample ratio at which an error V is a fixed point of state evolution, by SciPy's integrals over ``|E[Z | y]|`` of one
    complex projection Z.

    ``omega ~ CN(0, 1 - V)``, ``Z ~ CN(omega, V)``, ``y = |Z|``, and ``E[Z | y] = y I_1(k) / I_0(k)`` along omega,
    ``k = 2 y |omega| / V``; complex state evolution is ``(1 - V) / V = alpha E |E[Z | y] - omega|^2 / V^2``.
    """

    def weighted_shift(y, r):
        """Density of the label y given the modulus r of the projection's mean, times the squared shift of the posterior mean; k
        is the argument of the Bessel functions.
        """
        k = 2 * y * r / V
        density = 2 * y / V * special.i0e(k) * np.exp(-((y - r) ** 2) / V)
        return density * (y * special.i1e(k) / special.i0e(k) - r) ** 2

    def shift_at(t):
        """Mean squared shift at the scaled modulus t of the projection's mean, times the density of t; r is the modulus and
        ``ends`` are limits of the label.
        """
        r = np.sqrt(1 - V) * t
        ends = max(0.0, r - 9 * np.sqrt(V)), r + 9 * np.sqrt(V)
        return (
            integrate.quad(weighted_shift, *ends, args=(r,), epsrel=1e-10, limit=200)[0]
            * np.exp(-t * t)
            * 2
            * t
        )

    split_point = min(4 * np.sqrt(V / (1 - V)), 3.0)
    integrals = [
        integrate.quad(shift_at, *ends, epsrel=1e-9, limit=200)[0]
        for ends in ((0, split_point), (split_point, 6.5))
    ]
    return (1 - V) * V / sum(integrals)


def test_thresholds_are_those_of_an_independent_integral():
    """Thresholds of weak and perfect recovery agree with an independent integral."""
    threshold_document = thresholds(PROBLEM).document()
    assert threshold_document["weak_recovery"]["value"] == pytest.approx(1.0, abs=1e-7)
    assert sample_ratio_of_error(1 - 1e-5) == pytest.approx(1.0, abs=1e-4)
    # The uninformed branch ends where the sample ratio is largest, and perfect recovery is stable from counting onwards.
    largest_ratio = optimize.minimize_scalar(
        lambda log: -sample_ratio_of_error(np.exp(log)),
        bounds=(-4, -2),
        method="bounded",
        options={"xatol": 1e-3},
    )
    assert -largest_ratio.fun == pytest.approx(2.0267053, abs=2e-7)
    perfect_recovery = threshold_document["perfect_recovery"]
    assert (perfect_recovery["branch"], perfect_recovery["value"]) == (
        "uninformed",
        pytest.approx(-largest_ratio.fun, abs=1e-7),
    )
    assert perfect_recovery["informed"]["value"] == pytest.approx(2.0, abs=1e-8)
    assert sample_ratio_of_error(1e-4) == pytest.approx(2.0, abs=4e-4)
    assert threshold_document["hard_phase"] == pytest.approx(
        [2.0, -largest_ratio.fun], abs=1e-7
    )
    for threshold in (
        threshold_document["weak_recovery"],
        perfect_recovery,
        perfect_recovery["informed"],
    ):
        assert threshold["error"] < 1e-6 * threshold["value"]


@pytest.mark.parametrize("seed", range(2))
def test_an_answer_does_not_depend_on_the_other_sample_ratios(seed):
    """Fixed points at random sample ratios around both thresholds are the same alone, together and in any order, and their errors
    V agree with the independent integral.
    """
    rng = np.random.default_rng(seed)
    alphas = [
        *(1 + 0.03 * rng.standard_normal(4)),
        1.0,
        *rng.uniform(1.2, 2.0, 3),
        *rng.uniform(2.0, 2.1, 3),
    ]
    all_fixed_points = competing(PROBLEM, rng.permutation(alphas).tolist())
    for fixed_points in all_fixed_points:
        alpha = fixed_points[0].alpha
        separate_fixed_points = competing(make(), [alpha])[0]
        assert [point.branch for point in separate_fixed_points] == [
            point.branch for point in fixed_points
        ]
        assert len(fixed_points) == 1 + (2.0 < alpha < 2.0267)
        for fixed_point, separate_fixed_point in zip(
            fixed_points, separate_fixed_points
        ):
            np.testing.assert_array_equal(fixed_point.V, separate_fixed_point.V)
        V = fixed_points[-1].mse[0]
        if alpha <= 1:
            assert V == 1
        elif V > 0:
            assert sample_ratio_of_error(V) == pytest.approx(
                alpha, abs=fixed_points[-1].alpha_error[0] + 1e-7
            )


def test_the_error_is_that_of_two_other_derivations():
    """Errors agree with those of arXiv:2006.05228."""
    for alpha, mse in ((1.428, 0.78083647), (1.806, 0.45455357)):
        uninformed_point = next(
            fixed_point
            for fixed_point in competing(PROBLEM, [alpha])[0]
            if fixed_point.branch != "informed"
        )
        assert uninformed_point.mse == pytest.approx(np.full(2, mse), abs=2e-4)


def test_perfect_recovery_that_is_unstable_is_no_branch():
    """Perfect recovery is no branch where it is unstable: a small error grows there by 2 / alpha a step, which from 1e-8 takes
    hundreds of steps.
    """
    (fixed_point,) = competing(PROBLEM, [1.8])[0]
    assert fixed_point.branch == "unique"
    assert fixed_point.mse.min() > 0.02


def test_a_narrow_pass_decides_between_an_error_and_perfect_recovery():
    """The uninformed branch ends at the largest sample ratio ``(1/v - 1) / I(v)`` of a fixed point with error v and information
    I; just above, the iteration goes on to perfect recovery.
    """

    def ratio_of_fixed_point(log_v):
        """Sample ratio at which the error ``v = exp(log_v)`` is a fixed point of state evolution."""
        v = np.exp(log_v)
        return (1 / v - 1) / ComplexModulus().information(
            (1 - v) * np.eye(2), v * np.eye(2)
        ).value[0, 0]

    largest_ratio = -optimize.minimize_scalar(
        lambda log_v: -ratio_of_fixed_point(log_v),
        bounds=(-5, -1),
        method="bounded",
        options={"xatol": 1e-9},
    ).fun
    assert largest_ratio == pytest.approx(2.0267053, abs=1e-7)
    points_below, *points_above = competing(
        PROBLEM,
        [largest_ratio * (1 - 1e-5), largest_ratio * (1 + 1e-5), 2.03, 2.2, 2.5],
    )
    assert [fixed_point.branch for fixed_point in points_below] == [
        "informed",
        "uninformed",
    ]
    assert not points_below[0].V.any()
    assert 0.06 < points_below[1].mse.min() < 0.065
    for fixed_points in points_above:
        assert [fixed_point.branch for fixed_point in fixed_points] == ["unique"]
        assert not fixed_points[0].V.any()
        assert "not enough" not in fixed_points[0].method
