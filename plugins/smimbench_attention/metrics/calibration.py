"""Calibration: the error that an algorithm claims, divided by its true error."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.interfaces import NotMeasured
from smimbench.theory import prior_moments
from smimbench_attention.metrics.component import PerComponent

if TYPE_CHECKING:
    from smimbench.interfaces import Array, Claims
    from smimbench.problem import Problem

SMALLEST = 1e-9
"""Squared errors below this, relative to the second moment, have no ratio: both sides are rounding. Doubled, next to nothing."""


class Calibration(PerComponent):
    """Squared error that the algorithm claims over its true squared error, ``V_pp D / |S_p - S_hat_p|^2``.

    1 if the claim is right, below 1 if the algorithm is overconfident. Blank for algorithms that claim no error.
    """

    name = "calibration"
    reference = "Nishimori identity: on the Bayes-optimal line the claimed error is the real one"
    label = "claimed over real squared error"
    unit = "the claimed error is right"
    direction = "one"

    def _values(self, problem: Problem, claims: Claims) -> Array:
        """Calibration of each component (P,), from the claimed error, the signal and the aligned estimate in ``claims``; NaN
        where the true error is only rounding.
        """
        if claims.aligned_V is None:
            raise NotMeasured("the algorithm claims no error")
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
        """Theoretical calibration and its error at a ``point`` of theory: 1 for Bayes-optimal estimates, otherwise from
        the algorithm's own theory.
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
