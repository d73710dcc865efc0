"""The overlaps of two layers against plain draws of teacher, label and posterior, at thirty sample ratios.

At each printed overlap latents, truth and label are drawn independently, without control variates, weights or interpolation;
the channel's posterior says what the information is there, and one Newton step in the logarithms of the effective
signal-to-noise ratios says where the fixed point is. A million draws of a point are about a minute of one core with ``fast``.

    python docs/checks/two_layer_curve.py [draws] [part/parts]

``2/3`` takes every third sample ratio, from the second on; nodes of the curve are kept under ``results`` for the other parts.
"""

from __future__ import annotations

import sys

import numpy as np

from smimbench.api import theory

# between weak recovery of the last layer and perfect recovery of both; most of them where both layers are known
ALPHAS = np.round(np.concatenate([np.linspace(0.2, 0.7, 8), np.linspace(0.73, 0.99, 22)]), 4)
WITHIN = 0.004


def main(draws: int, part: int = 1, parts: int = 1) -> int:
    """Print the table; 1 if a difference is larger than ``WITHIN`` by more than twice its standard error."""
    asked = ALPHAS[part - 1 :: parts].tolist()
    document = theory("smi-two-layers", asked, results="results", thresholds=False, verify=draws)[0]
    errors = {(c["alpha"], c["component"]): c for c in document["verification"] if c["quantity"] == "MSE"}
    worst, failed = 0.0, False
    print("alpha    layer  overlap  drawn    error of the draws  difference  z")
    for (alpha, layer), check in sorted(errors.items()):
        gap = check["printed"] - check["drawn"]
        worst = max(worst, abs(gap))
        failed = failed or abs(gap) > WITHIN + 2 * check["standard_error"]
        print(
            f"{alpha:.4f}   {layer}      {1 - check['printed']:.4f}   {1 - check['drawn']:.4f}   "
            f"{check['standard_error']:.4f}              {gap:+.4f}     {check['z']:+.2f}"
        )
    print(f"largest difference {worst:.4f}, {draws} draws of each point")
    return int(failed)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    chosen = [int(number) for number in (arguments[1] if len(arguments) > 1 else "1/1").split("/")]
    sys.exit(main(int(arguments[0]) if arguments else 1_000_000, *chosen))
