"""``smimbench theory``: the published names of its JSON, and problems that cannot be made or solved."""

import pytest

from tests.helpers import (
    ATTENTION,
    CHANNEL,
    SUITE,
    call,
    flat,
    one_document,
    output,
    refusal,
    silent,
    write_suite,
)


def test_theory_json_keeps_its_published_names(tmp_path, capsys):
    suite = write_suite(tmp_path, ATTENTION)
    out = silent(capsys, "theory", suite, "--json")
    (document,) = one_document(out)
    assert document["problem"]["prior"]["rho"] == 0.5
    assert document["problem"]["label"] == "softmax"
    assert [point["alpha"] for point in document["points"]] == [0.1, 0.3]
    for point in document["points"]:
        assert {"alpha", "mse", "mse_error", "overlap", "branch", "method"} <= set(
            point
        )
        assert isinstance(point["mse"], float)
        ((overlap,),) = point["overlap"]
        assert overlap == pytest.approx(1.5 - point["mse"])
        assert 0 <= point["mse_error"] < 1e-6
    thresholds = document["thresholds"]
    assert set(thresholds) == {
        "weak_recovery", "perfect_recovery", "sequential", "spinodal", "algorithmic", "information_theoretic", "reasons",
    }  # fmt: skip
    assert thresholds["weak_recovery"] is None
    assert thresholds["perfect_recovery"]["value"] == pytest.approx(0.75 / 4, abs=1e-6)
    assert document["points"][1]["mse"] == 0


def with_bad(folder, bad, plugin, algorithms=""):
    """A suite with the bad problem before the good one, and the options of a command on it."""
    (folder / "bad.py").write_text(plugin)
    problems = f"[[problems]]{bad}\n[[problems]]{TWICE}"
    text = SUITE.replace("[problem]" + TWICE, problems) + algorithms
    options = ("--plugins", folder / "bad.py", "--results", folder / "r")
    return write_suite(folder, text), *options


TWICE = SUITE.partition("[problem]")[2].partition("[grid]")[0]
BAD = TWICE.replace('"line"', '"bad"').replace(
    'name = "linear", noise = 0.2', 'name = "twice"'
)


def test_a_problem_that_cannot_be_solved_says_so_and_the_others_stay(tmp_path, capsys):
    sound = "return smimbench.Posterior(y / self.gain, 0 * V)"
    plugin = CHANNEL.replace(sound, "raise ZeroDivisionError('no')")
    options = with_bad(tmp_path, BAD, plugin)
    code, out, err = call(capsys, "theory", *options, "--json")
    found = {one["problem"]["label"]: one for one in one_document(out)}
    assert code == 1, err
    assert "ZeroDivisionError: no" in found["bad"]["unsolved"]
    assert found["bad"]["points"] == []
    assert len(found["line"]["points"]) == 2
    assert "unsolved" not in found["line"]
    code, out, _ = call(capsys, "theory", *options)
    assert code == 1
    assert (
        "bad not solved: channel 'twice': posterior raised ZeroDivisionError: no"
        in flat(out)
    )
    assert "0.358258" in out


RAISING = "    def __post_init__(self):\n        raise {}('no')\n\n    @property"


POSTERIOR = CHANNEL[CHANNEL.index("    def posterior") : CHANNEL.index("@hookimpl")]


LIKELIHOOD = "    def log_likelihood(self, y, z):\n        return 0 * z[:, 0, 0]\n\n\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("    @property", RAISING.format("ZeroDivisionError"), "ZeroDivisionError: no"),
        ("    @property", RAISING.format("BaseException"), "BaseException: no"),
        (
            "        return 1\n",
            "        return [][0]\n",
            "IndexError: list index out of range",
        ),
        (POSTERIOR, LIKELIHOOD, "a delta function"),
    ],
    ids=["constructor", "BaseException", "property", "likelihood"],
)
def test_a_problem_that_cannot_be_made_says_so_and_the_others_stay(
    tmp_path, capsys, before, after, said
):
    suite, *options = with_bad(tmp_path, BAD, CHANNEL.replace(before, after))
    code, out, err = call(capsys, "theory", suite, *options, "--json")
    assert code == 1, err
    good, failed = one_document(out)
    assert (good["problem"]["label"], len(good["points"]), "unsolved" in good) == (
        "line",
        2,
        False,
    )
    assert (failed["problem"]["label"], failed["points"]) == ("bad", [])
    assert said in failed["unsolved"]
    assert (
        said == "a delta function"
        or f"({tmp_path / 'bad.py'}, line " in failed["unsolved"]
    )
    code, out, err = call(capsys, "theory", suite, *options)
    assert code == 1
    assert "bad not solved: channel.name: " in flat(out)
    assert "0.358258" in out
    for words in (("run", suite, "--workers", "1", "--no-figure"), ("show", suite)):
        code, out, err = call(capsys, *words, *options, "--json")
        found = one_document(out)
        assert code == 1, err
        assert {row["problem"] for row in found["rows"]} == {"line"}
        assert (found["status_counts"], found["missing"]) == ({"ok": 8}, 0)
        assert said in found["left_out"][0]
        assert said in err
        assert err.count("left out: ") == 1
    alone = write_suite(
        tmp_path, SUITE.replace("[problem]" + TWICE, f"[problem]{BAD}"), "alone"
    )
    for verb in ("theory", "run"):
        err = refusal(capsys, verb, alone, *options)
        assert said in err
    err = refusal(
        capsys, "theory", suite, *options, "--set", "problems.bad.channel.gian=2"
    )
    assert "did you mean 'gain'?" in err


PRIOR = """
from dataclasses import dataclass
from smimbench import hookimpl
from smimbench_attention.algorithms.adam import Adam
from smimbench_attention.priors.gaussian import Gaussian


@dataclass(frozen=True)
class Moody(Gaussian):
    name = "moody"

    def mean(self, components, dimension):
        raise ZeroDivisionError("no")


class Broken(Adam):
    name = "broken"

    def __post_init__(self):
        raise ZeroDivisionError("none")


@hookimpl
def smimbench_register_priors(register):
    register(Moody)


@hookimpl
def smimbench_register_algorithms(register):
    register(Broken)
"""


@pytest.mark.slow
def test_a_prior_without_a_mean_and_an_algorithm_that_cannot_be_made_leave_the_others(
    tmp_path, capsys
):
    bad = TWICE.replace('"line"', '"bad"').replace("gaussian", "moody")
    broken = '\n[[algorithms]]\nname = "broken"\n'
    suite, *options = with_bad(tmp_path, bad, PRIOR, broken)
    options.append("--json")
    code, out, _ = call(capsys, "theory", suite, *options)
    assert code == 1
    assert [one.get("unsolved", "")[-1:] for one in one_document(out)] == ["", ")"]
    code, out, _ = call(capsys, "run", suite, *options, "--workers", "1", "--no-figure")
    assert code == 1
    found = one_document(out)
    assert found["status_counts"] == {"ok": 8}
    first, second = found["left_out"]
    assert (
        "problems[0].prior.name: this prior cannot be built: ZeroDivisionError: no ("
        in first
    )
    assert (
        "algorithms[2].name: this algorithm cannot be built: ZeroDivisionError: none ("
        in second
    )


def test_the_small_width_limit_has_a_theory_and_no_data(tmp_path, capsys):
    suite = write_suite(tmp_path, ATTENTION.replace("rho = 0.5", "rho = 0.0"))
    out = output(capsys, "theory", suite, "--json", "--results", tmp_path / "r")
    (document,) = one_document(out)
    assert document["algorithms"] == []
    assert len(document["points"]) == 2
    for words in (
        ("data", suite, "--output", tmp_path / "x.npz"),
        ("run", suite),
        ("show", suite),
    ):
        err = refusal(capsys, *words)
        assert (
            "must be > 0 to run; rho = 0 is the small-width limit, for theory only"
            in err
        )
