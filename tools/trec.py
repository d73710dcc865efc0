r"""Trains two tied attention layers to classify questions, and shows which layer is learned first, by skip and mask.

python tools/trec.py train_5500.label --figure trec.svg     # for who has the file: see trec.md
python tools/trec.py --generate questions.label             # writes 3000 made-up questions in its format
"""

from __future__ import annotations

import argparse
import itertools
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array
from scipy.special import log_softmax, softmax
from smimbench_attention.inputs.text import QUESTION, WORD

MASKS = ("none", "padding", "causal")
LONGEST = 32  # words of a question; later ones are left out
DIMENSION, WIDTH, BATCH, RATE = 64, 16, 16, 3e-4
PADDING, UNKNOWN = 0, 1


class Weights(NamedTuple):
    """Parameters of the network, or their gradient: a vector for each word (``embedding``), W of both attention layers
    (``first``, ``second``), and the linear read-out of the classes. V words, K classes, dimension D.
    """

    embedding: np.ndarray  # (V, D)
    first: np.ndarray  # (width, D)
    second: np.ndarray  # (width, D)
    readout: np.ndarray  # (D, K)
    bias: np.ndarray  # (K,)

    @classmethod
    def drawn(cls, rng: np.random.Generator, vocabulary: int, classes: int) -> Weights:
        """Draw random weights: word vectors of N(0, 1) entries, attention that is almost uniform, and a read-out."""
        layers = rng.standard_normal((2, WIDTH, DIMENSION)) * 0.3 / np.sqrt(DIMENSION)
        embedding = rng.standard_normal((vocabulary, DIMENSION))
        readout = rng.standard_normal((DIMENSION, classes)) / np.sqrt(DIMENSION)
        return cls(embedding, *layers, readout, np.zeros(classes))


class Questions(NamedTuple):
    """Data set of n questions: numbers of the words (n, T), padded to the longest question, and of the classes (n,)."""

    words: np.ndarray
    classes: np.ndarray


class History(NamedTuple):
    """Course of a training, before it and after every epoch, on held-out questions: accuracy, overlaps of both layers with
    their final weights, and how much larger the loss is with the initial weights of a layer.
    """

    accuracy: np.ndarray  # (epochs + 1,)
    overlap: np.ndarray  # (epochs + 1, 2): of W^T W of each layer with the final one, 0 at the start and 1 at the end
    loss_increase: (
        np.ndarray
    )  # (epochs + 1, 2): how much larger the loss is with the initial W of a layer


def read(path: Path) -> tuple[list[list[str]], list[str]]:
    """Read words and classes of the questions ``COARSE:fine question``, one a line, in Latin-1; ValueError for another line."""
    sentences, names = [], []
    for number, line in enumerate(path.read_text(encoding="latin-1").split("\n"), 1):
        if not line.strip():
            continue
        if not QUESTION.match(line):
            raise ValueError(
                f"{path}, line {number}: must be 'COARSE:fine question', got {line[:40]!r}"
            )
        sentences.append(WORD.findall(QUESTION.sub("", line).lower())[:LONGEST])
        names.append(line.partition(":")[0])
    if len(set(names)) < 2:
        raise ValueError(
            f"{path}: must have questions of at least two classes, has {len(names)} of {len(set(names))}"
        )
    return sentences, names


def split(
    sentences: list[list[str]], names: list[str], rng: np.random.Generator
) -> tuple[Questions, Questions, int]:
    """Split questions at random into four fifths to learn from and one fifth held out, as numbers of words and classes, and
    return the size of the vocabulary too: words that are found twice in the first part.
    """
    order = rng.permutation(len(names))
    training_indices = order[len(names) // 5 :]
    counts = Counter(word for index in training_indices for word in sentences[index])
    number_of_word = {
        word: position
        for position, word in enumerate(
            sorted(word for word in counts if counts[word] > 1), UNKNOWN + 1
        )
    }
    words = np.full((len(names), max(1, *map(len, sentences))), PADDING)
    for row, sentence in zip(words, sentences):
        row[: len(sentence)] = [number_of_word.get(word, UNKNOWN) for word in sentence]
    classes = np.unique(names, return_inverse=True)[1]
    training, held_out = (
        Questions(words[indices], classes[indices])
        for indices in (training_indices, order[: len(names) // 5])
    )
    return training, held_out, len(number_of_word) + UNKNOWN + 1


def loss_and_gradient(
    weights: Weights,
    data: Questions,
    skip: float,
    mask: str,
    with_gradient: bool = True,
) -> tuple[float, np.ndarray, Weights | None]:
    r"""Compute the mean cross-entropy of a network with these weights, the scores (n, K) of the classes and, if wanted, the
    gradient; ``skip`` is the weight c of the skip connection, ``mask`` names the attention mask.

    ``X_1 = (c I + A_1) X_0, X_2 = A_2 X_1`` with ``A_l = softmax(X W_l^T W_l X^T / sqrt(width))`` row by row, X the tokens (T, D)
    that enter the layer; scores are linear in the mean token of X_2.
    """
    words, classes = data
    n, T = words.shape
    is_word = words != PADDING if mask != "none" else np.ones((n, T), dtype=bool)
    is_blocked = np.zeros((n, T, T), dtype=bool) | ~is_word[:, None, :]
    if mask == "causal":
        is_blocked |= np.triu(np.ones((T, T), dtype=bool), 1)
    is_blocked &= is_word.any(axis=1)[:, None, None]  # a question without a word
    word_share = is_word / np.maximum(is_word.sum(axis=1, keepdims=True), 1)
    X, layers, width_root = weights.embedding[words], [], np.sqrt(WIDTH)
    for W, c in ((weights.first, skip), (weights.second, 0.0)):
        Z = X @ W.T
        A = softmax(
            np.where(is_blocked, -np.inf, Z @ Z.swapaxes(1, 2) / width_root), axis=-1
        )
        layers.append((W, c, X, Z, A))
        X = A @ X + c * X
    mean = np.einsum("nt,ntd->nd", word_share, X)
    scores = mean @ weights.readout + weights.bias
    log_probabilities = log_softmax(scores, axis=1)
    loss = -float(log_probabilities[np.arange(n), classes].mean())
    if not with_gradient:
        return loss, scores, None
    dscores = (
        np.exp(log_probabilities) - np.eye(log_probabilities.shape[1])[classes]
    ) / n
    readout, bias = mean.T @ dscores, dscores.sum(axis=0)
    dX, gradients = (
        word_share[:, :, None] * (dscores @ weights.readout.T)[:, None, :],
        [],
    )
    for W, c, X, Z, A in reversed(layers):
        dA = dX @ X.swapaxes(1, 2)
        dlogits = A * (dA - np.sum(A * dA, axis=-1, keepdims=True))
        dZ = (dlogits + dlogits.swapaxes(1, 2)) @ Z / width_root
        gradients.append(np.einsum("nth,ntd->hd", dZ, X, optimize=True))
        dX = A.swapaxes(1, 2) @ dX + c * dX + dZ @ W
    rows_of_words = csr_array(
        (np.ones(n * T), (words.ravel(), np.arange(n * T))),
        shape=(len(weights.embedding), n * T),
    )
    return (
        loss,
        scores,
        Weights(
            rows_of_words @ dX.reshape(n * T, -1),
            gradients[1],
            gradients[0],
            readout,
            bias,
        ),
    )


def attention(weights: Weights) -> np.ndarray:
    """Compute ``W^T W`` (2, D, D) of both layers, all that attention depends on."""
    return np.stack([W.T @ W for W in (weights.first, weights.second)])


def train(
    data: Questions,
    held_out: Questions,
    vocabulary: int,
    skip: float,
    mask: str,
    epochs: int,
    seed: int,
) -> History:
    """Train a network by Adam on batches of shuffled questions (``data``), and measure its course on the held-out ones
    (``held_out``).
    """
    rng = np.random.default_rng(seed)
    weights = start = Weights.drawn(
        rng, vocabulary, int(max(data.classes.max(), held_out.classes.max())) + 1
    )
    moments = [[np.zeros_like(weight), np.zeros_like(weight)] for weight in weights]
    accuracy, loss_increase, attentions, step = [], [], [], 0
    for epoch in range(epochs + 1):
        order = rng.permutation(len(data.classes)) if epoch else np.zeros(0, dtype=int)
        for begin in range(0, len(order), BATCH):
            batch = order[begin : begin + BATCH]
            gradient: Any = loss_and_gradient(
                weights, Questions(data.words[batch], data.classes[batch]), skip, mask
            )[2]
            step += 1
            new_weights = []
            for weight, gradient_of_weight, moment in zip(weights, gradient, moments):
                moment[0] += 0.1 * (gradient_of_weight - moment[0])
                moment[1] += 0.001 * (
                    gradient_of_weight * gradient_of_weight - moment[1]
                )
                new_weights.append(
                    weight
                    - RATE
                    * moment[0]
                    / (1 - 0.9**step)
                    / (np.sqrt(moment[1] / (1 - 0.999**step)) + 1e-8)
                )
            weights = Weights(*new_weights)
        loss, scores, _ = loss_and_gradient(
            weights, held_out, skip, mask, with_gradient=False
        )
        accuracy.append(np.mean(np.argmax(scores, axis=1) == held_out.classes))
        weights_without_layer = (
            weights._replace(first=start.first),
            weights._replace(second=start.second),
        )
        loss_increase.append(
            [
                loss_and_gradient(
                    changed_weights, held_out, skip, mask, with_gradient=False
                )[0]
                - loss
                for changed_weights in weights_without_layer
            ]
        )
        attentions.append(attention(weights))
    norms = np.linalg.norm(attentions, axis=(2, 3))
    cosine = np.einsum("elij,lij->el", attentions, attentions[-1]) / (norms * norms[-1])
    return History(
        np.array(accuracy),
        (cosine - cosine[0]) / (1 - cosine[0]),
        np.array(loss_increase),
    )


def half_way(overlap: np.ndarray) -> np.ndarray:
    """Return the epochs (2,) at which the overlaps (epochs + 1, 2) of both layers first reach 1/2, interpolated between
    epochs.
    """
    epochs = []
    for column in overlap.T:
        epoch = int(np.argmax(column >= 0.5))
        epochs.append(
            epoch - (column[epoch] - 0.5) / (column[epoch] - column[epoch - 1])
        )
    return np.array(epochs)


def table(histories: dict[tuple[float, str], list[History]]) -> str:
    """Return a Markdown table of trainings with a line for each skip and mask: means over the seeds, with standard errors."""
    lines = [
        "| skip | mask | accuracy | half-way epoch, layer 1 | layer 2 | first | loss + without layer 1 | without layer 2 |"
    ]
    lines.append("|---|---|---|---|---|---|---|---|")
    for (skip, mask), runs in histories.items():
        half_way_epochs = np.array([half_way(run.overlap) for run in runs])
        columns = np.column_stack(
            [
                [run.accuracy[-1] for run in runs],
                half_way_epochs,
                [run.loss_increase[-1] for run in runs],
            ]
        )
        error = (
            columns.std(axis=0, ddof=1) / np.sqrt(len(runs))
            if len(runs) > 1
            else np.full(5, np.nan)
        )
        cells = [
            f"{value:.2f} ± {standard_error:.2f}"
            for value, standard_error in zip(columns.mean(axis=0), error)
        ]
        layer_order = f"layer 2: {int(np.sum(half_way_epochs[:, 1] < half_way_epochs[:, 0]))} of {len(runs)}"
        lines.append(
            "| "
            + " | ".join([f"{skip:g}", mask, *cells[:3], layer_order, *cells[3:]])
            + " |"
        )
    return "\n".join(lines)


def draw(histories: dict[tuple[float, str], list[History]], file: Path) -> None:
    """Draw overlaps of both layers with their final weights, and accuracy, over epochs; a panel for each skip and mask."""
    import matplotlib.pyplot as plt

    skips, masks = (
        list(dict.fromkeys(key[position] for key in histories)) for position in (0, 1)
    )
    size = 2.6 * len(masks) + 0.6, 2.2 * len(skips) + 0.3
    figure, panels = plt.subplots(
        len(skips),
        len(masks),
        figsize=size,
        squeeze=False,
        sharex=True,
        sharey=True,
        layout="constrained",
    )
    for panel, ((skip, mask), runs) in zip(panels.flat, histories.items()):
        mean = np.mean(
            [np.column_stack([run.overlap, run.accuracy]) for run in runs], axis=0
        )
        for values, label, style in zip(
            mean.T, ("layer 1", "layer 2", "accuracy"), ("C0-", "C1-", "k:")
        ):
            panel.plot(values, style, label=label)
        panel.set_title(f"skip {skip:g}, mask {mask}", fontsize=9)
    panels[0, 0].legend(fontsize=8)
    figure.supxlabel("epoch", fontsize=9)
    figure.supylabel("overlap with the end", fontsize=9)
    figure.savefig(file)


def generated(count: int, rng: np.random.Generator) -> str:
    """Write made-up questions: one word names one of three topics, and two others, in any place, say by XOR which of its two
    classes.
    """
    names = np.array([["ABBR", "DESC"], ["ENTY", "HUM"], ["LOC", "NUM"]])
    lines = []
    for _ in range(count):
        topic, first_bit, second_bit = (
            int(number) for number in rng.integers(0, (3, 2, 2))
        )
        filler_words = [
            f"filler{chr(97 + number)}"
            for number in rng.integers(0, 20, int(rng.integers(0, 4)))
        ]
        words = [
            ("city", "river", "king")[topic],
            ("warm", "cold")[first_bit],
            ("day", "night")[second_bit],
            *filler_words,
        ]
        lines.append(
            f"{names[topic, first_bit ^ second_bit]}:made "
            + " ".join(rng.permutation(words))
            + " ?"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Train on the questions of a file for every skip, mask and seed, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="questions, as in train_5500.label")
    parser.add_argument(
        "--generate",
        action="store_true",
        help="write made-up questions to the file instead",
    )
    parser.add_argument(
        "--skip",
        type=float,
        nargs="+",
        default=[0.0, 1.0],
        help="weights c of the skip connection",
    )
    parser.add_argument("--mask", choices=MASKS, nargs="+", default=MASKS)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--figure", type=Path, help="file of the figure")
    arguments = parser.parse_args()
    if arguments.generate:
        arguments.file.write_text(
            generated(3000, np.random.default_rng(0)), encoding="latin-1"
        )
        return
    try:
        sentences, names = read(arguments.file)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    largest, count = Counter(names).most_common(1)[0]
    print(  # noqa: T201
        f"{len(names)} questions, {len(set(names))} classes; the largest, {largest}, has {count / len(names):.2f}\n"
    )
    histories: dict[tuple[float, str], list[History]] = {}
    for skip, mask, seed in itertools.product(
        arguments.skip, arguments.mask, range(arguments.seeds)
    ):
        sets = split(sentences, names, np.random.default_rng(seed))
        histories.setdefault((skip, mask), []).append(
            train(*sets, skip, mask, arguments.epochs, seed)
        )
    print(table(histories))  # noqa: T201
    if arguments.figure:
        draw(histories, arguments.figure)


if __name__ == "__main__":
    main()
