r"""Numerical continuation of the curve of fixed points when components are learned one after the other.

Where no label sees the sign of a component, or components do not mix for another reason, overlaps that start diagonal stay
diagonal, and at a fixed point every component tells the sample ratio by itself:

.. math::

    \hat Q_{aa} = \kappa \alpha I_{aa}(Q)
    \quad\Longleftrightarrow\quad
    \alpha = \alpha_a(Q) := \frac{\hat Q_{aa}}{\kappa I_{aa}(Q)} \quad\text{for every learned } a.

A component that is not learned is stable below its ``alpha_a``, see ``tracing``. So fixed points are curves on which
the ``alpha_a`` of all learned components agree: no iteration in alpha, no critical slowing down. The curve is followed by a
predictor and a corrector in the logarithms of ``Qhat``; where ``alpha`` reaches the ``alpha_b`` of another component, b is
learned from there on, and the curve goes on in one dimension more: which one is next is found, not assumed. Where alpha
falls along the curve branches compete.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from smimbench.interfaces import Host
from smimbench.problem.problem import Problem
from smimbench.theory.curve import perfect_limit
from smimbench.theory.information import diagonals, information_at, nodes_of
from smimbench.theory.tracing import (
    ComponentRatios,
    Corrector,
    Node,
    Stage,
    change,
    lengths,
    polynomial,
)
from smimbench.theory.types import NOTHING, Bifurcation

MOST_FITTED = 4
"""Conditions by which a curve of sampled nodes is continued; doubled, their noise is amplified more than bends are met."""


class Continuation:
    """Numerical continuation of the curve of fixed points that starts at the prior mean.

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
    perfect : Threshold or None
        Where an error of zero becomes stable.
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
        P = problem.components
        Q, V = self.ratios.overlap(np.zeros(P))
        value, error = diagonals(information_at(problem, Q, V))
        at_once = [
            a
            for a in range(P)
            if self.ratios.critical[a] == 0 and value[a] > max(NOTHING, 3 * error[a])
        ]
        self.ratios.informative = set(at_once)
        x, slope = np.zeros(P), np.zeros((P, P))
        x[at_once] = np.log(
            1e-6 * value[at_once] / value.max()
        )  # below so little everything is proportional to alpha
        log_ratios, error = self.ratios.log_ratios(x, at_once)
        if at_once:
            self.bifurcations += [
                Bifurcation(a, 0.0, 0.0)
                for a in sorted(at_once, key=lambda a: -value[a])
            ]
            slope[at_once, at_once] = 1.0
            node = Node(x, log_ratios, error, slope, float(log_ratios[at_once].mean()))
            self.stages.append(
                Stage(at_once, at_once, [node], [], self.ratios.accuracy.first_step)
            )
        else:
            self._bifurcate_at_start(
                Stage([], [], [Node(x, log_ratios, error, slope, -np.inf)], [], 0.0)
            )

    def _bifurcate(
        self, node: Node, stage: Stage, component: int, error: float
    ) -> None:
        """Start a new stage at ``node``, where another component becomes unstable and is learned from there on."""
        self.finished = not np.isfinite(node.log_alpha)
        if self.finished:
            return
        self.highest = max(self.highest, node.log_alpha)
        alpha = float(np.exp(self.highest))
        self.bifurcations.append(Bifurcation(component, alpha, alpha * error))
        start = replace(node, x=node.x.copy(), slope=node.slope.copy())
        start.x[component] = start.slope[:, component] = 0.0
        self.stages.append(
            Stage(
                [*stage.learned, component],
                [component],
                [start],
                stage.perfect,
                self.ratios.accuracy.first_step,
            )
        )

    # -- following the curve ------------------------------------------------------------------------------------------

    def follow(self, *, until: float | None = None) -> None:
        """Trace the curve to its end, or until alpha exceeds ``until``."""
        while not self.finished and not (until is not None and self._has_passed(until)):
            self._advance(self.stages[-1])

    def _has_passed(self, alpha: float) -> bool:
        """Whether the traced curve has passed alpha and its last node has the largest alpha so far."""
        nodes = self.stages[-1].nodes
        return (
            len(nodes) > 1
            and nodes[-1].log_alpha > np.log(alpha) + 0.02
            and nodes[-1].log_alpha >= self.highest
        )

    def _advance(self, stage: Stage) -> None:
        accuracy, origin = self.ratios.accuracy, stage.nodes[-1]
        is_start = len(stage.nodes) == 1
        if is_start and self._bifurcate_at_start(stage):
            return
        if is_start and (len(stage.moving) > 1 or not self.ratios.sampled):
            self.corrector.differentiate(stage, origin)
        tangent = self.corrector.tangent(stage, origin.slope)
        stage.step = float(
            np.clip(self._next_bifurcation(stage), accuracy.shortest, stage.step)
        )
        node = self._next_node_ahead(stage, origin)
        grown = shrunk = False
        while node is None:
            step = stage.step
            node, correction = self.corrector.attempt(
                stage, origin, *self._extrapolated(stage, tangent, step)
            )
            tolerance, mismatch = (
                self._tolerance(stage, node),
                self._mismatch(stage, origin, node),
            )
            if is_start and len(stage.moving) == 1 and self.ratios.sampled:
                mismatch = tolerance  # there is no slope yet to compare with
            backwards = float((node.x - origin.x) @ tangent) <= 0
            poor = (
                not np.isfinite(node.log_alpha)
                or correction > max(0.12, 1.2 * step)
                or backwards
            )
            factor = (
                np.sqrt(tolerance / max(mismatch, 1e-12))
                if np.isfinite(mismatch)
                else 0.3
            )
            stage.step = float(
                np.clip(
                    step * np.clip(factor, 0.3, accuracy.growth),
                    accuracy.shortest,
                    accuracy.longest,
                )
            )
            if step <= accuracy.shortest or (
                not poor and (mismatch <= 3 * tolerance or grown)
            ):
                break
            if is_start and not np.isfinite(correction) and step < 0.5 and not shrunk:
                # The noise of a component that is hardly learned falls as its overlap grows.
                stage.step, grown = 2 * step, True
            else:
                stage.step, shrunk = (
                    max(accuracy.shortest, min(stage.step, step / 2)),
                    True,
                )
                if self.ratios.sampled and not poor:
                    stage.ahead.append(node)
            node = None
        if not np.isfinite(node.log_alpha):
            self.finished = True
            return
        if not self.ratios.sampled:
            self.corrector.differentiate(stage, node)
        stage.direction = (node.x - origin.x) / np.linalg.norm(node.x - origin.x)
        if self._bifurcation_between(stage, origin, node, tangent):
            return
        self.finished, beyond = self._at_perfect(stage, origin, node)
        if beyond:
            return
        stage.nodes.append(node)
        self.highest = max(self.highest, node.log_alpha)
        nodes_of(self.problem).reached(float(np.exp(self.highest)))
        self._check_end(stage, node)

    def _tolerance(self, stage: Stage, node: Node) -> float:
        return max(
            self.ratios.accuracy.mismatch, float(np.max(node.error[stage.moving]))
        )

    def _next_node_ahead(self, stage: Stage, origin: Node) -> Node | None:
        """Next of the nodes computed ahead, if the curve up to it is known accurately enough; otherwise None."""
        if not stage.ahead:
            return None
        node = stage.ahead[-1]
        distance = float(np.linalg.norm(node.x - origin.x))
        is_accurate = self._mismatch(stage, origin, node) <= 3 * self._tolerance(
            stage, node
        )
        if is_accurate or distance <= 2 * self.ratios.accuracy.shortest:
            return stage.ahead.pop()
        # Somewhere on the way, not just before its end.
        stage.step = min(
            stage.step, distance if stage.step < 0.7 * distance else distance / 2
        )
        return None

    def _next_bifurcation(self, stage: Stage) -> float:
        """Extrapolated distance to the next bifurcation, plus a margin, from the last two nodes."""
        if len(stage.nodes) < 2:
            return np.inf
        previous, latest = stage.nodes[-2:]
        gaps = latest.log_alpha - latest.log_ratios
        rise = change(previous.log_alpha - previous.log_ratios, gaps)
        candidates = [
            a
            for a in range(len(rise))
            if a not in stage.learned and rise[a] > 0 > gaps[a]
        ]
        steps = min((-gaps[a] / rise[a] for a in candidates), default=np.inf)
        return 1.15 * float(steps * np.linalg.norm(latest.x - previous.x))

    def _extrapolated(
        self, stage: Stage, tangent: Host, step: float
    ) -> tuple[Host, Host]:
        """Extrapolate the curve: expected position after a step, and the direction there.

        Sampled nodes are expensive: the curve through the last few, and along its tangent at the last, is continued. Equal random
        points at all nodes give them similar errors, which hardly bend it.
        """
        origin = stage.nodes[-1].x
        line = origin + step * tangent
        nodes = [*stage.nodes[1 - MOST_FITTED :], *stage.ahead[-1:]]
        if not self.ratios.has_rough or len(stage.moving) == 1 or len(nodes) < 2:
            return line, tangent
        s, at, near = lengths(nodes), len(nodes) - len(stage.ahead[-1:]), 1e-3 * step
        s = np.insert(s - s[at - 1], at, near)
        x = np.insert([node.x for node in nodes], at, origin + near * tangent, axis=0)
        end, previous = (polynomial(s, x, factor * step) for factor in (1.0, 0.95))
        if not np.linalg.norm(end - line) < step / 2:
            return line, tangent
        end = self.corrector.inside(stage, origin, end)
        return end, (end - previous) / np.linalg.norm(end - previous)

    def _mismatch(self, stage: Stage, origin: Node, node: Node) -> float:
        """Difference between log alpha at a new node and its extrapolation from earlier nodes."""
        line = origin.log_alpha + float(
            (origin.slope @ (node.x - origin.x))[stage.moving].mean()
        )
        s, values = (
            lengths(stage.nodes),
            [known_node.log_alpha for known_node in stage.nodes],
        )
        end = s[-1] + float(np.linalg.norm(node.x - origin.x))
        counts = range(3, min(len(s), MOST_FITTED if self.ratios.sampled else 3) + 1)
        expected = [
            line,
            *(float(polynomial(s[-count:], values[-count:], end)) for count in counts),
        ]
        return float(np.abs(node.log_alpha - np.array(expected)).min())

    def _bifurcate_at_start(self, stage: Stage) -> bool:
        """Start the next stage at once if another component is already unstable where this stage starts."""
        node = stage.nodes[0]
        unlearned = [a for a in range(len(node.log_ratios)) if a not in stage.learned]
        component = min(unlearned, key=lambda a: node.log_ratios[a], default=None)
        if component is None or (
            stage.moving
            and (self.highest == -np.inf or node.log_ratios[component] > node.log_alpha)
        ):
            return False
        node = (
            node
            if stage.moving
            else replace(node, log_alpha=float(node.log_ratios[component]))
        )
        self._bifurcate(node, stage, component, float(node.error[component]))
        return True

    def _bifurcation_between(
        self, stage: Stage, origin: Node, node: Node, tangent: Host
    ) -> bool:
        """Locate the bifurcation between two nodes, where another component becomes unstable, if there is one."""
        unlearned = (a for a in range(len(node.log_ratios)) if a not in stage.learned)
        unstable = [a for a in unlearned if node.log_ratios[a] <= node.log_alpha]
        if not unstable or node.log_alpha < self.highest:
            return False  # where alpha falls, the curve is an unstable branch
        landing = 0.0
        if origin.log_alpha < self.highest - 1e-12:
            landing = (self.highest - origin.log_alpha) / max(
                node.log_alpha - origin.log_alpha, 1e-300
            )
        fitted = [*stage.nodes[1 - MOST_FITTED :], node]
        s = lengths(fitted)
        s = (s - s[-2]) / (s[-1] - s[-2])

        def crossing(a: int) -> float:
            gaps = np.array([point.log_alpha - point.log_ratios[a] for point in fitted])
            finite = np.isfinite(gaps)
            if not finite[-2] or gaps[-1] <= gaps[-2]:
                return min(landing, 1.0)
            position = -gaps[-2] / (gaps[-1] - gaps[-2])
            if finite.sum() > 2 and gaps[-2] < 0 < gaps[-1]:
                from scipy.optimize import brentq

                position = brentq(
                    lambda t: float(polynomial(s[finite], gaps[finite], t)), 0.0, 1.0
                )
            return float(np.clip(position, landing, 1.0))

        def between(position: float) -> Host:
            if len(stage.moving) == 1:
                return np.asarray(origin.x + position * (node.x - origin.x))
            return self.corrector.inside(
                stage, origin.x, polynomial(s, [point.x for point in fitted], position)
            )

        def gap(point: Node) -> float:
            return point.log_alpha - float(point.log_ratios[component])

        def points_near(count: int) -> Host:
            """Positions, gaps and log alphas of the points nearest to the crossing, or of all if noise hides it."""
            rows = np.array(
                [(position, gap(point), point.log_alpha) for position, point in points]
            )
            rows = rows[np.isfinite(rows).all(axis=1)]
            return np.transpose(
                rows
                if self.ratios.sampled
                else rows[np.argsort(np.abs(rows[:, 1]))[:count]]
            )

        component = min(unstable, key=crossing)
        points, position = [(0.0, origin), (1.0, node)], crossing(component)
        for _ in range(4):
            crossing_node, _ = self.corrector.attempt(
                stage, node if position > 0.5 else origin, between(position), tangent
            )
            points.append((position, crossing_node))
            resolution = max(
                self.ratios.accuracy.gap,
                self.ratios.accuracy.gap_share * crossing_node.error[component],
            )
            if not abs(gap(crossing_node)) > resolution or (
                position <= landing and gap(crossing_node) > 0
            ):
                break
            position = float(np.clip(_crossing(*points_near(3)[:2]), landing, 1.0))
        position, crossing_node = min(points[2:], key=lambda point: abs(gap(point[1])))
        # What is left of the gap is removed along the curve, on which log alpha rises so much for every change of the gap.
        positions, *values = points_near(2)
        steep, rise = (np.polyfit(positions, value, 1)[0] for value in values)
        share = float(np.clip(rise / steep, -10, 10)) if steep != 0 else 0.0
        crossing_error = self._crossing_error(
            stage, component, crossing_node, node.x - origin.x, rise, rise - steep
        )
        log_alpha = crossing_node.log_alpha - share * gap(crossing_node)
        if position > 0:
            stage.nodes.append(crossing_node)
        self.highest = max(self.highest, crossing_node.log_alpha)
        bifurcation = replace(
            crossing_node,
            log_alpha=max(log_alpha, self.highest if landing else -np.inf),
        )
        self._bifurcate(
            bifurcation,
            stage,
            component,
            float(crossing_error + abs(share * gap(crossing_node))),
        )
        return True

    def _crossing_error(
        self,
        stage: Stage,
        component: int,
        at: Node,
        step: Host,
        rise: float,
        rise_of_new: float,
    ) -> float:
        """Numerical error of log alpha at a bifurcation, where another component becomes unstable.

        To first order the errors e of the ``log alpha_a`` move the coordinates of the moving components, too:
        ``slope_a . dx + e_a`` is the same for all of them and for the new one. Along the ``step`` between two nodes they are
        known to change by ``rise`` and ``other``.
        """
        moving = stage.moving
        rows, step = [*moving, component], step[moving]
        block = np.nan_to_num(at.slope[np.ix_(rows, moving)])
        along = np.array([rise] * len(moving) + [rise_of_new])
        block = block + np.outer(along - block @ step, step) / (step @ step)
        weights = np.linalg.pinv(
            np.hstack([block, -np.ones((len(rows), 1))]), rcond=1e-6
        )[-1]
        errors = np.append(at.total_error[moving], at.error[component])
        return float(np.sqrt((weights**2) @ errors**2))

    def _at_perfect(
        self, stage: Stage, previous: Node, node: Node
    ) -> tuple[bool, bool]:
        """Whether a node is indistinguishable from perfect recovery, and whether it lies beyond it."""
        if self.perfect is None or not self._is_known(stage, node, 1e-2):
            return False, False
        end = float(np.log(self.perfect.value)) if self.perfect.value > 0 else -np.inf
        previous_gap, gap = (point.log_alpha - end for point in (previous, node))
        reached = abs(gap) < float(node.total_error[stage.moving].max())
        return reached, reached and previous_gap * gap <= 0

    def _is_known(self, stage: Stage, node: Node, share: float) -> bool:
        """Whether the MSE of all components is below this fraction of the second moment."""
        V = np.diagonal(self.ratios.overlap(self.ratios.qhat(node.x, stage.learned))[1])
        return len(stage.learned) == len(V) and bool(
            (self.ratios.second * share > V).all()
        )

    def _check_end(self, stage: Stage, node: Node) -> None:
        """End the curve at perfect recovery; if only some components are recovered, start a stage with the others."""
        qhat = self.ratios.qhat(node.x, stage.learned)
        recovered = [a for a in stage.moving if qhat[a] > self.ratios.accuracy.highest]
        perfect = [*stage.perfect, *recovered]
        # Components that share their equations reach the end together, whatever the ratio of their errors.
        share = (
            1e-2 if recovered and self.problem.channel.equations is not None else 1e-4
        )
        self.finished = (
            self.finished
            or (self.perfect is not None and self._is_known(stage, node, share))
            or np.exp(node.log_alpha) > 1e3
            or sum(len(stage.nodes) for stage in self.stages) > 200
            or len(perfect) == len(qhat)
        )
        if recovered and not self.finished:
            start = replace(node, slope=node.slope.copy())
            start.slope[:, recovered] = 0.0
            unfinished = [a for a in stage.moving if a not in recovered]
            self.stages.append(
                Stage(stage.learned, unfinished, [start], perfect, stage.step)
            )


def _crossing(positions: Host, gaps: Host) -> float:
    """Position where the stability gap of a component vanishes, from a parabola through computed points."""
    inside = [
        root.real
        for root in _roots(positions, gaps, min(2, len(gaps) - 1))
        if abs(root.imag) < 1e-9
    ]
    inside = [root for root in inside if 0 <= root <= 1]
    return float(
        [*inside, *_roots(positions, gaps, 1).real, positions[np.argmin(np.abs(gaps))]][
            0
        ]
    )


def _roots(positions: Host, gaps: Host, degree: int) -> Host:
    return np.asarray(np.polynomial.Polynomial.fit(positions, gaps, degree).roots())
