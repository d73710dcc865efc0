"""All that was run of a suite, with its theory: what tables, figures, the page and the Python functions are made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from smimbench.files import JsonObject
from smimbench.report.extrapolation import Limit, extrapolated_rows
from smimbench.report.labels import grouped
from smimbench.report.row import Row
from smimbench.report.rows import Optima, Pair, error_rows, find_optima, scored_rows
from smimbench.report.verdict import AlgorithmSummary, Verdict, summary, verdicts
from smimbench.run.answers import Answers
from smimbench.run.record import Record
from smimbench.run.store import (
    Store,
    made_by_other_code,
    other_versions,
    settings_folder,
    theory_folder,
)
from smimbench.suite.cells import Cell, Suite


def is_packed(path: Path) -> bool:
    """Whether a path is a file that may hold packed results."""
    return path.suffix in (".json", ".gz") and path.is_file()


@dataclass(frozen=True)
class ResultsTable:
    """All rows of a suite with what follows from them: what ``show`` prints.

    Attributes
    ----------
    target : float
        Error that counts as reached where the optimum is 0.
    status_counts : dict
        Number of cells per status, and how many are ``missing``.
    other_versions : list of dict
        Stored cells that other versions of an item made.
    left_out : sequence of str
        Problems and algorithms that cannot be made here.
    against : str or None
        Algorithm that verdicts compare others with; None: the best.
    """

    suite: str
    title: str
    description: str
    target: float
    rows: Sequence[Row]
    status_counts: dict[str, int]
    missing: int
    other_versions: list[JsonObject]
    left_out: Sequence[str] = ()
    against: str | None = None

    @cached_property
    @np.errstate(
        over="ignore", invalid="ignore"
    )  # values may be as large as numbers go
    def verdicts(self) -> list[Verdict]:
        """A verdict on every problem."""
        return verdicts(self.rows, self.against)

    @cached_property
    @np.errstate(over="ignore", invalid="ignore")
    def summary(self) -> list[AlgorithmSummary]:
        """All problems together."""
        return summary(self.rows)

    @cached_property
    @np.errstate(over="ignore", invalid="ignore")
    def extrapolated(self) -> list[Limit]:
        """Limits at infinite dimension, where there are three dimensions or more."""
        return extrapolated_rows(self.rows, self.target)

    def about(self) -> JsonObject:
        """What does not follow from the rows."""
        about = {key: getattr(self, key) for key in (*HEAD, *COUNTS)}
        return about | ({"left_out": list(self.left_out)} if self.left_out else {})

    def document(self) -> JsonObject:
        """The document that ``show --json`` prints."""
        about = self.about()
        return {
            **{key: about.pop(key) for key in HEAD},
            "verdicts": [verdict.document() for verdict in self.verdicts],
            "summary": [asdict(entry) for entry in self.summary],
            "rows": [row.document() for row in self.rows],
            "extrapolated": [limit.document() for limit in self.extrapolated],
            **about,
        }


HEAD = ("suite", "title", "description")
COUNTS = ("status_counts", "missing", "other_versions")
"""Fields of a table that are the same in its JSON."""


def paired(cells: Sequence[Cell], records: Mapping[str, Record]) -> list[Pair]:
    """Pairs of a cell and its record, by file stem; errors from any machine, trusted times preferred."""
    trusted_last = sorted(records.values(), key=lambda record: record.timing.trusted)
    by_key = {record.key: record for record in trusted_last}
    labeled = {
        (cell.key, cell.problem_label, cell.algorithm_label): cell
        for cell in cells
        if cell.key in by_key
    }
    return [(cell, by_key[cell.key]) for cell in labeled.values()]


OF_CODE = ("problem", "algorithm", "tuning", "metrics")
"""Parts of a cell's identity that name versions and code."""


def paired_by_name(
    cells: Sequence[Cell], store: Store, records: Mapping[str, Record]
) -> list[Pair]:
    """Pairs for algorithms whose records were all made by other code of an item: each cell is then that of its record.

    Of several codes the one that wrote the newest record.
    """

    def contender(cell: Cell) -> tuple[str, str, str]:
        return cell.problem_label, cell.algorithm_label, cell.backend

    def code(record: Record) -> list[object]:
        return [record.cell.get(key) for key in OF_CODE]

    keys = {record.key for record in records.values()}
    up_to_date = {contender(cell) for cell in cells if cell.key in keys}
    outdated = made_by_other_code(cells, records.values())
    pairs: list[Pair] = []
    for name, members in grouped(outdated, lambda pair: contender(pair[0])).items():
        if name in up_to_date:
            continue
        newest = max((record for _, record in members), key=store.written)
        trusted_last = sorted(members, key=lambda pair: pair[1].timing.trusted)
        by_key = {
            cell.key: (cell, record)
            for cell, record in trusted_last
            if code(record) == code(newest)
        }
        for cell, record in by_key.values():
            items: dict[str, Any] = {key: record.cell.get(key) for key in OF_CODE[:3]}
            pairs.append((replace(cell, **items), record))
    return pairs


class Results:
    """Results of a suite on some backends (default: all that there are).

    Parameters
    ----------
    answers : Answers or None
        Theory; default: what is stored.
    any_code : bool
        Count what other code has run, too, where the present code has run nothing of an algorithm.
    """

    def __init__(
        self,
        suite: Suite,
        store: Store,
        backends: Sequence[str] = (),
        answers: Answers | None = None,
        *,
        any_code: bool = False,
    ) -> None:
        self.suite, self.store, self.records = suite, store, store.load()
        self.answers = answers or Answers(
            theory_folder(store), predictions=suite.needs_prediction_errors
        )
        stored = sorted({record.cell["backend"] for record in self.records.values()})
        self.folder = settings_folder(suite, store)
        self.cells = [
            cell
            for backend in backends or stored or ["numpy"]
            for cell in suite.cells(backend)
        ]
        self.pairs = paired(self.cells, self.records)
        if any_code:
            self.pairs += paired_by_name(self.cells, store, self.records)
        self.counts = dict(Counter(record.status.value for _, record in self.pairs))

    @cached_property
    def rows(self) -> list[Row]:
        """Rows of the error table."""
        return [
            *error_rows(self.pairs, self.suite, self.store, self.answers, self.optima),
            *self.scored,
        ]

    @cached_property
    def scored(self) -> list[Row]:
        """Rows of estimates from elsewhere."""
        return scored_rows(self.suite, self.store, self.answers, self.optima)

    @cached_property
    def optima(self) -> Optima:
        """The Bayes-optimal error at finite size, where it is known."""
        return find_optima(self.pairs, self.suite, self.answers)

    @cached_property
    def other_versions(self) -> list[JsonObject]:
        """Number of stored cells that other versions of an item made, which no table counts."""
        return other_versions(self.cells, self.records.values())

    def missing(self, backends: Iterable[str]) -> int:
        """Cells on these backends that have no record."""
        cells = sum(len(self.suite.cells(backend)) for backend in backends)
        return cells - len(self.pairs)

    @property
    def table(self) -> ResultsTable:
        """Rows with what follows from them."""
        return ResultsTable(
            self.suite.name,
            self.suite.title,
            self.suite.description,
            self.suite.run.target,
            self.rows,
            self.counts,
            len(self.cells) - len(self.pairs),
            self.other_versions,
            self.suite.left_out,
        )
