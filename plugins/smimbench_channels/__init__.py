"""Channels shipped with smimbench: how the latents determine the label."""

from collections.abc import Callable

from smimbench.hookspecs import hookimpl


@hookimpl
def smimbench_register_channels(register: Callable[[type], None]) -> None:
    """Register the channels in this folder."""
    from smimbench_channels.attention.hardmax import AttentionHardmax
    from smimbench_channels.attention.linear import AttentionLinear
    from smimbench_channels.attention.softmax import AttentionSoftmax
    from smimbench_channels.sequence.hardmax import SequenceHardmax
    from smimbench_channels.sequence.linear import SequenceLinear
    from smimbench_channels.sequence.perceptron import Probit, Sign
    from smimbench_channels.sequence.softmax import SequenceSoftmax

    attention = (AttentionSoftmax, AttentionHardmax, AttentionLinear)
    for channel in (*attention, SequenceSoftmax, SequenceHardmax, SequenceLinear, Sign, Probit):
        register(channel)
