"""What all gradient methods share."""

from smimbench_algorithms.gradient.descent import Descent

__all__ = ["Descent"]
