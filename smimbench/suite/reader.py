"""From the TOML of a suite to problems, algorithms, grid axes and seeds, with every mistake named by file and key."""

from __future__ import annotations

import difflib
import itertools
import math
import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pydantic

from smimbench.derive.prior import why_theory_only
from smimbench.files import canonical_json, printable
from smimbench.problem.problem import CODE, ItemError, Problem, ProblemError, explained, specification
from smimbench.registry.metrics import find_metric
from smimbench.registry.parameters import build, explain_validation, unknown_key
from smimbench.registry.registry import Registry, RegistryError, get_registry
from smimbench.suite.cells import ProblemPlan, Suite, Unmade
from smimbench.suite.errors import SuiteError
from smimbench.suite.extends import merged, toml_text
from smimbench.suite.overrides import check_condition, override, read_condition, selects
from smimbench.suite.schema import STARTS, Document, distinct, table_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from smimbench.suite.overrides import Condition
    from smimbench.suite.schema import AlgorithmTable, ProblemTable, Reference, RunOptions

__all__ = ["find_suite", "load_suite", "parse_suite", "shipped_suites"]


RESERVED = ("theory",)
"""Names of folders under ``--results`` that hold something else than a suite's records."""


def shipped_suites() -> dict[str, Path]:
    """Names and paths of the suites that come with smimbench."""
    here = Path(__file__).resolve().parent.parent
    for folder in (here / "suites", here.parent / "suites"):
        if folder.is_dir():
            return {path.stem: path for path in sorted(folder.glob("*.toml"))}
    return {}


def find_suite(name: str) -> Path:
    """Path of a suite given by path or by the name of a shipped one."""
    path = Path(name)
    if path.suffix == ".toml" or path.is_file():
        if not path.is_file():
            raise SuiteError(name, "", "no such file")
        return path
    known = shipped_suites()
    if name in known:
        return known[name]
    close = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {close[0]!r}?" if close else f"shipped suites are {', '.join(known)}"
    raise SuiteError(name, "", f"no such file and no shipped suite; {hint}")


def load_suite(
    name: str | Path, overrides: Iterable[str] = (), only: Iterable[str] = (), *, registry: Registry | None = None
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
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SuiteError(str(path), "", f"cannot be read: {error}") from None
    return parse_suite(path, text, overrides, only, registry=registry)


def parse_suite(
    path: Path,
    text: str,
    overrides: Iterable[str] = (),
    only: Iterable[str] = (),
    *,
    registry: Registry | None = None,
    stored: bool = False,
) -> Suite:
    """Check the text of a suite; ``path`` gives its name and is what errors mention. See ``load_suite``.

    ``stored`` is for the text in a folder of results, which may come from anybody, or from before a plugin was taken away: no
    code of the working folder is run, and what cannot be made here is left out and named in ``Suite.remarks``.
    """
    file = str(path)
    if not re.fullmatch(r"[^.][^/\\]*", path.stem) or printable(path.stem) != path.stem or path.stem in RESERVED:
        reserved = ", ".join(map(repr, RESERVED))
        raise SuiteError(
            file, "", f"the name of a suite is that of its folder: not with a dot in front, and not {reserved}"
        )
    try:
        document = _document(file, text)
        if "extends" in document:
            if stored:
                raise SuiteError(file, "extends", "is not followed in stored results, which hold the whole suite")
            document = _with_base(path, document)
            text = toml_text(document)
        given = tuple(overrides)
        for one in given:
            override(document, one, file)
        if "extends" in document:
            raise SuiteError(file, "extends", "cannot be set from outside; name that suite instead")
        chosen = tuple(read_condition(one) for one in only)
        return _Reader(path, text, registry or get_registry(), stored).suite(document, given, chosen)
    except RecursionError:
        raise SuiteError(file, "", "lists or tables are nested too deep") from None
    except OverflowError:
        raise SuiteError(file, "", "holds a number that is too large") from None
    except ValueError as error:  # more digits than Python reads
        if isinstance(error, (SuiteError, ProblemError)):
            raise
        raise SuiteError(file, "", f"not valid TOML: {printable(error, 200)}") from None


def _document(file: str, text: str) -> dict[str, Any]:
    """The text of a suite as tables and lists."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SuiteError(file, "", f"not valid TOML: {error}") from None


def _with_base(path: Path, document: dict[str, Any], seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """A suite with all that it takes over from the one that it extends, and that one from another."""
    if "extends" not in document:
        return document
    file, name = str(path), document.pop("extends")
    seen = (*seen, path.resolve())
    if not isinstance(name, str) or not name:
        raise SuiteError(file, "extends", f"must be the name or path of a suite, got {name!r}")
    try:
        base = find_suite(str(path.parent / name) if name.endswith(".toml") else name)
        text = base.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, SuiteError) as error:
        raise SuiteError(file, "extends", printable(error, 300)) from None
    if base.resolve() in seen:
        raise SuiteError(file, "extends", f"{name!r} leads back to itself")
    return merged(_with_base(base, _document(str(base), text), seen), document)


class _Reader:
    """Turns a document into a suite; what ``schema`` cannot know of items and of other keys is checked here."""

    def __init__(self, path: Path, text: str, registry: Registry, stored: bool) -> None:
        self.path, self.text, self.registry, self.stored = path, text, registry, stored
        self.file = str(path)
        self.remarks: list[str] = []
        self.unmade: list[Unmade] = []
        self.failures: list[SuiteError] = []

    def fail(self, key: str, message: str) -> SuiteError:
        return SuiteError(self.file, key, message)

    def suite(self, document: dict[str, Any], overrides: tuple[str, ...], only: tuple[Condition, ...]) -> Suite:
        try:
            read = Document.model_validate(document)
        except pydantic.ValidationError as error:
            raise self._explain(error, document) from None
        if read.suite.plugins and self.stored:
            if len(self.registry.paths) == 0:
                self.remarks.append(
                    "its suite asks for ./plugins, which are not run for stored results: --plugins does that"
                )
        elif read.suite.plugins:
            self._drop_ins()
        plans = self._plans(read)
        if not plans:
            raise self.failures[0] if self.failures else self.fail("problem", "; ".join(self.remarks))
        self._refuse_same_cells(plans)
        algorithms = self._algorithms(read.algorithms, plans)
        self._check_run(read.run, plans)
        plans = self._with_references(read.run, plans)
        known = {
            "algorithm": [word for table in algorithms for word in (table["label"], table["spec"]["name"])],
            "problem": [*(plan.label for _, plan in plans), *(one.label for one in self.unmade)],
            "alpha": sorted({alpha for _, plan in plans for alpha in plan.alphas}),
            "dimension": sorted({dimension for _, plan in plans for dimension in plan.dimensions}),
            "seed": range(max(max(plan.seeds) for _, plan in plans)),
        }
        for condition in only:
            check_condition(condition, known)
        return Suite(
            name=self.path.stem,
            file=self.file,
            text=self.text,
            title=read.suite.title or self.path.stem,
            description=read.suite.description,
            reference=read.suite.reference,
            plans=tuple(plan for _, plan in plans),
            algorithms=algorithms,
            seed=read.grid.seed,
            run=read.run,
            overrides=overrides,
            only=only,
            plugins=read.suite.plugins,
            duration=read.suite.duration,
            remarks=tuple(self.remarks),
            unmade=tuple(one for one in self.unmade if selects(only, problem=one.label)),
            left_out=tuple(map(str, self.failures)),
        )

    def _explain(self, error: pydantic.ValidationError, document: dict[str, Any]) -> SuiteError:
        """The first mistake as one line."""
        first = error.errors(include_url=False)[0]
        key, message = explain_validation(error)
        if first["type"] == "extra_forbidden":
            message = unknown_key(str(first["loc"][-1]), table_at(first["loc"][:-1]).model_fields)
            if first["loc"][-1] == "extends":
                message = "must stand above the first table"
        if key.endswith("[0]") and not isinstance(_value_at(document, first["loc"][:-1]), list):
            key = key.removesuffix("[0]")  # one value that serves as an axis
        return self.fail(key, message)

    def _drop_ins(self) -> None:
        """Load ``./plugins/*.py`` of the working folder, because the suite asks for it."""
        folder = Path("plugins")
        if not any(folder.glob("*.py")):
            raise self.fail("suite.plugins", f"is true, but there is no ./plugins/*.py in {Path.cwd()}")
        self.registry.add(folder)

    # -- problems -------------------------------------------------------------------------------------------------

    def _plans(self, read: Document) -> list[tuple[str, ProblemPlan]]:
        """Every problem with its grid, and the key where it is written."""
        if bool(read.problem) == bool(read.problems):
            raise self.fail("problem", "give either one [problem] or several [[problems]]")
        written = [(f"problems[{i}]", table) for i, table in enumerate(read.problems)]
        if read.problem:
            written = [("problem", read.problem)]
        for name in ("alpha", "dimension", "seeds"):
            # An axis that nobody reads would be a setting that does nothing.
            if getattr(read.grid, name) is not None and all(getattr(t.grid, name) for _, t in written):
                raise self.fail(
                    f"grid.{name}", f"is used by no problem; each has its own, the first in {written[0][0]}.grid.{name}"
                )
        plans = []
        for key, table in written:
            alphas, dimensions = (self._axis(name, table, read) for name in ("alpha", "dimension"))
            variants = list(self._variants(table, key, read.grid.max_cells))
            seeds = self._seeds(table, key, read, len(dimensions))
            self._check_size(
                len(variants) * len(alphas) * sum(seeds) * max(1, len(read.algorithms)), read.grid.max_cells
            )
            for tables, differing in variants:
                label = table.label
                if label and differing:
                    label += " (" + ", ".join(f"{k}={v}" for k, v in differing.items()) + ")"
                try:
                    problem = Problem(**tables, registry=self.registry)
                    with explained("prior"):
                        theory_only = why_theory_only(problem.prior, problem.components)
                except ProblemError as error:
                    self._leave_out(error, f"{key}.{error.key}")
                    if isinstance(error, ItemError):
                        label = label or " ".join(str(one["name"]) for one in tables.values())
                        self.unmade.append(Unmade(label, tables, str(error)))
                    continue
                label = label or problem.label
                plans.append((key, ProblemPlan(problem, tables, alphas, dimensions, label, seeds, theory_only)))
        return plans

    def _check_size(self, size: int, largest: int) -> None:
        if size > largest:
            raise self.fail(
                "grid", f"{size:,} cells are more than grid.max_cells = {largest:,}; shorten an axis or raise it"
            )

    def _axis(self, name: str, table: ProblemTable, read: Document) -> tuple[Any, ...]:
        """Values of an axis: from the problem's own grid, or from the common one."""
        values: tuple[Any, ...] | None = getattr(table.grid, name) or getattr(read.grid, name)
        if values is None:
            raise self.fail(f"grid.{name}", "is missing")
        return values

    def _seeds(self, table: ProblemTable, key: str, read: Document, dimensions: int) -> tuple[int, ...]:
        """Replicates at each dimension."""
        where = "grid.seeds" if table.grid.seeds is None else f"{key}.grid.seeds"
        seeds = table.grid.seeds or read.grid.seeds or (1,)
        if len(seeds) not in (1, dimensions):
            raise self.fail(
                where,
                f"has {len(seeds)} numbers for {dimensions} dimensions; give one for each dimension, or one for all",
            )
        return seeds * dimensions if len(seeds) == 1 else seeds

    def _variants(
        self, table: ProblemTable, key: str, largest: int
    ) -> Iterator[tuple[dict[str, dict[str, Any]], dict[str, Any]]]:
        """Every combination of the parameters that were given as lists."""
        tables = table.tables()
        axes: list[tuple[str, str, list[Any]]] = []
        for kind, parameters in tables.items():
            for name, value in parameters.items():
                if isinstance(value, list):
                    if not value:
                        raise self.fail(f"{key}.{kind}.{name}", "must not be an empty list")
                    axes.append((kind, name, value))
        self._check_size(math.prod(len(values) for _, _, values in axes), largest)
        for kind, name, values in axes:
            try:
                distinct(values)
            except ValueError as error:
                raise self.fail(f"{key}.{kind}.{name}", str(error)) from None
        for combination in itertools.product(*(values for _, _, values in axes)):
            chosen = {kind: dict(table) for kind, table in tables.items()}
            for (kind, name, _), value in zip(axes, combination):
                chosen[kind][name] = value
            yield chosen, {name: value for (_, name, _), value in zip(axes, combination)}

    def _leave_out(self, error: ProblemError, key: str) -> None:
        """Skip what cannot be made where its own code is at fault, or in stored results; raise otherwise."""
        found = self.fail(key, error.message)
        if isinstance(error, ItemError):
            self.failures.append(found)
        elif not self.stored:
            raise found from None
        self.remarks.append(f"left out: {found}")

    def _refuse_same_cells(self, plans: Sequence[tuple[str, ProblemPlan]]) -> None:
        """Two problems under one label, or one point under two labels, could not be told apart in a table."""
        labels: dict[str, str] = {}
        points: dict[tuple[str, float, int], str] = {}
        for key, plan in plans:
            if plan.label in labels:
                raise self.fail(
                    f"{key}.label",
                    f"{plan.label!r} is the label of {labels[plan.label]} too; give each a label of its own",
                )
            labels[plan.label] = key
            for alpha, dimension in itertools.product(plan.alphas, plan.dimensions):
                first = points.setdefault((plan.problem.identity, alpha, dimension), plan.label)
                if first != plan.label:
                    raise self.fail(
                        key,
                        f"is the same problem as {first!r} ({labels[first]}) at alpha = {alpha:g}, dimension = {dimension}; "
                        "remove one",
                    )

    # -- algorithms -----------------------------------------------------------------------------------------------

    def _algorithms(
        self, tables: Sequence[AlgorithmTable], plans: Sequence[tuple[str, ProblemPlan]]
    ) -> tuple[dict[str, Any], ...]:
        """Label and full specification of every algorithm."""
        found: list[dict[str, Any]] = []
        for i, table in enumerate(tables):
            key = f"algorithms[{i}]"
            label = table.name if table.label is None else table.label
            try:
                spec = self._algorithm(table, plans)
            except ProblemError as error:
                self._leave_out(error, f"{key}.{error.key.partition('.')[2]}")
                continue
            for j, other in enumerate(found):
                if label == other["label"]:
                    raise self.fail(f"{key}.label", f"{label!r} is used twice; give each a label of its own")
                if canonical_json(spec) == canonical_json(other["spec"]):
                    raise self.fail(key, f"is the same as algorithms[{j}], {other['label']!r}; remove one")
            found.append({"label": label, "spec": spec})
        return tuple(found)

    def _algorithm(self, table: AlgorithmTable, plans: Sequence[tuple[str, ProblemPlan]]) -> dict[str, Any]:
        """Name, version and all parameters of an algorithm."""
        with explained("algorithm"):
            entry = self.registry.get("algorithm", table.name)
            item = build(entry.item, "algorithm", table.model_extra or {})
        models = list(dict.fromkeys(plan.problem.model.name for _, plan in plans))
        if not any(map(entry.fits, models)):  # one that works for some problems is skipped on the others
            wrong = f"works for {', '.join(entry.models)}, not for {' or '.join(map(repr, models))}"
            raise ProblemError("algorithm.name", f"algorithm {table.name!r} {wrong}")
        return specification(entry, item)

    # -- run options ----------------------------------------------------------------------------------------------

    def _check_run(self, run: RunOptions, plans: Sequence[tuple[str, ProblemPlan]]) -> None:
        """Check run options against the problems and the registry."""
        models = {plan.problem.model.name for _, plan in plans}
        for i, name in enumerate(run.metrics):
            self._check_metric(f"run.metrics[{i}]", name, models)
        self._check_start(run.start, models)
        for i, reference in enumerate(run.reference):
            self._check_metric(f"run.reference[{i}].metric", reference.metric, models)

    def _with_references(
        self, run: RunOptions, plans: Sequence[tuple[str, ProblemPlan]]
    ) -> list[tuple[str, ProblemPlan]]:
        """The plans, each with the published values of exactly its problem; a remark names those of no problem here."""
        owned: dict[str, list[Reference]] = {}
        elsewhere: dict[str, list[str]] = {}
        known = {plan.problem.identity for _, plan in plans}
        for i, reference in enumerate(run.reference):
            try:
                problem = Problem(**reference.problem.tables(), registry=self.registry)
            except ProblemError as error:
                self._leave_out(error, f"run.reference[{i}].problem.{error.key}")
                continue
            if problem.identity in known:
                owned.setdefault(problem.identity, []).append(reference)
            else:
                difference = min((_differences(problem, plan.problem) for _, plan in plans), key=len)
                elsewhere.setdefault(", ".join(difference), []).append(repr(reference.label))
        if elsewhere:
            parts = [f"{', '.join(labels)} for {difference}" for difference, labels in elsewhere.items()]
            self.remarks.append(f"published values of another problem are left out: {'; '.join(parts)}")
        return [(key, replace(plan, references=tuple(owned.get(plan.problem.identity, ())))) for key, plan in plans]

    def _check_metric(self, key: str, name: str, models: set[str]) -> None:
        """Refuse a metric that is unknown or does not work for a model of the suite."""
        for model in models:
            try:
                find_metric(name, model, self.registry)
            except RegistryError as error:
                raise self.fail(key, str(error)) from None

    def _check_start(self, start: str, models: set[str]) -> None:
        """Accept the engine's own starts, or an algorithm that has a method ``start`` and fits every model."""
        if start in STARTS:
            return
        names = sorted({e.name for e in self.registry.entries("algorithm") if e.item.start is not None})
        try:
            if all(self.registry.get("algorithm", start, model).item.start is not None for model in models):
                return
        except RegistryError as error:
            if start in names:  # it exists, but not for every model
                raise self.fail("run.start", str(error)) from None
        raise self.fail(
            "run.start",
            f"must be {', '.join(map(repr, STARTS))} or the name of an algorithm with a method start "
            f"({', '.join(names) or 'none'}), got {start!r}",
        )


def _value_at(document: Any, location: Sequence[int | str]) -> Any:
    """What is written at a place of a document."""
    for part in location:
        document = document[part]
    return document


def _differences(wanted: Problem, here: Problem) -> list[str]:
    """``prior.rho = 0.5, not 0.3``: every parameter in which a problem differs from the one that is here."""
    one, other = (
        {
            f"{kind}.{key}": value
            for kind, spec in problem.spec.items()
            for key, value in spec.items()
            if key not in CODE
        }
        for problem in (wanted, here)
    )
    return [
        f"{key} = {one.get(key, 'unset')}, not {other.get(key, 'unset')}"
        for key in {**one, **other}
        if one.get(key) != other.get(key)
    ]
