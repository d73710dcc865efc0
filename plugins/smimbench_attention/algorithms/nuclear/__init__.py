"""The algorithm ``nuclear``: nuclear-norm regression for labels that are linear in an attention matrix."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from smimbench.backend import asarray_like, namespace, to_host
from smimbench.interfaces import (
    AlgorithmPrediction,
    Array,
    Capabilities,
    Data,
    Info,
    is_symmetric,
    require,
)
from smimbench.numerics import spectral_function
from smimbench.problem import Problem
from smimbench_attention.algorithms.least_squares import (
    LeastSquares,
    LinearObservation,
    LinearRegression,
)
from smimbench_attention.algorithms.nuclear.limit import (
    best_penalty,
    fixed_point,
    minimum_point,
    penalty_of_zero_estimate,
    perfect_recovery,
    weighted_observations,
    why_no_theory,
)
from smimbench_attention.algorithms.nuclear.shrinkage import (
    apply_to_singular_values,
    soft_threshold,
    spectrum,
)

PENALTY_FRACTIONS = tuple(float(10.0**k) for k in np.arange(-0.5, -3.26, -0.25))
"""Candidates for tau, as fractions of the tau at which the estimate vanishes."""

PENALTY_DECREASE = 0.93
"""Factor of tau from step to step of the path to the optimal one; its logarithm halved, twice the steps to a tiny one."""


class NuclearState(NamedTuple):
    """State of accelerated proximal gradient: estimate, extrapolated point (the estimate plus momentum) and its weight, slope
    of the loss at the previous estimate, duality gap; and constants of the run.
    """

    estimate: Array
    extrapolated_point: Array  # estimate plus momentum
    momentum_counter: float  # t_k of Beck and Teboulle
    # extrapolated_point = estimate + extrapolation_weight (estimate - previous estimate)
    extrapolation_weight: float  # weight of the momentum
    previous_slope: Array  # minus the gradient of the loss at the previous estimate
    duality_gap: float  # relative, of the previous estimate; infinite at the start
    least_squares: LeastSquares  # the loss
    slope_and_loss_at_zero: tuple[Array, float]  # slope and loss of the zero matrix
    lipschitz: float  # Lipschitz constant of the gradient
    penalty: float  # tau
    next_penalty: float  # penalty of the next step; it falls to ``penalty``
    remark: str  # what the user reads on labels and penalty

    @property
    def is_symmetric(self) -> bool:
        """Whether the matrix that is estimated is symmetric."""
        return is_symmetric(self.least_squares.problem.model)


@dataclass(frozen=True)
class Nuclear(LinearRegression):
    r"""Nuclear-norm regression for labels that are linear in the matrix.

    By accelerated proximal gradients (FISTA) with restarts:

    .. math:: \min_S \; \tfrac{1}{d} \sum_i w_i (t_i - (A S)_i)^2 + \tau |S|_*, \qquad S = S^T \; (\succeq 0)

    or over all matrices where queries and keys are untied: then singular values take the place of eigenvalues, and the first
    term has a factor 1/2.

    It knows that the rank is below d, not what the law of the eigenvalues is. Only the identifiable combinations of the
    latents enter: linear labels as they are; for the softmax of one layer, logarithms of probabilities, which are linear in
    S up to a common shift. Other channels are refused.

    The residual is the square root of the relative duality gap ``(primal - dual) / primal``, which bounds how far the objective
    is above its minimum. Its theory is state evolution (``smimbench_attention.algorithms.nuclear.limit``).

    Parameters
    ----------
    regularisation : float, "validation" or "optimal"
        tau > 0; "validation" (default): the best of 12 values between 0.3 and 6e-4 of the tau at which the estimate
        vanishes, on a fifth of the samples, then refitted on all; "optimal": the tau of the least error in the limit, by
        theory, which knows the prior. As it may be tiny, the steps come to it along a path from the one that vanishes.
    positive : bool
        Restrict to positive semidefinite matrices, which attention with tied key and query has; without symmetry false.

    References
    ----------
    Beck and Teboulle (2009), SIAM J. Imaging Sci. 2, 183; O'Donoghue and Candes, arXiv:1204.3982 (restarts);
    arXiv:2505.17958, arXiv:2509.24914 (theory).
    """

    regularisation: float | str = "validation"  # tau, or the rule for it
    positive: bool = True  # search positive semidefinite matrices only

    name = "nuclear"
    version = 3
    reference = (
        "Beck and Teboulle (2009), SIAM J. Imaging Sci. 2, 183; arXiv:2505.17958"
    )
    capabilities = Capabilities(models=("attention-indexed",))

    def __post_init__(self) -> None:
        """Check that the regularisation is a number > 0 or the name of a rule."""
        regularisation = self.regularisation
        if isinstance(regularisation, str):
            is_valid = regularisation in ("validation", "optimal")
        else:
            is_valid = regularisation > 0
        requirement = "a number > 0, 'validation' or 'optimal'"
        require(self, "regularisation", is_valid, requirement)

    def refuses(self, problem: Problem) -> str | None:
        """Reason why nuclear-norm regression cannot solve a problem (e.g. labels that are not linear), or None."""
        if self.regularisation == "optimal" and (reason := why_no_theory(problem)):
            return f"regularisation = 'optimal' is computed from theory, which does not exist here: {reason}"
        if self.positive and not is_symmetric(problem.model):
            return "positive = true applies to symmetric matrices only; set positive = false"
        return super().refuses(problem)

    def init(
        self, problem: Problem, data: Data, rng: np.random.Generator
    ) -> NuclearState:
        """Initial state at the prior mean; the penalty tau is first chosen by validation if requested. ``positive`` restricts
        to positive semidefinite matrices.
        """
        observation, remark = self.observation_and_remark(problem)
        least_squares = LeastSquares(problem, observation, data.inputs, data.labels)
        prior_mean = problem.prior.mean(problem.components, data.dimension)
        initial_estimate = asarray_like(prior_mean, data.inputs)
        initial_penalty = 0.0
        if self.regularisation == "validation":
            penalty = self._validated_penalty(
                problem, data, observation, initial_estimate, rng
            )
            remark += self.validation_note
        elif self.regularisation == "optimal":
            prior = problem.prior
            positive = self.positive
            observations = weighted_observations(
                problem, observation, data.sample_ratio
            )
            penalty, _ = best_penalty(prior, observations, positive)
            initial_penalty = penalty_of_zero_estimate(prior, observations, positive)
            remark += f"; regularisation {penalty:.4g}, the best by theory"
        else:
            penalty = float(self.regularisation)
        lipschitz_constant = least_squares.lipschitz(rng)
        return _initial_nuclear_state(
            initial_estimate,
            least_squares,
            lipschitz_constant,
            penalty,
            remark,
            initial_penalty,
        )

    def step(
        self, problem: Problem, data: Data, state: NuclearState
    ) -> tuple[NuclearState, Info]:
        """Take one proximal gradient step from the extrapolated point and report its relative length and the duality gap."""
        next_state, _ = self._proximal_step(state)
        # The new slope is that of the estimate before the step: the certificate lags by one step.
        duality_gap, rounding_of_gap = self._duality_gap(
            state.estimate, next_state.previous_slope, state
        )
        return next_state._replace(duality_gap=duality_gap), Info(
            residual=math.sqrt(max(duality_gap - rounding_of_gap, 0.0)),
            warning=state.remark,
        )

    def estimate(self, state: NuclearState) -> Array:
        """The current matrix estimate."""
        return state.estimate

    def findings(self, state: NuclearState) -> dict[str, object]:
        """Findings of a run that its record keeps: the penalty, a bound on the relative distance of the objective from its
        minimum, and the spectrum.
        """
        eigenvalues = spectrum(state.estimate, state.is_symmetric)
        return {
            "regularisation": [state.penalty],
            "relative_duality_gap": [state.duality_gap],
            "spectrum": to_host(eigenvalues).reshape(-1).tolist(),
        }

    def theory(self, problem: Problem, alpha: float) -> AlgorithmPrediction | str:
        """Predict the minimum at sample ratio alpha in the limit, with its penalty, or return the reason why there is no
        theory.
        """
        if self.regularisation == "validation":
            return "there is no theory for a penalty chosen by validation; set regularisation to a number or 'optimal'"
        if reason := why_no_theory(problem):
            return f"nuclear-norm regression has no theory here: {reason}"
        observation, _ = self.observation_and_remark(problem)
        observations = weighted_observations(problem, observation, alpha)
        if self.regularisation == "optimal":
            penalty, minimum = best_penalty(problem.prior, observations, self.positive)
        else:
            penalty = float(self.regularisation)
            minimum = fixed_point(problem.prior, observations, penalty, self.positive)
        prediction_details: dict[str, object] = {
            "regularisation": [penalty],
            "relative_duality_gap": [0.0],
        }
        if not observation.noise.any():
            prediction_details["perfect_recovery"] = perfect_recovery(
                problem.prior,
                len(observation.combinations),
                problem.model.kappa,
                self.positive,
            )
        limit_prediction = minimum_point(problem, alpha, minimum, self.positive)
        return replace(
            limit_prediction, more=limit_prediction.more | prediction_details
        )

    def _proximal_step(self, state: NuclearState) -> tuple[NuclearState, Array]:
        """Take one proximal gradient step from the extrapolated point, along the slope (minus the gradient) of the loss; return
        the new state and the relative length of the step. Singular values or eigenvalues shrink by ``singular_value_shrinkage``.
        """
        xp = namespace(state.extrapolated_point)
        slope_of_loss, _ = state.least_squares.normal_product(
            state.extrapolated_point, targets=True
        )
        singular_value_shrinkage = state.next_penalty / state.lipschitz

        def proximal_map(eigenvalues: Array) -> Array:
            """Soft threshold of eigenvalues (of symmetric matrices) or singular values."""
            return soft_threshold(eigenvalues, singular_value_shrinkage, self.positive)

        apply_to_spectrum = apply_to_singular_values
        if state.is_symmetric:
            apply_to_spectrum = spectral_function
        estimate = apply_to_spectrum(
            state.extrapolated_point + slope_of_loss / state.lipschitz, proximal_map
        )
        # Momentum that points uphill is dropped.
        step_back_to_extrapolated = state.extrapolated_point - estimate
        if float(xp.sum(step_back_to_extrapolated * (estimate - state.estimate))) > 0:
            momentum_counter = 1.0
        else:
            momentum_counter = (1 + math.sqrt(1 + 4 * state.momentum_counter**2)) / 2
        extrapolation_weight = 0.0
        if momentum_counter > 1:
            extrapolation_weight = (state.momentum_counter - 1) / momentum_counter
        squared_norm = xp.sum(estimate * estimate)
        squared_change = xp.sum((estimate - state.extrapolated_point) ** 2)
        relative_length = xp.sqrt(
            squared_change
            / xp.where(squared_norm > 0, squared_norm, xp.ones_like(squared_norm))
        )
        next_state = state._replace(
            estimate=estimate,
            extrapolated_point=estimate
            + extrapolation_weight * (estimate - state.estimate),
            momentum_counter=momentum_counter,
            extrapolation_weight=extrapolation_weight,
            next_penalty=max(state.penalty, PENALTY_DECREASE * state.next_penalty),
            # The gradient is linear, so the slope at the estimate follows from that at the extrapolated point.
            previous_slope=(
                slope_of_loss + state.extrapolation_weight * state.previous_slope
            )
            / (1 + state.extrapolation_weight),
        )
        return next_state, relative_length

    def _duality_gap(
        self, estimate: Array, slope: Array, state: NuclearState
    ) -> tuple[float, float]:
        r"""Relative duality gap ``(primal - dual) / primal`` of an estimate, a bound on how far the objective is above its
        minimum, and its rounding error, from the ``slope`` (minus the gradient) of the loss at the estimate.

        The residuals times ``s = min(1, tau / |G|)`` are feasible for the dual problem, whose value is below the minimum:
        ``gap = (1 - s)^2 loss + tau |S|_* - s <G, S>``.
        """
        xp = namespace(estimate)
        slope_at_zero, loss_at_zero = state.slope_and_loss_at_zero
        slope_product = float(xp.sum((slope_at_zero + slope) * estimate))
        loss = max(loss_at_zero - 0.5 * slope_product, 0.0)
        slope_spectrum = spectrum(slope, state.is_symmetric)
        largest_slope = float(
            xp.max(slope_spectrum if self.positive else xp.abs(slope_spectrum))
        )
        dual_residual_scale = 1.0
        if largest_slope > 0:
            dual_residual_scale = min(1.0, state.penalty / largest_slope)
        if self.positive:
            nuclear_norm = float(xp.sum(xp.linalg.trace(estimate)))
        else:
            nuclear_norm = float(xp.sum(xp.abs(spectrum(estimate, state.is_symmetric))))
            nuclear_norm /= 1 if state.is_symmetric else 2
        nuclear_penalty = state.penalty * nuclear_norm
        primal_objective = loss + nuclear_penalty
        slope_overlap = float(xp.sum(slope * estimate))
        duality_gap = (
            (1 - dual_residual_scale) ** 2 * loss
            + nuclear_penalty
            - dual_residual_scale * slope_overlap
        )
        float_epsilon = float(xp.finfo(estimate.dtype).eps)
        rounding_of_gap = 8 * float_epsilon * (loss_at_zero + nuclear_penalty)
        if not primal_objective > 0:  # NaN, too
            return 0.0, 0.0
        return duality_gap / primal_objective, rounding_of_gap / primal_objective

    def _validated_penalty(
        self,
        problem: Problem,
        data: Data,
        observation: LinearObservation,
        initial_estimate: Array,
        rng: np.random.Generator,
    ) -> float:
        """Choose the penalty tau with the smallest error on held-out samples, along a path from large to small penalties that
        begins at ``initial_estimate``, for labels with this linear observation of the latents.
        """
        xp = namespace(data.inputs)
        training_set, validation_set = LinearRegression.split_for_validation(
            problem, data, observation
        )
        slope_at_zero, _ = training_set.normal_product(
            xp.zeros_like(initial_estimate), targets=True
        )
        largest_penalty = float(
            xp.max(xp.abs(spectrum(slope_at_zero, is_symmetric(problem.model))))
        )
        lipschitz_constant = training_set.lipschitz(rng)
        best_penalty_so_far = largest_penalty * PENALTY_FRACTIONS[0]
        lowest_validation_error = math.inf
        estimate = initial_estimate
        for penalty_fraction in PENALTY_FRACTIONS:
            state = _initial_nuclear_state(
                estimate,
                training_set,
                lipschitz_constant,
                largest_penalty * penalty_fraction,
            )
            for _ in range(60):
                state, relative_step_length = self._proximal_step(state)
                if float(relative_step_length) < 1e-4:
                    break
            estimate = state.estimate
            validation_error = float(
                validation_set.normal_product(estimate, targets=True)[1]
            )
            if validation_error < lowest_validation_error:
                best_penalty_so_far = largest_penalty * penalty_fraction
                lowest_validation_error = validation_error
        # The gradient of all samples is larger than that of the samples the penalty was chosen on.
        sample_count = int(data.inputs.shape[0])
        return best_penalty_so_far * sample_count / int(training_set.inputs.shape[0])


def _initial_nuclear_state(
    initial_estimate: Array,
    least_squares: LeastSquares,
    lipschitz_constant: float,
    penalty: float,
    remark: str = "",
    initial_penalty: float = 0.0,
) -> NuclearState:
    """Initial state at ``initial_estimate``, for a penalty that is reached from ``initial_penalty``, with slope (minus the
    gradient) and loss of the zero matrix, from the ``least_squares`` loss, and its gradient's Lipschitz constant. kappa is 2 for
    symmetric matrices, else 1; ``remark`` is for the user.
    """
    slope_at_zero, weighted_square = least_squares.normal_product(
        namespace(initial_estimate).zeros_like(initial_estimate), targets=True
    )
    kappa = least_squares.problem.model.kappa
    D = initial_estimate.shape[-1]
    loss_at_zero = float(weighted_square) * kappa / 2 / D
    slope_and_loss_at_zero = slope_at_zero, loss_at_zero
    return NuclearState(
        initial_estimate,
        initial_estimate,
        1.0,
        0.0,
        slope_at_zero,
        math.inf,
        least_squares,
        slope_and_loss_at_zero,
        lipschitz_constant,
        penalty,
        max(initial_penalty, penalty),
        remark,
    )
