r"""Which of several fixed points is the Bayes-optimal one: differences of the replica-symmetric free entropy.

The free entropy has the gradient

.. math:: \frac{\partial \phi}{\partial Q} = \tfrac12 (\kappa \alpha I(Q) - \hat Q(Q)),

with ``Qhat(Q)`` the inverse of the prior's map, so that it is stationary at the fixed points and needs no normaliser of the
channel: differences are integrals along any path between two overlaps (the rule of equal areas). The larger one wins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smimbench.numerics.linalg import spectral_function
from smimbench.numerics.quadrature import gauss_legendre
from smimbench.theory.information import information_at, overlap_at, prior_moments
from smimbench.theory.types import Threshold

if TYPE_CHECKING:
    from collections.abc import Callable

    from smimbench.problem.problem import Problem
    from smimbench.theory.types import Host, Prediction

__all__ = ["bayes_optimal_first", "branches_meet", "free_entropy_along", "free_entropy_between", "transition"]

NODES = 12
"""Gauss-Legendre nodes of a free-entropy difference; doubled, it costs twice as much, with the square of the relative error."""


TRANSITION_NODES = 33
"""Sample ratios at which the free entropies of two branches are compared; doubled, shorter leads are found."""
HALVINGS = 40
"""Halvings of the interval in which one overtakes the other; doubled, no change beyond rounding."""


def transition(lead: Callable[[float], tuple[float, float]], low: Threshold, top: float) -> Threshold | None:
    """Where the informed branch becomes the Bayes-optimal one; None where it never does.

    Parameters
    ----------
    lead : callable
        From a sample ratio to the free entropy of the informed branch less that of the uninformed one, and its error.
    low : Threshold
        Where the informed branch begins. It is returned where that branch is ahead from there on.
    top : float
        Where the uninformed branch ends.
    """
    span = top - low.value
    if lead(low.value + 1e-6 * span)[0] > 0:
        return low
    inside = np.linspace(low.value, top, TRANSITION_NODES)[1:-1]
    ahead = np.array([lead(alpha)[0] for alpha in inside]) > 0
    if not ahead.any():
        return None
    first = int(np.argmax(ahead))
    behind, good = (float(inside[first - 1]) if first else low.value), float(inside[first])
    for _ in range(HALVINGS):
        middle = (behind + good) / 2
        behind, good = (behind, middle) if lead(middle)[0] > 0 else (middle, good)
    step = 1e-4 * span
    rise = (lead(good + step)[0] - lead(good - step)[0]) / (2 * step)
    error = lead(good)[1] / rise if np.isfinite(rise) and rise > 0 else 0.0
    return Threshold(good, float(error) + good - behind + 1e-12 * good)


def branches_meet(problem: Problem, low: Prediction, high: Prediction) -> bool:
    """Whether two predictions are the same fixed point within their errors."""
    scale = float(np.max(np.diagonal(prior_moments(problem)[0])))
    apart = np.abs(np.diagonal(low.V) - np.diagonal(high.V))
    return bool(np.all(apart <= 1e-6 * scale + 2 * (low.error + high.error)))


def bayes_optimal_first(pair: list[Prediction]) -> list[Prediction]:
    """Competing predictions, the one with the largest free entropy first."""
    return sorted(pair, key=lambda p: -p.free_entropy if p.free_entropy is not None else 0.0)


def free_entropy_along(qhat: Host, V: Host, log_alpha: Host, alpha: float, start: Host) -> float:
    r"""Free entropy at the end of a curve of fixed points, less that of the prior mean where the curve begins.

    On the curve ``kappa I = Qhat / alpha(s)``, so that at another sample ratio the integrand is known without further work:
    ``(1/2) \int \sum_a Qhat_aa (alpha / alpha(s) - 1) dQ_aa``.

    Parameters
    ----------
    qhat : ndarray (n, P)
        Diagonal of Qhat along the curve.
    V : ndarray (n, P) or (n + 1, P)
        Diagonal of V along the curve; one more row is the end point itself, between two points of the curve.
    log_alpha : ndarray (n,)
        Sample ratio of which each point is a fixed point.
    alpha : float
    start : ndarray (P,)
        V at the prior mean.
    """
    if not len(qhat):
        return 0.0
    force = 0.5 * qhat * np.expm1(np.log(alpha) - log_alpha)[:, None]
    if len(V) > len(qhat):
        force = np.vstack([force, np.zeros_like(start)])  # the end point is a fixed point at this alpha
    head = 0.5 * force[0] * (start - V[0])
    return float(head.sum() + np.sum(0.5 * (force[1:] + force[:-1]) * (V[:-1] - V[1:])))


def free_entropy_between(problem: Problem, alpha: float, first: Host, second: Host) -> tuple[float, float]:
    """Free entropy of the fixed point with Qhat = ``second`` less that with ``first``, both (P, P), and its error.

    The path goes straight in ``log(1 + Qhat)``; Gauss-Legendre nodes.
    """
    kappa = float(problem.model.kappa)
    nodes, weights = gauss_legendre(NODES, 0.0, 1.0)
    logs = [spectral_function(matrix, np.log1p) for matrix in (first, second)]

    def overlap(t: float) -> tuple[Host, Host, Host]:
        qhat = np.asarray(spectral_function((1 - t) * logs[0] + t * logs[1], np.expm1))
        return qhat, *overlap_at(problem, qhat)

    total, variance = 0.0, 0.0
    for node, weight in zip(nodes, weights):
        qhat, Q, V = overlap(node)
        step = 1e-4
        change = -(overlap(node + step)[2] - overlap(node - step)[2]) / (2 * step)
        value, error, _ = information_at(problem, Q, V)
        total += weight * 0.5 * float(np.sum((kappa * alpha * value - qhat) * change))
        variance += (weight * 0.5 * kappa * alpha * float(np.sum(error * np.abs(change)))) ** 2
    return total, float(np.sqrt(variance))
