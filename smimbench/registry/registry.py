"""The registry of items: imports shipped, installed and drop-in plugins, and finds their items, metrics among them, by name.

Each plugin is loaded in its own ``try``: one that fails is kept with its reason and harms nothing else.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import pluggy

from smimbench import hookspecs
from smimbench.files import (
    ForeseenError,
    attempt,
    documentation,
    error_line,
    suggestion,
)
from smimbench.interfaces import Capabilities, Item, Metric, ProblemLike
from smimbench.interfaces.item import describe, gives, with_defaults
from smimbench.registry.items import BASES, algorithm_class, contract_violation
from smimbench.registry.source import DROP_IN, source_of

KINDS = tuple(BASES)
PLURALS = {kind: f"{kind.removesuffix('s')}s" for kind in KINDS}
GROUP = "smimbench"
BUILT_IN = "smimbench"


class RegistryError(ForeseenError, LookupError):
    """Raised if the name of an item is unknown or ambiguous, or the item does not fit; the message says what would be right."""


@dataclass(frozen=True)
class Entry:
    """One registered item: its class, its package, and, if third-party, a hash of its code."""

    kind: str
    name: str
    item: type[Any]
    distribution: str
    source: str | None = None

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the models that the item supports."""
        capabilities: Capabilities = self.item.capabilities
        return capabilities.models

    def fits(self, model: str | None) -> bool:
        """Whether the item supports a model (None: any model)."""
        return model is None or "*" in self.models or model in self.models

    @property
    def derived(self) -> tuple[str, ...]:
        """Methods that the item lacks and the engine derives, and how it derives them."""
        base = BASES[self.kind]
        members = []
        for name, text in describe(base).items():
            _, _, derivation = text.partition("Derived: ")
            if derivation and not gives(base, self.item, name):
                members.append(
                    f"{name}: {derivation}".replace("`", "").removesuffix(".")
                )
        return tuple(members)

    @property
    def summary(self) -> str:
        """First line of the item's docstring."""
        return documentation(self.item).split("\n")[0]


@dataclass
class Plugin:
    """One plugin: its origin, its items, and the problems found when it was loaded."""

    name: str
    distribution: str
    version: str
    origin: str
    entries: list[Entry] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    failed: bool = False

    @property
    def status(self) -> str:
        """Status of the plugin in one word, for tables."""
        if self.failed:
            return "failed"
        return "loaded, with problems" if self.problems else "loaded"


class Registry:
    """All registered items by kind and name.

    Parameters
    ----------
    paths : iterable of str
        Files or folders of drop-in plugins.
    third_party : bool
        Whether to load installed third-party plugins and drop-ins; what ships with smimbench is always loaded.
    only : iterable of str or None
        Load the plugins of these distributions and what ships, and no code of any other; None: all.
    trace : callable or None
        Called with one line for every step of loading.

    Attributes
    ----------
    foreign_path : set of str
        Entries of ``sys.path`` that plugins have added.
    """

    def __init__(
        self,
        paths: Iterable[str] = (),
        *,
        third_party: bool = True,
        only: Iterable[str] | None = None,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self.foreign_path: set[str] = set()
        self._only = None if only is None else frozenset(only)
        self.paths = tuple(paths) if third_party else ()
        self.third_party = third_party
        self.plugins: list[Plugin] = []
        self._entries: list[Entry] = []
        self._trace = trace or (lambda line: None)
        self._manager = pluggy.PluginManager(hookspecs.PROJECT)
        self._manager.add_hookspecs(hookspecs)
        self._load_installed()
        for path in self.paths:
            self._load_path(Path(path))
        shipped = {e.kind for e in self._entries if e.distribution == BUILT_IN}
        missing = [PLURALS[kind] for kind in KINDS if kind not in shipped]
        if missing:
            raise RegistryError(
                f"the {' and '.join(missing)} of smimbench are not registered; "
                "install the package with pip install ., also after an update, instead of running it from the source folder"
            )

    def _load_installed(self) -> None:
        listed, error = attempt(importlib.metadata.entry_points, group=GROUP)
        if error is not None:  # of one package, which must not hide all others
            listed = self._readable_entry_points()
        points = [(point, *_name_and_version(point.dist)) for point in listed]
        points.sort(key=lambda p: (p[1] != BUILT_IN, p[1], p[0].name))
        loaded: set[tuple[str, str]] = set()
        for point, distribution, version in points:
            if (distribution, point.value) in loaded:
                continue
            if distribution == BUILT_IN or (
                self.third_party and self._is_allowed(distribution)
            ):
                loaded.add((distribution, point.value))
                plugin = Plugin(point.name, distribution, version, point.value)
                self._load(plugin, point.load)

    def _readable_entry_points(self) -> list[importlib.metadata.EntryPoint]:
        """Entry points of all packages with readable metadata; any other package is recorded as a failed plugin."""
        points: list[importlib.metadata.EntryPoint] = []
        for package in importlib.metadata.distributions():
            listed, error = attempt(getattr, package, "entry_points")
            if error is None:
                points += listed.select(group=GROUP)
            elif self.third_party:
                name, version = _name_and_version(package)
                plugin = Plugin(name, name, version, "entry_points.txt", failed=True)
                plugin.problems.append(
                    f"its entry_points.txt cannot be read: {error_line(error)}; install {name} again, or remove it"
                )
                self.plugins.append(plugin)
        return points

    def _load_path(self, path: Path) -> None:
        """Load drop-in plugins from a file, a package, or all files of a folder."""
        files = [path] if path.exists() else []
        if (path / "__init__.py").exists():
            files = [path / "__init__.py"]
        elif path.is_dir():
            files = sorted(path.glob("[!.]*.py"))
        if not files:
            plugin = Plugin(path.name, path.name, "", str(path), failed=True)
            plugin.problems.append(
                f"{path} is neither a file nor a folder with a *.py file"
            )
            self.plugins.append(plugin)
        for file in files:
            stem = file.parent.name if file.name == "__init__.py" else file.stem
            if self._is_allowed(stem):
                plugin = Plugin(stem, stem, "", str(file))
                self._load(plugin, functools.partial(_import_file, file, stem))

    @property
    def has_third_party(self) -> bool:
        """Whether this process has loaded third-party code."""
        return any(plugin.distribution != BUILT_IN for plugin in self.plugins)

    def _is_allowed(self, distribution: str) -> bool:
        return self._only is None or distribution in self._only

    def _load(self, plugin: Plugin, load: Callable[[], ModuleType]) -> None:
        self._trace(
            f"loading {plugin.name} of {plugin.distribution} from {plugin.origin}"
        )
        self.plugins.append(plugin)
        try:
            with self._restored_process(plugin):
                with _no_exit():
                    module = load()
                _require_hooks(module)
                loaded_before = self._manager.get_plugins()
                self._manager.register(
                    module, name=f"{plugin.distribution}:{plugin.name}:{plugin.origin}"
                )
                for kind in KINDS:
                    hook = self._manager.subset_hook_caller(
                        f"smimbench_register_{PLURALS[kind]}", loaded_before
                    )
                    hook(register=functools.partial(self._register, plugin, kind))
        except KeyboardInterrupt:
            raise
        # A plugin may raise anything, and must harm nothing else.
        except BaseException as error:
            plugin.failed = True
            reason = error_line(error).removeprefix("RegistryError: ")
            plugin.problems.append(_moved_module(error) or reason)
            self._entries = [e for e in self._entries if e not in plugin.entries]
            plugin.entries.clear()
        for problem in plugin.problems:
            self._trace(f"  {problem}")
        for entry in plugin.entries:
            self._trace(f"  {entry.kind} {entry.name}")

    @contextmanager
    def _restored_process(self, plugin: Plugin) -> Iterator[None]:
        """Context that moves a plugin's additions to ``sys.path`` to its end and undoes its changes to the environment."""
        environment, path = dict(os.environ), list(sys.path)
        try:
            yield
        finally:
            added = [entry for entry in sys.path if entry not in path]
            self.foreign_path.update(added)
            sys.path[:] = [*path, *added]
            # What a third-party plugin wants to find there is set again in processes of its own.
            is_guest = self._only is None and plugin.distribution != BUILT_IN
            if is_guest and dict(os.environ) != environment:
                os.environ.clear()
                os.environ.update(environment)

    def _register(self, plugin: Plugin, kind: str, item: type[Item]) -> None:
        if kind == "algorithm":
            item = algorithm_class(item)
        if not isinstance(item, type):
            raise RegistryError(
                f"{kind} {item!r} is not a class; register the class, not an instance"
            )
        if mistake := contract_violation(kind, item):
            raise RegistryError(f"{kind} {item.__name__}: {mistake}")
        item = with_defaults(BASES[kind], item)
        source = None if plugin.distribution == BUILT_IN else source_of(item)
        entry = Entry(kind, item.name, item, plugin.distribution, source)
        for clashing in self.entries(kind):
            if clashing.name != entry.name or not (
                "*" in (*clashing.models, *entry.models)
                or {*clashing.models} & {*entry.models}
            ):
                continue
            if clashing.distribution == entry.distribution:
                raise RegistryError(
                    f"{kind} {entry.name!r} is registered twice by {entry.distribution!r}; give each item its own name"
                )
            packages = [clashing.distribution, entry.distribution]
            names = " or ".join(f"'{package}:{entry.name}'" for package in packages)
            if BUILT_IN in packages:
                names = f"{entry.name!r} means the one of {BUILT_IN}, '{entry.distribution}:{entry.name}' this one"
            clash = (
                f"{kind} {entry.name!r} exists in {' and in '.join(packages)}: {names}"
            )
            if clash not in plugin.problems:  # as for an item of two models
                plugin.problems.append(clash)
        plugin.entries.append(entry)
        self._entries.append(entry)

    def add(self, path: str | Path) -> list[Plugin]:
        """Load a file or folder of drop-in plugins, unless it is loaded already or third-party code is disabled.

        Returns
        -------
        list of Plugin
            The plugins that were added, each with its status.
        """
        folder = str(Path(path).resolve())
        if not self.third_party or folder in self.paths:
            return []
        self.paths += (folder,)  # worker processes load the same
        count = len(self.plugins)
        self._load_path(Path(folder))
        return self.plugins[count:]

    def entries(self, kind: str | None = None) -> list[Entry]:
        """Registered items of a kind (None: all kinds), those shipped with smimbench first."""
        return [entry for entry in self._entries if kind is None or entry.kind == kind]

    def named(self, name: str, kind: str | None = None) -> list[Entry]:
        """Registered items with a name, given as ``"name"`` or ``"distribution:name"``, of a kind (None: any kind)."""
        distribution, _, item_name = name.rpartition(":")
        return [
            e
            for e in self.entries(kind)
            if e.name == item_name and distribution in ("", e.distribution)
        ]

    def get(self, kind: str, name: str, model: str | None = None) -> Entry:
        """Find a registered item by kind and name.

        Parameters
        ----------
        kind : str
            One of ``KINDS``.
        name : str
            ``"name"`` or ``"distribution:name"``.
        model : str or None
            Name of the model that it must support.

        Raises
        ------
        RegistryError
            Unknown name, a name that two packages claim, or an item that does not belong to the model.
        """
        entries, (_, _, plain_name) = self.named(name, kind), name.rpartition(":")
        fitting = [entry for entry in entries if entry.fits(model)]
        if not fitting:
            names = sorted({e.name for e in self.entries(kind) if e.fits(model)})
            if not entries:
                hint = "" if self.paths else " (load your own with --plugins FILE)"
                raise RegistryError(
                    f"unknown {kind} {name!r}; {suggestion(plain_name, names)}{hint}"
                )
            raise RegistryError(
                f"{kind} {name!r} belongs to model {_model_names(entries)}, not to {model!r}; "
                f"{PLURALS[kind]} of {model!r}: {', '.join(names) or 'none'}"
            )
        # What ships keeps its plain name: an added package must not change what an old suite means.
        fitting = [e for e in fitting if e.distribution == BUILT_IN] or fitting
        if len({entry.distribution for entry in fitting}) > 1:
            choices = (f"{entry.distribution}:{plain_name}" for entry in fitting)
            raise RegistryError(
                f"{kind} {plain_name!r} is provided by several packages; choose one by writing {' or '.join(choices)}"
            )
        if len(fitting) > 1 and model is None:
            raise RegistryError(
                f"{kind} {plain_name!r} exists for several models ({_model_names(fitting)}); name the model as well"
            )
        return fitting[0]


def _model_names(entries: Iterable[Entry]) -> str:
    return ", ".join(sorted({model for entry in entries for model in entry.models}))


def get_registry() -> Registry:
    """Return the registry of this process, created on first use from installed plugins and SMIMBENCH_PLUGINS."""
    global _current
    if _current is None:
        _current = make_registry()
        for line in complaints_of(_current.plugins):
            warnings.warn(line, stacklevel=2)
    return _current


def complaints_of(plugins: Iterable[Plugin]) -> list[str]:
    """Return one warning for each plugin that could not be loaded and each item name that exists twice."""
    lines = []
    for plugin in plugins:
        prefix = f"plugin {plugin.name} ({plugin.origin})"
        if plugin.failed:
            lines.append(f"{prefix} was not loaded: {'; '.join(plugin.problems)}")
        else:
            lines += [f"{prefix}: {problem}" for problem in plugin.problems]
    return lines


def make_registry(
    paths: Iterable[str] = (),
    *,
    third_party: bool = True,
    trace: Callable[[str], None] | None = None,
) -> Registry:
    """Create a registry that follows the environment variables SMIMBENCH_PLUGINS and SMIMBENCH_NO_PLUGINS."""
    paths = [
        *filter(None, os.environ.get("SMIMBENCH_PLUGINS", "").split(os.pathsep)),
        *paths,
    ]
    return Registry(
        paths,
        third_party=third_party and not os.environ.get("SMIMBENCH_NO_PLUGINS"),
        trace=trace,
    )


def set_registry(registry: Registry | None) -> None:
    """Make ``registry`` the registry of this process; None creates a new one on next use."""
    global _current
    _current = registry


_current: Registry | None = None


@contextmanager
def using(registry: Any) -> Iterator[None]:
    """Context in which this process uses another registry."""
    previous = _current
    set_registry(registry)
    try:
        yield
    finally:
        set_registry(previous)


@contextmanager
def _no_exit() -> Iterator[None]:
    """Context that turns a plugin's call of ``os._exit`` during import into an ordinary error."""
    os_exit, process, loading = os._exit, os.getpid(), True

    def refuse(status: int = 0) -> None:
        if loading and os.getpid() == process:
            raise SystemExit(f"os._exit({status})")
        os_exit(status)

    os._exit = refuse  # type: ignore[assignment]
    try:
        yield
    finally:
        os._exit, loading = os_exit, False


def _moved_module(error: BaseException) -> str | None:
    """Advice on a failed import of a module that smimbench 0.2 renamed; None for any other error."""
    module = error.name if isinstance(error, ModuleNotFoundError) else None
    for plural in PLURALS.values():
        if module == f"{GROUP}_{plural}":
            moved = f"smimbench_attention.{plural}"
            return f"it was written for smimbench 0.1: {module} is now {moved}; install a newer version, or change its imports"
    return None


def _name_and_version(
    package: importlib.metadata.Distribution | None,
) -> tuple[str, str]:
    """Name and version of an installed package; its folder's name if the metadata cannot be read."""
    metadata, _ = attempt(getattr, package, "metadata")
    name = metadata["Name"] if metadata else None
    version = metadata["Version"] if metadata else None
    folder = getattr(getattr(package, "_path", None), "stem", "unknown")
    return str(name or folder), str(version or "")


def _import_file(file: Path, stem: str) -> ModuleType:
    name = f"{DROP_IN}{re.sub(r'[^0-9A-Za-z_]', '_', stem)}"
    search = [str(file.parent)] if file.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(
        name, file, submodule_search_locations=search
    )
    if spec is None or spec.loader is None:
        raise RegistryError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    # Last, so that a neighbor can be imported and hides nothing.
    if (folder := str(file.resolve().parent)) not in sys.path:
        sys.path.append(folder)
    sys.modules[name] = module  # dataclasses look their module up by name
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _require_hooks(module: ModuleType) -> None:
    """Raise RegistryError if a plugin has no hook, or one that would never be called."""
    specified = [name for name in dir(hookspecs) if name.startswith("smimbench_")]
    hooks = [name for name in dir(module) if name.startswith("smimbench_register")]
    if not hooks:
        raise RegistryError(
            f"the plugin has no hook; implement one of {', '.join(specified)}"
        )
    for name in hooks:
        if name not in specified:
            raise RegistryError(
                f"the plugin has an unknown hook {name}; {suggestion(name, specified)}"
            )
        if not hasattr(getattr(module, name), f"{hookspecs.PROJECT}_impl"):
            raise RegistryError(
                f"hook {name} must be decorated with @smimbench.hookimpl"
            )


# -- metrics ------------------------------------------------------------------------------------------------------


class Described(Protocol):
    """Theory at one sample ratio that can be written as JSON: a ``TheoryPoint`` or an ``AlgorithmPrediction``."""

    def document(self) -> dict[str, Any]:
        """Return the theory as JSON, the form that metrics read."""
        ...


def find_metric(name: str, model: str | None = None) -> Metric:
    """Create the metric registered under a name.

    Raises
    ------
    RegistryError
        Unknown name, or a metric that does not work for the model.
    """
    metric: Metric = get_registry().get("metric", name, model).item()
    return metric


def metric_label(name: str) -> str:
    """Label of a metric in tables and figures, or its name if the label cannot be read."""
    label, _ = attempt(lambda: find_metric(name).label)
    return label if isinstance(label, str) else name


def trajectory_metrics(model: str | None = None) -> dict[str, Metric]:
    """Return the metrics measured at every recorded iteration, by name, those shipped with smimbench first."""
    metrics: dict[str, Metric] = {}
    for entry in get_registry().entries("metric"):
        if entry.fits(model) and entry.item.in_trajectory:
            metrics.setdefault(entry.name, entry.item())
    return metrics


def metrics_of_accounts(model: str | None = None) -> list[str]:
    """Names of shipped metrics that compare an algorithm's claimed error with its true error; measured in every run."""
    entries = get_registry().entries("metric")
    return [
        entry.name
        for entry in entries
        if entry.fits(model) and entry.source is None and entry.item.direction == "one"
    ]


def names_in_key(names: Iterable[str]) -> tuple[str, ...]:
    """Return the metric names that are part of a cell's key: third-party metrics and those outside the trajectory.

    A version above 1 is written ``name@version``, one of another package ``name@version.code`` with a hash of its code.
    """
    names_with_version = []
    for name in dict.fromkeys(names):
        entry = get_registry().get("metric", name)
        if entry.source is not None:
            names_with_version.append(f"{name}@{entry.item.version}.{entry.source}")
        elif not entry.item.in_trajectory:
            version = entry.item.version
            names_with_version.append(name if version == 1 else f"{name}@{version}")
    return tuple(sorted(names_with_version))


def is_worse(metric: Metric, previous: float, score: float) -> bool:
    """Whether a metric got worse; for ``direction = "one"``, whether it moved away from 1."""
    if metric.direction == "one":
        return abs(score - 1) > abs(previous - 1)
    return score < previous if metric.direction == "higher" else score > previous


def theory_of(
    metric: Metric,
    problem: ProblemLike,
    point: Described | None,
    components: int,
    complaints: list[str] | None = None,
) -> tuple[list[float | None], list[float | None]]:
    """Return the theoretical values of a metric and their errors, one per component or a single one.

    They are None without theory, or if it fails; the reason is then appended to ``complaints``.
    """
    count = components if metric.per_component else 1
    no_values: list[float | None] = [None] * count
    theory = metric.theory
    if theory is None or point is None:
        return no_values, no_values
    numbers, error = attempt(
        lambda: [
            _require_count(values, count)
            for values in theory(problem, point.document())
        ]
    )
    if error is None and len(numbers) == 2:
        return numbers[0], numbers[1]
    if complaints is not None:
        reason = "it must return two lists, values and errors"
        if error is not None:
            reason = error_line(error)
        complaints.append(f"the theory of metric {metric.name!r} failed: {reason}")
    return no_values, no_values


def _require_count(values: Iterable[float | None], count: int) -> list[float | None]:
    numbers = [None if value is None else float(value) for value in values]
    if len(numbers) != count:
        raise ValueError(f"it returned {len(numbers)} values instead of {count}")
    return numbers
