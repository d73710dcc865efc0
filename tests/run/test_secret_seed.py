"""A seed that the system draws: unknown to workers and records until all is run, then enough to run everything again."""

import json
import stat

import numpy as np
import pytest

from smimbench.problem.problem import SECRET, seed_sequence
from smimbench.run.campaign import Shard, hide_seed, plan_campaign, publish_seed, run_cells
from smimbench.run.store import Store
from smimbench.run.verification import rerun
from smimbench.suite import SuiteError
from smimbench.suite.reader import load_suite
from tests.helpers import LINE, call, suite_text, write_suite
from tests.run.test_hidden_teacher import PLUGIN, SEED

TEXT = suite_text(LINE, [0.5], 40, 2, 'name = "gamp"', 'name = "adam"\nsteps = 400')


def texts_in(folder) -> str:
    return "".join(path.read_text() for path in folder.rglob("*.json"))


def test_a_run_that_was_stopped_goes_on_and_is_published_when_all_is_there(tmp_path):
    asked, home = load_suite(write_suite(tmp_path, TEXT)), Store(tmp_path / "results" / "small")
    suite, store = hide_seed(asked, home)
    assert SECRET <= suite.secret < 2 * SECRET
    assert stat.S_IMODE((store.folder / "seed").stat().st_mode) == 0o600
    run_cells(suite.cells()[:3], store)
    assert publish_seed(asked, suite, home, ["numpy"], timing=False) is None
    found = rerun(asked.with_seed(suite.seed).cells(), store, count=2, seed=0)  # the stand-in would give other numbers
    assert (found.checked, found.wrong) == (2, [])
    again, _ = hide_seed(asked, home)  # as after a kill
    assert (again.seed, again.secret) == (suite.seed, suite.secret)
    campaign = plan_campaign(again, store)
    assert len(campaign.missing) == 1
    with pytest.raises(SuiteError, match="is needed to go on: smimbench run small --secret-seed"):
        plan_campaign(asked.with_seed(suite.seed), store)
    campaign.run()
    assert str(suite.secret) not in texts_in(tmp_path)
    hidden = {record["algorithm"] + str(record["cell"]["replicate"]): record for record in store.load().values()}
    published = publish_seed(asked, again, home, ["numpy"], timing=False)
    assert not store.folder.exists()
    assert published.seed == suite.secret
    records = home.load()
    assert not home.complaints
    assert set(records) == {cell.key for cell in published.cells()}
    for record in records.values():
        before = hidden[record["algorithm"] + str(record["cell"]["replicate"])]
        assert record["metrics"] == before["metrics"]
        assert len(home.trajectory(record)["iteration"]) > 5
    # Anyone can run it again, and no other run of the system has the same seed.
    again = {record["key"]: record for record in run_cells(published.cells(), Store(tmp_path / "rerun"))}
    assert {key: one["metrics"] for key, one in again.items()} == {key: one["metrics"] for key, one in records.items()}
    assert hide_seed(asked, home)[0].secret != suite.secret


def test_parts_of_a_run_share_the_seed_and_the_last_one_publishes_it(tmp_path):
    asked, home = load_suite(write_suite(tmp_path, TEXT)), Store(tmp_path / "results" / "small")
    seeds, published = set(), []
    for number in (1, 2):
        suite, store = hide_seed(asked, home)
        seeds.add(suite.secret)
        campaign = plan_campaign(suite, store, shard=Shard(number, 2))
        assert 0 < len(campaign.missing) < len(suite.cells())
        campaign.run()
        published.append(publish_seed(asked, suite, home, ["numpy"], timing=False))
    assert published[0] is None
    assert seeds == {published[1].seed}
    assert set(home.load()) == {cell.key for cell in published[1].cells()}


@pytest.mark.slow
def test_a_guess_finds_nothing_and_the_published_seed_everything(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "peeks.py").write_text(PLUGIN)
    names = ("one-liner", "public-seed", "random-stream", "searched", "honest")
    write_suite(tmp_path, suite_text(LINE, [0.5], 40, 1, *(f'name = "{name}"' for name in names)))
    run = ("run", "small.toml", "--plugins", "peeks.py", "--no-figure", "--json")
    code, out, err = call(capsys, *run, "--secret-seed")
    assert code == 1  # two have failed
    rows = {row["algorithm"]: row for row in json.loads(out)["rows"] if row["metric"] == "mse"}
    assert rows["one-liner"]["status_counts"] == {"failed": 1}
    assert "0 teachers, 0 seeds" in rows["searched"]["reasons"][0]
    assert min(rows[name]["mean"] for name in ("public-seed", "random-stream")) > 0.8
    (shared,) = (tmp_path / "results" / "small" / "settings").glob("*/run.json")
    seed = json.loads(shared.read_text())["secret_seed"]
    assert f"--set grid.seed={seed}" in err
    _, out, _ = call(capsys, *run, "--results", "again", "--set", f"grid.seed={seed}")
    again = {row["algorithm"]: row for row in json.loads(out)["rows"] if row["metric"] == "mse"}
    assert again["honest"]["values"] == rows["honest"]["values"]
    # Now that it is known, it is a public seed like any other.
    (tmp_path / "peeks.py").write_text(PLUGIN.replace(str(SEED), str(seed)))
    _, out, _ = call(capsys, *run, "--results", "known", "--set", f"grid.seed={seed}")
    known = {row["algorithm"]: row for row in json.loads(out)["rows"] if row["metric"] == "mse"}
    assert known["public-seed"]["mean"] < 1e-12


def test_a_seed_is_drawn_or_given(tmp_path, capsys):
    path = write_suite(tmp_path, TEXT)
    code, _, err = call(capsys, "run", path, "--secret-seed", "--set", "grid.seed=3", "--results", tmp_path / "results")
    assert code == 2
    assert "--secret-seed draws the seed; leave out --set grid.seed" in err


def test_streams_of_a_secret_seed_have_no_root_in_common():
    streams = [seed_sequence(SECRET + 5, "p", 0.5, 20, 0, name) for name in ("teacher", "data", "initialisation")]
    assert len({stream.entropy for stream in streams}) == 3
    assert SECRET + 5 not in {stream.entropy for stream in streams}
    assert seed_sequence(7, "p", 0.5, 20, 0, "teacher").entropy == 7
    draws = np.array([np.random.default_rng(stream).standard_normal(4000) for stream in streams])
    assert np.abs(np.corrcoef(draws) - np.eye(3)).max() < 4 / np.sqrt(4000)
