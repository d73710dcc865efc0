"""Calibration: the error that an algorithm claims, over the error that it makes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from smimbench.interfaces import Capabilities, NotMeasured

if TYPE_CHECKING:
    from smimbench.interfaces import Array, Claims

__all__ = ["Calibration"]

SMALLEST = 1e-9
"""Squared errors below this, relative to the second moment, have no ratio: both sides are rounding. Doubled, next to nothing."""


@dataclass(frozen=True)
class Calibration:
    """Claimed over real squared error of each component, ``V_pp D / |S_p - S_hat_p|^2``: 1 for an honest account, below 1 for
    one that is too sure of itself. Blank for algorithms that claim no error.
    """

    name: ClassVar[str] = "calibration"
    version: ClassVar[int] = 1
    reference: ClassVar[str] = (
        "Nishimori identity: on the Bayes-optimal line the claimed error is the real one"
    )
    capabilities: ClassVar[Capabilities] = Capabilities()
    label: ClassVar[str] = "claimed over real squared error"
    unit: ClassVar[str] = "the claim is right"
    direction: ClassVar[str] = "one"
    per_component: ClassVar[bool] = True

    def measure(self, instance: Any, estimate: Array, claims: Claims) -> list[float]:
        """Ratio of every component; NaN where the real error is nothing but rounding."""
        if claims.aligned_V is None:
            raise NotMeasured("it claims no error of its own")
        problem = instance.problem
        real = np.asarray(problem.model.squared_error(claims.teacher, claims.aligned), dtype=float)
        floor = SMALLEST * np.diagonal(np.asarray(problem.prior.second_moment(problem.components)))
        ratios = np.diagonal(claims.aligned_V) / np.where(real > floor, real, math.nan)
        if np.isnan(ratios).all():
            raise NotMeasured("the real error is 0 to rounding")
        return [float(ratio) for ratio in ratios]

    def theory(self, problem: Any, point: dict[str, Any]) -> tuple[list[float | None], list[float | None]]:
        """1 wherever theory leaves an error to be claimed."""
        second = np.diagonal(np.asarray(problem.prior.second_moment(problem.components)))
        errors = np.atleast_1d(np.asarray(point["mse"], dtype=float))
        known = errors > SMALLEST * second
        return [1.0 if k else None for k in known], [0.0 if k else None for k in known]
