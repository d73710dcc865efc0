"""Mean squared error of the signal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from smimbench.backend.arrays import to_host
from smimbench.interfaces import Capabilities

if TYPE_CHECKING:
    from smimbench.interfaces import Array, Claims

__all__ = ["MSE"]


@dataclass(frozen=True)
class MSE:
    """Squared error of the signal with the symmetry removed: ``|S_p - S_hat_p|^2 / D``, 1 for the prior mean."""

    name: ClassVar[str] = "mse"
    version: ClassVar[int] = 1
    reference: ClassVar[str] = "the definition; theory is diag(second_moment - Q), arXiv:2506.01582"
    capabilities: ClassVar[Capabilities] = Capabilities()
    label: ClassVar[str] = "MSE"
    unit: ClassVar[str] = "error of the prior mean"
    direction: ClassVar[str] = "lower"
    per_component: ClassVar[bool] = True
    in_trajectory: ClassVar[bool] = True

    def measure(self, instance: Any, estimate: Array, claims: Claims) -> list[float]:
        """Squared error of every component of the aligned estimate."""
        model = instance.problem.model
        return [float(value) for value in to_host(model.squared_error(claims.teacher, claims.aligned))]

    def theory(self, problem: Any, point: dict[str, Any]) -> tuple[list[float], list[float]]:
        """The error of the point, component by component."""
        return as_list(point["mse"]), as_list(point["mse_error"])


def as_list(value: float | list[float]) -> list[float]:
    """A number of a point, or a list of them (several components), as a list."""
    return value if isinstance(value, list) else [value]
