"""One step of message passing from the prior mean or from zero, denoised by the prior, and its limit as D goes to infinity."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smimbench.backend import matching, namespace, sample_chunks
from smimbench.derive import denoise_step
from smimbench.interfaces import checked_posterior
from smimbench.theory import information_at, overlap_at, prior_moments

if TYPE_CHECKING:
    from smimbench.interfaces import Data, Denoised
    from smimbench.problem import Problem
    from smimbench.theory import Host

__all__ = ["ORIGINS", "first_order", "first_order_theory"]

ORIGINS = ("prior-mean", "zero")


def _origin(problem: Problem, origin: str) -> tuple[Host, Host]:
    """Overlap Q and error V of the starting point."""
    if origin not in ORIGINS:
        raise ValueError(f"origin must be one of {', '.join(ORIGINS)}, got {origin!r}")
    second, known = prior_moments(problem)
    return (known, second - known) if origin == "prior-mean" else (np.zeros_like(second), second)


def first_order(
    problem: Problem, data: Data, origin: str = "prior-mean", rng: np.random.Generator | None = None
) -> Denoised:
    r"""One step of message passing, denoised by the prior: ``denoise(S_0 + Qhat^{-1} adjoint(g), Qhat)``.

    Where the prior has it, by the ``continued`` denoiser. With a few samples a direction the largest eigenvalues of the step lie
    outside the bulk by chance; taken for spikes of the signal, they would make the error at D = 40 a fifth larger.

    Parameters
    ----------
    origin : {"prior-mean", "zero"}
        ``S_0``: the prior mean with its error, or zero with the whole second moment as its error.
    rng : numpy.random.Generator, optional
        For channels that integrate by sampling.

    Returns
    -------
    Denoised
        The estimate, signal-shaped, and the error that the prior predicts for it.

    References
    ----------
    arXiv:2506.01582; checked against ``first_order_theory`` by tests/algorithms/test_spectral_limit.py.
    """
    model, channel = problem.model, problem.channel
    xp = namespace(data.inputs)
    place = matching(data.inputs)
    n, D, P = data.inputs.shape[0], data.dimension, problem.components
    V = xp.asarray(_origin(problem, origin)[1], **place)
    base = xp.asarray(problem.prior.mean(P, D), **place)
    if origin == "zero":
        base = xp.zeros_like(base)
    inverse = xp.linalg.inv(V)
    total, covariance = xp.zeros_like(base), xp.zeros_like(V)
    for part in sample_chunks(model, data.inputs, P):
        inputs = data.inputs[part, ...]
        omega = model.forward(inputs, base)
        found = checked_posterior(channel.posterior(data.labels[part, ...], omega, V, rng=rng), omega)
        total = total + model.adjoint(inputs, xp.matmul(inverse, found.mean - omega))
        covariance = covariance + found.covariance * inputs.shape[0]
    information = inverse - xp.matmul(inverse, xp.matmul(covariance / n, inverse))
    Qhat = model.kappa * data.sample_ratio * model.sites * (information + xp.matrix_transpose(information)) / 2
    values, vectors = xp.linalg.eigh(Qhat)
    least = 1e-9 * float(xp.max(xp.abs(inverse)))
    if float(xp.min(values)) < least:  # a sample or two without information: the prior mean hardly moves
        Qhat = xp.matmul(vectors * xp.clip(values, least, None), xp.matrix_transpose(vectors))
    step = xp.reshape(xp.linalg.solve(Qhat, xp.reshape(total, (P, -1))), total.shape)
    return denoise_step(problem.prior, base + step, Qhat)


def first_order_theory(problem: Problem, alpha: float, origin: str = "prior-mean") -> tuple[Host, Host, Host, str]:
    """Overlap Q (P, P), error V (P, P), numerical error of diag V (P,), and method of ``first_order`` in the limit."""
    Q, V = _origin(problem, origin)
    found = information_at(problem, Q, V)
    scale = problem.model.kappa * alpha
    Q, V = overlap_at(problem, scale * found.value)
    shifted = overlap_at(problem, scale * found.value + scale * np.diag(np.diagonal(found.error)))[1]
    return Q, V, np.abs(np.diagonal(shifted - V)), found.method
