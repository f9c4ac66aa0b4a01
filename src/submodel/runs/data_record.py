"""Record of a run's data, with which its model can be used where the data is missing.

The record contains shapes, types, classes, tokens, columns and the traced axes, but no examples. It
suffices to make, cut and export the model and to generate text; training and scoring need the data.

The record and the checkpoints contain fingerprints of data, module and axes, so that a run cannot
be resumed unnoticed with other examples or another net. The fingerprint of examples covers every
byte. That of a module given in Python covers its layers, their settings and untrained values, but
not its weights, which are in the checkpoint; built-in modules follow from the configuration.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import torch
from pydantic import TypeAdapter
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from submodel.algorithm.types import Model, PartitionedClients, Setup
from submodel.config import Config
from submodel.config.checks import cross_entropy_options
from submodel.config.model_facts import (
    Selector,
    context_of,
    logits_of,
    select_outputs,
    selection_of,
)
from submodel.config.objective import make_task, settle
from submodel.config.parts import (
    as_low_rank,
    assemble_setup,
    make_module,
    make_scheme,
    settle_natural,
    take_share,
)
from submodel.config.reading import shorten
from submodel.core.errors import ConfigError, SubmodelError
from submodel.core.files import UnreadableError, read_typed, write_text
from submodel.core.registry import is_path
from submodel.data import Dataset
from submodel.data.examples import About, Examples
from submodel.data.facts import TableFacts, TextFacts
from submodel.data.partitions import ClientLists, Unsplit
from submodel.model.axes.declare import axes_fingerprint, from_json, to_json
from submodel.model.build import tensors_of
from submodel.model.cut import cut_digest
from submodel.model.inputs import columns, first_column, from_columns
from submodel.model.zoo import ModelContext
from submodel.runs.folder import RunFolder
from submodel.runs.training import Training
from submodel.tasks.loss import Loss

_MOST, _LARGEST_ROW = 2**28, 2**28  # bytes of a record, which may contain a tokeniser; values
Fingerprints = Mapping[str, str]
"""Fingerprints by name, as readable text; those of values end with a hash."""
_PIECE = 2**24  # values to hash at a time, if they are not contiguous in memory
_OWNERS = "named clients"
_MOST_LAYERS, _MOST_SHOWN = 2000, 8
_HASH, _SHOWN = " sha256:", 12


@dataclass(frozen=True)
class RowSpec:
    """Shape and type of one row of a tensor."""

    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, tensor: Tensor) -> RowSpec:
        """Make the specification of a tensor's rows."""
        return cls(tuple(tensor.shape[1:]), str(tensor.dtype).removeprefix("torch."))

    def rows(self, most: int = 2) -> Tensor:
        """Make two rows of fixed pseudorandom numbers; integers are below ``most``."""
        dtype = getattr(torch, self.dtype, None)
        if not isinstance(dtype, torch.dtype) or math.prod(self.shape) > _LARGEST_ROW:
            raise UnreadableError(f"{self.dtype!r} {self.shape}: not a type and shape of a row")
        random = torch.Generator().manual_seed(0)
        if dtype.is_floating_point or dtype.is_complex:
            return torch.randn(2, *self.shape, generator=random).to(dtype)
        return torch.randint(min(1, most - 1), most, (2, *self.shape), generator=random).to(dtype)


@dataclass(frozen=True)
class DataRecord:
    """The record of a run.

    Args:
        subject: fingerprints of data, axes and module.
        columns: rows of the inputs by name; a single tensor has an empty name.
        targets: rows of the targets.
        classes: number of classes, if targets are labels.
        owners: number of clients that the data names, if any.
        context: context that the model is made with.
        selects_logits: whether the logits are selected from the module's return value.
        axes: axes as JSON; None: they cannot be written as JSON.
        about: origin of images.
        text: tokens of text.
        table: encoding of the columns of a table.
    """

    subject: dict[str, str]
    columns: dict[str, RowSpec]
    targets: RowSpec
    classes: int | None
    owners: int | None
    context: ModelContext
    selects_logits: bool
    axes: str | None
    about: About | None = None
    text: TextFacts | None = None
    table: TableFacts | None = None

    @classmethod
    def of(cls, training: Training, fingerprints: Fingerprints) -> DataRecord:
        """Make the record of a training."""
        setup = training.setup
        data, axes = setup.clients.dataset, to_json(setup.axes)
        selection = selection_of(setup.module)
        return cls(
            dict(fingerprints),
            {name: RowSpec.of(tensor) for name, tensor in columns(data.train.x).items()},
            RowSpec.of(data.train.y),
            data.classes,
            None if data.owners is None else len(data.owners),
            # a module given in Python needs no context
            ModelContext(data.inputs, 1)
            if training.config.model.name == "own"
            else context_of(data),
            selection is not None and selection.outputs is logits_of,
            axes if from_json(axes) == setup.axes else None,
            data.about,
            data.text,
            data.table,
        )

    @property
    def dataset(self) -> Dataset:
        """Dataset of this kind, with two meaningless rows."""
        vocabulary = self.context.vocabulary or 2
        tensors = {
            name: spec.rows(2 if place else vocabulary)
            for place, (name, spec) in enumerate(self.columns.items())
        }
        rows = Examples(from_columns(tensors), self.targets.rows())
        return Dataset(rows, rows, self.classes, self.about, self.text, None, self.table)


_RECORD = TypeAdapter(DataRecord)


def write_record(folder: RunFolder, record: DataRecord) -> None:
    """Write the record into the run's folder."""
    write_text(folder.record_file, json.dumps(asdict(record), default=str) + "\n")


def read_record(folder: RunFolder) -> DataRecord | None:
    """Read the record of a run's folder; None if there is none that can be read."""
    try:
        record = read_typed(_RECORD, folder.record_file, _MOST)
        _ = record.dataset
    except (UnreadableError, RuntimeError):
        return None
    return record if record.axes is not None else None


def read_norms(folder: RunFolder) -> dict[str, Tensor]:
    """Read the statistics of static norms of the result, by the digest of a cut."""
    try:
        return load_file(folder.norms_file)
    except (OSError, SafetensorError):
        return {}


@dataclass(frozen=True)
class AbsentClients(PartitionedClients):
    """The clients of a run whose data is missing."""

    norms: Mapping[str, Tensor] = field(default_factory=dict)
    """Recorded statistics of static norms by the digest of a cut."""

    def moments(self, models: Sequence[Model]) -> list[Tensor | None]:
        """Return the recorded statistics; raise `SubmodelError` for other cuts."""
        rows = [self.norms.get(cut_digest(cut) or "") for _, cut in models]
        if any(row is None for row in rows):
            raise SubmodelError(
                "static batch norm needs statistics of the training examples, which are missing; "
                "the run's folder has those of the evaluated capacities only"
            )
        return rows


def setup_of_record(
    config: Config,
    record: DataRecord,
    norms: Mapping[str, Tensor],
    model: nn.Module | None = None,
    outputs: Selector | None = None,
    loss: Loss | None = None,
) -> Setup:
    """Make the setup of a run without its data, which suffices to make and cut its model.

    Module, selection of outputs and loss are needed if they were given in Python.
    """
    data = record.dataset
    task = make_task(config, data, loss)
    is_plain = data.classes is not None and not cross_entropy_options(task.loss, data)
    config = settle_natural(settle(config, data, is_plain, split=False), record.owners)
    if model is None:
        model = make_module(config, record.context)
        if (example := first_column(data.example)).is_floating_point():
            model = model.to(example.dtype)
    selects = logits_of if record.selects_logits else outputs
    module = as_low_rank(config, model if selects is None else select_outputs(model, selects))
    if config.model.share != 1:
        module = take_share(config, module, data.example)
    assert record.axes is not None
    axes = from_json(record.axes)
    scheme = make_scheme(config, module, axes, is_plain)
    absent = Unsplit(ConfigError("data: the examples are missing"))
    return assemble_setup(config, module, axes, scheme, AbsentClients(data, absent, norms), task)


def fingerprints_of(training: Training) -> Fingerprints:
    """Compute the fingerprints of a run; on devices, those of the server's part of the data."""
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
    """Describe the differences between fingerprints, a sentence each.

    >>> describe_differences({"loss": "cross_entropy"}, {"loss": "nll_loss"})
    ['loss: cross_entropy then, nll_loss now']
    """
    problems = []
    if _OWNERS not in then:
        now = {name: text for name, text in now.items() if name != _OWNERS}  # an earlier version
    for name in {**then, **now}:
        old, new = then.get(name, "none"), now.get(name, "none")
        if old == new:
            continue
        (old, _, old_hash), (new, _, new_hash) = old.partition(_HASH), new.partition(_HASH)
        if old == new:
            hashes = f"sha256 {old_hash[:_SHOWN]} then, {new_hash[:_SHOWN]} now"
            problems.append(f"{name}: {old} as then, but with other values ({hashes})")
        else:
            problems.append(f"{name}: {shorten(old)} then, {shorten(new)} now")
    if more := problems[_MOST_SHOWN:]:
        problems[_MOST_SHOWN:] = [f"and {len(more)} more"]
    return problems


def model_part(fingerprints: Fingerprints) -> Fingerprints:
    """Select the fingerprints of the model, without those of data and clients."""
    data = ("train ", "test ", "classes", "clients", _OWNERS)
    return {name: text for name, text in fingerprints.items() if not name.startswith(data)}


def data_differences(then: Fingerprints, data: Dataset) -> list[str]:
    """Describe how the inputs of data differ from those of a run with the fingerprints ``then``."""
    now = _of_data(data, ("train", "test"))
    names = [name for name in now if " inputs" in name and then.get(name)]
    return describe_differences({n: then[n] for n in names}, {n: now[n] for n in names})


def hash_of(tensor: Tensor) -> str:
    """Hash the values of a tensor in order, on any device and with any strides.

    >>> hash_of(torch.zeros(3)) == hash_of(torch.zeros(3, 2)[:, 0]) != hash_of(torch.ones(3))
    True
    """
    digest = hashlib.sha256()
    for piece in bytes_of(tensor):
        digest.update(piece)
    return digest.hexdigest()


def bytes_of(tensor: Tensor) -> Iterator[memoryview]:
    """Yield the bytes of a tensor's values, in pieces if they must be copied."""
    tensor = tensor.detach()
    in_place = tensor.is_contiguous() and tensor.device.type == "cpu"
    pieces: Sequence[Tensor] = [tensor]
    if not in_place and tensor.numel() > _PIECE:
        rows = max(1, _PIECE * len(tensor) // tensor.numel())
        pieces = torch.split(tensor, rows)
    for piece in pieces:
        yield piece.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


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
        if name not in tensors and buffer.dim():  # scalars count batches
            # floats, as in a table of sines, may differ in the last digit between machines
            fingerprints[f"buffer {name}"] = _describe_tensor(
                buffer, not buffer.is_floating_point()
            )
    if len(fingerprints) > _MOST_LAYERS:
        digest = hashlib.sha256("\n".join(f"{k}={v}" for k, v in fingerprints.items()).encode())
        return {"module": f"{len(fingerprints)} layers{_HASH}{digest.hexdigest()}"}
    return fingerprints


def _layer(layer: nn.Module) -> str:
    """Describe a layer by its class and settings: its `extra_repr` and its plain attributes."""
    try:
        own_words = layer.extra_repr()
    except Exception:  # any exception of the user's code
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
