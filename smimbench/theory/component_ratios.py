r"""Sample ratio ``alpha_a(Q) = Qhat_aa / (kappa I_aa(Q))`` at which component a is at a fixed point.

A component that is not learned (``Q_aa`` at its lowest value) is stable below ``alpha_a``, the limit of the same ratio: with
``I_aa = lambda_a Q_aa`` and ``Q_aa = chi_a Qhat_aa`` it is ``1 / (kappa lambda_a chi_a)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smimbench.interfaces import Host, Uncertain
from smimbench.problem.problem import Problem
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

ROOT = 0.02
"""Shift of the coordinate of a component, in log(1 + Qhat). At 0 errors of 4e-3 with 11 nodes of two layers, not 4e-4."""


@dataclass(frozen=True)
class TracingAccuracy:
    """Numerical settings for tracing a curve of fixed points.

    Lengths are in coordinates of Qhat (logarithms).

    Attributes
    ----------
    difference : float
        Length of finite differences.
    first_step : float
        First step of a stage; doubled, one or two nodes fewer at its beginning.
    shortest, longest : float
        Bounds of a step from node to node.
    mismatch : float
        Wanted difference of log alpha at a new node from its extrapolation; it sets the step. Doubled, steps grow by 1.4.
    correction : float
        Largest correction across the curve that is not evaluated again, but counted as an error.
    known_correction, doubt : float
        The same where the slope across the curve is measured at the node, and the share of such a correction that is counted;
        doubled, fewer evaluations and larger errors.
    gap : float
        Largest distance from a bifurcation, in log alpha.
    gap_share : float
        The same as a share of the error there.
    highest : float
        Qhat above which a component counts as recovered.
    growth : float
        Largest factor from step to step. Doubled: fewer nodes, and more that are found too early.
    """

    difference: float = 1e-3
    first_step: float = 0.04
    shortest: float = 2e-3
    longest: float = 1.5
    mismatch: float = 5e-4
    correction: float = 1e-6
    known_correction: float = 1e-6
    doubt: float = 1.0
    gap: float = 1e-8
    gap_share: float = 0.1
    highest: float = 1e8
    growth: float = 2.0


EXACT = TracingAccuracy()
SAMPLED = TracingAccuracy(
    difference=0.15,
    first_step=0.15,
    shortest=0.02,
    longest=0.5,
    mismatch=5e-3,
    correction=2e-3,
    known_correction=5e-3,
    doubt=0.1,
    gap=2e-4,
    gap_share=0.7,
    highest=1e6,
    growth=1.6,
)
"""For sampled information, which costs seconds and has errors of 1e-3."""


class ComponentRatios:
    """Sample ratios ``alpha_a`` of all components as functions of coordinates x of Qhat, for decoupled components.

    The coordinate of a component that has information at the prior mean is ``log Qhat_aa``; of any other it is ``sqrt(l + ROOT)
    - sqrt(ROOT)``, ``l = log(1 + Qhat_aa - critical_a)``: beyond weak recovery alpha rises steeply at first, and a curve through
    few nodes is smoother in a root.

    Attributes
    ----------
    second, prior_mean_overlap : ndarray (P,)
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
        self.problem = problem
        self.kappa = float(problem.model.kappa)
        self.second, self.prior_mean_overlap = (
            np.diagonal(moment) for moment in prior_moments(problem)
        )
        self.methods: dict[str, None] = {}
        self.informative: set[int] = set()
        # Richardson's extrapolation to second order; the third one says how well it does.
        slopes = [self._gained(step) / step for step in (8e-4, 4e-4, 2e-4, 1e-4)]
        previous_response, self.response = (
            (slope - 6 * half_slope + 8 * quarter_slope) / 3
            for slope, half_slope, quarter_slope in (slopes[:3], slopes[1:])
        )
        next_order = np.abs(self.response - previous_response) / 7
        self.response_error = (
            next_order / np.where(self.response > 0, self.response, 1.0) + 1e-11
        )
        self.critical = np.zeros(len(self.response))
        for a in np.flatnonzero(self.response == 0):
            self.critical[a] = self._critical(int(a))

    def _gained(self, qhat: float) -> Host:
        """Overlap gained over its lowest value (P,) if all components have this Qhat."""
        # V keeps its digits where Q - prior_mean_overlap does not
        V = np.diagonal(self.overlap(np.full(len(self.second), qhat))[1])
        gained: Host = np.maximum(self.second - self.prior_mean_overlap - V, 0.0)
        return gained

    def _critical(self, a: int) -> float:
        """Largest Qhat at which a component's overlap still has its lowest value."""
        from scipy.optimize import brentq

        def grown(log_qhat: float) -> float:
            Q = self.overlap(np.full(len(self.prior_mean_overlap), np.exp(log_qhat)))[0]
            return 1.0 if Q[a, a] > self.prior_mean_overlap[a] else -1.0

        nodes = np.linspace(np.log(1e-9), np.log(1e15), 193)
        end = next(
            (k for k, node in enumerate(nodes) if grown(node) > 0), len(nodes) - 1
        )
        return float(np.exp(brentq(grown, nodes[end - 1], nodes[end], xtol=1e-15)))

    @property
    def sampled(self) -> bool:
        """Whether the information is estimated as a mean over random labels."""
        return any(is_sampled(method) for method in self.methods)

    @property
    def accuracy(self) -> TracingAccuracy:
        """Numerical settings for tracing the curve of this problem."""
        return SAMPLED if self.sampled else EXACT

    def qhat(self, x: Host, learned: Sequence[int]) -> Host:
        """Diagonal of Qhat (..., P) at coordinates x (..., P); 0 for components that are not learned."""
        diagonal = np.zeros(x.shape)
        for a in learned:
            diagonal[..., a] = (
                np.exp(x[..., a])
                if a in self.informative
                else self.critical[a] + self.gain(x[..., a])
            )
        return diagonal

    def gain(self, x: Host) -> Host:
        """Excess ``Qhat_aa - critical_a`` at coordinate x of a component without information at the prior mean."""
        return np.asarray(np.expm1(x * (x + 2 * np.sqrt(ROOT))))

    def overlap(self, qhat: Host) -> tuple[Host, Host]:
        """Overlap Q and error V (..., P, P) of the prior at a diagonal Qhat (..., P)."""
        return overlap_at(self.problem, qhat[..., :, None] * np.eye(qhat.shape[-1]))

    @property
    def has_rough(self) -> bool:
        """Whether the information is sampled and a cheaper estimate is accurate enough for finite differences."""
        return self.sampled and offers_rough(self.problem)

    def log_ratios(
        self, x: Host, learned: Sequence[int], *, rough: bool = False
    ) -> tuple[Host, Host]:
        """Compute ``log alpha_a`` (P,) and its error: at x if component a is learned, else where it becomes unstable.

        Infinite for components that no number of samples teaches. ``rough`` asks for differences: from few labels, the same at
        every overlap.
        """
        qhat = self.qhat(x, learned)
        Q, V = self.overlap(qhat)
        information = information_at(self.problem, Q, V, rough=rough)
        self.methods[information.method] = None
        threshold = np.where(qhat > 0, qhat, self.critical)
        waiting = threshold == 0
        rate, error = (
            column / np.where(waiting, 1.0, threshold)
            for column in diagonals(information)
        )
        if waiting.any():
            susceptibility = susceptibility_at(self.problem, Q, V, rough=rough)
            self.methods[susceptibility.method] = None
            growth, growth_error = (
                column * self.response for column in diagonals(susceptibility)
            )
            rate, error = (
                np.where(waiting, growth, rate),
                np.where(waiting, growth_error, error),
            )
        rate, error = self.kappa * rate, self.kappa * error
        is_visible = rate > np.where(qhat > 0, 0.0, np.maximum(3 * error, 1e-300))
        safe = np.where(is_visible, rate, 1.0)
        return np.where(is_visible, -np.log(safe), np.inf), np.where(
            is_visible, error / safe, np.inf
        )


def components_decouple(problem: Problem) -> bool:
    """Whether components decouple: diagonal overlaps stay diagonal, and unlearned components stay unlearned.

    The first by symmetry, where no label sees the sign of a component. Otherwise the information is probed at the prior mean
    and at two diagonal overlaps: its off-diagonal part has to vanish within its error. The second is what a channel claims
    that knows its ``susceptibility``; of any other it is probed. A product of two components is learned by both at once:
    knowing one teaches the other.
    """
    P, identity = problem.components, np.eye(problem.components)
    prior_mean_overlap = prior_moments(problem)[1]
    if np.any(prior_mean_overlap != np.diag(np.diagonal(prior_mean_overlap))):
        return False

    def information(probe: Host) -> Uncertain:
        return information_at(problem, *overlap_at(problem, np.diag(probe)))

    if P > 1 and problem.channel.susceptibility is None:
        value, error = diagonals(information(np.zeros(P)))
        silent = value <= np.maximum(NOTHING, 4 * error)
        for a in range(P):
            value, error = diagonals(information(identity[a]))
            is_taught = silent & (value > 4 * error + 1e-4 * value.max())
            if np.delete(is_taught, a).any():
                return False
    if problem.channel.symmetry in ("signs", "signed-permutations"):
        return True
    for probe in (np.zeros(P), 0.7 * 1.9 ** np.arange(P), 5.0 / 1.7 ** np.arange(P)):
        value, error, _ = information(probe)
        scale = np.sqrt(np.outer(np.diagonal(value), np.diagonal(value)))
        if np.any((np.abs(value) > 4 * error + 1e-6 * scale + 1e-12) & (identity == 0)):
            return False
    return True
