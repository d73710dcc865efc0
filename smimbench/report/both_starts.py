"""Runs of ``start = "both"``: how many ended above an informed one of lower free energy, and a line that says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["above_informed"]


def above_informed(records: Sequence[dict[str, Any]]) -> tuple[dict[str, Any] | None, str | None]:
    """Of the records of one row what their informed runs say, and a line where some of them are ahead.

    Returns
    -------
    found : dict or None
        ``runs`` that were compared; ``ahead``, in how many the informed one ended at a smaller error and a lower free energy;
        ``mse`` and ``informed_mse``, means over those, per component (None where there is none). None without such runs.
    line : str or None
    """
    pairs = [(r["metrics"]["mse"], r["informed"]) for r in records if r.get("informed") and r["metrics"].get("mse")]
    if not pairs:
        return None, None
    ahead = [(own, other["metrics"]["mse"]) for own, other in pairs if other["ahead"]]
    found: dict[str, Any] = {"runs": len(pairs), "ahead": len(ahead), "mse": None, "informed_mse": None}
    if not ahead:
        return found, None
    means = [np.mean([pair[i] for pair in ahead], axis=0).tolist() for i in (0, 1)]
    own, informed = (
        "[" + ", ".join(f"{v:.3g}" for v in mean) + "]" if len(mean) > 1 else f"{mean[0]:.3g}" for mean in means
    )
    line = (
        f"{len(ahead)} of {len(pairs)} runs end above an informed one of lower free energy: MSE {own} where it has {informed}; "
        "the posterior lies there"
    )
    return found | {"mse": means[0], "informed_mse": means[1]}, line
