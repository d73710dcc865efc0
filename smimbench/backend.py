"""Array namespaces and devices: what differs between NumPy and CuPy, in one place."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import array_api_compat
import numpy as np

if TYPE_CHECKING:
    from types import ModuleType

    from smimbench.interfaces import Array

__all__ = ["Backend", "BackendError", "get_backend", "namespace", "special", "to_host"]

BACKENDS = ("numpy", "cupy")


class BackendError(RuntimeError):
    """The backend that was asked for cannot be used on this machine."""


def namespace(*arrays: Array) -> ModuleType:
    """Array API namespace of the arrays (array-api-compat's wrapper for NumPy and CuPy)."""
    return array_api_compat.array_namespace(*arrays)  # type: ignore[no-any-return]


def special(xp: ModuleType) -> ModuleType:
    """Special functions (``ndtr``, ``log_ndtr``, ``erfcx``, ``logsumexp``) that accept arrays of ``xp``.

    For namespaces other than NumPy and CuPy this is SciPy's module, which dispatches when SCIPY_ARRAY_API is set.
    """
    if array_api_compat.is_cupy_namespace(xp):
        import cupyx.scipy.special as module
    else:
        import scipy.special as module
    return module  # type: ignore[no-any-return]


def to_host(array: Array) -> np.ndarray[Any, Any]:
    """The array as a NumPy array; the only way from a device to the host."""
    if isinstance(array, np.ndarray):
        return array
    if hasattr(array, "get"):  # CuPy
        return np.asarray(array.get())
    if hasattr(array, "__dlpack__"):
        try:
            return np.from_dlpack(array)
        except (BufferError, RuntimeError, ValueError, TypeError):  # another device: ask for a copy on the host
            return np.asarray(array_api_compat.to_device(array, "cpu"))
    return np.asarray(array)


@dataclass(frozen=True)
class Backend:
    """One array namespace on one device with one real data type.

    Attributes
    ----------
    name : str
        ``"numpy"``, ``"cupy"`` or the name of another array API namespace (tests).
    xp : module
        The namespace.
    dtype : str
        ``"float64"`` or ``"float32"``.
    device : object or None
        Device in the namespace's own terms; None for its default.
    """

    name: str
    xp: Any
    dtype: str = "float64"
    device: Any = field(default=None)

    def asarray(self, array: Array, *, dtype: str | None = None) -> Array:
        """Move a host array here. Floating-point arrays get this backend's dtype, others keep theirs."""
        kind = np.asarray(array).dtype.kind
        wanted = getattr(self.xp, dtype or self.dtype) if kind == "f" or dtype else None
        return self.xp.asarray(array, dtype=wanted, device=self.device)

    def synchronize(self) -> None:
        """Wait until every queued operation is done."""
        if self.name == "cupy":
            self.xp.cuda.get_current_stream().synchronize()

    def clock(self) -> float:
        """Seconds on a monotonic clock, read when the device is idle."""
        self.synchronize()
        return time.perf_counter()


def get_backend(name: str = "numpy", dtype: str = "float64") -> Backend:
    """Find a backend by name.

    Raises
    ------
    BackendError
        In one line, with the command that would make it work.
    """
    if name == "numpy":
        return Backend("numpy", array_api_compat.array_namespace(np.empty(0)), dtype)
    if name == "cupy":
        try:
            import cupy
        except ImportError as error:
            raise BackendError(
                f"backend cupy: CuPy cannot be imported ({error}); install it with "
                f"pip install 'smimbench[cuda12]' or 'smimbench[cuda13]', whichever your driver supports"
            ) from None
        if not cupy.is_available():
            raise BackendError(
                "backend cupy: CuPy is installed but finds no usable CUDA device; "
                "run 'smimbench doctor' for details or use --backend numpy"
            )
        return Backend("cupy", array_api_compat.array_namespace(cupy.empty(0)), dtype)
    raise BackendError(f"backend {name}: unknown; choose one of {', '.join(BACKENDS)}")
