"""Randomised quasi-Monte Carlo points, made on the host.

``scipy.stats`` is imported at the first call: it is slow to load.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from smimbench.numerics.seeds import monte_carlo_rng

__all__ = ["normal_points", "uniform_points"]

Points = np.ndarray[Any, np.dtype[np.float64]]


@lru_cache(maxsize=256)
def uniform_points(dimension: int, count: int, purpose: str, *index: int) -> Points:
    """One scramble of a Sobol sequence in the open unit cube.

    Parameters
    ----------
    dimension : int
        Number of coordinates.
    count : int
        Number of points; a power of 2 keeps the sequence balanced, and so are its aligned blocks of powers
        of 2.
    purpose, index : str, int
        Which scramble, as for ``smimbench.numerics.seeds.monte_carlo``: others are independent, equal ones equal.

    Returns
    -------
    ndarray (count, dimension), float64, read-only
        Each point is uniform over the cube, so plain averages are unbiased.
    """
    from scipy.stats import qmc

    size = 1 << max(0, (count - 1).bit_length())
    points = qmc.Sobol(dimension, scramble=True, rng=monte_carlo_rng(purpose, *index)).random(size)[:count]
    inside: np.ndarray[Any, np.dtype[np.float64]] = np.clip(points, 2.0**-54, 1.0 - 2.0**-53)
    inside.flags.writeable = False
    return inside


@lru_cache(maxsize=256)
def normal_points(dimension: int, count: int, purpose: str, *index: int) -> Points:
    """``uniform_points`` mapped to independent standard normal numbers.

    Parameters
    ----------
    dimension, count, purpose, index
        As for ``uniform_points``.

    Returns
    -------
    ndarray (count, dimension), float64, read-only
    """
    from scipy.special import ndtri

    points = np.asarray(ndtri(uniform_points(dimension, count, purpose, *index)))
    points.flags.writeable = False
    return points
