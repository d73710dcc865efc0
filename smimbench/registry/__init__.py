"""The registry of plugins: what is registered, how parameters are checked, templates of new packages.

Plugins import the names of this page from here.
"""

from smimbench.registry.parameters import build, parameters_of
from smimbench.registry.registry import Entry, Plugin, Registry, RegistryError, get_registry

__all__ = ["Entry", "Plugin", "Registry", "RegistryError", "build", "get_registry", "parameters_of"]
