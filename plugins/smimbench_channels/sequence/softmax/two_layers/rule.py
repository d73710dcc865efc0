"""What the versions of the quadrature share: the problem in numbers, and when to stop."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Rule"]


@dataclass(frozen=True)
class Rule:
    """One adaptive quadrature."""

    V: tuple[float, float, float]  # V_11, V_12, V_22
    skip: float  # c >= 0
    accuracy: float  # target for the relative error of every sample; doubled: less time, twice the error
    full: bool  # all second moments instead of their three traces over tokens
    # Columns of a piece, and points of a column, to begin with. Doubled: twice the time, up to half the error.
    points: int
    # How often these are doubled at most; memory of the compiled version grows as 2^rounds. Doubled: the same in three cases.
    rounds: int = 9
    # Columns and pieces below this times the accuracy of the whole are not refined. Doubled: the same, 2e-4 of the target.
    negligible: float = 1e-4
    # Part of the error that columns may have; the rest is for pieces. Doubled: the same true error, a tenth more reported.
    share: float = 0.2

    @property
    def moments(self) -> int:
        """Number of sums: the weight, 4 first moments, and 10 second moments or 3 traces of them."""
        return 15 if self.full else 8
