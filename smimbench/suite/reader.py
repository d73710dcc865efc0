"""Suites: TOML to problems, algorithms and cells, with every mistake named by file and key."""

from __future__ import annotations

import difflib
import hashlib
import itertools
import math
import re
import tomllib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from smimbench.files import canonical_json
from smimbench.interfaces import ParameterError
from smimbench.problem.problem import Problem, ProblemError
from smimbench.registry.metrics import find_metric, names_in_key
from smimbench.registry.parameters import (
    build,
    explain_validation,
    parameters_of,
    unknown_key,
)
from smimbench.registry.registry import Registry, RegistryError, get_registry

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

__all__ = [
    "Cell",
    "ProblemPlan",
    "Reference",
    "RunOptions",
    "Suite",
    "SuiteError",
    "load_suite",
    "shipped_suites",
]


class SuiteError(ValueError):
    """A suite is wrong; the message names the file, the key and what would be right."""

    def __init__(self, file: str, key: str, message: str) -> None:
        super().__init__(f"{file}: {key}: {message}" if key else f"{file}: {message}")


@dataclass(frozen=True)
class Reference:
    """Values of others, quoted with their source and drawn apart."""

    label: str
    source: str
    alpha: tuple[float, ...]
    value: tuple[float, ...]
    metric: str = "mse"
    component: int | None = None
    problem: int = 1


@dataclass(frozen=True)
class RunOptions:
    """The table ``[run]``: how cells are run and what is reported.

    Attributes
    ----------
    tolerance : float
        For the undamped residual of algorithms without a number of steps of their own.
    max_iterations : int
    timeout : float or None
        Seconds per cell on the algorithm's clock.
    metrics : tuple of str
    start : str
        ``"uninformed"`` (the algorithm's own), ``"informed"`` or ``"spectral"``.
    target : float
        Absolute error that counts as reached where theory says 0.
    dtype : str
    tf32 : bool
        Allow TF32 in the matrix products of float32 on an accelerator.
    draw : str
        Where inputs are drawn: ``"host"`` (the same bits on every backend), or ``"device"`` for runs so large that drawing
        and moving them would take longer than solving. On NumPy the device is the host.
    reference : tuple of Reference
    """

    tolerance: float = 1e-4
    max_iterations: int = 300
    timeout: float | None = None
    metrics: tuple[str, ...] = ("mse", "overlap")
    start: str = "uninformed"
    target: float = 1e-3
    dtype: str = "float64"
    tf32: bool = False
    draw: str = "host"
    reference: tuple[Reference, ...] = ()


@dataclass(frozen=True)
class ProblemPlan:
    """One problem of a suite with the grid it is run on."""

    problem: Problem
    tables: dict[str, dict[str, Any]]
    alphas: tuple[float, ...]
    dimensions: tuple[int, ...]
    label: str


_LEFT_OUT = {"tf32": False, "draw": "host"}
"""Fields that came later: at their usual value they are not part of a cell's identity, so older records keep their keys."""


@dataclass(frozen=True)
class Cell:
    """The unit of work, of failure, of storage and of distribution.

    Everything in it is plain data, so that a worker process can rebuild it from names and parameters.
    """

    problem: dict[str, dict[str, Any]]
    algorithm: dict[str, Any]
    alpha: float
    dimension: int
    replicate: int
    seed: int
    backend: str
    dtype: str
    tolerance: float
    max_iterations: int
    timeout: float | None
    start: str
    metrics: tuple[str, ...]
    tf32: bool = False
    draw: str = "host"
    problem_label: str = field(compare=False, default="")
    algorithm_label: str = field(compare=False, default="")

    def identity(self) -> dict[str, Any]:
        """What the key hashes: all that can change the result, and nothing else."""
        found = asdict(self)
        del found["problem_label"], found["algorithm_label"]
        for name, usual in _LEFT_OUT.items():
            if found[name] == usual:
                del found[name]
        return found

    @property
    def key(self) -> str:
        """Content address of the cell."""
        return hashlib.sha256(canonical_json(self.identity()).encode()).hexdigest()[:24]

    def rebuild(self, registry: Registry) -> tuple[Problem, Any]:
        """The problem and the algorithm, from names and parameters."""
        tables = {k: _without(spec, "version", "distribution") for k, spec in self.problem.items()}
        for kind, spec in self.problem.items():
            if "distribution" in spec:
                tables[kind]["name"] = f"{spec['distribution']}:{spec['name']}"
        problem = Problem(tables["model"], tables["channel"], tables["prior"], registry=registry)
        return problem, build_algorithm(self.algorithm, problem, registry)


@dataclass(frozen=True)
class Suite:
    """A validated suite."""

    name: str
    file: str
    text: str
    title: str
    description: str
    reference: str
    plans: tuple[ProblemPlan, ...]
    algorithms: tuple[dict[str, Any], ...]
    seeds: int
    seed: int
    run: RunOptions
    overrides: tuple[str, ...] = ()
    only: tuple[tuple[str, str], ...] = ()
    plugins: bool = False

    @property
    def chosen_plans(self) -> tuple[ProblemPlan, ...]:
        """The problems that ``--only problem=...`` leaves."""
        wanted = [value for key, value in self.only if key == "problem"]
        return tuple(
            plan for plan in self.plans if not wanted or any(value in plan.label for value in wanted)
        )

    def cells(self, backend: str = "numpy", registry: Registry | None = None) -> list[Cell]:
        """All cells, replicates outermost, so that a run that is stopped early has every point with few seeds."""
        registry = registry or get_registry()
        reasons = [getattr(plan.problem.prior, "theory_only", None) for plan in self.plans]
        if all(reasons):
            raise SuiteError(self.file, "problem.prior", str(reasons[0]))
        plans = [plan for plan, reason in zip(self.plans, reasons) if not reason]
        cells = []
        labels = {table["label"] for table in self.algorithms}
        measured = names_in_key(self.run.metrics, registry)
        for replicate in range(self.seeds):
            for plan, dimension in _pairs(plans):
                for alpha, table in itertools.product(plan.alphas, self.algorithms):
                    cell = Cell(
                        problem=plan.problem.spec,
                        algorithm=table["spec"],
                        alpha=alpha,
                        dimension=dimension,
                        replicate=replicate,
                        seed=self.seed,
                        backend=backend,
                        dtype=self.run.dtype,
                        tolerance=self.run.tolerance,
                        max_iterations=self.run.max_iterations,
                        timeout=self.run.timeout,
                        start=self.run.start,
                        # Those of the trajectory are always measured; only the others make another cell.
                        metrics=measured,
                        tf32=self.run.tf32,
                        draw=self.run.draw,
                        problem_label=plan.label,
                        algorithm_label=table["label"],
                    )
                    if _selected(cell, self.only, labels):
                        cells.append(cell)
        return cells


def build_algorithm(spec: dict[str, Any], problem: Problem, registry: Registry) -> Any:
    """An algorithm from its name and parameters.

    Raises
    ------
    RegistryError, ParameterError
    """
    name = spec["name"] if "distribution" not in spec else f"{spec['distribution']}:{spec['name']}"
    entry = registry.get("algorithm", name, problem.model.name)
    return build(entry.item, "algorithm", _without(spec, "name", "version", "distribution"))


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
    name: str | Path,
    overrides: Iterable[str] = (),
    only: Iterable[str] = (),
    *,
    registry: Registry | None = None,
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
) -> Suite:
    """Check the text of a suite; ``path`` gives its name and is what errors mention. See ``load_suite``."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SuiteError(str(path), "", f"not valid TOML: {error}") from None
    given = tuple(overrides)
    for override in given:
        _override(document, override, str(path))
    chosen = tuple(_condition(item) for item in only)
    return _Reader(path, text, registry or get_registry()).suite(document, given, chosen)


# -- reading ------------------------------------------------------------------------------------------------------


def _schema() -> Any:
    import pydantic

    base = pydantic.ConfigDict(extra="forbid", strict=True)

    def make(_name: str, **fields: Any) -> Any:
        return pydantic.create_model(_name, __config__=base, **fields)

    suite = make(
        "suite",
        title=(str, ""),
        reference=(str, ""),
        description=(str, ""),
        plugins=(bool, False),
    )
    axes: dict[str, Any] = {
        "alpha": (float | list[float] | None, None),
        "dimension": (int | list[int] | None, None),
    }
    own_grid = make("grid", **axes)
    problem = make(
        "problem",
        model=(dict[str, Any] | str, ...),
        channel=(dict[str, Any] | str, ...),
        prior=(dict[str, Any] | str, ...),
        label=(str, ""),
        grid=(own_grid, own_grid()),
    )
    grid = make("grid", **axes, seeds=(int, 1), seed=(int, 0), max_cells=(int, 100_000))
    reference = make(
        "reference",
        label=(str, ...),
        source=(str, ...),
        alpha=(list[float], ...),
        value=(list[float], ...),
        metric=(str, "mse"),
        component=(int | None, None),
        problem=(int, 1),
    )
    run = make(
        "run",
        tolerance=(float, 1e-4),
        max_iterations=(int, 300),
        timeout=(float | None, None),
        metrics=(list[str], ["mse", "overlap"]),
        start=(Literal["uninformed", "informed", "spectral"], "uninformed"),
        target=(float, 1e-3),
        dtype=(Literal["float64", "float32"], "float64"),
        tf32=(bool, False),
        draw=(Literal["host", "device"], "host"),
        reference=(_list_of(reference), []),
    )
    return make(
        "document",
        suite=(suite, suite()),
        problem=(problem | None, None),
        problems=(_list_of(problem), []),
        grid=(grid, grid()),
        algorithms=(list[dict[str, Any]], []),
        run=(run, run()),
    )


def _list_of(kind: Any) -> Any:
    """``list[kind]`` for a type that is made at run time."""
    return list.__class_getitem__(kind)


class _Reader:
    def __init__(self, path: Path, text: str, registry: Registry) -> None:
        self.path, self.text, self.registry = path, text, registry
        self.file = str(path)

    def fail(self, key: str, message: str) -> SuiteError:
        return SuiteError(self.file, key, message)

    def _drop_ins(self) -> None:
        """Load ``./plugins/*.py`` of the working folder, because the suite asks for it."""
        folder = Path("plugins")
        if not any(folder.glob("*.py")):
            raise self.fail("suite.plugins", f"is true, but there is no ./plugins/*.py in {Path.cwd()}")
        self.registry.add(folder)

    def suite(
        self, document: dict[str, Any], overrides: tuple[str, ...], only: tuple[tuple[str, str], ...]
    ) -> Suite:
        import pydantic

        schema = _schema()
        try:
            read = schema.model_validate(document)
        except pydantic.ValidationError as error:
            raise self._explain(error, schema) from None
        if read.suite.plugins:
            self._drop_ins()
        if bool(read.problem) == bool(read.problems):
            raise self.fail("problem", "give either one [problem] or several [[problems]]")
        grid, run = read.grid, read.run
        seeds = self._at_least("grid.seeds", grid.seeds, 1)
        self._at_least("grid.seed", grid.seed, 0)
        self._at_least("run.max_iterations", run.max_iterations, 1)
        for key in ("tolerance", "target", "timeout"):
            value = getattr(run, key)
            if value is not None and not value > 0:
                raise self.fail(f"run.{key}", f"must be > 0, got {value}")
        written = (
            [("problem", read.problem)]
            if read.problem
            else [(f"problems[{i}]", p) for i, p in enumerate(read.problems)]
        )
        for name in ("alpha", "dimension"):
            # An axis that nobody reads would be a setting that does nothing.
            if getattr(grid, name) is not None and all(getattr(e.grid, name) is not None for _, e in written):
                raise self.fail(
                    f"grid.{name}",
                    f"is used by no problem; each has its own, the first in {written[0][0]}.grid.{name}",
                )
        plans: list[ProblemPlan] = []
        for key, entry in written:
            own_alphas = self._alphas(*self._axis("alpha", entry, key, grid))
            own_dims = self._dimensions(*self._axis("dimension", entry, key, grid))
            variants = list(self._variants(entry, key, grid.max_cells))
            total = len(variants) * len(own_alphas) * len(own_dims) * seeds * max(1, len(read.algorithms))
            self._check_size(total, grid.max_cells)
            for tables, differing in variants:
                problem = self._problem(tables, key)
                label = entry.label or problem.label
                if entry.label and differing:
                    label += " (" + ", ".join(f"{k}={v}" for k, v in differing.items()) + ")"
                plans.append(ProblemPlan(problem, tables, own_alphas, own_dims, label))
        algorithms = tuple(self._algorithm(table, i, plans) for i, table in enumerate(read.algorithms))
        labels = [table["label"] for table in algorithms]
        for i, label in enumerate(labels):
            if label in labels[:i]:
                raise self.fail(
                    f"algorithms[{i}].label", f"{label!r} is used twice; give each a label of its own"
                )
        if run.tf32 and run.dtype != "float32":
            raise self.fail("run.tf32", 'needs run.dtype = "float32"')
        for i, name in enumerate(run.metrics):
            self._metric(f"run.metrics[{i}]", name, plans)
        references = []
        for i, entry in enumerate(run.reference):
            self._metric(f"run.reference[{i}].metric", entry.metric, plans)
            if len(entry.alpha) != len(entry.value):
                raise self.fail(
                    f"run.reference[{i}].value",
                    f"must have as many numbers as alpha ({len(entry.alpha)}), got {len(entry.value)}",
                )
            if not 1 <= entry.problem <= len(plans):
                raise self.fail(
                    f"run.reference[{i}].problem", f"must be between 1 and {len(plans)}, got {entry.problem}"
                )
            references.append(
                Reference(
                    entry.label,
                    entry.source,
                    tuple(entry.alpha),
                    tuple(entry.value),
                    entry.metric,
                    entry.component,
                    entry.problem,
                )
            )
        options = RunOptions(
            tolerance=run.tolerance,
            max_iterations=run.max_iterations,
            timeout=run.timeout,
            metrics=tuple(run.metrics),
            start=run.start,
            target=run.target,
            dtype=run.dtype,
            tf32=run.tf32,
            draw=run.draw,
            reference=tuple(references),
        )
        return Suite(
            name=self.path.stem,
            file=self.file,
            text=self.text,
            title=read.suite.title or self.path.stem,
            description=read.suite.description,
            reference=read.suite.reference,
            plans=tuple(plans),
            algorithms=algorithms,
            seeds=seeds,
            seed=grid.seed,
            run=options,
            overrides=overrides,
            only=only,
            plugins=read.suite.plugins,
        )

    def _explain(self, error: Any, schema: Any) -> SuiteError:
        first = error.errors(include_url=False)[0]
        key, message = explain_validation(error)
        if first["type"] == "extra_forbidden":
            model = schema
            for part in first["loc"][:-1]:
                if isinstance(part, int):
                    continue
                annotation = (
                    model.model_fields[part].annotation
                    if part in getattr(model, "model_fields", {})
                    else model
                )
                inner = [
                    a
                    for a in (annotation, *getattr(annotation, "__args__", ()))
                    if hasattr(a, "model_fields")
                ]
                model = inner[0] if inner else model
            message = unknown_key(str(first["loc"][-1]), model.model_fields)
        return self.fail(key, message)

    def _at_least(self, key: str, value: int, smallest: int) -> int:
        if value < smallest:
            raise self.fail(key, f"must be at least {smallest}, got {value}")
        return value

    def _check_size(self, size: int, largest: int) -> None:
        if size > largest:
            raise self.fail(
                "grid",
                f"{size:,} cells are more than grid.max_cells = {largest:,}; shorten an axis or raise it",
            )

    def _axis(self, name: str, entry: Any, key: str, grid: Any) -> tuple[str, Any]:
        """Where an axis is written: in the problem's own grid, or in the common one."""
        if getattr(entry.grid, name) is not None:
            return f"{key}.grid.{name}", getattr(entry.grid, name)
        if getattr(grid, name) is None:
            raise self.fail(f"grid.{name}", "is missing")
        return f"grid.{name}", getattr(grid, name)

    def _alphas(self, key: str, value: float | list[float]) -> tuple[float, ...]:
        values = value if isinstance(value, list) else [value]
        if not values:
            raise self.fail(key, "must not be empty")
        for i, alpha in enumerate(values):
            if not (alpha > 0 and math.isfinite(alpha)):
                raise self.fail(
                    f"{key}[{i}]" if isinstance(value, list) else key, f"must be > 0 and finite, got {alpha}"
                )
        return tuple(float(a) for a in values)

    def _dimensions(self, key: str, value: int | list[int]) -> tuple[int, ...]:
        values = value if isinstance(value, list) else [value]
        if not values:
            raise self.fail(key, "must not be empty")
        for i, dimension in enumerate(values):
            self._at_least(f"{key}[{i}]" if isinstance(value, list) else key, dimension, 2)
        return tuple(values)

    def _variants(
        self, entry: Any, key: str, largest: int
    ) -> Iterable[tuple[dict[str, dict[str, Any]], dict[str, Any]]]:
        """Every combination of the parameters that were given as lists."""
        tables: dict[str, dict[str, Any]] = {}
        axes: list[tuple[str, str, list[Any]]] = []
        for kind in ("model", "channel", "prior"):
            written = getattr(entry, kind)
            tables[kind] = {"name": written} if isinstance(written, str) else dict(written)
            for name, value in tables[kind].items():
                if isinstance(value, list):
                    if not value:
                        raise self.fail(f"{key}.{kind}.{name}", "must not be an empty list")
                    axes.append((kind, name, value))
        self._check_size(math.prod(len(values) for _, _, values in axes), largest)
        for combination in itertools.product(*(values for _, _, values in axes)):
            chosen = {kind: dict(table) for kind, table in tables.items()}
            for (kind, name, _), value in zip(axes, combination):
                chosen[kind][name] = value
            yield chosen, {name: value for (_, name, _), value in zip(axes, combination)}

    def _problem(self, tables: dict[str, dict[str, Any]], key: str) -> Problem:
        try:
            return Problem(tables["model"], tables["channel"], tables["prior"], registry=self.registry)
        except ProblemError as error:
            raise self.fail(f"{key}.{error.key}", error.message) from None

    def _metric(self, key: str, name: str, plans: Sequence[ProblemPlan]) -> None:
        """Refuse a metric that is unknown or does not work for a model of the suite."""
        for model in {plan.problem.model.name for plan in plans}:
            try:
                find_metric(name, model, self.registry)
            except RegistryError as error:
                raise self.fail(key, str(error)) from None

    def _algorithm(self, table: dict[str, Any], index: int, plans: Sequence[ProblemPlan]) -> dict[str, Any]:
        key = f"algorithms[{index}]"
        params = dict(table)
        name = params.pop("name", None)
        if not isinstance(name, str):
            raise self.fail(
                f"{key}.name", "is missing" if name is None else f"must be a string, got {name!r}"
            )
        label = params.pop("label", name)
        if not isinstance(label, str) or not label:
            raise self.fail(f"{key}.label", f"must be a non-empty string, got {label!r}")
        try:
            entry = self.registry.get("algorithm", name)
            item = build(entry.item, "algorithm", params)
        except RegistryError as error:
            raise self.fail(f"{key}.name", str(error)) from None
        except ParameterError as error:
            raise self.fail(f"{key}.{error.key}", error.message) from None
        for plan in plans:
            if not entry.fits(plan.problem.model.name):
                raise self.fail(
                    f"{key}.name",
                    f"algorithm {name!r} works for {', '.join(entry.models)}, not for {plan.problem.model.name!r}",
                )
        spec = {"name": entry.name, "version": entry.item.version, **parameters_of("algorithm", item)}
        if entry.distribution != "smimbench":
            spec["distribution"] = entry.distribution
        return {"label": label, "spec": spec}


def _override(document: dict[str, Any], text: str, file: str) -> None:
    """Set one key of a parsed suite from ``path.to.key=value``."""
    path, equals, value = text.partition("=")
    # Messages write problems[0]; both that and problems.0 reach in.
    keys = [part.strip() for part in re.sub(r"\[(\d+)\]", r".\1", path).split(".")]
    if not equals or not all(keys):
        raise SuiteError("--set", text, "must look like problem.prior.rho=0.2")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()  # a bare word is a string, so that a shell needs no nested quotes
    node: Any = document
    for i, key in enumerate(keys[:-1]):
        where = ".".join(keys[: i + 1])
        if isinstance(node, list):
            node = _pick(node, key, f"--set {text}", where)
        elif isinstance(node.get(key), str) and key in ("model", "channel", "prior"):
            node[key] = {"name": node[key]}
            node = node[key]
        else:
            node = node.setdefault(key, {})
        if not isinstance(node, (dict, list)):
            raise SuiteError(file, where, f"is not a table, so --set {text} cannot reach into it")
    if isinstance(node, list):
        raise SuiteError(file, ".".join(keys), f"name one of the {len(node)} entries of this list")
    node[keys[-1]] = parsed


def _pick(items: list[Any], key: str, file: str, where: str) -> Any:
    """An entry of a list of tables, by position from 0 or by its name or label."""
    for item in items:
        if isinstance(item, dict) and key in (item.get("label"), item.get("name")):
            return item
    if key.isdigit() and int(key) < len(items):
        return items[int(key)]
    names = [
        str(item.get("label", item.get("name", i))) for i, item in enumerate(items) if isinstance(item, dict)
    ]
    raise SuiteError(file, where, f"no such entry; choose from {', '.join(names) or 'none'}")


_CONDITIONS = ("algorithm", "alpha", "dimension", "seed", "problem")


def _condition(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or key not in _CONDITIONS:
        raise SuiteError("--only", text, f"must look like algorithm=gamp; keys are {', '.join(_CONDITIONS)}")
    if key in ("alpha", "dimension", "seed"):
        try:
            float(value)
        except ValueError:
            raise SuiteError("--only", text, f"{key} must be a number") from None
    return key, value


def _selected(cell: Cell, only: Sequence[tuple[str, str]], labels: Container[str]) -> bool:
    """Conditions on one key are alternatives, on different keys they must all hold; a label goes before a name."""
    for key in {k for k, _ in only}:
        values = [v for k, v in only if k == key]
        if key == "algorithm":
            names = [v for v in values if v not in labels]
            fits = cell.algorithm_label in values or cell.algorithm["name"] in names
        elif key == "problem":
            fits = any(v in cell.problem_label for v in values)
        else:
            number = {"alpha": cell.alpha, "dimension": cell.dimension, "seed": cell.replicate}[key]
            fits = any(math.isclose(number, float(v), rel_tol=1e-12) for v in values)
        if not fits:
            return False
    return True


def _pairs(plans: Sequence[ProblemPlan]) -> Iterable[tuple[ProblemPlan, int]]:
    return ((plan, dimension) for plan in plans for dimension in plan.dimensions)


def _without(table: dict[str, Any], *names: str) -> dict[str, Any]:
    return {k: v for k, v in table.items() if k not in names}
