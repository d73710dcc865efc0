"""Values at infinite dimension in everything that shows results of a suite with three dimensions."""

import csv
import io

import pytest

import smimbench
from tests.helpers import LINE, answer, call, suite_text, write_suite

pytestmark = pytest.mark.usefixtures("svg_alone")


@pytest.mark.slow
def test_every_output_has_the_extrapolated_values(tmp_path, capsys):
    text = suite_text(LINE, [0.7], 20, 4, 'name = "gamp"').replace(
        "[20]", "[20, 40, 80]"
    )
    path = write_suite(tmp_path, text)
    where = ("--results", tmp_path / "results")
    shown = answer(capsys, "run", path, *where, "--workers", "1")
    assert {row["dimension"] for row in shown["rows"]} == {20, 40, 80}
    by_metric = {entry["metric"]: entry for entry in shown["extrapolated"]}
    assert set(by_metric) == {"mse", "overlap"}
    entry = by_metric["mse"]
    assert (entry["refusal"], entry["n"], len(entry["points"])) == ("", 12, 3)
    assert abs(entry["z"]) < 4
    again = smimbench.extrapolate(smimbench.show(path, results=tmp_path / "results"))
    assert again == shown["extrapolated"]
    assert (
        "MSE at infinite D"
        in call(capsys, "show", path, *where, "--figures", "--full")[1]
    )
    lines = list(
        csv.DictReader(io.StringIO(call(capsys, "show", path, *where, "--csv")[1]))
    )
    assert [line["dimension"] for line in lines].count("inf") == 2
    assert "| inf |" in call(capsys, "show", path, *where, "--markdown")[1]
    page = tmp_path / "page.html"
    call(capsys, "report", path, *where, "--output", page)
    assert "At infinite dimension" in page.read_text()
    assert "Means over runs, at the sample ratio of the largest D" in page.read_text()
    assert (tmp_path / "results" / "small" / "figures" / "finite-size.png").exists()
