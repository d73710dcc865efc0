"""One cell to one record: draw the instance, start and run the algorithm, catch errors and lack of memory; whatever
happens, a record comes back.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import time
import traceback
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smimbench.backend import machine
from smimbench.backend.device import Backend, BackendError, get_backend
from smimbench.backend.memory import cautious
from smimbench.backend.roofline import remembered
from smimbench.backend.streaming import DrawnInputs, NarrowInputs, StreamedInputs
from smimbench.files import canonical_json, error_line, error_place, printable
from smimbench.problem.instance import Instance
from smimbench.problem.problem import Problem
from smimbench.problem.seeds import seed_sequence
from smimbench.registry.adapters import refusal
from smimbench.registry.parameters import build
from smimbench.registry.registry import Registry, get_registry
from smimbench.run.clock import running
from smimbench.run.loop import LoopResult, LoopSettings, Status, run_algorithm
from smimbench.run.record import LONGEST, check_types, plain
from smimbench.suite.cells import Cell
from smimbench.suite.schema import STARTS

if TYPE_CHECKING:
    from smimbench.interfaces import Data, Start

__all__ = ["INFORMED_OVERLAP", "is_user_interrupt", "lost_record", "run_cell"]

INFORMED_OVERLAP = 0.9
"""Overlap with the teacher of an informed start; nearer to 1 the informed branch is followed from further inside."""
MOST_TRIES = 6
"""Runs of a cell that runs out of the memory of its device, with chunks half as large each time; one more: half of that."""


def run_cell(cell: Cell, *, timing: bool = False, threads: int = 1, registry: Registry | None = None) -> dict[str, Any]:
    """Run one cell and report whatever happens: a record always comes back.

    Parameters
    ----------
    timing : bool
        Whether the times may be trusted (serial, fixed threads, a warm-up of the same shape before the clock starts).
    threads : int
        BLAS threads.
    """
    registry = registry or get_registry()
    started, tries, lost = time.time(), 0, 0.0
    _forget_other_instances(cell)
    machine.reset_peak_memory()
    while True:
        # Whatever a try holds has to be gone before the next: nothing of an error may outlive its clause.
        try:
            with warnings.catch_warnings(record=True) as caught, machine.blas_threads(threads), cautious(0.5**tries):
                warnings.simplefilter("always")
                found = _run_prepared(_prepare_cell(cell, registry, timing))
            if tries and "placement" in found:
                found["placement"]["tries"] = tries + 1
                said = f"the device ran out of memory: run again with chunks of 1/{2**tries} of their usual size"
                found["warnings"] = [*found["warnings"], said]
                found["timing"]["lost_seconds"] += lost
            raised = [f"{w.category.__name__}: {' '.join(printable(w.message, 2000).split())}" for w in caught]
            found["warnings"] = _different([*found.get("warnings", []), *raised])
            return _whole_record(cell, found, threads, started, timing=timing)
        except BaseException as error:  # the algorithm or a plugin may raise anything
            if is_user_interrupt(error):
                raise
            tries += 1
            trace = printable("".join(traceback.format_exception(error)), LONGEST)
            failure = {"reason": error_line(error), "where": error_place(error), "traceback": trace}
            again = tries < MOST_TRIES and _ran_out(cell, error)
        _LATEST.clear()  # whoever raised may have written into it
        if not again:
            return _whole_record(cell, {"status": Status.FAILED.value, **failure}, threads, started, timing=timing)
        gc.collect()
        get_backend(cell.backend, cell.run.dtype, tf32=cell.run.tf32).release()
        lost = time.time() - started


def _ran_out(cell: Cell, error: BaseException) -> bool:
    """Whether the memory of the device of a cell did not suffice."""
    if isinstance(error, BackendError):  # it is not there
        return False
    return get_backend(cell.backend, cell.run.dtype, tf32=cell.run.tf32).ran_out(error)


def is_user_interrupt(error: BaseException) -> bool:
    """Whether it is the user's Ctrl-C; a worker has that ignored, so there it is a plugin's doing."""
    return isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


def _whole_record(cell: Cell, found: dict[str, Any], threads: int, started: float, *, timing: bool) -> dict[str, Any]:
    """What was found, with what all records begin and end with, as plain values.

    Raises
    ------
    ValueError
        If a plugin has put into it what a record cannot hold.
    """
    timed = "timing" in found
    ends = {
        **found.get("timing", {}),
        "trusted": timing and timed,
        "machine": machine.fingerprint(),
        "threads": threads,
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "ceilings": remembered(cell.backend, threads) if timed else None,
        "peak_memory": machine.peak_memory(),
        "started": started,
        "total_seconds": time.time() - started,
    }
    record = {**_beginning(cell), **found}
    record.setdefault("metrics", {})
    record |= {"timing": ends, "machine": machine.machine_info(), "versions": machine.versions()}
    whole: dict[str, Any] = plain(record)
    check_types(whole)
    return whole | {"cell": record["cell"]}


def _different(lines: list[str]) -> list[str]:
    """Each line once, and not more than anybody reads."""
    found = list(dict.fromkeys(lines))
    return found if len(found) <= 100 else [*found[:100], f"and {len(found) - 100} more"]


def _beginning(cell: Cell) -> dict[str, Any]:
    """What every record of a cell begins with."""
    return {"key": cell.key, "cell": cell.identity(), "problem": cell.problem_label, "algorithm": cell.algorithm_label}


class _ReadyCell(NamedTuple):
    """A cell before its algorithm begins."""

    cell: Cell
    problem: Problem
    instance: Instance
    sound: tuple[float, ...]
    data: Data
    algorithm: Any
    settings: LoopSettings
    backend: Backend

    def make_rng(self, attempt: int) -> np.random.Generator:
        """The random numbers of attempt 0, 1, ..."""
        own = canonical_json(self.cell.algorithm)
        sequence = _seed(self.cell, self.problem, "initialisation", own, str(attempt))
        return np.random.Generator(np.random.PCG64DXSM(sequence))


def _prepare_cell(cell: Cell, registry: Registry, timing: bool) -> _ReadyCell | dict[str, Any]:
    """All that comes before the algorithm, or the record of a cell that it refuses."""
    problem, algorithm = cell.rebuild(registry)
    if reason := refusal(algorithm, problem):
        return {"status": Status.SKIPPED.value, "reason": reason}
    backend = get_backend(cell.backend, cell.run.dtype, tf32=cell.run.tf32)
    instance, sound = _instance_of_cell(cell, problem, backend)
    computed = cell.run.start not in STARTS
    if timing and computed:
        _start_of_run(cell, problem, instance, backend, registry)
    stop = backend.stopwatch()
    with running(0.0) if computed else contextlib.nullcontext():
        start = _start_of_run(cell, problem, instance, backend, registry)
    # An informed start is a gift of the engine; a computed one is part of what the algorithm does, and of its time.
    head_start = stop().seconds if computed else 0.0
    backend.release()
    data = instance.data(backend, start)
    settings = LoopSettings(cell.run.tolerance, cell.run.max_iterations, cell.run.timeout, head_start)
    ready = _ReadyCell(cell, problem, instance, sound, data, algorithm, settings, backend)
    if timing:
        algorithm.step(problem, data, algorithm.init(problem, data, ready.make_rng(0)))
    return ready


def _run_prepared(ready: _ReadyCell | dict[str, Any]) -> dict[str, Any]:
    """What a record says of a run, or of a cell that is refused."""
    if isinstance(ready, dict):
        return ready
    common = (ready.problem, ready.instance, ready.data, ready.algorithm)
    return _conclude_record(ready, run_algorithm(*common, ready.make_rng, ready.settings, ready.backend))


def _conclude_record(ready: _ReadyCell, result: LoopResult) -> dict[str, Any]:
    """What a record says of a run."""
    cell, instance, data, backend = ready.cell, ready.instance, ready.data, ready.backend
    attempt = result.attempt
    blank = dict(attempt.blank)
    if attempt.status is not Status.DIVERGED and attempt.estimate is not None:
        measured, unmeasured, remarks = instance.measure(cell.run.metrics, attempt.estimate, attempt.V)
        attempt.metrics.update(measured)
        blank |= unmeasured
        attempt.warnings += remarks
    durations = attempt.iteration_seconds
    if instance.checksum() != ready.sound:
        raise RuntimeError("wrote into the data that all algorithms share, so what it found counts for nothing")
    return {
        "status": attempt.status.value,
        "reason": attempt.reason,
        "metrics": attempt.metrics,
        **({"blank": blank} if blank else {}),
        "sample_ratio": instance.sample_ratio,
        "samples": int(instance.inputs.shape[0]),
        "placement": {
            "drawn": "device" if cell.run.draw == "device" and backend.accelerated else "host",
            "inputs": _placement(data.inputs),
        },
        "iterations": attempt.iterations,
        "restarts": result.restarts,
        "restart_reason": result.restart_reason,
        "start": attempt.start,
        "final": attempt.final,
        "warnings": attempt.warnings,
        "trajectory": attempt.trajectory,
        "timing": {
            "seconds": attempt.seconds,
            "lost_seconds": result.lost_seconds,
            "cpu_seconds": attempt.cpu_seconds,
            "cost": _cost_of_iteration(ready.algorithm, ready.problem, data),
            "device_seconds": attempt.device_seconds,
            "device_peak_memory": backend.peak_memory(),
            "first_iteration": durations[0] if durations else None,
            "per_iteration": float(np.median(durations[1:])) if len(durations) > 1 else None,
        },
    }


def _placement(inputs: Any) -> str:
    """Where the inputs are during a run."""
    if isinstance(inputs, DrawnInputs):
        return "drawn anew"
    away = isinstance(inputs, StreamedInputs) and not isinstance(inputs, NarrowInputs)
    return "streamed" if away else "resident"


def _cost_of_iteration(algorithm: Any, problem: Problem, data: Data) -> dict[str, float] | None:
    """What an iteration has to do, for algorithms that say so."""
    ask = algorithm.plan(data).cost
    found = None if ask is None else ask(problem, data)
    return None if found is None else {"flops": float(found.flops), "bytes": float(found.bytes)}


_LATEST: dict[str, tuple[Instance, tuple[float, ...]]] = {}


def _instance_of_cell(cell: Cell, problem: Problem, backend: Backend) -> tuple[Instance, tuple[float, ...]]:
    """The instance of a cell, and its checksum as it was drawn; the latest is kept: the algorithms of a suite share it."""
    name = _instance_name(cell)
    if name not in _LATEST:
        device = backend if cell.run.draw == "device" and backend.accelerated else None
        where = (cell.alpha, cell.dimension, cell.replicate)
        drawn = problem.instance(*where, seed=cell.seed, dtype=cell.run.dtype, device=device)
        _LATEST[name] = drawn, drawn.checksum()
    return _LATEST[name]


def _instance_name(cell: Cell) -> str:
    where = cell.backend if cell.run.draw == "device" else "host"
    return canonical_json([cell.problem, cell.alpha, cell.dimension, cell.replicate, cell.seed, cell.run.dtype, where])


def _forget_other_instances(*cells: Cell) -> None:
    """Free the instances of other cells before anything is drawn: two large ones would not fit side by side."""
    names = {_instance_name(cell) for cell in cells}
    for other in [key for key in _LATEST if key not in names]:
        del _LATEST[other]


def _start_of_run(
    cell: Cell, problem: Problem, instance: Instance, backend: Backend, registry: Registry
) -> Start | None:
    """Where the algorithm begins: nothing (its own choice), a noisy teacher, or what another algorithm finds."""
    if cell.run.start == "uninformed":
        return None
    rng = np.random.default_rng(_seed(cell, problem, "initialisation", "start"))
    if cell.run.start == "informed":
        # In units of the noise: information q / (1 - q) gives a Gaussian prior the overlap q.
        information = INFORMED_OVERLAP / (1 - INFORMED_OVERLAP)
        return problem.start(instance, information, rng, backend, informed=True)
    entry = registry.get("algorithm", cell.run.start, problem.model.name)
    found: Start = build(entry.item, "algorithm", {}).start(problem, instance.data(backend), rng)
    return found


def _seed(cell: Cell, problem: Problem, stream: str, *extra: str) -> np.random.SeedSequence:
    return seed_sequence(cell.seed, problem.identity, cell.alpha, cell.dimension, cell.replicate, stream, *extra)


def lost_record(
    cell: Cell, threads: int, reason: str = "the worker process died (out of memory, or killed)"
) -> dict[str, Any]:
    """The record of a cell whose process ended before it could report."""
    return {
        **_beginning(cell),
        "status": Status.FAILED.value,
        "reason": reason,
        "metrics": {},
        "timing": {"trusted": False, "machine": machine.fingerprint(), "threads": threads},
        "machine": machine.machine_info(),
        "versions": machine.versions(),
    }
