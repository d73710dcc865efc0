"""The comparison of benchmark runs with the committed baseline."""

import json
import math

import pytest

from tests.benchmarks import compare


def run(folder, name="now.json", info=None, cpu="here", **values):
    """A document as pytest-benchmark writes it."""
    info = info or {}
    entries = [
        {"fullname": f"tests/benchmarks/test_x.py::{k}", "extra_info": {"ratio": v} | info} for k, v in values.items()
    ]
    path = folder / name
    path.write_text(
        json.dumps(
            {
                "machine_info": {"cpu": {"brand_raw": cpu}},
                "benchmarks": [*entries, {"fullname": "tests/benchmarks/test_x.py::plain", "extra_info": {}}],
            }
        )
    )
    return path


def baseline(folder, **values):
    path = folder / "baseline.json"
    path.write_text(json.dumps({"here": {f"test_x.py::{k}": v for k, v in values.items()}}))
    return path


@pytest.mark.parametrize(("now", "code"), [(2.2, 0), (2.31, 1), (1.0, 0)])
def test_growth_beyond_the_limit_fails(tmp_path, capsys, now, code):
    assert compare.main([str(run(tmp_path, a=now, b=1.0)), "--baseline", str(baseline(tmp_path, a=2.0, b=1.0))]) == code
    out = capsys.readouterr().out
    assert ("SLOWER" in out) == bool(code)
    assert "plain" not in out


def test_the_limit_is_an_option_and_the_worst_comes_first(tmp_path, capsys):
    arguments = [str(run(tmp_path, a=1.1, b=1.4, c=0.5)), "--baseline", str(baseline(tmp_path, a=1.0, b=1.0, c=1.0))]
    assert compare.main([*arguments, "--fail-over", "50"]) == 0
    assert compare.main([*arguments, "--fail-over", "5"]) == 1
    lines = capsys.readouterr().out.splitlines()[-3:]
    assert [line.split("::")[1][0] for line in lines] == ["b", "a", "c"]


def test_of_several_runs_the_best_counts(tmp_path):
    first, second = run(tmp_path, "1.json", a=3.0, b=1.0), run(tmp_path, "2.json", a=1.0, b=3.0)
    before = str(baseline(tmp_path, a=1.0, b=1.0))
    assert compare.main([str(first), "--baseline", before]) == 1
    assert compare.main([str(first), str(second), "--baseline", before]) == 0


def test_new_and_missing_benchmarks_are_named_and_nothing_to_compare_is_an_error(tmp_path, capsys):
    before = str(baseline(tmp_path, a=1.0, gone=1.0))
    assert compare.main([str(run(tmp_path, a=1.0, fresh=1.0)), "--baseline", before]) == 0
    out = capsys.readouterr().out
    assert "new" in out
    assert "not run" in out
    assert compare.main([str(run(tmp_path)), "--baseline", before]) == 2


def test_another_processor_has_ratios_of_its_own(tmp_path, capsys):
    before = baseline(tmp_path, a=1.0)
    other = run(tmp_path, "other.json", cpu="there", a=2.0)
    assert compare.main([str(other), "--baseline", str(before)]) == 1
    assert "there, which is not in the baseline" in capsys.readouterr().out
    assert compare.main([str(other), "--baseline", str(before), "--update"]) == 0
    assert compare.main([str(other), "--baseline", str(before)]) == 0
    assert compare.main([str(run(tmp_path, a=2.0)), "--baseline", str(before)]) == 1
    third = run(tmp_path, "third.json", cpu="elsewhere", a=2.2)
    assert compare.main([str(third), "--baseline", str(before)]) == 0
    assert compare.main([str(other), str(third), "--baseline", str(before)]) == 2
    assert "different processors: elsewhere, there" in capsys.readouterr().err


def test_nothing_to_compare_and_no_number_are_no_success(tmp_path, capsys):
    now = run(tmp_path, a=1.0)
    assert compare.main([str(now), "--baseline", str(tmp_path / "none.json")]) == 2
    assert "holds none of these benchmarks" in capsys.readouterr().err
    assert compare.main([str(run(tmp_path, a=math.nan)), "--baseline", str(baseline(tmp_path, a=1.0))]) == 1


def test_a_benchmark_that_a_processor_has_not_is_compared_with_others(tmp_path):
    before = tmp_path / "baseline.json"
    before.write_text(json.dumps({"here": {"test_x.py::a": 1.0}, "there": {"test_x.py::b": 2.0}}))
    assert compare.main([str(run(tmp_path, a=1.0, b=2.1)), "--baseline", str(before)]) == 0
    assert compare.main([str(run(tmp_path, a=1.0, b=2.9)), "--baseline", str(before)]) == 1


def test_an_update_keeps_what_was_not_run(tmp_path):
    before = baseline(tmp_path, a=1.0, b=1.0)
    assert compare.main([str(run(tmp_path, a=2.34567)), "--baseline", str(before), "--update"]) == 0
    assert json.loads(before.read_text()) == {"here": {"test_x.py::a": 2.346, "test_x.py::b": 1.0}}


def test_the_committed_baseline_belongs_to_the_benchmarks():
    """Every name in it is that of a test of this folder."""
    text = "".join(path.read_text() for path in compare.BASELINE.parent.glob("test_*.py"))
    found = json.loads(compare.BASELINE.read_text())
    assert found
    for name, value in ((name, value) for known in found.values() for name, value in known.items()):
        file, _, test = name.partition("::")
        assert (compare.BASELINE.parent / file).exists()
        assert f"def {test.partition('[')[0]}(" in text
        assert value > 0
