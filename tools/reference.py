"""Runs the shipped suites at moderate size and stores the results: ``python tools/reference.py [SUITE ...]``.

Into ``results/reference``: of each suite one file with its table and what it was made with (``smimbench show`` and ``smimbench
compare`` read it), its figures, and a page that the gallery of the site is made of. Cells and theory are kept under
``results/reference/work``, which is not under version control: what is there is not run again. What runs took goes to
``suites/costs.json``, for dry runs.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smimbench.report.results import ResultsTable

FOLDER = Path(__file__).resolve().parent.parent / "results" / "reference"
WORK = FOLDER / "work"
COSTS = FOLDER.parent.parent / "suites" / "costs.json"

SIZES: dict[str, list[str]] = {
    "quickstart": ["grid.seeds=6"],
    "contenders": [
        "grid.seeds=16",
        "problems.1.grid.seeds=24",
        "problems.2.grid.seeds=[48, 480]",
        "grid.dimension=[200, 400]",
        "problems.0.grid.dimension=[50, 100]",
    ],
    "optimizers": ["grid.dimension=[50, 100]", "grid.seeds=8"],
    "aim-softmax": ["grid.dimension=[50, 100]", "grid.seeds=16"],
    "aim-hardmax": ["grid.dimension=[50, 100]", "grid.seeds=[16, 205]"],
    "aim-linear": ["grid.dimension=[50, 100]", "grid.seeds=16"],
    "aim-hardmax-small-width": ["grid.dimension=[100, 200]", "grid.seeds=[16, 30]"],
    "published": [
        "grid.dimension=[50, 100]",
        "grid.seeds=16",
        "problems.0.grid.seeds=24",
    ],
    "spectral": ["grid.dimension=[300, 600]", "grid.seeds=16"],
    "smi-two-layers": ["grid.dimension=[200, 400]", "grid.seeds=[16, 20]"],
    "smi-skip": ["grid.dimension=[250, 500]", "grid.seeds=16"],
    "wrong-assumptions": ["problems.1.grid.seeds=5"],
    "nuclear-norm": ["grid.dimension=[50, 100]", "grid.seeds=8"],
    "untied": ["grid.dimension=[50, 100]", "grid.seeds=8"],
    "gpu-scale": [
        "suite.title=The problems of gpu-scale at sizes of a laptop",
        "suite.description=Not what this suite is for: d = 100 and D = 1000, not 2000 and 30,000, so that no GPU is needed.",
        "problems.0.label=softmax T = 2",
        "problems.1.label=hardmax T = 2",
        "problems.2.label=two layers",
        "grid.seeds=8",
        "problems.0.grid.dimension=100",
        "problems.1.grid.dimension=100",
        "problems.2.grid.dimension=1000",
        "problems.1.grid.seeds=12",
    ],
    "finite-size": [
        "grid.dimension=[50, 100, 200]",
        "grid.seeds=[32, 16, 8]",
        "problems.3.grid.seeds=[64, 48, 80]",
    ],
    "aim-gd": [
        "grid.dimension=[50, 100]",
        "grid.seeds=16",
        "problems.2.grid.seeds=40",
        "algorithms.averaged adam.students=8",
    ],
    "descent": ["problems.2.grid.seeds=32"],
    "learning-dynamics": [],
    "universality": [],
    "smi-sgd-order": ["grid.seeds=16"],
    "scaling": [
        "grid.seeds=8",
        "problems.2.grid.seeds=12",
        "problems.0.grid.dimension=[50, 100, 200]",
        "problems.3.grid.dimension=[500, 1000, 2000]",
        "problems.4.channel.components=[1, 2, 4, 8]",
        "problems.5.channel.accuracy=[1e-2, 1e-3]",
        "problems.5.grid.dimension=100",
    ],
    "aim-hardmax-tokens": ["grid.dimension=[50, 100]", "grid.seeds=8"],
    "aim-two-layers": [
        "grid.dimension=[50, 100]",
        "grid.seeds=8",
        "grid.alpha=[0.05, 0.2, 0.45]",
    ],
    "smi-three-layers": [
        "grid.dimension=[150, 300]",
        "grid.seeds=8",
        "grid.alpha=[0.5, 1.25]",
    ],
    "smi-four-layers": ["grid.dimension=[150, 300]", "grid.seeds=8"],
}
"""What is changed of each suite: sizes and seeds at which verdicts are decided. Nothing: the suite as it is written."""


PROFILED = 3
"""Algorithms from which on a suite has its profiles in the gallery; of two the table says as much."""

TAG = re.compile(r"<[^>]+>")
ROUND = re.compile(r"(\.\d\d)\d+")
"""Digits of a figure's coordinates beyond a hundredth of a point, which no screen shows; not those of its texts."""


def options(name: str) -> list[str]:
    """Return the changes of a suite at reference size, as options of the command line."""
    return [word for text in SIZES[name] for word in ("--set", text)]


def command(name: str) -> str:
    """Return the command that runs a suite at reference size."""
    return shlex.join(["smimbench", "run", name, *options(name)])


def smimbench(*words: str) -> None:
    """Call smimbench's command line with these words; an exit code of 1 (cells that did not end well) is accepted as a result."""
    process = subprocess.run(
        [sys.executable, "-m", "smimbench", *words],
        check=False,
        stdout=subprocess.DEVNULL,
    )
    if process.returncode not in (0, 1):
        raise SystemExit(
            f"smimbench {shlex.join(words)} ended with exit code {process.returncode}"
        )


def draw(name: str) -> list[str]:
    """Draw a suite's first metric, and performance profiles if there are enough algorithms; return the names of the files."""
    from smimbench import load_suite
    from smimbench.report.charts import save
    from smimbench.report.figures import metric_chart
    from smimbench.report.profiles import profile_chart
    from smimbench.report.results import Results
    from smimbench.run.store import Store

    suite = load_suite(name, SIZES[name])
    results = Results(suite, Store(WORK / name), ("numpy",))
    paths = save(
        metric_chart(suite, results.rows, results.answers, suite.run.metrics[0]),
        WORK / "drawn" / name,
    )
    if len(suite.algorithms) >= PROFILED:
        paths += save(profile_chart(results), WORK / "drawn" / name)
    names = []
    for path in paths:
        if path.suffix == ".svg":
            target = path.name if path.name.startswith(name) else f"{name}-{path.name}"
            svg = TAG.sub(
                lambda tag: ROUND.sub(r"\1", tag[0]), path.read_text(encoding="utf-8")
            )
            (FOLDER / target).write_text(svg, encoding="utf-8")
            names.append(target)
    return names


def page(
    name: str,
    table: ResultsTable,
    shared: dict[str, Any],
    figures: list[str],
    seconds: float,
) -> str:
    """Return the page of a suite: verdicts, figures, the table of contenders, the first metric in full, how it was made.
    ``table`` are the results, ``shared`` is run.json, ``seconds`` the CPU time of the runs.
    """
    from smimbench.registry.registry import find_metric
    from smimbench.report.text_files import markdown_table
    from smimbench.report.wording import verdict_line

    document = table.document()
    rows = document["rows"]
    metric = rows[0]["metric"]
    sections = [f"# {name}\n", f"{document['title']}. {document['description']}\n"]
    sections.append(
        "\n".join(f"- {verdict_line(verdict)}" for verdict in table.verdicts) + "\n"
    )
    sections += [f"![{Path(figure).stem}]({figure})\n" for figure in figures]
    contenders = [
        contender_row(verdict["problem"], contender)
        for verdict in document["verdicts"]
        for contender in verdict["contenders"]
    ]
    if contenders:
        shown = [
            key
            for key in contenders[0]
            if any(contender[key] not in (None, "") for contender in contenders)
        ]
        sections.append(markdown_table(shown, contenders))
    names = ["problem", "algorithm", "alpha", "dimension", "component", "n", "mean", "sem", "own_theory", "bayes",
             "ratio_to_limit", "status_counts"]  # fmt: skip
    metric_rows = [row for row in rows if row["metric"] == metric]
    if all(row["component"] is None for row in metric_rows):
        names.remove("component")
    sections.append(
        f'<details markdown="1"><summary>{find_metric(metric).label}, every row</summary>\n'
    )
    sections.append(markdown_table(names, metric_rows) + "\n</details>\n")
    when = time.strftime("%Y-%m-%d", time.gmtime(shared["written"]))
    cores, numpy = shared["machine"].get("cores"), shared["versions"].get("numpy")
    sections.append(
        f"Made on {when} by `{command(name)}`, {seconds:.0f} s of one core for the runs, theory apart; {cores or 'some'} cores, "
        f"numpy {numpy}. Compare: `smimbench compare results/reference/{name}.json results/{name}`.\n"
    )
    return "\n".join(sections)


def contender_row(problem: str, contender: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a contender on a problem in the table of a suite, by title of the column."""
    from smimbench.report.columns import optimum_at_size_words, ratio_words

    near_fraction = contender["near_fraction"]
    ratio = ratio_words(contender["ratio_to_limit"], contender["ratio_to_limit_error"])
    optimum = [
        contender[f"optimum_{key}"] for key in ("to_limit", "to_limit_error", "source")
    ]
    return {
        "problem": problem,
        "algorithm": contender["algorithm"],
        "error ÷ optimal error": ratio,
        "optimal error, this D ÷ infinite D": optimum_at_size_words(*optimum),
        "error where optimum is 0": contender["where_zero"],
        "agrees with theory": contender["prediction"] or "none",
        "runs at 1.05x optimum": ""
        if near_fraction is None
        else f"{near_fraction:.0%}",
        "time per run (s)": contender["seconds"],
        "run status": contender["status_counts"],
    }


def make(name: str) -> None:
    """Run what is missing of a suite, pack its results, draw them, and write its page."""
    from smimbench.report.packed import read_packed
    from smimbench.run.store import Store

    smimbench(
        "run",
        name,
        *options(name),
        "--results",
        str(WORK),
        "--workers",
        "1",
        "--no-figure",
        "--quiet",
    )
    file = FOLDER / f"{name}.json"
    smimbench(
        "show",
        name,
        *options(name),
        "--results",
        str(WORK),
        "--quiet",
        "--json",
        "--pack",
        str(file),
    )
    table, shared, _ = read_packed(file)
    records = Store(WORK / name).load().values()
    seconds = sum(record.timing.cpu_seconds or 0.0 for record in records)
    (FOLDER / f"{name}.md").write_text(
        page(name, table, shared, draw(name), seconds), encoding="utf-8"
    )
    print(f"{name}: {seconds:.0f} s of one core", flush=True)  # noqa: T201


def write_costs() -> None:
    """Write what a run of each problem and algorithm took, the longest one, for estimates of dry runs."""
    from smimbench.report.packed import read_packed
    from smimbench.run.cost import cost_key

    longest: dict[str, list[float]] = {}
    for file in sorted(FOLDER.glob("*.json")):
        for row in read_packed(file)[0].rows:
            place, identity = row.place, row.identity
            cost = [
                place.alpha,
                place.dimension,
                row.cost.iterations,
                row.cost.cpu_seconds,
            ]
            if all(cost):
                key = cost_key(identity.problem, identity.algorithm, place.backend)
                longest[key] = max(
                    longest.get(key, cost), cost, key=lambda cost: cost[3]
                )
    lines = [
        f"  {json.dumps(key)}: {json.dumps([float(f'{number:.3g}') for number in longest[key]])}"
        for key in sorted(longest)
    ]
    COSTS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    for size in sys.argv[1:] or SIZES:
        make(size)
    write_costs()
