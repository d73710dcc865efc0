"""Posteriors of a single sample in compiled code, for one softmax layer and for linear labels, used in the compiled
pass over the inputs (extra ``fast``).

``function(y, omega, constants, mean, covariance)``: label (flattened), mean (P, C) before, constants of the iteration; it
writes the posterior mean (P, C) and adds the covariance, averaged over sites, to (P, P). Checked against the array
versions by tests/algorithms/test_one_pass.py.
"""

from __future__ import annotations

import math
from typing import Any

from numba import njit

__all__ = ["linear", "softmax_one_layer"]


@njit(error_model="numpy")
def softmax_one_layer(y: Any, omega: Any, constants: Any, mean: Any, covariance: Any) -> None:
    """``E[z | y] = u tanh(u . omega / V)``; ``constants`` holds V. See ``softmax.network.output_of_label`` for u."""
    tokens = omega.shape[1]
    widest, first, second = 0.0, 0, 1
    for i in range(tokens):
        for j in range(i + 1, tokens):
            gap = (y[i * tokens + i] - y[i * tokens + j]) + (y[j * tokens + j] - y[j * tokens + i])
            if gap > widest:
                widest, first, second = gap, i, j
    scale = 1.0 / math.sqrt(widest) if widest > 0.0 else 0.0
    t = 0.0
    for m in range(tokens):
        u = (y[m * tokens + first] - y[m * tokens + second]) * scale
        mean[0, m] = u
        t += u * omega[0, m]
    t /= constants[0]
    decay = math.exp(-2.0 * abs(t))
    sech_squared = 4.0 * decay / ((1.0 + decay) * (1.0 + decay))
    tanh = math.tanh(t)
    total = 0.0
    for m in range(tokens):
        u = mean[0, m]
        total += u * u * sech_squared
        mean[0, m] = u * tanh
    covariance[0, 0] += total / tokens


@njit(error_model="numpy")
def linear(y: Any, omega: Any, constants: Any, mean: Any, covariance: Any) -> None:
    """``E[z] = omega + G (y - omega)``; ``constants`` holds G and then the covariance, both (P, P) and flattened."""
    components, tokens = omega.shape
    for p in range(components):
        for m in range(tokens):
            value = omega[p, m]
            for q in range(components):
                value += constants[p * components + q] * (y[q * tokens + m] - omega[q, m])
            mean[p, m] = value
        for q in range(components):
            covariance[p, q] += constants[(components + p) * components + q]
