"""Commands that others need to believe results: ``verify`` runs some again, ``submit`` packs them for the board."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

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
"""Missing files that a terminal lists; doubled, a run that was stopped early takes two screens. ``--json`` has all."""


@command(
    SUITE_OR_FOLDER,
    option("Cells to run again.", "--cells", type=click.IntRange(0), default=5),
    option("Which ones, at random.", "--seed", type=click.IntRange(0), default=0),
    flag("Do not solve theory again.", "--no-theory"),
    RESULTS,
    JSON,
)
def verify(request: Request, cells: int, seed: int, no_theory: bool) -> int:
    """Check every byte of stored results, solve their theory again, and run a sample of cells again.

    SUITE|DIR may be a packed file, too. What does not agree and what is missing is named, one line each; the exit code is then 1.
    Nothing is written.
    """
    from smimbench.report.packed import is_packed
    from smimbench.run.verification import NOT_VERIFIED

    check = _verified_pack if is_packed(Path(request.name)) else _verified_folder
    parts = check(request, cells, seed, theory=not no_theory)
    wrong = [line for part in parts.values() for line in part.wrong]
    missing = [line for part in parts.values() for line in part.missing]
    if request.as_json:
        remarks = {name: part.remarks for name, part in parts.items() if part.remarks}
        checked = {name: part.checked for name, part in parts.items()}
        print_json(
            {
                "checked": checked,
                "wrong": wrong,
                "missing": missing,
                "remarks": remarks,
                "not_verified": NOT_VERIFIED,
            }
        )
    else:
        console = make_console()
        more = [
            f"... and {len(missing) - LISTED} more are missing (--json lists all)"
        ] * (len(missing) > LISTED)
        for line in (*wrong, *missing[:LISTED], *more):
            console.print(line, style="red", soft_wrap=True, markup=False)
        for name, part in parts.items():
            outcome = f"{len(part.wrong)} do not agree" if part.wrong else "all agree"
            absent = [f"{len(part.missing)} are missing"] if part.missing else []
            line = "; ".join(
                [f"{part.checked} {name}: {outcome}", *absent, *part.remarks]
            )
            console.print(line, soft_wrap=True, markup=False)
        console.print(f"not verified: {NOT_VERIFIED}", soft_wrap=True, markup=False)
    return NOT_OK if wrong or missing else OK


def _verified_folder(
    request: Request, cells: int, seed: int, *, theory: bool
) -> dict[str, Verification]:
    from smimbench.report.packed import packed_under, read_packed, verified_files
    from smimbench.report.results import Results
    from smimbench.report.stored_table import TABLE, verified_table
    from smimbench.run.answers import Answers
    from smimbench.run.store import Store, settings_folder, theory_folder
    from smimbench.run.tuning import tuning_store
    from smimbench.run.verification import choices, files, shared_documents

    suite = request.suite()
    store = request.store(suite)
    folder = settings_folder(suite, store)
    if chosen := Store(folder).read_shared().get("choices"):
        suite = suite.with_choices({"choices": chosen})
    parts = {"files": files(store)}
    documents = shared_documents(suite, folder)
    (
        parts["files"].wrong
        if (folder / "run.json").exists()
        else parts["files"].missing
    ).extend(documents)
    results = Results(
        suite,
        store,
        (),
        Answers(theory_folder(store), predictions=suite.needs_prediction_errors),
    )
    parts |= _verified_scores(results)
    trials, stored_choices = (
        files(tuning_store(store)),
        tuning_store(store).folder / "choices",
    )
    if (
        trials.checked
        or trials.wrong
        or any(stored_choices.glob("[!.]*.json"))
        or suite.choices
    ):
        parts |= {"trials": trials, "choices": choices(suite, store)}
    tables = sorted(
        {*store.folder.glob(TABLE), *store.folder.glob(f"settings/*/{TABLE}")}
    )
    if (written := verified_files(tables)).checked:
        parts["tables"] = written
    if (table := folder / TABLE) in tables and not written.wrong:
        written.wrong += verified_table(table, read_packed(table).table, results.table)
    elif table not in tables and results.pairs:
        parts["files"].remarks.append(
            f"{table} is missing; the same 'smimbench run' writes it again"
        )
    if packs := packed_under(store.folder.parent):
        parts["packs"] = verified_files(packs)
    _ = results.rows  # so that all theory that they need has been asked for
    parts["files"].missing += [
        f"{file} is missing; 'smimbench theory' solves it"
        for file in results.answers.missing_files
    ]
    _add_missing(parts["files"], results)
    return parts | _verified_runs(
        results, theory_folder(store), cells, seed, theory=theory
    )


def _verified_scores(results: Results) -> dict[str, Verification]:
    from smimbench.run.external import scores_of
    from smimbench.run.verification import files

    scores = files(scores_of(results.store))
    return {"scores": scores} if scores.checked or scores.wrong else {}


def _add_missing(part: Verification, results: Results) -> None:
    """Name the records that the suite asks for and are not there, and count those that it does not ask for."""
    from smimbench.run.verification import missing_records

    keys = {cell.key for cell in results.cells}
    part.missing += missing_records(results.cells, results.store)
    if unasked := sum(record["key"] not in keys for record in results.records.values()):
        part.remarks.append(
            f"{unasked} records that the suite does not ask for are in no table"
        )


def _verified_runs(
    results: Results,
    folder: Path | None,
    count: int,
    seed: int,
    *,
    theory: bool,
    trajectories: bool = True,
) -> dict[str, Verification]:
    """Theory in a folder, solved again, and a sample of the records, run again."""
    from smimbench.run.verification import rerun, stored_theory

    assert folder is not None
    runs = rerun(
        results.cells, results.store, count=count, seed=seed, trajectories=trajectories
    )
    if not runs.checked and count and results.records:
        runs.remarks.append("no stored cell can be run again")
    return {
        **stored_theory(results.suite, folder, solve=theory),
        "cells run again": runs,
    }


def _verified_pack(
    request: Request, cells: int, seed: int, *, theory: bool
) -> dict[str, Verification]:
    from smimbench.report import stored_table
    from smimbench.report.board import verified
    from smimbench.report.packed import read_pack, read_packed, unpacked, verified_files
    from smimbench.suite.reader import parse_suite

    if request.overrides or request.only:
        raise click.UsageError(
            f"{request.name} is a finished table: --set, --add and --only cannot change it"
        )
    path = Path(request.name)
    parts = {"packs": verified_files([path])}
    if parts["packs"].wrong:
        return parts
    pack = read_pack(path)
    shared = pack["run"]
    if pack["packed"] == stored_table.FORMAT:
        changes = shared.get("overrides", []), shared.get("only", [])
        suite = parse_suite(
            Path(f"{shared['suite']}.toml"), shared["text"], *changes, stored=True
        )
        rows = read_packed(path).table.rows
        suite = suite.with_choices(shared)
        parts["cells run again"] = stored_table.rerun_values(
            path, rows, shared, suite, count=cells, seed=seed
        )
        return parts
    submitted = "by" in shared
    with unpacked(path, pack) as results:
        _add_missing(parts["packs"], results)
        _ = results.rows
        if results.answers.is_missing:
            parts["packs"].missing.append(
                f"{path}: not all theory of its rows is there"
            )
        parts |= _verified_scores(results)
        if submitted:
            parts["contenders that others can run again"] = verified(
                path, results.rows, shared, results.suite
            )
        parts |= _verified_runs(
            results,
            results.answers.folder,
            cells,
            seed,
            theory=theory,
            trajectories=not submitted,
        )
        temporary = f"{results.store.folder.parent}/"
    for part in parts.values():
        for lines in (part.wrong, part.missing, part.remarks):
            lines[:] = [line.replace(temporary, f"{path}: ") for line in lines]
    return parts


@command(
    SUITE_OR_FOLDER,
    option("Who submits it.", "--by", required=True, metavar="NAME"),
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
    from smimbench.report.board import submission
    from smimbench.report.packed import write_packed
    from smimbench.run.store import Store

    results = stored_results(request)
    shared, left_out = submission(results, Store(results.folder).read_shared(), by)
    remark_missing_theory(results, request)
    write_packed(output, results, shared, left_out=left_out, trajectories=False)
    request.remark(
        f"{problem}: {algorithm} is left out: {why}"
        for (problem, algorithm), why in left_out.items()
    )
    if not request.quiet:
        count = sum(
            (row.place.problem, row.place.algorithm) not in left_out
            for row in results.rows
        )
        click.echo(
            f"wrote {output}: {count} rows; to see whether they hold: smimbench verify {output}"
        )
    return OK
