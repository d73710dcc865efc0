"""Unordered pairs of tokens (the sites of attention-indexed models) and their positions in the matrix of all pairs."""

from __future__ import annotations

import math
from functools import cache


@cache
def site_pairs(tokens: int) -> tuple[tuple[int, int], ...]:
    """Token pairs ``a <= b`` in the order of the sites: 11, 12, .., 1T, 22, .., TT (counted from 0)."""
    return tuple((a, b) for a in range(tokens) for b in range(a, tokens))


@cache
def site_values(tokens: int, diagonal: float, other: float) -> tuple[float, ...]:
    """One number for every site: the first argument for ``a = b``, the second for ``a < b``."""
    return tuple(diagonal if a == b else other for a, b in site_pairs(tokens))


def site_scales(tokens: int) -> tuple[float, ...]:
    """Scale ``sqrt(1 + delta_ab)`` of every site: ``h = scale * z``."""
    return site_values(tokens, math.sqrt(2.0), 1.0)


@cache
def site_entries(tokens: int) -> tuple[int, ...]:
    """Position of every site ``a <= b`` in the flattened T x T matrix."""
    return tuple(a * tokens + b for a, b in site_pairs(tokens))


@cache
def entry_sites(tokens: int) -> tuple[int, ...]:
    """Site index of every entry of the flattened T x T matrix; entries ab and ba share one."""
    site = {pair: c for c, pair in enumerate(site_pairs(tokens))}
    return tuple(site[min(a, b), max(a, b)] for a in range(tokens) for b in range(tokens))
