"""Differences of the replica-symmetric free entropy: along a curve of fixed points, and between two overlaps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smimbench.numerics.linalg import spectral_function
from smimbench.numerics.quadrature import gauss_legendre
from smimbench.theory.information import information_at, overlap_at

if TYPE_CHECKING:
    from smimbench.problem.problem import Problem
    from smimbench.theory.types import Host

__all__ = ["free_entropy_along", "free_entropy_between"]


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

    The path goes straight in ``log(1 + Qhat)``; 12 Gauss-Legendre nodes.
    """
    kappa = float(problem.model.kappa)
    nodes, weights = gauss_legendre(12, 0.0, 1.0)
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
