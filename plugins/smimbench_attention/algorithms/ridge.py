"""The algorithm ``ridge``: ridge regression on the signal by conjugate gradients, for linear labels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from smimbench.backend import matching, namespace, to_host
from smimbench.interfaces import (
    AlgorithmPrediction,
    Array,
    Capabilities,
    Data,
    Host,
    Info,
    require,
)
from smimbench.problem import Problem
from smimbench.theory import (
    Prediction,
    information_at,
    limit_point,
    point_document,
    prior_moments,
)
from smimbench_attention.algorithms.least_squares import (
    SAME,
    LeastSquares,
    LinearObservation,
    LinearRegression,
    ridge_overlaps,
)

CANDIDATES = tuple(float(10.0**k) for k in np.arange(-4, 2.01, 0.5))
"""Candidates for lambda."""

UNEQUAL_PENALTIES = "theory needs one penalty for all components"


class RidgeState(NamedTuple):
    """State of conjugate gradients on the normal equations: deviation of the estimate from the prior mean, residual, search
    ``direction``; and constants of the run: least-squares loss, penalty, norm of the right side, prior mean.

    The first axis of the arrays counts penalties that are solved for together.
    """

    deviation: Array
    residual: Array
    direction: Array
    least_squares: LeastSquares  # the loss
    penalty: Array
    right_side_norm: Array  # norm of the normal equations' right side
    prior_mean: Array  # where the deviation is 0
    remark: str  # what the user reads on labels and penalty


@dataclass(frozen=True)
class Ridge(LinearRegression):
    r"""Ridge regression for labels that are linear in the signal.

    Least squares with a quadratic penalty around the prior mean, by conjugate gradients:

    .. math::

        \min_S \; \tfrac12 \sum_i w_i (t_i - (A S)_i)^2 + \tfrac{\lambda}{2} \frac{D}{c} \operatorname{tr}
        \frac{(S - \bar S)(S - \bar S)^T}{D}, \qquad c = 1 \text{ or } 2/D,

    with lambda in units of the noise of the latents: at noise over the prior's variance this is the posterior mean for a
    Gaussian prior with the signal's first two moments (the best estimate that is linear in the labels), at 0 the solution
    closest to the prior mean. Only the identifiable combinations of the latents enter: linear labels as they are; for the
    softmax of one attention-indexed layer, logarithms of probabilities, which are linear in S up to a common shift. Other
    channels are refused. The engine's tolerance applies to the norm of the normal equations' residual over that of their
    right side.

    Parameters
    ----------
    regularisation : float, "theory" or "validation"
        lambda >= 0; "theory" (default): noise over the variance of each component around its mean, 0 without noise, which is
        Bayes-optimal among linear estimates for components that are independent;
        "validation": the best of 13 values from 1e-4 to 1e2 on a fifth of the samples, then refitted on all.

    References
    ----------
    Hoerl and Kennard (1970), Technometrics 12; theory derived, checked by tests/algorithms/test_ridge.py.
    """

    regularisation: float | str = "theory"  # lambda, or the rule for it

    name = "ridge"
    version = 2
    reference = "Hoerl and Kennard (1970), Technometrics 12, 55"
    capabilities = Capabilities()

    def __post_init__(self) -> None:
        """Check that the regularisation is a number >= 0 or the name of a rule."""
        regularisation = self.regularisation
        if isinstance(regularisation, str):
            is_valid = regularisation in ("theory", "validation")
        else:
            is_valid = 0 <= regularisation < float("inf")
        requirement = "a finite number >= 0, 'theory' or 'validation'"
        require(self, "regularisation", is_valid, requirement)

    def init(
        self, problem: Problem, data: Data, rng: np.random.Generator
    ) -> RidgeState:
        """Initial state at the prior mean; the penalty lambda is a number, that of theory, or chosen by validation.
        ``remark`` describes it and the linear observation of the latents.
        """
        observation, remark = self.observation_and_remark(problem)
        if self.regularisation == "validation":
            penalty: float | Host = _validated_penalty(problem, data, observation)
            remark += self.validation_note
        elif self.regularisation == "theory":
            second_moment, mean_overlap = prior_moments(problem)
            penalty = float(observation.noise.min()) / np.diagonal(
                second_moment - mean_overlap
            )
        else:
            penalty = float(self.regularisation)
        least_squares = LeastSquares(problem, observation, data.inputs, data.labels)
        return _initial_ridge_state(problem, least_squares, penalty, remark)

    def step(
        self, problem: Problem, data: Data, state: RidgeState
    ) -> tuple[RidgeState, Info]:
        """Take one step of conjugate gradients; the residual in the returned ``Info`` is that of the normal equations, relative
        to their right side.
        """
        next_state, relative_residual = _conjugate_gradient_step(state)
        return next_state, Info(
            residual=relative_residual[0], warning=state.remark, samples=None
        )

    def estimate(self, state: RidgeState) -> Array:
        """Estimate of the signal: the prior mean plus the computed deviation."""
        return state.prior_mean + state.deviation[0, ...]

    def theory(
        self, problem: Problem, alpha: float, assumed: Problem | None = None
    ) -> AlgorithmPrediction | str:
        """Predict the error of the estimate at sample ratio alpha in the limit, or return the reason why there is no theory.
        ``assumed`` is the problem that the penalty is best for, if it is another one.

        Low rank: the fixed point of ``erm`` with the square loss in closed form. Extensive rank, or latents of unlike noise (as
        of correlated tokens): for lambda of theory,
        ``V = 1 / (1 / V_0 + kappa alpha I(V))``, ``I`` the channel's information and ``V_0`` the variance around the mean.
        """
        if self.regularisation == "validation":
            return "there is no theory for a penalty chosen by validation"
        if assumed is not None:
            return self._mismatched_theory(problem, assumed, alpha)
        is_best_linear_estimate = (
            self.regularisation == "theory" and problem.components == 1
        )
        if problem.model.rank == "low":
            observation, _ = self.observation_and_remark(problem)
            if (
                observation.has_equal_noise
                or not is_best_linear_estimate
                or problem.features is not None
            ):
                return self._low_rank_theory(problem, alpha)
        elif not is_best_linear_estimate:
            return "theory for matrices exists for one component and regularisation = 'theory' only"
        return _best_linear_prediction(problem, alpha)

    def _mismatched_theory(
        self, problem: Problem, assumed: Problem, alpha: float
    ) -> AlgorithmPrediction | str:
        """Predict ridge regression on a problem at sample ratio alpha, with the penalty that is best for another, ``assumed``
        problem.
        """
        is_same_channel = (
            problem.spec["channel"]["name"] == assumed.spec["channel"]["name"]
        )
        second_moment, mean_overlap = prior_moments(assumed)
        if problem.model.rank != "low" or not is_same_channel or mean_overlap.any():
            return "with wrong assumptions, theory exists for a wrong noise or variance and low-rank signals only"
        if self.regularisation != "theory":
            return self._low_rank_theory(problem, alpha)
        penalties = self.observation_and_remark(assumed)[0].noise.min() / np.diagonal(
            second_moment
        )
        penalty = _common_penalty(penalties)
        if penalty is None:
            return UNEQUAL_PENALTIES
        ridge_with_fixed_penalty = replace(self, regularisation=penalty)
        return ridge_with_fixed_penalty._low_rank_theory(problem, alpha)

    def _low_rank_theory(
        self, problem: Problem, alpha: float
    ) -> AlgorithmPrediction | str:
        """Predict low-rank ridge regression at sample ratio alpha for latents that are observed with equal noise, or return
        why the theory does not apply. ``penalty`` is lambda.
        """
        observation, _ = self.observation_and_remark(problem)
        second_moment, mean_overlap = prior_moments(problem)
        sites = problem.model.sites
        observes_all_latents = (
            len(observation.combinations) == problem.components * sites
            and observation.has_equal_noise
        )
        if mean_overlap.any() or not observes_all_latents:
            return "theory needs latents that are all observed with the same noise, and signals of mean zero"
        if isinstance(self.regularisation, str):
            penalty = _common_penalty(observation.noise[0] / np.diagonal(second_moment))
        else:
            penalty = float(self.regularisation)
        if penalty is None:
            return UNEQUAL_PENALTIES
        noise_covariance = observation.noise[0] * np.eye(problem.components)
        try:
            overlaps = ridge_overlaps(
                second_moment,
                noise_covariance,
                alpha * sites,
                penalty,
                problem.features,
            )
        except ValueError as error:
            return str(error)
        prediction = limit_point(
            problem,
            alpha,
            [[overlaps]],
            method="ridge, closed fixed point",
            branch="minimum",
        )
        return replace(prediction, between_students=prediction.own_overlap)


def _common_penalty(penalties: Host) -> float | None:
    """Penalty of all components if it is the same, None if the components have different penalties."""
    if np.ptp(penalties) > SAME * penalties.max():
        return None
    return float(penalties[0])


def _best_linear_prediction(problem: Problem, alpha: float) -> AlgorithmPrediction:
    """Error V of the best linear estimate and its overlap Q with the signal at sample ratio alpha, for one component: the
    fixed point ``1/V = 1/prior variance + kappa alpha I(V)`` with I the information of a label and kappa the model's factor
    (2 for symmetric matrices).
    """
    kappa = problem.model.kappa
    prior_overlaps = prior_moments(problem)
    second_moment, mean_overlap = (
        float(prior_overlap[0, 0]) for prior_overlap in prior_overlaps
    )
    prior_variance = second_moment - mean_overlap

    def precision_excess(V: float) -> float:
        """Precision that prior and labels give at the error V and overlap Q, minus the precision 1 / V."""
        Q = np.array([[second_moment - V]])
        information = information_at(problem, Q, np.array([[V]])).value[0, 0]
        return float(1 / prior_variance + kappa * alpha * float(information) - 1 / V)

    from scipy.optimize import brentq

    smallest_V, V = 1e-12 * prior_variance, 0.0
    # Below its counting threshold a noiseless problem has a positive root; above it, the error is 0.
    if precision_excess(smallest_V) <= 0:
        V = float(brentq(precision_excess, smallest_V, prior_variance, xtol=1e-15))
    prediction = Prediction(
        alpha,
        np.array([[second_moment - V]]),
        np.array([[V]]),
        np.array([1e-12]),
        "linear",
        "best linear estimate, fixed point",
    )
    theory_point = point_document(problem, prediction)
    return AlgorithmPrediction.of_point(
        theory_point, between_students=theory_point["overlap"]
    )


def _initial_ridge_state(
    problem: Problem,
    least_squares: LeastSquares,
    penalty: float | Host,
    remark: str = "",
) -> RidgeState:
    """Initial state of conjugate gradients on the normal equations of the ``least_squares`` loss, at the prior mean, for one
    penalty, one per component, or several candidates (one row of ``penalties`` each); ``remark`` is for the user.
    """
    inputs = least_squares.inputs
    xp = namespace(inputs)
    device_and_dtype = matching(inputs)
    prior_mean_on_host = problem.prior.mean(problem.components, inputs.shape[-1])
    prior_mean = xp.asarray(prior_mean_on_host, **device_and_dtype)
    penalties = xp.asarray(np.atleast_2d(penalty), **device_and_dtype)
    right_side, _ = least_squares.normal_product(prior_mean, targets=True)
    right_sides = xp.stack([right_side] * penalties.shape[0])
    signal_axes = tuple(range(1, right_sides.ndim))
    right_side_norms = xp.sqrt(xp.sum(right_sides * right_sides, axis=signal_axes))
    zero_deviations = xp.zeros_like(right_sides)
    return RidgeState(
        zero_deviations,
        right_sides,
        right_sides,
        least_squares,
        penalties,
        right_side_norms,
        prior_mean,
        remark,
    )


def _conjugate_gradient_step(state: RidgeState) -> tuple[RidgeState, Array]:
    """Take one conjugate-gradient step on the normal equations for every candidate penalty (first axis); converged ones stay
    unchanged. Return the relative norm of their residuals as well.
    """
    xp = namespace(state.residual)
    direction = state.direction
    signal_axes = tuple(range(1, direction.ndim))
    candidate_shape = (-1, *[1] * len(signal_axes))
    component_shape = (*state.penalty.shape, *[1] * (len(signal_axes) - 1))
    penalty = xp.reshape(state.penalty, component_shape)

    def safe_ratio(numerator: Array, denominator: Array) -> Array:
        """Ratio ``numerator / denominator`` of each entry, 0 where the denominator is not positive."""
        denominator_is_positive = denominator > 0
        divisor = xp.where(
            denominator_is_positive, denominator, xp.ones_like(numerator)
        )
        quotient = numerator / divisor
        return xp.where(denominator_is_positive, quotient, xp.zeros_like(numerator))

    def squared_norm(residual: Array) -> Array:
        """Squared norm of the residual of every candidate."""
        return xp.sum(residual * residual, axis=signal_axes)

    matrix_times_direction = (
        state.least_squares.normal_product(direction)[0] + penalty * direction
    )
    direction_curvature = xp.sum(direction * matrix_times_direction, axis=signal_axes)
    step_size = xp.reshape(
        safe_ratio(squared_norm(state.residual), direction_curvature), candidate_shape
    )
    residual = state.residual - step_size * matrix_times_direction
    direction_weight = safe_ratio(squared_norm(residual), squared_norm(state.residual))
    # Not by ``safe_ratio``, which is 0 for a scale of NaN: data that are not finite must show.
    right_side_norm_or_zero = state.right_side_norm
    right_side_norm = xp.where(
        right_side_norm_or_zero > 0,
        right_side_norm_or_zero,
        xp.ones_like(right_side_norm_or_zero),
    )
    next_state = state._replace(
        deviation=state.deviation + step_size * direction,
        residual=residual,
        direction=residual + xp.reshape(direction_weight, candidate_shape) * direction,
    )
    return next_state, xp.sqrt(squared_norm(residual)) / right_side_norm


def _validated_penalty(
    problem: Problem, data: Data, observation: LinearObservation
) -> float:
    """Choose the penalty with the smallest error on held-out samples, for labels with this linear observation of the latents; all
    candidate penalties are solved together.
    """
    training_set, validation_set = LinearRegression.split_for_validation(
        problem, data, observation
    )
    state = _initial_ridge_state(problem, training_set, np.array(CANDIDATES)[:, None])
    for _ in range(200):
        state, relative_residuals = _conjugate_gradient_step(state)
        if float(namespace(relative_residuals).max(relative_residuals)) < 1e-3:
            break
    _, validation_errors = validation_set.normal_product(
        state.prior_mean + state.deviation, targets=True
    )
    return CANDIDATES[int(np.argmin(to_host(validation_errors)))]
