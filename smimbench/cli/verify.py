"""Commands ``verify``, which recomputes a sample of results, and ``submit``, which packs results for the board."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from smimbench.cli.options import (
    JSON,
    NOT_OK,
    OK,
    RESULTS,
    SUITE_OR_FOLDER,
    Request,
    command,
    flag,
    make_console,
    option,
    output_option,
    print_json,
)
from smimbench.cli.results import remark_missing_theory, stored_results

if TYPE_CHECKING:
    from smimbench.report.results import Results
    from smimbench.run.verification import Verification

LISTED = 20
"""Largest number of missing files listed on a terminal; ``--json`` lists all."""


@command(
    SUITE_OR_FOLDER,
    option(
        "Number of cells to run again.", "--cells", type=click.IntRange(0), default=5
    ),
    option("Seed of the choice of cells.", "--seed", type=click.IntRange(0), default=0),
    flag("Do not solve theory again.", "--no-theory"),
    RESULTS,
    JSON,
)
def verify(request: Request, cells: int, seed: int, no_theory: bool) -> int:
    """Check every byte of stored results, solve their theory again, and run a sample of cells again.

    SUITE|DIR may also be a packed file. Whatever does not agree or is missing is listed, one line each; the exit code is then 1.
    Nothing is written.
    """
    from smimbench.report.results import is_packed
    from smimbench.run.verification import NOT_VERIFIED

    check = _verify_pack if is_packed(Path(request.name)) else _verify_folder
    verifications = check(request, _Effort(cells, seed, not no_theory))
    disagreements: list[str] = []
    missing: list[str] = []
    for verification in verifications.values():
        disagreements += verification.disagreements
        missing += verification.missing
    if request.as_json:
        remarks = {
            name: verification.remarks
            for name, verification in verifications.items()
            if verification.remarks
        }
        document = {
            "checked": {
                name: verification.checked
                for name, verification in verifications.items()
            },
            "wrong": disagreements,
            "missing": missing,
            "remarks": remarks,
            "not_verified": NOT_VERIFIED,
        }
        print_json(document)
        return NOT_OK if disagreements or missing else OK
    console = make_console()
    lines = [*disagreements, *missing[:LISTED]]
    if len(missing) > LISTED:
        hidden = len(missing) - LISTED
        lines.append(f"... and {hidden} more are missing (--json lists all)")
    for line in lines:
        console.print(line, style="red", soft_wrap=True)
    for name, verification in verifications.items():
        outcomes = ["all agree"]
        if count := len(verification.disagreements):
            outcomes = ["1 disagrees" if count == 1 else f"{count} disagree"]
        if count := len(verification.missing):
            outcomes.append("1 is missing" if count == 1 else f"{count} are missing")
        outcome = "; ".join([*outcomes, *verification.remarks])
        line = f"{verification.checked} {name}: {outcome}"
        console.print(line, soft_wrap=True)
    console.print(f"not verified: {NOT_VERIFIED}", soft_wrap=True)
    return NOT_OK if disagreements or missing else OK


class _Effort(NamedTuple):
    """Amount of recomputation: the number of cells, the seed that chooses them, and whether theory is solved."""

    cells: int
    seed: int
    theory: bool


def _verify_folder(request: Request, effort: _Effort) -> dict[str, Verification]:
    from smimbench.report.packed import packed_under, read_packed, verified_files
    from smimbench.report.results import Results
    from smimbench.report.stored_table import TABLE, verified_table
    from smimbench.run.answers import Answers
    from smimbench.run.store import Store, settings_folder, theory_folder, trials_of
    from smimbench.run.verification import choices, files, shared_documents

    suite = request.suite()
    store = request.store(suite)
    folder = settings_folder(suite, store)
    if chosen := Store(folder).read_shared().get("choices"):
        suite = suite.with_choices(chosen)
    records = files(store)
    verifications = {"files": records}
    complaints = shared_documents(suite, folder)
    if (folder / "run.json").exists():
        records.disagreements += complaints
    else:
        records.missing += complaints
    predictions = suite.needs_prediction_errors
    answers = Answers(theory_folder(store), predictions=predictions)
    results = Results(suite, store, (), answers)
    verifications |= _verify_scores(results)
    trials = files(trials_of(store))
    stored_choices = trials_of(store).folder.glob("choices/[!.]*.json")
    if trials.checked or trials.disagreements or suite.choices or any(stored_choices):
        verifications |= {"trials": trials, "choices": choices(suite, store)}
    paths = {*store.folder.glob(TABLE), *store.folder.glob(f"settings/*/{TABLE}")}
    tables = verified_files(sorted(paths))
    if tables.checked:
        verifications["tables"] = tables
    table = folder / TABLE
    if table in paths and not tables.disagreements:
        tables.disagreements += verified_table(
            table, read_packed(table).table, results.table
        )
    elif table not in paths and results.pairs:
        records.remarks.append(f"{table} is missing; rerun 'smimbench run' to write it")
    if packs := packed_under(store.folder.parent):
        verifications["packs"] = verified_files(packs)
    _ = results.rows  # so that all theory that they need has been asked for
    records.missing += [
        f"{file} is missing; 'smimbench theory' solves it"
        for file in answers.missing_files
    ]
    _add_missing(records, results)
    return verifications | _verify_again(results, effort)


def _verify_scores(results: Results) -> dict[str, Verification]:
    from smimbench.run.store import scores_of
    from smimbench.run.verification import files

    scores = files(scores_of(results.store))
    return {"scores": scores} if scores.checked or scores.disagreements else {}


def _add_missing(verification: Verification, results: Results) -> None:
    """List the records that are missing for the suite, and count records that belong to none of its cells."""
    from smimbench.run.verification import missing_records

    verification.missing += missing_records(results.cells, results.store)
    keys = {cell.key for cell in results.cells}
    unasked = sum(record.key not in keys for record in results.records.values())
    if unasked:
        verification.remarks.append(
            f"{unasked} records belong to no cell of the suite and appear in no table"
        )


def _verify_again(
    results: Results, effort: _Effort, *, trajectories: bool = True
) -> dict[str, Verification]:
    """Recompute the theory of results and a sample of their records."""
    from smimbench.run.verification import rerun, stored_theory

    folder = results.answers.folder
    assert folder is not None
    runs = rerun(
        results.cells,
        results.store,
        count=effort.cells,
        seed=effort.seed,
        trajectories=trajectories,
    )
    if not runs.checked and effort.cells and results.records:
        runs.remarks.append("no stored cell can be run again")
    verifications = stored_theory(results.suite, folder, solve=effort.theory)
    return {**verifications, "cells run again": runs}


def _verify_pack(request: Request, effort: _Effort) -> dict[str, Verification]:
    from smimbench.report import stored_table
    from smimbench.report.packed import (
        read_pack,
        read_packed,
        unpacked,
        verified,
        verified_files,
    )
    from smimbench.suite.reader import parse_suite

    if request.overrides or request.only:
        raise click.UsageError(
            f"{request.name} is a finished table: --set, --add and --only cannot change it"
        )
    path = Path(request.name)
    packs = verified_files([path])
    verifications = {"packs": packs}
    if packs.disagreements:
        return verifications
    pack = read_pack(path)
    shared = pack["run"]
    if pack["packed"] == stored_table.FORMAT:
        changes = shared.get("overrides", []), shared.get("only", [])
        suite_path = Path(f"{shared['suite']}.toml")
        suite = parse_suite(suite_path, shared["text"], *changes, stored=True)
        verifications["cells run again"] = stored_table.rerun_values(
            path,
            read_packed(path).table.rows,
            shared,
            suite.with_choices(shared.get("choices", [])),
            count=effort.cells,
            seed=effort.seed,
        )
        return verifications
    submitted = "by" in shared
    with unpacked(path, pack) as results:
        _add_missing(packs, results)
        rows = results.rows
        if results.answers.is_missing:
            packs.missing.append(f"{path}: some theory of its rows is missing")
        verifications |= _verify_scores(results)
        if submitted:
            contenders = verified(path, rows, shared, results.suite)
            verifications["contenders that others can run again"] = contenders
        verifications |= _verify_again(results, effort, trajectories=not submitted)
        temporary = f"{results.store.folder.parent}/"
    for verification in verifications.values():
        for lines in (
            verification.disagreements,
            verification.missing,
            verification.remarks,
        ):
            lines[:] = [line.replace(temporary, f"{path}: ") for line in lines]
    return verifications


@command(
    SUITE_OR_FOLDER,
    option("Name of whoever submits it.", "--by", required=True, metavar="NAME"),
    output_option(
        "The file to write: results/board/NAME.json.gz in a checkout of smimbench."
    ),
    RESULTS,
)
def submit(request: Request, by: str, output: Path) -> int:
    """Pack the results of a finished suite for the board.

    The file has records without their trajectories, theory, versions, hashes of code and searches; rows are made from them. Rows
    that nobody else can run again are left out. A pull request adds it to results/board, where some of its cells are run again.
    """
    from smimbench.report.packed import submission, write_packed
    from smimbench.run.store import Store

    results = stored_results(request)
    shared, left_out = submission(results, Store(results.folder).read_shared(), by)
    remark_missing_theory(results, request)
    write_packed(output, results, shared, left_out=left_out, trajectories=False)
    for (problem, algorithm), reason in left_out.items():
        request.remark(f"{problem}: {algorithm} is left out: {reason}")
    if not request.quiet:
        places = [(row.place.problem, row.place.algorithm) for row in results.rows]
        count = sum(place not in left_out for place in places)
        click.echo(
            f"wrote {output}: {count} rows; check them with 'smimbench verify {output}'"
        )
    return OK
