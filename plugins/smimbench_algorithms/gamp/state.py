"""The state that GAMP iterates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from smimbench.interfaces import Array
    from smimbench_algorithms.gamp.damping import StepState

__all__ = ["SMALLEST_QHAT", "SMALLEST_V", "GampState"]

SMALLEST_V = 1e-16
"""Floor of the predicted error: at perfect recovery V would underflow and g be 0 / 0."""

SMALLEST_QHAT = 1e-12
"""Floor of the information, which sampling noise can make negative."""


class GampState(NamedTuple):
    """The state of a run.

    Attributes
    ----------
    estimate, V, g : array (P, ...), (P, P), (n, P, C) or None
        All damped alike; ``g`` is None before the first step. Matrices (P, P) stay on the host: transferring four
        numbers to a device takes longer than computing them.
    rng : Generator
        For channels that integrate by sampling.
    total, Qhat : array (P, ...), (P, P) or None
        Adjoint of ``g``, and the information, damped alike. The adjoint is linear, so mixing needs no further pass.
    onsager : array (P, P) or None
        Matrix in front of ``g`` in the Onsager term: V, except where the noise exceeds its predicted size.
    step : StepState or None
        What the size of the next step is computed from.
    """

    estimate: Array
    V: Array
    g: Array | None
    rng: Any
    total: Array | None = None
    Qhat: Array | None = None
    onsager: Array | None = None
    step: StepState | None = None
