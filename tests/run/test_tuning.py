"""``smimbench tune``: what it tries, on which seeds, what it chooses, and what a run makes of it."""

import itertools
import json
import math
import os
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest

import smimbench
from smimbench.numerics.random_numbers import STREAMS, TUNING
from smimbench.problem.instance import seed_sequence
from smimbench.run import processes
from smimbench.run.record import indented_json, with_digest
from smimbench.run.store import Store
from smimbench.run.tuning import log_error, searches, with_tuned_settings
from smimbench.suite import SuiteError
from smimbench.suite.reader import load_suite
from smimbench.suite.schema import Range, SearchSpace
from tests.helpers import (
    LINE,
    call,
    ends_with,
    flat,
    loaded,
    output,
    refusal,
    started,
    suite_text,
    write_suite,
)
from tests.records import record, records_in

RATE = "learning_rate = { low = 0.001, high = 3.0, log = true }"
SGD = f'name = "sgd"\nsteps = 8\n[algorithms.tune]\n{RATE}\n'
TEXT = suite_text(LINE, [0.5, 1.0], 20, 3, 'name = "ridge"', SGD)
POINTS = 2


def files(folder):
    """Results of searches by name."""
    return {path.name: path.read_bytes() for path in folder.glob("choices/*.json")}


def tune(capsys, path, results, *more):
    """Tune, and the results of all searches."""
    out = output(capsys, "tune", path, "--results", results, "--json", *more)
    return json.loads(out)


def run(capsys, path, results, *more):
    """Run, the document, and what was said."""
    code, out, err = call(
        capsys, "run", path, "--results", results, "--json", "--no-figure", *more
    )
    assert code == 0, err
    return json.loads(out), err


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A suite that was tuned and then run."""
    folder = tmp_path_factory.mktemp("tuned")
    path = write_suite(folder, TEXT)
    for word, more in (("tune", ()), ("run", ("--no-figure",))):
        assert ends_with(word, path, "--results", folder / "results", *more) == 0
    return path, folder / "results"


# -- the seeds ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_no_seed_for_tuning_is_one_that_is_scored(done):
    path, results = done
    own = Store(results / "small" / "tuning").load().values()
    scored = Store(results / "small").load().values()
    assert {record.cell["seed"] for record in own} == {TUNING}
    assert {record.cell["seed"] for record in scored} == {0}
    suite = load_suite(path)

    def states(cells, stream):
        found = set()
        for cell in cells:
            place = (
                cell["seed"],
                suite.plans[0].problem.identity,
                cell["alpha"],
                cell["dimension"],
                cell["replicate"],
            )
            found.add(tuple(seed_sequence(*place, stream).generate_state(4)))
        return found

    for stream in STREAMS:
        first, second = (
            states([record.cell for record in one], stream) for one in (own, scored)
        )
        assert len(first) == POINTS * 4
        assert len(second) == POINTS * 3
        assert not first & second


@pytest.mark.parametrize("seed", [0, 1, 2**62, 2**63])
def test_the_data_of_tuning_are_independent_of_those_of_every_seed_that_a_suite_may_have(
    tmp_path, seed
):
    plan = loaded(tmp_path, TEXT, [f"grid.seed={seed}"]).plans[0]
    found = [
        plan.problem.instance(1.0, 400, 0, seed=root).signal.ravel()
        for root in (seed, TUNING)
    ]
    assert abs(found[0] @ found[1]) / 400 < 4 / math.sqrt(400)
    with pytest.raises(SuiteError, match=r"grid\.seed"):
        loaded(tmp_path, TEXT, [f"grid.seed={TUNING}"])


# -- the trials -----------------------------------------------------------------------------------------------------------


def trials(count, written, **space):
    """Settings that are tried."""
    parameters = {
        tuple(name.split(".")): Range(**values) if isinstance(values, dict) else values
        for name, values in space.items()
    }
    return SearchSpace(count, parameters).settings(written)


@pytest.mark.parametrize("count", [2, 4, 8, 16, 64])
@pytest.mark.parametrize("log", [False, True])
def test_every_part_of_a_range_has_one_trial(count, log):
    """A scrambled Sobol sequence of 2^m points has one in each of 2^m equal parts."""
    low, high = 0.02, 7.0
    as_written, *sampled = trials(
        count + 1, {"a": 0.1}, a={"low": low, "high": high, "log": log}
    )
    assert as_written == {("a",): 0.1}
    found = [setting["a",] for setting in sampled]
    values = (
        np.log(np.array(found) / low) / math.log(high / low)
        if log
        else (np.array(found) - low) / (high - low)
    )
    assert sorted(
        np.floor(values * count + 1e-3 * count * (values * count % 1 > 0.99))
    ) == list(range(count))


def test_two_ranges_are_covered_together():
    inner = {"of.b": {"low": 1e-4, "high": 1.0, "log": True}}
    _, *found = trials(
        17, {"a": 1.0, "of": {"b": 0.1}}, a={"low": 1.0, "high": 2.0}, **inner
    )
    cells = {
        (int(4 * (one["a",] - 1)), int(math.log10(one["of", "b"]) + 4)) for one in found
    }
    assert cells == set(itertools.product(range(4), range(4)))


def test_integers_and_lists():
    assert sorted(
        one["a",] for one in trials(9, {"a": 3}, a={"low": 1, "high": 8})[1:]
    ) == list(range(1, 9))
    assert all(
        isinstance(one["a",], float)
        for one in trials(8, {"a": 3.0}, a={"low": 1, "high": 8})
    )
    both = {"a": [0.1, 0.2], "b": ["x", "y", "z"]}
    assert len({str(one) for one in trials(6, {}, **both)[1:]}) == 6
    assert len(trials(4, {}, **both)) == 4


@pytest.mark.parametrize(
    ("table", "space", "count"),
    [
        (
            "learning_rate = 0.05",
            "learning_rate = { low = 0.001, high = 0.1, log = true }",
            4,
        ),
        (
            "",
            "learning_rate = { low = 10.0, high = 20.0 }",
            4,
        ),  # the default, outside of the range
        ("learning_rate = 0.2", "learning_rate = [0.1, 0.2, 0.3]", 3),
        ("", "learning_rate = [1, 2]", 3),
        ("", "loss = ['squared', 'cross-entropy']", 3),  # as written it is left open
    ],
)
def test_the_setting_as_written_is_one_of_the_trials_once(
    tmp_path, table, space, count
):
    text = f'name = "sgd"\nsteps = 8\n{table}\n[algorithms.tune]\ntrials = 4\n{space}\n'
    suite = loaded(tmp_path, suite_text(LINE, [0.5], 20, 1, text))
    (search,) = searches(suite)
    specs = [spec for _, spec in search.trials]
    assert specs[0] == suite.cells()[0].algorithm
    assert (len(specs), specs.count(specs[0])) == (count, 1)


# -- the search -----------------------------------------------------------------------------------------------------------


def search_of(tmp_path, trials):
    """A search that was not run."""
    suite = loaded(tmp_path, TEXT, [f"algorithms.sgd.tune.trials={trials}"])
    return searches(suite)[0]


def finish(search, error):
    """Result of a search whose runs end with the errors ``error(trial, seed)``, and the number of runs."""
    names = [spec["learning_rate"] for _, spec in search.trials]
    log_errors: dict[str, float] = {}
    while True:
        missing, found = search.next_cells_or_outcome(log_errors, "numpy")
        if found is not None:
            return found, len(log_errors)
        for cell in missing:
            value = error(names.index(cell.algorithm["learning_rate"]), cell.replicate)
            run = record(
                status="ok" if math.isfinite(value) else "diverged",
                metrics={"mse": [value]},
            )
            log_errors[cell.key] = log_error(run, search.suite.run.target)


RUNS = {
    2: 2 * 4,
    3: 3 * 2 + 2 * 2,
    4: 4 * 2 + 2 * 2,
    5: 5 + 3 + 2 * 2,
    8: 8 + 4 + 2 * 2,
    16: 16 + 8 + 4 * 2 + 2 * 4,
}


@pytest.mark.parametrize("trials", RUNS)
def test_half_of_the_trials_go_on_with_twice_the_seeds(tmp_path, trials):
    search, errors = (
        search_of(tmp_path, trials),
        1 + np.random.default_rng(trials).permutation(trials),
    )
    found, ran = finish(search, lambda trial, seed: float(errors[trial]) + 0.01 * seed)
    seeds = [one["seeds"] for one in found["rounds"]]
    as_written = sum(
        after - before
        for k, (before, after) in enumerate(itertools.pairwise(seeds), 1)
        if errors[0]
        > math.ceil(trials / 2**k)  # not of the better half, and goes on all the same
    )
    assert ran == found["runs"] == POINTS * (RUNS[trials] + as_written)
    assert errors[found["chosen"]] == 1
    assert seeds == [seeds[0] * 2**k for k in range(len(seeds))]
    assert seeds[-1] >= 4


def test_the_choice_among_noisy_trials_is_near_the_best(tmp_path):
    """A trial is chosen by four seeds at the end: a trial that is better by many times their scatter is found."""
    search, rng = search_of(tmp_path, 8), np.random.default_rng(0)
    chosen = []
    for _ in range(40):
        best = int(rng.integers(8))
        noise = np.exp(0.1 * rng.standard_normal((8, 4)))
        found, _ = finish(
            search,
            lambda trial, seed, best=best, noise=noise: (
                (0.5 if trial == best else 1.0) * noise[trial, seed]
            ),
        )
        chosen.append(found["chosen"] == best)
    assert all(chosen)


def test_a_trial_that_fails_once_is_out(tmp_path):
    search = search_of(tmp_path, 8)
    found, _ = finish(
        search,
        lambda trial, seed: math.inf if trial in (0, 1) and seed == 1 else 1.0 + trial,
    )
    assert found["chosen"] == 2
    assert found["rounds"][1]["errors"][:2] == [None, None]
    found, ran = finish(search, lambda trial, seed: 1.0 if trial == 5 else math.inf)
    assert (found["chosen"], ran) == (5, 8 * POINTS)
    found, _ = finish(search, lambda trial, seed: math.inf)
    assert found["chosen"] is found["algorithm"] is None


@pytest.mark.parametrize("trials", RUNS)
def test_what_is_chosen_is_no_worse_than_the_setting_as_written_on_all_seeds(
    tmp_path, trials
):
    """An unlucky first seed does not take the setting as written out of the search."""
    search, rng = search_of(tmp_path, trials), np.random.default_rng(trials)
    for _ in range(40):
        errors = np.exp(rng.standard_normal((trials, 8)))
        found, _ = finish(
            search, lambda trial, seed, errors=errors: float(errors[trial, seed])
        )
        seeds = found["rounds"][-1]["seeds"]
        chosen, as_written = np.log(errors[[found["chosen"], 0], :seeds]).mean(axis=1)
        assert chosen <= as_written + 1e-9


# -- from the command line ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_tuning_again_runs_nothing(done, capsys):
    path, results = done
    before = files(results / "small" / "tuning")
    records = {
        one: one.stat().st_mtime_ns
        for one in (results / "small" / "tuning").glob("*.json")
    }
    tune(capsys, path, results)
    assert files(results / "small" / "tuning") == before
    assert {one: one.stat().st_mtime_ns for one in records} == records


@pytest.mark.slow
def test_a_dry_run_counts_what_the_search_then_runs(done, tmp_path, capsys):
    path, _ = done
    asked = ("tune", path, "--results", tmp_path / "results")

    def counted():
        out = output(capsys, *asked, "--dry-run", "--json")
        return json.loads(out)

    before = counted()
    assert not (tmp_path / "results").exists()
    _, out, _ = call(capsys, *asked, "--dry-run")
    (search,) = before["searches"]
    assert (
        f"{search['label']}: {search['trials']} trials, at most {search['cells']} cells"
        in out
    )
    assert "about" in out
    (found,) = tune(capsys, path, tmp_path / "results")
    assert search["trials"] == len(found["trials"])
    assert before["missing"] == search["cells"] == 19 * POINTS
    assert 16 * POINTS <= found["runs"] <= search["cells"]
    assert counted()["missing"] == 0
    # Of a search that was interrupted, the rest: here one run of its last round.
    tuning = Store(tmp_path / "results" / "small" / "tuning")
    records = tuning.load()
    last = max(records, key=lambda stem: records[stem].cell["replicate"])
    (tuning.folder / f"{last}.json").unlink()
    for choice in tuning.folder.glob("choices/*.json"):
        choice.unlink()
    assert counted()["missing"] == 1


@pytest.mark.slow
def test_a_search_goes_on_after_a_kill_to_the_same_choice(
    done, tmp_path, capsys, monkeypatch
):
    path, results = done
    own = tmp_path / "results" / "small" / "tuning"
    words = ("tune", path, "--results", tmp_path / "results", "--workers", 1, "--quiet")
    process = started(*words, out=subprocess.DEVNULL, err=subprocess.DEVNULL)
    while len(list(own.glob("*.json"))) < 5 and process.poll() is None:
        time.sleep(0.001)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    kept = {one: one.read_bytes() for one in records_in(own)}
    assert 0 < len(kept) < 16 * POINTS
    monkeypatch.setattr(
        processes, "STALE", 1.0
    )  # nobody touches the claim of the killed process any more
    tune(capsys, path, tmp_path / "results", "--workers", 2)
    assert files(own) == files(results / "small" / "tuning")
    assert {one: one.read_bytes() for one in kept} == kept


def test_a_run_says_that_tuning_was_not_done_and_uses_what_is_written(tmp_path, capsys):
    document, err = run(capsys, write_suite(tmp_path, TEXT), tmp_path / "results")
    assert (
        "smimbench: sgd ran with the suite's settings; tune them with 'smimbench tune "
        in err
    )
    assert {row["settings"] for row in document["rows"]} == {"default"}
    out = output(
        capsys, "show", tmp_path / "small.toml", "--results", tmp_path / "results"
    )
    assert " default " in out


@pytest.mark.parametrize(
    ("space", "said"),
    [
        (
            "learning_rate = { low = 1e-6, high = 1e-4, log = true }",
            "sgd: the largest learning_rate that was tried, 0.05",
        ),
        (
            "learning_rate = [1e-4, 1e-5, 1e-6]",
            "sgd: the largest learning_rate that was tried, 0.05",
        ),
        ("learning_rate = [0.05, 5.0, 1e-6]", ""),
        ("schedule = ['constant', 'cosine']", ""),
    ],
)
def test_a_choice_at_the_end_of_its_range_is_said_wherever_it_is_used(
    tmp_path, capsys, space, said
):
    table = f'name = "sgd"\nlearning_rate = 0.05\nsteps = 20\n[algorithms.tune]\ntrials = 4\n{space}\n'
    path, results = (
        write_suite(tmp_path, suite_text(LINE, [1.0], 20, 2, table)),
        tmp_path / "results",
    )
    tune(capsys, path, results)
    shown = [
        run(capsys, path, results)[1],
        *(
            " ".join("".join(call(capsys, *words)[1:]).split())
            for words in (
                ("show", path, "--results", results),
                ("show", results / "small"),
                ("tune", path, "--results", results),
            )
        ),
    ]
    expected = f"{said}, was chosen: widen its range" if said else ""
    for text in shown:
        assert ("widen its range" in text) is bool(said)
        assert expected.removeprefix("sgd: ") in text


def test_a_run_uses_the_choice_and_its_key_holds_the_search(done, capsys):
    path, results = done
    (found,) = tune(capsys, path, results)
    document, err = run(capsys, path, results)
    assert "tuned" not in err
    settings = {row["algorithm"]: row["settings"] for row in document["rows"]}
    assert settings == {"ridge": "default", "sgd": "tuned, 8 trials"}
    cells = [
        record.cell
        for record in Store(results / "small").load().values()
        if record.algorithm == "sgd"
    ]
    assert len(cells) == POINTS * 3
    for cell in cells:
        assert cell["algorithm"] == found["algorithm"]
        assert cell["tuning"]["search"] == found["digest"]
        assert (cell["tuning"]["trials"], cell["tuning"]["runs"]) == (8, found["runs"])
        assert (
            cell["tuning"]["of"]["learning_rate"] != cell["algorithm"]["learning_rate"]
        )
    out = output(capsys, "show", path, "--results", results)
    assert "tuned, 8 trials" in flat(out)


def test_results_with_choices_are_shown_packed_and_verified(done, tmp_path, capsys):
    path, results = done
    whole, _ = run(capsys, path, results)
    for name in (results / "small", tmp_path / "packed.json"):
        if not name.exists():
            output(capsys, "show", path, "--results", results, "--pack", name)
        out = output(capsys, "show", name, "--json")
        assert json.loads(out)["rows"] == whole["rows"]
        out = output(capsys, "verify", name, "--cells", 4)
        assert "4 cells run again: all agree" in out


def test_a_choice_that_its_trials_do_not_give_is_found(done, tmp_path, capsys):
    path, results = done
    out = output(capsys, "verify", path, "--results", results)
    assert "1 choices: all agree" in out
    shutil.copytree(results, tmp_path / "results")
    (choice,) = (tmp_path / "results" / "small" / "tuning" / "choices").glob("*.json")
    document = json.loads(choice.read_bytes())
    assert f"{document['runs'] + 1} trials: all agree" in out
    document["rounds"][0]["errors"][0] *= 1.01
    choice.write_text(
        indented_json(
            with_digest(
                {key: value for key, value in document.items() if key != "digest"}
            )
        ),
        encoding="utf-8",
    )
    code, out, _ = call(capsys, "verify", path, "--results", tmp_path / "results")
    assert code == 1
    assert f"{choice}: the records of its trials lead to another choice" in out.replace(
        "\n", ""
    )


def test_tuning_from_python(done, tmp_path):
    path, results = done
    (found,) = smimbench.tune(path, results=tmp_path / "results")
    assert files(tmp_path / "results" / "small" / "tuning") == files(
        results / "small" / "tuning"
    )
    rows = smimbench.run(path, results=tmp_path / "results")
    assert {row["settings"] for row in rows} == {"default", "tuned, 8 trials"}
    assert smimbench.show(path, results=tmp_path / "results") == rows
    assert (found["problem"], found["chosen"] is not None) == ("line", True)


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ("grid.seed=5", True),  # new scores do not need another choice
        ("grid.seeds=2", True),
        ("problem.label=other", True),
        ("run.metrics=['mse']", True),
        ("grid.dimension=24", False),
        ("grid.alpha=[0.5]", False),
        ("problem.channel.noise=0.3", False),
        ("algorithms.sgd.steps=9", False),
        ("algorithms.sgd.tune.trials=4", False),
        ("run.dtype=float32", False),
    ],
)
def test_a_choice_holds_for_the_problem_that_it_was_made_on(done, change, same):
    path, results = done
    suite = with_tuned_settings(load_suite(path, [change]), Store(results / "small"))
    assert bool(suite.choices) is same
    assert any(cell.tuning for cell in suite.cells()) is same


def test_only_picks_what_is_tuned(tmp_path, capsys):
    path = write_suite(
        tmp_path,
        TEXT
        + f'\n[[algorithms]]\nname = "adam"\nsteps = 4\n[algorithms.tune]\ntrials = 2\n{RATE}\n',
    )
    (found,) = tune(
        capsys,
        path,
        tmp_path / "results",
        "--only",
        "algorithm=adam",
        "--only",
        "alpha=0.5",
    )
    assert (found["algorithm"]["name"], found["runs"]) == ("adam", 8 * POINTS)
    _, _, err = call(
        capsys,
        "tune",
        path,
        "--results",
        tmp_path / "results",
        "--only",
        "algorithm=adam",
        "--only",
        "alpha=0.5",
    )
    assert "tune uses all runs of a problem, so --only alpha has no effect" in err
    err = refusal(
        capsys,
        "tune",
        path,
        "--results",
        tmp_path / "results",
        "--only",
        "algorithm=ridge",
    )
    assert (
        "algorithms: no algorithm names parameters to tune; add a table [algorithms.tune]"
        in err
    )


def test_a_choice_that_was_changed_is_not_used(done, tmp_path, capsys):
    path, results = done
    (name, text), *_ = files(results / "small" / "tuning").items()
    changed = tmp_path / "results" / "small" / "tuning" / "choices" / name
    changed.parent.mkdir(parents=True)
    changed.write_bytes(text.replace(b'"chosen": ', b'"chosen": 1'))
    for word in ("tune", "run", "show"):
        err = refusal(capsys, word, path, "--results", tmp_path / "results")
        assert (
            err
            == f"smimbench: {changed}: the file was changed after it was written (its digest does not match); "
            "remove the file and tune again\n"
        )


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"digest": 1}', b'{"rounds": 1}', None]
)
def test_a_choice_from_anybody_is_no_reason_to_break(done, tmp_path, capsys, body):
    path, results = done
    shutil.copytree(
        results / "small" / "tuning", tmp_path / "results" / "small" / "tuning"
    )
    (choice,) = (tmp_path / "results" / "small" / "tuning" / "choices").glob("*.json")
    choice.write_bytes(
        indented_json(with_digest({"algorithm": {"name": "sgd"}})).encode()
        if body is None
        else body
    )
    for word in ("tune", "run", "show"):
        err = refusal(capsys, word, path, "--results", tmp_path / "results")
        assert err.startswith(f"smimbench: {choice}: ")


BAD = {
    "": ("", "must name a parameter to tune"),
    "learning_rate = { low = 1.0, high = 0.1 }": (".learning_rate", "low must be less than high"),
    "learning_rate = { low = 0.0, high = 0.1, log = true }": (".learning_rate", "low must be > 0 where log is true"),
    "learning_rate = { low = -1.0, high = 0.1 }": (".learning_rate", "-1.0"),
    "learning_rate = { low = 0.1 }": (".learning_rate.high", "is missing"),
    "learning_rate = { low = 0.1, high = 1.0, base = 2 }": (".learning_rate.base", ""),
    "learning_rate = 0.1": (".learning_rate", "must be a list of values, or a range such as { low = 0.01"),
    "learning_rate = []": (".learning_rate", "must list at least one value"),
    "learning_rate = [0.1, 0.1]": (".learning_rate", "listed twice"),
    "rate = [0.1, 0.2]": (".rate", "unknown key, choose from"),
    "schedule = ['cosine', 'none']": (".schedule", "cosine"),
    "steps = [10, 20]": (".steps", "belong to the problem and are not tuned; remove it"),
    "steps = { low = 10, high = 20 }": (".steps", "belong to the problem and are not tuned; remove it"),
    "batch = [4, 8]": (".batch", "belong to the problem and are not tuned; remove it"),
    f"trials = 1\n{RATE}": (".trials", "at least 2"),
    f"trials = 2.5\n{RATE}": (".trials", "must be an integer"),
}  # fmt: skip


@pytest.mark.parametrize("lines", BAD)
def test_a_mistake_in_what_to_tune_is_one_line(tmp_path, lines):
    key, words = BAD[lines]
    text = suite_text(
        LINE, [0.5], 20, 1, f'name = "sgd"\nsteps = 8\n[algorithms.tune]\n{lines}\n'
    )
    with pytest.raises(SuiteError) as error:
        loaded(tmp_path, text)
    assert f"algorithms[0].tune{key}: " in str(error.value)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_list_of_the_algorithm_itself_is_not_tuned(tmp_path):
    table = f'name = "sgd"\nsteps = [4, 8]\nlearning_rate = [0.1, 0.2]\n[algorithms.tune]\nmomentum = [0.0, 0.5]\n{RATE}\n'
    found = searches(loaded(tmp_path, suite_text(LINE, [0.5], 20, 1, table)))
    assert [search.labels[1] for search in found] == [
        f"sgd, steps {k}, learning_rate {r}" for k in (4, 8) for r in (0.1, 0.2)
    ]
    assert {
        path for search in found for setting, _ in search.trials for path in setting
    } == {("momentum",)}
    path = write_suite(
        tmp_path,
        suite_text(LINE, [0.5], 20, 1, table.replace("momentum = [0.0, 0.5]", "")),
    )
    assert not searches(load_suite(path))


def test_parameters_within_another_algorithm_are_tuned(tmp_path):
    inner = 'of = { name = "sgd", steps = 4, learning_rate = 0.1 }'
    table = f'name = "averaged"\nstudents = 2\n{inner}\n[algorithms.tune]\ntrials = 4\nof.{RATE}\n'
    (search,) = searches(loaded(tmp_path, suite_text(LINE, [0.5], 20, 1, table)))
    assert len({spec["of"]["learning_rate"] for _, spec in search.trials}) == 4
    assert {spec["of"]["steps"] for _, spec in search.trials} == {4}


ORIGINS = {
    'name = "sgd"': "default",
    'name = "sgd"\nsteps = 8': "default",
    'name = "sgd"\nsteps = 8\nbatch = 4\nlabel = "x"': "default",
    'name = "sgd"\nlearning_rate = 0.3': "by hand",
    'name = "sgd"\nlearning_rate = 0.3\nsteps = 8\npublished = "arXiv:2506.01582"': "as published",
    'name = "averaged"\nof = "sgd"': "by hand",
    'name = "gamp"': "default",
}


@pytest.mark.parametrize("table", ORIGINS)
def test_tables_say_where_parameters_are_from(tmp_path, table):
    suite = loaded(tmp_path, suite_text(LINE, [0.5], 20, 1, table))
    assert [cell.origin for cell in suite.cells()] == [ORIGINS[table]]


def test_a_search_never_ends_with_less_than_the_setting_as_written(tmp_path):
    """Where all sampled trials are worse, nothing changes: seen from the search, tuning cannot make it worse."""
    search = search_of(tmp_path, 8)
    found, _ = finish(search, lambda trial, seed: 1.0 if trial == 0 else 1.03)
    assert found["algorithm"] == search.suite.cells()[1].algorithm
