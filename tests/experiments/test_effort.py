"""What runs took of a processor: summed over the commands of a run, and unknown where one is."""

from __future__ import annotations

from pathlib import Path

from submodel.experiments.effort import Effort, EffortFile, describe_machine, sum_known


def test_efforts_add_up_over_commands_and_are_not_known_where_nobody_counted(
    tmp_path: Path,
) -> None:
    first, second = EffortFile(tmp_path / "a.effort.jsonl"), EffortFile(tmp_path / "b.effort.jsonl")
    first.add(1.5)
    first.add(None)
    first.add(2.25)
    assert first.read() == Effort(3.75, describe_machine())
    assert second.read() == Effort()
    assert sum_known([first, second]) is None
    second.add(1.0)
    assert sum_known([first, second]) == 4.75


def test_a_damaged_file_is_no_effort(tmp_path: Path) -> None:
    file = EffortFile(tmp_path / "a.effort.jsonl")
    file.path.write_text('{"core_seconds": 1.0, "mach', "utf-8")
    assert file.read() == Effort()
