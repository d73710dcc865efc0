"""One pass of message passing (forward, posterior, adjoint) over the samples, in chunks, reading the inputs once."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import NamedTuple

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
