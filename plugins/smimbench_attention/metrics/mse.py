"""Mean squared error of the estimate of the signal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench_attention.metrics import PerComponent

if TYPE_CHECKING:
    from smimbench.interfaces import Array, Claims, Model
    from smimbench.problem import Problem


class MSE(PerComponent):
    """Squared error ``|S_p - S_hat_p|^2 / D`` of each component, with the symmetry removed; 1 for the prior mean."""

    name = "mse"
    reference = "the definition; theory is diag(second_moment - Q), arXiv:2506.01582"
    label = "MSE"
    unit = "error of the prior mean"  # what the value 1 means
    direction = "lower"  # lower values are better
    in_trajectory = True  # measured along trajectories, too

    def bounded(self, model: Model) -> bool:
        """Whether the posterior mean is the best estimate by this metric: true, no estimate has a smaller mean squared error, in
        any model.
        """
        return True

    def _values(self, problem: Problem, claims: Claims) -> Array:
        """Squared error (P,) of every component of the aligned estimate in ``claims``."""
        return problem.model.squared_error(claims.teacher, claims.aligned)

    def theory(
        self, problem: Problem, point: dict[str, Any]
    ) -> tuple[list[float], list[float]]:
        """Theoretical squared error of every component and its own error, at a ``point`` of theory (its order
        parameters).
        """
        return np.atleast_1d(point["mse"]).tolist(), np.atleast_1d(
            point["mse_error"]
        ).tolist()
