"""What a run's folder keeps of its data, so that its model can be used where the data is not.

Shapes, types, classes, tokens and columns, and the axes that were found: no example. A model is
made, cut, exported and used for text from this record alone; training and scoring need the data.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

import torch
from pydantic import TypeAdapter
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from submodel.algorithm.types import Model, PartitionedClients, Setup
from submodel.config import Config
from submodel.data import Dataset
from submodel.data.examples import About, Examples
from submodel.data.facts import TableFacts, TextFacts
from submodel.data.partitions import Unsplit
from submodel.errors import ConfigError, SubmodelError
from submodel.files import UnreadableError, read_typed, write_text
from submodel.model.axes.declare import from_json, to_json
from submodel.model.cut import cut_digest
from submodel.model.inputs import columns, first_column, from_columns
from submodel.model.zoo import ModelContext
from submodel.prepare.findings import Selector, context_of, logits_of, select_outputs, selection_of
from submodel.prepare.fit import cross_entropy_options
from submodel.prepare.objective import make_task, settle, settle_natural
from submodel.prepare.parts import as_low_rank, assemble_setup, make_module, make_scheme, take_share
from submodel.runs.folder import RunFolder
from submodel.runs.subject import Fingerprints
from submodel.runs.training import Training
from submodel.tasks.loss import Loss

_MOST, _LARGEST_ROW = 2**28, 2**28  # bytes: a tokeniser is in it; values


@dataclass(frozen=True)
class TensorKind:
    """The shape of one row of a tensor, and its type."""

    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, tensor: Tensor) -> TensorKind:
        """That of a tensor of rows."""
        return cls(tuple(tensor.shape[1:]), str(tensor.dtype).removeprefix("torch."))

    def rows(self, most: int = 2) -> Tensor:
        """Two rows: numbers drawn at random, always the same; whole numbers below ``most``."""
        kind = getattr(torch, self.dtype, None)
        if not isinstance(kind, torch.dtype) or math.prod(self.shape) > _LARGEST_ROW:
            raise UnreadableError(f"{self.dtype!r} {self.shape} are no type and shape of a row")
        random = torch.Generator().manual_seed(0)
        if kind.is_floating_point or kind.is_complex:
            return torch.randn(2, *self.shape, generator=random).to(kind)
        return torch.randint(min(1, most - 1), most, (2, *self.shape), generator=random).to(kind)


@dataclass(frozen=True)
class DataRecord:
    """The record of a run.

    Args:
        subject: fingerprints of data, axes and module.
        columns: of the inputs, by name; one without a name: they are one tensor.
        targets: what they are.
        classes: how many, where targets are labels.
        owners: how many clients the data names, where it does.
        context: what the model is made for.
        selects_logits: whether the logits are selected from what the module returns.
        axes: as JSON; None: they cannot be kept so.
        about: where images come from.
        text: the tokens.
        table: how columns became numbers.
    """

    subject: dict[str, str]
    columns: dict[str, TensorKind]
    targets: TensorKind
    classes: int | None
    owners: int | None
    context: ModelContext
    selects_logits: bool
    axes: str | None
    about: About | None = None
    text: TextFacts | None = None
    table: TableFacts | None = None

    @classmethod
    def of(cls, training: Training, subject: Fingerprints) -> DataRecord:
        """The record of what is trained."""
        setup = training.setup
        data, axes = setup.clients.dataset, to_json(setup.axes)
        selection = selection_of(setup.module)
        return cls(
            dict(subject),
            {name: TensorKind.of(tensor) for name, tensor in columns(data.train.x).items()},
            TensorKind.of(data.train.y),
            data.classes,
            None if data.owners is None else len(data.owners),
            # a module of the user's own is made already
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
        """A dataset of this kind, with two rows that mean nothing."""
        vocabulary = self.context.vocabulary or 2
        tensors = {
            name: kind.rows(2 if place else vocabulary)
            for place, (name, kind) in enumerate(self.columns.items())
        }
        rows = Examples(from_columns(tensors), self.targets.rows())
        return Dataset(rows, rows, self.classes, self.about, self.text, None, self.table)


_RECORD = TypeAdapter(DataRecord)


def write_record(folder: RunFolder, record: DataRecord) -> None:
    """Keep the record."""
    write_text(folder.record_file, json.dumps(asdict(record), default=str) + "\n")


def read_record(folder: RunFolder) -> DataRecord | None:
    """The record of a run's folder; None where it has none that can be read."""
    try:
        record = read_typed(_RECORD, folder.record_file, _MOST)
        _ = record.dataset
    except (UnreadableError, RuntimeError):
        return None
    return record if record.axes is not None else None


def read_norms(folder: RunFolder) -> dict[str, Tensor]:
    """The statistics of static norms of the result, by the digest of a cut."""
    try:
        return load_file(folder.norms_file)
    except (OSError, SafetensorError):
        return {}


@dataclass(frozen=True)
class AbsentClients(PartitionedClients):
    """The clients of a run whose data is not here."""

    norms: Mapping[str, Tensor] = field(default_factory=dict)
    """Statistics of static norms by the digest of a cut, as far as they are kept."""

    def moments(self, models: Sequence[Model]) -> list[Tensor | None]:
        """Those that are kept; raises `SubmodelError` for others."""
        rows = [self.norms.get(cut_digest(cut) or "") for _, cut in models]
        if any(row is None for row in rows):
            raise SubmodelError(
                "static batch norm takes its statistics from the training examples, which are not "
                "here; the run's folder has those of the capacities that it evaluates"
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
    """The setup of a run without its data: enough to make its model and cut it.

    Module, selection of outputs and loss are needed where they were given in Python.
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
    absent = Unsplit(ConfigError(["data: it is not here"]))
    return assemble_setup(config, module, axes, scheme, AbsentClients(data, absent, norms), task)
