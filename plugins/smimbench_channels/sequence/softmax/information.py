"""Which method serves which overlap, for the information and the susceptibility of the softmax channel.

One layer has a closed form up to a quadrature (``one_layer``). Two tokens whose last layer, and at most one before it, has an
overlap have tables (``last_layer``). For all others labels are drawn (``labels``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from array_api_compat import device

from smimbench.backend import namespace, to_host
from smimbench.interfaces import Array, Uncertain
from smimbench_channels.sequence.softmax import labels as over_labels
from smimbench_channels.sequence.softmax import one_layer
from smimbench_channels.sequence.softmax.last_layer import information as last_layer
from smimbench_channels.sequence.softmax.network import Network

Host = np.ndarray[Any, np.dtype[np.float64]]

__all__ = ["information", "susceptibility"]


def information(network: Network, Q: Array, V: Array, labels: int | None = None) -> Uncertain:
    """``E sum_m g_m g_m^T`` (..., L, L); see ``SequenceSoftmax.information``."""
    if network.layers == 1:
        return one_layer.information(Q, V, network.tokens)

    def one(q: Host, v: Host) -> Uncertain:
        if _has_tables(network, q, v):
            return last_layer.information(q, v, network.skip)
        found = _averages(network, q, v, labels)
        return Uncertain(found.information, found.information_error, over_labels.METHOD)

    return _collected(Q, [one(q, v) for q, v in _pairs(Q, V)])


def susceptibility(network: Network, Q: Array, V: Array, labels: int | None = None) -> Uncertain:
    """First order of the information in the overlap; see ``SequenceSoftmax.susceptibility``."""
    if network.layers == 1:
        return one_layer.susceptibility(Q, V, network.tokens)

    def one(q: Host, v: Host) -> Uncertain:
        if _has_tables(network, q, v):
            return last_layer.susceptibility(q, v, network.skip)
        found = _averages(network, q, v, labels)
        return Uncertain(found.susceptibility, found.susceptibility_error, over_labels.METHOD)

    return _collected(Q, [one(q, v) for q, v in _pairs(Q, V)])


def _has_tables(network: Network, q: Host, v: Host) -> bool:
    return network.tokens == 2 and last_layer.supports(q, v)


def _averages(network: Network, q: Host, v: Host, labels: int | None) -> over_labels.Averages:
    return over_labels.averages(
        network, q, v, over_labels.default_labels(network) if labels is None else labels
    )


def _pairs(Q: Array, V: Array) -> Iterator[tuple[Host, Host]]:
    """Each (Q, V) of a batch, on the host."""
    return zip(*(np.asarray(to_host(x), np.float64).reshape(-1, *x.shape[-2:]) for x in (Q, V)))


def _collected(Q: Array, found: list[Uncertain]) -> Uncertain:
    """One result with the batch axes, data type and device of Q."""
    xp = namespace(Q)
    place = {"dtype": Q.dtype, "device": device(Q)}
    value = xp.asarray(np.reshape([f.value for f in found], Q.shape), **place)
    error = xp.asarray(np.reshape([f.error for f in found], Q.shape), **place)
    return Uncertain(value, error, ", ".join(dict.fromkeys(f.method for f in found)))
