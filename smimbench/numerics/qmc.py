"""Randomized quasi-Monte Carlo points, made on the host.

``scipy.stats`` is imported at the first call: it is slow to load.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from smimbench.interfaces import Host
from smimbench.numerics.linalg import inverse_root
from smimbench.numerics.seeds import monte_carlo_rng

Points = Host

CACHE_SIZE = 4096
"""Number of cached sets of points; most have a few hundred points. Doubled: twice the memory, 100 MB for deep attention."""


@lru_cache(maxsize=CACHE_SIZE)
def uniform_points(dimension: int, count: int, purpose: str, *index: int) -> Points:
    """Points of a scrambled Sobol sequence in the open unit cube.

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
    points = qmc.Sobol(
        dimension, scramble=True, rng=monte_carlo_rng(purpose, *index)
    ).random(size)[:count]
    inside: Host = np.clip(points, 2.0**-54, 1.0 - 2.0**-53)
    inside.flags.writeable = False
    return inside


@lru_cache(maxsize=CACHE_SIZE)
def normal_points(dimension: int, count: int, purpose: str, *index: int) -> Points:
    """Quasi-random standard normal points (count, dimension), read-only: ``uniform_points`` mapped to normal numbers."""
    from scipy.special import ndtri

    points = np.asarray(
        ndtri(uniform_points.__wrapped__(dimension, count, purpose, *index))
    )
    points.flags.writeable = False
    return points


def normal_scrambles(
    dimension: int, count: int, scrambles: int, purpose: str, *index: int
) -> Points:
    """Quasi-random standard normal points in several independent scrambles, ``count`` points each.

    The indices are ``(*index, 0), (*index, 1), ...``. They are not kept, so there may be many: (scrambles * count, dimension).
    """
    uncached_points = normal_points.__wrapped__
    return np.concatenate(
        [
            uncached_points(dimension, count, purpose, *index, k)
            for k in range(scrambles)
        ]
    )


@lru_cache(maxsize=256)
def whitened_points(
    dimension: int, count: int, purpose: str, *index: int, paired: bool = True
) -> Points:
    """Quasi-random standard normal points (count, dimension) whose covariance is exactly I, read-only.

    ``paired``: the points are x and -x. Then their mean is 0 exactly too, and a likelihood that says nothing changes nothing.
    """
    points = normal_points(dimension, count // 2 if paired else count, purpose, *index)
    points = np.concatenate([points, -points]) if paired else points
    points = points @ inverse_root(points.T @ points / count)
    points.flags.writeable = False
    return np.asarray(points)
