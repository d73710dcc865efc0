"""Results as evidence: a digit that was changed is named, wrong cells and wrong theory are found, the schema is published."""

import importlib
import json
import random
import re
import shutil
import sys

import pytest

from smimbench.run.cell import run_cell
from smimbench.run.record import indented_json, one_line_json, with_digest
from smimbench.run.store import Store
from smimbench.run.verification import rerun_without_time_limit
from tests.helpers import (
    LINE,
    ROOT,
    SUITE,
    call,
    ends_with,
    flat,
    loaded,
    output,
    refusal,
    suite_text,
    write_suite,
)
from tests.records import records_in


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A suite that was run once, theory included."""
    folder = tmp_path_factory.mktemp("ran")
    assert (
        ends_with(
            "run",
            write_suite(folder, SUITE),
            "--results",
            folder / "results",
            "--no-figure",
        )
        == 0
    )
    return folder / "results"


@pytest.fixture
def results(ran, tmp_path):
    shutil.copytree(ran, tmp_path / "results")
    return tmp_path / "results"


@pytest.fixture(scope="module")
def flips():
    """The job that changes digits, see tools/checks."""
    from smimbench.run import theory_solver

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "tools" / "checks"))
        patch.setattr(theory_solver, "SLOW", theory_solver.SLOW)  # the job changes it
        yield importlib.import_module("flips")


@pytest.fixture(scope="module")
def prepared(flips, tmp_path_factory):
    """Results with every kind of file; every test puts back what it changes."""
    return flips.prepare(tmp_path_factory.mktemp("flips"))


def test_sound_results_agree_to_the_last_bit(results, capsys):
    before = {path: path.read_bytes() for path in results.rglob("*") if path.is_file()}
    out = output(capsys, "verify", results / "small", "--cells", "3", "--json")
    found = json.loads(out)
    assert found["wrong"] == []
    assert found["missing"] == []
    assert found["remarks"] == {}
    assert found["checked"] == {
        "files": 9,
        "tables": 1,
        "files of theory": 8,
        "answers of theory solved again": 8,
        "nodes of theory evaluated again": 0,
        "cells run again": 3,
    }
    assert before == {
        path: path.read_bytes() for path in results.rglob("*") if path.is_file()
    }


@pytest.mark.slow
def test_a_digit_changed_in_any_kind_of_file_is_named(prepared, flips):
    done, missed = flips.flips(prepared, 10, random.Random(20261122))
    assert missed == []
    kinds = {
        "record",
        "trajectory",
        "run",
        "rows",
        "pack",
        "point",
        "curve",
        "floor",
        "own",
        "thresholds",
        "node",
    }
    assert set(done) == kinds


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["point", "curve", "floor", "own", "thresholds", "node", "record", "pack"]
)
def test_a_changed_number_under_a_digest_that_fits_is_computed_again(
    prepared, flips, kind
):
    dice, everything = random.Random(3), prepared.parent.rglob("*.*")
    files = sorted(
        path
        for path in everything
        if path.is_file() and flips.kind_of(path, prepared) == kind
    )
    tries = 2 if kind in ("record", "pack") else 6  # these two run all cells again
    said = [
        flips.flip(dice.choice(files), prepared, dice, seal=True) for _ in range(tries)
    ]
    assert said.count(None) > 0
    assert set(said) <= {None, "skipped"}  # skipped: the digit was below rounding


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["point", "curve"])
@pytest.mark.parametrize(("shift", "code"), [(1e-10, 0), (1e-3, 1)])
def test_theory_of_another_machine_may_differ_by_rounding_alone(
    prepared, flips, kind, shift, code
):
    path = next(prepared.parent.rglob(f"{kind}-*.json"))
    before = path.read_text()
    found = json.loads(before) | {"machine": "another"}
    (found["answer"][0] if kind == "point" else found["answer"][0][0])["mse"] += shift
    path.write_text(one_line_json(with_digest(found)))
    try:
        assert (
            flips.command(
                "verify", prepared, "--results", prepared.parent, "--cells", 0
            )[0]
            == code
        )
    finally:
        path.write_text(before)


def test_half_of_the_mse_with_a_new_digest_is_found(results, capsys):
    """At the sample ratios that tables use: those of the suite, rounded to whole samples."""
    for path in sorted((results / "theory").glob("point-*.json")):
        found = json.loads(path.read_text())
        found["answer"][0]["mse"] /= 2
        path.write_text(one_line_json(with_digest(found)))
        code, out, _ = call(
            capsys, "verify", results / "small", "--cells", "0", "--json"
        )
        assert code == 1
        assert any(
            path.name in line and "[0].mse is" in line
            for line in json.loads(out)["wrong"]
        )


def test_fewer_seeds_in_run_json_are_named(results, capsys):
    path = results / "small" / "run.json"
    path.write_text(path.read_text().replace("seeds     = 2", "seeds     = 1"))
    for words in (("show",), ("verify",), ("verify", "--cells", "0")):
        err = refusal(capsys, words[0], results / "small", *words[1:])
        assert (
            "run.json cannot be used: the file was changed after it was written" in err
        )
    document = json.loads(path.read_text())
    path.write_text(
        indented_json(with_digest(document))
    )  # as if the suite had always been this one
    code, out, _ = call(capsys, "verify", results / "small", "--cells", "0")
    assert code == 1  # the table counts the runs of both seeds
    assert "status_counts.ok is 4, stored is 8" in flat(out)
    assert "4 records belong to no cell of the suite and appear in no table" in flat(
        out
    )


def test_a_spoiled_answer_of_theory_is_kept_aside_and_named(results, capsys):
    path = sorted((results / "theory").glob("point-*.json"))[0]
    spoiled = path.read_text().replace("0.", "1.", 1)
    path.write_text(spoiled)
    code, _, err = call(capsys, "show", results / "small")
    assert code == 0
    assert (
        f"{path}: the file was changed after it was written (its digest does not match); this file is not used\n"
        in err
    )
    assert path.read_text() == spoiled
    code, _, err = call(capsys, "theory", results / "small")
    assert code == 0
    assert (
        f"{path}: the file was changed after it was written (its digest does not match); not used, computed again"
        in err
    )
    (aside,) = (results / "theory" / "set-aside").iterdir()
    assert aside.read_text() == spoiled


@pytest.mark.parametrize("kind", ["point", "own"])
def test_an_answer_of_theory_that_was_removed_is_named(results, capsys, kind):
    paths = sorted((results / "theory").glob(f"{kind}-*.json"))
    assert paths
    paths[0].unlink()
    code, out, _ = call(
        capsys, "verify", results / "small", "--cells", "0", "--json", "--no-theory"
    )
    assert code == 1
    assert (
        f"{paths[0]} is missing; 'smimbench theory' solves it"
        in json.loads(out)["missing"]
    )


def test_numbers_that_were_made_up_are_found_by_running_the_cell_again(results, capsys):
    path, *_ = records_in(results / "small")
    record = json.loads(path.read_text())
    record["metrics"]["mse"][0] *= 1 + 1e-12
    path.write_text(indented_json(with_digest(record)))
    assert len(Store(results / "small").load()) == 8  # no file can tell
    code, out, _ = call(
        capsys, "verify", results / "small", "--cells", "8", "--no-theory"
    )
    assert code == 1
    assert re.search(
        rf"{path.name}: run again, metrics.mse\[0\] is .*, stored is", flat(out)
    )


def test_no_time_limit_ends_a_cell_that_is_run_again(tmp_path):
    cell = loaded(tmp_path, SUITE, ["run.timeout=1e-9"]).cells()[0]
    assert run_cell(cell).status == "timeout"
    ((same, record),) = rerun_without_time_limit([cell], 1)
    assert (same, record.status) == (cell, "ok")


def test_the_published_schema_is_that_of_the_code_and_of_records(results, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    sys.modules.pop("records", None)
    import records

    assert records.TARGET.read_text() == records.text(), "run: python tools/records.py"
    jsonschema = pytest.importorskip("jsonschema")
    checker = jsonschema.Draft202012Validator(json.loads(records.text()))
    store = Store(results / "small")
    for stem in store.load():
        document = store.read(stem).document
        checker.validate(document)
    with pytest.raises(jsonschema.ValidationError):
        checker.validate({**document, "metrics": {"mse": ["small"]}})


@pytest.mark.slow
def test_an_online_run_at_two_sample_ratios_is_two_rows(tmp_path, capsys):
    """Its own samples are as many at both: the rows stand at the same ratio, and are of different instances."""
    online = 'name = "sgd"\nlearning_rate = 0.05\nsteps = 30\nbatch = 4\nonline = true'
    suite = write_suite(tmp_path, suite_text(LINE, [1.0, 2.0], 20, 2, online))
    at = (suite, "--results", tmp_path / "results")
    output(capsys, "run", *at, "--workers", 1, "--no-figure")
    output(capsys, "verify", *at, "--cells", 4)
