"""Attention-indexed model: a symmetric matrix of extensive rank, seen through all pairs of tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import array_api_compat

from smimbench.backend import namespace
from smimbench.interfaces import Capabilities, Cost
from smimbench_models.common import (
    align,
    check_inputs,
    check_tokens,
    chunk_slices,
    fill_normal,
    nearest_count,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from smimbench.interfaces import Array

__all__ = ["AttentionIndexed"]

# Bytes of a chunk of samples on a host, and its least number of tokens: 256, and 3 d. With fewer, adding the (d, d) product
# of a chunk to the running sum, what BLAS does before it multiplies, and the calls for the posterior take as long as the
# product; with more, temporaries leave the cache. Measured best: 3 MB (d = 100), 3 d tokens (d = 500). Doubled: temporaries
# of twice the size.
_HOST_CHUNK_BYTES = 3 << 20
_LEAST_ROWS = 256
_ROWS_PER_DIMENSION = 3

# (least d, number of bands): the sum over samples is symmetric, so bands of its rows are computed from the diagonal on, and
# mirrored. Five bands need 60% of the operations; ten would need 55%, in products too narrow for BLAS to be fast.
_BANDS = ((800, 5), (400, 4), (150, 3), (96, 2))
# Bands begin at multiples of this, the block that BLAS computes at once. Doubled: bands of less equal width.
_EDGE = 24


@cache
def _bands(dimension: int) -> tuple[slice, ...]:
    """Bands of rows of the symmetric (d, d) sum."""
    count = next((bands for least, bands in _BANDS if dimension >= least), 1)
    edges = [_EDGE * round(i * dimension / count / _EDGE) for i in range(count)]
    return tuple(slice(a, b) for a, b in pairwise([*edges, dimension]))


@cache
def _upper(tokens: int) -> tuple[list[int], list[float]]:
    """Positions of the sites 11, 12, .., 1T, 22, .. in a flattened (T, T), and 1/sqrt(1 + delta)."""
    pairs = [(a, b) for a in range(tokens) for b in range(a, tokens)]
    return [a * tokens + b for a, b in pairs], [math.sqrt(0.5) if a == b else 1.0 for a, b in pairs]


@cache
def _full(tokens: int) -> tuple[list[int], list[float]]:
    """For every entry of the symmetric T x T matrix G its site, and the factor that turns g_z into G."""
    site = {pair: c for c, pair in enumerate((a, b) for a in range(tokens) for b in range(a, tokens))}
    entries = [(a, b) for a in range(tokens) for b in range(tokens)]
    return [site[min(e), max(e)] for e in entries], [math.sqrt(0.5) if a == b else 0.5 for a, b in entries]


@dataclass(frozen=True)
class AttentionIndexed:
    r"""Bilinear form of a symmetric matrix in every unordered pair of tokens.

    .. math::

        h_{ab} = \frac{x_a^T S x_b - \delta_{ab} \operatorname{tr} S}{\sqrt d}, \qquad
        z_{ab} = \frac{h_{ab}}{\sqrt{1 + \delta_{ab}}}, \qquad a \le b,

    for tokens ``x_a`` (d,) with iid N(0, 1) entries and a symmetric signal ``S`` (d, d) whose spectrum is
    O(1). Then all ``C = T (T + 1) / 2`` latents have the same limiting variance ``|S|_F^2 / d``. Sites are
    ordered 11, 12, .., 1T, 22, .., TT. The number of samples is ``n = alpha d^2``.

    Parameters
    ----------
    tokens : int
        T, at least 2.

    Raises
    ------
    ParameterError
        If ``tokens`` is not an integer >= 2.

    Notes
    -----
    Signals must be symmetric: only ``x_a^T S x_b`` with ``a <= b`` is evaluated. ``forward`` takes any number
    of leading axes in front of the signal's (P, d, d), ``adjoint`` the same in front of (n, P, C): several
    students that see the same inputs. Cost: ``2 n T d^2`` floating-point operations a component for
    ``forward`` and, by symmetry, down to half of that for ``adjoint``. Beside its result a call holds a few
    megabytes (more from d = 500 on).

    References
    ----------
    arXiv:2506.01582, with its matrix divided by sqrt(d); the normalisation of ``adjoint`` is derived, checked
    by tests/models/test_attention_indexed.py.

    Examples
    --------
    >>> import numpy as np
    >>> model = AttentionIndexed(tokens=2)
    >>> model.forward(np.ones((1, 2, 4)), np.eye(4)[None])  # h = (0, 2, 0)
    array([[[0., 2., 0.]]])
    """

    tokens: int

    name: ClassVar[str] = "attention-indexed"
    version: ClassVar[int] = 1
    reference: ClassVar[str] = "arXiv:2506.01582"
    capabilities: ClassVar[Capabilities] = Capabilities()
    rank: ClassVar[Literal["extensive"]] = "extensive"

    def __post_init__(self) -> None:
        check_tokens(self.tokens, 2)

    @property
    def kappa(self) -> float:
        """Factor 2 of ``Qhat = kappa alpha E sum_c g_c g_c^T``: both triangles of S carry an entry."""
        return 2.0

    @property
    def sites(self) -> int:
        """Number of unordered pairs of tokens, T (T + 1) / 2."""
        return self.tokens * (self.tokens + 1) // 2

    def sample_count(self, alpha: float, dimension: int) -> int:
        """Integer closest to ``alpha d^2``, at least 1; ParameterError if alpha is negative or not finite."""
        return nearest_count(alpha, dimension**2)

    def sample_ratio(self, n: int, dimension: int) -> float:
        """``n / d^2``."""
        return n / dimension**2

    def signal_shape(self, components: int, dimension: int) -> tuple[int, ...]:
        """``(P, d, d)``."""
        return (components, dimension, dimension)

    def draw_inputs(self, rng: np.random.Generator, out: np.ndarray[Any, Any]) -> None:
        """Fill the host array ``out`` (n, T, d) with iid N(0, 1) numbers, in place.

        The numbers are drawn in float64 whatever the dtype of ``out``, so that all dtypes see the same
        instance.
        """
        fill_normal(rng, out)

    def draw_noise(self, rng: np.random.Generator, components: int, dimension: int) -> np.ndarray[Any, Any]:
        """Symmetric Gaussian noise (P, d, d), of variance ``1/d`` off the diagonal and ``2/d`` on it.

        It is the noise of ``R = S + Qhat^(-1/2) Z`` and has the semicircle of variance 1 as its spectrum
        (arXiv:2506.01582).
        """
        square = rng.standard_normal((components, dimension, dimension))
        return (square + square.swapaxes(1, 2)) / math.sqrt(2 * dimension)

    def chunks(
        self, n: int, dimension: int, components: int = 1, *, itemsize: int = 8, like: Array | None = None
    ) -> list[slice]:
        """Slices of the samples, small enough that inputs and temporaries of one stay in the cache.

        Parameters
        ----------
        n, dimension, components : int
            Samples, d, and the number of components (times students) whose latents are held at once.
        itemsize : int
            Bytes of a number.
        like : array, optional
            An array on the device that will do the work; accelerators get larger chunks. Default: the host.

        Returns
        -------
        list of slice
            Consecutive, covering ``range(n)``; empty for n = 0.
        """
        sample = itemsize * (self.tokens * dimension + 2 * components * self.sites)
        rows = max(_LEAST_ROWS, _ROWS_PER_DIMENSION * dimension)
        return chunk_slices(n, sample, -(-rows // self.tokens), like, _HOST_CHUNK_BYTES)

    def cost(self, n: int, dimension: int, components: int, itemsize: int = 8) -> Cost:
        """A product of (n T, d) with (d, d) a component, half of another (it is symmetric), and one reading of the inputs."""
        numbers = n * self.tokens * dimension
        return Cost(3.0 * numbers * dimension * components, float(itemsize * numbers))

    def denoiser_flops(self, dimension: int, components: int) -> float:
        """``10 d^3`` a component: eigenvectors and eigenvalues of a symmetric matrix, and the product that puts it together."""
        return 10.0 * dimension**3 * components

    def forward(self, inputs: Array, signal: Array) -> Array:
        r"""Latents ``z_ab = (x_a^T S_p x_b - delta_ab tr S_p) / sqrt(d (1 + delta_ab))``.

        Parameters
        ----------
        inputs : array (n, T, d)
            Tokens, iid N(0, 1), not divided by anything.
        signal : array (..., P, d, d)
            Symmetric matrices. Leading axes: several students.

        Returns
        -------
        array (..., n, P, C)

        Raises
        ------
        ValueError
            If ``inputs`` is not (n, T, d) with this model's T and the signal's d.
        """
        xp = namespace(inputs, signal)
        *lead, components, dimension, _ = signal.shape
        check_inputs(inputs, self.tokens, dimension)
        device = array_api_compat.device(inputs)
        dtype = xp.result_type(inputs, signal)
        n = inputs.shape[0]
        students = math.prod(lead)
        matrices = xp.reshape(signal, (students, components, dimension, dimension))

        where, factors = _upper(self.tokens)
        pick = xp.asarray(where, device=device)
        scale = xp.asarray(factors, dtype=dtype, device=device) / math.sqrt(dimension)
        on_diagonal = xp.asarray([float(f != 1) for f in factors], dtype=dtype, device=device)
        traces = xp.linalg.trace(matrices)[..., None] * on_diagonal

        z = xp.empty((students, n, components, self.sites), dtype=dtype, device=device)
        for s in self.chunks(n, dimension, components, itemsize=_itemsize(xp, dtype), like=inputs):
            x = inputs[s, :, :]
            rows = xp.reshape(x, (-1, dimension))
            columns = xp.matrix_transpose(x)
            for k in range(students):
                for p in range(components):
                    xs = xp.reshape(xp.matmul(rows, matrices[k, p, :, :]), x.shape)
                    forms = xp.reshape(xp.matmul(xs, columns), (x.shape[0], -1))
                    z[k, s, p, :] = (xp.take(forms, pick, axis=1) - traces[k, p, :]) * scale
        return xp.reshape(z, (*lead, n, components, self.sites))

    def adjoint(self, inputs: Array, g: Array) -> Array:
        r"""Transpose of ``forward`` on symmetric matrices, times ``2/d``.

        .. math::

            \frac{2}{d \sqrt d} \Big[ \sum_\mu X_\mu^T G_\mu X_\mu - I \sum_\mu \operatorname{tr} G_\mu \Big],
            \qquad G_{aa} = \frac{g_{aa}}{\sqrt 2}, \quad G_{ab} = G_{ba} = \frac{g_{ab}}{2},

        so that ``R = S_hat + Qhat^{-1} adjoint(g)`` for the gradient g of ``log Z_out`` with respect to
        ``omega`` (in z).

        Parameters
        ----------
        inputs : array (n, T, d)
        g : array (..., n, P, C)
            Leading axes: several students.

        Returns
        -------
        array (..., P, d, d)
            Symmetric up to rounding.

        Raises
        ------
        ValueError
            If the shapes do not fit together.
        """
        xp = namespace(inputs, g)
        *lead, n, components, sites = g.shape
        dimension = inputs.shape[-1]
        check_inputs(inputs, self.tokens, dimension)
        if inputs.shape[0] != n or sites != self.sites:
            raise ValueError(
                f"g must have shape (..., {inputs.shape[0]}, P, {self.sites}), got {tuple(g.shape)}"
            )
        device = array_api_compat.device(inputs)
        dtype = xp.result_type(inputs, g)
        count = math.prod(lead) * components
        gradients = xp.reshape(g, (math.prod(lead), n, components, sites))

        where, factors = _full(self.tokens)
        pick = xp.asarray(where, device=device)
        scale = xp.asarray(factors, dtype=dtype, device=device) * (2 / dimension**1.5)
        slices = self.chunks(n, dimension, components, itemsize=_itemsize(xp, dtype), like=inputs)

        bands = _bands(dimension)

        def one(k: int, p: int) -> Array:
            total = xp.zeros((dimension, dimension), dtype=dtype, device=device)
            trace = xp.zeros((), dtype=dtype, device=device)
            for s in slices:
                x = inputs[s, :, :]
                weights = xp.take(gradients[k, s, p, :], pick, axis=1) * scale
                trace = trace + xp.sum(weights[:, :: self.tokens + 1])
                weights = xp.reshape(weights, (-1, self.tokens, self.tokens))
                gx = xp.reshape(xp.matmul(weights, x), (-1, dimension))
                columns = xp.matrix_transpose(xp.reshape(x, (-1, dimension)))
                for band in bands:
                    total[band, band.start :] += xp.matmul(columns[band, :], gx[:, band.start :])
            for band in bands[1:]:
                total[band, : band.start] = xp.matrix_transpose(total[: band.start, band])
            flat = xp.reshape(total, (-1,))
            flat[:: dimension + 1] = flat[:: dimension + 1] - trace
            return xp.reshape(flat, (dimension, dimension))

        if count == 1:
            return xp.reshape(one(0, 0), (*lead, components, dimension, dimension))
        result = xp.empty((count, dimension, dimension), dtype=dtype, device=device)
        for i in range(count):
            result[i, :, :] = one(*divmod(i, components))
        return xp.reshape(result, (*lead, components, dimension, dimension))

    def forward_gram(self, inputs: Array, factor: Array) -> tuple[Array, Callable[[Array], Array]]:
        r"""Latents of the signal ``F F^T`` and the way back to F, without a (d, d) matrix.

        With ``Y = X F`` (T, w) the bilinear forms are ``Y Y^T``, and the gradient of ``sum g z`` is ``2 [sum_mu X^T G Y
        - F sum_mu tr G] / sqrt(d)`` with G as for ``adjoint``. Cheaper than ``forward`` and ``adjoint`` where w < d: ``2 n
        T d w`` operations for each of the two.

        Parameters
        ----------
        inputs : array (n, T, d)
        factor : array (..., P, d, w)
            Leading axes: several students; all of them are one matrix product.

        Returns
        -------
        z : array (..., n, P, C)
        pull : callable
            From g, shaped like z, to the gradient of ``sum(g z)`` with respect to the factor.

        Raises
        ------
        ValueError
            If ``inputs`` is not (n, T, d) with this model's T and the factor's d.
        """
        xp = namespace(inputs, factor)
        *lead, components, dimension, width = factor.shape
        check_inputs(inputs, self.tokens, dimension)
        place = {"dtype": xp.result_type(inputs, factor), "device": array_api_compat.device(inputs)}
        n, count = inputs.shape[0], math.prod(lead) * components
        rows = xp.reshape(inputs, (-1, dimension))
        flat = xp.reshape(factor, (count, dimension, width))
        if count == 1:
            y = xp.reshape(xp.matmul(rows, flat[0, :, :]), (1, n, self.tokens, width))
        else:
            columns = xp.reshape(xp.permute_dims(flat, (1, 0, 2)), (dimension, count * width))
            y = xp.reshape(xp.matmul(rows, columns), (n, self.tokens, count, width))
            y = xp.permute_dims(y, (2, 0, 1, 3))
        forms = xp.reshape(xp.matmul(y, xp.matrix_transpose(y)), (count, n, -1))
        where, factors = _upper(self.tokens)
        scale = xp.asarray(factors, **place) / math.sqrt(dimension)
        on_diagonal = xp.asarray([float(f != 1) for f in factors], **place)
        traces = xp.sum(flat * flat, axis=(-2, -1))[:, None, None] * on_diagonal
        z = (xp.take(forms, xp.asarray(where, device=place["device"]), axis=-1) - traces) * scale
        if count == 1:
            z = xp.reshape(z, (*lead, n, components, self.sites))
        else:
            z = xp.permute_dims(xp.reshape(z, (*lead, components, n, self.sites)), _swapped(len(lead)))

        def pull(g: Array) -> Array:
            if count > 1:
                g = xp.permute_dims(g, _swapped(len(lead)))
            where, factors = _full(self.tokens)
            weights = xp.take(
                xp.reshape(g, (count, n, self.sites)), xp.asarray(where, device=place["device"]), axis=-1
            )
            weights = weights * (xp.asarray(factors, **place) * (2 / math.sqrt(dimension)))
            trace = xp.sum(weights[:, :, :: self.tokens + 1], axis=(-2, -1))
            gy = xp.matmul(xp.reshape(weights, (count, n, self.tokens, self.tokens)), y)
            if count == 1:
                back = xp.matmul(xp.matrix_transpose(rows), xp.reshape(gy, (-1, width)))
                back = xp.reshape(back, (1, dimension, width))
            else:
                gy = xp.reshape(xp.permute_dims(gy, (1, 2, 0, 3)), (-1, count * width))
                back = xp.reshape(xp.matmul(xp.matrix_transpose(rows), gy), (dimension, count, width))
                back = xp.permute_dims(back, (1, 0, 2))
            return xp.reshape(back - trace[:, None, None] * flat, factor.shape)

        return z, pull

    def adjoint_scale(self, dimension: int) -> float:
        """``2 / d``, the ratio of ``adjoint`` to the transpose of ``forward``."""
        return 2.0 / dimension

    def inner(self, first: Array, second: Array) -> Array:
        """Overlaps ``tr(A_p B_q) / d`` of two symmetric signals (..., P, d, d), as an array (..., P, P)."""
        xp = namespace(first, second)
        a = xp.reshape(first, (*first.shape[:-2], -1))
        b = xp.reshape(second, (*second.shape[:-2], -1))
        return xp.matmul(a, xp.matrix_transpose(b)) / first.shape[-1]

    def align(self, signal: Array, estimate: Array, symmetry: str) -> Array:
        """Estimate (P, d, d) moved as close to the signal as the channel's ``symmetry`` allows.

        ``symmetry`` is ``"none"``, ``"signs"``, ``"common-sign"``, ``"permutations"``, ``"permutations-common-sign"``,
        ``"signed-permutations"`` or ``"rotations"``; ValueError otherwise. The positive matrices of the usual priors have at most
        permutations.
        """
        return align(signal, estimate, symmetry, self.inner(signal, estimate))

    def squared_error(self, signal: Array, estimate: Array) -> Array:
        """``|S_p - S_hat_p|_F^2 / d`` of each component: (..., P, d, d) to (..., P)."""
        xp = namespace(signal, estimate)
        difference = signal - estimate
        return xp.sum(difference * difference, axis=(-2, -1)) / signal.shape[-1]

    def overlap(self, signal: Array, estimate: Array) -> Array:
        """``q_p = tr(S_hat_p S_p) / d`` of each component: (..., P, d, d) to (..., P)."""
        xp = namespace(signal, estimate)
        return xp.sum(signal * estimate, axis=(-2, -1)) / signal.shape[-1]


def _swapped(lead: int) -> tuple[int, ...]:
    """Order of axes that exchanges components and samples behind ``lead`` axes."""
    return (*range(lead), lead + 1, lead, lead + 2)


def _itemsize(xp: Any, dtype: Any) -> int:
    return int(xp.finfo(dtype).bits) // 8
