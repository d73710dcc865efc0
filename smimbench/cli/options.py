"""What all commands share: their options, plugins, suites and result folders by name, and how a remark is printed."""

from __future__ import annotations

import functools
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rich.console import Console

    from smimbench.registry.registry import Plugin, Registry
    from smimbench.run.store import Store
    from smimbench.suite.cells import Suite
    from smimbench.theory.cache import TheoryCache

OK, NOT_OK, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
"""Exit codes: all cells ok; some are not; bad input; Ctrl-C."""


def complain(line: str) -> None:
    """One remark or error, on one line of standard error."""
    print(f"smimbench: {' '.join(line.split())}", file=sys.stderr)  # noqa: T201


def make_console(*, error: bool = False) -> Console:
    """A terminal, or something as wide as COLUMNS says."""
    from rich.console import Console

    stream = sys.stderr if error else sys.stdout
    width = None if stream.isatty() else int(os.environ.get("COLUMNS", "80"))
    return Console(stderr=error, width=width, soft_wrap=False, highlight=False)


def print_json(document: Any) -> None:
    """One JSON document on standard output."""
    click.echo(json.dumps(document, indent=2, allow_nan=False, default=str))


def shared_options(*, suite_options: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Options that every command shares."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        if suite_options:
            function = click.option(
                "--set",
                "overrides",
                multiple=True,
                metavar="KEY=VALUE",
                help="Override any key of the suite.",
            )(function)
            function = click.option(
                "--only",
                multiple=True,
                metavar="KEY=VALUE",
                help="Run or show a part: algorithm, alpha, dimension, seed, problem.",
            )(function)
        function = click.option(
            "--plugins", "paths", multiple=True, metavar="PATH", help="Load plugins from a file or folder."
        )(function)
        function = click.option("--no-plugins", is_flag=True, help="Load only what ships with smimbench.")(
            function
        )
        function = click.option(
            "--trace-plugins", is_flag=True, help="Say on standard error what is loaded from where."
        )(function)
        return click.option("--quiet", is_flag=True, help="No progress and no remarks.")(function)

    return decorate


json_option = click.option(
    "--json", "as_json", is_flag=True, help="One JSON document on standard output and nothing else."
)
results_option = click.option(
    "--results",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("results"),
    show_default=True,
    help="Where results are kept.",
)


def _registry(paths: Sequence[str], no_plugins: bool, trace_plugins: bool) -> Registry:
    from smimbench.registry.registry import Registry, set_registry

    wanted = [p for p in os.environ.get("SMIMBENCH_PLUGINS", "").split(os.pathsep) if p] + list(paths)
    trace = (lambda line: click.echo(line, err=True)) if trace_plugins else None
    registry = Registry(
        wanted, third_party=not (no_plugins or os.environ.get("SMIMBENCH_NO_PLUGINS")), trace=trace
    )
    set_registry(registry)
    return registry


def with_registry(function: Callable[..., Any]) -> Callable[..., Any]:
    """Turn the shared plugin options into a registry."""

    @functools.wraps(function)
    def wrapped(
        *args: Any, paths: Sequence[str], no_plugins: bool, trace_plugins: bool, **kwargs: Any
    ) -> Any:
        registry = _registry(paths, no_plugins, trace_plugins)
        if not kwargs.get("quiet"):
            complain_of(registry.plugins)
        return function(*args, registry=registry, **kwargs)

    return wrapped


def complain_of(plugins: Iterable[Plugin]) -> None:
    """Say which plugins were not loaded, and why."""
    for plugin in plugins:
        if plugin.failed:
            complain(f"plugin {plugin.name} ({plugin.origin}) was not loaded: {'; '.join(plugin.problems)}")


def load(name: str, overrides: Sequence[str], only: Sequence[str], registry: Registry) -> Suite:
    """A suite from a path, a shipped name, or a results folder (its ``run.json`` holds the text)."""
    from smimbench.run.store import Store
    from smimbench.suite.errors import SuiteError
    from smimbench.suite.reader import load_suite, parse_suite

    folder = Path(name)
    known = len(registry.plugins)
    try:
        if folder.is_dir():
            shared = Store(folder).read_shared()
            if "text" not in shared:
                raise SuiteError(name, "", "not a results folder (it has no readable run.json)")
            given = [*shared.get("overrides", []), *overrides]
            path = Path(f"{shared['suite']}.toml")
            return parse_suite(path, shared["text"], given, only, registry=registry)
        return load_suite(name, overrides, only, registry=registry)
    finally:
        complain_of(registry.plugins[known:])  # of ./plugins, if the suite asks for it


def store_of(name: str, suite: Suite, results: Path) -> Store:
    """Records of a suite: in the folder of that name, or under ``--results``."""
    from smimbench.run.store import Store

    return Store(name) if Path(name).is_dir() else Store(results / suite.name)


def theory_cache(store: Store) -> TheoryCache:
    """Theory, kept beside the records."""
    from smimbench.theory.cache import TheoryCache

    return TheoryCache(store.folder / "theory")


def complain_of_store(store: Store, quiet: bool) -> None:
    """Say which files of a results folder were not used, and why."""
    if not quiet:
        for line in store.complaints:
            complain(line)
