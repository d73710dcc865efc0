"""The metrics that ship with smimbench, measures of the quality of an estimate, and their base class."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smimbench.backend import to_host
from smimbench.interfaces import Capabilities, Metric

if TYPE_CHECKING:
    from smimbench.interfaces import Array, Claims
    from smimbench.problem import Instance, Problem


class PerComponent(Metric):
    """Base class of metrics with one number per component; larger is better unless a subclass says otherwise."""

    version = 1
    capabilities = Capabilities()
    direction = "higher"  # higher values are better
    per_component = True  # one value for each component

    def measure(
        self, instance: Instance, estimate: Array, claims: Claims
    ) -> list[float]:
        """Measure every component of the estimate of an instance's signal after the symmetry is removed. ``claims`` holds the
        signal, the aligned estimate and the error that the algorithm claims; with one more axis in front, those of several
        instances, for a list of each.
        """
        values: list[float] = to_host(self._values(instance.problem, claims)).tolist()
        return values

    def _values(self, problem: Problem, claims: Claims) -> Array:
        """Value of the metric for each component (P,), defined by subclasses; raises ``NotMeasured`` if there is none.
        ``claims`` holds signal, aligned estimate and claimed error.
        """
        raise NotImplementedError
