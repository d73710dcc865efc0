"""Tests by posterior Monte Carlo whether the two shallower of three tied attention layers become learnable together.

While only the last layer is learned, with overlap q, layer a becomes unstable at ``alpha_a = 1 / lambda_a``,
``lambda_a = E sum_mm' (E[z_am z_am' | y, omega_3] - delta_mm')^2``, and the last layer has the overlap q at ``alpha_3 = q /
((1 - q) I)``, ``I = E |E[z_3 | y, omega_3] - omega_3|^2 / (1 - q)^2``. Where ``alpha_3`` equals ``alpha_1`` or ``alpha_2`` that
layer starts to be learned. Equal thresholds would need ``lambda_1 = lambda_2`` there.

Labels and posteriors are sampled without any refinement: z_1 and z_2 from their prior, ``z_3 = +- B^{-1} u``, weighted. Two
independent sets of posterior samples make the squares unbiased. NumPy only, nothing of smimbench.

    python tools/checks/three_layers.py
"""

from __future__ import annotations

import numpy as np

# skip: overlap of the last layer where smimbench finds the first of the two shallower layers unstable
CROSSINGS = {1.0: 0.9783, 2.0: 0.9911}
SAMPLES, DRAWS = 4000, 6000  # half a minute of one core


def attention(a: np.ndarray, b: np.ndarray, skip: float) -> tuple[np.ndarray, ...]:
    """Compute the four entries of the attention matrix ``c I + softmax_rows(v v^T)`` for latents ``v = (a, b)``, with skip
    weight c.
    """
    p, q = 1 / (1 + np.exp(-a * (a - b))), 1 / (1 + np.exp(-b * (b - a)))
    return skip + p, 1 - p, 1 - q, skip + q


def product(z: np.ndarray, skip: float) -> tuple[np.ndarray, ...]:
    """Compute the four entries of ``B = A(A(z_1) z_2) A(z_1)`` for the latents z (2, 2, ...) of the first two layers, with
    the attention matrix A.
    """
    a, b, c, d = attention(*z[0], skip)
    e, f, g, h = attention(a * z[1, 0] + b * z[1, 1], c * z[1, 0] + d * z[1, 1], skip)
    return e * a + f * c, e * b + f * d, g * a + h * c, g * b + h * d


def posterior(
    u: np.ndarray, omega: np.ndarray, v: float, skip: float, rng: np.random.Generator
) -> tuple:
    """Estimate, given the output u of three layers and a prior of z_3 with mean omega and variance v, the second moments (2,
    2, 2) of z_1 and z_2 less the identity, and the mean of z_3 less omega.
    """
    z = rng.standard_normal((2, 2, DRAWS))
    a, b, c, d = product(z, skip)
    determinant = a * d - b * c
    z3 = np.stack([d * u[0] - b * u[1], a * u[1] - c * u[0]]) / determinant
    z3 = np.concatenate([z3, -z3], axis=1)
    log = -((z3 - omega[:, None]) ** 2).sum(0) / (2 * v) - np.tile(
        np.log(np.abs(determinant)), 2
    )
    weight = np.exp(log - log.max())
    weight /= weight.sum()
    averaged = weight[:DRAWS] + weight[DRAWS:]
    second = np.einsum("amk,ank,k->amn", z, z, averaged) - np.eye(2)
    return second, z3 @ weight - omega


def main() -> None:
    """Print the sample ratios at which both shallower layers become unstable and that of the last layer, with standard
    errors, from two independent posterior estimates (a, b) for each draw.
    """
    rng = np.random.default_rng(3)
    print("skip   overlap of layer 3   alpha_3             alpha_1             alpha_2")
    for skip, q in CROSSINGS.items():
        terms = np.empty((SAMPLES, 3))
        for i in range(SAMPLES):
            omega = np.sqrt(q) * rng.standard_normal(2)
            z = np.concatenate(
                [
                    rng.standard_normal((2, 2)),
                    [omega + np.sqrt(1 - q) * rng.standard_normal(2)],
                ]
            )
            a, b, c, d = product(z, skip)
            u = np.array([a * z[2, 0] + b * z[2, 1], c * z[2, 0] + d * z[2, 1]])
            (moments_a, mean_shift_a), (moments_b, mean_shift_b) = (
                posterior(u, omega, 1 - q, skip, rng) for _ in range(2)
            )
            terms[i, :2] = (moments_a * moments_b).sum((1, 2))
            terms[i, 2] = mean_shift_a @ mean_shift_b / (1 - q) ** 2
        mean, error = terms.mean(0), terms.std(0, ddof=1) / np.sqrt(SAMPLES)
        cells = [
            f"{q / (1 - q) / mean[2]:.3f} +- {q / (1 - q) * error[2] / mean[2] ** 2:.3f}"
        ]
        cells += [f"{1 / m:.3f} +- {e / m**2:.3f}" for m, e in zip(mean[:2], error[:2])]
        print(f"{skip:4.1f} {q:15.4f}        " + "     ".join(cells))


if __name__ == "__main__":
    main()
