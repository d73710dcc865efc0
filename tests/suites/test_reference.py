"""The committed reference of the shipped suites: whole, small, of suites that exist, with theory that is what the code says."""

import importlib.util
import re

import numpy as np
import pytest

from smimbench import load_suite
from smimbench.registry.registry import find_metric, theory_of
from smimbench.report.packed import read_packed
from smimbench.report.row import grouped
from smimbench.run.theory_solver import TheorySolver
from smimbench.suite.document import shipped_suites
from tests.helpers import ROOT
from tests.net.collect import LIGHTER

FOLDER = ROOT / "results" / "reference"
FILES = sorted(FOLDER.glob("*.json"))
MOST = 3
"""Sample ratios of a problem that are solved again; all of them would take a minute."""


def sizes():
    spec = importlib.util.spec_from_file_location(
        "reference", ROOT / "tools" / "reference.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.SIZES


def test_every_shipped_suite_has_a_size_and_what_is_kept_is_small():
    assert set(sizes()) == set(shipped_suites())
    assert {path.stem for path in FILES} <= set(sizes())
    assert {"quickstart", "contenders", "optimizers"} <= {path.stem for path in FILES}
    for path in FILES:
        longer = tuple(
            other.stem for other in FILES if other.stem.startswith(path.stem + "-")
        )
        own = (
            one
            for one in FOLDER.glob(f"{path.stem}[.-]*")
            if not (longer and one.name.startswith(longer))
        )
        assert sum(one.stat().st_size for one in own) < 1_300_000, path.stem


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_page_has_its_figures_its_table_and_the_command_that_made_it(path):
    text = path.with_suffix(".md").read_text(encoding="utf-8")
    figures = re.findall(r"!\[[^]]*\]\(([^)]+)\)", text)
    assert figures
    assert all((FOLDER / figure).is_file() for figure in figures)
    assert f"`smimbench run {path.stem}" in text
    table, shared, _ = read_packed(path)
    assert table.missing == 0
    assert shared["overrides"] == sizes()[path.stem]
    assert text.count("\n| ") > len(table.verdicts)


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_theory_is_still_what_the_code_says(path, solved):
    table, shared, _ = read_packed(path)
    suite = load_suite(path.stem, [*shared["overrides"], *LIGHTER.get(path.stem, ())])
    plans = {plan.label: plan.problem for plan in suite.plans}
    rows = [
        row
        for row in table.rows
        if row.metric in ("mse", "overlap") and row.optimum.limit is not None
    ]
    for label, own in grouped(rows, lambda row: row.place.problem).items():
        if label not in plans and path.stem in LIGHTER:
            continue
        problem = plans[label]
        if problem.components > 1 or problem.channel.information is None:
            continue  # minutes of integrals: their own tests hold them
        alphas = sorted({row.place.alpha for row in own})
        chosen = {alphas[round(i)] for i in np.linspace(0, len(alphas) - 1, MOST)}
        for alpha, members in grouped(own, lambda row: row.place.alpha).items():
            if alpha in chosen:
                (point, *_), *_ = TheorySolver(solved / "theory").points(
                    problem, [alpha]
                )
                for row in members:
                    values, errors = theory_of(
                        find_metric(row.metric), problem, point, 1
                    )
                    allowed = (
                        1e-6
                        + 1e-4 * abs(row.optimum.limit)
                        + 4 * (errors[0] or 0.0)
                        + 4 * (row.optimum.limit_error or 0.0)
                    )
                    assert abs(values[0] - row.optimum.limit) < allowed, (
                        label,
                        alpha,
                        row.metric,
                    )
