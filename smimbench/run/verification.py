"""Verifies stored results: every file byte by byte, theory and a sample of cells by doing them again."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from smimbench.backend import machine
from smimbench.backend.device import BackendError, get_backend
from smimbench.files import JsonObject, canonical_json, error_line, read_json
from smimbench.interfaces import Conditions, Overlaps
from smimbench.problem.problem import Problem, Specification
from smimbench.run.answers import (
    THEORY_ERRORS,
    THEORY_VERSION,
    answer_name,
    check_answer,
    document_of,
    node_answer,
    nodes_folder_name,
    read_answer,
)
from smimbench.run.campaign import run_json_document
from smimbench.run.executor import Limits
from smimbench.run.loop import Status
from smimbench.run.processes import run_in_processes
from smimbench.run.record import (
    LongTrajectory,
    Record,
    differences,
    indented_json,
    json_value,
    one_line_json,
    with_digest,
)
from smimbench.run.store import Store, trials_of
from smimbench.run.theory_solver import TheorySolver
from smimbench.run.tuning import (
    choice_file,
    choice_of,
    log_errors_of_trials,
    read_choice,
    searches,
)
from smimbench.suite.cells import Cell, Suite
from smimbench.theory.information import nodes_of
from smimbench.theory.types import PredictionQuestion

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
    """Outcome of a verification: how much was verified (``checked``), one line for each disagreement or missing file, and
    remarks with the number of cases of each.
    """

    checked: int = 0
    disagreements: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def add(self, complaints: Sequence[str]) -> None:
        """Count one more verified file or result, with its disagreements (``complaints``) if there are any."""
        self.checked += 1
        self.disagreements.extend(complaints)

    def remark(self, case_count: int, remark: str) -> None:
        """Note a remark and the number of cases (``case_count``) that it applies to, unless that is 0."""
        if case_count:
            self.remarks.append(f"{case_count} {remark}")


def verify_files(store: Store) -> Verification:
    """Verify every record, trajectory and ``run.json`` of a store byte by byte, and name the files that were changed."""
    verification, records = Verification(), store.load()
    verification.checked += len(records)
    verification.disagreements += store.complaints
    for file_stem, record in records.items():
        path = store.folder / f"{file_stem}.json"
        verification.disagreements += changed_bytes_line(
            path, lambda record_path: indented_json(read_json(record_path)), path
        )
        if isinstance(record.trajectory, LongTrajectory):
            earlier_complaints = len(store.complaints)
            store.trajectory(record)
            verification.add(store.complaints[earlier_complaints:])

    def shared_text(folder: Path) -> str:
        """Return the exact text that ``run.json`` in a folder must have."""
        return indented_json(with_digest(Store(folder).require_run_json()))

    folder = store.folder
    for path in sorted({*folder.glob("run.json"), *folder.glob("settings/*/run.json")}):
        verification.add(changed_bytes_line(path, shared_text, path.parent))
    return verification


def run_json_differences(suite: Suite, folder: Path) -> list[str]:
    """Return the differences between ``run.json`` in a folder and its suite, one line each."""
    path = folder / "run.json"
    try:
        run_json = Store(folder).require_run_json()
    except FileNotFoundError:
        return [f"{path} is missing; the same 'smimbench run' writes it again"]
    except (OSError, ValueError):  # ``verify_files`` says so
        return []
    current_document = json_value(run_json_document(suite))
    field_names = ("suite", "title", "text", "overrides", "only", "run")
    stored_fields = {field_name: run_json.get(field_name) for field_name in field_names}
    difference_lines = differences(
        stored_fields,
        {field_name: current_document[field_name] for field_name in field_names},
        0.0,
    )
    return [
        f"{path}: {difference_line}"
        for difference_line in itertools.islice(difference_lines, 3)
    ]


def verify_choices(suite: Suite, store: Store) -> Verification:
    """Verify every choice (setting chosen) of ``smimbench tune`` in a store against the records of its trials and the settings of
    the cells.
    """
    verification = Verification()
    trial_store = trials_of(store)
    log_errors = log_errors_of_trials(suite, trial_store)
    for search in searches(suite):
        path = choice_file(search, store)
        used_choice = suite.choices.get(search.labels)
        stored_outcome = read_choice(search, store)
        if stored_outcome is None:
            if used_choice is not None:
                verification.missing.append(
                    f"{path} is missing, which stores how the setting of {search.labels[1]} was chosen"
                )
            continue
        unfinished_cells, repeated_outcome = search.next_cells_or_outcome(
            log_errors, stored_outcome["backend"]
        )
        complaint_lines = []
        if unfinished_cells:
            complaint_lines = [
                f"{path}: {len(unfinished_cells)} runs of its trials are missing"
            ]
        elif (
            repeated_outcome is None
            or with_digest(
                json_value({"question": search.question, **repeated_outcome})
            )
            != stored_outcome
        ):
            complaint_lines = [
                f"{path}: the records of its trials lead to another choice"
            ]
        elif used_choice is not None and used_choice != choice_of(
            search, stored_outcome
        ):
            complaint_lines = [
                f"{path}: the suite was run with another setting of {search.labels[1]}"
            ]
        verification.add(complaint_lines)
    return verification


def changed_bytes_line(
    path: Path, text: Callable[[Any], str], content: Any
) -> list[str]:
    """Compare a file byte by byte with the ``text`` of its content; return one line if they differ."""
    try:
        is_same = text(content).encode() == path.read_bytes()
    except (OSError, ValueError) as error:
        return [f"{path}: {error}"]
    return [] if is_same else [f"{path}: {OTHER_TEXT}"]


@dataclass(frozen=True)
class StoredAnswer:
    """Stored theory result (``document``, of a ``kind`` such as point) whose file is unchanged since it was written.

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
        question_json = canonical_json(self.document["problem"])
        for version in range(THEORY_VERSION, 0, -1):
            if self._is_named(question_json, version):
                return version == THEORY_VERSION
        raise ValueError(
            "the file was renamed: its name does not match the problem and sample ratio in it"
        )

    def _is_named(self, key: str, version: int) -> bool:
        """Whether the file's name is that of its question (``key``) in the given version of theory."""
        path = self.path
        if self.kind == "nodes":
            names = nodes_folder_name(key, version), self.document["node"]
            return (path.parent.name, path.stem) == names
        return path.name == answer_name(self.kind, key, self.document["alpha"], version)

    def compare(self, repeated_answer: Any) -> list[str]:
        """Return the differences between the stored result and one that was solved again (``repeated_answer``), given as
        JSON.
        """
        repeated_answer = json.loads(one_line_json(repeated_answer))
        if isinstance(self.document["answer"], str) and isinstance(
            repeated_answer, str
        ):
            return []  # both say that there is no prediction, and words may change
        relative_tolerance = ROUNDED
        absolute_tolerance = ROUNDED / 100
        this_machine = machine.fingerprint(), machine.versions()
        if (
            self.document.get("machine"),
            self.document.get("versions"),
        ) != this_machine:
            errors = [
                float(np.max(point["mse_error"]))
                for point in _points_of_answer(repeated_answer)
            ]
            relative_tolerance = OTHER_MACHINE
            absolute_tolerance = 4 * max(errors, default=0.0) + 1e-9
        stored_answer, repeated_answer = map(
            _without_reason_texts, (self.document["answer"], repeated_answer)
        )
        difference_lines = differences(
            stored_answer,
            repeated_answer,
            relative_tolerance,
            absolute=absolute_tolerance,
        )
        return [
            f"{self.path}: solved again, {difference_line}"
            for difference_line in itertools.islice(difference_lines, 3)
        ]


def _without_reason_texts(answer: Any) -> Any:
    """Return a theory result (``answer``, as JSON) without the texts that say why it lacks a threshold or a trajectory,
    whose words may change.
    """
    if not isinstance(answer, dict):
        return answer
    answer = dict(answer)
    if isinstance(answer.get("reasons"), dict):
        answer["reasons"] = dict.fromkeys(answer["reasons"], "")
    if "no_trajectory" in answer:
        answer["no_trajectory"] = ""
    return answer


def verify_theory(
    suite: Suite, folder: Path, *, solve_again: bool = True
) -> dict[str, Verification]:
    """Verify every stored theory result byte by byte, and solve those of the suite again from scratch.

    Answers are points, lines of figures, thresholds and those of algorithms, at the sample ratios that were used; nodes are what
    curves are made of. Those of other suites and of older versions are compared byte by byte only, and counted.
    """
    byte_check = Verification()
    answer_check = Verification()
    node_check = Verification()
    problems = {canonical_json(plan.problem.spec): plan.problem for plan in suite.plans}
    stored_by_problem: dict[str, list[StoredAnswer]] = {}
    outdated_count = foreign_count = 0
    answer_files = folder.glob("[!.]*-*.json")
    node_files = folder.glob("nodes/*/[!.]*.json")
    for path in sorted([*answer_files, *node_files]):
        kind = "nodes" if path.parent != folder else path.name.partition("-")[0]
        try:
            answer = StoredAnswer(path, kind, read_answer(path))
            problem_json = canonical_json(answer.problem)
            if not answer.is_current:
                outdated_count += 1
                continue
            components = (
                problems[problem_json].components if problem_json in problems else None
            )
            check_answer(kind, answer.document["answer"], components)
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            byte_check.add([f"{path}: {error}"])
            continue
        byte_complaints = changed_bytes_line(
            path, one_line_json, with_digest(answer.document)
        )
        byte_check.add(byte_complaints)
        if problem_json not in problems:
            foreign_count += not byte_complaints
        elif not byte_complaints:
            stored_by_problem.setdefault(problem_json, []).append(answer)
    byte_check.remark(foreign_count, "of other suites")
    byte_check.remark(outdated_count, "of older versions, not read")
    if solve_again:
        unevaluated_nodes = 0
        for problem_json, problem in problems.items():
            solver = _RepeatSolver(problem, stored_by_problem.get(problem_json, []))
            unevaluated_nodes += solver.compare(answer_check, node_check)
        node_check.remark(
            unevaluated_nodes, "not needed for the stored answers: bytes only"
        )
    return {
        "files of theory": byte_check,
        "answers of theory solved again": answer_check,
        "nodes of theory evaluated again": node_check,
    }


class _RepeatSolver:
    """Solver that repeats the stored answers of a problem without reading any stored file."""

    def __init__(
        self, problem: Problem, stored_answers: Sequence[StoredAnswer]
    ) -> None:
        """Prepare to solve these stored answers of a problem again, with and without errors of prediction."""
        self.problem, self.stored = problem, stored_answers
        # Some answers have no errors of prediction.
        self.solvers = {
            prediction_errors: TheorySolver(
                in_subprocess=True, prediction_errors=prediction_errors
            )
            for prediction_errors in (False, True)
        }
        self.alphas = sorted(
            {
                float(answer.document["alpha"])
                for answer in stored_answers
                if answer.kind == "point"
            }
        )

    def solve(self, stored_answer: StoredAnswer) -> Any:
        """Solve a stored result (``stored_answer``) again and return it as JSON; None for a node (information at one overlap)
        that no other result needed.
        """
        document, problem = stored_answer.document, self.problem
        if stored_answer.kind == "nodes":
            node = nodes_of(problem).evaluated.get(document["node"])
            return None if node is None else node_answer(node)
        if stored_answer.kind == "thresholds":
            return document_of(self.solvers[True].thresholds(problem))
        if stored_answer.kind == "curve":
            return document_of(self.solvers[True].line(problem, document["alpha"]))
        if stored_answer.kind == "floor":
            return document_of(self.solvers[True].floor(problem, document["alpha"]))
        if stored_answer.kind == "own":
            return self._prediction(document)
        prediction_errors = any(
            "generalization_error" in point for point in document["answer"]
        )
        repeated_points = self.solvers[prediction_errors].points(problem, self.alphas)
        return document_of(repeated_points[self.alphas.index(document["alpha"])])

    def _prediction(self, document: JsonObject) -> Any:
        """Repeat a stored prediction for an algorithm, with the conditions that its file (``document``, as JSON) names."""
        _, algorithm_question, _, *variant_marks = document["problem"]
        spec, dimension, start, start_overlaps, iterations, _, trajectory = (
            algorithm_question
        )
        overlaps = tuple(Overlaps(*matrices) for matrices in start_overlaps)
        conditions = Conditions(
            dimension, start, overlaps, iterations, trajectory=trajectory
        )
        question = PredictionQuestion(self.problem, spec, document["alpha"], conditions)
        return document_of(self.solvers[not variant_marks].prediction(question))

    def compare(self, answer_check: Verification, node_check: Verification) -> int:
        """Compare all stored results, then nodes (information at single overlaps), with repeated ones, and count them in
        ``answer_check`` and ``node_check``; return the number of nodes that were not evaluated. ``failed_names`` names items
        (channels, priors, ...) whose code failed.
        """
        unevaluated_nodes, failed_names = 0, set()
        for stored_answer in sorted(
            self.stored, key=lambda answer: KINDS.index(answer.kind)
        ):
            item_name = self.problem.spec["channel"]["name"]
            if stored_answer.kind == "own":
                item_name = stored_answer.document["problem"][1][0]["name"]
            try:
                answer = (
                    None if item_name in failed_names else self.solve(stored_answer)
                )
            except THEORY_ERRORS as error:  # what is stored of it is none the worse
                # An algorithm may have a theory at other points.
                if stored_answer.kind != "own":
                    failed_names.add(item_name)
                remark = f"{item_name}: its theory raised {error_line(error)}"
                if remark not in answer_check.remarks:
                    answer_check.remarks.append(remark)
                continue
            is_node = stored_answer.kind == "nodes"
            unevaluated_nodes += is_node and answer is None
            if answer is not None:
                (node_check if is_node else answer_check).add(
                    stored_answer.compare(answer)
                )
        return unevaluated_nodes


KINDS = ("point", "thresholds", "curve", "floor", "own", "nodes")
"""Stored answers in the order in which they are solved again."""


def _points_of_answer(answer: Any) -> Iterator[JsonObject]:
    """Yield the points in a theory result (``answer``, as JSON): itself, its branches, or the branches along a line."""
    if isinstance(answer, dict) and "mse_error" in answer:
        yield answer
    if isinstance(answer, list):
        for nested_answer in answer:
            yield from _points_of_answer(nested_answer)


def missing_records(cells: Sequence[Cell], store: Store) -> list[str]:
    """Return one line for each cell of a suite without a record in the store, naming the file that would hold it."""
    keys_with_record = {file_stem.partition(".")[0] for file_stem in store.load()}
    return [
        f"{store.folder / cell.key}.json is missing: {cell.problem_label}, {cell.algorithm_label}, alpha {cell.alpha:.5g}, "
        f"D = {cell.dimension}, replicate {cell.replicate}, {cell.backend}"
        for cell in cells
        if cell.key not in keys_with_record
    ]


def verify_reruns(
    cells: Sequence[Cell],
    store: Store,
    *,
    cell_count: int,
    seed: int,
    compare_trajectories: bool = True,
) -> Verification:
    """Run a random sample of ``cell_count`` stored cells (runs), chosen by ``seed``, again, and compare everything except times,
    and trajectories only with ``compare_trajectories``.

    Parameters
    ----------
    compare_trajectories : bool
        Whether the records have trajectories; those of a submission have none.
    """
    verification, records = Verification(), store.load()
    cell_of_key = {cell.key: cell for cell in cells}
    stems_of_key: dict[str, list[str]] = {}  # trusted times are in records of their own
    for file_stem, record in records.items():
        if record.key in cell_of_key and _has_backend(
            cell_of_key[record.key], verification
        ):
            stems_of_key.setdefault(record.key, []).append(file_stem)
    keys = list(stems_of_key)
    cells_by_setting: dict[tuple[int, bool], list[Cell]] = {}
    for key_index in np.random.default_rng(seed).permutation(len(keys))[:cell_count]:
        record = records[stems_of_key[keys[key_index]][0]]
        setting = _threads_of(record), _was_killed(record)
        cells_by_setting.setdefault(setting, []).append(cell_of_key[keys[key_index]])
    for (threads, was_killed), chosen_cells in cells_by_setting.items():
        run_again = _rerun_with_time_limit if was_killed else rerun_without_time_limit
        for cell, repeated_record in run_again(chosen_cells, threads):
            for file_stem in stems_of_key[cell.key]:
                difference_lines = _record_differences(
                    records[file_stem],
                    repeated_record,
                    store,
                    compare_trajectories=compare_trajectories,
                )
                prefix = f"{store.folder / file_stem}.json: run again"
                verification.add(
                    [
                        f"{prefix}, {difference_line}"
                        for difference_line in itertools.islice(difference_lines, 3)
                    ]
                )
    return verification


def _has_backend(cell: Cell, verification: Verification) -> bool:
    """Whether a cell's (run's) backend is available on this machine; if not, a remark of the verification counts the cell."""
    try:
        get_backend(cell.backend, cell.run.dtype, tf32=cell.run.tf32)
    except BackendError as error:
        remark = f"cells of {cell.backend} cannot be run again here: {error}"
        if remark not in verification.remarks:
            verification.remarks.append(remark)
        return False
    return True


def _threads_of(record: Record) -> int:
    """Return the number of BLAS threads of a stored run (its record), limited to the cores of this machine."""
    return max(1, min(record.timing.threads or 1, os.cpu_count() or 1))


def _was_killed(record: Record) -> bool:
    """Whether a record belongs to a process that a time limit ended before there was an estimate."""
    return record.status == Status.TIMEOUT and not record.metrics


def rerun_without_time_limit(
    cells: Iterable[Cell], threads: int
) -> Iterator[tuple[Cell, Record]]:
    """Run cells again, with this number of BLAS ``threads``, without a time limit, which a busy machine would reach earlier;
    yield cells and records.
    """
    unlimited_cells = [
        (replace(cell, run=cell.run.model_copy(update={"timeout": None})), cell)
        for cell in cells
    ]
    original_cell = {
        unlimited_cell.key: cell for unlimited_cell, cell in unlimited_cells
    }
    for record in run_in_processes(
        [unlimited_cell for unlimited_cell, _ in unlimited_cells], 1, threads
    ):
        yield original_cell[record.key], record


def _rerun_with_time_limit(
    cells: Sequence[Cell], threads: int
) -> Iterator[tuple[Cell, Record]]:
    """Run cells again, with this number of BLAS ``threads`` and the suite's time limit, at most ``LONGEST_RERUN``; yield
    cells and records.
    """
    cell_of_key = {cell.key: cell for cell in cells}
    for record in run_in_processes(
        cells, 1, threads, limits=Limits(seconds=LONGEST_RERUN)
    ):
        yield cell_of_key[record.key], record


def _record_differences(
    stored_record: Record,
    repeated_record: Record,
    store: Store,
    *,
    compare_trajectories: bool,
) -> Iterator[str]:
    """Yield the differences, in words, between a stored record and that of the same cell run again (``repeated_record``), in
    trajectories only with ``compare_trajectories``.
    """
    is_same_machine = (
        stored_record.timing.machine == machine.fingerprint()
        and stored_record.versions == repeated_record.versions
    )
    stored_fields, repeated_fields = (
        _reproducible_fields(record, store, numbers_in_texts=is_same_machine)
        for record in (stored_record, repeated_record)
    )
    is_shorter = (stored_record.iterations or 0) < (repeated_record.iterations or 0)
    if not compare_trajectories:
        del stored_fields["trajectory"], repeated_fields["trajectory"]
    elif (
        stored_record.status == Status.TIMEOUT
        and is_shorter
        and stored_fields["trajectory"]
    ):
        stored_fields, repeated_fields = _steps_before_time_limit(
            stored_fields, repeated_fields
        )
    return differences(
        stored_fields, repeated_fields, 0.0 if is_same_machine else OTHER_MACHINE
    )


REPRODUCIBLE = (
    "status", "reason", "restart_reason", "metrics", "blank", "samples", "sample_ratio", "fresh_samples", "iterations",
    "restarts", "start", "final", "warnings",
)  # fmt: skip
"""Fields of a record that follow from suite, seed and code, besides its trajectory and the price of a step."""
NOT_VERIFIED = "times, memory and load; machine, versions and where inputs lay; labels; printed output and tracebacks"
"""What no second run can confirm."""


def _reproducible_fields(
    record: Record, store: Store, *, numbers_in_texts: bool
) -> dict[str, Any]:
    """Return the part of a record, with its trajectory from the store, that suite, seed and code determine; unless
    ``numbers_in_texts``, without numbers in texts.
    """
    columns = store.trajectory(record) or {}
    reproducible_fields = {
        field_name: getattr(record, field_name) for field_name in REPRODUCIBLE
    }
    reproducible_fields["where"] = PurePath(
        record.where or ""
    ).name  # without the folder of an installation
    reproducible_fields["cost"] = json_value(record.timing.cost)
    reproducible_fields["trajectory"] = {
        field_name: column.tolist()
        for field_name, column in columns.items()
        if field_name != "seconds"
    }
    if not numbers_in_texts:
        for field_name in ("reason", "restart_reason"):
            reproducible_fields[field_name] = re.sub(
                r"\d+(\.\d+)?(e[+-]?\d+)?", "#", reproducible_fields[field_name] or ""
            )
        reproducible_fields["warnings"] = [
            re.sub(r"\d+(\.\d+)?(e[+-]?\d+)?", "#", warning_line)
            for warning_line in reproducible_fields["warnings"] or ()
        ]
    return json.loads(json.dumps(reproducible_fields))  # type: ignore[no-any-return]


def _steps_before_time_limit(
    stopped_run: dict[str, Any], full_run: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the part that two runs of a cell share, of ``stopped_run``, which a time limit ended, and of ``full_run``:
    start and recorded steps.

    The values at its end are those of its last step.
    """
    recorded_iterations = set(full_run["trajectory"]["iteration"])
    common_fields = []
    for run_fields in (stopped_run, full_run):
        trajectory = run_fields["trajectory"]
        common_rows = [
            row_index
            for row_index, iteration in enumerate(trajectory["iteration"])
            if iteration in recorded_iterations
            and iteration <= stopped_run["iterations"]
        ]
        columns = {
            name: [column[row_index] for row_index in common_rows]
            for name, column in trajectory.items()
        }
        start_fields = {name: run_fields[name] for name in ("samples", "start", "cost")}
        common_fields.append({**start_fields, "trajectory": columns})
    metrics = stopped_run["metrics"]
    last_metrics = {
        name: column[-1]
        for name, column in stopped_run["trajectory"].items()
        if name in metrics
    }
    common_fields[0]["metrics"] = {name: metrics[name] for name in last_metrics}
    common_fields[1]["metrics"] = last_metrics
    return common_fields[0], common_fields[1]
