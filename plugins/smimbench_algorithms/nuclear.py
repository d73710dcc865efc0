"""Nuclear-norm regression on the matrix of an attention-indexed model, for labels that are linear in it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import array_api_compat
import numpy as np

from smimbench.backend import clip, namespace
from smimbench.interfaces import Array, Capabilities, Info, ParameterError
from smimbench_algorithms.least_squares import LeastSquares, Linear, seen_by_labels, split, what_is_seen

if TYPE_CHECKING:
    from smimbench.interfaces import Cost, Data
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
class Nuclear:
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

    name: ClassVar[str] = "nuclear"
    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Beck and Teboulle (2009), SIAM J. Imaging Sci. 2, 183"
    capabilities: ClassVar[Capabilities] = Capabilities(models=("attention-indexed",))

    def __post_init__(self) -> None:
        value = self.regularisation
        if isinstance(value, str):
            if value != "validation":
                raise ParameterError("regularisation", f"must be a number > 0 or 'validation', got {value!r}")
        elif not value > 0:
            raise ParameterError("regularisation", f"must be > 0, got {value}")

    def refuses(self, problem: Problem) -> str | None:
        """Channels whose labels are not linear in the signal."""
        seen = seen_by_labels(problem)
        return seen if isinstance(seen, str) else None

    def init(self, problem: Problem, data: Data, rng: np.random.Generator) -> NuclearState:
        """The prior mean; with validation, the choice of tau."""
        linear = seen_by_labels(problem)
        if isinstance(linear, str):
            raise ValueError(linear)
        note = "sees " + what_is_seen(problem, linear)
        xp = namespace(data.inputs)
        squares = LeastSquares(problem, linear, data.inputs, data.labels)
        place = {"dtype": data.inputs.dtype, "device": array_api_compat.device(data.inputs)}
        start = xp.asarray(problem.prior.mean(problem.components, data.dimension), **place)
        if self.regularisation == "validation":
            threshold = self._validated(problem, data, linear, start, rng)
            note += "; regularisation chosen by validation on a fifth of the samples"
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

    def cost(self, problem: Problem, data: Data) -> Cost | None:
        """One gradient: a pass over the inputs, forward and adjoint; the eigenvalues of a matrix are not counted."""
        return problem.pass_cost(data)

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
        xp = namespace(matrix)
        values, vectors = xp.linalg.eigh((matrix + xp.matrix_transpose(matrix)) / 2)
        shrunk = clip(values if self.positive else xp.abs(values), threshold, None) - threshold
        if not self.positive:
            shrunk = xp.sign(values) * shrunk
        return xp.matmul(vectors * shrunk[..., None, :], xp.matrix_transpose(vectors))

    def _validated(
        self, problem: Problem, data: Data, linear: Linear, start: Array, rng: np.random.Generator
    ) -> float:
        """The tau with the smallest error on held-out samples, along a path from large to small."""
        xp = namespace(data.inputs)
        cut = split(data)
        fit = LeastSquares(problem, linear, data.inputs[:cut, ...], data.labels[:cut, ...])
        held_out = LeastSquares(problem, linear, data.inputs[cut:, ...], data.labels[cut:, ...])
        slope, _ = fit.normal(xp.zeros_like(start), targets=True)
        largest = float(xp.max(xp.abs(xp.linalg.eigvalsh((slope + xp.matrix_transpose(slope)) / 2))))
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
            error = float(held_out.normal(estimate, targets=True)[1])
            if error < least:
                best, least = largest * fraction, error
        # All samples pull harder than those it was chosen on.
        return best * int(data.inputs.shape[0]) / cut
