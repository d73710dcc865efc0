r"""Corrections of order 1/D to the error of GAMP where they have a closed form: Gaussian signals seen through linear labels.

There GAMP ends at the posterior mean of every instance, and its error is the Stieltjes transform of a real Wishart matrix at
minus the noise. With N = T n rows, ``r = N / D`` and ``S(z) = E tr (X^T X / D - z)^{-1} / D``, integration by parts gives exactly

.. math:: 1 + z S = r S - S (1 + z S) - \frac1D (S + z S') + O(1/D^2), \qquad z = -\Delta,

so that with ``F = 1 + z - r + 2 z S``, the slope of this equation in S, and ``S' = -(S + S^2) / F``,

.. math:: E\,\mathrm{MSE} = \Delta S + \frac{b}{D}, \qquad b = -\Delta\, \frac{S + z S'}{F}.

Derived; checked by tests/algorithms/test_gamp_finite_size.py against exact posteriors of small sizes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smimbench.problem import Problem

__all__ = ["first_correction"]


def first_correction(problem: Problem, alpha: float) -> list[float] | None:
    """The b of ``MSE = limit + b / D`` of every component, or None where no closed form is known.

    Other problems have none here: their denoiser or their labels are not linear, so that 1/D corrections hold the fluctuation of
    order parameters, and for extensive rank latents are not independent given their norms.
    """
    spec = problem.spec
    names = [spec[kind]["name"] for kind in ("model", "channel", "prior")]
    if names != ["sequence-multi-index", "linear", "gaussian"] or not spec["channel"]["noise"] > 0:
        return None
    noise, r = float(spec["channel"]["noise"]), alpha * problem.model.tokens
    z = -noise
    # z S^2 + (1 + z - r) S + 1 = 0, the positive root, in the form in which nothing cancels.
    linear = 1 + z - r
    root = math.sqrt(linear * linear - 4 * z)
    S = (linear + root) / (-2 * z) if linear > 0 else 2 / (root - linear)
    slope = linear + 2 * z * S
    derivative = -(S + S * S) / slope
    return [-noise * (S + z * derivative) / slope] * problem.components
