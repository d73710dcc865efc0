r"""The limit of convex empirical risk minimization: the replica-symmetric fixed point.

The minimum of ``sum_mu l(y_mu, z_mu) + (lambda / 2) |W|^2`` has overlaps ``M = W W*^T / D``, ``Q = W W^T / D`` and a
susceptibility V (all P x P) with

.. math::

    V = (\lambda + \hat V)^{-1}, \qquad M = V \hat m T, \qquad Q = V (\hat m T \hat m^T + \hat Q) V,

    \hat V = -\alpha E \sum_c \frac{\partial g_c}{\partial \omega_c}, \qquad
    \hat m = \alpha E \sum_c \frac{\partial g_c}{\partial z^*_c}, \qquad \hat Q = \alpha E \sum_c g_c g_c^T,

``g = V^{-1} (prox(y, omega) - omega)`` with the proximal operator of the loss, over Gaussian ``(z*, omega)`` of covariance
``(T, M, Q)`` and the labels of z*. A convex problem has one minimum, so that replica symmetry is exact.

References
----------
Aubin, Krzakala, Lu and Zdeborova, arXiv:2006.06560; Thrampoulidis, Abbasi and Hassibi, arXiv:1601.06233 (proof); several
components derived, checked by tests/algorithms/test_erm.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from smimbench.interfaces import Host, Overlaps
from smimbench.numerics import spectral_function
from smimbench.problem import Problem
from smimbench.theory import prior_moments
from smimbench_attention.algorithms.erm.integrals import (
    ACCURACY,
    LOSSES,
    Integrals,
    Loss,
    OrderParameters,
    integrals_of,
    labels_of,
)
from smimbench_attention.algorithms.least_squares import (
    additive_noise,
    ridge_averages,
    ridge_overlaps,
)

PENALTIES = (1e-12, 1e12)
"""Smallest and largest penalty: beyond these an estimate is practically unpenalized, or zero."""


class Minimum(NamedTuple):
    """Minimum of the risk in the limit: overlaps of signal and estimate, mean training and test loss of a sample, and numerical
    errors of the overlaps.

    Attributes
    ----------
    overlaps : Overlaps
    training_loss, test_loss : float
        Mean loss of a sample, of those that were fitted and of others; without the penalty.
    overlap_errors : Overlaps
        How far the overlaps are from the fixed point, from one step of Newton's method.
    """

    overlaps: Overlaps
    training_loss: float
    test_loss: float
    overlap_errors: Overlaps  # numerical errors of the overlaps


def best_length_factor(overlaps: Sequence[Overlaps]) -> float:
    """Factor ``tr M / tr Q`` that rescales an estimate to the smallest squared error, M being its overlap with the signal and
    Q with itself, summed over the ``overlaps`` of every evaluation of the integrals.
    """
    M = sum(
        float(np.trace(overlaps_of_evaluation.cross))
        for overlaps_of_evaluation in overlaps
    )
    Q = sum(
        float(np.trace(overlaps_of_evaluation.own))
        for overlaps_of_evaluation in overlaps
    )
    return M / Q


def why_not_convex(problem: Problem, loss: Loss | None) -> str | None:
    """Reason why convex risk minimization does not apply to a problem with this loss (None: with any loss), or None where it
    applies.
    """
    if problem.model.rank != "low":
        return "erm is for low-rank signals; nuclear and ridge fit matrices"
    if problem.channel.symmetry != "none":
        channel_name = problem.channel.name
        return f"labels of channel {channel_name!r} do not depend on the sign of the signal: no loss is convex in the latents"
    label_type = labels_of(problem)
    if label_type is None:
        reason = f"labels of channel {problem.channel.name!r} are not one number for each latent"
        if problem.mixing is not None:
            reason += " of independent tokens, as tokens are correlated"
        return reason
    if loss is not None and loss.has_sign_labels and label_type != "signs":
        return f"loss {loss.name!r} needs labels -1 and +1, those of channel {problem.channel.name!r} are not"
    return None


@functools.lru_cache(maxsize=256)
def minima(problem: Problem, alpha: float, loss: str, penalty: float) -> list[Minimum]:
    """Minima of the risk in the limit at sample ratio alpha, for the named loss and one penalty > 0: one for every
    independent evaluation of the integrals.

    Raises
    ------
    ValueError
        If the iteration does not converge.
    """
    return [
        solver.minimum(penalty)
        for solver in _fixed_point_solvers(problem, alpha, LOSSES[loss])
    ]


def _fixed_point_solvers(
    problem: Problem, alpha: float, loss: Loss
) -> Sequence[ClosedFormRidge | FixedPoints]:
    """Solvers of the fixed point at sample ratio alpha and any penalty, one for every independent evaluation of the
    integrals; one in closed form for ridge regression. ``noise`` are the variances of labels ``z + noise``, None for other
    labels.
    """
    noise = additive_noise(problem) if loss.name == "square" else None
    if noise is not None:
        noise_covariance = noise[0] * np.eye(problem.components)
        return [ClosedFormRidge(problem, alpha, noise_covariance)]
    return [
        FixedPoints(problem, alpha, integrals)
        for integrals in integrals_of(problem, loss)
    ]


class ClosedFormRidge:
    """Closed-form minimum for the square loss on labels ``z + noise`` of latents z: ridge regression."""

    def __init__(self, problem: Problem, alpha: float, noise_covariance: Host) -> None:
        """Store the signal's second moment T and the noise covariance (P, P), and ``ratio``, the observed latents per
        direction: the sample ratio alpha times the sites.
        """
        self.T = prior_moments(problem)[0]
        self.noise = noise_covariance
        self.sites = problem.model.sites
        self.ratio = alpha * self.sites
        self.features = problem.features

    def overlaps(self, penalty: float) -> Overlaps:
        """Overlaps of signal and estimate at the minimum of the risk with this penalty."""
        return ridge_overlaps(self.T, self.noise, self.ratio, penalty, self.features)

    def minimum(self, penalty: float) -> Minimum:
        """Exact minimum of the risk at a given penalty, with overlaps T (signal with itself), M (estimate with signal) and Q
        (estimate with itself); a fitted label keeps ``residual_share`` of its residual.
        """
        T, M, Q = overlaps = self.overlaps(penalty)
        test_loss = self.sites * float(np.trace(T - M - M.T + Q + self.noise)) / 2
        residual_share = (
            1 - ridge_averages(self.ratio, penalty, self.features).fitted_fraction
        )
        zero_errors = Overlaps(0 * T, 0 * T, 0 * T)
        return Minimum(overlaps, residual_share**2 * test_loss, test_loss, zero_errors)


def order_parameters(
    parameters: Host,
    T: Host,
    penalty: float = 0.0,
    feature_variances: Host | None = None,
) -> OrderParameters:
    """Overlaps M, Q and susceptibility V of the estimate, as the fixed-point equations give them from ``parameters``: V, m_hat
    and Q_hat (3, P, P), for signals of second moment T, without cancellation. ``feature_gains`` is ``lambda (penalty + lambda
    V_hat)^{-1}`` of features of variance lambda, ``feature_variances`` (None: all 1). ``conditional_covariance`` is that of the
    signal's latents given the estimate's, ``noise_covariance`` the reverse.
    """
    V, m_hat, Q_hat = parameters
    feature_gains = V[None]
    feature_variance = np.ones((1, 1, 1))
    identity = np.eye(len(T))
    if feature_variances is not None:
        feature_variance = feature_variances[:, None, None]
        V_hat = stiffness(V, penalty, feature_variances)
        feature_gains = feature_variance * np.linalg.inv(
            penalty * identity + feature_variance * V_hat
        )
    signal_gains = feature_gains @ m_hat
    mean_gain = np.mean(feature_variance * signal_gains, axis=0)
    gain_deviation = signal_gains - mean_gain
    covariance_from_signal = gain_deviation @ T @ gain_deviation.swapaxes(1, 2)
    covariance_from_noise = feature_gains @ Q_hat @ feature_gains.swapaxes(1, 2)
    noise_covariance = np.mean(
        feature_variance * covariance_from_signal + covariance_from_noise, axis=0
    )
    signal_information = mean_gain.T @ np.linalg.solve(noise_covariance, mean_gain)
    conditional_covariance = T @ np.linalg.inv(identity + signal_information @ T)
    M = mean_gain @ T
    Q = mean_gain @ T @ mean_gain.T + noise_covariance
    return OrderParameters(T, M, Q, V, conditional_covariance, noise_covariance)


def stiffness(V: Host, penalty: float, feature_variances: Host) -> Host:
    """Stiffness V_hat (P, P) of the loss at which the mean of ``lambda / (penalty + lambda V_hat)``, over features of variance
    lambda (``feature_variances``), is the susceptibility V.
    """
    from scipy.optimize import brentq

    def scalar_stiffness(v: float) -> float:
        """Stiffness of one component that gives the susceptibility v, an eigenvalue of V."""

        # Between the curves of equal features and of features that are all learned.
        def excess_susceptibility(log_stiffness: float) -> float:
            """Susceptibility at the stiffness ``exp(log_stiffness)``, minus the given v."""
            stiffnesses = penalty + feature_variances * np.exp(log_stiffness)
            return float(np.mean(feature_variances / stiffnesses)) - v

        largest_log_stiffness = -np.log(v)
        smallest_log_stiffness = largest_log_stiffness - 60.0
        if excess_susceptibility(smallest_log_stiffness) <= 0:
            return 0.0
        return float(
            np.exp(
                brentq(
                    excess_susceptibility,
                    smallest_log_stiffness,
                    largest_log_stiffness,
                    xtol=1e-14,
                )
            )
        )

    def stiffness_of_eigenvalues(eigenvalues: Host) -> Host:
        """Stiffness for each of the ``eigenvalues`` v of the susceptibility V."""
        return np.array([scalar_stiffness(v) for v in eigenvalues])

    return np.asarray(spectral_function(V, stiffness_of_eigenvalues))


class FixedPoints:
    r"""Fixed points of one problem, at one sample ratio, as a function of the penalty; known fixed points, kept in
    ``solutions``, give the next initial guess.

    Features of variance lambda have ``G = (penalty + lambda V_hat)^{-1}``, and means over them,

    .. math::

        V = E \lambda G, \qquad M = E \lambda^2 G \hat m T, \qquad
        Q = E \lambda^2 G (\lambda \hat m T \hat m^T + \hat Q) G,

    take the place of the equations for features of variance 1. The product of estimate and signal without the weights lambda is
    ``V m_hat T`` in both cases.
    """

    def __init__(self, problem: Problem, alpha: float, integrals: Integrals) -> None:
        """Store the sample ratio alpha, the number of components P, the signal's second moment T, the integrals and the
        variances of the features; no solutions are known yet.
        """
        self.P, self.T = problem.components, prior_moments(problem)[0]
        self.alpha = alpha
        self.integrals = integrals
        self.features = problem.features
        self.solutions: list[tuple[float, Host]] = []

    @property
    def safe_penalty(self) -> float:
        """Large penalty at which the iteration always converges; smaller ones are reached in factors of at most 10."""
        return max(self.alpha, 1.0)

    def minimum(self, penalty: float) -> Minimum:
        """Minimum of the risk at a given penalty, with its losses and numerical errors, from its order parameters (V, m_hat,
        Q_hat as ``parameters``; overlaps as ``orders``); smaller penalties than ``safe_penalty`` are reached in steps.
        """
        penalty_steps = int(np.ceil(np.log10(self.safe_penalty / penalty)))
        if penalty_steps > 0:
            penalties = np.geomspace(self.safe_penalty, penalty, penalty_steps + 1)
            for larger_penalty in penalties[:-1]:
                self.solve(float(larger_penalty))
        parameters = self.solve(penalty)
        orders = self._order_parameters(parameters, penalty)
        risk_moments = self.integrals(orders)
        return Minimum(
            Overlaps(orders.T, orders.M, orders.Q),
            risk_moments.training_loss,
            risk_moments.test_loss,
            self.newton_step_errors(penalty, parameters),
        )

    def overlaps(self, penalty: float) -> Overlaps:
        """Overlaps T, M and Q of signal and estimate at the fixed point of a penalty; ``orders`` are its order parameters."""
        orders = self._order_parameters(self.solve(penalty), penalty)
        return Overlaps(orders.T, orders.M, orders.Q)

    def solve(self, penalty: float) -> Host:
        """Solve for the order parameters V (susceptibility), m_hat and Q_hat (signal and noise in what the labels tell), (3,
        P, P), at the fixed point of a penalty, by iterations and a root finder in turn.
        """
        parameters = self._initial_guess(penalty)
        last_relative_change = np.inf
        if self.solutions:
            parameters, last_relative_change = self._find_root(penalty, parameters)
        for attempt in range(ACCURACY.root_attempts):
            if not last_relative_change <= ACCURACY.converged_change:
                parameters, last_relative_change = self._iterate(penalty, parameters)
            if last_relative_change <= ACCURACY.converged_change or (
                attempt and last_relative_change <= ACCURACY.stalled_change
            ):
                self.solutions.append((float(np.log(penalty)), parameters))
                return parameters
            if not np.isfinite(parameters).all():
                break
            parameters, last_relative_change = self._find_root(penalty, parameters)
        raise ValueError(
            f"the fixed point of erm at penalty {penalty:g} was not found (last relative change {last_relative_change:.1e}); "
            "a larger penalty may converge"
        )

    def _iterate(self, penalty: float, parameters: Host) -> tuple[Host, float]:
        """Run some damped fixed-point iterations, at this penalty, of the order ``parameters`` V, m_hat and Q_hat (3, P, P);
        return the last relative change as well.
        """
        for _ in range(ACCURACY.iterations_per_attempt):
            next_parameters = self._iterate_once(penalty, parameters)
            parameter_changes = np.abs(next_parameters - parameters).max(axis=(1, 2))
            largest_parameters = np.abs(next_parameters).max(axis=(1, 2))
            relative_change = float(np.max(parameter_changes / largest_parameters))
            damping_weight = ACCURACY.damping_weight
            parameters = (
                damping_weight * next_parameters + (1 - damping_weight) * parameters
            )
            if not relative_change > ACCURACY.converged_change:
                break
        return parameters, relative_change

    def _order_parameters(self, parameters: Host, penalty: float) -> OrderParameters:
        """Overlaps M, Q and susceptibility V of the estimate that follow at this penalty from ``parameters``: V, m_hat and
        Q_hat (3, P, P).
        """
        return order_parameters(parameters, self.T, penalty, self.features)

    def _susceptibility(self, V_hat: Host, penalty: float) -> Host:
        """Susceptibility V (P, P) of the estimate for a stiffness V_hat (P, P) of the loss: the mean of
        ``lambda (penalty + lambda V_hat)^{-1}`` over features of variance lambda.
        """
        penalty_matrix = penalty * np.eye(self.P)
        if self.features is None:
            return np.asarray(np.linalg.inv(penalty_matrix + V_hat))
        feature_variance = self.features[:, None, None]
        feature_gains = feature_variance * np.linalg.inv(
            penalty_matrix + feature_variance * V_hat
        )
        return np.asarray(np.mean(feature_gains, axis=0))

    def _iterate_once(self, penalty: float, parameters: Host) -> Host:
        """Order parameters V, m_hat and Q_hat (3, P, P) after one iteration of the equations at this penalty from
        ``parameters``: V_hat, m_hat and Q_hat are alpha times integrals over latents, and V follows from V_hat and the penalty.
        """
        risk_moments = self.integrals(self._order_parameters(parameters, penalty))
        V_hat, m_hat, Q_hat = (
            self.alpha * risk_moment for risk_moment in risk_moments[:3]
        )
        return np.stack([self._susceptibility(V_hat, penalty), m_hat, Q_hat])

    def _root_problem(
        self, penalty: float, parameters: Host
    ) -> tuple[Host, Callable[[Host], Host], Callable[[Host], Host]]:
        """Fixed point of a penalty as a root problem near the order ``parameters`` V, m_hat and Q_hat (3, P, P): initial
        unknowns (flat), map from unknowns to order parameters, and residual, a function of the unknowns.
        """
        parameters_are_positive = self.P == 1 and bool((parameters > 0).all())
        parameter_scale = np.abs(parameters).max(axis=(1, 2), keepdims=True)
        parameter_scale = parameter_scale * np.ones_like(parameters)
        invalid_residual = np.full(parameters.size, 1e3)

        def parameters_from(unknowns: Host) -> Host:
            """Order parameters from the unknowns, which for one component are logarithms, so that all values are valid."""
            if parameters_are_positive:
                positive_parameters = np.exp(np.clip(unknowns, -100.0, 100.0))
                return np.asarray(positive_parameters.reshape(parameters.shape))
            return np.asarray(unknowns.reshape(parameters.shape) * parameter_scale)

        def residual(unknowns: Host) -> Host:
            """Unknowns after one iteration minus the given ones, zero at the fixed point; large constants where the
            susceptibility V or the self-overlap Q is not positive. ``orders`` are the overlaps that follow from the unknowns,
            V_hat and Q_hat stiffness and noise after the iteration.
            """
            trial_parameters = parameters_from(unknowns)
            orders = self._order_parameters(trial_parameters, penalty)
            eigenvalues_of_matrices = (
                np.linalg.eigvalsh(matrix) for matrix in (orders.V, orders.Q)
            )
            if (
                min(
                    matrix_eigenvalues.min()
                    for matrix_eigenvalues in eigenvalues_of_matrices
                )
                <= 0
            ):
                return invalid_residual
            if not parameters_are_positive:
                next_parameters = self._iterate_once(penalty, trial_parameters)
                return np.asarray(
                    (next_parameters / parameter_scale).ravel() - unknowns
                )
            risk_moments = self.integrals(orders)
            # alpha E g z* = lambda M is equivalent to the equation of M, without the terms that cancel there; in units of that
            # equation it is as close to linear.
            V_hat = np.array([[self.alpha * risk_moments.V_hat.item()]])
            V = self._susceptibility(V_hat, penalty).item()
            Q_hat = self.alpha * risk_moments.Q_hat.item()
            if not (V > 0 and Q_hat > 0):
                return invalid_residual
            trial_overlap = (trial_parameters[0] @ trial_parameters[1] @ self.T).item()
            overlap_excess = (
                self.alpha * risk_moments.g_signal_product.item()
                - penalty * trial_overlap
            )
            return np.array(
                [
                    np.log(V) - unknowns[0],
                    overlap_excess * V / trial_overlap,
                    np.log(Q_hat) - unknowns[2],
                ]
            )

        initial_unknowns = (
            np.log(parameters)
            if parameters_are_positive
            else parameters / parameter_scale
        )
        return initial_unknowns.ravel(), parameters_from, residual

    def _find_root(self, penalty: float, parameters: Host) -> tuple[Host, float]:
        """Find a nearby fixed point of this penalty with a root finder, from order ``parameters`` V, m_hat and Q_hat (3, P,
        P); return it (or the input, if none is found) and the largest entry of its residual.
        """
        from scipy.optimize import root

        initial_unknowns, parameters_from, residual = self._root_problem(
            penalty, parameters
        )
        root_finder_options = {
            "xtol": ACCURACY.converged_change,
            "maxfev": ACCURACY.evaluations_per_unknown * len(initial_unknowns),
        }
        solution = root(
            residual, initial_unknowns, method="hybr", options=root_finder_options
        )
        final_residual = float(np.abs(solution.fun).max())
        initial_residual = float(np.abs(residual(initial_unknowns)).max())
        if final_residual < initial_residual:
            return parameters_from(solution.x), final_residual
        return parameters, initial_residual

    def newton_step_errors(self, penalty: float, parameters: Host) -> Overlaps:
        """Numerical errors of the overlaps: their change in a Newton step from the order ``parameters`` V, m_hat and Q_hat
        (3, P, P) towards the fixed point at this penalty. ``parameters_from`` maps the unknowns of the root problem to order
        parameters, ``orders`` are the overlaps there.
        """
        unknowns, parameters_from, residual_of = self._root_problem(penalty, parameters)
        residual = residual_of(unknowns)
        finite_difference = 1e-5
        jacobian_columns = [
            (residual_of(unknowns + finite_difference * unit_vector) - residual)
            / finite_difference
            for unit_vector in np.eye(len(unknowns))
        ]
        jacobian = np.stack(jacobian_columns, axis=1)
        newton_step = np.linalg.lstsq(jacobian, -residual, rcond=None)[0]
        orders, stepped_orders = (
            self._order_parameters(parameters_from(trial_unknowns), penalty)
            for trial_unknowns in (unknowns, unknowns + newton_step)
        )
        M_error = np.abs(stepped_orders.M - orders.M)
        Q_error = np.abs(stepped_orders.Q - orders.Q)
        return Overlaps(np.zeros_like(self.T), M_error, Q_error)

    def _initial_guess(self, penalty: float) -> Host:
        """Initial guess of V, m_hat and Q_hat (3, P, P) at a penalty: extrapolation by a power law of the penalty through the
        two nearest known fixed points (one component), or the nearest one.
        """
        log_penalty = float(np.log(penalty))
        nearest_solutions = sorted(
            self.solutions, key=lambda solution: abs(solution[0] - log_penalty)
        )[:2]
        if not nearest_solutions:  # a small overlap and a small norm
            identity = np.eye(self.P)
            initial_stiffness = 1 + penalty
            Q_hat = initial_stiffness**2 * (0.1 * identity + 0.09 * self.T)
            m_hat = 0.1 * initial_stiffness * identity
            return np.stack([identity / initial_stiffness, m_hat, Q_hat])
        nearest_parameters = np.stack(
            [parameters for _, parameters in nearest_solutions]
        )
        parameters_are_positive = (nearest_parameters > 0).all()
        if len(nearest_solutions) == 1 or self.P > 1 or not parameters_are_positive:
            return nearest_solutions[0][1]
        (log_penalty_1, parameters_1), (log_penalty_2, parameters_2) = nearest_solutions
        extrapolation_exponent = (log_penalty - log_penalty_1) / (
            log_penalty_2 - log_penalty_1
        )
        return np.asarray(
            parameters_1 * (parameters_2 / parameters_1) ** extrapolation_exponent
        )


@functools.lru_cache(maxsize=256)
def best_penalty(problem: Problem, alpha: float, loss: str, length_rule: str) -> float:
    """Penalty that minimizes the predicted MSE, summed over components, of the estimate of the named loss at sample ratio
    alpha, rescaled by the ``length_rule``.

    Parameters
    ----------
    length_rule : {"posterior", "loss"}
        Whether the estimate is rescaled to its best length, or keeps the length of the minimizer.

    Raises
    ------
    ValueError
        If no fixed point is found.
    """
    from scipy.optimize import minimize_scalar

    solvers = _fixed_point_solvers(problem, alpha, LOSSES[loss])
    prior_norm = float(np.trace(solvers[0].T))
    excess_mse: dict[float, float] = {}
    failure_reasons = ["the error is not finite"]

    def excess_mse_at(log_penalty: float) -> float:
        """MSE minus that of a zero estimate, ``f (f Q - 2 M)``, at the penalty ``exp(log_penalty)``: M and Q are the traces of
        the estimate's overlaps with signal and itself, f its length factor; infinite where no fixed point is found.
        """
        try:
            overlaps = [
                solver.overlaps(float(np.exp(log_penalty))) for solver in solvers
            ]
        except ValueError as error:
            # An overlap or an error too close to its limit for float64.
            failure_reasons.append(str(error))
            return np.inf
        length_factor = 1.0
        if length_rule == "posterior":
            length_factor = best_length_factor(overlaps)
        M = np.mean(
            [
                np.trace(overlaps_of_evaluation.cross)
                for overlaps_of_evaluation in overlaps
            ]
        )
        Q = np.mean(
            [
                np.trace(overlaps_of_evaluation.own)
                for overlaps_of_evaluation in overlaps
            ]
        )
        excess_mse[log_penalty] = float(length_factor * (length_factor * Q - 2 * M))
        return excess_mse[log_penalty]

    def best_log_penalty() -> float:
        """Log-penalty with the smallest error of all that were tried so far."""
        return min(excess_mse, key=excess_mse.__getitem__)

    # Decrease the penalty from one at which the iteration always converges until the minimum is passed; increase it if the
    # minimum is at the start.
    smallest_log_penalty, largest_log_penalty = np.log(PENALTIES)
    log_penalty_step = float(np.log(10.0))
    log_penalty = initial_log_penalty = float(np.log(max(alpha, 1.0)))
    if not np.isfinite(excess_mse_at(initial_log_penalty)):
        raise ValueError(
            f"theory did not find the best penalty at alpha = {alpha:g} ({failure_reasons[-1]}); set penalty to a number"
        )
    while log_penalty > smallest_log_penalty:
        log_penalty = max(log_penalty - log_penalty_step, smallest_log_penalty)
        reached_excess_mse = excess_mse_at(log_penalty)
        lowest_excess_mse = min(excess_mse.values())
        lowest_mse = prior_norm + lowest_excess_mse
        is_past_minimum = prior_norm + reached_excess_mse > 1.02 * lowest_mse
        if is_past_minimum or reached_excess_mse > 0.98 * lowest_excess_mse:
            break
    log_penalty = initial_log_penalty
    while log_penalty < largest_log_penalty and best_log_penalty() == log_penalty:
        previous_excess_mse = excess_mse[log_penalty]
        log_penalty = min(log_penalty + log_penalty_step, largest_log_penalty)
        rounding_of_mse = 1e-12 * abs(previous_excess_mse)
        if not excess_mse_at(log_penalty) < previous_excess_mse - rounding_of_mse:
            break
    log_penalty_bounds = (
        max(best_log_penalty() - log_penalty_step, smallest_log_penalty),
        min(best_log_penalty() + log_penalty_step, largest_log_penalty),
    )
    minimize_scalar(
        excess_mse_at,
        bounds=log_penalty_bounds,
        method="bounded",
        options={"xatol": 1e-5},
    )
    return float(np.exp(best_log_penalty()))
