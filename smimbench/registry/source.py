"""Hash of an item's source code, to detect changes."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import io
import sys
import tokenize
from pathlib import Path
from typing import Any

LENGTH = 12
"""Digits of the hash."""
SHARED = ("site-packages", "dist-packages")
"""Folders of unrelated packages."""
OWN = ("smimbench", "smimbench_attention")
"""Packages of smimbench itself, whose version stands for their code."""


def source_of(item: type[Any]) -> str | None:
    """Hash of an item's source files, of its base classes, and of what they import from the same folder.

    Comments, blank lines and spaces at the end of lines do not count. What another package, smimbench included, changes is
    that package's version. None where there is no code to look at, as for a class typed in at a prompt.

    Parameters
    ----------
    item : type
    """
    modules = dict.fromkeys(cls.__module__ for cls in item.__mro__ if not _is_foreign(cls.__module__))
    files: dict[Path, bytes] = {}
    for name in modules:
        module = sys.modules.get(name)
        try:
            path = Path(inspect.getfile(module)) if module is not None else Path()
        except TypeError:  # built into Python, or made by hand
            continue
        if path.is_file():
            _collect(path, _root(name, path), files)
    if not files:
        try:
            text = inspect.getsource(item)
        except (OSError, TypeError):
            return None
        return hashlib.sha256(_code(text.encode())).hexdigest()[:LENGTH]
    root = min(files).parent
    while not all(path.is_relative_to(root) for path in files):
        root = root.parent
    whole = hashlib.sha256()
    for path in sorted(files):
        whole.update(f"{path.relative_to(root).as_posix()}\n".encode() + files[path])
    return whole.hexdigest()[:LENGTH]


def _is_foreign(module: str) -> bool:
    """Whether a class belongs to smimbench, to Python, or to a module without a file."""
    first = module.partition(".")[0]
    return first in (*OWN, "__main__") or first in sys.stdlib_module_names


def _root(name: str, path: Path) -> Path:
    """Folder whose imports belong to the item: the folder of its package, or that of a single file."""
    depth = name.count(".") + (path.name == "__init__.py")
    return path.resolve().parents[max(depth - 1, 0)] if depth else path.resolve().parent


def _collect(path: Path, root: Path, files: dict[Path, bytes]) -> None:
    """Add a source file and, recursively, the files below ``root`` that it imports."""
    path = path.resolve()
    if path in files:
        return
    data = path.read_bytes()
    if path.suffix != ".py":  # compiled: every byte counts
        files[path] = data
        return
    files[path], imports = _parsed(data)
    package = root.name if (root / "__init__.py").exists() else None
    for node in imports:
        if isinstance(node, ast.Import):
            wanted = [(root, alias.name.split(".")) for alias in node.names]
        else:
            parts = node.module.split(".") if node.module else []
            base = path.parents[node.level - 1] if node.level else root
            wanted = [(base, [*parts, alias.name]) for alias in node.names]
        for base, parts in wanted:
            own = parts[1:] if base == root and package is not None and parts[:1] == [package] else parts
            _collect_module(base, own, root, files)


def _collect_module(base: Path, parts: list[str], root: Path, files: dict[Path, bytes]) -> None:
    """Add the file of the module ``parts`` below ``base``, or of the module that defines its last name."""
    for length in range(len(parts), 0, -1):
        place = base.joinpath(*parts[:length])
        for candidate in (place.with_suffix(".py"), place / "__init__.py"):
            if candidate.is_file() and candidate.resolve().is_relative_to(root) and root.name not in SHARED:
                _collect(candidate, root, files)
                return


@functools.lru_cache(maxsize=256)  # many items of one package have the same files
def _parsed(data: bytes) -> tuple[bytes, list[ast.Import | ast.ImportFrom]]:
    """Python source as ``_code`` has it, and what it imports."""
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError):
        return _code(data), []
    return _code(data), [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]


def _code(data: bytes) -> bytes:
    """Python source without comments, blank lines and trailing spaces."""
    try:
        lines = data.decode("utf-8-sig").splitlines()
        for token in tokenize.generate_tokens(io.StringIO("\n".join(lines) + "\n").readline):
            if token.type == tokenize.COMMENT:
                row, column = token.start
                lines[row - 1] = lines[row - 1][:column]
    except (UnicodeDecodeError, tokenize.TokenError, SyntaxError):
        return data
    return "\n".join(line for line in map(str.rstrip, lines) if line).encode()
