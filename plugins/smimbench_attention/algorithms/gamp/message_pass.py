"""A pass of message passing (forward, posterior, adjoint) over the samples, in chunks, and the damping of its messages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np

from smimbench.backend import namespace, sample_chunks, send, take_samples
from smimbench.interfaces import Array, Data, Host, checked_posterior
from smimbench.problem import Problem

SMALLEST_V, SMALLEST_QHAT = 1e-16, 1e-12
"""Floors of the predicted error, for at perfect recovery V would underflow and g be 0 / 0; and of the information, which sampling
noise can make negative. Doubled: no change but there."""


class Messages(NamedTuple):
    """Messages from the samples to the signal.

    Attributes
    ----------
    g : array (n, P, C)
        ``V^{-1} (E[z | y, omega, V] - omega)``, damped.
    adjoint : array (P, ...)
        ``adjoint(X, g)``.
    covariance : array (P, P)
        Posterior covariances of the latents, summed over samples.
    undamped_square, square : array (P, P)
        Products ``g g^T``, summed over samples and sites, before and after damping.
    integration_errors : list of array
        Of the posteriors of every chunk.
    """

    g: Array
    adjoint: Array
    covariance: Array
    undamped_square: Array
    square: Array
    integration_errors: list[Array]


def message_pass(
    problem: Problem,
    data: Data,
    estimate: Array,
    V: Host,
    rng: np.random.Generator | None,
    *,
    previous_g: Array | None = None,
    reaction: Host | None = None,
    weights: float | Array = 1.0,
) -> Messages:
    r"""Compute the messages of all samples at an estimate with the error V (P, P).

    .. math:: \omega = \mathrm{forward}(X, \hat W) - V \rho\, g_{t-1}, \qquad
        g = V^{-1} (E[z | y, \omega, V] - \omega)

    The Onsager term is ``Gamma g_{t-1}`` with ``Gamma = V rho``: the error of the estimate times the messages of the iteration
    before.

    Parameters
    ----------
    previous_g : array (n, P, C), optional
        ``g_{t-1}``; without it, as at the first step, there is no Onsager term and nothing is damped.
    reaction : ndarray (P, P), optional
        ``rho``; the identity unless given. It is smaller where g has more noise than predicted.
    weights : float or array (n,)
        Weight of the new g against the previous one, of all samples or of each.
    """
    model = problem.model
    inverse, V_there = np.linalg.inv(V), send(V, estimate)
    reduced_g = previous_g
    if previous_g is not None and reaction is not None:
        reduced_g = multiply_components(reaction, previous_g)
    g_chunks, covariances, undamped_squares, squares, errors = [], [], [], [], []
    adjoint: Array = None
    for chunk in sample_chunks(model, data.inputs, problem.components):
        inputs = take_samples(model, data.inputs, chunk)
        omega = model.forward(inputs, estimate)
        if reduced_g is not None:
            onsager_term = multiply_components(V, reduced_g[chunk, ...])
            omega = omega - onsager_term
        posterior = checked_posterior(
            problem.channel.posterior(data.labels[chunk, ...], omega, V_there, rng=rng),
            omega,
        )
        g = multiply_components(inverse, posterior.mean - omega)
        square = _square(g)
        undamped_squares.append(square)
        if previous_g is not None:
            weight = weights
            if not isinstance(weights, float):
                weight = weights[chunk, None, None]
            g = weight * g + (1 - weight) * previous_g[chunk, ...]
            square = _square(g)
        squares.append(square)
        covariances.append(posterior.covariance * (chunk.stop - chunk.start))
        errors.append(posterior.error)
        g_chunks.append(g)
        pushed = model.adjoint(inputs, g)
        if adjoint is None:
            adjoint = pushed
        else:
            adjoint += pushed
    if len(g_chunks) > 1:
        g_chunks = [namespace(estimate).concat(g_chunks, axis=0)]
    covariance, undamped_square, square = (
        reduce(add, sums) for sums in (covariances, undamped_squares, squares)
    )
    return Messages(g_chunks[0], adjoint, covariance, undamped_square, square, errors)


def label_information(V: Host, covariance: Host) -> Host:
    """Information ``V^{-1} - V^{-1} Cov V^{-1}`` (P, P) of a label on its latents, with mean posterior covariance Cov."""
    inverse = np.linalg.inv(V)
    return np.asarray(inverse - inverse @ (covariance @ inverse))


def multiply_components(matrix: Host, z: Array) -> Array:
    """Multiply every sample by a matrix, ``sum_q matrix_pq z_qc``: (P, P) on the host times (n, P, C) gives (n, P, C).

    Written out, because a batch of products of tiny matrices costs more than reading the inputs.
    """
    if len(matrix) == 1:
        return z * float(matrix[0, 0])
    factors = send(matrix, z)[None, :, :]
    product = factors[..., :1] * z[..., :1, :]
    for q in range(1, len(matrix)):
        product += factors[..., q : q + 1] * z[..., q : q + 1, :]
    return product


def _square(g: Array) -> Array:
    """Sum of products ``sum_{mu, c} g_pc g_qc`` (P, P) of ``g`` (n, P, C)."""
    xp, components = namespace(g), g.shape[1]
    by_component = xp.permute_dims(g, (1, 0, 2)) if components > 1 else g
    flat = xp.reshape(by_component, (components, -1))
    return xp.matmul(flat, xp.matrix_transpose(flat))


def solve_components(matrix: Host, signal: Array) -> Array:
    """Apply ``matrix^{-1}`` (P, P), on the host, to the components of a signal (P, D) or (P, D, D)."""
    if len(matrix) == 1:
        return signal / float(matrix[0, 0])
    xp = namespace(signal)
    flat = xp.reshape(signal, (len(matrix), -1))
    return xp.reshape(xp.linalg.solve(send(matrix, signal), flat), signal.shape)


# -- damping: one weight for all samples, smaller for samples with unusually large inputs ------------------------------------

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
