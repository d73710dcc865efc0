"""Stored results of a suite with their theory: the source of tables, figures, HTML page and the Python API."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from smimbench.files import JsonObject, canonical_json, pick
from smimbench.interfaces import Host
from smimbench.numerics.size_laws import SECOND, fit_sizes, pooled_errors
from smimbench.problem.problem import Problem
from smimbench.report.extrapolation import FEWEST, Limit, extrapolated_rows
from smimbench.report.prediction import FINITE
from smimbench.report.row import CLOSED_FORM, FITTED, Optima, Optimum, Row, grouped
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
from smimbench.suite.cells import Cell, ProblemPlan, Suite


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
        """Extrapolations to infinite dimension of all quantities that were measured at three or more dimensions."""
        if len({row.place.dimension for row in self.rows}) < FEWEST:
            return []
        return extrapolated_rows(self.rows, self.target)

    def stored_fields(self) -> JsonObject:
        """Return the JSON fields of the table that cannot be computed from its rows (title, numbers of cells, ...)."""
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
    """Pair each cell with its stored record, from any machine; of several, those with trusted times are preferred."""
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
        """Return labels of problem and algorithm, and the backend, of a cell."""
        return cell.problem_label, cell.algorithm_label, cell.backend

    def code_identity(record: Record) -> dict[str, Any]:
        """Return the parts of a record's cell that contain versions and hashes of code."""
        return {key: record.cell.get(key) for key in CODE_KEYS}

    record_keys = {record.key for record in records.values()}
    up_to_date = {contender_key(cell) for cell in cells if cell.key in record_keys}
    outdated = pairs_of_other_code(cells, records.values())
    pairs: dict[object, Pair] = {}
    by_contender = grouped(outdated, lambda pair: contender_key(pair[0]))
    for contender, outdated_pairs in by_contender.items():
        if contender in up_to_date:
            continue
        newest = max((record for _, record in outdated_pairs), key=store.write_time)
        identity = code_identity(newest)
        for cell, record in sorted(outdated_pairs, key=lambda p: p[1].timing.trusted):
            if code_identity(record) == identity:
                items = pick(identity, CODE_KEYS[:3])
                pairs[contender, cell.key] = replace(cell, **items), record
    return [*pairs.values()]


class Results:
    """Stored results of a suite: cells with their records, on the given backends (default: every backend with stored records),
    and the rows made of them.

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
        rows_of_runs = error_rows(
            self.pairs, self.suite, self.store, self.answers, self.optima
        )
        return [*with_unique_labels(rows_of_runs), *self.scored]

    @cached_property
    def scored(self) -> list[Row]:
        """The rows of external estimates that ``smimbench score`` has stored."""
        return scored_rows(self.suite, self.store, self.answers, self.optima)

    @cached_property
    def optima(self) -> Optima:
        """The Bayes-optimal errors at finite dimension, where they are known."""
        return find_optima(self.pairs, self.suite, self.answers)

    @cached_property
    def other_versions(self) -> list[OtherVersion]:
        """Numbers of stored cells that other versions of an item computed; no table includes them."""
        return other_versions(self.cells, self.records.values())

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


# -- labels ---------------------------------------------------------------------------------------------------------------


def with_unique_labels(rows: Iterable[Row]) -> list[Row]:
    """Return rows in which every label is unique: labels that different problems or algorithms share are extended by the
    parameters in which these differ.
    """
    rows = list(rows)
    for item in ("problem", "algorithm"):
        specs_by_label: dict[str, dict[str, dict[str, object]]] = {}
        for row in rows:
            spec = getattr(row.identity, item)
            specs_by_label.setdefault(getattr(row.place, item), {})[
                canonical_json(spec)
            ] = _flattened(spec)
        for row_index, row in enumerate(rows):
            label = getattr(row.place, item)
            spec = getattr(row.identity, item)
            if len(specs_by_label[label]) > 1:
                labels = {
                    "problem": row.place.problem,
                    "algorithm": row.place.algorithm,
                }
                labels[item] += _differing_parameters(
                    specs_by_label[label], canonical_json(spec)
                )
                rows[row_index] = row.labeled(**labels)
    return rows


def _flattened(table: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Flatten nested tables; keys of inner tables follow those of outer ones after a dot."""
    flat_table: dict[str, object] = {}
    for name, value in table.items():
        if isinstance(value, dict):
            flat_table |= _flattened(value, f"{prefix}{name}.")
        else:
            flat_table[prefix + name] = value
    return flat_table


def _differing_parameters(
    flat_specs: Mapping[str, Mapping[str, object]], identity: str
) -> str:
    """Return the parameters in which items of the same label differ, as text like `` (channel.beta=2)``; ``identity`` is the item
    to describe, ``flat_specs`` are those of all.
    """
    parameters = sorted(
        {parameter for flat_spec in flat_specs.values() for parameter in flat_spec}
    )
    settings = []
    for parameter in parameters:
        if (
            len({repr(flat_spec.get(parameter)) for flat_spec in flat_specs.values()})
            > 1
        ):
            is_package = parameter.rpartition(".")[2] == "distribution"
            default = "smimbench" if is_package else "unset"
            settings.append(
                f"{parameter}={flat_specs[identity].get(parameter, default)}"
            )
    return f" ({', '.join(settings)})"


# -- optimum at the dimension of the runs -----------------------------------------------------------------------------------
#
# At finite D the smallest possible error differs from the limit, by 10% at d = 80. The coefficient of 1 / D is known in closed
# form, or measured from runs, on the same grid, of a shipped algorithm that is Bayes-optimal as D grows.


class OptimalRuns(NamedTuple):
    """Runs of a Bayes-optimal algorithm at one dimension: theory's error ``limit`` (P,) at infinite D, the errors (P,) of
    each instance, and, if known in closed form, the coefficients (P,) of the correction of order 1/D.
    """

    dimension: int
    algorithm: str
    limit: Host
    instance_errors: Mapping[str, Host]
    coefficient: Sequence[float] | None


def find_optima(pairs: Sequence[Pair], suite: Suite, answers: Answers) -> Optima:
    """Find the Bayes-optimal errors at finite dimension, by problem, nominal sample ratio and dimension; ``references`` are runs
    of a Bayes-optimal algorithm, by problem and sample ratio, to which errors are fitted where no closed form is known.

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
        cell = place_pairs[0][0]
        records = [record for _, record in place_pairs]
        problem_references = references.setdefault((cell.problem_label, cell.alpha), [])
        has_other_reference = any(
            reference.algorithm != cell.algorithm_label
            or reference.dimension == cell.dimension
            for reference in problem_references
        )
        if not has_other_reference:
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


def optima_by_dimension(references: Sequence[OptimalRuns]) -> dict[int, Optimum]:
    """Compute the Bayes-optimal error at every dimension for one problem and sample ratio, from the runs ``references`` of a
    Bayes-optimal algorithm (one entry per dimension): in closed form where the coefficient of 1/D is known, otherwise fitted.

    Without a closed form, ``limit + b / D + c / D^2`` is fitted to all dimensions together. Relative to the limit, c is a normal
    variable around 0 with a third of ``SECOND`` as its standard deviation. What is twice as far above the limit as finite size
    explains (``FINITE`` and ``SECOND``) is cut off there.
    """
    closed_form_optima = {}
    for reference in references:
        limit, dimension = reference.limit, reference.dimension
        if reference.coefficient is not None:
            excess = np.asarray(reference.coefficient, dtype=float) / dimension
            error = excess**2 / np.where(limit > 0, limit, 1.0)
            closed_form_optima[dimension] = Optimum(
                limit + excess, error, CLOSED_FORM, reference.instance_errors
            )
    return closed_form_optima or _fitted_optima(
        [
            reference
            for reference in references
            if len(reference.instance_errors) > 1 and (reference.limit > 1e-12).all()
        ]
    )


def _fitted_optima(references: Sequence[OptimalRuns]) -> dict[int, Optimum]:
    """Fit the Bayes-optimal error at every dimension to the runs ``references`` of a Bayes-optimal algorithm (one entry per
    dimension). The fitted ``excess`` is the mean error over runs minus its limit at infinite D, by dimension; ``sems`` are
    its standard errors.
    """
    if not references:
        return {}
    dimensions = np.array(
        [reference.dimension for reference in references], dtype=float
    )
    run_counts = [len(reference.instance_errors) for reference in references]
    limits = np.array([reference.limit for reference in references]).T
    optimal_errors = np.empty_like(limits)
    standard_errors = np.empty_like(limits)
    is_mean_of_runs = len(references) == 1
    for component, limit in enumerate(limits):
        run_errors = [
            np.array([*reference.instance_errors.values()])[:, component]
            for reference in references
        ]
        excess = (
            np.array([dimension_errors.mean() for dimension_errors in run_errors])
            - limit
        )
        sems, _ = pooled_errors(
            dimensions,
            [dimension_errors.std(ddof=1) for dimension_errors in run_errors],
            run_counts,
        )
        sems = np.maximum(sems, 1e-6 * limit)
        fit = fit_sizes(
            dimensions, excess, sems, (0.0, np.inf, SECOND / 3 * limit.max())
        )
        # Runs further above did not reach the optimum; taken as it, their ratio to it would always be 1.
        largest_plausible = limit * (
            1 + 2 * (FINITE["lower"] / dimensions + SECOND / dimensions**2)
        )
        fitted_errors = limit + fit.laws @ fit.coefficients
        is_mean_of_runs &= bool((fitted_errors <= largest_plausible).all())
        optimal_errors[component] = np.clip(
            fitted_errors, 1e-3 * limit, largest_plausible
        )
        standard_errors[component] = np.linalg.norm(fit.laws @ fit.errors, axis=1)
    source = f"{FITTED}{references[0].algorithm}"
    return {
        reference.dimension: Optimum(
            optimal_errors[:, size_index],
            standard_errors[:, size_index],
            source,
            reference.instance_errors,
            is_mean_of_runs,
        )
        for size_index, reference in enumerate(references)
    }


def stored_optima(plan: ProblemPlan) -> Optima:
    """Return the Bayes-optimal errors at finite dimension that the suite holds for a problem."""
    return {
        (plan.label, alpha, table.dimension): Optimum(
            np.array(mse), np.array(error), table.source, {}
        )
        for table in plan.optima
        for alpha, mse, error in zip(table.alpha, table.mse, table.error)
    }
