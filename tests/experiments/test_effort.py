"""What runs took of a processor: summed over the commands of a run, and unknown where one is."""

from __future__ import annotations

from pathlib import Path

from submodel.experiments.records import SeedRun, VariantRecord
from submodel.experiments.runner import Effort, EffortFile, describe_machine, sum_known
from submodel_lab.converged.candidates import Candidate
from submodel_lab.converged.converge import RateTable
from submodel_lab.converged.report import effort_words


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


def test_what_runs_took_is_told_though_some_grids_were_not_timed() -> None:
    def record(*seconds: float | None) -> dict[Candidate, VariantRecord]:
        runs = [SeedRun(n, [], 7200.0, "", core_seconds=s, machine="a machine")
                for n, s in enumerate(seconds)]  # fmt: skip
        return {Candidate("fashion", "rolling"): VariantRecord("a", {}, runs)}

    grids = [RateTable("a", 1, [(0.1, 0.5)], 1800.0), RateTable("b", 1, [(0.1, 0.5)])]
    whole = "2 runs and 1 grid of rates, 1.50 core-hours on a machine"
    assert effort_words(record(1800.0, 1800.0), grids[:1]) == whole
    told = effort_words(record(1800.0, 1800.0), grids)
    assert told == f"{whole}; 1 grid of rates was not timed"
    assert effort_words(record(1800.0, None), grids).endswith("4.00 hours of rounds by the clock")
