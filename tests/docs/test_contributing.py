"""CONTRIBUTING names every file of the engine and of what ships, under its folder, and no other; walks name what is there."""

import re

import pytest

from tests.helpers import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
SECTIONS = re.findall(r"<!-- files: (.*?) -->\n(.*?)(?=\n\n)", PAGE, re.DOTALL)
WALKS = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def files(folder):
    """Names of the files in a folder and below it; of ``smimbench`` itself, the folder alone."""
    top = ROOT / folder
    paths = top.glob("*.py") if folder == "smimbench" else top.rglob("*.py")
    return {path.stem for path in paths} - {"__init__", "__main__"}


@pytest.mark.parametrize(("folders", "text"), SECTIONS, ids=lambda part: part[:40])
def test_every_file_is_named_under_its_folder(folders, text):
    named = set(re.findall(r"`([a-z_]+)`", text)) - {"__init__"}
    assert named == set().union(*map(files, folders.split()))


def test_every_folder_has_a_section():
    packages = [
        path.parent for top in ("smimbench", "plugins/smimbench_attention")
        for path in (ROOT / top).glob("*/__init__.py")
    ]  # fmt: skip
    written = " ".join(folders for folders, _ in SECTIONS).split()
    assert {str(path.relative_to(ROOT)) for path in packages} <= set(written)


def test_walks_name_what_is_there():
    """After the path of a file, the names of its functions."""
    steps = re.findall(r"`((?:smimbench|plugins)/[\w/]+\.py)`(.*?)(?=\n\d\.|\n\n)", WALKS, re.DOTALL)  # fmt: skip
    assert len(steps) >= 5
    for path, text in steps:
        code = (ROOT / path).read_text(encoding="utf-8")
        for name in re.findall(r"`(\w+)`", text):
            assert re.search(rf"\b{name}\b", code), f"{path}: {name}"
