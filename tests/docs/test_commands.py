"""Commands of README and of the site: all are understood as they are printed, those of the start page run in their order."""

import re
import shlex

import click
import pytest

from smimbench.cli import cli
from smimbench.registry.registry import set_registry
from tests.helpers import ROOT, call, output

PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "results").glob("**/README.md")),
]
BLOCK = re.compile(r"```(?:sh|bash|console|text)\n(.*?)```", re.S)
SMALL = [
    "--set",
    "grid.dimension=20",
    "--set",
    "grid.seeds=1",
    "--only",
    "problem=linear",
    "--only",
    "alpha=0.1",
]
ELSEWHERE = ("report", "check")
"""Verbs of the start page that take long and have tests of their own (the page in a browser, every published check)."""


def commands(text):
    """Every line of a block that begins with smimbench, or has it after ``&&``; continued lines are joined."""
    lines = [
        line
        for found in BLOCK.findall(text)
        for line in found.replace("\\\n", " ").splitlines()
    ]
    parts = [
        part.strip() for line in lines for part in line.removeprefix("$ ").split("&&")
    ]
    return [
        shlex.split(part, comments=True)[1:]
        for part in parts
        if re.match(r"smimbench \w", part)
    ]


def inline(text):
    """Commands in a sentence, where they are whole: with an argument, and without a word that stands for one."""
    found = re.findall(r"`smimbench ([^`\n]+)`", text)
    return [
        shlex.split(one)
        for one in found
        if " " in one and not re.search(r"\b[A-Z]{2,}\b|\.\.\.|…", one)
    ]


WRITTEN = [
    (path.name, words)
    for path in PAGES
    for words in [
        *commands(path.read_text(encoding="utf-8")),
        *inline(path.read_text(encoding="utf-8")),
    ]
]


def test_there_are_many():
    assert len(WRITTEN) > 40


@pytest.mark.parametrize(
    ("page", "words"),
    WRITTEN,
    ids=lambda one: one if isinstance(one, str) else " ".join(one)[:60],
)
def test_a_command_is_understood_as_it_is_printed(page, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for word in words:  # what a command reads is there when a reader types it
        if "/" in word and "=" not in word and not word.startswith("-"):
            (tmp_path / word).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / word).touch() if "." in word.rpartition("/")[2] else (
                tmp_path / word
            ).mkdir(exist_ok=True)
        elif word.endswith((".npz", ".json")):
            (tmp_path / word).touch()
    above = click.Context(cli, info_name="smimbench", **cli.context_settings)
    verb = cli.get_command(above, words[0])
    assert verb is not None, f"{page}: no command {words[0]}"
    # It raises where an option or an argument is not known. Below the group, as in the program: click keeps the help option
    # that a command had in its first context.
    verb.make_context(words[0], words[1:], parent=above)


@pytest.mark.slow
def test_the_commands_of_the_start_page_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    (block,) = [found for found in BLOCK.findall(text) if "smimbench doctor" in found]
    ran = set()
    for words in commands(f"```sh\n{block}```"):
        if words[0] in ELSEWHERE:
            continue
        extra = SMALL if "quickstart" in words else []
        if words[0] == "run":
            extra = [*extra, "--no-figure", "--workers", "1"]
        if words[0] == "compare":
            for folder in words[1:3]:
                more = [
                    *SMALL,
                    "--only",
                    "algorithm=gamp",
                    "--no-figure",
                    "--workers",
                    "1",
                    "--results",
                    folder,
                ]
                output(capsys, "run", "quickstart", *more)
        code, out, err = call(capsys, *words, *extra)
        # adam has not run, and so show says that cells are missing; a doctor may find something.
        assert code in ((0, 1) if words[0] in ("show", "doctor") else (0,)), (
            words,
            out,
            err,
        )
        assert out.strip(), words
        ran.add(words[0])
    assert ran >= {
        "theory",
        "run",
        "show",
        "list",
        "info",
        "compare",
        "data",
        "plugins",
        "doctor",
    }
    set_registry(None)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_value_of_an_option_is_a_pattern_for_a_shell(page):
    """Without quotes zsh takes ``problems[0]`` for the name of a file, and refuses the command."""
    for line in page.read_text(encoding="utf-8").splitlines():
        bare = re.sub(r"'[^']*'|\"[^\"]*\"", "", line)
        assert not [
            value
            for value in re.findall(r"smimbench .*--(?:set|only|add) (\S+)", bare)
            if set(value) & set("[]{}*?")
        ]
