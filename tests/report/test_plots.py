"""`submodel report --figure`: all figures of tiny runs and of records, in every format; errors."""

from __future__ import annotations

import shutil
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import pytest
from PIL import Image

from submodel.cli.former import plot_command
from submodel.cli.watching import report_command
from submodel.core.errors import ConfigError, SubmodelError
from submodel.drawing.style import SINGLE
from submodel.report.grouping import group_arms, spell_settings
from submodel.report.page import page_data
from submodel.report.plots.figure_kinds import FIGURES, find_figure
from submodel.report.plots.series import label_of, read_series
from tests.support.records import make_comparison
from tests.support.run_folders import make_run

RECORDS = Path(__file__).parents[2] / "results" / "compare-rounds"
OF_RUNS = sorted(FIGURES.keys() - {"partition"})


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    base = tmp_path_factory.mktemp("runs")
    return [
        make_run(base / f"{scheme}-{seed}", seed, scheme, 3, bonus=bonus, every=1).path
        for scheme, bonus in (("rolling", -0.3), ("static", -0.45))
        for seed in (0, 1)
    ]


def test_seeds_of_one_configuration_are_one_band(runs: list[Path]) -> None:
    series = read_series(runs)
    assert [(one.label, len(one.runs)) for one in series] == [("rolling", 2), ("static", 2)]
    assert series[0].finals("test_accuracy") == pytest.approx([0.5, 0.51])
    assert series[0].finals("bytes") == [6000, 6003]


def test_pages_and_figures_group_runs_alike(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Only seeds differ in a group, wherever and however runs were computed; repeats are shown."""
    sections: list[dict[str, Any]] = [
        {"seed": 0},
        {"seed": 1, "engine": {"name": "local", "batching": "never"}, "name": "other"},
        {"seed": 2, "train": {"rounds": 3, "checkpoint_every": 1, "trackers": ["tensorboard"]}},
        {"seed": 2, "engine": {"name": "torchrun", "processes": 2}},
        {"seed": 0, "engine": {"name": "flower"}, "devices": {"transport": "half"}},
        {"seed": 0, "engine": {"name": "flower"}},
    ]
    paths = [
        make_run(tmp_path / f"run-{n}", rounds=3, bonus=-0.3, every=1, settings=section).path
        for n, section in enumerate(sections)
    ]
    data = page_data(paths, details=False)
    assert [group["runs"] for group in data["groups"]] == [[0, 1, 2, 3], [4], [5]]
    assert [len(one.runs) for one in read_series(paths)] == [4, 1, 1]
    (message,) = caplog.messages
    assert message in data["warnings"]
    assert "run-3: the same configuration and seed as" in message
    row = data["standings"][0]["rows"][0]
    assert row["mean"] == pytest.approx(0.5)


def test_a_folder_of_runs_is_all_of_them(runs: list[Path]) -> None:
    assert read_series([runs[0].parent]) == read_series(runs)
    assert len(page_data([runs[0].parent], details=False)["runs"]) == len(runs)


def test_the_begun_runs_of_a_comparison_are_shown(tmp_path: Path) -> None:
    shutil.rmtree(make_comparison(tmp_path / "comparison", seeds=2) / "records")
    series = read_series([tmp_path / "comparison"])
    assert [len(one.runs) for one in series] == [2, 2, 2]
    groups = page_data([tmp_path / "comparison"], details=False)["groups"]
    assert sorted(group["label"] for group in groups) == sorted(one.label for one in series)


def test_labels_say_what_differs_and_nothing_else() -> None:
    sections = [{"scheme": {"name": "rolling"}, "local": {"lr": rate}} for rate in (0.1, 0.2)]
    settings = [spell_settings(section) for section in sections]
    labels = [label_of(differing) for _, differing in group_arms(settings, ["", ""])]
    assert labels == ["lr 0.1", "lr 0.2"]
    assert [label_of(differing) for _, differing in group_arms(settings[:1], [""])] == [""]


@pytest.mark.parametrize("name", OF_RUNS)
def test_every_figure_has_whole_rounds_and_names_apart(name: str, runs: list[Path]) -> None:
    kind = find_figure(name)
    figure = kind.draw(kind.read(runs), SINGLE)
    figure.draw_without_rendering()
    for plot in figure.axes:
        if plot.get_xlabel() == "round":
            assert all(float(tick).is_integer() for tick in plot.get_xticks())
        texts = [text for text in plot.texts if text.get_text()]
        boxes = [text.get_window_extent() for text in texts]
        assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
        assert all(box.x1 <= figure.bbox.x1 + 1 for box in boxes)


def test_many_ways_are_all_named_and_the_best_stand_out() -> None:
    kind = find_figure("accuracy")
    series = kind.read([RECORDS])
    figure = kind.draw(series, SINGLE)
    _, names = figure.axes
    drawn_names = [text.get_text() for text in names.get_yticklabels()]
    assert sorted(drawn_names) == sorted(one.label for one in series)
    assert drawn_names[0] == "full"
    assert len({text.get_color() for text in names.get_yticklabels()}) == 6  # five and the ink


@pytest.mark.parametrize(
    ("ending", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")]
)
def test_the_command_writes_every_format(
    runs: list[Path], tmp_path: Path, ending: Literal["png", "svg", "pdf"], magic: bytes
) -> None:
    out = tmp_path / f"figure.{ending}"
    plot_command("accuracy", runs, ending, out, "single")
    assert out.read_bytes().startswith(magic)


def test_a_png_is_as_wide_as_the_column(runs: list[Path], tmp_path: Path) -> None:
    plot_command("loss", runs, None, tmp_path / "a.png", "single")
    with Image.open(tmp_path / "a.png") as image:
        assert image.width == round(300 * SINGLE)


def test_what_cannot_be_drawn_is_said(runs: list[Path], tmp_path: Path) -> None:
    with pytest.raises(SubmodelError, match=r"^'capacites' .*'capacities'"):
        plot_command("capacites", runs)
    with pytest.raises(ConfigError, match="--figure loss"):
        plot_command("loss", [])
    with pytest.raises(SubmodelError, match=f"^{tmp_path}: "):
        plot_command("loss", [tmp_path])
    with pytest.raises(SubmodelError, match=r"^phases: "):
        plot_command("phases", [RECORDS], out=tmp_path / "a.png")
    with pytest.raises(ConfigError, match=r"^--format pdf: .*a\.png"):
        plot_command("loss", runs, "pdf", tmp_path / "a.png")
    with pytest.raises(SubmodelError, match=r"^partition: .*4"):
        plot_command("partition", runs)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_curves_are_drawn_without_pytorch(runs: list[Path], tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from submodel.cli.former import plot_command; "
        f"plot_command('accuracy', [Path({str(runs[0])!r})], out=Path('a.png')); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    assert (tmp_path / "a.png").is_file()


def test_a_report_is_a_figure_by_its_format_its_name_or_its_ending(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    report_command(runs, file_format="pdf")
    report_command(runs, figure="loss", column="single")
    report_command(runs, Path("a.svg"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.svg", "accuracy.pdf", "loss.png"]
    plot_command("accuracy", runs, "pdf", Path("former.pdf"))
    assert Path("former.pdf").read_bytes() == Path("accuracy.pdf").read_bytes()
    with pytest.raises(ConfigError, match=r"^--figure: "):
        report_command(runs, file_format="html", figure="loss")
    with pytest.raises(ConfigError, match=r"^--column: "):
        report_command(runs, column="single")
