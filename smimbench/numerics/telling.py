"""How many samples carry a mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from smimbench.interfaces import Array

__all__ = ["FEWEST_TELLING", "telling"]

FEWEST_TELLING = 50
"""Samples that must carry a mean. Near a jump of the labels (hardmax, sign) few do, and a mean that has missed them has a
standard error that has missed them too; doubled, that error is good to 10% in place of 14%."""


def telling(samples: Array) -> Any:
    r"""``(\sum |x|)^2 / \sum x^2`` along the first axis: how many of the samples carry their mean; 0 if all of them are 0."""
    sizes = np.abs(np.asarray(samples, dtype=float))
    most = sizes.max(axis=0, initial=0.0)
    scaled = sizes / np.where(most > 0, most, 1.0)
    square = np.sum(scaled**2, axis=0)
    found = np.sum(scaled, axis=0) ** 2 / np.where(square > 0, square, 1.0)
    return found if np.ndim(found) else float(found)
