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
    from smimbench.run.verification import Verification


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

    SUITE|DIR may be a packed file, too. What does not agree is named, one line each; the exit code is then 1. Nothing is written.
    """
    path = Path(request.name)
    packed = path.suffix == ".json" and path.is_file()
    check = _verified_pack if packed else _verified_folder
    found = check(request, cells, seed, theory=not no_theory)
    wrong = [line for one in found.values() for line in one.wrong]
    if request.as_json:
        remarks = {name: one.remarks for name, one in found.items() if one.remarks}
        print_json({"checked": {name: one.checked for name, one in found.items()}, "wrong": wrong, "remarks": remarks})
    else:
        console = make_console()
        for line in wrong:
            console.print(line, style="red", soft_wrap=True, markup=False)
        for name, one in found.items():
            result = f"{len(one.wrong)} do not agree" if one.wrong else "all agree"
            console.print("; ".join([f"{one.checked} {name}: {result}", *one.remarks]), soft_wrap=True, markup=False)
    return NOT_OK if wrong else OK


def _verified_folder(request: Request, cells: int, seed: int, *, theory: bool) -> dict[str, Verification]:
    from smimbench.report.packed import TABLE, packed_under, verified_files
    from smimbench.run.external import scores_of
    from smimbench.run.store import theory_folder
    from smimbench.run.tuning import tuning_store
    from smimbench.run.verification import Verification, choices, files, rerun, stored_theory

    suite = request.suite()
    store = request.store(suite)
    records = store.load()
    found = {"files": files(store)}
    if (scores := files(scores_of(store))).checked or scores.wrong:
        found["scores"] = scores
    trials, stored_choices = files(tuning_store(store)), tuning_store(store).folder / "choices"
    if trials.checked or trials.wrong or any(stored_choices.glob("[!.]*.json")):
        found |= {"trials": trials, "choices": choices(suite, store)}
    paths = sorted({*store.folder.glob(TABLE), *store.folder.glob(f"settings/*/{TABLE}")})
    if (tables := verified_files(paths)).checked:
        found["tables"] = tables
    if packs := packed_under(store.folder.parent):
        found["packs"] = verified_files(packs)
    backends = sorted({record["cell"]["backend"] for record in records.values()})
    known = [cell for backend in backends for cell in suite.cells(backend)]
    keys = {cell.key for cell in known}
    if unasked := sum(record["key"] not in keys for record in records.values()):
        found["files"].remarks.append(f"{unasked} records that the suite does not ask for are in no table")
    found |= stored_theory(suite, theory_folder(store), solve=theory)
    found["cells run again"] = rerun(known, store, count=cells, seed=seed)
    if not found["cells run again"].checked and cells and records:
        found["cells run again"] = Verification(remarks=["no stored cell can be run again"])
    return found


def _verified_pack(request: Request, cells: int, seed: int, *, theory: bool) -> dict[str, Verification]:
    from smimbench.report.board import verified
    from smimbench.report.packed import read_packed, verified_files, verify_packed
    from smimbench.suite.reader import parse_suite

    if request.overrides or request.only:
        raise click.UsageError(f"{request.name} is a finished table: --set, --add and --only cannot change it")
    path = Path(request.name)
    found = {"packs": verified_files([path])}
    if found["packs"].wrong:
        return found
    document, shared = read_packed(path)
    given = shared.get("overrides", []), shared.get("only", [])
    suite = parse_suite(Path(f"{shared['suite']}.toml"), shared["text"], *given, stored=True).with_choices(shared)
    if "by" in shared:
        found["rows that can be run again"] = verified(path, document["rows"], shared, suite)
    return found | verify_packed(path, document["rows"], shared, suite, cells=cells, seed=seed, theory=theory)


@command(
    SUITE_OR_FOLDER,
    option("Who submits it.", "--by", required=True, metavar="NAME"),
    output_option("The file to write: results/board/NAME.json in a checkout of smimbench."),
    RESULTS,
)
def submit(request: Request, by: str, output: Path) -> int:
    """Pack the results of a finished suite for the board.

    The file has rows, values of all runs, versions, hashes of code and searches. Rows that nobody else can run again are left
    out. A pull request adds it to results/board, where some of its cells are run again.
    """
    from smimbench.report.board import submission
    from smimbench.report.packed import write_packed
    from smimbench.run.store import Store

    results = stored_results(request)
    document, shared, left_out = submission(results, Store(results.folder).read_shared(), by)
    remark_missing_theory(results, request)
    write_packed(output, document, shared)
    request.remark(f"{where} is left out: {why}" for where, why in left_out.items())
    if not request.quiet:
        click.echo(f"wrote {output}: {len(document['rows'])} rows; to see whether they hold: smimbench verify {output}")
    return OK
