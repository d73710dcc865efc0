"""Results in one small file: the table of a finished run and its ``run.json``, packed and read back without a rerun."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from smimbench.files import error_line, write_atomically
from smimbench.report.extrapolation import extrapolated_rows
from smimbench.report.labels import grouped, place
from smimbench.report.stored_table import digest_of_table
from smimbench.report.verdict import verdicts
from smimbench.suite.errors import SuiteError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["packed_under", "read_packed", "write_packed"]

FORMAT = 1
"""Layout of the file; raised when older readers could not understand it."""


def write_packed(path: Path, document: Mapping[str, Any], shared: Mapping[str, Any]) -> None:
    """Write a table (what ``show --json`` prints) and ``run.json`` into one file.

    What all rows of one place (problem, algorithm, backend, sample ratio, dimension) have in common is written once, and what
    problems and algorithms are made of. Values at infinite dimension are left out: they follow from the rows.

    Raises
    ------
    StoreError
        If the file cannot be written.
    """
    body = json.loads(json.dumps(document, default=str))
    rows = body.pop("rows")
    known: dict[str, tuple[int, Any]] = {}
    del body["extrapolated"]
    for row in rows:
        identity = row.pop("identity")
        row["identity"] = known.setdefault(json.dumps(identity, sort_keys=True), (len(known), identity))[0]
    body["identities"] = [identity for _, identity in known.values()]
    body["places"] = [_pack(members) for members in grouped(rows, place).values()]
    whole = {"packed": FORMAT, "run": json.loads(json.dumps(shared, default=str)), "document": body}
    lines = json.dumps({**whole, "digest": digest_of_table(whole)}, allow_nan=False, separators=(",", ":"))
    # A line for each place: a change of one shows as a change of one.
    write_atomically(path, (lines.replace('{"common":', '\n{"common":') + "\n").encode())


def read_packed(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The document and ``run.json`` of a file that ``write_packed`` has written.

    Raises
    ------
    SuiteError
        If it is no such file, or was changed after it was written.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise SuiteError(str(path), "", f"cannot be read as packed results: {error_line(error)}") from None
    if not isinstance(found, dict) or "packed" not in found:
        raise SuiteError(str(path), "", "no packed results; smimbench show SUITE --pack FILE writes some")
    if found["packed"] != FORMAT:
        raise SuiteError(str(path), "packed", f"written in format {found['packed']!r}, this smimbench reads {FORMAT}")
    digest = found.pop("digest", None)
    if digest != digest_of_table(found):
        raise SuiteError(str(path), "", "changed after it was written (digest does not match)")
    document: dict[str, Any] = found["document"]
    identities = document.pop("identities")
    rows = [row for one in document.pop("places") for row in _unpack(one)]
    document["rows"] = [{**row, "identity": identities[row["identity"]]} for row in rows]
    # What follows from the rows is not read but found again: an older smimbench may have said less.
    document["verdicts"] = verdicts(document["rows"])
    document["extrapolated"] = extrapolated_rows(document["rows"], max((row["target"] for row in rows), default=0.0))
    return document, found["run"]


def packed_under(path: Path) -> list[Path]:
    """The file itself, or all files of packed results in a folder, by name."""
    if not path.is_dir():
        return [path] if path.is_file() else []
    return [one for one in sorted(path.glob("*.json")) if one.is_file() and _begins_as_packed(one)]


def _begins_as_packed(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(10) == b'{"packed":'


def _pack(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    first = rows[0]
    common = {key: value for key, value in first.items() if all(key in row and row[key] == value for row in rows)}
    return {"common": common, "rows": [{k: v for k, v in row.items() if k not in common} for row in rows]}


def _unpack(packed: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{**packed["common"], **row} for row in packed["rows"]]
