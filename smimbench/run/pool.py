"""A pool of spawned processes without plugins of third parties, and Ctrl-C while they work: for theory, whose code is our own."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import TYPE_CHECKING, Any, TypeVar

from smimbench.registry.registry import Registry, set_registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from multiprocessing.connection import Connection

__all__ = ["InterruptBetween", "Pool"]

T = TypeVar("T")


class InterruptBetween:
    """Ctrl-C while processes work, raised only where no lock of theirs is held: anywhere else it could be held for ever."""

    POLL = 0.1
    """Seconds between two looks for Ctrl-C; doubled, it is heeded that much later."""

    def __enter__(self) -> InterruptBetween:
        self._pressed = False
        self._before: Any = None
        if threading.current_thread() is threading.main_thread():
            self._before = signal.getsignal(signal.SIGINT)
            if callable(self._before):
                signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(self, *_: object) -> None:
        if callable(self._before):
            signal.signal(signal.SIGINT, self._before)

    def _press(self, *_: object) -> None:
        self._pressed = True

    def wait(self, futures: Iterable[Future[Any]], patience: float = math.inf) -> set[Future[Any]]:
        """Futures that are done: at least one, or none if Ctrl-C was pressed meanwhile or after ``patience`` seconds."""
        begin = time.monotonic()
        while True:
            done, _ = wait(futures, timeout=self.POLL, return_when=FIRST_COMPLETED)
            if done or self._pressed or time.monotonic() - begin > patience:
                return done

    def heed(self) -> None:
        """What Ctrl-C would have done, if it was pressed."""
        if self._pressed:
            self._pressed = False
            self._before(signal.SIGINT, None)


class Pool:
    """Spawned processes with what ships and no other plugins, which end at once when they are left before their work is done."""

    def __init__(self, workers: int, threads: int) -> None:
        import multiprocessing
        from multiprocessing import resource_tracker

        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ.setdefault(name, str(threads))
        os.environ.setdefault("PYTHONSAFEPATH", "1")  # nothing of the working folder is imported
        context = multiprocessing.get_context("spawn")  # fork with threaded BLAS or CUDA hangs
        resource_tracker.ensure_running()  # it would unblock Ctrl-C in the middle of the first submit
        self._end, self._leash = context.Pipe(duplex=False)
        self._executor = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(self._end,))

    def submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """Hand out work; processes that this starts know no Ctrl-C from their first moment, it is the parent's business."""
        if not hasattr(signal, "pthread_sigmask"):
            return self._executor.submit(function, *arguments)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return self._executor.submit(function, *arguments)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._leash.close()
        self._executor.shutdown(cancel_futures=True)
        self._leash.close()
        self._end.close()


def _begin(leash: Connection) -> None:
    """First act of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=(leash,), daemon=True).start()
    set_registry(Registry(third_party=False))


def _end_with_parent(leash: Connection) -> None:
    """A parent that is killed cannot tell its workers, one that is interrupted does not wait for them.

    Without the first they would wait for work for ever.
    """
    import multiprocessing
    from multiprocessing.connection import wait as wait_for

    parent = multiprocessing.parent_process()
    if parent is not None:
        wait_for([parent.sentinel, leash])
        os._exit(1)
