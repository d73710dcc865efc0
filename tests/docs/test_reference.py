"""The reference pages have everything that can be implemented, and links lead somewhere."""

from __future__ import annotations

import ast
import inspect
import re

import pytest

from smimbench import hookspecs, interfaces
from smimbench.interfaces.members import OPTIONAL, describe
from tests.helpers import ROOT

DOCS = ROOT / "docs"
HOOKS = (DOCS / "hooks.md").read_text(encoding="utf-8")
PAGES = sorted(path.name for path in DOCS.glob("*.md"))


def section(title: str) -> str:
    """Text of a section of the hook reference."""
    return HOOKS.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_every_hook_is_documented():
    hooks = [name for name in vars(hookspecs) if name.startswith("smimbench_")]
    assert hooks
    for name in hooks:
        assert f"`{name}`" in section("Hooks"), name
    assert set(re.findall(r"`(smimbench_register_\w+)`", HOOKS)) == set(hooks)


def contract_methods(contract: type) -> set[str]:
    """Names of a contract: its methods and properties, its annotations, and the optional methods that its docstring names."""
    own = {name for name in vars(contract) if not name.startswith("_")} | set(contract.__annotations__)
    named = set(re.findall(r"``(\w+)(?:\(| \(attribute|`` \(attribute)", inspect.getdoc(contract)))
    return own | named


def written(text: str) -> set[str]:
    """All names in the first cells of the tables of a section."""
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("|")]
    return {name for cell in cells for name in re.findall(r"`(\w+)", cell)}


@pytest.mark.parametrize("kind", ["Channel", "Prior", "Algorithm", "Metric", "Model"])
def test_every_method_of_a_contract_is_documented(kind):
    common = written(section("Every item"))
    assert common >= {"name", "version", "reference", "capabilities"}
    wanted = contract_methods(getattr(interfaces, kind))
    assert len(wanted - common) >= 4
    # Calls of others that the docstrings mention in passing.
    foreign = {"sum", "diag", "tr", "sample_chunks", "function", "gram_scale" if kind == "Model" else ""}
    assert wanted - foreign <= common | written(section(kind)), kind


@pytest.mark.parametrize("kind", ["Channel", "Prior", "Algorithm", "Metric", "Model"])
def test_nothing_is_documented_that_nobody_asks_for(kind):
    """Every name in the reference is one that the engine's source knows."""
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "smimbench").rglob("*.py"))
    for name in written(section(kind)):
        assert re.search(rf"\b{name}\b", source), name


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if "://" not in target:
            assert (DOCS / target).exists(), f"{page}: {target}"


def test_the_index_has_every_page():
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\]\(([\w-]+\.md)(?:#[\w-]+)?\)", index)) == set(PAGES) - {"README.md"}


def test_the_tutorials_use_the_checks_that_exist():
    from smimbench.testing import all_checks

    known = {check.id for check in all_checks()}
    for page in PAGES:
        for name in re.findall(r"--only (\w+)(?![\w=])", (DOCS / page).read_text(encoding="utf-8")):
            assert name in known, f"{page}: {name}"


# -- optional members -----------------------------------------------------------------------------------------------

ITEMS = (
    "smimbench",
    *(f"plugins/smimbench_{kind}" for kind in ("models", "channels", "priors", "algorithms", "metrics")),
)

NOT_MEMBERS = {
    "getloadavg", "pthread_sigmask", "uname", "O_CLOEXEC", "O_NONBLOCK",  # of the operating system
    "get", "tolist", "shape", "dtype", "ndim", "iloc", "__dlpack__",  # of arrays and frames
    "name", "version", "reference", "capabilities", "tokens", "contract_version",  # of every item, where it may be broken
    "error", "value",  # of a posterior, or an information, that may be anything
    "draws_predictions", "predict",  # of derived channels, and of what is inside them
    "__name__", "__annotations__", "__dataclass_fields__",  # of classes and functions
}  # fmt: skip


@pytest.mark.parametrize("entry", OPTIONAL, ids=[f"{entry.kind}-{entry.name}" for entry in OPTIONAL])
def test_what_happens_without_a_member_is_documented(entry):
    title = "Every item" if entry.kind == "item" else entry.kind.capitalize()
    rows = [line for line in section(title).splitlines() if re.match(rf"\|.*`{entry.name}\b.*\|.*\|", line)]
    assert rows, f"docs/hooks.md, section {title}: no row for {entry.name}"
    assert any(entry.without in row for row in rows), f"docs/hooks.md should say of {entry.name}: {entry.without}"


def probed(tree: ast.AST) -> set[str]:
    """Names that code asks for with hasattr, or with getattr and a default."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) >= 2:
            asks = node.func.id == "hasattr" or (node.func.id == "getattr" and len(node.args) == 3)
            if asks and isinstance(node.args[1], ast.Constant):
                found.add(node.args[1].value)
    return found


def test_optional_members_are_asked_for_in_one_place():
    """Whatever is probed by hand is no member of an item: those go through ``offers`` and ``member``, which know the list."""
    stray = {}
    for folder in ITEMS:
        for path in (ROOT / folder).rglob("*.py"):
            names = probed(ast.parse(path.read_text(encoding="utf-8"))) - NOT_MEMBERS
            if names and path.name not in ("members.py", "registry.py", "adapters.py", "context.py"):
                stray[str(path)] = names
    assert not stray


def test_a_member_that_is_not_listed_cannot_be_asked_for():
    with pytest.raises(KeyError, match="not listed"):
        interfaces.offers(object(), "nothing_of_the_kind")


def test_own_and_derived_are_told_apart():
    class Bare:
        def forward(self, z, *, rng=None): ...
        def posterior(self, y, omega, V, *, second_moment=False, rng=None): ...

    found = describe("channel", Bare)
    assert found["posterior"] == "own"
    assert found["information"] == found["symmetry"] == "derived"
    assert found["log_partition"] == "none"
