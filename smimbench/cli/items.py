"""What there is and whether it works: ``list``, ``info``, ``plugins``, ``check``, ``new`` and ``doctor``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from smimbench.cli.options import (
    NOT_OK,
    OK,
    json_option,
    make_console,
    print_json,
    shared_options,
    with_registry,
)

if TYPE_CHECKING:
    from smimbench.registry.registry import Registry


@click.command(name="list")
@click.argument(
    "kind",
    required=False,
    type=click.Choice(["models", "channels", "priors", "metrics", "algorithms", "suites"]),
)
@json_option
@shared_options(suite_options=False)
@with_registry
def list_items(kind: str | None, as_json: bool, quiet: bool, registry: Registry) -> int:
    """What there is: models, channels, priors, metrics, algorithms, suites."""
    from smimbench.report.catalogue import item_documents, print_items

    documents = item_documents(registry, kind)
    if as_json:
        print_json(documents)
    else:
        print_items(make_console(), documents)
    del quiet
    return OK


@click.command()
@click.argument("name")
@json_option
@shared_options(suite_options=False)
@with_registry
def info(name: str, as_json: bool, quiet: bool, registry: Registry) -> int:
    """Everything about one item or suite: parameters, defaults, source, equation."""
    from smimbench.report.catalogue import info_documents, print_info

    documents = info_documents(registry, name)
    if as_json:
        print_json(documents)
    else:
        print_info(make_console(), documents)
    del quiet
    return OK


@click.command()
@json_option
@shared_options(suite_options=False)
@with_registry
def plugins(as_json: bool, quiet: bool, registry: Registry) -> int:
    """Installed and dropped-in plugins, with what became of each."""
    from smimbench.report.catalogue import plugin_documents, print_plugins

    documents = plugin_documents(registry)
    if as_json:
        print_json(documents)
    else:
        print_plugins(make_console(), documents)
    del quiet
    return NOT_OK if any(d["status"] == "failed" for d in documents) else OK


@click.command()
@click.argument("names", metavar="NAME...", nargs=-1)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="A parameter of the item; may be given often.",
)
@click.option("--only", "chosen", multiple=True, metavar="ID", help="This check only; may be given often.")
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Of everything that is drawn; the same seed gives the same outcomes.",
)
@click.option("--list", "list_only", is_flag=True, help="The checks and what a failure means; run nothing.")
@json_option
@shared_options(suite_options=False)
@with_registry
def check(
    names: tuple[str, ...],
    settings: tuple[str, ...],
    chosen: tuple[str, ...],
    seed: int,
    list_only: bool,
    as_json: bool,
    quiet: bool,
    registry: Registry,
) -> int:
    """Whether a channel, prior, algorithm or model does what its contract says.

    NAME is a registered item, as in 'smimbench list'; the checks are those of smimbench.testing. Exit code 1 if one fails.
    """
    from smimbench.testing import terminal

    del registry  # made the one of this process
    if list_only:
        documents = terminal.list_documents()
        if as_json:
            print_json(documents)
        else:
            terminal.print_list(make_console(), documents)
        return OK
    if not names:
        raise click.UsageError("say what to check: NAME, as in 'smimbench list'; --list shows the checks")
    documents = terminal.check_documents(
        names, only=chosen, seed=seed, parameters=terminal.read_parameters(settings)
    )
    if as_json:
        print_json(documents)
    else:
        terminal.print_checks(make_console(), documents, quiet=quiet)
    return NOT_OK if any(document["failed"] for document in documents) else OK


@click.command()
@click.argument("kind", type=click.Choice(["channel", "prior", "algorithm"]))
@click.argument("name")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="Folder to write [default: ./smimbench-NAME].",
)
@json_option
@shared_options(suite_options=False)
@with_registry
def new(kind: str, name: str, output: Path | None, as_json: bool, quiet: bool, registry: Registry) -> int:
    """A complete package for a channel, prior or algorithm of your own: works at once, made to be changed."""
    from smimbench.registry.scaffold import write_package

    made = write_package(kind, name, output, registry)
    if as_json:
        print_json({"folder": str(made.folder), "files": made.files, "next": made.commands})
    elif not quiet:
        click.echo(f"wrote {made.folder}: {', '.join(made.files)}")
        click.echo("next:")
        for line in made.commands:
            click.echo(f"  {line}")
    return OK


@click.command()
@click.option(
    "--ceilings",
    is_flag=True,
    help="Measure matrix products and memory bandwidth of this machine, and remember them.",
)
@json_option
@shared_options(suite_options=False)
@with_registry
def doctor(ceilings: bool, as_json: bool, quiet: bool, registry: Registry) -> int:
    """Versions, BLAS, GPU, and the exact pip line for CuPy."""
    from smimbench.report.doctor import diagnose, print_diagnosis

    document = diagnose(registry, ceilings=ceilings)
    if as_json:
        print_json(document)
    else:
        print_diagnosis(make_console(), document)
    del quiet
    return OK if document["healthy"] else NOT_OK
