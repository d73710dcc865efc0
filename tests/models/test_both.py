"""What both models have in common, and low or extensive rank with all that depends on it."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from smimbench_attention.models.attention_indexed import AttentionIndexed
from smimbench_attention.models.sequence_multi_index import SequenceMultiIndex

from smimbench.backend.arrays import to_host
from smimbench.interfaces import ParameterError
from tests.conftest import assert_placed

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


def signals(rng, model, *shape):
    """Random signals of the last dimension; matrices are symmetric."""
    plain = rng.standard_normal((*shape[:-1], *model.signal_shape(1, shape[-1])[1:]))
    return (
        plain
        if model.rank == "low"
        else (plain + np.swapaxes(plain, -1, -2)) / math.sqrt(shape[-1])
    )


BOTH = pytest.mark.parametrize(
    "model", [model for model, *_ in MODELS], ids=lambda model: model.rank
)


@BOTH
def test_several_students_are_the_students_one_by_one(model, backend, rng):
    sites = model.sites
    x = rng.standard_normal((9, 2, 6))
    S = signals(rng, model, 4, 5, 3, 6)
    g = rng.standard_normal((4, 5, 9, 3, sites))
    z = model.forward(backend.asarray(x), backend.asarray(S))
    back = model.adjoint(backend.asarray(x), backend.asarray(g))
    assert_placed(z, backend, (4, 5, 9, 3, sites))
    assert_placed(back, backend, S.shape)
    for place in np.ndindex(4, 5):
        assert_allclose(to_host(z)[place], model.forward(x, S[place]), atol=1e-12)
        assert_allclose(to_host(back)[place], model.adjoint(x, g[place]), atol=1e-12)


@BOTH
def test_products_and_errors_are_sums_over_entries(model, backend, rng):
    A = signals(rng, model, 2, 7)
    B = signals(rng, model, 2, 7)
    one, other = (a.reshape(2, -1) for a in (A, B))
    a = backend.asarray(A)
    b = backend.asarray(B)
    for found, expected in (
        (model.inner(a, b), one @ other.T / 7),
        (model.squared_error(a, b), np.sum((one - other) ** 2, axis=1) / 7),
    ):
        assert_placed(found, backend, expected.shape)
        assert_allclose(to_host(found), expected, rtol=1e-12)


@BOTH
def test_no_samples(model, rng):
    S = signals(rng, model, 1, 4)
    assert model.forward(np.empty((0, 2, 4)), S).shape == (0, 1, model.sites)
    assert_array_equal(
        model.adjoint(np.empty((0, 2, 4)), np.empty((0, 1, model.sites))), 0 * S
    )


@BOTH
def test_bad_shapes_and_numbers(model, rng):
    S = signals(rng, model, 1, 5)
    with pytest.raises(
        ValueError, match=r"inputs must have shape \(n, 2, 5\), got \(3, 3, 5\)"
    ):
        model.forward(np.ones((3, 3, 5)), S)
    with pytest.raises(ValueError, match="inputs must have shape"):
        model.forward(np.ones((3, 2, 4)), S)
    for g in ((4, 1, model.sites), (3, 1, 4)):
        with pytest.raises(
            ValueError, match=rf"g must have shape \(..., 3, P, {model.sites}\)"
        ):
            model.adjoint(np.ones((3, 2, 5)), np.ones(g))
    with pytest.raises(ValueError, match="symmetry must be one of"):
        model.align(S, S, "mirror")
    for alpha in (-0.1, float("nan"), float("inf")):
        with pytest.raises(ParameterError, match=r"^alpha: "):
            model.sample_count(alpha, 10)
