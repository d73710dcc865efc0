"""Solvers elsewhere, in any language: ``data`` writes an instance, ``score`` judges an estimate."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from smimbench.cli.options import (
    NOT_OK,
    OK,
    json_option,
    load,
    make_console,
    print_json,
    shared_options,
    with_registry,
)

if TYPE_CHECKING:
    from smimbench.registry.registry import Registry


@click.command()
@click.argument("suite_name", metavar="SUITE")
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The .npz file to write."
)
@json_option
@shared_options()
@with_registry
def data(
    suite_name: str,
    output: Path,
    as_json: bool,
    overrides: tuple[str, ...],
    only: tuple[str, ...],
    quiet: bool,
    registry: Registry,
) -> int:
    """An instance, to solve elsewhere in any language; --only picks which (default: the first)."""
    from smimbench.run.external import choose_point, write_instance

    suite = load(suite_name, overrides, only, registry)
    about = write_instance(suite, choose_point(suite), output)
    if as_json:
        print_json(about)
    elif not quiet:
        # Without the same choices the estimate would be held against another teacher.
        options = [("--only", c) for c in only] + [("--set", o) for o in overrides]
        same = "".join(f" {option} {shlex.quote(value)}" for option, value in options)
        click.echo(
            f"wrote {output}: inputs {tuple(about['inputs'])}, labels {tuple(about['labels'])}, "
            f"{about['label']}, alpha {about['alpha']:g}, D {about['dimension']}"
        )
        click.echo(
            f"save an estimate of shape {tuple(about['estimate_shape'])} as 'estimate' in an .npz, "
            f"then: smimbench score {suite_name} --estimate FILE.npz{same}"
        )
    return OK


@click.command()
@click.argument("suite_name", metavar="SUITE")
@click.option(
    "--estimate",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="An .npz with the array 'estimate'.",
)
@click.option("--label", default="external", show_default=True, help="Name of the algorithm in the table.")
@json_option
@shared_options()
@with_registry
def score(
    suite_name: str,
    path: Path,
    label: str,
    as_json: bool,
    overrides: tuple[str, ...],
    only: tuple[str, ...],
    quiet: bool,
    registry: Registry,
) -> int:
    """What was found elsewhere, as a row of the table; --only as given to 'data'."""
    from smimbench.report.rows import rows_of_point
    from smimbench.report.tables import error_tables
    from smimbench.run.external import choose_point, read_estimate, score_record
    from smimbench.theory.cache import TheoryCache

    suite = load(suite_name, overrides, only, registry)
    point = choose_point(suite)
    record = score_record(suite, point, read_estimate(path), label, path)
    rows = rows_of_point(suite, point, record, TheoryCache())
    if as_json:
        print_json({"suite": suite.name, "rows": rows})
    else:
        for table in error_tables(rows):
            make_console().print(table)
    del quiet
    return OK if record["status"] == "ok" else NOT_OK
