"""Base classes of derived priors (state-evolution map, moments, error curve), and priors that are simulated."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from smimbench.backend.arrays import asarray_like, to_host_floats
from smimbench.interfaces import (
    Array,
    Factor,
    Host,
    Model,
    Overlap,
    ParameterError,
    Prior,
    is_symmetric,
)
from smimbench.interfaces.checks import checked_array
from smimbench.interfaces.item import Delegate, defines_member, with_defaults
from smimbench.numerics.linalg import inverse_root, symmetric
from smimbench.numerics.memo import cached_on
from smimbench.numerics.random_numbers import monte_carlo_rng

LOWEST = 1e-9
HIGHEST = 1e16
"""Smallest and largest Qhat of the tabulated error curves; below, nothing is learned. Ten times the one, or a tenth of the
other, leaves out a decade."""


class DerivedPrior(Delegate):
    """Base class of priors (laws of the signal) whose missing members are derived, such as the state-evolution map from
    information Qhat to overlap Q and error V. ``matrix`` says whether signals are matrices, and ``overlap_error`` is the
    relative error of V.

    Members named in ``preferred`` are taken from the original prior if it has them.

    Unless the prior has a factor of its own, gradient methods move in the signal itself. A matrix signal is that of a factor F
    (D, D) of independent N(0, 1) entries: ``(F + F^T) / sqrt(2 D)``, or ``F / sqrt(D)`` without symmetry. It starts with the
    semicircle of variance 1 as its spectrum, and learning rates do not depend on D.
    """

    _wrapped_attribute = "prior"
    matrix = False
    _is_symmetric = True  # of matrix signals
    overlap_error: Any = 1e-3
    """Relative error of V in ``overlap``, for the error of predictions: a number, or a function of Qhat."""

    def __init__(self, prior: Prior, *preferred: str) -> None:
        """Wrap a prior; ``preferred`` are names of its own members that replace the derived ones."""
        with_defaults(Prior, type(prior))
        self.prior = prior
        self.factor = prior.factor or Factor(
            self._draw,
            self._signal_of,
            lambda factor, gradient: self._signal_of(gradient),
        )
        for name in preferred:
            if defines_member(Prior, type(prior), name):
                setattr(self, name, getattr(prior, name))

    def second_moment(self, components: int) -> Host:
        """Second moment ``E[S_p . S_q] / D`` (P, P) of the P components of the signal S in dimension D, as a host array."""
        raise NotImplementedError

    def overlap(self, Qhat: Array) -> Overlap:
        """State-evolution map: from the information ``Qhat`` (..., P, P) on the signal to the posterior mean's error ``V`` and
        overlap ``Q = second_moment - V``, both (..., P, P). V is computed on the host, matrix by matrix.
        """
        host_Qhat = to_host_floats(Qhat)
        V = np.zeros(host_Qhat.shape)
        for index in np.ndindex(host_Qhat.shape[:-2]):
            V[index] = self._error(host_Qhat[index])
        Q = self.second_moment(host_Qhat.shape[-1]) - V
        return Overlap(asarray_like(Q, Qhat), asarray_like(V, Qhat))

    def _error(self, Qhat: Host) -> Host:
        """Error V (P, P) of the posterior mean of the signal for one information matrix ``Qhat`` (P, P)."""
        raise NotImplementedError

    def _draw(
        self,
        rng: np.random.Generator,
        components: int,
        dimension: int,
        width: int | None = None,
    ) -> Host:
        """Draw a random start for algorithms that fit the signal directly: P = ``components`` vectors or matrices of
        ``dimension`` D with independent N(0, 1) entries; raise ParameterError if a ``width`` is asked for.
        """
        if width is not None:
            raise ParameterError(
                "width",
                f"has no effect with the prior {self.prior.name!r} and must be left out, got {width}",
            )
        signal_axes = 2 if self.matrix else 1
        return rng.standard_normal((components, *[dimension] * signal_axes))

    def _signal_of(self, matrix: Array) -> Array:
        """Signal of a factor F, ``(F + F^T) / sqrt(2 D)`` or ``F / sqrt(D)`` for matrices and F itself for vectors; the map is
        its own adjoint, so it also turns gradients by the signal into those by F.
        """
        if not self.matrix:
            return matrix
        scaled = matrix / math.sqrt(matrix.shape[-1])
        return math.sqrt(2) * symmetric(scaled) if self._is_symmetric else scaled


class DerivedLaw(DerivedPrior):
    """Base class of priors defined by the distribution of one number: an entry or an eigenvalue of the signal.

    The law is scaled to unit variance unless the prior draws its own samples: then the prior mean scores 1.
    """

    def __init__(self, prior: Prior) -> None:
        """Wrap a prior whose ``law`` describes one number."""
        super().__init__(prior, "sample")
        self.unit = self.center = self.variance = math.nan

    def _set_scale(self, mean: float, variance: float) -> None:
        """Set unit, mean and variance of an entry (or eigenvalue) of the signal, from the ``mean`` and ``variance`` of the law
        as its author wrote it. Numbers of that law are divided by ``unit`` (its standard deviation, or 1 if the prior draws
        signals itself); a mean within rounding error of 0 becomes 0.
        """
        self.unit = (
            1.0
            if defines_member(Prior, type(self.prior), "sample")
            else math.sqrt(variance)
        )
        # A prior mean of any size would change what can be learned.
        mean = 0.0 if abs(mean) < 1e-6 * math.sqrt(variance + mean * mean) else mean
        self.center = mean / self.unit
        self.variance = variance / self.unit**2

    @cached_property
    def _error_curve(self) -> Callable[[Host], Host]:
        """Function for the error of the posterior mean of one component at a given information (inverse noise variance)."""
        raise NotImplementedError

    def _scalar_error(self, information: Host) -> Host:
        """Errors of components that are estimated one by one, each at its ``information`` (inverse noise variance), capped at
        the error of the best linear estimate.

        Where there is little information it is the linear error: there the overlap is the small difference of two large
        numbers, and rounding could even make it negative.
        """
        variance = self.variance
        linear_error = variance / (1 + variance * information)
        error = np.minimum(self._error_curve(information), linear_error)
        return np.where(variance * information < 1e-6, linear_error, error)

    def mean_overlap(self, components: int) -> Host:
        """Overlap (P, P) of the prior mean with itself: all entries are the squared mean of the law; P is ``components``."""
        return np.full((components, components), self.center**2)

    def second_moment(self, components: int) -> Host:
        """Second moment (P, P) of the signal, where P is ``components``: ``mean_overlap`` plus the variance on the diagonal."""
        return self.mean_overlap(components) + self.variance * np.eye(components)


def error_curve(
    exact_error: Callable[[Array], Array],
    variance: float,
    *,
    takes_grid: bool = False,
    per_decade: int = 16,
    steady: float = 1e-7,
) -> Callable[[Host], Host]:
    """Interpolate the error V of the posterior mean as a function of the information (inverse noise variance), from values of
    ``exact_error`` on a logarithmic grid with ``per_decade`` points around ``1 / variance``; ``variance`` is the prior's. With
    ``takes_grid``, exact_error takes all points at once; otherwise it is no longer called once the gain, V over the error of a
    linear estimate, changes by less than ``steady``.

    Interpolated is ``log(V (1/variance + information))``, which tends to constants at both ends: it is how much better than
    the best linear estimate the estimate is. ``takes_grid``: ``exact_error`` takes the whole grid at once. ``per_decade``: values
    per decade where most happens. ``steady``: relative change from one value to the next at which the rest is left out.
    """
    from scipy.interpolate import PchipInterpolator

    # Structure in a signal shows between a tenth of the prior's precision and a thousand times that.
    log10_center = math.log10(1 / variance)
    log10_ends = (
        math.log10(LOWEST),
        log10_center - 1,
        log10_center + 3,
        math.log10(HIGHEST),
    )
    points_per_decade = (2, per_decade, 2)
    log10_segments = [
        np.linspace(
            segment_start,
            segment_end,
            round((segment_end - segment_start) * density) + 1,
        )[:-1]
        for segment_start, segment_end, density in zip(
            log10_ends, log10_ends[1:], points_per_decade
        )
    ]
    log_grid = np.append(np.concatenate(log10_segments), log10_ends[-1]) * math.log(10)
    grid = np.exp(log_grid)
    if takes_grid:
        errors = np.clip(exact_error(grid), 1e-300, variance)
        log_gain = np.log(errors * (1 / variance + grid))
    else:
        log_gain = _gains_until_steady(exact_error, grid, variance, steady)
    interpolant = PchipInterpolator(log_grid, log_gain)

    def error(information: Host) -> Host:
        """Interpolated error V at any ``information``; the prior variance at none. ``gain`` is V over the error of a linear
        estimate.
        """
        information = np.asarray(information, dtype=np.float64)
        clipped_information = np.clip(information, LOWEST, HIGHEST)
        with np.errstate(divide="ignore", invalid="ignore"):
            gain = np.exp(interpolant(np.log(clipped_information)))
            interpolated_error = gain / (1 / variance + information)
        interpolated_error = np.where(information <= 0, variance, interpolated_error)
        return np.where(np.isnan(information), np.nan, interpolated_error)

    return error


def _gains_until_steady(
    exact_error: Callable[[float], float], grid: Host, variance: float, tolerance: float
) -> Host:
    """Tabulate the log-gain ``log(V (1/variance + information))``, the error V (``exact_error``) over that of a linear estimate,
    on a ``grid`` of informations (inverse noise variances), for a prior of this ``variance``; constant once it changes by less
    than ``tolerance`` three times in a row.
    """
    log_gain = np.zeros(len(grid))
    steady_count = 0
    for grid_index, information in enumerate(grid):
        # At large informations the gain no longer changes.
        if steady_count == 3:
            log_gain[grid_index] = log_gain[grid_index - 1]
            continue
        error = min(max(exact_error(information), 1e-300), variance)
        log_gain[grid_index] = math.log(error * (1 / variance + information))
        is_past_center = grid_index > 0 and information * variance > 100
        is_steady = (
            is_past_center
            and abs(log_gain[grid_index] - log_gain[grid_index - 1]) < tolerance
        )
        steady_count = steady_count + 1 if is_steady else 0
    return log_gain


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
        """Wrap a prior for a model, which gives the shape of signals and the noise of their observation."""
        super().__init__(prior, "mean", "second_moment", "mean_overlap", "overlap")
        self.model = model
        self.matrix = model.rank == "extensive"
        self._is_symmetric = is_symmetric(model)
        self._simulates = prior.overlap is None
        # Dimension and number of simulated signals: errors of a matrix fall with its dimension.
        self._size = (300, 2) if self.matrix else (1 << 14, 8)

    def mean(self, components: int, dimension: int) -> Host:
        """Prior mean of the signal: what ``denoise`` returns without information, for P = ``components`` and D =
        ``dimension``.
        """
        zeros = np.zeros(self.model.signal_shape(components, dimension))
        return np.asarray(
            self.prior.denoise(zeros, 1e-12 * np.eye(components)).estimate
        )

    def _moments(self, components: int) -> tuple[Host, Host]:
        """Second moment (P, P) of each of several simulated signals (draws, P, P), and overlap (P, P) of the prior mean with
        itself, for P = ``components``.
        """

        def simulate() -> tuple[Host, Host]:
            """Second moment of each simulated signal (draws, P, P), and overlap (P, P) of the prior mean with itself. ``draws``
            is the number of signals, and ``signal_deviation`` a signal minus the prior mean.
            """
            dimension, draws = self._size
            prior_mean = self.mean(components, dimension)
            mean_overlap = np.asarray(self.model.inner(prior_mean, prior_mean))
            second_moments = []
            shape = tuple(self.model.signal_shape(components, dimension))
            for draw in range(draws):
                rng = monte_carlo_rng("simulated prior", draw)
                signal = self.prior.sample(rng, components, dimension)
                source = f"{type(self.prior).__name__}.sample"
                signal_deviation = checked_array(source, signal, shape) - prior_mean
                second_moments.append(
                    mean_overlap + self.model.inner(signal_deviation, signal_deviation)
                )
            return np.stack(second_moments), mean_overlap

        return cached_on(self, "moments", simulate, key=components)

    def second_moment(self, components: int) -> Host:
        """Second moment (P, P) of the signal of P = ``components``, averaged over simulated signals."""
        return np.asarray(self._moments(components)[0].mean(axis=0))

    def mean_overlap(self, components: int) -> Host:
        """Overlap (P, P) of the prior mean with itself, where P is ``components``."""
        return self._moments(components)[1]

    def overlap_error(self, Qhat: Host) -> float:
        """Relative error of V at the information ``Qhat`` (P, P), from the spread of simulations; 0 where the prior has its own
        ``overlap``.
        """
        if not self._simulates:
            return 0.0
        if self.matrix:
            return 3e-3  # error of matrices of that dimension
        if len(Qhat) > 1:
            return float(np.max(_relative_error(self._simulated_errors(Qhat))))
        _, log_grid, errors = self._error_curve
        return float(
            np.interp(np.log(max(float(Qhat[0, 0]), 1e-300)), log_grid, errors)
        )

    def _error(self, Qhat: Host) -> Host:
        """Error V (P, P) of the posterior mean at one information ``Qhat`` (P, P): interpolated for one component, simulated
        for several.
        """
        if len(Qhat) > 1:
            return np.asarray(self._simulated_errors(Qhat).mean(axis=0))
        return self._error_curve[0](np.diagonal(Qhat))[None, :]

    @cached_property
    def _error_curve(self) -> tuple[Callable[[Host], Host], Host, Host]:
        """Function from the information Qhat of one component to its simulated error V, and two arrays: a grid of log Qhat
        (``log_grid``), and the relative error of V on it.
        """
        variance = float(self.second_moment(1)[0, 0] - self.mean_overlap(1)[0, 0])
        log_grid = []
        relative_errors = []

        def mean_error(information: float) -> float:
            """Simulated error V at one ``information`` (Qhat), averaged over draws; its relative error is recorded with log
            Qhat.
            """
            simulated_errors = self._simulated_errors(np.array([[information]]))
            log_grid.append(math.log(information))
            relative_errors.append(float(_relative_error(simulated_errors)[0]))
            return float(simulated_errors.mean())

        curve = error_curve(mean_error, variance, per_decade=8)
        return curve, np.array(log_grid), np.array(relative_errors)

    def _simulated_errors(self, Qhat: Host) -> Host:
        """Error V (draws, P, P) of ``denoise`` at the information ``Qhat`` (P, P) in each of several simulated signals,
        observed as ``R = signal + Qhat^{-1/2} noise``; combined from the squared error of the estimate and from the prior
        variance that the estimate leaves unexplained.

        Where little is known V is the prior's variance less the overlap of the estimate with itself, which Bayes makes
        equal to that with the signal; where much is known it is the squared error. Each has a small relative error in its
        own domain, and none in the other's.
        """
        P = len(Qhat)
        dimension, draws = self._size
        noise_root = inverse_root(Qhat, 1e-12)
        prior_mean = self.mean(P, dimension)
        second_moments, mean_overlap = self._moments(P)
        prior_variances = second_moments - mean_overlap
        total_prior_variance = np.trace(prior_variances.mean(axis=0))
        signal_to_noise = float(np.trace(Qhat) * total_prior_variance) / P**2
        combined_errors = []
        for draw in range(draws):
            rng = monte_carlo_rng("simulated prior", draw)
            signal = self.prior.sample(rng, P, dimension)
            noise = self.model.draw_noise(rng, P, dimension)
            R = signal + np.tensordot(noise_root, noise, axes=1)
            estimate = np.asarray(self.prior.denoise(R, Qhat).estimate)
            estimate_error = signal - estimate
            centered_estimate = estimate - prior_mean
            squared_error = np.asarray(self.model.inner(estimate_error, estimate_error))
            unexplained_variance = prior_variances[draw] - np.asarray(
                self.model.inner(centered_estimate, centered_estimate)
            )
            combined_error = unexplained_variance + signal_to_noise * squared_error
            combined_errors.append(combined_error / (1 + signal_to_noise))
        return np.stack(combined_errors)


def _relative_error(simulated_matrices: Host) -> Host:
    """Relative standard error (P,) of the diagonal of a mean over simulated matrices (draws, P, P)."""
    simulated_diagonals = np.diagonal(simulated_matrices, axis1=1, axis2=2)
    # Wider by 1.3, so that a deviation of four errors estimated from eight simulations is as rare as one of four exact errors.
    standard_error = (
        1.3
        * simulated_diagonals.std(axis=0, ddof=1)
        / math.sqrt(len(simulated_diagonals))
    )
    mean: Host = simulated_diagonals.mean(axis=0)
    return np.where(mean > 0, standard_error / np.where(mean > 0, mean, 1.0), 1.0)
