"""One step of message passing from the prior mean or from zero, denoised by the prior, and its limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import array_api_compat
import numpy as np

from smimbench.backend import namespace, sample_chunks
from smimbench.theory.information import channel_information

if TYPE_CHECKING:
    from smimbench.interfaces import Data, Denoised
    from smimbench.problem import Problem
    from smimbench_algorithms.spectral.outliers import Host

__all__ = ["ORIGINS", "first_order", "first_order_theory"]

ORIGINS = ("prior-mean", "zero")


def _origin(problem: Problem, origin: str) -> tuple[Host, Host]:
    """Overlap Q and error V of the point that the step starts from."""
    if origin not in ORIGINS:
        raise ValueError(f"origin must be one of {', '.join(ORIGINS)}, got {origin!r}")
    second = np.asarray(problem.prior.second_moment(problem.components), dtype=float)
    known = np.asarray(problem.prior.mean_overlap(problem.components), dtype=float)
    return (known, second - known) if origin == "prior-mean" else (np.zeros_like(second), second)


def first_order(
    problem: Problem, data: Data, origin: str = "prior-mean", rng: np.random.Generator | None = None
) -> Denoised:
    r"""One step of message passing, denoised by the prior: ``denoise(S_0 + Qhat^{-1} adjoint(g), Qhat)``.

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
    place = {"dtype": data.inputs.dtype, "device": array_api_compat.device(data.inputs)}
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
        found = channel.posterior(data.labels[part, ...], omega, V, rng=rng)
        total = total + model.adjoint(inputs, xp.matmul(inverse, found.mean - omega))
        covariance = covariance + found.covariance * inputs.shape[0]
    information = inverse - xp.matmul(inverse, xp.matmul(covariance / n, inverse))
    Qhat = (
        model.kappa * data.sample_ratio * model.sites * (information + xp.matrix_transpose(information)) / 2
    )
    step = xp.reshape(xp.linalg.solve(Qhat, xp.reshape(total, (P, -1))), total.shape)
    return problem.prior.denoise(base + step, Qhat)


def first_order_theory(
    problem: Problem, alpha: float, origin: str = "prior-mean"
) -> tuple[Host, Host, Host, str]:
    """Overlap Q (P, P), error V (P, P), numerical error of diag V (P,), and method of ``first_order`` in the limit."""
    Q, V = _origin(problem, origin)
    found = channel_information(problem.channel, problem.model, Q, V)
    Qhat = problem.model.kappa * alpha * np.asarray(found.value)
    overlap = problem.prior.overlap(Qhat)
    error = np.broadcast_to(np.asarray(found.error, dtype=float), Qhat.shape)
    shifted = problem.prior.overlap(Qhat + problem.model.kappa * alpha * np.diag(np.diagonal(error)))
    numerical = np.abs(np.diagonal(np.asarray(shifted.V) - np.asarray(overlap.V)))
    return np.asarray(overlap.Q), np.asarray(overlap.V), numerical, found.method
