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
    assert (tmp_path / "partition.png").is_file()
