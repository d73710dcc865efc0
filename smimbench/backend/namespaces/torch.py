"""The PyTorch backend, on the host's processors, through the array API."""

from __future__ import annotations

import importlib

import array_api_compat
import numpy as np

from smimbench.backend.arrays import on_device
from smimbench.backend.device import Backend, BackendError
from smimbench.files import attempt
from smimbench.interfaces import Array


class TorchBackend(Backend):
    """PyTorch backend on the host; NumPy draws the random numbers, so that data are the same as for NumPy."""

    def asarray(self, array: Array, *, dtype: str | None = None) -> Array:
        """Copy a host array to a tensor: PyTorch cannot share read-only memory, such as the data of an instance."""
        return super().asarray(
            array if on_device(array) else np.array(array), dtype=dtype
        )


def open_backend(dtype: str, *, tf32: bool = False) -> Backend:
    """Open the backend ``torch`` with this data type, or raise BackendError without PyTorch; ``tf32`` is for GPUs only."""
    torch, error = attempt(importlib.import_module, "torch")
    if error is not None:  # a PyTorch for another CUDA or NumPy fails in many ways
        reason = " ".join(str(error).split())
        raise BackendError(
            f"backend torch: PyTorch cannot be imported ({reason}); pip install torch"
        ) from None
    return TorchBackend(
        "torch", array_api_compat.array_namespace(torch.empty(0)), dtype, tf32=tf32
    )
