r"""One iteration of GAMP when the predicted error V differs from the true error E, so that it is not Bayes-optimal.

With ``omega`` of the estimate and ``z* = omega + delta`` of the signal, jointly Gaussian with covariances ``Q`` of omega, ``E``
of delta, ``N`` of delta with omega,

.. math::

    \hat Q = \alpha \sum_c (V^{-1} - V^{-1} E[\mathrm{Cov}] V^{-1}), \qquad
    \hat m = \alpha E \sum_c \frac{\partial g_c}{\partial z^*_c}, \qquad \hat\chi = \alpha E \sum_c g_c g_c^T,

and the estimate is ``denoise(Qhat^{-1} (m W* + chi^{1/2} Z), Qhat)``. On the line N = 0, E = V, and all three equal ``alpha I``.

Sampled means are off by some percent, which V would amplify into a trajectory that runs away. So they are compared, with the
same random numbers, with those at the point of the line that has the same V, where the accurate information is known.
Deviations shrink along a trajectory, and their errors with them: it ends where the line does.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from smimbench.interfaces import Host, Overlaps
from smimbench.numerics import (
    inverse_root,
    monte_carlo_rng,
    normal_points,
    symmetric,
    symmetric_root,
    whitened_points,
    with_floor,
)
from smimbench.problem import Problem
from smimbench.theory import prior_moments

SMALLEST_V = 1e-16
"""Floor of the predicted error: at perfect recovery V would underflow and g be 0 / 0."""

SMALLEST_QHAT = 1e-12
"""Floor of the information, which sampling noise can make negative."""


class Accuracy(NamedTuple):
    """Numerical settings of a GAMP trajectory in the limit.

    Attributes
    ----------
    points, entries : int
        Points of the integrals over latents, and entries that stand for the signal (exact for Gaussian priors). Twice the
        points: half the error, twice the time.
    small, more : float, int
        Overlaps below this fraction of the second moment decide when a trajectory escapes and get ``more`` times the points.
    sets : int
        Independent sets of points; their spread is the stated error.
    unknown : float
        Error, as a fraction of the second moment, above which a trajectory is not shown.
    arrived : float
        Distance to the fixed point, as a fraction of the second moment and besides the stated errors, that counts as arrived.
    iterations : int
        Most iterations.
    at_rest, roughly_at_rest : float
        Relative change that ends a trajectory; the second where the information is sampled.
    """

    points: int = 2**12
    entries: int = 2**13
    small: float = 0.1
    more: int = 4
    sets: int = 4
    unknown: float = 0.1
    arrived: float = 0.01
    iterations: int = 60
    at_rest: float = 1e-9
    roughly_at_rest: float = 1e-5


ACCURACY = Accuracy()


class OrderParameters(NamedTuple):
    """Predicted error V, true error E, and inner product N of the error (signal less estimate) with the estimate, (P, P) each."""

    V: Host
    E: Host
    N: Host

    @classmethod
    def bayes_optimal(cls, V: Host) -> OrderParameters:
        """Order parameters in the Bayes-optimal case: the predicted error is true, and the error independent of the estimate."""
        return cls(V, V, np.zeros_like(V))

    @property
    def is_bayes_optimal(self) -> bool:
        """Whether the order parameters satisfy the Bayes-optimal conditions exactly."""
        return not self.N.any() and bool((self.E == self.V).all())

    def own(self, problem: Problem) -> Host:
        """Overlap of the estimate with itself; its eigenvalues are at least 0."""
        found: Host = with_floor(prior_moments(problem)[0] - self.N - self.N.T - self.E, 0.0)
        return found

    def overlaps(self, problem: Problem) -> Overlaps:
        """Overlaps of signal and estimate, all three pairs."""
        own = self.own(problem)
        return Overlaps(prior_moments(problem)[0], own + self.N.T, own)


def sampled_step(
    problem: Problem, alpha: float, at: OrderParameters, Qhat: Host, matched: OrderParameters, seed: int
) -> OrderParameters:
    """Order parameters after one iteration, by sampling.

    Parameters
    ----------
    Qhat : ndarray (P, P)
        ``kappa alpha I`` on the Bayes-optimal line, at the same V.
    matched : OrderParameters
        Where an iteration from there leads.
    seed : int
        Number of the set of random points.
    """
    here, there = (_moments(problem, one, seed) for one in (at, OrderParameters.bayes_optimal(at.V)))
    scale = problem.model.kappa * alpha
    information = with_floor(Qhat + scale * (here[0] - there[0]), SMALLEST_QHAT)
    # The slope grows with the overlap with the signal, and so does the error at either point.
    Q, cross = np.diagonal(prior_moments(problem)[0] - at.V), np.diagonal(at.overlaps(problem).cross)
    share = np.minimum(1.0, np.abs(cross) / np.maximum(Q, 1e-300))
    m = scale * here[1] + share * (Qhat - scale * there[1])
    # Corrected by a factor, so that it stays positive; where both are next to nothing, not at all.
    ratio = np.diagonal(Qhat) / np.maximum(scale * np.diagonal(there[2]), 1e-300)
    correction = np.eye(len(Qhat))
    if (np.maximum(ratio, 1 / ratio) < 2.0).all():
        correction = symmetric_root(Qhat) @ inverse_root(scale * there[2])
    chi = correction @ (scale * here[2]) @ correction.T
    found = _denoised(problem, information, m, chi, seed)
    twin = _denoised(problem, Qhat, Qhat, Qhat, seed)
    V, E, N = (known + (a - b) for known, a, b in zip(matched, found, twin))
    return OrderParameters(with_floor(V, SMALLEST_V), with_floor(E, SMALLEST_V), N)


def _moments(problem: Problem, at: OrderParameters, seed: int) -> tuple[Host, Host, Host]:
    """Sampled information, mean slope of g and mean square of g, (P, P) each.

    For labels that do not depend on a sign, small overlaps enter in second order; sampled, they would enter in first order.
    Points with the opposite estimate and otherwise the same numbers, label noise included, cancel that.
    """
    P, C = problem.components, problem.model.sites
    own = at.own(problem)
    few = np.trace(own) >= ACCURACY.small * np.trace(prior_moments(problem)[0])
    count = ACCURACY.points * (1 if few else ACCURACY.more)
    points = whitened_points(2 * P * C, count, "path of message passing: latents", seed).reshape(-1, 2 * P, C)
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
        labels = channel.forward(z, rng=monte_carlo_rng("path of message passing: noise", seed))
        found = channel.posterior(labels, omega, at.V, rng=monte_carlo_rng("path of message passing: posterior", seed))
        g = np.einsum("pq,nqc->npc", inverse, np.asarray(found.mean) - omega)
        information = C * (inverse - inverse @ np.asarray(found.covariance) @ inverse)
        products = [np.einsum("npc,nqc->pq", g, other) / len(g) for other in (two, g)]
        sums.append((symmetric(information), products[0] @ np.linalg.pinv(rest, rcond=1e-12), products[1]))
    # Labels that do not depend on signs have no mean products of two components: sampled ones are noise.
    kept = np.eye(P) if channel.symmetry == "signs" else np.ones((P, P))
    information, slope, square = (kept * np.mean(both, axis=0) for both in zip(*sums))
    return information, slope, square


def _denoised(problem: Problem, Qhat: Host, m: Host, chi: Host, seed: int) -> OrderParameters:
    """Order parameters of the prior's estimate from an observation ``Qhat^{-1} (m W* + chi^{1/2} Z)``."""
    P, size, truth = problem.components, ACCURACY.entries, prior_moments(problem)[0]
    signal = np.asarray(problem.prior.sample(monte_carlo_rng("path of message passing: signal", seed), P, size))
    both = np.concatenate([signal, normal_points(P, size, "path of message passing: entries", seed).T])
    # Exactly the second moment, white noise, and no correlation of the two.
    moments = np.block([[truth, np.zeros((P, P))], [np.zeros((P, P)), np.eye(P)]])
    both = np.linalg.cholesky(moments) @ np.linalg.solve(np.linalg.cholesky(both @ both.T / size), both)
    signal, noise = both[:P], both[P:]
    denoised = problem.prior.denoise(np.linalg.solve(Qhat, m @ signal + symmetric_root(chi) @ noise), Qhat)
    estimate = np.asarray(denoised.estimate)
    error = signal - estimate
    return OrderParameters(np.asarray(denoised.V), error @ error.T / size, error @ estimate.T / size)
