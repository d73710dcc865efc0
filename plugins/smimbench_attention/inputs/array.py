"""Inputs read from a NumPy file."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from smimbench.files import error_line
from smimbench.interfaces import Capabilities, Inputs, ParameterError
from smimbench.interfaces.checks import describe_nonfinite

if TYPE_CHECKING:
    from smimbench.interfaces import Host


@dataclass(frozen=True)
class ArrayInputs(Inputs):
    """Samples drawn without replacement from an array in a NumPy file.
    ``path`` is the file, ``key`` the name of the array in an .npz, ``digest`` a hash of the array.

    They are not preprocessed: subtract means and scale to variance 1 before. Seeds share the samples of the file, and so do
    the batches of an algorithm that asks for fresh samples.

    Parameters
    ----------
    path : str
        A .npy or .npz file with an array (N, T, D), or (N, D) for one token.
    key : str
        Name of the array in an .npz file.
    digest : str
        First 16 digits of the array's SHA-256. Filled in from the file; where it is given, another array is refused.

    Raises
    ------
    ParameterError
        If there is no such array, if it is not the one of the digest, or, when they are drawn, if it has other tokens or
        dimensions than asked for, or fewer samples.
    """

    path: str
    key: str = "inputs"
    digest: str = ""

    name = "array"
    version = 1
    reference = "a file of the user"
    capabilities = Capabilities()

    def __post_init__(self) -> None:
        """Load the array, and check or set its digest (hash)."""
        try:
            file_status = Path(self.path).stat()
            digest = _load_array(
                self.path, self.key, (file_status.st_mtime_ns, file_status.st_size)
            )[1]
        except ParameterError:
            raise
        except (OSError, ValueError, EOFError) as error:
            raise ParameterError(
                "path",
                f"must be a .npy or .npz file with finite numbers (N, T, D): {error_line(error)}",
            ) from None
        if self.digest not in ("", digest):
            raise ParameterError(
                "digest",
                f"must be {digest}, the digest of the array in {self.path}, got {self.digest}",
            )
        object.__setattr__(self, "digest", digest)

    @property
    def shape(self) -> tuple[int, int]:  # type: ignore[override]
        """Number of tokens per sample and dimension of the tokens in the file."""
        _, tokens, dimension = self._array().shape
        return tokens, dimension

    def _array(self) -> Host:
        """Array (N, T, D) of the file, with N samples of T tokens in D dimensions, read again if the file has changed."""
        file_status = Path(self.path).stat()
        return _load_array(
            self.path, self.key, (file_status.st_mtime_ns, file_status.st_size)
        )[0]

    def draw(
        self, rng: np.random.Generator, n: int, tokens: int, dimension: int
    ) -> Host:
        """Draw n different samples (n, T, D) from the N samples of the file, on the host; T is ``tokens``, D is
        ``dimension``.
        """
        array = self._array()
        if array.shape[1:] != (tokens, dimension) or len(array) < n:
            raise ParameterError(
                "path",
                f"must have at least {n} samples of shape ({tokens}, {dimension}), but the array has {array.shape}",
            )
        return array[rng.permutation(len(array))[:n]]


@lru_cache(maxsize=1)
def _load_array(
    path: str, key: str, time_and_size: tuple[int, int]
) -> tuple[Host, str]:
    """Load the array (N, T, D) of this key from the file at ``path``, and compute its digest (hash); ``time_and_size`` of the
    file make a changed file load again.

    ``time_and_size`` is part of the cache key and changes with the file.
    """
    del time_and_size
    array_or_archive = np.load(path, allow_pickle=False)
    if not isinstance(array_or_archive, np.ndarray) and key not in array_or_archive:
        raise ParameterError(
            "key",
            f"must be one of {', '.join(array_or_archive)}, the arrays of {path}, got {key!r}",
        )
    array = np.asarray(
        array_or_archive
        if isinstance(array_or_archive, np.ndarray)
        else array_or_archive[key]
    )
    if array.ndim not in (2, 3) or array.dtype.kind not in "fiu":
        raise ValueError(
            "the array must hold real numbers and have two or three axes (N, D) or (N, T, D), "
            f"got type {array.dtype} and shape {array.shape}"
        )
    if defect := describe_nonfinite(array):
        raise ValueError(
            f"the array in {path} must hold finite numbers, but it contains {defect}"
        )
    if array.ndim == 2:
        array = array[:, None, :]
    type_and_shape = f"{array.dtype.str} {array.shape}".encode()
    return array, hashlib.sha256(
        type_and_shape + np.ascontiguousarray(array).tobytes()
    ).hexdigest()[:16]
