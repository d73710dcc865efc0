r"""Step sizes of GAMP: one weight of the new for everything that is iterated, chosen anew in every step.

Low-rank steps that follow one another in the same direction, each shorter by the same factor r, converge to a known point:
the estimate is extrapolated there, by ``1 / (1 - r)`` times its step (Aitken). This matters for labels such as ``hardmax`` that
do not depend on the scale of a component: only the prior corrects a wrong scale, by a fraction V of the error per step.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smimbench.interfaces import Array
    from smimbench.problem import Problem

__all__ = [
    "EXTENSIVE",
    "LOW_RANK",
    "StepControl",
    "StepState",
    "control_of",
    "first_weight",
    "mixed",
    "next_step",
    "reversal_overlaps",
]

Host = np.ndarray[Any, Any]


class StepControl(NamedTuple):
    """How the weight of a step is chosen: it shrinks after a step that was too large and grows after any other.

    Attributes
    ----------
    first, largest, smallest : float
        Weight of the first step (at least; see ``first_weight``), and bounds of all others. A larger first weight lets few
        samples push the estimate too far before the Onsager term acts.
    shrink, grow : float
        Factors of the weight.
    growth : float
        A step was too large if the residual grew by more than this factor.
    reversal : float
        A step was too large if its projection on the previous step, in units of that step, is below this.
    negligible : float
        A step with a smaller residual is never too large; at 0, growth out of a tiny start would be damped away.
    slow, aligned : float
        Steps are extrapolated if each has at least ``slow`` times the length of the previous one and a cosine with it of at
        least ``aligned``.
    patience : int
        Number of such steps before an extrapolation; 0: never.
    longest : float
        Longest extrapolation, in units of the step.
    """

    first: float
    largest: float
    smallest: float
    shrink: float
    grow: float
    growth: float = math.inf
    reversal: float = -math.inf
    negligible: float = 0.0
    slow: float = 0.7
    aligned: float = 0.99
    patience: int = 0
    longest: float = 100.0


EXTENSIVE = StepControl(first=0.5, largest=0.7, smallest=0.02, shrink=0.5, grow=1.15, growth=1.3)
"""Extensive rank starts at the prior mean: a step that is too large shows as a growing residual."""

LOW_RANK = StepControl(
    first=1.0, largest=1.0, smallest=0.1, shrink=0.7, grow=1.03, reversal=-0.5, negligible=0.1, patience=4
)
"""Low rank: the residual has to grow while a run leaves the prior mean, but steps that are too large reverse every time."""


class StepState(NamedTuple):
    """What the next weight is computed from.

    Attributes
    ----------
    weight, extrapolation : NumPy number
        Weight of the new in the next step, and the factor by which the estimate moves further than everything else.
    slow_steps : int
        Slow, aligned steps since the last extrapolation.
    change : array (P, ...) or None
        Undamped change of the estimate in the previous step.
    residual : NumPy number or None
        Its size in units of the predicted error.
    """

    weight: Any
    extrapolation: Any = 1.0
    slow_steps: int = 0
    change: Array | None = None
    residual: Any = None


def control_of(problem: Problem) -> StepControl:
    """The step control for the model's rank."""
    return EXTENSIVE if problem.model.rank == "extensive" else LOW_RANK


def mixed(weight: Any, new: Array, old: Array | None) -> Array:
    """``weight new + (1 - weight) old``; the new where there is no old."""
    return new if old is None else float(weight) * new + float(1 - weight) * old


def first_weight(weight: Any, error: Host, before: Host) -> Any:
    """Weight of the first step: at least the fraction of the error (P,) that the step is predicted to remove.

    Where the labels determine nearly everything at once, damping V would push the scale of an estimate that the labels do not
    fix (hardmax) far above that of the signal.
    """
    return np.maximum(weight, 1 - np.max(error / before))


def reversal_overlaps(problem: Problem, last: StepState, change: Array) -> tuple[Array, ...]:
    """Overlaps (P, P) of the previous change with this one and with itself, where the control needs them; else nothing."""
    if last.change is None or math.isfinite(control_of(problem).growth):
        return ()
    return tuple(problem.model.inner(other, last.change) for other in (change, last.change))


def next_step(
    problem: Problem,
    last: StepState,
    change: Array,
    overlaps: Sequence[Host],
    squared_step: Host,
    error: Host,
    residual: Any,
) -> StepState:
    """Weight and extrapolation of the next step.

    Parameters
    ----------
    change : array (P, ...)
        Undamped change of the estimate in this step.
    overlaps : sequence of ndarray (P, P)
        Result of ``reversal_overlaps``.
    squared_step, error : ndarray (P,)
        Squared change and predicted squared error of every component.
    residual : NumPy number
        Size of the change in units of the error.
    """
    if last.change is None:
        return last._replace(change=change, residual=residual)
    control = control_of(problem)
    extrapolation, slow_steps = 1.0, 0
    if overlaps:
        along, old_square = (np.sum(np.diagonal(overlap) / error) for overlap in overlaps)
        too_large = along < control.reversal * old_square
        ratio = along / np.maximum(old_square, np.finfo(old_square.dtype).tiny)  # a run at rest has steps of length 0
        parallel = along > control.aligned * np.sqrt(old_square * np.sum(squared_step / error))
        if parallel and control.slow < ratio < 1:
            slow_steps = last.slow_steps + 1
        if slow_steps >= control.patience > 0:
            extrapolation, slow_steps = 1 / np.maximum(1 - ratio, 1 / control.longest), 0
    else:
        too_large = residual > control.growth * last.residual
    if too_large and residual > control.negligible:
        weight = np.maximum(last.weight * control.shrink, control.smallest)
    else:
        weight = np.minimum(last.weight * control.grow, control.largest)
    return StepState(weight, extrapolation, slow_steps, change, residual)
