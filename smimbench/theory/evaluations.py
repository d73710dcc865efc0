"""Information and susceptibility of a problem at given overlaps, each evaluated once per problem."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from smimbench.interfaces import Uncertain
from smimbench.numerics.memo import kept

if TYPE_CHECKING:
    from collections.abc import Callable

    from smimbench.interfaces import Array
    from smimbench.problem.problem import Problem

__all__ = ["Evaluations", "is_sampled"]


def is_sampled(method: str) -> bool:
    """Whether a value was obtained from random labels."""
    return "Monte Carlo" in method


class Evaluations:
    """Information and susceptibility of a problem at the (Q, V) that were asked for: the nodes of its curves.

    Attributes
    ----------
    known : dict
        Evaluations by their key.
    evaluate : callable or None
        Makes every new evaluation, given its key and the work to do, and says whether it is worth remembering; for callers
        with a clock and a disk. None: all are remembered here.
    watch : callable
        Told of every new evaluation, and by those who follow a curve of the sample ratio that they have reached.
    count : int
        Evaluations in use, new ones and remembered ones.
    sampled : bool
        Whether a single evaluation was sampled. Then a batch is evaluated, and kept, one by one.
    """

    def __init__(self) -> None:
        self.known: dict[str, Uncertain] = {}
        self.evaluate: Callable[[str, Callable[[], Uncertain]], tuple[Uncertain, bool]] | None = None
        self.watch: Callable[[float | None], None] = lambda alpha: None
        self.count = 0
        self.sampled = False

    @classmethod
    def of(cls, problem: Problem) -> Evaluations:
        """The evaluations of a problem."""
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
        if found is None or np.shape(found.value) != Q.shape:  # a stored one may be anything
            found, is_kept = (
                (evaluate(Q, V), True) if self.evaluate is None else self.evaluate(key, lambda: evaluate(Q, V))
            )
            if Q.ndim == 2:
                self.sampled = self.sampled or is_sampled(found.method)
            if not is_kept:
                return found
            self.known[key] = found
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
