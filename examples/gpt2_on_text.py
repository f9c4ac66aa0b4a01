"""Train a GPT-2 on a novel with twenty clients, two thirds of which never hold the whole model.

    python examples/gpt2_on_text.py [--rounds 64]

The model is made from a configuration of `transformers`. Tracing finds the axes, which must be cut
together: the width through all layers and the tied embedding, the size of the heads of each
attention, and the hidden units of each perceptron.

In one run (64 rounds, a minute on one core) the test loss per character fell from 4.756 to 3.060
after one round, 2.547 after 10, 2.403 after 32 and 2.373 at the end; a uniform guess has 4.290. The
sub-models of capacity 1/2 and 1/4 had 2.477 and 2.558. A table of letter pairs reaches 2.398: the
model is tiny, and a minute of plain SGD is short.
"""

from __future__ import annotations

import argparse
import importlib
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import submodel
from submodel.report.tables import cost_rows

TEXT = Path(__file__).parent / "data" / "moby_dick.txt"
CONTEXT = 64
CAPACITIES = [1, 0.5, 0.25]


class CharacterModel(nn.Module):
    """GPT-2 over single characters, from tokens to logits."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        transformers: Any = importlib.import_module("transformers")
        config = transformers.GPT2Config(
            vocab_size=vocabulary,
            n_positions=CONTEXT,
            n_embd=64,
            n_layer=2,
            n_head=4,
            initializer_range=0.125,  # 1 / sqrt(width); plain SGD hardly leaves the default 0.02
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            use_cache=False,
            bos_token_id=0,
            eos_token_id=0,
        )
        self.gpt2: nn.Module = transformers.GPT2LMHeadModel(config)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the next character at each position."""
        logits: Tensor = self.gpt2(tokens).logits
        return logits


def next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy over all positions of all sequences."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def read_text() -> tuple[str, str]:
    """Read the text with single spaces, and its distinct characters."""
    text = " ".join(TEXT.read_text("ascii").split())
    return text, "".join(sorted(set(text)))


def sequences(text: str, characters: str) -> submodel.Dataset:
    """Split the text into sequences with their targets; the last tenth is for testing."""
    numbers = torch.tensor([characters.index(c) for c in text])
    count = (len(numbers) - 1) // CONTEXT
    tokens = numbers[: count * CONTEXT].view(count, CONTEXT)
    targets = numbers[1 : count * CONTEXT + 1].view(count, CONTEXT)
    train = count * 9 // 10
    return submodel.dataset((tokens[:train], targets[:train]), (tokens[train:], targets[train:]))


@torch.no_grad()
def loss_on_test(model: nn.Module, data: submodel.Dataset) -> float:
    return float(next_token_loss(model.eval()(data.test.x), data.test.y))


@torch.no_grad()
def continued(model: nn.Module, start: str, characters: str, length: int) -> str:
    """Continue a text with characters drawn from the model."""
    random = torch.Generator().manual_seed(0)
    numbers = [characters.index(c) for c in start]
    for _ in range(length):
        logits = model(torch.tensor([numbers[-CONTEXT:]]))[0, -1]
        likely = functional.softmax(logits / 0.7, dim=0)
        numbers.append(int(torch.multinomial(likely, 1, generator=random)))
    return "".join(characters[n] for n in numbers)


def main(rounds: int = 64) -> list[float]:
    """Train, print progress, and return the test loss before the first and after each round."""
    text, characters = read_text()
    data = sequences(text, characters)
    torch.manual_seed(0)
    model = CharacterModel(len(characters))
    losses = [loss_on_test(model, data)]
    print(f"{len(text):,} characters, {len(characters)} distinct")
    print(
        f"test loss of a uniform guess {math.log(len(characters)):.3f}, untrained {losses[0]:.3f}"
    )

    def report(line: dict[str, Any]) -> None:
        losses.append(line["test_loss"])
        print(f"round {line['round']:3}: test loss {line['test_loss']:.3f}", flush=True)

    result = submodel.train(
        model,
        data,
        {
            "scheme": {"name": "rolling", "windows": 16},
            "clients": {"count": 20, "per_round": 6, "capacities": CAPACITIES},
            "data": {"partition": "iid"},
            "local": {
                "absent_labels": "keep",
                "epochs": 1,
                "batch_size": 4,
                "lr": 0.3,
                "clip": 0.5,
                "schedule": "cosine",
            },
            "train": {"rounds": rounds, "evaluate_every": 1},
        },
        loss=next_token_loss,
        on_round=report,
    )
    for row in cost_rows(result.setup):
        print(
            f"capacity {row['capacity']:g}: {int(row['parameters']):,} parameters "
            f"({row['share']:.0%}), {row['bytes'] / 1e3:.0f} kB a round, "
            f"{row['flops_share']:.0%} of the FLOPs"
        )
    for capacity in CAPACITIES[1:]:
        loss = loss_on_test(result.submodel(capacity), data)
        print(f"test loss of the sub-model of capacity {capacity:g}: {loss:.3f}")
    print(continued(result.model, "Call me", characters, 200))
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=64)
    main(parser.parse_args().rounds)
