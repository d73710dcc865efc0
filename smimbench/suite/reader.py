"""Reads the TOML of a suite into problems, algorithms, grid axes and seeds; each mistake is reported with file and key."""

from __future__ import annotations

import itertools
import math
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pydantic

from smimbench.derive.prior import why_theory_only
from smimbench.files import (
    JsonObject,
    attempt,
    canonical_json,
    printable,
    read_text,
    suggestion,
)
from smimbench.problem.assumed import assumed_problem
from smimbench.problem.problem import ItemError, Problem, ProblemError, explained
from smimbench.registry.metrics import find_metric
from smimbench.registry.parameters import (
    explain_validation,
    is_value,
    require_known,
    signature_of,
    unknown_key,
)
from smimbench.registry.registry import RegistryError, get_registry
from smimbench.suite import SuiteError
from smimbench.suite.cells import (
    ProblemPlan,
    Suite,
    Unmade,
    by_dimension,
    make_algorithm,
)
from smimbench.suite.overrides import (
    Condition,
    check_condition,
    merged,
    override,
    read_condition,
    selects,
)
from smimbench.suite.schema import (
    ORACLE,
    STARTS,
    AlgorithmTable,
    Axes,
    Document,
    FigureTable,
    ProblemTable,
    Reference,
    RunOptions,
    distinct,
    table_at,
)
from smimbench.suite.settings import (
    Setting,
    axes_of,
    by_hand,
    product,
    tune_of,
    with_setting,
    words_of,
)

RESERVED = ("theory", "tuning")
"""Names of folders under ``--results`` that hold something else than a suite's records."""


def shipped_suites() -> dict[str, Path]:
    """Names and paths of the suites shipped with smimbench."""
    here = Path(__file__).resolve().parent.parent
    for folder in (here / "suites", here.parent / "suites"):
        if folder.is_dir():
            return {path.stem: path for path in sorted(folder.glob("[!.]*.toml"))}
    return {}


def shipped_figures() -> dict[str, Path]:
    """Names and paths of the suites that reproduce a figure of a paper."""
    folder = next(iter(shipped_suites().values())).parent / "papers"
    return {path.stem: path for path in sorted(folder.glob("[!.]*.toml"))}


def find_suite(name: str) -> Path:
    """Path of a suite, given as a path or as the name of a shipped suite or figure."""
    path = Path(name)
    if path.suffix == ".toml" or path.is_file():
        if not path.is_file():
            near = sorted(str(one) for one in path.parent.glob("[!.]*.toml"))
            raise SuiteError(
                name,
                "",
                f"no such file{f'; {suggestion(name, near, 8)}' if near else ''}",
            )
        return path
    known = shipped_suites() | shipped_figures()
    if name in known:
        return known[name]
    file = f"{name}.toml"
    near = [*shipped_suites(), *(path.name for path in Path().glob("[!.]*.toml"))]
    meant = (
        f"did you mean {file!r}?"
        if Path(file).is_file()
        else suggestion(name, [*near, *shipped_figures()])
    )
    raise SuiteError(name, "", f"no such file and no shipped suite; {meant}")


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
    return parse_suite(path, _text_of(path), overrides, only)


def parse_suite(
    path: Path,
    text: str,
    overrides: Iterable[str] = (),
    only: Iterable[str] = (),
    *,
    stored: bool = False,
) -> Suite:
    """Check the text of a suite; ``path`` gives its name and appears in error messages. See ``load_suite``.

    ``stored`` is for the text in a folder of results, which may come from anybody, or from before a plugin was taken away: no
    code of the working folder is run, and what cannot be made here is left out and named in ``Suite.remarks``.
    """
    file = str(path)
    if (
        not re.fullmatch(r"[^.][^/\\]*", path.stem)
        or printable(path.stem) != path.stem
        or path.stem in RESERVED
    ):
        reserved = ", ".join(map(repr, RESERVED))
        raise SuiteError(
            file,
            "",
            f"the results folder has the suite's name, so the name must not start with a dot or be {reserved}",
        )
    import tomli_w

    try:
        document = _document(file, text)
        if "extends" in document:
            if stored:
                raise SuiteError(
                    file,
                    "extends",
                    "is not allowed in stored results, which contain the whole suite",
                )
            document = _with_base(path, document)
            text = tomli_w.dumps(document)
        given = tuple(overrides)
        for one in given:
            override(document, one, file)
        if "extends" in document:
            raise SuiteError(
                file,
                "extends",
                "cannot be set with --set; run the other suite by its name instead",
            )
        chosen = tuple(read_condition(one) for one in only)
        return _Reader(path, text, stored).suite(document, given, chosen)
    except RecursionError:
        raise SuiteError(file, "", "lists or tables are nested too deep") from None
    except OverflowError:
        raise SuiteError(file, "", "contains a number that is too large") from None
    except ValueError as error:  # more digits than Python reads
        if isinstance(error, (SuiteError, ProblemError)):
            raise
        raise SuiteError(file, "", f"not valid TOML: {printable(error, 200)}") from None


def _text_of(path: Path) -> str:
    try:
        return read_text(path)
    except (OSError, ValueError) as error:
        raise SuiteError(str(path), "", f"cannot be read: {error}") from None


def _document(file: str, text: str) -> JsonObject:
    """Parse the TOML text of a suite into tables and lists."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        why = (
            "a file of results, not a suite; smimbench show, verify and compare read it"
            if file.endswith(".json")
            else f"not valid TOML: {error}"
        )
        raise SuiteError(file, "", why) from None


def _with_base(
    path: Path, document: JsonObject, seen: tuple[Path, ...] = ()
) -> JsonObject:
    """Merge a suite into the suite that it extends, recursively."""
    if "extends" not in document:
        return document
    file, name = str(path), document.pop("extends")
    seen = (*seen, path.resolve())
    if not isinstance(name, str) or not name:
        raise SuiteError(
            file, "extends", f"must be the name or path of a suite, got {name!r}"
        )
    try:
        base = find_suite(str(path.parent / name) if name.endswith(".toml") else name)
        text = _text_of(base)
    except (OSError, SuiteError) as error:
        raise SuiteError(file, "extends", printable(error, 300)) from None
    if base.resolve() in seen:
        raise SuiteError(
            file,
            "extends",
            f"{name!r} extends itself, directly or through other suites",
        )
    return merged(_with_base(base, _document(str(base), text), seen), document)


LEFT_OUT = "left out"
"""First words of a remark on an item that cannot be built."""


class _Reader:
    """Turns a document into a suite, with the checks that ``schema`` cannot do: of items, and across keys."""

    def __init__(self, path: Path, text: str, stored: bool) -> None:
        self.path, self.text, self.stored = path, text, stored
        self.file = str(path)
        self.remarks: list[str] = []
        self.unmade: list[Unmade] = []
        self.failures: list[SuiteError] = []

    def fail(self, key: str, message: str) -> SuiteError:
        return SuiteError(self.file, key, message)

    def suite(
        self,
        document: JsonObject,
        overrides: tuple[str, ...],
        only: tuple[Condition, ...],
    ) -> Suite:
        try:
            read = Document.model_validate(document)
        except pydantic.ValidationError as error:
            raise self._explain(error) from None
        if read.suite.plugins and not self.stored:
            self._drop_ins()
        elif read.suite.plugins and not get_registry().paths:
            self.remarks.append(
                "its suite asks for ./plugins, which are not run for stored results: --plugins does that"
            )
        plans = self._plans(read)
        if not plans:
            raise (
                self.failures[0]
                if self.failures
                else self.fail("problem", "; ".join(self.remarks))
            )
        self._refuse_same_cells(plans)
        algorithms = self._algorithms(read.algorithms, plans)
        self._check_run(
            read.run, read.figure, {plan.problem.model.name for plan in plans}
        )
        plans = self._with_references(read.run, plans)
        if read.figure is not None:
            self._check_figure(
                read.figure, read.run, plans, {table["label"] for table in algorithms}
            )
        known = {
            "algorithm": [
                table[key] for key in ("label", "entry") for table in algorithms
            ]
            + [table["spec"]["name"] for table in algorithms],
            "problem": [
                *(plan.label for plan in plans),
                *(one.label for one in self.unmade),
            ],
            "alpha": sorted({alpha for plan in plans for alpha in plan.alphas}),
            "dimension": sorted(
                {dimension for plan in plans for dimension in plan.dimensions}
            ),
            "seed": range(max(max(plan.seeds) for plan in plans)),
        }
        for condition in only:
            check_condition(condition, known)
        return Suite(
            name=self.path.stem,
            file=self.file,
            text=self.text,
            plans=tuple(plans),
            algorithms=algorithms,
            seed=read.grid.seed,
            run=read.run,
            overrides=overrides,
            only=only,
            remarks=tuple(self.remarks),
            unmade=tuple(
                one for one in self.unmade if selects(only, problem=one.label)
            ),
            left_out=tuple(map(str, self.failures)),
            figure=read.figure,
            **read.suite.model_dump() | {"title": read.suite.title or self.path.stem},
        )

    def _explain(self, error: pydantic.ValidationError) -> SuiteError:
        """Describe the first mistake in one line."""
        first = error.errors(include_url=False)[0]
        key, message = explain_validation(error)
        if first["type"] == "extra_forbidden":
            message = unknown_key(
                str(first["loc"][-1]), table_at(first["loc"][:-1]).model_fields
            )
            if first["loc"][-1] == "extends":
                message = "must stand above the first table"
        return self.fail(key, message)

    def _drop_ins(self) -> None:
        """Load ``./plugins/*.py`` of the working folder if the suite asks for it."""
        folder = Path("plugins")
        if not any(folder.glob("[!.]*.py")):
            raise self.fail(
                "suite.plugins",
                f"is true, but there is no ./plugins/*.py in {Path.cwd()}",
            )
        get_registry().add(folder)

    # -- problems -------------------------------------------------------------------------------------------------

    def _plans(self, read: Document) -> list[ProblemPlan]:
        """All problems of the suite, each with its grid."""
        if bool(read.problem) == bool(read.problems):
            raise self.fail(
                "problem", "give either one [problem] or several [[problems]]"
            )
        written = {f"problems[{i}]": table for i, table in enumerate(read.problems)}
        if read.problem:
            written = {"problem": read.problem}
        for name in Axes.model_fields:
            # An axis that nobody reads would be a setting that does nothing.
            if getattr(read.grid, name) and all(
                getattr(table.grid, name) for table in written.values()
            ):
                first = f"{next(iter(written))}.grid.{name}"
                raise self.fail(
                    f"grid.{name}",
                    f"is not used: every problem sets its own (the first in {first})",
                )
        plans = []
        algorithms = sum(
            math.prod(map(len, self._axes(table).values())) for table in read.algorithms
        )
        for key, table in written.items():
            alphas, dimensions, seeds = (
                getattr(table.grid, n) or getattr(read.grid, n)
                for n in Axes.model_fields
            )
            if not alphas or not dimensions:
                raise self.fail(
                    "grid.dimension" if alphas else "grid.alpha", "is missing"
                )
            seeds = seeds or (1,)
            if len(seeds) not in (1, len(dimensions)):
                raise self.fail(
                    f"{key}.grid.seeds" if table.grid.seeds else "grid.seeds",
                    f"has {len(seeds)} numbers for {len(dimensions)} dimensions; give one for each dimension, or one for all",
                )
            seeds = seeds * len(dimensions) if len(seeds) == 1 else seeds
            cells = len(alphas) * sum(seeds) * max(1, algorithms)
            variants = self._variants(table, key, read.grid.max_cells, cells)
            for tables, differing, sizes, draws in by_dimension(
                variants, dimensions, seeds
            ):
                label = table.label
                if label and differing:
                    label += (
                        " (" + ", ".join(f"{k}={v}" for k, v in differing.items()) + ")"
                    )
                try:
                    problem = Problem(**tables)
                    with explained("prior"):
                        theory_only = why_theory_only(problem.prior, problem.components)
                except ProblemError as error:
                    self._leave_out(error, f"{key}.{error.key}")
                    if isinstance(error, ItemError):
                        label = label or " ".join(
                            str(one["name"]) for one in tables.values()
                        )
                        self.unmade.append(Unmade(label, tables, str(error)))
                    continue
                D = problem.inputs.shape[1]
                if D is not None and algorithms and set(sizes) != {D}:
                    raise self.fail(
                        "grid.dimension",
                        f"must be {D}, the number of features of {key}.inputs",
                    )
                plans.append(
                    ProblemPlan(
                        key,
                        problem,
                        tables,
                        alphas,
                        sizes,
                        label or problem.label,
                        draws,
                        theory_only,
                    )
                )
        return plans

    def _variants(
        self, table: ProblemTable, key: str, largest: int, cells: int
    ) -> list[tuple[dict[str, JsonObject], JsonObject]]:
        """All combinations of parameters given as lists, each with the parameters in which it differs."""
        tables = table.tables()
        axes = {
            (kind, name): values
            for kind, parameters in tables.items()
            for name, values in parameters.items()
            if isinstance(values, list) and not _is_value(kind, tables, name)
        }
        if (size := cells * math.prod(map(len, axes.values()))) > largest:
            why = f"{size:,} cells are more than grid.max_cells = {largest:,}"
            raise self.fail("grid", f"{why}; shorten a grid axis or raise the limit")
        for (kind, name), values in axes.items():
            self._require_distinct(f"{key}.{kind}.{name}", values)
        found = []
        for combination in itertools.product(*axes.values()):
            chosen = {kind: dict(parameters) for kind, parameters in tables.items()}
            for (kind, name), value in zip(axes, combination):
                chosen[kind][name] = value
            found.append(
                (chosen, {name: value for (_, name), value in zip(axes, combination)})
            )
        return found

    def _require_distinct(self, key: str, values: Sequence[Any]) -> None:
        try:
            distinct(values)
        except ValueError as error:
            raise self.fail(key, str(error)) from None

    def _leave_out(self, error: ProblemError, key: str) -> None:
        """Skip an item that cannot be built if its own code is at fault or the suite comes from stored results; otherwise
        raise.
        """
        found = self.fail(key, error.message)
        if isinstance(error, ItemError):
            self.failures.append(found)
        elif not self.stored:
            raise found from None
        self.remarks.append(f"{LEFT_OUT}: {found}")

    def _refuse_same_cells(self, plans: Sequence[ProblemPlan]) -> None:
        """Reject two problems with the same label, or the same point under two labels."""
        labels: dict[str, str] = {}
        points: dict[tuple[str, float, int], str] = {}
        for plan in plans:
            if plan.label in labels:
                other = f"{plan.label!r} is the label of {labels[plan.label]} too"
                raise self.fail(
                    f"{plan.key}.label", f"{other}; give each a label of its own"
                )
            labels[plan.label] = plan.key
            for alpha, dimension in itertools.product(plan.alphas, plan.dimensions):
                first = points.setdefault(
                    (plan.problem.identity, alpha, dimension), plan.label
                )
                if first != plan.label:
                    where = f"{first!r} ({labels[first]}) at alpha = {alpha:g}, dimension = {dimension}"
                    raise self.fail(
                        plan.key, f"is the same problem as {where}; remove one"
                    )

    # -- algorithms -----------------------------------------------------------------------------------------------

    def _algorithms(
        self, tables: Sequence[AlgorithmTable], plans: Sequence[ProblemPlan]
    ) -> tuple[JsonObject, ...]:
        """Labels and full specifications of all algorithms, one for each setting where parameters are lists."""
        models = list(dict.fromkeys(plan.problem.model.name for plan in plans))
        found: list[JsonObject] = []
        for i, table in enumerate(tables):
            key, label, axes = (
                f"algorithms[{i}]",
                table.label or table.name,
                self._axes(table),
            )
            if table.start:
                label += ", from the teacher"
                if table.tune:
                    raise self.fail(
                        f"{key}.tune",
                        "cannot be used with start = 'informed': an oracle is not ranked",
                    )
            built: list[tuple[Setting, JsonObject, JsonObject]] = []
            for path, values in axes.items():
                self._require_distinct(".".join((key, *path)), values)
            try:
                with explained("algorithm"):
                    entry = get_registry().get("algorithm", table.name)
                    require_known(
                        table.model_extra or (),
                        [*signature_of(entry.item), *AlgorithmTable.model_fields],
                    )
                    for setting in product(axes):
                        parameters = with_setting(table.parameters(), setting)
                        _, spec = make_algorithm(entry, parameters)
                        built.append((setting, parameters, spec))
                if not any(
                    map(entry.fits, models)
                ):  # one that works for some problems is skipped on the others
                    fit = f"works for {', '.join(entry.models)}, not for {' or '.join(map(repr, models))}"
                    raise ProblemError(
                        "algorithm.name", f"algorithm {table.name!r} {fit}"
                    )
            except ProblemError as error:
                self._leave_out(error, f"{key}.{error.key.partition('.')[2]}")
                continue
            if wrong := _impossible(
                [parameters["assumed"] for _, parameters, *_ in built if table.assumed],
                plans,
            ):
                self._leave_out(wrong, f"{key}.assumed.{wrong.key}")
                continue
            if label in [other["entry"] for other in found]:
                raise self.fail(
                    f"{key}.label",
                    f"{label!r} is used twice; give each a label of its own",
                )
            plan = next(plan for plan in plans if entry.fits(plan.problem.model.name))
            try:
                with explained("algorithm"):
                    bare = {
                        name: value
                        for name, value in built[0][1].items()
                        if name != "assumed"
                    }
                    tune = (
                        tune_of(table.tune, axes, entry.item, bare, plan)
                        if table.tune
                        else None
                    )
            except ProblemError as error:
                raise self.fail(
                    f"{key}.tune.{error.key.partition('.')[2]}".rstrip("."),
                    error.message,
                ) from None
            for setting, parameters, spec in built:
                own = ", ".join(filter(None, (label, words_of(setting))))
                for j, other in enumerate(found):
                    if own == other["label"]:
                        raise self.fail(
                            f"{key}.label",
                            f"{own!r} is used twice; give each a label of its own",
                        )
                    if canonical_json([spec, tune, table.start]) == canonical_json(
                        [*map(other.get, ("spec", "tune", "start"))]
                    ):
                        raise self.fail(
                            key,
                            f"is the same as algorithms[{j}], {other['label']!r}; remove one",
                        )
                origin = "as published" if table.published else "default"
                bare = {
                    name: value
                    for name, value in parameters.items()
                    if name != "assumed"
                }
                if not table.published and by_hand(entry.item, bare, plan):
                    origin = "by hand"
                origin = ORACLE if table.start else origin
                found.append({"label": own, "entry": label, "spec": spec, "name": table.name,
                              "parameters": parameters, "tune": tune, "origin": origin, "start": table.start})  # fmt: skip
        return tuple(found)

    @staticmethod
    def _axes(table: AlgorithmTable) -> dict[tuple[str, ...], list[Any]]:
        """Parameters of an algorithm that are given as lists of values."""
        try:
            return axes_of(
                get_registry().get("algorithm", table.name).item, table.parameters()
            )
        except RegistryError:  # making it says so
            return {}

    # -- run options ----------------------------------------------------------------------------------------------

    def _check_run(
        self, run: RunOptions, figure: FigureTable | None, models: set[str]
    ) -> None:
        """Check that metrics exist and work for every model, and that ``run.start`` is known and fits every model."""
        metrics = {f"run.metrics[{i}]": name for i, name in enumerate(run.metrics)}
        metrics |= {
            f"run.reference[{i}].metric": one.metric
            for i, one in enumerate(run.reference)
        }
        curves = enumerate(figure.curves if figure else ())
        metrics |= {
            f"figure.curves[{i}].metric": one.metric
            for i, one in curves
            if one.metric != "threshold"
        }
        for (key, name), model in itertools.product(metrics.items(), models):
            try:
                find_metric(name, model)
            except RegistryError as error:
                raise self.fail(key, str(error)) from None
        if run.start in STARTS:
            return
        offered = [
            entry
            for entry in get_registry().entries("algorithm")
            if entry.item.start is not None
        ]
        if not all(
            any(entry.name == run.start and entry.fits(model) for entry in offered)
            for model in models
        ):
            known = f"{', '.join(map(repr, STARTS))} or the name of an algorithm with a method start"
            names = (
                ", ".join(
                    sorted(
                        {
                            f"{entry.name} for {', '.join(entry.models)}"
                            for entry in offered
                        }
                    )
                )
                or "none"
            )
            raise self.fail(
                "run.start", f"must be {known} ({names}), got {run.start!r}"
            )

    def _check_figure(
        self,
        figure: FigureTable,
        run: RunOptions,
        plans: Sequence[ProblemPlan],
        known: set[str],
    ) -> None:
        """Check that curves name problems, components, algorithms (``known``) and measured metrics of the suite."""
        parts = {plan.label: plan.problem.components for plan in plans}
        for i, one in enumerate(figure.curves):
            named: list[tuple[str, str, Collection[str]]] = [
                ("problems", label, parts) for label in one.problems
            ]
            named += (
                [
                    ("algorithm", one.algorithm, known),
                    ("metric", one.metric, run.metrics),
                ]
                if one.algorithm
                else []
            )
            for key, name, there in named:
                if name not in there:
                    raise self.fail(
                        f"figure.curves[{i}].{key}",
                        f"there is no {name!r}; {suggestion(name, there)}",
                    )
            labels = one.problems or [*parts]
            ends = [
                end
                for correction in one.corrections
                for end in (correction.above, correction.below)
            ]
            for key, values in (
                ("x_factor", one.x_factor),
                *(("corrections", end) for end in ends),
            ):
                if len(values) not in (1, len(labels)):
                    raise self.fail(
                        f"figure.curves[{i}].{key}",
                        f"must have one number, or {len(labels)} for its problems",
                    )
            if (one.component or 1) > (fewest := min(parts[label] for label in labels)):
                raise self.fail(
                    f"figure.curves[{i}].component", f"must be at most {fewest}"
                )

    def _with_references(
        self, run: RunOptions, plans: Sequence[ProblemPlan]
    ) -> list[ProblemPlan]:
        """Add to each problem its published values; warn of published values that fit no problem here."""
        owned: dict[str, list[Reference]] = {
            plan.problem.identity: [] for plan in plans
        }
        elsewhere = []
        for i, reference in enumerate(run.reference):
            try:
                problem = Problem(**reference.problem.tables())
            except ProblemError as error:
                self._leave_out(error, f"run.reference[{i}].problem.{error.key}")
                continue
            if problem.identity not in owned:
                elsewhere.append(f"{reference.label!r} of {problem.label}")
            owned.setdefault(problem.identity, []).append(reference)
        if elsewhere:
            self.remarks.append(
                f"published values of another problem are left out: {'; '.join(dict.fromkeys(elsewhere))}"
            )
        return [
            replace(plan, references=tuple(owned[plan.problem.identity]))
            for plan in plans
        ]


def _is_value(kind: str, tables: Mapping[str, JsonObject], name: str) -> bool:
    """Whether a list is one value of a parameter, and no axis of the grid."""
    try:
        model = None if kind == "model" else str(tables["model"].get("name"))
        item = get_registry().get(kind, str(tables[kind].get("name")), model).item
    except RegistryError:  # said when the problem is made
        return False
    return is_value(item, kind, name, tables[kind][name])


def _impossible(
    assumed: Sequence[JsonObject], plans: Sequence[ProblemPlan]
) -> ProblemError | None:
    """Why assumptions can be made of no problem, or None; on some problems an algorithm may be skipped."""
    for tables in assumed:
        errors = [attempt(assumed_problem, plan.problem, tables)[1] for plan in plans]
        if all(errors) and isinstance(errors[0], ProblemError):
            return errors[0]
    return None
