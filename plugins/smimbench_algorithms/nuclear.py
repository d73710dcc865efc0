"""Nuclear-norm regression on the matrix of an attention-indexed model, for labels that are linear in it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from smimbench.backend import beside, clip, namespace
from smimbench.interfaces import Array, Capabilities, Info, ParameterError
from smimbench.numerics.linalg import spectral_function, symmetric
from smimbench_algorithms.least_squares import LeastSquares, Linear, LinearRegression

if TYPE_CHECKING:
    from smimbench.interfaces import Data
    from smimbench.problem import Problem

FRACTIONS = tuple(float(10.0**k) for k in np.arange(-0.5, -3.26, -0.25))
"""Candidates for tau, in units of the one at which the estimate vanishes. Twice as many: a closer choice, twice the time."""

VALIDATION_STEPS = 60
"""Proximal steps for each candidate, at most. Doubled: small tau are fitted more closely before they are compared."""

VALIDATION_TOLERANCE = 1e-4
"""Residual at which the fit of a candidate ends. Doubled: it ends a step or two earlier."""


class NuclearState(NamedTuple):
    """Accelerated proximal gradient: estimate, extrapolated point, momentum counter; and what does not change."""

    estimate: Array
    point: Array
    momentum: float
    squares: LeastSquares
    lipschitz: float
    threshold: float
    note: str


@dataclass(frozen=True)
class Nuclear(LinearRegression):
    r"""Nuclear-norm regression for labels that are linear in the matrix.

    By accelerated proximal gradients (FISTA) with restarts:

    .. math:: \min_S \; \tfrac{1}{d} \sum_i w_i (t_i - (A S)_i)^2 + \tau |S|_*, \qquad S = S^T \; (\succeq 0)

    It knows that the rank is below d, not what the law of the eigenvalues is. Only the identifiable combinations of the
    latents enter: linear labels as they are; for the softmax of one layer, logarithms of probabilities, which are linear in
    S up to a common shift. Other channels are refused.

    Parameters
    ----------
    regularisation : float or "validation"
        tau > 0; "validation" (default): the best of 12 values between 0.3 and 6e-4 of the tau at which the estimate
        vanishes, on a fifth of the samples, then refitted on all.
    positive : bool
        Restrict to positive semidefinite matrices, which attention with tied key and query has.

    References
    ----------
    Beck and Teboulle (2009), SIAM J. Imaging Sci. 2, 183; O'Donoghue and Candes, arXiv:1204.3982 (restarts).
    """

    regularisation: float | str = "validation"
    positive: bool = True

    name = "nuclear"
    version = 1
    reference = "Beck and Teboulle (2009), SIAM J. Imaging Sci. 2, 183"
    capabilities = Capabilities(models=("attention-indexed",))

    def __post_init__(self) -> None:
        value = self.regularisation
        if isinstance(value, str):
            if value != "validation":
                raise ParameterError("regularisation", f"must be a number > 0 or 'validation', got {value!r}")
        elif not value > 0:
            raise ParameterError("regularisation", f"must be > 0, got {value}")

    def init(self, problem: Problem, data: Data, rng: np.random.Generator) -> NuclearState:
        """The prior mean; with validation, the choice of tau."""
        linear, note = self.observed(problem)
        xp = namespace(data.inputs)
        squares = LeastSquares(problem, linear, data.inputs, data.labels)
        start = xp.asarray(problem.prior.mean(problem.components, data.dimension), **beside(data.inputs))
        if self.regularisation == "validation":
            threshold = self._validated(problem, data, linear, start, rng)
            note += self.chosen
        else:
            threshold = float(self.regularisation)
        return NuclearState(start, start, 1.0, squares, squares.lipschitz(rng), threshold, note)

    def step(self, problem: Problem, data: Data, state: NuclearState) -> tuple[NuclearState, Info]:
        """One proximal gradient step from the extrapolated point."""
        new, residual = self._proximal(state)
        return new, Info(residual=residual, warning=state.note)

    def estimate(self, state: NuclearState) -> Array:
        """The matrix."""
        return state.estimate

    def _proximal(self, state: NuclearState) -> tuple[NuclearState, Array]:
        xp = namespace(state.point)
        downhill, _ = state.squares.normal(state.point, targets=True)
        moved = state.point + downhill / state.lipschitz
        new = self._shrink(moved, state.threshold / state.lipschitz)
        # Momentum that points uphill is dropped.
        if float(xp.sum((state.point - new) * (new - state.estimate))) > 0:
            momentum = 1.0
        else:
            momentum = (1 + math.sqrt(1 + 4 * state.momentum**2)) / 2
        weight = (state.momentum - 1) / momentum if momentum > 1 else 0.0
        point = new + weight * (new - state.estimate)
        size = xp.sum(new * new)
        residual = xp.sqrt(xp.sum((new - state.point) ** 2) / xp.where(size > 0, size, xp.ones_like(size)))
        return state._replace(estimate=new, point=point, momentum=momentum), residual

    def _shrink(self, matrix: Array, threshold: float) -> Array:
        def shrunk(values: Array) -> Array:
            if self.positive:
                return clip(values, threshold, None) - threshold
            xp = namespace(values)
            return xp.sign(values) * (clip(xp.abs(values), threshold, None) - threshold)

        return spectral_function(matrix, shrunk)

    def _validated(self, problem: Problem, data: Data, linear: Linear, start: Array, rng: np.random.Generator) -> float:
        """The tau with the smallest error on held-out samples, along a path from large to small."""
        xp = namespace(data.inputs)
        fit, rest = LinearRegression.held_out(problem, data, linear)
        slope, _ = fit.normal(xp.zeros_like(start), targets=True)
        largest = float(xp.max(xp.abs(xp.linalg.eigvalsh(symmetric(slope)))))
        lipschitz = fit.lipschitz(rng)
        best, least = largest * FRACTIONS[0], math.inf
        estimate = start
        for fraction in FRACTIONS:
            state = NuclearState(estimate, estimate, 1.0, fit, lipschitz, largest * fraction, "")
            for _ in range(VALIDATION_STEPS):
                state, residual = self._proximal(state)
                if float(residual) < VALIDATION_TOLERANCE:
                    break
            estimate = state.estimate
            error = float(rest.normal(estimate, targets=True)[1])
            if error < least:
                best, least = largest * fraction, error
        # All samples pull harder than those it was chosen on.
        return best * int(data.inputs.shape[0]) / int(fit.inputs.shape[0])
