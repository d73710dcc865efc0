"""Learning problems (model, channel, prior, inputs), their instances, and their random seeds.

Plugins import the names of this page from here.
"""

from smimbench.problem.instance import Instance
from smimbench.problem.problem import Problem, ProblemError

__all__ = ["Instance", "Problem", "ProblemError"]
