"""The frequencies of rotary positions that a sub-model keeps, as a config says them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

_BUFFER = "inv_freq"
_KEY = "rope_parameters"


def kept_frequencies(small: nn.Module) -> dict[str, Tensor]:
    """The buffers with frequencies, by name."""
    return {
        name: buffer
        for name, buffer in small.named_buffers()
        if name.rpartition(".")[2] == _BUFFER and buffer.dim() == 1
    }


def rotary_changes(small: nn.Module, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rotary parameters of a config that may give the frequencies of a sub-model, plainest first.

    The first frequencies are those of another base. Any others are what LongRoPE is there for: a
    factor for each.

    Args:
        small: the sub-model.
        values: its config as a dictionary, which has the full model's rotary parameters.
    """
    buffers = list(kept_frequencies(small).values())
    parameters = values.get(_KEY)
    if not buffers or not isinstance(parameters, Mapping) or "rope_theta" not in parameters:
        return []
    if any(not torch.equal(buffer, buffers[0]) for buffer in buffers):
        return []  # a config has one list of frequencies
    frequencies = buffers[0].double()
    steps = torch.arange(len(frequencies), dtype=torch.float64) / len(frequencies)
    default = {**parameters, "rope_type": "default"}
    bases = [float(parameters["rope_theta"])]
    if len(frequencies) > 1:
        base = float(frequencies[1] ** -len(frequencies))
        bases = [float(f"{base:.6g}"), base, *bases]
    factors = (1 / (frequencies * bases[-1] ** steps)).tolist()
    layers = (layer for layer in small.modules() if hasattr(layer, _BUFFER))
    scale: Any = getattr(next(layers), "attention_scaling", 1.0)
    long = {
        "rope_type": "longrope",
        "rope_theta": bases[-1],
        "short_factor": factors,
        "long_factor": factors,
        "factor": 1.0,
        "attention_factor": float(scale),
        "original_max_position_embeddings": values["max_position_embeddings"],
    }
    return [*({**default, "rope_theta": base} for base in bases), long]
