"""What a CSV and a page hold of texts that others wrote: no formula, no control character, nothing that turns text."""

import csv
import re

import pytest

from smimbench.report.text_files import csv_text
from tests.helpers import ATTENTION, call, silent, write_suite

pytestmark = pytest.mark.usefixtures("svg_alone")

STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)
FORMULAS = (
    "=cmd|' /C calc'!A0",
    "+1+cmd",
    "-2+3",
    "@SUM(A1)",
    "\t=1",
    "\u202e=1",
    "a\x1b[2Jb",
)


@pytest.mark.parametrize("text", FORMULAS)
def test_a_spreadsheet_takes_no_text_for_a_formula(text):
    (head, row) = csv.reader(
        csv_text([{"a": text, "b": -1.5, "c": None}], ["a", "b", "c"]).splitlines()
    )
    assert head == ["a", "b", "c"]
    assert row[0][0] not in "=+-@\t"
    assert not STEERING.search(row[0])
    assert row[1:] == ["-1.5", ""]


@pytest.mark.slow
def test_no_file_of_a_run_or_a_report_carries_formulas_or_steering_characters(
    tmp_path, capsys
):
    pytest.importorskip("jinja2"), pytest.importorskip("matplotlib")
    text = (
        ATTENTION.replace('label   = "softmax"', r'label   = "=cmd|\u001b[31m\u202e"')
        + "steps = 3\n"
    )
    text = text.replace(
        'name = "gamp"', 'name = "adam"\nlabel = "=HYPERLINK(1)\\u0007"'
    )
    text = text.replace(
        "\n[problem]",
        r"""
[suite]
title = "a\u001b]0;b\u0007 \u202ec"
description = "d\u001b[2J\u2066"
reference = "e\u009b\u200f"
[problem]""",
        1,
    )
    suite = write_suite(tmp_path, text)
    call(capsys, "run", suite, "--results", tmp_path / "results")
    page = tmp_path / "page.html"
    silent(capsys, "report", suite, "--results", tmp_path / "results", "--output", page)
    _, shown, _ = call(
        capsys, "show", suite, "--results", tmp_path / "results", "--csv"
    )
    tables = [*(tmp_path / "results").rglob("*.csv")]
    assert {"mse.csv", "seconds.csv"} & {table.name for table in tables}
    for content in [shown, *(table.read_text(encoding="utf-8") for table in tables)]:
        assert not STEERING.search(content)
        assert not [
            cell
            for line in csv.reader(content.splitlines())
            for cell in line
            if cell[:1] in ("=", "@", "+")
        ]
    assert not STEERING.search(page.read_text(encoding="utf-8"))
    for figure in (tmp_path / "results").rglob("*.svg"):
        assert not STEERING.search(figure.read_text(encoding="utf-8"))
