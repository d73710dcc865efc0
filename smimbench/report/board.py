"""Submissions for the board: packed results whose rows anybody can run again; ``tools/board.py`` ranks them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smimbench.backend.machine import installed
from smimbench.files import canonical_json
from smimbench.problem.problem import Specification
from smimbench.report.labels import grouped
from smimbench.run.record import SearchResult, SharedDocument, digest_of, plain
from smimbench.run.tuning import read_choice, searches
from smimbench.run.verification import Verification
from smimbench.suite import SuiteError
from smimbench.suite.schema import ORACLE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from smimbench.report.results import Results
    from smimbench.report.row import Row
    from smimbench.suite.cells import Cell, Suite


def obstacle(row: Row, shared: SharedDocument) -> str:
    """Return the reason why others cannot run a row again; empty if they can.

    Parameters
    ----------
    shared : mapping
        ``run.json`` with what ``submission`` adds to it.
    """
    if not shared.get("by"):
        return "the submission does not name its author"
    if "smimbench" not in shared.get("versions", {}):
        return "the version of smimbench that computed it is not recorded"
    if str(shared.get("git_commit")).endswith("-dirty"):
        return f"smimbench had uncommitted changes ({shared['git_commit']})"
    if row.place.backend != "numpy":
        return f"it was run with the backend {row.place.backend}, but the board needs numpy"
    if row.place.settings == ORACLE:
        return "it starts from the teacher, which is not allowed on the board"
    if set(row.runs.status_counts) <= {"skipped"}:
        return "the algorithm does not apply to this problem (all runs were skipped)"
    if "timeout" in row.runs.status_counts:
        return "some of its runs were stopped by a time limit"
    for item in _third_party([row.identity.problem, row.identity.algorithm]):
        if "source" not in item:
            return f"the hash of the code of {item['name']} is missing"
        if item["distribution"] not in shared.get("packages", {}):
            return f"{item['name']} comes from the file {item['distribution']}, not from a package that others can install"
    return ""


def _third_party(identity: object) -> list[Specification]:
    """List the specifications of third-party items in nested tables."""
    if isinstance(identity, list):
        return [item for table in identity for item in _third_party(table)]
    if not isinstance(identity, dict):
        return []
    inner = [item for value in identity.values() for item in _third_party(value)]
    return [identity, *inner] if "distribution" in identity else inner


def submission(
    results: Results, shared: SharedDocument, by: str
) -> tuple[SharedDocument, dict[tuple[str, str], str]]:
    """Make the ``run.json`` of a submission, and list why rows are excluded, by labels of problem and algorithm.

    Raises
    ------
    SuiteError
        If the suite is not finished, its cells are of several versions, or no row can be run again.
    """
    suite = results.suite
    if missing := results.table.missing:
        raise SuiteError(
            suite.file,
            "",
            f"{missing} cells have not been run; finish the run before submitting it",
        )
    versions = {canonical_json(record.versions) for _, record in results.pairs}
    if versions != {canonical_json(shared["versions"])}:
        reason = f"some cells were run with other versions than run.json states ({shared['versions']}); run them again"
        raise SuiteError(suite.file, "", reason)
    machines = {record.timing.machine for _, record in results.pairs}
    choices = [read_choice(search, results.store) for search in searches(suite)]
    distributions: set[str] = set()
    for row in results.rows:
        items = _third_party([row.identity.problem, row.identity.algorithm])
        distributions.update(item["distribution"] for item in items)
    fingerprint = shared["fingerprint"]
    shared = {
        **shared,
        "by": by,
        "fingerprint": fingerprint if machines == {fingerprint} else "",
        "packages": installed(sorted(distributions)),
        "searches": [choice for choice in choices if choice],
    }
    reasons = {
        (row.place.problem, row.place.algorithm): obstacle(row, shared)
        for row in results.rows
    }
    left_out = {place: reason for place, reason in reasons.items() if reason}
    if len(left_out) == len(reasons):
        (problem, algorithm), reason = next(iter(left_out.items()))
        place = f"{problem}: {algorithm}"
        message = f"others can run none of its rows again: {place}: {reason}"
        raise SuiteError(suite.file, "", message)
    return {**shared, "left_out": [list(place) for place in left_out]}, left_out


def verified(
    path: Path, rows: Sequence[Row], shared: SharedDocument, suite: Suite
) -> Verification:
    """Check that others can run all rows again, and that tuned parameters are the best of the searches in the file."""
    verification = Verification()
    stored = {digest_of(search): search for search in shared.get("searches", [])}
    questions = (
        {search.place: plain(search.question) for search in searches(suite)}
        if stored
        else {}
    )
    tuned = {cell.place[:2]: cell for cell in suite.cells("numpy") if cell.tuning}
    for (problem, algorithm), members in grouped(
        rows, lambda row: (row.place.problem, row.place.algorithm)
    ).items():
        reason = obstacle(members[0], shared)
        lines = [f"cannot be run again: {reason}"] if reason else []
        if (cell := tuned.get((problem, algorithm))) and cell.tuning:
            lines += _search_mistakes(
                cell,
                stored.get(cell.tuning["search"]),
                questions.get((problem, algorithm)),
            )
        verification.add([f"{path}: {problem}: {algorithm}: {line}" for line in lines])
    return verification


def _search_mistakes(
    cell: Cell, search: SearchResult | None, question: object
) -> list[str]:
    if search is None or cell.tuning is None:
        return ["the search that chose its parameters is not in the file"]
    errors, chosen = search["rounds"][-1]["errors"], search["chosen"]
    best = min((error for error in errors if error is not None), default=None)
    counted = (len(search["trials"]), search["runs"]) == (
        cell.tuning["trials"],
        cell.tuning["runs"],
    )
    if (
        not counted
        or search["question"] != question
        or search["algorithm"] != cell.algorithm
        or best is None
        or chosen is None
        or chosen not in range(len(errors))
    ):
        return ["its parameters are not those that the search in the file chose"]
    return (
        []
        if errors[chosen] == best
        else [
            "the search in the file has a trial with a smaller error than the one chosen"
        ]
    )
