"""Registers what ships with smimbench: models of attention, inputs, channels, priors, metrics and algorithms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smimbench.hookspecs import hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable

    Register = Callable[[type[object]], None]


@hookimpl
def smimbench_register_models(register: Register) -> None:
    """Register the models of attention, by ``register``."""
    from smimbench_attention.models.attention_indexed import AttentionIndexed
    from smimbench_attention.models.sequence_multi_index import SequenceMultiIndex

    for model in (AttentionIndexed, SequenceMultiIndex):
        register(model)


@hookimpl
def smimbench_register_inputs(register: Register) -> None:
    """Register the inputs, laws of the tokens, by ``register``."""
    from smimbench_attention.inputs.array import ArrayInputs
    from smimbench_attention.inputs.correlated import CorrelatedTokens
    from smimbench_attention.inputs.independent import (
        GaussianInputs,
        HeavyTails,
        OneHot,
        Sphere,
    )
    from smimbench_attention.inputs.power_law import PowerLaw
    from smimbench_attention.inputs.text import Text

    for inputs in (
        ArrayInputs,
        CorrelatedTokens,
        GaussianInputs,
        HeavyTails,
        OneHot,
        PowerLaw,
        Sphere,
        Text,
    ):
        register(inputs)


@hookimpl
def smimbench_register_channels(register: Register) -> None:
    """Register the channels, by ``register``."""
    from smimbench_attention.channels.attention.hardmax import AttentionHardmax
    from smimbench_attention.channels.attention.softmax import AttentionSoftmax
    from smimbench_attention.channels.linear import AttentionLinear, SequenceLinear
    from smimbench_attention.channels.sequence.hardmax import SequenceHardmax
    from smimbench_attention.channels.sequence.perceptron import Probit, Sign
    from smimbench_attention.channels.sequence.softmax import SequenceSoftmax

    attention_channels = (AttentionSoftmax, AttentionHardmax, AttentionLinear)
    for channel in (
        *attention_channels,
        SequenceLinear,
        SequenceSoftmax,
        SequenceHardmax,
        Sign,
        Probit,
    ):
        register(channel)


@hookimpl
def smimbench_register_priors(register: Register) -> None:
    """Register the priors, by ``register``."""
    from smimbench_attention.priors.bilinear import Bilinear
    from smimbench_attention.priors.gaussian import Gaussian
    from smimbench_attention.priors.wishart import Wishart

    for prior in (Wishart, Bilinear, Gaussian):
        register(prior)


@hookimpl
def smimbench_register_metrics(register: Register) -> None:
    """Register the metrics, in the order of ``smimbench list metrics``."""
    from smimbench_attention.metrics.cosine import Cosine
    from smimbench_attention.metrics.generalization import (
        BayesError,
        ConstantError,
        PluginError,
    )
    from smimbench_attention.metrics.mse import MSE
    from smimbench_attention.metrics.nishimori import Calibration, Nishimori
    from smimbench_attention.metrics.overlap import OverlapMetric

    for metric in (
        MSE,
        OverlapMetric,
        BayesError,
        PluginError,
        ConstantError,
        Calibration,
        Cosine,
        Nishimori,
    ):
        register(metric)


@hookimpl
def smimbench_register_algorithms(register: Register) -> None:
    """Register the algorithms; figures give them colors and markers in this order."""
    from smimbench_attention.algorithms.adam import Adam, AdamW
    from smimbench_attention.algorithms.averaged import Averaged
    from smimbench_attention.algorithms.erm import Erm
    from smimbench_attention.algorithms.gamp import Gamp
    from smimbench_attention.algorithms.nuclear import Nuclear
    from smimbench_attention.algorithms.ridge import Ridge
    from smimbench_attention.algorithms.sgd import Muon, Sgd, SignSgd
    from smimbench_attention.algorithms.spectral import Spectral

    for algorithm in (
        Gamp,
        Adam,
        Sgd,
        Spectral,
        Ridge,
        Averaged,
        Nuclear,
        AdamW,
        Erm,
        SignSgd,
        Muon,
    ):
        register(algorithm)
