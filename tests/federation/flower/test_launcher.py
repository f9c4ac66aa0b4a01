"""How a SuperNode of ours runs: what starts its apps, and how often it looks for messages."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from submodel.federation.flower import launcher

FALL_BACK = """
import os, runpy, sys
path, folder, module, *runtime = sys.argv[1:]
sys.modules[module] = None  # importing it fails, as a part of Flower might that is no more
os.environ["PATH"] = folder
runpy.run_path(path)["start_apps"]("supernode", runtime)
os.wait()
"""


def test_flowers_own_program_starts_apps_where_ours_cannot(tmp_path: Path) -> None:
    program = tmp_path / "flower-superexec"
    program.write_text('#!/bin/sh\necho "started with $*"\n')
    program.chmod(0o755)
    runtime = ["--runtime-api-address", "127.0.0.1:9", "--insecure"]
    module = "submodel.federation.flower.superexec"
    command = [sys.executable, "-c", FALL_BACK, launcher.__file__, str(tmp_path), module, *runtime]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        said, _ = parent.communicate(timeout=60)
    sentence, start, *_ = said.splitlines()
    assert sentence.startswith("submodel: every message starts a program that imports PyTorch")
    assert module in sentence  # what is amiss
    assert start == f"started with {' '.join(runtime)} --parent-pid {parent.pid}"


def test_a_device_looks_soon_after_a_message_and_ever_more_rarely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    naps: list[float] = []
    monkeypatch.setattr(time, "sleep", naps.append)
    pauses = launcher.Pauses()
    for _ in range(12):
        pauses.sleep(3)
    assert naps[:3] == pytest.approx([0.25, 0.35, 0.49])
    assert naps == sorted(naps)
    assert naps[-3:] == [3, 3, 3]  # Flower's own, for a device without work
    pauses.sleep(0.5)  # a message is worked on
    pauses.sleep(3)
    assert naps[-2:] == [0.1, 0.25]
