"""Files of tensors: written as a stream, to the bytes that safetensors writes."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from submodel.runs.checkpoint import fill_tensors, write_tensors


def test_the_bytes_are_those_of_safetensors(tmp_path: Path) -> None:
    kinds = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool)
    tensors = {f"b.{kind}": torch.ones(3, 2).to(kind) for kind in kinds}
    tensors |= {"a": torch.randn(4, 5), "ü": torch.zeros(()), "none": torch.zeros(0, 3)}
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    write_tensors(ours, tensors | {"turned": torch.arange(6.0).view(2, 3).t()})
    save_file(tensors | {"turned": torch.arange(6.0).view(2, 3).t().contiguous()}, theirs)
    assert ours.read_bytes() == theirs.read_bytes()
    assert load_file(ours)["turned"].tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]


def test_tensors_are_read_into_the_memory_of_others(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(3, 2), "b": torch.arange(4), "c": torch.zeros(0)}
    write_tensors(tmp_path / "file", tensors)
    others = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    addresses = [tensor.data_ptr() for tensor in others.values()]
    assert fill_tensors(tmp_path / "file", others)
    assert all(torch.equal(others[name], tensor) for name, tensor in tensors.items())
    assert [tensor.data_ptr() for tensor in others.values()] == addresses
    assert not fill_tensors(tmp_path / "file", others | {"a": torch.zeros(3, 2).double()})
