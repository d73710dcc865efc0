"""Results in one small file: the table of a finished run and its ``run.json``, packed and read back without a rerun."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pydantic

from smimbench.files import JsonObject, error_line, printable, read_json, write_atomically
from smimbench.report.labels import grouped, place
from smimbench.report.stored_table import checked_document
from smimbench.run.record import SharedDocument, check_model, digest_of
from smimbench.run.verification import Verification
from smimbench.suite import SuiteError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

FORMAT = 1
"""Layout of the file; raised when older readers could not understand it."""


class _Place(pydantic.BaseModel):
    """Rows of one place: what they have in common, and the rest of each."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)

    common: JsonObject
    rows: list[JsonObject]


class _Body(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow", strict=True, frozen=True, defer_build=True)

    identities: list[JsonObject]
    places: list[_Place]


class _Packed(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)

    packed: int
    run: SharedDocument
    document: _Body


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
    write_atomically(path, _text_of(whole).encode())


def _text_of(whole: Mapping[str, Any]) -> str:
    """The file, a line for each place: a change of one shows as a change of one."""
    lines = json.dumps({**whole, "digest": digest_of(dict(whole))}, allow_nan=False, separators=(",", ":"))
    return lines.replace('{"common":', '\n{"common":') + "\n"


def read_packed(path: Path, *, exactly: bool = False) -> tuple[JsonObject, JsonObject]:
    """The document and ``run.json`` of a file that ``write_packed`` has written.

    Parameters
    ----------
    exactly : bool
        Compare its text, too: another last digit may stand for the same number.

    Raises
    ------
    SuiteError
        If it is no such file, or was changed after it was written.
    """
    try:
        found = read_json(path)
    except (OSError, ValueError) as error:
        raise SuiteError(str(path), "", f"cannot be read as packed results: {error_line(error)}") from None
    if not isinstance(found, dict) or "packed" not in found:
        raise SuiteError(str(path), "", "no packed results; smimbench show SUITE --pack FILE writes some")
    if found["packed"] != FORMAT:
        version = printable(found["packed"], 40)
        raise SuiteError(str(path), "packed", f"written in format {version}, this smimbench reads {FORMAT}")
    try:
        digest = found.pop("digest", None)
        if digest != digest_of(found) or (exactly and path.read_bytes() != _text_of(found).encode()):
            raise ValueError("changed after it was written (digest does not match)")
        check_model(_Packed, found, "packed results of smimbench")
        body = {key: value for key, value in found["document"].items() if key not in ("identities", "places")}
        rows = [row for one in found["document"]["places"] for row in _unpack(one)]
        identities = dict(enumerate(found["document"]["identities"]))
        body["rows"] = [{**row, "identity": identities.get(_number(row.get("identity")))} for row in rows]
        return checked_document(body), found["run"]
    except (OSError, ValueError) as error:
        raise SuiteError(str(path), "", str(error)) from None


def verified_files(paths: Sequence[Path]) -> Verification:
    """Whether these files are what was written, to the last byte."""
    found = Verification()
    for path in paths:
        try:
            read_packed(path, exactly=True)
            found.add([])
        except SuiteError as error:
            found.add([str(error)])
    return found


def _number(value: Any) -> int:
    return value if isinstance(value, int) else -1


def packed_under(path: Path) -> list[Path]:
    """The file itself, or all files of packed results in a folder, by name."""
    if not path.is_dir():
        return [path] if path.is_file() else []
    return [one for one in sorted(path.glob("*.json")) if one.is_file() and _begins_as_packed(one)]


def _begins_as_packed(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(10) == b'{"packed":'


def _pack(rows: Sequence[JsonObject]) -> JsonObject:
    first = rows[0]
    common = {key: value for key, value in first.items() if all(key in row and row[key] == value for row in rows)}
    return {"common": common, "rows": [{k: v for k, v in row.items() if k not in common} for row in rows]}


def _unpack(packed: Mapping[str, Any]) -> list[JsonObject]:
    return [{**packed["common"], **row} for row in packed["rows"]]
