"""Submissions for the board: packed files whose rows anybody can run again. ``tools/board.py`` ranks them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from smimbench.backend.machine import installed
from smimbench.files import JsonObject, canonical_json
from smimbench.problem.problem import without
from smimbench.report.labels import grouped
from smimbench.report.stored_table import with_summaries
from smimbench.run.record import digest_of, plain
from smimbench.run.tuning import read_choice, searches
from smimbench.run.verification import Verification, differences
from smimbench.suite import SuiteError
from smimbench.suite.schema import ORACLE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from smimbench.report.results import Results
    from smimbench.suite.cells import Cell, Suite


def obstacle(row: JsonObject, shared: JsonObject) -> str:
    """Why a row cannot be run again by anybody; empty if it can.

    Parameters
    ----------
    shared : mapping
        ``run.json`` with what ``submission`` adds to it.
    """
    if not shared.get("by"):
        return "nobody has signed it"
    if "smimbench" not in shared.get("versions", {}):
        return "it does not say which smimbench made it"
    if str(shared.get("git_commit")).endswith("-dirty"):
        return f"smimbench had changes that no commit has ({shared['git_commit']})"
    if row["backend"] != "numpy":
        return f"{row['backend']} made it, not numpy"
    if row["settings"] == ORACLE:
        return "it starts near the teacher, which contenders may not"
    if "best_of" in row["identity"]["algorithm"]:
        return "it was chosen among other rows"
    if set(row["status_counts"]) <= {"skipped"}:
        return "it is not for this problem"
    if "timeout" in row["status_counts"]:
        return "a clock ended some of its runs"
    for item in _third_party(row["identity"]):
        if "source" not in item:
            return f"the code of {item['name']} is not known"
        if item["distribution"] not in shared.get("packages", {}):
            return f"{item['name']} is in a file, {item['distribution']}, and not in a package that others can install"
    return ""


def _third_party(identity: Any) -> list[JsonObject]:
    """Specifications of the items of third parties in nested tables."""
    if not isinstance(identity, dict):
        return []
    inner = [item for value in identity.values() for item in _third_party(value)]
    return [identity, *inner] if "distribution" in identity else inner


def submission(results: Results, shared: JsonObject, by: str) -> tuple[JsonObject, JsonObject, dict[str, str]]:
    """What ``write_packed`` writes of a finished suite for the board, and why the other rows are not in it, by place.

    Raises
    ------
    SuiteError
        If the suite is not finished, its cells are of several versions, or no row can be run again.
    """
    suite, document = results.suite, results.document()
    if document["missing"]:
        raise SuiteError(suite.file, "", f"{document['missing']} cells have not been run")
    made = {canonical_json(record["versions"]) for _, record in results.pairs}
    if made != {canonical_json(shared["versions"])}:
        raise SuiteError(
            suite.file, "", f"not all cells were made by {shared['versions']}, as run.json says; run them again"
        )
    machines = {record["timing"]["machine"] for _, record in results.pairs}
    found = [read_choice(search, results.store) for search in searches(suite)]
    shared = {
        **shared,
        "by": by,
        "fingerprint": shared["fingerprint"] if machines == {shared["fingerprint"]} else "",
        "packages": installed(
            sorted({one["distribution"] for row in results.rows for one in _third_party(row["identity"])})
        ),
        "searches": [one for one in found if one],
    }
    rows, left_out = [], {}
    for row in results.rows:
        if why := obstacle(row, shared):
            left_out[f"{row['problem']}: {row['algorithm']}"] = why
        else:
            rows.append(row)
    if not rows:
        where, why = next(iter(left_out.items()))
        raise SuiteError(suite.file, "", f"no row of it can be run again: {where}: {why}")
    return with_summaries({**document, "rows": rows}), shared, left_out


def verified(path: Path, rows: Sequence[JsonObject], shared: JsonObject, suite: Suite) -> Verification:
    """Check that all rows can be run again by the code that is here, with all runs of the suite and the same settings."""
    found = Verification()
    places = grouped(suite.cells("numpy"), lambda cell: cell.place)
    stored = {digest_of(one): one for one in shared.get("searches", [])}
    asked = {search.place: plain(search.question) for search in searches(suite)} if stored else {}
    for row in rows:
        lines, why = [], obstacle(row, shared)
        where = f"{row['problem']}: {row['algorithm']} at alpha {row['nominal_alpha']:.5g}, D = {row['dimension']}"
        cells = places.get((row["problem"], row["algorithm"], row["nominal_alpha"], row["dimension"]))
        if why:
            lines.append(f"cannot be run again: {why}")
        if cells is None:
            lines.append("the suite has no such cells")
        else:
            cell = cells[0]
            here = without("version", {"problem": cell.problem, "algorithm": cell.described})
            lines += list(differences(row["identity"], json.loads(canonical_json(here)), 0.0))[:3]
            lines += list(differences({"settings": row["settings"]}, {"settings": cell.origin}, 0.0))
            if sum(row["status_counts"].values()) != len(cells):
                lines.append(f"{sum(row['status_counts'].values())} runs, the suite has {len(cells)}")
            if not set(row["values"]) <= {f"{cell.seed}/{cell.replicate}" for cell in cells}:
                lines.append("it has values of runs that the suite does not have")
            if cell.tuning:
                question = asked.get(cell.place[:2])
                lines += _search_mistakes(cell, stored.get(cell.tuning["search"]), question)
        found.add([f"{path}: {where}: {line}" for line in lines])
    return found


def _search_mistakes(cell: Cell, search: JsonObject | None, question: JsonObject | None) -> list[str]:
    if search is None or cell.tuning is None:
        return ["the search that chose its parameters is not in the file"]
    errors = search["rounds"][-1]["errors"]
    best = min((error for error in errors if error is not None), default=None)
    counted = (len(search["trials"]), search["runs"]) == (cell.tuning["trials"], cell.tuning["runs"])
    if not counted or search["question"] != question or search["algorithm"] != cell.algorithm or best is None:
        return ["its parameters are not those of the search in the file"]
    return [] if errors[search["chosen"]] == best else ["the search in the file has a better trial"]
