"""The contracts are listed from the base classes, the optional members are few, and links lead somewhere."""

import re

import pytest

from smimbench import hookspecs
from smimbench.interfaces import Algorithm, Channel, Item, Metric, Model, Prior
from smimbench.interfaces.item import describe_members, optional_members
from tests.helpers import ROOT
from tools.hooks import contracts

DOCS = ROOT / "docs"
PAGES = sorted(path.name for path in DOCS.glob("*.md"))
BASES = (Item, Model, Channel, Prior, Metric, Algorithm)


def test_the_page_of_hooks_names_all_hooks_and_contracts():
    text = (DOCS / "hooks.md").read_text(encoding="utf-8")
    for base in BASES:
        assert (
            f"\n## {'Every item' if base is Item else base.__name__}\n" in contracts()
        )
    hooks = {name for name in vars(hookspecs) if name.startswith("smimbench_")}
    assert set(re.findall(r"`(smimbench_register_\w+)`", text)) == hooks


@pytest.mark.parametrize("file", PAGES)
def test_links_lead_somewhere(file):
    text = (DOCS / file).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if "://" not in target:
            assert (DOCS / target).exists(), f"{file}: {target}"


def test_the_index_has_every_page():
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\]\(([\w-]+\.md)(?:#[\w-]+)?\)", index)) == set(PAGES) - {
        "README.md"
    }


def test_the_tutorials_use_the_checks_that_exist():
    from smimbench.testing import all_checks

    known = {check.id for check in all_checks()}
    for file in PAGES:
        for name in re.findall(
            r"--only (\w+)(?![\w=])", (DOCS / file).read_text(encoding="utf-8")
        ):
            assert name in known, f"{file}: {name}"


def test_optional_members_are_few_and_say_what_happens_without_them():
    assert (
        sum(len(optional_members(base)) for base in BASES) <= 33
    )  # with all but the first choice of what is needed
    for base in BASES:
        for name in optional_members(base):
            text = describe_members(base)[name]
            assert "Derived: " in text or "Without it: " in text, (
                f"{base.__name__}.{name}"
            )
