"""A validated suite (problems, algorithms, ``--only`` conditions) and its cells: one run of one algorithm each."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, NamedTuple, NotRequired

import pydantic
from typing_extensions import TypedDict

from smimbench.files import canonical_json, suggestion
from smimbench.interfaces import Algorithm
from smimbench.problem.problem import (
    CODE_KEYS,
    AlgorithmWithAssumption,
    Problem,
    Specification,
    as_table,
    specification,
    version_of,
)
from smimbench.registry.items import Parameters, build
from smimbench.registry.registry import (
    BUILT_IN,
    Entry,
    RegistryError,
    get_registry,
    metric_names_in_key,
)
from smimbench.suite import SuiteError
from smimbench.suite.schema import (
    STARTS,
    FigureTable,
    OptimumTable,
    ReferenceTable,
    RunOptions,
    SearchSpace,
)


@dataclass(frozen=True)
class ProblemPlan:
    """One problem of a suite, with its label and the sample ratios (``alphas``) and dimensions that it is run on. ``seeds``
    are the numbers of replicates at each dimension, ``theory_only`` is the reason why it cannot be run, ``key`` where the
    suite defines it, ``tables`` its items as the suite writes them, ``references`` published values and ``optima`` optimal
    errors at finite dimension of this problem.
    """

    key: str
    problem: Problem
    tables: dict[str, Parameters]
    alphas: tuple[float, ...]
    dimensions: tuple[int, ...]
    label: str
    seeds: tuple[int, ...]
    theory_only: str | None = None
    references: tuple[ReferenceTable, ...] = ()
    optima: tuple[OptimumTable, ...] = ()


class FailedProblem(NamedTuple):
    """Problem of a suite (its ``label`` and ``tables``) that cannot be built because the code of an item (model, channel,
    ...) fails, with the reason.
    """

    label: str
    tables: dict[str, Parameters]
    reason: str


@dataclass(frozen=True)
class AlgorithmPlan:
    """One algorithm of a suite with one setting of its parameters. ``label`` and ``table_label`` are its name in tables and
    that of all settings of its table, ``spec`` its name, version and all parameters, ``search_space`` what tuning searches,
    ``origin`` where the setting is from, ``start`` is ``"informed"`` if it starts near the teacher.

    Attributes
    ----------
    label : str
        Name in tables, with the setting if the ``[[algorithms]]`` table lists several values.
    table_label : str
        Label of its ``[[algorithms]]`` table, which several settings may share.
    name : str
        As written in the suite, maybe with a distribution.
    parameters : dict
        As written in the suite, with this setting.
    spec : dict
        Name, version and all parameters, as in keys.
    search_space : SearchSpace or None
        What ``smimbench tune`` searches.
    origin : str
        Where the setting is from: ``default``, ``by hand``, ``as published`` or ``ORACLE``.
    start : str or None
        ``"informed"`` for one that starts near the teacher.
    """

    label: str
    table_label: str
    name: str
    parameters: Parameters
    spec: Specification
    search_space: SearchSpace | None
    origin: str
    start: str | None


@pydantic.with_config(pydantic.ConfigDict(extra="allow", strict=True))
class ItemIdentity(TypedDict):
    """Item of a problem as records store it: its name, its version and, as additional keys, all its parameters."""

    name: str
    version: int


StoredItem = Annotated[
    Specification, pydantic.GetPydanticSchema(lambda _, handler: handler(ItemIdentity))
]
"""Specification of an item as files hold it, which is checked to be an ``ItemIdentity``."""


class Tuning(TypedDict):
    """Record of a tuning: the algorithm as the suite writes it (``of``), the search space (``tune``), numbers of trials and
    runs, and the digest of the search.
    """

    of: StoredItem
    tune: dict[str, object]
    trials: int
    runs: NotRequired[int]
    search: str


class Choice(TypedDict):
    """Tuned setting of an algorithm for a problem, both given by label, with a summary of the tuning, as ``run.json`` stores
    it.
    """

    problem: str
    label: str
    algorithm: StoredItem
    tuning: Tuning


class TunedAlgorithm(NamedTuple):
    """Algorithm with the setting that ``smimbench tune`` chose, and the record of that tuning."""

    algorithm: Specification
    tuning: Tuning


Condition = tuple[str, str]
"""Key and value of one ``--only`` condition."""

CONDITIONS = ("algorithm", "alpha", "dimension", "seed", "problem")
"""Keys that ``--only`` takes."""


def read_condition(condition: str) -> Condition:
    """Parse an ``--only`` condition ``KEY=VALUE`` into key and value.

    Raises
    ------
    SuiteError
    """
    key, equals_sign, value = condition.partition("=")
    if not equals_sign or key not in CONDITIONS:
        raise SuiteError(
            "--only",
            condition,
            f"a condition must look like algorithm=gamp; {suggestion(key, CONDITIONS)}",
        )
    if key in ("alpha", "dimension", "seed"):
        try:
            float(value)
        except ValueError:
            raise SuiteError("--only", condition, f"{key} must be a number") from None
    return key, value


def meets_conditions(conditions: Sequence[Condition], **cell_values: object) -> bool:
    """Whether a cell (run) meets the ``--only`` conditions, given some of its values.

    Conditions on the same key are alternatives; conditions on different keys must all hold.

    Parameters
    ----------
    problem : str
        Label of the problem; a condition may give a part of it.
    algorithm : sequence of str
        The names by which a condition may select the algorithm.
    alpha, dimension, seed : float
        Conditions on keys that are not given are ignored.
    """
    for key in {key for key, _ in conditions} & cell_values.keys():
        wanted_values = [
            condition_value
            for condition_key, condition_value in conditions
            if condition_key == key
        ]
        if not any(
            _meets_condition(key, condition_value, cell_values[key])
            for condition_value in wanted_values
        ):
            return False
    return True


def _meets_condition(key: str, wanted_value: str, cell_value: Any) -> bool:
    """Whether a cell's (run's) value of a key is the one (``wanted_value``) that an ``--only`` condition asks for."""
    if key in ("problem", "algorithm"):
        return wanted_value in cell_value
    return math.isclose(cell_value, float(wanted_value), rel_tol=1e-12)


@dataclass(frozen=True)
class Cell:
    """One run of one algorithm on one instance (problem, sample ratio alpha, dimension and number of the ``replicate``),
    described by names, parameters and seeds. ``run`` are its run options, ``tuning`` records how its setting was tuned,
    ``origin`` says where the setting is from.

    A worker process rebuilds problem and algorithm from them. ``tuning`` is the record of how the setting was tuned (or None),
    ``origin`` says in a few words where the setting is from.
    """

    problem: dict[str, Specification]
    algorithm: Specification
    alpha: float
    dimension: int
    replicate: int
    seed: int
    backend: str
    run: RunOptions
    problem_label: str = field(compare=False, default="")
    algorithm_label: str = field(compare=False, default="")
    tuning: Tuning | None = None
    origin: str = field(compare=False, default="default")

    def identity(self) -> dict[str, object]:
        """All settings that can change the result of the run; the cell's key is a hash of them."""
        identity = {
            "problem": self.problem,
            "algorithm": self.algorithm,
            "alpha": self.alpha,
            "dimension": self.dimension,
            "replicate": self.replicate,
            "seed": self.seed,
            "backend": self.backend,
            **self.run.identity(),
        }
        if self.tuning is not None:
            identity["tuning"] = self.tuning
        return identity

    @property
    def place(self) -> tuple[str, str, float, int]:
        """Table row that the cell (run) belongs to: problem label, algorithm label, sample ratio, dimension."""
        return self.problem_label, self.algorithm_label, self.alpha, self.dimension

    @property
    def untuned_spec(self) -> Specification:
        """Specification of the algorithm as the suite writes it, before tuning, the same for all problems.

        For a tuned algorithm it holds the search space instead of the setting that was chosen.
        """
        return (
            self.algorithm
            if self.tuning is None
            else {**self.tuning["of"], "tune": self.tuning["tune"]}
        )

    @cached_property
    def key(self) -> str:
        """Content address of the cell (run): a hash of its identity."""
        return key_of(self.identity())

    def distributions(self) -> frozenset[str]:
        """Third-party packages whose code the run uses: those of its items, metrics and starting algorithm."""
        model = self.problem["model"]["name"]
        inner_algorithms = [
            parameter_value
            for parameter_value in self.algorithm.values()
            if isinstance(parameter_value, dict) and "source" in parameter_value
        ]
        items = [*self.problem.values(), self.algorithm, *inner_algorithms]
        distributions = {item.get("distribution", BUILT_IN) for item in items}
        metric_and_start_names = [
            ("metric", item_name.partition("@")[0]) for item_name in self.run.metrics
        ]
        if self.run.start not in STARTS:
            metric_and_start_names.append(("algorithm", self.run.start))
        for item_kind, item_name in metric_and_start_names:
            try:
                registry_entry = get_registry().get(item_kind, item_name, model)
            except RegistryError:  # reported in the record of the run
                continue
            distributions.add(registry_entry.distribution)
        for registry_entry in assumed_entries(self.algorithm, model).values():
            distributions.add(registry_entry.distribution)
        return frozenset(distributions - {BUILT_IN})

    def rebuild(self) -> tuple[Problem, Algorithm]:
        """Build the cell's (run's) problem and algorithm from names and parameters.

        Raises
        ------
        RegistryError
            If an item is here in another version, or with other code, than the cell asks for: its numbers would go under a
            wrong key.
        """
        problem = build_problem(self.problem)
        algorithm = build_algorithm(self.algorithm, problem)
        for item_kind, spec in self.problem.items():
            _require_same_version(item_kind, spec, problem.spec[item_kind])
        entry = _algorithm_entry(self.algorithm, problem)
        _require_same_version("algorithm", self.algorithm, version_of(entry))
        for item_kind, entry in assumed_entries(
            self.algorithm, problem.model.name
        ).items():
            _require_same_version(
                f"assumed {item_kind}",
                self.algorithm["assumed"][item_kind],
                version_of(entry),
            )
        return problem, algorithm


def _require_same_version(
    kind: str, required_spec: Specification, installed_spec: Specification
) -> None:
    """Raise RegistryError unless the installed item of this kind (``installed_spec``) has the version and code that the cell
    (run) was defined with (``required_spec``).
    """
    required_version = _version_text(required_spec)
    installed_version = _version_text(installed_spec)
    if installed_version != required_version:
        raise RegistryError(
            f"{kind} {required_spec['name']!r} is {installed_version} here, but the cell needs {required_version}; "
            "install the same packages on all machines, and restart smimbench after changing one"
        )


def _version_text(spec: Specification) -> str:
    """Write version and code hash of an item, given by its specification, for error messages."""
    code_text = f" with the code {spec['source']}" if "source" in spec else ""
    return f"version {spec['version']}{code_text}"


@dataclass(frozen=True, repr=False)
class Suite:
    """A validated suite: problems with their grids (``plans``), algorithms, run options, root ``seed``, and how the user
    changed or restricted it. ``overrides`` are the ``--set`` assignments, ``only`` the ``--only`` conditions, ``choices``
    the settings chosen by tuning, by the labels of problem and algorithm, ``failed_problems`` and ``item_failures`` what
    cannot be built, ``figure`` the figure of a paper that it reproduces, ``plugins`` says whether ./plugins are loaded.
    """

    name: str
    file: str
    text: str
    title: str
    description: str
    reference: str
    plans: tuple[ProblemPlan, ...]
    algorithms: tuple[AlgorithmPlan, ...]
    seed: int
    run: RunOptions
    overrides: tuple[str, ...] = ()
    only: tuple[Condition, ...] = ()
    plugins: bool = False
    duration: str = ""
    remarks: tuple[str, ...] = ()
    failed_problems: tuple[FailedProblem, ...] = ()
    item_failures: tuple[str, ...] = ()
    figure: FigureTable | None = None
    choices: Mapping[tuple[str, str], TunedAlgorithm] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Return a short text with the suite's name, problems and algorithms."""
        problems = ", ".join(problem_plan.label for problem_plan in self.chosen_plans)
        algorithms = ", ".join(algorithm.label for algorithm in self.chosen_algorithms)
        return f"Suite({self.name!r}; {problems}; {algorithms or 'theory only'})"

    def with_choices(self, stored_choices: Iterable[Choice]) -> Suite:
        """Return the suite with the tuned settings that ``run.json`` stores for a run (``stored_choices``)."""
        choices = {
            (stored_choice["problem"], stored_choice["label"]): TunedAlgorithm(
                stored_choice["algorithm"], stored_choice["tuning"]
            )
            for stored_choice in stored_choices
        }
        return replace(self, choices=choices)

    @property
    def needs_prediction_errors(self) -> bool:
        """Whether a metric or a published value needs generalization errors from theory."""
        published_metrics = {reference.metric for reference in self.run.reference} - {
            "mse",
            "overlap",
        }
        return bool(published_metrics) or any(
            "generalization" in name for name in self.run.metrics
        )

    @property
    def chosen_plans(self) -> tuple[ProblemPlan, ...]:
        """Problems that ``--only problem=...`` selects."""
        return tuple(
            plan
            for plan in self.plans
            if meets_conditions(self.only, problem=plan.label)
        )

    @property
    def problems(self) -> dict[str, Problem]:
        """Problems of the suite, by label."""
        return {plan.label: plan.problem for plan in self.plans}

    @property
    def theory_only(self) -> str | None:
        """Reason why no problem of the suite can be run, so that only theory exists; None if a problem can be run."""
        reasons = [plan.theory_only for plan in self.plans]
        return reasons[0] if all(reasons) else None

    def plans_with_data(self) -> list[ProblemPlan]:
        """Return the problems of the suite for which data can be drawn.

        Raises
        ------
        SuiteError
            If there are none.
        """
        if reason := self.theory_only:
            raise SuiteError(self.file, "problem.prior", reason)
        return [plan for plan in self.plans if not plan.theory_only]

    @property
    def seeds(self) -> int:
        """Largest number of replicates at any grid point of the suite."""
        return max(max(plan.seeds) for plan in self.plans)

    @property
    def chosen_algorithms(self) -> list[AlgorithmPlan]:
        """Algorithms that ``--only algorithm=...`` selects.

        It may give the label of an algorithm, the label of its ``[[algorithms]]`` table, or a name that is not a label.
        """
        all_labels = {
            label
            for algorithm in self.algorithms
            for label in (algorithm.label, algorithm.table_label)
        }
        selected_algorithms = []
        for algorithm in self.algorithms:
            accepted_names = [algorithm.label, algorithm.table_label]
            if algorithm.spec["name"] not in all_labels:
                accepted_names.append(algorithm.spec["name"])
            if meets_conditions(self.only, algorithm=accepted_names):
                selected_algorithms.append(algorithm)
        return selected_algorithms

    def require_valid_conditions(self) -> None:
        """Raise SuiteError if an ``--only`` condition selects nothing in the suite."""
        problem_plans, algorithms = self.plans, self.algorithms
        algorithm_labels: list[str] = []
        for algorithm in algorithms:
            algorithm_labels += [algorithm.label, algorithm.table_label]
        algorithm_names = [algorithm.spec["name"] for algorithm in algorithms]
        problem_labels = [problem_plan.label for problem_plan in problem_plans]
        valid_values: dict[str, Sequence[object]] = {
            "algorithm": algorithm_labels + algorithm_names,
            "problem": problem_labels
            + [failed_problem.label for failed_problem in self.failed_problems],
            "alpha": sorted(
                {
                    alpha
                    for problem_plan in problem_plans
                    for alpha in problem_plan.alphas
                }
            ),
            "dimension": sorted(
                {
                    dimension
                    for problem_plan in problem_plans
                    for dimension in problem_plan.dimensions
                }
            ),
            "seed": list(range(self.seeds)),
        }
        for condition_key, condition_value in self.only:
            key_values = list(dict.fromkeys(valid_values[condition_key]))
            if condition_key == "algorithm":
                is_satisfiable = condition_value in key_values
            else:
                is_satisfiable = any(
                    _meets_condition(condition_key, condition_value, key_value)
                    for key_value in key_values
                )
            if is_satisfiable:
                continue
            # A similar number is no helpful suggestion: numbers are not mistyped words.
            similar_text = (
                condition_value if condition_key in ("problem", "algorithm") else ""
            )
            raise SuiteError(
                "--only",
                f"{condition_key}={condition_value}",
                f"the suite has no such {condition_key}; {suggestion(similar_text, key_values, 12)}",
            )

    def cells(self, backend: str = "numpy") -> list[Cell]:
        """Return all cells (runs) of the suite on this backend, ordered by replicate.

        A run that is stopped early has therefore covered every grid point with a few seeds.

        Raises
        ------
        SuiteError
            If only theory exists for every problem.
        """
        # Metrics of the trajectory are always measured; only the others make another cell.
        run = self.run.of_cell(metric_names_in_key(self.run.metrics))
        algorithms_and_options = []
        for algorithm in self.chosen_algorithms:
            start_override = {"start": algorithm.start} if algorithm.start else {}
            algorithms_and_options.append(
                (algorithm, run.model_copy(update=start_override))
            )
        grid_points = list(self._selected_grid_points())
        cells = []
        for replicate in range(self.seeds):
            if not meets_conditions(self.only, seed=replicate):
                continue
            for plan, dimension, replicates, alpha in grid_points:
                if replicate >= replicates:
                    continue
                for algorithm, run_options in algorithms_and_options:
                    spec, tuning, origin = self._setting(plan, algorithm)
                    cells.append(
                        Cell(
                            problem=plan.problem.spec,
                            algorithm=spec,
                            alpha=alpha,
                            dimension=dimension,
                            replicate=replicate,
                            seed=self.seed,
                            backend=backend,
                            run=run_options,
                            problem_label=plan.label,
                            algorithm_label=algorithm.label,
                            tuning=tuning,
                            origin=origin,
                        )
                    )
        return cells

    def _selected_grid_points(self) -> Iterator[tuple[ProblemPlan, int, int, float]]:
        """Yield problem, dimension, number of replicates and sample ratio of each grid point that ``--only`` selects."""
        for plan in self.plans_with_data():
            for dimension, replicates in zip(plan.dimensions, plan.seeds):
                if meets_conditions(self.only, problem=plan.label, dimension=dimension):
                    for alpha in plan.alphas:
                        if meets_conditions(self.only, alpha=alpha):
                            yield plan, dimension, replicates, alpha

    def _setting(
        self, plan: ProblemPlan, algorithm: AlgorithmPlan
    ) -> tuple[Specification, Tuning | None, str]:
        """Return the algorithm's specification for a problem (``plan``), the record of its tuning (or None), and the
        setting's origin.
        """
        if tuned_algorithm := self.choices.get((plan.label, algorithm.label)):
            return (
                *tuned_algorithm,
                f"tuned, {tuned_algorithm.tuning['trials']} trials",
            )
        spec = with_versions(algorithm.spec, plan.problem.model.name)
        return spec, None, algorithm.origin


def key_of(document: object) -> str:
    """Return the content address of a JSON document: a hash of its canonical text."""
    return hashlib.sha256(canonical_json(document).encode()).hexdigest()[:24]


def is_same_setup(description: object, reference: object) -> bool:
    """Whether two descriptions of a run (nested tables, ``description`` and ``reference``) name the same items, with equal
    values of the parameters that both list.

    Versions, code and packages do not count: a version may have other parameters, and a plugin's file another name.
    """
    if not (isinstance(description, dict) and isinstance(reference, dict)):
        return bool(description == reference)
    common_keys = description.keys() & reference.keys()
    for description_key, description_value in (
        *description.items(),
        *reference.items(),
    ):
        if isinstance(description_value, dict) and description_key not in common_keys:
            return False
    return all(
        is_same_setup(description[description_key], reference[description_key])
        for description_key in common_keys - {*CODE_KEYS, "distribution", "metrics"}
    )


# -- items from specifications ------------------------------------------------------------------------------------


def build_problem(spec: dict[str, Specification]) -> Problem:
    """Build a problem from the names and parameters of its model, channel, prior and inputs (``spec``, by kind)."""
    return Problem(**{item_kind: as_table(item) for item_kind, item in spec.items()})


def build_algorithm(spec: Specification, problem: Problem | None) -> Algorithm:
    """Build an algorithm from its name and parameters (``spec``), preferably one that supports the problem's model.

    Of several algorithms with this name, the one for the problem's model is preferred. An algorithm that works for other models
    only is built as well; ``smimbench.interfaces.algorithm.refusal`` then gives the reason why it cannot be run.

    Raises
    ------
    RegistryError, ParameterError
    """
    table = as_table(spec)
    del table["name"]
    algorithm: Algorithm = make_algorithm(_algorithm_entry(spec, problem), table)[0]
    return algorithm


def make_algorithm(
    entry: Entry, parameters_and_assumptions: Parameters
) -> tuple[Any, Specification]:
    """Build an algorithm (its registry ``entry``) from its parameters and assumptions in a suite, and return it with its
    specification.

    With a parameter ``assumed`` the algorithm is wrapped, so that it works with the assumed channel or prior.
    """
    parameters = dict(parameters_and_assumptions)
    assumed_tables = parameters.pop("assumed", None)
    item = build(entry.item, "algorithm", parameters)
    spec = specification(entry, item)
    if assumed_tables is None:
        return item, spec
    return AlgorithmWithAssumption(item, assumed_tables), spec | {
        "assumed": assumed_tables
    }


def _algorithm_entry(spec: Specification, problem: Problem | None) -> Entry:
    """Find the registered algorithm of a specification, preferably one that supports the problem's model."""
    algorithm_name = as_table(spec)["name"]
    if problem is not None:
        try:
            return get_registry().get("algorithm", algorithm_name, problem.model.name)
        except RegistryError:  # of another model: ``refusal`` says so
            pass
    return get_registry().get("algorithm", algorithm_name)


def assumed_entries(algorithm: Specification, model: str) -> dict[str, Entry]:
    """Registry entries of the channel and the prior that an algorithm assumes by name, keyed by kind."""
    entries = {}
    for kind, table_or_name in algorithm.get("assumed", {}).items():
        name = (
            table_or_name
            if isinstance(table_or_name, str)
            else table_or_name.get("name")
        )
        if isinstance(name, str):
            try:
                entries[kind] = get_registry().get(kind, name, model)
            except RegistryError:  # reported in the record of the run
                continue
    return entries


def with_versions(algorithm: Specification, model: str) -> Specification:
    """Return an algorithm's specification, with version and code hash of the assumed channel and prior added."""
    if "assumed" not in algorithm:
        return algorithm
    assumed_tables = dict(algorithm["assumed"])
    for item_kind, entry in assumed_entries(algorithm, model).items():
        table = assumed_tables[item_kind]
        named_table = {"name": table} if isinstance(table, str) else table
        assumed_tables[item_kind] = named_table | version_of(entry)
    return algorithm | {"assumed": assumed_tables}
