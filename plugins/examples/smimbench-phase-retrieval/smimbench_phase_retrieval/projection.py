"""Base class of the channels of real phase retrieval, with what they declare in common."""

from smimbench import Capabilities

__all__ = ["SizeOfProjection"]


class SizeOfProjection:
    """Base class of channels whose labels depend on a projection of the signal but not on its sign."""

    version = 1
    capabilities = Capabilities(models=("sequence-multi-index",))
    symmetry = "signs"
    components = 1
