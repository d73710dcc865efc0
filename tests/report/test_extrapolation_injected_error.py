"""A posterior mean that is wrong by 2%, found by the extrapolated Nishimori ratio."""

import pytest
from smimbench_attention.channels.linear import AttentionLinear, SequenceLinear

import smimbench
from tests.helpers import suite_text, write_suite

PROBLEM = """label   = "p"
model   = {{ name = "{}", tokens = 2 }}
channel = {{ name = "linear", noise = 0.1 }}
prior   = {}"""

CASES = {
    "one direction": (
        SequenceLinear,
        PROBLEM.format("sequence-multi-index", '{ name = "gaussian" }'),
        (1.5, [100, 200, 400], [24, 20, 16]),
    ),
    # One run tells the ratio to sqrt(2 V / q) / d: at a small error V small sizes are enough.
    "attention": (
        AttentionLinear,
        PROBLEM.format("attention-indexed", '{ name = "wishart", rho = 0.5 }'),
        (0.2, [30, 60, 120], [16, 14, 12]),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_two_per_cent_are_seen(tmp_path, monkeypatch, case):
    """Labels and theory stay right. The right posterior lands on theory within three errors, the wrong one far away."""
    channel, problem, (alpha, sizes, seeds) = CASES[case]
    text = suite_text(problem, [alpha], 0, 0, 'name = "gamp"')
    text = text.replace("[0]", str(sizes)).replace("seeds     = 0", f"seeds = {seeds}")
    path = write_suite(tmp_path, text + '\n[run]\nmetrics = ["mse", "nishimori"]\n')

    def scores(results):  # in this process, where the channel is changed
        rows = smimbench.run(path, results=tmp_path / results, workers=1)
        return {entry["metric"]: entry["z"] for entry in smimbench.extrapolate(rows)}

    right = scores("right")
    assert all(abs(z) < 3 for z in right.values()), right
    exact = channel.posterior

    def posterior(self, y, omega, V, **options):
        found = exact(self, y, omega, V, **options)
        return found._replace(mean=1.02 * found.mean)

    monkeypatch.setattr(channel, "posterior", posterior)
    wrong = scores("wrong")
    assert wrong["nishimori"] < -4, (right, wrong)
    assert abs(wrong["mse"]) < 3, wrong  # stationary at the posterior mean: blind to it
