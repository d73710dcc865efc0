"""Sequence multi-index model: every token of a sample is projected onto a few directions.

On a GPU the CUDA kernels in ``sequence_mixed.cu`` multiply inputs in float32 with signals in float64. A matrix product would
first make a copy of the inputs in float64, which is three times the traffic of what it saves. The kernels are checked on any
machine, compiled for the host, by tests/models/test_sequence_multi_index_mixed.py; not measured on a device.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import array_api_compat
import numpy as np

from smimbench.backend import namespace
from smimbench.interfaces import Capabilities, Cost
from smimbench_attention.models.common import TokenModel

if TYPE_CHECKING:
    from smimbench.interfaces import Array, Host

# Vectors with which the tokens are multiplied one after the other: a product with a narrow matrix takes half as long again.
# Doubled: with six vectors the matrix product is faster.
_FEW_VECTORS = 3

# Largest D at which tokens are projected one after the other, the fastest way through memory as long as the direction stays
# in the first-level cache. Doubled: the direction leaves it.
_LARGEST_ROW = 1500


@dataclass(frozen=True)
class SequenceMultiIndex(TokenModel):
    r"""Sequence multi-index model: the latents are projections of every token on P directions.

    .. math:: z_{pm} = \frac{w_p \cdot x_m}{\sqrt D}, \qquad p = 1..P, \quad m = 1..M,

    for tokens ``x_m`` (D,), iid N(0, 1) unless the problem names other inputs, and a signal ``W`` (P, D) with entries of order 1;
    the sites are the ``C = M`` tokens. The number of samples is ``n = alpha D``.

    Parameters
    ----------
    tokens : int
        M, at least 1.

    Raises
    ------
    ParameterError
        If ``tokens`` is not an integer >= 1.

    Notes
    -----
    Inputs are kept as drawn, so ``forward`` and ``adjoint`` both carry ``1/sqrt(D)``. ``forward`` takes any
    number of leading axes in front of the signal's (P, D), ``adjoint`` the same in front of (n, P, M):
    several students that see the same inputs. Both are limited by the reading of the inputs; a loop over ``chunks``
    reads them once for both.

    References
    ----------
    arXiv:2502.00901.

    Examples
    --------
    >>> import numpy as np
    >>> model = SequenceMultiIndex(tokens=2)
    >>> model.forward(np.ones((1, 2, 4)), np.ones((1, 4)))
    array([[[2., 2.]]])
    """

    tokens: int

    name = "sequence-multi-index"
    reference = "arXiv:2502.00901"
    rank: ClassVar[Literal["low"]] = "low"
    kappa = 1.0
    # Both products wait for the inputs, and the second should find them in the cache. Doubled: they leave it, a step of one layer
    # takes 5% longer. Halved: the calls of Python count, a step of two layers at D = 1000 takes 6% longer.
    _host_chunk_bytes = 12 << 20  # memory of a chunk of samples
    _axes = -1  # array axis of a component's entries
    capabilities = Capabilities(dtypes=("float64", "float32", "mixed"))

    def signal_shape(self, components: int, dimension: int) -> tuple[int, ...]:
        """Shape ``(P, D)`` of a signal of P components in D dimensions."""
        return (components, dimension)

    def draw_noise(
        self, rng: np.random.Generator, components: int, dimension: int
    ) -> Host:
        """Draw the white noise Z (P, D), with iid N(0, 1) entries, of an observation ``R = W + Qhat^(-1/2) Z`` of the signal
        W with information Qhat.
        """
        return rng.standard_normal((components, dimension))

    def cost(self, n: int, dimension: int, components: int, itemsize: int = 8) -> Cost:
        """Cost of an iteration on n samples with numbers of ``itemsize`` bytes: operations on samples, bytes of inputs, and
        operations of the prior's ``denoise``.

        Two products of (n M, D) with (D, P), one reading of the inputs, and a (P, P) matrix on every column of the signal.
        """
        input_count = n * self.tokens * dimension
        return Cost(
            4.0 * input_count * components,
            float(itemsize * input_count),
            2.0 * dimension * components**2,
        )

    def forward(self, inputs: Array, signal: Array) -> Array:
        """Latents ``z_pm = w_p . x_m / sqrt(D)`` (..., n, P, T) of inputs x (n, T, D) for signals w (..., P, D), the leading axes
        numbering students. ``directions`` are the rows of all signals over ``sqrt(D)``, ``projections`` the products of tokens
        with them.

        ``inputs`` (n, M, D), entries of variance 1, not divided by anything; ``signal`` (..., P, D), leading axes for
        several students. Returns (..., n, P, M); ValueError if the shapes do not fit the model or each other.
        """
        xp = namespace(inputs, signal)
        *leading_shape, components, dimension = signal.shape
        self._check_inputs(inputs, dimension)
        n = inputs.shape[0]
        student_count = math.prod(leading_shape)
        directions = (
            xp.reshape(signal, (student_count * components, dimension))
            * dimension**-0.5
        )
        flat_tokens = xp.reshape(inputs, (-1, dimension))
        if _uses_mixed_kernels(inputs, directions):
            projections = project_mixed(flat_tokens, directions)
        elif isinstance(flat_tokens, np.ndarray) and len(directions) <= _FEW_VECTORS:
            matrix_vector_product = (
                np.vecdot if dimension <= _LARGEST_ROW else np.matmul
            )
            projections = np.stack(
                [
                    matrix_vector_product(flat_tokens, direction)
                    for direction in directions
                ],
                axis=-1,
            )
        else:
            projections = xp.matmul(flat_tokens, xp.matrix_transpose(directions))
        z = xp.permute_dims(
            xp.reshape(projections, (n, self.tokens, student_count, components)),
            (2, 0, 3, 1),
        )
        return xp.reshape(z, (*leading_shape, n, components, self.tokens), copy=True)

    def adjoint(self, inputs: Array, g: Array) -> Array:
        """Adjoint (..., P, D) of the latents, from gradients g (..., n, P, T) with respect to them: the transpose of
        ``forward``, ``sum_{mu, m} g_pm x_m / sqrt(D)``, over samples mu and tokens m.

        ``inputs`` (n, M, D), ``g`` (..., n, P, M), leading axes for several students. Returns (..., P, D); ValueError if the
        shapes do not fit together.
        """
        xp = namespace(inputs, g)
        *leading_shape, n, components, sites = g.shape
        dimension = inputs.shape[-1]
        self._check_gradient(inputs, g)
        student_count = math.prod(leading_shape)
        row_count = student_count * components
        gradient_rows = xp.permute_dims(
            xp.reshape(g, (student_count, n, components, sites)), (0, 2, 1, 3)
        )
        gradient_rows = xp.reshape(gradient_rows, (row_count, n * sites))
        flat_tokens = xp.reshape(inputs, (-1, dimension))
        if _uses_mixed_kernels(inputs, gradient_rows):
            weighted_sums = push_mixed(gradient_rows, flat_tokens)
        elif isinstance(flat_tokens, np.ndarray) and row_count <= _FEW_VECTORS:
            weighted_sums = np.concatenate(
                [
                    gradient_rows[gradient_row : gradient_row + 1] @ flat_tokens
                    for gradient_row in range(row_count)
                ]
            )
        else:
            weighted_sums = xp.matmul(gradient_rows, flat_tokens)
        return xp.reshape(
            weighted_sums * dimension**-0.5, (*leading_shape, components, dimension)
        )

    def adjoint_scale(self, dimension: int) -> float:
        """Ratio of ``adjoint`` to the transpose of ``forward``, which is 1 in any ``dimension`` >= 1."""
        if dimension < 1:
            raise ValueError(f"dimension must be >= 1, got {dimension}")
        return 1.0

    def inner(self, signal_1: Array, signal_2: Array) -> Array:
        """Overlaps ``A B^T / D`` of two signals A (``signal_1``) and B (``signal_2``), (..., P, D) each, as an array
        (..., P, P).
        """
        xp = namespace(signal_1, signal_2)
        return xp.matmul(signal_1, xp.matrix_transpose(signal_2)) / signal_1.shape[-1]

    def overlap(self, signal: Array, estimate: Array) -> Array:
        """Squared cosine (..., P) between each component of the signal and of its estimate, both (..., P, D); 0 where the
        estimate vanishes.
        """
        xp = namespace(signal, estimate)
        norm_products = xp.sum(signal * signal, axis=-1) * xp.sum(
            estimate * estimate, axis=-1
        )
        squared_cosine = xp.sum(signal * estimate, axis=-1) ** 2 / xp.where(
            norm_products > 0, norm_products, xp.ones_like(norm_products)
        )
        return xp.where(norm_products > 0, squared_cosine, xp.zeros_like(norm_products))


def _uses_mixed_kernels(inputs: Array, vectors: Array) -> bool:
    """Whether to use the mixed-precision GPU kernels: for float32 ``inputs`` and a few float64 ``vectors`` (rows) that they are
    multiplied with.
    """
    fits_registers = vectors.shape[0] <= MAXIMUM_COMPONENTS
    return bool(
        fits_registers
        and inputs.dtype != vectors.dtype
        and array_api_compat.is_cupy_array(inputs)
    )


MAXIMUM_COMPONENTS = 8
"""Largest number of components whose sums a GPU thread can hold in registers. Doubled: they spill to memory."""
THREADS = 128
ROWS = 4
"""Threads per block, and tokens that a block processes, as in the CUDA kernels."""
SHARES = 64
"""Blocks of tokens that ``push_mixed`` sums apart, to have enough threads. Doubled (not measured): more partial sums."""


def cuda_source(components: int) -> str:
    """Source code of the CUDA kernels for this number of components."""
    return f"#define P {components}\n" + files(__package__).joinpath(
        "sequence_mixed.cu"
    ).read_text(encoding="utf-8")


@functools.cache
def _kernel(name: str, components: int) -> Any:
    """Compile the CUDA kernel of this name for a number of components, once, and return it."""
    import cupy

    return cupy.RawKernel(cuda_source(components), name, options=("--std=c++14",))


def project_mixed(tokens: Array, vectors: Array) -> Array:
    """Products (k, P) of k ``tokens`` (k, D) in float32 with P ``vectors`` (P, D) in float64, by a kernel on a GPU; ``arguments``
    are those of the kernel.
    """
    import cupy

    token_count, dimension = tokens.shape
    components = vectors.shape[0]
    products = cupy.empty((token_count, components), dtype=np.float64)
    if token_count:
        arguments = (
            tokens,
            cupy.ascontiguousarray(vectors),
            np.int64(token_count),
            np.int64(dimension),
            products,
        )
        _kernel("project", components)(
            (-(-token_count // ROWS),), (THREADS,), arguments
        )
    return products


def push_mixed(weights: Array, tokens: Array) -> Array:
    """Weighted sums (P, D) of k ``tokens`` (k, D) in float32, with ``weights`` (P, k) in float64, by a kernel on a GPU;
    ``arguments`` are those of the kernel, ``block_sums`` the sums over blocks of ``tokens_per_block`` tokens.
    """
    import cupy

    token_count, dimension = tokens.shape
    components = weights.shape[0]
    tokens_per_block = max(1, -(-token_count // SHARES))
    block_sums = cupy.zeros(
        (-(-token_count // tokens_per_block), components, dimension), dtype=np.float64
    )
    if token_count:
        arguments = (
            tokens,
            cupy.ascontiguousarray(weights.T),
            np.int64(token_count),
            np.int64(dimension),
            np.int64(tokens_per_block),
            block_sums,
        )
        _kernel("push", components)(
            (-(-dimension // THREADS), block_sums.shape[0]), (THREADS,), arguments
        )
    return block_sums.sum(axis=0)
