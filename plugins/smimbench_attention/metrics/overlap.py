"""Overlap of the estimate with the signal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smimbench_attention.metrics import PerComponent

if TYPE_CHECKING:
    from smimbench.interfaces import Array, Claims, Model
    from smimbench.problem import Problem


class OverlapMetric(PerComponent):
    """Overlap with the signal: squared cosine of each component (low rank), or ``tr(S_hat S) / D`` (extensive rank)."""

    name = "overlap"
    reference = "the definition; theory is diag Q (over the second moment for low rank)"
    label = "overlap"
    unit = "1 (low rank) or 1 + rho (extensive rank) for the signal itself"  # what the value 1 means
    in_trajectory = True  # measured along trajectories, too

    def bounded(self, model: Model) -> bool:
        """Whether the posterior mean is the best estimate by this metric: true for squared cosines (low rank), not for ``tr(S_hat
        S) / D``, which grows with the length of the estimate.
        """
        return model.rank == "low"

    def theory(
        self, problem: Problem, point: dict[str, Any]
    ) -> tuple[list[float], list[float]]:
        """Theoretical overlap and its error at a ``point`` of theory: its ``squared_cosine`` if given, else the
        diagonal of the overlap matrix Q, with the MSE's error.
        """
        if "squared_cosine" in point:
            return point["squared_cosine"], point["squared_cosine_error"]
        Q = point["overlap"]
        errors = point.get("overlap_error", point["mse_error"])
        diagonal_overlaps = [
            overlap_row[component] for component, overlap_row in enumerate(Q)
        ]
        return diagonal_overlaps, errors if isinstance(errors, list) else [errors]

    def _values(self, problem: Problem, claims: Claims) -> Array:
        """Overlap (P,) of every component of the aligned estimate in ``claims`` with the signal."""
        return problem.model.overlap(claims.teacher, claims.aligned)
