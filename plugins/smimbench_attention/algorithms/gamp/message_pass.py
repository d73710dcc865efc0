"""A pass of message passing (forward, posterior, adjoint) over the samples, in chunks, and the damping of its messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np

from smimbench.backend import clip, namespace, sample_chunks, send, take_samples
from smimbench.interfaces import Array, Data, Host, Posterior, checked_posterior
from smimbench.problem import Problem

SMALLEST_V, SMALLEST_QHAT = 1e-16, 1e-12
"""Floors of the predicted error, for at perfect recovery V would underflow and g be 0 / 0; and of the information, which sampling
noise can make negative. Doubled: no change but there."""


_WIDEST_PRODUCT = 64
"""Components times sites up to which a sample is multiplied as one vector. Doubled: twice the time of a batch of products."""


class Messages(NamedTuple):
    """Messages g of one pass from the samples to the signal, their adjoint summed over samples, posterior covariances of the
    latents, and squares ``g g^T`` summed over samples and sites, before and after damping.

    Attributes
    ----------
    g : array (n, P, C)
        ``V^{-1} (E[z | y, omega, V] - omega)``, damped.
    summed_adjoint : array (P, ...)
        ``adjoint(X, g)``.
    summed_covariance : array (P, P)
        Posterior covariances of the latents, summed over samples.
    undamped_square_of_g, square_of_g : array (P, P)
        Products ``g g^T``, summed over samples and sites, before and after damping.
    integration_errors : list of array
        Of the posteriors of every chunk.
    """

    g: Array
    summed_adjoint: Array  # adjoint of g, over all samples
    summed_covariance: Array  # posterior covariances, summed
    undamped_square_of_g: Array  # g g^T before damping, summed
    square_of_g: Array  # g g^T after damping, summed
    integration_errors: list[Array]  # integration error of every chunk


def message_pass(
    problem: Problem,
    data: Data,
    estimate: Array,
    V: Host,
    rng: np.random.Generator | None,
    *,
    previous_g: Array | None = None,
    Gamma: Host | None = None,
    damping_weights: float | Array = 1.0,
    posterior_without_wait: Callable[..., Posterior] | None = None,
) -> Messages:
    r"""Compute the messages g (n, P, C) of all n samples at an estimate with the error V (P, P), from posteriors of the latents
    given the prior N(omega, V): omega are the latents of the estimate minus the Onsager term ``Gamma g_{t-1}``.
    ``damping_weights`` are the weights of the new g against ``previous_g``.

    .. math:: \omega = \mathrm{forward}(X, \hat W) - \Gamma\, g_{t-1}, \qquad
        g = V^{-1} (E[z | y, \omega, V] - \omega)

    Parameters
    ----------
    previous_g : array (n, P, C), optional
        ``g_{t-1}``; without it, as at the first step, there is no Onsager term and nothing is damped.
    Gamma : ndarray (P, P), optional
        Factor of the Onsager term, needed with ``previous_g``: V, or less where g has more noise than predicted.
    damping_weights : float or array (n,)
        Weight of the new g against the previous one, of all samples or of each.
    posterior_without_wait : callable, optional
        Takes the place of the channel's posterior; where an integration error is infinite, the pass has to be made again.
    """
    model = problem.model
    V_inverse = inverse(V)
    V_on_device = send(V, estimate)
    g_chunks = []
    covariances = []
    integration_errors = []
    undamped_products, damped_products = [], []
    summed_adjoint: Array = None
    for chunk in sample_chunks(model, data.inputs, problem.components):
        inputs = take_samples(model, data.inputs, chunk)
        omega = model.forward(inputs, estimate)
        if previous_g is not None:
            assert Gamma is not None
            omega = omega - multiply_components(Gamma, previous_g[chunk, ...])
        label_and_law = data.labels[chunk, ...], omega, V_on_device
        if posterior_without_wait is not None:
            posterior = posterior_without_wait(*label_and_law)
        else:
            posterior = problem.channel.posterior(*label_and_law, rng=rng)
        posterior = checked_posterior(posterior, omega)
        g = multiply_components(V_inverse, posterior.mean - omega)
        g_product = _square_of_g(g)
        undamped_products.append(g_product)
        if previous_g is not None:
            chunk_weight = damping_weights
            if not isinstance(damping_weights, float):
                chunk_weight = damping_weights[chunk, None, None]
            g = chunk_weight * g + (1 - chunk_weight) * previous_g[chunk, ...]
            g_product = _square_of_g(g)
        damped_products.append(g_product)
        covariances.append(posterior.covariance * (chunk.stop - chunk.start))
        integration_errors.append(posterior.error)
        g_chunks.append(g)
        chunk_adjoint = model.adjoint(inputs, g)
        if summed_adjoint is None:
            summed_adjoint = chunk_adjoint
        else:
            summed_adjoint += chunk_adjoint
    if len(g_chunks) > 1:
        g_chunks = [namespace(estimate).concat(g_chunks, axis=0)]
    summed_covariance, undamped_square_of_g, square_of_g = (
        reduce(add, chunk_sums)
        for chunk_sums in (covariances, undamped_products, damped_products)
    )
    return Messages(
        g_chunks[0],
        summed_adjoint,
        summed_covariance,
        undamped_square_of_g,
        square_of_g,
        integration_errors,
    )


def label_information(V: Host, covariance: Host) -> Host:
    """Information ``V^{-1} - V^{-1} Cov V^{-1}`` (P, P) of a label on its latents of prior variance V (P, P), with
    ``covariance`` Cov the mean posterior one.
    """
    V_inverse = inverse(V)
    return np.asarray(V_inverse - V_inverse @ (covariance @ V_inverse))


def inverse(matrix: Host) -> Host:
    """Inverse of a matrix (P, P) between components; of a single number LAPACK takes several times as long. LinAlgError if there
    is none.
    """
    return 1 / matrix if len(matrix) == 1 and matrix.all() else np.linalg.inv(matrix)


def multiply_components(matrix: Host, z: Array) -> Array:
    """Multiply the latents z (n, P, C) of every sample by a ``matrix`` (P, P) between components, on the host:
    ``sum_q matrix_pq z_qc`` (n, P, C) for component p and site c.

    Where components times sites are few it is one product of all samples with a matrix ``wide_matrix`` (P C, P C): a batch of
    products of tiny matrices takes ten times as long.
    """
    if len(matrix) == 1:
        return z * float(matrix[0, 0])
    xp = namespace(z)
    n, components, sites = z.shape
    if components * sites > _WIDEST_PRODUCT:
        return xp.matmul(send(matrix, z), z)
    wide_matrix = send(np.kron(matrix.T, np.eye(sites)), z)
    flat_z = xp.reshape(z, (n, components * sites))
    return xp.reshape(xp.matmul(flat_z, wide_matrix), z.shape)


def _square_of_g(g: Array) -> Array:
    """Square of the messages ``g`` (n, P, C), summed over samples mu and sites c: ``sum_{mu, c} g_pc g_qc`` (P, P) for
    components p and q.
    """
    xp, components = namespace(g), g.shape[1]
    g_by_component = xp.permute_dims(g, (1, 0, 2)) if components > 1 else g
    flat_g = xp.reshape(g_by_component, (components, -1))
    return xp.matmul(flat_g, xp.matrix_transpose(flat_g))


def solve_components(matrix: Host, signal: Array) -> Array:
    """Apply the inverse of ``matrix`` (P, P), on the host, to the P components of a signal (P, D) or (P, D, D)."""
    if len(matrix) == 1:
        return signal / float(matrix[0, 0])
    xp = namespace(signal)
    flat_signal = xp.reshape(signal, (len(matrix), -1))
    return xp.reshape(xp.linalg.solve(send(matrix, signal), flat_signal), signal.shape)


# -- damping: one weight for all samples, smaller for samples with unusually large inputs ------------------------------------

Number = np.floating[Any]
"""A NumPy number on the host, in the precision of the run."""


class DampingSettings(NamedTuple):
    """Settings of adaptive damping, whose weight shrinks after a step that was too large and grows otherwise: initial weight, its
    bounds and the factors by which it changes.

    Attributes
    ----------
    initial_weight, largest_weight, smallest_weight : float
        Weight of the first step (at least), and bounds of all others. A larger initial weight lets few samples push the
        estimate too far before the Onsager term acts.
    shrink_factor, growth_factor : float
        Factors of the weight.
    """

    initial_weight: float
    largest_weight: float
    smallest_weight: float
    shrink_factor: float  # after a step that was too large
    growth_factor: float  # after any other step


DAMPING_SETTINGS = {
    "extensive": DampingSettings(0.5, 0.95, 0.02, 0.5, 1.15),
    "low": DampingSettings(1.0, 1.0, 0.1, 0.7, 1.03),
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


class DampingState(NamedTuple):
    """State of adaptive damping: the ``weight`` of the next step (1: undamped) and what it is computed from.
    ``extrapolation_factor`` lengthens the estimate's step, ``slow_steps`` counts slow steps since the last extrapolation,
    ``estimate_change`` and ``relative_change`` are those of the previous step.

    Attributes
    ----------
    weight, extrapolation_factor : NumPy number
        Weight of the new messages in the next step, and the factor by which the estimate moves further than everything else.
    slow_steps : int
        Slow, aligned steps since the last extrapolation.
    estimate_change : array (P, ...) or None
        Undamped change of the estimate in the previous step.
    relative_change : NumPy number
        Its size in units of the predicted error.
    """

    weight: Number
    extrapolation_factor: Number | float = 1.0
    slow_steps: int = 0  # since the last extrapolation
    estimate_change: Array | None = None  # undamped change in the previous step
    relative_change: Number | float = np.nan  # its size over the predicted error


def change_overlaps(
    problem: Problem, damping: DampingState, estimate_change: Array
) -> tuple[Array, ...]:
    """Overlaps (P, P) of the estimate's previous change, kept in ``damping``, with the current one, ``estimate_change``, and with
    itself, for low rank; nothing otherwise.
    """
    if damping.estimate_change is None or problem.model.rank == "extensive":
        return ()
    inner = problem.model.inner
    return inner(estimate_change, damping.estimate_change), inner(
        damping.estimate_change, damping.estimate_change
    )


def next_damping(
    problem: Problem,
    damping: DampingState,
    estimate_change: Array,
    overlaps_of_changes: Sequence[Host],
    squared_step: Host,
    predicted_error: Host,
    relative_change: Number,
) -> DampingState:
    """Choose the damping weight and the extrapolation of the next step after the change ``estimate_change``, from the overlaps of
    the last two changes of the estimate (``overlaps_of_changes``) or from the sizes of these changes. ``squared_step`` and
    ``predicted_error`` (P,) are the squared change and predicted squared error of every component, ``relative_change`` is the
    change in units of that error, ``length_ratio`` the length of the current change over the previous one.

    Low-rank steps that follow one another in the same direction, each shorter by the same factor r, converge to a known point:
    the estimate is extrapolated there, by ``1 / (1 - r)`` times its step (Aitken). This matters for labels such as ``hardmax``
    that do not depend on the scale of a component: only the prior corrects a wrong scale, by a fraction V of the error per step.

    Parameters
    ----------
    estimate_change : array (P, ...)
        Undamped change of the estimate in this step.
    overlaps_of_changes : sequence of ndarray (P, P)
        Result of ``change_overlaps``.
    squared_step, predicted_error : ndarray (P,)
        Squared change and predicted squared error of every component.
    relative_change : NumPy number
        Size of the change in units of the error.
    """
    if damping.estimate_change is None:
        return damping._replace(
            estimate_change=estimate_change, relative_change=relative_change
        )
    damping_settings = DAMPING_SETTINGS[problem.model.rank]
    extrapolation_factor: Number | float = 1.0
    slow_steps = 0
    if overlaps_of_changes:
        overlap_with_previous, previous_square = (
            np.sum(change_overlap.diagonal() / predicted_error)
            for change_overlap in overlaps_of_changes
        )
        # Smaller steps are never too large: growth out of a tiny start would be damped away.
        step_is_too_large = (
            overlap_with_previous < -0.5 * previous_square and relative_change > 0.1
        )
        # A run at rest has steps of length 0.
        smallest_normal_number = np.finfo(previous_square.dtype).tiny
        length_ratio = overlap_with_previous / np.maximum(
            previous_square, smallest_normal_number
        )
        overlap_if_parallel = np.sqrt(
            previous_square * np.sum(squared_step / predicted_error)
        )
        if (
            0.7 < length_ratio < 1
            and overlap_with_previous > 0.99 * overlap_if_parallel
        ):
            slow_steps = damping.slow_steps + 1
        if slow_steps == ALIGNED_STEPS:
            extrapolation_factor = 1 / np.maximum(1 - length_ratio, 0.01)
            slow_steps = 0
    else:
        step_is_too_large = relative_change > 1.3 * damping.relative_change
    if step_is_too_large:
        next_weight = np.maximum(
            damping.weight * damping_settings.shrink_factor,
            damping_settings.smallest_weight,
        )
    else:
        next_weight = np.minimum(
            damping.weight * damping_settings.growth_factor,
            damping_settings.largest_weight,
        )
    return DampingState(
        next_weight, extrapolation_factor, slow_steps, estimate_change, relative_change
    )


def limit_damping(
    damping: DampingState, V: Host, Qhat: Host, strengths: Array | None
) -> DampingState:
    """Limit the damping weight of a step to the largest value that is stable for extensive-rank matrices, given error V and
    information Qhat (P, P) of the estimate and the ``strengths`` (n,) of the samples, squared largest eigenvalues of their
    tokens' Gram matrices (None: all are large).
    """
    largest_weight = (
        LARGEST_COMMON if strengths is None else 0.8 + 0.4 * mean_slope(V, Qhat)
    )
    return damping._replace(
        weight=np.minimum(damping.weight, V.dtype.type(largest_weight))
    )


def mean_slope(V: Host, Qhat: Host) -> float:
    """Mean slope ``V_pp Qhat_pp`` of the denoiser, smallest over the components p and at most 1, from error V and information
    Qhat (P, P).
    """
    slopes: list[float] = (V.diagonal() * Qhat.diagonal()).tolist()
    return min(1.0, *slopes)


def sample_strengths(problem: Problem, data: Data) -> Array | None:
    """Strength (n,) of every sample: the squared largest eigenvalue of the Gram matrix ``X X^T / D`` of its tokens X (T, D); None
    if that is large on average.

    It is 1 in the limit.

    None where their mean is above ``LARGEST_TYPICAL``: then all samples take the same weight.
    """
    model = problem.model
    xp = namespace(data.inputs)
    strength_chunks = []
    for chunk in sample_chunks(model, data.inputs, problem.components):
        tokens = take_samples(model, data.inputs, chunk)
        gram = xp.matmul(tokens, xp.matrix_transpose(tokens)) / tokens.shape[-1]
        strength_chunks.append(xp.max(xp.linalg.eigvalsh(gram), axis=-1) ** 2)
    strengths = xp.concat(strength_chunks)
    return strengths if float(xp.mean(strengths)) < LARGEST_TYPICAL else None


def sample_weights(
    weight: float, strengths: Array | None, V: Host, Qhat: Host | None
) -> float | Array:
    """Damping weights of the new messages: the same ``weight`` for all samples, or if their ``strengths`` (n,), squared
    eigenvalues of their tokens' Gram matrices, are given, one for each, at most ``weight`` and smaller for strong samples; V and
    Qhat (P, P) are error and information of the estimate.
    """
    if strengths is None or Qhat is None:
        return weight
    weight_over_common = SHARE_OF_EDGE * 2 * (1 + mean_slope(V, Qhat)) / strengths
    return weight * clip(weight_over_common, None, 1.0)
