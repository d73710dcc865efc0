"""The symmetry of a channel that does not name it: which transformations of the latents no label sees."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from smimbench.derive.labels import probe
from smimbench.interfaces import member, offers
from smimbench.numerics.seeds import monte_carlo_rng

if TYPE_CHECKING:
    from smimbench.interfaces import Array

__all__ = ["symmetry_of_labels"]


def symmetry_of_labels(channel: Any, sites: int) -> str:
    """The largest group of transformations of the latents, among those the engine knows, that no label sees."""
    rng = monte_carlo_rng("likelihood: which kind of label")
    P = int(member(channel, "components", 1))
    unseen = partial(_unseen, channel, sites)
    cycle, swap = np.roll(np.eye(P), 1, axis=0), np.eye(P)
    swap[:2] = swap[:2][::-1]
    rotation = np.linalg.qr(rng.standard_normal((P, P)))[0]
    found = "none"
    if P > 1 and unseen(rotation):
        found = "rotations"
    else:
        flips = all(unseen(np.diag(np.where(np.arange(P) == p, -1.0, 1.0))) for p in range(P))
        permutes = P > 1 and unseen(cycle) and unseen(swap)
        if flips:
            found = "signed-permutations" if permutes else "signs"
        elif P > 1 and unseen(-np.eye(P)):
            found = "permutations-common-sign" if permutes else "common-sign"
        elif permutes:
            found = "permutations"
    return found


def _unseen(channel: Any, sites: int, transformation: Array) -> bool:
    """Whether labels are as likely under transformed latents as under the latents themselves."""
    z = probe(channel, sites, 64)
    turned = transformation @ z
    try:
        if offers(channel, "log_likelihood"):
            y = np.asarray(channel.forward(z, rng=monte_carlo_rng("symmetry: labels")))
            with np.errstate(all="ignore"):
                pair = [np.asarray(channel.log_likelihood(y, at), dtype=float) for at in (z, turned)]
            return bool(np.allclose(pair[0], pair[1], rtol=1e-6, atol=1e-6))
        pair = [
            np.asarray(channel.forward(at, rng=monte_carlo_rng("symmetry: labels"))) for at in (z, turned)
        ]
        return bool(np.allclose(pair[0], pair[1], rtol=1e-6, atol=1e-9))
    except Exception:  # what cannot be asked has no symmetry that we know of
        return False
