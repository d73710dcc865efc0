"""Labels of rows: names that distinguish them, grouping by place, the word for a component, how a run ended."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from smimbench.files import JsonObject, canonical_json
from smimbench.run.external import ELSEWHERE
from smimbench.run.loop import Status

if TYPE_CHECKING:
    from smimbench.report.row import OfRow, Row
    from smimbench.run.record import Record


def place(row: Row) -> tuple[Any, ...]:
    """Place of a row: problem, algorithm, backend and grid point, without metric and component."""
    at = row.place
    return at.problem, at.algorithm, at.backend, at.nominal_alpha, at.dimension


def of_largest_dimension(rows: Iterable[Row]) -> list[Row]:
    """Rows of the largest dimension of every algorithm at every sample ratio; the extrapolation uses all."""

    def point(row: Row) -> tuple[Any, ...]:
        at = row.place
        return (
            at.problem,
            at.algorithm,
            at.backend,
            at.nominal_alpha,
            row.metric,
            row.component,
        )

    rows = list(rows)
    largest = {
        key: max(row.place.dimension for row in same)
        for key, same in grouped(rows, point).items()
    }
    return [row for row in rows if row.place.dimension == largest[point(row)]]


def reason_of(record: Record, near: str | None = None) -> str:
    """How and why a run ended: with the line of code if it failed, and the threshold ``near`` which it did not converge."""
    where = f" ({record.where})" if record.where else ""
    there = f"; {near}" if near and record.status == Status.NOT_CONVERGED else ""
    return f"{record.status}: {record.reason}{where}{there}"


def kind_of(reason: str) -> str:
    """Key of repeated failure reasons: the line of code that failed, else the text without numbers."""
    failed = re.fullmatch(r"failed: .*( \([^()]*, line \d+\))", reason, re.DOTALL)
    return failed[1] if failed else re.sub(r"\d+(\.\d+)?(e[+-]?\d+)?", "#", reason)


def grouped(rows: Iterable[Any], key: Callable[[Any], Any]) -> dict[Any, list[Any]]:
    """Rows grouped by their ``key``, in the order of first appearance."""
    found: dict[Any, list[Any]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def summed_statuses(rows: Iterable[Row]) -> dict[str, int]:
    """Number of runs per status, summed over these rows."""
    statuses: Counter[str] = Counter()
    for row in rows:
        statuses.update(row.runs.status_counts)
    return dict(statuses)


def names_with_backend(rows: Sequence[Row | OfRow]) -> Callable[[Row | OfRow], str]:
    """Names of the algorithms of rows, with the backend if rows of several backends are shown together.

    An estimate from elsewhere has none; it is told apart only from an algorithm of the same name that was run here.
    """
    several = len({row.place.backend for row in rows} - {ELSEWHERE}) > 1
    here = {row.place.algorithm for row in rows if row.place.backend != ELSEWHERE}

    def name(row: Row | OfRow) -> str:
        algorithm, backend = row.place.algorithm, row.place.backend
        apart = algorithm in here if backend == ELSEWHERE else several
        return f"{algorithm}@{backend}" if apart else algorithm

    return name


def component_word(problem: Any) -> str:
    """``"layer"`` where the channel has layers, otherwise ``"component"``."""
    return "layer" if "layers" in problem.spec["channel"] else "component"


def letter(model: Any) -> str:
    """Letter for a model's dimension: d for a matrix of extensive rank, else D."""
    return "d" if model.rank == "extensive" else "D"


def letter_of(rows: Iterable[Row | OfRow]) -> str:
    """Letter for the dimension of rows: that of their model, or D if models differ or are unknown."""
    letters = {row.dimension_letter for row in rows}
    return letters.pop() or "D" if len(letters) == 1 else "D"


def distinguish(rows: Iterable[Row]) -> list[Row]:
    """Rows with labels extended where different problems or algorithms share one."""
    rows = list(rows)
    for key in ("problem", "algorithm"):
        meanings: dict[str, dict[str, JsonObject]] = {}
        for row in rows:
            spec = getattr(row.identity, key)
            meanings.setdefault(getattr(row.place, key), {})[canonical_json(spec)] = (
                _flat(spec)
            )
        for i, row in enumerate(rows):
            label = getattr(row.place, key)
            if len(meanings[label]) > 1:
                label += _difference(
                    meanings[label], canonical_json(getattr(row.identity, key))
                )
                labels = {
                    "problem": row.place.problem,
                    "algorithm": row.place.algorithm,
                    key: label,
                }
                rows[i] = row.labeled(**labels)
    return rows


def _flat(table: JsonObject, before: str = "") -> JsonObject:
    flat: JsonObject = {}
    for key, value in table.items():
        flat |= (
            _flat(value, f"{before}{key}.")
            if isinstance(value, dict)
            else {before + key: value}
        )
    return flat


def _difference(same: Mapping[str, JsonObject], own: str) -> str:
    """Text `` (channel.beta=2)``: the parameters in which one item differs from another of the same label."""
    keys = {key for flat in same.values() for key in flat}
    differing = sorted(
        k for k in keys if len({repr(flat.get(k)) for flat in same.values()}) > 1
    )
    usual = {
        key: "smimbench" for key in keys if key.rpartition(".")[2] == "distribution"
    }
    words = (f"{k}={same[own].get(k, usual.get(k, 'unset'))}" for k in differing)
    return f" ({', '.join(words)})"
