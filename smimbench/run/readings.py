"""What the loop reads of every step: its numbers on the host, and whether they have diverged."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.backend.arrays import read_together
from smimbench.interfaces import STORED_NAMES, Info

if TYPE_CHECKING:
    from smimbench.problem.problem import Problem

__all__ = ["READINGS", "Readings"]

READINGS = (*STORED_NAMES, "integration_error")
"""Entries of ``Info`` that are arrays, beside the residual."""

ORDER_PARAMETERS = ("predicted_overlap", "self_overlap", "squared_step")
"""Readings that must be finite numbers."""

LARGEST_GROWTH = 1e3
"""Self-overlap, in second moments of the signal, above which a run has diverged. Doubled: noticed some iterations later."""

COARSE = 1e-3
"""Error of posterior integrals, in widths of the posterior, from which on the user is warned. Doubled: fewer warnings."""


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

    def _divergence(self, residual: float, found: dict[str, Any]) -> str:
        unfinite = [name for name in ORDER_PARAMETERS if not np.isfinite(found.get(name, 0.0)).all()]
        if not math.isfinite(residual):
            return "the residual is not a finite number"
        if unfinite:
            return f"{STORED_NAMES[unfinite[0]]} is not a finite number"
        if (found.get("self_overlap", self.second) > LARGEST_GROWTH * self.second).any():
            return f"the estimate grew to an overlap of {found['self_overlap'].max():.1e}"
        return ""

    def warnings(self) -> list[str]:
        """A warning if the posterior was once integrated so coarsely that it may show."""
        if self._coarsest < COARSE:
            return []
        return [f"posterior integrals were accurate to {self._coarsest:.0e} of their width only"]

    def final(self) -> dict[str, Any]:
        """Last readings, under the keys of a record."""
        named = {STORED_NAMES.get(name, name): getattr(self.latest, name) for name in READINGS}
        kept = {key: value.tolist() for key, value in named.items() if value is not None}
        return {"residual": self.latest.residual, **kept}
