"""The contract of a prior: the law of the signal, its denoiser, and its map of state evolution."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from smimbench.interfaces.basics import Array, Capabilities

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Denoised", "Overlap", "Prior"]


class Overlap(NamedTuple):
    """Order parameters: ``Q`` and ``V = second_moment - Q``, both ``(..., P, P)``.

    ``V`` is given apart because the difference would lose all digits when ``Q`` is close to the second moment.
    """

    Q: Array
    V: Array


class Denoised(NamedTuple):
    """Posterior mean of the signal and its error ``V`` (P, P), as claimed by the prior's own theory."""

    estimate: Array
    V: Array


class Prior(Protocol):
    """The law of the signal.

    Less is enough: ``sample`` and ``denoise`` (moments and ``overlap`` are then simulated); or, for low rank,
    ``log_density(w)`` of iid entries, elementwise and not necessarily normalised; or, for extensive rank, the law of the
    eigenvalues as ``quantile(u)`` (inverse distribution function on (0, 1)) or ``eigenvalues`` (samples). Laws given by a
    density or by eigenvalues are scaled to unit variance unless there is a ``sample`` too. See
    ``smimbench.derive.prior``.

    ``second_moment`` is E[S S^T]/D, ``(P, P)`` for ``components`` components, and ``mean_overlap`` the part of it that
    the prior mean already holds (0, or rho). Both are host arrays.
    """

    name: str
    version: int
    reference: str
    capabilities: Capabilities

    def sample(self, rng: np.random.Generator, components: int, dimension: int) -> Array:
        """Draw a signal on the host."""
        ...

    def mean(self, components: int, dimension: int) -> Array:
        """Prior mean, signal-shaped, on the host."""
        ...

    def second_moment(self, components: int) -> Array:
        """E[S S^T] / D, (P, P), on the host."""
        ...

    def mean_overlap(self, components: int) -> Array:
        """The part of ``second_moment`` that the prior mean holds, (P, P), on the host."""
        ...

    def denoise(self, R: Array, Qhat: Array) -> Denoised:
        """Posterior mean of the signal given ``R = S + Qhat^{-1/2} Z`` and its error V."""
        ...

    def overlap(self, Qhat: Array) -> Overlap:
        """The state-evolution map of ``denoise``; ``Qhat`` (..., P, P), leading axes are a batch."""
        ...
