"""Chooses quadrature or importance sampling for the posterior of deep attention with two or more layers."""

from __future__ import annotations

from smimbench.interfaces import Array, Host
from smimbench_attention.channels.sequence.softmax import deep, two_layers
from smimbench_attention.channels.sequence.softmax.moments import LayerMoments
from smimbench_attention.channels.sequence.softmax.network import Network


def most_layers(tokens: int) -> int:
    """Largest supported number of layers: 4 for two tokens, 2 for three, 1 for more."""
    return {2: 4, 3: 2}.get(tokens, 1)


def is_exact(network: Network) -> bool:
    """Whether ``integrate`` can reach any accuracy, as it can for two layers of two tokens."""
    return network.layers == network.tokens == 2


def integrate(
    network: Network,
    u: Array,
    omega: Array,
    V: Host,
    *,
    accuracy: float,
    points: int,
    full: bool = False,
    seed: int = 0,
) -> LayerMoments:
    """Posterior moments given outputs ``u``, by quadrature where it is exact, else by importance sampling.

    ``network`` has at least two layers, at most ``most_layers``. ``u`` (n, M) are outputs up to sign, ``omega`` (n, L, M) means,
    both in float64; ``V`` (L, L) is positive definite, on the host. ``accuracy`` is the target for the relative error of every
    sample, or where ``points`` per sample are sampled the error at which few of them suffice. ``full`` asks for the whole second
    moment instead of its traces over tokens; another ``seed`` gives independent results where points are sampled.
    """
    if is_exact(network):
        return two_layers.integrate(u, omega, V, network.skip, accuracy, full)
    return deep.integrate(u, omega, V, network.skip, accuracy, points, full, seed)[0]
