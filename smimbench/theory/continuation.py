r"""Continuation of the fixed point of a problem whose components are learned one after the other: stage by stage, from
bifurcation to bifurcation.

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

from smimbench.theory.component_ratios import ComponentRatios
from smimbench.theory.corrector import Corrector
from smimbench.theory.curve_stages import Node, Stage, change, finite_gaps, polynomial, root_of_gaps
from smimbench.theory.information import Evaluations, diagonals, information_at
from smimbench.theory.perfect_recovery import perfect_limit
from smimbench.theory.types import NOTHING, Bifurcation, Host

if TYPE_CHECKING:
    from smimbench.problem.problem import Problem

__all__ = ["Continuation"]

MOST_FITTED = 4
"""Conditions by which a curve of sampled nodes is continued; doubled, their noise is amplified more than bends are met."""


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
        self.corrector = Corrector(self.ratios)
        self.bifurcations: list[Bifurcation] = []
        self.stages: list[Stage] = []
        self.finished = False
        self.perfect = perfect_limit(problem)
        self.highest = -np.inf
        self._begin()

    # -- beginning ----------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        P = self.problem.components
        Q, V = self.ratios.overlap(np.zeros(P))
        value, error = diagonals(information_at(self.problem, Q, V))
        at_once = [a for a in range(P) if self.ratios.critical[a] == 0 and value[a] > max(NOTHING, 3 * error[a])]
        self.ratios.informative = set(at_once)
        x = np.zeros(P)
        if at_once:  # below so little everything is proportional to alpha
            x[at_once] = np.log(1e-6 * value[at_once] / value[at_once].max())
            log_ratios, error = self.ratios.log_ratios(x, at_once)
            self.bifurcations += [Bifurcation(a, 0.0, 0.0) for a in sorted(at_once, key=lambda a: -value[a])]
            slope = np.zeros((P, P))
            slope[at_once, at_once] = 1.0
            node = Node(x, log_ratios, error, slope, float(log_ratios[at_once].mean()))
            self.stages.append(Stage(list(at_once), list(at_once), [node], step=self.ratios.accuracy.first))
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
        self.stages.append(
            Stage([*stage.learned, new], [new], [start], list(stage.perfect), self.ratios.accuracy.first)
        )

    # -- following the curve ------------------------------------------------------------------------------------------

    def follow(self, *, until: float | None = None) -> None:
        """Follow the curve to its end, or until alpha has passed ``until``."""
        while not self.finished:
            if until is not None and self.passed(until):
                return
            self._advance(self.stages[-1])

    def follow_bifurcations(self, count: int | None = None) -> None:
        """Follow the curve until so many components have been learned (all, unless said) or the curve ends."""
        wanted = self.problem.components if count is None else count
        while not self.finished and len(self.stages[-1].learned) < wanted:
            self._advance(self.stages[-1])

    def passed(self, alpha: float) -> bool:
        """Whether the curve has gone beyond alpha and stands at its largest value."""
        node = self.stages[-1].nodes[-1]
        return (
            len(self.stages[-1].nodes) > 1 and node.log_alpha > np.log(alpha) + 0.02 and node.log_alpha >= self.highest
        )

    def _advance(self, stage: Stage) -> None:
        first = len(stage.nodes) == 1
        last = stage.nodes[-1]
        if first and self._immediate(stage):
            return
        if first and (len(stage.moving) > 1 or not self.ratios.sampled):
            self.corrector.differentiate(stage, last)
        tangent = self.corrector.tangent(stage, last.slope)
        low, high = self.ratios.accuracy.shortest, self.ratios.accuracy.longest
        grown = shrunk = False
        if self.ratios.sampled:
            stage.step = float(np.clip(self._next_bifurcation(stage), low, stage.step))
        node = self._found_ahead(stage, last)
        while node is None:
            step = stage.step
            node, correction = self.corrector.attempt(stage, last, *self._ahead(stage, tangent, step))
            tolerance = max(self.ratios.accuracy.mismatch, float(np.max(node.error[stage.moving])))
            mismatch = self._mismatch(stage, last, node)
            if first and len(stage.moving) == 1 and self.ratios.sampled:
                mismatch = tolerance  # there is no slope yet to compare with
            backwards = float((node.x - last.x) @ tangent) <= 0
            poor = not np.isfinite(node.log_alpha) or correction > max(0.12, 1.2 * step) or backwards
            factor = np.sqrt(tolerance / max(mismatch, 1e-12)) if np.isfinite(mismatch) else 0.3
            stage.step = float(np.clip(step * np.clip(factor, 0.3, self.ratios.accuracy.growth), low, high))
            if not poor and (mismatch <= 3 * tolerance or grown):
                break
            if step <= low:
                break
            lost = first and self.ratios.sampled and not np.isfinite(correction)
            if lost and step < 0.5 and not shrunk:
                # The noise of a component that is hardly learned falls as its overlap grows.
                stage.step, grown = 2 * step, True
            else:
                stage.step, shrunk = max(low, min(stage.step, step / 2)), True
                if self.ratios.sampled and not poor:
                    stage.ahead.append(node)
            node = None
        if not np.isfinite(node.log_alpha):
            self.finished = True
            return
        if not self.ratios.sampled:
            self.corrector.differentiate(stage, node)
        stage.direction = (node.x - last.x) / np.linalg.norm(node.x - last.x)
        if self._bifurcation_between(stage, last, node, tangent):
            return
        self.finished, beyond = self._at_perfect(stage, last, node)
        if beyond:
            return
        stage.nodes.append(node)
        self.highest = max(self.highest, node.log_alpha)
        Evaluations.of(self.problem).watch(float(np.exp(self.highest)))
        self._check_end(stage, node)

    def _next_bifurcation(self, stage: Stage) -> float:
        """How far ahead another component is expected to become unstable, and a little more: from the last two nodes."""
        if len(stage.nodes) < 2:
            return np.inf
        one, two = stage.nodes[-2:]
        gaps = [point.log_alpha - point.log_ratios for point in (one, two)]
        rise = change(gaps[0], gaps[1])
        coming = [a for a in range(len(rise)) if a not in stage.learned and rise[a] > 0 > gaps[1][a]]
        steps = min((-gaps[1][a] / rise[a] for a in coming), default=np.inf)
        return 1.15 * float(steps * np.linalg.norm(two.x - one.x))

    def _found_ahead(self, stage: Stage, last: Node) -> Node | None:
        """The next of the nodes that were found too early, if the curve up to it is known well enough now."""
        if not stage.ahead:
            return None
        node = stage.ahead[-1]
        tolerance = max(self.ratios.accuracy.mismatch, float(np.max(node.error[stage.moving])))
        distance = float(np.linalg.norm(node.x - last.x))
        if self._mismatch(stage, last, node) <= 3 * tolerance or distance <= 2 * self.ratios.accuracy.shortest:
            return stage.ahead.pop()
        # Somewhere on the way, not just before its end.
        stage.step = min(stage.step, distance if stage.step < 0.7 * distance else distance / 2)
        return None

    def _ahead(self, stage: Stage, tangent: Host, step: float) -> tuple[Host, Host]:
        """Where the curve is expected after a step, and its direction there.

        Sampled nodes are expensive: the curve through the last few, and along its tangent at the last, is continued. Equal random
        points at all nodes give them similar errors, which hardly bend it.
        """
        origin = stage.nodes[-1].x
        line = origin + step * tangent
        known = [*stage.nodes[1 - MOST_FITTED :], *stage.ahead[-1:]]
        if not self.ratios.has_rough or len(stage.moving) == 1 or len(known) < 2:
            return line, tangent
        s, x, _ = Stage(stage.learned, stage.new, known).arrays()
        at = len(known) - len(stage.ahead[-1:])
        near = 1e-3 * step
        s = np.insert(s - s[at - 1], at, near)
        x = np.insert(x, at, origin + near * tangent, axis=0)
        end, before = (polynomial(s, x, factor * step) for factor in (1.0, 0.95))
        if not np.linalg.norm(end - line) < step / 2:
            return line, tangent
        end = self.corrector.inside(stage, origin, end)
        direction = end - before
        return end, direction / np.linalg.norm(direction)

    def _mismatch(self, stage: Stage, last: Node, node: Node) -> float:
        """Distance of log alpha at a new node from its extrapolation, by the tangent or by a polynomial of more nodes."""
        line = last.log_alpha + float((last.slope @ (node.x - last.x))[stage.moving].mean())
        found = abs(node.log_alpha - line)
        s, _, log_alpha = stage.arrays()
        end = s[-1] + float(np.linalg.norm(node.x - last.x))
        for count in range(3, min(len(s), MOST_FITTED if self.ratios.sampled else 3) + 1):
            found = min(found, abs(node.log_alpha - float(polynomial(s[-count:], log_alpha[-count:], end))))
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

        fitted = [*stage.nodes[1 - MOST_FITTED :], node] if self.ratios.sampled else [last, node]
        s = Stage(stage.learned, stage.new, fitted).arrays()[0]
        s = (s - s[-2]) / (s[-1] - s[-2])

        def crossing(a: int) -> float:
            gaps = np.array([gap(point, a) for point in fitted])
            if not (np.isfinite(gaps[-2]) and gaps[-1] > gaps[-2]):
                return float(np.clip(0.0, landing, 1.0))
            where = -gaps[-2] / (gaps[-1] - gaps[-2])
            finite = np.isfinite(gaps)
            if finite.sum() > 2 and gaps[-2] < 0 < gaps[-1]:
                from scipy.optimize import brentq

                where = brentq(lambda t: float(polynomial(s[finite], gaps[finite], t)), 0.0, 1.0)
            return float(np.clip(where, landing, 1.0))

        def between(where: float) -> Host:
            if len(stage.moving) == 1 or not self.ratios.sampled:
                return np.asarray(last.x + where * (node.x - last.x))
            return self.corrector.inside(stage, last.x, polynomial(s, np.array([point.x for point in fitted]), where))

        new = min(unstable, key=crossing)
        points, where = [(0.0, last), (1.0, node)], crossing(new)
        for _ in range(4):
            origin = node if self.ratios.sampled and where > 0.5 else last
            found, _ = self.corrector.attempt(stage, origin, between(where), tangent)
            points.append((where, found))
            left = gap(found, new)
            close = abs(left) <= max(self.ratios.accuracy.gap, self.ratios.accuracy.gap_share * found.error[new])
            if not np.isfinite(left) or close or (where <= landing and left > 0):
                break
            where = float(np.clip(self._crossing(points, new), landing, 1.0))
        where, found = min(points[2:], key=lambda point: abs(gap(point[1], new)))
        # What is left of the gap is removed along the curve, on which log alpha rises so much for every change of the gap.
        positions, gaps, log_alphas = finite_gaps(points, new)
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
        positions, gaps, _ = finite_gaps(points, new)
        if not self.ratios.sampled:
            return root_of_gaps(positions.tolist(), gaps.tolist())
        # Noise decides where the nearest points cross zero: the parabola of all of them is moved by it least.
        fit = np.polynomial.Polynomial.fit(positions, gaps, min(2, len(gaps) - 1))
        roots = fit.roots()
        inside = roots.real[(np.abs(roots.imag) < 1e-9) & (roots.real >= 0) & (roots.real <= 1)]
        line = np.polynomial.Polynomial.fit(positions, gaps, 1).roots()
        return float(inside[0] if len(inside) else line[0].real if len(line) else positions[np.argmin(np.abs(gaps))])

    def _at_perfect(self, stage: Stage, last: Node, node: Node) -> tuple[bool, bool]:
        """Whether a sampled node is indistinguishable from perfect recovery, and whether it lies beyond it."""
        if self.perfect is None or not self.ratios.sampled or len(stage.learned) < self.problem.components:
            return False, False
        V = np.diagonal(self.ratios.overlap(self.ratios.qhat(node.x, stage.learned))[1], axis1=-2, axis2=-1)
        end = float(np.log(self.perfect.value)) if self.perfect.value > 0 else -np.inf
        before, missing = (point.log_alpha - end for point in (last, node))
        small = bool((1e-2 * self.ratios.second > V).all())
        reached = small and abs(missing) < float(node.total_error[stage.moving].max())
        return reached, reached and before * missing <= 0

    def _check_end(self, stage: Stage, node: Node) -> None:
        P = self.problem.components
        qhat = self.ratios.qhat(node.x, stage.learned)
        V = np.diagonal(self.ratios.overlap(qhat)[1], axis1=-2, axis2=-1)
        small = (
            self.perfect is not None
            and len(stage.learned) == P
            and bool((self.ratios.second * self.ratios.accuracy.smallest_error > V).all())
        )
        if (
            small
            or np.exp(node.log_alpha) > self.ratios.accuracy.largest_ratio
            or sum(len(s.nodes) for s in self.stages) > self.ratios.accuracy.most_nodes
        ):
            self.finished = True
            return
        done = [a for a in stage.moving if qhat[a] > self.ratios.accuracy.highest]
        together = len(stage.learned) == P and self.problem.channel.equations is not None
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
