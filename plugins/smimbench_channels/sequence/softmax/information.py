"""Chooses, for each overlap, the method for the information and the susceptibility of the softmax channel: closed form,
tables, or random labels.

One layer has a closed form up to a quadrature (``one_layer``). Two tokens whose last layer, and at most one before it, has an
overlap have tables (``last_layer``). For all others labels are drawn (``labels``).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from smimbench.interfaces import Array, Uncertain
from smimbench_channels.batches import on_host, uncertain_like
from smimbench_channels.sequence.softmax import labels as over_labels
from smimbench_channels.sequence.softmax import one_layer
from smimbench_channels.sequence.softmax.last_layer import information as last_layer
from smimbench_channels.sequence.softmax.network import Network
from smimbench_channels.sequence.softmax.posterior import is_exact

__all__ = ["information", "rough_labels", "susceptibility"]

ROUGH = {True: 2**12, False: 2**9}
"""Labels for differences: where the posterior of a label is exact or comes from a table, and where it is sampled. Doubled: twice
the time, slopes that are 1.4 times less noisy."""


def information(network: Network, Q: Array, V: Array, labels: int | None = None) -> Uncertain:
    """``E sum_m g_m g_m^T`` (..., L, L); see ``SequenceSoftmax.information``."""
    if network.layers == 1:
        return one_layer.information(Q, V, network.tokens)
    return _by_tables_or_labels(network, Q, V, labels, last_layer.information, 0)


def susceptibility(network: Network, Q: Array, V: Array, labels: int | None = None) -> Uncertain:
    """First order of the information in the overlap; see ``SequenceSoftmax.susceptibility``."""
    if network.layers == 1:
        return one_layer.susceptibility(Q, V, network.tokens)
    return _by_tables_or_labels(network, Q, V, labels, last_layer.susceptibility, 2)


def rough_labels(network: Network, Q: Array, V: Array) -> int:
    """Labels that are enough for differences of the information around (Q, V)."""
    quick = is_exact(network) or (network.tokens == 2 and last_layer.supports(Q, V, network.skip))
    return ROUGH[quick]


def _by_tables_or_labels(
    network: Network, Q: Array, V: Array, labels: int | None, from_tables: Callable[..., Uncertain], which: int
) -> Uncertain:
    """Each (Q, V) of a batch from tables, or else entry ``which`` of the averages over labels and its error."""
    found = []
    asked = {} if labels is None else {"accuracy": last_layer.ACCURACY.with_labels(labels)}
    for q, v in zip(*(array.reshape(-1, *Q.shape[-2:]) for array in on_host(Q, V))):
        one = None
        if network.tokens == 2 and last_layer.supports(q, v, network.skip):
            with np.errstate(invalid="ignore", divide="ignore"):
                one = from_tables(q, v, network.skip, **asked)
        if one is not None and np.isfinite(one.value).all():
            found.append(one)
        else:
            number = over_labels.default_labels(network, q, v) if labels is None else labels
            value, error = over_labels.averages(network, q, v, number)[which : which + 2]
            found.append(Uncertain(value, error, over_labels.METHOD))
    value, error = (np.reshape([f[k] for f in found], Q.shape) for k in (0, 1))
    return uncertain_like(Q, value, error, ", ".join(dict.fromkeys(f.method for f in found)))
