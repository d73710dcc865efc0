r"""State evolution of GAMP: the fixed point reached from its start, its trajectory, and corrections of order 1/D.

Undamped, an iteration maps overlaps to overlaps exactly as D goes to infinity. Runs from the prior mean, or from an informed
start, are on the Bayes-optimal line, where the predicted error V is the true one, and stay there:

.. math:: \hat Q = \kappa \alpha\, I(Q, V), \qquad (Q, V) = \mathrm{overlap}(\hat Q),

the equations of theory's fixed points, so the trajectory ends at one. A random start has an overlap by chance and is off the
line; its trajectory is sampled several times (``smimbench_attention.algorithms.gamp.assumed``), and the spread is the error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from smimbench.interfaces import AlgorithmPrediction, Conditions, Host, Overlaps
from smimbench.problem import Problem
from smimbench.theory import (
    aligned,
    bayes_optimal_step,
    competing,
    iterate_until_stationary,
    overlap_at,
    point_document,
    prior_moments,
    scores,
)
from smimbench_attention.algorithms.gamp.assumed import (
    MismatchedRecursion,
    NoFixedPoint,
    Orders,
)

UNRESOLVED = "the trajectory from a random start is not known: the numerical errors of its integrals are too large"


class TrajectoryAccuracy(NamedTuple):
    """Numerical settings of predicted GAMP trajectories: sampled points, tolerated errors and the end of the iteration.

    Attributes
    ----------
    point_sets : int
        Independent sets of points; their spread is the stated error.
    largest_relative_error : float
        Error, as a fraction of the second moment, above which a trajectory is not shown.
    arrival_distance : float
        Distance to the fixed point, as a fraction of the second moment and besides the stated errors, that counts as arrived.
    max_iterations : int
        Largest number of iterations.
    """

    point_sets: int = 4  # independent sets of random points
    largest_relative_error: float = 0.1  # error above which none is shown
    arrival_distance: float = 0.01  # distance that counts as arrived
    max_iterations: int = 60  # longest trajectory


ACCURACY = TrajectoryAccuracy()


def gamp_theory(
    problem: Problem,
    alpha: float,
    conditions: Conditions,
    random_start_V: Host | None,
    *,
    damped: bool,
) -> AlgorithmPrediction:
    """Predict the fixed point of GAMP, damped or not, and its trajectory (or the reason why there is no trajectory), under
    the conditions of the runs (start, dimension). ``branch`` is the fixed point where runs end: the informed or the
    uninformed one. alpha is the sample ratio, ``random_start_V`` the error that a random start claims (None: another start).

    ``random_start_V`` is the error that a random start predicts for itself; see ``_trajectory``.

    Where two branches compete, a run that begins at the prior mean, or near it, ends on the uninformed one, and one that begins
    near the signal on the informed one. Students that start alike agree.
    """
    theory_points = conditions.points
    if not theory_points:
        branches = competing(problem, [alpha])[0]
        theory_points = tuple(point_document(problem, branch) for branch in branches)
    branch = "informed" if conditions.start == "informed" else "uninformed"
    fixed_point = next(
        (point for point in theory_points if point["branch"] == branch),
        theory_points[0],
    )
    mse_correction = finite_size_correction(problem, alpha)
    prediction = AlgorithmPrediction.of_point(
        fixed_point,
        between_students=fixed_point["overlap"],
        finite_size=None if mse_correction is None else {"mse": mse_correction},
    )
    if not conditions.trajectory:
        return prediction
    if damped:
        reason = "state evolution describes undamped GAMP only; set damping = 0 (the fixed points stay the same)"
        return replace(prediction, trajectory=reason)
    if conditions.start not in ("uninformed", "informed"):
        reason = f"the start {conditions.start!r} depends on the data"
        return replace(prediction, trajectory=reason)
    trajectory = _trajectory(problem, alpha, conditions, random_start_V, prediction)
    return replace(prediction, trajectory=trajectory)


def random_start_error(problem: Problem, information: float) -> Host:
    """Error V (P, P) that the prior predicts for a random start, a draw of the signal observed with the information matrix
    ``information`` times I.
    """
    V: Host = overlap_at(problem, information * np.eye(problem.components))[1]
    return V


def finite_size_correction(problem: Problem, alpha: float) -> list[float] | None:
    r"""Finite-size coefficient b of ``MSE = limit + b / D`` per component at the sample ratio alpha, for Gaussian signals and
    linear labels (None for others), from the Stieltjes transform S(z) of the inputs' covariance at z = -noise and the ratio r of
    rows (tokens of all samples) to D.

    None for other problems.

    There GAMP ends at the posterior mean of every instance, and its error is the Stieltjes transform of a real Wishart matrix at
    minus the noise. With N = T n rows, ``r = N / D`` and ``S(z) = E tr (X^T X / D - z)^{-1} / D``, integration by parts gives

    .. math:: 1 + z S = r S - S (1 + z S) - \frac1D (S + z S') + O(1/D^2), \qquad z = -\Delta,

    so that with ``F = 1 + z - r + 2 z S``, the slope of this equation in S, and ``S' = -(S + S^2) / F``,

    .. math:: E\,\mathrm{MSE} = \Delta S + \frac{b}{D}, \qquad b = -\Delta\, \frac{S + z S'}{F}.

    Derived; checked by tests/algorithms/test_gamp_theory.py against exact posteriors of small sizes. In other problems the
    denoiser or the labels are not linear, and corrections contain the fluctuations of order parameters.
    """
    spec = problem.spec
    item_names = [
        spec[item_kind]["name"] for item_kind in ("model", "channel", "prior")
    ]
    if item_names != ["sequence-multi-index", "linear", "gaussian"]:
        return None
    noise_variance = float(spec["channel"]["noise"])
    r = alpha * problem.model.tokens
    if (
        problem.variances is not None
        or problem.mixing is not None
        or noise_variance <= 0
    ):
        return None
    z = -noise_variance
    # z S^2 + (1 + z - r) S + 1 = 0, the positive root, in the form in which nothing cancels.
    linear_coefficient = 1 + z - r
    root_of_discriminant = math.sqrt(linear_coefficient * linear_coefficient - 4 * z)
    if linear_coefficient > 0:
        S = (linear_coefficient + root_of_discriminant) / (-2 * z)
    else:
        S = 2 / (root_of_discriminant - linear_coefficient)
    slope_in_S = linear_coefficient + 2 * z * S
    S_derivative = -(S + S * S) / slope_in_S
    return [-noise_variance * (S + z * S_derivative) / slope_in_S] * problem.components


def _trajectory(
    problem: Problem,
    alpha: float,
    conditions: Conditions,
    random_start_V: Host | None,
    fixed_point: AlgorithmPrediction,
) -> dict[str, list[Any]] | str:
    """Trajectory of undamped GAMP at sample ratio alpha (``iteration``, ``mse``, ``mse_error``, ``overlap``) to a predicted fixed
    point, or why there is none. A path holds the overlaps at all iterations for one set of sampled points, ``orders`` the order
    parameters of an iteration; ``random_start_V`` is the error that a random start claims (None: another start), T the second
    moment of the signal.

    ``random_start_V`` (P, P): error that a random start predicts for itself; None: the start is on the Bayes-optimal line.
    """
    if problem.variances is not None and random_start_V is not None:
        return "the trajectory from a random start is not known for features with a spectrum"
    initial_orders = _initial_orders(problem, conditions, random_start_V)
    T = prior_moments(problem)[0]
    second_moments = np.diagonal(T)
    iteration_count = min(
        conditions.iterations or ACCURACY.max_iterations, ACCURACY.max_iterations
    )
    overlap_paths: list[list[Overlaps]] = []
    all_paths_are_stationary = True
    for seed in range(1 if random_start_V is None else ACCURACY.point_sets):
        if random_start_V is None:
            iterate = _bayes_optimal_iteration(
                problem, alpha, initial_orders.V, np.asarray(fixed_point.overlap)
            )
        else:
            iterate = MismatchedRecursion(problem, problem, alpha, seed).step
        try:
            orders_along_path, path_is_stationary = iterate_until_stationary(
                problem, initial_orders, iteration_count, iterate
            )
        except (NoFixedPoint, np.linalg.LinAlgError):
            return UNRESOLVED
        overlap_paths.append([orders.overlaps(T) for orders in orders_along_path])
        all_paths_are_stationary &= path_is_stationary
        mse, mse_error, overlap = _mean_metrics(problem, overlap_paths)
        # Two sets that are far apart will not agree with more of them.
        allowed_error = ACCURACY.largest_relative_error * np.sqrt(
            ACCURACY.point_sets / len(overlap_paths)
        )
        if not (mse_error < allowed_error * second_moments).all():
            return UNRESOLVED
    fixed_point_mse = np.atleast_1d(fixed_point.mse)
    fixed_point_error = np.atleast_1d(fixed_point.mse_error)
    distance_to_fixed_point = np.abs(mse[-1] - fixed_point_mse)
    allowed_distance = ACCURACY.arrival_distance * second_moments + 4 * (
        fixed_point_error + mse_error[-1]
    )
    if all_paths_are_stationary and (distance_to_fixed_point > allowed_distance).any():
        final_mse, expected_mse = (
            ", ".join(f"{mse_value:.3g}" for mse_value in mse_values)
            for mse_values in (mse[-1], fixed_point_mse)
        )
        return f"the predicted trajectory ends at an MSE of {final_mse}, not at that of the fixed point, {expected_mse}"
    return {
        "iteration": list(range(len(mse))),
        "mse": mse.tolist(),
        "mse_error": mse_error.tolist(),
        "overlap": overlap.tolist(),
    }


def _mean_metrics(
    problem: Problem, paths: list[list[Overlaps]]
) -> tuple[Host, Host, Host]:
    """Mean MSE, its standard error and mean overlap (iterations, P) over the paths, lists of the overlaps at all iterations,
    in the units of the metrics.

    A path at rest stays where it is. One path has no error; numbers that are not finite have an infinite one.
    """
    longest_path = max(map(len, paths))
    padded_paths = [path + path[-1:] * (longest_path - len(path)) for path in paths]
    overlap_matrices: Host = np.array(padded_paths)  # (paths, iterations, 3, P, P)
    metrics_of_paths = scores(
        aligned(problem, Overlaps(*np.moveaxis(overlap_matrices, 2, 0)))
    )
    mse = metrics_of_paths["mse"]
    is_low_rank = problem.model.rank == "low"
    overlap = metrics_of_paths["squared_cosine" if is_low_rank else "overlap"].mean(
        axis=0
    )
    mse_error = np.zeros_like(mse[0])
    if len(mse) > 1:
        mse_error = np.std(mse, axis=0, ddof=1) / np.sqrt(len(mse))
    mse_error = np.where(np.isfinite(mse).all(axis=0), mse_error, np.inf)
    return mse.mean(axis=0), mse_error, overlap


def _initial_orders(
    problem: Problem, conditions: Conditions, random_start_V: Host | None
) -> Orders:
    """Order parameters (overlap M with the signal, self-overlap Q, claimed error V) of the initial states of the runs in the
    limit of large D; ``random_start_V`` is the V of a random start, None for other starts.

    Their norms differ from the second moment by chance, which the limit does not contain. An informed start enters by its overlap
    with itself. A random one has an overlap with the signal that is chance alone, but grows from there: it is that of the runs.
    """
    second_moment, prior_mean_overlap = prior_moments(problem)
    aligned_starts = [aligned(problem, overlaps) for overlaps in conditions.starts]
    if random_start_V is not None:
        Q = second_moment - random_start_V
        M = (
            np.mean([overlaps.cross for overlaps in aligned_starts], axis=0)
            if aligned_starts
            else Q
        )
        if problem.channel.symmetry == "signs":
            M = np.diag(np.diagonal(M))  # other entries have either sign, and mean 0
        return Orders(M, Q, random_start_V)
    if not aligned_starts or conditions.start != "informed":
        return Orders.bayes_optimal(second_moment, second_moment - prior_mean_overlap)
    self_overlaps = []
    for overlaps in aligned_starts:
        squared_norms = np.diagonal(np.asarray(overlaps.truth, dtype=float))
        norm_correction = np.sqrt(np.diagonal(second_moment) / squared_norms)
        self_overlaps.append(
            norm_correction[:, None]
            * np.asarray(overlaps.own, dtype=float)
            * norm_correction
        )
    return Orders.bayes_optimal(
        second_moment, second_moment - np.mean(self_overlaps, axis=0)
    )


def _bayes_optimal_iteration(
    problem: Problem, alpha: float, first_V: Host, final_overlap: Host
) -> Callable[[Orders], Orders]:
    """Function that maps order parameters on the Bayes-optimal line to those after one iteration at sample ratio alpha, between
    the error ``first_V`` and the overlap ``final_overlap``.
    """
    T = prior_moments(problem)[0]
    step = bayes_optimal_step(problem, alpha, first_V, final_overlap)
    return lambda orders: Orders.bayes_optimal(T, step(orders.V))
