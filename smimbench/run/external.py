"""Instances written for solvers elsewhere, in any language; their estimates read, scored as records, and the scores kept."""

from __future__ import annotations

import itertools
import json
import struct
import tokenize
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.backend import machine
from smimbench.files import canonical_json, error_line, write_atomically
from smimbench.problem.problem import CODE
from smimbench.run.loop import Status
from smimbench.run.record import new_record
from smimbench.run.store import Store
from smimbench.suite.errors import SuiteError
from smimbench.suite.overrides import selects

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from smimbench.files import Document
    from smimbench.problem.instance import Instance
    from smimbench.suite.cells import ProblemPlan, Suite

__all__ = [
    "ELSEWHERE",
    "Point",
    "choose_points",
    "estimate_shape",
    "keep_scores",
    "kept_scores",
    "read_estimate",
    "score_record",
    "scores_of",
    "write_instance",
]

ELSEWHERE = "elsewhere"
"""The backend of an estimate that was not made here."""


@dataclass(frozen=True)
class Point:
    """One instance of a suite: a problem with sample ratio, dimension and replicate."""

    plan: ProblemPlan
    alpha: float
    dimension: int
    replicate: int

    def describe(self) -> Document:
        """The point as plain data, enough to find it again."""
        return {
            "problem": self.plan.problem.spec,
            "label": self.plan.label,
            "alpha": self.alpha,
            "dimension": self.dimension,
            "seed": self.replicate,
        }


def choose_points(suite: Suite, count: int = 1) -> list[Point]:
    """The first points of the suite that its ``--only`` conditions leave, replicates of one sample ratio side by side.

    Raises
    ------
    SuiteError
        If there are fewer, or if every problem has a theory only.
    """
    found = list(itertools.islice(_points_of_problem(suite), count))
    if len(found) < count:
        left = f"{len(found)} for {count} estimates" if found else "none"
        raise SuiteError(suite.file, "--only", f"leaves too few points of this suite: {left}")
    return found


def _points_of_problem(suite: Suite) -> Iterator[Point]:
    for plan in suite.plans_with_data():
        sizes = dict(zip(plan.dimensions, plan.seeds))
        for dimension, alpha, seed in itertools.product(plan.dimensions, plan.alphas, range(max(plan.seeds))):
            if seed >= sizes[dimension]:
                continue
            where = {"alpha": alpha, "dimension": dimension, "seed": seed}
            if selects(suite.only, problem=plan.label, **where):
                yield Point(plan, alpha, dimension, seed)


def estimate_shape(point: Point) -> tuple[int, ...]:
    """Shape of the signal."""
    problem = point.plan.problem
    return tuple(problem.model.signal_shape(problem.components, point.dimension))


def draw(suite: Suite, point: Point) -> Instance:
    """The instance of a point."""
    return point.plan.problem.instance(
        point.alpha, point.dimension, point.replicate, seed=suite.seed, dtype=suite.run.dtype
    )


def write_instance(suite: Suite, point: Point, output: Path) -> Document:
    """Write inputs, labels and a JSON description to an ``.npz``; the teacher stays hidden.

    Returns
    -------
    dict
        Shapes and the description, for the terminal.
    """
    instance = draw(suite, point)
    about = {
        "suite": suite.name,
        **point.describe(),
        "root_seed": suite.seed,
        "sample_ratio": instance.sample_ratio,
        "estimate_shape": list(instance.signal.shape),
        "how": "save your estimate of the signal under the name 'estimate' in an .npz and run 'smimbench score'",
    }
    arrays = {"inputs": instance.inputs, "labels": instance.labels, "about": np.array(json.dumps(about))}
    write_atomically(output, lambda file: np.savez(file, **arrays))
    return {**about, "inputs": list(instance.inputs.shape), "labels": list(instance.labels.shape)}


def read_estimate(path: Path, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The array ``estimate`` of an ``.npz``: real numbers in this shape. Nothing is unpacked before its head says so.

    Raises
    ------
    SuiteError
        Unreadable file, no such array, another shape, or something else than real numbers.
    """

    def fail(key: str, message: str) -> SuiteError:
        return SuiteError(str(path), key, message)

    if not path.is_file():  # a pipe or a device may never end
        raise fail("", "is no regular file; write the estimate to an .npz first" if path.exists() else "does not exist")
    try:
        with zipfile.ZipFile(path) as packed:
            names = [name.removesuffix(".npy") for name in packed.namelist()]
            if "estimate" not in names:
                raise fail("estimate", f"is missing; the file holds {', '.join(names[:20]) or 'nothing'}")
            if names.count("estimate") > 1:
                raise fail("estimate", "is in the file twice")
            with packed.open("estimate.npy" if "estimate.npy" in packed.namelist() else "estimate") as part:
                version = np.lib.format.read_magic(part)
                read_head = (
                    np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                )
                found, _, dtype = read_head(part)
        if dtype.kind not in "fiu":
            kind = {"c": "complex numbers", "M": "dates", "m": "time spans", "b": "truth values", "O": "objects"}
            raise fail("estimate", f"must be real numbers, got {kind.get(dtype.kind, f'the type {dtype}')}")
        if tuple(found) != tuple(shape):
            raise fail("estimate", f"must have the shape {tuple(shape)}, got {_short(found)}")
        with np.load(path, allow_pickle=False) as arrays:
            estimate: np.ndarray[Any, Any] = np.asarray(arrays["estimate"], dtype=np.float64)
            return estimate
    except SuiteError:
        raise
    except (OSError, EOFError, ValueError, TypeError, KeyError, IndexError, SyntaxError, OverflowError, MemoryError,
            RuntimeError, struct.error, zlib.error, zipfile.BadZipFile, tokenize.TokenError) as error:  # fmt: skip
        raise fail("", f"cannot be read as .npz: {error_line(error)}") from None


def _short(shape: tuple[int, ...]) -> str:
    return str(tuple(shape)) if len(shape) < 10 else f"one of {len(shape)} axes"


def score_record(suite: Suite, point: Point, estimate: np.ndarray[Any, Any], label: str, path: Path) -> Document:
    """A record like that of a cell, for an estimate from elsewhere: no clock ran, and nothing was seen on the way.

    Raises
    ------
    SuiteError
        If the estimate does not have the shape of the signal.
    """
    instance = draw(suite, point)
    if estimate.shape != instance.signal.shape:
        raise SuiteError(str(path), "estimate", f"must have the shape {instance.signal.shape}, got {estimate.shape}")
    finite = bool(np.isfinite(estimate).all())
    cell = {
        "problem": point.plan.problem.spec,
        "algorithm": {"name": label, "version": 0},  # nobody here can tell one version of it from another
        "alpha": point.alpha,
        "dimension": point.dimension,
        "replicate": point.replicate,
        "seed": suite.seed,
        "backend": ELSEWHERE,
        "dtype": suite.run.dtype,
    }
    found = {
        "status": Status.OK.value if finite else Status.DIVERGED.value,
        "reason": "scored" if finite else "the estimate is not made of finite numbers",
        "metrics": instance.metrics(np.asarray(estimate, dtype=np.float64)) if finite else {},
        "sample_ratio": instance.sample_ratio,
        "samples": int(instance.inputs.shape[0]),
        "trajectory": None,
        "timing": {"machine": machine.fingerprint()},
    }
    return new_record(cell, point.plan.label, label, found)


def scores_of(store: Store) -> Store:
    """Where scores lie: in a folder of their own, apart from the cells that smimbench ran."""
    return Store(store.folder / "scored")


def keep_scores(store: Store, records: Sequence[Document]) -> None:
    """Keep scores next to the cells of a suite; an earlier estimate under the same label of the same instance is set aside.

    Raises
    ------
    StoreError
        If the folder cannot be written to.
    """
    scores = scores_of(store)
    known = scores.load()
    scores.retire(record["key"] for record in records if record["key"] in known)
    for record in records:
        scores.write(record)
    scores.sync()


def kept_scores(suite: Suite, store: Store) -> tuple[list[Point], list[Document]]:
    """Points of a suite, as its ``--only`` conditions leave them, that were scored, and the record of each."""
    found = list(scores_of(store).load().values())
    if not found:
        return [], []
    wanted = [value for key, value in suite.only if key == "algorithm"]
    by_place: dict[Any, list[Document]] = {}
    for record in found:
        by_place.setdefault(_place(record["cell"]), []).append(record)
    points, records = [], []
    for point in _points_of_problem(suite):
        cell: Document = {"alpha": point.alpha, "dimension": point.dimension, "replicate": point.replicate}
        cell |= {"problem": point.plan.problem.spec, "seed": suite.seed, "dtype": suite.run.dtype}
        for record in by_place.get(_place(cell), ()):
            if not wanted or record["algorithm"] in wanted:
                points.append(point)
                records.append({**record, "problem": point.plan.label})
    return points, records


def _place(cell: Mapping[str, Any]) -> tuple[Any, ...]:
    """The instance that an estimate was made of: what its data depend on, and that is no version."""
    bare = {kind: {k: v for k, v in item.items() if k not in CODE} for kind, item in cell["problem"].items()}
    return (canonical_json(bare), *(cell.get(key) for key in ("alpha", "dimension", "replicate", "seed", "dtype")))
