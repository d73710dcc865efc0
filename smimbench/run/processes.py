"""Cells in spawned processes: a process that dies takes only its own cell with it, and Ctrl-C ends all of them."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any

from smimbench.registry.registry import Registry, set_registry
from smimbench.run.cell import lost_record, run_cell

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from multiprocessing.connection import Connection

    from smimbench.suite.cells import Cell

__all__ = ["in_processes"]


def in_processes(cells: Sequence[Cell], workers: int, threads: int, registry: Registry) -> Iterator[dict[str, Any]]:
    """Run in spawned processes; a process that dies takes only its own cell with it, after a second chance alone."""
    suspects: list[Cell] = []
    queue = list(cells)
    with _InterruptBetween() as interrupt:
        while queue:
            with _Pool(workers, threads, registry) as pool:
                running: dict[Future[dict[str, Any]], Cell] = {}
                try:
                    while queue or running:
                        # Two cells per process are enough to keep it busy, and little is in doubt when one dies.
                        while queue and len(running) < 2 * workers:
                            running[pool.submit(queue[0])] = queue[0]
                            del queue[0]
                        for future in interrupt.wait(running):
                            record = future.result()
                            del running[future]
                            yield record
                        interrupt.heed()
                except BrokenProcessPool:
                    suspects.extend(running.values())
        for cell in suspects:
            with _Pool(1, threads, registry) as pool:
                try:
                    future = pool.submit(cell)
                    while not interrupt.wait([future]):
                        interrupt.heed()
                    yield future.result()
                except BrokenProcessPool:
                    yield lost_record(cell, threads)
            interrupt.heed()


class _InterruptBetween:
    """Ctrl-C while processes work, raised only where no lock of theirs is held: anywhere else it could be held for ever."""

    POLL = 0.1
    """Seconds between two looks for Ctrl-C; doubled, it is heeded that much later."""

    def __enter__(self) -> _InterruptBetween:
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

    def wait(self, futures: Iterable[Future[Any]]) -> set[Future[Any]]:
        """Futures that are done: at least one, or none if Ctrl-C was pressed meanwhile."""
        while True:
            done, _ = wait(futures, timeout=self.POLL, return_when=FIRST_COMPLETED)
            if done or self._pressed:
                return done

    def heed(self) -> None:
        """What Ctrl-C would have done, if it was pressed."""
        if self._pressed:
            self._pressed = False
            self._before(signal.SIGINT, None)


class _Pool:
    """Spawned processes with the parent's plugins, which end at once when they are left before their work is done."""

    def __init__(self, workers: int, threads: int, registry: Registry) -> None:
        import multiprocessing
        from multiprocessing import resource_tracker

        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ.setdefault(name, str(threads))
        context = multiprocessing.get_context("spawn")  # fork with threaded BLAS or CUDA hangs
        resource_tracker.ensure_running()  # it would unblock Ctrl-C in the middle of the first submit
        self._threads = threads
        self._end, self._leash = context.Pipe(duplex=False)
        self._executor = ProcessPoolExecutor(
            workers, mp_context=context, initializer=_begin, initargs=(registry.paths, registry.third_party, self._end)
        )

    def submit(self, cell: Cell) -> Future[dict[str, Any]]:
        """Hand out a cell; processes that this starts know no Ctrl-C from their first moment, it is the parent's business."""
        if not hasattr(signal, "pthread_sigmask"):
            return self._executor.submit(_work, cell, self._threads)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return self._executor.submit(_work, cell, self._threads)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._leash.close()
        self._executor.shutdown(cancel_futures=True)
        self._leash.close()
        self._end.close()


def _begin(paths: tuple[str, ...], third_party: bool, leash: Connection) -> None:
    """First act of a worker: the same plugins as the parent's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=(leash,), daemon=True).start()
    set_registry(Registry(paths, third_party=third_party))


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


def _work(cell: Cell, threads: int) -> dict[str, Any]:
    return run_cell(cell, threads=threads)
