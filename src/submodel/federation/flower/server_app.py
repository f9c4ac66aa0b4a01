"""App of the server; Flower starts it for every run, beside the SuperLink.

Its run configuration names a folder. If that holds a run, the app continues it, so submitting the
same run again resumes a killed server.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from submodel.config import read
from submodel.config.setup import prepare
from submodel.core.errors import SubmodelError, refuse
from submodel.federation.flower.grid import GridChannel
from submodel.federation.server import over_devices
from submodel.runs.callbacks import RoundCallback
from submodel.runs.callbacks.progress import describe_scores
from submodel.runs.folder import RunFolder, new_folder
from submodel.runs.loop import run_rounds
from submodel.runs.training import Training

app = ServerApp()
_log = logging.getLogger("submodel")


def folder_of(run_config: Mapping[str, object]) -> RunFolder:
    """Return the run's folder; create it from a configuration file and settings if it is new."""
    values = {key: str(value).strip() for key, value in run_config.items()}
    problems = [
        f"{key}: {values[key]} must be absolute: this app runs in the SuperLink's folder"
        for key in ("folder", "config")
        if values.get(key) and not Path(values[key]).is_absolute()
    ]
    refuse(problems)
    folder = RunFolder(Path(values["folder"])) if values.get("folder") else None
    if folder is not None and folder.config_file.is_file():
        return folder
    file = Path(values["config"]) if values.get("config") else None
    settings = [*values.get("settings", "").splitlines(), "engine.name=flower"]
    config = read(file, [s for s in settings if s.strip()])
    folder = folder or new_folder(config.name)
    folder.create(config)
    return folder


@app.main()
def train_over_grid(grid: Grid, context: Context) -> None:
    """Train the run of a folder over the nodes of the grid."""
    folder = folder_of(context.run_config)
    with _log_into(folder), folder.lock():
        folder.stopped_file.unlink(missing_ok=True)
        try:
            _train(folder, grid)
        except SubmodelError as error:
            folder.stopped_file.write_text(f"{error}\n", encoding="utf-8")
            raise


def _train(folder: RunFolder, grid: Grid) -> None:
    config, rounds_before = folder.config(), folder.rounds()
    _log.info("%s: round %d of %d", folder.path.resolve(), rounds_before, config.train.rounds)

    def log_round(line: dict[str, Any]) -> None:
        if line["round"] > rounds_before:
            _log.info(
                "round %d of %d: %s", line["round"], config.train.rounds, describe_scores(line)
            )

    training = Training(config, prepare(folder.locate(config)), takes_module=True)
    training = over_devices(training, GridChannel(grid), folder.devices_file)
    run_rounds(training, folder, [RoundCallback(log_round)], resume=True)


@contextmanager
def _log_into(folder: RunFolder) -> Iterator[None]:
    """Log the run to its folder and to standard error, which Flower streams."""
    handlers = logging.FileHandler(folder.log_file), logging.StreamHandler()
    for handler in handlers:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    try:
        yield
        _log.info("finished")
    except SubmodelError as error:
        _log.error("%s", error)
        raise
    except Exception:
        _log.exception("the run failed")
        raise
    finally:
        for handler in handlers:
            _log.removeHandler(handler)
            handler.close()
