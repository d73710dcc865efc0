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
learned from there on, and the curve goes on in one dimension more. Where alpha falls along the curve branches compete.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from smimbench.interfaces import Host
from smimbench.problem.problem import Problem
from smimbench.theory.curve import perfect_recovery_threshold
from smimbench.theory.information import diagonals, information_at, nodes_of
from smimbench.theory.tracing import (
    ComponentRatios,
    Corrector,
    Node,
    Stage,
    arc_lengths,
    finite_change,
    interpolated_value,
)
from smimbench.theory.types import NEGLIGIBLE, Bifurcation

MAX_FITTED_NODES = 4
"""Nodes through which a sampled curve is extrapolated; doubled, noise is amplified more than curvature is better followed."""


class Continuation:
    """Numerical continuation of the curve of fixed points that starts at the prior mean, for components that decouple: Qhat is
    diagonal, and each learned component a is at a fixed point at the sample ratio ``alpha_a(Qhat)``.

    Parameters
    ----------
    problem : Problem
        Its components must decouple, see ``components_decouple``.

    Attributes
    ----------
    bifurcations : list of Bifurcation
        The components in the order in which they are learned; those that are learned from the beginning have alpha 0.
    stages : list of Stage
    highest_log_alpha : float
        Largest log alpha so far.
    is_finished : bool
        Whether the end of the curve has been reached.
    perfect : Threshold or None
        Where an error of zero becomes stable.
    """

    def __init__(self, problem: Problem) -> None:
        """Compute the first node (solved point) of the curve, at the prior mean (overlap Q, error V), where components a that
        labels inform about there start to be learned; x (P,) are coordinates of Qhat, and ``jacobian`` is d log alpha_a / dx,
        alpha_a being the sample ratio that component a requires.
        """
        self.problem = problem
        self.ratios = ComponentRatios(problem)
        self.corrector = Corrector(self.ratios)
        self.bifurcations: list[Bifurcation] = []
        self.stages: list[Stage] = []
        self.is_finished = False
        self.perfect = perfect_recovery_threshold(problem)
        self.highest_log_alpha = -np.inf
        P = problem.components
        Q, V = self.ratios.overlap(np.zeros(P))
        information_diagonal, information_error = diagonals(
            information_at(problem, Q, V)
        )
        informative_components = [
            a
            for a in range(P)
            if self.ratios.critical_qhat[a] == 0
            and information_diagonal[a] > max(NEGLIGIBLE, 3 * information_error[a])
        ]
        self.ratios.informative_components = set(informative_components)
        x, jacobian = np.zeros(P), np.zeros((P, P))
        x[informative_components] = np.log(
            1e-6
            * information_diagonal[informative_components]
            / information_diagonal.max()
        )  # at so small a Qhat everything is proportional to alpha
        log_ratios, information_error = self.ratios.log_ratios(
            x, informative_components
        )
        if informative_components:
            self.bifurcations += [
                Bifurcation(a, 0.0, 0.0)
                for a in sorted(
                    informative_components, key=lambda a: -information_diagonal[a]
                )
            ]
            jacobian[informative_components, informative_components] = 1.0
            node = Node(
                x,
                log_ratios,
                information_error,
                jacobian,
                float(log_ratios[informative_components].mean()),
            )
            self.stages.append(
                Stage(
                    informative_components,
                    informative_components,
                    [node],
                    [],
                    self.ratios.accuracy.first_step,
                )
            )
        else:
            self._bifurcate_at_start(
                Stage(
                    [],
                    [],
                    [Node(x, log_ratios, information_error, jacobian, -np.inf)],
                    [],
                    0.0,
                )
            )

    def _bifurcate(
        self, node: Node, stage: Stage, component: int, error: float
    ) -> None:
        """Start a new stage (part of the curve from a bifurcation to the next) at ``node``, the solved point where another
        ``component`` becomes unstable; ``error`` is that of log alpha there.
        """
        self.is_finished = not np.isfinite(node.log_alpha)
        if self.is_finished:
            return
        self.highest_log_alpha = max(self.highest_log_alpha, node.log_alpha)
        alpha = float(np.exp(self.highest_log_alpha))
        self.bifurcations.append(Bifurcation(component, alpha, alpha * error))
        first_node = replace(node, x=node.x.copy(), jacobian=node.jacobian.copy())
        first_node.x[component] = first_node.jacobian[:, component] = 0.0
        self.stages.append(
            Stage(
                [*stage.learned_components, component],
                [component],
                [first_node],
                stage.recovered_components,
                self.ratios.accuracy.first_step,
            )
        )

    # -- following the curve ------------------------------------------------------------------------------------------

    def trace(self, *, until: float | None = None) -> None:
        """Trace the curve of fixed points to its end, or until its sample ratio alpha exceeds ``until``."""
        while not self.is_finished and not (
            until is not None and self._has_passed(until)
        ):
            self.trace_next_node(self.stages[-1])

    def _has_passed(self, alpha: float) -> bool:
        """Whether the traced curve has passed alpha by two solved points, the last with the largest alpha so far. With one, the
        interpolated curve would change with the next. A bifurcation is two, the end of a stage and the start of the next.
        """
        log_alphas = [node.log_alpha for stage in self.stages for node in stage.nodes]
        return (
            len(log_alphas) > 1
            and log_alphas[-2] > np.log(alpha)
            and log_alphas[-1] > np.log(alpha) + 0.02
            and log_alphas[-1] >= self.highest_log_alpha
        )

    def trace_next_node(self, stage: Stage) -> None:
        """Add the next node (solved point) of the curve to a stage (its part between two bifurcations), or start the next stage
        where another component becomes unstable. Steps are shortened where log alpha misses its extrapolation (``mismatch``).
        """
        accuracy, latest_node = self.ratios.accuracy, stage.nodes[-1]
        is_first_step = len(stage.nodes) == 1
        if is_first_step and self._bifurcate_at_start(stage):
            return
        if is_first_step and (
            len(stage.moving_components) > 1 or not self.ratios.uses_sampling
        ):
            self.corrector.differentiate(stage, latest_node)
        tangent = self.corrector.tangent(stage, latest_node.jacobian)
        stage.step = float(
            np.clip(
                self._distance_to_bifurcation(stage), accuracy.shortest_step, stage.step
            )
        )
        node = self._next_node_ahead(stage, latest_node)
        was_step_lengthened = was_step_shortened = False
        while node is None:
            step = stage.step
            node, largest_correction = self.corrector.corrected_node(
                stage, latest_node, *self._extrapolated(stage, tangent, step)
            )
            tolerance, mismatch = (
                self._tolerance(stage, node),
                self._extrapolation_mismatch(stage, latest_node, node),
            )
            if (
                is_first_step
                and len(stage.moving_components) == 1
                and self.ratios.uses_sampling
            ):
                mismatch = tolerance  # one node has no slope to extrapolate
            moves_backwards = float((node.x - latest_node.x) @ tangent) <= 0
            is_rejected = (
                not np.isfinite(node.log_alpha)
                or largest_correction > max(0.12, 1.2 * step)
                or moves_backwards
            )
            step_factor = (
                np.sqrt(tolerance / max(mismatch, 1e-12))
                if np.isfinite(mismatch)
                else 0.3
            )
            stage.step = float(
                np.clip(
                    step * np.clip(step_factor, 0.3, accuracy.step_growth),
                    accuracy.shortest_step,
                    accuracy.longest_step,
                )
            )
            if step <= accuracy.shortest_step or (
                not is_rejected and (mismatch <= 3 * tolerance or was_step_lengthened)
            ):
                break
            if (
                is_first_step
                and not np.isfinite(largest_correction)
                and step < 0.5
                and not was_step_shortened
            ):
                # The noise of a component that is hardly learned falls as its overlap grows.
                stage.step, was_step_lengthened = 2 * step, True
            else:
                stage.step, was_step_shortened = (
                    max(accuracy.shortest_step, min(stage.step, step / 2)),
                    True,
                )
                if self.ratios.uses_sampling and not is_rejected:
                    stage.nodes_ahead.append(node)
            node = None
        if not np.isfinite(node.log_alpha):
            self.is_finished = True
            return
        if not self.ratios.uses_sampling:
            self.corrector.differentiate(stage, node)
        stage.direction = (node.x - latest_node.x) / np.linalg.norm(
            node.x - latest_node.x
        )
        if self._bifurcation_between(stage, latest_node, node, tangent):
            return
        self.is_finished, is_beyond_end = self._reaches_perfect_recovery(
            stage, latest_node, node
        )
        if is_beyond_end:
            return
        stage.nodes.append(node)
        self.highest_log_alpha = max(self.highest_log_alpha, node.log_alpha)
        nodes_of(self.problem).reached(float(np.exp(self.highest_log_alpha)))
        self._check_end(stage, node)

    def _tolerance(self, stage: Stage, node: Node) -> float:
        """Tolerated difference of log alpha at a solved point from its extrapolation: a setting, or the information's error."""
        return max(
            self.ratios.accuracy.target_mismatch,
            float(np.max(node.error[stage.moving_components])),
        )

    def _next_node_ahead(self, stage: Stage, origin: Node) -> Node | None:
        """Next of the nodes (solved points) already computed farther along the curve, if the curve up to it is accurate enough;
        else None. ``origin`` is the stage's latest node.
        """
        if not stage.nodes_ahead:
            return None
        node = stage.nodes_ahead[-1]
        distance = float(np.linalg.norm(node.x - origin.x))
        is_near_extrapolation = self._extrapolation_mismatch(
            stage, origin, node
        ) <= 3 * self._tolerance(stage, node)
        if is_near_extrapolation or distance <= 2 * self.ratios.accuracy.shortest_step:
            return stage.nodes_ahead.pop()
        # If the node ahead is near, go half of the way to it, not to a point just before it.
        stage.step = min(
            stage.step, distance if stage.step < 0.7 * distance else distance / 2
        )
        return None

    def _distance_to_bifurcation(self, stage: Stage) -> float:
        """Extrapolated distance along the curve to the next bifurcation, plus a margin, from the last two solved points. A
        component a becomes unstable where its stability gap, log alpha minus the log of the ``alpha_a`` up to which it is stable,
        reaches 0.
        """
        if len(stage.nodes) < 2:
            return np.inf
        previous_node, latest_node = stage.nodes[-2:]
        stability_gaps = latest_node.log_alpha - latest_node.log_ratios
        gap_change = finite_change(
            previous_node.log_alpha - previous_node.log_ratios, stability_gaps
        )
        destabilizing_components = [
            a
            for a in range(len(gap_change))
            if a not in stage.learned_components
            and gap_change[a] > 0 > stability_gaps[a]
        ]
        step_count = min(
            (-stability_gaps[a] / gap_change[a] for a in destabilizing_components),
            default=np.inf,
        )
        return 1.15 * float(
            step_count * np.linalg.norm(latest_node.x - previous_node.x)
        )

    def _extrapolated(
        self, stage: Stage, tangent: Host, step: float
    ) -> tuple[Host, Host]:
        """Extrapolate the curve by ``step`` from its latest solved point: coordinates x of Qhat, and the direction there. It goes
        along the ``tangent``, or, where information is sampled, along a curve through the last solved points, which smooths their
        noise.
        """
        latest_x = stage.nodes[-1].x
        tangent_point = latest_x + step * tangent
        nodes = [*stage.nodes[1 - MAX_FITTED_NODES :], *stage.nodes_ahead[-1:]]
        if (
            not self.ratios.has_rough_information
            or len(stage.moving_components) == 1
            or len(nodes) < 2
        ):
            return tangent_point, tangent
        lengths, origin_index, small_step = (
            arc_lengths(nodes),
            len(nodes) - len(stage.nodes_ahead[-1:]),
            1e-3 * step,
        )
        lengths = np.insert(
            lengths - lengths[origin_index - 1], origin_index, small_step
        )
        fitted_x = np.insert(
            [node.x for node in nodes],
            origin_index,
            latest_x + small_step * tangent,
            axis=0,
        )
        expected_x, x_before_end = (
            interpolated_value(lengths, fitted_x, step_share * step)
            for step_share in (1.0, 0.95)
        )
        if not np.linalg.norm(expected_x - tangent_point) < step / 2:
            return tangent_point, tangent
        expected_x = self.corrector.step_within_bounds(stage, latest_x, expected_x)
        return expected_x, (expected_x - x_before_end) / np.linalg.norm(
            expected_x - x_before_end
        )

    def _extrapolation_mismatch(self, stage: Stage, origin: Node, node: Node) -> float:
        """Smallest difference between log alpha at a new ``node`` (solved point) and its extrapolations from earlier ones;
        ``origin`` is the latest.
        """
        linear_extrapolation = origin.log_alpha + float(
            (origin.jacobian @ (node.x - origin.x))[stage.moving_components].mean()
        )
        known_lengths, log_alphas = (
            arc_lengths(stage.nodes),
            [known_node.log_alpha for known_node in stage.nodes],
        )
        new_length = known_lengths[-1] + float(np.linalg.norm(node.x - origin.x))
        fitted_node_counts = range(
            3,
            min(
                len(known_lengths), MAX_FITTED_NODES if self.ratios.uses_sampling else 3
            )
            + 1,
        )
        extrapolations = [
            linear_extrapolation,
            *(
                float(
                    interpolated_value(
                        known_lengths[-count:], log_alphas[-count:], new_length
                    )
                )
                for count in fitted_node_counts
            ),
        ]
        return float(np.abs(node.log_alpha - np.array(extrapolations)).min())

    def _bifurcate_at_start(self, stage: Stage) -> bool:
        """Start the next stage (part of the curve between bifurcations) at once if another component a is already unstable at
        this stage's first solved point: its ``log alpha_a``, up to which it is stable, is below log alpha.
        """
        node = stage.nodes[0]
        unlearned = [
            a for a in range(len(node.log_ratios)) if a not in stage.learned_components
        ]
        least_stable_component = min(
            unlearned, key=lambda a: node.log_ratios[a], default=None
        )
        if least_stable_component is None or (
            stage.moving_components
            and (
                self.highest_log_alpha == -np.inf
                or node.log_ratios[least_stable_component] > node.log_alpha
            )
        ):
            return False
        node = (
            node
            if stage.moving_components
            else replace(node, log_alpha=float(node.log_ratios[least_stable_component]))
        )
        self._bifurcate(
            node,
            stage,
            least_stable_component,
            float(node.error[least_stable_component]),
        )
        return True

    def _bifurcation_between(
        self, stage: Stage, origin: Node, node: Node, tangent: Host
    ) -> bool:
        """Locate the bifurcation between two solved points (``origin``, ``node``), where another component a becomes unstable, if
        there is one, and start its stage (the part of the curve from there on). Positions run from 0 at origin to 1 at node;
        alpha regains its largest value so far at ``regain_position``.
        """
        unlearned = (
            a for a in range(len(node.log_ratios)) if a not in stage.learned_components
        )
        unstable_components = [
            a for a in unlearned if node.log_ratios[a] <= node.log_alpha
        ]
        if not unstable_components or node.log_alpha < self.highest_log_alpha:
            return False  # where alpha falls, the curve is an unstable branch
        regain_position = 0.0
        if origin.log_alpha < self.highest_log_alpha - 1e-12:
            regain_position = (self.highest_log_alpha - origin.log_alpha) / max(
                node.log_alpha - origin.log_alpha, 1e-300
            )
        fitted_nodes = [*stage.nodes[1 - MAX_FITTED_NODES :], node]
        lengths = arc_lengths(fitted_nodes)
        lengths = (lengths - lengths[-2]) / (lengths[-1] - lengths[-2])

        def crossing_position(a: int) -> float:
            """Position at which the interpolated log alpha equals the ``log alpha_a`` up to which component a is stable."""
            stability_gaps = np.array(
                [point.log_alpha - point.log_ratios[a] for point in fitted_nodes]
            )
            is_finite = np.isfinite(stability_gaps)
            if not is_finite[-2] or stability_gaps[-1] <= stability_gaps[-2]:
                return min(regain_position, 1.0)
            position = -stability_gaps[-2] / (stability_gaps[-1] - stability_gaps[-2])
            if is_finite.sum() > 2 and stability_gaps[-2] < 0 < stability_gaps[-1]:
                from scipy.optimize import brentq

                position = brentq(
                    lambda t: float(
                        interpolated_value(
                            lengths[is_finite], stability_gaps[is_finite], t
                        )
                    ),
                    0.0,
                    1.0,
                )
            return float(np.clip(position, regain_position, 1.0))

        def x_at(position: float) -> Host:
            """Interpolated coordinates x (P,) of Qhat at a position between the two solved points."""
            if len(stage.moving_components) == 1:
                return np.asarray(origin.x + position * (node.x - origin.x))
            return self.corrector.step_within_bounds(
                stage,
                origin.x,
                interpolated_value(
                    lengths, [point.x for point in fitted_nodes], position
                ),
            )

        def stability_gap(point: Node) -> float:
            """Log alpha minus the ``log alpha_a`` up to which the new component a is stable, at a solved ``point``."""
            return point.log_alpha - float(point.log_ratios[component])

        def nearest_points(count: int) -> Host:
            """Array of three rows, positions, stability gaps (as in ``stability_gap``) and log alphas, with a column for each of
            the ``count`` solved points whose gap is nearest to 0. If the information is sampled, it has a column for every solved
            point, because the fit to them averages the noise.
            """
            point_rows = np.array(
                [
                    (position, stability_gap(point), point.log_alpha)
                    for position, point in positions_and_nodes
                ]
            )
            point_rows = point_rows[np.isfinite(point_rows).all(axis=1)]
            return np.transpose(
                point_rows
                if self.ratios.uses_sampling
                else point_rows[np.argsort(np.abs(point_rows[:, 1]))[:count]]
            )

        component = min(unstable_components, key=crossing_position)
        positions_and_nodes, position = (
            [(0.0, origin), (1.0, node)],
            crossing_position(component),
        )
        for _ in range(4):
            crossing_node, _ = self.corrector.corrected_node(
                stage, node if position > 0.5 else origin, x_at(position), tangent
            )
            positions_and_nodes.append((position, crossing_node))
            smallest_gap = max(
                self.ratios.accuracy.bifurcation_gap,
                self.ratios.accuracy.bifurcation_gap_share
                * crossing_node.error[component],
            )
            if not abs(stability_gap(crossing_node)) > smallest_gap or (
                position <= regain_position and stability_gap(crossing_node) > 0
            ):
                break
            position = float(
                np.clip(_gap_root(*nearest_points(3)[:2]), regain_position, 1.0)
            )
        position, crossing_node = min(
            positions_and_nodes[2:], key=lambda point: abs(stability_gap(point[1]))
        )
        # The remaining stability gap is removed along the curve, on which log alpha changes by ``log_alpha_per_gap`` times it.
        positions, *gaps_and_log_alphas = nearest_points(2)
        gap_slope, log_alpha_slope = (
            np.polyfit(positions, ordinates, 1)[0] for ordinates in gaps_and_log_alphas
        )
        log_alpha_per_gap = (
            float(np.clip(log_alpha_slope / gap_slope, -10, 10))
            if gap_slope != 0
            else 0.0
        )
        crossing_error = self._crossing_error(
            stage,
            component,
            crossing_node,
            node.x - origin.x,
            log_alpha_slope,
            log_alpha_slope - gap_slope,
        )
        log_alpha = crossing_node.log_alpha - log_alpha_per_gap * stability_gap(
            crossing_node
        )
        if position > 0:
            stage.nodes.append(crossing_node)
        self.highest_log_alpha = max(self.highest_log_alpha, crossing_node.log_alpha)
        bifurcation_node = replace(
            crossing_node,
            log_alpha=max(
                log_alpha, self.highest_log_alpha if regain_position else -np.inf
            ),
        )
        self._bifurcate(
            bifurcation_node,
            stage,
            component,
            float(
                crossing_error + abs(log_alpha_per_gap * stability_gap(crossing_node))
            ),
        )
        return True

    def _crossing_error(
        self,
        stage: Stage,
        component: int,
        crossing_node: Node,
        step: Host,
        log_alpha_change: float,
        log_ratio_change: float,
    ) -> float:
        """Numerical error of log alpha at a bifurcation (``crossing_node``), where another ``component`` becomes unstable. log
        alpha_a is the log sample ratio that component a alone requires, and its errors also move the node. Along the last
        ``step`` in coordinates of Qhat log alpha changed by ``log_alpha_change``, log alpha_a of the new component by
        ``log_ratio_change``.
        """
        moving_components = stage.moving_components
        components, step = [*moving_components, component], step[moving_components]
        component_jacobian = np.nan_to_num(
            crossing_node.jacobian[np.ix_(components, moving_components)]
        )
        log_ratio_changes = np.array(
            [log_alpha_change] * len(moving_components) + [log_ratio_change]
        )
        component_jacobian = component_jacobian + np.outer(
            log_ratio_changes - component_jacobian @ step, step
        ) / (step @ step)
        error_weights = np.linalg.pinv(
            np.hstack([component_jacobian, -np.ones((len(components), 1))]), rcond=1e-6
        )[-1]
        log_ratio_errors = np.append(
            crossing_node.total_error[moving_components], crossing_node.error[component]
        )
        return float(np.sqrt((error_weights**2) @ log_ratio_errors**2))

    def _reaches_perfect_recovery(
        self, stage: Stage, previous_node: Node, node: Node
    ) -> tuple[bool, bool]:
        """Whether a ``node`` (solved point) is indistinguishable from perfect recovery, and whether it lies beyond it, judged by
        the difference (gap) of its log alpha from that of the perfect-recovery threshold.
        """
        if self.perfect is None or not self.is_known(stage, node, 1e-2):
            return False, False
        perfect_log_alpha = (
            float(np.log(self.perfect.value)) if self.perfect.value > 0 else -np.inf
        )
        previous_gap, node_gap = (
            point.log_alpha - perfect_log_alpha for point in (previous_node, node)
        )
        is_reached = abs(node_gap) < float(
            node.total_error[stage.moving_components].max()
        )
        return is_reached, is_reached and previous_gap * node_gap <= 0

    def is_known(self, stage: Stage, node: Node, largest_share: float) -> bool:
        """Whether the MSE of every component at a solved point is below the share ``largest_share`` of its second moment."""
        V = np.diagonal(
            self.ratios.overlap(self.ratios.qhat(node.x, stage.learned_components))[1]
        )
        return len(stage.learned_components) == len(V) and bool(
            (self.ratios.second_moment * largest_share > V).all()
        )

    def _check_end(self, stage: Stage, node: Node) -> None:
        """End the curve at perfect recovery; if only some components a are recovered (their Qhat_aa is very large), start a stage
        (next part of the curve) with the others.
        """
        qhat = self.ratios.qhat(node.x, stage.learned_components)
        newly_recovered = [
            a
            for a in stage.moving_components
            if qhat[a] > self.ratios.accuracy.recovered_qhat
        ]
        all_recovered = [*stage.recovered_components, *newly_recovered]
        # Components that share their equations reach the end together, whatever the ratio of their errors.
        unknown_share = (
            1e-2
            if newly_recovered and self.problem.channel.equations is not None
            else 1e-4
        )
        self.is_finished = (
            self.is_finished
            or (self.perfect is not None and self.is_known(stage, node, unknown_share))
            or np.exp(node.log_alpha) > 1e3
            or sum(len(stage.nodes) for stage in self.stages) > 200
            or len(all_recovered) == len(qhat)
        )
        if newly_recovered and not self.is_finished:
            first_node = replace(node, jacobian=node.jacobian.copy())
            first_node.jacobian[:, newly_recovered] = 0.0
            moving_components = [
                a for a in stage.moving_components if a not in newly_recovered
            ]
            self.stages.append(
                Stage(
                    stage.learned_components,
                    moving_components,
                    [first_node],
                    all_recovered,
                    stage.step,
                )
            )


def _gap_root(positions: Host, gaps: Host) -> float:
    """Position along the curve where the stability gap of a component (log alpha minus the log alpha up to which it is stable)
    vanishes, from a parabola through the ``gaps`` at computed ``positions``.
    """
    roots_inside = [
        root.real
        for root in _polynomial_roots(positions, gaps, min(2, len(gaps) - 1))
        if abs(root.imag) < 1e-9
    ]
    roots_inside = [root for root in roots_inside if 0 <= root <= 1]
    return float(
        [
            *roots_inside,
            *_polynomial_roots(positions, gaps, 1).real,
            positions[np.argmin(np.abs(gaps))],
        ][0]
    )


def _polynomial_roots(positions: Host, gaps: Host, degree: int) -> Host:
    """Roots of the polynomial of this degree fitted to ``gaps`` (n,), as in ``_gap_root``, at their positions (n,)."""
    return np.asarray(np.polynomial.Polynomial.fit(positions, gaps, degree).roots())
