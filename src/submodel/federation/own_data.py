"""The data that a device has: read, checked against what the run wants, kept ready on its disk.

A fresh process answers every message, so what was read once is kept as one file of tensors, under
a name that changes when the data does.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from submodel.algorithm.types import PartitionedClients
from submodel.config import Config, DataSection, override, parse
from submodel.data import Examples
from submodel.data.cache import cache_folder
from submodel.data.registry import SOURCES
from submodel.data.sources import Encoding, SourceContext
from submodel.data.text.streams import TABLES, visible_files
from submodel.errors import ConfigError, DataError
from submodel.federation.conform import conform, renumber_classes
from submodel.federation.facts import Facts
from submodel.federation.own_files import picture_files, read_array_file, read_pictures
from submodel.model.inputs import columns, from_columns
from submodel.options import compose
from submodel.prepare.objective import apply_task, make_task
from submodel.prepare.parts import load_data, split_data

_log = logging.getLogger(__name__)
_NOT_HERE = ("name", "path", "test_path", "source", "examples", "test_examples", "held_out",
             "least", "client", "partition", "augment")  # fmt: skip
"""Keys of the server's data that say nothing of a device's: where it is, how much of it is used."""


@dataclass(frozen=True)
class OwnData:
    """Where a device's examples are: in a folder or a file, by name, or a part of the run's data.

    Args:
        path: a folder with a folder of pictures for every class, or a file of arrays.
        part: the client whose part of the configured data this device plays.
        name: a source of data, as ``csv:PATH``, read with the keys of the run's configuration.
        settings: keys that are others here, as ``data.path=PLACE``.
    """

    path: Path | None = None
    part: int | None = None
    name: str | None = None
    settings: tuple[str, ...] = ()

    @classmethod
    def of(cls, text: str, settings: tuple[str, ...] = ()) -> OwnData:
        """A path that is there, or else the name of a source.

        >>> OwnData.of("mnist").name, OwnData.of("folder:/pictures").path
        ('mnist', PosixPath('/pictures'))
        """
        prefix, _, argument = text.partition(":")
        if prefix == "folder" and argument:
            return cls(Path(argument), settings=settings)
        if Path(text).expanduser().exists() or not SOURCES.knows(text):
            return cls(Path(text), settings=settings)
        return cls(name=text, settings=settings)

    def read(
        self, config: Config, facts: Facts, receive: Callable[[], Encoding] = Encoding
    ) -> Examples:
        """The examples, in the shapes and classes of the run.

        Args:
            config: of the run.
            facts: of its data.
            receive: gives how the server's text or table became numbers.
        """
        if self.part is not None:
            key = _key("part", self.part, config.data, config.clients.client_count, config.seed,
                       config.task)  # fmt: skip
            return _read_once(key, lambda: _part(config, self.part))
        if self.name is not None:
            return self._read_named(self.name, config, facts, receive)
        if self.path is None:
            raise DataError("this device has no data: join with --data, or --part NUMBER")
        path = self.path.expanduser()
        size = getattr(self._section(config), "size", None)
        try:
            if not path.is_dir():
                return conform(read_array_file(path, facts), facts, path)
            files = [_identity(file) for file in picture_files(path)]
        except (OSError, ValueError) as error:  # not readable, or no name of a file
            raise DataError(f"{path}: {error}") from None
        task = make_task(config, facts.dataset)

        def read() -> Examples:
            return conform(task.examples(read_pictures(path, size, facts)), facts, path)

        return _read_once(_key("folder", size, facts, files, config.task), read)

    def _read_named(
        self, name: str, config: Config, facts: Facts, receive: Callable[[], Encoding]
    ) -> Examples:
        section = self._section(config)
        source = SOURCES.find(name)
        task = make_task(config, facts.dataset)

        def read() -> Examples:
            encoding = replace(receive(), mean=facts.mean, deviation=facts.deviation)
            data = source.make(section, SourceContext(source.argument, encoding=encoding))
            if data.about is not None and facts.mean and data.about.mean != facts.mean:
                raise DataError(f"{name}: it is normalised by other means than the run's data")
            return conform(task.examples(renumber_classes(data, facts, name)), facts, name)

        if not SOURCES.is_ours(name):
            return read()  # nobody knows when somebody's code gives others
        places = [source.argument, getattr(section, "path", None)]
        files = [
            _identity(file)
            for place in places
            if place and (path := Path(place).expanduser()).exists()
            for file in visible_files(path)
        ]
        return _read_once(_key("named", section, facts, files, config.task), read)

    def _section(self, config: Config) -> DataSection:
        """The section ``data`` with what the run says of such data, and what is different here."""
        own_values = override({}, self.settings)
        own_keys = own_values.get("data", {})
        strange_keys = sorted(own_values.keys() - {"data"})
        if strange_keys or not isinstance(own_keys, dict) or "name" in own_keys:
            wrong = strange_keys[0] if strange_keys else "data.name, which is --data,"
            raise ConfigError([f"--set {wrong}: want data.KEY=VALUE"])
        choice, name = config.data, self.name or config.data.name
        values = {
            key: getattr(choice, key)
            for key, field in type(choice).model_fields.items()
            if key not in _NOT_HERE and getattr(choice, key) != field.default
        }
        if name.startswith("text:") and Path(name).suffix.lower() not in TABLES:
            values.pop("column", None)  # a plain text has none, though the server's may
        values |= {"name": name, **own_keys}
        fields = compose(DataSection, values).model_fields
        return parse(
            {"data": {k: v for k, v in values.items() if k in fields or k in own_keys}}
        ).data


def _part(config: Config, client: int | None) -> Examples:
    source = load_data(config)
    if client is None or not 0 <= client < config.clients.client_count:
        raise DataError(
            f"part {client}: the run has clients 0 to {config.clients.client_count - 1}"
        )
    data = apply_task(make_task(config, source), source)
    return PartitionedClients(data, split_data(config, source)).examples(client)


def _identity(file: Path) -> tuple[str, int, int]:
    status = file.stat()
    return str(file), status.st_size, status.st_mtime_ns


def _key(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def _read_once(key: str, read: Callable[[], Examples]) -> Examples:
    """The examples that were kept under a key, or what is read now and kept under it."""
    file = cache_folder() / "devices" / f"{key}.safetensors"
    try:
        return _from_tensors(load_file(file))
    except (OSError, KeyError, TypeError, ValueError, SafetensorError):
        pass  # not there, or damaged
    examples = read()
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        save_file(_to_tensors(examples), partial)
        partial.replace(file)
    except (OSError, SafetensorError) as error:
        _log.warning("%s: cannot keep the data there (%s): it is read every time", file, error)
        partial.unlink(missing_ok=True)
    return examples


_INPUTS = "x/"


def _to_tensors(examples: Examples) -> dict[str, Tensor]:
    inputs = {f"{_INPUTS}{name}": t.contiguous() for name, t in columns(examples.x).items()}
    # an autoencoder's targets are its inputs, and safetensors writes no tensor twice
    shared = any(examples.y.data_ptr() == tensor.data_ptr() for tensor in inputs.values())
    targets = examples.y.contiguous()
    return {**inputs, "y": targets.clone() if shared else targets}


def _from_tensors(tensors: Mapping[str, Tensor]) -> Examples:
    inputs = {n.removeprefix(_INPUTS): t for n, t in tensors.items() if n.startswith(_INPUTS)}
    examples = Examples(from_columns(inputs), tensors["y"])
    if not inputs or not all(0 < len(t) == len(examples.y) for t in inputs.values()):
        raise ValueError("damaged")
    return examples
