"""Every code block of the README and docs/ is run, parsed or checked; none is skipped silently."""

from __future__ import annotations

import re
import shlex
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer
from typer.core import TyperGroup

from submodel.cli.common import command_line
from submodel.config import parse, read
from tests.docs.blocks import PAGES, ROOT, TUTORIAL, Block, blocks

if TYPE_CHECKING:
    from tests.support.commands import Command

ALL = [block for page in PAGES for block in blocks(page)]
NOT_RUN = 10
"""Number of blocks that are not run, each with its reason beside it; more must be intended."""
GROUPS = {
    "tutorial": [ROOT / f"docs/tutorial/{name}.md" for name in TUTORIAL],
    **{str(page.relative_to(ROOT)): [page] for page in PAGES if page.parent.name != "tutorial"},
}
RUNNABLE = {
    name: tried
    for name, pages in GROUPS.items()
    if (
        tried := [
            block
            for page in pages
            for block in blocks(page)
            if not block.is_passed_over
            and (block.language == "python" or block.marker.startswith("run") or block.file)
        ]
    )
}


@pytest.mark.docs
def test_what_nobody_runs_is_counted_and_says_why() -> None:
    reasons = [block.marker for block in ALL if block.marker.startswith("not run")]
    assert len(reasons) == NOT_RUN
    assert all(re.fullmatch(r"not run: .{10,}", reason) for reason in reasons)


@pytest.mark.docs
def test_every_comment_before_a_block_is_one_of_those_that_mean_something() -> None:
    known = r"|run|run: (with|after) .+|run with rounds: \d+|not run: .+|[\w-]+\.(py|toml)"
    known += r"|[\w ]+: written by make \w+"
    for block in ALL:
        if found := re.fullmatch(r"run by (tests/[\w/]+\.py)", block.marker):
            assert (ROOT / found[1]).is_file(), block.title
        else:
            assert re.fullmatch(known, block.marker), f"{block.title}: {block.marker}"


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNNABLE)
def test_a_page_does_what_it_tells_its_reader_to_do(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, submodel: Command
) -> None:
    """In one folder, from top to bottom: files are saved, Python and commands are run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    modules, names = set(sys.modules), dict[str, Any]()
    try:
        for block in RUNNABLE[name]:
            if block.file:
                Path(block.file).write_text(block.code)
            elif block.language == "python":
                exec(compile(block.source, block.title, "exec"), names)
            else:
                for words in _run_words(block):
                    done = submodel(*words)
                    assert done.returncode == 0, f"{block.title}\n{done.stderr}"
    finally:
        for module in set(sys.modules) - modules:
            if getattr(sys.modules[module], "__file__", None) == str(tmp_path / f"{module}.py"):
                del sys.modules[module]


def _run_words(block: Block) -> list[list[str]]:
    """Return the arguments of `submodel` in the order of running."""
    commands = [words[1:] for words in block.commands() if words[0] == "submodel"]
    assert commands, block.title
    how, _, rest = block.marker.removeprefix("run").removeprefix(": ").partition(" ")
    if how == "after":
        return [shlex.split(rest)[1:], *commands]
    return [[*words, *shlex.split(rest)] for words in commands]


COMMANDS = [
    pytest.param(words, id=" ".join(words)[:80])
    for block in ALL
    if not block.is_passed_over
    for words in block.commands()
]


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_is_one(words: list[str]) -> None:
    """Every option, argument and configuration key exists; nothing is run."""
    program, *rest = words
    if program == "submodel":
        _parse_command(rest)
    elif program == "make":
        assert f"\n{rest[0]}:" in (ROOT / "Makefile").read_text()
    elif program == "pip" and "-r" in rest:
        assert (ROOT / rest[-1]).is_file()
    elif program == "pip":
        extras = re.findall(r"submodel\[([\w,]+)\]", rest[-1])
        offered = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        assert {*",".join(extras).split(",")} <= offered["optional-dependencies"].keys() | {""}
    elif program == "python" and rest[0] == "-m":
        module = ROOT / rest[1].replace(".", "/")
        assert module.with_suffix(".py").is_file() or (module / "__main__.py").is_file()
    elif program == "python":
        assert (ROOT / rest[0]).is_file()
    else:
        pytest.fail(f"{program} needs <!-- not run: REASON -->")


def _parse_command(words: list[str]) -> None:
    """Let Typer parse the words without calling the command."""
    command: Any = typer.main.get_command(command_line)
    rest = list(words)
    while isinstance(command, TyperGroup):
        name = rest.pop(0)
        inner = command.get_command(typer.Context(command), name)
        assert inner is not None, f"submodel has no command {name!r}"
        command = inner
    given = command.make_context(command.name, rest).params
    if command.name in ("train", "cost", "plan", "config") and given.get("config") is None:
        read(None, list(given["settings"] or []))


CONFIGURATIONS = [block for block in ALL if block.language == "toml" and not block.is_passed_over]


@pytest.mark.parametrize("block", CONFIGURATIONS, ids=lambda block: block.title)
def test_a_configuration_is_one(block: Block) -> None:
    table = tomllib.loads(block.code)
    if "project" in table:  # in a package of the reader
        assert set(table["project"]) == {"entry-points"}
    else:
        served = {"engine": {"name": "flower"}} if "devices" in table else {}
        parse({**served, **table})
