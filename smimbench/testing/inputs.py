"""Checks of inputs: shapes, and draws against the covariance and Gaussian distribution that they declare."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from smimbench.interfaces import Array, Inputs, ParameterError
from smimbench.numerics.linalg import outer_product
from smimbench.problem.instance import fill_with_tokens, unscaled_tokens
from smimbench.testing.context import CheckContext
from smimbench.testing.core import (
    Call,
    CheckFailed,
    CheckSkipped,
    Draw,
    expect_array,
    expect_mean,
    published,
)

inputs_check = partial(published, ("inputs",), cases=lambda context: [(context.item,)])


def token_shape(item: Inputs) -> tuple[int, int]:
    """Number of tokens T per sample and dimension D that checks draw: the item's own, or 3 and 8."""
    return item.shape[0] or 3, item.shape[1] or 8


def tokens(
    item: Inputs, n: int, rng: np.random.Generator, dtype: str = "float64"
) -> Array:
    """Draw tokens X (n, T, D) of n samples from the inputs ``item`` with ``rng``, in this data type, as the engine does."""
    X = np.empty((n, *token_shape(item)), dtype=dtype)
    fill_with_tokens(X, item, rng)
    return X


def calls(context: CheckContext) -> Iterator[Call]:
    """Yield calls of all methods of inputs that take arrays. ``context`` holds the inputs under test."""
    item = context.item
    if item.transform is not None:
        noise_array = context.rng(1).standard_normal((6, *token_shape(item)))
        yield Call("transform", item.transform, (noise_array,))


def draws(context: CheckContext) -> Iterator[Draw]:
    """Yield the draw of tokens, whose randomness is checked. ``context`` holds the inputs under test."""
    yield Draw("tokens", partial(tokens, context.item, 6), depends_on_seed=True)


@inputs_check(
    "A method of the inputs returns arrays of the wrong shape.", required=True
)
def shapes(context: CheckContext, item: Inputs) -> None:
    """Check shapes of tokens (n, T, D), token covariance C (T, T) and feature variances v (D,), and that C and v are
    positive. ``context`` holds the inputs under test (``item``).
    """
    T, D = token_shape(item)
    expect_array("draw", tokens(item, 5, context.rng(2)), (5, T, D), "float64")
    if item.token_covariance is not None:
        C = np.asarray(item.token_covariance(T))
        expect_array("token_covariance", C, (T, T), "float64")
        if not (np.allclose(C, C.T) and np.linalg.eigvalsh(C)[0] > 0):
            raise CheckFailed(
                "token_covariance must return a symmetric and positive definite matrix"
            )
    if item.feature_variances is not None:
        v = np.asarray(item.feature_variances(D))
        expect_array("feature_variances", v, (D,), "float64")
        if not (v > 0).all() or abs(v.mean() - 1) > 1e-9:
            raise CheckFailed(
                f"feature_variances must be positive with mean 1, got mean {v.mean():g}"
            )


def _declared_covariance(item: Inputs) -> tuple[Array, Array]:
    """Return the token covariance C (T, T) and the feature variances v (D,) that inputs (``item``) declare; identity if they
    declare none.
    """
    if not item.gaussian and (
        item.token_covariance is None or item.feature_variances is None
    ):
        raise CheckSkipped(
            "the inputs declare neither a covariance nor Gaussian tokens, so no theory is claimed"
        )
    T, D = token_shape(item)
    C, v = item.token_covariance, item.feature_variances
    covariance = np.eye(T) if C is None else np.asarray(C(T))
    variances = np.ones(D) if v is None else np.asarray(v(D))
    return covariance, variances


@inputs_check(
    "Tokens do not have mean 0 and the covariance that the inputs declare: theory is solved for other inputs."
)
def covariance(context: CheckContext, item: Inputs) -> None:
    """Check that tokens have mean 0 and covariance ``E x_s,k x_t,l = C_st delta_kl v_k`` with the declared token covariance
    C and feature variances v. X are n samples of tokens. ``context`` holds the inputs under test (``item``).
    """
    try:
        X = tokens(item, 20_000, context.rng(3))
    except ParameterError as error:
        raise CheckSkipped(f"too few samples are stored: {error}") from None
    if mistake := unscaled_tokens(X):
        raise CheckFailed(f"the tokens have {mistake}; center and rescale them")
    C, v = _declared_covariance(item)
    expect_mean("mean of the tokens", X)
    flat_tokens = X.reshape(len(X), -1)
    expect_mean(
        "covariance of the tokens",
        outer_product(flat_tokens, flat_tokens),
        np.kron(C, np.diag(v)),
    )


@inputs_check(
    "Tokens are declared Gaussian but are not: theory is claimed although none is known."
)
def gaussianity(context: CheckContext, item: Inputs) -> None:
    """Check Gaussian moments of whitened tokens: variance of the squared length, fourth power of random projections. C and v
    are the tokens' covariance and feature variances, X samples of tokens, and N their number of entries. ``context`` holds
    the inputs under test (``item``).
    """
    if not item.gaussian:
        raise CheckSkipped("the inputs do not declare their tokens Gaussian")
    C, v = _declared_covariance(item)
    X = tokens(item, 20_000, context.rng(4))
    whitened_tokens = (np.linalg.solve(np.linalg.cholesky(C), X) / np.sqrt(v)).reshape(
        len(X), -1
    )
    N = whitened_tokens.shape[1]
    squared_lengths = np.sum(whitened_tokens * whitened_tokens, axis=1)
    expect_mean(
        "variance of the squared length", (squared_lengths - N) ** 2 / (2 * N), 1.0
    )
    directions = context.rng(5).standard_normal((N, 4))
    projections = whitened_tokens @ (directions / np.linalg.norm(directions, axis=0))
    expect_mean("fourth power of projections", projections**4, 3.0)
