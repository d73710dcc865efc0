"""Seeds of instances: nodes of the one tree of ``smimbench.numerics.seeds``."""

from __future__ import annotations

import numpy as np

from smimbench.numerics.seeds import STREAMS, words

__all__ = ["seed_sequence"]


def seed_sequence(
    seed: int, problem: str, alpha: float, dimension: int, replicate: int, stream: str, *extra: str
) -> np.random.SeedSequence:
    """The node (problem, alpha, D, replicate, stream) of the tree with root ``seed``; children are named by ``extra``.

    Parameters
    ----------
    problem : str
        ``Problem.identity``.
    stream : str
        One of ``STREAMS``.
    """
    key = (*words(problem), *words(repr(float(alpha))), dimension, replicate, STREAMS.index(stream))
    for name in extra:
        key += words(name)
    return np.random.SeedSequence(seed, spawn_key=key)
