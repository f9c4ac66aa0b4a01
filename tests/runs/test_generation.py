"""Text generation by trained language models."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import submodel
from submodel.core.errors import ConfigError, DataError
from submodel.data import Dataset, load_dataset
from submodel.runs.generation import generate
from tests.support.commands import Command


class NextLetter(nn.Module):
    """A model that is certain that b follows a, c follows b and so on, in sequences of exactly
    four.
    """

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(50.0))
        self.vocabulary = vocabulary

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape == (1, 4)
        following = (x.long() + 1) % self.vocabulary
        return nn.functional.one_hot(following, self.vocabulary) * self.scale


@pytest.fixture
def letters(tmp_path: Path) -> Dataset:
    """Make sequences of four letters."""
    (tmp_path / "letters.txt").write_text("abcde" * 40)
    name = f"text:{tmp_path / 'letters.txt'}"
    return load_dataset(name, tokens="characters", length=4)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_each_token_follows_from_those_before_it(letters: Dataset, temperature: float) -> None:
    assert generate(NextLetter(5), letters, "ab", 7, temperature) == "abcdeabcd"
    assert generate(NextLetter(5), letters, "deabcde", 2, temperature) == "deabcdeab"


def test_tokens_are_drawn_by_their_chances_and_alike_for_a_seed(letters: Dataset) -> None:
    class Even(nn.Module):
        """A model where c is likelier than a by a factor of e, and others are impossible."""

        def __init__(self) -> None:
            super().__init__()
            self.logits = nn.Parameter(torch.tensor([0.0, -1e9, 1.0, -1e9, -1e9]))

        def forward(self, x: Tensor) -> Tensor:
            return self.logits.expand(*x.shape, 5)

    texts = [generate(Even(), letters, "e", 400, seed=seed) for seed in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2]
    assert set(texts[0]) == set("eac")
    assert texts[0].count("c") / 400 == pytest.approx(0.731, abs=0.05)  # e / (1 + e)
    cold = generate(Even(), letters, "e", 400, temperature=0.25)
    assert cold.count("c") / 400 == pytest.approx(0.982, abs=0.03)


@pytest.mark.slow
def test_mistakes_are_sentences(letters: Dataset) -> None:
    with pytest.raises(ConfigError) as caught:
        generate(NextLetter(5), letters, "", 0, -1.0)
    assert [line.partition(":")[0] for line in caught.value.problems] == [
        "tokens",
        "temperature",
        "prompt",
    ]
    with pytest.raises(DataError, match=r"'z' .*1"):
        generate(NextLetter(5), letters, "az", 1)
    with pytest.raises(DataError, match="text"):
        generate(NextLetter(5), submodel.digits(), "a", 1)


@pytest.mark.slow
def test_a_run_and_its_sub_models_write(tmp_path: Path, submodel: Command) -> None:
    (tmp_path / "letters.txt").write_text("abcde" * 400)
    (tmp_path / "run.toml").write_text(
        "\n".join(
            [
                '[data]\nname = "text:letters.txt"\ntokens = "bpe"\nvocabulary = 258\nlength = 8',
                '[model]\nname = "gpt"\nwidth = 16\nlayers = 1\nheads = 2',
                "[clients]\ncount = 2\nper_round = 2\ncapacities = [1, 0.5]",
                '[local]\noptimiser = "adamw"\nlr = 0.02\nsteps = 10\n[train]\nrounds = 6',
            ]
        )
    )
    assert submodel("train", "run.toml", "--out", "run", cwd=tmp_path).returncode == 0
    words = ("--prompt", "cde", "--tokens", "4")
    done = submodel("generate", "run", *words, "--temperature", "0", cwd=tmp_path)
    assert done.returncode == 0
    assert len(done.stdout) > 8
    assert ("ab" + done.stdout.rstrip()) in "abcde" * 8  # like in training
    half = submodel("generate", "run", *words, "--capacity", "1/2", "--seed", "3", cwd=tmp_path)
    assert half.returncode == 0
    assert half.stdout.startswith("cde")
    assert len(half.stdout) > len("cde\n")
