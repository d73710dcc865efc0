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
class NewPackage:
    """Newly created plugin package: its folder, its files, and the commands to run next."""

    folder: Path
    files: list[str]
    commands: list[str]


def write_package(kind: str, name: str, output: Path | None) -> NewPackage:
    """Write an installable package with one working item of this kind and name, its tests, a suite and a README, into the
    new folder ``output`` (None: named after the package).

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
    _require_valid_name(kind, name)
    python_name = name.replace("-", "_")
    item_name = name.replace("_", "-")
    module = f"smimbench_{python_name}"
    distribution = f"smimbench-{item_name}"
    folder = output if output is not None else Path(distribution)
    if folder.exists() or folder.is_symlink():
        raise ScaffoldError(
            f"folder {folder} already exists; choose another name, or another folder with --output"
        )
    folder_argument = (
        folder.as_posix() if folder.is_absolute() else f"./{folder.as_posix()}"
    )
    command_words = [
        [
            "smimbench",
            "new",
            kind,
            name,
            *(["--output", str(output)] if output else []),
        ],
        ["pip", "install", f"{folder_argument}[test]"],
        ["pytest", folder_argument],
        ["smimbench", "run", f"{folder_argument}/{python_name}.toml"],
        ["smimbench", "show", f"{folder_argument}/{python_name}.toml"],
    ]
    commands = [shlex.join(words) for words in command_words]
    template_values = {
        "kind": kind,
        "name": item_name,
        "slug": python_name,
        "module": module,
        "distribution": distribution,
        "cls": "".join(word.capitalize() for word in python_name.split("_") if word)
        + kind.capitalize(),
        "smimbench_version": re.sub(r"\.?dev.*|\+.*", "", version("smimbench")),
        "commands": "\n".join(commands),
    }
    template_folder = importlib.resources.files("smimbench.registry") / "templates"
    kind_templates = template_folder / kind
    common_templates = template_folder / "common"
    template_values["advice"] = _fill_template(
        kind_templates / "advice.md.tmpl", template_values
    ).strip()
    files = {
        "pyproject.toml": common_templates / "pyproject.toml.tmpl",
        "README.md": common_templates / "README.md.tmpl",
        f"{module}/__init__.py": kind_templates / "item.py.tmpl",
        f"tests/test_{python_name}.py": kind_templates / "test_item.py.tmpl",
        f"{python_name}.toml": kind_templates / "suite.toml.tmpl",
    }
    _write_files(
        folder,
        {
            path: _fill_template(template, template_values)
            for path, template in files.items()
        },
    )
    return NewPackage(folder, sorted(files), commands[1:])


def _require_valid_name(kind: str, name: str) -> None:
    """Raise ScaffoldError unless the name of a new item of this kind is well-formed and neither an item nor a package has
    it.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*([_-][a-z0-9]+)*", name):
        similar_name = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-0123456789")
        hint = (
            f"; {similar_name!r} would be valid"
            if re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", similar_name)
            else ""
        )
        raise ScaffoldError(
            f"{name!r} is not a valid name: use lower-case letters, digits, '_' or '-', beginning with a letter{hint}"
        )
    item_name = name.replace("_", "-")
    existing_entries = [
        entry
        for entry in get_registry().entries(kind)
        if entry.name.replace("_", "-") == item_name
    ]
    if existing_entries:
        raise ScaffoldError(
            f"{kind} {item_name!r} already exists in package {existing_entries[0].distribution!r}; choose another name"
        )
    module = f"smimbench_{name.replace('-', '_')}"
    if importlib.util.find_spec(module) is not None:
        raise ScaffoldError(
            f"a Python package {module} is already installed; choose another name"
        )


def _fill_template(template: Traversable, template_values: dict[str, str]) -> str:
    """Read a template file and replace its placeholders by their values."""
    return Template(template.read_text(encoding="utf-8")).substitute(template_values)


def _write_files(folder: Path, files: dict[str, str]) -> None:
    """Write all files of a new package to a folder, or none of them if one fails."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            dir=folder.parent, prefix=".smimbench-new-"
        ) as temporary:
            package_folder = Path(temporary) / "package"
            for path, file_text in files.items():
                file = package_folder / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(file_text, encoding="utf-8")
            shutil.move(package_folder, folder)
    except OSError as error:
        raise ScaffoldError(
            f"folder {folder} cannot be written: {error.strerror or error}"
        ) from None
