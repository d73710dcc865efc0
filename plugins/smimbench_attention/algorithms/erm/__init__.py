"""The algorithm ``erm``: empirical risk minimization with a convex loss and a quadratic penalty."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from smimbench.backend import asarray_like, namespace, sample_chunks, to_host_floats
from smimbench.derive import observable
from smimbench.interfaces import (
    Algorithm,
    AlgorithmPrediction,
    Array,
    Capabilities,
    Data,
    Host,
    Info,
    Overlaps,
    require,
)
from smimbench.problem import Problem
from smimbench.theory import limit_point
from smimbench_attention.algorithms.erm.fixed_point import (
    PENALTIES,
    best_length_factor,
    best_penalty,
    minima,
    why_not_convex,
)
from smimbench_attention.algorithms.erm.integrals import LOSSES, Loss, labels_of

LENGTHS = ("posterior", "loss")


class ErmState(NamedTuple):
    """State of ``erm``: the current weights (P, D), on the host, the estimate made of them by ``length_factor``, the labels
    as ``targets``, loss, penalty, and the gradient's norm at zero weights.
    """

    weights: Host
    estimate: Array
    targets: Array
    loss: Loss
    penalty: float
    length_factor: float  # estimate over weights
    remark: str  # what the user reads on loss and penalty
    training_loss: float = 0.0  # mean over samples, without the penalty
    gradient_norm_at_zero: float = 1.0


@dataclass(frozen=True)
class Erm(Algorithm):
    r"""Empirical risk minimization with a loss that is convex in the latents.

    .. math:: \min_W \; \sum_\mu \sum_{pc} l(y_{\mu pc}, z_{\mu pc}) + \frac{\lambda}{2} |W|^2, \qquad
        z_\mu = W x_\mu / \sqrt D,

    by L-BFGS, for labels that are one number for each latent. The engine's tolerance applies to the norm of the gradient over
    that at ``W = 0``. With the square loss this is ridge regression. A margin has no unit: where labels are signs, the
    estimate is given the length that theory says is best, ``tr M / tr Q`` times that of the minimizer.

    Parameters
    ----------
    loss : {"square", "logistic", "squared-hinge"}
        ``(y - z)^2 / 2``, ``log(1 + exp(-y z))``, ``max(0, 1 - y z)^2 / 2``; the last two for labels -1 and +1. Default: logistic
        for such labels, square for all others.
    penalty : float or "optimal"
        lambda from 1e-12 to 1e12; "optimal" (default): the one of the smallest error according to theory, of the estimate at
        its ``length``.
    length : {"posterior", "loss"}
        Of the estimate: as theory says is best, or that of the minimizer. Default: the first where labels are signs, else the
        second.

    References
    ----------
    arXiv:2006.06560; Liu and Nocedal (1989), Math. Programming 45; checked by tests/algorithms/test_erm.py.
    """

    loss: str | None = None  # name of the loss
    penalty: float | str = "optimal"  # lambda, or the best by theory
    length: str | None = None  # rule for the length of the estimate

    name = "erm"
    version = 3
    reference = "arXiv:2006.06560"
    capabilities = Capabilities()

    def __post_init__(self) -> None:
        """Check that loss, penalty and length are known names or numbers in range."""
        is_known_name = self.loss in (None, *LOSSES)
        require(self, "loss", is_known_name, f"one of {', '.join(LOSSES)}")
        smallest_penalty, largest_penalty = PENALTIES
        if isinstance(self.penalty, str):
            is_valid = self.penalty == "optimal"
        else:
            is_valid = smallest_penalty <= self.penalty <= largest_penalty
        requirement = (
            f"a number from {smallest_penalty:g} (effectively no penalty) to {largest_penalty:g} (an estimate of zero), "
            "or 'optimal'"
        )
        require(self, "penalty", is_valid, requirement)
        is_known_name = self.length in (None, *LENGTHS)
        require(self, "length", is_known_name, f"one of {', '.join(LENGTHS)}")

    def refuses(self, problem: Problem) -> str | None:
        """Reason why there is no loss of a problem's labels that is convex in the latents, or None if there is one."""
        return why_not_convex(problem, LOSSES.get(self.loss or ""))

    def _loss_penalty_length(
        self, problem: Problem, alpha: float
    ) -> tuple[Loss, float, float]:
        """Loss, penalty and length factor of the estimate for this problem at sample ratio alpha, with defaults that fit the
        labels; ``length_rule`` is "posterior" (the length of smallest error) or "loss" (the minimizer's own).
        """
        has_sign_labels = labels_of(problem) == "signs"
        loss = LOSSES[self.loss or ("logistic" if has_sign_labels else "square")]
        length_rule = self.length or ("posterior" if has_sign_labels else "loss")
        if isinstance(self.penalty, str):
            penalty = best_penalty(problem, alpha, loss.name, length_rule)
        else:
            penalty = float(self.penalty)
        if length_rule == "loss":
            return loss, penalty, 1.0
        fixed_points = minima(problem, alpha, loss.name, penalty)
        overlaps = [minimum.overlaps for minimum in fixed_points]
        return loss, penalty, best_length_factor(overlaps)

    def init(self, problem: Problem, data: Data, rng: np.random.Generator) -> ErmState:
        """Initial state with all weights zero, with penalty and length by the settings; ``remark`` states loss and penalty."""
        loss, penalty, length_factor = self._loss_penalty_length(
            problem, data.sample_ratio
        )
        xp = namespace(data.inputs)
        weights = np.zeros((problem.components, data.dimension))
        estimate = asarray_like(weights, data.inputs)
        targets = xp.astype(observable(problem.channel, data.labels), data.inputs.dtype)
        remark = f"{loss.name} loss, penalty {penalty:.4g}"
        if self.penalty == "optimal":
            remark += " (the best by theory)"
        state = ErmState(
            weights, estimate, targets, loss, penalty, length_factor, remark
        )
        initial_risk, gradient = _empirical_risk(problem, data, state, weights)
        return state._replace(
            training_loss=initial_risk / data.inputs.shape[0],
            gradient_norm_at_zero=max(float(np.linalg.norm(gradient)), 1e-300),
        )

    def step(
        self, problem: Problem, data: Data, state: ErmState
    ) -> tuple[ErmState, Info]:
        """Run ten iterations of L-BFGS on the penalized risk and rescale the minimizer to the estimate."""
        from scipy.optimize import minimize

        sample_count = int(data.inputs.shape[0])
        weights_shape = state.weights.shape

        def penalized_risk(flat_weights: Host) -> tuple[float, Host]:
            """Penalized risk per sample, and its gradient, at the weights (P, D) given as one flat vector, ``flat_weights``."""
            risk, gradient = _empirical_risk(
                problem, data, state, flat_weights.reshape(weights_shape)
            )
            risk += state.penalty / 2 * float(flat_weights @ flat_weights)
            gradient = gradient.ravel() + state.penalty * flat_weights
            return risk / sample_count, gradient / sample_count

        minimizer_result = minimize(
            penalized_risk,
            state.weights.ravel(),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 10, "ftol": 0.0, "gtol": 0.0, "maxcor": 20},
        )
        weights = minimizer_result.x.reshape(weights_shape)
        squared_norm = float(minimizer_result.x @ minimizer_result.x)
        risk = minimizer_result.fun * sample_count - state.penalty / 2 * squared_norm
        estimate = asarray_like(state.length_factor * weights, data.inputs)
        next_state = state._replace(
            weights=weights, estimate=estimate, training_loss=risk / sample_count
        )
        gradient_norm = float(np.linalg.norm(minimizer_result.jac)) * sample_count
        residual = gradient_norm / state.gradient_norm_at_zero
        return next_state, Info(residual=residual, warning=state.remark)

    def estimate(self, state: ErmState) -> Array:
        """Estimate of the signal: the minimizer, rescaled to the chosen length."""
        return state.estimate

    def findings(self, state: ErmState) -> dict[str, list[float | None]]:
        """Findings of a run that its record keeps: the mean training loss per sample, without the penalty; theory predicts it
        under the same name.
        """
        return {"training_loss": [state.training_loss]}

    def theory(
        self, problem: Problem, alpha: float, assumed: Problem | None = None
    ) -> AlgorithmPrediction | str:
        """Predict the overlaps of the minimizer at sample ratio alpha in the limit, by the replica-symmetric fixed point
        (``fixed_point.py``). Penalty and length are best for the problem ``assumed``, if it is another one.
        """
        try:
            loss, penalty, length_factor = self._loss_penalty_length(
                assumed or problem, alpha
            )
            fixed_points = minima(problem, alpha, loss.name, penalty)
        except ValueError as error:
            return str(error)
        overlaps_of_minima = [
            [_rescaled_overlaps(minimum.overlaps, length_factor)]
            for minimum in fixed_points
        ]
        overlap_errors = [
            _rescaled_overlaps(minimum.overlap_errors, length_factor)
            for minimum in fixed_points
        ]
        if len(fixed_points) > 1:
            integration_method = "Monte Carlo"
        elif loss.name == "square":
            integration_method = "closed form"
        else:
            integration_method = "quadrature"
        prediction = limit_point(
            problem,
            alpha,
            overlaps_of_minima,
            method=f"{loss.name} loss, penalty {penalty:.4g}: {integration_method}",
            branch="minimum",
            uncertain=Overlaps(
                *(
                    np.mean(errors_of_minima, axis=0)
                    for errors_of_minima in zip(*overlap_errors)
                )
            ),
        )
        training_loss, test_loss = (
            float(np.mean(losses_of_minima))
            for losses_of_minima in zip(
                *(
                    (minimum.training_loss, minimum.test_loss)
                    for minimum in fixed_points
                )
            )
        )
        prediction_details = prediction.more | {
            "penalty": penalty,
            "training_loss": [training_loss],
            "test_loss": [test_loss],
        }
        return replace(
            prediction, between_students=prediction.own_overlap, more=prediction_details
        )


def _rescaled_overlaps(overlaps: Overlaps, length_factor: float) -> Overlaps:
    """Overlaps of signal and estimate after the estimate is multiplied by ``length_factor``."""
    return Overlaps(
        overlaps.truth, length_factor * overlaps.cross, length_factor**2 * overlaps.own
    )


def _empirical_risk(
    problem: Problem, data: Data, state: ErmState, weights: Host
) -> tuple[float, Host]:
    """Empirical risk at ``weights`` (P, D), the loss of latents z and labels y summed over all samples, and its gradient (P,
    D), on the host.
    """
    xp = namespace(data.inputs)
    model = problem.model
    loss = state.loss
    signal = asarray_like(weights, data.inputs)
    gradient, risk = xp.zeros_like(signal), 0.0
    for chunk in sample_chunks(model, data.inputs, problem.components):
        inputs = data.inputs[chunk, ...]
        y = state.targets[chunk, ...]
        z = model.forward(inputs, signal)
        risk = risk + xp.sum(loss.value(y, z))
        gradient = gradient + model.adjoint(inputs, loss.slope(y, z))
    return float(risk), to_host_floats(gradient)
