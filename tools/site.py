"""What mkdocs does beyond the pages of docs/: pages that are generated, links that lead out of it, and formulas.

A hook of ``mkdocs.yml``. Formulas become MathML, which browsers draw by themselves: the site fetches nothing from elsewhere.
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

from board import page as board
from columns import columns
from hooks import contracts
from latex2mathml.converter import convert
from mkdocs.structure.files import File
from suite import keys

from smimbench.registry.registry import Registry, using
from smimbench.report.catalogue import item_documents

COMMAND_LINE = """# Command line

::: mkdocs-click
    :module: smimbench.cli.main
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
REFERENCE = Path(__file__).resolve().parent.parent / "results" / "reference"


def _shipped_suites():
    """What ``smimbench list`` says of all shipped suites."""
    with using(Registry(third_party=False)):
        return item_documents("suites")["suites"]


def suites() -> str:
    """A table of all shipped suites."""
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
    """Figure and table of every suite that has a reference, in the order of the list of suites."""
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


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages, and the figures of the gallery."""
    pages = {
        "command-line.md": COMMAND_LINE,
        "python.md": PYTHON,
        "suites.md": suites(),
        "gallery.md": gallery(),
        "board.md": board(),
        "columns.md": columns(),
    }
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    for figure in sorted(REFERENCE.glob("*.svg")):
        files.append(
            File.generated(config, f"gallery/{figure.name}", abs_src_path=str(figure))
        )
    return files


GENERATED_SECTIONS = {"contracts": contracts, "keys": keys}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Add generated sections; links that lead out of the documentation keep their words, as the site holds no source."""
    markdown = re.sub(
        r"<!-- on the site: (\w+) -->",
        lambda mark: GENERATED_SECTIONS[mark[1]](),
        markdown,
    )
    return re.sub(r"\[([^\]]+)\]\(\.\./[^)]*\)", r"\1", markdown)


def on_page_content(text: str, **_: Any) -> str:
    """Formulas as MathML."""
    marked = r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>'
    return re.sub(marked, _formula, text, flags=re.DOTALL)


def _formula(match: re.Match[str]) -> str:
    return convert(
        html.unescape(match[2]), display="block" if match[1] == "div" else "inline"
    )
