"""Validation of parameters, latents and returned arrays, shared by items."""

from __future__ import annotations

import math
from functools import cache
from numbers import Integral, Real

import numpy as np

from smimbench.interfaces.channel import Posterior
from smimbench.interfaces.item import Array, Host, ParameterError

MAX_TOKENS = 512
"""Tokens of a sample; doubled, four times as many pairs of them, and 16 times their squares, have to fit into memory."""
HALF_PRECISION = ("float16", "bfloat16")
"""Types whose rounding would be taken for an error of the signal: a noiseless label would leave 1e-8 instead of 0."""
LARGEST_PARAMETER = 1e9
"""Largest parameter, and one over the smallest but 0; doubled, squares and quotients come nearer to where they are lost."""


def check_whole(key: str, value: object, minimum: int, maximum: int = 1 << 30) -> None:
    """Raise ParameterError, naming the parameter ``key``, unless ``value`` is an integer between ``minimum`` and
    ``maximum``.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < minimum:
        raise ParameterError(
            key, f"must be an integer >= {minimum}, got {short_repr(value)}"
        )
    if int(value) > maximum:
        raise ParameterError(key, f"must be at most {maximum}, got {short_repr(value)}")


def check_number(
    key: str, value: object, *, positive: bool, maximum: float = LARGEST_PARAMETER
) -> None:
    """Raise ParameterError, naming the parameter ``key``, unless ``value`` is a finite number up to ``maximum`` that is
    positive, or at least not negative.

    Numbers that are not 0 must lie between one over ``LARGEST_PARAMETER`` and ``maximum``.
    """
    number = math.nan
    if not isinstance(value, bool) and isinstance(value, Real):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
    if not math.isfinite(number) or number < 0 or (positive and number == 0):
        raise ParameterError(
            key,
            f"must be a finite number {'> 0' if positive else '>= 0'}, got {short_repr(value)}",
        )
    if number > maximum or 0 < number < 1 / LARGEST_PARAMETER:
        zero_prefix = "" if positive else "0 or "
        raise ParameterError(
            key,
            f"must be {zero_prefix}between {1 / LARGEST_PARAMETER:g} and {maximum:g}, got {short_repr(value)}",
        )


def short_repr(value: object) -> str:
    """Format a value for error messages, shortened if it is long."""
    try:
        value_text = repr(value)
    except (ValueError, RecursionError):  # thousands of digits, thousands of brackets
        return f"a {type(value).__name__} that is too large to be shown"
    return value_text if len(value_text) < 100 else f"{value_text[:90]} ..."


def describe_nonfinite(array: Host) -> str:
    """Describe the NaN and infinite numbers of an array (counts, position of the first); empty if all are finite."""
    is_nonfinite = ~np.isfinite(array)
    if not is_nonfinite.any():
        return ""
    nan_count = int(np.isnan(array).sum())
    nonfinite_counts = {"NaN": nan_count, "inf": int(is_nonfinite.sum()) - nan_count}
    position = [int(axis_index) for axis_index in np.argwhere(is_nonfinite)[0]]
    return f"{' and '.join(f'{count} {kind}' for kind, count in nonfinite_counts.items() if count)}, first at {position}"


def dtype_name(array: Array) -> str:
    """Name of an array's data type, such as ``"float64"``, or ``"masked array"`` for NumPy's masked arrays."""
    if np.ma.isMaskedArray(array):
        return "masked array"
    return _name(type(array.dtype).__module__, array.dtype)


@cache
def _name(module: str, dtype: object) -> str:
    """Name of a data type of any library, without that of the library; NumPy takes microseconds to compose it. Some libraries
    refuse to compare their data types with those of others, so ``module``, that of the type, tells them apart first.
    """
    return str(dtype).rpartition(".")[2]


def is_real(array: Array) -> bool:
    """Whether an array has a real or boolean data type and no masked numbers."""
    return dtype_name(array).startswith(("float", "bfloat", "int", "uint", "bool"))


def checked_array(source: str, values: Array, shape: tuple[int, ...]) -> Host:
    """Check that an array (``values``) drawn by an item (``source``, in words) has this shape and finite real numbers, and
    return it.

    Raises
    ------
    ValueError
        If it is not made of finite real numbers in this shape; ``source`` says who drew it.
    """
    array: Host = np.asanyarray(values)
    if array.shape != shape or not is_real(array):
        raise ValueError(
            f"{source} must return real numbers of shape {shape}, got {dtype_name(array)} of shape {array.shape}"
        )
    if nonfinite := describe_nonfinite(array):
        raise ValueError(f"{source} must return finite numbers, got {nonfinite}")
    return array


def check_latents(z: Array, components: int, sites: int) -> None:
    """Raise ValueError unless the latents ``z`` have the shape (..., n, P, C): n samples, P = ``components``, C = ``sites``."""
    if z.ndim < 3 or tuple(z.shape[-2:]) != (components, sites):
        raise ValueError(
            f"latents must have shape (..., n, {components}, {sites}), got {tuple(z.shape)}"
        )


def checked_posterior(
    posterior: Posterior, omega: Array, *, second_moment: bool = False
) -> Posterior:
    """Check shapes and data types of the posterior that a channel returned for latents of prior means ``omega`` (n, P, C), n
    samples, and return it; ``second_moment`` says whether that was requested, too.

    Raises
    ------
    ValueError
        If it is not a Posterior, or its parts are not arrays of real numbers of the right shape.
    """
    n, P, C = omega.shape
    shapes: dict[str, tuple[int, ...]] = {"mean": (n, P, C), "covariance": (P, P)}
    if second_moment:
        shapes["second_moment"] = (n, P, C, P, C)
    for array_name, shape in shapes.items():
        array: Array = getattr(posterior, array_name, None)
        if (
            type(array) is np.ndarray
            and array.dtype == np.float64
            and array.shape == shape
        ):
            continue  # asked for every chunk of an iteration
        dtype = str(getattr(array, "dtype", type(array).__name__))
        if not dtype.rpartition(".")[2].startswith(("float", "bfloat")):
            description = f"{type(posterior).__name__} whose {array_name} is {'missing' if array is None else dtype}"
            raise ValueError(
                f"posterior must return a smimbench.Posterior of arrays of real numbers, got {description}"
            )
        if dtype.rpartition(".")[2] in HALF_PRECISION:
            raise ValueError(
                f"posterior must return a {array_name} in float32 or float64, got {dtype}"
            )
        if tuple(array.shape) != shape:
            raise ValueError(
                f"posterior must return a {array_name} of shape {shape}, got {tuple(array.shape)}"
            )
    checked_by_shape: Posterior = posterior
    return checked_by_shape
