"""Prefetching: transfer of the next slice of a host array to the device while the current one is in use."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import ModuleType

from smimbench.interfaces import Array, Host


class Prefetch:
    """Double-buffered reader: returns the requested slice of samples and starts the transfer of the next one.

    An algorithm goes through the samples in slices of one length, and again from the beginning. Two slices are on the device
    at a time, three while the old one has not been let go of.

    Parameters
    ----------
    length : int
        Length of the host array's first axis.
    begin : callable
        ``begin(start, stop) -> (array, ticket)`` starts a transfer and does not wait for it.
    finish : callable
        ``finish(ticket)`` makes all that is computed from now on wait for it.
    """

    def __init__(
        self,
        length: int,
        begin: Callable[[int, int], tuple[Array, object]],
        finish: Callable[[object], None],
    ) -> None:
        self._length, self._begin, self._finish = length, begin, finish
        self._ahead: tuple[tuple[int, int], tuple[Array, object]] | None = None
        self._first = 0

    def __call__(self, samples: slice) -> Array:
        """Return the samples of a slice once they have arrived on the device."""
        start, stop, _ = samples.indices(self._length)
        bounds = (start, max(start, stop))
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            # Even if the slice is not used: its memory must not be reused while a transfer is running.
            self._finish(ahead[1][1])
        if ahead is not None and ahead[0] == bounds:
            array = ahead[1][0]
        else:
            array, ticket = self._begin(*bounds)
            self._finish(ticket)
        del ahead
        following = self._following(*bounds)
        if following is not None:
            self._ahead = following, self._begin(*following)
        return array

    def _following(self, start: int, stop: int) -> tuple[int, int] | None:
        """Return the slice after this one; None if one slice covers all samples."""
        if start == 0:
            self._first = stop
        if stop < self._length:
            return stop, min(2 * stop - start, self._length)
        return (0, self._first) if 0 < self._first < self._length else None


_PINNED: set[int] = set()


def pinned_transfers(cupy: ModuleType, host: Host) -> Prefetch:
    """Transfers to a GPU from a host array with locked pages, on a stream of their own.

    Raises the CUDA error if pages cannot be locked: limits of the system, memory that is not the process's own.
    """
    _pin(cupy.cuda.runtime, host)
    stream = cupy.cuda.Stream(non_blocking=True)

    def begin(start: int, stop: int) -> tuple[Array, object]:
        array = cupy.empty((stop - start, *host.shape[1:]), dtype=host.dtype)
        # The pool may have given memory that is still read by what has been queued so far.
        stream.wait_event(cupy.cuda.get_current_stream().record())
        array.set(host[start:stop], stream=stream)
        return array, stream.record()

    return Prefetch(
        len(host), begin, lambda event: cupy.cuda.get_current_stream().wait_event(event)
    )


def _pin(runtime: ModuleType, host: Host) -> None:
    name, address = id(host), host.ctypes.data
    if name in _PINNED:
        return
    runtime.hostRegister(address, host.nbytes, 0)
    _PINNED.add(name)

    def unpin() -> None:
        _PINNED.discard(name)
        runtime.hostUnregister(address)

    # At exit the driver unlocks the pages itself, and may already be unloaded.
    weakref.finalize(host, unpin).atexit = False
