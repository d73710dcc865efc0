"""Finds which posterior reproduces the published hardmax curve of arXiv:2506.01582.

State evolution for T = 2 with two output functions, integrated on a plain grid that shares no code with smimbench's
channel: the gradient of log Phi2 (the posterior mean), and density over distribution, phi2 / Phi2, in its place.

    python tools/checks/hardmax_posterior.py
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr
from scipy.stats import multivariate_normal

from smimbench import Problem

# (alpha, MMSE) from the released tables SE_hardmax_rho=0.5 and, for rho = 0, SE_hardmax_rescaled_rho=0.
PUBLISHED = {
    0.5: [
        (0.05322, 0.92737),
        (0.14161, 0.80338),
        (0.37682, 0.56626),
        (1.00269, 0.31455),
        (2.66811, 0.14930),
        (7.09967, 0.06337),
    ],
    0.0: [
        (0.76758, 0.92144),
        (1.07547, 0.74047),
        (2.11127, 0.40853),
        (4.14466, 0.21355),
    ],
}


POINTS = 180


def psi(V: float, q: float, *, published: bool) -> float:
    """Compute ``Psi(V)`` of the paper's section "output channel" at posterior variance V and overlap q, by the midpoint rule
    in the pair kappa (k1, k2) on a grid of ``nodes``; ``published`` chooses the published output function, the other takes
    the derivatives of Phi2.
    """
    spread = np.sqrt(q / V)
    # Either kappa may run out to its own spread while the other stays of order one.
    largest_kappa = 9.0 * spread if spread < 1 else max(9.0, 6.0 * spread)
    total = 0.0
    for sign in (1, -1):
        correlation = sign / 3
        if q == 0:
            k1 = k2 = np.zeros(1)
            weight = np.ones(1)
        else:
            nodes = (
                np.arange(POINTS) + 0.5
            ) / POINTS * 2 * largest_kappa - largest_kappa
            k1, k2 = (k.ravel() for k in np.meshgrid(nodes, nodes, indexing="ij"))
            cell_area = (nodes[1] - nodes[0]) ** 2
            weight = cell_area * multivariate_normal.pdf(
                np.stack([k1, k2], -1),
                cov=spread**2 * np.array([[1, correlation], [correlation, 1]]),
            )
        cdf = np.maximum(
            multivariate_normal.cdf(
                np.stack([k1, k2], -1),
                cov=[[1, correlation], [correlation, 1]],
                abseps=1e-10,
            ),
            1e-300,
        ).reshape(-1)
        root = np.sqrt(1 - correlation * correlation)
        density = np.exp(
            -(k1**2 - 2 * correlation * k1 * k2 + k2**2) / (2 * root**2)
        ) / (2 * np.pi * root)
        if published:
            derivative_1 = derivative_2 = density
        else:
            derivative_1 = (
                np.exp(-(k1**2) / 2)
                / np.sqrt(2 * np.pi)
                * ndtr((k2 - correlation * k1) / root)
            )
            derivative_2 = (
                np.exp(-(k2**2) / 2)
                / np.sqrt(2 * np.pi)
                * ndtr((k1 - correlation * k2) / root)
            )
        weighted_square = (
            3 * derivative_1**2
            + 3 * derivative_2**2
            + 2 * sign * derivative_1 * derivative_2
        )
        is_reliable = (
            cdf > 1e-9
        )  # below, the library routine returns rounding noise; its weight is nothing
        total += 2 * float(np.sum((weight * weighted_square / cdf)[is_reliable]))
    return 2 / (3 * V) * total


def mmse(rho: float, alpha: float, *, published: bool) -> float:
    """Solve the fixed point ``V = F(1 / (alpha Psi(V)))`` for the posterior variance V, F being the prior's map at width
    ``rho``.
    """
    prior = Problem(
        {"name": "attention-indexed", "tokens": 2},
        "hardmax",
        {"name": "wishart", "rho": rho},
    ).prior

    def gap(log_v: float) -> float:
        """Return how much the logarithm of V grows in one iteration of the fixed-point equation."""
        V = np.exp(log_v)
        qhat = alpha * psi(V, 1 + rho - V, published=published)
        return float(np.log(prior.overlap(np.array([[qhat]])).V[0, 0]) - log_v)

    return (
        float(np.exp(brentq(gap, np.log(1e-4), -1e-9, xtol=1e-4)))
        if gap(-1e-9) < 0
        else 1.0
    )


def main() -> None:
    """Print published values next to state evolution with both output functions."""
    print("   rho    alpha  published  with phi2/Phi2  with grad log Phi2")
    for rho, points in PUBLISHED.items():
        for alpha, value in points:
            published, corrected = (
                mmse(rho, alpha, published=is_published)
                for is_published in (True, False)
            )
            print(
                f"{rho:6.2f} {alpha:8.4f} {value:10.4f} {published:15.4f} {corrected:19.4f}"
            )
    for is_published, name in ((True, "phi2/Phi2"), (False, "grad log Phi2")):
        print(
            f"weak recovery at rho -> 0 with {name}: {1 / psi(1.0, 0.0, published=is_published):.5f}"
        )


if __name__ == "__main__":
    main()
