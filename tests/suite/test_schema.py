"""The typed tables of a suite: complete, documented, and the only place where a key is declared."""

import re
import runpy

import pytest

from smimbench.suite import schema
from smimbench.suite.schema import Document, RunOptions, options_in_key
from tests.helpers import ROOT

TABLES = [
    getattr(schema, name)
    for name in dir(schema)
    if name.endswith(("Table", "Axes", "Grid", "Options"))
]


def test_the_page_has_all_keys_and_names_all_tables():
    page = runpy.run_path(str(ROOT / "tools" / "suite.py"))["keys"]()
    written = (ROOT / "docs" / "suite.md").read_text(encoding="utf-8")
    for table in re.findall(r"^## .*?(\[+[\w.]+\]+)", page, re.MULTILINE):
        assert f"`{table}`" in written
    for key in RunOptions.model_fields:
        assert f"| `{key}` |" in page


@pytest.mark.parametrize("table", [*TABLES, schema.ReferenceTable, Document])
def test_every_key_says_what_it_means(table):
    assert table.__doc__
    meaning = runpy.run_path(str(ROOT / "tools" / "suite.py"))["meanings"](table)
    for name in table.model_fields:
        assert meaning[name], name


def test_an_option_that_came_later_is_part_of_the_identity_only_away_from_its_default():
    plain = RunOptions().identity()
    assert sorted(options_in_key()) == sorted([*plain, "draw", "tf32"])
    assert RunOptions(draw="device").identity() == {**plain, "draw": "device"}


def test_a_cell_keeps_only_the_options_of_its_identity():
    cell = RunOptions(
        target=0.5, metrics=("mse", "calibration"), tolerance=1e-3
    ).of_cell(("calibration",))
    assert cell == RunOptions(metrics=("calibration",), tolerance=1e-3)
