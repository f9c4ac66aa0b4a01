"""Files of a device's own data: unusual, broken or harmful ones are refused with a message."""

from __future__ import annotations

import io
import os
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import save_file

from submodel.config import parse
from submodel.core.errors import DataError
from submodel.data import Examples
from submodel.federation import own_data
from submodel.federation.facts import Facts
from submodel.federation.own_data import OwnData

FACTS = Facts((1, 2, 2), "float32", 3, ("ant", "bee", "cat"), (0.5,), (0.25,))
X = np.arange(16, dtype=np.float32).reshape(4, 1, 2, 2)
Y = np.array([0, 1, 2, 0])


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBMODEL_DATA", str(tmp_path / "cache"))


def read(path: Path, facts: Facts = FACTS) -> Examples:
    return OwnData(path).read(parse({"data": {"name": "folder:/here", "size": 2}}), facts)


def npz(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def npy(array: NDArray[np.generic]) -> bytes:
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


def declared(shape: str, descr: str = "'<f4'") -> bytes:
    """Make the header of an array without values."""
    head = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    head = head.ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head


def zipped(path: Path, x: bytes, kind: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", kind) as archive:
        archive.writestr("x.npy", x)
        archive.writestr("y.npy", npy(Y))
    return path


def odd_files(folder: Path) -> dict[str, tuple[Path, str]]:
    """Make unwanted files with the expected errors."""
    words = np.array(["a"] * 4)
    pairs = np.zeros(4, dtype=[("a", "<f4"), ("b", "<i4")])
    (folder / "empty.npz").write_bytes(b"")
    (folder / "text.npz").write_bytes(b"no archive")
    (folder / "array.npz").write_bytes(npy(X))
    (folder / "cut.npz").write_bytes(npz(folder / "whole.npz", x=X, y=Y).read_bytes()[:-40])
    os.mkfifo(folder / "pipe.npz")
    damaged = bytearray(npz(folder / "right.npz", x=X, y=Y).read_bytes())
    damaged[damaged.index(X.tobytes())] ^= 1
    (folder / "damaged.npz").write_bytes(damaged)
    save_file({"x": torch.zeros(4, 1, 2, 2, dtype=torch.complex64), "y": torch.zeros(4)},
              folder / "complex.safetensors")  # fmt: skip
    save_file({"x": torch.zeros(4, 1, 2, 2)}, folder / "half.safetensors")
    (folder / "cut.safetensors").write_bytes((folder / "half.safetensors").read_bytes()[:-1])
    nested = b"(" * 4000 + b")" * 4000
    return {
        "words": (npz(folder / "words.npz", x=words, y=Y), "<U1"),
        "records": (npz(folder / "pairs.npz", x=pairs, y=Y), "<f4"),
        "dates": (npz(folder / "dates.npz", x=X, y=Y.astype("M8[s]")), "datetime64"),
        "complex": (npz(folder / "complex.npz", x=X.astype(complex), y=Y), "complex128"),
        "objects": (zipped(folder / "objects.npz", declared("(4,)", "'|O'")), "object"),
        "single x": (npz(folder / "x0.npz", x=np.float32(1), y=Y), "4 targets"),
        "single y": (npz(folder / "y0.npz", x=X, y=np.int64(1)), "4 inputs"),
        "no y": (npz(folder / "no.npz", x=X), "no y"),
        "label rows": (npz(folder / "rows.npz", x=X, y=Y[:, None]), "(1,)"),
        "counts": (npz(folder / "counts.npz", x=X, y=Y[:3]), "4 inputs"),
        "not finite": (npz(folder / "nan.npz", x=X * np.nan, y=Y), "finite"),
        "bz2": (zipped(folder / "bz2.npz", npy(X), zipfile.ZIP_BZIP2), "deflate"),
        "lzma": (zipped(folder / "lzma.npz", npy(X), zipfile.ZIP_LZMA), "deflate"),
        "empty": (folder / "empty.npz", "BadZipFile"),
        "text": (folder / "text.npz", "BadZipFile"),
        "an array so named": (folder / "array.npz", "BadZipFile"),
        "cut short": (folder / "cut.npz", "BadZipFile"),
        "damaged": (folder / "damaged.npz", "Bad CRC"),
        "a pipe": (folder / "pipe.npz", "file"),
        "4 TB": (zipped(folder / "4tb.npz", declared("(1000000000000, 1, 2, 2)")), "x: 0 "),
        "negative": (zipped(folder / "negative.npz", declared("(-4, 1, 2, 2)")), "x: 0 "),
        "nested": (zipped(folder / "nested.npz", declared(nested.decode())), "read"),
        "complex tensor": (folder / "complex.safetensors", "C64"),
        "no y there": (folder / "half.safetensors", "no y"),
        "cut tensors": (folder / "cut.safetensors", "SafetensorError"),
        "nowhere": (folder / "nowhere.npz", "file"),
        "no name": (folder / "a\0b.npz", "file"),
    }  # fmt: skip


def test_odd_files_are_refused_by_name(tmp_path: Path) -> None:
    for case, (path, message) in odd_files(tmp_path).items():
        with pytest.raises(DataError) as caught:
            read(path)
        assert message in str(caught.value), case
        assert str(path) in str(caught.value), case


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_of_every_plain_type_and_order_are_read(
    tmp_path: Path, save: Callable[..., None]
) -> None:
    for kind in ("<f4", ">f4", "<f8", "<f2", "|u1", "<i8", ">i2", "<u4"):
        for order in ("C", "F"):
            save(tmp_path / "own.npz", x=np.asarray(X, kind, order=order), y=Y.astype(">i4"))
            own = read(tmp_path / "own.npz")
            assert own.x.dtype == torch.float32
            assert own.x.tolist() == X.tolist()
            assert own.y.tolist() == Y.tolist()


@pytest.mark.slow
def test_a_bomb_is_refused_before_it_goes_off(tmp_path: Path) -> None:
    """200 MB of zeros in 200 kB, of another shape than the run's, are not unpacked."""
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("x.npy", "w") as content:
            content.write(declared("(50000000,)"))
            for _ in range(200):
                content.write(bytes(1_000_000))
        archive.writestr("y.npy", npy(Y))
    assert (tmp_path / "bomb.npz").stat().st_size < 250_000
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"50000000 .*4 targets"):
            read(tmp_path / "bomb.npz")
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_what_the_device_has_no_room_for_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = npz(tmp_path / "own.npz", x=X, y=Y)
    (tmp_path / "ant").mkdir()
    Image.new("L", (2, 2)).save(tmp_path / "ant" / "1.png")
    needed = X.nbytes + Y.nbytes + X.size * 4  # as stored, and as they are trained on
    monkeypatch.setattr(own_data, "free_memory", lambda _: needed)
    assert len(read(path)) == 4
    monkeypatch.setattr(own_data, "free_memory", lambda _: needed - 1)
    with pytest.raises(DataError, match=r"160 B.*159 B"):
        read(path)
    monkeypatch.setattr(own_data, "free_memory", lambda _: 19)  # 4 pixels, 5 bytes each
    with pytest.raises(DataError, match=r"20 B.*19 B"):
        read(tmp_path)


@pytest.mark.parametrize("form", ["DDS", "SGI", "JPEG2000", "BMP", "GIF", "TIFF", "WEBP", "PPM"])
def test_pictures_in_other_formats_are_refused_whatever_their_name(
    tmp_path: Path, form: str
) -> None:
    (tmp_path / "ant").mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / "ant" / "1.png", form)
    with pytest.raises(DataError, match=r"1\.png: .*PNG or JPEG"):
        read(tmp_path)


def test_a_picture_that_is_too_large_a_folder_and_a_pipe_are_refused(tmp_path: Path) -> None:
    (tmp_path / "ant").mkdir()
    file = tmp_path / "ant" / "1.png"
    Image.new("1", (8, 8)).save(file)
    content = bytearray(file.read_bytes())
    content[16:24] = (10_000).to_bytes(4, "big") * 2  # as its head says
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    file.write_bytes(content)
    with pytest.raises(DataError, match="DecompressionBombWarning"):
        read(tmp_path)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(DataError, match=r"1\.png: "):
        read(tmp_path)
    file.unlink()
    file.symlink_to("nowhere")
    with pytest.raises(DataError, match=r"1\.png"):
        read(tmp_path)
    file.unlink()
    file.mkdir()
    with pytest.raises(DataError, match=r"1\.png: "):
        read(tmp_path)


def test_what_was_kept_and_is_damaged_is_read_anew(tmp_path: Path) -> None:
    (tmp_path / "pictures" / "ant").mkdir(parents=True)
    Image.new("L", (2, 2), 255).save(tmp_path / "pictures" / "ant" / "1.png")
    first = read(tmp_path / "pictures")
    (kept,) = (tmp_path / "cache" / "devices").iterdir()
    for other in ({"x": torch.tensor(1.0), "y": torch.zeros(1)}, {"y": torch.zeros(1)}):
        save_file(other, kept)
        assert torch.equal(read(tmp_path / "pictures").x, first.x)
    kept.write_bytes(kept.read_bytes()[:-3])
    assert torch.equal(read(tmp_path / "pictures").x, first.x)
