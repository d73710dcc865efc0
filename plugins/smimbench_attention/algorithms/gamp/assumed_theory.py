"""Theory of GAMP with a mismatched prior or channel: fixed points of its state evolution, and checks of them by plain draws.

Linear labels and a Gaussian signal, both assumed, make it ridge regression, which has a closed form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np

from smimbench.derive import denoise_step
from smimbench.interfaces import AlgorithmPrediction, Conditions, Host, ParameterError
from smimbench.numerics import monte_carlo_rng, symmetric_root
from smimbench.problem import Problem
from smimbench.theory import Check, compare, limit_point, prior_moments
from smimbench_attention.algorithms.gamp.assumed import (
    ACCURACY,
    SMALLEST_ERROR,
    Conjugates,
    MismatchedRecursion,
    NoFixedPoint,
    Orders,
    measured_variance,
)
from smimbench_attention.algorithms.gamp.message_pass import label_information
from smimbench_attention.algorithms.least_squares import additive_noise, ridge_overlaps

Parameters = TypeVar("Parameters", Orders, Conjugates)


def mismatched_theory(
    problem: Problem, assumed: Problem, alpha: float, conditions: Conditions
) -> AlgorithmPrediction | str:
    """Predict GAMP that assumes the problem ``assumed`` on data of ``problem`` at sample ratio alpha, under the conditions of the
    runs (start), or return the reason why there is no theory. T is the signal's second moment; ``orders`` and ``conjugates`` list
    the order parameters and their conjugates at the fixed point, one for every set of random points (``seed``).
    """
    if problem.features is not None or problem.mixing is not None:
        return "with wrong assumptions, theory exists for independent tokens only"
    if conditions.start not in ("uninformed", "informed"):
        return f"with wrong assumptions, theory exists for uninformed and informed starts only, not for {conditions.start!r}"
    if problem.model.rank == "extensive" and (
        problem.components > 1
        or problem.prior.law.spectral_means is None
        or assumed.prior.law.eigenvalue_map is None
    ):
        return "with wrong assumptions, theory for matrices exists for one component and priors with a spectral law only"
    is_informed = conditions.start == "informed"
    orders: list[Orders] = []
    conjugates: list[Conjugates] = []
    perturbation_growth = 0.0
    try:
        ridge_solution = _ridge_fixed_point(problem, assumed, alpha)
        if ridge_solution is not None:  # exact, so that sets of points do not differ
            orders = [ridge_solution[0]] * 2
            conjugates = [ridge_solution[1]] * 2
        for seed in range(0 if ridge_solution else ACCURACY.point_sets):
            state_evolution = MismatchedRecursion(problem, assumed, alpha, seed)
            initial_orders = state_evolution.initial_orders(
                0.99 if is_informed else ACCURACY.initial_overlap
            )
            orders.append(
                state_evolution.fixed_point(orders[0] if orders else initial_orders)
            )
            conjugates.append(state_evolution.conjugates(orders[-1]))
            perturbation_growth = max(
                perturbation_growth,
                state_evolution.perturbation_growth(orders[-1], conjugates[-1]),
            )
    except (NoFixedPoint, ParameterError, np.linalg.LinAlgError) as error:
        return f"GAMP with these assumptions does not converge: {error}"
    if perturbation_growth > 1:
        return f"GAMP with these assumptions does not converge: errors grow by {perturbation_growth:.3g} in every iteration"
    T = prior_moments(problem)[0]
    prediction = limit_point(
        problem,
        alpha,
        [[fixed_point.overlaps(T)] for fixed_point in orders],
        method="closed form of ridge regression"
        if ridge_solution
        else "state evolution, wrong assumptions",
        branch="informed" if is_informed else "own",
        V=_mean_parameters(orders).V,
    )
    solution = MismatchedSolution(
        problem, assumed, alpha, prediction, orders, conjugates
    )
    return replace(prediction, draws=lambda: checks_by_draws(solution))


def _ridge_fixed_point(
    problem: Problem, assumed: Problem, alpha: float
) -> tuple[Orders, Conjugates] | None:
    """Closed-form fixed point (order parameters M, Q, V and conjugates Qhat, m, chi) at sample ratio alpha where GAMP is
    ridge regression: for linear labels, and a Gaussian signal in the problem ``assumed`` by GAMP; else None. T is the
    signal's second moment, ``penalty`` the assumed noise over the assumed variance.

    None for other problems, and where components have penalties of their own.

    Raises
    ------
    NoFixedPoint
        Without an assumed noise, where there are just as many labels as directions.
    """
    true_noises = additive_noise(problem)
    assumed_noises = additive_noise(assumed)
    if true_noises is None or assumed_noises is None:
        return None
    T, mean_overlap = prior_moments(problem)
    assumed_second_moment, assumed_mean_overlap = prior_moments(assumed)
    assumed_variance = float(assumed_second_moment[0, 0])
    identity = np.eye(len(assumed_second_moment))
    if (
        mean_overlap.any()
        or assumed_mean_overlap.any()
        or not np.allclose(assumed_second_moment, assumed_variance * identity)
    ):
        return None
    random_observations = monte_carlo_rng(
        "wrong assumptions: denoiser"
    ).standard_normal((len(T), 64))
    estimate = assumed.prior.denoise(random_observations, identity).estimate
    linear_estimate = random_observations * assumed_variance / (1 + assumed_variance)
    if not np.allclose(estimate, linear_estimate, rtol=0, atol=1e-9):
        return None
    true_noise = true_noises.mean() * identity
    assumed_noise = assumed_noises.mean() * identity
    labels_per_direction = alpha * problem.model.sites
    penalty = float(assumed_noises.mean()) / assumed_variance
    try:
        _, M, Q = ridge_overlaps(T, true_noise, labels_per_direction, penalty)
    except ValueError as error:
        raise NoFixedPoint(str(error)) from None
    claimed_overlaps = ridge_overlaps(
        assumed_second_moment, assumed_noise, labels_per_direction, penalty
    )
    V = (
        claimed_overlaps.truth
        - 2 * claimed_overlaps.cross
        + claimed_overlaps.own
        + SMALLEST_ERROR * identity
    )
    label_precision = np.linalg.inv(V + assumed_noise)
    information = problem.model.kappa * alpha * problem.model.sites * label_precision
    chi = information @ (T - M - M.T + Q + true_noise) @ label_precision
    return Orders(M, Q, V), Conjugates(information, information, chi)


# -- the same numbers by plain draws -------------------------------------------------------------------------------------

DRAWS, BATCHES, DIMENSION = 500, 40, 120
"""Draws of labels in a batch, batches, and dimension of matrices that are denoised. Each doubled: half the variance."""


class MismatchedSolution(NamedTuple):
    """Fixed points of state evolution on a problem while another is assumed, at sample ratio alpha: order parameters and
    conjugates for every set of random points, and the prediction made from them.
    """

    problem: Problem
    assumed: Problem  # the problem that GAMP assumes
    alpha: float
    prediction: AlgorithmPrediction
    orders: list[Orders]
    conjugates: list[Conjugates]

    @property
    def random_stream_name(self) -> str:
        """Name of the random-number stream of the draws that check this solution."""
        return f"{self.problem.identity} {self.assumed.identity} {self.prediction.more['alpha']!r}"


def _mean_parameters(samples: Sequence[Parameters]) -> Parameters:
    """Mean of order parameters, or of conjugates, over ``samples``, one for each independent set of random points."""
    return type(samples[0])(*(np.mean(matrices, axis=0) for matrices in zip(*samples)))


def _standard_error(samples: Sequence[Parameters]) -> Parameters:
    """Standard error of the mean of order parameters, or of conjugates, over ``samples``, one for each independent set of random
    points.
    """
    deviations = (np.std(matrices, axis=0, ddof=1) for matrices in zip(*samples))
    root_of_count = len(samples) ** 0.5
    return type(samples[0])(*(deviation / root_of_count for deviation in deviations))


def checks_by_draws(solution: MismatchedSolution) -> list[Check]:
    """Check the prediction of a solution of state evolution (its order parameters M, Q, V and conjugates Qhat, m, chi) against
    Monte Carlo draws of labels and of denoised signals.

    m is the mean product of g with the latents of the signal less their mean given omega, without the true posterior. V is
    what a run measures, the response of the denoiser to a probe, without the spectral law or Stein's lemma.
    """
    orders = _mean_parameters(solution.orders)
    conjugates = _mean_parameters(solution.conjugates)
    conjugate_errors = _standard_error(solution.conjugates)
    V_error = _standard_error(solution.orders).V + SMALLEST_ERROR
    drawn_conjugates = _drawn_conjugates(solution, orders)
    # What the size does is taken to fall as its inverse, and counted as an error.
    half_size_errors, full_size_errors = _drawn_errors(solution, conjugates)
    extrapolated_errors = 2 * full_size_errors - half_size_errors
    size_errors = np.abs((full_size_errors - half_size_errors).mean(axis=0))
    mse, mse_error = solution.prediction.mse, solution.prediction.mse_error
    draw_checks = []
    for conjugate_index, conjugate_name in enumerate(Conjugates._fields):
        predicted_diagonal = np.diagonal(conjugates[conjugate_index])
        prediction_error = np.diagonal(conjugate_errors[conjugate_index])
        draw_checks += _compare_components(
            conjugate_name,
            predicted_diagonal,
            prediction_error,
            drawn_conjugates[:, conjugate_index],
            0 * predicted_diagonal,
        )
    draw_checks += _compare_components(
        "signal", mse, mse_error, extrapolated_errors[:, 0], size_errors[0]
    )
    V = np.diagonal(orders.V)
    V_error = np.diagonal(V_error)
    return draw_checks + _compare_components(
        "V", V, V_error, extrapolated_errors[:, 1], size_errors[1]
    )


def _compare_components(
    quantity_name: str,
    predicted_quantity: Host,
    prediction_errors: Host,
    draws: Host,
    draw_errors: Host,
) -> list[Check]:
    """Compare a predicted quantity (P,) of this name and its ``prediction_errors``, component by component, with Monte Carlo
    ``draws`` of it (n, P), whose systematic errors are ``draw_errors`` (P,).
    """
    return [
        compare(
            quantity_name,
            component,
            predicted_quantity[component],
            prediction_errors[component],
            draws[:, component],
            draw_errors[component],
            effective=np.inf,
        )
        for component in range(len(predicted_quantity))
    ]


def _drawn_conjugates(solution: MismatchedSolution, orders: Orders) -> Host:
    """Diagonals of the conjugates Qhat, m and chi (BATCHES, 3, P) of a solution of state evolution at its order parameters M, Q,
    V, estimated from messages g at random batches of labels y, of latents with means omega under GAMP.
    """
    problem = solution.problem
    M, Q, V = orders
    P, sites = problem.components, problem.model.sites
    coefficients_of_true_mean = M.T @ np.linalg.inv(Q)
    conditional_covariance = prior_moments(problem)[0] - coefficients_of_true_mean @ M
    batch_diagonals = []
    for batch_number in range(BATCHES):
        rng = monte_carlo_rng(
            f"wrong assumptions: draws {solution.random_stream_name}", batch_number
        )
        normal_draws = rng.standard_normal((2, DRAWS, P, sites))
        omega = symmetric_root(Q) @ normal_draws[0]
        true_deviation = symmetric_root(conditional_covariance) @ normal_draws[1]
        y = problem.channel.forward(
            coefficients_of_true_mean @ omega + true_deviation, rng=rng
        )
        posterior = solution.assumed.channel.posterior(y, omega, V, rng=rng)
        g = np.linalg.inv(V) @ (np.asarray(posterior.mean) - omega)
        Qhat = sites * label_information(V, np.asarray(posterior.covariance))
        m, chi = (
            np.einsum("npc,npc->p", g, conjugate_field) / DRAWS
            for conjugate_field in (
                np.linalg.inv(conditional_covariance) @ true_deviation,
                g,
            )
        )
        batch_diagonals.append([np.diagonal(Qhat), m, chi])
    return problem.model.kappa * solution.alpha * np.array(batch_diagonals)


def _drawn_errors(solution: MismatchedSolution, conjugates: Conjugates) -> Host:
    """True and claimed error (2, BATCHES, 2, P) of signals that are denoised from random observations R at the conjugates Qhat, m
    and chi of a solution of state evolution; the first axis is half and full dimension D, the third the two errors.
    """
    problem = solution.problem
    assumed_problem = solution.assumed
    Qhat, m, chi = conjugates
    model = problem.model
    P = problem.components
    Qhat_inverse = np.linalg.inv(Qhat)
    full_dimension = DIMENSION if model.rank == "extensive" else DRAWS * DIMENSION
    true_and_claimed_errors = []
    for D in (full_dimension // 2, full_dimension):
        rng = monte_carlo_rng(
            f"wrong assumptions: denoised {solution.random_stream_name}", D
        )
        for _ in range(BATCHES):
            signal = problem.prior.sample(rng, P, D)
            noise = model.draw_noise(rng, P, D)
            R = np.tensordot(Qhat_inverse @ m, signal, 1)
            R = R + np.tensordot(Qhat_inverse @ symmetric_root(chi), noise, 1)
            estimate = np.asarray(denoise_step(assumed_problem.prior, R, Qhat).estimate)
            probe = model.draw_noise(rng, P, D)
            claimed_error = measured_variance(assumed_problem, R, Qhat, estimate, probe)
            true_error = model.inner(signal - estimate, signal - estimate)
            true_and_claimed_errors.append(
                [np.diagonal(true_error), np.diagonal(claimed_error)]
            )
    return np.reshape(true_and_claimed_errors, (2, BATCHES, 2, P))
