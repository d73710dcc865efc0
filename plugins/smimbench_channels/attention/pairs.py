"""Unordered pairs of tokens: how sites, the matrix of all pairs and the two normalisations hang together."""

from __future__ import annotations

import math
from functools import cache

__all__ = ["entry_sites", "site_pairs", "site_scales"]


@cache
def site_pairs(tokens: int) -> tuple[tuple[int, int], ...]:
    """Pairs ``a <= b`` in the order of the sites: 11, 12, .., 1T, 22, .., TT (counted from 0)."""
    return tuple((a, b) for a in range(tokens) for b in range(a, tokens))


@cache
def site_scales(tokens: int) -> tuple[float, ...]:
    """``sqrt(1 + delta_ab)`` of every site: ``h = scale * z``."""
    return tuple(math.sqrt(2.0) if a == b else 1.0 for a, b in site_pairs(tokens))


@cache
def entry_sites(tokens: int) -> tuple[int, ...]:
    """Site of every entry of the flattened T x T matrix; entries ab and ba share one."""
    site = {pair: c for c, pair in enumerate(site_pairs(tokens))}
    return tuple(site[min(a, b), max(a, b)] for a in range(tokens) for b in range(tokens))
