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
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.backend import machine
from smimbench.backend.device import Backend, BackendError, get_backend
from smimbench.backend.memory import cautious
from smimbench.backend.roofline import remembered
from smimbench.backend.streaming import DrawnInputs, NarrowInputs, StreamedInputs
from smimbench.files import canonical_json, error_line, error_place, printable
from smimbench.problem.instance import Instance
from smimbench.problem.problem import Problem, seed_sequence
from smimbench.registry.adapters import refusal
from smimbench.registry.metrics import metrics_of_accounts
from smimbench.registry.parameters import build
from smimbench.registry.registry import get_registry
from smimbench.run.loop import LoopSettings, Status, metered, planned, run_algorithm, running
from smimbench.run.record import LONGEST, check_types, new_record, plain
from smimbench.suite.cells import Cell
from smimbench.suite.schema import STARTS

if TYPE_CHECKING:
    from smimbench.files import JsonObject
    from smimbench.interfaces import Start

INFORMED_OVERLAP = 0.9
"""Overlap with the teacher of an informed start; nearer to 1 the informed branch is followed from further inside."""
MOST_TRIES = 6
"""Runs of a cell that runs out of the memory of its device, with chunks half as large each time; one more: half of that."""


def run_cell(cell: Cell, *, timing: bool = False, threads: int = 1) -> JsonObject:
    """Run one cell and report whatever happens: a record always comes back.

    Parameters
    ----------
    timing : bool
        Whether the times may be trusted (serial, fixed threads, a warm-up of the same shape before the clock starts).
    threads : int
        BLAS threads.
    """
    started, tries, lost = time.time(), 0, 0.0
    machine.reset_peak_memory()
    while True:
        # Whatever a try holds has to be gone before the next: nothing of an error may outlive its clause.
        try:
            with warnings.catch_warnings(record=True) as caught, machine.blas_threads(threads), cautious(0.5**tries):
                warnings.simplefilter("always")
                found = _run(cell, timing)
            if tries and "placement" in found:
                found["placement"]["tries"] = tries + 1
                said = f"the device ran out of memory: run again with chunks of 1/{2**tries} of their usual size"
                found["warnings"] = [*found["warnings"], said]
                found["timing"]["lost_seconds"] += lost
            raised = [f"{w.category.__name__}: {' '.join(printable(w.message, 2000).split())}" for w in caught]
            found["warnings"] = _different([*found.get("warnings", []), *raised])
            return _record(cell, found, threads, started, timing=timing)
        except BaseException as error:  # the algorithm or a plugin may raise anything
            if is_user_interrupt(error):
                raise
            tries += 1
            trace = printable("".join(traceback.format_exception(error)), LONGEST)
            failure = {"reason": error_line(error), "where": error_place(error), "traceback": trace}
            again = tries < MOST_TRIES and not isinstance(error, BackendError) and _backend(cell).ran_out(error)
        _LATEST.clear()  # whoever raised may have written into it
        if not again:
            return _record(cell, {"status": Status.FAILED.value, **failure}, threads, started, timing=timing)
        gc.collect()
        _backend(cell).release()
        lost = time.time() - started


def _backend(cell: Cell) -> Backend:
    return get_backend(cell.backend, cell.run.dtype, tf32=cell.run.tf32)


def is_user_interrupt(error: BaseException) -> bool:
    """Whether it is the user's Ctrl-C; a worker has that ignored, so there it is a plugin's doing."""
    return isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


def _record(cell: Cell, found: JsonObject, threads: int, started: float, *, timing: bool) -> JsonObject:
    """The whole record, as plain values; ValueError if a plugin has put into it what a record cannot hold."""
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
    record = _of_cell(cell, {**found, "timing": ends})
    whole: JsonObject = plain(record)
    check_types(whole)
    return whole | {"cell": record["cell"]}


def _of_cell(cell: Cell, found: JsonObject) -> JsonObject:
    return new_record(cell.identity(), cell.problem_label, cell.algorithm_label, found)


def lost_record(cell: Cell, threads: int, reason: str) -> JsonObject:
    """The record of a cell whose process ended before it could report."""
    timing = {"trusted": False, "machine": machine.fingerprint(), "threads": threads}
    return _of_cell(cell, {"status": Status.FAILED.value, "reason": reason, "timing": timing})


def _different(lines: list[str]) -> list[str]:
    """Each line once, and not more than anybody reads."""
    found = list(dict.fromkeys(lines))
    return found if len(found) <= 100 else [*found[:100], f"and {len(found) - 100} more"]


def _run(cell: Cell, timing: bool) -> JsonObject:
    """What a record says of a run, or of a cell that the algorithm refuses."""
    problem, algorithm = cell.rebuild()
    if reason := refusal(algorithm, problem):
        return {"status": Status.SKIPPED.value, "reason": reason}
    backend = _backend(cell)
    instance, checksum = _instance(cell, problem, backend)
    computed = cell.run.start not in STARTS
    if timing and computed:
        _start(cell, problem, instance, backend)
    stop = backend.stopwatch()
    with running(0.0) if computed else contextlib.nullcontext():
        start = _start(cell, problem, instance, backend)
    # An informed start is a gift of the engine; a computed one is part of what the algorithm does, and of its time.
    head_start = stop().seconds if computed else 0.0
    backend.release()
    data = metered(instance.data(backend, start))
    fresh: Any = data.fresh
    fresh.held = int(data.inputs.shape[0]) if computed else 0
    settings = LoopSettings(cell.run.tolerance, cell.run.max_iterations, cell.run.timeout, head_start)

    def make_rng(attempt: int) -> np.random.Generator:
        own = canonical_json(cell.algorithm)
        return np.random.Generator(np.random.PCG64DXSM(_seed(cell, problem, "initialisation", own, str(attempt))))

    if timing:
        teacher = problem.prior.sample(make_rng(0), problem.components, instance.dimension)
        other = replace(instance, signal=teacher).data(backend, start)  # what a warm-up draws must teach nothing
        _, warm = planned(algorithm, metered(other))
        algorithm.step(problem, warm, algorithm.init(problem, warm, make_rng(0)))
    result = run_algorithm(problem, instance, data, algorithm, make_rng, settings, backend)
    if result.status is not Status.DIVERGED:
        listed = [name.partition("@")[0] for name in cell.run.metrics]
        names = dict.fromkeys((*listed, *metrics_of_accounts(problem.model.name)))
        measured, unmeasured, remarks = instance.measure(list(names), result.estimate, result.V)
        result.metrics.update(measured)
        result.blank |= {name: why for name, why in unmeasured.items() if name in listed}
        result.warnings += remarks
    if instance.checksum() != checksum:
        raise RuntimeError("wrote into the data that all algorithms share, so what it found counts for nothing")
    price, clock = result.plan.cost, result.clock
    cost = None if price is None else price(problem, data)
    return {
        "status": result.status.value,
        "reason": result.reason,
        "metrics": result.metrics,
        **({"blank": result.blank} if result.blank else {}),
        "sample_ratio": problem.model.sample_ratio(max(1, fresh.count + fresh.held), instance.dimension),
        "samples": int(instance.inputs.shape[0]),
        "fresh_samples": fresh.count,
        "placement": {
            "drawn": "device" if cell.run.draw == "device" and backend.accelerated else "host",
            "inputs": _placement(data.inputs),
        },
        "iterations": result.iterations,
        "restarts": result.restarts,
        "restart_reason": result.restart_reason,
        "start": result.start,
        "final": result.final,
        "warnings": result.warnings,
        "trajectory": result.trajectory,
        "timing": {
            "seconds": clock.seconds,
            "lost_seconds": result.lost_seconds,
            "cpu_seconds": clock.cpu_seconds,
            "cost": None if cost is None else {"flops": float(cost.flops), "bytes": float(cost.bytes)},
            "device_seconds": clock.device_seconds,
            "device_peak_memory": backend.peak_memory(),
            "first_iteration": clock.durations[1] if len(clock.durations) > 1 else None,
            "per_iteration": float(np.median(clock.durations[2:])) if len(clock.durations) > 2 else None,
        },
    }


def _placement(inputs: Any) -> str:
    """Where the inputs are during a run."""
    if isinstance(inputs, DrawnInputs):
        return "drawn anew"
    away = isinstance(inputs, StreamedInputs) and not isinstance(inputs, NarrowInputs)
    return "streamed" if away else "resident"


_LATEST: dict[str, tuple[Instance, tuple[float, ...]]] = {}


def _instance(cell: Cell, problem: Problem, backend: Backend) -> tuple[Instance, tuple[float, ...]]:
    """The instance of a cell, and its checksum as it was drawn; the latest is kept: the algorithms of a suite share it."""
    on_device = cell.run.draw == "device" and backend.accelerated
    where = (cell.alpha, cell.dimension, cell.replicate)
    name = canonical_json([cell.problem, *where, cell.seed, cell.run.dtype, cell.backend if on_device else "host"])
    if name not in _LATEST:
        _LATEST.clear()  # two large ones would not fit side by side
        device = backend if on_device else None
        drawn = problem.instance(*where, seed=cell.seed, dtype=cell.run.dtype, device=device)
        _LATEST[name] = drawn, drawn.checksum()
    return _LATEST[name]


def _start(cell: Cell, problem: Problem, instance: Instance, backend: Backend) -> Start | None:
    """Where the algorithm begins: nothing (its own choice), a noisy teacher, or what another algorithm finds."""
    if cell.run.start == "uninformed":
        return None
    rng = np.random.default_rng(_seed(cell, problem, "initialisation", "start"))
    if cell.run.start == "informed":
        # In units of the noise: information q / (1 - q) gives a Gaussian prior the overlap q.
        information = INFORMED_OVERLAP / (1 - INFORMED_OVERLAP)
        return problem.start(instance, information, rng, backend, informed=True)
    entry = get_registry().get("algorithm", cell.run.start, problem.model.name)
    data = metered(instance.data(backend))
    found: Start = build(entry.item, "algorithm", {}).start(problem, data, rng)
    return found


def _seed(cell: Cell, problem: Problem, stream: str, *extra: str) -> np.random.SeedSequence:
    return seed_sequence(cell.seed, problem.identity, cell.alpha, cell.dimension, cell.replicate, stream, *extra)
