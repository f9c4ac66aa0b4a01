"""The device that this process computes on, and the way there."""

from __future__ import annotations

import os

import torch
from torch import Tensor


def own_device(name: str) -> torch.device:
    """``auto`` is a GPU where there is one; of several processes on a machine each has its own.

    >>> own_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and "LOCAL_RANK" in os.environ:
        name = f"cuda:{int(os.environ['LOCAL_RANK']) % torch.cuda.device_count()}"
    return torch.device(name)


def move(tensor: Tensor, device: torch.device, copy: bool = False) -> Tensor:
    """To the device; to a GPU through pinned memory, so that the processor need not wait."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device, copy=copy)
