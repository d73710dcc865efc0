"""Results as evidence: a digit that was changed is named, wrong cells and wrong theory are found, the schema is published."""

from __future__ import annotations

import json
import random
import re
import shutil
import sys

import pytest

from smimbench.run.record import digest_of, text_of
from smimbench.run.store import Store
from tests.helpers import ROOT, SUITE, call, write_suite


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A suite that was run once, theory included."""
    from tests.helpers import call_outside

    folder = tmp_path_factory.mktemp("ran")
    done = call_outside("run", write_suite(folder, SUITE), "--results", folder / "results", "--no-figure")
    assert done.returncode == 0, done.stderr
    return folder / "results"


@pytest.fixture
def results(ran, tmp_path):
    shutil.copytree(ran, tmp_path / "results")
    return tmp_path / "results"


def test_sound_results_agree_to_the_last_bit(results, capsys):
    code, out, err = call(capsys, "verify", results / "small", "--cells", "3", "--json")
    assert code == 0, out + err
    found = json.loads(out)
    assert found["wrong"] == []
    assert found["checked"] == {"files": 8, "points of theory": 2, "cells run again": 3}


def test_every_digit_of_every_record_counts(results, capsys):
    """Sixty digits, wherever they stand, each of them named by its file; and nothing else is."""
    dice = random.Random(20261122)
    paths = sorted(path for path in (results / "small").glob("*.json") if path.name != "run.json")
    for _ in range(60):
        path = dice.choice(paths)
        text = path.read_text()
        spot = dice.choice([match.start() for match in re.finditer("[0-9]", text)])
        digit = dice.choice([d for d in "0123456789" if d != text[spot]])
        path.write_text(text[:spot] + digit + text[spot + 1 :])
        code, out, _ = call(capsys, "verify", results / "small", "--cells", "0", "--no-theory", "--json")
        wrong = json.loads(out)["wrong"]
        assert code == 1
        assert len(wrong) == 1
        assert path.name in wrong[0]
        path.write_text(text)


def test_numbers_that_were_made_up_are_found_by_running_the_cell_again(results, capsys):
    path = next(p for p in sorted((results / "small").glob("*.json")) if p.name != "run.json")
    record = json.loads(path.read_text())
    record["metrics"]["mse"][0] *= 1 + 1e-12
    record["digest"] = digest_of(record)
    path.write_text(text_of(record))
    assert len(Store(results / "small").load()) == 8  # no file can tell
    code, out, _ = call(capsys, "verify", results / "small", "--cells", "8", "--no-theory")
    assert code == 1
    assert re.search(rf"{path.name}: run again, metrics.mse\[0\] is .*, the record says", " ".join(out.split()))


def test_theory_that_was_made_up_is_found(results, capsys):
    from smimbench.theory.cache import _digest

    path = sorted((results / "theory").glob("point-*.json"))[0]
    found = json.loads(path.read_text())
    found["answer"][0]["mse"] = 0.123
    found["digest"] = _digest({name: value for name, value in found.items() if name != "digest"})
    path.write_text(json.dumps(found))
    code, out, _ = call(capsys, "verify", results / "small", "--cells", "0")
    assert code == 1
    assert "mse is" in out
    assert "the file says [0.123]" in " ".join(out.split())


def test_a_record_of_another_format_is_refused_by_name(results):
    path = next(p for p in sorted((results / "small").glob("*.json")) if p.name != "run.json")
    record = json.loads(path.read_text()) | {"format": 0}
    path.write_text(text_of(record | {"digest": digest_of(record)}))
    store = Store(results / "small")
    assert len(store.load()) == 7
    assert store.complaints == [f"{path}: written in format 0, this smimbench reads 1; not used"]


def test_the_published_schema_is_that_of_the_code_and_of_records(results, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    sys.modules.pop("records", None)
    import records

    assert records.TARGET.read_text() == records.text(), "run: python docs/records.py"
    jsonschema = pytest.importorskip("jsonschema")
    checker = jsonschema.Draft202012Validator(json.loads(records.text()))
    for record in Store(results / "small").load().values():
        checker.validate(record)
    with pytest.raises(jsonschema.ValidationError):
        checker.validate({**record, "metrics": {"mse": ["small"]}})
