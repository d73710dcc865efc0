"""Array backends and machine properties: namespaces, devices, streaming, clocks, memory and speed limits.

Plugins import the names of this page from here.
"""

from smimbench.backend.arrays import (
    NUMPY,
    asarray_like,
    clip,
    device_of,
    dtype_name,
    matching,
    namespace,
    on_device,
    read_together,
    scalar_products,
    send,
    shared_constants,
    special,
    to_host,
    to_host_floats,
)
from smimbench.backend.device import (
    Backend,
    BackendError,
    Elapsed,
    backend_names,
    chunk_bytes,
    free_memory,
    get_backend,
)
from smimbench.backend.streaming import (
    NarrowInputs,
    StreamedInputs,
    sample_chunks,
    take_samples,
)

__all__ = [
    "NUMPY",
    "Backend",
    "BackendError",
    "Elapsed",
    "NarrowInputs",
    "StreamedInputs",
    "asarray_like",
    "backend_names",
    "chunk_bytes",
    "clip",
    "device_of",
    "dtype_name",
    "free_memory",
    "get_backend",
    "matching",
    "namespace",
    "on_device",
    "read_together",
    "sample_chunks",
    "scalar_products",
    "send",
    "shared_constants",
    "special",
    "take_samples",
    "to_host",
    "to_host_floats",
]
