"""Numbers that no memory or no time would do for are refused before either is spent."""

import resource
import time

import pytest

from tests.helpers import ATTENTION, SUITE, call_outside, refusal, write_suite

TOO_LARGE = {
    "tokens": (ATTENTION, "problem.model.tokens=3000", "problem.model.tokens: must be at most 512"),
    "more tokens": (ATTENTION, "problem.model.tokens=100000", "problem.model.tokens: must be at most 512"),
    "tokens of sequences": (SUITE, "problem.model.tokens=10000", "problem.model.tokens: must be at most 512"),
    "samples": (
        ATTENTION.replace('"softmax", beta = 1.0', '"hardmax", samples = 1000000000000').replace("tokens = 2", "tokens = 3" ),
        "grid.seeds=1", "problem.channel.samples: must be at most 16777216"),
    "rho": (ATTENTION, "problem.prior.rho=1e30", "problem.prior.rho: must be 0 or between"),
    "a tiny rho": (ATTENTION, "problem.prior.rho=1e-30", "problem.prior.rho: must be 0 or between"),
    "an endless rho": (ATTENTION, "problem.prior.rho=1e300", "problem.prior.rho: must be 0 or between"),
    "beta": (ATTENTION.replace("beta = 1.0", "beta = 30.0, layers = 2"), "grid.seeds=1",
        "problem.channel.beta: must be between 1e-09 and 8"),
    "noise": (SUITE, "problem.channel.noise=1e300", "problem.channel.noise: must be 0 or between"),
    "dimension": (SUITE, "grid.dimension=1000000000000", "grid.dimension[0]: must be at most 100000000"),
    "memory": (SUITE, "grid.dimension=10000000", "grid: a single run needs up to"),
    "alpha": (SUITE, "grid.alpha=1e300", "grid.alpha[0]: must be at most 1000000000"),
    "samples of all": (SUITE, "grid.alpha=1e9", "grid: a single run needs up to"),
    "components": (SUITE, "problem.channel.components=100000", "problem.channel.components: must be at most 64"),
    "seeds": (SUITE, "grid.seeds=1000000000000", "above grid.max_cells"),
}  # fmt: skip


@pytest.mark.parametrize("name", TOO_LARGE)
def test_what_is_too_large_is_refused_at_once(tmp_path, capsys, name):
    text, setting, message = TOO_LARGE[name]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.process_time()
    for options in (("--dry-run",), ()):
        err = refusal(
            capsys,
            "run",
            write_suite(tmp_path, text),
            "--results",
            tmp_path / "r",
            "--set",
            setting,
            *options,
        )
        assert message in err
    assert (
        time.process_time() - begin < 20
    )  # it takes a tenth; what it must not do would take hours
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000


@pytest.mark.slow
def test_a_signal_that_is_too_large_fails_its_cell_before_it_is_drawn(tmp_path):
    suite = write_suite(
        tmp_path,
        ATTENTION.replace("seeds     = 2", "seeds = 1").replace("[0.1, 0.3]", "[0.1]"),
    )
    done = call_outside(
        "run",
        suite,
        "--results",
        tmp_path / "r",
        "--set",
        "problem.prior.rho=1e6",
        "--no-figure",
        "--json",
    )
    assert done.returncode == 1
    assert (
        "rho: is too large: it needs factors with 9.0e+08 entries at D = 30"
        in done.stdout
    )
