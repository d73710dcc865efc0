"""Priors given by their samples and their denoiser: moments and the state-evolution map from simulations of the two."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.derive.derived_prior import DerivedPrior, Host
from smimbench.derive.error_curve import error_curve
from smimbench.interfaces import offers
from smimbench.numerics.linalg import inverse_root
from smimbench.numerics.memo import kept
from smimbench.numerics.seeds import monte_carlo_rng

if TYPE_CHECKING:
    from collections.abc import Callable

    from smimbench.interfaces import Model

__all__ = ["SimulatedPrior"]

COLUMNS = 1 << 14, 8
"""Dimension and number of simulated low-rank signals; with either doubled, errors fall by 1.4."""
MATRICES = 300, 2
"""The same for matrices: with twice the dimension errors halve, at eight times the cost."""


class SimulatedPrior(DerivedPrior):
    """A prior with ``sample`` and ``denoise``: moments and the state-evolution map from simulations of the two.

    The error of ``overlap`` is the statistical one of a simulation with about 10^5 entries of the signal (a third of a per
    cent), the same draws for every ``Qhat``; a closed form or quadrature of the prior's own is always better.

    Parameters
    ----------
    prior : object
        With ``sample(rng, components, dimension)`` and ``denoise(R, Qhat)``.
    model : Model
        Gives noise and inner product of signals.
    """

    overlap_error = 3e-3

    def __init__(self, prior: Any, model: Model) -> None:
        super().__init__(prior, "mean", "second_moment", "mean_overlap", "overlap")
        self.model = model
        self.matrix = model.rank == "extensive"
        if offers(prior, "overlap"):
            self.overlap_error = 0.0
        self._size = MATRICES if self.matrix else COLUMNS

    def mean(self, components: int, dimension: int) -> Host:
        """What ``denoise`` makes of nothing."""
        nothing = np.zeros(self.model.signal_shape(components, dimension))
        return np.asarray(self.prior.denoise(nothing, 1e-12 * np.eye(components)).estimate)

    def _moments(self, components: int) -> tuple[Host, Host]:
        """Second moment and overlap of the prior mean, (P, P) each, by simulation."""

        def simulate() -> tuple[Host, Host]:
            dimension, draws = self._size
            mean = self.mean(components, dimension)
            square = np.zeros((components, components))
            for k in range(draws):
                signal = self.prior.sample(monte_carlo_rng("simulated prior", k), components, dimension)
                square += np.asarray(self.model.inner(signal - mean, signal - mean)) / draws
            overlap = np.asarray(self.model.inner(mean, mean))
            return overlap + square, overlap

        return kept(self, "moments", simulate, key=components)

    def second_moment(self, components: int) -> Host:
        """Mean over simulations."""
        return self._moments(components)[0]

    def mean_overlap(self, components: int) -> Host:
        """Overlap of the prior mean with itself."""
        return self._moments(components)[1]

    def _error(self, Qhat: Host) -> Host:
        if len(Qhat) > 1:
            return self._simulated(Qhat)

        def curve() -> Callable[[Host], Host]:
            variance = float(self.second_moment(1)[0, 0] - self.mean_overlap(1)[0, 0])
            return error_curve(lambda x: float(self._simulated(np.array([[x]]))[0, 0]), variance, finest=8)

        return kept(self, "curve", curve)(np.diagonal(Qhat))[None, :]

    def _simulated(self, Qhat: Host) -> Host:
        """Error V (P, P) of ``denoise`` in simulations.

        Where little is known V is the prior's variance less the overlap of the estimate with itself, which Bayes makes
        equal to that with the signal; where much is known it is the squared error. Each has a small relative error in its
        own domain, and none in the other's.
        """
        P = len(Qhat)
        dimension, draws = self._size
        spread = inverse_root(Qhat, 1e-12)
        mean = self.mean(P, dimension)
        squared, own_overlap = np.zeros((P, P)), np.zeros((P, P))
        for k in range(draws):
            rng = monte_carlo_rng("simulated prior", k)
            signal = self.prior.sample(rng, P, dimension)
            noise = self.model.draw_noise(rng, P, dimension)
            R = signal + np.tensordot(spread, noise, axes=1)
            estimate = np.asarray(self.prior.denoise(R, Qhat).estimate)
            difference, learned = signal - estimate, estimate - mean
            squared += np.asarray(self.model.inner(difference, difference)) / draws
            own_overlap += np.asarray(self.model.inner(learned, learned)) / draws
        variance = self.second_moment(P) - self.mean_overlap(P)
        known = float(np.trace(Qhat) * np.trace(variance)) / P**2
        found: Host = (variance - own_overlap + known * squared) / (1 + known)
        return found
