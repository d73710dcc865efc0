"""A problem (model, channel, prior), its instances, and where their random numbers come from.

Plugins import the names of this page from here.
"""

from smimbench.problem.instance import Instance
from smimbench.problem.problem import Problem, ProblemError

__all__ = ["Instance", "Problem", "ProblemError"]
