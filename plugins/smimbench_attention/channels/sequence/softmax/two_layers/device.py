"""The adaptive quadrature on a CUDA device, compiled from the same kernel as on the host.

Checked on any machine in Numba's simulator, and against the host on a device by ``pytest -m gpu``.
"""

from __future__ import annotations

import numpy as np

from smimbench.backend import namespace
from smimbench.interfaces import Array
from smimbench_attention.channels.cuda import cuda
from smimbench_attention.channels.sequence.softmax.two_layers.kernel import (
    TABLE_ROWS,
    make_kernel,
)

_integrate = make_kernel(cuda.jit(device=True), cuda.jit(device=True), 1, 1)


@cuda.jit
def _integrate_samples(u, omega, half_width, log_unit, rule, totals, error):
    """Integrate one sample in every thread: moments of latents z over the box ``|z - omega| <= half_width sqrt(V)`` into
    ``totals`` (8 or 15, n), in units of ``exp(log_unit)``, relative errors into ``error`` (n,). ``u`` are outputs up to sign;
    ``rule`` is ``IntegrationRule.arguments``.
    """
    sample = cuda.grid(1)
    if sample < u.shape[0]:
        table = cuda.local.array(TABLE_ROWS, np.float64)
        intervals = cuda.local.array((8, 4), np.float64)
        sums = cuda.local.array((8, 16), np.float64)
        state = cuda.local.array((4, 4), np.float64)
        scratch = table, intervals, sums, state
        error[sample] = _integrate(
            (u[sample], omega[sample], half_width[sample], log_unit[sample]),
            rule,
            scratch,
            totals[:, sample],
        )


def device_sums(
    u: Array, omega: Array, rule: object, half_width: Array, log_unit: Array
) -> tuple[Array, Array]:
    """Sums of the integrand and of moments over boxes of latents around ``omega`` of ``half_width`` in sqrt(V), in units of
    ``exp(log_unit)``, given outputs ``u`` up to sign, with relative errors, on a CUDA device, by ``rule``; arguments and results
    are those of ``kernel.host_sums``.
    """
    xp = namespace(u)
    arrays = [
        xp.asarray(array, dtype=xp.float64, order="C")
        for array in (u, omega, half_width, log_unit)
    ]
    sums = xp.empty((rule.moment_count, u.shape[0]))
    error = xp.empty(u.shape[0])
    if u.shape[0] > 0:
        _integrate_samples[-(-u.shape[0] // 128), 128](
            *arrays, rule.arguments, sums, error
        )
    return sums, error
