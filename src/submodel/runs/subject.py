"""What a run is about besides its configuration: fingerprints of the data, the module, the axes.

A checkpoint keeps them, so that a run does not go on with other examples or another net without a
word. Of the examples every byte counts. Of an own module its layers, their settings and the values
that are not trained count, not its weights, which the checkpoint has; a built-in one follows from
the configuration.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from submodel.config.reading import shorten
from submodel.data import Dataset
from submodel.data.partitions import ClientLists
from submodel.model.axes.declare import axes_fingerprint
from submodel.model.build import tensors_of
from submodel.model.inputs import columns
from submodel.plugins import is_path
from submodel.prepare.findings import selection_of
from submodel.runs.training import Training

Fingerprints = Mapping[str, str]
"""Fingerprints by what they are of, each a text for people, those of values with a hash."""
_PIECE = 2**24  # values to hash at a time, where they are not contiguous in memory
_OWNERS = "named clients"
_MOST_LAYERS, _MOST_SHOWN = 2000, 8
_HASH, _SHOWN = " sha256:", 12


def subject_of(training: Training) -> Fingerprints:
    """The fingerprints of a run; over devices, of what the server has and is sure to need."""
    config, setup = training.config, training.setup
    data = setup.clients.dataset
    on_devices = config.engine.name == "flower"
    fingerprints = {"axes": f"{len(setup.axes.sizes)}{_HASH}{axes_fingerprint(setup.axes)}"}
    fingerprints |= _of_data(data, ("test",) if on_devices else ("train", "test"))
    if config.model.name == "own" or is_path(config.model.name):
        fingerprints["loss"] = getattr(setup.loss, "__name__", type(setup.loss).__name__)
        fingerprints |= _of_module(setup.module)
    if (selection := selection_of(setup.module)) is not None:
        outputs = selection.outputs
        fingerprints["outputs"] = getattr(outputs, "__name__", type(outputs).__name__)
    if isinstance(partition := getattr(setup.clients, "partition", None), ClientLists):
        digest = hashlib.sha256()
        for positions in partition.lists:
            digest.update(f"{len(positions)}:".encode() + positions.tobytes())
        fingerprints["clients"] = f"lists of {len(partition.lists)}{_HASH}{digest.hexdigest()}"
    return fingerprints


def describe_differences(then: Fingerprints, now: Fingerprints) -> list[str]:
    """What is not as it was, a sentence each.

    >>> describe_differences({"loss": "cross_entropy"}, {"loss": "nll_loss"})
    ['loss: cross_entropy then, nll_loss now']
    """
    problems = []
    if _OWNERS not in then:
        now = {name: text for name, text in now.items() if name != _OWNERS}  # of an earlier version
    for name in {**then, **now}:
        old, new = then.get(name, "none"), now.get(name, "none")
        if old == new:
            continue
        (old, _, old_hash), (new, _, new_hash) = old.partition(_HASH), new.partition(_HASH)
        if old == new:
            hashes = f"sha256 {old_hash[:_SHOWN]} then, {new_hash[:_SHOWN]} now"
            problems.append(f"{name}: {old} as then, but not the same ones ({hashes})")
        else:
            problems.append(f"{name}: {shorten(old)} then, {shorten(new)} now")
    if more := problems[_MOST_SHOWN:]:
        problems[_MOST_SHOWN:] = [f"and {len(more)} more"]
    return problems


def model_part(fingerprints: Fingerprints) -> Fingerprints:
    """Those of the model alone, not of data and clients."""
    data = ("train ", "test ", "classes", "clients", _OWNERS)
    return {name: text for name, text in fingerprints.items() if not name.startswith(data)}


def data_differences(then: Fingerprints, data: Dataset) -> list[str]:
    """How the inputs of some data differ from those of a run, whose fingerprints are ``then``."""
    now = _of_data(data, ("train", "test"))
    names = [name for name in now if " inputs" in name and then.get(name)]
    return describe_differences({n: then[n] for n in names}, {n: now[n] for n in names})


def hash_of(tensor: Tensor) -> str:
    """The hash of a tensor's values, wherever they are: of their bytes in order, copied in pieces.

    >>> hash_of(torch.zeros(3)) == hash_of(torch.zeros(3, 2)[:, 0]) != hash_of(torch.ones(3))
    True
    """
    digest = hashlib.sha256()
    for piece in _pieces(tensor.detach()):
        flat = piece.cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _pieces(tensor: Tensor) -> Iterator[Tensor]:
    in_place = tensor.is_contiguous() and tensor.device.type == "cpu"
    if in_place or tensor.numel() <= _PIECE:
        yield tensor
    else:
        rows = max(1, _PIECE * len(tensor) // tensor.numel())
        for start in range(0, len(tensor), rows):
            yield tensor[start : start + rows]


def _of_data(data: Dataset, parts: tuple[str, ...]) -> dict[str, str]:
    fingerprints = {"classes": str(data.classes), _OWNERS: "none"}
    if (owners := data.owners) is not None and "train" in parts:
        digest = hashlib.sha256("\n".join(owners.names).encode() + owners.train.tobytes())
        fingerprints[_OWNERS] = f"{len(owners)}{_HASH}{digest.hexdigest()}"
    for name in parts:
        part = getattr(data, name)
        fingerprints |= {
            **{
                f"{name} inputs {column}".rstrip(): _describe_tensor(tensor)
                for column, tensor in columns(part.x).items()
            },
            f"{name} targets": _describe_tensor(part.y),
        }
    return fingerprints


def _describe_tensor(tensor: Tensor, values: bool = True) -> str:
    kind = str(tensor.dtype).removeprefix("torch.")
    text = f"{kind} {' x '.join(map(str, tensor.shape))}"
    return f"{text}{_HASH}{hash_of(tensor)}" if values else text


def _of_module(module: nn.Module) -> dict[str, str]:
    fingerprints = {
        f"module {name}".rstrip(): _layer(layer) for name, layer in module.named_modules()
    }
    tensors = tensors_of(module)
    for name, buffer in module.named_buffers():
        if name not in tensors and buffer.dim():  # those of no dimension count batches
            # fractions, say of a table of sines, may differ in the last digit between machines
            fingerprints[f"buffer {name}"] = _describe_tensor(
                buffer, not buffer.is_floating_point()
            )
    if len(fingerprints) > _MOST_LAYERS:
        digest = hashlib.sha256("\n".join(f"{k}={v}" for k, v in fingerprints.items()).encode())
        return {"module": f"{len(fingerprints)} layers{_HASH}{digest.hexdigest()}"}
    return fingerprints


def _layer(layer: nn.Module) -> str:
    """Its class and its settings: what it says of itself, and its plain attributes."""
    try:
        own_words = layer.extra_repr()
    except Exception:  # somebody else's code, which nothing else here needs
        own_words = ""
    settings = {
        name: value
        for name, value in sorted(vars(layer).items())
        if type(value) in (bool, int, float, str)
        and not name.startswith("_")
        and name != "training"
        and f"{name}=" not in own_words
    }
    text = f"{type(layer).__name__}({own_words})"
    return text + "".join(f" {name}={value!r}" for name, value in settings.items())
