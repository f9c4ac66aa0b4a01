"""Adapters in the files of `peft`, which loads them beside the model that they were trained on.

``adapter_model.safetensors`` has A and B of every layer by peft's names, ``adapter_config.json``
what they are. The model itself is not among them: it is what ``model.weights`` named. A sub-model
has fewer ranks, and its alpha is smaller alike, so that alpha / rank is that of the run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import nn

from submodel.config import Config
from submodel.errors import SubmodelError
from submodel.model.zoo.adapters import AdapterLayer, adapters_of, is_transposed

_PREFIX = "base_model.model."


def write_peft(module: nn.Module, config: Config, out: Path) -> Path:
    """Write the adapters of a trained module; returns the file of their weights.

    Args:
        module: with adapters, and nothing else that was trained.
        config: of the run.
        out: a folder, which is there.
    """
    adapters = adapters_of(module)
    if not adapters:
        raise SubmodelError("--format peft: the run has no adapters; model.adapters makes them")
    tensors = {}
    for path, layer in adapters.items():
        start = f"{_PREFIX}{path}".rstrip(".")
        tensors[f"{start}.lora_A.weight"] = layer.down.weight.detach().contiguous()
        tensors[f"{start}.lora_B.weight"] = layer.up.weight.detach().contiguous()
    values_of_adapters = sum(tensor.numel() for tensor in tensors.values())
    if values_of_adapters != sum(p.numel() for p in module.parameters() if p.requires_grad):
        raise SubmodelError(
            "--format peft: more than adapters was trained, which these files cannot hold; "
            "use --format safetensors"
        )
    save_file(tensors, out / "adapter_model.safetensors", {"format": "pt"})
    about = adapter_config(adapters, config.model.weights, hasattr(module, "generate"))
    (out / "adapter_config.json").write_text(json.dumps(about, indent=2, sort_keys=True) + "\n")
    return out / "adapter_model.safetensors"


def adapter_config(
    adapters: dict[str, AdapterLayer], weights: str | None, generates: bool
) -> dict[str, Any]:
    """What peft calls a `LoraConfig`.

    Args:
        adapters: by path.
        weights: where the model is.
        generates: whether it is a language model of transformers.

    >>> layer = AdapterLayer(nn.Linear(4, 2), rank=2, alpha=8.0)
    >>> found = adapter_config({"head": layer}, None, False)
    >>> found["target_modules"], found["r"], found["lora_alpha"]
    (['head'], 2, 8.0)
    """
    ranks = {path: layer.rank for path, layer in adapters.items()}
    alphas = {path: layer.scale * layer.rank for path, layer in adapters.items()}
    first = next(iter(adapters))
    shares = {x.dropout.p for x in adapters.values() if isinstance(x.dropout, nn.Dropout)}
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM" if generates else None,
        "base_model_name_or_path": weights,
        "target_modules": sorted(adapters),
        "r": ranks[first],
        "lora_alpha": alphas[first],
        "rank_pattern": {path: r for path, r in ranks.items() if r != ranks[first]},
        "alpha_pattern": {path: a for path, a in alphas.items() if a != alphas[first]},
        "lora_dropout": max(shares, default=0.0),
        "fan_in_fan_out": all(is_transposed(layer.base) for layer in adapters.values()),
        "bias": "none",
        "init_lora_weights": True,
        "inference_mode": True,
        "modules_to_save": None,
        "use_rslora": False,
    }
