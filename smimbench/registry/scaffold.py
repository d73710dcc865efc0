"""Creates the package of a new plugin, with a working item (inputs, channel, prior or algorithm) to edit."""

from __future__ import annotations

import importlib.resources
import importlib.util
import re
import shlex
import shutil
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

from smimbench.files import ForeseenError
from smimbench.registry.registry import get_registry


class ScaffoldError(ForeseenError):
    """Raised if a new package cannot be written under this name or in this folder; the message says what would be right."""


@dataclass(frozen=True)
class Package:
    """A newly created package: its folder, its files, and the commands to run next."""

    folder: Path
    files: list[str]
    commands: list[str]


def write_package(kind: str, name: str, output: Path | None) -> Package:
    """Write an installable package with one working item, its tests, a suite and a README.

    Parameters
    ----------
    kind : str
        ``"inputs"``, ``"channel"``, ``"prior"`` or ``"algorithm"``.
    name : str
        Lower-case letters, digits and ``-`` or ``_``, beginning with a letter: ``mine`` gives the item ``mine`` in the package
        ``smimbench_mine`` of the distribution ``smimbench-mine``.
    output : Path or None
        Folder, which must not exist; default ``smimbench-NAME``.

    Raises
    ------
    ScaffoldError
    """
    _require_free_name(kind, name)
    slug, item = name.replace("-", "_"), name.replace("_", "-")
    module, distribution = f"smimbench_{slug}", f"smimbench-{item}"
    folder = output if output is not None else Path(distribution)
    if folder.exists() or folder.is_symlink():
        raise ScaffoldError(
            f"folder {folder} already exists; choose another name, or another folder with --output"
        )
    location = folder.as_posix() if folder.is_absolute() else f"./{folder.as_posix()}"
    steps = [
        [
            "smimbench",
            "new",
            kind,
            name,
            *(["--output", str(output)] if output else []),
        ],
        ["pip", "install", f"{location}[test]"],
        ["pytest", location],
        ["smimbench", "run", f"{location}/{slug}.toml"],
        ["smimbench", "show", f"{location}/{slug}.toml"],
    ]
    commands = [shlex.join(step) for step in steps]
    values = {
        "kind": kind,
        "name": item,
        "slug": slug,
        "module": module,
        "distribution": distribution,
        "cls": "".join(word.capitalize() for word in slug.split("_") if word)
        + kind.capitalize(),
        "smimbench_version": re.sub(r"\.?dev.*|\+.*", "", version("smimbench")),
        "commands": "\n".join(commands),
    }
    templates = importlib.resources.files("smimbench.registry") / "templates"
    folder_of_kind, common = templates / kind, templates / "common"
    values["advice"] = _fill_template(folder_of_kind / "advice.md.tmpl", values).strip()
    files = {
        "pyproject.toml": common / "pyproject.toml.tmpl",
        "README.md": common / "README.md.tmpl",
        f"{module}/__init__.py": folder_of_kind / "item.py.tmpl",
        f"tests/test_{slug}.py": folder_of_kind / "test_item.py.tmpl",
        f"{slug}.toml": folder_of_kind / "suite.toml.tmpl",
    }
    _write_files(
        folder,
        {path: _fill_template(template, values) for path, template in files.items()},
    )
    return Package(folder, sorted(files), commands[1:])


def _require_free_name(kind: str, name: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9]*([_-][a-z0-9]+)*", name):
        close = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-0123456789")
        hint = (
            f"; {close!r} would be valid"
            if re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", close)
            else ""
        )
        raise ScaffoldError(
            f"{name!r} is not a valid name: use lower-case letters, digits, '_' or '-', beginning with a letter{hint}"
        )
    item = name.replace("_", "-")
    same_name = [
        entry
        for entry in get_registry().entries(kind)
        if entry.name.replace("_", "-") == item
    ]
    if same_name:
        raise ScaffoldError(
            f"{kind} {item!r} already exists in package {same_name[0].distribution!r}; choose another name"
        )
    module = f"smimbench_{name.replace('-', '_')}"
    if importlib.util.find_spec(module) is not None:
        raise ScaffoldError(
            f"a Python package {module} is already installed; choose another name"
        )


def _fill_template(template: Traversable, values: dict[str, str]) -> str:
    return Template(template.read_text(encoding="utf-8")).substitute(values)


def _write_files(folder: Path, files: dict[str, str]) -> None:
    """Write all files of a new package, or none of them if one fails."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            dir=folder.parent, prefix=".smimbench-new-"
        ) as temporary:
            built = Path(temporary) / "package"
            for path, text in files.items():
                file = built / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
            shutil.move(built, folder)
    except OSError as error:
        raise ScaffoldError(
            f"folder {folder} cannot be written: {error.strerror or error}"
        ) from None
