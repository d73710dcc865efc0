"""The site builds without a warning, has every page, and fetches nothing from elsewhere."""

import importlib.util
import json
import re
import subprocess
import sys

import pytest

from smimbench.report.wording import VERDICT_HELP
from tests.helpers import ROOT, environment

REFERENCE = ROOT / "results" / "reference"
NAMED = set(
    re.findall(
        r'= "([\w-]+\.md)"', (ROOT / "zensical.toml").read_text(encoding="utf-8")
    )
)
GENERATED = {
    "command-line.md",
    "python.md",
    "suites.md",
    "gallery.md",
    "board.md",
    "columns.md",
    "own-optimizer.md",
}


def test_every_page_is_in_the_navigation():
    assert {path.name for path in (ROOT / "docs").glob("*.md")} | GENERATED == NAMED


@pytest.mark.slow
@pytest.mark.skipif(
    not importlib.util.find_spec("zensical"), reason="extra docs is not installed"
)
def test_the_site_builds_without_a_warning_and_stands_alone():
    command = [sys.executable, "tools/site.py"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr
    pages = {
        path.name: path.read_text(encoding="utf-8")
        for path in (ROOT / "site").glob("*.html")
    }
    assert {
        page.replace(".md", ".html").replace("README", "index") for page in NAMED
    } <= set(pages)
    for name, text in pages.items():
        fetched = re.findall(
            r"<(?:script|img|iframe)[^>]*src=\"?(https?://[^\" >]*)|<link[^>]*stylesheet[^>]*https?:",
            text,
        )
        assert not fetched, name
        assert 'class="arithmatex"' not in text, f"{name}: a formula that was not drawn"
    for page, words in (
        ("concepts", "<math"),
        ("command-line", "--add"),
        ("suite", "max_cells"),
        ("hooks", "log_likelihood"),
        ("columns", "s.e.m."),
        ("python", "smimbench.api.run"),
        ("own-optimizer", 'src="own-optimizer-2.png"'),
    ):
        assert words in pages[f"{page}.html"]
    assert "Sentinel" not in pages["command-line.html"], (
        "a default that click does not show"
    )
    for path in (ROOT / "suites").glob("*.toml"):
        assert f"<code>{path.stem}</code>" in pages["suites.html"]
    figures = set(re.findall(r'src="(gallery/[^"]+)"', pages["gallery.html"]))
    assert figures == {f"gallery/{path.name}" for path in REFERENCE.glob("*.svg")}
    assert all((ROOT / "site" / figure).stat().st_size > 1000 for figure in figures)
    for path in REFERENCE.glob("*.json"):
        assert f">{path.stem}<" in pages["gallery.html"]
    index = json.loads((ROOT / "site" / "search.json").read_text(encoding="utf-8"))
    found = {item["title"]: item["location"] for item in index["items"]}
    for phrase in VERDICT_HELP:  # a search for what is printed finds a heading
        assert found[phrase].startswith("verdict.html#"), phrase
