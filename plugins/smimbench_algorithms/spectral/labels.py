"""What a label says of products of latents at the prior mean: the weights ``G = E[z z^T | y] - I`` of the linearised matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import array_api_compat
import numpy as np

from smimbench.backend import namespace
from smimbench.numerics.linalg import symmetric_root

if TYPE_CHECKING:
    from smimbench.interfaces import Array
    from smimbench.problem import Problem
    from smimbench_algorithms.spectral.outliers import Host

__all__ = ["label_matrices", "second_moment_root", "why_not"]


def why_not(problem: Problem) -> str | None:
    """Why the matrices of linearised message passing do not fit a low-rank problem, or None."""
    known = np.asarray(problem.prior.mean_overlap(problem.components), dtype=float)
    second = np.asarray(problem.prior.second_moment(problem.components), dtype=float)
    if np.abs(known).max() > 1e-9 * np.abs(second).max():
        return "the low-rank matrices are linearised around zero, and this prior has a mean that is not zero; use gamp"
    return None


def second_moment_root(problem: Problem) -> Host:
    """Symmetric root of the prior's second moment (P, P)."""
    found = np.asarray(
        symmetric_root(np.asarray(problem.prior.second_moment(problem.components), dtype=float))
    )
    return np.eye(len(found)) if np.allclose(found, np.eye(len(found)), rtol=0, atol=1e-12) else found


def label_matrices(
    channel: Any, labels: Array, root: Host, C: int, *, rng: np.random.Generator, like: Array | None = None
) -> Array:
    """``G`` (n, P, C, P, C) of labels, computed where the labels (or ``like``) live, for components of unit second moment."""
    like = labels if like is None else like
    xp = namespace(like)
    place = {"dtype": like.dtype, "device": array_api_compat.device(like)}
    P = len(root)
    omega = xp.zeros((labels.shape[0], P, C), **place)
    V = xp.asarray(root @ root, **place)
    moment = channel.posterior(labels, omega, V, second_moment=True, rng=rng).second_moment
    if moment is None:
        raise ValueError(f"channel {channel.name!r} gives no second moment of its posterior")
    if not np.array_equal(root, np.eye(P)):
        inverse = xp.asarray(np.kron(np.linalg.inv(root), np.eye(C)), **place)
        flat = xp.reshape(moment, (-1, P * C, P * C))
        moment = xp.reshape(xp.matmul(xp.matmul(inverse, flat), inverse), moment.shape)
    return moment - xp.reshape(xp.eye(P * C, **place), (1, P, C, P, C))
