"""What a model says about itself: low or extensive rank, and all that depends on it."""

import pytest
from smimbench_models.attention_indexed import AttentionIndexed
from smimbench_models.sequence_multi_index import SequenceMultiIndex

MODELS = [(SequenceMultiIndex(2), "low", 1), (AttentionIndexed(2), "extensive", 2)]


@pytest.mark.parametrize(("model", "rank", "power"), MODELS)
def test_rank_is_that_of_signal_and_sample_ratio(model, rank, power):
    assert model.rank == rank
    assert model.kappa == power
    assert model.signal_shape(3, 50) == (3,) + (50,) * power
    assert model.sample_count(0.2, 50) == round(0.2 * 50**power)
    assert model.sample_ratio(10, 50) == 10 / 50**power


@pytest.mark.parametrize(("model", "rank", "power"), MODELS)
def test_denoising_costs_more_than_reading_the_signal(model, rank, power):
    small, large = (model.cost(1, D, 1).denoiser for D in (100, 200))
    assert large / small == 2 ** (1 if rank == "low" else 3)
    assert model.cost(1, 100, 2).denoiser > small > 100**power
