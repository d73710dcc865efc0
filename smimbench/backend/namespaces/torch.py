"""PyTorch tensors on the processors of the host, through the array API."""

from __future__ import annotations

import importlib

import array_api_compat
import numpy as np

from smimbench.backend.arrays import on_device
from smimbench.backend.device import Backend, BackendError
from smimbench.files import attempt
from smimbench.interfaces import Array


class TorchBackend(Backend):
    """PyTorch's tensors; random numbers are drawn by NumPy on the host, so that runs have the same data as NumPy's."""

    def asarray(self, array: Array, *, dtype: str | None = None) -> Array:
        """Copy a host array: PyTorch cannot share memory that is locked, as the data of an instance are."""
        return super().asarray(array if on_device(array) else np.array(array), dtype=dtype)


def open_backend(dtype: str, *, tf32: bool = False) -> Backend:
    """The backend ``torch``, if PyTorch is there."""
    torch, error = attempt(importlib.import_module, "torch")
    if error is not None:  # a PyTorch for another CUDA or NumPy fails in many ways
        reason = " ".join(str(error).split())
        raise BackendError(f"backend torch: PyTorch cannot be imported ({reason}); pip install torch") from None
    return TorchBackend("torch", array_api_compat.array_namespace(torch.empty(0)), dtype, tf32=tf32)
