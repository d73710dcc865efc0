"""Problem, data and starting point, as items see them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from smimbench.interfaces.channel import Channel
from smimbench.interfaces.item import Array, Cost, Host
from smimbench.interfaces.model import Model
from smimbench.interfaces.prior import Prior


class Start(NamedTuple):
    """Starting point of an algorithm: an initial estimate, shaped like the signal, and its error ``V`` (P, P)."""

    estimate: Array
    V: Array


@dataclass(frozen=True)
class Data:
    """Data set that an algorithm learns from: inputs, labels, sizes and sample ratio, never the teacher. ``start`` is a
    starting point from the engine, ``fresh`` draws new samples of the same teacher.

    Attributes
    ----------
    inputs : array (n, T, D)
        Tokens.
    labels : array (n, ...)
        What the channel's ``forward`` returned.
    sample_ratio : float
        alpha really used: ``n / D`` or ``n / D**2``.
    start : Start or None
        A starting point handed in by the engine (informed or spectral); None means the algorithm's own.
    fresh : callable or None
        ``fresh(rng, n) -> (inputs, labels)`` draws n new samples of the same teacher, for algorithms that learn from a
        stream and say so in their ``Plan``; the engine counts them. ``rng`` is a host generator. None where there is no
        teacher to ask.
    """

    inputs: Array
    labels: Array
    sample_ratio: float
    start: Start | None = None
    fresh: Callable[[np.random.Generator, int], tuple[Array, Array]] | None = field(
        default=None, repr=False, compare=False
    )

    @property
    def dimension(self) -> int:
        """Dimension D, the size of a token."""
        return int(self.inputs.shape[-1])


def placeholder_data(
    samples: int, tokens: int, dimension: int, sample_ratio: float = math.nan
) -> Data:
    """Create placeholder data with this many samples, tokens and dimensions but without numbers, for ``Algorithm.plan``."""
    zero_number = np.float64(0)
    inputs = np.broadcast_to(zero_number, (samples, tokens, dimension))
    return Data(inputs, np.broadcast_to(zero_number, (samples,)), sample_ratio)


class ProblemLike(Protocol):
    """Interface of a problem as items see it: model, channel and prior, and the number of signal ``components``; implemented
    by ``smimbench.Problem``.

    Attributes
    ----------
    model, channel, prior
        The three items, with all that the engine derives for them. Of correlated tokens, model and channel are those of whitened
        latents: what ``model.forward`` gives is what the channel takes.
    components : int
        P.
    """

    model: Model
    channel: Channel
    prior: Prior
    components: int

    def pass_cost(self, data: Data, samples: int | None = None) -> Cost:
        """Cost of one pass (forward and adjoint) over a number of samples of ``data`` (default: all)."""
        ...


def prior_moments(
    problem: ProblemLike, components: int | None = None
) -> tuple[Host, Host]:
    """Second moment of the signal and overlap of the prior mean with itself, (P, P) each; P is ``components``, or the
    problem's.
    """
    P = components or problem.components
    prior = problem.prior
    return np.asarray(prior.second_moment(P), dtype=float), np.asarray(
        prior.mean_overlap(P), dtype=float
    )
