r"""Descent on a wide factor with weight decay has the minimum of nuclear-norm regression, and so its theory.

For ``S = s W W^T`` the squared norm of the factor is a trace, ``|W|^2 = tr(S) / s``: with a loss that is convex in S and a factor
at least as wide as the rank of the minimum, every local minimum in W is the minimum over matrices ``S >= 0`` with the penalty
``tau tr S`` (Burer and Monteiro, Math. Program. 103, 2005).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.derive.channel import predict
from smimbench.interfaces import member
from smimbench.numerics.seeds import monte_carlo_rng
from smimbench_algorithms.least_squares import SAME, seen_by_labels
from smimbench_algorithms.nuclear.limit import Observations, fixed_point, minimum_point, no_theory

if TYPE_CHECKING:
    from smimbench.problem import Problem

__all__ = ["label_observations", "wide_factor_point"]


def label_observations(problem: Problem, alpha: float) -> Observations | str:
    """Observations with the weights that the squared error of the label gives them, or why it is not of that kind.

    The label has to be linear in the latents, one entry for each: ``y_c = b_c z_c + noise``; the weight is ``b_c^2``.
    """
    seen = seen_by_labels(problem)
    if isinstance(seen, str):
        return f"the squared error of the label is not convex in the signal: {seen}"
    sites = problem.model.sites
    z = np.concatenate([np.eye(sites), monte_carlo_rng("labels of single latents").standard_normal((1, sites))])[
        :, None, :
    ]
    y = np.asarray(predict(problem.channel, z), dtype=float).reshape(sites + 1, -1)
    noise = seen.rows.T @ np.diag(seen.noise) @ seen.rows
    diagonal = y.shape[1] == sites and all(np.allclose(m, np.diag(np.diag(m)), atol=SAME) for m in (y[:-1], noise))
    if not diagonal or len(seen.rows) < sites or not np.allclose(y[-1], z[-1, 0] @ y[:-1], atol=SAME):
        return "the label is not a latent in every entry"
    return Observations(np.diag(y[:-1]) ** 2, np.diag(noise), problem.model.kappa * alpha)


def wide_factor_point(
    problem: Problem, alpha: float, decay: float, dimension: int | None, width: int | None
) -> dict[str, Any] | str:
    r"""The minimum of ``(1/D) [sum_mu |y - y_hat|^2 + (decay/2) |W|^2]`` in the limit, or in words why there is no theory of it.

    Parameters
    ----------
    decay : float
        lambda > 0; ``tau = lambda / (2 D s)`` for ``S = s W W^T``.
    dimension, width : int or None
        D, and columns of W; a width of None is that of the prior's own factors.
    """
    if why := no_theory(problem):
        return why
    scale = member(problem.prior, "gram_scale")
    if scale is None:
        return f"prior {problem.prior.name!r} does not make its signals of W W^T"
    if dimension is None:
        return "the width of the factor over D decides, and D is not known"
    seen = label_observations(problem, alpha)
    if isinstance(seen, str):
        return seen
    prior: Any = problem.prior
    factor = prior.draw_factor(monte_carlo_rng("shape of a factor"), 1, dimension, width)
    columns = factor.shape[-1]
    found = fixed_point(prior, seen, decay / (2 * dimension * scale(factor)), positive=True)
    if found.estimate.rank > columns / dimension:
        return (
            f"a factor of {columns} columns is narrower than the minimum is of rank "
            f"({found.estimate.rank * dimension:.0f} of D = {dimension}), and can end in others"
        )
    point = minimum_point(problem, alpha, found, positive=True)
    return point | {"method": "minimum over a wide factor, if the steps are enough to reach it; state evolution"}
