"""Attention-indexed models without symmetry: latents, adjoint and factors against plain sums, and why there is no diagonal."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from smimbench_attention.models.attention_indexed import AttentionIndexed
from smimbench_attention.priors.bilinear import Bilinear

from smimbench.interfaces import ParameterError
from smimbench.numerics import site_pairs


@pytest.mark.parametrize("T", [2, 3, 5])
def test_latents_adjoint_and_factor_against_plain_sums(T):
    model = AttentionIndexed(tokens=T, symmetric=False)
    rng = np.random.default_rng(T)
    n = 7
    d = 6
    x = rng.standard_normal((n, T, d))
    factor = Bilinear(0.5).factor.draw(rng, 2, d)
    factor = np.stack([factor, 0.3 * factor[::-1]])  # two students
    half = factor.shape[-2] // 2
    S = factor[..., :half, :] @ factor[..., half:, :].swapaxes(-1, -2)
    z = model.forward(x, S)
    pairs = [(a, b) for a in range(T) for b in range(T) if a != b]
    assert site_pairs(T, False) == tuple(pairs)
    expected = np.stack(
        [np.einsum("ni,spij,nj->snp", x[:, a], S, x[:, b]) for a, b in pairs], axis=-1
    ) / np.sqrt(d)
    assert_allclose(z, expected, rtol=1e-12, atol=1e-12)
    g = rng.standard_normal(z.shape)
    back = (
        sum(
            np.einsum("snp,ni,nj->spij", g[..., c], x[:, a], x[:, b])
            for c, (a, b) in enumerate(pairs)
        )
        / d**1.5
    )
    assert_allclose(model.adjoint(x, g), back, rtol=1e-11, atol=1e-12)
    latents, pull = model.forward_gram(x, factor)
    assert_allclose(latents, expected, rtol=1e-12, atol=1e-12)
    dS = back / model.adjoint_scale(d)
    gradient = np.concatenate(
        [dS @ factor[..., half:, :], dS.swapaxes(-1, -2) @ factor[..., :half, :]],
        axis=-2,
    )
    assert_allclose(pull(g), gradient, rtol=1e-11, atol=1e-11)
    assert (model.kappa, model.sites) == (1.0, T * (T - 1))


def test_forms_of_different_tokens_see_all_directions_alike_those_of_one_token_do_not():
    """Information of a sample along an error E: equal for symmetric and antisymmetric E, which the diagonal would break."""
    rng = np.random.default_rng(0)
    d = 30
    x = rng.standard_normal((20_000, 2, d))
    E = rng.standard_normal((d, d))
    for sign in (1, -1):
        error = E + sign * E.T
        size = np.sum(error**2) / d
        z = AttentionIndexed(tokens=2, symmetric=False).forward(x, error[None])
        assert np.mean(z**2) / size == pytest.approx(1, abs=0.05)
        diagonal = (
            np.einsum("ni,ij,nj->n", x[:, 0], error, x[:, 0]) - np.trace(error)
        ) / np.sqrt(d)
        assert np.mean(diagonal**2) / size == pytest.approx(1 + sign, abs=0.15)


def test_one_token_has_no_pairs():
    with pytest.raises(ParameterError, match="at least 2 with symmetric = false"):
        AttentionIndexed(tokens=1, symmetric=False)
