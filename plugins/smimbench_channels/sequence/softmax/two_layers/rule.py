"""What one adaptive quadrature of two layers is told: the problem, and when to stop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Rule"]


@dataclass(frozen=True)
class Rule:
    """One adaptive quadrature."""

    V: tuple[float, float, float]  # V_11, V_12, V_22
    skip: float  # c >= 0
    accuracy: float  # target for the relative error of every sample; doubled: less time, twice the error
    full: bool  # all second moments instead of their three traces over tokens
    # Columns of a piece, and points of a column, to begin with; even. Doubled: twice the time, up to half the error.
    points: int
    rounds: int = 9  # how often these are doubled at most
    negligible: float = 1e-4  # columns and pieces below this times the accuracy of the whole are not refined
    # Part of the error that columns may have; the rest is for pieces. Doubled: the same true error, a tenth more reported.
    share: float = 0.2

    @property
    def moments(self) -> int:
        """Number of sums: the weight, 4 first moments, and 10 second moments or 3 traces of them."""
        return 15 if self.full else 8

    @property
    def arguments(self) -> tuple[Any, ...]:
        """What the kernel takes: the problem, when to stop, and ``full``.

        The problem is V_11, V_22, V_12 / V_11, the variance of z_2 given z_1, c, and the units of z_1 and z_2.
        """
        v11, v12, v22 = self.V
        b = v12 / v11
        problem = v11, v22, b, v22 - v12 * b, float(self.skip), v11**-0.5, v22**-0.5
        limits = int(self.points), int(self.rounds), float(self.accuracy), self.negligible, self.share
        return problem, limits, bool(self.full)
