"""Pairs of tokens (the sites of attention-indexed models) and their positions in the matrix of all pairs.

Of a symmetric matrix the sites are the unordered pairs ``a <= b``: 11, 12, .., 1T, 22, .., TT. Of one that is not, they are the
ordered pairs of different tokens, row by row: 12, .., 1T, 21, 23, .., T(T-1).
"""

from __future__ import annotations

import itertools
import math
from functools import cache


@cache
def site_pairs(tokens: int, symmetric: bool = True) -> tuple[tuple[int, int], ...]:
    """Pairs of tokens (counted from 0) in the order of the sites of an attention-indexed model."""
    if symmetric:
        return tuple(itertools.combinations_with_replacement(range(tokens), 2))
    return tuple(itertools.permutations(range(tokens), 2))


@cache
def site_values(
    tokens: int, diagonal: float, off_diagonal: float, symmetric: bool = True
) -> tuple[float, ...]:
    """One number for every site: the first argument for ``a = b``, the second for all others."""
    by_kind = {True: diagonal, False: off_diagonal}
    return tuple(by_kind[a == b] for a, b in site_pairs(tokens, symmetric))


def site_scales(tokens: int, symmetric: bool = True) -> tuple[float, ...]:
    """Factor ``sqrt(1 + delta_ab)`` of every pair of tokens, which turns the latent z into ``h = factor * z``."""
    return site_values(tokens, math.sqrt(2.0), 1.0, symmetric)


@cache
def site_entries(tokens: int, symmetric: bool = True) -> tuple[int, ...]:
    """Position of every pair of tokens in the flattened T x T matrix."""
    return tuple(a * tokens + b for a, b in site_pairs(tokens, symmetric))


@cache
def entry_sites(tokens: int) -> tuple[int, ...]:
    """Index of the pair of tokens of every entry of the flattened symmetric T x T matrix; entries ab and ba share one."""
    site = {pair: c for c, pair in enumerate(site_pairs(tokens))}
    return tuple(
        site[min(a, b), max(a, b)] for a in range(tokens) for b in range(tokens)
    )
