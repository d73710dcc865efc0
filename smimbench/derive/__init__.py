"""Derives members that a channel or prior does not define, such as posteriors and symmetries.

It also holds code shared by several kinds of items, such as the default stopping rule.

Plugins import the names of this page from here.
"""

from smimbench.derive.channel import complete_channel
from smimbench.derive.labels import gives_probabilities, is_noisy, observable, predict
from smimbench.derive.prior import complete_prior, denoise_step, why_theory_only
from smimbench.derive.sampled_information import (
    LabelMeans,
    Labels,
    label_means,
    sampled_moments,
    without_overlap,
)
from smimbench.derive.stopping import OverlapRule
from smimbench.derive.whitening import MixedChannel, mixed_channel

__all__ = [
    "LabelMeans",
    "Labels",
    "MixedChannel",
    "OverlapRule",
    "complete_channel",
    "complete_prior",
    "denoise_step",
    "gives_probabilities",
    "is_noisy",
    "label_means",
    "mixed_channel",
    "observable",
    "predict",
    "sampled_moments",
    "why_theory_only",
    "without_overlap",
]
