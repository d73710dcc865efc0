"""Helpers for arrays of any library: namespaces, special functions, transfers between host and device."""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Callable, Hashable
from types import ModuleType
from typing import Any

import array_api_compat
import numpy as np

from smimbench.interfaces import Array, Host

NUMPY: ModuleType = np
"""Namespace of NumPy, which is its own Array API: the wrapper of array-api-compat takes a tenth of a second to import."""


def namespace(*arrays: Array) -> ModuleType:
    """Array API namespace (library module) of some arrays: NumPy's own, any other as array-api-compat wraps it."""
    for array in arrays:
        if type(array) is not np.ndarray:
            break
    else:  # asked several times for every chunk of an iteration: the general answer takes microseconds
        return NUMPY
    xp = array_api_compat.array_namespace(*arrays)
    return NUMPY if array_api_compat.is_numpy_namespace(xp) else xp


def clip(
    x: Array, lower: Array | float | None = None, upper: Array | float | None = None
) -> Array:
    """Clip every entry of an array to ``min(max(x, lower), upper)``; NaN stays NaN, a bound of None is ignored.

    The ``clip`` of array-api-compat assigns through boolean masks, and a device has to count those before it can go on.
    """
    xp = namespace(x)
    if lower is not None:
        x = xp.maximum(x, lower)
    return x if upper is None else xp.minimum(x, upper)


def scalar_products(left: Array, right: Array) -> Array:
    """Scalar products (...,) of vectors (..., C), by the short loops of NumPy, or as sums on a device, where BLAS is slow."""
    xp = namespace(left, right)
    return xp.vecdot(left, right) if xp is NUMPY else xp.sum(left * right, axis=-1)


def matching(array: Array, dtype: object = None) -> dict[str, Any]:
    """Device and dtype of an array as keyword arguments, as in ``xp.zeros(shape, **matching(array))``."""
    return {
        "dtype": array.dtype if dtype is None else dtype,
        "device": array_api_compat.device(array),
    }


def device_of(array: Array) -> Any:
    """Device of an array as a hashable argument of cached functions: CuPy's devices have no hash, so their number stands for
    them, which creation functions take as well.
    """
    device = array_api_compat.device(array)
    return device if isinstance(device, Hashable) else device.id


def shared_constants(values: tuple[float, ...], like: Array, dtype: object) -> Array:
    """Array of this ``dtype`` of the constants ``values`` with the namespace and device of ``like``, made once and shared by all
    calls: not to be written to.
    """
    return _constants(values, namespace(like), dtype, device_of(like))


@functools.lru_cache(maxsize=256)
def _constants(
    values: tuple[float, ...], xp: ModuleType, dtype: object, device: object
) -> Array:
    """Array of the constants ``values`` in the library ``xp``, of this ``dtype`` on this ``device``."""
    return xp.asarray(values, dtype=dtype, device=device)


def asarray_like(values: object, like: Array) -> Array:
    """Convert numbers or an array to an array of the namespace, data type and device of ``like``."""
    return namespace(like).asarray(values, **matching(like))


def dtype_name(array: Array) -> str:
    """Name of an array's data type, such as ``"float64"``, the same for every namespace."""
    return str(array.dtype).rpartition(".")[2]


def on_device(value: object) -> bool:
    """Whether a value is an array of a library other than NumPy, which may live on a device."""
    return not isinstance(value, (np.ndarray, np.generic, float)) and bool(
        array_api_compat.is_array_api_obj(value)
    )


def special(xp: ModuleType) -> Any:
    """Module of special functions (``ndtr``, ``erfcx``, ``logsumexp``, ...) for arrays of the namespace ``xp``.

    SciPy's module for NumPy, CuPy's for CuPy. Arrays of other namespaces go through the host, whether or not this SciPy was
    told to accept them.
    """
    if array_api_compat.is_cupy_namespace(xp):
        import cupyx.scipy.special as module
    else:
        import scipy.special as module
    is_native = array_api_compat.is_numpy_namespace(
        xp
    ) or array_api_compat.is_cupy_namespace(xp)
    return module if is_native else _HostFunctions(module, xp)


class _HostFunctions:
    """Module wrapper that applies NumPy functions to arrays of another library by copying to the host and back."""

    def __init__(self, module: ModuleType, xp: ModuleType) -> None:
        """Wrap a module of NumPy functions for arrays of the namespace ``xp``."""
        self._module = module
        self._xp = xp

    def __getattr__(self, name: str) -> Callable[..., Array]:
        """Return the function of this name, made to accept arrays on a device."""
        function = getattr(self._module, name)

        def call(*arguments: Array, **keyword_options: object) -> Array:
            """Apply the function to host copies of the arguments, with these options, and copy its result back to their
            device.
            """
            device_arguments = [
                argument for argument in arguments if on_device(argument)
            ]
            host_arguments = [
                to_host(argument) if on_device(argument) else argument
                for argument in arguments
            ]
            output = function(*host_arguments, **keyword_options)
            if not device_arguments:
                return output
            return self._xp.asarray(
                np.asarray(output), device=array_api_compat.device(device_arguments[0])
            )

        return call


# Arrays sent most recently, with their host copies. Doubled: twice as many small matrices in memory.
_SENT: deque[tuple[Array, Host]] = deque(maxlen=16)


def send(host: Host, like: Array) -> Array:
    """Copy a small host array to the device and dtype of ``like``, and remember it for a fast ``to_host``.

    For matrices between components, which are computed on the host: a launch for each operation on four numbers costs
    more than the numbers. The result must not be written to.
    """
    if isinstance(like, np.ndarray):
        return host.astype(like.dtype, copy=False)
    host = host.astype(dtype_name(like), copy=False)
    device_array = asarray_like(host, like)
    _SENT.append((device_array, host))
    return device_array


def read_together(*arrays: Array) -> list[Array]:
    """Copy several arrays and numbers to the host in a single transfer."""
    host_arrays = list(arrays)
    device_indices = []
    for index, array in enumerate(arrays):
        if type(array) is not np.ndarray and on_device(array):
            host_copy = _host_copy(array)
            if host_copy is None:
                device_indices.append(index)
            else:
                host_arrays[index] = host_copy
    if len(device_indices) == 1:
        host_arrays[device_indices[0]] = to_host(arrays[device_indices[0]])
    elif device_indices:
        xp = namespace(*(arrays[index] for index in device_indices))
        number_dtypes = [
            arrays[index].dtype
            for index in device_indices
            if arrays[index].dtype != xp.bool
        ]
        common_dtype = xp.result_type(*number_dtypes) if number_dtypes else xp.bool
        flat_arrays = [
            xp.reshape(xp.astype(arrays[index], common_dtype, copy=False), (-1,))
            for index in device_indices
        ]
        segment_ends = np.cumsum(
            [math.prod(arrays[index].shape) for index in device_indices]
        )
        for index, flat_segment in zip(
            device_indices, np.split(to_host(xp.concat(flat_arrays)), segment_ends[:-1])
        ):
            host_arrays[index] = flat_segment.reshape(arrays[index].shape).astype(
                dtype_name(arrays[index]), copy=False
            )
    return host_arrays


def _host_copy(array: Array) -> Host | None:
    """Return the host copy of an array that was sent to a device recently; None for any other array."""
    return next((host for device_array, host in _SENT if device_array is array), None)


def to_host(array: Array) -> Host:
    """Convert an array of any library to NumPy, copying it from the device if necessary."""
    if isinstance(array, np.ndarray):
        return array
    host_copy = _host_copy(array)
    if host_copy is not None:
        return host_copy
    if hasattr(array, "get"):  # CuPy
        return np.asarray(array.get())
    if hasattr(array, "__dlpack__"):
        try:
            return np.from_dlpack(array)
        except (
            BufferError,
            RuntimeError,
            ValueError,
            TypeError,
        ):  # another device: ask for a copy on the host
            return np.asarray(array_api_compat.to_device(array, "cpu"))
    return np.asarray(array)


def to_host_floats(array: Array) -> Host:
    """Convert an array of any library to NumPy, in double precision."""
    return np.asarray(to_host(array), dtype=np.float64)
