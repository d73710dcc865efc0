"""The registry of items: imports shipped, installed and drop-in plugins, and finds their items, metrics among them, by name.

Each plugin is loaded in its own ``try``: one that fails is kept with its reason and harms nothing else.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import inspect
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
    name_and_version,
    restored_process,
    suggestion,
)
from smimbench.interfaces import Capabilities, Item, Metric, ProblemLike
from smimbench.interfaces.item import defines_member, describe_members, with_defaults
from smimbench.registry.items import BASES, algorithm_class, contract_violation
from smimbench.registry.source import DROP_IN_PREFIX, imported_files, source_of

KINDS = tuple(BASES)
PLURALS = {kind: f"{kind.removesuffix('s')}s" for kind in KINDS}
ENTRY_POINT_GROUP = "smimbench"
BUILT_IN = "smimbench"


class RegistryError(ForeseenError, LookupError):
    """Raised if the name of an item is unknown or ambiguous, or the item cannot be used; the message says what would be right."""


@dataclass(frozen=True)
class Entry:
    """Registered item: kind, name, class, package (``distribution``) and, if third-party, a hash of its code (``source``)."""

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

    def supports_model(self, model: str | None) -> bool:
        """Whether the item supports a model (None: any model)."""
        return model is None or "*" in self.models or model in self.models

    @property
    def derived(self) -> tuple[str, ...]:
        """Members that the item does not define and the engine derives, each with a text that says from what."""
        contract = BASES[self.kind]
        derivations = []
        for member_name, description in describe_members(contract).items():
            _, _, derivation = description.partition("Derived: ")
            if derivation and not defines_member(contract, self.item, member_name):
                derivations.append(
                    f"{member_name}: {derivation}".replace("`", "").removesuffix(".")
                )
        return tuple(derivations)

    @property
    def summary(self) -> str:
        """First line of the item's docstring."""
        return documentation(self.item).split("\n")[0]


@dataclass
class Plugin:
    """Loaded plugin: name, version, package (``distribution``), entry point or file (``origin``), its items (``entries``),
    and the problems met when it was loaded; ``failed`` if none of its items could be registered.
    """

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
        """Load the installed plugins, then those at ``paths``: third-party ones if ``third_party`` and in packages ``only``."""
        self.foreign_path: set[str] = set()
        self._allowed_distributions = None if only is None else frozenset(only)
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
        shipped_kinds = {
            entry.kind for entry in self._entries if entry.distribution == BUILT_IN
        }
        missing_plurals = [PLURALS[kind] for kind in KINDS if kind not in shipped_kinds]
        if missing_plurals:
            raise RegistryError(
                f"the {' and '.join(missing_plurals)} of smimbench are not registered; "
                "install the package with pip install ., also after an update, instead of running it from the source folder"
            )

    def _load_installed(self) -> None:
        """Load the plugins of installed packages from their entry points, those shipped with smimbench first."""
        entry_points, error = attempt(
            importlib.metadata.entry_points, group=ENTRY_POINT_GROUP
        )
        if error is not None:  # of one package, which must not hide all others
            entry_points = self._readable_entry_points()
        sorted_points = [
            (entry_point, *name_and_version(entry_point.dist))
            for entry_point in entry_points
        ]
        sorted_points.sort(
            key=lambda point_and_package: (
                point_and_package[1] != BUILT_IN,
                point_and_package[1],
                point_and_package[0].name,
            )
        )
        loaded_points: set[tuple[str, str]] = set()
        for entry_point, distribution, package_version in sorted_points:
            if (distribution, entry_point.value) in loaded_points:
                continue
            if distribution == BUILT_IN or (
                self.third_party and self._is_allowed(distribution)
            ):
                loaded_points.add((distribution, entry_point.value))
                plugin = Plugin(
                    entry_point.name, distribution, package_version, entry_point.value
                )
                self._load(plugin, entry_point.load)

    def _readable_entry_points(self) -> list[importlib.metadata.EntryPoint]:
        """List the entry points of all packages with readable metadata; any other package is recorded as a failed plugin."""
        readable_points: list[importlib.metadata.EntryPoint] = []
        for package in importlib.metadata.distributions():
            package_points, error = attempt(getattr, package, "entry_points")
            if error is None:
                readable_points += package_points.select(group=ENTRY_POINT_GROUP)
            elif self.third_party:
                name, version = name_and_version(package)
                plugin = Plugin(name, name, version, "entry_points.txt", failed=True)
                plugin.problems.append(
                    f"its entry_points.txt cannot be read: {error_line(error)}; install {name} again, or remove it"
                )
                self.plugins.append(plugin)
        return readable_points

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
            module_name = file.parent.name if file.name == "__init__.py" else file.stem
            if self._is_allowed(module_name):
                plugin = Plugin(module_name, module_name, "", str(file))
                self._load(plugin, functools.partial(_import_file, file, module_name))

    @property
    def has_third_party(self) -> bool:
        """Whether this process has loaded third-party code."""
        return any(plugin.distribution != BUILT_IN for plugin in self.plugins)

    def _is_allowed(self, distribution: str) -> bool:
        """Whether the plugins of a third-party package (``distribution``) may be loaded."""
        allowed = self._allowed_distributions
        return allowed is None or distribution in allowed

    def _load(self, plugin: Plugin, import_plugin: Callable[[], ModuleType]) -> None:
        """Import a plugin and register its items; if it fails, record the reason and none of its items."""
        self._trace(
            f"loading {plugin.name} of {plugin.distribution} from {plugin.origin}"
        )
        self.plugins.append(plugin)
        try:
            # Environment variables that a third-party plugin sets are set again in worker processes, which import it too.
            in_main_process = self._allowed_distributions is None
            with restored_process(
                self.foreign_path,
                restores_environment=in_main_process
                and plugin.distribution != BUILT_IN,
            ):
                module = import_plugin()
                _require_hooks(module)
                plugins_before = self._manager.get_plugins()
                self._manager.register(
                    module, name=f"{plugin.distribution}:{plugin.name}:{plugin.origin}"
                )
                for item_kind in KINDS:
                    register_hook = self._manager.subset_hook_caller(
                        f"smimbench_register_{PLURALS[item_kind]}", plugins_before
                    )
                    register_hook(
                        register=functools.partial(self._register, plugin, item_kind)
                    )
        except KeyboardInterrupt:
            raise
        # A plugin may raise anything, and must harm nothing else.
        except BaseException as error:
            plugin.failed = True
            reason = error_line(error).removeprefix("RegistryError: ")
            plugin.problems.append(reason)
            self._entries = [
                entry for entry in self._entries if entry not in plugin.entries
            ]
            plugin.entries.clear()
        for load_problem in plugin.problems:
            self._trace(f"  {load_problem}")
        for entry in plugin.entries:
            self._trace(f"  {entry.kind} {entry.name}")

    def _register(self, plugin: Plugin, kind: str, item: type[Item]) -> None:
        """Check a class that a plugin registers as an item of a kind, complete it with the contract's defaults, and add it
        to the registry.

        Raises
        ------
        RegistryError
            If it is no class, violates its contract, or the plugin's package has another item of its name.
        """
        if kind == "algorithm":
            item = algorithm_class(item)
        if not isinstance(item, type):
            raise RegistryError(
                f"{kind} {item!r} is not a class; register the class, not an instance"
            )
        if violation := contract_violation(kind, item):
            raise RegistryError(f"{kind} {item.__name__}: {violation}")
        item = with_defaults(BASES[kind], item)
        code_hash = None if plugin.distribution == BUILT_IN else source_of(item)
        entry = Entry(kind, item.name, item, plugin.distribution, code_hash)
        for other_entry in self.entries(kind):
            if other_entry.name != entry.name or not (
                "*" in (*other_entry.models, *entry.models)
                or {*other_entry.models} & {*entry.models}
            ):
                continue
            if other_entry.distribution == entry.distribution:
                raise RegistryError(
                    f"{kind} {entry.name!r} is registered twice by {entry.distribution!r}; give each item its own name"
                )
            distributions = [other_entry.distribution, entry.distribution]
            name_hint = " or ".join(
                f"'{distribution}:{entry.name}'" for distribution in distributions
            )
            if BUILT_IN in distributions:
                name_hint = f"{entry.name!r} means the one of {BUILT_IN}, '{entry.distribution}:{entry.name}' this one"
            clash_message = f"{kind} {entry.name!r} exists in {' and in '.join(distributions)}: {name_hint}"
            if clash_message not in plugin.problems:  # as for an item of two models
                plugin.problems.append(clash_message)
        plugin.entries.append(entry)
        self._entries.append(entry)

    def add(self, path: str | Path) -> list[Plugin]:
        """Load a file or folder of drop-in plugins, unless it is loaded with its present code or third-party code is disabled.

        Returns
        -------
        list of Plugin
            The plugins that were loaded, each with its status.
        """
        resolved_path = str(Path(path).resolve())
        if not self.third_party:
            return []
        if resolved_path in {str(Path(path).resolve()) for path in self.paths}:
            plugins = [
                plugin
                for plugin in self.plugins
                if not plugin.version  # a file
                and Path(plugin.origin).resolve().is_relative_to(resolved_path)
            ]
            if not any(map(_has_changed, plugins)):
                return []
            for plugin in plugins:
                self._unload(plugin)
        else:
            self.paths += (resolved_path,)  # worker processes load the same
        plugin_count_before = len(self.plugins)
        self._load_path(Path(resolved_path))
        return self.plugins[plugin_count_before:]

    def _unload(self, plugin: Plugin) -> None:
        """Forget a drop-in plugin, its items and all modules that its file imports from its folder."""
        self.plugins.remove(plugin)
        self._entries = [
            entry for entry in self._entries if entry not in plugin.entries
        ]
        full_name = f"{plugin.distribution}:{plugin.name}:{plugin.origin}"
        if self._manager.has_plugin(full_name):
            self._manager.unregister(name=full_name)
        files = imported_files(Path(plugin.origin).resolve())
        for name, module in list(sys.modules.items()):
            if (file := getattr(module, "__file__", None)) and Path(
                file
            ).resolve() in files:
                del sys.modules[name]
        for file in files:  # its date tells no change within the same second
            Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)
        importlib.invalidate_caches()

    def entries(self, kind: str | None = None) -> list[Entry]:
        """List the registered items of a kind (None: all kinds), those shipped with smimbench first."""
        return [entry for entry in self._entries if kind is None or entry.kind == kind]

    def entries_named(self, name: str, kind: str | None = None) -> list[Entry]:
        """List the registered items of a name, ``"name"`` or ``"distribution:name"``, and of a kind (None: any kind)."""
        distribution, _, item_name = name.rpartition(":")
        return [
            entry
            for entry in self.entries(kind)
            if entry.name == item_name and distribution in ("", entry.distribution)
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
        named_entries = self.entries_named(name, kind)
        bare_name = name.rpartition(":")[2]
        supporting_entries = [
            entry for entry in named_entries if entry.supports_model(model)
        ]
        if not supporting_entries:
            valid_names = sorted(
                {
                    entry.name
                    for entry in self.entries(kind)
                    if entry.supports_model(model)
                }
            )
            if not named_entries:
                hint = "" if self.paths else " (load your own with --plugins FILE)"
                raise RegistryError(
                    f"unknown {kind} {name!r}; {suggestion(bare_name, valid_names)}{hint}"
                )
            raise RegistryError(
                f"{kind} {name!r} belongs to model {_model_names(named_entries)}, not to {model!r}; "
                f"{PLURALS[kind]} of {model!r}: {', '.join(valid_names) or 'none'}"
            )
        # What ships keeps its plain name: an added package must not change what an old suite means.
        supporting_entries = [
            entry for entry in supporting_entries if entry.distribution == BUILT_IN
        ] or supporting_entries
        if len({entry.distribution for entry in supporting_entries}) > 1:
            choices = [
                f"{entry.distribution}:{bare_name}" for entry in supporting_entries
            ]
            raise RegistryError(
                f"{kind} {bare_name!r} is provided by several packages; choose one by writing {' or '.join(choices)}"
            )
        if len(supporting_entries) > 1 and model is None:
            raise RegistryError(
                f"{kind} {bare_name!r} exists for several models ({_model_names(supporting_entries)}); name the model as well"
            )
        return supporting_entries[0]


def _has_changed(plugin: Plugin) -> bool:
    """Whether a drop-in plugin could not be loaded, or its code is not that of its items any more."""
    return plugin.failed or any(
        entry.source != source_of(entry.item) for entry in plugin.entries
    )


def _model_names(entries: Iterable[Entry]) -> str:
    """Write the names of all models that some of the items (``entries``) support, separated by commas."""
    return ", ".join(sorted({model for entry in entries for model in entry.models}))


def get_registry() -> Registry:
    """Return the registry of this process, created on first use from installed plugins and SMIMBENCH_PLUGINS."""
    global _process_registry
    if _process_registry is None:
        _process_registry = make_registry()
        for warning_line in plugin_warnings(_process_registry.plugins):
            warnings.warn(warning_line, stacklevel=2)
    return _process_registry


def plugin_warnings(plugins: Iterable[Plugin]) -> list[str]:
    """Return one warning line for each plugin that could not be loaded and each item name that exists twice."""
    warning_lines = []
    for plugin in plugins:
        plugin_description = f"plugin {plugin.name} ({plugin.origin})"
        if plugin.failed:
            warning_lines.append(
                f"{plugin_description} was not loaded: {'; '.join(plugin.problems)}"
            )
        else:
            warning_lines += [
                f"{plugin_description}: {problem}" for problem in plugin.problems
            ]
    return warning_lines


def make_registry(
    paths: Iterable[str] = (),
    *,
    third_party: bool = True,
    trace: Callable[[str], None] | None = None,
) -> Registry:
    """Create a registry (see ``Registry``) that respects the environment variables SMIMBENCH_PLUGINS and SMIMBENCH_NO_PLUGINS."""
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
    global _process_registry
    _process_registry = registry


_process_registry: Registry | None = None


@contextmanager
def using(registry: Any) -> Iterator[None]:
    """Context in which this process uses the given registry instead of its own."""
    previous_registry = _process_registry
    set_registry(registry)
    try:
        yield
    finally:
        set_registry(previous_registry)


def _import_file(file: Path, module_stem: str) -> ModuleType:
    """Import a drop-in plugin from a file, as a module named after ``module_stem``."""
    module_name = f"{DROP_IN_PREFIX}{re.sub(r'[^0-9A-Za-z_]', '_', module_stem)}"
    search_locations = [str(file.parent)] if file.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(
        module_name, file, submodule_search_locations=search_locations
    )
    if spec is None or spec.loader is None:
        raise RegistryError(f"{file} is not a Python file; give one that ends in .py")
    module = importlib.util.module_from_spec(spec)
    # The folder is last on the path, so that neighboring modules can be imported but hide no other module.
    if (parent_folder := str(file.resolve().parent)) not in sys.path:
        sys.path.append(parent_folder)
    sys.modules[module_name] = module  # dataclasses look their module up by name
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(module_name, None)
        raise
    return module


def _require_hooks(module: ModuleType) -> None:
    """Raise RegistryError if a plugin's module implements no hook, or one that smimbench would never call."""
    valid_hooks = [hook for hook in dir(hookspecs) if hook.startswith("smimbench_")]
    plugin_hooks = [
        hook for hook in dir(module) if hook.startswith("smimbench_register")
    ]
    if not plugin_hooks:
        raise RegistryError(
            f"the plugin has no hook; implement one of {', '.join(valid_hooks)}"
        )
    for hook in plugin_hooks:
        if hook not in valid_hooks:
            raise RegistryError(
                f"the plugin has an unknown hook {hook}; {suggestion(hook, valid_hooks)}"
            )
        if not hasattr(getattr(module, hook), f"{hookspecs.PROJECT}_impl"):
            raise RegistryError(
                f"hook {hook} must be decorated with @smimbench.hookimpl"
            )
        if not inspect.signature(getattr(module, hook)).parameters:
            raise RegistryError(
                f"hook {hook} must take an argument, register, and call it with each item"
            )


# -- metrics ------------------------------------------------------------------------------------------------------


class TheoryAtRatio(Protocol):
    """Type of a theory result at one sample ratio that can be written as JSON: ``TheoryPoint`` or ``AlgorithmPrediction``."""

    def document(self) -> dict[str, Any]:
        """Return the theory result as JSON, the form that metrics read."""
        ...


def find_metric(name: str, model: str | None = None) -> Metric:
    """Return the metric registered under a name.

    Raises
    ------
    RegistryError
        Unknown name, or a metric that does not work for the model.
    """
    metric: Metric = get_registry().get("metric", name, model).item()
    return metric


def metric_label(name: str) -> str:
    """Return the label of a metric for tables and figures, or its name if the metric has no readable label."""
    label, _ = attempt(lambda: find_metric(name).label)
    return label if isinstance(label, str) else name


def trajectory_metrics(model: str | None = None) -> dict[str, Metric]:
    """Return the metrics that are measured at every recorded iteration, by name, those shipped with smimbench first."""
    metrics: dict[str, Metric] = {}
    for entry in get_registry().entries("metric"):
        if entry.supports_model(model) and entry.item.in_trajectory:
            metrics.setdefault(entry.name, entry.item())
    return metrics


def claimed_error_metrics(model: str | None = None) -> list[str]:
    """Names of the shipped metrics that compare the error an algorithm claims with its true error; measured in every run."""
    metric_entries = get_registry().entries("metric")
    return [
        metric_entry.name
        for metric_entry in metric_entries
        if metric_entry.supports_model(model)
        and metric_entry.source is None
        and metric_entry.item.direction == "one"
    ]


def metric_names_in_key(names: Iterable[str]) -> tuple[str, ...]:
    """Return the metric names that are part of a cell's (run's) key: third-party metrics and those measured at the end only.

    A version above 1 is written ``name@version``, one of another package ``name@version.code`` with a hash of its code.
    """
    names_and_versions = []
    for metric_name in dict.fromkeys(names):
        entry = get_registry().get("metric", metric_name)
        if entry.source is not None:
            names_and_versions.append(
                f"{metric_name}@{entry.item.version}.{entry.source}"
            )
        elif not entry.item.in_trajectory:
            version = entry.item.version
            names_and_versions.append(
                metric_name if version == 1 else f"{metric_name}@{version}"
            )
    return tuple(sorted(names_and_versions))


def is_worse(metric: Metric, previous_score: float, score: float) -> bool:
    """Whether ``score`` is worse than ``previous_score``: higher, lower or farther from 1, depending on the metric's
    direction.
    """
    if metric.direction == "one":
        return abs(score - 1) > abs(previous_score - 1)
    return (
        score < previous_score
        if metric.direction == "higher"
        else score > previous_score
    )


def theory_of(
    metric: Metric,
    problem: ProblemLike,
    point: TheoryAtRatio | None,
    components: int,
    complaints: list[str] | None = None,
) -> tuple[list[float | None], list[float | None]]:
    """Return the theoretical values of a metric and their errors, one per component or a single one, from a ``point`` of theory.

    They are None without theory, or if it fails; the reason is then appended to ``complaints``.
    """
    value_count = components if metric.per_component else 1
    no_values: list[float | None] = [None] * value_count
    theory_method = metric.theory
    if theory_method is None or point is None:
        return no_values, no_values
    values_and_errors, error = attempt(
        lambda: [
            _require_value_count(component_values, value_count, metric.per_component)
            for component_values in theory_method(problem, point.document())
        ]
    )
    if error is None and len(values_and_errors) == 2:
        return values_and_errors[0], values_and_errors[1]
    if complaints is not None:
        reason = "it must return two lists, values and errors"
        if error is not None:
            reason = error_line(error)
        complaints.append(f"the theory of metric {metric.name!r} failed: {reason}")
    return no_values, no_values


def _require_value_count(
    values: Iterable[float | None], count: int, per_component: bool
) -> list[float | None]:
    """Convert a list that a metric's ``theory`` returned, of values or of errors, to floats or None; ValueError unless it has
    ``count`` entries: one for each component of the signal if the metric is ``per_component``, else a single one.
    """
    checked_values = [
        None if component_value is None else float(component_value)
        for component_value in values
    ]
    if len(checked_values) != count:
        expected = "1 number, as per_component is False"
        if per_component:
            expected = f"one number per component of the signal, {count} in all"
        raise ValueError(
            f"each of the two lists that theory() returns must have {expected}; got {len(checked_values)}"
        )
    return checked_values
