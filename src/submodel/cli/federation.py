"""Federations: who may take part in a training over real devices."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from submodel.cli import completion
from submodel.cli.common import AsJson, CommandGroup, console, offer_command, print_json
from submodel.core.errors import ConfigError, SubmodelError

if TYPE_CHECKING:  # an extra: imported where it is used
    from submodel.federation.flower.control import Node
    from submodel.federation.flower.credentials import Federation
    from submodel.runs.folder import RunFolder

federation_commands = typer.Typer(
    cls=CommandGroup,
    help="Credentials of real devices and their server, and who they are.",
    no_args_is_help=True,
)

FederationFolder = Annotated[Path, typer.Option("--federation", help="The folder that init made.")]


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
    as_json: AsJson = False,
) -> None:
    """Make a federation: its own authority, a server, keys for devices.

    Examples:
        submodel federation init --host fl.example.org
        submodel federation init home --host 192.168.1.10 --device phone
    JSON:
        folder: what was made
        hosts: where devices reach the server
        devices: their names; each has a folder of credentials under devices
        expires: the last day of the server's certificate
    """
    from submodel.federation.flower import credentials

    if count is not None and names:
        raise ConfigError("--devices: give a number of devices or their names, not both")
    numbers = [str(number) for number in range(1, (count or 3) + 1)]
    names = names or [f"device-{number.zfill(len(numbers[-1]))}" for number in numbers]
    federation = credentials.create(folder, hosts, names)
    if as_json:
        print_json(_plain_federation(folder, federation))
        return
    print(f"made {folder}: a federation of a server and {len(federation.devices)} device(s)")
    print(_validity(federation))
    print(_delivery(folder, federation.devices))
    print(
        f"{folder}/ca.key: copy it to nowhere, best keep it offline. Whoever has it can pose as "
        "the server;\n  only 'submodel federation renew' needs it."
    )
    print(f"next, on the server:    submodel serve CONFIG.toml --federation {folder}")
    print(f"next, on every device:  submodel join {hosts[0]} --data DIR")


def add_command(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Of the new devices.")],
    folder: FederationFolder = Path("federation"),
    as_json: AsJson = False,
) -> None:
    """Make keys for more devices; those that are there stay.

    Examples:
        submodel federation add device-4 device-5
        submodel federation add watch --federation home
    JSON:
        folder: of the federation
        hosts: where devices reach the server
        devices: all of them, by name
        expires: the last day of the server's certificate
        added: those that are new
    """
    from submodel.federation.flower import credentials

    federation = credentials.add(folder, names)
    if as_json:
        print_json({**_plain_federation(folder, federation), "added": names})
        return
    print(f"{folder}: {len(names)} device(s) more, now {len(federation.devices)}")
    print(_delivery(folder, names))


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
    as_json: AsJson = False,
) -> None:
    """Make a new key and certificate for the server.

    Devices need nothing new. It needs ca.key in the federation's folder.

    Examples:
        submodel federation renew
        submodel federation renew --federation home --host fl.example.org
    JSON:
        folder: of the federation
        hosts: where devices reach the server
        devices: all of them, by name
        expires: the last day of the new certificate
    """
    from submodel.federation.flower import credentials

    federation = credentials.renew_certificate(folder, hosts or [])
    if as_json:
        print_json(_plain_federation(folder, federation))
        return
    print(_validity(federation))
    print("devices need nothing new; a running 'submodel serve' shows it when it starts next")


def status_command(
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="[RUN]",
            help="Default: the run served last.",
            autocompletion=completion.run_folders,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a run's devices: what they hold, how they answer.

    Examples:
        submodel federation status
        submodel federation status runs/digits --json
    JSON:
        run: the run's folder
        port: where it is served now; null if it is not
        problem: why nothing is known of connections; null if it is
        devices: each with its client, name, state, capacity (null: as configured), examples,
            answered and missed tasks, last_seen (ISO 8601) and last_problem; client and what
            follows from taking part are null of one that has not yet
    """
    from submodel.federation.roster import read_roster
    from submodel.report.tables import devices_table, plain_devices
    from submodel.runs.folder import RunFolder

    folder = RunFolder(run or _newest())
    folder.config()  # is it a run?
    entries = read_roster(folder.devices_file)
    nodes: dict[int, Node] = {}
    port = problem = None
    if folder.serving_file.is_file():
        try:
            port, nodes = _list_nodes(folder)
            where = f"served on port {port}; {len(nodes)} device(s) registered"
        except SubmodelError as error:
            problem = str(error)
            where = f"not served now ({error})"
    else:
        problem = where = "begun by 'flwr run': who is connected, 'flwr supernode list' tells"
    devices = plain_devices(entries, nodes)
    if as_json:
        print_json({"run": folder.path, "port": port, "problem": problem, "devices": devices})
        return
    print(f"{folder.path}: {where}")
    console.print(devices_table(devices))


def _list_nodes(folder: RunFolder) -> tuple[int, dict[int, Node]]:
    """The port where a run is served, and the devices that its SuperLink knows."""
    from submodel.federation.flower.control import Control
    from submodel.federation.flower.serving import ServingPlace

    place = ServingPlace.load(folder)
    control = Control(place.address, place.certificate())
    try:
        return place.port, {node.id: node for node in control.nodes()}
    finally:
        control.close()


def app_command(
    folder: Annotated[Path, typer.Argument(help="A new folder.")] = Path("submodel-app"),
    as_json: AsJson = False,
) -> None:
    """Write the app that 'flwr run' takes.

    It is for a Flower deployment that is there already.

    Examples:
        submodel federation app
        submodel federation app apps/submodel
    JSON:
        folder: what was made
        command: what runs it
    """
    from submodel.federation.flower.control import thin_app

    if folder.exists():
        raise SubmodelError(f"{folder} exists already")
    shutil.copytree(thin_app(), folder)
    run_config = 'config="/abs/config.toml" folder="/abs/run"'
    command = f"flwr run {folder} --run-config '{run_config}' --stream"
    if as_json:
        print_json({"folder": folder, "command": command})
    else:
        print(f"made {folder}: {command}")


for _command in (init_command, add_command, renew_command, status_command, app_command):
    offer_command(federation_commands, _command.__name__.removesuffix("_command"), _command)


def _newest() -> Path:
    """The run whose serving began last."""
    files = Path("runs").glob("*/serving.json")
    newest = max(files, key=lambda path: path.stat().st_mtime, default=None)
    if newest is None:
        raise SubmodelError("no run under 'runs' was ever served; name its folder")
    return newest.parent


def _plain_federation(folder: Path, federation: Federation) -> dict[str, Any]:
    return {
        "folder": folder,
        "hosts": list(federation.hosts),
        "devices": list(federation.devices),
        "expires": f"{federation.expires:%Y-%m-%d}",
    }


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
