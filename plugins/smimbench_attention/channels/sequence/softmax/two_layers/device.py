"""The adaptive quadrature on a CUDA device, compiled from the same kernel as on the host.

Checked on any machine in Numba's simulator, and against the host on a device by ``pytest -m gpu``.
"""

from __future__ import annotations

import numpy as np
from numba import cuda

from smimbench.backend import namespace
from smimbench.interfaces import Array
from smimbench_attention.channels.sequence.softmax.two_layers.kernel import (
    TABLE,
    kernel,
)

_integrate = kernel(cuda.jit(device=True), cuda.jit(device=True), 1, 1)


@cuda.jit
def _integrate_samples(u, omega, reach, level, rule, totals, error):
    row = cuda.grid(1)
    if row < u.shape[0]:
        table = cuda.local.array(TABLE, np.float64)
        intervals = cuda.local.array((8, 4), np.float64)
        sums = cuda.local.array((8, 16), np.float64)
        state = cuda.local.array((4, 4), np.float64)
        scratch = table, intervals, sums, state
        error[row] = _integrate(
            (u[row], omega[row], reach[row], level[row]), rule, scratch, totals[:, row]
        )


def device_sums(
    u: Array, omega: Array, rule: object, reach: Array, level: Array
) -> tuple[Array, Array]:
    """Integrals on a CUDA device, one thread per sample; arrays stay on the device (see ``host_sums``)."""
    xp = namespace(u)
    arrays = [
        xp.asarray(array, dtype=xp.float64, order="C")
        for array in (u, omega, reach, level)
    ]
    sums = xp.empty((rule.moments, u.shape[0]))
    error = xp.empty(u.shape[0])
    if u.shape[0] > 0:
        _integrate_samples[-(-u.shape[0] // 128), 128](
            *arrays, rule.arguments, sums, error
        )
    return sums, error
