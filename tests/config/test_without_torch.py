"""Reading what a configuration may say takes no PyTorch, which takes seconds to import."""

from __future__ import annotations

import subprocess
import sys

import pytest

IMPORTS = {
    "the configuration": "submodel.config",
    "the lists of components": ", ".join(
        f"submodel.{room}.registry"
        for room in ("model", "data", "tasks", "local", "schemes", "algorithm", "engines")
    ),
}


@pytest.mark.parametrize("what", IMPORTS)
def test_importing_it_loads_no_torch(what: str) -> None:
    """The import alone, by which every command begins.

    To read a configuration, even one of defaults, is to look at the ``Options`` of the components
    that it names, which stand beside the code of the components: `submodel.model.zoo.images` and
    others import PyTorch. So nothing is held of that here.
    """
    code = f"import {IMPORTS[what]}, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_the_names_that_a_key_may_have_are_told_without_torch() -> None:
    code = (
        "import sys; from submodel.config import SchemeSection\n"
        "kind = SchemeSection.choices['name']\n"
        "assert kind.knows('rolling') and not kind.knows('no-such') and 'pruned' in kind.names()\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
