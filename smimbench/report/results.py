"""Stored results of a suite with their theory: the source of tables, figures, HTML page and the Python API."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from smimbench.files import JsonObject
from smimbench.problem.problem import Problem
from smimbench.report.extrapolation import FEWEST, Limit, extrapolated_rows
from smimbench.report.optimum import (
    Optima,
    OptimalRuns,
    optima_by_dimension,
    stored_optima,
)
from smimbench.report.row import Row, grouped
from smimbench.report.rows import (
    Pair,
    bayes_point,
    error_rows,
    prediction_of,
    sample_ratio,
    scored_rows,
    used_fresh_samples,
)
from smimbench.report.statistics import instance_of
from smimbench.report.verdict import AlgorithmSummary, Verdict, summary, verdicts
from smimbench.run.answers import THEORY_ERRORS, Answers
from smimbench.run.loop import Status
from smimbench.run.record import Record
from smimbench.run.store import (
    OtherVersion,
    Store,
    other_versions,
    pairs_of_other_code,
    settings_folder,
    theory_folder,
)
from smimbench.suite.cells import Cell, Suite


def is_packed(path: Path) -> bool:
    """Return whether a path is a file whose name may be that of packed results (.json or .gz)."""
    return path.suffix in (".json", ".gz") and path.is_file()


@dataclass(frozen=True)
class ResultsTable:
    """Results table of a suite: all rows, and verdicts, summary and limits computed from them.

    It is what ``smimbench show`` prints.

    Attributes
    ----------
    target : float
        Error that counts as reached where the optimum is 0.
    status_counts : dict
        Number of cells per status, and how many are ``missing``.
    other_versions : list of dict
        Numbers of stored cells that other versions of an item computed.
    left_out : sequence of str
        Problems and algorithms that this installation cannot create.
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
    other_versions: list[OtherVersion]
    left_out: Sequence[str] = ()
    against: str | None = None

    @cached_property
    @np.errstate(
        over="ignore", invalid="ignore"
    )  # values may be as large as numbers go
    def verdicts(self) -> list[Verdict]:
        """The verdict on each problem."""
        return verdicts(self.rows, self.against)

    @cached_property
    @np.errstate(over="ignore", invalid="ignore")
    def summary(self) -> list[AlgorithmSummary]:
        """The summary of each algorithm over all problems."""
        return summary(self.rows)

    @cached_property
    @np.errstate(over="ignore", invalid="ignore")
    def extrapolated(self) -> list[Limit]:
        """Extrapolations to infinite dimension of quantities measured at three or more different dimensions."""
        if len({row.place.dimension for row in self.rows}) < FEWEST:
            return []
        return extrapolated_rows(self.rows, self.target)

    def stored_fields(self) -> JsonObject:
        """Return the JSON fields of the table that cannot be computed from its rows."""
        stored_fields = {key: getattr(self, key) for key in (*HEAD, *COUNTS)}
        return stored_fields | (
            {"left_out": list(self.left_out)} if self.left_out else {}
        )

    def document(self) -> JsonObject:
        """Return the JSON document that ``show --json`` prints."""
        stored_fields = self.stored_fields()
        return {
            **{key: stored_fields.pop(key) for key in HEAD},
            "verdicts": [verdict.document() for verdict in self.verdicts],
            "summary": [asdict(entry) for entry in self.summary],
            "rows": [row.document() for row in self.rows],
            "extrapolated": [limit.document() for limit in self.extrapolated],
            **stored_fields,
        }


HEAD = ("suite", "title", "description")
COUNTS = ("status_counts", "missing", "other_versions")
"""Fields of the table that its JSON document holds unchanged, together with ``HEAD``."""


def cells_with_records(
    cells: Sequence[Cell], records: Mapping[str, Record]
) -> list[Pair]:
    """Pair each cell with its stored record, from any machine; records with trusted times are preferred."""
    trusted_last = sorted(records.values(), key=lambda record: record.timing.trusted)
    by_key = {record.key: record for record in trusted_last}
    labeled = {
        (cell.key, cell.problem_label, cell.algorithm_label): cell
        for cell in cells
        if cell.key in by_key
    }
    return [(cell, by_key[cell.key]) for cell in labeled.values()]


CODE_KEYS = ("problem", "algorithm", "tuning", "metrics")
"""Keys of a cell's identity that contain versions and hashes of code."""


def cells_with_outdated_records(
    cells: Sequence[Cell], store: Store, records: Mapping[str, Record]
) -> list[Pair]:
    """Pair cells with records that another version of the code computed, for algorithms without any up-to-date record.

    Each cell gets the identity of its record. If several versions have records, the one that wrote the newest is used.
    """

    def contender_key(cell: Cell) -> tuple[str, str, str]:
        """Labels of problem and algorithm, and the backend."""
        return cell.problem_label, cell.algorithm_label, cell.backend

    def code_identity(record: Record) -> list[object]:
        """Parts of a record's cell that contain versions and hashes of code."""
        return [record.cell.get(key) for key in CODE_KEYS]

    record_keys = {record.key for record in records.values()}
    up_to_date = {contender_key(cell) for cell in cells if cell.key in record_keys}
    outdated = pairs_of_other_code(cells, records.values())
    pairs: list[Pair] = []
    for contender, outdated_pairs in grouped(
        outdated, lambda pair: contender_key(pair[0])
    ).items():
        if contender in up_to_date:
            continue
        newest = max((record for _, record in outdated_pairs), key=store.write_time)
        trusted_last = sorted(outdated_pairs, key=lambda pair: pair[1].timing.trusted)
        pairs_by_key = {
            cell.key: (cell, record)
            for cell, record in trusted_last
            if code_identity(record) == code_identity(newest)
        }
        for cell, record in pairs_by_key.values():
            outdated_items: dict[str, Any] = {
                key: record.cell.get(key) for key in CODE_KEYS[:3]
            }
            pairs.append((replace(cell, **outdated_items), record))
    return pairs


class Results:
    """Results of a suite on the given backends (default: every backend with stored records).

    Parameters
    ----------
    answers : Answers or None
        Solved theory; default: the stored answers.
    any_code : bool
        Include records of other versions of the code for algorithms that the installed version has not run.
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
        """Open the results of a suite: the records in ``store`` of runs on these backends, and the stored theory ``answers``;
        ``any_code`` accepts cells that other code computed.
        """
        self.suite, self.store, self.records = suite, store, store.load()
        self.answers = answers or Answers(
            theory_folder(store), prediction_errors=suite.needs_prediction_errors
        )
        stored = sorted({record.cell["backend"] for record in self.records.values()})
        self.folder = settings_folder(suite, store)
        self.cells = [
            cell
            for backend in backends or stored or ["numpy"]
            for cell in suite.cells(backend)
        ]
        self.pairs = cells_with_records(self.cells, self.records)
        if any_code:
            self.pairs += cells_with_outdated_records(self.cells, store, self.records)
        self.counts = dict(Counter(record.status.value for _, record in self.pairs))

    @cached_property
    def rows(self) -> list[Row]:
        """The rows of the error table, including external estimates."""
        return [
            *error_rows(self.pairs, self.suite, self.store, self.answers, self.optima),
            *self.scored,
        ]

    @cached_property
    def scored(self) -> list[Row]:
        """The rows of external estimates, stored by ``smimbench score``."""
        return scored_rows(self.suite, self.store, self.answers, self.optima)

    @cached_property
    def optima(self) -> Optima:
        """The Bayes-optimal errors at finite dimension, where they are known."""
        return find_optima(self.pairs, self.suite, self.answers)

    @cached_property
    def other_versions(self) -> list[OtherVersion]:
        """Numbers of stored cells that other versions of an item computed; no table includes them."""
        return other_versions(self.cells, self.records.values())

    def missing(self, backends: Iterable[str]) -> int:
        """Count the cells on these backends that have no record."""
        cell_count = sum(len(self.suite.cells(backend)) for backend in backends)
        return cell_count - len(self.pairs)

    @property
    def table(self) -> ResultsTable:
        """The results table of all rows."""
        return ResultsTable(
            self.suite.name,
            self.suite.title,
            self.suite.description,
            self.suite.run.target,
            self.rows,
            self.counts,
            len(self.cells) - len(self.pairs),
            self.other_versions,
            self.suite.item_failures,
        )


# -- optima of runs -------------------------------------------------------------------------------------------------------


def find_optima(pairs: Sequence[Pair], suite: Suite, answers: Answers) -> Optima:
    """Find the Bayes-optimal errors at finite dimension, by problem, nominal sample ratio and dimension; ``references`` are
    runs of a Bayes-optimal algorithm, by problem and sample ratio.

    They are those that the suite holds, else they come from the ``ok`` runs of the first shipped algorithm that is predicted to
    reach the Bayes-optimal point.
    """
    references: dict[tuple[str, float], list[OptimalRuns]] = {}
    shipped_runs = [
        (cell, record)
        for cell, record in pairs
        if "source" not in cell.algorithm and not used_fresh_samples(record)
    ]
    for place_pairs in grouped(shipped_runs, lambda pair: pair[0].place).values():
        cell, records = place_pairs[0][0], [record for _, record in place_pairs]
        problem_references = references.setdefault((cell.problem_label, cell.alpha), [])
        has_reference = any(
            reference.algorithm != cell.algorithm_label
            or reference.dimension == cell.dimension
            for reference in problem_references
        )
        if not has_reference:
            problem = suite.problems[cell.problem_label]
            problem_references += _optimal_runs(problem, cell, records, answers)
    optima = {
        (problem, alpha, dimension): optimum
        for (problem, alpha), problem_references in references.items()
        for dimension, optimum in optima_by_dimension(problem_references).items()
    }
    for plan in suite.plans:
        for point, stored in stored_optima(plan).items():
            if point in optima:
                errors = optima[point].instance_errors
                stored = stored._replace(instance_errors=errors)
            optima[point] = stored
    return optima


def _optimal_runs(
    problem: Problem, cell: Cell, records: Sequence[Record], answers: Answers
) -> Iterator[OptimalRuns]:
    """Yield the runs of an algorithm at one dimension if theory predicts that it is Bayes-optimal; nothing otherwise.
    ``coefficient`` is that of its 1/D correction.
    """
    ratio = sample_ratio(problem, cell.alpha, cell.dimension)
    try:
        bayes = bayes_point(answers, problem, ratio)
    except THEORY_ERRORS:  # the rows state the reason
        return
    if bayes is None:
        return
    prediction = prediction_of(answers, problem, cell, ratio, records)
    if isinstance(prediction, str):
        return
    if not np.allclose(prediction.mse, bayes.mse, rtol=1e-9, atol=0):
        return
    runs = {
        instance_of(record): np.asarray(record.metrics["mse"], dtype=float)
        for record in records
        if record.status == Status.OK and "mse" in record.metrics
    }
    coefficient = (prediction.finite_size or {}).get("mse")
    yield OptimalRuns(
        cell.dimension, cell.algorithm_label, bayes.mse, runs, coefficient
    )
