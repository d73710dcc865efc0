"""The results table of a run in one file (format 2), which can be shown without the plugins that produced it.

``run`` keeps one next to ``run.json``; packs were of this format, too. Only values of runs can be verified:
numbers derived from them are as the author wrote them.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from smimbench.backend import machine
from smimbench.files import JsonObject, omit, pick, write_atomically
from smimbench.report.results import ResultsTable
from smimbench.report.row import PassesWorth, Row, Text, grouped, place, row_of
from smimbench.run.loop import Status
from smimbench.run.record import (
    OpenModel,
    RunJson,
    check_model,
    differences,
    json_value,
    with_digest,
)
from smimbench.run.store import OtherVersion
from smimbench.run.verification import (
    OTHER_MACHINE,
    Verification,
    rerun_without_time_limit,
)
from smimbench.suite.cells import Suite

FORMAT = 2
TABLE = "table/rows.json"
"""Path of the stored table, relative to the folder with ``run.json``; it has its own folder, since files there are records."""
UNVERIFIABLE = "format 2: only metric values of single runs can be verified; means and other derived numbers are shown as stored"


class _TableFields(OpenModel):
    """Fields of a results table besides its rows."""

    suite: Text
    title: Text
    description: Text
    status_counts: dict[str, int]
    missing: int
    other_versions: list[OtherVersion]
    left_out: tuple[Text, ...] | list[Text] = ()


class _RowsOfPlace(OpenModel):
    """Rows of one place (problem, algorithm, backend, sample ratio, dimension): the ``common`` fields, which are equal in all
    ``rows``, and the other fields of each row.
    """

    common: dict[str, object]
    rows: list[dict[str, object]]


class _Table(OpenModel):
    """Structure of the file of a stored table: its format (``packed``), the ``run.json`` of the run, fields of the table, and
    rows by place.
    """

    packed: int
    run: RunJson
    document: _TableFields
    places: list[_RowsOfPlace]


def write_table(path: Path, table: ResultsTable, shared: RunJson) -> None:
    """Write a results ``table`` and the ``run.json`` of its run (``shared``) into one file.

    Fields that all rows of one place (problem, algorithm, backend, sample ratio, dimension) share are written once. Whatever can
    be computed from the rows is omitted.

    Raises
    ------
    StoreError
        If the file cannot be written.
    """
    places = [
        _split_shared_fields([row.document() for row in place_rows])
        for place_rows in grouped(table.rows, place).values()
    ]
    stored = {
        "packed": FORMAT,
        "run": shared,
        "document": table.stored_fields(),
        "places": places,
    }
    write_atomically(path, text_of_table(json_value(stored)).encode())


def _split_shared_fields(rows: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Split JSON ``rows`` into the fields that are equal in all of them (``common``) and, for each row, the others."""
    shared_fields = {
        key: value
        for key, value in rows[0].items()
        if all(key in row and row[key] == value for row in rows)
    }
    other_fields = [omit(row, *shared_fields) for row in rows]
    return {"common": shared_fields, "rows": other_fields}


def text_of_table(table: Mapping[str, object]) -> str:
    """Return a stored table as JSON text, with one line per place so that a change of one place changes one line."""
    lines = json.dumps(with_digest(table), allow_nan=False, separators=(",", ":"))
    return lines.replace('{"common":', '\n{"common":') + "\n"


def table_of(stored: JsonObject) -> ResultsTable:
    """Read the results table from the JSON of a file whose digest was checked.

    Raises
    ------
    ValueError
        If the JSON has another structure.
    """
    check_model(_Table, stored, "packed results of smimbench")
    rows = [
        row_of({**place_rows["common"], **row})
        for place_rows in stored["places"]
        for row in place_rows["rows"]
    ]
    for rows_of_place in grouped(rows, place).values():
        component_numbers = []
        for row in rows_of_place:
            predicted = row.prediction.also_predicted or ()
            component_numbers += [
                quantity.component or 1 for quantity in (row, *predicted)
            ]
        for row in rows_of_place:
            teachers = row.prediction.teachers or {}
            if any(
                len(excess) < max(component_numbers) for excess in teachers.values()
            ):
                raise ValueError(
                    "not a table of smimbench: 'teachers' must list one number per component of the signal"
                )
    target = max((row.target for row in rows), default=0.0)
    about_fields = pick(stored["document"], _TableFields.model_fields)
    return ResultsTable(**about_fields, target=target, rows=rows)


def rerun_values(
    path: Path,
    rows: Sequence[Row],
    shared: RunJson,
    suite: Suite,
    *,
    count: int,
    seed: int,
) -> Verification:
    """Rerun ``count`` cells drawn at random (``seed``) from those of a table's ``rows``, and compare their metric values with the
    stored ones; ``shared`` is the ``run.json`` of the results, ``path`` their file.
    """
    verification = Verification(remarks=[UNVERIFIABLE])
    is_same_installation = (
        shared["fingerprint"] == machine.fingerprint()
        and shared["versions"] == machine.versions()
    )
    rows_by_place = grouped(
        (row for row in rows if row.place.backend == "numpy"),
        lambda row: (*place(row)[:2], *place(row)[3:]),
    )
    cells = [
        cell
        for cell in (suite.cells("numpy") if rows_by_place else ())
        if any(
            f"{cell.seed}/{cell.replicate}" in row.estimate.values
            for row in rows_by_place.get(cell.place, ())
            if "timeout" not in row.runs.status_counts
        )
    ]
    random_order = np.random.default_rng(seed).permutation(len(cells))
    for cell, record in rerun_without_time_limit(
        [cells[index] for index in random_order[:count]], 1
    ):
        instance = f"{cell.seed}/{cell.replicate}"
        metrics = {} if record.status == Status.DIVERGED else record.metrics
        differing_values: list[str] = []
        for row in rows_by_place[cell.place]:
            component_values = dict(enumerate(metrics.get(row.metric, []), 1))
            differing_values += _differences(
                path,
                row,
                {instance: row.estimate.values.get(instance)},
                {instance: component_values.get(row.component or 1)},
                0.0 if is_same_installation else OTHER_MACHINE,
            )
        verification.add(differing_values)
    return verification


def verified_table(
    path: Path, written_table: ResultsTable, computed_table: ResultsTable
) -> list[str]:
    """Describe the differences between a stored table and the table computed from the records."""

    def row_key(row: Row) -> tuple[object, ...]:
        """Key of a row in its table."""
        return (*place(row), row.metric, row.component)

    about_written, about_computed = (
        {**table.stored_fields(), "other_versions": [], "left_out": []}
        for table in (written_table, computed_table)
    )
    complaints = [
        f"{path}: {difference}"
        for difference in differences(about_written, about_computed, 0.0)
    ]
    computed_rows = {row_key(row): row for row in computed_table.rows}
    for row in written_table.rows:
        computed_row = computed_rows.get(row_key(row))
        if computed_row is not None and row.first_order == PassesWorth():
            # Tables of older versions have no such numbers.
            computed_row = replace(computed_row, first_order=PassesWorth())
        if computed_row is None:
            complaints.append(f"{_row_label(path, row)}: no record belongs to this row")
        else:
            computed_document = json_value(computed_row.document())
            complaints += _differences(
                path, row, row.document(), computed_document, OTHER_MACHINE
            )
    return complaints


def _differences(
    path: Path,
    row: Row,
    written: Mapping[str, object],
    computed: Mapping[str, object],
    tolerance: float,
) -> list[str]:
    """Describe up to three differences between the ``written`` and the ``computed`` fields of a row of the file ``path``; numbers
    differ if they are apart by more than the relative ``tolerance``.
    """
    differing = itertools.islice(differences(written, computed, tolerance), 3)
    return [f"{_row_label(path, row)}: {difference}" for difference in differing]


def _row_label(path: Path, row: Row) -> str:
    """Name a row in a message: file, problem, algorithm, grid point and metric."""
    row_place = row.place
    return (
        f"{path}: {row_place.problem} {row_place.algorithm} at alpha {row_place.alpha:.5g}, "
        f"D = {row_place.dimension}, {row.metric}"
    )
