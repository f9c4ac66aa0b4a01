"""Files of a run: coverage, lines of metrics, tensors; read as they were written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from submodel.algorithm.round_statistics import HoldingsRecorder
from submodel.algorithm.types import Assignment
from submodel.config import parse
from submodel.model.axes import Axes
from submodel.model.cut import UnitCut
from submodel.runs.checkpoint import fill_tensors, write_tensors
from submodel.runs.holdings_file import (
    holdings_line,
    keep_holdings,
    parse_holdings,
    read_holdings,
    read_model_outline,
)
from submodel.runs.loop import Interruption, Metrics, RunFolder
from submodel.runs.metrics import Lines
from tests.support.runs import SMALL, run
from tests.support.schemes import joined, sections_of

IMPORTANCE = parse(joined(SMALL, sections_of("importance", "unit")))
FILES = ("coverage.jsonl", "layers.json")


@pytest.mark.slow
@pytest.mark.parametrize("stop", [1, 4])
def test_a_run_stopped_between_its_lines_and_resumed_tells_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    run(tmp_path / "whole", IMPORTANCE)
    add = RunFolder.add_metrics

    def add_and_stop(folder: RunFolder, line: Metrics) -> None:
        add(folder, line)
        if line["round"] == stop:
            raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "add_metrics", add_and_stop)
    with pytest.raises(Interruption):
        run(tmp_path / "stopped", IMPORTANCE)
    monkeypatch.undo()
    run(tmp_path / "stopped", IMPORTANCE, resume=True)
    for name in FILES:
        assert (tmp_path / "stopped" / name).read_bytes() == (
            tmp_path / "whole" / name
        ).read_bytes()


def test_lines_after_the_checkpoint_and_halves_are_written_again(tmp_path: Path) -> None:
    path = tmp_path / "coverage.jsonl"
    lines = [
        holdings_line(n, parse_holdings(b'{"round":1,"clients":[3],"capacities":[0.5]}')[1])
        for n in (1, 2, 3)
    ]
    path.write_text("".join(lines) + lines[0][:20])
    keep_holdings(path, 2)
    assert path.read_text() == "".join(lines[:2])
    keep_holdings(tmp_path / "none", 2)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    "text",
    [
        b'{"round":0,"clients":[3],"capacities":[0.5]}\n',
        b'{"round":1,"clients":[3,4],"capacities":[0.5]}\n',
        b'{"round":1,"clients":[3],"capacities":[2.0]}\n',
        b'{"round":1,"clients":["3"],"capacities":[0.5]}\n',
        b"[]\n",
        b"\xff\n",
    ],
)
def test_damaged_lines_are_left_out(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "coverage.jsonl"
    path.write_bytes(text + b'{"round":2,"clients":[3],"capacities":[0.5]}\n')
    assert list(read_holdings(path)) == [2]
    path.write_bytes(text)
    assert read_model_outline(path) is None


def test_processes_tell_together_what_one_does() -> None:
    axes = Axes({"hidden": 8}, {})
    import numpy as np

    cuts = [UnitCut(axes, {"hidden": np.array(units)}) for units in ([0, 1], [0, 1], [5])]
    participants = [Assignment(0, client, 0.25, place) for place, client in enumerate((4, 6, 9))]
    alone = HoldingsRecorder(axes.sizes)
    halves = [HoldingsRecorder(axes.sizes), HoldingsRecorder(axes.sizes)]
    for place in (2, 0, 1):
        alone.record(participants[place], cuts[place])
        halves[place % 2].record(participants[place], cuts[place])
    halves[1].merge([half.as_dict() for half in halves])
    assert halves[1].result() == alone.result()
    assert [cut.clients for cut in alone.result().cuts] == [(4, 6), (9,)]


LINE: dict[str, Any] = {
    "round": 1, "train_loss": 2, "later": [1, {"x": None}], "bytes_down": 10, "bytes_up": 2**60,
    "flops": 1.5, "seconds": {"train": 1, "merge": 0.25}, "refused": {"3": "late"},
    "coverage": {"weights": 0.5, "units": 1, "more": 2}, "test_loss": float("nan"),
}  # fmt: skip


def test_what_is_written_again_is_what_was_read(tmp_path: Path) -> None:
    """This includes the order of keys, whole numbers and additions of later versions."""
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(json.dumps({**LINE, "round": n}) + "\n" for n in (1, 2)))
    assert Lines.read(file).text() == file.read_text()


WRONG: dict[str, dict[str, Any]] = {
    "round": {"round": 0},
    "round in quotes": {"round": "1"},
    "true": {"flops": True},
    "a number in quotes": {"bytes_down": "10"},
    "no table": {"seconds": [1]},
    "words for seconds": {"seconds": {"train": "long"}},
    "half of the coverage": {"coverage": {"units": 1}},
    "a score": {"test_accuracy": None},
}


@pytest.mark.parametrize("case", WRONG)
def test_a_line_that_nobody_could_use_is_told_and_left_out(case: str, tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text(f"{json.dumps({**LINE, 'round': 3})}\n{json.dumps({**LINE, **WRONG[case]})}\n")
    found = Lines.read(file)
    assert [line["round"] for line in found.entries] == [3]
    assert found.damage == ["line 2 is not that of a round"]


def test_the_bytes_are_those_of_safetensors(tmp_path: Path) -> None:
    kinds = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool)
    tensors = {f"b.{kind}": torch.ones(3, 2).to(kind) for kind in kinds}
    tensors |= {"a": torch.randn(4, 5), "ü": torch.zeros(()), "none": torch.zeros(0, 3)}
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    write_tensors(ours, tensors | {"turned": torch.arange(6.0).view(2, 3).t()})
    save_file(tensors | {"turned": torch.arange(6.0).view(2, 3).t().contiguous()}, theirs)
    assert ours.read_bytes() == theirs.read_bytes()
    assert load_file(ours)["turned"].tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]


def test_tensors_are_read_into_the_memory_of_others(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(3, 2), "b": torch.arange(4), "c": torch.zeros(0)}
    write_tensors(tmp_path / "file", tensors)
    others = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    addresses = [tensor.data_ptr() for tensor in others.values()]
    assert fill_tensors(tmp_path / "file", others)
    assert all(torch.equal(others[name], tensor) for name, tensor in tensors.items())
    assert [tensor.data_ptr() for tensor in others.values()] == addresses
    assert not fill_tensors(tmp_path / "file", others | {"a": torch.zeros(3, 2).double()})
