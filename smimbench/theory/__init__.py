"""State evolution, thresholds and prediction errors: pure mathematics, no clock, no printing, no files.

``smimbench.theory`` is this package and can also be called like a function, ``smimbench.theory(suite)``; see
``smimbench.api.theory``.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _CallableModule(ModuleType):
    """A module that can be called: the user's word for the folder and for the verb is the same."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from smimbench.api import theory

        return theory(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule
