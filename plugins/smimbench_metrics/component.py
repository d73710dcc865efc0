"""What metrics of single components have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smimbench.backend import to_host
from smimbench.interfaces import Capabilities, Metric

if TYPE_CHECKING:
    from smimbench.interfaces import Array, Claims


class PerComponent(Metric):
    """One number per component; larger ones are better where a metric does not say otherwise."""

    version = 1
    capabilities = Capabilities()
    direction = "higher"
    per_component = True

    def measure(self, instance: Any, estimate: Array, claims: Claims) -> list[float]:
        """The values of the aligned estimate."""
        return [float(value) for value in to_host(self._values(instance.problem, claims))]

    def _values(self, problem: Any, claims: Claims) -> Array:
        """An array (P,); raises ``NotMeasured`` if there is none."""
        raise NotImplementedError
