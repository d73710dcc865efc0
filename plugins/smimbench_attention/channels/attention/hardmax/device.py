"""Nested integrals over the maxima of rows on a CUDA device, compiled from the same kernel as on the host.

Checked on any machine in Numba's simulator, and against the host on a device by ``pytest -m gpu``.
"""

from __future__ import annotations

import numpy as np

from smimbench.backend import namespace
from smimbench.interfaces import Array
from smimbench_attention.channels.attention.hardmax.kernel import make_kernel, work_rows
from smimbench_attention.channels.cuda import cuda

WORK_BYTES = 1 << 28
"""Memory for the functions of all samples at work. Doubled: twice as many at once, from 10,000 of three tokens on."""
MAXIMUM_SITES = 15

_integrate_sample = make_kernel(cuda.jit(device=True))


@cuda.jit
def _integrate_samples(means, codes, half_width, tables, work, outputs):
    """Integrate samples on as many threads as ``work`` (rows, T N, threads) has columns; arguments are those of
    ``integrate_sample``.
    """
    thread = cuda.grid(1)
    if thread < work.shape[2]:
        mean = cuda.local.array(MAXIMUM_SITES, np.float64)
        moments = cuda.local.array((3, MAXIMUM_SITES), np.float64)
        scratch = work[:, :, thread], mean, moments
        for sample in range(thread, means.shape[0], work.shape[2]):
            _integrate_sample(
                sample, means, codes, half_width, tables, scratch, outputs
            )


def device_moments(
    means: Array, codes: Array, tables: tuple[Array, ...], half_width: float
) -> tuple[Array, ...]:
    """Moments as ``kernel.host_moments`` computes them from the same arguments, here CuPy arrays, on their device."""
    xp = namespace(means)
    n, C = means.shape
    tokens = tables[3].shape[1]
    work_shape = work_rows(tokens), tokens * tables[6].shape[0]
    threads = min(n, WORK_BYTES // (8 * work_shape[0] * work_shape[1]))
    outputs = xp.empty(n), xp.empty((n, C)), xp.empty((n, C))
    if n > 0:
        work = xp.empty((*work_shape, threads))
        _integrate_samples[-(-threads // 64), 64](
            means, codes, half_width, tables, work, outputs
        )
    return outputs
