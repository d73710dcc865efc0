"""What the channels of phase retrieval declare."""

from smimbench import Capabilities

__all__ = ["SizeOfProjection"]


class SizeOfProjection:
    """Labels of the projections on one direction that do not see its sign."""

    version = 1
    capabilities = Capabilities(models=("sequence-multi-index",))
    symmetry = "signs"
    components = 1
