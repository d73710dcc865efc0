"""What all commands share: their options, plugins, suites and result folders by name, and how a remark is printed."""

from __future__ import annotations

import functools
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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


def flag(text: str, *names: str) -> click.Option:
    """An option without a value."""
    return click.Option(names, is_flag=True, help=text)


def several(text: str, metavar: str, *names: str) -> click.Option:
    """An option that may be given often."""
    return click.Option(names, multiple=True, metavar=metavar, help=text)


def output_option(text: str, *, folder: bool = False) -> click.Option:
    """Where to write: a file that has to be named, or a folder that need not be."""
    where = click.Path(file_okay=not folder, dir_okay=folder, path_type=Path)
    return click.Option(["--output"], type=where, required=not folder, help=text)


SUITE = click.Argument(["name"], metavar="SUITE")
SUITE_OR_FOLDER = click.Argument(["name"], metavar="SUITE|DIR")
JSON = flag("One JSON document on standard output and nothing else.", "--json", "as_json")
RESULTS = click.Option(
    ["--results"],
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("results"),
    show_default=True,
    help="Where results are kept.",
)
_EVERY_COMMAND = (
    flag("No progress and no remarks.", "--quiet"),
    flag("Say on standard error what is loaded from where.", "--trace-plugins"),
    flag("Load only what ships with smimbench.", "--no-plugins"),
    several("Load plugins from a file or folder.", "PATH", "--plugins"),
)
_OF_A_SUITE = (
    several("Run or show a part: algorithm, alpha, dimension, seed, problem.", "KEY=VALUE", "--only"),
    several("Override any key of the suite.", "KEY=VALUE", "--set", "overrides"),
)


@dataclass(frozen=True, kw_only=True)
class Request:
    """What commands are asked alike: which suite, changed how, with which plugins, and how to answer."""

    registry: Registry
    quiet: bool
    as_json: bool = False
    name: str = ""
    overrides: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    results: Path = Path("results")

    def suite(self) -> Suite:
        """The suite from a path, a shipped name, or a results folder (its ``run.json`` holds the text)."""
        from smimbench.run.store import Store
        from smimbench.suite.errors import SuiteError
        from smimbench.suite.reader import load_suite, parse_suite

        folder = Path(self.name)
        known = len(self.registry.plugins)
        try:
            if not folder.is_dir():
                return load_suite(self.name, self.overrides, self.only, registry=self.registry)
            shared = Store(folder).read_shared()
            if "text" not in shared:
                raise SuiteError(self.name, "", "not a results folder (it has no readable run.json)")
            given = [*shared.get("overrides", []), *self.overrides]
            path = Path(f"{shared['suite']}.toml")
            return parse_suite(path, shared["text"], given, self.only, registry=self.registry)
        finally:
            complain_of(self.registry.plugins[known:])  # of ./plugins, if the suite asks for it

    def store(self, suite: Suite) -> Store:
        """Records of a suite: in the folder of that name, or under ``--results``."""
        from smimbench.run.store import Store

        return Store(self.name) if Path(self.name).is_dir() else Store(self.results / suite.name)

    def theory(self) -> TheoryCache:
        """Answers of theory under ``--results``, which all suites share."""
        from smimbench.theory.cache import TheoryCache

        return TheoryCache(self.results / "theory")

    def remark(self, lines: Iterable[str]) -> None:
        """Lines on standard error, unless the user wants none."""
        for line in () if self.quiet else lines:
            complain(line)

    def answer(self, document: Any, show: Callable[[Console, Any], None]) -> None:
        """The document as JSON, or as ``show`` puts it on a terminal."""
        if self.as_json:
            print_json(document)
        else:
            show(make_console(), document)


def command(
    *parameters: click.Parameter, name: str | None = None, of_a_suite: bool = True
) -> Callable[[Callable[..., int]], click.Command]:
    """A command with these parameters and those of every command, called with a ``Request`` and what is its own."""
    shared = (*_EVERY_COMMAND, *(_OF_A_SUITE if of_a_suite else ()))

    def decorate(function: Callable[..., int]) -> click.Command:
        @functools.wraps(function)
        def wrapped(plugins: tuple[str, ...], no_plugins: bool, trace_plugins: bool, **given: Any) -> int:
            registry = _registry(plugins, no_plugins, trace_plugins)
            if not given["quiet"]:
                complain_of(registry.plugins)
            common = {key: given.pop(key) for key in Request.__annotations__ if key in given}
            return function(Request(registry=registry, **common), **given)

        return click.command(name, params=[*parameters, *shared])(wrapped)

    return decorate


def _registry(paths: tuple[str, ...], no_plugins: bool, trace_plugins: bool) -> Registry:
    from smimbench.registry.registry import Registry, set_registry

    wanted = [p for p in os.environ.get("SMIMBENCH_PLUGINS", "").split(os.pathsep) if p] + list(paths)
    trace = (lambda line: click.echo(line, err=True)) if trace_plugins else None
    third_party = not (no_plugins or os.environ.get("SMIMBENCH_NO_PLUGINS"))
    registry = Registry(wanted, third_party=third_party, trace=trace)
    set_registry(registry)
    return registry


def complain_of(plugins: Iterable[Plugin]) -> None:
    """Say which plugins were not loaded, and why."""
    for plugin in plugins:
        if plugin.failed:
            complain(f"plugin {plugin.name} ({plugin.origin}) was not loaded: {'; '.join(plugin.problems)}")
