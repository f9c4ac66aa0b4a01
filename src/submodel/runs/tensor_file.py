"""Files of tensors, written as a stream: safetensors, without a second copy of the model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

_KINDS = {
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Types by their names in a file, in the order in which it has them: the widest first."""
_HEAD_MULTIPLE = 8  # bytes that the head is a multiple of


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a file of tensors, one after another; the bytes are those of `safetensors`.

    Args:
        path: the file, which is replaced.
        tensors: by name.
    """
    order = list(_KINDS)
    names = sorted(tensors, key=lambda name: (order.index(tensors[name].dtype), name))
    head, end = {}, 0
    for name in names:
        tensor = tensors[name]
        start, end = end, end + tensor.numel() * tensor.element_size()
        head[name] = {
            "dtype": _KINDS[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _HEAD_MULTIPLE)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name in names:
            flat = tensors[name].detach().cpu().contiguous().reshape(-1)
            if flat.numel():
                file.write(flat.view(torch.uint8).numpy().data)


def fill_tensors(path: Path, tensors: Mapping[str, Tensor]) -> bool:
    """Read a file of tensors into the memory of others; False where types or layouts differ.

    Args:
        path: a whole file, of the same names and shapes.
        tensors: they are overwritten, unless the answer is False.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        head = json.loads(file.read(length))
        for name, tensor in tensors.items():
            is_plain = tensor.is_contiguous() and tensor.device.type == "cpu"
            if not is_plain or head[name]["dtype"] != _KINDS.get(tensor.dtype):
                return False
        for name, tensor in tensors.items():
            file.seek(8 + length + head[name]["data_offsets"][0])
            view, position = tensor.detach().view(-1).view(torch.uint8).numpy().data, 0
            while position < len(view):
                count = file.readinto(view[position:])
                if not count:
                    raise EOFError(f"{path.name} ends early")
                position += count
    return True
