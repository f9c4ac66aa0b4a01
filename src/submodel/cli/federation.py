"""Federations: who may take part in a training over real devices."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from submodel.cli.base import console
from submodel.errors import ConfigError, SubmodelError

if TYPE_CHECKING:  # an extra: imported where it is used
    from submodel.federation.flower.control import Node
    from submodel.federation.flower.credentials import Federation
    from submodel.federation.roster import Entry
    from submodel.runs.folder import RunFolder

federation_commands = typer.Typer(
    help="Make and look after the credentials of real devices and their server.",
    no_args_is_help=True,
)

FederationFolder = Annotated[Path, typer.Option("--federation", help="The folder that init made.")]


@federation_commands.command(name="init")
def init_command(
    hosts: Annotated[
        list[str],
        typer.Option(
            "--host", metavar="NAME_OR_IP", help="Where devices reach the server; repeatable."
        ),
    ],
    folder: Annotated[Path, typer.Argument(help="A new folder.")] = Path("federation"),
    count: Annotated[
        int | None,
        typer.Option("--devices", help="How many, named device-1, ... (default: 3).", min=1),
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Option("--device", metavar="NAME", help="Or devices by name; repeatable."),
    ] = None,
) -> None:
    """Make a federation: an authority of its own, a server, keys for every device."""
    from submodel.federation.flower import credentials

    if count is not None and names:
        raise ConfigError(["--devices: give a number of devices or their names, not both"])
    federation = credentials.create(folder, hosts, names or _number_devices(count or 3))
    print(f"made {folder}: a federation of a server and {len(federation.devices)} device(s)")
    print(_validity(federation))
    print(_delivery(folder, federation.devices))
    print(
        f"{folder}/ca.key: copy it to nowhere, best keep it offline. Whoever has it can pose as "
        "the server;\n  only 'submodel federation renew' needs it."
    )
    print(f"next, on the server:    submodel serve CONFIG.toml --federation {folder}")
    print(f"next, on every device:  submodel join {hosts[0]} --data DIR")


@federation_commands.command(name="add")
def add_command(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Of the new devices.")],
    folder: FederationFolder = Path("federation"),
) -> None:
    """Make keys for more devices; those that are there stay as they are."""
    from submodel.federation.flower import credentials

    federation = credentials.add(folder, names)
    print(f"{folder}: {len(names)} device(s) more, now {len(federation.devices)}")
    print(_delivery(folder, names))


@federation_commands.command(name="renew")
def renew_command(
    folder: FederationFolder = Path("federation"),
    hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="NAME_OR_IP",
            help="Where devices reach the server; repeatable. Default: as before.",
        ),
    ] = None,
) -> None:
    """Make a new key and certificate for the server; devices need not change. Needs ca.key."""
    from submodel.federation.flower import credentials

    print(_validity(credentials.renew_certificate(folder, hosts or [])))
    print("devices need nothing new; a running 'submodel serve' shows it when it starts next")


@federation_commands.command(name="status")
def status_command(
    run: Annotated[
        Path | None, typer.Argument(metavar="[RUN]", help="Default: the run served last.")
    ] = None,
) -> None:
    """Show a run's devices: what they hold, how they answer, when they were last seen."""
    from submodel.federation.roster import read_roster
    from submodel.runs.folder import RunFolder

    folder = RunFolder(run or _newest())
    folder.config()  # is it a run?
    entries = read_roster(folder.devices_file)
    nodes: dict[int, Node] = {}
    if folder.serving_file.is_file():
        try:
            port, nodes = _list_nodes(folder)
            where = f"served on port {port}; {len(nodes)} device(s) registered"
        except SubmodelError as error:
            where = f"not served now ({error})"
    else:
        where = "begun by 'flwr run': who is connected, 'flwr supernode list' tells"
    print(f"{folder.path}: {where}")
    console.print(device_table(entries, nodes))


def _list_nodes(folder: RunFolder) -> tuple[int, dict[int, Node]]:
    """The port where a run is served, and the devices that its SuperLink knows."""
    from submodel.federation.flower.control import Control
    from submodel.federation.flower.credentials import load_federation
    from submodel.federation.flower.serving import ServingPlace

    place = ServingPlace.load(folder)
    ca = None if place.ca is None else Path(place.ca)
    if place.federation is not None:
        ca = load_federation(Path(place.federation)).server.ca
    control = Control(place.address, ca)
    try:
        return place.port, {node.id: node for node in control.nodes()}
    finally:
        control.close()


@federation_commands.command(name="app")
def app_command(
    folder: Annotated[Path, typer.Argument(help="A new folder.")] = Path("submodel-app"),
) -> None:
    """Write the app that 'flwr run' takes, for a Flower deployment that is there already."""
    from submodel.federation.flower.control import thin_app

    if folder.exists():
        raise SubmodelError(f"{folder} exists already")
    shutil.copytree(thin_app(), folder)
    run_config = 'config="/abs/config.toml" folder="/abs/run"'
    print(f"made {folder}: flwr run {folder} --run-config '{run_config}' --stream")


def _newest() -> Path:
    """The run whose serving began last."""
    serving_files = sorted(
        Path("runs").glob("*/serving.json"), key=lambda path: path.stat().st_mtime
    )
    if not serving_files:
        raise SubmodelError("no run under 'runs' was ever served; name its folder")
    return serving_files[-1].parent


def device_table(entries: Sequence[Entry], nodes: Mapping[int, Node]) -> Table:
    """The devices of a run, and those that are registered but have not taken part."""
    table = Table()
    for heading in ("client", "device", "state", "capacity", "examples", "answered", "missed",
                    "last seen", "last problem"):  # fmt: skip
        table.add_column(heading, overflow="fold")
    for entry in entries:
        node, report = nodes.get(entry.node), entry.report
        capacity = "as configured" if report.capacity is None else f"{report.capacity:g}"
        last_seen = datetime.fromtimestamp(entry.last_seen, UTC) if entry.last_seen else None
        if node is not None and node.last_seen is not None:
            last_seen = max(last_seen or node.last_seen, node.last_seen)
        state = node.status if node is not None else "unknown"
        table.add_row(
            *(str(entry.client), report.name, state, capacity, str(report.examples)),
            *(str(entry.answered), str(entry.missed), _when(last_seen), entry.last_problem),
        )
    for node in nodes.values():
        if node.id not in {entry.node for entry in entries}:
            table.add_row("-", node.fingerprint or str(node.id), node.status, *"----",
                          _when(node.last_seen), "")  # fmt: skip
    return table


def _when(moment: datetime | None) -> str:
    return "never" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _number_devices(count: int) -> list[str]:
    width = len(str(count))
    return [f"device-{number:0{width}}" for number in range(1, count + 1)]


def _validity(federation: Federation) -> str:
    return (
        f"{federation.server.certificate}: valid for {', '.join(federation.hosts)} "
        f"until {federation.expires:%Y-%m-%d}"
    )


def _delivery(folder: Path, names: list[str] | tuple[str, ...]) -> str:
    lines = [f"  {folder}/devices/{name}  ->  'device' on {name}" for name in names]
    return "\n".join(
        (
            "copy one folder to each device, and nothing else:",
            *lines,
            "  device.key is private to its device: once it is there, it can be deleted here",
        )
    )
