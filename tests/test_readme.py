"""The README's example runs as it stands and does what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from submodel import Result

README = Path(__file__).parent.parent / "README.md"


def test_the_ten_line_example_trains() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)
    result = names["result"]
    assert isinstance(result, Result)
    assert (result.accuracy or 0) > 0.6
    small = result.submodel(capacity=0.5)
    assert [p.shape[0] for p in small.parameters()] == [64, 64, 10, 10]
    assert names["net"][1].weight.shape == (128, 64)  # the own module is left alone
