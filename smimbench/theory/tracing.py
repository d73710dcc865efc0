r"""Steps along a traced curve of fixed points: the sample ratio of each component, nodes, stages, and the corrector.

Component a is at a fixed point at the sample ratio ``alpha_a(Q) = Qhat_aa / (kappa I_aa(Q))``. A component that is not learned
(``Q_aa`` at its lowest value) is stable below ``alpha_a``, the limit of the same ratio: with ``I_aa = lambda_a Q_aa`` and
``Q_aa = chi_a Qhat_aa`` it is ``1 / (kappa lambda_a chi_a)``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

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


Interpolant = Callable[..., Host]
"""A curve as a function of its length; with 1 as second argument its derivative."""


@dataclass
class Node:
    """Node of a traced curve: one computed fixed point.

    Attributes
    ----------
    x : ndarray (P,)
        Coordinates of Qhat.
    log_ratios, error : ndarray (P,)
        ``log alpha_a`` of each component and the error of the information in it.
    slope : ndarray (P, P)
        ``d log_ratios / dx``.
    log_alpha : float
    residual : ndarray (P,) or float
        How far ``log_ratios`` may be from ``log_alpha`` because the corrections ended there.
    missed : ndarray (P,) or None
        What few labels miss of ``log_ratios``, where they were asked.
    """

    x: Host
    log_ratios: Host
    error: Host
    slope: Host
    log_alpha: float
    residual: Host | float = 0.0
    missed: Host | None = None

    @property
    def total_error(self) -> Host:
        """Total numerical error (P,) of ``log_alpha`` according to each component."""
        return self.error + self.residual


@dataclass(eq=False)
class Stage:
    """Stage of a traced curve: the part between two bifurcations, on which the same components are learned.

    ``new_components`` determine its initial direction. The components ``perfect`` among the learned ones
    have reached their end before the others; they stay where they are. Nodes ``ahead``, the farthest first, were found before
    those that the curve needs on the way to them.
    """

    learned: list[int]
    new_components: list[int]
    nodes: list[Node]
    perfect: list[int]
    step: float
    direction: Host | None = None
    ahead: list[Node] = field(default_factory=list)

    @property
    def moving(self) -> list[int]:
        """Learned components that have not yet reached perfect recovery."""
        return [a for a in self.learned if a not in self.perfect]

    def mean_error(self, node: Node) -> float:
        """Error of ``log_alpha`` at a node, root mean square over the moving components."""
        return float(np.sqrt((node.total_error[self.moving] ** 2).mean()))

    def interpolants(self) -> tuple[Interpolant, Interpolant]:
        """Two interpolants of the curve (x and log alpha) over arc length: a smooth one, a cautious one for its error."""
        from scipy.interpolate import CubicSpline, PchipInterpolator

        s, values = (
            lengths(self.nodes),
            np.array([[*node.x, node.log_alpha] for node in self.nodes]),
        )
        if len(s) == 2:
            s, values = (
                np.insert(s, 1, (s[0] + s[1]) / 2),
                np.insert(values, 1, values.mean(0), axis=0),
            )
        cautious = PchipInterpolator(s, values)
        if len(s) <= 3:
            return cautious, cautious
        # Cubics of four neighbors are eight times as far from a smooth curve as the spline is.
        return CubicSpline(s, values), cautious if len(s) == 4 else LocalCubic(
            s, values
        )


@dataclass
class LocalCubic:
    """Local interpolation of nodes ``(s_k, values_k)`` by the cubic through the four nearest nodes.

    At the ends it is a parabola through three nodes.
    """

    s: Host
    values: Host

    def __call__(self, position: float) -> Host:
        """Interpolate the values at one position."""
        k = int(np.clip(np.searchsorted(self.s, position), 1, len(self.s) - 1))
        near = slice(max(0, k - 2), k + 2)
        return polynomial(self.s[near], self.values[near], position)


def lengths(nodes: list[Node]) -> Host:
    """Arc lengths (n,) of the nodes, measured from the first node."""
    x = np.array([node.x for node in nodes])
    return np.concatenate(
        [[0.0], np.cumsum(np.linalg.norm(np.diff(x, axis=0), axis=1))]
    )


def polynomial(
    t: Host, values: Host | Sequence[float] | Sequence[Host], end: float
) -> Host:
    """Value at ``end`` of the polynomial through all points ``(t_k, values_k)``."""
    from scipy.interpolate import krogh_interpolate

    return np.asarray(krogh_interpolate(t, np.asarray(values, dtype=float), end))


def change(start: Host, end: Host) -> Host:
    """Elementwise difference end - start where both are finite, 0 elsewhere."""
    is_finite = np.isfinite(start) & np.isfinite(end)
    return np.where(
        is_finite, np.where(is_finite, end, 0.0) - np.where(is_finite, start, 0.0), 0.0
    )


class Corrector:
    """Corrector of the continuation: finds points where the ``alpha_a`` of all moving components agree.

    Parameters
    ----------
    ratios : ComponentRatios
    """

    def __init__(self, ratios: ComponentRatios) -> None:
        self.ratios = ratios

    def differentiate(self, stage: Stage, node: Node) -> Host:
        """Set the slopes of log alpha_a at a node by finite differences, and return their base values.

        Where information is sampled all of them come from few labels, the same at every overlap. A node where that has been done
        for some components needs it for those that are ``new`` only.
        """
        step, few = self.ratios.accuracy.difference, self.ratios.has_rough
        centre = (
            self.ratios.log_ratios(node.x, stage.learned, rough=True)[0]
            if few
            else node.log_ratios
        )
        for a in stage.moving if node.missed is None else stage.new_components:
            x = node.x.copy()
            x[a] += step
            node.slope[:, a] = (
                change(centre, self.ratios.log_ratios(x, stage.learned, rough=few)[0])
                / step
            )
        return centre

    def tangent(self, stage: Stage, slope: Host) -> Host:
        """Unit tangent, the forward direction of the curve, at a node with this slope."""
        moving = stage.moving
        tangent = np.zeros(len(slope))
        if len(moving) == 1:
            tangent[moving] = 1.0
            return tangent
        block = slope[np.ix_(moving, moving)]
        tangent[moving] = np.linalg.svd(block[1:] - block[:1])[2][-1]
        forward = (
            tangent[stage.new_components].sum()
            if stage.direction is None
            else tangent @ stage.direction
        )
        return tangent if forward > 0 else -tangent

    def _across(self, moving: list[int], slope: Host, tangent: Host) -> Host:
        """Linear system of a correction: slope differences of the moving components, and the tangent as last row."""
        block = slope[np.ix_(moving, moving)]
        return np.vstack([block[1:] - block[:1], tangent[moving]])

    def _noise(
        self, moving: list[int], error: Host, slope: Host, tangent: Host
    ) -> float:
        """Standard error of a correction across the curve, from the standard error of the log alpha_a."""
        if len(moving) < 2:
            return 0.0
        inverse = np.linalg.pinv(self._across(moving, slope, tangent), rcond=1e-10)[
            :, :-1
        ]
        weights = np.hstack([inverse.sum(axis=1, keepdims=True), -inverse])
        return float(np.sqrt((weights**2 @ error[moving] ** 2).max()))

    def _correction(
        self, moving: list[int], log_ratios: Host, slope: Host, tangent: Host
    ) -> Host:
        """Newton step perpendicular to the curve that makes the moving components agree."""
        step = np.zeros(len(log_ratios))
        if len(moving) > 1:
            differences = np.append(log_ratios[moving[0]] - log_ratios[moving[1:]], 0.0)
            step[moving] = np.linalg.lstsq(
                self._across(moving, slope, tangent), differences, rcond=1e-10
            )[0]
        return step

    def inside(self, stage: Stage, start: Host, end: Host) -> Host:
        """Limit a step so that a learned component moves at most two thirds of the way back to its lowest overlap."""
        bounded = [a for a in stage.moving if a not in self.ratios.informative]
        end = end.copy()
        end[bounded] = np.maximum(end[bounded], start[bounded] / 3)
        return end

    def attempt(
        self, stage: Stage, origin: Node, x: Host, tangent: Host
    ) -> tuple[Node, float]:
        """Find the point of the curve near ``x``; return it and the largest correction beyond noise.

        Broyden's method across the curve. The last correction is not evaluated again: what it changes in the ``alpha_a`` is
        part of their residual. Where few labels cost little they are asked first: what they miss hardly changes from node to
        node, so that one evaluation with all labels is mostly enough.
        """
        accuracy, moving, largest = self.ratios.accuracy, stage.moving, 0.0
        slope, last_x, last_ratios = origin.slope.copy(), origin.x, origin.log_ratios
        # What is left is counted in full where the slope may be far off, and by a share where it is measured: there it may be as
        # large as the error.
        is_slope_known = self.ratios.has_rough and len(moving) > 1
        rough_x, rough_ratios = x, None
        # A stage begins where a component is 0, and what few labels miss may be another there: tables may know it.
        if is_slope_known and origin.missed is not None and len(stage.nodes) > 1:
            rough_ratios = self.differentiate(
                stage, Node(x, last_ratios, last_ratios, slope, np.nan)
            )
            step = self._correction(
                moving, rough_ratios + origin.missed, slope, tangent
            )
            size = float(np.abs(step).max())
            if np.isfinite(size):
                largest, x = (
                    size,
                    self.inside(stage, x, x + step * min(1.0, 1.0 / max(size, 1e-300))),
                )
        for trial in range(6):  # then the step is halved
            log_ratios, error = self.ratios.log_ratios(x, stage.learned)
            move = x - last_x
            if is_slope_known and trial == 0:
                if rough_ratios is None:
                    rough_ratios = self.differentiate(
                        stage, Node(x, log_ratios, error, slope, np.nan)
                    )
            elif move @ move > 0:
                slope = slope + np.outer(
                    change(last_ratios, log_ratios) - slope @ move, move
                ) / (move @ move)
            step = self._correction(moving, log_ratios, slope, tangent)
            size = float(np.abs(step).max())
            if not np.isfinite(size):
                return Node(x, log_ratios, error, slope, np.nan), np.inf
            largest = max(largest, size - self._noise(moving, error, slope, tangent))
            enough = (
                max(accuracy.known_correction, float(error[moving].max()))
                if is_slope_known
                else accuracy.correction
            )
            if size <= enough:
                break
            last_x, last_ratios = x, log_ratios
            target = x + step * min(1.0, 1.0 / size)
            x = self.inside(stage, x, target)
            if (x != target).any() and len(stage.nodes) == 1:
                # Back to the lowest overlap where it has just been left: noise, for this step is too short.
                step, largest, x = np.zeros_like(step), np.inf, last_x
                break
        else:
            step, largest = np.zeros_like(step), np.inf
        missed = (
            None
            if rough_ratios is None
            else change(rough_ratios + slope @ (x - rough_x), log_ratios)
        )
        moved = slope @ step
        log_ratios = np.where(np.isfinite(log_ratios), log_ratios + moved, log_ratios)
        log_alpha = float(log_ratios[moving].mean())
        residual = np.zeros(len(x))
        residual[moving] = (accuracy.doubt if is_slope_known else 1.0) * np.abs(moved)[
            moving
        ]
        residual[moving] += np.abs(log_ratios[moving] - log_alpha)
        return Node(
            self.inside(stage, x, x + step),
            log_ratios,
            error,
            slope,
            log_alpha,
            residual,
            missed,
        ), largest
