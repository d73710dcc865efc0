"""Priors given by ``sample`` and ``denoise``, whose moments and state-evolution map are simulated."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property

import numpy as np

from smimbench.derive.derived_prior import DerivedPrior, error_curve
from smimbench.interfaces import Host, Model, Prior
from smimbench.numerics.linalg import inverse_root
from smimbench.numerics.memo import cached_on
from smimbench.numerics.seeds import monte_carlo_rng


class SimulatedPrior(DerivedPrior):
    """A prior with ``sample`` and ``denoise``; its moments and state-evolution map are simulated.

    The error of ``overlap`` is the statistical one of a simulation with about 10^5 entries of the signal, the same draws for
    every ``Qhat``: below a per cent for usual laws, more for sparse ones, and much more where hardly any entry is wrong. A closed
    form or quadrature of the prior's own is always better.

    Parameters
    ----------
    prior : object
        With ``sample(rng, components, dimension)`` and ``denoise(R, Qhat)``.
    model : Model
        Gives noise and inner product of signals.
    """

    def __init__(self, prior: Prior, model: Model) -> None:
        super().__init__(prior, "mean", "second_moment", "mean_overlap", "overlap")
        self.model = model
        self.matrix = model.rank == "extensive"
        self._simulates = prior.overlap is None
        # Dimension and number of simulated signals: errors of a matrix fall with its dimension.
        self._size = (300, 2) if self.matrix else (1 << 14, 8)

    def mean(self, components: int, dimension: int) -> Host:
        """Prior mean of the signal: what ``denoise`` returns without information."""
        nothing = np.zeros(self.model.signal_shape(components, dimension))
        return np.asarray(
            self.prior.denoise(nothing, 1e-12 * np.eye(components)).estimate
        )

    def _moments(self, components: int) -> tuple[Host, Host]:
        """Second moment of every simulated signal (draws, P, P), and overlap of the prior mean (P, P)."""

        def simulate() -> tuple[Host, Host]:
            dimension, draws = self._size
            mean = self.mean(components, dimension)
            overlap = np.asarray(self.model.inner(mean, mean))
            squares = []
            for k in range(draws):
                rng = monte_carlo_rng("simulated prior", k)
                deviation = self.prior.sample(rng, components, dimension) - mean
                squares.append(overlap + self.model.inner(deviation, deviation))
            return np.stack(squares), overlap

        return cached_on(self, "moments", simulate, key=components)

    def second_moment(self, components: int) -> Host:
        """Second moment (P, P) of the signal, averaged over simulated signals."""
        return np.asarray(self._moments(components)[0].mean(axis=0))

    def mean_overlap(self, components: int) -> Host:
        """Overlap (P, P) of the prior mean with itself."""
        return self._moments(components)[1]

    def overlap_error(self, Qhat: Host) -> float:
        """Relative error of V at ``Qhat`` (P, P), from the spread of simulations; 0 where the prior has its own ``overlap``."""
        if not self._simulates:
            return 0.0
        if self.matrix:
            return 3e-3  # of that dimension
        if len(Qhat) > 1:
            return float(np.max(_relative_error(self._simulated_errors(Qhat))))
        _, at, errors = self._curve
        return float(np.interp(np.log(max(float(Qhat[0, 0]), 1e-300)), at, errors))

    def _error(self, Qhat: Host) -> Host:
        if len(Qhat) > 1:
            return np.asarray(self._simulated_errors(Qhat).mean(axis=0))
        return self._curve[0](np.diagonal(Qhat))[None, :]

    @cached_property
    def _curve(self) -> tuple[Callable[[Host], Host], Host, Host]:
        """Simulated V as a function of Qhat, with its relative error on a grid of log Qhat."""
        variance = float(self.second_moment(1)[0, 0] - self.mean_overlap(1)[0, 0])
        grid = []
        errors = []

        def exact(information: float) -> float:
            draws = self._simulated_errors(np.array([[information]]))
            grid.append(math.log(information))
            errors.append(float(_relative_error(draws)[0]))
            return float(draws.mean())

        curve = error_curve(exact, variance, finest=8)
        return curve, np.array(grid), np.array(errors)

    def _simulated_errors(self, Qhat: Host) -> Host:
        """Error V (draws, P, P) of ``denoise`` in each of several simulations.

        Where little is known V is the prior's variance less the overlap of the estimate with itself, which Bayes makes
        equal to that with the signal; where much is known it is the squared error. Each has a small relative error in its
        own domain, and none in the other's.
        """
        P = len(Qhat)
        dimension, draws = self._size
        root = inverse_root(Qhat, 1e-12)
        mean = self.mean(P, dimension)
        second_moments, mean_overlap = self._moments(P)
        variances = second_moments - mean_overlap
        variance = np.trace(variances.mean(axis=0))
        signal_to_noise = float(np.trace(Qhat) * variance) / P**2
        errors = []
        for k in range(draws):
            rng = monte_carlo_rng("simulated prior", k)
            signal = self.prior.sample(rng, P, dimension)
            noise = self.model.draw_noise(rng, P, dimension)
            R = signal + np.tensordot(root, noise, axes=1)
            estimate = np.asarray(self.prior.denoise(R, Qhat).estimate)
            difference = signal - estimate
            learned = estimate - mean
            squared = np.asarray(self.model.inner(difference, difference))
            unlearned = variances[k] - np.asarray(self.model.inner(learned, learned))
            combined = unlearned + signal_to_noise * squared
            errors.append(combined / (1 + signal_to_noise))
        return np.stack(errors)


def _relative_error(draws: Host) -> Host:
    """Relative standard error (P,) of the diagonal of a mean over simulated matrices (draws, P, P)."""
    diagonals = np.diagonal(draws, axis1=1, axis2=2)
    # Wider by 1.3, so that a deviation of four errors estimated from eight simulations is as rare as one of four exact errors.
    sem = 1.3 * diagonals.std(axis=0, ddof=1) / math.sqrt(len(diagonals))
    mean: Host = diagonals.mean(axis=0)
    return np.where(mean > 0, sem / np.where(mean > 0, mean, 1.0), 1.0)
