"""Sequence multi-index model: a few directions, each projected on every token of a sample."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import array_api_compat

from smimbench.backend import namespace
from smimbench.interfaces import Capabilities
from smimbench_models._common import (
    align,
    check_inputs,
    check_tokens,
    chunk_slices,
    fill_normal,
    nearest_count,
)

if TYPE_CHECKING:
    import numpy as np

    from smimbench.interfaces import Array

__all__ = ["SequenceMultiIndex"]


@dataclass(frozen=True)
class SequenceMultiIndex:
    r"""Projections of every token on P directions.

    .. math:: z_{pm} = \frac{w_p \cdot x_m}{\sqrt D}, \qquad p = 1..P, \quad m = 1..M,

    for tokens ``x_m`` (D,) with iid N(0, 1) entries and a signal ``W`` (P, D) with entries of order 1;
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
    several students that see the same inputs. Both are limited by the reading of the inputs; a loop over
    ``chunks`` reads them once for both.

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

    name: ClassVar[str] = "sequence-multi-index"
    version: ClassVar[int] = 1
    reference: ClassVar[str] = "arXiv:2502.00901"
    capabilities: ClassVar[Capabilities] = Capabilities()

    def __post_init__(self) -> None:
        check_tokens(self.tokens, 1)

    @property
    def kappa(self) -> float:
        """Factor 1 of ``Qhat = kappa alpha E sum_c g_c g_c^T``."""
        return 1.0

    @property
    def sites(self) -> int:
        """Number of tokens, M."""
        return self.tokens

    def sample_count(self, alpha: float, dimension: int) -> int:
        """Integer closest to ``alpha D``, at least 1; ParameterError if alpha is negative or not finite."""
        return nearest_count(alpha, dimension)

    def sample_ratio(self, n: int, dimension: int) -> float:
        """``n / D``."""
        return n / dimension

    def signal_shape(self, components: int, dimension: int) -> tuple[int, ...]:
        """``(P, D)``."""
        return (components, dimension)

    def draw_inputs(self, rng: np.random.Generator, out: np.ndarray[Any, Any]) -> None:
        """Fill the host array ``out`` (n, M, D) with iid N(0, 1) numbers, in place.

        The numbers are drawn in float64 whatever the dtype of ``out``, so that all dtypes see the same
        instance.
        """
        fill_normal(rng, out)

    def draw_noise(self, rng: np.random.Generator, components: int, dimension: int) -> np.ndarray[Any, Any]:
        """White noise (P, D), iid N(0, 1), of ``R = W + Qhat^(-1/2) Z``."""
        return rng.standard_normal((components, dimension))

    def chunks(
        self, n: int, dimension: int, components: int = 1, *, itemsize: int = 8, like: Array | None = None
    ) -> list[slice]:
        """Slices of the samples, small enough that inputs and latents of one stay in the cache.

        Parameters
        ----------
        n, dimension, components : int
            Samples, D, and the number of components (times students) whose latents are held at once.
        itemsize : int
            Bytes of a number.
        like : array, optional
            An array on the device that will do the work; accelerators get larger chunks. Default: the host.

        Returns
        -------
        list of slice
            Consecutive, covering ``range(n)``; empty for n = 0.
        """
        return chunk_slices(n, itemsize * self.tokens * (dimension + 2 * components), 1, like)

    def forward(self, inputs: Array, signal: Array) -> Array:
        """Latents ``z_pm = w_p . x_m / sqrt(D)``.

        Parameters
        ----------
        inputs : array (n, M, D)
            Tokens, iid N(0, 1), not divided by anything.
        signal : array (..., P, D)
            Leading axes: several students.

        Returns
        -------
        array (..., n, P, M)

        Raises
        ------
        ValueError
            If ``inputs`` is not (n, M, D) with this model's M and the signal's D.
        """
        xp = namespace(inputs, signal)
        *lead, components, dimension = signal.shape
        check_inputs(inputs, self.tokens, dimension)
        n = inputs.shape[0]
        dtype = xp.result_type(inputs, signal)
        students = math.prod(lead)
        rows = xp.reshape(signal, (students * components, dimension))
        columns = xp.matrix_transpose(rows * dimension**-0.5)
        z = xp.empty(
            (students, n, components, self.tokens), dtype=dtype, device=array_api_compat.device(inputs)
        )
        for s in self.chunks(n, dimension, rows.shape[0], itemsize=_itemsize(xp, dtype), like=inputs):
            product = xp.matmul(xp.reshape(inputs[s, :, :], (-1, dimension)), columns)
            product = xp.reshape(product, (s.stop - s.start, self.tokens, students, components))
            z[:, s, :, :] = xp.permute_dims(product, (2, 0, 3, 1))
        return xp.reshape(z, (*lead, n, components, self.tokens))

    def adjoint(self, inputs: Array, g: Array) -> Array:
        """Transpose of ``forward``: ``sum_{mu, m} g_pm x_m / sqrt(D)``.

        Parameters
        ----------
        inputs : array (n, M, D)
        g : array (..., n, P, M)
            Leading axes: several students.

        Returns
        -------
        array (..., P, D)

        Raises
        ------
        ValueError
            If the shapes do not fit together.
        """
        xp = namespace(inputs, g)
        *lead, n, components, sites = g.shape
        dimension = inputs.shape[-1]
        check_inputs(inputs, self.tokens, dimension)
        if inputs.shape[0] != n or sites != self.tokens:
            raise ValueError(
                f"g must have shape (..., {inputs.shape[0]}, P, {self.tokens}), got {tuple(g.shape)}"
            )
        dtype = xp.result_type(inputs, g)
        students = math.prod(lead)
        rows = students * components
        gradients = xp.reshape(g, (students, n, components, sites))
        total = xp.zeros((rows, dimension), dtype=dtype, device=array_api_compat.device(inputs))
        for s in self.chunks(n, dimension, rows, itemsize=_itemsize(xp, dtype), like=inputs):
            left = xp.reshape(
                xp.permute_dims(gradients[:, s, :, :], (0, 2, 1, 3)), (rows, (s.stop - s.start) * sites)
            )
            total += xp.matmul(left, xp.reshape(inputs[s, :, :], (-1, dimension)))
        return xp.reshape(total * dimension**-0.5, (*lead, components, dimension))

    def adjoint_scale(self, dimension: int) -> float:
        """1: ``adjoint`` is the transpose of ``forward``, in any ``dimension`` >= 1."""
        if dimension < 1:
            raise ValueError(f"dimension must be >= 1, got {dimension}")
        return 1.0

    def inner(self, first: Array, second: Array) -> Array:
        """Overlaps ``A B^T / D`` of two signals (..., P, D), as an array (..., P, P)."""
        xp = namespace(first, second)
        return xp.matmul(first, xp.matrix_transpose(second)) / first.shape[-1]

    def align(self, signal: Array, estimate: Array, symmetry: str) -> Array:
        """Estimate (P, D) moved as close to the signal as the channel's ``symmetry`` allows.

        ``symmetry`` is ``"none"``, ``"signs"``, ``"permutations"``, ``"signed-permutations"`` or
        ``"rotations"``; ValueError otherwise.
        """
        return align(signal, estimate, symmetry, self.inner(signal, estimate))

    def squared_error(self, signal: Array, estimate: Array) -> Array:
        """``|w_p - w_hat_p|^2 / D`` of each component: (..., P, D) to (..., P)."""
        xp = namespace(signal, estimate)
        difference = signal - estimate
        return xp.sum(difference * difference, axis=-1) / signal.shape[-1]

    def overlap(self, signal: Array, estimate: Array) -> Array:
        """Squared cosine of each component, 0 where the estimate vanishes: (..., P, D) to (..., P)."""
        xp = namespace(signal, estimate)
        norms = xp.sum(signal * signal, axis=-1) * xp.sum(estimate * estimate, axis=-1)
        cosine = xp.sum(signal * estimate, axis=-1) ** 2 / xp.where(norms > 0, norms, xp.ones_like(norms))
        return xp.where(norms > 0, cosine, xp.zeros_like(norms))


def _itemsize(xp: Any, dtype: Any) -> int:
    return int(xp.finfo(dtype).bits) // 8
