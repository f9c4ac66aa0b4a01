"""Datasets of text in a form for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from submodel.data import Dataset, Examples, load_dataset
from submodel.data.facts import Owners
from submodel.data.parts import NO_TARGET
from submodel.data.text.tokens import read_tokens


def load_text(path: Path, **keys: Any) -> Dataset:
    """Load the text of a path."""
    return load_dataset(f"text:{path}", **keys)


def inputs_of(examples: Examples) -> Tensor:
    """Return the only tensor of inputs of a text."""
    assert isinstance(examples.x, Tensor)
    return examples.x


def text_of(data: Dataset, part: str, owner: int | None = None) -> str:
    """Return the text of a part's windows, joined, of one owner or of all."""
    assert data.text is not None
    examples = data.train if part == "train" else data.test
    x, y = inputs_of(examples).numpy(), examples.y.numpy()
    if owner is not None:
        assert data.owners is not None
        numbers = data.owners.train if part == "train" else data.owners.test
        assert numbers is not None
        x, y = x[numbers == owner], y[numbers == owner]
    tokens = np.concatenate([x[0, :1], y[y != NO_TARGET]])
    return read_tokens(data.text.tokens).decode(tokens)


def folder_of(path: Path, texts: dict[str, str]) -> Path:
    """Make a folder with these files."""
    for name, text in texts.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text, encoding="utf-8")
    return path


def check_owners(owners: Owners, total: int) -> None:
    """Check that every owner has examples, and every example an owner."""
    assert len(owners.train) == total
    assert sorted(set(owners.train.tolist())) == list(range(len(owners)))
