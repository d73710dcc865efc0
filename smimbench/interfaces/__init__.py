"""The six contracts (model, inputs, channel, prior, metric, algorithm) and the small data types that pass between them.

Every item is an immutable object, usually a frozen dataclass: its fields are its parameters, its class attributes
``name``, ``version``, ``reference`` and ``capabilities`` say what it is. ``version`` is an integer that is raised
whenever the numbers that the item produces change; it is part of the key under which results are stored.

Shapes and letters used everywhere:

===========  ==========================================================================================
``n``        samples
``T``        tokens of a sample
``D``        dimension of a token
``P``        index components (directions, or layers)
``C``        sites: tokens (sequence-multi-index) or unordered token pairs a <= b (attention-indexed)
``z``        latents, ``(n, P, C)``; given an estimate, ``z ~ N(omega, V (x) I_C)``, ``V`` of shape ``(P, P)``
===========  ==========================================================================================

What an item may leave out is an attribute of its base class with a default; docs/hooks.md lists them all. A class that does
not inherit from the base class is given the same defaults when it is registered.
All arrays follow the Python array API standard; an item works on the namespace and the device of its inputs.
"""

from smimbench.interfaces.algorithm import (
    Algorithm,
    AlgorithmPrediction,
    Conditions,
    Info,
    Overlaps,
    Plan,
    StoppingRule,
)
from smimbench.interfaces.channel import SYMMETRIES, Channel, Posterior, Sampling
from smimbench.interfaces.checks import checked_posterior
from smimbench.interfaces.inputs import Inputs
from smimbench.interfaces.item import (
    Array,
    Capabilities,
    Cost,
    Host,
    Item,
    ParameterError,
    Uncertain,
    require,
    takes,
)
from smimbench.interfaces.metric import DIRECTIONS, Claims, Metric, NotMeasured
from smimbench.interfaces.model import Model, is_symmetric
from smimbench.interfaces.prior import Denoised, Factor, Law, Overlap, Prior
from smimbench.interfaces.problem import Data, ProblemLike, Start

__all__ = [
    "DIRECTIONS",
    "SYMMETRIES",
    "Algorithm",
    "AlgorithmPrediction",
    "Array",
    "Capabilities",
    "Channel",
    "Claims",
    "Conditions",
    "Cost",
    "Data",
    "Denoised",
    "Factor",
    "Host",
    "Info",
    "Inputs",
    "Item",
    "Law",
    "Metric",
    "Model",
    "NotMeasured",
    "Overlap",
    "Overlaps",
    "ParameterError",
    "Plan",
    "Posterior",
    "Prior",
    "ProblemLike",
    "Sampling",
    "Start",
    "StoppingRule",
    "Uncertain",
    "checked_posterior",
    "is_symmetric",
    "require",
    "takes",
]
