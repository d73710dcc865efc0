"""Runs cells on a Dask cluster; workers need smimbench and the same plugins, not the results folder.

Cells run in processes next to the Dask worker, one for each set of distributions, that are made for every run: code that
was changed since the worker started is loaded as it is now, and a plugin that crashes takes no worker with it.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from smimbench.backend import machine
from smimbench.backend.device import BackendError
from smimbench.files import error_line, unless
from smimbench.registry.registry import get_registry
from smimbench.run.cell import lost_record
from smimbench.run.executor import NO_LIMITS, Executor, Limits
from smimbench.run.processes import WORKER, cell_task, records_of
from smimbench.run.record import Record
from smimbench.suite.cells import Cell

PATIENCE = 60.0
"""Seconds without a scheduler, or without any worker that could run what is left; doubled, a cluster that is gone is noticed that
much later."""
LOST_ERRORS = ("KilledWorker", "CancelledError", "FutureCancelledError", "TimeoutError")
"""Names of errors of a cell that went with its worker or its scheduler, and may be sent again."""
IDLE_TIMEOUT = 20.0
"""Seconds without a cell after which the process next to a Dask worker is ended; doubled, its memory is held that much longer."""
DEVICES = ("cupy",)
"""Backends whose cells ask a worker for the resource ``GPU``."""


def on_dask(
    cells: Sequence[Cell], address: str, threads: int, limits: Limits = NO_LIMITS
) -> Iterator[Record]:
    """Run cells on the Dask cluster whose scheduler is at ``address``, with this number of BLAS ``threads`` each, within
    time and memory ``limits``; a cell whose worker dies is tried again elsewhere and fails after that.

    Raises
    ------
    BackendError
        If Dask is not installed, the scheduler does not answer or goes away, or no worker is there for ``PATIENCE`` seconds.
    """
    try:
        from distributed import Client
    except ImportError:
        raise BackendError(
            "dask: Dask is not installed; run pip install 'smimbench[dask]'"
        ) from None
    for logger_name in ("distributed", *logging.root.manager.loggerDict):
        # Errors are reported below, in one line each, instead of by Dask's loggers.
        if logger_name.partition(".")[0] == "distributed":
            logging.getLogger(logger_name).setLevel(logging.CRITICAL)
    client, error = _call_dask(Client, address, timeout=10)
    if error is not None:
        raise BackendError(
            f"dask: no scheduler answers at {address} ({error_line(error)})"
        )
    cluster_monitor = _ClusterMonitor(client, address)
    run_id = uuid.uuid4().hex
    finished_futures: queue.Queue[Any] = queue.Queue()
    running_cells: dict[Any, tuple[Cell, int]] = {}
    client_version = machine.versions().get("smimbench")
    plugin_paths = get_registry().paths

    def send(cell: Cell, attempt: int) -> None:
        """Submit a cell (run) to the cluster for the given attempt, counted from 1."""
        future = client.submit(
            _run_on_worker,
            cell,
            threads,
            plugin_paths,
            cell.distributions(),
            client_version,
            limits,
            run_id,
            key=f"smimbench-{cell.key}-{attempt}",
            pure=False,
            resources={"GPU": 1} if cell.backend in DEVICES else None,
        )
        running_cells[future] = (cell, attempt)
        future.add_done_callback(finished_futures.put)

    try:
        for cell in cells:
            send(cell, 1)
        while running_cells and not limits.is_over:
            future = unless(queue.Empty, finished_futures.get, True, 1.0)
            if future is None:
                cluster_monitor.require_workers(
                    {cell.backend in DEVICES for cell, _ in running_cells.values()}
                )
            if future not in running_cells:
                continue
            cell, attempt = running_cells.pop(future)
            record, error = _record_or_error(future)
            if error is None:
                yield record
            elif type(error).__name__ in LOST_ERRORS and attempt < 5:
                # Dask itself has already tried other workers. A moment later it is known whether the worker or the scheduler
                # was lost.
                time.sleep(1.0)
                if cluster_monitor.workers() is None:
                    raise cluster_monitor.scheduler_lost_error()
                send(cell, attempt + 1)
            else:
                reason = f"the cluster lost the cell: {error_line(error)}"
                yield lost_record(cell, threads, reason)
    finally:
        for future in running_cells:
            _call_dask(future.cancel)
        # All results are stored: it is no failure if the cluster is gone by now.
        _call_dask(client.close, timeout=2)


def _call_dask(
    function: Any, *arguments: Any, **keyword_options: Any
) -> tuple[Any, BaseException | None]:
    """Call a ``function`` of Dask with these arguments and options, and return (result, None) or (None, error); it has many
    errors for the loss of a cluster.
    """
    try:
        return function(*arguments, **keyword_options), None
    except (Exception, asyncio.CancelledError) as error:
        # The caller decides whether the cluster was lost or something else is wrong.
        return None, error


def _record_or_error(future: Any) -> tuple[Any, BaseException | None]:
    """Return the record that a worker sent (Dask's ``future``), or the error due to which there is none."""
    if future.status == "error":
        return None, future.exception()
    if future.status != "finished":
        return None, TimeoutError(f"the task is {future.status}")
    # The worker may have died since, with the result.
    record, error = _call_dask(future.result, timeout=PATIENCE / 4)
    if error is None or type(error).__name__ in LOST_ERRORS:
        return record, error
    return None, TimeoutError(error_line(error))


class _ClusterMonitor:
    """Monitors a Dask cluster and detects that its scheduler or all workers that could run the cells are gone."""

    def __init__(self, client: Any, address: str) -> None:
        """Monitor the cluster of this Dask client, whose scheduler is at ``address``."""
        self._client = client
        self._address = address
        self._last_seen = time.monotonic()

    def scheduler_lost_error(self) -> BackendError:
        """Return the error for a scheduler that does not respond."""
        return BackendError(
            f"dask: the scheduler at {self._address} does not respond any more; finished cells are stored"
        )

    def workers(self) -> dict[str, dict[str, Any]] | None:
        """Return the workers of the scheduler, or None if it does not respond."""
        if self._client.status != "running":
            return None
        scheduler, error = _call_dask(self._client.scheduler_info, n_workers=-1)
        if isinstance(error, TypeError):  # older versions give all of them
            scheduler, error = _call_dask(self._client.scheduler_info)
        return None if error is not None else scheduler["workers"]

    def require_workers(self, needs_gpu: set[bool]) -> None:
        """Raise BackendError if the scheduler or all suitable workers have been unavailable for too long; ``needs_gpu`` holds,
        for the unfinished cells (runs), whether they need a GPU (True, False or both).
        """
        workers = self.workers()
        worker_resources = [
            worker.get("resources") or {} for worker in (workers or {}).values()
        ]
        if any(
            False in needs_gpu or "GPU" in worker_resource
            for worker_resource in worker_resources
        ):
            self._last_seen = time.monotonic()
        if time.monotonic() - self._last_seen <= PATIENCE:
            return
        if workers is None:
            raise self.scheduler_lost_error()
        gpu_hint = ' with the resource GPU (dask worker --resources "GPU=1")'
        raise BackendError(
            f"dask: no worker{gpu_hint if workers else ''} at {self._address} for {PATIENCE:.0f} s; finished cells are stored"
        )


def _run_on_worker(
    cell: Cell,
    threads: int,
    plugin_paths: tuple[str, ...],
    distributions: frozenset[str],
    client_version: str | None,
    limits: Limits,
    run_id: str,
) -> Record:
    """Run a cell in a separate process on the machine of a Dask worker, with this number of BLAS ``threads`` and within
    ``limits``. ``distributions`` are third-party packages that it needs, ``plugin_paths`` files of plugins,
    ``client_version`` is that of smimbench on the machine that sent the cell, ``run_id`` identifies the run.
    """
    installed_version = machine.versions().get("smimbench")
    if installed_version != client_version:
        reason = f"the worker has smimbench {installed_version}, the client {client_version}; install the same"
        return lost_record(cell, threads, reason)
    registry = SimpleNamespace(paths=plugin_paths, foreign_path=set())
    executor = _take_idle_process(run_id) or Executor(
        1, threads, registry, WORKER, timing=False
    )
    (ended_task,) = executor.run(
        [cell_task([cell], distributions)], Limits(limits.seconds, limits.memory)
    )
    _keep_idle_process(run_id, executor)
    (record,) = records_of(ended_task, threads)
    return record


# -- idle processes next to a Dask worker -------------------------------------------------------------------------------------

_IDLE: dict[Executor, tuple[str, threading.Timer]] = {}
"""Each with its run, as other runs may have different code. Popping is atomic, so a thread has its process to itself."""


def _take_idle_process(run_id: str) -> Executor | None:
    """Take an idle process, started earlier for this run, or return None if there is none."""
    for executor, (owner_run_id, timer) in list(_IDLE.items()):
        if owner_run_id == run_id and _IDLE.pop(executor, None) is not None:
            timer.cancel()
            return executor
    return None


def _keep_idle_process(run_id: str, executor: Executor) -> None:
    """Keep a process (pool of one, ``executor``) idle for the next cell of its run; it ends after a while if none comes."""

    def end_if_idle() -> None:
        """Kill the process unless a cell has taken it meanwhile."""
        if _IDLE.pop(executor, None) is not None:
            executor.end()

    timer = threading.Timer(IDLE_TIMEOUT, end_if_idle)
    timer.daemon = True
    _IDLE[executor] = run_id, timer
    timer.start()
