"""Overlap of the estimate with the signal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from smimbench.backend.arrays import to_host
from smimbench.interfaces import Capabilities

if TYPE_CHECKING:
    from smimbench.interfaces import Array, Claims

__all__ = ["Overlap"]


@dataclass(frozen=True)
class Overlap:
    """Low rank: squared cosine between each component and its teacher. Extensive rank: ``q = tr(S_hat S) / D``."""

    name: ClassVar[str] = "overlap"
    version: ClassVar[int] = 1
    reference: ClassVar[str] = "the definition; theory is diag Q (over the second moment for low rank)"
    capabilities: ClassVar[Capabilities] = Capabilities()
    label: ClassVar[str] = "overlap"
    unit: ClassVar[str] = "1 (low rank) or 1 + rho (extensive rank) for the signal itself"
    direction: ClassVar[str] = "higher"
    per_component: ClassVar[bool] = True
    in_trajectory: ClassVar[bool] = True

    def measure(self, instance: Any, estimate: Array, claims: Claims) -> list[float]:
        """Overlap of every component of the aligned estimate, as the model defines it."""
        model = instance.problem.model
        return [float(value) for value in to_host(model.overlap(claims.teacher, claims.aligned))]

    def theory(self, problem: Any, point: dict[str, Any]) -> tuple[list[float], list[float]]:
        """``squared_cosine`` of the point where it has one, otherwise the diagonal of Q with the error of the MSE."""
        if "squared_cosine" in point:
            return point["squared_cosine"], point["squared_cosine_error"]
        Q, errors = point["overlap"], point["mse_error"]
        values = [row[component] for component, row in enumerate(Q)]
        return values, errors if isinstance(errors, list) else [errors]
