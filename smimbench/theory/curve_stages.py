"""Parts of a traced curve of fixed points: nodes, stages, interpolation, and corrections towards the curve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from smimbench.interfaces import Host
    from smimbench.theory.component_ratios import ComponentRatios


Interpolant = Callable[..., "Host"]
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
