"""Commands about items and the installation: ``list``, ``info``, ``plugins``, ``check``, ``new`` and ``doctor``."""

from __future__ import annotations

from pathlib import Path

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
    several,
)


@command(
    click.Argument(
        ["kind"], required=False, type=click.Choice(["models", "channels", "priors", "metrics", "algorithms", "suites"])
    ),
    JSON,
    name="list",
    of_a_suite=False,
)
def list_items(request: Request, kind: str | None) -> int:
    """List models, channels, priors, metrics, algorithms and suites."""
    from smimbench.report.catalogue import item_documents, print_items

    request.answer(item_documents(request.registry, kind), print_items)
    return OK


@command(click.Argument(["topic"], type=click.Choice(["columns"])), JSON, name="help", of_a_suite=False)
def explain(request: Request, topic: str) -> int:
    """What the columns of the tables mean."""
    from smimbench.report.columns import columns_document, print_columns

    request.answer(columns_document(), print_columns)
    return OK


@command(click.Argument(["name"]), JSON, of_a_suite=False)
def info(request: Request) -> int:
    """Describe one item or suite: parameters, defaults, source, equation."""
    from smimbench.report.catalogue import info_documents, print_info

    request.answer(info_documents(request.registry, request.name), print_info)
    return OK


@command(JSON, of_a_suite=False)
def plugins(request: Request) -> int:
    """List installed and drop-in plugins, and whether each was loaded."""
    from smimbench.report.catalogue import plugin_documents, print_plugins

    documents = plugin_documents(request.registry)
    request.answer(documents, print_plugins)
    return NOT_OK if any(d["status"] == "failed" for d in documents) else OK


@command(
    click.Argument(["names"], metavar="NAME...", nargs=-1),
    several("Parameter of the item; repeatable.", "KEY=VALUE", "--set", "settings"),
    several("Run this check only; repeatable.", "ID", "--only", "chosen"),
    option("Seed of all random numbers.", "--seed", type=click.IntRange(0), default=0),
    flag("List the checks and what a failure means; run nothing.", "--list", "list_only"),
    JSON,
    of_a_suite=False,
)
def check(
    request: Request,
    names: tuple[str, ...],
    settings: tuple[str, ...],
    chosen: tuple[str, ...],
    seed: int,
    list_only: bool,
) -> int:
    """Test whether an item does what its contract says.

    NAME is a registered item, as in 'smimbench list'; the checks are those of smimbench.testing. Exit code 1 if one fails.
    """
    from smimbench.testing import terminal

    if list_only:
        request.answer(terminal.list_documents(), terminal.print_list)
        return OK
    if not names:
        raise click.UsageError("say what to check: NAME, as in 'smimbench list'; --list shows the checks")
    documents = terminal.run_checks(
        names,
        only=chosen,
        seed=seed,
        parameters=terminal.read_parameters(settings),
        console=None if request.as_json else make_console(),
        quiet=request.quiet,
    )
    if request.as_json:
        print_json(documents)
    return NOT_OK if any(document["failed"] for document in documents) else OK


@command(
    click.Argument(["kind"], type=click.Choice(["channel", "prior", "algorithm"])),
    click.Argument(["name"]),
    output_option("Folder to write [default: ./smimbench-NAME].", folder=True, required=False),
    JSON,
    of_a_suite=False,
)
def new(request: Request, kind: str, output: Path | None) -> int:
    """Create a working package for a channel, prior or algorithm of your own, to edit."""
    from smimbench.registry.scaffold import write_package

    made = write_package(kind, request.name, output, request.registry)
    if request.as_json:
        print_json({"folder": str(made.folder), "files": made.files, "next": made.commands})
    elif not request.quiet:
        click.echo(f"wrote {made.folder}: {', '.join(made.files)}")
        click.echo("next:")
        for line in made.commands:
            click.echo(f"  {line}")
    return OK


@command(
    flag("Measure matrix products and memory bandwidth of this machine, and remember them.", "--ceilings"),
    JSON,
    of_a_suite=False,
)
def doctor(request: Request, ceilings: bool) -> int:
    """Show versions, BLAS, GPU, and the exact pip command for CuPy."""
    from smimbench.report.doctor import diagnose, print_diagnosis

    document = diagnose(request.registry, ceilings=ceilings)
    request.answer(document, print_diagnosis)
    return OK if document["healthy"] else NOT_OK
