"""Builds the site: ``python tools/site.py``, which writes ``site/``.

``docs/`` is copied to ``build/docs`` with the pages that are generated, links that lead out of the documentation lose their
target, Zensical builds the pages (``zensical.toml``), and formulas become MathML, which browsers draw by themselves: the site
fetches nothing from elsewhere. A warning is a failure.
"""

from __future__ import annotations

import html
import re
import shutil
import subprocess
import sys
from pathlib import Path

from board import page as board
from columns import columns
from hooks import contracts
from latex2mathml.converter import convert
from notebook import PAGE as NOTEBOOK_PAGE
from notebook import page as notebook
from suite import keys

from smimbench.registry.registry import Registry, using
from smimbench.report.catalogue import item_documents
from smimbench.report.wording import VERDICT_HELP

ROOT = Path(__file__).resolve().parent.parent
DOCS, SOURCES, SITE = ROOT / "docs", ROOT / "build" / "docs", ROOT / "site"
REFERENCE = ROOT / "results" / "reference"

COMMAND_LINE = """# Command line

::: mkdocs-click
    :module: smimbench.cli
    :command: cli
    :prog_name: smimbench
    :depth: 1
    :style: plain
"""
PYTHON = """# Python

What `import smimbench` offers; the contracts of items are in [hooks and contracts](hooks.md).

::: smimbench.api

::: smimbench.suite.reader
    options: { members: [load_suite] }

::: smimbench.problem.problem
    options: { members: [Problem] }

::: smimbench.report.notebook

::: smimbench.interfaces
    options: { members: [Channel, Prior, Algorithm, Metric, Model, Capabilities, Data, Info, Overlap] }
"""
SUITES = """# Choosing a suite

`smimbench run NAME` runs one; `smimbench run NAME --dry-run` says first how long it takes here. A first look: `quickstart`. All
algorithms against each other: `optimizers`. Every algorithm next to its own theory: `contenders`. Values of other groups:
`published`. How errors depend on the dimension: `finite-size`. Your own algorithm joins any of them with `--add`, and
`extends = "NAME"` makes a suite of your own on top of one ([every key](suite.md)).

| suite | what it shows | problems | algorithms | takes |
|---|---|---|---|---|
"""

GALLERY = """# Gallery

The shipped suites at moderate size: verdict, figure, and all algorithms that were run; every row is folded in below. The same
tables lie in `results/reference` of a checkout, a file for each suite: `smimbench show results/reference/quickstart.json` prints
one, `smimbench compare results/reference results` holds results of your own, made by the command under each figure, against them.
All were made by `python tools/reference.py`. At such sizes errors lie some per cent off their limits
([finite size](how-we-measure.md#finite-size)).
"""


def _shipped_suites():
    """Return the description that ``smimbench list`` gives of each shipped suite."""
    with using(Registry(third_party=False)):
        return item_documents("suites")["suites"]


def suites() -> str:
    """Return the page of all shipped suites: a table with problems, algorithms and duration."""
    rows = []
    for suite in _shipped_suites():
        lists = [", ".join(suite[key]) for key in ("problems", "algorithms")]
        source = f" ({suite['reference']})" if suite["reference"] else ""
        cells = [
            f"`{suite['name']}`",
            suite["summary"] + source,
            *lists,
            suite["duration"],
        ]
        rows.append(
            "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
        )
    return SUITES + "\n".join(rows) + "\n"


def gallery() -> str:
    """Return the page of reference results: figure and table of every suite that has some, in the order of the list of suites."""
    sections = [GALLERY]
    for suite in _shipped_suites():
        page = REFERENCE / f"{suite['name']}.md"
        if page.is_file():
            sections.append(
                re.sub(r"^# ", "## ", page.read_text(encoding="utf-8")).replace(
                    "](", "](gallery/"
                )
            )
    return "\n".join(sections)


def verdict_phrases() -> str:
    """Return the phrases of verdicts with their meanings, each phrase as a heading, so that a search for printed words finds
    it.
    """
    return "\n\n".join(
        f"### {phrase}\n\n{meaning}" for phrase, meaning in VERDICT_HELP.items()
    )


GENERATED_SECTIONS = {
    "contracts": contracts,
    "keys": keys,
    "verdict_phrases": verdict_phrases,
}


def pages() -> dict[str, str]:
    """Return the Markdown of all pages, those of ``docs/`` and generated ones, by file name."""
    written = {
        path.name: path.read_text(encoding="utf-8") for path in DOCS.glob("*.md")
    }
    generated = {
        "command-line.md": COMMAND_LINE,
        "python.md": PYTHON,
        "suites.md": suites(),
        "gallery.md": gallery(),
        "board.md": board(),
        "columns.md": columns(),
        NOTEBOOK_PAGE: notebook()[0],
    }
    return {name: _completed(text) for name, text in (written | generated).items()}


def _completed(markdown: str) -> str:
    """Add generated sections to a page; links that lead out of the documentation keep only their words, as the site holds no
    source.
    """
    markdown = re.sub(
        r"<!-- on the site: (\w+) -->",
        lambda mark: GENERATED_SECTIONS[mark[1]](),
        markdown,
    )
    markdown = re.sub(r"\]\(([\w-]+)\.ipynb\)", r"](\1.md)", markdown)
    return re.sub(r"\[([^\]]+)\]\(\.\./[^)]*\)", r"\1", markdown)


def write_sources() -> None:
    """Write the folder that Zensical reads: all pages and figures."""
    shutil.rmtree(SOURCES, ignore_errors=True)
    ignored = shutil.ignore_patterns("*.md", "*.json", "*.ipynb")
    shutil.copytree(DOCS, SOURCES, ignore=ignored)
    for name, text in pages().items():
        (SOURCES / name).write_text(text, encoding="utf-8")
    for name, figure in notebook()[1].items():
        (SOURCES / name).write_bytes(figure)
    (SOURCES / "gallery").mkdir()
    for path in REFERENCE.glob("*.svg"):
        shutil.copy(path, SOURCES / "gallery")


def draw_formulas(page: Path) -> None:
    """Replace the TeX of a built page by MathML."""
    marked = r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>'
    text = page.read_text(encoding="utf-8")
    page.write_text(re.sub(marked, _formula, text, flags=re.DOTALL), encoding="utf-8")


def _formula(match: re.Match[str]) -> str:
    """Convert a matched formula from TeX to MathML."""
    return convert(
        html.unescape(match[2]), display="block" if match[1] == "div" else "inline"
    )


def main() -> int:
    """Build the site; return the exit code of Zensical."""
    write_sources()
    shutil.rmtree(SITE, ignore_errors=True)
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    for page in SITE.glob("*.html"):
        draw_formulas(page)
    return status


if __name__ == "__main__":
    raise SystemExit(main())
