r"""Step sizes of GAMP: one weight of the new for everything that is iterated, chosen anew in every step.

Low-rank steps that follow one another in the same direction, each shorter by the same factor r, converge to a known point:
the estimate is extrapolated there, by ``1 / (1 - r)`` times its step (Aitken). This matters for labels such as ``hardmax`` that
do not depend on the scale of a component: only the prior corrects a wrong scale, by a fraction V of the error per step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smimbench.interfaces import Array
    from smimbench.problem import Problem
    from smimbench.theory import Host

__all__ = ["CONTROLS", "StepControl", "StepState", "mixed", "next_step", "reversal_overlaps"]


class StepControl(NamedTuple):
    """How the weight of a step is chosen: it shrinks after a step that was too large and grows after any other.

    Attributes
    ----------
    first, largest, smallest : float
        Weight of the first step (at least), and bounds of all others. A larger first weight lets few samples push the estimate
        too far before the Onsager term acts.
    shrink, grow : float
        Factors of the weight.
    """

    first: float
    largest: float
    smallest: float
    shrink: float
    grow: float


CONTROLS = {"extensive": StepControl(0.5, 0.7, 0.02, 0.5, 1.15), "low": StepControl(1.0, 1.0, 0.1, 0.7, 1.03)}
"""By rank. Matrices start at the prior mean, and a step that is too large shows as a residual that grows. Low rank has to grow
while it leaves the prior mean, but steps that are too large reverse every time."""


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


def mixed(weight: Any, new: Array, old: Array | None) -> Array:
    """``weight new + (1 - weight) old``; the new where there is no old."""
    return new if old is None else float(weight) * new + float(1 - weight) * old


def reversal_overlaps(problem: Problem, last: StepState, change: Array) -> tuple[Array, ...]:
    """Low rank: overlaps (P, P) of the previous change with this one and with itself."""
    if last.change is None or problem.model.rank == "extensive":
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
    _, largest, smallest, shrink, grow = CONTROLS[problem.model.rank]
    extrapolation, slow_steps = 1.0, 0
    if overlaps:
        along, old_square = (np.sum(np.diagonal(overlap) / error) for overlap in overlaps)
        # Smaller steps are never too large: growth out of a tiny start would be damped away.
        too_large = along < -0.5 * old_square and residual > 0.1
        ratio = along / np.maximum(old_square, np.finfo(old_square.dtype).tiny)  # a run at rest has steps of length 0
        if 0.7 < ratio < 1 and along > 0.99 * np.sqrt(old_square * np.sum(squared_step / error)):
            slow_steps = last.slow_steps + 1
        if slow_steps == 4:
            extrapolation, slow_steps = 1 / np.maximum(1 - ratio, 0.01), 0
    else:
        too_large = residual > 1.3 * last.residual
    weight = np.maximum(last.weight * shrink, smallest) if too_large else np.minimum(last.weight * grow, largest)
    return StepState(weight, extrapolation, slow_steps, change, residual)
