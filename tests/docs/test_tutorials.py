"""Every block of the tutorials runs, in order, as it is printed: files are written, commands given, assertions hold."""

import re
import shlex

import pytest

from smimbench.registry.registry import set_registry
from tests.helpers import ROOT, importable, output

LEAST = {
    "writing-a-channel": (3, 2, 1),
    "writing-a-prior": (3, 2, 1),
    "writing-an-algorithm": (4, 3, 1),
    "writing-a-metric": (1, 2, 0),
    "writing-inputs": (2, 4, 1),
    "load-and-plot": (0, 1, 2),
}
"""Files, commands and scripts that a page has at the least."""

BLOCK = re.compile(
    r"(?:<!-- (?P<mark>[^\n]*) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.M | re.S,
)


def blocks(name):
    """Mark, language and text of all blocks of a page."""
    text = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    return [
        (found["mark"] or "", found["language"], found["text"])
        for found in BLOCK.finditer(text)
    ]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working folder that is importable, with everything that was imported from it forgotten."""
    monkeypatch.chdir(tmp_path)
    with importable(tmp_path, monkeypatch):
        yield tmp_path
    set_registry(None)


@pytest.mark.slow
@pytest.mark.parametrize("name", LEAST)
def test_every_block_runs(name, here, capsys):
    files = commands = scripts = 0
    for mark, language, text in blocks(name):
        kind, _, target = mark.partition(": ")
        if kind == "file":
            (here / target).write_text(text, encoding="utf-8")
            files += 1
        elif kind == "run":
            assert language == "sh"
            for line in text.strip().splitlines():
                program, *arguments = shlex.split(line)
                assert program == "smimbench"
                extra = (
                    ["--no-figure", "--workers", "1"] if arguments[0] == "run" else []
                )
                output(capsys, *arguments, *extra)
                commands += 1
        else:
            assert (mark, language) == ("", "python"), (
                f"a block that nothing runs: {mark} {language}"
            )
            exec(compile(text, f"{name}.md", "exec"), {"__name__": "tutorial"})
            scripts += 1
    assert all(
        found >= least
        for found, least in zip((files, commands, scripts), LEAST[name], strict=True)
    )
