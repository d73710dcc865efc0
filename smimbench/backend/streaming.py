"""Inputs read in chunks of samples: streamed from the host (and prefetched), drawn again in every pass, or in float32."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from types import ModuleType

import numpy as np

from smimbench.backend.arrays import namespace, to_host_floats
from smimbench.backend.device import Backend, chunk_scale
from smimbench.interfaces import Array, Host, Model
from smimbench.interfaces.item import takes

_SLICES_ONLY = "the inputs do not fit the memory and are streamed: read them in slices of samples, inputs[a:b, ...]"

SHARE_OF_MEMORY = 0.6
"""Fraction of the free memory of a device, or of all memory of the host, that the inputs may take; the rest is for intermediate
results."""
LARGEST_REDRAWN = 16
"""Largest size of inputs that the host draws again in every pass, over its memory. Doubled: a mistyped dimension starts a run of
weeks in place of days."""


class StreamedInputs:
    """Inputs (n, T, D) that stay in host memory; slices of samples are copied to the device on request.

    It stands in for the array where the array does not fit the device: it has its shape, dtype, device and namespace, and
    ``inputs[part, ...]`` is an ordinary array of the backend. Any algorithm that goes through the samples chunk by chunk
    (see ``sample_chunks``) works unchanged and with the same results.

    Parameters
    ----------
    host : ndarray (n, T, D)
    backend : Backend

    Raises
    ------
    TypeError
        When all samples are requested at once.
    """

    def __init__(self, host: Host, backend: Backend) -> None:
        """Keep the inputs ``host`` (n, T, D) in host memory, with the backend's reader of slices."""
        # An empty array holds device and dtype in the backend's own terms.
        self._set_source(host.shape, backend.asarray(host[:0]), backend.reader(host))

        self.itemsize = host.dtype.itemsize

    def _set_source(
        self,
        shape: tuple[int, ...],
        empty_array: Array,
        read_slice: Callable[[slice], Array],
    ) -> None:
        """Set the inputs' shape (n, T, D), an empty array on their device and of their dtype, and the function that reads a slice
        of samples.
        """
        self.shape = tuple(shape)
        """(n, T, D)."""
        self.like = empty_array
        self._read_slice = read_slice
        self.itemsize = int(namespace(empty_array).finfo(empty_array.dtype).bits) // 8
        """Bytes per stored number."""

    @property
    def ndim(self) -> int:
        """Number of array dimensions: 3."""
        return len(self.shape)

    @property
    def dtype(self) -> object:
        """Data type of the slices on the device."""
        return self.like.dtype

    @property
    def device(self) -> object:
        """Device to which slices are copied."""
        return self.like.device

    def __len__(self) -> int:
        """Return the number of samples n."""
        return self.shape[0]

    def __getitem__(self, key: object) -> Array:
        """Return a slice of the samples (``key``) as an array on the device; further indices select among tokens and
        dimensions.
        """
        samples = key[0] if isinstance(key, tuple) and key else key
        if not isinstance(samples, slice) or samples == slice(None):
            raise TypeError(_SLICES_ONLY)
        further_indices = key[1:] if isinstance(key, tuple) else ()
        array = self._read_slice(slice(*samples.indices(len(self))))
        array = namespace(self.like).astype(array, self.dtype, copy=False)
        return array[(slice(None), *further_indices)] if further_indices else array

    def __array_namespace__(self, *, api_version: str | None = None) -> ModuleType:
        """Return the array API namespace of the slices."""
        del api_version
        return namespace(self.like)

    def __array__(self, *args: object, **kwargs: object) -> Host:
        """Refuse to convert all samples to NumPy at once."""
        raise TypeError(_SLICES_ONLY)


class DrawnInputs(StreamedInputs):
    """Random inputs (n, T, D) too large for the memory, generated again from their seeds whenever they are read.

    Drawing takes a GPU less time than reading the same numbers from the host, and a host less than reading them from most disks.

    Parameters
    ----------
    shape : tuple
        (n, T, D).
    block : int
        Samples that are drawn together, from one seed.
    draw : callable
        From the number of a block to its samples.
    like : array
        An empty array with the namespace, device and dtype of the inputs.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        block: int,
        draw: Callable[[int], Array],
        like: Array,
    ) -> None:
        """Prepare inputs of this shape, drawn in blocks of ``block`` samples by ``draw(block_number)``; ``like`` is an
        empty array of their kind.
        """
        self.block = block

        def read(samples: slice) -> Array:
            """Draw the blocks that a slice of samples needs, and join their samples."""
            if samples.stop <= samples.start:
                return like
            block_numbers = range(samples.start // block, -(-samples.stop // block))
            block_slices = [
                slice(
                    max(samples.start - block_number * block, 0),
                    samples.stop - block_number * block,
                )
                for block_number in block_numbers
            ]
            block_samples = [
                draw(block_number)[block_slice, ...]
                for block_number, block_slice in zip(block_numbers, block_slices)
            ]
            return (
                block_samples[0]
                if len(block_samples) == 1
                else namespace(like).concat(block_samples, axis=0)
            )

        is_on_host = isinstance(like, np.ndarray)
        self._set_source(
            shape, like, read_ahead(shape[0], read) if is_on_host else read
        )

    def whole_blocks(self, chunks: Iterable[slice]) -> list[slice]:
        """Move the boundaries of sample slices (``chunks``) to those of blocks, which are drawn as a whole, so that no block
        is drawn twice in a pass.
        """
        longest_chunk = max((chunk.stop - chunk.start for chunk in chunks), default=1)
        samples_per_slice = max(1, longest_chunk // self.block) * self.block
        return [
            slice(start, min(start + samples_per_slice, len(self)))
            for start in range(0, len(self), samples_per_slice)
        ]


class NarrowInputs(StreamedInputs):
    """Inputs (n, T, D) stored in float32, with slices converted to float64 for computing.

    Parameters
    ----------
    stored : array (n, T, D)
        Inputs in float32.
    wide : dtype
        Data type of the slices.
    """

    def __init__(self, float32_inputs: Array, dtype: object) -> None:
        """Wrap inputs (n, T, D) in float32, whose slices are converted to ``dtype`` for computing."""
        self.stored = float32_inputs
        empty_array = namespace(float32_inputs).astype(float32_inputs[:0, ...], dtype)
        self._set_source(
            float32_inputs.shape,
            empty_array,
            lambda samples: float32_inputs[samples, ...],
        )
        self.itemsize = 4

    def __array__(self, *args: object, **kwargs: object) -> Host:
        """Return all samples as a NumPy array in float64."""
        return to_host_floats(self.stored)


def take_samples(model: Model, inputs: Array, samples: slice) -> Array:
    """Take the inputs of a slice of samples, for the model's ``forward`` and ``adjoint``.

    A model with the data type ``mixed`` reads what is stored in float32 as it is, where that is faster: on a device.
    """
    if (
        isinstance(inputs, NarrowInputs)
        and not isinstance(inputs.stored, np.ndarray)
        and "mixed" in model.capabilities.dtypes
    ):
        return inputs.stored[samples, ...]
    return inputs[samples, ...]


def fits_device_memory(byte_count: int, backend: Backend) -> bool:
    """Whether inputs of this size in bytes (``byte_count``) fit the memory of the backend's device."""
    free_bytes = backend.free_memory()
    return (
        free_bytes is None or byte_count <= SHARE_OF_MEMORY * chunk_scale() * free_bytes
    )


@functools.cache
def host_memory() -> int:
    """Memory of this machine in bytes."""
    import psutil

    return int(psutil.virtual_memory().total)


def redrawn_on_host(byte_count: int) -> bool:
    """Whether inputs of this size in bytes are drawn again whenever they are read, since the memory of the host would not hold
    them.
    """
    return (
        SHARE_OF_MEMORY * host_memory() < byte_count <= LARGEST_REDRAWN * host_memory()
    )


def sample_chunks(model: Model, inputs: Array, components: int) -> Iterable[slice]:
    """Split the samples of inputs (n, T, D) into slices, each small enough for one pass of the model (forward, posterior,
    adjoint) with P = ``components`` components.

    The model's ``chunks`` decides; it is told the bytes of a number and where the work is done, if it asks for them.
    ``components`` is P, or P times the number of students.
    """
    sample_count, _, dimension = inputs.shape
    is_streamed = isinstance(inputs, StreamedInputs)
    array_on_device = inputs.like if is_streamed else inputs
    chunk_options = {
        "itemsize": int(namespace(array_on_device).finfo(array_on_device.dtype).bits)
        // 8,
        "like": array_on_device,
        "streamed": is_streamed,
    }
    accepted_options = {
        option_name: option_value
        for option_name, option_value in chunk_options.items()
        if takes(model.chunks, option_name)
    }
    chunks: Iterable[slice] = model.chunks(
        sample_count, dimension, components, **accepted_options
    )
    return inputs.whole_blocks(chunks) if isinstance(inputs, DrawnInputs) else chunks


class Prefetch:
    """Double-buffered reader: returns the requested slice of samples and starts the transfer of the next one.

    An algorithm goes through the samples in slices of one length, and again from the beginning. Two slices are on the device
    at a time, three while the old one has not been let go of.

    Parameters
    ----------
    length : int
        Length of the host array's first axis.
    begin_transfer : callable
        ``begin_transfer(start, stop) -> (array, transfer)`` starts a transfer and does not wait for it.
    await_transfer : callable
        ``await_transfer(transfer)`` makes all that is computed from now on wait for it.
    """

    def __init__(
        self,
        length: int,
        begin_transfer: Callable[[int, int], tuple[Array, object]],
        await_transfer: Callable[[object], None],
    ) -> None:
        """Prepare to read from ``length`` samples, with functions that begin a transfer to the device (``begin_transfer``)
        and wait for it (``await_transfer``).
        """
        self._length = length
        self._begin_transfer = begin_transfer
        self._await_transfer = await_transfer
        self._prefetched: tuple[tuple[int, int], tuple[Array, object]] | None = None
        self._first_stop = 0

    def __call__(self, samples: slice) -> Array:
        """Return the samples of a slice once they have arrived on the device."""
        start, stop, _ = samples.indices(self._length)
        slice_bounds = (start, max(start, stop))
        next_transfer, self._prefetched = self._prefetched, None
        if next_transfer is not None:
            # Wait even if the slice is not used: its memory must not be reused while a transfer is running.
            self._await_transfer(next_transfer[1][1])
        if next_transfer is not None and next_transfer[0] == slice_bounds:
            array = next_transfer[1][0]
        else:
            array, transfer = self._begin_transfer(*slice_bounds)
            self._await_transfer(transfer)
        del next_transfer
        next_bounds = self._next_bounds(*slice_bounds)
        if next_bounds is not None:
            self._prefetched = next_bounds, self._begin_transfer(*next_bounds)
        return array

    def _next_bounds(self, start: int, stop: int) -> tuple[int, int] | None:
        """Return start and stop of the slice after this one; None if one slice covers all samples."""
        if start == 0:
            self._first_stop = stop
        if stop < self._length:
            return stop, min(2 * stop - start, self._length)
        return (0, self._first_stop) if 0 < self._first_stop < self._length else None


def read_ahead(length: int, read: Callable[[slice], Array]) -> Callable[[slice], Array]:
    """Reader of slices of ``length`` samples by the function ``read``, which reads the next slice in a thread meanwhile; slices
    are read one after the other.
    """
    executor = ThreadPoolExecutor(max_workers=1)

    def begin(start: int, stop: int) -> tuple[Future[Array], Future[Array]]:
        """Begin to read the samples from ``start`` to ``stop``."""
        future = executor.submit(read, slice(start, stop))
        return future, future

    prefetch = Prefetch(length, begin, lambda future: None)
    return lambda samples: prefetch(samples).result()


_LOCKED_HOSTS: set[int] = set()


def pinned_transfers(cupy: ModuleType, host: Host) -> Prefetch:
    """Reader of a host array with locked pages on a GPU (``cupy`` is the module CuPy), by transfers on a stream of their
    own.

    Raises the CUDA error if pages cannot be locked: limits of the system, memory that is not the process's own.
    """
    _lock_pages(cupy.cuda.runtime, host)
    stream = cupy.cuda.Stream(non_blocking=True)

    def begin_transfer(start: int, stop: int) -> tuple[Array, object]:
        """Start copying the samples from ``start`` to ``stop`` to the GPU; return their array and the event of its arrival."""
        array = cupy.empty((stop - start, *host.shape[1:]), dtype=host.dtype)
        # The pool may have returned memory that operations queued earlier still read.
        stream.wait_event(cupy.cuda.get_current_stream().record())
        array.set(host[start:stop], stream=stream)
        return array, stream.record()

    return Prefetch(
        len(host),
        begin_transfer,
        lambda event: cupy.cuda.get_current_stream().wait_event(event),
    )


def _lock_pages(runtime: ModuleType, host: Host) -> None:
    """Lock the pages of a host array in memory, once, until the array is deleted; ``runtime`` is CUDA's."""
    host_id, address = id(host), host.ctypes.data
    if host_id in _LOCKED_HOSTS:
        return
    runtime.hostRegister(address, host.nbytes, 0)
    _LOCKED_HOSTS.add(host_id)

    def unlock_pages() -> None:
        """Unlock the pages of the deleted array."""
        _LOCKED_HOSTS.discard(host_id)
        runtime.hostUnregister(address)

    # At exit the driver unlocks the pages itself, and may already be unloaded.
    weakref.finalize(host, unlock_pages).atexit = False
