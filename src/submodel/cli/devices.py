"""The server of real devices: a run whose clients are somewhere else."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from submodel.cli.base import AsJson, ConfigFile, Force, SetOptions, talk
from submodel.cli.json_output import print_json
from submodel.errors import ConfigError, SubmodelError

if TYPE_CHECKING:  # PyTorch, and an extra: imported where they are used
    from submodel.config import Config
    from submodel.federation.flower.serving import ServingPlace
    from submodel.runs.folder import RunFolder

PORT = 8000
"""Where servers listen, if nothing else is said."""
_FEDERATION = Path("federation")


def need_flower() -> None:
    """Say in a sentence that the extra is missing."""
    if importlib.util.find_spec("flwr") is None:
        raise SubmodelError(
            "real devices need Flower, which is not installed: pip install 'submodel[flower]'"
        )


def serve_command(
    config: ConfigFile = None,
    settings: SetOptions = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder.")] = None,
    federation: Annotated[
        Path, typer.Option(help="The folder that 'submodel federation init' made.")
    ] = _FEDERATION,
    host: Annotated[
        str | None, typer.Option(help="The address to listen on (default: all; insecure: loopback)")
    ] = None,
    port: Annotated[int, typer.Option(help="The port to listen on.")] = PORT,
    superlink: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Train on a SuperLink that runs on this machine."),
    ] = None,
    ca: Annotated[Path | None, typer.Option(help="The CA certificate of --superlink.")] = None,
    insecure: Annotated[
        bool, typer.Option(help="Neither encrypt nor check keys; on loopback only.")
    ] = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Train over real devices: start a server for them, or use one.

    Examples:
        submodel serve examples/mnist.toml --federation federation
        submodel serve --insecure --set train.rounds=5
        submodel serve --superlink 127.0.0.1:9093 --ca ca.crt --json
    JSON:
        run: the run's folder
        summary: what it came to, as of submodel train
        curves: the picture of its curves; null without matplotlib
    """
    need_flower()
    from submodel.config import read
    from submodel.federation.flower.serving import ServingPlace
    from submodel.federation.server import problems_over_devices
    from submodel.prepare.setup import prepare
    from submodel.runs.folder import RunFolder, new_folder

    full_config = read(config, [*(settings or []), "engine.name=flower"])
    if problems := problems_over_devices(full_config):
        raise ConfigError(problems)
    if force and out is None:
        raise ConfigError(["--force: goes with --out, the run to replace"])
    if superlink is not None:
        if (ca is None) != insecure:
            raise ConfigError(["--superlink: give its --ca, or --insecure"])
        place = ServingPlace.of(superlink, ca)
    elif insecure:
        place = ServingPlace(host or "127.0.0.1", port, None)
    else:
        place = ServingPlace(host or "0.0.0.0", port, str(federation.resolve()))
    folder = RunFolder(out) if out else new_folder(full_config.name)
    prepare(full_config)  # what does not fit is said before anything starts
    folder.create(full_config, force)
    place.save(folder)
    follow(full_config, folder, place, as_json)


def follow(config: Config, folder: RunFolder, place: ServingPlace, as_json: bool) -> None:
    """Serve a run that has a folder, from wherever it stands.

    Args:
        config: of the run.
        folder: of the run.
        place: where it is served.
        as_json: print the result so.
    """
    need_flower()
    from submodel.federation.flower.credentials import load_federation
    from submodel.federation.flower.serving import ServedRun
    from submodel.federation.flower.superlink import Superlink
    from submodel.report.tables import plain_end
    from submodel.runs.callbacks.progress import show_progress
    from submodel.runs.loop import Interruption

    console = talk(as_json)

    def keys() -> Mapping[str, bytes]:
        return load_federation(Path(place.federation)).public_keys() if place.federation else {}

    credentials, ca, link = None, None if place.ca is None else Path(place.ca), None
    database = folder.path / "superlink.db"
    if place.federation is not None:
        federation = load_federation(Path(place.federation))
        files = federation.server
        credentials, ca = files, files.ca
        database = federation.folder / "superlink.db"
        federation.check("localhost")
    address = place.address
    if place.own:
        home = folder.path / ".flower"
        link = Superlink(place.host, place.port, home, folder.link_log_file, credentials, database)
        address = link.address
    console.print(
        f"serving {folder.path}: {config.model.name}, scheme {config.scheme.name}, "
        f"{config.clients.sample_size} of at most {config.clients.client_count} devices per round, "
        f"{config.train.rounds} rounds, on port {place.port} of {place.host}"
        + ", insecure"
        * (ca is None)
    )
    try:
        with show_progress(config.train.rounds, console) as on_round:
            ServedRun(folder, link, address, ca, keys, console.print).follow(on_round)
    except Interruption as stop:
        console.print(f"{stop}; continue with: submodel resume {folder.path}", soft_wrap=True)
        raise typer.Exit(130) from None
    if as_json:
        print_json(plain_end(folder))
        return
    summary = folder.summary() or {}
    if "test_accuracy" in summary:
        console.print(f"test accuracy {summary['test_accuracy']:.1%}", end=", ")
    console.print(f"test loss {summary['test_loss']:.4f} after {summary['rounds']} rounds")
