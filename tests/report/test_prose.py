"""Docstrings for a terminal: formulas as one reads them, reST without its marks."""

from __future__ import annotations

import pytest

from smimbench.registry.registry import get_registry
from smimbench.report.catalogue import info_documents, print_info
from smimbench.report.prose import readable_math, readable_prose
from tests.report.rows import on_screen


@pytest.mark.parametrize(
    ("source", "read"),
    [
        (r"\hat Q = \kappa \alpha\, V^{-1}", "Q̂ = κ α V⁻¹"),
        (r"y_{ab} = \log \frac{e^{\beta h}}{\sum_b h_b}", "y_ab = log (e^(β h))/(∑_b h_b)"),
        (r"\sqrt{1 + \delta_{ab}}", "√(1 + δ_ab)"),
        (r"\tfrac{1}{2} \langle x^2 \rangle_{\mu}", "1/2 ⟨ x² ⟩_μ"),
        (r"\Big( \mathrm{tr}\, S \Big)", "( tr S )"),
        (r"a &= b \\ c &= d", "a = b\nc = d"),
        (r"\unknown{x}", "unknown{x}"),
    ],
)
def test_formulas(source, read):
    assert readable_math(source) == read


def test_prose():
    text = (
        "Head of :math:`\\alpha` and ``code``::\n\n    x = 1\n\nNotes\n-----\nSee :func:`~a.b.name`.\n\n.. math:: x^2\n"
    )
    assert readable_prose(text).plain == "Head of α and code:\n\n    x = 1\n\nNotes\nSee name.\n\n    x²\n"


def test_paragraphs_are_set_to_the_width_of_the_screen():
    long = "word " * 15
    text = f"First {long}\nends.\n\nx : int\n    What {long}\n    it is.\n\n- {long}\n- two\n\nShort\nlines.\n"
    lines = readable_prose(text, 50).plain.splitlines()
    assert max(map(len, lines)) <= 50
    assert " ".join(" ".join(lines).split()) == " ".join(text.split())
    start = lines.index("x : int")
    assert all(line.startswith("    ") for line in lines[start + 1 : lines.index("", start)])
    assert "- two" in lines
    assert lines[-2:] == ["Short", "lines."]


def test_no_page_of_an_item_is_wider_than_a_screen():
    documents = [one for entry in get_registry().entries() for one in info_documents(entry.name)]
    text = on_screen(lambda console: print_info(console, documents))
    prose = [line for line in text.splitlines() if len(line) > 80 and line.startswith(" ")]
    assert not [line for line in prose if not line.lstrip().startswith("http") and "  " not in line.strip()]


def test_nothing_of_latex_or_rest_is_left_in_any_item():
    for entry in get_registry().entries():
        for document in info_documents(entry.name):
            text = readable_prose(document["documentation"]).plain
            for mark in ("\\frac", "\\sqrt", ".. math", ":math:", "``", "\n---"):
                assert mark not in text, (entry.name, mark)
