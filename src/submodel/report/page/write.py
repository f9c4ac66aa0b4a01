"""The page of runs as a file: what `submodel report` and `submodel.write_report` do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from submodel.errors import ConfigError
from submodel.report.page.html import write_page
from submodel.report.page.reading import page_data

if TYPE_CHECKING:
    from submodel.runs.open import Run


def write_report(*runs: Run | str | Path, out: str | Path | None = None) -> Path:
    """Write one HTML page that shows what was trained; of several runs, one that compares them.

    It is one file and needs no network. A run that is under way is shown as far as it has come.

    Args:
        runs: runs, or folders of runs, comparisons, reproductions and studies, in any mixture.
        out: the file; by default ``report.html`` in the folder, and of several in the current one.

    Returns:
        The file.

    >>> import tempfile, submodel
    >>> from torch import nn
    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    >>> out = tempfile.mkdtemp()
    >>> _ = submodel.train(net, submodel.digits(), {"train": {"rounds": 2}}, out=out)
    >>> submodel.write_report(out).name
    'report.html'
    """
    folders = [Path(run) if isinstance(run, (str, Path)) else run.folder.path for run in runs]
    file = Path(out) if out is not None else _default_file(folders)
    if file.is_dir():
        raise ConfigError([f"out: {file} is a folder; give the file of a page"])
    data = page_data(folders)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_page(data, file)
    return file


def _default_file(folders: list[Path]) -> Path:
    return (folders[0] if len(folders) == 1 else Path()) / "report.html"
