"""Builds a ``Suite`` from the tables of a suite file: problems, algorithms and grid; each mistake is reported with its key."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import pydantic
import tomli_w

from smimbench.derive import why_theory_only
from smimbench.files import JsonObject, printable, suggestion, unless
from smimbench.problem.problem import (
    ItemError,
    Problem,
    ProblemError,
    as_problem_errors,
)
from smimbench.registry.items import (
    Parameters,
    explain_validation,
    is_valid_as_one_value,
    signature_of,
    unknown_key,
)
from smimbench.registry.registry import (
    RegistryError,
    find_metric,
    get_registry,
    plugin_warnings,
)
from smimbench.suite import SuiteError
from smimbench.suite.algorithms import listed_parameters_of, read_algorithms
from smimbench.suite.cells import (
    AlgorithmPlan,
    Condition,
    FailedProblem,
    ProblemPlan,
    Suite,
    meets_conditions,
    read_condition,
)
from smimbench.suite.document import (
    apply_override,
    find_suite,
    merge_with_base,
    parse_toml,
    require_name,
    suite_text,
)
from smimbench.suite.schema import (
    STARTS,
    Axes,
    CurveTable,
    Document,
    GridTable,
    OptimumTable,
    ProblemTable,
    ReferenceTable,
    require_distinct,
    table_at,
)

T = TypeVar("T", ReferenceTable, OptimumTable)

LEFT_OUT = "left out"
"""First words of a remark on an item that cannot be built."""


def load_suite(
    name: str | Path,
    overrides: Iterable[str] = (),
    only: Iterable[str] = (),
    plugins: Iterable[str | Path] = (),
) -> Suite:
    """Read and check a suite, given by name or path, with ``--set`` assignments (``overrides``) and ``--only`` conditions
    (``only``).

    Parameters
    ----------
    name : str or Path
        A path, or the name of a shipped suite.
    overrides : iterable of str
        ``"problem.prior.rho=0.2"``: values in TOML syntax, for any key of the suite.
    only : iterable of str
        ``"algorithm=gamp"``: select a part of the cells. Keys: algorithm, alpha, dimension, seed, problem.
    plugins : iterable of path
        Files or folders with items of one's own, loaded first, and again where their code has changed.

    Raises
    ------
    SuiteError
        In one line: file, key, what would be right.
    RegistryError
        If a plugin cannot be loaded.
    """
    for plugin_path in plugins:
        for plugin in get_registry().add(plugin_path):
            if plugin.failed:
                raise RegistryError(*plugin_warnings([plugin]))
    path = find_suite(str(name))
    overrides = [*overrides]
    only = [*only]
    text = suite_text(path)
    try:
        return parse_suite(path, text, overrides, only)
    except SuiteError as error:
        reason = str(error).removeprefix(f"{path}: ")
        for assignment in overrides if reason != str(error) else ():
            remaining = [override for override in overrides if override != assignment]
            if unless(SuiteError, parse_suite, path, text, remaining, only):
                option = f"--set {assignment}".replace("--set algorithms+=", "--add ")
                raise SuiteError(option, "", reason) from None
        raise


def parse_suite(
    path: Path,
    text: str,
    overrides: Iterable[str] = (),
    only: Iterable[str] = (),
    *,
    from_results: bool = False,
) -> Suite:
    """Parse and check the text of a suite; ``path`` gives its name and appears in error messages. See ``load_suite``.

    ``from_results`` marks the text of a suite in a folder of results, which may come from anybody, or use a plugin that is not
    installed any more: no code of the working folder is run, and items that cannot be built are left out and named in
    ``Suite.remarks``.
    """
    file = str(path)
    require_name(path)
    try:
        tables = parse_toml(file, text)
        if "extends" in tables:
            if from_results:
                raise SuiteError(
                    file,
                    "extends",
                    "is not allowed in stored results, which contain the whole suite",
                )
            tables = merge_with_base(path, tables)
            text = tomli_w.dumps(tables)
        overrides = tuple(overrides)
        for assignment in overrides:
            apply_override(tables, assignment, file)
        if "extends" in tables:
            raise SuiteError(
                file,
                "extends",
                "cannot be set with --set; run the other suite by its name instead",
            )
        conditions = tuple(map(read_condition, only))
        document = _validated(tables, file)
        return _Reader(path, document, from_results).read_suite(
            text, overrides, conditions
        )
    except RecursionError:
        raise SuiteError(
            file, "", "the suite nests lists or tables too deeply"
        ) from None
    except OverflowError:
        raise SuiteError(
            file, "", "the suite contains a number that is too large"
        ) from None
    except (SuiteError, ProblemError):
        raise
    except ValueError as error:  # more digits than Python reads
        raise SuiteError(
            file, "", f"this is not valid TOML: {printable(error, 200)}"
        ) from None


def _validated(tables: JsonObject, file: str) -> Document:
    """Check keys, types and limits of a parsed suite against ``schema``; SuiteError for the first mistake."""
    try:
        return Document.model_validate(tables)
    except pydantic.ValidationError as error:
        first_error = error.errors(include_url=False)[0]
        key, message = explain_validation(error)
        if first_error["type"] == "extra_forbidden":
            *table, name = first_error["loc"]
            message = unknown_key(str(name), table_at(table).model_fields)
            homes = [
                key
                for key, field in Document.model_fields.items()
                if name in getattr(field.annotation, "model_fields", ())
            ]
            if not table and homes:
                message = f"unknown key, did you mean '{homes[0]}.{name}'?"
            if name == "extends":
                message = "must be written above the first table of the suite"
        raise SuiteError(file, key, message) from None


@dataclass(frozen=True)
class _ProblemVariant:
    """One problem of a ``[problem]`` table that lists several values of parameters: its tables with one value each, these
    values by name (``listed_values``), and its dimensions with numbers of replicates (``seeds``).
    """

    tables: dict[str, Parameters]
    listed_values: Parameters
    dimensions: tuple[int, ...]
    seeds: tuple[int, ...]


class _Reader:
    """Builder of a suite from a parsed document; checks its items and whether its keys agree with each other."""

    def __init__(self, path: Path, document: Document, from_results: bool) -> None:
        """Prepare to build the suite of the file ``path`` from its tables; ``from_results`` marks one in stored results."""
        self.path, self.document, self.from_results = path, document, from_results
        self.file = str(path)
        self.remarks: list[str] = []
        self.failed_problems: list[FailedProblem] = []
        self.failures: list[SuiteError] = []

    def suite_error(self, key: str, message: str) -> SuiteError:
        """Error about a key of this suite's file; the message says what is wrong."""
        return SuiteError(self.file, key, message)

    def read_suite(
        self, text: str, overrides: tuple[str, ...], only: tuple[Condition, ...]
    ) -> Suite:
        """Build the suite from its text, ``--set`` assignments and ``--only`` conditions; SuiteError for the first mistake."""
        document = self.document
        self._load_drop_ins()
        problem_plans = self._problem_plans()
        if not problem_plans:
            reason = self.suite_error("problem", "; ".join(self.remarks))
            raise self.failures[0] if self.failures else reason
        self._refuse_repeated_problems(problem_plans)
        algorithms = read_algorithms(
            document.algorithms, problem_plans, self.file, self._leave_out
        )
        self._check_metrics_and_start(
            {plan.problem.model.name for plan in problem_plans}
        )
        problem_plans = self._with_known_values(problem_plans)
        self._check_figure(problem_plans, algorithms)
        suite = Suite(
            name=self.path.stem,
            file=self.file,
            text=text,
            plans=tuple(problem_plans),
            algorithms=algorithms,
            seed=document.grid.seed,
            run=document.run,
            overrides=overrides,
            only=only,
            remarks=tuple(self.remarks),
            failed_problems=tuple(self.failed_problems),
            item_failures=tuple(map(str, self.failures)),
            figure=document.figure,
            title=document.suite.title or self.path.stem,
            description=document.suite.description,
            reference=document.suite.reference,
            duration=document.suite.duration,
            plugins=document.suite.plugins,
        )
        suite.require_valid_conditions()
        selected_failures = (
            failed_problem
            for failed_problem in self.failed_problems
            if meets_conditions(only, problem=failed_problem.label)
        )
        return replace(suite, failed_problems=tuple(selected_failures))

    def _load_drop_ins(self) -> None:
        """Load ``./plugins/*.py`` of the working folder if the suite asks for it, except for a suite in stored results."""
        if not self.document.suite.plugins:
            return
        folder = Path("plugins")
        if self.from_results:
            if not get_registry().paths:
                self.remarks.append(
                    "the suite asks for ./plugins, which are not loaded for stored results; load them with --plugins ./plugins"
                )
        elif any(folder.glob("[!.]*.py")):
            get_registry().add(folder)
        else:
            raise self.suite_error(
                "suite.plugins",
                f"is true, but there is no ./plugins/*.py in {Path.cwd()}",
            )

    def _leave_out(self, error: ProblemError, key: str) -> None:
        """Add a remark on an item (at ``key`` of the suite) that cannot be built and is left out, or raise SuiteError.

        It is left out if its own code is at fault or the suite comes from stored results.
        """
        failure = self.suite_error(key, error.message)
        if isinstance(error, ItemError):
            self.failures.append(failure)
        elif not self.from_results:
            raise failure from None
        self.remarks.append(f"{LEFT_OUT}: {failure}")

    # -- problems -------------------------------------------------------------------------------------------------

    def _problem_plans(self) -> list[ProblemPlan]:
        """Build all problems of the suite, each with its grid."""
        algorithm_count = sum(
            math.prod(map(len, listed_parameters_of(table).values()))
            for table in self.document.algorithms
        )
        problem_plans = []
        for key, table in self._problem_tables().items():
            grid = self._grid(key, table)
            cell_count = (
                len(grid.alpha or ()) * sum(grid.seeds or ()) * max(1, algorithm_count)
            )
            for variant in self._variants(key, table, grid, cell_count):
                problem_plan = self._problem_plan(key, table.label, grid, variant)
                if problem_plan is None:
                    continue
                feature_count = problem_plan.problem.inputs.shape[1]
                if (
                    feature_count
                    and algorithm_count
                    and set(problem_plan.dimensions) != {feature_count}
                ):
                    raise self.suite_error(
                        "grid.dimension",
                        f"must be {feature_count}, because {key}.inputs has this number of features",
                    )
                problem_plans.append(problem_plan)
        return problem_plans

    def _problem_tables(self) -> dict[str, ProblemTable]:
        """Return the ``[problem]`` table or the ``[[problems]]`` tables of the suite, by their keys."""
        document = self.document
        if bool(document.problem) == bool(document.problems):
            raise self.suite_error(
                "problem",
                "a suite needs either one [problem] table or several [[problems]] tables",
            )
        tables = {
            f"problems[{table_index}]": table
            for table_index, table in enumerate(document.problems)
        }
        if document.problem:
            tables = {"problem": document.problem}
        for axis in Axes.model_fields:
            # A shared axis that no problem uses would be a setting without effect.
            if getattr(document.grid, axis) and all(
                getattr(table.grid, axis) for table in tables.values()
            ):
                example_key = f"{next(iter(tables))}.grid.{axis}"
                raise self.suite_error(
                    f"grid.{axis}",
                    f"is not used, because every problem sets its own (the first in {example_key}); remove it",
                )
        return tables

    def _grid(self, key: str, table: ProblemTable) -> GridTable:
        """Return the grid of a problem (its ``table``, at ``key``), completed from ``[grid]``, with the number of replicates
        at every dimension.
        """
        suite_grid = self.document.grid
        alphas = table.grid.alpha or suite_grid.alpha
        dimensions = table.grid.dimension or suite_grid.dimension
        replicate_counts = table.grid.seeds or suite_grid.seeds or (1,)
        if not alphas:
            raise self.suite_error(
                "grid.alpha",
                "is missing; list the sample ratios, as in alpha = [0.5, 1.0]",
            )
        if not dimensions:
            raise self.suite_error(
                "grid.dimension",
                "is missing; list the dimensions, as in dimension = [100, 200]",
            )
        if len(replicate_counts) == 1:
            replicate_counts = replicate_counts * len(dimensions)
        elif len(replicate_counts) != len(dimensions):
            raise self.suite_error(
                f"{key}.grid.seeds" if table.grid.seeds else "grid.seeds",
                f"has {len(replicate_counts)} numbers for {len(dimensions)} dimensions; "
                "give one number for each dimension, or one for all",
            )
        return suite_grid.model_copy(
            update={"alpha": alphas, "dimension": dimensions, "seeds": replicate_counts}
        )

    def _variants(
        self, key: str, table: ProblemTable, grid: GridTable, cell_count: int
    ) -> Iterator[_ProblemVariant]:
        """Yield one problem for each combination of listed parameter values; ``cell_count`` is the number of cells (runs) of
        each.

        If the spectrum of the inputs changes with the dimension D, each D is a problem of its own.
        """
        tables = table.tables()
        parameter_axes = {
            (kind, name): values
            for kind, parameters in tables.items()
            for name, values in parameters.items()
            if isinstance(values, list) and not _is_single_value(kind, tables, name)
        }
        total_cells = cell_count * math.prod(map(len, parameter_axes.values()))
        if total_cells > grid.max_cells:
            raise self.suite_error(
                "grid",
                f"the suite has {total_cells:,} cells, above grid.max_cells = {grid.max_cells:,}; "
                "shorten an axis or raise the limit",
            )
        for (kind, name), values in parameter_axes.items():
            require_distinct(values, self.file, f"{key}.{kind}.{name}")
        dimensions = grid.dimension or ()
        replicate_counts = grid.seeds or ()
        for combination in itertools.product(*parameter_axes.values()):
            chosen_tables = {
                kind: dict(parameters) for kind, parameters in tables.items()
            }
            listed_values = {}
            for (kind, name), value in zip(parameter_axes, combination):
                chosen_tables[kind][name] = listed_values[name] = value
            if not _spectrum_depends_on_dimension(chosen_tables):
                yield _ProblemVariant(
                    chosen_tables, listed_values, dimensions, replicate_counts
                )
                continue
            for dimension, replicates in zip(dimensions, replicate_counts):
                inputs = chosen_tables["inputs"] | {"features": dimension}
                features_setting = (
                    {"features": dimension} if len(dimensions) > 1 else {}
                )
                yield _ProblemVariant(
                    chosen_tables | {"inputs": inputs},
                    listed_values | features_setting,
                    (dimension,),
                    (replicates,),
                )

    def _problem_plan(
        self, key: str, label: str, grid: GridTable, variant: _ProblemVariant
    ) -> ProblemPlan | None:
        """Build the problem of a ``variant``, called ``label``, with its grid; None if it cannot be built and is left out."""
        if label and variant.listed_values:
            assignments = (
                f"{name}={parameter_value}"
                for name, parameter_value in variant.listed_values.items()
            )
            label += f" ({', '.join(assignments)})"
        try:
            problem = Problem(**variant.tables)
            with as_problem_errors("prior"):
                theory_only = why_theory_only(problem.prior, problem.components)
        except ProblemError as error:
            self._leave_out(error, f"{key}.{error.key}")
            if isinstance(error, ItemError):
                item_names = (str(item["name"]) for item in variant.tables.values())
                self.failed_problems.append(
                    FailedProblem(
                        label or " ".join(item_names), variant.tables, str(error)
                    )
                )
            return None
        return ProblemPlan(
            key=key,
            problem=problem,
            tables=variant.tables,
            alphas=grid.alpha or (),
            dimensions=variant.dimensions,
            label=label or problem.label,
            seeds=variant.seeds,
            theory_only=theory_only,
        )

    def _refuse_repeated_problems(self, problem_plans: Sequence[ProblemPlan]) -> None:
        """Raise SuiteError if two problems share a label, or if the same problem is listed twice at the same grid point."""
        key_of_label: dict[str, str] = {}
        label_of_point: dict[tuple[str, float, int], str] = {}
        for problem_plan in problem_plans:
            if problem_plan.label in key_of_label:
                raise self.suite_error(
                    f"{problem_plan.key}.label",
                    f"{problem_plan.label!r} is also the label of {key_of_label[problem_plan.label]}; "
                    "give each problem its own label",
                )
            key_of_label[problem_plan.label] = problem_plan.key
            for alpha, dimension in itertools.product(
                problem_plan.alphas, problem_plan.dimensions
            ):
                grid_point = (problem_plan.problem.identity, alpha, dimension)
                first_label = label_of_point.setdefault(grid_point, problem_plan.label)
                if first_label != problem_plan.label:
                    raise self.suite_error(
                        problem_plan.key,
                        f"is the same problem as {first_label!r} ({key_of_label[first_label]}) at alpha = {alpha:g}, "
                        f"dimension = {dimension}; remove one of the two",
                    )

    def _with_known_values(
        self, problem_plans: Sequence[ProblemPlan]
    ) -> list[ProblemPlan]:
        """Attach published values (``run.reference``) and optimal errors (``optimum``) to their problems."""
        identities = {plan.problem.identity for plan in problem_plans}
        references = self._by_problem(
            "run.reference", self.document.run.reference, identities
        )
        optima = self._by_problem("optimum", self.document.optimum, identities)
        completed_plans = []
        for plan in problem_plans:
            problem = plan.problem
            plan_optima = optima.get(problem.identity, {})
            self._require_one_optimum_per_point(plan_optima, problem.components)
            completed_plans.append(
                replace(
                    plan,
                    references=tuple(references.get(problem.identity, {}).values()),
                    optima=tuple(plan_optima.values()),
                )
            )
        return completed_plans

    def _by_problem(
        self, key: str, tables: Sequence[T], identities: Collection[str]
    ) -> dict[str, dict[str, T]]:
        """Return tables of published values or optima by the identity of their problem and by key, with a remark on those
        whose problem is not in the suite.
        """
        tables_by_problem: dict[str, dict[str, T]] = {}
        labels_without_problem: list[str] = []
        for table_index, table in enumerate(tables):
            try:
                problem = Problem(**table.problem.tables())
            except ProblemError as error:
                self._leave_out(error, f"{key}[{table_index}].problem.{error.key}")
                continue
            if problem.identity in identities:
                same_problem = tables_by_problem.setdefault(problem.identity, {})
                same_problem[f"{key}[{table_index}]"] = table
            elif isinstance(table, ReferenceTable):
                labels_without_problem.append(f"{table.label!r} of {problem.label}")
            else:
                labels_without_problem.append(problem.label)
        if labels_without_problem:
            kind_of_values = (
                "published values" if key == "run.reference" else "stored optima"
            )
            self.remarks.append(
                f"{kind_of_values} that belong to no problem of this suite are left out: "
                + "; ".join(dict.fromkeys(labels_without_problem))
            )
        return tables_by_problem

    def _require_one_optimum_per_point(
        self, optima: Mapping[str, OptimumTable], components: int
    ) -> None:
        """Check that optimal errors of a problem have a number per component, and that no grid point has two."""
        key_of_point: dict[tuple[float, int], str] = {}
        for key, optimum in optima.items():
            for name, values in (("mse", optimum.mse), ("error", optimum.error)):
                if {*map(len, values)} != {components}:
                    raise self.suite_error(
                        f"{key}.{name}",
                        f"must have {components} numbers for each alpha, one for each component of the signal"
                        if components > 1
                        else "must have a single number for each alpha",
                    )
            for alpha in optimum.alpha:
                point = alpha, optimum.dimension
                if (first_key := key_of_point.setdefault(point, key)) != key:
                    raise self.suite_error(
                        key,
                        f"has an optimum at alpha = {alpha:g}, dimension = {optimum.dimension}, as {first_key} does; "
                        "remove one of the two",
                    )

    # -- run options and figure -----------------------------------------------------------------------------------

    def _check_metrics_and_start(self, models: set[str]) -> None:
        """Check that each metric and the algorithm of ``run.start`` exist and support the models of the suite."""
        run, figure = self.document.run, self.document.figure
        metric_names = {f"run.metrics[{i}]": name for i, name in enumerate(run.metrics)}
        for i, reference in enumerate(run.reference):
            metric_names[f"run.reference[{i}].metric"] = reference.metric
        for i, curve in enumerate(figure.curves if figure else ()):
            if curve.metric != "threshold":
                metric_names[f"figure.curves[{i}].metric"] = curve.metric
        for (key, name), model in itertools.product(metric_names.items(), models):
            try:
                find_metric(name, model)
            except RegistryError as error:
                raise self.suite_error(key, str(error)) from None
        if run.start in STARTS:
            return
        starting_algorithms = [
            entry
            for entry in get_registry().entries("algorithm")
            if entry.item.start is not None
        ]
        for model in models:
            if any(
                entry.name == run.start and entry.supports_model(model)
                for entry in starting_algorithms
            ):
                continue
            algorithm_names = {
                f"{entry.name} for {', '.join(entry.models)}"
                for entry in starting_algorithms
            }
            raise self.suite_error(
                "run.start",
                f"must be {', '.join(map(repr, STARTS))} or the name of an algorithm with a method start "
                f"({', '.join(sorted(algorithm_names)) or 'none'}), got {run.start!r}",
            )

    def _check_figure(
        self, problem_plans: Sequence[ProblemPlan], algorithms: Sequence[AlgorithmPlan]
    ) -> None:
        """Check that the curves of a figure name problems, components, algorithms and metrics of the suite."""
        if self.document.figure is None:
            return
        component_counts = {
            problem_plan.label: problem_plan.problem.components
            for problem_plan in problem_plans
        }
        algorithm_labels = {algorithm.label for algorithm in algorithms}
        for curve_index, curve in enumerate(self.document.figure.curves):
            self._check_curve(
                curve,
                f"figure.curves[{curve_index}]",
                component_counts,
                algorithm_labels,
            )

    def _check_curve(
        self,
        curve: CurveTable,
        key: str,
        component_counts: Mapping[str, int],
        algorithm_labels: Collection[str],
    ) -> None:
        """Check one curve of a figure, given the numbers of components of problems, by label, and labels of algorithms."""

        def require(field: str, name: str, choices: Collection[str]) -> None:
            """Raise SuiteError unless ``name``, the value of a field of the curve, is one of ``choices``."""
            if name not in choices:
                raise self.suite_error(
                    f"{key}.{field}",
                    f"the suite has no {name!r}; {suggestion(name, choices)}",
                )

        for label in curve.problems:
            require("problems", label, component_counts)
        if curve.algorithm:
            require("algorithm", curve.algorithm, algorithm_labels)
            require("metric", curve.metric, self.document.run.metrics)
        problem_labels = curve.problems or tuple(component_counts)
        per_problem_numbers: list[tuple[str, Sequence[object]]] = [
            ("x_factor", curve.x_factor)
        ]
        for correction in curve.corrections:
            per_problem_numbers.append(("corrections", correction.above))
            per_problem_numbers.append(("corrections", correction.below))
        for field, numbers_per_problem in per_problem_numbers:
            if len(numbers_per_problem) not in (1, len(problem_labels)):
                raise self.suite_error(
                    f"{key}.{field}",
                    f"must have one number, or {len(problem_labels)} numbers, one for each problem of the curve",
                )
        min_components = min(component_counts[label] for label in problem_labels)
        if (curve.component or 1) > min_components:
            raise self.suite_error(
                f"{key}.component",
                f"must be at most {min_components}, the number of components of the signal",
            )


def _is_single_value(kind: str, tables: Mapping[str, Parameters], name: str) -> bool:
    """Whether the list that a suite gives for the parameter ``name`` of an item of this kind is one value of it, instead of
    several values to run.
    """
    try:
        model = None if kind == "model" else str(tables["model"].get("name"))
        item_class = get_registry().get(kind, str(tables[kind].get("name")), model).item
    except RegistryError:  # reported when the problem is built
        return False
    return is_valid_as_one_value(item_class, kind, name, tables[kind][name])


def _spectrum_depends_on_dimension(tables: Mapping[str, Parameters]) -> bool:
    """Whether the spectrum of the inputs depends on D, so that each dimension D is a problem of its own."""
    inputs = tables.get("inputs", {})
    if {"features", "spectrum"} & inputs.keys():
        return False
    try:
        inputs_class = get_registry().get("inputs", str(inputs.get("name"))).item
    except RegistryError:  # reported when the problem is built
        return False
    return "features" in signature_of(inputs_class)
