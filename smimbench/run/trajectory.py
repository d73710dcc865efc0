"""The trajectory of a run: metrics of its estimate at every measured iteration, and how far they went about at its end."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from smimbench.interfaces import Array, Info
    from smimbench.problem.instance import Instance

__all__ = ["SPREAD", "Trajectory"]

SPREAD = 40
"""Iterations over which the fluctuation of a run that never comes to rest is taken. Doubled: slow swings count in full."""


@dataclass
class Trajectory:
    """The measured points of a run: errors of the estimate, each at its iteration and its second."""

    instance: Instance
    metrics: dict[str, list[float]] = field(default_factory=dict)
    trajectory: dict[str, list[Any]] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)

    def record(self, estimate: Array, iteration: int, seconds: float, info: Info) -> None:
        """Measure the estimate at this iteration and second, beside what its step reported."""
        samples, damping = (math.nan if x is None else float(x) for x in (info.samples, info.damping))
        if info.damping is not None:  # the start was not damped
            self.trajectory.setdefault("damping", [math.nan] * len(self.trajectory["iteration"]))
        self.metrics = values = self.instance.metrics(estimate, self.broken)
        for name in self.broken:  # a metric that raised once has no trajectory
            self.trajectory.pop(name, None)
        entries = {"iteration": iteration, "seconds": seconds, **values, "residual": info.residual, "samples": samples}
        if "damping" in self.trajectory:
            entries["damping"] = damping
        for name, entry in entries.items():
            self.trajectory.setdefault(name, []).append(entry)

    def spread(self) -> dict[str, list[float]]:
        """Standard deviation of every metric, per component, over the measured ones of the last ``SPREAD`` iterations."""
        iterations = self.trajectory["iteration"]
        count = sum(iteration > iterations[-1] - SPREAD for iteration in iterations)
        return {f"{name}_spread": np.std(self.trajectory[name][-count:], axis=0).tolist() for name in self.metrics}

    @property
    def finite(self) -> bool:
        """Whether the metrics measured last are finite numbers."""
        return all(math.isfinite(v) for values in self.metrics.values() for v in values)
