"""Instances exported for external solvers in any language, and scoring of their estimates."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from smimbench.backend import StreamedInputs, machine
from smimbench.files import (
    JsonObject,
    attempt,
    canonical_json,
    error_line,
    omit,
    read_npz,
    write_atomically,
)
from smimbench.interfaces import Array
from smimbench.interfaces.checks import describe_nonfinite
from smimbench.problem.instance import Instance
from smimbench.problem.problem import CODE_KEYS
from smimbench.run.loop import Status
from smimbench.run.record import Record, new_record
from smimbench.run.store import Store, scores_of
from smimbench.suite import SuiteError
from smimbench.suite.cells import ProblemPlan, Suite, meets_conditions

EXTERNAL = "elsewhere"
"""The backend of an estimate that was not made here."""


@dataclass(frozen=True)
class GridPoint:
    """Grid point of a suite, the settings that determine one instance (teacher and data): problem (``plan``), sample ratio alpha,
    dimension and replicate.
    """

    plan: ProblemPlan
    alpha: float
    dimension: int
    replicate: int

    def instance(self, suite: Suite) -> Instance:
        """Draw the instance at this point."""
        grid_point = self.alpha, self.dimension, self.replicate
        return self.plan.problem.instance(
            *grid_point, seed=suite.seed, dtype=suite.run.dtype
        )


def first_points(suite: Suite, count: int = 1) -> list[GridPoint]:
    """Return the first ``count`` grid points of a suite that ``--only`` selects, with replicates of one sample ratio next
    to each other.

    Raises
    ------
    SuiteError
        If there are fewer, or if every problem has a theory only.
    """
    suite.plans_with_data()  # or the reason why there are none
    points = list(itertools.islice(_grid_points(suite), count))
    if len(points) < count:
        count_text = f"{len(points)} for {count} estimates" if points else "none"
        raise SuiteError(
            suite.file, "--only", f"selects too few points of this suite: {count_text}"
        )
    return points


def _grid_points(suite: Suite) -> Iterator[GridPoint]:
    """Yield the points of a suite for which data can be drawn; none if only theory exists for all problems."""
    for plan in (plan for plan in suite.plans if not plan.theory_only):
        for dimension, replicate_count in zip(plan.dimensions, plan.seeds):
            for alpha, replicate in itertools.product(
                plan.alphas, range(replicate_count)
            ):
                if meets_conditions(
                    suite.only,
                    problem=plan.label,
                    alpha=alpha,
                    dimension=dimension,
                    seed=replicate,
                ):
                    yield GridPoint(plan, alpha, dimension, replicate)


def write_instance(suite: Suite, point: GridPoint, output_file: Path) -> JsonObject:
    """Write inputs, labels and a JSON description of the instance at a grid ``point`` to the ``.npz`` file ``output_file``;
    the teacher stays hidden.

    Returns
    -------
    dict
        Shapes and the description, for the terminal.
    """
    instance = point.instance(suite)
    if isinstance(instance.inputs, StreamedInputs):
        raise SuiteError(
            suite.file,
            "grid",
            "the inputs of one instance do not fit the memory; lower dimension, alpha or tokens",
        )
    description = {
        "suite": suite.name,
        "problem": point.plan.problem.spec,
        "label": point.plan.label,
        "alpha": point.alpha,
        "dimension": point.dimension,
        "seed": point.replicate,
        "root_seed": suite.seed,
        "sample_ratio": instance.sample_ratio,
        "estimate_shape": list(instance.signal.shape),
        "how": "save your estimate of the signal under the name 'estimate' in an .npz and run 'smimbench score'",
    }
    arrays = {
        "inputs": instance.inputs,
        "labels": instance.labels,
        "about": np.array(json.dumps(description)),
    }
    write_atomically(output_file, lambda open_file: np.savez(open_file, **arrays))
    return {
        **description,
        "inputs": list(instance.inputs.shape),
        "labels": list(instance.labels.shape),
    }


def read_estimate(path: Path, shape: tuple[int, ...]) -> Array:
    """Read the array ``estimate`` of an ``.npz`` file, which must hold real numbers in the given shape.

    Raises
    ------
    SuiteError
        Unreadable file, no such array, another shape, or something else than real numbers.
    """
    if not path.is_file():  # a pipe or a device may never end
        reason = (
            "is no regular file; write the estimate to an .npz first"
            if path.exists()
            else "does not exist"
        )
        raise SuiteError(str(path), "", reason)
    with path.open("rb") as file:
        arrays, error = attempt(
            read_npz, file, (1 << 24) + 32 * math.prod(shape), "estimate"
        )
    if error is not None:
        raise SuiteError(
            str(path), "", f"the file cannot be read as .npz: {error_line(error)}"
        )
    if "estimate" not in arrays:
        array_names = ", ".join(list(arrays)[:20]) or "nothing"
        raise SuiteError(
            str(path), "estimate", f"the array is missing; the file holds {array_names}"
        )
    estimate: Array = np.asarray(arrays["estimate"])
    if estimate.dtype.kind not in "fiu":
        raise SuiteError(
            str(path),
            "estimate",
            f"the array must hold real numbers, got the type {estimate.dtype}",
        )
    if estimate.shape != shape:
        raise SuiteError(
            str(path),
            "estimate",
            f"the array must have the shape {shape}, got {estimate.shape}",
        )
    return np.asarray(estimate, dtype=np.float64)


def score_record(
    suite: Suite, point: GridPoint, estimate_file: Path, label: str
) -> Record:
    """Score the estimate in a file for the instance at a grid ``point`` and return a record like that of a cell, without
    times and trajectory; ``label`` is the name in tables.
    """
    instance = point.instance(suite)
    estimate = read_estimate(estimate_file, instance.signal.shape)
    estimate_defect = describe_nonfinite(estimate)
    metrics = None
    if not estimate_defect:
        with np.errstate(all="ignore"):
            metrics, _ = attempt(instance.metrics, estimate)
        if metrics is None or not all(
            map(math.isfinite, itertools.chain(*metrics.values()))
        ):
            estimate_defect = f"numbers that are too large to be scored, up to {np.abs(estimate).max():.2g}"
    # smimbench cannot tell versions of an external solver apart.
    cell_identity = _instance_identity(suite, point) | {
        "algorithm": {"name": label, "version": 0},
        "backend": EXTERNAL,
    }
    outcome = {
        "status": (Status.DIVERGED if estimate_defect else Status.OK).value,
        "reason": f"the estimate has {estimate_defect}"
        if estimate_defect
        else "scored",
        "metrics": {} if estimate_defect else metrics,
        "sample_ratio": instance.sample_ratio,
        "samples": int(instance.inputs.shape[0]),
        "warnings": instance.remarks,
        "trajectory": None,
        "timing": {"machine": machine.fingerprint()},
    }
    return new_record(cell_identity, point.plan.label, label, outcome)


def _instance_identity(suite: Suite, point: GridPoint) -> dict[str, object]:
    """Return the settings that determine the instance at a grid point, as cells (runs) store them."""
    return {
        "problem": point.plan.problem.spec,
        "alpha": point.alpha,
        "dimension": point.dimension,
        "replicate": point.replicate,
        "seed": suite.seed,
        "dtype": suite.run.dtype,
    }


def store_scores(store: Store, records: Sequence[Record]) -> None:
    """Store scores of estimates (``records``); an earlier score with the same label and instance is moved aside.

    Raises
    ------
    StoreError
        If the folder cannot be written to.
    """
    score_store = scores_of(store)
    stored_records = score_store.load()
    score_store.retire(record.key for record in records if record.key in stored_records)
    for record in records:
        score_store.write(record)
    score_store.sync()


def stored_scores(suite: Suite, store: Store) -> tuple[list[GridPoint], list[Record]]:
    """Return the grid points of scored estimates in a store that ``--only`` selects, and the records of their scores."""
    algorithm_labels = [
        algorithm_label
        for selected_field, algorithm_label in suite.only
        if selected_field == "algorithm"
    ]
    by_instance: dict[str, list[Record]] = {}
    for record in scores_of(store).load().values():
        if not algorithm_labels or record.algorithm in algorithm_labels:
            by_instance.setdefault(_instance_name(record.cell), []).append(record)
    points: list[GridPoint] = []
    records: list[Record] = []
    for point in _grid_points(suite) if by_instance else ():
        for record in by_instance.get(
            _instance_name(_instance_identity(suite, point)), ()
        ):
            points.append(point)
            records.append(replace(record, problem=point.plan.label))
    return points, records


def _instance_name(cell: Mapping[str, Any]) -> str:
    """Return a text that identifies the instance of a ``cell`` (run): all settings that its data depend on, without versions."""
    item_parameters = {
        item_kind: omit(item, *CODE_KEYS) for item_kind, item in cell["problem"].items()
    }
    setting_names = ("alpha", "dimension", "replicate", "seed", "dtype")
    return canonical_json(
        [item_parameters, *(cell.get(field_name) for field_name in setting_names)]
    )
