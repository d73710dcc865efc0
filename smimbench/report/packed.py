"""Packed results: the records of a run and the solved theory that its table needs, in one file (format 3).

Nothing in it is derived: rows are made when it is read, as they are from a folder of results. A file whose name ends with ``.gz``
is compressed. A submission to the board is such a file whose rows anybody can run again; ``tools/board.py`` ranks them.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import tempfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field

from smimbench.backend.machine import installed
from smimbench.files import (
    JsonObject,
    canonical_json,
    error_line,
    printable,
    unless,
    write_atomically,
)
from smimbench.problem.problem import Specification
from smimbench.report import stored_table
from smimbench.report.results import Results, ResultsTable, is_packed
from smimbench.report.row import grouped, place
from smimbench.run.answers import answer_name
from smimbench.run.record import (
    LongTrajectory,
    OpenModel,
    RunJson,
    SearchResult,
    check_model,
    digest_of,
    file_stem,
    indented_json,
    json_value,
    one_line_json,
    with_digest,
)
from smimbench.run.store import Store, scores_of, theory_folder
from smimbench.run.tuning import read_choice, searches
from smimbench.run.verification import OTHER_TEXT, Verification
from smimbench.suite import SuiteError
from smimbench.suite.reader import parse_suite
from smimbench.suite.schema import ORACLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smimbench.report.row import Row
    from smimbench.suite.cells import Cell, Suite


FORMAT = 3
"""Version of the file format; increased when older readers could no longer read the file."""
HEAD = b'{"packed":'
"""First bytes of every file of packed results."""
LARGEST = 1 << 28
"""Largest allowed size of decompressed packed results, in bytes. Doubled, a hostile file can use twice the memory."""


class _Timing(OpenModel):
    """Fields of a record's timing from which the name of its file is made."""

    trusted: bool = False
    machine: Annotated[str, Field(pattern=r"^[0-9A-Za-z]{1,64}$")]


class _Record(OpenModel):
    """Fields of a record from which the name of its file is made; the other fields are checked when the record is read."""

    key: Annotated[str, Field(pattern=r"^[0-9a-f]{24}$")]
    timing: _Timing


class _Answer(OpenModel):
    """Fields of a stored answer of theory from which the name of its file is made."""

    problem: object
    alpha: object


class _Pack(OpenModel):
    """Structure of a file of packed results: its format (``packed``), ``run.json``, solved theory by kind, and the records of
    cells and of scored estimates.
    """

    packed: Literal[3]
    run: RunJson
    theory: dict[Literal["point", "thresholds", "own", "curve", "floor"], list[_Answer]]
    records: list[_Record]
    scored: list[_Record]


# -- writing --------------------------------------------------------------------------------------------------------------


def write_packed(
    path: Path,
    results: Results,
    shared: RunJson,
    *,
    left_out: Collection[tuple[str, str]] = (),
    trajectories: bool = True,
) -> None:
    """Write all that a results table needs into one file: records, ``run.json`` and solved theory.

    Parameters
    ----------
    left_out : collection of (str, str)
        Labels of problem and algorithm whose records are not packed.
    trajectories : bool
        Whether records keep their trajectories, which are nine tenths of the file.

    Raises
    ------
    SuiteError
        If a record cannot be read.
    StoreError
        If the file cannot be written.
    """
    _ = results.rows  # making the rows looks up all theory that they need
    store = results.store
    record_stems = dict.fromkeys(
        record.file_stem
        for cell, record in results.pairs
        if cell.place[:2] not in left_out
    )
    theory: dict[str, list[JsonObject]] = {}
    for kind, answer in results.answers.stored_answers():
        theory.setdefault(kind, []).append(answer)
    pack = {
        "packed": FORMAT,
        "run": shared,
        "theory": theory,
        "records": [
            _complete_record(store, stem, trajectories) for stem in record_stems
        ],
        "scored": [] if left_out else documents_of(scores_of(store)),
    }
    text = _text_of(pack)
    if path.suffix == ".gz":
        text = gzip.compress(text, mtime=0)
    write_atomically(path, text)


def documents_of(store: Store) -> list[JsonObject]:
    """Return the JSON documents of all records of a store."""
    return [store.read(stem).document for stem in store.load()]


def _complete_record(store: Store, stem: str, trajectories: bool) -> JsonObject:
    """Return the JSON document of a record, with its trajectory inlined or, on request, cut down to the samples that were counted
    at its end.
    """
    record = store.read(stem)
    if trajectories and not isinstance(record.trajectory, LongTrajectory):
        return record.document
    columns = store.trajectory(record)
    if columns is None and trajectories:
        raise SuiteError(store.complaints[-1], "", "this record cannot be packed")
    if columns and not trajectories:
        counts_samples = bool(np.isfinite(columns["samples"][-1]))
        packed_columns = ("iteration", "samples") if counts_samples else ()
        columns = {name: columns[name][-1:] for name in packed_columns}
    column_lists = {name: column.tolist() for name, column in (columns or {}).items()}
    trajectory = json_value(column_lists) or None
    return with_digest({**record.document, "trajectory": trajectory})


def _text_of(pack: Mapping[str, object]) -> bytes:
    """Return packed results as JSON text, with one line per record so that a change of one record changes one line."""
    text = json.dumps(with_digest(pack), allow_nan=False, separators=(",", ":"))
    return text.replace('{"format":', '\n{"format":').encode() + b"\n"


# -- reading --------------------------------------------------------------------------------------------------------------


def packed_under(path: Path) -> list[Path]:
    """Return the file itself, or all files of packed results in a folder, sorted by name."""
    if not path.is_dir():
        return [path] if path.is_file() else []
    return [
        file
        for file in sorted(path.iterdir())
        if is_packed(file)
        and not file.name.startswith(".")
        and unless(ValueError, _first_bytes, file, 10) == HEAD
    ]


def read_packed(path: Path) -> tuple[ResultsTable, RunJson, list[str]]:
    """Read the results table from a file of packed results, of format 3 or 2, with the ``run.json`` of its run and remarks on the
    file.

    Raises
    ------
    SuiteError
        If the file does not hold packed results, or was changed after it was written.
    """
    pack = read_pack(path)
    if pack["packed"] == stored_table.FORMAT:
        with _as_suite_errors(path):
            table = stored_table.table_of(pack)
            return table, pack["run"], [stored_table.UNVERIFIABLE]
    with unpacked(path, pack, any_code=True) as results:
        table = results.table
        remarks = [*results.suite.remarks]
        if results.answers.has_missing_answers:
            remarks.append("the file lacks some of the theory that its rows need")
        return table, pack["run"], remarks


def read_pack(path: Path) -> JsonObject:
    """Read the JSON of a file of packed results, of format 3 or 2, and check its digest.

    Raises
    ------
    SuiteError
        If the file does not hold packed results, or was changed after it was written.
    """
    try:
        pack = _parsed(path)
    except (OSError, ValueError) as error:
        reason = error_line(error) if isinstance(error, OSError) else str(error)
        raise SuiteError(
            str(path), "", f"cannot be read as packed results: {reason}"
        ) from None
    if not isinstance(pack, dict) or "packed" not in pack:
        raise SuiteError(
            str(path),
            "",
            "holds no packed results; 'smimbench show SUITE --pack FILE' writes such a file",
        )
    if pack["packed"] not in (stored_table.FORMAT, FORMAT):
        version = printable(pack["packed"], 40)
        raise SuiteError(
            str(path),
            "packed",
            f"the file has format {version}, but this version of smimbench reads formats 2 and {FORMAT}",
        )
    with _as_suite_errors(path):
        if pack.pop("digest", None) != digest_of(pack):
            raise ValueError(
                "the file was changed after it was written (its digest does not match)"
            )
        check_model(RunJson, pack.get("run"), "packed results of smimbench")
    return pack


def _parsed(path: Path) -> object:
    """Parse the JSON of a file; raise ValueError if it is not JSON or is larger than ``LARGEST`` bytes."""
    text = _first_bytes(path, LARGEST + 1)
    if len(text) > LARGEST:
        raise ValueError(
            f"the file is larger than {LARGEST >> 20} MB, the largest allowed size"
        )
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("the file is incomplete or not JSON") from None


def _first_bytes(path: Path, byte_count: int) -> bytes:
    """Read the first ``byte_count`` bytes of a file, decompressed if its name ends with .gz; raise ValueError if that fails."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return file.read(byte_count)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"the file cannot be decompressed: {error}") from None


@contextlib.contextmanager
def _as_suite_errors(path: Path) -> Iterator[None]:
    """Convert errors in the content of a file to SuiteErrors that name the file."""
    try:
        yield
    except SuiteError:
        raise
    except (OSError, ValueError) as error:
        raise SuiteError(str(path), "", str(error)) from None


@contextlib.contextmanager
def unpacked(
    path: Path, pack: JsonObject, *, any_code: bool = False
) -> Iterator[Results]:
    """Unpack a file of packed results into a temporary results folder, which is removed at the end of the context.

    Raises
    ------
    SuiteError
        If a record or an answer has the wrong structure, or the suite needs a plugin that is not installed.
    """
    shared = pack["run"]
    suite_changes = shared.get("overrides", []), shared.get("only", [])
    suite = parse_suite(
        Path(f"{shared['suite']}.toml"),
        shared["text"],
        *suite_changes,
        from_results=True,
    )
    with tempfile.TemporaryDirectory(prefix="smimbench-") as temporary:
        store = Store(Path(temporary) / suite.name)
        with _as_suite_errors(path):
            check_model(_Pack, pack, "packed results of smimbench")
            _write_files(pack, store)
            suite = suite.with_choices(shared.get("choices", []))
            results = Results(suite, store, any_code=any_code)
            scores = scores_of(store)
            scores.load()
            for complaint in (*store.complaints, *scores.complaints):
                raise ValueError(complaint.removeprefix(f"{temporary}/"))
        excluded_places = {tuple(place) for place in shared.get("left_out", [])}
        results.cells = [
            cell for cell in results.cells if cell.place[:2] not in excluded_places
        ]
        yield results


def _write_files(pack: JsonObject, store: Store) -> None:
    """Write the records, ``run.json`` and theory of packed results (``pack``) as the files of a results folder."""
    text_by_path = {store.folder / "run.json": indented_json(with_digest(pack["run"]))}
    for records, folder in (
        (pack["records"], store.folder),
        (pack["scored"], scores_of(store).folder),
    ):
        for record in records:
            timing = record["timing"]
            stem = file_stem(record["key"], timing["machine"], timing.get("trusted"))
            text_by_path[folder / f"{stem}.json"] = indented_json(record)
    for kind, answers in pack["theory"].items():
        for answer in answers:
            problem_json = canonical_json(answer["problem"])
            name = answer_name(kind, problem_json, answer["alpha"])
            text_by_path[theory_folder(store) / name] = one_line_json(answer)
    for path, text in text_by_path.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def verified_files(paths: Iterable[Path]) -> Verification:
    """Check that these files are byte for byte what smimbench wrote; ``1.00`` instead of ``1.0`` counts as a change."""
    verification = Verification()
    for path in paths:
        try:
            pack = read_pack(path)
            if pack["packed"] == FORMAT:
                text = _text_of(pack)
            else:
                text = stored_table.text_of_table(pack).encode()
            is_unchanged = _first_bytes(path, LARGEST) == text
            verification.add([] if is_unchanged else [f"{path}: {OTHER_TEXT}"])
        except (SuiteError, ValueError) as error:
            verification.add([str(error)])
    return verification


# -- submissions to the board ----------------------------------------------------------------------------------------------


def rerun_obstacle(row: Row, shared: RunJson) -> str:
    """Return the reason why others cannot rerun the cells of a row; empty if they can. ``shared`` is the ``run.json`` of the
    results.

    Parameters
    ----------
    shared : mapping
        ``run.json`` with what ``submission`` adds to it.
    """
    if not shared.get("by"):
        return "the submission does not name its author"
    if "smimbench" not in shared.get("versions", {}):
        return "the version of smimbench that computed it is not recorded"
    if str(shared.get("git_commit")).endswith("-dirty"):
        return f"smimbench had uncommitted changes ({shared['git_commit']})"
    if row.place.backend != "numpy":
        return f"it was run with the backend {row.place.backend}, but the board needs numpy"
    if row.place.settings == ORACLE:
        return "it starts from the teacher, which is not allowed on the board"
    if set(row.runs.status_counts) <= {"skipped"}:
        return "the algorithm does not apply to this problem (all runs were skipped)"
    if "timeout" in row.runs.status_counts:
        return "some of its runs were stopped by a time limit"
    for item in _third_party_items([row.identity.problem, row.identity.algorithm]):
        if "source" not in item:
            return f"the hash of the code of {item['name']} is missing"
        if item["distribution"] not in shared.get("packages", {}):
            return f"{item['name']} comes from the file {item['distribution']}, not from a package that others can install"
    return ""


def _third_party_items(value: object) -> list[Specification]:
    """List the specifications of third-party items in nested tables and lists."""
    if isinstance(value, list):
        return [item for table in value for item in _third_party_items(table)]
    if not isinstance(value, dict):
        return []
    nested_items = _third_party_items([*value.values()])
    return [value, *nested_items] if "distribution" in value else nested_items


def submission(
    results: Results, shared: RunJson, by: str
) -> tuple[RunJson, dict[tuple[str, str], str]]:
    """Make the ``run.json`` of a submission to the board by the author ``by``, and list why rows are excluded, by labels of
    problem and algorithm.

    Raises
    ------
    SuiteError
        If the suite is not finished, its cells are of several versions, or no row can be run again.
    """
    suite = results.suite
    if missing_count := results.table.missing:
        raise SuiteError(
            suite.file,
            "",
            f"{missing_count} cells have not been run; finish the run before submitting it",
        )
    versions = {canonical_json(record.versions) for _, record in results.pairs}
    if versions != {canonical_json(shared["versions"])}:
        reason = f"some cells were run with other versions than run.json states ({shared['versions']}); run them again"
        raise SuiteError(suite.file, "", reason)
    machines = {record.timing.machine for _, record in results.pairs}
    choices = (read_choice(search, results.store) for search in searches(suite))
    distributions = {
        item["distribution"]
        for row in results.rows
        for item in _third_party_items([row.identity.problem, row.identity.algorithm])
    }
    fingerprint = shared["fingerprint"]
    shared = {
        **shared,
        "by": by,
        "fingerprint": fingerprint if machines == {fingerprint} else "",
        "packages": installed(sorted(distributions)),
        "searches": [choice for choice in choices if choice],
    }
    reasons = {
        (row.place.problem, row.place.algorithm): rerun_obstacle(row, shared)
        for row in results.rows
    }
    excluded = {labels: reason for labels, reason in reasons.items() if reason}
    if len(excluded) == len(reasons):
        (problem, algorithm), reason = next(iter(excluded.items()))
        explanation = (
            f"others can run none of its rows again: {problem}: {algorithm}: {reason}"
        )
        raise SuiteError(suite.file, "", explanation)
    return {**shared, "left_out": [[*labels] for labels in excluded]}, excluded


def verified_submission(
    path: Path, rows: Sequence[Row], shared: RunJson, suite: Suite
) -> Verification:
    """Check that others can run all rows again, and that tuned parameters are the best of the searches in the file."""
    verification = Verification()
    searches_by_digest = {
        digest_of(search): search for search in shared.get("searches", [])
    }
    questions = {search.labels: search.question for search in searches(suite)}
    cells = {cell.place[:2]: cell for cell in suite.cells("numpy") if cell.tuning}
    for labels, label_rows in grouped(rows, lambda row: place(row)[:2]).items():
        reason = rerun_obstacle(label_rows[0], shared)
        complaints = [f"cannot be run again: {reason}"] if reason else []
        if (cell := cells.get(labels)) and cell.tuning:
            search = searches_by_digest.get(cell.tuning["search"])
            question = json_value(questions.get(labels))
            complaints += _search_complaints(cell, search, question)
        verification.add(
            [f"{path}: {': '.join(labels)}: {complaint}" for complaint in complaints]
        )
    return verification


def _search_complaints(
    cell: Cell, search: SearchResult | None, question: object
) -> list[str]:
    """Say why the parameters of a tuned algorithm are not the best of the search in the file; empty if they are."""
    if search is None or cell.tuning is None:
        return ["the search that chose its parameters is not in the file"]
    chosen = search["chosen"]
    errors = dict(enumerate(search["rounds"][-1]["errors"]))
    counts = cell.tuning["trials"], cell.tuning["runs"]
    known_errors = [error for error in errors.values() if error is not None]
    if (
        (len(search["trials"]), search["runs"]) != counts
        or search["question"] != question
        or search["algorithm"] != cell.algorithm
        or not known_errors
        or chosen not in errors
    ):
        return ["its parameters are not those that the search in the file chose"]
    if errors[chosen] == min(known_errors):
        return []
    return [
        "the search in the file has a trial with a smaller error than the one chosen"
    ]
