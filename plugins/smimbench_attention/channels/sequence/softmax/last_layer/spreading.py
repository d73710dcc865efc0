"""Spreading of points over a table by cubic interpolation, compiled with numba."""

from __future__ import annotations

import numpy as np

from smimbench.interfaces import Host
from smimbench_attention.channels.sequence.softmax.compiling import compiled


def _add(x, y, moments, table):
    # moments: a row for each point. table: N, m, N
    count = table.shape[0]
    wx = np.empty(4)
    wy = np.empty(4)
    for point in range(len(x)):
        i = min(max(int(np.floor(x[point])) - 1, 0), count - 4)
        j = min(max(int(np.floor(y[point])) - 1, 0), count - 4)
        for t, weights in ((x[point] - i, wx), (y[point] - j, wy)):
            a = t - 1.0
            b = t - 2.0
            c = t - 3.0
            weights[0], weights[1] = -a * b * c / 6.0, t * b * c / 2.0
            weights[2], weights[3] = -t * a * c / 2.0, t * a * b / 6.0
        for k in range(4):
            for moment in range(moments.shape[1]):
                amount = wx[k] * moments[point, moment]
                for m in range(4):
                    table[i + k, moment, j + m] += amount * wy[m]


_kernel = compiled(_add)


def spread(count: int, x: Host, y: Host, moments: Host) -> Host:
    """Table (N, m N) of ``moments`` (m, n) at positions x and y (n,), in units of the node spacing.

    Each point is shared out over the four nodes around it in x times the four in y, with the weights of Lagrange's formula.
    """
    table = np.zeros((count, len(moments), count))
    _kernel(
        *(np.require(array, np.float64, ["C", "W"]) for array in (x, y, moments.T)),
        table,
    )
    return table.reshape(count, -1)
