"""How unlikely a deviation is: a score under Student's t law as the standard score that is as unlikely."""

from __future__ import annotations

import math

__all__ = ["normal_score"]


def normal_score(score: float, dof: float) -> float:
    """The standard score that is as unlikely as ``score`` >= 0 is under Student's t law with ``dof`` degrees of freedom."""
    if dof > 1e4 or score == 0 or math.isinf(score):
        return score
    from scipy.special import ndtri, stdtr

    tail = float(stdtr(dof, -score))
    return score if tail <= 1e-300 else float(-ndtri(tail))
