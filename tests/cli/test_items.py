"""Commands about items and the installation: ``list``, ``info``, ``plugins`` and ``doctor``, and broken plugins."""

import json

import pytest

from smimbench.report.wording import AGREEMENT, VERDICT_HELP
from tests.helpers import call, call_outside, one_document, output

BAD = "ZeroDivisionError: division by zero"


def test_plugins_and_doctor_as_json(tmp_path, capsys):
    (tmp_path / "bad.py").write_text("1 / 0")
    code, out, _ = call(capsys, "plugins", "--plugins", tmp_path, "--json")
    (found,) = [plugin for plugin in one_document(out) if plugin["name"] == "bad"]
    assert (code, found["status"], found["problems"]) == (1, "failed", [BAD])
    found = one_document(call(capsys, "doctor", "--json")[1])
    assert found["healthy"] is True
    assert found["versions"]["numpy"]
    assert found["machine"]["cores"] >= 1
    assert {"driver", "cupy", "devices", "advice"} <= set(found["gpu"])


def test_list_has_everything_by_kind(capsys):
    out = output(capsys, "list", "--json")
    found = one_document(out)
    assert list(found) == [
        "models",
        "inputs",
        "channels",
        "priors",
        "metrics",
        "algorithms",
        "suites",
    ]
    names = {kind: {item["name"] for item in items} for kind, items in found.items()}
    assert names["models"] == {"attention-indexed", "sequence-multi-index"}
    assert names["priors"] >= {"wishart", "gaussian"}
    assert names["algorithms"] >= {"gamp", "adam"}
    assert "quickstart" in names["suites"]
    assert all(item["summary"] for items in found.values() for item in items)
    _, out, _ = call(capsys, "list")
    for name in set().union(*names.values()):
        assert name in out


def test_info_of_a_name_shows_all_that_bear_it(capsys):
    out = output(capsys, "info", "softmax", "--json")
    found = one_document(out)
    assert {tuple(item["models"]) for item in found} == {
        ("attention-indexed",),
        ("sequence-multi-index",),
    }
    for item in found:
        assert item["reference"]
        assert item["documentation"]
        assert "tokens" not in {p["name"] for p in item["parameters"]}
    parameters = next(
        item["parameters"] for item in found if item["models"] == ["attention-indexed"]
    )
    (beta,) = [p for p in parameters if p["name"] == "beta"]
    assert (beta["required"], beta["default"]) == (False, 1.0)


def test_a_broken_plugin_is_one_line_and_stops_nothing(tmp_path, capsys):
    bad = tmp_path / "bad.py"
    bad.write_text("1 / 0")
    code, out, err = call(capsys, "list", "priors", "--plugins", bad)
    assert code == 0
    assert "wishart" in out
    assert (
        err
        == f"smimbench: plugin bad ({bad}) was not loaded: ZeroDivisionError: division by zero\n"
    )
    assert (
        call(capsys, "list", "priors", "--plugins", bad, "--quiet")[2] == err
    )  # an error, not a remark
    assert call(capsys, "list", "priors", "--plugins", bad, "--no-plugins")[::2] == (
        0,
        "",
    )


ENDING = {
    "class E(BaseException): pass\nraise E('\x1b[31mred')": "was not loaded: E: \ufffd[31mred",
    "import sys\nsys.exit(3)": "was not loaded: SystemExit: 3",
}


@pytest.mark.slow
def test_a_plugin_that_ends_the_process_when_it_is_imported_is_one_line(tmp_path):
    for place, text in enumerate(ENDING):
        (tmp_path / f"bad{place}.py").write_text(text)
    done = call_outside("list", "priors", "--plugins", tmp_path, "--quiet")
    assert done.returncode == 0
    assert "wishart" in done.stdout
    lines = done.stderr.splitlines()
    assert len(lines) == len(ENDING)
    assert all(said in line for said, line in zip(ENDING.values(), lines))


def test_the_verdict_is_explained_in_the_words_it_uses(capsys):
    out = output(capsys, "help", "verdict")
    lines = out.splitlines()
    assert len(lines) <= 46
    assert max(map(len, lines)) <= 80
    for phrase in AGREEMENT.values():
        assert phrase in lines
    assert json.loads(output(capsys, "help", "verdict", "--json")) == VERDICT_HELP
