"""The table of a run in one file (format 2): rows as they were made, shown where the plugin that made them is missing.

``run`` keeps one next to ``run.json``; packs were of this format, too. Only values of runs can be verified: what was derived from
them is as its author wrote it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pydantic
from pydantic import Field

from smimbench.backend import machine
from smimbench.files import JsonObject, write_atomically
from smimbench.report.labels import grouped, place
from smimbench.report.statistics import EPSILONS
from smimbench.run.record import Number, Open, SharedDocument, check_model, plain, sealed
from smimbench.run.verification import ELSEWHERE, Verification, differences, untimed
from smimbench.suite.cells import Suite

FORMAT = 2
TABLE = "table/rows.json"
"""The table of a finished run, next to its ``run.json``: in a folder of its own, because files there are records."""
UNVERIFIABLE = "of format 2: values of runs can be verified, what is derived from them is as its author wrote it"

Text = Annotated[str, Field(max_length=100_000)]
Component = Annotated[int, Field(ge=1)] | None
Many: Any = list
Named: Any = dict


def _of_fields(*kinds: tuple[Any, str], **more: Any) -> Any:
    """A model with these fields, those of one type named together; ``more`` with their type and default."""
    fields: dict[str, Any] = {name: (kind, ...) for kind, names in kinds for name in names.split()}
    return pydantic.create_model("Row", __base__=Open, **(fields | more))


Row = _of_fields(
    (Text, "problem algorithm backend dimension_letter metric component_word optimum_source"),
    (Text | None, "no_theory branch theory_method ceiling"),
    (list[Text], "blank machines reasons warnings"),
    (Component, "component"),
    (Annotated[int, Field(ge=1)], "dimension"),
    (Annotated[int, Field(ge=0)], "n restarts"),
    (int | None, "peak_memory"),
    (float, "alpha nominal_alpha target"),
    (Number, "mean sem theory theory_error difference z own_theory own_theory_error own_z own_coefficient bayes bayes_error"),
    (Number, "optimum optimum_error ratio_to_bayes seconds cpu_seconds iterations first_iteration per_iteration"),
    (Number, "ceiling_fraction device_seconds"),
    (bool, "trusted"),
    (dict[str, float], "values"),
    (dict[str, int], "status_counts"),
    (_of_fields((dict[str, Any], "problem algorithm")), "identity"),
    (_of_fields((int, "runs"), (float, "change lowest")) | None, "still_moving"),
    (_of_fields((Number, "target fraction iterations seconds samples epochs")) | None, "half_overlap"),
    (_of_fields((_of_fields((Number, "seconds iterations fraction")), " ".join(map("{:g}".format, EPSILONS)))), "time_to_theory"),
    (_of_fields((Number, "success"), (Many[_of_fields((list[int], "layers"), (int, "runs"))], "sequences"),
                (_of_fields((Text, "axis"), (Number, "mean sem"), (int, "runs")) | None, "factor")) | None, "learning_order"),
    (Named[str, Many[_of_fields((Number, "mean sem theory"), (int, "runs found"))]], "findings"),
    settings=(Text, ""),
    teachers=(dict[str, list[float]], {}),
    also_predicted=(Many[_of_fields((Text, "metric"), (Component, "component"), (dict[str, float], "values"),
                                    (Number, "at coefficient prediction error"))], []),
)  # fmt: skip
"""A row of the error table; see ``smimbench.report.rows.error_rows``."""

DOCUMENT = _of_fields(
    (Text, "suite title description"),
    (dict[str, int], "status_counts"),
    (int, "missing"),
    (Many[_of_fields((Text, "item"), (int, "then now cells"))], "other_versions"),
    (Many[Row], "rows"),
)
"""Stored part of what ``show --json`` prints; what follows from the rows is recomputed."""

FOLLOWS = ("verdicts", "summary", "extrapolated")
"""Parts of a document that follow from its rows."""


class _Place(Open):
    """Rows of one place: their shared fields, and the remaining fields of each."""

    common: JsonObject
    rows: list[JsonObject]


class _Table(Open):
    packed: int
    run: SharedDocument
    document: JsonObject
    places: list[_Place]


def write_table(path: Path, document: JsonObject, shared: JsonObject) -> None:
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
    table = {"packed": FORMAT, "run": shared, "document": about, "places": places}
    write_atomically(path, text_of_table(plain(table)).encode())


def _pack(rows: Sequence[JsonObject]) -> JsonObject:
    head = rows[0]
    common = {key: value for key, value in head.items() if all(key in row and row[key] == value for row in rows)}
    return {"common": common, "rows": [{k: v for k, v in row.items() if k not in common} for row in rows]}


def text_of_table(table: JsonObject) -> str:
    """Text of the file, one line per place, so that a change of one place changes one line."""
    lines = json.dumps(sealed(table), allow_nan=False, separators=(",", ":"))
    return lines.replace('{"common":', '\n{"common":') + "\n"


@np.errstate(over="ignore", invalid="ignore")
def document_of(table: JsonObject) -> JsonObject:
    """What ``show --json`` prints, from a table whose digest is sound.

    Raises
    ------
    ValueError
        If it has another structure.
    """
    from smimbench.report.extrapolation import extrapolated_rows
    from smimbench.report.verdict import summary, verdicts

    check_model(_Table, table, "packed results of smimbench")
    rows = [{**stored["common"], **row} for stored in table["places"] for row in stored["rows"]]
    document = {**table["document"], "rows": rows}
    check_model(DOCUMENT, document, "a table of smimbench")
    for members in grouped(rows, place).values():
        numbers = [number["component"] or 1 for row in members for number in (row, *row.get("also_predicted", ()))]
        teachers = [excess for row in members for excess in row.get("teachers", {}).values()]
        if any(len(excess) < max(numbers) for excess in teachers):
            raise ValueError("not a table of smimbench: teachers must have a number for each component")
    target = max((row["target"] for row in rows), default=0.0)
    return {**document, **dict(zip(FOLLOWS, (verdicts(rows), summary(rows), extrapolated_rows(rows, target))))}


def rerun_values(
    path: Path, rows: Sequence[JsonObject], shared: JsonObject, suite: Suite, *, count: int, seed: int
) -> Verification:
    """So many of the cells of a table, drawn at random, run again: the values of their runs."""
    verification = Verification(remarks=[UNVERIFIABLE])
    here = shared["fingerprint"] == machine.fingerprint() and shared["versions"] == machine.versions()
    untroubled = (row for row in rows if row["backend"] == "numpy" and "timeout" not in row["status_counts"])
    places = grouped(untroubled, lambda r: (r["problem"], r["algorithm"], r["nominal_alpha"], r["dimension"]))
    cells = [
        cell
        for cell in (suite.cells("numpy") if places else ())
        if any(f"{cell.seed}/{cell.replicate}" in row["values"] for row in places.get(cell.place, ()))
    ]
    drawn = [cells[i] for i in np.random.default_rng(seed).permutation(len(cells))[:count]]
    for cell, record in untimed(drawn, 1):
        name, lines = f"{cell.seed}/{cell.replicate}", []
        metrics = {} if record["status"] == "diverged" else record["metrics"]
        for row in places[cell.place]:
            new = dict(enumerate(metrics.get(row["metric"], []), 1)).get(row["component"] or 1)
            differing = differences({name: row["values"].get(name)}, {name: new}, 0.0 if here else ELSEWHERE)
            lines += _lines(path, row, differing)
        verification.add(lines)
    return verification


def verified_table(path: Path, written: JsonObject, document: JsonObject) -> list[str]:
    """How a stored table differs from the one that the records give, in words."""

    def names(row: JsonObject) -> tuple[Any, ...]:
        return (*place(row), row["metric"], row["component"])

    document = json.loads(json.dumps(document, default=str))
    about = ("suite", "title", "description", "status_counts", "missing")
    lines = differences({name: written[name] for name in about}, {name: document[name] for name in about}, 0.0)
    wrong = [f"{path}: {line}" for line in lines]
    again = {names(row): row for row in document["rows"]}
    for row in written["rows"]:
        if names(row) in again:
            wrong += _lines(path, row, differences(row, again[names(row)], ELSEWHERE))
        else:
            wrong += _lines(path, row, ["there are no records of it"])
    return wrong


def _lines(path: Path, row: JsonObject, differing: Iterable[str]) -> list[str]:
    where = f"{row['problem']} {row['algorithm']} at alpha {row['alpha']:.5g}, D = {row['dimension']}, {row['metric']}"
    return [f"{path}: {where}: {line}" for line in itertools.islice(differing, 3)]
