"""Above which sample ratio an error of zero is stable: counting equations against unknowns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smimbench.theory.information import diagonals, information_at, is_sampled, overlap_at, prior_moments
from smimbench.theory.types import Threshold

if TYPE_CHECKING:
    from smimbench.problem.problem import Problem
    from smimbench.theory.types import Host

__all__ = ["perfect_limit"]


def perfect_limit(problem: Problem) -> Threshold | None:
    r"""Above which sample ratio an error of zero is stable; None where errors never vanish.

    As V -> 0 noiseless labels become linear equations, ``kappa alpha tr(V I) -> kappa alpha E`` with E their number, and the
    prior allows ``tr(V Qhat) -> U``, its number of unknowns. Where all components share the equations, ``alpha = U / (kappa
    E)``. Otherwise the directions in which V vanishes are balanced by ``V_a <- V_a (U_a / E_a)``, ``E_a = V_aa I_aa``, and the
    component that is served worst decides.
    """
    P = problem.components
    kappa = float(problem.model.kappa)

    def at(qhat: Host) -> tuple[Host, Host, Host]:
        """Q, V and ``diag(V Qhat)``."""
        Q, V = overlap_at(problem, np.diag(qhat))
        return Q, V, np.diagonal(V) * qhat

    unknowns = at(np.full(P, 1e9))[2]
    if not np.all(unknowns < 1e3):
        return None
    if not unknowns.any():
        return _limit_of_discrete_signals(problem)
    drift = min(1e-2, abs(float(at(np.full(P, 1e7))[2].sum() / unknowns.sum()) - 1))
    equations = problem.channel.equations
    if equations is not None:
        value = float(unknowns.sum()) / (kappa * float(equations))
        return Threshold(value, value * drift)
    tilt = np.ones(P)

    def measure(scale: float) -> tuple[Host, float, float] | None:
        """Sample ratio that each component asks for, its relative error, and the equations in all."""
        Q, V, _ = at(scale / tilt)
        information = information_at(problem, Q, V)
        value, error = diagonals(information)
        shares = np.diagonal(V) * value
        if not (np.isfinite(shares).all() and (shares > 0).all()):
            return None
        return (unknowns / (kappa * shares), float(np.max(error / value)), float(np.trace(V @ information.value)))

    rates = np.zeros(P)
    for _ in range(40):
        balanced = measure(1e5)
        if balanced is None:
            return None
        previous, rates = rates, balanced[0]
        # Components with equations of their own do not feel the balance.
        if np.ptp(np.log(rates)) < 1e-4 or np.allclose(rates, previous, rtol=1e-4, atol=0):
            break
        tilt = np.clip(tilt * rates / rates.max(), 1e-6, 1.0)
    below, above = measure(1e4), measure(1e6)
    # Errors that vanish leave the number of equations where it is; otherwise it goes down with them.
    if below is None or balanced is None or above is None or above[2] < 0.8 * below[2]:
        return None
    noise = above[1] + drift
    low, middle, high = (float(found[0].max()) for found in (below, balanced, above))
    bend = (high - middle) - (middle - low)
    limit = high - (high - middle) ** 2 / bend if abs(bend) > 1e-13 * high else high
    if abs(limit - high) > abs(high - middle):
        # No geometric sequence: what is left is not known better than the last step.
        return Threshold(high, abs(high - middle) + high * noise)
    return Threshold(limit, abs(limit - high) + limit * noise)


def _limit_of_discrete_signals(problem: Problem) -> Threshold | None:
    """0 where labels are noiseless, for what is known then stays known, however few there are; None where they are noisy.

    The error of a discrete signal vanishes faster than any power of Qhat. The sample ratio ``Qhat / (kappa I)`` that it takes
    falls along with it where the information of labels grows as V does not; noise stops that growth, and it rises.
    """
    P = problem.components
    second, bottom = prior_moments(problem)
    spread = np.diagonal(second - bottom)

    def part(log_scale: float) -> float:
        """Largest part of the signal that is unknown."""
        return float(np.max(np.diagonal(overlap_at(problem, np.exp(log_scale) * np.eye(P))[1]) / spread))

    def ratio(unknown: float) -> float:
        low, high = 0.0, np.log(1e9)
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if part(middle) > unknown else (low, middle)
        information = diagonals(information_at(problem, *overlap_at(problem, np.exp(low) * np.eye(P))))[0]
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(np.max(np.exp(low) / (float(problem.model.kappa) * information)))

    method = information_at(problem, *overlap_at(problem, np.eye(P))).method
    # Unknown parts between which the sample ratio must fall; few labels carry sampled information below.
    levels = (1e-2, 1e-5) if is_sampled(method) or method.startswith("nested") else (1e-4, 1e-9)
    late, later = (ratio(unknown) for unknown in levels)
    return Threshold(0.0, 0.0) if later < late else None
