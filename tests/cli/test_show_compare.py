"""``compare`` sees an algorithm that became worse, whatever code made it, however it is installed and stored."""

import json
import shutil

import pytest

from smimbench.registry.registry import set_registry
from tests.helpers import (
    LINE,
    call,
    importable,
    install_package,
    suite_text,
    write_suite,
)

ALGORITHM = '''
import numpy as np
import smimbench


def blurred(data, *, penalty: float = 0.5):
    """Least squares with a penalty, blurred by noise that is drawn once."""
    n, tokens, D = data.inputs.shape
    x, y = data.inputs.reshape(n * tokens, D), data.labels.reshape(n * tokens)
    w = np.linalg.solve(x.T @ x + penalty * D * np.eye(D), np.sqrt(D) * x.T @ y)
    noise = np.random.default_rng(7).standard_normal(D)
    return (w + BLUR * noise)[None]


blurred.version = VERSION
blurred.capabilities = smimbench.Capabilities(models=("sequence-multi-index",), backends=("numpy",))


@smimbench.hookimpl
def smimbench_register_algorithms(register):
    register(blurred)
'''
BLURS = {"before": 0.2, "equal": 0.20, "worse": 0.5, "better": 0.0, "raised": 0.5}
FORMS = ("folder", "packed")
KINDS = ("installed", "file")


def code(variant):
    """The algorithm in one of its versions; ``equal`` has other code with the same numbers."""
    text = ALGORITHM.replace("BLUR", str(BLURS[variant])).replace(
        "VERSION", "2" if variant == "raised" else "1"
    )
    return text.replace("[None]", "[None, :]") if variant == "equal" else text


SUITE = suite_text(
    LINE, [1.0, 2.0], 40, 8, 'name = "gamp"', 'name = "blurred"'
).replace("\n[problem]", '\n[run]\nmetrics = ["mse", "cosine"]\n\n[problem]')


class Setup:
    """A suite, and its algorithm as a plugin of one kind."""

    def __init__(self, folder, kind):
        self.folder, self.kind = folder, kind
        folder.mkdir()
        self.suite = write_suite(folder, SUITE)

    def use(self, variant):
        """Install a variant of the algorithm in place of the last one."""
        if self.kind == "file":
            shutil.rmtree(
                self.folder / "__pycache__", ignore_errors=True
            )  # two edits within a second look the same
            (self.folder / "blurred.py").write_text(code(variant))
        else:
            shutil.rmtree(self.folder / "site", ignore_errors=True)
            install_package(
                self.folder / "site",
                "smimbench-blurred",
                {"blurred_items": code(variant)},
            )

    def call(self, capsys, *arguments, plugins=True):
        """Exit code, output and errors of a command where the plugin is installed (or not)."""
        set_registry(None)
        if self.kind == "file" or not plugins:
            return call(
                capsys,
                *arguments,
                *(("--plugins", self.folder / "blurred.py") if plugins else ()),
            )
        with (
            pytest.MonkeyPatch.context() as patch,
            importable(self.folder / "site", patch),
        ):
            return call(capsys, *arguments)

    def compare(self, capsys, form, variant, *more, **how):
        """Compare a variant with the first one."""
        names = (
            f"{name}.json" if form == "packed" else name for name in ("before", variant)
        )
        return self.call(
            capsys, "compare", *(self.folder / name for name in names), *more, **how
        )


@pytest.fixture(scope="module", params=KINDS)
def setup(request, tmp_path_factory):
    return Setup(tmp_path_factory.mktemp("compare") / request.param, request.param)


def run(setup, capsys, variant, results, *more):
    """Run a variant."""
    setup.use(variant)
    at = (setup.suite, "--results", results, *more)
    code, out, err = setup.call(
        capsys, "run", *at, "--workers", "1", "--no-figure", "--quiet"
    )
    assert code == 0, out + err
    return at


@pytest.fixture
def made(setup, capsys):
    """All variants, run and packed."""
    for variant in BLURS if not (setup.folder / "raised.json").exists() else ():
        at = run(setup, capsys, variant, setup.folder / variant)
        assert (
            setup.call(capsys, "show", *at, "--pack", setup.folder / f"{variant}.json")[
                0
            ]
            == 0
        )
    return setup


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("variant", BLURS)
def test_a_change_is_seen(made, capsys, form, variant):
    code, out, _ = made.compare(capsys, form, variant, "--fail-over", "5", "--json")
    document = json.loads(out)
    rows = {
        (row["algorithm"], row["metric"], row["alpha"]): row for row in document["rows"]
    }
    assert (len(rows), document["missing"]) == (8, 0)
    assert {row["verdict"] for key, row in rows.items() if key[0] == "gamp"} == {
        "unchanged"
    }
    expected = {"before": "unchanged", "equal": "unchanged", "raised": "worse"}.get(
        variant, variant
    )
    assert {row["verdict"] for key, row in rows.items() if key[0] == "blurred"} == {
        expected
    }
    changed = [] if variant == "before" else ["algorithm blurred"]
    assert all(
        row["changed_code"] == (changed if key[0] == "blurred" else [])
        for key, row in rows.items()
    )
    change = rows["blurred", "mse", 1.0]["change_percent"]
    assert (change > 5, change < -5) == (expected == "worse", expected == "better")
    assert (code, document["failing"]) == (
        (1, 4 + 2) if expected == "worse" else (0, 0)
    )


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_the_text_says_what_changed(made, capsys, form):
    code, out, _ = made.compare(capsys, form, "worse", "--fail-over", "5")
    assert code == 1
    assert "code changed: algorithm blurred" in out
    assert "4 of 8 rows are worse by more than 5%" in out
    assert "2 of 2 means over rows are worse by more than 5%" in out
    assert made.compare(capsys, form, "worse")[0] == 0  # only a limit fails
    code, out, _ = made.compare(capsys, form, "better", "--fail-over", "5")
    assert code == 0
    assert "0 of 8 rows are worse by more than 5%" in out


@pytest.mark.slow
def test_one_code_is_compared_where_a_folder_has_records_of_several(
    made, capsys, tmp_path
):
    """``both`` was run with two versions; neither is installed any more."""
    shutil.copytree(made.folder / "before", tmp_path / "both")
    run(made, capsys, "worse", tmp_path / "both")
    made.use("better")
    code, out, _ = made.call(
        capsys,
        "compare",
        made.folder / "before",
        tmp_path / "both",
        "--fail-over",
        "5",
        "--json",
    )
    verdicts = {
        row["verdict"]
        for row in json.loads(out)["rows"]
        if row["algorithm"] == "blurred"
    }
    assert (code, verdicts) == (1, {"worse"})


@pytest.mark.slow
def test_a_row_without_a_counterpart_is_named_and_fails(made, capsys, tmp_path):
    run(made, capsys, "before", tmp_path / "part", "--only", "alpha=1.0")
    complete, part = made.folder / "before", tmp_path / "part"
    for sides in ((complete, part), (part, complete)):
        code, out, _ = made.call(capsys, "compare", *sides, "--fail-over", "5")
        assert code == 1
        line = next(line for line in out.splitlines() if "missing in" in line)
        assert line.startswith(f"4 rows of {complete} missing in {part}: line: ")
        assert "blurred at alpha 2, D = 40, cosine" in line
        assert "0 of 4 rows are worse by more than 5%" in out
        assert made.call(capsys, "compare", *sides)[0] == 0


@pytest.mark.slow
def test_rows_of_a_pack_whose_plugin_is_not_installed_are_not_passed_over(made, capsys):
    code, out, err = made.compare(
        capsys, "packed", "worse", "--fail-over", "5", plugins=False
    )
    assert code == 1
    assert "0 of 4 rows are worse by more than 5%" in out
    for name in ("before.json", "worse.json"):
        line = next(line for line in err.splitlines() if name in line)
        assert "unknown algorithm 'blurred'" in line
        assert line.endswith("; not compared")


@pytest.mark.slow
def test_it_is_seen_where_the_plugin_is_not_installed(made, capsys):
    code, out, err = made.compare(
        capsys, "folder", "worse", "--fail-over", "5", plugins=False
    )
    assert code == 1
    assert "4 of 8 rows are worse by more than 5%" in out
    omissions = [line for line in err.splitlines() if "left out" in line]
    assert omissions
    assert all("showing the table of the run on" in line for line in omissions)
