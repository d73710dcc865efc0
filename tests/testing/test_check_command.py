"""``smimbench check``, ``smimbench.testing.check`` and the decorator, as a third party uses them."""

import json
import signal
import subprocess
import sys

import pytest

from smimbench.testing import CheckError, all_checks, bound_checks, check, core
from tests.helpers import CHANNEL, call, environment, flat, output, refusal

MOMENT = "m[:, :, :, None, None] * m[:, None, None, :, :]"
RIGHT = CHANNEL.replace(
    "return smimbench.Posterior(y / self.gain, 0 * V)",
    f"m = y / self.gain; return smimbench.Posterior(m, 0 * V, {MOMENT} if second_moment else None)",
)
WRONG = RIGHT.replace("m = y / self.gain", "m = 1.1 * y / self.gain")


@pytest.fixture
def drop_in(tmp_path):
    """Two plugins: a right channel and the same with a posterior that is off by a factor."""
    right, wrong = tmp_path / "right.py", tmp_path / "wrong.py"
    right.write_text(RIGHT)
    wrong.write_text(WRONG.replace('"twice"', '"off"'))
    return right, wrong


ENDLESS = WRONG.replace('"twice"', '"endless"').replace(
    "m = 1.1", "import time; time.sleep(60); m = 1.1"
)
NAN = WRONG.replace('"twice"', '"nan"').replace("m = 1.1", "m = float('nan')")


def test_what_others_need_is_tested_first_and_they_are_skipped_in_one_line(
    capsys, tmp_path
):
    (tmp_path / "nan.py").write_text(NAN)
    code, out, _ = call(capsys, "check", "nan", "--plugins", tmp_path / "nan.py")
    assert code == 1
    assert "posterior: mean (sequence-multi-index) contains NaN or infinity" in flat(
        out
    )
    assert "not run, because shapes failed: symmetry" in out
    assert len(out.splitlines()) < 20
    assert (
        out.count("failed") == 3
    )  # the check, the line of those that need it, the count
    _, out, _ = call(capsys, "check", "nan", "--plugins", tmp_path / "nan.py", "--json")
    (document,) = json.loads(out)
    assert (document["failed"], len(document["checks"])) == (
        1,
        len(all_checks("channel")),
    )


def test_a_channel_that_takes_no_model_says_what_it_raised(capsys, tmp_path):
    (tmp_path / "bare.py").write_text(
        RIGHT.replace("    tokens: int = 2\n", "")
        .replace('"twice"', '"bare"')
        .replace("z, *, rng=None", "z")
    )
    code, out, _ = call(
        capsys, "check", "bare", "--plugins", tmp_path / "bare.py", "--only", "shapes"
    )
    assert code == 1
    words = flat(out)
    assert "forward raised TypeError: " in words
    assert "unexpected keyword argument 'rng'" in words


def test_a_check_that_never_ends_is_ended(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(core, "TIME_LIMIT", 0.5)
    (tmp_path / "endless.py").write_text(ENDLESS)
    code, out, _ = call(
        capsys,
        "check",
        "endless",
        "--plugins",
        tmp_path / "endless.py",
        "--only",
        "shapes",
    )
    assert code == 1
    assert "took longer than 0.5 s" in out
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.slow
def test_what_ships_passes(capsys):
    out = output(capsys, "check", "gaussian")
    assert "prior gaussian() for sequence-multi-index" in out
    assert "nishimori" in out
    assert "0 failed" in out


def test_a_wrong_drop_in_is_told_so(capsys, drop_in):
    code, out, _ = call(
        capsys, "check", "off", "--plugins", drop_in[1], "--only", "nishimori"
    )
    assert code == 1
    words = flat(out)
    assert "failed nishimori" in words
    assert (
        "the mean is not the posterior mean of the distribution that labels are drawn from"
        in words
    )
    assert "The posterior does not belong to forward" in words
    assert "0 passed, 1 failed, 0 skipped" in words


def test_json_and_parameters(capsys, drop_in):
    options = (
        "--plugins",
        drop_in[0],
        "--set",
        "gain=3.5",
        "--only",
        "nishimori",
        "--only",
        "vjp",
        "--json",
    )
    code, out, _ = call(capsys, "check", "twice", *options)
    (document,) = json.loads(out)
    assert code == 0
    assert document["parameters"] == {"gain": 3.5}
    assert (document["kind"], document["failed"]) == ("channel", 0)
    assert {c["check"] for c in document["checks"]} == {"nishimori", "vjp"}
    assert set(document["checks"][0]) == {
        "item", "check", "status", "message", "meaning", "seconds",
    }  # fmt: skip


def test_list(capsys):
    code, out, _ = call(capsys, "check", "--list", "--json")
    documents = json.loads(out)
    assert code == 0
    assert {(d["kind"], d["check"]) for d in documents} == {
        (c.kind, c.id) for c in all_checks()
    }
    code, out, _ = call(capsys, "check", "--list")
    assert "data_unchanged" in out
    assert "The algorithm modifies its data" in flat(out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gausian",), "no item is called 'gausian'; did you mean 'gaussian'"),
        (("nothing-like-it-at-all",), "see 'smimbench list'"),
        ((), "give the NAME of an item"),
        (("gaussian", "--only", "nope"), "no check is called 'nope'"),
        (("wishart", "--set", "rho"), "must be KEY=VALUE"),
        (("wishart", "--set", "rho=-1"), "cannot be created: rho"),
        (("wishart", "--set", "width=2"), "has no parameter width"),
    ],
)
def test_bad_requests(capsys, arguments, message):
    err = refusal(capsys, "check", *arguments)
    assert message in err


def test_one_check_of_one_item_in_python():
    found = {b.id: b for b in bound_checks(["gaussian"])}
    found["gaussian-nishimori"]()
    with pytest.raises(CheckError, match="is not an item: it has none of the methods"):
        list(bound_checks([object()]))
    with pytest.raises(CheckError, match="needs a value for rho"):
        check(type("Bare", (), {"denoise": None, "__init__": lambda self, rho: None}))


def test_a_class_that_cannot_be_created_is_refused_in_one_line():
    def fails(self):
        raise ZeroDivisionError("nothing\nhere")

    with pytest.raises(CheckError, match="cannot be created: ZeroDivisionError: no"):
        check(type("Bare", (), {"denoise": None, "name": "bare", "__init__": fails}))


@pytest.mark.slow
def test_without_pytest_nothing_imports_it():
    script = (
        "import sys; from smimbench.testing import check; "
        "assert [o.status for o in check('gaussian', only=['nishimori'])] == ['passed']; "
        "assert 'pytest' not in sys.modules"
    )
    subprocess.run(
        [sys.executable, "-c", script], check=True, env=environment(), timeout=60
    )


@pytest.mark.slow
def test_the_decorator_in_the_tests_of_a_third_party(tmp_path, drop_in):
    """Names of tests, a failure that explains itself, a skip with its reason."""
    (tmp_path / "test_mine.py").write_text(
        "import importlib.util, sys\n"
        "from smimbench.testing import parametrize_with_checks\n"
        "def load(path, name):\n"
        "    spec = importlib.util.spec_from_file_location(name, path)\n"
        "    sys.modules[name] = module = importlib.util.module_from_spec(spec)\n"
        "    spec.loader.exec_module(module)\n"
        "    return module.Twice()\n"
        f"items = [load({str(drop_in[0])!r}, 'right'), load({str(drop_in[1])!r}, 'wrong')]\n"
        "@parametrize_with_checks(items)\n"
        "def test_contract(check):\n"
        "    check()\n"
    )
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", str(tmp_path / "test_mine.py")],
        capture_output=True, text=True, env=environment(), timeout=100, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert found.returncode == 1
    assert "test_contract[off-nishimori]" in found.stdout
    assert "test_contract[twice-nishimori]" not in found.stdout
    assert "The posterior does not belong to forward" in found.stdout
    assert "the channel has no method log_partition" in found.stdout
