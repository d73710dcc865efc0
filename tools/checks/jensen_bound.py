"""Computes the first threshold of two tied attention layers, by posterior Monte Carlo, and Jensen's lower bound of it.

The last layer becomes learnable at ``1 / F`` with ``F = E sum_mm' (E[z_m z_m' | y] - delta_mm')^2`` over its two latents.
Jensen's inequality gives ``F <= E sum_mm' (z_m z_m' - delta_mm')^2 = M (M + 1) = 6``: no threshold below 1/6 = 0.1667.
What F lacks to 6 is the posterior variance ``E sum_mm' (z_m z_m' - E[z_m z_m' | y])^2``, which is averaged here over the
true z, with two independent sets of posterior samples so that the square is unbiased. NumPy only, nothing of smimbench.

    python tools/checks/jensen_bound.py
"""

from __future__ import annotations

import numpy as np

PUBLISHED = {
    4.0: 0.0827,
    2.0: 0.1119,
    1.0: 0.1436,
    0.5: 0.1864,
}  # skip: threshold, released table of arXiv:2502.00901
SAMPLES, DRAWS = 5000, 1000


def attention(v: np.ndarray, skip: float) -> np.ndarray:
    """Compute the attention matrix ``c I + softmax_rows(v v^T)`` of latents v (..., 2), with skip weight c."""
    scores = v[..., :, None] * v[..., None, :]
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return skip * np.eye(2) + weights / weights.sum(-1, keepdims=True)


def moment(u: np.ndarray, skip: float, rng: np.random.Generator) -> np.ndarray:
    """Estimate ``E[z_2 z_2^T | u]``, given the output u of two layers, by self-normalized importance sampling: z_1 from its
    prior, z_2 = A(z_1)^{-1} u, with the attention matrix A.

    The label fixes u up to a sign, which the second moment does not see.
    """
    attention_matrix = attention(rng.standard_normal((DRAWS, 2)), skip)
    z2 = np.linalg.solve(attention_matrix, np.broadcast_to(u[:, None], (DRAWS, 2, 1)))[
        ..., 0
    ]
    log_weight = -np.sum(z2**2, 1) / 2 - np.log(np.abs(np.linalg.det(attention_matrix)))
    weight = np.exp(log_weight - log_weight.max())
    return np.einsum("k,ka,kb->ab", weight / weight.sum(), z2, z2)


def main() -> None:
    """Print the threshold with its standard error for several skip connections."""
    rng = np.random.default_rng(1)
    print("skip   published   by posterior Monte Carlo   Jensen bound")
    for skip, published in PUBLISHED.items():
        terms = np.empty(SAMPLES)
        for i in range(SAMPLES):
            z = rng.standard_normal((2, 2))
            u = attention(z[0], skip) @ z[1]
            truth = np.outer(z[1], z[1])
            first_deviation, second_deviation = (
                truth - moment(u, skip, rng) for _ in range(2)
            )
            terms[i] = 6 - np.sum(first_deviation * second_deviation)
        F, error = terms.mean(), terms.std(ddof=1) / np.sqrt(SAMPLES)
        print(
            f"{skip:4.1f} {published:11.4f} {1 / F:18.4f} +- {error / F**2:.4f} {1 / 6:14.4f}"
        )


if __name__ == "__main__":
    main()
