"""Options, request (suite, plugins, results folder) and output that all commands share."""

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
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click
from click.shell_completion import CompletionItem

from smimbench.files import documentation, printable, restored_working_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rich.console import Console, RenderableType

    from smimbench.registry.registry import Plugin
    from smimbench.run.answers import Answers
    from smimbench.run.store import Settings, Store
    from smimbench.suite.cells import Suite

OK, NOT_OK, BAD_INPUT, UNEXPECTED_ERROR, INCOMPLETE, INTERRUPTED = 0, 1, 2, 70, 75, 130
"""Exit codes: all cells ok; some not ok; invalid input; a bug in smimbench or a plugin; time budget exhausted; Ctrl-C."""

Document = TypeVar("Document")


def print_message(message: str) -> None:
    """Print a remark or an error on one line of standard error."""
    if sys.stderr is not None:  # closed by the parent process
        with contextlib.suppress(OSError, ValueError):
            print(f"smimbench: {' '.join(printable(message).split())}", file=sys.stderr)  # noqa: T201


def make_console(*, to_stderr: bool = False) -> Console:
    """Make a console as wide as the terminal or the variable COLUMNS, for texts in which markup and escapes have no effect."""
    from smimbench.report.columns import safe_console

    stream = sys.stderr if to_stderr else sys.stdout
    columns_match = re.fullmatch("0*([1-9][0-9]{,3})", os.environ.get("COLUMNS", ""))
    width = int(columns_match[1]) if columns_match else 80
    return safe_console(stderr=to_stderr, width=None if stream.isatty() else width)


def print_tables(console: Console, tables: Iterable[RenderableType]) -> None:
    """Print tables, with a blank line after each."""
    for table in tables:
        console.print(table, "", crop=False, sep="\n")


def print_data(text: str) -> None:
    """Print machine-readable output to standard output, always as UTF-8."""
    stream = _STANDARD_OUTPUT.get() or sys.stdout
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(encoding="utf-8", errors="replace")
    click.echo(text, file=stream, nl=False)


def print_json(document: object) -> None:
    """Print one JSON document to standard output, with null for numbers that overflowed."""
    try:
        text = json.dumps(document, indent=2, allow_nan=False, default=str)
    except ValueError:
        from smimbench.run.record import json_value

        text = json.dumps(json_value(document), indent=2)
    print_data(text + "\n")


@contextlib.contextmanager
def reserve_stdout_for_json() -> Iterator[None]:
    """Within the context, reserve standard output for the JSON document; what plugins print goes to standard error."""
    token = _STANDARD_OUTPUT.set(sys.stdout)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        _STANDARD_OUTPUT.reset(token)


_STANDARD_OUTPUT: contextvars.ContextVar[TextIO | None] = contextvars.ContextVar(
    "standard output", default=None
)


def option(help_text: str, *option_names: str, **click_settings: Any) -> click.Option:
    """Define an option with a value, whose default the help shows."""
    return click.Option(
        option_names,
        help=help_text,
        show_default="default" in click_settings,
        **click_settings,
    )


def flag(help_text: str, *option_names: str) -> click.Option:
    """Define an option without a value (true if given)."""
    return option(help_text, *option_names, is_flag=True)


def repeatable_option(help_text: str, metavar: str, *option_names: str) -> click.Option:
    """Define an option that can be given several times."""
    return option(help_text, *option_names, multiple=True, metavar=metavar)


def output_option(
    help_text: str, *, folder: bool = False, required: bool = True
) -> click.Option:
    """Define the option for the output path: a file or a folder."""
    path_type = click.Path(file_okay=not folder, dir_okay=folder, path_type=Path)
    return option(
        help_text,
        "--output",
        type=path_type,
        required=required,
        callback=_refuse_empty_path,
    )


def _refuse_empty_path(
    ctx: click.Context, param: click.Parameter, path: Path | None
) -> Path | None:
    """Reject an empty output path, which click would take for the current folder."""
    if path is not None and not path.name:
        raise click.BadParameter(
            "the path is empty; give the file or folder to write", ctx, param
        )
    return path


def complete_suite(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Shell completion of suites: shipped names, and paths by the shell itself."""
    from smimbench.suite.document import shipped_suites

    completions = [
        CompletionItem(name) for name in shipped_suites() if name.startswith(incomplete)
    ]
    if incomplete and completions:
        return completions
    return [*completions, CompletionItem(incomplete, type="file")]


class Quantity(click.ParamType):  # type: ignore[type-arg]
    """Option type for a number with a unit, such as ``90s``, ``2h`` or ``4GB``; a bare number is in the first unit."""

    def __init__(self, name: str, units: dict[str, float]) -> None:
        """Make an option type with this ``name``; ``units`` map the names of units to their size."""
        self.name = name
        self.units = units

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Convert the text of an option, such as ``2h``, to a number in the smallest unit (seconds or bytes)."""
        factors = {unit.lower(): factor for unit, factor in self.units.items()}
        factors[""] = next(iter(factors.values()))
        match = re.fullmatch(
            r"([0-9]{1,12}(?:\.[0-9]{1,12})?)\s*([a-z%]*)", str(value).strip().lower()
        )
        if not match or match[2] not in factors or float(match[1]) <= 0:
            unit_names = ", ".join(self.units)
            self.fail(
                f"must be a number > 0 with one of the units {unit_names}, got {value!r}",
                param,
                ctx,
            )
        return float(match[1]) * factors[match[2]]


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
FULL = flag("Show all tables, with all rows.", "--full")


def _check_figure_option(
    ctx: click.Context, param: click.Parameter, text_or_path: str | Path | None
) -> str | Path | None:
    """Refuse a width that no figure can have, and a file of another kind than figures are written as."""
    from smimbench.report.style import file_type, width_in_inches

    try:
        if isinstance(text_or_path, Path):
            file_type(text_or_path)
        elif text_or_path is not None:
            width_in_inches(text_or_path)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None
    return text_or_path


FIGURE = (
    option(
        "Width of figures: 3.3in, 84mm, 240pt, column (3.4in), page (7in) [default: column for one panel, else page].",
        "--width",
        metavar="LENGTH",
        callback=_check_figure_option,
    ),
    flag(
        "Leave out title and note of figures, which a caption replaces; several panels keep theirs.",
        "--no-title",
    ),
    option(
        "File of the figure, .png, .svg or .pdf, with its data as .csv; further figures stand next to it, as FILE-NAME.",
        "--output",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        callback=_check_figure_option,
    ),
)
"""Options of all commands that draw."""
RESULTS = option(
    "Folder that holds results.",
    "--results",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("results"),
)
_EVERY_COMMAND = (
    flag("Print no progress and no remarks.", "--quiet"),
    flag(
        "Log which plugins are loaded from where, on standard error.", "--trace-plugins"
    ),
    flag("Ignore all third-party plugins.", "--no-plugins"),
    repeatable_option("Load plugins from a file or folder.", "PATH", "--plugins"),
)
_OF_A_SUITE = (
    repeatable_option(
        "Select part of the suite: algorithm=gamp, alpha=0.1, dimension=80, seed=0, problem=LABEL.",
        "KEY=VALUE",
        "--only",
    ),
    repeatable_option(
        "Override any key of the suite: grid.seed=1, algorithms.adam.steps=100.",
        "KEY=VALUE",
        "--set",
        "overrides",
    ),
    repeatable_option(
        'Add an algorithm, by name or as \'{name="adam", steps=50, label="short"}\'.',
        "ALGORITHM",
        "--add",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Request:
    """Options shared by commands: the suite with its changes, the plugins, and the form of the output.

    ``notes``: remarks on the suite and its runs, which follow the verdict; commands without a verdict end with them.
    """

    quiet: bool
    as_json: bool = False
    as_csv: bool = False
    name: str = ""
    overrides: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    results: Path = Path("results")
    suite_text: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def silent(self) -> bool:
        """Whether progress and paths of written files are not to be printed."""
        return self.quiet or self.as_json or self.as_csv

    def suite(self) -> Suite:
        """The suite from a path, a shipped name, a results folder (from its ``run.json``), or options."""
        from smimbench.registry.registry import get_registry

        plugins = get_registry().plugins
        count_before = len(plugins)
        try:
            suite = self._read_suite()
        finally:  # plugins in ./plugins are loaded if the suite asks for them
            print_plugin_messages(plugins[count_before:], quiet=self.quiet)
        self.notes.extend(suite.remarks)
        return suite

    def _read_suite(self) -> Suite:
        """Read the suite with its overrides and tuned parameters, from a file or from the ``run.json`` of a results folder."""
        from smimbench.run.store import trials_of
        from smimbench.suite.reader import load_suite, parse_suite

        if self.suite_text:
            return self._suite_of_options()
        stored_settings = self.settings()
        if stored_settings is None:
            suite = load_suite(self.name, self.overrides, self.only)
            store = self.store(suite)
            if trials_of(store).folder.exists():
                from smimbench.run.tuning import with_tuned_settings

                suite = with_tuned_settings(suite, store)
            return suite
        run_document = stored_settings.run_json
        overrides = [*run_document.get("overrides", []), *self.overrides]
        only = self.only or run_document.get("only", [])
        if stored_settings.folder != Path(self.name) and (self.overrides or self.only):
            # Of the suite as written, not of another change of it.
            overrides, only = [*self.overrides], self.only
        # Results may come from anybody: to look at them must not run code in the working folder.
        path = Path(f"{stored_settings.suite}.toml")
        suite = parse_suite(
            path, run_document["text"], overrides, only, from_results=True
        )
        return suite.with_choices(run_document.get("choices", []))

    def _suite_of_options(self) -> Suite:
        """Make the suite that the options describe; error messages name the option instead of a file."""
        from smimbench.suite import SuiteError
        from smimbench.suite.reader import parse_suite

        path = Path(f"{self.name}.toml")
        try:
            return parse_suite(path, self.suite_text, self.overrides, self.only)
        except SuiteError as error:
            message = str(error).removeprefix(f"{path}: ")
            message = re.sub(r"^problem\.(\w+)\.name:", r"--\1:", message)
            message = re.sub(r"^problem\.(model|channel|prior|inputs)\.", "--", message)
            raise click.UsageError(message) from None

    def settings(self) -> Settings | None:
        """Settings of the only run in the results folder that is named; None if a suite is named instead.

        Raises
        ------
        SuiteError
            If the folder holds none, or several.
        """
        from smimbench.run.store import settings_under, why_no_runs
        from smimbench.suite import SuiteError
        from smimbench.suite.document import shipped_suites

        folder = Path(self.name)
        is_suite = self.suite_text or self.name in shipped_suites()
        if is_suite or not folder.is_dir():
            return None
        runs = settings_under(folder)
        if len(runs) > 1:
            folders = ", ".join(str(run.folder) for run in runs)
            reason = (
                f"this folder has results of several runs; name one of them: {folders}"
            )
            raise SuiteError(self.name, "", reason)
        if not runs:
            raise SuiteError(self.name, "", why_no_runs(folder))
        return runs[0]

    def store(self, suite: Suite) -> Store:
        """Open the store of a suite's records: the results folder that is named, or the suite's folder under ``--results``."""
        from smimbench.run.store import Store

        settings = self.settings()
        return settings.store if settings else Store(self.results / suite.name)

    def answers(self, suite: Suite, store: Store) -> Answers:
        """Open the solved theory that is stored next to the results of a suite."""
        from smimbench.run.answers import Answers
        from smimbench.run.store import theory_folder

        return Answers(
            theory_folder(store),
            prediction_errors=suite.needs_prediction_errors,
            on_remark=self.remark,
        )

    def options(self) -> list[str]:
        """Options of this request (--set, --only, --add, --plugins) as shell words, to print another command."""
        from smimbench.registry.registry import get_registry

        words: list[str] = []
        for option_name, arguments in (
            ("--set", self.overrides),
            ("--only", self.only),
            ("--plugins", get_registry().paths),
        ):
            for argument in arguments:
                words += [option_name, str(argument)]
        return words

    def command_line(self, command: str) -> str:
        """Return the command line that runs another command on this suite, with the same options and results folder."""
        results_option = (
            [] if self.results == Path("results") else ["--results", str(self.results)]
        )
        return shlex.join(
            ["smimbench", command, self.name, *results_option, *self.options()]
        )

    def remark(self, *messages: str) -> None:
        """Print remarks on standard error, unless the user chose --quiet."""
        for message in () if self.quiet else messages:
            print_message(message)

    def print_document(
        self, document: Document, show: Callable[[Console, Document], None]
    ) -> None:
        """Print a document as JSON with ``--json``, otherwise as tables for a terminal."""
        if self.as_json:
            print_json(document)
        else:
            show(make_console(), document)


def command(
    *parameters: click.Parameter,
    name: str | None = None,
    of_a_suite: bool = True,
    **context_settings: object,
) -> Callable[[Callable[..., int]], click.Command]:
    """Define a command of the command line; its function is called with a ``Request`` (the shared options) and the command's own
    parameters.
    """
    shared_options = (*_EVERY_COMMAND, *(_OF_A_SUITE if of_a_suite else ()))

    def decorate(function: Callable[..., int]) -> click.Command:
        """Make a click command from a function."""

        @functools.wraps(function)
        def wrapped(
            plugins: tuple[str, ...],
            no_plugins: bool,
            trace_plugins: bool,
            **arguments: Any,
        ) -> int:
            """Load the plugins, collect the shared options in a ``Request``, and run the command."""
            _refuse_suite_as_output(arguments.get("name"), arguments.get("output"))
            with (
                reserve_stdout_for_json()
                if arguments.get("as_json")
                else contextlib.nullcontext()
            ):
                with contextlib.redirect_stdout(sys.stderr), restored_working_folder():
                    loaded_plugins = _load_plugins(plugins, no_plugins, trace_plugins)
                print_plugin_messages(loaded_plugins, quiet=arguments["quiet"])
                if of_a_suite:  # added algorithms first: --set can change them
                    added_algorithms = (
                        f"algorithms+={algorithm_table}"
                        for algorithm_table in arguments.pop("add")
                    )
                    arguments["overrides"] = (
                        *added_algorithms,
                        *arguments["overrides"],
                    )
                request_fields = {
                    field_name: arguments.pop(field_name)
                    for field_name in Request.__annotations__
                    if field_name in arguments
                }
                request = Request(**request_fields)
                try:
                    return function(request, **arguments)
                finally:
                    request.remark(*dict.fromkeys(request.notes))

        help_text = documentation(function)
        return click.command(
            name,
            help=help_text,
            params=[*parameters, *shared_options],
            context_settings=context_settings,
        )(wrapped)

    return decorate


def _refuse_suite_as_output(name: str | None, output: Path | None) -> None:
    """Raise an error if the output would overwrite the suite file that is being read."""
    if not name or output is None:
        return
    if output.is_file() and os.path.exists(name) and output.samefile(name):
        raise click.BadParameter(
            f"{output} is the suite file itself; choose another output file",
            param_hint="--output",
        )


def _load_plugins(
    paths: tuple[str, ...], no_plugins: bool, trace_plugins: bool
) -> Iterable[Plugin]:
    """Load shipped, installed and drop-in plugins, and those at these paths; raise an error for a path without Python files."""
    from smimbench.registry.registry import make_registry, set_registry

    for path in paths:
        if not os.path.exists(path):
            raise click.BadParameter(
                f"Path {path!r} does not exist.", param_hint="'--plugins'"
            )
        if not (path.endswith(".py") or any(Path(path).glob("*.py"))):
            raise click.BadParameter(
                f"{path!r} is neither a file that ends in .py nor a folder with one.",
                param_hint="'--plugins'",
            )
    print_import = (lambda line: click.echo(line, err=True)) if trace_plugins else None
    registry = make_registry(paths, third_party=not no_plugins, trace=print_import)
    set_registry(registry)
    return registry.plugins


def print_plugin_messages(plugins: Iterable[Plugin], *, quiet: bool) -> None:
    """Print which plugins could not be loaded and, without --quiet, which of several items a name refers to."""
    from smimbench.registry.registry import plugin_warnings

    for message in plugin_warnings(
        plugin for plugin in plugins if plugin.failed or not quiet
    ):
        print_message(message)
