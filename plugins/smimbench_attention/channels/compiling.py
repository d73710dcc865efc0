"""Compilation of the channels' kernels with Numba, cached where a folder allows, and elementary functions inside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import config, njit

# Few samples do not fill a GPU, and need no remark in every record.
config.CUDA_LOW_OCCUPANCY_WARNINGS = 0


def compiled(function: Callable[..., object]) -> Callable[..., object]:
    """Compile ``function`` with Numba at its first call, without the interpreter lock and without checks for division by zero.

    The machine code is kept for the next process. Where no folder can be written to, each process compiles again.
    """
    try:
        kernel: Callable[..., object] = njit(
            cache=True, nogil=True, error_model="numpy"
        )(function)
    except RuntimeError:  # no folder to keep the machine code in
        kernel = njit(nogil=True, error_model="numpy")(function)
    return kernel


def allocation_free(*fastmath: str, inlined: bool = False) -> Callable[..., Any]:
    """Decorator that compiles a function that makes no arrays, with these permissions of ``fastmath``. References to arrays are
    not counted, which would take a quarter of the time. With ``inlined`` the code becomes part of its callers, because each call
    would copy the descriptors of its arrays.
    """
    # Numba does not document _nrt: kernels that slice arrays have no other way around these counts.
    options: dict[str, Any] = {"forceinline": inlined, "_nrt": False}
    decorator: Callable[..., Any] = njit(
        fastmath=set(fastmath), error_model="numpy", **options
    )
    return decorator


inline = njit(fastmath={"contract"}, forceinline=True, error_model="numpy")


@inline
def exp(x):
    """Exponential of x, for |x| <= 700, in a form that compilers can vectorize, relative error 2e-16: 2^exponent times a
    ``polynomial`` in the ``remainder``, ``x - exponent log 2``.
    """
    shifted_exponent = (
        x * 1.4426950408889634 + 6755399441055744.0
    )  # 1.5 * 2^52: adding it rounds to the nearest integer
    exponent = shifted_exponent - 6755399441055744.0
    remainder = (
        x - exponent * 6.93147180369123816490e-01
    ) - exponent * 1.90821492927058770002e-10
    polynomial = 2.5100472505694996e-08
    # of degree 11, exact to 2e-17 for |remainder| <= log(2) / 2: interpolated at Chebyshev nodes
    for coefficient in (
        2.7620201591031547e-07,
        2.7557268276905696e-06,
        2.4801521057868204e-05,
        1.9841269863171557e-04,
        1.3888888917367081e-03,
        8.333333333330039e-03,
        4.1666666666623824e-02,
        1.6666666666666669e-01,
        0.5,
        1.0,
        1.0,
    ):
        polynomial = polynomial * remainder + coefficient
    # the exponent stands in the last bits of the shifted one, and is added to that of the polynomial
    added_exponent = np.float64(shifted_exponent).view(np.int64) << 52
    bits = np.float64(polynomial).view(np.int64) + added_exponent
    return np.int64(bits).view(np.float64)


@inline
def bounded_log(x):
    """Logarithm of x, clipped to [1e-304, 1e304], accurate to 1e-15: ``exponent log 2`` plus a ``series`` in odd powers of
    ``(mantissa - 1) / (mantissa + 1)``, both read from the ``bits`` of x.
    """
    x = min(max(x, 1e-304), 1e304)
    root_half = np.int64(
        0x3FE6A09E667F3BCD
    )  # bits of sqrt(1/2): mantissas are taken between that and sqrt(2)
    bits = np.float64(x).view(np.int64) - root_half
    exponent = bits >> 52
    mantissa = np.int64(bits - (exponent << 52) + root_half).view(np.float64)
    mantissa_ratio = (mantissa - 1.0) / (mantissa + 1.0)
    squared_ratio = mantissa_ratio * mantissa_ratio
    series = 1.0 / 21.0
    for odd_power in range(19, 0, -2):
        series = series * squared_ratio + 1.0 / odd_power
    return exponent * 0.6931471805599453 + 2.0 * mantissa_ratio * series


@inline
def one_minus_exp(t):
    """Difference ``1 - exp(t)`` for -1/2 <= t <= 0, without cancellation, by its Taylor ``series``."""
    series = 1.0
    for order in range(15, 1, -1):
        series = series * (t * (1.0 / order)) + 1.0
    return -t * series


@inline
def normal_cdf(z, gaussian):
    """Probability that a standard normal variable is below z, for |z| <= 40 and ``gaussian`` = ``exp(-z^2 / 2)``, relative error
    5e-15: a ``series`` of degree 20 in ``u = (x - 3.75) / (x + 3.75)`` for ``(1 + 2 x) exp(x^2) erfc(x)``, ``x = |z| / sqrt(2)``.
    """
    x = 0.7071067811865476 * abs(z)
    u = (x - 3.75) / (x + 3.75)
    series = 7.890142791008815e-09
    # interpolated at Chebyshev nodes of 0 <= x <= 30; in two loops, for compilers unroll no longer ones
    for coefficient in (
        -1.6308046928718976e-08,
        -2.0619316479360326e-07,
        3.877373995274998e-08,
        1.7175237163671508e-06,
        -1.0816804665969503e-06,
        -1.1442142794366156e-05,
        2.245264891849105e-05,
        5.165828534815164e-05,
        -0.00029018012016854836,
        0.00029370830874989306,
    ):
        series = series * u + coefficient
    for coefficient in (
        0.0017556318920436452,
        -0.009746578172158625,
        0.02836227659042345,
        -0.058693398771009195,
        0.0923043212223938,
        -0.10880393013053852,
        0.08227673848801863,
        0.003585415485206009,
        -0.14024059858552587,
        1.2375126308378286,
    ):
        series = series * u + coefficient
    tail = 0.5 * gaussian * series / (1.0 + 2.0 * x)
    return tail if z < 0.0 else 1.0 - tail
