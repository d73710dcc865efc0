"""Cosine of the angle between the estimate and the signal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.theory import prior_moments
from smimbench_attention.metrics import PerComponent

if TYPE_CHECKING:
    from smimbench.interfaces import Array, Claims, Model
    from smimbench.problem import Problem


class Cosine(PerComponent):
    """Cosine similarity ``<S_hat_p, S_p> / (|S_hat_p| |S_p|)`` with the symmetry removed; 0 for an estimate that is 0."""

    name = "cosine"
    reference = "the definition; on the Bayes-optimal line sqrt(Q_pp / second moment)"
    label = "cosine"
    unit = "the direction of the signal"  # what the value 1 means

    def bounded(self, model: Model) -> bool:
        """Whether the posterior mean is the best estimate by this metric: true, no estimate has a larger mean cosine with the
        signal, in any model.
        """
        return True

    def _values(self, problem: Problem, claims: Claims) -> Array:
        """Cosine between aligned estimate and signal, both in ``claims``, for each component (P,); 0 where either of them is
        0.
        """
        teacher, aligned_estimate = claims.teacher, claims.aligned
        component_overlaps, estimate_norms, signal_norms = (
            np.diagonal(np.asarray(problem.model.inner(*pair_of_signals), dtype=float))
            for pair_of_signals in (
                (teacher, aligned_estimate),
                (aligned_estimate, aligned_estimate),
                (teacher, teacher),
            )
        )
        norm_products = np.sqrt(estimate_norms * signal_norms)
        return np.where(
            norm_products > 0,
            component_overlaps / np.where(norm_products > 0, norm_products, 1.0),
            0.0,
        )

    def theory(
        self, problem: Problem, point: dict[str, Any]
    ) -> tuple[list[float], list[float]]:
        """Theoretical cosine ``sqrt(Q_pp / second moment)`` of a posterior mean and its error, at a ``point`` of theory (its
        order parameters), Q being the overlap matrix of estimate and signal.

        The overlap of a posterior mean with the signal equals its self-overlap.
        An estimate of another length (spectral methods) comes with its ``squared_cosine``.
        """
        second_moments = np.diagonal(prior_moments(problem)[0])
        if "cosine" in point:
            return point["cosine"], point["cosine_error"]
        if "squared_cosine" in point:
            squared_cosines = np.asarray(point["squared_cosine"])
            errors = np.asarray(point["squared_cosine_error"])
        else:
            squared_cosines = np.diagonal(np.asarray(point["overlap"])) / second_moments
            errors = (
                np.atleast_1d(np.asarray(point["mse_error"], dtype=float))
                / second_moments
            )
        cosines = np.sqrt(np.clip(squared_cosines, 0.0, 1.0))
        # The error of a root is that of the square over twice the root, and at most the root of the error.
        cosine_errors = np.minimum(
            errors / np.maximum(2 * cosines, 1e-300), np.sqrt(errors)
        )
        return cosines.tolist(), cosine_errors.tolist()
