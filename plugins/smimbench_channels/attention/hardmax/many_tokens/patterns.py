"""Which row maxima of a symmetric matrix are larger than which: the patterns of hardmax labels, up to the names of the tokens.

The maximum of row a is an entry of row ``y_a`` too, so it is at most that row's maximum: sorted from the largest maximum
downwards, row ``y_a`` comes before row a, or together with it when each points at the other.
"""

from __future__ import annotations

from functools import cache
from itertools import permutations, product
from typing import Any, NamedTuple

import numpy as np

from smimbench.numerics import site_pairs

__all__ = ["Pattern", "Patterns", "label_classes", "patterns"]


class Pattern(NamedTuple):
    """How the rows of a sample point at each other, and the order in which they can be placed."""

    units: tuple[tuple[int, ...], ...]  # rows that share their maximum: one row, or two that point at each other
    edges: tuple[int, ...]  # site that holds the maximum of every unit
    free: tuple[tuple[int, ...], ...]  # sites inside a unit that are no maximum
    between: dict[tuple[int, int], tuple[int, ...]]  # sites between two units (lower, upper) that are no maximum
    steps: tuple[
        tuple[int, int], ...
    ]  # (set placed, unit placed next), sets as bit masks, after those they are made from


class Patterns(NamedTuple):
    """All labels of T tokens by their code ``sum_a y_a T^a``."""

    members: tuple[Pattern, ...]
    kind: np.ndarray[Any, Any]  # (T^T,) which pattern; -1 for labels that no symmetric matrix has
    sites: np.ndarray[Any, Any]  # (T^T, C) site of the sample behind every site of the pattern
    places: np.ndarray[Any, Any]  # its inverse


def label_classes(tokens: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """One label (N, T) of each class that differs by more than the names of the tokens, and how many it stands for."""
    index = patterns(tokens).kind
    kinds, first, count = np.unique(index, return_index=True, return_counts=True)
    some = first[kinds >= 0]
    return some[:, None] // tokens ** np.arange(tokens) % tokens, count[kinds >= 0]


@cache
def patterns(tokens: int) -> Patterns:
    """The few patterns of T tokens, and for every label which one it is, up to the names of the tokens."""
    pairs = site_pairs(tokens)
    site = {pair: c for c, pair in enumerate(pairs)}
    powers = tokens ** np.arange(tokens)
    count = tokens**tokens
    index = np.full(count, -1)
    sites = np.zeros((count, len(pairs)), dtype=np.int64)
    places = np.zeros_like(sites)
    names = np.array(list(permutations(range(tokens))))
    renamed = [[site[min(p[a], p[b]), max(p[a], p[b])] for a, b in pairs] for p in names.tolist()]
    moved = np.array(renamed)  # row: where a renaming takes the sites of the pattern
    members: list[Pattern] = []
    for digits in product(range(tokens), repeat=tokens):
        choice = digits[::-1]  # code 0, 1, .. in order
        code = int(np.dot(choice, powers))
        if index[code] >= 0 or not _possible(choice):
            continue
        # row p(a) of the renamed label points at p(choice(a))
        labels = np.empty_like(names)
        np.put_along_axis(labels, names, names[:, list(choice)], axis=1)
        codes = labels @ powers
        index[codes] = len(members)
        sites[codes] = moved
        places[codes] = np.argsort(moved, axis=1)
        members.append(_pattern(choice))
    return Patterns(tuple(members), index, sites, places)


def _possible(choice: tuple[int, ...]) -> bool:
    """Whether every row ends at one that points at itself, or at two that point at each other."""
    for a in range(len(choice)):
        for _ in range(len(choice)):
            a = choice[a]
        if choice[choice[a]] != a:
            return False
    return True


def _pattern(choice: tuple[int, ...]) -> Pattern:
    T = len(choice)
    site = {pair: c for c, pair in enumerate(site_pairs(T))}
    rows = [a for a in range(T) if choice[a] == a or choice[choice[a]] != a or a < choice[a]]
    units = tuple((a,) if choice[choice[a]] != a or choice[a] == a else (a, choice[a]) for a in rows)
    unit_of = {a: u for u, members in enumerate(units) for a in members}
    edges = tuple(site[min(u[0], choice[u[0]]), max(u[0], choice[u[0]])] for u in units)
    inside = [[(a, a) for a in u] for u in units]
    free = tuple(tuple(site[p] for p in pairs if site[p] != edges[u]) for u, pairs in enumerate(inside))
    between = {}
    for u, w in product(range(len(units)), repeat=2):
        cross = [site[min(a, b), max(a, b)] for a in units[u] for b in units[w]] if u != w else []
        between[u, w] = tuple(c for c in cross if c != edges[u])
    steps = []
    for placed in range(1 << len(units)):
        inside_set = {u for u in range(len(units)) if placed >> u & 1}

        def ready(u: int, have: set[int] = inside_set) -> bool:
            above = unit_of[choice[units[u][0]]]
            return above == u or above in have

        if all(ready(u) for u in inside_set):
            steps += [(placed, u) for u in range(len(units)) if u not in inside_set and ready(u)]
    return Pattern(units, edges, free, between, tuple(steps))
