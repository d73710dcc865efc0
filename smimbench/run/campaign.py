"""Cells to records: what is missing is run, in this process or in spawned workers, and stored as it finishes."""

from __future__ import annotations

import functools
import math
import os
import signal
import threading
import time
import traceback
import warnings
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.backend import machine
from smimbench.backend.device import Backend, BackendError, get_backend
from smimbench.backend.roofline import ceilings, remembered
from smimbench.backend.streaming import StreamedInputs
from smimbench.problem.problem import Instance, Problem
from smimbench.problem.seeds import seed_sequence
from smimbench.registry.parameters import build
from smimbench.registry.registry import Registry, get_registry, set_registry
from smimbench.run.loop import Attempt, LoopSettings, Status, run_algorithm
from smimbench.suite.reader import Cell, Suite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from multiprocessing.connection import Connection

    from smimbench.interfaces import Data, Model, Start
    from smimbench.run.store import Store

__all__ = ["Estimate", "estimate_cost", "missing_cells", "run_cell", "run_cells"]

INFORMED_OVERLAP = 0.9


def run_cell(
    cell: Cell, *, timing: bool = False, threads: int = 1, registry: Registry | None = None
) -> dict[str, Any]:
    """Run one cell and report whatever happens: a record always comes back.

    Parameters
    ----------
    timing : bool
        Whether the times may be trusted (serial, fixed threads, a warm-up of the same shape before the clock starts).
    threads : int
        BLAS threads.
    """
    registry = registry or get_registry()
    record: dict[str, Any] = {
        "key": cell.key,
        "cell": cell.identity(),
        "problem": cell.problem_label,
        "algorithm": cell.algorithm_label,
    }
    started = time.time()
    _forget_other_instances(cell)
    machine.reset_peak_memory()
    try:
        with warnings.catch_warnings(record=True) as caught, machine.blas_threads(threads):
            warnings.simplefilter("always")
            record.update(_run(cell, registry, timing))
        raised = [f"{w.category.__name__}: {' '.join(str(w.message).split())}" for w in caught]
        record["warnings"] = list(dict.fromkeys([*record.get("warnings", []), *raised]))
    except (
        Exception,
        SystemExit,
    ) as error:  # the algorithm or a plugin may raise anything; siblings must go on
        record.update(
            status=Status.FAILED.value,
            reason=f"{type(error).__name__}: {' '.join(str(error).split()) or 'no message'}",
            traceback=traceback.format_exc(),
        )
    record.setdefault("metrics", {})
    record["timing"] = {
        **record.get("timing", {}),
        "trusted": timing and "timing" in record,
        "machine": machine.fingerprint(),
        "threads": threads,
        "load": _load(),
        "ceilings": remembered(cell.backend, threads) if "timing" in record else None,
        "peak_memory": machine.peak_memory(),
        "started": started,
        "total_seconds": time.time() - started,
    }
    record["machine"] = machine.machine_info()
    record["versions"] = machine.versions()
    return record


def _run(cell: Cell, registry: Registry, timing: bool) -> dict[str, Any]:
    problem, algorithm = cell.rebuild(registry)
    refuses = getattr(algorithm, "refuses", None)
    reason = refuses(problem) if refuses else None
    if reason:
        return {"status": Status.SKIPPED.value, "reason": reason}
    backend = get_backend(cell.backend, cell.dtype, tf32=cell.tf32)
    instance = _instance(cell, problem, backend)
    computed = cell.start not in ("uninformed", "informed")
    if timing and computed:
        _start(cell, problem, instance, backend, registry)
    stop = backend.stopwatch()
    start = _start(cell, problem, instance, backend, registry)
    # An informed start is a gift of the engine; a computed one is part of what the algorithm does, and of its time.
    head_start = stop().seconds if computed else 0.0
    backend.release()
    data = instance.data(backend, start)

    def make_rng(attempt: int) -> np.random.Generator:
        sequence = _seed(cell, problem, "initialisation", _json_key(cell.algorithm), str(attempt))
        return np.random.Generator(np.random.PCG64DXSM(sequence))

    settings = LoopSettings(cell.tolerance, cell.max_iterations, cell.timeout, head_start)
    if timing:
        algorithm.step(problem, data, algorithm.init(problem, data, make_rng(0)))
    result = run_algorithm(problem, instance, data, algorithm, make_rng, settings, backend)
    attempt = result.attempt
    if attempt.status is not Status.DIVERGED and attempt.estimate is not None:
        attempt.metrics.update(_prediction_errors(cell, problem, instance, attempt))
    durations = attempt.iteration_seconds
    return {
        "status": attempt.status.value,
        "reason": attempt.reason,
        "metrics": attempt.metrics,
        "sample_ratio": instance.sample_ratio,
        "samples": int(instance.inputs.shape[0]),
        "placement": {
            "drawn": "device" if cell.draw == "device" and backend.accelerated else "host",
            "inputs": "streamed" if isinstance(data.inputs, StreamedInputs) else "resident",
        },
        "iterations": attempt.iterations,
        "restarts": result.restarts,
        "restart_reason": result.restart_reason,
        "final": attempt.final,
        "warnings": attempt.warnings,
        "trajectory": attempt.trajectory,
        "timing": {
            "seconds": attempt.seconds,
            "lost_seconds": result.lost_seconds,
            "cpu_seconds": attempt.cpu_seconds,
            "cost": _cost(algorithm, problem, data),
            "device_seconds": attempt.device_seconds,
            "device_peak_memory": backend.peak_memory(),
            "first_iteration": durations[0] if durations else None,
            "per_iteration": float(np.median(durations[1:])) if len(durations) > 1 else None,
        },
    }


def _prediction_errors(
    cell: Cell, problem: Problem, instance: Instance, attempt: Attempt
) -> dict[str, list[float]]:
    """Generalisation errors of the final estimate, where the suite asks for them: outside the clock, on the host."""
    wanted = [m for m in cell.metrics if m.startswith("generalization_error_")]
    if not wanted:
        return {}
    from smimbench.backend.arrays import to_host
    from smimbench.theory.generalization import measured_error

    estimate = np.asarray(to_host(attempt.estimate), dtype=float)
    inner = problem.model.inner
    V = None if attempt.V is None else np.asarray(to_host(attempt.V), dtype=float)
    signal = instance.signal
    found = measured_error(
        problem, inner(signal, signal), inner(signal, estimate), inner(estimate, estimate), V
    )
    if "bayes" not in found and "generalization_error_bayes" in wanted:
        attempt.warnings.append(
            "it claims no error of its own, so the Bayes predictor is the plug-in predictor"
        )
        found["bayes"] = found["plugin"]
    return {name: [found[name.removeprefix("generalization_error_")].value] for name in wanted}


def _cost(algorithm: Any, problem: Problem, data: Data) -> dict[str, float] | None:
    """What an iteration has to do, for algorithms that say so."""
    ask = getattr(algorithm, "cost", None)
    found = ask(problem, data) if ask is not None else None
    return None if found is None else {"flops": float(found.flops), "bytes": float(found.bytes)}


_LATEST: dict[str, Instance] = {}


def _instance(cell: Cell, problem: Problem, backend: Backend) -> Instance:
    """The instance of a cell; the latest one is kept, because the algorithms of a suite share it."""
    name = _instance_name(cell)
    if name not in _LATEST:
        device = backend if cell.draw == "device" and backend.accelerated else None
        where = (cell.alpha, cell.dimension, cell.replicate)
        _LATEST[name] = problem.instance(*where, seed=cell.seed, dtype=cell.dtype, device=device)
    return _LATEST[name]


def _instance_name(cell: Cell) -> str:
    where = cell.backend if cell.draw == "device" else "host"
    return _json_key([cell.problem, cell.alpha, cell.dimension, cell.replicate, cell.seed, cell.dtype, where])


def _forget_other_instances(cell: Cell) -> None:
    """Free the instance of another cell before anything is drawn: two large ones would not fit side by side."""
    name = _instance_name(cell)
    for other in [key for key in _LATEST if key != name]:
        del _LATEST[other]


def _start(
    cell: Cell, problem: Problem, instance: Instance, backend: Backend, registry: Registry
) -> Start | None:
    """Where the algorithm begins: nothing (its own choice), a noisy teacher, or what another algorithm finds."""
    if cell.start == "uninformed":
        return None
    rng = np.random.default_rng(_seed(cell, problem, "initialisation", "start"))
    if cell.start == "informed":
        # In units of the noise: information q / (1 - q) gives a Gaussian prior the overlap q.
        return problem.start(instance, INFORMED_OVERLAP / (1 - INFORMED_OVERLAP), rng, backend, informed=True)
    entry = registry.get("algorithm", cell.start, problem.model.name)
    found: Start = build(entry.item, "algorithm", {}).start(problem, instance.data(backend), rng)
    return found


def _seed(cell: Cell, problem: Problem, stream: str, *extra: str) -> np.random.SeedSequence:
    return seed_sequence(
        cell.seed, problem.identity, cell.alpha, cell.dimension, cell.replicate, stream, *extra
    )


def _json_key(value: Any) -> str:
    from smimbench.files import canonical_json

    return canonical_json(value)


def _load() -> float | None:
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


# -- many cells ---------------------------------------------------------------------------------------------------


def missing_cells(
    cells: Sequence[Cell], records: dict[str, dict[str, Any]], *, timing: bool = False
) -> list[Cell]:
    """Cells without a record; in timing mode, without trusted times of this machine."""
    suffix = f".timing-{machine.fingerprint()}" if timing else ""
    timed = {stem.partition(".")[0] for stem in records}
    return [c for c in cells if (f"{c.key}{suffix}" not in records if timing else c.key not in timed)]


def run_cells(
    cells: Sequence[Cell],
    store: Store,
    *,
    workers: int = 1,
    timing: bool = False,
    threads: int = 1,
    registry: Registry | None = None,
    dask: str | None = None,
    on_record: Callable[[dict[str, Any]], None] | None = None,
) -> list[dict[str, Any]]:
    """Run cells and store each as it finishes.

    Parameters
    ----------
    workers : int
        Processes (spawned); 1 runs in this process. Timing mode is always serial.
    dask : str or None
        Address of a Dask scheduler whose workers run the cells; they need smimbench and the same plugins, not the
        results folder.
    on_record : callable
        Called with every record.

    Raises
    ------
    BackendError
        If Dask is not installed or the scheduler does not answer.
    """
    registry = registry or get_registry()
    records = []
    workers = 1 if timing else min(workers, len(cells))
    if timing:  # a time that is trusted can also be judged
        for backend in sorted({cell.backend for cell in cells}):
            ceilings(backend, threads)
    source: Iterator[dict[str, Any]]
    if dask is not None:
        source = _on_dask(cells, dask, threads, registry)
    elif workers <= 1:
        source = (run_cell(c, timing=timing, threads=threads, registry=registry) for c in cells)
    else:
        source = _in_processes(cells, workers, threads, registry)
    for record in source:
        store.write(record)
        records.append(record)
        if on_record:
            on_record(record)
    store.sync()
    return records


def _in_processes(
    cells: Sequence[Cell], workers: int, threads: int, registry: Registry
) -> Iterator[dict[str, Any]]:
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
                    yield _dead(cell, threads)
            interrupt.heed()


def _on_dask(
    cells: Sequence[Cell], address: str, threads: int, registry: Registry
) -> Iterator[dict[str, Any]]:
    """Run on a Dask cluster. A cell whose worker dies is tried again elsewhere by Dask, and is a failed cell in the end."""
    try:
        from distributed import Client, as_completed
    except ImportError:
        raise BackendError("dask: is not installed; pip install 'smimbench[dask]'") from None
    try:
        client = Client(address, timeout=10)
    except (OSError, ValueError) as error:
        raise BackendError(f"dask: no scheduler answers at {address} ({error})") from None
    with client:
        waiting = {
            client.submit(
                _work_anywhere,
                cell,
                threads,
                registry.paths,
                registry.third_party,
                key=f"smimbench-{cell.key}",
                pure=False,
            ): cell
            for cell in cells
        }
        for future in as_completed(waiting):
            failure = future.exception()
            yield (
                future.result()
                if failure is None
                else _dead(waiting[future], threads, f"the cluster lost it: {failure!r}")
            )


def _work_anywhere(cell: Cell, threads: int, paths: tuple[str, ...], third_party: bool) -> dict[str, Any]:
    return run_cell(cell, threads=threads, registry=_same_registry(paths, third_party))


@functools.lru_cache(maxsize=1)
def _same_registry(paths: tuple[str, ...], third_party: bool) -> Registry:
    """The registry of the sender, made once per worker process."""
    registry = Registry(paths, third_party=third_party)
    set_registry(registry)
    return registry


class _InterruptBetween:
    """Ctrl-C while processes work, raised only where no lock of theirs is held: anywhere else it could be held for ever."""

    POLL = 0.1

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
            workers,
            mp_context=context,
            initializer=_begin,
            initargs=(registry.paths, registry.third_party, self._end),
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


def _dead(
    cell: Cell, threads: int, reason: str = "the worker process died (out of memory, or killed)"
) -> dict[str, Any]:
    return {
        "key": cell.key,
        "cell": cell.identity(),
        "problem": cell.problem_label,
        "algorithm": cell.algorithm_label,
        "status": Status.FAILED.value,
        "reason": reason,
        "metrics": {},
        "timing": {"trusted": False, "machine": machine.fingerprint(), "threads": threads},
        "machine": machine.machine_info(),
        "versions": machine.versions(),
    }


# -- cost ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Estimate:
    """What a run is expected to cost."""

    cells: int
    seconds: float
    peak_bytes: int


def estimate_cost(cells: Sequence[Cell], workers: int) -> Estimate:
    """Rough cost before anything is drawn: matrix products at the rate measured now, and the size of the inputs.

    Integrals of channels without a closed form come on top and are not known beforehand.
    """
    rate = _gemm_rate()
    seconds, peak = 0.0, 0
    registry = get_registry()
    for identity, group in _grouped(cells):
        problem, algorithm = group[0].rebuild(registry)
        model = problem.model
        for cell in group:
            n = model.sample_count(cell.alpha, cell.dimension)
            signal = int(np.prod(model.signal_shape(problem.components, cell.dimension)))
            batch = min(n, getattr(algorithm, "batch", None) or n)
            products = 4.0 * batch * model.tokens * signal
            products += model.denoiser_flops(cell.dimension, problem.components)
            epochs = (getattr(algorithm, "epochs", None) or 0) * math.ceil(n / batch)
            steps = getattr(algorithm, "steps", None) or epochs or min(cell.max_iterations, 60)
            products *= getattr(algorithm, "students", 1)
            seconds += steps * (products / rate + 2e-4)
            peak = max(peak, _memory(model, cell))
        del identity
    return Estimate(len(cells), seconds / max(1, workers), peak * max(1, workers))


def memory_of_a_cell(cells: Sequence[Cell]) -> int:
    """Bytes that the largest of the cells takes, its process included."""
    registry = get_registry()
    return max(
        (
            _memory(group[0].rebuild(registry)[0].model, cell)
            for _, group in _grouped(cells)
            for cell in group
        ),
        default=0,
    )


def _memory(model: Model, cell: Cell) -> int:
    width = 8 if cell.dtype == "float64" else 4
    numbers = model.sample_count(cell.alpha, cell.dimension) * model.tokens * cell.dimension
    return int(1.1 * width * numbers) + 150 * 2**20


def _grouped(cells: Sequence[Cell]) -> list[tuple[str, list[Cell]]]:
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(_json_key([cell.problem, cell.algorithm]), []).append(cell)
    return list(groups.items())


def _gemm_rate() -> float:
    a = np.ones((256, 256))
    with machine.blas_threads(1):
        a @ a
        begin = time.perf_counter()
        for _ in range(4):
            a @ a
        return 4 * 2 * 256**3 / (time.perf_counter() - begin)


def shared_document(suite: Suite) -> dict[str, Any]:
    """What ``run.json`` holds."""
    return {
        "suite": suite.name,
        "title": suite.title,
        "text": suite.text,
        "overrides": list(suite.overrides),
        "only": [f"{k}={v}" for k, v in suite.only],
        "run": asdict(suite.run),
        "versions": machine.versions(),
        "machine": machine.machine_info(),
        "fingerprint": machine.fingerprint(),
        "git_commit": machine.git_commit(),
        "written": time.time(),
    }
