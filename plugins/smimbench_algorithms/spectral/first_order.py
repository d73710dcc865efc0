"""One step of message passing from the prior mean or from zero, denoised by the prior, and its limit as D goes to infinity."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smimbench.backend import dtype_name, matching, namespace, send, to_host
from smimbench.derive import denoise_step
from smimbench.numerics import with_floor
from smimbench.theory import information_at, overlap_at, prior_moments
from smimbench_algorithms.gamp.algorithm import GampState, pass_by_chunks, solve_first

if TYPE_CHECKING:
    from smimbench.interfaces import Data, Denoised
    from smimbench.problem import Problem
    from smimbench.theory import Host

__all__ = ["ORIGINS", "first_order", "first_order_theory"]

ORIGINS = ("prior-mean", "zero")


def _origin(problem: Problem, origin: str) -> tuple[Host, Host]:
    """Overlap Q and error V of the starting point."""
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
    prior, P, n = problem.prior, problem.components, data.inputs.shape[0]
    base = namespace(data.inputs).asarray(prior.mean(P, data.dimension), **matching(data.inputs))
    if origin == "zero":
        base = 0 * base
    V = np.asarray(_origin(problem, origin)[1], dtype=dtype_name(base))
    inverse = np.linalg.inv(V)
    _, total, covariance, _ = pass_by_chunks(problem, data, GampState(base, V, None, rng), inverse)
    information = inverse - inverse @ (to_host(covariance) / n @ inverse)
    # A sample or two without information: the prior mean hardly moves.
    Qhat = with_floor(
        problem.model.kappa * data.sample_ratio * problem.model.sites * information, 1e-9 * np.abs(inverse).max()
    )
    R = base + solve_first(Qhat, total)
    return denoise_step(prior, R, send(Qhat, R))


def first_order_theory(problem: Problem, alpha: float, origin: str = "prior-mean") -> tuple[Host, Host, Host, str]:
    """Overlap Q (P, P), error V (P, P), numerical error of diag V (P,), and method of ``first_order`` in the limit."""
    Q, V = _origin(problem, origin)
    found = information_at(problem, Q, V)
    scale = problem.model.kappa * alpha
    Q, V = overlap_at(problem, scale * found.value)
    shifted = overlap_at(problem, scale * found.value + scale * np.diag(np.diagonal(found.error)))[1]
    return Q, V, np.abs(np.diagonal(shifted - V)), found.method
