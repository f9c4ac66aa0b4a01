"""The device of this process, and transfers to it."""

from __future__ import annotations

import os

import torch
from torch import Tensor

from submodel.data import Examples
from submodel.model.inputs import columns, map_inputs


def own_device(name: str) -> torch.device:
    """The device by name; ``auto`` is a GPU if there is one, a different one for each process.

    >>> own_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and "LOCAL_RANK" in os.environ:
        name = f"cuda:{int(os.environ['LOCAL_RANK']) % torch.cuda.device_count()}"
    return torch.device(name)


def device_problems(name: str) -> list[str]:
    """The reasons why this device cannot be used; empty if it can.

    >>> device_problems("auto"), device_problems("tpu")
    ([], ["engine.device: 'tpu' is not a device; use auto, cpu, cuda or cuda:1, ..."])
    """
    choices = "use auto, cpu, cuda or cuda:1, ..."
    try:
        device = torch.device("cpu" if name == "auto" else name)
    except RuntimeError:
        return [f"engine.device: {name!r} is not a device; {choices}"]
    if device.type == "cpu":
        return []
    if device.type != "cuda":
        return [f"engine.device: {name!r}: this type of device is not supported; {choices}"]
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (device.index or 0) < count:
        return []
    there = f"there are only {count} CUDA devices here" if count else "there is no CUDA device here"
    return [f"engine.device: {name!r}: {there}"]


def move(tensor: Tensor, device: torch.device, copy: bool = False) -> Tensor:
    """Move a tensor to the device; to a GPU by pinned memory, so that the CPU does not wait."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device, copy=copy)


def move_examples(examples: Examples, device: torch.device) -> Examples:
    """Move inputs and targets to the device."""
    return Examples(map_inputs(lambda t: move(t, device), examples.x), move(examples.y, device))


def place_examples(examples: Examples, device: torch.device) -> Examples:
    """Move examples to the device if its memory suffices; otherwise leave them where they are.

    Batches of the latter are moved one by one (`take_batch`).
    """
    if device.type != "cuda":
        return move_examples(examples, device)
    tensors = [*columns(examples.x).values(), examples.y]
    size = sum(t.numel() * t.element_size() for t in tensors if t.device.type != "cuda")
    free, _ = torch.cuda.mem_get_info(device)
    return move_examples(examples, device) if fits_beside(size, free) else examples


def fits_beside(size: int, free: int) -> bool:
    """Return whether data fit on a device and leave half of the free memory to training.

    >>> fits_beside(4 << 30, 8 << 30), fits_beside(5 << 30, 8 << 30)
    (True, False)
    """
    return 2 * size <= free


def take_batch(tensor: Tensor, rows: Tensor, device: torch.device) -> Tensor:
    """Select rows of a tensor where it is, and move them to the device.

    >>> take_batch(torch.eye(3), torch.tensor([2]), torch.device("meta")).device
    device(type='meta')
    """
    return move(tensor.index_select(0, rows), device)
