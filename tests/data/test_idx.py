"""MNIST and similar datasets: idx files, compressed or not, in a folder or an archive."""

from __future__ import annotations

import gzip
import tarfile
from pathlib import Path

import numpy as np
import pytest

from submodel.core.errors import DataError
from submodel.data import load_dataset


def idx(array: np.ndarray) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def write_set(folder: Path, packed: bool = False, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    arrays = {}
    for part, count in (("train", 20), ("t10k", 10)):
        arrays[f"{part}-images-idx3-ubyte"] = random.integers(0, 256, (count, 28, 28))
        arrays[f"{part}-labels-idx1-ubyte"] = np.arange(count) % 10
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        content = idx(array)
        file = folder / (f"{name}.gz" if packed else name)
        file.write_bytes(gzip.compress(content) if packed else content)
    return arrays


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_a_folder_of_idx_files_is_read(name: str, packed: bool, tmp_path: Path) -> None:
    arrays = write_set(tmp_path, packed)
    data = load_dataset(name, path=str(tmp_path))
    assert (len(data.train), len(data.test), data.inputs, data.classes) == (20, 10, (1, 28, 28), 10)
    assert data.train.y.tolist() == arrays["train-labels-idx1-ubyte"].tolist()
    pixels = np.asarray(data.train.x)[:, 0]
    raw = arrays["train-images-idx3-ubyte"] / 255
    assert np.allclose(pixels, (raw - raw.mean()) / raw.std(), atol=1e-5)


def test_an_archive_is_read(tmp_path: Path) -> None:
    write_set(tmp_path / "package" / "data")
    with tarfile.open(tmp_path / "mnist.tgz", "w:gz") as archive:
        archive.add(tmp_path / "package", "package")
    assert len(load_dataset("mnist", path=str(tmp_path / "mnist.tgz")).train) == 20


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("train-images-idx3-ubyte", b"\x89PNG", "idx file"),
        ("train-images-idx3-ubyte", idx(np.zeros((20, 28))), "idx3-ubyte: 2 .*3"),
        ("train-images-idx3-ubyte", idx(np.zeros((20, 27, 28))), "MNIST"),
        ("train-images-idx3-ubyte", idx(np.zeros((20, 28, 28)))[:-5], ": .*damaged"),
        ("t10k-labels-idx1-ubyte", idx(np.zeros(9)), ": 10 .*9 "),
        ("t10k-labels-idx1-ubyte", idx(np.full(10, 77)), "MNIST"),
        (
            "t10k-labels-idx1-ubyte",
            gzip.compress(idx(np.zeros(10)), mtime=0)[:-9],
            ": .*(dimensions|damaged)",
        ),
        ("t10k-labels-idx1-ubyte", None, "t10k-labels-idx1-ubyte.gz"),
    ],
    ids=range(8),
)
def test_a_damaged_set_is_refused(
    name: str, content: bytes | None, reason: str, tmp_path: Path
) -> None:
    write_set(tmp_path)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=reason):
        load_dataset("mnist", path=str(tmp_path))
