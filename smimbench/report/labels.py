"""Labels of rows: unique names, grouping by place, words for components and dimensions, and reasons of failed runs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from smimbench.files import canonical_json
from smimbench.run.external import EXTERNAL
from smimbench.run.loop import Status

if TYPE_CHECKING:
    from smimbench.interfaces import Model
    from smimbench.problem.problem import Problem
    from smimbench.report.row import Row, RowEntry
    from smimbench.run.record import Record

T = TypeVar("T")
K = TypeVar("K")

RowPlace = tuple[str, str, str, float, int]
"""Key of a row's place: problem, algorithm, backend, nominal sample ratio, and dimension."""


def place(row: Row | RowEntry) -> RowPlace:
    """Return the place of a row: problem, algorithm, backend and grid point."""
    row_place = row.place
    return (
        row_place.problem,
        row_place.algorithm,
        row_place.backend,
        row_place.nominal_alpha,
        row_place.dimension,
    )


def largest_dimension_rows(rows: Iterable[Row]) -> list[Row]:
    """Select, for every algorithm and sample ratio, the rows of the largest dimension."""

    def without_dimension(row: Row) -> tuple[object, ...]:
        return *place(row)[:-1], row.metric, row.component

    rows = list(rows)
    largest: dict[tuple[object, ...], int] = {}
    for row in rows:
        key = without_dimension(row)
        largest[key] = max(row.place.dimension, largest.get(key, 0))
    return [
        row for row in rows if row.place.dimension == largest[without_dimension(row)]
    ]


def reason_of(record: Record, near: str | None = None) -> str:
    """Describe how and why a run ended, with the line of code that failed or the nearby threshold ``near``."""
    reason = f"{record.status}: {record.reason}"
    if record.where:
        reason += f" ({record.where})"
    if near and record.status == Status.NOT_CONVERGED:
        reason += f"; {near}"
    return reason


def kind_of(reason: str) -> str:
    """Return a key that is equal for similar failure reasons: the failing line of code, else the text without numbers."""
    failed = re.fullmatch(r"failed: .*( \([^()]*, line \d+\))", reason, re.DOTALL)
    return failed[1] if failed else re.sub(r"\d+(\.\d+)?(e[+-]?\d+)?", "#", reason)


def grouped(rows: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Group rows by ``key``, in the order of first appearance."""
    groups: dict[K, list[T]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def summed_statuses(rows: Iterable[Row]) -> dict[str, int]:
    """Sum the number of runs per status over rows."""
    statuses: Counter[str] = Counter()
    for row in rows:
        statuses.update(row.runs.status_counts)
    return dict(statuses)


def names_with_backend(
    rows: Sequence[Row | RowEntry],
) -> Callable[[Row | RowEntry], str]:
    """Return a function that names the algorithm of a row, with the backend if rows are from several backends.

    An estimate from elsewhere has none; it is distinguished only from an algorithm of the same name that was run here.
    """
    several = len({row.place.backend for row in rows} - {EXTERNAL}) > 1
    local = {row.place.algorithm for row in rows if row.place.backend != EXTERNAL}

    def name(row: Row | RowEntry) -> str:
        algorithm, backend = row.place.algorithm, row.place.backend
        apart = algorithm in local if backend == EXTERNAL else several
        return f"{algorithm}@{backend}" if apart else algorithm

    return name


def component_word(problem: Problem) -> str:
    """Return the word for a component: ``"layer"`` if the channel has layers, otherwise ``"component"``."""
    return "layer" if "layers" in problem.spec["channel"] else "component"


def letter(model: Model) -> str:
    """Return the letter for a model's dimension: d for a matrix of extensive rank, else D."""
    return "d" if model.rank == "extensive" else "D"


def letter_of(rows: Iterable[Row | RowEntry]) -> str:
    """Return the letter for the dimension of rows: that of their model, or D if models differ."""
    letters = {row.dimension_letter for row in rows}
    return letters.pop() or "D" if len(letters) == 1 else "D"


def distinguish(rows: Iterable[Row]) -> list[Row]:
    """Extend labels that different problems or algorithms share, so that every label is unique."""
    rows = list(rows)
    for key in ("problem", "algorithm"):
        meanings: dict[str, dict[str, dict[str, object]]] = {}
        for row in rows:
            spec = getattr(row.identity, key)
            meanings.setdefault(getattr(row.place, key), {})[canonical_json(spec)] = (
                _flat(spec)
            )
        for i, row in enumerate(rows):
            label, spec = getattr(row.place, key), getattr(row.identity, key)
            if len(meanings[label]) > 1:
                labels = {
                    "problem": row.place.problem,
                    "algorithm": row.place.algorithm,
                }
                labels[key] += _difference(meanings[label], canonical_json(spec))
                rows[i] = row.labeled(**labels)
    return rows


def _flat(table: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, entry in table.items():
        if isinstance(entry, dict):
            flat |= _flat(entry, f"{prefix}{key}.")
        else:
            flat[prefix + key] = entry
    return flat


def _difference(meanings: Mapping[str, Mapping[str, object]], identity: str) -> str:
    """Return the parameters in which items of the same label differ, as text like `` (channel.beta=2)``."""
    keys = sorted({key for flat in meanings.values() for key in flat})
    words = []
    for key in keys:
        if len({repr(flat.get(key)) for flat in meanings.values()}) > 1:
            is_package = key.rpartition(".")[2] == "distribution"
            default = "smimbench" if is_package else "unset"
            words.append(f"{key}={meanings[identity].get(key, default)}")
    return f" ({', '.join(words)})"
