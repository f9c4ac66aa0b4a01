"""The command data, and the checks of a device's --data, --part and --set before it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from submodel.core.errors import ConfigError
from submodel.federation.flower.client_app import options_of
from submodel.federation.flower.supernode import node_settings
from tests.support.commands import Command


def test_clients_whom_the_data_names_need_not_be_counted(tmp_path: Path, submodel: Command) -> None:
    (tmp_path / "plays").mkdir()
    for name, speeches in {"anne": 40, "bob": 80, "cleo": 120}.items():
        (tmp_path / "plays" / f"{name}.txt").write_text("to be or not to be. " * speeches)
    result = submodel("data", f"text:{tmp_path}/plays", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "over 3 clients" in result.stdout
    assert "examples per client: least" in result.stdout


def test_a_column_of_a_table_is_who_has_its_rows(tmp_path: Path, submodel: Command) -> None:
    rows = "".join(f"{i % 7},{i % 2},{'xyz'[i % 3]}\n" for i in range(90))
    (tmp_path / "table.csv").write_text("size,kind,shop\n" + rows)
    columns = ["--set", "data.target=kind", "--set", "data.client=shop"]
    result = submodel("data", f"csv:{tmp_path}/table.csv", *columns, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "over 3 clients" in result.stdout
    assert "labels per client: least 2, median 2, most 2" in result.stdout


@pytest.mark.slow
def test_only_a_picture_that_is_asked_for_is_drawn(tmp_path: Path, submodel: Command) -> None:
    for words, written in (([], []), (["--json"], []), (["--out", "who.png"], ["who.png"])):
        result = submodel("data", "digits", *words, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        assert sorted(path.name for path in tmp_path.iterdir()) == written
    assert "picture: who.png" in result.stdout
    (tmp_path / "table.csv").write_text("size,price\n" + "1,2.5\n3,4.5\n" * 40)
    words = ["csv:table.csv", "--set=data.target=price", "--clients=2", "--out=prices.png"]
    refused = submodel("data", *words, cwd=tmp_path)
    assert refused.returncode == 2
    assert "--out: " in refused.stderr


def test_paths_are_told_in_full_and_names_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.csv").write_text("a,b\n1,2\n")
    assert node_settings("my.csv", None, None, None, None)["data"] == f"{tmp_path}/my.csv"
    settings = node_settings("csv:my.csv", None, "1/4", None, None, ["data.target=b"])
    assert settings == {
        "data": f"csv:{tmp_path}/my.csv", "set": "data.target=b", "capacity": 0.25
    }  # fmt: skip
    own = options_of(settings).data
    assert (own.name, own.settings) == (f"csv:{tmp_path}/my.csv", ("data.target=b",))
    assert node_settings("mnist", None, None, None, None)["data"] == "mnist"
    own = options_of(node_settings(f"folder:{tmp_path}", None, None, None, None)).data
    assert (own.name, own.path) == (None, tmp_path)


REFUSED = {
    "nowhere": (("/nowhere", None), (), "/nowhere: no such file or folder, nor the name of a data"),
    "no table": (("csv:/nowhere.csv", None), (), "/nowhere.csv: no such file or folder"),
    "own": (("own", None), (), "own: no such file or folder"),
    "both": (("digits", 1), (), "only one of them"),
    "none": ((None, None), (), "only one of them"),
    "set of a part": ((None, 1), ("data.path=x",), "--set: goes with --data"),
    "not of data": (("digits", None), ("local.lr=1",), "--set local.lr=1: expected data.KEY=VALUE"),
    "no value": (("digits", None), ("data.path",), "--set data.path: expected data.KEY=VALUE"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_where_its_owner_sees_it(case: str) -> None:
    (data, part), settings, message = REFUSED[case]
    with pytest.raises(ConfigError, match=message):
        node_settings(data, part, None, None, None, settings)
