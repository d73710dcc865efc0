"""A checked suite with its problems and cells; a cell's key and how the cell is rebuilt from its identity."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from smimbench.files import JsonObject, canonical_json
from smimbench.problem.assumed import Assuming, assumed_entries, with_versions
from smimbench.problem.problem import CODE, Problem, as_table, specification, version_of
from smimbench.registry.metrics import names_in_key
from smimbench.registry.parameters import build, signature_of
from smimbench.registry.registry import BUILT_IN, Entry, RegistryError, get_registry
from smimbench.suite import SuiteError
from smimbench.suite.overrides import Condition, selects
from smimbench.suite.schema import STARTS, FigureTable, Reference, RunOptions


@dataclass(frozen=True)
class ProblemPlan:
    """One problem of a suite with the grid it is run on; ``seeds`` are the replicates at each of its dimensions.

    ``key`` is where it is written, ``references`` are the published values of exactly this problem; ``theory_only`` says why it
    cannot be run.
    """

    key: str
    problem: Problem
    tables: dict[str, JsonObject]
    alphas: tuple[float, ...]
    dimensions: tuple[int, ...]
    label: str
    seeds: tuple[int, ...]
    theory_only: str | None = None
    references: tuple[Reference, ...] = ()


class Unmade(NamedTuple):
    """A problem of a suite that cannot be built because an item's code fails."""

    label: str
    tables: dict[str, JsonObject]
    reason: str


@dataclass(frozen=True)
class Cell:
    """One run of one algorithm on one instance.

    Everything in it is plain data, so that a worker process can rebuild it from names and parameters. ``tuning`` says how the
    setting was found, ``origin`` the same in a few words.
    """

    problem: dict[str, JsonObject]
    algorithm: JsonObject
    alpha: float
    dimension: int
    replicate: int
    seed: int
    backend: str
    run: RunOptions
    problem_label: str = field(compare=False, default="")
    algorithm_label: str = field(compare=False, default="")
    tuning: JsonObject | None = None
    origin: str = field(compare=False, default="default")

    def identity(self) -> JsonObject:
        """All settings that can change the cell's result; the key is a hash of them."""
        own = (
            "problem",
            "algorithm",
            "alpha",
            "dimension",
            "replicate",
            "seed",
            "backend",
        )
        found = {name: getattr(self, name) for name in own} | self.run.identity()
        return found if self.tuning is None else found | {"tuning": self.tuning}

    @property
    def place(self) -> tuple[str, str, float, int]:
        """What it has in common with the other runs of a row: labels of problem and algorithm, sample ratio, dimension."""
        return self.problem_label, self.algorithm_label, self.alpha, self.dimension

    @property
    def described(self) -> JsonObject:
        """The algorithm, the same for all problems: a tuned one as it is written, with its search in place of the result."""
        return (
            self.algorithm
            if self.tuning is None
            else {**self.tuning["of"], "tune": self.tuning["tune"]}
        )

    @cached_property
    def key(self) -> str:
        """Content address of the cell."""
        return key_of(self.identity())

    def distributions(self) -> frozenset[str]:
        """Third-party packages whose code the cell runs, through its items, metrics and start."""
        model = self.problem["model"]["name"]
        inner = (
            value
            for value in self.algorithm.values()
            if isinstance(value, dict) and "source" in value
        )
        items = (*self.problem.values(), self.algorithm, *inner)
        found = {item["distribution"] for item in items if "distribution" in item}
        named = [("metric", name.partition("@")[0]) for name in self.run.metrics]
        named += [] if self.run.start in STARTS else [("algorithm", self.run.start)]
        for kind, name in named:
            try:
                found.add(get_registry().get(kind, name, model).distribution)
            except RegistryError:  # its record will say so
                continue
        found |= {
            entry.distribution
            for entry in assumed_entries(self.algorithm, model).values()
        }
        return frozenset(found - {BUILT_IN})

    def rebuild(self) -> tuple[Problem, Any]:
        """Build the cell's problem and algorithm from names and parameters.

        Raises
        ------
        RegistryError
            If an item is here in another version, or with other code, than the cell asks for: its numbers would go under a
            wrong key.
        """
        problem = build_problem(self.problem)
        algorithm = build_algorithm(self.algorithm, problem)
        here = {
            **problem.spec,
            "algorithm": version_of(_algorithm_entry(self.algorithm, problem)),
        }
        wanted = {**self.problem, "algorithm": self.algorithm}
        for kind, one in assumed_entries(self.algorithm, problem.model.name).items():
            here[f"assumed {kind}"], wanted[f"assumed {kind}"] = (
                version_of(one),
                self.algorithm["assumed"][kind],
            )
        for kind, spec in wanted.items():
            own, asked = (
                f"version {one['version']}"
                + (f" with the code {one['source']}" if "source" in one else "")
                for one in (here[kind], spec)
            )
            if own != asked:
                raise RegistryError(
                    f"{kind} {spec['name']!r} is {own} here, but the cell needs {asked}; install the same packages on all "
                    "machines, and restart after changing one"
                )
        return problem, algorithm


@dataclass(frozen=True, repr=False)
class Suite:
    """A validated suite.

    ``choices`` are the results of ``smimbench tune`` by the labels of problem and algorithm: ``algorithm``, the setting that was
    chosen, and ``tuning``, how.
    """

    name: str
    file: str
    text: str
    title: str
    description: str
    reference: str
    plans: tuple[ProblemPlan, ...]
    algorithms: tuple[JsonObject, ...]
    seed: int
    run: RunOptions
    overrides: tuple[str, ...] = ()
    only: tuple[Condition, ...] = ()
    plugins: bool = False
    duration: str = ""
    remarks: tuple[str, ...] = ()
    unmade: tuple[Unmade, ...] = ()
    left_out: tuple[str, ...] = ()
    figure: FigureTable | None = None
    choices: Mapping[tuple[str, str], JsonObject] = field(default_factory=dict)

    def __repr__(self) -> str:
        problems = ", ".join(plan.label for plan in self.chosen_plans)
        algorithms = (
            ", ".join(table["label"] for table in self.algorithms) or "theory only"
        )
        return f"Suite({self.name!r}; {problems}; {algorithms})"

    def with_choices(self, shared: JsonObject) -> Suite:
        """With the settings that were chosen for a run, from its ``run.json``."""
        found = shared.get("choices", [])
        return replace(
            self,
            choices={
                (c["problem"], c["label"]): {k: c[k] for k in ("algorithm", "tuning")}
                for c in found
            },
        )

    @property
    def needs_prediction_errors(self) -> bool:
        """Whether a metric or a published value needs errors of prediction."""
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
        """Problems by their labels."""
        return {plan.label: plan.problem for plan in self.plans}

    @property
    def theory_only(self) -> str | None:
        """Reason why the suite cannot be run (every problem has only a theory), or None."""
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

    def algorithm_words(self) -> list[tuple[JsonObject, tuple[str, ...]]]:
        """Every algorithm with the words that pick it: its label, that of its entry, and its name unless that is a label."""
        labels = {
            word
            for table in self.algorithms
            for word in (table["label"], table["entry"])
        }
        return [
            (
                table,
                (table["label"], table["entry"], *({table["spec"]["name"]} - labels)),
            )
            for table in self.algorithms
        ]

    def cells(self, backend: str = "numpy") -> list[Cell]:
        """All cells, replicates outermost, so that a run that is stopped early covers every point with few seeds.

        Raises
        ------
        SuiteError
            If every problem has a theory only.
        """
        only, plans = self.only, self.plans_with_data()
        # Metrics of the trajectory are always measured; only the others make another cell.
        run = self.run.of_cell(names_in_key(self.run.metrics))
        algorithms = [
            table
            for table, words in self.algorithm_words()
            if selects(only, algorithm=words)
        ]
        replicates = [r for r in range(self.seeds) if selects(only, seed=r)]
        points = [
            (
                plan,
                [alpha for alpha in plan.alphas if selects(only, alpha=alpha)],
                dimension,
                seeds,
            )
            for plan in plans
            for dimension, seeds in zip(plan.dimensions, plan.seeds)
            if selects(only, problem=plan.label, dimension=dimension)
        ]
        return [
            Cell(
                problem=plan.problem.spec,
                **self._setting(plan, table),
                alpha=alpha,
                dimension=dimension,
                replicate=replicate,
                seed=self.seed,
                backend=backend,
                run=run.model_copy(update={"start": table["start"]})
                if table["start"]
                else run,
                problem_label=plan.label,
                algorithm_label=table["label"],
            )
            for replicate in replicates
            for plan, alphas, dimension, seeds in points
            if replicate < seeds
            for alpha in alphas
            for table in algorithms
        ]

    def _setting(self, plan: ProblemPlan, table: JsonObject) -> JsonObject:
        """The algorithm of a cell and where its setting is from."""
        if found := self.choices.get((plan.label, table["label"])):
            return {**found, "origin": f"tuned, {found['tuning']['trials']} trials"}
        return {
            "algorithm": with_versions(table["spec"], plan.problem.model.name),
            "origin": table["origin"],
        }


def by_dimension(
    variants: Iterable[tuple[dict[str, JsonObject], JsonObject]],
    dimensions: tuple[int, ...],
    seeds: tuple[int, ...],
) -> Iterator[
    tuple[dict[str, JsonObject], JsonObject, tuple[int, ...], tuple[int, ...]]
]:
    """Problems with their dimensions and seeds; inputs whose spectrum changes with the dimension are a problem at each."""
    for tables, differing in variants:
        own = tables.get("inputs", {})
        try:
            named = "features" in signature_of(
                get_registry().get("inputs", str(own.get("name"))).item
            )
        except RegistryError:  # said when the problem is made
            named = False
        if not named or {"features", "spectrum"} & own.keys():
            yield tables, differing, dimensions, seeds
            continue
        for D, count in zip(dimensions, seeds):
            more = {"features": D} if len(dimensions) > 1 else {}
            yield (
                {**tables, "inputs": {**own, "features": D}},
                {**differing, **more},
                (D,),
                (count,),
            )


def key_of(document: Any) -> str:
    """Content address of what has this canonical JSON: a cell's identity, a question of a search or of theory."""
    return hashlib.sha256(canonical_json(document).encode()).hexdigest()[:24]


def agree(one: Any, other: Any) -> bool:
    """Whether two descriptions of a run have the same items with the same values of all parameters that both have.

    Versions, code and packages do not count: a version may have other parameters, and a plugin's file another name.
    """
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return bool(one == other)
    tables = {
        key
        for side in (one, other)
        for key, value in side.items()
        if isinstance(value, dict)
    }
    common = one.keys() & other.keys()
    return tables <= common and all(
        agree(one[key], other[key])
        for key in common - {*CODE, "distribution", "metrics"}
    )


def build_problem(spec: JsonObject) -> Problem:
    """Build a problem from the names and parameters of its items; errors as of ``Problem``."""
    return Problem(**{kind: as_table(one) for kind, one in spec.items()})


def build_algorithm(spec: JsonObject, problem: Problem | None) -> Any:
    """Build an algorithm from its name and parameters, for a problem's model or (None) for any model it supports.

    One that works for other models only is made as well, and ``smimbench.registry.adapters.refusal`` says why it is of no use.

    Raises
    ------
    RegistryError, ParameterError
    """
    table = as_table(spec)
    del table["name"]
    return make_algorithm(_algorithm_entry(spec, problem), table)[0]


def make_algorithm(entry: Entry, parameters: JsonObject) -> tuple[Any, JsonObject]:
    """An algorithm from its parameters and ``assumed`` as a suite has them, and its specification."""
    own = {key: value for key, value in parameters.items() if key != "assumed"}
    item = build(entry.item, "algorithm", own)
    spec = specification(entry, item)
    if len(own) == len(parameters):
        return item, spec
    return Assuming(item, parameters["assumed"]), spec | {
        "assumed": parameters["assumed"]
    }


def _algorithm_entry(spec: JsonObject, problem: Problem | None) -> Entry:
    name = as_table(spec)["name"]
    try:
        return get_registry().get(
            "algorithm", name, problem.model.name if problem else None
        )
    except RegistryError:
        return get_registry().get(
            "algorithm", name
        )  # of another model: ``refusal`` says so
