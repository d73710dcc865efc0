"""Ridge regression on the signal, for labels that are linear in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import array_api_compat
import numpy as np

from smimbench.backend import namespace, to_host
from smimbench.interfaces import Array, Capabilities, Info, ParameterError
from smimbench.theory.information import channel_information
from smimbench_algorithms.least_squares import LeastSquares, Linear, seen_by_labels, split, what_is_seen

if TYPE_CHECKING:
    from smimbench.interfaces import Cost, Data
    from smimbench.problem import Problem

CANDIDATES = tuple(float(10.0**k) for k in np.arange(-4, 2.01, 0.5))
"""Values of lambda to choose from. Twice as many: a closer choice, twice the time."""

VALIDATION_STEPS = 200
"""Steps of conjugate gradients for the candidates, at most. Doubled: small lambda are solved for more closely."""

VALIDATION_TOLERANCE = 1e-3
"""Relative residual at which they end. Doubled: they end a step or two earlier."""


class RidgeState(NamedTuple):
    """Conjugate gradients: deviation from the prior mean, residual, direction; and what does not change.

    The first axis of the arrays counts penalties that are solved for together.
    """

    deviation: Array
    residual: Array
    direction: Array
    squares: LeastSquares
    penalty: Array
    scale: Array
    base: Array
    note: str


@dataclass(frozen=True)
class Ridge:
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

    regularisation: float | str = "theory"

    name: ClassVar[str] = "ridge"
    version: ClassVar[int] = 1
    reference: ClassVar[str] = "Hoerl and Kennard (1970), Technometrics 12, 55"
    capabilities: ClassVar[Capabilities] = Capabilities()

    def __post_init__(self) -> None:
        value = self.regularisation
        if isinstance(value, str):
            if value not in ("theory", "validation"):
                raise ParameterError(
                    "regularisation", f"must be a number >= 0, 'theory' or 'validation', got {value!r}"
                )
        elif not value >= 0:
            raise ParameterError("regularisation", f"must be >= 0, got {value}")

    def refuses(self, problem: Problem) -> str | None:
        """Channels whose labels are not linear in the signal."""
        seen = seen_by_labels(problem)
        return seen if isinstance(seen, str) else None

    def init(self, problem: Problem, data: Data, rng: np.random.Generator) -> RidgeState:
        """The prior mean; with validation, the choice of lambda."""
        linear = seen_by_labels(problem)
        if isinstance(linear, str):
            raise ValueError(linear)
        note = "sees " + what_is_seen(problem, linear)
        if self.regularisation == "validation":
            penalty: float | np.ndarray[Any, Any] = _validated(problem, data, linear)
            note += "; regularisation chosen by validation on a fifth of the samples"
        elif self.regularisation == "theory":
            penalty = float(linear.noise.min()) / _variances(problem)
        else:
            penalty = float(self.regularisation)
        return _begin(problem, LeastSquares(problem, linear, data.inputs, data.labels), penalty, note)

    def step(self, problem: Problem, data: Data, state: RidgeState) -> tuple[RidgeState, Info]:
        """One step of conjugate gradients."""
        new, relative = _conjugate(state)
        return new, Info(residual=relative[0], warning=state.note, samples=None)

    def estimate(self, state: RidgeState) -> Array:
        """Prior mean plus deviation."""
        return state.base + state.deviation[0, ...]

    def cost(self, problem: Problem, data: Data) -> Cost | None:
        """One product with the normal matrix: a pass over the inputs, forward and adjoint."""
        return problem.pass_cost(data)

    def theory(self, problem: Problem, alpha: float) -> dict[str, Any] | None:
        """Error of the best linear estimate; None where it is the Bayes-optimal one, or lambda is another.

        With a Gaussian prior of variance 1, ``V = 1 / (1 + kappa alpha I(V))``, ``I`` the channel's information.
        """
        if self.regularisation != "theory" or problem.model.rank == "low" or problem.components != 1:
            return None
        kappa = problem.model.kappa
        second = float(problem.prior.second_moment(1)[0, 0])
        start = second - float(problem.prior.mean_overlap(1)[0, 0])

        def excess(V: float) -> float:
            Q = np.array([[second - V]])
            information = channel_information(problem.channel, problem.model, Q, np.array([[V]])).value
            return float(1 / start + kappa * alpha * float(np.asarray(information)[0, 0]) - 1 / V)

        from scipy.optimize import brentq

        smallest = 1e-12 * start
        # Below its counting threshold a noiseless problem has a positive root; above it, the error is 0.
        V = 0.0 if excess(smallest) > 0 else float(brentq(excess, smallest, start, xtol=1e-15))
        return {
            "alpha": alpha,
            "mse": V,
            "mse_error": 1e-12,
            "overlap": [[second - V]],
            "branch": "linear",
            "method": "best linear estimate, fixed point",
        }


def _variances(problem: Problem) -> np.ndarray[Any, Any]:
    """Variance (P,) of an entry of every component around the prior mean."""
    P = problem.components
    second, known = (
        np.asarray(f(P), dtype=float) for f in (problem.prior.second_moment, problem.prior.mean_overlap)
    )
    return np.asarray(np.diagonal(second - known))


def _begin(
    problem: Problem,
    squares: LeastSquares,
    penalty: float | np.ndarray[Any, Any],
    note: str,
    penalties: Array | None = None,
) -> RidgeState:
    xp = namespace(squares.inputs)
    place = {"dtype": squares.inputs.dtype, "device": array_api_compat.device(squares.inputs)}
    base = xp.asarray(problem.prior.mean(problem.components, squares.inputs.shape[-1]), **place)
    right, _ = squares.normal(base, targets=True)
    if penalties is None:
        penalties = xp.asarray(np.broadcast_to(penalty, (1, problem.components)).copy(), **place)
    count = penalties.shape[0]
    right = xp.stack([right] * count)
    scale = xp.sqrt(xp.sum(right * right, axis=tuple(range(1, right.ndim))))
    return RidgeState(xp.zeros_like(right), right, right, squares, penalties, scale, base, note)


def _conjugate(state: RidgeState) -> tuple[RidgeState, Array]:
    """One step for every candidate on the first axis; a candidate that has converged stands still."""
    xp = namespace(state.residual)
    axes = tuple(range(1, state.residual.ndim))
    wide = (-1, *[1] * len(axes))
    P = state.penalty.shape[-1]
    penalty = xp.reshape(state.penalty, (-1, P, *[1] * (len(axes) - 1)))
    product = state.squares.normal(state.direction)[0] + penalty * state.direction
    before = xp.sum(state.residual * state.residual, axis=axes)
    curvature = xp.sum(state.direction * product, axis=axes)
    one = xp.ones_like(before)
    moving = (curvature > 0) & (before > 0)
    step = xp.where(moving, before / xp.where(moving, curvature, one), xp.zeros_like(before))
    deviation = state.deviation + xp.reshape(step, wide) * state.direction
    residual = state.residual - xp.reshape(step, wide) * product
    after = xp.sum(residual * residual, axis=axes)
    ratio = xp.where(before > 0, after / xp.where(before > 0, before, one), xp.zeros_like(before))
    direction = residual + xp.reshape(ratio, wide) * state.direction
    relative = xp.sqrt(after) / xp.where(state.scale > 0, state.scale, one)
    return state._replace(deviation=deviation, residual=residual, direction=direction), relative


def _validated(problem: Problem, data: Data, linear: Linear) -> float:
    """The candidate with the smallest error on held-out samples; all are solved together."""
    xp = namespace(data.inputs)
    place = {"dtype": data.inputs.dtype, "device": array_api_compat.device(data.inputs)}
    cut = split(data)
    fit = LeastSquares(problem, linear, data.inputs[:cut, ...], data.labels[:cut, ...])
    held_out = LeastSquares(problem, linear, data.inputs[cut:, ...], data.labels[cut:, ...])
    state = _begin(problem, fit, 0.0, "", xp.asarray(CANDIDATES, **place)[:, None])
    for _ in range(VALIDATION_STEPS):
        state, relative = _conjugate(state)
        if float(xp.max(relative)) < VALIDATION_TOLERANCE:
            break
    _, errors = held_out.normal(state.base + state.deviation, targets=True)
    return CANDIDATES[int(np.argmin(to_host(errors)))]
