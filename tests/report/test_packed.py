"""Packed results: one small file that is shown and compared as the results are."""

import json
import shutil

import pytest

from smimbench.report import packed
from smimbench.report.stored_table import text_of_table
from smimbench.run.record import indented_json, with_digest
from tests.helpers import (
    SUITE,
    answer,
    call,
    flat,
    output,
    refusal,
    silent,
    write_suite,
)
from tests.records import records_in


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with results of a small suite, and the file they are packed into."""
    from smimbench.cli import main

    folder = tmp_path_factory.mktemp("packed")
    suite = write_suite(folder, SUITE)
    for words in (
        ["run", suite, "--workers", "1", "--no-figure", "--quiet", "--json"],
        ["show", suite, "--pack", folder / "small.json", "--quiet", "--json"],
    ):
        with pytest.raises(SystemExit) as ended:
            main([*map(str, words), "--results", str(folder / "results")])
        assert ended.value.code == 0
    return folder


@pytest.mark.slow
def test_a_packed_table_is_the_table(made, capsys):
    beside = answer(capsys, "show", made / "small.toml", "--results", made / "results")
    out = silent(capsys, "show", made / "small.json", "--json")
    assert json.loads(out) == beside


def test_a_name_that_ends_with_gz_makes_a_small_file(made, capsys):
    words = ("show", made / "small.toml", "--results", made / "results", "--json")
    document = call(capsys, *words, "--pack", made / "small.json.gz")[1]
    assert call(capsys, "show", made / "small.json.gz", "--json")[1] == document
    assert (made / "small.json.gz").stat().st_size < 0.4 * (
        made / "small.json"
    ).stat().st_size


@pytest.mark.parametrize("after", ["results", "results/small", "packed", "small.json"])
def test_it_is_compared_without_a_rerun(made, tmp_path, capsys, after):
    folder = tmp_path / "packed"
    folder.mkdir()
    (folder / "small.json").write_bytes((made / "small.json").read_bytes())
    (folder / "README.md").write_text("no results")
    other = folder if after == "packed" else made / after
    out = silent(capsys, "compare", folder, other, "--json")
    rows = json.loads(out)["rows"]
    assert len(rows) == 8
    assert {row["verdict"] for row in rows} == {"unchanged"}


@pytest.mark.slow
def test_settings_go_with_the_same_settings(made, tmp_path, capsys):
    changed = ("--set", "grid.seeds=1")
    call(
        capsys,
        "run",
        made / "small.toml",
        "--results",
        tmp_path / "r",
        "--workers",
        "1",
        "--no-figure",
        *changed,
    )
    call(
        capsys,
        "run",
        made / "small.toml",
        "--results",
        tmp_path / "r",
        "--workers",
        "1",
        "--no-figure",
    )
    code, out, err = call(
        capsys, "compare", made / "small.json", tmp_path / "r", "--json"
    )
    assert code == 0
    assert "exists in only one of the two folders" in err
    document = json.loads(out)
    assert {row["verdict"] for row in document["rows"]} == {"unchanged"}
    assert len(document["alone"]) == 1
    assert (
        call(
            capsys, "compare", made / "small.json", tmp_path / "r", "--fail-over", "5"
        )[0]
        == 1
    )


BAD = {
    "changed": (
        lambda text: text.replace('"replicate":0', '"replicate":9', 1),
        "changed after it was written",
    ),
    "cut": (lambda text: text[: len(text) // 2], "cannot be read as packed results"),
    "newer": (
        lambda text: text.replace('{"packed":3', '{"packed":7', 1),
        "has format 7",
    ),
    "something else": (lambda text: "[1, 2]", "holds no packed results"),
    "nothing": (lambda text: "", "cannot be read as packed results"),
    "no text": (lambda text: "\udcff", "cannot be read as packed results"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("verb", ["show", "compare"])
def test_every_kind_of_bad_file_is_one_line(made, tmp_path, capsys, name, verb):
    spoil, message = BAD[name]
    path = tmp_path / "bad.json"
    path.write_text(
        spoil((made / "small.json").read_text()),
        encoding="utf-8",
        errors="surrogateescape",
    )
    err = refusal(
        capsys, verb, path, *([made / "small.json"] if verb == "compare" else [])
    )
    assert message in err


def test_a_file_that_is_too_large_is_said_to_be(made, capsys, monkeypatch):
    monkeypatch.setattr(packed, "LARGEST", 1000)
    err = refusal(capsys, "show", made / "small.json")
    assert "cannot be read as packed results: the file is larger than 0 MB" in err


def test_a_finished_table_cannot_be_changed(made, capsys):
    err = refusal(capsys, "show", made / "small.json", "--set", "grid.seeds=1")
    assert "finished table" in err


def test_a_folder_that_cannot_be_written_to_is_one_line(made, capsys):
    where = made / "small.toml" / "deeper.json"
    refusal(
        capsys,
        "show",
        made / "small.toml",
        "--results",
        made / "results",
        "--pack",
        where,
    )


def test_every_field_of_a_row_has_a_checked_structure(made, capsys):
    from smimbench.report.row_document import COMPUTED, PATHS

    rows = answer(capsys, "show", made / "small.json")["rows"]
    assert {name for row in rows for name in row} == {*PATHS, *COMPUTED}


ODD = {
    "no number for a teacher": lambda rows: [
        row["teachers"].update({"0/0": []}) for row in rows if "teachers" in row
    ],
    "a component too many": lambda rows: rows[0].update(component=3),
    "no component": lambda rows: rows[0].update(component=2**63),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("verb", ["show", "verify", "compare"])
def test_a_table_whose_rows_do_not_fit_each_other_is_one_line(
    made, tmp_path, capsys, name, verb
):
    table = json.loads((made / "results" / "small" / "table" / "rows.json").read_text())
    for stored in table["places"]:
        ODD[name](stored["rows"])
    path = tmp_path / "odd.json"
    path.write_text(text_of_table(table))
    err = refusal(capsys, verb, path, *([path] if verb == "compare" else []))
    assert err.endswith(
        "odd.json: not a table of smimbench: 'teachers' must list one number per component of the signal\n"
    )


@pytest.mark.slow
def test_a_table_is_shown_and_marked(made, capsys):
    table = made / "results" / "small" / "table" / "rows.json"
    code, out, err = call(capsys, "show", table, "--json")
    assert json.loads(out) == answer(capsys, "show", made / "small.json")
    assert (
        code,
        "format 2: only metric values of single runs can be verified" in err,
    ) == (0, True)
    out = output(capsys, "verify", table, "--cells", 2)
    assert "2 cells run again: all agree; format 2" in flat(out)


def test_numbers_that_overflow_are_none(made, tmp_path, capsys):
    shutil.copytree(made / "results", tmp_path / "results")
    for i, path in enumerate(records_in(tmp_path / "results" / "small")):
        record = json.loads(path.read_text())
        record["metrics"] = {name: [(1 + i) * 1e200] for name in record["metrics"]}
        path.write_text(indented_json(with_digest(record)))
    words = (made / "small.toml", "--results", tmp_path / "results")
    out = output(capsys, "show", *words, "--json", "--pack", tmp_path / "large.json")
    assert {row["sem"] for row in json.loads(out)["rows"]} == {None}
    assert call(capsys, "show", tmp_path / "large.json", "--json")[1] == out
    assert call(capsys, "run", *words, "--no-figure")[0] in (
        0,
        1,
    )  # its table holds them, too
    assert call(capsys, "show", tmp_path / "results" / "small" / "table" / "rows.json")[
        0
    ] in (0, 1)


@pytest.mark.slow
def test_results_that_changed_are_seen(made, tmp_path, capsys):
    other = (
        "--results",
        tmp_path / "other",
        "--set",
        "algorithms.adam.steps=6",
        "--workers",
        "1",
        "--no-figure",
    )
    call(capsys, "run", made / "small.toml", *other)
    code, out, _ = call(
        capsys, "compare", made / "small.json", tmp_path / "other", "--json"
    )
    assert code == 0
    verdicts = {
        row["algorithm"].partition(" ")[0]: row["verdict"]
        for row in json.loads(out)["rows"]
    }
    assert verdicts["gamp"] == "unchanged"
    assert verdicts["adam"] in (
        "only before",
        "only after",
    )  # another number of steps is another algorithm
