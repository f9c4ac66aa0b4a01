"""Measure how hard the code is to follow: `python -m tools.size [--json]`, or `make size`.

Each scenario runs in a process of its own, under `sys.setprofile`:

- round: a round with one client (`mlp`, `rolling`, capacity 1/2, the serial engine), from the call
  of `step` to its return. It is the second round of a run, after everything that is built once.
- first round: the round before it, which builds the sub-model and fills the caches.
- train: `submodel train` with its default configuration on the engine `local`, from the import of
  the command line to the call of the first `step`.
- cut: `submodel.trace` of two linear layers with a ReLU between them, then `submodel.build` of the
  sub-model at capacity 1/2.
- page: `submodel report` of a run of two rounds of the default configuration, as `write_report`
  from its call to its return, with the modules imported before.

Only the files of `src/submodel` and `lab/submodel_lab` count; they are called the package here.

function: a `def` of the package that was executed. A comprehension, a generator expression or a
    lambda is part of the function around it; a lambda in the body of a module or a class is a
    function itself. The body of a module or a class is not a function, and neither is a method
    that `dataclass` generates.
call: one start of a function. To resume a generator is not a call.
file: a file with at least one function that was executed.
imported: a file whose module body was executed during the scenario.
jump: a call of a function in one file by a function in another file. The caller is the nearest
    function of the package on the stack, so a call through PyTorch, `functools` or a generated
    `__init__` counts. A generator is called where its first value is taken. A call by the body of
    a module is not a jump.
distinct jump: a pair (caller, callee) with at least one jump.
switch: two successive events in different files, where an event is the start, the end, a `yield`
    or a resumption of a function or of a part of one. A call of another file and the return from
    it are two switches.

An outside review of November 2026 counted 59 files and 362 "jumps" in a round of one client, and
164 files before the first round of `submodel train`. The files and the switches of `round` (60 and
361 at commit 4826098) and the files of `train` (178) are the counts nearest to these.

Lines are those of `.py` files (`.md` files in docs), with blank lines and comments.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from opcode import opmap
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

from tools.packages import ROOT

PACKAGE = ROOT / "src/submodel", ROOT / "lab/submodel_lab"
AREAS = {
    "src": "src/submodel",
    "lab": "lab/submodel_lab",
    "tests": "tests",
    "tests of lab": "lab/tests",
    "docs": "docs",
}
FIRST_ROUND = "algorithm/rounds.py", "step"  # the end of a file's path, and a function
SMALL = 60  # lines
_COMPREHENSIONS = "<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"
_PARTS = tuple(f".<locals>.{name}" for name in ("<lambda>", *_COMPREHENSIONS))


class Function(NamedTuple):
    """A function by its file and qualified name; the body of a module or a class has no name."""

    file: str
    name: str


@dataclass(frozen=True)
class Counts:
    """Counts of a scenario; the docstring of this module defines each of them."""

    files: int
    imported: int
    functions: int
    calls: int
    jumps: int
    distinct_jumps: int
    switches: int


class Reached(BaseException):
    """Raised where the function that ends a recording is called."""


class Recorder:
    """Records the calls of all functions in some folders, in all threads, while it is entered.

    Args:
        folders: the folders of the package
        until: end of a file's path and name of a function: its call raises `Reached`
    """

    def __init__(self, folders: Iterable[Path], until: tuple[str, str] | None = None) -> None:
        self._prefixes = tuple(f"{folder.resolve()}{os.sep}" for folder in folders)
        self._until = until
        self._functions: dict[int, tuple[CodeType, Function | None]] = {}
        self._thread = threading.local()
        self._ended = False
        self.calls: Counter[Function] = Counter()
        self.jumps: Counter[tuple[Function, Function]] = Counter()
        self.imported: set[str] = set()
        self.switches = 0

    def __enter__(self) -> Recorder:
        threading.setprofile(self._record)
        sys.setprofile(self._record)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)
        self._ended = True  # for the threads that still run

    @property
    def counts(self) -> Counts:
        """Counts of the recorded calls."""
        return Counts(
            files=len({function.file for function in self.calls}),
            imported=len(self.imported),
            functions=len(self.calls),
            calls=self.calls.total(),
            jumps=self.jumps.total(),
            distinct_jumps=len(self.jumps),
            switches=self.switches,
        )

    def _record(self, frame: FrameType, event: str, _: object) -> None:
        if self._ended or event not in ("call", "return"):
            return
        function = self._function(frame.f_code)
        if function is None:
            return
        if not function.name:
            if frame.f_code.co_name == "<module>":
                self.imported.add(function.file)
            return
        is_start = event == "call" and not _is_part(frame.f_code) and not _is_resumed(frame)
        if is_start and self._until is not None and self._ends_at(function, self._until):
            self._ended = True
            raise Reached
        self.switches += getattr(self._thread, "file", function.file) != function.file
        self._thread.file = function.file
        if is_start:
            self.calls[function] += 1
            caller = self._caller(frame)
            if caller is not None and caller.name and caller.file != function.file:
                self.jumps[caller, function] += 1

    @staticmethod
    def _ends_at(function: Function, until: tuple[str, str]) -> bool:
        return function.name == until[1] and function.file.endswith(until[0])

    def _caller(self, frame: FrameType) -> Function | None:
        """Nearest function, or body of a module or a class, of the package below a frame."""
        below = frame.f_back
        while below is not None:
            function = self._function(below.f_code)
            if function is not None:
                return function
            below = below.f_back
        return None

    def _function(self, code: CodeType) -> Function | None:
        """Function of the package that code belongs to; None for code of other packages."""
        found = self._functions.get(id(code))
        if found is None:  # the code is kept, so that no other code gets its id
            found = self._functions[id(code)] = code, self._find(code)
        return found[1]

    def _find(self, code: CodeType) -> Function | None:
        if not code.co_filename.startswith(self._prefixes):
            return None
        name = code.co_qualname
        while name.endswith(_PARTS):
            name = name.rpartition(".<locals>.")[0]
        is_function = code.co_flags & inspect.CO_OPTIMIZED and not name.endswith(_COMPREHENSIONS)
        return Function(code.co_filename, name if is_function else "")


def _is_part(code: CodeType) -> bool:
    """Whether code is a comprehension or a lambda inside a function."""
    return code.co_qualname.endswith(_PARTS)


def _is_resumed(frame: FrameType) -> bool:
    """Whether a generator continues after a `yield`: its RESUME then has an argument above 0."""
    code = frame.f_code
    if not code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE):
        return False
    opcode, argument = code.co_code[frame.f_lasti : frame.f_lasti + 2]
    return opcode == opmap["RESUME"] and argument & 3 != 0


def _record_round(number: int) -> Recorder:
    from submodel.algorithm.rounds import initial_state, step
    from submodel.config import parse
    from submodel.config.setup import prepare
    from submodel.engines.serial import SerialEngine
    from submodel.model.cost import CostModel

    clients = {"per_round": 1, "capacities": [0.5]}
    values = {"model": {"name": "mlp"}, "scheme": {"name": "rolling"}, "clients": clients}
    setup = prepare(parse(values))
    engine, state = SerialEngine(setup), initial_state(setup)
    costs = CostModel(setup.module, setup.clients.dataset.example)
    for _ in range(number):
        with Recorder(PACKAGE) as recorder:
            state, _ = step(setup, state, engine, costs)
    return recorder


def _record_train() -> Recorder:
    sys.argv = ["submodel", "train", "--set", "engine.name=local"]
    recorder = Recorder(PACKAGE, FIRST_ROUND)
    try:
        with recorder:
            from submodel.cli import main

            main()
    except Reached:
        return recorder
    raise AssertionError("submodel train ended without a round")


def _record_cut() -> Recorder:
    import numpy as np
    import torch
    from torch import nn

    import submodel

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    trace, build = submodel.trace, submodel.build  # imported here
    with Recorder(PACKAGE) as recorder:
        build(net, trace(net, torch.zeros(1, 8)), {"0": np.arange(8)})
    return recorder


def _record_page() -> Recorder:
    from submodel.report.page import write_report

    run = Path("run").resolve()
    settings = "--set", "engine.name=local", "--set", "train.rounds=2"
    command = [sys.executable, "-m", "submodel", "train", *settings, "--out", str(run)]
    subprocess.run(
        command, stdout=subprocess.DEVNULL, check=True
    )  # so that no cache is filled here
    with Recorder(PACKAGE) as recorder:
        write_report(run)
    return recorder


SCENARIOS: dict[str, Callable[[], Recorder]] = {
    "round": lambda: _record_round(2),
    "first round": lambda: _record_round(1),
    "train": _record_train,
    "cut": _record_cut,
    "page": _record_page,
}


def measure(scenario: str) -> Counts:
    """Run a scenario in a new process, and return its counts."""
    paths = [str(ROOT), *(str(p.parent) for p in PACKAGE), os.environ.get("PYTHONPATH", "")]
    settings = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    environment = {**os.environ, **settings, "PYTHONPATH": os.pathsep.join(paths)}
    with tempfile.TemporaryDirectory() as folder:
        result = subprocess.run(
            [sys.executable, "-m", "tools.size", "--scenario", scenario],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return Counts(**json.loads(result.stdout.splitlines()[-1]))


@dataclass(frozen=True)
class Lines:
    """Number and length of some files."""

    files: int
    lines: int
    small: int  # files of fewer than 60 lines
    median: int
    longest: int
    longest_file: str
    import_lines: int  # of import statements


def count_lines(files: Sequence[Path]) -> Lines:
    """Count the lines of some files, at least one."""
    texts = {file: file.read_text("utf-8") for file in files}
    lengths = {file: len(text.splitlines()) for file, text in texts.items()}
    longest = max(lengths, key=lengths.__getitem__)
    return Lines(
        files=len(files),
        lines=sum(lengths.values()),
        small=sum(length < SMALL for length in lengths.values()),
        median=round(statistics.median(lengths.values())),
        longest=lengths[longest],
        longest_file=longest.name,
        import_lines=sum(_import_lines(t) for file, t in texts.items() if file.suffix == ".py"),
    )


def _import_lines(text: str) -> int:
    statements = [
        n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Import | ast.ImportFrom)
    ]
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in statements)


def lines_by_package(root: Path = ROOT) -> dict[str, Lines]:
    """Lines of every area that exists, and of every package or folder in it."""
    found: dict[str, Lines] = {}
    for area, folder in AREAS.items():
        files = sorted((root / folder).rglob("*.md" if area == "docs" else "*.py"))
        if not files:
            continue
        found[area] = count_lines(files)
        packages: defaultdict[str, list[Path]] = defaultdict(list)
        for file in files:
            package, *below = file.relative_to(root / folder).parts
            packages[f"{area}: {package if below else 'single files'}"].append(file)
        found |= {name: count_lines(packages[name]) for name in sorted(packages)}
    return found


def _table(first: str, rows: Mapping[str, Counts] | Mapping[str, Lines]) -> str:
    cells: list[list[str]] = []
    for name, row in rows.items():
        values = asdict(row)
        cells = cells or [[first, *(key.replace("_", " ") for key in values)]]
        cells.append([name, *(f"{v:,}" if isinstance(v, int) else v for v in values.values())])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])])
        for line in cells
    )


def main() -> None:
    """Print all counts. Only JSON has the lines of every folder of tests and docs."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.size", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--scenario", choices=SCENARIOS, help="run one, here, and print its counts")
    options = parser.parse_args()
    if options.scenario is not None:
        counts = SCENARIOS[options.scenario]().counts
        print(f"\n{json.dumps(asdict(counts))}")
        return
    scenarios = {name: measure(name) for name in SCENARIOS}
    lines = lines_by_package()
    if options.json:
        plain = {
            "scenarios": {name: asdict(row) for name, row in scenarios.items()},
            "lines": {name: asdict(row) for name, row in lines.items()},
        }
        print(json.dumps(plain, indent=2))
    else:
        shown = {n: row for n, row in lines.items() if n in AREAS or n[:3] in ("src", "lab")}
        print(_table("scenario", scenarios), _table("lines of", shown), sep="\n\n")


if __name__ == "__main__":
    main()
