"""What the loop reads: numbers of every step, whether they have diverged, and metrics of the measured ones."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.backend.arrays import read_together
from smimbench.interfaces import Info

if TYPE_CHECKING:
    from smimbench.files import JsonObject
    from smimbench.interfaces import Array
    from smimbench.problem.instance import Instance
    from smimbench.problem.problem import Problem

__all__ = ["READINGS", "Readings", "Trajectory"]

READINGS = ("predicted_overlap", "self_overlap", "squared_step", "log_information_ratio", "integration_error")
"""Entries of ``Info`` that are arrays, besides the residual."""


class Readings:
    """Reads what steps report, all at once where it lives on a device.

    Attributes
    ----------
    latest : Info
        What the last step reported, on the host.
    divergence : str
        In which way it has diverged; empty where it has not.
    """

    def __init__(self, problem: Problem) -> None:
        self.second = np.diagonal(np.asarray(problem.prior.second_moment(problem.components)))
        self.latest = Info(residual=math.inf)
        self.divergence = ""
        self._coarsest = 0.0

    def read(self, info: Info) -> Info:
        """The same on the host: the residual a float, readings float64 arrays."""
        values = {"residual": info.residual}
        values |= {name: value for name in READINGS if (value := getattr(info, name)) is not None}
        host = read_together(*values.values())
        found = {k: np.asarray(v, dtype=np.float64).ravel() for k, v in zip(values, host)}
        residual = float(found.pop("residual")[0])
        self.latest = Info(residual, warning=info.warning, samples=info.samples, damping=info.damping, **found)
        # Not max(): it would let a NaN go unnoticed.
        self._coarsest = float(np.max([self._coarsest, *found.get("integration_error", ())]))
        self.divergence = self._divergence(residual, found)
        return self.latest

    def _divergence(self, residual: float, found: JsonObject) -> str:
        finite = ("predicted_overlap", "self_overlap", "squared_step")
        unfinite = [name for name in finite if not np.isfinite(found.get(name, 0.0)).all()]
        if not math.isfinite(residual):
            return "the residual is not a finite number"
        if unfinite:
            return f"{unfinite[0]} is not a finite number"
        if (found.get("self_overlap", self.second) > 1e3 * self.second).any():
            return f"the estimate grew to an overlap of {found['self_overlap'].max():.1e}"
        return ""

    def warnings(self) -> list[str]:
        """A warning if the posterior was once integrated so coarsely that it may show."""
        if self._coarsest < 1e-3:
            return []
        return [f"posterior integrals were accurate to {self._coarsest:.0e} of their width only"]

    def final(self) -> JsonObject:
        """Last readings, as a record has them."""
        kept = {name: value.tolist() for name in READINGS if (value := getattr(self.latest, name)) is not None}
        return {"residual": self.latest.residual, **kept}


@dataclass
class Trajectory:
    """The measured points of a run: errors of the estimate, each at its iteration and its second."""

    instance: Instance
    metrics: dict[str, list[float]] = field(default_factory=dict)
    trajectory: dict[str, list[Any]] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)

    def record(self, estimate: Array, iteration: int, seconds: float, info: Info) -> None:
        """Measure the estimate at this iteration and second, with what its step reported."""
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
        """Standard deviation of every metric, per component, over the measured ones of the last 40 iterations."""
        iterations = self.trajectory["iteration"]
        count = sum(iteration > iterations[-1] - 40 for iteration in iterations)
        return {f"{name}_spread": np.std(self.trajectory[name][-count:], axis=0).tolist() for name in self.metrics}

    @property
    def finite(self) -> bool:
        """Whether the metrics measured last are finite numbers."""
        return all(math.isfinite(v) for values in self.metrics.values() for v in values)
