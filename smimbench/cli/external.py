"""Commands for external solvers, in any language: ``data`` exports an instance, ``score`` evaluates an estimate."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from smimbench.cli.options import (
    JSON,
    NOT_OK,
    OK,
    RESULTS,
    SUITE,
    Request,
    command,
    make_console,
    option,
    output_option,
    print_json,
)


@command(SUITE, output_option("The .npz file to write."), JSON)
def data(request: Request, output: Path) -> int:
    """Export an instance to solve in any language; --only picks which one (default: the first)."""
    from smimbench.run.external import choose_points, write_instance

    suite = request.suite()
    about = write_instance(suite, choose_points(suite)[0], output)
    if request.as_json:
        print_json(about)
    elif not request.quiet:
        # Without the same choices the estimate would be compared with another teacher.
        options = [("--only", c) for c in request.only] + [("--set", o) for o in request.overrides]
        same = "".join(f" {option} {shlex.quote(value)}" for option, value in options)
        click.echo(
            f"wrote {output}: inputs {tuple(about['inputs'])}, labels {tuple(about['labels'])}, "
            f"{about['label']}, alpha {about['alpha']:g}, D {about['dimension']}"
        )
        click.echo(
            f"save an estimate of shape {tuple(about['estimate_shape'])} as 'estimate' in an .npz, "
            f"then: smimbench score {request.name} --estimate FILE.npz{same}"
        )
    return OK


@command(
    SUITE,
    option(
        "An .npz with the array 'estimate'; given several times, of one point each, in the order of the suite.",
        "--estimate",
        "paths",
        multiple=True,
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        required=True,
    ),
    option("Name of the algorithm in the table.", "--label", default="external"),
    RESULTS,
    JSON,
)
def score(request: Request, paths: tuple[Path, ...], label: str) -> int:
    """Score an external estimate as a row of the table; give the same --only as to 'data'.

    The row is kept: run, show and report list it with those of the suite. Another estimate of the same instance under the same
    label replaces it.
    """
    from smimbench.report.rows import rows_of_points
    from smimbench.report.tables import error_tables
    from smimbench.run.campaign import shared_document
    from smimbench.run.external import (
        choose_points,
        estimate_shape,
        keep_scores,
        read_estimate,
        score_record,
        scores_of,
    )
    from smimbench.run.store import Store, settings_folder

    suite = request.suite()
    points = choose_points(suite, len(paths))
    records = [
        score_record(suite, point, read_estimate(path, estimate_shape(point)), label)
        for point, path in zip(points, paths, strict=True)
    ]
    rows = rows_of_points(suite, points, records, request.theory())
    if request.as_json:
        print_json({"suite": suite.name, "rows": rows})
    else:
        for table in error_tables(rows):
            make_console().print(table, crop=False)
    store = request.store(suite)
    keep_scores(store, records)
    if not (own := Store(settings_folder(suite, store))).read_shared():  # a folder of results says what it is of
        own.write_shared(shared_document(suite))
    if not request.quiet and not request.as_json:
        click.echo(f"kept in {scores_of(store).folder}: smimbench show {request.name} has it in its tables")
    return OK if all(record["status"] == "ok" for record in records) else NOT_OK
