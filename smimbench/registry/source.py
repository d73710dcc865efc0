"""Hashes the source code of third-party items, to detect changes."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import io
import sys
import tokenize
from pathlib import Path

LENGTH = 12
"""Digits of the hash."""
OWN_PACKAGES = ("smimbench", "smimbench_attention")
"""Packages of smimbench itself, whose version stands for their code."""
DROP_IN = "smimbench_dropin_"
"""Start of the module names of drop-in plugins."""


def source_of(item: type[object]) -> str | None:
    """Return a hash of the source files of an item's package; for a drop-in file, of it and the neighbors that it imports.

    Comments, blank lines and trailing spaces do not count, nor does the code of other packages, which have versions of their own.
    None if there is no source code, as for a class defined in an interactive session.

    Parameters
    ----------
    item : type
    """
    module = next(
        (
            cls.__module__
            for cls in item.__mro__
            if not _has_no_plugin_code(cls.__module__)
        ),
        "",
    )
    path = Path(getattr(sys.modules.get(module), "__file__", None) or "").resolve()
    if not path.is_file():
        try:
            text = inspect.getsource(item)
        except (OSError, TypeError):
            return None
        return hashlib.sha256(_code_without_comments(text.encode())).hexdigest()[
            :LENGTH
        ]
    package = _package_folder(module, path)
    files = (
        _package_files(package)
        if package
        else _imported_files(path)
        if module.startswith(DROP_IN)
        else {path}
    )
    digest = hashlib.sha256()
    for file in sorted(files):
        content = file.read_bytes()
        name = file.relative_to(package or path.parent).as_posix()
        digest.update(
            f"{name}\n".encode()
            + (_code_without_comments(content) if file.suffix == ".py" else content)
        )
    return digest.hexdigest()[:LENGTH]


def _has_no_plugin_code(module: str) -> bool:
    """Whether a module belongs to smimbench, to Python's library, or has no file."""
    return module.partition(".")[0] in (
        *OWN_PACKAGES,
        "__main__",
        *sys.stdlib_module_names,
    )


def _package_folder(module: str, path: Path) -> Path | None:
    """Folder of the outermost package of a module; None for a single file."""
    depth = module.count(".") + (path.name == "__init__.py")
    packages = [
        folder for folder in path.parents[:depth] if (folder / "__init__.py").is_file()
    ]
    return packages[-1] if packages else None


def _package_files(folder: Path) -> set[Path]:
    """Python sources and compiled modules of a package."""
    return {
        path
        for path in folder.rglob("*")
        if path.suffix in (".py", ".so", ".pyd") and path.is_file()
    }


def _imported_files(path: Path) -> set[Path]:
    """A drop-in file, with the neighboring modules and packages that it imports, directly or indirectly."""
    files: set[Path] = set()
    waiting = {path}
    while waiting:
        file = waiting.pop()
        files.add(file)
        for name in _imported_names(file.read_bytes()) if file.suffix == ".py" else ():
            package, module = path.parent / name, path.parent / f"{name}.py"
            if (package / "__init__.py").is_file():
                waiting |= _package_files(package) - files
            elif module.is_file():
                waiting |= {module} - files
    return files


def _imported_names(source: bytes) -> set[str]:
    """Top-level names of the modules that Python source code imports."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError):
        return set()
    names = [
        alias.name
        for node in nodes
        if isinstance(node, ast.Import)
        for alias in node.names
    ]
    names += [
        node.module
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module and not node.level
    ]
    return {name.partition(".")[0] for name in names}


@functools.cache  # many items of one package have the same files
def _code_without_comments(source: bytes) -> bytes:
    """Python source code without comments, blank lines and trailing spaces."""
    try:
        lines = source.decode("utf-8-sig").splitlines()
        for token in tokenize.generate_tokens(
            io.StringIO("\n".join(lines) + "\n").readline
        ):
            if token.type == tokenize.COMMENT:
                row, column = token.start
                lines[row - 1] = lines[row - 1][:column]
    except (UnicodeDecodeError, tokenize.TokenError, SyntaxError):
        return source
    return "\n".join(line for line in map(str.rstrip, lines) if line).encode()
