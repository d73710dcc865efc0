"""A posterior mean that is wrong by 2%, found by the extrapolated Nishimori ratio."""

from __future__ import annotations

import pytest
from smimbench_channels.sequence.linear import SequenceLinear

import smimbench
from tests.helpers import suite_text, write_suite

LINEAR = """label   = "p"
model   = { name = "sequence-multi-index", tokens = 2 }
channel = { name = "linear", noise = 0.1 }
prior   = { name = "gaussian" }"""


@pytest.mark.slow
def test_two_per_cent_are_seen(tmp_path, monkeypatch):
    """Labels and theory stay right. The right posterior lands on theory within three errors, the wrong one far away."""
    channel = SequenceLinear
    text = (
        suite_text(LINEAR, [1.5], 0, 0, 'name = "gamp"')
        .replace("[0]", "[100, 200, 400]")
        .replace("seeds     = 0", "seeds = [24, 20, 16]")
    )
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
