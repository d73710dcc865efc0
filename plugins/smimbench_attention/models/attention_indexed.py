"""Attention-indexed model: a matrix of extensive rank, symmetric or not, observed through all pairs of tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, Literal

from smimbench.backend import (
    NUMPY,
    chunk_bytes,
    device_of,
    matching,
    namespace,
    scalar_products,
)
from smimbench.interfaces import Cost, ParameterError
from smimbench.numerics import entry_sites, site_entries, site_pairs, site_values
from smimbench_attention.models.common import TokenModel, slices

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    import numpy as np

    from smimbench.interfaces import Array, Host

# Least number of tokens of a chunk: 256, and 3 d. With fewer, adding the (d, d) product of a chunk to the running sum, what
# BLAS does before it multiplies, and the calls for the posterior take as long as the product; with more, temporaries leave the
# cache. Measured best: 3 MB (d = 100), 3 d tokens (d = 500). Doubled: temporaries of twice the size.
_MINIMUM_TOKENS = 256
_TOKENS_PER_DIMENSION = 3

# Tokens up to which the products of a sample are computed pair by pair. Doubled: a batch of small products is faster on the
# host; on a GPU (not measured) there are more passes over the inputs, one for each pair.
_FEW_TOKENS = 3

# (least d, number of bands): signals and sums over samples are symmetric, so products with them are computed in bands of the
# triangle. Five bands need 60% of the operations; ten would need 55%, in products too narrow for BLAS to be fast.
_BANDS = ((600, 6), (400, 5), (120, 4), (72, 3))
# Bands begin at multiples of this, blocks that BLAS computes at once. Doubled: bands of less equal width, 3% slower at d = 100.
_BAND_BLOCK = 12


@cache
def _bands(dimension: int) -> tuple[slice, ...]:
    """Bands (slices) of rows or columns in which products with a symmetric (d, d) matrix are computed; the number of bands grows
    with the ``dimension`` d.
    """
    band_count = next(
        (
            band_count_of_size
            for smallest_dimension, band_count_of_size in _BANDS
            if dimension >= smallest_dimension
        ),
        1,
    )
    band_edges = [
        _BAND_BLOCK * round(band_index * dimension / band_count / _BAND_BLOCK)
        for band_index in range(band_count)
    ]
    return tuple(
        slice(band_start, band_end)
        for band_start, band_end in pairwise([*band_edges, dimension])
    )


@dataclass(frozen=True)
class AttentionIndexed(TokenModel):
    r"""Attention-indexed model: the latents are bilinear forms of a matrix S, one for every pair of tokens.

    .. math::

        h_{ab} = \frac{x_a^T S x_b - \delta_{ab} \operatorname{tr} S}{\sqrt d}, \qquad
        z_{ab} = \frac{h_{ab}}{\sqrt{1 + \delta_{ab}}}, \qquad a \le b,

    for tokens ``x_a`` (d,), iid N(0, 1) unless the problem names other inputs, and a symmetric signal ``S`` (d, d) whose
    spectrum is O(1). Then all ``C = T (T + 1) / 2`` latents have the same limiting variance ``|S|_F^2 / d``. Sites are
    ordered 11, 12, .., 1T, 22, .., TT. The number of samples is ``n = alpha d^2``.

    With untied queries and keys S is not symmetric, and a token does not attend to itself: ``z_ab = x_a^T S x_b / sqrt(d)`` for
    all ordered pairs ``a != b``, ``C = T (T - 1)``, in the order 12, .., 1T, 21, 23, .., T(T-1).

    Parameters
    ----------
    tokens : int
        T, at least 1. With one token and the channel ``linear`` this is a network with a quadratic activation and extensive
        width: ``z = (x^T S x - tr S) / sqrt(2 d)``.
    symmetric : bool
        Whether queries and keys are tied, so that S is symmetric (default). If not, T is at least 2.

    Raises
    ------
    ParameterError
        If ``tokens`` is not an integer >= 1, or 1 without symmetry.

    Notes
    -----
    Why there is no diagonal without symmetry: ``x_a^T S x_a`` is a form of the symmetric part of S alone. Samples would then tell
    more of that than of the rest, the noise of ``R`` would no longer be the same in all directions, and no denoiser of singular
    values would be optimal. Forms of different tokens see all directions alike, and those of ab and ba are independent as long as
    ``tr S^2 / d`` vanishes; labels must not couple the two (rows of attention do not).

    Symmetric signals must be so: on the host only the lower triangle of S is read, elsewhere only ``x_a^T S x_b`` with
    ``a <= b`` is evaluated. ``forward`` takes any number of leading axes in front of the signal's (P, d, d), ``adjoint`` the
    same in front of (n, P, C): several students that see the same inputs.
    Cost: by symmetry, down to ``n T d^2`` floating-point operations a component for each of ``forward`` and ``adjoint``; twice
    as many without.
    Besides its result a call holds a few megabytes (more from d = 500 on).

    References
    ----------
    arXiv:2506.01582, with its matrix divided by sqrt(d); the normalization of ``adjoint`` is derived, checked
    by tests/models/test_attention_indexed.py.

    Examples
    --------
    >>> import numpy as np
    >>> model = AttentionIndexed(tokens=2)
    >>> model.forward(np.ones((1, 2, 4)), np.eye(4)[None])  # h = (0, 2, 0)
    array([[[0., 2., 0.]]])
    """

    tokens: int
    symmetric: bool = True  # whether S is symmetric

    name = "attention-indexed"
    reference = "arXiv:2506.01582"
    rank: ClassVar[Literal["extensive"]] = "extensive"
    _host_chunk_bytes = 3 << 20  # memory of a chunk of samples
    _axes = (-2, -1)  # array axes of a component's entries

    def __post_init__(self) -> None:
        """Check the number of tokens, which without symmetry must be at least two."""
        super().__post_init__()
        if not self.symmetric and self.tokens < 2:
            raise ParameterError(
                "tokens",
                "must be at least 2 with symmetric = false, which uses pairs of different tokens",
            )

    @property
    def kappa(self) -> float:  # type: ignore[override]
        """Number of places at which an independent entry of S appears, the factor kappa of the sample ratio: 2 if S is symmetric,
        otherwise 1.
        """
        return 2.0 if self.symmetric else 1.0

    @property
    def sites(self) -> int:
        """Number of pairs of tokens: T (T + 1) / 2, or T (T - 1) without symmetry."""
        return (
            self.tokens
            * (self.tokens + (1 if self.symmetric else -1))
            // (2 if self.symmetric else 1)
        )

    def _unit(self, dimension: int) -> int:
        """Number of samples that corresponds to a sample ratio of 1: ``d^2`` in ``dimension`` d."""
        return dimension**2

    def signal_shape(self, components: int, dimension: int) -> tuple[int, ...]:
        """Shape ``(P, d, d)`` of a signal of P matrices in d dimensions."""
        return (components, dimension, dimension)

    def draw_noise(
        self, rng: np.random.Generator, components: int, dimension: int
    ) -> Host:
        """Draw Gaussian noise Z (P, d, d): symmetric, of variance ``1/d`` off the diagonal and ``2/d`` on it, or without symmetry
        iid of variance ``1/d``.

        Without symmetry it is iid of variance ``1/d``. It is the noise of ``R = S + Qhat^(-1/2) Z`` and has the semicircle of
        variance 1 as its spectrum
        (arXiv:2506.01582); without symmetry as that of its singular values with both signs.
        """
        iid_noise = rng.standard_normal((components, dimension, dimension))
        if not self.symmetric:
            return iid_noise / math.sqrt(dimension)
        return (iid_noise + iid_noise.swapaxes(1, 2)) / math.sqrt(2 * dimension)

    def _minimum_samples(self, dimension: int) -> int:
        """Smallest number of samples of a chunk, in ``dimension`` d, for which matrix products on chunks are fast."""
        return -(
            -max(_MINIMUM_TOKENS, _TOKENS_PER_DIMENSION * dimension) // self.tokens
        )

    def _resident_slices(
        self, n: int, dimension: int, components: int, itemsize: int, like: Array
    ) -> list[slice]:
        """Slices of n samples whose products with a signal, as large as their inputs, are held in memory at once; ``itemsize`` is
        the bytes of a number, ``like`` an array on the device in use.
        """
        byte_limit = chunk_bytes(like)
        if byte_limit is None:
            return self._host_chunks(n, dimension, components, itemsize)
        return slices(n, byte_limit // (itemsize * self.tokens * dimension))

    def _sums_over_pairs(self, like: Array) -> bool:
        """Whether T x T products of tokens are computed pair of tokens by pair, since batches of tiny matrix products are slow on
        a GPU; ``like`` is an array on the device in use.
        """
        return self.tokens <= _FEW_TOKENS and chunk_bytes(like) is not None

    def _bands(self, inputs: Array) -> tuple[slice, ...]:
        """Bands of rows in which products of ``inputs`` with a symmetric signal are computed, to use its symmetry; one band
        otherwise or on a GPU.

        On a GPU a band is not a view that can be written to in place.
        """
        dimension = inputs.shape[-1]
        return (
            _bands(dimension)
            if self.symmetric and chunk_bytes(inputs) is None
            else (slice(0, dimension),)
        )

    def cost(self, n: int, dimension: int, components: int, itemsize: int = 8) -> Cost:
        """Cost of an iteration on n samples with numbers of ``itemsize`` bytes: operations on samples, bytes of inputs, and
        operations of the prior's ``denoise``.

        Per component: two products of (n T, d) with half of a symmetric (d, d), or all of another, one reading of the inputs, and
        ``10 d^3`` for the eigendecomposition and its product in ``denoise``, ``23 d^3`` for singular values.
        """
        input_count = n * self.tokens * dimension
        flops = (2.0 if self.symmetric else 4.0) * input_count * dimension * components
        return Cost(
            flops,
            float(itemsize * input_count),
            (10.0 if self.symmetric else 23.0) * dimension**3 * components,
        )

    def forward(self, inputs: Array, signal: Array) -> Array:
        r"""Latents ``z_ab = (x_a^T S_p x_b - delta_ab tr S_p) / sqrt(d (1 + delta_ab))`` of inputs x (n, T, d) for signals S
        (..., P, d, d), the leading axes numbering students: (..., n, P, C), with one site for every pair (a, b) of tokens.
        ``x_S`` are the products ``x^T S``, or those with half of a symmetric S, ``forms`` the bilinear forms ``x_a^T S x_b``,
        ``traces`` those of S, at the sites of a token with itself.

        ``inputs`` (n, T, d), entries of variance 1, not divided by anything; ``signal`` (..., P, d, d), leading axes for several
        students. Returns (..., n, P, C); ValueError if the shapes do not fit the model or each other.
        """
        xp = namespace(inputs, signal)
        *leading_shape, components, dimension, _ = signal.shape
        self._check_inputs(inputs, dimension)
        dtype = xp.result_type(inputs, signal)
        device = device_of(inputs)
        n = inputs.shape[0]
        student_count = math.prod(leading_shape)
        matrices = xp.reshape(signal, (student_count, components, dimension, dimension))
        site_positions, site_scale, is_diagonal_site = self._sites_of_forms(
            xp, dimension, dtype, device
        )
        traces = xp.linalg.trace(matrices)[..., None] * is_diagonal_site
        bands = self._bands(inputs)

        z = xp.empty(
            (student_count, n, components, self.sites), dtype=dtype, device=device
        )
        token_pairs = site_pairs(self.tokens, self.symmetric)
        sums_over_pairs = self._sums_over_pairs(inputs)
        uses_symmetry = self.symmetric and not sums_over_pairs
        for sample_slice in self._resident_slices(
            n, dimension, components, _itemsize(xp, dtype), inputs
        ):
            slice_tokens = inputs[sample_slice, :, :]
            flat_tokens = xp.reshape(slice_tokens, (-1, dimension))
            for student in range(student_count):
                for component in range(components):
                    matrix = matrices[student, component, :, :]
                    if uses_symmetry:
                        x_S = _half_products(flat_tokens, matrix, bands)
                    else:
                        x_S = xp.matmul(flat_tokens, matrix)
                    x_S = xp.reshape(x_S, slice_tokens.shape)
                    if self.tokens > _FEW_TOKENS:
                        forms = xp.matmul(x_S, xp.matrix_transpose(slice_tokens))
                    elif uses_symmetry:
                        forms = xp.vecdot(
                            x_S[:, :, None, :], slice_tokens[:, None, :, :]
                        )
                    else:
                        forms = xp.stack(
                            [
                                scalar_products(x_S[:, a, :], slice_tokens[:, b, :])
                                for a, b in token_pairs
                            ],
                            axis=-1,
                        )
                    if uses_symmetry:
                        forms = forms + xp.matrix_transpose(forms)
                    if forms.ndim > 2:
                        forms = xp.reshape(forms, (slice_tokens.shape[0], -1))
                        forms = xp.take(forms, site_positions, axis=1)
                    z[student, sample_slice, component, :] = (
                        forms - traces[student, component, :]
                    ) * site_scale
        return xp.reshape(z, (*leading_shape, n, components, self.sites))

    def adjoint(self, inputs: Array, g: Array) -> Array:
        r"""Adjoint (..., P, d, d) of the latents, from gradients g (..., n, P, C) with respect to them: the transpose of
        ``forward`` times ``2/d``, or times ``1/d`` if S is not symmetric. A site is a pair of tokens, an entry a place in the T x
        T matrix of pairs; leading axes number students, and products are computed in ``bands`` of rows.

        .. math::

            \frac{2}{d \sqrt d} \Big[ \sum_\mu X_\mu^T G_\mu X_\mu - I \sum_\mu \operatorname{tr} G_\mu \Big],
            \qquad G_{aa} = \frac{g_{aa}}{\sqrt 2}, \quad G_{ab} = G_{ba} = \frac{g_{ab}}{2},

        without symmetry with 1 for 2 in front, ``G_aa = 0`` and ``G_ab = g_ab``, so that ``R = S_hat + Qhat^{-1} adjoint(g)``
        for the gradient g of ``log Z_out`` with respect to ``omega`` (in z).

        ``inputs`` (n, T, d), ``g`` (..., n, P, C), leading axes for several students. Returns (..., P, d, d), as symmetric as the
        signal up to rounding; ValueError if the shapes do not fit together.
        """
        xp = namespace(inputs, g)
        *leading_shape, n, components, sites = g.shape
        dimension = inputs.shape[-1]
        self._check_gradient(inputs, g)
        dtype = xp.result_type(inputs, g)
        device = device_of(inputs)
        matrix_count = math.prod(leading_shape) * components
        gradients = xp.reshape(g, (math.prod(leading_shape), n, components, sites))
        site_of_entry, entry_factors = self._sites_of_entries(xp, dtype, device)
        entry_scale = entry_factors * (self.kappa / dimension**1.5)
        sample_slices = self._resident_slices(
            n, dimension, components, _itemsize(xp, dtype), inputs
        )
        sums_over_pairs = self._sums_over_pairs(inputs)
        bands = self._bands(inputs)

        def component_adjoint(student: int, component: int) -> Array:
            """Adjoint (d, d) for one component of one student: sums over samples of token pairs, weighted with
            ``entry_gradients``, the gradients at the entries of the T x T matrix of pairs, minus the sum of its diagonal on the
            diagonal of the result. Bands of columns are computed from their diagonal block on and mirrored.
            """
            adjoint_matrix = xp.zeros(
                (dimension, dimension), dtype=dtype, device=device
            )
            gradient_trace = xp.zeros((), dtype=dtype, device=device)
            for sample_slice in sample_slices:
                slice_tokens = inputs[sample_slice, :, :]
                entry_gradients = (
                    xp.take(
                        gradients[student, sample_slice, component, :],
                        site_of_entry,
                        axis=1,
                    )
                    * entry_scale
                )
                gradient_trace = gradient_trace + xp.sum(
                    entry_gradients[:, :: self.tokens + 1]
                )
                entry_gradients = xp.reshape(
                    entry_gradients, (-1, self.tokens, self.tokens)
                )
                weighted_tokens = xp.reshape(
                    _weighted_sums(entry_gradients, slice_tokens)
                    if sums_over_pairs
                    else xp.matmul(entry_gradients, slice_tokens),
                    (-1, dimension),
                )
                token_columns = xp.matrix_transpose(
                    xp.reshape(slice_tokens, (-1, dimension))
                )
                if len(bands) == 1:
                    adjoint_matrix += xp.matmul(token_columns, weighted_tokens)
                    continue
                for band in bands:
                    factors = token_columns[band.start :, :], weighted_tokens[:, band]
                    if xp is NUMPY and sample_slice.start == 0:  # no copy
                        xp.matmul(*factors, out=adjoint_matrix[band.start :, band])
                    else:
                        adjoint_matrix[band.start :, band] += xp.matmul(*factors)
            for band in bands[1:]:
                adjoint_matrix[: band.start, band] = xp.matrix_transpose(
                    adjoint_matrix[band, : band.start]
                )
            adjoint_entries = xp.reshape(adjoint_matrix, (-1,))
            adjoint_entries[:: dimension + 1] = (
                adjoint_entries[:: dimension + 1] - gradient_trace
            )
            return xp.reshape(adjoint_entries, (dimension, dimension))

        matrices = [
            component_adjoint(*divmod(matrix_index, components))
            for matrix_index in range(matrix_count)
        ]
        return xp.reshape(
            matrices[0] if matrix_count == 1 else xp.stack(matrices),
            (*leading_shape, components, dimension, dimension),
        )

    def forward_gram(
        self, inputs: Array, factor: Array
    ) -> tuple[Array, Callable[[Array], Array]]:
        r"""Latents z of n samples for the signal ``F F^T`` of a factor F (..., P, d, width), or ``Q K^T`` for Q above K (..., P,
        2 d, width), and the map ``pull`` of gradients in z back to the factor, without a (d, d) matrix. ``forms`` are bilinear
        forms of token pairs, ``traces`` those of the signal, ``projected_tokens`` products of tokens with factors.

        With ``Y = X F`` (T, w) the bilinear forms are ``Y Y^T``, and the gradient of ``sum g z`` is ``2 [sum_mu X^T G Y
        - F sum_mu tr G] / sqrt(d)`` with G as for ``adjoint``. Cheaper than ``forward`` and ``adjoint`` where w < d: ``2 n
        T d w`` operations for each of the two. Without symmetry F is Q above K, the signal ``Q K^T``, and
        the forms are ``X Q (X K)^T``.

        ``inputs`` (n, T, d), ``factor`` (..., P, d, w), without symmetry (..., P, 2 d, w), leading axes for several students,
        which inputs may have, too: samples of each, in the bits of one alone. Returns z (..., n, P, C) and a function from g,
        shaped like z, to the gradient of ``sum(g z)`` with respect to the factor; ValueError if ``inputs`` is not (n, T, d)
        with this model's T and the factor's d.
        """
        xp = namespace(inputs, factor)
        *leading_shape, components, factor_rows, width = factor.shape
        *sample_axes, n, tokens, dimension = inputs.shape
        block_count = 1 if self.symmetric else 2
        self._check_inputs(
            inputs[0, ...] if sample_axes else inputs, factor_rows // block_count
        )
        dtype = xp.result_type(inputs, factor)
        device = device_of(inputs)
        site_positions, site_scale, is_diagonal_site = self._sites_of_forms(
            xp, dimension, dtype, device
        )
        block_shape = (*leading_shape, components, block_count)
        # Samples and components exchanged; NumPy takes six times as long to move an axis.
        exchanged = (*range(len(leading_shape)), -2, -3, -1)
        blocks = xp.reshape(factor, (*block_shape, dimension, width))
        flat_tokens = xp.reshape(inputs, (*sample_axes, n * tokens, dimension))
        projected_tokens = xp.reshape(
            _products(flat_tokens, blocks), (*block_shape, n, tokens, width)
        )
        queries, keys = (
            projected_tokens[..., block, :, :, :] for block in (0, block_count - 1)
        )
        if tokens <= _FEW_TOKENS and chunk_bytes(inputs) is None:
            # Site by site in memory: operations on the few sites of a sample take several times as long.
            forms = xp.stack(
                [
                    xp.vecdot(queries[..., a, :], keys[..., b, :])
                    for a, b in site_pairs(tokens, self.symmetric)
                ]
            )
            forms = xp.permute_dims(forms, (*range(1, forms.ndim), 0))
        else:
            forms = xp.matmul(queries, xp.matrix_transpose(keys))
            forms = xp.reshape(forms, (*block_shape[:-1], n, tokens**2))
            forms = xp.take(forms, site_positions, axis=-1)
        traces = xp.sum(blocks[..., 0, :, :] * blocks[..., -1, :, :], axis=(-2, -1))
        forms -= traces[..., None, None] * is_diagonal_site
        forms *= site_scale

        def pull(g: Array) -> Array:
            """Gradient with respect to the factor, from the gradient ``g`` (..., n, P, C) with respect to the latents, through
            the gradients at the T x T entries of token pairs.
            """
            site_of_entry, entry_factors = self._sites_of_entries(xp, dtype, device)
            entry_gradients = xp.take(
                xp.permute_dims(g, exchanged), site_of_entry, axis=-1
            ) * (entry_factors * (self.kappa / math.sqrt(dimension)))
            gradient_trace = xp.sum(entry_gradients[..., :: tokens + 1], axis=(-2, -1))
            entry_gradients = xp.reshape(
                entry_gradients, (*block_shape[:-1], n, tokens, tokens)
            )
            projected_gradient = xp.matmul(entry_gradients, keys)
            if not self.symmetric:
                key_gradient = xp.matmul(xp.matrix_transpose(entry_gradients), queries)
                projected_gradient = xp.stack(
                    [projected_gradient, key_gradient], axis=-4
                )
            gradient = _products(
                xp.matrix_transpose(flat_tokens),
                xp.reshape(projected_gradient, (*block_shape, n * tokens, width)),
            )
            return xp.reshape(
                gradient - gradient_trace[..., None, None, None] * blocks, factor.shape
            )

        return xp.permute_dims(forms, exchanged), pull

    @lru_cache(maxsize=64)  # noqa: B019  (models are few, small and equal by value)
    def _sites_of_forms(
        self, xp: ModuleType, dimension: int, dtype: object, device: object
    ) -> tuple[Array, Array, Array]:
        """Positions of the sites among the T^2 bilinear forms of a sample's token pairs (a, b), scales ``1 / sqrt(d (1 +
        delta_ab))`` of the sites in ``dimension`` d, and a mask that is 1 for sites a = b; arrays of the library ``xp``, shared
        by all calls.
        """
        scale_and_mask = (
            site_values(self.tokens, *diagonal_and_rest, self.symmetric)
            for diagonal_and_rest in ((math.sqrt(0.5), 1.0), (1.0, 0.0))
        )
        site_scale, is_diagonal_site = (
            xp.asarray(site_numbers, dtype=dtype, device=device)
            for site_numbers in scale_and_mask
        )
        entries_of_sites = site_entries(self.tokens, self.symmetric)
        return (
            xp.asarray(entries_of_sites, device=device),
            site_scale / math.sqrt(dimension),
            is_diagonal_site,
        )

    @lru_cache(maxsize=64)  # noqa: B019
    def _sites_of_entries(
        self, xp: ModuleType, dtype: object, device: object
    ) -> tuple[Array, Array]:
        """Site of every entry (a, b) of the T x T gradient matrix G of token pairs, and the factors that turn gradients in the
        latents z at the sites into entries of G; arrays of the library ``xp``, shared by all calls.
        """
        if self.symmetric:
            sites = entry_sites(self.tokens)
            site_factors = site_values(self.tokens, math.sqrt(0.5), 0.5)
            entry_factors = [site_factors[site_index] for site_index in sites]
        else:  # none on the diagonal
            site_of_entry = {
                entry: site_index
                for site_index, entry in enumerate(site_entries(self.tokens, False))
            }
            sites = tuple(
                site_of_entry.get(entry, 0) for entry in range(self.tokens**2)
            )
            entry_factors = [
                float(entry in site_of_entry) for entry in range(self.tokens**2)
            ]
        return xp.asarray(sites, device=device), xp.asarray(
            entry_factors, dtype=dtype, device=device
        )

    def adjoint_scale(self, dimension: int) -> float:
        """Ratio ``kappa / d`` of ``adjoint`` to the transpose of ``forward``, with kappa = 2 for symmetric matrices, else 1."""
        return self.kappa / dimension

    def inner(self, signal_1: Array, signal_2: Array) -> Array:
        """Overlaps ``tr(A_p B_q^T) / d`` of the components p, q of two signals A (``signal_1``) and B (``signal_2``), (..., P, d,
        d) each, as an array (..., P, P).
        """
        xp = namespace(signal_1, signal_2)
        flat_1 = xp.reshape(signal_1, (*signal_1.shape[:-2], -1))
        flat_2 = xp.reshape(signal_2, (*signal_2.shape[:-2], -1))
        return xp.matmul(flat_1, xp.matrix_transpose(flat_2)) / signal_1.shape[-1]

    def overlap(self, signal: Array, estimate: Array) -> Array:
        """Overlap ``q_p = tr(S_hat_p S_p^T) / d`` (..., P) of each component of the estimate with the signal."""
        xp = namespace(signal, estimate)
        return xp.sum(signal * estimate, axis=(-2, -1)) / signal.shape[-1]


def _half_products(tokens: Array, matrix: Array, bands: tuple[slice, ...]) -> Array:
    """Products of ``tokens`` (m, d) with half L of a symmetric ``matrix`` ``S = L + L^T`` (d, d), in ``bands`` of columns: S
    below the diagonal blocks of the bands, half of S in them, and 0 above.
    """
    xp = namespace(tokens, matrix)
    if len(bands) == 1:
        return xp.matmul(tokens, matrix / 2)
    dtype = xp.result_type(tokens, matrix)
    products = xp.empty(tokens.shape, **matching(tokens, dtype))
    for band in bands:
        lower_band = xp.concat([matrix[band, band] / 2, matrix[band.stop :, band]])
        if xp is NUMPY:  # no copy
            xp.matmul(tokens[:, band.start :], lower_band, out=products[:, band])
        else:
            products[:, band] = xp.matmul(tokens[:, band.start :], lower_band)
    return products


def _products(matrix: Array, matrices: Array) -> Array:
    """Products (..., m, w) of a ``matrix`` (m, k) with ``matrices`` (..., k, w), all their columns side by side; or of
    several, whose leading axes are the first ones of the matrices.
    """
    xp = namespace(matrix, matrices)
    leading_count, stack_count = matrix.ndim - 2, matrices.ndim - 2
    columns = xp.permute_dims(
        matrices,
        (*range(leading_count), stack_count, *range(leading_count, stack_count), -1),
    )
    products = xp.matmul(
        matrix, xp.reshape(columns, (*matrix.shape[:-2], matrix.shape[-1], -1))
    )
    products = xp.reshape(
        products, (*matrix.shape[:-1], *columns.shape[leading_count + 1 :])
    )
    return xp.permute_dims(
        products,
        (
            *range(leading_count),
            *range(leading_count + 1, stack_count + 1),
            leading_count,
            -1,
        ),
    )


def _weighted_sums(weights: Array, x: Array) -> Array:
    """Weighted sums ``sum_b weights_ab x_b`` (..., n, T, d) over the tokens b of a sample, for ``weights`` (..., T, T) and
    tokens x (..., n, T, d), accumulated one token after the other.
    """
    weighted_tokens = weights[..., :1] * x[..., :1, :]
    for b in range(1, x.shape[-2]):
        weighted_tokens += weights[..., b : b + 1] * x[..., b : b + 1, :]
    return weighted_tokens


@cache
def _itemsize(xp: ModuleType, dtype: object) -> int:
    """Bytes of a number of the floating-point type ``dtype`` of the array library ``xp``."""
    return int(xp.finfo(dtype).bits) // 8
