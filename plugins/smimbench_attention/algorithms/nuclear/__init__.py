"""The algorithm ``nuclear``: nuclear-norm regression for labels that are linear in an attention matrix."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from smimbench.backend import matching, namespace, to_host
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
    Linear,
    LinearRegression,
)
from smimbench_attention.algorithms.nuclear.limit import (
    best_penalty,
    fixed_point,
    minimum_point,
    no_theory,
    observations,
    perfect_recovery,
    shrink,
    singular_function,
    spectrum,
    vanishing_penalty,
)

FRACTIONS = tuple(float(10.0**k) for k in np.arange(-0.5, -3.26, -0.25))
"""Candidates for tau, as fractions of the tau at which the estimate vanishes."""

FALL = 0.93
"""Factor of tau from step to step of the path to the optimal one; its logarithm halved, twice the steps to a tiny one."""


class NuclearState(NamedTuple):
    """State of accelerated proximal gradient: estimate, extrapolated point, momentum counter; and constants of the run."""

    estimate: Array
    point: Array
    momentum: float
    weight: float  # point = estimate + weight (estimate - previous estimate)
    slope: Array  # minus the gradient of the loss at the estimate before
    gap: float  # relative duality gap of the estimate before; infinite at the start
    squares: LeastSquares
    origin: tuple[Array, float]  # slope and loss of the zero matrix
    lipschitz: float
    threshold: float
    next_threshold: float  # of the next step; it falls to ``threshold``
    note: str

    @property
    def is_symmetric(self) -> bool:
        """Whether the matrix is symmetric."""
        return is_symmetric(self.squares.problem.model)


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

    regularisation: float | str = "validation"
    positive: bool = True

    name = "nuclear"
    version = 3
    reference = (
        "Beck and Teboulle (2009), SIAM J. Imaging Sci. 2, 183; arXiv:2505.17958"
    )
    capabilities = Capabilities(models=("attention-indexed",))

    def __post_init__(self) -> None:
        value = self.regularisation
        if isinstance(value, str):
            is_valid = value in ("validation", "optimal")
        else:
            is_valid = value > 0
        rule = "a number > 0, 'validation' or 'optimal'"
        require(self, "regularisation", is_valid, rule)

    def refuses(self, problem: Problem) -> str | None:
        """Reason why nuclear-norm regression cannot solve a problem (e.g. labels that are not linear), or None."""
        if self.regularisation == "optimal" and (why := no_theory(problem)):
            return f"regularisation = 'optimal' is computed from theory, which does not exist here: {why}"
        if self.positive and not is_symmetric(problem.model):
            return "positive = true applies to symmetric matrices only; set positive = false"
        return super().refuses(problem)

    def init(
        self, problem: Problem, data: Data, rng: np.random.Generator
    ) -> NuclearState:
        """Initial state at the prior mean; the penalty tau is first chosen by validation if requested."""
        linear, note = self.observed(problem)
        squares = LeastSquares(problem, linear, data.inputs, data.labels)
        mean = problem.prior.mean(problem.components, data.dimension)
        start = namespace(data.inputs).asarray(mean, **matching(data.inputs))
        initial_threshold = 0.0
        if self.regularisation == "validation":
            threshold = self._validated_penalty(problem, data, linear, start, rng)
            note += self.validation_note
        elif self.regularisation == "optimal":
            prior, positive = problem.prior, self.positive
            observed = observations(problem, linear, data.sample_ratio)
            threshold, _ = best_penalty(prior, observed, positive)
            initial_threshold = vanishing_penalty(prior, observed, positive)
            note += f"; regularisation {threshold:.4g}, the best by theory"
        else:
            threshold = float(self.regularisation)
        lipschitz = squares.lipschitz(rng)
        return _initial_nuclear_state(
            start, squares, lipschitz, threshold, note, initial_threshold
        )

    def step(
        self, problem: Problem, data: Data, state: NuclearState
    ) -> tuple[NuclearState, Info]:
        """One proximal gradient step from the extrapolated point."""
        next_state, _ = self._proximal(state)
        # The new slope is that of the estimate before the step: the certificate lags by one step.
        gap, rounding = self._duality_gap(state.estimate, next_state.slope, state)
        return next_state._replace(gap=gap), Info(
            residual=math.sqrt(max(gap - rounding, 0.0)), warning=state.note
        )

    def estimate(self, state: NuclearState) -> Array:
        """The current matrix estimate."""
        return state.estimate

    def findings(self, state: NuclearState) -> dict[str, object]:
        """Report the penalty, a bound on the relative distance of the objective from its minimum, and the spectrum."""
        eigenvalues = spectrum(state.estimate, state.is_symmetric)
        return {
            "regularisation": [state.threshold],
            "relative_duality_gap": [state.gap],
            "spectrum": to_host(eigenvalues).reshape(-1).tolist(),
        }

    def theory(self, problem: Problem, alpha: float) -> AlgorithmPrediction | str:
        """Predict the minimum in the limit, with its penalty, or return the reason why there is no theory."""
        if self.regularisation == "validation":
            return "there is no theory for a penalty chosen by validation; set regularisation to a number or 'optimal'"
        if why := no_theory(problem):
            return f"nuclear-norm regression has no theory here: {why}"
        linear, _ = self.observed(problem)
        observed = observations(problem, linear, alpha)
        if self.regularisation == "optimal":
            penalty, minimum = best_penalty(problem.prior, observed, self.positive)
        else:
            penalty = float(self.regularisation)
            minimum = fixed_point(problem.prior, observed, penalty, self.positive)
        details: dict[str, object] = {
            "regularisation": [penalty],
            "relative_duality_gap": [0.0],
        }
        if not linear.noise.any():
            details["perfect_recovery"] = perfect_recovery(
                problem.prior, len(linear.rows), problem.model.kappa, self.positive
            )
        point = minimum_point(problem, alpha, minimum, self.positive)
        return replace(point, more=point.more | details)

    def _proximal(self, state: NuclearState) -> tuple[NuclearState, Array]:
        """Take one proximal gradient step and compute its relative length."""
        xp = namespace(state.point)
        slope, _ = state.squares.normal(state.point, targets=True)
        threshold = state.next_threshold / state.lipschitz

        def proximal(values: Array) -> Array:
            return shrink(values, threshold, self.positive)

        function_of = spectral_function if state.is_symmetric else singular_function
        estimate = function_of(state.point + slope / state.lipschitz, proximal)
        # Momentum that points uphill is dropped.
        if float(xp.sum((state.point - estimate) * (estimate - state.estimate))) > 0:
            momentum = 1.0
        else:
            momentum = (1 + math.sqrt(1 + 4 * state.momentum**2)) / 2
        weight = (state.momentum - 1) / momentum if momentum > 1 else 0.0
        size, change = (
            xp.sum(estimate * estimate),
            xp.sum((estimate - state.point) ** 2),
        )
        residual = xp.sqrt(change / xp.where(size > 0, size, xp.ones_like(size)))
        moved = state._replace(
            estimate=estimate,
            point=estimate + weight * (estimate - state.estimate),
            momentum=momentum,
            weight=weight,
            next_threshold=max(state.threshold, FALL * state.next_threshold),
            # The gradient is linear, so the slope at the estimate follows from that at the extrapolated point.
            slope=(slope + state.weight * state.slope) / (1 + state.weight),
        )
        return moved, residual

    def _duality_gap(
        self, estimate: Array, slope: Array, state: NuclearState
    ) -> tuple[float, float]:
        r"""Relative duality gap ``(primal - dual) / primal`` of an estimate, and its rounding error.

        The residuals times ``s = min(1, tau / |G|)`` are feasible for the dual problem, whose value is below the minimum:
        ``gap = (1 - s)^2 loss + tau |S|_* - s <G, S>``.
        """
        xp = namespace(estimate)
        slope_at_zero, loss_at_zero = state.origin
        product = float(xp.sum((slope_at_zero + slope) * estimate))
        loss = max(loss_at_zero - 0.5 * product, 0.0)
        slopes = spectrum(slope, state.is_symmetric)
        steepest = float(xp.max(slopes if self.positive else xp.abs(slopes)))
        s = min(1.0, state.threshold / steepest) if steepest > 0 else 1.0
        if self.positive:
            norm = float(xp.sum(xp.linalg.trace(estimate)))
        else:
            norm = float(xp.sum(xp.abs(spectrum(estimate, state.is_symmetric))))
            norm /= 1 if state.is_symmetric else 2
        penalty = state.threshold * norm
        primal = loss + penalty
        gap = (1 - s) ** 2 * loss + penalty - s * float(xp.sum(slope * estimate))
        epsilon = float(xp.finfo(estimate.dtype).eps)
        rounding = 8 * epsilon * (loss_at_zero + penalty)
        return (gap / primal, rounding / primal) if primal > 0 else (0.0, 0.0)

    def _validated_penalty(
        self,
        problem: Problem,
        data: Data,
        linear: Linear,
        start: Array,
        rng: np.random.Generator,
    ) -> float:
        """Choose the penalty tau with the smallest error on held-out samples, along a path from large to small."""
        xp = namespace(data.inputs)
        fit, validation = LinearRegression.held_out(problem, data, linear)
        slope, _ = fit.normal(xp.zeros_like(start), targets=True)
        largest = float(xp.max(xp.abs(spectrum(slope, is_symmetric(problem.model)))))
        lipschitz = fit.lipschitz(rng)
        best, lowest_error = largest * FRACTIONS[0], math.inf
        estimate = start
        for fraction in FRACTIONS:
            state = _initial_nuclear_state(estimate, fit, lipschitz, largest * fraction)
            for _ in range(60):
                state, residual = self._proximal(state)
                if float(residual) < 1e-4:
                    break
            estimate = state.estimate
            error = float(validation.normal(estimate, targets=True)[1])
            if error < lowest_error:
                best, lowest_error = largest * fraction, error
        # The gradient of all samples is larger than that of the samples the penalty was chosen on.
        return best * int(data.inputs.shape[0]) / int(fit.inputs.shape[0])


def _initial_nuclear_state(
    start: Array,
    squares: LeastSquares,
    lipschitz: float,
    threshold: float,
    note: str = "",
    initial_threshold: float = 0.0,
) -> NuclearState:
    slope, value = squares.normal(namespace(start).zeros_like(start), targets=True)
    origin = slope, float(value) * squares.problem.model.kappa / 2 / start.shape[-1]
    return NuclearState(
        start,
        start,
        1.0,
        0.0,
        slope,
        math.inf,
        squares,
        origin,
        lipschitz,
        threshold,
        max(initial_threshold, threshold),
        note,
    )
