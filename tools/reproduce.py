"""Makes docs/reproduce.md and results/checks/papers.md: ``python tools/reproduce.py PUBLISHED [--quick] [FIGURE ...]``.

Each figure is made by ``smimbench reproduce``, compared with the tables in the folder PUBLISHED, and drawn again without them:
what is kept is our picture (docs/reproduce) and the verdicts (suites/papers), which ``smimbench reproduce`` prints. Cells and
theory lie in results/papers, which is not under version control.
"""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent.parent / "docs"
PICTURES, WORK = DOCS / "reproduce", DOCS.parent / "results" / "papers"
OUTCOMES = DOCS.parent / "suites" / "papers"
TABLE = DOCS.parent / "results" / "checks" / "papers.md"
TAG, ROUND = re.compile(r"<[^>]+>"), re.compile(r"(\.\d)\d+")
RANKS = ("inside", "known correction", "not compared", "outside")
HEAD = """# Figures of the papers

<!-- Written by `python tools/reproduce.py PUBLISHED`; change it there. -->

`smimbench reproduce --list` shows all figures of arXiv:2502.00901, arXiv:2506.01582 and arXiv:2410.18858 (square
matrices) for which numbers were released, and two of arXiv:2609.03858 without such numbers. `smimbench reproduce
FIGURE` draws one in the paper's axes and prints the last comparison with the authors' tables; `--published FOLDER`
compares again. The tables are not part of smimbench: each figure names their repository. Figures are numbered as in the
authors' plotting scripts; the logarithmic horizontal axes of 2506.01582-fig1 are our choice.

A point is inside if ours and the published one differ by less than the stated band of the curve, plus the published
spread over runs, plus twice our own error. [Corrections](corrections.md) says where the published value is wrong; for
hardmax whole curves are, and the authors' formula in place of ours confirms it. `--quick` takes fewer seeds and points
and smaller sizes: runs are then off by their finite size, too. Every curve:
[results/checks/papers.md](../results/checks/papers.md).

**Where no numbers were released**, learning curves of runs are compared with their [exact limit](learning-dynamics.md).
Rate, batch and d are those of the caption, which does not give widths and starts; these are ours. `--quick` takes d =
100 in place of 400. There latents of one token are far from Gaussian, and runs on the steep labels `h2` and `h3` learn
faster than in the limit. Those of `h3` are outside, and one of two diverges. On the factor, at t = 0.4, `h3` is 0.30
above its limit at d = 100 and 0.19 at d = 200 (one run each).

"""
CURVES = """# Curves of the papers' figures, ours against the published ones

Written by `python tools/reproduce.py PUBLISHED`; [figures of the papers](../../docs/reproduce.md) says how they are compared.

"""


def smimbench(*words: str) -> Any:
    """Return the JSON output of a command of smimbench; an exit code of 1 (a figure that differs) is accepted as a result."""
    command = [sys.executable, "-m", "smimbench", *words, "--json", "--quiet"]
    process = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    if process.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(words)} ended with exit code {process.returncode}")
    return json.loads(process.stdout)


def make(name: str, published: str, quick: bool) -> None:
    """Reproduce a figure of a paper, and keep its verdicts and our picture; ``published`` is the folder of published tables,
    ``quick`` a smaller figure. The CPU time kept is that of the first time, with nothing stored.
    """
    file = OUTCOMES / f"{name}.json"
    words = [
        "reproduce",
        name,
        "--results",
        str(WORK),
        "--workers",
        "1",
        *(["--quick"] if quick else []),
    ]
    usage_before = resource.getrusage(resource.RUSAGE_CHILDREN)
    document = smimbench(*words, "--published", published)
    usage_after = resource.getrusage(resource.RUSAGE_CHILDREN)
    drawn = smimbench(*words)
    document["seconds"] = (
        usage_after.ru_utime
        + usage_after.ru_stime
        - usage_before.ru_utime
        - usage_before.ru_stime
    )
    runs = json.loads(file.read_text()) if file.is_file() else {}
    if runs.get("quick") == quick:
        document["seconds"] = max(document["seconds"], runs["seconds"])
    if quick:
        full = smimbench(
            "reproduce", name, "--results", str(WORK), "--workers", "1", "--dry-run"
        )
        document["full_seconds"] = full["seconds"]
    del document["files"]
    (picture,) = (Path(name) for name in drawn["files"] if name.endswith(".svg"))
    svg = TAG.sub(
        lambda tag: ROUND.sub(r"\1", tag[0]), picture.read_text(encoding="utf-8")
    )
    (PICTURES / f"{name}.svg").write_text(svg, encoding="utf-8")
    tables = "" if "against" in document else " --published FOLDER"
    quickly = " --quick" if quick else ""
    document["command"] = f"smimbench reproduce {name}{tables}{quickly}"
    document["date"] = time.strftime("%Y-%m-%d")
    file.write_text(json.dumps(document, indent=1) + "\n")


def clock(seconds: float) -> str:
    """Format a duration in seconds in the largest unit (days, h, min, s) that it holds twice."""
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.0f} s"


def figures() -> list[dict[str, Any]]:
    """Return the stored outcomes of all figures that have been made."""
    return [json.loads(file.read_text()) for file in sorted(OUTCOMES.glob("*.json"))]


def page() -> str:
    """Return the page of figures: for each a line of a table (curves by verdict, CPU time, known corrections) and a picture."""
    lines = ["| figure | curves | CPU time | known correction |", "|---|---|---|---|"]
    pictures = []
    for figure in figures():
        name, curves = figure["figure"], figure["curves"]
        counts = [
            (sum(curve["verdict"] == rank for curve in curves), rank) for rank in RANKS
        ]
        counted = ", ".join(f"{count} {rank}" for count, rank in counts if count)
        if figure["quick"]:
            full = figure.get("full_seconds")
            counted += ", --quick" + (f" (in full: {clock(full)})" if full else "")
        sections = dict.fromkeys(
            section for curve in curves for section in curve["corrections"]
        )
        cells = [name, counted, clock(figure["seconds"]), ", ".join(sections)]
        lines.append("| " + " | ".join(cells) + " |")
        picture = f"![{name}](reproduce/{name}.svg)"
        pictures.append(f"{figure['title']}:\n\n{picture}\n")
    return HEAD + "\n".join(lines) + "\n\n" + "\n".join(pictures)


def curves_page() -> str:
    """Return the page with the table of all curves: points outside, verdict, largest deviation and the one allowed."""
    lines = [
        "| figure | curve | outside/points | verdict | largest deviation | allowed | at |",
        "|---|---|---|---|---|---|---|",
    ]
    for figure in figures():
        for curve in figure["curves"]:
            numbers = [
                f"{curve[key]:.4g}" if key in curve else ""
                for key in ("deviation", "allowed", "at")
            ]
            cells = [
                f"{figure['figure']} ({figure['date']})",
                curve["curve"],
                f"{curve.get('outside', '')}/{curve['points']}",
                curve["verdict"],
                *numbers,
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return CURVES + "\n".join(lines) + "\n"


if __name__ == "__main__":
    published, *names = (word for word in sys.argv[1:] if word != "--quick")
    for name in names:
        make(name, published, "--quick" in sys.argv)
        print(name, flush=True)  # noqa: T201
    (DOCS / "reproduce.md").write_text(page(), encoding="utf-8")
    TABLE.write_text(curves_page(), encoding="utf-8")
