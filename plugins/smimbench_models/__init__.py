"""Models shipped with smimbench: how the signal and the inputs form the latents, one per file."""

from collections.abc import Callable

from smimbench.hookspecs import hookimpl


@hookimpl
def smimbench_register_models(register: Callable[[type], None]) -> None:
    """Register the models in this folder."""
    from smimbench_models.attention_indexed import AttentionIndexed
    from smimbench_models.sequence_multi_index import SequenceMultiIndex

    for model in (AttentionIndexed, SequenceMultiIndex):
        register(model)
