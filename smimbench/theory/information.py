"""Information and moments of a problem, each computed once: prior moments, overlap at Qhat and its inverse, ``I = E sum_c g_c
g_c^T``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np

from smimbench.derive.sampled_information import sampled_moments
from smimbench.interfaces import Array, Host, Model, Uncertain
from smimbench.numerics.linalg import spectral_function, symmetric_logarithm
from smimbench.numerics.memo import kept
from smimbench.problem.problem import Problem, ProblemError
from smimbench.theory.types import NOTHING


def is_sampled(method: str) -> bool:
    """Whether a value was obtained from random labels."""
    return "Monte Carlo" in method


class Evaluations:
    """Information and susceptibility of a problem at every (Q, V) evaluated so far: the nodes of its curves.

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
        """The stored evaluations of a problem."""
        return kept(problem, "evaluations", cls)

    def at(self, kind: str, Q: Array, V: Array, evaluate: Callable[[Array, Array], Uncertain]) -> Uncertain:
        """Result of ``evaluate(Q, V)``, computed or stored; Q and V (..., P, P)."""
        Q, V = np.asarray(Q, dtype=float), np.asarray(V, dtype=float)
        if Q.ndim == 2 or not self.sampled:
            return self._single(kind, Q, V, evaluate)
        pairs = zip(Q.reshape(-1, *Q.shape[-2:]), V.reshape(-1, *V.shape[-2:]))
        found = [self._single(kind, q, v, evaluate) for q, v in pairs]
        value, error = (np.reshape([np.broadcast_to(f[k], Q.shape[-2:]) for f in found], Q.shape) for k in (0, 1))
        return Uncertain(value, error, ", ".join(dict.fromkeys(f.method for f in found)))

    def _single(self, kind: str, Q: Array, V: Array, evaluate: Callable[[Array, Array], Uncertain]) -> Uncertain:
        key, is_kept = self.key(kind, Q, V), True
        found = self.known.get(key)
        if found is None or np.shape(found.value) != Q.shape:  # a stored one may be anything
            if self.evaluate is None:
                found = evaluate(Q, V)
            else:
                found, is_kept = self.evaluate(key, lambda: evaluate(Q, V))
        self.sampled |= Q.ndim == 2 and is_sampled(found.method)
        if is_kept:
            self.known[key] = found
            self.count += 1
            self.watch(None)
        return found

    @staticmethod
    def key(kind: str, Q: Array, V: Array) -> str:
        """Name of an evaluation; arguments equal to the last bit have the same name."""
        content = f"{kind} {Q.shape} ".encode() + Q.tobytes() + V.tobytes()
        return hashlib.sha256(content).hexdigest()[:24]


def channel_information(channel: Any, model: Model, Q: Array, V: Array) -> Uncertain:
    r"""``I(Q) = E \sum_c g_c g_c^T`` with ``omega ~ N(0, Q (x) I_C)``, ``z | omega ~ N(omega, V (x) I_C)``.

    Parameters
    ----------
    Q, V : ndarray (..., P, P)
        Host arrays; leading axes are a batch.

    Returns
    -------
    Uncertain
        ``value`` (..., P, P), ``error`` broadcastable to it.
    """
    if channel.information is not None:
        found: Uncertain = channel.information(Q, V)
        return found
    shape = Q.shape
    flat_Q, flat_V = Q.reshape(-1, *shape[-2:]), V.reshape(-1, *shape[-2:])
    sampled = [sampled_moments(channel, model.sites, q, v)[0] for q, v in zip(flat_Q, flat_V)]
    value = np.stack([found.value for found in sampled]).reshape(shape)
    error = np.stack([found.error for found in sampled]).reshape(shape)
    return Uncertain(value, error, sampled[0].method)


def offers_rough(problem: Problem) -> bool:
    """Whether the channel states how many labels suffice for finite differences."""
    sampling = problem.channel.sampling
    return sampling is not None and sampling.rough_labels is not None


def information_at(problem: Problem, Q: Array, V: Array, *, rough: bool = False) -> Uncertain:
    """``channel_information`` of a problem; value and error are float arrays of one shape.

    ``rough``: from as many labels as the channel's ``sampling`` says, which only differences should be taken of.
    """
    found = _evaluated(
        problem, "information", Q, V, lambda q, v: channel_information(problem.channel, problem.model, q, v), rough
    )
    value = np.asarray(found.value, dtype=float)
    return Uncertain(value, np.broadcast_to(np.asarray(found.error, dtype=float), value.shape), found.method)


def susceptibility_at(problem: Problem, Q: Array, V: Array, *, rough: bool = False) -> Uncertain:
    """Slope of the information of components without overlap (P, P): by the channel (``rough`` as above), or sampled."""
    own = problem.channel.susceptibility

    def sampled(q: Array, v: Array) -> Uncertain:
        found = sampled_moments(problem.channel, problem.model.sites, q, v)[1]
        if not np.isfinite(found.error).all():
            name = problem.spec["channel"]["name"]
            raise ProblemError(
                f"channel {name!r}",
                "labels do not depend on the sign of a component, so thresholds need the second moment of its posterior; "
                "return it from posterior(..., second_moment=True), or give a method susceptibility",
            )
        return found

    return _evaluated(problem, "susceptibility", Q, V, sampled if own is None else own, rough and own is not None)


def _evaluated(
    problem: Problem, kind: str, Q: Array, V: Array, evaluate: Callable[[Array, Array], Uncertain], rough: bool
) -> Uncertain:
    channel: Any = problem.channel

    def roughly(q: Array, v: Array) -> Uncertain:
        found: Uncertain = getattr(channel, kind)(q, v, labels=channel.sampling.rough_labels(q, v))
        return found

    evaluations = Evaluations.of(problem)
    return evaluations.at(f"rough {kind}", Q, V, roughly) if rough else evaluations.at(kind, Q, V, evaluate)


def overlap_at(problem: Problem, qhat: Array) -> tuple[Host, Host]:
    """Overlap Q and error V (..., P, P) of the prior at ``qhat`` (..., P, P)."""
    found = problem.prior.overlap(qhat)
    return np.asarray(found.Q), np.asarray(found.V)


def overlap_error_at(problem: Problem, qhat: Array) -> float:
    """Relative error of the prior's V at ``qhat`` (P, P), as stated by the prior (a number or a function); otherwise 0."""
    stated = getattr(problem.prior, "overlap_error", 0.0)  # of derived priors
    return float(stated(np.asarray(qhat, dtype=float)) if callable(stated) else stated)


def prior_moments(problem: Problem, components: int | None = None) -> tuple[Host, Host]:
    """Second moment of the signal and self-overlap of the prior mean, (P, P) each, of so many components (None: its own)."""
    P, prior = components or problem.components, problem.prior
    return np.asarray(prior.second_moment(P), dtype=float), np.asarray(prior.mean_overlap(P), dtype=float)


def diagonals(found: Uncertain) -> tuple[Host, Host]:
    """Diagonals of a matrix and of its error, (P,) each."""
    matrix = np.asarray(found.value, dtype=float)
    error = np.broadcast_to(np.asarray(found.error, dtype=float), matrix.shape)
    return np.diagonal(matrix), np.diagonal(error)


def inverse_map(problem: Problem, Q: Host, V: Host, learned: Any) -> Host:
    """The Qhat (P, P) at which the prior's map gives the overlap Q and the error V; 0 for components that are not learned."""
    from scipy.optimize import root

    second, bottom = prior_moments(problem)
    kept = np.ix_(learned, learned)
    upper = np.triu_indices(len(learned))
    diagonal = not (np.abs(Q - bottom)[kept] * (1 - np.eye(len(learned))) > NOTHING).any()
    free = (np.arange(len(learned)),) * 2 if diagonal else upper
    spread = (second - bottom)[kept]

    def full(log: Host) -> Host:
        matrix = np.zeros_like(spread)
        matrix[free] = log
        matrix = matrix + np.triu(matrix, 1).T
        found = np.zeros_like(Q)
        found[kept] = spectral_function(matrix, np.exp)
        return found

    def position(Q: Host, V: Host) -> Host:
        """Coordinate of a point that increases from minus to plus infinity: log Q at one end, -log V at the other."""
        gap: Host = symmetric_logarithm((Q - bottom)[kept]) - symmetric_logarithm(V[kept])
        return gap[free]

    target = position(Q, V)
    start = target - symmetric_logarithm(spread)[free]  # exact for Gaussian signals

    def gap(log: Host) -> Host:
        return position(*overlap_at(problem, full(log))) - target

    if len(start) == 1:
        return full(np.array([_scalar_inverse(lambda x: float(gap(np.array([x]))[0]), float(start[0]))]))
    return full(root(gap, start, tol=1e-12).x)


def _scalar_inverse(gap: Callable[[float], float], start: float) -> float:
    """Root of an increasing scalar function."""
    from scipy.optimize import brentq

    low, high = start - 1.0, start + 1.0
    while gap(low) > 0:
        low -= 4.0
    while gap(high) < 0:
        high += 4.0
    return float(brentq(gap, low, high, xtol=1e-13, rtol=1e-13))
