"""Means tested against what they must be, so that chance does not fail a check.

Statistical checks draw from fixed seeds, so that a check that passes today passes tomorrow. Their thresholds are two-sided
quantiles of Student's t law for the whole set of numbers that one check looks at (Bonferroni) at ``NOMINAL_RATE``. The rate
that is promised for another seed, ``FALSE_ALARM``, is a hundred times that: room for means that are not quite Gaussian.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.numerics.statistics import normal_score
from smimbench.testing.core import CheckFailed, CheckSkipped

if TYPE_CHECKING:
    from smimbench.interfaces import Array

__all__ = ["NOMINAL_RATE", "MeanTest"]

NOMINAL_RATE = 1e-6
"""Probability that one check fails by chance if its means are Gaussian. Doubled, thresholds fall by about 0.1 standard errors."""

ROUNDING = 1e-12
"""Differences below this are rounding. Doubled, a bias of that size goes unseen."""


class MeanTest:
    """Numbers that must vanish up to chance and up to a stated numerical error, judged together."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, float, float, float, float]] = []

    def mean(self, what: str, samples: Array, target: Any = 0.0, *, allowance: Any = 0.0) -> None:
        """Independent samples (n, ...) whose means must be ``target``, give or take ``allowance``."""
        samples = np.asarray(samples, dtype=float)
        flat = samples.reshape(len(samples), -1)
        goal = np.broadcast_to(np.asarray(target, dtype=float), samples.shape[1:]).ravel()
        slack = np.broadcast_to(np.asarray(allowance, dtype=float), samples.shape[1:]).ravel()
        error = flat.std(axis=0, ddof=1) / math.sqrt(len(flat))
        for k, value in enumerate(flat.mean(axis=0)):
            index = np.unravel_index(k, samples.shape[1:]) if samples.ndim > 1 else ()
            place = f"[{', '.join(map(str, map(int, index)))}]" if index else ""
            self.add(f"{what}{place}", value, goal[k], error[k], slack[k], len(flat) - 1)

    def add(
        self, what: str, value: float, target: float, error: float, allowance: float = 0.0, dof: float = 1e9
    ) -> None:
        """One number with its standard error."""
        if not all(map(math.isfinite, (value, target, error))):
            raise CheckFailed(f"{what} is {value:.4g} +- {error:.2g}: not a finite number")
        # Rounding is no chance: everything that is compared here is made of numbers of order one.
        gap = max(0.0, abs(value - target) - allowance - ROUNDING)
        score = gap / error if error > 0 else (math.inf if gap > 0 else 0.0)
        self.rows.append((what, value, target, error, normal_score(score, dof)))

    def judge(self) -> None:
        """Raise CheckFailed if the worst of all is too far off for chance."""
        from scipy.special import ndtri

        if not self.rows:
            raise CheckSkipped("there was nothing to compare")
        threshold = float(-ndtri(NOMINAL_RATE / (2 * len(self.rows))))
        worst = max(self.rows, key=lambda row: row[-1])
        what, value, target, error, score = worst
        if score > threshold:
            bad = sum(row[-1] > threshold for row in self.rows)
            raise CheckFailed(
                f"{what} is {value:.4g} +- {error:.1g}, must be {target:.4g}: {min(score, 999):.3g} standard errors away "
                f"({bad} of {len(self.rows)} numbers beyond {threshold:.2f})"
            )
