"""The registry of plugins: discovery, validation of parameters, and templates of new packages.

Plugins import the names of this page from here.
"""

from smimbench.registry.parameters import build, parameters_of
from smimbench.registry.registry import (
    Entry,
    Plugin,
    Registry,
    RegistryError,
    get_registry,
)

__all__ = [
    "Entry",
    "Plugin",
    "Registry",
    "RegistryError",
    "build",
    "get_registry",
    "parameters_of",
]
