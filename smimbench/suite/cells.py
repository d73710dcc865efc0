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
    CODE,
    Assuming,
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
    names_in_key,
)
from smimbench.suite import SuiteError
from smimbench.suite.schema import (
    STARTS,
    FigureTable,
    ReferenceTable,
    RunOptions,
    SearchSpace,
)


@dataclass(frozen=True)
class ProblemPlan:
    """One problem of a suite, with the grid of sample ratios and dimensions that it is run on.

    ``seeds`` are the numbers of replicates at each dimension, ``key`` is where the suite defines the problem, ``references`` are
    the published values of exactly this problem, and ``theory_only`` is the reason why it cannot be run, if there is one.
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


class UnmadeProblem(NamedTuple):
    """A problem of a suite that cannot be built because an item's code fails."""

    label: str
    tables: dict[str, Parameters]
    reason: str


@dataclass(frozen=True)
class AlgorithmPlan:
    """One algorithm of a suite with one setting of its parameters.

    Attributes
    ----------
    label : str
        Name in tables, which names the setting where the entry has lists.
    entry : str
        Label of the entry of ``[[algorithms]]``, which several settings may share.
    name : str
        As written in the suite, maybe with a distribution.
    parameters : dict
        As written in the suite, with this setting.
    spec : dict
        Name, version and all parameters, as in keys.
    tune : SearchSpace or None
        What ``smimbench tune`` searches.
    origin : str
        Where the setting is from: ``default``, ``by hand``, ``as published`` or ``ORACLE``.
    start : str or None
        ``"informed"`` for one that starts near the teacher.
    """

    label: str
    entry: str
    name: str
    parameters: Parameters
    spec: Specification
    tune: SearchSpace | None
    origin: str
    start: str | None


@pydantic.with_config(pydantic.ConfigDict(extra="allow", strict=True))
class ItemIdentity(TypedDict):
    """An item of a problem: its name, its version and (as further keys) all its parameters."""

    name: str
    version: int


StoredItem = Annotated[
    Specification, pydantic.GetPydanticSchema(lambda _, handler: handler(ItemIdentity))
]
"""Specification of an item as files hold it, which is checked to be an ``ItemIdentity``."""


class Tuning(TypedDict):
    """How the setting of an algorithm was chosen: the algorithm as written, the space, and the digest of the search."""

    of: StoredItem
    tune: dict[str, object]
    trials: int
    runs: NotRequired[int]
    search: str


class Choice(TypedDict):
    """The setting of an algorithm that was chosen for a problem, by their labels."""

    problem: str
    label: str
    algorithm: StoredItem
    tuning: Tuning


class TunedAlgorithm(NamedTuple):
    """An algorithm with the setting that ``smimbench tune`` chose, and a record of that search."""

    algorithm: Specification
    tuning: Tuning


Condition = tuple[str, str]
"""Key and value of one ``--only``."""

CONDITIONS = ("algorithm", "alpha", "dimension", "seed", "problem")
"""Keys that ``--only`` takes."""


def read_condition(text: str) -> Condition:
    """Split ``--only KEY=VALUE`` into key and value.

    Raises
    ------
    SuiteError
    """
    key, equals, value = text.partition("=")
    if not equals or key not in CONDITIONS:
        raise SuiteError(
            "--only",
            text,
            f"a condition must look like algorithm=gamp; {suggestion(key, CONDITIONS)}",
        )
    if key in ("alpha", "dimension", "seed"):
        try:
            float(value)
        except ValueError:
            raise SuiteError("--only", text, f"{key} must be a number") from None
    return key, value


def selects(only: Sequence[Condition], **cell: object) -> bool:
    """Whether a cell meets the ``--only`` conditions.

    Conditions on the same key are alternatives; conditions on different keys must all hold.

    Parameters
    ----------
    problem : str
        Its label, of which a condition asks for a part.
    algorithm : sequence of str
        The words that pick the algorithm.
    alpha, dimension, seed : float
        Conditions on keys that are not given are left out.
    """
    for key in {key for key, _ in only} & cell.keys():
        values = [value for k, value in only if k == key]
        if not any(_meets_condition(key, value, cell[key]) for value in values):
            return False
    return True


def _meets_condition(key: str, value: str, cell_value: Any) -> bool:
    if key in ("problem", "algorithm"):
        return value in cell_value
    return math.isclose(cell_value, float(value), rel_tol=1e-12)


@dataclass(frozen=True)
class Cell:
    """One run of one algorithm on one instance.

    Everything in it is plain data, so that a worker process can rebuild it from names and parameters. ``tuning`` says how the
    setting was found, ``origin`` the same in a few words.
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
        """Table row that the cell belongs to: problem label, algorithm label, sample ratio, dimension."""
        return self.problem_label, self.algorithm_label, self.alpha, self.dimension

    @property
    def described(self) -> Specification:
        """Specification of the algorithm as the suite writes it, the same for all problems.

        For a tuned algorithm it holds the search space instead of the setting that was chosen.
        """
        return (
            self.algorithm
            if self.tuning is None
            else {**self.tuning["of"], "tune": self.tuning["tune"]}
        )

    @cached_property
    def key(self) -> str:
        """Content address of the cell: a hash of its identity."""
        return key_of(self.identity())

    def distributions(self) -> frozenset[str]:
        """Third-party packages whose code the run uses: those of its items, metrics and starting algorithm."""
        model = self.problem["model"]["name"]
        inner_algorithms = [
            value
            for value in self.algorithm.values()
            if isinstance(value, dict) and "source" in value
        ]
        items = [*self.problem.values(), self.algorithm, *inner_algorithms]
        distributions = {item.get("distribution", BUILT_IN) for item in items}
        named = [("metric", name.partition("@")[0]) for name in self.run.metrics]
        if self.run.start not in STARTS:
            named.append(("algorithm", self.run.start))
        for kind, name in named:
            try:
                entry = get_registry().get(kind, name, model)
            except RegistryError:  # reported in the record of the run
                continue
            distributions.add(entry.distribution)
        for entry in assumed_entries(self.algorithm, model).values():
            distributions.add(entry.distribution)
        return frozenset(distributions - {BUILT_IN})

    def rebuild(self) -> tuple[Problem, Algorithm]:
        """Build the cell's problem and algorithm from names and parameters.

        Raises
        ------
        RegistryError
            If an item is here in another version, or with other code, than the cell asks for: its numbers would go under a
            wrong key.
        """
        problem = build_problem(self.problem)
        algorithm = build_algorithm(self.algorithm, problem)
        for kind, spec in self.problem.items():
            _require_code(kind, spec, problem.spec[kind])
        entry = _algorithm_entry(self.algorithm, problem)
        _require_code("algorithm", self.algorithm, version_of(entry))
        for kind, entry in assumed_entries(self.algorithm, problem.model.name).items():
            _require_code(
                f"assumed {kind}", self.algorithm["assumed"][kind], version_of(entry)
            )
        return problem, algorithm


def _require_code(kind: str, spec: Specification, installed: Specification) -> None:
    """Raise RegistryError unless an item is installed with the version and code that a cell requires."""
    needed_code, installed_code = _version_text(spec), _version_text(installed)
    if installed_code != needed_code:
        raise RegistryError(
            f"{kind} {spec['name']!r} is {installed_code} here, but the cell needs {needed_code}; "
            "install the same packages on all machines, and restart smimbench after changing one"
        )


def _version_text(spec: Specification) -> str:
    source = f" with the code {spec['source']}" if "source" in spec else ""
    return f"version {spec['version']}{source}"


@dataclass(frozen=True, repr=False)
class Suite:
    """A validated suite.

    ``choices`` are the settings chosen by ``smimbench tune``, by the labels of problem and algorithm.
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
    unmade: tuple[UnmadeProblem, ...] = ()
    left_out: tuple[str, ...] = ()
    figure: FigureTable | None = None
    choices: Mapping[tuple[str, str], TunedAlgorithm] = field(default_factory=dict)

    def __repr__(self) -> str:
        problems = ", ".join(plan.label for plan in self.chosen_plans)
        algorithms = ", ".join(algorithm.label for algorithm in self.algorithms)
        return f"Suite({self.name!r}; {problems}; {algorithms or 'theory only'})"

    def with_choices(self, stored_choices: Iterable[Choice]) -> Suite:
        """Return the suite with the tuned settings that ``run.json`` stores for a run."""
        choices = {
            (stored["problem"], stored["label"]): TunedAlgorithm(
                stored["algorithm"], stored["tuning"]
            )
            for stored in stored_choices
        }
        return replace(self, choices=choices)

    @property
    def needs_prediction_errors(self) -> bool:
        """Whether a metric or a published value needs generalization errors from theory."""
        published = {reference.metric for reference in self.run.reference} - {
            "mse",
            "overlap",
        }
        return bool(published) or any(
            "generalization" in name for name in self.run.metrics
        )

    @property
    def chosen_plans(self) -> tuple[ProblemPlan, ...]:
        """Problems selected by ``--only problem=...``."""
        return tuple(
            plan for plan in self.plans if selects(self.only, problem=plan.label)
        )

    @property
    def problems(self) -> dict[str, Problem]:
        """The problems of the suite, in a dictionary keyed by label."""
        return {plan.label: plan.problem for plan in self.plans}

    @property
    def theory_only(self) -> str | None:
        """Reason why the suite cannot be run, if only theory exists for every problem; otherwise None."""
        reasons = [plan.theory_only for plan in self.plans]
        return reasons[0] if all(reasons) else None

    def plans_with_data(self) -> list[ProblemPlan]:
        """Problems of the suite for which data can be drawn.

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
        """The largest number of replicates of any point in the suite."""
        return max(max(plan.seeds) for plan in self.plans)

    @property
    def chosen_algorithms(self) -> list[AlgorithmPlan]:
        """Algorithms that ``--only algorithm=...`` selects.

        It may give the label of an algorithm, the label of its ``[[algorithms]]`` table, or a name that is not a label.
        """
        labels = {
            label
            for algorithm in self.algorithms
            for label in (algorithm.label, algorithm.entry)
        }
        chosen = []
        for algorithm in self.algorithms:
            words = [algorithm.label, algorithm.entry]
            if algorithm.spec["name"] not in labels:
                words.append(algorithm.spec["name"])
            if selects(self.only, algorithm=words):
                chosen.append(algorithm)
        return chosen

    def require_conditions(self) -> None:
        """Raise SuiteError if an ``--only`` condition selects nothing in the suite."""
        plans, algorithms = self.plans, self.algorithms
        labels: list[str] = []
        for algorithm in algorithms:
            labels += [algorithm.label, algorithm.entry]
        names = [algorithm.spec["name"] for algorithm in algorithms]
        problems = [plan.label for plan in plans]
        words: dict[str, Sequence[object]] = {
            "algorithm": labels + names,
            "problem": problems + [problem.label for problem in self.unmade],
            "alpha": sorted({alpha for plan in plans for alpha in plan.alphas}),
            "dimension": sorted({D for plan in plans for D in plan.dimensions}),
            "seed": list(range(self.seeds)),
        }
        for key, value in self.only:
            choices = list(dict.fromkeys(words[key]))
            if key == "algorithm":
                is_met = value in choices
            else:
                is_met = any(_meets_condition(key, value, choice) for choice in choices)
            if is_met:
                continue
            # A number that is close to one of the suite was meant as it is.
            close_to = value if key in ("problem", "algorithm") else ""
            raise SuiteError(
                "--only",
                f"{key}={value}",
                f"the suite has no such {key}; {suggestion(close_to, choices, 12)}",
            )

    def cells(self, backend: str = "numpy") -> list[Cell]:
        """Return all cells of the suite, ordered by replicate.

        A run that is stopped early has therefore covered every grid point with a few seeds.

        Raises
        ------
        SuiteError
            If only theory exists for every problem.
        """
        # Metrics of the trajectory are always measured; only the others make another cell.
        run = self.run.of_cell(names_in_key(self.run.metrics))
        algorithms = []
        for algorithm in self.chosen_algorithms:
            start = {"start": algorithm.start} if algorithm.start else {}
            algorithms.append((algorithm, run.model_copy(update=start)))
        points = list(self._chosen_points())
        cells = []
        for replicate in range(self.seeds):
            if not selects(self.only, seed=replicate):
                continue
            for plan, dimension, seeds, alpha in points:
                if replicate >= seeds:
                    continue
                for algorithm, options in algorithms:
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
                            run=options,
                            problem_label=plan.label,
                            algorithm_label=algorithm.label,
                            tuning=tuning,
                            origin=origin,
                        )
                    )
        return cells

    def _chosen_points(self) -> Iterator[tuple[ProblemPlan, int, int, float]]:
        """Yield problem, dimension, number of replicates and sample ratio of each grid point that ``--only`` selects."""
        for plan in self.plans_with_data():
            for dimension, seeds in zip(plan.dimensions, plan.seeds):
                if selects(self.only, problem=plan.label, dimension=dimension):
                    for alpha in plan.alphas:
                        if selects(self.only, alpha=alpha):
                            yield plan, dimension, seeds, alpha

    def _setting(
        self, plan: ProblemPlan, algorithm: AlgorithmPlan
    ) -> tuple[Specification, Tuning | None, str]:
        """Specification of the algorithm of a cell, the record of its tuning (or None), and the origin of its setting."""
        if choice := self.choices.get((plan.label, algorithm.label)):
            return (*choice, f"tuned, {choice.tuning['trials']} trials")
        spec = with_versions(algorithm.spec, plan.problem.model.name)
        return spec, None, algorithm.origin


def key_of(document: object) -> str:
    """Content address of a JSON document: a hash of its canonical text."""
    return hashlib.sha256(canonical_json(document).encode()).hexdigest()[:24]


def agree(description: object, reference: object) -> bool:
    """Whether two descriptions of a run name the same items, with equal values of all parameters that both list.

    Versions, code and packages do not count: a version may have other parameters, and a plugin's file another name.
    """
    if not (isinstance(description, dict) and isinstance(reference, dict)):
        return bool(description == reference)
    common = description.keys() & reference.keys()
    for key, value in (*description.items(), *reference.items()):
        if isinstance(value, dict) and key not in common:
            return False
    return all(
        agree(description[key], reference[key])
        for key in common - {*CODE, "distribution", "metrics"}
    )


# -- items from specifications ------------------------------------------------------------------------------------


def build_problem(spec: dict[str, Specification]) -> Problem:
    """Build a problem from the names and parameters of its model, channel, prior and inputs."""
    return Problem(**{kind: as_table(item) for kind, item in spec.items()})


def build_algorithm(spec: Specification, problem: Problem | None) -> Algorithm:
    """Build an algorithm from its name and parameters.

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


def make_algorithm(entry: Entry, parameters: Parameters) -> tuple[Any, Specification]:
    """Build an algorithm from its parameters in a suite, ``assumed`` included, and return it with its specification."""
    parameters = dict(parameters)
    assumed = parameters.pop("assumed", None)
    item = build(entry.item, "algorithm", parameters)
    spec = specification(entry, item)
    if assumed is None:
        return item, spec
    return Assuming(item, assumed), spec | {"assumed": assumed}


def _algorithm_entry(spec: Specification, problem: Problem | None) -> Entry:
    name = as_table(spec)["name"]
    if problem is not None:
        try:
            return get_registry().get("algorithm", name, problem.model.name)
        except RegistryError:  # of another model: ``refusal`` says so
            pass
    return get_registry().get("algorithm", name)


def assumed_entries(algorithm: Specification, model: str) -> dict[str, Entry]:
    """Registered channel and prior that an algorithm assumes by name, keyed by kind."""
    entries = {}
    for kind, table in algorithm.get("assumed", {}).items():
        name = table if isinstance(table, str) else table.get("name")
        if isinstance(name, str):
            try:
                entries[kind] = get_registry().get(kind, name, model)
            except RegistryError:  # reported in the record of the run
                continue
    return entries


def with_versions(algorithm: Specification, model: str) -> Specification:
    """Return an algorithm's specification, with version and code hash of the channel and prior that it assumes."""
    if "assumed" not in algorithm:
        return algorithm
    tables = dict(algorithm["assumed"])
    for kind, entry in assumed_entries(algorithm, model).items():
        table = tables[kind]
        named = {"name": table} if isinstance(table, str) else table
        tables[kind] = named | version_of(entry)
    return algorithm | {"assumed": tables}
