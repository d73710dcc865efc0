"""Posterior moments of a batch of samples, as the integrators of the softmax channel return them."""

from __future__ import annotations

import math
from typing import NamedTuple

from smimbench.backend import namespace
from smimbench.interfaces import Array, Posterior

__all__ = ["Moments"]


class Moments(NamedTuple):
    """Integrals over ``z ~ N(omega, V (x) I_M)`` given the label, relative to ``omega``; float64.

    Attributes
    ----------
    log_partition : array (n,)
        ``log Z_out``.
    shift : array (n, L, M)
        ``E[z - omega]``.
    second : array (n, L, L) or (n, L M, L M)
        ``sum_m E[dz_am dz_bm]``, or the whole matrix ``E[dz dz^T]``, ``dz = z - omega`` by layer and token.
    error : array (n,)
        Estimated error of ``shift``: root mean square over its entries, relative to ``sqrt(diag V)``.
    """

    log_partition: Array
    shift: Array
    second: Array
    error: Array

    def posterior(self, omega: Array, full: bool) -> Posterior:
        """The contract's form, in the data type of ``omega``; ``full`` says what ``second`` holds."""
        xp = namespace(omega)
        n, layers, tokens = omega.shape
        shift, wide = self.shift, xp.astype(omega, xp.float64)
        traces, second_moment = self.second, None
        if full:
            matrix = xp.reshape(self.second, (n, layers, tokens, layers, tokens))
            # sum over equal tokens
            traces = xp.sum(xp.linalg.diagonal(xp.permute_dims(matrix, (0, 1, 3, 2, 4))), axis=-1)
            flat, center = (xp.reshape(a, (n, layers * tokens)) for a in (shift, wide))
            mixed = center[:, :, None] * flat[:, None, :]
            whole = (
                xp.reshape(self.second, (n, layers * tokens, layers * tokens))
                + mixed
                + xp.matrix_transpose(mixed)
                + center[:, :, None] * center[:, None, :]
            )
            second_moment = xp.astype(xp.reshape(whole, matrix.shape), omega.dtype)
        covariance = xp.mean(traces - xp.matmul(shift, xp.matrix_transpose(shift)), axis=0) / tokens
        return Posterior(
            xp.astype(wide + shift, omega.dtype),
            xp.astype(covariance, omega.dtype),
            second_moment,
            math.sqrt(float(xp.mean(self.error * self.error))),
        )
