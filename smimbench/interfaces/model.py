"""The contract of a model: how the signal and the inputs form the latents."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar, Literal

import numpy as np

from smimbench.interfaces.item import Array, Cost, Item


class Model(Item):
    """Model of the latents as a function of signal and inputs (T ``tokens`` per sample), with matrix products only. ``rank``
    of the signal is low or extensive; ``kappa`` is the factor, 1 or 2, in ``Qhat = kappa alpha E sum_c g_c g_c^T``, the
    precision of the effective noise, with g the messages (slopes of the log-likelihood in the latents) of the channel at the
    C sites c; ``forward_gram`` computes latents from a factor F of the signal F F^T.

    A model of matrices without symmetry has an attribute ``symmetric = False``. Channels and priors for it have a dataclass field
    of that name, which is filled in from the model.
    """

    _required_members = (
        "rank",
        "sample_count",
        "sample_ratio",
        "signal_shape",
        "draw_noise",
        "forward",
        "adjoint",
        "sites",
        "adjoint_scale",
        "inner",
        "chunks",
        "align",
        "squared_error",
        "overlap",
        "cost",
    )

    tokens: int
    """Number T of tokens per sample."""
    kappa: ClassVar[float]
    """Factor of ``Qhat = kappa alpha E sum_c g_c g_c^T``: 1 (low rank) or 2 (extensive rank; 1 without symmetry)."""
    rank: ClassVar[Literal["low", "extensive"]]
    """Rank of the signal: ``"low"`` (P vectors, ``n = alpha D``) or ``"extensive"`` (P matrices D x D, ``n = alpha D^2``)."""

    @property
    def sites(self) -> int:
        """Number C of latents per component."""
        raise NotImplementedError

    def sample_count(self, alpha: float, dimension: int) -> int:
        """Number of samples n whose sample ratio at this dimension D is closest to alpha, at least 1."""
        raise NotImplementedError

    def sample_ratio(self, n: int, dimension: int) -> float:
        """Sample ratio of n samples in this dimension D: n / D for low rank, n / D^2 for extensive rank; inverse of
        ``sample_count``.
        """
        raise NotImplementedError

    def signal_shape(self, components: int, dimension: int) -> tuple[int, ...]:
        """Shape of a signal with P components in this dimension D: (P, D) for low rank, (P, D, D) for extensive rank."""
        raise NotImplementedError

    def draw_noise(
        self, rng: np.random.Generator, components: int, dimension: int
    ) -> Array:
        """Draw unit noise Z with ``rng`` on the host, in the shape of the signal S (P components, dimension D), for the
        effective channel ``R = S + Qhat^(-1/2) Z`` of precision Qhat (P, P).
        """
        raise NotImplementedError

    def forward(self, inputs: Array, signal: Array) -> Array:
        """Latents z (n, P, C) of a signal on inputs (n, T, D), by matrix products only."""
        raise NotImplementedError

    def adjoint(self, inputs: Array, g: Array) -> Array:
        """Adjoint of ``forward``: sum over the n samples of messages g (n, P, C) times inputs, in the shape of the signal.
        With the precision Qhat (P, P) of the effective noise and an estimate W_hat of the signal it gives the observation
        ``R = W_hat + Qhat^{-1} adjoint(g)``.

        For features of other variances than 1 it becomes ``problem.per_variance(adjoint(g))``.
        """
        raise NotImplementedError

    def adjoint_scale(self, dimension: int) -> float:
        """Ratio of ``adjoint`` to the transpose of ``forward`` in this dimension D: 1 for low rank, or kappa / D (factor
        ``kappa`` of the model) for extensive rank.
        """
        raise NotImplementedError

    def inner(self, a: Array, b: Array) -> Array:
        """Overlap matrix (P, P) of two signals a and b: ``A B^T / D`` for low rank, ``tr(A_p B_q) / D`` for extensive rank."""
        raise NotImplementedError

    def chunks(self, n: int, dimension: int, components: int) -> Iterable[slice]:
        """Split n samples into slices whose inputs (dimension D) and intermediate results for P components fit the cache.

        With arguments of these names: ``itemsize``, the bytes of a number, ``like``, an array on the device that does the work,
        ``streamed``, whether inputs are moved there by the slice.
        """
        raise NotImplementedError

    def align(self, signal: Array, estimate: Array, symmetry: str) -> Array:
        """Apply to the estimate the operation of the channel's ``symmetry`` group (by name: signs, permutations, ...) that
        brings it closest to the signal.
        """
        raise NotImplementedError

    def squared_error(self, signal: Array, estimate: Array) -> Array:
        """Squared error (P,) of every component of an estimate of the signal, scaled so that the prior mean has error 1 in
        the limit.
        """
        raise NotImplementedError

    def overlap(self, signal: Array, estimate: Array) -> Array:
        """Values of the metric ``overlap`` (P,) of an estimate S_hat: its squared cosine with the signal S (low rank), or
        tr(S_hat S) / D.
        """
        raise NotImplementedError

    def cost(self, n: int, dimension: int, components: int, itemsize: int = 8) -> Cost:
        """Cost of one pass over n inputs in this dimension D (``forward`` and ``adjoint``) and of one typical ``denoise`` of
        P components, for numbers of ``itemsize`` bytes.
        """
        raise NotImplementedError

    forward_gram: (
        Callable[[Array, Array], tuple[Array, Callable[[Array], Array]]] | None
    ) = None
    """``forward_gram(inputs, factor)``: latents of the signal ``F F^T`` (``Q K^T`` without symmetry) from F, and a function from
    g to the gradient of ``sum(g z)`` with respect to F, for priors whose ``factor`` has a ``gram_scale``. F may have axes of
    students in front, and inputs the same, for samples of each. Without it: latents are made from the signal."""


def is_symmetric(model: Model) -> bool:
    """Whether the signal matrices of a model are symmetric; true unless the model sets ``symmetric = False``."""
    return bool(getattr(model, "symmetric", True))
