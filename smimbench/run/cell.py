"""Runs one cell and returns its record: draws the instance, runs the algorithm, handles errors and lack of memory."""

from __future__ import annotations

import gc
import os
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from smimbench.backend import machine
from smimbench.backend.device import Backend, BackendError, get_backend, reduced_chunks
from smimbench.backend.streaming import DrawnInputs, NarrowInputs, StreamedInputs
from smimbench.files import (
    JsonObject,
    canonical_json,
    error_line,
    error_place,
    printable,
)
from smimbench.interfaces import Algorithm, Array, Data, Start
from smimbench.interfaces.algorithm import refusal
from smimbench.problem.instance import Instance, seed_sequence
from smimbench.problem.problem import Problem
from smimbench.registry.items import build
from smimbench.registry.registry import claimed_error_metrics, get_registry
from smimbench.run.batches import step_together
from smimbench.run.clock import Clock
from smimbench.run.loop import (
    FreshSamples,
    LoopRun,
    Status,
    counting_fresh_samples,
    plan_and_visible_data,
)
from smimbench.run.record import LONGEST, Record, new_record
from smimbench.suite.cells import Cell, build_algorithm
from smimbench.suite.schema import STARTS

MOST_TRIES = 6
"""Runs of a cell that runs out of the memory of its device, with chunks half as large each time; one more: half of that."""


INFORMED_OVERLAP = 0.9
"""Overlap with the teacher of an informed start; nearer to 1 the informed branch is followed from further inside."""

WARM_UP = 2**32 - 1
"""Replicate of the data of warm-ups: no suite asks for so many."""

HELD = 1 << 24
"""Bytes of inputs up to which data of a warm-up stay in memory; doubled, so does what they add to the peak memory of a cell."""

_LATEST: dict[str, tuple[Instance, tuple[float, ...]]] = {}
"""The instance that was drawn last, with its checksum: the algorithms of a suite share it."""


def run_cell(cell: Cell, *, timing: bool = False, threads: int = 1) -> Record:
    """Run one cell with this number of BLAS ``threads`` and return its record, whatever happens; with ``timing`` its times
    are to be trusted.

    Parameters
    ----------
    timing : bool
        Whether the times may be trusted (serial, fixed threads, a warm-up on other data of the same shape).
    threads : int
        BLAS threads.
    """
    start_date = time.time()
    # Durations come from the timer: the clock of the system may be set meanwhile.
    timer_start = time.perf_counter()
    failed_tries, seconds_of_failed_tries = 0, 0.0
    machine.reset_peak_memory()
    while True:
        # Arrays of a failed try must be freed before the next one: no reference to the error or to the run may stay.
        try:
            with (
                warnings.catch_warnings(record=True) as caught_warnings,
                machine.blas_threads(threads),
                reduced_chunks(0.5**failed_tries),
            ):
                warnings.simplefilter("always")
                outcome = _outcome(cell, timing)
            remarks = outcome.get("warnings", [])
            if failed_tries and "placement" in outcome:
                outcome["placement"]["tries"] = failed_tries + 1
                outcome["timing"]["lost_seconds"] += seconds_of_failed_tries
                remarks.append(
                    f"the device ran out of memory, so the cell was run again with chunks of 1/{2**failed_tries} of "
                    "their usual size"
                )
            for warning in caught_warnings:
                warning_text = " ".join(printable(warning.message, 2000).split())
                remarks.append(f"{warning.category.__name__}: {warning_text}")
            outcome["warnings"] = _without_repeats(remarks)
            will_retry = False
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # the algorithm or a plugin may raise anything
            failed_tries += 1
            traceback_text = printable(
                "".join(traceback.format_exception(error)), LONGEST
            )
            outcome = {
                "status": Status.FAILED.value,
                "reason": error_line(error),
                "where": error_place(error),
                "traceback": traceback_text,
            }
            will_retry = (
                failed_tries < MOST_TRIES
                and not isinstance(error, BackendError)
                and _open_backend(cell).ran_out(error)
            )
            _LATEST.clear()  # whoever raised may have written into it
        seconds = time.perf_counter() - timer_start
        if not will_retry:
            return _timed_record(cell, outcome, timing, threads, start_date, seconds)
        gc.collect()
        _open_backend(cell).release()
        seconds_of_failed_tries = seconds


def run_together(
    cells: Sequence[Cell], *, timing: bool = False, threads: int = 1
) -> list[Record]:
    """Run a cell, or several that differ in their seeds alone, with steps made together where the algorithm can (``joint_step``),
    and return their records. They are those of single runs but for the times: each run counts an equal share of a common step.
    Where anything raises an error, warns or begins again, all of them run one by one instead: it is to stand in one record alone.
    """
    if len(cells) > 1:
        try:
            return _joint_records(cells, threads)
        except KeyboardInterrupt:
            raise
        except BaseException:  # which it is, the run that raises it again records
            _LATEST.clear()  # whoever raised may have written into it
    return [run_cell(cell, timing=timing, threads=threads) for cell in cells]


def _joint_records(cells: Sequence[Cell], threads: int) -> list[Record]:
    """Records of cells whose steps are made together; an error where something warned, or a run made a second attempt."""
    start_date, timer_start = time.time(), time.perf_counter()
    machine.reset_peak_memory()
    with (
        warnings.catch_warnings(record=True) as caught_warnings,
        machine.blas_threads(threads),
    ):
        warnings.simplefilter("always")
        problem, _ = cells[0].rebuild()
        runs_and_finishers = [
            # An algorithm may keep numbers of its data.
            _begin_run(cell, problem, build_algorithm(cell.algorithm, problem), False)
            for cell in cells
        ]
        step_together([run for run, _ in runs_and_finishers], caught_warnings)
        outcomes = [] if caught_warnings else [end() for _, end in runs_and_finishers]
    if caught_warnings or any(outcome["restarts"] for outcome in outcomes):
        raise RuntimeError("some run has to stand alone")
    seconds = (time.perf_counter() - timer_start) / len(cells)
    return [
        _timed_record(cell, outcome, False, threads, start_date, seconds)
        for cell, outcome in zip(cells, outcomes)
    ]


def _timed_record(
    cell: Cell,
    outcome: JsonObject,
    timing: bool,
    threads: int,
    start_date: float,
    seconds: float,
) -> Record:
    """Build the record of a cell from the fields of its ``outcome``, with its times added."""
    has_timing = "timing" in outcome
    timing_fields = {
        "trusted": timing and has_timing,
        "machine": machine.fingerprint(),
        "threads": threads,
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "ceilings": machine.stored_peak_rates(cell.backend, threads)
        if has_timing
        else None,
        "peak_memory": machine.peak_memory(),
        "started": start_date,
        "total_seconds": seconds,
        **outcome.get("timing", {}),
    }
    return _record(cell, {**outcome, "timing": timing_fields})


def _open_backend(cell: Cell) -> Backend:
    """Open the array backend of a cell."""
    return get_backend(cell.backend, cell.run.dtype, tf32=cell.run.tf32)


def task_handler(
    setup: JsonObject, send_event: Callable[..., None]
) -> Callable[..., list[JsonObject]]:
    """Return the function with which a worker process runs cells and returns their records as JSON; ``setup`` holds timing and
    number of threads, ``send_event`` reports progress to the parent.
    """

    def answer(*cells: Cell) -> list[JsonObject]:
        """Run a cell, or several that differ in their seeds, and return their records as JSON."""
        records = run_together(cells, timing=setup["timing"], threads=setup["threads"])
        return [record.document for record in records]

    return answer


def lost_record(
    cell: Cell, threads: int, reason: str, status: Status = Status.FAILED
) -> Record:
    """Return the record, with this status and reason, of a cell whose process (with this number of BLAS ``threads``) ended
    before it could report.
    """
    timing = {"trusted": False, "machine": machine.fingerprint(), "threads": threads}
    return _record(cell, {"status": status.value, "reason": reason, "timing": timing})


def _record(cell: Cell, outcome: Mapping[str, object]) -> Record:
    """Build the record of a cell from the outcome of its run."""
    return new_record(
        cell.identity(), cell.problem_label, cell.algorithm_label, outcome
    )


def _without_repeats(remarks: list[str]) -> list[str]:
    """Remove repeated lines from remarks and keep at most 100."""
    distinct_lines = list(dict.fromkeys(remarks))
    if len(distinct_lines) <= 100:
        return distinct_lines
    return [*distinct_lines[:100], f"and {len(distinct_lines) - 100} more"]


def _outcome(cell: Cell, timing: bool) -> JsonObject:
    """Run the algorithm of a cell alone and return the fields of its record, or fields that say that it refuses the problem."""
    problem, algorithm = cell.rebuild()
    if reason := refusal(algorithm, problem):
        return {"status": Status.SKIPPED.value, "reason": reason}
    run, finish = _begin_run(cell, problem, algorithm, timing)
    run.step_to_end()
    return finish()


def _begin_run(
    cell: Cell, problem: Problem, algorithm: Algorithm, timing: bool
) -> tuple[LoopRun, Callable[[], JsonObject]]:
    """Begin the run of the ``algorithm`` of a cell on its ``problem``, and return it with a function that, once its steps are
    made, finishes it and returns the fields of the record. With ``timing`` there is a warm-up.
    """
    backend = _open_backend(cell)
    active_threads = threading.active_count()
    warm_up_data = None
    if timing:
        warm_up_data = _warm_up(cell, problem, backend)
        # Threads that the warm-up started must not share the processor with the timed run.
        machine.wait_for_threads(active_threads)
    child_cpu_seconds = machine.seconds_of_children()
    instance, checksum = _instance(cell, problem, backend)
    start_is_computed = cell.run.start not in STARTS
    clock = Clock(0.0)
    # An informed start is a gift of the engine; a computed one is part of what the algorithm does, and of its time.
    if start_is_computed:
        initial_estimate = clock.time(
            lambda: _initial_estimate(cell, instance, backend), backend
        )
    else:
        initial_estimate = _initial_estimate(cell, instance, backend)
    cpu_seconds_of_start = clock.cpu_seconds()
    backend.release()
    data = counting_fresh_samples(instance.data(backend, initial_estimate))

    def make_rng(attempt: int) -> np.random.Generator:
        """Return the random generator of the algorithm's first or second ``attempt`` (0 or 1)."""
        return _random_generator(
            cell, problem, canonical_json(cell.algorithm), str(attempt)
        )

    first_run = LoopRun(
        problem, instance, data, algorithm, make_rng, cell.run, backend, clock.seconds
    )

    def finish() -> JsonObject:
        """Finish the run and return the fields of the record."""
        nonlocal warm_up_data
        run = first_run.finished()
        warm_up_data = None  # see ``_warm_up``
        cpu_seconds = cpu_seconds_of_start + run.cpu_seconds
        cpu_seconds += machine.wait_for_threads(active_threads) if timing else 0.0
        cpu_seconds += machine.seconds_of_children() - child_cpu_seconds
        if run.status is not Status.DIVERGED:
            _measure(cell, problem, instance, run)
        if instance.checksum() != checksum:
            raise RuntimeError(
                "the algorithm wrote into the data that all algorithms share, so its result is discarded; "
                "it must copy inputs and labels before changing them"
            )
        fresh_samples = cast("FreshSamples", data.fresh)
        data_samples = int(instance.inputs.shape[0])
        # An algorithm that plans to draw fresh samples sees none of the data set, unless a start was computed from it.
        sees_data = start_is_computed or not run.plan.draws_fresh
        samples_used = fresh_samples.count + (data_samples if sees_data else 0)
        draws_on_device = cell.run.draw == "device" and backend.accelerated
        iteration_cost = run.plan.cost(problem, data) if run.plan.cost else None
        return {
            "status": run.status.value,
            "reason": run.reason,
            "metrics": run.metrics,
            **({"blank": run.blank} if run.blank else {}),
            "sample_ratio": problem.model.sample_ratio(
                max(1, samples_used), instance.dimension
            ),
            "samples": data_samples,
            "fresh_samples": fresh_samples.count,
            "placement": {
                "drawn": "device" if draws_on_device else "host",
                "inputs": _placement_of_inputs(data.inputs),
            },
            "iterations": run.iterations,
            "restarts": run.restarts,
            "restart_reason": run.restart_reason,
            "start": run.start,
            "final": run.final,
            "warnings": _without_repeats(run.warnings),
            "trajectory": run.trajectory,
            "timing": {
                "seconds": run.clock.seconds,
                "lost_seconds": run.lost_seconds,
                "cpu_seconds": cpu_seconds,
                "cost": iteration_cost
                and {
                    "flops": float(iteration_cost.flops),
                    "bytes": float(iteration_cost.bytes),
                },
                "device_seconds": run.clock.device_seconds,
                "device_peak_memory": backend.peak_memory(),
                "first_iteration": run.durations[0] if run.durations else None,
                "per_iteration": float(np.median(run.durations[1:]))
                if len(run.durations) > 1
                else None,
            },
        }

    return first_run, finish


def _measure(cell: Cell, problem: Problem, instance: Instance, run: LoopRun) -> None:
    """Measure, on the final estimate of a cell's run on an instance, the metrics that the suite lists and those that compare the
    claimed error with the true one.
    """
    suite_metrics = [metric_name.partition("@")[0] for metric_name in cell.run.metrics]
    metric_names = dict.fromkeys(
        (*suite_metrics, *claimed_error_metrics(problem.model.name))
    )
    measured_metrics, unmeasured_reasons, metric_remarks = instance.measure(
        list(metric_names), run.estimate, run.V
    )
    run.metrics.update(measured_metrics)
    run.blank |= {
        metric_name: reason
        for metric_name, reason in unmeasured_reasons.items()
        if metric_name in suite_metrics
    }
    run.warnings += [*instance.remarks, *metric_remarks]


def _placement_of_inputs(inputs: Array) -> str:
    """Return where the inputs are during a run: ``resident`` in memory, ``streamed`` in parts to the device, or ``drawn anew``
    whenever they are read.
    """
    if isinstance(inputs, DrawnInputs):
        return "drawn anew"
    if isinstance(inputs, StreamedInputs) and not isinstance(inputs, NarrowInputs):
        return "streamed"
    return "resident"


def _warm_up(cell: Cell, problem: Problem, backend: Backend) -> Data | None:
    """Run one iteration of a cell on other data on the backend, to compile code and fill memory pools before a timed run.

    Returns
    -------
    Data or None
        The other data where they are small: as long as they live, no array of the timed run has the identity of theirs.
    """
    _LATEST.clear()  # two large ones would not fit side by side
    cell = replace(cell, replicate=WARM_UP)
    instance, _ = _instance(cell, problem, backend)
    _LATEST.clear()
    # The warm-up has an algorithm object of its own, because an algorithm may store numbers of its data.
    algorithm = build_algorithm(cell.algorithm, problem)
    _, data = plan_and_visible_data(
        algorithm,
        counting_fresh_samples(
            instance.data(backend, _initial_estimate(cell, instance, backend))
        ),
    )
    rng = _random_generator(cell, problem, canonical_json(cell.algorithm))
    state, _ = algorithm.step(problem, data, algorithm.init(problem, data, rng))
    algorithm.estimate(state)
    if algorithm.variance is not None:
        algorithm.variance(state)
    is_small = (
        isinstance(instance.inputs, np.ndarray) and instance.inputs.nbytes <= HELD
    )
    return data if is_small else None


def _instance(
    cell: Cell, problem: Problem, backend: Backend
) -> tuple[Instance, tuple[float, ...]]:
    """Draw the instance of a cell (run) for this backend, or take it from the cache, and return it with its checksum."""
    drawing_device = (
        backend if cell.run.draw == "device" and backend.accelerated else None
    )
    grid_point = (cell.alpha, cell.dimension, cell.replicate)
    cache_key = canonical_json(
        [
            cell.problem,
            *grid_point,
            cell.seed,
            cell.run.dtype,
            cell.backend if drawing_device else "host",
        ]
    )
    if cache_key not in _LATEST:
        _LATEST.clear()  # two large ones would not fit side by side
        instance = problem.instance(
            *grid_point, seed=cell.seed, dtype=cell.run.dtype, device=drawing_device
        )
        _LATEST[cache_key] = instance, instance.checksum()
    return _LATEST[cache_key]


def _random_generator(
    cell: Cell, problem: Problem, *stream_names: str, bit_generator: str = "PCG64DXSM"
) -> np.random.Generator:
    """Return the random generator of a cell's (run's) algorithm or of its initial estimate, seeded by the grid point and stream
    names; ``bit_generator`` is the name of the NumPy bit generator.
    """
    seed_path = (
        problem.seed_name,
        cell.alpha,
        cell.dimension,
        cell.replicate,
        "initialisation",
    )
    return np.random.Generator(
        getattr(np.random, bit_generator)(
            seed_sequence(cell.seed, *seed_path, *stream_names)
        )
    )


def _initial_estimate(cell: Cell, instance: Instance, backend: Backend) -> Start | None:
    """Return the initial estimate of a cell (run) on its instance: None (the algorithm's own), a noisy teacher, or the result of
    another algorithm.
    """
    if cell.run.start == "uninformed":
        return None
    problem: Problem = instance.problem
    rng = _random_generator(cell, problem, "start", bit_generator="PCG64")
    if cell.run.start == "informed":
        # With information q / (1 - q), a Gaussian prior has the overlap q.
        return problem.start(
            instance, INFORMED_OVERLAP / (1 - INFORMED_OVERLAP), rng, backend
        )
    algorithm_entry = get_registry().get(
        "algorithm", cell.run.start, problem.model.name
    )
    initial_estimate: Start = build(algorithm_entry.item, "algorithm", {}).start(
        problem, counting_fresh_samples(instance.data(backend)), rng
    )
    return initial_estimate
