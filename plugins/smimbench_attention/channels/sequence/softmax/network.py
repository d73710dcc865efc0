"""Deep attention with one direction per layer: forward pass, reverse mode, and inversion of the label.

With ``S(v) = softmax_rows(v v^T)``, ``A(v) = c I + S(v)`` and latents ``z`` (n, L, M), one row per layer::

    B_0 = I,   h_l = B_{l-1} z_l,   B_l = A(h_l) B_{l-1},   u = h_L,   y = log S(u)

(arXiv:2502.00901, with the attention matrix acting from the left on the tokens).
"""

from __future__ import annotations

import functools
import operator
from typing import NamedTuple

from smimbench.backend import namespace
from smimbench.interfaces import Array
from smimbench.numerics import outer_product
from smimbench_attention.channels.common import (
    identity_like,
    log_softmax,
    reduce_tokens,
)


class Network(NamedTuple):
    """Size of a network of attention layers: layers L, tokens M and weight c of the skip connections (``skip``)."""

    layers: int
    tokens: int
    skip: float

    @property
    def is_exact(self) -> bool:
        """Whether the posterior can be integrated to any accuracy, as for two layers of two tokens."""
        return self.layers == self.tokens == 2


def log_attention(v: Array) -> Array:
    """Row-wise log-softmax ``log S(v)`` of ``v v^T``, (..., M, M), for the hidden values ``v`` (..., M) of M tokens."""
    return log_softmax(outer_product(v, v))


def attention(v: Array) -> Array:
    """Row-wise softmax ``S(v)`` of ``v v^T``, (..., M, M), for the hidden values ``v`` (..., M) of M tokens."""
    xp = namespace(v)
    logits = outer_product(v, v)
    exponentials = xp.exp(logits - reduce_tokens(xp.maximum, logits))
    return exponentials / reduce_tokens(operator.add, exponentials)


def _apply(matrix: Array, vector: Array) -> Array:
    """Product (..., M) of a matrix (..., M, M) and a vector (..., M)."""
    return reduce_tokens(operator.add, matrix * vector[..., None, :])[..., 0]


def _apply_transposed(matrix: Array, vector: Array) -> Array:
    """Product (..., M) of a transposed matrix (..., M, M) and a vector (..., M), token by token (see ``reduce_tokens``)."""
    products = matrix * vector[..., :, None]
    rows = (products[..., token, :] for token in range(products.shape[-2]))
    return functools.reduce(operator.add, rows)


def attention_product(layer_latents: Array, skip: float) -> Array:
    """Product ``B_K`` (..., M, M) of the attention matrices ``c I + S(h_l)`` of the K >= 1 layers with latents ``layer_latents``
    (..., K, M); ``skip`` is c.
    """
    xp = namespace(layer_latents)
    B = attention(layer_latents[..., 0, :]) + skip * identity_like(
        layer_latents.shape[-1], layer_latents
    )
    for layer in range(1, layer_latents.shape[-2]):
        B = skip * B + xp.matmul(attention(_apply(B, layer_latents[..., layer, :])), B)
    return B


def output(z: Array, skip: float) -> Array:
    """Last hidden vector ``u = B_{L-1} z_L`` (..., M) of the network, from the latents ``z`` (..., L, M), with B the product of
    the attention matrices before the last layer; ``skip`` is the skip connections' weight c.
    """
    z_last = z[..., -1, :]
    return (
        z_last
        if z.shape[-2] == 1
        else _apply(attention_product(z[..., :-1, :], skip), z_last)
    )


def output_vjp(z: Array, skip: float, cotangent: Array) -> Array:
    """Gradient of ``sum(cotangent * u(z))`` with respect to the latents ``z`` (..., L, M), by reverse mode, where u is the last
    hidden vector and ``cotangent`` the derivative of a loss with respect to it. S and B list the attention matrices of the layers
    and their products, ``gradient_h``, ``gradient_S`` and ``gradient_B`` are the derivatives with respect to hidden vectors and
    those; ``skip`` is the weight c of the skip connection.

    ``z`` (..., L, M), ``cotangent`` (..., M), whose leading axes may broadcast against those of ``z``.
    """
    xp = namespace(z, cotangent)
    layers = z.shape[-2]
    hidden_vectors = [z[..., 0, :]]
    S = []
    B = [identity_like(z.shape[-1], z)]
    for layer in range(1, layers):
        S.append(attention(hidden_vectors[-1]))
        B.append(skip * B[-1] + xp.matmul(S[-1], B[-1]))
        hidden_vectors.append(_apply(B[-1], z[..., layer, :]))
    gradients = [_apply_transposed(B[-1], cotangent)]
    gradient_h = cotangent
    gradient_B = 0.0
    for layer in range(layers - 1, 0, -1):
        gradient_B = gradient_B + outer_product(gradient_h, z[..., layer, :])
        # B_l = (c I + S(h)) B_{l-1}
        attention_matrix = S[layer - 1]
        gradient_S = xp.matmul(gradient_B, xp.matrix_transpose(B[layer - 1]))
        gradient_h = attention_vjp(
            hidden_vectors[layer - 1], attention_matrix, gradient_S
        )
        gradient_B = skip * gradient_B + xp.matmul(
            xp.matrix_transpose(attention_matrix), gradient_B
        )
        gradients.append(_apply_transposed(B[layer - 1], gradient_h))
    return xp.stack(gradients[::-1], axis=-2)


def attention_vjp(v: Array, S: Array, cotangent: Array) -> Array:
    """Gradient of ``sum(cotangent * S(v))`` with respect to the hidden values ``v`` (..., M); ``S`` (..., M, M) is
    ``attention(v)``, ``cotangent`` the derivative of a loss with respect to it.
    """
    logit_gradient = S * (cotangent - reduce_tokens(operator.add, S * cotangent))
    return _apply(logit_gradient, v) + _apply_transposed(logit_gradient, v)


def is_unresolved(y: Array) -> Array:
    """Mask (n,) of two-token labels y (n, 2, 2) so close to 1/2 that double precision does not give the difference ``u_1 - u_2``
    of the tokens' outputs to a few percent.
    """
    xp = namespace(y)
    row_differences = y[:, :, 0] - y[:, :, 1]
    # rounding errors that ``(u_1 - u_2)^2`` must exceed to count as known
    rounding_error = (
        10.0 * xp.finfo(y.dtype).eps * xp.max(xp.max(xp.abs(y), axis=-1), axis=-1)
    )
    return row_differences[:, 0] - row_differences[:, 1] < rounding_error


def output_of_label(y: Array) -> Array:
    """The network's output ``u`` (..., n, M) of a label ``y = log S(u)`` (..., n, M, M), up to one sign per sample. The entries
    of a row differ by ``u_a (u_b - u_b')``, so the pair of tokens whose outputs differ most (``largest_pair``) gives u times that
    difference, whose square is known too.

    ``y_mi - y_mj = u_m (u_i - u_j)`` holds for all m. The pair (i, j) that is farthest apart, with
    ``(u_i - u_j)^2 = (y_ii - y_ij) + (y_jj - y_ji)`` the largest, gives all of ``u`` by one division.
    Probabilities never appear, so saturated rows lose nothing. The sign returned has ``u_i > u_j``, i < j.

    Rounding of ``y`` limits ``u_i - u_j`` to an absolute error of about ``eps / |u_i - u_j|``. A label
    without any contrast (all tokens alike) gives ``u = 0``.
    """
    xp = namespace(y)
    *leading_axes, tokens, _ = y.shape
    if tokens == 2:  # only one pair: the same numbers in a tenth of the time
        scaled_output = y[..., 0] - y[..., 1]
        squared_difference = scaled_output[..., 0] - scaled_output[..., 1]
    else:
        row_contrast = xp.linalg.diagonal(y)[..., None] - y
        pair_contrast = xp.triu(row_contrast + xp.matrix_transpose(row_contrast))
        largest_pair = xp.argmax(
            xp.reshape(pair_contrast, (*leading_axes, tokens * tokens)), axis=-1
        )
        pair_tokens = (
            xp.broadcast_to(token_index[..., None, None], (*leading_axes, tokens, 1))
            for token_index in (largest_pair // tokens, largest_pair % tokens)
        )
        row_of_token_1, row_of_token_2 = (
            xp.take_along_axis(y, token_index, axis=-1)[..., 0]
            for token_index in pair_tokens
        )
        scaled_output = row_of_token_1 - row_of_token_2
        squared_difference = xp.max(xp.max(pair_contrast, axis=-1), axis=-1)
    is_nonzero = squared_difference > 0.0
    return (
        scaled_output
        * xp.where(
            is_nonzero,
            1.0 / xp.sqrt(xp.where(is_nonzero, squared_difference, 1.0)),
            0.0,
        )[..., None]
    )
