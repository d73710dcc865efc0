"""What a command does once however many records there are."""

from smimbench.run import record as record_module
from smimbench.run.store import Store
from smimbench.suite import cells as cells_module
from tests.helpers import call, output
from tests.report.many_records import write


def test_show_reads_the_records_once_and_lists_the_cells_once(
    tmp_path, capsys, monkeypatch
):
    suite, loads, listed = write(tmp_path, 8, seeds=2), [], []
    output(capsys, "theory", suite, "--results", tmp_path / "results")
    load, cells = Store.load, cells_module.Suite.cells
    monkeypatch.setattr(
        Store,
        "load",
        lambda self, **how: loads.append(self.folder) or load(self, **how),
    )
    monkeypatch.setattr(
        cells_module.Suite,
        "cells",
        lambda self, *a, **k: listed.append(1) or cells(self, *a, **k),
    )
    code, out, err = call(
        capsys, "show", suite, "--results", tmp_path / "results", "--csv"
    )
    assert (code, err, out.count("\nline,")) == (0, "", 8)
    assert (loads.count(tmp_path / "results" / "many"), len(listed)) == (1, 1)


def test_a_dry_run_checks_the_structure_of_records_and_no_digest(
    tmp_path, capsys, monkeypatch
):
    suite = write(tmp_path, 8, seeds=2)
    torn, *_ = sorted((tmp_path / "results" / "many").glob("[0-9a-f]*.json"))
    torn.write_text(torn.read_text()[:-100])
    asked = []
    monkeypatch.setattr(
        record_module, "digest_of", lambda found: asked.append(found) or ""
    )
    code, out, err = call(
        capsys, "run", suite, "--results", tmp_path / "results", "--dry-run"
    )
    assert (code, asked) == (0, [])
    assert "8 cells, 1 of them to run" in out
    assert "the file is incomplete or not JSON" in err
