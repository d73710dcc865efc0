"""Seeds of all random numbers, derived from one root as a tree with named branches.

``numpy.random.SeedSequence`` turns a root and a path of integers into independent streams. Names become integers by their
SHA-256, so that two purposes never meet by chance, as two hand-picked integers would.
"""

from __future__ import annotations

import hashlib

import numpy as np

STREAMS = ("teacher", "data", "initialisation", "monte-carlo")
"""Names of the branches of a seed; their order must never change, because every stored seed depends on it."""

TUNING = 2**63 + 1
"""Root seed of the data that algorithms are tuned on: above every ``grid.seed``, so that no score uses these data."""


def words(text: str, count: int = 2) -> tuple[int, ...]:
    """Turn a text into ``count`` 32-bit integers by its SHA-256 hash, for the spawn keys of a seed sequence."""
    digest = hashlib.sha256(text.encode()).digest()
    return tuple(
        int.from_bytes(digest[4 * i : 4 * i + 4], "little") for i in range(count)
    )


def monte_carlo(purpose: str, *index: int) -> np.random.SeedSequence:
    """Seed of a Monte Carlo integral, from its purpose and an index; it does not depend on the suite.

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
    """Random generator seeded with ``monte_carlo(purpose, *index)``."""
    return np.random.default_rng(monte_carlo(purpose, *index))
