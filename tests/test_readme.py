"""The README's examples run as they stand and do what it says."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from submodel import Result, Run
from submodel.config import parse

README = Path(__file__).parent.parent / "README.md"


def test_the_examples_train() -> None:
    first, second, third = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(first, "README.md", "exec"), names)
    result = names["result"]
    assert isinstance(result, Result)
    assert (result.accuracy or 0) > 0.6
    small = result.submodel(capacity=0.5)
    assert [p.shape[0] for p in small.parameters()] == [64, 64, 10, 10]
    assert names["net"][1].weight.shape == (128, 64)  # the own module is left alone

    exec(compile(second, "README.md", "exec"), names)
    run = names["run"]
    assert isinstance(run, Run)
    assert [row["round"] for row in run.metrics if row["round"] > 39] == [40, 41, 42, 43, 44, 45]
    assert run.metrics[39]["distance"] > 0
    assert (run.folder.path / "export/capacity-0.5/model.pt2").is_file()

    exec(compile(third, "README.md", "exec"), names)
    perplexities = [line["test_perplexity"] for line in names["result"].history[1:]]
    assert 1 < perplexities[-1] < 100  # of 64 tokens, drawn at random


def test_the_configuration_is_one() -> None:
    (shown,) = re.findall(r"```toml\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    config = parse(tomllib.loads(shown))
    assert config.task.metrics == ["accuracy", "f1"]
    assert config.scheme.options == {"period": 3}
    assert config.local.weight_decay == 0.1
