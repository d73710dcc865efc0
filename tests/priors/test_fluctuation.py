"""The finite-size fluctuation of a signal's size, against direct simulation."""

import numpy as np
import pytest
from smimbench_attention.priors.gaussian import Gaussian
from smimbench_attention.priors.wishart import Wishart

from smimbench.derive import why_theory_only


@pytest.mark.parametrize(
    ("prior", "dimension"),
    [(Wishart(0.5), 20), (Wishart(2.0), 16), (Wishart(0.05), 40), (Gaussian(), 50)],
)
def test_relative_standard_deviation(prior, dimension, rng):
    size = prior.law.fluctuation
    fluctuation = (2 / dimension) ** 0.5 if size is None else size(dimension)
    draws = np.array(
        [np.sum(prior.sample(rng, 1, dimension) ** 2) for _ in range(3000)]
    )
    # Heavy tails make the spread of the spread about 3% here; 12% is four of them.
    assert draws.std() / draws.mean() == pytest.approx(fluctuation, rel=0.12)


def test_small_width_limit_cannot_be_drawn():
    assert why_theory_only(Wishart(0.5), 1) is None
    assert "must be > 0 to run" in why_theory_only(Wishart(0.0), 1)
