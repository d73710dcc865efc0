"""Positions in arrays: rows at a mask, for namespaces without masked assignment, and pairs of tokens in their matrix.

``xp.take(a, xp.nonzero(mask)[0], axis=0)`` picks the rows where a mask is true; these functions put them back.

Of a symmetric matrix the sites are the unordered pairs ``a <= b``: 11, 12, .., 1T, 22, .., TT. Of one that is not, they are the
ordered pairs of different tokens, row by row: 12, .., 1T, 21, 23, .., T(T-1).
"""

from __future__ import annotations

import itertools
import math
from functools import cache

import numpy as np

from smimbench.backend.arrays import NUMPY, clip, namespace
from smimbench.interfaces import Array


def places_at_mask(mask: Array) -> Array:
    """For every position of ``mask`` (N,), the number of true positions up to and including it, minus one (at least 0): at the
    k-th true position this is the index of the k-th selected entry.

    At a true position it is the number of true entries before it.
    """
    xp = namespace(mask)
    return clip(xp.cumulative_sum(xp.astype(mask, xp.int64)) - 1, 0, None)


def put_at_mask(
    array: Array, mask: Array, selected: Array, *, places: Array | None = None
) -> Array:
    """Copy ``array`` with its rows at the true positions of ``mask`` (N,) replaced by the rows of ``selected``, in order.
    ``places`` is the result of ``places_at_mask(mask)``, if known.

    Along the first axis ``selected`` is as long as ``mask`` is true; it may be empty. ``places`` is ``places_at_mask(mask)``, for
    callers that have it.
    """
    if selected.shape[0] == 0:
        return array
    xp = namespace(mask)
    if xp is NUMPY:  # a copy and an assignment: a third of the time
        updated_array = np.array(array, dtype=np.result_type(array, selected))
        updated_array[mask] = selected
        return updated_array
    spread_entries = xp.take(
        selected, places_at_mask(mask) if places is None else places, axis=0
    )
    return xp.where(
        xp.reshape(mask, (-1,) + (1,) * (array.ndim - 1)), spread_entries, array
    )


@cache
def site_pairs(tokens: int, symmetric: bool = True) -> tuple[tuple[int, int], ...]:
    """Pairs of tokens (counted from 0) in the order of the sites of an attention-indexed model. If ``symmetric``, pairs (a,
    b) and (b, a) are one site.
    """
    if symmetric:
        return tuple(itertools.combinations_with_replacement(range(tokens), 2))
    return tuple(itertools.permutations(range(tokens), 2))


@cache
def site_values(
    tokens: int, diagonal: float, off_diagonal: float, symmetric: bool = True
) -> tuple[float, ...]:
    """One number for every pair of tokens: ``diagonal`` for a token with itself, ``off_diagonal`` for two different ones. If
    ``symmetric``, pairs (a, b) and (b, a) are one site.
    """
    return tuple(
        diagonal if token_a == token_b else off_diagonal
        for token_a, token_b in site_pairs(tokens, symmetric)
    )


def site_scales(tokens: int, symmetric: bool = True) -> tuple[float, ...]:
    """Factor ``sqrt(1 + delta_ab)`` of every pair of tokens a, b, by which the latent z of unit variance is multiplied in the
    attention index ``h = factor * z``. If ``symmetric``, pairs (a, b) and (b, a) are one site.
    """
    return site_values(tokens, math.sqrt(2.0), 1.0, symmetric)


@cache
def site_entries(tokens: int, symmetric: bool = True) -> tuple[int, ...]:
    """Position of every pair of tokens (a, b) in the flattened T x T matrix, where T is ``tokens``. If ``symmetric``, pairs (a,
    b) and (b, a) are one site, at the position of the first.
    """
    return tuple(a * tokens + b for a, b in site_pairs(tokens, symmetric))


@cache
def entry_sites(tokens: int) -> tuple[int, ...]:
    """For every entry (a, b) of the flattened symmetric T x T matrix, the index of its site (pair of tokens); entries ab and ba
    share one. T is ``tokens``.
    """
    site_of_pair = {
        pair: site_index for site_index, pair in enumerate(site_pairs(tokens))
    }
    return tuple(
        site_of_pair[min(a, b), max(a, b)] for a in range(tokens) for b in range(tokens)
    )
