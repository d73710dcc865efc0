"""Suites: what is read, and one clear line for everything that cannot be."""

import copy
import difflib
import json
from collections import Counter
from pathlib import Path

import pytest
import tomli_w

import smimbench
from smimbench.files import canonical_json
from smimbench.registry.registry import Registry, using
from smimbench.suite import SuiteError
from smimbench.suite.document import shipped_suites
from smimbench.suite.reader import load_suite, parse_suite
from tests.helpers import ATTENTION, CHANNEL, SUITE, call, loaded, refusal, write_suite

WISHART = 'prior   = { name = "wishart", rho = 0.5 }'
SOFTMAX = 'channel = { name = "softmax", beta = 1.0 }'
MODEL = 'model   = { name = "attention-indexed", tokens = 2 }'
GAMP = '[[algorithms]]\nname = "gamp"'
REFERENCE = f"""{ATTENTION}
[[run.reference]]
label = "published"
source = "a paper"
problem = {{ {MODEL}, {SOFTMAX}, prior = {{ name = "wishart", rho = 0.7 }} }}
alpha = [1.0]
value = [1.0]
"""
OPTIMUM = f"""{ATTENTION}
[[optimum]]
problem = {{ {MODEL}, {SOFTMAX}, {WISHART} }}
dimension = 30
alpha = [0.1, 0.3]
mse = [0.6, 0.4]
error = [0.01, 0.02]
source = "sampled"
command = "python chains.py"
"""


def changed(old, new):
    """The sound suite with one place changed."""
    assert ATTENTION.count(old) == 1
    return ATTENTION.replace(old, new)


def two_problems(first, second):
    """A suite of two problems on one grid: the sound one, and one that has the lines ``second``."""
    return (
        f"[[problems]]\n{MODEL}\n{SOFTMAX}\n{WISHART}\n{first}\n[[problems]]\n{MODEL}\n{WISHART}\n{second}\n"
        f"[grid]\nalpha = 0.1\ndimension = 20\n{GAMP}\n"
    )


CHANGED = """
unknown key of the grid | alpha     = | alfa = | grid.alfa | did you mean 'alpha'
unknown key of a problem | rho = 0.5 } | rho = 0.5 }; noise = 1 | problem.noise | unknown key
unknown parameter of a prior | rho = 0.5 | rho = 0.5, rank = 3 | problem.prior.rank | unknown key
misspelled parameter | beta | betta | problem.channel.betta | did you mean 'beta'
parameter of no algorithm | name = "gamp" | name = "gamp"; dampening = 0.1 | algorithms[0].dampening | 'damping'
tokens in the channel | beta = 1.0 | tokens = 3 | problem.channel.tokens | taken from the model
text for a number | rho = 0.5 | rho = "half" | problem.prior.rho | number
float for an integer | tokens = 2 | tokens = 2.5 | problem.model.tokens | int
true for an integer | tokens = 2 | tokens = true | problem.model.tokens | int
float for a dimension | [30] | [30.5] | grid.dimension[0] | int
text for seeds | seeds     = 2 | seeds = "many" | grid.seeds | int
a table for alpha | [0.1, 0.3] | { from = 0.1 } | grid.alpha | number
a number for a name | "wishart" | 7 | problem.prior.name | must be a string
a list for the algorithm | "gamp" | ["gamp"] | algorithms[0].name | must be a string
alpha zero | [0.1, 0.3] | [0.1, 0.0] | grid.alpha[1] | must be > 0
alpha negative | [0.1, 0.3] | -1.0 | grid.alpha | must be > 0
alpha infinite | [0.1, 0.3] | [inf] | grid.alpha[0] | must be a finite number
alpha nan | [0.1, 0.3] | [nan] | grid.alpha[0] | must be a finite number
no alpha | [0.1, 0.3] | [] | grid.alpha | must list at least one value
dimension too small | [30] | [1] | grid.dimension[0] | at least 2
no seeds | seeds     = 2 | seeds = 0 | grid.seeds | at least 1
negative seed | seeds     = 2 | seed = -1 | grid.seed | at least 0
rho negative | rho = 0.5 | rho = -0.5 | problem.prior.rho | got -0.5
rho nan | rho = 0.5 | rho = nan | problem.prior.rho | finite
beta zero | beta = 1.0 | beta = 0.0 | problem.channel.beta | > 0
one token | tokens = 2 | tokens = 1 | problem | tokens
nan in a list | rho = 0.5 } | rho = 0.5 }; inputs = { name = "correlated-tokens", covariance = [[nan]] } | problem.inputs | nan
damping one | name = "gamp" | name = "gamp"; damping = 1.0 | algorithms[0].damping | [0, 1)
prior of the other model | "wishart", rho = 0.5 | "gaussian" | problem.prior.name | wishart
channel misspelled | name = "softmax" | name = "sofmax" | problem.channel.name | did you mean 'softmax'
algorithm misspelled | "gamp" | "gmap" | algorithms[0].name | did you mean 'gamp'
no model | model   = { name = "attention-indexed", tokens = 2 } | | problem.model | is missing
no prior | prior   = { name = "wishart", rho = 0.5 } | | problem.prior | is missing
no tokens | , tokens = 2 | | problem.model.tokens | is missing
no rho | , rho = 0.5 | | problem.prior.rho | is missing
no alpha at all | alpha     = [0.1, 0.3] | | grid.alpha | is missing
no dimension | dimension = [30] | | grid.dimension | is missing
a sample ratio twice | [0.1, 0.3] | [0.1, 0.3, 0.1] | grid.alpha | 0.1 is listed twice, as entries 0 and 2
a dimension twice | [30] | [30, 30] | grid.dimension | 30 is listed twice
a parameter twice | rho = 0.5 | rho = [1, 1.0] | problem.prior.rho | 1.0 is listed twice
an empty axis | rho = 0.5 | rho = [] | problem.prior.rho | must list at least one value
a date for a name | name = "attention-indexed" | name = [1979-05-27] | problem.model.name | must be a string, the name of a model
the same time twice | tokens = 2 | tokens = [07:32:00, 07:32:00] | problem.model.tokens | datetime.time(7, 32) is listed twice
a million cells | seeds     = 2 | seeds = 1_000_000 | grid | 2,000,000 cells
"""
"""What is wrong, a place of the sound suite, what stands there instead (``;`` is a line end), key, and words of the message."""

RUN = """
unknown key of run | tolerence = 1e-3 | run.tolerence | did you mean 'tolerance'
metrics unknown | metrics = ["mae"] | run.metrics[0] | 'mse'
start unknown | start = "warm" | run.start | 'informed'
dtype unknown | dtype = "float16" | run.dtype | 'float32'
no metric | metrics = [] | run.metrics | must list at least one value
tolerance zero | tolerance = 0.0 | run.tolerance | must be > 0
timeout negative | timeout = -3.0 | run.timeout | must be > 0
timeout nan | timeout = nan | run.timeout | must be a finite number, got nan
tolerance infinite | tolerance = inf | run.tolerance | must be a finite number, got inf
target too large to be read | target = 1e999 | run.target | must be a finite number, got inf
no iterations | max_iterations = 0 | run.max_iterations | at least 1
a metric twice | metrics = ["mse", "mse"] | run.metrics | is listed twice
start of an algorithm that has none | start = "adam" | run.start | with a method start (spectral for *), got 'adam'
"""
"""What is wrong, a line of ``[run]``, key, and words of the message."""

BAD = {
    "unknown table": (ATTENTION + "[grids]\nalpha = [1.0]\n", "grids", "did you mean 'grid'"),
    "number for text": (changed('"softmax"\nmodel', "3\nmodel"), "problem.label", "string"),
    "alpha of a reference infinite": (REFERENCE.replace("alpha = [1.0]", "alpha = [inf]"), "run.reference[0].alpha[0]",
        "must be a finite number, got inf"),
    "value of a reference nan": (REFERENCE.replace("value = [1.0]", "value = [nan]"), "run.reference[0].value[0]",
        "must be a finite number, got nan"),
    "tolerance of a reference infinite": (REFERENCE + "tolerance = inf\n", "run.reference[0].tolerance",
        "must be a finite number, got inf"),
    "prior that stayed with the other model": (
        changed('"attention-indexed"', '"sequence-multi-index"').replace(SOFTMAX, 'channel = "hardmax"'), "problem.prior.name",
        "belongs to model attention-indexed"),
    "no name": (changed('name = "softmax", ', ""), "problem.channel.name", "is missing"),
    "no algorithm name": (ATTENTION + "[[algorithms]]\nsteps = 3\n", "algorithms[1].name", "is missing"),
    "no problem": (GAMP + "\n[grid]\nalpha = 1.0\ndimension = 5\n", "problem", "[problem]"),
    "problem and problems": (ATTENTION + f"[[problems]]\n{MODEL}\n{SOFTMAX}\n{WISHART}\n", "problem", "either"),
    "an algorithm twice": (ATTENTION + GAMP + '\nlabel = "again"\n', "algorithms[1]", "the same algorithm as algorithms[0]"),
    "two problems with one label": (two_problems('label = "a"', 'channel = "linear"\nlabel = "a"'), "problems[1].label",
        "'a' is also the label of problems[0]"),
    "one problem under two labels": (two_problems('label = "a"', f'{SOFTMAX}\nlabel = "b"'), "problems[1]",
        "is the same problem as 'a' (problems[0]) at alpha = 0.1, dimension = 20"),
    "metric of a reference": (REFERENCE.replace("source", 'metric = "mae"\nsource'), "run.reference[0].metric",
        "did you mean 'mse'"),
    "the same label twice": (ATTENTION + GAMP + "\ndamping = 0.5\n", "algorithms[1].label", "used twice"),
    "reference without values": (REFERENCE.replace("value = [1.0]", "value = []"), "run.reference[0].value",
        "as many numbers as alpha (1)"),
    "reference of no problem": (REFERENCE.replace("problem =", "# problem ="), "run.reference[0].problem", "is missing"),
    "reference of a problem that cannot be made": (REFERENCE.replace("rho = 0.7", "rh = 0.7"),
        "run.reference[0].problem.prior.rh", "did you mean 'rho'"),
    "an optimum of no problem": (OPTIMUM.replace("problem =", "# problem ="), "optimum[0].problem", "is missing"),
    "an optimum of a problem that cannot be made": (OPTIMUM.replace(f"{SOFTMAX}, prior", 'channel = "softmx", prior'),
        "optimum[0].problem.channel.name", "did you mean 'softmax'"),
    "an optimum for fewer sample ratios": (OPTIMUM.replace("[0.6, 0.4]", "[0.6]"), "optimum[0].mse",
        "as many numbers as alpha (2)"),
    "an optimum without its errors": (OPTIMUM.replace("error = [0.01, 0.02]\n", ""), "optimum[0].error", "is missing"),
    "an optimum of several components": (OPTIMUM.replace("[0.6, 0.4]", "[[0.6, 0.2], [0.4, 0.1]]"), "optimum[0].mse",
        "must have a single number for each alpha"),
    "a negative optimum": (OPTIMUM.replace("0.6", "-0.6"), "optimum[0].mse[0]", "must be at least 0"),
    "an optimum from nowhere": (OPTIMUM.replace('"sampled"', '"guessed"'), "optimum[0].source", "'closed form'"),
    "an optimum that nobody can compute": (OPTIMUM.replace('"python chains.py"', '""'), "optimum[0].command", ""),
    "two optima of a point": (OPTIMUM + OPTIMUM[len(ATTENTION) :], "optimum[1]",
        "has an optimum at alpha = 0.1, dimension = 30, as optimum[0] does"),
    "an axis of a million": (changed("rho = 0.5", f"rho = {[0.5] * 1001}").replace("tokens = 2", f"tokens = {[2] * 1001}"),
        "grid", "4,008,004 cells"),
    "not TOML": ("[problem\n", "", "not valid TOML"),
}  # fmt: skip
for line in CHANGED.strip().splitlines():
    name, old, new, key, words = map(str.strip, line.split("|"))
    BAD[name] = (changed(old, new.replace("; ", "\n")), key, words)
for line in RUN.strip().splitlines():
    name, option, key, words = map(str.strip, line.split("|"))
    BAD[name] = (f"{ATTENTION}[run]\n{option}\n", key, words)


@pytest.mark.parametrize("name", BAD)
def test_a_bad_suite_is_one_line_with_file_and_key(tmp_path, capsys, name):
    text, key, words = BAD[name]
    path = write_suite(tmp_path, text)
    err = refusal(capsys, "run", path, "--results", tmp_path / "results")
    assert err.startswith(f"smimbench: {path}: {key}")
    assert words in err
    assert len(err) < 400
    assert not (tmp_path / "results").exists()


ENCODED = {
    "UTF-16 by its mark": (
        SUITE.encode("utf-16"),
        "line 1 has the byte 0xff, which is not UTF-8; save the file as UTF-8",
    ),
    "UTF-16 of big ends": (
        "\ufeff".encode("utf-16-be") + SUITE.encode("utf-16-be"),
        "line 1 has the byte 0xfe, which is not UTF-8",
    ),
    "UTF-16 without a mark": (SUITE.encode("utf-16-le"), "is not valid TOML"),
    "Latin-1": (
        f"# a\n# caf\u00e9\n{SUITE}".encode("latin-1"),
        "line 2 has the byte 0xe9, which is not UTF-8",
    ),
}


@pytest.mark.parametrize("name", ENCODED)
def test_a_suite_in_another_encoding_is_refused(tmp_path, name):
    data, words = ENCODED[name]
    (tmp_path / "small.toml").write_bytes(data)
    (tmp_path / "more.toml").write_text('extends = "small.toml"\n')
    for file in ("small.toml", "more.toml"):
        with pytest.raises(SuiteError) as refused:
            load_suite(tmp_path / file)
        assert f"{tmp_path / 'small.toml'}" in str(refused.value)
        assert words in str(refused.value)


@pytest.mark.parametrize("change", [
    lambda text: b"\xef\xbb\xbf" + text.encode(),
    lambda text: text.replace("\n", "\r").encode(),
    lambda text: text.replace("\n", "\r\n").encode(),
])  # fmt: skip
def test_a_byte_order_mark_and_line_ends_of_other_systems_change_nothing(
    tmp_path, change
):
    plain = loaded(tmp_path)
    (tmp_path / "small.toml").write_bytes(change(plain.text))
    changed = load_suite(tmp_path / "small.toml")
    assert changed.text == plain.text
    assert [cell.key for cell in changed.cells("numpy")] == [
        cell.key for cell in plain.cells("numpy")
    ]


WHOLE = {
    "suite": {"title": "all tables", "description": "", "reference": "", "duration": "", "plugins": False},
    "problem": {
        "label": "line",
        "model": {"name": "sequence-multi-index", "tokens": 2},
        "channel": {"name": "linear", "noise": 0.2},
        "prior": {"name": "gaussian"},
        "inputs": {"name": "power-law", "exponent": 1.0},
    },
    "grid": {"alpha": [0.5], "dimension": [30], "seeds": 2, "seed": 1, "max_cells": 100},
    "algorithms": [
        {"name": "gamp", "label": "other", "damping": 0.5, "assumed": {"channel": {"noise": 0.3}}},
        {"name": "adam", "steps": 5, "tune": {"trials": 4, "learning_rate": {"low": 0.1, "high": 1.0, "log": True}}},
        {"name": "averaged", "of": {"name": "sgd", "steps": 5}},
    ],
    "run": {"tolerance": 1e-3, "max_iterations": 5, "timeout": 9.0, "metrics": ["mse"], "start": "uninformed", "target": 1e-3,
            "dtype": "float64", "draw": "host"},
}  # fmt: skip


def places(value, way=()):
    """Where the keys of a document are."""
    for key in (
        value
        if isinstance(value, dict)
        else range(len(value))
        if isinstance(value, list)
        else ()
    ):
        if isinstance(key, str):
            yield (*way, key)
        yield from places(value[key], (*way, key))


def misspelled(word):
    """All words with two neighboring letters exchanged, or with one left out."""
    exchanged = {
        word[:i] + word[i + 1] + word[i] + word[i + 2 :] for i in range(len(word) - 1)
    }
    return (exchanged | {word[:i] + word[i + 1 :] for i in range(len(word))}) - {
        word,
        "",
    }


@pytest.mark.parametrize(
    "way", [*places(WHOLE)], ids=lambda way: ".".join(map(str, way))
)
def test_every_misspelled_key_is_told_from_the_right_one(way):
    """Each is named, with the key that was meant, wherever it stands; of two letters none can be guessed."""
    *above, key = way
    for typo in sorted(misspelled(key)) if len(key) > 2 else ():
        document = copy.deepcopy(WHOLE)
        table = document
        for step in above:
            table = table[step]
        if difflib.get_close_matches(
            typo, [name for name in table if name != key]
        ):  # seeds and seed, log and low
            continue
        table[typo] = table.pop(key)
        with pytest.raises(SuiteError) as refused:
            parse_suite(Path("small.toml"), tomli_w.dumps(document))
        assert typo in str(refused.value)
        assert f"'{key}'" in str(refused.value) or f"{key}: is missing" in str(
            refused.value
        ), str(refused.value)


def test_an_infinite_timeout_is_no_limit(tmp_path):
    cells = [
        loaded(tmp_path, ATTENTION + text).cells("numpy")[0]
        for text in ("", "[run]\ntimeout = inf\n")
    ]
    assert cells[0].run.timeout is cells[1].run.timeout is None
    assert cells[0].key == cells[1].key


def test_cells_are_the_product_with_replicates_outermost(tmp_path):
    suite = loaded(tmp_path)
    cells = suite.cells()
    found = [(c.replicate, c.alpha, c.algorithm_label) for c in cells]
    assert found == [
        (r, a, n) for r in (0, 1) for a in (0.5, 1.0) for n in ("gamp", "adam")
    ]
    assert len({cell.key for cell in cells}) == len(cells)
    assert suite.title == "A small suite"
    assert suite.name == "small"


def test_lists_become_axes(tmp_path):
    text = (
        changed("rho = 0.5", "rho = [0.2, 0.5, 1.5]")
        .replace("[30]", "[20, 30]")
        .replace("tokens = 2", "tokens = [2, 3]")
    )
    suite = loaded(tmp_path, text)
    assert len(suite.plans) == 6
    labels = [plan.label for plan in suite.plans]
    assert len(set(labels)) == 6
    assert "rho=1.5" in labels[-1]
    assert "tokens=3" in labels[-1]
    assert len(suite.cells()) == 6 * 2 * 2 * 2
    assert {plan.problem.channel.tokens for plan in suite.plans} == {2, 3}


def test_several_problems_may_have_their_own_grids(tmp_path):
    text = (
        f'[[problems]]\nlabel = "a"\n{MODEL}\n{SOFTMAX}\n{WISHART}\ngrid = {{ alpha = 0.7 }}\n'
        f'[[problems]]\nlabel = "b"\n{MODEL}\nchannel = "linear"\n{WISHART}\ngrid = {{ dimension = [10, 12] }}\n'
        f"[grid]\nalpha = [0.1, 0.2]\ndimension = 20\n{GAMP}\n"
    )
    cells = loaded(tmp_path, text).cells()
    assert [(c.problem_label, c.alpha, c.dimension) for c in cells] == [
        ("a", 0.7, 20), ("b", 0.1, 10), ("b", 0.2, 10), ("b", 0.1, 12), ("b", 0.2, 12),
    ]  # fmt: skip


def test_an_axis_that_no_problem_reads_is_refused_and_its_own_can_be_set(tmp_path):
    path = write_suite(
        tmp_path,
        f"[[problems]]\n{MODEL}\n{SOFTMAX}\n{WISHART}\ngrid = {{ alpha = 0.7 }}\n[grid]\ndimension = 20\n{GAMP}\n",
    )
    with pytest.raises(
        SuiteError,
        match=r"grid\.alpha: is not used, because every problem.*problems\[0\]\.grid\.alpha",
    ):
        load_suite(path, overrides=["grid.alpha=[0.2]"])
    for key in ("problems[0].grid.alpha", "problems.0.grid.alpha"):
        assert load_suite(path, overrides=[f"{key}=[0.2]"]).plans[0].alphas == (0.2,)


def test_an_integer_and_a_float_of_the_same_value_are_one_cell(tmp_path):
    keys = []
    for rho in ("1", "1.0"):
        suite = loaded(tmp_path, changed("rho = 0.5", f"rho = {rho}"))
        keys.append([cell.key for cell in suite.cells()])
    assert keys[0] == keys[1]


def test_labels_titles_and_the_file_do_not_enter_the_key(tmp_path):
    one = load_suite(write_suite(tmp_path, SUITE, "one"))
    two = load_suite(
        write_suite(
            tmp_path,
            SUITE.replace('"line"', '"stroke"').replace("A small", "Another"),
            "two",
        )
    )
    assert [c.key for c in one.cells()] == [c.key for c in two.cells()]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("rho = 0.5", "rho = 0.6"),
        ("beta = 1.0", "beta = 2.0"),
        ("[0.1, 0.3]", "[0.11, 0.31]"),
        ("[30]", "[31]"),
        ("seeds     = 2", "seeds = 2\nseed = 1"),
        (GAMP, GAMP + "\ndamping = 0.4"),
        (GAMP, "[run]\ntolerance = 1e-3\n" + GAMP),
        (GAMP, "[run]\ntimeout = 3.0\n" + GAMP),
        (GAMP, '[run]\ndtype = "float32"\n' + GAMP),
        (GAMP, '[run]\nstart = "informed"\n' + GAMP),
        (GAMP, '[run]\nmetrics = ["mse", "generalization_error_bayes"]\n' + GAMP),
    ],
)
def test_whatever_can_change_a_result_changes_the_key(tmp_path, old, new):
    before = {
        c.key for c in load_suite(write_suite(tmp_path, ATTENTION, "before")).cells()
    }
    after = {
        c.key
        for c in load_suite(write_suite(tmp_path, changed(old, new), "after")).cells()
    }
    assert not before & after


def test_the_backend_and_the_version_enter_the_key(tmp_path, monkeypatch):
    from smimbench_attention.algorithms.gamp import Gamp

    path = write_suite(tmp_path, ATTENTION)
    keys = {c.key for c in load_suite(path).cells()}
    assert not keys & {c.key for c in load_suite(path).cells("cupy")}
    monkeypatch.setattr(Gamp, "version", Gamp.version + 1)
    assert not keys & {c.key for c in load_suite(path).cells()}


def test_what_only_reports_does_not_change_the_key(tmp_path):
    before = [c.key for c in loaded(tmp_path, ATTENTION).cells()]
    for own in ('metrics = ["mse"]', 'metrics = ["overlap", "mse"]', "target = 0.1"):
        text = f"{ATTENTION}[run]\n{own}\n"
        assert before == [c.key for c in loaded(tmp_path, text).cells()]


def test_a_cell_is_plain_data_and_rebuilds_itself(tmp_path):
    for cell in loaded(tmp_path, ATTENTION).cells():
        assert canonical_json(
            json.loads(canonical_json(cell.identity()))
        ) == canonical_json(cell.identity())
        problem, algorithm = cell.rebuild()
        assert problem.prior.rho == 0.5
        assert problem.spec == cell.problem
        assert algorithm.name == "gamp"


def test_a_cell_of_a_third_party_rebuilds_from_its_own_package(tmp_path):
    plugin = tmp_path / "mine.py"
    plugin.write_text(CHANNEL.replace('"twice"', '"linear"'))
    text = SUITE.replace(
        'name = "linear", noise = 0.2', 'name = "mine:linear", gain = 3.0'
    )
    with using(Registry([str(plugin)])):
        cell = loaded(tmp_path, text).cells()[0]
        problem, _ = cell.rebuild()
    assert cell.problem["channel"]["distribution"] == "mine"
    assert problem.channel.gain == 3.0


@pytest.mark.parametrize(
    ("override", "read", "value"),
    [
        ("problem.prior.rho=0.2", lambda s: s.plans[0].problem.prior.rho, 0.2),
        ("grid.alpha=[0.4]", lambda s: s.plans[0].alphas, (0.4,)),
        ("grid.seeds=5", lambda s: s.seeds, 5),
        ("algorithms.gamp.damping=0.7", lambda s: s.algorithms[0].spec["damping"], 0.7),
        ("algorithms.0.damping=0.7", lambda s: s.algorithms[0].spec["damping"], 0.7),
        ('run.start="informed"', lambda s: s.run.start, "informed"),
        ("run.timeout=2.5", lambda s: s.run.timeout, 2.5),
        ("suite.title=A new title", lambda s: s.title, "A new title"),
    ],
)
def test_set_reaches_every_key(tmp_path, override, read, value):
    assert read(loaded(tmp_path, ATTENTION, [override])) == value


def test_set_reaches_into_a_part_that_is_only_a_name(tmp_path):
    text = changed(SOFTMAX, 'channel = "softmax"')
    assert (
        loaded(tmp_path, text, ["problem.channel.beta=3.0"])
        .plans[0]
        .problem.channel.beta
        == 3.0
    )


@pytest.mark.parametrize(
    ("conditions", "count"),
    [
        (["algorithm=gamp"], 4),
        (["algorithm=gamp", "algorithm=adam"], 8),
        (["algorithm=gamp", "alpha=0.5"], 2),
        (["seed=1"], 4),
        (["seed=1", "seed=0", "alpha=1"], 4),
        (["dimension=30"], 8),
        (["problem=lin"], 8),
        (["algorithm=gamp", "seed=0", "problem=line"], 2),
    ],
)
def test_only_runs_a_part(tmp_path, conditions, count):
    assert len(load_suite(write_suite(tmp_path), only=conditions).cells()) == count


def test_pairs_of_numbers_are_lists_in_a_suite(tmp_path):
    text = (
        changed('"softmax", beta = 1.0', '"hardmax"')
        + '[[algorithms]]\nname = "adam"\nsurrogate_beta = [1, 8.0]\n'
    )
    cell = loaded(tmp_path, text).cells()[-1]
    assert cell.algorithm["surrogate_beta"] == [1.0, 8.0]


def test_every_shipped_suite_is_sound_and_says_what_it_is():
    suites = shipped_suites()
    assert "quickstart" in suites
    for name, path in suites.items():
        suite = load_suite(name)
        assert suite.file == str(path)
        assert suite.title != name
        assert suite.description
        assert "arXiv:" in suite.reference or "derived" in suite.reference


def test_replicates_may_differ_from_dimension_to_dimension(tmp_path):
    """Large instances cost more and fluctuate less; a problem may have numbers of its own."""
    text = SUITE.replace("[30]", "[30, 40, 50]").replace(
        "seeds     = 2", "seeds     = [4, 2, 1]"
    )
    suite = loaded(tmp_path, text)
    count = Counter(
        cell.dimension for cell in suite.cells() if cell.algorithm_label == "gamp"
    )
    assert count == {30: 8, 40: 4, 50: 2}  # two sample ratios each
    assert suite.seeds == 4
    assert {cell.key for cell in suite.cells()} <= {
        cell.key for cell in loaded(tmp_path, text.replace("[4, 2, 1]", "4")).cells()
    }
    own = text.replace("[grid]", "grid = { seeds = 3 }\n\n[grid]").replace(
        "seeds     = [4, 2, 1]", ""
    )
    assert len(loaded(tmp_path, own).cells()) == 3 * 3 * 2 * 2
    with pytest.raises(SuiteError, match=r"grid.seeds.*2 numbers for 3 dimensions"):
        loaded(tmp_path, text.replace("[4, 2, 1]", "[4, 2]"))
    with pytest.raises(SuiteError, match=r"grid.seeds.*is not used"):
        loaded(tmp_path, text.replace("[grid]", "grid = { seeds = 3 }\n\n[grid]"))


def test_an_algorithm_is_appended_and_set_reaches_into_it(tmp_path):
    path = write_suite(tmp_path)
    plain = load_suite(path)
    more = load_suite(path, ["algorithms+=sgd", "algorithms.sgd.steps=7"])
    assert more.algorithms[:-1] == plain.algorithms
    assert (more.algorithms[-1].label, more.algorithms[-1].spec["steps"]) == ("sgd", 7)
    assert {cell.key for cell in plain.cells()} < {cell.key for cell in more.cells()}
    table = load_suite(
        path, ['algorithms+={name = "adam", label = "short", steps = 3}']
    )
    assert (table.algorithms[-1].label, table.algorithms[-1].spec["steps"]) == (
        "short",
        3,
    )
    assert load_suite(
        path, ["run.metrics=['mse']", "run.metrics+=overlap"]
    ).run.metrics == ("mse", "overlap")


def test_an_algorithm_is_skipped_where_its_model_is_not(tmp_path):
    """One that works for some problems of a suite may stand there; one that works for none may not."""
    both = """
[[problems]]
label   = "matrices"
model   = { name = "attention-indexed", tokens = 2 }
channel = { name = "linear", noise = 0.3 }
prior   = { name = "wishart", rho = 0.5 }
grid    = { dimension = [8], alpha = [0.3] }

[[problems]]
label   = "vectors"
model   = { name = "sequence-multi-index", tokens = 1 }
channel = { name = "linear", noise = 0.3 }
prior   = { name = "gaussian" }
grid    = { dimension = [20], alpha = [0.7] }

[grid]
seeds = 1

[[algorithms]]
name = "nuclear"
regularisation = 0.5
"""
    file = tmp_path / "both.toml"
    file.write_text(both)
    rows = smimbench.run(load_suite(file), results=tmp_path)
    found = {row["problem"]: row for row in rows if row["metric"] == "mse"}
    assert found["matrices"]["status_counts"] == {"ok": 1}
    assert found["vectors"]["status_counts"] == {"skipped": 1}
    words = "algorithm 'nuclear' works for attention-indexed, not for 'sequence-multi-index'"
    assert words in found["vectors"]["reasons"][0]
    assert found["vectors"]["no_theory"] == words
    alone = both[: both.index("[[problems]]")] + both[both.rindex("[[problems]]") :]
    file.write_text(alone)
    with pytest.raises(
        SuiteError, match="works for attention-indexed, not for 'sequence-multi-index'"
    ):
        load_suite(file)


def test_published_values_go_with_the_problem_they_were_made_for(tmp_path):
    file = write_suite(tmp_path, REFERENCE)
    remark = "published values that belong to no problem of this suite are left out: 'published' of "
    for overrides, counts, remarks in (
        ((), [0], 1),
        (("problem.prior.rho=0.7",), [1], 0),
        (("problem.prior.rho=[0.3, 0.7]",), [0, 1], 0),
        (
            ("problem.prior.rho=0.7", "problem.channel.beta=1.0", "grid.alpha=[0.2]"),
            [1],
            0,
        ),
        (("problem.prior.rho=0.7", "problem.model.tokens=3"), [0], 1),
    ):
        suite = load_suite(file, overrides)
        assert [len(plan.references) for plan in suite.plans] == counts
        assert (
            list(suite.remarks)
            == [f"{remark}attention-indexed(tokens=2) softmax wishart(rho=0.7)"]
            * remarks
        )


def test_a_stored_optimum_goes_with_its_problem_and_changes_no_cell(tmp_path):
    plain, file = loaded(tmp_path, ATTENTION), write_suite(tmp_path, OPTIMUM)
    suite = load_suite(file)
    (optimum,) = suite.plans[0].optima
    assert optimum.mse == ((0.6,), (0.4,))
    assert not suite.remarks
    assert [cell.key for cell in suite.cells()] == [cell.key for cell in plain.cells()]
    other_grid = load_suite(file, ["grid.dimension=[20, 40]", "grid.alpha=[0.2]"])
    assert len(other_grid.plans[0].optima) == 1
    assert not other_grid.remarks
    other_problem = load_suite(file, ["problem.prior.rho=0.7"])
    assert not other_problem.plans[0].optima
    assert other_problem.remarks == (
        "stored optima that belong to no problem of this suite are left out: "
        "attention-indexed(tokens=2) softmax wishart(rho=0.5)",
    )


@pytest.mark.parametrize(
    ("name", "override"),
    [
        ("aim-softmax", "problems[0].prior.rho=0.3"),
        ("aim-hardmax", "problem.prior.rho=0.3"),
    ],
)
def test_shipped_references_disappear_where_a_parameter_differs(
    tmp_path, capsys, name, override
):
    assert any(plan.references for plan in load_suite(name).plans)
    suite = load_suite(name, [override])
    assert not any(plan.references for plan in suite.plans)
    assert len(suite.remarks) == 1
    _, _, err = call(capsys, "show", name, "--set", override, "--results", tmp_path)
    assert (
        err.count(
            "published values that belong to no problem of this suite are left out"
        )
        == 1
    )


def test_a_long_name_is_not_repeated_whole(tmp_path):
    for text in (f'extends = "{"x" * 5000}"', f'extends = "{"x" * 5000}.toml"'):
        with pytest.raises(SuiteError) as error:
            loaded(tmp_path, text)
        assert len(str(error.value)) < 700 + len(str(tmp_path))
