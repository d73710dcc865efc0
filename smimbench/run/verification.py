"""Verifies stored results for ``verify``: bytes of every file, theory solved again, a sample of cells run again."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np

from smimbench.backend import machine
from smimbench.backend.device import BackendError, get_backend
from smimbench.files import JsonObject, canonical_json, error_line, read_json
from smimbench.interfaces import Conditions, Overlaps
from smimbench.problem.problem import Problem
from smimbench.run.answers import (
    THEORY_ERRORS,
    THEORY_VERSION,
    answer_name,
    document_of,
    node_answer,
    nodes_name,
)
from smimbench.run.campaign import shared_document
from smimbench.run.executor import Limits
from smimbench.run.loop import Status
from smimbench.run.processes import in_processes
from smimbench.run.record import (
    LongTrajectory,
    Record,
    check_answer,
    document_text,
    plain,
    read_answer,
    sealed,
    text_of,
)
from smimbench.run.store import Store
from smimbench.run.theory_solver import TheorySolver
from smimbench.run.tuning import (
    choice_file,
    choice_of,
    log_errors_in,
    read_choice,
    searches,
    tuning_store,
)
from smimbench.suite.cells import Cell, Suite
from smimbench.theory.information import nodes_of
from smimbench.theory.questions import PredictionQuestion

OTHER_TEXT = "its text is not what smimbench wrote, though its numbers are"

ELSEWHERE = 1e-5
"""Relative difference of numbers from another machine, or another number of threads, that is no disagreement. Doubled, a
change of the sixth digit of a record from elsewhere goes unnoticed."""


LONGEST_RERUN = 3600.0
"""Seconds that a cell may take whose process is said to have been ended by a time limit. Doubled, one that never returns is
waited for that much longer.
"""

ROUNDED = 1e-9
"""Relative difference of theory from this machine that is rounding, for points are solved in other batches. Doubled, a change
of the ninth digit under a digest that fits goes unnoticed."""


@dataclass
class Verification:
    """What was verified, with one line for each thing that does not agree and for each that is missing."""

    checked: int = 0
    wrong: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def add(self, complaints: Sequence[str]) -> None:
        """Count one more verified thing, with its disagreement if there is one."""
        self.checked += 1
        self.wrong.extend(complaints)


def files(store: Store) -> Verification:
    """Every record, trajectory and ``run.json``, to the last byte: a digit that was changed is named by its file."""
    found = Verification()
    records = store.load()
    found.checked += len(records)
    found.wrong += store.complaints
    for stem, record in records.items():
        path = store.folder / f"{stem}.json"
        found.wrong += complaints_of(path, lambda p: text_of(read_json(p)), path)
        before = len(store.complaints)
        if isinstance(record.trajectory, LongTrajectory):
            store.trajectory(record)
            found.add(store.complaints[before:])
    for path in sorted(
        {*store.folder.glob("run.json"), *store.folder.glob("settings/*/run.json")}
    ):
        found.add(
            complaints_of(
                path,
                lambda folder: text_of(sealed(Store(folder).check_shared())),
                path.parent,
            )
        )
    return found


def shared_documents(suite: Suite, folder: Path) -> list[str]:
    """Differences between ``run.json`` in a folder and its suite, one line each."""
    path = folder / "run.json"
    try:
        shared = Store(folder).check_shared()
    except FileNotFoundError:
        return [f"{path} is missing; the same 'smimbench run' writes it again"]
    except (OSError, ValueError):  # ``files`` says so
        return []
    written = plain(shared_document(suite))
    names = ("suite", "title", "text", "overrides", "only", "run")
    lines = differences(
        {name: shared.get(name) for name in names},
        {name: written[name] for name in names},
        0.0,
    )
    return [f"{path}: {line}" for line in itertools.islice(lines, 3)]


def choices(suite: Suite, store: Store) -> Verification:
    """Every choice of ``smimbench tune`` made again from the records of its trials, and compared with what cells ran with."""
    verification, trials = Verification(), tuning_store(store)
    log_errors = log_errors_in(suite, trials)
    for search in searches(suite):
        path, used = choice_file(search, store), suite.choices.get(search.place)
        stored = read_choice(search, store)
        if stored is None:
            if used is not None:
                verification.missing.append(
                    f"{path} is missing: how the setting of {search.place[1]} was chosen"
                )
            continue
        missing, again = search.proceed(log_errors, stored["backend"])
        lines = []
        if missing:
            lines = [f"{path}: {len(missing)} runs of its trials are missing"]
        elif (
            again is None
            or sealed(plain({"question": search.question, **again})) != stored
        ):
            lines = [f"{path}: its trials give another choice"]
        elif used is not None and used != choice_of(search, stored):
            lines = [
                f"{path}: the suite was run with another setting of {search.place[1]}"
            ]
        verification.add(lines)
    return verification


def complaints_of(path: Path, text: Callable[[Any], str], content: Any) -> list[str]:
    """Defects of a file, found by comparing it byte by byte with the ``text`` of its content."""
    try:
        return (
            []
            if text(content).encode() == path.read_bytes()
            else [f"{path}: {OTHER_TEXT}"]
        )
    except (OSError, ValueError) as error:
        return [f"{path}: {error}"]


def stored_theory(
    suite: Suite, folder: Path, *, solve: bool = True
) -> dict[str, Verification]:
    """Every stored answer of theory to the last byte, and what belongs to the suite solved again from nothing.

    Answers are points, lines of figures, thresholds and those of algorithms, at the sample ratios that were used; nodes are what
    curves are made of. Those of other suites and of older versions are compared byte by byte only, and counted.
    """
    read, again, nodes = Verification(), Verification(), Verification()
    problems = {canonical_json(plan.problem.spec): plan.problem for plan in suite.plans}
    stored: dict[str, list[_Stored]] = {}
    old = 0
    for path in sorted(
        [*folder.glob("[!.]*-*.json"), *folder.glob("nodes/*/[!.]*.json")]
    ):
        kind = "nodes" if path.parent != folder else path.name.partition("-")[0]
        try:
            document = read_answer(path)
            problem = document["problem"]
            key = canonical_json(problem[0] if kind == "own" else problem)
            if not _is_named_by_its_question(path, kind, document):
                old += 1
                continue
            check_answer(
                kind,
                document["answer"],
                problems[key].components if key in problems else None,
            )
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            read.add([f"{path}: {error}"])
            continue
        lines = complaints_of(path, document_text, sealed(document))
        read.add(lines)
        if not lines:
            stored.setdefault(key, []).append(_Stored(path, kind, document))
    others = sum(len(answers) for key, answers in stored.items() if key not in problems)
    read.remarks += [f"{others} of other suites"] * (others > 0) + [
        f"{old} of older versions, not read"
    ] * (old > 0)
    if solve:
        missed = sum(
            _solve_again(p, stored.get(key, []), again, nodes)
            for key, p in problems.items()
        )
        nodes.remarks += [f"{missed} not needed for the stored answers: bytes only"] * (
            missed > 0
        )
    return {
        "files of theory": read,
        "answers of theory solved again": again,
        "nodes of theory evaluated again": nodes,
    }


class _Stored(NamedTuple):
    path: Path
    kind: str
    document: JsonObject


def _is_named_by_its_question(path: Path, kind: str, document: JsonObject) -> bool:
    """Whether an answer of this version has the name of its question; False for one of an older version.

    Raises
    ------
    ValueError
        If its name is that of another question.
    """
    key = canonical_json(document["problem"])
    for version in range(THEORY_VERSION, 0, -1):
        if kind == "nodes":
            same = (
                path.parent.name == nodes_name(key, version)
                and path.stem == document["node"]
            )
        else:
            same = path.name == answer_name(kind, key, document["alpha"], version)
        if same:
            return version == THEORY_VERSION
    raise ValueError("the file name does not match the theory result inside")


def _solve_again(
    problem: Problem,
    stored: Sequence[_Stored],
    again: Verification,
    nodes: Verification,
) -> int:
    """Compare stored theory results of a problem with newly solved ones, without reading any stored file.

    Returns
    -------
    int
        How many nodes were not evaluated for them.
    """
    fresh = TheorySolver(isolated=True)
    bare = TheorySolver(
        isolated=True, predictions=False
    )  # some answers have no errors of prediction
    alphas = sorted(
        {float(one.document["alpha"]) for one in stored if one.kind == "point"}
    )

    def own(document: JsonObject) -> Any:
        _, (spec, dimension, start, starts, iterations, _, trajectory), *more = (
            document["problem"]
        )
        overlaps = tuple(Overlaps(*one) for one in starts)
        conditions = Conditions(
            dimension, start, overlaps, iterations, trajectory=trajectory
        )
        question = PredictionQuestion(problem, spec, document["alpha"], conditions)
        return document_of((bare if more[1:] else fresh).prediction(question))

    def point(document: JsonObject) -> Any:
        full = any("generalization_error" in one for one in document["answer"])
        points = (fresh if full else bare).points(problem, alphas)
        return document_of(points[alphas.index(document["alpha"])])

    known = nodes_of(problem).evaluated
    solvers: dict[str, Callable[[JsonObject], Any]] = {
        "point": point,
        "thresholds": lambda document: document_of(fresh.thresholds(problem)),
        "curve": lambda document: document_of(fresh.line(problem, document["alpha"])),
        "own": own,
        "nodes": lambda document: (
            known.get(document["node"]) and node_answer(known[document["node"]])
        ),
    }
    missed = 0
    failed = set()
    for kind, solve in solvers.items():
        for path, _, document in (one for one in stored if one.kind == kind):
            name = (
                document["problem"][1][0]["name"]
                if kind == "own"
                else problem.spec["channel"]["name"]
            )
            try:
                found = None if name in failed else solve(document)
            except THEORY_ERRORS as error:  # what is stored of it is none the worse
                if kind != "own":  # an algorithm may have a theory at other points
                    failed.add(name)
                again.remarks.append(f"{name}: its theory raised {error_line(error)}")
                continue
            if found is not None:
                (nodes if kind == "nodes" else again).add(
                    _unlike(path, document, found)
                )
            missed += kind == "nodes" and found is None
    return missed


def _unlike(path: Path, document: JsonObject, new: Any) -> list[str]:
    """Description of how a stored result differs from a new one."""
    new = json.loads(document_text(new))
    here = (
        document.get("machine") == machine.fingerprint()
        and document.get("versions") == machine.versions()
    )
    relative, absolute = ROUNDED, ROUNDED / 100
    if not here:
        relative = ELSEWHERE
        absolute = (
            4
            * max(
                (float(np.max(point["mse_error"])) for point in _points_in(new)),
                default=0.0,
            )
            + 1e-9
        )
    differing = differences(document["answer"], new, relative, absolute=absolute)
    return [f"{path}: solved again, {line}" for line in itertools.islice(differing, 3)]


def _points_in(answer: Any) -> Iterator[JsonObject]:
    """Theory points in a result: itself, those of its branches, or those of branches along a line."""
    if isinstance(answer, dict) and "mse_error" in answer:
        yield answer
    for part in answer if isinstance(answer, list) else ():
        yield from _points_in(part)


def missing_records(cells: Sequence[Cell], store: Store) -> list[str]:
    """One line for each cell of a suite that has no record, with the file that would hold it."""
    keys = {stem.partition(".")[0] for stem in store.load()}
    return [
        f"{store.folder / cell.key}.json is missing: {cell.problem_label}, {cell.algorithm_label}, alpha {cell.alpha:.5g}, "
        f"D = {cell.dimension}, replicate {cell.replicate}, {cell.backend}"
        for cell in cells
        if cell.key not in keys
    ]


def rerun(
    cells: Sequence[Cell],
    store: Store,
    *,
    count: int,
    seed: int,
    trajectories: bool = True,
) -> Verification:
    """Run a random sample of the stored cells again, and compare all that does not come from a clock.

    Parameters
    ----------
    trajectories : bool
        Whether the records have trajectories; those of a submission have none.
    """
    verification, records = Verification(), store.load()
    by_key = {cell.key: cell for cell in cells}
    stems: dict[str, list[str]] = {}  # trusted times are in records of their own
    for stem, record in records.items():
        if record.key in by_key and _has_backend(by_key[record.key], verification):
            stems.setdefault(record.key, []).append(stem)
    keys = list(stems)
    by_threads: dict[tuple[int, bool], list[Cell]] = {}
    for i in np.random.default_rng(seed).permutation(len(keys))[:count]:
        record = records[stems[keys[i]][0]]
        setting = _threads_of(record), _was_killed(record)
        by_threads.setdefault(setting, []).append(by_key[keys[i]])
    for (threads, killed), chosen in by_threads.items():
        again = _with_limits(chosen, threads) if killed else untimed(chosen, threads)
        for cell, new in again:
            for stem in stems[cell.key]:
                lines = _unreproduced(
                    records[stem], new, store, trajectories=trajectories
                )
                path = store.folder / f"{stem}.json"
                verification.add(
                    [
                        f"{path}: run again, {line}"
                        for line in itertools.islice(lines, 3)
                    ]
                )
    return verification


def _has_backend(cell: Cell, verification: Verification) -> bool:
    """Whether a cell can be run on this machine; what cannot is counted in the remarks."""
    try:
        get_backend(cell.backend, cell.run.dtype, tf32=cell.run.tf32)
    except BackendError as error:
        if (
            remark := f"cells of {cell.backend} cannot be run again here: {error}"
        ) not in verification.remarks:
            verification.remarks.append(remark)
        return False
    return True


def _threads_of(record: Record) -> int:
    """Number of BLAS threads of a run, as far as it can be had here."""
    return max(1, min(record.timing.threads or 1, os.cpu_count() or 1))


def _was_killed(record: Record) -> bool:
    """Whether a record says that its process was ended by a time limit, without an estimate."""
    return record.status == Status.TIMEOUT and not record.metrics


def untimed(cells: Iterable[Cell], threads: int) -> Iterator[tuple[Cell, Record]]:
    """Cells with their records, run again without a time limit, which a busy machine would reach earlier."""
    free = [
        (replace(cell, run=cell.run.model_copy(update={"timeout": None})), cell)
        for cell in cells
    ]
    again = {variant.key: cell for variant, cell in free}
    for record in in_processes([variant for variant, _ in free], 1, threads):
        yield again[record.key], record


def _with_limits(cells: Sequence[Cell], threads: int) -> Iterator[tuple[Cell, Record]]:
    """Cells with their records, run again with the time limit of the suite and of ``LONGEST_RERUN``."""
    again = {cell.key: cell for cell in cells}
    for record in in_processes(cells, 1, threads, limits=Limits(seconds=LONGEST_RERUN)):
        yield again[record.key], record


def _unreproduced(
    old: Record, new: Record, store: Store, *, trajectories: bool
) -> Iterator[str]:
    """Differences, in words, between a record and that of the same cell run again."""
    same = old.timing.machine == machine.fingerprint() and old.versions == new.versions
    then, now = (_reproducible(record, store, exact=same) for record in (old, new))
    if not trajectories:
        del then["trajectory"], now["trajectory"]
    elif (
        old.status == Status.TIMEOUT
        and (old.iterations or 0) < (new.iterations or 0)
        and then["trajectory"]
    ):
        then, now = _until_the_clock(then, now)
    return differences(then, now, 0.0 if same else ELSEWHERE)


REPRODUCIBLE = (
    "status", "reason", "restart_reason", "metrics", "blank", "samples", "sample_ratio", "fresh_samples", "iterations",
    "restarts", "start", "final", "warnings",
)  # fmt: skip
"""Fields of a record that follow from suite, seed and code, besides its trajectory and the price of a step."""
NOT_VERIFIED = "times, memory and load; machine, versions and where inputs lay; labels; printed output and tracebacks"
"""What no second run can confirm."""


def _reproducible(record: Record, store: Store, *, exact: bool) -> JsonObject:
    """The part of a record that follows from suite, seed and code; without the numbers in texts unless ``exact``."""
    columns = store.trajectory(record) or {}
    fields = {name: getattr(record, name) for name in REPRODUCIBLE}
    fields["where"] = PurePath(
        record.where or ""
    ).name  # without the folder of an installation
    fields["cost"] = plain(record.timing.cost)
    fields["trajectory"] = {
        name: column.tolist() for name, column in columns.items() if name != "seconds"
    }
    if not exact:
        for name in ("reason", "restart_reason"):
            fields[name] = re.sub(r"\d+(\.\d+)?(e[+-]?\d+)?", "#", fields[name] or "")
        fields["warnings"] = [
            re.sub(r"\d+(\.\d+)?(e[+-]?\d+)?", "#", line)
            for line in fields["warnings"] or ()
        ]
    return json.loads(json.dumps(fields))  # type: ignore[no-any-return]


def _until_the_clock(
    then: JsonObject, now: JsonObject
) -> tuple[JsonObject, JsonObject]:
    """Part that a run ended by a clock shares with the full run: its start, and the steps that both recorded.

    The values at its end are those of its last step.
    """
    recorded = set(now["trajectory"]["iteration"])
    compared = []
    for fields in (then, now):
        course = fields["trajectory"]
        rows = [
            row
            for row, step in enumerate(course["iteration"])
            if step in recorded and step <= then["iterations"]
        ]
        shared = {name: fields[name] for name in ("samples", "start", "cost")}
        compared.append(
            shared
            | {
                "trajectory": {
                    name: [column[row] for row in rows]
                    for name, column in course.items()
                }
            }
        )
    ends = {
        name: column[-1]
        for name, column in then["trajectory"].items()
        if name in then["metrics"]
    }
    compared[0]["metrics"] = {name: then["metrics"][name] for name in ends}
    compared[1]["metrics"] = ends
    return compared[0], compared[1]


def differences(
    old: Any, new: Any, tolerance: float, *, absolute: float | None = None
) -> Iterator[str]:
    """Differences between two documents, in words; numbers may differ by a relative or ``absolute`` tolerance."""
    then, now = dict(_leaves(old)), dict(_leaves(new))
    least = tolerance if absolute is None else absolute
    for where in {**then, **now}:
        one, other = then.get(where), now.get(where)
        if isinstance(one, float) and isinstance(other, float):
            same = math.isclose(one, other, rel_tol=tolerance, abs_tol=least) or (
                one != one and other != other
            )
        else:
            same = one == other
        if not same:
            yield f"{where} is {other!r}, stored is {one!r}"


def _leaves(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Every value in a document that is no table and no list, with its place."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _leaves(part, f"{where}.{key}".removeprefix("."))
    elif isinstance(value, list):
        for i, part in enumerate(value):
            yield from _leaves(part, f"{where}[{i}]")
    else:
        yield where, value
