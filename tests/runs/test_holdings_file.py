"""``coverage.jsonl``: the same bytes after any stop, in any process; damage costs a picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from submodel.algorithm.tally import HoldingBook
from submodel.algorithm.types import Assignment
from submodel.config import parse
from submodel.model.axes import Axes
from submodel.model.cut import UnitCut
from submodel.runs.holdings_file import (
    holdings_line,
    keep_holdings,
    parse_holdings,
    read_holdings,
    read_model_outline,
)
from submodel.runs.loop import Interruption, Metrics, RunFolder
from tests.support.runs import SMALL, run
from tests.support.schemes import joined, sections_of

IMPORTANCE = parse(joined(SMALL, sections_of("importance", "unit")))
FILES = ("coverage.jsonl", "layers.json")


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
    takers = [Assignment(0, client, 0.25, place) for place, client in enumerate((4, 6, 9))]
    alone = HoldingBook(axes.sizes)
    halves = [HoldingBook(axes.sizes), HoldingBook(axes.sizes)]
    for place in (2, 0, 1):
        alone.note(takers[place], cuts[place])
        halves[place % 2].note(takers[place], cuts[place])
    halves[1].merge([half.plain() for half in halves])
    assert halves[1].close() == alone.close()
    assert [cut.clients for cut in alone.close().cuts] == [(4, 6), (9,)]
