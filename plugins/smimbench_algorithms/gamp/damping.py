r"""How far GAMP goes in every step: one weight of the new for all that it iterates, chosen anew each time.

Steps of low rank that follow one another in the same direction, each shorter by the same factor r, lead to a point that is known
before they are made: the estimate leaps there, by ``1 / (1 - r)`` times its step (Aitken's extrapolation). Labels of ``hardmax``
do not see the scale of a component; only the prior does, and it corrects a wrong scale by the share V of it in a step.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smimbench.backend import namespace, send

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smimbench.interfaces import Array
    from smimbench.problem import Problem

__all__ = ["EXTENSIVE", "LOW_RANK", "Mixing", "Pace", "Progress", "pace_of"]

Host = np.ndarray[Any, Any]


class Pace(NamedTuple):
    """Weights of the new, between 0 and 1, and what makes them smaller.

    Attributes
    ----------
    first : float
        Smallest weight in the first step, see ``first_weight``. Doubled: few samples push the estimate far before the Onsager
        term acts, and what that excites decays slowly.
    most : float
        Largest weight. Doubled (at most 1): the slow decline near perfect recovery starts to swing.
    least : float
        Smallest weight, so that a run never stops. Doubled: hard cases keep swinging; halved: they crawl.
    slower : float
        Factor of the weight after a step that was too large. Doubled (at most 1): nothing is ever damped.
    quicker : float
        Factor after any other step. Doubled: every few steps are too large.
    growth : float
        A step was too large if the residual grew by more than this factor. Doubled: noticed one or two steps later.
    turn : float
        A step was too large if its projection on the last one, in units of that, is below this. Doubled: only what grows
        from step to step is damped.
    small : float
        A step of a smaller residual is not too large. Doubled: cycles twice as wide go on; at 0, what grows out of a
        tiny start is damped away.
    slow : float
        Steps are slow if each is longer than this, in units of the one before, and shorter than that one. Doubled (at most 1):
        no leap is ever made.
    aligned : float
        Least cosine between a step and the one before. Nearer to 1: leaps wait until all but one mode have decayed; halved: they
        amplify what is no slow mode.
    waits : int
        Slow, aligned steps before a leap; 0: none is made. Doubled: leaps come that many steps later.
    leap : float
        Longest leap, in units of the step. Doubled: modes that decay in hundreds of steps take one leap in place of two.
    """

    first: float
    most: float
    least: float
    slower: float
    quicker: float
    growth: float
    turn: float
    small: float
    slow: float = 0.7
    aligned: float = 0.99
    waits: int = 0
    leap: float = 100.0


EXTENSIVE = Pace(first=0.5, most=0.7, least=0.02, slower=0.5, quicker=1.15, growth=1.3, turn=-math.inf, small=0.0)
"""For extensive rank, where the prior mean is a start: what is too large shows as a residual that grows."""

LOW_RANK = Pace(
    first=1.0, most=1.0, least=0.1, slower=0.7, quicker=1.03, growth=math.inf, turn=-0.5, small=0.1, waits=4
)
"""For low rank: a residual has to grow when a run leaves the prior mean, but what is too large turns back every step."""


class Progress(NamedTuple):
    """What the next weight is chosen from.

    Attributes
    ----------
    weight : NumPy number
        Weight of the new in the next step.
    leap : NumPy number
        How many times as far the estimate goes in the next step as all else does.
    aligned : NumPy integer
        How many slow steps in the same direction there were since the last leap.
    change : array (P, ...) or None
        Undamped change of the estimate in the last step.
    residual : NumPy number or None
        Its size, in units of the predicted error.

    All of them may have an axis of instances in front.
    """

    weight: Any
    leap: Any
    aligned: Any
    change: Array | None = None
    residual: Any = None


def pace_of(problem: Problem) -> Pace:
    """The pace for the model's rank."""
    return EXTENSIVE if problem.model.rank == "extensive" else LOW_RANK


class Mixing:
    """``weight new + (1 - weight) old``; the new where there is nothing old.

    Parameters
    ----------
    weight : NumPy number or ndarray (B,)
        One for all, or one for each of B instances, along the first axis of what is mixed.
    """

    def __init__(self, weight: Any) -> None:
        self.weight = weight
        self._sent: Array | None = None

    def __call__(self, new: Array, old: Array | None) -> Array:
        """On the host or on a device, which is sent the weights of its instances once."""
        if old is None:
            return new
        if np.ndim(self.weight) == 0:
            return float(self.weight) * new + float(1 - self.weight) * old
        if isinstance(new, np.ndarray):
            both: Any = np.stack([self.weight, 1 - self.weight])
        else:
            if self._sent is None:
                self._sent = send(np.stack([self.weight, 1 - self.weight]), new)
            both = self._sent
        shape = (len(self.weight), *(1 for _ in new.shape[1:]))
        share, rest = (namespace(new).reshape(both[k, :], shape) for k in (0, 1))
        return share * new + rest * old


def start(problem: Problem, damping: float | None, like: Host) -> Progress:
    """Before the first step: ``1 - damping``, or the first weight of the pace, for errors ``like`` (..., P, P)."""
    first = pace_of(problem).first if damping is None else 1 - damping
    weight = np.full(like.shape[:-2], first, dtype=like.dtype)[()]
    return Progress(weight, np.ones_like(weight), np.zeros(like.shape[:-2], dtype=int)[()])


def first_weight(weight: Any, error: Host, before: Host) -> Any:
    """Weight of the first step: at least the share of the error (..., P) that it is predicted to remove.

    Where the labels tell nearly all at once, a V that is held back pulls the scale of an estimate of which the labels do not
    show the scale (hardmax) far above that of the signal, from where it takes hundreds of steps back.
    """
    return np.maximum(weight, 1 - np.max(error / before, axis=-1))


def turn(problem: Problem, last: Progress, change: Array) -> tuple[Array, ...]:
    """What ``follow`` needs of this change (P, ...) and the last one, where they live: two overlaps (P, P), or nothing."""
    if last.change is None or math.isfinite(pace_of(problem).growth):
        return ()
    return tuple(problem.model.inner(other, last.change) for other in (change, last.change))


def follow(
    problem: Problem,
    last: Progress,
    change: Array,
    turns: Sequence[Host],
    squared_step: Host,
    error: Host,
    residual: Any,
) -> Progress:
    """The weight of the next step, and how far the estimate goes in it.

    Parameters
    ----------
    last : Progress
    change : array (P, ...)
        Undamped change of the estimate in this step.
    turns : sequence of ndarray (..., P, P)
        What ``turn`` returned.
    squared_step, error : ndarray (..., P)
        Square of the change, and predicted squared error, of every component: what changes are measured by.
    residual : NumPy number
        Size of the change in units of the error.
    """
    weight = last.weight
    if last.change is None:
        return last._replace(change=change, residual=residual)
    pace = pace_of(problem)
    leap, aligned = np.ones_like(weight), np.zeros_like(last.aligned)
    if turns:
        along, square = (np.sum(np.diagonal(overlap, axis1=-2, axis2=-1) / error, axis=-1) for overlap in turns)
        too_large = along < pace.turn * square
        leap, aligned = _leap(pace, last.aligned, along, square, np.sum(squared_step / error, axis=-1))
    else:
        too_large = residual > pace.growth * last.residual
    too_large = too_large & (residual > pace.small)
    shorter = np.maximum(weight * pace.slower, np.full_like(weight, pace.least))
    longer = np.minimum(weight * pace.quicker, np.full_like(weight, pace.most))
    return Progress(np.where(too_large, shorter, longer)[()], leap, aligned, change, residual)


def _leap(pace: Pace, aligned: Any, along: Any, old_square: Any, square: Any) -> tuple[Any, Any]:
    """How many times as far the estimate goes next, and the count of slow steps in the same direction.

    From the product of a step with the one before, and the squares of that one and of the step.
    """
    ratio = along / np.maximum(old_square, np.finfo(old_square.dtype).tiny)  # a run that stands still has no length
    parallel = along > pace.aligned * np.sqrt(old_square * square)
    slow = parallel & (pace.slow < ratio) & (ratio < 1)
    count = np.where(slow, aligned + 1, 0)
    leaps = (count >= pace.waits) & (pace.waits > 0)
    length = 1 / np.maximum(1 - ratio, 1 / pace.leap)
    return np.where(leaps, length, np.ones_like(length))[()], np.where(leaps, 0, count)[()]
