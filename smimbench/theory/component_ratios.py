r"""The sample ratio at which a point is a fixed point, as seen by each component: ``alpha_a(Q) = Qhat_aa / (kappa I_aa(Q))``.

A component that is not learned (``Q_aa`` at its lowest value) is stable below ``alpha_a``, the limit of the same ratio: with
``I_aa = lambda_a Q_aa`` and ``Q_aa = chi_a Qhat_aa`` it is ``1 / (kappa lambda_a chi_a)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smimbench.theory.curve_stages import EXACT, SAMPLED, Accuracy
from smimbench.theory.information import (
    diagonals,
    information_at,
    is_sampled,
    offers_rough,
    overlap_at,
    prior_moments,
    susceptibility_at,
)
from smimbench.theory.types import NOTHING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smimbench.problem.problem import Problem
    from smimbench.theory.types import Host

__all__ = ["ComponentRatios", "components_decouple"]

ROOT = 0.02
"""Shift of the coordinate of sampled components, in log(1 + Qhat). At 0 errors of 4e-3 with 11 nodes of two layers, not 4e-4."""


class ComponentRatios:
    """The functions ``alpha_a`` of a problem whose components decouple, over coordinates x of Qhat.

    The coordinate of a component that has information at the prior mean is ``log Qhat_aa``; of any other it is ``l = log(1 +
    Qhat_aa - critical_a)``, or where information is sampled ``sqrt(l + ROOT) - sqrt(ROOT)``: beyond weak recovery alpha rises
    steeply at first, and a curve through few nodes is smoother in a root.

    Attributes
    ----------
    second, bottom : ndarray (P,)
        Diagonals of the second moment and of the overlap of the prior mean.
    critical : ndarray (P,)
        Critical information: the largest Qhat at which the overlap still has its lowest value.
    response : ndarray (P,)
        dQ/dQhat at the lowest overlap.
    response_error : ndarray (P,)
        Its relative error.
    informative : set of int
        Components that have information at the prior mean.
    methods : dict
        How the information was obtained, in the order of first use.
    """

    def __init__(self, problem: Problem) -> None:
        P = problem.components
        self.problem = problem
        self.kappa = float(problem.model.kappa)
        self.second = np.diagonal(np.asarray(problem.prior.second_moment(P), dtype=float))
        self.bottom = np.diagonal(np.asarray(problem.prior.mean_overlap(P), dtype=float))
        self.methods: dict[str, None] = {}
        self.informative: set[int] = set()
        self.critical, self.response, self.response_error = self._prior_at_bottom()

    @property
    def sampled(self) -> bool:
        """Whether the information is a mean over random labels."""
        return any(is_sampled(method) for method in self.methods)

    @property
    def accuracy(self) -> Accuracy:
        """How finely a curve is followed."""
        return SAMPLED if self.sampled else EXACT

    def _prior_at_bottom(self) -> tuple[Host, Host, Host]:
        """Critical information, response and its error."""
        P = self.problem.components

        def gain(qhat: float) -> Host:
            # V keeps its digits where Q - bottom does not
            V = np.diagonal(np.asarray(self.problem.prior.overlap(qhat * np.eye(P)).V))
            found: Host = np.maximum(self.second - self.bottom - V, 0.0)
            return found

        # Richardson's extrapolation to second order; the third one says how well it does.
        slopes = [gain(step) / step for step in (8e-4, 4e-4, 2e-4, 1e-4)]
        before, response = ((one - 6 * two + 8 * three) / 3 for one, two, three in (slopes[:3], slopes[1:]))
        next_order = np.abs(response - before) / 7
        error = next_order / np.where(response > 0, response, 1.0) + 1e-11
        critical = np.zeros(P)
        for a in np.flatnonzero(response == 0):
            low, high = 1e-5, 1.0
            while gain(high)[a] == 0 and high < 1e8:
                low, high = high, 4 * high
            while high - low > 1e-14 * high:
                middle = (low + high) / 2
                low, high = (low, middle) if gain(middle)[a] > 0 else (middle, high)
            critical[a] = high
        return critical, response, error

    def qhat(self, x: Host, learned: Sequence[int]) -> Host:
        """Diagonal of Qhat (..., P) at coordinates x (..., P); 0 for components that are not learned."""
        found = np.zeros(x.shape)
        for a in learned:
            found[..., a] = np.exp(x[..., a]) if a in self.informative else self.critical[a] + self.gain(x[..., a])
        return found

    def gain(self, x: Host) -> Host:
        """``Qhat_aa - critical_a`` at the coordinate x of a component without information at the prior mean."""
        return np.asarray(np.expm1(x * (x + 2 * np.sqrt(ROOT)) if self.sampled else x))

    def overlap(self, qhat: Host) -> tuple[Host, Host]:
        """Q and V (..., P, P) of a diagonal Qhat (..., P)."""
        found = self.problem.prior.overlap(qhat[..., :, None] * np.eye(qhat.shape[-1]))
        return np.asarray(found.Q), np.asarray(found.V)

    @property
    def has_rough(self) -> bool:
        """Whether the information is sampled by a channel that can be asked for fewer labels, enough for differences."""
        return self.sampled and offers_rough(self.problem)

    def log_ratios(self, x: Host, learned: Sequence[int], *, rough: bool = False) -> tuple[Host, Host]:
        """``log alpha_a`` (P,) and its error: of the learned components at x, and where the others become unstable.

        Infinite for components that no number of samples teaches. ``rough`` asks for differences: from few labels, the same at
        every overlap.
        """
        P = len(x)
        qhat = self.qhat(x, learned)
        Q, V = self.overlap(qhat)
        learned = [a for a in learned if qhat[a] > 0]
        waiting = [a for a in range(P) if a not in learned and self.critical[a] == 0]
        information = information_at(self.problem, Q, V, rough=rough)
        self.methods[information.method] = None
        value, error = diagonals(information)
        rate, rate_error = np.zeros(P), np.zeros(P)
        for a in range(P):
            if a in learned:
                rate[a], rate_error[a] = value[a] / qhat[a], error[a] / qhat[a]
            elif self.critical[a] > 0:
                rate[a], rate_error[a] = value[a] / self.critical[a], error[a] / self.critical[a]
        if waiting:
            found = susceptibility_at(self.problem, Q, V, rough=rough)
            self.methods[found.method] = None
            response, response_error = diagonals(found)
            for a in waiting:
                rate[a], rate_error[a] = response[a] * self.response[a], response_error[a] * self.response[a]
        rate, rate_error = self.kappa * rate, self.kappa * rate_error
        seen = rate > np.maximum(3 * rate_error, 1e-300)
        seen[learned] = rate[learned] > 0
        safe = np.where(seen, rate, 1.0)
        return np.where(seen, -np.log(safe), np.inf), np.where(seen, rate_error / safe, np.inf)


def components_decouple(problem: Problem) -> bool:
    """Whether diagonal overlaps stay diagonal, and components at their lowest overlap stay there while others are learned.

    The first by symmetry, where no label sees the sign of a component. Otherwise the information is probed at the prior mean
    and at two diagonal overlaps: its off-diagonal part has to vanish within its error. The second is what a channel claims
    that knows its ``susceptibility``; of any other it is probed. A product of two components is learned by both at once:
    knowing one teaches the other.
    """
    P = problem.components
    bottom = prior_moments(problem)[1]
    if np.any(bottom != np.diag(np.diagonal(bottom))):
        return False
    if P > 1 and problem.channel.susceptibility is None and _teach_each_other(problem):
        return False
    if problem.channel.symmetry in ("signs", "signed-permutations"):
        return True
    for probe in (np.zeros(P), 0.7 * 1.9 ** np.arange(P), 5.0 / 1.7 ** np.arange(P)):
        value, error, _ = information_at(problem, *overlap_at(problem, np.diag(probe)))
        scale = np.sqrt(np.outer(np.diagonal(value), np.diagonal(value)))
        mixed = np.abs(value) > 4 * error + 1e-6 * scale + 1e-12
        if np.any(mixed & ~np.eye(P, dtype=bool)):
            return False
    return True


def _teach_each_other(problem: Problem) -> bool:
    """Whether a component without information at the prior mean gains some from another one."""
    P = problem.components

    def information(probe: Host) -> tuple[Host, Host]:
        return diagonals(information_at(problem, *overlap_at(problem, np.diag(probe))))

    value, error = information(np.zeros(P))
    silent = value <= np.maximum(NOTHING, 4 * error)
    for a in range(P):
        value, error = information(np.where(np.arange(P) == a, 1.0, 0.0))
        taught = silent & (np.arange(P) != a) & (value > 4 * error + 1e-4 * value.max())
        if taught.any():
            return True
    return False
