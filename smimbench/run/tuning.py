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
    plain,
    sealed,
    text_of,
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
    """Search for the best setting of one algorithm on one problem, over its sample ratios and dimensions."""

    suite: Suite
    plan: ProblemPlan
    algorithm: AlgorithmPlan
    space: SearchSpace

    @property
    def place(self) -> tuple[str, str]:
        """Labels of problem and algorithm."""
        return self.plan.label, self.algorithm.label

    @cached_property
    def question(self) -> dict[str, object]:
        """All settings that the chosen one depends on, without the seeds of the suite."""
        plan, algorithm, run = self.plan, self.algorithm, self.suite.run
        spec = with_versions(algorithm.spec, plan.problem.model.name)
        return {"problem": plan.problem.spec, "algorithm": spec, "tune": self.space.document(), "alpha": plan.alphas,
                "dimension": plan.dimensions, "target": run.target, **run.of_cell(()).identity()}  # fmt: skip

    @property
    def name(self) -> str:
        """Name of the file that stores the result of the search."""
        return f"{key_of(self.question)}.json"

    @cached_property
    def trials(self) -> list[tuple[Setting, Specification]]:
        """Settings to try, each with the specification of its algorithm; the first is the one in the suite."""
        algorithm = self.algorithm
        entry = get_registry().get("algorithm", algorithm.name)
        trials: dict[str, tuple[Setting, Specification]] = {}
        for setting in self.space.settings(algorithm.spec):
            try:
                parameters = with_setting(algorithm.parameters, setting)
                _, spec = make_algorithm(entry, parameters)
            except ParameterError as error:  # each value alone is allowed
                place = f"algorithms: {algorithm.label}: tune"
                reason = f"{setting_text_of(setting)}: {error.key} {error.message}"
                raise SuiteError(
                    self.suite.file,
                    place,
                    f"{reason}; remove this value from the search",
                ) from None
            spec = with_versions(spec, self.plan.problem.model.name)
            trials.setdefault(canonical_json(spec), (setting, spec))
        return list(trials.values())

    def cells(self, trial: int, seeds: int, backend: str) -> list[Cell]:
        """Return the cells of a trial on the first ``seeds`` tuning seeds."""
        problem, spec = self.plan.problem.spec, self.trials[trial][1]
        run = self.suite.run.of_cell(())
        grid = itertools.product(range(seeds), self.plan.dimensions, self.plan.alphas)
        return [
            Cell(problem, spec, alpha, D, seed, TUNING, backend, run, *self.place)
            for seed, D, alpha in grid
        ]

    def proceed(
        self, log_errors: Mapping[str, float], backend: str
    ) -> tuple[list[Cell], SearchOutcome | None]:
        """Return the cells that must run next, or the result of the search, given the errors of finished cells.

        In every round the better half of the trials goes on, with twice as many seeds: successive halving, from as many seeds
        that the last two are compared on at least four. The setting as written goes on beside that half, so that what is
        chosen is never worse on all seeds that were used. A trial of which a run has no estimate is out.
        """
        trials = range(len(self.trials))
        candidates, count = list(trials), len(trials)
        rounds: list[SearchRound] = []
        runs = 0
        seeds = max(1, 8 >> (count - 1).bit_length())
        while True:
            cells = {trial: self.cells(trial, seeds, backend) for trial in candidates}
            in_round = list(itertools.chain.from_iterable(cells.values()))
            missing = [cell for cell in in_round if cell.key not in log_errors]
            if missing:
                return missing, None
            scores = {
                trial: fmean(log_errors[cell.key] for cell in same)
                for trial, same in cells.items()
            }
            # Half of the seeds of later rounds have run before.
            runs += len(in_round) // (2 if rounds else 1)
            errors = [_rounded(scores.get(trial, math.inf)) for trial in trials]
            rounds.append({"seeds": seeds, "errors": errors})
            count = -(-count // 2)
            usable = [trial for trial in candidates if math.isfinite(scores[trial])]
            ranked = sorted(usable, key=scores.__getitem__)
            candidates = ranked[:count]
            if len(candidates) < 2:
                break
            if AS_WRITTEN in ranked[count:]:
                candidates.append(AS_WRITTEN)
            seeds *= 2
        settings = [
            {".".join(path): value for path, value in setting.items()}
            for setting, _ in self.trials
        ]
        chosen = candidates[0] if candidates else None
        return [], {
            "backend": backend,
            "trials": settings,
            "rounds": rounds,
            "runs": runs,
            "chosen": chosen,
            "algorithm": None if chosen is None else self.trials[chosen][1],
        }

    def cells_ahead(self, log_errors: Mapping[str, float], backend: str) -> list[Cell]:
        """Return the largest set of cells that the search may still have to run."""
        ahead: list[Cell] = []
        expected = dict(log_errors)
        while missing := self.proceed(expected, backend)[0]:
            ahead += missing
            for cell in missing:
                as_written = cell.algorithm == self.trials[AS_WRITTEN][1]
                expected[cell.key] = 20.0 if as_written else 0.0
        return ahead


def _rounded(log_error: float) -> float | None:
    """Round an error to six digits, on which all machines agree; None if it is not finite."""
    return float(f"{math.exp(log_error):.6g}") if math.isfinite(log_error) else None


def searches(suite: Suite) -> list[Search]:
    """Return all searches of a suite, regardless of ``--only``."""
    runnable = [plan for plan in suite.plans if not plan.theory_only]
    return [
        Search(suite, plan, algorithm, algorithm.search_space)
        for plan, algorithm in itertools.product(runnable, suite.algorithms)
        if algorithm.search_space
        and not attempt(refusal, build_algorithm(algorithm.spec, None), plan.problem)[0]
    ]


def chosen_searches(suite: Suite) -> list[Search]:
    """Return the searches of a suite that ``--only`` selects.

    Raises
    ------
    SuiteError
        If there are none.
    """
    selected = _selected_searches(suite)
    if not selected:
        raise SuiteError(
            suite.file,
            "algorithms",
            "no algorithm names parameters to tune; add a table [algorithms.tune] below one, "
            "with learning_rate = { low = 0.01, high = 1.0, log = true }",
        )
    return selected


def _selected_searches(suite: Suite) -> list[Search]:
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
    run: Callable[[list[Cell], Store], bool],
    retry: Collection[str] = (),
) -> list[JsonObject]:
    """Run the searches of a suite side by side, each only once.

    Parameters
    ----------
    run : callable
        Runs cells, keeps their records in the store that it is given, and says whether all have been run.
    retry : collection of str
        Trials of this status are run again, and all choices are made again.

    Returns
    -------
    list of dict
        The labels of ``problem`` and algorithm (``label``), and what is stored of the search if it is finished: the ``trials``;
        the ``rounds``, each with its number of ``seeds`` and the geometric mean of the ``errors`` of every trial (None: it was
        out, or a run has no estimate); the number of ``runs``; which trial was ``chosen`` (None: all failed); the ``algorithm``
        that it makes.
    """
    trials, selected = trials_of(store), chosen_searches(suite)
    if retry:
        stored = trials.load().items()
        trials.retire(stem for stem, record in stored if record.status in retry)
    results: dict[Search, SearchOutcome | None] = {
        search: None if retry else read_choice(search, store) for search in selected
    }
    while True:
        log_errors = log_errors_in(suite, trials)
        missing: list[Cell] = []
        for search in selected:
            if results[search] is None:
                cells, result = search.proceed(log_errors, backend)
                missing += cells
                if result is not None and result["chosen"] is not None:
                    result = keep_choice(search, store, result)
                results[search] = result
        if not missing or not run(missing, trials):
            break
    documents = []
    for search, result in results.items():
        problem, label = search.place
        documents.append({"problem": problem, "label": label, **dict(result or {})})
    return documents


def searches_ahead(
    suite: Suite, store: Store, backend: str
) -> list[tuple[Search, list[Cell]]]:
    """Return the searches of a suite, each with the cells that it may still have to run; nothing is written."""
    log_errors = log_errors_in(suite, trials_of(store))
    ahead = []
    for search in chosen_searches(suite):
        is_done = read_choice(search, store) is not None
        cells = [] if is_done else search.cells_ahead(log_errors, backend)
        ahead.append((search, cells))
    return ahead


def log_error(record: Record, target: float) -> float:
    """Logarithm of the error of a run, summed over components; infinity if it has no estimate.

    Errors below ``target`` count as equal to it: otherwise a sample ratio at which the signal is recovered would outweigh all.
    """
    errors = [math.nan if e is None else e for e in record.metrics.get("mse", ())]
    if record.status in FAILED_STATUSES or not errors:
        return math.inf
    error = math.fsum(errors)
    return math.log(max(error, target)) if math.isfinite(error) else math.inf


def log_errors_in(suite: Suite, trials: Store) -> dict[str, float]:
    """Logarithms of the errors of all finished trials, by key of their cell."""
    target = suite.run.target
    return {record.key: log_error(record, target) for record in trials.load().values()}


def keep_choice(
    search: Search, store: Store, result: SearchOutcome
) -> SearchResult | None:
    """Store the result of a search and return the chosen setting."""
    document = sealed(plain({"question": search.question, **result}))
    write_atomically(choice_file(search, store), text_of(document).encode())
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


def tuned(suite: Suite, store: Store) -> Suite:
    """Return the suite with the settings that ``smimbench tune`` has chosen so far."""
    choices: dict[tuple[str, str], TunedAlgorithm] = {}
    for search in searches(suite):
        stored = read_choice(search, store)
        if stored and stored["algorithm"]:
            choices[search.place] = choice_of(search, stored)
    return replace(suite, choices=choices)


def range_ends(trials: Sequence[Parameters], chosen_trial: int | None) -> list[str]:
    """Return one remark for each parameter whose chosen value is the smallest or largest that was tried."""
    lines = []
    chosen = {} if chosen_trial is None else trials[chosen_trial]
    for name, value in chosen.items():
        tried: set[Any] = {
            trial.get(name)
            for trial in trials
            if isinstance(trial.get(name), (int, float))
        }
        if len(tried) > 2 and value in (min(tried), max(tried)):
            end = "smallest" if value == min(tried) else "largest"
            lines.append(
                f"the {end} {name} that was tried, {value:g}, was chosen: widen its range"
            )
    return lines


def range_end_remarks(suite: Suite, store: Store) -> list[str]:
    """Return remarks on tuned settings of a suite that lie at the end of their range."""
    lines = []
    for search in _selected_searches(suite):
        choice = read_choice(search, store) if search.place in suite.choices else None
        if (
            choice is not None
            and choice["digest"] == suite.choices[search.place].tuning["search"]
        ):
            lines += [
                f"{': '.join(search.place)}: {line}"
                for line in range_ends(choice["trials"], choice["chosen"])
            ]
    return lines


def choice_of(search: Search, stored: SearchResult) -> TunedAlgorithm:
    """Return the setting that a stored search chose, with a record of the search, as cells store them."""
    algorithm = stored["algorithm"]
    assert algorithm is not None
    tuning: Tuning = {"of": search.algorithm.spec, "tune": search.space.document(), "trials": len(stored["trials"]),
              "runs": stored["runs"], "search": stored["digest"]}  # fmt: skip
    return TunedAlgorithm(algorithm, tuning)
