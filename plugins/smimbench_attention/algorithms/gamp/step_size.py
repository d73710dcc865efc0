"""Step size (damping) of GAMP: one weight for all samples, smaller for samples with unusually large inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from smimbench.backend import namespace, sample_chunks, take_samples
from smimbench.interfaces import Array, Data, Host
from smimbench.problem import Problem

Number = np.floating[Any]
"""A NumPy number on the host, in the precision of the run."""


class StepControl(NamedTuple):
    """Settings of adaptive damping: the weight shrinks after a step that was too large and grows otherwise.

    Attributes
    ----------
    initial, largest, smallest : float
        Weight of the first step (at least), and bounds of all others. A larger initial weight lets few samples push the
        estimate too far before the Onsager term acts.
    shrink, grow : float
        Factors of the weight.
    """

    initial: float
    largest: float
    smallest: float
    shrink: float
    grow: float


CONTROLS = {
    "extensive": StepControl(0.5, 0.95, 0.02, 0.5, 1.15),
    "low": StepControl(1.0, 1.0, 0.1, 0.7, 1.03),
}
"""By rank. Matrices start at the prior mean, and a step that is too large shows as a residual that grows. Low rank has to grow
while it leaves the prior mean, but steps that are too large reverse every time."""

ALIGNED_STEPS = 4
"""Slow, aligned steps after which the estimate is extrapolated. Doubled: later, from a better known ratio."""

SHARE_OF_EDGE = 0.4
"""Largest weight of a sample, as a fraction of the one at which it alone becomes unstable. Doubled: strong samples oscillate
with others, or along eigenvectors where the slope is above its mean."""

LARGEST_TYPICAL = 2.5
"""Mean strength of samples up to which each has a weight of its own. That rule is for few strong samples among weak ones; where
all are strong, as ten tokens in forty dimensions are, they act together. Doubled: runs do not converge there."""

LARGEST_COMMON = 0.7
"""Largest weight where all samples have the same one. At 0.85 runs from few samples do not converge; halved: twice as slow."""


class StepState(NamedTuple):
    """State of adaptive damping: the weight of the next step and what it is computed from.

    Attributes
    ----------
    weight, extrapolation : NumPy number
        Weight of the new messages in the next step, and the factor by which the estimate moves further than everything else.
    slow_steps : int
        Slow, aligned steps since the last extrapolation.
    change : array (P, ...) or None
        Undamped change of the estimate in the previous step.
    residual : NumPy number
        Its size in units of the predicted error.
    """

    weight: Number
    extrapolation: Number | float = 1.0
    slow_steps: int = 0
    change: Array | None = None
    residual: Number | float = np.nan


def reversal_overlaps(
    problem: Problem, step: StepState, change: Array
) -> tuple[Array, ...]:
    """Overlaps (P, P) of the estimate's previous change with the current one and with itself, for low rank."""
    if step.change is None or problem.model.rank == "extensive":
        return ()
    inner = problem.model.inner
    return inner(change, step.change), inner(step.change, step.change)


def next_step(
    problem: Problem,
    step: StepState,
    change: Array,
    overlaps: Sequence[Host],
    squared_step: Host,
    error: Host,
    residual: Number,
) -> StepState:
    """Choose the weight and the extrapolation of the next step.

    Low-rank steps that follow one another in the same direction, each shorter by the same factor r, converge to a known point:
    the estimate is extrapolated there, by ``1 / (1 - r)`` times its step (Aitken). This matters for labels such as ``hardmax``
    that do not depend on the scale of a component: only the prior corrects a wrong scale, by a fraction V of the error per step.

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
    if step.change is None:
        return step._replace(change=change, residual=residual)
    control = CONTROLS[problem.model.rank]
    extrapolation: Number | float = 1.0
    slow_steps = 0
    if overlaps:
        along, previous_square = (
            np.sum(np.diagonal(overlap) / error) for overlap in overlaps
        )
        # Smaller steps are never too large: growth out of a tiny start would be damped away.
        is_too_large = along < -0.5 * previous_square and residual > 0.1
        # A run at rest has steps of length 0.
        tiny = np.finfo(previous_square.dtype).tiny
        ratio = along / np.maximum(previous_square, tiny)
        parallel = np.sqrt(previous_square * np.sum(squared_step / error))
        if 0.7 < ratio < 1 and along > 0.99 * parallel:
            slow_steps = step.slow_steps + 1
        if slow_steps == ALIGNED_STEPS:
            extrapolation, slow_steps = 1 / np.maximum(1 - ratio, 0.01), 0
    else:
        is_too_large = residual > 1.3 * step.residual
    if is_too_large:
        weight = np.maximum(step.weight * control.shrink, control.smallest)
    else:
        weight = np.minimum(step.weight * control.grow, control.largest)
    return StepState(weight, extrapolation, slow_steps, change, residual)


def limit_step(
    step: StepState, V: Host, Qhat: Host, strength: Array | None
) -> StepState:
    """Limit the weight of a step to the largest value that is stable for extensive-rank matrices; see ``Gamp``."""
    largest = LARGEST_COMMON if strength is None else 0.8 + 0.4 * mean_slope(V, Qhat)
    return step._replace(weight=np.minimum(step.weight, V.dtype.type(largest)))


def mean_slope(V: Host, Qhat: Host) -> float:
    """Smallest mean slope ``V Qhat`` of the denoiser over the components, at most 1."""
    return min(1.0, float(np.min(np.diagonal(V) * np.diagonal(Qhat))))


def sample_strength(problem: Problem, data: Data) -> Array | None:
    """Strength (n,) of every sample: the squared largest eigenvalue of ``X X^T / D`` of its tokens X (T, D).

    It is 1 in the limit.

    None where their mean is above ``LARGEST_TYPICAL``: then all samples take the same weight.
    """
    model, xp = problem.model, namespace(data.inputs)
    chunks = []
    for chunk in sample_chunks(model, data.inputs, problem.components):
        tokens = take_samples(model, data.inputs, chunk)
        gram = xp.matmul(tokens, xp.matrix_transpose(tokens)) / tokens.shape[-1]
        chunks.append(xp.max(xp.linalg.eigvalsh(gram), axis=-1) ** 2)
    strength = xp.concat(chunks)
    return strength if float(xp.mean(strength)) < LARGEST_TYPICAL else None


def sample_weights(
    weight: float, strength: Array | None, V: Host, Qhat: Host | None
) -> float | Array:
    """Damping weight of the new messages: one for all samples, or one per sample (n,) if ``strength`` is given."""
    if strength is None or Qhat is None:
        return weight
    xp = namespace(strength)
    share = SHARE_OF_EDGE * 2 * (1 + mean_slope(V, Qhat)) / strength
    return weight * xp.where(share < 1, share, xp.ones_like(share))
