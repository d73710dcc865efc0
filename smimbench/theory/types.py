"""Results of state evolution: predictions, thresholds and bifurcations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from smimbench.interfaces import Host

NOTHING = 1e-9
"""Information, or an error of the signal, that counts as zero; doubled, channels of half that information are uninformative."""


def plain(values: Any) -> float | list[float]:
    """Values per component as JSON; a single component gives a number."""
    found = [float(value) for value in values]
    return found[0] if len(found) == 1 else found


@dataclass(frozen=True)
class Prediction:
    """Result of state evolution at one sample ratio.

    Attributes
    ----------
    alpha : float
    Q, V : ndarray (P, P)
        Overlap and error, ``V = second_moment - Q``.
    error : ndarray (P,)
        Numerical error of the diagonal of Q (and of V) at this alpha.
    alpha_error : ndarray (P,)
        The other reading of the same curve: numerical error of the sample ratio of which Q is a fixed point, as each
        component tells it. It stays finite where V falls steeply.
    branch : str
        ``"unique"``, ``"uninformed"`` or ``"informed"``.
    method : str
        How the information of the channel was obtained.
    free_entropy : float or None
        Difference to the prior mean, in the normalization d(phi)/dQ = (Qhat(alpha, Q) - Qhat(Q)) / 2; given where
        branches compete.
    """

    alpha: float
    Q: Host
    V: Host
    error: Host
    branch: str
    method: str
    free_entropy: float | None = None
    alpha_error: Host | float = 0.0

    @property
    def mse(self) -> Host:
        """Mean squared error of every component (P,)."""
        return np.diagonal(self.V)


@dataclass(frozen=True)
class Threshold:
    """A critical sample ratio with its numerical error."""

    value: float
    error: float

    def document(self) -> dict[str, float]:
        """The threshold as plain data."""
        return {"value": self.value, "error": self.error}


@dataclass(frozen=True)
class HardPhase:
    """Range of sample ratios in which two branches compete.

    Attributes
    ----------
    spinodal : Threshold
        Where the informed branch begins to exist.
    information_theoretic : Threshold
        Where it becomes the Bayes-optimal one.
    algorithmic : Threshold
        Where the uninformed branch ends and joins it.
    """

    spinodal: Threshold
    information_theoretic: Threshold
    algorithmic: Threshold


@dataclass(frozen=True)
class Bifurcation:
    """The sample ratio ``alpha`` at which component ``component`` (from 0) starts to be learned; 0 if from the beginning."""

    component: int
    alpha: float
    error: float
