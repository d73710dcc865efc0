"""Forged results: every field of a record that follows from suite, seed and code, with digests remade, and files removed."""

import json
import random
import shutil

import pytest

from smimbench.run.record import indented_json, with_digest
from tests.helpers import LINE, call, ends_with, suite_text, write_suite
from tests.records import records_in

TUNED = 'name = "sgd"\nsteps = 12\n[algorithms.tune]\ntrials = 2\nlearning_rate = { low = 0.001, high = 0.1, log = true }\n'
ALGORITHMS = (
    'name = "gamp"',
    'name = "ridge"',
    'name = "adam"\nsteps = 2400',  # a trajectory in a file of its own
    'name = "adam"\nsteps = 20\nlearning_rate = 1e200\nlabel = "diverges"',
    'name = "spectral"',
    TUNED,
)
TEXT = suite_text(LINE, [0.5, 1.0], 16, 2, *ALGORITHMS)


def other_status(record, dice):
    record["status"] = dice.choice(
        ["ok", "not-converged", "diverged", "timeout", "failed", "skipped"]
    )


def lost(status):
    def forge(record, dice):
        record.update(
            status=status,
            reason="out of luck",
            metrics={},
            trajectory=None,
            iterations=0,
        )

    return forge


def number_in(*path):
    """One number at the end of a path is changed by a millionth."""

    def forge(record, dice):
        holder, names = record, list(path)
        while len(names) > 1:
            holder = holder.get(names.pop(0)) or {}
        values = holder.get(names[0])
        while isinstance(values, list) and values:
            holder, names = values, [dice.randrange(len(values))]
            values = holder[names[0]]
        if isinstance(values, int | float) and not isinstance(values, bool):
            holder[names[0]] = (
                values + 1 if isinstance(values, int) else values * (1 + 1e-6) + 1e-6
            )

    return forge


def column(name):
    def forge(record, dice):
        if record.get("trajectory") and "file" not in record["trajectory"]:
            number_in("trajectory", name)(record, dice)

    return forge


def value(name, new):
    def forge(record, dice):
        record[name] = new

    return forge


def cut(record, dice):
    if record.get("trajectory") and "file" not in record["trajectory"]:
        record["trajectory"] = {
            name: values[:-1] for name, values in record["trajectory"].items()
        }


FORGERIES = [
    other_status, lost("timeout"), lost("failed"), cut, value("trajectory", None), value("reason", "it is good"),
    value("warnings", ["all is well"]), value("restart_reason", "by hand"), value("blank", {"mse": "no"}),
    value("final", {"residual": [0.0]}), value("start", {}),
    *(number_in(name) for name in ("sample_ratio", "samples", "fresh_samples", "iterations", "restarts")),
    *(number_in("metrics", name) for name in ("mse", "overlap")),
    *(number_in("start", name) for name in ("truth", "cross", "own")),
    *(column(name) for name in ("mse", "overlap", "residual", "iteration")),
    number_in("final", "residual"), number_in("timing", "cost", "flops"),
]  # fmt: skip


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A tuned suite that was run once."""
    folder = tmp_path_factory.mktemp("ran")
    words = (write_suite(folder, TEXT), "--results", folder / "results")
    assert ends_with("tune", *words) == 0
    assert ends_with("run", *words, "--no-figure") == 1  # some diverge
    return folder / "results"


@pytest.fixture
def results(ran, tmp_path):
    shutil.copytree(ran, tmp_path / "results")
    return tmp_path / "results" / "small"


def verified(capsys, place, *words):
    code, out, err = call(capsys, "verify", place, "--json", "--no-theory", *words)
    document = json.loads(out)
    assert code == bool(document["wrong"] or document["missing"]), err
    return document


@pytest.mark.slow
def test_sound_results_agree_whatever_became_of_the_cells(results, capsys):
    document = verified(capsys, results, "--cells", 99)
    assert document["wrong"] + document["missing"] == []
    assert document["checked"]["cells run again"] == 24


@pytest.mark.slow
@pytest.mark.parametrize("number", range(5))
def test_every_forged_record_is_named(results, capsys, number):
    dice = random.Random(number)
    forged = []
    for i, path in enumerate(records_in(results)):
        record = json.loads(path.read_text())
        # What one record lacks another has: the next forgery then.
        for forge in FORGERIES[(i + 24 * number) % len(FORGERIES) :] + FORGERIES:
            new = json.loads(json.dumps(record))
            forge(new, dice)
            if new != record:
                break
        path.write_text(indented_json(with_digest(new)))
        forged.append((path, getattr(forge, "__qualname__", "")))
    lines = verified(capsys, results, "--cells", 99)["wrong"]
    assert [
        (path.name, name)
        for path, name in forged
        if not any(path.name in line for line in lines)
    ] == []
    assert len(forged) == 24


@pytest.mark.slow
def test_a_record_of_trusted_times_is_run_again_too(results, capsys):
    """Tables prefer it to the other record of its cell."""
    path = records_in(results)[0]
    record = json.loads(path.read_text())
    record["timing"]["trusted"] = True
    record["metrics"] = {
        name: [0.5 * number for number in numbers]
        for name, numbers in record["metrics"].items()
    }
    trusted = results / f"{record['key']}.timing-{record['timing']['machine']}.json"
    trusted.write_text(indented_json(with_digest(record)))
    lines = verified(capsys, results, "--cells", 99)["wrong"]
    assert any(line.startswith(f"{trusted}: run again, metrics.") for line in lines)


@pytest.mark.slow
def test_every_file_that_was_removed_is_named(results, capsys):
    files = [
        path
        for path in results.rglob("*")
        if path.is_file() and path.suffix in (".json", ".npz")
    ]
    kinds = {}
    for path in files:
        kind = (
            "record"
            if path in records_in(results)
            else str(path.relative_to(results).parent / path.suffix)
        )
        kinds.setdefault("run.json" if path.name == "run.json" else kind, []).append(
            path
        )
    assert len(kinds) == 6, kinds
    for kind, paths in kinds.items():
        data = paths[0].read_bytes()
        paths[0].unlink()
        place = results.parent.parent / "small.toml" if kind == "run.json" else results
        place.write_text(TEXT) if kind == "run.json" else None
        document = verified(capsys, place, "--results", results.parent, "--cells", 0)
        lines = (
            document["wrong"]
            + document["missing"]
            + document["remarks"].get("files", [])
        )
        names = (
            ("runs of its trials are missing",)
            if kind.startswith("tuning/.")
            else (paths[0].name,)
        )
        assert any(name in line for line in lines for name in names), (kind, lines)
        paths[0].write_bytes(data)
    assert verified(capsys, results, "--cells", 0)["missing"] == []


RUN = {
    "seeds": ("seeds     = 2", "seeds     = 1"),
    "target": ('"target": 0.001', '"target": 0.5'),
    "title": ('"title": "small"', '"title": "a better one"'),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN)
def test_a_forged_run_json_is_named(results, capsys, name):
    path = results / "run.json"
    old, new = RUN[name]
    text = path.read_text()
    assert old in text
    path.write_text(indented_json(with_digest(json.loads(text.replace(old, new, 1)))))
    assert verified(capsys, results, "--cells", 0)["wrong"]


@pytest.mark.slow
def test_a_forged_table_is_named(results, capsys):
    from smimbench.report.packed import read_pack
    from smimbench.report.stored_table import text_of_table

    path = results / "table" / "rows.json"
    table = read_pack(path)
    table["places"][0]["rows"][0]["mean"] = 0.01
    path.write_text(text_of_table(table))
    lines = verified(capsys, results, "--cells", 0)["wrong"]
    place = "rows.json: line gamp at alpha 0.5, D = 16, mse: "
    assert [line.partition(place)[2].split()[0] for line in lines] == [
        "mean",
        "ratio_to_limit",
        "z_at_size",
    ]


@pytest.mark.slow
def test_a_choice_other_than_the_one_that_was_made_is_named(results, capsys):
    path = results / "run.json"
    shared = json.loads(path.read_text())
    shared["choices"][0]["algorithm"]["learning_rate"] = 0.02
    path.write_text(indented_json(with_digest(shared)))
    lines = verified(capsys, results, "--cells", 0)["wrong"]
    assert any(
        "the suite was run with another setting of sgd" in line for line in lines
    )


@pytest.mark.slow
def test_a_run_that_a_clock_ended_is_compared_up_to_there(tmp_path, capsys):
    text = (
        suite_text(LINE, [0.5], 16, 1, 'name = "adam"\nsteps = 90')
        + "\n[run]\ntimeout = 1e-9\n"
    )
    suite, results = write_suite(tmp_path, text), tmp_path / "results"
    assert ends_with("run", suite, "--results", results, "--no-figure") == 1
    (path,) = records_in(results / "small")
    assert verified(capsys, results / "small")["wrong"] == []
    record = json.loads(path.read_text())
    assert record["status"] == "timeout"
    for forge in (
        column("mse"),
        number_in("metrics", "mse"),
        number_in("start", "truth"),
        lost("timeout"),
    ):
        new = json.loads(json.dumps(record))
        forge(new, random.Random(0))
        path.write_text(indented_json(with_digest(new)))
        lines = verified(capsys, results / "small")["wrong"]
        assert any(path.name in line for line in lines), forge
