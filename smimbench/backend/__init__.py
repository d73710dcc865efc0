"""Where arrays live and what the machine can do: namespaces, devices, streaming, clocks and ceilings.

Plugins import the names of this page from here.
"""

from smimbench.backend.arrays import beside, clip, namespace, on_device, special, to_host
from smimbench.backend.device import Backend, BackendError, Elapsed, backend_names, get_backend
from smimbench.backend.streaming import StreamedInputs, sample_chunks

__all__ = [
    "Backend",
    "BackendError",
    "Elapsed",
    "StreamedInputs",
    "backend_names",
    "beside",
    "clip",
    "get_backend",
    "namespace",
    "on_device",
    "sample_chunks",
    "special",
    "to_host",
]
