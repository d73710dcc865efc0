"""A device without a device: array-api-strict that counts what a GPU would be told (launches) and asked for (waits).

A call counts where it would start a kernel or a copy on a GPU: views, shapes and data types are free, and calls within a call
are its own affair. Memory is as large as a test says; the default makes every model take its path for accelerators.
"""

import contextlib
from collections import Counter
from functools import wraps
from types import FunctionType

import array_api_strict
from array_api_strict import _array_object

from smimbench.backend import device
from smimbench.backend.device import Backend

ARRAY = _array_object.Array
DEVICE = Backend(
    "array_api_strict", array_api_strict, "float64", array_api_strict.Device("device1")
)

FREE = {
    "reshape", "permute_dims", "expand_dims", "squeeze", "broadcast_to", "broadcast_arrays", "matrix_transpose", "moveaxis",
    "flip", "diagonal", "result_type", "finfo", "iinfo", "isdtype", "can_cast", "empty", "empty_like",
    "__array_namespace_info__",
}  # fmt: skip
OPERATORS = [
    f"__{prefix}{name}__"
    for name in (
        "add",
        "sub",
        "mul",
        "truediv",
        "floordiv",
        "mod",
        "pow",
        "and",
        "or",
        "xor",
        "matmul",
    )
    for prefix in ("", "r", "i")
] + [
    "__neg__",
    "__abs__",
    "__invert__",
    "__eq__",
    "__ne__",
    "__lt__",
    "__le__",
    "__gt__",
    "__ge__",
    "__setitem__",
]
WAITS = ("__bool__", "__float__", "__int__", "__index__", "__dlpack__")
SHAPED_BY_DATA = (
    "nonzero",
    "unique_values",
    "unique_all",
    "unique_counts",
    "unique_inverse",
)


class Counts:
    """Launches and waits since ``clear``, by name."""

    def __init__(self):
        self.launches: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()
        self._depth = 0

    def clear(self):
        """Start over."""
        self.launches.clear()
        self.waits.clear()

    @contextlib.contextmanager
    def paused(self):
        """Count nothing meanwhile."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def leave_out(self, monkeypatch, owner, name) -> None:
        """Count nothing that happens within a method."""
        plain = getattr(owner, name)

        @wraps(plain)
        def quiet(*arguments, **options):
            with self.paused():
                return plain(*arguments, **options)

        monkeypatch.setattr(owner, name, quiet)

    def watch(self, monkeypatch, free=1 << 36):
        """Count from now on; the device has so many bytes free."""

        def counted(owner, name):
            plain = getattr(owner, name)

            @wraps(plain)
            def call(*arguments, **options):
                if not self._depth:
                    if name in WAITS or name in SHAPED_BY_DATA:
                        self.waits[name] += 1
                    if name not in WAITS and not _nothing_to_do(
                        name, arguments, options
                    ):
                        self.launches[name] += 1
                with self.paused():
                    return plain(*arguments, **options)

            monkeypatch.setattr(owner, name, call)

        for name in (*OPERATORS, *WAITS):
            if hasattr(ARRAY, name):
                counted(ARRAY, name)
        for module in (array_api_strict, array_api_strict.linalg):
            for name in module.__all__:
                if isinstance(getattr(module, name), FunctionType) and name not in FREE:
                    counted(module, name)
        monkeypatch.setattr(
            device,
            "free_memory",
            lambda like: free if isinstance(like, ARRAY) else None,
        )
        return self


def _nothing_to_do(name, arguments, options):
    """A conversion to what it is already."""
    if name == "astype":
        return options.get("copy") is False and arguments[0].dtype == arguments[1]
    return (
        name == "asarray"
        and isinstance(arguments[0], ARRAY)
        and options.get("dtype") in (None, arguments[0].dtype)
    )
