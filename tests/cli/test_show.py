"""``smimbench show``: tables, figures, CSV, Markdown and the published names of its JSON."""

import csv
import io
import json
import math
import re
import shutil
import xml.etree.ElementTree as ElementTree

import pytest

from tests.helpers import SUITE, call, flat, one_document, output, write_suite
from tests.records import records_in


@pytest.mark.slow
def test_show_has_tables_and_all_figures(ran, tmp_path, capsys):
    folder, done = ran
    results = tmp_path / "results"
    shutil.copytree(folder / "results", results)
    out = output(
        capsys, "show", results / "small", "--results", results, "--figures", "--full"
    )
    verdict = done.stdout[done.stdout.index("line: gamp is best") :]
    assert out.endswith(verdict)
    for words in (
        "A small suite",
        "line: MSE against theory, D = 30",
        "line: overlap against theory",
        "line: runtime",
    ):
        assert words in out
    for words in (
        "mean ± s.e.m.",
        "optimal",
        "z",
        "error ÷",
        "status",
        "iter.",
        "memory",
        "worst first",
    ):
        assert words in out
    figures = results / "small" / "figures"
    drawn = {
        "mse",
        "overlap",
        "seconds",
        "profiles",
        "learning-mse",
    }  # because adam counts samples
    kinds = ("png", "svg", "pdf", "csv")
    assert {path.name for path in figures.iterdir()} == {
        f"{n}.{kind}" for n in drawn for kind in kinds
    }
    for path in figures.glob("*.png"):
        data = path.read_bytes()
        assert data.startswith(b"\x89PNG")
        assert len(data) > 10_000
    for path in figures.glob("*.svg"):
        assert ElementTree.parse(path).getroot().tag.endswith("svg")


def test_rows_keep_their_published_names_and_meaning(ran, capsys):
    folder, _ = ran
    _, out, _ = call(
        capsys, "show", folder / "small.toml", "--results", folder / "results", "--json"
    )
    rows = one_document(out)["rows"]
    assert len(rows) == 2 * 2 * 2
    published = {
        "problem", "algorithm", "backend", "alpha", "dimension", "n", "metric", "component", "mean", "sem", "theory",
        "theory_error", "z", "seconds", "iterations", "status_counts",
    }  # fmt: skip
    records = [
        json.loads(p.read_text()) for p in records_in(folder / "results" / "small")
    ]
    for row in rows:
        assert published <= set(row)
        own = [
            r
            for r in records
            if r["algorithm"] == row["algorithm"] and r["sample_ratio"] == row["alpha"]
        ]
        values = [r["metrics"][row["metric"]][0] for r in own]
        assert row["n"] == len(values) == 2
        assert row["mean"] == pytest.approx(sum(values) / 2, rel=1e-14)
        assert row["sem"] == pytest.approx(abs(values[0] - values[1]) / 2, rel=1e-12)
        assert row["z"] == pytest.approx(
            (row["mean"] - row["theory"]) / math.hypot(row["sem"], row["theory_error"])
        )
        assert row["iterations"] == pytest.approx(sum(r["iterations"] for r in own) / 2)
        assert row["seconds"] == pytest.approx(
            sum(r["timing"]["seconds"] for r in own) / 2
        )
        assert row["component"] is None
        assert row["status_counts"] == {"ok": 2}
        a, noise, m = row["alpha"], 0.2, 2
        v = (1 - a * m - noise + math.sqrt((a * m + noise - 1) ** 2 + 4 * noise)) / 2
        assert row["theory"] == pytest.approx(
            v if row["metric"] == "mse" else 1 - v, abs=1e-9
        )


def test_show_needs_no_suite_beside_its_results(ran, capsys):
    folder, _ = ran
    by_suite = call(
        capsys, "show", folder / "small.toml", "--results", folder / "results", "--json"
    )
    by_folder = call(capsys, "show", folder / "results" / "small", "--json")
    assert by_suite == by_folder


def test_show_as_csv_and_markdown(ran, capsys):
    folder, _ = ran
    results = folder / "results" / "small"
    rows = one_document(call(capsys, "show", results, "--json")[1])["rows"]
    out = output(capsys, "show", results, "--csv")
    table = list(csv.DictReader(io.StringIO(out)))
    assert len(table) == len(rows)
    for line, row in zip(table, rows):
        for field in ("alpha", "mean", "sem", "theory", "z"):
            assert float(line[field]) == row[field]
        assert line["component"] == ""
        assert line["status_counts"] == "2 ok"
    out = output(capsys, "show", results, "--markdown")
    lines = out.splitlines()
    assert len(lines) == 2 + len(rows)
    assert {line.count(" | ") for line in lines if "---" not in line} == {
        len(lines[0].split(" | ")) - 1
    }


def test_show_without_full_is_the_contenders_then_the_verdict(ran, capsys):
    results = ran[0] / "results" / "small"
    out = output(capsys, "show", results)
    lines = out.splitlines()
    assert len(lines) <= 20
    assert max(map(len, lines[2:])) <= 80
    ranking, verdict = out.split("best first")
    assert re.search(r"line +gamp .*\n *line +adam ", ranking)
    assert "line: gamp is best" in verdict
    assert "MSE against theory" not in out
    assert lines[-1] == "what this means: smimbench help verdict"
    quiet = output(capsys, "show", results, "--quiet").splitlines()
    assert quiet[-1].startswith("  adam: ")


@pytest.mark.slow
def test_remarks_on_a_run_are_one_note_after_its_verdict(tmp_path, capsys):
    text = SUITE + "[algorithms.tune]\nlearning_rate = [0.1, 0.2]\n"
    suite = write_suite(tmp_path, text)
    where = ("--results", tmp_path / "r", "--workers", "1", "--no-figure")
    code, out, err = call(capsys, "run", suite, *where)
    assert (code, err) == (0, "small: running 8 cells, 1 at a time\n")
    verdict, note = flat(out).split(" note: ")
    assert "line: gamp is best" in verdict
    assert note.startswith("adam ran with the suite's settings; tune them with")
    assert "adam: no prediction: " not in note  # cut after a whole remark
    assert "... (all: smimbench show --full)" in note
    assert "note: " not in output(capsys, "run", suite, *where, "--quiet")
    document, err = call(capsys, "run", suite, *where, "--json")[1:]
    assert json.loads(document)["verdicts"]
    assert "adam ran with the suite's settings" in err
