"""Score a 5-gram model on text, as a baseline for trained models.

    python benchmarks/ngram.py [--name shakespeare] [--tokens characters] [--length 64] [--order 5]

The model is interpolated Kneser-Ney (Chen and Goodman 1999, one discount per order,
n1 / (n1 + 2 n2)), counted on the training part of a source and scored on every target of its test
part, in bits per token and per byte. Like a trained model, it uses the tokens of a window only:
if fewer tokens precede a target than the order needs, a lower order with its own counts is used.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from submodel.data import Dataset, load_dataset
from submodel.data.parts import NO_TARGET
from submodel.model.inputs import first_column

Keys = NDArray[np.int64]
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Level:
    """Counts of n-grams of one length; a gram is encoded as a number with its tokens as digits."""

    grams: Keys
    counts: Numbers
    contexts: Keys
    totals: Numbers  # sum of the counts of a context's grams
    types: Numbers  # number of distinct grams of a context
    discount: float


def level(grams: Keys, counts: NDArray[np.int64], vocabulary: int) -> Level:
    """Make a level from ascending grams and their counts."""
    contexts, place, types = np.unique(grams // vocabulary, return_inverse=True, return_counts=True)
    once, twice = (counts == 1).sum(), (counts == 2).sum()
    discount = float(once / (once + 2 * twice)) if once else 0.0
    totals = np.bincount(place, counts).astype(float)
    return Level(grams, counts.astype(float), contexts, totals, types.astype(float), discount)


def look_up(keys: Keys, values: Numbers, wanted: Keys) -> Numbers:
    """Return the values of keys, and 0 for missing ones."""
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, values[place], 0.0)


@dataclass(frozen=True)
class KneserNey:
    """Levels by number of preceding tokens: ``plain`` at the highest, else ``continuing``."""

    vocabulary: int
    plain: list[Level]
    continuing: list[Level]

    def probability(self, grams: Keys, before: int) -> Numbers:
        """Return the probability of the last token of each gram after ``before`` tokens."""
        result = np.full(len(grams), 1 / self.vocabulary)
        for size in range(before + 1):
            here = self.plain[size] if size == before else self.continuing[size]
            keys = grams % self.vocabulary ** (size + 1)
            total = look_up(here.contexts, here.totals, keys // self.vocabulary)
            types = look_up(here.contexts, here.types, keys // self.vocabulary)
            counts = look_up(here.grams, here.counts, keys)
            left = np.maximum(counts - here.discount, 0) + here.discount * types * result
            result = np.where(total > 0, left / np.maximum(total, 1), result)
        return result


def grams_before(x: Keys, y: Keys, before: int, vocabulary: int) -> tuple[Keys, NDArray[np.bool_]]:
    """Return every target with its preceding tokens as grams, and a mask of complete ones."""
    grams = y.copy()
    for back in range(before):
        shifted = np.zeros_like(x)
        shifted[:, back:] = x[:, : x.shape[1] - back]
        grams += shifted * vocabulary ** (back + 1)
    present = y != NO_TARGET
    present[:, : max(before - 1, 0)] = False
    return grams, present


def count_grams(x: Keys, y: Keys, vocabulary: int, order: int) -> KneserNey:
    """Fit the model to a training part."""
    plain, types = [], []
    for before in range(order):
        grams, present = grams_before(x, y, before, vocabulary)
        keys, counts = np.unique(grams[present], return_counts=True)
        plain.append(level(keys, counts, vocabulary))
        types.append(keys)
    continuing = []
    for before in range(order - 1):  # number of distinct tokens before a gram
        keys, counts = np.unique(types[before + 1] % vocabulary ** (before + 1), return_counts=True)
        continuing.append(level(keys, counts, vocabulary))
    return KneserNey(vocabulary, plain, continuing)


def score_bits(model: KneserNey, x: Keys, y: Keys) -> tuple[float, int]:
    """Return the bits per target of a test part, and the number of targets."""
    most, length = len(model.plain) - 1, x.shape[1]
    available = np.minimum(np.arange(length) + 1, most)  # tokens before the target of each place
    bits, targets = 0.0, 0
    for before in np.unique(available).tolist():
        grams, present = grams_before(x, y, before, model.vocabulary)
        present &= available == before
        bits -= float(np.log2(model.probability(grams[present], before)).sum())
        targets += int(present.sum())
    assert targets == int((y != NO_TARGET).sum())
    return bits / targets, targets


def measure(data: Dataset, vocabulary: int, order: int) -> tuple[float, int]:
    if vocabulary**order >= 2**63:
        raise SystemExit(f"{vocabulary} tokens are too many for order {order}")
    parts = [
        (first_column(part.x).numpy().astype(np.int64), part.y.numpy())
        for part in (data.train, data.test)
    ]
    return score_bits(count_grams(*parts[0], vocabulary, order), *parts[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default="shakespeare")
    parser.add_argument("--tokens", default="characters")
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--order", type=int, default=5)
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    arguments = parser.parse_args()
    data = load_dataset(arguments.name, tokens=arguments.tokens, length=arguments.length)
    if (facts := data.text) is None:
        raise SystemExit(f"{arguments.name} is not a text")
    bits, targets = measure(data, facts.vocabulary, arguments.order)
    figures = {
        "name": arguments.name,
        "tokens": arguments.tokens,
        "length": arguments.length,
        "order": arguments.order,
        "vocabulary": facts.vocabulary,
        "test_targets": targets,
        "bits_per_token": round(bits, 4),
        "bits_per_byte": round(bits / facts.bytes_per_token, 4),
    }
    print(json.dumps(figures, indent=1))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
