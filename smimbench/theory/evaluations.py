"""Information and susceptibility of a problem at the overlaps that were asked for, each evaluated once in the problem's life."""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING

import numpy as np

from smimbench.interfaces import Uncertain
from smimbench.numerics.memo import kept

if TYPE_CHECKING:
    from collections.abc import Callable

    from smimbench.interfaces import Array
    from smimbench.problem.problem import Problem

__all__ = ["Evaluations", "is_sampled"]

SLOW = 0.02
"""Seconds from which on an evaluation is kept; doubled, fewer are, and an interrupted curve repeats a little more."""


def is_sampled(method: str) -> bool:
    """Whether a value was obtained from random labels."""
    return "Monte Carlo" in method


class Evaluations:
    """Information and susceptibility of a problem at the (Q, V) that were asked for: the nodes of its curves.

    Attributes
    ----------
    known : dict
        Slow evaluations by their key.
    keep : callable or None
        Told of every slow evaluation as it comes, with its key, so that it can be kept for another day.
    watch : callable
        Told of every new evaluation, and by those who follow a curve of the sample ratio that they have reached.
    count : int
        Slow evaluations in use, new ones and kept ones.
    sampled : bool
        Whether a single evaluation was sampled. Then a batch is evaluated, and kept, one by one.
    """

    def __init__(self) -> None:
        self.known: dict[str, Uncertain] = {}
        self.keep: Callable[[str, Uncertain], None] | None = None
        self.watch: Callable[[float | None], None] = lambda alpha: None
        self.count = 0
        self.sampled = False

    @classmethod
    def of(cls, problem: Problem) -> Evaluations:
        """Those of a problem."""
        return kept(problem, "evaluations", cls)

    def at(self, kind: str, Q: Array, V: Array, evaluate: Callable[[Array, Array], Uncertain]) -> Uncertain:
        """``evaluate(Q, V)``, or what it gave before; Q and V (..., P, P)."""
        Q, V = np.asarray(Q, dtype=float), np.asarray(V, dtype=float)
        if Q.ndim == 2 or not self.sampled:
            return self._single(kind, Q, V, evaluate)
        pairs = zip(Q.reshape(-1, *Q.shape[-2:]), V.reshape(-1, *V.shape[-2:]))
        found = [self._single(kind, q, v, evaluate) for q, v in pairs]
        value, error = (np.reshape([np.broadcast_to(f[k], Q.shape[-2:]) for f in found], Q.shape) for k in (0, 1))
        return Uncertain(value, error, ", ".join(dict.fromkeys(f.method for f in found)))

    def _single(self, kind: str, Q: Array, V: Array, evaluate: Callable[[Array, Array], Uncertain]) -> Uncertain:
        key = self.key(kind, Q, V)
        found = self.known.get(key)
        if found is None:
            begin = time.perf_counter()
            found = evaluate(Q, V)
            if Q.ndim == 2:
                self.sampled = self.sampled or is_sampled(found.method)
            if time.perf_counter() - begin < SLOW:
                return found
            self.known[key] = found
            if self.keep is not None:
                self.keep(key, found)
        elif Q.ndim == 2:
            self.sampled = self.sampled or is_sampled(found.method)
        self.count += 1
        self.watch(None)
        return found

    @staticmethod
    def key(kind: str, Q: Array, V: Array) -> str:
        """Name of an evaluation: equal arguments, to the last bit, have equal names."""
        content = f"{kind} {Q.shape} ".encode() + Q.tobytes() + V.tobytes()
        return hashlib.sha256(content).hexdigest()[:24]
