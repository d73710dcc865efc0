"""Reads the tables of a suite into problems, algorithms, grid axes and seeds, reporting each mistake with file and key."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pydantic
import tomli_w

from smimbench.derive.prior import why_theory_only
from smimbench.files import JsonObject, printable, suggestion
from smimbench.problem.problem import ItemError, Problem, ProblemError, explained
from smimbench.registry.items import (
    Parameters,
    explain_validation,
    is_value,
    signature_of,
    unknown_key,
)
from smimbench.registry.registry import RegistryError, find_metric, get_registry
from smimbench.suite import SuiteError
from smimbench.suite.algorithms import axes_of_table, read_algorithms
from smimbench.suite.cells import (
    AlgorithmPlan,
    Condition,
    ProblemPlan,
    Suite,
    UnmadeProblem,
    read_condition,
    selects,
)
from smimbench.suite.document import (
    find_suite,
    override,
    parse_toml,
    suite_text,
    with_base,
)
from smimbench.suite.schema import (
    STARTS,
    Axes,
    CurveTable,
    Document,
    GridTable,
    ProblemTable,
    ReferenceTable,
    require_distinct,
    table_at,
)

RESERVED = ("theory", "tuning")
"""Names of folders under ``--results`` that hold something else than a suite's records."""

LEFT_OUT = "left out"
"""First words of a remark on an item that cannot be built."""


def load_suite(
    name: str | Path, overrides: Iterable[str] = (), only: Iterable[str] = ()
) -> Suite:
    """Read and check a suite.

    Parameters
    ----------
    name : str or Path
        A path, or the name of a shipped suite.
    overrides : iterable of str
        ``"problem.prior.rho=0.2"``: values in TOML syntax, for any key of the suite.
    only : iterable of str
        ``"algorithm=gamp"``: run a part. Keys: algorithm, alpha, dimension, seed, problem.

    Raises
    ------
    SuiteError
        In one line: file, key, what would be right.
    """
    path = find_suite(str(name))
    return parse_suite(path, suite_text(path), overrides, only)


def parse_suite(
    path: Path,
    text: str,
    overrides: Iterable[str] = (),
    only: Iterable[str] = (),
    *,
    stored: bool = False,
) -> Suite:
    """Parse and check the text of a suite; ``path`` gives its name and appears in error messages. See ``load_suite``.

    ``stored`` marks the text of a suite in a folder of results, which may come from anybody, or use a plugin that is no longer
    installed: no code of the working folder is run, and items that cannot be built are left out and named in ``Suite.remarks``.
    """
    file = str(path)
    _require_name(path)
    try:
        tables = parse_toml(file, text)
        if "extends" in tables:
            if stored:
                raise SuiteError(
                    file,
                    "extends",
                    "is not allowed in stored results, which contain the whole suite",
                )
            tables = with_base(path, tables)
            text = tomli_w.dumps(tables)
        overrides = tuple(overrides)
        for assignment in overrides:
            override(tables, assignment, file)
        if "extends" in tables:
            raise SuiteError(
                file,
                "extends",
                "cannot be set with --set; run the other suite by its name instead",
            )
        conditions = tuple(map(read_condition, only))
        document = _validated(tables, file)
        return _Reader(path, document, stored).suite(text, overrides, conditions)
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


def _require_name(path: Path) -> None:
    """Raise SuiteError unless a suite's name can also name its folder of results."""
    name = path.stem
    is_folder_name = re.fullmatch(r"[^.][^/\\]*", name) and printable(name) == name
    if not is_folder_name or name in RESERVED:
        reserved = ", ".join(map(repr, RESERVED))
        raise SuiteError(
            str(path),
            "",
            f"the folder of results is named after the suite, so its name must not start with a dot or be one of {reserved}",
        )


def _validated(tables: JsonObject, file: str) -> Document:
    """Check keys, types and limits of a parsed suite against ``schema``; SuiteError for the first mistake."""
    try:
        return Document.model_validate(tables)
    except pydantic.ValidationError as error:
        mistake = error.errors(include_url=False)[0]
        key, message = explain_validation(error)
        if mistake["type"] == "extra_forbidden":
            *table, name = mistake["loc"]
            message = unknown_key(str(name), table_at(table).model_fields)
            if name == "extends":
                message = "must be written above the first table of the suite"
        raise SuiteError(file, key, message) from None


@dataclass(frozen=True)
class _Variant:
    """One problem of a grid over listed parameters; ``differing`` holds its values of these parameters, by name."""

    tables: dict[str, Parameters]
    differing: Parameters
    dimensions: tuple[int, ...]
    seeds: tuple[int, ...]


class _Reader:
    """Builds a suite from a parsed document, checking its items and the consistency between its keys."""

    def __init__(self, path: Path, document: Document, stored: bool) -> None:
        self.path, self.document, self.stored = path, document, stored
        self.file = str(path)
        self.remarks: list[str] = []
        self.unmade: list[UnmadeProblem] = []
        self.failures: list[SuiteError] = []

    def error(self, key: str, message: str) -> SuiteError:
        return SuiteError(self.file, key, message)

    def suite(
        self, text: str, overrides: tuple[str, ...], only: tuple[Condition, ...]
    ) -> Suite:
        document = self.document
        self._load_drop_ins()
        plans = self._plans()
        if not plans:
            reason = self.error("problem", "; ".join(self.remarks))
            raise self.failures[0] if self.failures else reason
        self._refuse_same_cells(plans)
        algorithms = read_algorithms(
            document.algorithms, plans, self.file, self._leave_out
        )
        self._check_metrics_and_start({plan.problem.model.name for plan in plans})
        plans = self._with_references(plans)
        self._check_figure(plans, algorithms)
        suite = Suite(
            name=self.path.stem,
            file=self.file,
            text=text,
            plans=tuple(plans),
            algorithms=algorithms,
            seed=document.grid.seed,
            run=document.run,
            overrides=overrides,
            only=only,
            remarks=tuple(self.remarks),
            unmade=tuple(self.unmade),
            left_out=tuple(map(str, self.failures)),
            figure=document.figure,
            title=document.suite.title or self.path.stem,
            description=document.suite.description,
            reference=document.suite.reference,
            duration=document.suite.duration,
            plugins=document.suite.plugins,
        )
        suite.require_conditions()
        chosen = (
            problem for problem in self.unmade if selects(only, problem=problem.label)
        )
        return replace(suite, unmade=tuple(chosen))

    def _load_drop_ins(self) -> None:
        """Load ``./plugins/*.py`` of the working folder if the suite asks for it, except for a suite in stored results."""
        if not self.document.suite.plugins:
            return
        folder = Path("plugins")
        if self.stored:
            if not get_registry().paths:
                self.remarks.append(
                    "the suite asks for ./plugins, which are not loaded for stored results; load them with --plugins ./plugins"
                )
        elif any(folder.glob("[!.]*.py")):
            get_registry().add(folder)
        else:
            raise self.error(
                "suite.plugins",
                f"is true, but there is no ./plugins/*.py in {Path.cwd()}",
            )

    def _leave_out(self, error: ProblemError, key: str) -> None:
        """Skip an item that cannot be built, or raise SuiteError.

        It is skipped if its own code is at fault or the suite comes from stored results.
        """
        failure = self.error(key, error.message)
        if isinstance(error, ItemError):
            self.failures.append(failure)
        elif not self.stored:
            raise failure from None
        self.remarks.append(f"{LEFT_OUT}: {failure}")

    # -- problems -------------------------------------------------------------------------------------------------

    def _plans(self) -> list[ProblemPlan]:
        """Return all problems of the suite, each with its grid."""
        algorithms = sum(
            math.prod(map(len, axes_of_table(table).values()))
            for table in self.document.algorithms
        )
        plans = []
        for key, table in self._problem_tables().items():
            grid = self._grid(key, table)
            cells = len(grid.alpha or ()) * sum(grid.seeds or ()) * max(1, algorithms)
            for variant in self._variants(key, table, grid, cells):
                plan = self._plan(key, table.label, grid, variant)
                if plan is None:
                    continue
                features = plan.problem.inputs.shape[1]
                if features and algorithms and set(plan.dimensions) != {features}:
                    raise self.error(
                        "grid.dimension",
                        f"must be {features}, because {key}.inputs has this number of features",
                    )
                plans.append(plan)
        return plans

    def _problem_tables(self) -> dict[str, ProblemTable]:
        """Return the ``[problem]`` or ``[[problems]]`` tables of the suite, by key."""
        document = self.document
        if bool(document.problem) == bool(document.problems):
            raise self.error(
                "problem",
                "a suite needs either one [problem] table or several [[problems]] tables",
            )
        tables = {f"problems[{i}]": table for i, table in enumerate(document.problems)}
        if document.problem:
            tables = {"problem": document.problem}
        for axis in Axes.model_fields:
            # An axis that nobody reads would be a setting that does nothing.
            if getattr(document.grid, axis) and all(
                getattr(table.grid, axis) for table in tables.values()
            ):
                example = f"{next(iter(tables))}.grid.{axis}"
                raise self.error(
                    f"grid.{axis}",
                    f"is not used: every problem sets its own (the first in {example})",
                )
        return tables

    def _grid(self, key: str, table: ProblemTable) -> GridTable:
        """Return the grid of a problem, with axes that it omits taken from ``[grid]``, and replicates for every dimension."""
        shared = self.document.grid
        alphas = table.grid.alpha or shared.alpha
        dimensions = table.grid.dimension or shared.dimension
        seeds = table.grid.seeds or shared.seeds or (1,)
        if not alphas:
            raise self.error(
                "grid.alpha",
                "is missing; list the sample ratios, as in alpha = [0.5, 1.0]",
            )
        if not dimensions:
            raise self.error(
                "grid.dimension",
                "is missing; list the dimensions, as in dimension = [100, 200]",
            )
        if len(seeds) == 1:
            seeds = seeds * len(dimensions)
        elif len(seeds) != len(dimensions):
            raise self.error(
                f"{key}.grid.seeds" if table.grid.seeds else "grid.seeds",
                f"has {len(seeds)} numbers for {len(dimensions)} dimensions; give one number for each dimension, or one for all",
            )
        return shared.model_copy(
            update={"alpha": alphas, "dimension": dimensions, "seeds": seeds}
        )

    def _variants(
        self, key: str, table: ProblemTable, grid: GridTable, cells: int
    ) -> Iterator[_Variant]:
        """Yield one problem for each combination of listed parameters.

        If the spectrum of the inputs changes with the dimension D, each D is a problem of its own.
        """
        tables = table.tables()
        axes = {
            (kind, name): values
            for kind, parameters in tables.items()
            for name, values in parameters.items()
            if isinstance(values, list) and not _is_value(kind, tables, name)
        }
        size = cells * math.prod(map(len, axes.values()))
        if size > grid.max_cells:
            raise self.error(
                "grid",
                f"the suite has {size:,} cells, above grid.max_cells = {grid.max_cells:,}; shorten an axis or raise the limit",
            )
        for (kind, name), values in axes.items():
            require_distinct(values, self.file, f"{key}.{kind}.{name}")
        dimensions, seeds = grid.dimension or (), grid.seeds or ()
        for combination in itertools.product(*axes.values()):
            chosen = {kind: dict(parameters) for kind, parameters in tables.items()}
            differing = {}
            for (kind, name), value in zip(axes, combination):
                chosen[kind][name] = differing[name] = value
            if not _needs_features(chosen):
                yield _Variant(chosen, differing, dimensions, seeds)
                continue
            for D, count in zip(dimensions, seeds):
                inputs = chosen["inputs"] | {"features": D}
                features_setting = {"features": D} if len(dimensions) > 1 else {}
                yield _Variant(
                    chosen | {"inputs": inputs},
                    differing | features_setting,
                    (D,),
                    (count,),
                )

    def _plan(
        self, key: str, label: str, grid: GridTable, variant: _Variant
    ) -> ProblemPlan | None:
        """Build a problem with its grid; None if it cannot be built and is left out."""
        if label and variant.differing:
            words = (f"{name}={value}" for name, value in variant.differing.items())
            label += f" ({', '.join(words)})"
        try:
            problem = Problem(**variant.tables)
            with explained("prior"):
                theory_only = why_theory_only(problem.prior, problem.components)
        except ProblemError as error:
            self._leave_out(error, f"{key}.{error.key}")
            if isinstance(error, ItemError):
                names = (str(item["name"]) for item in variant.tables.values())
                self.unmade.append(
                    UnmadeProblem(label or " ".join(names), variant.tables, str(error))
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

    def _refuse_same_cells(self, plans: Sequence[ProblemPlan]) -> None:
        """Raise SuiteError for two problems with the same label, or the same problem and grid point under two labels."""
        keys: dict[str, str] = {}
        points: dict[tuple[str, float, int], str] = {}
        for plan in plans:
            if plan.label in keys:
                raise self.error(
                    f"{plan.key}.label",
                    f"{plan.label!r} is also the label of {keys[plan.label]}; give each problem its own label",
                )
            keys[plan.label] = plan.key
            for alpha, dimension in itertools.product(plan.alphas, plan.dimensions):
                point = (plan.problem.identity, alpha, dimension)
                label = points.setdefault(point, plan.label)
                if label != plan.label:
                    raise self.error(
                        plan.key,
                        f"is the same problem as {label!r} ({keys[label]}) at alpha = {alpha:g}, "
                        f"dimension = {dimension}; remove one of the two",
                    )

    def _with_references(self, plans: Sequence[ProblemPlan]) -> list[ProblemPlan]:
        """Attach published values to their problems; a remark names those that belong to no problem of the suite."""
        published: dict[str, list[ReferenceTable]] = {
            plan.problem.identity: [] for plan in plans
        }
        unused: list[str] = []
        for i, reference in enumerate(self.document.run.reference):
            try:
                problem = Problem(**reference.problem.tables())
            except ProblemError as error:
                self._leave_out(error, f"run.reference[{i}].problem.{error.key}")
                continue
            if problem.identity in published:
                published[problem.identity].append(reference)
            else:
                unused.append(f"{reference.label!r} of {problem.label}")
        if unused:
            self.remarks.append(
                f"published values that belong to no problem of this suite are left out: {'; '.join(dict.fromkeys(unused))}"
            )
        return [
            replace(plan, references=tuple(published[plan.problem.identity]))
            for plan in plans
        ]

    # -- run options and figure -----------------------------------------------------------------------------------

    def _check_metrics_and_start(self, models: set[str]) -> None:
        """Check that every metric, and the algorithm that ``run.start`` names, exists and supports every model."""
        run, figure = self.document.run, self.document.figure
        metrics = {f"run.metrics[{i}]": name for i, name in enumerate(run.metrics)}
        for i, reference in enumerate(run.reference):
            metrics[f"run.reference[{i}].metric"] = reference.metric
        for i, curve in enumerate(figure.curves if figure else ()):
            if curve.metric != "threshold":
                metrics[f"figure.curves[{i}].metric"] = curve.metric
        for (key, name), model in itertools.product(metrics.items(), models):
            try:
                find_metric(name, model)
            except RegistryError as error:
                raise self.error(key, str(error)) from None
        if run.start in STARTS:
            return
        starting = [
            entry
            for entry in get_registry().entries("algorithm")
            if entry.item.start is not None
        ]
        for model in models:
            if any(entry.name == run.start and entry.fits(model) for entry in starting):
                continue
            names = {
                f"{entry.name} for {', '.join(entry.models)}" for entry in starting
            }
            raise self.error(
                "run.start",
                f"must be {', '.join(map(repr, STARTS))} or the name of an algorithm with a method start "
                f"({', '.join(sorted(names)) or 'none'}), got {run.start!r}",
            )

    def _check_figure(
        self, plans: Sequence[ProblemPlan], algorithms: Sequence[AlgorithmPlan]
    ) -> None:
        """Check that the curves of a figure name problems, components, algorithms and metrics of the suite."""
        if self.document.figure is None:
            return
        components = {plan.label: plan.problem.components for plan in plans}
        labels = {algorithm.label for algorithm in algorithms}
        for i, curve in enumerate(self.document.figure.curves):
            self._check_curve(curve, f"figure.curves[{i}]", components, labels)

    def _check_curve(
        self,
        curve: CurveTable,
        key: str,
        components: Mapping[str, int],
        algorithms: Collection[str],
    ) -> None:
        """Check one curve of a figure.

        ``components`` holds the number of components of each problem by label, ``algorithms`` the labels of the algorithms.
        """

        def require(field: str, name: str, choices: Collection[str]) -> None:
            if name not in choices:
                raise self.error(
                    f"{key}.{field}",
                    f"the suite has no {name!r}; {suggestion(name, choices)}",
                )

        for label in curve.problems:
            require("problems", label, components)
        if curve.algorithm:
            require("algorithm", curve.algorithm, algorithms)
            require("metric", curve.metric, self.document.run.metrics)
        labels = curve.problems or tuple(components)
        per_problem: list[tuple[str, Sequence[object]]] = [("x_factor", curve.x_factor)]
        for correction in curve.corrections:
            per_problem.append(("corrections", correction.above))
            per_problem.append(("corrections", correction.below))
        for field, values in per_problem:
            if len(values) not in (1, len(labels)):
                raise self.error(
                    f"{key}.{field}",
                    f"must have one number, or {len(labels)} numbers, one for each problem of the curve",
                )
        fewest = min(components[label] for label in labels)
        if (curve.component or 1) > fewest:
            raise self.error(
                f"{key}.component",
                f"must be at most {fewest}, the number of components of the signal",
            )


def _is_value(kind: str, tables: Mapping[str, Parameters], name: str) -> bool:
    """Whether a list is a single value of a parameter and not an axis of the grid."""
    try:
        model = None if kind == "model" else str(tables["model"].get("name"))
        item = get_registry().get(kind, str(tables[kind].get("name")), model).item
    except RegistryError:  # reported when the problem is built
        return False
    return is_value(item, kind, name, tables[kind][name])


def _needs_features(tables: Mapping[str, Parameters]) -> bool:
    """Whether the spectrum of the inputs changes with D, so that a problem needs its number of features."""
    inputs = tables.get("inputs", {})
    if {"features", "spectrum"} & inputs.keys():
        return False
    try:
        law = get_registry().get("inputs", str(inputs.get("name"))).item
    except RegistryError:  # reported when the problem is built
        return False
    return "features" in signature_of(law)
