"""Shared by all commands: options, the request (suite, plugins, results folder), and printing of remarks."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import io
import json
import os
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from smimbench.files import documentation, printable, steady_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rich.console import Console, RenderableType

    from smimbench.registry.registry import Plugin
    from smimbench.run.answers import Answers
    from smimbench.run.store import Settings, Store
    from smimbench.run.theory_solver import OnProgress, TheorySolver
    from smimbench.suite.cells import Suite

OK, NOT_OK, BAD_INPUT, UNFORESEEN, AGAIN, INTERRUPTED = 0, 1, 2, 70, 75, 130
"""Exit codes: all cells ok; some are not; bad input; a mistake in smimbench or a plugin; the budget is spent; Ctrl-C."""


def complain(line: str) -> None:
    """Print a remark or an error on one line of standard error."""
    if sys.stderr is not None:  # closed by the parent process
        with contextlib.suppress(OSError, ValueError):
            print(f"smimbench: {' '.join(printable(line).split())}", file=sys.stderr)  # noqa: T201


def make_console(*, error: bool = False) -> Console:
    """Make a console for a terminal, or as wide as COLUMNS. Rich markup and terminal escapes in texts have no effect."""
    from smimbench.report.columns import safe_console

    stream = sys.stderr if error else sys.stdout
    asked = os.environ.get("COLUMNS", "80")
    columns = int(asked) if re.fullmatch("[0-9]{1,4}", asked) and int(asked) > 0 else 80
    return safe_console(stderr=error, width=None if stream.isatty() else columns)


def print_tables(console: Console, tables: Iterable[RenderableType]) -> None:
    """Print tables, with a blank line after each."""
    for table in tables:
        console.print(table, "", crop=False, sep="\n")


def print_data(text: str) -> None:
    """Print what another program reads to standard output: as UTF-8, whatever the terminal's encoding is."""
    stream = _OUT.get() or sys.stdout
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(encoding="utf-8", errors="replace")
    click.echo(text, file=stream, nl=False)


def print_json(document: Any) -> None:
    """Print one JSON document to standard output; null stands for a number that overflowed."""
    try:
        text = json.dumps(document, indent=2, allow_nan=False, default=str)
    except ValueError:
        from smimbench.run.record import plain

        text = json.dumps(plain(document), indent=2)
    print_data(text + "\n")


@contextlib.contextmanager
def only_json() -> Iterator[None]:
    """Reserve standard output for the JSON document; what plugins print goes to standard error."""
    token = _OUT.set(sys.stdout)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        _OUT.reset(token)


_OUT: contextvars.ContextVar[Any] = contextvars.ContextVar("out", default=None)


def option(text: str, *names: str, **more: Any) -> click.Option:
    """Define an option with a value, whose default the help shows."""
    return click.Option(names, help=text, show_default="default" in more, **more)


def flag(text: str, *names: str) -> click.Option:
    """Define an option without a value."""
    return option(text, *names, is_flag=True)


def several(text: str, metavar: str, *names: str) -> click.Option:
    """Define an option that may be repeated."""
    return option(text, *names, multiple=True, metavar=metavar)


def output_option(
    text: str, *, folder: bool = False, required: bool = True
) -> click.Option:
    """Define the option for the output path: a file or a folder."""
    where = click.Path(file_okay=not folder, dir_okay=folder, path_type=Path)
    return option(
        text, "--output", type=where, required=required, callback=_with_a_name
    )


def _with_a_name(
    ctx: click.Context, param: click.Parameter, path: Path | None
) -> Path | None:
    """Reject an empty output path, which click would accept as the working folder."""
    if path is not None and not path.name:
        raise click.BadParameter("is empty; it must name what to write", ctx, param)
    return path


def complete_suite(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Shell completion of suites: shipped names, and paths by the shell itself."""
    from smimbench.suite.document import shipped_suites

    names = [
        CompletionItem(name) for name in shipped_suites() if name.startswith(incomplete)
    ]
    return (
        [*names, CompletionItem(incomplete, type="file")]
        if not names or not incomplete
        else names
    )


class Quantity(click.ParamType):  # type: ignore[type-arg]
    """Option type for a number with a unit, such as ``90s``, ``2h`` or ``4GB``; a bare number is in the first unit."""

    def __init__(self, name: str, units: dict[str, float]) -> None:
        self.name = name
        self.units = units

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Convert the text to the smallest unit (seconds or bytes)."""
        sizes = {"": next(iter(self.units.values()))} | {
            unit.lower(): size for unit, size in self.units.items()
        }
        found = re.fullmatch(
            r"([0-9]{1,12}(?:\.[0-9]{1,12})?)\s*([a-z%]*)", str(value).strip().lower()
        )
        if not found or found[2] not in sizes or float(found[1]) <= 0:
            self.fail(
                f"must be a number > 0 with one of the units {', '.join(self.units)}, got {value!r}",
                param,
                ctx,
            )
        return float(found[1]) * sizes[found[2]]


DURATION = Quantity("TIME", {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400})
PERCENT = Quantity("PERCENT", {"%": 0.01})
SIZE = Quantity("SIZE", {"GB": 2**30, "MB": 2**20, "TB": 2**40})

SUITE = click.Argument(["name"], metavar="SUITE", shell_complete=complete_suite)
SUITE_OR_FOLDER = click.Argument(
    ["name"], metavar="SUITE|DIR", shell_complete=complete_suite
)
JSON = flag("Print one JSON document and nothing else.", "--json", "as_json")
AGAINST = option(
    "Compare every algorithm with this one, instance by instance [default: the best].",
    "--against",
    metavar="ALGORITHM",
)
FULL = flag("Show every row of every table.", "--full")
WIDTH = option(
    "Figures of 3.4 or of 7 inches [default: a column for one panel, a page for several].",
    "--width",
    type=click.Choice(["column", "page"]),
)
RESULTS = option(
    "Folder of results.",
    "--results",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("results"),
)
_EVERY_COMMAND = (
    flag("Print no progress and no remarks.", "--quiet"),
    flag("Log to standard error what is loaded from where.", "--trace-plugins"),
    flag("Load only what ships with smimbench.", "--no-plugins"),
    several("Load plugins from a file or folder.", "PATH", "--plugins"),
)
_OF_A_SUITE = (
    several(
        "A part of the suite: algorithm=gamp, alpha=0.1, dimension=80, seed=0, problem=LABEL.",
        "KEY=VALUE",
        "--only",
    ),
    several(
        "Override any key: grid.seed=1, algorithms.adam.steps=100.",
        "KEY=VALUE",
        "--set",
        "overrides",
    ),
    several(
        'One more algorithm, as it is or as \'{name="adam", steps=50, label="short"}\'.',
        "ALGORITHM",
        "--add",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Request:
    """Options shared by commands: the suite with its changes, the plugins, and the form of the output."""

    quiet: bool
    as_json: bool = False
    name: str = ""
    overrides: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    results: Path = Path("results")
    text: str = ""

    @property
    def silent(self) -> bool:
        """Whether nothing is said of what goes on, nor of files that were written."""
        return self.quiet or self.as_json

    def suite(self) -> Suite:
        """The suite from a path, a shipped name, a folder of results (its ``run.json`` holds the text), or its own text."""
        from smimbench.registry.registry import get_registry
        from smimbench.suite.reader import load_suite, parse_suite

        plugins = get_registry().plugins
        known = len(plugins)
        try:
            if self.text:
                suite = self._suite_of_options()
            elif (found := self.settings()) is None:
                suite = load_suite(self.name, self.overrides, self.only)
                if any(algorithm.tune for algorithm in suite.algorithms):
                    from smimbench.run.tuning import tuned

                    suite = tuned(suite, self.store(suite))
            else:
                given = [*found.shared.get("overrides", []), *self.overrides]
                only = self.only or found.shared.get("only", [])
                if found.folder != Path(self.name) and (self.overrides or self.only):
                    given, only = (
                        [*self.overrides],
                        self.only,
                    )  # of the suite as written, not of another change of it
                # Results may come from anybody: to look at them must not run what lies in the folder where one stands.
                path, text = Path(f"{found.suite}.toml"), found.shared["text"]
                suite = parse_suite(path, text, given, only, stored=True)
                suite = suite.with_choices(found.shared)
            self.remark(suite.remarks)
            return suite
        finally:
            complain_of(
                plugins[known:], quiet=self.quiet
            )  # of ./plugins, if the suite asks for it

    def _suite_of_options(self) -> Suite:
        """The suite that options describe; a mistake names the option, since there is no file."""
        from smimbench.suite import SuiteError
        from smimbench.suite.reader import parse_suite

        path = Path(f"{self.name}.toml")
        try:
            return parse_suite(path, self.text, self.overrides, self.only)
        except SuiteError as error:
            said = re.sub(
                r"^problem\.(\w+)\.name:",
                r"--\1:",
                str(error).removeprefix(f"{path}: "),
            )
            raise click.UsageError(
                re.sub(r"^problem\.(model|channel|prior|inputs)\.", "--", said)
            ) from None

    def settings(self) -> Settings | None:
        """The only run in a results folder; None if a suite is named instead.

        Raises
        ------
        SuiteError
            If the folder holds none, or several.
        """
        from smimbench.run.store import settings_under, why_none
        from smimbench.suite import SuiteError
        from smimbench.suite.document import shipped_suites

        folder = Path(self.name)
        if (
            self.text or self.name in shipped_suites() or not folder.is_dir()
        ):  # a shipped suite keeps its name
            return None
        found = settings_under(folder)
        if len(found) == 1:
            return found[0]
        if found:
            several = ", ".join(str(one.folder) for one in found)
            raise SuiteError(
                self.name,
                "",
                f"this folder has results of several runs; name one of them: {several}",
            )
        raise SuiteError(self.name, "", why_none(folder))

    def store(self, suite: Suite) -> Store:
        """Store with the records of a suite: the named results folder, or the suite's folder under ``--results``."""
        from smimbench.run.store import Store

        found = self.settings()
        return Store(self.results / suite.name) if found is None else found.store

    def answers(self, suite: Suite, store: Store) -> Answers:
        """Theory that is stored next to the results of a suite."""
        from smimbench.run.answers import Answers
        from smimbench.run.store import theory_folder

        folder, predictions = theory_folder(store), suite.needs_prediction_errors
        return Answers(
            folder, predictions=predictions, on_remark=lambda line: self.remark([line])
        )

    def solver(
        self,
        folder: Path,
        on_progress: OnProgress,
        *,
        predictions: bool,
        deadline: float | None = None,
    ) -> TheorySolver:
        """Solver of theory, which stores its answers in a folder."""
        from smimbench.run.theory_solver import TheorySolver

        return TheorySolver(
            folder,
            isolated=True,
            deadline=deadline,
            predictions=predictions,
            on_progress=on_progress,
            on_remark=lambda line: self.remark([line]),
        )

    def options(self) -> list[str]:
        """Options of this request (changes, part, plugins) as shell words, for use with another command."""
        from smimbench.registry.registry import get_registry

        given = {
            "--set": self.overrides,
            "--only": self.only,
            "--plugins": get_registry().paths,
        }
        return [
            word
            for option, values in given.items()
            for value in values
            for word in (option, str(value))
        ]

    def typed(self, command: str) -> str:
        """Text of another command on the same suite, with the same options and results folder."""
        results = (
            [] if self.results == Path("results") else ["--results", str(self.results)]
        )
        return shlex.join(["smimbench", command, self.name, *results, *self.options()])

    def remark(self, lines: Iterable[str]) -> None:
        """Print lines on standard error, unless the user disabled them."""
        for line in () if self.quiet else lines:
            complain(line)

    def answer(self, document: Any, show: Callable[[Console, Any], None]) -> None:
        """Print the document as JSON, or as tables for a terminal."""
        if self.as_json:
            print_json(document)
        else:
            show(make_console(), document)


def command(
    *parameters: click.Parameter,
    name: str | None = None,
    of_a_suite: bool = True,
    **settings: Any,
) -> Callable[[Callable[..., int]], click.Command]:
    """Define a command with its own parameters and the shared ones; it is called with a ``Request`` and its own."""
    shared = (*_EVERY_COMMAND, *(_OF_A_SUITE if of_a_suite else ()))

    def decorate(function: Callable[..., int]) -> click.Command:
        @functools.wraps(function)
        def wrapped(
            plugins: tuple[str, ...],
            no_plugins: bool,
            trace_plugins: bool,
            **given: Any,
        ) -> int:
            _spare_the_suite(given.get("name"), given.get("output"))
            with only_json() if given.get("as_json") else contextlib.nullcontext():
                with contextlib.redirect_stdout(sys.stderr), steady_folder():
                    loaded = _load_plugins(plugins, no_plugins, trace_plugins)
                complain_of(loaded, quiet=given["quiet"])
                if of_a_suite:  # first, so that --set can reach into what was added
                    given["overrides"] = (
                        *(f"algorithms+={one}" for one in given.pop("add")),
                        *given["overrides"],
                    )
                common = {
                    key: given.pop(key)
                    for key in Request.__annotations__
                    if key in given
                }
                return function(Request(**common), **given)

        about = documentation(function)
        return click.command(
            name, help=about, params=[*parameters, *shared], context_settings=settings
        )(wrapped)

    return decorate


def _spare_the_suite(name: str | None, output: Path | None) -> None:
    """Raise an error if the output path is the suite file that is being read."""
    if (
        name
        and output is not None
        and output.is_file()
        and os.path.exists(name)
        and output.samefile(name)
    ):
        raise click.BadParameter(
            f"{output} is the suite itself; name another file", param_hint="--output"
        )


def _load_plugins(
    paths: tuple[str, ...], no_plugins: bool, trace_plugins: bool
) -> Iterable[Plugin]:
    from smimbench.registry.registry import make_registry, set_registry

    for path in paths:
        if not os.path.exists(path):
            raise click.BadParameter(
                f"Path {path!r} does not exist.", param_hint="'--plugins'"
            )
    trace = (lambda line: click.echo(line, err=True)) if trace_plugins else None
    registry = make_registry(paths, third_party=not no_plugins, trace=trace)
    set_registry(registry)
    return registry.plugins


def complain_of(plugins: Iterable[Plugin], *, quiet: bool) -> None:
    """Print which plugins could not be loaded and, unless the user disabled remarks, which of two items a name means."""
    from smimbench.registry.registry import complaints_of

    for line in complaints_of(
        plugin for plugin in plugins if plugin.failed or not quiet
    ):
        complain(line)
