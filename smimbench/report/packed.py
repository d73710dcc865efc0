"""Results in one small file: the table of a finished run and its ``run.json``, packed and read back without a rerun; whether they
are what they say, by their values, by theory that is solved again, and by a sample of cells that are run again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from smimbench.backend import machine
from smimbench.files import JsonObject, error_line, printable, read_json, write_atomically
from smimbench.registry.metrics import find_metric, theory_of
from smimbench.report.labels import grouped, place
from smimbench.report.rows import derived
from smimbench.report.stored_table import FOLLOWS, with_summaries
from smimbench.run.record import Open, SharedDocument, check_model, digest_of, sealed
from smimbench.run.theory_cache import TheoryCache
from smimbench.run.theory_guard import THEORY_ERRORS
from smimbench.run.verification import ELSEWHERE, ROUNDED, Verification, differences, untimed
from smimbench.suite import SuiteError
from smimbench.suite.cells import Suite

FORMAT = 2
"""Layout of the file; raised when older readers could not understand it."""
TABLE = "table/rows.json"
"""The table of a finished run, packed next to its ``run.json``: it can be shown where the plugin that made it is missing. In a
folder of its own, because files next to ``run.json`` are records.
"""


class _Place(Open):
    """Rows of one place: their shared fields, and the remaining fields of each."""

    common: JsonObject
    rows: list[JsonObject]


class _Packed(Open):
    packed: int
    run: SharedDocument
    document: JsonObject
    places: list[_Place]


def write_packed(path: Path, document: JsonObject, shared: JsonObject) -> None:
    """Write a table (what ``show --json`` prints) and ``run.json`` into one file.

    What all rows of one place (problem, algorithm, backend, sample ratio, dimension) have in common is written once. What follows
    from the rows is left out.

    Raises
    ------
    StoreError
        If the file cannot be written.
    """
    places = [_pack(members) for members in grouped(document["rows"], place).values()]
    about = {key: value for key, value in document.items() if key not in ("rows", *FOLLOWS)}
    whole = {"packed": FORMAT, "run": shared, "document": about, "places": places}
    write_atomically(path, _text_of(json.loads(json.dumps(whole, default=str))).encode())


def _pack(rows: Sequence[JsonObject]) -> JsonObject:
    first = rows[0]
    common = {key: value for key, value in first.items() if all(key in row and row[key] == value for row in rows)}
    return {"common": common, "rows": [{k: v for k, v in row.items() if k not in common} for row in rows]}


def _text_of(whole: JsonObject) -> str:
    """Text of the packed file, one line per place, so that a change of one place changes one line."""
    lines = json.dumps(sealed(whole), allow_nan=False, separators=(",", ":"))
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
        raise SuiteError(str(path), "", "has no packed results; smimbench show SUITE --pack FILE writes such a file")
    if found["packed"] != FORMAT:
        version = printable(found["packed"], 40)
        raise SuiteError(str(path), "packed", f"the file has format {version}, this smimbench reads {FORMAT}")
    try:
        if found.pop("digest", None) != digest_of(found) or (exactly and path.read_bytes() != _text_of(found).encode()):
            raise ValueError("changed after it was written (digest does not match)")
        check_model(_Packed, found, "packed results of smimbench")
        rows = [{**one["common"], **row} for one in found["places"] for row in one["rows"]]
        return with_summaries({**found["document"], "rows": rows}), found["run"]
    except (OSError, ValueError) as error:
        raise SuiteError(str(path), "", str(error)) from None


def verified_files(paths: Iterable[Path]) -> Verification:
    """Check that these files are unchanged since they were written, to the last byte."""
    found = Verification()
    for path in paths:
        try:
            read_packed(path, exactly=True)
            found.add([])
        except SuiteError as error:
            found.add([str(error)])
    return found


def packed_under(path: Path) -> list[Path]:
    """The file itself, or all files of packed results in a folder, by name."""
    if not path.is_dir():
        return [path] if path.is_file() else []
    return [one for one in sorted(path.glob("[!.]*.json")) if one.is_file() and _begins_as_packed(one)]


def _begins_as_packed(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(10) == b'{"packed":'


# -- verification -------------------------------------------------------------------------------------------------------


def verify_packed(
    path: Path, rows: Sequence[JsonObject], shared: JsonObject, suite: Suite, *, cells: int, seed: int, theory: bool
) -> dict[str, Verification]:
    """Check rows of a file whose digest is sound, against the suite that its ``run.json`` describes."""
    here = shared["fingerprint"] == machine.fingerprint() and shared["versions"] == machine.versions()
    found = {"rows": Verification()}
    for row in rows:
        new = derived(row)
        # Sums of another machine may round in another way.
        found["rows"].add(_lines(path, row, differences({key: row[key] for key in new}, new, 1e-12)))
    if theory:
        found["rows of theory solved again"] = _theory(path, rows, suite, here=here)
    tolerance = 0.0 if here else ELSEWHERE
    found["cells run again"] = _rerun(path, rows, suite, tolerance, cells, seed, complete="by" in shared)
    return found


def _theory(path: Path, rows: Sequence[JsonObject], suite: Suite, *, here: bool) -> Verification:
    """Bayes-optimal values of every row."""
    found, fresh = Verification(), TheoryCache(isolated=True)
    problems = suite.problems
    for label, members in grouped(rows, lambda row: row["problem"]).items():
        if (problem := problems.get(label)) is None:
            found.remarks.append(f"{len(members)} rows of {label}, which the suite does not have")
            continue
        if problem.no_theory is not None:
            continue
        alphas = sorted({row["alpha"] for row in members})
        try:
            points = dict(zip(alphas, fresh.points(problem, alphas)))
        except THEORY_ERRORS as error:
            found.remarks.append(f"{label}: theory raised {error_line(error)}")
            continue
        for row in members:
            metric = find_metric(row["metric"], problem.model.name)
            solved = theory_of(metric, problem, points[row["alpha"]][0], problem.components)
            new = {
                name: part[(row["component"] or 1) - 1]
                for name, part in zip(("bayes", "bayes_error")[: 1 + here], solved)
            }
            relative = ROUNDED if here else ELSEWHERE
            absolute = ROUNDED / 100 if here else 4 * (row["bayes_error"] or 0.0) + 1e-9
            found.add(_lines(path, row, differences({n: row[n] for n in new}, new, relative, absolute=absolute)))
    if own := sum(row["own_theory"] not in (None, row["bayes"]) for row in rows):
        found.remarks.append(
            f"{own} predictions of algorithms not solved again: a pack does not hold the starts of the runs"
        )
    return found


def _rerun(
    path: Path, rows: Sequence[JsonObject], suite: Suite, tolerance: float, count: int, seed: int, *, complete: bool
) -> Verification:
    """So many of the packed cells, drawn at random, run again; of a ``complete`` suite those that gave no value, too."""
    found = Verification()
    untroubled = (row for row in rows if row["backend"] == "numpy" and "timeout" not in row["status_counts"])
    places = grouped(untroubled, lambda r: (r["problem"], r["algorithm"], r["nominal_alpha"], r["dimension"]))
    known = [
        (cell, f"{cell.seed}/{cell.replicate}", members)
        for cell in (suite.cells("numpy") if places else ())
        for members in (places.get(cell.place, []),)
        if (members if complete else any(f"{cell.seed}/{cell.replicate}" in row["values"] for row in members[:1]))
    ]
    chosen = {known[i][0].key: known[i] for i in np.random.default_rng(seed).permutation(len(known))[:count]}
    for cell, record in untimed([cell for cell, *_ in chosen.values()], 1):
        _, name, members = chosen[cell.key]
        lines, metrics = [], {} if record["status"] == "diverged" else record["metrics"]
        for row in members:
            new = dict(enumerate(metrics.get(row["metric"], []), 1)).get(row["component"] or 1)
            lines += _lines(path, row, differences({name: row["values"].get(name)}, {name: new}, tolerance))
        found.add(lines)
    return found


def _lines(path: Path, row: JsonObject, differing: Any) -> list[str]:
    where = f"{row['problem']} {row['algorithm']} at alpha {row['alpha']:.5g}, D = {row['dimension']}, {row['metric']}"
    return [f"{path}: {where}: {line}" for line in list(differing)[:3]]
