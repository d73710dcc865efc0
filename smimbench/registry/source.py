"""Source code of third-party items: hashes, to detect changes, and what it imports."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import io
import sys
import tokenize
from pathlib import Path

HASH_DIGITS = 12
"""Digits of the hash."""
SHIPPED_PACKAGES = ("smimbench", "smimbench_attention")
"""Packages that ship with smimbench, whose version stands for their code."""
DROP_IN_PREFIX = "smimbench_dropin_"
"""Prefix of the module names of drop-in plugins."""


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
            if not _is_not_plugin_code(cls.__module__)
        ),
        "",
    )
    path = Path(getattr(sys.modules.get(module), "__file__", None) or "").resolve()
    if not path.is_file():
        try:
            source_text = inspect.getsource(item)
        except (OSError, TypeError):
            return None
        return hashlib.sha256(_code_without_comments(source_text.encode())).hexdigest()[
            :HASH_DIGITS
        ]
    package_folder = _package_folder(module, path)
    files = (
        _package_files(package_folder)
        if package_folder
        else imported_files(path)
        if module.startswith(DROP_IN_PREFIX)
        else {path}
    )
    running_hash = hashlib.sha256()
    for file in sorted(files):
        file_bytes = file.read_bytes()
        relative_path = file.relative_to(package_folder or path.parent).as_posix()
        running_hash.update(
            f"{relative_path}\n".encode()
            + (
                _code_without_comments(file_bytes)
                if file.suffix == ".py"
                else file_bytes
            )
        )
    return running_hash.hexdigest()[:HASH_DIGITS]


def _is_not_plugin_code(module: str) -> bool:
    """Whether a module belongs to smimbench or to Python's library, or is typed in interactively."""
    return module.partition(".")[0] in (
        *SHIPPED_PACKAGES,
        "__main__",
        *sys.stdlib_module_names,
    )


def _package_folder(module: str, path: Path) -> Path | None:
    """Return the folder of the outermost package that contains a module; None if the module is a single file."""
    package_depth = module.count(".") + (path.name == "__init__.py")
    enclosing_packages = [
        folder
        for folder in path.parents[:package_depth]
        if (folder / "__init__.py").is_file()
    ]
    return enclosing_packages[-1] if enclosing_packages else None


def _package_files(folder: Path) -> set[Path]:
    """List the Python sources and compiled modules of a package."""
    return {
        path
        for path in folder.rglob("*")
        if path.suffix in (".py", ".so", ".pyd") and path.is_file()
    }


def imported_files(path: Path) -> set[Path]:
    """List a drop-in file and the files of neighboring modules and packages that it imports, directly or indirectly."""
    files: set[Path] = set()
    unread_files = {path}
    while unread_files:
        file = unread_files.pop()
        files.add(file)
        for name in _imported_names(file.read_bytes()) if file.suffix == ".py" else ():
            package_folder = path.parent / name
            module_file = path.parent / f"{name}.py"
            if (package_folder / "__init__.py").is_file():
                unread_files |= _package_files(package_folder) - files
            elif module_file.is_file():
                unread_files |= {module_file} - files
    return files


@functools.cache  # a drop-in file is read again for each of its items
def _imported_names(source: bytes) -> frozenset[str]:
    """List the top-level names of the modules that Python source code imports."""
    try:
        syntax_nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError):
        return frozenset()
    module_names = [
        alias.name
        for node in syntax_nodes
        if isinstance(node, ast.Import)
        for alias in node.names
    ]
    module_names += [
        node.module
        for node in syntax_nodes
        if isinstance(node, ast.ImportFrom) and node.module and not node.level
    ]
    return frozenset(module_name.partition(".")[0] for module_name in module_names)


@functools.cache  # many items of one package have the same files
def _code_without_comments(source: bytes) -> bytes:
    """Remove comments, blank lines and trailing spaces from Python source code."""
    try:
        code_lines = source.decode("utf-8-sig").splitlines()
        for token in tokenize.generate_tokens(
            io.StringIO("\n".join(code_lines) + "\n").readline
        ):
            if token.type == tokenize.COMMENT:
                row, column = token.start
                code_lines[row - 1] = code_lines[row - 1][:column]
    except (UnicodeDecodeError, tokenize.TokenError, SyntaxError):
        return source
    return "\n".join(
        code_line for code_line in map(str.rstrip, code_lines) if code_line
    ).encode()
