"""Commands on items and the installation: ``list``, ``info``, ``plugins``, ``check``, ``new``, ``help`` and ``doctor``."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from smimbench.cli.options import (
    JSON,
    NOT_OK,
    OK,
    Request,
    command,
    flag,
    make_console,
    option,
    output_option,
    print_json,
    repeatable_option,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console

    from smimbench.files import JsonObject
    from smimbench.registry.items import Parameters
    from smimbench.testing import Outcome
    from smimbench.testing.context import CheckContext

STATUS_STYLES = {"passed": "green", "failed": "bold red", "skipped": "yellow"}


@command(
    click.Argument(
        ["kind"],
        required=False,
        type=click.Choice(
            [
                "models",
                "inputs",
                "channels",
                "priors",
                "metrics",
                "algorithms",
                "suites",
            ]
        ),
    ),
    JSON,
    name="list",
    of_a_suite=False,
)
def list_items(request: Request, kind: str | None) -> int:
    """List models, inputs, channels, priors, metrics, algorithms and suites."""
    from smimbench.report.catalogue import item_documents, print_items

    request.print_document(item_documents(kind), print_items)
    return OK


@command(
    click.Argument(["topic"], type=click.Choice(["verdict", "columns"])),
    JSON,
    name="help",
    of_a_suite=False,
)
def explain(request: Request, topic: str) -> int:
    """Explain what a verdict says, or the columns of the tables."""
    from smimbench.report.wording import (
        VERDICT_HELP,
        columns_document,
        print_columns,
        print_phrases,
    )

    if topic == "verdict":
        request.print_document(VERDICT_HELP, print_phrases)
    else:
        request.print_document(columns_document(), print_columns)
    return OK


@command(click.Argument(["name"]), JSON, of_a_suite=False)
def info(request: Request) -> int:
    """Describe one item or suite: parameters, defaults, source, equation."""
    from smimbench.report.catalogue import info_documents, print_info

    request.print_document(info_documents(request.name), print_info)
    return OK


@command(JSON, of_a_suite=False)
def plugins(request: Request) -> int:
    """List installed and drop-in plugins, and whether each was loaded."""
    from smimbench.report.catalogue import plugin_documents, print_plugins

    documents = plugin_documents()
    request.print_document(documents, print_plugins)
    return (
        NOT_OK if any(document["status"] == "failed" for document in documents) else OK
    )


@command(
    click.Argument(["names"], metavar="NAME...", nargs=-1),
    repeatable_option(
        "Set a parameter of the item; repeatable.", "KEY=VALUE", "--set", "settings"
    ),
    repeatable_option("Run this check only; repeatable.", "ID", "--only", "check_ids"),
    option("Seed of all random numbers.", "--seed", type=click.IntRange(0), default=0),
    flag(
        "List the checks and what a failure means; run nothing.", "--list", "list_only"
    ),
    JSON,
    of_a_suite=False,
)
def check(
    request: Request,
    names: tuple[str, ...],
    settings: tuple[str, ...],
    check_ids: tuple[str, ...],
    seed: int,
    list_only: bool,
) -> int:
    """Test whether an item does what its contract says.

    NAME is a registered item, as in 'smimbench list'; the checks are those of smimbench.testing. Exit code 1 if one fails.
    """
    from smimbench.testing import all_checks

    if list_only:
        documents = [
            {"kind": check.kind, "check": check.id, "meaning": check.meaning}
            for check in all_checks()
        ]
        request.print_document(documents, _print_checks)
        return OK
    if not names:
        raise click.UsageError(
            "give the NAME of an item to check (see 'smimbench list'); --list shows the checks"
        )
    documents = _run_checks(request, names, check_ids, seed, _read_parameters(settings))
    if request.as_json:
        print_json(documents)
    return NOT_OK if any(document["failed"] for document in documents) else OK


@command(
    click.Argument(
        ["kind"], type=click.Choice(["inputs", "channel", "prior", "algorithm"])
    ),
    click.Argument(["name"]),
    output_option(
        "Folder to write [default: ./smimbench-NAME].", folder=True, required=False
    ),
    JSON,
    name="new",
    of_a_suite=False,
)
def new_package(request: Request, kind: str, output: Path | None) -> int:
    """Create a working package with inputs, a channel, prior or algorithm of your own, ready to edit."""
    from smimbench.registry.scaffold import write_package

    package = write_package(kind, request.name, output)
    folder, files, commands = package.folder, package.files, package.commands
    if request.as_json:
        print_json({"folder": str(folder), "files": files, "next": commands})
    elif not request.quiet:
        click.echo(f"wrote {folder}: {', '.join(files)}")
        click.echo("\n  ".join(["next:", *commands]))
    return OK


@command(
    flag(
        "Measure and store the speed of matrix products and the memory bandwidth of this machine.",
        "--ceilings",
    ),
    JSON,
    of_a_suite=False,
)
def doctor(request: Request, ceilings: bool) -> int:
    """Show versions, BLAS, GPU, and the exact pip command for CuPy."""
    from smimbench.report.catalogue import diagnose, print_diagnosis

    document = diagnose(ceilings=ceilings)
    request.print_document(document, print_diagnosis)
    return OK if document["healthy"] else NOT_OK


def _read_parameters(settings: Iterable[str]) -> Parameters:
    """Parse ``KEY=VALUE`` options (``settings``) with TOML values; a value that is not TOML is taken as a string."""
    import tomllib

    from smimbench.testing import CheckError

    parameters: Parameters = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key.strip():
            raise CheckError(
                f"--set {setting}: must be KEY=VALUE, with a parameter of the item as KEY"
            )
        try:
            parameters[key.strip()] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            parameters[key.strip()] = text
    return parameters


def _run_checks(
    request: Request,
    item_names: Sequence[str],
    check_ids: Sequence[str],
    seed: int,
    parameters: Parameters,
) -> list[JsonObject]:
    """Run checks of the items with these names, made with these ``parameters``, and return a JSON object per item with the
    outcome of every check, printed at once unless JSON is wanted. ``check_ids`` name the checks (none: all), ``seed`` is that of
    their random numbers.
    """
    from smimbench import testing
    from smimbench.registry.items import parameters_of

    documents = []
    console = None if request.as_json else make_console()
    contexts: list[CheckContext] = []
    for item_name in item_names:
        contexts += testing.contexts(item_name, seed=seed, parameters=parameters)
    testing.require_known_ids(check_ids, contexts)
    for context in contexts:
        models = list(context.model_names) if context.kind != "model" else []
        document: JsonObject = {
            "kind": context.kind,
            "name": context.item.name,
            "distribution": context.distribution,
            "version": context.item.version,
            "models": models,
            "parameters": parameters_of(context.kind, context.item),
            "seed": seed,
        }
        on_outcome = None
        if console is not None:
            console.print(_item_title(document), style="bold")
            on_outcome = partial(_print_outcome, console, request.quiet)
        outcomes = testing.check(context, only=check_ids or None, on_outcome=on_outcome)
        statuses = Counter(outcome.status for outcome in outcomes)
        document |= {status: statuses[status] for status in STATUS_STYLES}
        document["checks"] = [asdict(outcome) for outcome in outcomes]
        documents.append(document)
        if console is not None:
            _print_counts(console, document, request.quiet)
    return documents


def _item_title(document: JsonObject) -> str:
    """Return the title of a checked item (its ``document``, as JSON): name, parameters, third-party package, and models."""
    parameters = (f"{key} = {value}" for key, value in document["parameters"].items())
    title = f"{document['kind']} {document['name']}({', '.join(parameters)})"
    if document["distribution"] != "smimbench":
        title += f" of {document['distribution']}"
    if document["models"]:
        title += f" for {', '.join(document['models'])}"
    return title


def _print_outcome(console: Console, quiet: bool, outcome: Outcome) -> None:
    """Print the outcome of one check on a line (status, name and message), and what a failure means if it failed; with ``quiet``,
    only failures.
    """
    from rich.table import Table
    from rich.text import Text

    from smimbench.testing.core import NOT_RUN

    if outcome.message.startswith(NOT_RUN) or (quiet and outcome.status != "failed"):
        return
    grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
    for width in (7, 15):
        grid.add_column(no_wrap=True, width=width)
    grid.add_column(ratio=1, overflow="fold")
    message_text = Text(outcome.message)
    if outcome.status == "failed":
        message_text.append(f"\n{outcome.meaning}", style="dim")
    grid.add_row(
        Text(outcome.status, style=STATUS_STYLES[outcome.status]),
        outcome.check,
        message_text,
    )
    console.print(grid, crop=False)


def _print_counts(console: Console, document: JsonObject, quiet: bool) -> None:
    """Print the number of checks of an item (``document``, as JSON) per status, after a line that names the checks that were
    not run.
    """
    from smimbench.testing.core import NOT_RUN

    checks = document["checks"]
    not_run = [check for check in checks if check["message"].startswith(NOT_RUN)]
    if not_run and not quiet:
        check_ids = ", ".join(check["check"] for check in not_run)
        console.print(
            f"{not_run[0]['message']}: {check_ids}", style=STATUS_STYLES["skipped"]
        )
    counts_text = ", ".join(f"{document[status]} {status}" for status in STATUS_STYLES)
    style = STATUS_STYLES["failed" if document["failed"] else "passed"]
    console.print(f"{counts_text}\n", style=style)


def _print_checks(console: Console, documents: Sequence[JsonObject]) -> None:
    """Print all checks that exist for every kind of item (``documents``, as JSON), with what a failure of each means."""
    from smimbench.report.columns import Column, make_table
    from smimbench.report.row import grouped

    columns = [
        Column("check", fields="check", words=True),
        Column("a failure means", fields="meaning", words=True),
    ]
    for kind, checks in grouped(documents, lambda check: check["kind"]).items():
        title = f"checks of {'an' if kind[0] in 'aeiou' else 'a'} {kind}"
        console.print(make_table(title, columns, checks, padding=1), crop=False)
        console.print()
