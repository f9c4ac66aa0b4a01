"""`submodel data`: what a dataset is, and who would have what of it."""

from __future__ import annotations

from pathlib import Path

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
