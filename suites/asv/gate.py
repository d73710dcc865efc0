"""The gate of a change, ``asv continuous --bench ^gate main HEAD``: speed and accuracy of one problem of each kind of work.

About a minute and a half a commit. What it leaves out is followed over the history by the other files.
"""

from . import accuracy, kernels

PROBLEMS = (
    "quickstart: softmax",
    "aim-hardmax: hardmax (rho=0.1)",
    "contenders: one layer",
    "contenders: probit",
    "smi-two-layers: two layers, c = 1",
    "untied: linear",
)
"""Matrices with smooth and with discrete labels, untied ones, and low rank with one layer, noisy labels and two layers."""


class Kernels(kernels.Kernels):
    """The parts of an iteration, timed for half a second each."""

    params = (PROBLEMS,)
    repeat = (5, 20, 0.5)
    rounds = 1


class Accuracy(accuracy.Accuracy):
    """The error of GAMP against state evolution."""

    params = (PROBLEMS,)

    def setup_cache(self):
        """As for all problems; asv tells caches apart by where this function is."""
        return super().setup_cache()
