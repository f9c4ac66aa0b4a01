"""Commands of real devices: serve and join."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from submodel.cli.common import AsJson, ConfigFile, Force, SetOptions, print_json, talk
from submodel.core.errors import ConfigError, Interruption, SubmodelError, refuse

if TYPE_CHECKING:  # imports of PyTorch and Flower stay inside the functions
    from submodel.config import Config
    from submodel.federation.flower.serving import ServingPlace
    from submodel.runs.folder import RunFolder

PORT = 8000
"""Default port of a server."""
_FEDERATION, _CREDENTIALS = Path("federation"), Path("device")


def need_flower() -> None:
    """Raise `SubmodelError` if Flower is not installed."""
    if importlib.util.find_spec("flwr") is None:
        raise SubmodelError(
            "real devices need Flower, which is not installed: pip install 'submodel[flower]'"
        )


def serve_command(
    config: ConfigFile = None,
    settings: SetOptions = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run.")] = None,
    federation: Annotated[
        Path, typer.Option(help="Folder made by 'submodel federation init'.")
    ] = _FEDERATION,
    host: Annotated[
        str | None,
        typer.Option(help="Address to listen on (default: all; insecure: loopback)."),
    ] = None,
    port: Annotated[int, typer.Option(help="Port to listen on.")] = PORT,
    superlink: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Use a running SuperLink of this machine."),
    ] = None,
    ca: Annotated[Path | None, typer.Option(help="CA certificate of --superlink.")] = None,
    insecure: Annotated[
        bool, typer.Option(help="Neither encrypt nor check keys; only on loopback.")
    ] = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Train over real devices: start a server, or use a running one.

    Examples:
        submodel serve examples/mnist.toml --federation federation
        submodel serve --insecure --set train.rounds=5
        submodel serve --superlink 127.0.0.1:9093 --ca ca.crt --json
    JSON:
        run: folder of the run
        summary: scores and costs, as in submodel train
        curves: picture of the curves; null without matplotlib
    """
    need_flower()
    from submodel.config import read
    from submodel.config.setup import prepare
    from submodel.federation.flower.serving import ServingPlace
    from submodel.federation.server import problems_over_devices
    from submodel.runs.folder import RunFolder, new_folder

    full_config = read(config, [*(settings or []), "engine.name=flower"])
    refuse(problems_over_devices(full_config))
    if force and out is None:
        raise ConfigError("--force: goes with --out, the run to replace")
    if superlink is not None:
        if (ca is None) != insecure:
            raise ConfigError("--superlink: give its --ca, or --insecure")
        place = ServingPlace.of(superlink, ca)
    elif insecure:
        place = ServingPlace(host or "127.0.0.1", port, None)
    else:
        place = ServingPlace(host or "0.0.0.0", port, str(federation.resolve()))
    folder = RunFolder(out) if out else new_folder(full_config.name)
    prepare(full_config)  # raises before anything starts
    folder.create(full_config, force)
    place.save(folder)
    follow(full_config, folder, place, as_json)


def follow(config: Config, folder: RunFolder, place: ServingPlace, as_json: bool) -> None:
    """Serve a run from its last round on."""
    need_flower()
    from submodel.federation.flower.serving import ServedRun
    from submodel.report.tables import plain_end
    from submodel.runs.callbacks.progress import describe_end, show_progress

    console = talk(as_json)
    served_run = ServedRun(folder, place, console.print)
    console.print(
        f"serving {folder.path}: {config.model.name}, scheme {config.scheme.name}, "
        f"{config.clients.sample_size} of at most {config.clients.client_count} devices per round, "
        f"{config.train.rounds} rounds, on port {place.port} of {place.host}"
        + ", insecure"
        * (place.certificate() is None)
    )
    try:
        with show_progress(config.train.rounds, console) as on_round:
            served_run.follow(on_round)
    except Interruption as stop:
        console.print(f"{stop}; continue with: submodel resume {folder.path}", soft_wrap=True)
        raise typer.Exit(130) from None
    if as_json:
        print_json(plain_end(folder))
        return
    console.print(describe_end(folder.summary() or {}))


def join_command(
    host: Annotated[str, typer.Argument(metavar="HOST[:PORT]", help="Address of the server.")],
    data: Annotated[
        str | None,
        typer.Option(
            metavar="PATH|NAME",
            help="Folder of CLASS/*.png, .npz or .safetensors with x and y, or a name as in "
            "data.name: csv:PATH, text:PATH, mnist, ...",
        ),
    ] = None,
    part: Annotated[
        int | None,
        typer.Option(help="Instead of --data: client of the run's own data, for tests."),
    ] = None,
    capacity: Annotated[
        str | None, typer.Option(help="Capacity of the sub-model to hold, such as 1/4.")
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(help="Instead: memory for training, such as 2GB (default: half of the free)."),
    ] = None,
    credentials: Annotated[
        Path, typer.Option(help="Folder of this device's keys, from 'submodel federation init'.")
    ] = _CREDENTIALS,
    name: Annotated[str | None, typer.Option(help="Name of this device on the server.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="data.KEY=VALUE",
            help="Key of --data that differs from the server's; repeatable.",
        ),
    ] = None,
    insecure: Annotated[
        bool, typer.Option(help="Neither encrypt nor send a key; only on loopback.")
    ] = False,
) -> None:
    """Take part as a device: train the sub-model that fits on own data.

    Only updates leave the device. It loads PyTorch only to train.

    Examples:
        submodel join fl.example.org --data pictures --memory 2GB
        submodel join 127.0.0.1 --insecure --part 0 --capacity 1/4
        submodel join fl.example.org:9000 --data csv:table.csv --set data.label=kind
    """
    need_flower()
    from submodel.federation.flower.credentials import load_device
    from submodel.federation.flower.supernode import join, node_settings

    app_settings = node_settings(data, part, capacity, memory, name, settings or ())
    files = None if insecure else load_device(credentials)
    address = host if ":" in host.rpartition("]")[2] else f"{host}:{PORT}"
    join(address, app_settings, files, lambda text: print(text, flush=True))
