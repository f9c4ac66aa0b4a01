"""What `submodel join` makes of --data, --part and --set before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from submodel.cli.devices import node_settings
from submodel.errors import ConfigError
from submodel.federation.flower.client_app import means_of


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
    own = means_of(settings).data
    assert (own.name, own.settings) == (f"csv:{tmp_path}/my.csv", ("data.target=b",))
    assert node_settings("mnist", None, None, None, None)["data"] == "mnist"
    own = means_of(node_settings(f"folder:{tmp_path}", None, None, None, None)).data
    assert (own.name, own.path) == (None, tmp_path)


REFUSED = {
    "nowhere": (("/nowhere", None), (), "/nowhere: no such file or folder, nor the name of a data"),
    "no table": (("csv:/nowhere.csv", None), (), "/nowhere.csv: no such file or folder"),
    "own": (("own", None), (), "own: no such file or folder"),
    "both": (("digits", 1), (), "only one of them"),
    "none": ((None, None), (), "only one of them"),
    "set of a part": ((None, 1), ("data.path=x",), "--set: goes with --data"),
    "not of data": (("digits", None), ("local.lr=1",), "--set local.lr=1: want data.KEY=VALUE"),
    "no value": (("digits", None), ("data.path",), "--set data.path: want data.KEY=VALUE"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_where_its_owner_sees_it(case: str) -> None:
    (data, part), settings, message = REFUSED[case]
    with pytest.raises(ConfigError, match=message):
        node_settings(data, part, None, None, None, settings)
