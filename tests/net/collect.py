"""What must not change when code is only moved: keys, theory, runs, records, tables, figures, ids of checks, public names.

Is a change bit-identical? Collect in two trees on one machine and compare; this prints every difference and exits with 1:

    OMP_NUM_THREADS=1 python tests/net/collect.py /tmp/before.json [--slow]     # in the tree before the change
    OMP_NUM_THREADS=1 python tests/net/collect.py /tmp/after.json [--slow]      # in the tree after it
    python tests/net/collect.py --compare /tmp/before.json /tmp/after.json

Without ``--slow`` it takes about 30 s of one core and holds runs of every algorithm on both models, and of suites whose
theory takes seconds that theory and the figure of ``results/reference``; with it, some minutes, those of every shipped suite.

The tests compare with ``reference/``, to rounding because processors differ: a file for each shipped suite, one for each suite
that is run, and ``contract.json``. They are written by ``python tests/net/collect.py --reference [--slow]`` when a number has to
change, and the commit says why. What is collected is named by meaning, so that it survives renames: ``NAMES`` is the one place
that knows what a column or key is called.
"""

import contextlib
import csv
import hashlib
import importlib
import io
import json
import math
import os
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(threads, "1")

HERE = Path(__file__).resolve().parent
REFERENCE = HERE / "reference"
PACKED = HERE.parents[1] / "results" / "reference"

QUICK = (
    "quickstart",
    "aim-hardmax",
    "aim-hardmax-small-width",
    "aim-linear",
    "nuclear-norm",
    "optimizers",
    "published",
)
"""Suites whose theory and figure take a second or two."""

LIGHTER: dict[str, tuple[str, ...]] = {
    "aim-hardmax-tokens": tuple(
        f"problems.{place}.channel.samples=16384" for place in range(3)
    ),
    "aim-two-layers": ("grid.alpha=[0.1]",),
    "smi-skip": ("problem.channel.skip=[0.0, 0.5, 1.0]",),
}
"""Suites whose theory takes a minute: fewer samples or values lead through the same code."""

RUNS = ("extensive", "low-rank", "retries", "figures")
"""Suites in ``suites/`` that are run; ``two-layers`` is slow."""

NAMES: dict[str, tuple[str, ...]] = {
    "ratio": ("ratio_to_bayes", "ratio_to_optimal"),
    "predicted": ("own_theory", "predicted"),
    "optimal": ("bayes", "optimal"),
    "near": ("near_fraction",),
}
"""Columns and keys that may be renamed: what they mean, and what they are or were called."""

PUBLIC = (
    "smimbench",
    "smimbench.interfaces",
    "smimbench.testing",
    "smimbench.hookspecs",
)


def collect(slow=False):
    """Everything, as JSON."""
    found: dict[str, Any] = {
        "cells": cell_keys(),
        "checks": check_ids(),
        "names": public_names(),
        "runs": {},
    }
    for name in (*RUNS, "two-layers") if slow else RUNS:
        found["runs"][name] = run_of(name)
    found["theory"], found["figures"] = {}, {}
    for name in _solved() if slow else QUICK:
        with tempfile.TemporaryDirectory() as folder:
            found["theory"][name] = theory_of(name, Path(folder))
            found["figures"][name] = reference_figure(name, Path(folder))
    return found


def _shipped():
    from smimbench.suite.document import shipped_suites

    # The keys of universality hold a digest of a text that differs between versions of Python; what the theory of
    # wrong-assumptions must not change is in tests/algorithms/test_assumed.py, that of descent in test_mean_field.py.
    return sorted(
        shipped_suites().keys() - {"universality", "wrong-assumptions", "descent"}
    )


def _solved():
    """Shipped suites with packed results, whose theory is held; that of smi-sgd-order is of the problem of smi-two-layers,
    beyond its thresholds.
    """
    return [
        name
        for name in _shipped()
        if name != "smi-sgd-order" and (PACKED / f"{name}.json").exists()
    ]


def cell_keys():
    """Number of cells of every shipped suite and a digest of their keys in order."""
    import smimbench

    found = {}
    for name in _shipped():
        keys = [cell.key for cell in smimbench.load_suite(name).cells()]
        found[name] = [len(keys), hashlib.sha256("\n".join(keys).encode()).hexdigest()]
    return found


def check_ids():
    """Kinds and ids of all published checks."""
    from smimbench.testing import all_checks

    return sorted(f"{check.kind} {check.id}" for check in all_checks())


def public_names():
    """What the public modules export."""
    return {name: sorted(importlib.import_module(name).__all__) for name in PUBLIC}


def theory_of(name, results):
    """What ``smimbench theory --json`` says of a suite: points, thresholds, published values, theory of its algorithms."""
    found = []
    changes = [word for change in LIGHTER.get(name, ()) for word in ("--set", change)]
    for problem in _command(
        "theory", name, "--results", str(results), "--quiet", "--json", *changes
    ):
        found.append(
            {
                "points": [_point(point) for point in problem["points"]],
                "thresholds": {
                    name: value
                    if name == "sequential"
                    else value and [value["value"], value["error"]]
                    for name, value in (problem["thresholds"] or {}).items()
                    if name != "reasons"
                },
                "hard phase": problem.get("hard_phase"),
                "published": [
                    [p["alpha"], p["theory"], p["within"]]
                    for p in problem.get("published", ())
                ],
                "algorithms": [
                    [
                        entry["algorithm"],
                        entry["alpha"],
                        entry["dimension"],
                        *_known(entry.get("point"), "mse", "overlap"),
                    ]
                    for entry in problem["algorithms"]
                ],
            }
        )
    return found


def _point(point):
    errors = point.get("generalization_error") or {}
    return [
        *_known(
            point, "alpha", "branch", "mse", "mse_error", "overlap", "free_entropy"
        ),
        *_known(errors, "bayes", "plugin", "constant"),
    ]


def run_of(name):
    """A suite of ``suites/`` as it is run by the command line: rows and verdicts, records, and the CSV of its figures."""
    with tempfile.TemporaryDirectory() as folder:
        drawn = ("--figures",) if name == "figures" else ()
        words = (str(HERE / "suites" / f"{name}.toml"), "--results", folder)
        with mock.patch(
            "matplotlib.figure.Figure.savefig"
        ):  # what is drawn is compared, not pictures of it
            _command(
                "run",
                *words,
                "--workers",
                "1",
                "--quiet",
                "--json",
                *(() if drawn else ("--no-figure",)),
            )
            document = _command("show", *words, "--json", *drawn)
        place = Path(folder) / name
        found = {
            "rows": _rows(document),
            "verdicts": _verdicts(document),
            "records": _records(place),
        }
        if drawn:
            found["csv"] = _csv(place / "figures")
    return found


def _rows(document):
    """Rows by problem, algorithm, sample ratio, metric and component."""
    found = {}
    for row in document["rows"]:
        place = f"{row['problem']}, {row['algorithm']}, {row['alpha']:.4g}, {row['metric']} {row['component'] or ''}"
        numbers = _known(
            row,
            "n",
            "mean",
            "sem",
            "theory",
            "theory_error",
            "z",
            "optimal",
            "predicted",
            "ratio",
            "iterations",
        )
        found[place.strip()] = [*numbers, row["restarts"], row["status_counts"]]
    return found


def _verdicts(document):
    return [
        [
            verdict["problem"],
            one["algorithm"],
            *_known(one, "ratio", "ratio_error", "points", "missing", "near"),
        ]
        for verdict in document["verdicts"]
        for one in verdict["contenders"]
    ]


def _records(folder):
    """Of every record the status, counts, and all numbers but clocks, sorted so that their keys may be renamed."""
    found = {}
    for path in folder.glob("*.json"):
        record = json.loads(path.read_text())
        if "cell" not in record:
            continue
        cell = record["cell"]
        place = [
            record["problem"],
            record["algorithm"],
            cell["alpha"],
            cell["replicate"],
        ]
        parts = (
            record["metrics"],
            record.get("start"),
            record.get("final"),
            record.get("trajectory"),
        )
        numbers = [sorted(_leaves(part)) for part in parts]
        counts = _known(
            record, "status", "iterations", "restarts", "samples", "sample_ratio"
        )
        found[", ".join(map(str, place))] = [*counts, *numbers]
    return dict(sorted(found.items()))


def _leaves(value, key=""):
    if "seconds" in key or value is None or isinstance(value, (bool, str)):
        return
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)
    elif math.isfinite(value):
        yield float(value)


def _csv(folder):
    """What is drawn against samples or the sample ratio, file by file; clocks differ."""
    found = {}
    for path in sorted(folder.glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        if "seconds" not in path.name:
            found[path.name] = drawn_of(
                [row for row in rows if row.get("axis") != "seconds"]
            )
    return found


def drawn_of(rows):
    """Numbers of every kind of mark, in the order of first appearance, so that kinds may be renamed."""
    kinds: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        own = kinds.setdefault(row.get("what") or "", {})
        for name in (
            "alpha",
            "value",
            "error",
            "samples",
            "dimension",
            "n",
            "x",
            "share",
        ):
            if row.get(name) not in (None, ""):
                own.setdefault(name, []).append(float(row[name]))
    return list(kinds.values())


def reference_figure(name, results):
    """What the figure of ``results/reference`` shows, drawn from the packed rows and the theory kept in ``results``."""
    from smimbench import load_suite
    from smimbench.report.figures import metric_chart
    from smimbench.report.packed import read_packed
    from smimbench.report.theory_lines import chart_questions
    from smimbench.run.theory_solver import TheorySolver

    table, shared, _ = read_packed(PACKED / f"{name}.json")
    suite = load_suite(name, (*shared["overrides"], *LIGHTER.get(name, ())))
    rows = table.rows
    if name in LIGHTER:
        near = {plan.label: plan.alphas for plan in suite.plans}
        rows = [
            row
            for row in rows
            if any(
                math.isclose(row.place.alpha, a, rel_tol=0.02)
                for a in near.get(row.place.problem, ())
            )
        ]
    metric, solver = suite.run.metrics[0], TheorySolver(results / "theory")
    answers = solver.answer(chart_questions(suite, solver.answers, (metric,), rows))
    drawn = metric_chart(suite, rows, answers, metric)
    assert drawn is not None
    return drawn_of(drawn.rows)


def _known(entry, *meanings):
    """Entries by meaning; None where there is none."""
    entry = entry or {}
    return [
        next((entry[name] for name in NAMES.get(m, (m,)) if name in entry), None)
        for m in meanings
    ]


def _command(*words):
    """A command of ``smimbench`` in this process and the JSON document that it prints; cells may fail."""
    from smimbench.cli import main

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            main(words)
        except SystemExit as ended:
            if ended.code not in (None, 0, 1):
                raise
    return json.loads(printed.getvalue())


def condensed(value):
    """The same with long lists of numbers as their count, sum and sum of squares, on the scale of asinh."""
    if isinstance(value, dict):
        return {name: condensed(inner) for name, inner in value.items()}
    if not isinstance(value, list):
        return value
    if len(value) > 8 and all(isinstance(x, float) for x in value):
        scaled = [math.asinh(x) for x in value]
        return {
            "count": len(value),
            "sum": math.fsum(scaled),
            "squares": math.fsum(x * x for x in scaled),
        }
    return [condensed(inner) for inner in value]


def differences(found, wanted, rounding, where=""):
    """Where two collections differ by more than rounding, in words."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        for key in {**wanted, **found}:
            if key in wanted and key in found:
                yield from differences(
                    found[key], wanted[key], rounding, f"{where}/{key}"
                )
            else:
                yield f"{where}/{key}: {'missing' if key in wanted else 'new'}"
    elif (
        isinstance(wanted, list)
        and isinstance(found, list)
        and len(wanted) == len(found)
    ):
        for i, (one, other) in enumerate(zip(found, wanted)):
            yield from differences(one, other, rounding, f"{where}/{i}")
    elif (
        isinstance(wanted, float)
        and isinstance(found, (int, float))
        and not isinstance(found, bool)
    ):
        if not math.isclose(found, wanted, rel_tol=rounding, abs_tol=rounding):
            yield f"{where}: {found!r}, not {wanted!r}"
    elif found != wanted:
        yield f"{where}: {str(found)[:80]}, not {str(wanted)[:80]}"


def _lines(value, depth=3):
    """JSON with a line for each entry of the outermost levels."""
    if isinstance(value, dict) and value and depth:
        inner = (
            f"{json.dumps(name)}: {_lines(one, depth - 1)}"
            for name, one in value.items()
        )
        return "{\n" + ",\n".join(inner) + "\n}"
    return json.dumps(value, separators=(",", ":"))


def read_reference():
    """What the files of ``reference/`` hold, as ``collect`` returns it."""
    reference: dict[str, Any] = json.loads((REFERENCE / "contract.json").read_text())
    reference |= {"cells": {}, "theory": {}, "figures": {}, "runs": {}}
    for path in sorted((REFERENCE / "suites").glob("*.json")):
        for kind, numbers in json.loads(path.read_text()).items():
            reference[kind][path.stem] = numbers
    for path in sorted((REFERENCE / "runs").glob("*.json")):
        reference["runs"][path.stem] = json.loads(path.read_text())
    return reference


def write_reference(collected):
    """Write what was collected; a file that needs ``--slow`` keeps the numbers that were not collected."""
    contract = {"checks": collected["checks"], "names": collected["names"]}
    files: dict[Path, Any] = {REFERENCE / "contract.json": contract}
    for name, keys in collected["cells"].items():
        path = REFERENCE / "suites" / f"{name}.json"
        numbers = json.loads(path.read_text()) if path.exists() else {}
        numbers["cells"] = keys
        for kind in ("theory", "figures"):
            if name in collected[kind]:
                numbers[kind] = collected[kind][name]
        files[path] = numbers
    for name, run in collected["runs"].items():
        files[REFERENCE / "runs" / f"{name}.json"] = run
    for path, document in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_lines(document) + "\n")


def main(words):
    """See the module's docstring."""
    if words[:1] == ["--compare"]:
        before, after = (json.loads(Path(path).read_text()) for path in words[1:3])
        found = list(differences(after, before, 0.0))
        print("\n".join(found) or "identical")
        return int(bool(found))
    whole = json.loads(json.dumps(collect("--slow" in words)))
    if words[0] != "--reference":
        Path(words[0]).write_text(_lines(whole) + "\n")
        return 0
    write_reference(condensed(whole))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
