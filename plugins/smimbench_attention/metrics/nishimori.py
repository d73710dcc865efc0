"""Ratios that are 1 for a posterior mean, by the Nishimori identity: overlap over self-overlap, claimed over true error."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.interfaces import NotMeasured
from smimbench.theory import prior_moments
from smimbench_attention.metrics import PerComponent

if TYPE_CHECKING:
    from smimbench.interfaces import Array, Claims
    from smimbench.problem import Problem

SMALLEST = 1e-9
"""Squared length or error of an estimate, in second moments of the signal, below which it has no ratio: rounding. Doubled, next
to nothing."""

EQUAL = 1e-6
"""Largest distance of a point's error from ``second moment - Q``, in second moments, if it is to be one of a posterior mean.
Doubled: the same, unless an algorithm's own theory is that near to Bayes-optimal."""


class Nishimori(PerComponent):
    """Overlap of the estimate with the signal over its self-overlap, ``<S_hat_p, S_p> / <S_hat_p, S_hat_p>``.

    The prior mean is subtracted from both.
    It is 1 for a posterior mean, above 1 for an estimate that is too short, below 1 for one that is too long. The squared
    error is stationary at the posterior mean: where posteriors are wrong by 2%, it is larger by a few tenths of a per cent,
    which takes hundreds of runs to see; the ratio is wrong by a per cent or two, and fluctuates little.
    """

    name = "nishimori"
    reference = (
        "Nishimori identity: E <S_hat, S> = E <S_hat, S_hat> for a posterior mean"
    )
    label = "Nishimori ratio"
    unit = "the estimate of a posterior mean"  # what the value 1 means
    direction = "one"  # values near 1 are better

    def _values(self, problem: Problem, claims: Claims) -> Array:
        """Nishimori ratio (overlap with the signal over self-overlap) of each component (P,) of the aligned estimate in
        ``claims``; NaN for a component whose estimate is the prior mean.
        """
        model = problem.model
        aligned_estimate = np.asarray(claims.aligned, dtype=float)
        prior_mean = np.asarray(
            problem.prior.mean(problem.components, aligned_estimate.shape[-1]),
            dtype=float,
        )
        centered_signal = np.asarray(claims.teacher, dtype=float) - prior_mean
        centered_estimate = aligned_estimate - prior_mean
        overlap, self_overlap = (
            np.diagonal(
                np.asarray(model.inner(centered_estimate, other_signal), dtype=float)
            )
            for other_signal in (centered_signal, centered_estimate)
        )
        is_learned = self_overlap > SMALLEST * np.diagonal(prior_moments(problem)[0])
        if not is_learned.any():
            raise NotMeasured("the estimate is the prior mean")
        return np.where(
            is_learned, overlap / np.where(is_learned, self_overlap, 1.0), np.nan
        )

    def theory(
        self, problem: Problem, point: dict[str, Any]
    ) -> tuple[list[float | None], list[float | None]]:
        """Theoretical Nishimori ratio, overlap with the signal over self-overlap, at a ``point`` of theory (its order
        parameters), and numerical errors: 1 for components of a posterior mean that are estimated better than by the prior mean.
        Q is the diagonal of the overlap matrix of estimate and signal.
        """
        second_moments, prior_mean_overlap = (
            np.diagonal(moment_matrix) for moment_matrix in prior_moments(problem)[:2]
        )
        Q = np.diagonal(np.asarray(point["overlap"], dtype=float))
        is_posterior_mean = (
            np.abs(
                second_moments
                - Q
                - np.atleast_1d(np.asarray(point["mse"], dtype=float))
            )
            <= EQUAL * second_moments
        )
        has_ratio = (
            (Q - prior_mean_overlap > EQUAL * second_moments)
            & is_posterior_mean
            & ("squared_cosine" not in point)
        )
        return [1.0 if ratio_is_defined else None for ratio_is_defined in has_ratio], [
            0.0 if ratio_is_defined else None for ratio_is_defined in has_ratio
        ]


class Calibration(PerComponent):
    """Squared error that the algorithm claims over its true squared error, ``V_pp D / |S_p - S_hat_p|^2``.

    1 if the claim is right, below 1 if the algorithm is overconfident. Blank for algorithms that claim no error.
    """

    name = "calibration"
    reference = "Nishimori identity: on the Bayes-optimal line the claimed error is the real one"
    label = "claimed over real squared error"
    unit = "the claimed error is right"  # what the value 1 means
    direction = "one"  # values near 1 are better

    def _values(self, problem: Problem, claims: Claims) -> Array:
        """Calibration (claimed over true squared error) of each component (P,), from the claimed error, the signal and the
        aligned estimate in ``claims``; NaN where the true error is only rounding.
        """
        if claims.aligned_V is None:
            raise NotMeasured("the algorithm states no error of its estimate")
        true_error = np.asarray(
            problem.model.squared_error(claims.teacher, claims.aligned), dtype=float
        )
        smallest_error = SMALLEST * np.diagonal(prior_moments(problem)[0])
        ratios = np.diagonal(claims.aligned_V) / np.where(
            true_error > smallest_error, true_error, math.nan
        )
        if np.isnan(ratios).all():
            raise NotMeasured("the true error is 0 up to rounding")
        return ratios

    def theory(
        self, problem: Problem, point: dict[str, Any]
    ) -> tuple[list[float | None], list[float | None]]:
        """Theoretical calibration, claimed over true squared error, at a ``point`` of theory (its order parameters), and
        numerical errors: 1 for Bayes-optimal estimates, otherwise from the algorithm's own theory.
        """
        if "calibration" in point:
            claimed_ratios = point["calibration"] or [None] * problem.components
            return claimed_ratios, [
                None if claimed_ratio is None else 0.0
                for claimed_ratio in claimed_ratios
            ]
        second_moments = np.diagonal(prior_moments(problem)[0])
        errors = np.atleast_1d(np.asarray(point["mse"], dtype=float))
        has_error = errors > SMALLEST * second_moments
        return [
            1.0 if error_is_positive else None for error_is_positive in has_error
        ], [0.0 if error_is_positive else None for error_is_positive in has_error]
