"""Tunes algorithms (``smimbench tune``): searches their settings on separate seeds; a trial is an ordinary cell.

Records of trials lie in ``results/SUITE/tuning``, each finished search in ``choices`` there, under a hash of all that was asked.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from smimbench.files import (
    JsonObject,
    attempt,
    canonical_json,
    read_json,
    write_atomically,
)
from smimbench.interfaces import ParameterError
from smimbench.interfaces.algorithm import refusal
from smimbench.numerics.random_numbers import TUNING
from smimbench.problem.problem import Specification
from smimbench.registry.items import Parameters
from smimbench.registry.registry import get_registry
from smimbench.run.loop import FAILED_STATUSES
from smimbench.run.record import (
    Record,
    SearchOutcome,
    SearchResult,
    SearchRound,
    check_model,
    digest_of,
    indented_json,
    json_value,
    with_digest,
)
from smimbench.run.store import Store, trials_of
from smimbench.suite import SuiteError
from smimbench.suite.algorithms import setting_text_of, with_setting
from smimbench.suite.cells import (
    AlgorithmPlan,
    Cell,
    ProblemPlan,
    Suite,
    TunedAlgorithm,
    Tuning,
    build_algorithm,
    key_of,
    make_algorithm,
    with_versions,
)
from smimbench.suite.schema import SearchSpace, Setting

AS_WRITTEN = 0
"""Place of the setting as written among the trials of a search."""


@dataclass(frozen=True, eq=False)
class Search:
    """Search for the best setting (parameter values) of one algorithm in its ``search_space`` on one problem (``plan``), over the
    problem's sample ratios and dimensions.
    """

    suite: Suite
    plan: ProblemPlan
    algorithm: AlgorithmPlan
    search_space: SearchSpace

    @property
    def labels(self) -> tuple[str, str]:
        """Labels of the problem and algorithm that are searched, as tables show them."""
        return self.plan.label, self.algorithm.label

    @cached_property
    def question(self) -> dict[str, object]:
        """All that the result of the search depends on: problem, algorithm, ranges, grid and run options, but no seeds."""
        plan, algorithm, run_options = self.plan, self.algorithm, self.suite.run
        spec = with_versions(algorithm.spec, plan.problem.model.name)
        return {"problem": plan.problem.spec, "algorithm": spec, "tune": self.search_space.document(), "alpha": plan.alphas,
                "dimension": plan.dimensions, "target": run_options.target, **run_options.of_cell(()).identity()}  # fmt: skip

    @property
    def name(self) -> str:
        """Name of the file that stores the result of the search, a hash of its question."""
        return f"{key_of(self.question)}.json"

    @cached_property
    def trials(self) -> list[tuple[Setting, Specification]]:
        """Settings to try, each with the specification of its algorithm; the first is the one in the suite."""
        algorithm = self.algorithm
        algorithm_entry = get_registry().get("algorithm", algorithm.name)
        trials: dict[str, tuple[Setting, Specification]] = {}
        for setting in self.search_space.settings(algorithm.spec):
            try:
                parameters = with_setting(algorithm.parameters, setting)
                _, spec = make_algorithm(algorithm_entry, parameters)
            except ParameterError as error:  # each value alone is allowed
                toml_key = f"algorithms: {algorithm.label}: tune"
                reason = f"{setting_text_of(setting)}: {error.key} {error.message}"
                raise SuiteError(
                    self.suite.file,
                    toml_key,
                    f"{reason}; remove this value from the search",
                ) from None
            spec = with_versions(spec, self.plan.problem.model.name)
            trials.setdefault(canonical_json(spec), (setting, spec))
        return list(trials.values())

    def cells(self, trial: int, seed_count: int, backend: str) -> list[Cell]:
        """Return the cells (runs), on this backend, of a ``trial`` (index of a setting) on the first ``seed_count`` tuning seeds,
        at all dimensions and sample ratios.
        """
        problem = self.plan.problem.spec
        spec = self.trials[trial][1]
        run_options = self.suite.run.of_cell(())
        grid_points = itertools.product(
            range(seed_count), self.plan.dimensions, self.plan.alphas
        )
        return [
            Cell(
                problem,
                spec,
                alpha,
                dimension,
                tuning_seed,
                TUNING,
                backend,
                run_options,
                *self.labels,
            )
            for tuning_seed, dimension, alpha in grid_points
        ]

    def next_cells_or_outcome(
        self, log_errors: Mapping[str, float], backend: str
    ) -> tuple[list[Cell], SearchOutcome | None]:
        """Return the cells that must run next on this backend, or the result of the search, given the log errors of finished
        cells by key. In every round of the search the better half of the ``candidates`` (settings, by index) goes on, with more
        seeds; ``scores`` are mean log errors by setting.

        In every round the better half of the trials goes on, with twice as many seeds: successive halving, from as many seeds
        that the last two are compared on at least four. The setting as written goes on beside that half, so that what is
        chosen is never worse on all seeds that were used. A trial of which a run has no estimate is out.
        """
        trials = range(len(self.trials))
        candidates = list(trials)
        survivor_count = len(trials)
        rounds: list[SearchRound] = []
        run_count = 0
        seed_count = max(1, 8 >> (survivor_count - 1).bit_length())
        while True:
            cells_of_trial = {
                trial: self.cells(trial, seed_count, backend) for trial in candidates
            }
            round_cells = list(itertools.chain.from_iterable(cells_of_trial.values()))
            unfinished_cells = [
                cell for cell in round_cells if cell.key not in log_errors
            ]
            if unfinished_cells:
                return unfinished_cells, None
            scores = {
                trial: fmean(log_errors[cell.key] for cell in trial_cells)
                for trial, trial_cells in cells_of_trial.items()
            }
            # Half of the seeds of later rounds have run before.
            run_count += len(round_cells) // (2 if rounds else 1)
            errors = [_six_digit_error(scores.get(trial, math.inf)) for trial in trials]
            rounds.append({"seeds": seed_count, "errors": errors})
            survivor_count = -(-survivor_count // 2)
            finite_trials = [
                trial for trial in candidates if math.isfinite(scores[trial])
            ]
            ranked_trials = sorted(finite_trials, key=scores.__getitem__)
            candidates = ranked_trials[:survivor_count]
            if len(candidates) < 2:
                break
            if AS_WRITTEN in ranked_trials[survivor_count:]:
                candidates.append(AS_WRITTEN)
            seed_count *= 2
        settings = [
            {
                ".".join(parameter_path): parameter_value
                for parameter_path, parameter_value in setting.items()
            }
            for setting, _ in self.trials
        ]
        best_trial = candidates[0] if candidates else None
        return [], {
            "backend": backend,
            "trials": settings,
            "rounds": rounds,
            "runs": run_count,
            "chosen": best_trial,
            "algorithm": None if best_trial is None else self.trials[best_trial][1],
        }

    def remaining_cells(
        self, log_errors: Mapping[str, float], backend: str
    ) -> list[Cell]:
        """Return the largest set of cells that the search may still have to run on this backend, given the log errors of
        finished cells by key.
        """
        remaining_cells: list[Cell] = []
        expected_log_errors = dict(log_errors)
        while next_cells := self.next_cells_or_outcome(expected_log_errors, backend)[0]:
            remaining_cells += next_cells
            for cell in next_cells:
                is_suite_setting = cell.algorithm == self.trials[AS_WRITTEN][1]
                expected_log_errors[cell.key] = 20.0 if is_suite_setting else 0.0
        return remaining_cells


def _six_digit_error(log_error: float) -> float | None:
    """Return the error whose logarithm is ``log_error``, to six digits, on which all machines agree; None if it is not
    finite.
    """
    return float(f"{math.exp(log_error):.6g}") if math.isfinite(log_error) else None


def searches(suite: Suite) -> list[Search]:
    """Return all searches of a suite, regardless of ``--only``."""
    plans_with_data = [plan for plan in suite.plans if not plan.theory_only]
    return [
        Search(suite, plan, algorithm, algorithm.search_space)
        for plan, algorithm in itertools.product(plans_with_data, suite.algorithms)
        if algorithm.search_space
        and not attempt(refusal, build_algorithm(algorithm.spec, None), plan.problem)[0]
    ]


def require_selected_searches(suite: Suite) -> list[Search]:
    """Return the searches of a suite that ``--only`` selects.

    Raises
    ------
    SuiteError
        If there are none.
    """
    selected_searches = _selected_searches(suite)
    if not selected_searches:
        raise SuiteError(
            suite.file,
            "algorithms",
            "no algorithm names parameters to tune; add a table [algorithms.tune] below one, "
            "with learning_rate = { low = 0.01, high = 1.0, log = true }",
        )
    return selected_searches


def _selected_searches(suite: Suite) -> list[Search]:
    """Return the searches of a suite that ``--only`` selects; there may be none."""
    plans, algorithms = suite.chosen_plans, suite.chosen_algorithms
    return [
        search
        for search in searches(suite)
        if search.plan in plans and search.algorithm in algorithms
    ]


def search_all(
    suite: Suite,
    store: Store,
    backend: str,
    run_trials: Callable[[list[Cell], Store], bool],
    retry_statuses: Collection[str] = (),
) -> list[JsonObject]:
    """Run the searches of a suite on this backend side by side, each only once, and return their results. ``run_trials``
    runs cells into a store; trials whose record has one of the ``retry_statuses`` run again.

    Parameters
    ----------
    run_trials : callable
        Runs cells, keeps their records in the store that it is given, and says whether all have been run.
    retry_statuses : collection of str
        Trials of this status are run again, and all choices are made again.

    Returns
    -------
    list of dict
        The labels of ``problem`` and algorithm (``label``), and what is stored of the search if it is finished: the ``trials``;
        the ``rounds``, each with its number of ``seeds`` and the geometric mean of the ``errors`` of every trial (None: it was
        out, or a run has no estimate); the number of ``runs``; which trial was ``chosen`` (None: all failed); the ``algorithm``
        that it makes.
    """
    trial_store = trials_of(store)
    selected_searches = require_selected_searches(suite)
    if retry_statuses:
        stored_records = trial_store.load().items()
        trial_store.retire(
            file_stem
            for file_stem, record in stored_records
            if record.status in retry_statuses
        )
    outcomes: dict[Search, SearchOutcome | None] = {
        search: None if retry_statuses else read_choice(search, store)
        for search in selected_searches
    }
    while True:
        log_errors = log_errors_of_trials(suite, trial_store)
        unfinished_cells: list[Cell] = []
        for search in selected_searches:
            if outcomes[search] is None:
                cells, outcome = search.next_cells_or_outcome(log_errors, backend)
                unfinished_cells += cells
                if outcome is not None and outcome["chosen"] is not None:
                    outcome = store_choice(search, store, outcome)
                outcomes[search] = outcome
        if not unfinished_cells or not run_trials(unfinished_cells, trial_store):
            break
    documents = []
    for search, outcome in outcomes.items():
        problem, label = search.labels
        documents.append({"problem": problem, "label": label, **dict(outcome or {})})
    return documents


def remaining_searches(
    suite: Suite, store: Store, backend: str
) -> list[tuple[Search, list[Cell]]]:
    """Return the searches of a suite whose results are not in the store, each with the cells that it may still have to run
    on this backend; nothing is written.
    """
    log_errors = log_errors_of_trials(suite, trials_of(store))
    searches_with_cells = []
    for search in require_selected_searches(suite):
        is_done = read_choice(search, store) is not None
        cells = [] if is_done else search.remaining_cells(log_errors, backend)
        searches_with_cells.append((search, cells))
    return searches_with_cells


def log_error(record: Record, target: float) -> float:
    """Return the logarithm of the squared error of a run (its record), summed over components, at least that of ``target``;
    infinity if the run has no estimate.

    Errors below ``target`` count as equal to it: otherwise a sample ratio at which the signal is recovered would outweigh all.
    """
    component_errors = [
        math.nan if component_error is None else component_error
        for component_error in record.metrics.get("mse", ())
    ]
    if record.status in FAILED_STATUSES or not component_errors:
        return math.inf
    total_error = math.fsum(component_errors)
    return (
        math.log(max(total_error, target)) if math.isfinite(total_error) else math.inf
    )


def log_errors_of_trials(suite: Suite, trials: Store) -> dict[str, float]:
    """Return the logarithms of the errors of all finished trial runs, by key of their cell."""
    smallest_error = suite.run.target
    return {
        record.key: log_error(record, smallest_error)
        for record in trials.load().values()
    }


def store_choice(
    search: Search, store: Store, outcome: SearchOutcome
) -> SearchResult | None:
    """Store the result of a search (``outcome``) and return the chosen setting."""
    document = with_digest(json_value({"question": search.question, **outcome}))
    write_atomically(choice_file(search, store), indented_json(document).encode())
    return read_choice(search, store)


def read_choice(search: Search, store: Store) -> SearchResult | None:
    """Read the stored result of a search, if there is one.

    Raises
    ------
    SuiteError
        If it was changed after it was written.
    """
    path = choice_file(search, store)
    try:
        document: Any = read_json(path)
        is_table = isinstance(document, dict)
        if not is_table or digest_of(document) != document.get("digest"):
            raise ValueError(
                "the file was changed after it was written (its digest does not match)"
            )
        check_model(SearchResult, document, "a result of smimbench tune")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise SuiteError(
            str(path), "", f"{error}; remove the file and tune again"
        ) from None
    result: SearchResult = document
    return result


def choice_file(search: Search, store: Store) -> Path:
    """Path of the file that stores the result of a search."""
    return trials_of(store).folder / "choices" / search.name


def with_tuned_settings(suite: Suite, store: Store) -> Suite:
    """Return the suite with the settings that ``smimbench tune`` has chosen so far, as the store holds them."""
    choices: dict[tuple[str, str], TunedAlgorithm] = {}
    for search in searches(suite):
        outcome = read_choice(search, store)
        if outcome and outcome["algorithm"]:
            choices[search.labels] = choice_of(search, outcome)
    return replace(suite, choices=choices)


def range_ends(trials: Sequence[Parameters], chosen_trial: int | None) -> list[str]:
    """Return one remark for each parameter whose chosen value is the smallest or largest that was tried; ``trials`` are the
    settings that were tried, ``chosen_trial`` the index of the best.
    """
    range_remarks = []
    chosen_setting = {} if chosen_trial is None else trials[chosen_trial]
    for parameter_name, chosen_value in chosen_setting.items():
        tried_values: set[Any] = {
            trial_setting.get(parameter_name)
            for trial_setting in trials
            if isinstance(trial_setting.get(parameter_name), (int, float))
        }
        if len(tried_values) > 2 and chosen_value in (
            min(tried_values),
            max(tried_values),
        ):
            smallest_or_largest = (
                "smallest" if chosen_value == min(tried_values) else "largest"
            )
            range_remarks.append(
                f"the {smallest_or_largest} {parameter_name} that was tried, {chosen_value:g}, was chosen: widen its range"
            )
    return range_remarks


def range_end_remarks(suite: Suite, store: Store) -> list[str]:
    """Return remarks on tuned settings of a suite, read from the store, that lie at the end of their range."""
    range_remarks = []
    for search in _selected_searches(suite):
        stored_choice = (
            read_choice(search, store) if search.labels in suite.choices else None
        )
        if (
            stored_choice is not None
            and stored_choice["digest"] == suite.choices[search.labels].tuning["search"]
        ):
            range_remarks += [
                f"{': '.join(search.labels)}: {range_remark}"
                for range_remark in range_ends(
                    stored_choice["trials"], stored_choice["chosen"]
                )
            ]
    return range_remarks


def choice_of(search: Search, stored_outcome: SearchResult) -> TunedAlgorithm:
    """Return the algorithm with the setting that a search chose (``stored_outcome``), and a summary of the search, as cells
    (runs) store them.
    """
    algorithm = stored_outcome["algorithm"]
    assert algorithm is not None
    tuning: Tuning = {"of": search.algorithm.spec, "tune": search.search_space.document(),
              "trials": len(stored_outcome["trials"]),
              "runs": stored_outcome["runs"], "search": stored_outcome["digest"]}  # fmt: skip
    return TunedAlgorithm(algorithm, tuning)
