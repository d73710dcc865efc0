"""Settings of a suite (itself, and what ``--set`` and ``--only`` made of it), and the result folder of each.

Records are named by what was run, so all settings of a suite share them. ``run.json`` and the figures belong to one: those
of the suite as it is written lie in ``results/SUITE``, all others in ``results/SUITE/settings/NAME``.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smimbench.run.store import Store

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smimbench.files import JsonObject
    from smimbench.suite.cells import Suite

__all__ = ["Settings", "options_of", "settings_folder", "settings_of_suite", "settings_under", "why_none", "words_of"]

FOLDER = "settings"


@dataclass(frozen=True)
class Settings:
    """One way in which a suite was run: the store with its records, and what ``run.json`` says."""

    folder: Path
    store: Store
    shared: JsonObject

    @property
    def suite(self) -> str:
        """Name of the suite."""
        return str(self.shared.get("suite", self.store.folder.name))

    @property
    def words(self) -> str:
        """The options that make them, as one would type them; empty for the suite as it is written."""
        return words_of(self.shared)


def words_of(shared: Mapping[str, Any]) -> str:
    """The options that ``run.json`` names, as one would type them."""
    return _words(shared.get("overrides", []), shared.get("only", []))


def options_of(suite: Suite) -> str:
    """The options that made a suite what it is, as one would type them."""
    return _words(suite.overrides, [f"{key}={value}" for key, value in suite.only])


def _words(overrides: Sequence[str], only: Sequence[str]) -> str:
    return " ".join(f"{option} {shlex.quote(text)}" for option, text in _sorted_options(overrides, only))


def _sorted_options(overrides: Sequence[str], only: Sequence[str]) -> list[tuple[str, str]]:
    """Options in one order, whatever order they were given in.

    Of a key that is set twice the last counts, of what is appended everything.
    """
    keys = [text.partition("=")[0].strip() for text in overrides]
    last = {text if key.endswith("+") else key: text for key, text in zip(keys, overrides)}
    return [("--set", last[key]) for key in sorted(last)] + [("--only", text) for text in sorted(set(only))]


def settings_folder(suite: Suite, store: Store) -> Path:
    """Where ``run.json`` and the figures of a suite lie that was changed in this way."""
    given = _sorted_options(suite.overrides, [f"{key}={value}" for key, value in suite.only])
    if not given:
        return store.folder
    text = " ".join(f"{option[2:]} {value}" for option, value in given)
    name = re.sub(r"[^A-Za-z0-9.=+-]+", "_", " ".join(value for _, value in given))[:60]
    return store.folder / FOLDER / f"{name}.{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def settings_under(folder: Path) -> list[Settings]:
    """What was run in a folder: that of one settings, of a suite, or of all suites of one ``--results``."""
    if (own := _read_settings(folder)) is not None:
        return [own]
    inside = settings_of_suite(folder)
    if inside or not folder.is_dir():
        return inside
    return [found for one in sorted(folder.iterdir()) if one.is_dir() for found in settings_of_suite(one)]


def settings_of_suite(folder: Path) -> list[Settings]:
    """All settings under which one suite was run, its own first."""
    places = [folder, *(sorted((folder / FOLDER).iterdir()) if (folder / FOLDER).is_dir() else ())]
    return [found for found in map(_read_settings, places) if found is not None]


def _read_settings(folder: Path) -> Settings | None:
    try:
        shared = Store(folder).check_shared()
    except (OSError, ValueError):
        return None
    records = folder.parent.parent if folder.parent.name == FOLDER else folder
    return Settings(folder, Store(records), shared)


def why_none(folder: Path) -> str:
    """Why nothing that was run is found under a folder, in words."""
    try:
        Store(folder).check_shared()
    except ValueError as error:
        return f"run.json cannot be used: {error}"
    except OSError:
        pass
    return "not a results folder (it has no readable run.json)"
