"""Cosine of the angle between the estimate and the signal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from smimbench.interfaces import Capabilities

if TYPE_CHECKING:
    from smimbench.interfaces import Array, Claims

__all__ = ["Cosine"]


@dataclass(frozen=True)
class Cosine:
    """Overlap over both norms, ``<S_hat_p, S_p> / (|S_hat_p| |S_p|)`` with the symmetry removed; 0 for an estimate that is 0."""

    name: ClassVar[str] = "cosine"
    version: ClassVar[int] = 1
    reference: ClassVar[str] = "the definition; on the Bayes-optimal line sqrt(Q_pp / second moment)"
    capabilities: ClassVar[Capabilities] = Capabilities()
    label: ClassVar[str] = "cosine"
    unit: ClassVar[str] = "the direction of the signal"
    direction: ClassVar[str] = "higher"
    per_component: ClassVar[bool] = True

    def measure(self, instance: Any, estimate: Array, claims: Claims) -> list[float]:
        """Cosine of every component of the aligned estimate."""
        inner = instance.problem.model.inner
        across, own, truth = (
            np.diagonal(np.asarray(inner(one, other), dtype=float))
            for one, other in (
                (claims.teacher, claims.aligned),
                (claims.aligned, claims.aligned),
                (claims.teacher, claims.teacher),
            )
        )
        norms = np.sqrt(own * truth)
        return [float(v) for v in np.where(norms > 0, across / np.where(norms > 0, norms, 1.0), 0.0)]

    def theory(self, problem: Any, point: dict[str, Any]) -> tuple[list[float], list[float]]:
        """``sqrt(Q_pp / second moment)``: there the estimate's overlap with itself is that with the signal.

        An estimate of another length (spectral methods) comes with its ``squared_cosine``.
        """
        second = np.diagonal(np.asarray(problem.prior.second_moment(problem.components), dtype=float))
        if "squared_cosine" in point:
            squares, errors = np.asarray(point["squared_cosine"]), np.asarray(point["squared_cosine_error"])
        else:
            squares = np.diagonal(np.asarray(point["overlap"])) / second
            errors = np.atleast_1d(np.asarray(point["mse_error"], dtype=float)) / second
        cosines = np.sqrt(np.clip(squares, 0.0, 1.0))
        # The error of a root is that of the square over twice the root, and at most the root of the error.
        spread = np.minimum(errors / np.maximum(2 * cosines, 1e-300), np.sqrt(errors))
        return cosines.tolist(), spread.tolist()
