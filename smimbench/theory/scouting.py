"""Rough look at the rest of a curve of fixed points: whether its sample ratio alpha falls again, and how low.

Which fixed point is Bayes-optimal at a sample ratio depends on the whole curve, which may come back to that ratio. Where the
information is sampled, few labels may tell, at a tenth of the cost, that it does not; if not, it has to be traced accurately.

* For one sample ratio: state evolution ``Qhat <- kappa alpha I(Q)`` is monotone, so from far above all fixed points it falls to
  the highest of them.
* For all: the part beyond is followed in long steps. If alpha clearly rises there, one fixed point is left at any ratio.
* Of more than three components thresholds are read off that part, with its errors: an accurate curve takes hours.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from smimbench.interfaces import Host
from smimbench.theory.continuation import Continuation
from smimbench.theory.information import diagonals, information_at
from smimbench.theory.tracing import (
    SAMPLED,
    ComponentRatios,
    Corrector,
    TracingAccuracy,
)
from smimbench.theory.types import Bifurcation

ROUGH = replace(SAMPLED, first_step=0.3, longest_step=1.0, target_mismatch=0.02)
"""Long steps, where only the direction of alpha matters."""
SMALLEST_FALL = 0.5
"""Fall of log alpha, in standard errors of rough values, that calls for an accurate curve: about 3 of its errors, as rough ones
are several times larger, with labels in common. Doubled, shallower folds are overlooked."""

MOST_EVALUATIONS = 60
"""Rough values after which the look is given up, because noise leads it astray. Usual are 20 to 40."""

LARGEST_ERROR = 0.05
"""Relative error of rough values beyond which no further bifurcation is looked for. Doubled: steps are shorter than the noise."""

HIGHEST_QHAT = 1e4
"""Qhat from which state evolution falls: errors are 1e-4, and the sample ratio of a fixed point is that of perfect recovery."""
LOWEST_QHAT = 0.02
"""Qhat below which a component that is stable without overlap counts as not learned. Halved, one step more."""
MOST_STEPS = 40
"""Steps of state evolution after which a question is left open; it takes more within a tenth of perfect recovery."""


class RoughRatios(ComponentRatios):
    """Sample ratios of components from few labels, and how many of them were evaluated."""

    def __init__(self, ratios: ComponentRatios) -> None:
        """Take over all that is known of the components of ``ratios``."""
        self.__dict__.update(ratios.__dict__)
        self.methods = dict(ratios.methods)
        self.evaluations = 0

    @property
    def has_rough_information(self) -> bool:
        """False: there is nothing rougher."""
        return False

    @property
    def accuracy(self) -> TracingAccuracy:
        """Settings of a rough curve."""
        return ROUGH

    def log_ratios(
        self, x: Host, learned_components: Sequence[int], *, rough: bool = True
    ) -> tuple[Host, Host]:
        """Compute ``log alpha_a`` (P,) and its error at coordinates x from few labels."""
        self.evaluations += 1
        return super().log_ratios(x, learned_components, rough=True)


def comes_back(curve: Continuation, alpha: float) -> bool:
    """Whether the rest of a ``curve`` that was traced beyond the sample ratio ``alpha``, below perfect recovery, may come back
    there: False if state evolution, with information that is too high by three errors, falls from above to the traced part.
    """
    if not curve.ratios.has_rough_information:
        return True
    stage, problem = curve.stages[-1], curve.problem
    node = stage.nodes[-1]
    kappa = float(problem.model.kappa)
    if not (node.log_ratios > np.log(alpha)).all():
        return True
    traced_qhat = curve.ratios.qhat(node.x, stage.learned_components)
    qhat = np.full(problem.components, HIGHEST_QHAT)
    for _ in range(MOST_STEPS):
        Q, V = curve.ratios.overlap(qhat)
        information, error = diagonals(information_at(problem, Q, V, rough=True))
        next_qhat = np.minimum(qhat, kappa * alpha * (information + 3 * error))
        if (next_qhat <= np.maximum(traced_qhat, LOWEST_QHAT)).all():
            return False
        if not (next_qhat < 0.99 * qhat).any():
            return True
        qhat = next_qhat
    return True


def _rough_rest(curve: Continuation) -> tuple[Continuation, RoughRatios]:
    """Curve that goes on from the latest node of ``curve``, at ``first_node``, with rough values, and these; the curve is left as
    it is.
    """
    rough_curve = copy.copy(curve)
    stage = curve.stages[-1]
    rough_curve.ratios = ratios = RoughRatios(curve.ratios)
    rough_curve.corrector = Corrector(ratios)
    node = stage.nodes[-1]
    log_ratios, error = ratios.log_ratios(node.x, stage.learned_components)
    first_node = replace(
        node,
        log_ratios=log_ratios,
        error=error,
        jacobian=node.jacobian.copy(),
        log_alpha=float(log_ratios[stage.moving_components].mean()),
        residual=0.0,
        rough_error=None,
    )
    rough_curve.bifurcations = list(curve.bifurcations)
    rough_curve.stages = [replace(stage, nodes=[first_node], nodes_ahead=[])]
    rough_curve.highest_log_alpha = first_node.log_alpha
    return rough_curve, ratios


def rough_bifurcations(curve: Continuation) -> list[Bifurcation]:
    """Bifurcations of a ``curve``, those beyond its latest node from few labels, in the order in which components are learned, up
    to the first one after which errors of rough values exceed ``LARGEST_ERROR``.
    """
    rough_curve, ratios = _rough_rest(curve)
    stage = rough_curve.stages[-1]
    while (
        len(rough_curve.bifurcations) < curve.problem.components
        and not rough_curve.is_finished
        and ratios.evaluations < MOST_EVALUATIONS
    ):
        rough_curve.trace_next_node(rough_curve.stages[-1])
        if rough_curve.stages[-1].learned_components != stage.learned_components:
            stage = rough_curve.stages[-1]
            x = stage.nodes[0].x.copy()
            x[stage.new_components] = ROUGH.first_step
            _, error = ratios.log_ratios(x, stage.learned_components)
            if error[stage.moving_components].max() > LARGEST_ERROR:
                break
    return rough_curve.bifurcations


def rises(curve: Continuation) -> bool:
    """Whether alpha clearly rises along the rest of a ``curve``, from its latest node to perfect recovery, by rough values; the
    curve is left as it is.
    """
    perfect = curve.perfect
    if not (curve.ratios.has_rough_information and perfect and perfect.value > 0):
        return False
    rough_curve, ratios = _rough_rest(curve)
    while not rough_curve.is_finished and ratios.evaluations < MOST_EVALUATIONS:
        rough_curve.trace_next_node(rough_curve.stages[-1])
    nodes = [node for stage in rough_curve.stages for node in stage.nodes]
    if not rough_curve.is_known(rough_curve.stages[-1], nodes[-1], 1e-2):
        return False
    log_alpha = np.array([node.log_alpha for node in nodes])
    log_alpha_error = np.array(
        [stage.mean_error(node) for stage in rough_curve.stages for node in stage.nodes]
    )
    fall = np.append(
        np.maximum.accumulate(log_alpha) - log_alpha,
        log_alpha.max() - np.log(perfect.value),
    )
    # What rough values of the same labels have in common does not count.
    allowance = 1e-6 + SMALLEST_FALL * np.append(log_alpha_error, log_alpha_error[-1])
    return bool((fall <= allowance).all())
