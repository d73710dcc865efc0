"""Deep attention from its definition, draws on the Nishimori line, and posteriors of single labels by plain sums."""

import functools
import itertools

import numpy as np


def product(w, skip):
    """B, the product of the attention matrices of the layers ``w`` (n, K, M)."""
    identity = np.eye(w.shape[-1])
    B = np.broadcast_to(identity, (len(w), *identity.shape))
    for layer in range(w.shape[1]):
        h = B @ w[:, layer, :, None]
        logits = h * np.swapaxes(h, 1, 2)
        # token by token: NumPy reduces rows of two numbers slowly
        weights = np.exp(
            logits - functools.reduce(np.maximum, np.moveaxis(logits, -1, 0))[..., None]
        )
        B = (
            weights / sum(np.moveaxis(weights, -1, 0))[..., None] + skip * identity
        ) @ B
    return B


def outputs(z, skip):
    """u (n, M) of the latents (n, L, M)."""
    return np.einsum("nij,nj->ni", product(z[:, :-1], skip), z[:, -1])


def covariance(variances, correlation):
    """V with these diagonal entries, and the same correlation of all layers."""
    scale = np.sqrt(variances)
    return np.outer(scale, scale) * (
        correlation + (1.0 - correlation) * np.eye(len(scale))
    )


def draw(rng, n, V, tokens=2):
    """omega of covariance I - V, z of covariance V around it; (n, L, M) each."""
    layers = len(V)
    root = np.linalg.cholesky(np.eye(layers) - V + 1e-14 * np.eye(layers))
    omega = root @ rng.standard_normal((n, layers, tokens))
    return omega, omega + np.linalg.cholesky(V) @ rng.standard_normal(
        (n, layers, tokens)
    )


def grid(omega, V, size, reach):
    """Points of all layers but the last in batches, and the volume of the cell of each."""
    layers = omega.shape[0] - 1
    tokens = omega.shape[1]
    line = reach * (2.0 * np.arange(size) + 1.0 - size) / size
    root = np.linalg.cholesky(V[:-1, :-1])
    volume = (line[1] - line[0]) ** (layers * tokens) * np.linalg.det(root) ** tokens
    rest = np.array(list(itertools.product(line, repeat=layers * tokens - 1)))
    for x in line:
        white = np.concatenate([np.full((len(rest), 1), x), rest], 1).reshape(
            -1, layers, tokens
        )
        yield omega[:-1] + root @ white, volume


def log_grid(omega, V, size, reach):
    """The same for one layer of two tokens, uniform in the logarithm of their gap: A is singular at equal tokens if c = 0."""
    width = reach * np.sqrt(V[0, 0])
    line = omega[0].mean() + width * (2.0 * np.arange(size) + 1.0 - size) / size
    logs = np.linspace(
        -9.0, np.log(abs(omega[0, 0] - omega[0, 1]) + 1.5 * width), 2 * size
    )
    middle, gap = (axis.ravel() for axis in np.meshgrid(line, np.exp(logs)))
    for d in (gap, -gap):
        points = np.stack([middle + d / 2, middle - d / 2], -1)[:, None]
        yield points, gap * (logs[1] - logs[0]) * (line[1] - line[0])


def brute_force(u, omega, V, skip, batches):
    """log Z_out, mean (L, M) and second moment (L M, L M) of one label by a plain sum over points; both signs of u."""
    layers, tokens = omega.shape
    inner = np.linalg.inv(V[:-1, :-1])
    slopes = inner @ V[:-1, -1]
    noise = V[-1, -1] - slopes @ V[:-1, -1]
    total = 0.0
    mean = 0.0
    second = 0.0
    for w, volume in batches:
        dw = w - omega[:-1]
        B = product(w, skip)
        determinant = np.linalg.det(B)
        kept = determinant > 1e-12  # closer to singular, the likelihood is zero
        w = w[kept]
        dw = dw[kept]
        B = B[kept]
        determinant = determinant[kept]
        prior = (
            np.exp(-0.5 * np.einsum("nam,ab,nbm->n", dw, inner, dw))
            / determinant
            * np.broadcast_to(volume, kept.shape)[kept]
        )
        plus = np.linalg.solve(B, np.broadcast_to(u[:, None], (len(B), tokens, 1)))[
            ..., 0
        ]
        center = omega[-1] + np.einsum("l,nlm->nm", slopes, dw)
        for sign in (1.0, -1.0):
            weight = prior * np.exp(
                -0.5 * ((sign * plus - center) ** 2).sum(-1) / noise
            )
            z = np.concatenate([w, sign * plus[:, None]], 1).reshape(len(w), -1)
            total += weight.sum()
            mean += weight @ z
            second += (z * weight[:, None]).T @ z
    constant = (
        np.log(np.linalg.det(V[:-1, :-1]))
        + (layers - 1) * np.log(2 * np.pi)
        + np.log(2 * np.pi * noise)
    )
    return (
        np.log(total) - 0.5 * tokens * constant,
        (mean / total).reshape(omega.shape),
        second / total,
    )


def diagonal(*q):
    """Overlap of uncorrelated layers, and the error that makes their variance 1."""
    Q = np.diag(np.array(q, dtype=float))
    return Q, np.eye(len(q)) - Q
