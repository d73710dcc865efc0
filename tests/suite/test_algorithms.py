"""Lists as parameters of an algorithm: which are axes, and how their settings are named."""

import itertools
import json

import pytest

from smimbench.suite import SuiteError
from smimbench.suite.reader import load_suite
from tests.helpers import LINE, SUITE, loaded, output, suite_text, write_suite


def written(tmp_path, table):
    """A suite with one more algorithm."""
    return loaded(tmp_path, f"{SUITE}\n[[algorithms]]\n{table}\n")


def more(suite):
    """Labels of the settings of the added algorithm."""
    return [algorithm.label for algorithm in suite.algorithms[2:]]


AXES = {
    'name = "sgd"\nsteps = 3\nlearning_rate = [0.1, 0.3, 1.0]':
        ["sgd, learning_rate 0.1", "sgd, learning_rate 0.3", "sgd, learning_rate 1"],
    'name = "sgd"\nsteps = 3\nlearning_rate = [0.1]': ["sgd, learning_rate 0.1"],
    'name = "sgd"\nlabel = "s"\nsteps = 3\nschedule = ["cosine", "constant"]': ["s, schedule cosine", "s, schedule constant"],
    # where the algorithm takes a list, a list is its value, and a list of lists an axis
    'name = "sgd"\nsteps = 3\nsurrogate_beta = [1, 20]': ["sgd"],
    'name = "sgd"\nsteps = 3\nsurrogate_beta = [[1, 20], [2, 9]]': ["sgd, surrogate_beta [1, 20]", "sgd, surrogate_beta [2, 9]"],
    'name = "sgd"\nsteps = [3, 9]\nspherical = [true, false]':
        [f"sgd, steps {k}, spherical {s}" for k, s in itertools.product((3, 9), ("true", "false"))],
    # an algorithm within another one
    'name = "averaged"\nstudents = [2, 3]\nof = { name = "sgd", steps = 3, learning_rate = [0.1, 0.3] }':
        [f"averaged, students {k}, learning_rate {r}" for k in (2, 3) for r in (0.1, 0.3)],
}  # fmt: skip


@pytest.mark.parametrize("table", AXES)
def test_a_list_is_an_axis_where_the_algorithm_takes_none(tmp_path, table):
    suite = written(tmp_path, table)
    assert more(suite) == AXES[table]
    assert len(suite.cells()) == (2 + len(AXES[table])) * 2 * 2
    assert len({cell.key for cell in suite.cells()}) == len(suite.cells())
    for cell in suite.cells():
        cell.rebuild()


def test_a_function_without_annotations_has_axes_too(tmp_path, capsys):
    plugin = tmp_path / "plugin.py"
    plugin.write_text(
        "from smimbench import hookimpl\n\n"
        "def nothing(data, *, rate=0.1, powers=(1, 2), note=None):\n"
        '    """Estimates 0."""\n'
        "    return 0 * data.inputs[:1, 0]\n\n"
        "@hookimpl\n"
        "def smimbench_register_algorithms(register):\n    register(nothing)\n",
        encoding="utf-8",
    )
    table = 'name = "nothing"\nrate = [0.1, 0.2]\npowers = [1, 3]\nnote = [1, 2]'
    path = write_suite(tmp_path, f"{SUITE}\n[[algorithms]]\n{table}\n")
    how = (
        "--plugins",
        plugin,
        "--only",
        "algorithm=nothing",
        "--results",
        tmp_path / "results",
        "--no-figure",
        "--json",
    )
    out = output(capsys, "run", path, *how)
    names = {row["algorithm"] for row in json.loads(out)["rows"]}
    assert names == {"nothing, rate 0.1", "nothing, rate 0.2"}


def test_the_words_that_pick_settings(tmp_path):
    path = write_suite(
        tmp_path,
        f'{SUITE}\n[[algorithms]]\nname = "adam"\nlabel = "a"\nsteps = 3\nlearning_rate = [0.1, 0.3]\n',
    )
    picked = {
        word: {
            cell.algorithm_label
            for cell in load_suite(path, only=[f"algorithm={word}"]).cells()
        }
        for word in ("a", "adam", "a, learning_rate 0.3")
    }
    both = {"a, learning_rate 0.1", "a, learning_rate 0.3"}
    assert picked == {
        "a": both,
        "adam": {"adam"},
        "a, learning_rate 0.3": {"a, learning_rate 0.3"},
    }
    assert (
        more(load_suite(path, ["algorithms.a.learning_rate=[0.1, 0.2, 0.4]"]))[2]
        == "a, learning_rate 0.4"
    )


BAD = {
    "learning_rate = [0.1, 0.1]": ("algorithms[2].learning_rate", "listed twice"),
    "learning_rate = []": ("algorithms[2].learning_rate", "must list at least one value"),
    "learning_rate = [0.1, 'x']": ("algorithms[2].learning_rate", "must be a"),
    "learning_rate = [0.1, -1.0]": ("algorithms[2].learning_rate", "-1.0"),
    "rate = [0.1, 1.0]": ("algorithms[2].rate", "unknown key"),
    "surrogate_beta = [1, 'x']": ("algorithms[2].surrogate_beta[1]", "must be a"),
    f"learning_rate = {[k + 1 for k in range(400)]}\ndecay_steps = {[k + 1 for k in range(400)]}": ("grid", "640,008 cells"),
}  # fmt: skip


@pytest.mark.parametrize("line", BAD)
def test_a_mistake_in_a_list_is_one_line(tmp_path, line):
    key, words = BAD[line]
    with pytest.raises(SuiteError) as error:
        written(tmp_path, f'name = "sgd"\nlabel = "s"\nsteps = 3\n{line}')
    assert f": {key}: " in str(error.value)
    assert words in str(error.value)


def test_two_entries_with_lists_need_two_labels(tmp_path):
    table = '[[algorithms]]\nname = "sgd"\nsteps = 3\n'
    with pytest.raises(
        SuiteError, match=r"algorithms\[1\]\.label: 'sgd' is used twice"
    ):
        loaded(
            tmp_path,
            f"{suite_text(LINE, [0.5], 20, 2)}{table}learning_rate = [0.1, 0.2]\n{table}momentum = [0.1, 0.2]\n",
        )


def test_settings_that_another_entry_has_too_are_refused(tmp_path):
    with pytest.raises(SuiteError, match="is the same algorithm as"):
        written(tmp_path, 'name = "adam"\nlabel = "b"\nsteps = [5, 6]')
