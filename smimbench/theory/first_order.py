r"""The smallest error of any first-order method after k passes over the data: state evolution, iterated from the prior mean.

A pass is a product with the inputs and one with their transpose. A first-order method may do anything between its passes with all
that it has seen; as D grows, none has a smaller error after k passes than undamped Bayes-optimal message passing after k
iterations (arXiv:2002.12903, arXiv:2201.05101, for low rank and independent Gaussian inputs; for other problems it is a
conjecture), whose order parameters are those of state evolution,

.. math:: \hat Q = \kappa \alpha\, I(Q, V), \qquad (Q, V) = \mathrm{overlap}(\hat Q).

Where the prior mean is a fixed point of these equations, learning starts from an overlap by chance, of order ``1/sqrt(D)``: the
passes that it takes grow with log D, and there is no such error in the limit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from smimbench.interfaces import Host
from smimbench.interfaces.problem import prior_moments
from smimbench.numerics.linalg import symmetric_logarithm
from smimbench.theory.coupled import exponential
from smimbench.theory.information import information_at, offers_rough, overlap_at
from smimbench.theory.types import Floor, TheoryPoint

if TYPE_CHECKING:
    from smimbench.problem.problem import Problem

STATIONARY, ROUGHLY_STATIONARY = 1e-9, 1e-5
"""Relative change of order parameters that ends their iteration; the second where the information is sampled. Halved, paths are
a few iterations longer."""
ARRIVED = 0.01
"""Distance to the fixed point, as a fraction of the second moment, that counts as arrived. Halved, sampled paths may miss it."""
MAX_PASSES, MAX_SAMPLED_PASSES = 1000, 60
"""Passes after which the floor is not known; the second where the information is sampled. Doubled, slow ones take longer."""
FROM_CHANCE = "learning starts from chance; the passes needed grow with log D"
"""Why there is no floor where the prior mean is a fixed point."""

Orders = TypeVar("Orders")


def first_order_floor(
    problem: Problem, alpha: float, point: TheoryPoint
) -> Floor | str:
    """Compute the smallest error of a first-order method after every number of passes, at the sample ratio alpha; ``point`` is
    the fixed point where learning from the prior mean ends. Return the reason if there is none.
    """
    T, prior_mean_overlap = prior_moments(problem)
    if problem.channel.symmetry != "none" and not prior_mean_overlap.any():
        return FROM_CHANCE
    step = bayes_optimal_step(
        problem, alpha, T - prior_mean_overlap, np.asarray(point.overlap)
    )

    def next_orders(orders: tuple[Host]) -> tuple[Host]:
        """Error V after one pass more."""
        return (step(*orders),)

    path, is_stationary = iterate_until_stationary(
        problem,
        (T - prior_mean_overlap,),
        MAX_SAMPLED_PASSES if offers_rough(problem) else MAX_PASSES,
        next_orders,
    )
    mse = np.array([np.diagonal(V) for (V,) in path])
    distance_to_fixed_point = np.abs(mse[-1] - point.mse)
    allowed_distance = ARRIVED * np.diagonal(T) + 4 * point.mse_error
    if len(path) < 3 or (
        is_stationary and (distance_to_fixed_point > allowed_distance).any()
    ):
        return FROM_CHANCE
    is_proven = problem.model.rank == "low" and "inputs" not in problem.spec
    return Floor(mse, point.mse_error, is_proven)


def bayes_optimal_step(
    problem: Problem, alpha: float, first_V: Host, final_overlap: Host
) -> Callable[[Host], Host]:
    """Function that maps the error V (P, P) of an estimate to that after one iteration of Bayes-optimal state evolution at sample
    ratio alpha, with the information tabulated in advance between the error ``first_V`` and the overlap ``final_overlap``.
    """
    T = prior_moments(problem)[0]
    information = tabulated_information(
        problem, T - first_V, first_V, final_overlap.reshape(T.shape)
    )

    def step(V: Host) -> Host:
        """Error after one iteration from the error V."""
        Qhat = problem.model.kappa * alpha * information(T - V, V)
        next_V: Host = overlap_at(problem, Qhat)[1]
        return next_V

    return step


def iterate_until_stationary(
    problem: Problem,
    initial_orders: Orders,
    max_iterations: int,
    iterate: Callable[[Orders], Orders],
) -> tuple[list[Orders], bool]:
    """Iterate state evolution with the map ``iterate``, at most ``max_iterations`` times from ``initial_orders``; return the
    order parameters (a tuple of matrices, the last one the error V) of all iterations and whether they became stationary.
    """
    second_moments = np.diagonal(prior_moments(problem)[0])
    stationary_change = ROUGHLY_STATIONARY if offers_rough(problem) else STATIONARY
    orders_along_path = [initial_orders]
    for _ in range(max_iterations):
        orders_along_path.append(iterate(orders_along_path[-1]))
        previous_diagonals, current_diagonals = (
            np.diagonal(np.array(orders), axis1=1, axis2=2)
            for orders in orders_along_path[-2:]
        )
        signal_is_known = (current_diagonals[-1] < 1e-13 * second_moments).all()
        diagonal_changes = np.abs(current_diagonals - previous_diagonals)
        allowed_changes = stationary_change * np.abs(previous_diagonals)
        if signal_is_known or (diagonal_changes <= allowed_changes).all():
            return orders_along_path, True
    return orders_along_path, False


def tabulated_information(
    problem: Problem, Q: Host, V: Host, final_Q: Host | None = None
) -> Callable[[Host, Host], Host]:
    """Information of a label as a function of overlap Q and error V (P, P), tabulated between those given and the overlap
    ``final_Q`` where integrals are costly.

    Where a channel offers rough values, these are used, shifted to the accurate ones at both ends: the logarithm of their ratio
    hardly varies, and is interpolated in the trace of Q.
    """
    if not offers_rough(problem):
        return lambda Q, V: information_at(problem, Q, V).value
    second_moment = prior_moments(problem)[0]
    tabulated_points = [(Q, V)]
    if final_Q is not None and (np.diagonal(second_moment - final_Q) > 0).all():
        tabulated_points.append(
            (final_Q, np.diag(np.diagonal(second_moment - final_Q)))
        )

    def log_information(Q: Host, V: Host, rough: bool) -> Host:
        """Matrix logarithm (P, P) of the information at overlap Q and error V, accurate or, with ``rough``, from the
        channel's rough values.
        """
        return symmetric_logarithm(information_at(problem, Q, V, rough=rough).value)

    log_ratios = [
        log_information(*overlap_and_error, rough=False)
        - log_information(*overlap_and_error, rough=True)
        for overlap_and_error in tabulated_points
    ]
    trace_start, trace_end = (
        float(np.trace(overlap_and_error[0]))
        for overlap_and_error in (tabulated_points[0], tabulated_points[-1])
    )

    def interpolated_information(Q: Host, V: Host) -> Host:
        """Rough information (P, P) at overlap Q and error V, corrected by the ratio of accurate to rough values, whose
        logarithm is interpolated in the trace of Q.
        """
        weight_of_final_point = 0.0
        if trace_end != trace_start:
            weight_of_final_point = (np.trace(Q) - trace_start) / (
                trace_end - trace_start
            )
            weight_of_final_point = float(np.clip(weight_of_final_point, 0.0, 1.0))
        log_rough_information = log_information(Q, V, rough=True)
        return exponential(
            log_rough_information
            + (1 - weight_of_final_point) * log_ratios[0]
            + weight_of_final_point * log_ratios[-1]
        )

    return interpolated_information
