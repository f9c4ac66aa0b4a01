"""A trained model as a folder that `from_pretrained` of `transformers` loads, and its tokeniser."""

from __future__ import annotations

import importlib
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from submodel.errors import SubmodelError
from submodel.model.inputs import Inputs, call
from submodel.model.pretrained import as_pretrained, is_pretrained
from submodel.model.pretrained.rebuild import first_output
from submodel.prepare.selection import without_selection

_TOLERANCE = 1e-4
"""Of the largest output, in the model's own precision: scales move digits from layer to layer."""


def write_pretrained(module: nn.Module, example: Inputs, tokens: str | None, out: Path) -> Path:
    """Write the model and see that it computes the same when it is loaded; returns its weights.

    Args:
        module: of `transformers`, or the sub-model of one; its logits may have been selected.
        example: a batch of inputs for the comparison.
        tokens: the tokeniser, as `submodel.data.text.tokens.read_tokens` reads it, if there is one.
        out: the folder, which is there; nothing is written to it unless all is well.
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
            # tables that a config computes, as of sinusoids: the sub-model has columns of the whole
            model._keys_to_ignore_on_save = None
            model.save_pretrained(partial)
            difference = _difference(model, partial, module, example)
        if difference:
            raise SubmodelError(
                f"export: format 'huggingface': when it is loaded, outputs differ by "
                f"{difference:.3g}"
            )
        _write_tokeniser(tokens, partial)
        for file in partial.iterdir():
            file.replace(out / file.name)
    return out / "model.safetensors"


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the library's progress bars, which tell of files."""
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
    """How far outputs of the loaded model are from those of the sub-model; zero up to rounding."""
    loaded_model = type(model).from_pretrained(folder, local_files_only=True).eval()
    sub_outputs = _outputs(module, example)
    try:
        outputs = _outputs(loaded_model, example)
    except Exception as error:  # of its own code, as of kernels that want widths of 16 bytes
        raise SubmodelError(
            "export: format 'huggingface': the library loads the model and cannot run it: "
            f"{type(error).__name__}: {error}; another capacity may have sizes that it can"
        ) from error
    difference = float((outputs - sub_outputs).abs().max())
    return 0.0 if difference <= _TOLERANCE * float(sub_outputs.abs().max()) else difference


def _outputs(module: nn.Module, example: Inputs) -> Tensor:
    return first_output(call(module, example))


def _write_tokeniser(tokens: str | None, folder: Path) -> None:
    """Write the JSON of a tokeniser of the package ``tokenizers``; ours have none."""
    description = None if tokens is None else json.loads(tokens).get("tokenizer")
    if description is None:
        return
    (folder / "tokenizer.json").write_text(json.dumps(description), "utf-8")
    about = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(about) + "\n", "utf-8")
