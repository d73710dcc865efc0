"""Transfers that overlap with computing: in the right order, never into memory that is still used, pinned once."""

import types
import weakref

import numpy as np

from smimbench.backend import streaming
from smimbench.backend.streaming import Prefetch, pinned_transfers


class Queue:
    """A device that copies when it is told to wait for it, and remembers the order."""

    def __init__(self, host):
        self.host, self.log, self.alive = host, [], weakref.WeakSet()
        self.most = 0

    def begin(self, start, stop):
        self.log.append(("begin", start, stop))
        array = np.full((stop - start, *self.host.shape[1:]), np.nan).view(Weak)
        self.alive.add(array)
        self.most = max(self.most, len(self.alive))
        return array, (start, stop, weakref.ref(array))

    def finish(self, ticket):
        start, stop, array = ticket
        self.log.append(("finish", start, stop))
        assert array() is not None, (
            "the memory was given back before the numbers had arrived"
        )
        array()[...] = self.host[start:stop]


class Weak(np.ndarray):
    """Arrays that can be members of a weak set."""

    __hash__ = object.__hash__

    def __eq__(self, other):
        return self is other


def reader(n=10):
    queue = Queue(np.arange(3.0 * n).reshape(n, 3))
    return queue, Prefetch(n, queue.begin, queue.finish)


def test_every_slice_is_what_was_asked_for():
    queue, read = reader()
    for part in ((0, 4), (4, 8), (8, 10), (0, 4), (2, 3), (9, 10), (0, 10), (5, 5)):
        np.testing.assert_array_equal(
            np.asarray(read(slice(*part))), queue.host[slice(*part)]
        )


def test_the_next_slice_sets_out_before_the_first_is_used_and_after_the_end_the_first():
    queue, read = reader()
    passes = [slice(0, 4), slice(4, 8), slice(8, 10)]
    for part in passes * 3:
        array = read(part)
        assert queue.log[-1][0] == "begin"
        del array
    begun = [entry[1:] for entry in queue.log if entry[0] == "begin"]
    order = [(0, 4), (4, 8), (8, 10)]
    assert begun == order * 3 + [(0, 4)], "each is moved once a pass"
    assert queue.most <= 3


def test_what_nobody_asked_for_is_waited_for_before_it_is_let_go():
    queue, read = reader()
    read(slice(0, 4))
    read(slice(6, 7))
    assert queue.log[:4] == [
        ("begin", 0, 4),
        ("finish", 0, 4),
        ("begin", 4, 8),
        ("finish", 4, 8),
    ]


def test_one_slice_of_all_is_not_moved_twice():
    queue, read = reader()
    read(slice(0, 10))
    assert [entry[0] for entry in queue.log] == ["begin", "finish"]


def test_pages_are_locked_once_and_released_with_the_array():
    log = []

    class Stream:
        def __init__(self, non_blocking=False):
            self.side = non_blocking

        def record(self):
            log.append(("record", self.side))
            return self.side

        def wait_event(self, event):
            log.append(("wait", self.side, event))

    class There(np.ndarray):
        def set(self, host, stream):
            log.append(("copy", stream.side))
            self[...] = host

    main = Stream()
    runtime = types.SimpleNamespace(
        hostRegister=lambda address, size, flags: log.append(("pin", size, flags)),
        hostUnregister=lambda address: log.append(("unpin",)),
    )
    cuda = types.SimpleNamespace(
        runtime=runtime, Stream=Stream, get_current_stream=lambda: main
    )
    cupy = types.SimpleNamespace(
        cuda=cuda, empty=lambda shape, dtype: np.empty(shape, dtype).view(There)
    )
    host = np.arange(24.0).reshape(6, 4)
    first, second = pinned_transfers(cupy, host), pinned_transfers(cupy, host)
    assert log == [("pin", host.nbytes, 0)]
    np.testing.assert_array_equal(np.asarray(first(slice(0, 3))), host[:3])
    one = [("record", False), ("wait", True, False), ("copy", True), ("record", True)]
    # The side stream waits for what is queued, the main one for the copy; then the next one sets out.
    assert log[1:] == [*one, ("wait", False, True), *one]
    del first, second, host
    assert log[-1] == ("unpin",)
    assert not streaming._LOCKED_HOSTS
