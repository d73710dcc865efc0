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

    verify_results = _verify_pack if is_packed(Path(request.name)) else _verify_folder
    verifications = verify_results(request, _Recomputation(cells, seed, not no_theory))
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
        hidden_count = len(missing) - LISTED
        lines.append(f"... and {hidden_count} more are missing (--json lists all)")
    for line in lines:
        console.print(line, style="red", soft_wrap=True)
    for name, verification in verifications.items():
        outcome_texts = ["all agree"]
        if count := len(verification.disagreements):
            outcome_texts = ["1 disagrees" if count == 1 else f"{count} disagree"]
        if count := len(verification.missing):
            outcome_texts.append(
                "1 is missing" if count == 1 else f"{count} are missing"
            )
        outcome_text = "; ".join([*outcome_texts, *verification.remarks])
        line = f"{verification.checked} {name}: {outcome_text}"
        console.print(line, soft_wrap=True)
    console.print(f"not verified: {NOT_VERIFIED}", soft_wrap=True)
    return NOT_OK if disagreements or missing else OK


class _Recomputation(NamedTuple):
    """Extent of a verification by recomputation: how many ``cells`` are run again, the ``seed`` that draws them, and whether
    ``theory`` is solved again.
    """

    cells: int
    seed: int
    theory: bool


def _verify_folder(
    request: Request, recomputation: _Recomputation
) -> dict[str, Verification]:
    """Verify stored records, trials, scores, tables and packs in a results folder, and recompute a sample; ``request`` holds
    the suite and options of the command, ``recomputation`` how much is recomputed.
    """
    from smimbench.report.packed import packed_under, read_packed, verified_files
    from smimbench.report.results import Results
    from smimbench.report.stored_table import TABLE, verified_table
    from smimbench.run.store import Store, settings_folder, trials_of
    from smimbench.run.verification import (
        run_json_differences,
        verify_choices,
        verify_files,
    )

    suite = request.suite()
    store = request.store(suite)
    folder = settings_folder(suite, store)
    if tuned_settings := Store(folder).read_run_json().get("choices"):
        suite = suite.with_choices(tuned_settings)
    record_files = verify_files(store)
    verifications = {"files": record_files}
    document_errors = run_json_differences(suite, folder)
    if (folder / "run.json").exists():
        record_files.disagreements += document_errors
    else:
        record_files.missing += document_errors
    results = Results(suite, store)
    verifications |= _verify_scores(results)
    trial_files = verify_files(trials_of(store))
    stored_choices = trials_of(store).folder.glob("choices/[!.]*.json")
    if (
        trial_files.checked
        or trial_files.disagreements
        or suite.choices
        or any(stored_choices)
    ):
        verifications |= {
            "trials": trial_files,
            "choices": verify_choices(suite, store),
        }
    table_paths = {*store.folder.glob(TABLE), *store.folder.glob(f"settings/*/{TABLE}")}
    table_files = verified_files(sorted(table_paths))
    if table_files.checked:
        verifications["tables"] = table_files
    table_path = folder / TABLE
    if table_path in table_paths and not table_files.disagreements:
        table_files.disagreements += verified_table(
            table_path, read_packed(table_path)[0], results.table
        )
    elif table_path not in table_paths and results.pairs:
        record_files.remarks.append(
            f"{table_path} is missing; rerun 'smimbench run' to write it"
        )
    if pack_paths := packed_under(store.folder.parent):
        verifications["packs"] = verified_files(pack_paths)
    _ = results.rows  # so that all theory that they need has been asked for
    record_files.missing += [
        f"{file} is missing; 'smimbench theory' solves it"
        for file in results.answers.missing_files
    ]
    _add_missing(record_files, results)
    return verifications | _recompute(results, recomputation)


def _verify_scores(results: Results) -> dict[str, Verification]:
    """Verify the files of scored external estimates in the results, if there are any."""
    from smimbench.run.store import scores_of
    from smimbench.run.verification import verify_files

    score_files = verify_files(scores_of(results.store))
    return (
        {"scores": score_files}
        if score_files.checked or score_files.disagreements
        else {}
    )


def _add_missing(verification: Verification, results: Results) -> None:
    """Add to a verification the records that are missing for the suite of the results, and count records that belong to none
    of its cells.
    """
    from smimbench.run.verification import missing_records

    verification.missing += missing_records(results.cells, results.store)
    cell_keys = {cell.key for cell in results.cells}
    foreign_count = sum(
        record.key not in cell_keys for record in results.records.values()
    )
    if foreign_count:
        verification.remarks.append(
            f"{foreign_count} records belong to no cell of the suite and appear in no table"
        )


def _recompute(
    results: Results, recomputation: _Recomputation, *, trajectories: bool = True
) -> dict[str, Verification]:
    """Recompute the theory of results and a sample of their records; compare ``trajectories`` only if asked."""
    from smimbench.run.verification import verify_reruns, verify_theory

    theory_folder = results.answers.folder
    assert theory_folder is not None
    repeated_runs = verify_reruns(
        results.cells,
        results.store,
        cell_count=recomputation.cells,
        seed=recomputation.seed,
        compare_trajectories=trajectories,
    )
    if not repeated_runs.checked and recomputation.cells and results.records:
        repeated_runs.remarks.append("no stored cell can be run again")
    verifications = verify_theory(
        results.suite, theory_folder, solve_again=recomputation.theory
    )
    return {**verifications, "cells run again": repeated_runs}


def _verify_pack(
    request: Request, recomputation: _Recomputation
) -> dict[str, Verification]:
    """Verify a packed file (that of the command's ``request``), and recompute a sample of its cells."""
    from smimbench.report import stored_table
    from smimbench.report.packed import (
        read_pack,
        read_packed,
        unpacked,
        verified_files,
        verified_submission,
    )
    from smimbench.suite.reader import parse_suite

    if request.overrides or request.only:
        raise click.UsageError(
            f"{request.name} is a finished table: --set, --add and --only cannot change it"
        )
    path = Path(request.name)
    pack_file = verified_files([path])
    verifications = {"packs": pack_file}
    if pack_file.disagreements:
        return verifications
    pack = read_pack(path)
    run_document = pack["run"]
    if pack["packed"] == stored_table.FORMAT:
        overrides_and_only = (
            run_document.get("overrides", []),
            run_document.get("only", []),
        )
        suite_path = Path(f"{run_document['suite']}.toml")
        suite = parse_suite(
            suite_path, run_document["text"], *overrides_and_only, from_results=True
        )
        verifications["cells run again"] = stored_table.rerun_values(
            path,
            read_packed(path)[0].rows,
            run_document,
            suite.with_choices(run_document.get("choices", [])),
            count=recomputation.cells,
            seed=recomputation.seed,
        )
        return verifications
    is_submission = "by" in run_document
    with unpacked(path, pack) as results:
        _add_missing(pack_file, results)
        rows = results.rows
        if results.answers.has_missing_answers:
            pack_file.missing.append(f"{path}: some theory of its rows is missing")
        verifications |= _verify_scores(results)
        if is_submission:
            contender_checks = verified_submission(
                path, rows, run_document, results.suite
            )
            verifications["contenders that others can run again"] = contender_checks
        verifications |= _recompute(
            results, recomputation, trajectories=not is_submission
        )
        temporary_folder = f"{results.store.folder.parent}/"
    for verification in verifications.values():
        for messages in (
            verification.disagreements,
            verification.missing,
            verification.remarks,
        ):
            messages[:] = [
                message.replace(temporary_folder, f"{path}: ") for message in messages
            ]
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
    run_document, left_out = submission(
        results, Store(results.folder).read_run_json(), by
    )
    remark_missing_theory(results, request)
    write_packed(output, results, run_document, left_out=left_out, trajectories=False)
    for (problem, algorithm), reason in left_out.items():
        request.remark(f"{problem}: {algorithm} is left out: {reason}")
    if not request.quiet:
        places = [(row.place.problem, row.place.algorithm) for row in results.rows]
        row_count = sum(place not in left_out for place in places)
        click.echo(
            f"wrote {output}: {row_count} rows; check them with 'smimbench verify {output}'"
        )
    return OK
