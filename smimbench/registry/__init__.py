"""The registry of plugins, with validation of their parameters and templates for new packages.

Plugins import the names of this page from here.
"""

from smimbench.registry.items import build, parameters_of
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
