"""Above which sample ratio an error of zero is stable: counting equations against unknowns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smimbench.interfaces import member
from smimbench.theory.information import diagonals, information_at, overlap_at
from smimbench.theory.types import Threshold

if TYPE_CHECKING:
    from smimbench.problem.problem import Problem
    from smimbench.theory.types import Host

__all__ = ["perfect_limit"]

BALANCING = 40
"""Most steps that balance the errors of the components; doubled, slower balances converge."""


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
    equations = member(problem.channel, "equations")
    if equations is not None:
        value = float(unknowns.sum()) / (kappa * float(equations))
        drift = abs(float(at(np.full(P, 1e7))[2].sum() / unknowns.sum()) - 1)
        return Threshold(value, value * min(drift, 1e-2))
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
    for _ in range(BALANCING):
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
    noise = above[1]
    low, middle, high = (float(found[0].max()) for found in (below, balanced, above))
    bend = (high - middle) - (middle - low)
    limit = high - (high - middle) ** 2 / bend if abs(bend) > 1e-13 * high else high
    if abs(limit - high) > abs(high - middle):
        limit = high
    return Threshold(limit, abs(limit - high) + limit * noise)
