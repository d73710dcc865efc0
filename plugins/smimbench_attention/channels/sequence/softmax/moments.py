"""Posterior moments of a batch of samples, as the integrators of the softmax channel return them."""

from __future__ import annotations

import math
from typing import NamedTuple

from smimbench.backend import namespace, on_device
from smimbench.interfaces import Array, Posterior
from smimbench_attention.channels.batches import shifted_second_moment


class LayerMoments(NamedTuple):
    """Integrals over ``z ~ N(omega, V (x) I_M)`` given the label, in ``dz = z - omega``; float64."""

    log_partition: Array  # (n,) log Z_out
    shift: Array  # (n, L, M) E[dz]
    second: Array  # (n, L, L) sum_m E[dz_am dz_bm], or (n, L M, L M) the whole E[dz dz^T] by layer and token
    error: Array  # (n,) estimated error of `shift`: root mean square over its entries, relative to sqrt(diag V)

    def posterior(self, omega: Array, full: bool) -> Posterior:
        """Convert to the ``Posterior`` of the channel contract, in the data type of ``omega``; ``full`` describes ``second``."""
        xp = namespace(omega)
        n, layers, tokens = omega.shape
        shift = self.shift
        wide = xp.astype(omega, xp.float64)
        traces = self.second
        second_moment = None
        if full:
            matrix = xp.reshape(self.second, (n, layers, tokens, layers, tokens))
            # sum over equal tokens
            traces = xp.sum(
                xp.linalg.diagonal(xp.permute_dims(matrix, (0, 1, 3, 2, 4))), axis=-1
            )
            flat, center = (xp.reshape(a, (n, layers * tokens)) for a in (shift, wide))
            outer = xp.reshape(self.second, (n, layers * tokens, layers * tokens))
            second_moment = xp.reshape(
                shifted_second_moment(center, flat, outer, omega.dtype), matrix.shape
            )
        if on_device(
            shift
        ):  # one product of all samples: a batch of 2 x 2 ones takes a GPU as long as the inputs do
            rows = xp.reshape(xp.permute_dims(shift, (1, 0, 2)), (layers, -1))
            covariance = (
                xp.mean(traces, axis=0) - xp.matmul(rows, xp.matrix_transpose(rows)) / n
            ) / tokens
        else:
            covariance = (
                xp.mean(traces - xp.matmul(shift, xp.matrix_transpose(shift)), axis=0)
                / tokens
            )
        return Posterior(
            xp.astype(wide + shift, omega.dtype),
            xp.astype(covariance, omega.dtype),
            second_moment,
            xp.sqrt(xp.mean(self.error * self.error)),
        )


def moments_of_means(
    mass: Array,
    level: Array,
    constant: float,
    means: Array,
    error: Array,
    shape: tuple[int, ...],
) -> LayerMoments:
    """Moments from rows of posterior means (k, n): first of ``dz`` layer by layer, then the second moment.

    ``log Z_out = log(mass) + level - constant``; ``mass`` and ``level`` (n,), 0 mass where nothing was found; ``shape`` is
    (n, L, M).
    """
    xp = namespace(mass)
    _, layers, tokens = shape
    positive = mass > 0.0
    log_partition = xp.where(
        positive, xp.log(xp.where(positive, mass, 1.0)) + level - constant, -math.inf
    )
    rows = xp.permute_dims(means, (1, 0))
    size = layers * tokens
    rank = math.isqrt(rows.shape[1] - size)
    shift = xp.reshape(rows[:, :size], (-1, layers, tokens))
    second = xp.reshape(rows[:, size:], (rows.shape[0], rank, rank))
    return LayerMoments(
        log_partition, shift, second, xp.where(positive, error, math.inf)
    )
