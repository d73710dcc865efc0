"""What channels share: their base classes, softmax and its gradient, and helpers for batches of samples or overlaps.

Base classes raise ParameterError for parameters out of range.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, TypeVar

import array_api_compat
import numpy as np

from smimbench.backend import NUMPY, namespace, shared_constants, to_host_floats
from smimbench.interfaces import Array, Capabilities, Channel, Host, Uncertain
from smimbench.interfaces.checks import check_whole
from smimbench.numerics import (
    entry_sites,
    outer_product,
    places_at_mask,
    put_at_mask,
    site_entries,
    site_pairs,
    site_scales,
    site_values,
)

T = TypeVar("T", bound=tuple[Any, ...])

MOST_COPIED_COLUMNS = 16
"""Columns that are copied one by one. Doubled: as long as a gather, where each sample has its columns side by side."""


class SequenceChannel(Channel):
    """Base class of channels for sequence multi-index models, with one site per token; ``tokens`` is their number M."""

    tokens: int
    reference = "arXiv:2502.00901"
    capabilities = Capabilities(models=("sequence-multi-index",))


class AttentionChannel(Channel):
    """Base class of channels for attention-indexed models, with one site per pair of the T = ``tokens`` tokens; ``symmetric``
    says whether queries and keys are tied.
    """

    tokens: int
    symmetric: bool = True  # whether queries and keys are tied
    reference = "arXiv:2506.01582"
    capabilities = Capabilities(models=("attention-indexed",))
    symmetry = "none"

    @property
    def sites(self) -> int:
        """Number of pairs of tokens, C = T (T + 1) / 2, or T (T - 1) without symmetry."""
        return len(site_pairs(self.tokens, self.symmetric))

    def _scales(self, like: Array) -> Array:
        """Factors ``sqrt(1 + delta_ab)`` (C,) that turn the latents z of all pairs of tokens into attention logits h, as an array
        like ``like``.
        """
        scales = site_scales(self.tokens, self.symmetric)
        return shared_constants(scales, like, like.dtype)

    def _logit_matrix(self, z: Array) -> Array:
        """Assemble the symmetric matrix h (..., T, T) of attention logits from the latents z (..., C) of one component, one per
        pair of tokens.
        """
        xp = namespace(z)
        return xp.reshape(
            take_columns(z * self._scales(z), entry_sites(self.tokens)),
            (*z.shape[:-1], self.tokens, self.tokens),
        )

    def _latent_gradient(self, gradient: Array) -> Array:
        """Convert ``gradient`` (..., T, T), with respect to the logits h, into the one with respect to the latents (..., C) of
        the pairs of tokens: the transpose of ``_logit_matrix``.
        """
        xp = namespace(gradient)
        symmetric_gradient = gradient + xp.matrix_transpose(gradient)
        symmetric_gradient = xp.reshape(
            symmetric_gradient, (*symmetric_gradient.shape[:-2], self.tokens**2)
        )
        # On the diagonal the sum counts its one entry twice: sqrt(2) / 2 there, 1 elsewhere.
        return take_columns(
            symmetric_gradient, site_entries(self.tokens)
        ) * shared_constants(
            site_values(self.tokens, math.sqrt(0.5), 1.0), gradient, gradient.dtype
        )


class SoftmaxChannel(Channel):
    """Base class of channels whose labels are log-probabilities."""

    name = "softmax"
    title_words: ClassVar[dict[str, str]] = {
        "name": "Softmax attention",
        "layers": "L",
        "skip": "c",
    }
    version = 2

    def observable(self, y: Array) -> Array:
        """Attention probabilities ``exp(y)`` of the labels; every row sums to 1."""
        return namespace(y).exp(y)

    def predict(self, z: Array) -> Array:
        """Attention probabilities given the latents ``z`` (n, P, C): labels have no noise."""
        return self.observable(self.forward(z))


def take_columns(x: Array, indices: tuple[int, ...]) -> Array:
    """Columns ``indices`` of the last axis of x. On the host a few are copied one by one, in the memory order of x: where all
    samples of a column are next to each other, loops over samples take a fraction of the time.
    """
    xp = namespace(x)
    if xp is not NUMPY or len(indices) > MOST_COPIED_COLUMNS:
        return xp.take(x, shared_constants(indices, x, xp.int64), axis=-1)
    columns = np.empty_like(x, shape=(*x.shape[:-1], len(indices)))
    for position, index in enumerate(indices):
        columns[..., position] = x[..., index]
    return columns


def log_softmax(logits: Array) -> Array:
    """Logarithm of the softmax of the attention ``logits`` along the last axis."""
    xp = namespace(logits)
    logits = logits - reduce_tokens(xp.maximum, logits)
    return logits - xp.log(reduce_tokens(operator.add, xp.exp(logits)))


def reduce_tokens(combine: Callable[[Array, Array], Array], x: Array) -> Array:
    """Reduce the last axis (tokens) of the array ``x`` to length 1 with a binary operation ``combine``, such as addition.

    Token by token: NumPy takes five times as long to reduce few columns itself.
    """
    return functools.reduce(
        combine, (x[..., token : token + 1] for token in range(x.shape[-1]))
    )


def softmax_vjp(p: Array, cotangent: Array, beta: float) -> Array:
    """Gradient of ``sum(cotangent * p)`` with respect to the logits h, for ``p = softmax(beta h)`` along the last axis;
    ``cotangent`` is the derivative of a loss with respect to p, ``beta`` the inverse temperature.
    """
    return beta * p * (cotangent - reduce_tokens(operator.add, cotangent * p))


class HardmaxChannel(Channel):
    """Base class of channels whose labels (n, T) are the column of the largest attention logit in every row; ``_maximum_tokens``
    is the largest number of tokens allowed.
    """

    tokens: int
    name = "hardmax"
    title_words: ClassVar[dict[str, str]] = {"name": "Hardmax attention"}
    version = 2
    components = 1
    _maximum_tokens: int

    def __post_init__(self) -> None:
        """Check the number of tokens."""
        check_whole("tokens", self.tokens, 2, self._maximum_tokens)

    def log_likelihood(self, y: Array, z: Array) -> Array:
        """Log-likelihood (n,) of labels y: 0 where the latents z produce exactly this label, otherwise minus infinity."""
        xp = namespace(z)
        is_same_label = xp.all(self.forward(z) == y, axis=-1)
        return xp.where(
            is_same_label,
            xp.zeros_like(z[:, 0, 0]),
            xp.full_like(z[:, 0, 0], -math.inf),
        )

    def observable(self, y: Array) -> Array:
        """Attention matrix (..., n, T, T) of the labels y (..., n, T), with one-hot rows, in float64; ``columns`` are the numbers
        0 to T - 1.
        """
        xp = namespace(y)
        columns = xp.arange(
            self.tokens, dtype=y.dtype, device=array_api_compat.device(y)
        )
        return xp.astype(y[..., None] == columns, xp.float64)


def array_like(values: object, like: Array) -> Array:
    """Array of the numbers ``values`` with the namespace, device and dtype of ``like``."""
    xp = namespace(like)
    return xp.asarray(values, dtype=like.dtype, device=array_api_compat.device(like))


def identity_like(size: int, like: Array) -> Array:
    """Unit matrix (size, size) with the namespace, device and dtype of ``like``."""
    return namespace(like).eye(
        size, dtype=like.dtype, device=array_api_compat.device(like)
    )


def normal_density(x: Array) -> Array:
    """Probability density of the standard normal law at x."""
    return namespace(x).exp(-x * x / 2) / math.sqrt(2 * math.pi)


def blocks(n: int, size: int) -> Iterator[slice]:
    """Split ``range(n)`` into consecutive slices of length ``size``, the last may be shorter; n = 0 gives one empty slice."""
    return (slice(start, min(start + size, n)) for start in range(0, max(n, 1), size))


def concatenate_tuples(batches: Sequence[T]) -> T:
    """Concatenate ``batches``, named tuples of arrays of one type, field by field along the first axis; fields that are None stay
    None.
    """
    if len(batches) == 1:
        return batches[0]
    xp = namespace(batches[0][0])
    joined_fields = []
    for arrays_of_field in zip(*batches):
        joined_fields.append(
            None
            if arrays_of_field[0] is None
            else xp.concat(list(arrays_of_field), axis=0)
        )
    tuple_type: Any = type(batches[0])
    joined_batch: T = tuple_type(*joined_fields)
    return joined_batch


def put_tuple(target: T, mask: Array, replacement: Sequence[object]) -> T:
    """Copy of the named tuple ``target`` of arrays in which the rows where ``mask`` (n,) is true are those of the tuple
    ``replacement``, in order; fields that are None stay None.
    """
    replaced_indices = places_at_mask(mask)
    updated_fields = []
    for array, replacement_rows in zip(target, replacement):
        updated_fields.append(
            None
            if array is None
            else put_at_mask(array, mask, replacement_rows, places=replaced_indices)
        )
    tuple_type: Any = type(target)
    updated_tuple: T = tuple_type(*updated_fields)
    return updated_tuple


def raw_second_moment(mean: Array, covariance: Array) -> Array:
    """Second moment ``E[z z^T]`` (..., n, 1, C, 1, C) of latents z of one component, from their posterior mean (..., n, 1, C) and
    covariance (..., n or 1, C, C).
    """
    outer_product = mean[..., 0, :, None] * mean[..., 0, None, :]
    return (outer_product + covariance)[..., None, :, None, :]


def shifted_second_moment(
    center: Array, shift: Array, outer: Array, dtype: object
) -> Array:
    """Second moment ``E[z z^T]`` (n, 1, C, 1, C) of ``z = center + e`` (n, C), as ``dtype``; ``shift`` is E[e] and ``outer`` E[e
    e^T].
    """
    xp = namespace(center)
    cross_term = outer_product(center, shift)
    shifted_part = (
        outer_product(center, center) + cross_term + xp.matrix_transpose(cross_term)
    )
    return xp.astype((shifted_part + outer)[:, None, :, None, :], dtype)


def on_host(*arrays: Array) -> list[Host]:
    """Copy arrays to the host as float64 and broadcast them to a common shape."""
    return list(np.broadcast_arrays(*map(to_host_floats, arrays)))


def uncertain_like(like: Array, value: object, error: object, method: str) -> Uncertain:
    """Build an ``Uncertain`` from a host value, its numerical error and the name of the method, with the namespace, device and
    dtype of the array ``like``.
    """
    return Uncertain(array_like(value, like), array_like(error, like), method)
