"""What every derived prior shares: its own methods first, the map of overlaps, moments, and a factor for gradient methods."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.backend.arrays import beside, namespace, to_host
from smimbench.interfaces import Overlap, ParameterError, offers
from smimbench.numerics.linalg import symmetric

if TYPE_CHECKING:
    from smimbench.interfaces import Array

__all__ = ["DerivedLaw", "DerivedPrior", "Host"]

Host = np.ndarray[Any, np.dtype[np.float64]]


class DerivedPrior:
    """A prior of which something is derived; everything else is its own, and so is what ``first`` names, if it has it.

    Gradient methods move in the signal itself (a symmetric matrix: in any matrix, of which the symmetric part counts)
    unless the prior has a factor of its own.
    """

    matrix = False
    overlap_error: Any = 1e-3
    """Relative error of V in ``overlap``, for the error of predictions: a number, or a function of Qhat."""

    def __init__(self, prior: Any, *first: str) -> None:
        self.prior = prior
        # Its own factor goes together: drawing one is of no use without what makes a signal of it.
        factor = ("draw_factor",) if offers(prior, "compose") else ()
        for name in (*first, *factor, "compose", "pullback"):
            if hasattr(prior, name):
                setattr(self, name, getattr(prior, name))

    def __getattr__(self, name: str) -> Any:
        if name == "prior" or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(name)
        return getattr(self.prior, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.prior!r})"

    def second_moment(self, components: int) -> Host:
        """Mean of the products of two components' entries (P, P), host."""
        raise NotImplementedError

    def overlap(self, Qhat: Array) -> Overlap:
        """State-evolution map: error ``V`` and ``Q = second_moment - V``, both (..., P, P); leading axes are a batch."""
        xp = namespace(Qhat)
        host = np.asarray(to_host(Qhat), dtype=np.float64)
        P = host.shape[-1]
        V = np.zeros(host.shape)
        for index in np.ndindex(host.shape[:-2]):
            V[index] = self._error(host[index])
        return Overlap(xp.asarray(self.second_moment(P) - V, **beside(Qhat)), xp.asarray(V, **beside(Qhat)))

    def _error(self, Qhat: Host) -> Host:
        """V (P, P) for one Qhat (P, P)."""
        raise NotImplementedError

    def draw_factor(self, rng: np.random.Generator, components: int, dimension: int, width: int | None = None) -> Host:
        """Independent N(0, 1) entries of the signal; ParameterError if a width is asked for."""
        if width is not None:
            raise ParameterError("width", f"must not be set with the prior {self.prior.name!r}, got {width}")
        return rng.standard_normal((components, dimension, dimension) if self.matrix else (components, dimension))

    def compose(self, factor: Array) -> Array:
        """The factor itself (its symmetric part)."""
        return symmetric(factor) if self.matrix else factor

    def pullback(self, factor: Array, gradient: Array) -> Array:
        """Gradient with respect to the factor."""
        del factor
        return symmetric(gradient) if self.matrix else gradient


class DerivedLaw(DerivedPrior):
    """A prior given by the law of one number (an entry, an eigenvalue), with its mean and variance.

    The law is scaled to unit variance unless the prior draws its own samples: then the prior mean scores 1.
    """

    def __init__(self, prior: Any) -> None:
        super().__init__(prior, "sample")
        self.unit = self.centre = self.variance = math.nan

    def _scale(self, mean: float, variance: float) -> None:
        """Choose the unit; a mean that is small beside the width is rounding and counts as zero."""
        self.unit = 1.0 if offers(self.prior, "sample") else math.sqrt(variance)
        # A prior mean of any size would change what can be learned.
        mean = 0.0 if abs(mean) < 1e-6 * math.sqrt(variance + mean * mean) else mean
        self.centre, self.variance = mean / self.unit, variance / self.unit**2

    def mean_overlap(self, components: int) -> Host:
        """Squared mean of the law in every entry of (P, P), host."""
        return np.full((components, components), self.centre**2)

    def second_moment(self, components: int) -> Host:
        """``mean_overlap`` plus the variance on the diagonal (P, P), host."""
        return self.mean_overlap(components) + self.variance * np.eye(components)
