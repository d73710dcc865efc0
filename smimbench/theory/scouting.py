"""Rough look at the rest of a curve of fixed points: whether its sample ratio alpha falls again, and how low.

Which fixed point is Bayes-optimal at a sample ratio depends on the whole curve, which may come back to that ratio. Where the
information is sampled, the part beyond is followed with few labels and in long steps, at a tenth of the cost. If alpha clearly
rises there, one fixed point is left; if not, the curve has to be traced accurately.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from smimbench.interfaces import Host
from smimbench.theory.continuation import Continuation
from smimbench.theory.tracing import (
    SAMPLED,
    ComponentRatios,
    Corrector,
    TracingAccuracy,
)

ROUGH = replace(SAMPLED, first_step=0.3, longest_step=1.0, target_mismatch=0.02)
"""Long steps, where only the direction of alpha matters."""
SMALLEST_FALL = 0.5
"""Fall of log alpha, in standard errors of rough values, that calls for an accurate curve: about 3 of its errors, as rough ones
are several times larger, with labels in common. Doubled, shallower folds are overlooked."""

MOST_EVALUATIONS = 60
"""Rough values after which the look is given up, because noise leads it astray. Usual are 20 to 40."""


class Scout(NamedTuple):
    """What a rough look at the rest of a curve says: whether alpha rises to perfect recovery, and the lowest log alpha on it."""

    rises: bool
    lowest_log_alpha: float


UNKNOWN = Scout(False, -np.inf)


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


def scout(curve: Continuation) -> Scout:
    """Follow the rest of a ``curve`` roughly, from its latest node to perfect recovery; the curve is left as it is."""
    perfect = curve.perfect
    if not (curve.ratios.has_rough_information and perfect and perfect.value > 0):
        return UNKNOWN
    rest, stage = copy.copy(curve), curve.stages[-1]
    rest.ratios = ratios = RoughRatios(curve.ratios)
    rest.corrector = Corrector(ratios)
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
    rest.bifurcations = list(curve.bifurcations)
    rest.stages = [replace(stage, nodes=[first_node], nodes_ahead=[])]
    rest.highest_log_alpha = first_node.log_alpha
    while not rest.is_finished and ratios.evaluations < MOST_EVALUATIONS:
        rest.trace_next_node(rest.stages[-1])
    nodes = [node for stage in rest.stages for node in stage.nodes]
    if not rest.is_known(rest.stages[-1], nodes[-1], 1e-2):
        return UNKNOWN
    log_alpha = np.array([node.log_alpha for node in nodes])
    log_alpha_error = np.array(
        [stage.mean_error(node) for stage in rest.stages for node in stage.nodes]
    )
    fall = np.append(
        np.maximum.accumulate(log_alpha) - log_alpha,
        log_alpha.max() - np.log(perfect.value),
    )
    allowance = 1e-6 + SMALLEST_FALL * np.append(log_alpha_error, log_alpha_error[-1])
    lowest_node = (log_alpha - 3 * log_alpha_error)[1:].min()
    return Scout(
        bool((fall <= allowance).all()), float(min(lowest_node, np.log(perfect.value)))
    )
