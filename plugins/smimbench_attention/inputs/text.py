"""Inputs from words of a text, each embedded by the words that occur around it."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from smimbench.files import error_line
from smimbench.interfaces import Capabilities, Inputs, ParameterError, require

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scipy.sparse import csr_array

    from smimbench.interfaces import Host

WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
SENTENCE = re.compile(r"[.!?]+\s|\n\s*\n")
QUESTION = re.compile(r"^[A-Z]+:\w+ ", re.MULTILINE)


@dataclass(frozen=True)
class Text(Inputs):
    r"""Inputs from a text: a sample is T consecutive words of a sentence, drawn without replacement.
    Word vectors are learned from words at most ``window`` apart, in the half of the text or of the vocabulary that samples
    leave (``split``).

    A word is embedded by the D leading left singular vectors of the matrix (words, words) of positive pointwise mutual
    information,

    .. math:: P_{vw} = \max\Big(0, \log \frac{N_{vw} N}{N_v N_w}\Big),

    with N_vw the number of times that w occurs at most ``window`` words from v in the same sentence, and N_v, N its sums.
    The mean is subtracted from the vectors, and they are whitened: ``x = L^{-1} (u - mean)``, ``L L^T`` the covariance, both
    over the occurrences of words. (Singular values therefore do not matter.) Vectors, mean and covariance are learned from
    every second sentence. Samples come from the other sentences, without words that occur only there; their mean and
    covariance are close to 0 and 1. Lengths of tokens fluctuate at any D: frequent words have short vectors, rare words long
    ones.

    Seeds share the samples of the text. The same text gives the same bits on the same machine.

    Parameters
    ----------
    path : str or None
        A text file, in UTF-8 or Latin-1. Where each line is a question of TREC, ``COARSE:fine question``, the class is left
        out. Without a path: ``pydoc_data.topics`` of the standard library, which differs between versions of Python.
    window : int
        Largest distance of words that count as neighbors.
    split : str
        ``"text"``, as above, or ``"vocabulary"``: vectors are learned from the whole text, mean and covariance from every
        second word of the vocabulary by frequency, and samples are of the other words, less those in between.
    normalized : bool
        Scale every token to ``|x|^2 = D``.
    shuffled : bool
        Shuffle the words of all samples: each token has the same law, and tokens of a sample are independent.
    digest : str
        First 16 digits of the text's SHA-256. Filled in from the text; where it is given, another text is refused.

    Raises
    ------
    ParameterError
        If there is no such text, if it is not the one of the digest, or, when they are drawn, if it has fewer samples, or too
        few words for the dimension.

    References
    ----------
    Levy, Goldberg, Dagan, TACL 3, 211 (2015), doi:10.1162/tacl_a_00134.
    """

    path: str | None = None  # text file; None: built-in text
    window: int = 5
    split: Literal["text", "vocabulary"] = "text"
    normalized: bool = False  # scale every token to |x|^2 = D
    shuffled: bool = False  # shuffle the words of all samples
    digest: str = ""  # hash of the text

    name = "text"
    version = 1
    reference = "Levy, Goldberg, Dagan, TACL 3, 211 (2015)"
    capabilities = Capabilities()

    def __post_init__(self) -> None:
        """Check the parameters ``window`` and ``split``, and check or set the digest (hash) of the text."""
        require(self, "window", self.window >= 1, "at least 1")
        object.__setattr__(self, "digest", _read_text(self.path, self.digest)[1])

    def draw(
        self, rng: np.random.Generator, n: int, tokens: int, dimension: int
    ) -> Host:
        """Draw n different samples (n, T, D) of the text, T words with vectors of D dimensions each, on the host."""
        vectors, samples = self.embedded(tokens, dimension)
        if len(samples) < n:
            raise ParameterError(
                "path",
                f"must have {n} samples of {tokens} consecutive words, but has {len(samples)}",
            )
        if self.shuffled:
            samples = rng.permutation(samples.ravel()).reshape(samples.shape)
        return vectors[samples[rng.permutation(len(samples))[:n]]]

    def embedded(self, tokens: int, dimension: int) -> tuple[Host, Host]:
        """Word vectors (V, D) of the V words of the vocabulary, and all N samples (N, T) of T consecutive words of the text,
        as word indices.
        """
        vectors, sentences = _learn_vectors(
            self.path, self.digest, self.window, self.split, dimension
        )
        if self.normalized:
            vectors = vectors * np.sqrt(
                dimension / np.sum(vectors**2, axis=1, keepdims=True)
            )
        sentence_samples = [
            words[: len(words) // tokens * tokens].reshape(-1, tokens)
            for words in sentences
        ]
        return vectors, np.concatenate(
            [np.zeros((0, tokens), dtype=int), *sentence_samples]
        )

    def covariance(self, tokens: int, dimension: int) -> Host:
        """Covariance (T, T) between tokens over all samples, averaged over features and scaled to mean 1 along its diagonal.

        ``correlated-tokens`` takes it as its ``covariance``: Gaussian tokens with the correlations of this text.
        """
        vectors, samples = self.embedded(tokens, dimension)
        if self.shuffled:
            return np.eye(tokens)
        inputs = vectors[samples]
        inputs = inputs - inputs.mean(axis=(0, 1))
        token_covariance = np.einsum("nsk,ntk->st", inputs, inputs)
        return np.asarray(token_covariance * (tokens / np.trace(token_covariance)))


def _read_text(path: str | None, digest: str) -> tuple[str, str]:
    """Read the text of a file, or without a path the help topics of the Python standard library, and compute its digest (hash);
    it must be ``digest``, unless that is empty. If every line is a question with its class in front, as in the TREC data, the
    classes are left out.
    """
    if path is None:
        from pydoc_data.topics import topics

        text = "\n\n".join(topics[topic] for topic in sorted(topics))
    else:
        try:
            file_bytes = Path(path).read_bytes()
        except OSError as error:
            raise ParameterError(
                "path", f"must be a text file: {error_line(error)}"
            ) from None
        if b"\0" in file_bytes:
            raise ParameterError(
                "path",
                f"must be a text in UTF-8 or Latin-1; {path} is UTF-16 or binary",
            )
        try:
            text = file_bytes.decode()
        except UnicodeDecodeError:
            text = file_bytes.decode("latin-1")
        text_lines = [text_line for text_line in text.splitlines() if text_line.strip()]
        if all(map(QUESTION.match, text_lines)):
            text = "\n\n".join(QUESTION.sub("", text_line) for text_line in text_lines)
    text_digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    if digest not in ("", text_digest):
        raise ParameterError(
            "digest", f"must be {text_digest}, the digest of the text, got {digest}"
        )
    return text, text_digest


def mutual_information(
    sentences: Sequence[Host], vocabulary_size: int, window: int
) -> csr_array:
    """Positive pointwise mutual information (V, V) of the V words of a vocabulary (V is ``vocabulary_size``), counted from pairs
    that are at most ``window`` apart in one of the ``sentences``, arrays of word indices.
    """
    from scipy.sparse import coo_array, csr_array

    words = np.concatenate([np.zeros(0, dtype=int), *sentences])
    sentence_of_word = np.repeat(
        np.arange(len(sentences)), [len(sentence) for sentence in sentences]
    )
    pair_counts = csr_array((vocabulary_size, vocabulary_size))
    for word_distance in range(1, window + 1):
        pairs_in_sentence = np.flatnonzero(
            sentence_of_word[word_distance:] == sentence_of_word[:-word_distance]
        )
        ones_at_pairs = (
            np.ones(len(pairs_in_sentence)),
            (words[pairs_in_sentence], words[pairs_in_sentence + word_distance]),
        )
        pair_counts = (
            pair_counts
            + coo_array(ones_at_pairs, shape=(vocabulary_size, vocabulary_size)).tocsr()
        )
    pair_counts = coo_array(pair_counts + pair_counts.T)
    neighbor_counts = np.asarray(pair_counts.sum(axis=0))
    information = np.log(
        pair_counts.data
        * (
            neighbor_counts.sum()
            / (neighbor_counts[pair_counts.row] * neighbor_counts[pair_counts.col])
        )
    )
    return csr_array(
        (np.maximum(information, 0), (pair_counts.row, pair_counts.col)),
        shape=pair_counts.shape,
    )


@lru_cache(maxsize=4)
def _learn_vectors(
    path: str | None, digest: str, window: int, split: str, dimension: int
) -> tuple[Host, list[Host]]:
    """Learn whitened vectors (V, D) of all V words of the text at ``path`` (with its digest) from pairs of words at most
    ``window`` apart, and return them with the sentences that samples are drawn from; ``split`` says whether training and samples
    divide the sentences or the vocabulary. ``word_weights`` are the frequencies of the training words, over which the vectors are
    whitened.

    Sentences are arrays of word indices.
    """
    from scipy.linalg import solve_triangular
    from scipy.sparse.linalg import ArpackError, svds

    text, _ = _read_text(path, digest)
    text_sentences = list(filter(None, map(WORD.findall, SENTENCE.split(text.lower()))))
    vocabulary_sentences = text_sentences[::2] if split == "text" else text_sentences
    word_counts = Counter(
        word for sentence in vocabulary_sentences for word in sentence
    )
    vocabulary = sorted(word_counts, key=lambda word: (-word_counts[word], word))
    word_indices = {word: word_index for word_index, word in enumerate(vocabulary)}
    sentences = [
        np.array(
            [word_indices[word] for word in sentence if word in word_indices], dtype=int
        )
        for sentence in text_sentences
    ]
    if split == "text":
        training_sentences = sentences[::2]
        sample_sentences = sentences[1::2]
        is_training_word = np.ones(len(word_indices), dtype=bool)
    else:
        # Ranks 0, 3, 4, 7, 8, ... against 1, 2, 5, 6, ...: both halves have words of all frequencies.
        is_training_word = np.isin(np.arange(len(word_indices)) % 4, (0, 3))
        training_sentences = sentences
        sample_sentences = [words[~is_training_word[words]] for words in sentences]
    if (training_word_count := int(is_training_word.sum())) <= dimension:
        raise ParameterError(
            "path",
            f"must have more than {dimension} different words to learn from, but has {training_word_count}",
        )
    text_too_short = ParameterError(
        "path",
        f"must be a longer text: the co-occurrence matrix of its words has a rank below {dimension}",
    )
    try:
        vectors, singular_values, _ = svds(
            mutual_information(training_sentences, len(word_indices), window),
            k=dimension,
            v0=np.ones(len(word_indices)),
        )
    except ArpackError:  # the matrix is zero
        raise text_too_short from None
    if singular_values.min() < 1e-9 * singular_values.max():
        raise text_too_short
    word_weights = is_training_word * np.bincount(
        np.concatenate(training_sentences), minlength=len(word_indices)
    )
    word_weights = word_weights / word_weights.sum()
    vectors = vectors - word_weights @ vectors
    covariance_root = np.linalg.cholesky(vectors.T @ (word_weights[:, None] * vectors))
    return np.ascontiguousarray(
        solve_triangular(covariance_root, vectors.T, lower=True).T
    ), sample_sentences
