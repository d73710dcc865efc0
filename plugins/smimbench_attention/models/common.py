"""Base class of both models: sample counts, chunks of samples, alignment of estimates by symmetry, shape checks."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import array_api_compat
import numpy as np

from smimbench.backend import chunk_bytes, namespace, to_host
from smimbench.interfaces import SYMMETRIES, Capabilities, Model, ParameterError
from smimbench.interfaces.checks import MAX_TOKENS, check_whole

if TYPE_CHECKING:
    from smimbench.interfaces import Array, Host

# Numbers for each latent that a posterior holds at once on an accelerator. Doubled: more chunks where memory is short.
_POSTERIOR_NUMBERS = 64


class TokenModel(Model):
    """Base class of models whose samples are sequences of ``tokens``; subclasses define signal and latents, one latent per
    component and site. ``_host_chunk_bytes`` is the memory of a chunk of samples on the host, ``_axes`` are the array axes of the
    entries of one component, ``title_words`` the symbols of parameters in titles.
    """

    tokens: int
    version = 1
    capabilities = Capabilities()
    title_words: ClassVar[dict[str, str]] = {"tokens": "T"}
    _host_chunk_bytes: int  # bytes of a chunk of samples
    _axes: int | tuple[int, int]  # axes of one component's entries

    def __post_init__(self) -> None:
        """Check that the number of tokens is a whole number of at least 1."""
        check_whole("tokens", self.tokens, 1, MAX_TOKENS)

    @property
    def sites(self) -> int:
        """Number of sites: one per token."""
        return self.tokens

    def sample_count(self, alpha: float, dimension: int) -> int:
        """Number of samples at the sample ratio ``alpha`` in ``dimension`` d: ``alpha d`` for low rank or ``alpha d^2`` for
        extensive rank, rounded, at least 1.

        ParameterError if alpha is negative or not finite.
        """
        if not math.isfinite(alpha) or alpha < 0:
            raise ParameterError("alpha", f"must be a finite number >= 0, got {alpha}")
        return max(1, round(alpha * self._unit(dimension)))

    def sample_ratio(self, n: int, dimension: int) -> float:
        """Sample ratio alpha of n samples in ``dimension`` d: ``n / d`` for low rank, ``n / d^2`` for extensive rank."""
        return n / self._unit(dimension)

    def chunks(
        self,
        n: int,
        dimension: int,
        components: int = 1,
        *,
        itemsize: int = 8,
        like: Array | None = None,
        streamed: bool = False,
    ) -> list[slice]:
        """Consecutive slices that cover ``range(n)``, for one pass of forward, posterior and adjoint over n samples: inputs and
        latents of a slice fit the cache of the host, or the memory of the device that holds the array ``like``. ``itemsize`` is
        the bytes of a number, ``streamed`` says whether inputs are copied to the device slice by slice.

        On the host inputs and temporaries of one stay in the cache. An accelerator gains nothing from its cache and loses
        with every call: its slices are as large as its free memory allows.

        Parameters
        ----------
        n, dimension, components : int
            Samples, d, and the number of components (times students) whose latents are held at once.
        itemsize : int
            Bytes of a number.
        like : array, optional
            An array on the device that will do the work. Default: the host.
        streamed : bool
            Whether the inputs of a slice are moved to the device when it is asked for.
        """
        byte_limit = None if like is None else chunk_bytes(like)
        if byte_limit is None:
            return list(self._host_chunks(n, dimension, components, itemsize))
        latent_bytes = 8 * _POSTERIOR_NUMBERS * components * self.sites
        return slices(
            n,
            byte_limit
            // (latent_bytes + itemsize * self.tokens * dimension * streamed),
        )

    @lru_cache(maxsize=256)  # noqa: B019  (models are few, small and equal by value)
    def _host_chunks(
        self, n: int, dimension: int, components: int, itemsize: int
    ) -> list[slice]:
        """Slices of n samples whose inputs and latents, of ``itemsize`` bytes a number, fit into the cache of the host."""
        sample_bytes = itemsize * (
            self.tokens * dimension + 2 * components * self.sites
        )
        return slices(
            n,
            max(
                self._minimum_samples(dimension), self._host_chunk_bytes // sample_bytes
            ),
        )

    def align(self, signal: Array, estimate: Array, symmetry: str) -> Array:
        """Move the estimate (P, ...) as close to the signal as the channel's ``symmetry`` allows (see the function ``align``)."""
        if symmetry == "none":
            return estimate
        return align(signal, estimate, symmetry, self.inner(signal, estimate))

    def inner(self, signal_1: Array, signal_2: Array) -> Array:
        """Overlaps ``A_p . B_q / d`` of the components p, q of two signals A (``signal_1``) and B (``signal_2``), (..., P, ...)
        each, in d dimensions, as an array (..., P, P).
        """
        raise NotImplementedError

    def squared_error(self, signal: Array, estimate: Array) -> Array:
        """Squared error ``|s_p - s_hat_p|^2 / d`` (..., P) of each component p of the estimate s_hat of a signal s in d
        dimensions, summed over all entries.
        """
        xp = namespace(signal, estimate)
        squared_difference = signal - estimate
        squared_difference *= squared_difference
        return xp.sum(squared_difference, axis=self._axes) / signal.shape[-1]

    def _unit(self, dimension: int) -> int:
        """Number of samples that corresponds to a sample ratio of 1 in ``dimension`` d; each subclass with another unit than d
        overrides it.
        """
        return dimension

    def _minimum_samples(self, dimension: int) -> int:
        """Smallest number of samples of a chunk, in ``dimension`` d, for which matrix products on chunks are fast."""
        return 1

    def _check_inputs(self, inputs: Array, dimension: int) -> None:
        """Raise ValueError unless ``inputs`` is (n, T, d): n samples of the model's T tokens in ``dimension`` d."""
        if inputs.ndim != 3 or tuple(inputs.shape[1:]) != (self.tokens, dimension):
            raise ValueError(
                f"inputs must have shape (n, {self.tokens}, {dimension}), got {tuple(inputs.shape)}"
            )

    def _check_gradient(self, inputs: Array, g: Array) -> None:
        """Raise ValueError unless ``inputs`` is (n, T, d), samples of T tokens in d dimensions, and ``g``, a gradient in the
        latents, (..., n, P, C) for P components and C sites.
        """
        self._check_inputs(inputs, inputs.shape[-1])
        if inputs.shape[0] != g.shape[-3] or g.shape[-1] != self.sites:
            raise ValueError(
                f"the gradient g must have shape (..., {inputs.shape[0]}, P, {self.sites}), got {tuple(g.shape)}"
            )


def slices(n: int, largest_length: int) -> list[slice]:
    """Split ``range(n)`` into slices of nearly equal length, at most ``largest_length`` (at least 1)."""
    slice_count = max(1, math.ceil(n / max(1, largest_length)))
    slice_length = math.ceil(n / slice_count) if n else 1
    return [
        slice(start, min(start + slice_length, n))
        for start in range(0, n, slice_length)
    ]


def align(signal: Array, estimate: Array, symmetry: str, inner: Array) -> Array:
    """Transform the estimate by the element of the ``symmetry`` group that brings it closest to the signal. ``inner`` (P, P)
    holds the overlaps of signal components (rows) with those of the estimate; a rotation is ``U Vh`` from their singular
    vectors, other elements are an ``order`` and ``signs`` of the components.

    Minimizes ``sum_p |s_p - (g shat)_p|^2`` over the group, that is maximizes ``sum_p s_p . (g shat)_p``.

    ``signal`` and ``estimate`` (P, ...) are not modified; ``inner`` (P, P) is ``inner(signal, estimate)`` of the model in any
    normalization. ``symmetry`` is ``"none"``, ``"signs"`` (one per component), ``"common-sign"`` (one for all),
    ``"permutations"`` (of the components), ``"permutations-common-sign"`` (the last two), ``"signed-permutations"`` (the first
    and the third) or ``"rotations"`` (orthogonal P x P, reflections included); ValueError otherwise.
    """
    if symmetry not in SYMMETRIES:
        raise ValueError(
            f"symmetry must be one of {', '.join(SYMMETRIES)}, got {symmetry!r}"
        )
    if symmetry == "none":
        return estimate
    xp = namespace(signal, estimate)
    shape = estimate.shape
    flat_estimate = xp.reshape(estimate, (shape[0], -1))
    if symmetry == "rotations":
        U, _, Vh = xp.linalg.svd(inner, full_matrices=False)
        return xp.reshape(xp.matmul(xp.matmul(U, Vh), flat_estimate), shape)
    order, signs = _best_symmetry(to_host(inner), symmetry)
    device = array_api_compat.device(estimate)
    flat_estimate = xp.take(flat_estimate, xp.asarray(order, device=device), axis=0)
    if np.any(signs < 0):
        flat_estimate = flat_estimate * xp.asarray(
            signs[:, None], dtype=estimate.dtype, device=device
        )
    return xp.reshape(flat_estimate, shape)


def _best_symmetry(overlaps: Host, symmetry: str) -> tuple[Host, Host]:
    """Order and signs (P,) of the estimate's components that maximize ``sum_p signs[p] overlaps[p, order[p]]`` within the
    ``symmetry`` group, from the ``overlaps`` (P, P) of signal components (rows) with those of the estimate.
    """
    component_numbers = np.arange(len(overlaps))

    def best_order(pair_overlaps: Host) -> Host:
        """Order (P,) of the estimate's components that maximizes their summed overlaps with the signal's, ``pair_overlaps``
        (P, P); the given order if the symmetry has no permutations.
        """
        if "permutations" not in symmetry:
            return component_numbers
        from scipy.optimize import linear_sum_assignment

        return np.asarray(linear_sum_assignment(pair_overlaps, maximize=True)[1])

    if symmetry in ("signs", "signed-permutations"):
        order = best_order(np.abs(overlaps))
        # A sign of 0 would wipe out a component that happens to be orthogonal to its target.
        return order, np.where(overlaps[component_numbers, order] < 0, -1.0, 1.0)
    signed_orders = [(1.0, best_order(overlaps))]
    if symmetry.endswith("common-sign"):
        signed_orders.append((-1.0, best_order(-overlaps)))
    sign, order = max(
        signed_orders,
        key=lambda candidate: (
            candidate[0] * float(overlaps[component_numbers, candidate[1]].sum())
        ),
    )
    return order, np.full(len(component_numbers), sign)
