"""Nested integrals over the maxima of rows on a CUDA device, compiled from the same kernel as on the host.

Checked on any machine in Numba's simulator, and against the host on a device by ``pytest -m gpu``.
"""

from __future__ import annotations

from smimbench.backend import namespace
from smimbench.interfaces import Array
from smimbench_attention.channels.attention.hardmax.kernel import (
    make_kernel,
    work_shape,
)
from smimbench_attention.channels.cuda import cuda

WORK_BYTES = 1 << 28
"""Memory for the functions of all samples at work. Doubled: twice as many at once, from 8,000 of three tokens on."""

_kernel = make_kernel(cuda.jit(device=True))


@cuda.jit
def _integrate_samples(means, codes, windows, tables, work, outputs):
    """Integrate samples on as many threads as ``work`` (rows, columns, threads) has room for; arguments are those of
    ``integrate_samples``.
    """
    thread = cuda.grid(1)
    step = work.shape[2]
    if thread < step:
        _kernel(
            thread, step, means, codes, windows, tables, work[:, :, thread], outputs
        )


def device_moments(
    means: Array, codes: Array, tables: tuple[Array, ...], windows: tuple[float, int]
) -> tuple[Array, ...]:
    """Moments as ``kernel.host_moments`` computes them from the same arguments, here CuPy arrays, on their device."""
    xp = namespace(means)
    n, C = means.shape
    rows, columns = work_shape(tables[3].shape[1], windows[1])
    threads = min(n, WORK_BYTES // (8 * rows * columns))
    outputs = xp.empty(n), xp.empty((n, C)), xp.empty((n, C))
    if n > 0:
        work = xp.empty((rows, columns, threads))
        _integrate_samples[-(-threads // 64), 64](
            means, codes, windows, tables, work, outputs
        )
    return outputs
