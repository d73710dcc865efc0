"""Random numbers: seeds, derived from one root as a tree with named branches, and randomized quasi-Monte Carlo points.

``numpy.random.SeedSequence`` turns a root and a path of integers into independent streams. Names become integers by their
SHA-256, so that two purposes never meet by chance, as two hand-picked integers would.

``scipy.stats`` is imported at the first call: it is slow to load.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np

from smimbench.interfaces import Host
from smimbench.numerics.linalg import inverse_root

STREAMS = ("teacher", "data", "initialisation", "monte-carlo")
"""Names of the branches of a seed; their order must never change, because every stored seed depends on it."""

TUNING = 2**63 + 1
"""Root seed of the data that algorithms are tuned on: above every ``grid.seed``, so that no score uses these data."""


def words(text: str, count: int = 2) -> tuple[int, ...]:
    """Turn a text into ``count`` 32-bit integers by its SHA-256 hash, for the spawn keys of a seed sequence."""
    digest = hashlib.sha256(text.encode()).digest()
    return tuple(
        int.from_bytes(digest[4 * word : 4 * word + 4], "little")
        for word in range(count)
    )


def monte_carlo(purpose: str, *index: int) -> np.random.SeedSequence:
    """Seed of a Monte Carlo integral, from a text that names its ``purpose`` and integers ``index`` (such as the number of a
    scramble); it does not depend on the suite.

    Its path is the branch ``monte-carlo``, then the purpose, then the index. The root is 0 whatever the suite says, because
    an integral is a number and not a draw: theory does not depend on the seed of the data.

    Parameters
    ----------
    purpose : str
        What is integrated. Equal purposes and indices give equal numbers, different ones independent numbers.
    index : int
        Which scramble, block or copy; each at least 0.

    Returns
    -------
    numpy.random.SeedSequence
    """
    return np.random.SeedSequence(
        0, spawn_key=(STREAMS.index("monte-carlo"), *words(purpose), *index)
    )


def monte_carlo_rng(purpose: str, *index: int) -> np.random.Generator:
    """Random generator for the Monte Carlo integral named by ``purpose`` and the integers ``index``, seeded with
    ``monte_carlo(purpose, *index)``.
    """
    return np.random.default_rng(monte_carlo(purpose, *index))


Points = Host

CACHE_SIZE = 4096
"""Number of cached sets of points; most have a few hundred points. Doubled: twice the memory, 100 MB for deep attention."""


@lru_cache(maxsize=CACHE_SIZE)
def uniform_points(dimension: int, count: int, purpose: str, *index: int) -> Points:
    """Scrambled Sobol points (count, dimension) in the open unit cube, read-only; ``purpose`` and ``index`` seed the
    scrambling.

    Parameters
    ----------
    dimension : int
        Number of coordinates.
    count : int
        Number of points; a power of 2 keeps the sequence balanced, and so are its aligned blocks of powers
        of 2.
    purpose, index : str, int
        Which scramble, as for ``smimbench.numerics.random_numbers.monte_carlo``: others are independent, equal ones equal.

    Returns
    -------
    ndarray (count, dimension), float64, read-only
        Each point is uniform over the cube, so plain averages are unbiased.
    """
    from scipy.stats import qmc

    power_of_two = 1 << max(0, (count - 1).bit_length())
    points = qmc.Sobol(
        dimension, scramble=True, rng=monte_carlo_rng(purpose, *index)
    ).random(power_of_two)[:count]
    open_points: Host = np.clip(points, 2.0**-54, 1.0 - 2.0**-53)
    open_points.flags.writeable = False
    return open_points


@lru_cache(maxsize=CACHE_SIZE)
def normal_points(dimension: int, count: int, purpose: str, *index: int) -> Points:
    """Quasi-random standard normal points (count, dimension), read-only: ``uniform_points`` mapped to normal numbers;
    ``purpose`` and ``index`` seed them.
    """
    from scipy.special import ndtri

    points = np.asarray(
        ndtri(uniform_points.__wrapped__(dimension, count, purpose, *index))
    )
    points.flags.writeable = False
    return points


def normal_scrambles(
    dimension: int, count: int, scrambles: int, purpose: str, *index: int
) -> Points:
    """Quasi-random standard normal points (scrambles * count, dimension), in independent scrambles (randomizations of the
    sequence) of ``count`` points each; ``purpose`` and ``index`` seed them.

    The indices are ``(*index, 0), (*index, 1), ...``. They are not cached, so there may be many.
    """
    uncached_points = normal_points.__wrapped__
    return np.concatenate(
        [
            uncached_points(dimension, count, purpose, *index, scramble)
            for scramble in range(scrambles)
        ]
    )


@lru_cache(maxsize=256)
def whitened_points(
    dimension: int, count: int, purpose: str, *index: int, paired: bool = True
) -> Points:
    """Quasi-random standard normal points (count, dimension) whose second moment matrix is exactly I, read-only. If ``paired``,
    the second half are the negatives of the first; ``purpose`` and ``index`` seed them.

    ``paired``: the points are x and -x. Then their mean is 0 exactly too, and a likelihood that says nothing changes nothing.
    """
    points = normal_points(dimension, count // 2 if paired else count, purpose, *index)
    points = np.concatenate([points, -points]) if paired else points
    points = points @ inverse_root(points.T @ points / count)
    points.flags.writeable = False
    return np.asarray(points)
