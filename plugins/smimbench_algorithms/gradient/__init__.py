"""Base class and losses of the gradient methods."""

from smimbench_algorithms.gradient.descent import Descent

__all__ = ["Descent"]
