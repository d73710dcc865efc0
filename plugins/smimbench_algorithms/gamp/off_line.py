r"""One iteration of GAMP away from the Bayes-optimal line, where the error V that it claims is not the one that it makes.

With ``omega`` of the estimate and ``z* = omega + delta`` of the signal, jointly Gaussian of covariances ``Q`` of omega, ``E`` of
delta, ``N`` of delta with omega,

.. math::

    \hat Q = \alpha \sum_c (V^{-1} - V^{-1} E[\mathrm{Cov}] V^{-1}), \qquad
    \hat m = \alpha E \sum_c \frac{\partial g_c}{\partial z^*_c}, \qquad \hat\chi = \alpha E \sum_c g_c g_c^T,

and the estimate is ``denoise(Qhat^{-1} (m W* + chi^{1/2} Z), Qhat)``. On the line N = 0, E = V, and all three are ``alpha I``.

Sampled means have errors of some percent, which V would turn into a path that runs away. So they are compared with those at the
point of the line with the same V, with the same random numbers, where the accurate information says what they should be.
Deviations shrink along a path, and their errors with them: it ends where the line does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smimbench.interfaces import Overlaps
from smimbench.numerics.linalg import inverse_root, symmetric, symmetric_root, with_floor
from smimbench.numerics.qmc import normal_points, whitened_points
from smimbench.numerics.seeds import monte_carlo_rng
from smimbench.theory.information import prior_moments

if TYPE_CHECKING:
    from smimbench.problem import Problem
    from smimbench.theory.types import Host

__all__ = ["Standing", "sampled_step"]

POINTS = 2**12
"""Points of the integrals over latents. Doubled: about half the error, in twice the time."""

ENTRIES = 2**13
"""Entries of the signal that stand for all; exact for Gaussian priors. Doubled: 0.7 times the error for others."""

SMALL = 0.1
"""Share of the second moment, of all components together, up to which overlaps are small: their growth decides when the path
escapes, and takes ``MORE`` times the points. Doubled: a few more such iterations."""

MORE = 4
"""See ``SMALL``. Doubled: about half the error of the time of escape, in twice the time for these iterations."""

UNLIKE = 2.0
"""Ratio of accurate to sampled information from which on it is not corrected: both are next to nothing. Doubled: no change."""

SMALLEST = 1e-16
"""Floor of errors, as runs have it. Doubled: so is the last error."""

SMALLEST_QHAT = 1e-12
"""Floor of the information, as runs have it: sampling noise can make it negative. Doubled: nothing."""


class Standing(NamedTuple):
    """Where an estimate stands, all (P, P).

    Attributes
    ----------
    V : ndarray
        Error that is claimed.
    E : ndarray
        Error that is made.
    N : ndarray
        Inner product of the error, signal less estimate, with the estimate.
    """

    V: Host
    E: Host
    N: Host

    @classmethod
    def on_the_line(cls, V: Host) -> Standing:
        """Where the claim is right and the error independent of the estimate."""
        return cls(V, V, np.zeros_like(V))

    @property
    def on_line(self) -> bool:
        """Whether it is exactly there."""
        return not self.N.any() and bool((self.E == self.V).all())

    def own(self, problem: Problem) -> Host:
        """Overlap of the estimate with itself; its eigenvalues are at least 0."""
        found: Host = with_floor(prior_moments(problem)[0] - self.N - self.N.T - self.E, 0.0)
        return found

    def overlaps(self, problem: Problem) -> Overlaps:
        """All three overlaps."""
        own = self.own(problem)
        return Overlaps(prior_moments(problem)[0], own + self.N.T, own)


def sampled_step(problem: Problem, alpha: float, at: Standing, Qhat: Host, line: Standing, which: int) -> Standing:
    """Where an iteration leads to.

    Parameters
    ----------
    alpha : float
        Sample ratio.
    at : Standing
    Qhat : ndarray (P, P)
        ``kappa alpha I`` on the line, at the same V.
    line : Standing
        Where that leads to.
    which : int
        Number of the set of random points.
    """
    here, there = (_moments(problem, one, which) for one in (at, Standing.on_the_line(at.V)))
    scale = problem.model.kappa * alpha
    information = with_floor(Qhat + scale * (here[0] - there[0]), SMALLEST_QHAT)
    # The slope grows with the overlap with the signal, and so does the error at either point.
    second = prior_moments(problem)[0]
    Q, cross = np.diagonal(second - at.V), np.diagonal(at.overlaps(problem).cross)
    share = np.minimum(1.0, np.abs(cross) / np.maximum(Q, 1e-300))
    m = scale * here[1] + share * (Qhat - scale * there[1])
    # A product, so that it stays positive.
    ratio = np.diagonal(Qhat) / np.maximum(scale * np.diagonal(there[2]), 1e-300)
    sane = (np.maximum(ratio, 1 / ratio) < UNLIKE).all()
    mend = symmetric_root(Qhat) @ inverse_root(scale * there[2]) if sane else np.eye(len(Qhat))
    chi = mend @ (scale * here[2]) @ mend.T
    found = _denoised(problem, information, m, chi, which)
    twin = _denoised(problem, Qhat, Qhat, Qhat, which)
    V, E, N = (known + (a - b) for known, a, b in zip(line, found, twin))
    return Standing(with_floor(V, SMALLEST), with_floor(E, SMALLEST), N)


def _moments(problem: Problem, at: Standing, which: int) -> tuple[Host, Host, Host]:
    """Sampled information, slope and square of g, (P, P) each.

    Small overlaps enter in second order, for labels that do not see a sign; sampled, they would in first. Points with the
    opposite estimate and all the rest alike, noise of the labels too, cancel that.
    """
    P, C = problem.components, problem.model.sites
    own = at.own(problem)
    count = POINTS * (MORE if np.trace(own) < SMALL * np.trace(prior_moments(problem)[0]) else 1)
    points = whitened_points(2 * P * C, count, "path of message passing: latents", which).reshape(-1, 2 * P, C)
    one, two = points[:, :P], points[:, P:]
    root = symmetric_root(own)
    mixing = at.N @ np.linalg.pinv(root, rcond=1e-12)
    rest = symmetric_root(at.E - mixing @ mixing.T)
    inverse = np.linalg.inv(at.V)
    channel: Any = problem.channel
    sums = []
    for u in (one, -one):
        omega = root @ u
        z = omega + mixing @ u + rest @ two
        labels = channel.forward(z, rng=monte_carlo_rng("path of message passing: noise", which))
        found = channel.posterior(labels, omega, at.V, rng=monte_carlo_rng("path of message passing: posterior", which))
        g = np.einsum("pq,nqc->npc", inverse, np.asarray(found.mean) - omega)
        information = C * (inverse - inverse @ np.asarray(found.covariance) @ inverse)
        products = [np.einsum("npc,nqc->pq", g, other) / len(g) for other in (two, g)]
        sums.append((symmetric(information), products[0] @ np.linalg.pinv(rest, rcond=1e-12), products[1]))
    # Labels that do not see the sign of a component have no mean products of two: sampled ones would be noise alone.
    seen = np.eye(P) if channel.symmetry == "signs" else np.ones((P, P))
    information, slope, square = (seen * np.mean(both, axis=0) for both in zip(*sums))
    return information, slope, square


def _denoised(problem: Problem, Qhat: Host, m: Host, chi: Host, which: int) -> Standing:
    """What the prior makes of an observation ``Qhat^{-1} (m W* + chi^{1/2} Z)``."""
    signal, noise = _entries(problem, which)
    denoised = problem.prior.denoise(np.linalg.solve(Qhat, m @ signal + symmetric_root(chi) @ noise), Qhat)
    estimate = np.asarray(denoised.estimate)
    error, size = signal - estimate, signal.shape[1]
    return Standing(np.asarray(denoised.V), error @ error.T / size, error @ estimate.T / size)


def _entries(problem: Problem, which: int) -> tuple[Host, Host]:
    """Entries of a signal of the second moment and of white noise (P, n): exactly, and uncorrelated."""
    P, truth = problem.components, prior_moments(problem)[0]
    signal = np.asarray(problem.prior.sample(monte_carlo_rng("path of message passing: signal", which), P, ENTRIES))
    both = np.concatenate([signal, normal_points(P, ENTRIES, "path of message passing: entries", which).T])
    moments = np.block([[truth, np.zeros((P, P))], [np.zeros((P, P)), np.eye(P)]])
    both = np.linalg.cholesky(moments) @ np.linalg.solve(np.linalg.cholesky(both @ both.T / ENTRIES), both)
    return both[:P], both[P:]
