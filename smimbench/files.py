"""Helpers: canonical JSON, printable errors, files that are written completely or not at all, and a process that is restored."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from importlib.metadata import Distribution

K = TypeVar("K")
T = TypeVar("T")
JsonObject = dict[str, Any]
"""A JSON object: a record, an answer of theory, ``run.json``."""

LEFTOVER = 3600.0
"""Seconds after which a temporary file has no writer any more; doubled, what a killed run left lies there that much longer."""


class ForeseenError(Exception):
    """Base class of expected errors, whose one-line message says what is wrong, where, and what would be right."""


class StoreError(ForeseenError, OSError):
    """Raised if the results folder cannot be used."""


def canonical_json(value: object) -> str:
    """Return JSON text with sorted keys and no spaces, so that equal values give equal text."""
    return json.dumps(
        value,
        sort_keys=True,
        separators=(",", ":"),
        allow_nan=False,
        default=plain_value,
    )


def omit(table: Mapping[K, T], *keys: object) -> dict[K, T]:
    """Return the entries of a table without those of these ``keys``."""
    return {key: value for key, value in table.items() if key not in keys}


def pick(table: Mapping[K, T], keys: Iterable[K]) -> dict[K, T]:
    """Return the entries of a table for these ``keys``, in their order, as far as it has them."""
    return {key: table[key] for key in keys if key in table}


def plain_value(value: object) -> Any:
    """Convert an array, a NumPy number or a set to a JSON value.

    Raises
    ------
    TypeError
        For anything else.
    """
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise TypeError(
        f"a parameter must consist of numbers, strings, lists and tables, got {type(value).__name__}"
    )


_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]"
)
"""Characters that steer a terminal, turn the direction of text or are no text at all; tab and newline are harmless."""


def printable(value: object, max_length: int | None = None) -> str:
    """Return the text of any object (``value``), without characters that control a terminal or break XML, of at most
    ``max_length``.

    Each of those becomes U+FFFD, so that text stays as wide as it was. Beyond ``max_length`` characters the middle is left out.
    """
    try:
        text = str.__str__(value) if isinstance(value, str) else str(value)
    except (
        BaseException
    ) as error:  # an object of a plugin, whose __str__ may do anything
        if isinstance(error, KeyboardInterrupt):
            raise
        text = f"(a {type(value).__name__} that cannot be converted to text)"
    if max_length is not None and len(text) > max_length:
        end_length = max_length // 2
        text = f"{text[:end_length]} ... ({len(text) - 2 * end_length} characters left out) ... {text[-end_length:]}"
    return _CONTROL.sub("\ufffd", text)


def attempt(
    function: Callable[..., object], *arguments: object, **options: object
) -> tuple[Any, Exception | SystemExit | None]:
    """Call third-party code (``function``, with its arguments and options), which may raise anything, and return (result,
    None) or (None, error).
    """
    try:
        return function(*arguments, **options), None
    except (
        Exception,
        SystemExit,
    ) as error:  # code of others; every caller reports the error or lets it decide
        return None, error


def error_line(error: BaseException) -> str:
    """Return type and message of an error on one line."""
    return f"{type(error).__name__}: {' '.join(printable(error, 2000).split()) or 'no message'}"


def suggestion(word: str, choices: Iterable[object], max_choices: int = 40) -> str:
    """Return text such as ``did you mean 'gamp'?`` for a misspelled ``word``, or the list of at most ``max_choices`` choices
    if none is similar.
    """
    import difflib

    choice_texts = list(map(str, choices))
    close_matches = difflib.get_close_matches(word, choice_texts, 1)
    if close_matches:
        return f"did you mean {close_matches[0]!r}?"
    if len(choice_texts) > max_choices:
        choice_texts = [*choice_texts[: max_choices // 2], "...", choice_texts[-1]]
    return f"choose from {', '.join(choice_texts) or 'none'}"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun in the singular or plural, such as ``3 nodes``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def missing(key: str, keys: Iterable[object]) -> str:
    """Return text that a key is missing, naming a present key that looks like a typo of it."""
    import difflib

    close_matches = difflib.get_close_matches(key, map(str, keys), 1)
    return (
        f"is missing ({close_matches[0]!r} looks like a typo)"
        if close_matches
        else "is missing"
    )


def documentation(item: Any) -> str:
    """Return the docstring of an item, a class or function; that of a dataclass without one is its signature, which says nothing
    of what it is.
    """
    import inspect

    text = item.__doc__ or ""
    return "" if text.startswith(f"{item.__name__}(") else inspect.cleandoc(text)


def name_and_version(package: Distribution | None) -> tuple[str, str]:
    """Return name and version of an installed package; instead of an unreadable name, that of its folder."""
    metadata, _ = attempt(getattr, package, "metadata")
    name = metadata["Name"] if metadata else None
    version = metadata["Version"] if metadata else None
    folder_name = getattr(getattr(package, "_path", None), "stem", "unknown")
    return str(name or folder_name), str(version or "")


def error_place(error: BaseException) -> str:
    """Return file and line where an error was raised, outside of installed libraries if possible."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    engine_folder = str(Path(__file__).resolve().parent)
    outside_frames = [
        stack_frame
        for stack_frame in frames
        if "site-packages" not in stack_frame.filename
        and not stack_frame.filename.startswith((engine_folder, "<"))
    ]
    error_frame = (outside_frames or frames)[-1]
    return f"{error_frame.filename}, line {error_frame.lineno}"


def read_json(path: Path) -> Any:
    """Read JSON from a regular file of at most 256 MB.

    Raises
    ------
    OSError
        If it cannot be read.
    ValueError
        If it is not a regular file (a pipe would block forever), too large, not JSON, or nested too deeply.
    """
    descriptor = os.open(
        path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    )
    with os.fdopen(descriptor, "rb") as file:
        file_status = os.fstat(descriptor)
        if not stat.S_ISREG(file_status.st_mode):
            raise ValueError("this is not a regular file")
        if file_status.st_size > 1 << 28:
            raise ValueError(
                "the file is larger than 256 MB, the largest that smimbench reads"
            )
        data = file.read()
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError("the file is incomplete or not JSON") from None


def read_text(path: Path) -> str:
    """Read a UTF-8 text file, with or without a byte order mark, with any line endings.

    Raises
    ------
    OSError
        If it cannot be read.
    ValueError
        If it is in another encoding; the message names the first byte that shows it.
    """
    data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        byte = data[error.start]
        raise ValueError(
            f"line {line} has the byte 0x{byte:02x}, which is not UTF-8; save the file as UTF-8"
        ) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_npz(
    file: IO[bytes], size_limit: int = 1 << 28, only: str | None = None
) -> JsonObject:
    """Read the arrays of an ``.npz`` file, of at most ``size_limit`` bytes in all, or ``only`` one of them (then None for
    the others).

    Raises ValueError if the arrays take more than ``size_limit`` bytes when unpacked.
    """
    import numpy as np

    with np.load(file, allow_pickle=False) as arrays:
        unpacked_size = sum(
            member.file_size
            for member in arrays.zip.infolist()
            if only in (None, member.filename[:-4])
        )
        if unpacked_size > size_limit:
            raise ValueError(
                f"the file is larger than {size_limit >> 20} MB when unpacked"
            )
        return {
            name: arrays[name] if only in (None, name) else None
            for name in arrays.files
        }


def write_atomically(
    path: Path,
    data: bytes | Callable[[IO[bytes]], object],
    *,
    durable_name: bool = True,
) -> None:
    """Write ``data`` to a file atomically: readers see the old file or the complete new one, even if this process is killed.
    With ``durable_name`` the new name survives a power cut.

    ``data`` are the bytes, or a function that writes them.

    ``durable_name`` makes the new name outlive a power cut as well; it costs as much as the rest.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary_path = path.with_name(
            f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp"
        )
        try:
            with open(temporary_path, "wb") as file:
                if callable(data):
                    data(file)
                else:
                    file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary_path, path)
        finally:
            temporary_path.unlink(missing_ok=True)
        if durable_name:
            sync_folder(path.parent)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}") from error


def check_writable(path: Path) -> None:
    """Raise StoreError if a file cannot be written; an existing file is not changed.

    Raises
    ------
    StoreError
    """
    trial_path = path.with_name(f".{path.name}.{os.urandom(4).hex()}.tmp")
    write_atomically(trial_path, b"", durable_name=False)
    trial_path.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> int:
    """Remove temporary files, more than an hour old, of processes that were killed while writing below a folder.

    Returns
    -------
    int
        Number of files that were removed.
    """
    removed_count = 0
    for path in folder.rglob(".*.tmp"):
        if not re.fullmatch(r"\..+\.\d+\.[0-9a-f]{8}\.tmp", path.name):
            continue
        file_status = unless(OSError, path.stat)
        # The date of a file may be in the future, if a clock was ahead.
        if (
            file_status is not None
            and abs(time.time() - file_status.st_mtime) > LEFTOVER
        ):
            unless(OSError, path.unlink)
            removed_count += not path.exists()
    return removed_count


def unless(
    errors: type[Exception], function: Callable[..., T], *arguments: object
) -> T | None:
    """Return the result of ``function`` of these arguments, or None if it raises one of the given errors (a file that has
    vanished, say).
    """
    try:
        return function(*arguments)
    except errors:
        return None


@contextlib.contextmanager
def restored_working_folder() -> Iterator[None]:
    """Context that restores the working folder at its end, in case a plugin changes it."""
    folder = os.getcwd()
    try:
        yield
    finally:
        os.chdir(folder)


@contextlib.contextmanager
def restored_process(
    foreign_path: set[str], *, restores_environment: bool
) -> Iterator[None]:
    """Context that moves a plugin's additions to ``sys.path`` to its end, adds them to ``foreign_path``, and undoes its changes
    to environment variables if ``restores_environment``.
    """
    environment_before = dict(os.environ)
    path_before = list(sys.path)
    try:
        yield
    finally:
        added_entries = [
            path_entry for path_entry in sys.path if path_entry not in path_before
        ]
        foreign_path.update(added_entries)
        sys.path[:] = [*path_before, *added_entries]
        if restores_environment and dict(os.environ) != environment_before:
            os.environ.clear()
            os.environ.update(environment_before)


def sync_folder(folder: Path) -> None:
    """Make the names of files in a folder durable (survive a power cut), if the system supports it."""
    descriptor = unless(OSError, os.open, folder, os.O_RDONLY)
    if descriptor is not None:
        unless(OSError, os.fsync, descriptor)
        os.close(descriptor)
