r"""Continuation of the fixed point of a problem whose components are learned one after the other.

Where no label sees the sign of a component, or components do not mix for another reason, overlaps that start diagonal stay
diagonal, and at a fixed point every component tells the sample ratio by itself:

.. math::

    \hat Q_{aa} = \kappa \alpha I_{aa}(Q)
    \quad\Longleftrightarrow\quad
    \alpha = \alpha_a(Q) := \frac{\hat Q_{aa}}{\kappa I_{aa}(Q)} \quad\text{for every learned } a.

A component that is not learned is stable below its ``alpha_a``, see ``component_ratios``. So fixed points are curves on which
the ``alpha_a`` of all learned components agree: no iteration in alpha, no critical slowing down. The curve is followed by a
predictor and a corrector in the logarithms of ``Qhat``; where ``alpha`` reaches the ``alpha_b`` of another component, b is
learned from there on, and the curve goes on in one dimension more: which one is next is found, not assumed. Where alpha
falls along the curve branches compete.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from smimbench.interfaces import offers
from smimbench.theory.component_ratios import ComponentRatios
from smimbench.theory.curve_stages import EXACT, SAMPLED, Accuracy, Node, Stage
from smimbench.theory.evaluations import Evaluations
from smimbench.theory.information import diagonals, information_at
from smimbench.theory.perfect_recovery import perfect_limit
from smimbench.theory.types import NOTHING, Bifurcation, Host

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smimbench.problem.problem import Problem

__all__ = ["Continuation"]

FAR_CORRECTION, FAR_SHARE = 0.12, 1.2
"""A node is tried again with half the step where its corrections exceed both this length and this share of the step."""

LARGEST_FIRST_STEP = 0.5
"""The first step of a stage grows up to this length where it fails; doubled, stages with more noise get started."""

MOST_TRIALS = 4
"""Points at which a bifurcation between two nodes is looked for; doubled, noise of sampled information is averaged over more."""

START = 1e-6
"""Largest Qhat at the first node of components that are learned from the beginning; below it everything is proportional."""


class Continuation:
    """Follows the curve of fixed points that starts at the prior mean.

    Parameters
    ----------
    problem : Problem
        Its components must decouple, see ``components_decouple``.

    Attributes
    ----------
    bifurcations : list of Bifurcation
        The components in the order in which they are learned; those that are learned from the beginning have alpha 0.
    stages : list of Stage
    highest : float
        Largest log alpha so far.
    finished : bool
        Whether the end of the curve has been reached.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.ratios = ComponentRatios(problem)
        self.bifurcations: list[Bifurcation] = []
        self.stages: list[Stage] = []
        self.finished = False
        self.perfect = perfect_limit(problem)
        self.highest = -np.inf
        self._begin()

    @property
    def accuracy(self) -> Accuracy:
        """How finely this curve is followed."""
        return SAMPLED if self.ratios.sampled else EXACT

    # -- beginning ----------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        P = self.problem.components
        Q, V = self.ratios.overlap(np.zeros(P))
        value, error = diagonals(information_at(self.problem, Q, V))
        at_once = [a for a in range(P) if self.ratios.critical[a] == 0 and value[a] > max(NOTHING, 3 * error[a])]
        self.ratios.informative = set(at_once)
        x = np.zeros(P)
        if at_once:
            x[at_once] = np.log(START * value[at_once] / value[at_once].max())
            log_ratios, error = self.ratios.log_ratios(x, at_once)
            self.bifurcations += [Bifurcation(a, 0.0, 0.0) for a in sorted(at_once, key=lambda a: -value[a])]
            slope = np.zeros((P, P))
            slope[at_once, at_once] = 1.0
            node = Node(x, log_ratios, error, slope, float(log_ratios[at_once].mean()))
            self.stages.append(Stage(list(at_once), list(at_once), [node]))
            return
        log_ratios, error = self.ratios.log_ratios(x, [])
        new = int(np.argmin(log_ratios))
        self._bifurcate(
            Node(x, log_ratios, error, np.zeros((P, P)), float(log_ratios[new])),
            Stage([], [], []),
            new,
            float(error[new]),
        )

    def _bifurcate(self, node: Node, stage: Stage, new: int, error: float) -> None:
        """Component ``new`` becomes unstable at ``node``: a stage with one dimension more starts there."""
        if not np.isfinite(node.log_alpha):
            self.finished = True
            return
        self.highest = max(self.highest, node.log_alpha)
        alpha = float(np.exp(self.highest))
        self.bifurcations.append(Bifurcation(new, alpha, alpha * error))
        x = node.x.copy()
        x[new] = 0.0
        start = replace(node, x=x, slope=node.slope.copy())
        start.slope[:, new] = 0.0
        self.stages.append(Stage([*stage.learned, new], [new], [start], list(stage.perfect)))

    # -- following the curve ------------------------------------------------------------------------------------------

    def follow(self, *, until: float | None = None) -> None:
        """Follow the curve to its end, or until alpha has passed ``until``."""
        while not self.finished:
            if until is not None and self.passed(until):
                return
            self._advance(self.stages[-1])

    def follow_bifurcations(self) -> None:
        """Follow the curve until every component has been learned or the curve ends."""
        while not self.finished and len(self.stages[-1].learned) < self.problem.components:
            self._advance(self.stages[-1])

    def passed(self, alpha: float) -> bool:
        """Whether the curve has gone beyond alpha and stands at its largest value."""
        node = self.stages[-1].nodes[-1]
        return (
            len(self.stages[-1].nodes) > 1 and node.log_alpha > np.log(alpha) + 0.02 and node.log_alpha >= self.highest
        )

    def _differentiate(self, stage: Stage, node: Node) -> None:
        """Finite differences of the log alpha_a at a node."""
        step = self.accuracy.difference
        for a in stage.moving:
            x = node.x.copy()
            x[a] += step
            log_ratios, _ = self.ratios.log_ratios(x, stage.learned)
            node.slope[:, a] = _change(node.log_ratios, log_ratios) / step

    def _tangent(self, stage: Stage, slope: Host) -> Host:
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

    def _correction(self, moving: list[int], log_ratios: Host, slope: Host, tangent: Host) -> Host:
        """Newton step across the curve that makes the moving components agree."""
        step = np.zeros(len(log_ratios))
        if len(moving) > 1:
            block = slope[np.ix_(moving, moving)]
            system = np.vstack([block[1:] - block[:1], tangent[moving]])
            wanted = np.append(log_ratios[moving[0]] - log_ratios[moving[1:]], 0.0)
            step[moving] = np.linalg.lstsq(system, wanted, rcond=1e-10)[0]
        return step

    def _inside(self, stage: Stage, start: Host, end: Host) -> Host:
        """``end``, but a learned component goes at most two thirds of the way back to its lowest overlap."""
        end = end.copy()
        for a in stage.moving:
            if a not in self.ratios.informative:
                end[a] = max(end[a], start[a] / 3)
        return end

    def _attempt(self, stage: Stage, origin: Node, x: Host, tangent: Host) -> tuple[Node, float]:
        """The point of the curve near ``x``, and the size of the largest correction that it took.

        Broyden's method across the curve. The last correction is not evaluated again: what it changes in the ``alpha_a`` is
        part of their residual.
        """
        moving, largest = stage.moving, 0.0
        slope, last_x, last_ratios = origin.slope.copy(), origin.x, origin.log_ratios
        for _ in range(self.accuracy.most_corrections):
            log_ratios, error = self.ratios.log_ratios(x, stage.learned)
            move = x - last_x
            if move @ move > 0:
                slope = slope + np.outer(_change(last_ratios, log_ratios) - slope @ move, move) / (move @ move)
            step = self._correction(moving, log_ratios, slope, tangent)
            size = float(np.abs(step).max())
            if not np.isfinite(size):
                return Node(x, log_ratios, error, slope, np.nan), np.inf
            largest = max(largest, size)
            if size <= self.accuracy.correction:
                break
            last_x, last_ratios = x, log_ratios
            wanted = x + step * min(1.0, 1.0 / size)
            x = self._inside(stage, x, wanted)
            if (x != wanted).any() and len(stage.nodes) == 1:
                # Back to the lowest overlap where it has just been left: noise, for this step is too short.
                step, largest, x = np.zeros_like(step), np.inf, last_x
                break
        else:
            step, largest = np.zeros_like(step), np.inf
        change = slope @ step
        log_ratios = np.where(np.isfinite(log_ratios), log_ratios + change, log_ratios)
        log_alpha = float(log_ratios[moving].mean())
        residual = np.zeros(len(x))
        residual[moving] = np.abs(change)[moving] + np.abs(log_ratios[moving] - log_alpha)
        return Node(self._inside(stage, x, x + step), log_ratios, error, slope, log_alpha, residual), largest

    def _advance(self, stage: Stage) -> None:
        first = len(stage.nodes) == 1
        last = stage.nodes[-1]
        if first and self._immediate(stage):
            return
        if first and (len(stage.moving) > 1 or not self.ratios.sampled):
            self._differentiate(stage, last)
        tangent = self._tangent(stage, last.slope)
        low, high = self.accuracy.shortest, self.accuracy.longest
        grown = shrunk = False
        while True:
            step = stage.step
            node, correction = self._attempt(stage, last, last.x + step * tangent, tangent)
            tolerance = max(self.accuracy.mismatch, float(np.max(node.error[stage.moving])))
            mismatch = self._mismatch(stage, last, node)
            if first and len(stage.moving) == 1 and self.ratios.sampled:
                mismatch = tolerance  # there is no slope yet to compare with
            backwards = float((node.x - last.x) @ tangent) <= 0
            poor = not np.isfinite(node.log_alpha) or correction > max(FAR_CORRECTION, FAR_SHARE * step) or backwards
            factor = np.sqrt(tolerance / max(mismatch, 1e-12)) if np.isfinite(mismatch) else 0.3
            stage.step = float(np.clip(step * np.clip(factor, 0.3, 2.0), low, high))
            if not poor and (mismatch <= 3 * tolerance or grown):
                break
            if step <= low:
                break
            lost = first and self.ratios.sampled and not np.isfinite(correction)
            if lost and step < LARGEST_FIRST_STEP and not shrunk:
                # The noise of a component that is hardly learned falls as its overlap grows.
                stage.step, grown = 2 * step, True
            else:
                stage.step, shrunk = max(low, min(stage.step, step / 2)), True
        if not np.isfinite(node.log_alpha):
            self.finished = True
            return
        if not self.ratios.sampled:
            self._differentiate(stage, node)
        stage.direction = (node.x - last.x) / np.linalg.norm(node.x - last.x)
        if self._bifurcation_between(stage, last, node, tangent):
            return
        stage.nodes.append(node)
        self.highest = max(self.highest, node.log_alpha)
        Evaluations.of(self.problem).watch(float(np.exp(self.highest)))
        self._check_end(stage, node)

    def _mismatch(self, stage: Stage, last: Node, node: Node) -> float:
        """Distance of log alpha at a new node from its extrapolation, by the tangent or by the parabola of three nodes."""
        line = last.log_alpha + float((last.slope @ (node.x - last.x))[stage.moving].mean())
        found = abs(node.log_alpha - line)
        if len(stage.nodes) > 2:
            s, _, log_alpha = stage.arrays()
            end = s[-1] + float(np.linalg.norm(node.x - last.x))
            parabola = float(_parabola(s[-3:], log_alpha[-3:], end))
            found = min(found, abs(node.log_alpha - parabola))
        return float(found)

    def _immediate(self, stage: Stage) -> bool:
        """Another component may be unstable already where a stage starts, or may have to wait for its own alpha."""
        node = stage.nodes[0]
        if stage.moving:
            waiting = self._waiting(stage, node)
            if not waiting or self.highest == -np.inf:
                return False
            self._bifurcate(node, stage, waiting[0], float(node.error[waiting[0]]))
            return True
        others = [a for a in range(len(node.log_ratios)) if a not in stage.learned]
        new = min(others, key=lambda a: node.log_ratios[a])
        node = replace(node, log_alpha=float(node.log_ratios[new]))
        self._bifurcate(node, stage, new, float(node.error[new]))
        return True

    def _waiting(self, stage: Stage, node: Node) -> list[int]:
        """Components that are unstable at a node, the most unstable first."""
        others = [a for a in range(len(node.log_ratios)) if a not in stage.learned]
        return sorted((a for a in others if node.log_ratios[a] <= node.log_alpha), key=lambda a: node.log_ratios[a])

    def _bifurcation_between(self, stage: Stage, last: Node, node: Node, tangent: Host) -> bool:
        """Look for a component that becomes unstable between two nodes, on the part that is reached from below."""
        if node.log_alpha < self.highest:
            return False  # alpha falls here: the curve is an unstable branch
        unstable = self._waiting(stage, node)
        if not unstable:
            return False
        landing = 0.0
        if last.log_alpha < self.highest - 1e-12:
            landing = (self.highest - last.log_alpha) / max(node.log_alpha - last.log_alpha, 1e-300)

        def gap(point: Node, a: int) -> float:
            return point.log_alpha - float(point.log_ratios[a])

        def crossing(a: int) -> float:
            gaps = gap(last, a), gap(node, a)
            where = -gaps[0] / (gaps[1] - gaps[0]) if np.isfinite(gaps[0]) and gaps[1] > gaps[0] else 0.0
            return float(np.clip(where, landing, 1.0))

        new = min(unstable, key=crossing)
        points, where = [(0.0, last), (1.0, node)], crossing(new)
        for _ in range(MOST_TRIALS):
            found, _ = self._attempt(stage, last, last.x + where * (node.x - last.x), tangent)
            points.append((where, found))
            left = gap(found, new)
            close = abs(left) <= max(self.accuracy.gap, 0.1 * found.error[new])
            if not np.isfinite(left) or close or (where <= landing and left > 0):
                break
            where = float(np.clip(self._crossing(points, new), landing, 1.0))
        where, found = min(points[2:], key=lambda point: abs(gap(point[1], new)))
        # What is left of the gap is removed along the curve, on which log alpha rises so much for every change of the gap.
        positions, gaps, log_alphas = _finite(points, new)
        order = np.argsort(np.abs(gaps))[:2]
        if self.ratios.sampled or len(order) < 2:
            order = np.arange(len(gaps))
        steep, rise = (np.polyfit(positions[order], values[order], 1)[0] for values in (gaps, log_alphas))
        share = float(np.clip(rise / steep, -10, 10)) if steep != 0 else 0.0
        own = self._crossing_error(stage, new, found, node.x - last.x, rise, rise - steep)
        error = float(own + abs(share * gap(found, new)))
        log_alpha = found.log_alpha - share * gap(found, new)
        if where > 0:
            stage.nodes.append(found)
        self.highest = max(self.highest, found.log_alpha)
        start = replace(found, log_alpha=max(log_alpha, self.highest if landing else -np.inf))
        self._bifurcate(start, stage, new, error)
        return True

    def _crossing_error(self, stage: Stage, new: int, at: Node, step: Host, rise: float, other: float) -> float:
        """Error of log alpha where component ``new`` becomes unstable.

        To first order the errors e of the ``log alpha_a`` move the coordinates of the moving components, too:
        ``slope_a . dx + e_a`` is the same for all of them and for the new one. Along the ``step`` between two nodes they are
        known to change by ``rise`` and ``other``.
        """
        moving = stage.moving
        rows, step = [*moving, new], step[moving]
        block = np.nan_to_num(at.slope[np.ix_(rows, moving)])
        along = np.array([rise] * len(moving) + [other])
        block = block + np.outer(along - block @ step, step) / (step @ step)
        weights = np.linalg.pinv(np.hstack([block, -np.ones((len(rows), 1))]), rcond=1e-6)[-1]
        errors = np.append(at.total_error[moving], at.error[new])
        return float(np.sqrt((weights**2) @ errors**2))

    def _crossing(self, points: list[tuple[float, Node]], new: int) -> float:
        """Where component ``new`` becomes unstable, from what is known at some points between two nodes."""
        positions, gaps, _ = _finite(points, new)
        if not self.ratios.sampled:
            return _root(positions.tolist(), gaps.tolist())
        # Noise decides where the nearest points cross zero: the parabola of all of them is moved by it least.
        fit = np.polynomial.Polynomial.fit(positions, gaps, min(2, len(gaps) - 1))
        roots = fit.roots()
        inside = roots.real[(np.abs(roots.imag) < 1e-9) & (roots.real >= 0) & (roots.real <= 1)]
        line = np.polynomial.Polynomial.fit(positions, gaps, 1).roots()
        return float(inside[0] if len(inside) else line[0].real if len(line) else positions[np.argmin(np.abs(gaps))])

    def _check_end(self, stage: Stage, node: Node) -> None:
        P = self.problem.components
        qhat = self.ratios.qhat(node.x, stage.learned)
        V = np.diagonal(self.ratios.overlap(qhat)[1], axis1=-2, axis2=-1)
        small = (
            self.perfect is not None
            and len(stage.learned) == P
            and bool((self.ratios.second * self.accuracy.smallest_error > V).all())
        )
        if (
            small
            or np.exp(node.log_alpha) > self.accuracy.largest_ratio
            or sum(len(s.nodes) for s in self.stages) > self.accuracy.most_nodes
        ):
            self.finished = True
            return
        done = [a for a in stage.moving if qhat[a] > self.accuracy.highest]
        together = len(stage.learned) == P and offers(self.problem.channel, "equations")
        if done and together and self.perfect is not None and bool((self.ratios.second * 1e-2 > V).all()):
            # Components that share their equations reach the end together, whatever the ratio of their errors.
            self.finished = True
            return
        if done:
            # Recovered, as far as numbers go, before the others: it stays behind.
            perfect = [*stage.perfect, *done]
            if len(perfect) == P:
                self.finished = True
                return
            start = replace(node, slope=node.slope.copy())
            start.slope[:, done] = 0.0
            rest = [a for a in stage.moving if a not in done]
            self.stages.append(Stage(list(stage.learned), rest, [start], perfect, stage.step))


def _finite(points: list[tuple[float, Node]], new: int) -> tuple[Host, Host, Host]:
    """Positions between two nodes, gaps of log alpha to that of component ``new``, log alpha: where all are finite."""
    rows = np.array([(where, node.log_alpha - node.log_ratios[new], node.log_alpha) for where, node in points])
    rows = rows[np.isfinite(rows).all(axis=1)]
    return rows[:, 0], rows[:, 1], rows[:, 2]


def _change(first: Host, second: Host) -> Host:
    """Difference where both are finite, 0 elsewhere."""
    both = np.isfinite(first) & np.isfinite(second)
    return np.where(both, np.where(both, second, 0.0) - np.where(both, first, 0.0), 0.0)


def _parabola(t: Host, values: Host, end: float) -> Host:
    """The parabola through three points ``(t_k, values_k)``, at ``end``."""
    a, b, c = t - end
    weights = np.array([b * c / ((a - b) * (a - c)), a * c / ((b - a) * (b - c)), a * b / ((c - a) * (c - b))])
    return np.asarray(weights @ values)


def _root(positions: Sequence[float], gaps: Sequence[float]) -> float:
    """Root of the parabola through the three points nearest to zero, or of the line through the two that bracket it."""
    s, g = np.asarray(positions), np.asarray(gaps)
    left = max((i for i in range(len(g)) if g[i] <= 0), key=lambda i: g[i], default=int(np.argmin(s)))
    right = min((i for i in range(len(g)) if g[i] > 0), key=lambda i: g[i], default=int(np.argmax(s)))
    line = s[left] - g[left] * (s[right] - s[left]) / (g[right] - g[left]) if g[right] != g[left] else s[left]
    order = np.argsort(np.abs(g))[:3]
    if len(order) == 3 and len(set(g[order])) == 3:
        a, b, c = g[order]
        inverse = (
            s[order[0]] * b * c / ((a - b) * (a - c))
            + s[order[1]] * a * c / ((b - a) * (b - c))
            + s[order[2]] * a * b / ((c - a) * (c - b))
        )
        if min(s[left], s[right]) <= inverse <= max(s[left], s[right]):
            return float(inverse)
    return float(line)
