"""Verifies stored results (every file byte by byte, theory, a sample of cells), and points of theory by Monte Carlo draws."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any, Protocol

import numpy as np

from smimbench.backend import machine
from smimbench.backend.device import BackendError, get_backend
from smimbench.files import JsonObject, canonical_json, error_line, read_json
from smimbench.interfaces import Conditions, Overlaps
from smimbench.problem.problem import AlgorithmWithAssumption, Problem, Specification
from smimbench.run.answers import (
    THEORY_ERRORS,
    THEORY_VERSION,
    answer_name,
    check_answer,
    document_of,
    node_answer,
    nodes_name,
    read_answer,
)
from smimbench.run.campaign import shared_document
from smimbench.run.executor import Limits
from smimbench.run.loop import Status
from smimbench.run.processes import in_processes
from smimbench.run.record import (
    LongTrajectory,
    Record,
    document_text,
    plain,
    sealed,
    text_of,
)
from smimbench.run.store import Store, trials_of
from smimbench.run.theory_solver import OnProgress, Progress, TheorySolver
from smimbench.run.tuning import (
    choice_file,
    choice_of,
    log_errors_in,
    read_choice,
    searches,
)
from smimbench.suite.cells import Cell, ProblemPlan, Suite, build_algorithm
from smimbench.theory.information import nodes_of
from smimbench.theory.predictions import own_theory
from smimbench.theory.types import PredictionQuestion, TheoryPoint
from smimbench.theory.verification import RESOLVE, Check, verify_point

OTHER_TEXT = "its numbers are unchanged, but its text is not as smimbench wrote it"

OTHER_MACHINE = 1e-5
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
    """Outcome of a verification: how much was verified, and one line for each disagreement or missing file."""

    checked: int = 0
    disagreements: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def add(self, complaints: Sequence[str]) -> None:
        """Count one more verified file or result, with its disagreements if there are any."""
        self.checked += 1
        self.disagreements.extend(complaints)

    def remark(self, count: int, remark: str) -> None:
        """Note a remark and the number of cases that it applies to, unless that is 0."""
        if count:
            self.remarks.append(f"{count} {remark}")


def files(store: Store) -> Verification:
    """Verify every record, trajectory and ``run.json`` byte by byte, and name the files that were changed."""
    verification, records = Verification(), store.load()
    verification.checked += len(records)
    verification.disagreements += store.complaints
    for stem, record in records.items():
        path = store.folder / f"{stem}.json"
        verification.disagreements += plugin_warnings(
            path, lambda p: text_of(read_json(p)), path
        )
        if isinstance(record.trajectory, LongTrajectory):
            count = len(store.complaints)
            store.trajectory(record)
            verification.add(store.complaints[count:])

    def shared_text(folder: Path) -> str:
        return text_of(sealed(Store(folder).check_shared()))

    folder = store.folder
    for path in sorted({*folder.glob("run.json"), *folder.glob("settings/*/run.json")}):
        verification.add(plugin_warnings(path, shared_text, path.parent))
    return verification


def shared_documents(suite: Suite, folder: Path) -> list[str]:
    """Return the differences between ``run.json`` in a folder and its suite, one line each."""
    path = folder / "run.json"
    try:
        shared = Store(folder).check_shared()
    except FileNotFoundError:
        return [f"{path} is missing; the same 'smimbench run' writes it again"]
    except (OSError, ValueError):  # ``files`` says so
        return []
    written = plain(shared_document(suite))
    names = ("suite", "title", "text", "overrides", "only", "run")
    stored = {name: shared.get(name) for name in names}
    lines = differences(stored, {name: written[name] for name in names}, 0.0)
    return [f"{path}: {line}" for line in itertools.islice(lines, 3)]


def choices(suite: Suite, store: Store) -> Verification:
    """Verify every choice of ``smimbench tune`` against the records of its trials and the settings of the cells."""
    verification, trials = Verification(), trials_of(store)
    log_errors = log_errors_in(suite, trials)
    for search in searches(suite):
        path, used = choice_file(search, store), suite.choices.get(search.place)
        stored = read_choice(search, store)
        if stored is None:
            if used is not None:
                verification.missing.append(
                    f"{path} is missing, which stores how the setting of {search.place[1]} was chosen"
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
            lines = [f"{path}: the records of its trials lead to another choice"]
        elif used is not None and used != choice_of(search, stored):
            lines = [
                f"{path}: the suite was run with another setting of {search.place[1]}"
            ]
        verification.add(lines)
    return verification


def plugin_warnings(path: Path, text: Callable[[Any], str], content: Any) -> list[str]:
    """Return the defects of a file, found by comparing it byte by byte with the ``text`` of its content."""
    try:
        is_same = text(content).encode() == path.read_bytes()
    except (OSError, ValueError) as error:
        return [f"{path}: {error}"]
    return [] if is_same else [f"{path}: {OTHER_TEXT}"]


@dataclass(frozen=True)
class StoredAnswer:
    """Stored theory result whose file is unchanged since it was written.

    Attributes
    ----------
    kind : str
        As of ``AnswerKey``, or ``"nodes"``.
    document : dict
        What the file holds.
    """

    path: Path
    kind: str
    document: JsonObject

    @property
    def problem(self) -> dict[str, Specification]:
        """Specification of the problem that the result belongs to."""
        question = self.document["problem"]
        return question[0] if self.kind == "own" else question  # type: ignore[no-any-return]

    @property
    def is_current(self) -> bool:
        """Whether the result was made by this version of theory; False for an older version.

        Raises
        ------
        ValueError
            If its name is that of another question.
        """
        key = canonical_json(self.document["problem"])
        for version in range(THEORY_VERSION, 0, -1):
            if self._is_named(key, version):
                return version == THEORY_VERSION
        raise ValueError("the file name does not match the theory result inside")

    def _is_named(self, key: str, version: int) -> bool:
        """Whether the file's name is that of its question in the given version of theory."""
        path = self.path
        if self.kind == "nodes":
            names = nodes_name(key, version), self.document["node"]
            return (path.parent.name, path.stem) == names
        return path.name == answer_name(self.kind, key, self.document["alpha"], version)

    def compare(self, solved: Any) -> list[str]:
        """Return the differences between the stored result and one that was solved again, given as JSON."""
        solved = json.loads(document_text(solved))
        if isinstance(self.document["answer"], str) and isinstance(solved, str):
            return []  # both say that there is no prediction, and words may change
        relative, absolute = ROUNDED, ROUNDED / 100
        made_here = machine.fingerprint(), machine.versions()
        if (self.document.get("machine"), self.document.get("versions")) != made_here:
            errors = [float(np.max(point["mse_error"])) for point in _points_in(solved)]
            relative, absolute = OTHER_MACHINE, 4 * max(errors, default=0.0) + 1e-9
        stored_answer, solved = map(_without_reasons, (self.document["answer"], solved))
        lines = differences(stored_answer, solved, relative, absolute=absolute)
        return [
            f"{self.path}: solved again, {line}" for line in itertools.islice(lines, 3)
        ]


def _without_reasons(answer: Any) -> Any:
    """Replace the texts that say why an answer lacks a threshold or a trajectory, whose words may change."""
    if not isinstance(answer, dict):
        return answer
    answer = dict(answer)
    if isinstance(answer.get("reasons"), dict):
        answer["reasons"] = dict.fromkeys(answer["reasons"], "")
    if "no_trajectory" in answer:
        answer["no_trajectory"] = ""
    return answer


def stored_theory(
    suite: Suite, folder: Path, *, solve: bool = True
) -> dict[str, Verification]:
    """Verify every stored theory result byte by byte, and solve those of the suite again from scratch.

    Answers are points, lines of figures, thresholds and those of algorithms, at the sample ratios that were used; nodes are what
    curves are made of. Those of other suites and of older versions are compared byte by byte only, and counted.
    """
    unchanged, solved, evaluated = Verification(), Verification(), Verification()
    problems = {canonical_json(plan.problem.spec): plan.problem for plan in suite.plans}
    stored: dict[str, list[StoredAnswer]] = {}
    outdated = foreign = 0
    answers, nodes = folder.glob("[!.]*-*.json"), folder.glob("nodes/*/[!.]*.json")
    for path in sorted([*answers, *nodes]):
        kind = "nodes" if path.parent != folder else path.name.partition("-")[0]
        try:
            answer = StoredAnswer(path, kind, read_answer(path))
            key = canonical_json(answer.problem)
            if not answer.is_current:
                outdated += 1
                continue
            components = problems[key].components if key in problems else None
            check_answer(kind, answer.document["answer"], components)
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            unchanged.add([f"{path}: {error}"])
            continue
        lines = plugin_warnings(path, document_text, sealed(answer.document))
        unchanged.add(lines)
        if key not in problems:
            foreign += not lines
        elif not lines:
            stored.setdefault(key, []).append(answer)
    unchanged.remark(foreign, "of other suites")
    unchanged.remark(outdated, "of older versions, not read")
    if solve:
        count = 0
        for key, problem in problems.items():
            solver = _SolverAgain(problem, stored.get(key, []))
            count += solver.compare(solved, evaluated)
        evaluated.remark(count, "not needed for the stored answers: bytes only")
    return {
        "files of theory": unchanged,
        "answers of theory solved again": solved,
        "nodes of theory evaluated again": evaluated,
    }


class _SolverAgain:
    """Solves the stored answers of a problem again, without reading any stored file."""

    def __init__(self, problem: Problem, stored: Sequence[StoredAnswer]) -> None:
        self.problem, self.stored = problem, stored
        # Some answers have no errors of prediction.
        self.solvers = {
            predictions: TheorySolver(isolated=True, predictions=predictions)
            for predictions in (False, True)
        }
        self.alphas = sorted(
            {float(s.document["alpha"]) for s in stored if s.kind == "point"}
        )

    def solve(self, stored: StoredAnswer) -> Any:
        """Solve a stored result again and return it as JSON; None for a node that no other result needed."""
        document, problem = stored.document, self.problem
        if stored.kind == "nodes":
            node = nodes_of(problem).evaluated.get(document["node"])
            return None if node is None else node_answer(node)
        if stored.kind == "thresholds":
            return document_of(self.solvers[True].thresholds(problem))
        if stored.kind == "curve":
            return document_of(self.solvers[True].line(problem, document["alpha"]))
        if stored.kind == "own":
            return self._prediction(document)
        predictions = any("generalization_error" in p for p in document["answer"])
        points = self.solvers[predictions].points(problem, self.alphas)
        return document_of(points[self.alphas.index(document["alpha"])])

    def _prediction(self, document: JsonObject) -> Any:
        _, asked_of, _, *brief = document["problem"]
        spec, dimension, start, starts, iterations, _, trajectory = asked_of
        overlaps = tuple(Overlaps(*matrices) for matrices in starts)
        conditions = Conditions(
            dimension, start, overlaps, iterations, trajectory=trajectory
        )
        question = PredictionQuestion(self.problem, spec, document["alpha"], conditions)
        return document_of(self.solvers[not brief].prediction(question))

    def compare(self, solved: Verification, evaluated: Verification) -> int:
        """Compare all results, then nodes; return the number of nodes that were not evaluated."""
        count, failed = 0, set()
        for stored in sorted(self.stored, key=lambda s: KINDS.index(s.kind)):
            name = self.problem.spec["channel"]["name"]
            if stored.kind == "own":
                name = stored.document["problem"][1][0]["name"]
            try:
                answer = None if name in failed else self.solve(stored)
            except THEORY_ERRORS as error:  # what is stored of it is none the worse
                if stored.kind != "own":
                    failed.add(name)  # an algorithm may have a theory at other points
                solved.remarks.append(f"{name}: its theory raised {error_line(error)}")
                continue
            is_node = stored.kind == "nodes"
            count += is_node and answer is None
            if answer is not None:
                (evaluated if is_node else solved).add(stored.compare(answer))
        return count


KINDS = ("point", "thresholds", "curve", "own", "nodes")
"""Stored answers in the order in which they are solved again."""


def _points_in(answer: Any) -> Iterator[JsonObject]:
    """Yield the points in a theory result: itself, its branches, or the branches along a line."""
    if isinstance(answer, dict) and "mse_error" in answer:
        yield answer
    if isinstance(answer, list):
        for element in answer:
            yield from _points_in(element)


def missing_records(cells: Sequence[Cell], store: Store) -> list[str]:
    """Return one line for each cell of a suite without a record, naming the file that would hold it."""
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
    """Run a random sample of the stored cells again, and compare everything except times.

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
        run_again = _with_limits if killed else untimed
        for cell, repeated in run_again(chosen, threads):
            for stem in stems[cell.key]:
                lines = _unreproduced(
                    records[stem], repeated, store, trajectories=trajectories
                )
                place = f"{store.folder / stem}.json: run again"
                verification.add(
                    [f"{place}, {line}" for line in itertools.islice(lines, 3)]
                )
    return verification


def _has_backend(cell: Cell, verification: Verification) -> bool:
    """Whether a cell's backend is available on this machine; if not, a remark counts the cell."""
    try:
        get_backend(cell.backend, cell.run.dtype, tf32=cell.run.tf32)
    except BackendError as error:
        remark = f"cells of {cell.backend} cannot be run again here: {error}"
        if remark not in verification.remarks:
            verification.remarks.append(remark)
        return False
    return True


def _threads_of(record: Record) -> int:
    """Number of BLAS threads of a run, limited to the cores of this machine."""
    return max(1, min(record.timing.threads or 1, os.cpu_count() or 1))


def _was_killed(record: Record) -> bool:
    """Whether a record belongs to a process that a time limit ended before there was an estimate."""
    return record.status == Status.TIMEOUT and not record.metrics


def untimed(cells: Iterable[Cell], threads: int) -> Iterator[tuple[Cell, Record]]:
    """Run cells again without a time limit, which a busy machine would reach earlier; yield cells and records."""
    free = [
        (replace(cell, run=cell.run.model_copy(update={"timeout": None})), cell)
        for cell in cells
    ]
    again = {variant.key: cell for variant, cell in free}
    for record in in_processes([variant for variant, _ in free], 1, threads):
        yield again[record.key], record


def _with_limits(cells: Sequence[Cell], threads: int) -> Iterator[tuple[Cell, Record]]:
    """Run cells again with the suite's time limit, at most ``LONGEST_RERUN``; yield cells and records."""
    again = {cell.key: cell for cell in cells}
    for record in in_processes(cells, 1, threads, limits=Limits(seconds=LONGEST_RERUN)):
        yield again[record.key], record


def _unreproduced(
    stored: Record, repeated: Record, store: Store, *, trajectories: bool
) -> Iterator[str]:
    """Return the differences, in words, between a record and that of the same cell run again."""
    is_same_machine = (
        stored.timing.machine == machine.fingerprint()
        and stored.versions == repeated.versions
    )
    expected, actual = (
        _reproducible(record, store, exact=is_same_machine)
        for record in (stored, repeated)
    )
    is_shorter = (stored.iterations or 0) < (repeated.iterations or 0)
    if not trajectories:
        del expected["trajectory"], actual["trajectory"]
    elif stored.status == Status.TIMEOUT and is_shorter and expected["trajectory"]:
        expected, actual = _until_the_clock(expected, actual)
    return differences(expected, actual, 0.0 if is_same_machine else OTHER_MACHINE)


REPRODUCIBLE = (
    "status", "reason", "restart_reason", "metrics", "blank", "samples", "sample_ratio", "fresh_samples", "iterations",
    "restarts", "start", "final", "warnings",
)  # fmt: skip
"""Fields of a record that follow from suite, seed and code, besides its trajectory and the price of a step."""
NOT_VERIFIED = "times, memory and load; machine, versions and where inputs lay; labels; printed output and tracebacks"
"""What no second run can confirm."""


def _reproducible(record: Record, store: Store, *, exact: bool) -> dict[str, Any]:
    """Return the part of a record that suite, seed and code determine; unless ``exact``, without numbers in texts."""
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
    stopped: dict[str, Any], full: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the part of a run ended by a time limit that the full run shares: start and recorded steps.

    The values at its end are those of its last step.
    """
    recorded = set(full["trajectory"]["iteration"])
    shared = []
    for fields in (stopped, full):
        trajectory = fields["trajectory"]
        rows = [
            row
            for row, step in enumerate(trajectory["iteration"])
            if step in recorded and step <= stopped["iterations"]
        ]
        columns = {
            name: [column[row] for row in rows] for name, column in trajectory.items()
        }
        start = {name: fields[name] for name in ("samples", "start", "cost")}
        shared.append({**start, "trajectory": columns})
    metrics = stopped["metrics"]
    ends = {
        name: column[-1]
        for name, column in stopped["trajectory"].items()
        if name in metrics
    }
    shared[0]["metrics"] = {name: metrics[name] for name in ends}
    shared[1]["metrics"] = ends
    return shared[0], shared[1]


def differences(
    stored: Any, repeated: Any, tolerance: float, *, absolute: float | None = None
) -> Iterator[str]:
    """Return the differences, in words, between two documents, up to a relative or ``absolute`` tolerance of numbers."""
    expected, actual = dict(_leaves(stored)), dict(_leaves(repeated))
    allowed = tolerance if absolute is None else absolute
    for path in {**expected, **actual}:
        a, b = expected.get(path), actual.get(path)
        is_same = a == b
        if isinstance(a, float) and isinstance(b, float):
            are_nan = math.isnan(a) and math.isnan(b)
            is_close = math.isclose(a, b, rel_tol=tolerance, abs_tol=allowed)
            is_same = are_nan or is_close
        if not is_same:
            yield f"{path or 'it'} is {b!r}, stored is {a!r}"


def _leaves(document: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every number, text or null in a document, with its path."""
    if isinstance(document, dict):
        for key, field_ in document.items():
            yield from _leaves(field_, f"{path}.{key}".removeprefix("."))
    elif isinstance(document, list):
        for i, element in enumerate(document):
            yield from _leaves(element, f"{path}[{i}]")
    else:
        yield path, document


# -- theory against Monte Carlo draws ------------------------------------------------------------------------------------


class DrawnTheory(Protocol):
    """Protocol of a problem's theory whose points are checked by draws (``ProblemTheory`` is one)."""

    @property
    def points(self) -> Sequence[TheoryPoint]:
        """All points of the theory."""
        ...

    @property
    def predicted(self) -> Sequence[tuple[str, float]]:
        """Pairs of algorithm label and sample ratio for which there is a prediction."""
        ...


def draw_checks(
    suite: Suite,
    theories: Sequence[DrawnTheory],
    resolve: float = RESOLVE,
    on_progress: OnProgress = lambda problem, progress: None,
) -> list[list[Check]]:
    """Check the theory of a suite's problems by Monte Carlo draws at every point.

    Parameters
    ----------
    theories : sequence
        Of every problem; of its algorithms those with wrong assumptions are drawn.
    resolve : float
        As many draws are made as show a relative error of this size.
    """
    return [
        [
            *_checks_of_points(plan, theory.points, resolve, on_progress),
            *_checks_of_assumptions(suite, plan, theory.predicted),
        ]
        for plan, theory in zip(suite.chosen_plans, theories)
    ]


def _checks_of_points(
    plan: ProblemPlan,
    points: Sequence[TheoryPoint],
    resolve: float,
    on_progress: OnProgress,
) -> Iterator[Check]:
    """Yield Monte Carlo checks of the points of a problem."""
    for k, point in enumerate(points):
        count = 0

        def on_draws(draws: int, k: int = k) -> None:
            nonlocal count
            count += draws
            note = f"{count} draws at this point"
            on_progress(plan.problem, Progress(k, len(points), note=note))

        on_progress(plan.problem, Progress(k, len(points)))
        checks = verify_point(
            plan.problem, point, resolve, clock=time.perf_counter, on_draws=on_draws
        )
        for check in checks:
            yield replace(check, alpha=point.alpha, branch=point.branch)
        on_progress(plan.problem, Progress(k + 1, len(points)))


def _checks_of_assumptions(
    suite: Suite, plan: ProblemPlan, places: Sequence[tuple[str, float]]
) -> Iterator[Check]:
    """Yield Monte Carlo checks of predictions for algorithms that assume another channel or prior."""
    specs = {plan.label: plan.spec for plan in suite.algorithms}
    for label, alpha in places:
        algorithm = build_algorithm(specs[label], plan.problem)
        if not isinstance(algorithm, AlgorithmWithAssumption):
            continue
        if not algorithm.assumed(plan.problem).is_assumed:
            continue
        conditions = Conditions(start=suite.run.start)
        prediction = own_theory(algorithm, plan.problem, alpha, conditions)
        if not isinstance(prediction, str) and prediction.draws is not None:
            for check in prediction.draws():
                yield replace(check, alpha=alpha, branch=label)
