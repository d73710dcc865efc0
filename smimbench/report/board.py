"""The board: tables that others have submitted as packed files, as far as their rows can be run again."""

from __future__ import annotations

import json
import math
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from scipy.stats import t

from smimbench.files import JsonObject, canonical_json
from smimbench.report.labels import grouped, without_versions
from smimbench.report.packed import read_packed
from smimbench.report.stored_table import with_summaries
from smimbench.report.verdict import verdicts
from smimbench.run.campaign import read_seed
from smimbench.run.record import digest_of, plain
from smimbench.run.tuning import read_choice, searches
from smimbench.run.verification import Verification, differences
from smimbench.suite import SuiteError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from smimbench.report.results import Results
    from smimbench.suite.cells import Cell, Suite

LEVEL = 0.95
"""Level of the intervals: of two whose intervals are apart one ranks above. Nearer to 1, more share a rank."""


def obstacle(row: Mapping[str, Any], shared: Mapping[str, Any]) -> str:
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
        If the suite is not finished, its seed is secret, its cells are of several versions, or no row can be run again.
    """
    suite, document = results.suite, results.document()
    if document["missing"]:
        raise SuiteError(suite.file, "", f"{document['missing']} cells have not been run")
    if read_seed(results.store) is not None:
        raise SuiteError(suite.file, "grid.seed", "is still secret; finish the run, which tells it")
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
        "packages": _packages(row["identity"] for row in results.rows),
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


def _packages(identities: Iterable[JsonObject]) -> dict[str, str]:
    """Versions of the packages of third parties; a file is none."""
    found = {}
    for name in {item["distribution"] for one in identities for item in _third_party(one)}:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return dict(sorted(found.items()))


def verified(path: Path, rows: Sequence[JsonObject], shared: Mapping[str, Any], suite: Suite) -> Verification:
    """Check that all rows can be run again by the code that is here, with all runs of the suite and the same settings."""
    found = Verification()
    places = grouped(suite.cells("numpy"), lambda c: (c.problem_label, c.algorithm_label, c.alpha, c.dimension))
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
            here = {"problem": without_versions(cell.problem), "algorithm": without_versions(cell.described)}
            lines += list(differences(row["identity"], json.loads(canonical_json(here)), 0.0))[:3]
            lines += list(differences({"settings": row["settings"]}, {"settings": cell.origin}, 0.0))
            if sum(row["status_counts"].values()) != len(cells):
                lines.append(f"{sum(row['status_counts'].values())} runs, the suite has {len(cells)}")
            if not set(row["values"]) <= {f"{cell.seed}/{cell.replicate}" for cell in cells}:
                lines.append("it has values of runs that the suite does not have")
            if cell.tuning:
                question = asked.get((cell.problem_label, cell.algorithm_label))
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


def board(paths: Iterable[Path]) -> list[JsonObject]:
    """All entries of the board, best first within each contest and ranking.

    Returns
    -------
    list of dict
        ``contest`` (problem, dimension and sample ratios, in words), ``ranking`` (``tuned, 8 trials``, ``self-tuning`` or ``by
        hand``), ``rank`` (1 and the number of those that are better beyond the intervals), ``by``, ``written``, ``versions``, the
        name of the ``file``, and what ``verdicts`` says of a contender, with the ``interval`` of its error over the optimal one
        and the ``cpu_seconds`` of a run at the first sample ratio.
        Of what was submitted twice the newest is there.
    """
    found: dict[str, JsonObject] = {}
    for path in paths:
        document, shared = read_packed(path, exactly=True)
        rows = [row for row in document["rows"] if not obstacle(row, shared)]
        for verdict in verdicts(rows):
            inside = [
                row for row in rows if row["problem"] == verdict["problem"] and row["dimension"] == verdict["dimension"]
            ]
            alphas = sorted({row["nominal_alpha"] for row in inside})
            for one in verdict["contenders"]:
                own = next(row for row in inside if row["algorithm"] == one["algorithm"])
                contest = canonical_json([own["identity"]["problem"], alphas, verdict["dimension"], verdict["metric"]])
                key = canonical_json([contest, own["identity"]["algorithm"]])
                entry = {**one, **{name: shared.get(name) for name in ("by", "written", "versions", "packages")}}
                entry |= {
                    "key": contest,
                    "file": path.name,
                    "interval": _interval(one, own["n"]),
                    "cpu_seconds": own["cpu_seconds"],
                    "ranking": _ranking(one),
                }
                where = f"{verdict['dimension_letter']} = {verdict['dimension']}, alpha {', '.join(map('{:.4g}'.format, alphas))}"
                entry["contest"] = f"{verdict['problem']}, {where}"
                if key not in found or found[key]["written"] < entry["written"]:
                    found[key] = entry
    entries: list[JsonObject] = []
    for same in grouped(found.values(), lambda one: (one["key"], one["ranking"])).values():
        for one in same:
            one["contest"], one["rank"] = same[0]["contest"], 1 + sum(_is_better(other, one) for other in same)
        entries += sorted(same, key=_order)
    return sorted(entries, key=lambda one: (one["contest"], one["ranking"] == "by hand", one["ranking"]))


def _interval(one: Mapping[str, Any], n: int) -> list[float] | None:
    """Interval of the error over the optimal one, by Student's t on its logarithm."""
    ratio, error = one["ratio_to_bayes"], one["ratio_error"]
    if not ratio or error is None or n < 2:
        return None
    factor = math.exp(float(t.ppf((1 + LEVEL) / 2, n - 1)) * error / ratio)
    return [ratio / factor, ratio * factor]


def _ranking(one: Mapping[str, Any]) -> str:
    """The ranking that an entry belongs to, see docs/protocol.md."""
    settings: str = one["settings"]
    if settings in ("default", "as published"):
        return "self-tuning"
    return settings if settings.startswith("tuned") else "by hand"


def _order(one: Mapping[str, Any]) -> tuple[float, ...]:
    ratio = one["ratio_to_bayes"]
    return one["below_optimum"], one["missing"], math.inf if ratio is None else ratio


def _is_better(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether one has estimates at more sample ratios, or an error smaller beyond the intervals."""
    if _order(one)[:2] != _order(other)[:2]:
        return _order(one)[:2] < _order(other)[:2]
    if None in (one["interval"], other["interval"]):
        return _order(one) < _order(other)
    return bool(one["interval"][1] < other["interval"][0])
