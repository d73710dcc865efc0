"""Points on a curve of fixed points: tangent, slopes, and Newton's and Broyden's corrections across it."""

from __future__ import annotations

import numpy as np

from smimbench.theory.component_ratios import ComponentRatios
from smimbench.theory.curve_stages import Node, Stage, change
from smimbench.theory.types import Host

__all__ = ["Corrector"]


class Corrector:
    """Finds points of the curve on which the ``alpha_a`` of all moving components agree.

    Parameters
    ----------
    ratios : ComponentRatios
    """

    def __init__(self, ratios: ComponentRatios) -> None:
        self.ratios = ratios

    def differentiate(self, stage: Stage, node: Node) -> Host:
        """Finite differences of the log alpha_a at a node, and the log alpha_a that they start from.

        Where information is sampled all of them come from few labels, the same at every overlap. A node where that has been done
        for some components needs it for those that are ``new`` only.
        """
        step, few = self.ratios.accuracy.difference, self.ratios.has_rough
        centre = self.ratios.log_ratios(node.x, stage.learned, rough=True)[0] if few else node.log_ratios
        for a in stage.moving if node.missed is None else stage.new:
            x = node.x.copy()
            x[a] += step
            node.slope[:, a] = change(centre, self.ratios.log_ratios(x, stage.learned, rough=few)[0]) / step
        return centre

    def tangent(self, stage: Stage, slope: Host) -> Host:
        """Direction of the curve at a node of this slope, forwards."""
        moving = stage.moving
        tangent = np.zeros(len(slope))
        if len(moving) == 1:
            tangent[moving] = 1.0
            return tangent
        block = slope[np.ix_(moving, moving)]
        _, _, vectors = np.linalg.svd(block[1:] - block[:1])
        tangent[moving] = vectors[-1]
        forward = tangent[stage.new].sum() if stage.direction is None else tangent @ stage.direction
        return tangent if forward > 0 else -tangent

    def _across(self, moving: list[int], slope: Host, tangent: Host) -> Host:
        """Differences of the slopes of the moving components, and the direction along the curve as its last row."""
        block = slope[np.ix_(moving, moving)]
        return np.vstack([block[1:] - block[:1], tangent[moving]])

    def _noise(self, moving: list[int], error: Host, slope: Host, tangent: Host) -> float:
        """Standard error of a correction across the curve, from that of the log alpha_a."""
        if len(moving) < 2:
            return 0.0
        inverse = np.linalg.pinv(self._across(moving, slope, tangent), rcond=1e-10)[:, :-1]
        weights = np.hstack([inverse.sum(axis=1, keepdims=True), -inverse])
        return float(np.sqrt((weights**2 @ error[moving] ** 2).max()))

    def _correction(self, moving: list[int], log_ratios: Host, slope: Host, tangent: Host) -> Host:
        """Newton step across the curve that makes the moving components agree."""
        step = np.zeros(len(log_ratios))
        if len(moving) > 1:
            system = self._across(moving, slope, tangent)
            wanted = np.append(log_ratios[moving[0]] - log_ratios[moving[1:]], 0.0)
            step[moving] = np.linalg.lstsq(system, wanted, rcond=1e-10)[0]
        return step

    def inside(self, stage: Stage, start: Host, end: Host) -> Host:
        """``end``, but a learned component goes at most two thirds of the way back to its lowest overlap."""
        end = end.copy()
        for a in stage.moving:
            if a not in self.ratios.informative:
                end[a] = max(end[a], start[a] / 3)
        return end

    def attempt(self, stage: Stage, origin: Node, x: Host, tangent: Host) -> tuple[Node, float]:
        """The point of the curve near ``x``, and the size of the largest correction that it took, beyond what noise explains.

        Broyden's method across the curve. The last correction is not evaluated again: what it changes in the ``alpha_a`` is
        part of their residual. Where few labels cost little they are asked first: what they miss hardly changes from node to
        node, so that one evaluation with all labels is mostly enough.
        """
        moving, largest = stage.moving, 0.0
        slope, last_x, last_ratios = origin.slope.copy(), origin.x, origin.log_ratios
        # What is left is counted in full where the slope may be far off, and by a share where it is measured: there it may be as
        # large as the error.
        known = self.ratios.has_rough and len(moving) > 1
        enough = self.ratios.accuracy.known_correction if known else self.ratios.accuracy.correction
        doubt = self.ratios.accuracy.doubt if known else 1.0
        rough_x, rough_ratios = x, None
        # A stage begins where a component is 0, and what few labels miss may be another there: tables may know it.
        if known and origin.missed is not None and len(stage.nodes) > 1:
            rough_ratios = self.differentiate(stage, Node(x, last_ratios, last_ratios, slope, np.nan))
            step = self._correction(moving, rough_ratios + origin.missed, slope, tangent)
            size = float(np.abs(step).max())
            if np.isfinite(size):
                largest, x = size, self.inside(stage, x, x + step * min(1.0, 1.0 / max(size, 1e-300)))
        for trial in range(self.ratios.accuracy.most_corrections):
            log_ratios, error = self.ratios.log_ratios(x, stage.learned)
            move = x - last_x
            if known and trial == 0:
                if rough_ratios is None:
                    rough_ratios = self.differentiate(stage, Node(x, log_ratios, error, slope, np.nan))
            elif move @ move > 0:
                slope = slope + np.outer(change(last_ratios, log_ratios) - slope @ move, move) / (move @ move)
            step = self._correction(moving, log_ratios, slope, tangent)
            size = float(np.abs(step).max())
            if not np.isfinite(size):
                return Node(x, log_ratios, error, slope, np.nan), np.inf
            noise = self._noise(moving, error, slope, tangent) if self.ratios.sampled else 0.0
            largest = max(largest, size - noise)
            if size <= (max(enough, float(error[moving].max())) if known else enough):
                break
            last_x, last_ratios = x, log_ratios
            wanted = x + step * min(1.0, 1.0 / size)
            x = self.inside(stage, x, wanted)
            if (x != wanted).any() and len(stage.nodes) == 1:
                # Back to the lowest overlap where it has just been left: noise, for this step is too short.
                step, largest, x = np.zeros_like(step), np.inf, last_x
                break
        else:
            step, largest = np.zeros_like(step), np.inf
        missed = None if rough_ratios is None else change(rough_ratios + slope @ (x - rough_x), log_ratios)
        moved = slope @ step
        log_ratios = np.where(np.isfinite(log_ratios), log_ratios + moved, log_ratios)
        log_alpha = float(log_ratios[moving].mean())
        residual = np.zeros(len(x))
        residual[moving] = doubt * np.abs(moved)[moving] + np.abs(log_ratios[moving] - log_alpha)
        end = self.inside(stage, x, x + step)
        return Node(end, log_ratios, error, slope, log_alpha, residual, missed), largest
