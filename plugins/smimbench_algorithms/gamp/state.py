"""What GAMP iterates, and what one pass over the inputs finds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from smimbench.interfaces import Array
    from smimbench_algorithms.gamp.damping import Progress

__all__ = ["GampState", "Pass"]


class GampState(NamedTuple):
    """What is iterated.

    Attributes
    ----------
    estimate, V, g : array (P, ...), (P, P), (n, P, C) or None
        All damped alike; g is None before the first step. Matrices between components (P, P) live on the host: a device
        takes longer to be asked for four numbers than the host to compute them.
    rng : Generator
        For sampling channels.
    total, Qhat : array (P, ...), (P, P) or None
        Adjoint of ``g`` and information, damped alike: the adjoint is linear, so that this takes no pass more.
    onsager : array (P, P) or None
        Matrix before ``g`` in the Onsager term: V, but where the noise exceeds what is predicted.
    progress : Progress or None
        What the weight of the next step is chosen from.

    Of several instances (``smimbench_algorithms.gamp.batch``) every array has one more axis in front, and ``rng`` is a tuple.
    """

    estimate: Array
    V: Array
    g: Array | None
    rng: Any
    total: Array | None = None
    Qhat: Array | None = None
    onsager: Array | None = None
    progress: Progress | None = None


class Pass(NamedTuple):
    """What one pass over the inputs finds; of several instances with an axis of theirs in front.

    Attributes
    ----------
    g, total : array (n, P, C), (P, ...)
        New g and its adjoint.
    covariance : array (P, P)
        Sum over samples of the posterior covariance.
    errors : list
        Errors of the posterior integrals, one for each chunk.
    """

    g: Array
    total: Array
    covariance: Array
    errors: list[Any]
