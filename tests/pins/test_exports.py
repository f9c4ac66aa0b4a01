"""Exported files: names, shapes, values and settings, for states made by a formula.

Nothing is trained and no value is drawn, so files are the same on every machine. Statistics of
norms and values computed by libraries are compared by their shapes only.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

import submodel
from submodel.config import parse, prepare
from submodel.runs.folder import RunFolder
from submodel.runs.loop import write_result
from submodel.runs.training import Training
from tests.pins.store import EXPORTS
from tests.support.schemes import Sections, joined

TEXT: Sections = {"data": {"name": "text:words.txt", "tokens": "characters", "length": 8}}
GPT = joined(TEXT, {"model": {"name": "gpt", "width": 16, "layers": 2, "heads": 2}})
GPT2: Sections = {
    "model": {
        "name": "transformers:GPT2Config",
        "options": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16},
    }
}
LLAMA: Sections = {
    "model": {
        "name": "transformers:LlamaConfig",
        "options": {
            "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2,
            "num_key_value_heads": 1, "num_hidden_layers": 1,
        },
    }
}  # fmt: skip
LORA: Sections = {"model": {"adapters": "lora", "adapter_rank": 4}}
MLP: Sections = {"model": {"name": "mlp", "width": 8}}
CNN: Sections = {"model": {"name": "cnn", "width": 8}}
RESNET: Sections = {"model": {"name": "preresnet18", "width": 4}}
DIGITS: Sections = {"data": {"test_examples": 20}}
RUNS: dict[str, Sections] = {
    "mlp": MLP,
    "cnn": CNN,
    "preresnet18": RESNET,
    "factorised": joined(CNN, {"model": {"factorised": True}}),
    "adapters": joined(MLP, LORA),
    "gpt": GPT,
    "static gpt": joined(GPT, {"scheme": {"name": "static"}}),
    "coordinates": joined(MLP, {"scheme": {"name": "static", "granularity": "coordinate"}}),
    "unbiased": joined(MLP, {"scheme": {"name": "unbiased", "sampling": "fixed"}}),
    "finished": joined(MLP, {"train": {"finish": 0.5}}),
    "gpt2": joined(TEXT, GPT2),
    "adapters of gpt2": joined(TEXT, GPT2, LORA),
    "llama": joined(TEXT, LLAMA),
}
EXPORTED = [
    *(
        (name, "safetensors", capacity)
        for name in RUNS
        if "gpt2" not in name and name != "llama"
        for capacity in ("1", "1/2", "1/4")
    ),
    *((name, "huggingface", "1/2") for name in ("gpt2", "adapters of gpt2", "llama")),
    ("gpt2", "huggingface", "1"),
    *((name, "peft", c) for name in ("adapters", "adapters of gpt2") for c in ("1", "1/2")),
    ("cnn", "onnx", "1/4"),
    ("cnn", "program", "1/2"),
]
COMPUTED = ("running_mean", "running_var", "inv_freq", "rank_counts")
"""Endings of the names of tensors that are computed in floating point."""


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], submodel.Run]]:
    """Make a function that opens a run by its name, in a folder with the text."""
    path = tmp_path_factory.mktemp("exports")
    (path / "words.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 30)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        yield cache(made_run)


def by_formula(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Make values of eight bits, whose sums and products of a few are exact."""
    made, start = {}, 0
    for name, tensor in sorted(tensors.items()):
        places = torch.arange(start, start + tensor.numel()).view(tensor.shape)
        start += tensor.numel()
        value = (places * 7919 % 251 - 125).to(tensor.dtype) / 256
        made[name] = value if tensor.is_floating_point() else tensor
    return {name: made[name] for name in tensors}


def made_run(name: str) -> submodel.Run:
    """Make a finished run with a model by the formula."""
    folder = RunFolder(Path(name))
    data = {} if "data" in RUNS[name] else DIGITS
    config = parse(joined({"train": {"rounds": 2}}, data, RUNS[name]))
    folder.create(config)
    setup = prepare(config)
    state = Training(config, setup).initial_state()
    state = replace(state, round=2, tensors=by_formula(state.tensors))
    write_result(folder, config.name, state, [], {"test_loss": 1.0})
    return submodel.open(folder.path)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind", "capacity"), EXPORTED)
def test_exports_hold_what_they_did(
    name: str, kind: Any, capacity: str, run_of: Callable[[str], submodel.Run], tmp_path: Path
) -> None:
    run_of(name).export(capacity, kind, tmp_path)
    found = {file.name: content(file) for file in sorted(tmp_path.iterdir())}
    EXPORTS.check(f"{name}, {kind}, {capacity}", found)


def content(file: Path) -> Any:
    """Return the content of a file without metadata of libraries."""
    if file.suffix == ".json":
        return _settings(json.loads(file.read_text("utf-8")))
    if file.suffix == ".safetensors":
        with safe_open(file, "pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            return {"metadata": opened.metadata(), **_digest(tensors)}
    if file.suffix == ".onnx":
        return _graph(file)
    program: Any = torch.export.load(file)
    signature = program.graph_signature
    return {
        "inputs": list(signature.user_inputs),
        "outputs": len(signature.user_outputs),
        "parameters": list(signature.parameters),
        **_digest(program.state_dict),
    }


def _settings(value: Any) -> Any:
    """Return a file's settings without scores, versions and folders."""
    if not isinstance(value, dict):
        return value
    left_out = ("score", "transformers_version", "config")
    return {key: _settings(each) for key, each in value.items() if key not in left_out}


def _digest(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the number of tensors and values, and a hash of names, types, shapes and values."""
    sha = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        if not name.endswith(COMPUTED):
            sha.update(tensor.detach().contiguous().numpy().tobytes())
    values = sum(tensor.numel() for tensor in tensors.values())
    return {"tensors": len(tensors), "values": values, "sha256": sha.hexdigest()}


def _graph(file: Path) -> dict[str, Any]:
    """Return inputs, outputs, operators and constants of an ONNX file, without inner names."""
    library: Any = importlib.import_module("onnx")
    graph = library.load(file).graph

    def shape(value: Any) -> list[Any]:
        return [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]

    return {
        "inputs": [shape(value) for value in graph.input],
        "outputs": [shape(value) for value in graph.output],
        "operators": [node.op_type for node in graph.node],
        "constants": sorted([x.data_type, *x.dims] for x in graph.initializer),
    }


def test_nothing_is_pinned_that_is_gone() -> None:
    EXPORTS.check_names([", ".join(case) for case in EXPORTED])
