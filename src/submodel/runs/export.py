"""Export of a trained model or sub-model as files for devices.

``safetensors``: the weights, with a JSON file that describes them. ``program``: a `torch.export`
program that runs without this package. ``onnx``: for other runtimes (an extra). ``huggingface``: a
folder for `from_pretrained`, for models of `transformers`. ``peft``: only the adapters, for `peft`,
which loads them beside the model they were trained on.
"""

from __future__ import annotations

import importlib
import json
import logging
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from submodel.algorithm.dispatch import scale_model
from submodel.algorithm.evaluation import assemble_module
from submodel.algorithm.score import Score, score
from submodel.algorithm.types import State
from submodel.config import Config
from submodel.config.model_facts import without_selection
from submodel.core.errors import SubmodelError
from submodel.model.build import tensors_of
from submodel.model.cut import UnitCut
from submodel.model.inputs import Inputs, arguments, call, take_rows
from submodel.model.norm import as_batch_norm
from submodel.model.zoo import fold_adapters
from submodel.model.zoo.low_rank import AdapterLayer, adapters_of, is_transposed
from submodel.runs.checkpoint import model_sha256
from submodel.runs.fitted import FittedModel
from submodel.runs.folder import RunFolder
from submodel.runs.pretrained import as_pretrained, first_output, is_pretrained
from submodel.runs.training import Training

Format = Literal["safetensors", "program", "onnx", "huggingface", "peft"]
_LOADED_TOLERANCE = 1e-4
"""Tolerance relative to the largest output, in the model's precision: moving scales rounds."""
_PEFT_PREFIX = "base_model.model."


def trained_state(folder: RunFolder, training: Training) -> State:
    """Read the final model of a finished run, checked against the model of its configuration."""
    sha256 = folder.result()["model_sha256"]
    try:
        tensors = load_file(folder.model_file)
        like = training.initial_state()
        memory = load_file(folder.memory_file) if like.memory else {}
    except (OSError, SafetensorError) as error:
        raise SubmodelError(f"{folder.model_file}: cannot be read ({error})") from None
    if {n: t.shape for n, t in tensors.items()} != {n: t.shape for n, t in like.tensors.items()}:
        raise SubmodelError(f"{folder.model_file}: its tensors are not those of the run's model")
    if model_sha256(tensors) != sha256:
        raise SubmodelError(f"{folder.model_file}: damaged, it does not match its hash")
    return State(training.rounds, tensors, memory)


def trained_module(
    training: Training,
    state: State,
    capacity: float,
    fitted_model: FittedModel | None = None,
    is_scored: bool = True,
) -> tuple[nn.Module, Score | None, dict[str, Any]]:
    """Make the sub-model of a capacity from torch's layers, with its test score and description.

    A given fitted model is used instead. ``is_scored``: whether the test part is available.
    """
    config, setup = training.config, training.setup
    if fitted_model is None:
        cut = training.cut(state, capacity)
        module = assemble_module(
            setup, scale_model(training.setup_at(state), state.tensors, capacity), cut
        )
    else:
        cut = fitted_model.cut
        module = assemble_module(setup, fitted_model.tensors, cut)
    test_score = score(module, setup.clients.dataset.test, setup) if is_scored else None
    about: dict[str, Any] = {
        "run": config.name,
        "capacity": capacity,
        "scheme": config.scheme.name,
        "score": None if test_score is None else test_score.entries(),
        "inputs": list(setup.clients.dataset.inputs),
        "units": {a: k.tolist() for a, k in cut.units.items()} if isinstance(cut, UnitCut) else {},
        "config": config.model_dump(exclude_none=True),
    }
    if fitted_model is not None:
        facts = ("rounds", "lr", "cut", "score_before", "global_score", "model_sha256")
        about["fit"] = {name: fitted_model.about.get(name) for name in facts}
    if setup.clients.dataset.table is not None:
        about["table"] = asdict(setup.clients.dataset.table)
    return as_batch_norm(module).eval(), test_score, about


def export(
    training: Training,
    state: State,
    capacity: float,
    format_: Format,
    out: Path,
    fitted_model: FittedModel | None = None,
    is_scored: bool = True,
) -> tuple[Path, Score | None]:
    """Write the result of `trained_module` to a folder; return the file and the test score."""
    module, test_score, about = trained_module(training, state, capacity, fitted_model, is_scored)
    example = take_rows(training.setup.clients.dataset.test.x, slice(2))
    out.mkdir(parents=True, exist_ok=True)
    if format_ == "safetensors":
        path = out / "model.safetensors"
        save_file({n: t.contiguous() for n, t in tensors_of(module).items()}, path)
    elif format_ == "program":
        path = out / "model.pt2"
        positional, by_name, shapes = _exported_inputs(example)
        program = torch.export.export(module, positional, by_name, dynamic_shapes=shapes)
        torch.export.save(program, path)
    elif format_ == "huggingface":
        text = training.setup.clients.dataset.text
        tokens = None if text is None else text.tokens
        path = write_pretrained(fold_adapters(module), example, tokens, out)
    elif format_ == "peft":
        path = write_peft(module, training.config, out)
    else:
        path = out / "model.onnx"
        _to_onnx(module, example, path)
    (out / "model.json").write_text(json.dumps(about, indent=2) + "\n")
    return path, test_score


def _exported_inputs(example: Inputs) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
    """Return arguments, keyword arguments, and their batch dimensions."""
    positional, by_name = arguments(example)
    batch = torch.export.Dim("batch", min=1)
    shapes = {name: {0: batch} for name in by_name} if by_name else ({0: batch},) * len(positional)
    return positional, dict(by_name), shapes


def _to_onnx(module: nn.Module, example: Inputs, path: Path) -> None:
    try:
        importlib.import_module("onnxscript")  # torch's exporter needs it
    except ImportError:
        raise SubmodelError("ONNX export needs an extra: pip install 'submodel[onnx]'") from None
    positional, by_name, shapes = _exported_inputs(example)
    with _quiet_exporter():
        program = torch.onnx.export(
            module,
            positional,
            kwargs=by_name,
            dynamo=True,
            dynamic_shapes=shapes,
            external_data=False,
            verbose=False,
        )
        assert program is not None
        program.save(path)


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Suppress messages of torch's exporter on missing extras and its own deprecated calls.

    Warnings about the model are still shown.
    """
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    was_disabled, logger.disabled = logger.disabled, True
    try:
        with warnings.catch_warnings():
            for category in (DeprecationWarning, FutureWarning):
                warnings.simplefilter("ignore", category)
            yield
    finally:
        logger.disabled = was_disabled


def write_pretrained(module: nn.Module, example: Inputs, tokens: str | None, out: Path) -> Path:
    """Write the model, check that the loaded model computes the same, return the weights file.

    Args:
        module: model of `transformers` or a sub-model of one; its logits may be selected.
        example: batch of inputs for the comparison.
        tokens: tokeniser as text for `submodel.data.text.tokens.read_tokens`, if there is one.
        out: existing folder; nothing is written to it unless the check succeeds.
    """
    module = without_selection(module)
    if not is_pretrained(module):
        raise SubmodelError(
            f"export: format 'huggingface' is for models of transformers, not for a "
            f"{type(module).__name__}; 'safetensors' is for any model"
        )
    try:
        model: Any = as_pretrained(module, example)
    except SubmodelError as error:
        raise SubmodelError(f"export: format 'huggingface': {error}") from None
    with tempfile.TemporaryDirectory(dir=out, prefix=".partial-") as name, _quietly():
        partial = Path(name)
        model.save_pretrained(partial)
        difference = _difference(model, partial, module, example)
        if difference and getattr(model, "_keys_to_ignore_on_save", None):
            # a config computes tables, as of sinusoids; the sub-model has columns of the full ones
            model._keys_to_ignore_on_save = None
            model.save_pretrained(partial)
            difference = _difference(model, partial, module, example)
        if difference:
            raise SubmodelError(
                f"export: format 'huggingface': outputs of the loaded model differ by "
                f"{difference:.3g}"
            )
        _write_tokeniser(tokens, partial)
        for file in partial.iterdir():
            file.replace(out / file.name)
    return out / "model.safetensors"


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppress the progress bars of `transformers`."""
    logging: Any = importlib.import_module("transformers.utils.logging")
    had_bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if had_bars:
            logging.enable_progress_bar()


@torch.no_grad()
def _difference(model: Any, folder: Path, module: nn.Module, example: Inputs) -> float:
    """Return the distance of the loaded model's outputs to the sub-model's; 0 up to rounding."""
    loaded_model = type(model).from_pretrained(folder, local_files_only=True).eval()
    sub_outputs = first_output(call(module, example))
    try:
        outputs = first_output(call(loaded_model, example))
    except Exception as error:  # raised by the library, as by kernels that need 16 bytes of width
        raise SubmodelError(
            "export: format 'huggingface': the library loads the model but cannot run it: "
            f"{type(error).__name__}: {error}; another capacity may have supported sizes"
        ) from error
    difference = float((outputs - sub_outputs).abs().max())
    return 0.0 if difference <= _LOADED_TOLERANCE * float(sub_outputs.abs().max()) else difference


def _write_tokeniser(tokens: str | None, folder: Path) -> None:
    """Write the JSON of a tokeniser of the package ``tokenizers``; built-in ones have none."""
    description = None if tokens is None else json.loads(tokens).get("tokenizer")
    if description is None:
        return
    (folder / "tokenizer.json").write_text(json.dumps(description), "utf-8")
    about = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(about) + "\n", "utf-8")


def write_peft(module: nn.Module, config: Config, out: Path) -> Path:
    """Write the adapters of a module in which nothing else was trained; return their file.

    ``adapter_model.safetensors`` contains A and B of every layer under peft's names, and
    ``adapter_config.json`` their sizes. The base model is the one in ``model.weights``. A sub-model
    has fewer ranks and a smaller alpha, so that alpha / rank is that of the run.
    """
    adapters = adapters_of(module)
    if not adapters:
        raise SubmodelError("--format peft: the run has no adapters; model.adapters makes them")
    tensors = {}
    for path, layer in adapters.items():
        start = f"{_PEFT_PREFIX}{path}".rstrip(".")
        tensors[f"{start}.lora_A.weight"] = layer.down.weight.detach().contiguous()
        tensors[f"{start}.lora_B.weight"] = layer.up.weight.detach().contiguous()
    values_of_adapters = sum(tensor.numel() for tensor in tensors.values())
    if values_of_adapters != sum(p.numel() for p in module.parameters() if p.requires_grad):
        raise SubmodelError(
            "--format peft: other weights than adapters were trained, which these files cannot "
            "contain; use --format safetensors"
        )
    save_file(tensors, out / "adapter_model.safetensors", {"format": "pt"})
    about = adapter_config(adapters, config.model.weights, hasattr(module, "generate"))
    (out / "adapter_config.json").write_text(json.dumps(about, indent=2, sort_keys=True) + "\n")
    return out / "adapter_model.safetensors"


def adapter_config(
    adapters: dict[str, AdapterLayer], weights: str | None, generates: bool
) -> dict[str, Any]:
    """Make the values of peft's `LoraConfig` from adapters by path.

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
